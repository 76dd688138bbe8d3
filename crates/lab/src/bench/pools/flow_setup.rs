//! `sluice bench flow-setup`: time to assign an NF to a new flow.
//!
//! # Approach
//! A crowd of `live` flows uses its own chain, whose pool has no idle NF for them and falls back to
//! a shared one. So each of them is a connection of the pools and an entry of the flow table. Once
//! all of them exist, flows that come and go on another chain get an NF each. The daemon's count of
//! that time is read: from when the flow table does not know the first packet of a flow until the
//! packet can go to its NF: rules, connection, member, path. It includes two readings of the clock.
//! It does not include the lookup in the flow table, which is one per burst, nor the flow's own
//! entry, which a TCP flow gets with its second packet.
//!
//! # Source
//! Flurries, section 6.2: 708 ns on average from arrival to assignment.

use std::time::Duration;

use serde_json::Value;

use super::{Kind, POOL, pooled, sample};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Row, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::sched::{COST, chain_of, nf_of, params};
use crate::bench::setup::{Pool, Setup, Traffic};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "flow-setup",
    about: "from the first packet of a flow to its NF, beside up to a million flows (Flurries, 708 ns)",
    run,
};

/// Flows that exist already.
const LIVE: [u32; 4] = [0, 10_000, 100_000, 1_000_000];
/// Packets per second of these: in two seconds each has had one.
const CROWD_PPS: f64 = 500_000.0;
/// Packets per second of the flows that come and go, and packets of each.
const COMING: (f64, u32) = (400_000.0, 8);
/// NFs of the flows that come and go, and how many of these flows are concurrent.
const MEMBERS: (u32, u32) = (256, 64);
/// Time limit for the crowd to exist.
const PATIENCE: Duration = Duration::from_secs(60);

const GROUP: Group = Group {
    title: "Time to give a new flow its NF",
    keys: &["live"],
    columns: &[
        Column::new("setup_ns_p50", "p50 ns", 1.0, 0),
        Column::new("setup_ns_p99", "p99 ns", 1.0, 0),
        Column::new("setup_ns_p999", "p99.9 ns", 1.0, 0),
        Column::new("activations_per_s", "flows/s", 1.0, 0),
        Column::new("live_flows", "flows in the table", 1.0, 0),
    ],
    plotted: 2,
    form: Form::Lines("live"),
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[COST])?;
    super::warn_of_small_pages();
    lab.run(&plan(&lab))
}

fn plan(_: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, nothing, vec![(GROUP, |_| true)]);
    for live in LIVE {
        let of = params(&[("live", Value::from(live))]);
        let row_params = of.clone();
        let run = move |lab: &Lab| Ok(vec![Row::new("per-flow", &row_params, measure(lab, live)?)]);
        plan.cases.push(Case { name: "per-flow".into(), params: of, run: Box::new(run) });
    }
    plan
}

fn setup(lab: &Lab, live: u32) -> Setup {
    let (rate, flow_packets) = COMING;
    let (members, flows) = MEMBERS;
    let coming = Traffic {
        name: "coming".into(),
        chain: "coming".into(),
        rate,
        flows,
        flow_packets,
        tcp: true,
        packet_bytes: 78,
        dst_port: 80,
        ..Traffic::default()
    };
    let mut setup = Setup {
        manager_core: lab.manager_core,
        max_flows: Some(1 << 21),
        frames: 65_536,
        traffic: vec![coming],
        services: vec![pooled(lab, Kind::Light, Pool { linger_ms: 0, ..Pool::of(members, 64) })],
        chains: vec![chain_of("coming", &[POOL])],
        ..Setup::default()
    };
    if live > 0 {
        let crowd = Traffic { name: "crowd".into(), chain: "crowd".into(), rate: CROWD_PPS, flows: live, ..Traffic::default() };
        let pool = Pool { when_empty: "rest", ..Pool::of(1, 64) };
        let few = crate::bench::setup::Service { name: "few".into(), ..pooled(lab, Kind::Light, pool) };
        setup.traffic.push(crowd);
        setup.services.extend([few, nf_of("rest", lab.cores.shared(), 0)]);
        setup.chains.push(chain_of("crowd", &["few"]));
    }
    setup
}

fn measure(lab: &Lab, live: u32) -> Result<Sample, Miss> {
    let setup = setup(lab, live);
    let daemon = lab.start(&setup)?;
    daemon.wait_for("all flows of the crowd", PATIENCE, |daemon| {
        Ok((daemon.stats()?.status.flows >= u64::from(live)).then_some(()))
    })?;
    lab.warm_up()?;
    let before = lab.read(&daemon)?;
    lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    // Without the crowd's NF and its shared NF, which are not measured.
    let alone = Setup { services: setup.services.iter().filter(|s| s.name == POOL).cloned().collect(), ..setup };
    let mut out = sample(&alone, &before, &after);
    out.insert("live_flows".into(), after.stats.status.flows as f64);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;

    #[test]
    fn both_kinds_of_flows_are_accepted() {
        assert_accepted(&setup(&lab(1), 1_000_000), &[COST]);
        assert_accepted(&setup(&lab(1), 0), &[COST]);
    }
}
