//! NFs that die, panic or hang: policies hold, no frame leaks, others lose nothing.

use rustix::process::Signal;
use sluice_api::health::DeathCause;
use sluice_api::model::{Apply, ChainState, NfState, Stats, TraceRequest};

use crate::support::{Daemon, chain, command, find_chain, find_nf, find_port, head, hostile_nf, port, service, signal};
use crate::support::{is_alive, open_nf, parent, wait_until_gone};

const PACKETS: u64 = 5_000;

/// A chain under load whose NF `b` fails, and another that must not notice.
fn two_chains(middle: &str, policy: &str) -> String {
    let mut text = port("load", "gen", "rate = 5000\nflows = 8") + &port("away", "sink", "");
    text += &port("steady", "gen", &format!("rate = 5000\ncount = {PACKETS}\nflows = 8\noverload = \"wait\""));
    text += &port("all", "sink", "");
    for name in ["a", "c", "s", "t"] {
        text += &service(name, "sluice-nf-bridge", "");
    }
    text += middle;
    text += &chain("faulty", "load", &["a", "b", "c"], "away", &format!("on_failure = \"{policy}\""));
    text + &chain("healthy", "steady", &["s", "t"], "all", "")
}

fn bridge() -> String {
    service("b", "sluice-nf-bridge", "")
}

/// Kills `b` while packets pass through it.
fn kill_b(daemon: &mut Daemon) {
    let stats = daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 500 && find_port(s, "all").tx_packets > 500);
    signal(find_nf(&stats, "b.0"), Signal::KILL);
}

