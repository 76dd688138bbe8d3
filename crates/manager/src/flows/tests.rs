//! A log whose packet thread and supervisor the test plays.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::sync::OnceLock;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use sluice_api::model::{FlowOrder, FlowReport, FlowsReply, FlowsRequest, Instruction, TcpState};
use sluice_dataplane::capture::{Point, Sight};
use sluice_dataplane::chain::{DropReason, Hop};
use sluice_dataplane::frame::Packet;
use sluice_dataplane::meter::{MeterSettings, meter};
use sluice_shm::arena::{Arena, Geometry, HEADROOM};

use super::*;
use crate::capture::HopNames;
use crate::capture::filter::PacketFilter;

const SECOND: u64 = 1_000_000_000;
const PATIENCE: Duration = Duration::from_secs(60);
static HOPS: [Hop; 1] = [Hop { nf: 2, last_visit: true, reverse: false }];

/// A supervisor that answers at once, once there is a log.
#[derive(Clone, Default)]
struct Played {
    log: Arc<OnceLock<Arc<FlowLog>>>,
    ends: Arc<AtomicU64>,
}

impl FlowSource for Played {
    fn ask_names(&self) {
        if let Some(log) = self.log.get() {
            log.name(names());
        }
    }

    fn ask_end(&self) {
        self.ends.fetch_add(1, Ordering::Relaxed);
    }
}

fn names() -> FlowNames {
    let named = |number, name: &str| std::collections::HashMap::from([(number, name.to_string())]);
    let hops = HopNames { nfs: named(2, "fw.0"), chains: named(5, "web"), ports: named(3, "lan") };
    FlowNames { hops, tenants: named(5, "gold") }
}

struct Rig {
    arena: Arena,
    meter: Box<FlowMeter>,
    flows: Arc<MeteredFlows>,
}

impl Rig {
    fn new() -> Self {
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 4, stride: 2240 }, false).unwrap();
        let (meter, flows) = meter(MeterSettings { flows: 4096, idle_ns: 10 * SECOND, active_ns: 0 });
        Self { arena, meter, flows }
    }

    fn frame(&self, bytes: &[u8]) -> Packet {
        assert!(self.arena.write(0, HEADROOM as u16, bytes));
        Packet::fresh(0, bytes.len() as u16)
    }

    fn sight(&self) -> Sight<'static> {
        Sight { point: Point::Received(3), why: None, place: None, ingress: Some(3), chain: Some(5), hops: &HOPS }
    }

    fn receive(&mut self, bytes: &[u8], at_ns: u64) {
        let packet = self.frame(bytes);
        self.meter.count(&self.arena, at_ns, &self.sight(), &[packet]);
    }

    fn drop(&mut self, bytes: &[u8], at_ns: u64) {
        let packet = self.frame(bytes);
        self.meter.lose(&self.arena, at_ns, &self.sight(), DropReason::Verdict.into(), &[packet]);
    }

    /// A packet that takes this long.
    fn time(&mut self, bytes: &[u8], took_ns: u64) {
        self.receive(bytes, 1);
        let packet = self.frame(bytes);
        self.meter.begin_timing(&self.arena, 3, packet, 1);
        self.meter.end_timing(packet.frame, 1, took_ns);
    }

    /// Ends all flows as idle ones.
    fn end_all(&mut self) {
        self.meter.age(1000 * SECOND, 1 << 20);
        assert_eq!(self.flows.count(), 0);
    }

    fn live(&self) -> Vec<FlowRecord> {
        let mut all = Vec::new();
        self.flows.live(|record| all.push(record));
        all
    }

    fn log(&self, outputs: FlowOutputs) -> (Arc<FlowLog>, JoinHandle<()>) {
        FlowLog::start(vec![self.flows.clone()], outputs, names(), Played::default()).unwrap()
    }
}

