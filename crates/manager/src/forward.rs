//! Forwarding: from a path and a hop to the next NF's ring or a port, with every descriptor that an NF returns checked first.
//!
//! # How nothing is lost inside
//! A packet is let into a chain only when every NF on its path has room for it ([`Plane::admit`]): each NF may have as many packets on
//! their way to it as its ring holds, counted from the chain's entry until the packet has passed it for the last time. So a ring
//! inside never overflows, however slow its NF is, and an NF that stands still fills its own ring and closes the gates of the chains
//! that pass it, and no others.
//!
//! # What is checked of an NF
//! A descriptor is copied from the ring once. Its frame must exist and belong to this NF, by the manager's private table; its offset
//! and length must lie in the frame. Anything else is a violation and is counted; chain, flags and path come from the private table
//! and never from the descriptor. The frame is claimed in the same step, so a descriptor that is sent twice is a violation the
//! second time. Past the limit of violations nothing more is taken from the NF; its frames come back when it is gone.
//!
//! # Who has a frame
//! The words of the table change as [`sluice_ownership`] says: a frame that was claimed is this thread's, and goes to the next NF only
//! when room for it was found on that one's ring. What finds no room is dropped by the thread that has it. A thread that has let go of
//! an NF's ring ([`Command::Detach`](crate::worker::Command::Detach)) therefore never makes it the owner of a frame again, and what is
//! taken back of a dead NF ([`Plane::reclaim`]) is taken back once.
//!
//! # Packets that change hands
//! Each tenant's packets lie in an arena of its own ([`crate::memory`]). A packet that goes to an NF of another one than it lies in is
//! copied on the way ([`Plane::enter`], `Plane::pass`); if that one has no free frame, it is dropped, which only that tenant notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use sluice_ownership::{credits, in_hand};
use sluice_shm::BURST;
use sluice_shm::core_page::CorePage;
use sluice_shm::descriptor::{Descriptor, Verdict, flags};
use sluice_shm::histogram::Histogram;
use sluice_shm::ring::{Consumer, Producer};

use sluice_policy::sched::backpressure::Limits;
use sluice_policy::sched::ecn::{self, Marker};

use crate::asker::Asker;
use crate::chain::registry::Course;
use crate::chain::ways::Ways;
use crate::chain::{self, Chain, ChainCounters, Counter, Drop, Kind, Path, PathRegistry, Sent, Step, Tables};
use crate::classify::key::FlowKey;
use crate::frame::{FrameCache, FrameTable, Held, Packet, Place, SAMPLED, TRACED, URGENT, owner};
use crate::mark;
use crate::memory;
use crate::nf::handle::{NfHandle, Sentence, Violation};
use crate::nf::succession::Succession;
use crate::pressure::Alerts;
use crate::wake::{Timers, Waker};
use sluice_api::config::Sched;

/// Most packets that wait for an egress port in one thread.
pub const TX_BUFFER: usize = 512;

/// A manager thread's end of one NF's rx ring.
#[derive(Debug)]
pub struct NfEnd {
    /// The NF.
    pub handle: Arc<NfHandle>,
    /// To its rx ring of this thread. None once it is gone.
    pub producer: Option<Producer>,
    /// Packets posted by this thread, modulo 2³²: the core page's copy may be tampered with, this one not.
    posted: u32,
    /// Queue from which the Wakeup role is alerted, in packets.
    high: u32,
    /// Average queue, and whether packets are marked.
    marker: Marker,
    /// When this thread last posted to it, in nanoseconds.
    posted_ns: u64,
    starts: Starts,
    /// When it is woken, if not for each packet.
    pub(crate) waker: Option<Box<Waker>>,
    /// Number of the arena that its packets lie in; [`memory::NONE`] if that is all the same.
    memory: u8,
}

/// What makes an NF run that packets are posted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Starts {
    /// Nothing: it polls.
    ByItself,
    /// Each packet.
    AtOnce,
    /// Its waker says when.
    Held,
}

impl NfEnd {
    /// The end of a fresh NF.
    pub fn new(handle: Arc<NfHandle>, producer: Producer, sched: &Sched) -> Self {
        let ring = handle.limit;
        let high = Limits::new(ring, sched.high_watermark, sched.low_watermark, 0).high;
        let marker = Marker::new(ring, sched.ecn_watermark, ecn::USUAL_SHIFT);
        let waker = handle.wakeup.map(|rules| Box::new(Waker::new(rules, ring)));
        let starts = match &waker {
            _ if handle.poll => Starts::ByItself,
            Some(_) => Starts::Held,
            None => Starts::AtOnce,
        };
        // Relaxed: it was written before the handle was passed to this thread.
        let memory = handle.memory.load(Ordering::Relaxed);
        Self { handle, producer: Some(producer), posted: 0, high, marker, posted_ns: 0, starts, waker, memory }
    }

    /// Packets that it has not returned.
    #[inline(always)]
    fn queue(&self, index: usize, threads: usize) -> u32 {
        if threads == 1 {
            let counters = &self.handle.counters[index];
            counters.posted.get().wrapping_sub(counters.returned.get()) as u32
        } else {
            let (posted, returned) = self.handle.posted_returned();
            posted.saturating_sub(returned) as u32
        }
    }

    /// Whether a burst that comes now is marked.
    #[inline(always)]
    fn must_mark(&mut self, queue: u32, now_ns: u64) -> bool {
        let mark = self.marker.should_mark(queue);
        let idle_since = std::mem::replace(&mut self.posted_ns, now_ns);
        mark && (queue > 0 || self.is_still_long(now_ns.saturating_sub(idle_since)))
    }

    /// The average is high and the queue empty: how much of the average is left after a pause.
    #[cold]
    fn is_still_long(&mut self, idle_ns: u64) -> bool {
        let service = self.handle.load.service_ns.get().max(1.0);
        self.marker.idle((idle_ns as f64 / service) as u64);
        self.marker.should_mark(0)
    }
}

/// The end of one NF's tx ring, in the thread that drains it.
#[derive(Debug)]
pub struct Drain {
    /// The NF.
    pub handle: Arc<NfHandle>,
    /// From its tx ring.
    pub consumer: Consumer,
    /// Until these are over nothing is taken from it.
    pub behind: Vec<Arc<Succession>>,
    /// It has forged more than is allowed: nothing is taken from it any more.
    pub is_cut_off: bool,
    /// Ports whose buffer it has filled, as [`Plane::filled`].
    pub fills: u64,
    /// As [`NfHandle::is_held_up`].
    is_held_up: bool,
}

impl Drain {
    /// The end of a fresh NF.
    pub fn new(handle: Arc<NfHandle>, consumer: Consumer) -> Self {
        Self { handle, consumer, behind: Vec::new(), is_cut_off: false, fills: 0, is_held_up: false }
    }

