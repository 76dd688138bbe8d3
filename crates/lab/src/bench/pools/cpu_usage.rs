//! `sluice bench cpu-usage`: CPU time of 20 NFs against the offered rate.
//!
//! # Approach
//! Light NFs with a flow each, at rates from nothing to the last of [`RATES`]. `nf_cpu_percent` is
//! by the kernel's count. The manager polls its ports in both cases, because it cannot sleep on
//! generators; `manager_busy_percent` is the part of its time in which it has packets.
//!
//! # Source
//! Flurries, figures 4b (delivered rate) and 4c (CPU time).

use serde_json::Value;

use super::{Kind, NF_CPU, P50, P99, SWITCHES, case, nfs_and, setup};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Lab, Trials, nothing};
use crate::bench::sched::{COST, DELIVERED};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment =
    Experiment { name: "cpu-usage", about: "processor time of 20 NFs against the offered rate (Flurries, figures 4b, 4c)", run };

const MEMBERS: u32 = 20;
/// Packets per second. A generator's minimum is a packet per hour, which stands for none.
const RATES: [f64; 8] = [1.0 / 3600.0, 1e3, 1e4, 1e5, 5e5, 1e6, 2e6, 4e6];

const GROUP: Group = Group {
    title: "20 NFs on one core",
    keys: &["rate_pps"],
    columns: &[
        NF_CPU,
        DELIVERED,
        Column::new("manager_busy_percent", "manager busy %", 1.0, 1),
        P50,
        P99,
        SWITCHES,
        Column::new("wasted_pps", "wasted pps", 1.0, 0),
    ],
    plotted: 3,
    form: Form::Lines("rate_pps"),
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[COST])?;
    super::warn_of_small_pages();
    let mut plan = Trials::new(EXPERIMENT.name, nothing, vec![(GROUP, |_| true)]);
    plan.may_serve_nothing = |_, of| of.get("rate_pps").and_then(Value::as_f64) == Some(0.0);
    for rate in RATES {
        for (name, poll) in [("sleep", false), ("poll", true)] {
            let mut of = setup(&lab, Kind::Light, MEMBERS, rate);
            of.services.iter_mut().for_each(|service| service.poll = poll);
            plan.cases.push(case(name, nfs_and(MEMBERS, "rate_pps", rate.round()), of));
        }
    }
    lab.run(&plan)
}
