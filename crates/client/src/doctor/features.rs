//! What each feature needs of this host: whether it is there, and what to do if it is not.
//!
//! Problem: what is missing shows late, and each in its own place: in a refusal of `sluice check`,
//! in a warning of the daemon, or not at all, as slower packets. Approach: read what the kernel
//! says of itself below a root directory, and ask the same functions as the daemon. Limits: it
//! looks as the user and in the cgroup that it runs in, which may be others than the daemon's;
//! whether `sluiced` was built with DPDK only `sluiced` knows; and nothing is tried, so a driver or
//! a sandbox may still refuse.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::thread::{ClockId, futex};
use sluice_cache::doctor::{Finding, good, missing, wrong};
use sluice_config::container::find_runtime;
use sluice_config::host::{Host, resolve_exec};
use sluice_host::cgroup::pen::Pens;
use sluice_host::cgroup::{Hierarchy, unified_home};

use crate::filter;

/// The oldest kernel that Sluice runs on.
const OLDEST: (u32, u32) = (5, 11);

/// Capabilities by their number in the kernel's `capability.h`, and what each is for.
const CAPABILITIES: [(u32, &str, &str); 8] = [
    (13, "CAP_NET_RAW", "af_packet ports"),
    (12, "CAP_NET_ADMIN", "af_xdp ports, promiscuous mode, interfaces of foreign programs"),
    (21, "CAP_SYS_ADMIN", "namespaces of NFs and ports, containers, cache classes"),
    (23, "CAP_SYS_NICE", "scheduling classes, priorities, cores of NFs"),
    (24, "CAP_SYS_RESOURCE", "limits of NFs"),
    (7, "CAP_SETUID", "NFs as users of their own"),
    (6, "CAP_SETGID", "NFs as users of their own"),
    (5, "CAP_KILL", "ending NFs of other users"),
];

/// Examines a host. Changes nothing.
pub fn examine(host: &Host) -> Vec<Finding> {
    let root = host.root.as_path();
    let mut found = vec![kernel(root), cores(host)];
    found.extend(programs(host));
    found.extend([capabilities(root), packet_sockets(root), af_xdp(root), dpdk(root), hugepages(host)]);
    found.extend([weights(root), bounds(root), freezing(root), round_robin(root)]);
    found.extend([users(root), state(root), system_calls(root), futexes(), io_uring(root), containers(host), filters()]);
    found
}

fn read(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok()
}

/// The first two numbers of a kernel's release.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn kernel(root: &Path) -> Finding {
    let release = read(root, "proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let todo = format!("use Linux {}.{} or later", OLDEST.0, OLDEST.1);
    match version_of(release) {
        Some(version) if version >= OLDEST => good("kernel", format!("Linux {release}")),
        Some(_) => wrong("kernel", format!("Linux {release} is too old"), todo),
        None => missing("kernel", "its version cannot be read", todo),
    }
}

fn cores(host: &Host) -> Finding {
    let isolated = read(&host.root, "sys/devices/system/cpu/isolated").unwrap_or_default();
    let isolated = match isolated.trim() {
        "" => String::new(),
        list => format!(", of the host's the kernel keeps {list} free of others (isolcpus)"),
    };
    match host.allowed.len() {
        0 | 1 => missing("cores", "packet threads and NFs share one", "give sluiced two cores or more (taskset, cpuset)"),
        n => good("cores", format!("{n} for this process{isolated}")),
    }
}

/// The programs of Sluice, as the daemon and the client look for them.
fn programs(host: &Host) -> Vec<Finding> {
    let known = [("daemon", "sluiced", "sluice"), ("lab", "sluice-lab", "sluice-lab"), ("NFs", "sluice-nf-monitor", "sluice-nfs")];
    let one = |(subject, program, package): (&str, &str, &str)| match resolve_exec(Path::new(program), host) {
        Ok(path) => good(subject, path.display().to_string()),
        Err(_) => {
            let todo = format!("install the package {package}, or put the folder with {program} into PATH");
            missing(subject, format!("{program} is neither beside sluice nor in PATH"), todo)
        }
    };
    known.into_iter().map(one).collect()
}

