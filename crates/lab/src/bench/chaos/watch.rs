//! What must hold in a chaotic run: packet counts, and nothing left on the host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::site::is_protected;
use sluice_api::model::{Chain, Gone, NfState, Stats};

/// Drop reasons of packets that did not enter their chain.
const AT_THE_ENTRY: [&str; 4] = ["entry", "nf_down", "no_path", "policed"];
/// Counters of a stamp-checking port that must stay 0.
const AMISS: [&str; 6] = ["lost", "reordered", "duplicated", "stale", "unstamped", "altered"];

/// Packets that a chain has dropped after they had entered it.
pub fn dropped_inside(chain: &Chain) -> u64 {
    chain.drops.iter().filter(|(why, _)| !AT_THE_ENTRY.contains(&why.as_str())).map(|(_, n)| n).sum()
}

/// Packets inside a chain: entered or originated by a foreign program, and neither left nor
/// dropped.
///
/// Below 0, something was counted twice.
pub fn inside(chain: &Chain) -> i64 {
    (chain.entry_packets + chain.originated_packets) as i64 - chain.exit_packets as i64 - dropped_inside(chain) as i64
}

/// Faults of protected chains and their sinks since `before`, one line each.
pub fn amiss(before: &Stats, after: &Stats) -> Vec<String> {
    let mut found = Vec::new();
    for chain in after.chains.iter().filter(|c| is_protected(&c.name)) {
        let then = before.chains.iter().find(|c| c.name == chain.name);
        for (why, n) in &chain.drops {
            let more = n.saturating_sub(then.and_then(|c| c.drops.get(why)).copied().unwrap_or(0));
            if more > 0 {
                found.push(format!("{} has dropped {more} packets: {why}", chain.name));
            }
        }
    }
    for port in after.ports.iter().filter(|p| is_protected(&p.name)) {
        let then = before.ports.iter().find(|p| p.name == port.name);
        for what in AMISS {
            let of = |p: &sluice_api::model::Port| p.details.get(what).copied().unwrap_or(0.0);
            let more = of(port) - then.map_or(0.0, of);
            if more > 0.0 {
                found.push(format!("{} counts {more} packets {what}", port.name));
            }
        }
    }
    found
}

/// Protected chains that have delivered nothing since `before`, and protected NFs whose process has
/// changed.
pub fn disturbed(before: &Stats, after: &Stats) -> Vec<String> {
    let mut found = Vec::new();
    for chain in before.chains.iter().filter(|c| is_protected(&c.name)) {
        match after.chains.iter().find(|c| c.name == chain.name) {
            Some(now) if now.exit_packets > chain.exit_packets => {}
            Some(_) => found.push(format!("no packet has left {} since the last check", chain.name)),
            None => found.push(format!("{} is gone", chain.name)),
        }
    }
    for nf in before.nfs.iter().filter(|nf| is_protected(&nf.name)) {
        let now = after.nfs.iter().find(|n| n.name == nf.name);
        if now.is_none_or(|n| n.pid != nf.pid || n.state != NfState::Running) {
            let what = now.map_or("gone".into(), |n| format!("{} (process {:?}, was {:?})", n.state.word(), n.pid, nf.pid));
            found.push(format!("{} was not to be touched, and is {what}", nf.name));
        }
    }
    found
}

/// Totals that decreased: drops are counted for the daemon's whole life.
pub fn gone_back(before: &Stats, after: &Stats) -> Vec<String> {
    let now = |why: &str| after.drops.get(why).copied().unwrap_or(0);
    let less = before.drops.iter().filter(|(why, n)| now(why) < **n);
    less.map(|(why, n)| format!("the total of packets dropped for {why} went back from {n} to {}", now(why))).collect()
}

/// Chains, removed ones included, whose counts do not balance although nothing enters them any
/// more.
pub fn unbalanced(stats: &Stats, of: impl Fn(&str) -> bool) -> Vec<String> {
    let gone = of_gone(&stats.gone);
    let wrong = stats.chains.iter().filter(|c| of(&c.name)).chain([&gone]).filter(|c| inside(c) != 0);
    let say = |c: &Chain| {
        let (entered, left) = (c.entry_packets, c.exit_packets);
        let Chain { name, services, drops, originated_packets, .. } = c;
        format!(
            "{name} {services:?}: {entered} packets entered, {originated_packets} originated, {left} left, dropped {drops:?}: {} too few",
            inside(c)
        )
    };
    wrong.map(say).collect()
}

