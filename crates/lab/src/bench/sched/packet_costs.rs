//! What a packet takes on this host outside of handlers: of an NF's core, and of the manager's.
//!
//! # Approach
//! - *hop*: one NF that always has packets, at two costs. Its CPU time for a packet is the cost and
//!   what is beside it, so the line through both points gives the latter at no cost
//!   (`hop_cycles`).
//! - *fast*: chains of one and three NFs of one cycle, at more packets than the manager can carry.
//!   A packet more has one entry (`entry_ns`) and as many hops as the chain (`pass_ns`), and its
//!   part of a round with full bursts. What the manager spends on wakes is taken off.
//! - *slow*: one NF at half a million packets a second, where a round with packets has about one:
//!   the round itself (`round_ns`) is what is left of it.
//!
//! # Limits
//! Caches are warm with one NF. What a hop costs in a chain of many is not in these.

use std::sync::OnceLock;

use sluice_policy::sim::ThreadCosts;

use super::host_costs::HostCosts;
use super::{HopSpec, Mode, line};
use crate::bench::lab::{Lab, Miss};
use crate::bench::measure::Sample;
use crate::bench::setup::{Class, Setup};

/// Costs of the NF of which the hop is measured, in cycles: the manager keeps it busy at either.
const CYCLES: [u64; 2] = [250, 500];
/// NFs of the fast chains.
const LENGTHS: [usize; 2] = [1, 3];
/// Packets per second of the slow one.
const SLOW_PPS: f64 = 500_000.0;
/// Packets of a burst.
const BURST: f64 = sluice_shm::BURST as f64;

/// Costs of a packet, as the simulator takes them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PacketCosts {
    /// Cycles of an NF's core outside of the handler.
    pub hop_cycles: f64,
    /// What packets take of the manager.
    pub thread: ThreadCosts,
    /// A round of the manager without packets, in nanoseconds.
    pub round_ns: f64,
}

/// What the runs gave, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Runs {
    /// CPU time of the NF for a packet, at either of [`CYCLES`].
    hop: [f64; 2],
    /// Time of the manager for a packet, with either of [`LENGTHS`].
    fast: [f64; 2],
    /// A round with about one packet.
    slow: f64,
}

impl PacketCosts {
    /// Those of this host: measured when they are first asked for, in five runs of the requested
    /// time. None where a run fails.
    pub fn here(lab: &Lab) -> Option<Self> {
        static HERE: OnceLock<Option<PacketCosts>> = OnceLock::new();
        *HERE.get_or_init(|| Self::measure(lab).ok())
    }

    /// Measures them.
    ///
    /// # Errors
    /// A run fails, or the host's time-stamp frequency is not known.
    pub fn measure(lab: &Lab) -> Result<Self, Miss> {
        let Some(hz) = lab.tsc_hz() else {
            return Err(Miss::LeaveOut("the frequency of the time-stamp counter is not known".into()));
        };
        let wake_ns = HostCosts::here(lab.manager_core, lab.cores.shared()).map_or(0.0, |costs| costs.wake_cost_ns);
        let mut runs = Runs { hop: [0.0; 2], fast: [0.0; 2], slow: 0.0 };
        for (ns, cycles) in runs.hop.iter_mut().zip(CYCLES) {
            *ns = metric(&lab.flow(&hop_setup(lab, cycles))?, "nf_ns_per_packet")?;
        }
        for (ns, nfs) in runs.fast.iter_mut().zip(LENGTHS) {
            *ns = manager_ns(&lab.flow(&chain_setup(lab, nfs, 0.0))?, wake_ns)?;
        }
        runs.slow = metric(&lab.flow(&chain_setup(lab, 1, SLOW_PPS))?, "round_ns_p50")?;
        Ok(Self::of(&runs, hz))
    }

