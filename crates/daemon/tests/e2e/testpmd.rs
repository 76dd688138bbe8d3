//! dpdk-testpmd as a hop through shared memory (memif, vhost-user), no hugepages.

use rustix::process::{Pid, Signal, kill_process};
use sluice_api::model::{Apply, ChainState, NfState};

use crate::foreign::can;
use crate::pcap::{MICROS, Order, pcap, read};
use crate::support::{Daemon, chain, find_chain, find_nf, find_port, head, port, service};

/// A service that runs dpdk-testpmd, which forwards packets unchanged.
fn testpmd(name: &str, via: &str) -> String {
    // It drops packets that find no free slot, so the output ring is the larger one.
    let device = |number: u32, side: &str, bits: u32| match via {
        "memif" => format!("--vdev=net_memif{number},role=client,id=0,socket=$SLUICE_{side},socket-abstract=no,rsize={bits}"),
        _ => format!("--vdev=net_virtio_user{number},path=$SLUICE_{side},queue_size={}", 1 << bits),
    };
    // Two threads on one core. Hourly statistics keep it from ending with its standard input.
    let command = format!(
        "exec dpdk-testpmd --lcores 0@1,1@1 --no-huge -m 128 --no-pci --no-shconf --no-telemetry --file-prefix={name}-$$ {} {} \
         -- --forward-mode=io --auto-start --no-flush-rx --no-mlockall --total-num-mbufs=8192 --stats-period=3600",
        device(0, "IN", 8),
        device(1, "OUT", 10)
    );
    format!(
        "[[service]]\nname = \"{name}\"\nkind = \"foreign\"\nvia = \"{via}\"\nexec = \"/bin/sh\"\nargs = [\"-c\", {command:?}]\n\
         inside_ms = 10000\n"
    )
}

fn passes_packets_unchanged(name: &str, via: &str) {
    if !can(&["dpdk-testpmd"]) {
        return;
    }
    let files = crate::support::open_folder();
    let file = |name: &str| files.path().join(name);
    let packets: Vec<Vec<u8>> = (0..4000u32).map(|i| (0..60 + i % 1400).map(|at| (at * 7 + i) as u8).collect()).collect();
    std::fs::write(file("in.pcap"), pcap(Order::Little, MICROS, 1, &packets)).unwrap();
    let body = port("out", "pcap", &format!("write = {:?}", file("out.pcap")))
        // Room for all packets, however long `b` gets no CPU time: testpmd drops what finds none.
        + &service("a", "sluice-nf-bridge", "")
        + &testpmd(name, via)
        + &service("b", "sluice-nf-monitor", "ring = 8192")
        + &format!("[[chain]]\nname = \"c\"\nservices = [\"a\", {name:?}, \"b\"]\negress = \"out\"\n[[rule]]\nchain = \"c\"\n");
    let mut daemon = Daemon::start("", &body);
    // What comes while it makes its devices does not reach it.
    daemon.wait_for_log("io packet forwarding");
    let traffic = port("in", "pcap", &format!("read = {:?}\noverload = \"wait\"", file("in.pcap")));
    let config = head(daemon.folder(), "") + &body + &traffic;
    daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap();
    let all = packets.len() as u64;
    let stats = daemon.wait("all packets have left", |s| find_port(s, "out").tx_packets == all);
    let of = find_nf(&stats, &format!("{name}.0")).foreign.clone().unwrap();
    assert_eq!((of.entered, of.returned, of.originated, of.not_back), (all, all, 0, 0));
    let run_dir = daemon.run_dir();
    assert!(run_dir.join(format!("{name}.0.in")).exists());
    daemon.wait_until_empty();
    daemon.stop();
    let written = read(&file("out.pcap"));
    assert_eq!(written.len(), packets.len());
    assert_eq!(written.iter().zip(&packets).position(|(a, b)| a != b), None, "the first packet that differs");
}

fn is_killed(name: &str, via: &str, policy: &str) -> Option<Daemon> {
    if !can(&["dpdk-testpmd"]) {
        return None;
    }
    let body = port("g", "gen", "rate = 10000\nflows = 16")
        + &port("all", "sink", "")
        + &testpmd(name, via)
        + &service("b", "sluice-nf-bridge", "")
        + &chain("c", "g", &[name, "b"], "all", &format!("on_failure = {policy:?}"));
    let mut daemon = Daemon::start("", &body);
    let stats = daemon.wait("packets pass it", |s| find_port(s, "all").tx_packets > 1000);
    let pid = find_nf(&stats, &format!("{name}.0")).pid.unwrap();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    Some(daemon)
}

