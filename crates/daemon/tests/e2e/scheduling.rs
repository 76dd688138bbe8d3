//! Cgroups and scheduling classes of NFs, which go with them, also after a kill -9.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sluice_api::model::{EventKind, Nf, NfState, Stats};
use sluice_host::cgroup::{Hierarchy, Version};

use crate::revise::keys;
use crate::skip::skip;
use crate::support::{Daemon, PATIENCE, RR, chain, class, find_nf, find_port, head, port, service, signal};

/// Two NFs that always have packets.
fn endless(sched: &str) -> String {
    port("in", "gen", "rate = 20000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("a", "sluice-nf-bridge", "")
        + &service("b", "sluice-nf-bridge", "")
        + &chain("c", "in", &["a", "b"], "out", "")
        + &format!("[sched]\n{sched}\n")
}

fn start(sched: &str) -> (Daemon, Stats) {
    flowing(Daemon::start("", &endless(sched)))
}

fn flowing(mut daemon: Daemon) -> (Daemon, Stats) {
    let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 1000);
    (daemon, stats)
}

/// The cgroup of a daemon's NFs, wherever the cpu controller is mounted.
pub fn group_of(folder: &Path, name: &str) -> Option<PathBuf> {
    let inside = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = inside.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect();
    folders.sort();
    folders.iter().find(|f| f.ends_with(name)).cloned().or_else(|| folders.iter().find_map(|f| group_of(f, name)))
}

/// The cgroup of an NF's latest life, in that of its daemon.
/// Each life has another one; if there is none, a path that does not exist.
fn folder_of(group: &Path, nf: &Nf) -> PathBuf {
    let core = group.join(format!("core-{}", nf.core));
    let name = format!("nf-{}", nf.name);
    let life = |path: &PathBuf| {
        let rest = path.file_name()?.to_str()?.strip_prefix(&name)?.to_owned();
        if rest.is_empty() { Some(0) } else { rest.strip_prefix('-')?.parse::<u64>().ok() }
    };
    let folders = std::fs::read_dir(&core).into_iter().flatten().flatten().map(|entry| entry.path());
    folders.filter_map(|path| Some((life(&path)?, path))).max().map_or(core.join("none"), |(_, path)| path)
}

/// The cgroup of a daemon's NFs; None where the kernel gives none.
/// Checks that each NF has one below, which holds its process and has a weight.
fn cgroups(daemon: &Daemon, stats: &Stats) -> Option<PathBuf> {
    if ["get no weights from the kernel", "gets no weight from the kernel"].iter().any(|words| daemon.log().contains(words)) {
        skip(daemon.log());
        return None;
    }
    let group = group_of(Path::new("/sys/fs/cgroup"), &format!("sluice-{}", stats.status.pid)).expect("the daemon's cgroup");
    for nf in &stats.nfs {
        // It is moved there while it starts.
        let until = Instant::now() + PATIENCE;
        let pids = || std::fs::read_to_string(folder_of(&group, nf).join("cgroup.procs")).unwrap_or_default();
        while pids().trim() != nf.pid.unwrap().to_string() {
            assert!(Instant::now() < until, "{} holds {:?}", folder_of(&group, nf).display(), pids());
            std::thread::sleep(Duration::from_millis(1));
        }
        let folder = folder_of(&group, nf);
        let weights = ["cpu.shares", "cpu.weight"].map(|file| std::fs::read_to_string(folder.join(file)).is_ok());
        assert!(weights.contains(&true), "{} has no weight", folder.display());
    }
    Some(group)
}

