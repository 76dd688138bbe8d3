//! SLOs that nodes refuse, and which of several it is.
//!
//! # Problem
//! A node refuses a plan as a whole, for one SLO of many. The others must not wait for that one.
//!
//! # Approach
//! All that a node does not run yet is taken off the plan that it refuses. What it runs with other
//! terms, or with fewer instances, gets those back, as far as they are known (`applied`). That is
//! said below of an SLO that is new there, and holds for such a change alike.
//!
//! One SLO alone is *held* on that node until it changes, or for a while, and goes to another node.
//! When a second node refuses it, nothing looks for a place for it. Several are *tried*: those that
//! the node's words name first, then the rest, or else one half after the other. A group that the
//! node takes over is as any other; one that it refuses is divided again. So the words of a node
//! only say where to begin, and what is held was refused alone.
//!
//! A node is itself the reason if it refuses its plan without any of them, or if others run
//! [`STRIKES`] of the SLOs that it alone refuses. It gets nothing else then. Nor does it while some
//! are tried on it, so that nothing else is refused with them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use sluice_cluster_types::{NodePlan, PlannedChain, PlannedFunction};
use sluice_slo::slo::Slo as Terms;

use crate::applied::{Applied, Had};
use crate::board::Room;
use crate::health::{self, Clocks, Health};
use crate::wish::{Why, Wish};
use crate::world::World;

/// Time after which an SLO that a node refuses is tried again.
const HOLD: Duration = Duration::from_secs(600);
/// Nodes that refuse an SLO until it is tried on no other one.
const VERDICT: usize = 2;
/// SLOs that others run and a node refuses, until the node gets nothing more.
const STRIKES: usize = 2;

/// All that an SLO asks of a node.
type Asked = (Terms, PlannedChain, Vec<PlannedFunction>);

fn asked_for(wish: &Wish<'_>) -> Asked {
    (wish.terms.clone(), wish.chain(), wish.functions().collect())
}

/// An SLO that nodes refuse to run.
#[derive(Debug)]
struct Held {
    asked: Asked,
    /// By node.
    by: BTreeMap<String, Refused>,
}

/// What a node says of an SLO alone.
#[derive(Debug)]
struct Refused {
    said: String,
    since: Duration,
    /// The revision that the node refused.
    revision: i64,
}

impl Held {
    fn why(&self) -> Why {
        let nodes: Vec<&str> = self.by.keys().map(String::as_str).collect();
        let said = self.by.values().max_by_key(|one| one.since).map(|one| one.said.as_str()).unwrap_or_default();
        let again = "it is tried again in ten minutes, or when it, its chain or its NFs change";
        let message = match nodes[..] {
            [node] => format!("node {node} refuses it: {said}; no other node has room for it; {again}"),
            _ => format!("nodes {} refuse it: {said}; {again}", nodes.join(" and ")),
        };
        Why::new("NodeRefuses", message)
    }
}

/// SLOs of which a node refuses at least one.
#[derive(Debug, Default)]
struct Trial {
    /// What the node said last.
    said: String,
    /// Those whose turn it is.
    now: Vec<String>,
    /// Those that follow, the last group first.
    rest: Vec<Vec<String>>,
}

impl Trial {
    fn divide(&mut self, refused: &[String], said: &str) {
        self.said = said.into();
        self.now.clear();
        // A round whose plans were not written is repeated.
        self.keep(|slo| !refused.iter().any(|other| other == slo));
        let is_named =
            |slo: &&String| said.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').any(|word| word == *slo);
        let (named, others): (Vec<String>, Vec<String>) = refused.iter().cloned().partition(|slo| is_named(&slo));
        let (first, second) = match named.is_empty() || others.is_empty() {
            true => refused.split_at(refused.len().div_ceil(2)),
            false => (named.as_slice(), others.as_slice()),
        };
        self.rest.extend([second.to_vec(), first.to_vec()]);
    }

    fn keep(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.now.retain(|slo| is_kept(slo));
        self.rest.iter_mut().for_each(|group| group.retain(|slo| is_kept(slo)));
        self.rest.retain(|group| !group.is_empty());
    }

    fn waiting(&self) -> impl Iterator<Item = &String> {
        self.now.iter().chain(self.rest.iter().flatten())
    }
}

