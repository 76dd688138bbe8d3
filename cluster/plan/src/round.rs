//! A round: which plans are to be written now.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use sluice_cluster_types::{NodePlan, NodePlanSpec, name};
use sluice_slo::placement::PlacedServer;
use sluice_slo::slo::{Promise, Slo as Terms};

use crate::board::{Board, Room};
use crate::health::{self, Clocks, Health};
use crate::ingress;
use crate::keep::keep;
use crate::moves::{Better, Moves};
use crate::refusals::Refusals;
use crate::rollout::{Definitions, Rollout, definitions};
use crate::share::{self, Load, share};
use crate::wish::{Profiles, Standing, Why, Wish, owners};
use crate::world::{Key, World};

/// Most SLOs for which a round looks for room, so that none waits long for the others.
const MOST_TRIES: usize = 256;

/// The pause before a round for a deadline that has passed.
const SOON: Duration = Duration::from_millis(100);

/// What a program that plans remembers from round to round. All of it can be lost.
#[derive(Debug, Default)]
pub struct Memo {
    /// Why each SLO lacks something, by its key.
    pub why: BTreeMap<Key, Why>,
    /// What each profile is good for, by its key.
    pub(crate) standings: BTreeMap<Key, Standing>,
    /// SLOs without room.
    refused: BTreeMap<String, NoRoom>,
    pub(crate) refusals: Refusals,
    pub(crate) moves: Moves,
    rollout: Rollout,
    pub(crate) clocks: Clocks,
    /// The load of SLOs on demand, and when it was looked at.
    loads: BTreeMap<String, Load>,
    looked: Duration,
    /// Counts the times that room was made.
    freed: u64,
    open: BTreeSet<String>,
}

/// An SLO that found no room.
#[derive(Debug)]
struct NoRoom {
    terms: Terms,
    epoch: (u64, u64),
    /// Where it may not be.
    barred: BTreeSet<String>,
    why: Why,
}

impl Memo {
    /// The node that a change of an NF waits for, by the NF's name on nodes.
    pub(crate) fn waits_for(&self, function: &str) -> Option<&str> {
        self.rollout.waits_for(function)
    }

    /// Whether a plan has other terms or more instances than the node is known to run for an SLO.
    pub(crate) fn is_changed(&self, plan: &NodePlan, slo: &str) -> bool {
        self.refusals.applied.is_changed(plan, slo)
    }

    /// Has SLOs move, from the next round on. Those that were to move before are not waited for.
    pub fn take(&mut self, better: Better, now: Duration) {
        self.moves.take(better, now);
    }

    /// When a [search](crate::search) may follow the one before.
    pub fn next_search(&self) -> Option<Duration> {
        self.moves.next_search()
    }

    /// When something changes by time alone: a node will have been waited for too long, an SLO that
    /// was refused is tried again, or the load of SLOs on demand is looked at. What has come since
    /// the last round is due `SOON`, so that a caller that cannot act does not spin.
    pub fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let look = self.loads.values().any(|load| load.wanted > 1).then_some(self.looked + share::LOOK);
        let ends = self.clocks.ends().chain(self.refusals.ends()).chain(look);
        let next = ends.filter(|end| *end > self.looked).min()?;
        Some(if next > now { next } else { now + SOON })
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

impl Round {
    /// Whether everything is as it should be.
    pub fn is_quiet(&self) -> bool {
        self.plans.is_empty() && self.gone.is_empty() && !self.again
    }
}

/// Decides which plans are to be written. `term` is written into them; `now` never goes back.
pub fn place(world: &World, memo: &mut Memo, term: i64, now: Duration) -> Round {
    memo.clocks.note(world, now);
    memo.looked = now;
    let profiles = Profiles::of(world);
    let owners = owners(world);
    let (mut wishes, mut whys, mut names) = (Vec::new(), BTreeMap::new(), HashSet::new());
    for (key, slo) in &world.slos {
        names.insert(name::on_node(&key.namespace, &key.name));
        match Wish::of(world, &profiles, &owners, key, slo) {
            Ok(wish) => wishes.push(wish),
            Err(why) => drop(whys.insert(key.clone(), why)),
        }
    }
    let taken = ingress::taken(world, &wishes);
    wishes.retain(|wish| !taken.contains_key(wish.key));
    memo.standings = profiles.standings(world, &wishes);
    whys.extend(taken);
    let asked: HashMap<&str, &Wish<'_>> = wishes.iter().map(|wish| (wish.name(), wish)).collect();
    let taken_back = memo.refusals.step(world, &memo.clocks, &asked, now);
    let mut board = board(world, memo, now);
    board.barred = memo.refusals.barred(&world.plans);
    let orphans: Vec<String> = board.slos().filter(|slo| !names.contains(*slo)).cloned().collect();
    orphans.iter().for_each(|slo| board.remove(slo, |_, _| true));
    taken_back.iter().for_each(|one| board.put_back(&one.node, &one.slo, one.had.as_ref()));
    memo.freed += u64::from(std::mem::take(&mut board.is_freed));
    memo.refused.retain(|slo, _| names.contains(slo));
    memo.loads.retain(|slo, _| asked.get(slo.as_str()).is_some_and(|wish| wish.terms.promise.throughput_pps().is_none()));
    memo.moves.step(world, &mut board, &asked, now);
    let again = keep_all(world, &mut board, memo, &asked, &mut whys, now);
    let definitions = definitions(world, &board, &asked, &mut memo.rollout);
    memo.freed += u64::from(board.is_freed);
    memo.why = whys;
    let is_gone = |plan: &NodePlan| {
        let name = &plan.spec.server.name;
        !world.nodes.contains_key(name) && board.server(name).is_some_and(|server| server.instances.is_empty())
    };
    let gone: Vec<String> = world.plans.values().filter(|plan| is_gone(plan)).map(|plan| plan.spec.server.name.clone()).collect();
    let changed = board.servers().filter(|server| gone.binary_search(&server.name).is_err());
    let plans: Vec<NodePlanSpec> =
        changed.filter_map(|server| written(world, &board, server, definitions.get(server.name.as_str()), term)).collect();
    plans.iter().for_each(|plan| memo.clocks.start(world, &plan.server.name, now));
    Round { plans, gone, again: again || board.is_freed }
}

/// All servers as they are: the nodes of a class, and those that have a plan.
pub fn board<'a>(world: &'a World, memo: &mut Memo, now: Duration) -> Board<'a> {
    let names: BTreeSet<&String> = world.nodes.keys().chain(world.plans.keys()).collect();
    let mut board = Board::default();
    for name in names {
        let class = world.nodes.get(name).and_then(|node| health::class(world, node)).map(|class| class.spec.shape());
        let mut server = match (world.plans.get(name), &class) {
            (Some(plan), _) => plan.spec.server.clone(),
            (None, Some(shape)) => PlacedServer::empty(name, shape),
            (None, None) => continue,
        };
        if let Some(shape) = class.as_ref().filter(|shape| **shape != server.shape) {
            // What runs there must fit into the other class.
            let other = PlacedServer { shape: shape.clone(), ..server.clone() };
            if server.instances.is_empty() || (shape.cpu == server.shape.cpu && other.room().is_ok()) {
                server = other;
            }
        }
        let health = match health::of(world, name, class.as_ref() == Some(&server.shape), &memo.clocks, now) {
            Health::Open if memo.refusals.is_closed(name) => Health::Closed,
            health => health,
        };
        if health::is_silent(world, name) {
            board.silent.push(name.clone());
        }
        board.add(world, server, health);
    }
    let open: BTreeSet<String> = board.open.servers.iter().map(|server| server.name.clone()).collect();
    memo.freed += u64::from(!open.is_subset(&memo.open));
    memo.open = open;
    board
}

