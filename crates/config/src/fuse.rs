//! Fused and inline chains become a service whose instances run all handlers of the chain.
//!
//! # Approach
//! A configuration is validated as written. Then [`expand`] adds a service `CHAIN.fused`, the
//! *group*, whose program [`GROUP`](object::GROUP) loads the shared object of each of the chain's
//! services, and puts it in the chain in their place. A fused chain may name a run of its services
//! (`fuse`); then these alone are the group's. All else treats a group as any service: it is
//! scheduled, restarted, upgraded (when a part's arguments change) and measured as one. A service
//! that runs in groups alone has no instances of its own.
//!
//! The group of an inline chain, `CHAIN.inline`, has an instance in each packet thread that
//! receives, instead of processes. What the configuration says of its services' processes has no
//! effect there.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use sluice_api::config::{Chain, Config, Mode, Run, Service};
use sluice_shm::object;
use sluice_shm::page::MAX_PARTS;

use crate::host::{Host, resolve_exec};
use crate::problem::{At, Problem};

fn named<'a>(config: &'a Config, name: &str) -> Option<&'a Service> {
    config.services.iter().find(|service| service.name == name)
}

/// Whether a chain passes a group, and so has been expanded.
fn has_group(config: &Config, chain: &Chain) -> bool {
    chain.services.iter().any(|name| named(config, name).is_some_and(Service::is_group))
}

/// Hops of a chain, by position, whose services are to become a group.
type Hops = std::ops::Range<usize>;

/// Where a chain's `fuse` stands among its services. None: nowhere.
fn fused_hops(chain: &Chain) -> Option<Hops> {
    let n = chain.fuse.len();
    let first = chain.services.windows(n.max(1)).position(|hops| hops == chain.fuse)?;
    Some(first..first + n)
}

/// Chains that are to become groups, with their index and these hops. One NF alone is a process
/// anyway.
fn grouped(config: &Config) -> impl Iterator<Item = (usize, &Chain, Hops)> {
    let hops_of = move |chain: &Chain| {
        let all = 0..chain.services.len();
        let hops = match chain.run {
            Run::Isolated => None,
            Run::Fused if chain.fuse.is_empty() => Some(all).filter(|hops| hops.len() > 1),
            Run::Fused => fused_hops(chain).filter(|hops| hops.len() > 1),
            Run::Inline => Some(all).filter(|hops| !hops.is_empty()),
        };
        hops.filter(|_| !has_group(config, chain))
    };
    config.chains.iter().enumerate().filter_map(move |(i, chain)| Some((i, chain, hops_of(chain)?)))
}

/// What is wrong with the `fuse` of a chain as it is written, and what to do.
fn wrong_fuse(chain: &Chain) -> Option<(String, &'static str)> {
    let name = &chain.name;
    if chain.fuse.is_empty() {
        None
    } else if chain.run != Run::Fused {
        Some((format!("chain \"{name}\" has `fuse` and is {}", chain.run.word()), "write run = \"fused\", or remove `fuse`"))
    } else if chain.fuse.len() < 2 {
        let help = "name two neighbours of the chain at least, or write run = \"isolated\"";
        Some((format!("`fuse` of chain \"{name}\" names one service"), help))
    } else {
        let is_there = fused_hops(chain).is_some();
        let what = format!("`fuse` of chain \"{name}\" names no neighbours of its `services`");
        (!is_there).then_some((what, "name services that follow each other there, in the same order"))
    }
}

/// Why a service cannot run in a process with others, and what to do.
fn unfit(service: &Service) -> Option<(&'static str, &'static str)> {
    let own_process = "run its chain isolated, or leave it out of the chain";
    Some(match service {
        s if s.is_foreign() => ("is foreign: its program does not use the library", own_process),
        s if s.attach => ("attaches from outside", "let sluiced start it (exec), or run its chain isolated"),
        s if s.container.is_some() => ("runs in a container", "remove `container`, or run its chain isolated"),
        s if s.is_pooled() => ("is a pool, with instances for single flows", "write per = \"shared\", or run its chain isolated"),
        s if s.lets_ask() => (
            "may ask for a priority (`priority_min`, `priority_max`), and all of the group have one",
            "remove these keys, or run its chain isolated",
        ),
        s if s.storage => ("uses the library's storage, for which all of the group would wait", own_process),
        s if s.args.iter().any(|arg| arg == object::PART) => ("has the argument --part, which is the group's own", own_process),
        _ => return None,
    })
}

