//! `sluice bench repack`: cores in use follow the load.
//!
//! # Approach
//! Four chains of one NF each, with [`CYCLES`] per packet, spread over two cores and repacked by
//! `sluice pack --apply --every`. They need both cores at first (*high*), one core at a quarter of
//! the rates (*low*), and both again (*again*). The rates change by applying another configuration,
//! as an operator would. Metrics of each phase, with the ending `.PHASE`:
//! - `settle_ms`: from the change until the NFs run on as many cores as the load needs;
//! - `cores`: their number; `delivered_ratio`: delivered of offered, in the time after that;
//! - `moving_lost_packets`, `moving_refused_packets`: packets dropped inside and at the entry until
//!   then; `moving_reordered_packets`: packets that a later one of their flow had overtaken;
//!   `moves_count`: moved NFs.
//!
//! # Limits
//! On a host with only two cores, NFs run on the manager's core, too (`shared` is 1). The manager's
//! thread takes half of that core, so both cores are planned up to less than a half
//! (`margin_percent`), and the loads are smaller. The power cost of a core in use is not measured.
//!
//! # Source
//! UNiS (Anthony and Bai), its future work.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;

use super::{Mode, chain_of, nf_of, params, traffic_to};
use crate::bench::daemon::{Daemon, LAB};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::setup::{Class, Setup};
use crate::bench::stats::Window;
use crate::bench::table::{Column, Form, Group};
use sluice_api::model::{NfState, Stats};

pub const EXPERIMENT: Experiment = Experiment {
    name: "repack",
    about: "load falls and a core is freed, load rises and it is taken back (sluice pack --every)",
    run: |args| Lab::measure(args, &[super::COST, LAB], plan),
};

const CHAINS: usize = 4;
/// Cycles per packet.
const CYCLES: u64 = 40_000;
/// Phases, the rate of each in percent of the highest, and the cores it needs.
const PHASES: [(&str, u32, usize); 3] = [("high", 100, 2), ("low", 25, 1), ("again", 100, 2)];
/// Seconds between two rounds of `sluice pack`.
const EVERY_S: f64 = 0.25;
/// Assumed frequency where that of the time-stamp counter is unknown.
const ABOUT_HZ: f64 = 2.5e9;
/// Time limit for NFs to be placed.
const PATIENCE: Duration = Duration::from_secs(60);

const GROUP: Group = Group {
    title: "Cores for four chains whose load falls and rises",
    keys: &["cores_there", "shared"],
    columns: &[
        Column::new("cores.high", "cores, high", 1.0, 0),
        Column::new("cores.low", "low", 1.0, 0),
        Column::new("cores.again", "again", 1.0, 0),
        Column::new("settle_ms.low", "freed after ms", 1.0, 0),
        Column::new("settle_ms.again", "taken back after ms", 1.0, 0),
        Column::new("delivered_ratio.high", "delivered, high", 1.0, 4),
        Column::new("delivered_ratio.low", "low", 1.0, 4),
        Column::new("delivered_ratio.again", "again", 1.0, 4),
        Column::new("moves_count.low", "moves, low", 1.0, 0),
        Column::new("moves_count.again", "again", 1.0, 0),
        Column::new("moving_lost_packets.low", "lost by moves, low", 1.0, 0),
        Column::new("moving_lost_packets.again", "again", 1.0, 0),
        Column::new("moving_reordered_packets.low", "reordered by moves, low", 1.0, 0),
        Column::new("moving_reordered_packets.again", "again", 1.0, 0),
        Column::new("moving_refused_packets.again", "refused meanwhile", 1.0, 0),
    ],
    plotted: 5,
    form: Form::Bars,
};

/// Where NFs may run, and how much of it is planned.
#[derive(Debug, Clone, PartialEq)]
struct Ground {
    cores: [usize; 2],
    /// Whether one of them is the manager's.
    shared: bool,
    /// Part of a core that is kept free, in percent.
    margin: u32,
    /// Highest load of an NF, in cores.
    load: f64,
}

impl Ground {
    fn of(lab: &Lab) -> Self {
        match lab.cores.besides_manager()[..] {
            [one, other, ..] => Self { cores: [one, other], shared: false, margin: 10, load: 0.33 },
            _ => Self { cores: [lab.cores.shared(), lab.manager_core], shared: true, margin: 55, load: 0.17 },
        }
    }
}

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, nothing, vec![(GROUP, |_| true)]);
    let ground = Ground::of(lab);
    let of = params(&[
        ("cores_there", json!(ground.cores.len())),
        ("shared", json!(u8::from(ground.shared))),
        ("margin_percent", json!(ground.margin)),
        ("nfs", json!(CHAINS)),
    ]);
    plan.cases.push(Case::one("pack/every", of, move |lab| watch(lab, &ground)));
    plan
}

/// The chains at a part of their highest rate.
fn setup(lab: &Lab, ground: &Ground, percent: u32) -> Setup {
    let pps = ground.load * lab.tsc_hz().unwrap_or(ABOUT_HZ) / CYCLES as f64 * f64::from(percent) / 100.0;
    let mut setup = Setup { manager_core: lab.manager_core, sched: Some(Mode::Sluice.sched(Class::Other)), ..Setup::default() };
    for i in 0..CHAINS {
        let (service, chain) = (format!("nf{}", i + 1), format!("c{}", i + 1));
        setup.services.push(nf_of(&service, ground.cores[i % 2], CYCLES));
        setup.chains.push(chain_of(&chain, &[&service]));
        setup.traffic.push(traffic_to(&chain, pps));
    }
    setup
}

