//! The metrics that all experiments with packets have, from two readings of a running setup.
//!
//! Metrics of one NF end in `.SERVICE` (an experiment has one NF per service), those of one chain
//! in `.CHAIN`:
//! - `offered_pps`, `delivered_pps`, `entry_drop_pps`, `wasted_pps` (packets dropped after an NF
//!   had worked on them), `wasted_percent` (of the delivered ones), `drop_pps.REASON`,
//!   `latency_ns_p50`, `_p99`, `_p999` (of all chains together);
//! - `delivered_pps.CHAIN` and `jain` (over chains) where there are several;
//! - `processed_pps.NF`; `wasted_pps.NF`: packets that the NF had processed and the next NF did not
//!   get;
//! - from the kernel: `cpu_percent.NF`, `run_ms.NF` (time on the core), `sched_wait_ms.NF` (time
//!   runnable but not running), `sched_delay_ns.NF` (the same per time slice),
//!   `switches_voluntary_per_s.NF`, `switches_involuntary_per_s.NF`;
//! - `nf_ns_per_packet`: CPU time of all NFs per delivered packet, which depends less on other load
//!   of the host than rates do;
//! - from the daemon: `service_ns_p50.NF`, `_p99` (time per burst), `sleeps_per_s.NF`,
//!   `hand_overs_per_s.NF`, `wakes_per_s.NF`;
//! - `manager_busy_percent`, `round_ns_p50` and `_p99` (time of a packet thread's round with
//!   packets), and `controller_busy_percent`;
//! - where NFs are scheduled from outside: `longest_wait_ns`, the longest wait of an NF with
//!   packets for its slice, and `wait_ns_p999` and `wait_ns_p99` of the longest waits between two
//!   switches.

use std::collections::BTreeMap;

use sluice_shm::histogram::Histogram;

use crate::bench::fair::jain;
use crate::bench::proc::Tasks;
use crate::bench::setup::{SINK, Service, Setup};
use crate::bench::stats::{Window, since};
use sluice_api::config::Run;
use sluice_api::model::{Nf, Stats};

const QUANTILES: [(&str, f64); 3] = [("latency_ns_p50", 0.5), ("latency_ns_p99", 0.99), ("latency_ns_p999", 0.999)];

/// Measurements of one run, by metric.
pub type Sample = BTreeMap<String, f64>;

/// Counters of the daemon and the kernel at one moment.
pub struct Reading {
    pub stats: Stats,
    pub tasks: Tasks,
}

fn put(out: &mut Sample, metric: impl Into<String>, value: f64) {
    if value.is_finite() {
        out.insert(metric.into(), value);
    }
}

/// Adds quantiles of times as metrics with these names and this ending.
fn put_quantiles(out: &mut Sample, times: &Histogram, names: &[(&str, f64)], end: &str) {
    for (metric, q) in names {
        if let Some(ns) = times.quantile(*q) {
            put(out, format!("{metric}{end}"), ns as f64);
        }
    }
}

/// All metrics of `setup` between two readings.
pub fn sample(setup: &Setup, before: &Reading, after: &Reading) -> Sample {
    let window = Window { before: &before.stats, after: &after.stats };
    let mut out = Sample::new();
    put_packets(&mut out, setup, &window);
    put_nfs(&mut out, &window, before, after);
    put_threads(&mut out, &window, before, after);
    out
}

