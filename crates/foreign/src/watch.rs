//! Recognises sampled and traced packets when they come out of a program.
//!
//! # Problem
//! A program's output is a new packet in a new frame. To time or trace a packet over its whole
//! chain, it must be recognised.
//!
//! # Approach
//! A marked packet is recognised by its last [`TAIL`] bytes, which bridges, switches, routers and
//! firewalls keep, since tags, hop limits and addresses come before them. If a second packet with
//! the same end goes in before the first came out, the two cannot be distinguished, and the first
//! is given up. A few are watched at a time; while there is none, nothing is compared.
//!
//! A *suspect* is a packet that went in while something looks at packets. If it has not come out
//! when its time is over, and packets of its visit were written off meanwhile, it is shown as one
//! of them.
//!
//! # Limits
//! Latency and traces stop at a program that changes the end of packets (a proxy, encryption, a NAT
//! on short ones), and there a packet that came out may be shown as lost, if others of its visit
//! were. A packet that went in before a marked one and has the same end is mistaken for it.

use sluice_shm::arena::Arena;

use sluice_dataplane::frame::Packet;
use sluice_dataplane::trace::Mark;

/// Length of a tail in bytes.
pub const TAIL: usize = 32;
/// Maximum number of watched packets.
const MOST: usize = 8;

pub type Tail = [u8; TAIL];

/// The end of a packet. None if it is too short, or only padding.
pub(crate) fn tail_of(arena: &Arena, packet: Packet) -> Option<Tail> {
    let offset = packet.len.checked_sub(TAIL as u16)?;
    let tail: Tail = arena.read_array(packet.frame, packet.offset.checked_add(offset)?)?;
    tail.iter().any(|byte| *byte != tail[0]).then_some(tail)
}

#[derive(Debug)]
struct Watched {
    tail: Tail,
    mark: Mark,
    /// Side at which it will come out.
    out: usize,
    since_ns: u64,
}

/// Most bytes that are kept of a suspect.
const HEAD: usize = 128;

/// A packet that may not come out.
#[derive(Debug)]
pub struct Suspect {
    tail: Tail,
    /// Side at which it will come out.
    pub out: usize,
    since_ns: u64,
    head: [u8; HEAD],
    /// Its length in bytes.
    pub len: u16,
    /// Number of its chain.
    pub chain: u16,
    /// Packets of its visit that had been written off when it went in.
    pub written_off: u64,
}

impl Suspect {
    /// A packet that is about to go in; none if it could not be recognised.
    pub fn new(arena: &Arena, packet: Packet, chain: u16, out: usize, since_ns: u64, written_off: u64) -> Option<Self> {
        let tail = tail_of(arena, packet)?;
        let mut head = [0; HEAD];
        arena.read(packet.frame, packet.offset, &mut head[..HEAD.min(packet.len.into())]);
        Some(Self { tail, out, since_ns, head, len: packet.len, chain, written_off })
    }

    /// Its first bytes.
    pub fn head(&self) -> &[u8] {
        &self.head[..HEAD.min(self.len.into())]
    }
}

#[derive(Debug, Default)]
pub struct Watch {
    watched: Vec<Watched>,
    suspect: Option<Suspect>,
}

