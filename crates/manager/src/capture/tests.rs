//! A stream whose packet threads and supervisor the test plays.

use std::sync::Mutex;

use sluice_api::drops::PortDrop;
use sluice_api::model::Instruction;
use sluice_dataplane::capture::{Sight, Tap, pair};
use sluice_dataplane::chain::{DropReason, Hop};
use sluice_dataplane::frame::Packet;
use sluice_shm::arena::{Arena, Geometry, HEADROOM};

use super::*;

/// The state of the supervisor, which the test may change.
#[derive(Default)]
struct Played {
    names: Option<HopNames>,
    ends: u32,
}

struct Supervisor(Arc<Mutex<Played>>);

impl CaptureSource for Supervisor {
    fn names(&self) -> Result<HopNames, NoNames> {
        self.0.lock().unwrap().names.clone().ok_or(NoNames::Stopping)
    }

    fn end(&mut self) {
        self.0.lock().unwrap().ends += 1;
    }
}

fn named(all: &[(u16, &str)]) -> HashMap<u16, String> {
    all.iter().map(|(number, name)| (*number, (*name).to_string())).collect()
}

fn names() -> HopNames {
    HopNames { nfs: named(&[(1, "fw.0"), (2, "nat.0")]), chains: named(&[(0, "web")]), ports: named(&[(0, "lan"), (1, "wan")]) }
}

struct Rig {
    arena: Arena,
    taps: Vec<Tap>,
    played: Arc<Mutex<Played>>,
    stream: Stream<Supervisor>,
}

const HOPS: [Hop; 2] = [Hop { nf: 1, last_visit: true, reverse: false }, Hop { nf: 2, last_visit: true, reverse: false }];

fn on(point: Point) -> Sight<'static> {
    Sight { point, why: None, place: None, ingress: None, chain: Some(0), hops: &HOPS }
}

impl Rig {
    fn new(points: Vec<Point>, words: usize, limits: CaptureLimits) -> Self {
        let request = Arc::new(CaptureScope { chain: None, points, every: 1, each: None, snap: 100, follows: None });
        let (taps, readers) = (0..2).map(|_| pair(&request, words)).unzip();
        let played = Arc::new(Mutex::new(Played { names: Some(names()), ends: 0 }));
        let mut stream = Stream::new(Supervisor(played.clone()), request, readers, limits, names());
        // However slow the host is: no test waits for the next look.
        stream.looked += Duration::from_secs(3600);
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 4, stride: 2240 }, false).unwrap();
        Self { arena, taps, played, stream }
    }

    /// A packet thread shows packets, each with its number as the first byte.
    fn show(&mut self, thread: usize, at_ns: u64, sight: &Sight<'_>, packets: std::ops::Range<u8>) {
        for number in packets {
            assert!(self.arena.write(0, HEADROOM as u16, &[number; 60]));
            self.taps[thread].show(&self.arena, at_ns, sight, &[Packet::fresh(0, 60)]);
        }
    }

    /// Reads until something has come and nothing more is there.
    fn read(&mut self) -> Vec<Block> {
        let mut bytes = Vec::new();
        for piece in self.stream.by_ref() {
            if piece.is_empty() {
                break;
            }
            bytes.extend(piece);
        }
        blocks(&bytes)
    }
}

/// What a reader of the stream learns.
#[derive(Debug, PartialEq, Eq)]
enum Block {
    Section,
    Interface(String),
    /// Its interface, first byte, comment, and what was missed before it.
    Packet(u32, u8, String, u64),
    Counts(u32, InterfaceCounts),
}

fn blocks(mut bytes: &[u8]) -> Vec<Block> {
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let len = word(bytes, 4) as usize;
        let (body, kind) = (&bytes[8..len - 4], word(bytes, 0));
        let head = match kind {
            0x0a0d_0d0a => 16,
            1 => 8,
            5 => 12,
            _ => 20 + (word(body, 12) as usize).next_multiple_of(4),
        };
        let options = options(&body[head..]);
        let text = |code: u16| options.get(&code).map_or_else(String::new, |value| String::from_utf8(value.clone()).unwrap());
        let number = |code: u16| options.get(&code).map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()));
        all.push(match kind {
            0x0a0d_0d0a => Block::Section,
            1 => Block::Interface(text(2)),
            5 => Block::Counts(word(body, 0), InterfaceCounts { seen: number(4), missed: number(5), written: number(6) }),
            _ => Block::Packet(word(body, 0), body[20], text(1), number(4)),
        });
        bytes = &bytes[len..];
    }
    all
}