fn udp(n: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, n], [192, 0, 2, 1], 64).udp(1000, 2000);
    builder.write(&mut bytes, &[0; 18]).unwrap();
    bytes
}

fn tcp_v6(flags: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (src, dst) = ([0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6(src, dst, 64).tcp(3000, 443, 1, 1).write(&mut bytes, &[]).unwrap();
    bytes[14 + 40 + 13] = flags;
    bytes
}

fn arp() -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 9, 8, 6]);
    bytes.resize(60, 0);
    bytes
}

fn ask(log: &FlowLog, request: FlowsRequest) -> FlowsReply {
    log.answer(&request, None, names())
}

#[track_caller]
fn wait_for(log: &FlowLog, ended: u64) {
    let until = Instant::now() + PATIENCE;
    while log.counts().ended < ended {
        assert!(Instant::now() < until, "{:?}", log.counts());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn lines(path: &Path) -> Vec<FlowReport> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn flows_are_reported_live_and_ended_and_logged_to_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flows.json");
    let mut rig = Rig::new();
    let config = FlowLogConfig { file: Some(path.clone()), ..FlowLogConfig::default() };
    let (log, thread) = rig.log(FlowOutputs::open(&config).unwrap());
    rig.receive(&udp(1), 5);
    rig.receive(&udp(1), 7);
    rig.drop(&udp(1), 8);
    rig.drop(&udp(9), 8);
    rig.receive(&arp(), 9);
    let reply = ask(&log, FlowsRequest::default());
    assert_eq!((reply.log.live, reply.log.ended, reply.flows.len(), reply.next), (2, 0, 2, 0));
    assert_eq!(reply.log.flowless_drops, 1);
    let [arp, udp] = &reply.flows[..] else { panic!("{reply:?}") };
    assert_eq!((arp.protocol.as_str(), arp.src.as_str(), arp.dst.as_str()), ("0x0806", "02:00:00:00:00:09", "ff:ff:ff:ff:ff:ff"));
    let wanted = FlowReport {
        protocol: "udp".into(),
        src: "10.0.0.1".into(),
        src_port: Some(1000),
        dst: "192.0.2.1".into(),
        dst_port: Some(2000),
        port: "lan".into(),
        chain: Some("web".into()),
        tenant: Some("gold".into()),
        nfs: vec!["fw.0".into()],
        packets: 2,
        bytes: 120,
        dropped_packets: 1,
        drop_reason: Some("verdict".into()),
        first_ns: log.epoch_ns + 5,
        last_ns: log.epoch_ns + 8,
        ..FlowReport::default()
    };
    assert_eq!(*udp, wanted);
    rig.end_all();
    wait_for(&log, 2);
    rig.receive(&tcp_v6(2), SECOND);
    let reply = ask(&log, FlowsRequest { live: false, ..FlowsRequest::default() });
    assert_eq!((reply.log.live, reply.flows.len(), reply.next), (1, 2, 2));
    log.end(Vec::new());
    thread.join().unwrap();
    let mut logged = lines(&path);
    assert_eq!(logged.iter().map(|flow| flow.number).collect::<Vec<_>>(), [Some(1), Some(2), Some(3)]);
    let tcp = logged.pop().unwrap();
    assert_eq!((tcp.src.as_str(), tcp.dst_port, tcp.tcp), ("2001::1", Some(443), Some(TcpState::Opening)));
    assert_eq!(tcp.end, Some(FlowEndReason::Stopped));
    let ended = logged.iter().find(|flow| flow.protocol == "udp").unwrap();
    assert_eq!(*ended, FlowReport { number: ended.number, end: Some(FlowEndReason::Idle), ..wanted });
}

#[test]
fn each_flow_that_is_counted_as_ended_is_shown_as_ended() {
    const ALL: u64 = 2000;
    let mut rig = Rig::new();
    let (log, thread) = rig.log(FlowOutputs::default());
    let packets = std::thread::spawn(move || {
        for n in 0..ALL {
            let mut packet = udp(1);
            packet[26..30].copy_from_slice(&(n as u32).to_be_bytes());
            rig.receive(&packet, 1);
            rig.end_all();
        }
    });
    let until = Instant::now() + PATIENCE;
    let mut last = 0;
    while last < ALL {
        let reply = ask(&log, FlowsRequest { limit: 2 * ALL as u32, ..FlowsRequest::default() });
        let shown = reply.flows.iter().filter(|flow| flow.end.is_some()).count() as u64;
        assert!(shown >= reply.log.ended, "{shown} of {}", reply.log.ended);
        last = reply.log.ended;
        assert!(Instant::now() < until, "{:?}", reply.log);
    }
    packets.join().unwrap();
    log.end(Vec::new());
    thread.join().unwrap();
}

#[test]
fn questions_choose_sort_and_go_on_where_they_were() {
    let mut rig = Rig::new();
    let (log, thread) = rig.log(FlowOutputs::default());
    for n in 1..=9 {
        (0..n).for_each(|_| rig.receive(&udp(n), n.into()));
    }
    rig.drop(&udp(4), 4);
    let of = |reply: &FlowsReply| reply.flows.iter().map(|flow| flow.packets).collect::<Vec<_>>();
    let limit = 3;
    assert_eq!(of(&ask(&log, FlowsRequest { limit, order: FlowOrder::Bytes, ..FlowsRequest::default() })), [9, 8, 7]);
    assert_eq!(of(&ask(&log, FlowsRequest { dropped: Some(true), ..FlowsRequest::default() })), [4]);
    assert_eq!(of(&ask(&log, FlowsRequest { dropped: Some(false), ..FlowsRequest::default() })).len(), 8);
    for (request, number) in [
        (FlowsRequest { chain: Some("web".into()), tenant: Some("gold".into()), ..FlowsRequest::default() }, 9),
        (FlowsRequest { chain: Some("dns".into()), ..FlowsRequest::default() }, 0),
        (FlowsRequest { tenant: Some("silver".into()), ..FlowsRequest::default() }, 0),
        (FlowsRequest { live: false, ..FlowsRequest::default() }, 0),
    ] {
        assert_eq!(ask(&log, request.clone()).flows.len(), number, "{request:?}");
    }
    // The source address ends in 7, as libpcap compiles it for whole packets.
    let program = [(0x30, 0, 0, 29), (0x15, 0, 1, 7), (6, 0, 0, 65535), (6, 0, 0, 0)];
    let filter = PacketFilter::new(program.map(|(code, jt, jf, k)| Instruction { code, jt, jf, k }).to_vec()).unwrap();
    assert_eq!(of(&log.answer(&FlowsRequest::default(), Some(&filter), names())), [7]);
    rig.end_all();
    wait_for(&log, 9);
    let after = |after| ask(&log, FlowsRequest { after: Some(after), limit: 4, ..FlowsRequest::default() });
    let mut seen = BTreeSet::new();
    let (mut reply, mut answers) = (after(0), 0);
    while !reply.flows.is_empty() {
        seen.extend(of(&reply));
        (reply, answers) = (after(reply.next), answers + 1);
    }
    assert_eq!((seen.into_iter().collect::<Vec<_>>(), answers, reply.next, reply.missed), ((1..=9).collect(), 3, 9, 0));
    assert_eq!(after(77).next, 4, "the number of an earlier log");
    log.end(Vec::new());
    thread.join().unwrap();
}

#[test]
fn what_is_not_kept_any_more_is_counted_as_missed() {
    let mut rig = Rig::new();
    let (log, thread) = rig.log(FlowOutputs::default());
    let all = KEPT as u64 + 100;
    for n in 0..all {
        let mut packet = udp(1);
        packet[26..30].copy_from_slice(&(n as u32).to_be_bytes());
        rig.receive(&packet, 1);
        if n % 1000 == 0 {
            rig.end_all();
            wait_for(&log, n + 1);
        }
    }
    rig.end_all();
    wait_for(&log, all);
    let reply = ask(&log, FlowsRequest { after: Some(30), limit: 1, ..FlowsRequest::default() });
    assert_eq!((reply.missed, reply.flows[0].number, reply.next, reply.log.lost), (70, Some(101), 101, 0));
    log.end(Vec::new());
    thread.join().unwrap();
}

#[test]
fn flows_are_kept_with_a_limited_number_of_names() {
    let mut rig = Rig::new();
    let (log, thread) = rig.log(FlowOutputs::default());
    let all = MOST_NAMES as u64 + 10;
    for n in 1..=all {
        let mut now = names();
        now.tenants.insert(9, n.to_string());
        log.name(now);
        // Twice the same.
        log.keep_names();
        rig.receive(&udp(1), n);
        rig.end_all();
        wait_for(&log, n);
    }
    let reply = ask(&log, FlowsRequest { after: Some(0), limit: 1000, ..FlowsRequest::default() });
    assert_eq!((reply.missed, reply.flows.len(), reply.next), (10, MOST_NAMES, all));
    log.end(Vec::new());
    thread.join().unwrap();
}

#[test]
fn a_histogram_has_the_last_flow_of_each_power_of_two_while_it_is_kept() {
    let mut rig = Rig::new();
    let (log, thread) = rig.log(FlowOutputs::default());
    // The fourth may be below 2^14 ns, and above.
    for (n, took_ns) in [9_001, 10_999, 100_000, 16_999, 12].into_iter().enumerate() {
        rig.time(&udp(n as u8), took_ns);
        rig.end_all();
        wait_for(&log, n as u64 + 1);
    }
    let last_ns = log.epoch_ns + 1;
    let wanted = [Exemplar { ns: 10_000, flow: 2, last_ns }, Exemplar { ns: 100_000, flow: 3, last_ns }];
    assert_eq!(log.exemplars("web"), wanted);
    assert_eq!(log.exemplars("dns"), []);
    for n in 6..=6 + MOST_NAMES as u64 {
        let mut now = names();
        now.tenants.insert(9, n.to_string());
        log.name(now);
        rig.receive(&udp(1), n);
        rig.end_all();
        wait_for(&log, n);
    }
    assert_eq!(log.exemplars("web"), [], "it names no flow that cannot be asked for");
    log.end(Vec::new());
    thread.join().unwrap();
}

#[test]
fn a_missing_name_is_asked_for() {
    let mut rig = Rig::new();
    let source = Played::default();
    let (log, thread) =
        FlowLog::start(vec![rig.flows.clone()], FlowOutputs::default(), FlowNames::default(), source.clone()).unwrap();
    source.log.set(log.clone()).unwrap();
    rig.receive(&udp(1), 1);
    rig.end_all();
    wait_for(&log, 1);
    let reply = ask(&log, FlowsRequest { live: false, ..FlowsRequest::default() });
    assert_eq!((reply.flows[0].chain.as_deref(), reply.flows[0].port.as_str()), (Some("web"), "lan"));
    log.end(Vec::new());
    thread.join().unwrap();
}

fn reported(n: u64) -> FlowReport {
    FlowReport { number: Some(n), src: "10.0.0.1".repeat(10), ..FlowReport::default() }
}

#[test]
fn full_files_are_replaced_and_the_oldest_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flows.json");
    let mut file = FlowFile::open(path.clone(), 1 << 20, 3).unwrap();
    for n in 1..=30_000 {
        file.push(&reported(n));
    }
    file.flush();
    drop(file);
    let mut file = FlowFile::open(path.clone(), 1 << 20, 3).unwrap();
    file.push(&reported(30_001));
    file.flush();
    assert_eq!(file.lost, 0);
    let mut found: Vec<String> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    assert_eq!(found, ["flows.json", "flows.json.1", "flows.json.2"]);
    let mut numbers = Vec::new();
    for name in ["flows.json.2", "flows.json.1", "flows.json"] {
        let each = folder.path().join(name);
        assert!(std::fs::metadata(&each).unwrap().len() <= 1 << 20, "{name}");
        numbers.extend(lines(&each).iter().map(|flow| flow.number.unwrap()));
    }
    // All that are there follow each other, up to the last one.
    assert_eq!(numbers, (30_002 - numbers.len() as u64..=30_001).collect::<Vec<_>>());
    assert!(numbers.len() > 5_000);
}

