use super::*;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use sluice_shm::arena::{Arena, Geometry};

#[derive(Debug, Clone)]
struct Spec {
    tags: Vec<(u16, u16)>,
    v6: bool,
    src: [u8; 16],
    dst: [u8; 16],
    traffic_class: u8,
    protocol: u8,
    options: usize,
    /// Type and length (in 8 bytes beyond the first) of IPv6 extension headers.
    extensions: Vec<(u8, u8)>,
    /// Fragment offset, in 8 bytes, and whether more follow.
    fragment: Option<(u16, bool)>,
    ports: (u16, u16),
    padding: usize,
}

fn spec() -> impl Strategy<Value = Spec> {
    let tag = (prop::sample::select(vec![0x8100u16, 0x88a8]), 0..4096u16);
    let extension = (prop::sample::select(vec![43u8, 60]), 0..3u8);
    (
        (prop::collection::vec(tag, 0..=2), any::<bool>(), any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u8>()),
        (prop::sample::select(vec![6u8, 17, 1, 58, 50, 47, 89]), prop_oneof![4 => Just(0), 1 => 1..=10usize]),
        (prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(extension, 0..4)], any::<bool>()),
        prop_oneof![3 => Just(None), 1 => (0..0x1fffu16, any::<bool>()).prop_map(Some), 1 => Just(Some((0, false)))],
        (any::<u16>(), any::<u16>(), 0..40usize),
    )
        .prop_map(|((tags, v6, src, dst, traffic_class), (protocol, options), (mut extensions, hop), fragment, last)| {
            if hop && !extensions.is_empty() {
                extensions.insert(0, (0, 1));
            }
            // etherparse knows each of them once, and destination options twice, around routing.
            let mut seen = Vec::new();
            extensions.retain(|(kind, _)| {
                !seen.contains(kind) && {
                    seen.push(*kind);
                    true
                }
            });
            let (src_port, dst_port, padding) = last;
            Spec {
                tags,
                v6,
                src,
                dst,
                traffic_class,
                protocol,
                options,
                extensions,
                fragment,
                ports: (src_port, dst_port),
                padding,
            }
        })
}

impl Spec {
    fn payload(&self) -> Vec<u8> {
        let ports = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
        match self.protocol {
            6 => [&ports[..], &[0; 8], &[0x50, 0], &[0; 6]].concat(),
            17 => [&ports[..], &[0, 12], &[0; 6]].concat(),
            _ => vec![8; 24],
        }
    }

    fn build(&self) -> Vec<u8> {
        let payload = self.payload();
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9];
        for (tpid, id) in &self.tags {
            packet.extend(tpid.to_be_bytes());
            packet.extend((id | 0xa000).to_be_bytes());
        }
        if self.v6 {
            packet.extend(0x86ddu16.to_be_bytes());
            let mut chain: Vec<u8> = self.extensions.iter().map(|e| e.0).collect();
            chain.extend(self.fragment.map(|_| 44));
            chain.push(self.protocol);
            let mut rest = Vec::new();
            for ((_, units), next) in self.extensions.iter().zip(&chain[1..]) {
                rest.extend([*next, *units]);
                rest.extend(vec![0; 6 + usize::from(*units) * 8]);
            }
            if let Some((offset, more)) = self.fragment {
                rest.extend([self.protocol, 0]);
                rest.extend((offset << 3 | u16::from(more)).to_be_bytes());
                rest.extend([0; 4]);
            }
            rest.extend(payload);
            packet.extend((6u32 << 28 | u32::from(self.traffic_class) << 20 | 0x12345).to_be_bytes());
            packet.extend((rest.len() as u16).to_be_bytes());
            packet.extend([chain[0], 64]);
            packet.extend(self.src);
            packet.extend(self.dst);
            packet.extend(rest);
        } else {
            packet.extend(0x0800u16.to_be_bytes());
            let header = 20 + self.options * 4;
            let (offset, more) = self.fragment.unwrap_or((0, false));
            packet.extend([0x40 | (header / 4) as u8, self.traffic_class]);
            packet.extend(((header + payload.len()) as u16).to_be_bytes());
            packet.extend([7, 7]);
            packet.extend((offset | u16::from(more) << 13).to_be_bytes());
            packet.extend([64, self.protocol, 0, 0]);
            packet.extend(&self.src[..4]);
            packet.extend(&self.dst[..4]);
            packet.extend(vec![1; self.options * 4]);
            packet.extend(payload);
        }
        packet.extend(vec![0; self.padding]);
        packet
    }
}