/// What nodes refuse.
#[derive(Debug, Default)]
pub struct Refusals {
    held: BTreeMap<String, Held>,
    /// By node.
    trials: BTreeMap<String, Trial>,
    /// The node of each SLO that is tried.
    tried: BTreeMap<String, String>,
    /// Nodes that refuse what others run.
    closed: BTreeSet<String>,
    pub applied: Applied,
}

/// An SLO that is to leave a node, or to have there again what it had.
#[derive(Debug)]
pub struct TakenBack {
    pub node: String,
    pub slo: String,
    pub had: Option<Had>,
}

impl Refusals {
    /// Follows what nodes say. Returns what they do not run, and will not.
    pub fn step(&mut self, world: &World, clocks: &Clocks, asked: &HashMap<&str, &Wish<'_>>, now: Duration) -> Vec<TakenBack> {
        let may_run = |node: &str| matches!(health::of(world, node, true, clocks, now), Health::Open | Health::Closed);
        self.trials.retain(|node, _| may_run(node));
        self.trials.values_mut().for_each(|trial| trial.keep(|slo| asked.contains_key(slo)));
        self.applied.note(world);
        let mut taken = Vec::new();
        for (node, plan) in &world.plans {
            match health::refusal(plan) {
                Some(said) => {
                    let new = lacking(plan);
                    let mut lacks = new.clone();
                    let slos = plan.spec.slos.iter().map(|one| &one.slo.name);
                    lacks.extend(slos.filter(|slo| !new.contains(slo) && self.applied.is_changed(plan, slo)).cloned());
                    self.refused(node, plan, &lacks, said, asked, now);
                    taken.extend(lacks.into_iter().map(|slo| {
                        let had = self.applied.had(plan, &slo).filter(|_| !new.contains(&slo));
                        TakenBack { node: node.clone(), slo, had }
                    }));
                }
                None if clocks.is_slow(node, now) => {
                    self.trials.remove(node);
                    taken.extend(lacking(plan).into_iter().map(|slo| TakenBack { node: node.clone(), slo, had: None }));
                }
                None if health::is_settled(plan) => self.passed(node, plan),
                None => {}
            }
        }
        let is_held = |slo: &String, held: &Held| {
            !held.by.is_empty() && asked.get(slo.as_str()).is_some_and(|wish| asked_for(wish) == held.asked)
        };
        self.held.retain(|slo, held| {
            held.by.retain(|node, one| world.plans.contains_key(node) && now.saturating_sub(one.since) < HOLD);
            is_held(slo, held)
        });
        self.strike(world);
        let Self { held, trials, closed, .. } = self;
        trials.retain(|node, _| !closed.contains(node));
        // Elsewhere they are refused, or run, without the others.
        trials.values_mut().for_each(|trial| trial.keep(|slo| !held.contains_key(slo)));
        let of = |(node, trial): (&String, &Trial)| trial.waiting().map(|slo| (slo.clone(), node.clone())).collect::<Vec<_>>();
        self.tried = self.trials.iter().flat_map(of).collect();
        taken
    }

    /// A node refuses a plan with these, which it does not run yet.
    fn refused(
        &mut self,
        node: &str,
        plan: &NodePlan,
        lacks: &[String],
        said: &str,
        asked: &HashMap<&str, &Wish<'_>>,
        now: Duration,
    ) {
        let revision = plan.spec.revision;
        match lacks {
            [] => {
                // It refuses without them, too.
                self.trials.remove(node);
                self.held.values_mut().for_each(|held| held.by.retain(|on, one| on != node || one.revision >= revision));
            }
            [slo] => {
                if let Some(trial) = self.trials.get_mut(node) {
                    trial.keep(|other| other != slo);
                }
                let Some(wish) = asked.get(slo.as_str()) else { return };
                let asked = asked_for(wish);
                let held = self.held.entry(slo.clone()).or_insert_with(|| Held { asked: asked.clone(), by: BTreeMap::new() });
                if held.asked != asked {
                    *held = Held { asked, by: BTreeMap::new() };
                }
                held.by.insert(node.into(), Refused { said: said.into(), since: now, revision });
            }
            _ => self.trials.entry(node.into()).or_default().divide(lacks, said),
        }
    }

