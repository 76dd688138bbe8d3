//! `sluice bench affinity`: packets of flows in turn, by hash, or per flow.
//!
//! # Approach
//! Concurrent requests for a file of some packets, 15 for 16 NFs, and up to 240 of them; the same
//! number of NFs in each variant.
//!
//! - In turn, packets of a flow are in several NFs at once, which run at different times. The
//!   packets overtake each other, and TCP at the other end has to reorder them (`reordered_per_s`,
//!   the kernel's count of out-of-order segments at both ends).
//! - By hash, flows that meet at one NF wait for each other.
//! - With an NF per flow, neither happens.
//!
//! `wire` has neither NFs nor a daemon: a bridge of the kernel joins clients and server. Beside it,
//! `flow` shows what NFs cost by number of flows.
//!
//! `runnable_nfs` is how many NFs on average run or wait for the core, by the kernel's times of
//! both.
//!
//! # Source
//! Flurries, figure 9, and figures 11a and 11b (an NF per flow against a wire).

use super::web::{self, Load, Pool, TENANTS, WebResults, WebServer};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::report::Params;
use crate::bench::sched::netns::Wires;
use crate::bench::sched::{COST, params};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "affinity",
    about: "up to 240 web requests at a time: NFs in turn, by hash, and per flow (Flurries, figures 9, 11a, 11b)",
    run: |args| Lab::measure(args, &[COST], |_| plan(web::missing().as_deref())),
};

/// Numbers of NFs.
const NFS: [u32; 4] = [256, 128, 64, 32];
const WIRE: &str = "wire";
/// Assignments of packets to NFs, and none.
const WAYS: [&str; 4] = ["round-robin", "rss", "flow", WIRE];
/// Cycles per packet.
const CYCLES: u64 = 10_000;
/// Bytes of an answer: some segments, of which the first ten leave at once.
const BYTES: usize = 20_000;

const GROUP: Group = Group {
    title: "Web requests, 15 at a time for 16 NFs on one core",
    keys: &["nfs"],
    columns: &[
        Column::new("requests_per_s", "req/s", 1.0, 0),
        Column::new("reordered_per_s", "reordered/s", 1.0, 1),
        Column::new("reordered_percent", "% of packets", 1.0, 3),
        Column::new("runnable_nfs", "runnable NFs", 1.0, 2),
        Column::new("latency_ns_p99", "p99 ms", 1e6, 1),
        Column::new("failed_per_s", "failed/s", 1.0, 1),
        Column::new("nf_core_percent", "NF core %", 1.0, 1),
        Column::new("switches_per_s", "switches/s", 1.0, 0),
    ],
    plotted: 5,
    form: Form::Lines("nfs"),
};

/// `missing` is the reason why the experiment cannot run here.
fn plan(missing: Option<&str>) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, nothing, vec![(GROUP, |_| true)]);
    for (nfs, per) in NFS.iter().flat_map(|nfs| WAYS.map(|per| (*nfs, per))) {
        let of: Params = params(&[("at_once", at_once(nfs).into()), ("nfs", nfs.into())]);
        if let Some(why) = missing {
            plan.leave_out(per, of, why);
            continue;
        }
        plan.cases.push(Case::one(per, of, move |lab| one(lab, per, nfs)));
    }
    plan
}

/// Concurrent requests for this number of NFs: less than NFs, since an NF gets late packets of its
/// former connection for a while.
fn at_once(nfs: u32) -> u32 {
    nfs * 15 / 16
}

fn one(lab: &Lab, per: &'static str, nfs: u32) -> Result<Sample, Miss> {
    let wires = Wires::lay()?;
    let server = WebServer::start(lab, &wires, BYTES)?;
    let load = Load { at_once: at_once(nfs), close: false };
    let outcome = if per == WIRE {
        wires.join()?;
        let (served, disorder) = web::request(lab, &wires, &TENANTS[..1], load)?;
        WebResults { served, disorder, sample: Sample::new() }
    } else {
        let setup = web::setup(lab, &wires, &Pool { per, nfs, cycles: CYCLES }, ["", ""], "");
        let daemon = lab.start(&setup)?;
        web::wait_for_nfs(lab, &daemon, nfs)?;
        let outcome = web::ask(lab, &wires, &daemon, &TENANTS[..1], load)?;
        daemon.stop()?;
        outcome
    };
    drop(server);
    let mut out = outcome.sample;
    let served = outcome.served[0];
    out.insert("requests_per_s".into(), served.per_s);
    out.insert("reordered_per_s".into(), outcome.disorder);
    out.insert("latency_ns_p99".into(), served.p99_ns);
    out.insert("failed_per_s".into(), served.failed / lab.args.seconds.ceil().max(1.0));
    if let Some(pps) = out.get("processed_pps").copied() {
        out.insert("reordered_percent".into(), outcome.disorder / pps * 100.0);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_of_pools_are_compared() {
        let here = plan(None);
        let names: Vec<&str> = here.cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names[..4], WAYS);
        assert_eq!([0, 15].map(|i: usize| here.cases[i].params["at_once"].as_u64()), [Some(240), Some(30)]);
        assert_eq!((names.len(), plan(Some("no")).left_out.len()), (16, 16));
    }
}