/// All removed chains, as one.
fn of_gone(gone: &Gone) -> Chain {
    let mut chain = Chain { name: "(chains that are gone)".into(), drops: gone.drops.clone(), ..Chain::default() };
    chain.add_counts(&gone.chains);
    chain
}

/// Frames that are out of place when there is no packet: each belongs in the pool of its memory,
/// once.
pub fn astray(stats: &Stats) -> Vec<String> {
    let mut found = Vec::new();
    if stats.status.memories.is_empty() {
        found.push("sluiced does not say how many frames are free".into());
    }
    for memory in &stats.status.memories {
        if memory.free != memory.frames || memory.in_use > 0 {
            let sluice_api::model::Memory { tenant, frames, free, in_use, .. } = memory;
            found.push(format!(
                "of the {frames} frames of tenant {tenant}, {free} are in pools, and NFs have {in_use}, without any packet"
            ));
        }
    }
    found
}

/// Packets that left chains but not ports, or more than once, when nothing enters any more.
/// Protected chains are checked one by one, since each has its own port.
pub fn unsent(stats: &Stats) -> Vec<String> {
    let mut found = Vec::new();
    for chain in stats.chains.iter().filter(|c| is_protected(&c.name)) {
        let sent: u64 = stats.ports.iter().filter(|p| p.name == chain.egress).map(|p| p.tx_packets).sum();
        if sent != chain.exit_packets {
            found.push(format!("{} packets have left {}, and {sent} its port {}", chain.exit_packets, chain.name, chain.egress));
        }
    }
    let left = stats.gone.chains.exit_packets + stats.chains.iter().map(|c| c.exit_packets).sum::<u64>();
    let sent = stats.gone.ports.tx_packets + stats.ports.iter().map(|p| p.tx_packets).sum::<u64>();
    let dropped: u64 = ["port_tx", "no_link", "mtu"].iter().filter_map(|why| stats.drops.get(*why)).sum();
    if left != sent + dropped {
        found.push(format!("{left} packets have left all chains, {sent} all ports, and {dropped} were dropped there"));
    }
    found
}

#[derive(Debug, Clone, PartialEq)]
pub struct Size {
    /// Number of open descriptors by target: a path, or a kind such as `pipe`.
    pub kinds: BTreeMap<String, u64>,
    pub memory_kib: u64,
}

impl Size {
    /// Reads the size of a process.
    ///
    /// # Errors
    /// It is gone.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?.trim().parse().ok());
        let mut kinds = BTreeMap::new();
        for descriptor in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
            // It may have been closed since the folder was read.
            let Ok(target) = std::fs::read_link(descriptor?.path()) else { continue };
            let target = target.to_string_lossy();
            *kinds.entry(kind_of(&target).to_string()).or_default() += 1;
        }
        Ok(Self { kinds, memory_kib: memory.context("the kernel does not report how much memory it has")? })
    }

    /// Number of open descriptors.
    pub fn descriptors(&self) -> u64 {
        self.kinds.values().sum()
    }

    /// What has grown beyond bounds since `first`, with as many NFs, ports and chains.
    pub fn grown_since(&self, first: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let (had, has) = (first.descriptors(), self.descriptors());
        if has > had + MORE_DESCRIPTORS {
            let more = |(kind, now): (&String, &u64)| {
                let more = now.saturating_sub(first.kinds.get(kind).copied().unwrap_or(0));
                (more > 0).then(|| format!("{more} {kind}"))
            };
            let more: Vec<String> = self.kinds.iter().filter_map(more).collect();
            found.push(format!("sluiced had {had} descriptors open at first, and has {has}; more of {}", more.join(", ")));
        }
        if self.memory_kib > first.memory_kib + MORE_KIB {
            found.push(format!("sluiced had {} KiB of memory at first, and has {}", first.memory_kib, self.memory_kib));
        }
        found
    }
}

