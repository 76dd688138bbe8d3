//! Holes in packet memory, made from outside by root, as no NF may make them.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use sluice_manager::control::model::NfState;

use crate::support::{Daemon, PATIENCE, chain, find_nf, find_port, open_folder, port, service};

/// Where the host says how many hugepages there are.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

const HUGEPAGE: u64 = 2 << 20;

/// Hugepages that the arena of these tests takes: 4,096 frames of 2,240 bytes.
const PAGES: u64 = (4096u64 * 2240).div_ceil(HUGEPAGE);

/// More hugepages for the host, until the end of the test.
struct More(u64);

impl More {
    /// None where the host has none to give.
    fn reserve() -> Option<Self> {
        let total = || fs::read_to_string(format!("{POOL}/nr_hugepages")).ok()?.trim().parse::<u64>().ok();
        let before = total()?;
        let more = Self(before);
        fs::write(format!("{POOL}/nr_hugepages"), (before + PAGES).to_string()).ok()?;
        (total()? == before + PAGES).then_some(more)
    }

    fn free() -> u64 {
        fs::read_to_string(format!("{POOL}/free_hugepages")).unwrap().trim().parse().unwrap()
    }
}

impl Drop for More {
    fn drop(&mut self) {
        let _ = fs::write(format!("{POOL}/nr_hugepages"), self.0.to_string());
    }
}

/// The daemon's descriptor of packet memory.
fn arena_of(daemon: &Daemon) -> PathBuf {
    let entries = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().flatten();
    let is_arena = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("sluice-arena"));
    entries.map(|entry| entry.path()).find(is_arena).expect("it has packet memory")
}

fn config(folder: &std::path::Path, hugepages: &str) -> String {
    let mut text = format!(
        "[manager]\nruntime_dir = {:?}\nidle = \"sleep\"\n[memory]\nframes = 4096\nhugepages = \"{hugepages}\"\n",
        folder.join("run")
    );
    text += &port("load", "gen", "rate = 20000\nflows = 64");
    text += &port("away", "sink", "");
    text += &service("nf", "sluice-nf-bridge", "");
    text + &chain("through", "load", &["nf"], "away", "")
}

fn start(hugepages: &str) -> Daemon {
    let folder = open_folder();
    fs::write(folder.path().join("sluice.toml"), config(folder.path(), hugepages)).unwrap();
    Daemon::again(folder)
}

fn punch(daemon: &Daemon, length: u64) {
    let file = fs::OpenOptions::new().write(true).open(arena_of(daemon)).unwrap();
    assert!(file.metadata().unwrap().size() >= length);
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, length).unwrap();
}

/// Packets go on arriving.
fn flows(daemon: &mut Daemon) {
    let before = find_port(&daemon.stats(), "away").tx_packets;
    daemon.wait("packets arrive", |s| find_port(s, "away").tx_packets > before + 1_000);
}

#[test]
fn holes_that_the_host_can_fill_stop_nobody() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: nobody may open the daemon's memory, which is what is asserted");
        let daemon = start("never");
        assert!(fs::OpenOptions::new().write(true).open("/proc/1/mem").is_err());
        return daemon.stop();
    }
    let mut daemon = start("never");
    flows(&mut daemon);
    for _ in 0..5 {
        punch(&daemon, 4096 * 2240 / 4096 * 4096);
        flows(&mut daemon);
    }
    let stats = daemon.stats();
    assert_eq!((find_nf(&stats, "nf.0").state, find_nf(&stats, "nf.0").restarts), (NfState::Running, 0));
    daemon.silence("through", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_hole_that_the_host_cannot_fill_ends_those_who_could_have_made_it_and_not_the_daemon() {
    let root = rustix::process::geteuid().is_root();
    let Some(_more) = More::reserve().filter(|_| root) else {
        eprintln!("no hugepages can be reserved here: what is asserted is that the daemon refuses to start on them");
        let folder = open_folder();
        let output = crate::support::refusal(folder.path(), &config(folder.path(), "always"));
        assert!(!output.status.success());
        return;
    };
    if More::free() != PAGES {
        eprintln!("others use hugepages at the same time, and would fill the hole");
        return;
    }
    let mut daemon = start("always");
    flows(&mut daemon);
    // Somebody takes what comes free, as any user may. A page that packets are in the daemon may have again before: it goes on with the
    // frames of that one, until it is gone too.
    let taken = memfd_create("taken", MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&taken, PAGES * HUGEPAGE).unwrap();
    let take = |page: u64| fallocate(taken.as_fd(), FallocateFlags::empty(), page * HUGEPAGE, HUGEPAGE).is_ok();
    let mut is_taken = 0;
    let until = Instant::now() + PATIENCE;
    while !daemon.log().contains("a page of packet memory was missing, which nf.0 has mapped") {
        assert!(Instant::now() < until, "{is_taken} pages are taken\n{}", daemon.log());
        if is_taken < PAGES {
            punch(&daemon, PAGES * HUGEPAGE);
            while is_taken < PAGES && take(is_taken) {
                is_taken += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.wait("the daemon is there", |_| true);
    // When there is memory again it is whole again, and so is what flows through, when the NF is let in again.
    drop(taken);
    daemon.wait("it was ended", |s| find_nf(s, "nf.0").stops > 0);
    daemon.wait("it is back", |s| find_nf(s, "nf.0").state == NfState::Running);
    flows(&mut daemon);
    daemon.silence("through", "load");
    daemon.wait_until_empty();
    daemon.stop();
}
