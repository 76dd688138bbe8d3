//! Captures replayed through NFs come out byte for byte, in order.
//!
//! A few lines, independent of the daemon's decoder, write and read captures of both formats and
//! byte orders, with packets of all sizes. `scripts/replay-corpus` does the same for a folder of
//! real captures, with tshark and editcap.

use std::path::Path;
use std::process::Command;

use sluice_api::health::HealthVerdict;
use sluice_api::model::PortState;

use crate::support::{Daemon, chain, find_chain, find_nf, find_port, head, port, refusal, service};

/// Packets of all sizes, from less than an Ethernet header to jumbo; IP and not.
fn packets() -> Vec<Vec<u8>> {
    let sizes = [1, 2, 13, 14, 15, 33, 34, 41, 42, 59, 60, 61, 63, 64, 65, 127, 128, 590, 1514, 1518, 4000, 9000, 9200];
    let kinds: [&[u8]; 5] =
        [&[0x08, 0x00, 0x45], &[0x86, 0xdd, 0x60], &[0x08, 0x06], &[0x81, 0x00, 0, 5, 0x08, 0x00, 0x45], &[0, 9]];
    let packet = |(i, size): (usize, usize)| {
        let mut packet: Vec<u8> = (0..size).map(|at| (at * 7 + i * 31) as u8).collect();
        for (byte, kind) in packet.iter_mut().skip(12).zip(kinds[i % kinds.len()]) {
            *byte = *kind;
        }
        packet
    };
    (0..40).flat_map(|_| sizes).enumerate().map(packet).collect()
}

#[derive(Clone, Copy)]
pub enum Order {
    Little,
    Big,
}

impl Order {
    fn u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    fn u16(self, value: u16) -> [u8; 2] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// A pcap of these packets; `magic` gives the unit of its times.
pub fn pcap(order: Order, magic: u32, link: u32, packets: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(order.u32(magic));
    out.extend([order.u16(2), order.u16(4)].concat());
    for word in [0, 0, 262_144, link] {
        out.extend(order.u32(word));
    }
    for (i, packet) in packets.iter().enumerate() {
        for word in [1_700_000_000, i as u32, packet.len() as u32, packet.len() as u32] {
            out.extend(order.u32(word));
        }
        out.extend(packet);
    }
    out
}

/// Times in microseconds.
pub const MICROS: u32 = 0xa1b2_c3d4;
/// Times in nanoseconds.
const NANOS: u32 = 0xa1b2_3c4d;

/// A pcapng of a section, an Ethernet interface, and enhanced packet blocks.
pub fn pcapng(order: Order, packets: &[Vec<u8>]) -> Vec<u8> {
    let block = |kind: u32, body: Vec<u8>| {
        let mut body = body;
        body.resize(body.len().next_multiple_of(4), 0);
        let len = order.u32(body.len() as u32 + 12);
        [&order.u32(kind)[..], &len, &body, &len].concat()
    };
    let header = [order.u32(0x1a2b_3c4d), [order.u16(1), order.u16(0)].concat().try_into().unwrap(), [0xff; 4], [0xff; 4]].concat();
    let interface = [&order.u16(1)[..], &order.u16(0), &order.u32(262_144)].concat();
    let mut out = [block(0x0a0d_0d0a, header), block(1, interface)].concat();
    for (i, packet) in packets.iter().enumerate() {
        let mut body = Vec::new();
        for word in [0, 0x0005_0000, i as u32, packet.len() as u32, packet.len() as u32] {
            body.extend(order.u32(word));
        }
        body.extend(packet);
        out.extend(block(6, body));
    }
    out
}

/// The packets of a little-endian pcap, as the daemon writes it.
pub fn read(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (NANOS, 1));
    let mut packets = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let len = word(at + 8) as usize;
        assert_eq!(len, word(at + 12) as usize);
        packets.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    packets
}