/// What etherparse parses, as fields of a key.
type Seen = (u16, u8, Option<(IpAddr, IpAddr)>, u8, u8, bool, Option<(u16, u16)>);

fn oracle(packet: &[u8]) -> Seen {
    let sliced = SlicedPacket::from_ethernet(packet).unwrap();
    let vlan = sliced.vlan_ids().first().map_or(0, |id| id.value());
    let (version, addresses, protocol, dscp, fragment) = match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            let addresses = (header.source_addr().into(), header.destination_addr().into());
            (4, addresses, ip.payload_ip_number().0, header.dcp().value(), ip.is_payload_fragmented())
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            let addresses = (header.source_addr().into(), header.destination_addr().into());
            (6, addresses, ip.payload().ip_number.0, header.traffic_class() >> 2, ip.is_payload_fragmented())
        }
        NetSlice::Arp(_) => panic!("none was built"),
    };
    let ports = match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => Some((tcp.source_port(), tcp.destination_port())),
        Some(TransportSlice::Udp(udp)) => Some((udp.source_port(), udp.destination_port())),
        _ => None,
    };
    (vlan, version, Some(addresses), protocol, dscp, fragment, ports)
}

fn seen(key: &FlowKey) -> Seen {
    let fragment = key.kind() == PacketKind::Fragment;
    (key.vlan(), key.version(), key.addresses(), key.protocol(), key.dscp(), fragment, key.ports())
}

fn parse(packet: &[u8]) -> FlowKey {
    FlowKey::parse(&packet[..packet.len().min(LONG)], packet.len() as u16, 3)
}

/// The key by one of the fast paths, for a packet in a frame with these bytes behind it.
fn parse_plain(packet: &[u8], behind: u8) -> Option<FlowKey> {
    let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 1, stride: 1088 }, false).unwrap();
    let bytes: Vec<u8> = packet.iter().copied().chain([behind; SHORT]).collect();
    assert!(arena.write(0, 128, &bytes));
    let (head, len) = (arena.head(0, 128)?, packet.len() as u16);
    FlowKey::parse_plain(head, len, 3).or_else(|| FlowKey::parse_other(head, len, 3))
}

proptest! {
    #[test]
    fn sees_what_etherparse_sees(spec in spec()) {
        let packet = spec.build();
        let key = parse(&packet);
        prop_assert_eq!(seen(&key), oracle(&packet));
        prop_assert_eq!(key.ingress(), 3);
        if let Some(fast) = parse_plain(&packet, 0xff) {
            prop_assert_eq!(fast, key);
        }
    }

    #[test]
    fn a_packet_cut_short_is_itself_or_malformed(spec in spec(), behind in any::<u8>()) {
        let packet = spec.build();
        let whole = parse(&packet);
        let mut malformed = true;
        for len in 0..=packet.len() {
            let cut = parse(&packet[..len]);
            if cut.kind() == PacketKind::Malformed {
                prop_assert!(malformed, "recognised when shorter");
            } else {
                prop_assert_eq!(cut, whole);
                malformed = false;
            }
            if let Some(fast) = parse_plain(&packet[..len], behind) {
                prop_assert_eq!(fast, cut);
            }
        }
        prop_assert!(!malformed);
    }

    #[test]
    fn any_bytes_have_a_key(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        start in prop::sample::select(vec![
            &[0u8, 0][..], &[8, 0, 0x45], &[0x86, 0xdd, 0x60], &[0x81, 0, 0, 5, 8, 0, 0x45], &[0x81, 0, 0, 5, 0x86, 0xdd, 0x60],
            &[0x81, 0, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7, 0x81, 0], &[8, 0, 0x4f],
        ]),
    ) {
        let mut bytes = bytes;
        for (to, from) in bytes.iter_mut().skip(12).zip(start) {
            *to = *from;
        }
        let key = parse(&bytes);
        prop_assert_eq!(key.version() == 0, key.flags() & flags::NON_IP != 0);
        prop_assert_eq!(key.addresses().is_some(), key.version() != 0);
        prop_assert!(!key.to_string().is_empty());
        if let Some(fast) = parse_plain(&bytes, 0) {
            prop_assert_eq!(fast, key);
        }
    }

    #[test]
    fn both_directions_have_one_hash(spec in spec(), port in any::<u16>()) {
        let back = Spec { src: spec.dst, dst: spec.src, ports: (spec.ports.1, spec.ports.0), traffic_class: !spec.traffic_class, ..spec.clone() };
        let (there, back) = (parse(&spec.build()), back.build());
        let back = FlowKey::parse(&back, back.len() as u16, port);
        prop_assert_eq!(there.symmetric_hash(), back.symmetric_hash());
        let keys = HashKeys::new(1);
        prop_assert_eq!(there == back, there.hash(&keys) == back.hash(&keys));
    }
}

