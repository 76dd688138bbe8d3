//! Checks a configuration against the host, before anything starts.
//!
//! Changes nothing on the host. Limits: a check is a forecast. What passes here can still fail
//! later (a file may disappear), so the code that opens things reports errors as well.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sluice_api::config::{Class, Config, Hugepages, PortKind};
use sluice_shm::arena::Geometry;

use crate::host::{Host, check_core, resolve_exec};
use crate::problem::{At, Problem};
use crate::{container, fuse, tenancy};
use sluice_api::nearest;

const HUGEPAGE: u64 = 2 << 20;

/// Reports what the host lacks for a valid configuration.
pub fn check(config: &Config, host: &Host) -> Vec<Problem> {
    let mut problems = Vec::new();
    check_cores(config, host, &mut problems);
    check_control_group(config, host, &mut problems);
    check_services(config, host, &mut problems);
    check_ports(config, host, &mut problems);
    check_runtime_dir(config, host, &mut problems);
    check_memory(config, host, &mut problems);
    check_hugepages(config, host, &mut problems);
    check_class(config, host, &mut problems);
    problems.extend(fuse::lacking(config, host));
    problems
}

fn check_cores(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    let m = &config.manager;
    let mut uses: Vec<(At, usize)> = Vec::new();
    for (key, list) in m.roles() {
        uses.extend(list.iter().enumerate().map(|(i, core)| (At::key("manager", key).item(i), *core)));
    }
    for (n, service) in config.services.iter().enumerate() {
        uses.extend(service.cores.iter().enumerate().map(|(i, core)| (At::entry("service", n, "cores").item(i), *core)));
    }
    let wrong = |(at, core)| check_core(core, host).map(|(message, help)| Problem::error(at, message, help));
    problems.extend(uses.into_iter().filter_map(wrong));
}

fn check_control_group(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    let Some(group) = &config.control.group else { return };
    if let Err(names) = host.group(group) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let help = match nearest::nearest(group, &names) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("make it with `groupadd --system {group}`, or name another group"),
        };
        problems.push(Problem::error(At::key("control", "group"), format!("no group is called \"{group}\""), help));
    }
}

fn check_services(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    for (n, service) in config.services.iter().enumerate() {
        if service.is_group() {
            // Its chain has the line that it comes from.
        } else if let Some(container) = &service.container {
            problems.extend(container::check(n, service, container, host));
        } else if let Some(Err(text)) = service.exec.as_ref().map(|exec| resolve_exec(exec, host)) {
            let (message, help) = text.split_once("; ").unwrap_or((&text, ""));
            problems.push(Problem::error(At::entry("service", n, "exec"), message, help));
        }
        if service.is_foreign() && host.uid != 0 {
            problems.push(Problem::error(
                At::entry("service", n, "kind"),
                format!("no permission to make the network namespace and the interfaces of foreign service \"{}\"", service.name),
                "run sluiced as root, or remove the service",
            ));
        }
        let Some(user) = &service.user else { continue };
        let at = At::entry("service", n, "user");
        match host.user(user) {
            Err(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let help = match nearest::nearest(user, &names) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => format!("make it with `useradd --system {user}`, or name another user"),
                };
                problems.push(Problem::error(at, format!("no user is called \"{user}\""), help));
            }
            // The daemon does not start an NF that attaches.
            Ok(_) if service.attach => {}
            Ok(uid) if host.uid != 0 && uid != host.uid => problems.push(Problem::error(
                at,
                format!("no permission to run service \"{}\" as user \"{user}\"", service.name),
                "run sluiced as root, or remove `user`",
            )),
            Ok(_) => {}
        }
    }
}

