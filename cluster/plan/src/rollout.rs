//! Which chains and NFs each node has: those that it has already, until its turn for a change.
//!
//! A change goes to one node at a time, in the order of names: to the next only when all nodes that
//! have the chain or the NF are settled. So a node that refuses stops it, and the others keep the
//! old or the new as a whole. A node that refuses is the first to get the next change.

use std::collections::{BTreeMap, BTreeSet};

use sluice_cluster_types::{NodePlan, PlannedChain, PlannedFunction};

use crate::board::Board;
use crate::health::{is_settled, refusal};
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
    all: BTreeSet<String>,
    stale: BTreeSet<String>,
}

fn find<'a, T>(list: &'a [T], name: &str, of: impl Fn(&T) -> &String) -> Option<&'a T> {
    list.iter().find(|one| of(one) == name)
}

/// The chains and NFs of each node, with this round's changes.
pub fn definitions(world: &World, board: &Board, wishes: &BTreeMap<&str, &Wish<'_>>) -> BTreeMap<String, Definitions> {
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
            note(&mut holders, Item::Chain(slo.clone()), &node, is_stale);
            for service in &chain.chain.services {
                let has = plan.and_then(|plan| find(&plan.functions, service, |one| &one.name));
                let now = wanted.as_ref().and_then(|(_, functions)| find(functions, service, |one| &one.name));
                let Some(function) = has.or(now) else { continue };
                here.functions.insert(service.clone(), function.clone());
                note(&mut holders, Item::Function(service.clone()), &node, now.is_some_and(|now| now != function));
            }
        }
    }
    for (item, of) in holders {
        for node in next(world, &of) {
            let Some(here) = nodes.get_mut(&node) else { continue };
            change(here, &item, board, wishes, &node);
        }
    }
    nodes
}

fn note(holders: &mut BTreeMap<Item, Holders>, item: Item, node: &str, is_stale: bool) {
    let of = holders.entry(item).or_default();
    of.all.insert(node.into());
    if is_stale {
        of.stale.insert(node.into());
    }
}

/// The nodes whose turn it is.
fn next(world: &World, of: &Holders) -> Vec<String> {
    let plan = |node: &String| world.plans.get(node);
    let refuses = |node: &&String| plan(node).is_some_and(|plan| refusal(plan).is_some());
    let refusing: Vec<String> = of.stale.iter().filter(refuses).cloned().collect();
    // A node that has no plan yet is new.
    let are_settled = || of.all.iter().filter_map(plan).all(|plan: &NodePlan| is_settled(plan));
    match refusing.is_empty() {
        false => refusing,
        true if are_settled() => of.stale.first().cloned().into_iter().collect(),
        true => Vec::new(),
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
