//! `sluice bench overhead`: the cost of tuning, by part and in total.
//!
//! # Approach
//! - `sample`: reading the clock twice and counting the difference, as an NF does once a
//!   millisecond; in this process.
//! - `weight-write`: writing a group's weight on an open file, in a group that is created for it
//!   and removed afterwards.
//! - `wake`: ringing the doorbell of a thread that sleeps on the NFs' core: the caller's time, and
//!   the time until it runs.
//! - `preempt`: the same while another thread keeps that core busy, and how long that one does not
//!   have it.
//! - `switch`: two threads on that core that wake each other alternately: the time of one switch.
//! - `packet`: what a packet takes outside of handlers, of an NF's core and of the manager, and how
//!   often and how long other processes have an NF's core ([`packet_costs`](super::packet_costs)),
//!   measured once.
//! - `tuned` and `untuned`: the chain of 120, 270 and 550 at a fixed rate that it can carry, with
//!   weights, backpressure and ECN on and off, hand-over on in both: CPU time per packet
//!   (`nf_ns_per_packet`), the manager's load, and the controller's share of it
//!   (`controller_busy_percent`).
//!
//! Times are medians of [`TIMES`] repetitions. The simulator takes those of `wake`, `preempt`,
//! `switch` and `packet` ([`simulated`](super::simulated)).
//!
//! # Source
//! NFVnice, section 4.3.8 (overheads). The daemon cannot disable sampling, so `sample` replaces a
//! run without it.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use serde_json::json;
use sluice_shm::clock::{Clock, monotonic_ns};
use sluice_shm::histogram::Histogram;

use super::chain::hops;
use super::host_costs::{PREEMPTIONS, Preemption, TIMES, WAKES, middle, preemptions, switches, wakes};
use super::packet_costs::MeasuredCosts;
use super::{COST, Mode, line, params};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::Sample;
use crate::bench::setup::{Class, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "overhead",
    about: "cost of a sample, a weight write, a wake, and of all tuning (section 4.3.8)",
    run: |args| Lab::measure(args, &[COST], plan),
};

/// Packets per second through the chain: less than half of what a core at 2 GHz can carry.
const PPS: f64 = 500_000.0;
const CGROUPS: &str = "/sys/fs/cgroup";

const SMALL: Group = Group {
    title: "Single steps",
    keys: &[],
    columns: &[
        Column::new("sample_ns", "sample ns", 1.0, 1),
        Column::new("weight_write_ns", "weight write ns", 1.0, 0),
        Column::new("wake_caller_ns", "wake, caller ns", 1.0, 0),
        Column::new("wake_ns", "until it runs ns", 1.0, 0),
        Column::new("switch_ns", "switch ns", 1.0, 0),
        Column::new("preempt_ns", "preempted for ns", 1.0, 0),
        Column::new("hop_cycles", "NF cycles/packet", 1.0, 1),
        Column::new("nf_mhz", "NF cycles/µs", 1.0, 0),
        Column::new("entry_ns", "manager, entry ns", 1.0, 1),
        Column::new("pass_ns", "manager, hop ns", 1.0, 1),
        Column::new("round_ns", "manager, round ns", 1.0, 0),
        Column::new("others_per_s", "other processes/s", 1.0, 0),
        Column::new("others_ns", "each for ns", 1.0, 0),
        Column::new("core_percent", "% of a core at the default period", 1.0, 4),
    ],
    plotted: 5,
    form: Form::Bars,
};
const WHOLE: Group = Group {
    title: "A chain of costs 120, 270 and 550 at half a million packets a second",
    keys: &[],
    columns: &[
        Column::new("nf_ns_per_packet", "NFs' ns/packet", 1.0, 1),
        Column::new("of_untuned", "of untuned", 1.0, 4),
        Column::new("manager_busy_percent", "manager busy %", 1.0, 1),
        Column::new("controller_busy_percent", "controller %", 1.0, 3),
        Column::new("delivered_pps", "delivered kpps", 1e3, 1),
    ],
    plotted: 3,
    form: Form::Bars,
};

