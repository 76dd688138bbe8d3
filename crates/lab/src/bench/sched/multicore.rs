//! `sluice bench multicore`: a chain with a core per NF.
//!
//! # Approach
//! Costs 550, 2200 and 4500. With separate cores, the last NF is the bottleneck, and the others
//! waste what they do beyond its rate. The kernel's scheduler has nothing to decide, so only
//! backpressure helps: it frees the cores upstream, as their CPU time shows. With too few cores,
//! the chain runs on those that exist; the param `nf_cores` has their number.
//!
//! # Source
//! NFVnice, table 5.

use super::simulated::{ERROR, SIMULATED};
use super::{
    COST, CPU, DELIVERED, HopSpec, MODES, Mode, OF_DEFAULT, OF_IDEAL, OF_IDEAL_BY_CPU, WASTED, cases, line, nf_cores, params,
    place, ratios,
};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Lab, Trials};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "multicore",
    about: "costs 550/2200/4500, on separate cores if there are enough (table 5)",
    run: |args| Lab::measure(args, &[COST], plan),
};

/// With separate cores: without weights alone, which have nothing to weigh.
const APART: [Mode; 5] = [Mode::Default, Mode::Backpressure, Mode::Nfvnice, Mode::Sluice, Mode::Ideal];
const COSTS: [u64; 3] = [550, 2200, 4500];

const GROUP: Group = Group {
    title: "A chain of costs 550, 2200 and 4500",
    keys: &["nf_cores"],
    columns: &[
        DELIVERED,
        OF_IDEAL,
        OF_IDEAL_BY_CPU,
        OF_DEFAULT,
        WASTED,
        SIMULATED,
        ERROR,
        Column::new("processed_pps.nf1", "NF 1 Mpps", 1e6, 3),
        Column::new("processed_pps.nf2", "NF 2 Mpps", 1e6, 3),
        Column::new("processed_pps.nf3", "NF 3 Mpps", 1e6, 3),
        CPU[0],
        CPU[1],
        CPU[2],
    ],
    plotted: 5,
    form: Form::Bars,
};

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, ratios, vec![(GROUP, |_| true)]);
    let placed = place(lab, &mut plan, &APART, COSTS.len());
    let modes = if placed.used == COSTS.len() { &APART[..] } else { &MODES };
    let hops: Vec<HopSpec> =
        COSTS.iter().zip(&placed.cores).zip(1..).map(|((cycles, core), i)| HopSpec::new(i, *core, *cycles)).collect();
    plan.cases = cases(modes, &placed.classes, &params(&[nf_cores(placed.used)]), |mode, class| line(lab, mode, class, &hops));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    #[test]
    fn what_has_too_few_cores_runs_on_those_that_there_are() {
        let lab = lab(1);
        let plan = plan(&lab);
        let fits = lab.cores.own(3).is_ok();
        assert_eq!(plan.left_out.len(), if fits { 0 } else { APART.len() });
        assert_eq!(plan.cases.len(), if fits { 5 } else { 24 });
        let cores = plan.cases[0].params["nf_cores"].as_u64().unwrap();
        assert_eq!(cores == 3, fits);
        assert!(plan.left_out.iter().all(|l| l.params["nf_cores"] == 3 && l.why.contains("physical cores")));
    }
}
