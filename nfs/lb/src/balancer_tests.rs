//! Tests of the path of a packet.

use std::collections::HashSet;

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::{Icmpv4Type, PacketBuilder};
use sluice_nf::Verdict;
use sluice_nf::harness::{Harness, Outcome};
use sluice_nf_parts::table::AGE_TICKS;

use super::*;
use crate::backends::{self, Needs};

const VIP: [u8; 4] = [192, 0, 2, 1];
const THREE: &str =
    "a 10.0.0.1:8080 mac 02:00:00:00:00:01\nb 10.0.0.2:8080 mac 02:00:00:00:00:02\nc 10.0.0.3:8080 mac 02:00:00:00:00:03";

fn pool(text: &str) -> Backends {
    Backends::new(backends::parse(text, Needs { mac: false, family_of: None }).unwrap())
}

fn nf(rewrite: Rewrite, protocol: u8, limit: usize) -> Harness<Balancer> {
    let service = Service { address: VIP.into(), port: 80, protocol, rewrite, idle_s: 300 };
    Harness::new(Balancer::new(service, pool(THREE), limit, None))
}

fn client(n: u16) -> ([u8; 4], u16) {
    ([172, 16, (n >> 8) as u8, n as u8], 5000 + n)
}

fn tcp(src: ([u8; 4], u16), dst: ([u8; 4], u16), flags: &str) -> Vec<u8> {
    let mut step = PacketBuilder::ethernet2([8; 6], [9; 6]).ipv4(src.0, dst.0, 64).tcp(src.1, dst.1, 1, 1000);
    for flag in flags.chars() {
        step = match flag {
            'S' => step.syn(),
            'F' => step.fin(),
            _ => step.ack(1),
        };
    }
    let mut packet = Vec::new();
    step.write(&mut packet, b"data").unwrap();
    packet
}

fn udp(src: ([u8; 4], u16), dst: ([u8; 4], u16), payload: usize) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ethernet2([8; 6], [9; 6])
        .ipv4(src.0, dst.0, 64)
        .udp(src.1, dst.1)
        .write(&mut packet, &vec![3; payload])
        .unwrap();
    packet
}

/// Addresses and ports, after a check of all checksums.
fn key(outcome: &Outcome) -> FlowKey {
    assert_eq!(outcome.verdict, Verdict::Next);
    let headers = parse(&outcome.bytes).unwrap();
    assert!(headers.are_checksums_right(&outcome.bytes));
    FlowKey::of(&outcome.bytes, &headers).unwrap()
}

fn end(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(_) => panic!("IPv4 is expected"),
    }
}

fn count(nf: &mut Harness<Balancer>, name: &str) -> u64 {
    nf.handler().report(0).get(name).unwrap()
}

#[test]
fn by_ip_flows_go_to_backends_and_their_answers_come_from_the_virtual_address() {
    let mut nf = nf(Rewrite::Ip, 6, 1000);
    let mut used = HashSet::new();
    for n in 0..50 {
        let there = key(&nf.send(&tcp(client(n), (VIP, 80), "S")));
        assert_eq!((there.src(), there.src_port(), there.dst_port()), (client(n).0.into(), client(n).1, 8080));
        used.insert(there.dst());
        let again = nf.send(&tcp(client(n), (VIP, 80), "A"));
        assert_eq!(key(&again), there, "a flow stays");
        assert_eq!(again.bytes[..5], [2, 0, 0, 0, 0], "a MAC address is written if there is one");
        let back = key(&nf.send(&tcp((end(there.dst()), 8080), client(n), "A")));
        assert_eq!((back.src(), back.src_port()), (VIP.into(), 80));
        assert_eq!((back.dst(), back.dst_port()), (client(n).0.into(), client(n).1));
    }
    assert_eq!(used.len(), 3, "all backends get some of 50 flows");
    assert_eq!((count(&mut nf, "connections"), count(&mut nf, "from_backends")), (50, 50));
}

#[test]
fn by_mac_nothing_but_the_destination_mac_changes() {
    let mut nf = nf(Rewrite::Mac, 17, 1000);
    let sent = udp(client(1), (VIP, 80), 20);
    let out = nf.send(&sent).bytes;
    assert_eq!((&out[..5], &out[6..]), (&[2, 0, 0, 0, 0][..], &sent[6..]));
    let answer = udp((VIP, 80), client(1), 20);
    assert_eq!(nf.send(&answer).bytes, answer);
}

#[test]
fn what_is_not_of_the_service_passes_unchanged() {
    let mut nf = nf(Rewrite::Ip, 6, 1000);
    let mut v6 = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6]).ipv6([1; 16], [2; 16], 9).tcp(1, 80, 1, 1).write(&mut v6, &[]).unwrap();
    let mut ping = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([1; 4], VIP, 9).icmpv4_echo_request(1, 1).write(&mut ping, &[]).unwrap();
    let packets = [
        v6,
        ping,
        vec![5; 9],
        tcp(client(1), (VIP, 81), "S"),
        udp(client(1), (VIP, 80), 0),
        tcp(client(1), ([192, 0, 2, 2], 80), "S"),
        tcp(([10, 0, 0, 1], 8080), client(1), "A"),
    ];
    for packet in &packets {
        let out = nf.send(packet);
        assert_eq!((out.verdict, &out.bytes), (Verdict::Next, packet));
    }
    assert_eq!(count(&mut nf, "passed"), packets.len() as u64);
}

