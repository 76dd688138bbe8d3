//! Rules that the configuration takes for valid can be compiled.

use std::collections::HashMap;

use proptest::prelude::*;
use sluice_api::config as model;
use sluice_config::{Problem, load, validate};

use sluice_dataplane::classify::compile::compile;

const BASE: &str = r#"
[[port]]
name = "in0"
kind = "gen"
[[port]]
name = "out0"
kind = "sink"
[[service]]
name = "ids"
exec = "ids"
[[chain]]
name = "web"
services = ["ids"]
egress = "out0"
[[rule]]
port = "in0"
vlan = 7
chain = "web"
"#;

/// Rules whose keys are each one of a few words, valid and invalid.
fn some_rule() -> impl Strategy<Value = model::Rule> {
    let word = |words: Vec<&'static str>| prop::option::of(proptest::sample::select(words).prop_map(String::from));
    let prefix =
        || word(vec!["10.0.0.0/8", "10.0.0.1/8", "0.0.0.0/0", "192.0.2.1", "::/0", "2001:db8::/32", "::1/64", "x", "10.0.0.0/33"]);
    let range = || word(vec!["80", "0-65535", "9-8", " 1", "x", "1-2-3"]).prop_map(|r| r.map(model::PortRange::Text));
    let protocol = word(vec!["tcp", "udp", "icmp", "icmpv6", "ip", "non-ip", "132", "50", "0", "255", "256", "-1", "+1", "TCP"]);
    let numbers = (prop::option::of(4090u16..4097), prop::option::of(60u8..66));
    (protocol, prefix(), prefix(), range(), range(), numbers).prop_map(|(protocol, src, dst, src_port, dst_port, (vlan, dscp))| {
        model::Rule { protocol, src, dst, src_port, dst_port, vlan, dscp, chain: "web".into(), ..model::Rule::default() }
    })
}

proptest! {
    #[test]
    fn a_valid_rule_is_one_that_the_classifier_takes(rule in some_rule()) {
        let mut config = load::parse(BASE, "a.toml").unwrap();
        config.rules = vec![rule.clone()];
        if !validate::validate(&config).iter().any(Problem::is_error) {
            let compiled = compile(&rule, 0, &HashMap::new(), &HashMap::from([("web".into(), 0)]));
            prop_assert!(compiled.is_ok(), "{:?}", compiled);
            let compiled = compiled.unwrap();
            for (range, compiled) in [(rule.src_port, compiled.src_port), (rule.dst_port, compiled.dst_port)] {
                prop_assert_eq!(range.map(|r| r.bounds().unwrap()), compiled.map(|c| (*c.start(), *c.end())));
            }
        }
    }
}
