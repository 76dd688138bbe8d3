//! NFs that are not woken for each packet: threshold, timer, end of a connection.

use etherparse::PacketBuilder;
use sluice_api::model::{Stats, Woken};

use crate::pcap::{Order, pcap};
use crate::support::{Daemon, chain, find_port, flow_nf, head, port, refusal, service};

/// What woke the NFs of a service, summed up.
fn woken(stats: &Stats, service: &str) -> Woken {
    stats.nfs.iter().filter(|nf| nf.service == service).filter_map(|nf| nf.woken).fold(Woken::default(), |sum, woken| Woken {
        early: sum.early + woken.early,
        threshold: sum.threshold + woken.threshold,
        timer: sum.timer + woken.timer,
        urgent: sum.urgent + woken.urgent,
    })
}

/// Packets of some flows through two NFs under a wake policy.
fn through(policy: &str, flows: u32, packets: u64) -> (Daemon, Stats) {
    let config = port("in", "gen", &format!("flows = {flows}\nrate = 4000\ncount = {packets}\noverload = \"wait\""))
        + &port("out", "sink", "")
        + &service("a", "sluice-nf-bridge", policy)
        + &service("b", "sluice-nf-bridge", policy)
        + &chain("c", "in", &["a", "b"], "out", "");
    let mut daemon = Daemon::start("", &config);
    daemon.wait_for_all("in", "out", packets);
    let stats = daemon.stats();
    (daemon, stats)
}

#[test]
fn no_packet_is_left_behind_by_any_policy() {
    for policy in ["min", "adaptive", "naive-100us", "naive-1ms"] {
        let (daemon, stats) = through(&format!("wakeup = {{ policy = {policy:?} }}"), 3, 3001);
        let woken = woken(&stats, "b");
        match policy {
            "min" => assert!(stats.nfs.iter().all(|nf| nf.woken.is_none())),
            "adaptive" => assert!(woken.early > 0 && woken.threshold + woken.timer > 0, "{woken:?}"),
            // The timer wakes for the last packet.
            _ => assert!(woken.timer > 0 && woken.early == 0, "{woken:?}"),
        }
        daemon.stop();
    }
}

/// A connection of nine packets, two of them with FIN.
fn connection(n: u8) -> Vec<Vec<u8>> {
    let steps = [
        (false, "S"),
        (true, "SA"),
        (false, "A"),
        (false, "A"),
        (true, "A"),
        (false, "FA"),
        (true, "A"),
        (true, "FA"),
        (false, "A"),
    ];
    let make = |(back, flags): (bool, &str)| {
        let (client, server) = ([10, 0, 0, n + 1], [10, 0, 1, 1]);
        let (src, dst, src_port, dst_port) = if back { (server, client, 80, 4000) } else { (client, server, 4000, 80) };
        let mut tcp = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(src, dst, 64).tcp(src_port, dst_port, 1, 1024);
        for flag in flags.chars() {
            tcp = match flag {
                'S' => tcp.syn(),
                'A' => tcp.ack(1),
                _ => tcp.fin(),
            };
        }
        let mut bytes = Vec::new();
        tcp.write(&mut bytes, b"hello").unwrap();
        bytes.resize(bytes.len().max(60), 0);
        bytes
    };
    steps.into_iter().map(make).collect()
}

/// Connections one by one through two NFs with a wake policy: what woke each.
fn connections(rule: &str) -> (Woken, Woken) {
    let folder = crate::support::open_folder();
    let all: Vec<Vec<u8>> = (0..4).flat_map(connection).collect();
    let path = folder.path().join("all.pcap");
    std::fs::write(&path, pcap(Order::Little, 0xa1b2_c3d4, 1, &all)).unwrap();
    // Eight packets or a second: a connection that is not over waits for either.
    let wakeup = "{ early = 0, least = 8, most = 8, timer_us = 1000000 }";
    let pooled = |name: &str| {
        let log = folder.path().join(name).display().to_string();
        let keys = format!("args = [{log:?}]\nper = \"flow\"\nwakeup = {wakeup}\n[service.pool]\nmin = 4\nmax = 4\nlinger_ms = 50");
        service(name, &flow_nf(), &keys)
    };
    let config = port("in", "pcap", &format!("read = {:?}\noverload = \"wait\"", path.display().to_string()))
        + &port("out", "sink", "")
        + &pooled("first")
        + &pooled("second")
        + &chain("c", "in", &["first", "second"], "out", "")
        + rule;
    let mut daemon = Daemon::start("", &config);
    let is_over = |s: &Stats| s.status.pools.iter().all(|pool| pool.ended >= 4 && pool.idle == 4);
    let stats = daemon.wait("all have passed", |s| find_port(s, "out").tx_packets == all.len() as u64 && is_over(s));
    for name in ["first", "second"] {
        let seen = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(!seen.contains("mixed"), "{seen}");
    }
    daemon.wait_until_empty();
    daemon.stop();
    (woken(&stats, "first"), woken(&stats, "second"))
}

#[test]
fn the_end_of_a_connection_does_not_wait_at_any_nf() {
    let (first, second) = connections("");
    assert!(first.urgent >= 1 && second.urgent >= 1, "{first:?} {second:?}");
    assert_eq!(first.early + second.early, 0);
}

#[test]
fn a_rule_says_when_the_nfs_of_its_flows_are_woken() {
    let (first, second) = connections("[rule.wakeup]\npolicy = \"min\"\n");
    for woken in [first, second] {
        assert!(woken.threshold >= 1 && woken.timer == 0, "each packet wakes: {woken:?}");
    }
}

#[test]
fn what_a_policy_cannot_be_is_refused_with_its_line() {
    let folder = crate::support::open_folder();
    for (keys, rule, words) in [
        ("wakeup = { policy = \"max\" }", "", "policy"),
        ("wakeup = { least = 9, most = 3 }", "", "at 9 packets at least, and at 3 at most"),
        ("wakeup = { policy = \"naive-1ms\", early = 3 }", "", "are for the policy \"adaptive\""),
        ("mode = \"poll\"\nwakeup = {}", "", "polls, and never sleeps"),
        ("wakeup = {}", "[rule.wakeup]\n", "by the flow that they have"),
    ] {
        let config = head(folder.path(), "")
            + &port("in", "gen", "")
            + &port("out", "sink", "")
            + &service("ids", "sluice-nf-bridge", keys)
            + &chain("c", "in", &["ids"], "out", "")
            + rule;
        let said = refusal(folder.path(), &config);
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(!said.status.success() && text.contains(words) && text.contains("sluice.toml:"), "{keys}: {text}");
    }
}
