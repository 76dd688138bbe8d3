//! Flows of a running chain: what is reported and logged of them is what was sent.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sluice_api::model::{FlowEndReason, FlowOrder, FlowReport, FlowsReply, FlowsRequest, TcpState};

use crate::pcap::{MICROS, Order, pcap};
use crate::skip::skip;
use crate::support::{Daemon, PATIENCE, chain, find_port, open_folder, port, service};

/// Source port, packets and bytes of each flow that is sent.
type Sent = BTreeMap<u16, (u64, u64)>;

/// Packets of 20 flows, in turn, and of a TCP connection that begins and ends.
fn packets() -> (Vec<Vec<u8>>, Sent) {
    let mut all = Vec::new();
    for round in 0..30 {
        for flow in (0..20).filter(|flow| round <= *flow) {
            let mut packet = Vec::new();
            let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
            let builder = builder.ipv4([10, 0, 0, 1], [192, 0, 2, 1], 64).udp(1000 + flow, 2000);
            builder.write(&mut packet, &vec![round as u8; 18 + usize::from(flow)]).unwrap();
            all.push((1000 + flow, packet));
        }
    }
    // SYN, ACK, FIN and ACK.
    for flags in [0x02, 0x10, 0x11] {
        let mut packet = Vec::new();
        let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        builder.ipv4([10, 0, 0, 1], [192, 0, 2, 1], 64).tcp(5000, 80, 1, 1).write(&mut packet, &[0; 6]).unwrap();
        packet[14 + 20 + 13] = flags;
        all.push((5000, packet));
    }
    let mut sent = Sent::new();
    for (source, packet) in &all {
        let counts = sent.entry(*source).or_default();
        *counts = (counts.0 + 1, counts.1 + packet.len() as u64);
    }
    (all.into_iter().map(|(_, packet)| packet).collect(), sent)
}

/// A chain of a bridge that gets all packets once, behind this section of the log.
fn body(folder: &Path, flow_log: &str) -> (String, Sent) {
    let source = folder.join("in.pcap");
    let (packets, sent) = packets();
    std::fs::write(&source, pcap(Order::Little, MICROS, 1, &packets)).unwrap();
    let body = format!("[flow_log]\n{flow_log}\n")
        + &port("in", "pcap", &format!("read = {source:?}\nrepeat = 1\noverload = \"wait\""))
        + &port("out", "sink", "")
        + &service("s", "sluice-nf-bridge", "")
        + &chain("c", "in", &["s"], "out", "");
    (body, sent)
}

fn counts<'a>(flows: impl IntoIterator<Item = &'a FlowReport>) -> Sent {
    let mut all = Sent::new();
    for flow in flows {
        let counts = all.entry(flow.src_port.unwrap()).or_default();
        *counts = (counts.0 + flow.packets, counts.1 + flow.bytes);
    }
    all
}

