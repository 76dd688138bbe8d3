//! SLOs that change places, so that fewer nodes are in use.
//!
//! # Terms
//! *Move*: an SLO gets instances on some nodes, and they replace others of its instances. *List*:
//! the moves that a [`Search`](crate::search::Search) has found, in their order.
//!
//! # Approach
//! Moves begin in their order, each when its nodes have room. Its new instances are added without
//! packets, and those that they replace are *leaving*: the rule for one SLO (`keep`) no longer
//! counts them as good, leads packets to the others once these run, and stops them once nothing
//! comes. So a promise holds at each step of a move, as on a node that is emptied, and also when
//! the list is lost in the middle: instances without packets are then stopped, whichever they are.
//!
//! A move is dropped when its SLO is another one by now, or has other instances, or pods. The list
//! ends when one of its nodes gets nothing more, when any node is lost or emptied, and when no move
//! has begun or ended for [`STALL`].
//!
//! # Limits
//! What comes meanwhile is placed by admission, which knows nothing of the list: it may take the
//! room of a move, or come to a node that is to be free.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use sluice_cluster_types::{NodePlan, name};
use sluice_slo::placement::{Instance, PlacedServer, Placement};
use sluice_slo::slo::Slo as Terms;

use crate::board::{Board, Room};
use crate::health::Health;
use crate::keep::EPSILON;
use crate::wish::Wish;
use crate::world::World;

/// Most SLOs that move at a time.
const AT_ONCE: usize = 16;
/// Time without a move that begins or ends, after which a list ends.
pub const STALL: Duration = Duration::from_secs(600);
/// Least time between two searches.
pub const PAUSE: Duration = Duration::from_secs(300);
/// The same after one that left out nodes that may soon be well; but not twice in a row.
pub const RETRY: Duration = Duration::from_secs(60);

/// An SLO that changes places.
#[derive(Debug, Clone)]
pub struct Move {
    pub terms: Terms,
    /// The numbers of the instances that are replaced.
    pub gone: BTreeSet<u32>,
    /// What replaces them, with the node of each. The cores are chosen when it begins.
    pub to: Vec<(String, Instance)>,
    has_begun: bool,
}

impl Move {
    pub fn new(terms: Terms, gone: BTreeSet<u32>, to: Vec<(String, Instance)>) -> Self {
        Self { terms, gone, to, has_begun: false }
    }

    pub fn slo(&self) -> &str {
        &self.terms.name
    }

    /// The servers that it changes, with what comes there; none if they have no room for it.
    pub fn fitted<'a>(&self, find: impl Fn(&str) -> Option<&'a PlacedServer>) -> Option<BTreeMap<String, PlacedServer>> {
        let mut servers: BTreeMap<String, PlacedServer> = BTreeMap::new();
        for (node, new) in &self.to {
            if !servers.contains_key(node) {
                servers.insert(node.clone(), find(node)?.clone());
            }
            let server = servers.get_mut(node)?;
            let count = u32::try_from(new.cores.len()).ok()?;
            server.room().ok()?.less(count, new.ways, new.memory_mib)?;
            let cores = server.free_cores(count)?;
            server.instances.push(Instance { cores, load_pps: 0.0, ..new.clone() });
        }
        Some(servers)
    }

    /// Whether it is to be begun, or is under way. `pods` are the SLOs with pods.
    fn is_wanted(&self, board: &Board<'_>, asked: &HashMap<&str, &Wish<'_>>, pods: &BTreeSet<String>) -> bool {
        let slo = self.slo();
        let has: BTreeMap<u32, f64> = board.instances(slo).map(|(_, one)| (one.number, one.capacity_pps)).collect();
        let is_same = asked.get(slo).is_some_and(|wish| wish.terms == self.terms);
        if self.has_begun {
            let is_over = !self.gone.iter().any(|number| has.contains_key(number));
            // Some may turn out not to be needed.
            let has_new = self.to.is_empty() || self.to.iter().any(|(_, new)| has.contains_key(&new.number));
            return is_same && !is_over && has_new;
        }
        let is_there = self.gone.iter().all(|number| has.contains_key(number));
        let last = has.keys().next_back();
        let is_free = |(node, new): &(String, Instance)| Some(&new.number) > last && !board.is_barred(slo, node);
        let stay: f64 = has.iter().filter(|(number, _)| !self.gone.contains(*number)).map(|(_, pps)| pps).sum();
        let carried = stay + self.to.iter().map(|(_, new)| new.capacity_pps).sum::<f64>();
        let is_enough = self.terms.promise.throughput_pps().is_some_and(|pps| carried >= pps * (1.0 - EPSILON));
        is_same && is_there && is_enough && self.to.iter().all(is_free) && !pods.contains(slo)
    }

    /// Adds the new instances, if there is room for all of them. Returns whether it has begun.
    fn begin(&mut self, board: &mut Board<'_>, wish: &Wish<'_>) -> bool {
        let Some(servers) = self.fitted(|node| board.server(node)) else { return false };
        let profile = |server: &PlacedServer| wish.profiles.iter().copied().find(|profile| profile.key.cpu == server.shape.cpu);
        if servers.values().any(|server| profile(server).is_none()) {
            return false;
        }
        for (node, server) in servers {
            let promised = wish.promised(profile(&server));
            let add = |one: &mut Placement| {
                one.servers = vec![server];
                Ok::<_, Infallible>(vec![0])
            };
            let Ok(()) = board.add_to(wish.name(), &Room::Only(node), add, || promised.clone());
        }
        self.has_begun = true;
        true
    }

    /// Whether each of its nodes can have more, those that it leaves, too.
    fn is_on_open(&self, board: &Board<'_>) -> bool {
        let is_open = |node: &str| board.health.get(node) == Some(&Health::Open);
        let mut leaves = board.instances(self.slo()).filter(|(_, one)| self.gone.contains(&one.number));
        self.to.iter().all(|(node, _)| is_open(node)) && leaves.all(|(node, _)| is_open(node))
    }
}

