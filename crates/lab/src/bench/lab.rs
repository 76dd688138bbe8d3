//! The runner of experiments: alternating cases with a daemon each, and one result.
//!
//! # Terms
//! - *Case*: one thing to run: a variant with its params.
//! - *Row*: the measurements of one run of a case.
//! - *Turn*: one run of all cases, or after the first of those to repeat (`--again`). Ratios
//!   between cases are taken within a turn, so that a disturbance of the host affects both sides of
//!   a ratio.
//!
//! A run that served nothing, or gave a figure that is not finite, has failed.
//!
//! # Limits
//! A case that fails does not run again, and its earlier rows are not reported.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use crate::bench::daemon::{Daemon, Programs};
use crate::bench::experiment::BenchArgs;
use crate::bench::figures::PaperValue;
use crate::bench::host::{Cores, HostInfo};
use crate::bench::host_speed::HostSpeed;
use crate::bench::measure::{Reading, Sample, sample};
use crate::bench::plot;
use crate::bench::proc::Tasks;
use crate::bench::report::{FAILED, LeftOut, Params, Report, Variant};
use crate::bench::setup::Setup;
use crate::bench::table::{Group, table};
use sluice_api::model::NfState;

/// Warm-up of a daemon, as a share of the measured time.
const WARM_UP: f64 = 0.3;
/// Shortest and longest warm-up, in seconds: shares follow load after a few tenths of a second.
const WARM_UP_LIMITS: (f64, f64) = (0.4, 1.0);
/// Why a variant with DPDK devices is left out.
const NO_DPDK: &str = "this sluiced was built without DPDK; build it with `--features dpdk` (Debian: libdpdk-dev)";
/// Metrics of what came through. A run has served nothing if all of these that it has are 0.
const SERVED: [&str; 4] = ["delivered_pps", "delivered_count", "requests_per_s", "tcp_bps"];

/// Why a run gave no result.
#[derive(Debug)]
pub enum Miss {
    /// It cannot be run or measured here: the variant is left out.
    LeaveOut(String),
    /// It should have worked.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Miss {
    fn from(error: anyhow::Error) -> Self {
        Miss::Failed(error)
    }
}

impl From<std::io::Error> for Miss {
    fn from(error: std::io::Error) -> Self {
        Miss::Failed(error.into())
    }
}

/// Measurements of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub name: String,
    pub params: Params,
    pub sample: Sample,
}

impl Row {
    pub fn new(name: &str, params: &Params, sample: Sample) -> Self {
        Self { name: name.into(), params: params.clone(), sample }
    }

    pub fn get(&self, metric: &str) -> Option<f64> {
        self.sample.get(metric).copied()
    }

    /// Adds a measurement, if there is one.
    pub fn put(&mut self, metric: &str, value: Option<f64>) {
        self.sample.extend(value.map(|value| (metric.to_string(), value)));
    }

    /// A metric that is not finite, if there is one.
    fn not_finite(&self) -> Option<String> {
        let (metric, value) = self.sample.iter().find(|(_, value)| !value.is_finite())?;
        Some(format!("{metric} is {value}"))
    }

    /// The metrics that say so, if nothing was served.
    fn nothing_served(&self) -> Option<String> {
        let served: Vec<(&str, f64)> = SERVED.iter().filter_map(|metric| Some((*metric, self.get(metric)?))).collect();
        let names = || served.iter().map(|(metric, _)| format!("{metric} is 0")).collect::<Vec<_>>().join(", ");
        (!served.is_empty() && served.iter().all(|(_, value)| *value == 0.0)).then(names)
    }
}

/// Runs a case. The first row is the case's own; others may follow (points of a curve).
pub type Runner = Box<dyn Fn(&Lab) -> Result<Vec<Row>, Miss>>;

pub struct Case {
    pub name: String,
    pub params: Params,
    pub run: Runner,
}

