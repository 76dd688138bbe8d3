//! `sluice bench dynamic`: how fast CPU shares follow when an NF's cost triples for a while.
//!
//! # Approach
//! Two flows with equal rates, each through its own NF on one core: [`LOW`] and [`HIGH`] cycles.
//! Three phases of the requested length: in the second, a signal makes the first NF cost as much as
//! the other. Ten times a second, the kernel's CPU times of both processes give their shares. The
//! *target* of a phase is the share by cost: CPU time per packet of each NF, measured in the
//! settled part of the phase, so that it includes all overhead of the NFs.
//!
//! Metrics, each with `.rise` and `.fall` for the two changes:
//! - `share_percent`: the first NF's share over [`LOOK_S`], after a settling time of a second
//!   ([`SETTLE_S`]; half of a phase that is shorter than two);
//! - `share_error_percent`: its distance from the target, in percent of the target;
//! - `share_deviation_percent`: standard deviation of the share from then to the end of the phase,
//!   in percent of the core, which shows oscillation.
//!
//! The rows over `time_s` are the curve.
//!
//! # Limits
//! The resolution of a share over a tenth of a second is about 1.3 percent of the core. Under
//! SCHED_RR with slices of that length, a point shows which NF had the slice. SCHED_RR has no
//! weights: there, Sluice's shares come from NFs that hand over the core by budgets. A phase in
//! which an NF gets no packet through has no cost and so no target. There is no ideal: the two NFs
//! are separate chains.
//!
//! # Source
//! NFVnice, figure 15a.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::json;

use super::{COST, Mode, PARTS, chain_of, name_of, nf, nf_of, params, schedulers, traffic_to};
use crate::bench::daemon::Daemon;
use crate::bench::experiment::Experiment;
use crate::bench::fair::{deviation, mean};
use crate::bench::lab::{Case, Lab, Miss, Row, Trials, nothing};
use crate::bench::measure::{Reading, Sample};
use crate::bench::proc::Task;
use crate::bench::report::Params;
use crate::bench::setup::{Class, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "dynamic",
    about: "one of two NFs costs three times as much for a while; shares over time (figure 15a)",
    run: |args| Lab::measure(args, &[COST], |_| plan()),
};

const LOW: u64 = 1_000;
const HIGH: u64 = 3_000;
/// Packets per second of each flow: more than the core can process.
const EACH_PPS: f64 = 2e6;
/// Seconds between two points.
const EVERY_S: f64 = 0.1;
/// Settling time after a change, in seconds.
const SETTLE_S: f64 = 1.0;
/// Seconds over which the error is taken.
const LOOK_S: f64 = 0.5;

const SUMMARY: Group = Group {
    title: "Shares of a core after a cost has changed",
    keys: &[],
    columns: &[
        Column::new("share_error_percent.rise", "error after rise %", 1.0, 1),
        Column::new("share_error_percent.fall", "error after fall %", 1.0, 1),
        Column::new("share_deviation_percent.rise", "deviation after rise", 1.0, 2),
        Column::new("share_deviation_percent.fall", "deviation after fall", 1.0, 2),
        Column::new("share_percent.rise", "share after rise %", 1.0, 1),
        Column::new("target_percent.rise", "target", 1.0, 1),
        Column::new("share_percent.fall", "after fall %", 1.0, 1),
        Column::new("target_percent.fall", "target", 1.0, 1),
    ],
    plotted: 2,
    form: Form::Bars,
};
const CURVE: Group = Group {
    title: "Share of the NF whose cost changes",
    keys: &[],
    columns: &[Column::new("share_percent.nf1", "percent of the core", 1.0, 0)],
    plotted: 1,
    form: Form::Series("time_s"),
};

