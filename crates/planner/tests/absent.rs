//! What the optimiser says, in a build with its solver and in one without. `make test` runs it with
//! both.

use std::time::Duration;

use sluice_planner::demand::Demand;
use sluice_planner::optimiser::{IS_BUILT, solve};
use sluice_slo::examples::shape;

#[test]
fn without_a_solver_it_is_said_how_to_build_it() {
    let demand = Demand {
        slo: "a".into(),
        target_pps: 1.0,
        cores: 1,
        memory_mib: 1,
        counted_cores: 1,
        capacity_pps: vec![0.0, 1.0],
        sizes: vec![1],
    };
    match solve(&[demand], &shape(), Duration::from_secs(10)) {
        Ok(solution) => assert!(IS_BUILT && solution.servers() == 1, "{solution:?}"),
        Err(error) => assert!(!IS_BUILT && error.to_string().contains("--features optimiser"), "{error}"),
    }
}
