//! `sluice bench density`: many chains of many NFs on one core.
//!
//! # Approach
//! The matrix by which the CNF testbed compares data planes: 1, 2, 4, 6, 8 and 10 chains of as many
//! NFs, 64-byte packets as fast as they come, a generator for each chain. NFs are bridges. What the
//! testbed calls a snake is an isolated chain here: packets pass the data plane between two NFs.
//! Its pipelines, in which NFs hand packets to each other, are fused and inline chains. As these
//! take other numbers of cores (the packet thread's, and the NFs', unless they are inline),
//! `delivered_pps_per_core` counts both.
//!
//! # Source
//! The CNF testbed of the Cloud Native Computing Foundation, its comparison of service densities.

use serde_json::json;
use sluice_api::config::Run;

use super::experiment::Experiment;
use super::lab::{Case, Lab, Row, Trials};
use super::sched::{chain_of, params, traffic_to};
use super::setup::{Chain, Service, Setup};
use super::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "density",
    about: "1 to 10 chains of 1 to 10 bridges on one core: isolated, fused and inline",
    run: |args| Lab::measure(args, &[NF], plan),
};

const NF: &str = "sluice-nf-bridge";
const NUMBERS: [usize; 6] = [1, 2, 4, 6, 8, 10];
const RUNS: [Run; 3] = [Run::Isolated, Run::Fused, Run::Inline];
const RING: u32 = 512;
const FRAMES: u32 = 65_536;

const GROUP: Group = Group {
    title: "Chains of bridges on one core",
    keys: &["chains", "nfs"],
    columns: &[
        Column::new("delivered_pps", "delivered Mpps", 1e6, 2),
        Column::new("delivered_pps_per_core", "per core", 1e6, 2),
        Column::new("jain", "Jain", 1.0, 3),
        Column::new("wasted_pps", "wasted pps", 1.0, 0),
        Column::new("latency_ns_p99", "p99 µs", 1e3, 0),
    ],
    plotted: 2,
    form: Form::Lines("nfs"),
};

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, per_core, vec![(GROUP, |_| true)]);
    for (chains, nfs) in NUMBERS.into_iter().flat_map(|chains| NUMBERS.map(|nfs| (chains, nfs))) {
        let of = params(&[("chains", json!(chains)), ("nfs", json!(nfs))]);
        plan.cases.extend(RUNS.map(|run| Case::flow(run.word(), of.clone(), setup(lab, run, chains, nfs))));
    }
    plan
}

fn setup(lab: &Lab, run: Run, chains: usize, nfs: usize) -> Setup {
    let mut setup = Setup { manager_core: lab.manager_core, frames: FRAMES, ..Setup::default() };
    for chain in (1..=chains).map(|number| format!("c{number}")) {
        let names: Vec<String> = (1..=nfs).map(|number| format!("{chain}-nf{number}")).collect();
        let of_name = |name: &String| Service {
            name: name.clone(),
            exec: NF.into(),
            core: lab.cores.shared(),
            ring: RING,
            ..Service::default()
        };
        setup.services.extend(names.iter().map(of_name));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        setup.chains.push(Chain { run, ..chain_of(&chain, &names) });
        setup.traffic.push(traffic_to(&chain, 0.0));
    }
    setup
}

/// Divides by the cores that a run takes: the packet thread's, and the NFs' unless they are inline.
fn per_core(rows: &mut [Row]) -> Vec<Row> {
    for row in rows {
        let cores = if row.name == Run::Inline.word() { 1.0 } else { 2.0 };
        let of_all = row.get("delivered_pps");
        row.put("delivered_pps_per_core", of_all.map(|pps| pps / cores));
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
    fn the_whole_matrix_runs_and_the_daemon_accepts_it() {
        let lab = lab(1);
        assert_eq!(plan(&lab).cases.len(), 6 * 6 * 3);
        for run in RUNS {
            let setup = setup(&lab, run, 10, 10);
            assert_eq!((setup.services.len(), setup.chains.len(), setup.traffic.len()), (100, 10, 10));
            assert_accepted(&setup, &[NF]);
        }
    }

    #[test]
    fn both_cores_count_unless_there_is_one() {
        let mut rows = vec![row("isolated", &[], 8.0), row("fused", &[], 8.0), row("inline", &[], 8.0)];
        per_core(&mut rows);
        assert_eq!(rows.iter().map(|row| row.get("delivered_pps_per_core").unwrap()).collect::<Vec<_>>(), [4.0, 4.0, 8.0]);
    }
}
