//! `sluice bench mixed`: web requests and a bulk transfer through two pools, by wake policy.
//!
//! # Approach
//! ```text
//! wrk, iperf3 ─ namespace ─► first ─► second ─► namespace ─ nginx, iperf3
//!                        ◄─ first ◄─ second ◄─
//! ```
//! Each request is a connection of its own, of a dozen packets; the bulk transfer is one very long
//! connection. Both directions of a connection meet the same member of each pool. All NFs share a
//! core. Each policy runs with a member per flow, and with the same number of members and flows
//! spread by hash. A good policy wakes the members of requests at once, and that of the bulk
//! transfer seldom. The table shows requests, the bulk transfer's rate and context switches, each
//! with its ratio to the best of the same turn, the same `per` and the same `tcp_mbit`.
//!
//! The bulk transfer is paced, as in `isolation`: on a host with few cores its ends share the
//! manager's core, and an unpaced transfer would starve everything else there. With `tcp_mbit` 0 it
//! is not paced, as in the paper.
//!
//! # Limits
//! Needs root, iperf3, nginx and wrk. Web server, clients and the bulk transfer's ends run on any
//! core but that of the NFs. With two cores they share the manager's, and are the bottleneck
//! together with it.
//!
//! # Source
//! Flurries, tables 1 and 2.

use serde_json::json;

use super::web::{Clients, WebServer};
use super::{POLICIES, Together, pooled, wait_for_members, web};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::Sample;
use crate::bench::report::Params;
use crate::bench::sched::netns::{self, TcpResult, Wires};
use crate::bench::sched::{COST, Mode, params};
use crate::bench::setup::{Class, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "mixed",
    about: "web requests and a bulk transfer through pools of NFs, by wake policy, per flow and by hash (Flurries, tables 1 and 2)",
    run: |args| Lab::measure(args, &[COST], |_| plan(netns::missing().or_else(web::missing).as_deref())),
};

/// Cycles per packet and NF.
const CYCLES: u64 = 1_000;
const MEMBERS: u32 = 64;
/// Concurrent clients.
const CLIENTS: u32 = 16;
/// Rates of the bulk transfer: paced, and as fast as possible.
const TCP_MBIT: [u32; 2] = [200, 0];

const GROUP: Group = Group {
    title: "Web requests, each with a connection, beside TCP, through two pools on one core",
    keys: &["tcp_mbit"],
    columns: &[
        Column::new("requests_per_s", "requests/s", 1.0, 0),
        Column::new("tcp_bps", "TCP Mbit/s", 1e6, 1),
        Column::new("switches_per_s", "switches/s", 1.0, 0),
        Column::new("requests_of_best", "requests, of best", 1.0, 3),
        Column::new("tcp_of_best", "TCP, of best", 1.0, 3),
        Column::new("switches_of_least", "switches, of least", 1.0, 2),
        Column::new("latency_ns_p50", "p50 ms", 1e6, 2),
        Column::new("latency_ns_p99", "p99 ms", 1e6, 2),
        Column::new("wakes_per_s", "wakes/s", 1.0, 0),
        Column::new("cpu_percent", "NFs' CPU %", 1.0, 0),
    ],
    plotted: 3,
    form: Form::Bars,
};

fn of_members(tcp_mbit: u32) -> Params {
    params(&[("nfs", json!(2 * MEMBERS)), ("clients", json!(CLIENTS)), ("tcp_mbit", json!(tcp_mbit))])
}

/// `missing` is the reason why the experiment cannot run here.
fn plan(missing: Option<&str>) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, derive, vec![(GROUP, |_| true)]);
    for (per, tcp_mbit) in ["flow", "rss"].iter().flat_map(|per| TCP_MBIT.map(|mbit| (*per, mbit))) {
        for policy in POLICIES {
            let (name, of) = (format!("{policy}/{per}"), of_members(tcp_mbit));
            if let Some(why) = missing {
                plan.leave_out(&name, of, why);
                continue;
            }
            plan.cases.push(Case::one(name, of, move |lab| one(lab, policy, per, tcp_mbit)));
        }
    }
    plan
}

