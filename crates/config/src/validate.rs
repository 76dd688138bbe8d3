//! Checks everything about a configuration that can be known without the host.
//!
//! Pure: a configuration in, all its problems out, for files and changes through the API. Limits:
//! [`super::on_host`] checks whether cores, users, programs and devices exist. A rule that can
//! never match is found only if a single earlier rule covers it.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use serde_json::Value as Json;

use super::problem::{At, Problem};
use super::schema::{Preset, SECTIONS, Type};
use sluice_api::config::{ByWhat, Class, Config, Idle, MAX_CORE, Mode, Port, Priorities, Run, Service, hop};
use sluice_api::{nearest, parse};

mod container;
mod foreign;
mod memory;
mod pool;
mod ports;
mod priority;
mod rules;
mod shards;
mod telemetry;
mod wakeup;
mod web;

pub use pool::{MAX_POOLED_HOPS, MAX_POOLS};
pub use ports::{cleaned, taken_capture};

/// Most services in a chain: the hop index of a packet is one byte.
pub const MAX_HOPS: usize = 255;

/// Longest name.
pub const MAX_NAME: usize = 63;

/// Longest path of the runtime folder: with a socket's name it has to fit in 107 bytes.
const MAX_RUNTIME_DIR: usize = 80;

/// All problems of a configuration, in the order of its sections.
pub fn validate(config: &Config) -> Vec<Problem> {
    let mut v = Validation { config, problems: Vec::new() };
    v.numbers();
    v.manager();
    v.sched();
    v.workflow();
    v.openflow();
    v.page();
    v.telemetry();
    v.flow_log();
    v.ports();
    v.services();
    v.chains();
    v.rules();
    v.priorities();
    v.tenants();
    v.problems.extend(super::fuse::problems(config, MAX_NAME));
    v.frames();
    v.shards();
    v.shared_cores();
    // Warnings about unused entries would mislead while names are wrong.
    if !v.problems.iter().any(Problem::is_error) {
        v.unused();
    }
    v.problems
}

struct Validation<'a> {
    config: &'a Config,
    problems: Vec<Problem>,
}

