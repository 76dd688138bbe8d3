//! The changes that lead a running daemon from one configuration to another.
//!
//! Pure: two valid configurations in, a list of changes out. The configuration stays valid after
//! each change, so that chains which do not change can always forward their packets. New entries
//! are added from the ports inwards; then chains and rules switch over to them; then unused entries
//! are removed in the opposite order.
//! Terms: an entry is *changed* if it differs from the one of the same name.
//! Limits: a changed port or service is replaced, which affects its own packets. If only the number
//! or cores of a service's instances change, those on cores that remain are kept. A changed name is
//! a removal and an addition. Of the keys of `[manager]`, `[sched]` and `[flow_log]` only those of
//! [`living_manager`], [`living_sched`] and [`living_flow_log`] change on a running daemon, and all
//! of `[recorder]`; the others, and the keys of `[memory]`, `[workflow]`, `[openflow]`,
//! `[promises]`, `[control]`, `[page]` and `[telemetry]`, take effect only at a restart.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use sluice_api::config::{Chain, Class, Config, FlowLogConfig, Gen, Manager, Port, PortKind, Recorder, Rule, Sched, Service};

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// Change a key at the next restart of the daemon.
    NeedsRestart {
        /// The key, such as `memory.frames`.
        key: String,
    },
    /// Change keys of `[manager]` that the running daemon can change.
    ChangeManager {
        /// The section, with its other keys as they were.
        manager: Manager,
    },
    /// Change keys of `[sched]` that the running daemon can change.
    ChangeSched {
        /// The section, with its other keys as they were.
        sched: Sched,
    },
    /// Change keys of `[flow_log]` that the running daemon can change.
    ChangeFlowLog {
        /// The section, with its other keys as they were.
        flow_log: FlowLogConfig,
    },
    /// End the flight recorder, and start another one if the section asks for it.
    ChangeRecorder {
        /// The section.
        recorder: Recorder,
    },
    /// Open a port.
    AddPort {
        /// The port.
        port: Port,
    },
    /// Close a port and open it again.
    ReplacePort {
        /// The new port.
        port: Port,
    },
    /// Change the rate of a generator, which goes on.
    ChangeRate {
        /// The port, with its new rate.
        port: Port,
    },
    /// Start a service and its instances.
    AddService {
        /// The service.
        service: Service,
    },
    /// Replace the instances of a service, one after another.
    ReplaceService {
        /// The new service, with its new number of instances.
        service: Service,
    },
    /// Change the priority of a service, or what its instances may ask for. Instances stay.
    ChangePriority {
        /// The service as it was, with its new priority and bounds.
        service: Service,
    },
    /// Change the number of instances of a pool, or what it does with flows. Instances stay.
    ChangePool {
        /// The new service.
        service: Service,
    },
    /// Start and stop instances to match these cores. Instances on cores that remain stay.
    ChangeInstances {
        /// Name of the service.
        service: String,
        /// Number of instances in the old configuration.
        before: u32,
        /// Number of instances in the new configuration.
        instances: u32,
        /// The cores of the instances, assigned round robin.
        cores: Vec<usize>,
    },
    /// Make a chain.
    AddChain {
        /// The chain.
        chain: Chain,
    },
    /// Change the hops or the egress of a chain.
    ReplaceChain {
        /// The new chain.
        chain: Chain,
    },
    /// Replace all rules.
    ReplaceRules {
        /// The new rules.
        rules: Vec<Rule>,
    },
    /// Remove a chain.
    RemoveChain {
        /// Its name.
        chain: String,
    },
    /// Stop a service and all its instances.
    RemoveService {
        /// Its name.
        service: String,
    },
    /// Close a port.
    RemovePort {
        /// Its name.
        port: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeedsRestart { key } => write!(f, "{key} changes when sluiced is restarted"),
            Self::ChangeManager { .. } => write!(f, "change settings of the manager"),
            Self::ChangeSched { .. } => write!(f, "change settings of scheduling"),
            Self::ChangeFlowLog { .. } => write!(f, "change the log of flows"),
            Self::ChangeRecorder { .. } => write!(f, "change the flight recorder"),
            Self::AddPort { port } => write!(f, "add port {}", port.name),
            Self::ChangeRate { port } => write!(f, "change the rate of port {}", port.name),
            Self::ReplacePort { port } => write!(f, "replace port {}", port.name),
            Self::AddService { service } => write!(f, "add service {} ({} instances)", service.name, service.first_instances()),
            Self::ReplaceService { service } => {
                write!(f, "replace service {} ({} instances)", service.name, service.first_instances())
            }
            Self::ChangePriority { service } => write!(f, "change the priority of service {}", service.name),
            Self::ChangePool { service } => write!(f, "change the pool of service {}", service.name),
            Self::ChangeInstances { service, before, instances, .. } => match instances.cmp(before) {
                Ordering::Greater => write!(f, "add instances of service {service}, up to {instances}"),
                Ordering::Equal => write!(f, "change the cores of instances of service {service}"),
                Ordering::Less => write!(f, "remove instances of service {service}, down to {instances}"),
            },
            Self::AddChain { chain } => write!(f, "add chain {}", chain.name),
            Self::ReplaceChain { chain } => write!(f, "replace chain {}", chain.name),
            Self::ReplaceRules { rules } => write!(f, "replace the rules ({} of them)", rules.len()),
            Self::RemoveChain { chain } => write!(f, "remove chain {chain}"),
            Self::RemoveService { service } => write!(f, "remove service {service}"),
            Self::RemovePort { port } => write!(f, "remove port {port}"),
        }
    }
}