    /// A node has taken over its plan: the next group follows.
    fn passed(&mut self, node: &str, plan: &NodePlan) {
        let Some(trial) = self.trials.get_mut(node) else { return };
        // Those that are not in the plan were not written.
        trial.now.retain(|slo| !plan.spec.slos.iter().any(|one| one.slo.name == *slo));
        if trial.now.is_empty() {
            match trial.rest.pop() {
                Some(group) => trial.now = group,
                None => drop(self.trials.remove(node)),
            }
        }
    }

    /// Finds nodes that refuse what others run.
    fn strike(&mut self, world: &World) {
        self.closed.clear();
        let mut strikes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let alone = |held: &Held| held.by.keys().next().filter(|_| held.by.len() == 1).cloned();
        let alone: BTreeMap<&str, String> = self.held.iter().filter_map(|(slo, held)| Some((slo.as_str(), alone(held)?))).collect();
        if alone.is_empty() {
            return;
        }
        for (node, plan) in world.plans.iter().filter(|(_, plan)| health::is_settled(plan)) {
            for one in &plan.spec.slos {
                if let Some((slo, by)) = alone.get_key_value(one.slo.name.as_str()).filter(|(_, by)| *by != node) {
                    strikes.entry(by).or_default().insert(slo);
                }
            }
        }
        self.closed = strikes.into_iter().filter(|(_, of)| of.len() >= STRIKES).map(|(node, _)| node.into()).collect();
    }

    /// Whether a node is to get nothing else.
    pub fn is_closed(&self, node: &str) -> bool {
        self.trials.contains_key(node) || self.closed.contains(node)
    }

    /// The nodes on which each SLO is held, or not the next to be tried.
    pub fn barred(&self, plans: &BTreeMap<String, NodePlan>) -> BTreeMap<String, BTreeSet<String>> {
        let mut barred: BTreeMap<String, BTreeSet<String>> =
            self.held.iter().map(|(slo, held)| (slo.clone(), held.by.keys().cloned().collect())).collect();
        for (slo, node) in self.tried.iter().filter(|(slo, _)| self.room(slo, plans).0 == Room::None) {
            barred.entry(slo.clone()).or_default().insert(node.clone());
        }
        barred
    }

    /// Where an SLO may get more instances, and why it has none if that finds no place.
    pub fn room(&self, slo: &str, plans: &BTreeMap<String, NodePlan>) -> (Room, Option<Why>) {
        if let Some(held) = self.held.get(slo) {
            let room = if held.by.len() < VERDICT { Room::Any } else { Room::None };
            return (room, Some(held.why()));
        }
        let tried = self.tried.get(slo).and_then(|node| Some((node, self.trials.get(node)?)));
        let Some((node, trial)) = tried else { return (Room::Any, None) };
        // An answer is waited for.
        let is_next = plans.get(node).is_some_and(health::is_settled) && trial.now.iter().any(|one| one == slo);
        if is_next { (Room::Only(node.clone()), None) } else { (Room::None, Some(trial_why(node, trial))) }
    }

    /// An SLO that is tried no longer fits there: it is as any other.
    pub fn release(&mut self, slo: &str) {
        let node = self.tried.remove(slo).unwrap_or_default();
        if let Some(trial) = self.trials.get_mut(&node) {
            trial.keep(|other| other != slo);
        }
    }

    /// When something changes by time alone.
    pub fn ends(&self) -> impl Iterator<Item = Duration> {
        self.held.values().flat_map(|held| held.by.values()).map(|one| one.since + HOLD)
    }
}

fn trial_why(node: &str, trial: &Trial) -> Why {
    let message = format!(
        "node {node} refuses a plan with it and others: {}; which of them it is, is found out by trying them apart",
        trial.said
    );
    Why::new("NodeRefuses", message)
}

/// What is in a node's plan, and does not run there.
fn lacking(plan: &NodePlan) -> Vec<String> {
    let has = plan.status.iter().flat_map(|status| &status.uses).map(|one| one.slo.as_str()).collect::<BTreeSet<_>>();
    plan.spec.slos.iter().map(|one| one.slo.name.clone()).filter(|slo| !has.contains(slo.as_str())).collect()
}
