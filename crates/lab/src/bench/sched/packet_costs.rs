//! What the simulator needs of this host, measured by itself: wakes and switches
//! ([`host_costs`](super::host_costs)), what a packet takes outside of handlers, of an NF's core
//! and of the manager's, and what other processes take of an NF's core.
//!
//! # Approach
//! - *hop*: one NF that always has packets, at two costs. The line through its CPU time for a
//!   packet at either gives what a cycle of the cost takes (`mhz`: more than a cycle of the
//!   processor where interrupts and other guests take time), and what is beside the cost
//!   (`hop_cycles`). It has the core to itself: whatever takes it is another process, of the host
//!   or of the platform (`others_per_s`), and what it waits for each is that one's time
//!   (`others_ns`).
//! - *fast*: chains of one and three NFs of one cycle, at more packets than the manager can carry.
//!   A packet more that is read has one entry (`entry_ns`), as many hops as the chain if it is let
//!   in (`pass_ns`), and its part of a round with full bursts. What the manager spends on wakes is
//!   taken off.
//! - *slow*: one NF at half a million packets a second, where a round with packets has about one:
//!   the round itself (`round_ns`) is what is left of it.
//!
//! Each is the median of [`TIMES`] runs, which alternate. A cost is left out, and the result says
//! so, if a run fails, if another core than the measured one limits the runs ([`Limit`]), or if
//! noise makes the cost negative. `sluice bench all` measures once, and gives each experiment the
//! file (`--host-costs`).
//!
//! # Limits
//! Caches are warm with one NF. What a hop costs in a chain of many is not in these.

use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::host_costs::{HostCosts, middle};
use super::{HopSpec, Mode, line};
use crate::bench::lab::{Lab, Miss};
use crate::bench::measure::Sample;
use crate::bench::setup::{Class, Setup};

/// Most measurements until none makes a cost negative: the costs are differences of runs.
const TRIES: usize = 3;
/// Runs of each setup.
const TIMES: usize = 3;
/// Most seconds of a run.
const RUN_S: f64 = 0.5;
/// Costs of the NF of which the hop is measured, in cycles: the manager keeps it busy at either.
const CYCLES: [u64; 2] = [250, 500];
/// NFs of the fast chains.
const LENGTHS: [usize; 2] = [1, 3];
/// Packets per second of the slow one.
const SLOW_PPS: f64 = 500_000.0;
/// Packets of a burst.
const BURST: f64 = sluice_shm::BURST as f64;
/// Part of the packets that the manager read from which on NFs carry all of them.
const ALL: f64 = 0.98;
/// The least part at which the manager is measured. Refused packets cost it an entry like others;
/// but of a source of which whole bursts are refused, rounds read nothing.
const MOST: f64 = 0.9;

/// What packets take of the manager, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
pub struct ManagerCosts {
    /// A packet that is read and let in or refused.
    pub entry_ns: f64,
    /// A packet that an NF returned and that is passed on.
    pub pass_ns: f64,
    /// A round without packets.
    pub round_ns: f64,
}

/// What packets take of an NF's core.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
pub struct NfCosts {
    /// Cycles for a packet outside of the handler.
    pub hop_cycles: f64,
    /// Cycles in a microsecond of the NF's CPU time.
    pub mhz: f64,
}

/// Other processes on the core of an NF that always has packets.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
pub struct OtherCosts {
    /// How often one takes the core, in 1/s.
    pub per_s: f64,
    /// How long the NF waits for it, in nanoseconds.
    pub has_ns: f64,
}

/// Costs as the simulator takes them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct MeasuredCosts {
    pub host: Option<HostCosts>,
    pub nf: Option<NfCosts>,
    pub manager: Option<ManagerCosts>,
    pub others: Option<OtherCosts>,
    /// What is not known, and why.
    pub unset: Vec<String>,
}

/// What limits a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    /// More is read than the NF takes, so the NF always has packets.
    Nf,
    /// NFs take all that is read, or nearly so.
    Manager,
}

/// A median of runs in nanoseconds, or why it counts for nothing.
type Point = Result<f64, String>;

