//! One NF process, as the packet threads and the supervisor share it.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use sluice_api::model::{NfCounts, SchedCounts};
use sluice_ownership::agree;
use sluice_policy::sched::priority::{self, Weight, level};
use sluice_policy::sched::reserve::Reservation;
use sluice_policy::sched::threshold::Rules;
use sluice_policy::sched::wakeup;
use sluice_shm::clock::monotonic_ns;
use sluice_shm::core_page::{ALONE, CorePage, HELD, Said, WHOLE};
use sluice_shm::doorbell;
use sluice_shm::page::{Control, Region, asleep};
use sluice_shm::ring;

use crate::counter::Counter;
use crate::frame::owner;
use crate::in_flight::InFlight;
use crate::wake::{CAUSES, Start};
use crate::waker::Waker;

/// What one manager thread counts for one NF.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct NfCounters {
    /// What the API reports.
    pub api: NfCounts<Counter>,
    /// The same of its scheduling.
    pub sched: SchedCounts<Counter>,
    /// Packets refused at the entry of a path that passes it.
    pub refused: Counter,
    /// Times that it was started, if not for each packet, by cause as
    /// [`StartCause::ALL`](sluice_policy::sched::threshold::StartCause::ALL).
    pub woken: [Counter; CAUSES],
}

/// A measured quantity that one thread writes and all may read.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// A gauge with this value.
    pub fn new(value: f64) -> Self {
        Self(AtomicU64::new(value.to_bits()))
    }

    /// Sets it.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// Measurements of an NF's load, and decisions about it. All read them; each names its writer.
#[derive(Debug, Default)]
pub struct Load {
    /// Packets per second for it, including those refused at an entry. By Monitor.
    pub arrival_pps: Gauge,
    /// Median service time over 100 ms, in nanoseconds a packet; 0 until known. By Monitor.
    pub service_ns: Gauge,
    /// Its share of its core, 0 to 1. By the controller.
    pub share: Gauge,
    /// Times that the share was written. By the controller.
    pub writes: AtomicU64,
    /// Cost of a packet in nanoseconds, if scheduled from outside; 0 until known. By Wakeup.
    pub outside_ns: Gauge,
    /// Slices of its core that it was given from outside. By Wakeup.
    pub slices: AtomicU64,
    /// Its reserved part of the core. By the supervisor.
    pub reserve: Reserve,
}

/// The part of its core reserved for an NF, shared with the others of its group.
#[derive(Debug, Default)]
pub struct Reserve {
    /// The group; 0: none.
    group: AtomicU32,
    part: Gauge,
}

impl Reserve {
    /// Reserves a part, 0 to 1, for the NFs of a group; `None` reserves nothing.
    pub fn set(&self, part: Option<Reservation>) {
        self.part.set(part.map_or(0.0, |part| part.part));
        // Relaxed: a reader that sees only one of the words uses it for 10 ms at most.
        self.group.store(part.map_or(0, |part| part.group), Ordering::Relaxed);
    }

    /// The reservation, if there is one.
    pub fn get(&self) -> Option<Reservation> {
        let group = self.group.load(Ordering::Relaxed);
        (group != 0).then(|| Reservation { group, part: self.part.get() })
    }
}

/// What keeps packets from an NF. Read at every gate.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Holds {
    /// The paths that pass it are refused at their entry. By Wakeup.
    pub throttled: AtomicBool,
    /// It must sleep: its packets could only be dropped or wait further down. By Wakeup.
    pub held: AtomicBool,
    /// Times that it was throttled. By Wakeup.
    pub throttles: AtomicU64,
}

/// Why an NF must be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StopReason {
    /// It may go on.
    None = 0,
    /// It committed more violations than allowed.
    Violations = 1,
    /// It held packets and returned none for too long.
    Stalled = 2,
    /// Its flow has ended, and the next one gets a fresh process.
    Spent = 3,
    /// Its handlers run in a packet thread and have failed.
    Failed = 4,
}

