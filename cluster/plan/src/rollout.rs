//! Which chains and NFs each node has: those that it has already, until its turn for a change.
//!
//! A change goes to one node at a time, in the order of names: to the next only when all nodes
//! whose plans have it have taken over the revision that brought it. What else changes there is not
//! waited for. So a node that refuses stops it, and the others keep the old or the new as a whole.
//! A node that refuses is the first to get the next change.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_cluster_types::{PlannedChain, PlannedFunction};

use crate::board::Board;
use crate::health::refusal;
use crate::wish::{Wish, is_on_node, on_node};
use crate::world::World;

/// What a node has of chains and NFs, by name.
#[derive(Debug, Default)]
pub struct Definitions<'a> {
    pub chains: BTreeMap<&'a str, Cow<'a, PlannedChain>>,
    pub functions: BTreeMap<&'a str, Cow<'a, PlannedFunction>>,
}

/// A chain or an NF, by its name on nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Item<'a> {
    Chain(&'a str),
    Function(&'a str),
}

/// The nodes that have an item, and those of them that have it as it was.
#[derive(Debug, Default)]
struct Holders<'a> {
    /// Those whose written plans have it as it is now.
    current: BTreeSet<&'a str>,
    stale: BTreeSet<&'a str>,
}

/// How far changes of chains, or of NFs, have come, by name.
#[derive(Debug, Default)]
struct Progress {
    /// The first revision of each node's plan that was seen with an item as it is now.
    since: HashMap<String, BTreeMap<String, i64>>,
    /// The node for which the others wait.
    waits: HashMap<String, String>,
}

/// How far changes have come.
#[derive(Debug, Default)]
pub struct Rollout {
    chains: Progress,
    functions: Progress,
}

impl Rollout {
    /// The node for which a change of an NF waits.
    pub fn waits_for(&self, function: &str) -> Option<&str> {
        self.functions.waits.get(function).map(String::as_str)
    }

    fn of(&mut self, item: Item<'_>) -> &mut Progress {
        match item {
            Item::Chain(_) => &mut self.chains,
            Item::Function(_) => &mut self.functions,
        }
    }

    /// The nodes whose turn it is. `before` has what earlier rounds have seen.
    fn next<'a>(&mut self, world: &World, item: Item<'_>, of: &Holders<'a>, before: &mut Self) -> Vec<&'a str> {
        let (Item::Chain(name) | Item::Function(name)) = item;
        let known = before.of(item).since.remove_entry(name);
        let (name, mut known) = known.unwrap_or_else(|| (name.into(), BTreeMap::new()));
        let plan = |node: &str| world.plans.get(node);
        known.retain(|node, _| of.current.contains(node.as_str()));
        for node in &of.current {
            let Some(last) = plan(node).map(|plan| plan.spec.revision) else { continue };
            // A plan that was deleted begins to count anew.
            match known.get_mut(*node) {
                Some(first) => *first = last.min(*first),
                None => _ = known.insert((*node).into(), last),
            }
        }
        let applied = |node: &str| plan(node)?.status.as_ref().map(|status| status.applied_revision);
        let late = known.iter().find(|(node, first)| applied(node) < Some(**first)).map(|(node, _)| node.clone());
        let refuses = |node: &&&str| plan(node).is_some_and(|plan| refusal(plan).is_some());
        let refusing: Vec<&str> = of.stale.iter().filter(refuses).copied().collect();
        let next = match late {
            _ if !refusing.is_empty() => refusing,
            None => of.stale.first().copied().into_iter().collect(),
            Some(node) => {
                if !of.stale.is_empty() {
                    self.of(item).waits.insert(name.clone(), node);
                }
                Vec::new()
            }
        };
        self.of(item).since.insert(name, known);
        next
    }
}

fn find<'a, T>(list: &'a [T], name: &str, of: impl Fn(&T) -> &String) -> Option<&'a T> {
    list.iter().find(|one| of(one) == name)
}

/// The chains and NFs of each node, with this round's changes.
pub fn definitions<'a>(
    world: &'a World,
    board: &'a Board<'a>,
    wishes: &'a HashMap<&str, &Wish<'a>>,
    rollout: &mut Rollout,
) -> HashMap<&'a str, Definitions<'a>> {
    let mut before = std::mem::take(rollout);
    let mut nodes: HashMap<&str, Definitions<'_>> = HashMap::new();
    let mut holders: HashMap<Item<'_>, Holders<'_>> = HashMap::new();
    for (slo, node) in board.places() {
        let wish = wishes.get(slo);
        let plan = world.plans.get(node).map(|plan| &plan.spec);
        let has = plan.and_then(|plan| find(&plan.chains, slo, |one| &one.name));
        let Some(chain) = has.map(Cow::Borrowed).or_else(|| Some(Cow::Owned(wish?.chain()))) else { continue };
        let here = nodes.entry(node).or_default();
        // With other services it is not this SLO's chain any more, which its condition says.
        let is_stale = wish.is_some_and(|wish| !wish.is_chain(&chain) && wish.runs(&chain.chain.services));
        note(&mut holders, Item::Chain(slo), node, has.is_some(), is_stale);
        let services: Vec<&str> = match has {
            Some(chain) => chain.chain.services.iter().map(String::as_str).collect(),
            None => wish.map(|wish| wish.terms.workload.services()).unwrap_or_default(),
        };
        for service in services {
            let now = wish.and_then(|wish| wish.function(service));
            let has = plan.and_then(|plan| find(&plan.functions, service, |one| &one.name));
            let Some(function) = has.map(Cow::Borrowed).or_else(|| now.map(|now| Cow::Owned(on_node(now)))) else { continue };
            let is_stale = now.is_some_and(|now| !is_on_node(now, &function));
            here.functions.insert(service, function);
            note(&mut holders, Item::Function(service), node, has.is_some(), is_stale);
        }
        here.chains.insert(slo, chain);
    }
    for (item, of) in holders {
        for node in rollout.next(world, item, &of, &mut before) {
            let Some(here) = nodes.get_mut(node) else { continue };
            change(here, item, board, wishes, node);
        }
    }
    nodes
}

fn note<'a>(holders: &mut HashMap<Item<'a>, Holders<'a>>, item: Item<'a>, node: &'a str, is_written: bool, is_stale: bool) {
    let of = holders.entry(item).or_default();
    match (is_written, is_stale) {
        (_, true) => _ = of.stale.insert(node),
        (true, false) => _ = of.current.insert(node),
        // It is new there, and has it as it is now from the beginning.
        (false, false) => {}
    }
}

/// Gives a node the item as it is now.
fn change<'a>(here: &mut Definitions<'a>, item: Item<'a>, board: &Board<'_>, wishes: &HashMap<&str, &Wish<'_>>, node: &str) {
    match item {
        Item::Chain(slo) => {
            if let Some(wish) = wishes.get(slo) {
                here.chains.insert(slo, Cow::Owned(wish.chain()));
            }
        }
        Item::Function(name) => {
            let here_too = board.server(node).into_iter().flat_map(|server| &server.instances);
            let mut own = here_too.filter_map(|one| wishes.get(one.slo.as_str()));
            if let Some(now) = own.find_map(|wish| wish.function(name)) {
                here.functions.insert(name, Cow::Owned(on_node(now)));
            }
        }
    }
}
