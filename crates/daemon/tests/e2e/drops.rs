//! "Where did my packet go?": for each drop reason one command of an operator answers it, with the
//! packet.
//!
//! Each reason is provoked by real parts, here or, with [`ask`], in the tests of what provokes it:
//! `policed` (promises), `unanswered` (openflow), `not_back` (foreign), `no_link`, `mtu` and
//! `oversize` (interfaces), and, in a build with DPDK, `port_tx` (dpdk).

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use sluice_api::model::{Fate, NfState, WhyReply, WhyRequest};

use crate::pcap::{MICROS, Order, pcap};
use crate::support::{Daemon, PATIENCE, chain, find_chain, find_nf, hostile_nf, open_folder, port, service, signal, test_nf};

fn succeeded(output: Output) -> Vec<u8> {
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Asks for a reason by `sluice drops` while `provoke` is called again and again, until packets are
/// dropped for it. Checks the answer: how many, what to do, and a packet.
#[track_caller]
pub fn ask_while(daemon: &Daemon, reason: &str, mut provoke: impl FnMut()) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut command = daemon.sluice(&["drops", "--reason", reason, "--seconds", "0.5", "--json"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            provoke();
            std::thread::sleep(Duration::from_millis(5));
        }
        let answer: Value = serde_json::from_slice(&succeeded(child.wait_with_output().unwrap())).unwrap();
        let row = &answer["reasons"][0];
        if row["samples"][0].is_object() && row["packets"] != 0 {
            assert_eq!(row["reason"], reason);
            assert!(row["per_s"].as_f64().unwrap() > 0.0 && row["total"].as_u64() >= row["packets"].as_u64(), "{row}");
            assert!(["meaning", "remedy"].iter().all(|text| !row[text].as_str().unwrap().is_empty()), "{row}");
            assert!(row["places"][0].is_object(), "{row}");
            // At least its Ethernet header.
            assert!(row["samples"][0]["packet"].as_str().unwrap().len() >= 28, "{row}");
            return row.clone();
        }
        assert!(Instant::now() < until, "no packet is shown that was dropped as {reason}: {answer}\n{}", daemon.log());
    }
}

/// As above, for what is dropped all the time.
#[track_caller]
pub fn ask(daemon: &Daemon, reason: &str) -> Value {
    ask_while(daemon, reason, || ())
}

/// The first packet of an answer, whose headers begin so.
#[track_caller]
fn headers<'a>(row: &'a Value, begin: &str) -> &'a Value {
    let sample = &row["samples"][0];
    assert!(sample["headers"].as_str().unwrap().starts_with(begin), "{row}");
    sample
}

/// Asks again until an answer in words has what is wanted: a packet thread may get no core for as
/// long as one answer takes.
#[track_caller]
fn said_until(daemon: &Daemon, args: &[&str], is: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = daemon.says(args);
        if is(&text) {
            return text;
        }
        assert!(Instant::now() < until, "{args:?}: {text}");
    }
}

/// What a packet in words would meet.
#[track_caller]
pub fn why(daemon: &Daemon, packet: &str) -> WhyReply {
    serde_json::from_str(&daemon.says(&["why", packet, "--json"])).unwrap()
}

