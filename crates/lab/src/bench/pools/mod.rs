//! Experiments on pools: those of the Flurries paper, and related ones.
//!
//! # Terms
//! *Light* and *heavy* are the two kinds of NF ([`Kind`]). The NFs of an experiment are the members
//! of one pool on one core. A flow stands for a traffic class, and flow i stays with member i.
//!
//! # Metrics
//! The common metrics, except those of a single NF, and: `activations_per_s`; `setup_ns_p50`,
//! `setup_ns_p99`, `setup_ns_mean` (time from when the flow table does not know the first packet of
//! a flow until it can go to its NF; the mean is of middles of buckets, to within a sixteenth);
//! `waits_per_s` (packets that waited for an idle member); `switches_per_s` and `nf_cpu_percent` of
//! all members together.
//!
//! # Source
//! Zhang et al., *Flurries: Countless Fine-Grained NFs for Flexible Per-Flow Customization*, CoNEXT
//! 2016, section 6. Each module names its figure.

pub mod churn;
pub mod containers;
pub mod cpu_usage;
pub mod flow_setup;
pub mod ports;
pub mod scale;
pub mod soak;
pub mod sockets;
pub mod weight;

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use sluice_api::model::Distribution;
use sluice_shm::histogram::Histogram;

use crate::bench::daemon::Daemon;
use crate::bench::lab::{Case, Lab, Miss, Row};
use crate::bench::measure::{Reading, Sample};
use crate::bench::proc::Task;
use crate::bench::report::Params;
use crate::bench::sched::{COST, chain_of, params};
use crate::bench::setup::{Pool, Service, Setup, Traffic};
use crate::bench::stats::{Window, since};
use crate::bench::table::Column;

pub const POOL: &str = "flows";
/// The chain through the pool.
pub const CHAIN: &str = "c";
/// Capacity of all members' rings together, with no ring shorter than [`SHORTEST`]: more would
/// leave the processor's caches.
const IN_RINGS: u32 = 8_192;
/// Shortest rings: a switch among thousands of NFs costs as much as a hundred packets.
const SHORTEST: u32 = 128;
/// Part of the packets that are to come that has to: of next to none, nothing is measured.
const LEAST: f64 = 0.1;
/// Time limit for the packets of a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Swaps the MAC addresses: 50 cycles.
    Light,
    /// Swaps the MAC addresses: 1,000 more cycles.
    Heavy,
}

pub const KINDS: [Kind; 2] = [Kind::Light, Kind::Heavy];

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Light => "light",
            Kind::Heavy => "heavy",
        }
    }

    fn cycles(self) -> u64 {
        match self {
            Kind::Light => 50,
            Kind::Heavy => 1_000,
        }
    }
}

/// Ring capacity of a member in a pool of this size.
pub fn ring(members: u32) -> u32 {
    (IN_RINGS / members.max(1)).clamp(SHORTEST, 4096).next_power_of_two()
}

/// Frames for a pool: both rings of each member, and some in hand.
pub fn frames(members: u32, ring: u32) -> u32 {
    (2 * members * ring).max(8_192) + 8_192
}

/// A value of `/proc/meminfo`: KiB, or a number of pages.
pub fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Warns if no hugepages are free: with hundreds of NFs, page faults would dominate the
/// measurement.
pub fn warn_of_small_pages() {
    if meminfo("HugePages_Free") == Some(0) {
        eprintln!(
            "sluice bench: no hugepages are free, so each NF takes a page fault for each small page of packet memory that it meets; \
             reserve some, as with: echo 1200 > /proc/sys/vm/nr_hugepages"
        );
    }
}

/// Arguments of an NF that swaps the MAC addresses, with this cost.
pub fn args(cycles: u64) -> Vec<String> {
    ["--swap-macs", "--cycles", &cycles.to_string()].map(str::to_string).to_vec()
}

/// A pool of NFs of a kind.
pub fn pooled(lab: &Lab, kind: Kind, pool: Pool) -> Service {
    let (args, core) = (args(kind.cycles()), lab.cores.shared());
    Service { name: POOL.into(), exec: COST.into(), args, core, zygote: true, pool: Some(pool), ..Service::default() }
}