#[test]
fn memif_carries_packets_to_another_data_plane_and_back() {
    passes_packets_unchanged("memif", "memif");
}

#[test]
fn vhost_user_carries_packets_to_another_data_plane_and_back() {
    passes_packets_unchanged("vhost", "vhost-user");
}

#[test]
fn one_that_shared_memory_by_memif_is_killed_and_comes_back() {
    let Some(mut daemon) = is_killed("memif-killed", "memif", "restart") else { return };
    let back = daemon.wait("it is back", |s| {
        let nf = find_nf(s, "memif-killed.0");
        nf.restarts == 1 && nf.state == NfState::Running
    });
    let before = find_port(&back, "all").tx_packets;
    daemon.wait("packets pass it again", |s| find_port(s, "all").tx_packets > before + 1000);
    daemon.silence("c", "g");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn one_that_shared_memory_by_vhost_user_is_killed_and_left_out() {
    let Some(mut daemon) = is_killed("vhost-killed", "vhost-user", "bypass") else { return };
    let without = daemon.wait("it is left out", |s| find_chain(s, "c").state == ChainState::Bypassing);
    let before = find_port(&without, "all").tx_packets;
    daemon.wait("packets go on", |s| find_port(s, "all").tx_packets > before + 1000);
    daemon.silence("c", "g");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn one_that_ends_without_having_connected_is_reported() {
    if !can(&["sh"]) {
        return;
    }
    let body = port("g", "gen", "rate = 10")
        + &port("n", "sink", "")
        + "[[service]]\nname = \"mute\"\nkind = \"foreign\"\nvia = \"memif\"\nexec = \"/bin/sh\"\n\
           args = [\"-c\", \"test -S $SLUICE_IN && test -S $SLUICE_OUT && sleep 0.3\"]\n"
        + &chain("c", "g", &["mute"], "n", "");
    let folder = crate::support::open_folder();
    let output = crate::support::refusal(folder.path(), &(crate::support::head(folder.path(), "") + &body));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("mute.0 ended before it was given packets"), "{said}");
    assert!(!folder.path().join("run").exists(), "{said}");
}

#[test]
fn a_program_that_was_fed_when_a_tenant_was_alone_stays_with_that_tenant() {
    if !can(&["dpdk-testpmd"]) {
        return;
    }
    let program = testpmd("memif-red", "memif");
    let red = |hops: &[&str]| {
        port("g", "gen", "rate = 10000\nflows = 16")
            + &port("all", "sink", "")
            + &service("r", "sluice-nf-bridge", "tenant = \"red\"")
            + &chain("c", "g", hops, "all", "")
    };
    let blue = |hops: &[&str]| {
        port("h", "gen", "rate = 10000\nflows = 16\nsrc = \"198.19.0.0\"")
            + &port("others", "sink", "")
            + &service("b", "sluice-nf-bridge", "tenant = \"blue\"")
            + &chain("d", "h", hops, "others", "")
    };
    let with = &["r", "memif-red"][..];
    let mut daemon = Daemon::start("", &(red(with) + &program));
    daemon.wait("packets pass it", |s| find_port(s, "all").tx_packets > 1000);
    let apply = |daemon: &Daemon, body: &str| {
        let config = head(daemon.folder(), "") + body;
        daemon.client().apply(&Apply { config, file: None, dry_run: false }).map_err(|error| error.to_string())
    };
    let shared = red(with) + &program + &blue(&["b", "memif-red"]);
    let said = apply(&daemon, &shared).unwrap_err();
    assert!(said.contains("service `memif-red`") && said.contains("tenant `red`"), "{said}");
    assert!(daemon.stats().services.iter().all(|service| service.name != "b"), "nothing has changed");
    // Another tenant may have chains beside it.
    apply(&daemon, &(red(with) + &program + &blue(&["b"]))).unwrap();
    daemon.wait("packets of both", |s| find_port(s, "others").tx_packets > 1000);
    assert!(apply(&daemon, &shared).unwrap_err().contains("service `memif-red`"));
    // What the message proposes works: its output is then received where no NF reads it.
    apply(&daemon, &(red(&["r"]) + &blue(&["b"]))).unwrap();
    apply(&daemon, &shared).unwrap();
    let before = daemon.stats();
    let more =
        |s: &sluice_api::model::Stats, port: &str| find_port(s, port).tx_packets > find_port(&before, port).tx_packets + 1000;
    daemon.wait("packets of both pass it", |s| more(s, "all") && more(s, "others"));
    daemon.stop();
}
