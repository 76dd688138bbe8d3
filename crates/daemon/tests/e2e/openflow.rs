//! SDN controllers that steer flows into chains.
//! One is os-ken, for TCP between namespaces; the tests play others, which do all they can wrong.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice_api::model::{Openflow, Stats, TraceRequest, TracedPacket};
use sluice_openflow::instruction::{Instruction, Output};
use sluice_openflow::message::{FlowMod, FlowModCommand as Change, HEADER, Header, Message, PacketOut, Reason, Why, flow_flag};
use sluice_openflow::multipart::{FlowRequest, MultipartRequest, Reply};
use sluice_openflow::oxm::{FieldId, Match};
use sluice_openflow::{NO_BUFFER, WHOLE_PACKET, port as ports};

use crate::foreign::{Site, can};
use crate::pools;
use crate::skip::skip;
use crate::support::{Daemon, PATIENCE, chain, find_chain, port, service};

/// A controller that the test plays.
struct Controller {
    listener: TcpListener,
}

/// A connection of the daemon to it.
struct Talk {
    stream: TcpStream,
    inbox: Vec<u8>,
    heard: VecDeque<(u32, Message)>,
    xid: u32,
}

impl Controller {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener }
    }

    /// The configuration section that names it.
    fn section(&self, keys: &str) -> String {
        let address = self.listener.local_addr().unwrap();
        // A slow test must not look like a dead controller.
        let patience = if keys.contains("echo_ms") { "" } else { "echo_ms = 100000\ndead_ms = 200000\n" };
        format!("[openflow]\ncontroller = \"tcp:{address}\"\nretry_ms = 20\nretry_max_ms = 40\n{patience}{keys}\n")
    }

    #[track_caller]
    fn accept(&self) -> Talk {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).unwrap();
                    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                    return Talk { stream, inbox: Vec::new(), heard: VecDeque::new(), xid: 100 };
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            assert!(Instant::now() < until, "nobody connects");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The next connection, after its greeting; skips those that the daemon gave up.
    #[track_caller]
    fn greet(&self) -> Talk {
        loop {
            let mut talk = self.accept();
            let mut greeting = Vec::new();
            Message::Hello(Some(vec![1 << 4])).encode(1, &mut greeting);
            Message::EchoRequest(Vec::new()).encode(2, &mut greeting);
            if talk.stream.write_all(&greeting).is_err() {
                continue;
            }
            // Its hello may be old; an echo reply shows that it is there.
            while talk.read() {
                if let Some((_, Message::EchoReply(_))) = talk.heard.back() {
                    let (_, first) = talk.heard.pop_front().expect("there is one");
                    assert!(matches!(first, Message::Hello(Some(versions)) if versions[0] & 16 != 0));
                    talk.heard.clear();
                    return talk;
                }
            }
        }
    }
}