fn plan(lab: &Lab) -> Trials {
    let shown: Vec<crate::bench::lab::Shown> = vec![(SMALL, |v| !v.name.contains('/')), (WHOLE, |v| v.name.contains('/'))];
    let mut plan = Trials::new(EXPERIMENT.name, derive, shown);
    let times = |n: usize| params(&[("times", json!(n))]);
    plan.cases.push(Case::one("sample", times(TIMES), |_| Ok(samples())));
    plan.cases.push(Case::one("weight-write", times(TIMES), |_| weight_writes(Path::new(CGROUPS))));
    plan.cases.push(Case::one("wake", times(WAKES), |lab| {
        let (caller_ns, until_ns) = wakes(lab.manager_core, lab.cores.shared())?;
        Ok(Sample::from([("wake_caller_ns".into(), caller_ns), ("wake_ns".into(), until_ns)]))
    }));
    plan.cases
        .push(Case::one("switch", times(TIMES), |lab| Ok(Sample::from([("switch_ns".into(), switches(lab.cores.shared())?)]))));
    plan.cases.push(Case::one("preempt", times(PREEMPTIONS), |lab| {
        let Preemption { caller_ns, until_ns, lost_ns } = preemptions(lab.manager_core, lab.cores.shared())?;
        let named = [("wake_caller_ns", caller_ns), ("wake_ns", until_ns), ("preempt_ns", lost_ns)];
        Ok(Sample::from(named.map(|(name, ns)| (name.to_string(), ns))))
    }));
    plan.cases.push(Case::one("packet", params(&[]), |lab| {
        let MeasuredCosts { nf, manager, others, unset, .. } = MeasuredCosts::here(lab);
        let named = [
            ("hop_cycles", nf.map(|nf| nf.hop_cycles)),
            ("nf_mhz", nf.map(|nf| nf.mhz)),
            ("entry_ns", manager.map(|manager| manager.entry_ns)),
            ("pass_ns", manager.map(|manager| manager.pass_ns)),
            ("round_ns", manager.map(|manager| manager.round_ns)),
            ("others_per_s", others.map(|others| others.per_s)),
            ("others_ns", others.map(|others| others.has_ns)),
        ];
        let sample: Sample = named.into_iter().filter_map(|(name, cost)| Some((name.to_string(), cost?))).collect();
        if sample.is_empty() { Err(Miss::LeaveOut(unset.join("; "))) } else { Ok(sample) }
    }));
    for (name, tuned) in [("untuned/other", false), ("tuned/other", true)] {
        plan.cases.push(Case::flow(name, params(&[("rate_pps", json!(PPS))]), setup(lab, tuned)));
    }
    plan
}

fn setup(lab: &Lab, tuned: bool) -> Setup {
    let mut setup = line(lab, Mode::Sluice, Class::Other, &hops(lab));
    setup.traffic.iter_mut().for_each(|traffic| traffic.rate = PPS);
    if let Some(sched) = setup.sched.as_mut().filter(|_| !tuned) {
        (sched.weights, sched.backpressure, sched.ecn) = (false, false, false);
    }
    setup
}

fn derive(rows: &mut [Row]) -> Vec<Row> {
    let untuned = rows.iter().find(|row| row.name.starts_with("untuned")).and_then(|row| row.get("nf_ns_per_packet"));
    for row in rows.iter_mut().filter(|row| row.name.starts_with("tuned")) {
        let ratio = row.get("nf_ns_per_packet").zip(untuned).map(|(ns, base)| ns / base);
        row.put("of_untuned", ratio);
    }
    Vec::new()
}

fn samples() -> Sample {
    let (clock, mut histogram) = (Clock::new(), Histogram::default());
    // A hundred at a time: one is shorter than the clock's resolution.
    let mut one = || {
        let began = monotonic_ns();
        for _ in 0..100 {
            let start = clock.now_ns();
            histogram.record(black_box(clock.now_ns()).saturating_sub(start));
        }
        (monotonic_ns().saturating_sub(began)) as f64 / 100.0
    };
    let ns = middle((0..TIMES).map(|_| one()).collect());
    black_box(&histogram);
    // One per millisecond.
    Sample::from([("sample_ns".into(), ns), ("core_percent".into(), ns * 1e3 / 1e9 * 100.0)])
}

/// An empty control group of this process; removed on drop.
struct CpuGroup {
    folder: PathBuf,
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.folder) {
            eprintln!("sluice bench: cannot remove {}: {error}", self.folder.display());
        }
    }
}

