//! The manager: each round forwards, admits, decides and wakes.

use super::cpu::{Cpu, World};
use super::outcome::Outcome;
use super::packets::Batch;
use super::process::{self, Path};
use super::scenario::{BURST, Platform, Scenario, ThreadCosts};
use crate::sched::backpressure::{Pressure, QueueState, Watermarks, queueing_ns};
use crate::sched::weight::{self, Demand, Margin};

/// How often arrivals are read, in nanoseconds.
const LOAD_EVERY_NS: u64 = 1_000_000;
/// Bursts that it takes of an NF in a round.
const TAKEN: u32 = 2;
/// Most rounds in which it does not read a source of which nothing is let in.
const MOST_BACKOFF: u32 = 32;
/// Time without looking for processes to wake after a look that found none, in nanoseconds.
const FRUITLESS_NS: u64 = 10_000;
/// Time without returned packets after which an NF stands still, in nanoseconds.
const STILL_NS: u64 = 10_000_000;

pub(super) struct Manager {
    platform: Platform,
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
    /// The processes, furthest downstream first.
    order: Vec<usize>,
    /// Part of a nanosecond that packets took beyond the last round.
    part_ns: f64,
    demands: Vec<Demand>,
    shares: Vec<f64>,
}

impl Manager {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let (processes, paths) = process::layout(scenario);
        let platform = scenario.platform.clone();
        let hops: Vec<Vec<usize>> = paths.iter().map(|p| p.hops.iter().map(|h| h.0).collect()).collect();
        let mut order: Vec<usize> = (0..processes.len()).collect();
        order.sort_by_key(|p| std::cmp::Reverse(processes[*p].depth));
        let limits = |p: &process::Process| {
            Watermarks::new(p.rx.capacity(), platform.high_watermark, platform.low_watermark, platform.queueing_ns)
        };
        Self {
            limits: processes.iter().map(limits).collect(),
            cpus: (0..scenario.machine.cores).map(|core| Cpu::new(core, scenario, &processes)).collect(),
            pressure: Pressure::new(processes.len(), &hops),
            priorities: processes.iter().map(|p| scenario.nfs[p.parts[0]].priority).collect(),
            rounds: 0,
            now_ns: 0,
            load_due_ns: 0,
            weights_due_ns: platform.weight_every_ns,
            warmup_ns: scenario.warmup_ns,
            measure_ns: scenario.measure_ns,
            order,
            part_ns: 0.0,
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
            // As in a packet thread, what comes in is before what was returned.
            let mut took_ns = match self.world.machine.thread {
                Some(thread) => f64::from(self.read()) * thread.entry_ns,
                None => {
                    self.admit_all();
                    0.0
                }
            };
            let passed = f64::from(self.forward());
            took_ns += self.world.machine.thread.map_or(0.0, |ThreadCosts { pass_ns, .. }| passed * pass_ns) + self.part_ns;
            self.part_ns = took_ns.fract();
            if self.platform.backpressure && !self.platform.fused {
                self.watch();
            }
            self.tune();
            let spent = if self.platform.fused { 0 } else { self.wake() };
            self.rounds += 1;
            self.now_ns += self.world.machine.round_ns + took_ns as u64 + spent;
        }
    }

    /// Passes on what NFs returned. Returns how many packets.
    fn forward(&mut self) -> u32 {
        let World { processes, paths, count, machine, .. } = &mut self.world;
        let mut passed = 0;
        for number in &self.order {
            let mut left = if machine.thread.is_some() { TAKEN * BURST } else { u32::MAX };
            while let Some(batch) = processes[*number].tx.pop(left) {
                left -= batch.count;
                passed += batch.count;
                let path = &mut paths[batch.chain as usize];
                if path.hops[batch.hop as usize].1 {
                    processes[*number].credit += batch.count;
                }
                let Some((next, _)) = path.hops.get(batch.hop as usize + 1) else {
                    path.inside -= batch.count;
                    count.chains[batch.chain as usize].delivered += u64::from(batch.count);
                    continue;
                };
                let lost = processes[*next].post(Batch { hop: batch.hop + 1, since_ns: self.now_ns, ..batch });
                if lost > 0 {
                    debug_assert!(!self.platform.backpressure, "credits keep rings from overflowing");
                    path.inside -= lost;
                    count.chains[batch.chain as usize].wasted += u64::from(lost);
                    count.nfs[processes[*next].parts[0]].wasted += u64::from(lost);
                }
            }
            // Credit is not used without backpressure.
            if !self.platform.backpressure {
                processes[*number].credit = processes[*number].rx.capacity();
            }
        }
        passed
    }

    /// Packets of a source that arrived and were neither offered nor skipped.
    fn due(&self, chain: usize) -> u64 {
        let ever = u128::from(self.now_ns) * u128::from(self.world.paths[chain].rate_pps) / 1_000_000_000;
        ever as u64 - self.world.count.chains[chain].offered - self.world.paths[chain].source.skipped
    }

    /// Admits all packets that arrived since the last round, burst by burst in turn, as room
    /// permits.
    fn admit_all(&mut self) {
        let (n, rounds) = (self.world.paths.len(), self.rounds);
        for chain in 0..n {
            self.world.paths[chain].source.due = self.due(chain);
        }
        let burst = if n == 1 { u64::MAX } else { u64::from(BURST) };
        let mut left = n;
        while left > 0 {
            left = 0;
            for chain in (0..n).map(|i| (i + rounds) % n) {
                let source = &mut self.world.paths[chain].source;
                let offered = source.due.min(burst);
                source.due -= offered;
                left += usize::from(source.due > 0);
                self.admit(chain, offered);
            }
        }
    }

    /// Reads a burst of each source and admits what there is room for. A source that is late skips
    /// what is more than a burst. One of which nothing is let in is read more and more seldom.
    /// Returns how many packets were read.
    fn read(&mut self) -> u32 {
        let mut read = 0;
        for chain in 0..self.world.paths.len() {
            let source = &mut self.world.paths[chain].source;
            if source.skip > 0 {
                source.skip -= 1;
                continue;
            }
            let due = self.due(chain);
            let offered = due.min(u64::from(BURST));
            if offered == 0 {
                continue;
            }
            read += offered as u32;
            let let_in = self.admit(chain, offered);
            let source = &mut self.world.paths[chain].source;
            source.skipped += due - offered;
            source.backoff = if let_in == 0 { (source.backoff * 2 + 1).min(MOST_BACKOFF) } else { 0 };
            source.skip = source.backoff;
        }
        read
    }

    /// Admits packets of a chain as room permits, and refuses the others. Returns how many went in.
    fn admit(&mut self, chain: usize, offered: u64) -> u32 {
        let World { processes, paths, count, machine, .. } = &mut self.world;
        let path = &paths[chain];
        let room = match self.platform.backpressure {
            true if self.pressure.is_throttled(chain) => 0,
            true => path.distinct.iter().map(|p| processes[*p].credit).min().unwrap_or(0),
            false => processes[path.hops[0].0].rx_room(),
        };
        let frames = machine.frames.map_or(u32::MAX, |frames| frames_for(frames, paths, chain));
        let packets = offered.min(u64::from(room.min(frames))) as u32;
        for p in &path.distinct {
            if self.platform.backpressure {
                processes[*p].credit -= packets;
            }
            processes[*p].wanted += offered - u64::from(packets);
        }
        let first = path.hops[0].0;
        paths[chain].inside += packets;
        let chains = &mut count.chains[chain];
        let batch = Batch { chain: chain as u32, hop: 0, first: chains.offered, count: packets, since_ns: self.now_ns };
        chains.offered += offered;
        chains.entry_drops += offered - u64::from(packets);
        if packets > 0 {
            let lost = processes[first].post(batch);
            debug_assert_eq!(lost, 0, "only what has room is admitted");
        }
        packets
    }

    /// Finds bottlenecks, and holds the NFs before them.
    fn watch(&mut self) {
        for ((number, process), limits) in self.world.processes.iter_mut().enumerate().zip(&self.limits) {
            let queue = process.queue();
            let returned = process.seen.posted - u64::from(queue);
            let is_watched = queue >= limits.high || process.watch.state() != QueueState::Clear;
            // A held NF with a long queue is no bottleneck: its time starts when it is free.
            if !is_watched || process.held || process.seen.returned != returned {
                (process.seen.returned, process.seen.since_ns) = (returned, self.now_ns);
            }
            if !is_watched || process.held {
                continue;
            }
            // An NF that waits for its core is no bottleneck; one that stands still is.
            let age_ns = Some(self.now_ns - process.seen.since_ns).filter(|ns| *ns > STILL_NS).unwrap_or(0);
            let waits = queueing_ns(queue, process.service.ns, age_ns);
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
                p.service.ns = p.service.median.median(self.now_ns);
                let service_ns = p.service.ns.map(|ns| ns as f64);
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
        let Self { cpus, world, platform, now_ns, .. } = self;
        let mut spent = 0;
        for cpu in cpus {
            // A running NF gives the core away itself.
            if *now_ns < cpu.quiet_until_ns || platform.handover && cpu.is_busy() {
                continue;
            }
            let before = world.count.wakes;
            let all = 0..if platform.handover { 0 } else { cpu.processes.len() };
            let next = if platform.handover { cpu.choose(None, world, *now_ns) } else { None };
            for local in all.chain(next) {
                let process = &mut world.processes[cpu.processes[local]];
                if process.asleep && process.can_run() {
                    process.asleep = false;
                    spent += cpu.wake(local, *now_ns + spent, world);
                }
            }
            if world.count.wakes == before {
                cpu.quiet_until_ns = *now_ns + FRUITLESS_NS;
            }
        }
        spent
    }
}

/// Packets that a chain may still let in: no more of it are inside than frames are left for others.
fn frames_for(frames: u32, paths: &[Path], chain: usize) -> u32 {
    let inside: u32 = paths.iter().map(|path| path.inside).sum();
    // A burst for each other chain, of at most a quarter.
    let kept = (BURST * (paths.len() as u32 - 1)).min(frames / 4);
    frames.saturating_sub(inside + kept).saturating_sub(paths[chain].inside)
}