#[test]
fn each_nf_has_a_cgroup_as_long_as_it_runs() {
    let (mut daemon, stats) = start("");
    let Some(group) = cgroups(&daemon, &stats) else { return };
    daemon.wait("shares are given", |s| s.nfs.iter().all(|nf| nf.sched.share_writes > 0 && nf.sched.share > 0.0));
    daemon.client().add_nf("b", None).unwrap();
    let more = daemon.wait("one more runs", |s| s.nfs.len() == 3 && s.nfs.iter().all(|nf| nf.pid.is_some()));
    daemon.wait("it has its cgroup", |_| folder_of(&group, find_nf(&more, "b.1")).exists());
    assert_eq!(cgroups(&daemon, &more), Some(group.clone()));
    daemon.client().remove_nf("b.1").unwrap();
    daemon.wait("its cgroup is gone with it", |s| s.nfs.len() == 2 && !folder_of(&group, find_nf(&more, "b.1")).exists());
    // A new process of the NF takes the place of the former.
    let former = find_nf(&stats, "a.0").pid;
    signal(find_nf(&stats, "a.0"), Signal::KILL);
    let again = daemon.wait("it was started again", |s| {
        let nf = find_nf(s, "a.0");
        nf.restarts == 1 && nf.pid != former && nf.tx_packets > find_nf(&stats, "a.0").tx_packets + 1000
    });
    assert_eq!(cgroups(&daemon, &again), Some(group.clone()));
    daemon.stop();
    assert!(!group.exists(), "{}", group.display());
}

#[test]
fn nfs_beside_a_packet_thread_weigh_as_much_as_one() {
    let (daemon, stats) = flowing(Daemon::start("rx = [0, 1]", &endless("")));
    let Some(group) = cgroups(&daemon, &stats) else { return };
    let weight = |folder: &Path| {
        [Version::V1, Version::V2].into_iter().find_map(|version| {
            let text = std::fs::read_to_string(folder.join(version.file())).ok()?;
            (text.trim() == version.weight(0.01).to_string()).then_some(())
        })
    };
    // Both NFs are on core 1.
    assert_eq!([group.join("core-1"), group.clone()].map(|folder| weight(&folder)), [Some(()); 2]);
    daemon.stop();
}

#[test]
fn cgroups_of_a_killed_daemon_are_removed_by_the_next() {
    let (mut daemon, stats) = start("");
    let Some(group) = cgroups(&daemon, &stats) else { return };
    daemon.end(Signal::KILL);
    daemon.wait_until_nfs_are_gone();
    assert!(group.exists(), "a kill -9 leaves them for the next start");
    let (daemon, stats) = flowing(Daemon::again(daemon.into_folder()));
    assert!(!group.exists(), "{}", group.display());
    let group = cgroups(&daemon, &stats).expect("there were some before");
    daemon.stop();
    assert!(!group.exists(), "{}", group.display());
}

/// Two overloaded NFs of one core; a signal makes the second, dear one cheap.
fn unequal() -> String {
    port("in", "gen", "flows = 8")
        + &port("out", "sink", "")
        + &service("even", "sluice-nf-cost", "args = [\"--cycles\", \"2000\"]\nring = 256")
        + &service("odd", "sluice-nf-cost", "args = [\"--cycles\", \"16000,250\", \"--pick\", \"signal\"]\nring = 256")
        + &chain("c", "in", &["even", "odd"], "out", "")
}

/// Whether NF `more` has more than twice the share of `less`.
fn has_more(stats: &Stats, more: &str, less: &str) -> bool {
    let share = |name| find_nf(stats, name).sched.share;
    share(less) > 0.0 && share(more) > 2.0 * share(less)
}

/// Whether the kernel's weight of an NF is that of its reported share.
pub fn has_weight(group: &Path, nf: &Nf) -> bool {
    let read = |version: Version| std::fs::read_to_string(folder_of(group, nf).join(version.file()));
    [Version::V1, Version::V2].into_iter().any(|version| match read(version) {
        Ok(text) => text.trim().parse() == Ok(version.weight(nf.sched.share)),
        Err(_) => false,
    })
}

#[test]
fn the_kernel_has_the_shares_that_are_reported_and_both_follow_the_cost() {
    let (mut daemon, stats) = flowing(Daemon::start("", &unequal()));
    let Some(group) = cgroups(&daemon, &stats) else { return };
    let all_have = |s: &Stats| s.nfs.iter().all(|nf| has_weight(&group, nf));
    daemon.wait("the dear one has more of the core", |s| has_more(s, "odd.0", "even.0") && all_have(s));
    signal(find_nf(&stats, "odd.0"), Signal::USR1);
    daemon.wait("the cheap one has less", |s| has_more(s, "even.0", "odd.0") && all_have(s));
    // Without packets, both have the same.
    daemon.silence("c", "in");
    daemon.wait("the core is divided equally", |s| s.nfs.iter().all(|nf| nf.sched.share == 0.5) && all_have(s));
    daemon.stop();
    assert!(!group.exists(), "{}", group.display());
}