/// Why a service cannot run in a packet thread, and what to do.
fn unfit_inline(service: &Service) -> Option<(&'static str, &'static str)> {
    let needs_process = "remove the key, or run its chain fused or isolated";
    Some(match service {
        s if !s.trusted => ("is not trusted", "write trusted = true if its errors may end the daemon, or run its chain fused"),
        s if s.user.is_some() => ("has a `user`, and the daemon has another", needs_process),
        s if s.memory.is_some() => ("has a bound on its `memory`, which needs a process", needs_process),
        s if !s.env.is_empty() => ("has an environment of its own (`env`), which needs a process", needs_process),
        _ => return None,
    })
}

/// A key whose value has to be that of the first service, as text; keys that differ are named.
fn differing(first: &Service, other: &Service, run: Run) -> Option<&'static str> {
    if run == Run::Inline {
        return (first.tenant != other.tenant).then_some("tenant");
    }
    let same = [
        ("tenant", first.tenant == other.tenant),
        ("user", first.user == other.user),
        ("cores", first.cores == other.cores),
        ("instances", first.apart.max(first.instances) == other.apart.max(other.instances)),
        ("all_shards", first.all_shards == other.all_shards),
        ("filter", first.filter == other.filter),
        ("zygote", first.zygote == other.zygote),
        ("mode", first.mode == other.mode),
        ("priority", first.priority == other.priority),
        ("wakeup", first.wakeup == other.wakeup),
    ];
    same.into_iter().find(|(_, same)| !same).map(|(key, _)| key)
}

/// Whether variables that both have are equal.
fn agree(one: &Service, other: &Service) -> bool {
    one.env.iter().all(|(key, value)| other.env.get(key).is_none_or(|known| known == value))
}

/// Problems of chains that are to be fused. A name has at most `longest_name` bytes.
pub(crate) fn problems(config: &Config, longest_name: usize) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (i, chain) in config.chains.iter().enumerate().filter(|(_, chain)| !has_group(config, chain)) {
        let wrong = wrong_fuse(chain).map(|(what, help)| Problem::error(At::entry("chain", i, "fuse"), what, help));
        problems.extend(wrong);
    }
    for (i, chain, hops) in grouped(config) {
        let (how, suffix) = (chain.run.word(), chain.run.suffix().unwrap_or_default());
        let at = At::entry("chain", i, "services");
        let names = &chain.services[hops.clone()];
        let services: Vec<&Service> = names.iter().filter_map(|name| named(config, name)).collect();
        // A hop that is reversed, or names no service, is another check's.
        if services.len() < names.len() {
            if names.iter().any(|hop| hop.contains(':')) {
                problems.push(Problem::error(
                    at,
                    format!("chain \"{}\" is {how} and has a reversed hop", chain.name),
                    "write run = \"isolated\"",
                ));
            }
            continue;
        }
        let mut error = |at: At, what: String, help: &str| problems.push(Problem::error(at, what, help));
        for (number, service) in services.iter().enumerate() {
            let (at, name, of) = (at.item(hops.start + number), &service.name, &chain.name);
            let inline = (chain.run == Run::Inline).then(|| unfit_inline(service)).flatten();
            if let Some((why, help)) = unfit(service).or(inline) {
                error(at, format!("service \"{name}\" {why}, and chain \"{of}\" is {how}"), help);
            } else if let Some(key) = differing(services[0], service, chain.run) {
                error(
                    at,
                    format!("services \"{}\" and \"{name}\" of {how} chain \"{of}\" differ in `{key}`", services[0].name),
                    "services that run in one process need one value; make them equal, or run the chain isolated",
                );
            } else if let Some(before) = services[..number].iter().find(|before| !agree(before, service)) {
                error(
                    at,
                    format!("services \"{}\" and \"{name}\" of {how} chain \"{of}\" differ in `env`", before.name),
                    "one process has one value of a variable; make them equal, or run the chain isolated",
                );
            } else if services[..number].iter().any(|before| before.name == *name) {
                error(
                    at,
                    format!("service \"{name}\" comes twice in {how} chain \"{of}\""),
                    "name it once, or run the chain isolated",
                );
            }
        }
        if services.len() > MAX_PARTS {
            error(at, format!("{how} chain \"{}\" has {} services", chain.name, services.len()), "a group has 16 at most");
        }
        if chain.name.len() + suffix.len() > longest_name {
            let help = format!("its group is named after it: choose a name of at most {} letters", longest_name - suffix.len());
            error(At::entry("chain", i, "name"), format!("the name of {how} chain \"{}\" is too long", chain.name), &help);
        }
    }
    problems
}

