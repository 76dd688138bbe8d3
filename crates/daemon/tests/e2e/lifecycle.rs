//! Start, flow, stop; a stop, a crash and a refusal leave nothing behind.

use rustix::process::Signal;
use sluice_api::model::NfState;

use crate::support::{Daemon, PATIENCE, awkward_nf, chain, command, find_port, head, open_folder, port, refusal, service};

const PACKETS: u64 = 20_000;

fn counted(services: &[&str], keys: &str) -> String {
    let mut text = port("in", "gen", &format!("count = {PACKETS}\nflows = 16\noverload = \"wait\"")) + &port("out", "sink", "");
    services.iter().for_each(|name| text += &service(name, "sluice-nf-bridge", keys));
    text + &chain("c", "in", services, "out", "")
}

fn endless() -> String {
    port("in", "gen", "rate = 20000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("a", "sluice-nf-bridge", "")
        + &service("b", "sluice-nf-bridge", "")
        + &chain("c", "in", &["a", "b"], "out", "")
}

#[test]
fn a_daemon_that_waits_for_an_nf_at_its_start_can_be_stopped() {
    let folder = open_folder();
    let file = folder.path().join("first");
    // The first of them makes its handler at once, and the second never.
    let body = service("slow", &awkward_nf(), &format!("args = [\"hang\", {file:?}]\ninstances = 2"));
    std::fs::write(folder.path().join("sluice.toml"), head(folder.path(), "") + &body).unwrap();
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let mut daemon = command(folder.path()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    let began = std::time::Instant::now();
    while !file.exists() {
        assert!(began.elapsed() < PATIENCE, "no NF has started");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), Signal::TERM).unwrap();
    let status = loop {
        if let Some(status) = daemon.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > PATIENCE {
            daemon.kill().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let said = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(status.success() && said.contains("stopped before its NFs were ready"), "{status}: {said}");
    assert!(std::fs::read_dir(folder.path().join("run")).is_err(), "nothing is left of it");
}

#[test]
fn every_packet_passes_three_sleeping_nfs_and_a_stop_leaves_nothing() {
    let mut daemon = Daemon::start("", &counted(&["a", "b", "c"], "mode = \"sleep\"\nring = 128"));
    daemon.wait_for_all("in", "out", PACKETS);
    let stats = daemon.stats();
    assert!(stats.nfs.iter().all(|nf| nf.rx_packets == PACKETS && nf.tx_packets == PACKETS && nf.violations == 0), "{stats:#?}");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn every_packet_passes_a_polling_nf() {
    let mut daemon = Daemon::start("", &counted(&["a"], "mode = \"poll\""));
    daemon.wait_for_all("in", "out", PACKETS);
    daemon.stop();
}

#[test]
fn a_stop_under_load_leaves_nothing() {
    let mut daemon = Daemon::start("", &endless());
    daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 1000);
    daemon.stop();
}

#[test]
fn two_managers_never_share_a_folder() {
    let mut daemon = Daemon::start("", &endless());
    let second = command(daemon.folder()).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("another sluiced") && said.lines().count() == 1, "{said}");
    let before = find_port(&daemon.stats(), "out").tx_packets;
    daemon.wait("the first goes on", |s| find_port(s, "out").tx_packets > before);
    daemon.stop();
}

#[test]
fn a_start_cleans_up_after_a_manager_that_was_killed() {
    let mut daemon = Daemon::start("", &endless());
    daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 1000);
    assert_eq!(daemon.end(Signal::KILL).code(), None);
    daemon.wait_until_nfs_are_gone();
    assert!(daemon.run_dir().join("nf.sock").exists(), "a kill -9 leaves the sockets for the next start");
    let mut daemon = Daemon::again(daemon.into_folder());
    let stats = daemon.wait("packets flow again", |s| find_port(s, "out").tx_packets > 1000);
    assert!(stats.nfs.iter().all(|nf| nf.state == NfState::Running), "{stats:#?}");
    daemon.stop();
}

#[test]
fn a_wrong_configuration_starts_nothing() {
    let folder = crate::support::open_folder();
    let output = refusal(folder.path(), &(head(folder.path(), "") + &endless().replace("egress = \"out\"", "egress = \"oot\"")));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("oot") && said.contains("out"), "{said}");
    assert!(!folder.path().join("run").exists());
}

#[test]
fn without_descriptors_the_operator_is_heard() {
    let body = port("in", "gen", "rate = 1000") + &port("out", "sink", "") + &service("a", "sluice-nf-bridge", "");
    let mut daemon = Daemon::start("", &(body + &chain("c", "in", &["a"], "out", "")));
    let pid = rustix::process::Pid::from_raw(daemon.pid() as i32);
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // What it has open now, and a few more. What the test leaves open for children is far above.
    let numbers = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let numbers = numbers.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u64>().ok());
    let limit = numbers.filter(|n| *n < 200).max().unwrap() + 12;
    rustix::process::prlimit(
        pid,
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: Some(limit), maximum: before.maximum },
    )
    .unwrap();
    // More NFs than there are descriptors for; they may fail.
    for _ in 0..12 {
        let _ = daemon.client().add_nf("a", None);
    }
    for _ in 0..20 {
        daemon.stats();
    }
    daemon.client().force_remove_nf("a.0").unwrap();
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, before).unwrap();
    daemon.stop();
}
