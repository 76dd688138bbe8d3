//! A search for moves after which fewer nodes are in use.
//!
//! # Problem
//! Admission moves nothing. So when SLOs go, what is left lies on more nodes than it needs.
//!
//! # Approach
//! A round does not search. After one that changes nothing, a search may be [`due`]. It has a copy
//! of what it goes by, and [runs](Search::run) beside the rounds.
//! 1. *Gap*: the nodes in use, against a lower bound of them. A server's worth of 1 is divided
//!    among its cores and its cache ways, in several ratios; an SLO takes what its cheapest recipe
//!    costs, and no server holds more than 1. Below a part of the nodes in use, nothing moves.
//! 2. *Emptying*: one node after the other, those with least first, is emptied where all that it
//!    has finds room on the others in use, by the admission that also empties a cordoned node.
//! 3. *Anew*: where none can be, a few dozen nodes with least are placed from nothing, by the
//!    optimiser's solver where it is built, and otherwise by its greedy packing.
//! 4. *Order*: moves are taken as they have room on a copy. Where none has, an SLO goes to a node
//!    that is not in use first. What has no room then stays where it is.
//!
//! # Limits
//! Only what is reserved moves, and only where all of it runs, no node refuses it, and it has no
//! pods. Whatever else is on a node counts as taken, and keeps the node in use. The bound leaves
//! out memory, and supposes that each SLO stays on servers of its shape. Nothing is searched as
//! long as a node that is lost or cordoned has instances.
//!
//! Source: that a fast admission is improved in the background, as far as the gain is worth the
//! moves, is from Tootoonchian et al., "ResQ", NSDI 2018, section 5.3.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sluice_planner::demand::Demand;
use sluice_planner::optimiser::background::anew;
use sluice_slo::placement::{Instance, PlacedServer, Placement, ServerShape};
use sluice_slo::profile::Profile;
use sluice_slo::slo::{Promise, Slo as Terms};

use crate::board::Room;
use crate::health::is_settled;
use crate::keep::{EPSILON, admit_rest, rest};
use crate::moves::{Better, Move, is_emptying, with_pods};
use crate::round::{Memo, board};
use crate::wish::{Profiles, Wish, owners};
use crate::world::World;

/// Nodes in a row that cannot be emptied, after which no others are tried.
const IN_VAIN: usize = 64;
/// Most nodes that are placed anew together.
const GROUP: usize = 32;
/// Parts of a server's worth that its cache ways have; the rest is its cores'.
const PARTS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
/// Sums of parts of servers are equal if they differ by less.
const SLACK: f64 = 1e-6;

/// What a search goes by.
#[derive(Debug)]
pub struct Search {
    /// The servers that can have more, and have taken over their plans.
    open: Placement,
    /// The SLOs that may move, by their names on nodes.
    slos: BTreeMap<String, Movable>,
    profiles: Vec<Profile>,
}

/// An SLO that may move.
#[derive(Debug)]
struct Movable {
    terms: Terms,
    throughput_pps: f64,
    /// Indices of its profiles.
    profiles: Vec<usize>,
}

