//! `sluice bench mixed-order`: flows through the same NFs in different orders.
//!
//! # Approach
//! Costs 120, 270 and 550 on one core; flow i takes the chain with the i-th of the six orders, in a
//! fixed shuffled sequence ([`MIXED`]), the same in every run. The flows share the line rate. Every
//! NF is first, middle and last at once, so no order of running them is right for all.
//!
//! # Source
//! NFVnice, figure 12.

use serde_json::json;
use sluice_policy::sim::experiments::{MIXED, ORDERS};

use super::simulated::{ERROR, SIMULATED};
use super::{
    COST, COSTS, DELIVERED, ENDS, Hop, JAIN, Mode, OF_DEFAULT, OF_IDEAL, OF_IDEAL_BY_CPU, SCHEDULERS, WASTED, WASTED_PERCENT,
    cases, chain_of, line_rate,
};
use super::{nf_of, params, ratios, stages, traffic_to};
use crate::bench::lab::{Lab, Plan};
use crate::bench::setup::{Class, Setup};
use crate::bench::table::{Form, Group};
use crate::bench::{BenchArgs, Experiment};

pub const EXPERIMENT: Experiment =
    Experiment { name: "mixed-order", about: "1 to 6 flows through the same NFs, each in an order of its own (figure 12)", run };

const GROUP: Group = Group {
    title: "Flows through costs 120, 270 and 550 on one core, each in its own order",
    keys: &["flows"],
    columns: &[DELIVERED, OF_IDEAL, OF_IDEAL_BY_CPU, OF_DEFAULT, WASTED, WASTED_PERCENT, SIMULATED, ERROR, JAIN],
    plotted: 2,
    form: Form::Lines("flows"),
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[COST])?;
    lab.run(&plan(&lab))
}

fn plan(lab: &Lab) -> Plan {
    let mut plan = Plan::new(EXPERIMENT.name, ratios, vec![(GROUP, |_| true)]);
    for flows in 1..=ORDERS.len() {
        let of = params(&[("flows", json!(flows))]);
        plan.cases.extend(cases(&ENDS, &SCHEDULERS, &of, |mode, class| setup(lab, mode, class, flows)));
    }
    plan
}

fn setup(lab: &Lab, mode: Mode, class: Class, flows: usize) -> Setup {
    let core = lab.cores.shared();
    let mut setup = Setup { manager_core: lab.manager_core, sched: Some(mode.sched(class)), ..Setup::default() };
    let hops: Vec<Hop> = COSTS.iter().zip(1..).map(|(cycles, i)| Hop::new(i, core, *cycles)).collect();
    setup.services = match mode {
        Mode::Ideal => vec![stages("ideal", core, &hops)],
        _ => hops.iter().zip(COSTS).map(|(hop, cycles)| nf_of(&hop.name, core, cycles)).collect(),
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
        let six = setup(&lab(1), Mode::Default, Class::Other, 6);
        let chains: std::collections::BTreeSet<_> = six.chains.iter().map(|c| c.services.clone()).collect();
        assert_eq!(chains.len(), 6);
        assert!((six.traffic.iter().map(|t| t.rate).sum::<f64>() - line_rate(64)).abs() < 1.0);
        assert!(six.traffic.iter().all(|t| t.flows == 1));
    }

    #[test]
    fn the_ideal_does_all_chains_in_one_process() {
        let two = setup(&lab(1), Mode::Ideal, Class::Other, 2);
        assert_eq!((two.services.len(), two.chains.len()), (1, 2));
        assert_eq!(plan(&lab(1)).cases.len(), 6 * 3 * 4);
    }
}
