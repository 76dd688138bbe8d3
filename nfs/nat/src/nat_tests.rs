//! Tests of the translation, with packets built and checked by etherparse.

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::{Icmpv4Type, PacketBuilder, PacketBuilderStep, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use sluice_nf::Verdict;
use sluice_nf::harness::Harness;
use sluice_nf_parts::table::AGE_TICKS;

use super::*;
use crate::mapping::Timeouts;

const HOST: [u8; 4] = [10, 0, 0, 7];
const SERVER: [u8; 4] = [198, 51, 100, 9];
const OUTSIDE: [u8; 4] = [203, 0, 113, 1];
const SECOND: u64 = 1_000_000_000;

fn nf() -> Harness<Nat> {
    let timeouts = Timeouts { tcp_s: 7440, udp_s: 300, icmp_s: 60 };
    let mappings = Mappings::new(vec![OUTSIDE.into()], 100, timeouts);
    Harness::new(Nat::new(vec!["10.0.0.0/8".parse().unwrap()], mappings))
}

fn ip(src: [u8; 4], dst: [u8; 4]) -> PacketBuilderStep<etherparse::IpHeaders> {
    PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(src, dst, 64)
}

fn udp(src: ([u8; 4], u16), dst: ([u8; 4], u16), payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    ip(src.0, dst.0).udp(src.1, dst.1).write(&mut packet, payload).unwrap();
    packet
}

fn tcp(src: ([u8; 4], u16), dst: ([u8; 4], u16), payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    ip(src.0, dst.0).tcp(src.1, dst.1, 1, 1000).ack(1).write(&mut packet, payload).unwrap();
    packet
}

fn echo(src: [u8; 4], dst: [u8; 4], id: u16, is_request: bool) -> Vec<u8> {
    let mut packet = Vec::new();
    let icmp = if is_request { ip(src, dst).icmpv4_echo_request(id, 3) } else { ip(src, dst).icmpv4_echo_reply(id, 3) };
    icmp.write(&mut packet, b"ping").unwrap();
    packet
}

/// An ICMP error about a packet, of which it quotes `len` bytes.
fn unreachable(src: [u8; 4], dst: [u8; 4], about: &[u8], len: usize) -> Vec<u8> {
    let mut packet = Vec::new();
    let kind = Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Port);
    ip(src, dst).icmpv4(kind).write(&mut packet, &about[14..(14 + len).min(about.len())]).unwrap();
    packet
}

