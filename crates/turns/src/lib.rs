//! Time slices for NFs that do not cooperate: a scheduler outside of them shares a core among
//! polling NFs, in workflow order.
//!
//! # Approach
//! Each such core has a [`CoreSchedule`]: the [policy](sluice_policy::sched::workflow) that
//! decides, the [rings] that it reads, and a [process controller](sluice_host::processes) that
//! acts. It belongs to the packet thread with the core's Wakeup role, which calls it once a round:
//! reading two rings, and at the end of a slice one or two system calls. So a schedule needs no
//! core of its own, and is as fine as the thread's rounds while packets move. It sleeps when the
//! thread does: until shortly before the next deadline if an NF waits for it, else until there is
//! work.
//!
//! Adding or removing an NF takes the kernel milliseconds, so no packet thread does it: the
//! supervisor borrows the schedule
//! ([`Worker::take_sharing`](sluice_dataplane::worker::Worker::take_sharing)), changes it, and
//! returns it. Meanwhile the running NF runs on.
//!
//! # Costs
//! Slices follow from the cost of a packet, measured from outside: packets that left the ring over
//! CPU time, of slices in which the ring never ran dry ([`Outside`]). Before the first such slice,
//! the value stored by `sluice estimate` or the NF's own samples are used.
//!
//! # Weights
//! Among each other NFs have slices, whose lengths follow weight (priority of the service, and of
//! its flow) and cost; their frequency follows the packets. Against processes without slices, an NF
//! has a kernel weight, by the same share as every other NF. If the mechanism has put it into its
//! own cgroup, a changed share is written there at the beginning of a slice.
//!
//! # Limits
//! A controller's calls cost the packet thread some microseconds each. An NF that starts or ends
//! gets slices for it, without packets.

pub mod rings;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::Pid;
use sluice_policy::sched::cost::{Idle, Outside};
use sluice_policy::sched::workflow::{Member, Move, Reading, Rings, Settings, Why, Workflow};
use sluice_shm::clock::monotonic_ns;
use sluice_shm::histogram::AtomicHistogram;

use self::rings::{NfRings, Program};
use sluice_dataplane::chain::{PathRegistry, Tables};
use sluice_dataplane::end::NfEnd;
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::hooks::Sharing;
use sluice_host::process::CpuClock;
use sluice_host::processes::{Controller, Failed, Mechanism, Refused, Slot, Target};

/// Window of a cost, in nanoseconds.
const WINDOW_NS: u64 = 100_000_000;
/// Budget in a slice that ends otherwise, in nanoseconds: longer than any slice.
const BUDGET_NS: u64 = 2_000_000_000;

/// Counters of a schedule, written by its thread and readable by all.
#[derive(Debug, Default)]
pub struct Counters {
    /// Ended slices, by [`Why`].
    pub ended: [AtomicU64; Why::ALL.len()],
    /// Nanoseconds that the packet thread spent in the controller.
    pub controller_ns: AtomicU64,
    /// The longest wait of an NF with work for its slice, in nanoseconds.
    pub longest_wait_ns: AtomicU64,
    /// At each begin or end of a slice: the longest wait since the one before, in ns, if any.
    pub waits_ns: AtomicHistogram,
    /// Failures of the controller, other than an ended process.
    pub failures: AtomicU64,
}

struct Governed {
    rings: NfRings,
    slot: Slot,
    cost: Outside,
    clock: Option<CpuClock>,
    /// The share of its core last given to the controller, and whether that supports weights.
    share: f64,
    has_weight: bool,
}

struct View<'a>(&'a [Option<Governed>]);

impl Rings for View<'_> {
    #[inline]
    fn read(&self, nf: u16) -> Reading {
        match self.0.get(usize::from(nf)) {
            Some(Some(governed)) => governed.rings.read(),
            _ => Reading { held: true, ..Reading::default() },
        }
    }

    fn cost_ns(&self, nf: u16) -> f64 {
        let Some(Some(governed)) = self.0.get(usize::from(nf)) else { return 0.0 };
        let load = &governed.rings.handle().load;
        let outside = load.outside_ns.get();
        if outside > 0.0 { outside } else { load.service_ns.get() }
    }

    fn weight(&self, nf: u16) -> f64 {
        // Read for each slice, since a pool's members get flows of different weight.
        self.0.get(usize::from(nf)).and_then(Option::as_ref).map_or(1.0, |governed| governed.rings.handle().weight())
    }
}

