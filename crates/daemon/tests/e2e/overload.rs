//! More packets than an NF can process, with and without backpressure.
//! With it, chains that pass the NF refuse them at the entry; without it, rings inside drop them.

use rustix::process::Signal;
use sluice_api::model::{EventKind, Stats};

use crate::support::{Daemon, chain, find_chain, find_nf, find_port, port, service, signal};

const PACKETS: u64 = 5_000;

/// A slow NF behind a fast one under full load, and a chain with a counted load.
fn heavy_and_light(light: &[&str], sched: &str) -> String {
    port("load", "gen", "flows = 8")
        + &port("away", "sink", "")
        + &port("steady", "gen", &format!("rate = 5000\ncount = {PACKETS}\nflows = 8\noverload = \"wait\""))
        + &port("all", "sink", "")
        + &service("fast", "sluice-nf-bridge", "ring = 256")
        + &service("slow", "sluice-nf-cost", "args = [\"--cycles\", \"20000\"]\nring = 256")
        + &service("light", "sluice-nf-bridge", "ring = 256")
        + &chain("heavy", "load", &["fast", "slow"], "away", "")
        + &chain("light", "steady", light, "all", "")
        + &format!("[sched]\n{sched}\n")
}

#[test]
fn a_bottleneck_throttles_its_chain_and_no_other() {
    // The chains share an NF before the bottleneck.
    let mut daemon = Daemon::start("", &heavy_and_light(&["fast", "light"], ""));
    daemon.wait("the bottleneck throttles", |s| find_nf(s, "slow.0").sched.throttles > 0);
    daemon.wait_for_all("steady", "all", PACKETS);
    let stats = daemon.wait("it was loaded for a while", |s| {
        find_nf(s, "slow.0").tx_packets > PACKETS && find_chain(s, "heavy").drops.get("entry").is_some_and(|n| *n > PACKETS)
    });
    let (heavy, light) = (find_chain(&stats, "heavy"), find_chain(&stats, "light"));
    assert_eq!(heavy.wasted, 0, "{heavy:#?}");
    assert_eq!(heavy.drops.keys().collect::<Vec<_>>(), ["entry"]);
    assert_eq!((light.entry_packets, light.exit_packets, light.drops.len()), (PACKETS, PACKETS, 0), "{light:#?}");
    // Decisions are events within a tenth of a second.
    let mut client = daemon.client();
    let mut events = Vec::new();
    daemon.wait("the throttle is reported", |_| {
        events = client.events().unwrap();
        events.iter().any(|event| event.nf == "slow.0" && event.event == EventKind::Throttle && event.count > 0)
    });
    assert!(events.is_sorted_by(|a, b| a.number < b.number && a.time_ns <= b.time_ns), "{events:#?}");
    // When the load ends, the bottleneck lets packets in again.
    daemon.silence("heavy", "load");
    daemon.wait_until_empty();
    daemon.wait("nobody is throttled or held any more", |s| s.nfs.iter().all(|nf| !nf.sched.throttled && !nf.sched.held));
    daemon.stop();
}

#[test]
fn those_before_a_bottleneck_are_held_and_none_of_their_packets_is_lost() {
    // NFs that hand over skip held NFs; where the manager wakes each NF, it skips them.
    for sched in ["", "handover = false"] {
        let text = port("in", "gen", "flows = 8")
            + &port("out", "sink", "")
            + &service("first", "sluice-nf-bridge", "ring = 256")
            + &service("second", "sluice-nf-bridge", "ring = 256")
            + &service("slow", "sluice-nf-cost", "args = [\"--cycles\", \"20000\"]\nring = 256")
            + &chain("c", "in", &["first", "second", "slow"], "out", "")
            + &format!("[sched]\n{sched}\n");
        let mut daemon = Daemon::start("", &text);
        daemon.wait("the bottleneck holds those before it", |s| {
            let [first, second, slow] = ["first.0", "second.0", "slow.0"].map(|name| find_nf(s, name).sched);
            assert!(!slow.held, "nobody is behind it: {s:#?}");
            slow.throttled && first.held && second.held && find_chain(s, "c").throttled
        });
        daemon.wait("it was loaded for a while", |s| find_port(s, "out").tx_packets > PACKETS);
        daemon.silence("c", "in");
        daemon.wait_until_empty();
        let stats = daemon.wait("nobody is throttled or held any more", |s| {
            s.nfs.iter().all(|nf| !nf.sched.throttled && !nf.sched.held) && !find_chain(s, "c").throttled
        });
        let chain = find_chain(&stats, "c");
        assert_eq!((chain.wasted, chain.entry_packets), (0, chain.exit_packets), "{chain:#?}");
        assert_eq!(chain.drops.keys().collect::<Vec<_>>(), ["entry"]);
        daemon.stop();
    }
}

