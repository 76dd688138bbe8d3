//! Ports, services, instances, chains and rules change beside a steady chain.
//! That chain loses no packet, and flows stay with their instance.

use std::path::Path;

use sluice_api::config;
use sluice_api::model::{Apply, NfState, Stats};

use crate::pcap::{MICROS, Order, pcap};
use crate::support::{Daemon, chain, find_chain, find_nf, find_port, head, port, service};

/// The chain that is watched while others change.
fn steady() -> String {
    port("steady", "gen", "rate = 5000\nflows = 8\noverload = \"wait\"")
        + &port("all", "sink", "")
        + &service("s", "sluice-nf-bridge", "")
        + &service("t", "sluice-nf-bridge", "")
        + &chain("steady", "steady", &["s", "t"], "all", "")
}

/// Checks that the watched chain lost nothing: all that entered reached the sink.
pub fn settle(mut daemon: Daemon) {
    daemon.settle("steady", "all");
    daemon.client().remove_port("steady").unwrap();
    daemon.wait_until_empty();
    daemon.stop();
}

fn one<T: serde::de::DeserializeOwned>(text: &str) -> T {
    toml::from_str(text).unwrap()
}

fn counted(name: &str) -> config::Port {
    one(&format!("name = \"{name}\"\nkind = \"gen\"\ncount = 5000\nflows = 64\noverload = \"wait\""))
}

#[test]
fn everything_comes_and_goes_beside_a_chain_that_loses_nothing() {
    let mut daemon = Daemon::start("", &steady());
    daemon.wait("packets flow", |s| find_port(s, "all").tx_packets > 500);
    let mut client = daemon.client();
    for round in 1..=2 {
        client.add_port(&one("name = \"out\"\nkind = \"sink\"")).unwrap();
        client.add_service(&one("name = \"x\"\nexec = \"sluice-nf-bridge\"\ninstances = 2")).unwrap();
        client.add_service(&one("name = \"y\"\nexec = \"sluice-nf-monitor\"")).unwrap();
        client.add_chain(&one("name = \"new\"\nservices = [\"x\", \"y\"]\negress = \"out\"")).unwrap();
        client.add_rule(one("name = \"new\"\nport = \"in\"\nchain = \"new\""), Some(0)).expect_err("there is no port `in` yet");
        client.add_port(&counted("in")).unwrap();
        client.add_rule(one("name = \"new\"\nport = \"in\"\nchain = \"new\""), Some(0)).unwrap();
        daemon.wait("the new port was read", |s| find_port(s, "in").finished);
        // The port is read at once: packets before the rule and the NFs are dropped and counted.
        daemon.wait("no packet of the new chain is inside", |s| {
            let chain = find_chain(s, "new");
            let gone: u64 = chain.drops.values().sum();
            chain.entry_packets == chain.exit_packets + gone
        });
        let extra = client.add_nf("x", None).unwrap().name;
        daemon.wait("the third instance runs", |s| find_nf(s, &extra).state == NfState::Running);
        client.remove_nf(&extra).unwrap();
        let inside = client.remove_chain("new").expect_err("a rule leads there").to_string();
        assert!(inside.contains("rule"), "{inside}");
        client.remove_rule("new").unwrap();
        client.remove_chain("new").unwrap();
        client.remove_service("x").unwrap();
        client.remove_service("y").unwrap();
        client.remove_port("in").unwrap();
        client.remove_port("out").unwrap();
        let stats = daemon.stats();
        assert_eq!((stats.nfs.len(), stats.chains.len(), stats.ports.len()), (2, 1, 2), "round {round}");
    }
    settle(daemon);
}

