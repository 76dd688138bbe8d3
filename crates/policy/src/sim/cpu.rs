//! One core: runs its processes between two rounds of the manager.

use super::outcome::Outcome;
use super::packets::Batch;
use super::process::{Costs, Path, Process};
use super::runqueue::RunQueue;
use super::scenario::{BURST, Machine, Scenario};
use crate::sched::wakeup::{self, Core, CoreTable, Rules};

/// How often a service time is sampled, in nanoseconds.
const SAMPLE_EVERY_NS: u64 = 1_000_000;

/// State that cores and the manager share.
pub(super) struct World {
    pub machine: Machine,
    pub processes: Vec<Process>,
    pub paths: Vec<Path>,
    pub costs: Vec<Costs>,
    pub count: Outcome,
    pub handover: bool,
    pub fused: bool,
    pub rules: Rules,
}

impl World {
    pub(super) fn new(scenario: &Scenario, processes: Vec<Process>, paths: Vec<Path>) -> Self {
        let p = &scenario.platform;
        let costs = |(i, nf)| Costs::new(nf, scenario.seed.wrapping_add((i as u64).wrapping_mul(0x2545_f491_4f6c_dd1d)));
        Self {
            machine: scenario.machine.clone(),
            count: Outcome {
                mhz: scenario.machine.mhz,
                chains: vec![Default::default(); paths.len()],
                nfs: vec![Default::default(); scenario.nfs.len()],
                cores: vec![Default::default(); scenario.machine.cores],
                ..Outcome::default()
            },
            processes,
            paths,
            costs: scenario.nfs.iter().enumerate().map(costs).collect(),
            handover: p.handover,
            fused: p.fused,
            rules: Rules::default(),
        }
    }
}

struct Work {
    local: usize,
    ns: u64,
    packets: u32,
    batches: Vec<Batch>,
}

/// A core and its operating system.
pub(super) struct Cpu {
    number: usize,
    /// Time up to which the core was simulated: the end of the burst in progress.
    now_ns: u64,
    pub os: RunQueue,
    pub processes: Vec<usize>,
    /// Input of the wake-up policy.
    pub table: CoreTable,
    /// Pending wakes: time and process.
    wakes: Vec<(u64, usize)>,
    /// Process of its last burst; None after idling.
    last: Option<usize>,
    work: Work,
    is_working: bool,
    /// Remainder of cycles to nanoseconds, in cycles · 1000.
    rest: u64,
}

