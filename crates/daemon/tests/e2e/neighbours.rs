//! NFs of one core and tenant: whatever one does, the others go on.

use rustix::process::Signal;
use sluice_api::model::NfState;

use crate::support::{Daemon, awkward_nf, chain, find_nf, find_port, nf, open_folder, port, service, signal};

const PACKETS: u64 = 5_000;

/// A chain `poor` whose NF `b` does what `args` say, beside another, on one core.
/// The other must not notice; `overload` is what its port does without free slots.
fn beside_one(args: &[&str], policy: &str, overload: &str) -> String {
    beside_those(args, policy, overload, &nf("sluice-nf-bridge"), "")
}

/// As [`beside_one`]; the other NFs run `exec`, with `keys`.
fn beside_those(args: &[&str], policy: &str, overload: &str, exec: &str, keys: &str) -> String {
    let mut text = port("load", "gen", "rate = 5000\nflows = 8") + &port("away", "sink", "");
    text += &port("steady", "gen", &format!("rate = 5000\ncount = {PACKETS}\nflows = 8\noverload = \"{overload}\""));
    text += &port("all", "sink", "");
    for name in ["a", "s", "t"] {
        text += &service(name, exec, keys);
    }
    text += &service("b", &awkward_nf(), &format!("args = {args:?}"));
    text += &chain("poor", "load", &["a", "b"], "away", &format!("on_failure = \"{policy}\""));
    text + &chain("healthy", "steady", &["s", "t"], "all", "")
}

/// The NF that stands still is not ended, however long that takes.
fn beside(args: &[&str], policy: &str) -> Daemon {
    Daemon::start("stall_ms = 600000", &beside_one(args, policy, "wait"))
}

/// Checks that most packets of the other chain arrive, beside `b` and afterwards.
/// Its port drops what finds no free slot: a neighbour that keeps the core costs most of them.
/// A generator without its core skips packets, so a busy host changes nothing.
fn settle(args: &[&str]) {
    deliver(args, Daemon::start("", &beside_one(args, "drop", "drop")));
}

fn deliver(args: &[&str], mut daemon: Daemon) {
    daemon.wait("the other chain delivers", |s| find_port(s, "all").tx_packets > PACKETS / 4);
    let stats = daemon.wait("most has come", |s| find_port(s, "steady").rx_packets > PACKETS * 3 / 4);
    let refused = find_port(&stats, "steady").entry_drops;
    assert!(refused < PACKETS / 4, "{refused} packets were refused while {args:?} was there");
    daemon.silence("poor", "load");
    let stats = daemon.stats();
    if find_nf(&stats, "b.0").pid.is_some() {
        signal(find_nf(&stats, "b.0"), Signal::KILL);
    }
    let stats = daemon.wait("all have come and gone", |s| {
        let (steady, all) = (find_port(s, "steady"), find_port(s, "all"));
        let stamped = all.details.get("stamped").is_some_and(|n| *n >= all.tx_packets as f64);
        steady.finished && all.tx_packets + steady.entry_drops == steady.rx_packets && stamped
    });
    let (steady, all) = (find_port(&stats, "steady"), find_port(&stats, "all"));
    assert!(steady.entry_drops < PACKETS / 4, "{} packets were refused", steady.entry_drops);
    for (what, most) in [("lost", steady.entry_drops as f64), ("reordered", 0.0), ("duplicated", 0.0)] {
        assert!(all.details[what] <= most, "{what}: {:?}", all.details);
    }
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
    // The next one attaches, and is never ready.
    let attached = |s: &sluice_api::model::Stats| {
        let b = find_nf(s, "b.0");
        b.state == NfState::Starting && b.pid.is_some() && b.pid != gone
    };
    daemon.wait("it is started again", attached);
    daemon.wait_for_all("steady", "all", PACKETS);
    let stats = daemon.stats();
    assert!(attached(&stats), "{:?}", find_nf(&stats, "b.0").state);
    assert_eq!(find_nf(&stats, "b.0").frames_held, 0, "no packets wait for it");
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
    settle(&["block", "10"]);
}

#[test]
fn noise_all_over_the_core_page() {
    settle(&["noise"]);
}

#[test]
fn noise_all_over_the_core_page_and_a_region() {
    settle(&["flood", "100"]);
}

#[test]
fn all_bits_of_the_core_page_set() {
    settle(&["bits"]);
}

#[test]
fn the_core_claimed_and_all_others_said_to_wait() {
    settle(&["claim", "1"]);
}

#[test]
fn a_slot_that_no_nf_has_said_to_go_first() {
    settle(&["ghost"]);
}

#[test]
fn wakes_that_are_stolen() {
    settle(&["steal", "32"]);
}

#[test]
fn doorbells_that_a_neighbour_waits_on_as_for_a_lock() {
    settle(&["lock"]);
}

/// As on a kernel before 5.16.
#[test]
fn wakes_that_are_stolen_from_nfs_that_cannot_wait_for_two_doorbells() {
    let args = ["steal", "32"];
    deliver(&args, Daemon::start("", &beside_those(&args, "drop", "drop", &awkward_nf(), "args = [\"old\"]")));
}

#[test]
fn sleepers_that_are_moved_off_their_doorbells() {
    settle(&["requeue"]);
}

/// Only words that the manager does not rewrite each time: no lie shows at once.
#[test]
fn the_core_claimed_and_all_others_said_to_have_neither_packets_nor_budget() {
    settle(&["quiet", "3"]);
}