/// The ordered steps from `old` to `new`, both of which must be valid.
pub fn diff(old: &Config, new: &Config) -> Vec<Change> {
    let mut changes = settings(old, new);
    let mut removals = Vec::new();

    let ports = compare(&old.ports, &new.ports, |p| &p.name);
    changes.extend(ports.added.into_iter().map(|port| Change::AddPort { port }));
    changes.extend(ports.changed.into_iter().map(|(before, port)| match is_rate_change(&before, &port) {
        true => Change::ChangeRate { port },
        false => Change::ReplacePort { port },
    }));

    let services = compare(&old.services, &new.services, |s| &s.name);
    changes.extend(services.added.into_iter().map(|service| Change::AddService { service }));
    for (before, service) in services.changed {
        let tuned = with_priority_of(&before, &service);
        let lives = is_living_change(&tuned, &service);
        let stays = some_stay(&tuned, &service) && !changes_shards(new, &tuned, &service);
        if tuned != before && (tuned == service || lives || stays) {
            changes.push(Change::ChangePriority { service: tuned.clone() });
        }
        if tuned == service {
            continue;
        }
        if lives {
            changes.push(Change::ChangePool { service });
        } else if stays {
            let Service { name, instances, cores, .. } = service;
            let change = Change::ChangeInstances { service: name, before: before.instances, instances, cores };
            if instances < before.instances { &mut removals } else { &mut changes }.push(change);
        } else {
            changes.push(Change::ReplaceService { service });
        }
    }

    let chains = compare(&old.chains, &new.chains, |c| &c.name);
    changes.extend(chains.added.into_iter().map(|chain| Change::AddChain { chain }));
    changes.extend(chains.changed.into_iter().map(|(_, chain)| Change::ReplaceChain { chain }));
    if old.rules != new.rules {
        changes.push(Change::ReplaceRules { rules: new.rules.clone() });
    }
    changes.extend(chains.removed.into_iter().map(|chain| Change::RemoveChain { chain }));
    changes.append(&mut removals);
    changes.extend(services.removed.into_iter().map(|service| Change::RemoveService { service }));
    changes.extend(ports.removed.into_iter().map(|port| Change::RemovePort { port }));
    changes
}

/// `[manager]` as a daemon that was started with `old` can go over to it without a restart: its
/// keys of `new` are those that change on a running daemon.
pub fn living_manager(old: &Manager, new: &Manager) -> Manager {
    Manager { latency_sample: new.latency_sample, log_level: new.log_level.clone(), ..old.clone() }
}

