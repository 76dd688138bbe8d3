//! `sluice bench optimiser`: time and quality of the optimiser.
//!
//! # Approach
//! Mixed sets of SLOs, all different, for about 10, 20, 40, 100, 200 and 1,000 servers, the last in
//! parts; and sets of traced NFs and chains, which take several cores
//! ([`sluice_planner::samples`]). The solver has one thread. Measured are: time, the gap between
//! the solution and the proven lower bound, and the greedy method's number of servers. A second
//! table has the time to admit or refuse one more SLO (with what would fit) beside others.

use serde_json::json;
use sluice_planner::compare;
use sluice_planner::samples::{Mix, server};

use super::{LIMIT, missed};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::sched::params;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "optimiser",
    about: "time and gap of the optimiser for 10 to 1,000 servers, and of the admission of one SLO",
    run: |args| Lab::measure(args, &[], |_| plan()),
};

/// Number of SLOs, and whether they are solved in parts.
const SIZES: [(usize, bool); 6] = [(50, false), (100, false), (200, false), (500, false), (1000, false), (5000, true)];
/// Sets of traced NFs and chains, and their number of SLOs.
const OTHERS: [Mix; 2] = [Mix::Traced, Mix::TracedSensitive];
const OF_OTHERS: usize = 200;
/// SLOs that run while one more is admitted.
const BESIDE: [usize; 2] = [200, 5000];
/// Number of tried admissions.
const TRIES: usize = 40;

const SOLVED: Group = Group {
    title: "The least number of servers",
    keys: &["slos", "mix"],
    columns: &[
        Column::new("solve_s", "s", 1.0, 2),
        Column::new("gap_percent", "gap %", 1.0, 2),
        Column::new("servers", "servers", 1.0, 0),
        Column::new("bound", "at least", 1.0, 0),
        Column::new("greedy_servers", "greedy", 1.0, 0),
        Column::new("greedy_over_percent", "over bound %", 1.0, 1),
    ],
    plotted: 2,
    form: Form::Bars,
};

const ADMITTED: Group = Group {
    title: "Admission of one SLO",
    keys: &["slos", "mix"],
    columns: &[Column::new("admission_ms_p50", "ms", 1.0, 3), Column::new("admission_ms_max", "most ms", 1.0, 3)],
    plotted: 2,
    form: Form::Bars,
};

fn plan() -> Trials {
    let groups: Vec<crate::bench::lab::Shown> = vec![(SOLVED, |v| v.name != "admission"), (ADMITTED, |v| v.name == "admission")];
    let mut plan = Trials::new(EXPERIMENT.name, nothing, groups);
    let of_others = OTHERS.map(|mix| (mix, OF_OTHERS, false));
    for (mix, slos, in_parts) in SIZES.map(|(slos, in_parts)| (Mix::Mixed, slos, in_parts)).into_iter().chain(of_others) {
        let name = if in_parts { "parts" } else { "optimum" };
        let of = params(&[("slos", json!(slos)), ("mix", json!(mix.name()))]);
        plan.cases.push(Case::one(name, of, move |_| {
            let run = compare::optimum(mix, slos, in_parts, 1, &server(), LIMIT).map_err(missed)?;
            let (servers, bound, greedy) = (run.servers as f64, run.bound as f64, run.greedy as f64);
            Ok(Sample::from([
                ("solve_s".to_string(), run.solve_s),
                ("gap_percent".to_string(), (servers - bound) / servers * 100.0),
                ("servers".to_string(), servers),
                ("bound".to_string(), bound),
                ("greedy_servers".to_string(), greedy),
                ("greedy_over_percent".to_string(), (greedy / bound - 1.0) * 100.0),
            ]))
        }));
    }
    for (mix, slos) in [Mix::Mixed, Mix::TracedSensitive].into_iter().flat_map(|mix| BESIDE.map(|slos| (mix, slos))) {
        let of = params(&[("slos", json!(slos)), ("mix", json!(mix.name()))]);
        plan.cases.push(Case::one("admission", of, move |_| {
            let mut times = compare::admission_s(mix, slos, TRIES, 1, &server()).map_err(missed)?;
            times.sort_by(f64::total_cmp);
            Ok(Sample::from([
                ("admission_ms_p50".to_string(), crate::bench::report::median(&times) * 1e3),
                ("admission_ms_max".to_string(), times.last().copied().unwrap_or(0.0) * 1e3),
            ]))
        }));
    }
    plan
}

#[cfg(test)]
mod tests {
    use sluice_planner::optimiser::IS_BUILT;

    use super::*;
    use crate::bench::lab::Miss;

    #[test]
    fn one_more_is_tried_beside_all_the_others() {
        assert_eq!(compare::admission_s(Mix::Mixed, 10, 4, 1, &server()).unwrap().len(), 4);
    }

    #[test]
    fn all_sizes_run_and_a_small_one_is_optimal() {
        assert_eq!(plan().cases.len(), SIZES.len() + OTHERS.len() + 2 * BESIDE.len());
        let run = compare::optimum(Mix::Mixed, 10, false, 1, &server(), LIMIT).map_err(missed);
        match run {
            Ok(run) => assert!(run.servers == run.bound && run.greedy >= run.servers),
            Err(Miss::LeaveOut(why)) => assert!(!IS_BUILT && why.contains("--features optimiser"), "{why}"),
            Err(Miss::Failed(error)) => panic!("{error}"),
        }
    }
}