#[test]
fn what_cannot_be_written_is_counted_and_what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("logs");
    std::fs::create_dir(&inner).unwrap();
    let mut file = FlowFile::open(inner.join("flows.json"), 1, 2).unwrap();
    file.push(&reported(1));
    file.flush();
    // The next one changes files.
    std::fs::remove_dir_all(&inner).unwrap();
    file.push(&reported(2));
    file.push(&reported(3));
    file.flush();
    assert_eq!(file.lost, 2);
    assert!(FlowFile::open(folder.path().to_path_buf(), 1, 2).is_err());
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("flows.json", &link).unwrap();
    assert!(FlowFile::open(link, 1, 2).is_err());
    let open = folder.path().join("open.json");
    std::fs::write(&open, "").unwrap();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let error = FlowFile::open(open.clone(), 1, 2).unwrap_err().to_string();
    assert!(error.contains("another user"), "{error}");
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    FlowFile::open(open, 1, 2).unwrap();
    let config = FlowLogConfig { file: Some("/proc/none/flows.json".into()), ..FlowLogConfig::default() };
    let error = FlowOutputs::open(&config).unwrap_err().to_string();
    assert!(error.contains("/proc/none/flows.json") && error.contains("flow_log.file"), "{error}");
}

#[test]
fn filters_see_the_headers_of_a_flow() {
    let mut rig = Rig::new();
    rig.receive(&udp(3), 1);
    rig.receive(&tcp_v6(0x12), 2);
    rig.receive(&arp(), 3);
    let mut seen = 0;
    for record in rig.live() {
        let (bytes, len) = report::headers(&record);
        if record.key().addresses().is_none() {
            assert_eq!(bytes[..len], arp()[..14]);
            continue;
        }
        let parsed = SlicedPacket::from_ethernet(&bytes[..len]).unwrap();
        match (parsed.net.unwrap(), parsed.transport.unwrap()) {
            (NetSlice::Ipv4(ip), TransportSlice::Udp(udp)) => {
                assert_eq!((ip.header().source(), ip.header().destination()), ([10, 0, 0, 3], [192, 0, 2, 1]));
                assert_eq!((udp.source_port(), udp.destination_port()), (1000, 2000));
            }
            (NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
                assert_eq!((ip.header().source()[15], ip.header().destination()[15]), (1, 2));
                assert_eq!(
                    (tcp.source_port(), tcp.destination_port(), tcp.syn(), tcp.ack(), tcp.fin()),
                    (3000, 443, true, true, false)
                );
            }
            other => panic!("{other:?}"),
        }
        seen += 1;
    }
    assert_eq!(seen, 2);
}

