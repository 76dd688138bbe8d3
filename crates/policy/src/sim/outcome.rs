//! Outcome of a simulation, counted after the warm-up.

/// Counts of one chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChainOutcome {
    /// Packets that arrived.
    pub offered: u64,
    /// Packets that left the chain.
    pub delivered: u64,
    /// Packets dropped before any NF worked on them.
    pub entry_drops: u64,
    /// Packets dropped after an NF worked on them.
    pub wasted: u64,
    /// Packets inside when counting started.
    pub inside_before: u64,
    /// Packets inside at the end.
    pub inside_after: u64,
}

/// Counts of one NF. In the ideal, runs and waits are those of the first NF of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NfOutcome {
    /// Packets that it processed.
    pub packets: u64,
    /// Packets dropped in front of it, after another NF had worked on them.
    pub wasted: u64,
    /// Cycles of its work.
    pub cycles: u64,
    /// Switches away from it because it slept.
    pub voluntary: u64,
    /// Switches away from it while it had work.
    pub involuntary: u64,
    /// Times that it got the core.
    pub runs: u64,
    /// Time of switches to it, in nanoseconds.
    pub switch_ns: u64,
    /// Time between being able to run and running, in nanoseconds.
    pub waited_ns: u64,
}

/// Counts of one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CoreOutcome {
    /// Time in which NFs worked, in nanoseconds.
    pub busy_ns: u64,
    /// Time of switches, in nanoseconds.
    pub switch_ns: u64,
    /// Time of other processes, in nanoseconds.
    pub others_ns: u64,
    /// Idle time, in nanoseconds.
    pub idle_ns: u64,
}

/// All counts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Time that was counted, in nanoseconds: whole rounds, so a little more than requested.
    pub elapsed_ns: u64,
    /// Cycles in a microsecond.
    pub mhz: u64,
    /// The chains, as in the scenario.
    pub chains: Vec<ChainOutcome>,
    /// The NFs, as in the scenario.
    pub nfs: Vec<NfOutcome>,
    /// The cores.
    pub cores: Vec<CoreOutcome>,
    /// NFs that the manager woke.
    pub wakes: u64,
    /// Weights that were written.
    pub weight_writes: u64,
    /// NFs that became bottlenecks.
    pub throttles: u64,
    /// Last shares of the NFs by the policy (0 to 1 of each core).
    pub shares: Vec<f64>,
}

impl Outcome {
    /// A count as a rate, in 1/s.
    pub fn per_second(&self, count: u64) -> f64 {
        if self.elapsed_ns == 0 { 0.0 } else { count as f64 * 1e9 / self.elapsed_ns as f64 }
    }

    /// Packets a second that left a chain. Panics if there is no such chain.
    pub fn delivered_pps(&self, chain: usize) -> f64 {
        self.per_second(self.chains[chain].delivered)
    }

    /// Packets a second that left all chains.
    pub fn total_pps(&self) -> f64 {
        self.per_second(self.chains.iter().map(|c| c.delivered).sum())
    }

    /// Packets a second dropped after an NF worked on them.
    pub fn wasted_pps(&self) -> f64 {
        self.per_second(self.chains.iter().map(|c| c.wasted).sum())
    }

    /// Part of its core that an NF used, 0 to 1. Panics if there is no such NF.
    pub fn cpu_share(&self, nf: usize) -> f64 {
        self.per_second(self.nfs[nf].cycles) / (self.mhz.max(1) as f64 * 1e6)
    }

    /// Switches a second, of both kinds and all NFs.
    pub fn switches_per_second(&self) -> f64 {
        self.per_second(self.nfs.iter().map(|nf| nf.voluntary + nf.involuntary).sum())
    }

    /// Jain's index of the chains' output: 1 if equal (or no packets), 1/n if one has everything.
    pub fn jain(&self) -> f64 {
        let sum: f64 = self.chains.iter().map(|c| c.delivered as f64).sum();
        let squares: f64 = self.chains.iter().map(|c| (c.delivered as f64) * (c.delivered as f64)).sum();
        if squares == 0.0 { 1.0 } else { sum * sum / squares / self.chains.len() as f64 }
    }

    /// Counts since `earlier`, a former state of the same run.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let mut out = self.clone();
        out.elapsed_ns -= earlier.elapsed_ns;
        for (c, e) in out.chains.iter_mut().zip(&earlier.chains) {
            *c = ChainOutcome {
                offered: c.offered - e.offered,
                delivered: c.delivered - e.delivered,
                entry_drops: c.entry_drops - e.entry_drops,
                wasted: c.wasted - e.wasted,
                inside_before: e.offered - e.delivered - e.entry_drops - e.wasted,
                inside_after: c.offered - c.delivered - c.entry_drops - c.wasted,
            };
        }
        for (n, e) in out.nfs.iter_mut().zip(&earlier.nfs) {
            *n = NfOutcome {
                packets: n.packets - e.packets,
                wasted: n.wasted - e.wasted,
                cycles: n.cycles - e.cycles,
                voluntary: n.voluntary - e.voluntary,
                involuntary: n.involuntary - e.involuntary,
                runs: n.runs - e.runs,
                switch_ns: n.switch_ns - e.switch_ns,
                waited_ns: n.waited_ns - e.waited_ns,
            };
        }
        for (c, e) in out.cores.iter_mut().zip(&earlier.cores) {
            c.busy_ns -= e.busy_ns;
            c.switch_ns -= e.switch_ns;
            c.others_ns -= e.others_ns;
            c.idle_ns -= e.idle_ns;
        }
        out.wakes -= earlier.wakes;
        out.weight_writes -= earlier.weight_writes;
        out.throttles -= earlier.throttles;
        out
    }
}
