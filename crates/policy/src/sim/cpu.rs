//! One core: runs its processes between two rounds of the manager.

use super::others::OtherProcesses;
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

/// A burst in progress.
#[derive(Default)]
struct Work {
    /// Time that it still takes.
    left_ns: u64,
    ns: u64,
    /// Time in the handlers alone.
    handler_ns: u64,
    packets: u32,
    batches: Vec<Batch>,
}

/// When the one that runs gives the core away, once it must.
#[derive(Default)]
struct Due {
    at_ns: u64,
    /// Whether another core interrupts it for that.
    is_interrupted: bool,
}

/// A core and its operating system.
pub(super) struct Cpu {
    number: usize,
    /// Time up to which the core was simulated.
    now_ns: u64,
    pub os: RunQueue,
    pub processes: Vec<usize>,
    /// Input of the wake-up policy.
    pub table: CoreTable,
    /// Pending wakes: time and process.
    wakes: Vec<(u64, usize)>,
    due: Due,
    next_tick_ns: u64,
    others: Option<OtherProcesses>,
    /// The process that ran last; None after idling.
    last: Option<usize>,
    /// Time left of a switch to it.
    switch_ns: u64,
    /// The burst of each process.
    works: Vec<Work>,
    /// In the ideal: the process whose burst was last.
    turn: usize,
    /// Remainder of cycles to nanoseconds, in cycles · 1000.
    rest: u64,
    /// No process is looked for to wake until then.
    pub quiet_until_ns: u64,
}

