//! What may be done with each node.

use std::collections::BTreeMap;
use std::time::Duration;

use sluice_cluster_types::{NodePlan, ServerClassSpec};

use crate::world::{Node, World};

/// A node gets nothing more after it has not taken over its plan for this long.
pub const SLOW: Duration = Duration::from_secs(60);

/// What may be done with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It can have more instances.
    Open,
    /// It keeps what it has.
    Closed,
    /// It is to be emptied.
    Leaving,
    /// Nothing runs there as far as anybody knows.
    Lost,
}

/// Nodes that are not settled: the last revision that each has taken over, and since when it is
/// that one.
pub type Waiting = BTreeMap<String, (i64, Duration)>;

/// Whether a node has taken over its plan.
pub fn is_settled(plan: &NodePlan) -> bool {
    plan.status.as_ref().is_some_and(|status| status.applied_revision == plan.spec.revision)
}

/// Why a node does not take over its plan, if it says so.
pub fn refusal(plan: &NodePlan) -> Option<&str> {
    let status = plan.status.as_ref().filter(|status| status.observed_revision == plan.spec.revision)?;
    status.refused.as_deref()
}

/// The class of a node: the one with most labels, then the first by name.
pub fn class<'a>(world: &'a World, node: &Node) -> Option<&'a ServerClassSpec> {
    let selects = |class: &&ServerClassSpec| class.node_selector.iter().all(|(label, value)| node.labels.get(label) == Some(value));
    let selecting = world.classes.values().filter(selects);
    // Of equal ones `max_by_key` takes the last.
    selecting.rev().max_by_key(|class| class.node_selector.len())
}

/// What may be done with a node. `is_met`: its plan is for a server of its class.
pub fn of(world: &World, name: &str, is_met: bool, waiting: &Waiting, now: Duration) -> Health {
    let Some(node) = world.nodes.get(name).filter(|node| node.is_ready) else { return Health::Lost };
    if node.is_cordoned {
        return Health::Leaving;
    }
    // Without a status, no agent runs there.
    let Some(plan) = world.plans.get(name).filter(|plan| plan.status.is_some()) else { return Health::Closed };
    let is_profiling = plan.status.as_ref().is_some_and(|status| status.profiling);
    if is_met && !is_profiling && !is_slow(name, waiting, now) && refusal(plan).is_none() { Health::Open } else { Health::Closed }
}

/// Whether a node has not taken over its plan for too long.
pub fn is_slow(name: &str, waiting: &Waiting, now: Duration) -> bool {
    waiting.get(name).is_some_and(|(_, since)| now.saturating_sub(*since) >= SLOW)
}

/// Notes since when nodes take over nothing.
pub fn wait(world: &World, waiting: &mut Waiting, now: Duration) {
    waiting.retain(|name, _| world.plans.contains_key(name));
    for (name, plan) in &world.plans {
        let applied = plan.status.as_ref().map_or(0, |status| status.applied_revision);
        if is_settled(plan) {
            waiting.remove(name);
        } else if waiting.get(name).is_none_or(|(known, _)| *known != applied) {
            waiting.insert(name.clone(), (applied, now));
        }
    }
}
