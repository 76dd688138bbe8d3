//! Experiments on scheduling and shedding: those of the NFVnice paper, and related ones.
//!
//! # Terms
//! - *Mode*: the parts that are enabled ([`Mode`]).
//! - *Default*: the vanilla platform: an NF is woken when packets arrive, sleeps when its rx ring
//!   is empty or its tx ring full, and the kernel decides the rest. Where a platform's NFs poll
//!   instead, `chain` has them beside it ([`Mode::Poll`]).
//! - *Scheduler*: the kernel's class for NFs, and for SCHED_RR its slice ([`schedulers`]). A
//!   variant is named `MODE/SCHEDULER`.
//! - *Ideal*: the same work without scheduling: a fused chain, whose handlers are called one after
//!   another in one process on the same core, fed by the same manager under the same scheduler.
//!   Where a chain is spread over cores, its ideal is that of the core with the most work.
//!
//! # Units
//! Costs are cycles of the time-stamp counter per packet. By default packets have 64 bytes on the
//! wire, and arrive at the rate of a 10 Gbit/s link ([`line_rate`]), which is an overload
//! everywhere.
//!
//! # Source
//! Kulkarni et al., *NFVnice: Dynamic Backpressure and Scheduling for NFV Service Chains*, SIGCOMM
//! 2017, section 4. Each module names its figure or table.

pub mod baseline;
pub mod chain;
pub mod chain_length;
pub mod chain_order;
pub mod dynamic;
pub mod estimate;
pub mod fairness;
pub mod host_costs;
pub mod isolation;
pub mod mixed_order;
pub mod multicore;
pub mod netns;
pub mod overhead;
pub mod packet_costs;
pub mod repack;
pub mod shared_nf;
pub mod simulated;
pub mod storage;
pub mod variable_cost;
pub mod watermarks;

use serde_json::{Value, json};
use sluice_api::config::Run;
use sluice_policy::sim::experiments;

pub use crate::bench::daemon::COST;
use crate::bench::lab::{Case, Lab, Row, Trials};
use crate::bench::report::Params;
use crate::bench::setup::{Chain, Class, Sched, Service, Setup, Traffic};
use crate::bench::table::Column;

/// Costs of the paper's chain: low, medium, high.
pub const COSTS: [u64; 3] = experiments::CHAIN;
/// Flows of a generator for one chain.
pub const FLOWS: u32 = 16;
/// Default capacity of the rings.
pub const RING: u32 = 2048;
/// Capacity of the rings with a single chain.
///
/// Twice as long a run of each NF costs half as many switches, and the frames still circulate in
/// the second-level cache. `watermarks` shows other depths.
pub const LINE_RING: u32 = 4096;
/// Frames for that: both rings of three NFs, which all fill up without backpressure, and some in
/// hand.
pub const LINE_FRAMES: u32 = 32_768;

/// The enabled parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Default,
    /// None, with NFs that never sleep: the kernel alone takes the core from one of them.
    Poll,
    /// Only weights: shares of a core follow load.
    Weights,
    /// Only backpressure: chains are refused at their entry.
    Backpressure,
    /// Weights, backpressure and ECN under the kernel's scheduler: what the paper calls NFVnice.
    Nfvnice,
    /// Everything: the same, and hand-over between NFs.
    Sluice,
    /// Everything, with the handlers in one process.
    Ideal,
}

/// The modes of the paper's tables, and the ideal.
pub const MODES: [Mode; 6] = [Mode::Default, Mode::Weights, Mode::Backpressure, Mode::Nfvnice, Mode::Sluice, Mode::Ideal];
/// [`MODES`] without the ideal, for NFs that are not in sequence.
pub const PARTS: [Mode; 5] = [Mode::Default, Mode::Weights, Mode::Backpressure, Mode::Nfvnice, Mode::Sluice];
/// [`MODES`] without the single parts.
pub const ENDS: [Mode; 4] = [Mode::Default, Mode::Nfvnice, Mode::Sluice, Mode::Ideal];