/// Asks until the answer has this reason, and the packet is dropped.
#[track_caller]
fn why_dropped(daemon: &Daemon, packet: &str, reason: &str) -> WhyReply {
    let until = Instant::now() + PATIENCE;
    loop {
        let why = why(daemon, packet);
        if why.outcome == Fate::Dropped && why.obstacles.iter().any(|obstacle| obstacle.reason.as_deref() == Some(reason)) {
            return why;
        }
        assert!(Instant::now() < until, "{packet}: not dropped as {reason}: {why:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A packet of a generator, as its line says.
const GENERATED: &str = "udp 10.0.0.1:";

#[test]
fn what_is_refused_at_the_entry_is_shown_and_explained() {
    let body = port("stray", "gen", "rate = 5000")
        + &port("much", "gen", "")
        + &port("gone", "gen", "rate = 5000")
        + &port("out", "sink", "")
        + &service("slow", "sluice-nf-cost", "args = [\"--cycles\", \"20000\"]\nring = 64\ntenant = \"blue\"")
        + &service("s", "sluice-nf-bridge", "")
        + &chain("much", "much", &["slow"], "out", "")
        + &chain("gone", "gone", &["s"], "out", "on_failure = \"drop\"");
    let mut daemon = Daemon::start("", &body);
    daemon.client().force_remove_nf("s.0").unwrap();
    daemon.wait("packets are refused", |s| {
        s.drops["no_rule"] > 0 && s.drops["nf_down"] > 0 && find_chain(s, "much").drops.get("entry").is_some_and(|n| *n > 0)
    });

    let row = ask(&daemon, "entry");
    let sample = headers(&row, GENERATED);
    assert_eq!((&sample["chain"], &sample["port"]), (&"much".into(), &"much".into()));
    assert_eq!((&row["places"][0]["what"], &row["places"][0]["tenants"][0]), (&"chain much".into(), &"blue".into()));
    let packet = format!("{} on much", sample["headers"].as_str().unwrap());
    let answer = why_dropped(&daemon, &packet, "entry");
    let names = (answer.rule.as_deref(), answer.chain.as_deref(), answer.egress.as_deref());
    assert_eq!(names, (Some("much"), Some("much"), Some("out")));
    assert_eq!((answer.path, answer.tenants, answer.bytes), (vec!["slow.0".to_string()], vec!["blue".to_string()], 60));
    assert!(answer.obstacles[0].what.contains("slow.0"), "{:?}", answer.obstacles);

    let row = ask(&daemon, "no_rule");
    let sample = headers(&row, GENERATED);
    assert_eq!((&sample["port"], &row["places"][0]["what"]), (&"stray".into(), &"port stray".into()));
    let packet = format!("{} on stray", sample["headers"].as_str().unwrap());
    let answer = why_dropped(&daemon, &packet, "no_rule");
    assert_eq!((answer.rule, answer.chain, answer.path), (None, None, vec![]));
    assert_eq!(answer.entry.unwrap().instead.as_deref(), Some("no_rule"), "its flow is known");

    let row = ask(&daemon, "nf_down");
    assert_eq!(headers(&row, GENERATED)["chain"], "gone");
    let answer = why_dropped(&daemon, "udp 10.0.0.1:1 > 10.0.0.2:2 on gone", "nf_down");
    assert!(answer.obstacles[0].what.contains("service s of chain gone"), "{:?}", answer.obstacles);

    // All at once, in words, and of one chain.
    said_until(&daemon, &["drops"], |text| {
        let reasons: Vec<&str> =
            text.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(':').next()).collect();
        ["entry", "no_rule", "nf_down"].iter().all(|reason| reasons.contains(reason))
            && text.lines().filter(|line| line.starts_with("  packet  udp 10.0.0.1:")).count() == 3
    });
    let text = said_until(&daemon, &["drops", "--chain", "gone"], |text| text.contains("(chain gone, at port gone)"));
    assert!(text.starts_with("nf_down: ") && !text.contains("entry"), "{text}");
    daemon.stop();
}

#[test]
fn what_an_nf_drops_or_sends_astray_is_shown() {
    let folder = open_folder();
    // The first byte says what the NF does: drop, to a port, to a service.
    let packets: Vec<Vec<u8>> = [b'd', b'p', b's']
        .into_iter()
        .map(|first| {
            let mut packet = Vec::new();
            let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [first, 0, 0, 0, 0, 2]);
            builder.ipv4([10, 0, 0, first], [192, 0, 2, 1], 64).udp(1000, 2000).write(&mut packet, &[7; 30]).unwrap();
            packet
        })
        .collect();
    let file = folder.path().join("in.pcap");
    std::fs::write(&file, pcap(Order::Little, MICROS, 1, &packets)).unwrap();
    let replay = format!("read = {file:?}\nspeed = \"rate\"\nrate = 3000\nrepeat = 0");
    let probe = |name: &str, to: &str| service(name, &test_nf(), &format!("args = [\"callback\"]\nmay_send_to = {to}"));
    let body = port("in", "pcap", &replay)
        + &port("other", "pcap", &replay)
        + &port("out", "sink", "")
        + &port("wan", "sink", "")
        + &crate::pools::ids("ids", folder.path(), "", "min = 1\nmax = 1\nwhen_empty = \"drop\"")
        + &probe("probe", "[\"wan\", \"ids\"]")
        + &probe("strict", "[\"wan\"]")
        + &chain("c", "in", &["probe"], "out", "")
        + &chain("d", "other", &["strict"], "out", "");
    let mut daemon = Daemon::start("max_violations = 1000000000", &body);
    daemon.wait("packets come to the NFs", |s| ["probe.0", "strict.0"].iter().all(|nf| find_nf(s, nf).tx_packets > 0));
    // Both have learned its number.
    daemon.client().remove_port("wan").unwrap();
    let (probe, strict) = (Some("probe.0"), Some("strict.0"));
    for (reason, nf, first) in
        [("verdict", None, b'd'), ("no_such_port", None, b'p'), ("not_shared", probe, b's'), ("not_allowed", strict, b's')]
    {
        let row = ask(&daemon, reason);
        let sample = headers(&row, &format!("udp 10.0.0.{first}:1000 > 192.0.2.1:2000"));
        assert!(sample["packet"].as_str().unwrap().starts_with(&format!("{first:02x}")), "{row}");
        assert!(nf.is_none_or(|nf| sample["nf"] == nf), "{row}");
        assert_eq!((&sample["bytes"], row["wasted"].as_bool()), (&72.into(), Some(reason != "verdict")), "{row}");
    }
    daemon.stop();
}

#[test]
fn what_is_lost_inside_is_shown() {
    let slow = |name: &str| service(name, "sluice-nf-cost", "args = [\"--cycles\", \"20000\"]\nring = 64");
    let body =
        port("in", "gen", "") + &port("out", "sink", "") + &slow("a") + &slow("b") + &chain("c", "in", &["a", "b"], "out", "");
    // Each in a daemon of its own: what has died often waits longer and longer.
    for reason in ["nf_died", "nf_gone"] {
        let daemon = Daemon::start("", &body);
        let (mut client, mut killed) = (daemon.client(), None);
        let mut stats = move || client.stats().unwrap();
        // Killed again and again while it has packets, or while more are on their way to it, which
        // come when it is gone.
        let row = ask_while(&daemon, reason, || {
            let now = stats();
            let (a, b) = (find_nf(&now, "a.0"), find_nf(&now, "b.0"));
            if b.state != NfState::Running || b.pid == killed {
                return;
            }
            if reason == "nf_died" {
                if b.queue > 0 {
                    killed = b.pid;
                    signal(b, Signal::KILL);
                }
                return;
            }
            signal(a, Signal::STOP);
            if find_nf(&stats(), "a.0").queue > 0 {
                killed = b.pid;
                signal(b, Signal::KILL);
                let until = Instant::now() + PATIENCE;
                while Instant::now() < until && find_nf(&stats(), "b.0").pid == killed {}
            }
            signal(a, Signal::CONT);
        });
        let sample = headers(&row, GENERATED);
        assert_eq!((&sample["nf"], &sample["path"][1]), (&"b.0".into(), &"b.0".into()), "{row}");
        assert_eq!(sample["bytes"], 60, "{row}");
        daemon.stop();
    }

    let body = port("in", "gen", "")
        + &port("out", "sink", "")
        + &service("fast", "sluice-nf-bridge", "ring = 64")
        + &slow("b")
        + &chain("c", "in", &["fast", "b"], "out", "")
        + "[sched]\nbackpressure = false\n";
    let daemon = Daemon::start("", &body);
    assert_eq!(headers(&ask(&daemon, "ring_full"), GENERATED)["chain"], "c");
    daemon.stop();

    // Descriptors past the frame: the packet is shown as it was received.
    let body = port("in", "gen", "rate = 5000")
        + &port("out", "sink", "")
        + &service("bad", &hostile_nf(), "args = [\"hostile-nf\", \"lengths\"]")
        + &chain("c", "in", &["bad"], "out", "");
    let daemon = Daemon::start("max_violations = 1000000000", &body);
    assert_eq!(headers(&ask(&daemon, "violation"), GENERATED)["nf"], "bad.0");
    daemon.stop();
}

#[test]
fn what_finds_no_buffer_and_no_frame_is_shown() {
    // In each round there are more packets for one port than its buffer holds.
    let mut body = port("out", "sink", "");
    for number in 0..20 {
        let name = format!("g{number}");
        body += &(port(&name, "gen", "") + &chain(&name, &name, &[], "out", ""));
    }
    let daemon = Daemon::start("", &body);
    let row = ask(&daemon, "tx_full");
    let (sample, place) = (headers(&row, GENERATED), &row["places"][0]);
    assert_eq!((&sample["port"], sample["chain"].as_str().map(|chain| &chain[..1])), (&"out".into(), Some("g")), "{row}");
    assert!(place["what"].as_str().unwrap().starts_with("chain g") && place["packets"].as_u64() > Some(0), "{row}");
    daemon.stop();

    // The ring of a slow NF is longer than its tenant has frames. Packets are sent to it by a
    // verdict, so no gate looks at these.
    let folder = open_folder();
    let mut packet = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [b's', 0, 0, 0, 0, 2]);
    builder.ipv4([10, 0, 0, 9], [192, 0, 2, 1], 64).udp(1000, 2000).write(&mut packet, &[7; 30]).unwrap();
    let file = folder.path().join("in.pcap");
    let packets: Vec<Vec<u8>> = std::iter::repeat_n(packet, 64).collect();
    std::fs::write(&file, pcap(Order::Little, MICROS, 1, &packets)).unwrap();
    // The first line is one of [memory].
    let body = "tenants = { blue = 512 }\n".to_string()
        + &port("in", "pcap", &format!("read = {file:?}\nrepeat = 0"))
        + &port("out", "sink", "")
        + &port("wan", "sink", "")
        + &service("ids", "sluice-nf-cost", "args = [\"--cycles\", \"200000\"]\nring = 2048\ntenant = \"blue\"")
        + &service("probe", &test_nf(), "args = [\"callback\"]\nmay_send_to = [\"ids\"]\ntenant = \"red\"")
        + &chain("c", "in", &["probe"], "out", "");
    let daemon = Daemon::start("", &body);
    let row = ask(&daemon, "no_frame");
    let sample = headers(&row, "udp 10.0.0.9:1000 > 192.0.2.1:2000");
    assert_eq!((&sample["nf"], &sample["chain"], &sample["bytes"]), (&"ids.0".into(), &"c".into(), &72.into()), "{row}");
    assert_eq!(row["places"][0]["what"], "chain c", "{row}");
    daemon.stop();
}

