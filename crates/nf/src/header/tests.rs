//! Packets built by etherparse, damaged by hand and by proptest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::*;

const PAYLOAD: &[u8] = b"a payload of odd length";

fn build(builder: etherparse::PacketBuilderStep<etherparse::UdpHeader>) -> Vec<u8> {
    let mut packet = Vec::new();
    builder.write(&mut packet, PAYLOAD).unwrap();
    packet
}

fn udp4() -> Vec<u8> {
    build(PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(5000, 53))
}

fn udp6() -> Vec<u8> {
    build(PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 64).udp(5000, 53))
}

fn tcp4() -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(5000, 80, 7, 1024).syn();
    builder.write(&mut packet, PAYLOAD).unwrap();
    packet
}

fn icmp4() -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).icmpv4_echo_request(9, 1);
    builder.write(&mut packet, PAYLOAD).unwrap();
    packet
}

fn icmp6() -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 64).icmpv6_echo_request(9, 1);
    builder.write(&mut packet, PAYLOAD).unwrap();
    packet
}

/// `udp6` with extension headers, each as number and bytes (the first one, next header, is set).
fn with_extensions(extensions: &[(u8, &[u8])]) -> Vec<u8> {
    let mut packet = udp6();
    let mut inserted = Vec::new();
    for (i, (_, bytes)) in extensions.iter().enumerate() {
        let at = inserted.len();
        inserted.extend_from_slice(bytes);
        inserted[at] = extensions.get(i + 1).map_or(protocol::UDP, |(number, _)| *number);
    }
    packet[14 + 6] = extensions[0].0;
    let length = u16::from_be_bytes([packet[18], packet[19]]) + inserted.len() as u16;
    packet[18..20].copy_from_slice(&length.to_be_bytes());
    packet.splice(54..54, inserted);
    packet
}

#[test]
fn udp_over_ipv4_and_ipv6_is_found() {
    let packet = udp4();
    let headers = parse(&packet).unwrap();
    assert_eq!((headers.l2_len, headers.ethertype), (14, 0x0800));
    let ip = headers.ip.unwrap();
    assert_eq!((ip.offset, ip.version, ip.header_len, ip.protocol, ip.fragment), (14, 4, 20, protocol::UDP, None));
    let l4 = headers.l4.unwrap();
    assert_eq!((l4.offset, l4.header_len, l4.protocol, l4.ports), (34, 8, protocol::UDP, Some((5000, 53))));
    assert_eq!(headers.payload(&packet), PAYLOAD);
    assert_eq!(headers.src(&packet), Some(IpAddr::from([10, 0, 0, 1])));
    assert_eq!(headers.dst(&packet), Some(IpAddr::from([10, 0, 0, 2])));
    assert_eq!(headers.udp(&packet).unwrap().destination_port(), 53);
    assert!(headers.tcp(&packet).is_none());
    let flow = headers.flow(&packet).unwrap();
    assert_eq!((flow.src_port, flow.dst_port, flow.protocol), (5000, 53, protocol::UDP));
    assert_eq!(flow.reversed().reversed(), flow);

    let packet = udp6();
    let headers = parse(&packet).unwrap();
    let ip = headers.ip.unwrap();
    assert_eq!((ip.version, ip.header_len, headers.l4.unwrap().offset), (6, 40, 54));
    assert_eq!(headers.payload(&packet), PAYLOAD);
    assert_eq!(headers.dst(&packet), Some(IpAddr::from([2; 16])));
    assert!(headers.are_checksums_right(&packet));
}

#[test]
fn ethernet_padding_is_no_payload() {
    let mut packet = udp4();
    let end = packet.len();
    packet.extend([0xee; 18]);
    let headers = parse(&packet).unwrap();
    assert_eq!(headers.ip.unwrap().end as usize, end);
    assert_eq!(headers.payload(&packet), PAYLOAD);
    assert!(headers.are_checksums_right(&packet));
}

#[test]
fn vlan_tags_are_stepped_over() {
    let mut packet = udp4();
    packet.splice(12..12, [0x88, 0xa8, 0x20, 0x64, 0x81, 0x00, 0x00, 0x07]);
    let headers = parse(&packet).unwrap();
    assert_eq!(headers.vlan_ids(), [0x64, 7]);
    assert_eq!((headers.l2_len, headers.ethertype), (22, 0x0800));
    assert_eq!(headers.payload(&packet), PAYLOAD);
    // More tags than are followed: no IP header, and no panic.
    let tags = [0x81, 0x00, 0x00, 0x01].repeat(3);
    packet.splice(12..12, tags);
    let headers = parse(&packet).unwrap();
    assert_eq!((headers.vlan_ids().len(), headers.ip), (MAX_VLANS, None));
}