fn plan() -> Trials {
    let shown: Vec<crate::bench::lab::Shown> =
        vec![(SUMMARY, |v| !v.params.contains_key("time_s")), (CURVE, |v| v.params.contains_key("time_s"))];
    let mut plan = Trials::new(EXPERIMENT.name, nothing, shown);
    for (class, mode) in schedulers().into_iter().flat_map(|class| PARTS.map(|mode| (class, mode))) {
        let (name, of) = (name_of(mode, class), params(&[("cost_ratio", json!(HIGH / LOW))]));
        if let Some(why) = mode.idle_under(class).or_else(|| refused_once(mode, class)) {
            plan.leave_out(&name, of, why);
            continue;
        }
        let (row_name, row_params) = (name.clone(), of.clone());
        let run = move |lab: &Lab| Ok(rows(&row_name, &row_params, &watch(lab, &setup(lab, mode, class))?));
        plan.cases.push(Case { name, params: of, run: Box::new(run) });
    }
    plan
}

/// Why backpressure alone is not run under a scheduler, if so.
fn refused_once(mode: Mode, class: Class) -> Option<&'static str> {
    let again = mode == Mode::Backpressure && class != Class::Other;
    again.then_some("refusing alone moves no shares between chains of one NF, which backpressure/other shows")
}

fn setup(lab: &Lab, mode: Mode, class: Class) -> Setup {
    let core = lab.cores.shared();
    let list = format!("{LOW},{HIGH}");
    let mut setup = Setup { manager_core: lab.manager_core, sched: Some(mode.sched(class)), ..Setup::default() };
    setup.services = vec![nf("nf1", core, &["--cycles", &list, "--pick", "signal"]), nf_of("nf2", core, HIGH)];
    setup.chains = vec![chain_of("c1", &["nf1"]), chain_of("c2", &["nf2"])];
    setup.traffic = vec![traffic_to("c1", EACH_PPS), traffic_to("c2", EACH_PPS)];
    setup
}

/// Measurements of one run.
#[derive(Debug, Clone, PartialEq, Default)]
struct Seen {
    /// Length of a phase in seconds.
    phase_s: f64,
    /// Seconds since the first phase began, and CPU time of both NFs until then in nanoseconds.
    points: Vec<(f64, [u64; 2])>,
    /// Time per packet of each NF in the settled part of each phase, in nanoseconds, where both had
    /// some.
    packet_ns: Vec<Option<[f64; 2]>>,
}

fn settle_s(phase_s: f64) -> f64 {
    SETTLE_S.min(phase_s / 2.0)
}

fn watch(lab: &Lab, setup: &Setup) -> Result<Seen, Miss> {
    let daemon = lab.start(setup)?;
    lab.warm_up()?;
    let first = lab.read(&daemon)?;
    let pid = |name: &str| {
        let nf = first.stats.nfs.iter().find(|nf| nf.name == name);
        nf.and_then(|nf| nf.pid).with_context(|| format!("sluiced names no process for {name}"))
    };
    let pids = [pid("nf1.0")?, pid("nf2.0")?];
    let mut seen = Seen { phase_s: lab.args.seconds, ..Seen::default() };
    let began = Instant::now();
    let mut next_s = 0.0;
    for phase in 0..3 {
        if phase > 0 {
            signal(pids[0])?;
        }
        let from = f64::from(phase) * seen.phase_s;
        until(lab, began, from + settle_s(seen.phase_s), pids, &mut next_s, &mut seen.points)?;
        let settled = lab.read(&daemon)?;
        until(lab, began, from + seen.phase_s, pids, &mut next_s, &mut seen.points)?;
        seen.packet_ns.push(packet_ns(&settled, &lab.read(&daemon)?));
    }
    stop(daemon)?;
    Ok(seen)
}

fn stop(daemon: Daemon) -> Result<(), Miss> {
    Ok(daemon.stop()?)
}

