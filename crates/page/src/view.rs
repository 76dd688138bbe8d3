//! What the page shows: tables of rows, made of two reports of the daemon.
//!
//! A row has a name and a value for each column of its table. Rates are in units per second between
//! the two reports, and null where there is no earlier one. Numbers have three digits: what a
//! reader sees does not change with each packet, and what does not change is not sent.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use sluice_api::model::{Chain, Distribution, Event, EventKind, Nf, Pool, Port, Rule, Stats, Status};
use sluice_api::promise::Promise;

/// Most rows of a table; the first by name are shown.
pub(crate) const MOST_ROWS: usize = 5_000;
/// Most characters of a text.
const MOST_TEXT: usize = 300;
/// Time between two reports beyond which no rate is made, in nanoseconds.
const STALE_NS: u64 = 10_000_000_000;

/// The values of a row, in the order of its table's columns.
pub(crate) type Values = Vec<Value>;

/// TableRows of one kind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TableRows {
    /// Name of the table.
    pub of: &'static str,
    pub columns: &'static [&'static str],
    pub rows: BTreeMap<String, Values>,
}

const DAEMON: &[&str] =
    &["version", "uptime_s", "verdict", "flows", "frames", "free_frames", "hugepages", "cores", "config", "left_out"];
const PROBLEMS: &[&str] = &["subject", "what", "since_s", "serious"];
const THREADS: &[&str] = &["role", "core", "busy"];
const PORTS: &[&str] = &["kind", "state", "rx_pps", "tx_pps", "rx_bps", "tx_bps", "drop_pps", "behind_pps"];
const RULES: &[&str] = &["position", "port", "chain", "decisions_ps", "decisions"];
const CHAINS: &[&str] =
    &["services", "egress", "state", "throttled", "in_pps", "out_pps", "drop_pps", "wasted_pps", "p50_ns", "p99_ns"];
pub(crate) const NFS: &[&str] = &[
    "service",
    "core",
    "state",
    "mode",
    "rx_pps",
    "tx_pps",
    "queue",
    "capacity",
    "cpu",
    "packet_ns",
    "burst_p99_ns",
    "throttled",
    "held",
    "share",
    "drop_pps",
    "restarts",
    "violations",
];
const POOLS: &[&str] = &["per", "size", "idle", "assigned", "lingering", "resetting", "flows_ps", "drop_pps", "setup_p99_ns"];
const SLOS: &[&str] = &[
    "state",
    "promised_pps",
    "offered_pps",
    "delivered_pps",
    "policed_pps",
    "promised_us",
    "latency_us",
    "windows",
    "throughput_violated",
    "latency_violated",
    "exceeded",
    "part",
    "cpu",
];
const DROPS: &[&str] = &["packets", "drop_pps"];

