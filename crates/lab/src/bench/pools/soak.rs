//! `sluice bench soak`: flow churn with killed NFs must leave nothing behind.
//!
//! # Approach
//! As `flow-churn`, for the requested time (the product must endure ten minutes); every
//! [`KILL_EVERY`] a member of the pool is killed. Memory of the daemon and shared memory of the
//! host are read every [`LOOK_EVERY`]. Then the generator is removed, and the last flows end or
//! time out. What exists is compared with what existed after warm-up: frames outside of pools, flow
//! entries, processes, descriptors of the daemon and cgroups. Anything left fails the run, and so
//! does memory that grows: `memory_growth_percent` is the median of the last quarter against that
//! of the second quarter, and must stay about 0.
//!
//! # Limits
//! Packets in a killed NF are lost with it, and its flow continues with another NF: `mixed_pps`
//! counts such packets here.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{CHAIN, POOL, calm, churn};
use crate::bench::daemon::Daemon;
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::report::median;
use crate::bench::sched::params;
use crate::bench::stats::Window;
use crate::bench::table::{Column, Form, Group};
use sluice_api::model::{NfState, Stats};

pub const EXPERIMENT: Experiment =
    Experiment { name: "soak", about: "flows come and go, NFs are killed, nothing may be left behind (--seconds 600)", run };

/// Flows per second, and packets of each: what `flow-churn` carries without loss, less the cost of
/// replacing killed NFs.
const FLOWS: (u32, u32) = (50_000, 10);
const KILL_EVERY: Duration = Duration::from_millis(250);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time limit for the last flows to end and killed members to be replaced.
const PATIENCE: Duration = Duration::from_secs(120);

const GROUP: Group = Group {
    title: "Flows that come and go while NFs are killed",
    keys: &["offered", "flow_packets"],
    columns: &[
        Column::new("activations_per_s", "activations/s", 1.0, 0),
        Column::new("delivered_pps", "delivered Mpps", 1e6, 3),
        Column::new("killed_count", "killed", 1.0, 0),
        Column::new("restarts_count", "started again", 1.0, 0),
        Column::new("left_frames_count", "frames left", 1.0, 0),
        Column::new("left_flows_count", "flows", 1.0, 0),
        Column::new("left_processes_count", "processes", 1.0, 0),
        Column::new("left_descriptors_count", "descriptors", 1.0, 0),
        Column::new("left_cgroups_count", "cgroups", 1.0, 0),
        Column::new("memory_bytes", "MiB", 1_048_576.0, 1),
        Column::new("memory_growth_percent", "growth %", 1.0, 2),
    ],
    plotted: 1,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[churn::NF])?;
    super::warn_of_small_pages();
    let mut plan = Trials::new(EXPERIMENT.name, nothing, vec![(GROUP, |_| true)]);
    let (flows, packets) = FLOWS;
    let of = params(&[("offered", flows.into()), ("flow_packets", packets.into())]);
    plan.cases.push(Case::one("killed", of, soak));
    lab.run(&plan)
}

/// Counts of things that could be left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Things {
    frames: u64,
    flows: u64,
    processes: u64,
    descriptors: u64,
    cgroups: u64,
}

/// Number of processes with this parent.
fn children(parent: u32) -> anyhow::Result<u64> {
    let is_child = |folder: PathBuf| {
        let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
        // The name is in brackets, and may contain brackets.
        let rest = stat.rsplit_once(')')?.1;
        (rest.split_ascii_whitespace().nth(1)?.parse() == Ok(parent)).then_some(())
    };
    Ok(std::fs::read_dir("/proc")?.flatten().filter_map(|entry| is_child(entry.path())).count() as u64)
}

fn folders(of: &Path) -> u64 {
    std::fs::read_dir(of).map_or(0, |entries| entries.flatten().filter(|e| e.path().is_dir()).count() as u64)
}

/// Number of cgroups beside that of a process, in all of its hierarchies.
fn cgroups(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let beside = |line: &str| {
        let mut words = line.splitn(3, ':').skip(1);
        let (controllers, path) = (words.next()?, words.next()?);
        let parent = Path::new(path.trim_start_matches('/')).parent()?.to_path_buf();
        // Excludes those of the whole host, in a hierarchy where the daemon creates none.
        let mount = if controllers.is_empty() { "unified" } else { controllers };
        let roots = [Path::new("/sys/fs/cgroup").join(mount), PathBuf::from("/sys/fs/cgroup")];
        let root = roots.iter().find(|root| root.join(&parent).is_dir()).filter(|_| parent != Path::new(""))?;
        Some(folders(&root.join(parent)))
    };
    text.lines().filter_map(beside).sum()
}

