//! `sluice bench fairness`: equal service for flows of equal rates and different costs.
//!
//! # Approach
//! At diversity d, d flows with equal rates each pass their own NF, all on one core; costs are the
//! first d of 1 : 2 : 5 : 20 : 40 : 60 times [`FAIRNESS_UNIT`]. Equal shares of the core (the
//! default) favour cheap flows; shares by rate and cost serve all alike. Jain's index over the
//! flows' rates shows this: 1 is perfectly fair. `least_pps` is the rate of the flow that is served
//! least.
//!
//! # Source
//! NFVnice, figures 15b and 15c.

use serde_json::json;
use sluice_policy::sim::experiments::{FAIRNESS, FAIRNESS_UNIT};

use super::simulated::{ERROR, SIMULATED};
use super::{COST, DELIVERED, JAIN, Mode, cases, chain_of, name_of, nf_of, params, schedulers, traffic_to};
use crate::bench::experiment::Experiment;
use crate::bench::fair::jain;
use crate::bench::lab::{Lab, Row, Trials};
use crate::bench::setup::{Class, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "fairness",
    about: "1 to 6 flows of costs 1:2:5:20:40:60 on one core; Jain's index (figure 15b, c)",
    run: |args| Lab::measure(args, &[COST], plan),
};

/// Weights alone are the paper's mechanism of shares; to refuse packets moves none between flows.
const MODES: [Mode; 4] = [Mode::Default, Mode::Weights, Mode::Nfvnice, Mode::Sluice];
/// Packets per second of each flow: six of them overload any core by far.
const EACH_PPS: f64 = 2e6;

const GROUP: Group = Group {
    title: "Flows of unequal costs on one core, each with its own NF",
    keys: &["diversity"],
    columns: &[
        JAIN,
        Column::new("least_pps", "least kpps", 1e3, 1),
        Column::new("most_pps", "most kpps", 1e3, 1),
        DELIVERED,
        SIMULATED,
        ERROR,
        Column::new("delivered_pps.c1", "flow 1 kpps", 1e3, 1),
        Column::new("delivered_pps.c2", "flow 2", 1e3, 1),
        Column::new("delivered_pps.c3", "flow 3", 1e3, 1),
        Column::new("delivered_pps.c4", "flow 4", 1e3, 1),
        Column::new("delivered_pps.c5", "flow 5", 1e3, 1),
        Column::new("delivered_pps.c6", "flow 6", 1e3, 1),
        Column::new("cpu_percent.nf1", "CPU 1 %", 1.0, 1),
        Column::new("cpu_percent.nf6", "CPU 6 %", 1.0, 1),
    ],
    plotted: 2,
    form: Form::Lines("diversity"),
};

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, derive, vec![(GROUP, |_| true)]);
    for diversity in 1..=FAIRNESS.len() {
        let of = params(&[("diversity", json!(diversity))]);
        for (class, mode) in schedulers().into_iter().flat_map(|class| MODES.map(|mode| (class, mode))) {
            match mode.idle_under(class) {
                Some(why) => plan.leave_out(&name_of(mode, class), of.clone(), why),
                None => plan.cases.extend(cases(&[mode], &[class], &of, |mode, class| setup(lab, mode, class, diversity))),
            }
        }
    }
    plan
}

fn setup(lab: &Lab, mode: Mode, class: Class, diversity: usize) -> Setup {
    let mut setup = Setup { manager_core: lab.manager_core, sched: Some(mode.sched(class)), ..Setup::default() };
    for (ratio, i) in FAIRNESS.iter().zip(1..).take(diversity) {
        let (chain, service) = (format!("c{i}"), format!("nf{i}"));
        let mut traffic = traffic_to(&chain, EACH_PPS);
        traffic.flows = 1;
        setup.traffic.push(traffic);
        setup.services.push(nf_of(&service, lab.cores.shared(), ratio * FAIRNESS_UNIT));
        setup.chains.push(chain_of(&chain, &[&service]));
    }
    setup
}

fn derive(rows: &mut [Row]) -> Vec<Row> {
    for row in rows.iter_mut() {
        let rates: Vec<f64> =
            row.sample.iter().filter(|(metric, _)| metric.starts_with("delivered_pps.")).map(|(_, pps)| *pps).collect();
        // A single flow has no rate of its own beside the total.
        let rates = if rates.is_empty() { Vec::from_iter(row.get("delivered_pps")) } else { rates };
        row.put("jain", jain(&rates));
        row.put("least_pps", rates.iter().copied().reduce(f64::min));
        row.put("most_pps", rates.iter().copied().reduce(f64::max));
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;
    use crate::bench::measure::Sample;

    #[test]
    fn costs_are_the_first_of_the_ratios() {
        let three = setup(&lab(1), Mode::Sluice, Class::Other, 3);
        let costs: Vec<&str> = three.services.iter().map(|s| s.args[1].as_str()).collect();
        assert_eq!(costs, ["100", "200", "500"]);
        assert_eq!((three.chains.len(), three.traffic.len()), (3, 3));
        let plan = plan(&lab(1));
        assert_eq!((plan.cases.len(), plan.left_out.len()), (6 * (3 * 4 + 2), 6 * 2));
    }

    #[test]
    fn the_flow_that_is_served_least_is_reported() {
        let sample =
            Sample::from([("delivered_pps".into(), 5.0), ("delivered_pps.c1".into(), 4.0), ("delivered_pps.c2".into(), 1.0)]);
        let alone = Sample::from([("delivered_pps".into(), 5.0)]);
        let mut rows = vec![Row::new("default/other", &params(&[]), sample), Row::new("default/other", &params(&[]), alone)];
        derive(&mut rows);
        assert_eq!((rows[1].get("jain"), rows[1].get("least_pps")), (Some(1.0), Some(5.0)));
        assert_eq!(rows[0].get("jain"), Some(25.0 / 34.0));
        assert_eq!((rows[0].get("least_pps"), rows[0].get("most_pps")), (Some(1.0), Some(4.0)));
    }
}
