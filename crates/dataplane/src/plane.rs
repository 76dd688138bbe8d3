//! What a packet thread has in its hands: frames, ends of rings, buffers of ports, tables, and what it counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use sluice_shm::BURST;
use sluice_shm::core_page::CorePage;
use sluice_shm::histogram::Histogram;

use crate::chain::ways::Ways;
use crate::chain::{Chain, ChainCounters, DropReason, Path, Tables};
use crate::classify::key::{FlowKey, LONG};
use crate::counter::Counter;
use crate::decision::Refusal;
use crate::end::NfEnd;
use crate::frame::{self, FrameCache, FrameTable, Held, Packet, SAMPLED, TRACED};
use crate::pressure::Alerts;
use crate::queue::TxBuffer;
use crate::trace::{Mark, TraceEvent, TraceRequest, TraceWhat};
use crate::wake::Timers;

/// What a packet thread forwards with.
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
    /// This thread's ends of the NFs' rings, by number.
    pub nfs: Vec<Option<NfEnd>>,
    /// NFs that were posted to since [`announce`](Plane::announce), each once in a row.
    pub unannounced: Vec<u16>,
    /// Packets on their way to each NF, by number, kept when an NF is gone: see
    /// [`NfHandle::in_flight`](crate::handle::NfHandle::in_flight).
    pub in_flight: Vec<Option<Arc<AtomicU32>>>,
    /// Packets that wait for ports, by number of the port.
    pub out: Vec<TxBuffer>,
    /// Which of these had no room for another burst after one was put there, since this was last
    /// emptied: a bit for each port, by its number modulo 64.
    pub filled: u64,
    /// Latency by chain number, from entry to exit, of the sampled packets that left here.
    pub latencies: Vec<Histogram>,
    /// Packets that no chain has let in, by [`Refusal`].
    pub refused: [Counter; Refusal::ALL.len()],
    /// Packets that had left their chain, and were dropped because nobody has their port any more.
    pub unsent: Counter,
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
    /// A packet that is passed on now is [`URGENT`](crate::frame::URGENT).
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

/// What all packet threads share.
#[derive(Clone)]
pub struct Shared {
    /// Who has which frame.
    pub table: FrameTable,
    /// When sampled packets entered, by frame, in nanoseconds.
    pub entered_ns: Arc<[AtomicU64]>,
    /// To the Wakeup role.
    pub alerts: Arc<Alerts>,
    /// Ports whose buffer at the thread that sends for them is full, by number.
    pub jammed: Arc<[AtomicBool]>,
}

/// How packets are forwarded, as the configuration says.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Of so many packets of a chain one is timed; 0: none.
    pub sample_every: u32,
    /// Whether packets are let in only where every NF of their path has room; else full rings inside drop.
    pub backpressure: bool,
    /// Whether packets are marked.
    pub ecn: bool,
    /// Violations after which an NF is stopped, and drained no further.
    pub max_violations: u64,
    /// Paths that a thread notes, so that it need not ask the registry for their numbers.
    pub ways: usize,
}

/// For so long packets wait at the entry of a chain that has changed, at most, in nanoseconds: while they do, those behind them in their queue
/// wait too, which the rings of devices and of the kernel bear.
const CHANGE_NS: u64 = 50_000_000;

impl Plane {
    /// For thread number `index` of `threads`.
    pub fn new(index: usize, threads: usize, shared: Shared, frames: FrameCache, settings: Settings) -> Self {
        let Shared { table, entered_ns, alerts, jammed } = shared;
        let Settings { sample_every, backpressure, ecn, max_violations, ways } = settings;
        Self {
            index,
            threads,
            table,
            entered_ns,
            frames,
            tables: Arc::default(),
            generation: 0,
            nfs: Vec::new(),
            unannounced: Vec::with_capacity(BURST * 2),
            in_flight: Vec::new(),
            out: Vec::new(),
            filled: 0,
            latencies: Vec::new(),
            refused: Default::default(),
            unsent: Counter::default(),
            sample_every,
            now_ns: 0,
            trace: None,
            backpressure,
            ecn,
            max_violations,
            alerts,
            jammed,
            timers: Timers::default(),
            urgent: false,
            ways: Ways::new(ways),
            rooms: Vec::new(),
            changed: Vec::new(),
            unlooked: 0,
        }
    }