/// The schedule of a core whose NFs do not cooperate.
pub struct CoreSchedule {
    core: usize,
    controller: Box<dyn Controller>,
    workflow: Workflow,
    /// By place, which is the policy's number of an NF.
    nfs: Vec<Option<Governed>>,
    counters: Arc<Counters>,
    /// Path changes and table generation of the NFs' paths.
    made_of: (u32, u32),
}

impl std::fmt::Debug for CoreSchedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.nfs.iter().flatten().map(|nf| nf.rings.handle().name.as_str()).collect();
        f.debug_struct("CoreSchedule").field("core", &self.core).field("nfs", &names).finish_non_exhaustive()
    }
}

impl CoreSchedule {
    /// A schedule of a core, without NFs.
    pub fn new(core: usize, controller: Box<dyn Controller>, settings: Settings, counters: Arc<Counters>) -> Self {
        Self { core, controller, workflow: Workflow::new(settings), nfs: Vec::new(), counters, made_of: (0, 0) }
    }

    /// The mechanism that stops and starts NFs.
    pub fn mechanism(&self) -> Mechanism {
        self.controller.mechanism()
    }

    fn place(&self, number: u16) -> Option<usize> {
        self.nfs.iter().position(|nf| nf.as_ref().is_some_and(|nf| nf.rings.handle().number == number))
    }

    /// Adds an NF, which is parked until its slice.
    ///
    /// `pid` is its process, if it is only one; `foreign` is the state of a foreign program.
    ///
    /// # Errors
    /// [`Refused`]; then the NF runs as before.
    pub fn add(
        &mut self,
        handle: &Arc<NfHandle>,
        target: &Target,
        pid: Option<Pid>,
        foreign: Option<Program>,
        depth: u32,
    ) -> Result<(), Refused> {
        let slot = self.controller.add(target)?;
        let free = self.nfs.iter().position(Option::is_none).unwrap_or(self.nfs.len());
        if free == self.nfs.len() {
            self.nfs.push(None);
        }
        let clock = pid.filter(|_| foreign.is_none()).and_then(|pid| CpuClock::of(pid).ok());
        let cost = Outside::new(WINDOW_NS, if handle.poll { Idle::Polls } else { Idle::Sleeps });
        handle.governed.store(true, Ordering::Relaxed);
        let rings = NfRings::new(handle.clone(), foreign);
        self.nfs[free] = Some(Governed { rings, slot, cost, clock, share: 0.0, has_weight: true });
        self.workflow.add(Member { nf: free as u16, depth, ring: handle.limit.min(handle.capacity()) });
        self.made_of = (0, 0);
        Ok(())
    }

    /// Releases an NF, which runs as before; returns whether it was here.
    ///
    /// # Errors
    /// What could not be restored.
    pub fn remove(&mut self, number: u16) -> Result<bool, Failed> {
        let Some(place) = self.place(number) else { return Ok(false) };
        self.workflow.remove(place as u16);
        let Some(nf) = self.nfs[place].take() else { return Ok(false) };
        let handle = nf.rings.handle();
        handle.governed.store(false, Ordering::Relaxed);
        handle.gate.held.store(false, Ordering::Relaxed);
        self.controller.remove(nf.slot).map(|()| true)
    }

