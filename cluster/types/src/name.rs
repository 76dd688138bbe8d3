//! Names on a node, and of pods.
//!
//! A node's daemon has one list of chains and one of services, for all namespaces, with names of
//! letters, digits, `-` and `_`. Names of Kubernetes have no `_`, so `NAMESPACE_NAME` is unique. A
//! longer one, or one with a `.`, is cut, and ends with a digest instead.

use sluice_slo::digest::Digest;

/// Longest name: a service that is made for an SLO is named after both, within 63 letters.
const LONGEST: usize = 28;
/// Letters of the digest.
const DIGEST: usize = 12;
/// Longest name of a pod that is the name of its host, too.
const LONGEST_POD: usize = 63;

/// The name of an object on a node.
pub fn on_node(namespace: &str, name: &str) -> String {
    let whole = format!("{namespace}_{name}");
    if whole.len() <= LONGEST && !whole.contains('.') {
        return whole;
    }
    let digest = Digest::of(whole.as_bytes()).to_string();
    let readable: String = name.chars().map(|c| if c == '.' { '-' } else { c }).take(LONGEST - DIGEST - 1).collect();
    format!("{readable}_{}", &digest[digest.len() - DIGEST..])
}

/// The name of a pod that is made for an instance. `made_of` is what else no two such pods have in
/// common. So a pod that is made twice is refused the second time.
pub fn of_pod(slo: &str, function: &str, number: u32, made_of: &[&str]) -> String {
    // Names of Kubernetes have no `/`.
    let digest = Digest::of(format!("{slo}/{function}/{number}/{}", made_of.join("/")).as_bytes()).to_string();
    let whole = format!("{slo}-{function}-{number}").replace('.', "-");
    let readable: String = whole.chars().take(LONGEST_POD - DIGEST - 1).collect();
    format!("{}-{}", readable.trim_end_matches('-'), &digest[digest.len() - DIGEST..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_node_are_short_and_unique() {
        assert_eq!(on_node("acme", "web"), "acme_web");
        let long = on_node("a-namespace-with-a-long-name", "a-chain-with-a-long-name");
        assert!(long.len() <= LONGEST && long.starts_with("a-chain-with-a-_"), "{long}");
        assert_ne!(long, on_node("a-namespace-with-a-long-nam", "ea-chain-with-a-long-name"));
        assert!(!on_node("a", "v1.2").contains('.'));
        assert_ne!(on_node("a", "v1.2"), on_node("a", "v1-2"));
    }

    #[test]
    fn pods_have_names_of_hosts_that_say_what_they_are() {
        let name = of_pod("web", "nat", 3, &["uid", "n1"]);
        assert!(name.starts_with("web-nat-3-") && name == of_pod("web", "nat", 3, &["uid", "n1"]), "{name}");
        for other in [
            of_pod("web-nat", "3", 3, &["uid", "n1"]),
            of_pod("web", "nat", 3, &["uid", "n2"]),
            of_pod("web", "nat", 4, &["uid", "n1"]),
        ] {
            assert_ne!(name, other);
        }
        // Where the parts meet says which they are.
        assert_ne!(of_pod("a-b", "c", 0, &[]), of_pod("a", "b-c", 0, &[]));
        let long = of_pod(&"s.".repeat(40), &"f".repeat(253), 255, &["n"]);
        assert!(long.len() <= LONGEST_POD && !long.contains('.') && !long.contains("--"), "{long}");
    }
}
