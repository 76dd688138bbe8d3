//! The tables of metrics: name, meaning, and how each is read from the report ([`Stats`]). Counters
//! of a report are declared with its fields ([`sluice_api::counted`]); all others are here.
//!
//! The texts for Prometheus ([`exposition`]) and the messages for an OpenTelemetry collector are
//! made from these tables. A chain's latency is a histogram with edges at powers of two
//! nanoseconds, so that the histograms of several hosts can be added. An NF's service time needs no
//! sum, and is a summary.
//!
//! No counter goes back, by the rule of [`totals`]: the series of an object ends with it and
//! continues with a new object of its name, and a family without its label has the sum of all
//! present and former objects.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sluice_slo::watch::What;

use super::families::{Families, Family, NS, Object, Rows, Sink};
use super::prometheus::Text;
use crate::control::totals::{self, Counted};
use sluice_api::exposition::TextFormat;
use sluice_api::model::{
    Chain, FlowLogCounts, Memory, Nf, NfForeign, NfPart, NfSched, Openflow, Pool, Port, PortState, Rule, Schedule, Stats, Thread,
};
use sluice_api::promise::Promise;

/// Microseconds in a second.
const US: f64 = 1e6;

const DAEMON: &[Family<Stats>] = &[
    Family::gauge("sluice_info", "Version of the daemon; always 1.", |s, r| r.with(&[("version", &s.status.version)], 1)),
    Family::gauge("sluice_uptime_seconds", "Time since the daemon was ready.", |s, r| r.is(s.status.uptime_s)),
    Family::gauge("sluice_frames", "Frames of packet memory, with and without a packet.", |s, r| {
        r.with(&[("state", "free")], s.status.frames.free);
        r.with(&[("state", "in_use")], s.status.frames.in_use);
    }),
    Family::gauge("sluice_hugepages", "1 if packet memory stands on hugepages.", |s, r| r.is(u8::from(s.status.hugepages))),
    Family::gauge("sluice_flows", "Flows that the flow table remembers.", |s, r| r.is(s.status.flows)),
    Family::gauge("sluice_tuning_cpu_ratio", "Share of one core that measuring, deciding and writing shares took.", |s, r| {
        r.is(s.status.tuning_percent / 100.0);
    }),
    Family::counter("sluice_drops_total", "Packets dropped, by reason.", |s, r| {
        s.drops.iter().for_each(|(reason, n)| r.with(&[("reason", reason)], n));
    }),
];

const MEMORIES: &[Family<Memory>] = &[
    Family::gauge(
        "sluice_memory_frames",
        "Frames of a tenant's packet memory: all of them, without a packet, with an NF. The tenant is - of services without one, ingress where \
         packets come in that may be for several, former of memory that was made anew and still has packets.",
        |m, r| {
            r.with(&[("state", "all")], m.frames);
            r.with(&[("state", "free")], m.free);
            r.with(&[("state", "in_use")], m.in_use);
        },
    ),
    Family::counter(
        "sluice_memory_copied_packets_total",
        "Packets copied into a tenant's packet memory: when they were let in, and on their way from another tenant's.",
        |m, r| copied(m, r, m.gate_packets, m.crossing_packets),
    ),
    Family::counter("sluice_memory_copied_bytes_total", "Bytes of these packets.", |m, r| {
        copied(m, r, m.gate_bytes, m.crossing_bytes);
    }),
    Family::counter(
        "sluice_memory_starved_total",
        "Packets dropped because a tenant's packet memory had no free frame to copy them into.",
        |m, r| {
            if m.tenant != FORMER {
                r.with(&[("reason", "no_frame")], m.starved);
            }
        },
    ),
];

/// The tenant label of replaced memory. Its tenant's totals contain its counts.
const FORMER: &str = "former";

fn copied(memory: &Memory, rows: &mut Rows<'_>, gate: u64, crossing: u64) {
    if memory.tenant != FORMER {
        rows.with(&[("at", "gate")], gate);
        rows.with(&[("at", "crossing")], crossing);
    }
}