/// The kernel's schedulers in the paper.
///
/// The kernel rounds slices up to its ticks. So the paper's slice of 1 ms is a tick where ticks are
/// longer, and variants are named after what they have: `rr4` with 250 ticks a second.
pub fn schedulers() -> [Class; 4] {
    [Class::Other, Class::Batch, Class::Rr(slice_ms(1)), Class::Rr(100)]
}

/// A slice of SCHED_RR as the kernel rounds it, in milliseconds.
fn slice_ms(wanted: u32) -> u32 {
    let tick_ns = host_costs::tick_ns();
    let ticks = (u64::from(wanted) * 1_000_000).div_ceil(tick_ns);
    (ticks * tick_ns).div_ceil(1_000_000) as u32
}

impl Mode {
    pub fn word(self) -> &'static str {
        match self {
            Mode::Default => "default",
            Mode::Poll => "poll",
            Mode::Weights => "weights",
            Mode::Backpressure => "backpressure",
            Mode::Nfvnice => "nfvnice",
            Mode::Sluice => "sluice",
            Mode::Ideal => "ideal",
        }
    }

    /// Why the mode need not run under a scheduler, if so.
    pub fn idle_under(self, class: Class) -> Option<&'static str> {
        let idle = self == Mode::Weights && matches!(class, Class::Rr(_));
        idle.then_some("SCHED_RR knows no shares, so weights alone are the default once more")
    }

    /// The table `[sched]` for the mode.
    pub fn sched(self, class: Class) -> Sched {
        let handover = matches!(self, Mode::Sluice | Mode::Ideal);
        let all = handover || self == Mode::Nfvnice;
        Sched {
            class,
            handover,
            weights: all || self == Mode::Weights,
            backpressure: all || self == Mode::Backpressure,
            ecn: all,
            watermarks: None,
            queueing_us: None,
            downstream_first: false,
        }
    }
}

pub fn name_of(mode: Mode, class: Class) -> String {
    format!("{}/{class}", mode.word())
}

/// Params from names and values.
pub fn params(of: &[(&str, Value)]) -> Params {
    of.iter().map(|(key, value)| ((*key).to_string(), value.clone())).collect()
}

/// Packets per second on a 10 Gbit/s link: each packet has 20 bytes of preamble and gap besides its
/// own.
pub fn line_rate(packet_bytes: u32) -> f64 {
    10e9 / (f64::from(packet_bytes + 20) * 8.0)
}

/// An NF on `core` with these cost arguments.
pub fn nf(name: &str, core: usize, args: &[&str]) -> Service {
    let args = args.iter().map(|arg| arg.to_string()).collect();
    Service { name: name.into(), exec: COST.into(), args, core, ring: RING, ..Service::default() }
}

/// An NF with one cost.
pub fn nf_of(name: &str, core: usize, cycles: u64) -> Service {
    nf(name, core, &["--cycles", &cycles.to_string()])
}

/// A chain into the sink.
pub fn chain_of(name: &str, services: &[&str]) -> Chain {
    Chain { name: name.into(), services: services.iter().map(|s| s.to_string()).collect(), ..Chain::default() }
}

/// A generator for a chain.
pub fn traffic_to(chain: &str, rate: f64) -> Traffic {
    Traffic { name: format!("to-{chain}"), chain: chain.into(), rate, flows: FLOWS, ..Traffic::default() }
}

/// A hop of a chain: an NF with its costs, and its core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HopSpec {
    pub name: String,
    pub core: usize,
    /// Its costs: one, or a list from which each packet draws.
    pub cycles: Vec<u64>,
}

impl HopSpec {
    /// A hop of one cost. Hops are named by their number, from 1.
    pub fn new(number: usize, core: usize, cycles: u64) -> Self {
        Self { name: format!("nf{number}"), core, cycles: vec![cycles] }
    }

    fn list(&self) -> String {
        self.cycles.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    }

    fn mean(&self) -> u64 {
        self.cycles.iter().sum::<u64>() / self.cycles.len().max(1) as u64
    }
}