    /// Notes whether its packets wait for a port.
    #[inline]
    pub fn hold_up(&mut self, is_held_up: bool) {
        if is_held_up != self.is_held_up {
            self.is_held_up = is_held_up;
            self.handle.is_held_up.store(is_held_up, Ordering::Relaxed);
        }
    }

    /// Whether it still waits for NFs whose flows it has got.
    #[cold]
    pub fn waits(&mut self) -> bool {
        self.behind.retain(|succession| !succession.is_over());
        if self.behind.is_empty() {
            self.handle.is_behind.store(false, Ordering::Relaxed);
        }
        !self.behind.is_empty()
    }
}

/// One hop of a traced packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// Which packet: the time when it entered, in nanoseconds, and its frame.
    pub packet: (u64, u32),
    /// Number of its path.
    pub path: u32,
    /// What happened.
    pub what: TraceWhat,
    /// When, in nanoseconds.
    pub at_ns: u64,
    /// Length of the packet, in bytes; 0 if it was lost with its NF.
    pub len: u16,
}

/// What happened to a traced packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceWhat {
    /// It was put on the ring of this NF.
    ToNf(u16),
    /// This NF returned it.
    FromNf(u16),
    /// It went to this port.
    ToPort(u16),
    /// It went into the program of this foreign NF.
    WentIn(u16),
    /// One that ends as it does came out of this foreign NF, and is in this frame.
    CameOut(u16, u32),
    /// None that ends as it does came out of this foreign NF, or more than one may have.
    LostSight(u16),
    /// It was copied into the memory of another tenant, and is in this frame.
    Crossed(u32),
    /// It was dropped.
    Dropped(Drop),
    /// It was dropped at the entry.
    Refused {
        /// Number of the port where it came in.
        ingress: u16,
        /// Number of its chain; none if nothing says which.
        chain: Option<u16>,
        /// Why, as statistics name it.
        why: &'static str,
    },
}

impl TraceWhat {
    /// Whether it is the last that is known of a packet.
    pub fn is_end(self) -> bool {
        matches!(self, Self::ToPort(_) | Self::LostSight(_) | Self::Dropped(_) | Self::Refused { .. })
    }
}

/// What is known of a sampled or traced packet that goes into a program, so that it can go on as such when it comes out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// Its marks; 0 of a packet without.
    pub flags: u8,
    /// The frame that it went in from.
    pub frame: u32,
    /// Its length, in bytes.
    pub len: u16,
    /// Number of its path.
    pub path: u32,
    /// When it entered its path, in nanoseconds.
    pub entered_ns: u64,
}

/// What a trace is asked for.
#[derive(Debug)]
pub struct TraceRequest {
    /// Packets of this chain only.
    pub chain: Option<u16>,
    /// Packets only that this rule matches first: its place among the rules.
    pub rule: Option<usize>,
    /// How many packets are still to be picked.
    pub left: std::sync::atomic::AtomicI64,
    /// Where the hops are told. When it is full, hops are missing.
    pub events: ArrayQueue<TraceEvent>,
}

impl TraceRequest {
    /// Whether packets are still to be picked.
    fn wants_more(&self) -> bool {
        // Relaxed, here and below: it is a number alone, and nothing is published by it.
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Picks a packet, if one is still to be picked.
    fn pick(&self) -> bool {
        self.wants_more() && self.left.fetch_sub(1, Ordering::Relaxed) > 0
    }
}

/// Packets that wait for one egress port.
#[derive(Debug, Default)]
pub struct TxBuffer {
    /// The packets, oldest first.
    pub packets: Vec<Packet>,
    /// Whether they wait for ever rather than be dropped.
    pub waits: bool,
    /// Whether the port is there.
    pub open: bool,
}

impl TxBuffer {
    /// Whether a burst more would be more than it holds.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.packets.len() + BURST > TX_BUFFER
    }
}

/// Latency of a chain in this thread.
pub type Latencies = Vec<Histogram>;

/// What a manager thread forwards with.
pub struct Plane {
    /// Number of this thread.
    pub index: usize,
    /// How many threads there are.
    pub threads: usize,
    /// Who has which frame.
    pub table: FrameTable,
    /// When sampled packets entered, by frame, in nanoseconds.
    pub entered_ns: Arc<[AtomicU64]>,
    /// Free frames.
    pub frames: FrameCache,
    /// Where packets go.
    pub tables: Arc<Tables>,
    /// Grows whenever flows are to be decided anew: with other tables, and with other advice.
    pub generation: u32,
    /// Who is asked about flows before the rules, if anybody is. Of Rx threads alone.
    pub asker: Option<Box<Asker>>,
    /// This thread's ends of the NFs' rings, by number.
    pub nfs: Vec<Option<NfEnd>>,
    /// NFs that were posted to since [`announce`](Plane::announce), each once in a row.
    pub unannounced: Vec<u16>,
    /// Packets on their way to each NF, by number: see [`NfHandle::in_flight`]. Kept when an NF is gone.
    pub in_flight: Vec<Option<Arc<AtomicU32>>>,
    /// Packets that wait for ports, by number of the port.
    pub out: Vec<TxBuffer>,
    /// Which of these had no room for another burst after one was put there, since this was last
    /// emptied: a bit for each port, by its number modulo 64.
    pub filled: u64,
    /// Latency by chain number, from entry to exit, of the sampled packets that left here.
    pub latencies: Latencies,
    /// Packets that matched no rule.
    pub no_rule: Counter,
    /// Packets whose path could not be made.
    pub no_path: Counter,
    /// Packets that had left their chain, and were dropped because nobody has their port any more.
    pub unsent: Counter,
    /// Packets of chains that lack an NF.
    pub nf_down: Counter,
    /// Packets for which no NF of a pool was idle.
    pub none_idle: Counter,
    /// Of so many packets of a chain one is timed; 0: none.
    pub sample_every: u32,
    /// Now, in nanoseconds.
    pub now_ns: u64,
    /// The trace that goes on, if any.
    pub trace: Option<Arc<TraceRequest>>,
    /// Whether packets are let in only where every NF of their path has room; else full rings inside drop.
    pub backpressure: bool,
    /// Whether packets are marked.
    pub ecn: bool,
    /// Violations after which an NF is stopped, and drained no further.
    pub max_violations: u64,
    /// To the Wakeup role.
    pub alerts: Arc<Alerts>,
    /// Ports whose buffer at the thread that sends for them is full, by number: other threads keep what they have for them.
    pub jammed: Arc<[AtomicBool]>,
    /// When NFs are woken that are not woken for each packet.
    pub timers: Timers,
    /// A packet that is passed on now is [`URGENT`].
    pub urgent: bool,
    /// The paths that this thread has decided for.
    pub ways: Ways,
    /// Packets that each chain may let in before it is looked how many frames it has, by number.
    pub rooms: Vec<u32>,
    /// Chains that have other hops since a moment ago, and until when their packets may be kept waiting, in nanoseconds: see
    /// [`Plane::awaits_former`].
    pub changed: Vec<(u16, u64)>,
    /// Packets that all chains together may let in before it is looked again.
    pub unlooked: u32,
}

