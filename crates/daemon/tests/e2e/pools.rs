//! Pools: each flow has one NF, each NF one flow at a time, and no state passes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use etherparse::PacketBuilder;
use rustix::process::Signal;
use serde_json::Value;
use sluice_api::change::SetKeys;
use sluice_api::model::{Apply, Pool, Stats, TraceRequest};

use crate::pcap::{Order, pcap};
use crate::support::{Daemon, chain, find_nf, find_port, flow_nf, parent, port, refusal, service, signal};

/// A packet of connection `n`; `flags` are letters of S, A, F, R.
fn packet(n: u8, back: bool, flags: &str, payload: &[u8]) -> Vec<u8> {
    let (client, server) = ([10, 0, 0, n + 1], [10, 0, 1, 1]);
    let (client_port, server_port) = (40_000 + u16::from(n), 80);
    let (src, dst, src_port, dst_port) =
        if back { (server, client, server_port, client_port) } else { (client, server, client_port, server_port) };
    let mut tcp = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(src, dst, 64).tcp(src_port, dst_port, 1, 1024);
    for flag in flags.chars() {
        tcp = match flag {
            'S' => tcp.syn(),
            'A' => tcp.ack(1),
            'F' => tcp.fin(),
            _ => tcp.rst(),
        };
    }
    let mut bytes = Vec::new();
    tcp.write(&mut bytes, payload).unwrap();
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

/// A whole connection: for each packet, whether it goes back, and its flags.
const WHOLE: [(bool, &str); 9] =
    [(false, "S"), (true, "SA"), (false, "A"), (false, "A"), (true, "A"), (false, "FA"), (true, "A"), (true, "FA"), (false, "A")];

/// `n` connections, one after another or, `in_turn`, packet by packet.
fn connections(n: u8, in_turn: bool) -> Vec<Vec<u8>> {
    let make = |n: u8, (back, flags): (bool, &str)| packet(n, back, flags, b"hello");
    if in_turn {
        WHOLE.into_iter().flat_map(|step| (0..n).map(move |n| make(n, step))).collect()
    } else {
        (0..n).flat_map(|n| WHOLE.into_iter().map(move |step| make(n, step))).collect()
    }
}

fn capture(folder: &Path, name: &str, packets: &[Vec<u8>]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, pcap(Order::Little, 0xa1b2_c3d4, 1, packets)).unwrap();
    format!("read = {:?}\noverload = \"wait\"", path.display().to_string())
}

/// A service whose NFs have one flow at a time and log what they see.
pub fn ids(name: &str, folder: &Path, more_args: &str, pool: &str) -> String {
    let log = folder.join(format!("{name}.flows")).display().to_string();
    service(name, &flow_nf(), &format!("args = [{log:?}{more_args}]\nper = \"flow\"\n[service.pool]\n{pool}"))
}

/// The log lines of a service's NFs, split into words.
pub fn seen(folder: &Path, name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(folder.join(format!("{name}.flows"))).unwrap_or_default();
    text.lines().map(|line| line.split(' ').map(str::to_string).collect()).collect()
}

pub fn lines(seen: &[Vec<String>], what: &str) -> Vec<Vec<String>> {
    seen.iter().filter(|words| words[0] == what).cloned().collect()
}

#[track_caller]
pub fn pool<'a>(stats: &'a Stats, service: &str) -> &'a Pool {
    stats.status.pools.iter().find(|pool| pool.service == service).unwrap_or_else(|| panic!("no pool {service}"))
}

/// Lets the flows of a pool end soon after their last packet: tests begin with a time that no busy
/// host exceeds between two packets.
pub fn end_flows_soon(daemon: &Daemon, service: &str) {
    let keys = BTreeMap::from([("pool.idle_ms".to_string(), Value::from(100))]);
    daemon.client().set(&SetKeys { kind: "service".into(), name: Some(service.into()), keys, dry_run: false }).unwrap();
}