const THREADS: &[Family<Thread>] = &[
    Family::gauge("sluice_thread_busy_ratio", "Share of its time in which a packet thread had packets to move.", |t, r| {
        r.is(t.busy_percent / 100.0);
    }),
    Family::summary(
        "sluice_thread_round_seconds",
        "Time that a packet thread takes for a round with packets, of one in 64.",
        |t, r| r.times(&t.round_ns),
    ),
];

const SCHEDULES: &[Family<Schedule>] = &[
    Family::counter("sluice_turns_total", "Turns that ended on a core whose NFs do not cooperate, by why.", |s, r| {
        s.turns.iter().for_each(|(why, turns)| r.with(&[("why", why)], turns));
    }),
    Family::counter(
        "sluice_controller_seconds_total",
        "Time that a packet thread spent stopping and starting NFs of a core.",
        |s, r| r.with(&[("mechanism", &s.mechanism)], s.controller_ns as f64 / NS),
    ),
    Family::gauge("sluice_longest_wait_seconds", "The longest that an NF with packets has waited for its turn.", |s, r| {
        r.is(s.longest_wait_ns as f64 / NS);
    }),
];

const OPENFLOW: &[Family<Openflow>] = &[
    Family::gauge("sluice_openflow_connected", "1 if the SDN controller is connected.", |o, r| r.is(u8::from(o.connected))),
    Family::gauge("sluice_openflow_since_seconds", "Time since the SDN controller is connected, or is not.", |o, r| {
        r.is(o.since_s)
    }),
    Family::gauge("sluice_openflow_entries", "Flow entries in force.", |o, r| r.is(o.entries)),
    Family::gauge("sluice_openflow_held_packets", "Packets that wait for the SDN controller's answer.", |o, r| r.is(o.held)),
];

const FLOW_LOG: &[Family<FlowLogCounts>] =
    &[Family::gauge("sluice_flow_log_live", "Flows that are metered for the flow log and go on.", |log, r| r.is(log.live))];

const PORTS: &[Family<Port>] = &[
    Family::counter_of_each(
        "sluice_port_drops_total",
        "Packets that the port dropped: no link, their size, or no room in its queue.",
        |p, r| {
            p.drops.iter().for_each(|(reason, n)| r.with(&[("reason", reason)], n));
        },
    ),
    Family::gauge("sluice_port_state", "1 for the state that the port is in, 0 for the others.", |p, r| {
        PortState::ALL.iter().for_each(|state| r.with(&[("state", state.word())], u8::from(p.state == *state)));
    }),
    Family::gauge(
        "sluice_port_behind_pps",
        "Packets per second that the port's rate asks for and that it did not make over the last second.",
        |p, r| r.is(p.behind_pps),
    ),
    Family::counter("sluice_port_detail_total", "What only one kind of port counts, by name.", |p, r| {
        details(p, r, totals::is_counter);
    }),
    Family::gauge("sluice_port_property", "What only one kind of port knows and does not count, by name.", |p, r| {
        details(p, r, |detail| !totals::is_counter(detail) && totals::QUANTILES.iter().all(|(name, _)| *name != detail));
    }),
    Family::summary("sluice_port_latency_seconds", "Time from the generator to the port, where the port measures it.", |p, r| {
        for (detail, quantile) in totals::QUANTILES {
            if let Some(ns) = p.details.get(detail) {
                r.with(&[("quantile", &quantile.to_string())], ns / NS);
            }
        }
    }),
];

fn details(port: &Port, rows: &mut Rows<'_>, which: fn(&str) -> bool) {
    port.details.iter().filter(|(detail, _)| which(detail)).for_each(|(detail, value)| rows.with(&[("detail", detail)], value));
}

