//! `sluice bench placement`: the same SLOs, placed in eight ways.
//!
//! # Approach
//! 200 SLOs, all different, of NFs that need the cache, that hardly do, and of both; ten random
//! sets of each. Half of the mixes are kinds of NF with parameters chosen after the paper's. The
//! others (`traced`) are the included NFs and chains, with parameters from their profiles and
//! traces ([`sluice_planner::samples`]). For each way of placing: servers in use, violated SLOs by
//! the model of contention, and servers relative to our greedy method and to the optimum.
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
//! How far a prediction of contention is off for each NF, and each NF's throughput by ways, stand
//! beside it ([`predictor`]).
//!
//! # Limits
//! The effect of a shared cache comes from a model ([`sluice_planner::contention`]), not from a
//! measurement.
//!
//! # Source
//! ResQ, figures 8 to 10, and 6.

use serde_json::json;
use sluice_planner::compare;
use sluice_planner::optimiser::{IS_BUILT, OptimiserError};
use sluice_planner::samples::{Mix, server};

use super::{LIMIT, missed, params, predictor};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Row, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::report::LeftOut;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "placement",
    about: "servers and broken promises of eight ways of placing 200 SLOs, error of a predictor (ResQ, figures 8 to 10)",
    run,
};

const SLOS: usize = 200;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=10;

const GROUP: Group = Group {
    title: "200 SLOs on servers of 9 cores and 18 ways",
    keys: &["mix", "seed"],
    columns: &[
        Column::new("servers", "servers", 1.0, 0),
        Column::new("violations", "violated", 1.0, 0),
        Column::new("of_greedy", "of greedy", 1.0, 2),
        Column::new("of_optimum", "of optimum", 1.0, 2),
        Column::new("gap_percent", "gap %", 1.0, 1),
        Column::new("solve_s", "s", 1.0, 3),
    ],
    plotted: 2,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[])?;
    lab.run(&plan())
}

fn plan() -> Trials {
    let shown: Vec<crate::bench::lab::Shown> = vec![
        (GROUP, |v| v.params.contains_key("mix")),
        (predictor::ERRORS, |v| v.name == predictor::ERROR),
        (predictor::CURVES, |v| v.name == predictor::CURVE),
    ];
    let mut plan = Trials::new(EXPERIMENT.name, nothing, shown);
    for mix in Mix::ALL {
        for seed in SEEDS {
            let of = params(&[("mix", json!(mix.name())), ("seed", json!(seed)), ("slos", json!(SLOS))]);
            let row_params = of.clone();
            let run = move |_: &Lab| {
                let outcomes = compare::placement(mix, SLOS, seed, &server(), LIMIT).map_err(missed)?;
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
                    Row::new(one.name, &row_params, sample)
                };
                Ok(outcomes.iter().map(row).collect())
            };
            plan.cases.push(Case { name: mix.name().into(), params: of, run: Box::new(run) });
        }
    }
    plan.cases.extend(predictor::cases());
    if !IS_BUILT {
        plan.left_out.push(LeftOut { name: "optimum".into(), params: params(&[]), why: OptimiserError::NotBuilt.to_string() });
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_is_placed() {
        let plan = plan();
        assert_eq!(plan.cases.len(), 60 + 2 * 2);
        let outcomes = compare::placement(Mix::Insensitive, 10, 1, &server(), LIMIT).unwrap();
        assert_eq!(outcomes.len(), if IS_BUILT { 8 } else { 7 });
        let last = if IS_BUILT { "optimum" } else { "greedy" };
        assert_eq!(outcomes.last().map(|one| (one.name, one.violations)), Some((last, 0)));
        for name in ["admission", "admission/sorted"] {
            let admission = outcomes.iter().find(|one| one.name == name).unwrap();
            assert!(admission.violations == 0 && admission.servers > 0, "{admission:?}");
        }
    }
}
