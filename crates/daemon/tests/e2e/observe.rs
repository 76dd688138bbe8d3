//! What is reported of flowing packets: counters that never go back, and traces.

use std::sync::Barrier;

use sluice_api::client::ClientError;
use sluice_api::health::HealthVerdict;
use sluice_api::model::{Apply, Stats, Trace, TraceRequest, TracedPacket};

use crate::skip::skip;
use crate::support::{Daemon, chain, find_chain, find_port, head, port, service};

const FLOWS: u64 = 64;

fn decisions(stats: &Stats, rule: &str) -> u64 {
    stats.rules.iter().find(|r| r.name == rule).unwrap_or_else(|| panic!("no rule {rule}")).hits
}

#[test]
fn decisions_of_rules_are_counted_over_changes() {
    let body = port("in", "gen", &format!("rate = 5000\nflows = {FLOWS}"))
        + &port("out", "sink", "")
        + &chain("c", "in", &[], "out", "")
        + "[[rule]]\nprotocol = \"tcp\"\nchain = \"c\"\n";
    let mut daemon = Daemon::start("", &body);
    let before = decisions(&daemon.wait("each flow was decided", |s| decisions(s, "c") >= FLOWS), "c");
    // A rule inserted before it moves it, and each change decides all flows anew.
    let first = toml::from_str("name = \"first\"\nprotocol = \"icmp\"\nchain = \"c\"").unwrap();
    daemon.client().add_rule(first, Some(0)).unwrap();
    let stats = daemon.wait("each flow was decided again", |s| decisions(s, "c") >= before + FLOWS);
    assert_eq!(stats.rules.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["first", "c", "rule.2"]);
    assert_eq!((decisions(&stats, "first"), decisions(&stats, "rule.2")), (0, 0));
    let before = decisions(&stats, "c");
    daemon.client().remove_rule("first").unwrap();
    assert!(decisions(&daemon.stats(), "c") >= before);
    let metrics = daemon.client().metrics().unwrap();
    assert!(metrics.contains("sluice_rule_decisions_total{rule=\"c\",chain=\"c\"}"), "{metrics}");
    daemon.stop();
}

#[test]
fn packets_are_traced_whatever_becomes_of_them() {
    let body = port("stray", "gen", "rate = 500")
        + &port("direct", "gen", "rate = 500")
        + &port("much", "gen", "")
        + &port("out", "sink", "")
        + &service("slow", "sluice-nf-cost", "args = [\"--cycles\", \"20000\"]\nring = 64")
        + &chain("direct", "direct", &[], "out", "")
        + &chain("much", "much", &["slow"], "out", "");
    let mut daemon = Daemon::start("", &body);
    daemon.wait("packets are refused", |s| {
        s.drops["no_rule"] > 100 && find_chain(s, "much").drops.get("entry").is_some_and(|n| *n > 1000)
    });
    let mut client = daemon.client();
    let mut trace = move |request: TraceRequest| {
        let trace = client.trace(&TraceRequest { timeout_ms: 20_000, ..request.clone() }).unwrap();
        assert!(!trace.timed_out && trace.packets.len() == request.count as usize, "{trace:?}");
        let one = |packet: &TracedPacket| {
            let hops: Vec<String> = packet.hops.iter().map(|hop| hop.place.clone()).collect();
            // The headers: Ethernet, IPv4, UDP.
            assert!(packet.bytes > 0 && packet.packet.len() >= 84 && packet.packet[24..].starts_with("080045"), "{packet:?}");
            (packet.chain.clone(), hops.join(", "), packet.outcome.clone())
        };
        trace.packets.iter().map(one).collect::<Vec<_>>()
    };
    let of = |chain: Option<&str>, hops: &str, outcome: &str| (chain.map(str::to_string), hops.to_string(), outcome.to_string());
    // This chain has no NF.
    let direct = trace(TraceRequest { chain: Some("direct".into()), count: 3, ..TraceRequest::default() });
    assert_eq!(direct, vec![of(Some("direct"), "port direct, port out", "sent to out"); 3]);
    let much = trace(TraceRequest { rule: Some("much".into()), count: 500, ..TraceRequest::default() });
    let refused = of(Some("much"), "port much", "dropped: entry");
    let let_in = of(Some("much"), "port much, nf slow.0, nf slow.0 done, port out", "sent to out");
    assert!(much.contains(&refused) && much.iter().all(|packet| [&refused, &let_in].contains(&packet)), "{much:?}");
    // Of one port: there are a thousand others for each of them.
    let stray = trace(TraceRequest { port: Some("stray".into()), count: 20, ..TraceRequest::default() });
    assert_eq!(stray, vec![of(None, "port stray", "dropped: no_rule"); 20]);
    let none = daemon.sluice(&["trace", "--filter", "tcp", "--timeout", "0.2"]).output().unwrap();
    let said = String::from_utf8_lossy(&none.stderr);
    if said.contains("needs libpcap") {
        skip("libpcap is not installed");
    } else {
        assert!(none.status.code() == Some(1) && said.contains("no packet came by"), "{said}");
        let text = daemon.says(&["trace", "--port", "direct", "--filter", "udp and src net 10.0.0.0/8", "-n", "3", "--json"]);
        let filtered: Trace = serde_json::from_str(&text).unwrap();
        assert_eq!(filtered.packets.iter().map(|packet| packet.outcome.as_str()).collect::<Vec<_>>(), ["sent to out"; 3]);
    }
    let unknown = daemon.client().trace(&TraceRequest { port: Some("lan".into()), ..TraceRequest::default() }).unwrap_err();
    assert!(unknown.to_string().contains("no port"), "{unknown}");
    // Packets of any chain, and of none.
    daemon.silence("much", "much");
    let all = trace(TraceRequest { count: 500, ..TraceRequest::default() });
    assert!(all.contains(&of(None, "port stray", "dropped: no_rule")) && all.contains(&direct[0]), "{all:?}");
    daemon.stop();
}