/// A running `sluice pack --every`; ends with this.
struct Packer {
    child: Child,
    log: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl Packer {
    fn start(lab: &Lab, daemon: &Daemon, ground: &Ground) -> anyhow::Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("sluice-bench-pack-").permissions(crate::bench::daemon::open_to_nfs()).tempdir()?;
        let log = folder.path().join("log");
        let file = File::create(&log)?;
        let mut command = Command::new(lab.programs.path(LAB));
        command.arg("--socket").arg(daemon.socket()).args(["pack", "--apply"]);
        command.args(["--every", &EVERY_S.to_string(), "--margin", &ground.margin.to_string()]);
        command.args(["--cores", &ground.cores.map(|core| core.to_string()).join(",")]);
        let child =
            command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn().context("cannot start sluice pack")?;
        Ok(Self { child, log, _folder: folder })
    }

    /// Its output so far.
    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn moves(&self) -> usize {
        self.said().lines().filter(|line| line.starts_with("moved ")).count()
    }

    fn check(&mut self) -> anyhow::Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "sluice pack has ended: {}", self.said());
        Ok(())
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Number of cores with an NF; none while an NF comes or goes.
fn cores(stats: &Stats) -> Option<usize> {
    let settled = stats.nfs.len() == CHAINS && stats.nfs.iter().all(|nf| nf.state == NfState::Running);
    settled.then(|| stats.nfs.iter().map(|nf| nf.core).collect::<BTreeSet<_>>().len())
}

fn watch(lab: &Lab, ground: &Ground) -> Result<Sample, Miss> {
    let daemon = lab.start(&setup(lab, ground, 100))?;
    lab.warm_up()?;
    let mut packer = Packer::start(lab, &daemon, ground)?;
    let mut out = Sample::new();
    for (phase, percent, needed) in PHASES {
        let (before, moved, began) = (daemon.stats()?, packer.moves(), Instant::now());
        if phase != "high" {
            daemon.apply(&setup(lab, ground, percent))?;
        }
        let what = format!("NFs on {needed} cores at {percent} % of the load");
        let settled = daemon.wait_for(&what, PATIENCE, |daemon| {
            packer.check()?;
            Ok((cores(&daemon.stats()?) == Some(needed)).then_some(()))
        });
        settled.with_context(|| format!("sluice pack says: {}", packer.said()))?;
        out.insert(format!("settle_ms.{phase}"), began.elapsed().as_secs_f64() * 1e3);
        lab.warm_up()?;
        // Counters alone: an NF may leave at any time, because it is moved.
        let first = daemon.stats()?;
        out.extend(of_moves(&before, &first).map(|(metric, n)| (format!("{metric}.{phase}"), n)));
        out.insert(format!("moves_count.{phase}"), (packer.moves() - moved) as f64);
        lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
        let last = daemon.stats()?;
        out.insert(format!("cores.{phase}"), cores(&last).unwrap_or(0) as f64);
        out.insert(format!("delivered_ratio.{phase}"), delivered(&first, &last));
    }
    drop(packer);
    daemon.stop()?;
    Ok(out)
}

/// Packets between two readings: dropped inside, dropped at the entry, overtaken.
fn of_moves(before: &Stats, after: &Stats) -> [(&'static str, f64); 3] {
    let window = Window { before, after };
    let reordered = |stats: &Stats| -> f64 { stats.ports.iter().filter_map(|port| port.details.get("reordered")).sum() };
    [
        ("moving_lost_packets", window.wasted_pps() * window.seconds()),
        ("moving_refused_packets", window.entry_drop_pps() * window.seconds()),
        ("moving_reordered_packets", reordered(after) - reordered(before)),
    ]
    .map(|(metric, packets)| (metric, packets.round()))
}

/// Packets that left all chains, relative to those that arrived.
fn delivered(before: &Stats, after: &Stats) -> f64 {
    let window = Window { before, after };
    let left: f64 = before.chains.iter().map(|chain| window.exit_pps(&chain.name)).sum();
    let came: f64 = (1..=CHAINS).map(|i| window.rx_pps(&format!("to-c{i}"))).sum();
    left / came
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;

    #[test]
    fn the_load_needs_both_cores_high_and_one_low() {
        let lab = lab(1);
        let ground = Ground::of(&lab);
        let capacity = 1.0 - f64::from(ground.margin) / 100.0;
        for (phase, percent, needed) in PHASES {
            let load = ground.load * CHAINS as f64 * f64::from(percent) / 100.0;
            // Also where the processor is a quarter slower than during calibration.
            for load in [load, load * 1.25] {
                assert_eq!((load / capacity).ceil() as usize, needed, "{phase} {load}");
            }
        }
        assert_accepted(&setup(&lab, &ground, 25), &[super::super::COST]);
    }

    #[test]
    fn cores_are_counted_when_all_run() {
        let stats = |nfs: &[(u32, &str)]| -> Stats {
            let nfs: Vec<_> = nfs.iter().map(|(core, state)| json!({"core": core, "state": state})).collect();
            crate::bench::stats::tests::partial(json!({ "nfs": nfs }))
        };
        assert_eq!(cores(&stats(&[(1, "running"), (1, "running"), (2, "running"), (1, "running")])), Some(2));
        assert_eq!(cores(&stats(&[(1, "running"), (1, "running"), (1, "starting"), (1, "running")])), None);
        assert_eq!(cores(&stats(&[(1, "running")])), None);
    }
}
