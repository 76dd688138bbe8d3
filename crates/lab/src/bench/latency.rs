//! `sluice bench latency`: how long packets take through three bridges on one core, by load.
//!
//! # Terms
//! - *isolated*: the bridges are processes that sleep and hand their core over; *fused*: one
//!   process; *inline*: in the packet thread.
//! - *Capacity*: what a chain delivers of a generator that is as fast as it can be. It is measured
//!   once for each way to run, before the first variant that needs it, so that all turns have the
//!   same rates.
//!
//! # Approach
//! `…/load` has a part of capacity, `…/rate` a number of packets a second, which is the same for
//! two builds that are compared. Packets have 64 bytes on the wire and [`FLOWS`] flows. Latency is
//! from entry to exit, by the daemon's histograms, whose resolution is an eighth. `…/load` times
//! one packet in 128, `…/rate` each packet.
//!
//! # Limits
//! The generator makes a packet when it is due, in the packet thread: a thread that is late makes
//! it late, and that time is not measured. The highest quantiles are those of the host, which takes
//! cores away: compare in turns.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::Context;
use serde_json::json;

use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Shown, Trials, nothing};
use crate::bench::report::Params;
use crate::bench::setup::{Chain, Service, Setup, Traffic};
use crate::bench::table::{Column, Form, Group};
use sluice_api::config::Run;

pub const EXPERIMENT: Experiment = Experiment {
    name: "latency",
    about: "latency through three bridges on one core, isolated, fused and inline, by load",
    run: |args| Lab::measure(args, &[NF], |_| plan()),
};

const NF: &str = "sluice-nf-bridge";
const NFS: usize = 3;
const RUNS: [Run; 3] = [Run::Isolated, Run::Fused, Run::Inline];
/// Percent of capacity.
const LOADS: [u64; 3] = [10, 50, 90];
/// Packets per second.
const RATES: [u64; 4] = [10_000, 100_000, 1_000_000, 5_000_000];
const FLOWS: u32 = 16;
const RING: u32 = 2048;
/// Times each packet.
const EACH: &str = "latency_sample = 1\n";

const COLUMNS: &[Column] = &[
    Column::new("latency_ns_p50", "p50 µs", 1e3, 1),
    Column::new("latency_ns_p99", "p99 µs", 1e3, 1),
    Column::new("latency_ns_p999", "p99.9 µs", 1e3, 1),
    Column::new("delivered_pps", "delivered Mpps", 1e6, 2),
    Column::new("entry_drop_pps", "entry drops pps", 1.0, 0),
    Column::new("cpu_percent.b1", "CPU 1 %", 1.0, 0),
    Column::new("wakes_per_s.b1", "wakes/s of 1", 1.0, 0),
];
const BY_LOAD: Group =
    Group { title: "Latency, by percent of capacity", keys: &["load_percent"], columns: COLUMNS, plotted: 3, form: Form::Bars };
const BY_RATE: Group =
    Group { title: "Latency, by packets a second", keys: &["rate_pps"], columns: COLUMNS, plotted: 3, form: Form::Bars };

/// Packets per second that each way to run carries.
type Capacities = Rc<RefCell<BTreeMap<&'static str, f64>>>;

fn plan() -> Trials {
    let groups: Vec<Shown> =
        vec![(BY_LOAD, |v| v.params.contains_key("load_percent")), (BY_RATE, |v| v.params.contains_key("rate_pps"))];
    let mut plan = Trials::new(EXPERIMENT.name, nothing, groups);
    let capacities = Capacities::default();
    for run in RUNS {
        for load in LOADS {
            let capacities = capacities.clone();
            plan.cases.push(Case::one(format!("{}/load", run.word()), params(run, "load_percent", load), move |lab| {
                let rate = capacity(lab, run, &capacities)? * load as f64 / 100.0;
                lab.flow(&setup(lab, run, rate))
            }));
        }
        for rate in RATES {
            plan.cases.push(Case::one(format!("{}/rate", run.word()), params(run, "rate_pps", rate), move |lab| {
                lab.flow(&Setup { manager: EACH, ..setup(lab, run, rate as f64) })
            }));
        }
    }
    plan
}

fn params(run: Run, key: &str, value: u64) -> Params {
    [("run", json!(run.word())), ("nfs", json!(NFS)), (key, json!(value))].map(|(key, value)| (key.to_string(), value)).into()
}

/// A way's capacity, measured if it is not known.
fn capacity(lab: &Lab, run: Run, known: &Capacities) -> Result<f64, Miss> {
    if let Some(pps) = known.borrow().get(run.word()) {
        return Ok(*pps);
    }
    let pps = lab.flow(&setup(lab, run, 0.0))?.get("delivered_pps").copied().filter(|pps| *pps > 0.0);
    let pps = pps.context("nothing was delivered of a generator that is as fast as it can be")?;
    known.borrow_mut().insert(run.word(), pps);
    Ok(pps)
}

/// The bridges, and packets at this rate; 0: as fast as possible.
fn setup(lab: &Lab, run: Run, rate: f64) -> Setup {
    let core = lab.cores.shared();
    let bridge = |i: usize| Service { name: format!("b{i}"), exec: NF.into(), core, ring: RING, ..Service::default() };
    let services: Vec<Service> = (1..=NFS).map(bridge).collect();
    Setup {
        manager_core: lab.manager_core,
        traffic: vec![Traffic { rate, flows: FLOWS, ..Traffic::default() }],
        chains: vec![Chain { services: services.iter().map(|s| s.name.clone()).collect(), run, ..Chain::default() }],
        services,
        ..Setup::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;
    use crate::bench::report::Variant;

    #[test]
    fn the_daemon_accepts_each_variant() {
        let lab = lab(1);
        for run in RUNS {
            assert_accepted(&setup(&lab, run, 1e4), &[NF]);
            assert_accepted(&Setup { manager: EACH, ..setup(&lab, run, 0.0) }, &[NF]);
        }
    }

    #[test]
    fn each_variant_is_in_one_group() {
        let plan = plan();
        assert_eq!(plan.cases.len(), RUNS.len() * (LOADS.len() + RATES.len()));
        for case in &plan.cases {
            let variant = Variant::new(&case.name, case.params.clone());
            assert_eq!(plan.groups.iter().filter(|(_, belongs)| belongs(&variant)).count(), 1, "{}", case.name);
        }
        assert!(plan.cases.iter().any(|case| case.name == "fused/load" && case.params["load_percent"] == json!(50)));
    }

    #[test]
    fn a_capacity_is_measured_once() {
        let known = Capacities::default();
        known.borrow_mut().insert(Run::Fused.word(), 2e6);
        // This lab starts nothing.
        assert_eq!(capacity(&lab(1), Run::Fused, &known).unwrap(), 2e6);
        assert!(capacity(&lab(1), Run::Inline, &known).is_err());
    }
}
