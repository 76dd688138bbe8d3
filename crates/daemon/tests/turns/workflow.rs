//! Polling NFs that share a core by slices: order holds, and none stays stopped.

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sluice_api::model::{NfState, Schedule, Stats};

use crate::skip::skip;
use crate::support::{Daemon, PATIENCE, chain, find_nf, find_port, head, hostile_nf, nf, port, refusal, service, signal};
use crate::support::{cgroup_of, named, wait_until_none};

const MECHANISMS: [&str; 5] = ["realtime", "freeze", "signal", "freezer", "gate"];
const THREE: [&str; 3] = ["a", "b", "c"];

/// Three NFs that poll on one core, in a chain from a generator that waits.
fn polling(traffic: &str, workflow: &str) -> String {
    port("in", "gen", &format!("overload = \"wait\"\nflows = 4\n{traffic}"))
        + &port("out", "sink", "")
        + &THREE.map(|name| service(name, "sluice-nf-bridge", "mode = \"poll\"\nring = 256")).concat()
        + &chain("c", "in", &THREE, "out", "")
        + &format!("[workflow]\n{workflow}\n")
}

/// The schedule of the only core that has one; None if the host does not allow it.
fn schedule(daemon: &mut Daemon, nfs: usize) -> Option<Schedule> {
    let log = daemon.folder().join("log");
    let mut refused = false;
    let stats = daemon.wait("the core has a schedule", |s| {
        refused = std::fs::read_to_string(&log).is_ok_and(|log| log.contains("gets no schedule"));
        refused || s.status.schedules.iter().any(|schedule| schedule.nfs.len() == nfs)
    });
    if refused {
        skip(daemon.log());
        return None;
    }
    assert_eq!(stats.status.schedules.len(), 1, "{:#?}", stats.status.schedules);
    Some(stats.status.schedules[0].clone())
}

/// Whether the daemon may start with a mechanism: without root, it would refuse to.
fn may_start(mechanism: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    skip(format_args!("{mechanism} needs root here"));
    false
}

#[test]
fn nfs_that_poll_on_one_core_take_turns_and_lose_nothing() {
    let _alone = alone();
    // Slow enough that all three have slices before the last packet is through.
    let mut daemon = Daemon::start("drain_ms = 30000", &polling("count = 100000\nrate = 100000", ""));
    let Some(schedule) = schedule(&mut daemon, 3) else { return };
    assert_eq!((schedule.core, schedule.nfs), (1, vec!["a.0".into(), "b.0".into(), "c.0".into()]));
    assert!(schedule.because.contains(&format!("{}: chosen", schedule.mechanism)), "{}", schedule.because);
    daemon.wait_for_all("in", "out", 100_000);
    let stats = daemon.stats();
    for name in ["a.0", "b.0", "c.0"] {
        let nf = find_nf(&stats, name);
        assert!(nf.sched.turns > 0 && nf.sleeps == 0, "{name}: {nf:#?}");
    }
    let turns = &stats.status.schedules[0].turns;
    assert!(turns["empty"] + turns["slice"] + turns["full"] > 3, "{turns:?}");
    assert_eq!(stats.status.schedules[0].failures, 0);
    daemon.stop();
}

#[test]
fn every_mechanism_passes_every_packet_in_order() {
    let _alone = alone();
    for mechanism in MECHANISMS.into_iter().filter(|mechanism| may_start(mechanism)) {
        let mut daemon = Daemon::start("drain_ms = 30000", &polling("count = 20000", &format!("mechanism = \"{mechanism}\"")));
        let Some(schedule) = schedule(&mut daemon, 3) else { continue };
        assert_eq!(schedule.mechanism, mechanism);
        daemon.wait_for_all("in", "out", 20_000);
        daemon.stop();
    }
}

