//! Experiments with the planner of SLOs: how many servers, how many broken promises, how long.
//!
//! They need no packets and no daemon: the sets of SLOs are random, of kinds of NF with stated parameters, and what would come of a
//! placement is told by a stated model of contention ([`sluice_slo::samples`], [`sluice_slo::contention`]).

pub mod accuracy;
pub mod optimiser;
pub mod placement;
pub mod whole;

use std::time::Duration;

use sluice_slo::compare::CompareError;
use sluice_slo::optimiser::OptimiserError;

use crate::bench::lab::Miss;
use crate::bench::report::Params;

/// Time that the optimiser has, at most.
const LIMIT: Duration = Duration::from_secs(60);

fn params(of: &[(&str, serde_json::Value)]) -> Params {
    of.iter().map(|(key, value)| ((*key).to_string(), value.clone())).collect()
}

/// What a failure of the planner means for an experiment: without a solver the optimum is left out.
fn missed(error: CompareError) -> Miss {
    match error {
        CompareError::Optimiser(OptimiserError::NotBuilt) => Miss::LeaveOut(error.to_string()),
        error => Miss::Failed(error.into()),
    }
}