fn udp(src: u32, src_port: u16) -> Spec {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&src.to_be_bytes());
    Spec {
        tags: vec![],
        v6: false,
        src: address,
        dst: [10; 16],
        traffic_class: 0,
        protocol: 17,
        options: 0,
        extensions: vec![],
        fragment: None,
        ports: (src_port, 53),
        padding: 0,
    }
}

#[test]
fn fragments_of_a_datagram_have_one_key() {
    for v6 in [false, true] {
        let fragment = |at| parse(&Spec { v6, fragment: Some(at), ..udp(1, 1000) }.build());
        let first = fragment((0, true));
        assert_eq!(first.kind(), PacketKind::Fragment);
        assert_eq!(first.flags(), flags::FRAGMENT);
        assert_eq!(first.ports(), None);
        assert_eq!(first.words()[4] as u32, 0);
        assert_eq!(first, fragment((100, true)));
        assert_eq!(first, fragment((200, false)));
        assert_eq!(fragment((0, false)).kind(), PacketKind::Ip);
    }
}

#[test]
fn odd_packets_take_their_defined_path() {
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, 9, 0x08, 0x06]);
    arp.extend([0; 46]);
    let key = parse(&arp);
    assert_eq!((key.kind(), key.ethertype(), key.protocol(), key.flags()), (PacketKind::NonIp, 0x0806, 0, flags::NON_IP));
    assert_eq!((key.words()[1], key.words()[3]), (0x0200_0000_0009, 0xffff_ffff_ffff));
    // 802.3: the length is not part of the flow.
    let stp = |len: u8| parse(&[&arp[..12], &[0, len], &[0; 46][..]].concat());
    assert_eq!((stp(38), stp(38).ethertype()), (stp(39), 0));
    // Contradictions: header length, total length, version; ports in the padding.
    let good = udp(1, 1).build();
    for (at, byte) in [(14, 0x44), (14, 0x65), (17, 19), (17, 22)] {
        let mut bad = good.clone();
        bad[at] = byte;
        let key = parse(&bad);
        assert_eq!((key.kind(), key.flags(), key.version(), key.ports()), (PacketKind::Malformed, flags::NON_IP, 0, None));
        assert_eq!(parse_plain(&bad, 0), None);
    }
    // A datagram whose payload a capture truncated is still known.
    let mut long = good.clone();
    long[16] = 5;
    assert_eq!(parse(&long), parse(&good));
    // AH is a protocol without ports; too many extension headers are malformed.
    assert_eq!(parse(&Spec { v6: true, protocol: 51, ..udp(1, 1) }.build()).ports(), None);
    let deep = Spec { v6: true, extensions: vec![(60, 0); 9], ..udp(1, 1) }.build();
    assert_eq!(parse(&deep).kind(), PacketKind::Malformed);
    let far = Spec { v6: true, extensions: vec![(60, 100)], ..udp(1, 1) }.build();
    assert_eq!(parse(&far).kind(), PacketKind::Malformed);
    assert_eq!(parse(&[]).kind(), PacketKind::Malformed);
}