/// Decodes messages by the templates in them, as RFC 7011 describes: each record's elements.
#[derive(Default)]
struct Collector {
    templates: std::collections::HashMap<u16, Vec<(u16, usize)>>,
    records: Vec<std::collections::HashMap<u16, u128>>,
}

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

impl Collector {
    fn take(&mut self, message: &[u8]) {
        assert_eq!((number(&message[..2]), number(&message[2..4])), (10, message.len() as u128));
        assert_eq!(number(&message[8..12]), self.records.len() as u128, "the records before this message");
        let mut rest = &message[16..];
        while !rest.is_empty() {
            let (id, len) = (number(&rest[..2]) as u16, number(&rest[2..4]) as usize);
            let (set, others) = rest.split_at(len);
            if id == 2 {
                self.learn(&set[4..]);
            } else {
                self.read(&self.templates[&id].clone(), &set[4..]);
            }
            rest = others;
        }
    }

    fn learn(&mut self, mut set: &[u8]) {
        while !set.is_empty() {
            let (id, count) = (number(&set[..2]) as u16, number(&set[2..4]) as usize);
            let fields = set[4..4 + 4 * count].chunks(4);
            let fields = fields.map(|field| (number(&field[..2]) as u16, number(&field[2..]) as usize));
            self.templates.insert(id, fields.collect());
            set = &set[4 + 4 * count..];
        }
    }

