//! Warns about services with more rights than the default, and about hosts that cannot confine NFs.
//!
//! The default: a user of its own, no capabilities, a system-call filter without io_uring, one
//! core, a bounded number of processes. Limits: only its author knows what a program needs; the
//! rights of a foreign program are in its own configuration as well.

use std::fs;

use super::host::Host;
use super::problem::{At, Problem};
use sluice_api::config::{Class, Config, Container, Service};
use sluice_host::cgroup::pen::{FORKED, Pens};
use sluice_host::container;

/// Reports all rights that exceed the default.
pub fn check(config: &Config, host: &Host) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (n, service) in config.services.iter().enumerate() {
        of_service(n, service, host, &mut problems);
    }
    of_users(config, host, &mut problems);
    of_cores(config, &mut problems);
    of_weights(config, &mut problems);
    of_host(config, host, &mut problems);
    problems
}

fn of_service(n: usize, service: &Service, host: &Host, problems: &mut Vec<Problem>) {
    let name = &service.name;
    let mut warn = |key: &'static str, message: String, help: &str| {
        problems.push(Problem::warning(At::entry("service", n, key), message, help))
    };
    let is_root = host.uid == 0 && service.user.as_ref().is_some_and(|user| host.user(user) == Ok(0));
    let is_started = is_started(service);
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
    if service.attach {
        warn(
            "attach",
            format!(
                "NFs of service \"{name}\" come by themselves: they have the rights and the streams of the user that starts them, no \
                 filter, and no bound on their processes"
            ),
            "start them with `exec` or in a `container`, or hold them where they are started (as docs/src/guide-containers.md does)",
        );
    }
    if let Some(container) = &service.container {
        of_container(service, container, is_root, host, &mut warn);
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

fn of_container(
    service: &Service,
    container: &Container,
    is_root: bool,
    host: &Host,
    warn: &mut dyn FnMut(&'static str, String, &str),
) {
    let name = &service.name;
    let user_of_bundle = || {
        let config = container::read_bundle(&host.at(container.bundle.as_ref()?)).ok()?;
        config["process"]["user"]["uid"].as_u64()
    };
    if is_root || service.user.is_none() && user_of_bundle().unwrap_or(0) == 0 {
        warn(
            "container",
            format!(
                "containers of service \"{name}\" run as root, without capabilities: files of root that reach into them are \
                 theirs"
            ),
            "write user = \"65534\" or another that may read their root directory",
        );
    }
    if host.uid == 0 && fs::metadata(host.at("/proc/self/mountinfo".as_ref())).is_ok() {
        for lack in Pens::forecast(&host.root).into_iter().filter(|lack| *lack != FORKED) {
            warn(
                "container",
                format!("this host has no cgroup controller for it, so of containers of service \"{name}\" {lack}"),
                "mount cgroup2, or the v1 controllers cpuset and pids; in a systemd unit write Delegate=cpu cpuset pids",
            );
        }
    }
}

/// Warns about tenants which are not isolated because their services run as the same user.
/// The kernel allows processes of one user access to each other's memory.
fn of_users(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    // If all run as the daemon's user, `of_host` warns once.
    if host.uid != 0 {
        return;
    }
    let uid_of = |service: &Service| service.user.as_ref().and_then(|user| host.user(user).ok());
    let (first, count) = (config.manager.uid_first, config.manager.uid_count);
    let has_own = |service: &Service| is_started(service) && !service.is_foreign() && service.user.is_none();
    let tenant_of =
        |service: &Service| service.tenant.as_ref().map_or("without a tenant".into(), |tenant| format!("of tenant \"{tenant}\""));
    for (n, service) in config.services.iter().enumerate() {
        let Some(uid) = uid_of(service) else { continue };
        let mut before = config.services[..n].iter();
        let other = before.find(|other| uid_of(other) == Some(uid) && other.tenant != service.tenant);
        if let Some(other) = other {
            problems.push(Problem::warning(
                At::entry("service", n, "user"),
                format!(
                    "service \"{}\" ({}) runs as the same user as service \"{}\" ({}): each can read and change the other's \
                     memory by /proc, and with it the packets of the other's tenant",
                    service.name,
                    tenant_of(service),
                    other.name,
                    tenant_of(other)
                ),
                "remove `user`, so that it runs as a user of its own, or name a user for each tenant",
            ));
        } else if uid.checked_sub(first).is_some_and(|nth| nth < count) && config.services.iter().any(has_own) {
            problems.push(Problem::warning(
                At::entry("service", n, "user"),
                format!("user {uid} is one of the {count} from {first} on that services without `user` are given"),
                "name another user, or set [manager] uid_first and uid_count to numbers that this host uses for nothing else",
            ));
        }
    }
}

/// Whether the daemon starts its processes directly on the host.
fn is_started(service: &Service) -> bool {
    service.exec.is_some() && !service.attach && service.container.is_none() && !service.is_inline()
}

/// Parts of groups alone have no processes, and inline groups are in the packet threads.
fn has_processes(service: &Service) -> bool {
    !service.is_inline() && service.first_instances() > 0
}

fn of_cores(config: &Config, problems: &mut Vec<Problem>) {
    let threads: Vec<usize> = config.manager.cores().collect();
    for (n, service) in config.services.iter().enumerate().filter(|(_, service)| has_processes(service)) {
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

/// Warns about tenants on one core, between which no weights divide it.
fn of_weights(config: &Config, problems: &mut Vec<Problem>) {
    let (key, remedy) = match (config.sched.class, config.sched.weights) {
        (Class::Rr, _) => ("class", "write class = \"other\" or \"batch\""),
        (_, false) => ("weights", "write weights = true"),
        _ => return,
    };
    let services: Vec<&Service> = config.services.iter().filter(|service| has_processes(service)).collect();
    let meets = |a: &Service, b: &Service| a.tenant != b.tenant && a.cores.iter().any(|core| b.cores.contains(core));
    let mut pairs = services.iter().enumerate().flat_map(|(n, b)| services[..n].iter().map(move |a| (*a, *b)));
    if let Some((a, b)) = pairs.find(|(a, b)| meets(a, b)) {
        problems.push(Problem::warning(
            At::key("sched", key),
            format!(
                "services \"{}\" and \"{}\" of two tenants share a core without weights: the one with more threads gets more of it",
                a.name, b.name
            ),
            format!("{remedy}, or give each tenant cores of its own"),
        ));
    }
}

/// Warns about limits that this host cannot enforce.
fn of_host(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    let is_ours = |service: &Service| is_started(service) && !service.is_foreign();
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
    // Without mountinfo, nothing is known of the cgroups of the host.
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
                "this host has no cgroup controller for it, so `memory` of service \"{}\" is not held: the kernel only prefers to end \
                 such an NF first when memory runs out",
                service.name
            ),
            "mount cgroup2, or the v1 controller memory; in a systemd unit write Delegate=cpu cpuset memory pids",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with these files, on which sluiced runs as user `uid`.
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
        let config = crate::load::parse(text, "a.toml").unwrap();
        let problems = check(&config, host);
        assert!(problems.iter().all(|problem| !problem.is_error()));
        problems.iter().map(|problem| format!("{}: {}", problem.message, problem.help)).collect()
    }

    fn service(keys: &str) -> String {
        format!("[[service]]\nname = \"s\"\nexec = \"/bin/nat\"\n{keys}\n")
    }

    #[test]
    fn more_than_the_default_is_reported_with_its_remedy() {
        let passwd = ("etc/passwd", "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n");
        let (_root, host) = host(0, &[passwd]);
        let contained = "user = \"nobody\"\ncontainer = { root = \"/srv\" }";
        for keys in ["", "user = \"nobody\"", "user = \"1234\"", "filter = true", contained] {
            assert_eq!(said(&service(keys), &host), Vec::<String>::new(), "{keys}");
        }
        for (keys, wanted) in [
            ("user = \"root\"", "runs as root: only a filter is between its NFs and the host"),
            ("user = \"0\"", "remove `user`, so that it runs as a user of its own"),
            ("filter = false", "remove filter = false"),
            ("storage = true", "remove storage = true if"),
            ("kind = \"foreign\"", "runs as root, without a filter: write user = \"NAME\""),
            ("cores = [1, 0]", "core 0 has a thread of the manager"),
            ("container = { root = \"/srv\" }", "run as root, without capabilities: files of root that reach into them are theirs"),
            ("user = \"0\"\ncontainer = { root = \"/srv\" }", "write user = \"65534\""),
        ] {
            let said = said(&service(keys), &host);
            assert!(said.len() == 1 && said[0].contains(wanted), "{keys}: {said:?}");
        }
        let said = said("[[service]]\nname = \"s\"\nattach = true\n", &host);
        assert!(said.len() == 1 && said[0].contains("come by themselves: they have the rights and the streams of"), "{said:?}");
    }

    #[test]
    fn tenants_that_run_as_one_user_are_not_apart() {
        let passwd = ("etc/passwd", "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n");
        let (_root, host) = host(0, &[passwd]);
        let two = |one: &str, other: &str| {
            let service = |name: &str, keys: &str| format!("[[service]]\nname = \"{name}\"\nexec = \"/nat\"\n{keys}\n");
            service("a", one) + &service("b", other)
        };
        for (one, other) in [
            ("tenant = \"red\"", "tenant = \"blue\""),
            ("user = \"nobody\"\ntenant = \"red\"", "user = \"1234\"\ntenant = \"blue\""),
            ("user = \"nobody\"\ntenant = \"red\"", "user = \"nobody\"\ntenant = \"red\""),
            ("user = \"nobody\"", "user = \"65534\""),
        ] {
            assert_eq!(said(&two(one, other), &host), Vec::<String>::new(), "{one} {other}");
        }
        for (one, other, who) in [
            ("user = \"nobody\"\ntenant = \"red\"", "user = \"nobody\"\ntenant = \"blue\"", "\"b\" (of tenant \"blue\")"),
            // The same user by its number, without a tenant.
            ("user = \"nobody\"\ntenant = \"red\"", "user = \"65534\"", "\"b\" (without a tenant)"),
            ("user = \"1234\"\ntenant = \"red\"", "user = \"1234\"\nkind = \"foreign\"", "\"b\" (without a tenant)"),
            ("user = \"1234\"\ntenant = \"red\"", "user = \"1234\"\ncontainer = { root = \"/x\" }", "\"b\" (without a tenant)"),
        ] {
            let said = said(&two(one, other), &host);
            let wanted = [format!("service {who} runs as the same user as service \"a\" (of tenant \"red\")"), "by /proc".into()];
            assert!(said.len() == 1 && wanted.iter().all(|wanted| said[0].contains(wanted)), "{other}: {said:?}");
        }
        let given = said(&two("user = \"2100000\"", "tenant = \"blue\""), &host);
        assert_eq!(given, Vec::<String>::new(), "{given:?}");
        let first = Config::default().manager.uid_first;
        let given = said(&two(&format!("user = \"{first}\""), "tenant = \"blue\""), &host);
        assert!(given.len() == 1 && given[0].contains("that services without `user` are given"), "{given:?}");
        // If no NFs are isolated, that is the only warning.
        let (_root, ordinary) = self::host(1000, &[passwd]);
        assert_eq!(said(&two("user = \"nobody\"\ntenant = \"red\"", "user = \"nobody\"\ntenant = \"blue\""), &ordinary).len(), 1);
    }

    #[test]
    fn tenants_that_share_a_core_without_weights_are_reported() {
        let (_root, host) = host(0, &[]);
        let of = |name: &str, tenant: &str, core: usize| {
            format!("[[service]]\nname = \"{name}\"\nexec = \"/nat\"\ntenant = \"{tenant}\"\ncores = [{core}]\n")
        };
        let two = |sched: &str, tenant: &str, core: usize| {
            said(&(format!("[sched]\n{sched}\n") + &of("a", "red", 1) + &of("b", tenant, core)), &host)
        };
        for sched in ["class = \"rr\"", "weights = false"] {
            assert_eq!([two(sched, "red", 1), two(sched, "blue", 2)].concat(), Vec::<String>::new(), "{sched}");
            let said = two(sched, "blue", 1);
            assert!(said.len() == 1 && said[0].contains("services \"a\" and \"b\" of two tenants share a core"), "{said:?}");
        }
        assert_eq!(two("class = \"batch\"", "blue", 1), Vec::<String>::new());
    }

    #[test]
    fn what_a_host_cannot_hold_is_reported() {
        let (_root, ordinary) = host(1000, &[]);
        let text = said(&service(""), &ordinary);
        assert!(text.len() == 1 && text[0].contains("NFs run as user 1000") && text[0].contains("run sluiced as root"), "{text:?}");
        let (_root, bare) = host(0, &[("proc/self/mountinfo", ""), ("proc/self/cgroup", "")]);
        let text = said(&service(""), &bare);
        assert_eq!(text.len(), 3);
        assert!(text[0].contains("what an NF has forked is not ended with it: mount cgroup2"), "{text:?}");
        // The PID namespace ends what a container forks.
        let text = said(&service("user = \"1\"\ncontainer = { root = \"/srv\" }"), &bare);
        assert_eq!(text.len(), 2, "{text:?}");
        assert!(text[1].contains("so of containers of service \"s\" `pids` holds for all"), "{text:?}");
        let text = said(&service("memory = 64"), &bare);
        assert!(text.len() == 4 && text[3].contains("`memory` of service \"s\" is not held"), "{text:?}");
        // Either cgroup version can bound memory.
        let member = "4:memory:/x\n0::/y\n";
        for mounts in ["31 1 0:22 / /cg/memory rw - cgroup cgroup rw,memory\n", "31 1 0:22 / /cg/unified rw - cgroup2 cgroup2 rw\n"]
        {
            let controllers = ("cg/unified/y/cgroup.controllers", "cpu memory pids\n");
            let (_root, able) = host(0, &[("proc/self/mountinfo", mounts), ("proc/self/cgroup", member), controllers]);
            assert!(said(&service("memory = 64"), &able).iter().all(|text| !text.contains("`memory`")), "{mounts}");
        }
    }
}
