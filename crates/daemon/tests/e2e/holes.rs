//! Holes in shared memory that root makes from outside, as no NF can.

// ptrace makes the fault in a page that cannot be missing on this host.
#![allow(unsafe_code)]

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use sluice_api::health::DeathCause;
use sluice_api::model::NfState;

use crate::skip::skip;
use crate::support::{Daemon, PATIENCE, chain, find_nf, find_port, open_folder, port, service};

/// Where the host reports its hugepages.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

const HUGEPAGE: u64 = 2 << 20;

/// Hugepages that the arena of these tests takes: 4,096 frames of 2,240 bytes.
const PAGES: u64 = (4096u64 * 2240).div_ceil(HUGEPAGE);

/// Extra hugepages of the host, and a file of those that were free, for one test.
struct More(u64, Taken);

/// A file of hugepages, and how many it has.
struct Taken(OwnedFd, u64);

impl Taken {
    fn none() -> Self {
        let file = memfd_create("taken", MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB | MemfdFlags::CLOEXEC).unwrap();
        Self(file, 0)
    }

    /// Takes one more hugepage; false if there is none.
    fn take(&mut self) -> bool {
        ftruncate(&self.0, (self.1 + 1) * HUGEPAGE).unwrap();
        let is_taken = fallocate(self.0.as_fd(), FallocateFlags::empty(), self.1 * HUGEPAGE, HUGEPAGE).is_ok();
        self.1 += u64::from(is_taken);
        is_taken
    }
}

impl More {
    /// None where the host has none to give.
    fn reserve() -> Option<Self> {
        let total = || fs::read_to_string(format!("{POOL}/nr_hugepages")).ok()?.trim().parse::<u64>().ok();
        let before = total()?;
        let mut more = Self(before, Taken::none());
        // Free pages would fill a hole. Pages that others give back are taken later.
        while more.1.take() {}
        fs::write(format!("{POOL}/nr_hugepages"), (before + PAGES).to_string()).ok()?;
        (total()? == before + PAGES).then_some(more)
    }
}

impl Drop for More {
    fn drop(&mut self) {
        let _ = fs::write(format!("{POOL}/nr_hugepages"), self.0.to_string());
    }
}

/// The daemon's file of packet memory, in /proc.
fn arena_of(daemon: &Daemon) -> PathBuf {
    let entries = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().flatten();
    let is_arena = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("sluice-arena"));
    entries.map(|entry| entry.path()).find(is_arena).expect("it has packet memory")
}

fn config(folder: &std::path::Path, hugepages: &str, keys: &str) -> String {
    let mut text = format!(
        "[manager]\nruntime_dir = {:?}\nidle = \"sleep\"\n[memory]\nframes = 4096\nhugepages = \"{hugepages}\"\n",
        folder.join("run")
    );
    text += &port("load", "gen", "rate = 20000\nflows = 64");
    text += &port("away", "sink", "");
    text += &service("nf", "sluice-nf-bridge", keys);
    text + &chain("through", "load", &["nf"], "away", "")
}

fn start(hugepages: &str, keys: &str) -> Daemon {
    let folder = open_folder();
    fs::write(folder.path().join("sluice.toml"), config(folder.path(), hugepages, keys)).unwrap();
    Daemon::again(folder)
}

fn punch(daemon: &Daemon, length: u64) {
    let file = fs::OpenOptions::new().write(true).open(arena_of(daemon)).unwrap();
    assert!(file.metadata().unwrap().size() >= length);
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, length).unwrap();
}

/// Waits until more packets have arrived.
fn flows(daemon: &mut Daemon) {
    let before = find_port(&daemon.stats(), "away").tx_packets;
    daemon.wait("packets arrive", |s| find_port(s, "away").tx_packets > before + 1_000);
}

