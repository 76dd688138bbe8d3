//! NFs that break the rules harm only themselves, and are stopped past their limit.

use std::time::{Duration, Instant};

use sluice_api::health::DeathCause;
use sluice_api::model::NfState;

use crate::skip::skip;
use crate::support::{Daemon, PATIENCE, cgroup_of, chain, find_nf, find_port, hostile_nf, named, port, service, wait_until_none};

const PACKETS: u64 = 5_000;

/// A chain with a hostile NF beside a healthy one, on one core. The former's services have `keys`.
fn both_chains(mode: &str, keys: &str) -> String {
    let mut text = port("load", "gen", "rate = 5000\nflows = 8") + &port("away", "sink", "");
    text += &port("steady", "gen", &format!("rate = 5000\ncount = {PACKETS}\nflows = 8\noverload = \"wait\""));
    text += &port("all", "sink", "");
    for (name, keys) in [("front", keys), ("s", ""), ("t", "")] {
        text += &service(name, "sluice-nf-bridge", keys);
    }
    text += &service("bad", &hostile_nf(), &format!("args = [\"hostile-nf\", {mode:?}]\n{keys}"));
    text += &chain("hostile", "load", &["front", "bad"], "away", "on_failure = \"drop\"");
    text + &chain("healthy", "steady", &["s", "t"], "all", "")
}