/// Waits until what the daemon says of flows fulfils `is`.
#[track_caller]
fn wait_for(daemon: &Daemon, what: &str, request: &FlowsRequest, is: impl Fn(&FlowsReply) -> bool) -> FlowsReply {
    let until = Instant::now() + PATIENCE;
    loop {
        let reply = daemon.client().flows(request).unwrap();
        if is(&reply) {
            return reply;
        }
        assert!(Instant::now() < until, "waited in vain until {what}:\n{reply:#?}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn flows_are_listed_and_logged_with_what_was_sent() {
    let files = open_folder();
    let log = files.path().join("flows.json");
    let (body, sent) = body(files.path(), &format!("file = {log:?}\nidle_ms = 3600000"));
    let mut daemon = Daemon::start("latency_sample = 1", &body);
    let all: u64 = sent.values().map(|(packets, _)| packets).sum();
    daemon.wait("all are sent", |s| find_port(s, "in").finished && find_port(s, "out").tx_packets == all);
    let request = FlowsRequest { order: FlowOrder::Bytes, ..FlowsRequest::default() };
    // The connection that has finished ends by itself.
    let reply = wait_for(&daemon, "the connection has ended", &request, |reply| reply.log.ended == 1);
    assert_eq!((counts(&reply.flows), reply.log.live, reply.log.lost), (sent.clone(), 20, 0));
    let most = reply.flows.iter().map(|flow| flow.bytes).max().unwrap();
    assert_eq!((reply.flows[0].src_port, reply.flows[0].bytes), (Some(1019), most));
    for flow in &reply.flows {
        assert_eq!((flow.src.as_str(), flow.dst.as_str(), flow.port.as_str()), ("10.0.0.1", "192.0.2.1", "in"));
        assert_eq!((flow.chain.as_deref(), &flow.nfs[..], flow.dropped_packets), (Some("c"), &["s.0".to_string()][..], 0));
        assert!(flow.first_ns <= flow.last_ns);
        let is_tcp = flow.src_port == Some(5000);
        assert_eq!(flow.tcp, is_tcp.then_some(TcpState::Finished));
        assert_eq!(flow.end, is_tcp.then_some(FlowEndReason::Finished));
    }
    assert!(reply.flows.iter().any(|flow| flow.latency_ns.is_some()), "{reply:#?}");
    let table = daemon.says(&["flows", "--chain", "c", "--top", "packets", "-n", "3"]);
    assert!(table.lines().count() == 4 && table.contains("10.0.0.1:1019"), "{table}");
    let refused = daemon.client().flows(&FlowsRequest { chain: Some("d".into()), ..FlowsRequest::default() }).unwrap_err();
    assert!(refused.to_string().contains("there is no chain `d`"), "{refused}");
    daemon.stop();
    let logged: Vec<FlowReport> =
        std::fs::read_to_string(&log).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(counts(&logged), sent);
    assert_eq!(logged.iter().filter(|flow| flow.end == Some(FlowEndReason::Stopped)).count(), 20);
}

#[test]
fn flows_are_metered_on_demand_and_dropped_packets_have_their_reason() {
    let body = port("stray", "gen", "rate = 5000\nflows = 3")
        + &port("in", "gen", "rate = 5000\nflows = 4\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("s", "sluice-nf-bridge", "")
        + &chain("c", "in", &["s"], "out", "");
    let daemon = Daemon::start("", &body);
    let dropped = FlowsRequest { dropped: Some(true), ..FlowsRequest::default() };
    let reply = wait_for(&daemon, "all are seen", &dropped, |reply| reply.log.live == 7 && reply.flows.len() == 3);
    for flow in &reply.flows {
        assert_eq!((flow.port.as_str(), flow.chain.as_deref(), flow.drop_reason.as_deref()), ("stray", None, Some("no_rule")));
        assert!(flow.dropped_packets > 0 && flow.packets > 0, "{flow:?}");
    }
    let others = FlowsRequest { dropped: Some(false), ..FlowsRequest::default() };
    let reply = wait_for(&daemon, "the others are seen", &others, |reply| reply.flows.len() == 4);
    assert!(reply.flows.iter().all(|flow| flow.chain.as_deref() == Some("c") && flow.nfs == ["s.0"]), "{reply:#?}");
    daemon.stop();
}

/// The numbers of the flows in a file of the log.
fn numbers(file: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // The last line may be half written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str::<FlowReport>(line).unwrap().number.unwrap()).collect()
}

#[test]
fn a_log_changes_while_flows_are_metered_and_loses_none() {
    let files = open_folder();
    let [one, two] = ["one.json", "two.json"].map(|name| files.path().join(name));
    let body = port("in", "gen", "rate = 2000\nflows = 4\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &chain("c", "in", &[], "out", "");
    let mut daemon = Daemon::start("", &body);
    let set = |daemon: &Daemon, keys: &[&str]| daemon.says(&[&["set", "flow_log"], keys].concat());
    // Nothing is metered before. Each flow is logged, and begins anew, ten times a second.
    let said = set(&daemon, &[&format!("file={}", one.display()), "active_ms=100"]);
    assert!(said.contains("~ section flow_log"), "{said}");
    daemon.wait("flows are in the first file", |_| numbers(&one).len() >= 8);
    let to_two = format!("file={}", two.display());
    set(&daemon, &[&to_two]);
    daemon.wait("flows are in the second file", |_| numbers(&two).len() >= 8);
    // The same file with other limits is written on.
    set(&daemon, &["files=2"]);
    let before = numbers(&two).len();
    daemon.wait("it is written on", |_| numbers(&two).len() >= before + 8);
    let refused = daemon.sluice(&["set", "flow_log", "file=/proc/none/flows.json"]).output().unwrap();
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && words.contains("flow_log.file names a file"), "{words}");
    let memory = daemon.sluice(&["set", "flow_log", "flows=4096"]).output().unwrap();
    let words = String::from_utf8_lossy(&memory.stderr);
    assert!(!memory.status.success() && words.contains("flow_log.flows cannot be changed on a running daemon"), "{words}");
    let before = numbers(&two).len();
    daemon.wait("what was refused has changed nothing", |_| numbers(&two).len() >= before + 8);
    // Without a file flows are metered on until nothing has asked for long.
    set(&daemon, &["file="]);
    daemon.wait("no log is reported", |s| s.status.flow_log.is_none());
    set(&daemon, &[&format!("file={}", one.display())]);
    let before = numbers(&one).len();
    daemon.wait("it is logged again", |s| s.status.flow_log.is_some() && numbers(&one).len() > before);
    daemon.stop();
    let (first, second) = (numbers(&one), numbers(&two));
    let back = first.windows(2).position(|pair| pair[1] != pair[0] + 1).expect("the numbers of the second file") + 1;
    let mut logged = [&first[..back], &second[..]].concat();
    assert_eq!(logged, (1..=logged.len() as u64).collect::<Vec<u64>>());
    logged.extend(&first[back..]);
    assert!(logged.is_sorted(), "{logged:?}");
}

#[test]
fn a_log_that_cannot_be_written_is_refused_before_anything_starts() {
    let files = open_folder();
    let (body, _) = body(files.path(), "file = \"/proc/none/flows.json\"");
    let output = crate::support::refusal(files.path(), &(crate::support::head(files.path(), "") + &body));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("cannot write the log of flows to /proc/none/flows.json"), "{said}");
}

/// A collector that is killed with its test.
struct Collector(Child);

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Collector {
    /// Starts one that writes into a folder, at a port that is free; none where it is not
    /// installed.
    fn start(folder: &Path) -> Option<(Self, u16)> {
        let until = Instant::now() + PATIENCE;
        loop {
            // Another program may take it before nfcapd does, which ends then.
            let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut command = Command::new("nfcapd");
            command.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-t", "3600", "-w"]).arg(folder);
            command.arg("-P").arg(folder.with_extension("pid"));
            let mut collector = Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?);
            while collector.0.try_wait().unwrap().is_none() {
                if collector.has_read_all(port) {
                    return Some((collector, port));
                }
                assert!(Instant::now() < until, "nfcapd does not listen");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(Instant::now() < until, "nfcapd ends");
        }
    }

    /// Whether it has a UDP socket at a port of 127.0.0.1, and no packets to read there.
    fn has_read_all(&self, port: u16) -> bool {
        let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
        let own = format!("0100007F:{port:04X}");
        // Local address, remote address, state, queues to send and to receive; the tenth is the
        // number of the socket.
        let of_port = sockets
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|words| words.get(1) == Some(&own.as_str()));
        let Some([_, _, _, _, queues, _, _, _, _, number, ..]) = of_port.as_deref() else { return false };
        let socket = format!("socket:[{number}]");
        let mut files = std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).into_iter().flatten().flatten();
        queues.ends_with(":00000000") && files.any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&socket)))
    }
}