/// `[sched]`, as [`living_manager`]. NFs of class rr have a thread that sets their priorities, and
/// no weights: both are made at the start.
pub fn living_sched(old: &Sched, new: &Sched) -> Sched {
    let are_fair = [old, new].iter().all(|sched| sched.class != Class::Rr);
    Sched {
        class: if are_fair { new.class } else { old.class },
        rr_slice_ms: new.rr_slice_ms,
        ecn: new.ecn,
        high_watermark: new.high_watermark,
        low_watermark: new.low_watermark,
        queueing_us: new.queueing_us,
        ecn_watermark: new.ecn_watermark,
        weight_every_ms: new.weight_every_ms,
        weight_margin_percent: new.weight_margin_percent,
        min_share_percent: new.min_share_percent,
        tenants: new.tenants.clone(),
        ..old.clone()
    }
}

/// `[flow_log]`, as [`living_manager`]. The memory of flows is the meters' from their start on.
pub fn living_flow_log(old: &FlowLogConfig, new: &FlowLogConfig) -> FlowLogConfig {
    FlowLogConfig { flows: old.flows, ..new.clone() }
}

/// Whether ports are generators that differ only in their rate.
fn is_rate_change(before: &Port, after: &Port) -> bool {
    let (PortKind::Gen(old), PortKind::Gen(new)) = (&before.kind, &after.kind) else { return false };
    let kind = PortKind::Gen(Gen { rate: new.rate, ..old.clone() });
    old.rate != new.rate && Port { kind, ..before.clone() } == *after
}

/// A service with the priority of another, and its bounds.
pub fn with_priority_of(service: &Service, other: &Service) -> Service {
    let Service { priority, priority_min, priority_max, .. } = *other;
    Service { priority, priority_min, priority_max, ..service.clone() }
}

/// Whether services differ only in priority and in the number and cores of instances, and some
/// instances can stay.
pub fn some_stay(before: &Service, after: &Service) -> bool {
    let Service { instances, cores, .. } = after;
    let alike = Service { instances: *instances, cores: cores.clone(), ..with_priority_of(before, after) } == *after;
    let [old, new] = [before, after].map(|service| cores_of(service.instances, &service.cores));
    alike && !after.is_pooled() && beyond(&old, &new).len() < old.len()
}

/// Whether cores of a service may belong to other shards than before: its instances are replaced
/// then, each by one of its own shard where there is one.
fn changes_shards(new: &Config, before: &Service, after: &Service) -> bool {
    new.manager.shards.len() > 1 && after.is_sharded() && before.cores != after.cores
}

/// The core of each instance, assigned round robin.
pub fn cores_of(instances: u32, cores: &[usize]) -> Vec<usize> {
    cores.iter().copied().cycle().take(instances as usize).collect()
}

/// The instances to start and stop so that a service has its wanted cores.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Turnover {
    /// Cores of the instances to start.
    pub starts: Vec<usize>,
    /// Indices, among the running instances, of those to stop.
    pub stops: Vec<usize>,
}

/// The instances to start and stop for running ones on the cores `living`.
///
/// `before` are the cores of the old configuration, `wanted` those of the new one. An instance on a
/// core that neither lists was moved there, and takes the place of one that is missing elsewhere.
/// Of the instances on one core, the first ones stay.
pub fn turnover(before: &[usize], wanted: &[usize], living: &[usize]) -> Turnover {
    let cores = |of: &[usize], places: Vec<usize>| places.into_iter().map(|place| of[place]).collect::<Vec<_>>();
    let lacks = cores(wanted, beyond(wanted, living));
    let rest = beyond(living, wanted);
    let rest_cores = cores(living, rest.clone());
    let comes = cores(wanted, beyond(wanted, before));
    let goes = cores(before, beyond(before, wanted));
    // A missing core that is not new belongs to an instance that was moved, or that is lost.
    let (vacant, moved) = (beyond(&lacks, &comes), beyond(&rest_cores, &goes));
    let stand_in = vacant.len().min(moved.len());
    let filled = &vacant[..stand_in];
    let stay = &moved[..stand_in];
    Turnover {
        starts: (0..lacks.len()).filter(|place| !filled.contains(place)).map(|place| lacks[place]).collect(),
        stops: (0..rest.len()).filter(|place| !stay.contains(place)).map(|place| rest[place]).collect(),
    }
}

/// Indices of the elements of a list in excess of another list (as multisets); the last ones.
fn beyond(list: &[usize], other: &[usize]) -> Vec<usize> {
    let mut left = other.to_vec();
    let mut is_beyond = |core: &usize| match left.iter().position(|known| known == core) {
        Some(place) => {
            left.swap_remove(place);
            false
        }
        None => true,
    };
    (0..list.len()).filter(|place| is_beyond(&list[*place])).collect()
}