    /// Solves for them. A negative one is noise about zero.
    fn of(runs: &Runs, hz: f64) -> Self {
        let [c0, c1] = CYCLES.map(|cycles| cycles as f64);
        let hop_ns = (runs.hop[0] * c1 - runs.hop[1] * c0) / (c1 - c0);
        let [n0, n1] = LENGTHS.map(|nfs| nfs as f64);
        let pass_ns = ((runs.fast[1] - runs.fast[0]) / (n1 - n0)).max(0.0);
        // fast = entry + hops · pass + round ÷ burst, and slow = entry + round.
        let entry_ns = ((runs.fast[0] - n0 * pass_ns - runs.slow / BURST) * BURST / (BURST - 1.0)).max(0.0);
        Self {
            hop_cycles: (hop_ns * hz / 1e9).max(0.0),
            thread: ThreadCosts { entry_ns, pass_ns },
            round_ns: (runs.slow - entry_ns).max(1.0),
        }
    }
}

/// A metric that each run has.
fn metric(sample: &Sample, name: &str) -> Result<f64, Miss> {
    let value = sample.get(name).copied().filter(|value| value.is_finite() && *value > 0.0);
    value.ok_or_else(|| Miss::LeaveOut(format!("a run gave no {name}")))
}

/// Time of the manager for a packet, without that of wakes of `wake_ns` each.
fn manager_ns(sample: &Sample, wake_ns: f64) -> Result<f64, Miss> {
    let wakes: f64 = sample.iter().filter(|(name, _)| name.starts_with("wakes_per_s.")).map(|(_, wakes)| wakes).sum();
    Ok((1e9 - wakes * wake_ns).max(0.0) / metric(sample, "delivered_pps")?)
}

/// One NF of this cost, at line rate.
fn hop_setup(lab: &Lab, cycles: u64) -> Setup {
    line(lab, Mode::Sluice, Class::Other, &[HopSpec::new(1, lab.cores.shared(), cycles)])
}

/// A chain of NFs of one cycle, at a rate; 0: as many packets as possible.
fn chain_setup(lab: &Lab, nfs: usize, rate: f64) -> Setup {
    let hops: Vec<HopSpec> = (1..=nfs).map(|number| HopSpec::new(number, lab.cores.shared(), 1)).collect();
    let mut setup = line(lab, Mode::Sluice, Class::Other, &hops);
    setup.traffic.iter_mut().for_each(|traffic| traffic.rate = rate);
    setup
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    #[test]
    fn the_costs_are_those_that_the_runs_were_made_of() {
        // 30 cycles at 2 GHz beside the cost, 40 ns for an entry, 12 for a hop, 200 for a round.
        let runs = Runs { hop: [140.0, 265.0], fast: [40.0 + 12.0 + 6.25, 40.0 + 36.0 + 6.25], slow: 240.0 };
        let PacketCosts { hop_cycles, thread, round_ns } = PacketCosts::of(&runs, 2e9);
        let all = [(hop_cycles, 30.0), (thread.entry_ns, 40.0), (thread.pass_ns, 12.0), (round_ns, 200.0)];
        assert!(all.iter().all(|(got, want)| (got - want).abs() < 1e-6), "{all:?}");
        // Noise makes no cost negative.
        let noise = PacketCosts::of(&Runs { hop: [100.0, 300.0], fast: [50.0, 40.0], slow: 10.0 }, 2e9);
        assert_eq!((noise.hop_cycles, noise.thread.pass_ns, noise.round_ns), (0.0, 0.0, 1.0));
    }

    #[test]
    fn the_managers_time_is_without_wakes() {
        let numbers = [("delivered_pps", 1e7), ("wakes_per_s.nf1", 2e4), ("wakes_per_s.nf2", 3e4)];
        let sample = Sample::from(numbers.map(|(name, value)| (name.to_string(), value)));
        assert!((manager_ns(&sample, 4000.0).unwrap() - 80.0).abs() < 1e-9);
        assert!(matches!(manager_ns(&Sample::new(), 1.0), Err(Miss::LeaveOut(why)) if why.contains("delivered_pps")));
    }

    #[test]
    fn the_runs_have_their_costs_and_rates() {
        let lab = lab(1);
        let costs = |setup: &Setup| setup.services.iter().map(|s| s.args[1].clone()).collect::<Vec<_>>();
        assert_eq!(costs(&hop_setup(&lab, 250)), ["250"]);
        let fast = chain_setup(&lab, 3, 0.0);
        assert_eq!((costs(&fast), fast.traffic[0].rate), (vec!["1".into(); 3], 0.0));
    }
}