#[test]
fn a_weight_that_somebody_takes_away_is_logged_once_and_packets_go_on() {
    let (mut daemon, stats) = flowing(Daemon::start("", &unequal()));
    let Some(group) = cgroups(&daemon, &stats) else { return };
    if Hierarchy::find(Path::new("/")).unwrap().version() != Version::V1 {
        return skip("in version 2 the daemon's cgroup and those above it may hold no process");
    }
    daemon.wait("the dear one has more of the core", |s| has_more(s, "odd.0", "even.0"));
    let odd = find_nf(&stats, "odd.0");
    let folder = folder_of(&group, odd);
    std::fs::write(group.parent().unwrap().join("cgroup.procs"), odd.pid.unwrap().to_string()).unwrap();
    let until = Instant::now() + PATIENCE;
    while let Err(error) = std::fs::remove_dir(&folder) {
        assert!(Instant::now() < until, "{}: {error}", folder.display());
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(odd, Signal::USR1);
    let words = "the CPU share of odd.0 cannot be written any more";
    let log = daemon.folder().join("log");
    daemon.wait("it is logged", |_| std::fs::read_to_string(&log).unwrap().contains(words));
    let stats = daemon
        .wait("the other one has what it needs", |s| has_more(s, "even.0", "odd.0") && has_weight(&group, find_nf(s, "even.0")));
    let before = find_port(&stats, "out").tx_packets;
    daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > before + 1000);
    assert_eq!(daemon.log().matches("cannot be written").count(), 1, "{}", daemon.log());
    daemon.stop();
    assert!(!group.exists(), "{}", group.display());
}

#[test]
fn without_weights_there_are_no_cgroups() {
    let (mut daemon, stats) = start("weights = false");
    assert_eq!(group_of(Path::new("/sys/fs/cgroup"), &format!("sluice-{}", stats.status.pid)), None);
    let stats = daemon.stats();
    assert!(stats.nfs.iter().all(|nf| nf.sched.share_writes == 0 && nf.sched.share == 0.0), "{stats:#?}");
    assert!(daemon.client().events().unwrap().iter().all(|event| event.event != EventKind::Share));
    daemon.stop();
}

const OTHER: u32 = 0;
const BATCH: u32 = 3;

fn classes(stats: &Stats) -> Vec<(u32, u32)> {
    stats.nfs.iter().map(|nf| class(nf.pid.unwrap())).collect()
}

#[test]
fn nfs_that_sleep_have_the_class_that_was_asked_for() {
    let own = class(std::process::id());
    let (daemon, stats) = start("class = \"batch\"");
    assert_eq!(classes(&stats), [(BATCH, 0); 2]);
    assert_eq!(class(stats.status.pid), own, "the daemon keeps its own");
    daemon.stop();
    let (daemon, stats) = start("");
    // A test that runs in another class hands it down.
    let inherited = if own.0 == OTHER { (OTHER, 0) } else { own };
    assert_eq!(classes(&stats), [inherited; 2]);
    daemon.stop();
}

#[test]
fn nfs_that_run_change_between_the_fair_classes() {
    let (mut daemon, _) = start("");
    let set = |daemon: &Daemon, class: &str| daemon.client().set(&keys("sched", "", json!({ "class": class })));
    let of_nfs = |daemon: &mut Daemon| classes(&daemon.stats());
    let pids = |daemon: &mut Daemon| daemon.stats().nfs.iter().map(|nf| nf.pid).collect::<Vec<_>>();
    let before = pids(&mut daemon);
    set(&daemon, "batch").unwrap();
    assert_eq!(of_nfs(&mut daemon), [(BATCH, 0); 2]);
    let said = set(&daemon, "rr").unwrap_err().to_string();
    assert!(said.contains("sched.class cannot be changed on a running daemon"), "{said}");
    assert_eq!(of_nfs(&mut daemon), [(BATCH, 0); 2]);
    signal(find_nf(&daemon.stats(), "a.0"), Signal::KILL);
    daemon.wait("it is back", |s| find_nf(s, "a.0").restarts == 1 && s.nfs.iter().all(|nf| nf.state == NfState::Running));
    assert_eq!(of_nfs(&mut daemon), [(BATCH, 0); 2], "the next process, too");
    set(&daemon, "other").unwrap();
    assert_eq!(of_nfs(&mut daemon), [(OTHER, 0); 2]);
    assert_eq!(pids(&mut daemon)[1], before[1], "no other has come");
    daemon.stop();
}