impl Validation<'_> {
    fn error(&mut self, at: At, message: impl Into<String>, help: impl Into<String>) {
        self.problems.push(Problem::error(at, message, help));
    }

    fn warn(&mut self, at: At, message: impl Into<String>, help: impl Into<String>) {
        self.problems.push(Problem::warning(at, message, help));
    }

    /// Checks the bounds of numbers again: changes through the API have not passed the reader.
    fn numbers(&mut self) {
        let json = serde_json::to_value(self.config).unwrap_or_default();
        for section in SECTIONS.iter() {
            let entries: Vec<(Option<usize>, &Json)> = match &json[section.name] {
                Json::Array(entries) => entries.iter().enumerate().map(|(i, e)| (Some(i), e)).collect(),
                one => vec![(None, one)],
            };
            for (entry, table) in entries {
                if !section.kind.is_empty() && table["kind"] != section.kind {
                    continue;
                }
                for key in &section.keys {
                    let at = At { section: section.name, entry, key: key.name, item: None };
                    if matches!(key.default, Preset::Unset) && table[key.name].is_null() {
                        continue;
                    }
                    self.number(at, &key.takes, &table[key.name]);
                }
            }
        }
    }

    fn number(&mut self, at: At, takes: &Type, value: &Json) {
        let inside = match (takes, value) {
            (_, Json::Null) if !matches!(takes, Type::Number) => true,
            (Type::Integer(low, high), n) => n.as_i64().is_some_and(|n| (low..=high).contains(&&n)),
            // JSON writes a number that is not finite as null.
            (Type::Number, n) => n.as_f64().is_some_and(|n| n >= 0.0),
            (Type::Cores, Json::Array(cores)) => {
                for (i, core) in cores.iter().enumerate() {
                    self.number(at.item(i), &Type::Integer(0, MAX_CORE.into()), core);
                }
                true
            }
            (Type::IntegerTable(low, high), Json::Object(table)) => {
                table.values().for_each(|value| self.number(at, &Type::Integer(*low, *high), value));
                true
            }
            (Type::Keys(keys), Json::Object(table)) => {
                for key in keys {
                    let value = table.get(key.name).unwrap_or(&Json::Null);
                    if matches!(key.takes, Type::Integer(low, high) if !value.as_i64().is_none_or(|n| (low..=high).contains(&n))) {
                        self.error(
                            at,
                            format!("{} of {} cannot be {value}", key.name, at.key),
                            format!("write {}", key.takes.words()),
                        );
                    }
                }
                true
            }
            _ => true,
        };
        if !inside {
            self.error(at, format!("{} cannot be {value}", at.key), format!("write {}", takes.words()));
        }
    }

    fn manager(&mut self) {
        let m = &self.config.manager;
        for (key, cores) in m.roles() {
            let at = At::key("manager", key);
            if cores.is_empty() {
                self.error(at, format!("{key} names no core"), format!("write {key} = [0]"));
            }
            for (i, core) in cores.iter().enumerate() {
                if cores[..i].contains(core) {
                    self.error(at.item(i), format!("core {core} stands twice in {key}"), "a role runs once on a core; remove one");
                }
            }
        }
        if let Some(Err(what)) = m.log_level.as_deref().map(parse::log_levels) {
            self.error(At::key("manager", "log_level"), what, "write log_level = \"info\", or leave it out");
        }
        let length = m.runtime_dir.as_os_str().len();
        if length == 0 || length > MAX_RUNTIME_DIR {
            self.error(
                At::key("manager", "runtime_dir"),
                format!("the path of the runtime folder has {length} bytes"),
                format!("choose one with 1 to {MAX_RUNTIME_DIR}: the addresses of Unix sockets are short"),
            );
        }
    }

    fn sched(&mut self) {
        let s = &self.config.sched;
        let (low, high) = (s.low_watermark, s.high_watermark);
        if low >= high {
            self.error(
                At::key("sched", "low_watermark"),
                format!("the low watermark ({low} %) is not below the high one ({high} %)"),
                "a ring throttles from the high one until it is below the low one; write low_watermark = 60, high_watermark = 80",
            );
        }
        if let (Some(_), Class::Other | Class::Batch, Priorities::Weights) = (s.rr_slice_ms, s.class, s.priorities) {
            self.warn(
                At::key("sched", "rr_slice_ms"),
                "the time slice of SCHED_RR has no effect on NFs of another class",
                "write class = \"rr\", or leave rr_slice_ms out",
            );
        }
        if s.class == Class::Rr && s.weights && !s.handover {
            self.warn(
                At::key("sched", "weights"),
                "the kernel's weights mean nothing to NFs of class \"rr\", and these do not divide their core by themselves",
                "write handover = true, by which they do, or another class, or weights = false",
            );
        }
    }

    fn flow_log(&mut self) {
        let log = &self.config.flow_log;
        if let Some(text) = &log.collector
            && text.parse::<SocketAddr>().is_err()
        {
            self.error(
                At::key("flow_log", "collector"),
                format!("{text:?} is no address of a collector"),
                "write it like \"192.0.2.1:4739\" or \"[2001:db8::1]:4739\"",
            );
        }
    }

    fn openflow(&mut self) {
        let o = &self.config.openflow;
        if let Some(text) = &o.controller
            && let Err(what) = parse::controller(text)
        {
            self.error(At::key("openflow", "controller"), what, "write it like \"tcp:127.0.0.1:6653\"");
        }
        if o.dead_ms <= o.echo_ms {
            self.error(
                At::key("openflow", "dead_ms"),
                format!("the connection would be given up ({} ms) before an echo is asked for ({} ms)", o.dead_ms, o.echo_ms),
                "write dead_ms = 15000, echo_ms = 5000",
            );
        }
        if o.retry_max_ms < o.retry_ms {
            self.error(
                At::key("openflow", "retry_max_ms"),
                format!("the longest time between attempts ({} ms) is less than the first ({} ms)", o.retry_max_ms, o.retry_ms),
                "write retry_ms = 500, retry_max_ms = 8000",
            );
        }
    }

    fn workflow(&mut self) {
        let w = &self.config.workflow;
        if w.divisor < 1.0 {
            self.error(
                At::key("workflow", "divisor"),
                format!("divisor cannot be {}: a slice would be longer than a ring of packets takes", w.divisor),
                "write divisor = 1.0, or more for shorter slices",
            );
        }
        for (core, word) in &w.cores {
            let at = At::key("workflow", "cores");
            if !core.parse::<i64>().is_ok_and(|core| (0..=i64::from(MAX_CORE)).contains(&core)) {
                self.error(at, format!("{core:?} is no core"), "write the number of a core, such as cores = { 2 = \"signal\" }");
            } else if ByWhat::of(word).is_none() {
                let words: Vec<String> = ByWhat::ALL.iter().map(|(word, _)| format!("{word:?}")).collect();
                let help = format!("write {}", words.join(" or "));
                self.error(at, format!("the mechanism of core {core} cannot be {word:?}"), help);
            }
        }
    }

    /// Checks that a name is well formed and unique in its section.
    fn name(&mut self, section: &'static str, index: usize, name: &str, dots: bool, seen: &mut HashMap<String, usize>) {
        let at = At::entry(section, index, "name");
        self.word(at, &format!("the name of a {section}"), name, dots);
        if let Some(&first) = seen.get(name) {
            let several = if section == "service" { "NFs of one name are instances: set `instances`, or " } else { "" };
            self.problems.push(
                Problem::error(at, format!("two {section}s are called \"{name}\""), format!("{several}give this one another name"))
                    .after(At::entry(section, first, "name")),
            );
        } else {
            seen.insert(name.to_string(), index);
        }
    }

    fn word(&mut self, at: At, what: &str, name: &str, dots: bool) {
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || (dots && c == '.');
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(valid) {
            let also = if dots { "\".\", \"_\" and \"-\"" } else { "\"_\" and \"-\"; a dot sets off the number of an instance" };
            self.error(
                at,
                format!("{what} cannot be {name:?}"),
                format!("use 1 to {MAX_NAME} of the letters A to Z and a to z, digits, {also}"),
            );
        }
    }

    /// Checks that the target of a reference exists.
    fn reference(&mut self, at: At, section: &str, name: &str, names: &[&str]) -> bool {
        let found = names.contains(&name);
        if !found {
            let help = match names {
                [] => format!("there are no {section}s; add a [[{section}]] with this name"),
                _ => nearest::hint(name, names),
            };
            self.error(at, format!("no {section} is called \"{name}\""), help);
        }
        found
    }

    fn services(&mut self) {
        let config = self.config;
        let mut seen = HashMap::new();
        for (i, service) in config.services.iter().enumerate() {
            // A group is named after its chain.
            self.name("service", i, &service.name, service.is_group(), &mut seen);
            self.service(i, service);
        }
        self.pools();
        self.wakeups();
        let total: u64 = config.services.iter().map(|s| u64::from(s.most_instances())).sum();
        if total > u64::from(config.manager.max_nfs) {
            self.error(
                At::key("manager", "max_nfs"),
                format!("the services have {total} instances in all, and max_nfs is {}", config.manager.max_nfs),
                format!("write max_nfs = {total} or more in [manager], or start fewer instances"),
            );
        }
    }

    fn service(&mut self, i: usize, service: &Service) {
        let at = |key| At::entry("service", i, key);
        let name = &service.name;
        self.start(i, service);
        if service.is_foreign() {
            self.foreign(i, service);
        } else {
            self.not_foreign(i, service);
        }
        if let Some(container) = &service.container {
            self.container(i, service, container);
        }
        self.arguments(i, service);
        if service.storage && !service.filter {
            self.error(at("storage"), "there is no filter that would deny io_uring", "remove `storage`, or filter = false");
        }
        if service.memory.is_some() && (service.attach || service.is_foreign() || service.container.is_some()) {
            self.error(
                at("memory"),
                format!("`memory` bounds NFs that the manager starts by itself, and not those of service \"{name}\""),
                "remove `memory`, and bound it where it is started (in a systemd unit, MemoryMax; for a container, at the runtime)",
            );
        }
        if service.user.as_ref().is_some_and(|u| u.is_empty() || u.contains(['\0', ':', '\n'])) {
            self.error(at("user"), "user is neither a name nor a number", "write the name of a user, or leave it out");
        }
        if service.cores.is_empty() {
            self.error(at("cores"), format!("service \"{name}\" names no core"), "write cores = [1]");
        }
        if !service.ring.is_power_of_two() && service.ring >= 2 {
            let above = service.ring.checked_next_power_of_two().unwrap_or(1 << 20).min(1 << 20);
            self.error(
                at("ring"),
                format!("a ring of {} is no power of two", service.ring),
                format!("write ring = {} or ring = {above}", 1u32 << service.ring.ilog2()),
            );
        }
        if service.priority == 0.0 {
            self.error(
                at("priority"),
                format!("service \"{name}\" has no priority, and its NFs would never run"),
                "write a number above 0; 1 is what the others have, 2 twice that",
            );
        }
        self.bounds_of_priority(i, service);
        if let Some(tenant) = &service.tenant {
            self.name_of_tenant(at("tenant"), tenant);
        }
        let config = self.config;
        let there: Vec<&str> = names_of(config).into_iter().chain(config.services.iter().map(|s| s.name.as_str())).collect();
        for (n, to) in service.may_send_to.iter().flatten().enumerate() {
            self.reference(at("may_send_to").item(n), "port or service", to, &there);
        }
    }

    /// Checks that a service has something to start, or attaches.
    fn start(&mut self, i: usize, service: &Service) {
        let at = |key| At::entry("service", i, key);
        let name = &service.name;
        if service.attach {
            let given = [
                ("exec", service.exec.is_some()),
                ("args", !service.args.is_empty()),
                ("env", !service.env.is_empty()),
                ("zygote", service.zygote),
            ];
            for (key, _) in given.into_iter().filter(|(_, given)| *given) {
                self.error(
                    at(key),
                    format!("service \"{name}\" attaches by itself, so nothing is started with `{key}`"),
                    format!("remove `{key}`, or remove attach = true"),
                );
            }
        } else if service.exec.is_none() && !service.is_foreign() && service.container.is_none() {
            self.error(
                at("exec"),
                format!("service \"{name}\" has no program"),
                "write exec = \"PROGRAM\", or attach = true if it is started from outside",
            );
        }
    }

    /// Checks that a program can be given its arguments and environment.
    fn arguments(&mut self, i: usize, service: &Service) {
        let at = |key| At::entry("service", i, key);
        for (n, arg) in service.args.iter().enumerate() {
            if arg.contains('\0') {
                self.error(at("args").item(n), "an argument holds a zero byte", "remove it");
            }
        }
        for (variable, value) in &service.env {
            if variable.is_empty() || variable.contains(['=', '\0']) || value.contains('\0') {
                self.error(
                    at("env"),
                    format!("{variable:?} is no environment variable"),
                    "use a name without \"=\" and zero bytes",
                );
            } else if ["SLUICE_SOCKET", "SLUICE_NF", "SLUICE_ZYGOTE", sluice_shm::object::ENV_OBJECTS].contains(&variable.as_str())
            {
                self.error(at("env"), format!("{variable} is set by the manager"), "remove it");
            }
        }
    }

    fn chains(&mut self) {
        let config = self.config;
        let services: Vec<&str> = config.services.iter().map(|s| s.name.as_str()).collect();
        let mut seen = HashMap::new();
        for (i, chain) in config.chains.iter().enumerate() {
            self.name("chain", i, &chain.name, true, &mut seen);
            let at = At::entry("chain", i, "services");
            for (number, written) in chain.services.iter().enumerate() {
                let service = hop(written).0;
                self.group(at.item(number), &chain.name, service);
                self.sides(at.item(number), chain, number);
                if self.reference(at.item(number), "service", service, &services)
                    && number > 0
                    && hop(&chain.services[number - 1]).0 == service
                {
                    self.error(
                        at.item(number),
                        format!("chain loop: chain \"{}\" sends packets from \"{service}\" to \"{service}\"", chain.name),
                        "the same service may come again, but not twice in a row; remove one",
                    );
                }
            }
            if chain.services.len() > MAX_HOPS {
                self.error(
                    at.item(MAX_HOPS),
                    format!("chain \"{}\" has {} services", chain.name, chain.services.len()),
                    format!("a chain has {MAX_HOPS} at most"),
                );
            }
            let at = At::entry("chain", i, "egress");
            if self.reference(at, "port", &chain.egress, &names_of(config)) {
                let Some((why, help)) = port_of(config, &chain.egress).and_then(|port| port.kind.no_output()) else { continue };
                self.error(at, format!("packets cannot leave through \"{}\", which {why}", chain.egress), help);
            }
        }
    }

    /// Checks that a chain does not pass the group of another one.
    fn group(&mut self, at: At, chain: &str, service: &str) {
        let config = self.config;
        let own = [Run::Fused, Run::Inline].map(|run| format!("{chain}{}", run.suffix().unwrap_or_default()));
        let is_others = |one: &&Service| one.is_group() && one.name == service && !own.contains(&one.name);
        if let Some(group) = config.services.iter().find(is_others) {
            self.error(
                at,
                format!("chain \"{chain}\" passes \"{}\", which only the chain whose NFs it runs may pass", group.name),
                format!("name the services that it runs: {}", group.parts.join(", ")),
            );
        }
    }

    /// Checks that there are enough frames for the packets that chains can hold.
    fn frames(&mut self) {
        let config = self.config;
        let rings: HashMap<&str, u32> = config.services.iter().map(|s| (s.name.as_str(), s.ring_slots())).collect();
        let held = |services: &[String]| services.iter().filter_map(|s| rings.get(hop(s).0)).min().map_or(0, |r| u64::from(*r));
        let chains: u64 = config.chains.iter().map(|c| held(&c.services)).sum();
        let queues: u64 = config.ports.iter().map(|p| u64::from(p.queues)).sum();
        let wanted = chains + queues * 2 * sluice_shm::BURST as u64;
        if u64::from(config.memory.frames) < wanted {
            self.warn(
                At::key("memory", "frames"),
                format!("{} frames are few: rings and ports can hold {wanted} packets", config.memory.frames),
                format!(
                    "write frames = {} in [memory], or make rings smaller; else chains are refused packets while their rings have room",
                    wanted.next_power_of_two()
                ),
            );
        }
    }

    /// Warns about NFs on a core where something never sleeps.
    fn shared_cores(&mut self) {
        let config = self.config;
        for (i, service) in config.services.iter().enumerate() {
            let at = At::entry("service", i, "cores");
            for (n, core) in service.cores.iter().enumerate() {
                self.problems.extend(on_core(config, &service.name, *core, at.item(n)));
            }
        }
    }

    fn unused(&mut self) {
        let config = self.config;
        let led: HashSet<&str> = config.rules.iter().map(|r| r.chain.as_str()).collect();
        for (i, chain) in config.chains.iter().enumerate() {
            if !led.contains(chain.name.as_str()) {
                self.warn(
                    At::entry("chain", i, "name"),
                    format!("no rule leads to chain \"{}\"", chain.name),
                    "add a [[rule]], or remove it",
                );
            }
        }
        let fallbacks = config.services.iter().filter_map(|s| s.pool.as_ref()?.fallback.as_deref());
        let used: HashSet<&str> = config.chains.iter().flat_map(|c| &c.services).map(|s| hop(s).0).chain(fallbacks).collect();
        let parts = super::fuse::parts(config);
        for (i, service) in config.services.iter().enumerate() {
            if !used.contains(service.name.as_str()) && !parts.contains(&service.name) {
                self.warn(
                    At::entry("service", i, "name"),
                    format!("service \"{}\" is in no chain", service.name),
                    "name it in a [[chain]], or remove it",
                );
            }
        }
        self.covered();
        let any_port = config.rules.iter().any(|r| r.port.is_none());
        let ingress = config.rules.iter().filter_map(|r| r.port.as_deref());
        let egress = config.chains.iter().map(|c| c.egress.as_str());
        let used: HashSet<&str> = ingress.chain(egress).collect();
        for (i, port) in config.ports.iter().enumerate() {
            let reached = used.contains(port.name.as_str()) || (any_port && port.kind.no_input().is_none());
            if !reached {
                self.warn(
                    At::entry("port", i, "name"),
                    format!("port \"{}\" is in no rule and no chain", port.name),
                    "name it in one, or remove it",
                );
            }
        }
    }
}

