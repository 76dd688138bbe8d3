//! `sluice bench pool-scale`: 1 to 2,000 busy NFs on one core, and 10,000 idle ones.
//!
//! # Approach
//! - `light`, `heavy`: packets of 64 bytes as fast as the chain takes them; the delivered rate
//!   relative to one NF (`of_one`).
//! - `light-paced`: the same at [`PACED_PPS`], where no queue builds up: latency.
//! - `chain` and `chain-paced`: each flow passes four light NFs, two on each of two cores, or all
//!   on one where the host has too few (`nf_cores`). `nfs` counts all NFs.
//! - `poll`: light NFs that never sleep, which the manager stops and runs by slices. More than
//!   [`MOST_POLLING`] would show nothing new.
//! - `idle`: forked NFs that wait: `memory_bytes_per_nf` is the total decrease of the host's
//!   available memory per NF, and `start_s` the time until all were ready. Where the host's hard
//!   limit of open files is too low for one daemon, there are several `daemons`.
//!
//! Rings are as large as the processor's caches allow for the packets in all of them
//! ([`super::ring`]).
//!
//! # Source
//! Flurries, figures 4a and 6.

use sluice_api::model::NfState;
use std::time::Duration;

use anyhow::Context;

use super::{CHAIN, KINDS, Kind, NF_CPU, OF_ONE, P50, P99, SWITCHES, case, frames, nfs, of_one, pooled, ring, setup};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Trials};
use crate::bench::measure::Sample;
use crate::bench::report::Params;
use crate::bench::sched::{COST, DELIVERED, chain_of, nf_cores, params};
use crate::bench::setup::{Pool, Service, Setup, Traffic};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "pool-scale",
    about: "1 to 2,000 NFs on one core, one flow each, and 10,000 idle ones (Flurries, figures 4a, 6)",
    run,
};

const MEMBERS: [u32; 8] = [1, 5, 15, 30, 45, 240, 900, 2_000];
/// Packets per second at which latency is measured.
const PACED_PPS: f64 = 500_000.0;
/// Most NFs that poll.
const MOST_POLLING: u32 = 45;
/// NFs of a chain, and the numbers of all NFs in such chains.
const LENGTH: u32 = 4;
const IN_CHAINS: [u32; 5] = [LENGTH, 20, 60, 240, 900];
/// Number of idle NFs.
const IDLE: u32 = 10_000;
/// Open descriptors of a daemon per NF, and for itself.
const DESCRIPTORS: u64 = 4;
const DAEMONS_OWN: u64 = 512;
/// Time limit for the idle NFs to be ready.
const PATIENCE: Duration = Duration::from_secs(180);

const GROUP: Group = Group {
    title: "NFs on one core, each with a flow of its own",
    keys: &["nfs"],
    columns: &[DELIVERED, OF_ONE, P50, P99, SWITCHES, NF_CPU, Column::new("manager_busy_percent", "manager busy %", 1.0, 1)],
    plotted: 2,
    form: Form::Lines("nfs"),
};
const CHAINS: Group = Group { title: "Chains of four NFs, each with a flow of its own", keys: &["nf_cores", "nfs"], ..GROUP };
/// Of what is paced at [`PACED_PPS`].
const LATENCY: Group = Group {
    title: "Latency at half a million packets a second",
    keys: &["nf_cores", "nfs"],
    columns: &[P50, P99],
    plotted: 2,
    form: Form::LogSeries("nfs"),
};
const WAITING: Group = Group {
    title: "NFs that wait for a flow",
    keys: &["nfs"],
    columns: &[
        Column::new("daemons", "daemons", 1.0, 0),
        Column::new("memory_bytes", "MiB", 1_048_576.0, 0),
        Column::new("memory_bytes_per_nf", "KiB each", 1024.0, 1),
        Column::new("start_s", "all ready after s", 1.0, 1),
        Column::new("start_us_per_nf", "µs each", 1.0, 0),
    ],
    plotted: 1,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[COST])?;
    super::warn_of_small_pages();
    lab.run(&plan(&lab))
}

fn plan(lab: &Lab) -> Trials {
    let shown: Vec<crate::bench::lab::Shown> = vec![
        (GROUP, |v| v.name != "idle" && !v.params.contains_key("chain")),
        (CHAINS, |v| v.params.contains_key("chain")),
        (LATENCY, |v| v.name.ends_with("-paced")),
        (WAITING, |v| v.name == "idle"),
    ];
    let mut plan = Trials::new(EXPERIMENT.name, of_one, shown);
    for members in MEMBERS {
        for kind in KINDS {
            plan.cases.push(case(kind.word(), nfs(members), setup(lab, kind, members, 0.0)));
        }
        plan.cases.push(case("light-paced", nfs(members), setup(lab, Kind::Light, members, PACED_PPS)));
        let mut polling = setup(lab, Kind::Light, members, 0.0);
        polling.services.iter_mut().for_each(|service| service.poll = true);
        if members <= MOST_POLLING {
            plan.cases.push(case("poll", nfs(members), polling));
        }
    }
    let cores = lab.cores.own(2).map(<[usize]>::to_vec).unwrap_or_else(|why| {
        plan.leave_out("chain", in_chains(IN_CHAINS[4], 2), format!("chains over two cores: {why}"));
        vec![lab.cores.shared()]
    });
    for (members, (name, rate)) in
        IN_CHAINS.iter().flat_map(|nfs| [("chain", 0.0), ("chain-paced", PACED_PPS)].map(|one| (*nfs, one)))
    {
        plan.cases.push(case(name, in_chains(members, cores.len()), chains(lab, &cores, members, rate)));
    }
    plan.cases.push(Case::one("idle", nfs(IDLE), idle));
    plan
}