impl Talk {
    fn say(&mut self, message: &Message) -> u32 {
        self.xid += 1;
        let mut bytes = Vec::new();
        message.encode(self.xid, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
        self.xid
    }

    /// Reads what has come; false if the connection is closed.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(n) => self.inbox.extend(&bytes[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return false,
        }
        while let Some((head, _)) = self.inbox.split_first_chunk::<HEADER>() {
            let header = Header::decode(head);
            if self.inbox.len() < header.length.into() {
                break;
            }
            let message: Vec<u8> = self.inbox.drain(..usize::from(header.length)).collect();
            assert_eq!(header.version, 4);
            self.heard.push_back((header.xid, Message::decode(header.kind, &message[HEADER..]).unwrap()));
        }
        true
    }

    /// Waits for a message; keeps others for later.
    #[track_caller]
    fn hear(&mut self, what: &str, is: impl Fn(&Message) -> bool) -> (u32, Message) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.heard.iter().position(|(_, message)| is(message)) {
                return self.heard.remove(at).expect("it was just found");
            }
            assert!(self.read(), "the connection ended before {what}");
            assert!(Instant::now() < until, "no {what}");
        }
    }

    /// Waits until the daemon ends the connection; returns what it sent until then.
    #[track_caller]
    fn hear_end(&mut self) -> Vec<Message> {
        let until = Instant::now() + PATIENCE;
        while self.read() {
            assert!(Instant::now() < until, "the connection stays");
        }
        self.heard.drain(..).map(|(_, m)| m).collect()
    }

    /// Waits until everything sent before is carried out.
    #[track_caller]
    fn barrier(&mut self) {
        let asked = self.say(&Message::BarrierRequest);
        let (answered, _) = self.hear("answer to a barrier", |m| matches!(m, Message::BarrierReply));
        assert_eq!(answered, asked);
    }

    /// The number of a chain's port.
    #[track_caller]
    fn port_of(&mut self, name: &str) -> u32 {
        self.say(&Message::MultipartRequest(MultipartRequest::PortDescs));
        let (_, reply) = self.hear("ports", |m| matches!(m, Message::MultipartReply(Reply::PortDescs(_), _)));
        let Message::MultipartReply(Reply::PortDescs(all), _) = reply else { unreachable!() };
        all.iter().find(|p| p.name == name).unwrap_or_else(|| panic!("no port {name}: {all:?}")).number
    }

    fn add(&mut self, priority: u16, fields: Match, port: u32) -> u32 {
        let instructions = vec![Instruction::Apply(vec![Output { port, max_len: WHOLE_PACKET }])];
        self.say(&Message::FlowMod(FlowMod { priority, instructions, ..FlowMod::new(Change::Add, fields) }))
    }

    /// Adds an entry that sends the misses of all others to the controller.
    fn ask_for_misses(&mut self) {
        self.add(0, Match::default(), ports::CONTROLLER);
        self.barrier();
    }

    #[track_caller]
    fn packet_in(&mut self) -> sluice_openflow::message::PacketIn {
        match self.hear("packet-in", |m| matches!(m, Message::PacketIn(_))) {
            (_, Message::PacketIn(packet)) => packet,
            _ => unreachable!(),
        }
    }
}

/// UDP traffic from port `in` and two chains to a sink; the rules know one of them.
fn traffic(rate: u32, flows: u32, keys: &str) -> String {
    port("in", "gen", &format!("rate = {rate}.0\nflows = {flows}\nprotocol = \"udp\"\n{keys}"))
        + &port("out", "sink", "")
        + &service("bridge", "sluice-nf-bridge", "")
        + &chain("local", "in", &["bridge"], "out", "")
        + "[[chain]]\nname = \"sdn\"\nservices = [\"bridge\"]\negress = \"out\"\n"
}

fn status(stats: &Stats) -> &Openflow {
    stats.status.openflow.as_ref().expect("a controller is configured")
}

fn left(stats: &Stats, chain: &str) -> u64 {
    find_chain(stats, chain).exit_packets
}

/// Waits until more packets have come through a chain.
#[track_caller]
fn goes_on(daemon: &mut Daemon, chain: &str) {
    let before = left(&daemon.stats(), chain);
    daemon.wait(&format!("more comes through {chain}"), |s| left(s, chain) > before + 10);
}

/// Waits until `what` is logged and no controller is there; checks that packets flow.
#[track_caller]
fn says(daemon: &mut Daemon, what: &str) {
    let log = |daemon: &Daemon| daemon.log();
    let until = Instant::now() + PATIENCE;
    while !log(daemon).contains(what) {
        assert!(Instant::now() < until, "it does not say {what}:\n{}", log(daemon));
        std::thread::sleep(Duration::from_millis(10));
    }
    // It is logged a moment before it is reported.
    daemon.wait("it is reported", |s| !status(s).connected && status(s).problem.is_some());
    goes_on(daemon, "local");
}

fn udp() -> Match {
    Match::exact(&[(FieldId::InPort, 1), (FieldId::EthType, 0x800), (FieldId::IpProto, 17)]).unwrap()
}