#[test]
fn what_a_packet_costs_is_measured_from_outside() {
    let _alone = alone();
    // Rings with enough for a sample, and a first NF so slow that packets always wait for it.
    let slow = service("a", "sluice-nf-cost", "args = [\"--cycles\", \"10000\"]\nmode = \"poll\"\nring = 1024");
    let config = polling("", "").replace("ring = 256", "ring = 1024");
    let (before, rest) = config.split_once("[[service]]").unwrap();
    let (_, rest) = rest.split_once("[[service]]").unwrap();
    let mut daemon = Daemon::start("", &format!("{before}{slow}[[service]]{rest}"));
    if schedule(&mut daemon, 3).is_none() {
        return;
    }
    let stats = daemon.wait("a cost is reported", |s| find_nf(s, "a.0").sched.outside_ns > 0.0);
    let sched = &find_nf(&stats, "a.0").sched;
    assert!(sched.outside_ns.is_finite() && sched.turns > 0, "{sched:?}");
    daemon.end(Signal::KILL);
}

#[test]
fn turns_are_made_on_a_core_that_has_a_packet_thread_too() {
    let _alone = alone();
    let here = |workflow: &str| polling("count = 20000", workflow).replace("mode = \"poll\"", "mode = \"poll\"\ncores = [0]");
    let mut daemon = Daemon::start("drain_ms = 30000", &here(""));
    let Some(schedule) = schedule(&mut daemon, 3) else { return };
    assert_eq!(schedule.core, 0);
    assert_ne!(schedule.mechanism, "realtime", "the thread would get what NFs that poll leave");
    daemon.wait_for_all("in", "out", 20_000);
    daemon.stop();
    let folder = tempfile::tempdir().unwrap();
    let refused = refusal(folder.path(), &(head(folder.path(), "") + &here("mechanism = \"realtime\"")));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("core 0 cannot have a schedule") && said.contains("a packet thread of the manager runs there"), "{said}");
}

#[test]
fn nfs_that_would_yield_have_turns_by_the_doorbell() {
    let _alone = alone();
    // Without an end: the last NF may get its first slice after many packets.
    let config = polling("rate = 20000", "mechanism = \"doorbell\"").replace("mode = \"poll\"", "");
    let mut daemon = Daemon::start("drain_ms = 30000", &config);
    let Some(schedule) = schedule(&mut daemon, 3) else { return };
    assert_eq!(schedule.mechanism, "doorbell");
    let before = daemon.stats();
    let stats = daemon.wait("all have turns, and packets pass", |s| {
        s.nfs.iter().all(|nf| nf.sched.turns > 0) && find_port(s, "out").tx_packets > find_port(&before, "out").tx_packets + 1000
    });
    assert!(stats.drops.iter().all(|(why, n)| why == "entry" || *n == 0), "{:?}", stats.drops);
    daemon.stop();
}

#[test]
fn single_packets_are_not_stranded() {
    let _alone = alone();
    let mut daemon = Daemon::start("", &polling("count = 20\nrate = 50", ""));
    if schedule(&mut daemon, 3).is_none() {
        return;
    }
    daemon.wait_for_all("in", "out", 20);
    // All are idle: they are stopped, and begin again.
    daemon.wait("who was last is parked", |s| s.status.schedules[0].turns["idle"] > 0);
    daemon.stop();
}

#[test]
fn an_nf_that_is_killed_comes_back_into_its_turns() {
    let _alone = alone();
    for mechanism in ["realtime", "freeze", "signal", "freezer"].into_iter().filter(|mechanism| may_start(mechanism)) {
        let mut daemon = Daemon::start("", &polling("rate = 20000", &format!("mechanism = \"{mechanism}\"")));
        if schedule(&mut daemon, 3).is_none() {
            continue;
        }
        let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
        for name in ["b.0", "a.0"] {
            signal(find_nf(&stats, name), Signal::KILL);
            let before = daemon.stats();
            daemon.wait("it is back among the others, and packets flow", |s| {
                let nf = find_nf(s, name);
                nf.restarts > 0
                    && nf.sched.turns > 0
                    && s.status.schedules.iter().any(|schedule| schedule.nfs.len() == 3)
                    && find_port(s, "out").tx_packets > find_port(&before, "out").tx_packets + 1000
            });
        }
        daemon.stop();
    }
}