#[test]
fn a_configuration_is_applied_beside_a_chain_that_loses_nothing() {
    let mut daemon = Daemon::start("", &steady());
    daemon.wait("packets flow", |s| find_port(s, "all").tx_packets > 500);
    let more = |keys: &str| {
        steady()
            + &port("in", "gen", &format!("rate = 2000\noverload = \"wait\"\n{keys}"))
            + &port("out", "sink", "")
            + &service("x", "sluice-nf-bridge", "instances = 2")
            + &chain("new", "in", &["x"], "out", "")
    };
    let apply = |daemon: &Daemon, body: &str| {
        let config = head(daemon.folder(), "") + body;
        daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap().changes
    };
    assert!(!apply(&daemon, &more("")).is_empty());
    daemon.wait("the new chain delivers", |s| find_port(s, "out").tx_packets > 300);
    assert_eq!(apply(&daemon, &more("")), vec![], "the same again changes nothing");
    assert!(!apply(&daemon, &more("size = 200")).is_empty());
    let before = find_port(&daemon.stats(), "out").tx_packets;
    daemon.wait("the changed port delivers", |s| find_port(s, "out").tx_packets > before + 300);
    assert!(!apply(&daemon, &steady()).is_empty());
    let stats = daemon.stats();
    assert_eq!((stats.nfs.len(), stats.chains.len(), stats.ports.len()), (2, 1, 2));
    settle(daemon);
}

/// Flow `i` of 0 to 9 has 2^i packets: an instance's packets show its flows.
const FLOWS: usize = 10;
const SUM: u64 = (1 << FLOWS) - 1;

/// A UDP packet of a flow, without payload.
fn udp(flow: usize, back: bool) -> Vec<u8> {
    let (client, server) = ([10, 0, 0, 1 + flow as u8], [192, 0, 2, 1]);
    let (client_port, server_port) = ((40_000 + flow as u16).to_be_bytes(), 53u16.to_be_bytes());
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    packet.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(if back { [server, client] } else { [client, server] }.concat());
    packet.extend(if back { [server_port, client_port] } else { [client_port, server_port] }.concat());
    packet.extend([0, 8, 0, 0]);
    packet.resize(60, 0);
    packet
}

fn of_flows(folder: &Path, name: &str, back: bool) {
    let packets: Vec<Vec<u8>> = (0..FLOWS).flat_map(|flow| vec![udp(flow, back); 1 << flow]).collect();
    std::fs::write(folder.join(name), pcap(Order::Little, MICROS, 1, &packets)).unwrap();
}

fn replaying(folder: &Path, there: &str, back: &str) -> String {
    let file = |name: &str| format!("read = {:?}\noverload = \"wait\"", folder.join(name));
    port("lan", "pcap", &file(there))
        + &port("wan", "pcap", &file(back))
        + &port("out", "sink", "")
        + &service("x", "sluice-nf-bridge", "instances = 2")
        + &chain("there", "lan", &["x"], "out", "")
        + &chain("back", "wan", &["x"], "out", "")
}

/// Packets that each instance has received.
fn shares(stats: &Stats) -> Vec<u64> {
    stats.nfs.iter().map(|nf| nf.rx_packets).collect()
}

#[test]
fn flows_stay_with_their_instance_in_both_directions() {
    let files = crate::support::open_folder();
    for copy in 0..2 {
        of_flows(files.path(), &format!("there{copy}"), false);
        of_flows(files.path(), &format!("back{copy}"), true);
    }
    let mut daemon = Daemon::start("", &replaying(files.path(), "there0", "back0"));
    let stats = daemon.wait("both files were read", |s| find_port(s, "out").tx_packets == 2 * SUM);
    let first = shares(&stats);
    // Each flow counts twice, there and back: an odd share is a flow with directions apart.
    let both_ways = |share: &u64| share.is_multiple_of(2) && *share > 0;
    assert!(first.iter().all(both_ways), "{first:?}");
    assert_eq!(first.iter().map(|share| share / 2).fold(0, |all, share| all ^ share), SUM, "{first:?}");

    let third = daemon.client().add_nf("x", None).unwrap().name;
    daemon.wait("the third instance runs", |s| find_nf(s, &third).state == NfState::Running);
    let config = head(daemon.folder(), "") + &replaying(files.path(), "there1", "back1").replace("instances = 2", "instances = 3");
    let changes = daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap().changes;
    assert_eq!(changes.len(), 2, "both files, and nothing else: {changes:?}");
    let stats = daemon.wait("both files were read again", |s| find_port(s, "out").tx_packets == 4 * SUM);
    assert_eq!(shares(&stats), [first[0] * 2, first[1] * 2, 0]);
    daemon.stop();
}