/// What the runs gave.
#[derive(Debug, Clone)]
struct Runs {
    /// CPU time of the NF for a packet, at either of [`CYCLES`].
    hop: [Point; 2],
    /// Time of the manager for a packet that it read, with either of [`LENGTHS`].
    fast: [Point; 2],
    /// Part of these packets that was let in.
    carried: [Point; 2],
    /// A round with about one packet.
    slow: Point,
    /// Other processes on the core of the NF of `hop`.
    others: Result<OtherCosts, String>,
}

impl MeasuredCosts {
    /// Those of this host: from the file of `--host-costs` if it is there, else measured when they
    /// are first asked for. What is not known is left out of the result of this lab.
    pub fn here(lab: &Lab) -> &'static Self {
        static HERE: OnceLock<MeasuredCosts> = OnceLock::new();
        HERE.get_or_init(|| {
            let costs = Self::kept_or(lab.args.host_costs.as_deref(), || Self::measure(lab));
            costs.unset.iter().for_each(|why| lab.leave_out("simulator", why));
            costs
        })
    }

    /// Those of the file. Without it they are measured, and kept in it.
    fn kept_or(file: Option<&Path>, measure: impl FnOnce() -> Self) -> Self {
        let Some(file) = file else { return measure() };
        let kept = std::fs::read_to_string(file).ok().and_then(|text| serde_json::from_str(&text).ok());
        kept.unwrap_or_else(|| {
            let costs = measure();
            let written = serde_json::to_string(&costs).map_err(std::io::Error::from).and_then(|text| std::fs::write(file, text));
            if let Err(error) = written {
                eprintln!("sluice bench: cannot write {}: {error}; the next experiment measures again", file.display());
            }
            costs
        })
    }

    fn measure(lab: &Lab) -> Self {
        let mut costs = Self::default();
        match HostCosts::measure(lab.manager_core, lab.cores.shared()) {
            Ok(host) => costs.host = Some(host),
            Err(error) => costs.leave_out("wakes and switches", &format!("{error:#}")),
        }
        costs.measure_packets(lab);
        costs
    }

    fn measure_packets(&mut self, lab: &Lab) {
        for tries in 1..=TRIES {
            let mut found = Self { host: self.host, ..Self::default() };
            match Runs::measure(lab, self.host.map(|host| host.wake_cost_ns)) {
                Ok(runs) => found.solve(&runs),
                Err(Miss::LeaveOut(why)) => return self.leave_out("packets", &why),
                Err(Miss::Failed(error)) => return self.leave_out("packets", &format!("{error:#}")),
            }
            if found.unset.is_empty() || tries == TRIES {
                found.unset.splice(0..0, std::mem::take(&mut self.unset));
                *self = found;
                return;
            }
        }
    }

    fn leave_out(&mut self, what: &str, why: &str) {
        self.unset.push(format!("what {what} cost here is not known, and the simulator's own value stands: {why}"));
    }

    fn solve(&mut self, runs: &Runs) {
        match runs.nf() {
            Ok(nf) => self.nf = Some(nf),
            Err(why) => self.leave_out("packets beside the handler", &why),
        }
        match runs.manager() {
            Ok(manager) => self.manager = Some(manager),
            Err(why) => self.leave_out("packets in the manager", &why),
        }
        match &runs.others {
            Ok(others) => self.others = Some(*others),
            Err(why) => self.leave_out("other processes", why),
        }
    }
}

impl Runs {
    /// `wake_ns`: what a wake costs the manager, if that is known.
    fn measure(lab: &Lab, wake_ns: Option<f64>) -> Result<Self, Miss> {
        let [cheap, dear] = CYCLES.map(|cycles| hop_setup(lab, cycles));
        let [short, long] = LENGTHS.map(|nfs| chain_setup(lab, nfs, 0.0));
        let setups = [cheap, dear, short, long, chain_setup(lab, 1, SLOW_PPS)];
        let mut samples: [Vec<Sample>; 5] = Default::default();
        for _ in 0..TIMES {
            for (setup, of) in setups.iter().zip(&mut samples) {
                of.push(lab.flow_for(setup, lab.args.seconds.min(RUN_S))?);
            }
        }
        let [cheap, dear, short, long, slow] = &samples;
        let manager = |of: &[Sample]| -> Point {
            let wake_ns = wake_ns.ok_or("what a wake costs is not known")?;
            point(of, Limit::Manager, |sample| manager_ns(sample, wake_ns))
        };
        Ok(Self {
            hop: [cheap, dear].map(|of| point(of, Limit::Nf, |sample| metric(sample, "nf_ns_per_packet"))),
            fast: [short, long].map(|of| manager(of.as_slice())),
            carried: [short, long].map(|of| point(of, Limit::Manager, carried)),
            slow: point(slow, Limit::Manager, |sample| metric(sample, "round_ns_p50")),
            others: others(&[cheap.as_slice(), dear].concat()),
        })
    }