#[test]
fn plain_packets_take_the_fast_path() {
    for v6 in [false, true] {
        for tags in [vec![], vec![(0x8100, 9)]] {
            for protocol in [6, 17, 58] {
                let packet = Spec { v6, tags: tags.clone(), protocol, padding: 100, ..udp(1, 1) }.build();
                assert_eq!(parse_plain(&packet, 0), Some(parse(&packet)));
            }
        }
    }
    let deep = Spec { v6: true, extensions: vec![(60, 1)], ..udp(1, 1) }.build();
    assert_eq!(parse_plain(&deep, 0), None);
    // No IP: ARP, LLDP, a length, nothing; but not with a service tag.
    let other = |ethertype: u16| [&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], &ethertype.to_be_bytes()[..], &[0; 46]].concat();
    for packet in [0x0806, 0x88cc, 46, 0].map(other) {
        assert_eq!(parse_plain(&packet, 0), Some(parse(&packet)));
    }
    assert_eq!(parse_plain(&other(0x88a8), 0), None);
}

#[test]
fn hashes_spread_neighbouring_flows() {
    let keys = HashKeys::new(99);
    let mut table = vec![0u32; 256];
    let mut spread = vec![0u32; 256];
    let mut tags = vec![0u32; 256];
    for i in 0..65_536u32 {
        // A scan: neighbouring addresses, neighbouring ports.
        let key = parse(&udp(0x0a00_0000 | i >> 8, 1000 + i as u16 % 256).build());
        let hash = key.hash(&keys);
        table[(hash >> 56) as usize] += 1;
        tags[hash as usize & 0xff] += 1;
        spread[(key.symmetric_hash() >> 24) as usize] += 1;
    }
    // 256 in each, give or take six standard deviations.
    for counts in [table, tags, spread] {
        assert!(counts.iter().all(|n| (160..=352).contains(n)), "{counts:?}");
    }
}

#[test]
fn prints_as_people_write_it() {
    let packet = Spec { tags: vec![(0x8100, 5)], traffic_class: 46 << 2, ..udp(0x0a00_0001, 1024) }.build();
    assert_eq!(parse(&packet).to_string(), "port 3 vlan 5 udp 10.0.0.1:1024 > 10.10.10.10:53 dscp 46");
}

proptest! {
    // Both directions have one connection, from which each is restored.
    #[test]
    fn both_directions_are_one_connection(
        addresses in any::<(u32, u32)>(),
        ports in any::<(u16, u16)>(),
        ingress in any::<(u16, u16)>(),
        dscp in (0..64u8, 0..64u8),
    ) {
        let packet = |(src, dst): (u32, u32), (src_port, dst_port): (u16, u16), ingress: u16, dscp: u8| {
            let mut packet = [0u8; 64];
            packet[12..16].copy_from_slice(&[0x08, 0, 0x45, dscp << 2]);
            packet[17] = 46;
            packet[23] = 6;
            packet[26..30].copy_from_slice(&src.to_be_bytes());
            packet[30..34].copy_from_slice(&dst.to_be_bytes());
            packet[34..36].copy_from_slice(&src_port.to_be_bytes());
            packet[36..38].copy_from_slice(&dst_port.to_be_bytes());
            FlowKey::parse(&packet, 64, ingress)
        };
        let there = packet(addresses, ports, ingress.0, dscp.0);
        let back = packet((addresses.1, addresses.0), (ports.1, ports.0), ingress.1, dscp.1);
        let ((of_there, one), (of_back, other)) = (there.connection(), back.connection());
        prop_assert_eq!(of_there, of_back);
        prop_assert!(one != other || (addresses.0 == addresses.1 && ports.0 == ports.1));
        prop_assert_eq!(FlowKey::of_connection(&of_there, one, ingress.0, dscp.0), there);
        prop_assert_eq!(FlowKey::of_connection(&of_back, other, ingress.1, dscp.1), back);
    }
}
