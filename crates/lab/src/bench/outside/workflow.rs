//! `sluice bench workflow`: chains of one to ten NFs that poll on one core.
//!
//! # Approach
//! Every NF swaps addresses and then burns no unit, one unit, one and two units alternately, or
//! four units. The same NFs run with slices from outside, with hand-over, left to the kernel, and
//! as calls in one process; the variants alternate within one run. The first against the second is
//! the cost of slices from outside; the second against the last is the cost of switching at all.
//!
//! # Source
//! UNiS, figures 6 (no load), 7 (one unit) and 8 (one and two units alternately). Four units, 200
//! ns, are ours.

use serde_json::json;

use super::{Scheduler, UNIT_NS, chain, cycles};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::report::Variant;
use crate::bench::sched::{COST, DELIVERED, LINE_RING, params};
use crate::bench::setup::Class;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "workflow",
    about: "chains of 1 to 10 polling NFs on one core, with turns from outside (UNiS, figures 6 to 8)",
    run: |args| Lab::measure(args, &[COST], plan),
};

const LENGTHS: std::ops::RangeInclusive<usize> = 1..=10;
/// Loads in units, repeated along the chain.
const LOADS: [&[f64]; 4] = [&[0.0], &[1.0], &[1.0, 2.0], &[4.0]];
/// Variants, by name.
const VARIANTS: [(&str, Scheduler); 5] = [
    ("uncooperative/auto", Scheduler::Uncooperative),
    ("cooperative/other", Scheduler::Cooperative),
    ("ideal/other", Scheduler::Ideal),
    ("linux/other", Scheduler::Linux(Class::Other)),
    ("linux/rr100", Scheduler::Linux(Class::Rr(100))),
];

const GROUP: Group = Group {
    title: "Chains of NFs that poll on one core",
    keys: &["mean_cost_ns", "nfs"],
    columns: &[
        DELIVERED,
        Column::new("of_cooperative", "of cooperative", 1.0, 3),
        Column::new("of_ideal", "of ideal", 1.0, 3),
        Column::new("of_linux", "of best Linux", 1.0, 1),
        Column::new("wait_ns_p999", "p99.9 wait ms", 1e6, 2),
        Column::new("longest_wait_ns", "longest", 1e6, 2),
        Column::new("wait_bound_ns", "its bound", 1e6, 2),
        Column::new("latency_ns_p50", "p50 µs", 1e3, 0),
        Column::new("latency_ns_p99", "p99 µs", 1e3, 0),
    ],
    plotted: 1,
    form: Form::Lines("nfs"),
};

fn plan(_: &Lab) -> Trials {
    let shown: Vec<crate::bench::lab::Shown> = vec![
        (Group { title: "Chains of NFs that poll on one core: no load (figure 6)", ..GROUP }, |v| is_of_units(v, 0.0)),
        (Group { title: "One unit, 50 ns, in each (figure 7)", ..GROUP }, |v| is_of_units(v, 1.0)),
        (Group { title: "One and two units alternately (figure 8)", ..GROUP }, |v| is_of_units(v, 1.5)),
        (Group { title: "Four units in each", ..GROUP }, |v| is_of_units(v, 4.0)),
    ];
    let mut plan = Trials::new(EXPERIMENT.name, ratios, shown);
    // A turn of the kernel's SCHED_RR lasts 100 ms, and each of ten NFs that poll takes it in full.
    plan.may_serve_nothing = |name, _| name == "linux/rr100";
    for load in LOADS {
        for nfs in LENGTHS {
            let mean = load.iter().sum::<f64>() / load.len() as f64 * UNIT_NS;
            let params = params(&[("nfs", json!(nfs)), ("mean_cost_ns", json!(mean))]);
            let units: Vec<f64> = load.iter().copied().cycle().take(nfs).collect();
            for (name, sharing) in VARIANTS {
                let units = units.clone();
                plan.cases.push(Case::one(name, params.clone(), move |lab| {
                    let hz = lab
                        .tsc_hz()
                        .ok_or_else(|| Miss::LeaveOut("the frequency of the time-stamp counter is not known".into()))?;
                    let costs: Vec<u64> = units.iter().map(|units| cycles(units * UNIT_NS, hz)).collect();
                    let seconds = window_s(lab.args.seconds, sharing, costs.len());
                    lab.flow_for(&chain(lab, sharing, &costs, &vec![true; costs.len()]), seconds)
                }));
            }
        }
    }
    plan
}

/// How long a chain is measured, in seconds: at least two rounds of the kernel's slices, so that
/// each NF has one in any case. A run that is shorter than a slice only tries the experiment.
fn window_s(seconds: f64, sharing: Scheduler, nfs: usize) -> f64 {
    match sharing {
        Scheduler::Linux(Class::Rr(slice_ms)) if seconds * 1e3 >= f64::from(slice_ms) => {
            seconds.max(2.0 * nfs as f64 * f64::from(slice_ms) / 1e3)
        }
        _ => seconds,
    }
}