/// Of so many packets one is timed where something is promised, if not more are anyway: the 95th percentile of a second needs twenty of them.
const PROMISED_EVERY: u32 = 16;

/// Packets that are let in at most before it is looked again how many frames their chains have; and of the frames that are left, this part.
const LOOK_AHEAD: (u64, u64) = (256, 8);

/// For so long packets wait at the entry of a chain that has changed, at most, in nanoseconds: while they do, those behind them in their queue
/// wait too, which the rings of devices and of the kernel bear.
const CHANGE_NS: u64 = 50_000_000;

/// A number below `n` that follows no pattern as `seed` grows. `n` is above 0.
fn any_of(seed: u64, n: usize) -> u64 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % n as u64
}

impl Plane {
    /// Forgets what was noted by the number of a chain where there was none, or another one long
    /// ago, and notes which chains have changed.
    pub fn meet_chains(&mut self, tables: &Tables) {
        let former = self.tables.chains.iter().flatten();
        let is_other = |chain: &&Arc<Chain>| {
            let now = tables.chains.get(usize::from(chain.number)).and_then(Option::as_ref);
            now.is_some_and(|now| now.version != chain.version)
        };
        let until_ns = self.now_ns + CHANGE_NS;
        self.changed.extend(former.filter(is_other).map(|chain| (chain.number, until_ns)));
        let is_there = |tables: &Tables, number: usize| tables.chains.get(number).is_some_and(Option::is_some);
        for number in (0..tables.chains.len()).filter(|number| is_there(tables, *number) && !is_there(&self.tables, *number)) {
            self.latencies.get_mut(number).into_iter().for_each(|latencies| *latencies = Histogram::default());
            self.rooms.get_mut(number).into_iter().for_each(|room| *room = 0);
        }
    }

