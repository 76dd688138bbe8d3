//! `sluice bench variable-cost`: a chain whose NFs' costs change from packet to packet.
//!
//! # Approach
//! Each of three NFs draws 120, 270 or 550 cycles for each packet, each from another seed. A service time is then no constant, and a
//! median over a window has to do. The ideal draws in each of its stages what the NF in its place draws.
//!
//! # Source
//! NFVnice, figure 10.

use serde_json::json;

use super::{
    COST, COSTS, DELIVERED, Hop, MODES, OF_BEST, OF_DEFAULT, OF_IDEAL, OF_IDEAL_BY_CPU, SCHEDULERS, WASTED, cases, line, params,
    ratios,
};
use crate::lab::{Lab, Plan};
use crate::table::{Column, Form, Group};
use crate::{BenchArgs, Experiment};

/// This experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "variable-cost",
    about: "a chain whose packets cost 120, 270 or 550 in each NF, drawn anew (figure 10)",
    run,
};

const GROUP: Group = Group {
    title: "Three NFs on a core, each packet draws its cost in each of them",
    keys: &[],
    columns: &[
        DELIVERED,
        OF_IDEAL,
        OF_IDEAL_BY_CPU,
        OF_DEFAULT,
        OF_BEST,
        WASTED,
        Column::new("wasted_percent", "% of delivered", 1.0, 3),
        Column::new("cpu_percent.nf1", "CPU 1 %", 1.0, 1),
        Column::new("cpu_percent.nf2", "CPU 2 %", 1.0, 1),
        Column::new("cpu_percent.nf3", "CPU 3 %", 1.0, 1),
    ],
    plotted: 3,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[COST])?;
    lab.run(&plan(&lab))
}

fn hops(lab: &Lab) -> Vec<Hop> {
    (1..=COSTS.len()).map(|i| Hop { cycles: COSTS.into(), ..Hop::new(i, lab.cores.shared(), 0) }).collect()
}

fn plan(lab: &Lab) -> Plan {
    let mut plan = Plan::new(EXPERIMENT.name, ratios, vec![(GROUP, |_| true)]);
    plan.cases =
        cases(&MODES, &SCHEDULERS, &params(&[("nfs", json!(COSTS.len()))]), |mode, class| line(lab, mode, class, &hops(lab)));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::tests::lab;
    use crate::sched::Mode;
    use crate::setup::Class;

    #[test]
    fn hops_and_stages_draw_from_the_same_seeds() {
        let lab = lab(1);
        let setup = line(&lab, Mode::Default, Class::Other, &hops(&lab));
        for (service, seed) in setup.services.iter().zip(["1", "2", "3"]) {
            assert_eq!(service.args, ["--cycles", "120,270,550", "--seed", seed]);
        }
        let ideal = line(&lab, Mode::Ideal, Class::Other, &hops(&lab));
        // Stage i begins at seed + i.
        assert_eq!(ideal.services[0].args[6..], ["--seed", "1"]);
    }
}