/// The group of a chain's hops.
fn group(config: &Config, chain: &Chain, hops: Hops) -> Option<Service> {
    let parts = &chain.services[hops];
    let services: Vec<&Service> = parts.iter().map(|name| named(config, name)).collect::<Option<_>>()?;
    let first = (*services.first()?).clone();
    let part = |service: &&Service| {
        let program = service.exec.clone().unwrap_or_default();
        [object::PART.to_string(), format!("{}={}", service.name, program.display())].into_iter().chain(service.args.clone())
    };
    let sends = services.iter().any(|service| service.may_send_to.is_some()).then(|| {
        // One that has no list may send to what is in its chains.
        let all = services.iter().all(|service| service.may_send_to.is_some());
        let own = if all { Vec::new() } else { [chain.services.clone(), vec![chain.egress.clone()]].concat() };
        let mut to: Vec<String> = services.iter().flat_map(|s| s.may_send_to.clone().unwrap_or_default()).chain(own).collect();
        to.sort_unstable();
        to.dedup();
        to
    });
    let memory = services.iter().map(|service| service.memory).collect::<Option<Vec<_>>>();
    let group = Service {
        name: format!("{}{}", chain.name, chain.run.suffix()?),
        exec: Some(PathBuf::from(object::GROUP)),
        args: services.iter().flat_map(part).collect(),
        env: services.iter().flat_map(|service| service.env.clone()).collect(),
        pids: services.iter().fold(0u32, |sum, service| sum.saturating_add(service.pids)),
        memory: memory.map(|all| all.into_iter().fold(0u32, u32::saturating_add)),
        ring: services.iter().map(|service| service.ring).min().unwrap_or(first.ring),
        may_send_to: sends,
        parts: parts.to_vec(),
        // A part may be one already, and have none by itself.
        instances: first.apart.max(first.instances),
        apart: 0,
        ..first
    };
    Some(match chain.run {
        Run::Inline => {
            let cores = config.manager.rx_cores().to_vec();
            let instances = cores.len() as u32;
            let (mode, wakeup, zygote) = (Mode::Sleep, None, false);
            Service { cores, instances, mode, wakeup, zygote, ..group }
        }
        Run::Isolated | Run::Fused => group,
    })
}

/// Services that the parts of a group could send packets to if their chain were isolated: those of
/// the chain, where no part has a list. In a group such a packet has nowhere to go; that is no
/// violation.
pub fn targets_if_isolated(group: &Service) -> &[String] {
    if group.may_send_to.is_none() { &group.parts } else { &[] }
}

/// Whether a service runs in packet threads alone: it is in inline chains and in no others, and
/// nothing else names it. The configuration has no groups yet.
pub(crate) fn is_inline_alone(config: &Config, name: &str) -> bool {
    let has = |chain: &&Chain| chain.services.iter().any(|written| sluice_api::config::hop(written).0 == name);
    let mut chains = config.chains.iter().filter(has).peekable();
    // A part without a list may send to its chain, and so a group where another part has one.
    let lists = |chain: &Chain| {
        let parts = || chain.services.iter().filter_map(|part| named(config, part));
        parts().any(|part| part.may_send_to.is_some()) && parts().any(|part| part.may_send_to.is_none())
    };
    let is_named = config.services.iter().any(|service| {
        service.pool.as_ref().is_some_and(|pool| pool.fallback.as_deref() == Some(name))
            || service.may_send_to.iter().flatten().any(|to| to == name)
    });
    chains.peek().is_some() && !is_named && chains.all(|chain| chain.run == Run::Inline && !lists(chain))
}

