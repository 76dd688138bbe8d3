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
