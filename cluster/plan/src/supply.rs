//! What is said of profiles and classes: what each is good for, and what is wrong with it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sluice_cluster_types::condition::{ACCEPTED, State, are, written};
use sluice_cluster_types::{Has, NfProfileStatus, ServerClass, ServerClassSpec, ServerClassStatus};

use crate::health;
use crate::wish::Standing;
use crate::world::{Key, World};

/// The statuses of profiles that are to be written. A profile that no round has seen yet has none.
pub fn profiles(world: &World, standings: &BTreeMap<Key, Standing>, now: &Time) -> Vec<(Key, NfProfileStatus)> {
    let mut classes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, class) in &world.classes {
        classes.entry(&class.spec.cpu).or_default().push(name);
    }
    let mut all = Vec::new();
    for (key, profile) in &world.profiles {
        let Some(standing) = standings.get(key) else { continue };
        let state = of_profile(standing, &profile.spec.profile.key.cpu, &classes);
        let slos = match standing {
            Standing::Newest(slos) if state.holds == Some(true) => *slos as i64,
            _ => 0,
        };
        let (before, generation) = (profile.status.as_ref(), profile.metadata.generation);
        let had = before.map(|before| before.conditions.as_slice()).unwrap_or_default();
        let is_same = before.is_some_and(|before| (before.observed_generation, before.slos) == (generation, slos));
        if !is_same || !are(had, std::slice::from_ref(&state)) {
            let conditions = written(&[state], had, generation, now);
            all.push((key.clone(), NfProfileStatus { observed_generation: generation, slos, conditions }));
        }
    }
    all
}

fn of_profile(standing: &Standing, cpu: &str, classes: &BTreeMap<&str, Vec<&str>>) -> State {
    let fitting = classes.get(cpu).map(|names| names.join(", "));
    match (standing, fitting) {
        (Standing::Bad(why), _) => State::new(ACCEPTED, Some(false), "BadProfile", format!("{why}; profile again")),
        (_, None) if classes.is_empty() => {
            State::new(ACCEPTED, Some(false), "NoServer", "there is no ServerClass: make one, with the processor of its nodes")
        }
        (_, None) => {
            let known: Vec<String> = classes.keys().map(|cpu| format!("\"{cpu}\"")).collect();
            let known = known.join(", ");
            let message =
                format!("it is of the processor \"{cpu}\", and the classes have {known}: profile it on one of their nodes");
            State::new(ACCEPTED, Some(false), "NoServer", message)
        }
        (Standing::Older, Some(_)) => {
            State::new(ACCEPTED, Some(true), "Older", "a newer one of the same on this processor counts: this one can be deleted")
        }
        (Standing::Newest(0), Some(names)) => {
            State::new(ACCEPTED, Some(true), "Unused", format!("no SLO is planned by it; classes of its processor: {names}"))
        }
        (Standing::Newest(slos), Some(names)) => State::new(
            ACCEPTED,
            Some(true),
            "Used",
            format!("SLOs that are planned by it: {slos}; classes of its processor: {names}"),
        ),
    }
}

/// The nodes of a class, and what is wrong with some.
#[derive(Default)]
struct Nodes<'a> {
    count: usize,
    fitting: usize,
    /// Those that report less than the class says, with what.
    less: Vec<(&'a str, String)>,
    /// Those whose plans have other numbers.
    other: Vec<&'a str>,
}

/// The statuses of classes that are to be written.
pub fn classes(world: &World, now: &Time) -> Vec<(String, ServerClassStatus)> {
    let mut by_class: BTreeMap<&str, Nodes<'_>> = BTreeMap::new();
    for (name, node) in &world.nodes {
        let Some(class) = health::class(world, node) else { continue };
        let of = by_class.entry(class.metadata.name.as_deref().unwrap_or_default()).or_default();
        of.count += 1;
        let plan = world.plans.get(name);
        let has = plan.and_then(|plan| plan.status.as_ref()?.has.as_ref());
        let is_met = plan.is_some_and(|plan| plan.spec.server.shape == class.spec.shape());
        match has.and_then(|has| lacks(&class.spec, has)) {
            Some(what) => of.less.push((name, what)),
            None if !is_met && plan.is_some() => of.other.push(name),
            None => of.fitting += usize::from(is_met),
        }
    }
    let mut all = Vec::new();
    let none = Nodes::default();
    for (name, class) in &world.classes {
        let nodes = by_class.get(name.as_str()).unwrap_or(&none);
        all.extend(of_class(class, nodes, now).map(|status| (name.clone(), status)));
    }
    all
}

/// What a node lacks of what its class says, in words.
fn lacks(class: &ServerClassSpec, has: &Has) -> Option<String> {
    // Those of devices, or of the system's own class, are given to no NF.
    let ways = class.llc_ways.saturating_sub(class.ddio_ways.max(class.min_ways));
    if !has.cpu.is_empty() && has.cpu != class.cpu {
        return Some(format!("the processor \"{}\" in place of \"{}\"", has.cpu, class.cpu));
    }
    if has.cores < class.cores {
        return Some(format!("{} cores in `cores` of [promises] in place of {}", has.cores, class.cores));
    }
    if has.ways > 0 && has.ways < ways {
        return Some(format!("{} cache ways for NFs in place of {ways}", has.ways));
    }
    let is_less = has.memory_mib > 0 && has.memory_mib < class.memory_mib;
    is_less.then(|| format!("{} MiB of memory in place of {}", has.memory_mib, class.memory_mib))
}

fn of_class(class: &ServerClass, nodes: &Nodes<'_>, now: &Time) -> Option<ServerClassStatus> {
    let Nodes { count, fitting, less, other } = nodes;
    let state = match (less.first(), other.first()) {
        (Some((node, what)), _) => {
            let n = less.len();
            let message =
                format!("{n} of {count} nodes have less, as {node}, which has {what}: correct the class, or give it another label");
            State::new(ACCEPTED, Some(false), "NodeDiffers", message)
        }
        (None, Some(node)) => {
            let n = other.len();
            let message = format!(
                "{n} of {count} nodes keep other numbers, as {node}: what runs there would not fit these; it gets nothing more"
            );
            State::new(ACCEPTED, Some(false), "NodeKeepsOther", message)
        }
        (None, None) if *count == 0 => State::new(ACCEPTED, Some(true), "Unused", "no node has its labels: label one"),
        (None, None) => {
            State::new(ACCEPTED, Some(true), "Fits", format!("{fitting} of {count} nodes have what it says, as far as they report"))
        }
    };
    let (nodes, fitting, observed_generation) = (*count as i64, *fitting as i64, class.metadata.generation);
    let before = class.status.as_ref();
    let had = before.map(|before| before.conditions.as_slice()).unwrap_or_default();
    let now_is = (observed_generation, nodes, fitting);
    let is_same = before.is_some_and(|before| (before.observed_generation, before.nodes, before.fitting) == now_is);
    if is_same && are(had, std::slice::from_ref(&state)) {
        return None;
    }
    let conditions = written(&[state], had, observed_generation, now);
    Some(ServerClassStatus { observed_generation, nodes, fitting, conditions })
}