/// The capabilities of this process, as a mask.
fn effective(root: &Path) -> Option<u64> {
    let status = read(root, "proc/self/status")?;
    status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
}

fn capabilities(root: &Path) -> Finding {
    const SUBJECT: &str = "permissions";
    let todo = "run sluiced as root or by its systemd unit; run sluice doctor as that user to see what it has";
    let Some(has) = effective(root) else {
        return missing(SUBJECT, "the capabilities of this process cannot be read", todo);
    };
    let lacks: Vec<String> = CAPABILITIES
        .iter()
        .filter(|(number, _, _)| has >> number & 1 == 0)
        .map(|(_, name, what)| format!("{name} ({what})"))
        .collect();
    if lacks.is_empty() {
        good(SUBJECT, "this user may do what the features need")
    } else {
        missing(SUBJECT, format!("this user lacks {}", lacks.join(", ")), todo)
    }
}

/// Whether the kernel has sockets of a family, by its name in `/proc/net/protocols`.
fn has_sockets(root: &Path, family: &str) -> bool {
    let known = read(root, "proc/net/protocols").unwrap_or_default();
    known.lines().any(|line| line.split_whitespace().next() == Some(family))
}

fn packet_sockets(root: &Path) -> Finding {
    if has_sockets(root, "PACKET") {
        return good("af_packet", "the kernel has packet sockets");
    }
    missing("af_packet", "the kernel shows no packet sockets", "run `modprobe af_packet`, or use a kernel with CONFIG_PACKET")
}

fn af_xdp(root: &Path) -> Finding {
    if has_sockets(root, "XDP") {
        return good("af_xdp", "the kernel has XDP sockets; whether without copying is up to the driver of the NIC");
    }
    missing("af_xdp", "the kernel has no XDP sockets", "use a kernel with CONFIG_XDP_SOCKETS, or ports of kind af_packet")
}

fn dpdk(root: &Path) -> Finding {
    let groups = fs::read_dir(root.join("sys/kernel/iommu_groups")).map_or(0, Iterator::count);
    let built = "`sluice check` of a file with a dpdk port says whether sluiced was built with DPDK";
    let has_vfio = root.join("dev/vfio/vfio").exists();
    if groups > 0 && has_vfio {
        return good("DPDK", format!("NICs can be bound to vfio-pci, in {groups} IOMMU groups; {built}"));
    }
    let (what, todo) = if groups == 0 {
        (
            "no IOMMU is in use, so NICs cannot be bound to vfio-pci",
            "turn it on in the firmware and with intel_iommu=on or amd_iommu=on",
        )
    } else {
        ("vfio is not loaded, so NICs cannot be bound to vfio-pci", "run `modprobe vfio-pci`")
    };
    missing("DPDK", what, format!("{todo}; drivers without hardware (net_tap) need none of it; {built}"))
}

fn hugepages(host: &Host) -> Finding {
    let (all, free) = (host.all_hugepages().unwrap_or(0), host.free_hugepages().unwrap_or(0));
    let todo = format!("run `sysctl vm.nr_hugepages={}` as root for packet memory and DPDK that use them", all + 64);
    match (all, free) {
        (0, _) => missing("hugepages", "there are none, and packet memory is in ordinary pages", todo),
        (_, 0) => missing("hugepages", format!("none of {all} is free"), todo),
        _ => good("hugepages", format!("{free} of {all} of 2 MiB are free")),
    }
}

fn weights(root: &Path) -> Finding {
    match Hierarchy::find(root) {
        Ok(found) => good("CPU weights", format!("{}, below {}", found.version(), found.base().display())),
        Err(error) => missing("CPU weights", "NFs that share a core cannot be weighed by the kernel", error.to_string()),
    }
}

