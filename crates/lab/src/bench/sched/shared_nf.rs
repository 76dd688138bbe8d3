//! `sluice bench shared-nf`: two chains with common NFs, one with a bottleneck of its own.
//!
//! # Approach
//! ```text
//! c1: nf1 (270) ─► nf2 (120)  ─► nf4 (300)
//! c2: nf1 (270) ─► nf3 (4500) ─► nf4 (300)
//! ```
//! Both chains arrive at half the line rate. Under the default, packets of c2 that die before nf3
//! take nf1's time from c1; backpressure refuses c2 at its entry and leaves c1 alone. The ideal has
//! a process per chain, both on the same core.
//!
//! # Limits
//! The ideal is no bound, and `of_ideal` can be above 1: its two processes share the core by
//! weights, and more packets pass in all where more of c1 do, which cost less. It is left out on
//! several cores, where the division of the shared NFs would be an assumption.
//!
//! # Source
//! NFVnice, figures 8 and 9, table 6.

use serde_json::json;

use super::simulated::{ERROR, SIMULATED};
use super::{COST, CPU, DELIVERED, JAIN, MODES, Mode, OF_DEFAULT, OF_IDEAL, OF_IDEAL_BY_CPU, WASTED, cases, chain_of, line_rate};
use super::{name_of, nf_cores, nf_of, params, place, ratios, run_of, traffic_to};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Lab, Trials};
use crate::bench::setup::{Chain, Class, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "shared-nf",
    about: "two chains over four NFs, one with a bottleneck of its own (figure 9, table 6)",
    run: |args| Lab::measure(args, &[COST], plan),
};

/// With separate cores: without weights alone, which have nothing to weigh, and without the ideal.
const APART: [Mode; 4] = [Mode::Default, Mode::Backpressure, Mode::Nfvnice, Mode::Sluice];
const COSTS: [u64; 4] = [270, 120, 4500, 300];
/// Services of the chains, by number from 0.
const CHAINS: [[usize; 3]; 2] = [[0, 1, 3], [0, 2, 3]];

const GROUP: Group = Group {
    title: "Two chains with their first and last NF in common",
    keys: &["nf_cores"],
    columns: &[
        DELIVERED,
        Column::new("delivered_pps.c1", "c1 Mpps", 1e6, 3),
        Column::new("delivered_pps.c2", "c2 Mpps", 1e6, 3),
        OF_IDEAL,
        OF_IDEAL_BY_CPU,
        OF_DEFAULT,
        WASTED,
        SIMULATED,
        ERROR,
        JAIN,
        CPU[0],
        CPU[1],
        CPU[2],
        CPU[3],
    ],
    plotted: 3,
    form: Form::Bars,
};

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, ratios, vec![(GROUP, |_| true)]);
    let placed = place(lab, &mut plan, &APART, COSTS.len());
    let mut modes = if placed.used == COSTS.len() { APART.to_vec() } else { MODES.to_vec() };
    if placed.used > 1 {
        modes.retain(|mode| *mode != Mode::Ideal);
        let why = "its NFs are on several cores, and how they would be divided is not a measurement";
        plan.leave_out(&name_of(Mode::Ideal, Class::Other), params(&[nf_cores(placed.used)]), why);
    }
    let of = params(&[nf_cores(placed.used), ("chains", json!(CHAINS.len()))]);
    plan.cases = cases(&modes, &placed.classes, &of, |mode, class| setup(lab, mode, class, &placed.cores));
    plan
}

fn setup(lab: &Lab, mode: Mode, class: Class, cores: &[usize]) -> Setup {
    let mut setup = Setup { manager_core: lab.manager_core, sched: Some(mode.sched(class)), ..Setup::default() };
    let name = |i: usize| format!("nf{}", i + 1);
    setup.services = COSTS.iter().zip(cores).enumerate().map(|(i, (cycles, core))| nf_of(&name(i), *core, *cycles)).collect();
    for (i, services) in CHAINS.iter().enumerate() {
        let chain = format!("c{}", i + 1);
        setup.traffic.push(traffic_to(&chain, line_rate(64) / CHAINS.len() as f64));
        let names: Vec<String> = services.iter().map(|s| name(*s)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        setup.chains.push(Chain { run: run_of(mode), ..chain_of(&chain, &names) });
    }
    setup
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;
    use sluice_api::config::Run;

    #[test]
    fn chains_share_their_ends() {
        let lab = lab(1);
        let shared = setup(&lab, Mode::Sluice, Class::Other, &[1, 1, 1, 1]);
        assert_eq!(shared.services.len(), 4);
        assert_eq!(shared.chains[0].services, ["nf1", "nf2", "nf4"]);
        assert_eq!(shared.chains[1].services, ["nf1", "nf3", "nf4"]);
        let ideal = setup(&lab, Mode::Ideal, Class::Other, &[1, 1, 1, 1]);
        assert!(ideal.chains.iter().all(|chain| chain.run == Run::Fused));
    }

    #[test]
    fn a_variant_is_run_or_left_out() {
        let lab = lab(1);
        let plan = plan(&lab);
        let on_one = plan.cases.iter().any(|case| case.name == "ideal/other");
        assert_eq!(on_one, !plan.left_out.iter().any(|l| l.name == "ideal/other"));
        assert_eq!(plan.left_out.iter().any(|l| l.why.contains("physical cores")), lab.cores.own(4).is_err());
    }
}
