//! Instances that are forked from a process that has made its handler.

use std::path::PathBuf;

use rustix::process::Signal;
use sluice_api::model::{Apply, Nf, NfState, Stats, Zygote};

use crate::skip::skip;
use crate::support::{Daemon, chain, find_nf, find_port, parent, port, service, signal, test_nf, wait_until_gone};

fn config(style: &str, instances: u32) -> String {
    let keys = format!("args = [{style:?}]\nzygote = true\ninstances = {instances}");
    port("in", "gen", "rate = 20000\nflows = 256")
        + &port("wan", "sink", "")
        + &service("ids", &test_nf(), &keys)
        + &chain("c", "in", &["ids"], "wan", "on_failure = \"restart\"")
}

fn zygote(stats: &Stats) -> Zygote {
    stats.services[0].zygote.clone().expect("the service has one")
}

fn pids(stats: &Stats) -> Vec<u32> {
    stats.nfs.iter().filter_map(|nf| nf.pid).collect()
}

fn all_run(stats: &Stats, instances: usize) -> bool {
    stats.nfs.len() == instances && stats.nfs.iter().all(|nf| nf.state == NfState::Running && nf.tx_packets > 0)
}

/// Numbers of handlers made and of instances forked, from the log.
fn made(log: &str) -> (usize, usize) {
    (log.matches("ready ids.").count(), log.matches("forked ids.").count())
}

/// Waits until these numbers are logged: what NFs print comes a moment later.
#[track_caller]
fn wait_until_made(daemon: &mut Daemon, handlers: usize, forks: usize) {
    let daemon_log = daemon.folder().join("log");
    let log = || std::fs::read_to_string(&daemon_log).unwrap();
    daemon.wait("so many were made and forked", |_| made(&log()) == (handlers, forks));
}

#[test]
fn instances_are_forked_and_live_as_all_others_do() {
    let mut daemon = Daemon::start("", &config("callback", 5));
    let stats = daemon.wait("packets pass all five", |s| all_run(s, 5));
    let (first, before) = (zygote(&stats), pids(&stats));
    assert_eq!((first.state.as_str(), first.forks, first.why.as_deref()), ("ready", 5, None));
    assert!(before.iter().all(|pid| parent(*pid) == daemon.pid()), "all are children of the daemon");
    wait_until_made(&mut daemon, 1, 5);
    // Each logs under its own name, wherever its handler was made.
    for line in ["ids.zygote: ready ids.zygote", "ids.0: forked ids.0", "ids.4: forked ids.4"] {
        assert!(daemon.log().lines().any(|said| said == line), "{}", daemon.log());
    }
    for nf in &stats.nfs {
        let status = std::fs::read_to_string(format!("/proc/{}/status", nf.pid.unwrap())).unwrap();
        let is_pinned =
            status.lines().any(|l| l.strip_prefix("Cpus_allowed_list:").is_some_and(|c| c.trim() == nf.core.to_string()));
        assert!(is_pinned, "{} is not on core {}: {status}", nf.name, nf.core);
    }

    // An instance dies, and is forked anew.
    signal(find_nf(&stats, "ids.2"), Signal::KILL);
    let back = |nf: &Nf| nf.restarts == 1 && nf.state == NfState::Running && nf.pid.is_some_and(|pid| !before.contains(&pid));
    let stats = daemon.wait("it is back", |s| back(find_nf(s, "ids.2")) && zygote(s).forks == 6);
    wait_until_made(&mut daemon, 1, 6);
    assert_eq!(zygote(&stats).pid, first.pid);

    // The zygote dies: instances go on, and a new zygote comes.
    let before = pids(&stats);
    rustix::process::kill_process(rustix::process::Pid::from_raw(first.pid.unwrap() as i32).unwrap(), Signal::KILL).unwrap();
    let stats = daemon.wait("there is a new zygote", |s| zygote(s).state == "ready" && zygote(s).pid != first.pid);
    wait_until_made(&mut daemon, 2, 6);
    assert_eq!(pids(&stats), before);
    let had = find_port(&stats, "wan").tx_packets;
    daemon.wait("packets go on", |s| find_port(s, "wan").tx_packets > had + 1000);
    signal(find_nf(&stats, "ids.4"), Signal::KILL);
    daemon.wait("it is forked from the new one", |s| find_nf(s, "ids.4").restarts == 1 && zygote(s).forks == 7 && all_run(s, 5));
    wait_until_made(&mut daemon, 2, 7);

    // One more instance, on request.
    daemon.client().add_nf("ids", None).unwrap();
    let stats = daemon.wait("it runs", |s| find_nf(s, "ids.5").state == NfState::Running && zygote(s).forks == 8);
    wait_until_made(&mut daemon, 2, 8);
    assert_eq!(parent(find_nf(&stats, "ids.5").pid.unwrap()), daemon.pid());
    let last = zygote(&stats).pid.unwrap();
    let log = daemon.stop_and_log();
    assert_eq!(made(&log), (2, 8), "{log}");
    wait_until_gone(last);
}