fn put_packets(out: &mut Sample, setup: &Setup, window: &Window<'_>) {
    let ports = setup.traffic.iter().map(|t| &t.name).chain(setup.devices.iter().map(|d| &d.name));
    let delivered = window.tx_pps(SINK);
    put(out, "offered_pps", ports.map(|port| window.rx_pps(port)).sum());
    put(out, "delivered_pps", delivered);
    put(out, "entry_drop_pps", window.entry_drop_pps());
    put(out, "wasted_pps", window.wasted_pps());
    put(out, "wasted_percent", window.wasted_pps() / delivered * 100.0);
    for (why, pps) in window.drops_pps() {
        put(out, format!("drop_pps.{why}"), pps);
    }
    let mut latency = Histogram::default();
    for chain in &setup.chains {
        latency.merge(&window.latency(&chain.name));
    }
    put_quantiles(out, &latency, &QUANTILES, "");
    if setup.chains.len() > 1 {
        let rates: Vec<f64> = setup.chains.iter().map(|c| window.exit_pps(&c.name)).collect();
        for (chain, pps) in setup.chains.iter().zip(&rates) {
            put(out, format!("delivered_pps.{}", chain.name), *pps);
        }
        if let Some(index) = jain(&rates) {
            put(out, "jain", index);
        }
    }
    let is_process = |service: &&Service| setup.chains.iter().any(|c| c.run == Run::Isolated && c.services.contains(&service.name));
    for service in setup.services.iter().filter(is_process) {
        put(out, format!("processed_pps.{}", service.name), window.processed_pps(&service.name));
        if let Some(next) = only_next(setup, &service.name) {
            put(out, format!("wasted_pps.{}", service.name), window.lost_between_pps(&service.name, next));
        }
    }
}

fn put_nfs(out: &mut Sample, window: &Window<'_>, before: &Reading, after: &Reading) {
    let seconds = after.tasks.seconds_since(&before.tasks);
    let mut run_ns = None;
    for (then, now) in window.nfs() {
        let nf = &now.service;
        let per_s = |count: fn(&Nf) -> u64| count(now).saturating_sub(count(then)) as f64 / window.seconds();
        put(out, format!("sleeps_per_s.{nf}"), per_s(|nf| nf.sleeps));
        put(out, format!("hand_overs_per_s.{nf}"), per_s(|nf| nf.hand_overs));
        put(out, format!("wakes_per_s.{nf}"), per_s(|nf| nf.wakes));
        let bursts = since(&now.service_ns, &then.service_ns);
        put_quantiles(out, &bursts, &[("service_ns_p50", 0.5), ("service_ns_p99", 0.99)], &format!(".{nf}"));
        let Some(task) = after.tasks.since(&before.tasks, &now.name) else { continue };
        run_ns = Some(run_ns.unwrap_or(0.0) + task.run_ns as f64);
        put(out, format!("cpu_percent.{nf}"), task.run_ns as f64 / 1e7 / seconds);
        put(out, format!("run_ms.{nf}"), task.run_ns as f64 / 1e6);
        put(out, format!("sched_wait_ms.{nf}"), task.wait_ns as f64 / 1e6);
        put(out, format!("sched_delay_ns.{nf}"), task.wait_ns as f64 / task.slices as f64);
        put(out, format!("switches_voluntary_per_s.{nf}"), task.voluntary as f64 / seconds);
        put(out, format!("switches_involuntary_per_s.{nf}"), task.involuntary as f64 / seconds);
    }
    if let Some(run_ns) = run_ns {
        put(out, "nf_ns_per_packet", run_ns / seconds / window.tx_pps(SINK));
    }
}

/// Load of the daemon's threads, and waits of NFs for their slices.
fn put_threads(out: &mut Sample, window: &Window<'_>, before: &Reading, after: &Reading) {
    let busy = after.stats.status.threads.iter().map(|thread| thread.busy_percent);
    if let Some(most) = busy.reduce(f64::max) {
        put(out, "manager_busy_percent", most);
    }
    put_quantiles(out, &window.rounds(), &[("round_ns_p50", 0.5), ("round_ns_p99", 0.99)], "");
    let schedules = before.stats.status.schedules.iter().zip(&after.stats.status.schedules);
    let mut waits = Histogram::default();
    schedules.for_each(|(then, now)| waits.merge(&since(&now.wait_ns, &then.wait_ns)));
    put_quantiles(out, &waits, &[("longest_wait_ns", 1.0), ("wait_ns_p999", 0.999), ("wait_ns_p99", 0.99)], "");
    put(out, "controller_busy_percent", after.stats.status.tuning_percent);
}