const POOLS: &[Family<Pool>] = &[
    Family::gauge("sluice_pool_size", "NFs of a pool, those that are being started too.", |p, r| {
        r.with(&[("per", &p.per)], p.size)
    }),
    Family::gauge("sluice_pool_nfs", "NFs of a pool that are given one flow at a time, by what they do.", |p, r| {
        let states = [("idle", p.idle), ("assigned", p.assigned), ("lingering", p.lingering), ("resetting", p.resetting)];
        states.iter().for_each(|(state, n)| r.with(&[("state", state)], n));
    }),
    Family::histogram(
        "sluice_pool_setup_seconds",
        "Time from the look at the first packet of a flow until it could go to its NFs.",
        |p, r| r.times(&p.setup_ns),
    ),
];

const NFS: &[Family<Nf>] = &[
    Family::gauge("sluice_nf_queue_packets", "Packets posted to the NF and not yet returned.", |n, r| r.is(n.queue)),
    Family::gauge("sluice_nf_queue_capacity_packets", "Most packets that may be posted to the NF and not yet returned.", |n, r| {
        r.is(n.queue_capacity)
    }),
    Family::gauge("sluice_nf_frames", "Frames that the NF owns.", |n, r| r.is(n.frames_held)),
    Family::gauge("sluice_nf_throttled", "1 while chains that pass the NF are refused at their entry because of it.", |n, r| {
        r.is(u8::from(n.sched.throttled))
    }),
    Family::gauge("sluice_nf_held", "1 while the NF is made to sleep, because its packets would only wait further on.", |n, r| {
        r.is(u8::from(n.sched.held))
    }),
    Family::gauge("sluice_nf_state", "The state that the NF is in; always 1.", |n, r| r.with(&[("state", n.state.word())], 1)),
    Family::gauge("sluice_nf_cpu_ratio", "Share of one core that the NF uses.", |n, r| r.is(n.cpu_percent / 100.0)),
    Family::gauge("sluice_nf_share", "Share of its core that the NF was given, 0 to 1; 0 until one was.", |n, r| {
        r.is(n.sched.share)
    }),
    Family::gauge("sluice_nf_priority", "Weight of the NF beside its load.", |n, r| r.is(n.sched.priority)),
    Family::gauge(
        "sluice_nf_load_cores",
        "Cores that the NF asks for: the larger of arrivals times the cost of a packet, and CPU time used, waking and switching with it.",
        |n, r| r.is(n.sched.load),
    ),
    Family::gauge(
        "sluice_nf_arrival_pps",
        "Packets per second that want to come to the NF, those refused at an entry with them.",
        |n, r| r.is(n.sched.arrival_pps),
    ),
    Family::gauge("sluice_nf_packet_seconds", "Median time that the NF takes for a packet, over the last 100 ms.", |n, r| {
        known(r, n.sched.service_ns);
    }),
    Family::gauge("sluice_nf_outside_packet_seconds", "CPU time that a packet costs the NF, measured from outside.", |n, r| {
        known(r, n.sched.outside_ns);
    }),
    Family::counter(
        "sluice_nf_woken_total",
        "Times that an NF that is not woken for each packet was let go on, by cause.",
        |n, r| n.woken.iter().flat_map(|woken| woken.causes()).for_each(|(cause, n)| r.with(&[("cause", cause)], n)),
    ),
    Family::summary("sluice_nf_service_seconds", "Time that the NF takes for a burst, by its own word.", |n, r| {
        r.times(&n.service_ns);
    }),
];

fn known(rows: &mut Rows<'_>, ns: f64) {
    if ns > 0.0 {
        rows.is(ns / NS);
    }
}

/// Metrics of the sum of a service's NFs, in addition to those of [`NFS`].
const SERVICES: &[Family<Nf>] = &[
    Family::counter(
        "sluice_service_burst_seconds_total",
        "Time that all NFs of the service took for bursts, by their own word.",
        |n, r| r.is(n.service_ns.sum as f64 / NS),
    ),
    Family::counter("sluice_service_bursts_total", "Bursts of all NFs of the service, by their own word.", |n, r| {
        r.is(n.service_ns.count);
    }),
];