    #[inline(always)]
    fn counters<'a>(&self, path: &'a Path) -> &'a ChainCounters {
        &path.chain.counters[self.index]
    }

    /// Whether packets of a chain wait at its entry. When its hops have changed, those that are inside still go the former way, which may
    /// take longer: what comes now would overtake them.
    #[cold]
    pub fn awaits_former(&mut self, chain: &Chain) -> bool {
        // Others go when their time is over: their chains may be gone, or have no packets.
        let now_ns = self.now_ns;
        self.changed.retain(|(number, until_ns)| now_ns < *until_ns && (*number != chain.number || chain.frames() > 0));
        self.changed.iter().any(|(number, _)| *number == chain.number)
    }

    /// Lets packets into a path: how many of `n` there is room for, at every NF of it. None while one of them is throttled.
    #[inline]
    pub fn admit(&mut self, path: &Path, n: usize) -> usize {
        if path.hops.is_empty() && self.out.get(path.egress as usize).is_some_and(|b| b.open && b.waits && b.is_full()) {
            return 0;
        }
        let throttled = |end: &NfEnd| end.handle.gate.throttled.load(Ordering::Relaxed);
        if self.backpressure && path.nfs.iter().any(|nf| matches!(self.nfs.get(*nf as usize), Some(Some(end)) if throttled(end))) {
            return 0;
        }
        let n = match self.rooms.get_mut(usize::from(path.chain.number)) {
            Some(room) if (*room).min(self.unlooked) >= n as u32 => {
                *room -= n as u32;
                self.unlooked -= n as u32;
                n
            }
            _ => self.look_for_frames(path, n),
        };
        if n == 0 { 0 } else { self.admit_inside(path, n) }
    }

    /// How many of `n` packets of a chain there are frames for: no chain has more of them than are left to all others, and to be received
    /// into, in any arena that the path passes. So chains that stand still leave enough, however
    /// many they are: the next one's share of what is left is never nothing.
    #[cold]
    fn look_for_frames(&mut self, path: &Path, n: usize) -> usize {
        let chain = &path.chain;
        // Where a chain's frames lie is not counted: all of them may come to stand in one arena.
        let (has, left) = (chain.frames(), self.least_left(path) as u64);
        // A few, whatever others hold: the frames that these packets came in are theirs already.
        let room = left.saturating_sub(has).max((BURST as u64).saturating_sub(has));
        let n = (n as u64).min(room);
        let at = usize::from(chain.number);
        if self.rooms.len() <= at {
            self.rooms.resize(at + 1, 0);
        }
        if u64::from(self.unlooked) < n {
            // What others were given ahead was more than there is by now.
            self.rooms.fill(0);
            self.unlooked = LOOK_AHEAD.0.min(left / LOOK_AHEAD.1) as u32;
        }
        self.unlooked = self.unlooked.saturating_sub(n as u32);
        self.rooms[at] = (room - n).min(LOOK_AHEAD.0) as u32;
        n as usize
    }

    /// Frames that are left in that arena, of those that a path's packets come to lie in, which has
    /// the fewest.
    fn least_left(&self, path: &Path) -> usize {
        if !self.frames.are_several() {
            return self.frames.left_of(memory::NONE);
        }
        let left = path.nfs.iter().map(|nf| self.frames.left_of(self.memory_of(*nf)));
        left.min().unwrap_or_else(|| self.frames.left_of(memory::NONE))
    }

    /// The same for packets that are inside already: a throttle is for those at the entry.
    #[inline]
    fn admit_inside(&mut self, path: &Path, n: usize) -> usize {
        if !self.backpressure {
            return self.admit_to_first(path, n);
        }
        let mut m = n as u32;
        for nf in &path.nfs {
            match self.nfs.get(*nf as usize) {
                Some(Some(end)) if end.producer.is_some() => m = m.min(end.handle.room()),
                _ => return 0,
            }
        }
        self.reserve(path.nfs.iter().copied(), m) as usize
    }

    /// Lets packets into a path without looking further than the ring of its first NF.
    fn admit_to_first(&mut self, path: &Path, n: usize) -> usize {
        let mut m = n as u32;
        if let Some(first) = path.hops.first() {
            m = match self.nfs.get_mut(first.nf as usize) {
                Some(Some(NfEnd { producer: Some(producer), .. })) => m.min(producer.room().unwrap_or(0)),
                _ => return 0,
            };
        }
        self.take_credits(path.nfs.iter().copied(), m) as usize
    }

    /// Lets packets that come from a program into the part of a path from hop `from` on: how many of `n` there is room for.
    pub fn admit_onward(&mut self, path: &Path, from: usize, n: usize) -> usize {
        if from >= path.hops.len() && self.out.get(path.egress as usize).is_some_and(|b| b.open && b.waits && b.is_full()) {
            return 0;
        }
        let rest = &path.hops[from.min(path.hops.len())..];
        let mut m = n as u32;
        for hop in rest {
            m = match self.nfs.get_mut(hop.nf as usize) {
                Some(Some(NfEnd { producer: Some(_), handle, .. })) if self.backpressure => m.min(handle.room()),
                Some(Some(NfEnd { producer: Some(producer), .. })) => m.min(producer.room().unwrap_or(0)),
                _ => return 0,
            };
            if !self.backpressure {
                break;
            }
        }
        let nfs = rest.iter().filter(|hop| hop.last_visit).map(|hop| hop.nf);
        (if self.backpressure { self.reserve(nfs, m) } else { self.take_credits(nfs, m) }) as usize
    }

    /// Takes credits of all these NFs for up to `n` packets, as many as each of them has left, and says for how many.
    #[inline]
    fn reserve(&self, nfs: impl Iterator<Item = u16> + Clone, n: u32) -> u32 {
        let mut m = n;
        for (at, nf) in nfs.clone().enumerate() {
            let granted = match self.nfs.get(nf as usize) {
                Some(Some(end)) => end.handle.reserve(m),
                _ => 0,
            };
            if granted < m {
                // Another packet thread has taken credits since the room was looked at.
                nfs.clone().take(at).for_each(|nf| self.give_back(nf, m - granted));
                m = granted;
            }
        }
        m
    }

    /// Takes credits of all these NFs for `n` packets, whatever they have left. For none if one of them is not known: nobody would count
    /// its packets off.
    #[inline]
    fn take_credits(&self, nfs: impl Iterator<Item = u16> + Clone, n: u32) -> u32 {
        let count = |nf: u16| self.in_flight.get(nf as usize).and_then(Option::as_deref);
        if nfs.clone().any(|nf| count(nf).is_none()) {
            return 0;
        }
        nfs.filter_map(count).for_each(|count| credits::take(count, n, self.threads));
        n
    }

    /// Gives credits of an NF back, whether it is there or not.
    #[inline(always)]
    fn give_back(&self, nf: u16, n: u32) {
        if let Some(Some(count)) = self.in_flight.get(nf as usize) {
            credits::give_back(count, n, self.threads);
        }
    }

    /// Lets packets that [`Plane::admit_onward`] let in go on at hop `from` of a path.
    pub fn onward(&mut self, path: &Path, number: u32, from: usize, packets: &[Packet]) {
        self.counters(path).back.add(packets.len() as u64);
        let step = path.step(from);
        let word = word_after(step, from, 0, number);
        let mut burst = [Descriptor::default(); BURST];
        for (packet, descriptor) in packets.iter().zip(&mut burst) {
            *descriptor = Descriptor {
                frame: packet.frame,
                offset: packet.offset,
                len: packet.len,
                chain: path.chain.number,
                ingress: path.ingress,
                ..Default::default()
            };
        }
        self.pass(path, from, step, &burst[..packets.len().min(BURST)], |_| word);
    }

    /// Lets a marked packet, which [`Plane::admit_onward`] let in, go on at hop `from` of a path: it came out of this program.
    #[cold]
    pub fn onward_marked(&mut self, path: &Path, number: u32, from: usize, packet: Packet, mark: Mark, nf: u16) {
        self.counters(path).back.add(1);
        self.entered_ns[packet.frame as usize].store(mark.entered_ns, Ordering::Relaxed);
        self.tell_of(&mark, TraceWhat::CameOut(nf, packet.frame));
        let descriptor = Descriptor {
            frame: packet.frame,
            offset: packet.offset,
            len: packet.len,
            chain: path.chain.number,
            ingress: path.ingress,
            ..Default::default()
        };
        let held = Held { owner: owner::FREE, hop: from as u8, flags: mark.flags, path: number };
        self.go_on(path, held, from, path.step(from), descriptor);
    }

    /// The mark of a packet that goes into a program.
    pub fn mark_of(&self, packet: Packet, held: Held) -> Mark {
        let entered_ns = self.entered_ns[packet.frame as usize].load(Ordering::Relaxed);
        Mark { flags: held.flags & (SAMPLED | TRACED), frame: packet.frame, len: packet.len, path: held.path, entered_ns }
    }

    /// Notes what became of a traced packet that went into a program.
    pub fn tell_of(&self, mark: &Mark, what: TraceWhat) {
        if mark.flags & TRACED != 0
            && let Some(trace) = &self.trace
        {
            let packet = (mark.entered_ns, mark.frame);
            let _ = trace.events.push(TraceEvent { packet, path: mark.path, what, at_ns: self.now_ns, len: mark.len });
        }
    }

    /// Counts packets that are lost to a chain.
    pub fn count_lost(&self, chain: &Chain, why: Drop, n: u64) {
        chain.counters[self.index].drops[why as usize].add(n);
    }

    /// Counts packets that were refused at the entry of a path: they wanted to come to each of its NFs.
    #[inline]
    pub fn count_refused(&self, path: &Path, n: usize) {
        for nf in &path.nfs {
            if let Some(Some(end)) = self.nfs.get(*nf as usize) {
                end.handle.counters[self.index].refused.add(n as u64);
            }
        }
    }

    /// Says that packets will not come to the NFs of their path from hop `from` on.
    pub fn release_from(&self, path: &Path, from: usize, n: u32) {
        for hop in path.hops.iter().skip(from).filter(|h| h.last_visit) {
            self.give_back(hop.nf, n);
        }
    }

    /// Gives a packet's frame back.
    #[inline(always)]
    pub fn discard(&mut self, frame: u32) {
        self.table.free(frame);
        self.frames.free(frame);
    }

    /// Lets packets of one path, which [`Plane::admit`] let in, start on it: after copying them into the memory of the tenant whose NF is the
    /// first, if they lie elsewhere. `flags` are those of the descriptors; `traceable` has a bit
    /// for each packet that the trace that goes on, if any, is about, and `urgent` one for each that no NF lets wait.
    #[inline]
    pub fn enter(&mut self, path: &Path, number: u32, packets: &[Packet], packet_flags: &[u8], traceable: u32, urgent: u32) {
        if self.frames.are_several() {
            self.enter_own(path, number, packets, packet_flags, traceable, urgent);
        } else {
            self.start(path, number, packets, packet_flags, traceable, urgent);
        }
    }

    #[inline(never)]
    fn enter_own(&mut self, path: &Path, number: u32, packets: &[Packet], packet_flags: &[u8], traceable: u32, urgent: u32) {
        let memory = match path.step(0) {
            Step::Nf(nf) => self.memory_of(nf),
            Step::Port(_) => memory::NONE,
        };
        if memory == memory::NONE {
            return self.start(path, number, packets, packet_flags, traceable, urgent);
        }
        let mut own = [Packet::default(); BURST];
        let own = &mut own[..packets.len().min(BURST)];
        own.copy_from_slice(&packets[..own.len()]);
        let n = self.frames.bring(own, memory, Place::Gate, |_, _| {});
        if n > 0 {
            self.start(path, number, &own[..n], packet_flags, traceable, urgent);
        }
        if n < own.len() {
            // They were let in, and are lost there.
            self.counters(path).entered.add((own.len() - n) as u64);
            if self.is_tracing() {
                let lost = own.iter().enumerate().skip(n).filter(|(i, _)| traceable >> i & 1 != 0);
                lost.for_each(|(_, packet)| {
                    self.note_refused(*packet, path.ingress, Some(path.chain.number), Drop::NoFrame.name())
                });
            }
            self.starve(path, memory, &own[n..]);
        }
    }

    /// The arena that packets for an NF lie in.
    #[inline(always)]
    fn memory_of(&self, nf: u16) -> u8 {
        match self.nfs.get(nf as usize) {
            Some(Some(end)) => end.memory,
            _ => memory::NONE,
        }
    }

    /// Drops packets that start on a path, because an arena has no free frame for them.
    #[cold]
    fn starve(&mut self, path: &Path, memory: u8, packets: &[Packet]) {
        self.frames.count_starved(memory, packets.len());
        self.release_from(path, 0, packets.len() as u32);
        self.counters(path).drops[Drop::NoFrame as usize].add(packets.len() as u64);
        packets.iter().for_each(|packet| self.discard(packet.frame));
    }

    /// Lets packets, which lie where they belong, start on a path.
    #[inline(always)]
    fn start(&mut self, path: &Path, number: u32, packets: &[Packet], packet_flags: &[u8], traceable: u32, urgent: u32) {
        let counters = self.counters(path);
        let before = counters.entered.get();
        counters.entered.add(packets.len() as u64);
        let mut marked: Option<(usize, u8)> = None;
        // By chain: one of few packets among many others is timed as often as these.
        let at = counters.timed_at.get();
        if before + packets.len() as u64 > at && self.sample_every > 0 {
            let every = if path.chain.police.is_some() { self.sample_every.min(PROMISED_EVERY) } else { self.sample_every };
            // The first of a run that is late waits for none of those before it: any of them.
            let at = if at < before { before + any_of(before, packets.len()) } else { at };
            counters.timed_at.set(at + u64::from(every));
            marked = Some(((at - before) as usize, SAMPLED));
        }
        if let Some(trace) = &self.trace
            && trace.chain.is_none_or(|c| c == path.chain.number)
            && (traceable.trailing_zeros() as usize) < packets.len()
            && trace.pick()
        {
            // One packet of a burst is marked; if one is timed already and may be traced, it is that one.
            marked = match marked {
                Some((at, flags)) if traceable >> at & 1 != 0 => Some((at, flags | TRACED)),
                _ => Some((traceable.trailing_zeros() as usize, TRACED)),
            };
        }
        let step = path.step(0);
        let mut burst = [Descriptor::default(); BURST];
        for ((packet, flags), descriptor) in packets.iter().zip(packet_flags).zip(&mut burst) {
            let fields = Descriptor {
                frame: packet.frame,
                offset: packet.offset,
                len: packet.len,
                chain: path.chain.number,
                verdict: 0,
                flags: *flags,
                arg: 0,
                ingress: path.ingress,
            };
            Descriptor::put(descriptor, fields);
        }
        let burst = &mut burst[..packets.len().min(BURST)];
        if marked.is_none() && urgent == 0 {
            let word = word_after(step, 0, 0, number);
            self.pass(path, 0, step, burst, |_| word);
        } else {
            self.enter_marked(path, number, step, burst, marked, urgent);
        }
    }

    /// The same for a burst with a packet that is marked, or with urgent ones.
    #[cold]
    fn enter_marked(
        &mut self,
        path: &Path,
        number: u32,
        step: Step,
        burst: &mut [Descriptor],
        marked: Option<(usize, u8)>,
        urgent: u32,
    ) {
        // The words are complete before the first packet goes: an NF may return one at once, and then the word is another's.
        let mut words = [word_after(step, 0, 0, number); BURST];
        if let Some((at, mark)) = marked {
            words[at] = word_after(step, 0, mark, number);
            let descriptor = &mut burst[at];
            self.entered_ns[descriptor.frame as usize].store(self.now_ns, Ordering::Relaxed);
            descriptor.flags |= if mark & TRACED != 0 { flags::TRACED } else { 0 };
            let to = match step {
                Step::Nf(nf) => TraceWhat::ToNf(nf),
                Step::Port(port) => TraceWhat::ToPort(port),
            };
            self.tell(descriptor.frame, descriptor.len, mark, number, to);
        }
        if urgent != 0 && self.holds_back(path) {
            for (i, word) in words.iter_mut().enumerate().filter(|(i, word)| urgent >> i & 1 != 0 && **word != 0) {
                let held = Held::unpack(*word);
                *word = Held { flags: held.flags | URGENT, ..held }.pack();
                self.urgent |= i < burst.len();
            }
        }
        self.pass(path, 0, step, burst, |i| words[i]);
        self.urgent = false;
    }

    /// Whether an NF of a path lets packets wait, so that urgent ones are worth marking.
    fn holds_back(&self, path: &Path) -> bool {
        path.nfs.iter().any(|nf| matches!(self.nfs.get(*nf as usize), Some(Some(end)) if end.starts == Starts::Held))
    }

    /// Wakes the NFs whose packets have waited long enough.
    #[inline]
    pub fn wake_late(&mut self) {
        while let Some(nf) = self.timers.late(self.now_ns) {
            if let Some(Some(end)) = self.nfs.get_mut(nf as usize) {
                end.wake_late(self.index, self.now_ns);
            }
        }
    }

    /// Notes a hop of a traced packet.
    #[inline(always)]
    fn tell(&self, frame: u32, len: u16, held_flags: u8, path: u32, what: TraceWhat) {
        if held_flags & TRACED != 0
            && let Some(trace) = &self.trace
        {
            let packet = (self.entered_ns[frame as usize].load(Ordering::Relaxed), frame);
            // A full queue loses hops of the trace, never packets.
            let _ = trace.events.push(TraceEvent { packet, path, what, at_ns: self.now_ns, len });
        }
    }

    /// Whether a trace goes on for which packets are still to be picked.
    #[inline(always)]
    pub fn is_tracing(&self) -> bool {
        self.trace.as_ref().is_some_and(|trace| trace.wants_more())
    }

    /// Whether a trace goes on that is about packets of this key, whatever their chain is.
    pub fn traces(&self, key: &FlowKey) -> bool {
        let is_about = |rule| self.tables.rules.first_rule(key) == Some(rule);
        self.trace.as_ref().is_some_and(|trace| trace.rule.is_none_or(is_about))
    }

    /// Notes that a packet is dropped at the entry, if the trace that goes on, if any, is about it. `chain` is its chain, if it has one.
    #[cold]
    pub fn tell_refused(&self, packet: Packet, key: &FlowKey, chain: Option<u16>, why: &'static str) {
        if self.traces(key) {
            self.note_refused(packet, key.ingress(), chain, why);
        }
    }

    /// The same for a packet that the trace is about, if it is about its chain.
    #[cold]
    fn note_refused(&self, packet: Packet, ingress: u16, chain: Option<u16>, why: &'static str) {
        if let Some(trace) = &self.trace
            && (trace.chain.is_none() || trace.chain == chain)
            && trace.pick()
        {
            let (what, at_ns) = (TraceWhat::Refused { ingress, chain, why }, self.now_ns);
            let packet_then = (at_ns, packet.frame);
            let _ = trace.events.push(TraceEvent { packet: packet_then, path: chain::NO_PATH, what, at_ns, len: packet.len });
        }
    }

    /// Passes packets that are in this thread's hands on to an NF's ring or a port's buffer; to an NF of another tenant as copies. `words`
    /// says what the table will say of each of them once an NF has it.
    #[inline(always)]
    fn pass(&mut self, path: &Path, hop: usize, step: Step, burst: &[Descriptor], words: impl Fn(usize) -> u64) {
        match step {
            Step::Nf(nf) if self.frames.are_several() => self.cross(path, hop, nf, burst, words),
            _ => self.hand_on(path, hop, step, burst, words),
        }
    }

    /// Passes packets on to an NF, and copies those into the memory of its tenant that lie elsewhere.
    #[inline(never)]
    fn cross(&mut self, path: &Path, hop: usize, nf: u16, burst: &[Descriptor], words: impl Fn(usize) -> u64) {
        let memory = self.memory_of(nf);
        if memory == memory::NONE || burst.iter().all(|descriptor| self.frames.arena_of(descriptor.frame) == memory) {
            return self.hand_on(path, hop, Step::Nf(nf), burst, words);
        }
        let mut own = [Descriptor::default(); BURST];
        let own = &mut own[..burst.len().min(BURST)];
        own.copy_from_slice(&burst[..own.len()]);
        let (table, moving) = (&self.table, path.moving());
        let n = self.frames.bring(own, memory, Place::Crossing, |from, to| table.carry(from, to));
        drop(moving);
        for i in 0..n {
            let (from, to, held) = (burst[i].frame, own[i].frame, Held::unpack(words(i)));
            if from != to && held.flags & (SAMPLED | TRACED) != 0 {
                self.entered_ns[to as usize].store(self.entered_ns[from as usize].load(Ordering::Relaxed), Ordering::Relaxed);
                self.tell(from, own[i].len, held.flags, held.path, TraceWhat::Crossed(to));
            }
        }
        if n > 0 {
            self.hand_on(path, hop, Step::Nf(nf), &own[..n], &words);
        }
        if n < own.len() {
            self.frames.count_starved(memory, own.len() - n);
            self.drop_from(path, hop, &own[n..], |i| words(n + i), Drop::NoFrame);
        }
    }

    /// Passes packets, which lie where they belong, on to an NF's ring or a port's buffer.
    #[inline(always)]
    fn hand_on(&mut self, path: &Path, hop: usize, step: Step, burst: &[Descriptor], words: impl Fn(usize) -> u64) {
        if self.unannounced.len() == self.unannounced.capacity() {
            // Its memory does not grow here.
            self.announce();
        }
        match step {
            Step::Nf(nf) => {
                let mut queued = 0;
                if let Some(Some(end)) = self.nfs.get_mut(nf as usize) {
                    let queue = end.queue(self.index, self.threads);
                    if self.backpressure && queue >= end.high {
                        self.alerts.raise(nf);
                    }
                    let must_mark = self.ecn && end.must_mark(queue, self.now_ns);
                    if let Some(producer) = &mut end.producer {
                        let counters = &end.handle.counters[self.index];
                        let arena = self.frames.arena();
                        let mark = |burst: &[Descriptor]| {
                            if must_mark {
                                counters.marked.add(mark::mark(arena, burst));
                            }
                        };
                        match self.table.hand_over(producer, burst, &words, mark) {
                            Ok(n) => {
                                queued = n;
                                end.posted = end.posted.wrapping_add(queued as u32);
                                counters.posted.add(queued as u64);
                                let page = &end.handle.core_page;
                                if self.threads > 1 {
                                    page.posted(end.handle.slot).fetch_add(queued as u32, Ordering::Release);
                                } else if !end.handle.poll {
                                    page.posted(end.handle.slot).store(end.posted, Ordering::Release);
                                }
                                producer.prefetch(0);
                                match end.starts {
                                    Starts::AtOnce if self.unannounced.last() != Some(&nf) => self.unannounced.push(nf),
                                    Starts::Held => {
                                        let (timers, n) = (&mut self.timers, queued as u32);
                                        end.hold_or_wake(timers, self.index, n, self.urgent, self.now_ns);
                                    }
                                    Starts::AtOnce | Starts::ByItself => {}
                                }
                            }
                            Err(_) => {
                                violations(&end.handle, Violation::RxCursor, 1, self.max_violations);
                            }
                        }
                    }
                }
                if queued < burst.len() {
                    self.refuse(path, hop, nf, &burst[queued..], |i| words(queued + i));
                }
            }
            Step::Port(port) => self.emit(path, port, burst),
        }
    }

    /// Says on the core pages who has been posted to: after each burst, and before the thread looks who is to be woken. One barrier stands
    /// for all of them, which waits for all stores of the burst: one for each NF was a third of the time where each packet went to another.
    #[inline]
    pub fn announce(&mut self) {
        if self.unannounced.is_empty() {
            return;
        }
        CorePage::publish_posts();
        for nf in self.unannounced.drain(..) {
            if let Some(Some(end)) = self.nfs.get(nf as usize) {
                end.handle.core_page.mark_pending(end.handle.slot, self.now_ns);
            }
        }
    }

    /// An NF could not be given these packets.
    #[cold]
    fn refuse(&mut self, path: &Path, hop: usize, nf: u16, burst: &[Descriptor], words: impl Fn(usize) -> u64) {
        let gone = !matches!(self.nfs.get(nf as usize), Some(Some(end)) if end.producer.is_some());
        let why = if gone { Drop::NfGone } else { Drop::RingFull };
        self.drop_from(path, hop, burst, words, why);
    }

    /// Drops packets that are on an NF's ring, which they came to by hop `hop` of their path.
    #[cold]
    pub fn drop_at(&mut self, path: &Path, hop: usize, burst: &[Descriptor], why: Drop) {
        let words: Vec<u64> = burst.iter().map(|d| self.table.word(d.frame).unwrap_or(0)).collect();
        self.drop_from(path, hop, burst, |i| words[i], why);
    }

    fn drop_from(&mut self, path: &Path, hop: usize, burst: &[Descriptor], words: impl Fn(usize) -> u64, why: Drop) {
        self.release_from(path, hop, burst.len() as u32);
        self.counters(path).drops[why as usize].add(burst.len() as u64);
        for (i, descriptor) in burst.iter().enumerate() {
            let held = Held::unpack(words(i));
            self.tell(descriptor.frame, 0, held.flags, held.path, TraceWhat::Dropped(why));
            self.discard(descriptor.frame);
        }
    }

    /// Puts packets, which are nobody's already, into a port's buffer.
    #[inline(always)]
    fn emit(&mut self, path: &Path, port: u16, burst: &[Descriptor]) {
        match self.out.get_mut(port as usize) {
            Some(buffer) if buffer.open => {
                // A port that waits loses nothing: what comes past the mark is bounded by what may come before the mark is looked at.
                let room = if buffer.waits { burst.len() } else { TX_BUFFER.saturating_sub(buffer.packets.len()).min(burst.len()) };
                buffer.packets.extend(burst[..room].iter().map(|d| Packet { frame: d.frame, offset: d.offset, len: d.len }));
                self.filled |= u64::from(buffer.is_full()) << (port % 64);
                let counters = self.counters(path);
                counters.left.add(room as u64);
                if room < burst.len() {
                    counters.drops[Drop::TxFull as usize].add((burst.len() - room) as u64);
                    for descriptor in &burst[room..] {
                        self.discard(descriptor.frame);
                    }
                }
            }
            _ => {
                self.counters(path).drops[Drop::NoSuchPort as usize].add(burst.len() as u64);
                for descriptor in burst {
                    self.discard(descriptor.frame);
                }
            }
        }
    }

    /// Whether a waiting port's buffer is full: packets that would go there stay on their NF's tx ring.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.out.iter().any(|b| b.open && b.waits && b.is_full())
    }

    /// Whether packets that this NF returns may go to a port whose buffer is full: because it is
    /// the last one of a chain to there, or has filled it before by verdicts (`fills`,
    /// [`Drain::fills`]). One further up that never sends there goes on, for its other chains.
    #[cold]
    pub fn may_block(&self, handle: &NfHandle, fills: u64) -> bool {
        let full = |port: u16| self.out.get(port as usize).is_some_and(|b| b.open && b.waits && b.is_full());
        if fills != 0 && (0..self.out.len() as u16).any(|port| fills >> (port % 64) & 1 != 0 && full(port)) {
            return true;
        }
        // With a bypass any of a chain's NFs may become the last one.
        let sends = |c: &crate::chain::Chain| match c.on_failure {
            sluice_api::config::OnFailure::Bypass => c.services.contains(&handle.service),
            _ => c.services.last() == Some(&handle.service),
        };
        self.tables.chains.iter().flatten().any(|c| full(c.egress) && sends(c))
    }

    /// Takes a burst from an NF's tx ring and passes every packet on. Says how many there were.
    #[inline]
    pub fn forward(&mut self, registry: &PathRegistry, drain: &mut Drain) -> usize {
        if drain.is_cut_off {
            return 0;
        }
        let mut burst = [Descriptor::default(); BURST];
        match drain.consumer.dequeue(&mut burst) {
            Ok(0) => 0,
            Ok(n) => {
                drain.is_cut_off = !self.take(registry, &drain.handle, &mut burst[..n]);
                self.announce();
                n
            }
            Err(_) => {
                drain.is_cut_off = violations(&drain.handle, Violation::TxCursor, 1, self.max_violations);
                0
            }
        }
    }

    /// Checks and passes on what an NF returned. For the thread that drains it alone. False: it has forged more than is allowed.
    #[inline(always)]
    pub(crate) fn take(&mut self, registry: &PathRegistry, handle: &NfHandle, burst: &mut [Descriptor]) -> bool {
        let geometry = self.frames.arena().geometry();
        let me = handle.owner();
        let n = burst.len();
        let (mut accepted, mut forged, mut what) = (0u64, 0, Violation::Frame);
        let mut i = 0;
        while i < n {
            let first = burst[i];
            let Some(word) = self.table.claim(first.frame, me) else {
                (forged, what) = (forged + 1, Violation::Frame);
                i += 1;
                continue;
            };
            let held = Held::unpack(word);
            accepted += 1;
            let Some(path) = registry.get(held.path) else {
                // Cannot be: a path is not hidden while a frame names it.
                debug_assert!(false, "frame {} names path {}, which is not there", first.frame, held.path);
                self.discard(first.frame);
                i += 1;
                continue;
            };
            let hop = held.hop as usize;
            if first.verdict != 0 || held.flags != 0 || !geometry.contains(first.frame, first.offset, first.len) {
                if let Some(violation) = self.special(registry, handle, path, held, first) {
                    (forged, what) = (forged + 1, violation);
                }
                i += 1;
                continue;
            }
            // A run: packets at the same hop of the same path, which is what the word says.
            let step = path.step(hop + 1);
            let next = word_after(step, hop + 1, 0, held.path);
            // One that goes to a port has its last word here: a device may free it.
            let meanwhile = match step {
                Step::Nf(_) => in_hand(word),
                Step::Port(_) => {
                    self.table.free(first.frame);
                    0
                }
            };
            let start = i;
            loop {
                let descriptor = &mut burst[i];
                descriptor.chain = path.chain.number;
                descriptor.arg = 0;
                descriptor.ingress = path.ingress;
                descriptor.flags = 0;
                i += 1;
                if i == n {
                    break;
                }
                let descriptor = &burst[i];
                if descriptor.verdict != 0
                    || !geometry.contains(descriptor.frame, descriptor.offset, descriptor.len)
                    || !self.table.claim_same(descriptor.frame, word, meanwhile)
                {
                    break;
                }
            }
            let count = i - start;
            accepted += count as u64 - 1;
            if path.hops[hop].last_visit {
                handle.release(count as u32);
            }
            self.pass(path, hop + 1, step, &burst[start..i], |_| next);
        }
        let returned = &handle.counters[self.index].returned;
        if returned.get() == 0 && accepted > 0 {
            handle.first_return_ns.store(self.now_ns, Ordering::Relaxed);
        }
        returned.add(accepted);
        forged == 0 || !violations(handle, what, forged, self.max_violations)
    }

    /// A packet with another verdict than next, a sampled or traced one, or one with a wild offset
    /// or length. It has been claimed. Says what was forged, if it was.
    #[cold]
    fn special(
        &mut self,
        registry: &PathRegistry,
        handle: &NfHandle,
        path: &Path,
        held: Held,
        descriptor: Descriptor,
    ) -> Option<Violation> {
        let hop = held.hop as usize;
        self.tell(descriptor.frame, descriptor.len, held.flags, held.path, TraceWhat::FromNf(handle.number));
        let verdict = if self.frames.arena().geometry().contains(descriptor.frame, descriptor.offset, descriptor.len) {
            Verdict::from_raw(descriptor.verdict)
        } else {
            None
        };
        let clean = Descriptor { chain: path.chain.number, verdict: 0, flags: 0, arg: 0, ingress: path.ingress, ..descriptor };
        let sent = match verdict {
            Some(Verdict::ToPort) if self.is_open(descriptor.arg) => {
                self.tables.may_send(handle.service, chain::Verdict::Port(descriptor.arg))
            }
            Some(Verdict::ToService) => self.tables.may_send(handle.service, chain::Verdict::Service(descriptor.arg)),
            _ => Sent::Goes,
        };
        match verdict {
            Some(Verdict::Next) => {
                if path.hops[hop].last_visit {
                    handle.release(1);
                }
                let step = path.step(hop + 1);
                self.go_on(path, held, hop + 1, step, clean);
            }
            Some(Verdict::Drop) => {
                handle.counters[self.index].dropped.add(1);
                self.lose(path, held, hop, descriptor.frame, Drop::Verdict);
            }
            Some(Verdict::ToPort) if sent == Sent::Goes => {
                self.release_from(path, hop, 1);
                self.go_on(path, held, path.hops.len(), Step::Port(descriptor.arg), clean);
            }
            Some(Verdict::ToService) if sent == Sent::Goes => self.detour(registry, path, held, clean, descriptor.arg),
            Some(Verdict::ToPort | Verdict::ToService) => {
                self.lose(path, held, hop, descriptor.frame, Drop::NotAllowed);
                // If its configuration has never allowed it.
                return (sent == Sent::Violates).then_some(Violation::Destination);
            }
            None => {
                self.lose(path, held, hop, descriptor.frame, Drop::Violation);
                return Some(Violation::Descriptor);
            }
        }
        None
    }

    fn is_open(&self, port: u16) -> bool {
        self.out.get(usize::from(port)).is_some_and(|buffer| buffer.open)
    }

    /// Passes one packet on, with its marks.
    fn go_on(&mut self, path: &Path, held: Held, hop: usize, step: Step, mut descriptor: Descriptor) {
        let (frame, number) = (descriptor.frame, held.path);
        match step {
            Step::Nf(nf) => {
                self.tell(frame, descriptor.len, held.flags, number, TraceWhat::ToNf(nf));
                descriptor.flags = if held.flags & TRACED != 0 { flags::TRACED } else { 0 };
            }
            Step::Port(port) => {
                self.tell(frame, descriptor.len, held.flags, number, TraceWhat::ToPort(port));
                if held.flags & SAMPLED != 0 {
                    let took = self.now_ns.saturating_sub(self.entered_ns[frame as usize].load(Ordering::Relaxed));
                    let chain = path.chain.number as usize;
                    if self.latencies.len() <= chain {
                        self.latencies.resize_with(chain + 1, Histogram::default);
                    }
                    self.latencies[chain].record(took);
                }
                self.table.free(frame);
            }
        }
        self.urgent = held.flags & URGENT != 0;
        let word = word_after(step, hop, held.flags, number);
        self.pass(path, hop, step, &[descriptor], |_| word);
        self.urgent = false;
    }

    /// Drops one packet that is at hop `hop`.
    fn lose(&mut self, path: &Path, held: Held, hop: usize, frame: u32, why: Drop) {
        self.tell(frame, 0, held.flags, held.path, TraceWhat::Dropped(why));
        self.release_from(path, hop, 1);
        self.counters(path).drops[why as usize].add(1);
        self.discard(frame);
    }

    /// An NF sent a packet to a service: it goes to one of its instances, chosen by the packet's flow as it is now, and from there to
    /// its chain's egress port. Members of pools are given by directors alone.
    fn detour(&mut self, registry: &PathRegistry, path: &Path, held: Held, descriptor: Descriptor, service: u16) {
        let hop = held.hop as usize;
        let members = self.tables.services.get(service as usize).map_or(&[][..], |m| m);
        let mut header = [0; 64];
        let len = (descriptor.len as usize).min(header.len());
        self.frames.arena().read(descriptor.frame, descriptor.offset, &mut header[..len]);
        let hash = FlowKey::parse(&header[..len], descriptor.len, path.ingress).symmetric_hash();
        let Some(nf) = chain::picked(members, hash) else {
            let why = if self.tables.is_pooled(service) { Drop::NotShared } else { Drop::NoSuchPort };
            return self.lose(path, held, hop, descriptor.frame, why);
        };
        let (ingress, chain, under) = (path.ingress, &path.chain, self.tables.generation);
        let number =
            registry.find(&mut self.ways, &Course { ingress, chain, nfs: &[nf], reversed: &[], kind: Kind::Detour, under });
        let Some(detour) = registry.get(number) else {
            return self.lose(path, held, hop, descriptor.frame, Drop::NoSuchPort);
        };
        if self.admit_inside(detour, 1) == 0 {
            return self.lose(path, held, hop, descriptor.frame, Drop::RingFull);
        }
        self.release_from(path, hop, 1);
        self.go_on(detour, Held { path: number, hop: 0, ..held }, 0, Step::Nf(nf), descriptor);
    }

    /// Takes back every frame that a dead NF held, and says how many. What it had returned before it died is passed on first.
    ///
    /// Only the thread that drains the NF may call this, and only when no thread has its producer any more.
    pub fn reclaim(&mut self, registry: &PathRegistry, drain: &mut Drain) -> usize {
        // What a full ring holds. A process that the NF has left behind may be writing still.
        for _ in 0..drain.consumer.capacity() as usize / BURST + 1 {
            if self.forward(registry, drain) == 0 {
                break;
            }
        }
        // No thread posts to it any more, so what was posted and not returned is what it has.
        let (posted, returned) = drain.handle.posted_returned();
        let (owner, mut left, mut taken) = (drain.handle.owner(), posted.saturating_sub(returned), 0);
        // All of them are of the arena that it maps; those of a program may be of any.
        for frame in self.frames.frames_of(drain.handle.memory.load(Ordering::Relaxed)) {
            if left == 0 {
                break;
            }
            let Some(held) = self.table.reclaim(frame, owner) else { continue };
            left -= 1;
            taken += 1;
            match registry.get(held.path) {
                Some(path) => self.lose(path, held, held.hop as usize, frame, Drop::NfDied),
                // Cannot be: as in `take`.
                None => {
                    debug_assert!(false, "frame {frame} names path {}, which is not there", held.path);
                    self.discard(frame);
                }
            }
        }
        debug_assert_eq!(left, 0, "{} has fewer frames than it was given and did not return", drain.handle.name);
        taken
    }
}

/// What the table says of a packet after a step. A packet for a port is nobody's: it waits in a buffer of the manager's, and a device may
/// free it.
#[inline(always)]
fn word_after(step: Step, hop: usize, flags: u8, path: u32) -> u64 {
    match step {
        Step::Nf(nf) => Held { owner: owner::FIRST_NF + nf, hop: hop as u8, flags, path }.pack(),
        Step::Port(_) => 0,
    }
}

/// Counts violations of an NF, and condemns it past its limit. Says whether it is past it.
#[cold]
fn violations(handle: &NfHandle, what: Violation, n: u64, most: u64) -> bool {
    handle.note_violation(what);
    let is_past = handle.violations.fetch_add(n, Ordering::Relaxed).saturating_add(n) > most;
    if is_past {
        handle.condemn(Sentence::Violations);
    }
    is_past
}
