//! `sluice bench sched-baseline`: the kernel's schedulers with three NFs that share a core.
//!
//! # Approach
//! Three chains of one NF each, with separate traffic; equal and unequal costs, even and uneven
//! load. The default shows the kernel alone: shares by time (SCHED_OTHER, SCHED_BATCH) ignore
//! costs, round-robin (SCHED_RR) ignores load. Sluice runs beside it, and its single parts where
//! both costs and load are uneven, since only there can they differ. There is no ideal: with one NF
//! per chain, there is nothing to call in sequence.
//!
//! # Source
//! NFVnice, figure 1 and tables 1 and 2: loads of 5/5/5 and 6/6/3 million packets per second, costs
//! 250/250/250 and 500/250/50.

use serde_json::json;

use super::simulated::{ERROR, SIMULATED};
use super::{COST, CPU, JAIN, Mode, PARTS, cases, chain_of, name_of, nf_of, params, schedulers, traffic_to};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Lab, Row, Trials};
use crate::bench::setup::{Class, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "sched-baseline",
    about: "three NFs on a core, by cost and load, under each scheduler (figure 1)",
    run: |args| Lab::measure(args, &[COST], plan),
};

const COSTS: [[u64; 3]; 2] = [[250, 250, 250], [500, 250, 50]];
/// Millions of packets per second.
const LOADS: [[u32; 3]; 2] = [[5, 5, 5], [6, 6, 3]];

const GROUP: Group = Group {
    title: "Three NFs on a core, each with its own traffic",
    keys: &["costs", "load"],
    columns: &[
        Column::new("delivered_pps", "all Mpps", 1e6, 3),
        Column::new("delivered_pps.c1", "NF 1 Mpps", 1e6, 3),
        Column::new("delivered_pps.c2", "NF 2 Mpps", 1e6, 3),
        Column::new("delivered_pps.c3", "NF 3 Mpps", 1e6, 3),
        JAIN,
        SIMULATED,
        ERROR,
        CPU[0],
        CPU[1],
        CPU[2],
        Column::new("switches_voluntary_per_s.nf1", "vol/s 1", 1.0, 0),
        Column::new("switches_voluntary_per_s.nf2", "vol/s 2", 1.0, 0),
        Column::new("switches_voluntary_per_s.nf3", "vol/s 3", 1.0, 0),
        Column::new("switches_involuntary_per_s.nf1", "invol/s 1", 1.0, 0),
        Column::new("switches_involuntary_per_s.nf2", "invol/s 2", 1.0, 0),
        Column::new("switches_involuntary_per_s.nf3", "invol/s 3", 1.0, 0),
    ],
    plotted: 4,
    form: Form::Bars,
};

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, total, vec![(GROUP, |_| true)]);
    for costs in COSTS {
        for load in LOADS {
            let words = |of: [u64; 3]| of.map(|n| n.to_string()).join("/");
            let of = params(&[("costs", json!(words(costs))), ("load", json!(words(load.map(u64::from))))]);
            for (class, mode) in schedulers().into_iter().flat_map(|class| PARTS.map(|mode| (class, mode))) {
                match mode.idle_under(class).or_else(|| alone(mode, costs, load)) {
                    Some(why) => plan.leave_out(&name_of(mode, class), of.clone(), why),
                    None => plan.cases.extend(cases(&[mode], &[class], &of, |mode, class| setup(lab, mode, class, costs, load))),
                }
            }
        }
    }
    plan
}

/// Why a mode is not run with this mixture, if so.
fn alone(mode: Mode, costs: [u64; 3], load: [u32; 3]) -> Option<&'static str> {
    let uneven = costs != COSTS[0] && load != LOADS[0];
    let parts = matches!(mode, Mode::Weights | Mode::Backpressure);
    (parts && !uneven).then_some("the parts alone run where costs and load are both uneven; all mixtures would take minutes more")
}

fn setup(lab: &Lab, mode: Mode, class: Class, costs: [u64; 3], load: [u32; 3]) -> Setup {
    let mut setup = Setup { manager_core: lab.manager_core, sched: Some(mode.sched(class)), ..Setup::default() };
    for (i, (cycles, mpps)) in costs.into_iter().zip(load).enumerate() {
        let (chain, service) = (format!("c{}", i + 1), format!("nf{}", i + 1));
        setup.traffic.push(traffic_to(&chain, f64::from(mpps) * 1e6));
        setup.services.push(nf_of(&service, lab.cores.shared(), cycles));
        setup.chains.push(chain_of(&chain, &[&service]));
    }
    setup
}

/// Sums context switches over all NFs.
fn total(rows: &mut [Row]) -> Vec<Row> {
    for row in rows {
        for kind in ["voluntary", "involuntary"] {
            let of_nf = |i: u32| row.get(&format!("switches_{kind}_per_s.nf{i}"));
            let all = (1..=3).map(of_nf).sum::<Option<f64>>();
            row.put(&format!("switches_{kind}_per_s"), all);
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;
    use crate::bench::measure::Sample;

    #[test]
    fn all_mixtures_run_under_all_schedulers() {
        let lab = lab(1);
        let plan = plan(&lab);
        let weights_that_idle = 2;
        assert_eq!(plan.cases.len(), 2 * 2 * 3 * 4 + 2 * 4 - weights_that_idle);
        assert_eq!(plan.cases.len() + plan.left_out.len(), 2 * 2 * 5 * 4);
        assert_eq!((plan.cases[1].name.as_str(), plan.cases[2].name.as_str()), ("nfvnice/other", "sluice/other"));
        let names: Vec<&str> = plan.cases[36..].iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names[..5], ["default/other", "weights/other", "backpressure/other", "nfvnice/other", "sluice/other"]);
        assert_eq!(names[14..], ["default/rr100", "backpressure/rr100", "nfvnice/rr100", "sluice/rr100"]);
        assert_eq!((&plan.cases[12].params["costs"], &plan.cases[12].params["load"]), (&json!("250/250/250"), &json!("6/6/3")));
        let setup = setup(&lab, Mode::Default, Class::Other, COSTS[1], LOADS[1]);
        assert_eq!((setup.traffic[2].rate, setup.services[2].args[1].as_str()), (3e6, "50"));
    }

    #[test]
    fn switches_are_summed_up_where_all_are_known() {
        let all: Sample = (1..=3).map(|i| (format!("switches_voluntary_per_s.nf{i}"), f64::from(i))).collect();
        let mut rows = vec![Row::new("default/other", &params(&[]), all)];
        total(&mut rows);
        assert_eq!((rows[0].get("switches_voluntary_per_s"), rows[0].get("switches_involuntary_per_s")), (Some(6.0), None));
    }
}
