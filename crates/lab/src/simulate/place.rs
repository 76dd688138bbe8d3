//! Placement of instances on cores.
//!
//! As configured, an instance takes the next of its service's cores, as in the daemon. On a given
//! number of cores, instances go round-robin, in the order of the configuration. Polling instances
//! get separate cores after those of the others, if there are enough. A group of a fused chain is
//! one NF; that of an inline chain is none.

use std::collections::BTreeSet;

use super::error::names;
use sluice_api::config::{Config, Idle, Mode, Service};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedNf {
    /// `SERVICE.i`.
    pub name: String,
    /// Index of its service in the configuration.
    pub service: usize,
    /// Its core, as an index into [`Simulation::cores`](super::Simulation::cores).
    pub core: usize,
    pub polls: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// All instances, by service.
    pub nfs: Vec<PlannedNf>,
    /// Numbers of the available cores.
    pub cores: Vec<usize>,
}

/// Places the instances of a configuration on the configured cores, or on this number of others.
pub fn place(config: &Config, cores: Option<usize>, notes: &mut Vec<String>) -> Placement {
    let placement = match cores {
        Some(cores) => in_turn(config, cores.max(1)),
        None => {
            let placement = configured(config);
            manager(config, &placement, notes);
            placement
        }
    };
    pollers(&placement, notes);
    tenants(config, &placement, notes);
    placement
}

/// The services that have processes, with their numbers.
fn with_processes(config: &Config) -> impl Iterator<Item = (usize, &Service)> {
    config.services.iter().enumerate().filter(|(_, service)| service.first_instances() > 0 && !service.is_inline())
}

/// All instances; `core` maps the numbers of service and instance, and whether it polls, to a core.
fn instances(config: &Config, mut core: impl FnMut(usize, usize, bool) -> usize) -> Vec<PlannedNf> {
    let mut nfs = Vec::new();
    for (number, service) in with_processes(config) {
        let polls = service.mode == Mode::Poll;
        for i in 0..service.first_instances() as usize {
            nfs.push(PlannedNf { name: format!("{}.{i}", service.name), service: number, core: core(number, i, polls), polls });
        }
    }
    nfs
}

fn configured(config: &Config) -> Placement {
    let cores: BTreeSet<usize> = with_processes(config).flat_map(|(_, s)| s.cores.iter().copied()).collect();
    let cores: Vec<usize> = cores.into_iter().collect();
    let nfs = instances(config, |service, i, _| {
        let mine = &config.services[service].cores;
        mine.get(i % mine.len().max(1)).and_then(|core| cores.binary_search(core).ok()).unwrap_or(0)
    });
    Placement { nfs, cores: if cores.is_empty() { vec![0] } else { cores } }
}

fn in_turn(config: &Config, cores: usize) -> Placement {
    let all = || with_processes(config).map(|(_, service)| service);
    let count = |mode| all().filter(|s| s.mode == mode).map(|s| s.first_instances() as usize).sum::<usize>();
    let (pollers, sleepers) = (count(Mode::Poll), count(Mode::Sleep));
    let has_own = pollers < cores || (pollers == cores && sleepers == 0);
    let shared = if has_own { cores - pollers } else { cores };
    let (mut turn, mut own) = (0, shared);
    let nfs = instances(config, |_, _, polls| {
        let next = if polls && has_own { &mut own } else { &mut turn };
        let core = if polls && has_own { *next } else { *next % shared };
        *next += 1;
        core
    });
    Placement { nfs, cores: (0..cores).collect() }
}

/// Notes effects of polling that are not simulated.
fn pollers(placement: &Placement, notes: &mut Vec<String>) {
    let polling: Vec<&PlannedNf> = placement.nfs.iter().filter(|nf| nf.polls).collect();
    if polling.is_empty() {
        return;
    }
    let all: Vec<String> = polling.iter().map(|nf| nf.name.clone()).collect();
    let verb = if all.len() > 1 { "poll: their cores are" } else { "polls: its core is" };
    notes.push(format!("{} {verb} always busy, whatever packets need", names(&all)));
    let sharing = polling.iter().filter(|nf| placement.nfs.iter().filter(|other| other.core == nf.core).count() > 1);
    let sharing: Vec<String> = sharing.map(|nf| nf.name.clone()).collect();
    if !sharing.is_empty() {
        notes.push(format!(
            "{} would poll on a core that others need, and is simulated as if it slept: give it a core of its own, or write \
             mode = \"sleep\"",
            names(&sharing)
        ));
    }
}

/// Notes NFs on the manager's cores.
fn manager(config: &Config, placement: &Placement, notes: &mut Vec<String>) {
    let m = &config.manager;
    let its: BTreeSet<usize> = m.cores().collect();
    let both: Vec<String> = placement.cores.iter().filter(|core| its.contains(core)).map(usize::to_string).collect();
    if !both.is_empty() {
        let rest = if m.idle == Idle::Spin { "which never sleeps" } else { "which takes its part" };
        notes.push(format!(
            "the manager, {rest}, has core {} as well; it is simulated on cores of its own: give NFs other cores",
            both.join(", ")
        ));
    }
}

/// Notes NFs of different tenants on a core, which do not hand over to each other.
fn tenants(config: &Config, placement: &Placement, notes: &mut Vec<String>) {
    if !config.sched.handover {
        return;
    }
    let mixed = (0..placement.cores.len()).any(|core| {
        let mut tenants = placement.nfs.iter().filter(|nf| nf.core == core).map(|nf| &config.services[nf.service].tenant);
        let first = tenants.next();
        tenants.any(|tenant| Some(tenant) != first)
    });
    if mixed {
        notes.push("NFs of different tenants share a core; they are simulated as if they handed it to each other".into());
    }
}
