//! State of a packet thread: frames, ring ends, port buffers, tables, and its counters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluice_shm::BURST;
use sluice_shm::core_page::CorePage;
use sluice_shm::histogram::Histogram;

use crate::capture::{DropPlace, LossReason, Point, Sight, Tap};
use crate::chain::ways::Ways;
use crate::chain::{Chain, ChainCounters, DropReason, Path, PathRegistry, Tables};
use crate::classify::key::{FlowKey, LONG};
use crate::counter::Counter;
use crate::decision::Refusal;
use crate::end::NfEnd;
use crate::frame::{self, FrameCache, FrameTable, Held, InFrame, Packet, SAMPLED, TRACED};
use crate::in_flight::InFlight;
use crate::observers::{self, Observers};
use crate::pressure::Alerts;
use crate::queue::TxBuffer;
use crate::trace::{Mark, PacketTest, TraceEvent, TraceHead, TraceRequest, TraceWhat};
use crate::wake::Timers;

/// What a packet thread forwards with.
pub struct Plane {
    /// Number of this thread.
    pub index: usize,
    /// Number of threads.
    pub threads: usize,
    /// The owner of each frame.
    pub table: FrameTable,
    /// Entry time of sampled packets, by frame, in nanoseconds.
    pub entered_ns: Arc<[AtomicU64]>,
    /// Free frames.
    pub frames: FrameCache,
    /// Where packets go.
    pub tables: Arc<Tables>,
    /// Grows whenever flows must be decided again: with new tables or new advice.
    pub generation: u32,
    /// This thread's ends of the NFs' rings, by number.
    pub nfs: Vec<Option<NfEnd>>,
    /// NFs posted to since [`announce`](Plane::announce), without repetitions in a row.
    pub unannounced: Vec<u16>,
    /// Packets on their way to each NF, by number, even if it is gone: see
    /// [`Hot::in_flight`](crate::handle::Hot::in_flight).
    pub in_flight: Vec<Option<Arc<InFlight>>>,
    /// Packets that wait for ports, by number of the port.
    pub out: Vec<TxBuffer>,
    /// Ports whose buffer filled up since this was cleared: a bit each, by number modulo 64.
    pub filled: u64,
    /// Latency of sampled packets that left here, from entry to exit, by chain number.
    pub latencies: Vec<Option<Histogram>>,
    /// Packets that no chain let in, by [`Refusal`].
    pub refused: [Counter; Refusal::ALL.len()],
    /// Packets that left their chain and were dropped because their port has no owner any more.
    pub unsent: Counter,
    /// Now, in nanoseconds.
    pub now_ns: u64,
    /// What looks at packets, if anything does.
    pub observers: Option<Box<Observers>>,
    /// Configured settings.
    pub settings: ForwardSettings,
    /// NFs that run in this thread.
    pub inlines: Vec<u16>,
    /// All paths.
    pub registry: Arc<PathRegistry>,
    /// Alerts for the Wakeup role.
    pub alerts: Arc<Alerts>,
    /// Ports, by number, whose sending thread has a full buffer: others keep their packets.
    pub jammed: Arc<[AtomicBool]>,
    /// Timers of NFs that are not woken for each packet.
    pub timers: Timers,
    /// Whether the packet passed on now is [`URGENT`](crate::frame::URGENT).
    pub urgent: bool,
    /// This thread's cache of paths.
    pub ways: Ways,
    /// Packets that each chain may let in before its frames are counted again, by number.
    pub rooms: Vec<u32>,
    /// Chains whose hops changed recently, and until when their packets may be held, in
    /// nanoseconds: see [`Plane::awaits_former`].
    pub changed: Vec<(u16, u64)>,
    /// Packets that all chains together may let in before frames are counted again.
    pub unlooked: u32,
}

/// State that all packet threads share.
#[derive(Clone)]
pub struct Shared {
    /// The owner of each frame.
    pub table: FrameTable,
    /// Entry time of sampled packets, by frame, in nanoseconds.
    pub entered_ns: Arc<[AtomicU64]>,
    /// Alerts for the Wakeup role.
    pub alerts: Arc<Alerts>,
    /// Ports, by number, whose sending thread has a full buffer.
    pub jammed: Arc<[AtomicBool]>,
    /// All paths.
    pub registry: Arc<PathRegistry>,
}

/// Configured forwarding settings.
#[derive(Debug, Clone, Copy)]
pub struct ForwardSettings {
    /// Sampling period (packets of a chain) for latency; 0: none.
    pub sample_every: u32,
    /// Whether packets are let in only if all NFs of their path have room; else full rings drop.
    pub backpressure: bool,
    /// Whether packets are marked.
    pub ecn: bool,
    /// Violations past which an NF is stopped and no longer drained.
    pub max_violations: u64,
    /// Whether packets are not looked up in the flow table where all of a port take one path.
    pub skips_lookups: bool,
    /// Paths in a thread's cache, which saves asking the registry.
    pub ways: usize,
}

