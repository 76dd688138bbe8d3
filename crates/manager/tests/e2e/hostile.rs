//! NFs that break the rules hurt nobody but themselves, and are stopped past their limit.

use sluice_manager::control::model::NfState;

use crate::support::{Daemon, chain, find_nf, hostile_nf, port, service};

const PACKETS: u64 = 5_000;

/// Runs a chain with a hostile NF beside a healthy one on the same core. Says how often the hostile one was caught.
fn beside_a_healthy_chain(mode: &str) -> u64 {
    let mut text = port("load", "gen", "rate = 5000\nflows = 8") + &port("away", "sink", "");
    text += &port("steady", "gen", &format!("rate = 5000\ncount = {PACKETS}\nflows = 8\noverload = \"wait\""));
    text += &port("all", "sink", "");
    for name in ["front", "s", "t"] {
        text += &service(name, "sluice-nf-bridge", "");
    }
    text += &service("bad", &hostile_nf(), &format!("args = [{mode:?}]"));
    text += &chain("hostile", "load", &["front", "bad"], "away", "on_failure = \"drop\"");
    text += &chain("healthy", "steady", &["s", "t"], "all", "");
    let mut daemon = Daemon::start("stall_ms = 2000", &text);
    let stats = daemon.wait("it is stopped", |s| find_nf(s, "bad.0").state == NfState::Failed);
    let violations = find_nf(&stats, "bad.0").violations;
    assert_eq!(find_nf(&stats, "bad.0").frames_held, 0);
    daemon.wait_for_all("steady", "all", PACKETS);
    let stats = daemon.stats();
    for nf in stats.nfs.iter().filter(|nf| nf.name != "bad.0") {
        assert_eq!((nf.state, nf.restarts, nf.violations), (NfState::Running, 0, 0), "{}", nf.name);
    }
    daemon.silence("hostile", "load");
    daemon.wait_until_empty();
    daemon.stop();
    violations
}

#[test]
fn one_that_is_started_again_breaks_the_rules_again_after_longer_and_longer_pauses() {
    let text = port("load", "gen", "rate = 5000\nflows = 8")
        + &port("away", "sink", "")
        + &service("bad", &hostile_nf(), "args = [\"random\"]")
        + &chain("hostile", "load", &["bad"], "away", "on_failure = \"restart\"");
    let mut daemon = Daemon::start("", &text);
    let stats = daemon.wait("it was stopped twice", |s| find_nf(s, "bad.0").stops >= 2);
    let bad = find_nf(&stats, "bad.0");
    assert!(bad.restarts >= 1 && bad.restarts <= bad.stops && bad.violations > 2 * LIMIT, "{bad:?}");
    let log = daemon.log();
    assert!(log.contains("bad.0 has ended after ") && log.contains(" and is restarting now, for "), "{log}");
    daemon.silence("hostile", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

/// The default of `manager.max_violations`.
const LIMIT: u64 = 64;

#[test]
fn random_descriptors() {
    assert!(beside_a_healthy_chain("random") > LIMIT);
}

#[test]
fn replayed_descriptors() {
    assert!(beside_a_healthy_chain("replay") > LIMIT);
}

#[test]
fn wild_cursors() {
    assert!(beside_a_healthy_chain("cursors") > LIMIT);
}

#[test]
fn lengths_past_the_frame() {
    assert!(beside_a_healthy_chain("lengths") > LIMIT);
}

#[test]
fn noise_all_over_its_region_and_core_page() {
    assert!(beside_a_healthy_chain("scribble") > LIMIT);
}

#[test]
fn never_reading() {
    assert_eq!(beside_a_healthy_chain("deaf"), 0);
}

#[test]
fn never_writing() {
    assert_eq!(beside_a_healthy_chain("mute"), 0);
}
