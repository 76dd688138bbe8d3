//! [`Stats`] as text for Prometheus.
//!
//! Format: the text exposition format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>). Names begin with `sluice_` and carry their unit in base units
//! (seconds, bytes, ratios from 0 to 1); counters end in `_total`. All samples of a family stand together under one
//! `HELP` and one `TYPE`.
//!
//! A chain's latency is a histogram with edges at powers of two nanoseconds, so that the histograms of several hosts can be added;
//! an NF's service time, which nobody adds, is a summary. The edges of the daemon's own buckets belong to the bucket above, those
//! of Prometheus to the one below: a difference of one nanosecond, which is far below what is known of a time.
//!
//! No counter goes back, by the rule of [`totals`]: the series of an object
//! goes with it and comes again with an object of its name, and a family without its label has the
//! sum of all that there are and were.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use sluice_slo::watch::What;

use crate::control::totals::{self, Counted};
use sluice_api::model::{Chain, Distribution, Memory, Nf, NfForeign, Openflow, Pool, Port, PortState, Schedule, Stats};
use sluice_api::promise::Promise;

/// The content type of [`exposition`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Edges of a latency histogram: 2^8 ns (256 ns) to 2^30 ns (1.07 s).
const EDGES: std::ops::RangeInclusive<u32> = 8..=30;

/// Nanoseconds of a second. Divided by, as a product with 1e-9 would not print as short.
const NS: f64 = 1e9;

/// Everything that is counted, as Prometheus reads it.
pub fn exposition(stats: &Stats) -> String {
    let mut out = Text(String::with_capacity(4096 + 2048 * (stats.nfs.len() + stats.chains.len() + stats.ports.len())));
    daemon(&mut out, stats);
    ports(&mut out, &stats.ports);
    all_ports(&mut out, stats);
    nfs(&mut out, &stats.nfs);
    services(&mut out, stats);
    pools(&mut out, &stats.status.pools);
    all_pools(&mut out, stats);
    chains(&mut out, &stats.chains);
    all_chains(&mut out, stats);
    promises(&mut out, &stats.promises);
    out.family(
        "sluice_rule_decisions_total",
        "counter",
        "Decisions of a rule: one for each new flow, and one for each known flow when the rules change or its NFs do.",
    );
    for rule in &stats.rules {
        out.sample("sluice_rule_decisions_total", &[("rule", &rule.name), ("chain", &rule.chain)], rule.hits);
    }
    out.family("sluice_rules_decisions_total", "counter", "Decisions of all rules, those that are gone too.");
    let decisions = stats.gone.decisions + stats.rules.iter().map(|rule| rule.hits).sum::<u64>();
    out.sample("sluice_rules_decisions_total", &[], decisions);
    out.family("sluice_drops_total", "counter", "Packets dropped, by reason.");
    for (reason, n) in &stats.drops {
        out.sample("sluice_drops_total", &[("reason", reason)], n);
    }
    out.0
}

/// What is counted of the packet memory of a tenant: name of the family, its type, its meaning, the label and its value, and the count.
type OfMemory = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str, fn(&Memory) -> u64)]);

const OF_MEMORIES: &[OfMemory] = &[
    (
        "sluice_memory_frames",
        "gauge",
        "Frames of a tenant's packet memory: all of them, without a packet, with an NF. The tenant is - of services without one, ingress where \
         packets come in that may be for several, former of memory that was made anew and still has packets.",
        &[("state", "all", |m| m.frames), ("state", "free", |m| m.free), ("state", "in_use", |m| m.in_use)],
    ),
    (
        "sluice_memory_copied_packets_total",
        "counter",
        "Packets copied into a tenant's packet memory: when they were let in, and on their way from another tenant's.",
        &[("at", "gate", |m| m.gate_packets), ("at", "crossing", |m| m.crossing_packets)],
    ),
    (
        "sluice_memory_copied_bytes_total",
        "counter",
        "Bytes of these packets.",
        &[("at", "gate", |m| m.gate_bytes), ("at", "crossing", |m| m.crossing_bytes)],
    ),
    (
        "sluice_memory_starved_total",
        "counter",
        "Packets dropped because a tenant's packet memory had no free frame to copy them into.",
        &[("reason", "no_frame", |m| m.starved)],
    ),
];

fn memories(out: &mut Text, memories: &[Memory]) {
    for (family, kind, meaning, counts) in OF_MEMORIES {
        out.family(family, kind, meaning);
        // What memory that was made anew has counted its tenant goes on from.
        for memory in memories.iter().filter(|memory| *kind != "counter" || memory.tenant != "former") {
            for (label, value, count) in *counts {
                out.sample(family, &[("tenant", &memory.tenant), (label, value)], count(memory));
            }
        }
    }
}

fn daemon(out: &mut Text, stats: &Stats) {
    let status = &stats.status;
    out.family("sluice_info", "gauge", "Version of the daemon; always 1.");
    out.sample("sluice_info", &[("version", &status.version)], 1);
    out.family("sluice_uptime_seconds", "gauge", "Time since the daemon was ready.");
    out.sample("sluice_uptime_seconds", &[], status.uptime_s);
    out.family("sluice_frames", "gauge", "Frames of packet memory, with and without a packet.");
    out.sample("sluice_frames", &[("state", "free")], status.frames.free);
    out.sample("sluice_frames", &[("state", "in_use")], status.frames.in_use);
    memories(out, &status.memories);
    out.family("sluice_hugepages", "gauge", "1 if packet memory stands on hugepages.");
    out.sample("sluice_hugepages", &[], u8::from(status.hugepages));
    out.family("sluice_flows", "gauge", "Flows that the flow table remembers.");
    out.sample("sluice_flows", &[], status.flows);
    out.family("sluice_thread_busy_ratio", "gauge", "Share of its time in which a packet thread had packets to move.");
    for thread in &status.threads {
        let core = thread.core.to_string();
        out.sample("sluice_thread_busy_ratio", &[("role", &thread.role), ("core", &core)], thread.busy_percent / 100.0);
    }
    out.family("sluice_thread_round_seconds", "summary", "Time that a packet thread takes for a round with packets, of one in 64.");
    for thread in &status.threads {
        let core = thread.core.to_string();
        out.summary("sluice_thread_round_seconds", &[("role", &thread.role), ("core", &core)], &thread.round_ns);
    }
    out.family("sluice_tuning_cpu_ratio", "gauge", "Share of one core that measuring, deciding and writing shares took.");
    out.sample("sluice_tuning_cpu_ratio", &[], status.tuning_percent / 100.0);
    schedules(out, &status.schedules);
    if let Some(openflow) = &status.openflow {
        controller(out, openflow);
    }
}