const FOREIGN: &[Family<NfForeign>] = &[
    Family::gauge("sluice_foreign_inside", "Packets that went in and may still come back.", |f, r| r.is(f.inside)),
    Family::gauge("sluice_foreign_by_design", "1 if the program eats packets by design.", |f, r| r.is(u8::from(f.by_design))),
    Family::gauge("sluice_foreign_processes", "Processes of the program.", |f, r| r.is(f.processes.len())),
];

const CHAINS: &[Family<Chain>] = &[
    Family::gauge("sluice_chain_state", "What the chain does with packets at its entry; always 1.", |c, r| {
        r.with(&[("state", c.state.word())], 1);
    }),
    Family::gauge("sluice_chain_throttled", "1 while one of the chain's NFs has it refused at its entry.", |c, r| {
        r.is(u8::from(c.throttled));
    }),
    // `sluice_drops_total` has these, refusals before admission, and drops of ports.
    Family::counter_of_each("sluice_chain_drops_total", "Packets of the chain that were dropped, by reason.", |c, r| {
        c.drops.iter().for_each(|(reason, n)| r.with(&[("reason", reason)], n));
    }),
    Family::histogram("sluice_chain_latency_seconds", "Time from entry to exit of sampled packets.", |c, r| {
        r.times_of(&c.latency_ns, &c.exemplars);
    }),
];

const RULES: &[Family<Rule>] = &[Family::counter(
    "sluice_rule_decisions_total",
    "Decisions of a rule: one for each new flow, and one for each known flow when the rules change or its NFs do.",
    |rule, r| r.is(rule.hits),
)];

const PROMISES: &[Family<Promise>] = &[
    Family::gauge("sluice_promise_offered_pps", "Packets per second that came for the tenant, in the last window.", |p, r| {
        r.is(p.offered_pps);
    }),
    Family::gauge(
        "sluice_promise_policed_pps",
        "Packets per second of these that were dropped because they were too many.",
        |p, r| r.is(p.policed_pps),
    ),
    Family::gauge("sluice_promise_delivered_pps", "Packets per second that the tenant's NFs were done with.", |p, r| {
        r.is(p.delivered_pps);
    }),
    Family::gauge("sluice_promise_promised_latency_seconds", "Promised 95th percentile of latency.", |p, r| {
        r.is(p.promised_us / US)
    }),
    Family::gauge("sluice_promise_cpu_cores", "Cores that the tenant's NFs use.", |p, r| r.is(p.cpu)),
    Family::gauge("sluice_promise_part_cores", "Cores that the tenant was given.", |p, r| r.is(p.part)),
    Family::gauge("sluice_promise_cache_ways", "Ways of the tenant's cache classes; 0 in the shared class.", |p, r| r.is(p.ways)),
    Family::counter("sluice_promise_policed_total", "Packets dropped because they were more than was promised.", |p, r| {
        r.is(p.policed);
    }),
    Family::counter("sluice_promise_windows_total", "Windows since the promise was made.", |p, r| r.is(p.windows)),
    Family::counter("sluice_promise_exceeded_windows_total", "Windows in which the tenant sent more than was promised.", |p, r| {
        r.is(p.exceeded)
    }),
    Family::gauge("sluice_promise_promised_pps", "Packets per second that are promised here.", |p, r| {
        p.promised_pps.iter().for_each(|pps| r.is(pps));
    }),
    Family::gauge("sluice_promise_latency_seconds", "95th percentile of latency in the last window.", |p, r| {
        p.latency_us.iter().for_each(|us| r.is(us / US));
    }),
    Family::gauge("sluice_promise_cache_bytes", "Bytes that the tenant has in the cache.", |p, r| {
        p.occupancy_bytes.iter().for_each(|bytes| r.is(bytes));
    }),
    Family::counter(
        "sluice_promise_violated_windows_total",
        "Windows in which the tenant's throughput or latency was not kept; its latency is not evaluated while more than its rate comes to its NFs.",
        |p, r| {
            r.with(&[("what", "throughput")], p.throughput_violated);
            r.with(&[("what", "latency")], p.latency_violated);
        },
    ),
    Family::gauge("sluice_promise_violated", "1 while a promise is not kept, with its cause, if that is known.", |p, r| {
        for violation in &p.violations {
            let what = match violation.what {
                What::Throughput => "throughput",
                What::Latency => "latency",
            };
            let cause = violation.cause.as_ref().map_or("", |cause| &cause.tenant);
            r.with(&[("what", what), ("cause", cause)], 1);
        }
    }),
];

