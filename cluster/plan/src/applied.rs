//! What nodes are known to run: terms and instances of the plan that each has taken over last.
//!
//! A node reports the revision, and not what was in it. So plans are remembered from when they are
//! seen until a later one is taken over. What was taken over before the first round is unknown.

use std::collections::BTreeMap;

use sluice_cluster_types::NodePlan;
use sluice_slo::assignment::Promised;
use sluice_slo::placement::Instance;
use sluice_slo::slo::{Cap, Promise};

use crate::world::World;

/// Most plans of a node that are remembered.
const MOST: usize = 8;

/// Terms and instances of a plan.
#[derive(Debug)]
struct Plan {
    slos: Vec<Promised>,
    instances: Vec<Instance>,
}

/// What an SLO has on a node.
#[derive(Debug, Clone)]
pub struct Had {
    pub promised: Promised,
    pub instances: Vec<Instance>,
}

impl Had {
    /// Whether an instance is one of these, whatever it carries.
    pub fn find(&self, one: &Instance) -> Option<&Instance> {
        let is_it = |was: &&Instance| Instance { capacity_pps: was.capacity_pps, load_pps: was.load_pps, ..one.clone() } == **was;
        self.instances.iter().find(is_it)
    }
}

/// Plans that nodes have taken over, or may yet.
#[derive(Debug, Default)]
pub struct Applied {
    /// By node and revision.
    plans: BTreeMap<String, BTreeMap<i64, Plan>>,
}

fn revision(plan: &NodePlan) -> i64 {
    plan.status.as_ref().map_or(0, |status| status.applied_revision)
}

/// The terms, without the part of an SLO's cap that follows from its other nodes.
fn terms(promised: &Promised) -> Promised {
    let mut terms = promised.clone();
    if let Promise::OnDemand { cap, .. } = &mut terms.slo.promise {
        *cap = Cap { instances: None, load_pps: None };
    }
    terms
}

impl Applied {
    /// Remembers the plans that are written.
    pub fn note(&mut self, world: &World) {
        self.plans.retain(|node, _| world.plans.contains_key(node));
        for (node, plan) in &world.plans {
            let (applied, last) = (revision(plan), plan.spec.revision);
            let of = self.plans.entry(node.clone()).or_default();
            of.retain(|revision, _| (applied..=last).contains(revision));
            of.entry(last).or_insert_with(|| Plan { slos: plan.spec.slos.clone(), instances: plan.spec.server.instances.clone() });
            if of.len() > MOST {
                let oldest = of.keys().copied().find(|revision| *revision != applied);
                of.retain(|revision, _| Some(*revision) != oldest);
            }
        }
    }

    /// What an SLO has in the plan that a node has taken over last, if that is known.
    pub fn had(&self, plan: &NodePlan, slo: &str) -> Option<Had> {
        let had = self.plans.get(&plan.spec.server.name)?.get(&revision(plan))?;
        let promised = had.slos.iter().find(|one| one.slo.name == slo)?.clone();
        let instances = had.instances.iter().filter(|one| one.slo == slo).cloned().collect();
        Some(Had { promised, instances })
    }

    /// Whether a plan has other terms, or more instances, for an SLO that the node runs already.
    pub fn is_changed(&self, plan: &NodePlan, slo: &str) -> bool {
        let Some(had) = self.had(plan, slo) else { return false };
        let is_other = |one: &Promised| one.slo.name == slo && terms(one) != terms(&had.promised);
        let mut instances = plan.spec.server.instances.iter().filter(|one| one.slo == slo);
        plan.spec.slos.iter().any(is_other) || instances.any(|one| had.find(one).is_none())
    }
}
