//! `sluice bench placement`: the same SLOs, placed in eight ways.
//!
//! # Approach
//! 200 SLOs of NFs that need the cache, that hardly do, and of both; ten random sets of each, with
//! two sorts of terms ([`SloTerms`]): all different, around what an instance carries with its fair
//! share of the cache; and 90 % or 100 % of what it carries alone, as in the paper. Half of the
//! mixes are kinds of NF with parameters chosen after the paper's. The others (`traced`) are the
//! included NFs and chains, with parameters from their profiles and traces
//! ([`sluice_planner::samples`]). For each way of placing: servers in use, violated SLOs by the
//! model of contention, and servers relative to our greedy method and to the optimum.
//!
//! - `admission`: as for tenants: one SLO after another in order of arrival, without moves.
//! - `admission/sorted`: the same with all SLOs known in advance, largest demand first.
//! - `greedy`: packs all at once.
//!
//! Profiles are built from the model's values with the profiler's plans (points, loads, margins),
//! without measurement noise. Violations of throughput and latency are by the model itself: an SLO
//! is violated if an instance gets over 1 % more than it carries within the latency. A build
//! without the solver leaves the optimum out.
//!
//! A row with `seed` [`MEDIAN`] has the medians of all sets of a mix and terms that were placed
//! (`sets`), and the most violations in any of them (`violations_max`).
//!
//! How far a prediction of contention is off for each NF, and each NF's throughput by ways, stand
//! beside it ([`predictor`]).
//!
//! # Limits
//! The effect of a shared cache comes from a model ([`sluice_planner::contention`]), not from a
//! measurement.
//!
//! # Source
//! ResQ, figures 8 to 10, and 6.

use std::collections::BTreeMap;

use serde_json::json;
use sluice_planner::compare;
use sluice_planner::optimiser::{IS_BUILT, OptimiserError};
use sluice_planner::samples::{Mix, SloTerms, server};

use super::{LIMIT, missed, predictor};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Shown, Trials};
use crate::bench::measure::Sample;
use crate::bench::report::{LeftOut, Params, Summary, Variant};
use crate::bench::sched::params;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "placement",
    about: "servers and broken promises of eight ways of placing 200 SLOs, error of a predictor (ResQ, figures 8 to 10)",
    run: |args| Lab::measure(args, &[], |_| plan()),
};

const SLOS: usize = 200;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=10;

/// Stands for the seed in rows of all sets.
pub const MEDIAN: &str = "median";

/// Each set: too many to be drawn.
const GROUP: Group = Group {
    title: "200 SLOs on servers of 9 cores and 18 ways",
    keys: &["mix", "terms", "seed"],
    columns: &[
        Column::new("servers", "servers", 1.0, 0),
        Column::new("violations", "violated", 1.0, 0),
        Column::new("of_greedy", "of greedy", 1.0, 2),
        Column::new("of_optimum", "of optimum", 1.0, 2),
        Column::new("gap_percent", "gap %", 1.0, 1),
        Column::new("solve_s", "s", 1.0, 3),
    ],
    plotted: 0,
    form: Form::Bars,
};

const FAIR_SHARE: Group = Group {
    title: "200 SLOs around a fair share of the cache, medians of sets",
    keys: &["mix"],
    columns: &[
        Column::new("servers", "servers", 1.0, 0),
        Column::new("violations", "violated", 1.0, 0),
        Column::new("of_optimum", "of optimum", 1.0, 2),
        Column::new("violations_max", "violated at most", 1.0, 0),
        Column::new("of_greedy", "of greedy", 1.0, 2),
        Column::new("sets", "sets", 1.0, 0),
    ],
    plotted: 3,
    form: Form::Bars,
};

const ALONE: Group = Group { title: "200 SLOs of 90 % or 100 % of an instance alone, medians of sets", ..FAIR_SHARE };

fn plan() -> Trials {
    let shown: Vec<Shown> = vec![
        (FAIR_SHARE, |v| is_median(v, SloTerms::FairShare)),
        (ALONE, |v| is_median(v, SloTerms::Alone)),
        (GROUP, |v| v.params.get("seed").is_some_and(|seed| *seed != MEDIAN)),
        (predictor::ERRORS, |v| v.name == predictor::ERROR),
        (predictor::CHOSEN, |v| predictor::is_curve(v, "chosen", "")),
        (predictor::UNIFORM, |v| predictor::is_curve(v, "traced", "uniform")),
        (predictor::ZIPF, |v| predictor::is_curve(v, "traced", "zipf 1.1")),
    ];
    let mut plan = Trials::new(EXPERIMENT.name, medians, shown);
    for (mix, terms) in Mix::ALL.into_iter().flat_map(|mix| SloTerms::ALL.map(|terms| (mix, terms))) {
        for seed in SEEDS {
            let of = [("mix", json!(mix.name())), ("terms", json!(terms.name())), ("seed", json!(seed)), ("slos", json!(SLOS))];
            let params = params(&of);
            let row_params = params.clone();
            let run = move |_: &Lab| placed(mix, terms, seed, &row_params);
            plan.cases.push(Case { name: mix.name().into(), params, run: Box::new(run) });
        }
    }
    plan.cases.extend(predictor::cases());
    if !IS_BUILT {
        plan.left_out.push(LeftOut { name: "optimum".into(), params: params(&[]), why: OptimiserError::NotBuilt.to_string() });
    }
    plan
}

