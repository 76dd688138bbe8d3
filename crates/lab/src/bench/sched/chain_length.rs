//! `sluice bench chain-length`: chains of one to ten NFs, on one core and on several.
//!
//! # Approach
//! Costs 120, 270, 550, repeated. On one core each further NF takes its cost from all others. The
//! loss beyond that, relative to the ideal, is the cost of switches and hops. On several cores
//! (`nf_cores`) NFs are placed round-robin.
//!
//! # Source
//! NFVnice, figure 16.

use serde_json::json;

use super::simulated::{ERROR, SIMULATED};
use super::{
    COST, COSTS, DELIVERED, ENDS, HopSpec, OF_DEFAULT, OF_IDEAL, OF_IDEAL_BY_CPU, WASTED, cases, line, name_of, nf_cores, params,
    ratios,
};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Lab, Trials};
use crate::bench::setup::Class;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "chain-length",
    about: "chains of 1 to 10 NFs, on one core and on several (figure 16)",
    run: |args| Lab::measure(args, &[COST], plan),
};

const LENGTHS: std::ops::RangeInclusive<usize> = 1..=10;
/// Most cores for NFs.
const MOST_CORES: usize = 3;
const SCHEDULERS: [Class; 2] = [Class::Other, Class::Batch];

const GROUP: Group = Group {
    title: "Chains of costs 120, 270, 550, 120, …",
    keys: &["nf_cores", "nfs"],
    columns: &[
        DELIVERED,
        SIMULATED,
        ERROR,
        OF_IDEAL,
        OF_IDEAL_BY_CPU,
        OF_DEFAULT,
        WASTED,
        Column::new("latency_ns_p50", "p50 µs", 1e3, 0),
        Column::new("latency_ns_p99", "p99 µs", 1e3, 0),
    ],
    plotted: 2,
    form: Form::Lines("nfs"),
};

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, ratios, vec![(GROUP, |_| true)]);
    let several = (2..=MOST_CORES).rev().find_map(|n| lab.cores.own(n).ok().map(<[usize]>::to_vec));
    if several.as_ref().is_none_or(|cores| cores.len() < MOST_CORES) {
        let why = format!("NFs on {MOST_CORES} cores: {}", lab.cores.own(MOST_CORES).err().unwrap_or_default());
        let of = params(&[("nfs", json!(LENGTHS.end())), nf_cores(MOST_CORES)]);
        for (mode, class) in ENDS.iter().flat_map(|mode| SCHEDULERS.map(|class| (*mode, class))) {
            plan.leave_out(&name_of(mode, class), of.clone(), why.clone());
        }
    }
    for cores in std::iter::once(vec![lab.cores.shared()]).chain(several) {
        // Fewer NFs than cores would leave some without.
        for nfs in LENGTHS.filter(|nfs| *nfs >= cores.len()) {
            let hops: Vec<HopSpec> =
                (0..nfs).map(|i| HopSpec::new(i + 1, cores[i % cores.len()], COSTS[i % COSTS.len()])).collect();
            let of = params(&[("nfs", json!(nfs)), nf_cores(cores.len())]);
            plan.cases.extend(cases(&ENDS, &SCHEDULERS, &of, |mode, class| line(lab, mode, class, &hops)));
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    #[test]
    fn every_length_runs_on_one_core() {
        let plan = plan(&lab(1));
        let on_one = plan.cases.iter().filter(|case| case.params["nf_cores"] == 1).count();
        assert_eq!(on_one, 10 * 4 * 2);
        let is_on_most = plan.cases.iter().any(|case| case.params["nf_cores"] == MOST_CORES);
        assert_eq!(is_on_most, plan.left_out.is_empty());
    }
}
