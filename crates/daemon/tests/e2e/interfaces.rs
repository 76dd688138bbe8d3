//! Interfaces of the kernel as ports, as hosts and containers have them.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sluice_api::model::{Apply, EventKind, PortState, Stats};

use crate::foreign::{Site, can};
use crate::support::{Daemon, PATIENCE, chain, find_chain, find_port, head, port, service};

/// Client and server, joined by one NF.
fn bridged(site: &Site) -> String {
    site.ports()
        + &service("bridge", "sluice-nf-bridge", "")
        + &chain("there", "c", &["bridge"], "s", "")
        + &chain("back", "s", &["bridge"], "c", "")
}

fn state(stats: &Stats, name: &str) -> PortState {
    find_port(stats, name).state
}

/// The states of a port in the events, oldest first.
fn states_of(daemon: &Daemon, name: &str) -> Vec<PortState> {
    let events = daemon.client().events().unwrap();
    let of_port = events.iter().filter(|event| event.event == EventKind::Port && event.port.as_deref() == Some(name));
    of_port.filter_map(|event| event.state).collect()
}

#[test]
fn large_segments_of_tcp_pass_whatever_offloads_the_hosts_have() {
    if !can(&["ip"]) {
        return;
    }
    let site = Site::with_offloads();
    site.serve(&[8080]);
    let mut daemon = Daemon::start("", &bridged(&site));
    site.download(&daemon, 8080);
    let stats = daemon.stats();
    for port in ["c", "s"] {
        assert_eq!(find_port(&stats, port).details["oversize"], 0.0, "{port}: {:?}", find_port(&stats, port).details);
    }
    // The server's large segments pass the NF as packets and reach the client as large segments.
    let (cut, merged) = (find_port(&stats, "s").details["cut"], find_port(&stats, "c").details["merged"]);
    assert!(cut > 0.0 && merged > cut, "{cut} were cut, {merged} packets were put together");
    // The same with interfaces that were made anew.
    for port in ["c", "s"] {
        site.remove_interface(port);
        daemon.wait("the interface is gone", |s| state(s, port) == PortState::Gone);
        site.make_interface(port);
        daemon.wait("the interface is back", |s| state(s, port) == PortState::Up);
    }
    site.reach(&daemon, 8080);
    site.download(&daemon, 8080);
    let stats = daemon.stats();
    for port in ["c", "s"] {
        assert_eq!(find_port(&stats, port).details["oversize"], 0.0, "{port}: {:?}", find_port(&stats, port).details);
    }
    let now = (find_port(&stats, "s").details["cut"], find_port(&stats, "c").details["merged"]);
    assert!(now.0 > cut && now.1 > merged, "{now:?} after {cut} and {merged}");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn tcp_passes_through_sockets_that_share_packet_memory_with_the_kernel() {
    if !can(&["ip"]) {
        return;
    }
    let site = Site::new(None);
    site.serve(&[8080]);
    let ports = bridged(&site).replace("kind = \"af_packet\"", "kind = \"af_xdp\"\nslots = 512");
    let mut daemon = Daemon::start("", &ports);
    site.reach(&daemon, 8080);
    site.download(&daemon, 8080);
    // A port may leave and come again: no program is left on its interface.
    let config = head(daemon.folder(), "") + &ports.replace("slots = 512", "slots = 256");
    daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap();
    site.download(&daemon, 8080);
    let stats = daemon.stats();
    for port in ["c", "s"] {
        let port = find_port(&stats, port);
        assert!(port.description.contains("by AF_XDP") && port.description.contains("256 slots"), "{}", port.description);
        assert!(port.rx_packets > 0 && port.tx_packets > 0);
    }
    // The kernel has that memory: others would receive nothing.
    let refused = daemon.client().renew_memory("-").unwrap_err().to_string();
    assert!(refused.contains("keeps the packet memory") && refused.contains("add the port again"), "{refused}");
    site.reach(&daemon, 8080);
    daemon.wait_until_empty();
    daemon.stop();
    site.run_in_middle("test -z \"$(ip -details link show | grep xdp)\"");
}

#[test]
fn tcp_passes_shards_that_each_have_a_queue_of_the_interfaces() {
    if can(&["ip"]) {
        check_shards("af_packet", &Site::new(None));
    }
}

#[test]
fn tcp_passes_shards_that_each_have_a_queue_of_the_driver() {
    if !can(&["ip", "ethtool"]) {
        return;
    }
    let site = Site::new(None);
    // A packet comes to the queue that it was sent by.
    site.run_in_middle("for end in c s; do ethtool -L $end rx 2 tx 2; done");
    site.run_in_client("ethtool -L eth0 rx 2 tx 2");
    site.run_in_server("ethtool -L eth0 rx 2 tx 2");
    let stats = check_shards("af_xdp", &site);
    for port in ["c", "s"] {
        assert_eq!(find_port(&stats, port).details["in_driver"], 2.0, "{:?}", find_port(&stats, port).details);
    }
}

fn check_shards(kind: &str, site: &Site) -> Stats {
    site.serve(&[8080]);
    let body = as_kind(&site.ports(), kind).replace("kind = ", "queues = 2\nslots = 256\nkind = ")
        + &service("bridge", "sluice-nf-bridge", "instances = 2\ncores = [0, 1]")
        + &chain("there", "c", &["bridge"], "s", "")
        + &chain("back", "s", &["bridge"], "c", "");
    let mut daemon = Daemon::start("shards = [0, 1]", &body);
    site.reach(&daemon, 8080);
    // Where a connection's packets go is decided by its addresses and ports, or by its sender.
    let passed = (1..=100).find(|_| {
        site.download(&daemon, 8080);
        daemon.stats().nfs.iter().all(|nf| nf.tx_packets > 100)
    });
    assert!(passed.is_some(), "{:#?}", daemon.stats().nfs);
    daemon.wait_until_empty();
    let stats = daemon.stats();
    daemon.stop();
    stats
}

#[test]
fn a_daemon_that_is_killed_leaves_no_program_on_an_interface() {
    if !can(&["ip"]) {
        return;
    }
    let site = Site::new(None);
    site.serve(&[8080]);
    let mut daemon = Daemon::start("", &as_kind(&bridged(&site), "af_xdp"));
    site.reach(&daemon, 8080);
    site.run_in_middle("ip -details link show | grep -q xdp");
    daemon.stats();
    daemon.end(Signal::KILL);
    daemon.wait_until_nfs_are_gone();
    // The kernel removes it some time after the process.
    site.run_in_middle("for i in $(seq 1000); do links=$(ip -details link show); case $links in *xdp*) sleep 0.02 ;; *) exit 0 ;; esac; done; exit 1");
}

#[test]
fn an_interface_that_is_made_anew_is_taken_up_again() {
    if can(&["ip"]) {
        check_remade("af_packet");
    }
}

#[test]
fn an_interface_of_af_xdp_that_is_made_anew_is_taken_up_again() {
    if can(&["ip"]) {
        check_remade("af_xdp");
    }
}

/// The ports of a site as another kind.
fn as_kind(body: &str, kind: &str) -> String {
    body.replace("kind = \"af_packet\"", &format!("kind = \"{kind}\""))
}

fn check_remade(kind: &str) {
    let site = Site::new(None);
    site.serve(&[8080]);
    let mut daemon = Daemon::start("", &as_kind(&bridged(&site), kind));
    site.reach(&daemon, 8080);
    for round in 0..20 {
        let port = ["c", "s"][round % 2];
        site.remove_interface(port);
        if round < 4 {
            daemon.wait("the interface is gone", |s| state(s, port) == PortState::Gone);
        }
        site.make_interface(port);
        site.reach(&daemon, 8080);
    }
    // Its namespace, too.
    for _ in 0..2 {
        site.make_middle_anew();
        site.reach(&daemon, 8080);
    }
    let stats = daemon.wait("both are up", |s| ["c", "s"].iter().all(|port| state(s, port) == PortState::Up));
    for port in ["c", "s"] {
        // A change is an event at the next tick.
        wait_until(&daemon, "events say that it was gone twelve times and is up", |daemon| {
            let states = states_of(daemon, port);
            let gone = states.iter().filter(|state| **state == PortState::Gone).count();
            (gone, states.last()) == (12, Some(&PortState::Up))
        });
        assert!(find_port(&stats, port).tx_packets > 0);
    }
    daemon.wait_for_log("port c: interface c in");
    assert!(daemon.log().contains(" is gone"), "{}", daemon.log());
    let metrics = daemon.client().metrics().unwrap();
    assert!(metrics.contains("sluice_port_state{port=\"c\",state=\"up\"} 1"), "{metrics}");
    daemon.wait_until_empty();
    daemon.stop();
}

/// Whether all packet threads of the daemon wait in the kernel.
fn all_rest(daemon: &Daemon) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let of_task = |task: &Path, what: &str| std::fs::read_to_string(task.join(what)).unwrap_or_default();
    let tasks: Vec<PathBuf> = tasks.map(|task| task.unwrap().path()).collect();
    let of_a_core = |name: &str| name.trim().strip_prefix("sluice-").is_some_and(|core| core.parse::<usize>().is_ok());
    let mut packet_threads = tasks.iter().filter(|task| of_a_core(&of_task(task, "comm"))).peekable();
    assert!(packet_threads.peek().is_some(), "there is no packet thread");
    packet_threads.all(|task| of_task(task, "syscall").split(' ').next() == Some(&libc::SYS_ppoll.to_string()))
}