/// The distinct values of a column.
pub fn distinct(lines: &[Vec<String>], column: usize) -> BTreeSet<&str> {
    lines.iter().map(|words| words[column].as_str()).collect()
}

#[test]
fn both_directions_of_a_connection_meet_the_same_nf_on_every_chain() {
    let folder = crate::support::open_folder();
    let at = folder.path();
    let all = connections(8, true);
    let directions = |back: bool| -> Vec<Vec<u8>> {
        let steps = WHOLE.iter().filter(|(b, _)| *b == back);
        steps.flat_map(|(b, flags)| (0..8).map(move |n| packet(n, *b, flags, b"hello"))).collect()
    };
    let (there, back) = (directions(false), directions(true));
    assert_eq!(there.len() + back.len(), all.len());
    let config = port("a", "pcap", &capture(at, "there.pcap", &there))
        + &port("b", "pcap", &capture(at, "back.pcap", &back))
        + &port("out", "sink", "")
        + &ids("ids", at, "", "min = 8\nmax = 8\nlinger_ms = 2000")
        + &ids("log", at, "", "min = 8\nmax = 8\nlinger_ms = 2000")
        + &service("bridge", "sluice-nf-bridge", "instances = 2")
        + &chain("there", "a", &["ids", "bridge", "log"], "out", "")
        + &chain("back", "b", &["log", "ids"], "out", "");
    let mut daemon = Daemon::start("", &config);
    let stats = daemon.wait("all have passed and all NFs are idle again", |s| {
        let is_over = |name| pool(s, name).ended == 8 && pool(s, name).idle == 8;
        find_port(s, "out").tx_packets == all.len() as u64 && is_over("ids") && is_over("log")
    });
    assert_eq!(stats.status.pools.iter().map(|pool| pool.setup_ns.count).sum::<u64>(), 8, "one is set up with all its NFs");
    for name in ["ids", "log"] {
        let pool = pool(&stats, name);
        assert_eq!((pool.activations, pool.waits, pool.drops), (8, 0, 0), "{pool:?}");
        daemon.wait("all are clean", |_| lines(&seen(at, name), "clean").len() == 8);
        let seen = seen(at, name);
        let begun = lines(&seen, "begin");
        assert!(lines(&seen, "mixed").is_empty(), "{seen:?}");
        assert_eq!((begun.len(), distinct(&begun, 1).len(), distinct(&begun, 3).len()), (8, 8, 8), "{seen:?}");
    }
    daemon.wait_until_empty();
    daemon.stop();
}

/// Connections one by one through two NFs: their log, and the pool at the end.
fn one_after_another(more_args: &str, pool_keys: &str) -> (Vec<Vec<String>>, Pool) {
    let folder = crate::support::open_folder();
    let at = folder.path();
    let all = connections(6, false);
    let config = port("in", "pcap", &capture(at, "all.pcap", &all))
        + &port("out", "sink", "")
        + &ids("ids", at, more_args, &format!("min = 2\nmax = 2\nlinger_ms = 50\nhalf_open_ms = 300\n{pool_keys}"))
        + &chain("c", "in", &["ids"], "out", "");
    let mut daemon = Daemon::start("", &config);
    let stats = daemon.wait("all have passed and the NFs are idle again", |s| {
        find_port(s, "out").tx_packets == all.len() as u64 && pool(s, "ids").idle == 2
    });
    daemon.wait("six flows have begun or were mixed up", |_| seen(at, "ids").len() >= 6);
    let (seen, pool) = (seen(at, "ids"), pool(&stats, "ids").clone());
    daemon.wait_until_empty();
    daemon.stop();
    (seen, pool)
}

#[test]
fn an_nf_whose_flow_has_ended_is_clean_for_the_next() {
    let (seen, pool) = one_after_another("", "");
    let begun = lines(&seen, "begin");
    assert!(lines(&seen, "mixed").is_empty(), "{seen:?}");
    // A last ACK after the linger time counts as a flow of its own.
    assert!(pool.activations >= 6, "{pool:?}");
    assert_eq!((distinct(&begun, 1).len(), distinct(&begun, 2).len(), distinct(&begun, 3).len()), (2, 2, 6), "{seen:?}");
    assert!(pool.waits > 0 && pool.drops == 0, "{pool:?}");
}