fn check_ports(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    for (n, port) in config.ports.iter().enumerate() {
        match &port.kind {
            PortKind::Dpdk(_) if !host.dpdk => problems.push(Problem::error(
                At::entry("port", n, "kind"),
                format!("port \"{}\" is of kind \"dpdk\", and this sluiced was built without DPDK", port.name),
                "build with `--features dpdk` (Debian: libdpdk-dev), or use another kind",
            )),
            PortKind::Pcap(pcap) => {
                if let Some(file) = &pcap.read
                    && let Some((what, help)) = unreadable(&host.at(file))
                {
                    problems.push(Problem::error(
                        At::entry("port", n, "read"),
                        format!("cannot read {}: {what}", file.display()),
                        help,
                    ));
                }
                if let Some(file) = &pcap.write {
                    let folder = file.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("/"));
                    let at = At::entry("port", n, "write");
                    let cannot = format!("cannot write {}", file.display());
                    match fs::metadata(host.at(folder)) {
                        Err(_) => problems.push(Problem::error(
                            at,
                            format!("{cannot}: there is no folder {}", folder.display()),
                            format!("run `mkdir -p {}`, or name another file", folder.display()),
                        )),
                        Ok(_) if host.at(file).is_dir() => {
                            problems.push(Problem::error(at, format!("{cannot}: it is a folder"), "name a file"));
                        }
                        Ok(m) if !may_write(&m, host.uid) => problems.push(Problem::error(
                            at,
                            format!("{cannot}: no permission"),
                            "run as root or as the owner of the folder, or name another file",
                        )),
                        Ok(_) => {}
                    }
                }
            }
            _ => {}
        }
    }
}

/// Why a file cannot be read and what to do; None if it can be read.
fn unreadable(path: &Path) -> Option<(String, &'static str)> {
    match fs::File::open(path).and_then(|file| file.metadata()) {
        Ok(m) if m.is_dir() => Some(("it is a folder".into(), "name a file")),
        Ok(_) => None,
        Err(e) => Some(match e.kind() {
            std::io::ErrorKind::NotFound => {
                ("there is no such file".into(), "correct the path; a relative one counts from the folder of the configuration")
            }
            std::io::ErrorKind::PermissionDenied => {
                ("no permission".into(), "run as a user with permission to read it, or change its mode")
            }
            _ => (e.to_string(), "name another file"),
        }),
    }
}

/// Whether a user can make files in a folder, by owner and mode. Group membership is assumed.
fn may_write(folder: &fs::Metadata, uid: u32) -> bool {
    let mode = folder.mode();
    uid == 0 || if folder.uid() == uid { mode & 0o200 != 0 } else { mode & 0o022 != 0 }
}

fn check_runtime_dir(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    let folder = &config.manager.runtime_dir;
    let shown = folder.display();
    let at = At::key("manager", "runtime_dir");
    // The nearest existing ancestor must allow the missing folders to be made.
    for ancestor in folder.ancestors() {
        match fs::metadata(host.at(ancestor)) {
            Ok(m) if !m.is_dir() => {
                let what = format!("the runtime folder {shown} cannot be made: {} is a file", ancestor.display());
                problems.push(Problem::error(at, what, "set manager.runtime_dir to another folder"));
            }
            Ok(m) if !may_write(&m, host.uid) => problems.push(Problem::error(
                at,
                format!("no permission to write in the runtime folder {shown}"),
                "run as root or set manager.runtime_dir to a folder of yours",
            )),
            Ok(_) => problems.extend(takes_no_files(&host.at(ancestor)).map(|why| {
                let what = format!("the runtime folder {shown} cannot be made: {} is {why}", ancestor.display());
                Problem::error(at, what, "set manager.runtime_dir to a folder such as /run/sluice")
            })),
            Err(_) => continue,
        }
        return;
    }
}

/// The kind of a file system in which not even root can make files.
fn takes_no_files(folder: &Path) -> Option<&'static str> {
    const CGROUP: i64 = 0x0027_e0eb;
    const CGROUP2: i64 = 0x6367_7270;
    const PROC: i64 = 0x9fa0;
    const SYSFS: i64 = 0x6265_6572;
    #[allow(clippy::unnecessary_cast)] // its type is not the same on all targets
    let kind = rustix::fs::statfs(folder).ok()?.f_type as i64;
    let is_read_only = || rustix::fs::statvfs(folder).is_ok_and(|fs| fs.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    match kind {
        CGROUP | CGROUP2 | PROC | SYSFS => Some("the kernel's, and takes no files"),
        _ if is_read_only() => Some("mounted read-only"),
        _ => None,
    }
}

/// Size of the packet memory of each arena, in bytes.
fn arenas(config: &Config) -> Vec<u64> {
    let stride = Geometry::stride_for(config.memory.packet_bytes as usize) as u64;
    tenancy::holders(config).iter().map(|of| u64::from(tenancy::frames_of(&config.memory, of)) * stride).collect()
}

