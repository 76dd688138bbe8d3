//! Processes of NFs, and paths of chains over them.

use super::packets::{Batch, Ring};
use super::scenario::{BURST, Cost, Nf, Scenario};
use crate::sched::backpressure::QueueWatch;
use crate::sched::cost::MovingMedian;
use crate::sched::wakeup::Candidate;
use crate::sched::weight::ArrivalRate;

/// Window of service times, in nanoseconds.
const COST_WINDOW_NS: u64 = 100_000_000;
/// Time constant of arrival rates, in nanoseconds.
const RATE_TAU_NS: u64 = 10_000_000;

/// A process: one NF, or in the ideal consecutive NFs of a chain on a core.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub core: usize,
    /// Its NFs, in the order of a packet's visits.
    pub parts: Vec<usize>,
    pub rx: Ring,
    pub tx: Ring,
    /// Packets that may still be admitted.
    pub credit: u32,
    pub asleep: bool,
    pub held: bool,
    pub depth: u32,
    pub watch: QueueWatch,
    pub median: MovingMedian,
    pub service_ns: Option<u64>,
    pub sampled_ns: u64,
    pub rate: ArrivalRate,
    /// Packets that ever wanted it.
    pub wanted: u64,
    pub share: f64,
    pub written: Option<f64>,
    /// Since when it could run, in nanoseconds.
    pub ready_ns: u64,
}

impl Process {
    fn new(core: usize, parts: Vec<usize>, ring: u32) -> Self {
        Self {
            core,
            parts,
            rx: Ring::new(ring),
            tx: Ring::new(ring),
            credit: ring,
            asleep: true,
            held: false,
            depth: 0,
            watch: QueueWatch::default(),
            median: MovingMedian::new(COST_WINDOW_NS),
            service_ns: None,
            sampled_ns: 0,
            rate: ArrivalRate::new(RATE_TAU_NS),
            wanted: 0,
            share: 0.0,
            written: None,
            ready_ns: 0,
        }
    }

    /// Whether packets wait, it need not yield, and a burst's results have room: those of all that
    /// waits, if that is less.
    pub(super) fn can_run(&self) -> bool {
        let waiting = self.rx.len();
        waiting > 0 && !self.held && self.tx.room() >= waiting.min(BURST)
    }

    /// The process, as the wake-up policy sees it: without packets if it cannot run.
    pub(super) fn candidate(&self, now_ns: u64) -> Candidate {
        let waiting = if self.can_run() { self.rx.len() } else { 0 };
        Candidate { waiting, age_ns: self.age_ns(now_ns), depth: self.depth, ..Candidate::default() }
    }

    pub(super) fn age_ns(&self, now_ns: u64) -> u64 {
        self.rx.oldest_ns().map_or(0, |since| now_ns.saturating_sub(since))
    }
}

#[derive(Debug, Clone)]
pub(super) struct Path {
    /// Number of the process at each hop, and whether that is its last visit.
    pub hops: Vec<(usize, bool)>,
    /// The processes, each once.
    pub distinct: Vec<usize>,
    pub rate_pps: u64,
    pub flows: u32,
}

pub(super) fn layout(scenario: &Scenario) -> (Vec<Process>, Vec<Path>) {
    let mut processes = Vec::new();
    let mut add = |core: usize, parts: Vec<usize>| {
        // NFs in one process have the smallest of their rings.
        let rings = parts.iter().map(|nf| scenario.nfs[*nf].ring.unwrap_or(scenario.platform.ring));
        let ring = rings.min().unwrap_or(scenario.platform.ring);
        processes.push(Process::new(core, parts, ring));
        processes.len() - 1
    };
    let core = |nf: &usize| scenario.nfs[*nf].core;
    let own: Vec<usize> = match scenario.platform.fused {
        true => Vec::new(),
        false => (0..scenario.nfs.len()).map(|nf| add(core(&nf), vec![nf])).collect(),
    };
    let mut paths = Vec::new();
    for chain in &scenario.chains {
        let hops: Vec<usize> = match scenario.platform.fused {
            true => chain.nfs.chunk_by(|a, b| core(a) == core(b)).map(|part| add(core(&part[0]), part.to_vec())).collect(),
            false => chain.nfs.iter().map(|nf| own[*nf]).collect(),
        };
        let mut distinct = hops.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let hops = hops.iter().enumerate().map(|(i, p)| (*p, !hops[i + 1..].contains(p))).collect();
        paths.push(Path { hops, distinct, rate_pps: chain.rate_pps, flows: chain.flows.max(1) });
    }
    for path in &paths {
        for (place, (process, _)) in path.hops.iter().enumerate() {
            processes[*process].depth = processes[*process].depth.max(place as u32 + 1);
        }
    }
    let mut count = vec![0usize; scenario.machine.cores];
    processes.iter().for_each(|p| count[p.core] += 1);
    processes.iter_mut().for_each(|p| p.share = 1.0 / count[p.core] as f64);
    (processes, paths)
}

#[derive(Debug, Clone)]
pub(super) struct Costs {
    cost: Cost,
    factors: Vec<(u64, u64)>,
    state: u64,
}

impl Costs {
    pub(super) fn new(nf: &Nf, seed: u64) -> Self {
        let state = match nf.cost {
            Cost::Random(_) => seed,
            _ => 0,
        };
        Self { cost: nf.cost.clone(), factors: nf.factors.clone(), state }
    }

