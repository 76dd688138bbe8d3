//! `sluice bench placement-online`: SLOs that come and go, placed in every way.
//!
//! # Approach
//! A fleet of 40 or of 1,000 servers, and SLOs that come and go ([`sluice_planner::online`]): their
//! number stays near 80 % of what the fleet holds. NFs that need the cache, that hardly do, and
//! both, with the terms of `sluice bench placement` ([`super::placement`]); five random sequences
//! for 40 servers, one for 1,000. Each way of placing gets the same sequence:
//!
//! - `admission`: as for tenants: no instance moves.
//! - `admission/optimised`: the same, and the optimiser twice per mean stay of an SLO.
//! - `prediction`: of contention, without isolation, on the same fleet.
//! - `prediction/unlimited`: the same with as many servers as it asks for.
//! - `greedy` and `optimum`: all SLOs that would be there if none was refused, packed at once.
//!
//! A sequence is three mean stays long, and the last is measured. `servers` and `slos` are means
//! over its time; `refused_percent` is of the SLOs that come; `admission_ms_…` is the time of an
//! answer. Four times in it, evenly, the servers in use are divided by the least for the SLOs that
//! this way has admitted (`of_optimum`, the mean), and violated SLOs are found by the model of
//! contention (`violations`, all different ones). It is no more than four times, and in parts of
//! 400 SLOs, because of the time that the least takes for 1,000 servers. `moves` is the number of
//! instances that a run of the optimiser starts, `moves_percent` is of those that run, `stuck`
//! counts runs whose result could not be reached with every promise kept, and `optimise_s` is the
//! time of a run with its plan of steps.
//!
//! Rows with `stays` have the servers in use over time, of the fleet.
//!
//! # Limits
//! Those of [`super::placement`], and of [`sluice_planner::online`].
//!
//! # Source
//! ResQ, section 6.2 and figure 9, for what is compared: greedy, optimum and prediction. The
//! paper's values at hand are of SLOs that are all placed at once.

use serde_json::{Value, json};
use sluice_planner::online::{self, AllAtOnce, Arrivals, Compared, Moved, OneWay};
use sluice_planner::optimiser::{IS_BUILT, OptimiserError};
use sluice_planner::samples::{Mix, SloTerms, server};

use super::placement::{MEDIAN, is_median, medians};
use super::{LIMIT, missed};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Shown, Trials};
use crate::bench::measure::Sample;
use crate::bench::report::{Params, Variant, quantile};
use crate::bench::sched::params;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "placement-online",
    about: "servers, refusals, moves and time while SLOs come and go, on 40 and 1,000 servers (ResQ, figure 9, online)",
    run: |args| Lab::measure(args, &[], |_| plan()),
};

/// Servers of a fleet, its mixes, and its number of sequences.
const FLEETS: [(usize, &[Mix], u64); 2] =
    [(40, &[Mix::Insensitive, Mix::Mixed, Mix::Sensitive], 5), (1000, &[Mix::Mixed, Mix::Sensitive], 1)];

const FAIR_SHARE: Group = Group {
    title: "SLOs that come and go, around a fair share of the cache, medians of sequences",
    keys: &["servers", "mix"],
    columns: &[
        Column::new("of_optimum", "of optimum", 1.0, 2),
        Column::new("refused_percent", "refused %", 1.0, 1),
        Column::new("servers", "servers", 1.0, 1),
        Column::new("slos", "SLOs", 1.0, 0),
        Column::new("violations", "violated", 1.0, 0),
        Column::new("violations_max", "violated at most", 1.0, 0),
        Column::new("sets", "sequences", 1.0, 0),
    ],
    plotted: 2,
    form: Form::Bars,
};

const ALONE: Group =
    Group { title: "SLOs that come and go, 90 % or 100 % of an instance alone, medians of sequences", ..FAIR_SHARE };

const TIMES: Group = Group {
    title: "Answers, and what the optimiser moves",
    keys: &["servers", "mix", "terms"],
    columns: &[
        Column::new("admission_ms_p99", "p99 ms", 1.0, 3),
        Column::new("admission_ms_p50", "ms", 1.0, 3),
        Column::new("moves_percent", "moves %", 1.0, 1),
        Column::new("moves", "moves", 1.0, 0),
        Column::new("stuck", "stuck", 1.0, 0),
        Column::new("optimise_s", "s to optimise", 1.0, 2),
        Column::new("solve_s", "s to pack", 1.0, 3),
        Column::new("gap_percent", "gap %", 1.0, 1),
    ],
    plotted: 1,
    form: Form::Bars,
};

/// Each sequence: too many to be drawn.
const EACH: Group = Group {
    title: "SLOs that come and go, each sequence",
    keys: &["servers", "mix", "terms", "seed"],
    columns: FAIR_SHARE.columns,
    plotted: 0,
    form: Form::Bars,
};

