//! Warns about what may more than it has to: services with more rights than they get by default, and hosts that cannot hold NFs.
//!
//! The default: a user of its own, no capabilities, a filter of system calls without io_uring, one core, a bounded number of processes.
//! Each warning says how to do without. Limits: what a program needs is for who has written it to say; what a foreign program or a container may is
//! told by its own configuration as well.

use std::fs;

use super::host::Host;
use super::model::{Config, Service};
use super::problem::{At, Problem};
use crate::mechanism::cgroup::pen::Pens;

/// All that may more than it has to.
pub fn check(config: &Config, host: &Host) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (n, service) in config.services.iter().enumerate() {
        of_service(n, service, host, &mut problems);
    }
    of_cores(config, &mut problems);
    of_host(config, host, &mut problems);
    problems
}

fn of_service(n: usize, service: &Service, host: &Host, problems: &mut Vec<Problem>) {
    let name = &service.name;
    let mut warn = |key, message: String, help: &str| problems.push(Problem::warning(At::entry("service", n, key), message, help));
    let is_root = host.uid == 0 && service.user.as_ref().is_some_and(|user| host.user(user) == Ok(0));
    let is_started = service.exec.is_some() && !service.attach && service.container.is_none();
    if is_started && service.is_foreign() && host.uid == 0 && (service.user.is_none() || is_root) {
        warn(
            "user",
            format!("the program of foreign service \"{name}\" runs as root, without a filter"),
            "write user = \"NAME\" if it can do its work in its network namespace without root, or run it in a container of its own",
        );
    } else if is_started && is_root {
        warn(
            "user",
            format!(
                "service \"{name}\" runs as root: only a filter is between its NFs and the host, and they may leave their cgroups"
            ),
            "remove `user`, so that it runs as a user of its own, and give it what it reads and writes with chmod or chown",
        );
    }
    if is_started && !service.is_foreign() && !service.filter {
        warn(
            "filter",
            format!(
                "service \"{name}\" has no filter of system calls: its NFs can make holes in packet memory and leave their core"
            ),
            "remove filter = false when it is not under a debugger any more",
        );
    }
    if is_started && service.storage {
        warn(
            "storage",
            format!("service \"{name}\" has io_uring, with which its NFs can make holes in the packet memory of their tenant"),
            "remove storage = true if it does not use the library's storage, or has a mode that blocks instead (--blocking)",
        );
    }
}

/// Cores that packet threads share with NFs.
fn of_cores(config: &Config, problems: &mut Vec<Problem>) {
    let threads: Vec<usize> = config.manager.cores().collect();
    for (n, service) in config.services.iter().enumerate() {
        if let Some((i, core)) = service.cores.iter().enumerate().find(|(_, core)| threads.contains(core)) {
            problems.push(Problem::warning(
                At::entry("service", n, "cores").item(i),
                format!(
                    "core {core} has a thread of the manager, and nothing keeps the NFs of service \"{}\" off it",
                    service.name
                ),
                "give NFs cores of their own, if this host has more than one",
            ));
        }
    }
}

