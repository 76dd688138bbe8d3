//! One NF process as the packet threads and the supervisor share it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use sluice_ownership::credits;
use sluice_policy::sched::priority::{self, Weight, level};
use sluice_policy::sched::reserve::Part;
use sluice_policy::sched::threshold::Rules;
use sluice_policy::sched::wakeup;
use sluice_shm::clock::monotonic_ns;
use sluice_shm::core_page::{ALONE, CorePage, HELD, Said, WHOLE};
use sluice_shm::doorbell;
use sluice_shm::page::{Control, Region, asleep};
use sluice_shm::ring;

use crate::bell::Bell;
use crate::counter::Counter;
use crate::frame::owner;
use crate::wake::{CAUSES, Start};

/// What one manager thread counts of one NF.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct NfCounters {
    /// Packets put on its rx rings.
    pub posted: Counter,
    /// Packets it returned.
    pub returned: Counter,
    /// Of these, with the verdict drop.
    pub dropped: Counter,
    /// Times the manager woke it.
    pub wakes: Counter,
    /// Packets that were refused at the entry of a path that passes it.
    pub refused: Counter,
    /// Packets that were marked on their way to it.
    pub marked: Counter,
    /// Times that it was let go on although it is not woken for each packet, by cause, as
    /// [`Cause::ALL`](sluice_policy::sched::threshold::Cause::ALL).
    pub woken: [Counter; CAUSES],
}

/// A measured quantity that one thread writes and all may read.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// What is measured of an NF's load and decided about it. Written by the roles that the names tell, read by all.
#[derive(Debug, Default)]
pub struct Load {
    /// Packets per second that want to come to it, those refused at an entry with them. By Monitor.
    pub arrival_pps: Gauge,
    /// Median of its service time over the last 100 ms, in nanoseconds a packet; 0 until known. By Monitor.
    pub service_ns: Gauge,
    /// Its share of its core, 0 to 1. By the controller.
    pub share: Gauge,
    /// Times that the share was written. By the controller.
    pub writes: AtomicU64,
    /// What a packet costs it in nanoseconds, told from outside; 0 until known. By Wakeup, of NFs whose turns it makes.
    pub outside_ns: Gauge,
    /// Slices of its core that it was given from outside. By Wakeup.
    pub slices: AtomicU64,
    /// What it is promised of its core. By the supervisor.
    pub reserve: Reserve,
}

/// What an NF is promised of its core, together with the others of its group.
#[derive(Debug, Default)]
pub struct Reserve {
    /// The group; 0 is none.
    group: AtomicU32,
    part: Gauge,
}

impl Reserve {
    /// Promises a part, 0 to 1, to the NFs of a group.
    pub fn set(&self, part: Option<Part>) {
        self.part.set(part.map_or(0.0, |part| part.part));
        // Relaxed: who reads half of it decides by it for 10 ms at most.
        self.group.store(part.map_or(0, |part| part.group), Ordering::Relaxed);
    }

    /// What is promised.
    pub fn get(&self) -> Option<Part> {
        let group = self.group.load(Ordering::Relaxed);
        (group != 0).then(|| Part { group, part: self.part.get() })
    }
}

/// What keeps packets from an NF. Read at every gate.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Gate {
    /// The paths that pass it are refused at their entry. By Wakeup.
    pub throttled: AtomicBool,
    /// It is to sleep, because all that it could do would die or wait further on. By Wakeup.
    pub held: AtomicBool,
    /// Times that it was throttled. By Wakeup.
    pub throttles: AtomicU64,
}

/// Why an NF is to be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Sentence {
    /// It may go on.
    None = 0,
    /// It forged descriptors or cursors more often than allowed.
    Violations = 1,
    /// It held packets and returned none for too long.
    Stalled = 2,
    /// Its flow has ended, and the next one is to have a fresh process.
    Spent = 3,
}

/// A kind of violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Violation {
    /// It returned a frame that it did not have.
    Frame = 1,
    /// It returned a packet that does not lie in its frame, or with a verdict that there is none
    /// of.
    Descriptor = 2,
    /// It sent a packet where its service may not.
    Destination = 3,
    /// It moved the cursor of a ring that it reads to where there are no packets.
    RxCursor = 4,
    /// It moved the cursor of a ring that it writes to where there is no room.
    TxCursor = 5,
    /// It has made a hole in shared memory, or may have.
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