    fn nf(&self) -> Result<NfCosts, String> {
        let [Ok(first), Ok(second)] = &self.hop else { return Err(first_why(&self.hop)) };
        let [c0, c1] = CYCLES.map(|cycles| cycles as f64);
        let cycle_ns = (second - first) / (c1 - c0);
        if cycle_ns <= 0.0 {
            return Err(format!("noise of the runs makes a cycle take {cycle_ns:.3} ns"));
        }
        let hop_cycles = not_negative("a hop", (first - c0 * cycle_ns) / cycle_ns)?;
        Ok(NfCosts { hop_cycles, mhz: 1e3 / cycle_ns })
    }

    fn manager(&self) -> Result<ManagerCosts, String> {
        let [Ok(short), Ok(long)] = &self.fast else { return Err(first_why(&self.fast)) };
        let [Ok(of_short), Ok(of_long)] = &self.carried else { return Err(first_why(&self.carried)) };
        let slow = self.slow.clone()?;
        let [hops0, hops1] = [of_short * LENGTHS[0] as f64, of_long * LENGTHS[1] as f64];
        let pass_ns = not_negative("a hop", (long - short) / (hops1 - hops0))?;
        // fast = entry + carried · hops · pass + round ÷ burst, and slow = entry + round.
        let entry_ns = not_negative("an entry", (short - hops0 * pass_ns - slow / BURST) * BURST / (BURST - 1.0))?;
        Ok(ManagerCosts { entry_ns, pass_ns, round_ns: not_negative("a round", slow - entry_ns)? })
    }
}

/// Why the first of points that count for nothing does so.
fn first_why(points: &[Point; 2]) -> String {
    points.iter().find_map(|point| point.clone().err()).unwrap_or_default()
}

fn not_negative(what: &str, cost: f64) -> Point {
    if cost >= 0.0 { Ok(cost) } else { Err(format!("noise of the runs makes {what} negative, {cost:.1}")) }
}

/// The median of runs that are limited as they have to be, by the median of what is carried.
fn point(samples: &[Sample], limit: Limit, value: impl Fn(&Sample) -> Point) -> Point {
    let carried = middle(samples.iter().map(carried).collect::<Result<_, String>>()?);
    match limit {
        Limit::Nf if carried >= ALL => Err("an NF carried all that was read, so it was not always busy".into()),
        Limit::Manager if carried < MOST => {
            Err(format!("NFs carried {:.0} % of what was read, so the manager was not the limit", carried * 100.0))
        }
        _ => {
            let values: Vec<f64> = samples.iter().map(value).collect::<Result<_, String>>()?;
            Ok(middle(values))
        }
    }
}

/// The part of the packets that the manager read which NFs carried.
fn carried(sample: &Sample) -> Point {
    Ok(metric(sample, "delivered_pps")? / metric(sample, "offered_pps")?)
}

/// Other processes on the core of an NF that always has packets.
fn others(samples: &[Sample]) -> Result<OtherCosts, String> {
    let per_s = point(samples, Limit::Nf, |sample| {
        sample.get("switches_involuntary_per_s.nf1").copied().ok_or_else(|| "the kernel does not count switches".into())
    })?;
    // One that never had to wait has no such time.
    let has_ns = point(samples, Limit::Nf, |sample| Ok(sample.get("sched_delay_ns.nf1").copied().unwrap_or(0.0)))?;
    Ok(OtherCosts { per_s, has_ns })
}

/// A metric that each run has.
fn metric(sample: &Sample, name: &str) -> Point {
    let value = sample.get(name).copied().filter(|value| value.is_finite() && *value > 0.0);
    value.ok_or_else(|| format!("a run gave no {name}"))
}