/// What this host cannot hold.
fn of_host(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    let is_ours =
        |service: &Service| service.exec.is_some() && service.container.is_none() && !service.attach && !service.is_foreign();
    let Some(n) = config.services.iter().position(is_ours) else { return };
    let at = || At::entry("service", n, "name");
    if host.uid != 0 {
        problems.push(Problem::warning(
            at(),
            format!("NFs run as user {}, as sluiced does: each can read and change the others' memory by /proc", host.uid),
            "run sluiced as root: then each service has a user of its own, and NFs have less rights than now",
        ));
        return;
    }
    // Nothing is known of a host that does not tell what is mounted.
    if fs::metadata(host.at("/proc/self/mountinfo".as_ref())).is_err() {
        return;
    }
    for lack in Pens::forecast(&host.root) {
        problems.push(Problem::warning(
            at(),
            format!("this host has no cgroup controller for it, so {lack}"),
            "mount cgroup2, or the v1 controllers cpuset and pids; in a systemd unit write Delegate=cpu cpuset pids",
        ));
    }
    let bounded = config.services.iter().enumerate().find(|(_, service)| service.memory.is_some());
    if let Some((n, service)) = bounded.filter(|_| !Pens::may_bound_memory(&host.root)) {
        problems.push(Problem::warning(
            At::entry("service", n, "memory"),
            format!(
                "this host has no cgroup controller for it, so `memory` of service \"{}\" is not held: only the kernel's choice of whom to \
                 end when it runs out of memory is",
                service.name
            ),
            "mount cgroup2, or the v1 controller memory; in a systemd unit write Delegate=cpu cpuset memory pids",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with these files, on which sluiced runs as this user.
    fn host(uid: u32, files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let host = Host { root: root.path().into(), allowed: [0, 1].into(), uid, beside: None, path: vec![], dpdk: false };
        (root, host)
    }

    fn said(text: &str, host: &Host) -> Vec<String> {
        let config = Config::parse(text, "a.toml").unwrap();
        let problems = check(&config, host);
        assert!(problems.iter().all(|problem| !problem.is_error()));
        problems.iter().map(|problem| format!("{}: {}", problem.message, problem.help)).collect()
    }

    fn service(keys: &str) -> String {
        format!("[[service]]\nname = \"s\"\nexec = \"nat\"\n{keys}\n")
    }

    #[test]
    fn who_has_more_than_the_default_is_told_how_to_do_without() {
        let passwd = ("etc/passwd", "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n");
        let (_root, host) = host(0, &[passwd]);
        for keys in ["", "user = \"nobody\"", "user = \"1234\"", "filter = true"] {
            assert_eq!(said(&service(keys), &host), Vec::<String>::new(), "{keys}");
        }
        for (keys, wanted) in [
            ("user = \"root\"", "runs as root: only a filter is between its NFs and the host"),
            ("user = \"0\"", "remove `user`, so that it runs as a user of its own"),
            ("filter = false", "remove filter = false"),
            ("storage = true", "remove storage = true if"),
            ("kind = \"foreign\"", "runs as root, without a filter: write user = \"NAME\""),
            ("cores = [1, 0]", "core 0 has a thread of the manager"),
        ] {
            let said = said(&service(keys), &host);
            assert!(said.len() == 1 && said[0].contains(wanted), "{keys}: {said:?}");
        }
    }

    #[test]
    fn what_a_host_cannot_hold_is_told() {
        let (_root, ordinary) = host(1000, &[]);
        let text = said(&service(""), &ordinary);
        assert!(text.len() == 1 && text[0].contains("NFs run as user 1000") && text[0].contains("run sluiced as root"), "{text:?}");
        let (_root, bare) = host(0, &[("proc/self/mountinfo", ""), ("proc/self/cgroup", "")]);
        let text = said(&service(""), &bare);
        assert_eq!(text.len(), 3);
        assert!(text[0].contains("what an NF has forked is not ended with it: mount cgroup2"), "{text:?}");
        let text = said(&service("memory = 64"), &bare);
        assert!(text.len() == 4 && text[3].contains("`memory` of service \"s\" is not held"), "{text:?}");
        // Where it can be, by either version.
        let member = "4:memory:/x\n0::/y\n";
        for mounts in ["31 1 0:22 / /cg/memory rw - cgroup cgroup rw,memory\n", "31 1 0:22 / /cg/unified rw - cgroup2 cgroup2 rw\n"]
        {
            let controllers = ("cg/unified/y/cgroup.controllers", "cpu memory pids\n");
            let (_root, able) = host(0, &[("proc/self/mountinfo", mounts), ("proc/self/cgroup", member), controllers]);
            assert!(said(&service("memory = 64"), &able).iter().all(|text| !text.contains("`memory`")), "{mounts}");
        }
    }
}
