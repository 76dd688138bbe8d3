//! Which chains and NFs each node has: those that it has already, until its turn for a change.
//!
//! A change goes to one node at a time, in the order of names: to the next only when all nodes
//! whose plans have it have taken over the revision that brought it. What else changes there is not
//! waited for. So a node that refuses stops it, and the others keep the old or the new as a whole.
//! A node that refuses is the first to get the next change.

use std::collections::{BTreeMap, BTreeSet};

use sluice_cluster_types::{PlannedChain, PlannedFunction};

use crate::board::Board;
use crate::health::refusal;
use crate::wish::Wish;
use crate::world::World;

/// What a node has of chains and NFs, by name.
#[derive(Debug, Default)]
pub struct Definitions {
    pub chains: BTreeMap<String, PlannedChain>,
    pub functions: BTreeMap<String, PlannedFunction>,
}

/// A chain or an NF, by its name on nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Chain(String),
    Function(String),
}

/// The nodes that have an item, and those of them that have it as it was.
#[derive(Debug, Default)]
struct Holders {
    /// Those whose written plans have it as it is now.
    current: BTreeSet<String>,
    stale: BTreeSet<String>,
}

/// How far changes have come.
#[derive(Debug, Default)]
pub struct Rollout {
    /// The first revision of each node's plan that was seen with an item as it is now.
    since: BTreeMap<Item, BTreeMap<String, i64>>,
    /// The node for which the others wait.
    waits: BTreeMap<Item, String>,
}

impl Rollout {
    /// The node for which a change of an NF waits.
    pub fn waits_for(&self, function: &str) -> Option<&str> {
        self.waits.get(&Item::Function(function.into())).map(String::as_str)
    }

    /// The nodes whose turn it is. `before` has what was known of earlier rounds.
    fn next(&mut self, world: &World, item: &Item, of: &Holders, before: &Self) -> Vec<String> {
        let known = before.since.get(item);
        let plan = |node: &String| world.plans.get(node);
        // A plan that was deleted begins to count anew.
        let first = |node: &String| {
            let last = plan(node)?.spec.revision;
            Some((node.clone(), known.and_then(|known| known.get(node)).map_or(last, |first| last.min(*first))))
        };
        let since: BTreeMap<String, i64> = of.current.iter().filter_map(first).collect();
        let applied = |node: &String| plan(node)?.status.as_ref().map(|status| status.applied_revision);
        let late = since.iter().find(|(node, first)| applied(node) < Some(**first)).map(|(node, _)| node.clone());
        self.since.insert(item.clone(), since);
        let refuses = |node: &&String| plan(node).is_some_and(|plan| refusal(plan).is_some());
        let refusing: Vec<String> = of.stale.iter().filter(refuses).cloned().collect();
        match late {
            _ if !refusing.is_empty() => refusing,
            None => of.stale.first().cloned().into_iter().collect(),
            Some(node) => {
                if !of.stale.is_empty() {
                    self.waits.insert(item.clone(), node);
                }
                Vec::new()
            }
        }
    }
}

fn find<'a, T>(list: &'a [T], name: &str, of: impl Fn(&T) -> &String) -> Option<&'a T> {
    list.iter().find(|one| of(one) == name)
}

/// The chains and NFs of each node, with this round's changes.
pub fn definitions(
    world: &World,
    board: &Board,
    wishes: &BTreeMap<&str, &Wish<'_>>,
    rollout: &mut Rollout,
) -> BTreeMap<String, Definitions> {
    let before = std::mem::take(rollout);
    let mut nodes: BTreeMap<String, Definitions> = BTreeMap::new();
    let mut holders: BTreeMap<Item, Holders> = BTreeMap::new();
    for slo in board.slos() {
        let wish = wishes.get(slo.as_str());
        let wanted = wish.map(|wish| (wish.chain(), wish.functions().collect::<Vec<_>>()));
        for node in board.nodes(slo) {
            let plan = world.plans.get(&node).map(|plan| &plan.spec);
            let has = plan.and_then(|plan| find(&plan.chains, slo, |one| &one.name));
            let Some(chain) = has.or(wanted.as_ref().map(|(chain, _)| chain)) else { continue };
            let here = nodes.entry(node.clone()).or_default();
            here.chains.insert(slo.clone(), chain.clone());
            // With other services it is not this SLO's chain any more, which its condition says.
            let is_stale = wanted.as_ref().is_some_and(|(now, _)| now != chain && now.chain.services == chain.chain.services);
            note(&mut holders, Item::Chain(slo.clone()), &node, has.is_some(), is_stale);
            for service in &chain.chain.services {
                let has = plan.and_then(|plan| find(&plan.functions, service, |one| &one.name));
                let now = wanted.as_ref().and_then(|(_, functions)| find(functions, service, |one| &one.name));
                let Some(function) = has.or(now) else { continue };
                here.functions.insert(service.clone(), function.clone());
                let is_stale = now.is_some_and(|now| now != function);
                note(&mut holders, Item::Function(service.clone()), &node, has.is_some(), is_stale);
            }
        }
    }
    for (item, of) in holders {
        for node in rollout.next(world, &item, &of, &before) {
            let Some(here) = nodes.get_mut(&node) else { continue };
            change(here, &item, board, wishes, &node);
        }
    }
    nodes
}

fn note(holders: &mut BTreeMap<Item, Holders>, item: Item, node: &str, is_written: bool, is_stale: bool) {
    let of = holders.entry(item).or_default();
    match (is_written, is_stale) {
        (_, true) => _ = of.stale.insert(node.into()),
        (true, false) => _ = of.current.insert(node.into()),
        // It is new there, and has it as it is now from the beginning.
        (false, false) => {}
    }
}

/// Gives a node the item as it is now.
fn change(here: &mut Definitions, item: &Item, board: &Board, wishes: &BTreeMap<&str, &Wish<'_>>, node: &str) {
    match item {
        Item::Chain(slo) => {
            if let Some(wish) = wishes.get(slo.as_str()) {
                here.chains.insert(slo.clone(), wish.chain());
            }
        }
        Item::Function(name) => {
            let on_node = board.server(node).into_iter().flat_map(|server| &server.instances);
            let mut own = on_node.filter_map(|one| wishes.get(one.slo.as_str()));
            let now = own.find_map(|wish| wish.functions().find(|function| function.name == *name));
            if let Some(now) = now {
                here.functions.insert(name.clone(), now);
            }
        }
    }
}