/// Formats bytes in the largest unit that is not below 1.
fn bytes(n: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let (shift, unit) = units.into_iter().find(|(shift, _)| n >> shift > 0).unwrap_or((0, "bytes"));
    format!("{:.1} {unit}", n as f64 / (1u64 << shift) as f64)
}

/// Reports packet memory that exceeds the memory of the host.
fn check_memory(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    let Some(have) = host.memory() else { return };
    let arenas = arenas(config);
    let needed: u64 = arenas.iter().sum();
    if needed <= have {
        return;
    }
    let pages = if config.memory.hugepages == Hugepages::Always { " in hugepages" } else { "" };
    let of = match arenas.len() {
        1 => String::new(),
        n => format!(" of {n} arenas"),
    };
    // At most half of the memory: other programs need some.
    let stride = Geometry::stride_for(config.memory.packet_bytes as usize) as u64;
    let most = have / 2 / arenas.len() as u64 / stride;
    let fewer = (most.next_power_of_two() / 2).max(512);
    let of_tenants = if config.memory.tenants.is_empty() { "" } else { ", and fewer in `tenants`" };
    problems.push(Problem::error(
        At::key("memory", "frames"),
        format!("packet memory{of} takes {}{pages}, and this host has {} of memory", bytes(needed), bytes(have)),
        format!("write frames = {fewer} or fewer in [memory]{of_tenants}"),
    ));
}

fn check_hugepages(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    if config.memory.hugepages != Hugepages::Always {
        return;
    }
    let arenas = arenas(config);
    let needed: u64 = arenas.iter().map(|bytes| bytes.div_ceil(HUGEPAGE)).sum();
    // No hint suggests more hugepages than the host has memory for.
    if host.memory().is_some_and(|have| arenas.iter().sum::<u64>() > have) {
        return;
    }
    let free = host.free_hugepages().unwrap_or(0);
    if free < needed {
        // Hugepages that other programs use stay in use.
        let wanted = host.all_hugepages().map_or(needed, |all| needed + all.saturating_sub(free));
        problems.push(Problem::error(
            At::key("memory", "hugepages"),
            match arenas.len() {
                1 => format!("no hugepages: the arena needs {needed} of 2 MiB, and {free} are free"),
                n => format!("no hugepages: {n} arenas need {needed} of 2 MiB, and {free} are free"),
            },
            format!("run `sysctl vm.nr_hugepages={wanted}` as root, or write hugepages = \"auto\""),
        ));
    }
}

