//! Which pod is which instance, and where it runs.
//!
//! A pod of an SLO waits at a gate until a plan that is written has an instance without a pod.
//! Then it is bound to that instance: it can run on the instance's node alone. A pod whose instance
//! is no longer in a plan, or has another pod, is evicted; whatever made it makes another one,
//! which waits at the gate. So the number of pods may differ from that of instances at any time,
//! and nothing runs that no plan holds.
//!
//! A pod whose labels name no SLO, or a function that the SLO's chain does not have, stays at the
//! gate, and so does one whose instance is on a cordoned node: the scheduler binds nothing there.
//! An annotation says why.

use std::collections::{BTreeMap, BTreeSet};

use sluice_cluster_types::{labels, name};

use crate::world::{Key, Pod, World};

/// What is done with a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is the instance with this number, on this node.
    Bind { pod: Key, node: String, number: u32 },
    /// It is none any more.
    Evict { pod: Key },
    /// Its annotation is to say why it is not bound, or nothing any more.
    Note { pod: Key, why: Option<String> },
}

impl Decision {
    pub fn pod(&self) -> &Key {
        let (Self::Bind { pod, .. } | Self::Evict { pod } | Self::Note { pod, .. }) = self;
        pod
    }
}

/// Why a pod that waits is no instance, whatever plans say.
fn refusal(world: &World, key: &Key, pod: &Pod) -> Option<String> {
    let namespace = &key.namespace;
    let of = |label: &str| format!("correct the label {label} of the pod, or of the template that makes it");
    let Some(slo) = world.slos.get(&Key::new(namespace, &pod.slo)) else {
        return Some(format!("there is no SLO \"{}\" in {namespace}: make it, or {}", pod.slo, of(labels::SLO)));
    };
    // Without the chain, the SLO's condition says so.
    let chain = world.chains.get(&Key::new(namespace, &slo.spec.chain))?;
    let services = &chain.spec.services;
    (!services.contains(&pod.function)).then(|| {
        let (function, has, fix) = (&pod.function, services.join(", "), of(labels::FUNCTION));
        format!("the chain \"{}\" of its SLO has no function \"{function}\", only {has}: {fix}", slo.spec.chain)
    })
}

/// The node of each instance in plans, by SLO and number.
fn instances(world: &World) -> BTreeMap<&str, BTreeMap<u32, &str>> {
    let mut instances: BTreeMap<&str, BTreeMap<u32, &str>> = BTreeMap::new();
    for (node, plan) in &world.plans {
        for one in &plan.spec.server.instances {
            instances.entry(&one.slo).or_default().insert(one.number, node);
        }
    }
    instances
}

/// Why a pod waits whose instance is on a cordoned node.
fn closed(number: u32, node: &str) -> String {
    format!(
        "instance {number} of its SLO is on node {node}, which is cordoned: kubectl uncordon {node}, or add nodes with room for it"
    )
}

/// What to do with pods, by the plans that are written.
pub fn bind(world: &World) -> Vec<Decision> {
    if world.pods.is_empty() {
        return Vec::new();
    }
    let instances = instances(world);
    let mut decisions = Vec::new();
    // Why pods wait at the gate, and nothing for those whose annotation says otherwise.
    let mut whys: BTreeMap<&Key, Option<String>> = BTreeMap::new();
    let mut waiting: BTreeMap<(String, &str), Vec<&Key>> = BTreeMap::new();
    let mut taken: BTreeSet<(String, &str, u32)> = BTreeSet::new();
    // Of pods that are to go, and have not gone yet: nobody else has these numbers meanwhile.
    let mut leaving: BTreeSet<(String, &str, u32)> = BTreeSet::new();
    for (key, pod) in world.pods.iter().filter(|(_, pod)| !pod.is_ending) {
        let why = if pod.is_gated { refusal(world, key, pod) } else { None };
        let is_refused = why.is_some();
        if is_refused || pod.refused.is_some() {
            whys.insert(key, why);
        }
        if is_refused {
            continue;
        }
        let slo = name::on_node(&key.namespace, &pod.slo);
        let bound = pod.instance.zip(pod.node.as_deref()).filter(|_| !pod.is_gated);
        match bound {
            None if pod.is_gated => waiting.entry((slo, &pod.function)).or_default().push(key),
            // It was never at the gate, and is none of ours.
            None => {}
            Some((number, node)) => {
                // The number of an instance that is gone may be another one's, elsewhere.
                let is_planned = instances.get(slo.as_str()).is_some_and(|of| of.get(&number) == Some(&node));
                let place = (slo, pod.function.as_str(), number);
                if !is_planned {
                    leaving.insert(place);
                    decisions.push(Decision::Evict { pod: key.clone() });
                } else if !taken.insert(place) {
                    decisions.push(Decision::Evict { pod: key.clone() });
                }
            }
        }
    }
    for ((slo, function), pods) in waiting {
        let of = instances.get(slo.as_str()).into_iter().flatten();
        let free = of.filter(|(number, _)| {
            let place = (slo.clone(), function, **number);
            !taken.contains(&place) && !leaving.contains(&place)
        });
        let is_cordoned = |node: &str| world.nodes.get(node).is_some_and(|node| node.is_cordoned);
        let (later, open): (Vec<_>, Vec<_>) = free.partition(|(_, node)| is_cordoned(node));
        let late = pods.iter().skip(open.len()).zip(later);
        whys.extend(late.map(|(pod, (number, node))| (*pod, Some(closed(*number, node)))));
        let bound = pods.into_iter().zip(open);
        decisions.extend(bound.map(|(pod, (number, node))| Decision::Bind {
            pod: pod.clone(),
            node: (*node).into(),
            number: *number,
        }));
    }
    // One thing is done with a pod at a time, and a note can wait.
    let decided: BTreeSet<Key> = decisions.iter().map(|decision| decision.pod().clone()).collect();
    let is_said = |key: &Key, why: Option<&str>| world.pods.get(key).is_some_and(|pod| pod.refused.as_deref() == why);
    let notes = whys.into_iter().filter(|(key, why)| !decided.contains(*key) && !is_said(key, why.as_deref()));
    decisions.extend(notes.map(|(key, why)| Decision::Note { pod: key.clone(), why }));
    decisions
}