/// Checks that the other chain lost nothing and all frames came back.
fn settle(mut daemon: Daemon) {
    daemon.wait_for_all("steady", "all", PACKETS);
    daemon.silence("faulty", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_killed_nf_is_started_again() {
    let mut daemon = Daemon::start("", &two_chains(&bridge(), "restart"));
    kill_b(&mut daemon);
    let back = daemon.wait("b.0 is back", |s| find_nf(s, "b.0").restarts == 1 && find_nf(s, "b.0").state == NfState::Running);
    let before = find_port(&back, "away").tx_packets;
    daemon.wait("its chain delivers", |s| find_port(s, "away").tx_packets > before + 500);
    settle(daemon);
}

#[test]
fn the_first_restart_is_at_once_and_waits_for_no_tick() {
    let mut text = port("load", "gen", "rate = 1000\nflows = 8") + &port("away", "sink", "");
    text += &service("b", "sluice-nf-bridge", "instances = 8");
    text += &chain("c", "load", &["b"], "away", "");
    let mut daemon = Daemon::start("", &text);
    let stats = daemon.stats();
    // Each dies for the first time: a query finds its old process or the next, and no wait.
    for nf in &stats.nfs {
        signal(nf, Signal::KILL);
        daemon.wait("it is started again", |s| {
            let now = find_nf(s, &nf.name);
            assert_ne!(now.state, NfState::Restarting, "{} waits", nf.name);
            now.restarts == 1
        });
    }
    daemon.silence("c", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_killed_nf_is_left_out() {
    let mut daemon = Daemon::start("", &two_chains(&bridge(), "bypass"));
    kill_b(&mut daemon);
    let bypassing = daemon.wait("the hop is left out", |s| find_chain(s, "faulty").state == ChainState::Bypassing);
    assert_eq!(find_nf(&bypassing, "b.0").state, NfState::Failed);
    assert_eq!(find_nf(&bypassing, "b.0").frames_held, 0);
    let before = find_port(&bypassing, "away").tx_packets;
    daemon.wait("its chain delivers", |s| find_port(s, "away").tx_packets > before + 500);
    settle(daemon);
}

#[test]
fn the_packets_of_a_killed_nf_are_dropped_at_the_door() {
    let mut daemon = Daemon::start("", &two_chains(&bridge(), "drop"));
    kill_b(&mut daemon);
    daemon.wait("the chain is down", |s| find_chain(s, "faulty").state == ChainState::Down);
    daemon.wait("packets are refused", |s| s.drops.get("nf_down").is_some_and(|n| *n > 500));
    let stats = daemon.stats();
    assert_eq!((find_nf(&stats, "b.0").state, find_nf(&stats, "b.0").frames_held), (NfState::Failed, 0));
    let request = TraceRequest { chain: Some("faulty".into()), count: 3, timeout_ms: 20_000, ..TraceRequest::default() };
    let trace = daemon.client().trace(&request).unwrap();
    assert!(trace.packets.len() == 3 && trace.packets.iter().all(|packet| packet.outcome == "dropped: nf_down"), "{trace:?}");
    // Another instance reopens the chain.
    daemon.client().add_nf("b", None).unwrap();
    let before = find_port(&stats, "away").tx_packets;
    daemon.wait("its chain delivers", |s| find_port(s, "away").tx_packets > before + 500);
    settle(daemon);
}

/// `make deaths PROCESS_DEATHS=1000` sets the number of deaths.
/// An NF that died often waits longer before it restarts, so more deaths take more instances.
#[test]
fn after_many_deaths_under_load_no_frame_is_lost_or_doubled_and_no_credit_is_missing() {
    const RING: u64 = 64;
    let deaths: u64 = std::env::var("SLUICE_DEATHS").map_or(12, |n| n.parse().expect("SLUICE_DEATHS is a number"));
    let instances = 1 + deaths / 50;
    let names = ["a", "b", "c"];
    // Two packet threads at full rate, which also serve the NFs. Flows end, so each NF has some.
    let load = "protocol = \"tcp\"\nsize = 70\nflows = 256\nflow_packets = 100\nqueues = 2";
    let mut text = port("load", "gen", load) + &port("away", "sink", "");
    for (name, core) in names.into_iter().zip([0, 1, 1]) {
        text += &service(name, "sluice-nf-bridge", &format!("cores = [{core}]\nring = {RING}\ninstances = {instances}"));
    }
    text += &chain("c", "load", &names, "away", "on_failure = \"restart\"");
    let mut daemon = Daemon::start("rx = [0, 1]\ntx = [0, 1]\nwakeup = [0]\nmonitor = [0]", &text);
    for death in 0..deaths {
        // The first, the middle and the last service in turn.
        let service = names[death as usize % names.len()];
        let mut sent = None;
        let mut next = None;
        daemon.wait(&format!("packets flow, and an NF of {service} runs, after {death} deaths"), |s| {
            let now = find_port(s, "away").tx_packets;
            let running = s.nfs.iter().filter(|nf| nf.service == service && nf.state == NfState::Running);
            next = running.min_by_key(|nf| nf.restarts).cloned();
            now > *sent.get_or_insert(now) + 1_000 && next.is_some()
        });
        signal(&next.expect("one runs"), Signal::KILL);
    }
    let stats = daemon.wait("all run again", |s| {
        s.nfs.iter().map(|nf| nf.restarts).sum::<u64>() == deaths && s.nfs.iter().all(|nf| nf.state == NfState::Running)
    });
    // A missing credit would leave fewer slots than the rings have.
    let last: Vec<_> = stats.nfs.iter().filter(|nf| nf.service == "c").collect();
    last.iter().for_each(|nf| signal(nf, Signal::STOP));
    let held = |s: &Stats| s.nfs.iter().map(|nf| nf.frames_held).sum::<u64>();
    daemon.wait("as many packets inside as the rings hold", |s| held(s) == RING * instances);
    last.iter().for_each(|nf| signal(nf, Signal::CONT));
    daemon.silence("c", "load");
    daemon.wait_until_empty();
    let stats = daemon.stats();
    let away = find_port(&stats, "away");
    assert_eq!((away.details["unstamped"], away.details["duplicated"]), (0.0, 0.0), "{:?}", away.details);
    daemon.stop();
}

#[test]
fn other_instances_come_for_those_that_have_failed_and_go_where_none_is_wanted() {
    let on = |cores: &str| {
        let instances = cores.split(',').count();
        let keys = format!("instances = {instances}\ncores = [{cores}]");
        two_chains(&service("b", "sluice-nf-bridge", &keys), "drop")
    };
    let mut daemon = Daemon::start("", &on("0, 1, 1"));
    daemon.wait("all run", |s| (0..3).all(|i| find_nf(s, &format!("b.{i}")).state == NfState::Running));
    let stats = daemon.stats();
    signal(find_nf(&stats, "b.1"), Signal::KILL);
    daemon.wait("one has failed", |s| find_nf(s, "b.1").state == NfState::Failed);
    let third = find_nf(&stats, "b.2").pid;
    // The instance on core 0 is surplus, and one on core 1 is missing.
    let config = head(daemon.folder(), "") + &on("1, 1");
    let changes = daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap().changes;
    assert_eq!(
        changes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["- instances b: cores 0, 1, 1 → 1, 1; instances 3 → 2"]
    );
    let names = |s: &Stats| {
        let own = s.nfs.iter().filter(|nf| nf.service == "b");
        own.map(|nf| (nf.name.clone(), nf.core, nf.state)).collect::<Vec<_>>()
    };
    let running = |name: &str| (name.to_string(), 1, NfState::Running);
    let stats = daemon.wait("two on core 1", |s| names(s) == [running("b.2"), running("b.3")]);
    assert_eq!(find_nf(&stats, "b.2").pid, third, "it goes on");
    settle(daemon);
}

#[test]
fn a_program_that_starts_the_nf_ends_with_it() {
    let folder = crate::support::open_folder();
    let script = folder.path().join("wrapper");
    // It starts the NF as its child, and continues when the NF has ended.
    let text = format!("#!/bin/sh\n{} \"$@\"\nsleep 1000\n", open_nf(folder.path(), "sluice-nf-bridge"));
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let body = two_chains(&service("b", &script.display().to_string(), ""), "restart");
    let mut daemon = Daemon::start("", &body);
    let stats = daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 500);
    let first = find_nf(&stats, "b.0").clone();
    let wrapper = parent(first.pid.unwrap());
    assert_eq!(parent(wrapper), daemon.pid(), "the wrapper is the daemon's child");
    // The NF dies, and is started again through another wrapper.
    signal(&first, Signal::KILL);
    let back = daemon.wait("b.0 is back", |s| find_nf(s, "b.0").restarts == 1 && find_nf(s, "b.0").state == NfState::Running);
    wait_until_gone(wrapper);
    let second = parent(find_nf(&back, "b.0").pid.unwrap());
    assert_ne!(second, wrapper);
    daemon.client().add_nf("b", None).unwrap();
    daemon.client().remove_nf("b.0").unwrap();
    wait_until_gone(second);
    let stats = daemon.wait("b.1 runs", |s| find_nf(s, "b.1").state == NfState::Running);
    let third = parent(find_nf(&stats, "b.1").pid.unwrap());
    settle(daemon);
    assert!(!is_alive(third), "a stop leaves no wrapper behind");
}

#[test]
fn a_panic_ends_the_nf_and_nothing_else() {
    let panics = service("b", &hostile_nf(), "args = [\"hostile-nf\", \"panic\"]");
    let mut daemon = Daemon::start("", &two_chains(&panics, "drop"));
    daemon.wait("it has ended", |s| find_nf(s, "b.0").state == NfState::Failed);
    // An NF's output goes to the daemon's log, under its name.
    daemon.wait_for_log("b.0: thread 'main'");
    daemon.wait_for_log("b.0: as it was asked to");
    settle(daemon);
}

#[test]
fn an_nf_that_panics_again_and_again_is_started_with_pauses() {
    let panics = service("b", &hostile_nf(), "args = [\"hostile-nf\", \"panic\"]");
    let mut daemon = Daemon::start("", &two_chains(&panics, "restart"));
    daemon.wait("it was started thrice", |s| find_nf(s, "b.0").restarts >= 3);
    settle(daemon);
}

#[test]
fn an_nf_that_stands_still_is_stopped_and_started_again() {
    let mut daemon = Daemon::start("stall_ms = 2000", &two_chains(&bridge(), "restart"));
    let stats = daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 500);
    signal(find_nf(&stats, "b.0"), Signal::STOP);
    let back = daemon.wait("b.0 is back", |s| find_nf(s, "b.0").restarts >= 1 && find_nf(s, "b.0").state == NfState::Running);
    assert!(daemon.log().contains("b.0 holds packets and returns none"), "{}", daemon.log());
    let death = find_nf(&back, "b.0").last_death.as_ref().expect("it has died");
    assert!(death.cause == DeathCause::Stalled && death.what.contains("held packets for 2000 ms and returned none"), "{death:?}");
    let before = find_port(&back, "away").tx_packets;
    daemon.wait("its chain delivers", |s| find_port(s, "away").tx_packets > before + 500);
    settle(daemon);
}

#[test]
fn packets_before_a_killed_nf_do_not_block_its_successor() {
    // The one that is stopped is not to be ended, however long this takes.
    let mut daemon = Daemon::start("stall_ms = 600000", &two_chains(&bridge(), "restart"));
    let stats = daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 500);
    signal(find_nf(&stats, "a.0"), Signal::STOP);
    let stats = daemon.wait("packets stand before b", |s| find_nf(s, "a.0").frames_held > 100);
    signal(find_nf(&stats, "b.0"), Signal::KILL);
    let back = daemon.wait("b.0 is back", |s| find_nf(s, "b.0").restarts == 1 && find_nf(s, "b.0").state == NfState::Running);
    signal(find_nf(&back, "a.0"), Signal::CONT);
    let before = find_port(&back, "away").tx_packets;
    daemon.wait("the chain delivers", |s| find_port(s, "away").tx_packets > before + 5_000);
    settle(daemon);
}

#[test]
fn a_runtime_directory_that_is_removed_is_made_again() {
    let mut text = port("load", "gen", "rate = 1000\nflows = 8") + &port("away", "sink", "");
    text += &service("b", "sluice-nf-bridge", "");
    text += &chain("c", "load", &["b"], "away", "");
    let mut daemon = Daemon::start("", &text);
    let first = find_nf(&daemon.stats(), "b.0").clone();
    std::fs::remove_dir_all(daemon.run_dir()).unwrap();
    daemon.wait_for_log("the runtime directory");
    daemon.wait_for_log("control.sock was removed; it is there again");
    // No other daemon can start here, and NFs still find this one.
    let other = command(daemon.folder()).output().unwrap();
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success() && said.contains(&format!("another sluiced (pid {}) runs in", daemon.pid())), "{said}");
    signal(&first, Signal::KILL);
    let stats = daemon.wait("b.0 is back", |s| find_nf(s, "b.0").restarts == 1 && find_nf(s, "b.0").state == NfState::Running);
    let before = find_port(&stats, "away").tx_packets;
    daemon.wait("its chain delivers", |s| find_port(s, "away").tx_packets > before + 500);
    daemon.stop();
}