/// One NF process. A restart makes a new one.
#[derive(Debug)]
pub struct NfHandle {
    /// Its number, also the owner of its frames.
    pub number: u16,
    /// Its name, `SERVICE.i`.
    pub name: String,
    /// Number of its service.
    pub service: u16,
    /// Processor that it belongs on.
    pub core: usize,
    /// It never sleeps.
    pub poll: bool,
    /// Its page and rings.
    pub region: Region,
    /// The page of its core (and tenant).
    pub core_page: CorePage,
    /// Its slot there.
    pub slot: u32,
    /// Most packets that may be on their way to it: what its ring holds. Threads that let in at once do not pass it
    /// ([`credits::reserve`]), so nothing of the ring is kept back for them.
    pub limit: u32,
    /// Packets let in at a chain's entry that have still to pass it. Belongs to the NF's number and outlives its process: packets that
    /// were let in before a restart pass the new process, or are dropped, and are counted off all the same.
    pub in_flight: Arc<AtomicU32>,
    /// Whether it may be given packets.
    pub alive: AtomicBool,
    /// Forged descriptors and cursors.
    pub violations: AtomicU64,
    /// What the last of them was; 0 before.
    last_violation: AtomicU8,
    sentence: AtomicU8,
    /// Until when it is not condemned for standing still, in nanoseconds of the monotonic clock.
    respite_ns: AtomicU64,
    /// Rung when it is condemned, so that it is stopped at once.
    pub bell: OnceLock<Arc<Bell>>,
    /// When it returned its first packet, in nanoseconds of the monotonic clock; 0 before.
    pub first_return_ns: AtomicU64,
    /// Counters, by manager thread.
    pub counters: Box<[NfCounters]>,
    /// What keeps packets from it.
    pub gate: Gate,
    /// Its load.
    pub load: Load,
    /// Weight beside its load, of its service.
    pub priority: f64,
    /// What the flow that it has is worth; 1 of one that has not one flow alone. By its pool's thread.
    pub flow_weight: Gauge,
    /// Its slices are given from outside ([`Sharing`](crate::hooks::Sharing)).
    pub governed: AtomicBool,
    /// It is to have turns without packets, because it has to end.
    pub wants_core: AtomicBool,
    /// Whether it is a program that knows nothing of Sluice: the manager reads its ring for it ([`Feeder`](crate::hooks::Feeder)). Set before it is
    /// given packets.
    pub is_fed: AtomicBool,
    /// When it is woken, if not for each packet.
    pub wakeup: Option<Rules>,
    /// What is told of the flow that it has.
    pub start: Start,
    /// Its pool needs it no more: it is given no flows and may be stopped. By its pool's thread.
    pub dismissed: AtomicBool,
    /// It has got flows of other NFs, and what it returns waits for the last packet of those ([`crate::succession`]).
    pub is_behind: AtomicBool,
    /// What it returned waits for a port that takes no packets now: that it stands still is not its fault. By its Tx thread.
    pub is_held_up: AtomicBool,
    /// Number of the arena of its tenant; [`NO_ARENA`](crate::frame::NO_ARENA) if it maps none.
    pub memory: AtomicU8,
    /// It takes no turns on its core: the manager wakes it, and the kernel divides the core between it and the others. By Wakeup.
    pub alone: AtomicBool,
    /// When a packet thread last woke it, in nanoseconds of the monotonic clock.
    pub rung_ns: AtomicU64,
    /// What stands on the core page of it, as it was written: others can write there, and decisions are made by these.
    said: SaidWords,
    /// What waits on its rx rings.
    gauges: Box<[ring::Gauge]>,
}