impl Case {
    /// A case of one row.
    pub fn one(name: impl Into<String>, params: Params, run: impl Fn(&Lab) -> Result<Sample, Miss> + 'static) -> Self {
        let name = name.into();
        let (row_name, row_params) = (name.clone(), params.clone());
        Self { name, params, run: Box::new(move |lab| Ok(vec![Row::new(&row_name, &row_params, run(lab)?)])) }
    }

    /// Packets through a setup, measured for the requested time. Metrics are named after its
    /// services and chains.
    pub fn flow(name: &str, params: Params, setup: Setup) -> Self {
        Self::one(name, params, move |lab| lab.flow(&setup))
    }
}

/// A group of variants, and the predicate that selects them.
pub type Shown = (Group, fn(&Variant) -> bool);

/// Computes metrics from several rows of a turn.
pub type Derive = fn(&mut [Row]) -> Vec<Row>;

/// A [`Trials::derive`] that computes nothing.
pub fn nothing(_: &mut [Row]) -> Vec<Row> {
    Vec::new()
}

/// An experiment that is ready to run.
pub struct Trials {
    pub experiment: &'static str,
    pub cases: Vec<Case>,
    pub left_out: Vec<LeftOut>,
    /// Computes metrics from the rows of each turn and adds them; returns rows that span several
    /// cases.
    pub derive: Derive,
    pub groups: Vec<Shown>,
    /// Whether a variant may serve nothing: without load, or where its NFs' turns last longer than
    /// a run.
    pub may_serve_nothing: fn(&str, &Params) -> bool,
}

impl Trials {
    pub fn new(experiment: &'static str, derive: Derive, groups: Vec<Shown>) -> Self {
        Self { experiment, cases: Vec::new(), left_out: Vec::new(), derive, groups, may_serve_nothing: |_, _| false }
    }

    pub fn leave_out(&mut self, name: &str, params: Params, why: impl Into<String>) {
        self.left_out.push(LeftOut { name: name.into(), params, why: why.into() });
    }

    /// The rows of a run, if they are measurements.
    ///
    /// # Errors
    /// It served nothing, or gave a figure that is not finite.
    fn measured(&self, case: &Case, rows: Vec<Row>) -> Result<Vec<Row>, Miss> {
        let may_be_nothing = (self.may_serve_nothing)(&case.name, &case.params);
        let nothing = rows.first().filter(|_| !may_be_nothing).and_then(Row::nothing_served);
        if let Some(metrics) = nothing {
            return Err(anyhow::anyhow!("it served nothing: {metrics}").into());
        }
        match rows.iter().find_map(Row::not_finite) {
            Some(metric) => Err(anyhow::anyhow!("{metric}").into()),
            None => Ok(rows),
        }
    }
}

/// State that all runs share.
pub struct Lab {
    pub args: BenchArgs,
    pub programs: Programs,
    pub cores: Cores,
    pub manager_core: usize,
    /// The host, as far as it is known.
    host: RefCell<HostInfo>,
    /// Warnings of daemons so far.
    warnings: RefCell<BTreeSet<String>>,
    /// What runs could not measure beside their cases.
    left_out: RefCell<Vec<LeftOut>>,
}

impl Lab {
    /// A lab on this host, with the programs beside this one. `nfs` are the NFs that the experiment
    /// needs.
    ///
    /// # Errors
    /// There are too few cores, or a program is missing.
    pub fn here(args: &BenchArgs, nfs: &[&str]) -> anyhow::Result<Self> {
        Self::with(args, Programs::beside_this_one(nfs)?)
    }

    /// A lab on this host, with these programs.
    ///
    /// # Errors
    /// There are too few cores.
    pub fn with(args: &BenchArgs, programs: Programs) -> anyhow::Result<Self> {
        let cores = Cores::here();
        let (manager_core, host) = (cores.manager()?, RefCell::new(HostInfo::read(&cores)));
        let (warnings, left_out) = (RefCell::default(), RefCell::default());
        Ok(Self { args: args.clone(), programs, cores, manager_core, host, warnings, left_out })
    }

