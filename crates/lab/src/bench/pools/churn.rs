//! `sluice bench flow-churn`: the highest rate of new flows with an NF each.
//!
//! # Approach
//! A generator maintains a number of TCP flows (`flows`) of a fixed length (`flow_packets`), with
//! SYN at the beginning and RST at the end, so that `offered` flows begin each second. The pool has
//! more members than flows ([`CROWDS`]), and a flow without an idle member waits. Its NF ([`NF`])
//! passes packets of one connection, from its SYN on, and drops those of any other. The capacity is
//! the highest rate without loss, where these are 0: `none_idle_pps` (packets without an idle NF
//! and without room to wait), `entry_drop_pps`, and `mixed_pps` (packets at an NF from a flow that
//! was not its own, or whose beginning it had not seen, because it was dropped). The variants
//! `two-cores` and `three-cores` have their NFs spread over as many cores.
//!
//! The second table shows the cost of `isolation = "strict"`: a member whose flow has ended is not
//! reset but ended, and its replacement is forked from the service's zygote; beside it, reset
//! members at the same rate.
//!
//! # Source
//! Flurries, figure 11c; strict isolation is not in it.

use super::{CHAIN, NF_CPU, P50, P99, POOL, SWITCHES, flow, frames};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Row, Shown, Trials, nothing};
use crate::bench::report::Params;
use crate::bench::sched::{DELIVERED, chain_of, params};
use crate::bench::setup::{Pool, Service, Setup, Traffic};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment =
    Experiment { name: "flow-churn", about: "NF activations per second as flows come and go (Flurries, figure 11c)", run };

/// The NF that detects mixed flows.
pub const NF: &str = "sluice-nf-single";
const PER_FLOW: &str = "per-flow";
/// Concurrent flows, and NFs for them. The working set of a switch among 256 NFs fits a
/// second-level cache of 2 MiB; among 600 it does not.
pub const CROWDS: [(u32, u32); 2] = [(64, 256), (200, 600)];
/// Packets of a flow.
const PACKETS: [u32; 2] = [4, 12];
/// Flows that begin each second.
const OFFERED: [u32; 7] = [20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 160_000];
/// The same with NFs on several cores: how many, the variant, and the rates.
const SPREAD: [(usize, &str, [u32; 4]); 2] =
    [(2, "two-cores", [70_000, 110_000, 140_000, 180_000]), (3, "three-cores", [90_000, 150_000, 210_000, 270_000])];
/// Flows that begin each second where each gets its own process.
const STRICT: [u32; 6] = [100, 200, 400, 800, 1_600, 3_200];
/// Capacity of a member's rings: more than the packets of a flow in flight.
const RING: u32 = 64;
/// Packets that wait for a member: what 120,000 flows of four bring in two ticks of a kernel with
/// 250 a second, for which the host may stop the NFs' core.
const QUEUE: u32 = 4_096;

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
    lab.run(&plan(&lab))
}

fn plan(lab: &Lab) -> Trials {
    let shown: Vec<Shown> =
        vec![(GROUP, |v| v.params.contains_key("flow_packets")), (ISOLATION, |v| !v.params.contains_key("flow_packets"))];
    let mut plan = Trials::new(EXPERIMENT.name, nothing, shown);
    let of = |flows: u32, packets: u32, offered: u32| {
        params(&[("flows", flows.into()), ("flow_packets", packets.into()), ("offered", offered.into())])
    };
    for (crowd, packets) in CROWDS.iter().flat_map(|crowd| PACKETS.map(|packets| (*crowd, packets))) {
        for offered in OFFERED {
            let setup = with_queue(setup(lab, f64::from(offered), crowd, packets));
            plan.cases.push(case(PER_FLOW, of(crowd.0, packets, offered), setup));
        }
    }
    for (number, name, offered) in SPREAD.iter().flat_map(|(number, name, rates)| rates.map(|rate| (*number, *name, rate))) {
        let of = of(CROWDS[0].0, PACKETS[0], offered);
        match lab.cores.own(number) {
            Ok(cores) => {
                let mut setup = with_queue(setup(lab, f64::from(offered), CROWDS[0], PACKETS[0]));
                setup.services[0].core = cores[0];
                setup.services[0].more_cores = cores[1..].to_vec();
                plan.cases.push(case(name, of, setup));
            }
            Err(why) => plan.leave_out(name, of, format!("{} for NFs: {why}", name.replace('-', " "))),
        }
    }
    for (name, offered) in ["reset", "strict"].iter().flat_map(|name| STRICT.map(|offered| (*name, offered))) {
        let mut setup = setup(lab, f64::from(offered), CROWDS[0], PACKETS[0]);
        setup.services.iter_mut().filter_map(|service| service.pool.as_mut()).for_each(|pool| pool.strict = name == "strict");
        plan.cases.push(case(name, params(&[("offered", offered.into())]), setup));
    }
    plan
}

/// A setup as a case, with its losses and their reasons.
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

/// The same with room for [`QUEUE`] packets that wait.
fn with_queue(mut setup: Setup) -> Setup {
    setup.services.iter_mut().filter_map(|service| service.pool.as_mut()).for_each(|pool| pool.queue = Some(QUEUE));
    setup
}

/// Flows of this length that begin at this rate.
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
        let mut setup = setup(&lab(1), 60_000.0, CROWDS[0], 4);
        assert_accepted(&setup, &[NF]);
        setup.services[0].more_cores = vec![setup.services[0].core + 1];
        assert_accepted(&setup, &[NF]);
    }

    #[test]
    fn nfs_are_on_several_cores_where_there_are_enough() {
        let lab = lab(1);
        let plan = plan(&lab);
        let mut on_one = plan.cases.len();
        for (number, name, rates) in SPREAD {
            let cases = plan.cases.iter().filter(|case| case.name == name).count();
            let left_out = plan.left_out.iter().filter(|left| left.name == name).count();
            let wanted = if lab.cores.own(number).is_ok() { (rates.len(), 0) } else { (0, rates.len()) };
            assert_eq!((cases, left_out), wanted, "{name}");
            on_one -= cases;
        }
        assert_eq!(on_one, 2 * 2 * 7 + 2 * 6);
    }
}