/// One pool behind one generator whose flows go round-robin to members; `rate` 0 is as fast as
/// possible.
pub fn setup(lab: &Lab, kind: Kind, members: u32, rate: f64) -> Setup {
    let ring = ring(members);
    Setup {
        manager_core: lab.manager_core,
        frames: frames(members, ring),
        traffic: vec![Traffic { chain: CHAIN.into(), rate, flows: members, ..Traffic::default() }],
        services: vec![pooled(lab, kind, Pool::of(members, ring))],
        chains: vec![chain_of(CHAIN, &[POOL])],
        ..Setup::default()
    }
}

/// A setup without its traffic: a packet per hour, so that the ports stay.
pub fn calm(setup: &Setup) -> Setup {
    let traffic = setup.traffic.iter().map(|t| Traffic { rate: 1.0 / 3600.0, flow_packets: 0, tcp: false, flows: 1, ..t.clone() });
    Setup { traffic: traffic.collect(), ..setup.clone() }
}

/// Packets per second that are to come, if a rate is set.
fn due_pps(setup: &Setup) -> Option<f64> {
    let is_set = setup.traffic.iter().all(|traffic| traffic.rate >= 1.0);
    is_set.then(|| setup.traffic.iter().map(|traffic| traffic.rate).sum())
}

/// Waits until those of a tenth of a second have come: hardly a packet comes while members start,
/// or while memory is touched for the first time.
///
/// # Errors
/// They have not come in time.
pub fn wait_for_packets(daemon: &Daemon, setup: &Setup) -> anyhow::Result<()> {
    let Some(due) = due_pps(setup) else { return Ok(()) };
    daemon.wait_for("the packets of a tenth of a second", PATIENCE, |daemon| {
        let came: u64 = daemon.stats()?.ports.iter().map(|port| port.rx_packets).sum();
        Ok((came as f64 >= due / 10.0).then_some(()))
    })
}

/// Checks that packets came as they were to.
///
/// # Errors
/// Hardly any did.
pub fn ensure_offered(setup: &Setup, sample: &Sample) -> anyhow::Result<()> {
    let (due, came) = (due_pps(setup).unwrap_or_default(), sample.get("offered_pps").copied().unwrap_or_default());
    ensure!(came >= LEAST * due, "{came:.0} packets a second came, and {due:.0} were to come");
    Ok(())
}

/// Metrics of a setup with pools between two readings.
pub fn sample(setup: &Setup, before: &Reading, after: &Reading) -> Sample {
    let mut out = crate::bench::measure::sample(setup, before, after);
    let is_pool = |name: &str| setup.services.iter().any(|s| s.pool.is_some() && s.name == name);
    // For a pool, the common metrics of an NF are those of the last member that was read.
    out.retain(|metric, _| !metric.rsplit_once('.').is_some_and(|(_, of)| is_pool(of)));
    let window = Window { before: &before.stats, after: &after.stats };
    let seconds = after.tasks.seconds_since(&before.tasks);
    let members = window.nfs().filter(|(_, now)| is_pool(&now.service));
    let tasks: Vec<Task> = members.filter_map(|(_, now)| after.tasks.since(&before.tasks, &now.name)).collect();
    let mut put = |metric: &str, value: f64| {
        if value.is_finite() {
            out.insert(metric.into(), value);
        }
    };
    if !tasks.is_empty() {
        put("nf_cpu_percent", tasks.iter().map(|t| t.run_ns).sum::<u64>() as f64 / 1e7 / seconds);
        put("switches_per_s", tasks.iter().map(|t| t.voluntary + t.involuntary).sum::<u64>() as f64 / seconds);
    }
    let (mut setups, mut activations, mut fallbacks, mut waits) = (Histogram::default(), 0, 0, 0);
    for (then, now) in setup.services.iter().filter_map(|service| window.pool(&service.name)) {
        activations += now.activations.saturating_sub(then.activations);
        fallbacks += now.fallbacks.saturating_sub(then.fallbacks);
        waits += now.waits.saturating_sub(then.waits);
        setups.merge(&since(&now.setup_ns, &then.setup_ns));
    }
    put("activations_per_s", activations as f64 / window.seconds());
    put("fallbacks_per_s", fallbacks as f64 / window.seconds());
    put("waits_per_s", waits as f64 / window.seconds());
    for (metric, q) in [("setup_ns_p50", 0.5), ("setup_ns_p99", 0.99), ("setup_ns_p999", 0.999)] {
        if let Some(ns) = setups.quantile(q) {
            put(metric, ns as f64);
        }
    }
    let setups = Distribution::from(&setups);
    put("setup_ns_mean", setups.sum as f64 / setups.count as f64);
    out
}