#[test]
fn an_nf_that_leaks_is_found_out_and_strict_isolation_replaces_it() {
    let (seen, _) = one_after_another(", \"--leak\"", "");
    assert!(!lines(&seen, "mixed").is_empty() && !lines(&seen, "clean").is_empty(), "its cleaner forgets nothing: {seen:?}");
    let (seen, pool) = one_after_another(", \"--leak\"", "isolation = \"strict\"");
    let begun = lines(&seen, "begin");
    assert!(lines(&seen, "mixed").is_empty(), "{seen:?}");
    assert_eq!((distinct(&begun, 1).len(), distinct(&begun, 3).len()), (2, 6), "{seen:?}");
    assert_eq!(distinct(&begun, 2).len(), begun.len(), "each flow has a process of its own: {seen:?}");
    assert!(pool.ended >= 6, "{pool:?}");
}

#[test]
fn members_are_forked_and_with_strict_isolation_afresh_for_each_flow() {
    let folder = crate::support::open_folder();
    let at = folder.path();
    let all = connections(6, false);
    let log = at.join("ids.flows").display().to_string();
    let keys = "min = 2\nmax = 2\nlinger_ms = 50\nhalf_open_ms = 300\nisolation = \"strict\"";
    let config = port("in", "pcap", &capture(at, "all.pcap", &all))
        + &port("out", "sink", "")
        + &service(
            "ids",
            &flow_nf(),
            &format!("args = [{log:?}, \"--leak\"]\nzygote = true\nper = \"flow\"\n[service.pool]\n{keys}"),
        )
        + &chain("c", "in", &["ids"], "out", "");
    let mut daemon = Daemon::start("", &config);
    let stats = daemon.wait("all have passed and the NFs are idle again", |s| {
        find_port(s, "out").tx_packets == all.len() as u64 && pool(s, "ids").idle == 2 && pool(s, "ids").ended >= 6
    });
    let zygote = stats.services[0].zygote.clone().unwrap();
    assert_eq!((zygote.state.as_str(), &zygote.why), ("ready", &None));
    assert!(zygote.forks >= 2 + pool(&stats, "ids").ended, "{zygote:?} {:?}", pool(&stats, "ids"));
    assert!(stats.nfs.iter().all(|nf| parent(nf.pid.unwrap()) == daemon.pid()), "all are children of the daemon");
    let seen = seen(at, "ids");
    let begun = lines(&seen, "begin");
    assert!(lines(&seen, "mixed").is_empty(), "{seen:?}");
    assert_eq!((distinct(&begun, 3).len(), distinct(&begun, 2).len()), (6, begun.len()), "each has a process of its own: {seen:?}");
    assert!(!distinct(&begun, 2).contains(zygote.pid.unwrap().to_string().as_str()), "and none the zygote's");
    daemon.wait_until_empty();
    daemon.stop();
}

/// A pool of one NF, and more flows than that.
fn scarce(when_empty: &str, count: u64) -> (tempfile::TempDir, Daemon) {
    let folder = crate::support::open_folder();
    let config = port("in", "gen", &format!("flows = 4\nrate = 4000\ncount = {count}\noverload = \"wait\""))
        + &port("out", "sink", "")
        + &ids("ids", folder.path(), "", &format!("min = 1\nmax = 1\n{when_empty}"))
        + &service("rest", "sluice-nf-bridge", "")
        + &chain("c", "in", &["ids"], "out", "");
    let daemon = Daemon::start("", &config);
    (folder, daemon)
}