/// Warnings about a service's NFs on a core where something never sleeps, reported at `at`.
pub fn on_core(config: &Config, service: &str, core: usize, at: At) -> Vec<Problem> {
    let mut warnings = Vec::new();
    // An inline chain's NFs are part of the manager's threads.
    let mut services = config.services.iter().filter(|of| of.is_inline());
    if services.any(|of| of.name == service) {
        return warnings;
    }
    if config.manager.idle == Idle::Spin && config.manager.cores().any(|spins| spins == core) {
        warnings.push(Problem::warning(
            at,
            format!("service \"{service}\" runs on core {core}, where a thread of the manager never sleeps"),
            "choose another core, or write idle = \"adaptive\" in [manager]",
        ));
    }
    let polls = |s: &&Service| s.mode == Mode::Poll && s.cores.contains(&core);
    let left_alone = config.workflow.of_core(core) == ByWhat::None;
    if let Some(other) = config.services.iter().find(polls).filter(|other| left_alone && other.name != service) {
        warnings.push(Problem::warning(
            at,
            format!("service \"{service}\" shares core {core} with \"{}\", which polls and never sleeps", other.name),
            "choose another core, or write mode = \"sleep\" for both, or let [workflow] give them turns",
        ));
    }
    warnings
}

fn names_of(config: &Config) -> Vec<&str> {
    config.ports.iter().map(|p| p.name.as_str()).collect()
}

fn port_of<'a>(config: &'a Config, name: &str) -> Option<&'a Port> {
    config.ports.iter().find(|p| p.name == name)
}