#[test]
fn one_that_says_no_hello_is_off_the_cores_of_packet_threads_too() {
    let _alone = alone();
    let mut daemon = Daemon::start("", &polling("rate = 20000", ""));
    if schedule(&mut daemon, 3).is_none() {
        return;
    }
    // On the core of the polling NFs it would wait, so it begins on another core, if there is one,
    // until its hello.
    let silent = "name = \"silent\"\nexec = \"/bin/sleep\"\nargs = [\"1000\"]\nmode = \"poll\"";
    daemon.client().add_service(&toml::from_str(silent).unwrap()).unwrap();
    let stats = daemon.wait("it is started", |s| s.nfs.iter().any(|nf| nf.name == "silent.0" && nf.pid.is_some()));
    let status = std::fs::read_to_string(format!("/proc/{}/status", find_nf(&stats, "silent.0").pid.unwrap())).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).unwrap();
    // Packet threads are on core 0, and a list with that core begins with it.
    assert!(!list.starts_with('0'), "{list}");
    daemon.client().remove_service("silent").unwrap();
    daemon.stop();
}

/// Class and priority of a process, and whether it is stopped: proc_pid_stat(5).
fn class(pid: u32) -> Option<(u32, u32, bool)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    Some((fields[41 - 3].parse().ok()?, fields[40 - 3].parse().ok()?, matches!(fields[0], "T" | "t")))
}

/// What a process has that nothing controls.
fn ordinary() -> (u32, u32, bool) {
    class(std::process::id()).unwrap()
}

#[test]
fn an_nf_that_is_alone_on_its_core_has_it_for_itself() {
    let _alone = alone();
    let body = port("in", "gen", "rate = 20000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("a", "sluice-nf-bridge", "mode = \"poll\"")
        + &chain("c", "in", &["a"], "out", "");
    let mut daemon = Daemon::start("", &body);
    let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 100);
    assert_eq!(stats.status.schedules, []);
    daemon.client().add_nf("a", None).unwrap();
    let Some(both) = schedule(&mut daemon, 2) else { return };
    assert_eq!(both.nfs, ["a.0", "a.1"]);
    daemon.client().remove_nf("a.1").unwrap();
    let stats = daemon.wait("it is alone again", |s| s.nfs.len() == 1 && s.status.schedules.is_empty());
    let pid = find_nf(&stats, "a.0").pid.unwrap();
    assert_eq!(class(pid), Some(ordinary()));
    let before = find_port(&stats, "out").tx_packets;
    daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > before + 100);
    daemon.stop();
}

#[test]
fn the_kernel_is_left_alone_if_that_is_asked_for() {
    let _alone = alone();
    let mut daemon = Daemon::start("", &polling("rate = 200", "mechanism = \"none\""));
    let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 20);
    assert_eq!(stats.status.schedules, []);
    assert!(stats.nfs.iter().all(|nf| nf.sched.turns == 0 && class(nf.pid.unwrap()) == Some(ordinary())));
    daemon.stop();
}