fn controller(out: &mut Text, openflow: &Openflow) {
    let labels = [("controller", &*openflow.controller)];
    out.family("sluice_openflow_connected", "gauge", "1 if the SDN controller is connected.");
    out.sample("sluice_openflow_connected", &labels, u8::from(openflow.connected));
    out.family("sluice_openflow_since_seconds", "gauge", "Time since the SDN controller is connected, or is not.");
    out.sample("sluice_openflow_since_seconds", &labels, openflow.since_s);
    for (name, kind, help, value) in [
        (
            "sluice_openflow_connections_total",
            "counter",
            "Connections to the SDN controller that came about.",
            openflow.connections,
        ),
        ("sluice_openflow_packet_ins_total", "counter", "Packets that the SDN controller was shown.", openflow.packet_ins),
        (
            "sluice_openflow_dropped_packet_ins_total",
            "counter",
            "Packets that the SDN controller was to be shown and was not.",
            openflow.dropped_packet_ins,
        ),
        ("sluice_openflow_flow_mods_total", "counter", "Changes of entries that the SDN controller asked for.", openflow.flow_mods),
        ("sluice_openflow_errors_total", "counter", "Errors between the SDN controller and this host.", openflow.errors),
        ("sluice_openflow_entries", "gauge", "Flow entries in force.", openflow.entries),
        ("sluice_openflow_held_packets", "gauge", "Packets that wait for the SDN controller's answer.", openflow.held),
    ] {
        out.family(name, kind, help);
        out.sample(name, &labels, value);
    }
}

/// One family: name, help, value of one member.
type Column<T> = (&'static str, &'static str, fn(&T) -> u64);

/// The same, of a measure.
type Measure<T> = (&'static str, &'static str, fn(&T) -> f64);

/// The same, of a measure that may be unknown.
type Unsure<T> = (&'static str, &'static str, fn(&T) -> Option<f64>);

const PORT_COUNTERS: &[Column<Port>] = &[
    ("sluice_port_rx_packets_total", "Packets in.", |p| p.rx_packets),
    ("sluice_port_rx_bytes_total", "Bytes in.", |p| p.rx_bytes),
    ("sluice_port_tx_packets_total", "Packets out.", |p| p.tx_packets),
    ("sluice_port_tx_bytes_total", "Bytes out.", |p| p.tx_bytes),
    ("sluice_port_tx_drops_total", "Packets that the port did not take in time.", |p| p.tx_drops),
    ("sluice_port_entry_drops_total", "Packets dropped before any NF worked on them.", |p| p.entry_drops),
];

fn schedules(out: &mut Text, schedules: &[Schedule]) {
    out.family("sluice_turns_total", "counter", "Turns that ended on a core whose NFs do not cooperate, by why.");
    for schedule in schedules {
        let core = schedule.core.to_string();
        for (why, turns) in &schedule.turns {
            out.sample("sluice_turns_total", &[("core", &core), ("why", why)], turns);
        }
    }
    out.family(
        "sluice_controller_seconds_total",
        "counter",
        "Time that a packet thread spent stopping and starting NFs of a core.",
    );
    for schedule in schedules {
        let labels = [("core", &*schedule.core.to_string()), ("mechanism", &*schedule.mechanism)];
        out.sample("sluice_controller_seconds_total", &labels, schedule.controller_ns as f64 / NS);
    }
    out.family("sluice_longest_wait_seconds", "gauge", "The longest that an NF with packets has waited for its turn.");
    for schedule in schedules {
        out.sample("sluice_longest_wait_seconds", &[("core", &schedule.core.to_string())], schedule.longest_wait_ns as f64 / NS);
    }
}