/// Valid once all members are idle.
fn things(daemon: &Daemon) -> anyhow::Result<Things> {
    let stats = daemon.stats()?;
    let pid = stats.status.pid;
    let an_nf = stats.nfs.iter().find_map(|nf| nf.pid).context("no NF runs")?;
    Ok(Things {
        // Frames in no pool, whatever their recorded holder.
        frames: stats.status.memories.iter().map(|memory| memory.frames - memory.free.min(memory.frames)).sum(),
        flows: stats.status.flows,
        processes: children(pid)?,
        descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
        cgroups: cgroups(an_nf),
    })
}

/// Bytes of memory: the daemon's own, and shared memory of the host.
fn memory(pid: u32) -> anyhow::Result<f64> {
    let field = |file: &str, name: &str| -> anyhow::Result<f64> {
        let text = std::fs::read_to_string(file)?;
        let kib = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
        Ok(kib.with_context(|| format!("{file} has no {name}"))? * 1024.0)
    };
    Ok(field(&format!("/proc/{pid}/status"), "RssAnon:")? + field("/proc/meminfo", "Shmem:")?)
}

fn wait_for_calm(daemon: &Daemon, members: u32) -> anyhow::Result<()> {
    daemon.wait_for("all NFs idle and no flow", PATIENCE, |daemon| {
        let stats = daemon.stats()?;
        let pool = stats.status.pools.iter().find(|pool| pool.service == POOL);
        let all_idle = pool.is_some_and(|pool| pool.idle == u64::from(members) && pool.size == members);
        let all_run = stats.nfs.iter().all(|nf| nf.state == NfState::Running);
        Ok((all_idle && all_run && stats.status.flows == 0).then_some(()))
    })
}

/// Kills a process; false if it had ended.
pub fn kill(pid: u32) -> anyhow::Result<bool> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("the daemon names no process")?;
    // It may have been killed already, without the daemon's knowledge.
    let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return Ok(false) };
    Ok(rustix::process::pidfd_send_signal(&process, Signal::KILL).is_ok())
}

fn soak(lab: &Lab) -> Result<Sample, Miss> {
    let (flows, packets) = FLOWS;
    let mut setup = churn::setup(lab, f64::from(flows), churn::CROWDS[1], packets);
    let pool = setup.services[0].pool.as_mut().context("the setup has no pool")?;
    pool.idle_ms = Some(1_000);
    let members = pool.members.0;
    let daemon = lab.start(&calm(&setup))?;
    // One full cycle first, so that everything created on first use exists.
    daemon.apply(&setup)?;
    lab.warm_up()?;
    daemon.apply(&calm(&setup))?;
    wait_for_calm(&daemon, members)?;
    let at_first = things(&daemon)?;

    daemon.apply(&setup)?;
    let before = daemon.stats()?;
    let pid = before.status.pid;
    let began = Instant::now();
    let (mut killed, mut looked, mut memories) = (0u64, Duration::ZERO, Vec::new());
    // Any order independent of the members will do; a fixed one is easier to debug.
    let mut draw = 0x9e37_79b9_7f4a_7c15u64;
    while began.elapsed().as_secs_f64() < lab.args.seconds {
        lab.programs.pause(KILL_EVERY)?;
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (draw >> 33) % u64::from(members);
        // One request per victim: a list of all NFs would be most of the daemon's work.
        if let Some(victim) = daemon.nf(&format!("{POOL}.{number}")).ok().and_then(|nf| nf.pid) {
            killed += u64::from(kill(victim)?);
        }
        if began.elapsed() >= looked + LOOK_EVERY {
            looked = began.elapsed();
            memories.push(memory(pid)?);
        }
    }
    let after = daemon.stats()?;
    daemon.apply(&calm(&setup))?;
    wait_for_calm(&daemon, members)?;
    let at_last = things(&daemon)?;
    let out = outcome(&Seen { before: &before, after: &after, at_first, at_last, killed, memories: &memories });
    ensure_nothing_left(&out)?;
    daemon.stop()?;
    Ok(out)
}

