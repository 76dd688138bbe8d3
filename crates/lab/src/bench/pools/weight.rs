//! `sluice bench nf-weight`: one NF against 45, for light and for heavy NFs.
//!
//! # Approach
//! As `pool-scale`, one NF and [`MANY`] of each kind, alternately: `of_one` is the paper's measure.
//! `67ns` and `162ns` cost as much as the paper's light and heavy NF; `light` and `heavy` are those
//! of `pool-scale`, which are further apart.
//!
//! # Source
//! Flurries, figure 5: 89.7 % of one light NF, 97.2 % of one heavy NF.

use super::{KINDS, Kind, NF_CPU, OF_ONE, SWITCHES, args, case, nfs, of_one, setup};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Lab, Trials};
use crate::bench::outside::cycles;
use crate::bench::sched::{COST, DELIVERED};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment =
    Experiment { name: "nf-weight", about: "one NF against 45 of light and heavy kinds (Flurries, figure 5)", run };

/// NFs that share the load of one.
const MANY: u32 = 45;
/// Costs of the paper's NFs, in nanoseconds per packet.
const PAPER_NS: [f64; 2] = [67.0, 162.0];

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
    lab.run(&plan(&lab, lab.tsc_hz()))
}

/// `tsc_hz` is the frequency of the time-stamp counter, if known.
fn plan(lab: &Lab, tsc_hz: Option<f64>) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, of_one, vec![(GROUP, |_| true)]);
    for kind in KINDS {
        plan.cases.extend([1, MANY].map(|members| case(kind.word(), nfs(members), setup(lab, kind, members, 0.0))));
    }
    for (ns, members) in PAPER_NS.iter().flat_map(|ns| [1, MANY].map(|members| (*ns, members))) {
        let name = format!("{ns}ns");
        let Some(hz) = tsc_hz else {
            plan.leave_out(&name, nfs(members), "the frequency of the time-stamp counter is not known");
            continue;
        };
        let mut of = setup(lab, Kind::Light, members, 0.0);
        of.services.iter_mut().for_each(|service| service.args = args(cycles(ns, hz)));
        plan.cases.push(case(&name, nfs(members), of));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    #[test]
    fn the_costs_are_the_papers_where_the_clock_is_known() {
        let known = plan(&lab(1), Some(2e9));
        let names: Vec<&str> = known.cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["light", "light", "heavy", "heavy", "67ns", "67ns", "162ns", "162ns"]);
        assert_eq!(args(cycles(PAPER_NS[1], 2e9)), ["--swap-macs", "--cycles", "324"]);
        let unknown = plan(&lab(1), None);
        assert_eq!((unknown.cases.len(), unknown.left_out.len()), (4, 4));
    }
}
