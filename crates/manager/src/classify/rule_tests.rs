use super::*;
use proptest::prelude::*;

fn packet(v6: bool, fragment: bool, protocol: u8, addresses: (u8, u8), ports: (u8, u8), vlan: u8, dscp: u8) -> FlowKey {
    let mut p = [0u8; 78];
    p[12..16].copy_from_slice(&[0x81, 0, 0, vlan]);
    if v6 {
        p[16..18].copy_from_slice(&[0x86, 0xdd]);
        p[18..20].copy_from_slice(&[0x60 | dscp >> 2, dscp << 6]);
        p[23] = 20;
        p[24] = if fragment { 44 } else { protocol };
        p[26] = 0x20;
        p[41] = addresses.0;
        p[42] = 0x20;
        p[57] = addresses.1;
        p[58] = if fragment { protocol } else { 0 };
        p[59] = ports.0;
        p[61] = if fragment { 1 } else { ports.1 };
    } else {
        p[16..22].copy_from_slice(&[8, 0, 0x45, dscp << 2, 0, 60]);
        p[24] = if fragment { 0x20 } else { 0 };
        p[27] = protocol;
        p[30..34].copy_from_slice(&[10, 0, 0, addresses.0]);
        p[34..38].copy_from_slice(&[10, 0, 0, addresses.1]);
        p[39] = ports.0;
        p[41] = ports.1;
    }
    FlowKey::parse(&p, 78, 1)
}