const OF_ALL: &str = "All together, those that are gone too";
const OF_SERVICE: &str = "All NFs of the service, those that are gone too";

/// All metrics as a text for Prometheus.
pub fn exposition(stats: &Stats, format: TextFormat) -> String {
    let mut text = Text::new(format, 4096 + 2048 * (stats.nfs.len() + stats.chains.len() + stats.ports.len()));
    write(stats, &mut text);
    text.end()
}

/// Writes all metrics.
pub(super) fn write(stats: &Stats, sink: &mut dyn Sink) {
    let mut out = Families(sink);
    let status = &stats.status;
    out.write(DAEMON, &[(Vec::new(), stats)]);
    out.write(MEMORIES, &named("tenant", &status.memories, |memory| &memory.tenant));
    let of_thread = |thread: &Thread| vec![("role", thread.role.clone().into()), ("core", thread.core.to_string().into())];
    out.write(THREADS, &objects(&status.threads, of_thread));
    out.write(SCHEDULES, &objects(&status.schedules, |schedule| vec![("core", schedule.core.to_string().into())]));
    if let Some(openflow) = &status.openflow {
        let controller = [(vec![("controller", openflow.controller.as_str().into())], openflow)];
        out.write_counters(&controller);
        out.write(OPENFLOW, &controller);
    }
    if let Some(log) = &status.flow_log {
        let log = [(Vec::new(), log)];
        out.write_counters(&log);
        out.write(FLOW_LOG, &log);
    }
    if let Some(otlp) = &status.otlp {
        out.write_counters(&[(vec![("collector", otlp.collector.as_str().into())], otlp)]);
    }
    ports(&mut out, stats);
    nfs(&mut out, stats);
    pools(&mut out, stats);
    chains(&mut out, stats);
    out.write(PROMISES, &named("slo", &stats.promises, |promise| &promise.slo));
    out.write(
        RULES,
        &objects(&stats.rules, |rule| vec![("rule", rule.name.as_str().into()), ("chain", rule.chain.as_str().into())]),
    );
    let decisions = stats.gone.decisions + stats.rules.iter().map(|rule| rule.hits).sum::<u64>();
    out.write_sums(RULES, ["_rule_", "_rules_"], OF_ALL, &[(Vec::new(), &Rule { hits: decisions, ..Rule::default() })]);
}

fn objects<'a, T>(all: &'a [T], labels: impl Fn(&'a T) -> Vec<(&'static str, Cow<'a, str>)>) -> Vec<Object<'a, T>> {
    all.iter().map(|one| (labels(one), one)).collect()
}

fn named<'a, T>(label: &'static str, all: &'a [T], name: impl Fn(&'a T) -> &'a str) -> Vec<Object<'a, T>> {
    objects(all, |one| vec![(label, name(one).into())])
}

fn ports(out: &mut Families<'_>, stats: &Stats) {
    let gone = &stats.gone;
    let mut sum = Port { details: gone.details.clone(), ..Port::default() };
    sum.add_counts(&gone.ports);
    stats.ports.iter().for_each(|port| sum.add(port));
    let (all, sum) = (named("port", &stats.ports, |port| &port.name), [(Vec::new(), &sum)]);
    out.write_counters(&all);
    out.write(PORTS, &all);
    out.write_counter_sums(["_port_", "_ports_"], OF_ALL, &sum);
    out.write_sums(PORTS, ["_port_", "_ports_"], OF_ALL, &sum);
}

