//! What may be done with each node.

use std::collections::BTreeMap;
use std::time::Duration;

use sluice_cluster_types::{NodePlan, ServerClass};

use crate::world::{Node, World};

/// A node gets nothing more after it has not taken over its plan for this long, and counts as lost
/// after its agent has been silent for this long.
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

/// Since when nodes are not as they should be.
#[derive(Debug, Default)]
pub struct Clocks {
    /// Nodes that are not settled: the last revision that each has taken over, and since when it is
    /// that one.
    waiting: BTreeMap<String, (i64, Duration)>,
    silent: BTreeMap<String, Duration>,
}

impl Clocks {
    /// Notes since when nodes take over nothing, and since when their agents are silent.
    pub fn note(&mut self, world: &World, now: Duration) {
        self.waiting.retain(|name, _| world.plans.contains_key(name));
        self.silent.retain(|name, _| is_silent(world, name));
        for (name, plan) in &world.plans {
            let applied = plan.status.as_ref().map_or(0, |status| status.applied_revision);
            if is_settled(plan) {
                self.waiting.remove(name);
            } else if self.waiting.get(name).is_none_or(|(known, _)| *known != applied) {
                self.waiting.insert(name.clone(), (applied, now));
            }
            if is_silent(world, name) && !self.silent.contains_key(name) {
                self.silent.insert(name.clone(), now);
            }
        }
    }

    /// Notes that a node gets another plan.
    pub fn start(&mut self, world: &World, name: &str, now: Duration) {
        let applied = world.plans.get(name).and_then(|plan| plan.status.as_ref()).map_or(0, |status| status.applied_revision);
        self.waiting.entry(name.into()).or_insert((applied, now));
    }

    /// Whether a node has not taken over its plan for too long.
    pub fn is_slow(&self, name: &str, now: Duration) -> bool {
        self.waiting.get(name).is_some_and(|(_, since)| now.saturating_sub(*since) >= SLOW)
    }

    /// Whether its agent has been silent for so long that its daemon counts as dead.
    fn is_dead(&self, name: &str, now: Duration) -> bool {
        self.silent.get(name).is_some_and(|since| now.saturating_sub(*since) >= SLOW)
    }

    /// When something changes by time alone.
    pub fn ends(&self) -> impl Iterator<Item = Duration> {
        self.waiting.values().map(|(_, since)| since).chain(self.silent.values()).map(|since| *since + SLOW)
    }
}

/// Whether an agent has answered once, and does not any more.
pub fn is_silent(world: &World, name: &str) -> bool {
    let has_answered = world.plans.get(name).is_some_and(|plan| plan.status.is_some());
    has_answered && world.nodes.get(name).is_some_and(|node| node.is_ready && !node.is_served)
}

/// What to do about nodes whose agents are silent.
pub fn see_agents(nodes: &[&str]) -> String {
    let (first, more) = (nodes.first().copied().unwrap_or_default(), nodes.len().saturating_sub(1));
    let others = if more > 0 { format!(", and those of {more} more,") } else { String::new() };
    format!(
        "the agent of node {first}{others} is silent: kubectl get pods -A --field-selector spec.nodeName={first} shows its pod; see the \
         logs of its containers node and sluiced"
    )
}

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
pub fn class<'a>(world: &'a World, node: &Node) -> Option<&'a ServerClass> {
    let selects =
        |class: &&ServerClass| class.spec.node_selector.iter().all(|(label, value)| node.labels.get(label) == Some(value));
    let selecting = world.classes.values().filter(selects);
    // Of equal ones `max_by_key` takes the last.
    selecting.rev().max_by_key(|class| class.spec.node_selector.len())
}

/// What may be done with a node. `is_met`: its plan is for a server of its class.
pub fn of(world: &World, name: &str, is_met: bool, clocks: &Clocks, now: Duration) -> Health {
    let Some(node) = world.nodes.get(name).filter(|node| node.is_ready) else { return Health::Lost };
    if clocks.is_dead(name, now) {
        return Health::Lost;
    }
    if node.is_cordoned {
        return Health::Leaving;
    }
    // Without a status, no agent ever ran there.
    let Some(plan) = world.plans.get(name).filter(|plan| plan.status.is_some()) else { return Health::Closed };
    let is_profiling = plan.status.as_ref().is_some_and(|status| status.profiling);
    let is_well = is_met && node.is_served && !is_profiling && !clocks.is_slow(name, now) && refusal(plan).is_none();
    if is_well { Health::Open } else { Health::Closed }
}
