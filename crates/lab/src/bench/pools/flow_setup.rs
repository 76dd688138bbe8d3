//! `sluice bench flow-setup`: time to assign an NF to a new flow, and to find an idle one.
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
//! The variant `pool` has [`AT_ONCE`] flows at a time and pools of fewer and of more NFs. A flow
//! without an idle NF waits, with all of its packets. `sink_ns_p50` and `sink_ns_p99` are the time
//! from a packet's arrival to the sink, waits included. One packet in 16 is the first of its flow
//! and waits longest, so the 99th percentile is that of first packets; `of_ample` is its ratio to
//! the largest pool's, where no flow waits. `waits_percent` is the part of packets that waited.
//!
//! # Source
//! Flurries, section 6.2: 708 ns on average from arrival to assignment; figure 10: time to find an
//! idle NF by size of the pool.

use std::time::Duration;

use serde_json::Value;

use super::{CHAIN, Kind, NF_CPU, POOL, calm, ensure_offered, frames, nfs, pooled, sample, wait_for_packets};
use crate::bench::daemon::Daemon;
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::{Reading, Sample};
use crate::bench::sched::{COST, chain_of, nf_of, params};
use crate::bench::setup::{Pool, SINK, Setup, Traffic};
use crate::bench::table::{Column, Form, Group};
use crate::bench::wakeup::wait_for_members;

pub const EXPERIMENT: Experiment = Experiment {
    name: "flow-setup",
    about: "from the first packet of a flow to its NF, beside up to a million flows, and to an idle NF (Flurries, figure 10)",
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
/// Places of a generator for flows that replace each other, and packets of a flow: its first packet
/// comes a 16th of its time after the last one of the flow before.
const PLACES: (u32, u32) = (256, 16);
/// Flows at a time in these places.
const AT_ONCE: u32 = PLACES.0 - PLACES.0 / PLACES.1;
/// Packets per second of these: few, so that a packet waits for an idle NF and not for the core,
/// which the NFs of a large pool kept busy at four times this rate. A flow lasts as much longer.
const PLACES_PPS: f64 = 64_000.0;
/// Sizes of the pool for them.
const POOLS: [u32; 7] = [60, 120, 180, AT_ONCE, 270, 300, 480];
/// Most waiting packets: those of a flow for each place.
const QUEUE: u32 = 4_096;
/// Time limit for the crowd to exist.
const PATIENCE: Duration = Duration::from_secs(60);

const GROUP: Group = Group {
    title: "Time to give a new flow its NF",
    keys: &["live"],
    columns: &[
        Column::new("setup_ns_mean", "mean ns", 1.0, 0),
        Column::new("setup_ns_p50", "p50 ns", 1.0, 0),
        Column::new("setup_ns_p99", "p99 ns", 1.0, 0),
        Column::new("setup_ns_p999", "p99.9 ns", 1.0, 0),
        Column::new("activations_per_s", "flows/s", 1.0, 0),
        Column::new("live_flows", "flows in the table", 1.0, 0),
    ],
    plotted: 3,
    form: Form::Lines("live"),
};

const IDLE: Group = Group {
    title: "Time to find an idle NF, 240 flows at a time",
    keys: &["nfs"],
    columns: &[
        Column::new("sink_ns_p99", "arrival to sink, p99 µs", 1e3, 0),
        Column::new("sink_ns_p50", "p50 µs", 1e3, 0),
        Column::new("of_ample", "p99, of 480 NFs", 1.0, 2),
        Column::new("waits_percent", "packets that waited %", 1.0, 1),
        Column::new("drop_pps.none_idle", "none idle pps", 1.0, 0),
        Column::new("activations_per_s", "flows/s", 1.0, 0),
        NF_CPU,
    ],
    plotted: 1,
    form: Form::Lines("nfs"),
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[COST])?;
    super::warn_of_small_pages();
    lab.run(&plan(&lab))
}

fn plan(_: &Lab) -> Trials {
    let shown: Vec<crate::bench::lab::Shown> = vec![(GROUP, |v| v.name == "per-flow"), (IDLE, |v| v.name == "pool")];
    let mut plan = Trials::new(EXPERIMENT.name, of_ample, shown);
    for live in LIVE {
        let of = params(&[("live", Value::from(live))]);
        plan.cases.push(Case::one("per-flow", of, move |lab| measure(lab, live)));
    }
    for members in POOLS {
        plan.cases.push(Case::one("pool", nfs(members), move |lab| wait(lab, members)));
    }
    plan
}