/// A thread of the daemon that is frozen until drop.
struct Frozen(PathBuf);

impl Frozen {
    fn new(daemon: &Daemon, thread: &str) -> Option<Self> {
        let folder = PathBuf::from(format!("/sys/fs/cgroup/freezer/sluice-test-{}", daemon.pid()));
        std::fs::create_dir(&folder).ok()?;
        let frozen = Self(folder);
        let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten();
        let mut named = tasks.filter(|task| std::fs::read_to_string(task.path().join("comm")).unwrap().trim_end() == thread);
        let tid = named.next().expect("the daemon has the thread").file_name();
        std::fs::write(frozen.0.join("tasks"), tid.as_encoded_bytes()).ok()?;
        std::fs::write(frozen.0.join("freezer.state"), "FROZEN").ok()?;
        Some(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        for tid in std::fs::read_to_string(self.0.join("tasks")).unwrap_or_default().lines() {
            let _ = std::fs::write("/sys/fs/cgroup/freezer/tasks", tid);
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn an_instance_outlives_a_zygote_that_dies_before_it_is_in_a_pen_of_its_own() {
    let mut daemon = Daemon::start("", &config("callback", 2));
    let stats = daemon.wait("packets pass both", |s| all_run(s, 2));
    let first = zygote(&stats).pid;
    // The thread that moves processes into pens is late, as on a busy host.
    let Some(frozen) = Frozen::new(&daemon, "sluice-pens") else {
        skip("it needs root, and the freezer of control groups of version 1");
        return daemon.stop();
    };
    signal(find_nf(&stats, "ids.1"), Signal::KILL);
    let is_back = |nf: &Nf| nf.restarts == 1 && nf.state == NfState::Running && nf.pid.is_some();
    let stats = daemon.wait("it is back", |s| is_back(find_nf(s, "ids.1")) && zygote(s).forks == 3);
    let before = pids(&stats);
    rustix::process::kill_process(rustix::process::Pid::from_raw(first.unwrap() as i32).unwrap(), Signal::KILL).unwrap();
    daemon.wait("the zygote has ended", |s| zygote(s).pid != first);
    drop(frozen);
    let stats = daemon.wait("there is a new zygote", |s| zygote(s).state == "ready" && zygote(s).pid != first);
    assert_eq!(pids(&stats), before);
    let had = find_port(&stats, "wan").tx_packets;
    let stats = daemon.wait("packets go on", |s| find_port(s, "wan").tx_packets > had + 1000);
    assert_eq!((pids(&stats), find_nf(&stats, "ids.1").restarts), (before, 1));
    daemon.stop();
}

#[test]
fn children_and_zygotes_die_with_a_killed_daemon() {
    let mut daemon = Daemon::start("", &config("callback", 3));
    let stats = daemon.wait("packets pass all three", |s| all_run(s, 3));
    let zygote = zygote(&stats).pid.unwrap();
    assert_eq!(daemon.end(Signal::KILL).code(), None);
    daemon.wait_until_nfs_are_gone();
    wait_until_gone(zygote);
    let mut daemon = Daemon::again(daemon.into_folder());
    daemon.wait("packets pass all three again", |s| all_run(s, 3));
    daemon.stop();
}

#[test]
fn what_cannot_be_forked_is_started_one_by_one() {
    for (style, why) in [("threads", "it has 2 threads"), ("pull", "it is written in pull style")] {
        let mut daemon = Daemon::start("", &config(style, 2));
        let stats = daemon.wait("packets pass both", |s| all_run(s, 2));
        let zygote = zygote(&stats);
        assert_eq!((zygote.state.as_str(), zygote.forks, zygote.pid), ("unfit", 0, None), "{style}");
        assert!(zygote.why.is_some_and(|said| said.contains(why)), "{style}");
        let log = daemon.log();
        assert!(log.contains(&format!("warning: instances of service ids are started one by one, not forked: {why}")), "{log}");
        assert_eq!(log.matches("not forked").count(), 1, "{log}");
        daemon.stop();
    }
}

#[test]
fn a_zygote_goes_with_its_service() {
    let mut daemon = Daemon::start("", &config("callback", 2));
    let stats = daemon.wait("packets pass both", |s| all_run(s, 2));
    let first = zygote(&stats);
    // Another argument is another version of the service.
    let path = daemon.folder().join("sluice.toml");
    let other = std::fs::read_to_string(&path).unwrap().replace("[\"callback\"]", "[\"callback\", \"again\"]");
    daemon.client().apply(&Apply { config: other, file: None, dry_run: false }).unwrap();
    wait_until_gone(first.pid.unwrap());
    let stats = daemon.wait("packets pass both new ones", |s| all_run(s, 2) && zygote(s).state == "ready");
    let second = zygote(&stats);
    // The new instances were on trial before the new version had a zygote.
    assert_eq!((second.forks, stats.nfs.iter().all(|nf| nf.restarts == 0)), (0, true));
    signal(&stats.nfs[0], Signal::KILL);
    daemon.wait("one that comes again is forked", |s| zygote(s).forks == 1 && zygote(s).pid == second.pid && all_run(s, 2));
    daemon.silence("c", "in");
    daemon.client().remove_chain("c").unwrap();
    daemon.client().remove_service("ids").unwrap();
    wait_until_gone(second.pid.unwrap());
    daemon.stop();
}

#[test]
fn nobody_else_can_say_that_it_is_a_zygote_and_have_that_ended() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let text = port("in", "gen", "rate = 1000") + &port("wan", "sink", "");
    let mut daemon = Daemon::start("", &text);
    // It sends no hello for as long as this test takes.
    let mut config = std::fs::read_to_string(daemon.folder().join("sluice.toml")).unwrap();
    config += &service("ids", "/bin/sleep", "args = [\"1000\"]\nzygote = true");
    config += &chain("c", "in", &["ids"], "wan", "");
    daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap();
    let stats = daemon.wait("it is started", |s| zygote(s).pid.is_some());
    let before = zygote(&stats);
    assert_eq!(before.state, "starting");
    // This process may attach, as it has the daemon's user, but it is no zygote.
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(daemon.run_dir().join("nf.sock")).unwrap()).unwrap();
    let said = sluice_shm::zygote::attach(&socket, "ids.zygote").unwrap_err().to_string();
    assert!(said.contains("neither that process nor a child of it"), "{said}");
    let after = zygote(&daemon.stats());
    assert_eq!((after.state.as_str(), after.pid), ("starting", before.pid), "{}", daemon.log());
    assert!(daemon.log().contains("said that it is ids.zygote, which it is not"), "{}", daemon.log());
    daemon.stop();
}