fn key() -> impl Strategy<Value = FlowKey> {
    let protocol = prop::sample::select(vec![6u8, 17, 1, 58, 50]);
    let ip = (any::<bool>(), prop::bool::weighted(0.2), protocol, (0..8u8, 0..8u8), (0..8u8, 0..8u8), 0..3u8, 0..3u8).prop_map(
        |(v6, fragment, protocol, addresses, ports, vlan, dscp)| packet(v6, fragment, protocol, addresses, ports, vlan, dscp),
    );
    prop_oneof![
        8 => ip,
        1 => (0..3u16).prop_map(|port| FlowKey::parse(&[7; 60], 60, port)),
        1 => Just(FlowKey::parse(&[], 0, 1)),
    ]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    prop_oneof![
        (0..8u8, 27..=32u8).prop_map(|(a, len)| Prefix::new(IpAddr::from([10, 0, 0, a]), len).unwrap()),
        (0..8u16, 123..=128u8).prop_map(|(a, len)| Prefix::new(IpAddr::from([0x2000, 0, 0, 0, 0, 0, 0, a]), len).unwrap()),
        Just(Prefix::V4(0, 0)),
        Just(Prefix::V6(0, 0)),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let maybe = |range: std::ops::Range<u16>| prop::option::weighted(0.2, range);
    let ports = || prop::option::weighted(0.2, (0..8u16, 0..4u16).prop_map(|(first, more)| first..=first + more));
    let protocol = prop_oneof![
        3 => Just(Protocol::Any),
        1 => Just(Protocol::Ip),
        1 => Just(Protocol::NonIp),
        3 => prop::sample::select(vec![6u8, 17, 1, 58, 50]).prop_map(Protocol::Number),
    ];
    let address = || prop::option::weighted(0.3, prefix());
    (maybe(0..3), maybe(0..3), protocol, address(), address(), ports(), ports(), maybe(0..3), any::<u16>()).prop_map(
        |(port, vlan, protocol, src, dst, src_port, dst_port, dscp, chain)| {
            let dscp = dscp.map(|d| d as u8);
            Rule { port, vlan, protocol, src, dst, src_port, dst_port, dscp, chain, ..Rule::default() }
        },
    )
}

proptest! {
    #[test]
    fn agrees_with_the_definition(rules in prop::collection::vec(rule(), 0..40), keys in prop::collection::vec(key(), 1..40)) {
        let set = RuleSet::new(rules.clone());
        for key in keys {
            let expected = rules.iter().position(|rule| rule.matches(&key));
            prop_assert_eq!(set.first_rule(&key), expected, "{}", key);
            prop_assert_eq!(set.first_match(&key), expected.map(|r| rules[r].chain));
        }
    }
}

fn compile(text: &str) -> Result<Rule, RuleError> {
    let rule: model::Rule = toml::from_str(text).unwrap();
    let ports = HashMap::from([("wan".to_owned(), 4)]);
    let chains = HashMap::from([("web".to_owned(), 9)]);
    Rule::compile(&rule, 2, &ports, &chains)
}

#[test]
fn configured_rules_compile() {
    assert_eq!(compile("chain = 'web'"), Ok(Rule { chain: 9, ..Rule::default() }));
    let all = "port = 'wan'\nvlan = 5\nprotocol = 'tcp'\nsrc = '10.0.0.0/8'\ndst = '192.0.2.1'\nsrc_port = '1000-2000'\n\
               dst_port = 80\ndscp = 46\npriority = 2.5\ntenant = 'gold'\nchain = 'web'";
    let expected = Rule {
        port: Some(4),
        vlan: Some(5),
        protocol: Protocol::Number(6),
        src: Some(Prefix::V4(0x0a00_0000, 0xff00_0000)),
        dst: Some(Prefix::V4(0xc000_0201, u32::MAX)),
        src_port: Some(1000..=2000),
        dst_port: Some(80..=80),
        dscp: Some(46),
        chain: 9,
        terms: Terms { weight: Weight::new(2.5), ..Terms::default() },
    };
    assert_eq!(compile(all), Ok(expected));
    assert_eq!(
        compile("src = '2001:db8::/32'\nchain = 'web'").unwrap().src,
        Prefix::new("2001:db8::".parse::<IpAddr>().unwrap(), 32)
    );
    for (word, protocol) in [("ip", Protocol::Ip), ("non-ip", Protocol::NonIp), ("89", Protocol::Number(89))] {
        assert_eq!(compile(&format!("protocol = '{word}'\nchain = 'web'")).unwrap().protocol, protocol);
    }
}

#[test]
fn what_cannot_be_is_refused_with_advice() {
    for (text, message) in [
        ("chain = 'wob'", "rule rule.2: there is no chain \"wob\"; name one of the configured chains"),
        ("name = 'a'\nport = 'x'\nchain = 'web'", "rule a: there is no port \"x\"; name one of the configured ports"),
        (
            "src = '10.0.0.0/33'\nchain = 'web'",
            "rule rule.2: src: \"33\" is no prefix length of an IPv4 address; they go from 0 to 32",
        ),
        ("dst_port = '9-8'\nchain = 'web'", "rule rule.2: dst_port: the range \"9-8\" runs backwards; write \"8-9\""),
        ("vlan = 4095\nchain = 'web'", "rule rule.2: vlan: 4095 is no VLAN id; they go from 0 to 4094"),
        ("dscp = 64\nchain = 'web'", "rule rule.2: dscp: 64 is no DSCP; they go from 0 to 63"),
        ("protocol = '256'\nchain = 'web'", "rule rule.2: protocol: 256 is no protocol number; they go from 0 to 255"),
        (
            "protocol = 'non-ip'\nsrc = '10.0.0.0/8'\nchain = 'web'",
            "rule rule.2 can never match: non-ip packets have no address, port or DSCP; remove one of the two keys",
        ),
        (
            "src = '::1'\ndst = '10.0.0.0/8'\nchain = 'web'",
            "rule rule.2 can never match: src and dst are of different IP versions; remove one of the two keys",
        ),
        (
            "protocol = 'icmp'\ndst_port = 1\nchain = 'web'",
            "rule rule.2 can never match: its protocol has no ports; remove one of the two keys",
        ),
    ] {
        assert_eq!(compile(text).unwrap_err().to_string(), message);
    }
}
