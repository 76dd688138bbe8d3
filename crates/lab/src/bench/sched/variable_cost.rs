//! `sluice bench variable-cost`: a chain whose NFs' costs change from packet to packet.
//!
//! # Approach
//! Each of three NFs draws 120, 270 or 550 cycles per packet, each from its own seed. The service
//! time is no constant then, so a median over a window has to do. Each stage of the ideal draws the
//! same costs as its NF.
//!
//! # Source
//! NFVnice, figure 10.

use super::chain::cases_of;
use super::simulated::{ERROR, SIMULATED};
use super::{COST, COSTS, CPU, DELIVERED, HopSpec, OF_BEST, OF_DEFAULT, OF_IDEAL, OF_IDEAL_BY_CPU, WASTED, WASTED_PERCENT, ratios};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Lab, Trials};
use crate::bench::table::{Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "variable-cost",
    about: "a chain whose packets cost 120, 270 or 550 in each NF, drawn anew (figure 10)",
    run: |args| Lab::measure(args, &[COST], plan),
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
        WASTED_PERCENT,
        SIMULATED,
        ERROR,
        CPU[0],
        CPU[1],
        CPU[2],
    ],
    plotted: 3,
    form: Form::Bars,
};

fn hops(lab: &Lab) -> Vec<HopSpec> {
    (1..=COSTS.len()).map(|i| HopSpec { cycles: COSTS.into(), ..HopSpec::new(i, lab.cores.shared(), 0) }).collect()
}

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, ratios, vec![(GROUP, |_| true)]);
    plan.cases = cases_of(lab, &hops(lab));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;
    use crate::bench::sched::{Mode, line};
    use crate::bench::setup::Class;

    #[test]
    fn hops_draw_from_seeds_of_their_own_and_the_ideal_from_the_same() {
        let lab = lab(1);
        let setup = line(&lab, Mode::Default, Class::Other, &hops(&lab));
        for (service, seed) in setup.services.iter().zip(["1", "2", "3"]) {
            assert_eq!(service.args, ["--cycles", "120,270,550", "--seed", seed]);
        }
        assert_eq!(line(&lab, Mode::Ideal, Class::Other, &hops(&lab)).services, setup.services);
    }
}
