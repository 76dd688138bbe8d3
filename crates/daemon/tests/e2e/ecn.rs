//! ECN: only capable packets are marked before a slow NF, right in every byte.

use std::collections::HashMap;

use crate::pcap::{MICROS, Order, pcap, read};
use crate::support::{Daemon, chain, find_nf, find_port, port, service};

/// ECN codes: not capable, ECT(1), ECT(0), CE.
const CODES: [u8; 4] = [0, 1, 2, 3];
const CE: u8 = 3;
/// Codes that may be marked.
const CAPABLE: [u8; 2] = [1, 2];

/// How a packet is wrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    V4,
    V6,
    TaggedV4,
    TaggedV6,
    Arp,
}

const KINDS: [Kind; 5] = [Kind::V4, Kind::V6, Kind::TaggedV4, Kind::TaggedV6, Kind::Arp];

/// The checksum (RFC 1071) of an IPv4 header whose checksum field is 0.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// A packet with this code in its traffic class; each number gives another packet.
fn packet(kind: Kind, code: u8, number: u8) -> Vec<u8> {
    // DSCP 46 and the code.
    let class = 46 << 2 | code;
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if matches!(kind, Kind::TaggedV4 | Kind::TaggedV6) {
        packet.extend([0x81, 0, 0, 7]);
    }
    match kind {
        Kind::V4 | Kind::TaggedV4 => {
            packet.extend([8, 0]);
            let mut header = vec![0x45, class, 0, 28, 0, number, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 192, 0, 2, 1];
            let sum = checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            packet.extend(header);
        }
        Kind::V6 | Kind::TaggedV6 => {
            packet.extend([0x86, 0xdd, 0x60 | class >> 4, class << 4, 0, 0, 0, 8, 17, 64]);
            packet.extend([[0xfd, 0, 0, 0, 0, 0, 0, 0], [0; 8], [0xfd, 1, 0, 0, 0, 0, 0, 0], [0; 8]].concat());
        }
        // The byte at the place of IP's traffic class is not one.
        Kind::Arp => packet.extend([8, 6, 0, class, 8, 0, 6, 4, 0, 1]),
    }
    packet.extend([0x9c, 0x40, 0, 53, 0, 8, 0, number]);
    packet.resize(80, 0);
    packet
}

#[test]
fn capable_packets_are_marked_before_a_slow_nf_and_others_are_not() {
    are_marked_before("slow.0", &["slow"], "");
}

#[test]
fn capable_packets_are_marked_before_a_slow_group() {
    are_marked_before("c.fused.0", &["quick", "slow"], "run = \"fused\"");
}

/// Marks are set before this NF of a chain of these services with these keys.
fn are_marked_before(nf: &str, services: &[&str], keys: &str) {
    let files = crate::support::open_folder();
    let (source, target) = (files.path().join("in.pcap"), files.path().join("out.pcap"));
    // The number of each packet gives its kind and code, marked or not.
    let all: Vec<(Kind, u8)> = KINDS.iter().flat_map(|kind| CODES.map(|code| (*kind, code))).collect();
    let packets: Vec<Vec<u8>> = all.iter().enumerate().map(|(i, (kind, code))| packet(*kind, *code, i as u8)).collect();
    std::fs::write(&source, pcap(Order::Little, MICROS, 1, &packets)).unwrap();
    let text = port("in", "pcap", &format!("read = {source:?}\nrepeat = 0"))
        + &port("out", "pcap", &format!("write = {target:?}"))
        + &service("quick", "sluice-nf-bridge", "ring = 256")
        + &service("slow", "sluice-nf-cost", "args = [\"--cycles\", \"20000\"]\nring = 256")
        + &chain("c", "in", services, "out", keys)
        // Low: while the NF waits for its core, the gate is closed and no queue is seen.
        + "[sched]\necn_watermark = 10\n";
    let mut daemon = Daemon::start("", &text);
    daemon.wait("packets are marked", |s| find_nf(s, nf).sched.marked > 1000 && find_port(s, "out").tx_packets > 1000);
    daemon.silence("c", "in");
    daemon.wait_until_empty();
    let marked = find_nf(&daemon.stats(), nf).sched.marked;
    daemon.stop();

    let mut seen: HashMap<Vec<u8>, u64> = HashMap::new();
    read(&target).into_iter().for_each(|packet| *seen.entry(packet).or_default() += 1);
    let mut found = 0;
    for (i, (kind, code)) in all.iter().enumerate() {
        assert!(seen.remove(&packets[i]).is_some_and(|n| n > 0), "no {kind:?} with code {code} came out as it was");
        if CAPABLE.contains(code) && *kind != Kind::Arp {
            // Built anew with the mark: a wrong checksum or any other changed byte would show.
            let n = seen.remove(&packet(*kind, CE, i as u8)).unwrap_or(0);
            assert!(n > 0, "no {kind:?} with code {code} came out marked");
            found += n;
        }
    }
    assert!(seen.is_empty(), "these never went in: {seen:x?}");
    assert_eq!(found, marked);
}