/// One NF with the costs of several hops as stages, which run in the order of the hops: the ideal
/// of several chains over the same NFs.
pub fn stages(name: &str, core: usize, hops: &[HopSpec]) -> Service {
    let mut args: Vec<String> = Vec::new();
    for hop in hops {
        args.extend(["--cycles".into(), hop.list()]);
    }
    args.extend(["--seed".into(), "1".into()]);
    Service { name: name.into(), exec: COST.into(), args, core, ring: RING, ..Service::default() }
}

/// How the chains of a mode run.
pub fn run_of(mode: Mode) -> Run {
    if mode == Mode::Ideal { Run::Fused } else { Run::Isolated }
}

/// One chain of hops at line rate in a mode; the ideal has only the hops of the busiest core.
pub fn line(lab: &Lab, mode: Mode, class: Class, hops: &[HopSpec]) -> Setup {
    let mut setup = Setup {
        manager_core: lab.manager_core,
        sched: Some(mode.sched(class)),
        traffic: vec![traffic_to("c", line_rate(64))],
        ..Setup::default()
    };
    let hops = if mode == Mode::Ideal { busiest(hops) } else { hops.to_vec() };
    // Each hop draws from its own seed.
    let of_hop = |(hop, seed): (&HopSpec, u64)| nf(&hop.name, hop.core, &["--cycles", &hop.list(), "--seed", &seed.to_string()]);
    setup.services = hops.iter().zip(1..).map(of_hop).collect();
    let polls = mode == Mode::Poll;
    setup.services.iter_mut().for_each(|service| (service.ring, service.poll) = (LINE_RING, polls));
    setup.mechanism = polls.then_some("none");
    setup.frames = LINE_FRAMES;
    let names: Vec<&str> = setup.services.iter().map(|s| s.name.as_str()).collect();
    setup.chains = vec![Chain { run: run_of(mode), ..chain_of("c", &names) }];
    setup
}

/// The hops on the core with the most work per packet.
fn busiest(hops: &[HopSpec]) -> Vec<HopSpec> {
    let on = |core: usize| hops.iter().filter(|hop| hop.core == core).cloned().collect::<Vec<_>>();
    let work = |core: usize| on(core).iter().map(HopSpec::mean).sum::<u64>();
    let core = hops.iter().map(|hop| hop.core).max_by_key(|core| work(*core)).unwrap_or(0);
    on(core)
}

/// One case for each mode under each scheduler, measured and simulated.
pub fn cases(modes: &[Mode], classes: &[Class], of: &Params, setup: impl Fn(Mode, Class) -> Setup) -> Vec<Case> {
    let case = |mode: Mode, class: Class| {
        let (name, params, setup) = (name_of(mode, class), of.clone(), setup(mode, class));
        let (row_name, row_params) = (name.clone(), of.clone());
        let run = move |lab: &Lab| {
            let mut row = Row::new(&row_name, &row_params, lab.flow(&setup)?);
            simulated::compare(&mut row, &setup, &simulated::MeasuredHost::here(lab));
            Ok(vec![row])
        };
        Case { name, params, run: Box::new(run) }
    };
    classes.iter().flat_map(|class| modes.iter().map(move |mode| (*mode, *class))).map(|(mode, class)| case(mode, class)).collect()
}

/// Adds ratios of `delivered_pps` to the rows of a turn.
///
/// - `ideal_pps`, `of_ideal`: the ideal under the same scheduler with the same params;
/// - `of_ideal_by_cpu`: the same by CPU time per packet, which holds under other load of the core,
///   too;
/// - `of_default`: relative to the default under the same scheduler;
/// - `of_best_default`: relative to the best default under any scheduler.
pub fn ratios(rows: &mut [Row]) -> Vec<Row> {
    ratios_besides(rows, &[])
}

/// A row that others are compared with.
struct Base {
    mode: String,
    class: String,
    params: Params,
    delivered: f64,
    /// CPU time per packet.
    packet_ns: Option<f64>,
}