/// Records points until `end` seconds after `began`.
fn until(
    lab: &Lab,
    began: Instant,
    end: f64,
    pids: [u32; 2],
    next_s: &mut f64,
    points: &mut Vec<(f64, [u64; 2])>,
) -> Result<(), Miss> {
    loop {
        let now = began.elapsed().as_secs_f64();
        if now >= *next_s {
            let read = |pid: u32| Task::read(Path::new("/proc"), pid).map(|task| task.run_ns);
            let (Some(a), Some(b)) = (read(pids[0]), read(pids[1])) else {
                return Err(Miss::LeaveOut("this kernel does not report the time of a process (/proc/PID/schedstat)".into()));
            };
            points.push((now, [a, b]));
            *next_s += EVERY_S;
        } else if now >= end {
            return Ok(());
        } else {
            lab.programs.pause(Duration::from_secs_f64((*next_s).min(end) - now))?;
        }
    }
}

fn signal(pid: u32) -> anyhow::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("the daemon names no process")?;
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).context("cannot open the NF's process")?;
    rustix::process::pidfd_send_signal(&process, Signal::USR1).context("cannot send the NF a signal")
}

/// CPU time per packet of both NFs; none if one of them had no packet.
fn packet_ns(before: &Reading, after: &Reading) -> Option<[f64; 2]> {
    let of = |name: &str| {
        let packets = |r: &Reading| r.stats.nfs.iter().find(|nf| nf.name == name).map(|nf| nf.tx_packets);
        let done = packets(after)?.checked_sub(packets(before)?)?;
        let task = after.tasks.since(&before.tasks, name)?;
        (done > 0).then(|| task.run_ns as f64 / done as f64)
    };
    Some([of("nf1.0")?, of("nf2.0")?])
}

/// Share of the first NF between consecutive points, in percent of both, with the later point's
/// time.
fn shares(points: &[(f64, [u64; 2])]) -> Vec<(f64, f64)> {
    let share = |w: &[(f64, [u64; 2])]| {
        let [a, b] = [0, 1].map(|i| w[1].1[i].saturating_sub(w[0].1[i]) as f64);
        (a + b > 0.0).then(|| (w[1].0, a / (a + b) * 100.0))
    };
    points.windows(2).filter_map(share).collect()
}

fn summary(seen: &Seen) -> Sample {
    let shares = shares(&seen.points);
    let between = |from: f64, to: f64| {
        // A share is stamped with its end, and counts if all of it lies within.
        let within = shares.iter().filter(|(end, _)| *end - EVERY_S / 2.0 > from && *end <= to + EVERY_S / 2.0);
        within.map(|(_, share)| *share).collect::<Vec<_>>()
    };
    let mut out = Sample::new();
    for (phase, change) in [(1, "rise"), (2, "fall")] {
        let begin = phase as f64 * seen.phase_s;
        let settled = begin + settle_s(seen.phase_s);
        let end = begin + seen.phase_s;
        let looked = between(settled, end.min(settled + LOOK_S));
        out.extend(deviation(&between(settled, end)).map(|d| (format!("share_deviation_percent.{change}"), d)));
        if !looked.is_empty() {
            out.insert(format!("share_percent.{change}"), mean(&looked));
        }
        let Some([a, b]) = seen.packet_ns.get(phase).copied().flatten() else { continue };
        let target = a / (a + b) * 100.0;
        out.insert(format!("target_percent.{change}"), target);
        if !looked.is_empty() {
            out.insert(format!("share_error_percent.{change}"), (mean(&looked) - target).abs() / target * 100.0);
        }
    }
    out
}

