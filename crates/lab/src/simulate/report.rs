//! The outcome of a simulation, by the names of the configuration.

use serde::Serialize;
use sluice_policy::sim::{self, Outcome, Scenario, Variant};

use super::Simulation;

/// Runs of one plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Scheduling class: `other`, `batch`, or `rr` and its slice in milliseconds.
    pub class: String,
    /// Clock of the cores.
    pub ghz: f64,
    /// Cost of a switch to an NF on its core, in nanoseconds.
    pub switch_ns: u64,
    /// Time that was counted, in seconds.
    pub seconds: f64,
    /// Deviations from the configuration.
    pub notes: Vec<String>,
    /// The runs; the last is the ideal.
    pub runs: Vec<Run>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// `configured`, or the name of a variant.
    pub variant: String,
    pub chains: Vec<ChainRow>,
    /// The NFs; in the ideal they share processes, and have no shares.
    pub nfs: Vec<NfRow>,
    pub cores: Vec<CoreRow>,
    /// NFs woken by the manager, per second.
    pub wakes_per_s: f64,
    /// Written weights per second.
    pub weight_writes_per_s: f64,
    /// Times that an NF became a bottleneck, per second.
    pub throttles_per_s: f64,
    /// Packets that the manager admits and forwards, per second.
    pub manager_pps: f64,
}

/// A chain in a run, in packets per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChainRow {
    pub name: String,
    pub offered_pps: f64,
    pub delivered_pps: f64,
    /// Dropped before any NF worked on them.
    pub entry_drops_pps: f64,
    /// Dropped after an NF worked on them.
    pub wasted_pps: f64,
    /// Delivered rate relative to the ideal's; none if that is 0.
    pub share_of_ideal: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NfRow {
    pub name: String,
    pub core: usize,
    /// Part of its core for its packets and the switches to it, 0 to 100.
    pub cpu_percent: f64,
    /// Its assigned share of the core, 0 to 1; none without weights.
    pub share: Option<f64>,
    /// Processed packets per second.
    pub packets_pps: f64,
    /// Packets per second dropped in front of it, after another NF had worked on them.
    pub drops_pps: f64,
    pub polls: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CoreRow {
    pub core: usize,
    /// Number of NFs on it.
    pub nfs: usize,
    /// Time in which NFs worked on packets, 0 to 100.
    pub busy_percent: f64,
    /// Time of switches, 0 to 100.
    pub switch_percent: f64,
    /// Time without packets, 0 to 100. With a polling NF, the core is busy all the same.
    pub idle_percent: f64,
    pub polls: bool,
}

impl Report {
    /// Runs a plan as configured, or with `compare` all of its variants, and the ideal in both
    /// cases. The runs are concurrent.
    pub fn of(plan: &Simulation, compare: bool) -> Self {
        let configured = || ("configured".to_owned(), plan.scenario.clone());
        let variant = |variant: Variant| (variant.to_string(), plan.variant(variant));
        let scenarios: Vec<(String, Scenario)> = match compare {
            true => Variant::ALL.into_iter().map(variant).collect(),
            false => vec![configured(), variant(Variant::Ideal)],
        };
        let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
            let running: Vec<_> = scenarios.iter().map(|(_, scenario)| scope.spawn(|| sim::run(scenario))).collect();
            let result = |run: std::thread::ScopedJoinHandle<'_, _>| run.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
            running.into_iter().map(result).collect()
        });
        let mut runs: Vec<Run> =
            scenarios.into_iter().zip(&outcomes).map(|((name, scenario), outcome)| run(plan, name, &scenario, outcome)).collect();
        let ideal: Vec<f64> = runs.last().map_or_else(Vec::new, |run| run.chains.iter().map(|c| c.delivered_pps).collect());
        for run in &mut runs {
            for (chain, ideal) in run.chains.iter_mut().zip(&ideal) {
                chain.share_of_ideal = (*ideal > 0.0).then(|| chain.delivered_pps / ideal);
            }
        }
        Self {
            class: plan.scenario.class.to_string(),
            ghz: plan.scenario.machine.mhz as f64 / 1e3,
            switch_ns: plan.scenario.machine.switch_ns,
            seconds: plan.scenario.measure_ns as f64 / 1e9,
            notes: plan.notes.clone(),
            runs,
        }
    }
}

impl Run {
    /// The sum of all chains.
    pub fn total(&self, ideal: &Self) -> ChainRow {
        let sum = |of: fn(&ChainRow) -> f64| self.chains.iter().map(of).sum::<f64>();
        let delivered_pps = sum(|c| c.delivered_pps);
        let most: f64 = ideal.chains.iter().map(|c| c.delivered_pps).sum();
        ChainRow {
            name: "all".into(),
            offered_pps: sum(|c| c.offered_pps),
            delivered_pps,
            entry_drops_pps: sum(|c| c.entry_drops_pps),
            wasted_pps: sum(|c| c.wasted_pps),
            share_of_ideal: (most > 0.0).then(|| delivered_pps / most),
        }
    }
}

fn run(plan: &Simulation, variant: String, scenario: &Scenario, outcome: &Outcome) -> Run {
    let percent = |ns: u64| ns as f64 * 100.0 / outcome.elapsed_ns.max(1) as f64;
    let chains: Vec<ChainRow> = plan
        .chains
        .iter()
        .map(|chain| {
            let sum =
                |of: fn(&sim::ChainOutcome) -> u64| outcome.per_second(outcome.chains[chain.lanes.clone()].iter().map(of).sum());
            ChainRow {
                name: chain.name.clone(),
                offered_pps: sum(|c| c.offered) + chain.straight_pps,
                delivered_pps: sum(|c| c.delivered) + chain.straight_pps,
                entry_drops_pps: sum(|c| c.entry_drops),
                wasted_pps: sum(|c| c.wasted),
                share_of_ideal: None,
            }
        })
        .collect();
    let has_shares = scenario.platform.weights && !scenario.platform.fused;
    let nfs: Vec<NfRow> = plan
        .nfs
        .iter()
        .enumerate()
        .map(|(i, nf)| NfRow {
            name: nf.name.clone(),
            core: plan.cores[nf.core],
            cpu_percent: outcome.cpu_share(i) * 100.0 + percent(outcome.nfs[i].switch_ns),
            share: has_shares.then(|| outcome.shares[i]),
            packets_pps: outcome.per_second(outcome.nfs[i].packets),
            drops_pps: outcome.per_second(outcome.nfs[i].wasted),
            polls: nf.polls,
        })
        .collect();
    let on = |core: usize| plan.nfs.iter().filter(move |nf| nf.core == core);
    let core = |(i, number): (usize, &usize)| CoreRow {
        core: *number,
        nfs: on(i).count(),
        busy_percent: percent(outcome.cores[i].busy_ns),
        switch_percent: percent(outcome.cores[i].switch_ns),
        idle_percent: percent(outcome.cores[i].idle_ns),
        polls: on(i).any(|nf| nf.polls),
    };
    let entered: f64 = chains.iter().map(|c| c.offered_pps - c.entry_drops_pps).sum();
    Run {
        manager_pps: entered + nfs.iter().map(|nf| nf.packets_pps).sum::<f64>(),
        variant,
        cores: plan.cores.iter().enumerate().map(core).collect(),
        chains,
        nfs,
        wakes_per_s: outcome.per_second(outcome.wakes),
        weight_writes_per_s: outcome.per_second(outcome.weight_writes),
        throttles_per_s: outcome.per_second(outcome.throttles),
    }
}