/// Moves after which fewer nodes are in use.
#[derive(Debug, Default)]
pub struct Better {
    pub(crate) list: Vec<Move>,
    /// The nodes that are free then.
    pub free: Vec<String>,
}

impl fmt::Display for Better {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slos = self.list.iter().map(Move::slo).collect::<BTreeSet<_>>().len();
        let slos = if slos == 1 { "1 SLO moves".into() } else { format!("{slos} SLOs move") };
        match &self.free[..] {
            [node] => write!(f, "{slos}, so that node {node} is free"),
            nodes => write!(f, "{slos}, so that {} nodes are free: {}", nodes.len(), nodes.join(", ")),
        }
    }
}

/// The list, and when there may be another one.
#[derive(Debug, Default)]
pub struct Moves {
    list: Vec<Move>,
    /// When one began or ended last.
    moved: Duration,
    /// The last search.
    searched: Option<Searched>,
}

#[derive(Debug)]
struct Searched {
    /// When it began.
    since: Duration,
    /// What it went by.
    seen: u64,
    /// Time from its begin to that of the next one, at the least.
    pause: Duration,
}

/// A number that is another one when plans, or what they depend on, have changed, or nodes have
/// taken over theirs.
fn version(world: &World) -> u64 {
    let of = |plan: &NodePlan| plan.spec.revision + plan.status.as_ref().map_or(0, |status| status.applied_revision);
    world.plans.values().fold(world.epoch, |sum, plan| sum.wrapping_add(of(plan) as u64))
}

/// The SLOs with pods, by their names on nodes. They do not move: a pod cannot.
pub fn with_pods(world: &World) -> BTreeSet<String> {
    world.pods.iter().map(|(key, pod)| name::on_node(&key.namespace, &pod.slo)).collect()
}

/// Whether something is to be placed anew, which comes first.
pub fn is_emptying(board: &Board<'_>) -> bool {
    let is_leaving = |server: &PlacedServer| matches!(board.health.get(&server.name), Some(Health::Leaving | Health::Lost));
    board.servers().any(|server| !server.instances.is_empty() && is_leaving(server))
}

impl Moves {
    /// Whether there may be a search: none is under way by which SLOs move, and something has
    /// changed since the last one, which is some time ago.
    pub fn is_due(&self, world: &World, now: Duration) -> bool {
        let is_new = |last: &Searched| now.saturating_sub(last.since) >= last.pause && last.seen != version(world);
        (self.list.is_empty() || self.is_stalled(now)) && self.searched.as_ref().is_none_or(is_new)
    }

    /// Notes that a search begins. `is_whole`: it leaves out no node that may soon be well.
    pub fn note_search(&mut self, world: &World, now: Duration, is_whole: bool) {
        let is_first = self.searched.as_ref().is_none_or(|last| last.pause == PAUSE);
        let pause = if is_whole || !is_first { PAUSE } else { RETRY };
        self.searched = Some(Searched { since: now, seen: version(world), pause });
    }

    /// When the pause after a search ends.
    pub fn next_search(&self) -> Option<Duration> {
        self.searched.as_ref().map(|last| last.since + last.pause)
    }

    /// Takes a list, in the place of the one that there is.
    pub fn take(&mut self, better: Better, now: Duration) {
        (self.list, self.moved) = (better.list, now);
    }

    fn is_stalled(&self, now: Duration) -> bool {
        now.saturating_sub(self.moved) >= STALL
    }

    /// Goes on with the list: begins moves, in their order, and marks what is leaving.
    pub fn step(&mut self, world: &World, board: &mut Board<'_>, asked: &HashMap<&str, &Wish<'_>>, now: Duration) {
        if self.list.is_empty() {
            return;
        }
        if self.is_stalled(now) || is_emptying(board) || !self.list.iter().all(|one| one.is_on_open(board)) {
            self.list.clear();
            return;
        }
        let (pods, before) = (with_pods(world), self.list.len());
        self.list.retain(|one| !one.has_begun || one.is_wanted(board, asked, &pods));
        let has_begun = self.begin(board, asked, &pods);
        if has_begun || self.list.len() < before {
            self.moved = now;
        }
        for one in self.list.iter().filter(|one| one.has_begun) {
            board.leaving.entry(one.slo().to_owned()).or_default().extend(one.gone.iter().copied());
        }
    }

    /// Begins moves up to the first one that has no room: it needs what those before it leave.
    /// Returns whether any has begun.
    fn begin(&mut self, board: &mut Board<'_>, asked: &HashMap<&str, &Wish<'_>>, pods: &BTreeSet<String>) -> bool {
        let before = self.list.iter().filter(|one| one.has_begun).count();
        let mut at = before;
        while at < self.list.len() && at < AT_ONCE {
            let (under_way, rest) = self.list.split_at_mut(at);
            let one = &mut rest[0];
            if under_way.iter().any(|other| other.slo() == one.slo()) {
                break;
            }
            let wish = asked.get(one.slo()).filter(|_| one.is_wanted(board, asked, pods));
            match wish.map(|wish| one.begin(board, wish)) {
                Some(true) => at += 1,
                Some(false) if at > 0 => break,
                // It is not wanted any more, or has no room although nothing is to leave any.
                _ => drop(self.list.remove(at)),
            }
        }
        at > before
    }
}