#[test]
fn entries_lead_into_chains_and_the_rules_do_the_rest() {
    let controller = Controller::new();
    let mut daemon = Daemon::start("", &(controller.section("") + &traffic(2000, 4, "")));
    let mut talk = controller.greet();
    talk.say(&Message::FeaturesRequest);
    let (_, features) = talk.hear("features", |m| matches!(m, Message::FeaturesReply(_)));
    assert!(matches!(features, Message::FeaturesReply(f) if f.datapath_id == 1 && f.tables == 1 && f.buffers == 0));
    let stats = daemon.wait("it is connected", |s| status(s).connected);
    assert_eq!((status(&stats).connections, &status(&stats).problem), (1, &None));
    let sdn = talk.port_of("sdn");
    assert_eq!((sdn, talk.port_of("in"), talk.port_of("local")), (65_537, 1, 65_536));
    goes_on(&mut daemon, "local");
    assert_eq!(left(&daemon.stats(), "sdn"), 0);
    // Packets of flows go to the controller, and meanwhile the rules apply.
    talk.ask_for_misses();
    let packet = talk.packet_in();
    assert_eq!((packet.why, packet.buffer_id), (Why::NoMatch, NO_BUFFER));
    assert_eq!(packet.fields, Match::exact(&[(FieldId::InPort, 1)]).unwrap());
    assert_eq!(packet.data.len(), usize::from(packet.total_len));
    goes_on(&mut daemon, "local");
    // One flow of four, by all its fields.
    let at = |from: usize, n: usize| packet.data[from..from + n].iter().fold(0u128, |sum, b| sum << 8 | u128::from(*b));
    let fields = [
        (FieldId::InPort, 1),
        (FieldId::EthType, 0x800),
        (FieldId::IpProto, 17),
        (FieldId::Ipv4Src, at(26, 4)),
        (FieldId::Ipv4Dst, at(30, 4)),
        (FieldId::UdpSrc, at(34, 2)),
        (FieldId::UdpDst, at(36, 2)),
    ];
    talk.add(100, Match::exact(&fields).unwrap(), sdn);
    talk.barrier();
    goes_on(&mut daemon, "sdn");
    goes_on(&mut daemon, "local");
    let counted = |talk: &mut Talk| {
        talk.say(&Message::MultipartRequest(MultipartRequest::Flows(FlowRequest { out_port: sdn, ..FlowRequest::all() })));
        let (_, reply) = talk.hear("flow stats", |m| matches!(m, Message::MultipartReply(Reply::Flows(_), _)));
        let Message::MultipartReply(Reply::Flows(all), false) = reply else { panic!("{reply:?}") };
        assert_eq!(all.len(), 1);
        (all[0].packets, all[0].bytes)
    };
    let (packets, bytes) = counted(&mut talk);
    // Packets and bytes are read one after the other, while packets come.
    let each = u64::from(packet.total_len);
    assert!(packets > 10 && bytes.abs_diff(packets * each) <= 64 * each, "{packets} packets, {bytes} bytes");
    // All flows, by an entry of higher priority with a MAC address, which is in no flow key.
    let mut wide = udp().fields().to_vec();
    wide.push(sluice_openflow::oxm::Field { id: FieldId::EthDst, value: at(0, 6), mask: FieldId::EthDst.all() });
    talk.add(200, Match::new(wide.clone()).unwrap(), sdn);
    talk.barrier();
    let before = daemon.stats();
    daemon.wait("nothing is left to the rules", |s| left(s, "sdn") > left(&before, "sdn") + 100);
    let before = left(&daemon.stats(), "local");
    goes_on(&mut daemon, "sdn");
    assert_eq!(left(&daemon.stats(), "local"), before);
    // An entry without actions forbids; its deletion is reported.
    let reported = FlowMod { flags: flow_flag::SEND_FLOW_REMOVED, ..FlowMod::new(Change::Add, udp()) };
    talk.say(&Message::FlowMod(FlowMod { priority: 300, ..reported }));
    talk.barrier();
    daemon.wait("entries forbid", |s| s.drops.get("forbidden").is_some_and(|n| *n > 10));
    let trace = daemon.client().trace(&TraceRequest { count: 3, timeout_ms: 20_000, ..TraceRequest::default() }).unwrap();
    let is_forbidden = |packet: &TracedPacket| (packet.chain.as_ref(), packet.outcome.as_str()) == (None, "dropped: forbidden");
    assert!(trace.packets.len() == 3 && trace.packets.iter().all(is_forbidden), "{trace:?}");
    talk.say(&Message::FlowMod(FlowMod::new(Change::Delete, udp())));
    let (_, removed) = talk.hear("news of a removed entry", |m| matches!(m, Message::FlowRemoved(_)));
    assert!(matches!(removed, Message::FlowRemoved(r) if r.reason == Reason::Delete && r.packets > 10 && r.priority == 300));
    talk.barrier();
    goes_on(&mut daemon, "local");
    // Wrong requests are refused without effect.
    for wrong in [1, 70_000, ports::IN_PORT] {
        talk.add(5, udp(), wrong);
        let (_, refused) = talk.hear("an error", |m| matches!(m, Message::Error(..)));
        assert!(matches!(refused, Message::Error(fault, _) if fault == sluice_openflow::fault::Fault::OUT_PORT));
    }
    // A packet-out goes through the chain.
    let before = left(&daemon.stats(), "sdn");
    let actions = vec![Output { port: sdn, max_len: 0 }];
    talk.say(&Message::PacketOut(PacketOut { buffer_id: NO_BUFFER, in_port: 1, actions, data: packet.data }));
    daemon.wait("the controller's packet has passed", |s| left(s, "sdn") > before);
    let stats = daemon.stats();
    let seen = status(&stats);
    assert!(seen.packet_ins >= 1 && seen.flow_mods >= 8 && seen.errors >= 3 && seen.entries == 1, "{seen:?}");
    daemon.stop();
}