/// Replaces the hops of fused and inline chains by their groups. The configuration is valid and its
/// paths are absolute; one without such chains, or that has its groups already, stays as it is.
pub fn expand(config: &mut Config) {
    let made = |(i, chain, hops): (usize, &Chain, Hops)| Some((i, hops.clone(), group(config, chain, hops)?));
    let groups: Vec<(usize, Hops, Service)> = grouped(config).filter_map(made).collect();
    for (i, hops, group) in groups {
        config.chains[i].services.splice(hops, [group.name.clone()]);
        config.services.push(group);
    }
    let in_chains = config.chains.iter().flat_map(|chain| &chain.services).map(|hop| sluice_api::config::hop(hop).0);
    let fallbacks = config.services.iter().filter_map(|service| service.pool.as_ref()?.fallback.as_deref());
    let targets = config.services.iter().flat_map(|service| service.may_send_to.iter().flatten()).map(String::as_str);
    let used: HashSet<String> = in_chains.chain(fallbacks).chain(targets).map(str::to_owned).collect();
    let parts = parts(config);
    for service in &mut config.services {
        match (used.contains(&service.name), service.instances) {
            (true, 0) => service.instances = std::mem::take(&mut service.apart),
            (false, 1..) if parts.contains(&service.name) => {
                service.apart = service.apart.max(std::mem::take(&mut service.instances));
            }
            _ => {}
        }
    }
}

/// Undoes [`expand`]: chains name their services again, and there are no groups.
pub(crate) fn contract(config: &mut Config) {
    let groups: Vec<Service> = config.services.extract_if(.., |service| service.is_group()).collect();
    for group in &groups {
        for chain in &mut config.chains {
            if let Some(hop) = chain.services.iter().position(|name| *name == group.name) {
                chain.services.splice(hop..=hop, group.parts.iter().cloned());
            }
        }
        for part in config.services.iter_mut().filter(|service| group.parts.contains(&service.name) && service.instances == 0) {
            part.instances = std::mem::take(&mut part.apart);
        }
    }
}

/// Whether an isolated chain could be fused with nothing else changed. A name has at most
/// `longest_name` bytes.
pub fn could_fuse(config: &Config, chain: &Chain, longest_name: usize, host: &Host) -> bool {
    let services = chain.services.iter().filter_map(|name| named(config, name)).cloned().collect();
    let chains = vec![Chain { run: Run::Fused, ..chain.clone() }];
    let mut tried = Config { services, chains, ..Config::default() };
    let is_valid = chain.run == Run::Isolated && chain.services.len() > 1 && problems(&tried, longest_name).is_empty();
    is_valid && {
        expand(&mut tried);
        lacking(&tried, host).is_empty()
    }
}

/// The services that run in a group.
pub(crate) fn parts(config: &Config) -> HashSet<String> {
    config.services.iter().flat_map(|service| service.parts.iter().cloned()).collect()
}

/// The programs of a group's parts, in order: where in its arguments each is named, and its path.
fn programs(group: &Service) -> impl Iterator<Item = (usize, &Path)> {
    let named = group.args.windows(2).enumerate().filter(|(_, pair)| group.is_group() && pair[0] == object::PART);
    named.filter_map(|(at, pair)| Some((at + 1, Path::new(pair[1].split_once('=')?.1))))
}

/// Makes the paths of groups' programs and of their parts' absolute, as [`resolve_exec`] does.
pub fn resolve(config: &mut Config, host: &Host) {
    for group in config.services.iter_mut().filter(|service| service.is_group()) {
        if let Some(Ok(program)) = group.exec.as_ref().map(|exec| resolve_exec(exec, host)) {
            group.exec = Some(program);
        }
        let found = programs(group).filter_map(|(at, program)| Some((at, resolve_exec(program, host).ok()?)));
        for (at, program) in found.collect::<Vec<_>>() {
            let name = group.args[at].split_once('=').map_or("", |(name, _)| name);
            group.args[at] = format!("{name}={}", program.display());
        }
    }
}

/// The shared objects of a group's parts, in order. One that is not there has an empty path.
pub fn objects(group: &Service) -> Vec<PathBuf> {
    programs(group).map(|(_, program)| object::find(program, &[], Path::exists).unwrap_or_default()).collect()
}