#[test]
fn without_an_idle_nf_flows_are_dropped_or_wait_or_go_elsewhere() {
    let (folder, mut daemon) = scarce("when_empty = \"drop\"", 0);
    daemon.wait("flows find no NF", |s| pool(s, "ids").drops > 200 && s.drops["none_idle"] > 200);
    assert_eq!(lines(&seen(folder.path(), "ids"), "begin").len(), 1);
    daemon.stop();

    let (folder, mut daemon) = scarce("when_empty = \"wait\"\nqueue = 8", 0);
    let stats = daemon.wait("flows wait, but not all", |s| pool(s, "ids").waits >= 8 && pool(s, "ids").drops > 200);
    assert_eq!((pool(&stats, "ids").assigned, pool(&stats, "ids").activations), (1, 1));
    assert_eq!(lines(&seen(folder.path(), "ids"), "begin").len(), 1);
    daemon.silence("c", "in");
    daemon.wait_until_empty();
    daemon.stop();

    let (folder, mut daemon) = scarce("when_empty = \"fallback\"\nfallback = \"rest\"", 2000);
    let stats = daemon.wait("all have passed", |s| find_port(s, "out").tx_packets == 2000);
    assert_eq!((pool(&stats, "ids").fallbacks, pool(&stats, "ids").activations, pool(&stats, "ids").drops), (3, 1, 0));
    assert_eq!(find_nf(&stats, "rest.0").tx_packets, 1500);
    let seen = seen(folder.path(), "ids");
    assert!(lines(&seen, "begin").len() == 1 && lines(&seen, "mixed").is_empty(), "{seen:?}");
    daemon.stop();
}

#[test]
fn packets_that_wait_for_an_nf_are_traced_when_they_go_and_those_that_find_none_too() {
    let (_folder, mut daemon) = scarce("when_empty = \"drop\"", 0);
    daemon.wait("flows find no NF", |s| s.drops["none_idle"] > 200);
    let request =
        |rule: &str, count: u32| TraceRequest { rule: Some(rule.into()), count, timeout_ms: 20_000, ..TraceRequest::default() };
    let trace = daemon.client().trace(&TraceRequest { chain: Some("c".into()), ..request("c", 100) }).unwrap();
    let outcomes: BTreeSet<&str> = trace.packets.iter().map(|packet| packet.outcome.as_str()).collect();
    assert_eq!(outcomes, BTreeSet::from(["dropped: none_idle", "sent to out"]), "{trace:?}");
    assert!(!trace.timed_out && trace.packets.iter().all(|packet| packet.chain.as_deref() == Some("c")), "{trace:?}");
    daemon.stop();

    let folder = crate::support::open_folder();
    let config = port("in", "gen", "rate = 500")
        + &port("out", "sink", "")
        + &ids("ids", folder.path(), "", "min = 1\nmax = 1\nidle_ms = 500\nwhen_empty = \"wait\"\nqueue = 8")
        + "[[rule]]\nname = \"late\"\nprotocol = \"tcp\"\nchain = \"c\"\n"
        + &chain("c", "in", &["ids"], "out", "");
    let mut daemon = Daemon::start("", &config);
    daemon.wait("the NF has a flow", |s| pool(s, "ids").assigned == 1 && find_port(s, "out").tx_packets > 0);
    let waits = [(false, "S"), (false, "A"), (false, "A")].map(|(back, flags)| packet(0, back, flags, b"hello"));
    let late = format!("name = \"late\"\nkind = \"pcap\"\n{}", capture(folder.path(), "late.pcap", &waits));
    let mut client = daemon.client();
    let trace = std::thread::spawn(move || client.trace(&request("late", 3)).unwrap());
    let until = std::time::Instant::now() + crate::support::PATIENCE;
    // A trace of an unknown rule fails, too, and begins none.
    while !daemon.client().trace(&request("nobody", 1)).unwrap_err().to_string().contains("another trace") {
        assert!(std::time::Instant::now() < until, "no trace begins");
    }
    daemon.client().add_port(&toml::from_str(&late).unwrap()).unwrap();
    daemon.wait("its packets wait", |s| pool(s, "ids").waits == 3);
    daemon.silence("c", "in");
    let trace = trace.join().unwrap();
    let outcomes: Vec<&str> = trace.packets.iter().map(|packet| packet.outcome.as_str()).collect();
    assert_eq!((outcomes, trace.timed_out), (vec!["sent to out"; 3], false), "{trace:?}");
    daemon.stop();
}

