//! `sluice bench controllers`: switches between processes, by mechanism.
//!
//! # Approach
//! Two busy processes share a core; a third, on the manager's core, switches between them. All
//! three are this host's `sluiced`, started as helpers, so the switching code is the daemon's own.
//! They publish times of the time-stamp counter in shared memory:
//! - `switch_cost_ns_p50`, `_p95`: cost of a switch to its caller;
//! - `old_stops_ns_p50`, `_p95`: from the start of the switch until the old process ran for the
//!   last time;
//! - `new_runs_ns_p50`, `_p95`: until the new one runs;
//! - `missed_percent`: switches without effect within 20 ms, or after which the old process
//!   continued;
//! - `right_percent` of each slice length: slices at whose end the right process had run last, of
//!   those in which one of the two ran; `shortest_slice_us`: the shortest slice at which, and at
//!   all longer ones, that is 90 % or more.
//!
//! A mechanism that the host forbids is left out, with the daemon's reason.
//!
//! # Limits
//! Other load of the two cores is measured, too. Slices are at most a millisecond: longer ones are
//! no challenge to a mechanism.
//!
//! # Source
//! UNiS (Anthony and Bai) switches by real-time priorities alone; its slices below 32 µs worked,
//! those above were its limitation.

use std::process::{Command, Stdio};

use anyhow::Context;
use serde::Deserialize;
use serde_json::json;

use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::report::{Params, quantile};
use crate::bench::sched::params;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "controllers",
    about: "cost and latency of stopping one process and running another, by each mechanism",
    run: |args| Lab::measure(args, &[], |_| plan()),
};

const MECHANISMS: [&str; 6] = ["doorbell", "realtime", "freeze", "signal", "freezer", "gate"];
/// Timed switches, and slices of each length, per second of the requested time.
const PER_SECOND: (f64, f64) = (2000.0, 200.0);
/// Minimum of both, for meaningful statistics.
const LEAST: u32 = 50;

const SWITCHES: Group = Group {
    title: "A switch between two busy processes of one core",
    keys: &[],
    columns: &[
        Column::new("switch_cost_ns_p50", "controller µs", 1e3, 2),
        Column::new("switch_cost_ns_p95", "p95", 1e3, 2),
        Column::new("old_stops_ns_p50", "old stops µs", 1e3, 2),
        Column::new("old_stops_ns_p95", "p95", 1e3, 2),
        Column::new("new_runs_ns_p50", "new runs µs", 1e3, 2),
        Column::new("new_runs_ns_p95", "p95", 1e3, 2),
        Column::new("shortest_slice_us", "shortest slice µs", 1.0, 0),
        Column::new("missed_percent", "missed %", 1.0, 1),
    ],
    plotted: 6,
    form: Form::Bars,
};
const SLICES: Group = Group {
    title: "Slices at whose end the right process had run last, in percent",
    keys: &["slice_us"],
    columns: &[Column::new("right_percent", "right %", 1.0, 1)],
    plotted: 1,
    form: Form::Series("slice_us"),
};

/// Answer of the measuring helper.
#[derive(Debug, Deserialize)]
struct Answer {
    figures: Option<Figures>,
    refused: Option<String>,
    warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Figures {
    switch_cost_ns: Vec<f64>,
    old_stops_ns: Vec<f64>,
    new_runs_ns: Vec<f64>,
    missed: usize,
    right: Vec<(u32, f64)>,
    shortest_slice_us: Option<u32>,
}

fn plan() -> Trials {
    let is_slice = |v: &crate::bench::report::Variant| v.params.contains_key("slice_us");
    let shown: Vec<crate::bench::lab::Shown> = vec![(SWITCHES, |v| !v.params.contains_key("slice_us")), (SLICES, is_slice)];
    let mut plan = Trials::new(EXPERIMENT.name, nothing, shown);
    for mechanism in MECHANISMS {
        let run = move |lab: &Lab| measure(lab, mechanism);
        plan.cases.push(Case { name: mechanism.into(), params: Params::new(), run: Box::new(run) });
    }
    plan
}

fn measure(lab: &Lab, mechanism: &str) -> Result<Vec<Row>, Miss> {
    let times = |per_second: f64| ((lab.args.seconds * per_second) as u32).max(LEAST).to_string();
    let output = Command::new(&lab.programs.sluiced)
        .args(["__sluice-measure", mechanism, &lab.cores.shared().to_string(), &times(PER_SECOND.0), &times(PER_SECOND.1)])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", lab.programs.sluiced.display()))?;
    let answer: Answer = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{} gave no measurements ({})", lab.programs.sluiced.display(), output.status))?;
    for warning in &answer.warnings {
        eprintln!("sluiced says: {warning}");
    }
    match answer {
        Answer { figures: Some(figures), .. } if !figures.new_runs_ns.is_empty() => Ok(rows(mechanism, &figures)),
        Answer { figures: Some(figures), .. } => Err(Miss::LeaveOut(format!("none of {} switches took effect", figures.missed))),
        Answer { refused, .. } => Err(Miss::LeaveOut(refused.unwrap_or_else(|| "the helper does not say why".into()))),
    }
}

fn rows(mechanism: &str, figures: &Figures) -> Vec<Row> {
    let mut row = Row::new(mechanism, &Params::new(), Sample::new());
    let times = [
        ("switch_cost_ns", &figures.switch_cost_ns),
        ("old_stops_ns", &figures.old_stops_ns),
        ("new_runs_ns", &figures.new_runs_ns),
    ];
    for (metric, samples) in times {
        row.put(&format!("{metric}_p50"), quantile(samples, 0.5));
        row.put(&format!("{metric}_p95"), quantile(samples, 0.95));
    }
    row.put("missed_percent", Some(figures.missed as f64 / (figures.missed + figures.new_runs_ns.len()) as f64 * 100.0));
    row.put("shortest_slice_us", figures.shortest_slice_us.map(f64::from));
    let slice = |(slice_us, right): &(u32, f64)| {
        Row::new(mechanism, &params(&[("slice_us", json!(slice_us))]), Sample::from([("right_percent".into(), right * 100.0)]))
    };
    std::iter::once(row).chain(figures.right.iter().map(slice)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_becomes_rows() {
        let answer: Answer = serde_json::from_value(json!({
            "figures": {"switch_cost_ns": [3.0, 1.0, 2.0], "old_stops_ns": [5.0], "new_runs_ns": [9.0, 8.0, 7.0], "missed": 1,
                "right": [[100, 1.0], [50, 0.5]], "shortest_slice_us": 100},
            "refused": null, "warnings": [],
        }))
        .unwrap();
        let rows = rows("signal", &answer.figures.unwrap());
        let get = |metric| rows[0].get(metric);
        assert_eq!(
            (get("switch_cost_ns_p50"), get("switch_cost_ns_p95"), get("new_runs_ns_p50")),
            (Some(2.0), Some(3.0), Some(8.0))
        );
        assert_eq!((get("missed_percent"), get("shortest_slice_us")), (Some(25.0), Some(100.0)));
        assert_eq!((rows.len(), rows[2].get("right_percent")), (3, Some(50.0)));
        assert_eq!(rows[2].params, params(&[("slice_us", json!(50))]));
    }

    #[test]
    fn each_mechanism_is_a_variant() {
        assert_eq!(plan().cases.iter().map(|case| case.name.as_str()).collect::<Vec<_>>(), MECHANISMS);
    }
}