impl Cpu {
    pub(super) fn new(number: usize, scenario: &Scenario, processes: &[Process]) -> Self {
        let mine: Vec<usize> = (0..processes.len()).filter(|p| processes[*p].core == number).collect();
        let n = mine.len();
        Self {
            number,
            now_ns: 0,
            os: RunQueue::new(scenario.class, n),
            table: CoreTable::new(n),
            processes: mine,
            wakes: Vec::new(),
            last: None,
            work: Work { local: 0, ns: 0, packets: 0, batches: Vec::new() },
            is_working: false,
            rest: 0,
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.os.is_busy() || !self.wakes.is_empty()
    }

    /// Makes a process able to run from `at_ns` on.
    pub(super) fn wake_at(&mut self, at_ns: u64, local: usize) {
        self.wakes.push((at_ns, local));
    }

    /// The process that the policy runs next when `leaving` gives the core away.
    pub(super) fn choose(&mut self, leaving: Option<usize>, world: &World, now_ns: u64) -> Option<usize> {
        self.look(world, now_ns);
        self.table.leaving = leaving;
        if let Some(leaving) = leaving {
            // One that cannot run takes part in the round, too.
            self.table.candidates[leaving].waiting = world.processes[self.processes[leaving]].rx.len();
        }
        wakeup::choose(&mut self.table, &world.rules).map(|local| local as usize)
    }

    fn look(&mut self, world: &World, now_ns: u64) {
        for (candidate, process) in self.table.candidates.iter_mut().zip(&self.processes) {
            *candidate = world.processes[*process].candidate(now_ns);
        }
    }

    /// Runs up to a time. The last burst may end later.
    pub(super) fn run(&mut self, until_ns: u64, world: &mut World) {
        while self.now_ns < until_ns {
            self.finish(world);
            let local = match world.fused {
                true => self.next_in_turn(world),
                false => self.scheduled(world),
            };
            match local {
                Some(local) => self.step(local, world),
                None => self.idle(until_ns, world),
            }
        }
    }

    fn idle(&mut self, until_ns: u64, world: &mut World) {
        let next = self.wakes.iter().map(|(at, _)| *at).min().unwrap_or(until_ns).clamp(self.now_ns, until_ns);
        world.count.cores[self.number].idle_ns += next - self.now_ns;
        self.now_ns = next;
        self.last = None;
    }

    /// In the ideal: the next process with packets, round robin by bursts.
    fn next_in_turn(&self, world: &World) -> Option<usize> {
        let n = self.processes.len();
        let turn = (1..=n).map(|i| (self.work.local + i) % n);
        turn.into_iter().find(|local| world.processes[self.processes[*local]].can_run())
    }

    /// The process that the operating system runs now. A switch takes time.
    fn scheduled(&mut self, world: &mut World) -> Option<usize> {
        while let Some(i) = (0..self.wakes.len()).filter(|i| self.wakes[*i].0 <= self.now_ns).min_by_key(|i| self.wakes[*i].0) {
            let (_, local) = self.wakes.remove(i);
            self.ready(local, world);
        }
        let before = self.os.current();
        let local = self.os.pick()?;
        if before != Some(local) {
            if let Some(before) = before {
                let process = &mut world.processes[self.processes[before]];
                process.ready_ns = self.now_ns;
                world.count.nfs[process.parts[0]].involuntary += 1;
            }
            let process = &world.processes[self.processes[local]];
            let nf = &mut world.count.nfs[process.parts[0]];
            nf.runs += 1;
            nf.waited_ns += self.now_ns.saturating_sub(process.ready_ns);
        }
        if self.last != Some(local) {
            self.last = Some(local);
            let nf = world.processes[self.processes[local]].parts[0];
            world.count.nfs[nf].switch_ns += world.machine.switch_ns;
            world.count.cores[self.number].switch_ns += world.machine.switch_ns;
            self.now_ns += world.machine.switch_ns;
        }
        Some(local)
    }

    fn ready(&mut self, local: usize, world: &mut World) {
        let process = &mut world.processes[self.processes[local]];
        // Its neighbour may have woken it meanwhile.
        if std::mem::take(&mut process.asleep) || self.os.current() != Some(local) {
            process.ready_ns = self.now_ns;
        }
        self.os.wake(local);
    }

    /// Runs a burst of the process that has the core, or puts it to sleep.
    fn step(&mut self, local: usize, world: &mut World) {
        let number = self.processes[local];
        let stop = !world.processes[number].can_run() || self.is_over_budget(local, world);
        if stop && !world.fused {
            self.leave(local, world);
            return;
        }
        self.start(local, number, world);
    }

    /// Whether the running process has no budget left and another can run; called after each burst.
    fn is_over_budget(&mut self, local: usize, world: &World) -> bool {
        if !world.handover || self.table.budget_ns(local as u32) > 0 {
            return false;
        }
        self.look(world, self.now_ns);
        self.table.must_leave(local)
    }

    /// Puts the process to sleep, and starts the next one with hand-over.
    fn leave(&mut self, local: usize, world: &mut World) {
        let next = if world.handover { self.choose(Some(local), world, self.now_ns) } else { None };
        let process = &mut world.processes[self.processes[local]];
        process.asleep = true;
        world.count.nfs[process.parts[0]].voluntary += 1;
        self.os.sleep();
        if let Some(next) = next {
            self.ready(next, world);
        }
    }

    fn start(&mut self, local: usize, number: usize, world: &mut World) {
        let process = &mut world.processes[number];
        let mut left = process.rx.len().min(BURST).min(process.tx.room());
        self.work.packets = left;
        self.work.local = local;
        let mut cycles = 0;
        while left > 0 {
            let Some(batch) = process.rx.pop(left) else { break };
            left -= batch.count;
            let flows = world.paths[batch.chain as usize].flows;
            for (place, nf) in process.parts.iter().enumerate() {
                // One pass through rings and checks for all handlers.
                let pass = if place == 0 { world.machine.hop_cycles * u64::from(batch.count) } else { 0 };
                let used = world.costs[*nf].cycles(&batch, flows, self.now_ns) + pass;
                world.count.nfs[*nf].cycles += used;
                world.count.nfs[*nf].packets += u64::from(batch.count);
                cycles += used;
            }
            self.work.batches.push(Batch { since_ns: 0, ..batch });
        }
        let thousandths = cycles * 1000 + self.rest;
        self.work.ns = thousandths / world.machine.mhz;
        self.rest = thousandths % world.machine.mhz;
        self.is_working = true;
        self.now_ns += self.work.ns;
        world.count.cores[self.number].busy_ns += self.work.ns;
    }

    /// Ends the burst in progress: its packets leave, and its time is charged.
    fn finish(&mut self, world: &mut World) {
        if !std::mem::take(&mut self.is_working) {
            return;
        }
        let work = &mut self.work;
        let process = &mut world.processes[self.processes[work.local]];
        for batch in work.batches.drain(..) {
            let lost = process.tx.push(batch);
            debug_assert_eq!(lost, 0, "a burst is only taken if its packets have room");
        }
        self.table.charge(work.local, work.ns);
        if !world.fused {
            self.os.account(work.ns);
        }
        if self.now_ns >= process.sampled_ns + SAMPLE_EVERY_NS && work.packets > 0 {
            process.sampled_ns = self.now_ns;
            process.median.add(self.now_ns, work.ns / u64::from(work.packets));
            process.service_ns = process.median.median(self.now_ns);
        }
    }
}
