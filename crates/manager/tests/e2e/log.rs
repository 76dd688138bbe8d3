//! The daemon's log: nothing that becomes of it, and nothing that others write there, ends or hides
//! anything.

use rustix::process::Signal;
use sluice_api::model::NfState;

use crate::support::{Daemon, chain, find_nf, find_port, hostile_nf, port, service, signal};

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
    // It says so of each end and of each change that it reads, and cannot.
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
    // It shuts its streams down and ends, and does so again when it is restarted.
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