#[test]
fn fragments_are_reported_and_have_no_ports() {
    let mut packet = udp4();
    packet[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
    let first = parse(&packet).unwrap();
    assert_eq!(first.ip.unwrap().fragment.map(|f| (f.offset, f.more)), Some((0, true)));
    assert_eq!(first.l4.unwrap().ports, Some((5000, 53)), "the first one has the header");
    packet[20..22].copy_from_slice(&0x0003u16.to_be_bytes());
    let last = parse(&packet).unwrap();
    assert_eq!(last.ip.unwrap().fragment.map(|f| (f.offset, f.more)), Some((24, false)));
    assert_eq!(last.l4, None);
    assert_eq!(first.flow(&packet), last.flow(&packet), "all fragments are of one flow");
    // Don't fragment is no fragment.
    packet[20..22].copy_from_slice(&0x4000u16.to_be_bytes());
    assert!(!parse(&packet).unwrap().is_fragment());
}

#[test]
fn ipv6_extension_headers_are_walked() {
    let hop = [0, 0, 1, 4, 0, 0, 0, 0];
    let routing = [0, 2, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    let packet = with_extensions(&[(0, &hop), (43, &routing), (60, &hop)]);
    let headers = parse(&packet).unwrap();
    let ip = headers.ip.unwrap();
    assert_eq!((ip.protocol, ip.header_len), (protocol::UDP, 40 + 8 + 24 + 8));
    assert_eq!(headers.payload(&packet), PAYLOAD);

    let first = [0, 0, 0, 1, 0, 0, 0, 9];
    let packet = with_extensions(&[(44, &first)]);
    let headers = parse(&packet).unwrap();
    assert_eq!(headers.ip.unwrap().fragment, Some(Fragment { id: 9, offset: 0, more: true }));
    assert!(headers.l4.is_some());

    let later = [0, 0, 0, 0x10, 0, 0, 0, 9];
    let packet = with_extensions(&[(44, &later), (60, &hop)]);
    let headers = parse(&packet).unwrap();
    assert_eq!(headers.ip.unwrap().fragment, Some(Fragment { id: 9, offset: 16, more: false }));
    assert_eq!((headers.ip.unwrap().header_len, headers.l4), (48, None), "what follows is the middle of something");

    let packet = with_extensions(&[(60, &hop[..]); 9]);
    assert_eq!(parse(&packet).unwrap().l4, None, "nine are too many");
}

#[test]
fn what_is_not_ip_or_makes_no_sense_has_no_ip_header() {
    assert_eq!(parse(&[0; 13]), None);
    let mut arp = vec![0xff; 12];
    arp.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp.extend([1, 2, 3, 4, 5, 6, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    let headers = parse(&arp).unwrap();
    assert_eq!((headers.ip, headers.flow(&arp)), (None, None));
    assert_eq!(headers.arp(&arp).unwrap().target_protocol_addr(), [10, 0, 0, 2]);
    let mut packet = udp4();
    packet[14] = 0x44; // shorter than an IPv4 header can be
    assert_eq!(parse(&packet).unwrap().ip, None);
    packet[14] = 0x45;
    packet[16..18].copy_from_slice(&19u16.to_be_bytes()); // shorter than its header
    assert_eq!(parse(&packet).unwrap().ip, None);
    packet[16..18].copy_from_slice(&1500u16.to_be_bytes()); // longer than the packet
    assert!(parse(&packet).unwrap().ip.unwrap().truncated);
    packet[16..18].copy_from_slice(&24u16.to_be_bytes()); // no room for UDP
    assert_eq!(parse(&packet).unwrap().l4, None);
}

#[test]
fn setters_keep_checksums_right() {
    for mut packet in [udp4(), udp6(), tcp4(), icmp4(), icmp6()] {
        let mut headers = parse(&packet).unwrap();
        assert!(headers.are_checksums_right(&packet), "etherparse made them right");
        let v4 = headers.ip.unwrap().version == 4;
        let address: IpAddr = if v4 { Ipv4Addr::new(192, 168, 255, 1).into() } else { Ipv6Addr::from([0xfd; 16]).into() };
        headers.set_src(&mut packet, address).unwrap();
        headers.set_dst(&mut packet, address).unwrap();
        assert_eq!((headers.src(&packet), headers.dst(&packet)), (Some(address), Some(address)));
        if headers.l4.unwrap().ports.is_some() {
            headers.set_src_port(&mut packet, 0xfffe).unwrap();
            headers.set_dst_port(&mut packet, 1).unwrap();
            assert_eq!(headers.l4.unwrap().ports, Some((0xfffe, 1)));
        } else {
            headers.set_echo_id(&mut packet, 0x1234).unwrap();
            assert_eq!(headers.echo_id(&packet), Some(0x1234));
            assert_eq!(headers.set_src_port(&mut packet, 1), Err(NotThere));
        }
        headers.set_dscp(&mut packet, 46).unwrap();
        headers.set_ecn(&mut packet, 3).unwrap();
        assert_eq!((headers.dscp(&packet), headers.ecn(&packet)), (Some(46), Some(3)));
        assert_eq!(headers.decrement_ttl(&mut packet), Ok(63));
        headers.set_ttl(&mut packet, 1).unwrap();
        assert_eq!(headers.decrement_ttl(&mut packet), Ok(0));
        assert_eq!(headers.ttl(&packet), Some(1), "it goes no further, and stays as it was");
        assert!(headers.are_checksums_right(&packet), "updated by difference");
        assert_eq!(parse(&packet), Some(headers), "the offsets still hold");
        let kept = packet.clone();
        headers.fix_checksums(&mut packet).unwrap();
        assert_eq!(packet, kept, "computed anew, they are the same");
        let wrong: IpAddr = if v4 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        assert_eq!(headers.set_src(&mut packet, wrong), Err(NotThere));
        assert_eq!(packet, kept);
    }
}

#[test]
fn a_udp_checksum_that_was_not_made_is_not_made() {
    let mut packet = udp4();
    packet[40..42].copy_from_slice(&[0, 0]);
    let mut headers = parse(&packet).unwrap();
    assert!(headers.are_checksums_right(&packet));
    headers.set_dst_port(&mut packet, 9).unwrap();
    headers.set_src(&mut packet, IpAddr::from([1, 1, 1, 1])).unwrap();
    assert_eq!(packet[40..42], [0, 0]);
    headers.fix_checksums(&mut packet).unwrap();
    assert_ne!(packet[40..42], [0, 0]);
    assert!(headers.are_checksums_right(&packet));
}

#[test]
fn a_longer_payload_gets_its_lengths_and_checksums() {
    for mut packet in [udp4(), udp6(), tcp4()] {
        let mut headers = parse(&packet).unwrap();
        packet.extend([7; 33]);
        let end = packet.len();
        headers.set_ip_len(&mut packet, end).unwrap();
        assert!(!headers.are_checksums_right(&packet));
        headers.fix_checksums(&mut packet).unwrap();
        assert!(headers.are_checksums_right(&packet));
        let fresh = parse(&packet).unwrap();
        assert_eq!(fresh, headers);
        assert_eq!(fresh.payload(&packet).len(), PAYLOAD.len() + 33);
        assert_eq!(headers.set_ip_len(&mut packet, end + 1), Err(NotThere));
        assert_eq!(headers.set_ip_len(&mut packet, 20), Err(NotThere));
    }
}

#[test]
fn tags_come_on_and_off() {
    use crate::harness::Harness;
    use crate::{Burst, Handler};

    struct Tagger(bool);
    impl Handler for Tagger {
        fn burst(&mut self, burst: &mut Burst<'_>) {
            for mut packet in burst.iter_mut() {
                if self.0 {
                    push_vlan(&mut packet, 0x6007).unwrap();
                } else if pop_vlan(&mut packet) != Some(0x6007) {
                    packet.drop();
                }
            }
        }
    }
    let tagged = Harness::new(Tagger(true)).send(&udp4()).bytes;
    assert_eq!(tagged[..12], udp4()[..12]);
    assert_eq!(tagged[12..16], [0x81, 0, 0x60, 7]);
    assert_eq!(parse(&tagged).unwrap().vlan_ids(), [7]);
    let outcome = Harness::new(Tagger(false)).send(&tagged);
    assert_eq!((outcome.bytes, outcome.verdict), (udp4(), crate::Verdict::Next));
    assert_eq!(Harness::new(Tagger(false)).send(&udp4()).verdict, crate::Verdict::Drop);
}

#[test]
fn macs_are_swapped_and_set() {
    let mut packet = udp4();
    Headers::swap_macs(&mut packet).unwrap();
    assert_eq!(packet[..12], [[2; 6], [4; 6]].concat());
    Headers::set_macs(&mut packet, [7; 6], None).unwrap();
    assert_eq!(packet[..12], [[7; 6], [4; 6]].concat());
    assert_eq!(Headers::swap_macs(&mut packet[..13]), Err(NotThere));
}

/// Calls everything with `headers` on `packet`.
fn exercise(headers: &mut Headers, packet: &mut [u8]) {
    let _ = (headers.ethernet(packet), headers.arp(packet), headers.ipv4(packet), headers.ipv6(packet), headers.tcp(packet));
    let _ = (headers.udp(packet), headers.icmp(packet), headers.icmpv6(packet), headers.flow(packet), headers.payload(packet));
    let _ = (headers.dscp(packet), headers.ecn(packet), headers.echo_id(packet), headers.are_checksums_right(packet));
    let _ = headers.set_src(packet, IpAddr::from([1, 2, 3, 4]));
    let _ = headers.set_dst(packet, IpAddr::from([9; 16]));
    let _ = headers.set_src_port(packet, 1);
    let _ = headers.set_dst_port(packet, 2);
    let _ = headers.set_echo_id(packet, 3);
    let _ = headers.decrement_ttl(packet);
    let _ = headers.set_dscp(packet, 255);
    let _ = headers.set_ecn(packet, 255);
    let _ = headers.set_ip_len(packet, packet.len());
    let _ = headers.fix_checksums(packet);
    let _ = headers.payload_mut(packet).first_mut().map(|b| *b = 1);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(mut packet in proptest::collection::vec(any::<u8>(), 0..200), ethertype in 0usize..6) {
        let types: [u16; 6] = [0x0800, 0x86dd, 0x8100, 0x88a8, 0x0806, 0x1234];
        if packet.len() >= 14 {
            packet[12..14].copy_from_slice(&types[ethertype].to_be_bytes());
        }
        if packet.len() >= 15 && ethertype < 2 {
            packet[14] = [0x45, 0x60][ethertype];
        }
        if let Some(mut headers) = parse(&packet) {
            exercise(&mut headers, &mut packet);
        }
    }

    #[test]
    fn no_damage_makes_it_panic(
        kind in 0usize..6,
        damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..6),
        cut in any::<u16>(),
        cut_later in any::<u16>(),
    ) {
        let hop = [0, 0, 1, 4, 0, 0, 0, 0];
        let mut packet = [udp4(), udp6(), tcp4(), icmp4(), icmp6(), with_extensions(&[(0, &hop), (44, &hop), (51, &hop)])][kind].clone();
        for (at, byte) in damage {
            let at = at as usize % packet.len();
            packet[at] = byte;
        }
        packet.truncate(1 + cut as usize % packet.len());
        if let Some(mut headers) = parse(&packet) {
            let n = 1 + cut_later as usize % packet.len();
            // Also on fewer bytes than were parsed: the offsets then point behind the end.
            exercise(&mut headers.clone(), &mut packet[..n]);
            exercise(&mut headers, &mut packet);
        }
    }

    #[test]
    fn any_change_keeps_right_checksums_right(
        kind in 0usize..3, src in any::<u128>(), port in any::<u16>(), ttl in any::<u8>(), dscp in any::<u8>(),
    ) {
        let mut packet = [udp4(), udp6(), tcp4()][kind].clone();
        let mut headers = parse(&packet).unwrap();
        let address: IpAddr = if kind == 1 { Ipv6Addr::from(src).into() } else { Ipv4Addr::from(src as u32).into() };
        headers.set_src(&mut packet, address).unwrap();
        headers.set_src_port(&mut packet, port).unwrap();
        headers.set_ttl(&mut packet, ttl).unwrap();
        headers.set_dscp(&mut packet, dscp).unwrap();
        prop_assert!(headers.are_checksums_right(&packet));
    }
}
