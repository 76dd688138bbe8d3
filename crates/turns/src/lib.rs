//! NFs that do not cooperate, in workflow order: on a core that polling NFs share, somebody outside says whose turn it is.
//!
//! # Approach
//! Each such core has a [`CoreSchedule`]: the [policy](sluice_policy::sched::workflow) that decides, the [rings] that it looks at,
//! and a [process controller](sluice_host::processes) that carries it out. It belongs to the packet thread with the core's Wakeup
//! role, which asks it once a round: a look at two rings, and where a turn ends, one or two system calls. So a schedule needs no core of
//! its own, is as fine as the thread's rounds while packets move, and sleeps when the thread does: until shortly before the next
//! deadline, if somebody waits for it, else until there is something to do.
//!
//! Taking an NF in or letting it go takes the kernel milliseconds, so no packet thread does it: the supervisor borrows the schedule
//! ([`Worker::take_sharing`](sluice_dataplane::worker::Worker::take_sharing)), changes it, and gives it back. Meanwhile who runs goes on running.
//!
//! # Costs
//! Slices follow from what a packet costs, told from outside: packets that left the ring over CPU time used, of turns in which the ring
//! never ran dry ([`Outside`]). Before the first such turn, what `sluice estimate` kept or the NF's own samples say.
//!
//! # Weights
//! Among each other NFs have slices, whose lengths go by weight (priority of the service, and of the flow that it has) and cost; how often
//! they come goes by their packets. Against processes that have no turns, an NF has its weight from the kernel, by the same share as
//! every other NF has: where the mechanism has put it into a cgroup of its own, it is told the share at the beginning of a turn, when
//! that has changed.
//!
//! # Limits
//! A controller's calls cost the packet thread some microseconds each. An NF that starts or ends gets turns for it, without packets.

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

/// How long a cost counts, in nanoseconds.
const WINDOW_NS: u64 = 100_000_000;
/// Budget of an NF that would yield, in a turn that ends otherwise: longer than any turn, in nanoseconds.
const BUDGET_NS: u64 = 2_000_000_000;

/// What a schedule counts. Its thread writes, all may read.
#[derive(Debug, Default)]
pub struct Counters {
    /// Turns that ended, by [`Why`].
    pub ended: [AtomicU64; Why::ALL.len()],
    /// Nanoseconds that the packet thread spent in the controller.
    pub controller_ns: AtomicU64,
    /// The longest that an NF with work has waited for its turn, in nanoseconds.
    pub longest_wait_ns: AtomicU64,
    /// At each turn that begins or ends: the longest wait since the one before, in nanoseconds, if anybody waited.
    pub waits_ns: AtomicHistogram,
    /// Times that the controller failed, other than that a process had ended.
    pub failures: AtomicU64,
}

/// An NF of a schedule.
struct Governed {
    rings: NfRings,
    slot: Slot,
    cost: Outside,
    clock: Option<CpuClock>,
    /// The share of its core that the controller was told last, and whether that has a use for it.
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
        // A pool gives its members flows of different weight, so it is read for each turn.
        self.0.get(usize::from(nf)).and_then(Option::as_ref).map_or(1.0, |governed| governed.rings.handle().weight())
    }
}

/// Who has a core whose NFs do not cooperate.
pub struct CoreSchedule {
    core: usize,
    controller: Box<dyn Controller>,
    workflow: Workflow,
    /// By place; the policy knows NFs by this number.
    nfs: Vec<Option<Governed>>,
    counters: Arc<Counters>,
    /// Paths and generation of the tables that the NFs' ways were made of.
    made_of: (u32, u32),
}

impl std::fmt::Debug for CoreSchedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.nfs.iter().flatten().map(|nf| nf.rings.handle().name.as_str()).collect();
        f.debug_struct("CoreSchedule").field("core", &self.core).field("nfs", &names).finish_non_exhaustive()
    }
}

impl CoreSchedule {
    /// Of a core, without NFs.
    pub fn new(core: usize, controller: Box<dyn Controller>, settings: Settings, counters: Arc<Counters>) -> Self {
        Self { core, controller, workflow: Workflow::new(settings), nfs: Vec::new(), counters, made_of: (0, 0) }
    }

    /// How it stops and starts NFs.
    pub fn mechanism(&self) -> Mechanism {
        self.controller.mechanism()
    }

    fn place(&self, number: u16) -> Option<usize> {
        self.nfs.iter().position(|nf| nf.as_ref().is_some_and(|nf| nf.rings.handle().number == number))
    }

    /// Takes an NF in: it is parked until its turn. `pid` is its process, if it is one; `foreign` what is known of it if it knows
    /// nothing of Sluice.
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

    /// Lets an NF go, which runs as it did before; says whether it was here.
    ///
    /// # Errors
    /// What could not be given back to it.
    pub fn remove(&mut self, number: u16) -> Result<bool, Failed> {
        let Some(place) = self.place(number) else { return Ok(false) };
        self.workflow.remove(place as u16);
        let Some(nf) = self.nfs[place].take() else { return Ok(false) };
        let handle = nf.rings.handle();
        handle.governed.store(false, Ordering::Relaxed);
        handle.gate.held.store(false, Ordering::Relaxed);
        self.controller.remove(nf.slot).map(|()| true)
    }

    /// Looks for threads that the NFs have started, which turns pass over until then.
    pub fn look_again(&mut self) {
        if self.controller.look_again().is_err() {
            self.counters.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes sure that an NF can be killed although it is parked.
    pub fn before_kill(&mut self, number: u16) {
        if let Some(Some(nf)) = self.place(number).map(|place| &self.nfs[place]) {
            // If it cannot be made to run, it has ended or will be killed all the same.
            let _ = self.controller.before_kill(nf.slot);
        }
    }

    /// Whether it has no NF any more.
    pub fn is_empty(&self) -> bool {
        self.nfs.iter().all(Option::is_none)
    }

    /// Lets all go. Says what could not be given back. Dropping it does the same.
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
            // The supervisor is told of an end by the process itself, and takes it out.
            Ok(()) | Err(Failed::Ended) => {}
            Err(_) => drop(self.counters.failures.fetch_add(1, Ordering::Relaxed)),
        }
        if let Move::Switch { from, why, .. } | Move::Park(from, why) = done {
            self.counters.ended[why as usize].fetch_add(1, Ordering::Relaxed);
            self.tell_cost(from, now_ns);
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
                // It may sleep, or think that its time is over: its turn is made here.
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

    /// A turn has begun: it has the weight against whoever else is on the core that its share says.
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

    /// A turn has ended: what its packets cost.
    fn tell_cost(&mut self, place: u16, now_ns: u64) {
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
        // What is left of it has been told, or nobody is there to be told.
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

    /// One that keeps the shares that it is told.
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
            // Until nobody has had anything to do for a while.
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