#[test]
fn a_controller_that_is_wrong_or_away_holds_up_nobody() {
    let controller = Controller::new();
    let mut daemon = Daemon::start("", &(controller.section("") + &traffic(2000, 4, "")));
    // Not OpenFlow at all.
    let mut talk = controller.accept();
    talk.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    talk.hear_end();
    says(&mut daemon, "not OpenFlow");
    // An older version.
    let mut talk = controller.accept();
    talk.stream.write_all(&[1, 0, 0, 8, 0, 0, 0, 1]).unwrap();
    assert!(talk.hear_end().iter().any(|m| matches!(m, Message::Error(fault, _) if fault.kind == 0)));
    says(&mut daemon, "does not speak OpenFlow 1.3");
    // A hang-up in the middle of a flow-mod.
    let mut talk = controller.greet();
    let sdn = talk.port_of("sdn");
    talk.stream.write_all(&[4, 14, 0, 200, 0, 0, 0, 1, 0, 0]).unwrap();
    drop(talk);
    goes_on(&mut daemon, "local");
    // Damaged messages are refused one by one.
    let mut talk = controller.greet();
    talk.stream.write_all(&[4, 14, 0, 12, 0, 0, 0, 9, 1, 2, 3, 4, 4, 99, 0, 8, 0, 0, 0, 10]).unwrap();
    for xid in [9, 10] {
        assert_eq!(talk.hear("an error", |m| matches!(m, Message::Error(..))).0, xid);
    }
    // Its entries stay when it goes, and the next controller finds them.
    talk.add(9, udp(), sdn);
    talk.barrier();
    goes_on(&mut daemon, "sdn");
    drop(talk);
    daemon.wait("it is away", |s| !status(s).connected);
    goes_on(&mut daemon, "sdn");
    let mut talk = controller.greet();
    talk.say(&Message::MultipartRequest(MultipartRequest::Flows(FlowRequest::all())));
    let (_, reply) = talk.hear("flow stats", |m| matches!(m, Message::MultipartReply(Reply::Flows(_), _)));
    assert!(matches!(reply, Message::MultipartReply(Reply::Flows(all), false) if all.len() == 1 && all[0].packets > 10));
    // Without entries the rules apply, also when packet-ins stay unanswered.
    talk.say(&Message::FlowMod(FlowMod::new(Change::Delete, Match::default())));
    talk.ask_for_misses();
    talk.packet_in();
    goes_on(&mut daemon, "local");
    daemon.stop();
}

