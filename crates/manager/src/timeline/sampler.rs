//! Reads the words of NFs, cores, chains and ports, and reports those that have changed.
//!
//! What decisions of the manager depend on is read from the manager's own memory. Which NF has a
//! core, whether an NF sleeps, and its hand-overs are words of pages that NFs write: they are shown
//! and nothing else. Limits: of more than `AT_ONCE` NFs a sample reads the next ones in turn.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_dataplane::chain::{ChainCounters, DropReason};
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::queue::QueueCounters;
use sluice_shm::core_page::CorePage;
use sluice_shm::page::Counter;

use super::track::{AWAKE, DAEMON, Objects, Observation, SLEEPS, Track, WAITS};

/// Most NFs that one sample reads.
const AT_ONCE: usize = 256;

/// Tracks of an NF, in the order of [`values_of`].
const OF_NF: [Track; 12] = [
    Track::Awake,
    Track::Throttled,
    Track::Held,
    Track::Queue,
    Track::InFlight,
    Track::Share,
    Track::HandOvers,
    Track::Wakes,
    Track::Slices,
    Track::Throttles,
    Track::Violations,
    Track::MustStop,
];
/// Those of them that are 0 once it is gone: the first ones.
const GONE: usize = 6;
const WAKES: usize = 7;
const SLICES: usize = 8;

/// An NF to sample.
#[derive(Debug, Clone)]
pub struct NfSubject {
    pub handle: Arc<NfHandle>,
    pub tenant: Option<String>,
    /// Whether it is a process that sleeps and wakes.
    pub is_process: bool,
}

/// What there is to sample.
#[derive(Debug, Clone, Default)]
pub struct Subjects {
    pub nfs: Vec<NfSubject>,
    /// Chains by name.
    pub chains: Vec<(String, Arc<[ChainCounters]>)>,
    /// The queues of ports, by name.
    pub ports: Vec<(String, Vec<Arc<QueueCounters>>)>,
}

struct NfWatch {
    handle: Arc<NfHandle>,
    is_process: bool,
    object: u32,
    /// The object of its core.
    core: u32,
    last: [Option<u64>; OF_NF.len()],
}

struct CoreWatch {
    page: CorePage,
    /// The object of each slot's NF.
    slots: BTreeMap<u32, u32>,
    /// The NF whose slice began last, if NFs of the core have time slices.
    slice: Option<u32>,
    last: Option<u64>,
}

struct ChainWatch {
    counters: Arc<[ChainCounters]>,
    object: u32,
    last: [Option<u64>; DropReason::ALL.len()],
}

struct PortWatch {
    queues: Vec<Arc<QueueCounters>>,
    object: u32,
    last: [Option<u64>; 2],
}

/// Samples what it follows.
#[derive(Default)]
pub struct Sampler {
    objects: Objects,
    nfs: Vec<NfWatch>,
    /// By object.
    cores: BTreeMap<u32, CoreWatch>,
    chains: Vec<ChainWatch>,
    ports: Vec<PortWatch>,
    /// Index of the NF that the next sample begins with.
    next: usize,
    /// When the last sample was made, in nanoseconds; none before the first.
    sampled_ns: Option<u64>,
    /// Nanoseconds without a sample that are reported.
    late_ns: u64,
}

/// The values of an NF's tracks.
fn values_of(handle: &NfHandle, is_process: bool) -> [u64; OF_NF.len()] {
    // Relaxed, here and below: independent numbers, which are shown and nothing else.
    let relaxed = Ordering::Relaxed;
    let (posted, returned) = handle.posted_returned();
    let awake = if !is_process || handle.is_fed.load(relaxed) {
        SLEEPS
    } else if handle.is_suspended() {
        WAITS
    } else if handle.is_asleep() {
        SLEEPS
    } else {
        AWAKE
    };
    [
        awake,
        u64::from(handle.gate.throttled.load(relaxed)),
        u64::from(handle.gate.held.load(relaxed)),
        posted.saturating_sub(returned),
        u64::from(handle.in_flight.load(relaxed)),
        (handle.load.share.get() * 100.0) as u64,
        handle.region.page.counter(Counter::HandOvers).load(relaxed),
        handle.counters.iter().map(|counters| counters.api.wakes.get()).sum(),
        handle.load.slices.load(relaxed),
        handle.gate.throttles.load(relaxed),
        handle.violations.load(relaxed),
        handle.stop_reason() as u64,
    ]
}