#[test]
fn a_generator_that_cannot_keep_its_rate_says_so_where_people_look_and_only_while_it_is_so() {
    // No thread makes packets at this rate.
    let body = port("in", "gen", "rate = 1e10\nflows = 8") + &port("out", "sink", "") + &chain("c", "in", &[], "out", "");
    let mut daemon = Daemon::start("", &body);
    let stats = daemon.wait("the generator is behind", |s| find_port(s, "in").behind_pps > 0.0);
    assert_eq!(find_port(&stats, "out").behind_pps, 0.0);
    let health = &stats.status.health;
    assert_eq!(
        (health.verdict, health.problems.len(), health.warnings[0].subject.as_str()),
        (HealthVerdict::Healthy, 0, "port in")
    );
    for (args, word) in [(&["port", "list"][..], "behind by"), (&["status"], "warning: port in makes"), (&["top"], "behind")] {
        let text = daemon.says(args);
        assert!(text.contains(word), "{args:?}: {text}");
    }
    let metrics = daemon.client().metrics().unwrap();
    let metric = metrics.lines().find_map(|line| line.strip_prefix("sluice_port_behind_pps{port=\"in\"} ")).unwrap();
    assert!(metric.parse::<f64>().unwrap() > 0.0, "{metric}");
    // At a rate that it keeps it is no longer behind, whatever it skipped before.
    let body = body.replace("rate = 1e10", "rate = 10");
    let config = head(daemon.folder(), "") + &body;
    daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap();
    let stats = daemon.wait("the generator keeps its rate", |s| {
        find_port(s, "in").behind_pps == 0.0 && find_port(s, "in").details["skipped"] > 0.0
    });
    assert_eq!(stats.status.health.warnings, []);
    daemon.stop();
}

#[test]
fn there_is_one_trace_at_a_time() {
    let body = port("idle", "gen", "rate = 1\ncount = 1")
        + &port("busy", "gen", "rate = 5000")
        + &port("out", "sink", "")
        + &service("s", "sluice-nf-bridge", "")
        + &chain("quiet", "idle", &[], "out", "")
        + &chain("c", "busy", &["s"], "out", "");
    let mut daemon = Daemon::start("", &body);
    daemon.wait("the one packet of the quiet chain has passed", |s| {
        s.chains.iter().any(|c| c.name == "quiet" && c.exit_packets == 1)
    });
    let trace = |chain: &str, timeout_ms: u64| {
        daemon.client().trace(&TraceRequest { chain: Some(chain.into()), count: 5, timeout_ms, ..TraceRequest::default() })
    };
    // Two at once, each of which would time out: the second is refused.
    let barrier = Barrier::new(2);
    let ask = || {
        barrier.wait();
        trace("quiet", 5_000)
    };
    let answers = std::thread::scope(|scope| {
        let threads = [scope.spawn(ask), scope.spawn(ask)];
        threads.map(|thread| thread.join().unwrap())
    });
    let refused: Vec<&ClientError> = answers.iter().filter_map(|a| a.as_ref().err()).collect();
    assert!(refused.len() == 1 && refused[0].to_string().contains("another trace"), "{answers:?}");
    let waited = answers.iter().find_map(|a| a.as_ref().ok()).unwrap();
    assert!(waited.timed_out && waited.packets.is_empty());
    // When it has ended, the next can begin.
    assert_eq!(trace("c", 20_000).unwrap().packets.len(), 5);
    daemon.stop();
}