#[test]
fn a_controller_that_floods_barriers_is_not_listened_to_without_bound() {
    let controller = Controller::new();
    let mut daemon = Daemon::start("", &(controller.section("") + &traffic(2000, 4, "")));
    let mut talk = controller.greet();
    let mut barriers = Vec::new();
    (0..8192).for_each(|xid| Message::BarrierRequest.encode(xid, &mut barriers));
    // Sockets and a daemon that reads on take at most MOST bytes, and none while answers come.
    const MOST: usize = 64 << 20;
    const ANSWERS: usize = 300;
    talk.stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    talk.stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let (mut written, mut answered, mut from) = (0, 0, 0);
    while answered < ANSWERS {
        match talk.stream.write(&barriers[written % barriers.len()..]) {
            Ok(n) => {
                written += n;
                if written - from > 1 << 20 {
                    (answered, from) = (0, written);
                }
            }
            Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}"),
        }
        assert!(written < MOST, "it takes all that comes");
        assert!(talk.read(), "the connection ended");
        answered += talk.heard.drain(..).filter(|(_, message)| matches!(message, Message::BarrierReply)).count();
    }
    daemon.stats();
    drop(talk);
    daemon.stop();
}

#[test]
fn a_controller_that_falls_silent_is_given_up() {
    let controller = Controller::new();
    let mut daemon = Daemon::start("", &(controller.section("echo_ms = 100\ndead_ms = 2000") + &traffic(2000, 4, "")));
    // One that sends nothing, then one that stops in the middle of a message.
    let mut talk = controller.accept();
    talk.hear_end();
    says(&mut daemon, "silent");
    let mut talk = controller.greet();
    talk.stream.write_all(&[4, 14, 0, 200, 0, 0, 0, 1, 0, 0]).unwrap();
    assert!(talk.hear_end().iter().any(|m| matches!(m, Message::EchoRequest(_))), "an echo is asked for");
    goes_on(&mut daemon, "local");
    daemon.stop();
}

#[test]
fn packets_that_find_no_place_to_wait_are_shown_with_that() {
    let controller = Controller::new();
    let body = controller.section("miss = \"wait\"\nwait_ms = 60000\nheld = 4") + &traffic(2000, 4, "");
    let daemon = Daemon::start("", &body);
    let mut talk = controller.greet();
    talk.ask_for_misses();
    let row = crate::drops::ask(&daemon, "unanswered");
    let sample = &row["samples"][0];
    assert!(sample["headers"].as_str().unwrap().starts_with("udp 10.0.0.") && sample["port"] == "in", "{row}");
    drop(talk);
    daemon.stop();
}

#[test]
fn packets_wait_for_an_answer_and_not_for_ever() {
    let controller = Controller::new();
    let keys = "miss = \"wait\"\nwait_ms = 60000\nheld = 1024";
    let body = controller.section(keys) + &traffic(20, 1, "");
    let mut daemon = Daemon::start("", &body);
    let mut talk = controller.greet();
    let sdn = talk.port_of("sdn");
    talk.ask_for_misses();
    // Packets now wait, and there is one packet-in for all of them.
    let packet = talk.packet_in();
    assert_ne!(packet.buffer_id, NO_BUFFER);
    let stats = daemon.wait("packets wait", |s| status(s).held > 3 && s.status.frames.in_use == 0);
    let before = left(&stats, "local");
    assert_eq!((status(&stats).packet_ins, left(&stats, "sdn")), (1, 0));
    let add = FlowMod {
        buffer_id: packet.buffer_id,
        instructions: vec![Instruction::Apply(vec![Output { port: sdn, max_len: 0 }])],
        ..FlowMod::new(Change::Add, udp())
    };
    talk.say(&Message::FlowMod(add));
    talk.barrier();
    let held = status(&stats).held;
    let stats = daemon.wait("all have passed, and more", |s| left(s, "sdn") > held + 3);
    assert_eq!((status(&stats).held, left(&stats, "local")), (0, before));
    assert_eq!(stats.drops.get("unanswered"), Some(&0), "{:?}", stats.drops);
    // The buffer of a packet that no longer waits is unknown.
    talk.say(&Message::PacketOut(PacketOut { buffer_id: packet.buffer_id, in_port: 1, actions: vec![], data: vec![] }));
    let (_, refused) = talk.hear("an error", |m| matches!(m, Message::Error(..)));
    assert!(matches!(refused, Message::Error(fault, _) if fault == sluice_openflow::fault::Fault::BUFFER_UNKNOWN));
    daemon.stop();
}