/// Whether NFs burn this number of units on average.
fn is_of_units(variant: &Variant, units: f64) -> bool {
    variant.params.get("mean_cost_ns").and_then(serde_json::Value::as_f64) == Some(units * UNIT_NS)
}

/// Longest allowed wait of an NF with packets, in nanoseconds: the slices of all others, and a
/// millisecond.
///
/// A slice is at most the time for a whole ring. A packet takes each NF the core's time per packet,
/// divided by the number of NFs.
fn wait_bound_ns(nfs: f64, delivered_pps: f64) -> f64 {
    (nfs - 1.0) * f64::from(LINE_RING) * 1e9 / (delivered_pps * nfs) + 1e6
}

/// Adds each row's rate relative to the cooperative variant, the ideal, and the kernel's best.
pub fn ratios(rows: &mut [Row]) -> Vec<Row> {
    let rates: Vec<(String, crate::bench::report::Params, f64)> =
        rows.iter().filter_map(|row| Some((row.name.clone(), row.params.clone(), row.get("delivered_pps")?))).collect();
    for row in rows {
        let Some(delivered) = row.get("delivered_pps") else { continue };
        let best = |begins: &str| {
            let of = |(name, params, _): &&(String, _, f64)| name.starts_with(begins) && *params == row.params;
            rates.iter().filter(of).map(|(_, _, rate)| *rate).reduce(f64::max).filter(|rate| *rate > 0.0)
        };
        let (cooperative, ideal, linux) = (best("cooperative"), best("ideal"), best("linux"));
        if row.name.starts_with("uncooperative") {
            row.put("of_cooperative", cooperative.map(|base| delivered / base));
            row.put("of_linux", linux.map(|base| delivered / base));
            let nfs = row.params.get("nfs").and_then(serde_json::Value::as_f64).filter(|_| delivered > 0.0);
            row.put("wait_bound_ns", nfs.map(|nfs| wait_bound_ns(nfs, delivered)));
        }
        if !row.name.starts_with("ideal") {
            row.put("of_ideal", ideal.map(|base| delivered / base));
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;
    use crate::bench::sched::tests::row;

    #[test]
    fn every_length_and_load_runs_in_every_way() {
        assert_eq!(plan(&lab(1)).cases.len(), 10 * 4 * 5);
    }

    #[test]
    fn a_measurement_has_two_rounds_of_the_kernels_slices() {
        let rr = Scheduler::Linux(Class::Rr(100));
        for (seconds, sharing, nfs, expected) in [
            (0.3, rr, 1, 0.3),
            (0.3, rr, 3, 0.6),
            (0.3, rr, 10, 2.0),
            (5.0, rr, 10, 5.0),
            (0.01, rr, 10, 0.01),
            (0.3, Scheduler::Cooperative, 10, 0.3),
        ] {
            assert_eq!(window_s(seconds, sharing, nfs), expected, "{nfs} NFs, {seconds} s");
        }
    }

    #[test]
    fn ratios_are_of_the_same_chain() {
        let at = |nfs: u32| [("nfs", json!(nfs)), ("mean_cost_ns", json!(50.0))];
        let mut rows = vec![
            row("uncooperative/auto", &at(1), 9.0),
            row("cooperative/other", &at(1), 10.0),
            row("ideal/other", &at(1), 12.0),
            row("linux/other", &at(1), 0.5),
            row("linux/rr100", &at(1), 0.25),
            row("cooperative/other", &at(2), 100.0),
        ];
        ratios(&mut rows);
        assert_eq!(
            (rows[0].get("of_cooperative"), rows[0].get("of_ideal"), rows[0].get("of_linux")),
            (Some(0.9), Some(0.75), Some(18.0))
        );
        assert_eq!(rows[0].get("wait_bound_ns"), Some(1e6), "of one");
        assert_eq!(wait_bound_ns(4.0, 1e6), 3.0 * 1.024e6 + 1e6);
        assert_eq!((rows[1].get("of_cooperative"), rows[1].get("of_ideal")), (None, Some(10.0 / 12.0)));
        assert_eq!((rows[2].get("of_ideal"), rows[3].get("of_ideal"), rows[5].get("of_ideal")), (None, Some(0.5 / 12.0), None));
    }

    #[test]
    fn the_daemon_accepts_the_configurations() {
        let lab = lab(1);
        for (_, sharing) in VARIANTS {
            assert_accepted(&chain(&lab, sharing, &[0, 130, 260], &[true; 3]), &[COST]);
        }
    }
}
