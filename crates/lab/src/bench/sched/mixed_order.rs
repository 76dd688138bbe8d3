//! `sluice bench mixed-order`: flows through the same NFs in different orders.
//!
//! # Approach
//! Three NFs on one core; flow i takes the chain with the i-th of the six orders, in a fixed
//! shuffled sequence ([`MIXED`]), the same in every run. The flows share the line rate. Every NF is
//! first, middle and last at once, so no order of running them is right for all. The paper's NFs
//! cost the same (`costs` 270/270/270); those of 120/270/550 are ours.
//!
//! # Source
//! NFVnice, figure 12.

use serde_json::json;
use sluice_policy::sim::experiments::{MIXED, ORDERS};

use super::simulated::{ERROR, SIMULATED};
use super::{
    COST, COSTS, DELIVERED, ENDS, HopSpec, JAIN, Mode, OF_DEFAULT, OF_IDEAL, OF_IDEAL_BY_CPU, WASTED, WASTED_PERCENT, cases,
    chain_of, line_rate,
};
use super::{nf_of, params, ratios, schedulers, stages, traffic_to};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Lab, Trials};
use crate::bench::setup::{Class, Setup};
use crate::bench::table::{Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "mixed-order",
    about: "1 to 6 flows through the same NFs, each in an order of its own (figure 12)",
    run: |args| Lab::measure(args, &[COST], plan),
};

/// Equal costs, as in the paper.
const EQUAL: [u64; 3] = [270; 3];

const GROUP: Group = Group {
    title: "Flows through three NFs on one core, each in its own order",
    keys: &["costs", "flows"],
    columns: &[DELIVERED, OF_IDEAL, OF_IDEAL_BY_CPU, OF_DEFAULT, WASTED, WASTED_PERCENT, SIMULATED, ERROR, JAIN],
    plotted: 2,
    form: Form::Lines("flows"),
};

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, ratios, vec![(GROUP, |_| true)]);
    for costs in [EQUAL, COSTS] {
        let words = costs.map(|cycles| cycles.to_string()).join("/");
        for flows in 1..=ORDERS.len() {
            let of = params(&[("costs", json!(words)), ("flows", json!(flows))]);
            plan.cases.extend(cases(&ENDS, &schedulers(), &of, |mode, class| setup(lab, mode, class, costs, flows)));
        }
    }
    plan
}

fn setup(lab: &Lab, mode: Mode, class: Class, costs: [u64; 3], flows: usize) -> Setup {
    let core = lab.cores.shared();
    let mut setup = Setup { manager_core: lab.manager_core, sched: Some(mode.sched(class)), ..Setup::default() };
    let hops: Vec<HopSpec> = costs.iter().zip(1..).map(|(cycles, i)| HopSpec::new(i, core, *cycles)).collect();
    setup.services = match mode {
        Mode::Ideal => vec![stages("ideal", core, &hops)],
        _ => hops.iter().zip(costs).map(|(hop, cycles)| nf_of(&hop.name, core, cycles)).collect(),
    };
    for (i, order) in MIXED.iter().map(|i| ORDERS[*i]).take(flows).enumerate() {
        let chain = format!("c{}", i + 1);
        let mut traffic = traffic_to(&chain, line_rate(64) / flows as f64);
        traffic.flows = 1;
        setup.traffic.push(traffic);
        let names: Vec<&str> = match mode {
            Mode::Ideal => vec!["ideal"],
            _ => order.iter().map(|i| hops[*i].name.as_str()).collect(),
        };
        setup.chains.push(chain_of(&chain, &names));
    }
    setup
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    #[test]
    fn every_flow_has_an_order_of_its_own() {
        let mut mixed = MIXED;
        mixed.sort_unstable();
        assert_eq!(mixed, [0, 1, 2, 3, 4, 5]);
        let six = setup(&lab(1), Mode::Default, Class::Other, COSTS, 6);
        let chains: std::collections::BTreeSet<_> = six.chains.iter().map(|c| c.services.clone()).collect();
        assert_eq!(chains.len(), 6);
        assert!((six.traffic.iter().map(|t| t.rate).sum::<f64>() - line_rate(64)).abs() < 1.0);
        assert!(six.traffic.iter().all(|t| t.flows == 1));
    }

    #[test]
    fn the_ideal_does_all_chains_in_one_process() {
        let two = setup(&lab(1), Mode::Ideal, Class::Other, EQUAL, 2);
        assert_eq!((two.services.len(), two.chains.len()), (1, 2));
        assert_eq!(plan(&lab(1)).cases.len(), 2 * 6 * 4 * 4);
    }
}