/// The state of a process: proc_pid_stat(5).
fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn what_a_polling_nf_has_forked_runs_in_nobody_elses_slices() {
    let _alone = alone();
    let poll = |name: &str| service(name, "sluice-nf-bridge", "mode = \"poll\"");
    for mechanism in ["freeze", "auto"].into_iter().filter(|mechanism| may_start(mechanism)) {
        let word = format!("herd-{mechanism}-{}", std::process::id());
        // Before it has slices it has forked processes that spin.
        let keys = format!("mode = \"poll\"\nargs = [\"hostile-nf\", \"herd\", {word:?}]");
        let body = port("in", "gen", "rate = 200\noverload = \"wait\"")
            + &port("out", "sink", "")
            + &[poll("a"), service("b", &hostile_nf(), &keys), poll("c")].concat()
            + &chain("c", "in", &THREE, "out", "")
            + &format!("[workflow]\nmechanism = \"{mechanism}\"\n");
        let mut daemon = Daemon::start("stall_ms = 0", &body);
        let Some(schedule) = schedule(&mut daemon, 3) else { continue };
        let own = find_nf(&daemon.stats(), "b.0").pid.unwrap();
        daemon.wait("it has its herd", |_| named(&word).len() == 33);
        match schedule.mechanism.as_str() {
            "realtime" => {
                let forked = named(&word).into_iter().filter(|pid| *pid != own);
                assert!(forked.map(class).all(|class| class == Some(ordinary())), "they have what NFs of real-time priority leave");
            }
            "freeze" => {
                // All are in the cgroup that is frozen between its slices, which is its own.
                let (of_b, of_a) = (cgroup_of(own, ""), cgroup_of(find_nf(&daemon.stats(), "a.0").pid.unwrap(), ""));
                assert!(of_b.is_some() && of_b != of_a, "{of_a:?}");
                assert!(named(&word).into_iter().all(|pid| cgroup_of(pid, "") == of_b), "{of_b:?}");
                let mut stopped: Vec<u32> = Vec::new();
                daemon.wait("each was seen stopped", |_| {
                    stopped.extend(named(&word).into_iter().filter(|pid| *pid != own && state(*pid) != 'R'));
                    named(&word).iter().all(|pid| *pid == own || stopped.contains(pid))
                });
            }
            _ => skip(&schedule.because),
        }
        daemon.stop();
        wait_until_none(&word);
    }
}

/// An NF that the daemon has not started; it ends with its test.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn guests() -> String {
    port("in", "gen", "rate = 20000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &THREE.map(|name| format!("[[service]]\nname = \"{name}\"\nattach = true\nmode = \"poll\"\n")).concat()
        + &chain("c", "in", &THREE, "out", "")
}

#[test]
fn a_killed_daemon_leaves_nobody_stopped() {
    let _alone = alone();
    for mechanism in ["realtime", "freeze", "signal", "freezer", "gate"].into_iter().filter(|mechanism| may_start(mechanism)) {
        let mut daemon = Daemon::start("", &(guests() + &format!("[workflow]\nmechanism = \"{mechanism}\"\n")));
        let socket = daemon.run_dir().join("nf.sock");
        let start = |name: &&str| {
            let mut command = Command::new(nf("sluice-nf-bridge"));
            command.env("SLUICE_SOCKET", &socket).env("SLUICE_NF", name).stdin(Stdio::null()).stderr(Stdio::piped());
            Guest(command.spawn().unwrap())
        };
        let guests: Vec<Guest> = THREE.iter().map(start).collect();
        if schedule(&mut daemon, 3).is_none() {
            continue;
        }
        daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
        daemon.end(Signal::KILL);
        for mut guest in guests {
            // It ends by itself, and so it runs: it notices that its manager is gone.
            let until = Instant::now() + PATIENCE;
            let status = loop {
                if let Some(status) = guest.0.try_wait().unwrap() {
                    break status;
                }
                assert!(Instant::now() < until, "{mechanism}: {:?}", class(guest.0.id()));
                std::thread::sleep(Duration::from_millis(1));
            };
            let mut said = String::new();
            std::io::Read::read_to_string(guest.0.stderr.as_mut().unwrap(), &mut said).unwrap();
            assert!(status.code() == Some(1) && said.contains("manager"), "{mechanism}: {status}: {said}");
        }
        // What was made for it on the host is removed by the next start at the latest.
        let daemon = Daemon::again(daemon.into_folder());
        daemon.stop();
    }
}

fn is_running(stats: &Stats, name: &str) -> bool {
    find_nf(stats, name).state == NfState::Running
}