/// A kind of violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Violation {
    /// It returned a frame that it did not hold.
    Frame = 1,
    /// It returned a packet outside its frame, or with an undefined verdict.
    Descriptor = 2,
    /// It sent a packet to a destination that its service may not use.
    Destination = 3,
    /// It moved the cursor of a ring that it reads to where there are no packets.
    RxCursor = 4,
    /// It moved the cursor of a ring that it writes to where there is no space.
    TxCursor = 5,
    /// It punched a hole in shared memory, or may have.
    Hole = 6,
}

impl Violation {
    const ALL: [Self; 6] = [Self::Frame, Self::Descriptor, Self::Destination, Self::RxCursor, Self::TxCursor, Self::Hole];
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Frame => "returned a frame that it did not have",
            Self::Descriptor => "returned a packet with a wild offset, length or verdict",
            Self::Destination => "sent a packet where its service may not (may_send_to)",
            Self::RxCursor => "moved the cursor of a ring that it reads to where no packets are",
            Self::TxCursor => "moved the cursor of a ring that it writes to where no room is",
            Self::Hole => "has, or may have, made a hole in shared memory",
        })
    }
}

/// What packet threads read of an NF for each run of packets, besides its [`Holds`], on one cache
/// line.
#[derive(Debug)]
#[repr(align(64))]
pub struct Hot {
    /// Packets let in at an entry that have not passed it yet. Belongs to the NF's number: packets
    /// let in before a restart pass the new process or are dropped, and are counted off.
    pub in_flight: Arc<InFlight>,
    /// Counters, by manager thread.
    pub counters: Box<[NfCounters]>,
    /// The page of its core (and tenant).
    pub core_page: CorePage,
    /// Its slot there.
    pub slot: u32,
    /// Most packets that may be on their way to it: the capacity of its ring. Threads that let
    /// packets in at once never exceed it ([`InFlight`]), so no slot is kept back for them.
    pub limit: u32,
    /// Its number, also the owner of its frames.
    pub number: u16,
    /// Whether it never sleeps.
    pub poll: bool,
}

const _: () = assert!(size_of::<Hot>() == 64);

impl Deref for NfHandle {
    type Target = Hot;

    #[inline(always)]
    fn deref(&self) -> &Hot {
        &self.hot
    }
}

/// One NF process. A restart makes a new handle.
#[derive(Debug)]
pub struct NfHandle {
    /// What packet threads read for each run of packets.
    pub hot: Hot,
    /// Its name, `SERVICE.i`.
    pub name: String,
    /// Number of its service.
    pub service: u16,
    /// Its processor.
    pub core: usize,
    /// Its page and rings.
    pub region: Region,
    /// Whether it may be given packets.
    pub alive: AtomicBool,
    /// Violations so far.
    pub violations: AtomicU64,
    /// Its latest [`Violation`]; 0: none.
    last_violation: AtomicU8,
    stop_reason: AtomicU8,
    /// Until then it is not stopped for standing still, in nanoseconds of the monotonic clock.
    respite_ns: AtomicU64,
    /// Wakes the supervisor when the NF must be stopped.
    pub waker: OnceLock<Arc<Waker>>,
    /// When it returned its first packet, in monotonic nanoseconds; 0: not yet.
    pub first_return_ns: AtomicU64,
    /// What keeps packets from it.
    pub gate: Holds,
    /// Its load.
    pub load: Load,
    /// Weight factor of its service, besides its load. By the supervisor.
    pub priority: Gauge,
    /// Weight of its flow; 1 unless it has a single flow. By the thread that steers it.
    pub flow_weight: Gauge,
    /// Whether it is scheduled from outside ([`Sharing`](crate::hooks::Sharing)).
    pub governed: AtomicBool,
    /// Whether it gets slices without packets, because it has to end.
    pub wants_core: AtomicBool,
    /// Whether the manager reads its ring for it ([`Feeder`](crate::hooks::Feeder)). Set before it
    /// is given packets.
    pub is_fed: AtomicBool,
    /// When it is woken, if not for each packet.
    pub wakeup: Option<Rules>,
    /// Start of its current flow.
    pub start: Start,
    /// It was released: it gets no flows and may be stopped. By the thread that steers it.
    pub dismissed: AtomicBool,
    /// It took over flows, and its packets wait for the last old one ([`crate::succession`]).
    pub is_behind: AtomicBool,
    /// Its packets wait for a port, so standing still is not its fault. By its Tx thread.
    pub is_held_up: AtomicBool,
    /// Number of its tenant's arena; [`NO_ARENA`](crate::frame::NO_ARENA) if it maps none.
    pub memory: AtomicU8,
    /// Whether it is outside hand-overs: the manager wakes it, the kernel schedules it. By Wakeup.
    pub alone: AtomicBool,
    /// When a packet thread last woke it, in nanoseconds of the monotonic clock.
    pub rung_ns: AtomicU64,
    /// What was written about it on the core page. Others can write there, so decisions use these.
    said: SaidWords,
    gauges: Box<[ring::Gauge]>,
}