    /// The first bytes of a packet, and how many there are.
    pub fn head_of(&self, packet: Packet) -> ([u8; LONG], usize) {
        let mut bytes = [0; LONG];
        let len = (packet.len as usize).min(LONG);
        let there = self.frames.arena().read(packet.frame, packet.offset, &mut bytes[..len]);
        (bytes, if there { len } else { 0 })
    }

    /// The flow key of a packet that came in at a port.
    pub fn key_of(&self, packet: Packet, ingress: u16) -> FlowKey {
        let (bytes, len) = self.head_of(packet);
        FlowKey::parse(&bytes[..len], packet.len, ingress)
    }

    /// Drops a packet at the entry. `chain` is its chain, if it has one.
    #[cold]
    pub fn refuse_one(&mut self, packet: Packet, key: &FlowKey, chain: Option<u16>, why: Refusal) {
        self.refused[why as usize].add(1);
        self.tell_refused(packet, key, chain, why.name());
        self.discard(packet.frame);
    }

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
    pub(crate) fn counters<'a>(&self, path: &'a Path) -> &'a ChainCounters {
        &path.chain.counters[self.index]
    }

    /// The arena that packets for an NF lie in.
    #[inline(always)]
    pub(crate) fn memory_of(&self, nf: u16) -> u8 {
        match self.nfs.get(nf as usize) {
            Some(Some(end)) => end.memory,
            _ => frame::NO_ARENA,
        }
    }

    /// Gives a packet's frame back.
    #[inline(always)]
    pub fn discard(&mut self, frame: u32) {
        self.table.free(frame);
        self.frames.free(frame);
    }

    /// Counts packets that are lost to a chain.
    pub fn count_lost(&self, chain: &Chain, why: DropReason, n: u64) {
        chain.counters[self.index].drops[why as usize].add(n);
    }

    /// Notes what became of a traced packet that went into a program.
    pub fn tell_of(&self, mark: &Mark, what: TraceWhat) {
        if mark.flags & TRACED != 0
            && let Some(trace) = &self.trace
        {
            let packet = (mark.entered_ns, mark.frame);
            let _ = trace.events.push(TraceEvent { packet, path: Some(mark.path), what, at_ns: self.now_ns, len: mark.len });
        }
    }

    /// The mark of a packet that goes into a program.
    pub fn mark_of(&self, packet: Packet, held: Held) -> Mark {
        let entered_ns = self.entered_ns[packet.frame as usize].load(Ordering::Relaxed);
        Mark { flags: held.flags & (SAMPLED | TRACED), frame: packet.frame, len: packet.len, path: held.path, entered_ns }
    }

    /// Notes a hop of a traced packet.
    #[inline(always)]
    pub(crate) fn tell(&self, frame: u32, len: u16, held_flags: u8, path: u32, what: TraceWhat) {
        if held_flags & TRACED != 0
            && let Some(trace) = &self.trace
        {
            let packet = (self.entered_ns[frame as usize].load(Ordering::Relaxed), frame);
            // A full queue loses hops of the trace, never packets.
            let _ = trace.events.push(TraceEvent { packet, path: Some(path), what, at_ns: self.now_ns, len });
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
    pub(crate) fn note_refused(&self, packet: Packet, ingress: u16, chain: Option<u16>, why: &'static str) {
        if let Some(trace) = &self.trace
            && (trace.chain.is_none() || trace.chain == chain)
            && trace.pick()
        {
            let (what, at_ns) = (TraceWhat::Refused { ingress, chain, why }, self.now_ns);
            let packet_then = (at_ns, packet.frame);
            let _ = trace.events.push(TraceEvent { packet: packet_then, path: None, what, at_ns, len: packet.len });
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

    /// Wakes the NFs whose packets have waited long enough.
    #[inline]
    pub fn wake_late(&mut self) {
        while let Some(nf) = self.timers.late(self.now_ns) {
            if let Some(Some(end)) = self.nfs.get_mut(nf as usize) {
                end.wake_late(self.index, self.now_ns);
            }
        }
    }
}
