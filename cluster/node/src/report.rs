//! What the agent reports of its node.

use sluice_api::promise::{Promise, Promises};
use sluice_cluster_types::condition::{CONNECTED, READY, State};
use sluice_cluster_types::{NodePlanStatus, Use};

use crate::turn::{Trouble, Turn};

/// Rounds to two digits: a report is written when it changes, and load changes a little all the
/// time.
fn two_digits(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 0.0;
    }
    let unit = 10f64.powf(value.log10().floor() - 1.0);
    (value / unit).round() * unit
}

fn use_of(promise: &Promise) -> Use {
    Use {
        slo: promise.slo.clone(),
        state: promise.word().into(),
        offered_pps: two_digits(promise.offered_pps),
        delivered_pps: two_digits(promise.delivered_pps),
        latency_us: promise.latency_us.map(two_digits),
        asks_for: promise.steered.as_ref().and_then(|steered| Some(steered.asks_for.as_ref()?.instances)),
    }
}

/// How SLOs are kept.
pub fn uses(promises: &Promises) -> Vec<Use> {
    promises.promises.iter().map(use_of).collect()
}

/// The condition of a plan.
pub fn ready(turn: &Turn, revision: i64) -> State {
    let is_not = |reason, why: &str| State::new(READY, Some(false), reason, why);
    match (&turn.trouble, &turn.status.refused) {
        (Some(Trouble::Away(why)), _) => is_not("DaemonAway", why),
        (Some(Trouble::Between(why)), _) => is_not("BetweenPlans", why),
        (Some(Trouble::Failed(why)), _) => is_not("DaemonFails", why),
        (None, Some(why)) => is_not("Refused", why),
        (None, None) if turn.status.applied_revision == revision => {
            State::new(READY, Some(true), "Applied", "sluiced keeps the plan")
        }
        (None, None) => is_not("Applying", "sluiced is taking over the plan"),
    }
}

/// The condition of what the agent may do at the API server. `fault` is what it may not.
pub fn connected(fault: Option<String>) -> State {
    match fault {
        None => State::new(CONNECTED, Some(true), "Allowed", "the agent may do at the API server what it has to"),
        Some(fault) => State::new(CONNECTED, Some(false), "NoAccess", fault),
    }
}

/// Whether a report says more than other numbers: it is written at once.
pub fn is_news(before: &NodePlanStatus, now: &NodePlanStatus) -> bool {
    let of = |status: &NodePlanStatus| {
        let uses = status.uses.iter().map(|one| (one.slo.clone(), one.state.clone(), one.offered_pps > 0.0, one.asks_for));
        let plan = (status.observed_revision, status.applied_revision, status.refused.clone());
        (plan, status.profiling, status.notes.clone(), uses.collect::<Vec<_>>())
    };
    of(before) != of(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_of_load_are_no_news() {
        assert_eq!([two_digits(1_234_567.0), two_digits(0.0), two_digits(99.6), two_digits(f64::NAN)], [1.2e6, 0.0, 100.0, 0.0]);
        let status = |offered_pps: f64, state: &str| NodePlanStatus {
            uses: vec![Use { slo: "a".into(), state: state.into(), offered_pps, ..Use::default() }],
            ..NodePlanStatus::default()
        };
        assert!(!is_news(&status(1e6, "kept"), &status(2e6, "kept")));
        assert!(is_news(&status(1e6, "kept"), &status(0.0, "kept")), "an instance can go");
        assert!(is_news(&status(1e6, "kept"), &status(1e6, "violated")));
    }
}