/// Checks that this process may give NFs the class SCHED_RR.
fn check_class(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    const CAP_SYS_NICE: u32 = 23;
    if config.sched.class != Class::Rr || host.uid == 0 {
        return;
    }
    let read = |file: &str| fs::read_to_string(host.root.join("proc/self").join(file));
    let (Ok(status), Ok(limits)) = (read("status"), read("limits")) else { return };
    let capabilities = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max realtime priority")?.split_whitespace().next());
    if capabilities.is_some_and(|all| all >> CAP_SYS_NICE & 1 == 0) && limit == Some("0") {
        problems.push(Problem::error(
            At::key("sched", "class"),
            "no permission to give NFs the class rr",
            "run sluiced as root or with CAP_SYS_NICE, or write class = \"other\"",
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::host::resolve;

    /// A host of two cores with a file system of its own. This process may use the cores `allowed`.
    fn host(allowed: &[usize], uid: u32) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str, mode: u32| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write("sys/devices/system/cpu/online", "0-1\n", 0o644);
        write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "3\n", 0o644);
        write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n", 0o644);
        write("etc/group", "root:x:0:\nsluice:x:990:ann,bob\n", 0o644);
        write("opt/sluice/ids", "", 0o755);
        write("usr/bin/ids", "", 0o755);
        write("usr/bin/nat", "", 0o755);
        write("usr/bin/text", "#!/bin/sh\n", 0o644);
        write("usr/bin/elf", "\x7fELF\x02", 0o644);
        write("data/in.pcap", "", 0o644);
        fs::create_dir_all(root.path().join("run")).unwrap();
        let host = Host {
            root: root.path().into(),
            allowed: allowed.iter().copied().collect(),
            uid,
            beside: Some("/opt/sluice".into()),
            path: vec!["/nowhere".into(), "relative".into(), "/usr/bin".into()],
            dpdk: false,
        };
        (root, host)
    }

    fn said(text: &str, host: &Host) -> Vec<String> {
        let config = crate::load::parse(text, "a.toml").unwrap_or_else(|errors| panic!("{errors}"));
        check(&config, host).iter().map(|p| p.to_string().replace("\n ", "")).collect()
    }

    fn service(keys: &str) -> String {
        format!("[[service]]\nname = \"s\"\n{keys}\n")
    }

    fn port(keys: &str) -> String {
        format!("[[port]]\nname = \"p\"\n{keys}\n")
    }

    #[test]
    fn a_host_that_has_everything() {
        let (_root, host) = host(&[0, 1], 0);
        let service = service("exec = \"nat\"\nuser = \"nobody\"");
        let port = port("kind = \"pcap\"\nread = \"/data/in.pcap\"\nwrite = \"/data/out.pcap\"");
        assert_eq!(said(&format!("{service}{port}"), &host), Vec::<String>::new());
    }

    #[test]
    fn cores() {
        let (_root, mut host) = host(&[0, 1], 0);
        assert_eq!(
            said(&format!("[manager]\nrx = [0, 2]\nmonitor = [9]\n{}", service("exec = \"nat\"\ncores = [1, 7]")), &host),
            [
                "manager.rx[1]: no such core: 2 = use one of the cores 0-1",
                "manager.monitor[0]: no such core: 9 = use one of the cores 0-1",
                "service[0].cores[1]: no such core: 7 = use one of the cores 0-1",
            ]
        );
        host.allowed.remove(&1);
        assert_eq!(
            said(&service("exec = \"nat\""), &host),
            ["service[0].cores[0]: core 1 is not allowed for this process = use one of the cores 0"]
        );
    }

    #[test]
    fn programs() {
        let (_root, host) = host(&[0, 1], 0);
        let resolved = |exec: &str| resolve_exec(Path::new(exec), &host);
        assert_eq!(resolved("ids"), Ok("/opt/sluice/ids".into()), "beside this program before PATH");
        assert_eq!(resolved("nat"), Ok("/usr/bin/nat".into()));
        assert_eq!(resolved("/usr/bin/nat"), Ok("/usr/bin/nat".into()));
        let exec = |exec: &str| said(&service(&format!("exec = {exec:?}")), &host);
        assert_eq!(
            exec("text"),
            ["service[0].exec: there is no program text in /opt/sluice or in PATH = write its path, such as \"/usr/bin/text\""]
        );
        assert_eq!(exec("/usr/bin/text"), ["service[0].exec: /usr/bin/text is not executable = run `chmod +x /usr/bin/text`"]);
        assert_eq!(exec("/usr/bin/elf"), ["service[0].exec: /usr/bin/elf is not executable = run `chmod +x /usr/bin/elf`"]);
        // No hint suggests to make a text file executable.
        assert_eq!(exec("/etc/passwd"), ["service[0].exec: /etc/passwd is no program = write the path of one"]);
        assert_eq!(exec("/usr/bin"), ["service[0].exec: /usr/bin is a folder = name the program in it"]);
        assert_eq!(exec("/no/nat"), ["service[0].exec: there is no program /no/nat = correct the path, or build it"]);
        let mut config = crate::load::parse(&service("exec = \"ids\""), "a.toml").unwrap();
        resolve(&mut config, &host);
        assert_eq!(config.services[0].exec.as_deref(), Some(Path::new("/opt/sluice/ids")));
    }

    #[test]
    fn the_group_of_the_control_socket() {
        let (_root, host) = host(&[0], 0);
        let group = |group: &str| said(&format!("[control]\ngroup = {group:?}\n"), &host);
        assert_eq!(group("slice"), ["control.group: no group is called \"slice\" = did you mean \"sluice\"?"]);
        assert_eq!(
            group("ops"),
            ["control.group: no group is called \"ops\" = make it with `groupadd --system ops`, or name another group"]
        );
        assert_eq!(group("sluice"), Vec::<String>::new());
        assert_eq!(group("1234"), Vec::<String>::new());
    }

    #[test]
    fn users() {
        let (_root, mut host) = host(&[0, 1], 0);
        let user = |user: &str, host: &Host| said(&service(&format!("exec = \"nat\"\nuser = {user:?}")), host);
        assert_eq!(user("nobdy", &host), ["service[0].user: no user is called \"nobdy\" = did you mean \"nobody\"?"]);
        assert_eq!(
            user("sluice", &host),
            ["service[0].user: no user is called \"sluice\" = make it with `useradd --system sluice`, or name another user"]
        );
        assert_eq!(user("1234", &host), Vec::<String>::new());
        host.uid = 1234;
        fs::set_permissions(host.root.join("run"), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(user("1234", &host), Vec::<String>::new());
        assert_eq!(
            user("nobody", &host),
            ["service[0].user: no permission to run service \"s\" as user \"nobody\" = run sluiced as root, or remove `user`"]
        );
        assert_eq!(said(&service("attach = true\nuser = \"nobody\""), &host), Vec::<String>::new(), "it is started by others");
    }

    #[test]
    fn ports() {
        let (_root, host) = host(&[0, 1], 0);
        assert_eq!(
            said(&port("kind = \"dpdk\"\ndevargs = \"net_null0\""), &host),
            ["port[0].kind: port \"p\" is of kind \"dpdk\", and this sluiced was built without DPDK = build with `--features \
                 dpdk` \
              (Debian: libdpdk-dev), or use another kind"]
        );
        assert_eq!(
            said(&port("kind = \"pcap\"\nread = \"/data/no.pcap\"\nwrite = \"/no/out.pcap\""), &host),
            [
                "port[0].read: cannot read /data/no.pcap: there is no such file = correct the path; a relative one counts from \
                 the folder \
                 of the configuration",
                "port[0].write: cannot write /no/out.pcap: there is no folder /no = run `mkdir -p /no`, or name another file",
            ]
        );
        assert_eq!(
            said(&port("kind = \"pcap\"\nread = \"/data\"\nwrite = \"/usr\""), &host),
            [
                "port[0].read: cannot read /data: it is a folder = name a file",
                "port[0].write: cannot write /usr: it is a folder = name a file",
            ]
        );
    }

    #[test]
    fn the_runtime_folder() {
        let (_root, mut host) = host(&[0, 1], 0);
        let at = |folder: &str, host: &Host| said(&format!("[manager]\nruntime_dir = {folder:?}\n"), host);
        assert_eq!(at("/run/sluice/a", &host), Vec::<String>::new());
        assert_eq!(
            at("/etc/passwd/x", &host),
            ["manager.runtime_dir: the runtime folder /etc/passwd/x cannot be made: /etc/passwd is a file = set \
                 manager.runtime_dir to \
              another folder"]
        );
        host.uid = 54_321;
        fs::set_permissions(host.root.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(
            at("/run/sluice", &host),
            ["manager.runtime_dir: no permission to write in the runtime folder /run/sluice = run as root or set \
                 manager.runtime_dir to \
              a folder of yours"]
        );
    }

    #[test]
    fn hugepages() {
        let (_root, host) = host(&[0, 1], 0);
        let always = |frames: u32| said(&format!("[memory]\nhugepages = \"always\"\nframes = {frames}\n"), &host);
        // 2,240 bytes a frame: 2,808 frames fit in three pages of 2 MiB, 2,809 do not.
        assert_eq!(always(2808), Vec::<String>::new());
        assert_eq!(
            always(2809),
            ["memory.hugepages: no hugepages: the arena needs 4 of 2 MiB, and 3 are free = run `sysctl vm.nr_hugepages=4` as \
                 root, or \
              write hugepages = \"auto\""]
        );
        // Hosts without the folder have /proc/meminfo.
        fs::remove_dir_all(host.root.join("sys/kernel")).unwrap();
        fs::create_dir_all(host.root.join("proc")).unwrap();
        fs::write(host.root.join("proc/meminfo"), "MemFree: 1 kB\nHugePages_Free:      9\nHugepagesize:       2048 kB\n").unwrap();
        assert_eq!(host.free_hugepages(), Some(9));
        fs::write(host.root.join("proc/meminfo"), "HugePages_Free:      9\nHugepagesize:    1048576 kB\n").unwrap();
        assert_eq!(host.free_hugepages(), Some(0));
    }

    #[test]
    fn hugepages_of_others_stay_theirs() {
        let (_root, host) = host(&[0, 1], 0);
        fs::write(host.root.join("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"), "500\n").unwrap();
        // Three are free, four are needed, and 497 are in use.
        let said = said("[memory]\nhugepages = \"always\"\nframes = 2809\n", &host);
        assert!(said.len() == 1 && said[0].contains("sysctl vm.nr_hugepages=501"), "{said:?}");
    }

    #[test]
    fn packet_memory_that_the_host_does_not_have() {
        let (_root, host) = host(&[0, 1], 0);
        let with = |keys: &str| said(&format!("[memory]\n{keys}\n"), &host);
        assert_eq!(with("frames = 67108864"), Vec::<String>::new(), "nothing is known of the host's memory");
        fs::create_dir_all(host.root.join("proc")).unwrap();
        fs::write(host.root.join("proc/meminfo"), "MemTotal: 24576000 kB\nMemFree: 1000 kB\n").unwrap();
        assert_eq!(with("frames = 1048576"), Vec::<String>::new());
        assert_eq!(
            with("frames = 67108864"),
            [
                "memory.frames: packet memory takes 140.0 GiB, and this host has 23.4 GiB of memory = write frames = 4194304 or fewer in \
             [memory]"
            ]
        );
        // No hint suggests that many hugepages.
        let said = with("frames = 67108864\nhugepages = \"always\"");
        assert!(said.len() == 1 && said[0].contains("takes 140.0 GiB in hugepages, and"), "{said:?}");
        let two = "[[service]]\nname = \"a\"\nattach = true\ntenant = \"red\"\n[[service]]\nname = \"b\"\nattach = true\n";
        let said = with(&format!("frames = 8388608\n{two}"));
        assert!(said.len() == 1 && said[0].contains("packet memory of 2 arenas takes 35.0 GiB"), "{said:?}");
    }

    #[test]
    fn real_time_needs_permission() {
        let (_root, mut host) = host(&[0, 1], 1000);
        fs::set_permissions(host.root.join("run"), fs::Permissions::from_mode(0o777)).unwrap();
        let said = |host: &Host| said("[sched]\nclass = \"rr\"\n", host);
        assert_eq!(said(&host), Vec::<String>::new(), "nothing is known of this process");
        fs::create_dir_all(host.root.join("proc/self")).unwrap();
        let may = |capabilities: &str, limit: &str| {
            fs::write(host.root.join("proc/self/status"), format!("Name:\tsluice\nCapEff:\t{capabilities}\n")).unwrap();
            let line = format!("Max realtime priority     {limit}                    {limit}                    \n");
            fs::write(host.root.join("proc/self/limits"), line).unwrap();
            said(&host)
        };
        let refused = "sched.class: no permission to give NFs the class rr = run sluiced as root or with CAP_SYS_NICE, or write \
                       class = \"other\"";
        assert_eq!(may("0000000000000000", "0"), [refused]);
        assert_eq!(may("0000000000800000", "0"), Vec::<String>::new());
        assert_eq!(may("0000000000000000", "1"), Vec::<String>::new());
        may("0000000000000000", "0");
        host.uid = 0;
        assert_eq!(said(&host), Vec::<String>::new());
    }

    #[test]
    fn folders_that_take_no_files() {
        let here = Host { root: "/".into(), ..host(&[0, 1], 0).1 };
        let at = |folder: &str| said(&format!("[manager]\nruntime_dir = {folder:?}\n"), &here);
        let wanted =
            ["manager.runtime_dir: the runtime folder /proc/x cannot be made: /proc is the kernel's, and takes no files = set \
                       manager.runtime_dir to a folder such as /run/sluice"];
        assert_eq!(at("/proc/x"), wanted);
        assert_eq!(at("/sys/x/y").len(), 1);
    }

    #[test]
    fn a_file_is_checked_as_a_whole() {
        let (_root, host) = host(&[0, 1], 0);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.toml");
        let read = |text: &str| {
            fs::write(&file, text).unwrap();
            crate::load::read_for(&file, &host)
        };
        let loaded = read(&service("exec = \"nat\"")).unwrap();
        assert_eq!(loaded.config.services[0].exec.as_deref(), Some(Path::new("/usr/bin/nat")));
        assert_eq!(loaded.warnings.len(), 1, "the service is in no chain");
        let errors = read(&service("exec = \"nat\"\ncores = [4]")).unwrap_err();
        assert_eq!((errors.errors(), errors.problems.len()), (1, 2));
        let shown = errors.to_string().replace(&folder.path().display().to_string(), "DIR");
        assert!(
            shown.ends_with(
                "DIR/a.toml:4:10: error: no such core: 4\n  |\n4 | cores = [4]\n  |          ^\n  = use one of the cores 0-1"
            ),
            "{shown}"
        );
    }
}