/// What a descriptor refers to, without the number of a pipe or socket: `pipe:[7]` is a `pipe`.
fn kind_of(target: &str) -> &str {
    let is_number = |text: &str| text.trim_end_matches(']').bytes().all(|b| b.is_ascii_digit());
    target.split_once(":[").filter(|(_, number)| is_number(number)).map_or(target, |(kind, _)| kind)
}

/// Allowed growth in descriptors.
const MORE_DESCRIPTORS: u64 = 16;
/// Allowed growth in KiB: tables grow with what was seen once, and no more.
const MORE_KIB: u64 = 128 * 1024;

/// Processes, with their names, that have a path below `folder` in their environment or arguments.
pub fn processes_of(folder: &Path) -> Vec<(u32, String)> {
    let wanted = folder.as_os_str().as_encoded_bytes();
    let mentions = |file: PathBuf| std::fs::read(file).is_ok_and(|bytes| bytes.windows(wanted.len()).any(|part| part == wanted));
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let of = |entry: std::fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let is_it = pid != std::process::id() && (mentions(entry.path().join("environ")) || mentions(entry.path().join("cmdline")));
        let name = || std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default().trim().to_string();
        is_it.then(|| (pid, name()))
    };
    entries.flatten().filter_map(of).collect()
}

/// Cgroups and namespaces named after the process of one of these daemons.
pub fn things_of(daemons: &[u32]) -> Vec<String> {
    let mut found = Vec::new();
    let names: Vec<String> = daemons.iter().map(|pid| format!("sluice-{pid}")).collect();
    // The number is followed by the end or by a `-`: 12 is not 123.
    let is_ours = |name: &str| {
        names.iter().any(|n| name.strip_prefix(n.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')))
    };
    let mut folders = vec![(PathBuf::from("/sys/fs/cgroup"), 0), (PathBuf::from("/run/netns"), 5), (PathBuf::from("/dev/shm"), 5)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_name().to_str().is_some_and(is_ours) {
                found.push(path.display().to_string());
            } else if depth < 5 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push((path, depth + 1));
            }
        }
    }
    found
}

