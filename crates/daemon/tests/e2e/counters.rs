//! No counter goes back while things come, go and change: Prometheus text and API.

use std::collections::{BTreeMap, HashMap};

use rustix::process::Signal;
use sluice_api::model::{Apply, NfState, Stats};

use crate::support::{Daemon, chain, find_nf, find_port, head, port, service, signal};

/// A name with its labels in order.
type Series = (String, Vec<(String, String)>);

/// The counters of a Prometheus text, with those of histograms and summaries.
fn counters(text: &str) -> HashMap<Series, f64> {
    let mut kinds: HashMap<&str, &str> = HashMap::new();
    let mut found = HashMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kinds.insert(name, kind);
        }
        let Some((series, value)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let counts = ["_bucket", "_sum", "_count"].iter().any(|suffix| {
            let family = name.strip_suffix(suffix);
            family.is_some_and(|family| matches!(kinds.get(family), Some(&("histogram" | "summary"))))
        });
        if kinds.get(name) == Some(&"counter") || counts {
            // No label of these tests has a comma, a quote or a brace in it.
            let pair = |pair: &str| {
                let (label, text) = pair.split_once('=').expect("a label has a text");
                (label.to_string(), text.trim_matches('"').to_string())
            };
            let labels = labels.trim_end_matches('}').split(',').filter(|pair| !pair.is_empty()).map(pair).collect();
            assert!(found.insert((name.into(), labels), value.parse().expect("a number")).is_none(), "{series} comes twice");
        }
    }
    found
}

/// The series that sums up an object's series over all objects.
fn sum_of((name, labels): &Series) -> Series {
    let without = |all: &[&str]| labels.iter().filter(|(label, _)| !all.contains(&label.as_str())).cloned().collect::<Vec<_>>();
    let named = |one: &str, all: &str| name.replacen(one, all, 1);
    if name.starts_with("sluice_nf_service_seconds") {
        let name = if name.ends_with("_sum") { "sluice_service_burst_seconds_total" } else { "sluice_service_bursts_total" };
        return (name.into(), without(&["nf"]));
    }
    match name.split('_').nth(1) {
        Some("chain") if name == "sluice_chain_drops_total" => ("sluice_drops_total".into(), without(&["chain"])),
        Some("chain") => (named("_chain_", "_chains_"), without(&["chain"])),
        Some("port") => (named("_port_", "_ports_"), without(&["port"])),
        Some("nf") => (named("_nf_", "_service_"), without(&["nf"])),
        Some("pool") => (named("_pool_", "_pools_"), without(&["service"])),
        Some("rule") => (named("_rule_", "_rules_"), without(&["rule", "chain"])),
        _ => panic!("{name} {labels:?} has gone, and is not of an object"),
    }
}

/// The counters of the API, by object and name.
fn api_counters(stats: &Stats) -> HashMap<String, f64> {
    let mut all = HashMap::new();
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for chain in &stats.chains {
        let (name, dropped) = (&chain.name, chain.drops.values().sum::<u64>());
        for (what, n) in
            [("entry", chain.entry_packets), ("exit", chain.exit_packets), ("drops", dropped), ("wasted", chain.wasted)]
        {
            all.insert(format!("chain {name} {what}"), n as f64);
            *sums.entry(what).or_default() += n as f64;
        }
        all.insert(format!("chain {name} latency"), chain.latency_ns.count as f64);
    }
    for port in &stats.ports {
        for (what, n) in
            [("rx", port.rx_packets), ("tx", port.tx_packets), ("tx bytes", port.tx_bytes), ("rx bytes", port.rx_bytes)]
        {
            all.insert(format!("port {} {what}", port.name), n as f64);
            *sums.entry(what).or_default() += n as f64;
        }
        for (what, n) in port.details.iter().filter(|(what, _)| !what.starts_with("latency")) {
            all.insert(format!("port {} {what}", port.name), *n);
        }
    }
    for nf in &stats.nfs {
        let counts = [("in", nf.rx_packets), ("out", nf.tx_packets), ("restarts", nf.restarts), ("bursts", nf.service_ns.count)];
        let more = [("sleeps", nf.sleeps), ("wakes", nf.wakes), ("writes", nf.sched.share_writes), ("dropped", nf.verdict_drops)];
        for (what, n) in counts.into_iter().chain(more) {
            all.insert(format!("nf {} {what}", nf.name), n as f64);
        }
        *sums.entry("restarts").or_default() += nf.restarts as f64;
        *sums.entry("in").or_default() += nf.rx_packets as f64;
    }
    for rule in &stats.rules {
        all.insert(format!("rule {} hits", rule.name), rule.hits as f64);
        *sums.entry("hits").or_default() += rule.hits as f64;
    }
    let gone = &stats.gone;
    let of_nfs = |of: fn(&sluice_api::model::Nf) -> u64| gone.nfs.values().map(of).sum::<u64>();
    for (what, n) in [
        ("entry", gone.chains.entry_packets),
        ("exit", gone.chains.exit_packets),
        ("drops", gone.drops.values().sum()),
        ("wasted", gone.wasted),
        ("rx", gone.ports.rx_packets),
        ("tx", gone.ports.tx_packets),
        ("rx bytes", gone.ports.rx_bytes),
        ("tx bytes", gone.ports.tx_bytes),
        ("hits", gone.decisions),
        ("restarts", of_nfs(|nf| nf.restarts)),
        ("in", of_nfs(|nf| nf.rx_packets)),
    ] {
        *sums.entry(what).or_default() += n as f64;
    }
    all.extend(sums.into_iter().map(|(what, n)| (format!("sum {what}"), n)));
    all.extend(stats.drops.iter().map(|(why, n)| (format!("drops {why}"), *n as f64)));
    all
}

