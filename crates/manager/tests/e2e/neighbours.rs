//! NFs of one core and tenant: whatever one of them does, or does not do, the others go on.

use rustix::process::Signal;
use sluice_manager::control::model::NfState;

use crate::support::{Daemon, awkward_nf, chain, find_nf, find_port, nf, open_folder, port, service, signal};

const PACKETS: u64 = 5_000;

/// A chain `poor` with an NF `b` that does what its arguments say, and beside it one that must not notice, all on one core.
fn beside(args: &[&str], policy: &str) -> Daemon {
    let mut text = port("load", "gen", "rate = 5000\nflows = 8") + &port("away", "sink", "");
    text += &port("steady", "gen", &format!("rate = 5000\ncount = {PACKETS}\nflows = 8\noverload = \"wait\""));
    text += &port("all", "sink", "");
    for name in ["a", "s", "t"] {
        text += &service(name, &nf("sluice-nf-bridge"), "");
    }
    text += &service("b", &awkward_nf(), &format!("args = {args:?}"));
    text += &chain("poor", "load", &["a", "b"], "away", &format!("on_failure = \"{policy}\""));
    text += &chain("healthy", "steady", &["s", "t"], "all", "");
    Daemon::start("", &text)
}

/// All packets of the other chain arrive while `b` is there, and those that come when it has been stopped.
fn settle(mut daemon: Daemon) {
    daemon.wait("the other chain delivers", |s| find_port(s, "all").tx_packets > PACKETS / 4);
    daemon.silence("poor", "load");
    let stats = daemon.stats();
    if find_nf(&stats, "b.0").pid.is_some() {
        signal(find_nf(&stats, "b.0"), Signal::KILL);
    }
    daemon.wait_for_all("steady", "all", PACKETS);
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn one_that_is_slow_to_make_its_handler_is_given_no_packets_until_it_has() {
    let folder = open_folder();
    let mark = folder.path().join("made");
    let mut daemon = beside(&["hang", mark.to_str().unwrap()], "restart");
    let stats = daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 100);
    let gone = find_nf(&stats, "b.0").pid;
    signal(find_nf(&stats, "b.0"), Signal::KILL);
    // The next one attaches, and never says that it is ready.
    let attached = |s: &sluice_manager::control::model::Stats| {
        let b = find_nf(s, "b.0");
        b.state == NfState::Starting && b.pid.is_some() && b.pid != gone
    };
    daemon.wait("it is started again", attached);
    daemon.wait_for_all("steady", "all", PACKETS);
    let stats = daemon.stats();
    assert!(attached(&stats), "{:?}", find_nf(&stats, "b.0").state);
    assert_eq!(find_nf(&stats, "b.0").frames_held, 0, "no packets wait for it");
    // It goes on: then they come.
    let before = find_port(&stats, "away").tx_packets;
    std::fs::remove_file(&mark).unwrap();
    daemon.wait("it runs", |s| find_nf(s, "b.0").state == NfState::Running && find_port(s, "away").tx_packets > before + 100);
    daemon.silence("poor", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn one_that_is_stopped_by_a_signal_stops_nobody_else() {
    let mut daemon = beside(&["block", "0"], "drop");
    let stats = daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 100);
    signal(find_nf(&stats, "b.0"), Signal::STOP);
    daemon.wait_for_all("steady", "all", PACKETS);
    let before = daemon.stats();
    signal(find_nf(&before, "b.0"), Signal::CONT);
    let before = find_port(&before, "away").tx_packets;
    daemon.wait("it goes on", |s| find_port(s, "away").tx_packets > before + 100);
    daemon.silence("poor", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn one_that_sleeps_in_its_handler_delays_nobody_else() {
    settle(beside(&["block", "10"], "drop"));
}

#[test]
fn noise_all_over_the_core_page() {
    settle(beside(&["noise"], "drop"));
}

#[test]
fn noise_all_over_the_core_page_and_a_region() {
    settle(beside(&["flood", "100"], "drop"));
}

#[test]
fn all_bits_of_the_core_page_set() {
    settle(beside(&["bits"], "drop"));
}

#[test]
fn the_core_claimed_and_all_others_said_to_wait() {
    settle(beside(&["claim", "1"], "drop"));
}

#[test]
fn wakes_that_are_stolen() {
    settle(beside(&["steal", "32"], "drop"));
}