/// The tables of a report; rates are those since the report `before`.
pub(crate) fn tables(now: &Stats, before: Option<&Stats>) -> Vec<TableRows> {
    let before = before.filter(|before| now.time_ns > before.time_ns && now.time_ns - before.time_ns < STALE_NS);
    let seconds = before.map_or(0.0, |before| (now.time_ns - before.time_ns) as f64 / 1e9);
    let since = Since { seconds };
    let earlier = before.unwrap_or(now);
    let ports = by(&earlier.ports, |one| &one.name);
    let rules = by(&earlier.rules, |one| &one.name);
    let chains = by(&earlier.chains, |one| &one.name);
    let nfs = by(&earlier.nfs, |one| &one.name);
    let pools = by(&earlier.status.pools, |one| &one.service);
    let status = &now.status;
    let threads = status
        .threads
        .iter()
        .map(|one| (format!("{} {}", one.core, one.role), vec![text(&one.role), Value::from(one.core), number(one.busy_percent)]));
    let drops = now.drops.iter().map(|(reason, n)| {
        let was = earlier.drops.get(reason).copied();
        (reason.clone(), vec![Value::from(*n), since.rate(*n, was)])
    });
    let slos = now.promises.iter().map(|one| (one.slo.clone(), of_slo(one)));
    vec![
        rows("daemon", DAEMON, [("daemon".to_string(), of_daemon(now))]),
        rows("problem", PROBLEMS, problems(status)),
        rows("thread", THREADS, threads),
        rows("port", PORTS, now.ports.iter().map(|one| (one.name.clone(), of_port(one, ports.get(&*one.name).copied(), &since)))),
        rows("rule", RULES, now.rules.iter().map(|one| (one.name.clone(), of_rule(one, rules.get(&*one.name).copied(), &since)))),
        rows(
            "chain",
            CHAINS,
            now.chains.iter().map(|one| (one.name.clone(), of_chain(one, chains.get(&*one.name).copied(), &since))),
        ),
        rows("nf", NFS, now.nfs.iter().map(|one| (one.name.clone(), of_nf(one, nfs.get(&*one.name).copied(), &since)))),
        rows(
            "pool",
            POOLS,
            status.pools.iter().map(|one| (one.service.clone(), of_pool(one, pools.get(&*one.service).copied(), &since))),
        ),
        rows("slo", SLOS, slos),
        rows("drop", DROPS, drops),
    ]
}

