//! Arguments that NFs which come along need.

/// Stands for a file of rules among [`USUAL`].
pub const RULES_FILE: &str = "RULES";

/// Arguments of NFs that need some, where usual ones are of use.
const USUAL: [(&str, &[&str]); 2] = [
    ("firewall", &["--rules", RULES_FILE]),
    ("nat", &["--inside", "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16", "--outside", "203.0.113.1"]),
];

/// NFs without usual arguments, and those that they need.
pub const NEEDED: [(&str, &str); 9] = [
    ("cost", "--cycles 1000"),
    ("decrypt", "--keys FILE"),
    ("encrypt", "--keys FILE"),
    ("lb", "--vip ADDRESS:PORT --backends FILE"),
    ("logger", "--write FILE"),
    ("lookup", "--table FILE"),
    ("router", "--routes FILE"),
    ("search", "--patterns FILE"),
    ("vlan", "tag --id N"),
];

/// Usual arguments of an NF; none if it has no usual ones.
pub fn usual(nf: &str) -> Option<&'static [&'static str]> {
    USUAL.iter().find(|(name, _)| *name == nf).map(|(_, args)| *args)
}

/// What an NF needs that has no usual arguments.
pub fn needed(nf: &str) -> Option<&'static str> {
    NEEDED.iter().find(|(name, _)| *name == nf).map(|(_, args)| *args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_nf_has_usual_arguments_or_is_to_be_given_some() {
        assert!(USUAL.iter().all(|(nf, _)| needed(nf).is_none()));
        assert_eq!((usual("nat").map(|args| args[0]), needed("vlan")), (Some("--inside"), Some("tag --id N")));
        assert_eq!((usual("bridge"), needed("bridge")), (None, None));
    }
}