impl Cpu {
    pub(super) fn new(number: usize, scenario: &Scenario, processes: &[Process]) -> Self {
        let mine: Vec<usize> = (0..processes.len()).filter(|p| processes[*p].core == number).collect();
        let n = mine.len();
        Self {
            number,
            now_ns: 0,
            os: RunQueue::new(scenario.class, &scenario.machine, n),
            table: CoreTable::new(n),
            processes: mine,
            wakes: Vec::new(),
            due: Due::default(),
            next_tick_ns: scenario.machine.tick_ns,
            others: OtherProcesses::of(number, scenario),
            last: None,
            switch_ns: 0,
            works: (0..n).map(|_| Work::default()).collect(),
            turn: 0,
            rest: 0,
            quiet_until_ns: 0,
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.os.is_busy() || !self.wakes.is_empty()
    }

    /// The manager wakes a process, at a time up to which the core was simulated or later. Returns
    /// what that takes the manager.
    ///
    /// An idle core must be interrupted, and so must a process that is to give the core away. Else
    /// the woken process only joins those that wait.
    pub(super) fn wake(&mut self, local: usize, now_ns: u64, world: &mut World) -> u64 {
        world.count.wakes += 1;
        if !self.os.is_busy() {
            // One that is being woken already runs what comes meanwhile, too.
            let other_ns = self.wakes.iter().map(|(at_ns, _)| *at_ns).max();
            self.wakes.push((other_ns.unwrap_or(now_ns + world.machine.wake_idle_ns), local));
            return if other_ns.is_some() { world.machine.wake_quiet_cost_ns } else { world.machine.wake_cost_ns };
        }
        if self.ready(local, world) {
            self.due = Due { at_ns: now_ns + world.machine.wake_busy_ns, is_interrupted: true };
            return world.machine.wake_cost_ns;
        }
        world.machine.wake_quiet_cost_ns
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

    /// Runs up to a time. A burst in progress goes on in the next call.
    pub(super) fn run(&mut self, until_ns: u64, world: &mut World) {
        while self.now_ns < until_ns {
            if self.is_taken(until_ns, world) {
                continue;
            }
            let local = match world.fused {
                true => self.next_in_turn(world),
                false => self.scheduled(world),
            };
            match local {
                None => self.idle(until_ns, world),
                Some(local) if self.has_begun(local, world) => self.advance(local, until_ns, world),
                Some(_) => {}
            }
        }
    }

    /// Whether another process has the core, and has it up to its end or `until_ns`.
    fn is_taken(&mut self, until_ns: u64, world: &mut World) -> bool {
        let comes = self.others.as_mut().is_some_and(|others| others.comes(self.now_ns));
        if comes
            && !world.fused
            && let Some(local) = self.os.put_back()
        {
            let process = &mut world.processes[self.processes[local]];
            process.ready_ns = self.now_ns;
            world.count.nfs[process.parts[0]].involuntary += 1;
        }
        let ns = self.others.as_mut().map_or(0, |others| others.take(until_ns - self.now_ns));
        world.count.cores[self.number].others_ns += ns;
        self.now_ns += ns;
        ns > 0
    }

    /// When the next of the other processes comes.
    #[inline]
    fn next_other_ns(&self) -> u64 {
        self.others.as_ref().map_or(u64::MAX, OtherProcesses::next_ns)
    }

    /// Whether a process has a burst in progress or begins one; else it goes to sleep.
    fn has_begun(&mut self, local: usize, world: &mut World) -> bool {
        if self.switch_ns > 0 || self.works[local].left_ns > 0 {
            return true;
        }
        let stop = !world.processes[self.processes[local]].can_run() || self.is_over_budget(local, world);
        if stop && !world.fused {
            self.leave(local, world);
            return false;
        }
        self.start(local, world);
        true
    }

    /// Uses the core for a switch or a burst, up to its end, `until_ns`, or the next event.
    fn advance(&mut self, local: usize, until_ns: u64, world: &mut World) {
        let left_ns = if self.switch_ns > 0 { self.switch_ns } else { self.works[local].left_ns };
        let mut end_ns = (self.now_ns + left_ns).min(until_ns).min(self.next_other_ns());
        if !world.fused {
            let wake_ns = self.wakes.iter().map(|(at_ns, _)| *at_ns).min().unwrap_or(u64::MAX);
            let due_ns = if self.os.is_due() { self.due.at_ns } else { u64::MAX };
            end_ns = end_ns.min(self.next_tick_ns).min(wake_ns).min(due_ns).max(self.now_ns);
        }
        let ns = end_ns - self.now_ns;
        self.now_ns = end_ns;
        if !world.fused {
            self.os.account(ns);
        }
        if self.switch_ns > 0 {
            self.switch_ns -= ns;
            let nf = world.processes[self.processes[local]].parts[0];
            world.count.nfs[nf].switch_ns += ns;
            world.count.cores[self.number].switch_ns += ns;
            return;
        }
        self.works[local].left_ns -= ns;
        world.count.cores[self.number].busy_ns += ns;
        if self.works[local].left_ns == 0 {
            self.finish(local, world);
        }
    }

    fn idle(&mut self, until_ns: u64, world: &mut World) {
        let wake_ns = self.wakes.iter().map(|(at_ns, _)| *at_ns).min().unwrap_or(until_ns);
        let next = wake_ns.min(self.next_other_ns()).clamp(self.now_ns, until_ns);
        world.count.cores[self.number].idle_ns += next - self.now_ns;
        self.now_ns = next;
        self.last = None;
    }

    /// In the ideal: the next process with packets, round robin by bursts.
    fn next_in_turn(&mut self, world: &World) -> Option<usize> {
        let n = self.processes.len();
        if n > 0 && self.works[self.turn].left_ns > 0 {
            return Some(self.turn);
        }
        let turn = (1..=n).map(|i| (self.turn + i) % n).find(|local| world.processes[self.processes[*local]].can_run());
        self.turn = turn.unwrap_or(self.turn);
        turn
    }

    /// The process that the operating system runs now. A switch takes time.
    fn scheduled(&mut self, world: &mut World) -> Option<usize> {
        while let Some(i) = (0..self.wakes.len()).filter(|i| self.wakes[*i].0 <= self.now_ns).min_by_key(|i| self.wakes[*i].0) {
            let (_, local) = self.wakes.remove(i);
            if self.ready(local, world) {
                self.due.at_ns = self.now_ns;
            }
        }
        if self.now_ns >= self.next_tick_ns {
            // None while the core is idle.
            self.next_tick_ns = (self.now_ns / world.machine.tick_ns + 1) * world.machine.tick_ns;
            let was_due = self.os.is_due();
            self.os.tick();
            if self.os.is_due() && !was_due {
                self.due.at_ns = self.now_ns;
            }
        }
        let before = self.os.current();
        if before.is_some() && !(self.os.is_due() && self.now_ns >= self.due.at_ns) {
            return before;
        }
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
            let interrupt_ns = if self.due.is_interrupted { world.machine.interrupt_ns } else { 0 };
            self.switch_ns = world.machine.switch_ns + interrupt_ns;
        }
        self.due.is_interrupted = false;
        Some(local)
    }

    /// Makes a process able to run. True if the one that runs must give the core away for it.
    fn ready(&mut self, local: usize, world: &mut World) -> bool {
        let process = &mut world.processes[self.processes[local]];
        // Its neighbour may have woken it meanwhile.
        if std::mem::take(&mut process.asleep) || self.os.current() != Some(local) {
            process.ready_ns = self.now_ns;
        }
        self.os.wake(local)
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
        world.processes[self.processes[local]].publish();
        let next = if world.handover { self.choose(Some(local), world, self.now_ns) } else { None };
        let process = &mut world.processes[self.processes[local]];
        process.asleep = true;
        world.count.nfs[process.parts[0]].voluntary += 1;
        self.os.sleep();
        if let Some(next) = next {
            self.ready(next, world);
        }
    }

    fn start(&mut self, local: usize, world: &mut World) {
        let process = &mut world.processes[self.processes[local]];
        let mut left = process.rx.len().min(BURST).min(process.tx_room());
        let work = &mut self.works[local];
        work.packets = left;
        let (mut cycles, mut pass_cycles) = (0, 0);
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
                pass_cycles += pass;
            }
            work.batches.push(Batch { since_ns: 0, ..batch });
        }
        let thousandths = cycles * 1000 + self.rest;
        // A burst takes some time, or none would ever end.
        work.ns = (thousandths / world.machine.mhz).max(1);
        self.rest = thousandths % world.machine.mhz;
        work.left_ns = work.ns;
        work.handler_ns = (cycles - pass_cycles) * 1000 / world.machine.mhz;
    }

    /// Ends a burst: its packets are returned, and its time is charged.
    fn finish(&mut self, local: usize, world: &mut World) {
        let work = &mut self.works[local];
        let process = &mut world.processes[self.processes[local]];
        process.give(work.batches.drain(..), self.now_ns - work.ns.min(self.now_ns));
        self.table.charge(local, work.ns);
        if self.now_ns >= process.service.sampled_ns + SAMPLE_EVERY_NS && work.packets > 0 {
            let service = &mut process.service;
            service.sampled_ns = self.now_ns;
            service.median.add(self.now_ns, work.handler_ns / u64::from(work.packets));
            service.ns = service.median.median(self.now_ns);
        }
    }
}
