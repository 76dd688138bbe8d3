//! DPDK devices as ports: captures and null devices, without hugepages.

use sluice_api::model::Apply;

use crate::pcap::{MICROS, Order, pcap, read};
use crate::support::{Daemon, chain, find_chain, find_port, head, port, service};

fn device(name: &str, devargs: &str, keys: &str) -> String {
    port(name, "dpdk", &format!("devargs = \"{devargs}\"\n{keys}"))
}

#[test]
fn a_capture_passes_from_device_to_device() {
    let files = crate::support::open_folder();
    let file = |name: &str| files.path().join(name).display().to_string();
    let packets: Vec<Vec<u8>> = (0..500u32).map(|i| (0..60 + i).map(|at| (at * 7 + i) as u8).collect()).collect();
    std::fs::write(file("in.pcap"), pcap(Order::Little, MICROS, 1, &packets)).unwrap();
    std::fs::write(file("none.pcap"), pcap(Order::Little, MICROS, 1, &[])).unwrap();
    let body =
        device("in", &format!("net_pcap0,rx_pcap={},tx_pcap={}", file("in.pcap"), file("unused.pcap")), "overload = \"wait\"")
            + &device("out", &format!("net_pcap1,rx_pcap={},tx_pcap={}", file("none.pcap"), file("out.pcap")), "")
            + &service("a", "sluice-nf-bridge", "")
            + &service("b", "sluice-nf-monitor", "")
            + &chain("c", "in", &["a", "b"], "out", "");
    let mut daemon = Daemon::start("", &body);
    let all = packets.len() as u64;
    let stats = daemon.wait("all packets have left", |s| find_port(s, "out").tx_packets == all);
    assert_eq!((find_chain(&stats, "c").entry_packets, find_chain(&stats, "c").exit_packets), (all, all));
    // The driver writes its file when the device is closed.
    daemon.stop();
    let written = read(&files.path().join("out.pcap"));
    assert_eq!(written.len(), packets.len());
    assert_eq!(written.iter().zip(&packets).position(|(a, b)| a != b), None, "the first packet that differs");
}

fn between_null_devices(out: &str) -> String {
    device("in", "net_null0,size=60", "overload = \"wait\"")
        + &device("out", out, "")
        + &service("a", "sluice-nf-bridge", "")
        + &chain("c", "in", &["a"], "out", "")
}

#[track_caller]
fn goes_on(daemon: &mut Daemon) {
    let before = find_chain(&daemon.stats(), "c").exit_packets;
    daemon.wait("packets leave", |s| find_chain(s, "c").exit_packets > before + 10_000 && find_port(s, "out").tx_packets > 0);
}

#[test]
fn packets_pass_between_null_devices() {
    let mut daemon = Daemon::start("", &between_null_devices("net_null1"));
    goes_on(&mut daemon);
    daemon.client().remove_rule("c").unwrap();
    daemon.client().remove_port("in").unwrap();
    daemon.wait("no packet is with the NF", |s| s.nfs.iter().all(|nf| nf.frames_held == 0));
    daemon.stop();
}

#[test]
fn a_device_that_does_not_open_again_leaves_the_old_one_in_place() {
    let mut daemon = Daemon::start("", &between_null_devices("net_null1"));
    goes_on(&mut daemon);
    let apply = |daemon: &Daemon, out: &str| {
        let config = head(daemon.folder(), "") + &between_null_devices(out);
        daemon.client().apply(&Apply { config, file: None, dry_run: false }).map_err(|error| error.to_string())
    };
    // The same device is closed, does not open with an unknown argument, and comes back as it was.
    let said = apply(&daemon, "net_null1,nonsense=1").unwrap_err();
    assert!(said.contains("net_null1,nonsense=1") && !said.contains("is closed"), "{said}");
    goes_on(&mut daemon);
    assert!(find_port(&daemon.stats(), "out").description.starts_with("net_null1 "));
    assert_eq!(apply(&daemon, "net_null1,size=128").unwrap().changes.len(), 1);
    goes_on(&mut daemon);
    daemon.stop();
}

#[test]
fn a_device_of_which_no_rule_speaks_does_not_stay_in_the_memory_of_the_first_tenant() {
    let config = |out: &str, more: &str| {
        device("in", "net_null0,size=60", "overload = \"wait\"")
            + &device("out", "net_null1", out)
            + &service("a", "sluice-nf-bridge", "tenant = \"red\"")
            + &chain("c", "in", &["a"], "out", "")
            + more
    };
    let mut daemon = Daemon::start("", &config("", ""));
    goes_on(&mut daemon);
    let apply = |daemon: &Daemon, out: &str| {
        let blue = service("b", "sluice-nf-bridge", "tenant = \"blue\"");
        let config = head(daemon.folder(), "") + &config(out, &blue);
        daemon.client().apply(&Apply { config, file: None, dry_run: false }).map_err(|error| error.to_string())
    };
    let said = apply(&daemon, "").unwrap_err();
    assert!(said.contains("port `out`") && said.contains("tenant `red`") && said.contains("write `tenant`"), "{said}");
    assert!(daemon.stats().services.iter().all(|service| service.name != "b"), "nothing has changed");
    goes_on(&mut daemon);
    // What the message proposes works.
    assert_eq!(apply(&daemon, "tenant = \"red\"").unwrap().changes.len(), 2);
    goes_on(&mut daemon);
    // It stays red's when the rule goes.
    daemon.client().remove_rule("c").unwrap();
    assert_eq!(apply(&daemon, "tenant = \"red\"").unwrap().changes.len(), 1);
    goes_on(&mut daemon);
    daemon.stop();
}

#[test]
fn packets_that_a_device_does_not_take_are_shown() {
    // Nothing is connected to it.
    let files = crate::support::open_folder();
    let socket = files.path().join("memif").display().to_string();
    let body = port("in", "gen", "rate = 50000")
        + &device("out", &format!("net_memif0,role=server,id=0,socket={socket},socket-abstract=no"), "")
        + &service("a", "sluice-nf-bridge", "")
        + &chain("c", "in", &["a"], "out", "");
    let daemon = Daemon::start("", &body);
    let row = crate::drops::ask(&daemon, "port_tx");
    let sample = &row["samples"][0];
    assert_eq!(
        (&sample["port"], &sample["bytes"], &row["places"][0]["what"]),
        (&"out".into(), &60.into(), &"port out".into()),
        "{row}"
    );
    assert!(sample["headers"].as_str().unwrap().starts_with("udp 10.0.0.1:"), "{row}");
    daemon.stop();
}