#[test]
fn nfs_that_sleep_share_the_turns_of_those_that_poll() {
    let _alone = alone();
    let body = port("in", "gen", "count = 50000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("a", "sluice-nf-bridge", "mode = \"poll\"")
        + &service("b", "sluice-nf-bridge", "")
        + &service("c", "sluice-nf-monitor", "")
        + &chain("c", "in", &THREE, "out", "");
    let mut daemon = Daemon::start("drain_ms = 30000", &body);
    let Some(shared) = schedule(&mut daemon, 3) else { return };
    assert_eq!(shared.nfs, ["a.0", "b.0", "c.0"]);
    daemon.wait_for_all("in", "out", 50_000);
    assert!(THREE.iter().all(|name| is_running(&daemon.stats(), &format!("{name}.0"))));
    daemon.stop();
}

#[test]
fn a_mechanism_that_is_not_allowed_is_refused_before_anything_starts() {
    let _alone = alone();
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    const NOBODY: u32 = 65_534;
    let folder = tempfile::tempdir().unwrap();
    let config = head(folder.path(), "") + &polling("", "mechanism = \"realtime\"");
    // Copies: the build folder may be closed to others.
    let (program, bridge) = (folder.path().join("sluiced"), folder.path().join("bridge"));
    std::fs::copy(env!("CARGO_BIN_EXE_sluiced"), &program).unwrap();
    std::fs::copy(nf("sluice-nf-bridge"), &bridge).unwrap();
    let config = config.replace("sluice-nf-bridge", &bridge.display().to_string());
    std::fs::write(folder.path().join("sluice.toml"), config).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = Command::new(&program);
    command.arg(folder.path().join("sluice.toml")).uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::null());
    let refused = command.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("core 1 cannot have a schedule as [workflow] says") && said.contains("CAP_SYS_NICE"), "{said}");
    assert!(!said.contains("ready"), "{said}");
}

/// A polling NF, a foreign program behind a kernel bridge, and another polling NF.
/// `program` names the foreign program, which only uses its core.
fn with_foreign(program: &str, workflow: &str) -> String {
    let bridge = [
        "ip link add br0 type bridge",
        "ip link set in master br0",
        "ip link set out master br0",
        "ip link set br0 up",
        "ip link set in up",
        "ip link set out up",
    ];
    port("in", "gen", "rate = 5000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("a", "sluice-nf-bridge", "mode = \"poll\"")
        + &format!("[[service]]\nname = \"b\"\nkind = \"foreign\"\nmode = \"poll\"\nsetup = {bridge:?}\n{program}\n")
        + &service("c", "sluice-nf-bridge", "mode = \"poll\"")
        + &chain("c", "in", &THREE, "out", "")
        + &format!("[workflow]\n{workflow}\n")
}

/// Held by the test that has the core.
static ALONE: Mutex<()> = Mutex::new(());

pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const BUSY: [&str; 2] = ["-c", "while :; do :; done"];

#[test]
fn a_foreign_program_has_turns_like_others() {
    let _alone = alone();
    if !may_start("a foreign program") {
        return;
    }
    let mut daemon = Daemon::start("", &with_foreign(&format!("exec = \"/bin/sh\"\nargs = {BUSY:?}"), ""));
    let Some(schedule) = schedule(&mut daemon, 3) else { return };
    assert_ne!(schedule.mechanism, "realtime", "it is in a cgroup");
    let stats = daemon
        .wait("packets pass it, and it has turns", |s| find_port(s, "out").tx_packets > 1000 && find_nf(s, "b.0").sched.turns > 3);
    assert!(find_nf(&stats, "b.0").foreign.as_ref().is_some_and(|foreign| foreign.returned > 0), "{stats:#?}");
    // It ends with its NF, stopped or not.
    daemon.stop();
}