/// The 99th percentile of waits, relative to that of the largest pool.
fn of_ample(rows: &mut [Row]) -> Vec<Row> {
    let ample = rows.iter().find(|row| row.params == nfs(POOLS[POOLS.len() - 1])).and_then(|row| row.get("sink_ns_p99"));
    for row in rows.iter_mut().filter(|row| row.name == "pool") {
        let ratio = row.get("sink_ns_p99").zip(ample).map(|(ns, ample)| ns / ample);
        row.put("of_ample", ratio);
    }
    Vec::new()
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
    wait_for_packets(&daemon, &setup)?;
    let (before, after) = readings(lab, daemon)?;
    // Without the crowd's NF and its shared NF, which are not measured.
    let alone = Setup { services: setup.services.iter().filter(|s| s.name == POOL).cloned().collect(), ..setup };
    let mut out = sample(&alone, &before, &after);
    ensure_offered(&alone, &out)?;
    out.insert("live_flows".into(), after.stats.status.flows as f64);
    Ok(out)
}

/// Readings before and after the measured time. Stops the daemon.
fn readings(lab: &Lab, daemon: Daemon) -> Result<(Reading, Reading), Miss> {
    lab.warm_up()?;
    let before = lab.read(&daemon)?;
    lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    Ok((before, after))
}

/// Flows that replace each other, with a pool of this size.
fn places(lab: &Lab, members: u32) -> Setup {
    let (flows, flow_packets) = PLACES;
    let pool = Pool { linger_ms: 0, when_empty: "wait", queue: Some(QUEUE), ..Pool::of(members, 64) };
    let traffic =
        Traffic { chain: CHAIN.into(), rate: PLACES_PPS, flows, flow_packets, tcp: true, packet_bytes: 78, ..Traffic::default() };
    Setup {
        manager_core: lab.manager_core,
        frames: frames(members, 64),
        traffic: vec![traffic],
        services: vec![pooled(lab, Kind::Light, pool)],
        chains: vec![chain_of(CHAIN, &[POOL])],
        ..Setup::default()
    }
}

fn wait(lab: &Lab, members: u32) -> Result<Sample, Miss> {
    let setup = places(lab, members);
    // The sink counts from the beginning, when members would still start.
    let daemon = lab.start(&calm(&setup))?;
    wait_for_members(&daemon, members)?;
    daemon.apply(&setup)?;
    wait_for_packets(&daemon, &setup)?;
    let (before, after) = readings(lab, daemon)?;
    let mut out = sample(&setup, &before, &after);
    ensure_offered(&setup, &out)?;
    let of_offered = out.get("waits_per_s").zip(out.get("offered_pps"));
    let waits_percent = of_offered.map(|(waits, offered)| waits / offered * 100.0);
    out.extend(waits_percent.map(|percent| ("waits_percent".to_string(), percent)));
    let sink = after.stats.ports.iter().find(|port| port.name == SINK);
    for (metric, detail) in [("sink_ns_p50", "latency_ns_p50"), ("sink_ns_p99", "latency_ns_p99")] {
        out.extend(sink.and_then(|port| Some((metric.to_string(), *port.details.get(detail)?))));
    }
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

    #[test]
    fn pools_are_smaller_and_larger_than_the_flows_need_and_compared_with_the_largest() {
        assert_eq!(AT_ONCE, 240);
        assert!(POOLS.is_sorted() && POOLS[0] < AT_ONCE && POOLS[6] > PLACES.0);
        let text = places(&lab(1), 60).toml("/tmp/x".as_ref());
        assert!(text.contains("flow_packets = 16") && text.contains("queue = 4096\nwhen_empty = \"wait\""), "{text}");
        assert_accepted(&places(&lab(1), 480), &[COST]);
        assert_accepted(&calm(&places(&lab(1), 60)), &[COST]);
        let row = |members: u32, ns: f64| Row::new("pool", &nfs(members), Sample::from([("sink_ns_p99".into(), ns)]));
        let mut rows = vec![row(120, 8e6), row(480, 2e5)];
        of_ample(&mut rows);
        assert_eq!([0, 1].map(|i: usize| rows[i].get("of_ample")), [Some(40.0), Some(1.0)]);
    }
}