/// As [`Said`], each word by the role that decides it.
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
        in_flight: Arc<AtomicU32>,
        priority: f64,
        wakeup: Option<Rules>,
    ) -> Arc<Self> {
        let capacity = region.page.layout().capacity;
        let gauges = (0..region.page.layout().rx_rings).filter_map(|ring| region.rx_gauge(ring)).collect();
        let flow_weight = Gauge::default();
        flow_weight.set(1.0);
        let handle = Self {
            number,
            name,
            service,
            core,
            poll,
            region,
            core_page,
            slot,
            limit: capacity,
            in_flight,
            alive: AtomicBool::new(true),
            violations: AtomicU64::new(0),
            last_violation: AtomicU8::new(0),
            sentence: AtomicU8::new(Sentence::None as u8),
            respite_ns: AtomicU64::new(0),
            bell: OnceLock::new(),
            first_return_ns: AtomicU64::new(0),
            counters: (0..threads).map(|_| NfCounters::default()).collect(),
            gate: Gate::default(),
            load: Load::default(),
            priority,
            flow_weight,
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
            // As an empty slot has it.
            said: SaidWords { share: AtomicU32::new(WHOLE / 8), ..SaidWords::default() },
            gauges,
        };
        handle.set_level(level(priority).into());
        Arc::new(handle)
    }

    /// What the core page is to say of it.
    #[inline]
    pub fn said(&self) -> Said {
        // Relaxed: each word for itself. Who reads one that is about to change writes it once more.
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

    /// Who has a higher level goes first.
    #[inline]
    pub fn level(&self) -> u32 {
        self.said.level.load(Ordering::Relaxed)
    }

    /// Gives it a share of its core, of [`WHOLE`].
    pub fn set_share(&self, share: u32) {
        self.said.share.store(share, Ordering::Relaxed);
        self.core_page.share(self.slot).store(share, Ordering::Relaxed);
    }

    fn set_level(&self, level: u32) {
        self.said.level.store(level, Ordering::Relaxed);
        self.core_page.set_level(self.slot, level);
        self.favour();
    }

    /// The page's bit follows level and pressing, which are decided by two threads.
    fn favour(&self) {
        loop {
            let is_favoured = || self.level() != 0 || self.said.pressing.load(Ordering::Relaxed) != 0;
            let before = is_favoured();
            self.core_page.favour(self.slot, before);
            // SeqCst: of two threads that change a word each, and then the bit, the later one sees what the other has changed.
            fence(Ordering::SeqCst);
            if is_favoured() == before {
                return;
            }
        }
    }

    /// Says on the core page whether its neighbours may start it, after a change of what keeps them from it.
    pub fn tell_hold(&self) {
        self.core_page.hold(self.slot).store(self.said().hold, Ordering::Relaxed);
    }

    /// Takes it out of the turns of its core, or lets it take turns again. Says whether that is new.
    pub fn set_alone(&self, alone: bool) -> bool {
        if self.alone.swap(alone, Ordering::Relaxed) == alone {
            return false;
        }
        self.region.page.control(Control::Alone).store(u32::from(alone), Ordering::Relaxed);
        self.tell_hold();
        true
    }

    /// Has it wait for the bell in its own page too when it sleeps, or no more.
    pub fn set_guarded(&self, guarded: bool) {
        self.region.page.control(Control::Guarded).store(u32::from(guarded), Ordering::Relaxed);
    }

    /// Packets on its rings that it has not read. Its own word in part, and nobody else's.
    #[inline]
    pub fn unread(&self) -> u32 {
        self.gauges.iter().map(ring::Gauge::fill).sum()
    }

    /// Packets that it has ever taken from its rings, modulo 2³². Its own word.
    #[inline]
    pub fn taken(&self) -> u32 {
        self.gauges.iter().fold(0u32, |sum, ring| sum.wrapping_add(ring.taken()))
    }

    /// Whether it has packets that it has not returned, so that some may be unread.
    #[inline]
    pub fn may_have_unread(&self) -> bool {
        let (posted, returned) = self.posted_returned();
        posted > returned
    }

    /// Whether it says that it sleeps.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        // Acquire: what it had read before it went to sleep is known.
        self.region.page.asleep().load(Ordering::Acquire) != 0
    }

    /// Whether it says that it waits for something else than packets.
    #[inline]
    pub fn is_suspended(&self) -> bool {
        self.region.page.asleep().load(Ordering::Relaxed) & asleep::SUSPENDED != 0
    }

    /// Wakes it at `now_ns` if it says that it sleeps. True if this call woke it.
    pub fn wake(&self, now_ns: u64) -> bool {
        // AcqRel: one waker takes the word.
        let says = self.region.page.asleep().swap(0, Ordering::AcqRel);
        if says == 0 {
            return false;
        }
        self.rung_ns.store(now_ns, Ordering::Relaxed);
        // No neighbour rings, too.
        self.core_page.asleep(self.slot).store(0, Ordering::Relaxed);
        if says & asleep::HEARS != 0 {
            doorbell::ring(self.region.page.bell());
        } else {
            doorbell::ring(self.core_page.bell(self.slot));
        }
        true
    }

    /// Wakes it whatever anybody says. Unless it says that it hears its own bell, as many as
    /// `sleepers` are woken of those that wait for its bell on the core page, where others can.
    pub fn rouse(&self, sleepers: u32) {
        // SeqCst: what it is woken for is visible before we look how it sleeps. It says that it sleeps, then looks for work: one of the two
        // sees the other.
        fence(Ordering::SeqCst);
        let says = self.region.page.asleep().swap(0, Ordering::AcqRel);
        self.core_page.asleep(self.slot).store(0, Ordering::Relaxed);
        // Its own in any case: who took its word has rung one of the two, and it may wait for both.
        doorbell::ring(self.region.page.bell());
        if says & asleep::HEARS == 0 {
            doorbell::ring_for(self.core_page.bell(self.slot), sleepers);
        }
    }

    /// Whether it stands still by no fault of its own: it sleeps, has packets that it has not read,
    /// and has not been woken for them since then. One that has read all, or says that it waits for
    /// something else, keeps what it does not return.
    pub fn was_never_woken(&self, since_ns: u64) -> bool {
        let is_unaware = !self.poll && self.is_asleep() && !self.is_suspended() && self.unread() > 0;
        is_unaware && self.rung_ns.load(Ordering::Relaxed) < since_ns
    }

    /// Weight beside its load: of its service, and of the flow that it has.
    pub fn weight(&self) -> f64 {
        self.priority * self.flow_weight.get()
    }

    /// How far above the lowest priority of class rr it is: see [`priority::rank`].
    pub fn rank(&self, downstream_first: bool) -> u8 {
        priority::rank(level(self.weight()), self.depth(), downstream_first)
    }

    /// It is given a flow. What the core page says of it changes at once, and what the kernel says of it when somebody does it, which is
    /// to be done if this is true.
    #[inline]
    pub fn assign(&self, weight: Weight) -> bool {
        let (new, old) = (weight.get(), self.flow_weight.get());
        let changes = new != old;
        if changes {
            self.flow_weight.set(new);
            let scaled = f64::from(self.share()) * new / old;
            // Until the controller has looked at all NFs of the core.
            self.set_share((scaled as u32).clamp(1, WHOLE));
            self.set_level(level(self.weight()).into());
        }
        if self.level() > 0 {
            // Its first packets go first already.
            let share = f64::from(self.share()) / f64::from(WHOLE);
            self.core_page.endow(self.slot, wakeup::part_ns(wakeup::ROUND_NS, share).unsigned_abs());
        }
        changes
    }

    /// It is given one more flow, besides those that it has: it counts as the most important of them. As [`Self::assign`] otherwise.
    #[inline]
    pub fn join(&self, weight: Weight) -> bool {
        weight.get() > self.flow_weight.get() && self.assign(weight)
    }

    /// Says on its core's page how far down its chains it is, by the depths of all services.
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

    /// As an owner of frames.
    #[inline(always)]
    pub fn owner(&self) -> u16 {
        owner::FIRST_NF + self.number
    }

    /// How many more packets may be let in that will pass it.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.limit.saturating_sub(self.in_flight.load(Ordering::Relaxed))
    }

    /// Lets up to `n` packets in that will pass it, as many as there is room for, and says how many.
    #[inline(always)]
    pub fn reserve(&self, n: u32) -> u32 {
        credits::reserve(&self.in_flight, n, self.limit, self.counters.len())
    }

    /// Counts packets that were let in and will pass it.
    #[cfg(any(test, feature = "played"))]
    pub fn commit(&self, n: u32) {
        credits::take(&self.in_flight, n, self.counters.len());
    }

    /// Counts packets that have passed it for the last time.
    #[inline(always)]
    pub fn release(&self, n: u32) {
        credits::give_back(&self.in_flight, n, self.counters.len());
    }

    /// Notes that it has to be stopped, and rings for whoever does it; the first reason stays.
    pub fn condemn(&self, sentence: Sentence) {
        // Relaxed: seen late, it is condemned once more, and looked at once more.
        if sentence == Sentence::Stalled && monotonic_ns() < self.respite_ns.load(Ordering::Relaxed) {
            return;
        }
        let raised = self.sentence.compare_exchange(Sentence::None as u8, sentence as u8, Ordering::Release, Ordering::Relaxed);
        if let (Ok(_), Some(bell)) = (raised, self.bell.get()) {
            // Once in the life of a process, and one system call at most.
            bell.ring();
        }
    }

    /// Notes what it has violated last.
    pub fn note_violation(&self, what: Violation) {
        // Relaxed: words for people, by whichever thread comes last.
        self.last_violation.store(what as u8, Ordering::Relaxed);
    }

    /// What it has violated last.
    pub fn last_violation(&self) -> Option<Violation> {
        let last = self.last_violation.load(Ordering::Relaxed);
        Violation::ALL.into_iter().find(|what| *what as u8 == last)
    }

    /// Takes back that it stands still, until then: it has not had its core.
    pub fn spare(&self, until_ns: u64) {
        self.respite_ns.store(until_ns, Ordering::Relaxed);
        let (stalled, none) = (Sentence::Stalled as u8, Sentence::None as u8);
        let _ = self.sentence.compare_exchange(stalled, none, Ordering::Release, Ordering::Relaxed);
    }

    /// Whether it has to be stopped, and why.
    pub fn sentence(&self) -> Sentence {
        match self.sentence.load(Ordering::Acquire) {
            1 => Sentence::Violations,
            2 => Sentence::Stalled,
            3 => Sentence::Spent,
            _ => Sentence::None,
        }
    }

    /// Packets that wanted to come to it: those put on its rings, and those refused at an entry.
    pub fn arrived(&self) -> u64 {
        self.counters.iter().map(|c| c.posted.get() + c.refused.get()).sum()
    }

    /// Packets put on its rings and returned, over all threads.
    pub fn posted_returned(&self) -> (u64, u64) {
        // Returned first: what is counted as posted meanwhile must not make the difference negative.
        let returned = self.counters.iter().map(|c| c.returned.get()).sum();
        (self.counters.iter().map(|c| c.posted.get()).sum(), returned)
    }
}