impl Base {
    fn of(row: &Row) -> Option<Self> {
        let (mode, class) = row.name.split_once('/')?;
        Some(Self {
            mode: mode.into(),
            class: class.into(),
            params: row.params.clone(),
            delivered: row.get("delivered_pps")?,
            packet_ns: row.get("nf_ns_per_packet").filter(|ns| *ns > 0.0),
        })
    }
}

/// Like [`ratios`], where the ideal may differ in the params `besides`, which do not affect it.
pub fn ratios_besides(rows: &mut [Row], besides: &[&str]) -> Vec<Row> {
    let bases: Vec<Base> = rows.iter().filter_map(Base::of).collect();
    let without = |of: &Params| {
        let mut of = of.clone();
        besides.iter().for_each(|key| drop(of.remove(*key)));
        of
    };
    for row in rows {
        let Some(Base { mode, class, params, delivered, packet_ns }) = Base::of(row) else { continue };
        let of = |mode: &'static str| bases.iter().filter(move |base| base.mode == mode);
        let default = of("default").find(|b| b.class == class && b.params == params).map(|b| b.delivered);
        let best = of("default").filter(|b| b.params == params).map(|b| b.delivered).reduce(f64::max);
        let ideal = of("ideal").find(|b| b.class == class && without(&b.params) == without(&params));
        // On several cores, the ideal does the work of only one of them.
        let on_one = params.get("nf_cores").is_none_or(|cores| *cores == 1);
        let by_cpu = ideal.filter(|_| on_one).and_then(|b| Some(b.packet_ns? / packet_ns?));
        let ideal = ideal.map(|b| b.delivered);
        let ratio = |base: Option<f64>| base.filter(|b| *b > 0.0).map(|b| delivered / b);
        if mode != "ideal" {
            row.put("ideal_pps", ideal);
            row.put("of_ideal", ratio(ideal));
            row.put("of_ideal_by_cpu", by_cpu);
            row.put("of_best_default", ratio(best));
        }
        if mode != "ideal" && mode != "default" {
            row.put("of_default", ratio(default));
        }
    }
    Vec::new()
}

/// First column of most tables.
pub const DELIVERED: Column = Column::new("delivered_pps", "delivered Mpps", 1e6, 3);
/// Relative to the ideal.
pub const OF_IDEAL: Column = Column::new("of_ideal", "of ideal", 1.0, 3);
/// Relative to the ideal, by CPU time.
pub const OF_IDEAL_BY_CPU: Column = Column::new("of_ideal_by_cpu", "by CPU time", 1.0, 3);
/// Relative to the default under the same scheduler.
pub const OF_DEFAULT: Column = Column::new("of_default", "of default", 1.0, 2);
/// Relative to the best default.
pub const OF_BEST: Column = Column::new("of_best_default", "of best default", 1.0, 2);
pub const WASTED: Column = Column::new("wasted_pps", "wasted kpps", 1e3, 1);
/// Wasted work, relative to what was delivered.
pub const WASTED_PERCENT: Column = Column::new("wasted_percent", "% of delivered", 1.0, 3);
/// CPU time of the NFs, which are numbered from 1.
pub const CPU: [Column; 4] = [
    Column::new("cpu_percent.nf1", "CPU 1 %", 1.0, 1),
    Column::new("cpu_percent.nf2", "CPU 2 %", 1.0, 1),
    Column::new("cpu_percent.nf3", "CPU 3 %", 1.0, 1),
    Column::new("cpu_percent.nf4", "CPU 4 %", 1.0, 1),
];
pub const JAIN: Column = Column::new("jain", "Jain", 1.0, 3);

/// Placement of NFs that should have separate cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The core of each.
    pub cores: Vec<usize>,
    /// Number of distinct cores.
    pub used: usize,
    /// Schedulers that make a difference there.
    pub classes: Vec<Class>,
}