/// A state of a pool's NFs, and how many are in it.
type PoolState = (&'static str, fn(&Pool) -> u64);

const POOL_STATES: &[PoolState] =
    &[("idle", |p| p.idle), ("assigned", |p| p.assigned), ("lingering", |p| p.lingering), ("resetting", |p| p.resetting)];

const POOL_COUNTERS: &[Column<Pool>] = &[
    ("sluice_pool_activations_total", "Flows that were given an NF of their own.", |p| p.activations),
    ("sluice_pool_ended_total", "NFs of a pool that became idle again.", |p| p.ended),
    ("sluice_pool_waits_total", "Packets that had to wait for an idle NF of a pool.", |p| p.waits),
    ("sluice_pool_fallbacks_total", "Flows that a shared service got because no NF of the pool was idle.", |p| p.fallbacks),
    ("sluice_pool_drops_total", "Packets dropped because no NF of the pool was idle.", |p| p.drops),
];

fn pools(out: &mut Text, pools: &[Pool]) {
    out.family("sluice_pool_size", "gauge", "NFs of a pool, those that are being started too.");
    for pool in pools {
        out.sample("sluice_pool_size", &[("service", &*pool.service), ("per", &pool.per)], pool.size);
    }
    out.family("sluice_pool_nfs", "gauge", "NFs of a pool that are given one flow at a time, by what they do.");
    for pool in pools {
        for (state, value) in POOL_STATES {
            out.sample("sluice_pool_nfs", &[("service", &*pool.service), ("state", state)], value(pool));
        }
    }
    for (name, help, value) in POOL_COUNTERS {
        out.family(name, "counter", help);
        for pool in pools {
            out.sample(name, &[("service", &*pool.service)], value(pool));
        }
    }
    out.family(
        "sluice_pool_setup_seconds",
        "histogram",
        "Time from the look at the first packet of a flow until it could go to its NFs.",
    );
    for pool in pools {
        out.histogram("sluice_pool_setup_seconds", &[("service", &*pool.service)], &pool.setup_ns);
    }
}

fn ports(out: &mut Text, ports: &[Port]) {
    for (name, help, value) in PORT_COUNTERS {
        out.family(name, "counter", help);
        for port in ports {
            out.sample(name, &[("port", &port.name)], value(port));
        }
    }
    out.family("sluice_port_drops_total", "counter", "Packets that were dropped at the port for want of a link or for their size.");
    for port in ports {
        for (reason, n) in &port.drops {
            out.sample("sluice_port_drops_total", &[("port", &port.name), ("reason", reason)], n);
        }
    }
    out.family("sluice_port_state", "gauge", "1 for the state that the port is in, 0 for the others.");
    for port in ports {
        for state in PortState::ALL {
            out.sample("sluice_port_state", &[("port", &port.name), ("state", state.word())], u8::from(port.state == state));
        }
    }
    out.family(
        "sluice_port_behind_pps",
        "gauge",
        "Packets per second that the port's rate asks for and that it did not make over the last second.",
    );
    for port in ports {
        out.sample("sluice_port_behind_pps", &[("port", &port.name)], port.behind_pps);
    }
    out.family("sluice_port_detail_total", "counter", "What only one kind of port counts, by name.");
    for port in ports {
        for (detail, value) in port.details.iter().filter(|(detail, _)| totals::is_counter(detail)) {
            out.sample("sluice_port_detail_total", &[("port", &port.name), ("detail", detail)], value);
        }
    }
    let is_gauge = |detail: &str| !totals::is_counter(detail) && totals::QUANTILES.iter().all(|(name, _)| *name != detail);
    out.family("sluice_port_detail", "gauge", "What only one kind of port knows and does not count, by name.");
    for port in ports {
        for (detail, value) in port.details.iter().filter(|(detail, _)| is_gauge(detail)) {
            out.sample("sluice_port_detail", &[("port", &port.name), ("detail", detail)], value);
        }
    }
    out.family("sluice_port_latency_seconds", "summary", "Time from the generator to the port, where the port measures it.");
    for port in ports {
        for (detail, quantile) in totals::QUANTILES {
            if let Some(ns) = port.details.get(detail) {
                out.sample("sluice_port_latency_seconds", &[("port", &port.name), ("quantile", &quantile.to_string())], ns / NS);
            }
        }
    }
}

/// A family of the sum over all objects of a kind, by the name of the family of one object.
fn family_of_all(name: &str, one: &str, all: &str) -> String {
    name.replacen(one, all, 1)
}

const OF_ALL: &str = "All together, those that are gone too: ";

fn all_ports(out: &mut Text, stats: &Stats) {
    let gone = &stats.gone;
    let mut sum = Port {
        rx_packets: gone.rx_packets,
        rx_bytes: gone.rx_bytes,
        tx_packets: gone.tx_packets,
        tx_bytes: gone.tx_bytes,
        tx_drops: gone.tx_drops,
        entry_drops: gone.entry_drops,
        details: gone.details.clone(),
        ..Port::default()
    };
    stats.ports.iter().for_each(|port| sum.add(port));
    for (name, help, value) in PORT_COUNTERS {
        let name = family_of_all(name, "_port_", "_ports_");
        out.family(&name, "counter", &format!("{OF_ALL}{help}"));
        out.sample(&name, &[], value(&sum));
    }
    out.family("sluice_ports_detail_total", "counter", &format!("{OF_ALL}What only one kind of port counts, by name."));
    for (detail, value) in sum.details.iter().filter(|(detail, _)| totals::is_counter(detail)) {
        out.sample("sluice_ports_detail_total", &[("detail", detail)], value);
    }
}

/// What the NFs of each service have counted, of services that are gone too: names of NFs change
/// with each upgrade and move.
fn services(out: &mut Text, stats: &Stats) {
    let mut sums: BTreeMap<&str, Nf> = BTreeMap::new();
    stats.gone.nfs.iter().for_each(|(service, gone)| sums.entry(service).or_default().add(gone));
    stats.nfs.iter().for_each(|nf| sums.entry(&nf.service).or_default().add(nf));
    for (name, help, value) in NF_COUNTERS {
        let name = family_of_all(name, "_nf_", "_service_");
        out.family(&name, "counter", &format!("All NFs of the service, those that are gone too: {help}"));
        sums.iter().for_each(|(service, sum)| out.sample(&name, &[("service", service)], value(sum)));
    }
    out.family("sluice_service_woken_total", "counter", "All NFs of the service: times that one was let go on, by cause.");
    for (service, sum) in &sums {
        for (cause, n) in sum.woken.iter().flat_map(|woken| woken.causes()) {
            out.sample("sluice_service_woken_total", &[("service", service), ("cause", cause)], n);
        }
    }
    for (name, kind, help, value) in FOREIGN.iter().filter(|(_, kind, ..)| *kind == "counter") {
        let name = family_of_all(name, "_foreign_", "_service_foreign_");
        out.family(&name, kind, &format!("All NFs of the service, those that are gone too: {help}"));
        for (service, sum) in &sums {
            sum.foreign.iter().for_each(|foreign| out.sample(&name, &[("service", service)], value(foreign)));
        }
    }
    out.family(
        "sluice_service_burst_seconds_total",
        "counter",
        "Time that all NFs of the service took for bursts, by their own word.",
    );
    sums.iter().for_each(|(service, sum)| {
        out.sample("sluice_service_burst_seconds_total", &[("service", service)], sum.service_ns.sum as f64 / NS);
    });
    out.family("sluice_service_bursts_total", "counter", "Bursts of all NFs of the service, by their own word.");
    sums.iter().for_each(|(service, sum)| out.sample("sluice_service_bursts_total", &[("service", service)], sum.service_ns.count));
}

fn all_pools(out: &mut Text, stats: &Stats) {
    let mut sum = stats.gone.pools.clone();
    stats.status.pools.iter().for_each(|pool| sum.add(pool));
    for (name, help, value) in POOL_COUNTERS {
        let name = family_of_all(name, "_pool_", "_pools_");
        out.family(&name, "counter", &format!("{OF_ALL}{help}"));
        out.sample(&name, &[], value(&sum));
    }
    out.family(
        "sluice_pools_setup_seconds",
        "histogram",
        &format!("{OF_ALL}time until the first packet of a flow could go to its NFs."),
    );
    out.histogram("sluice_pools_setup_seconds", &[], &sum.setup_ns);
}

const NF_COUNTERS: &[Column<Nf>] = &[
    ("sluice_nf_rx_packets_total", "Packets posted to the NF.", |n| n.rx_packets),
    ("sluice_nf_tx_packets_total", "Packets taken back from the NF.", |n| n.tx_packets),
    ("sluice_nf_verdict_drops_total", "Packets that came back with the verdict drop.", |n| n.verdict_drops),
    ("sluice_nf_restarts_total", "Times that the NF was started again.", |n| n.restarts),
    ("sluice_nf_violations_total", "Forged descriptors and wild cursors.", |n| n.violations),
    ("sluice_nf_stops_total", "Times that the NF was stopped for its violations or because it stood still.", |n| n.stops),
    ("sluice_nf_sleeps_total", "Times that the NF went to sleep.", |n| n.sleeps),
    ("sluice_nf_hand_overs_total", "Times that the NF started the next one on its core.", |n| n.hand_overs),
    ("sluice_nf_wakes_total", "Times that the manager rang the NF's doorbell.", |n| n.wakes),
    ("sluice_nf_share_writes_total", "Times that the NF's share was written.", |n| n.sched.share_writes),
    ("sluice_nf_turns_total", "Turns that the NF was given, where NFs do not cooperate.", |n| n.sched.turns),
    ("sluice_nf_throttles_total", "Times that chains began to be refused because of the NF.", |n| n.sched.throttles),
    ("sluice_nf_marked_total", "Packets that were marked on their way to the NF (congestion experienced).", |n| n.sched.marked),
];

const NF_GAUGES: &[Column<Nf>] = &[
    ("sluice_nf_queue_packets", "Packets posted to the NF and not yet returned.", |n| n.queue),
    ("sluice_nf_queue_capacity_packets", "Most packets that may be posted to the NF and not yet returned.", |n| n.queue_capacity),
    ("sluice_nf_frames", "Frames that the NF owns.", |n| n.frames_held),
    ("sluice_nf_throttled", "1 while chains that pass the NF are refused at their entry because of it.", |n| {
        u64::from(n.sched.throttled)
    }),
    ("sluice_nf_held", "1 while the NF is told to sleep, because its packets would only wait further on.", |n| {
        u64::from(n.sched.held)
    }),
];

const NF_MEASURES: &[Measure<Nf>] = &[
    ("sluice_nf_cpu_ratio", "Share of one core that the NF uses.", |n| n.cpu_percent / 100.0),
    ("sluice_nf_share", "Share of its core that the NF was given, 0 to 1; 0 until one was.", |n| n.sched.share),
    ("sluice_nf_priority", "Weight of the NF beside its load.", |n| n.sched.priority),
    (
        "sluice_nf_load_cores",
        "Cores that the NF asks for: the larger of arrivals times the cost of a packet, and CPU time used, waking and switching with it.",
        |n| n.sched.load,
    ),
    ("sluice_nf_arrival_pps", "Packets per second that want to come to the NF, those refused at an entry with them.", |n| {
        n.sched.arrival_pps
    }),
];

type ForeignCount = (&'static str, &'static str, &'static str, fn(&NfForeign) -> u64);

const FOREIGN: &[ForeignCount] = &[
    ("sluice_foreign_entered_total", "counter", "Packets that went into the program.", |f| f.entered),
    ("sluice_foreign_returned_total", "counter", "Packets that came out of the program and went on.", |f| f.returned),
    ("sluice_foreign_originated_total", "counter", "Of these, the ones that the program made itself.", |f| f.originated),
    (
        "sluice_foreign_not_back_total",
        "counter",
        "Packets that went in and did not come back in time; no losses where the program eats packets by design.",
        |f| f.not_back,
    ),
    ("sluice_foreign_stray_total", "counter", "Packets that came out and belong to no chain.", |f| f.strays),
    ("sluice_foreign_missed_total", "counter", "Packets that a tap was not shown.", |f| f.missed),
    ("sluice_foreign_overrun_total", "counter", "Packets that came out while there was no room for them.", |f| f.overruns),
    ("sluice_foreign_inside", "gauge", "Packets that went in and may still come back.", |f| f.inside),
    ("sluice_foreign_by_design", "gauge", "1 if the program eats packets by design.", |f| u64::from(f.by_design)),
    ("sluice_foreign_processes", "gauge", "Processes of the program.", |f| f.processes.len() as u64),
];

fn nfs(out: &mut Text, nfs: &[Nf]) {
    for (columns, kind) in [(NF_COUNTERS, "counter"), (NF_GAUGES, "gauge")] {
        for (name, help, value) in columns {
            out.family(name, kind, help);
            for nf in nfs {
                out.sample(name, &[("nf", &nf.name), ("service", &nf.service)], value(nf));
            }
        }
    }
    out.family("sluice_nf_state", "gauge", "The state that the NF is in; always 1.");
    for nf in nfs {
        out.sample("sluice_nf_state", &[("nf", &nf.name), ("service", &nf.service), ("state", nf.state.word())], 1);
    }
    for (name, help, value) in NF_MEASURES {
        out.family(name, "gauge", help);
        for nf in nfs {
            out.sample(name, &[("nf", &nf.name), ("service", &nf.service)], value(nf));
        }
    }
    out.family("sluice_nf_packet_seconds", "gauge", "Median time that the NF takes for a packet, over the last 100 ms.");
    for nf in nfs {
        if nf.sched.service_ns > 0.0 {
            out.sample("sluice_nf_packet_seconds", &[("nf", &nf.name), ("service", &nf.service)], nf.sched.service_ns / NS);
        }
    }
    out.family("sluice_nf_outside_packet_seconds", "gauge", "CPU time that a packet costs the NF, told from outside.");
    for nf in nfs {
        if nf.sched.outside_ns > 0.0 {
            out.sample("sluice_nf_outside_packet_seconds", &[("nf", &nf.name), ("service", &nf.service)], nf.sched.outside_ns / NS);
        }
    }
    out.family("sluice_nf_woken_total", "counter", "Times that an NF that is not woken for each packet was let go on, by cause.");
    for nf in nfs {
        for (cause, n) in nf.woken.iter().flat_map(|woken| woken.causes()) {
            out.sample("sluice_nf_woken_total", &[("nf", &nf.name), ("service", &nf.service), ("cause", cause)], n);
        }
    }
    for (name, kind, help, value) in FOREIGN {
        out.family(name, kind, help);
        for nf in nfs {
            if let Some(foreign) = &nf.foreign {
                out.sample(name, &[("nf", &nf.name), ("service", &nf.service)], value(foreign));
            }
        }
    }
    out.family("sluice_nf_service_seconds", "summary", "Time that the NF takes for a burst, by its own word.");
    for nf in nfs {
        out.summary("sluice_nf_service_seconds", &[("nf", &nf.name), ("service", &nf.service)], &nf.service_ns);
    }
}

const PROMISE_GAUGES: &[Measure<Promise>] = &[
    ("sluice_promise_offered_pps", "Packets per second that came for the tenant, in the last window.", |p| p.offered_pps),
    ("sluice_promise_policed_pps", "Packets per second of these that were dropped because they were too many.", |p| p.policed_pps),
    ("sluice_promise_delivered_pps", "Packets per second that the tenant's NFs were done with.", |p| p.delivered_pps),
    ("sluice_promise_promised_latency_seconds", "Promised 95th percentile of latency.", |p| p.promised_us / US),
    ("sluice_promise_cpu_cores", "Cores that the tenant's NFs use.", |p| p.cpu),
    ("sluice_promise_part_cores", "Cores that the tenant was given.", |p| p.part),
    ("sluice_promise_cache_ways", "Ways of the tenant's cache classes; 0 in the shared class.", |p| f64::from(p.ways)),
];

const PROMISE_COUNTERS: &[Column<Promise>] = &[
    ("sluice_promise_policed_total", "Packets dropped because they were more than was promised.", |p| p.policed),
    ("sluice_promise_windows_total", "Windows since the promise was made.", |p| p.windows),
    ("sluice_promise_exceeded_windows_total", "Windows in which the tenant sent more than was promised.", |p| p.exceeded),
];

/// Microseconds of a second.
const US: f64 = 1e6;

fn promises(out: &mut Text, promises: &[Promise]) {
    for (name, help, value) in PROMISE_GAUGES {
        out.family(name, "gauge", help);
        for promise in promises {
            out.sample(name, &[("slo", &promise.slo)], value(promise));
        }
    }
    for (name, help, value) in PROMISE_COUNTERS {
        out.family(name, "counter", help);
        for promise in promises {
            out.sample(name, &[("slo", &promise.slo)], value(promise));
        }
    }
    // What may be unknown.
    let optional: [Unsure<Promise>; 3] = [
        ("sluice_promise_promised_pps", "Packets per second that are promised here.", |p| p.promised_pps),
        ("sluice_promise_latency_seconds", "95th percentile of latency in the last window.", |p| p.latency_us.map(|us| us / US)),
        ("sluice_promise_cache_bytes", "Bytes that the tenant has in the cache.", |p| p.occupancy_bytes.map(|bytes| bytes as f64)),
    ];
    for (name, help, value) in optional {
        out.family(name, "gauge", help);
        for promise in promises {
            if let Some(value) = value(promise) {
                out.sample(name, &[("slo", &promise.slo)], value);
            }
        }
    }
    out.family(
        "sluice_promise_violated_windows_total",
        "counter",
        "Windows in which the tenant's throughput or latency was not kept; its latency is not judged while more than its rate comes to its NFs.",
    );
    for promise in promises {
        for (what, n) in [("throughput", promise.throughput_violated), ("latency", promise.latency_violated)] {
            out.sample("sluice_promise_violated_windows_total", &[("slo", &promise.slo), ("what", what)], n);
        }
    }
    out.family("sluice_promise_violated", "gauge", "1 while a promise is not kept, with who is to blame, if that can be told.");
    for promise in promises {
        for violation in &promise.violations {
            let what = match violation.what {
                What::Throughput => "throughput",
                What::Latency => "latency",
            };
            let cause = violation.cause.as_ref().map_or("", |cause| &cause.tenant);
            out.sample("sluice_promise_violated", &[("slo", &promise.slo), ("what", what), ("cause", cause)], 1);
        }
    }
}

const CHAIN_COUNTERS: &[Column<Chain>] = &[
    ("sluice_chain_wasted_total", "Packets of the chain that were dropped after an NF had worked on them.", |c| c.wasted),
    ("sluice_chain_entry_packets_total", "Packets that entered the chain.", |c| c.entry_packets),
    ("sluice_chain_exit_packets_total", "Packets that left the chain by its port.", |c| c.exit_packets),
    ("sluice_chain_originated_packets_total", "Packets that foreign programs of the chain put in.", |c| c.originated_packets),
];

/// The sum over all chains. That of their drops is `sluice_drops_total`.
fn all_chains(out: &mut Text, stats: &Stats) {
    let gone = &stats.gone;
    let mut sum = Chain {
        wasted: gone.wasted,
        entry_packets: gone.entry_packets,
        exit_packets: gone.exit_packets,
        originated_packets: gone.originated_packets,
        latency_ns: gone.latency_ns.clone(),
        ..Chain::default()
    };
    stats.chains.iter().for_each(|chain| sum.add(chain));
    for (name, help, value) in CHAIN_COUNTERS {
        let name = family_of_all(name, "_chain_", "_chains_");
        out.family(&name, "counter", &format!("{OF_ALL}{help}"));
        out.sample(&name, &[], value(&sum));
    }
    out.family("sluice_chains_latency_seconds", "histogram", &format!("{OF_ALL}time from entry to exit of sampled packets."));
    out.histogram("sluice_chains_latency_seconds", &[], &sum.latency_ns);
}

fn chains(out: &mut Text, chains: &[Chain]) {
    out.family("sluice_chain_state", "gauge", "What the chain does with packets at its entry; always 1.");
    for chain in chains {
        out.sample("sluice_chain_state", &[("chain", &chain.name), ("state", chain.state.word())], 1);
    }
    out.family("sluice_chain_throttled", "gauge", "1 while one of the chain's NFs has it refused at its entry.");
    for chain in chains {
        out.sample("sluice_chain_throttled", &[("chain", &chain.name)], u8::from(chain.throttled));
    }
    for (name, help, value) in CHAIN_COUNTERS {
        out.family(name, "counter", help);
        for chain in chains {
            out.sample(name, &[("chain", &chain.name)], value(chain));
        }
    }
    out.family("sluice_chain_drops_total", "counter", "Packets of the chain that were dropped, by reason.");
    for chain in chains {
        for (reason, n) in &chain.drops {
            out.sample("sluice_chain_drops_total", &[("chain", &chain.name), ("reason", reason)], n);
        }
    }
    out.family("sluice_chain_latency_seconds", "histogram", "Time from entry to exit of sampled packets.");
    for chain in chains {
        out.histogram("sluice_chain_latency_seconds", &[("chain", &chain.name)], &chain.latency_ns);
    }
}

/// The text so far.
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.push(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.0.push(if i == 0 { '{' } else { ',' });
            self.push(format_args!("{label}=\""));
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        self.push(format_args!("{} {value}\n", if labels.is_empty() { "" } else { "}" }));
    }

    fn summary(&mut self, name: &str, labels: &[(&str, &str)], times: &Distribution) {
        for (q, value) in [("0.5", times.p50), ("0.9", times.p90), ("0.99", times.p99), ("0.999", times.p999)] {
            // The format's word for a quantile of nothing.
            let value = if times.count == 0 { f64::NAN } else { value as f64 / NS };
            self.sample(name, &[labels, &[("quantile", q)]].concat(), value);
        }
        self.sum_and_count(name, labels, times);
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], times: &Distribution) {
        let bucket = format!("{name}_bucket");
        for edge in EDGES {
            let edge = 1u64 << edge;
            let below: u64 = times.buckets.iter().filter(|(lowest, _)| *lowest < edge).map(|(_, n)| n).sum();
            self.sample(&bucket, &[labels, &[("le", &(edge as f64 / NS).to_string())]].concat(), below);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), times.count);
        self.sum_and_count(name, labels, times);
    }

    fn sum_and_count(&mut self, name: &str, labels: &[(&str, &str)], times: &Distribution) {
        self.sample(&format!("{name}_sum"), labels, times.sum as f64 / NS);
        self.sample(&format!("{name}_count"), labels, times.count);
    }

    fn push(&mut self, args: std::fmt::Arguments<'_>) {
        self.0.write_fmt(args).expect("a String takes everything");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sluice_shm::histogram::Histogram;
    use sluice_slo::watch::{By, Cause, Violation};

    use super::*;
    use sluice_api::model::{Gone, NfSched, NfState, Rule, Status, Thread};

    /// A parser of the format: what a scraper would make of it. Panics on anything that is not in the format.
    fn parse(text: &str) -> BTreeMap<(String, Vec<(String, String)>), f64> {
        let mut samples = BTreeMap::new();
        let mut families = BTreeSet::new();
        let mut current = (String::new(), String::new());
        let mut help = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, words) = rest.split_once(' ').expect("HELP has words");
                assert!(!words.is_empty());
                help = name.into();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("TYPE has a kind");
                assert_eq!(name, help, "HELP comes before TYPE");
                assert!(families.insert(name.to_owned()), "{name} comes twice");
                assert!(["counter", "gauge", "summary", "histogram"].contains(&kind));
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                current = (name.into(), kind.into());
            } else {
                let (name, labels, value) = sample(line);
                let suffixes: &[&str] = match current.1.as_str() {
                    "summary" => &["", "_sum", "_count"],
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                assert!(suffixes.iter().any(|s| name == format!("{}{s}", current.0)), "{name} under {current:?}");
                assert!(samples.insert((name.clone(), labels), value).is_none(), "{line} comes twice");
            }
        }
        samples
    }

    fn sample(line: &str) -> (String, Vec<(String, String)>, f64) {
        let end = line.find(['{', ' ']).expect("a name ends");
        let (name, mut rest) = line.split_at(end);
        assert!(name.starts_with("sluice_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        let mut labels = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            let mut chars = inside.char_indices();
            let mut label = String::new();
            'labels: loop {
                match chars.next().expect("labels end").1 {
                    '=' => {}
                    c => {
                        label.push(c);
                        continue;
                    }
                }
                assert_eq!(chars.next().expect("a value").1, '"');
                let mut value = String::new();
                loop {
                    match chars.next().expect("a value ends").1 {
                        '\\' => value.push(match chars.next().expect("an escape ends").1 {
                            'n' => '\n',
                            c @ ('\\' | '"') => c,
                            c => panic!("no escape: {c}"),
                        }),
                        '"' => break,
                        c => value.push(c),
                    }
                }
                labels.push((std::mem::take(&mut label), value));
                match chars.next().expect("labels end") {
                    (_, ',') => {}
                    (at, '}') => {
                        rest = &inside[at + 1..];
                        break 'labels;
                    }
                    (_, c) => panic!("{c} after a label"),
                }
            }
        }
        let value = rest.strip_prefix(' ').expect("a space before the value");
        (name.into(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
    }

    fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    fn stats() -> Stats {
        let mut latency = Histogram::default();
        [100, 1_000, 1_000, 10_000, 1 << 39].into_iter().for_each(|ns| latency.record(ns));
        let nf = Nf {
            name: "fw.0".into(),
            service: "fw".into(),
            state: NfState::Running,
            rx_packets: 7,
            queue: 3,
            cpu_percent: 12.5,
            started_ns: Some(900_000),
            first_packet_ns: Some(1_100_000),
            reclaim_ns: None,
            stops: 0,
            service_ns: Distribution::from(&latency),
            sched: NfSched {
                priority: 2.0,
                level: 2,
                arrival_pps: 2e6,
                service_ns: 250.0,
                load: 0.5,
                share: 0.75,
                share_writes: 12,
                throttled: true,
                throttles: 3,
                held: true,
                marked: 41,
                outside_ns: 275.0,
                turns: 99,
            },
            ..Default::default()
        };
        Stats {
            time_ns: 1,
            status: Status {
                version: "0.1.0".into(),
                threads: vec![Thread { role: "rx+tx".into(), core: 0, busy_percent: 50.0, ..Default::default() }],
                tuning_percent: 0.5,
                openflow: None,
                schedules: vec![Schedule {
                    core: 1,
                    mechanism: "signal".into(),
                    turns: [("slice".into(), 7)].into(),
                    controller_ns: 2_500_000_000,
                    longest_wait_ns: 1_500_000,
                    wait_ns: Default::default(),
                    ..Default::default()
                }],
                pools: vec![Pool {
                    service: "ids".into(),
                    per: "flow".into(),
                    size: 8,
                    idle: 5,
                    assigned: 2,
                    lingering: 1,
                    activations: 77,
                    waits: 3,
                    setup_ns: Distribution::from(&latency),
                    ..Default::default()
                }],
                ..Default::default()
            },
            ports: vec![Port {
                name: "odd \"name\"\\\n".into(),
                rx_packets: u64::MAX,
                behind_pps: 35_000.0,
                details: [("lost", 2.5), ("link_up", 1.0), ("latency_ns_p999", 2_500.0)].map(|(n, v)| (n.into(), v)).into(),
                ..Default::default()
            }],
            nfs: vec![nf, Nf { name: "new.0".into(), service: "new".into(), ..Default::default() }],
            chains: vec![Chain {
                name: "web".into(),
                entry_packets: 9,
                drops: BTreeMap::from([("ring_full".into(), 4)]),
                latency_ns: Distribution::from(&latency),
                throttled: true,
                wasted: 4,
                ..Default::default()
            }],
            rules: vec![Rule { name: "all".into(), chain: "web".into(), hits: 11, ..Default::default() }],
            promises: vec![Promise {
                slo: "acme".into(),
                promised_pps: Some(1e5),
                promised_us: 200.0,
                policed: 17,
                violations: vec![Violation {
                    what: What::Latency,
                    measured: 900.0,
                    promised: 200.0,
                    since_s: 3.0,
                    cause: Some(Cause { tenant: "rogue".into(), by: By::Rate, measured: 1e6, allowed: 1e5, times: 10.0 }),
                }],
                ..Default::default()
            }],
            drops: BTreeMap::from([("no_rule".into(), 5), ("ring_full".into(), 4)]),
            ..Default::default()
        }
    }

    #[test]
    fn a_scraper_reads_what_was_counted() {
        let samples = parse(&exposition(&stats()));
        let get = |name: &str, with: &[(&str, &str)]| samples[&(name.to_owned(), labels(with))];
        assert_eq!(get("sluice_port_rx_packets_total", &[("port", "odd \"name\"\\\n")]), u64::MAX as f64);
        let odd = ("port", "odd \"name\"\\\n");
        assert_eq!(get("sluice_port_behind_pps", &[odd]), 35_000.0);
        assert_eq!(get("sluice_port_detail_total", &[odd, ("detail", "lost")]), 2.5);
        assert_eq!(get("sluice_port_detail", &[odd, ("detail", "link_up")]), 1.0);
        assert_eq!(get("sluice_port_latency_seconds", &[odd, ("quantile", "0.999")]), 2.5e-6);
        let fw = [("nf", "fw.0"), ("service", "fw")];
        assert_eq!(get("sluice_nf_rx_packets_total", &fw), 7.0);
        assert_eq!(get("sluice_nf_queue_packets", &fw), 3.0);
        assert_eq!(get("sluice_nf_cpu_ratio", &fw), 0.125);
        assert_eq!(get("sluice_nf_service_seconds_count", &fw), 5.0);
        assert!(get("sluice_nf_service_seconds", &[&fw[..], &[("quantile", "0.5")]].concat()) < 1.1e-6);
        assert_eq!(get("sluice_nf_state", &[&fw[..], &[("state", "running")]].concat()), 1.0);
        assert_eq!(get("sluice_drops_total", &[("reason", "no_rule")]), 5.0);
        assert_eq!(get("sluice_chain_drops_total", &[("chain", "web"), ("reason", "ring_full")]), 4.0);
        assert_eq!(get("sluice_rule_decisions_total", &[("rule", "all"), ("chain", "web")]), 11.0);
        let acme = [("slo", "acme")];
        assert_eq!(get("sluice_promise_promised_pps", &acme), 1e5);
        assert_eq!(get("sluice_promise_promised_latency_seconds", &acme), 2e-4);
        assert_eq!(get("sluice_promise_policed_total", &acme), 17.0);
        assert_eq!(get("sluice_promise_violated", &[&acme[..], &[("what", "latency"), ("cause", "rogue")]].concat()), 1.0);
        assert_eq!(get("sluice_thread_busy_ratio", &[("role", "rx+tx"), ("core", "0")]), 0.5);
        for (name, value) in [
            ("share", 0.75),
            ("share_writes_total", 12.0),
            ("priority", 2.0),
            ("load_cores", 0.5),
            ("arrival_pps", 2e6),
            ("packet_seconds", 2.5e-7),
            ("throttled", 1.0),
            ("throttles_total", 3.0),
            ("held", 1.0),
            ("marked_total", 41.0),
            ("turns_total", 99.0),
            ("outside_packet_seconds", 2.75e-7),
        ] {
            assert_eq!(get(&format!("sluice_nf_{name}"), &fw), value, "{name}");
        }
        assert_eq!(get("sluice_turns_total", &[("core", "1"), ("why", "slice")]), 7.0);
        assert_eq!(get("sluice_pool_size", &[("service", "ids"), ("per", "flow")]), 8.0);
        assert_eq!(get("sluice_pool_nfs", &[("service", "ids"), ("state", "idle")]), 5.0);
        assert_eq!(get("sluice_pool_activations_total", &[("service", "ids")]), 77.0);
        assert_eq!(get("sluice_pool_setup_seconds_count", &[("service", "ids")]), 5.0);
        assert_eq!(get("sluice_controller_seconds_total", &[("core", "1"), ("mechanism", "signal")]), 2.5);
        assert_eq!(get("sluice_longest_wait_seconds", &[("core", "1")]), 0.0015);
        assert_eq!(get("sluice_chain_throttled", &[("chain", "web")]), 1.0);
        assert_eq!(get("sluice_chain_wasted_total", &[("chain", "web")]), 4.0);
        assert_eq!(get("sluice_tuning_cpu_ratio", &[]), 0.005);
        let bucket = |le: &str| get("sluice_chain_latency_seconds_bucket", &[("chain", "web"), ("le", le)]);
        assert_eq!(bucket("0.000000256"), 1.0);
        assert_eq!(bucket("0.000001024"), 3.0);
        assert_eq!(bucket("+Inf"), 5.0);
        assert_eq!(get("sluice_chain_latency_seconds_count", &[("chain", "web")]), 5.0);
    }

    #[test]
    fn sums_have_what_is_there_and_what_is_gone() {
        let mut stats = stats();
        let gone = Nf { rx_packets: 3, restarts: 2, ..Nf::default() };
        stats.gone = Gone {
            entry_packets: 5,
            rx_bytes: 6,
            details: [("lost".into(), 1.5)].into(),
            decisions: 7,
            nfs: [("fw".into(), gone.clone()), ("ids".into(), gone)].into(),
            pools: Pool { waits: 4, ..Pool::default() },
            latency_ns: stats.chains[0].latency_ns.clone(),
            ..Gone::default()
        };
        let samples = parse(&exposition(&stats));
        let get = |name: &str, with: &[(&str, &str)]| samples[&(name.to_owned(), labels(with))];
        assert_eq!(get("sluice_chains_entry_packets_total", &[]), 14.0);
        assert_eq!(get("sluice_chains_latency_seconds_count", &[]), 10.0);
        assert_eq!(get("sluice_ports_rx_bytes_total", &[]), 6.0);
        assert_eq!(get("sluice_ports_detail_total", &[("detail", "lost")]), 4.0);
        assert_eq!(get("sluice_rules_decisions_total", &[]), 18.0);
        assert_eq!(get("sluice_service_rx_packets_total", &[("service", "fw")]), 10.0);
        assert_eq!(get("sluice_service_restarts_total", &[("service", "ids")]), 2.0);
        assert_eq!(get("sluice_pools_waits_total", &[]), 7.0);
    }

    #[test]
    fn a_quantile_of_nothing_is_not_a_number_and_what_is_unknown_is_left_out() {
        let samples = parse(&exposition(&stats()));
        let new = [("nf", "new.0"), ("service", "new")];
        let p50 = samples[&("sluice_nf_service_seconds".into(), labels(&[&new[..], &[("quantile", "0.5")]].concat()))];
        assert!(p50.is_nan());
        assert!(!samples.contains_key(&("sluice_nf_packet_seconds".into(), labels(&new))));
        assert_eq!(samples[&("sluice_nf_throttled".into(), labels(&new))], 0.0);
    }

    #[test]
    fn buckets_of_a_histogram_only_grow() {
        let text = exposition(&stats());
        let counts: Vec<f64> =
            text.lines().filter(|l| l.starts_with("sluice_chain_latency_seconds_bucket")).map(|l| sample(l).2).collect();
        assert_eq!(counts.len(), EDGES.count() + 1);
        assert!(counts.is_sorted());
    }

    #[test]
    fn nothing_counted_is_still_well_formed() {
        parse(&exposition(&Stats::default()));
    }
}
