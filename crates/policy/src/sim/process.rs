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
/// Longest time for which an NF with more packets keeps finished bursts back, in nanoseconds.
const PUBLISH_NS: u64 = 8_000;

/// Finished packets that are not in the tx ring yet: their slots of the rx ring are not free.
#[derive(Debug, Clone, Default)]
struct Kept {
    batches: Vec<Batch>,
    packets: u32,
    /// When they are published in any case, in nanoseconds.
    publish_at_ns: u64,
}

/// What a packet costs in the handlers, as it is sampled, in nanoseconds.
#[derive(Debug, Clone)]
pub(super) struct CostSamples {
    pub median: MovingMedian,
    pub ns: Option<u64>,
    pub sampled_ns: u64,
}

/// What the manager counts of a process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// Packets that were ever put on its ring.
    pub posted: u64,
    /// Packets that it had returned at the last look, and since when, in nanoseconds.
    pub returned: u64,
    pub since_ns: u64,
}

/// A process: one NF, or in the ideal consecutive NFs of a chain on a core.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub core: usize,
    /// Its NFs, in the order of a packet's visits.
    pub parts: Vec<usize>,
    pub rx: Ring,
    pub tx: Ring,
    kept: Kept,
    /// Packets that may still be admitted.
    pub credit: u32,
    pub asleep: bool,
    pub held: bool,
    pub depth: u32,
    pub watch: QueueWatch,
    pub service: CostSamples,
    pub rate: ArrivalRate,
    /// Packets that ever wanted it: put on its ring, or refused at an entry.
    pub wanted: u64,
    pub seen: Seen,
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
            kept: Kept::default(),
            credit: ring,
            asleep: true,
            held: false,
            depth: 0,
            watch: QueueWatch::default(),
            service: CostSamples { median: MovingMedian::new(COST_WINDOW_NS), ns: None, sampled_ns: 0 },
            rate: ArrivalRate::new(RATE_TAU_NS),
            wanted: 0,
            seen: Seen::default(),
            share: 0.0,
            written: None,
            ready_ns: 0,
        }
    }

    /// Whether packets wait, it need not yield, and a burst's results have room: those of all that
    /// waits, if that is less.
    pub(super) fn can_run(&self) -> bool {
        let waiting = self.rx.len();
        waiting > 0 && !self.held && self.tx_room() >= waiting.min(BURST)
    }

    /// Free slots of the rx ring, as its writer sees them.
    #[inline]
    pub(super) fn rx_room(&self) -> u32 {
        self.rx.room().saturating_sub(self.kept.packets)
    }

    /// Free slots of the tx ring, as the process sees them.
    #[inline]
    pub(super) fn tx_room(&self) -> u32 {
        self.tx.room() - self.kept.packets
    }

    /// Packets inside, from its rx ring to the end of its tx ring.
    #[inline]
    pub(super) fn queue(&self) -> u32 {
        self.rx.len() + self.kept.packets + self.tx.len()
    }

    /// Appends a batch to the rx ring, as far as its writer sees room. Returns what did not fit.
    pub(super) fn post(&mut self, batch: Batch) -> u32 {
        let fits = batch.count.min(self.rx_room());
        self.wanted += u64::from(fits);
        self.seen.posted += u64::from(fits);
        let lost = self.rx.push(Batch { count: fits, ..batch });
        debug_assert_eq!(lost, 0, "the writer sees no more room than there is");
        batch.count - fits
    }

    /// Ends a burst that began at `began_ns`. The manager sees it at once if no other burst waits
    /// or the last time is long ago.
    pub(super) fn give(&mut self, batches: impl Iterator<Item = Batch>, began_ns: u64) {
        for batch in batches {
            self.kept.packets += batch.count;
            self.kept.batches.push(batch);
        }
        if self.rx.len() < BURST || began_ns >= self.kept.publish_at_ns {
            self.kept.publish_at_ns = began_ns + PUBLISH_NS;
            self.publish();
        }
    }

    /// Shows the manager what was finished.
    pub(super) fn publish(&mut self) {
        self.kept.packets = 0;
        for batch in self.kept.batches.drain(..) {
            let lost = self.tx.push(batch);
            debug_assert_eq!(lost, 0, "a burst is only taken if its packets have room");
        }
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
    /// Packets inside.
    pub inside: u32,
    pub source: Inflow,
}

/// The state of a chain's source.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Inflow {
    /// Packets that arrived in this round.
    pub due: u64,
    /// Packets that were due while the manager was away, and are never sent.
    pub skipped: u64,
    /// Rounds in which the manager does not read it, and how many there were the last time.
    pub skip: u32,
    pub backoff: u32,
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
        paths.push(Path {
            hops,
            distinct,
            rate_pps: chain.rate_pps,
            flows: chain.flows.max(1),
            inside: 0,
            source: Inflow::default(),
        });
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

/// The next number of a series without a pattern (splitmix64).
pub(super) fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
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
                let mut pick = || list[(draw(&mut self.state) % list.len() as u64) as usize];
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
    fn finished_bursts_are_kept_back_while_more_wait() {
        let batch = |first, count| Batch { chain: 0, hop: 0, first, count, since_ns: 0 };
        let mut process = Process::new(0, vec![0], 128);
        assert_eq!(process.post(batch(0, 200)), 72);
        let mut step = |began_ns| {
            let taken = process.rx.pop(BURST);
            process.give(taken.into_iter(), began_ns);
            (process.tx.len(), process.rx_room(), process.queue())
        };
        // The first is published: the last time is long ago. Then not before 8 µs have passed.
        assert_eq!([step(10_000), step(12_000), step(17_999)], [(32, 32, 128), (32, 32, 128), (32, 32, 128)]);
        // Nothing waits behind the last one.
        assert_eq!(step(17_999), (128, 128, 128));
        assert_eq!((process.wanted, process.seen.posted), (128, 128));
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