/// Places `wanted` NFs on separate cores, where the scheduler has no choice.
///
/// With too few cores, NFs go round-robin to all cores but the manager's, and the plan notes that
/// `modes` did not get separate cores.
pub fn place(lab: &Lab, plan: &mut Trials, modes: &[Mode], wanted: usize) -> Placed {
    let why = match lab.cores.own(wanted) {
        Ok(own) => return Placed { cores: own.to_vec(), used: wanted, classes: vec![Class::Other] },
        Err(why) => why,
    };
    for mode in modes {
        plan.leave_out(&name_of(*mode, Class::Other), params(&[nf_cores(wanted)]), format!("a core for each NF: {why}"));
    }
    let cores = lab.cores.besides_manager();
    let used = cores.len().min(wanted);
    Placed { cores: cores.into_iter().cycle().take(wanted).collect(), used, classes: schedulers().into() }
}

/// The param for the number of the NFs' cores.
pub fn nf_cores(cores: usize) -> (&'static str, Value) {
    ("nf_cores", json!(cores))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bench::daemon::tests::{assert_accepted, built};
    use crate::bench::experiment::BenchArgs;
    use crate::bench::measure::Sample;

    pub fn row(name: &str, of: &[(&str, Value)], delivered: f64) -> Row {
        Row::new(name, &params(of), Sample::from([("delivered_pps".into(), delivered)]))
    }

    #[test]
    fn names_are_those_of_the_form() {
        assert_eq!(name_of(Mode::Default, Class::Other), "default/other");
        assert_eq!(name_of(Mode::Weights, Class::Batch), "weights/batch");
        assert_eq!(name_of(Mode::Sluice, Class::Rr(100)), "sluice/rr100");
    }

    #[test]
    fn modes_switch_parts() {
        let of = |mode: Mode| {
            let sched = mode.sched(Class::Other);
            [sched.handover, sched.weights, sched.backpressure, sched.ecn]
        };
        assert_eq!((of(Mode::Default), of(Mode::Poll)), ([false; 4], [false; 4]));
        assert_eq!(of(Mode::Weights), [false, true, false, false]);
        assert_eq!(of(Mode::Backpressure), [false, false, true, false]);
        assert_eq!((of(Mode::Sluice), of(Mode::Ideal)), ([true; 4], [true; 4]));
        assert_eq!(of(Mode::Nfvnice), [false, true, true, true]);
        let idle = |mode: Mode| schedulers().map(|class| mode.idle_under(class).is_some());
        assert_eq!(idle(Mode::Weights), [false, false, true, true]);
        assert_eq!((idle(Mode::Default), idle(Mode::Sluice)), ([false; 4], [false; 4]));
    }

    #[test]
    fn slices_are_whole_ticks() {
        let [short, long] = [1, 100].map(slice_ms);
        // No kernel has ticks of more than 10 ms.
        assert!((1..=10).contains(&short) && (100..=110).contains(&long), "{short} {long}");
        assert_eq!(slice_ms(short), short);
    }

    #[test]
    fn packets_that_the_line_carries() {
        assert!((line_rate(64) - 14_880_952.0).abs() < 1.0);
        assert!((line_rate(1518) - 812_743.8).abs() < 1.0);
    }

    #[test]
    fn ratios_are_within_a_scheduler() {
        let at = |ring: u32| [("ring", json!(ring))];
        let mut rows = vec![
            row("default/other", &at(1), 2.0),
            row("sluice/other", &at(1), 3.0),
            row("ideal/other", &at(1), 4.0),
            row("default/batch", &at(1), 6.0),
            row("sluice/batch", &at(1), 9.0),
            row("default/other", &at(2), 100.0),
        ];
        ratios(&mut rows);
        let got = |i: usize, metric: &str| rows[i].get(metric);
        assert_eq!((got(0, "of_ideal"), got(0, "of_default"), got(0, "ideal_pps")), (Some(0.5), None, Some(4.0)));
        assert_eq!((got(1, "of_ideal"), got(1, "of_default"), got(1, "of_best_default")), (Some(0.75), Some(1.5), Some(0.5)));
        assert_eq!((got(2, "of_ideal"), got(2, "of_best_default")), (None, None));
        assert_eq!((got(4, "of_ideal"), got(4, "of_default"), got(4, "of_best_default")), (None, Some(1.5), Some(1.5)));
        assert_eq!(got(5, "of_ideal"), None, "of other params");
        rows[1].put("nf_ns_per_packet", Some(500.0));
        rows[2].put("nf_ns_per_packet", Some(450.0));
        ratios_besides(&mut rows, &["ring"]);
        assert_eq!((rows[1].get("of_ideal_by_cpu"), rows[4].get("of_ideal_by_cpu")), (Some(0.9), None));
        assert_eq!(rows[5].get("of_ideal"), Some(25.0));
    }

    #[test]
    fn the_ideal_has_the_work_of_the_busiest_core() {
        let hops = [HopSpec::new(1, 1, 120), HopSpec::new(2, 2, 500), HopSpec::new(3, 1, 550)];
        assert_eq!(busiest(&hops).iter().map(|h| h.name.as_str()).collect::<Vec<_>>(), ["nf1", "nf3"]);
        let drawn = [HopSpec { cycles: vec![1, 2], ..hops[0].clone() }, hops[2].clone()];
        assert_eq!(stages("ideal", 1, &drawn).args, ["--cycles", "1,2", "--cycles", "550", "--seed", "1"]);
        let ideal = line(&crate::bench::lab::tests::lab(1), Mode::Ideal, Class::Other, &drawn);
        let args: Vec<_> = ideal.services.iter().map(|s| s.args.clone()).collect();
        assert_eq!(args, [["--cycles", "1,2", "--seed", "1"], ["--cycles", "550", "--seed", "2"]]);
    }

    #[test]
    fn every_mode_of_a_line_has_one_chain_over_its_services() {
        let lab = crate::bench::lab::tests::lab(1);
        let hops = [HopSpec::new(1, 1, 120), HopSpec::new(2, 1, 270)];
        for mode in MODES {
            let setup = line(&lab, mode, Class::Batch, &hops);
            let names: Vec<&String> = setup.services.iter().map(|s| &s.name).collect();
            assert_eq!(setup.chains[0].services.iter().collect::<Vec<_>>(), names);
            assert_eq!((names.len(), setup.chains[0].run), (2, run_of(mode)));
            assert_eq!(setup.traffic[0].chain, setup.chains[0].name);
            assert!(setup.mechanism.is_none() && setup.services.iter().all(|service| !service.poll));
        }
        let polling = line(&lab, Mode::Poll, Class::Other, &hops);
        assert!(polling.mechanism == Some("none") && polling.services.iter().all(|service| service.poll));
    }

    #[test]
    fn the_daemon_accepts_the_configurations() {
        let lab = crate::bench::lab::tests::lab(1);
        let modes = MODES.into_iter().chain([Mode::Poll]);
        for (mode, class) in modes.flat_map(|mode| schedulers().map(|class| (mode, class))) {
            let mut setup = line(&lab, mode, class, &chain::hops(&lab));
            if let Some(sched) = &mut setup.sched {
                (sched.watermarks, sched.queueing_us) = (Some((20, 40)), Some(50));
            }
            assert_accepted(&setup, &[COST]);
        }
    }

    #[test]
    fn a_short_run_measures_a_chain_beside_its_ideal() {
        let Some(programs) = built(&[COST]) else { return };
        let only = vec!["sluice/other".into(), "ideal/other".into()];
        let args = BenchArgs { seconds: 0.3, repeats: 1, only, ..BenchArgs::default() };
        let lab = match Lab::with(&args, programs) {
            Ok(lab) => lab,
            Err(why) => return crate::skip::skip(why),
        };
        let (report, failed) = lab.conduct(&chain::plan(&lab)).unwrap();
        assert_eq!(failed, 0, "{:?}", report.left_out);
        let names: Vec<&str> = report.variants.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["sluice/other", "ideal/other"]);
        for metric in ["delivered_pps", "of_ideal", "wasted_pps.nf2", "cpu_percent.nf3", "sched_delay_ns.nf1"] {
            assert_eq!(report.variants[0].metrics[metric].samples.len(), 1, "{metric}");
        }
    }
}