/// The folder for groups with weights, the weight file of a group, and two weights.
fn weights_below(root: &Path) -> Option<(PathBuf, &'static str, [u32; 2])> {
    let v1 = [root.join("cpu"), root.join("cpu,cpuacct")].into_iter().find(|folder| folder.join("cpu.shares").exists());
    let v2 = || {
        let has = std::fs::read_to_string(root.join("cgroup.subtree_control")).ok()?;
        has.split_ascii_whitespace().any(|controller| controller == "cpu").then(|| root.to_path_buf())
    };
    v1.map(|folder| (folder, "cpu.shares", [1024, 2048])).or_else(|| Some((v2()?, "cpu.weight", [100, 200])))
}

fn weight_writes(root: &Path) -> Result<Sample, Miss> {
    let leave_out = |why: String| Miss::LeaveOut(why);
    let (below, name, weights) = weights_below(root)
        .ok_or_else(|| leave_out(format!("no cpu controller below {}; mount it, or enable it for children", root.display())))?;
    let folder = below.join(format!("sluice-bench-{}", std::process::id()));
    std::fs::create_dir(&folder)
        .map_err(|error| leave_out(format!("cannot make {}: {error}; run it as root", folder.display())))?;
    let group = CpuGroup { folder };
    let path = group.folder.join(name);
    let file =
        File::options().write(true).open(&path).map_err(|error| leave_out(format!("cannot open {}: {error}", path.display())))?;
    let mut times = Vec::with_capacity(TIMES);
    for i in 0..TIMES {
        let text = weights[i % 2].to_string();
        let began = Instant::now();
        file.write_at(text.as_bytes(), 0).with_context(|| format!("cannot write {}", path.display()))?;
        times.push(began.elapsed().as_nanos() as f64);
    }
    let ns = middle(times);
    // One per ten milliseconds, for one NF.
    Ok(Sample::from([("weight_write_ns".into(), ns), ("core_percent".into(), ns * 100.0 / 1e9 * 100.0)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    #[test]
    fn tuning_is_all_that_differs() {
        let lab = lab(1);
        let [tuned, untuned] = [true, false].map(|tuned| setup(&lab, tuned));
        assert_ne!(tuned.sched, untuned.sched);
        assert_eq!(Setup { sched: None, ..tuned }, Setup { sched: None, ..untuned.clone() });
        assert!(untuned.sched.unwrap().handover);
        assert_eq!(plan(&lab).cases.len(), 8);
    }

    #[test]
    fn tuned_is_compared_with_untuned() {
        let row = |name: &str, ns: f64| Row::new(name, &params(&[]), Sample::from([("nf_ns_per_packet".into(), ns)]));
        let mut rows = vec![row("untuned/other", 400.0), row("tuned/other", 440.0)];
        derive(&mut rows);
        assert!((rows[1].get("of_untuned").unwrap() - 1.1).abs() < 1e-9);
        assert_eq!(rows[0].get("of_untuned"), None);
    }

    #[test]
    fn the_controller_is_found_in_either_version() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(weight_writes(root.path()), Err(Miss::LeaveOut(why)) if why.starts_with("no cpu controller")));
        std::fs::write(root.path().join("cgroup.subtree_control"), "memory cpu\n").unwrap();
        assert_eq!(weights_below(root.path()).unwrap(), (root.path().into(), "cpu.weight", [100, 200]));
        std::fs::create_dir(root.path().join("cpu")).unwrap();
        std::fs::write(root.path().join("cpu/cpu.shares"), "1024\n").unwrap();
        assert_eq!(weights_below(root.path()).unwrap(), (root.path().join("cpu"), "cpu.shares", [1024, 2048]));
        // On a fake tree a new folder has no such file: the case is left out, and nothing stays.
        assert!(matches!(weight_writes(root.path()), Err(Miss::LeaveOut(why)) if why.starts_with("cannot open")));
        assert_eq!(std::fs::read_dir(root.path().join("cpu")).unwrap().count(), 1);
    }

    #[test]
    fn single_steps_take_some_time() {
        let cores = crate::bench::host::Cores::here();
        assert!(samples()["sample_ns"] > 0.0);
        assert!(switches(cores.shared()).unwrap() > 0.0);
        if let Ok(manager) = cores.manager() {
            let (caller_ns, until_ns) = wakes(manager, cores.shared()).unwrap();
            assert!(until_ns > 0.0 && caller_ns > 0.0);
            let preemption = preemptions(manager, cores.shared()).unwrap();
            assert!(preemption.caller_ns > 0.0 && preemption.lost_ns > 0.0, "{preemption:?}");
        } else {
            crate::skip::skip("there is one core, and so nobody is woken on another");
        }
    }
}
