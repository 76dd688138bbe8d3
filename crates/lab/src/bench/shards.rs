//! `sluice bench shards`: what more packet threads carry, each with NFs and queues of its own.
//!
//! # Approach
//! Three bridges, of which each shard has instances of its own. The generator is as fast as it can
//! be, with 16 flows a shard; packets have 64 bytes on the wire; what finds no room is dropped at
//! the entry. A shard's queue of the generator and of the sink are in its thread.
//! - `inline`: the bridges run in the shards' threads, so n shards need n cores.
//! - `inline-needed`: the same with `flow_table = "needed"`.
//! - `isolated`: the bridges are processes that share a core for each shard: 2 n cores.
//! - `all-shards`: as `isolated`, but each process serves all shards (`all_shards = true`), so
//!   that several threads post to its rings and take its credits.
//! - `daemons`: as `inline`, with a daemon of its own for each core. They share nothing but the
//!   host, so this is what it gives to threads that share nothing.
//!
//! Deliveries are relative to those of one shard in the same turn (`of_one`), and those of `inline`
//! to those of as many `daemons` (`of_daemons`).
//!
//! # Limits
//! The generator makes its packets in the shards' threads, and its work scales as theirs does.

use std::fmt::Write;
use std::time::Duration;

use serde_json::json;

use crate::bench::daemon::Daemon;
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::{Sample, sample};
use crate::bench::report::Params;
use crate::bench::setup::{SINK, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "shards",
    about: "three bridges in 1, 2, 4 and 8 shards, on as many cores or twice as many",
    run: |args| Lab::measure(args, &[NF], plan),
};

const NF: &str = "sluice-nf-bridge";
const NFS: usize = 3;
const NUMBERS: [usize; 4] = [1, 2, 4, 8];
const FLOWS_EACH: usize = 16;
const DELIVERED: &str = "delivered_pps";
const DAEMONS: &str = "daemons";
/// What is added up over daemons.
const SUMMED: [&str; 3] = [DELIVERED, "entry_drop_pps", "wasted_pps"];

/// How the bridges run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Inline,
    Needed,
    Isolated,
    AllShards,
}

const VARIANTS: [(&str, How); 4] =
    [("inline", How::Inline), ("inline-needed", How::Needed), ("isolated", How::Isolated), ("all-shards", How::AllShards)];

impl How {
    fn is_inline(self) -> bool {
        matches!(self, How::Inline | How::Needed)
    }
}

const GROUP: Group = Group {
    title: "Three bridges in several shards",
    keys: &["shards"],
    columns: &[
        Column::new(DELIVERED, "delivered Mpps", 1e6, 2),
        Column::new("of_one", "of one shard", 1.0, 2),
        Column::new("of_daemons", "of daemons", 1.0, 2),
        Column::new("entry_drop_pps", "entry drops Mpps", 1e6, 2),
        Column::new("wasted_pps", "wasted pps", 1.0, 0),
    ],
    plotted: 2,
    form: Form::Bars,
};

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, compare, vec![(GROUP, |_| true)]);
    for shards in NUMBERS {
        if let Ok(others) = lab.cores.own(shards - 1) {
            let cores: Vec<usize> = [lab.manager_core].into_iter().chain(others.iter().copied()).collect();
            plan.cases.push(Case::one(DAEMONS, params(shards), move |lab| daemons(lab, &cores)));
        }
        for (name, how) in VARIANTS {
            let params = params(shards);
            let needed = if how.is_inline() { shards } else { 2 * shards };
            match lab.cores.own(needed - 1) {
                Ok(others) => {
                    let cores: Vec<usize> = [lab.manager_core].into_iter().chain(others.iter().copied()).collect();
                    plan.cases.push(Case::flow(name, params, setup(how, shards, &cores)));
                }
                Err(why) => plan.leave_out(name, params, why),
            }
        }
    }
    plan
}

fn params(shards: usize) -> Params {
    Params::from([("shards".to_string(), json!(shards)), ("nfs".to_string(), json!(NFS))])
}