/// The service that follows `service` in every chain with either of them, if there is one.
fn only_next<'a>(setup: &'a Setup, service: &str) -> Option<&'a str> {
    let follows = |name: &str| {
        let of_chain = |services: &'a [String]| -> Vec<Option<&'a str>> {
            let at = services.iter().enumerate().filter(|(_, s)| *s == name);
            at.map(|(i, _)| services.get(i + 1).map(String::as_str)).collect()
        };
        setup.chains.iter().flat_map(|c| of_chain(&c.services)).collect::<Vec<_>>()
    };
    let all = follows(service);
    let next = (*all.first()?)?;
    let times = setup.chains.iter().flat_map(|c| &c.services).filter(|s| *s == next).count();
    (all.iter().all(|n| *n == Some(next)) && times == all.len()).then_some(next)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::proc::Tasks;
    use crate::bench::setup::{Chain, Service, Traffic};
    use sluice_api::model::Distribution;

    fn setup(chains: &[&[&str]]) -> Setup {
        let names: std::collections::BTreeSet<&str> = chains.iter().copied().flatten().copied().collect();
        let chain = |(i, services): (usize, &&[&str])| Chain {
            name: format!("c{}", i + 1),
            services: services.iter().map(|s| s.to_string()).collect(),
            ..Chain::default()
        };
        Setup {
            traffic: vec![Traffic { chain: "c1".into(), ..Traffic::default() }],
            services: names.iter().map(|name| Service { name: name.to_string(), ..Service::default() }).collect(),
            chains: chains.iter().enumerate().map(chain).collect(),
            ..Setup::default()
        }
    }

    #[test]
    fn waste_is_reported_only_where_it_can_be() {
        let line = setup(&[&["a", "b", "d"]]);
        assert_eq!((only_next(&line, "a"), only_next(&line, "b"), only_next(&line, "d")), (Some("b"), Some("d"), None));
        let fork = setup(&[&["a", "b", "d"], &["a", "c", "d"]]);
        assert_eq!((only_next(&fork, "a"), only_next(&fork, "b")), (None, None), "d is fed by both");
        let two = setup(&[&["a", "b"], &["b"]]);
        assert_eq!(only_next(&two, "a"), None, "b is fed from the entry, too");
        let same = setup(&[&["a", "b"], &["a", "b"]]);
        assert_eq!(only_next(&same, "a"), Some("b"));
        let twice = setup(&[&["a", "b", "a"]]);
        assert_eq!((only_next(&twice, "a"), only_next(&twice, "b")), (None, None));
    }

    fn reading(time_s: u64, n: u64) -> Reading {
        let stats = crate::bench::stats::tests::partial(json!({
            "time_ns": time_s * 1_000_000_000,
            "status": {"threads": [{"busy_percent": 40.0, "round_ns": {"buckets": [[1024, n]]}}, {"busy_percent": 70.0}]},
            "ports": [{"name": "in", "rx_packets": 10 * n}, {"name": "out", "tx_packets": 4 * n}],
            "nfs": [{"name": "a.0", "service": "a", "tx_packets": 5 * n, "hand_overs": n},
                {"name": "b.0", "service": "b", "rx_packets": 4 * n}],
            "chains": [{"name": "c1", "exit_packets": 3 * n}, {"name": "c2", "exit_packets": n}],
            "drops": {"entry": 5 * n, "ring_full": n},
        }));
        Reading { tasks: Tasks::of(&stats.nfs), stats }
    }

    #[test]
    fn metrics_are_those_of_the_window() {
        let mut both = setup(&[&["a", "b"], &["a", "b"]]);
        let got = sample(&both, &reading(1, 100), &reading(3, 300));
        let want = [
            ("offered_pps", 1000.0),
            ("delivered_pps", 400.0),
            ("entry_drop_pps", 500.0),
            ("wasted_pps", 100.0),
            ("wasted_percent", 25.0),
            ("wasted_pps.a", 100.0),
            ("processed_pps.a", 500.0),
            ("delivered_pps.c1", 300.0),
            ("jain", 0.8),
            ("hand_overs_per_s.a", 100.0),
            ("manager_busy_percent", 70.0),
            (
                "round_ns_p50",
                since(&reading(3, 300).stats.status.threads[0].round_ns, &Distribution::default()).quantile(0.5).unwrap() as f64,
            ),
        ];
        for (metric, value) in want {
            assert_eq!(got.get(metric), Some(&value), "{metric}");
        }
        assert!(!got.contains_key("cpu_percent.a"), "nobody told");
        both.chains.truncate(1);
        assert!(!sample(&both, &reading(1, 1), &reading(2, 2)).contains_key("jain"));
    }
}