/// Waits without queries to the daemon, which may disturb the condition.
#[track_caller]
fn wait_until(daemon: &Daemon, what: &str, is: impl Fn(&Daemon) -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is(daemon) {
        assert!(Instant::now() < until, "waited in vain until {what}:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn while_nothing_moves_packet_threads_wait_for_the_kernel_and_hear_everything() {
    if !can(&["ip"]) {
        return;
    }
    // All roles on one thread, and on two.
    for manager in ["", "rx = [0]\ntx = [1]"] {
        let site = Site::new(None);
        site.serve(&[8080]);
        let mut daemon = Daemon::start(manager, &bridged(&site));
        for _ in 0..3 {
            wait_until(&daemon, "packet threads rest", all_rest);
            // Packets and commands wake them.
            site.reach(&daemon, 8080);
            daemon.wait_until_empty();
        }
        // The error of a removed interface is taken, so threads rest again.
        site.remove_interface("s");
        daemon.wait("it is gone", |s| state(s, "s") == PortState::Gone);
        wait_until(&daemon, "packet threads rest", all_rest);
        daemon.stop();
    }
}

#[test]
fn what_an_interface_does_not_take_is_counted_with_its_reason() {
    if !can(&["ip"]) {
        return;
    }
    let site = Site::new(None);
    let body = site.ports()
        + &port("gen", "gen", "rate = 20000\noverload = \"wait\"")
        + &service("bridge", "sluice-nf-bridge", "")
        + &chain("there", "gen", &["bridge"], "s", "");
    let mut daemon = Daemon::start("", &body);
    daemon.wait("packets leave", |s| find_port(s, "s").tx_packets > 0);
    // The kernel accepts packets for an interface without a link and loses them, if given any.
    site.run_in_middle("ip link set s down");
    daemon.wait("it is down", |s| state(s, "s") == PortState::NoLink && find_port(s, "s").dropped("no_link") > 0);
    site.run_in_middle("ip link set s up");
    daemon.wait("it is up", |s| state(s, "s") == PortState::Up);
    site.remove_interface("s");
    let before = daemon.stats();
    let more = |s: &Stats| find_port(s, "s").dropped("no_link") > find_port(&before, "s").dropped("no_link");
    daemon.wait("it is gone", |s| state(s, "s") == PortState::Gone && more(s));
    daemon.silence("there", "gen");
    let balanced = |s: &Stats| {
        let (port, chain) = (find_port(s, "s"), find_chain(s, "there"));
        chain.entry_packets == chain.exit_packets + chain.drops.values().sum::<u64>()
            && chain.exit_packets == port.tx_packets + port.not_sent()
    };
    let stats = daemon.wait("every packet is counted", balanced);
    assert_eq!(stats.drops["no_link"], find_port(&stats, "s").dropped("no_link"));
    let metrics = daemon.client().metrics().unwrap();
    for wanted in ["sluice_port_drops_total{port=\"s\",reason=\"no_link\"}", "sluice_drops_total{reason=\"no_link\"}"] {
        assert!(metrics.contains(wanted), "{metrics}");
    }
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_port_waits_for_an_interface_that_is_not_there_yet() {
    if can(&["ip"]) {
        ["af_packet", "af_xdp"].into_iter().for_each(check_wait);
    }
}

fn check_wait(kind: &str) {
    let site = Site::new(None);
    site.serve(&[8080]);
    site.remove_interface("c");
    let missing = as_kind(&bridged(&site), kind);
    let waiting = missing.replacen("interface = \"c\"", "interface = \"c\"\nwhen_missing = \"wait\"", 1);
    let folder = crate::support::open_folder();
    let refused = crate::support::refusal(folder.path(), &(head(folder.path(), "") + &missing));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("when_missing"), "{said}");
    let mut daemon = Daemon::start("", &waiting);
    daemon.wait("it waits", |s| state(s, "c") == PortState::Waiting && state(s, "s") == PortState::Up);
    daemon.wait_for_log("port c waits for interface c in");
    site.make_interface("c");
    site.reach(&daemon, 8080);
    wait_until(&daemon, "an event says that it is up", |daemon| states_of(daemon, "c").last() == Some(&PortState::Up));
    let list = daemon.says(&["port", "list"]);
    assert!(list.lines().next().unwrap().contains("STATE") && list.contains(" up "), "{list}");
    daemon.wait_until_empty();
    daemon.stop();
}

/// Does something while no thread of a process runs.
fn while_stopped(pid: u32, act: impl FnOnce()) {
    let process = Pid::from_raw(pid as i32).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let is_stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
    let all_stopped = || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        // One that has just ended has no file.
        threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()).all(is_stopped)
    };
    let until = Instant::now() + PATIENCE;
    while !all_stopped() {
        assert!(Instant::now() < until, "process {pid} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    act();
    kill_process(process, Signal::CONT).unwrap();
}

#[test]
fn packets_that_find_no_room_at_a_port_stand_among_the_drops() {
    if !can(&["ip"]) {
        return;
    }
    let site = Site::new(None);
    // Its queue has few places.
    let body = bridged(&site).replacen("interface = \"c\"", "interface = \"c\"\nslots = 64", 1);
    let mut daemon = Daemon::start("stall_ms = 0", &body);
    site.run_in_client("ip neigh replace 10.0.1.2 lladdr 02:00:00:00:00:01 dev eth0");
    let socket = site.in_client(|| UdpSocket::bind("10.0.0.2:0")).unwrap();
    daemon.wait("both are up", |s| ["c", "s"].map(|name| state(s, name)) == [PortState::Up; 2]);
    let send = || assert_eq!(socket.send_to(&[7; 100], "10.0.1.2:9").unwrap(), 100);
    let pid = daemon.pid();
    let flood = || while_stopped(pid, || (0..1000).for_each(|_| send()));
    let stats = daemon.wait("some are counted", |s| {
        let is_counted = find_port(s, "c").dropped("overrun") > 0;
        if !is_counted {
            flood();
        }
        is_counted
    });
    assert_eq!(stats.drops["overrun"], find_port(&stats, "c").dropped("overrun"));
    let mut asked = daemon.sluice(&["drops", "--reason", "overrun", "--seconds", "1", "--json"]);
    let mut asked = asked.stdout(Stdio::piped()).spawn().unwrap();
    while asked.try_wait().unwrap().is_none() {
        flood();
        std::thread::sleep(Duration::from_millis(20));
    }
    let answer: serde_json::Value = serde_json::from_slice(&asked.wait_with_output().unwrap().stdout).unwrap();
    let row = &answer["reasons"][0];
    assert!(row["packets"].as_u64() > Some(0) && row["remedy"].as_str().unwrap().contains("slots"), "{answer}");
    assert_eq!(row["places"][0]["what"], "port c");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn what_is_too_large_stands_among_the_drops_and_says_what_to_do() {
    if !can(&["ip"]) {
        return;
    }
    let site = Site::new(None);
    let body = bridged(&site);
    let mut daemon = Daemon::start("", &body);
    // Larger than a frame, at both ends of the client's wire.
    site.run_in_middle("ip link set c mtu 9000");
    site.run_in_client("ip link set eth0 mtu 9000; ip neigh replace 10.0.1.2 lladdr 02:00:00:00:00:01 dev eth0");
    let socket = site.in_client(|| UdpSocket::bind("10.0.0.2:0")).unwrap();
    let send = |bytes: usize| socket.send_to(&vec![0; bytes], "10.0.1.2:9").unwrap();
    for _ in 0..3 {
        assert_eq!(send(5000), 5000);
    }
    let stats = daemon.wait("they are counted", |s| find_port(s, "c").dropped("oversize") == 3);
    assert_eq!(stats.drops["oversize"], 3);
    daemon.wait_for_log("port c: packets dropped as oversize: ");
    daemon.wait_for_log("packet_bytes");
    // It fits a frame, but not the egress interface.
    assert_eq!(send(1700), 1700);
    let stats = daemon.wait("it is counted", |s| find_port(s, "s").dropped("mtu") == 1);
    let (chain, out) = (find_chain(&stats, "there"), find_port(&stats, "s"));
    assert_eq!(chain.exit_packets, out.tx_packets + out.not_sent(), "{chain:?} {out:?}");
    daemon.wait_for_log("port s: packets dropped as mtu: 1");
    let metrics = daemon.client().metrics().unwrap();
    assert!(metrics.contains("sluice_port_drops_total{port=\"c\",reason=\"oversize\"} 3"), "{metrics}");
    let check = Command::new(crate::support::sluice()).arg("check").arg(daemon.folder().join("sluice.toml")).output().unwrap();
    let said = String::from_utf8_lossy(&check.stdout) + String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success() && said.contains("its MTU is 9000") && said.contains("packet_bytes = 9018"), "{said}");
    // Each with a packet, though a port has counted it by itself.
    let shows = |reason: &str, bytes: usize, port: &str| {
        let row = crate::drops::ask_while(&daemon, reason, || {
            send(bytes);
        });
        let sample = &row["samples"][0];
        let headers = sample["headers"].as_str().unwrap();
        assert!(headers.starts_with("udp 10.0.0.2:") && headers.ends_with(" > 10.0.1.2:9"), "{row}");
        assert_eq!((&sample["port"], &row["places"][0]["what"]), (&port.into(), &format!("port {port}").into()), "{row}");
        assert!(sample["bytes"].as_u64().unwrap() > bytes as u64, "{row}");
    };
    shows("oversize", 5000, "c");
    shows("mtu", 1700, "s");
    let large = crate::drops::why(&daemon, "udp 10.0.0.2:1 > 10.0.1.2:9 bytes 1742 on c");
    assert_eq!(large.obstacles[0].reason.as_deref(), Some("mtu"), "{large:?}");
    site.run_in_middle("ip link set s down");
    shows("no_link", 100, "s");
    daemon.wait_until_empty();
    daemon.stop();
}
