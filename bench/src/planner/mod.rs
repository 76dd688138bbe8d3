//! Experiments with the planner of SLOs: how many servers, how many broken promises, how long.
//!
//! They need no packets and no daemon: the sets of SLOs are random, of kinds of NF with stated parameters, and what would come of a
//! placement is told by a stated model of contention ([`sluice_slo::samples`], [`sluice_slo::contention`]).

pub mod optimiser;
pub mod placement;

use std::time::Duration;

use crate::report::Params;

/// Time that the optimiser has, at most.
const LIMIT: Duration = Duration::from_secs(60);

fn params(of: &[(&str, serde_json::Value)]) -> Params {
    of.iter().map(|(key, value)| ((*key).to_string(), value.clone())).collect()
}