    /// Finds new threads of the NFs, which slices ignore before.
    pub fn look_again(&mut self) {
        if self.controller.look_again().is_err() {
            self.counters.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ensures that a parked NF can be killed.
    pub fn before_kill(&mut self, number: u16) {
        if let Some(Some(nf)) = self.place(number).map(|place| &self.nfs[place]) {
            // If it cannot be made to run, it has ended or will be killed even so.
            let _ = self.controller.before_kill(nf.slot);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.nfs.iter().all(Option::is_none)
    }

    /// Releases all NFs, and returns what could not be restored. Drop does the same.
    pub fn teardown(&mut self) -> Vec<Failed> {
        for nf in self.nfs.drain(..).flatten() {
            let handle = nf.rings.handle();
            handle.governed.store(false, Ordering::Relaxed);
            handle.gate.held.store(false, Ordering::Relaxed);
        }
        self.workflow = Workflow::new(*self.workflow.settings());
        self.controller.teardown()
    }

    #[cold]
    fn carry_out(&mut self, done: Move, now_ns: u64) {
        let began_ns = monotonic_ns();
        let slot = |place: u16| self.nfs.get(usize::from(place)).and_then(Option::as_ref).map(|nf| nf.slot);
        let result = match done {
            Move::Stay => Ok(()),
            Move::Run(to) => slot(to).map_or(Ok(()), |to| self.controller.run(to)),
            Move::Park(from, _) => slot(from).map_or(Ok(()), |from| self.controller.park(from)),
            Move::Switch { from, to, .. } => match (slot(from), slot(to)) {
                (Some(from), Some(to)) => self.controller.switch(from, to),
                (from, to) => {
                    let parked = from.map_or(Ok(()), |from| self.controller.park(from));
                    to.map_or(Ok(()), |to| self.controller.run(to)).and(parked)
                }
            },
        };
        self.counters.controller_ns.fetch_add(monotonic_ns().saturating_sub(began_ns), Ordering::Relaxed);
        match result {
            // The supervisor sees the process's end itself, and removes the NF.
            Ok(()) | Err(Failed::Ended) => {}
            Err(_) => drop(self.counters.failures.fetch_add(1, Ordering::Relaxed)),
        }
        if let Move::Switch { from, why, .. } | Move::Park(from, why) = done {
            self.counters.ended[why as usize].fetch_add(1, Ordering::Relaxed);
            self.report_cost(from, now_ns);
            if let Some(Some(nf)) = self.nfs.get_mut(usize::from(from)) {
                nf.rings.turn_ended(now_ns);
            }
        }
        if let Move::Run(to) | Move::Switch { to, .. } = done
            && let Some(Some(nf)) = self.nfs.get_mut(usize::from(to))
        {
            nf.rings.turn_began(now_ns);
            let handle = nf.rings.handle();
            handle.load.slices.fetch_add(1, Ordering::Relaxed);
            if !handle.poll {
                // It may sleep, or have used up its time: its slice begins here.
                handle.core_page.endow(handle.slot, BUDGET_NS);
                handle.wake(now_ns);
            }
        }
        if let Move::Run(to) | Move::Switch { to, .. } = done {
            self.weigh(to);
        }
        let longest = self.workflow.take_longest_wait_ns();
        if longest > 0 {
            self.counters.longest_wait_ns.fetch_max(longest, Ordering::Relaxed);
            self.counters.waits_ns.record(longest);
        }
    }

    /// At the begin of a slice: sets its kernel weight by its share.
    fn weigh(&mut self, place: u16) {
        let Some(Some(nf)) = self.nfs.get_mut(usize::from(place)) else { return };
        let share = nf.rings.handle().load.share.get();
        if !nf.has_weight || share <= 0.0 || share == nf.share {
            return;
        }
        nf.share = share;
        match self.controller.set_weight(nf.slot, share) {
            Ok(has_weight) => nf.has_weight = has_weight,
            Err(Failed::Ended) => {}
            Err(_) => drop(self.counters.failures.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// At the end of a slice: the cost of its packets.
    fn report_cost(&mut self, place: u16, now_ns: u64) {
        let Some(Some(nf)) = self.nfs.get_mut(usize::from(place)) else { return };
        let Some(used_ns) = nf.clock.and_then(|clock| clock.read_ns().ok()) else { return };
        if nf.cost.cpu(now_ns, used_ns).is_some()
            && let Some(cost_ns) = nf.cost.ns_per_packet(now_ns)
        {
            nf.rings.handle().load.outside_ns.set(cost_ns);
        }
    }
}

impl Sharing for CoreSchedule {
    fn core(&self) -> usize {
        self.core
    }

    #[inline]
    fn step(&mut self, now_ns: u64) {
        let before = self.workflow.running();
        if let Some(Some(nf)) = before.map(|place| &mut self.nfs[usize::from(place)])
            && nf.clock.is_some()
        {
            let (taken, unread) = nf.rings.taken();
            nf.cost.ring(taken, unread.into());
        }
        match self.workflow.step(now_ns, &View(&self.nfs)) {
            Move::Stay => {}
            done => self.carry_out(done, now_ns),
        }
    }

    fn learn(&mut self, registry: &PathRegistry, tables: &Tables, nfs: &[Option<NfEnd>]) {
        let now = (registry.changes(), tables.generation);
        if now == self.made_of {
            return;
        }
        self.made_of = now;
        let depths = tables.depths();
        for nf in self.nfs.iter_mut().flatten() {
            let number = nf.rings.handle().number;
            let mut next: Vec<u16> = registry
                .iter()
                .filter(|path| {
                    let chain = tables.chains.get(usize::from(path.chain.number)).and_then(Option::as_ref);
                    chain.is_some_and(|chain| chain.version == path.chain.version)
                })
                .flat_map(|path| path.hops.windows(2))
                .filter(|pair| pair[0].nf == number && pair[1].nf != number)
                .map(|pair| pair[1].nf)
                .collect();
            next.sort_unstable();
            next.dedup();
            let handle = |number: u16| Some(nfs.get(usize::from(number))?.as_ref()?.handle.clone());
            nf.rings.lead_to(next.into_iter().filter_map(handle).collect());
        }
        let depth = |place: u16| {
            let nf = self.nfs[usize::from(place)].as_ref()?;
            depths.get(usize::from(nf.rings.handle().service)).copied()
        };
        self.workflow.reorder(|place| depth(place).unwrap_or(0));
    }

    fn forget_paths(&mut self) {
        self.made_of = (0, 0);
    }

    fn is_idle(&self) -> bool {
        self.workflow.is_idle()
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.workflow.deadline_ns()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for CoreSchedule {
    fn drop(&mut self) {
        // All errors have been reported, or no caller is left.
        let _ = self.teardown();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use sluice_host::process::Proc;
    use sluice_host::processes::{Failed, Mechanism, Refused, Slot};
    use sluice_policy::sched::workflow;
    use sluice_shm::page::Counter;

    use super::*;
    use sluice_dataplane::fake as nf;

    /// Keeps the shares that it is given.
    struct Recorder(Arc<Mutex<Vec<f64>>>);

    impl Controller for Recorder {
        fn mechanism(&self) -> Mechanism {
            Mechanism::Freeze
        }

        fn add(&mut self, _target: &Target) -> Result<Slot, Refused> {
            Ok(Slot(0))
        }

        fn park(&mut self, _slot: Slot) -> Result<(), Failed> {
            Ok(())
        }

        fn run(&mut self, _slot: Slot) -> Result<(), Failed> {
            Ok(())
        }

        fn set_weight(&mut self, _slot: Slot, share: f64) -> Result<bool, Failed> {
            self.0.lock().unwrap().push(share);
            Ok(true)
        }

        fn before_kill(&mut self, _slot: Slot) -> Result<(), Failed> {
            Ok(())
        }

        fn is_ended(&self, _slot: Slot) -> bool {
            false
        }

        fn remove(&mut self, _slot: Slot) -> Result<(), Failed> {
            Ok(())
        }

        fn teardown(&mut self) -> Vec<Failed> {
            Vec::new()
        }
    }

    #[test]
    fn an_nf_that_has_turns_has_the_weight_that_its_share_says() {
        let told = Arc::<Mutex<Vec<f64>>>::default();
        let controller = Box::new(Recorder(told.clone()));
        let mut schedule = CoreSchedule::new(1, controller, workflow::Settings::default(), Arc::default());
        let handle = nf::Fake { poll: true, ..nf::Fake::default() }.on(&nf::core_page(1), 0);
        handle.region.page.counter(Counter::Ready).store(1, Ordering::Relaxed);
        let mut sleeper = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let target = Target::of_pid(&Proc::default(), "nf", sleeper.id() as i32).unwrap();
        schedule.add(&handle, &target, None, None, 0).unwrap();
        let mut now_ns = 1_000_000_000;
        for share in [0.25, 0.5, 0.5] {
            handle.load.share.set(share);
            nf::post(&handle, 64);
            schedule.step(now_ns);
            nf::give_back(&handle, 64);
            // Until no NF has had work for a while.
            for _ in 0..10 {
                now_ns += 1_000_000;
                schedule.step(now_ns);
            }
        }
        drop(schedule);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(*told.lock().unwrap(), [0.25, 0.5], "each share once");
        assert_eq!(handle.load.slices.load(Ordering::Relaxed), 3);
    }
}