/// As [`Said`]; each word is written by the role that decides it.
#[derive(Debug, Default)]
struct SaidWords {
    depth: AtomicU32,
    share: AtomicU32,
    level: AtomicU32,
    pressing: AtomicU32,
}

impl NfHandle {
    /// A handle for an NF that has not attached yet.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        number: u16,
        name: String,
        service: u16,
        core: usize,
        poll: bool,
        region: Region,
        core_page: CorePage,
        slot: u32,
        threads: usize,
        in_flight: Arc<InFlight>,
        priority: f64,
        wakeup: Option<Rules>,
    ) -> Arc<Self> {
        let capacity = region.page.layout().capacity;
        let gauges = (0..region.page.layout().rx_rings).filter_map(|ring| region.rx_gauge(ring)).collect();
        let counters = (0..threads).map(|_| NfCounters::default()).collect();
        let handle = Self {
            hot: Hot { in_flight, counters, core_page, slot, limit: capacity, number, poll },
            name,
            service,
            core,
            region,
            alive: AtomicBool::new(true),
            violations: AtomicU64::new(0),
            last_violation: AtomicU8::new(0),
            stop_reason: AtomicU8::new(StopReason::None as u8),
            respite_ns: AtomicU64::new(0),
            waker: OnceLock::new(),
            first_return_ns: AtomicU64::new(0),
            gate: Holds::default(),
            load: Load::default(),
            priority: Gauge::new(priority),
            flow_weight: Gauge::new(1.0),
            governed: AtomicBool::new(false),
            wants_core: AtomicBool::new(false),
            is_fed: AtomicBool::new(false),
            wakeup: wakeup.filter(|_| !poll),
            start: Start::default(),
            dismissed: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
            is_held_up: AtomicBool::new(false),
            memory: AtomicU8::new(0),
            alone: AtomicBool::new(false),
            rung_ns: AtomicU64::new(0),
            // As in an empty slot.
            said: SaidWords { share: AtomicU32::new(WHOLE / 8), ..SaidWords::default() },
            gauges,
        };
        handle.set_level(level(priority).into());
        Arc::new(handle)
    }

    /// What the core page must say about it.
    #[inline]
    pub fn said(&self) -> Said {
        // Relaxed: each word stands alone. A missed change is followed by another write.
        let get = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let is = |flag: &AtomicBool, bit: u32| if flag.load(Ordering::Relaxed) { bit } else { 0 };
        let hold = is(&self.gate.held, HELD) | is(&self.alone, ALONE);
        let SaidWords { depth, share, level, pressing } = &self.said;
        Said { depth: get(depth), hold, share: get(share), level: get(level), pressing: get(pressing) }
    }

    /// Its share of its core, of [`WHOLE`].
    #[inline]
    pub fn share(&self) -> u32 {
        self.said.share.load(Ordering::Relaxed)
    }

    /// How far down its chains it is.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.said.depth.load(Ordering::Relaxed)
    }

    /// Its level: higher levels go first.
    #[inline]
    pub fn level(&self) -> u32 {
        self.said.level.load(Ordering::Relaxed)
    }

    /// Sets its share of its core, of [`WHOLE`].
    pub fn set_share(&self, share: u32) {
        self.said.share.store(share, Ordering::Relaxed);
        self.core_page.share(self.slot).store(share, Ordering::Relaxed);
    }

    fn set_level(&self, level: u32) {
        self.said.level.store(level, Ordering::Relaxed);
        self.core_page.set_level(self.slot, level);
        self.favour();
    }

    /// The page's bit follows level and pressing, which several threads decide.
    fn favour(&self) {
        let write = |is_favoured| {
            self.core_page.favour(self.slot, is_favoured);
        };
        agree::follow(|| self.said().is_favoured(), write);
    }

    /// Writes on the core page whether its neighbours may start it, after a change of that.
    pub(crate) fn publish_hold(&self) {
        self.core_page.hold(self.slot).store(self.said().hold, Ordering::Relaxed);
    }

    /// Excludes it from hand-overs on its core, or includes it again. Returns whether that changed.
    pub(crate) fn set_alone(&self, alone: bool) -> bool {
        if self.alone.swap(alone, Ordering::Relaxed) == alone {
            return false;
        }
        self.region.page.control(Control::Alone).store(u32::from(alone), Ordering::Relaxed);
        self.publish_hold();
        if !alone {
            // It may sleep where only the manager wakes it.
            doorbell::ring(self.region.page.doorbell());
        }
        true
    }

    /// Makes it wait for the doorbell in its own page too when it sleeps, or not any more.
    pub(crate) fn set_guarded(&self, guarded: bool) {
        self.region.page.control(Control::Guarded).store(u32::from(guarded), Ordering::Relaxed);
    }

    /// Packets on its rings that it has not read. The NF itself writes part of this, no other does.
    #[inline]
    pub fn unread(&self) -> u32 {
        self.gauges.iter().map(ring::Gauge::fill).sum()
    }

    /// Packets that it ever took from its rings, modulo 2³². The NF writes this.
    #[inline]
    pub fn taken(&self) -> u32 {
        self.gauges.iter().fold(0u32, |sum, ring| sum.wrapping_add(ring.taken()))
    }

    /// Whether it has packets that it has not returned, so that some may be unread.
    #[inline]
    pub(crate) fn may_have_unread(&self) -> bool {
        let (posted, returned) = self.posted_returned();
        posted > returned
    }

    /// Whether its page says that it sleeps.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        // Acquire: what it read before it went to sleep is visible.
        self.region.page.asleep().load(Ordering::Acquire) != 0
    }

    /// Whether its page says that it sleeps where others can take its wakes.
    pub fn is_deaf(&self) -> bool {
        let says = self.region.page.asleep().load(Ordering::Acquire);
        says & asleep::ASLEEP != 0 && says & asleep::HEARS == 0
    }

    /// Whether its page says that it waits for something other than packets.
    #[inline]
    pub fn is_suspended(&self) -> bool {
        self.region.page.asleep().load(Ordering::Relaxed) & asleep::SUSPENDED != 0
    }

    /// Wakes it at `now_ns` if its page says that it sleeps. Returns whether this call woke it.
    pub fn wake(&self, now_ns: u64) -> bool {
        // AcqRel: one waker takes the word.
        let says = self.region.page.asleep().swap(0, Ordering::AcqRel);
        if says == 0 {
            return false;
        }
        self.rung_ns.store(now_ns, Ordering::Relaxed);
        // No neighbour wakes it as well.
        self.core_page.asleep(self.slot).store(0, Ordering::Relaxed);
        if says & asleep::HEARS != 0 {
            doorbell::ring(self.region.page.doorbell());
        } else {
            doorbell::ring(self.core_page.doorbell(self.slot));
        }
        true
    }

    /// Wakes it whatever the pages say. Unless it hears its own doorbell, wakes up to `sleepers`
    /// waiters of its doorbell on the core page, where others can wait, too. Returns how many of
    /// these it woke.
    pub fn rouse(&self, sleepers: u32) -> usize {
        // SeqCst: what it is woken for is visible before we read how it sleeps. It says that it
        // sleeps, then looks for work: one of the two sees the other.
        fence(Ordering::SeqCst);
        let says = self.region.page.asleep().swap(0, Ordering::AcqRel);
        self.core_page.asleep(self.slot).store(0, Ordering::Relaxed);
        // Always its own: another waker rang one of the two, and it may wait for both.
        doorbell::ring(self.region.page.doorbell());
        if says & asleep::HEARS == 0 { doorbell::ring_for(self.core_page.doorbell(self.slot), sleepers) } else { 0 }
    }

    /// Whether it stands still through no fault of its own: it sleeps with unread packets, and was
    /// not woken since then. One that has read all, or waits for something else, is at fault.
    pub(crate) fn was_never_woken(&self, since_ns: u64) -> bool {
        let is_unaware = !self.poll && self.is_asleep() && !self.is_suspended() && self.unread() > 0;
        is_unaware && self.rung_ns.load(Ordering::Relaxed) < since_ns
    }

    /// Weight factor besides its load: of its service and of its flow.
    pub fn weight(&self) -> f64 {
        self.priority.get() * self.flow_weight.get()
    }

    /// Changes the weight factor of its service, and with it its level on the core page. The
    /// kernel's priority is left to the caller, and the share to the controller.
    pub fn set_priority(&self, priority: f64) {
        /// The thread that steers it may assign a flow meanwhile; more often than this it cannot.
        const TRIES: usize = 8;
        self.priority.set(priority);
        for _ in 0..TRIES {
            let weight = self.weight();
            self.set_level(level(weight).into());
            // SeqCst: of two threads that change a factor and then the level, the later one sees
            // both factors.
            fence(Ordering::SeqCst);
            if self.weight() == weight {
                return;
            }
        }
    }

    /// How far above the lowest priority of class rr it is: see [`priority::rank`].
    pub fn rank(&self, downstream_first: bool) -> u8 {
        priority::rank(level(self.weight()), self.depth(), downstream_first)
    }

    /// Assigns a flow. The core page changes at once. True if the kernel's priority must be
    /// updated, which is left to the caller.
    #[inline]
    pub fn assign(&self, weight: Weight) -> bool {
        let (new, old) = (weight.get(), self.flow_weight.get());
        let changes = new != old;
        if changes {
            self.flow_weight.set(new);
            let scaled = f64::from(self.share()) * new / old;
            // Until the controller has visited all NFs of the core.
            self.set_share((scaled as u32).clamp(1, WHOLE));
            self.set_level(level(self.weight()).into());
        }
        if self.level() > 0 {
            // Its first packets already have priority.
            let share = f64::from(self.share()) / f64::from(WHOLE);
            self.core_page.endow(self.slot, wakeup::part_ns(wakeup::ROUND_NS, share).unsigned_abs());
        }
        changes
    }

    /// Adds a flow: the most important of its flows counts. Else as [`Self::assign`].
    #[inline]
    pub fn join(&self, weight: Weight) -> bool {
        weight.get() > self.flow_weight.get() && self.assign(weight)
    }

    /// Writes its depth in its chains on the core page, given the depths of all services.
    pub fn place(&self, depths: &[u32], downstream_first: bool) {
        let depth = depths.get(self.service as usize).copied().unwrap_or(0);
        let pressing = priority::pressing(depth, self.capacity(), downstream_first);
        self.said.depth.store(depth, Ordering::Relaxed);
        self.said.pressing.store(pressing, Ordering::Relaxed);
        self.core_page.depth(self.slot).store(depth, Ordering::Relaxed);
        self.core_page.set_pressing(self.slot, pressing);
        self.favour();
    }

    /// Capacity of each of its rings.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        self.region.page.layout().capacity
    }

    /// Its number as an owner of frames.
    #[inline(always)]
    pub fn owner(&self) -> u16 {
        owner::FIRST_NF + self.number
    }

    /// How many more packets that will pass it may be let in.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.limit.saturating_sub(self.in_flight.load(Ordering::Relaxed))
    }

    /// Lets in up to `n` packets that will pass it, as far as there is room, and returns how many.
    #[inline(always)]
    pub fn reserve(&self, n: u32) -> u32 {
        self.in_flight.reserve(n, self.limit)
    }

    /// Counts packets that were let in and will pass it.
    #[cfg(any(test, feature = "played"))]
    pub fn commit(&self, n: u32) {
        self.in_flight.take(n);
    }

    /// Counts packets that have passed it for the last time.
    #[inline(always)]
    pub fn release(&self, n: u32) {
        self.in_flight.give_back(n);
    }

    /// Records that it must be stopped, and wakes the supervisor. The first reason stays.
    pub fn ask_to_stop(&self, stop_reason: StopReason) {
        // Relaxed: if it is seen late, it is set and checked once more.
        if stop_reason == StopReason::Stalled && monotonic_ns() < self.respite_ns.load(Ordering::Relaxed) {
            return;
        }
        let raised =
            self.stop_reason.compare_exchange(StopReason::None as u8, stop_reason as u8, Ordering::Release, Ordering::Relaxed);
        if let (Ok(_), Some(waker)) = (raised, self.waker.get()) {
            // At most one system call, once in the life of a process.
            waker.wake();
        }
    }

    /// Counts violations, and has it stopped past `most`. Returns whether it is past it.
    #[cold]
    pub fn violates(&self, what: Violation, n: u64, most: u64) -> bool {
        self.note_violation(what);
        let is_past = self.violations.fetch_add(n, Ordering::Relaxed).saturating_add(n) > most;
        if is_past {
            self.ask_to_stop(StopReason::Violations);
        }
        is_past
    }

    /// Records its latest violation.
    pub fn note_violation(&self, what: Violation) {
        // Relaxed: for reports only; the last thread wins.
        self.last_violation.store(what as u8, Ordering::Relaxed);
    }

    /// Its latest violation.
    pub fn last_violation(&self) -> Option<Violation> {
        let last = self.last_violation.load(Ordering::Relaxed);
        Violation::ALL.into_iter().find(|what| *what as u8 == last)
    }

    /// Withdraws the reason of standing still, and blocks it until then: it did not have its core.
    pub fn spare(&self, until_ns: u64) {
        self.respite_ns.store(until_ns, Ordering::Relaxed);
        let (stalled, none) = (StopReason::Stalled as u8, StopReason::None as u8);
        let _ = self.stop_reason.compare_exchange(stalled, none, Ordering::Release, Ordering::Relaxed);
    }

    /// Why it must be stopped, if it must.
    pub fn stop_reason(&self) -> StopReason {
        match self.stop_reason.load(Ordering::Acquire) {
            1 => StopReason::Violations,
            2 => StopReason::Stalled,
            3 => StopReason::Spent,
            4 => StopReason::Failed,
            _ => StopReason::None,
        }
    }

    /// Packets for it: those put on its rings, and those refused at an entry.
    pub fn arrived(&self) -> u64 {
        self.counters.iter().map(|c| c.api.rx_packets.get() + c.refused.get()).sum()
    }

    /// Packets put on its rings and returned, over all threads.
    pub fn posted_returned(&self) -> (u64, u64) {
        // Returned first: packets posted meanwhile must not make the difference negative.
        let returned = self.counters.iter().map(|c| c.api.tx_packets.get()).sum();
        (self.counters.iter().map(|c| c.api.rx_packets.get()).sum(), returned)
    }
}