/// Packets through a daemon of one shard on each of these cores, all at the same time.
fn daemons(lab: &Lab, cores: &[usize]) -> Result<Sample, Miss> {
    let setups: Vec<Setup> = cores.iter().map(|core| setup(How::Inline, 1, &[*core])).collect();
    let daemons = setups.iter().map(|setup| lab.start(setup)).collect::<Result<Vec<_>, _>>()?;
    lab.warm_up()?;
    let before = daemons.iter().map(|daemon| lab.read(daemon)).collect::<Result<Vec<_>, _>>()?;
    lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
    let after = daemons.iter().map(|daemon| lab.read(daemon)).collect::<Result<Vec<_>, _>>()?;
    daemons.into_iter().try_for_each(Daemon::stop)?;
    let mut all = Sample::new();
    for (setup, (before, after)) in setups.iter().zip(before.iter().zip(&after)) {
        let of_one = sample(setup, before, after);
        for metric in SUMMED {
            *all.entry(metric.to_string()).or_default() += of_one.get(metric).copied().unwrap_or_default();
        }
    }
    Ok(all)
}

/// The shards are on the first cores, the processes on the others.
fn setup(how: How, shards: usize, cores: &[usize]) -> Setup {
    let (threads, processes) = cores.split_at(shards);
    let mut more = format!(
        "[[port]]\nname = \"in\"\nkind = \"gen\"\nsize = 60\nqueues = {shards}\nflows = {}\noverload = \"drop\"\n",
        FLOWS_EACH * shards
    );
    let names: Vec<String> = (1..=NFS).map(|i| format!("b{i}")).collect();
    for name in &names {
        let keys = match how {
            How::Inline | How::Needed => "trusted = true\n".into(),
            How::Isolated => format!("instances = {shards}\ncores = {processes:?}\n"),
            How::AllShards => format!("instances = {shards}\ncores = {processes:?}\nall_shards = true\n"),
        };
        let _ = write!(more, "[[service]]\nname = \"{name}\"\nexec = \"{NF}\"\nring = 2048\n{keys}");
    }
    let run = if how.is_inline() { "inline" } else { "isolated" };
    let _ = write!(
        more,
        "[[chain]]\nname = \"c\"\nservices = {names:?}\negress = \"{SINK}\"\nrun = \"{run}\"\n[[rule]]\nport = \"in\"\nchain = \"c\"\n"
    );
    let manager = if how == How::Needed { "flow_table = \"needed\"\n" } else { "" };
    Setup { shards: threads.to_vec(), frames: 16_384 * shards as u32, manager, more, ..Setup::default() }
}

/// Deliveries relative to those of one shard, and to those of as many daemons.
fn compare(rows: &mut [Row]) -> Vec<Row> {
    let all = rows.to_vec();
    let of = |name: &str, shards: &serde_json::Value| {
        all.iter().find(|row| row.name == name && row.params["shards"] == *shards).and_then(|row| row.get(DELIVERED))
    };
    for row in rows {
        let (own, shards) = (row.get(DELIVERED), row.params["shards"].clone());
        row.put("of_one", own.zip(of(&row.name, &json!(1))).map(|(own, one)| own / one));
        let apart = own.zip(of(DAEMONS, &shards)).filter(|_| row.name == "inline");
        row.put("of_daemons", apart.map(|(own, apart)| own / apart));
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;

    #[test]
    fn the_daemon_accepts_each_variant() {
        for (_, how) in VARIANTS {
            for shards in NUMBERS {
                let text = setup(how, shards, &(0..2 * shards).collect::<Vec<_>>()).toml(std::path::Path::new("/run/x"));
                let checked = sluice_config::load::parse(&text, "x.toml");
                assert!(checked.is_ok(), "{:?}", checked.err());
            }
            // One that this host has the cores for.
            assert_accepted(&setup(how, 1, &[0, 0]), &[NF]);
        }
    }

    #[test]
    fn more_shards_are_compared_with_one_of_the_same_kind() {
        let row = |name: &str, shards: u32, pps: f64| {
            let params = Params::from([("shards".to_string(), json!(shards))]);
            Row::new(name, &params, [(DELIVERED.to_string(), pps)].into())
        };
        let mut rows = [row("inline", 1, 10.0), row("isolated", 1, 5.0), row("daemons", 2, 20.0), row("inline", 2, 19.0)];
        assert!(compare(&mut rows).is_empty());
        assert_eq!(rows.each_ref().map(|row| row.get("of_one")), [Some(1.0), Some(1.0), None, Some(1.9)]);
        assert_eq!(rows.map(|row| row.get("of_daemons")), [None, None, None, Some(0.95)]);
    }
}
