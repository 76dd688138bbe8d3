//! The share controller: sets each NF's share of its core from its load.
//!
//! # Approach
//! The Monitor role measures ([`load`](sluice_dataplane::load)). A thread of its own, which sleeps
//! [`Sched::weight_every_ms`] at a time, asks the policy ([`sluice_policy::sched::weight`]) for the
//! shares of each core, and applies those that changed enough. It writes them to the core's page,
//! by which NFs that hand over divide their core, and to the NF's cgroup, by which the kernel
//! divides the core among NFs that run at the same time. This thread makes the system calls, never
//! a packet thread. While no NF has got a packet for a second it sleeps longer, and shares stay.
//!
//! Source: NFVnice (SIGCOMM 2017), section 3.2.

pub mod events;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sluice_policy::sched::priority::raised;
use sluice_policy::sched::reserve;
use sluice_policy::sched::weight::{Demand, Margin, shares};
use sluice_shm::clock::monotonic_ns;
use sluice_shm::core_page::WHOLE;

use events::{EVERY_NS, EventLog, What};
use sluice_api::config::Sched;
use sluice_dataplane::handle::NfHandle;

/// Time without packets after which the thread sleeps longer, in nanoseconds; and that sleep.
const STILL_NS: u64 = 1_000_000_000;
const PAUSE: Duration = Duration::from_millis(100);

/// Writes an NF's share of its core where the kernel reads it.
pub trait WriteShare: Send {
    /// Writes a share, 0 to 1.
    ///
    /// # Errors
    /// The kernel's answer, in words.
    fn write(&mut self, share: f64) -> Result<(), String>;
}

struct Controlled {
    handle: Arc<NfHandle>,
    kernel: Option<Box<dyn WriteShare>>,
    written: Option<f64>,
    /// The worth of its flow at that time.
    flow_weight: f64,
    /// The values that the last event reported.
    reported_share: f64,
    reported_writes: u64,
    reported_throttles: u64,
    reported_throttled: bool,
}

#[derive(Default)]
struct Shared {
    nfs: Mutex<BTreeMap<u16, Controlled>>,
    sched: Mutex<Arc<Sched>>,
    stop: AtomicBool,
    /// CPU time of the thread, in nanoseconds.
    cpu_ns: AtomicU64,
}

impl Shared {
    fn nfs(&self) -> MutexGuard<'_, BTreeMap<u16, Controlled>> {
        self.nfs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sched(&self) -> MutexGuard<'_, Arc<Sched>> {
        self.sched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle that sets where the controller writes shares.
pub struct ControllerLink(Arc<Shared>);

impl ControllerLink {
    /// Writes the NF's share to `kernel` from now on, if it is still the same process.
    pub fn give(&self, handle: &Arc<NfHandle>, kernel: Box<dyn WriteShare>) {
        if let Some(nf) = self.0.nfs().get_mut(&handle.number).filter(|nf| Arc::ptr_eq(&nf.handle, handle)) {
            nf.kernel = Some(kernel);
            // Earlier decisions were not written there; the next one is.
            nf.written = None;
        }
    }
}

pub struct Controller {
    shared: Arc<Shared>,
    events: Arc<EventLog>,
    thread: Option<JoinHandle<()>>,
}

impl Controller {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, if it makes no thread.
    pub fn start(sched: &Sched) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { sched: Mutex::new(Arc::new(sched.clone())), ..Shared::default() });
        let events = Arc::new(EventLog::default());
        let thread = std::thread::Builder::new().name("sluice-control".into()).spawn({
            let (shared, events) = (shared.clone(), events.clone());
            move || run(&shared, &events)
        })?;
        Ok(Self { shared, events, thread: Some(thread) })
    }

    /// Decides by other settings from the next round on.
    pub fn tune(&self, sched: &Sched) {
        *self.shared.sched() = Arc::new(sched.clone());
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    pub fn add(&self, handle: Arc<NfHandle>) {
        let controlled = Controlled {
            handle,
            kernel: None,
            written: None,
            flow_weight: 1.0,
            reported_share: 0.0,
            reported_writes: 0,
            reported_throttles: 0,
            reported_throttled: false,
        };
        self.shared.nfs().insert(controlled.handle.number, controlled);
    }

    /// A handle for threads that make what shares are written to.
    pub fn link(&self) -> ControllerLink {
        ControllerLink(self.shared.clone())
    }

    /// Removes an NF. Nothing is written for it after the return.
    pub fn remove(&self, number: u16) {
        self.shared.nfs().remove(&number);
    }

    pub fn events(&self) -> &Arc<EventLog> {
        &self.events
    }

    /// CPU time of the thread, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        self.shared.cpu_ns.load(Ordering::Relaxed)
    }

    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(shared: &Shared, events: &EventLog) {
    let mut reported_at = monotonic_ns();
    // The packets that have come to all NFs, and since when there are no more.
    let (mut arrived, mut still_ns) = (0, reported_at);
    while !shared.stop.load(Ordering::Relaxed) {
        let every = Duration::from_millis(u64::from(shared.sched().weight_every_ms));
        let is_still = monotonic_ns().saturating_sub(still_ns) > STILL_NS;
        std::thread::park_timeout(if is_still { every.max(PAUSE) } else { every });
        let mut nfs = shared.nfs();
        let now_arrived = nfs.values().fold(nfs.len() as u64, |sum, nf| sum.wrapping_add(nf.handle.arrived()));
        if std::mem::replace(&mut arrived, now_arrived) != now_arrived {
            still_ns = monotonic_ns();
        }
        let sched = shared.sched().clone();
        if sched.weights {
            weigh(&mut nfs, &sched);
        }
        let now = monotonic_ns();
        if now.saturating_sub(reported_at) >= EVERY_NS {
            reported_at = now;
            nfs.values_mut().for_each(|nf| report(nf, now, events));
        }
        drop(nfs);
        let used = clock_gettime(ClockId::ThreadCPUTime);
        shared.cpu_ns.store(used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64, Ordering::Relaxed);
    }
}