/// Replays a file through NFs that take jumbo frames; returns what is written.
fn replay(capture: &[u8], packets: usize, services: &[(&str, &str, &str)]) -> Vec<Vec<u8>> {
    let files = crate::support::open_folder();
    let (source, target) = (files.path().join("in.pcap"), files.path().join("out.pcap"));
    std::fs::write(&source, capture).unwrap();
    let mut text = "packet_bytes = 9300\n".to_string();
    text += &port("in", "pcap", &format!("read = {source:?}\noverload = \"wait\""));
    text += &port("out", "pcap", &format!("write = {target:?}"));
    for (name, exec, keys) in services {
        text += &service(name, exec, &format!("ring = 64\n{keys}"));
    }
    let names: Vec<&str> = services.iter().map(|(name, ..)| *name).collect();
    let mut daemon = Daemon::start("", &(text + &chain("c", "in", &names, "out", "")));
    let done = |s: &sluice_api::model::Stats| find_port(s, "in").finished && find_port(s, "out").tx_packets >= packets as u64;
    daemon.wait("the capture has passed", done);
    daemon.wait_until_empty();
    daemon.stop();
    read(&target)
}

const UNCHANGED: [(&str, &str, &str); 3] =
    [("a", "sluice-nf-bridge", ""), ("m", "sluice-nf-monitor", ""), ("b", "sluice-nf-bridge", "")];

#[track_caller]
fn comes_out_the_same(capture: &[u8], packets: &[Vec<u8>]) {
    let written = replay(capture, packets.len(), &UNCHANGED);
    assert_eq!(written.len(), packets.len());
    let differs = written.iter().zip(packets).position(|(a, b)| a != b);
    assert_eq!(differs, None, "the first packet that differs");
}

#[test]
fn a_pcap_passes_unchanged() {
    let packets = packets();
    comes_out_the_same(&pcap(Order::Little, MICROS, 1, &packets), &packets);
}

#[test]
fn a_big_endian_pcap_with_nanoseconds_passes_unchanged() {
    let packets = packets();
    comes_out_the_same(&pcap(Order::Big, NANOS, 1, &packets), &packets);
}

#[test]
fn a_pcapng_passes_unchanged() {
    let packets = packets();
    comes_out_the_same(&pcapng(Order::Little, &packets), &packets);
    comes_out_the_same(&pcapng(Order::Big, &packets), &packets);
}

#[test]
fn packets_without_ethernet_headers_get_them_and_pass_otherwise_unchanged() {
    let ip = |size: usize| (0..size).map(|at| if at == 0 { 0x45 } else { at as u8 }).collect::<Vec<u8>>();
    let bare: Vec<Vec<u8>> = (20..1500).step_by(37).map(ip).collect();
    let behind = |header: &[u8]| bare.iter().map(|packet| [header, packet].concat()).collect::<Vec<_>>();
    let ethernet = |source: [u8; 6]| [&[2, 0, 0, 0, 0, 2][..], &source, &[8, 0]].concat();
    let plain = ethernet([2, 0, 0, 0, 0, 1]);
    let cooked = [0, 0, 0, 1, 0, 6, 2, 4, 6, 8, 10, 12, 0, 0, 8, 0];
    comes_out_the_same(&pcap(Order::Little, MICROS, 101, &bare), &behind(&plain));
    comes_out_the_same(&pcap(Order::Big, MICROS, 0, &behind(&[2, 0, 0, 0])), &behind(&plain));
    comes_out_the_same(&pcap(Order::Little, NANOS, 9, &behind(&[0xff, 3, 0, 0x21])), &behind(&plain));
    comes_out_the_same(&pcap(Order::Little, MICROS, 113, &behind(&cooked)), &behind(&ethernet([2, 4, 6, 8, 10, 12])));
}