/// What a search goes by, if one is due. It counts as begun then.
pub fn due(world: &World, memo: &mut Memo, now: Duration) -> Option<Search> {
    if !memo.moves.is_due(world, now) {
        return None;
    }
    let board = board(world, memo, now);
    let is_known = |server: &&PlacedServer| world.plans.get(&server.name).is_some_and(is_settled);
    let open = Placement { servers: board.open.servers.iter().filter(is_known).cloned().collect() };
    if open.used() < 2 {
        return None;
    }
    let may_be_well = |server: &&PlacedServer| !server.instances.is_empty() && !memo.clocks.is_slow(&server.name, now);
    let is_whole = board.servers().filter(may_be_well).count() == open.used();
    memo.moves.note_search(world, now, is_whole);
    if is_emptying(&board) {
        return None;
    }
    let (known, owners, pods) = (Profiles::of(world), owners(world), with_pods(world));
    let barred = memo.refusals.barred(&world.plans);
    let nodes: BTreeSet<String> = open.servers.iter().map(|server| server.name.clone()).collect();
    let (mut slos, mut profiles) = (BTreeMap::new(), Vec::new());
    let mut indices: BTreeMap<*const Profile, usize> = BTreeMap::new();
    // What lacks something says why.
    for (key, slo) in world.slos.iter().filter(|(key, _)| !memo.why.contains_key(*key)) {
        let Ok(wish) = Wish::of(world, &known, &owners, key, slo) else { continue };
        let Some(throughput_pps) = wish.terms.promise.throughput_pps() else { continue };
        let name = wish.name();
        let is_kept = board.instances(name).next().is_some()
            && board.instances(name).all(|(node, one)| one.load_pps > 0.0 && nodes.contains(node));
        let is_refused = barred.contains_key(name) || memo.refusals.room(name, &world.plans) != (Room::Any, None);
        if !is_kept || is_refused || pods.contains(name) {
            continue;
        }
        let index = |profile: &Profile| {
            *indices.entry(std::ptr::from_ref(profile)).or_insert_with(|| {
                profiles.push(profile.clone());
                profiles.len() - 1
            })
        };
        let of = wish.profiles.iter().copied().map(index).collect();
        slos.insert(name.to_owned(), Movable { terms: wish.terms.clone(), throughput_pps, profiles: of });
    }
    Some(Search { open, slos, profiles })
}

/// What cores and cache ways cost where all of a server costs 1, and this part of it its ways.
fn cost(cores: u32, ways: u32, part: f64, shape: &ServerShape) -> f64 {
    (1.0 - part) * f64::from(cores) / f64::from(shape.cores) + part * f64::from(ways) / f64::from(shape.ways())
}

fn cost_of(one: &Instance, part: f64, shape: &ServerShape) -> f64 {
    cost(u32::try_from(one.cores.len()).unwrap_or(u32::MAX), one.ways, part, shape)
}

/// How much of a server is taken, from 0 to 1.
fn taken(server: &PlacedServer) -> f64 {
    server.instances.iter().map(|one| cost_of(one, 0.5, &server.shape)).sum()
}

/// What each SLO has: nodes and instances.
fn by_slo(placement: &Placement) -> BTreeMap<String, Vec<(String, Instance)>> {
    let mut all: BTreeMap<String, Vec<(String, Instance)>> = BTreeMap::new();
    for (at, one) in placement.instances() {
        all.entry(one.slo.clone()).or_default().push((placement.servers[at].name.clone(), one.clone()));
    }
    all
}

/// Packets per second that an SLO's instances carry.
fn carried(placement: &Placement, slo: &str) -> f64 {
    placement.instances().filter(|(_, one)| one.slo == slo).map(|(_, one)| one.capacity_pps).sum()
}

impl Search {
    /// The moves, if at least one node can be saved, and at most no less than this part of those in
    /// use. The solver gets `limit` for each shape of servers.
    pub fn run(&self, gap: f64, limit: Duration) -> Option<Better> {
        let used = self.open.used();
        let saves = used.saturating_sub(self.at_least());
        if saves == 0 || (saves as f64) < gap * used as f64 {
            return None;
        }
        self.ordered(&self.emptied()).or_else(|| self.ordered(&self.anew(limit)?))
    }

    fn in_use(&self) -> impl Iterator<Item = &PlacedServer> {
        self.open.servers.iter().filter(|server| !server.instances.is_empty())
    }

    fn shapes(&self) -> BTreeSet<&ServerShape> {
        self.in_use().map(|server| &server.shape).collect()
    }

    /// Whether all that a server has may move.
    fn may_go(&self, server: &PlacedServer) -> bool {
        server.instances.iter().all(|one| self.slos.contains_key(&one.slo))
    }

