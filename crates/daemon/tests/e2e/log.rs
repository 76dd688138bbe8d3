//! The daemon's log: its loss, or what others write to it, ends or hides nothing.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sluice_api::model::NfState;

use crate::support::{Daemon, PATIENCE, chain, command, find_nf, find_port, head, hostile_nf, open_folder, port, service, signal};

/// A chain under load with one NF.
fn one(nf: &str) -> String {
    port("load", "gen", "rate = 5000\nflows = 8")
        + &port("away", "sink", "")
        + nf
        + &chain("c", "load", &["b"], "away", "on_failure = \"restart\"")
}

#[test]
fn a_daemon_whose_log_nobody_reads_any_more_goes_on() {
    let body = one(&service("b", "sluice-nf-bridge", ""));
    let mut daemon = Daemon::start_on_socket("", &body, false);
    let stats = daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 500);
    // It would log this death, and cannot.
    signal(find_nf(&stats, "b.0"), Signal::KILL);
    let back = daemon.wait("b.0 is back", |s| find_nf(s, "b.0").restarts == 1 && find_nf(s, "b.0").state == NfState::Running);
    assert!(!daemon.log().contains("has ended"), "{}", daemon.log());
    let before = find_port(&back, "away").tx_packets;
    daemon.wait("its chain delivers", |s| find_port(s, "away").tx_packets > before + 500);
    daemon.silence("c", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn an_nf_cannot_close_empty_or_clog_the_log_of_the_daemon() {
    // It shuts its streams down and ends, again after each restart.
    let body = one(&service("b", &hostile_nf(), "args = [\"hostile-nf\", \"hangup\"]"));
    for on_socket in [true, false] {
        let mut daemon = if on_socket { Daemon::start_on_socket("", &body, true) } else { Daemon::start("", &body) };
        daemon.wait("it has hung up twice", |s| find_nf(s, "b.0").restarts >= 2);
        daemon.wait_for_log("sluiced: b.0 has ended after ");
        daemon.wait_for_log("b.0: xxxx");
        daemon.silence("c", "load");
        daemon.wait_until_empty();
        let log = daemon.stop_and_log();
        assert!(log.contains("sluiced: ready"), "{log:.2000}");
        assert!(log.lines().filter(|line| line.contains("xxxx")).all(|line| line.starts_with("b.0: ")), "{log:.2000}");
        assert!(log.len() < 1 << 20, "{} bytes", log.len());
    }
}

#[test]
fn as_json_each_line_is_an_object() {
    let folder = open_folder();
    let body = one(&service("b", &hostile_nf(), "args = [\"hostile-nf\", \"hangup\"]"));
    std::fs::write(folder.path().join("sluice.toml"), head(folder.path(), "") + &body).unwrap();
    let mut child = command(folder.path()).args(["--log", "json"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut wanted = vec![
        ("info", "sluiced", "ready; "),
        ("info", "output", "xxxx"),
        ("warn", "sluice_manager::supervisor", "b.0 has ended after "),
    ];
    let until = Instant::now() + PATIENCE;
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let text = |key: &str| event[key].as_str().unwrap();
        assert!(text("time").ends_with('Z'), "{event}");
        assert_eq!(event["fields"]["nf"].as_str(), (text("target") == "output").then_some("b.0"), "{event}");
        let waits = !wanted.is_empty();
        wanted.retain(|(level, target, what)| {
            (text("level"), text("target")) != (*level, *target) || !text("message").starts_with(what)
        });
        if waits && (wanted.is_empty() || Instant::now() > until) {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        }
    }
    assert!(child.wait().unwrap().success() && wanted.is_empty(), "{wanted:?}");
}

#[test]
fn levels_choose_what_is_logged() {
    let refused = |level: &str| {
        let folder = open_folder();
        std::fs::write(folder.path().join("sluice.toml"), "[manager]\nodd = 1\n").unwrap();
        command(folder.path()).env("SLUICE_LOG", level).output().unwrap()
    };
    let said = |level: &str| String::from_utf8(refused(level).stderr).unwrap();
    assert!(said("error").ends_with(": nothing was started\n"), "{}", said("error"));
    assert_eq!(said("off"), "");
    assert!(said("wran").contains("is no level: write error, warn"), "{}", said("wran"));
    assert_eq!(refused("off").status.code(), Some(1));
}