/// Decides the shares of all cores, and applies those that changed enough.
fn weigh(nfs: &mut BTreeMap<u16, Controlled>, sched: &Sched) {
    let mut cores: BTreeMap<usize, (Vec<u16>, Vec<Demand>)> = BTreeMap::new();
    // An NF that polls without time slices has its core to itself.
    let has_share =
        |handle: &NfHandle| !handle.poll || handle.is_fed.load(Ordering::Relaxed) || handle.governed.load(Ordering::Relaxed);
    for nf in nfs.values().filter(|nf| has_share(&nf.handle)) {
        let load = &nf.handle.load;
        let service = load.service_ns.get();
        let demand = Demand {
            arrival_pps: load.arrival_pps.get(),
            service_ns: (service > 0.0).then_some(service),
            priority: weight_of(&nf.handle, sched),
        };
        let core = cores.entry(nf.handle.core).or_default();
        core.0.push(nf.handle.number);
        core.1.push(demand);
    }
    let margin = Margin { percent: f64::from(sched.weight_margin_percent) };
    let floor = f64::from(sched.min_share_percent) / 100.0;
    let mut decided = Vec::new();
    for (numbers, demands) in cores.values() {
        shares(demands, floor, &mut decided);
        let parts: Vec<_> = numbers.iter().map(|number| nfs.get(number)?.handle.load.reserve.get()).collect();
        if parts.iter().any(Option::is_some) {
            reserve::keep(&mut decided, &parts, floor);
        }
        for (number, share) in numbers.iter().zip(&decided) {
            let Some(nf) = nfs.get_mut(number) else { continue };
            let flow_weight = nf.handle.flow_weight.get();
            if std::mem::replace(&mut nf.flow_weight, flow_weight) != flow_weight {
                // The assignment has overwritten the share on the page.
                nf.written = None;
            }
            if margin.is_exceeded(nf.written, *share) {
                apply(nf, *share);
            }
        }
    }
}

/// The weight of an NF, apart from its load.
fn weight_of(handle: &NfHandle, sched: &Sched) -> f64 {
    let weight = handle.weight();
    if sched.downstream_first { raised(weight, handle.depth()) } else { weight }
}

fn apply(nf: &mut Controlled, share: f64) {
    let handle = &nf.handle;
    nf.written = Some(share);
    handle.set_share((share * f64::from(WHOLE)) as u32);
    handle.load.share.set(share);
    handle.load.writes.fetch_add(1, Ordering::Relaxed);
    if let Some(kernel) = &mut nf.kernel
        && let Err(why) = kernel.write(share)
    {
        warn!("the CPU share of {} cannot be written any more: {why}", handle.name);
        nf.kernel = None;
    }
}

/// Logs what changed since the last event.
fn report(nf: &mut Controlled, now_ns: u64, events: &EventLog) {
    let handle = &nf.handle;
    let writes = handle.load.writes.load(Ordering::Relaxed);
    let share = handle.load.share.get();
    if writes > nf.reported_writes {
        let what = What::Share { from: nf.reported_share, to: share, writes: writes - nf.reported_writes };
        events.add(now_ns, &handle.name, what);
        (nf.reported_writes, nf.reported_share) = (writes, share);
    }
    let throttles = handle.gate.throttles.load(Ordering::Relaxed);
    let throttled = handle.gate.throttled.load(Ordering::Relaxed);
    if throttles > nf.reported_throttles || throttled != nf.reported_throttled {
        let what = What::Throttled { times: throttles - nf.reported_throttles, now: throttled };
        events.add(now_ns, &handle.name, what);
        (nf.reported_throttles, nf.reported_throttled) = (throttles, throttled);
    }
}