    /// Frequency of the host's time-stamp counter, if known.
    pub fn tsc_hz(&self) -> Option<f64> {
        self.host.borrow().tsc_hz
    }

    /// Has the result say, once, that something beside its cases is left out.
    pub fn leave_out(&self, name: &str, why: &str) {
        let left = LeftOut { name: name.into(), params: Params::new(), why: why.into() };
        let mut left_out = self.left_out.borrow_mut();
        if !left_out.contains(&left) {
            left_out.push(left);
        }
    }

    /// Lets a daemon warm up.
    ///
    /// # Errors
    /// The experiment was interrupted.
    pub fn warm_up(&self) -> anyhow::Result<()> {
        let (least, most) = WARM_UP_LIMITS;
        self.programs.pause(Duration::from_secs_f64((self.args.seconds * WARM_UP).clamp(least, most)))
    }

    /// Reads all counters, and checks that all NFs run.
    ///
    /// # Errors
    /// The daemon does not answer, or an NF has ended.
    pub fn read(&self, daemon: &Daemon) -> anyhow::Result<Reading> {
        self.read_where(daemon, |_| false)
    }

    /// Like [`Lab::read`], where NFs of some services may end and be restarted.
    pub fn read_where(&self, daemon: &Daemon, may_end: impl Fn(&str) -> bool) -> anyhow::Result<Reading> {
        let stats = daemon.stats()?;
        let tasks = Tasks::of(&stats.nfs);
        let has_ended = |nf: &&sluice_api::model::Nf| (nf.restarts > 0 || nf.state != NfState::Running) && !may_end(&nf.service);
        if let Some(nf) = stats.nfs.iter().find(has_ended) {
            anyhow::bail!("{} ended while it was measured; sluiced says: {}", nf.name, daemon.log());
        }
        self.host.borrow_mut().hugepages |= stats.status.hugepages;
        Ok(Reading { stats, tasks })
    }

    /// Starts a daemon, and prints each warning once.
    ///
    /// # Errors
    /// It does not start. If the host does not allow real-time scheduling, or the daemon has no
    /// DPDK for a device, the variant is left out.
    pub fn start(&self, setup: &Setup) -> Result<Daemon, Miss> {
        let daemon = Daemon::start(&self.programs, setup).map_err(|error| {
            let words = format!("{error:#}");
            if words.contains("--features dpdk") {
                return Miss::LeaveOut(NO_DPDK.into());
            }
            let of_class = matches!(setup.sched, Some(sched) if matches!(sched.class, crate::bench::setup::Class::Rr(_)));
            let refused = ["SCHED_RR", "real-time", "rt_runtime", "rr_slice"].iter().any(|word| words.contains(word));
            if of_class && refused { Miss::LeaveOut(words) } else { Miss::Failed(error) }
        })?;
        for line in daemon.log().lines().map(str::trim).filter(|line| line.to_lowercase().contains("warning")) {
            if self.warnings.borrow_mut().insert(line.into()) {
                eprintln!("sluiced says: {line}");
            }
        }
        Ok(daemon)
    }

    /// Runs a setup and measures it for the requested time.
    pub fn flow(&self, setup: &Setup) -> Result<Sample, Miss> {
        self.flow_for(setup, self.args.seconds)
    }

    /// The same for some seconds.
    pub fn flow_for(&self, setup: &Setup, seconds: f64) -> Result<Sample, Miss> {
        let (sample, ()) = self.flow_while(setup, |_| self.programs.pause(Duration::from_secs_f64(seconds)))?;
        Ok(sample)
    }

    /// The same while `act` runs, which gets the first reading; returns its result, too.
    pub fn flow_while<T>(&self, setup: &Setup, act: impl FnOnce(&Reading) -> anyhow::Result<T>) -> Result<(Sample, T), Miss> {
        let (before, after, result) = self.readings_while(setup, act)?;
        Ok((sample(setup, &before, &after), result))
    }