#[test]
fn a_member_that_is_killed_loses_its_flow_to_another_and_nothing_is_leaked() {
    let folder = crate::support::open_folder();
    let config = port("in", "gen", "flows = 6\nrate = 5000")
        + &port("out", "sink", "")
        + &ids("ids", folder.path(), "", "min = 8\nmax = 8\nidle_ms = 500")
        + &chain("c", "in", &["ids"], "out", "");
    let mut daemon = Daemon::start("", &config);
    let before = daemon.wait("each flow has its NF", |s| pool(s, "ids").assigned == 6 && find_port(s, "out").tx_packets > 100);
    let victim = before.nfs.iter().find(|nf| nf.rx_packets > 0).unwrap();
    signal(victim, Signal::KILL);
    let after = daemon.wait("the flow has another NF, and the process a successor", |s| {
        let pool = pool(s, "ids");
        let again = find_nf(s, &victim.name);
        pool.activations >= 7 && (pool.assigned, pool.idle) == (6, 2) && again.restarts == 1 && again.pid.is_some()
    });
    daemon.wait("packets go on", |s| find_port(s, "out").tx_packets > find_port(&after, "out").tx_packets + 1000);
    let seen = seen(folder.path(), "ids");
    assert!(lines(&seen, "mixed").is_empty(), "{seen:?}");
    daemon.silence("c", "in");
    daemon.wait_until_empty();
    daemon.wait("all are idle", |s| pool(s, "ids").idle == 8 && pool(s, "ids").ended >= 6);
    daemon.stop();
}

