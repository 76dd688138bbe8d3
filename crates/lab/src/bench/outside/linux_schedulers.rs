//! `sluice bench linux-schedulers`: the kernel's schedulers with NFs that poll.
//!
//! # Approach
//! A chain of three MAC swaps on one core. Two of them poll, the third sleeps when it has no
//! packets. Under SCHED_OTHER the two alternate on the core by milliseconds, with packets or
//! without; under SCHED_RR they alternate by its slice; and the sleeping NF runs when they let it.
//! For comparison, the same three run with slices from outside.
//!
//! With `nf_cores` 2, as in the paper, all three poll, and the last one has a core of its own. That
//! needs three cores.
//!
//! # Source
//! UNiS, figure 5.

use serde_json::json;

use super::{Scheduler, UNIT_NS, chain, cycles};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Trials};
use crate::bench::sched::{COST, CPU, DELIVERED, nf_cores, params, schedulers};
use crate::bench::setup::{Class, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "linux-schedulers",
    about: "three NFs that share cores, two or all of which poll, left to the kernel's schedulers (UNiS, figure 5)",
    run: |args| Lab::measure(args, &[COST], plan),
};

/// Whether each NF polls.
const POLLS: [bool; 3] = [false, true, true];

/// The kernel's schedulers but SCHED_BATCH, and slices from outside.
fn variants() -> Vec<(String, Scheduler)> {
    let of_kernel = schedulers().into_iter().filter(|class| *class != Class::Batch);
    let mut all: Vec<_> = of_kernel.map(|class| (format!("linux/{class}"), Scheduler::Linux(class))).collect();
    all.push(("uncooperative/auto".into(), Scheduler::Uncooperative));
    all
}

const GROUP: Group = Group {
    title: "Three MAC swaps on one core, two of which poll, or three that poll on two",
    keys: &["nf_cores", "cost_ns"],
    columns: &[
        DELIVERED,
        CPU[0],
        CPU[1],
        CPU[2],
        Column::new("switches_involuntary_per_s.nf1", "preempted 1 a second", 1.0, 0),
        Column::new("switches_involuntary_per_s.nf2", "preempted 2 a second", 1.0, 0),
        Column::new("latency_ns_p99", "p99 ms", 1e6, 1),
    ],
    plotted: 1,
    form: Form::Bars,
};

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, crate::bench::lab::nothing, vec![(GROUP, |_| true)]);
    let apart = lab.cores.own(2).map(|own| own[1]);
    for (cost_ns, cores) in [0.0, UNIT_NS].into_iter().flat_map(|cost_ns| [1, 2].map(|cores| (cost_ns, cores))) {
        let params = params(&[("cost_ns", json!(cost_ns)), nf_cores(cores)]);
        for (name, sharing) in variants() {
            let last = match (cores, &apart) {
                (1, _) => None,
                (_, Ok(core)) => Some(*core),
                (_, Err(why)) => {
                    plan.leave_out(&name, params.clone(), format!("a core for the last NF: {why}"));
                    continue;
                }
            };
            plan.cases.push(Case::one(name, params.clone(), move |lab| {
                let hz =
                    lab.tsc_hz().ok_or_else(|| Miss::LeaveOut("the frequency of the time-stamp counter is not known".into()))?;
                lab.flow(&setup(lab, sharing, cycles(cost_ns, hz), last))
            }));
        }
    }
    plan
}

/// Three NFs of this cost. If the last one has a core of its own, all of them poll.
fn setup(lab: &Lab, sharing: Scheduler, cycles: u64, last: Option<usize>) -> Setup {
    let Some(core) = last else { return chain(lab, sharing, &[cycles; 3], &POLLS) };
    let mut setup = chain(lab, sharing, &[cycles; 3], &[true; 3]);
    setup.services[2].core = core;
    setup
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;

    #[test]
    fn two_of_three_poll_and_the_daemon_accepts_it() {
        let plan = plan(&lab(1));
        let on_two = plan.cases.iter().filter(|case| case.params["nf_cores"] == 2).count();
        assert_eq!((plan.cases.len() - on_two, on_two + plan.left_out.len()), (2 * 4, 2 * 4));
        for (_, sharing) in variants() {
            let one = setup(&lab(1), sharing, 100, None);
            assert_eq!(one.services.iter().map(|s| s.poll).collect::<Vec<_>>(), POLLS);
            let two = setup(&lab(1), sharing, 100, Some(0));
            assert!(two.services.iter().all(|s| s.poll) && two.services[2].core == 0);
            assert_accepted(&one, &[COST]);
            assert_accepted(&two, &[COST]);
        }
    }
}