fn apply(daemon: &Daemon, manager: &str, body: &str) -> Result<usize, String> {
    let config = head(daemon.folder(), manager) + body;
    let applied = daemon.client().apply(&Apply { config, file: None, dry_run: false });
    applied.map(|applied| applied.changes.len()).map_err(|error| error.to_string())
}

#[test]
fn a_chain_that_changes_more_often_than_there_are_paths_loses_nothing() {
    const PATHS: &str = "max_paths = 64";
    let mut daemon = Daemon::start(PATHS, &steady());
    daemon.wait("packets flow", |s| find_port(s, "all").tx_packets > 100);
    for round in 0..200 {
        let now = if round % 2 == 0 { "drop" } else { "restart" };
        let body =
            steady() + &format!("\n[[chain]]\nname = \"spare\"\nservices = [\"s\"]\negress = \"all\"\non_failure = \"{now}\"\n");
        let body = body.replace("services = [\"s\", \"t\"]", &format!("on_failure = \"{now}\"\nservices = [\"s\", \"t\"]"));
        assert!(apply(&daemon, PATHS, &body).unwrap() > 0, "round {round}");
    }
    let before = find_port(&daemon.stats(), "all").tx_packets;
    let stats = daemon.wait("packets go on", |s| find_port(s, "all").tx_packets > before + 500);
    assert!(stats.drops.values().all(|n| *n == 0), "{:?}", stats.drops);
    settle(daemon);
}

#[test]
fn a_port_that_is_replaced_and_removed_in_one_apply_loses_nothing() {
    let body = |egress: &str| {
        port("steady", "gen", "rate = 20000\nflows = 8\noverload = \"wait\"")
            + &port(egress, "sink", "")
            + &service("s", "sluice-nf-bridge", "")
            + &chain("steady", "steady", &["s"], egress, "")
    };
    let mut daemon = Daemon::start("", &body("all"));
    daemon.wait("packets flow", |s| find_port(s, "all").tx_packets > 100);
    for round in 0..40 {
        let egress = if round % 2 == 0 { "other" } else { "all" };
        apply(&daemon, "", &body(egress)).unwrap();
        daemon.wait("packets flow", |s| find_port(s, egress).tx_packets > 20);
    }
    let stats = daemon.stats();
    assert!(stats.drops.values().all(|n| *n == 0), "{:?}", stats.drops);
    daemon.silence("steady", "steady");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn an_apply_that_is_refused_has_opened_no_port() {
    let mut daemon = Daemon::start("", &steady());
    let (file, new) = (daemon.folder().join("n2.pcap"), daemon.folder().join("new.pcap"));
    std::fs::write(&file, "a capture of before").unwrap();
    let more = steady()
        + &port("n1", "gen", "rate = 1000")
        + &port("n2", "pcap", &format!("write = {file:?}"))
        + &port("new", "pcap", &format!("write = {new:?}"))
        // Root passes the permission check, but no file can be made there.
        + &port("n3", "pcap", "write = \"/proc/sluice.pcap\"");
    apply(&daemon, "", &more).unwrap_err();
    let names: Vec<String> = daemon.stats().ports.into_iter().map(|port| port.name).collect();
    assert_eq!(names, ["steady", "all"]);
    assert_eq!((std::fs::read_to_string(&file).unwrap().as_str(), new.exists()), ("a capture of before", false));
    assert_eq!(apply(&daemon, "", &steady()).unwrap(), 0, "nothing is to be mended");
    settle(daemon);
}

#[test]
fn totals_of_drops_do_not_go_back_with_their_chain() {
    let body = steady()
        + &port("flood", "gen", "flows = 8\noverload = \"drop\"")
        + &service("slow", "sluice-nf-bridge", "ring = 64")
        + &chain("flood", "flood", &["slow"], "all", "");
    let mut daemon = Daemon::start("", &body);
    let before = daemon.wait("the gate was closed", |s| s.drops["entry"] > 0).drops["entry"];
    let mut client = daemon.client();
    client.remove_rule("flood").unwrap();
    client.remove_port("flood").unwrap();
    client.remove_chain("flood").unwrap();
    assert!(daemon.stats().drops["entry"] >= before);
    daemon.silence("steady", "steady");
    daemon.stop();
}