#[test]
fn what_finds_no_place_is_shown_and_explained() {
    let folder = open_folder();
    let mut body = port("out", "sink", "");
    for name in ["a", "b", "c"] {
        body += &(port(name, "gen", "rate = 2000") + &chain(name, name, &[], "out", ""));
    }
    let mut daemon = Daemon::start("max_paths = 2", &body);
    daemon.wait("a chain finds no path", |s| s.drops["no_path"] > 0);
    let row = ask(&daemon, "no_path");
    let port_of = headers(&row, GENERATED)["port"].as_str().unwrap().to_string();
    why_dropped(&daemon, &format!("udp 10.9.9.9:1 > 10.0.0.2:2 on {port_of}"), "no_path");
    daemon.stop();

    let body = port("in", "gen", "flows = 4\nrate = 4000")
        + &port("out", "sink", "")
        + &crate::pools::ids("ids", folder.path(), "", "min = 1\nmax = 1\nwhen_empty = \"drop\"")
        + &chain("c", "in", &["ids"], "out", "");
    let mut daemon = Daemon::start("", &body);
    daemon.wait("flows find no NF", |s| s.drops["none_idle"] > 0);
    let row = ask(&daemon, "none_idle");
    assert!(row["places"].as_array().unwrap().iter().any(|spot| spot["what"] == "pool ids"), "{row}");
    // Of any of its four flows.
    let packet = format!("{} on in", headers(&row, "udp 10.0.0.")["headers"].as_str().unwrap());
    let answer = why_dropped(&daemon, &packet, "none_idle");
    assert_eq!((answer.chain.as_deref(), answer.path), (Some("c"), vec![]));
    daemon.stop();

    let nowhere = "[openflow]\ncontroller = \"tcp:127.0.0.1:9\"\nfail = \"secure\"\n";
    let body =
        nowhere.to_string() + &port("in", "gen", "rate = 2000") + &port("out", "sink", "") + &chain("c", "in", &[], "out", "");
    let daemon = Daemon::start("", &body);
    assert_eq!(headers(&ask(&daemon, "forbidden"), GENERATED)["port"], "in");
    why_dropped(&daemon, "udp 10.0.0.1:1 > 10.0.0.2:2 on in", "forbidden");
    daemon.stop();
}