fn bounds(root: &Path) -> Finding {
    let mut lacks = Pens::forecast(root);
    if !Pens::may_bound_memory(root) {
        lacks.push("the memory of NFs has no bound");
    }
    if lacks.is_empty() {
        return good("bounds of NFs", "cgroups hold their processes, their memory and their cores (cpuset)");
    }
    let todo = "in a systemd unit write `Delegate=cpu cpuset memory pids`; otherwise mount cgroup2";
    missing("bounds of NFs", lacks.join("; "), todo)
}

/// Time slices for NFs that do not cooperate can stop them by a cgroup.
fn freezing(root: &Path) -> Finding {
    if unified_home(root).is_some() {
        return good("freezer", "cgroups of version 2 can stop NFs between time slices (mechanism freeze)");
    }
    let mounts = read(root, "proc/self/mountinfo").unwrap_or_default();
    let is_freezer = |line: &str| {
        let Some((_, after)) = line.split_once(" - ") else { return false };
        after.starts_with("cgroup ") && after.split([' ', ',']).any(|word| word == "freezer")
    };
    if mounts.lines().any(is_freezer) {
        return good("freezer", "cgroups of version 1 can stop NFs between time slices (mechanism freezer)");
    }
    missing(
        "freezer",
        "no cgroup can stop NFs between time slices",
        "mount cgroup2, or choose another mechanism (`mechanism = \"realtime\"`)",
    )
}

fn round_robin(root: &Path) -> Finding {
    const SUBJECT: &str = "class rr";
    const CAP_SYS_NICE: u32 = 23;
    let may = effective(root).is_some_and(|has| has >> CAP_SYS_NICE & 1 == 1);
    let limits = read(root, "proc/self/limits").unwrap_or_default();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max realtime priority")?.split_whitespace().next());
    if !may && matches!(limit, Some("0") | None) {
        return missing(SUBJECT, "no permission for SCHED_RR", "run sluiced as root, with CAP_SYS_NICE, or with a limit of rtprio");
    }
    if read(root, "proc/sys/kernel/sched_rt_runtime_us").is_some_and(|text| text.trim() == "0") {
        return missing(SUBJECT, "the host gives real-time classes no time", "run `sysctl kernel.sched_rt_runtime_us=950000`");
    }
    let budget = Hierarchy::find(root).ok().map(|found| found.base().join("cpu.rt_runtime_us"));
    if budget.and_then(|file| fs::read_to_string(file).ok()).is_some_and(|text| text.trim() == "0") {
        let todo = "write a budget into cpu.rt_runtime_us there and above, or set [sched] weights = false";
        return missing(SUBJECT, "this cgroup has no real-time budget (CONFIG_RT_GROUP_SCHED)", todo);
    }
    good(SUBJECT, "SCHED_RR is allowed, for `class = \"rr\"` and `priorities = \"realtime\"`")
}

/// Users that NFs can run as.
fn users(root: &Path) -> Finding {
    const SUBJECT: &str = "user namespace";
    const ALL: u64 = u32::MAX as u64;
    let map = read(root, "proc/self/uid_map").unwrap_or_default();
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    match map.lines().filter_map(count).sum::<u64>() {
        0 => missing(SUBJECT, "its users cannot be read", "mount /proc"),
        ALL => good(SUBJECT, "the host's own, with all users for NFs"),
        some => {
            let todo =
                "run sluiced outside of it, or set [manager] uid_first and uid_count to numbers that it has (/proc/self/uid_map)";
            missing(SUBJECT, format!("one with {some} users, and NFs need users of their own"), todo)
        }
    }
}