/// A generator, and a chain for the controller's packets with an NF for each flow.
fn pooled(folder: &Path, generator: &str) -> String {
    port("in", "gen", &format!("protocol = \"udp\"\n{generator}"))
        + &port("out", "sink", "")
        + &pools::ids("ids", folder, "", "min = 8\nmax = 8\nqueue = 64")
        + &service("bridge", "sluice-nf-bridge", "")
        + &chain("local", "in", &["bridge"], "out", "")
        + "[[chain]]\nname = \"sdn\"\nservices = [\"bridge\", \"ids\"]\negress = \"out\"\n"
}

#[test]
fn a_controller_sends_flows_to_nfs_of_their_own() {
    let (controller, folder) = (Controller::new(), crate::support::open_folder());
    let mut daemon = Daemon::start("", &(controller.section("") + &pooled(folder.path(), "rate = 2000.0\nflows = 6")));
    let mut talk = controller.greet();
    let sdn = talk.port_of("sdn");
    talk.ask_for_misses();
    let packet = talk.packet_in();
    goes_on(&mut daemon, "local");
    assert_eq!(pools::pool(&daemon.stats(), "ids").activations, 0);
    talk.add(100, udp(), sdn);
    talk.barrier();
    goes_on(&mut daemon, "sdn");
    daemon.wait("each flow has its NF", |s| pools::pool(s, "ids").assigned == 6);
    // A packet-out meets the NF of its flow.
    let actions = vec![Output { port: sdn, max_len: 0 }];
    let before = status(&daemon.stats()).flow_mods;
    for _ in 0..20 {
        let data = packet.data.clone();
        talk.say(&Message::PacketOut(PacketOut { buffer_id: NO_BUFFER, in_port: 1, actions: actions.clone(), data }));
    }
    talk.barrier();
    goes_on(&mut daemon, "sdn");
    let stats = daemon.stats();
    assert_eq!((status(&stats).flow_mods, pools::pool(&stats, "ids").activations), (before, 6));
    let seen = pools::seen(folder.path(), "ids");
    let begun = pools::lines(&seen, "begin");
    assert!(pools::lines(&seen, "mixed").is_empty(), "{seen:?}");
    assert_eq!((pools::distinct(&begun, 1).len(), pools::distinct(&begun, 3).len(), begun.len()), (6, 6, 6), "{seen:?}");
    // When forbidden, the flows end after a while.
    talk.say(&Message::FlowMod(FlowMod { priority: 200, ..FlowMod::new(Change::Add, udp()) }));
    talk.barrier();
    pools::end_flows_soon(&daemon, "ids");
    daemon.wait("their NFs are idle", |s| pools::pool(s, "ids").idle == 8 && pools::pool(s, "ids").ended == 6);
    daemon.stop();
}

