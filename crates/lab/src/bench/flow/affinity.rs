//! `sluice bench affinity`: packets of flows in turn, by hash, or per flow.
//!
//! # Approach
//! 240 concurrent requests for a file of some packets, through the same number of NFs in each
//! variant.
//!
//! - In turn, packets of a flow are in several NFs at once, which run at different times. The
//!   packets overtake each other, and TCP at the other end has to reorder them (`reordered_per_s`,
//!   the kernel's count of out-of-order segments at both ends).
//! - By hash, flows that meet at one NF wait for each other.
//! - With an NF per flow, neither happens.
//!
//! # Source
//! Flurries, figure 9.

use super::web::{self, Load, Pool, TENANTS, WebServer};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Row, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::report::Params;
use crate::bench::sched::netns::Wires;
use crate::bench::sched::{COST, params};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "affinity",
    about: "240 web requests at a time: NFs in turn, by hash, and per flow (Flurries, figure 9)",
    run,
};

/// Concurrent requests.
const AT_ONCE: u32 = 240;
const NFS: u32 = 256;
/// Cycles per packet.
const CYCLES: u64 = 10_000;
/// Bytes of an answer: some segments, of which the first ten leave at once.
const BYTES: usize = 20_000;

const GROUP: Group = Group {
    title: "240 web requests at a time through 256 NFs on one core",
    keys: &["at_once", "nfs"],
    columns: &[
        Column::new("requests_per_s", "req/s", 1.0, 0),
        Column::new("reordered_per_s", "reordered/s", 1.0, 1),
        Column::new("reordered_percent", "% of packets", 1.0, 3),
        Column::new("latency_ns_p99", "p99 ms", 1e6, 1),
        Column::new("failed_per_s", "failed/s", 1.0, 1),
        Column::new("nf_core_percent", "NF core %", 1.0, 1),
        Column::new("switches_per_s", "switches/s", 1.0, 0),
    ],
    plotted: 2,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[COST])?;
    lab.run(&plan(web::missing().as_deref()))
}

/// `missing` is the reason why the experiment cannot run here.
fn plan(missing: Option<&str>) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, nothing, vec![(GROUP, |_| true)]);
    for per in ["round-robin", "rss", "flow"] {
        let of: Params = params(&[("at_once", AT_ONCE.into()), ("nfs", NFS.into())]);
        if let Some(why) = missing {
            plan.leave_out(per, of, why);
            continue;
        }
        let row = of.clone();
        let run = move |lab: &Lab| Ok(vec![Row::new(per, &row, one(lab, per)?)]);
        plan.cases.push(Case { name: per.into(), params: of, run: Box::new(run) });
    }
    plan
}

fn one(lab: &Lab, per: &'static str) -> Result<Sample, Miss> {
    let wires = Wires::lay()?;
    let server = WebServer::start(lab, &wires, BYTES)?;
    let setup = web::setup(lab, &wires, &Pool { per, nfs: NFS, cycles: CYCLES }, ["", ""], "");
    let daemon = lab.start(&setup)?;
    web::wait_for_nfs(lab, &daemon, NFS)?;
    let outcome = web::ask(lab, &wires, &daemon, &TENANTS[..1], Load { at_once: AT_ONCE, close: false })?;
    daemon.stop()?;
    drop(server);
    let mut out = outcome.sample;
    let served = outcome.served[0];
    out.insert("requests_per_s".into(), served.per_s);
    out.insert("reordered_per_s".into(), outcome.disorder);
    if served.p99_ns.is_finite() {
        out.insert("latency_ns_p99".into(), served.p99_ns);
    }
    out.insert("failed_per_s".into(), served.failed / lab.args.seconds.ceil().max(1.0));
    if let Some(pps) = out.get("processed_pps").copied().filter(|pps| *pps > 0.0) {
        out.insert("reordered_percent".into(), outcome.disorder / pps * 100.0);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_of_pools_are_compared() {
        let names: Vec<String> = plan(None).cases.into_iter().map(|case| case.name).collect();
        assert_eq!(names, ["round-robin", "rss", "flow"]);
        assert_eq!(plan(Some("no")).left_out.len(), 3);
    }
}