    fn read(&mut self, template: &[(u16, usize)], mut set: &[u8]) {
        while !set.is_empty() {
            let mut record = std::collections::HashMap::new();
            for (element, len) in template {
                record.insert(*element, number(&set[..*len]));
                set = &set[*len..];
            }
            self.records.push(record);
        }
    }
}

#[test]
fn a_collector_gets_each_ip_flow_once() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut exporter = Exporter::new(socket.local_addr().unwrap()).unwrap();
    let mut rig = Rig::new();
    for n in 1..=100 {
        rig.receive(&udp(n), u64::from(n) * 1_000_000);
    }
    rig.drop(&udp(7), 7_500_000);
    rig.receive(&tcp_v6(0x11), SECOND);
    rig.receive(&arp(), 3);
    let epoch_ns = 1_764_036_100_000_000_000;
    rig.end_all();
    let all: Vec<FlowRecord> = std::iter::from_fn(|| rig.flows.take()).collect();
    all.iter().for_each(|record| exporter.push(record, epoch_ns));
    exporter.flush();
    assert_eq!((all.len(), exporter.lost), (102, 0));
    let (mut collector, mut message) = (Collector::default(), [0; 1500]);
    while collector.records.len() < 101 {
        let len = socket.recv(&mut message).unwrap();
        assert!(len <= 1400);
        collector.take(&message[..len]);
    }
    let of = |element: u16, value: u128| move |record: &&std::collections::HashMap<u16, u128>| record.get(&element) == Some(&value);
    let sources: BTreeSet<u128> = collector.records.iter().filter_map(|record| record.get(&8).copied()).collect();
    assert_eq!(sources, (1..=100).map(|n| u128::from(u32::from_be_bytes([10, 0, 0, n]))).collect::<BTreeSet<_>>());
    let seventh = collector.records.iter().find(of(8, number(&[10, 0, 0, 7]))).unwrap();
    let began_ms = u128::from(epoch_ns / 1_000_000) + 7;
    for (element, value) in [
        (12u16, number(&[192, 0, 2, 1])),
        (7, 1000),
        (11, 2000),
        (4, 17),
        (2, 1),
        (1, 60),
        (133, 1),
        (152, began_ms),
        (153, began_ms),
        (10, 4),
        (136, 1),
    ] {
        assert_eq!(seventh[&element], value, "element {element}");
    }
    let tcp = collector.records.iter().find(of(4, 6)).unwrap();
    let IpAddr::V6(src) = "2001::1".parse().unwrap() else { panic!("it is of IPv6") };
    assert_eq!((tcp[&27], tcp[&6], tcp[&11], tcp[&136]), (src.to_bits(), 0x11, 443, 3));
}

#[test]
fn what_no_collector_takes_is_counted() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    drop(socket);
    let mut exporter = Exporter::new(address).unwrap();
    let mut rig = Rig::new();
    let until = Instant::now() + PATIENCE;
    // The kernel reports at a later message that nothing listens.
    while exporter.lost == 0 {
        assert!(Instant::now() < until);
        rig.receive(&udp(1), 1);
        rig.end_all();
        exporter.push(&rig.flows.take().unwrap(), 0);
        exporter.flush();
    }
}