/// Notes a value if it differs from the last one.
fn note(out: &mut Vec<Observation>, last: &mut Option<u64>, observation: Observation) {
    if *last != Some(observation.value) {
        *last = Some(observation.value);
        out.push(observation);
    }
}

impl NfWatch {
    /// Notes what has changed. Returns whether a time slice of its core has begun for it.
    fn sample(&mut self, at_ns: u64, since_ns: u64, out: &mut Vec<Observation>) -> bool {
        let values = values_of(&self.handle, self.is_process);
        let begins = self.last[SLICES].is_some_and(|last| last != values[SLICES]) && self.handle.governed.load(Ordering::Relaxed);
        for (i, value) in values.into_iter().enumerate() {
            // When it was last woken is known.
            let rung_ns = || self.handle.rung_ns.load(Ordering::Relaxed);
            let woken_ns = (i == WAKES).then(rung_ns).filter(|rung| (since_ns..at_ns).contains(rung));
            let at_ns = woken_ns.unwrap_or(at_ns);
            note(out, &mut self.last[i], Observation { at_ns, object: self.object, track: OF_NF[i], value });
        }
        begins
    }

    /// Ends the states of one that is gone.
    fn leave(&mut self, at_ns: u64, out: &mut Vec<Observation>) {
        for (last, track) in self.last.iter_mut().zip(OF_NF).take(GONE) {
            note(out, last, Observation { at_ns, object: self.object, track, value: 0 });
        }
    }
}

impl CoreWatch {
    fn sample(&mut self, at_ns: u64, object: u32, out: &mut Vec<Observation>) {
        let running = self.page.running().load(Ordering::Relaxed);
        let runs = running.checked_sub(1).and_then(|slot| self.slots.get(&slot).copied());
        let value = u64::from(self.slice.or(runs).unwrap_or(0));
        note(out, &mut self.last, Observation { at_ns, object, track: Track::Runs, value });
    }
}

impl ChainWatch {
    fn sample(&mut self, at_ns: u64, out: &mut Vec<Observation>) {
        for (why, last) in self.last.iter_mut().enumerate() {
            let value = self.counters.iter().map(|counters| counters.drops[why].get()).sum();
            note(out, last, Observation { at_ns, object: self.object, track: Track::Dropped(why as u8), value });
        }
    }
}

impl PortWatch {
    fn sample(&mut self, at_ns: u64, out: &mut Vec<Observation>) {
        let entry: u64 = self.queues.iter().map(|queue| queue.api.entry_drops.get()).sum();
        let tx: u64 = self.queues.iter().map(|queue| queue.api.tx_drops.get()).sum();
        for (last, (track, value)) in self.last.iter_mut().zip([(Track::EntryDrops, entry), (Track::TxDrops, tx)]) {
            note(out, last, Observation { at_ns, object: self.object, track, value });
        }
    }
}

/// Whether two lists are of the same objects in memory.
fn are_same<T: ?Sized>(these: &[Arc<T>], those: &[Arc<T>]) -> bool {
    these.len() == those.len() && these.iter().zip(those).all(|(this, that)| Arc::ptr_eq(this, that))
}

impl Sampler {
    /// A sampler that reports pauses of this length and longer, in nanoseconds.
    pub fn new(late_ns: u64) -> Self {
        Self { late_ns, ..Self::default() }
    }

    pub fn objects(&mut self) -> &mut Objects {
        &mut self.objects
    }

    /// Follows other subjects from `at_ns` on. Those that it follows already go on.
    pub fn follow(&mut self, at_ns: u64, subjects: Subjects, out: &mut Vec<Observation>) {
        let Subjects { nfs, chains, ports } = subjects;
        self.follow_nfs(at_ns, nfs, out);
        let begins = |object: u32| Observation { at_ns, object, track: Track::Begins, value: 1 };
        let mut former = std::mem::take(&mut self.chains);
        for (name, counters) in chains {
            let known = former.iter().position(|chain| Arc::ptr_eq(&chain.counters, &counters));
            self.chains.push(known.map(|at| former.swap_remove(at)).unwrap_or_else(|| {
                let object = self.objects.number(&format!("chain {name}"));
                out.push(begins(object));
                ChainWatch { counters, object, last: [None; DropReason::ALL.len()] }
            }));
        }
        let mut former = std::mem::take(&mut self.ports);
        for (name, queues) in ports {
            let known = former.iter().position(|port| are_same(&port.queues, &queues));
            self.ports.push(known.map(|at| former.swap_remove(at)).unwrap_or_else(|| {
                let object = self.objects.number(&format!("port {name}"));
                out.push(begins(object));
                PortWatch { queues, object, last: [None; 2] }
            }));
        }
    }

