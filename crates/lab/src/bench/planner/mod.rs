//! Experiments with the planner of SLOs: number of servers, violated SLOs, time.
//!
//! They need no packets and no daemon. The sets of SLOs are random, of kinds of NF with stated
//! parameters. The effects of a placement come from a model of contention
//! ([`sluice_planner::samples`], [`sluice_planner::contention`]).

pub mod accuracy;
pub mod online;
pub mod optimiser;
pub mod placement;
pub mod predictor;
pub mod whole;

use std::time::Duration;

use sluice_planner::compare::CompareError;
use sluice_planner::optimiser::OptimiserError;

use crate::bench::lab::Miss;

/// Time limit of the optimiser.
const LIMIT: Duration = Duration::from_secs(60);

/// Maps a failure of the planner: without a solver, the optimum is left out.
fn missed(error: CompareError) -> Miss {
    match error {
        CompareError::Optimiser(OptimiserError::NotBuilt) => Miss::LeaveOut(error.to_string()),
        error => Miss::Failed(error.into()),
    }
}