fn sched_of<'a>((labels, nf): &Object<'a, Nf>) -> Object<'a, NfSched> {
    (labels.clone(), &nf.sched)
}

const PARTS: &[Family<NfPart>] =
    &[Family::gauge("sluice_part_packet_seconds", "Time that a handler in a group takes for a packet.", |p, r| {
        p.packet_ns.into_iter().for_each(|ns| r.is(ns / NS));
    })];

fn parts_of<'a>((labels, nf): &Object<'a, Nf>) -> Vec<Object<'a, NfPart>> {
    let labelled = |part: &'a NfPart| ([labels.clone(), vec![("part", part.service.as_str().into())]].concat(), part);
    nf.parts.iter().map(labelled).collect()
}

fn foreign_of<'a>((labels, nf): &Object<'a, Nf>) -> Option<Object<'a, NfForeign>> {
    Some((labels.clone(), nf.foreign.as_ref()?))
}

/// NFs, and their sums by service: names of NFs change with each upgrade and move.
fn nfs(out: &mut Families<'_>, stats: &Stats) {
    let of_nf = |nf: &Nf| vec![("nf", nf.name.clone().into()), ("service", nf.service.clone().into())];
    let mut sums: BTreeMap<&str, Nf> = BTreeMap::new();
    stats.gone.nfs.iter().for_each(|(service, gone)| sums.entry(service).or_default().add(gone));
    stats.nfs.iter().for_each(|nf| sums.entry(&nf.service).or_default().add(nf));
    let sums: Vec<Object<'_, Nf>> = sums.iter().map(|(service, sum)| (vec![("service", (*service).into())], sum)).collect();
    let all = objects(&stats.nfs, of_nf);
    out.write_counters(&all);
    out.write_counters(&all.iter().map(sched_of).collect::<Vec<_>>());
    out.write(NFS, &all);
    let foreign: Vec<_> = all.iter().filter_map(foreign_of).collect();
    out.write_counters(&foreign);
    out.write(FOREIGN, &foreign);
    let parts: Vec<_> = all.iter().flat_map(parts_of).collect();
    out.write_counters(&parts);
    out.write(PARTS, &parts);
    let (of_nf, of_foreign) = (["_nf_", "_service_"], ["_foreign_", "_service_foreign_"]);
    out.write_counter_sums(of_nf, OF_SERVICE, &sums);
    out.write_counter_sums(of_nf, OF_SERVICE, &sums.iter().map(sched_of).collect::<Vec<_>>());
    out.write_sums(NFS, of_nf, OF_SERVICE, &sums);
    out.write_counter_sums(of_foreign, OF_SERVICE, &sums.iter().filter_map(foreign_of).collect::<Vec<_>>());
    out.write(SERVICES, &sums);
}

fn pools(out: &mut Families<'_>, stats: &Stats) {
    let mut sum = stats.gone.pools.clone();
    stats.status.pools.iter().for_each(|pool| sum.add(pool));
    let (all, sum) = (named("service", &stats.status.pools, |pool| &pool.service), [(Vec::new(), &sum)]);
    out.write_counters(&all);
    out.write(POOLS, &all);
    out.write_counter_sums(["_pool_", "_pools_"], OF_ALL, &sum);
    out.write_sums(POOLS, ["_pool_", "_pools_"], OF_ALL, &sum);
}