fn setup(lab: &Lab, policy: &str, per: &str, wires: &Wires) -> Setup {
    let core = lab.cores.shared();
    let port = |name: &str, interface: &str, chain: &str, services: [&str; 2], egress: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"af_packet\"\ninterface = \"{interface}\"\n\n\
             [[chain]]\nname = \"{chain}\"\nservices = {services:?}\negress = \"{egress}\"\n\n\
             [[rule]]\nport = \"{name}\"\nchain = \"{chain}\"\n\n"
        )
    };
    let more = pooled("first", core, CYCLES, (policy, per), MEMBERS)
        + &pooled("second", core, CYCLES, (policy, per), MEMBERS)
        + &port("inside", wires.host(netns::Side::Inside), "there", ["first", "second"], "outside")
        + &port("outside", wires.host(netns::Side::Outside), "back", ["second", "first"], "inside");
    Setup { manager_core: lab.manager_core, sched: Some(Mode::Sluice.sched(Class::Other)), more, ..Setup::default() }
}

fn one(lab: &Lab, policy: &str, per: &str, tcp_mbit: u32) -> Result<Sample, Miss> {
    let wires = Wires::lay()?;
    let daemon = lab.start(&setup(lab, policy, per, &wires))?;
    wait_for_members(&daemon, 2 * MEMBERS)?;
    // On any core but that of the NFs.
    let mut cores = lab.cores.besides_manager();
    cores.retain(|core| *core != lab.cores.shared());
    cores.push(lab.manager_core);
    let _server = WebServer::start(&wires, &lab.programs, &cores)?;
    lab.warm_up()?;
    let before = lab.read(&daemon)?;
    let clients = Clients::start(&wires, &cores, CLIENTS, lab.args.seconds)?;
    let bulk = wires.tcp(&lab.programs, &cores, tcp_mbit, lab.args.seconds)?;
    let answers = clients.answers(&lab.programs)?;
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    let (bps, starved) = match bulk {
        TcpResult::Whole(bps) => (bps, 0.0),
        TcpResult::Starved(bps) => (bps, 1.0),
    };
    let mut out = Sample::from(Together::of(&before, &after).metrics());
    out.extend([
        ("requests_per_s".to_string(), answers.requests_per_s),
        ("latency_ns_p50".into(), answers.p50_ns),
        ("latency_ns_p99".into(), answers.p99_ns),
        ("web_errors".into(), answers.errors),
        ("tcp_bps".into(), bps),
        ("tcp_starved".into(), starved),
    ]);
    Ok(out)
}

/// Adds ratios to the best with the same `per` and params: the most requests and bits, and the
/// fewest switches.
fn derive(rows: &mut [Row]) -> Vec<Row> {
    let kind = |row: &Row| (row.name.split_once('/').map(|(_, per)| per.to_string()), row.params.clone());
    let all: Vec<((Option<String>, Params), Sample)> = rows.iter().map(|row| (kind(row), row.sample.clone())).collect();
    for row in rows.iter_mut() {
        let of = kind(row);
        let values = |metric: &str| -> Vec<f64> {
            all.iter().filter(|(other, _)| *other == of).filter_map(|(_, s)| s.get(metric).copied()).collect()
        };
        let ratio = |metric: &str, best: fn(f64, f64) -> f64| Some(row.get(metric)? / values(metric).into_iter().reduce(best)?);
        let (requests, tcp) = (ratio("requests_per_s", f64::max), ratio("tcp_bps", f64::max));
        let switches = ratio("switches_per_s", f64::min);
        row.put("requests_of_best", requests);
        row.put("tcp_of_best", tcp);
        row.put("switches_of_least", switches);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_compared_with_the_best_of_its_kind() {
        let row = |name: &str, requests: f64, switches: f64| {
            let sample = [("requests_per_s".to_string(), requests), ("switches_per_s".into(), switches)];
            Row::new(name, &of_members(200), sample.into())
        };
        let mut rows = vec![row("min/flow", 100.0, 50.0), row("adaptive/flow", 80.0, 10.0), row("min/rss", 200.0, 5.0)];
        derive(&mut rows);
        assert_eq!((rows[1].get("requests_of_best"), rows[1].get("switches_of_least")), (Some(0.8), Some(1.0)));
        assert_eq!((rows[0].get("requests_of_best"), rows[0].get("switches_of_least")), (Some(1.0), Some(5.0)));
        assert_eq!(rows[2].get("requests_of_best"), Some(1.0));
        assert_eq!(rows[0].get("tcp_of_best"), None);
        rows[0].params = of_members(0);
        derive(&mut rows);
        assert_eq!(rows[1].get("requests_of_best"), Some(1.0), "the other one is not paced");
    }

    #[test]
    fn a_host_that_cannot_says_why() {
        assert_eq!(plan(None).cases.len(), 16);
        let nowhere = plan(Some("it needs root"));
        assert!(nowhere.cases.is_empty() && nowhere.left_out.len() == 16);
    }
}