const FEW: Group = Group {
    title: "Servers in use over mean stays, 40 servers, all kinds of NF alone",
    keys: &[],
    columns: &[Column::new("of_fleet", "of the fleet", 1.0, 2)],
    plotted: 1,
    form: Form::Series("stays"),
};

const MANY: Group = Group { title: "Servers in use over mean stays, 1,000 servers, all kinds of NF alone", ..FEW };

fn plan() -> Trials {
    let shown: Vec<Shown> = vec![
        (ALONE, |v| !is_of_a_time(v) && is_median(v, SloTerms::Alone)),
        (FAIR_SHARE, |v| !is_of_a_time(v) && is_median(v, SloTerms::FairShare)),
        (TIMES, |v| !is_of_a_time(v) && SloTerms::ALL.iter().any(|terms| is_median(v, *terms))),
        (EACH, |v| !is_of_a_time(v) && v.params.get("seed").is_some_and(|seed| *seed != MEDIAN)),
        (FEW, |v| is_course_of(v, 40)),
        (MANY, |v| is_course_of(v, 1000)),
    ];
    let mut plan = Trials::new(EXPERIMENT.name, medians, shown);
    for (servers, mixes, sequences) in FLEETS {
        for (mix, terms) in mixes.iter().flat_map(|mix| SloTerms::ALL.map(|terms| (*mix, terms))) {
            for seed in 1..=sequences {
                let arrivals = Arrivals { mix, terms, servers, seed };
                let run = move |_: &Lab| placed(&arrivals);
                plan.cases.push(Case { name: mix.name().into(), params: params_of(&arrivals), run: Box::new(run) });
            }
        }
    }
    if !IS_BUILT {
        for name in ["optimum", "admission/optimised"] {
            plan.leave_out(name, params(&[]), OptimiserError::NotBuilt.to_string());
        }
    }
    plan
}

fn params_of(arrivals: &Arrivals) -> Params {
    let Arrivals { mix, terms, servers, seed } = arrivals;
    params(&[("servers", json!(servers)), ("mix", json!(mix.name())), ("terms", json!(terms.name())), ("seed", json!(seed))])
}

/// Whether a variant has what there is at one time.
fn is_of_a_time(variant: &Variant) -> bool {
    variant.params.contains_key("stays")
}

/// Whether a variant is of the course that is drawn for a fleet.
fn is_course_of(variant: &Variant, servers: usize) -> bool {
    let has = |key: &str, wanted: Value| variant.params.get(key) == Some(&wanted);
    is_of_a_time(variant)
        && is_median(variant, SloTerms::Alone)
        && has("servers", json!(servers))
        && has("mix", json!(Mix::Mixed.name()))
}

/// A sequence, placed in every way.
fn placed(arrivals: &Arrivals) -> Result<Vec<Row>, Miss> {
    let Compared { ways, packed } = online::run(arrivals, &server(), LIMIT).map_err(missed)?;
    let params = params_of(arrivals);
    let mut rows: Vec<Row> = ways.iter().map(|way| of_way(way, &params)).collect();
    rows.extend(of_all_at_once(&packed, &params));
    let mut note = |name: &str, stays: f64, servers: usize| {
        let mut params = params.clone();
        params.insert("stays".into(), json!(stays));
        let part = servers as f64 / arrivals.servers as f64;
        rows.push(Row::new(name, &params, Sample::from([("of_fleet".into(), part)])));
    };
    for (way, sample) in ways.iter().flat_map(|way| way.samples.iter().map(move |sample| (way, sample))) {
        note(way.name, sample.at, sample.servers);
    }
    for AllAtOnce { at, greedy: (servers, _), least } in packed {
        note("greedy", at, servers);
        if let Some(least) = least {
            note("optimum", at, least.servers);
        }
    }
    Ok(rows)
}

fn of_way(way: &OneWay, params: &Params) -> Row {
    let sample = [("servers", way.servers), ("slos", way.slos), ("violations", way.violations as f64)];
    let mut row = Row::new(way.name, params, sample.map(|(metric, value)| (metric.to_string(), value)).into());
    let of_least = |sample: &online::Occupied| Some(sample.servers as f64 / sample.least?.servers as f64);
    row.put("of_optimum", mean(way.samples.iter().filter_map(of_least)));
    row.put("refused_percent", (way.came > 0).then(|| way.refused as f64 / way.came as f64 * 100.0));
    row.put("admission_ms_p50", quantile(&way.answer_s, 0.5).map(|s| s * 1e3));
    row.put("admission_ms_p99", quantile(&way.answer_s, 0.99).map(|s| s * 1e3));
    let Moved { runs, instances, starts, stuck, seconds } = way.moved;
    if runs > 0 {
        row.put("moves", Some(starts as f64 / runs as f64));
        row.put("moves_percent", (instances > 0).then(|| starts as f64 / instances as f64 * 100.0));
        row.put("stuck", Some(stuck as f64));
        row.put("optimise_s", Some(seconds / runs as f64));
    }
    row
}