fn rows(of: &'static str, columns: &'static [&'static str], all: impl IntoIterator<Item = (String, Values)>) -> TableRows {
    let mut rows: BTreeMap<String, Values> = all.into_iter().collect();
    if rows.len() > MOST_ROWS {
        let first_left_out = rows.keys().nth(MOST_ROWS).cloned();
        first_left_out.iter().for_each(|first| drop(rows.split_off(first)));
    }
    debug_assert!(rows.values().all(|row| row.len() == columns.len()), "{of}");
    TableRows { of, columns, rows }
}

fn by<'a, T>(all: &'a [T], name: impl Fn(&'a T) -> &'a String) -> HashMap<&'a str, &'a T> {
    all.iter().map(|one| (name(one).as_str(), one)).collect()
}

/// The time between two reports.
struct Since {
    /// 0 if there is one report only.
    seconds: f64,
}

impl Since {
    /// The rate of a counter; null without an earlier value.
    fn rate(&self, now: u64, before: Option<u64>) -> Value {
        match before {
            Some(before) if self.seconds > 0.0 => number(now.saturating_sub(before) as f64 / self.seconds),
            _ => Value::Null,
        }
    }
}

/// A number with three digits; null if it is not finite.
fn number(value: f64) -> Value {
    if !value.is_finite() {
        return Value::Null;
    }
    if value == 0.0 {
        return Value::from(0);
    }
    let digits = (2 - value.abs().log10().floor() as i32).min(300);
    // A power with a negative exponent is not exact, and the quotient of a whole number is.
    let scale = 10f64.powi(digits.abs());
    let rounded = if digits < 0 { (value / scale).round() * scale } else { (value * scale).round() / scale };
    // Infinity becomes null.
    if rounded.fract() == 0.0 && rounded.abs() < 9e15 { Value::from(rounded as i64) } else { Value::from(rounded) }
}

/// A text, cut where it is too long.
fn text(text: &str) -> Value {
    match text.char_indices().nth(MOST_TEXT) {
        Some((end, _)) => Value::from(format!("{}…", &text[..end])),
        None => Value::from(text),
    }
}

/// A time in nanoseconds; null if it is not known.
fn known_ns(ns: f64) -> Value {
    if ns > 0.0 { number(ns) } else { Value::Null }
}

fn of_daemon(stats: &Stats) -> Values {
    let status = &stats.status;
    let left_out = stats.nfs.len().saturating_sub(MOST_ROWS) + stats.chains.len().saturating_sub(MOST_ROWS);
    vec![
        text(&status.version),
        Value::from(status.uptime_s as u64),
        Value::from(status.health.verdict.word()),
        number(status.flows as f64),
        Value::from(status.frames.total),
        number(status.frames.free as f64),
        Value::from(status.hugepages),
        Value::from(status.cores),
        status.config.as_deref().map_or(Value::Null, text),
        Value::from(left_out),
    ]
}

fn problems(status: &Status) -> Vec<(String, Values)> {
    let health = &status.health;
    let all = health.problems.iter().map(|one| (one, true)).chain(health.warnings.iter().map(|one| (one, false)));
    // By subject and number: the words of a problem may change while it lasts.
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut rows = Vec::new();
    for (one, is_serious) in all {
        let number = known.entry(one.subject.as_str()).or_default();
        *number += 1;
        let values = vec![text(&one.subject), text(&one.what), Value::from(one.since_s as u64), Value::from(is_serious)];
        rows.push((format!("{} {number}", one.subject), values));
    }
    rows
}

fn of_port(port: &Port, before: Option<&Port>, since: &Since) -> Values {
    let dropped = |port: &Port| port.tx_drops + port.entry_drops + port.drops.values().sum::<u64>();
    let bits = |bytes: u64| bytes.saturating_mul(8);
    vec![
        text(&port.kind),
        Value::from(port.state.words()),
        since.rate(port.rx_packets, before.map(|b| b.rx_packets)),
        since.rate(port.tx_packets, before.map(|b| b.tx_packets)),
        since.rate(bits(port.rx_bytes), before.map(|b| bits(b.rx_bytes))),
        since.rate(bits(port.tx_bytes), before.map(|b| bits(b.tx_bytes))),
        since.rate(dropped(port), before.map(dropped)),
        number(port.behind_pps),
    ]
}

fn of_rule(rule: &Rule, before: Option<&Rule>, since: &Since) -> Values {
    vec![
        Value::from(rule.position),
        rule.matches.port.as_deref().map_or(Value::Null, text),
        text(&rule.chain),
        since.rate(rule.hits, before.map(|b| b.hits)),
        Value::from(rule.hits),
    ]
}

fn of_chain(chain: &Chain, before: Option<&Chain>, since: &Since) -> Values {
    let dropped = |chain: &Chain| chain.drops.values().sum::<u64>();
    let timed = match before {
        // Nothing was timed since, or all of it is.
        Some(before) if before.latency_ns.count < chain.latency_ns.count => Some(chain.latency_ns.since(&before.latency_ns)),
        _ => None,
    };
    let quantile = |of: fn(&Distribution) -> u64| timed.as_ref().map_or(Value::Null, |timed| known_ns(of(timed) as f64));
    vec![
        Value::Array(chain.services.iter().map(|service| text(service)).collect()),
        text(&chain.egress),
        Value::from(chain.state.word()),
        Value::from(chain.throttled),
        since.rate(chain.entry_packets, before.map(|b| b.entry_packets)),
        since.rate(chain.exit_packets, before.map(|b| b.exit_packets)),
        since.rate(dropped(chain), before.map(dropped)),
        since.rate(chain.wasted, before.map(|b| b.wasted)),
        quantile(|timed| timed.p50),
        quantile(|timed| timed.p99),
    ]
}

fn of_nf(nf: &Nf, before: Option<&Nf>, since: &Since) -> Values {
    vec![
        text(&nf.service),
        Value::from(nf.core),
        Value::from(nf.state.word()),
        text(&nf.mode),
        since.rate(nf.rx_packets, before.map(|b| b.rx_packets)),
        since.rate(nf.tx_packets, before.map(|b| b.tx_packets)),
        number(nf.queue as f64),
        Value::from(nf.queue_capacity),
        number((nf.cpu_percent * 10.0).round() / 10.0),
        known_ns(nf.sched.service_ns),
        known_ns(nf.service_ns.p99 as f64),
        Value::from(nf.sched.throttled),
        Value::from(nf.sched.held),
        number((nf.sched.share * 1000.0).round() / 1000.0),
        since.rate(nf.verdict_drops, before.map(|b| b.verdict_drops)),
        Value::from(nf.restarts),
        Value::from(nf.violations),
    ]
}

fn of_pool(pool: &Pool, before: Option<&Pool>, since: &Since) -> Values {
    vec![
        text(&pool.per),
        Value::from(pool.size),
        Value::from(pool.idle),
        Value::from(pool.assigned),
        Value::from(pool.lingering),
        Value::from(pool.resetting),
        since.rate(pool.activations, before.map(|b| b.activations)),
        since.rate(pool.drops, before.map(|b| b.drops)),
        known_ns(pool.setup_ns.p99 as f64),
    ]
}

fn of_slo(slo: &Promise) -> Values {
    vec![
        Value::from(slo.word()),
        slo.promised_pps.map_or(Value::Null, number),
        number(slo.offered_pps),
        number(slo.delivered_pps),
        number(slo.policed_pps),
        number(slo.promised_us),
        slo.latency_us.map_or(Value::Null, number),
        Value::from(slo.windows),
        Value::from(slo.throughput_violated),
        Value::from(slo.latency_violated),
        Value::from(slo.exceeded),
        number(slo.part),
        number(slo.cpu),
    ]
}

/// An event as the page shows it.
pub(crate) fn of_event(event: &Event) -> Value {
    let subject = match (&event.subject, &event.port) {
        (Some(subject), _) => text(subject),
        (None, Some(port)) => text(&format!("port {port}")),
        (None, None) if event.nf.is_empty() => Value::from(""),
        (None, None) => text(&format!("nf {}", event.nf)),
    };
    let what = match (&event.text, event.event) {
        (Some(words), _) => words.clone(),
        (None, EventKind::Throttle) => match event.throttled {
            Some(true) => "its chains are refused at their entry".into(),
            _ => "its chains are admitted again".into(),
        },
        (None, EventKind::Share) => {
            let percent = |share: Option<f64>| share.unwrap_or_default() * 100.0;
            format!("its share of the core went from {:.1} to {:.1} %", percent(event.from), percent(event.to))
        }
        (None, EventKind::Port) => event.state.map_or(String::new(), |state| state.words().into()),
        (None, _) => String::new(),
    };
    json!({
        "number": event.number,
        "unix_ms": event.unix_ms,
        "kind": event.event.word(),
        "subject": subject,
        "what": text(&what),
        "count": event.count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::health::{Health, HealthVerdict, Problem};

    fn value(tables: &[TableRows], table: &str, row: &str, column: &str) -> Value {
        let table = tables.iter().find(|one| one.of == table).unwrap();
        let at = table.columns.iter().position(|one| *one == column).unwrap();
        table.rows[row][at].clone()
    }

    fn report(time_ns: u64, packets: u64) -> Stats {
        Stats {
            time_ns,
            nfs: vec![Nf { name: "fw.0".into(), service: "fw".into(), rx_packets: packets, ..Nf::default() }],
            chains: vec![Chain {
                name: "web".into(),
                services: vec!["fw".into()],
                entry_packets: packets,
                latency_ns: Distribution::from_buckets(vec![(1024, packets)]),
                ..Chain::default()
            }],
            ports: vec![Port { name: "in".into(), rx_bytes: 100 * packets, ..Port::default() }],
            drops: [("ring_full".to_string(), packets)].into(),
            ..Stats::default()
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        for (given, shown) in [
            (0.0, json!(0)),
            (1.0, json!(1)),
            (12.345, json!(12.3)),
            (999.6, json!(1000)),
            (1_234_567.0, json!(1_230_000)),
            (0.001_234_5, json!(0.00123)),
            (-1234.0, json!(-1230)),
            (f64::NAN, Value::Null),
            (f64::INFINITY, Value::Null),
        ] {
            assert_eq!(number(given), shown, "{given}");
        }
        assert!(number(1e300).is_number() && number(f64::MIN_POSITIVE).is_number() && number(u64::MAX as f64).is_number());
    }

    #[test]
    fn a_rate_needs_two_reports() {
        let (first, second) = (report(1_000_000_000, 500), report(1_500_000_000, 1_000));
        assert_eq!(value(&tables(&first, None), "nf", "fw.0", "rx_pps"), Value::Null);
        let tables = tables(&second, Some(&first));
        for (table, row, column, shown) in [
            ("nf", "fw.0", "rx_pps", 1_000),
            ("chain", "web", "in_pps", 1_000),
            ("port", "in", "rx_bps", 800_000),
            ("drop", "ring_full", "drop_pps", 1_000),
            ("drop", "ring_full", "packets", 1_000),
        ] {
            assert_eq!(value(&tables, table, row, column), json!(shown), "{table}.{column}");
        }
        assert!(value(&tables, "chain", "web", "p99_ns").is_number());
    }

    #[test]
    fn no_rate_is_made_of_a_counter_that_fell_or_of_reports_of_another_day() {
        let (first, second) = (report(1_000_000_000, 500), report(2_000_000_000, 400));
        assert_eq!(value(&tables(&second, Some(&first)), "nf", "fw.0", "rx_pps"), json!(0));
        let late = report(1_000_000_000 + STALE_NS, 900);
        assert_eq!(value(&tables(&late, Some(&first)), "nf", "fw.0", "rx_pps"), Value::Null);
        assert_eq!(value(&tables(&first, Some(&late)), "nf", "fw.0", "rx_pps"), Value::Null);
    }

    #[test]
    fn a_new_object_has_no_rate_and_texts_and_tables_have_an_end() {
        let mut stats = report(2_000_000_000, 10);
        let before = Stats { nfs: Vec::new(), ..report(1_000_000_000, 5) };
        assert_eq!(value(&tables(&stats, Some(&before)), "nf", "fw.0", "rx_pps"), Value::Null);
        let problem = Problem { subject: "nf a".into(), what: "é".repeat(MOST_TEXT + 1), since_s: 3.7 };
        stats.status.health = Health { verdict: HealthVerdict::Degraded, problems: vec![problem], ..Health::default() };
        stats.nfs = (0..=MOST_ROWS).map(|n| Nf { name: format!("n.{n:05}"), ..Nf::default() }).collect();
        let tables = tables(&stats, Some(&before));
        assert_eq!(value(&tables, "problem", "nf a 1", "what").as_str().unwrap().chars().count(), MOST_TEXT + 1);
        assert_eq!(value(&tables, "problem", "nf a 1", "since_s"), json!(3));
        assert_eq!(tables.iter().find(|one| one.of == "nf").unwrap().rows.len(), MOST_ROWS);
        assert_eq!(value(&tables, "daemon", "daemon", "left_out"), json!(1));
        assert_eq!(value(&tables, "daemon", "daemon", "verdict"), json!("degraded"));
    }

    #[test]
    fn events_say_what_happened_in_words() {
        let throttle = Event { nf: "fw.0".into(), event: EventKind::Throttle, throttled: Some(true), ..Event::default() };
        assert_eq!(of_event(&throttle)["subject"], "nf fw.0");
        assert_eq!(of_event(&throttle)["what"], "its chains are refused at their entry");
        let share = Event { nf: "fw.0".into(), event: EventKind::Share, from: Some(0.5), to: Some(0.25), ..Event::default() };
        assert_eq!(of_event(&share)["what"], "its share of the core went from 50.0 to 25.0 %");
        let death = Event { event: EventKind::Death, subject: Some("nf x".into()), text: Some("gone".into()), ..Event::default() };
        assert_eq!((of_event(&death)["kind"].as_str(), of_event(&death)["what"].as_str()), (Some("death"), Some("gone")));
    }
}