fn options(mut bytes: &[u8]) -> HashMap<u16, Vec<u8>> {
    let mut all = HashMap::new();
    while bytes.len() >= 4 {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (code, len) = (half(0), usize::from(half(2)));
        all.insert(code, bytes[4..4 + len].to_vec());
        bytes = &bytes[4 + len.next_multiple_of(4)..];
    }
    all
}

fn packet(interface: u32, number: u8, comment: &str) -> Block {
    Block::Packet(interface, number, comment.into(), 0)
}

#[test]
fn each_hop_is_an_interface_and_a_comment_says_the_rest() {
    let mut rig = Rig::new(Vec::new(), 1024, CaptureLimits::default());
    rig.show(0, 10, &on(Point::Received(0)), 1..2);
    rig.show(0, 20, &on(Point::ToNf(2)), 2..3);
    // The thread that sends has copied one before.
    rig.show(1, 15, &on(Point::Sent(0)), 3..4);
    rig.show(1, 30, &Sight::refused(None, None, PortDrop::Untaken.into(), 1), 4..5);
    let by_nat = Sight { why: Some(DropReason::Verdict.into()), place: Some(DropPlace::Nf(2)), ..on(Point::Dropped) };
    rig.show(1, 31, &by_nat, 5..6);
    let interface = |name: &str| Block::Interface(name.into());
    let wanted = [
        Block::Section,
        interface("port:lan"),
        packet(0, 1, "chain=web path=fw.0,nat.0"),
        packet(0, 3, "chain=web path=fw.0,nat.0"),
        interface("nat.0:in"),
        packet(1, 2, "chain=web path=fw.0,nat.0 nf=nat.0"),
        interface("drop"),
        packet(2, 4, "port=wan drop=port_tx"),
        packet(2, 5, "chain=web path=fw.0,nat.0 nf=nat.0 drop=verdict"),
    ];
    assert_eq!(rig.read(), wanted);
}

#[test]
fn hops_that_were_asked_for_are_there_before_their_packets() {
    let mut rig = Rig::new(vec![Point::Received(1), Point::Sent(1), Point::FromNf(1)], 1024, CaptureLimits::default());
    let wanted = [Block::Section, Block::Interface("port:wan".into()), Block::Interface("fw.0:out".into())];
    assert_eq!(rig.read(), wanted);
}

#[test]
fn a_count_is_of_what_the_filter_accepts() {
    // The first byte is odd.
    let filter = [(0x30, 0, 0, 0), (0x45, 0, 1, 1), (6, 0, 0, 1), (6, 0, 0, 0)];
    let filter = filter.map(|(code, jt, jf, k)| Instruction { code, jt, jf, k }).to_vec();
    let limits = CaptureLimits { filter: Some(PacketFilter::new(filter).unwrap()), count: Some(2), duration: None, snap: None };
    let mut rig = Rig::new(vec![Point::Dropped], 1024, limits);
    rig.show(0, 1, &on(Point::Dropped), 0..9);
    let comment = "chain=web path=fw.0,nat.0";
    let counts = InterfaceCounts { seen: 4, missed: 0, written: 2 };
    let wanted =
        [Block::Section, Block::Interface("drop".into()), packet(0, 1, comment), packet(0, 3, comment), Block::Counts(0, counts)];
    assert_eq!(rig.read(), wanted);
    assert_eq!((rig.stream.next(), rig.played.lock().unwrap().ends), (None, 1));
    drop(rig.stream);
    assert_eq!(rig.played.lock().unwrap().ends, 1);
}