#[test]
fn a_process_of_somebody_else_has_turns_and_outlives_the_daemon() {
    let _alone = alone();
    for mechanism in ["realtime", "freeze", "signal", "freezer"].into_iter().filter(|mechanism| may_start(mechanism)) {
        // On the core of its slices: elsewhere it would take the packet thread's.
        let mut busy = Guest(Command::new("taskset").args(["-c", "1", "/bin/sh"]).args(BUSY).spawn().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("busy.pid");
        std::fs::write(&file, format!("{}\n", busy.0.id())).unwrap();
        // NFs get another class; this process does not.
        let workflow = format!("mechanism = \"{mechanism}\"\n[sched]\nclass = \"batch\"");
        let config = with_foreign(&format!("pid_file = {file:?}"), &workflow);
        for end in [Signal::TERM, Signal::KILL] {
            let mut daemon = Daemon::start("", &config);
            if schedule(&mut daemon, 3).is_none() {
                break;
            }
            let stats = daemon.wait("packets pass, and it has turns", |s| {
                find_port(s, "out").tx_packets > 500 && find_nf(s, "b.0").sched.turns > 3
            });
            let foreign = find_nf(&stats, "b.0").foreign.clone().unwrap();
            assert_eq!(foreign.processes, [busy.0.id()], "{mechanism}");
            daemon.end(end);
            // It runs as it did before: with its class, not stopped, and using its core.
            let until = Instant::now() + PATIENCE;
            while class(busy.0.id()) != Some(ordinary()) {
                assert!(Instant::now() < until, "{mechanism}, {end:?}: {:?}", class(busy.0.id()));
                std::thread::sleep(Duration::from_millis(1));
            }
            let used = || {
                let stat = std::fs::read_to_string(format!("/proc/{}/stat", busy.0.id())).unwrap();
                stat.rsplit_once(") ").unwrap().1.split(' ').nth(14 - 3).unwrap().parse::<u64>().unwrap()
            };
            let before = used();
            while used() <= before {
                assert!(Instant::now() < until, "{mechanism}, {end:?}: it uses no CPU time");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(busy.0.try_wait().unwrap(), None);
            if end == Signal::KILL {
                // What was made on the host is removed by the next start.
                assert!(Daemon::again(daemon.into_folder()).end(Signal::TERM).success());
            }
        }
    }
}

#[test]
fn one_that_may_run_elsewhere_gets_no_real_time_priority() {
    let _alone = alone();
    if !may_start("realtime") {
        return;
    }
    let busy = Guest(Command::new("/bin/sh").args(BUSY).spawn().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("busy.pid");
    std::fs::write(&file, format!("{}\n", busy.0.id())).unwrap();
    let mut daemon = Daemon::start("", &with_foreign(&format!("pid_file = {file:?}"), "mechanism = \"realtime\""));
    daemon.wait_for_log("b.0 has no turns on core 1");
    daemon.wait_for_log("before it becomes the NF b.0, or choose another mechanism");
    let stats = daemon.wait("the others have turns", |s| s.status.schedules.iter().any(|schedule| schedule.nfs == ["a.0", "c.0"]));
    assert_eq!(find_nf(&stats, "b.0").sched.turns, 0);
    assert_eq!(class(busy.0.id()), Some(ordinary()));
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn one_that_is_not_pinned_yet_has_turns_as_soon_as_it_is() {
    let _alone = alone();
    if !may_start("realtime") {
        return;
    }
    let mut daemon = Daemon::start("stall_ms = 0", &(guests() + "[workflow]\nmechanism = \"realtime\"\n"));
    let socket = daemon.run_dir().join("nf.sock");
    let start = |program: &str, args: &[&str], name: &str| {
        let mut command = Command::new(program);
        command.args(args).env("SLUICE_SOCKET", &socket).env("SLUICE_NF", name).stdin(Stdio::null()).stdout(Stdio::null());
        Guest(command.spawn().unwrap())
    };
    // `b` attaches, and neither pins itself nor reports that it is ready.
    let late = start(&hostile_nf(), &["hostile-nf", "unready"], "b");
    daemon.wait("it has attached", |s| s.nfs.iter().any(|nf| nf.name == "b.0" && nf.pid == Some(late.0.id())));
    let _others = ["a", "c"].map(|name| start(&nf("sluice-nf-bridge"), &[], name));
    daemon.wait("the others have turns", |s| s.status.schedules.iter().any(|schedule| schedule.nfs == ["a.0", "c.0"]));
    assert_eq!(class(late.0.id()), Some(ordinary()));
    let pid = late.0.id().to_string();
    assert!(Command::new("taskset").args(["-pc", "1", &pid]).stdout(Stdio::null()).status().unwrap().success());
    daemon.wait("it has turns", |s| s.status.schedules.iter().any(|schedule| schedule.nfs == ["a.0", "b.0", "c.0"]));
    assert!(!daemon.log().contains("has no turns"), "{}", daemon.log());
    daemon.end(Signal::KILL);
}

#[test]
fn what_such_a_process_starts_has_its_turns_too() {
    let _alone = alone();
    if !may_start("a foreign program") {
        return;
    }
    // A busy child and a busy grandchild; the shell waits for them.
    let script = "sh -c 'while :; do :; done & while :; do :; done' & wait";
    // On the core of its slices: elsewhere they would take the packet thread's.
    let family = Guest(Command::new("taskset").args(["-c", "1", "/bin/sh", "-c", script]).spawn().unwrap());
    let pids = || {
        let mut all = vec![family.0.id()];
        let mut at = 0;
        while let Some(pid) = all.get(at) {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            all.extend(children.split(' ').filter_map(|child| child.parse::<u32>().ok()));
            at += 1;
        }
        all.sort_unstable();
        all
    };
    let until = Instant::now() + PATIENCE;
    while pids().len() < 3 {
        assert!(Instant::now() < until, "{:?}", pids());
        std::thread::sleep(Duration::from_millis(1));
    }
    let _orphans: Vec<Orphan> = pids().into_iter().filter(|pid| *pid != family.0.id()).map(Orphan).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("family.pid");
    std::fs::write(&file, format!("{}\n", family.0.id())).unwrap();
    let mut daemon = Daemon::start("", &with_foreign(&format!("pid_file = {file:?}"), "mechanism = \"signal\""));
    if schedule(&mut daemon, 3).is_none() {
        return;
    }
    let stats = daemon
        .wait("packets pass, and it has turns", |s| find_port(s, "out").tx_packets > 500 && find_nf(s, "b.0").sched.turns > 3);
    let mut found = find_nf(&stats, "b.0").foreign.clone().unwrap().processes;
    found.sort_unstable();
    assert_eq!(found, pids());
    // Between slices each of them is stopped; afterwards none is.
    let mut stopped: Vec<u32> = Vec::new();
    daemon.wait("each was seen stopped", |_| {
        stopped.extend(pids().into_iter().filter(|pid| state(*pid) == 'T'));
        pids().iter().all(|pid| stopped.contains(pid))
    });
    daemon.end(Signal::TERM);
    assert!(pids().into_iter().all(|pid| state(pid) != 'T' && class(pid) == Some(ordinary())));
    assert_eq!(found, pids(), "all live");
}

/// A process that is killed on drop; its parent may have ended before.
struct Orphan(u32);

impl Drop for Orphan {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.0 as i32).unwrap();
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

#[test]
fn a_pid_that_is_not_ours_to_schedule_is_refused() {
    let _alone = alone();
    if !may_start("a foreign program") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("it.pid");
    let refused = |text: Option<&str>| {
        let _ = std::fs::remove_file(&file);
        text.into_iter().for_each(|text| std::fs::write(&file, text).unwrap());
        let config = crate::support::head(folder.path(), "") + &with_foreign(&format!("pid_file = {file:?}"), "");
        let out = crate::support::refusal(folder.path(), &config.replace("sluice-nf-bridge", &nf("sluice-nf-bridge")));
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    for (text, want) in [
        (None, "start its program first"),
        (Some("x"), "is no process number"),
        (Some("1"), "process 1 is not to be scheduled"),
        (Some("2"), "is a thread of the kernel"),
    ] {
        let said = refused(text);
        assert!(said.contains(want) && !said.contains("ready"), "{text:?}: {said}");
    }
}
