//! Which pod is which instance, and where it runs.
//!
//! A pod of an SLO waits at a gate until a plan that is written has an instance without a pod.
//! Then it is bound to that instance: it can run on the instance's node alone. A pod whose instance
//! is no longer in a plan, or has another pod, is evicted; whatever made it makes another one,
//! which waits at the gate. So the number of pods may differ from that of instances at any time,
//! and nothing runs that no plan holds.

use std::collections::{BTreeMap, BTreeSet};

use sluice_cluster_types::name;

use crate::world::{Key, World};

/// What is done with a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is the instance with this number, on this node.
    Bind { pod: Key, node: String, number: u32 },
    /// It is none any more.
    Evict { pod: Key },
}

/// What to do with pods, by the plans that are written.
pub fn bind(world: &World) -> Vec<Decision> {
    if world.pods.is_empty() {
        return Vec::new();
    }
    let mut instances: BTreeMap<&str, BTreeMap<u32, &str>> = BTreeMap::new();
    for (node, plan) in &world.plans {
        for one in &plan.spec.server.instances {
            instances.entry(&one.slo).or_default().insert(one.number, node);
        }
    }
    let mut decisions = Vec::new();
    let mut waiting: BTreeMap<(String, &str), Vec<&Key>> = BTreeMap::new();
    let mut taken: BTreeSet<(String, &str, u32)> = BTreeSet::new();
    for (key, pod) in world.pods.iter().filter(|(_, pod)| !pod.is_ending) {
        let slo = name::on_node(&key.namespace, &pod.slo);
        let bound = pod.instance.zip(pod.node.as_deref()).filter(|_| !pod.is_gated);
        match bound {
            None if pod.is_gated => waiting.entry((slo, &pod.function)).or_default().push(key),
            // It was never at the gate, and is none of ours.
            None => {}
            Some((number, node)) => {
                // The number of an instance that is gone may be another one's, elsewhere.
                let is_planned = instances.get(slo.as_str()).is_some_and(|of| of.get(&number) == Some(&node));
                if !is_planned || !taken.insert((slo, &pod.function, number)) {
                    decisions.push(Decision::Evict { pod: key.clone() });
                }
            }
        }
    }
    for ((slo, function), pods) in waiting {
        let of = instances.get(slo.as_str()).into_iter().flatten();
        let free = of.filter(|(number, _)| !taken.contains(&(slo.clone(), function, **number)));
        let bound = pods.into_iter().zip(free);
        decisions.extend(bound.map(|(pod, (number, node))| Decision::Bind {
            pod: pod.clone(),
            node: (*node).into(),
            number: *number,
        }));
    }
    decisions
}