#[test]
fn a_pool_grows_with_its_flows_and_shrinks_after_them() {
    let folder = crate::support::open_folder();
    let config = port("in", "gen", "flows = 12\nrate = 3000")
        + &port("out", "sink", "")
        + &ids("ids", folder.path(), "", "min = 1\nmax = 16\nidle_ms = 300\nqueue = 64")
        + &chain("c", "in", &["ids"], "out", "");
    let mut daemon = Daemon::start("", &config);
    daemon.wait("each flow has an NF", |s| pool(s, "ids").assigned == 12);
    daemon.silence("c", "in");
    daemon.wait("one is left", |s| {
        let pool = pool(s, "ids");
        pool.ended >= 12 && pool.idle == 1 && pool.size == 1 && s.nfs.len() == 1
    });
    let seen = seen(folder.path(), "ids");
    assert!(lines(&seen, "mixed").is_empty(), "{seen:?}");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn each_rx_thread_has_its_part_of_a_pool_and_keeps_it() {
    let folder = crate::support::open_folder();
    let config = port("in", "gen", "flows = 12\nrate = 3000\nqueues = 2\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &ids("ids", folder.path(), "", "min = 2\nmax = 32\nidle_ms = 300")
        + &chain("c", "in", &["ids"], "out", "");
    let mut daemon = Daemon::start("rx = [0, 1]", &config);
    daemon.wait("each flow has an NF", |s| pool(s, "ids").assigned == 12);
    daemon.silence("c", "in");
    let stats = daemon.wait("two are left", |s| {
        let pool = pool(s, "ids");
        pool.ended >= 12 && (pool.idle, pool.size) == (2, 2) && s.nfs.len() == 2
    });
    let part = |name: &str| name.rsplit('.').next().unwrap().parse::<u32>().unwrap() % 2;
    assert_eq!(stats.nfs.iter().map(|nf| part(&nf.name)).collect::<BTreeSet<_>>().len(), 2, "one for each thread");
    let seen = seen(folder.path(), "ids");
    assert!(lines(&seen, "mixed").is_empty(), "{seen:?}");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn tenants_have_an_nf_each_by_the_rule_of_their_packets() {
    let config = port("in", "gen", "flows = 64\nrate = 4000\ncount = 4000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("each", "sluice-nf-bridge", "per = \"class\"\n[service.pool]\nclass = \"tenant\"\nmin = 3\nring = 512")
        + "[[chain]]\nname = \"c\"\nservices = [\"each\"]\negress = \"out\"\n\
           [[rule]]\nport = \"in\"\nprotocol = \"udp\"\nsrc_port = \"32768-32799\"\ntenant = \"gold\"\nchain = \"c\"\n\
           [[rule]]\nport = \"in\"\ntenant = \"free\"\nchain = \"c\"\n\
           [sched]\ntenants = { gold = 2, free = 1 }\n";
    let mut daemon = Daemon::start("", &config);
    let stats = daemon.wait("all have passed", |s| find_port(s, "out").tx_packets == 4000);
    let packets: Vec<u64> = stats.nfs.iter().map(|nf| nf.tx_packets).filter(|n| *n > 0).collect();
    assert!(packets.len() == 2 && packets.iter().sum::<u64>() == 4000, "{packets:?}");
    assert_eq!((pool(&stats, "each").activations, pool(&stats, "each").drops), (2, 0));
    daemon.stop();
}

#[test]
fn flows_are_spread_by_their_hash_or_packets_in_turn() {
    for (per, flows) in [("rss", 64), ("rss", 1), ("round-robin", 1)] {
        let config = port("in", "gen", &format!("flows = {flows}\nrate = 5000\ncount = 4000\noverload = \"wait\""))
            + &port("out", "sink", "")
            + &service("each", "sluice-nf-bridge", &format!("per = {per:?}\n[service.pool]\nmin = 4\nring = 256"))
            + &chain("c", "in", &["each"], "out", "");
        let mut daemon = Daemon::start("", &config);
        let stats = daemon.wait("all have passed", |s| find_port(s, "out").tx_packets == 4000);
        let packets: BTreeMap<&str, u64> = stats.nfs.iter().map(|nf| (nf.name.as_str(), nf.tx_packets)).collect();
        assert_eq!(packets.len(), 4);
        let is_spread = |n: &u64| match (per, flows) {
            ("rss", 1) => *n == 0 || *n == 4000,
            ("rss", _) => *n > 0,
            _ => n.abs_diff(1000) < 100,
        };
        assert!(packets.values().all(is_spread), "{per}: {packets:?}");
        assert_eq!(pool(&stats, "each").per, per);
        daemon.stop();
    }
}

#[test]
fn a_traffic_class_has_one_nf_with_all_its_flows() {
    let from = |name: &str, vlan: u16| {
        port(name, "gen", &format!("flows = 16\nrate = 4000\ncount = 2000\noverload = \"wait\"\nsize = 64\nvlan = {vlan}"))
    };
    let config = from("red", 10)
        + &from("blue", 20)
        + &port("out", "sink", "")
        + &service("each", "sluice-nf-bridge", "per = \"class\"\n[service.pool]\nclass = \"vlan\"\nmin = 4\nring = 512")
        + &chain("red", "red", &["each"], "out", "")
        + &chain("blue", "blue", &["each"], "out", "");
    let mut daemon = Daemon::start("", &config);
    let stats = daemon.wait("all have passed", |s| find_port(s, "out").tx_packets == 4000);
    // The pool may have grown meanwhile.
    let packets: Vec<u64> = stats.nfs.iter().map(|nf| nf.tx_packets).filter(|n| *n > 0).collect();
    assert_eq!(packets, [2000, 2000]);
    assert_eq!((pool(&stats, "each").activations, pool(&stats, "each").drops, pool(&stats, "each").per.as_str()), (2, 0, "class"));
    end_flows_soon(&daemon, "each");
    daemon.wait("the classes are over with their flows", |s| pool(s, "each").idle >= 4 && pool(s, "each").ended == 2);
    daemon.stop();
}

#[test]
fn keys_of_a_pool_change_while_its_flows_go_on() {
    let folder = crate::support::open_folder();
    let log = folder.path().to_path_buf();
    let body = |keys: &str| {
        port("in", "gen", "flows = 3\nrate = 3000\noverload = \"wait\"")
            + &port("out", "sink", "")
            + &ids("ids", &log, "", keys)
            + &chain("c", "in", &["ids"], "out", "")
    };
    let mut daemon = Daemon::start("", &body("min = 4\nmax = 8"));
    let before = daemon.wait("each flow has its NF", |s| pool(s, "ids").assigned == 3 && find_port(s, "out").tx_packets > 100);
    let config = crate::support::head(daemon.folder(), "") + &body("min = 6\nmax = 12\nidle_ms = 3000\nwhen_empty = \"drop\"");
    let changes = daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap().changes;
    assert_eq!(
        changes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["~ pool ids: pool.idle_ms 30000 → 3000; pool.max 8 → 12; pool.min 4 → 6; pool.when_empty wait → drop"]
    );
    let after = daemon.wait("there are as many as there shall be", |s| {
        let pool = pool(s, "ids");
        (pool.min, pool.max, pool.assigned) == (6, 12, 3) && pool.size >= 6 && pool.idle >= 3
    });
    for nf in &before.nfs {
        assert_eq!(find_nf(&after, &nf.name).pid, nf.pid);
    }
    let seen = seen(folder.path(), "ids");
    assert_eq!((lines(&seen, "begin").len(), lines(&seen, "mixed").len()), (3, 0), "{seen:?}");
    daemon.silence("c", "in");
    daemon.wait("flows end by the new key", |s| pool(s, "ids").ended == 3 && pool(s, "ids").assigned == 0);
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn what_a_pool_cannot_be_is_refused_with_its_line() {
    let folder = crate::support::open_folder();
    let config = |keys: &str| {
        crate::support::head(folder.path(), "")
            + &port("in", "gen", "")
            + &port("out", "sink", "")
            + &service("ids", "sluice-nf-bridge", keys)
            + &chain("c", "in", &["ids"], "out", "")
    };
    for (keys, words) in [
        ("per = \"flow\"\n[service.pool]\nmin = 9\nmax = 3", "at least 9 instances and at most 3"),
        ("per = \"flow\"\n[service.pool]\nring = 48", "a ring of 48 is no power of two"),
        ("per = \"flow\"\n[service.pool]\nmost = 48", "has no key \"most\""),
        ("per = \"flow\"\n[service.pool]\nwhen_empty = \"fallback\"", "falls back to nothing"),
        ("per = \"flow\"\n[service.pool]\nwhen_empty = \"fallback\"\nfallback = \"ids\"", "which is not shared"),
        ("per = \"flow\"\ninstances = 2", "its pool says how many instances"),
        ("per = \"flows\"", "did you mean \"flow\"?"),
        ("[service.pool]\nmin = 2", "is shared, and has no pool"),
        ("per = \"rss\"\n[service.pool]\nmin = 0", "has no instance"),
        ("per = \"class\"", "nothing says what makes one"),
        ("per = \"class\"\n[service.pool]\nclass = \"vlans\"", "makes no traffic class"),
        ("per = \"flow\"\n[service.pool]\nclass = \"vlan\"", "has no instance for each class"),
    ] {
        let said = refusal(folder.path(), &config(keys));
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(!said.status.success() && text.contains(words) && text.contains("sluice.toml:"), "{keys}: {text}");
    }
    let config = crate::support::head(folder.path(), "rx = [0, 1]")
        + &port("in", "gen", "queues = 2")
        + &port("out", "sink", "")
        + &service("ids", "sluice-nf-bridge", "per = \"flow\"\n[service.pool]\nmax = 1")
        + &chain("c", "in", &["ids"], "out", "");
    let said = refusal(folder.path(), &config);
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && text.contains("there are 2 Rx threads") && text.contains("max = 2"), "{text}");
}