fn chains(out: &mut Families<'_>, stats: &Stats) {
    let gone = &stats.gone;
    let mut sum = Chain { wasted: gone.wasted, latency_ns: gone.latency_ns.clone(), ..Chain::default() };
    sum.add_counts(&gone.chains);
    stats.chains.iter().for_each(|chain| sum.add(chain));
    let (all, sum) = (named("chain", &stats.chains, |chain| &chain.name), [(Vec::new(), &sum)]);
    out.write_counters(&all);
    out.write(CHAINS, &all);
    out.write_counter_sums(["_chain_", "_chains_"], OF_ALL, &sum);
    out.write_sums(CHAINS, ["_chain_", "_chains_"], OF_ALL, &sum);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sluice_shm::histogram::Histogram;
    use sluice_slo::watch::{By, Cause, Violation};

    use super::super::families::EDGES;
    use super::*;
    use sluice_api::model::{ChainCounts, Distribution, Exemplar, Gone, NfState, Otlp, PortCounts, Status};

    /// Parses the format as a scraper would. Panics on anything that is not in the format.
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
                priority_changes: 6,
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
        let samples = parse(&exposition(&stats(), TextFormat::Plain));
        let get = |name: &str, with: &[(&str, &str)]| samples[&(name.to_owned(), labels(with))];
        assert_eq!(get("sluice_port_rx_packets_total", &[("port", "odd \"name\"\\\n")]), u64::MAX as f64);
        let odd = ("port", "odd \"name\"\\\n");
        assert_eq!(get("sluice_port_behind_pps", &[odd]), 35_000.0);
        assert_eq!(get("sluice_port_detail_total", &[odd, ("detail", "lost")]), 2.5);
        assert_eq!(get("sluice_port_property", &[odd, ("detail", "link_up")]), 1.0);
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
            ("priority_changes_total", 6.0),
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
            chains: ChainCounts { entry_packets: 5, ..ChainCounts::default() },
            ports: PortCounts { rx_bytes: 6, ..PortCounts::default() },
            details: [("lost".into(), 1.5)].into(),
            decisions: 7,
            nfs: [("fw".into(), gone.clone()), ("ids".into(), gone)].into(),
            pools: Pool { waits: 4, ..Pool::default() },
            latency_ns: stats.chains[0].latency_ns.clone(),
            ..Gone::default()
        };
        let samples = parse(&exposition(&stats, TextFormat::Plain));
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
        let samples = parse(&exposition(&stats(), TextFormat::Plain));
        let new = [("nf", "new.0"), ("service", "new")];
        let p50 = samples[&("sluice_nf_service_seconds".into(), labels(&[&new[..], &[("quantile", "0.5")]].concat()))];
        assert!(p50.is_nan());
        assert!(!samples.contains_key(&("sluice_nf_packet_seconds".into(), labels(&new))));
        assert_eq!(samples[&("sluice_nf_throttled".into(), labels(&new))], 0.0);
    }

    #[test]
    fn buckets_of_a_histogram_only_grow() {
        let text = exposition(&stats(), TextFormat::Plain);
        let counts: Vec<f64> =
            text.lines().filter(|l| l.starts_with("sluice_chain_latency_seconds_bucket")).map(|l| sample(l).2).collect();
        assert_eq!(counts.len(), EDGES.count() + 1);
        assert!(counts.is_sorted());
    }

    /// `make reference` writes it.
    #[test]
    fn the_page_in_the_tree_is_that_of_the_tables() {
        let text = exposition(&of_everything(), TextFormat::Plain);
        let mut page = "\n| metric | type | what it says |\n|---|---|---|\n".to_string();
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2) {
            let (help, kind) = (pair[0].strip_prefix("# HELP "), pair[1].strip_prefix("# TYPE "));
            if let (Some((name, help)), Some((_, kind))) =
                (help.and_then(|h| h.split_once(' ')), kind.and_then(|k| k.split_once(' ')))
            {
                page += &format!("| `{name}` | {kind} | {help} |\n");
            }
        }
        crate::in_the_tree::page("ref-metrics.md", &page);
    }

    /// A report of nothing, with what is there only while something is configured.
    fn of_everything() -> Stats {
        let (openflow, flow_log, otlp) = (Some(Openflow::default()), Some(FlowLogCounts::default()), Some(Otlp::default()));
        Stats { status: Status { openflow, flow_log, otlp, ..Status::default() }, ..Stats::default() }
    }

    /// The names of all samples that a daemon may write.
    fn names_of_samples() -> BTreeSet<String> {
        let text = exposition(&of_everything(), TextFormat::Plain);
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let names = families.flat_map(|(name, kind)| {
            let suffixes: &[&str] = match kind {
                "summary" => &["", "_sum", "_count"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            suffixes.iter().map(move |suffix| format!("{name}{suffix}"))
        });
        names.collect()
    }

    /// The words of a text that begin as metrics do.
    fn words_of(text: &str) -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("sluice_")).map(str::to_string).collect()
    }

    fn deployed(path: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn the_dashboard_and_the_alerts_name_metrics_that_there_are() {
        let known = names_of_samples();
        for path in ["deploy/grafana-dashboard.json", "deploy/alerts.yml"] {
            let named = words_of(&deployed(path));
            let unknown: Vec<_> = named.difference(&known).collect();
            assert!(unknown.is_empty(), "{path}: {unknown:?}");
            assert!(named.len() >= 10, "{path} names {named:?} alone");
        }
        let dashboard: serde_json::Value = serde_json::from_str(&deployed("deploy/grafana-dashboard.json")).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let of_panels = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        let exprs: Vec<&str> = of_panels.map(|target| target["expr"].as_str().unwrap()).collect();
        assert!(exprs.len() > 20);
        assert!(exprs.iter().all(|expr| !words_of(expr).is_empty()), "{exprs:?}");
    }

    #[test]
    fn the_book_lists_each_alert_with_what_to_do() {
        let page = deployed("docs/src/operate-metrics.md");
        let alerts = deployed("deploy/alerts.yml");
        let names: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        assert!(names.len() >= 10, "{names:?}");
        for name in names {
            assert!(page.contains(&format!("| `{name}` |")), "{name} is not on the page about metrics and alerts");
        }
    }

    /// What OpenMetrics forbids and the other format does not.
    #[test]
    fn openmetrics_names_each_family_once_and_has_an_end() {
        let text = exposition(&of_everything(), TextFormat::OpenMetrics);
        assert!(text.ends_with("\n# EOF\n") && text.matches("# EOF").count() == 1);
        let mut families = BTreeSet::new();
        for (name, kind) in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')) {
            assert!(families.insert(name), "{name} comes twice");
            assert!(kind != "counter" || !name.ends_with("_total"), "{name}");
        }
        assert!(families.len() > 150, "{}", families.len());
        assert!(text.contains("\n# TYPE sluice_otlp_pushes counter\n"), "{text}");
        assert!(exposition(&stats(), TextFormat::OpenMetrics).contains("\nsluice_chain_wasted_total{chain=\"web\"} 4\n"));
    }

    #[test]
    fn exemplars_are_in_their_buckets_and_in_openmetrics_alone() {
        let mut stats = stats();
        stats.chains[0].exemplars = vec![
            Exemplar { ns: 10_000, flow: 7, last_ns: 1_764_036_100_045_999_999 },
            Exemplar { ns: 1 << 39, flow: 8, last_ns: 1_764_036_101_000_000_000 },
        ];
        let plain = exposition(&stats, TextFormat::Plain);
        let open = exposition(&stats, TextFormat::OpenMetrics);
        assert!(!plain.contains("# {"), "{plain}");
        let found: Vec<&str> = open.lines().filter(|line| line.contains("# {")).collect();
        let bucket = |le: &str| format!("sluice_chain_latency_seconds_bucket{{chain=\"web\",le=\"{le}\"}}");
        let wanted = [
            bucket("0.000016384") + " 4 # {flow=\"7\"} 0.00001 1764036100.045",
            bucket("+Inf") + " 5 # {flow=\"8\"} 549.755813888 1764036101.000",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn nothing_counted_is_still_well_formed() {
        parse(&exposition(&Stats::default(), TextFormat::Plain));
    }
}