/// Whether two services differ only in pool keys that a running pool can change.
///
/// The size of rings, which running instances have, and the definition of a class cannot change. A
/// pool without members for single flows can grow, but cannot shrink.
fn is_living_change(before: &Service, after: &Service) -> bool {
    let (old, new) = (before.pool(), after.pool());
    let alike = Service { pool: after.pool.clone(), ..before.clone() } == *after && before.pool != after.pool;
    let may_shrink = after.has_members_for_flows();
    alike && after.is_pooled() && old.ring == new.ring && old.class == new.class && (may_shrink || new.min >= old.min)
}

/// Reports differences in keys of tables: those that take effect at a restart, then the others.
fn settings(old: &Config, new: &Config) -> Vec<Change> {
    let (manager, sched) = (living_manager(&old.manager, &new.manager), living_sched(&old.sched, &new.sched));
    let (flow_log, recorder) = (living_flow_log(&old.flow_log, &new.flow_log), new.recorder.clone());
    let kept = Config {
        manager: manager.clone(),
        sched: sched.clone(),
        flow_log: flow_log.clone(),
        recorder: recorder.clone(),
        ..old.clone()
    };
    let mut changes = restarts(&kept, new);
    changes.extend((manager != old.manager).then_some(Change::ChangeManager { manager }));
    changes.extend((sched != old.sched).then_some(Change::ChangeSched { sched }));
    changes.extend((flow_log != old.flow_log).then_some(Change::ChangeFlowLog { flow_log }));
    changes.extend((recorder != old.recorder).then_some(Change::ChangeRecorder { recorder }));
    changes
}

fn restarts(old: &Config, new: &Config) -> Vec<Change> {
    let tables = |c: &Config| {
        let pairs = [
            ("manager", serde_json::to_value(&c.manager)),
            ("memory", serde_json::to_value(&c.memory)),
            ("sched", serde_json::to_value(&c.sched)),
            ("workflow", serde_json::to_value(&c.workflow)),
            ("openflow", serde_json::to_value(&c.openflow)),
            ("promises", serde_json::to_value(&c.promises)),
            ("control", serde_json::to_value(&c.control)),
            ("page", serde_json::to_value(&c.page)),
            ("telemetry", serde_json::to_value(&c.telemetry)),
            ("flow_log", serde_json::to_value(&c.flow_log)),
        ];
        pairs.map(|(name, table)| (name, table.unwrap_or_default()))
    };
    let mut changes = Vec::new();
    for ((name, old), (_, new)) in tables(old).iter().zip(tables(new)) {
        for (key, value) in new.as_object().into_iter().flatten() {
            if old[key] != *value {
                changes.push(Change::NeedsRestart { key: format!("{name}.{key}") });
            }
        }
    }
    changes
}

struct Compared<T> {
    added: Vec<T>,
    changed: Vec<(T, T)>,
    removed: Vec<String>,
}

fn compare<T: Clone + PartialEq>(old: &[T], new: &[T], name: impl Fn(&T) -> &String) -> Compared<T> {
    let mut compared = Compared { added: Vec::new(), changed: Vec::new(), removed: Vec::new() };
    for entry in new {
        match old.iter().find(|o| name(o) == name(entry)) {
            None => compared.added.push(entry.clone()),
            Some(before) if before != entry => compared.changed.push((before.clone(), entry.clone())),
            Some(_) => {}
        }
    }
    let gone = |o: &&T| !new.iter().any(|entry| name(entry) == name(o));
    compared.removed.extend(old.iter().filter(gone).map(|o| name(o).clone()));
    compared
}

impl Change {
    /// The service that the step changes, if it changes one.
    pub fn service(&self) -> Option<&str> {
        match self {
            Self::AddService { service }
            | Self::ReplaceService { service }
            | Self::ChangePriority { service }
            | Self::ChangePool { service } => Some(&service.name),
            Self::ChangeInstances { service, .. } | Self::RemoveService { service } => Some(service),
            _ => None,
        }
    }

