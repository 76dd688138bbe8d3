//! `sluice bench idle-pool`: the cost of idle NFs to busy ones.
//!
//! # Approach
//! Sixteen flows, each with its own NF of a pool, at half of what a core carries and in overload;
//! beside them, a number of idle members waits for flows. Idle members have no packets. They cost
//! memory, a scan of their core's page by each NF that goes to sleep, and the manager's work per
//! NF.
//!
//! Not a figure of the paper: Flurries' figure 10 is the time until an idle NF is found.

use serde_json::json;

use super::{Together, pooled, wait_for_members};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::Sample;
use crate::bench::sched::{COST, Mode, chain_of, line_rate, params, traffic_to};
use crate::bench::setup::{Class, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "idle-pool",
    about: "throughput and latency of 16 flows' NFs beside 0 to 2,000 idle members of their pool",
    run: |args| Lab::measure(args, &[COST], |_| plan()),
};

const ACTIVE: u32 = 16;
const IDLE: [u32; 5] = [0, 100, 500, 1_000, 2_000];
const CYCLES: u64 = 500;
/// Packets per second for the measurement of latency.
const MODERATE_PPS: f64 = 500e3;
const POLICY: &str = "adaptive";

const GROUP: Group = Group {
    title: "16 flows with an NF each, beside idle members of their pool",
    keys: &["idle"],
    columns: &[
        Column::new("delivered_pps", "Mpps", 1e6, 3),
        Column::new("latency_ns_p50", "p50 µs", 1e3, 1),
        Column::new("latency_ns_p99", "p99 µs", 1e3, 0),
        Column::new("switches_per_s", "switches/s", 1.0, 0),
        Column::new("cpu_percent", "NFs' CPU %", 1.0, 0),
        Column::new("of_alone", "of no idle ones", 1.0, 3),
    ],
    plotted: 2,
    form: Form::Lines("idle"),
};

fn plan() -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, derive, vec![(GROUP, |_| true)]);
    for (load, rate) in [("moderate", MODERATE_PPS), ("overload", line_rate(64))] {
        for idle in IDLE {
            let name = format!("{POLICY}/{load}");
            let of = params(&[("idle", json!(idle)), ("flows", json!(ACTIVE))]);
            plan.cases.push(Case::one(name, of, move |lab| one(lab, idle, rate)));
        }
    }
    plan
}

fn setup(lab: &Lab, idle: u32, rate: f64) -> Setup {
    let mut traffic = traffic_to("c", rate);
    traffic.flows = ACTIVE;
    Setup {
        manager_core: lab.manager_core,
        sched: Some(Mode::Sluice.sched(Class::Other)),
        traffic: vec![traffic],
        chains: vec![chain_of("c", &["pool"])],
        more: pooled("pool", lab.cores.shared(), CYCLES, (POLICY, "flow"), ACTIVE + idle),
        ..Setup::default()
    }
}

fn one(lab: &Lab, idle: u32, rate: f64) -> Result<Sample, Miss> {
    let setup = setup(lab, idle, rate);
    let daemon = lab.start(&setup)?;
    wait_for_members(&daemon, ACTIVE + idle)?;
    lab.warm_up()?;
    let before = lab.read(&daemon)?;
    lab.programs.pause(std::time::Duration::from_secs_f64(lab.args.seconds))?;
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    let mut out = crate::bench::measure::sample(&setup, &before, &after);
    // Metrics of one NF mean nothing for many that share its name.
    out.retain(|metric, _| !metric.ends_with(".pool"));
    out.extend(Together::of(&before, &after).metrics());
    Ok(out)
}

/// The delivered rate, relative to that without idle members.
fn derive(rows: &mut [Row]) -> Vec<Row> {
    let alone: Vec<(String, f64)> = rows
        .iter()
        .filter(|row| row.params.get("idle") == Some(&json!(0)))
        .filter_map(|row| Some((row.name.clone(), row.get("delivered_pps").filter(|pps| *pps > 0.0)?)))
        .collect();
    for row in rows.iter_mut() {
        let of = alone.iter().find(|(name, _)| *name == row.name).map(|(_, pps)| *pps);
        let ratio = of.and_then(|of| Some(row.get("delivered_pps")? / of));
        row.put("of_alone", ratio);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    #[test]
    fn idle_members_are_beside_the_active_ones() {
        assert_eq!(plan().cases.len(), 10);
        let setup = setup(&lab(1), 100, 1e6);
        assert!(setup.more.contains("min = 116\nmax = 116") && setup.traffic[0].flows == 16);
    }

    #[test]
    fn what_is_delivered_is_compared_within_its_load() {
        let row = |name: &str, idle: u32, pps: f64| {
            Row::new(name, &params(&[("idle", json!(idle))]), Sample::from([("delivered_pps".into(), pps)]))
        };
        let mut rows = vec![row("adaptive/moderate", 0, 10.0), row("adaptive/moderate", 9, 8.0), row("adaptive/overload", 9, 3.0)];
        derive(&mut rows);
        assert_eq!((rows[0].get("of_alone"), rows[1].get("of_alone"), rows[2].get("of_alone")), (Some(1.0), Some(0.8), None));
    }
}
