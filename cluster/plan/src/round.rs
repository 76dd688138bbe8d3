//! A round: which plans are to be written now.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sluice_cluster_types::{NodePlan, NodePlanSpec, PlannedChain, PlannedFunction, name};
use sluice_slo::placement::PlacedServer;
use sluice_slo::slo::Slo as Terms;

use crate::board::Board;
use crate::health::{self, Health, Waiting};
use crate::keep::keep;
use crate::rollout::{Definitions, definitions};
use crate::wish::{Profiles, Why, Wish, owners};
use crate::world::{Key, World};

/// Most SLOs for which a round looks for room, so that none waits long for the others.
const MOST_TRIES: usize = 256;
/// Time after which an SLO that a node refuses is tried again.
const HOLD: Duration = Duration::from_secs(600);

/// What a program that plans remembers from round to round. All of it can be lost.
#[derive(Debug, Default)]
pub struct Memo {
    /// Why each SLO lacks something, by its key.
    pub why: BTreeMap<Key, Why>,
    /// SLOs without room, with what was asked for and the epoch.
    refused: BTreeMap<String, (Terms, (u64, u64), Why)>,
    /// SLOs that a node refuses to run.
    held: BTreeMap<String, Held>,
    waiting: Waiting,
    /// Counts the times that room was made.
    freed: u64,
    open: BTreeSet<String>,
}

type Asked = (Terms, PlannedChain, Vec<PlannedFunction>);

/// An SLO that a node refuses to run.
#[derive(Debug)]
struct Held {
    asked: Asked,
    since: Duration,
    why: Why,
}

impl Memo {
    /// When something changes by time alone: a node will have been waited for too long, or an SLO
    /// that was refused is tried again.
    pub fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let slow = self.waiting.values().map(|(_, since)| *since + health::SLOW);
        let ends = slow.chain(self.held.values().map(|held| held.since + HOLD));
        ends.filter(|end| *end > now).min()
    }
}

/// What a round decides.
#[derive(Debug, Default)]
pub struct Round {
    /// Plans to write. The node of each is its server's name.
    pub plans: Vec<NodePlanSpec>,
    /// Nodes that are gone, and whose plans are empty: to delete.
    pub gone: Vec<String>,
    /// Whether there is more to do at once.
    pub again: bool,
}

/// Decides which plans are to be written. `term` is written into them; `now` never goes back.
pub fn place(world: &World, memo: &mut Memo, term: i64, now: Duration) -> Round {
    health::wait(world, &mut memo.waiting, now);
    let mut board = Board::default();
    for (server, health) in servers(world, &memo.waiting, now) {
        board.add(world, server, health);
    }
    let open: BTreeSet<String> = board.open.servers.iter().map(|server| server.name.clone()).collect();
    memo.freed += u64::from(!open.is_subset(&memo.open));
    memo.open = open;
    let profiles = Profiles::of(world);
    let owners = owners(world);
    let mut wishes = Vec::new();
    let (mut whys, mut names) = (BTreeMap::new(), BTreeSet::new());
    for (key, slo) in &world.slos {
        names.insert(name::on_node(&key.namespace, &key.name));
        match Wish::of(world, &profiles, &owners, key, slo) {
            Ok(wish) => wishes.push(wish),
            Err(why) => drop(whys.insert(key.clone(), why)),
        }
    }
    for orphan in board.slos().into_iter().filter(|slo| !names.contains(slo)) {
        board.remove(&orphan, |_, _| true);
    }
    let asked: BTreeMap<&str, &Wish<'_>> = wishes.iter().map(|wish| (wish.name(), wish)).collect();
    give_back(world, &mut board, memo, &asked, now);
    memo.freed += u64::from(std::mem::take(&mut board.is_freed));
    memo.refused.retain(|slo, _| names.contains(slo));
    let is_held = |slo: &String, held: &Held| {
        let is_same = asked.get(slo.as_str()).is_some_and(|wish| asked_for(wish) == held.asked);
        is_same && now.saturating_sub(held.since) < HOLD
    };
    memo.held.retain(|slo, held| is_held(slo, held));
    let again = keep_all(world, &mut board, memo, &asked, &mut whys);
    let definitions = definitions(world, &board, &asked);
    memo.freed += u64::from(board.is_freed);
    memo.why = whys;
    let is_gone = |plan: &NodePlan| {
        let name = &plan.spec.server.name;
        !world.nodes.contains_key(name) && board.server(name).is_some_and(|server| server.instances.is_empty())
    };
    let gone: Vec<String> = world.plans.values().filter(|plan| is_gone(plan)).map(|plan| plan.spec.server.name.clone()).collect();
    let changed = board.servers().filter(|server| !gone.contains(&server.name));
    let plans = changed.filter_map(|server| written(world, &board, server, definitions.get(&server.name), term)).collect();
    Round { plans, gone, again: again || board.is_freed }
}