/// The folder that systemd makes, by the file for systemd-tmpfiles or by the unit.
fn state(root: &Path) -> Finding {
    const SUBJECT: &str = "state folder";
    if root.join("var/lib/sluice").is_dir() {
        return good(SUBJECT, "/var/lib/sluice keeps estimates, former configurations, profiles, placements and timelines");
    }
    let todo = "run `systemd-tmpfiles --create sluiced.conf` or `install -d /var/lib/sluice`, or start sluiced by its unit, which makes it";
    missing(SUBJECT, "there is no /var/lib/sluice, where estimates, former configurations and timelines are kept", todo)
}

fn system_calls(root: &Path) -> Finding {
    if root.join("proc/sys/kernel/seccomp/actions_avail").exists() {
        return good("filter of NFs", "the kernel filters system calls (seccomp)");
    }
    let todo = "use a kernel with CONFIG_SECCOMP_FILTER, or write filter = false for NFs that you trust";
    missing("filter of NFs", "the kernel does not filter system calls", todo)
}

fn futexes() -> Finding {
    // Nothing to wait for: a kernel that knows the call refuses that, another one says so.
    match futex::waitv(&[], futex::WaitvFlags::empty(), None, ClockId::Monotonic) {
        Err(Errno::NOSYS | Errno::PERM) => {
            let what = "no futex_waitv, so an NF whose neighbours do not wake it is taken out of hand-overs";
            missing("futex_waitv", what, "use Linux 5.16 or later, and a sandbox that allows it")
        }
        _ => good("futex_waitv", "NFs that hand over hear neighbours and manager at once"),
    }
}

fn io_uring(root: &Path) -> Finding {
    match read(root, "proc/sys/kernel/io_uring_disabled").as_deref().map(str::trim) {
        Some("2") => {
            let todo = "run `sysctl kernel.io_uring_disabled=0` for NFs with `storage = true`, or do without these";
            missing("io_uring", "the kernel allows it to nobody", todo)
        }
        Some("1") => {
            let todo = "give the users of NFs with `storage = true` that group, or run `sysctl kernel.io_uring_disabled=0`";
            missing("io_uring", "the kernel allows it to the group kernel.io_uring_group alone", todo)
        }
        _ => good("io_uring", "the kernel does not deny it, for NFs with `storage = true`"),
    }
}

/// An error of the form "what; what to do".
fn missing_by(subject: &str, text: &str) -> Finding {
    let (what, todo) = text.split_once("; ").unwrap_or((text, "see above"));
    missing(subject, what, todo)
}

fn containers(host: &Host) -> Finding {
    match find_runtime(Path::new("auto"), host) {
        Ok(path) => good("containers", format!("NFs in containers are started by {}", path.display())),
        Err(text) => missing_by("containers", &text),
    }
}

