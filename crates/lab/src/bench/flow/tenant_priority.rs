//! `sluice bench tenant-priority`: web requests of two tenants, one with a higher priority.
//!
//! # Approach
//! Each request is a connection of its own, which gets its own NF. The tenants' clients send the
//! same load, more than the NFs' core can serve. With equal priorities they share the core. With
//! `tenants = { gold = 4, free = 1 }` the NFs for gold's flows get more of the core, and get it
//! sooner. `priority/weights` leaves the order to hand-over; `priority/rr` has the kernel schedule
//! NFs under SCHED_RR without hand-over, each with the priority of its flow. `of_other` is the
//! ratio of the favoured tenant's requests to the other's.
//!
//! # Source
//! Flurries, figure 7.

use super::web::{self, Load, Pool, TENANTS, WebServer};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::report::Params;
use crate::bench::sched::netns::Wires;
use crate::bench::sched::{COST, params};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "tenant-priority",
    about: "web requests of two tenants, of which one is worth more (Flurries, figure 7)",
    run: |args| Lab::measure(args, &[COST], |_| plan(web::missing().as_deref())),
};

/// Concurrent requests of each tenant.
const AT_ONCE: u32 = 32;
/// NFs: one per connection, and some for ended connections whose last packets are under way.
const NFS: u32 = 512;
/// Cycles per packet: the server and the clients can do several times what the NFs can.
const CYCLES: u64 = 100_000;
const BYTES: usize = 512;

const GROUP: Group = Group {
    title: "Web requests of two tenants through NFs for each connection, on one core that is full",
    keys: &["at_once"],
    columns: &[
        Column::new("requests_per_s.gold", "favoured req/s", 1.0, 0),
        Column::new("requests_per_s.free", "other req/s", 1.0, 0),
        Column::new("of_other", "of other", 1.0, 2),
        Column::new("latency_ns_p99.gold", "favoured p99 ms", 1e6, 1),
        Column::new("latency_ns_p99.free", "other p99 ms", 1e6, 1),
        Column::new("failed_per_s", "failed/s", 1.0, 1),
        Column::new("nf_core_percent", "NF core %", 1.0, 1),
        Column::new("switches_per_s", "switches/s", 1.0, 0),
    ],
    plotted: 2,
    form: Form::Bars,
};

/// Name, and `[sched]` settings.
const VARIANTS: [(&str, &str); 4] = [
    ("equal/weights", "tenants = { gold = 1, free = 1 }"),
    ("priority/weights", "tenants = { gold = 4, free = 1 }"),
    ("equal/rr", "tenants = { gold = 1, free = 1 }\nclass = \"rr\"\nhandover = false\nweights = false"),
    ("priority/rr", "tenants = { gold = 4, free = 1 }\nclass = \"rr\"\nhandover = false\nweights = false"),
];

/// `missing` is the reason why the experiment cannot run here.
fn plan(missing: Option<&str>) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, nothing, vec![(GROUP, |_| true)]);
    for (name, sched) in VARIANTS {
        let of: Params = params(&[("at_once", AT_ONCE.into())]);
        if let Some(why) = missing {
            plan.leave_out(name, of, why);
            continue;
        }
        plan.cases.push(Case::one(name, of, move |lab| one(lab, sched)));
    }
    plan
}

fn one(lab: &Lab, sched: &str) -> Result<Sample, Miss> {
    let wires = Wires::lay()?;
    wires.lay_second()?;
    let server = WebServer::start(lab, &wires, BYTES)?;
    let pool = Pool { per: "flow", nfs: NFS, cycles: CYCLES };
    let rules = ["tenant = \"gold\"", "tenant = \"free\""];
    let setup = web::setup(lab, &wires, &pool, rules, &format!("[sched]\n{sched}\n"));
    let daemon = lab.start(&setup)?;
    web::wait_for_nfs(lab, &daemon, NFS)?;
    let outcome = web::ask(lab, &wires, &daemon, &TENANTS, Load { at_once: AT_ONCE, close: true })?;
    daemon.stop()?;
    drop(server);
    let mut out = outcome.sample;
    let seconds = lab.args.seconds.ceil().max(1.0);
    for (tenant, served) in ["gold", "free"].iter().zip(&outcome.served) {
        out.insert(format!("requests_per_s.{tenant}"), served.per_s);
        if served.p99_ns.is_finite() {
            out.insert(format!("latency_ns_p99.{tenant}"), served.p99_ns);
        }
    }
    let [gold, free] = [0, 1].map(|tenant: usize| outcome.served[tenant]);
    out.insert("requests_per_s".into(), gold.per_s + free.per_s);
    out.insert("failed_per_s".into(), (gold.failed + free.failed) / seconds);
    out.insert("of_other".into(), gold.per_s / free.per_s);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_favour_a_tenant_are_compared_with_equal_ones() {
        let here = plan(None);
        let names: Vec<&str> = here.cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["equal/weights", "priority/weights", "equal/rr", "priority/rr"]);
        let nowhere = plan(Some("it needs root"));
        assert_eq!((nowhere.cases.len(), nowhere.left_out.len()), (0, 4));
    }
}