/// What the host lacks for the groups of an expanded configuration.
pub(crate) fn lacking(config: &Config, host: &Host) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (i, chain) in config.chains.iter().enumerate() {
        let group = chain.services.iter().filter_map(|name| named(config, name)).find(|service| service.is_group());
        let Some(group) = group else { continue };
        let at = At::entry("chain", i, "run");
        if let Some(Err(text)) = group.exec.as_ref().filter(|_| !group.is_inline()).map(|exec| resolve_exec(exec, host)) {
            let (message, help) = text.split_once("; ").unwrap_or((&text, ""));
            problems.push(Problem::error(at, message, help));
        }
        for service in group.parts.iter().filter_map(|name| named(config, name)) {
            let Some(Ok(program)) = service.exec.as_ref().map(|exec| resolve_exec(exec, host)) else { continue };
            if object::find(&program, &[], |path| host.at(path).exists()).is_none() {
                problems.push(Problem::error(
                    at,
                    format!(
                        "service \"{}\" cannot run in a group: {} has no shared object {} beside it",
                        service.name,
                        program.display(),
                        object::name_of(&program).display()
                    ),
                    "build its crate with sluice_nf::nf! (in C, SLUICE_NF), or write run = \"isolated\"",
                ));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    const TEXT: &str = r#"
        port = [{ name = "in", kind = "gen" }, { name = "out", kind = "sink" }]
        service = [
            { name = "fw", exec = "sluice-nf-firewall", args = ["--rules", "x"], ring = 512, memory = 64, env = { A = "1" } },
            { name = "nat", exec = "/opt/nat", memory = 32, env = { B = "2" }, may_send_to = ["out"] },
            { name = "ids", exec = "ids" },
        ]
        chain = [{ name = "web", services = ["fw", "nat"], egress = "out", run = "fused" }, { name = "all", services = ["nat", "ids"], egress = "out" }]
        rule = [{ chain = "web", vlan = 1 }, { chain = "all" }]
    "#;

    fn config(text: &str) -> Config {
        load::parse(text, "a.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn a_fused_chain_has_one_hop_with_all_that_its_services_have() {
        let mut config = config(TEXT);
        expand(&mut config);
        let group = named(&config, "web.fused").unwrap();
        assert_eq!(config.chains[0].services, ["web.fused"]);
        assert_eq!(group.args, ["--part", "fw=sluice-nf-firewall", "--rules", "x", "--part", "nat=/opt/nat"]);
        assert_eq!((group.ring, group.memory, group.env.len(), group.instances), (512, Some(96), 2, 1));
        assert_eq!(group.may_send_to.as_deref().unwrap(), ["fw", "nat", "out"], "the firewall may do what it may in its chain");
        assert_eq!(group.parts, ["fw", "nat"]);
        assert!(targets_if_isolated(group).is_empty(), "the list says all");
        let without_list = Service { may_send_to: None, ..group.clone() };
        assert_eq!(targets_if_isolated(&without_list), ["fw", "nat"]);
        assert_eq!(named(&config, "nat").unwrap().instances, 1, "it is in another chain too");
        let before = config.clone();
        expand(&mut config);
        assert_eq!(config, before, "once is enough");
        assert!(crate::validate::validate(&config).is_empty(), "{:?}", crate::validate::validate(&config));
    }

    #[test]
    fn a_chain_that_comes_later_brings_its_group_alone() {
        let mut config = config(TEXT);
        expand(&mut config);
        let before = config.clone();
        let late = Chain { name: "late".into(), services: vec!["ids".into(), "fw".into()], ..config.chains[0].clone() };
        config.chains.push(late);
        let errors = |config: &Config| crate::validate::validate(config).into_iter().filter(Problem::is_error).collect::<Vec<_>>();
        assert_eq!(errors(&config), []);
        expand(&mut config);
        let changes = crate::diff::diff(&before, &config);
        let [crate::diff::Change::AddService { service }, crate::diff::Change::AddChain { chain }] = &changes[..] else {
            panic!("{changes:?}")
        };
        assert_eq!((service.parts.len(), chain.services.as_slice()), (2, &["late.fused".to_string()][..]));
        assert_eq!(errors(&config), []);
    }

    #[test]
    fn a_service_in_groups_alone_has_no_instances() {
        let text = TEXT.replace("may_send_to = [\"out\"]", "priority = 1.0").replace("[\"nat\", \"ids\"]", "[\"ids\"]");
        let mut config = config(&text);
        expand(&mut config);
        let instances: Vec<u32> = config.services.iter().map(|service| service.instances).collect();
        assert_eq!(instances, [0, 0, 1, 1]);
        assert!(crate::validate::validate(&config).is_empty(), "a part is used");
        let with_groups = config.clone();
        // Another chain names one of them, and then there is no group.
        let isolated = Chain {
            name: "own".into(),
            services: vec![config.services[0].name.clone()],
            run: Run::Isolated,
            ..config.chains[0].clone()
        };
        config.chains.push(isolated);
        expand(&mut config);
        assert_eq!(config.services.iter().map(|service| service.instances).collect::<Vec<_>>(), [1, 0, 1, 1]);
        config.chains.pop();
        expand(&mut config);
        assert_eq!(config, with_groups);
        // Without its group it has none either, until a chain names it.
        config.chains.retain(|chain| chain.run == Run::Isolated);
        config.services.retain(|service| !service.is_group());
        expand(&mut config);
        assert_eq!((config.services[0].instances, config.services[0].apart), (0, 1));
    }

    #[test]
    fn a_configuration_with_groups_is_written_as_before_and_has_them_again() {
        let alone = TEXT.replace("may_send_to = [\"out\"]", "priority = 1.0").replace("[\"nat\", \"ids\"]", "[\"ids\"]");
        for text in [TEXT.to_string(), alone] {
            let written = config(&text);
            let mut config = written.clone();
            expand(&mut config);
            let expanded = config.clone();
            contract(&mut config);
            assert_eq!(config, written);
            expand(&mut config);
            assert_eq!(config, expanded);
        }
    }

    #[test]
    fn a_group_is_passed_by_its_chain_alone() {
        let mut config = config(TEXT);
        expand(&mut config);
        let errors = |config: &Config| {
            crate::validate::validate(config).iter().filter(|problem| problem.is_error()).map(|p| p.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(errors(&config), Vec::<String>::new());
        let group = config.services.iter().find(|service| service.is_group()).unwrap().name.clone();
        config.chains.push(Chain { name: "we".into(), services: vec![group], run: Run::Isolated, ..config.chains[0].clone() });
        let said = errors(&config);
        assert!(said.len() == 1 && said[0].contains("which only the chain whose NFs it runs may pass"), "{said:?}");
    }

    #[test]
    fn what_cannot_be_fused_is_refused_with_its_name() {
        let wrong = |from: &str, to: &str| load::parse(&TEXT.replace(from, to), "a.toml").unwrap_err().to_string();
        let nat = "name = \"nat\", exec = \"/opt/nat\"";
        for (with, what) in [
            (format!("{nat}, tenant = \"b\""), "differ in `tenant`"),
            (format!("{nat}, cores = [0]"), "differ in `cores`"),
            (format!("{nat}, instances = 2"), "differ in `instances`"),
            (format!("{nat}, storage = true"), "uses the library's storage"),
            (format!("{nat}, priority_max = 4"), "may ask for a priority"),
            (format!("{nat}, per = \"flow\""), "is a pool"),
            (format!("{nat}, args = [\"--part\"]"), "the argument --part"),
            ("name = \"nat\", attach = true".into(), "attaches from outside"),
        ] {
            let said = wrong(nat, &with);
            assert!(said.contains(what) && said.contains("nat"), "{with}: {said}");
        }
        assert!(wrong("\"fw\", \"nat\"]", "\"fw\", \"nat\", \"fw\"]").contains("comes twice"));
        assert!(wrong("B = \"2\"", "A = \"2\"").contains("differ in `env`"));
        let later = TEXT
            .replace("\"fw\", \"nat\"]", "\"fw\", \"nat\", \"ids\"]")
            .replace("exec = \"ids\"", "exec = \"ids\", env = { B = \"3\" }");
        assert!(load::parse(&later, "a.toml").unwrap_err().to_string().contains("\"nat\" and \"ids\""), "none is the first");
        assert!(wrong("run = \"fused\"", "run = \"melted\"").contains("isolated"), "the words that there are");
    }

    #[test]
    fn neighbours_of_a_chain_are_fused_and_its_other_services_are_not() {
        let text = TEXT.replace("services = [\"fw\", \"nat\"]", "services = [\"ids\", \"fw\", \"nat\", \"ids\"]");
        let with = |fuse: &str| text.replace("run = \"fused\"", &format!("run = \"fused\", fuse = {fuse}"));
        let written = config(&with("[\"fw\", \"nat\"]"));
        let mut config = written.clone();
        expand(&mut config);
        assert_eq!(config.chains[0].services, ["ids", "web.fused", "ids"]);
        let group = named(&config, "web.fused").unwrap();
        assert_eq!(group.parts, ["fw", "nat"]);
        assert_eq!(group.may_send_to.as_deref().unwrap(), ["fw", "ids", "nat", "out"]);
        assert!(crate::validate::validate(&config).is_empty(), "{:?}", crate::validate::validate(&config));
        let expanded = config.clone();
        expand(&mut config);
        assert_eq!(config, expanded, "once is enough");
        contract(&mut config);
        assert_eq!(config, written);
        let wrong = |text: &str| load::parse(text, "a.toml").unwrap_err().to_string();
        for other in ["[\"nat\", \"fw\"]", "[\"ids\", \"nat\"]", "[\"fw\", \"nought\"]"] {
            assert!(wrong(&with(other)).contains("names no neighbours of its `services`"), "{other}");
        }
        assert!(wrong(&with("[\"fw\"]")).contains("names one service"));
        for run in ["isolated", "inline"] {
            let said = wrong(&with("[\"fw\", \"nat\"]").replace("run = \"fused\"", &format!("run = \"{run}\"")));
            assert!(said.contains(&format!("has `fuse` and is {run}")), "{said}");
        }
        // What is outside may be what no group can have.
        let ids = "name = \"ids\", exec = \"ids\"";
        let apart = with("[\"fw\", \"nat\"]").replace(ids, &format!("{ids}, tenant = \"b\", per = \"flow\""));
        load::parse(&apart, "a.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let said =
            wrong(&with("[\"nat\", \"ids\"]").replace(ids, &format!("{ids}, attach = true").replace("exec = \"ids\", ", "")));
        assert!(said.contains("service \"ids\" attaches from outside"), "{said}");
    }

    #[test]
    fn a_chain_could_be_fused_if_its_services_and_the_host_allow_it() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for file in ["sluice-nf-group", "nat", "libnat.so", "ids", "libids.so"] {
            std::fs::write(bin.join(file), "").unwrap();
            std::fs::set_permissions(bin.join(file), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let host = Host { root: root.path().into(), beside: Some("/bin".into()), path: Vec::new(), ..Host::here() };
        let could = |from: &str, to: &str| {
            let mut config = config(&TEXT.replace("/opt/nat", "nat").replace(from, to));
            expand(&mut config);
            config.chains.iter().map(|chain| could_fuse(&config, chain, 63, &host)).collect::<Vec<_>>()
        };
        assert_eq!(could("", ""), [false, true], "the first one is fused");
        assert_eq!(could("exec = \"ids\"", "exec = \"ids\", tenant = \"b\""), [false, false]);
        assert_eq!(could("[\"nat\", \"ids\"]", "[\"ids\"]"), [false, false], "one NF");
        std::fs::remove_file(bin.join("libids.so")).unwrap();
        assert_eq!(could("", ""), [false, false], "no shared object");
    }

    #[test]
    fn an_inline_chain_has_an_instance_in_each_thread_that_receives_and_needs_trust() {
        let text =
            TEXT.replace("run = \"fused\"", "run = \"inline\"").replace("memory = 64, env = { A = \"1\" }", "trusted = true");
        let said = load::parse(&text, "a.toml").unwrap_err().to_string();
        assert!(said.contains("service \"nat\" is not trusted, and chain \"web\" is inline"), "{said}");
        let text = text.replace("memory = 32, env = { B = \"2\" }", "trusted = true, tenant = \"b\"");
        assert!(load::parse(&text, "a.toml").unwrap_err().to_string().contains("differ in `tenant`"));
        let mut config = config(&text.replace("tenant = \"b\"", "zygote = true"));
        config.manager.rx = vec![2, 3];
        expand(&mut config);
        let group = named(&config, "web.inline").unwrap();
        assert_eq!((group.cores.as_slice(), group.instances, group.zygote), (&[2, 3][..], 2, false));
        assert!(group.is_inline() && !group.can_be_moved());
        let before = config.clone();
        expand(&mut config);
        assert_eq!(config, before, "once is enough");
        assert!(crate::validate::validate(&config).is_empty(), "{:?}", crate::validate::validate(&config));
    }
}
