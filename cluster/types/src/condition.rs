//! Conditions of a status, as `kubectl wait --for=condition=…` reads them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// An SLO has places for what it is promised.
pub const ADMITTED: &str = "Admitted";
/// The nodes run it. Of a node's plan: the node has taken it over as a whole.
pub const READY: &str = "Ready";
/// The nodes measure that it is kept. Unknown where nothing was measured yet.
pub const KEPT: &str = "Kept";
/// A chain, a profile or a class is as it should be, as far as other objects matter.
pub const ACCEPTED: &str = "Accepted";
/// The agent of a node may do at the API server what it has to.
pub const CONNECTED: &str = "Connected";
/// All nodes that run it have its last change.
pub const ROLLED_OUT: &str = "RolledOut";

/// A condition without its time, so that two can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub kind: &'static str,
    /// None is `Unknown`.
    pub holds: Option<bool>,
    /// One word, for programs.
    pub reason: &'static str,
    /// What to do, for people.
    pub message: String,
}

impl State {
    pub fn new(kind: &'static str, holds: Option<bool>, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, holds, reason, message: message.into() }
    }

    /// The word of the API for its status.
    pub fn word(&self) -> &'static str {
        match self.holds {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }

    fn is(&self, condition: &Condition) -> bool {
        condition.type_ == self.kind
            && condition.status == self.word()
            && condition.reason == self.reason
            && condition.message == self.message
    }
}

/// Whether conditions say this.
pub fn are(conditions: &[Condition], states: &[State]) -> bool {
    conditions.len() == states.len() && states.iter().all(|state| conditions.iter().any(|condition| state.is(condition)))
}

/// The conditions that say this, with the time of the last transition where there was one.
pub fn written(states: &[State], before: &[Condition], generation: Option<i64>, now: &Time) -> Vec<Condition> {
    let of = |state: &State| {
        let same = before.iter().find(|old| old.type_ == state.kind && old.status == state.word());
        Condition {
            type_: state.kind.into(),
            status: state.word().into(),
            reason: state.reason.into(),
            message: state.message.clone(),
            observed_generation: generation,
            last_transition_time: same.map_or_else(|| now.clone(), |old| old.last_transition_time.clone()),
        }
    };
    states.iter().map(of).collect()
}