#[test]
fn connections_stay_when_backends_change_and_move_when_theirs_is_gone() {
    let mut nf = nf(Rewrite::Ip, 6, 1000);
    let send = |nf: &mut Harness<Balancer>, n| key(&nf.send(&tcp(client(n), (VIP, 80), "A"))).dst();
    let before: Vec<IpAddr> = (0..100).map(|n| send(&mut nf, n)).collect();
    let gone: IpAddr = [10, 0, 0, 2].into();
    nf.handler().set_pool(pool("d 10.0.0.4\nc 10.0.0.3:8080 weight 0\na 10.0.0.1:8080"));
    for (n, was) in before.iter().enumerate() {
        let is = send(&mut nf, n as u16);
        if *was == gone {
            assert!([IpAddr::from([10, 0, 0, 4]), [10, 0, 0, 1].into()].contains(&is), "{is}");
        } else {
            assert_eq!(is, *was);
        }
    }
    for n in 100..200 {
        assert_ne!(send(&mut nf, n), IpAddr::from([10, 0, 0, 3]), "what drains gets nothing new");
    }
    assert!(nf.handler().report(0).to_text().contains("d     10.0.0.4       1"), "{}", nf.handler().report(0).to_text());
}

#[test]
fn without_room_hashing_alone_decides() {
    let (mut small, mut large) = (nf(Rewrite::Mac, 6, 1), nf(Rewrite::Mac, 6, 1000));
    for n in 0..20 {
        let packet = tcp(client(n), (VIP, 80), "S");
        assert_eq!(small.send(&packet), large.send(&packet));
    }
    assert_eq!(count(&mut small, "untracked_connections"), 19);
}

#[test]
fn connections_are_forgotten_when_idle_or_over() {
    let mut nf = nf(Rewrite::Ip, 6, 1000);
    nf.send(&tcp(client(1), (VIP, 80), "S"));
    nf.send(&tcp(client(2), (VIP, 80), "S"));
    nf.send(&tcp(client(2), (VIP, 80), "FA"));
    for (seconds, left) in [(29, 2), (30, 1), (299, 1), (300, 0)] {
        for tick in 0..AGE_TICKS as u64 {
            nf.tick(seconds * SECOND + tick);
        }
        assert_eq!(count(&mut nf, "connections"), left, "after {seconds} s");
    }
}

#[test]
fn errors_go_the_way_of_their_connection() {
    let mut nf = nf(Rewrite::Ip, 17, 1000);
    let sent = udp(client(1), (VIP, 80), 20);
    let there = nf.send(&sent);
    let backend = end(key(&there).dst());
    let answer = udp((backend, 8080), client(1), 20);
    let back = nf.send(&answer);
    let error = |src: [u8; 4], dst: [u8; 4], about: &[u8]| {
        let mut packet = Vec::new();
        let kind = Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Port);
        PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(src, dst, 9).icmpv4(kind).write(&mut packet, &about[14..]).unwrap();
        packet
    };
    let from_client = nf.send(&error(client(1).0, VIP, &back.bytes));
    assert_eq!(key(&from_client).dst(), IpAddr::from(backend));
    assert_eq!(&from_client.bytes[42..], &answer[14..], "the backend sees what it sent");
    let from_backend = nf.send(&error(backend, client(1).0, &there.bytes));
    assert_eq!(key(&from_backend).src(), IpAddr::from(VIP));
    assert_eq!(&from_backend.bytes[42..], &sent[14..], "the client sees what it sent");
}

#[test]
fn fragments_go_the_way_of_their_first_one() {
    let fragment = |packet: &[u8], from: usize, to: usize| {
        let mut fragment = [&packet[..34], &packet[34 + from..34 + to]].concat();
        let len = (fragment.len() - 14) as u16;
        fragment[16..18].copy_from_slice(&len.to_be_bytes());
        fragment[20..22].copy_from_slice(&((from / 8) as u16 | u16::from(from == 0) << 13).to_be_bytes());
        parse(&fragment).unwrap().fix_checksums(&mut fragment).unwrap();
        fragment
    };
    let mut nf = nf(Rewrite::Ip, 17, 1000);
    let sent = udp(client(1), (VIP, 80), 40);
    assert_eq!(nf.send(&fragment(&sent, 16, 48)).verdict, Verdict::Drop);
    assert_eq!(count(&mut nf, "dropped_fragment"), 1);
    let backend = key(&nf.send(&fragment(&sent, 0, 16))).dst();
    assert_eq!(key(&nf.send(&fragment(&sent, 16, 48))).dst(), backend);
    let answer = udp((end(backend), 8080), client(1), 40);
    assert_eq!(key(&nf.send(&fragment(&answer, 0, 16))).src(), IpAddr::from(VIP));
    assert_eq!(key(&nf.send(&fragment(&answer, 16, 48))).src(), IpAddr::from(VIP));
}

#[test]
fn packets_without_a_backend_or_a_whole_header_are_dropped() {
    let mut nf = nf(Rewrite::Ip, 6, 1000);
    nf.handler().set_pool(pool("a 10.0.0.1 weight 0"));
    assert_eq!(nf.send(&tcp(client(1), (VIP, 80), "S")).verdict, Verdict::Drop);
    assert_eq!(nf.send(&tcp(client(1), (VIP, 80), "S")[..40]).verdict, Verdict::Drop);
    assert_eq!((count(&mut nf, "dropped_no_backend"), count(&mut nf, "dropped_malformed")), (1, 1));
}
