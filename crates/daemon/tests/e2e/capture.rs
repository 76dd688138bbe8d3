//! Captures of a running chain: what a hop's interface shows is what passes the hop.

use std::collections::BTreeMap;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use sluice_api::model::{CaptureRequest, MAX_CAPTURES};

use crate::pcap::{MICROS, Order, pcap};
use crate::skip::skip;
use crate::support::{Daemon, PATIENCE, chain, find_chain, port, service};

/// A packet of a capture.
struct Packet {
    bytes: Vec<u8>,
    len: u32,
    comment: String,
    /// 1: inbound, 2: outbound.
    direction: u32,
}

/// What a file has: its interfaces with their packets, and what their statistics say.
#[derive(Default)]
struct Captured {
    packets: BTreeMap<String, Vec<Packet>>,
    written: u64,
    missed: u64,
}

fn read(bytes: &[u8]) -> Captured {
    let mut captured = Captured::default();
    let mut names = Vec::new();
    let mut reader = PcapNgReader::new(bytes).unwrap();
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(interface) => {
                let name = interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                });
                assert!(interface.options.contains(&InterfaceDescriptionOption::IfTsResol(9)), "{:?}", interface.options);
                names.push(name.unwrap());
                captured.packets.entry(names[names.len() - 1].clone()).or_default();
            }
            Block::EnhancedPacket(block) => {
                let mut packet =
                    Packet { bytes: block.data.to_vec(), len: block.original_len, comment: String::new(), direction: 0 };
                for option in &block.options {
                    match option {
                        EnhancedPacketOption::Comment(comment) => packet.comment = comment.to_string(),
                        EnhancedPacketOption::Flags(flags) => packet.direction = *flags,
                        _ => {}
                    }
                }
                captured.packets.get_mut(&names[block.interface_id as usize]).unwrap().push(packet);
            }
            Block::InterfaceStatistics(statistics) => {
                for option in &statistics.options {
                    match option {
                        InterfaceStatisticsOption::IsbFilterAccept(n) => captured.written += n,
                        InterfaceStatisticsOption::IsbIfDrop(n) => captured.missed += n,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    captured
}

fn run(daemon: &Daemon, args: &[&str]) -> Output {
    daemon.sluice(&["capture", "-w", "-"]).args(args).output().unwrap()
}

/// The capture of a command that must succeed.
fn capture(daemon: &Daemon, args: &[&str]) -> Captured {
    let output = run(daemon, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    read(&output.stdout)
}

/// UDP packets of several sizes that all differ.
fn packets() -> Vec<Vec<u8>> {
    let packet = |i: usize| {
        let mut packet = Vec::new();
        let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let builder = builder.ipv4([10, 0, 0, 1], [192, 0, 2, 1], 64).udp(1000, 2000);
        builder.write(&mut packet, &vec![i as u8; 18 + 37 * (i % 30)]).unwrap();
        packet
    };
    (0..90).map(packet).collect()
}

#[test]
fn each_hop_shows_what_passes_it_byte_for_byte() {
    let files = crate::support::open_folder();
    let (source, keys) = (files.path().join("in.pcap"), files.path().join("keys"));
    let sent = packets();
    std::fs::write(&source, pcap(Order::Little, MICROS, 1, &sent)).unwrap();
    std::fs::write(&keys, "1 000102030405060708090a0b0c0d0e0f\n").unwrap();
    // Small rings: an NF that waits for its core may be only so far behind the hops before it.
    let args = format!("args = [\"--keys\", {keys:?}]\nring = 64");
    let body = port("in", "pcap", &format!("read = {source:?}\nspeed = \"rate\"\nrate = 2000\nrepeat = 0\noverload = \"wait\""))
        + &port("out", "sink", "")
        + &service("enc", "sluice-nf-encrypt", &args)
        + &service("dec", "sluice-nf-decrypt", &args)
        + &chain("c", "in", &["enc", "dec"], "out", "");
    let mut daemon = Daemon::start("", &body);
    daemon.wait("packets flow", |s| find_chain(s, "c").exit_packets > 0);
    let hops = ["port:in", "enc.0:in", "enc.0:out", "dec.0:out", "port:out"];
    let args: Vec<&str> = hops.iter().flat_map(|hop| ["--hop", *hop]).chain(["--chain", "c", "--count", "2000"]).collect();
    let captured = capture(&daemon, &args);
    assert_eq!((captured.written, captured.missed), (2000, 0));
    assert_eq!(
        captured.packets.keys().map(String::as_str).collect::<Vec<_>>(),
        ["dec.0:out", "enc.0:in", "enc.0:out", "port:in", "port:out"]
    );
    let seen = |hop: &str| &captured.packets[hop];
    for hop in ["port:in", "enc.0:in", "dec.0:out", "port:out"] {
        // As they were sent, each once, in order, from one of them on.
        let first = sent.iter().position(|packet| *packet == seen(hop)[0].bytes).unwrap();
        let wanted = sent.iter().cycle().skip(first).take(seen(hop).len());
        let differs = seen(hop).iter().zip(wanted).position(|(packet, wanted)| packet.bytes != *wanted);
        assert!(differs.is_none() && seen(hop).len() > 100, "{hop}: {differs:?} of {}", seen(hop).len());
        assert!(seen(hop).iter().all(|packet| packet.len as usize == packet.bytes.len()), "{hop}");
    }
    assert!(seen("enc.0:out").len() > 100 && seen("enc.0:out").iter().all(|packet| !sent.contains(&packet.bytes)));
    for (hop, comment, direction) in [
        ("port:in", "chain=c path=enc.0,dec.0", 1),
        ("enc.0:in", "chain=c path=enc.0,dec.0 nf=enc.0", 0),
        ("enc.0:out", "chain=c path=enc.0,dec.0 nf=enc.0", 0),
        ("dec.0:out", "chain=c path=enc.0,dec.0 nf=dec.0", 0),
        ("port:out", "chain=c path=enc.0,dec.0", 2),
    ] {
        let differs = seen(hop).iter().find(|packet| (packet.comment.as_str(), packet.direction) != (comment, direction));
        assert!(differs.is_none(), "{hop}: {:?}", differs.map(|packet| (&packet.comment, packet.direction)));
    }
    // Of all hops, one packet of ten and its first bytes alone.
    let some = capture(&daemon, &["--sample", "10", "--snaplen", "50", "--count", "100"]);
    assert_eq!(some.packets.values().map(Vec::len).sum::<usize>(), 100);
    assert!(some.packets.values().flatten().all(|packet| packet.bytes.len() == 50 && packet.len >= 60));
    // It has kept no packet.
    daemon.silence("c", "in");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn dropped_packets_are_shown_with_the_reason() {
    let body = port("stray", "gen", "rate = 5000")
        + &port("much", "gen", "")
        + &port("out", "sink", "")
        + &service("slow", "sluice-nf-cost", "args = [\"--cycles\", \"20000\"]\nring = 64")
        + &chain("much", "much", &["slow"], "out", "");
    let mut daemon = Daemon::start("", &body);
    daemon.wait("packets are refused", |s| {
        s.drops["no_rule"] > 0 && find_chain(s, "much").drops.get("entry").is_some_and(|n| *n > 0)
    });
    let comments = |captured: &Captured| captured.packets["drop"].iter().map(|packet| packet.comment.clone()).collect::<Vec<_>>();
    let of_chain = capture(&daemon, &["--hop", "drop", "--chain", "much", "--count", "500"]);
    assert_eq!(comments(&of_chain), vec!["chain=much port=much drop=entry"; 500]);
    assert!(of_chain.packets["drop"].iter().all(|packet| packet.bytes.len() == 60));
    daemon.silence("much", "much");
    let of_none = capture(&daemon, &["--hop", "drop", "--count", "100"]);
    let (last, count) = (comments(&of_none).pop().unwrap(), comments(&of_none).len());
    assert_eq!((last.as_str(), count), ("port=stray drop=no_rule", 100));
    daemon.stop();
}

#[test]
fn filters_are_libpcap_s() {
    let body = port("in", "gen", "rate = 5000") + &port("out", "sink", "") + &chain("c", "in", &[], "out", "");
    let daemon = Daemon::start("", &body);
    let output = run(&daemon, &["--hop", "port:in", "--filter", "udp or tcp", "--count", "20"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("needs libpcap") {
        daemon.stop();
        return skip("libpcap is not installed");
    }
    assert!(output.status.success(), "{said}");
    assert_eq!(read(&output.stdout).written, 20);
    let none = capture(&daemon, &["--hop", "port:in", "--filter", "arp", "--seconds", "0.2"]);
    assert_eq!((none.written, none.packets["port:in"].len()), (0, 0));
    let wrong = run(&daemon, &["--filter", "tcp prot 80"]);
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(wrong.status.code() == Some(2) && said.contains("the filter \"tcp prot 80\"") && wrong.stdout.is_empty(), "{said}");
    daemon.stop();
}

#[test]
fn what_cannot_be_captured_is_refused_at_once() {
    let body = port("in", "gen", "rate = 100")
        + &port("out", "sink", "")
        + &service("s", "sluice-nf-bridge", "")
        + &chain("c", "in", &["s"], "out", "");
    let daemon = Daemon::start("", &body);
    for (args, word) in [
        (["--hop", "s.1:in"], "there is no NF `s.1`"),
        (["--hop", "port:on"], "there is no port `on`"),
        (["--chain", "d"], "there is no chain `d`"),
        (["--hop", "s.0"], "`s.0` is no hop; write NF:in"),
    ] {
        let output = run(&daemon, &args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(word) && output.stdout.is_empty(), "{args:?}: {said}");
    }
    let bad = |request: CaptureRequest| daemon.client().capture(&request, |_| false).unwrap_err().to_string();
    let program = vec![sluice_api::model::Instruction { code: 5, jt: 0, jf: 0, k: 9 }];
    assert!(bad(CaptureRequest { filter: program, ..CaptureRequest::default() }).contains("does not end with a return"));
    assert!(bad(CaptureRequest { sample: 0, ..CaptureRequest::default() }).contains("at least 1"));
    assert!(bad(CaptureRequest { hops: vec!["drop".into(); 65], ..CaptureRequest::default() }).contains("too many"));

    // As many as there can be, and one more.
    let (begun, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..MAX_CAPTURES {
            scope.spawn(|| {
                let mut is_first = true;
                let take = |_: &[u8]| {
                    begun.fetch_add(usize::from(std::mem::take(&mut is_first)), Ordering::Relaxed);
                    !stop.load(Ordering::Relaxed)
                };
                daemon.client().capture(&CaptureRequest { hops: vec!["drop".into()], ..CaptureRequest::default() }, take).unwrap();
            });
        }
        let until = Instant::now() + PATIENCE;
        while begun.load(Ordering::Relaxed) < MAX_CAPTURES && Instant::now() < until {
            std::thread::yield_now();
        }
        let refused = daemon.client().capture(&CaptureRequest::default(), |_| false);
        stop.store(true, Ordering::Relaxed);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("captures go on, the most at a time"), "{refused}");
    });
    // When they have ended, the next can begin.
    let until = Instant::now() + PATIENCE;
    let one = CaptureRequest { hops: vec!["s.0:in".into()], count: Some(1), ..CaptureRequest::default() };
    while let Err(error) = daemon.client().capture(&one, |_| true) {
        assert!(error.to_string().contains("captures go on") && Instant::now() < until, "{error}");
    }
    daemon.stop();
}

#[test]
fn a_capture_ends_with_its_nf() {
    let body = port("in", "gen", "rate = 1000\nflows = 64")
        + &port("out", "sink", "")
        + &service("s", "sluice-nf-bridge", "instances = 2")
        + &chain("c", "in", &["s"], "out", "");
    let daemon = Daemon::start("", &body);
    let (begun, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut bytes = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = CaptureRequest { hops: vec!["s.1:out".into()], ..CaptureRequest::default() };
            let take = |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                begun.store(true, Ordering::Relaxed);
                !stop.load(Ordering::Relaxed)
            };
            daemon.client().capture(&request, take).unwrap();
        });
        let until = Instant::now() + PATIENCE;
        while !begun.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::yield_now();
        }
        let removed = daemon.client().remove_nf("s.1");
        stop.store(removed.is_err(), Ordering::Relaxed);
        removed.unwrap();
    });
    let captured = read(&bytes);
    assert_eq!((captured.packets["s.1:out"].len() as u64, captured.missed), (captured.written, 0));
    daemon.stop();
}