/// All servers: the nodes of a class, and those that have a plan.
fn servers(world: &World, waiting: &Waiting, now: Duration) -> Vec<(PlacedServer, Health)> {
    let names: BTreeSet<&String> = world.nodes.keys().chain(world.plans.keys()).collect();
    let server = |name: &String| {
        let class = world.nodes.get(name).and_then(|node| health::class(world, node)).map(|class| class.shape());
        let mut server = match (world.plans.get(name), &class) {
            (Some(plan), _) => plan.spec.server.clone(),
            (None, Some(shape)) => PlacedServer::empty(name, shape),
            (None, None) => return None,
        };
        if let Some(shape) = class.as_ref().filter(|shape| **shape != server.shape) {
            // What runs there must fit into the other class.
            let other = PlacedServer { shape: shape.clone(), ..server.clone() };
            if server.instances.is_empty() || (shape.cpu == server.shape.cpu && other.room().is_ok()) {
                server = other;
            }
        }
        let health = health::of(world, name, class.as_ref() == Some(&server.shape), waiting, now);
        Some((server, health))
    };
    names.into_iter().filter_map(server).collect()
}

/// Takes SLOs off nodes that have not taken them over, and will not.
fn give_back(world: &World, board: &mut Board, memo: &mut Memo, asked: &BTreeMap<&str, &Wish<'_>>, now: Duration) {
    for (node, plan) in &world.plans {
        let refuses = health::refusal(plan);
        if refuses.is_none() && !health::is_slow(node, &memo.waiting, now) {
            continue;
        }
        let has = plan.status.iter().flat_map(|status| &status.uses).map(|one| one.slo.as_str()).collect::<BTreeSet<_>>();
        let lacks = plan.spec.slos.iter().map(|one| one.slo.name.as_str()).filter(|slo| !has.contains(slo));
        for slo in lacks {
            board.remove(slo, |on, _| on == node);
            if let Some((message, wish)) = refuses.zip(asked.get(slo)) {
                let message = format!(
                    "node {node} refuses it: {message}; it is tried again in ten minutes, or when it, its chain or its NFs change"
                );
                let why = Why::new("NodeRefuses", message);
                memo.held.insert(slo.into(), Held { asked: asked_for(wish), since: now, why });
            }
        }
    }
}

/// All that an SLO asks of a node.
fn asked_for(wish: &Wish<'_>) -> Asked {
    (wish.terms.clone(), wish.chain(), wish.functions().collect())
}

/// Takes each SLO a step on, those with the largest promise first. Returns whether some were left
/// for another round.
fn keep_all(
    world: &World,
    board: &mut Board,
    memo: &mut Memo,
    asked: &BTreeMap<&str, &Wish<'_>>,
    whys: &mut BTreeMap<Key, Why>,
) -> bool {
    let mut order: Vec<&Wish<'_>> = asked.values().copied().collect();
    let pps = |wish: &Wish<'_>| wish.terms.promise.throughput_pps().unwrap_or(0.0);
    order.sort_by(|a, b| pps(b).total_cmp(&pps(a)).then_with(|| a.rank.cmp(&b.rank)));
    let mut tries = 0;
    let mut is_left = false;
    for wish in order {
        let epoch = (world.epoch, memo.freed);
        let known = memo.refused.get(wish.name()).filter(|(terms, at, _)| *terms == wish.terms && *at == epoch);
        let known = memo.held.get(wish.name()).map(|held| &held.why).or(known.map(|(.., why)| why)).cloned();
        let may_admit = known.is_none() && tries < MOST_TRIES;
        let before = board.open.instances().count();
        let done = keep(board, wish, &world.plans, may_admit);
        let is_tried = may_admit && (done.is_err() || board.open.instances().count() != before);
        tries += usize::from(is_tried);
        if let Err(why) = done {
            let why = match known {
                Some(known) if why.reason == "Waiting" => known,
                _ => why,
            };
            is_left |= why.reason == "Waiting";
            if is_tried {
                memo.refused.insert(wish.name().into(), (wish.terms.clone(), epoch, why.clone()));
            }
            whys.insert(wish.key.clone(), why);
        }
    }
    is_left
}

/// The plan of a node, if it differs from what is written.
fn written(world: &World, board: &Board, server: &PlacedServer, has: Option<&Definitions>, term: i64) -> Option<NodePlanSpec> {
    let before = world.plans.get(&server.name).map(|plan| &plan.spec);
    let slos = board.promised.get(&server.name).into_iter().flat_map(BTreeMap::values).cloned().collect();
    let chains = has.into_iter().flat_map(|has| has.chains.values()).cloned().collect();
    let functions = has.into_iter().flat_map(|has| has.functions.values()).cloned().collect();
    let (was, revision) = before.map_or((term, 0), |before| (before.term, before.revision));
    let plan = NodePlanSpec { term: was, revision, server: server.clone(), slos, chains, functions };
    let is_new = before.is_none_or(|before| *before != plan);
    is_new.then_some(NodePlanSpec { term, revision: revision + 1, ..plan })
}
