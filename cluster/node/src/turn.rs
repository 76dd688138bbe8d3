//! What a turn of the agent has found.

use sluice_cluster_types::{NodePlanSpec, NodePlanStatus};

/// What a turn has found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// Without conditions.
    pub status: NodePlanStatus,
    /// Why the daemon does not keep a plan as a whole, besides a refusal.
    pub trouble: Option<Trouble>,
}

impl Turn {
    /// A turn that has found nothing but this plan in force.
    pub fn of(applied: Option<&NodePlanSpec>) -> Self {
        let mut turn = Self::default();
        turn.status.applied_revision = applied.map_or(0, |applied| applied.revision);
        turn
    }
}

/// What keeps a daemon from a plan, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// It does not answer.
    Away(String),
    /// It fails.
    Failed(String),
    /// It has parts of two plans.
    Between(String),
}