#[test]
fn holes_that_the_host_can_fill_stop_nobody_where_no_nf_may_make_them() {
    if !rustix::process::geteuid().is_root() {
        skip("only root may open the daemon's memory, which is what is asserted");
        let daemon = start("never", "");
        assert!(fs::OpenOptions::new().write(true).open("/proc/1/mem").is_err());
        return daemon.stop();
    }
    let mut daemon = start("never", "");
    flows(&mut daemon);
    for _ in 0..5 {
        punch(&daemon, 4096 * 2240 / 4096 * 4096);
        flows(&mut daemon);
    }
    let stats = daemon.stats();
    let nf = find_nf(&stats, "nf.0");
    assert_eq!((nf.state, nf.restarts, nf.violations), (NfState::Running, 0, 0));
    daemon.silence("through", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn an_nf_that_may_make_holes_is_stopped_for_those_that_the_host_fills() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root may open the daemon's memory");
    }
    let other = service("other", "sluice-nf-bridge", "");
    let mut daemon = start("never", &format!("filter = false\n{other}"));
    flows(&mut daemon);
    let until = Instant::now() + PATIENCE;
    while find_nf(&daemon.stats(), "nf.0").stops == 0 {
        assert!(Instant::now() < until, "{}", daemon.log());
        punch(&daemon, 4096 * 2240 / 4096 * 4096);
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.wait_for_log("nf.0 has, or may have, made a hole in shared memory and is stopped");
    let stats = daemon.wait("it is back", |s| find_nf(s, "nf.0").state == NfState::Running);
    let (nf, other) = (find_nf(&stats, "nf.0"), find_nf(&stats, "other.0"));
    let death = nf.last_death.as_ref().expect("it has died");
    assert!(death.cause == DeathCause::Violations && death.what.contains("made a hole in shared memory"), "{death:?}");
    // Its filter forbids it.
    assert_eq!((other.state, other.restarts, other.violations), (NfState::Running, 0, 0));
    flows(&mut daemon);
    daemon.silence("through", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_hole_that_the_host_cannot_fill_ends_the_nfs_that_could_have_made_it_and_not_the_daemon() {
    let root = rustix::process::geteuid().is_root();
    let Some(_more) = More::reserve().filter(|_| root) else {
        // The host of CI need not have them.
        eprintln!("skipped: no hugepages can be reserved here: what is asserted is that the daemon refuses to start on them");
        let folder = open_folder();
        let output = crate::support::refusal(folder.path(), &config(folder.path(), "always", ""));
        assert!(!output.status.success());
        return;
    };
    let mut daemon = start("always", "");
    flows(&mut daemon);
    // Another process takes what comes free, as any user may. The daemon may get a page back that
    // its packets are in; it then goes on with that page's frames until that is gone, too.
    let mut taken = Taken::none();
    let until = Instant::now() + PATIENCE;
    while !daemon.log().contains("a page of packet memory was missing, which nf.0 has mapped") {
        assert!(Instant::now() < until, "{} pages are taken\n{}", taken.1, daemon.log());
        punch(&daemon, PAGES * HUGEPAGE);
        while taken.take() {}
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.wait("the daemon is there", |_| true);
    // With memory again the arena is whole, and packets flow when the NF is let in again.
    drop(taken);
    daemon.wait("it was ended", |s| find_nf(s, "nf.0").stops > 0);
    daemon.wait("it is back", |s| find_nf(s, "nf.0").state == NfState::Running);
    flows(&mut daemon);
    daemon.silence("through", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

/// Addresses of the daemon's mappings of memfds with a name.
pub fn addresses_of(daemon: &Daemon, file: &str) -> Vec<usize> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap();
    let lines = maps.lines().filter(|line| line.contains(&format!("memfd:{file} ")));
    let found: Vec<usize> = lines.map(|line| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()).collect();
    assert!(!found.is_empty(), "no {file} in\n{maps}");
    found
}

/// Sends the daemon's main thread the signal for a missing page of a file (SIGBUS).
/// Rings and core pages are ordinary pages, of which a test cannot take all that the host has.
pub fn fault(daemon: &Daemon, address: usize) {
    let pid = daemon.pid() as libc::pid_t;
    let check = |what: &str, result: libc::c_long| assert!(result >= 0, "{what}: {}", std::io::Error::last_os_error());
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: each call gets what its interface requires and touches no other memory of this
    // process; its effect on the daemon is what the test is about.
    unsafe {
        check("attach", libc::ptrace(libc::PTRACE_ATTACH, pid, none, none));
        let mut status = 0;
        check("wait", libc::waitpid(pid, &raw mut status, libc::__WALL).into());
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (info.si_signo, info.si_code) = (libc::SIGBUS, libc::BUS_ADRERR);
        // `si_addr` is the first field after the common ones, at offset 16.
        (&raw mut info).byte_add(16).cast::<usize>().write(address);
        check("say what signal", libc::ptrace(libc::PTRACE_SETSIGINFO, pid, none, (&raw mut info).cast::<libc::c_void>()));
        check("send it", libc::ptrace(libc::PTRACE_DETACH, pid, none, libc::SIGBUS as usize as *mut libc::c_void));
    }
}

#[test]
fn a_page_of_rings_or_of_a_core_that_is_missing_ends_the_nf_that_has_it_and_not_the_daemon() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root may send the daemon such a signal");
    }
    let mut daemon = start("never", "");
    for (n, (file, what)) in [("sluice-nf", "its own rings"), ("sluice-core", "the page of its core")].into_iter().enumerate() {
        flows(&mut daemon);
        fault(&daemon, addresses_of(&daemon, file)[0]);
        daemon.wait("it was ended", |s| find_nf(s, "nf.0").stops == n as u64 + 1);
        let line = format!("a page of {what} was missing, which nf.0 has mapped");
        assert!(daemon.log().contains(&line), "{}", daemon.log());
        daemon.wait("it is back", |s| find_nf(s, "nf.0").state == NfState::Running);
    }
    flows(&mut daemon);
    daemon.silence("through", "load");
    daemon.wait_until_empty();
    daemon.stop();
}