    /// The readings of a setup before and after a run.
    pub fn readings(&self, setup: &Setup) -> Result<(Reading, Reading), Miss> {
        let pause = |_: &Reading| self.programs.pause(Duration::from_secs_f64(self.args.seconds));
        let (before, after, ()) = self.readings_while(setup, pause)?;
        Ok((before, after))
    }

    fn readings_while<T>(
        &self,
        setup: &Setup,
        act: impl FnOnce(&Reading) -> anyhow::Result<T>,
    ) -> Result<(Reading, Reading, T), Miss> {
        let daemon = self.start(setup)?;
        self.warm_up()?;
        let before = self.read(&daemon)?;
        let result = act(&before)?;
        let after = self.read(&daemon)?;
        daemon.stop()?;
        Ok((before, after, result))
    }

    /// The cases of a plan that are asked for.
    ///
    /// # Errors
    /// A parameter is of no case, or nothing is left.
    fn asked_of<'a>(&self, plan: &'a Trials) -> anyhow::Result<Vec<Option<&'a Case>>> {
        let mut cases: Vec<Option<&Case>> =
            plan.cases.iter().filter(|case| self.args.asks_for(&case.name, &case.params)).map(Some).collect();
        cases.truncate(self.args.first.map_or(usize::MAX, |first| first as usize));
        let all: Vec<(&str, &Params)> = plan.cases.iter().map(|case| (case.name.as_str(), &case.params)).collect();
        check_asked(&self.args, plan.experiment, &all)?;
        Ok(cases)
    }

    /// Runs all cases of a plan in turns; returns the result, and the number of failed cases.
    ///
    /// # Errors
    /// The experiment was interrupted, or nothing of it is asked for.
    pub fn conduct(&self, plan: &Trials) -> anyhow::Result<(Report, usize)> {
        let (mut cases, mut left_out) = (self.asked_of(plan)?, plan.left_out.clone());
        let mut host_speed = HostSpeed::new(self.manager_core, self.cores.shared());
        let (mut turns, mut failed) = (Vec::new(), 0);
        for turn in 1..=self.args.repeats {
            let mut rows = Vec::new();
            for slot in &mut cases {
                let Some(case) = *slot else { continue };
                if turn > 1 && !self.args.runs_again(&case.name, &case.params) {
                    continue;
                }
                let label = named(&case.name, &case.params);
                eprintln!("{turn} of {}: {label}", self.args.repeats);
                host_speed.sample();
                let missed = match (case.run)(self).and_then(|of_case| plan.measured(case, of_case)) {
                    Ok(mut of_case) => {
                        rows.append(&mut of_case);
                        continue;
                    }
                    Err(missed) => missed,
                };
                self.programs.go_on()?;
                failed += usize::from(matches!(missed, Miss::Failed(_)));
                left_out.push(left(&case.name, &case.params, missed));
                *slot = None;
            }
            let more = (plan.derive)(&mut rows);
            rows.extend(more);
            for (row, metric) in rows.iter().filter_map(|row| Some((row, row.not_finite()?))) {
                let is_of = |name: &str, params: &Params| row.name == name && row.params == *params;
                // One that spans cases is computed in each turn.
                if left_out.iter().any(|left| is_of(&left.name, &left.params)) {
                    continue;
                }
                failed += 1;
                left_out.push(left(&row.name, &row.params, anyhow::anyhow!("{metric}").into()));
                cases.retain(|slot| slot.is_none_or(|case| !is_of(&case.name, &case.params)));
            }
            turns.push(rows);
        }
        host_speed.sample();
        left_out.append(&mut self.left_out.borrow_mut());
        let mut variants = collect(turns);
        variants.retain(|v| !left_out.iter().any(|l| l.name == v.name && l.params == v.params));
        let report = Report {
            experiment: plan.experiment.into(),
            host: self.host.borrow().clone(),
            seconds: self.args.seconds,
            repeats: self.args.repeats,
            variants,
            left_out,
            host_speed: host_speed.samples(),
        };
        Ok((report, failed))
    }

    /// Runs the plan of an experiment on this host, with the NFs that it needs.
    ///
    /// # Errors
    /// As [`here`](Self::here) and [`run`](Self::run).
    pub fn measure(args: &BenchArgs, nfs: &[&str], plan: impl FnOnce(&Self) -> Trials) -> anyhow::Result<()> {
        let lab = Self::here(args, nfs)?;
        lab.run(&plan(&lab))
    }

    /// Runs a plan, shows its result, and writes it if requested.
    ///
    /// # Errors
    /// The experiment was interrupted, the result cannot be written, or a case failed.
    pub fn run(&self, plan: &Trials) -> anyhow::Result<()> {
        let (report, failed) = self.conduct(plan)?;
        let of = |belongs: fn(&Variant) -> bool| report.variants.iter().filter(|v| belongs(v)).collect::<Vec<_>>();
        let groups: Vec<(&Group, Vec<&Variant>)> = plan.groups.iter().map(|(group, belongs)| (group, of(*belongs))).collect();
        show(&self.args, &report, &groups)?;
        anyhow::ensure!(failed == 0, "{}", failures(&report));
        Ok(())
    }
}