#[test]
fn another_link_type_is_refused_before_anything_starts() {
    let folder = crate::support::open_folder();
    let file = folder.path().join("wifi.pcap");
    std::fs::write(&file, pcap(Order::Little, MICROS, 105, &packets())).unwrap();
    let text = head(folder.path(), "")
        + &port("in", "pcap", &format!("read = {file:?}"))
        + &port("out", "sink", "")
        + &chain("c", "in", &[], "out", "");
    let output = refusal(folder.path(), &text);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("link type 105 (Wi-Fi)") && said.contains("Linux cooked can be replayed"), "{said}");
    assert!(!folder.path().join("run").exists());
}

#[test]
fn what_is_encrypted_and_decrypted_is_the_same() {
    let folder = crate::support::open_folder();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "1 000102030405060708090a0b0c0d0e0f\n").unwrap();
    let args = format!("args = [\"--keys\", {keys:?}]");
    let packets: Vec<Vec<u8>> = packets().into_iter().filter(|p| p.len() >= 60).collect();
    let crypt = [("e", "sluice-nf-encrypt", args.as_str()), ("d", "sluice-nf-decrypt", args.as_str())];
    let written = replay(&pcap(Order::Little, MICROS, 1, &packets), packets.len(), &crypt);
    assert_eq!(written.len(), packets.len());
    assert_eq!(written.iter().zip(&packets).position(|(a, b)| a != b), None, "the first packet that differs");
}

/// A file system in memory of this size, unmounted on drop.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(size: &str) -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        disk.mount(&format!("size={size}"));
        disk
    }

    fn mount(&self, options: &str) {
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(self.0.path()).status().unwrap();
        assert!(done.success(), "mount: {done}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_closes_the_gate_and_nothing_is_lost_that_was_let_in() {
    let disk = SmallDisk::new("1m");
    let file = disk.0.path().join("out.pcap");
    let mut text = port("load", "gen", "rate = 5000\nflows = 8\nsize = 1000");
    text += &port("out", "pcap", &format!("write = {file:?}"));
    text += &service("b", "sluice-nf-bridge", "");
    text += &chain("c", "load", &["b"], "out", "on_failure = \"bypass\"");
    // Another chain, which the same thread drains.
    text += &(port("more", "gen", "rate = 5000") + &port("away", "sink", "") + &service("n", "sluice-nf-bridge", ""));
    text += &chain("d", "more", &["n"], "away", "");
    let mut daemon = Daemon::start("", &text);
    let stats = daemon.wait("the chain refuses what the disk does not take", |s| {
        let is_blocked = find_port(s, "out").state == PortState::Blocked;
        is_blocked && find_chain(s, "c").drops.get("entry").is_some_and(|n| *n > 1000)
    });
    assert_eq!(find_port(&stats, "out").details["write_lost"], 0.0);
    let stats = daemon.wait("the verdict", |s| s.status.health.verdict == HealthVerdict::Degraded);
    let problems = stats.status.health.problems;
    assert!(problems.len() == 1 && problems[0].subject == "port out", "{problems:?}");
    assert!(daemon.log().contains("No space left on device"), "{}", daemon.log());
    let sent = find_port(&daemon.stats(), "away").tx_packets;
    daemon.wait("packets of the other chain", |s| find_port(s, "away").tx_packets > sent + 1000);
    // There is space again.
    disk.mount("remount,size=512m");
    daemon.wait("it is written", |s| find_port(s, "out").state == PortState::Up && find_port(s, "out").details["written"] > 6000.0);
    daemon.wait("all is well", |s| s.status.health.verdict == HealthVerdict::Healthy);
    daemon.silence("c", "load");
    daemon.silence("d", "more");
    daemon.wait_until_empty();
    let stats = daemon.stats();
    let left = find_chain(&stats, "c").exit_packets;
    assert_eq!((find_nf(&stats, "b.0").restarts, find_chain(&stats, "c").entry_packets), (0, left));
    daemon.stop();
    let capture = std::fs::read(&file).unwrap();
    assert_eq!(capture.len() as u64, 24 + left * (16 + 1000), "each packet that has left is in the file");
}