/// Takes each SLO a step on, those with the largest promise first. Returns whether some were left
/// for another round.
fn keep_all(
    world: &World,
    board: &mut Board<'_>,
    memo: &mut Memo,
    asked: &HashMap<&str, &Wish<'_>>,
    whys: &mut BTreeMap<Key, Why>,
    now: Duration,
) -> bool {
    let mut order: Vec<&Wish<'_>> = asked.values().copied().collect();
    let pps = |wish: &Wish<'_>| wish.terms.promise.throughput_pps().unwrap_or(0.0);
    order.sort_by(|a, b| pps(b).total_cmp(&pps(a)).then_with(|| (&a.rank, a.name()).cmp(&(&b.rank, b.name()))));
    let mut tries = 0;
    let mut is_left = false;
    for wish in order {
        let epoch = (world.epoch, memo.freed);
        let barred = board.barred.get(wish.name()).cloned().unwrap_or_default();
        let is_full = |no: &&NoRoom| no.terms == wish.terms && no.epoch == epoch && no.barred == barred;
        let full = memo.refused.get(wish.name()).filter(is_full);
        let (room, known) = match (memo.refusals.room(wish.name(), &world.plans), full) {
            ((Room::Any, _), Some(no)) => (Room::None, Some(no.why.clone())),
            ((Room::Any, _), None) if tries >= MOST_TRIES => (Room::None, None),
            ((room, why), _) => (room, why),
        };
        let before = board.added;
        let done = match wish.terms.promise {
            Promise::Reserved { throughput_pps, .. } => keep(board, wish, throughput_pps, &world.plans, &room),
            Promise::OnDemand { cap, .. } => share(board, wish, cap, &world.plans, &room, &mut memo.loads, now),
        };
        let is_tried = room != Room::None && (done.is_err() || board.added != before);
        tries += usize::from(is_tried);
        if room.only().is_some_and(|node| !board.has(wish.name(), node)) {
            memo.refusals.release(wish.name());
            is_left = true;
        }
        if let Err(why) = done {
            let why = match known {
                Some(known) if ["Waiting", "NoRoom", "NoServer"].contains(&why.reason) => known,
                _ => why,
            };
            is_left |= why.reason == "Waiting";
            if is_tried && room == Room::Any {
                let (terms, why) = (wish.terms.clone(), why.clone());
                memo.refused.insert(wish.name().into(), NoRoom { terms, epoch, barred, why });
            }
            whys.insert(wish.key.clone(), why);
        }
    }
    is_left
}

/// The plan of a node, if it differs from what is written.
fn written(
    world: &World,
    board: &Board<'_>,
    server: &PlacedServer,
    has: Option<&Definitions<'_>>,
    term: i64,
) -> Option<NodePlanSpec> {
    let before = world.plans.get(&server.name).map(|plan| &plan.spec);
    let slos = || board.all_terms(&server.name);
    let chains = || has.into_iter().flat_map(|has| has.chains.values()).map(Cow::as_ref);
    let functions = || has.into_iter().flat_map(|has| has.functions.values()).map(Cow::as_ref);
    let is_same = |plan: &NodePlanSpec| {
        plan.server == *server
            && plan.slos.iter().eq(slos())
            && plan.chains.iter().eq(chains())
            && plan.functions.iter().eq(functions())
    };
    if before.is_some_and(is_same) {
        return None;
    }
    let revision = before.map_or(0, |before| before.revision) + 1;
    Some(NodePlanSpec {
        term,
        revision,
        server: server.clone(),
        slos: slos().cloned().collect(),
        chains: chains().cloned().collect(),
        functions: functions().cloned().collect(),
    })
}