/// The params of chains with this number of NFs altogether.
fn in_chains(all: u32, cores: usize) -> Params {
    params(&[("nfs", all.into()), ("chain", LENGTH.into()), nf_cores(cores)])
}

/// A chain of pools on these cores, the first ones on the first core. Each flow has a member of
/// each pool.
fn chains(lab: &Lab, cores: &[usize], all: u32, rate: f64) -> Setup {
    let (flows, ring) = (all / LENGTH, ring(all));
    let of = |place: u32| Service {
        name: format!("{}{}", super::POOL, place + 1),
        core: cores[place as usize * cores.len() / LENGTH as usize],
        ..pooled(lab, Kind::Light, Pool::of(flows, ring))
    };
    let services: Vec<Service> = (0..LENGTH).map(of).collect();
    let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
    Setup {
        manager_core: lab.manager_core,
        frames: frames(all, ring),
        traffic: vec![Traffic { chain: CHAIN.into(), rate, flows, ..Traffic::default() }],
        chains: vec![chain_of(CHAIN, &names)],
        services,
        ..Setup::default()
    }
}

/// Available memory of the host, in bytes.
fn available() -> anyhow::Result<u64> {
    Ok(super::meminfo("MemAvailable").context("/proc/meminfo has nothing about available memory")? * 1024)
}

/// NFs of one daemon that the host's limit of open files allows.
fn most_of_one() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    u32::try_from(limit.saturating_sub(DAEMONS_OWN) / DESCRIPTORS).unwrap_or(u32::MAX).max(1)
}

/// Measures NFs without packets.
fn idle(lab: &Lab) -> Result<Sample, Miss> {
    let ring = 64;
    let of = |members: u32| Setup {
        manager_core: lab.manager_core,
        frames: 4_096,
        max_nfs: Some(16_384),
        // A chain needs traffic: one packet per hour.
        traffic: vec![Traffic { chain: CHAIN.into(), rate: 1.0 / 3600.0, ..Traffic::default() }],
        services: vec![pooled(lab, Kind::Light, Pool::of(members, ring))],
        chains: vec![chain_of(CHAIN, &[super::POOL])],
        ..Setup::default()
    };
    let daemons = IDLE.div_ceil(most_of_one());
    let shares: Vec<u32> = (0..daemons).map(|i| IDLE / daemons + u32::from(i < IDLE % daemons)).collect();
    // Daemons and zygotes with one NF each are not part of the cost of more NFs.
    let daemons = shares.iter().map(|_| lab.start(&of(1))).collect::<Result<Vec<_>, _>>()?;
    let before = available()?;
    let began = std::time::Instant::now();
    for (daemon, share) in daemons.iter().zip(&shares) {
        daemon.apply(&of(*share))?;
    }
    for (daemon, share) in daemons.iter().zip(&shares) {
        daemon.wait_for("all NFs running", PATIENCE, |daemon| {
            let stats = daemon.stats()?;
            Ok((stats.nfs.iter().filter(|nf| nf.state == NfState::Running).count() == *share as usize).then_some(()))
        })?;
    }
    let took = began.elapsed().as_secs_f64();
    lab.warm_up()?;
    let used = before.saturating_sub(available()?) as f64;
    let more = f64::from(IDLE) - daemons.len() as f64;
    let sample = Sample::from([
        ("daemons".into(), daemons.len() as f64),
        ("memory_bytes".into(), used),
        ("memory_bytes_per_nf".into(), used / more),
        ("start_s".into(), took),
        ("start_us_per_nf".into(), took * 1e6 / more),
    ]);
    daemons.into_iter().try_for_each(crate::bench::daemon::Daemon::stop)?;
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::Row;
    use crate::bench::lab::tests::lab;

    #[test]
    fn every_number_of_nfs_is_accepted() {
        let lab = lab(1);
        assert_accepted(&setup(&lab, Kind::Heavy, 1, 0.0), &[COST]);
        assert_accepted(&setup(&lab, Kind::Light, 2_000, PACED_PPS), &[COST]);
        assert_accepted(&chains(&lab, &[0, 0], 900, PACED_PPS), &[COST]);
        assert_eq!(plan(&lab).cases.len(), 8 * 3 + 5 + 5 * 2 + 1);
        assert!(available().unwrap() > 0);
    }

    #[test]
    fn a_chain_of_four_has_two_nfs_on_each_of_two_cores() {
        let setup = chains(&lab(1), &[5, 7], 240, 0.0);
        assert_eq!(setup.services.iter().map(|service| service.core).collect::<Vec<_>>(), [5, 5, 7, 7]);
        assert_eq!((setup.traffic[0].flows, setup.services[3].pool.as_ref().map(|pool| pool.members)), (60, Some((60, 60))));
        assert_eq!(setup.chains[0].services, ["flows1", "flows2", "flows3", "flows4"]);
        let row = |nfs: u32, pps: f64| {
            let sample = Sample::from([("delivered_pps".into(), pps)]);
            Row::new("chain", &in_chains(nfs, 1), sample)
        };
        let mut rows = vec![row(4, 4.0), row(240, 3.0)];
        of_one(&mut rows);
        assert_eq!(rows[1].get("of_one"), Some(0.75));
    }
}