/// Runs a hostile NF beside a healthy chain; returns its violations.
fn beside_a_healthy_chain(mode: &str) -> u64 {
    let text = both_chains(mode, "");
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
        + &service("bad", &hostile_nf(), "args = [\"hostile-nf\", \"random\"]")
        + &chain("hostile", "load", &["bad"], "away", "on_failure = \"restart\"");
    let mut daemon = Daemon::start("", &text);
    let stats = daemon.wait("it was stopped twice", |s| find_nf(s, "bad.0").stops >= 2);
    let bad = find_nf(&stats, "bad.0");
    assert!(bad.restarts >= 1 && bad.restarts <= bad.stops && bad.violations > 2 * LIMIT, "{bad:?}");
    let log = daemon.log();
    assert!(log.contains("bad.0 has ended after ") && log.contains("; it is started again in "), "{log}");
    let death = bad.last_death.as_ref().expect("it has died");
    assert_eq!(death.cause, DeathCause::Violations);
    assert!(death.what.contains(" forged descriptors or cursors; the last time it "), "{death:?}");
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
fn saying_again_and_again_that_it_is_ready() {
    assert_eq!(beside_a_healthy_chain("eager"), 0);
}

#[test]
fn never_reading() {
    assert_eq!(beside_a_healthy_chain("deaf"), 0);
}

#[test]
fn never_writing() {
    assert_eq!(beside_a_healthy_chain("mute"), 0);
}

#[test]
fn attacks_for_which_an_nf_is_not_stopped_cost_another_tenant_no_packet() {
    for mode in ["bits", "move", "steal"] {
        let mut daemon = Daemon::start("", &both_chains(mode, "tenant = \"red\""));
        daemon.wait_for_all("steady", "all", PACKETS);
        let before = find_port(&daemon.stats(), "away").tx_packets;
        let stats = daemon.wait("it returns packets meanwhile", |s| find_port(s, "away").tx_packets > before + 100);
        for nf in &stats.nfs {
            assert_eq!((nf.state, nf.restarts, nf.violations), (NfState::Running, 0, 0), "{mode}: {}", nf.name);
        }
        daemon.silence("hostile", "load");
        daemon.wait_until_empty();
        daemon.stop();
    }
}

#[test]
fn one_that_writes_over_all_it_has_alters_packets_of_its_own_tenant_and_of_no_other() {
    let load = "rate = 20000\nflows = 16\nsize = 128\nsrc = \"198.18.0.0\"\nchecksum = true\noverload = \"wait\"";
    let mut text = port("in", "gen", load) + &port("load", "gen", "rate = 1000");
    for sink in ["red-out", "blue-out", "away"] {
        text += &port(sink, "sink", "");
    }
    for tenant in ["red", "blue"] {
        text += &service(tenant, "sluice-nf-bridge", &format!("tenant = {tenant:?}"));
        let src = if tenant == "red" { "src = \"198.18.0.0/30\"" } else { "" };
        text += &format!(
            "[[chain]]\nname = {tenant:?}\nservices = [{tenant:?}]\negress = \"{tenant}-out\"\n\
             [[rule]]\nname = {tenant:?}\nport = \"in\"\n{src}\nchain = {tenant:?}\n"
        );
    }
    text += &service("bad", &hostile_nf(), "args = [\"hostile-nf\", \"everything\"]\ntenant = \"red\"");
    text += &chain("hostile", "load", &["bad"], "away", "on_failure = \"drop\"");
    // It must not be stopped for what it does.
    let mut daemon = Daemon::start("max_violations = 1000000000\nstall_ms = 0", &text);
    let stats = daemon.wait("altered packets of red, and many of blue's", |s| {
        let of = |sink: &str, what: &str| find_port(s, sink).details.get(what).copied().unwrap_or(0.0);
        // Noise over a stamp leaves none.
        of("red-out", "altered") + of("red-out", "unstamped") > 0.0 && of("blue-out", "stamped") > 5_000.0
    });
    for what in ["altered", "unstamped", "lost", "reordered", "duplicated"] {
        assert_eq!(find_port(&stats, "blue-out").details[what], 0.0, "{what}");
    }
    let blue = find_nf(&stats, "blue.0");
    assert_eq!((blue.state, blue.violations), (NfState::Running, 0));
    daemon.client().force_remove_nf("bad.0").unwrap();
    ["red", "blue"].iter().for_each(|rule| daemon.client().remove_rule(rule).unwrap());
    daemon.client().remove_port("in").unwrap();
    daemon.silence("hostile", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

fn one_that(mode: &str, word: &str, keys: &str) -> String {
    let mut text = port("load", "gen", "rate = 1000") + &port("away", "sink", "");
    text += &service("bad", &hostile_nf(), &format!("args = [\"hostile-nf\", {mode:?}, {word:?}]\n{keys}"));
    text += &chain("hostile", "load", &["bad"], "away", "");
    text
}

/// A daemon with an NF that has left a process behind.
fn with_an_orphan(word: &str) -> Daemon {
    let mut daemon = Daemon::start("", &one_that("fork", word, ""));
    daemon.wait("it has forked", |s| find_nf(s, "bad.0").state == NfState::Running && named(word).len() == 2);
    daemon
}

/// Whether what an NF forks ends with it on this host; the daemon logs if not.
fn is_held(daemon: &Daemon) -> bool {
    let is_said = daemon.log().contains("what an NF has forked is not ended with it");
    if is_said {
        skip(format_args!("no cgroup can be made here, and the daemon says what follows: {}", daemon.log()));
    }
    !is_said
}

#[test]
fn what_an_nf_has_forked_ends_with_it() {
    let word = format!("orphan-a-{}", std::process::id());
    let mut daemon = with_an_orphan(&word);
    if !is_held(&daemon) {
        daemon.stop();
        return;
    }
    // It dies and is started again; each life leaves a process.
    let stats = daemon.stats();
    let first = named(&word);
    crate::support::signal(find_nf(&stats, "bad.0"), rustix::process::Signal::KILL);
    daemon.wait("it is back", |s| find_nf(s, "bad.0").restarts == 1 && named(&word).len() == 2);
    assert!(named(&word).iter().all(|pid| !first.contains(pid)), "the first one's are gone");
    daemon.client().force_remove_nf("bad.0").unwrap();
    wait_until_none(&word);
    daemon.silence("hostile", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn what_an_nf_has_forked_ends_with_the_daemon() {
    let word = format!("orphan-b-{}", std::process::id());
    let daemon = with_an_orphan(&word);
    if is_held(&daemon) {
        daemon.stop();
        wait_until_none(&word);
    }
    let word = format!("orphan-c-{}", std::process::id());
    let mut daemon = with_an_orphan(&word);
    daemon.end(rustix::process::Signal::KILL);
    if rustix::process::geteuid().is_root() {
        // The kernel ends them: nothing of the daemon is left.
        wait_until_none(&word);
    } else {
        skip("only root has a process namespace: what is asserted is that the next daemon ends them");
    }
    let daemon = Daemon::again(daemon.into_folder());
    let is_held = is_held(&daemon);
    daemon.stop();
    if is_held {
        wait_until_none(&word);
    }
}

/// Waits until processes with this word are in a controller's cgroup of `bad.0`.
/// False without root or this controller.
#[track_caller]
fn wait_until_held(word: &str, controller: &str) -> bool {
    if cgroup_of(std::process::id(), controller).is_none() || !rustix::process::geteuid().is_root() {
        skip(format_args!("it needs root, and {controller} of control groups of version 1"));
        return false;
    }
    let is_held = |pid: &u32| cgroup_of(*pid, controller).is_none_or(|line| line.contains("/nf-bad.0"));
    let until = Instant::now() + PATIENCE;
    while !named(word).iter().all(is_held) {
        let outside: Vec<_> = named(word).into_iter().filter(|pid| !is_held(pid)).map(|pid| cgroup_of(pid, controller)).collect();
        assert!(Instant::now() < until, "{} of {} are outside: {:?}", outside.len(), named(word).len(), outside.first());
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn what_an_nf_has_forked_before_its_hello_has_its_weight_and_its_limits() {
    let word = format!("herd-{}", std::process::id());
    let mut daemon = Daemon::start("", &one_that("herd", &word, ""));
    daemon.wait("all are there", |s| find_nf(s, "bad.0").state == NfState::Running && named(&word).len() == 33);
    for controller in ["cpu", "pids"] {
        wait_until_held(&word, controller);
    }
    // The NF's next life has a cgroup with another name, so a pending removal is not in its way.
    let first = named(&word).first().and_then(|pid| cgroup_of(*pid, "cpu"));
    let stats = daemon.stats();
    crate::support::signal(find_nf(&stats, "bad.0"), rustix::process::Signal::KILL);
    daemon.wait("it is back", |s| find_nf(s, "bad.0").restarts == 1 && named(&word).len() == 33);
    if wait_until_held(&word, "cpu") {
        assert!(named(&word).iter().all(|pid| cgroup_of(*pid, "cpu") != first), "{first:?}");
    }
    assert!(!daemon.log().contains("exists already"), "{}", daemon.log());
    daemon.silence("hostile", "load");
    daemon.wait_until_empty();
    daemon.stop();
    wait_until_none(&word);
}

#[test]
fn one_that_forks_and_ends_all_the_time_is_held_when_it_stays() {
    let word = format!("chain-{}", std::process::id());
    // Its user belongs to the host and has other processes, too.
    let user = if rustix::process::geteuid().is_root() { "user = \"nobody\"\npids = 40" } else { "pids = 40" };
    let mut daemon = Daemon::start("", &one_that("chain", &word, user));
    daemon.wait("it runs", |s| find_nf(s, "bad.0").state == NfState::Running);
    let nf = find_nf(&daemon.stats(), "bad.0").pid.unwrap();
    let most = |pid: u32| {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max processes")).unwrap().to_owned();
        // Without a limit there is no number.
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap_or(u64::MAX)
    };
    let is_bounded = most(nf) >= 40 && most(nf) < most(daemon.pid());
    assert!(is_bounded || !rustix::process::geteuid().is_root(), "{} of {}", most(nf), most(daemon.pid()));
    let other = || named(&word).into_iter().filter(|pid| *pid != nf).collect::<Vec<_>>();
    let mut before = Vec::new();
    daemon.wait("one of them stays", |_| {
        let now = other();
        let stays = now.len() == 1 && now == before;
        before = now;
        stays
    });
    wait_until_held(&word, "pids");
    daemon.silence("hostile", "load");
    daemon.wait_until_empty();
    daemon.stop();
    wait_until_none(&word);
}

/// The children of a process, and whether each is a zombie.
fn children(pid: u32) -> Vec<(u32, bool)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<u32> =
        texts.flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect();
    let has_ended = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    pids.into_iter().map(|pid| (pid, has_ended(pid))).collect()
}

#[test]
fn processes_that_an_nf_gives_the_daemon_are_collected_when_it_ends() {
    if !rustix::process::geteuid().is_root() {
        return skip("without root there is no process namespace by which the daemon knows them");
    }
    let word = format!("siblings-{}", std::process::id());
    // The default filter forbids it.
    let mut daemon = Daemon::start("", &one_that("siblings", &word, "filter = false"));
    let ended = |pid: u32| children(pid).into_iter().filter(|(_, has_ended)| *has_ended).count();
    let until = Instant::now() + PATIENCE;
    while ended(daemon.pid()) < 8 {
        assert!(Instant::now() < until, "{:?}\n{}", children(daemon.pid()), daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    let stats = daemon.stats();
    crate::support::signal(find_nf(&stats, "bad.0"), rustix::process::Signal::KILL);
    // The children of the next process come, and stay as long as it does.
    daemon.wait("it is back", |s| find_nf(s, "bad.0").restarts == 1 && find_nf(s, "bad.0").state == NfState::Running);
    daemon.client().force_remove_nf("bad.0").unwrap();
    let until = Instant::now() + PATIENCE;
    while ended(daemon.pid()) > 0 {
        assert!(Instant::now() < until, "{:?}\n{}", children(daemon.pid()), daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.silence("hostile", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn one_that_takes_more_memory_than_it_may_is_ended_and_no_other() {
    let word = format!("hoard-{}", std::process::id());
    let mut text = one_that("hoard", &word, "memory = 64\ninstances = 0");
    text +=
        &(service("good", "sluice-nf-bridge", "memory = 64") + &port("steady", "gen", "rate = 1000") + &port("all", "sink", ""));
    text += &chain("healthy", "steady", &["good"], "all", "");
    let mut daemon = Daemon::start("", &text);
    let pid = find_nf(&daemon.stats(), "good.0").pid.unwrap();
    assert_eq!(std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "1000", "NFs end before the daemon");
    if daemon.log().contains("`memory` of services is not held") {
        skip(format_args!("this host cannot bound the memory of NFs: {}", daemon.log()));
        return daemon.stop();
    }
    daemon.client().add_nf("bad", None).unwrap();
    let stats = daemon.wait("it was ended twice", |s| find_nf(s, "bad.0").restarts >= 2);
    assert!(!daemon.log().contains("hostile: hoarded"), "{}", daemon.log());
    let death = find_nf(&stats, "bad.0").last_death.as_ref().expect("it has died");
    assert_eq!((death.cause, death.what.as_str()), (DeathCause::Memory, "out of memory: the kernel killed it"));
    assert_eq!((find_nf(&stats, "good.0").pid, find_nf(&stats, "good.0").restarts), (Some(pid), 0));
    daemon.client().force_remove_nf("bad.0").unwrap();
    daemon.silence("hostile", "load");
    daemon.silence("healthy", "steady");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn what_an_nf_is_denied() {
    let word = format!("reach-{}", std::process::id());
    // By default; with io_uring; and as root, which may do what only its user kept it from.
    for (keys, may) in [("", vec![]), ("storage = true", vec!["io_uring"]), ("user = \"root\"", vec!["memory of"])] {
        if keys.contains("root") && !rustix::process::geteuid().is_root() {
            skip("only root can start an NF as root");
            continue;
        }
        let mut daemon = Daemon::start("", &one_that("reach", &word, keys));
        daemon.wait_for_log("bad.0: hostile: done");
        let log = daemon.log();
        let said = log.lines().filter_map(|line| line.strip_prefix("bad.0: ")).filter(|line| line.starts_with("hostile: "));
        assert!(said.clone().filter(|line| line.contains(" = ")).count() >= 12, "{log}");
        let is_allowed = |line: &str| may.iter().any(|what| line.starts_with(&format!("hostile: {what}")));
        for line in said.filter(|line| !is_allowed(line)) {
            // Without root, NFs have the daemon's user; only filter and namespaces separate them.
            let is_of_user = line.contains("memory of") && !rustix::process::geteuid().is_root();
            assert!(is_of_user || !line.ends_with("= ok"), "{keys}: {line}");
        }
        // The filter forbids it, whatever this kernel would answer.
        for what in ["sibling", "core scheduling", "lock", "four waits"] {
            assert!(log.contains(&format!("hostile: {what} = Operation not permitted")), "{keys}: {log}");
        }
        let pid = find_nf(&daemon.stats(), "bad.0").pid.unwrap();
        let status = || std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        // It may use only its own core of the two, and has another user unless configured.
        assert!(status().contains("Cpus_allowed_list:\t1\n"), "{}", status());
        if rustix::process::geteuid().is_root() {
            assert_eq!(status().contains("Uid:\t0\t"), keys.contains("root"), "{}", status());
            assert_eq!(status().contains("CapBnd:\t0000000000000000"), !keys.contains("root"), "{}", status());
        }
        daemon.stop();
    }
}

#[test]
fn a_zygote_that_says_what_it_was_not_asked_for_is_ended_and_costs_nobody_else_anything() {
    let mut keys = "args = [\"hostile-nf\", \"liar\"]\nzygote = true".to_string();
    if rustix::process::geteuid().is_root() {
        // It names the first process of the NFs' namespace, which is root's, too.
        keys += "\nuser = \"root\"";
    }
    let mut text = port("load", "gen", "rate = 5000\nflows = 8") + &port("away", "sink", "");
    text += &port("steady", "gen", "rate = 5000\nflows = 8\noverload = \"wait\"");
    text += &port("all", "sink", "");
    text += &service("good", "sluice-nf-bridge", "");
    text += &service("bad", &hostile_nf(), &keys);
    text += &chain("hostile", "load", &["bad"], "away", "on_failure = \"restart\"");
    text += &chain("healthy", "steady", &["good"], "all", "");
    let mut daemon = Daemon::start("", &text);
    daemon.wait_for_log("bad.zygote says what it was not asked for, and is ended");
    let before = find_port(&daemon.stats(), "away").tx_packets;
    // Its NF is started without the zygote.
    let stats = daemon.wait("its chain delivers", |s| find_port(s, "away").tx_packets > before + 500);
    for name in ["good.0", "bad.0"] {
        let nf = find_nf(&stats, name);
        assert_eq!((nf.state, nf.restarts), (NfState::Running, 0), "{name}: {}", daemon.log());
    }
    ["hostile", "healthy"].into_iter().zip(["load", "steady"]).for_each(|(chain, port)| daemon.silence(chain, port));
    daemon.wait_until_empty();
    let log = daemon.stop_and_log();
    assert!(!log.lines().any(|line| line.starts_with("sluiced: has ended")), "{log}");
    assert!(!log.contains("has forked process"), "nothing that it says is looked at: {log}");
}