    /// What the SLOs that may move need of what these servers of one shape carry, and the instances
    /// of the others.
    fn demands<'a>(&self, servers: &[&'a PlacedServer], shape: &ServerShape) -> (Vec<Demand>, Vec<&'a Instance>) {
        let mut all: BTreeMap<&str, Vec<&'a Instance>> = BTreeMap::new();
        for one in servers.iter().copied().flat_map(|server| server.instances.iter()) {
            all.entry(&one.slo).or_default().push(one);
        }
        let (mut demands, mut others) = (Vec::new(), Vec::new());
        for (slo, own) in all {
            match self.demand(slo, own.iter().map(|one| one.load_pps).sum(), shape) {
                Some(demand) => demands.push(demand),
                None => others.extend(own),
            }
        }
        (demands, others)
    }

    fn demand(&self, slo: &str, throughput_pps: f64, shape: &ServerShape) -> Option<Demand> {
        let Movable { terms, profiles, .. } = self.slos.get(slo)?;
        let profile = profiles.iter().map(|i| &self.profiles[*i]).find(|profile| profile.key.cpu == shape.cpu)?;
        let promise = Promise::Reserved { throughput_pps, latency_us: terms.promise.latency_us() };
        Demand::of(&Terms { promise, ..terms.clone() }, profile, shape).ok()
    }

    /// Lower bound of the servers in use.
    fn at_least(&self) -> usize {
        let of = |shape: &ServerShape| {
            let own: Vec<&PlacedServer> = self.in_use().filter(|server| server.shape == *shape).collect();
            let stay = own.iter().filter(|server| !self.may_go(server)).count();
            let (demands, others) = self.demands(&own, shape);
            let servers = PARTS.map(|part| {
                let prices = |cores: u32| (0..=shape.ways()).map(|ways| cost(cores, ways, part, shape)).collect::<Vec<f64>>();
                let moving = demands.iter().map(|demand| demand.cheapest(&prices(demand.cores)).0).sum::<f64>();
                moving + others.iter().map(|one| cost_of(one, part, shape)).sum::<f64>()
            });
            let most = servers.into_iter().fold(0.0, f64::max);
            stay.max((most - SLACK).ceil() as usize)
        };
        self.shapes().into_iter().map(of).sum()
    }

    /// The servers in use, without those that the others have room for.
    fn emptied(&self) -> Placement {
        let mut now = Placement { servers: self.in_use().cloned().collect() };
        let mut order: Vec<&PlacedServer> = self.in_use().filter(|server| self.may_go(server)).collect();
        order.sort_by(|a, b| taken(a).total_cmp(&taken(b)));
        let mut in_vain = 0;
        for server in order {
            match self.without(&now, &server.name) {
                Some(next) => (now, in_vain) = (next, 0),
                None => in_vain += 1,
            }
            if in_vain == IN_VAIN {
                break;
            }
        }
        now
    }

    /// All but one server, with what it has; none if they have no room for that.
    fn without(&self, now: &Placement, node: &str) -> Option<Placement> {
        let mut others = now.clone();
        others.servers.retain(|server| server.name != node);
        let gone = now.servers.iter().find(|server| server.name == node)?;
        let slos: BTreeSet<&str> = gone.instances.iter().map(|one| one.slo.as_str()).collect();
        let mut slos = slos.into_iter().map(|slo| self.slos.get(slo)).collect::<Option<Vec<&Movable>>>()?;
        slos.sort_by(|a, b| b.throughput_pps.total_cmp(&a.throughput_pps));
        for slo in slos {
            let next = self.next(now, &slo.terms.name);
            let missing_pps = slo.throughput_pps - carried(&others, &slo.terms.name);
            if !self.fill(&mut others, slo, missing_pps, next) {
                return None;
            }
        }
        Some(others)
    }

    /// Adds what an SLO misses to servers, if they have room. Returns whether they have.
    fn fill(&self, servers: &mut Placement, slo: &Movable, missing_pps: f64, next: u32) -> bool {
        if missing_pps <= slo.throughput_pps * EPSILON {
            return true;
        }
        let rest = rest(&slo.terms, missing_pps);
        let mut profiles = slo.profiles.iter().map(|i| &self.profiles[*i]);
        profiles.any(|profile| admit_rest(servers, &slo.terms.name, &rest, profile, next).is_ok())
    }

    /// A number that no instance of an SLO has or had.
    fn next(&self, now: &Placement, slo: &str) -> u32 {
        let all = self.open.instances().chain(now.instances()).filter(|(_, one)| one.slo == slo);
        all.map(|(_, one)| one.number + 1).max().unwrap_or(0)
    }

    /// The servers, of which those with least were placed from nothing; none if that saves none.
    pub(crate) fn anew(&self, limit: Duration) -> Option<Placement> {
        self.shapes().into_iter().find_map(|shape| {
            let mut group: Vec<&PlacedServer> =
                self.in_use().filter(|server| server.shape == *shape && self.may_go(server)).collect();
            group.sort_by(|a, b| taken(a).total_cmp(&taken(b)));
            group.truncate(GROUP);
            let (demands, others) = self.demands(&group, shape);
            // Without a profile for this shape, nobody knows what it needs.
            if !others.is_empty() {
                return None;
            }
            let current = Placement { servers: group.into_iter().cloned().collect() };
            let next = anew(&demands, shape, &current, limit).ok().filter(|next| next.used() < current.used())?;
            let mut all = self.open.clone();
            for server in next.servers {
                let known = all.servers.iter_mut().find(|known| known.name == server.name)?;
                *known = server;
            }
            Some(all)
        })
    }

    /// The moves to another placement, in any order. What has as many ways there stays.
    fn moves(&self, target: &Placement) -> Vec<Move> {
        let mut wanted = by_slo(target);
        let of = |(slo, has): (String, Vec<(String, Instance)>)| {
            let mut to = wanted.remove(&slo).unwrap_or_default();
            let mut gone = BTreeSet::new();
            for (node, one) in has {
                match to.iter().position(|(on, new)| *on == node && new.ways == one.ways) {
                    Some(i) => drop(to.remove(i)),
                    None => _ = gone.insert(one.number),
                }
            }
            let terms = self.slos.get(&slo)?.terms.clone();
            (!gone.is_empty()).then(|| Move::new(terms, gone, to))
        };
        by_slo(&self.open).into_iter().filter_map(of).collect()
    }

    /// The moves to another placement, each with room when its turn comes; none if that saves none.
    pub(crate) fn ordered(&self, target: &Placement) -> Option<Better> {
        let (mut now, mut left, mut list) = (self.open.clone(), self.moves(target), Vec::new());
        let mut aside = BTreeSet::new();
        while !left.is_empty() {
            let before = left.len();
            left.retain_mut(|one| {
                let is_taken = self.take(one, &mut now);
                if is_taken {
                    list.push(one.clone());
                }
                !is_taken
            });
            if left.len() == before {
                let mut others = left.iter_mut().filter(|one| aside.insert(one.slo().to_owned()));
                let Some(first) = others.find_map(|one| self.aside(one, &mut now)) else { break };
                list.push(first);
            }
        }
        let servers = self.open.servers.iter().zip(&now.servers);
        let free = servers.filter(|(was, is)| !was.instances.is_empty() && is.instances.is_empty());
        let free = free.map(|(_, is)| is.name.clone()).collect();
        (now.used() < self.open.used()).then_some(Better { list, free })
    }

    /// Takes a move, if there is room. Returns whether there is.
    fn take(&self, one: &mut Move, now: &mut Placement) -> bool {
        let next = self.next(now, one.slo());
        for (number, (_, new)) in (next..).zip(&mut one.to) {
            new.number = number;
        }
        let servers = one.fitted(|node| now.servers.iter().find(|server| server.name == node));
        let Some(mut servers) = servers else { return false };
        for server in &mut now.servers {
            if let Some(changed) = servers.remove(&server.name) {
                *server = changed;
            }
            server.instances.retain(|was| was.slo != one.terms.name || !one.gone.contains(&was.number));
        }
        true
    }

    /// Takes what is to be replaced to servers that are not in use, so that it is out of the way.
    /// What takes its place then replaces that.
    fn aside(&self, one: &mut Move, now: &mut Placement) -> Option<Move> {
        let slo = self.slos.get(one.slo())?;
        let mut idle = now.clone();
        idle.servers.retain(|server| server.instances.is_empty());
        let stay = now.instances().filter(|(_, was)| was.slo == one.terms.name && !one.gone.contains(&was.number));
        let missing_pps = slo.throughput_pps - stay.map(|(_, was)| was.capacity_pps).sum::<f64>();
        if !self.fill(&mut idle, slo, missing_pps, self.next(now, one.slo())) {
            return None;
        }
        let to = by_slo(&idle).remove(one.slo())?;
        let mut first = Move::new(one.terms.clone(), one.gone.clone(), to);
        if !self.take(&mut first, now) {
            return None;
        }
        one.gone = first.to.iter().map(|(_, new)| new.number).collect();
        Some(first)
    }
}