/// Observations of a run.
struct Seen<'a> {
    before: &'a Stats,
    after: &'a Stats,
    at_first: Things,
    at_last: Things,
    killed: u64,
    memories: &'a [f64],
}

fn outcome(seen: &Seen<'_>) -> Sample {
    let window = Window { before: seen.before, after: seen.after };
    let mut out = Sample::new();
    let mut put = |metric: &str, value: f64| {
        out.insert(metric.into(), value);
    };
    let (first, last) = (seen.at_first, seen.at_last);
    let more = |of: fn(&Things) -> u64| of(&last) as f64 - of(&first) as f64;
    put("left_frames_count", last.frames as f64);
    put("left_flows_count", last.flows as f64);
    put("left_processes_count", more(|t| t.processes));
    put("left_descriptors_count", more(|t| t.descriptors));
    put("left_cgroups_count", more(|t| t.cgroups));
    put("killed_count", seen.killed as f64);
    put("restarts_count", seen.after.nfs.iter().map(|nf| nf.restarts).sum::<u64>() as f64);
    put("delivered_pps", window.exit_pps(CHAIN));
    if let Some((then, now)) = window.pool(POOL) {
        put("activations_per_s", (now.activations - then.activations) as f64 / window.seconds());
    }
    let quarter = seen.memories.len() / 4;
    if quarter > 0 {
        let middle = |part: &[f64]| {
            let mut part = part.to_vec();
            part.sort_by(f64::total_cmp);
            median(&part)
        };
        let (early, late) = (middle(&seen.memories[quarter..2 * quarter]), middle(&seen.memories[3 * quarter..]));
        put("memory_bytes", late);
        put("memory_growth_percent", (late / early - 1.0) * 100.0);
    }
    out
}

/// Allowed growth of memory in the last half, in percent: noise in the daemon's few hundred MiB.
const FLAT_PERCENT: f64 = 2.0;

fn ensure_nothing_left(out: &Sample) -> anyhow::Result<()> {
    let of = |metric: &str| out.get(metric).copied().unwrap_or(0.0);
    ensure!(of("killed_count") > 0.0, "no NF was killed: the run was too short to show anything");
    let growth = of("memory_growth_percent");
    ensure!(growth <= FLAT_PERCENT, "memory grew by {growth:.1} % from the second quarter to the last");
    for (metric, n) in out.iter().filter(|(metric, _)| metric.starts_with("left_")) {
        ensure!(*n <= 0.0, "after the last flow there are {n} more than before: {metric}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;

    const NONE: Things = Things { frames: 0, flows: 0, processes: 9, descriptors: 50, cgroups: 8 };

    fn of(at_last: Things, memories: &[f64]) -> Sample {
        let stats = Stats::default();
        outcome(&Seen { before: &stats, after: &stats, at_first: NONE, at_last, killed: 3, memories })
    }

    #[test]
    fn whatever_is_left_behind_fails_the_run() {
        assert!(ensure_nothing_left(&of(NONE, &[])).is_ok());
        for left in [
            Things { frames: 1, ..NONE },
            Things { flows: 2, ..NONE },
            Things { processes: 10, ..NONE },
            Things { descriptors: 51, ..NONE },
            Things { cgroups: 9, ..NONE },
        ] {
            assert!(ensure_nothing_left(&of(left, &[])).is_err(), "{left:?}");
        }
    }

    #[test]
    fn growth_is_that_of_the_last_quarter() {
        let out = of(NONE, &[50.0, 50.0, 100.0, 100.0, 100.0, 103.0, 110.0, 110.0]);
        assert_eq!(out["memory_growth_percent"].round(), 10.0);
        assert!(!of(NONE, &[1.0]).contains_key("memory_growth_percent"));
        let error = ensure_nothing_left(&out).unwrap_err().to_string();
        assert_eq!(error, "memory grew by 10.0 % from the second quarter to the last");
        let mut nobody = of(NONE, &[]);
        nobody.insert("killed_count".into(), 0.0);
        assert!(ensure_nothing_left(&nobody).is_err(), "nothing happened");
    }

    #[test]
    fn this_process_has_itself_and_its_children() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(children(std::process::id()).unwrap() >= 1);
        assert!(memory(std::process::id()).unwrap() > 0.0);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_calm_before_and_after_is_accepted() {
        assert_accepted(&calm(&churn::setup(&lab(1), 60.0, churn::CROWDS[1], 10)), &[churn::NF]);
    }
}