    fn follow_nfs(&mut self, at_ns: u64, nfs: Vec<NfSubject>, out: &mut Vec<Observation>) {
        let there: HashSet<*const NfHandle> = nfs.iter().map(|nf| Arc::as_ptr(&nf.handle)).collect();
        for mut gone in self.nfs.extract_if(.., |watch| !there.contains(&Arc::as_ptr(&watch.handle))) {
            gone.leave(at_ns, out);
        }
        let known: HashSet<*const NfHandle> = self.nfs.iter().map(|watch| Arc::as_ptr(&watch.handle)).collect();
        for NfSubject { handle, tenant, is_process } in nfs {
            if known.contains(&Arc::as_ptr(&handle)) {
                continue;
            }
            let core = self.core_of(&handle, tenant.as_deref());
            let object = self.objects.number(&format!("nf {}", handle.name));
            out.push(Observation { at_ns, object, track: Track::Begins, value: 1 });
            self.nfs.push(NfWatch { handle, is_process, object, core, last: [None; OF_NF.len()] });
        }
        self.cores.values_mut().for_each(|core| core.slots.clear());
        for watch in &self.nfs {
            if let Some(core) = self.cores.get_mut(&watch.core) {
                core.slots.insert(watch.handle.slot, watch.object);
            }
        }
        self.cores.retain(|object, core| {
            core.slice = core.slice.filter(|nf| core.slots.values().any(|other| other == nf));
            if core.slots.is_empty() {
                note(out, &mut core.last, Observation { at_ns, object: *object, track: Track::Runs, value: 0 });
            }
            !core.slots.is_empty()
        });
    }

    /// The object of an NF's core, which is followed from now on.
    fn core_of(&mut self, handle: &NfHandle, tenant: Option<&str>) -> u32 {
        if let Some((object, _)) = self.cores.iter().find(|(_, core)| core.page.is_same(&handle.core_page)) {
            return *object;
        }
        // NFs of several tenants on one core have a page each.
        let label = match tenant {
            Some(tenant) => format!("core {}, tenant {tenant}", handle.core),
            None => format!("core {}", handle.core),
        };
        let object = self.objects.number(&label);
        let page = handle.core_page.clone();
        self.cores.insert(object, CoreWatch { page, slots: BTreeMap::new(), slice: None, last: None });
        object
    }

    /// Notes what has changed since the last sample, at `at_ns` of the monotonic clock.
    pub fn sample(&mut self, at_ns: u64, out: &mut Vec<Observation>) {
        let since_ns = self.sampled_ns.replace(at_ns);
        let missed_ns = since_ns.map_or(0, |since_ns| at_ns.saturating_sub(since_ns));
        if missed_ns >= self.late_ns && since_ns.is_some() {
            let object = self.objects.number(DAEMON);
            out.push(Observation { at_ns, object, track: Track::Missed, value: missed_ns });
        }
        let nfs = self.nfs.len();
        for _ in 0..nfs.min(AT_ONCE) {
            let at = if self.next < nfs { self.next } else { 0 };
            self.next = at + 1;
            let watch = &mut self.nfs[at];
            if watch.sample(at_ns, since_ns.unwrap_or(at_ns), out)
                && let Some(core) = self.cores.get_mut(&watch.core)
            {
                core.slice = Some(watch.object);
            }
        }
        self.cores.iter_mut().for_each(|(object, core)| core.sample(at_ns, *object, out));
        self.chains.iter_mut().for_each(|chain| chain.sample(at_ns, out));
        self.ports.iter_mut().for_each(|port| port.sample(at_ns, out));
    }

    /// Forgets the objects that neither it nor anything else uses.
    pub fn forget(&mut self, is_used: impl Fn(u32) -> bool) {
        let nfs = self.nfs.iter().map(|watch| watch.object);
        let cores = self.cores.keys().copied();
        let chains = self.chains.iter().map(|watch| watch.object);
        let ports = self.ports.iter().map(|watch| watch.object);
        let own: HashSet<u32> = nfs.chain(cores).chain(chains).chain(ports).collect();
        self.objects.retain(|object| own.contains(&object) || is_used(object));
    }
}