#[test]
fn a_real_collector_takes_every_flow() {
    let files = open_folder();
    let folder = files.path().join("collected");
    std::fs::create_dir(&folder).unwrap();
    let Some((mut collector, port)) = Collector::start(&folder) else { return skip("nfdump is not installed") };
    let (body, sent) = body(files.path(), &format!("collector = \"127.0.0.1:{port}\"\nidle_ms = 100"));
    let daemon = Daemon::start("", &body);
    wait_for(&daemon, "all flows have ended", &FlowsRequest::default(), |reply| {
        reply.log.live == 0 && counts(&reply.flows) == sent
    });
    let reply = daemon.client().flows(&FlowsRequest::default()).unwrap();
    assert_eq!((reply.log.unsent, reply.log.lost), (0, 0));
    daemon.stop();
    let until = Instant::now() + PATIENCE;
    while !collector.has_read_all(port) {
        assert!(Instant::now() < until, "nfcapd does not read");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&collector.0), Signal::TERM).unwrap();
    collector.0.wait().unwrap();
    let mut command = Command::new("nfdump");
    let output = command.args(["-q", "-N", "-o", "fmt:%sa,%da,%sp,%dp,%pkt,%byt", "-R"]).arg(&folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut collected = Sent::new();
    for line in text.lines().filter(|line| line.contains(',')) {
        let words: Vec<&str> = line.split(',').map(str::trim).collect();
        assert_eq!((words[0], words[1]), ("10.0.0.1", "192.0.2.1"), "{line}");
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let counts = collected.entry(number(2) as u16).or_default();
        *counts = (counts.0 + number(4), counts.1 + number(5));
    }
    assert_eq!(collected, sent, "{text}");
}
