//! `sluice bench nf-weight`: one NF against 45, for light and for heavy NFs.
//!
//! # Approach
//! As `pool-scale`, one NF and [`MANY`] of each kind, alternately: `of_one` is the paper's measure.
//!
//! # Source
//! Flurries, figure 5: 89.7 % of one light NF, 97.2 % of one heavy NF.

use super::{KINDS, NF_CPU, OF_ONE, SWITCHES, case, nfs, of_one, setup};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Lab, Trials};
use crate::bench::sched::{COST, DELIVERED};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment =
    Experiment { name: "nf-weight", about: "one NF against 45 of a light and a heavy kind (Flurries, figure 5)", run };

/// NFs that share the load of one.
const MANY: u32 = 45;

const GROUP: Group = Group {
    title: "One NF and 45",
    keys: &["nfs"],
    columns: &[DELIVERED, OF_ONE, Column::new("nf_ns_per_packet", "NFs' ns/packet", 1.0, 1), SWITCHES, NF_CPU],
    plotted: 2,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[COST])?;
    super::warn_of_small_pages();
    let mut plan = Trials::new(EXPERIMENT.name, of_one, vec![(GROUP, |_| true)]);
    for kind in KINDS {
        plan.cases.extend([1, MANY].map(|members| case(kind.word(), nfs(members), setup(&lab, kind, members, 0.0))));
    }
    lab.run(&plan)
}