#[test]
fn a_filter_that_lets_nothing_through_sees_whole_packets_and_does_not_hold_the_end() {
    // Only the sixtieth byte matters.
    let filter = |byte| {
        let program = [(0x30, 0, 0, 59), (0x15, 0, 1, byte), (6, 0, 0, 1), (6, 0, 0, 0)];
        let program = program.map(|(code, jt, jf, k)| Instruction { code, jt, jf, k }).to_vec();
        CaptureLimits { filter: Some(PacketFilter::new(program).unwrap()), snap: Some(4), ..CaptureLimits::default() }
    };
    let mut rig = Rig::new(vec![Point::Dropped], 16 * (AT_ONCE + 1), filter(0x100));
    for _ in 0..=AT_ONCE {
        rig.show(0, 1, &on(Point::Dropped), 0..1);
    }
    let mut out = Vec::new();
    rig.stream.begin(&mut out);
    let header = out.len();
    rig.stream.drain(&mut out);
    assert_eq!((out.len(), rig.stream.rests), (header, false));
    assert!(rig.stream.readers[0].next_ns().is_some(), "it comes back to what is left");
    rig.stream.drain(&mut out);
    assert!(rig.stream.rests && rig.stream.readers[0].next_ns().is_none());
    let mut rig = Rig::new(vec![Point::Dropped], 1024, filter(7));
    rig.show(0, 1, &on(Point::Dropped), 0..9);
    let mut out = Vec::new();
    rig.stream.begin(&mut out);
    let header = out.len();
    rig.stream.drain(&mut out);
    // Captured and original length of the block.
    let word = |at: usize| u32::from_le_bytes(out[header + at..header + at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20), word(24)), (6, 4, 60));
}

#[test]
fn what_was_missed_is_in_the_counts_and_at_the_next_packet() {
    // Room for five packets.
    let limits = CaptureLimits { duration: Some(Duration::ZERO), ..CaptureLimits::default() };
    let mut rig = Rig::new(vec![Point::ToNf(1)], 64, limits);
    rig.show(0, 1, &on(Point::ToNf(1)), 0..10);
    let all = rig.read();
    let packets = all.iter().filter(|block| matches!(block, Block::Packet(..))).count();
    assert_eq!(packets, 5);
    // It is over, and what was missed at its end is counted, too.
    assert_eq!(all.last(), Some(&Block::Counts(0, InterfaceCounts { seen: 10, missed: 5, written: 5 })));

    let mut rig = Rig::new(vec![Point::ToNf(1)], 64, CaptureLimits::default());
    rig.show(0, 1, &on(Point::ToNf(1)), 0..10);
    rig.read();
    rig.show(0, 2, &on(Point::ToNf(1)), 10..11);
    assert_eq!(rig.read(), [Block::Packet(0, 10, "chain=web path=fw.0,nat.0 nf=fw.0".into(), 5)]);
}

#[test]
fn a_capture_ends_when_the_daemon_does_and_when_its_hop_is_gone() {
    for names in [None, Some(HopNames { nfs: named(&[(1, "ids.0")]), ..names() })] {
        let mut rig = Rig::new(vec![Point::ToNf(1)], 64, CaptureLimits::default());
        rig.read();
        rig.played.lock().unwrap().names = names;
        // The next look at the names is not waited for.
        rig.stream.looked = Instant::now().checked_sub(LOOK).unwrap();
        assert_eq!(rig.read(), [Block::Counts(0, InterfaceCounts::default())]);
        assert_eq!(rig.stream.next(), None);
        assert_eq!(rig.played.lock().unwrap().ends, 1);
    }
}

#[test]
fn a_stream_that_nothing_reads_any_more_ends_its_capture() {
    let mut rig = Rig::new(Vec::new(), 64, CaptureLimits::default());
    rig.read();
    drop(rig.stream);
    assert_eq!(rig.played.lock().unwrap().ends, 1);
}

#[test]
fn an_nf_that_is_new_is_asked_for() {
    let mut rig = Rig::new(Vec::new(), 1024, CaptureLimits::default());
    rig.played.lock().unwrap().names = Some(HopNames { nfs: named(&[(1, "fw.0"), (2, "nat.0"), (7, "ids.0")]), ..names() });
    rig.show(0, 1, &on(Point::ToNf(7)), 1..2);
    let wanted = [Block::Section, Block::Interface("ids.0:in".into()), packet(0, 1, "chain=web path=fw.0,nat.0 nf=ids.0")];
    assert_eq!(rig.read(), wanted);
}