/// Addresses and ports (or the echo identifier twice) by etherparse, after a check of all
/// checksums.
fn ends(packet: &[u8]) -> (([u8; 4], u16), ([u8; 4], u16)) {
    let headers = parse(packet).unwrap();
    assert!(headers.are_checksums_right(packet));
    let sliced = SlicedPacket::from_ethernet(packet).unwrap();
    let header = sliced.net.as_ref().unwrap().ipv4_ref().unwrap().header();
    let (src, dst) = match sliced.transport.unwrap() {
        TransportSlice::Udp(udp) => (udp.source_port(), udp.destination_port()),
        TransportSlice::Tcp(tcp) => (tcp.source_port(), tcp.destination_port()),
        TransportSlice::Icmpv4(icmp) => match icmp.icmp_type() {
            Icmpv4Type::EchoRequest(echo) | Icmpv4Type::EchoReply(echo) => (echo.id, echo.id),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    ((header.source(), src), (header.destination(), dst))
}

fn refused(nf: &mut Harness<Nat>, packet: &[u8], counter: &str) {
    let before = nf.handler().report(0).get(counter).unwrap();
    assert_eq!(nf.send(packet).verdict, Verdict::Drop);
    assert_eq!(nf.handler().report(0).get(counter), Some(before + 1), "{counter}");
}

#[test]
fn flows_go_out_and_their_answers_come_back() {
    for make in [udp, tcp] {
        let mut nf = nf();
        let out = nf.send(&make((HOST, 5000), (SERVER, 53), b"question")).bytes;
        assert_eq!(ends(&out), ((OUTSIDE, 5000), (SERVER, 53)));
        let other = nf.send(&make(([10, 9, 9, 9], 5000), (SERVER, 53), b"question")).bytes;
        let ((_, port), _) = ends(&other);
        assert_ne!(port, 5000, "that one is taken");
        let back = nf.send(&make((SERVER, 53), (OUTSIDE, 5000), b"answer")).bytes;
        assert_eq!(ends(&back), ((SERVER, 53), (HOST, 5000)));
        let back = nf.send(&make((SERVER, 53), (OUTSIDE, port), b"answer")).bytes;
        assert_eq!(ends(&back), ((SERVER, 53), ([10, 9, 9, 9], 5000)));
        refused(&mut nf, &make((SERVER, 53), (OUTSIDE, port.wrapping_add(1).max(1024)), b"?"), "dropped_no_mapping");
        let report = nf.handler().report(0);
        assert_eq!(["translated_out", "translated_in", "mappings"].map(|name| report.get(name).unwrap()), [2, 2, 2]);
    }
}

#[test]
fn pings_go_out_and_come_back() {
    let mut nf = nf();
    assert_eq!(ends(&nf.send(&echo(HOST, SERVER, 77, true)).bytes), ((OUTSIDE, 77), (SERVER, 77)));
    let ((_, id), _) = ends(&nf.send(&echo([10, 0, 0, 8], SERVER, 77, true)).bytes);
    assert_ne!(id, 77);
    assert_eq!(ends(&nf.send(&echo(SERVER, OUTSIDE, id, false)).bytes), ((SERVER, 77), ([10, 0, 0, 8], 77)));
    refused(&mut nf, &echo(SERVER, OUTSIDE, id.wrapping_add(1), false), "dropped_no_mapping");
}

#[test]
fn a_udp_packet_without_checksum_stays_without() {
    let mut nf = nf();
    let mut packet = udp((HOST, 5000), (SERVER, 53), b"x");
    packet[40..42].copy_from_slice(&[0, 0]);
    let out = nf.send(&packet).bytes;
    assert_eq!(out[40..42], [0, 0]);
    assert_eq!(ends(&out).0, (OUTSIDE, 5000));
}

#[test]
fn a_wrong_checksum_stays_wrong() {
    let mut nf = nf();
    let mut packet = tcp((HOST, 5000), (SERVER, 53), b"x");
    packet[51] ^= 1;
    let out = nf.send(&packet).bytes;
    assert!(!parse(&out).unwrap().are_checksums_right(&out));
}

#[test]
fn errors_from_outside_are_translated_with_what_they_quote() {
    for (sent, len) in [
        (udp((HOST, 80), (SERVER, 53), b"question"), 99),
        (tcp((HOST, 80), (SERVER, 53), b""), 28),
        (echo(HOST, SERVER, 80, true), 99),
    ] {
        let mut nf = nf();
        let out = nf.send(&sent).bytes;
        let error = nf.send(&unreachable([192, 0, 2, 1], OUTSIDE, &out, len));
        assert_eq!(error.verdict, Verdict::Next);
        let headers = parse(&error.bytes).unwrap();
        assert!(headers.are_checksums_right(&error.bytes));
        assert_eq!(headers.dst(&error.bytes), Some(HOST.into()));
        let quoted = &error.bytes[42..];
        assert_eq!(quoted, &sent[14..14 + quoted.len()], "the host sees just what it sent");
    }
}

#[test]
fn errors_from_inside_are_translated_with_what_they_quote() {
    let mut nf = nf();
    nf.send(&udp((HOST, 80), (SERVER, 53), b"question"));
    let ((_, port), _) = ends(&nf.send(&udp((HOST, 80), (SERVER, 53), b"again")).bytes);
    let answer = udp((SERVER, 53), (OUTSIDE, port), b"answer");
    let inside = nf.send(&answer).bytes;
    // From the host itself, and from a router on the way to it.
    for from in [HOST, [10, 0, 0, 254]] {
        let error = nf.send(&unreachable(from, SERVER, &inside, 99)).bytes;
        let headers = parse(&error).unwrap();
        assert!(headers.are_checksums_right(&error));
        assert_eq!((headers.src(&error), headers.dst(&error)), (Some(OUTSIDE.into()), Some(SERVER.into())));
        assert_eq!(&error[42..], &answer[14..], "the server sees just what it sent");
    }
}

#[test]
fn errors_about_nothing_known_are_dropped() {
    let mut nf = nf();
    let never = udp((OUTSIDE, 5000), (SERVER, 53), b"x");
    refused(&mut nf, &unreachable(SERVER, OUTSIDE, &never, 99), "dropped_no_mapping");
    refused(&mut nf, &unreachable(HOST, SERVER, &udp((SERVER, 1), (HOST, 2), b"x"), 99), "dropped_no_mapping");
    let mut broken = unreachable(SERVER, OUTSIDE, &never, 99);
    broken[36] ^= 1;
    refused(&mut nf, &broken, "dropped_malformed");
}

/// Cuts an IPv4 packet into two fragments, the first with `first` bytes of payload.
fn fragments(packet: &[u8], first: usize, id: u16) -> [Vec<u8>; 2] {
    let finish = |mut packet: Vec<u8>, word: u16| {
        let len = (packet.len() - 14) as u16;
        packet[16..18].copy_from_slice(&len.to_be_bytes());
        packet[18..20].copy_from_slice(&id.to_be_bytes());
        packet[20..22].copy_from_slice(&word.to_be_bytes());
        parse(&packet).unwrap().fix_checksums(&mut packet).unwrap();
        packet
    };
    let head = packet[..34 + first].to_vec();
    let tail = [&packet[..34], &packet[34 + first..]].concat();
    [finish(head, 0x2000), finish(tail, (first / 8) as u16)]
}

/// Joins two fragments again.
fn whole([head, tail]: [&[u8]; 2]) -> Vec<u8> {
    let mut packet = [head, &tail[34..]].concat();
    let len = (packet.len() - 14) as u16;
    packet[16..18].copy_from_slice(&len.to_be_bytes());
    packet[20..22].copy_from_slice(&[0, 0]);
    let at = 24;
    packet[at..at + 2].copy_from_slice(&[0, 0]);
    let sum = sluice_nf::header::checksum::compute(&packet[14..34]);
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn fragments_follow_their_first_one_in_both_directions() {
    let mut nf = nf();
    let packet = udp((HOST, 5000), (SERVER, 53), &[7; 100]);
    let [head, tail] = fragments(&packet, 48, 1234);
    refused(&mut nf, &tail, "dropped_fragment");
    let (out_head, out_tail) = (nf.send(&head).bytes, nf.send(&tail).bytes);
    assert_eq!(ends(&whole([&out_head, &out_tail])), ((OUTSIDE, 5000), (SERVER, 53)));
    let [head, tail] = fragments(&udp((SERVER, 53), (OUTSIDE, 5000), &[8; 100]), 16, 99);
    let (in_head, in_tail) = (nf.send(&head).bytes, nf.send(&tail).bytes);
    assert_eq!(ends(&whole([&in_head, &in_tail])), ((SERVER, 53), (HOST, 5000)));
    for tick in 0..AGE_TICKS as u64 {
        nf.tick(31 * SECOND + tick);
    }
    refused(&mut nf, &tail, "dropped_fragment");
}

#[test]
fn any_number_of_fragmented_datagrams_passes_in_a_moment() {
    let mut nf = nf();
    let packet = udp((HOST, 5000), (SERVER, 53), &[7; 100]);
    for id in 0..10_000 {
        let [head, tail] = fragments(&packet, 48, id);
        let (head, tail) = (nf.send(&head).bytes, nf.send(&tail).bytes);
        assert_eq!(ends(&whole([&head, &tail])), ((OUTSIDE, 5000), (SERVER, 53)), "datagram {id}");
    }
}

#[test]
fn what_is_not_ours_passes_unchanged() {
    let mut nf = nf();
    let mut v6 = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6]).ipv6([1; 16], [2; 16], 9).udp(1, 2).write(&mut v6, &[]).unwrap();
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    let own = [
        v6,
        arp,
        vec![1; 3],
        udp((HOST, 1), ([10, 200, 0, 1], 2), b"inside to inside"),
        udp((SERVER, 1), (HOST, 2), b"to the inside by its own address"),
        udp((HOST, 68), ([255; 4], 67), b"broadcast"),
    ];
    for packet in &own {
        let out = nf.send(packet);
        assert_eq!((out.verdict, &out.bytes), (Verdict::Next, packet));
    }
    assert_eq!(nf.handler().report(0).get("not_translated"), Some(own.len() as u64));
}

#[test]
fn what_cannot_be_translated_is_dropped_and_counted() {
    let mut nf = nf();
    refused(&mut nf, &udp((HOST, 1), (OUTSIDE, 2), b""), "dropped_hairpin");
    let mut gre = udp((HOST, 1), (SERVER, 2), b"");
    gre[23] = 47;
    refused(&mut nf, &gre, "dropped_protocol");
    refused(&mut nf, &udp((HOST, 1), (SERVER, 2), b"")[..38], "dropped_malformed");
    for port in 0..100 {
        assert_eq!(nf.send(&udp((HOST, 2000 + port), (SERVER, 2), b"")).verdict, Verdict::Next);
    }
    refused(&mut nf, &udp((HOST, 9999), (SERVER, 2), b""), "dropped_table_full");
}

#[test]
fn idle_mappings_end() {
    let mut nf = nf();
    nf.send(&udp((HOST, 5000), (SERVER, 53), b""));
    for tick in 0..=AGE_TICKS as u64 {
        nf.tick(300 * SECOND + tick);
    }
    let report = nf.handler().report(0);
    assert_eq!((report.get("mappings"), report.get("mappings_expired")), (Some(0), Some(1)));
    refused(&mut nf, &udp((SERVER, 53), (OUTSIDE, 5000), b""), "dropped_no_mapping");
}

proptest! {
    #[test]
    fn checksums_are_right_whatever_the_packet(
        host in any::<u16>(), server in 0x0b00_0000..0x7f00_0000u32, ports in any::<(u16, u16)>(), kind in 0..3,
        payload in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut nf = nf();
        let (src, dst) = ([10, 1, (host >> 8) as u8, host as u8], server.to_be_bytes());
        let packet = match kind {
            0 => udp((src, ports.0), (dst, ports.1), &payload),
            1 => tcp((src, ports.0), (dst, ports.1), &payload),
            _ => echo(src, dst, ports.0, true),
        };
        let out = nf.send(&packet).bytes;
        prop_assert!(parse(&out).unwrap().are_checksums_right(&out));
        let ((_, port), _) = ends(&out);
        let answer = match kind {
            0 => udp((dst, ports.1), (OUTSIDE, port), &payload),
            1 => tcp((dst, ports.1), (OUTSIDE, port), &payload),
            _ => echo(dst, OUTSIDE, port, false),
        };
        let back = nf.send(&answer).bytes;
        prop_assert_eq!(ends(&back).1, (src, ports.0));
    }

    #[test]
    fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 1..120), kind in 0..3) {
        let mut nf = nf();
        nf.send(&udp((HOST, 1), (SERVER, 2), b""));
        // In half of the cases it looks like our IPv4.
        if kind > 0 && bytes.len() > 34 {
            bytes[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
            bytes[23] = [1, 6, 17, 1][bytes[23] as usize % 4];
            if kind == 1 {
                bytes[26..30].copy_from_slice(&HOST);
            } else {
                bytes[30..34].copy_from_slice(&OUTSIDE);
            }
        }
        nf.send(&bytes);
    }
}
