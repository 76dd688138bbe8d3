//! `sluice bench flow-churn`: flows that come and go: how often a second an NF is given another flow.
//!
//! # Approach
//! A generator keeps so many TCP flows going (`flows`), each of so many packets (`flow_packets`), with SYN at its beginning and RST at its end,
//! so that `offered` flows begin each second; the pool has more members than that ([`CROWDS`]), and who finds none idle waits. Its NF ([`NF`]) passes packets of one connection, from its SYN on, and drops
//! those of any other. What the platform carries is the highest rate at which nothing is lost: `none_idle_pps` (packets for which there
//! was no idle NF and no room to wait), `entry_drop_pps`, and `mixed_pps` (packets that an NF saw of a flow that was not its own, or whose beginning it had not seen,
//! which is what follows when a beginning was dropped) are 0.
//!
//! The second table is what `isolation = "strict"` costs: a member whose flow has ended is not made as new but ended, and another one is
//! forked from the service's zygote in its place, beside the same at the same rate with reset members.
//!
//! # Source
//! Flurries, figure 11; strict isolation is not in it.

use super::{CHAIN, NF_CPU, P50, P99, POOL, SWITCHES, flow, frames};
use crate::bench::lab::{Case, Lab, Plan, Row, nothing};
use crate::bench::report::Params;
use crate::bench::sched::{DELIVERED, chain_of, params};
use crate::bench::setup::{Pool, Service, Setup, Traffic};
use crate::bench::table::{Column, Form, Group};
use crate::bench::{BenchArgs, Experiment};

/// This experiment.
pub const EXPERIMENT: Experiment =
    Experiment { name: "flow-churn", about: "NF activations per second as flows come and go (Flurries, figure 11)", run };

/// The NF that says when a flow was not alone.
pub const NF: &str = "sluice-nf-single";
const PER_FLOW: &str = "per-flow";
/// Flows at a time, and NFs for them. What 256 NFs touch when they are switched to stays in a second-level cache of 2 MiB; of 600 it does not.
pub const CROWDS: [(u32, u32); 2] = [(64, 256), (200, 600)];
/// Packets of a flow.
const PACKETS: [u32; 2] = [4, 12];
/// Flows that begin each second.
const OFFERED: [u32; 7] = [20_000, 40_000, 60_000, 70_000, 80_000, 100_000, 120_000];
/// Flows that begin each second where each gets a process of its own.
const STRICT: [u32; 6] = [100, 200, 400, 800, 1_600, 3_200];
/// Capacity of a member's rings: a flow has fewer packets on the way.
const RING: u32 = 64;

const GROUP: Group = Group {
    title: "Flows that come and go, an NF for each",
    keys: &["flows", "flow_packets", "offered"],
    columns: &[
        Column::new("activations_per_s", "activations/s", 1.0, 0),
        DELIVERED,
        Column::new("mixed_pps", "mixed pps", 1.0, 0),
        Column::new("none_idle_pps", "none idle pps", 1.0, 0),
        Column::new("entry_drop_pps", "refused pps", 1.0, 0),
        Column::new("setup_ns_p50", "set-up p50 ns", 1.0, 0),
        Column::new("setup_ns_p99", "p99 ns", 1.0, 0),
        P50,
        P99,
        SWITCHES,
        NF_CPU,
    ],
    plotted: 1,
    form: Form::Lines("offered"),
};

const ISOLATION: Group = Group {
    title: "A process for each flow (strict) against one that is made as new (reset)",
    keys: &["offered"],
    columns: &[
        Column::new("activations_per_s", "activations/s", 1.0, 0),
        DELIVERED,
        Column::new("mixed_pps", "mixed pps", 1.0, 0),
        Column::new("none_idle_pps", "none idle pps", 1.0, 0),
        P50,
        P99,
    ],
    plotted: 1,
    form: Form::Lines("offered"),
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[NF])?;
    super::warn_of_small_pages();
    let mut plan = Plan::new(EXPERIMENT.name, nothing, vec![(GROUP, |v| v.name == PER_FLOW), (ISOLATION, |v| v.name != PER_FLOW)]);
    for (crowd, packets) in CROWDS.iter().flat_map(|crowd| PACKETS.map(|packets| (*crowd, packets))) {
        for offered in OFFERED {
            let of = params(&[("flows", crowd.0.into()), ("flow_packets", packets.into()), ("offered", offered.into())]);
            plan.cases.push(case(PER_FLOW, of, setup(&lab, f64::from(offered), crowd, packets)));
        }
    }
    for (name, offered) in ["reset", "strict"].iter().flat_map(|name| STRICT.map(|offered| (*name, offered))) {
        let mut setup = setup(&lab, f64::from(offered), CROWDS[0], PACKETS[0]);
        setup.services.iter_mut().filter_map(|service| service.pool.as_mut()).for_each(|pool| pool.strict = name == "strict");
        plan.cases.push(case(name, params(&[("offered", offered.into())]), setup));
    }
    lab.run(&plan)
}

/// A setup, and what it lost and why.
fn case(name: &'static str, of: Params, setup: Setup) -> Case {
    let row_params = of.clone();
    let run = move |lab: &Lab| {
        let mut row = Row::new(name, &row_params, flow(lab, &setup)?);
        for (metric, reason) in [("mixed_pps", "verdict"), ("none_idle_pps", "none_idle")] {
            let pps = row.get(&format!("drop_pps.{reason}")).unwrap_or(0.0);
            row.put(metric, Some(pps));
        }
        Ok(vec![row])
    };
    Case { name: name.into(), params: of, run: Box::new(run) }
}

/// So many flows a second of so many packets each.
pub fn setup(lab: &Lab, flows_per_s: f64, (flows, members): (u32, u32), flow_packets: u32) -> Setup {
    let pool = Pool { linger_ms: 0, when_empty: "wait", ..Pool::of(members, RING) };
    let nf = Service {
        name: POOL.into(),
        exec: NF.into(),
        core: lab.cores.shared(),
        zygote: true,
        pool: Some(pool),
        ..Service::default()
    };
    let rate = flows_per_s * f64::from(flow_packets);
    let traffic = Traffic { chain: CHAIN.into(), rate, flows, flow_packets, tcp: true, packet_bytes: 78, ..Traffic::default() };
    Setup {
        manager_core: lab.manager_core,
        frames: frames(members, RING),
        traffic: vec![traffic],
        services: vec![nf],
        chains: vec![chain_of(CHAIN, &[POOL])],
        ..Setup::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;

    #[test]
    fn flows_that_end_are_accepted() {
        assert_accepted(&setup(&lab(1), 60_000.0, CROWDS[0], 4), &[NF]);
    }
}
