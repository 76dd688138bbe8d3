//! The manager: each round forwards, admits, decides and wakes.

use super::cpu::{Cpu, World};
use super::outcome::Outcome;
use super::packets::Batch;
use super::process;
use super::scenario::{BURST, Class, Platform, Scenario};
use crate::sched::backpressure::{Pressure, QueueState, Watermarks, queueing_ns};
use crate::sched::weight::{self, Demand, Margin};

/// How often arrivals are read, in nanoseconds.
const LOAD_EVERY_NS: u64 = 1_000_000;

pub(super) struct Manager {
    platform: Platform,
    class: Class,
    world: World,
    cpus: Vec<Cpu>,
    pressure: Pressure,
    limits: Vec<Watermarks>,
    priorities: Vec<f64>,
    rounds: usize,
    now_ns: u64,
    load_due_ns: u64,
    weights_due_ns: u64,
    warmup_ns: u64,
    measure_ns: u64,
    /// Packets of each chain that arrived in this round.
    due: Vec<u64>,
    demands: Vec<Demand>,
    shares: Vec<f64>,
}

impl Manager {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let (processes, paths) = process::layout(scenario);
        let platform = scenario.platform.clone();
        let hops: Vec<Vec<usize>> = paths.iter().map(|p| p.hops.iter().map(|h| h.0).collect()).collect();
        let limits = |p: &process::Process| {
            Watermarks::new(p.rx.capacity(), platform.high_watermark, platform.low_watermark, platform.queueing_ns)
        };
        Self {
            limits: processes.iter().map(limits).collect(),
            class: scenario.class,
            cpus: (0..scenario.machine.cores).map(|core| Cpu::new(core, scenario, &processes)).collect(),
            pressure: Pressure::new(processes.len(), &hops),
            priorities: processes.iter().map(|p| scenario.nfs[p.parts[0]].priority).collect(),
            rounds: 0,
            now_ns: 0,
            load_due_ns: 0,
            weights_due_ns: platform.weight_every_ns,
            warmup_ns: scenario.warmup_ns,
            measure_ns: scenario.measure_ns,
            due: vec![0; paths.len()],
            demands: Vec::new(),
            shares: Vec::new(),
            world: World::new(scenario, processes, paths),
            platform,
        }
    }

    pub(super) fn run(mut self) -> Outcome {
        self.run_until(self.warmup_ns);
        let before = self.count();
        self.run_until(self.warmup_ns + self.measure_ns);
        self.count().since(&before)
    }

    fn count(&self) -> Outcome {
        let mut count = self.world.count.clone();
        count.elapsed_ns = self.now_ns;
        count.shares = vec![0.0; count.nfs.len()];
        self.world.processes.iter().for_each(|p| count.shares[p.parts[0]] = p.share);
        count
    }

    fn run_until(&mut self, end_ns: u64) {
        while self.now_ns < end_ns {
            let world = &mut self.world;
            self.cpus.iter_mut().for_each(|cpu| cpu.run(self.now_ns, world));
            self.forward();
            self.admit();
            if self.platform.backpressure && !self.platform.fused {
                self.watch();
            }
            self.tune();
            let spent = if self.platform.fused { 0 } else { self.wake() };
            self.rounds += 1;
            self.now_ns += self.world.machine.round_ns + spent;
        }
    }

    fn forward(&mut self) {
        let World { processes, paths, count, .. } = &mut self.world;
        for number in 0..processes.len() {
            while let Some(batch) = processes[number].tx.pop(u32::MAX) {
                let path = &paths[batch.chain as usize];
                if path.hops[batch.hop as usize].1 {
                    processes[number].credit += batch.count;
                }
                let Some((next, _)) = path.hops.get(batch.hop as usize + 1) else {
                    count.chains[batch.chain as usize].delivered += u64::from(batch.count);
                    continue;
                };
                let lost = processes[*next].rx.push(Batch { hop: batch.hop + 1, since_ns: self.now_ns, ..batch });
                if lost > 0 {
                    debug_assert!(!self.platform.backpressure, "credits keep rings from overflowing");
                    count.chains[batch.chain as usize].wasted += u64::from(lost);
                    count.nfs[processes[*next].parts[0]].wasted += u64::from(lost);
                }
            }
            // Credit is not used without backpressure.
            if !self.platform.backpressure {
                processes[number].credit = processes[number].rx.capacity();
            }
        }
    }

    /// Admits packets that arrived since the last round, burst by burst in turn, as room permits.
    fn admit(&mut self) {
        let World { processes, paths, count, .. } = &mut self.world;
        for (chain, path) in paths.iter().enumerate() {
            let ever = u128::from(self.now_ns) * u128::from(path.rate_pps) / 1_000_000_000;
            self.due[chain] = ever as u64 - count.chains[chain].offered;
            path.hops.iter().for_each(|(p, _)| processes[*p].wanted += self.due[chain]);
        }
        let n = paths.len();
        let burst = if n == 1 { u64::MAX } else { u64::from(BURST) };
        let mut left = n;
        while left > 0 {
            left = 0;
            for chain in (0..n).map(|i| (i + self.rounds) % n) {
                let offered = self.due[chain].min(burst);
                if offered == 0 {
                    continue;
                }
                self.due[chain] -= offered;
                left += usize::from(self.due[chain] > 0);
                let path = &paths[chain];
                let allowed = match self.platform.backpressure {
                    true if self.pressure.is_throttled(chain) => 0,
                    true => path.distinct.iter().map(|p| processes[*p].credit).min().unwrap_or(0),
                    false => processes[path.hops[0].0].rx.room(),
                };
                let packets = offered.min(u64::from(allowed)) as u32;
                if self.platform.backpressure {
                    path.distinct.iter().for_each(|p| processes[*p].credit -= packets);
                }
                let chains = &mut count.chains[chain];
                let batch = Batch { chain: chain as u32, hop: 0, first: chains.offered, count: packets, since_ns: self.now_ns };
                chains.offered += offered;
                chains.entry_drops += offered - u64::from(packets);
                if packets > 0 {
                    processes[path.hops[0].0].rx.push(batch);
                }
            }
        }
    }

    /// Finds bottlenecks, and holds the NFs before them.
    fn watch(&mut self) {
        for ((number, process), limits) in self.world.processes.iter_mut().enumerate().zip(&self.limits) {
            let queue = process.rx.len();
            // Only long queues need a closer look.
            let waits = match queue >= limits.high {
                true => queueing_ns(queue, process.service_ns, process.age_ns(self.now_ns)),
                false => 0,
            };
            if process.watch.step(limits, queue, waits) {
                let is_bottleneck = process.watch.state() == QueueState::Throttle;
                self.pressure.set(number, is_bottleneck);
                self.world.count.throttles += u64::from(is_bottleneck);
            }
        }
        for nf in self.pressure.changed_nfs() {
            self.world.processes[*nf].held = self.pressure.is_held(*nf);
        }
        self.pressure.forget_changes();
    }

    /// Reads arrivals each millisecond, and decides about weights when that is due.
    fn tune(&mut self) {
        if !self.platform.weights || self.now_ns < self.load_due_ns {
            return;
        }
        self.load_due_ns = self.now_ns + LOAD_EVERY_NS;
        self.world.processes.iter_mut().for_each(|p| p.rate.add(self.now_ns, p.wanted));
        if self.now_ns < self.weights_due_ns {
            return;
        }
        self.weights_due_ns = self.now_ns + self.platform.weight_every_ns;
        let margin = Margin { percent: self.platform.weight_margin_percent };
        for cpu in &mut self.cpus {
            self.demands.clear();
            for number in &cpu.processes {
                let p = &mut self.world.processes[*number];
                p.service_ns = p.median.median(self.now_ns);
                let service_ns = p.service_ns.map(|ns| ns as f64);
                self.demands.push(Demand { arrival_pps: p.rate.pps(), service_ns, priority: self.priorities[*number] });
            }
            weight::shares(&self.demands, self.platform.min_share, &mut self.shares);
            for (local, share) in self.shares.iter().enumerate() {
                let p = &mut self.world.processes[cpu.processes[local]];
                p.share = *share;
                if margin.is_exceeded(p.written, *share) {
                    p.written = Some(*share);
                    self.world.count.weight_writes += 1;
                    let average = weight::cgroup_v1(1.0 / self.shares.len() as f64) as f64;
                    cpu.os.set_weight(local, weight::cgroup_v1(*share) as f64 / average);
                }
            }
            cpu.table.shares.clone_from(&self.shares);
        }
    }

    /// Wakes each NF with packets, or with hand-over one NF of each idle core. Returns the time.
    fn wake(&mut self) -> u64 {
        let mut spent = 0;
        for cpu in &mut self.cpus {
            if !self.platform.handover {
                for local in 0..cpu.processes.len() {
                    let p = &mut self.world.processes[cpu.processes[local]];
                    if p.asleep && p.can_run() {
                        p.asleep = false;
                        spent += wake_one(&mut self.world, self.class, cpu, local, self.now_ns + spent);
                    }
                }
                continue;
            }
            // A running NF gives the core away itself.
            if cpu.os.current().is_none()
                && !cpu.is_busy()
                && let Some(next) = cpu.choose(None, &self.world, self.now_ns)
            {
                self.world.processes[cpu.processes[next]].asleep = false;
                spent += wake_one(&mut self.world, self.class, cpu, next, self.now_ns + spent);
            }
        }
        spent
    }
}

/// Wakes a process from the manager. Returns the time that takes the manager.
fn wake_one(world: &mut World, class: Class, cpu: &mut Cpu, local: usize, now_ns: u64) -> u64 {
    world.count.wakes += 1;
    let m = &world.machine;
    let (cost, until) = match (cpu.is_busy(), class) {
        (true, Class::Batch) => (m.wake_quiet_cost_ns, m.wake_quiet_cost_ns),
        (true, _) => (m.wake_cost_ns, m.wake_busy_ns),
        (false, _) => (m.wake_cost_ns, m.wake_idle_ns),
    };
    cpu.wake_at(now_ns + until, local);
    cost
}