/// The last value of each counter, including those that have gone since.
#[derive(Default)]
struct Seen {
    series: HashMap<Series, f64>,
    api: HashMap<String, f64>,
}

impl Seen {
    /// Reads all counters; checks that none went back.
    #[track_caller]
    fn look(&mut self, daemon: &mut Daemon, after: &str) {
        let text = daemon.client().metrics().unwrap();
        let now = counters(&text);
        for (series, before) in &self.series {
            match now.get(series) {
                Some(value) => assert!(value >= before, "{series:?} went from {before} back to {value} after {after}"),
                None => {
                    let sum = sum_of(series);
                    let value =
                        now.get(&sum).unwrap_or_else(|| panic!("{series:?} has gone after {after}, and there is no {sum:?}"));
                    assert!(value >= before, "{sum:?} is {value}, and {series:?} was {before}, after {after}");
                }
            }
        }
        self.series.extend(now);
        let now = api_counters(&daemon.stats());
        for (name, value) in &now {
            let before = self.api.get(name).copied().unwrap_or(0.0);
            assert!(*value >= before, "{name} went from {before} back to {value} after {after}");
        }
        self.api.extend(now);
    }
}

fn one<T: serde::de::DeserializeOwned>(text: &str) -> T {
    toml::from_str(text).unwrap()
}

#[test]
fn no_counter_goes_back_while_everything_comes_and_goes() {
    let steady = port("steady", "gen", "rate = 2000\nflows = 8")
        + &port("all", "sink", "")
        + &service("s", "sluice-nf-bridge", "")
        + &chain("steady", "steady", &["s"], "all", "");
    let mut daemon = Daemon::start("", &steady);
    let mut seen = Seen::default();
    let mut client = daemon.client();
    for round in 1..=3 {
        let after = |what: &str| format!("{what}, round {round}");
        client.add_port(&one("name = \"out\"\nkind = \"sink\"")).unwrap();
        client.add_service(&one("name = \"x\"\nexec = \"sluice-nf-bridge\"\ninstances = 2")).unwrap();
        client.add_service(&one("name = \"y\"\nexec = \"sluice-nf-monitor\"")).unwrap();
        client.add_chain(&one("name = \"new\"\nservices = [\"x\", \"y\"]\negress = \"out\"")).unwrap();
        seen.look(&mut daemon, &after("a chain came"));
        client.add_port(&one("name = \"in\"\nkind = \"gen\"\nrate = 5000\nflows = 64")).unwrap();
        client.add_rule(one("name = \"new\"\nport = \"in\"\nchain = \"new\""), Some(0)).unwrap();
        client.add_rule(one("protocol = \"icmp\"\nchain = \"new\""), Some(0)).unwrap();
        client.add_rule(one("port = \"in\"\nprotocol = \"udp\"\nchain = \"new\""), Some(1)).unwrap();
        seen.look(&mut daemon, &after("rules came"));
        let flowed = daemon.wait("packets pass the new chain", |s| find_port(s, "out").tx_packets >= 1000 * round);
        seen.look(&mut daemon, &after("packets flowed"));
        // Packets inside a dying NF are lost; what it has counted is not.
        let restarts = find_nf(&flowed, "x.0").restarts;
        signal(find_nf(&flowed, "x.0"), Signal::KILL);
        seen.look(&mut daemon, &after("an NF died"));
        daemon.wait("it is back", |s| find_nf(s, "x.0").restarts > restarts && find_nf(s, "x.0").state == NfState::Running);
        seen.look(&mut daemon, &after("it was started again"));
        client.upgrade("y", &one("exec = \"sluice-nf-bridge\"")).unwrap();
        seen.look(&mut daemon, &after("an upgrade"));
        let extra = client.add_nf("x", None).unwrap().name;
        daemon.wait("the third instance runs", |s| find_nf(s, &extra).state == NfState::Running);
        client.remove_nf(&extra).unwrap();
        client.remove_rule("rule.0").unwrap();
        seen.look(&mut daemon, &after("a rule without a name went, and another has its place"));
        client.renew_memory("-").unwrap();
        seen.look(&mut daemon, &after("packet memory was made anew"));
        let sent = find_port(&daemon.stats(), "out").tx_packets;
        daemon.wait("packets pass again", |s| find_port(s, "out").tx_packets > sent + 500);
        seen.look(&mut daemon, &after("packets passed again"));
        client.remove_rule("rule.0").unwrap();
        client.remove_rule("new").unwrap();
        client.remove_chain("new").unwrap();
        seen.look(&mut daemon, &after("the chain went"));
        client.remove_service("x").unwrap();
        client.remove_service("y").unwrap();
        seen.look(&mut daemon, &after("its services went"));
        client.remove_port("in").unwrap();
        client.remove_port("out").unwrap();
        seen.look(&mut daemon, &after("its ports went"));
    }
    let config = head(daemon.folder(), "") + &steady.replace("rate = 2000", "rate = 3000");
    client.apply(&Apply { config, file: None, dry_run: false }).unwrap();
    seen.look(&mut daemon, "a port was replaced");
    let policy = "services = [\"s\"]\non_failure = \"bypass\"";
    let config = head(daemon.folder(), "") + &steady.replace("rate = 2000", "rate = 3000").replace("services = [\"s\"]", policy);
    client.apply(&Apply { config, file: None, dry_run: false }).unwrap();
    seen.look(&mut daemon, "a chain was replaced");
    daemon.silence("steady", "steady");
    seen.look(&mut daemon, "the end");
    daemon.wait_until_empty();
    daemon.stop();
}