    /// Applies the step to a configuration, which then shows what the daemon runs.
    pub fn apply(&self, config: &mut Config) {
        fn replace<T: Clone>(entries: &mut [T], entry: &T, same: impl Fn(&T, &T) -> bool) {
            entries.iter_mut().filter(|e| same(e, entry)).for_each(|e| *e = entry.clone());
        }
        match self {
            Self::NeedsRestart { .. } => {}
            Self::ChangeManager { manager } => config.manager = living_manager(&config.manager, manager),
            Self::ChangeSched { sched } => config.sched = living_sched(&config.sched, sched),
            Self::ChangeFlowLog { flow_log } => config.flow_log = living_flow_log(&config.flow_log, flow_log),
            Self::ChangeRecorder { recorder } => config.recorder.clone_from(recorder),
            Self::AddPort { port } => config.ports.push(port.clone()),
            Self::ReplacePort { port } | Self::ChangeRate { port } => replace(&mut config.ports, port, |a, b| a.name == b.name),
            Self::AddService { service } => config.services.push(service.clone()),
            Self::ReplaceService { service } | Self::ChangePriority { service } | Self::ChangePool { service } => {
                replace(&mut config.services, service, |a, b| a.name == b.name)
            }
            Self::ChangeInstances { service, instances, cores, .. } => {
                let known = config.services.iter_mut().filter(|s| s.name == *service);
                known.for_each(|s| (s.instances, s.cores) = (*instances, cores.clone()));
            }
            Self::AddChain { chain } => config.chains.push(chain.clone()),
            Self::ReplaceChain { chain } => replace(&mut config.chains, chain, |a, b| a.name == b.name),
            Self::ReplaceRules { rules } => config.rules.clone_from(rules),
            Self::RemoveChain { chain } => config.chains.retain(|c| c.name != *chain),
            Self::RemoveService { service } => config.services.retain(|s| s.name != *service),
            Self::RemovePort { port } => config.ports.retain(|p| p.name != *port),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::validate::validate;
    use super::*;

    fn config(text: &str) -> Config {
        crate::load::parse(text, "a.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn said(old: &str, new: &str) -> Vec<String> {
        diff(&config(old), &config(new)).iter().map(Change::to_string).collect()
    }

    const OLD: &str = r#"
        port = [{ name = "a", kind = "gen" }, { name = "b", kind = "sink" }, { name = "c", kind = "sink" }]
        service = [{ name = "nat", exec = "nat", instances = 3 }, { name = "ids", exec = "ids" }, { name = "fw", exec = "fw" }]
        chain = [{ name = "one", services = ["nat", "ids"], egress = "b" }, { name = "two", services = ["fw"], egress = "c" }]
        rule = [{ port = "a", vlan = 5, chain = "two" }, { port = "a", chain = "one" }]
    "#;

    #[test]
    fn nothing_changes_nothing() {
        assert_eq!(said(OLD, OLD), Vec::<String>::new());
    }

    #[test]
    fn what_is_new_comes_first_and_what_is_gone_goes_last() {
        let new = r#"
            memory = { frames = 65536 }
            recorder = { memory_mib = 4 }
            flow_log = { flows = 4096 }
            port = [{ name = "a", kind = "gen", flows = 7 }, { name = "b", kind = "sink" }, { name = "d", kind = "sink" }]
            service = [{ name = "nat", exec = "nat", instances = 2 }, { name = "ids", exec = "ids", instances = 4 },
                       { name = "lb", exec = "lb" }]
            chain = [{ name = "one", services = ["lb", "nat", "ids"], egress = "d" }, { name = "three", egress = "b" }]
            rule = [{ port = "a", vlan = 5, chain = "three" }, { port = "a", chain = "one" }]
        "#;
        assert_eq!(
            said(OLD, new),
            [
                "memory.frames changes when sluiced is restarted",
                "flow_log.flows changes when sluiced is restarted",
                "change the flight recorder",
                "add port d",
                "replace port a",
                "add service lb (1 instances)",
                "add instances of service ids, up to 4",
                "add chain three",
                "replace chain one",
                "replace the rules (2 of them)",
                "remove chain two",
                "remove instances of service nat, down to 2",
                "remove service fw",
                "remove port c",
            ]
        );
    }

    #[test]
    fn a_section_that_needs_a_restart_is_a_change_only_where_it_differs() {
        let recorder = format!("recorder = {{ memory_mib = 4 }}\n{OLD}");
        assert_eq!(said(&recorder, &recorder), Vec::<String>::new());
        let page = format!("page = {{ listen = \"127.0.0.1:9180\" }}\n{OLD}");
        assert_eq!(said(&page, &page), Vec::<String>::new());
        assert_eq!(said(&page, OLD), ["page.listen changes when sluiced is restarted"], "it goes");
        assert_eq!(said(OLD, &page), ["page.listen changes when sluiced is restarted"]);
        let telemetry = format!("telemetry = {{ interval_ms = 1000 }}\n{OLD}");
        assert_eq!(said(OLD, &telemetry), ["telemetry.interval_ms changes when sluiced is restarted"]);
    }

    #[test]
    fn a_changed_program_replaces_the_instances() {
        let new = OLD.replace("exec = \"nat\", instances = 3", "exec = \"nat2\", instances = 2");
        assert_eq!(said(OLD, &new), ["replace service nat (2 instances)"]);
    }

    #[test]
    fn what_changes_while_packets_move_replaces_nothing() {
        let sched = "sched = { ecn = false, high_watermark = 70, tenants = { gold = 2 } }\n";
        assert_eq!(said(OLD, &format!("{sched}{OLD}")), ["change settings of scheduling"]);
        let class = |keys: &str| format!("sched = {{ {keys} }}\n{OLD}");
        let between = |old: &str, new: &str| said(&class(old), &class(new));
        assert_eq!(between("", "class = \"batch\""), ["change settings of scheduling"]);
        assert_eq!(between("class = \"batch\"", "class = \"rr\""), ["sched.class changes when sluiced is restarted"]);
        assert_eq!(between("class = \"rr\"", ""), ["sched.class changes when sluiced is restarted"]);
        assert_eq!(between("class = \"rr\"", "class = \"rr\", rr_slice_ms = 5"), ["change settings of scheduling"]);
        let manager = "manager = { latency_sample = 0, log_level = \"debug\", stall_ms = 5 }\n";
        let both = ["manager.stall_ms changes when sluiced is restarted", "change settings of the manager"];
        assert_eq!(said(OLD, &format!("{manager}{OLD}")), both);
        let logged = "flow_log = { file = \"/a\", idle_ms = 500 }\nrecorder = { rate_hz = 50 }\n";
        assert_eq!(said(OLD, &format!("{logged}{OLD}")), ["change the log of flows", "change the flight recorder"]);
        let rate = OLD.replace("name = \"a\", kind = \"gen\"", "name = \"a\", kind = \"gen\", rate = 5");
        assert_eq!(said(OLD, &rate), ["change the rate of port a"]);
        assert_eq!(said(OLD, &rate.replace("rate = 5", "rate = 5, size = 99")), ["replace port a"]);
    }

    #[test]
    fn a_priority_changes_alone_unless_the_instances_are_replaced_anyway() {
        let of = |keys: &str| OLD.replace("exec = \"nat\", instances = 3", &format!("exec = \"nat\", priority = 2, {keys}"));
        assert_eq!(said(OLD, &of("instances = 3")), ["change the priority of service nat"]);
        assert_eq!(said(OLD, &of("instances = 3, priority_min = 1")), ["change the priority of service nat"]);
        assert_eq!(
            said(OLD, &OLD.replace("instances = 3", "instances = 3, priority_max = 4")),
            ["change the priority of service nat"]
        );
        let both = ["change the priority of service nat", "add instances of service nat, up to 4"];
        assert_eq!(said(OLD, &of("instances = 4")), both);
        assert_eq!(said(OLD, &of("instances = 3, ring = 64")), ["replace service nat (3 instances)"]);
    }

    #[test]
    fn instances_on_other_cores_leave_those_that_stay_where_they_are() {
        let of = |instances: u32, cores: &str| {
            OLD.replace("exec = \"nat\", instances = 3", &format!("exec = \"nat\", instances = {instances}, cores = [{cores}]"))
        };
        assert_eq!(said(&of(2, "0, 1"), &of(3, "0, 1, 1")), ["add instances of service nat, up to 3"]);
        assert_eq!(said(&of(2, "0, 1"), &of(3, "1, 0, 1")), ["add instances of service nat, up to 3"]);
        assert_eq!(said(&of(1, "0"), &of(1, "0, 1")), ["change the cores of instances of service nat"]);
        assert_eq!(said(&of(2, "0, 1"), &of(2, "1, 0")), ["change the cores of instances of service nat"]);
        assert_eq!(said(&of(2, "0, 1"), &of(2, "1, 2")), ["change the cores of instances of service nat"]);
        assert_eq!(said(&of(1, "0"), &of(1, "1")), ["replace service nat (1 instances)"]);
        assert_eq!(said(&of(3, "0, 1, 0"), &of(1, "1")), ["remove instances of service nat, down to 1"]);
    }

    /// The cores of started instances, and the indices of stopped ones.
    fn turned(before: &[usize], wanted: &[usize], living: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let turnover = turnover(before, wanted, living);
        (turnover.starts, turnover.stops)
    }

    #[test]
    fn what_comes_is_started_and_what_goes_is_stopped() {
        assert_eq!(turned(&[0, 1], &[0, 1, 1], &[0, 1]), (vec![1], vec![]));
        assert_eq!(turned(&[0, 1], &[1, 2], &[0, 1]), (vec![2], vec![0]));
        assert_eq!(turned(&[0, 1], &[1, 0], &[0, 1]), (vec![], vec![]));
        assert_eq!(turned(&[0, 1, 0], &[0], &[0, 1, 0]), (vec![], vec![1, 2]));
        assert_eq!(turned(&[0, 1], &[1, 2], &[0, 1, 2]), (vec![], vec![0]), "the new one stands ready");
    }

    #[test]
    fn lost_instances_are_started_again_where_they_stay_and_not_where_they_go() {
        assert_eq!(turned(&[0, 1, 2], &[1, 2], &[0, 2]), (vec![1], vec![0]));
        assert_eq!(turned(&[0, 1], &[1, 2], &[1]), (vec![2], vec![]));
        assert_eq!(turned(&[0, 1], &[0, 1, 2], &[]), (vec![0, 1, 2], vec![]));
        assert_eq!(turned(&[0, 0], &[0], &[0]), (vec![], vec![]));
    }

    #[test]
    fn moved_instances_stand_for_those_where_they_were() {
        assert_eq!(turned(&[0, 1], &[0, 1, 2], &[3, 1]), (vec![2], vec![]), "the one of core 0 was moved to 3");
        assert_eq!(turned(&[0, 1], &[0, 1, 1], &[3, 1]), (vec![1], vec![]));
        assert_eq!(turned(&[0, 1], &[1, 2], &[3, 1]), (vec![2], vec![0]), "and goes from there");
        assert_eq!(turned(&[0, 1], &[1, 2], &[2, 1]), (vec![], vec![]), "and is where it is wanted");
        assert_eq!(turned(&[0, 1, 2], &[0, 1], &[3, 4, 5]), (vec![], vec![2]));
        assert_eq!(turned(&[0, 1], &[0, 1], &[3]), (vec![1], vec![]), "and the other one is lost");
    }

    #[test]
    fn keys_of_a_pool_change_in_the_living_pool() {
        let with = |pool: &str, more: &str| {
            OLD.replace("exec = \"ids\"", &format!("exec = \"ids\", per = \"flow\"{more}, pool = {{ {pool} }}"))
        };
        let before = with("min = 2, max = 8", "");
        for pool in [
            "min = 3, max = 8",
            "min = 2, max = 9",
            "min = 2, max = 8, linger_ms = 7, idle_ms = 9, when_empty = \"drop\"",
            "min = 2, max = 8, isolation = \"strict\"",
        ] {
            assert_eq!(said(&before, &with(pool, "")), ["change the pool of service ids"], "{pool}");
        }
        assert_eq!(said(&before, &with("min = 2, max = 8, ring = 128", "")), ["replace service ids (2 instances)"]);
        assert_eq!(said(&before, &with("min = 3, max = 8", ", args = [\"x\"]")), ["replace service ids (3 instances)"]);
        let rss = |min: u32| with(&format!("min = {min}"), "").replace("\"flow\"", "\"rss\"");
        assert_eq!(said(&rss(2), &rss(4)), ["change the pool of service ids"]);
        assert_eq!(said(&rss(4), &rss(2)), ["replace service ids (2 instances)"]);
    }

    #[test]
    fn a_change_reads_what_it_writes() {
        let new = OLD.replace("{ name = \"a\", kind = \"gen\" }", "{ name = \"a\", kind = \"gen\", rate = 2.5 }");
        for change in diff(&config(OLD), &config(&new)).into_iter().chain(diff(&Config::default(), &config(OLD))) {
            let json = serde_json::to_string(&change).unwrap();
            assert_eq!(serde_json::from_str::<Change>(&json).unwrap(), change, "{json}");
        }
    }

    prop_compose! {
        /// Valid configurations with few names, so that two of them have much in common.
        fn some_config()(
            frames in 512u32..515,
            ports in prop::collection::btree_map(0usize..4, 1u32..3, 1..4),
            services in prop::collection::btree_map(0usize..4, (1u32..4, 0u32..2, prop::collection::vec(0usize..3, 1..4)), 1..4),
            chains in prop::collection::btree_map(0usize..4, (prop::collection::vec(0usize..9, 0..4), 0usize..9), 1..4),
            rules in prop::collection::vec((0usize..9, prop::option::of(0usize..9), 0u16..3), 0..4),
        ) -> Config {
            let pick = |names: &[String], n: usize| names[n % names.len()].clone();
            let port_names: Vec<String> = ports.keys().map(|n| format!("p{n}")).collect();
            let service_names: Vec<String> = services.keys().map(|n| format!("s{n}")).collect();
            let chain_names: Vec<String> = chains.keys().map(|n| format!("c{n}")).collect();
            let json = serde_json::json!({
                "memory": { "frames": frames },
                "port": ports.iter().map(|(n, queues)| serde_json::json!({
                    "name": format!("p{n}"), "kind": "sink", "overload": if *queues == 1 { "drop" } else { "wait" },
                })).collect::<Vec<_>>(),
                "service": services.iter().map(|(n, (instances, exec, cores))| serde_json::json!({
                    "name": format!("s{n}"), "exec": format!("e{exec}"), "instances": instances, "cores": cores,
                })).collect::<Vec<_>>(),
                "chain": chains.iter().map(|(n, (hops, egress))| {
                    let mut hops: Vec<String> = hops.iter().map(|h| pick(&service_names, *h)).collect();
                    hops.dedup();
                    serde_json::json!({ "name": format!("c{n}"), "services": hops, "egress": pick(&port_names, *egress) })
                }).collect::<Vec<_>>(),
                "rule": rules.iter().map(|(chain, port, vlan)| serde_json::json!({
                    "chain": pick(&chain_names, *chain), "port": port.map(|p| pick(&port_names, p)), "vlan": vlan,
                })).collect::<Vec<_>>(),
            });
            serde_json::from_value(json).unwrap()
        }
    }

    /// A configuration without what a diff neither orders nor changes.
    fn essence(mut config: Config) -> Config {
        config.ports.sort_by(|a, b| a.name.cmp(&b.name));
        config.services.sort_by(|a, b| a.name.cmp(&b.name));
        config.chains.sort_by(|a, b| a.name.cmp(&b.name));
        config.manager = Default::default();
        config.memory = Default::default();
        config
    }

    proptest! {
        #[test]
        fn applied_it_gives_the_new_one_and_every_step_is_valid(old in some_config(), new in some_config()) {
            let changes = diff(&old, &new);
            let restarts: BTreeSet<&str> =
                changes.iter().filter_map(|c| match c { Change::NeedsRestart { key } => Some(key.as_str()), _ => None }).collect();
            prop_assert_eq!(restarts.contains("memory.frames"), old.memory != new.memory);
            let mut running = old;
            for change in &changes {
                let before = running.clone();
                change.apply(&mut running);
                let wrong: Vec<String> = validate(&running).iter().filter(|p| p.is_error()).map(|p| p.to_string()).collect();
                prop_assert!(wrong.is_empty(), "{} makes {:?}", change, wrong);
                prop_assert!(before != running || matches!(change, Change::NeedsRestart { .. }), "{} does nothing", change);
            }
            prop_assert_eq!(essence(running), essence(new));
        }
    }
}