/// What a result has of a variant without one; says so if it failed.
pub fn left(name: &str, params: &Params, missed: Miss) -> LeftOut {
    let why = match missed {
        Miss::LeaveOut(why) => why,
        Miss::Failed(error) => {
            eprintln!("sluice bench: {}: {error:#}", named(name, params));
            format!("{FAILED}{error:#}")
        }
    };
    LeftOut { name: name.into(), params: params.clone(), why }
}

/// How many variants failed, and which.
pub fn failures(report: &Report) -> String {
    let failed = report.left_out.iter().filter(|left| left.has_failed());
    let failed: Vec<String> = failed.map(|left| named(&left.name, &left.params)).collect();
    format!("{} of the variants failed: {}; see the reasons above", failed.len(), failed.join(", "))
}

/// Checks that what is asked for of all cases of an experiment is something.
///
/// # Errors
/// A parameter is of no case, or nothing is left to run or to repeat.
pub fn check_asked(args: &BenchArgs, experiment: &str, all: &[(&str, &Params)]) -> anyhow::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    let parameters: BTreeSet<&str> = all.iter().flat_map(|(_, params)| params.keys()).map(String::as_str).collect();
    if let Some(given) = args.given.iter().find(|given| !parameters.contains(given.key())) {
        let known = parameters.into_iter().collect::<Vec<_>>().join(", ");
        anyhow::bail!("{experiment} has no parameter {}; its parameters are {known}", given.key());
    }
    let mut asked: Vec<&(&str, &Params)> = all.iter().filter(|(name, params)| args.asks_for(name, params)).collect();
    asked.truncate(args.first.map_or(usize::MAX, |first| first as usize));
    anyhow::ensure!(
        !asked.is_empty(),
        "--only and --where leave nothing of {experiment}; its variants are as {}",
        all.iter().take(4).map(|(name, params)| format!("\"{}\"", named(name, params))).collect::<Vec<_>>().join(", ")
    );
    anyhow::ensure!(
        args.repeats < 2 || asked.iter().any(|(name, params)| args.runs_again(name, params)),
        "--again leaves nothing of {experiment} to repeat"
    );
    Ok(())
}

/// Name and parameters of a case.
fn named(name: &str, params: &Params) -> String {
    Variant::new(name, params.clone()).label(&keys(params))
}

fn keys(params: &Params) -> Vec<&str> {
    params.keys().map(String::as_str).collect()
}

