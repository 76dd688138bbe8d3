//! Names on a node.
//!
//! A node's daemon has one list of chains and one of services, for all namespaces, with names of
//! letters, digits, `-` and `_`. Names of Kubernetes have no `_`, so `NAMESPACE_NAME` is unique. A
//! longer one, or one with a `.`, is cut, and ends with a digest instead.

use sluice_slo::digest::Digest;

/// Longest name: a service that is made for an SLO is named after both, within 63 letters.
const LONGEST: usize = 28;
/// Letters of the digest.
const DIGEST: usize = 12;

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
}