#[test]
fn packets_that_waited_for_an_answer_reach_nfs_of_their_own() {
    let (controller, folder) = (Controller::new(), crate::support::open_folder());
    let keys = "miss = \"wait\"\nwait_ms = 60000\nheld = 1024";
    let body = controller.section(keys) + &pooled(folder.path(), "rate = 200.0\nflows = 4\ncount = 400\noverload = \"wait\"");
    let mut daemon = Daemon::start("", &body);
    let mut talk = controller.greet();
    let sdn = talk.port_of("sdn");
    talk.ask_for_misses();
    let stats = daemon.wait("packets of all flows wait, and none is on the rules' way", |s| {
        let is_empty = find_chain(s, "local").entry_packets == left(s, "local");
        status(s).held > 8 && status(s).packet_ins >= 4 && is_empty
    });
    let before = left(&stats, "local");
    talk.add(100, udp(), sdn);
    talk.barrier();
    daemon.wait("all have passed", |s| left(s, "sdn") + before == 400);
    let seen = pools::seen(folder.path(), "ids");
    let begun = pools::lines(&seen, "begin");
    assert!(pools::lines(&seen, "mixed").is_empty(), "{seen:?}");
    assert_eq!((pools::distinct(&begun, 1).len(), pools::distinct(&begun, 3).len()), (4, 4), "{seen:?}");
    assert_eq!(daemon.stats().drops.values().sum::<u64>(), 0);
    daemon.stop();
}

#[test]
fn packets_that_wait_in_vain_go_where_the_rules_say() {
    let controller = Controller::new();
    let body = controller.section("miss = \"wait\"\nwait_ms = 50\nheld = 64") + &traffic(200, 1, "");
    let mut daemon = Daemon::start("", &body);
    let mut talk = controller.greet();
    talk.ask_for_misses();
    talk.packet_in();
    // It never answers.
    goes_on(&mut daemon, "local");
    // The same when it is gone.
    drop(talk);
    daemon.wait("it is away", |s| !status(s).connected);
    goes_on(&mut daemon, "local");
    daemon.stop();
}

#[test]
fn without_a_controller_a_secure_host_lets_nothing_through() {
    let controller = Controller::new();
    let mut daemon = Daemon::start("", &(controller.section("fail = \"secure\"") + &traffic(2000, 4, "")));
    let mut talk = controller.greet();
    goes_on(&mut daemon, "local");
    talk.barrier();
    drop(talk);
    daemon.wait("it is away", |s| !status(s).connected);
    let dropped = |s: &Stats| s.drops.get("forbidden").copied().unwrap_or(0);
    let before = dropped(&daemon.stats());
    daemon.wait("all is dropped", |s| dropped(s) > before + 10);
    daemon.stop();
}

/// A Python environment with os-ken, made if needed; without, None (in CI an error).
fn os_ken() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts/os-ken")).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        skip(format_args!("os-ken cannot be had: {said}"));
        return None;
    }
    Some(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()))
}

/// An os-ken process with the controller in controller.py.
struct OsKen {
    child: Child,
    log: PathBuf,
}

