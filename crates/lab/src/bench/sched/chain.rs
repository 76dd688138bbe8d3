//! `sluice bench chain`: three NFs on one core, by mode and scheduler.
//!
//! # Approach
//! Costs 120, 270 and 550 on one core at line rate. A packet for which the third NF has no room has
//! wasted the work of the first two. The default shows how much is wasted where; backpressure
//! refuses such packets at the entry; weights give each NF what it needs; the ideal is the core's
//! upper bound. Beside the default under SCHED_OTHER, the same NFs poll.
//!
//! # Source
//! NFVnice, figure 7 and tables 3 and 4.

use serde_json::json;

use super::simulated::{ERROR, SIMULATED};
use super::{
    COST, COSTS, CPU, DELIVERED, HopSpec, MODES, Mode, OF_BEST, OF_DEFAULT, OF_IDEAL, OF_IDEAL_BY_CPU, WASTED, WASTED_PERCENT,
    cases, line, params, ratios, schedulers,
};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Trials};
use crate::bench::report::Params;
use crate::bench::setup::Class;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "chain",
    about: "costs 120/270/550 on one core, in every mode under every scheduler (figure 7)",
    run: |args| Lab::measure(args, &[COST], plan),
};

const RATES: Group = Group {
    title: "A chain of costs 120, 270 and 550 on one core",
    keys: &[],
    columns: &[
        DELIVERED,
        OF_IDEAL,
        OF_IDEAL_BY_CPU,
        OF_DEFAULT,
        OF_BEST,
        WASTED,
        WASTED_PERCENT,
        Column::new("wasted_pps.nf1", "wasted of NF 1 kpps", 1e3, 1),
        Column::new("wasted_pps.nf2", "of NF 2", 1e3, 1),
        SIMULATED,
        ERROR,
        Column::new("entry_drop_pps", "refused Mpps", 1e6, 2),
        Column::new("latency_ns_p50", "p50 µs", 1e3, 0),
        Column::new("latency_ns_p99", "p99 µs", 1e3, 0),
    ],
    plotted: 6,
    form: Form::Bars,
};
const TIMES: Group = Group {
    title: "Time on the core, delay until it was given, and context switches, of each NF",
    keys: &[],
    columns: &[
        CPU[0],
        CPU[1],
        CPU[2],
        Column::new("sched_delay_ns.nf1", "delay 1 µs", 1e3, 1),
        Column::new("sched_delay_ns.nf2", "delay 2 µs", 1e3, 1),
        Column::new("sched_delay_ns.nf3", "delay 3 µs", 1e3, 1),
        Column::new("run_ms.nf1", "run 1 ms", 1.0, 0),
        Column::new("run_ms.nf2", "run 2 ms", 1.0, 0),
        Column::new("run_ms.nf3", "run 3 ms", 1.0, 0),
        Column::new("switches_voluntary_per_s.nf1", "vol/s 1", 1.0, 0),
        Column::new("switches_voluntary_per_s.nf2", "vol/s 2", 1.0, 0),
        Column::new("switches_voluntary_per_s.nf3", "vol/s 3", 1.0, 0),
        Column::new("switches_involuntary_per_s.nf1", "invol/s 1", 1.0, 0),
        Column::new("switches_involuntary_per_s.nf2", "invol/s 2", 1.0, 0),
        Column::new("switches_involuntary_per_s.nf3", "invol/s 3", 1.0, 0),
    ],
    plotted: 3,
    form: Form::Bars,
};

/// The three hops, on the NFs' shared core.
pub fn hops(lab: &Lab) -> Vec<HopSpec> {
    COSTS.iter().zip(1..).map(|(cycles, i)| HopSpec::new(i, lab.cores.shared(), *cycles)).collect()
}

pub fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, ratios, vec![(RATES, |_| true), (TIMES, |v| !v.name.starts_with("ideal"))]);
    let hops = hops(lab);
    plan.cases = cases_of(lab, &hops);
    let polling = cases(&[Mode::Poll], &[Class::Other], &nfs(&hops), |mode, class| line(lab, mode, class, &hops));
    // After the default.
    drop(plan.cases.splice(1..1, polling));
    plan
}

fn nfs(hops: &[HopSpec]) -> Params {
    params(&[("nfs", json!(hops.len()))])
}

/// A chain of these hops in every mode under every scheduler.
pub fn cases_of(lab: &Lab, hops: &[HopSpec]) -> Vec<Case> {
    cases(&MODES, &schedulers(), &nfs(hops), |mode, class| line(lab, mode, class, hops))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    #[test]
    fn every_mode_runs_under_every_scheduler_with_its_ideal() {
        let plan = plan(&lab(1));
        let names: Vec<&str> = plan.cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), 25);
        let first =
            ["default/other", "poll/other", "weights/other", "backpressure/other", "nfvnice/other", "sluice/other", "ideal/other"];
        assert_eq!(names[..7], first);
        assert_eq!(names[24], "ideal/rr100");
    }
}