impl Watch {
    /// Whether no packet that comes out needs a look.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty() && self.suspect.is_none()
    }

    /// Whether no packet is suspected, so that one may be.
    #[inline]
    pub(crate) fn lacks_suspect(&self) -> bool {
        self.suspect.is_none()
    }

    /// Watches a packet that went in, if there is one.
    #[inline]
    pub(crate) fn suspect(&mut self, packet: Option<Suspect>) {
        if packet.is_some() {
            self.suspect = packet;
        }
    }

    /// Takes out the packet that went in before a time and has not come out, if there is one.
    pub(crate) fn overdue(&mut self, before_ns: u64) -> Option<Suspect> {
        self.suspect.take_if(|suspect| suspect.since_ns < before_ns)
    }

    /// A packet goes in: gives up a watched one with the same end, and returns its mark.
    pub(crate) fn went_in(&mut self, tail: &Tail, out: usize) -> Option<Mark> {
        let at = self.watched.iter().position(|w| w.out == out && w.tail == *tail)?;
        Some(self.watched.swap_remove(at).mark)
    }

    /// Watches a packet that went in. False if there are too many.
    pub fn begin(&mut self, tail: Tail, mark: Mark, out: usize, now_ns: u64) -> bool {
        let has_room = self.watched.len() < MOST;
        if has_room {
            self.watched.push(Watched { tail, mark, out, since_ns: now_ns });
        }
        has_room
    }

    /// The mark of a packet that comes out at a side, if it is watched.
    pub(crate) fn came_out(&mut self, tail: &Tail, side: usize) -> Option<Mark> {
        if self.suspect.as_ref().is_some_and(|suspect| suspect.out == side && suspect.tail == *tail) {
            self.suspect = None;
        }
        self.went_in(tail, side)
    }

    /// Gives up a packet that went in before a time, and returns its mark.
    pub fn give_up(&mut self, before_ns: u64) -> Option<Mark> {
        let at = self.watched.iter().position(|w| w.since_ns < before_ns)?;
        Some(self.watched.swap_remove(at).mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(frame: u32) -> Mark {
        Mark { flags: 1, frame, ..Mark::default() }
    }

    fn tail(number: u8) -> Tail {
        let mut tail = [7; TAIL];
        tail[0] = number;
        tail
    }

    #[test]
    fn a_packet_is_known_by_its_end_on_its_side() {
        let mut watch = Watch::default();
        assert!(watch.begin(tail(1), mark(10), 1, 5) && watch.begin(tail(2), mark(20), 0, 6));
        assert_eq!(watch.came_out(&tail(1), 0), None, "it is to come out at the other side");
        assert_eq!(watch.came_out(&tail(1), 1), Some(mark(10)));
        assert_eq!(watch.came_out(&tail(1), 1), None, "once");
        assert_eq!(watch.went_in(&tail(2), 0), Some(mark(20)), "nobody could tell them apart");
        assert!(watch.is_empty());
    }

    #[test]
    fn few_are_watched_and_not_for_ever() {
        let mut watch = Watch::default();
        let began = (0..20).filter(|n| watch.begin(tail(*n), mark(u32::from(*n)), 1, u64::from(*n))).count();
        assert_eq!(began, MOST);
        let given_up: Vec<_> = std::iter::from_fn(|| watch.give_up(3)).map(|mark| mark.frame).collect();
        assert_eq!(given_up.len(), 3, "{given_up:?}");
        assert!(watch.begin(tail(99), mark(99), 1, 99));
    }

    #[test]
    fn a_suspect_is_one_that_has_not_come_out_in_time() {
        let arena = Arena::create(sluice_shm::arena::Geometry { first: 0, frames: 4, stride: 2240 }, false).unwrap().1;
        let packet = |frame: u32, last: u8| {
            let packet = Packet::fresh(frame, 200);
            assert!(arena.write(frame, packet.offset, &[frame as u8; 199]) && arena.write(frame, packet.offset + 199, &[last]));
            packet
        };
        let mut watch = Watch::default();
        let suspect = |packet: Packet, since_ns: u64| Suspect::new(&arena, packet, 3, 1, since_ns, 7);
        let (first, second) = (packet(0, 9), packet(1, 8));
        assert!(watch.lacks_suspect());
        watch.suspect(suspect(first, 10));
        watch.suspect(None);
        assert!(!watch.lacks_suspect() && !watch.is_empty() && watch.overdue(10).is_none());
        assert_eq!(watch.came_out(&tail_of(&arena, first).unwrap(), 0), None, "another side");
        assert!(!watch.is_empty());
        watch.came_out(&tail_of(&arena, first).unwrap(), 1);
        assert!(watch.is_empty() && watch.overdue(100).is_none());
        watch.suspect(suspect(second, 20));
        watch.came_out(&tail_of(&arena, first).unwrap(), 1);
        let lost = watch.overdue(21).unwrap();
        assert_eq!((lost.head(), lost.len, lost.chain, lost.out, lost.written_off), (&[1; HEAD][..], 200, 3, 1, 7));
        assert!(watch.is_empty());
        watch.suspect(suspect(packet(2, 2), 30));
        assert!(watch.is_empty(), "it could not be recognised");
    }

    #[test]
    fn what_says_nothing_is_no_end() {
        let arena = Arena::create(sluice_shm::arena::Geometry { first: 0, frames: 4, stride: 2240 }, false).unwrap().1;
        let packet = Packet::fresh(1, 60);
        assert_eq!(tail_of(&arena, packet), None, "zeros");
        assert!(arena.write(1, packet.offset + 59, &[9]));
        assert_eq!(tail_of(&arena, packet).map(|tail| tail[TAIL - 1]), Some(9));
        assert_eq!(tail_of(&arena, Packet::fresh(1, 20)), None, "too short");
    }
}