#[test]
fn a_packet_that_goes_is_answered_with_its_way_and_nothing_changes() {
    let folder = open_folder();
    // A capture that is written: no packet comes in there.
    let tape = format!("write = {:?}", folder.path().join("tape.pcap"));
    let body = port("tape", "pcap", &tape)
        + &port("in", "gen", "rate = 2000\noverload = \"wait\"")
        + &port("quiet", "gen", "count = 1")
        + &port("out", "sink", "")
        + &service("s", "sluice-nf-bridge", "instances = 3")
        + &crate::pools::ids("ids", folder.path(), "", "min = 2\nmax = 2\nwhen_empty = \"wait\"")
        + "[[rule]]\nname = \"web\"\nprotocol = \"tcp\"\ndst_port = 80\nport = \"quiet\"\nchain = \"web\"\n"
        + "[[rule]]\nprotocol = \"udp\"\nport = \"quiet\"\nchain = \"rest\"\n"
        + "[[chain]]\nname = \"web\"\nservices = [\"s\", \"ids\"]\negress = \"out\"\n"
        + &chain("rest", "in", &["s"], "out", "");
    // No flow is forgotten meanwhile.
    let mut daemon = Daemon::start("flow_timeout_ms = 86400000", &body);
    let before = daemon.wait("packets of both flows have passed, and a pool is ready", |s| {
        find_chain(s, "rest").exit_packets > 1 && s.status.flows == 2 && s.status.pools[0].idle == 2
    });
    let answer = why(&daemon, "tcp 10.0.0.1:1234 > 10.0.1.2:80 on quiet");
    assert_eq!((answer.rule.as_deref(), answer.chain.as_deref(), answer.outcome), (Some("web"), Some("web"), Fate::Enters));
    assert!(answer.path[0].starts_with("s.") && answer.path[1] == "ids.*" && answer.entry.is_none(), "{answer:?}");
    assert!(answer.obstacles.is_empty(), "{answer:?}");
    // The same flow has the same instance, whatever is asked beside it.
    assert_eq!(why(&daemon, "tcp 10.0.0.1:1234 > 10.0.1.2:80 on quiet"), answer);
    assert_eq!(why(&daemon, "tcp 10.0.0.1:1234 > 10.0.1.2:81 on quiet").obstacles[0].reason.as_deref(), Some("no_rule"));
    // That of a flow that goes on is in the flow table, and so is its path.
    let seen = captured(&daemon);
    let answer = why(&daemon, &format!("{seen} on in"));
    let entry = answer.entry.expect("its packets flow");
    assert!(entry.holds && entry.path == answer.path && entry.path[0].starts_with("s."), "{entry:?}");
    // Too large for a frame.
    let large = why(&daemon, "udp 10.0.0.1:1 > 10.0.0.2:2 bytes 9000 on in");
    assert_eq!((large.outcome, large.obstacles[0].reason.as_deref()), (Fate::Dropped, Some("oversize")));
    let stats = daemon.stats();
    let web = |s: &sluice_api::model::Stats| s.rules.iter().find(|rule| rule.name == "web").unwrap().hits;
    assert_eq!((web(&stats), find_chain(&stats, "web").entry_packets, stats.status.flows), (0, 0, before.status.flows));
    assert!(stats.drops.values().all(|n| *n == 0) && stats.status.pools[0].assigned == 0, "{stats:#?}");

    for (request, word) in [
        (WhyRequest { packet: "00112".into(), ..WhyRequest::default() }, "no hexadecimal number"),
        (WhyRequest { packet: String::new(), ..WhyRequest::default() }, "two digits for each"),
        (WhyRequest { packet: "00".into(), port: Some("inn".into()), bytes: None }, "there is no port `inn`"),
        (WhyRequest { packet: "00".into(), ..WhyRequest::default() }, "comes in: in, quiet"),
    ] {
        let said = daemon.client().why(&request).unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
    }
    // Bytes that are no packet have an answer, too.
    let short = daemon.client().why(&WhyRequest { packet: "00".into(), port: Some("quiet".into()), bytes: None }).unwrap();
    assert!(short.outcome == Fate::Dropped && short.packet.contains("malformed"), "{short:?}");
    daemon.silence("rest", "in");
    daemon.wait_until_empty();
    daemon.stop();
}

/// A packet that comes in at port `in`, as hexadecimal digits.
fn captured(daemon: &Daemon) -> String {
    let output = daemon.sluice(&["capture", "--hop", "port:in", "--count", "1", "-w", "-"]).output().unwrap();
    let bytes = succeeded(output);
    let mut reader = pcap_file::pcapng::PcapNgReader::new(&bytes[..]).unwrap();
    while let Some(block) = reader.next_block() {
        if let pcap_file::pcapng::Block::EnhancedPacket(packet) = block.unwrap() {
            return packet.data.iter().map(|byte| format!("{byte:02x}")).collect();
        }
    }
    panic!("no packet was captured");
}