fn filters() -> Finding {
    match filter::load() {
        Ok(_) => good("capture filters", "libpcap is there, for `sluice capture --filter`"),
        Err(error) => missing_by("capture filters", &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_cache::doctor::Level;

    /// A host of two cores without programs, whose file system has these files.
    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let here = root.path().to_path_buf();
        let host = Host { root: here, allowed: [0, 1].into(), uid: 0, beside: None, path: Vec::new(), dpdk: false };
        (root, host)
    }

    fn of<'f>(found: &'f [Finding], subject: &str) -> &'f Finding {
        found.iter().find(|finding| finding.subject == subject).unwrap_or_else(|| panic!("nothing of {subject}"))
    }

    #[test]
    fn a_host_with_nothing_says_what_to_do_about_each_feature() {
        let (_root, host) = host(&[]);
        let found = examine(&host);
        // What the kernel and the loader are asked is of the host that the test runs on.
        let asked = ["cores", "io_uring", "futex_waitv", "capture filters"];
        for finding in found.iter().filter(|finding| !asked.contains(&finding.subject.as_str())) {
            assert!(finding.level == Level::Missing && finding.todo.is_some(), "{finding:?}");
        }
        let mut subjects: Vec<&str> = found.iter().map(|finding| finding.subject.as_str()).collect();
        subjects.sort_unstable();
        subjects.dedup();
        assert_eq!(subjects.len(), found.len(), "each is found once");
    }

    #[test]
    fn what_is_there_is_found() {
        let (_root, host) = host(&[
            ("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
            ("proc/self/status", "Name:\tsluice\nCapEff:\t000001ffffffffff\n"),
            ("proc/net/protocols", "protocol  size sockets\nXDP       1216      0\nPACKET    1536      2\n"),
            ("sys/kernel/iommu_groups/0/type", "DMA\n"),
            ("dev/vfio/vfio", ""),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "500\n"),
            ("proc/self/uid_map", "         0          0 4294967295\n"),
            ("proc/sys/kernel/seccomp/actions_avail", "kill_process allow\n"),
            ("var/lib/sluice/estimates.json", "{}"),
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
        ]);
        let found = examine(&host);
        let there = [
            "kernel",
            "permissions",
            "af_packet",
            "af_xdp",
            "DPDK",
            "hugepages",
            "user namespace",
            "state folder",
            "filter of NFs",
            "io_uring",
        ];
        for subject in there {
            let finding = of(&found, subject);
            assert!(finding.level == Level::Good && finding.todo.is_none(), "{finding:?}");
        }
        assert_eq!(of(&found, "class rr").level, Level::Good);
        assert_eq!(of(&found, "hugepages").what, "500 of 512 of 2 MiB are free");
    }

    #[test]
    fn what_is_there_and_forbidden_says_what_to_do() {
        let (_root, host) = host(&[
            ("proc/sys/kernel/osrelease", "5.4.0\n"),
            ("proc/self/status", "CapEff:\t0000000000000000\n"),
            ("proc/self/limits", "Max realtime priority     0                    0\n"),
            ("proc/self/uid_map", "0 100000 65536\n"),
            ("proc/sys/kernel/io_uring_disabled", "2\n"),
            ("sys/kernel/iommu_groups/0/type", "DMA\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n"),
        ]);
        let found = examine(&host);
        assert_eq!(of(&found, "kernel").level, Level::Wrong);
        for (subject, what, todo) in [
            ("permissions", "CAP_NET_RAW (af_packet ports)", "as root"),
            ("class rr", "no permission", "CAP_SYS_NICE"),
            ("user namespace", "65536 users", "[manager] uid_first"),
            ("io_uring", "to nobody", "io_uring_disabled=0"),
            ("DPDK", "vfio is not loaded", "modprobe vfio-pci"),
            ("hugepages", "none of 8 is free", "vm.nr_hugepages=72"),
        ] {
            let finding = of(&found, subject);
            assert_eq!(finding.level, Level::Missing, "{finding:?}");
            assert!(finding.what.contains(what) && finding.todo.as_ref().unwrap().contains(todo), "{finding:?}");
        }
    }

    #[test]
    fn the_freezer_of_version_1_is_found() {
        let line = "31 24 0:28 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n";
        let (_root, of_v1) = host(&[("proc/self/mountinfo", line)]);
        assert!(freezing(&of_v1.root).what.contains("version 1"));
        let (_root, of_cpu) = host(&[("proc/self/mountinfo", &line.replace("rw,freezer", "rw,cpu"))]);
        assert_eq!(freezing(&of_cpu.root).level, Level::Missing);
    }

    #[test]
    fn versions_of_kernels() {
        assert_eq!(version_of("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version_of("5.11"), Some((5, 11)));
        assert_eq!(version_of("linux"), None);
    }

    #[test]
    fn nothing_of_this_host_is_wrong() {
        let found = examine(&Host::here());
        assert!(found.iter().all(|finding| finding.level != Level::Wrong), "{found:?}");
        assert!(found.iter().filter(|finding| finding.level == Level::Missing).all(|finding| finding.todo.is_some()), "{found:?}");
    }
}