/// The rows of the greedy packing and of the optimum.
fn of_all_at_once(packed: &[AllAtOnce], params: &Params) -> Vec<Row> {
    let mut greedy = Row::new("greedy", params, Sample::new());
    let mut optimum = Row::new("optimum", params, Sample::new());
    let least = || packed.iter().filter_map(|one| one.least);
    greedy.put("servers", mean(packed.iter().map(|one| one.greedy.0 as f64)));
    greedy.put("solve_s", mean(packed.iter().map(|one| one.greedy.1)));
    let of_least = |one: &AllAtOnce| Some(one.greedy.0 as f64 / one.least?.servers as f64);
    greedy.put("of_optimum", mean(packed.iter().filter_map(of_least)));
    optimum.put("servers", mean(least().map(|least| least.servers as f64)));
    optimum.put("solve_s", mean(least().map(|least| least.solve_s)));
    let gap = |least: online::Least| least.servers.saturating_sub(least.bound) as f64 / least.servers as f64 * 100.0;
    optimum.put("gap_percent", mean(least().map(gap)));
    optimum.put("of_optimum", least().next().map(|_| 1.0));
    [greedy, optimum].into_iter().filter(|row| !row.sample.is_empty()).collect()
}

/// None of none.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_a_sequence_has_a_row_and_a_course() {
        let arrivals = Arrivals { mix: Mix::Insensitive, terms: SloTerms::Alone, servers: 2, seed: 1 };
        let rows = placed(&arrivals).unwrap();
        let mut ways = vec!["admission", "prediction", "prediction/unlimited", "greedy"];
        if IS_BUILT {
            ways.extend(["admission/optimised", "optimum"]);
        }
        for name in ways {
            let own: Vec<&Row> = rows.iter().filter(|row| row.name == name).collect();
            let (courses, all): (Vec<&Row>, Vec<&Row>) = own.into_iter().partition(|row| row.params.contains_key("stays"));
            let wanted = if ["greedy", "optimum"].contains(&name) { 4 } else { 12 };
            assert_eq!((all.len(), courses.len()), (1, wanted), "{name}");
            assert!(all[0].get("servers").unwrap() > 0.0, "{name}: {all:?}");
            assert_eq!(all[0].get("of_optimum").is_some(), IS_BUILT, "{name}: {all:?}");
            assert_eq!(all[0].get("moves").is_some(), name == "admission/optimised", "{name}: {all:?}");
            assert_eq!(all[0].get("admission_ms_p99").is_some(), wanted == 12, "{name}: {all:?}");
            assert!(courses.iter().all(|row| row.get("of_fleet").is_some_and(|part| part >= 0.0)), "{name}");
        }
        let of = |name: &str, metric: &str| rows.iter().find(|row| row.name == name).unwrap().get(metric).unwrap();
        assert_eq!((of("prediction/unlimited", "refused_percent"), of("admission", "violations")), (0.0, 0.0));
        assert!((0.0..=100.0).contains(&of("prediction", "refused_percent")) && of("admission", "servers") <= 2.0);
    }

    #[test]
    fn medians_are_of_sequences_of_the_same_fleet_and_time() {
        let row = |servers: usize, seed: u64, stays: Option<f64>, value: f64| {
            let mut params = params_of(&Arrivals { mix: Mix::Mixed, terms: SloTerms::Alone, servers, seed });
            params.extend(stays.map(|stays| ("stays".to_string(), json!(stays))));
            Row::new("admission", &params, Sample::from([("of_fleet".into(), value)]))
        };
        let mut rows = [
            row(40, 1, None, 1.0),
            row(40, 2, None, 3.0),
            row(1000, 1, None, 7.0),
            row(40, 1, Some(0.5), 9.0),
            row(40, 2, Some(0.5), 5.0),
        ];
        let found = medians(&mut rows);
        assert_eq!(found.iter().map(|row| row.get("of_fleet").unwrap()).collect::<Vec<_>>(), [2.0, 7.0, 7.0]);
        let variants: Vec<Variant> = found.iter().map(|row| Variant::new(&row.name, row.params.clone())).collect();
        let shown =
            |v: &Variant| plan().groups.iter().filter(|(_, is_of)| is_of(v)).map(|(group, _)| group.title).collect::<Vec<_>>();
        assert_eq!(shown(&variants[0]), [ALONE.title, TIMES.title]);
        assert_eq!(shown(&variants[1]), [ALONE.title, TIMES.title]);
        assert_eq!(shown(&variants[2]), [FEW.title]);
    }

    #[test]
    fn all_fleets_are_planned() {
        let plan = plan();
        assert_eq!(plan.cases.len(), 3 * 2 * 5 + 2 * 2);
        let first = &plan.cases[0].params;
        assert_eq!((&first["servers"], &first["seed"]), (&json!(40), &json!(1)));
        assert_eq!((mean([].into_iter()), mean([1.0, 2.0].into_iter())), (None, Some(1.5)));
    }
}