/// Runs a setup with pools, and measures it for the requested time.
pub fn flow(lab: &Lab, setup: &Setup) -> Result<Sample, Miss> {
    let is_strict = |name: &str| setup.services.iter().any(|s| s.name == name && s.pool.as_ref().is_some_and(|pool| pool.strict));
    let daemon = lab.start(setup)?;
    wait_for_packets(&daemon, setup)?;
    lab.warm_up()?;
    let before = lab.read_where(&daemon, is_strict)?;
    lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
    let after = lab.read_where(&daemon, is_strict)?;
    daemon.stop()?;
    let sample = sample(setup, &before, &after);
    ensure_offered(setup, &sample)?;
    Ok(sample)
}

/// A case of one setup.
pub fn case(name: &str, of: Params, setup: Setup) -> Case {
    Case::one(name, of, move |lab| flow(lab, &setup))
}

/// The param for the number of members.
pub fn nfs(members: u32) -> Params {
    params(&[("nfs", Value::from(members))])
}

/// The number of members, and another param.
pub fn nfs_and(members: u32, key: &str, value: f64) -> Params {
    params(&[("nfs", Value::from(members)), (key, json!(value))])
}

/// Adds `of_one` to rows: their rate, relative to one NF of the same name, or to one chain where
/// each flow passes several (param `chain`).
pub fn of_one(rows: &mut [Row]) -> Vec<Row> {
    let is_one = |row: &&Row| row.params.get("nfs") == Some(row.params.get("chain").unwrap_or(&Value::from(1)));
    let ones: Vec<(String, f64)> = rows
        .iter()
        .filter(is_one)
        .filter_map(|row| Some((row.name.clone(), row.get("delivered_pps").filter(|pps| *pps > 0.0)?)))
        .collect();
    for row in rows {
        let one = ones.iter().find(|(name, _)| *name == row.name).map(|(_, pps)| pps);
        let ratio = one.and_then(|one| Some(row.get("delivered_pps")? / one));
        row.put("of_one", ratio);
    }
    Vec::new()
}

/// Relative to one NF.
pub const OF_ONE: Column = Column::new("of_one", "of one", 1.0, 3);
/// CPU time of all members.
pub const NF_CPU: Column = Column::new("nf_cpu_percent", "NFs' CPU %", 1.0, 1);
/// Context switches of all members.
pub const SWITCHES: Column = Column::new("switches_per_s", "switches/s", 1.0, 0);
pub const P50: Column = Column::new("latency_ns_p50", "p50 µs", 1e3, 0);
pub const P99: Column = Column::new("latency_ns_p99", "p99 µs", 1e3, 0);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    #[test]
    fn a_run_whose_packets_hardly_come_is_none() {
        let came = |rate: f64, pps: f64| {
            let sample = Sample::from([("offered_pps".to_string(), pps)]);
            ensure_offered(&setup(&lab(1), Kind::Light, 4, rate), &sample).map_err(|error| error.to_string())
        };
        assert_eq!(came(80_000.0, 796.0).unwrap_err(), "796 packets a second came, and 80000 were to come");
        assert_eq!(came(80_000.0, 8_000.0), Ok(()));
        // As fast as possible, and next to none.
        assert_eq!([came(0.0, 0.0), came(1.0 / 3600.0, 0.0)], [Ok(()), Ok(())]);
    }
}