pub fn left(stats: &Stats) -> BTreeMap<String, u64> {
    stats.chains.iter().filter(|c| is_protected(&c.name)).map(|c| (c.name.clone(), c.exit_packets)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    use crate::bench::stats::tests::partial as stats;

    #[test]
    fn the_books_of_a_chain() {
        let of = |entered: u64, left: u64| {
            stats(json!({"chains": [{"name": "k0", "entry_packets": entered, "exit_packets": left,
                "drops": {"entry": 50, "nf_down": 9, "nf_died": 3, "verdict": 2}}]}))
        };
        assert_eq!(inside(&of(105, 100).chains[0]), 0);
        assert!(unbalanced(&of(105, 100), |_| true).is_empty());
        assert_eq!(unbalanced(&of(107, 100), |_| true).len(), 1);
        assert_eq!(inside(&of(104, 100).chains[0]), -1, "counted twice");
        assert!(unbalanced(&of(104, 100), |name| name != "k0").is_empty());
        let mut helped = of(104, 100);
        helped.chains[0].originated_packets = 1;
        assert!(unbalanced(&helped, |_| true).is_empty(), "a program made one");
    }

    #[test]
    fn the_books_of_chains_that_are_gone() {
        let of =
            |left: u64| stats(json!({"gone": {"entry_packets": 10, "exit_packets": left, "drops": {"verdict": 2, "entry": 5}}}));
        assert!(unbalanced(&of(8), |_| false).is_empty());
        let wrong = unbalanced(&of(7), |_| false);
        assert!(wrong.len() == 1 && wrong[0].contains("gone") && wrong[0].contains("1 too few"), "{wrong:?}");
    }

    #[test]
    fn a_frame_that_is_in_no_pool_or_in_two_is_seen_though_no_nf_has_it() {
        let of = |free: u64, in_use: u64| {
            stats(json!({"status": {"frames": {"total": 100, "free": 100, "in_use": 0}, "memories": [
                {"tenant": "red", "frames": 50, "free": 50, "in_use": 0}, {"tenant": "blue", "frames": 50, "free": free, "in_use": in_use},
            ]}}))
        };
        assert!(astray(&of(50, 0)).is_empty());
        for wrong in [of(49, 0), of(51, 0), of(50, 1), Stats::default()] {
            assert_eq!(astray(&wrong).len(), 1);
        }
    }

    #[test]
    fn packets_leave_by_ports_as_often_as_they_leave_chains() {
        let of = |calm: u64, other: u64| {
            stats(json!({
                "chains": [{"name": "calm", "egress": "calm-out", "exit_packets": 10}, {"name": "k0", "egress": "x0", "exit_packets": 20}],
                "ports": [{"name": "calm-out", "tx_packets": calm}, {"name": "x0", "tx_packets": other}],
                "gone": {"exit_packets": 5, "tx_packets": 3},
                "drops": {"port_tx": 2},
            }))
        };
        assert_eq!(unsent(&of(10, 20)), Vec::<String>::new());
        assert_eq!(unsent(&of(10, 21)).len(), 1);
        assert_eq!(unsent(&of(9, 21)).len(), 1, "{:?}", unsent(&of(9, 21)));
        assert_eq!(unsent(&of(11, 20)).len(), 2);
    }

    #[test]
    fn a_protected_chain_loses_nothing() {
        let of = |lost: f64, drops: serde_json::Value, left: u64, pid: u32| {
            stats(json!({
                "ports": [{"name": "calm-out", "details": {"lost": lost, "stamped": 9.0}}, {"name": "x0", "details": {"lost": 7.0 * lost}}],
                "chains": [{"name": "calm", "exit_packets": left, "drops": drops}, {"name": "k0", "drops": {"nf_died": 5}}],
                "nfs": [{"name": "calm.0", "pid": pid, "state": "running"}, {"name": "s0.0", "pid": pid, "state": "running"}],
            }))
        };
        let before = of(0.0, json!({}), 10, 7);
        let good = of(0.0, json!({}), 20, 7);
        assert_eq!((amiss(&before, &good), disturbed(&before, &good)), (vec![], vec![]));
        assert_eq!(amiss(&before, &of(2.0, json!({}), 20, 7)), ["calm-out counts 2 packets lost"]);
        assert_eq!(amiss(&before, &of(0.0, json!({"ring_full": 4}), 20, 7)), ["calm has dropped 4 packets: ring_full"]);
        assert_eq!(disturbed(&before, &of(0.0, json!({}), 10, 8)).len(), 2, "it stands, and its NF was started again");
        assert!(amiss(&of(2.0, json!({}), 20, 7), &of(2.0, json!({}), 30, 7)).is_empty(), "told before");
    }

    #[test]
    fn totals_do_not_go_back() {
        let of = |n: u64| stats(json!({"drops": {"nf_died": n, "entry": 5}}));
        assert!(gone_back(&of(3), &of(4)).is_empty());
        assert_eq!(gone_back(&of(3), &of(2)), ["the total of packets dropped for nf_died went back from 3 to 2"]);
        assert_eq!(gone_back(&of(3), &Stats::default()).len(), 2);
    }

    #[test]
    fn a_process_is_found_by_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mut child =
            std::process::Command::new("sleep").arg("60").env("SOME_SOCKET", folder.path().join("nf.sock")).spawn().unwrap();
        // Between fork and exec it still has its parent's environment.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !processes_of(folder.path()).iter().any(|(pid, _)| *pid == child.id()) {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(processes_of(folder.path()), []);
        assert_eq!(things_of(&[u32::MAX]), Vec::<String>::new());
        assert_eq!(["pipe:[7]", "anon_inode:[eventfd]", "/dev/null"].map(kind_of), ["pipe", "anon_inode:[eventfd]", "/dev/null"]);
        let size = Size::of(std::process::id()).unwrap();
        assert!(size.memory_kib > 0 && size.grown_since(&size).is_empty());
        assert_eq!(
            size.grown_since(&Size { kinds: BTreeMap::new(), memory_kib: 0 }).len() as u64,
            u64::from(size.descriptors() > MORE_DESCRIPTORS)
        );
    }
}