    /// Cycles of a batch whose chain has `flows` flows.
    pub(super) fn cycles(&mut self, batch: &Batch, flows: u32, now_ns: u64) -> u64 {
        let count = u64::from(batch.count);
        let sum: u64 = match &self.cost {
            Cost::Fixed(cycles) => cycles * count,
            Cost::List(list) => {
                let from = self.state;
                self.state += count;
                (from..from + count).map(|i| list[(i % list.len() as u64) as usize]).sum()
            }
            Cost::Random(list) => {
                let mut pick = || {
                    self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let mut z = self.state;
                    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                    list[((z ^ z >> 31) % list.len() as u64) as usize]
                };
                (0..count).map(|_| pick()).sum()
            }
            Cost::ByFlow(list) => {
                let flow = |i: u64| (batch.first + i) % u64::from(flows);
                (0..count).map(|i| list[(flow(i) % list.len() as u64) as usize]).sum()
            }
        };
        let factor = self.factors.iter().rev().find(|(from, _)| *from <= now_ns).map_or(1, |(_, f)| *f);
        sum * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Chain, Class, Variant};

    #[test]
    fn costs_go_in_turn_by_chance_or_by_flow() {
        let batch = |first, count| Batch { chain: 0, hop: 0, first, count, since_ns: 0 };
        let costs = |cost| Costs::new(&Nf { cost, ..Nf::fixed(0, 0) }, 5);
        assert_eq!(costs(Cost::Fixed(7)).cycles(&batch(0, 32), 1, 0), 224);
        let mut list = costs(Cost::List(vec![1, 10, 100]));
        assert_eq!([list.cycles(&batch(0, 2), 1, 0), list.cycles(&batch(2, 2), 1, 0)], [11, 101]);
        // Packets 13 to 16 are of flows 3, 4, 0 and 1 out of five; odd flows cost 8.
        assert_eq!(costs(Cost::ByFlow(vec![1, 8])).cycles(&batch(13, 4), 5, 0), 8 + 1 + 1 + 8);
        let mut random = costs(Cost::Random(vec![100, 300]));
        let sum = random.cycles(&batch(0, 10_000), 1, 0);
        assert!(sum.abs_diff(2_000_000) < 40_000, "{sum}");
        let mut surge = Costs::new(&Nf { factors: vec![(10, 3), (20, 1)], ..Nf::fixed(0, 5) }, 0);
        assert_eq!([0, 9, 10, 19, 20].map(|t| surge.cycles(&batch(0, 1), 1, t)), [5, 5, 15, 15, 5]);
    }

    #[test]
    fn a_process_that_is_held_or_has_no_room_cannot_run() {
        let batch = |count| Batch { chain: 0, hop: 0, first: 0, count, since_ns: 5 };
        let with = |waiting, sent, held| {
            let mut process = Process { held, ..Process::new(0, vec![0], 64) };
            process.rx.push(batch(waiting));
            process.tx.push(batch(sent));
            (process.can_run(), process.candidate(9).waiting)
        };
        assert_eq!([with(40, 32, false), with(40, 33, false)], [(true, 40), (false, 0)]);
        // Room for all that waits is enough.
        assert_eq!([with(4, 60, false), with(4, 61, false)], [(true, 4), (false, 0)]);
        assert_eq!([with(40, 0, true), with(0, 0, false)], [(false, 0); 2]);
    }

    #[test]
    fn rings_are_those_of_the_nfs_and_the_smallest_where_they_share_a_process() {
        let nfs = vec![Nf { ring: Some(64), ..Nf::fixed(0, 1) }, Nf::fixed(0, 2), Nf { ring: Some(256), ..Nf::fixed(1, 3) }];
        let chains = vec![Chain { nfs: vec![0, 1, 2], rate_pps: 1, flows: 1 }];
        let rings = |variant| {
            let (processes, _) = layout(&Scenario::new(nfs.clone(), chains.clone(), variant, Class::Other));
            processes.iter().map(|p| (p.rx.capacity(), p.credit, p.tx.room())).collect::<Vec<_>>()
        };
        assert_eq!(rings(Variant::Default), [64, 4096, 256].map(|n| (n, n, n)));
        assert_eq!(rings(Variant::Ideal), [64, 256].map(|n| (n, n, n)));
    }

    #[test]
    fn the_ideal_fuses_what_follows_on_a_core() {
        let nfs = vec![Nf::fixed(0, 1), Nf::fixed(0, 2), Nf::fixed(1, 3)];
        let chain = |nfs: &[usize]| Chain { nfs: nfs.to_vec(), rate_pps: 1, flows: 1 };
        let chains = vec![chain(&[0, 1, 2, 0]), chain(&[1])];
        let (processes, paths) = layout(&Scenario::new(nfs.clone(), chains.clone(), Variant::Ideal, Class::Other));
        let parts: Vec<_> = processes.iter().map(|p| (p.core, p.parts.clone())).collect();
        assert_eq!(parts, [(0, vec![0, 1]), (1, vec![2]), (0, vec![0]), (0, vec![1])]);
        assert_eq!(paths[0].hops, [(0, true), (1, true), (2, true)]);
        let (processes, paths) = layout(&Scenario::new(nfs, chains, Variant::Default, Class::Other));
        assert_eq!(paths[0].hops, [(0, false), (1, true), (2, true), (0, true)]);
        assert_eq!((paths[0].distinct.clone(), processes[0].depth, processes[1].depth), (vec![0, 1, 2], 4, 2));
    }
}