/// One set, placed in every way.
fn placed(mix: Mix, terms: SloTerms, seed: u64, params: &Params) -> Result<Vec<Row>, Miss> {
    let outcomes = compare::placement(mix, terms, SLOS, seed, &server(), LIMIT).map_err(missed)?;
    let optimum = outcomes.iter().find(|one| one.bound.is_some()).map(|one| one.servers as f64);
    let greedy = outcomes.iter().find(|one| one.name == "greedy").map(|one| one.servers as f64);
    let row = |one: &compare::Tried| {
        let servers = one.servers as f64;
        let mut sample = Sample::from([
            ("servers".to_string(), servers),
            ("violations".to_string(), one.violations as f64),
            ("solve_s".to_string(), one.solve_s),
        ]);
        if let Some(optimum) = optimum {
            sample.insert("of_optimum".into(), servers / optimum);
        }
        if let Some(greedy) = greedy {
            sample.insert("of_greedy".into(), servers / greedy);
        }
        if let Some(bound) = one.bound {
            sample.insert("gap_percent".into(), (servers - bound as f64) / servers * 100.0);
        }
        Row::new(one.name, params, sample)
    };
    Ok(outcomes.iter().map(row).collect())
}

pub(super) fn is_median(variant: &Variant, terms: SloTerms) -> bool {
    let has = |key: &str, text: &str| variant.params.get(key).is_some_and(|value| *value == text);
    has("seed", MEDIAN) && has("terms", terms.name())
}

/// A row for each way of placing, mix and terms, of all sets that were placed.
pub(super) fn medians(rows: &mut [Row]) -> Vec<Row> {
    let mut found: Vec<(Row, BTreeMap<String, Vec<f64>>)> = Vec::new();
    for row in rows.iter().filter(|row| row.params.contains_key("seed")) {
        let mut params = row.params.clone();
        params.insert("seed".into(), json!(MEDIAN));
        let known = found.iter().position(|(of, _)| of.name == row.name && of.params == params);
        let at = known.unwrap_or_else(|| {
            found.push((Row::new(&row.name, &params, Sample::new()), BTreeMap::new()));
            found.len() - 1
        });
        for (metric, value) in &row.sample {
            found[at].1.entry(metric.clone()).or_default().push(*value);
        }
    }
    let together = |(mut row, metrics): (Row, BTreeMap<String, Vec<f64>>)| {
        for (metric, values) in metrics {
            let (sets, summary) = (values.len() as f64, Summary::of(values));
            if metric == "violations" {
                row.put("violations_max", Some(summary.max));
                row.put("sets", Some(sets));
            }
            row.put(&metric, Some(summary.median));
        }
        row
    };
    found.into_iter().map(together).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_is_placed() {
        let plan = plan();
        assert_eq!(plan.cases.len(), 120 + 2 * 2);
        let outcomes = compare::placement(Mix::Insensitive, SloTerms::FairShare, 10, 1, &server(), LIMIT).unwrap();
        assert_eq!(outcomes.len(), if IS_BUILT { 8 } else { 7 });
        let last = if IS_BUILT { "optimum" } else { "greedy" };
        assert_eq!(outcomes.last().map(|one| (one.name, one.violations)), Some((last, 0)));
        for name in ["admission", "admission/sorted"] {
            let admission = outcomes.iter().find(|one| one.name == name).unwrap();
            assert!(admission.violations == 0 && admission.servers > 0, "{admission:?}");
        }
    }

    #[test]
    fn sets_of_a_mix_and_terms_have_their_median() {
        let row = |name: &str, mix: &str, seed: u64, violations: f64| {
            let of = params(&[("mix", json!(mix)), ("terms", json!("alone")), ("seed", json!(seed))]);
            Row::new(name, &of, Sample::from([("violations".into(), violations), ("servers".into(), violations + 1.0)]))
        };
        let curve = Row::new(predictor::CURVE, &Params::new(), Sample::from([("of_all_ways".into(), 1.0)]));
        let mut rows = [
            row("greedy", "mixed", 1, 0.0),
            row("elastic", "mixed", 1, 9.0),
            row("greedy", "mixed", 2, 5.0),
            row("greedy", "mixed", 3, 1.0),
            row("greedy", "sensitive", 1, 7.0),
            curve,
        ];
        let found = medians(&mut rows);
        let names: Vec<_> = found.iter().map(|row| (row.name.as_str(), row.params["mix"].as_str().unwrap())).collect();
        assert_eq!(names, [("greedy", "mixed"), ("elastic", "mixed"), ("greedy", "sensitive")]);
        let of = |metric: &str| found[0].get(metric).unwrap();
        assert_eq!((of("violations"), of("violations_max"), of("servers"), of("sets")), (1.0, 5.0, 2.0, 3.0));
        let variant = Variant::new("greedy", found[0].params.clone());
        assert!(is_median(&variant, SloTerms::Alone) && !is_median(&variant, SloTerms::FairShare));
    }
}