/// Time of the manager for a packet that it read, without that of wakes of `wake_ns` each.
fn manager_ns(sample: &Sample, wake_ns: f64) -> Point {
    let wakes: f64 = sample.iter().filter(|(name, _)| name.starts_with("wakes_per_s.")).map(|(_, wakes)| wakes).sum();
    Ok((1e9 - wakes * wake_ns).max(0.0) / metric(sample, "offered_pps")?)
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

    fn runs(hop: [f64; 2], fast: [f64; 2], slow: f64) -> Runs {
        let others = Ok(OtherCosts { per_s: 200.0, has_ns: 4e4 });
        Runs { hop: hop.map(Ok), fast: fast.map(Ok), carried: [1.0, 1.0].map(Ok), slow: Ok(slow), others }
    }

    #[test]
    fn the_costs_are_those_that_the_runs_were_made_of() {
        // 30 cycles at 2 GHz beside the cost, 40 ns for an entry, 12 for a hop, 200 for a round.
        let mut costs = MeasuredCosts::default();
        costs.solve(&runs([140.0, 265.0], [40.0 + 12.0 + 6.25, 40.0 + 36.0 + 6.25], 240.0));
        let manager = |of: ManagerCosts| [of.entry_ns - 40.0, of.pass_ns - 12.0, of.round_ns - 200.0];
        let nf = costs.nf.unwrap();
        let all = [manager(costs.manager.unwrap()).as_slice(), &[nf.hop_cycles - 30.0, nf.mhz - 2e3]].concat();
        assert!(all.iter().all(|off_by| off_by.abs() < 1e-6), "{all:?}");
        assert_eq!((costs.others, costs.unset.len()), (Some(OtherCosts { per_s: 200.0, has_ns: 4e4 }), 0));
        // The same where the NFs refuse a tenth of what the manager reads.
        let fast = [40.0 + 0.9 * 12.0 + 6.25, 40.0 + 0.9 * 36.0 + 6.25];
        let some = Runs { carried: [0.9, 0.9].map(Ok), ..runs([140.0, 265.0], fast, 240.0) };
        let all = manager(some.manager().unwrap());
        assert!(all.iter().all(|off_by| off_by.abs() < 1e-6), "{all:?}");
    }

    #[test]
    fn what_an_nf_waits_for_on_its_own_core_is_of_others() {
        let sample = |per_s: Option<f64>, delay_ns: Option<f64>| {
            let mut sample = Sample::from([("offered_pps".into(), 9e6), ("delivered_pps".into(), 6e6)]);
            sample.extend(per_s.map(|per_s| ("switches_involuntary_per_s.nf1".to_string(), per_s)));
            sample.extend(delay_ns.map(|ns| ("sched_delay_ns.nf1".to_string(), ns)));
            sample
        };
        let both = [sample(Some(200.0), Some(3e4)), sample(Some(220.0), Some(9e6)), sample(Some(900.0), Some(4e4))];
        assert_eq!(others(&both), Ok(OtherCosts { per_s: 220.0, has_ns: 4e4 }));
        assert_eq!(others(&[sample(Some(0.0), None)]), Ok(OtherCosts { per_s: 0.0, has_ns: 0.0 }), "a host without others");
        assert_eq!(others(&[sample(None, None)]).unwrap_err(), "the kernel does not count switches");
        let idle = Sample::from([("offered_pps".into(), 9e6), ("delivered_pps".into(), 9e6)]);
        assert!(others(&[idle]).unwrap_err().starts_with("an NF carried all"), "its sleeps would count");
    }

    #[test]
    fn what_is_noise_is_left_out_and_said() {
        let mut costs = MeasuredCosts::default();
        costs.solve(&runs([100.0, 300.0], [50.0, 40.0], 10.0));
        assert_eq!((costs.nf, costs.manager, costs.unset.len()), (None, None, 2));
        assert!(costs.unset[0].contains("makes a hop negative, -125.0"), "{:?}", costs.unset);
        assert!(costs.unset[1].contains("makes a hop negative, -5.0"), "{:?}", costs.unset);
        let mut costs = MeasuredCosts::default();
        costs.solve(&runs([140.0, 140.0], [58.25, 82.25], 240.0));
        assert!(costs.nf.is_none() && costs.unset[0].contains("makes a cycle take 0.000 ns"), "{:?}", costs.unset);
        // One that is not known leaves the other.
        let mut costs = MeasuredCosts::default();
        let unknown = Runs { slow: Err("no round".into()), ..runs([140.0, 265.0], [58.25, 82.25], 240.0) };
        costs.solve(&unknown);
        assert!(costs.nf.is_some() && costs.manager.is_none() && costs.unset[0].ends_with("no round"));
    }

    #[test]
    fn a_point_is_the_median_of_runs_that_the_right_core_limits() {
        let sample = |offered: f64, delivered: f64, ns: f64| {
            let numbers = [("offered_pps", offered), ("delivered_pps", delivered), ("nf_ns_per_packet", ns)];
            Sample::from(numbers.map(|(name, value)| (name.to_string(), value)))
        };
        let of = |samples: &[Sample], limit| point(samples, limit, |sample| metric(sample, "nf_ns_per_packet"));
        let full = [sample(9e6, 6e6, 130.0), sample(9e6, 6e6, 190.0), sample(9e6, 6e6, 120.0)];
        assert_eq!(of(&full, Limit::Nf), Ok(130.0));
        // A few that were refused do not make it another limit.
        assert_eq!(of(&[sample(9e6, 8.2e6, 60.0)], Limit::Manager), Ok(60.0));
        assert!(of(&full, Limit::Manager).unwrap_err().starts_with("NFs carried 67 % of what was read"));
        // One run that a pause disturbed does not count.
        let carried = [sample(9e6, 9e6, 50.0), sample(9e6, 6e6, 70.0), sample(9e6, 8.9e6, 60.0)];
        assert_eq!(of(&carried, Limit::Manager), Ok(60.0));
        assert!(of(&carried, Limit::Nf).unwrap_err().starts_with("an NF carried all"));
        assert_eq!(of(&[Sample::new()], Limit::Nf).unwrap_err(), "a run gave no delivered_pps");
    }

    #[test]
    fn the_managers_time_is_without_wakes() {
        let numbers = [("offered_pps", 1e7), ("wakes_per_s.nf1", 2e4), ("wakes_per_s.nf2", 3e4)];
        let sample = Sample::from(numbers.map(|(name, value)| (name.to_string(), value)));
        assert!((manager_ns(&sample, 4000.0).unwrap() - 80.0).abs() < 1e-9);
        assert!(manager_ns(&Sample::new(), 1.0).unwrap_err().contains("offered_pps"));
    }

    #[test]
    fn costs_are_measured_once_for_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("host.costs");
        let manager = ManagerCosts { entry_ns: 40.5, pass_ns: 12.0, round_ns: 200.0 };
        let host = HostCosts { switch_ns: 1.0, wake_cost_ns: 2.0, wake_idle_ns: 3.0, wake_busy_ns: 4.0, interrupt_ns: 5.0 };
        let others = Some(OtherCosts { per_s: 200.5, has_ns: 4e4 });
        let costs = MeasuredCosts { host: Some(host), nf: None, manager: Some(manager), others, unset: vec!["why".into()] };
        assert_eq!(MeasuredCosts::kept_or(Some(&file), || costs.clone()), costs);
        assert_eq!(MeasuredCosts::kept_or(Some(&file), MeasuredCosts::default), costs, "not measured again");
        assert_eq!(MeasuredCosts::kept_or(None, MeasuredCosts::default), MeasuredCosts::default());
        std::fs::write(&file, "half").unwrap();
        assert_eq!(MeasuredCosts::kept_or(Some(&file), MeasuredCosts::default), MeasuredCosts::default());
    }

    #[test]
    fn a_lab_that_can_start_nothing_says_what_is_not_known() {
        let mut costs = MeasuredCosts::default();
        costs.measure_packets(&lab(1));
        assert_eq!((costs.nf, costs.manager), (None, None));
        assert!(costs.unset.iter().any(|why| why.starts_with("what packets cost here is not known")), "{:?}", costs.unset);
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