impl OsKen {
    fn start(environment: &Path, port: u16, folder: &Path) -> Self {
        let log = folder.join("controller.json");
        let said = std::fs::File::create(folder.join("controller.log")).unwrap();
        let app = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/controller.py");
        let child = Command::new(environment.join("bin/python"))
            .arg(app)
            .args(["--ofp-listen-host", "127.0.0.1", "--ofp-tcp-listen-port", &port.to_string()])
            .env("CONTROLLER_LOG", &log)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(said.try_clone().unwrap())
            .stderr(said)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// What it has logged so far.
    fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    #[track_caller]
    fn wait(&self, what: &str, is: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            let events = self.events();
            if is(&events) {
                return events;
            }
            if Instant::now() > until {
                let said = std::fs::read_to_string(self.log.with_extension("log")).unwrap_or_default();
                panic!("waited in vain until {what}: {events:#?}\n{said}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for OsKen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fetches the server's body with curl within `patience` seconds; false on failure.
fn fetch(site: &Site, folder: &Path, patience: u32) -> bool {
    let target = folder.join("body");
    let _ = std::fs::remove_file(&target);
    // After a lookup without an answer, the client's kernel reports no route for a moment.
    let retries = if patience > 1 { "20" } else { "0" };
    let patience = patience.to_string();
    let status = site.in_client(|| {
        Command::new("curl")
            .args(["-sS", "--retry", retries, "--retry-delay", "1", "--retry-all-errors", "--max-time", &patience, "-o"])
            .arg(&target)
            .arg("http://10.0.1.2:8080/")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status()
    });
    status.unwrap().success() && std::fs::read(&target).unwrap() == *site.body()
}

#[test]
fn os_ken_gives_each_tcp_connection_a_chain() {
    if !can(&["ip", "curl", "python3"]) {
        return;
    }
    let Some(environment) = os_ken() else { return };
    let mut site = Site::new(None);
    site.speak_http();
    site.serve(&[8080]);
    let folder = crate::support::open_folder();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // No rule leads anywhere: without the controller nothing passes.
    let chains = "[[chain]]\nname = \"there\"\nservices = [\"bridge\"]\negress = \"s\"\n\
                  [[chain]]\nname = \"back\"\nservices = [\"bridge\"]\negress = \"c\"\n";
    let body = format!(
        "[openflow]\ncontroller = \"tcp:{address}\"\ndatapath_id = 66\nmiss = \"drop\"\nfail = \"secure\"\nretry_ms = 50\n\
         retry_max_ms = 100\n"
    ) + &site.ports()
        + &service("bridge", "sluice-nf-bridge", "")
        + chains;
    let mut daemon = Daemon::start("", &body);
    assert!(!fetch(&site, folder.path(), 1), "without a controller nothing passes");
    let is = |what: &'static str| move |v: &&Value| v["what"] == what;
    let controller = OsKen::start(&environment, address.port(), folder.path());
    let events = controller.wait("it is ready", |all| all.iter().any(|v| is("ready")(&v)));
    assert!(events.iter().any(|v| v["what"] == "features" && v["datapath_id"] == 66 && v["tables"] == 1), "{events:#?}");
    assert!(events.iter().any(|v| v["what"] == "desc" && v["manufacturer"] == "Sluice"), "{events:#?}");
    daemon.wait("it is connected", |s| status(s).connected);
    // Two connections, each with entries of its own in both directions.
    for _ in 0..2 {
        assert!(fetch(&site, folder.path(), 30), "{:#?}\n{:#?}\n{}", controller.events(), daemon.stats(), daemon.log());
    }
    let events = controller.events();
    let flows = |port: &str| {
        let all = events.iter().filter(is("flow")).filter(|v| v[port] == 8080);
        let other = if port == "dst_port" { "src_port" } else { "dst_port" };
        all.map(|v| v[other].as_u64().unwrap()).collect::<std::collections::BTreeSet<_>>().len()
    };
    // A packet of the failed connection may have waited for an address in the client.
    assert!(flows("dst_port") >= 2 && flows("src_port") >= 2, "{events:#?}");
    let stats = daemon.stats();
    for chain in ["there", "back"] {
        assert!(left(&stats, chain) > 100, "{:?}", find_chain(&stats, chain));
    }
    assert!(status(&stats).packet_ins >= 4 && status(&stats).flow_mods >= 5, "{:?}", status(&stats));
    // Idle entries expire and report all packets of the connection, not only its first.
    let events =
        controller.wait("entries have gone", |all| all.iter().filter(is("removed")).filter(|v| v["dst_port"] == 8080).count() >= 2);
    assert!(events.iter().filter(is("removed")).any(|v| v["packets"].as_u64().unwrap() > 50), "{events:#?}");
    assert!(!events.iter().any(|v| v["what"] == "error"), "{events:#?}");
    daemon.wait("what is idle has gone", |s| status(s).entries == 1);
    // Without it no new connection works; with the next one all is as before.
    drop(controller);
    daemon.wait("it is away", |s| !status(s).connected);
    assert!(!fetch(&site, folder.path(), 1));
    let _controller = OsKen::start(&environment, address.port(), folder.path());
    daemon.wait("it is back", |s| status(s).connected && status(s).connections == 2);
    assert!(fetch(&site, folder.path(), 30), "{}", daemon.log());
    daemon.stop();
}