fn rows(name: &str, of: &Params, seen: &Seen) -> Vec<Row> {
    let mut out = vec![Row::new(name, of, summary(seen))];
    for (end, share) in shares(&seen.points) {
        let mut params = of.clone();
        // Rounded to the interval, so that points of several turns coincide.
        params.insert("time_s".into(), json!((end / EVERY_S).round() / (1.0 / EVERY_S)));
        let sample = Sample::from([("share_percent.nf1".into(), share), ("share_percent.nf2".into(), 100.0 - share)]);
        out.push(Row::new(name, &params, sample));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    /// Shares in percent over 100 ms each, in phases of 2 s.
    fn seen(shares: impl Fn(f64) -> f64) -> Seen {
        let (mut points, mut run) = (vec![(0.0, [0, 0])], [0.0, 0.0]);
        for i in 1..=60 {
            let end = f64::from(i) / 10.0;
            let share = shares(end - 0.05);
            run = [run[0] + share * 1e6, run[1] + (100.0 - share) * 1e6];
            points.push((end, run.map(|ns| ns as u64)));
        }
        Seen { phase_s: 2.0, points, packet_ns: [[400.0, 1200.0], [1200.0, 1200.0], [400.0, 1200.0]].map(Some).into() }
    }

    #[test]
    fn shares_that_follow_have_no_error() {
        let got = summary(&seen(|t| if (2.0..4.0).contains(&t) { 50.0 } else { 25.0 }));
        for (metric, want) in [
            ("share_error_percent.rise", 0.0),
            ("share_error_percent.fall", 0.0),
            ("share_deviation_percent.rise", 0.0),
            ("target_percent.rise", 50.0),
            ("target_percent.fall", 25.0),
        ] {
            assert!((got[metric] - want).abs() < 1e-6, "{metric} is {}", got[metric]);
        }
    }

    #[test]
    fn what_happens_before_it_has_settled_does_not_count() {
        // Settles 0.9 s after the change, which is in time; then 2 points off and oscillating.
        let got = summary(&seen(|t| match t {
            t if (2.9..4.0).contains(&t) => 50.0,
            t if t >= 4.9 => 26.0 + if ((t * 10.0) as u64).is_multiple_of(2) { 1.0 } else { -1.0 },
            _ => 25.0,
        }));
        assert!(got["share_error_percent.rise"] < 1e-6);
        assert!((got["share_error_percent.fall"] - 4.0).abs() < 1.0, "{got:?}");
        assert!((got["share_deviation_percent.fall"] - 1.0).abs() < 0.01, "{got:?}");
    }

    #[test]
    fn equal_shares_miss_the_target() {
        let got = summary(&seen(|_| 50.0));
        assert!((got["share_error_percent.fall"] - 100.0).abs() < 1e-6 && got["share_error_percent.rise"] < 1e-6);
    }

    #[test]
    fn one_that_starves_has_a_share_and_no_target() {
        let mut starved = seen(|_| 0.0);
        starved.packet_ns[1] = None;
        let got = summary(&starved);
        assert_eq!((got.get("share_percent.rise"), got.get("target_percent.rise")), (Some(&0.0), None));
        assert!((got["share_error_percent.fall"] - 100.0).abs() < 1e-6 && !got.contains_key("share_error_percent.rise"));
    }

    #[test]
    fn points_are_on_the_beat() {
        let mut seen = seen(|_| 50.0);
        seen.points[3].0 += 0.004;
        let rows = rows("sluice/other", &params(&[]), &seen);
        assert_eq!((rows.len(), &rows[3].params["time_s"]), (61, &json!(0.3)));
        assert_eq!(rows[3].get("share_percent.nf2"), Some(50.0));
        assert!(rows[0].get("target_percent.rise").is_some() && !rows[0].params.contains_key("time_s"));
    }

    #[test]
    fn the_first_nf_changes_by_signal() {
        let setup = setup(&lab(1), Mode::Weights, Class::Batch);
        assert_eq!(setup.services[0].args, ["--cycles", "1000,3000", "--pick", "signal"]);
        assert_eq!(setup.services[1].args, ["--cycles", "3000"]);
        let plan = plan();
        let names: Vec<&str> = plan.cases.iter().map(|case| case.name.as_str()).collect();
        let first = ["default/other", "weights/other", "backpressure/other", "nfvnice/other", "sluice/other", "default/batch"];
        assert_eq!(names[..6], first);
        assert_eq!(names[12..], ["default/rr100", "nfvnice/rr100", "sluice/rr100"]);
        assert_eq!(plan.left_out.len(), 5);
    }
}
