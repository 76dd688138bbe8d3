//! SLOs that nodes refuse, and which of several it is.
//!
//! # Problem
//! A node refuses a plan as a whole, for one SLO of many. The others must not wait for that one.
//!
//! # Approach
//! All that a node does not run yet is taken off the plan that it refuses. One SLO alone is *held*:
//! nothing looks for a place for it until it changes, or for a while. Several are *tried*: those
//! that the node's words name first, then the rest, or else one half after the other. A group that
//! the node takes over is as any other; one that it refuses is divided again. So the words of a
//! node only say where to begin, and what is held was refused alone.
//!
//! A node that refuses its plan without any of them is itself the reason: they go elsewhere.
//! Meanwhile the node gets nothing else, so that nothing else is refused with them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sluice_cluster_types::{NodePlan, PlannedChain, PlannedFunction};
use sluice_slo::slo::Slo as Terms;

use crate::health::{self, Clocks, Health};
use crate::keep::Room;
use crate::wish::{Why, Wish};
use crate::world::World;

/// Time after which an SLO that a node refuses is tried again.
const HOLD: Duration = Duration::from_secs(600);

/// All that an SLO asks of a node.
type Asked = (Terms, PlannedChain, Vec<PlannedFunction>);

fn asked_for(wish: &Wish<'_>) -> Asked {
    (wish.terms.clone(), wish.chain(), wish.functions().collect())
}

/// An SLO that a node refuses to run.
#[derive(Debug)]
struct Held {
    asked: Asked,
    since: Duration,
    why: Why,
    node: String,
    /// The revision that the node refused.
    revision: i64,
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
}

/// An SLO that is to leave a node: node and SLO.
pub type TakenBack = Vec<(String, String)>;

impl Refusals {
    /// Follows what nodes say. Returns what they do not run, and will not.
    pub fn step(&mut self, world: &World, clocks: &Clocks, asked: &BTreeMap<&str, &Wish<'_>>, now: Duration) -> TakenBack {
        let may_run = |node: &str| matches!(health::of(world, node, true, clocks, now), Health::Open | Health::Closed);
        self.trials.retain(|node, _| may_run(node));
        self.trials.values_mut().for_each(|trial| trial.keep(|slo| asked.contains_key(slo)));
        let mut taken = TakenBack::new();
        for (node, plan) in &world.plans {
            match health::refusal(plan) {
                Some(said) => {
                    let lacks = lacking(plan);
                    self.refused(node, plan, &lacks, said, asked, now);
                    taken.extend(lacks.into_iter().map(|slo| (node.clone(), slo)));
                }
                None if clocks.is_slow(node, now) => {
                    self.trials.remove(node);
                    taken.extend(lacking(plan).into_iter().map(|slo| (node.clone(), slo)));
                }
                None if health::is_settled(plan) => self.passed(node, plan),
                None => {}
            }
        }
        let is_held = |slo: &String, held: &Held| {
            let is_same = asked.get(slo.as_str()).is_some_and(|wish| asked_for(wish) == held.asked);
            is_same && now.saturating_sub(held.since) < HOLD
        };
        self.held.retain(|slo, held| is_held(slo, held));
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
        asked: &BTreeMap<&str, &Wish<'_>>,
        now: Duration,
    ) {
        let revision = plan.spec.revision;
        match lacks {
            [] => {
                // It refuses without them, too.
                self.trials.remove(node);
                self.held.retain(|_, held| held.node != node || held.revision >= revision);
            }
            [slo] => {
                if let Some(trial) = self.trials.get_mut(node) {
                    trial.keep(|other| other != slo);
                }
                let Some(wish) = asked.get(slo.as_str()) else { return };
                let message = format!(
                    "node {node} refuses it: {said}; it is tried again in ten minutes, or when it, its chain or its NFs change"
                );
                let why = Why::new("NodeRefuses", message);
                self.held.insert(slo.clone(), Held { asked: asked_for(wish), since: now, why, node: node.into(), revision });
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

    /// Whether a node is to get nothing else.
    pub fn is_trying(&self, node: &str) -> bool {
        self.trials.contains_key(node)
    }

    /// Where an SLO may get more instances, or why it may not; none if it was not refused.
    pub fn room(&self, slo: &str, plans: &BTreeMap<String, NodePlan>) -> Option<Result<Room, Why>> {
        if let Some(held) = self.held.get(slo) {
            return Some(Err(held.why.clone()));
        }
        let node = self.tried.get(slo)?;
        let trial = self.trials.get(node)?;
        // An answer is waited for.
        let is_next = plans.get(node).is_some_and(health::is_settled) && trial.now.iter().any(|one| one == slo);
        Some(if is_next { Ok(Room::Only(node.clone())) } else { Err(trial_why(node, trial)) })
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
        self.held.values().map(|held| held.since + HOLD)
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