const SLICE: &str = "/proc/sys/kernel/sched_rr_timeslice_ms";

fn slice() -> u32 {
    std::fs::read_to_string(SLICE).unwrap().trim().parse().unwrap()
}

#[test]
fn real_time_nfs_have_their_time_slice_and_the_host_gets_its_own_back() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root may set the time slice of the host");
    }
    let former = slice();
    // Many ticks, whatever the kernel's tick is, and no default.
    let wanted = if former == 40 { 80 } else { 40 };
    let sched = format!("class = \"rr\"\nrr_slice_ms = {wanted}");
    let (daemon, stats) = start(&sched);
    assert_eq!(classes(&stats), [(RR, 1); 2]);
    assert_eq!(slice(), wanted);
    daemon.stop();
    assert_eq!(slice(), former, "after a stop");

    let (mut daemon, _) = start(&sched);
    daemon.end(Signal::KILL);
    daemon.wait_until_nfs_are_gone();
    assert_eq!(slice(), wanted, "a kill -9 leaves it for the next start");
    let (daemon, stats) = flowing(Daemon::again(daemon.into_folder()));
    assert_eq!(classes(&stats), [(RR, 1); 2]);
    assert_eq!(slice(), wanted);
    daemon.stop();
    assert_eq!(slice(), former, "after a kill -9, a start and a stop");

    let (mut daemon, _) = start("class = \"rr\"");
    let set = |daemon: &Daemon, ms: serde_json::Value| daemon.client().set(&keys("sched", "", json!({ "rr_slice_ms": ms })));
    for ms in [wanted, wanted + 4] {
        set(&daemon, ms.into()).unwrap();
        assert_eq!(slice(), ms);
    }
    set(&daemon, serde_json::Value::Null).unwrap();
    assert_eq!(slice(), former, "without a slice of its own");
    set(&daemon, wanted.into()).unwrap();
    daemon.end(Signal::KILL);
    daemon.wait_until_nfs_are_gone();
    assert_eq!(slice(), wanted, "a kill -9 leaves this one, too");
    let (daemon, _) = flowing(Daemon::again(daemon.into_folder()));
    daemon.stop();
    assert_eq!(slice(), former, "after a start without one, and a stop");
}

/// Runs an unprivileged daemon until it is ready or ends: stderr and exit code.
fn as_nobody(sched: &str) -> (String, Option<i32>) {
    let folder = crate::support::open_folder();
    let body = port("in", "gen", "count = 1") + &port("out", "sink", "") + &chain("c", "in", &[], "out", "");
    let config = head(folder.path(), "") + &body + &format!("[sched]\n{sched}\n");
    std::fs::write(folder.path().join("sluice.toml"), config).unwrap();
    // A copy: the build folder may be closed to others.
    let program = folder.path().join("sluiced");
    std::fs::copy(env!("CARGO_BIN_EXE_sluiced"), &program).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = Command::new(&program);
    command.arg(folder.path().join("sluice.toml")).uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::null());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    while lines.read_line(&mut said).unwrap() > 0 {
        if said.contains("sluiced: ready") {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        }
    }
    (said, child.wait().unwrap().code())
}

const NOBODY: u32 = 65_534;

#[test]
fn what_the_kernel_refuses_is_an_error_or_a_warning() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let (said, code) = as_nobody("class = \"rr\"");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the class rr") && said.contains("CAP_SYS_NICE") && !said.contains("ready"), "{said}");
    // Without weights from the kernel the daemon goes on, and logs it once.
    let (said, code) = as_nobody("");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("NFs get no weights from the kernel").count(), 1, "{said}");
    let (said, code) = as_nobody("weights = false");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("weights"), "{said}");
    // Without real-time classes, priorities act by weights.
    let (said, code) = as_nobody("priorities = \"realtime\"");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("priorities have their effect by weights alone").count(), 1, "{said}");
    assert!(said.contains("CAP_SYS_NICE"), "{said}");
}