#[test]
fn without_backpressure_full_rings_inside_drop() {
    let all_off = "backpressure = false\nweights = false\necn = false\nhandover = false";
    let mut daemon = Daemon::start("", &heavy_and_light(&["light"], all_off));
    let stats = daemon.wait("packets are dropped inside", |s| {
        let heavy = find_chain(s, "heavy");
        heavy.wasted > 1000 && heavy.drops.get("ring_full").is_some_and(|n| *n > 1000)
    });
    assert!(find_nf(&stats, "fast.0").tx_packets > 1000);
    daemon.wait_for_all("steady", "all", PACKETS);
    let stats = daemon.stats();
    let light = find_chain(&stats, "light");
    assert_eq!((light.wasted, light.drops.len()), (0, 0), "{light:#?}");
    assert!(stats.nfs.iter().all(|nf| nf.sched.throttles == 0 && nf.sched.marked == 0 && nf.hand_overs == 0), "{stats:#?}");
    assert_eq!(daemon.client().events().unwrap(), []);
    daemon.silence("heavy", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn every_packet_passes_nfs_that_the_manager_wakes_one_by_one() {
    let mut text = port("in", "gen", &format!("count = {PACKETS}\nflows = 16\noverload = \"wait\"")) + &port("out", "sink", "");
    ["a", "b", "c"].iter().for_each(|name| text += &service(name, "sluice-nf-bridge", "ring = 128"));
    text += &chain("c", "in", &["a", "b", "c"], "out", "");
    let mut daemon = Daemon::start("", &(text + "[sched]\nhandover = false\n"));
    daemon.wait_for_all("in", "out", PACKETS);
    let stats = daemon.stats();
    assert!(stats.nfs.iter().all(|nf| nf.hand_overs == 0 && nf.wakes > 0), "{stats:#?}");
    assert!(find_port(&stats, "in").entry_drops == 0);
    daemon.stop();
}

#[test]
fn chains_that_stand_still_one_after_another_leave_frames_to_those_that_go_on() {
    // Enough to use up all frames, if each took half of those left, and a burst at least.
    const STUCK: usize = 20;
    let mut text = port("load", "gen", &format!("rate = 100000\nflows = {STUCK}")) + &port("away", "sink", "");
    text += &port("steady", "gen", "rate = 5000\nflows = 8\nsrc = \"10.1.0.1\"\noverload = \"wait\"");
    text += &port("all", "sink", "");
    for i in 0..STUCK {
        text += &service(&format!("s{i}"), "sluice-nf-bridge", "");
        text += &format!("[[chain]]\nname = \"c{i}\"\nservices = [\"s{i}\"]\negress = \"away\"\n");
        text += &format!("[[rule]]\nsrc = \"10.0.0.{}\"\nchain = \"c{i}\"\n", i + 1);
    }
    text += &service("light", "sluice-nf-bridge", "");
    text += &chain("light", "steady", &["light"], "all", "");
    let mut daemon = Daemon::start("stall_ms = 600000", &text);
    let entry = |s: &Stats, i: usize| find_chain(s, &format!("c{i}")).drops.get("entry").copied().unwrap_or(0);
    let nf = |s: &Stats, i: usize| find_nf(s, &format!("s{i}.0")).clone();
    for i in 0..STUCK {
        let before = daemon.wait("packets flow", |s| find_chain(s, &format!("c{i}")).exit_packets > 0);
        signal(&nf(&before, i), Signal::STOP);
        daemon.wait("its chain takes no more", |s| entry(s, i) > entry(&before, i) + 100);
    }
    let before = daemon.stats();
    let stats =
        daemon.wait("the other chain goes on", |s| find_port(s, "all").tx_packets > find_port(&before, "all").tx_packets + PACKETS);
    assert_eq!(find_chain(&stats, "light").drops.len(), 0, "{:#?}", find_chain(&stats, "light"));
    assert!((0..STUCK).all(|i| nf(&stats, i).restarts == 0 && nf(&stats, i).frames_held > 0), "they stand still: {stats:#?}");
    (0..STUCK).for_each(|i| signal(&nf(&stats, i), Signal::CONT));
    daemon.client().remove_port("load").unwrap();
    daemon.silence("light", "steady");
    daemon.wait_until_empty();
    daemon.stop();
}