/// Longest time that packets wait at the entry of a changed chain, in nanoseconds. Packets behind
/// them in their queue wait, too, in the rings of devices and the kernel.
const CHANGE_NS: u64 = 50_000_000;

impl Plane {
    /// For thread number `index` of `threads`.
    pub fn new(index: usize, threads: usize, shared: Shared, frames: FrameCache, settings: ForwardSettings) -> Self {
        let Shared { table, entered_ns, alerts, jammed, registry } = shared;
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
            now_ns: 0,
            observers: None,
            settings,
            inlines: Vec::new(),
            registry,
            alerts,
            jammed,
            timers: Timers::default(),
            urgent: false,
            ways: Ways::new(settings.ways, index),
            rooms: Vec::new(),
            changed: Vec::new(),
            unlooked: 0,
        }
    }

    /// The first bytes of a packet, and their number.
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
        self.report_refused(packet, key, chain, why.into());
        self.discard(packet.frame);
    }

    /// Clears what is kept by number of chains that are new or gone, and records which chains
    /// changed.
    pub(crate) fn meet_chains(&mut self, tables: &Tables) {
        let former = self.tables.chains.iter().flatten();
        let is_other = |chain: &&Arc<Chain>| {
            let now = tables.chains.get(usize::from(chain.number)).and_then(Option::as_ref);
            now.is_some_and(|now| now.version != chain.version)
        };
        let (now_ns, until_ns) = (self.now_ns, self.now_ns + CHANGE_NS);
        self.changed.retain(|(_, until_ns)| now_ns < *until_ns);
        self.changed.extend(former.filter(is_other).map(|chain| (chain.number, until_ns)));
        let is_there = |tables: &Tables, number: usize| tables.chains.get(number).is_some_and(Option::is_some);
        let numbers = 0..tables.chains.len().max(self.tables.chains.len());
        for number in numbers.filter(|number| is_there(tables, *number) != is_there(&self.tables, *number)) {
            self.latencies.get_mut(number).into_iter().for_each(|latencies| *latencies = None);
            self.rooms.get_mut(number).into_iter().for_each(|room| *room = 0);
        }
    }

    #[inline(always)]
    pub(crate) fn counters<'a>(&self, path: &'a Path) -> &'a ChainCounters {
        &path.chain.counters[self.index]
    }

    #[inline(always)]
    pub(crate) fn memory_of(&self, nf: u16) -> u8 {
        match self.nfs.get(nf as usize) {
            Some(Some(end)) => end.memory,
            _ => frame::NO_ARENA,
        }
    }

    /// The arenas that a chain's packets may lie in: its NFs', or [`frame::NO_ARENA`] without NFs.
    pub(crate) fn arenas_of(&self, chain: &Chain, tables: &Tables) -> BTreeSet<u8> {
        // All instances of a service are of one tenant.
        let first = |service: &u16| tables.services.get(usize::from(*service))?.first().map(|member| self.memory_of(member.nf));
        let mut arenas: BTreeSet<u8> =
            chain.services.iter().filter_map(first).filter(|memory| *memory != frame::NO_ARENA).collect();
        if arenas.is_empty() {
            arenas.insert(frame::NO_ARENA);
        }
        arenas
    }

    /// Frees a packet's frame.
    #[inline(always)]
    pub fn discard(&mut self, frame: u32) {
        self.table.free(frame);
        self.frames.free(frame);
    }

    /// Counts packets that a chain lost.
    pub fn count_lost(&self, chain: &Chain, why: DropReason, n: u64) {
        chain.counters[self.index].drops[why as usize].add(n);
    }

    /// The active trace.
    #[inline(always)]
    pub(crate) fn trace(&self) -> Option<&TraceRequest> {
        self.observers.as_ref()?.trace.as_deref()
    }

    /// Shows packets in this thread's hands to the captures, if there are any.
    #[inline(always)]
    pub(crate) fn show<T: InFrame>(&mut self, sight: &Sight<'_>, packets: &[T]) {
        observers::show(&mut self.observers, self.frames.arena(), self.now_ns, sight, packets);
    }

    /// Shows packets of a path that are dropped at a place.
    #[cold]
    #[inline(never)]
    pub(crate) fn show_lost<T: InFrame>(&mut self, path: &Path, why: DropReason, place: Option<DropPlace>, packets: &[T]) {
        self.show(&Sight::lost(path, why, place), packets);
    }

    /// Shows packets that came back from hop `hop` of a path.
    #[inline(always)]
    pub(crate) fn show_back<T: InFrame>(&mut self, path: &Path, hop: usize, packets: &[T]) {
        if self.observers.is_some()
            && let Some(hop) = path.hops.get(hop)
        {
            observers::show_on(&mut self.observers, self.frames.arena(), self.now_ns, path, Point::FromNf(hop.nf), packets);
        }
    }

    /// Shows a packet of `len` bytes that an NF has not given back, whose frame is free already,
    /// and of which these bytes are first.
    #[cold]
    pub fn show_lost_inside(&mut self, chain: u16, nf: u16, len: u16, bytes: &[u8]) {
        if let Some(observers) = &mut self.observers {
            let (why, place) = (Some(DropReason::NotBack.into()), Some(DropPlace::Nf(nf)));
            let sight = Sight { point: Point::Dropped, why, place, ingress: None, chain: Some(chain), hops: &[] };
            observers.show_bytes(self.now_ns, &sight, len, bytes);
        }
    }

    /// Records an event of a traced packet that went into a program.
    pub fn record_mark(&self, mark: &Mark, what: TraceWhat) {
        if mark.flags & TRACED != 0
            && let Some(trace) = self.trace()
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

    /// Records a hop of a traced packet.
    #[inline(always)]
    pub(crate) fn record_hop(&self, frame: u32, len: u16, held_flags: u8, path: u32, what: TraceWhat) {
        if held_flags & TRACED != 0
            && let Some(trace) = self.trace()
        {
            let packet = (self.entered_ns[frame as usize].load(Ordering::Relaxed), frame);
            // A full queue loses hops of the trace, never packets.
            let _ = trace.events.push(TraceEvent { packet, path: Some(path), what, at_ns: self.now_ns, len });
        }
    }

    /// Whether the active trace still picks packets.
    #[inline(always)]
    pub(crate) fn is_tracing(&self) -> bool {
        self.trace().is_some_and(|trace| trace.wants_more())
    }

    /// Whether anything looks at packets that are dropped at the entry.
    #[inline(always)]
    pub(crate) fn is_watched(&self) -> bool {
        let shows = |observers: &Observers| observers.meter.is_some() || observers.taps.iter().any(Tap::shows_drops);
        self.observers.as_deref().is_some_and(shows) || self.is_tracing()
    }

    /// Whether the active trace covers a packet with this key, whatever its chain.
    pub fn traces(&self, key: &FlowKey, packet: Packet) -> bool {
        let Some(trace) = self.trace() else { return false };
        let is_accepted = |filter: &dyn PacketTest| {
            let (bytes, len) = self.head_of(packet);
            filter.accepts(&bytes[..len], packet.len.into())
        };
        trace.ingress.is_none_or(|port| port == key.ingress())
            && trace.rule.is_none_or(|rule| self.tables.rules.first_rule(key) == Some(rule))
            && trace.filter.as_deref().is_none_or(is_accepted)
    }

    /// Shows a packet that is dropped at the entry to those that look. `chain` may be unknown.
    #[cold]
    pub(crate) fn report_refused(&mut self, packet: Packet, key: &FlowKey, chain: Option<u16>, why: LossReason) {
        if self.traces(key, packet) {
            self.note_refused(packet, key.ingress(), chain, why);
        }
        self.show(&Sight::refused(Some(key.ingress()), chain, why, key.ingress()), &[packet]);
    }

    /// Traces a packet that is dropped at the entry, and whose key the trace covers.
    #[cold]
    pub(crate) fn note_refused(&self, packet: Packet, ingress: u16, chain: Option<u16>, why: LossReason) {
        if let Some(trace) = self.trace()
            && (trace.chain.is_none() || trace.chain == chain)
            && trace.pick()
        {
            let (what, at_ns) = (TraceWhat::Refused { ingress, chain, why: why.name() }, self.now_ns);
            let packet_then = (at_ns, packet.frame);
            self.record_head(packet);
            let _ = trace.events.push(TraceEvent { packet: packet_then, path: None, what, at_ns, len: packet.len });
        }
    }

    /// Records the first bytes of a traced packet at its entry, before its first event.
    #[cold]
    pub(crate) fn record_head(&self, packet: Packet) {
        if let Some(trace) = self.trace() {
            let (bytes, len) = self.head_of(packet);
            let _ = trace.heads.push(TraceHead { packet: (self.now_ns, packet.frame), bytes, len: len as u16 });
        }
    }

    /// Marks NFs that were posted to on their core pages: once a round, before sleeping NFs are
    /// looked for. One barrier for all waits for all stores of the round: a barrier for each NF
    /// took a third of the time where every packet went to another NF.
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

    /// Wakes the NFs whose timers expired.
    #[inline]
    pub(crate) fn wake_late(&mut self) {
        while let Some(nf) = self.timers.late(self.now_ns) {
            if let Some(Some(end)) = self.nfs.get_mut(nf as usize) {
                end.wake_late(self.index, self.now_ns);
            }
        }
    }
}