/// The rows of all turns as variants, in order of first appearance.
fn collect(turns: Vec<Vec<Row>>) -> Vec<Variant> {
    let mut variants: Vec<Variant> = Vec::new();
    for row in turns.into_iter().flatten() {
        let at = variants.iter().position(|v| v.name == row.name && v.params == row.params);
        let at = at.unwrap_or_else(|| {
            variants.push(Variant::new(&row.name, row.params));
            variants.len() - 1
        });
        for (metric, value) in row.sample {
            variants[at].add(&metric, value);
        }
    }
    variants
}

/// The variants that were left out, one line per reason.
pub fn left_out_lines(left_out: &[LeftOut]) -> Vec<String> {
    let mut reasons: Vec<(&LeftOut, usize)> = Vec::new();
    for one in left_out {
        match reasons.iter_mut().find(|(first, _)| first.why == one.why) {
            Some((_, more)) => *more += 1,
            None => reasons.push((one, 0)),
        }
    }
    let line = |(first, more): (&LeftOut, usize)| {
        let label = Variant::new(&first.name, first.params.clone()).label(&keys(&first.params));
        let others = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("left out: {label}{others}: {}", first.why)
    };
    reasons.into_iter().map(line).collect()
}

/// Prints the tables of a result and what was left out, and writes JSON and plot if requested.
///
/// Without a file of its own, the plot goes beside the JSON.
///
/// # Errors
/// A file cannot be written.
pub fn show(args: &BenchArgs, report: &Report, groups: &[(&Group, Vec<&Variant>)]) -> anyhow::Result<()> {
    for (group, variants) in groups {
        let text = table(group, variants);
        if !text.is_empty() {
            println!("{text}");
        }
    }
    for line in left_out_lines(&report.left_out) {
        println!("{line}");
    }
    if let Some(path) = &args.json {
        report.write(path)?;
    }
    let svg: Option<PathBuf> = args.svg.clone().or_else(|| args.json.as_ref().map(|path| path.with_extension("svg")));
    if let Some(path) = svg {
        let title = format!("sluice bench {} on {}", report.experiment, report.host.cpu);
        match plot::svg(&title, groups, &PaperValue::of(report)?) {
            Some(picture) => std::fs::write(&path, picture).with_context(|| format!("cannot write {}", path.display()))?,
            None => eprintln!("sluice bench: nothing was measured that could be plotted; {} is not written", path.display()),
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    /// A lab that can start nothing.
    pub fn lab(repeats: u32) -> Lab {
        let cores = Cores::here();
        let host = HostInfo { cpu: "x".into(), cores: 2, kernel: "6".into(), hugepages: false, dpdk: None, tsc_hz: None };
        Lab {
            args: BenchArgs { seconds: 0.01, repeats, ..BenchArgs::default() },
            programs: Programs { sluiced: "/nowhere/sluiced".into(), interrupted: Arc::default() },
            cores,
            manager_core: 0,
            host: RefCell::new(host),
            warnings: RefCell::default(),
            left_out: RefCell::default(),
        }
    }

    fn case(name: &str, run: impl Fn() -> Result<f64, Miss> + 'static) -> Case {
        let params = Params::from([("nfs".into(), json!(1))]);
        Case::one(name, params, move |_| Ok(Sample::from([("x_pps".into(), run()?)])))
    }

    #[test]
    fn cases_run_in_turns_and_ratios_are_of_one_turn() {
        let order = Rc::new(RefCell::new(String::new()));
        let counted = |name: &'static str, step: f64| {
            let (order, runs) = (order.clone(), Cell::new(0.0));
            case(name, move || {
                order.borrow_mut().push_str(name);
                runs.set(runs.get() + 1.0);
                Ok(runs.get() * step)
            })
        };
        let derive: Derive = |rows| {
            let ratio = rows[1].get("x_pps").unwrap() / rows[0].get("x_pps").unwrap();
            rows[1].put("of_a", Some(ratio));
            vec![Row::new("both", &Params::new(), Sample::from([("ratio".into(), ratio)]))]
        };
        let mut plan = Trials::new("test", derive, Vec::new());
        plan.cases = vec![counted("a", 1.0), counted("b", 3.0)];
        let lab = lab(3);
        (0..2).for_each(|_| lab.leave_out("simulator", "no wakes"));
        let (report, failed) = lab.conduct(&plan).unwrap();
        assert_eq!(report.left_out.iter().map(|left| left.why.as_str()).collect::<Vec<_>>(), ["no wakes"]);
        assert_eq!((order.borrow().as_str(), failed), ("ababab", 0));
        assert_eq!(report.variants[0].metrics["x_pps"].samples, [1.0, 2.0, 3.0]);
        assert_eq!(report.variants[1].metrics["of_a"].samples, [3.0, 3.0, 3.0]);
        assert_eq!(report.variants[2].metrics["ratio"].samples, [3.0, 3.0, 3.0]);
    }

    #[test]
    fn a_case_that_fails_is_reported_and_not_tried_again() {
        let tries = Rc::new(Cell::new(0));
        let counted = tries.clone();
        let mut plan = Trials::new("test", nothing, Vec::new());
        plan.cases = vec![
            case("bad", move || {
                counted.set(counted.get() + 1);
                if counted.get() == 2 { Err(anyhow::anyhow!("broken").into()) } else { Ok(1.0) }
            }),
            case("not here", || Err(Miss::LeaveOut("no core".into()))),
            case("good", || Ok(2.0)),
        ];
        let (report, failed) = lab(3).conduct(&plan).unwrap();
        assert_eq!((tries.get(), failed), (2, 1));
        let why: Vec<_> = report.left_out.iter().map(|l| (l.name.as_str(), l.why.as_str())).collect();
        assert_eq!(why, [("not here", "no core"), ("bad", "failed: broken")]);
        assert_eq!(report.variants.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["good"]);
        assert_eq!(report.variants[0].metrics["x_pps"].samples.len(), 3);
    }

    #[test]
    fn a_run_that_serves_nothing_or_gives_no_number_has_failed() {
        let of = |name: &str, metrics: &'static [(&'static str, f64)]| {
            let params = Params::from([("mode".into(), json!("isolated"))]);
            Case::one(name, params, move |_| Ok(metrics.iter().map(|(metric, value)| (metric.to_string(), *value)).collect()))
        };
        let mut plan = Trials::new("test", nothing, Vec::new());
        plan.cases = vec![
            of("nothing", &[("delivered_pps", 0.0), ("wasted_pps", 1.0)]),
            of("tcp", &[("delivered_pps", 0.0), ("tcp_bps", 1.0)]),
            of("late", &[("delivered_pps", 1.0), ("latency_ns_p99", f64::NAN)]),
            of("no load", &[("delivered_pps", 0.0)]),
        ];
        plan.may_serve_nothing = |name, _| name == "no load";
        let (report, failed) = lab(2).conduct(&plan).unwrap();
        let why: Vec<_> = report.left_out.iter().map(|l| (l.name.as_str(), l.why.as_str())).collect();
        assert_eq!(why, [("nothing", "failed: it served nothing: delivered_pps is 0"), ("late", "failed: latency_ns_p99 is NaN")]);
        assert_eq!(report.variants.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["tcp", "no load"]);
        assert_eq!(failed, 2);
        assert_eq!(
            lab(2).run(&plan).unwrap_err().to_string(),
            "2 of the variants failed: nothing mode isolated, late mode isolated; see the reasons above"
        );
    }

    #[test]
    fn a_ratio_to_nothing_has_failed_and_is_not_tried_again() {
        let tries = Rc::new(Cell::new(0));
        let counted = tries.clone();
        let derive: Derive = |rows| {
            let [none, one] = rows else { return Vec::new() };
            let ratio = one.get("x_pps").unwrap() / none.get("x_pps").unwrap();
            one.put("of_none", Some(ratio));
            vec![Row::new("both", &Params::new(), Sample::from([("ratio".into(), ratio)]))]
        };
        let mut plan = Trials::new("test", derive, Vec::new());
        let one = case("one", move || {
            counted.set(counted.get() + 1);
            Ok(1.0)
        });
        plan.cases = vec![case("none", || Ok(0.0)), one];
        let (report, failed) = lab(3).conduct(&plan).unwrap();
        let why: Vec<_> = report.left_out.iter().map(|l| (l.name.as_str(), l.why.as_str())).collect();
        assert_eq!(why, [("one", "failed: of_none is inf"), ("both", "failed: ratio is inf")]);
        assert_eq!((report.variants.len(), report.variants[0].metrics["x_pps"].samples.len()), (1, 3));
        assert_eq!((tries.get(), failed), (1, 2));
    }

    #[test]
    fn a_reason_is_reported_once() {
        let of = |name: &str, why: &str| LeftOut {
            name: name.into(),
            params: Params::from([("nfs".into(), json!(1))]),
            why: why.into(),
        };
        let lines = left_out_lines(&[of("a", "no core"), of("b", "no disk"), of("c", "no core"), of("d", "no core")]);
        assert_eq!(lines, ["left out: a nfs 1 and 2 more: no core", "left out: b nfs 1: no disk"]);
    }

    #[test]
    fn only_what_was_asked_for_runs() {
        let mut lab = lab(1);
        let mut plan = Trials::new("test", nothing, Vec::new());
        plan.cases = ["default/other", "sluice/other", "sluice/batch"].map(|name| case(name, || Ok(1.0))).into();
        lab.args.only = vec!["sluice/".into()];
        let names = |report: Report| report.variants.into_iter().map(|v| v.name).collect::<Vec<_>>();
        assert_eq!(names(lab.conduct(&plan).unwrap().0), ["sluice/other", "sluice/batch"]);
        lab.args.first = Some(1);
        assert_eq!(names(lab.conduct(&plan).unwrap().0), ["sluice/other"]);
        lab.args.first = None;
        lab.args.only = vec!["nonsense".into()];
        let error = lab.conduct(&plan).unwrap_err().to_string();
        assert!(
            error.starts_with("--only and --where leave nothing of test") && error.contains("\"default/other nfs 1\""),
            "{error}"
        );
        (lab.args.only, lab.args.given) = (Vec::new(), vec!["sizes=3".parse().unwrap()]);
        let error = lab.conduct(&plan).unwrap_err().to_string();
        assert_eq!(error, "test has no parameter sizes; its parameters are nfs");
    }

    #[test]
    fn only_some_are_repeated() {
        let mut lab = lab(3);
        let mut plan = Trials::new("test", nothing, Vec::new());
        plan.cases = ["default/other", "sluice/other"].map(|name| case(name, || Ok(1.0))).into();
        lab.args.again = vec!["sluice".parse().unwrap(), "nfs=1".parse().unwrap()];
        let (report, _) = lab.conduct(&plan).unwrap();
        let runs: Vec<usize> = report.variants.iter().map(|variant| variant.metrics["x_pps"].samples.len()).collect();
        assert_eq!(runs, [1, 3]);
        lab.args.again = vec!["nonsense".parse().unwrap()];
        assert_eq!(lab.conduct(&plan).unwrap_err().to_string(), "--again leaves nothing of test to repeat");
    }

    #[test]
    fn an_interruption_writes_nothing() {
        let lab = lab(2);
        let interrupted = lab.programs.interrupted.clone();
        let mut plan = Trials::new("test", nothing, Vec::new());
        plan.cases = vec![case("a", move || {
            interrupted.store(true, std::sync::atomic::Ordering::Relaxed);
            Err(anyhow::anyhow!("interrupted").into())
        })];
        assert!(lab.conduct(&plan).unwrap_err().to_string().starts_with("interrupted"));
    }
}
