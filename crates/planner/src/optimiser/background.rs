//! The optimiser in the background, while the last good placement stands.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::assign::assign;
use super::partition::{PART, solve_in_parts};
use super::{IS_BUILT, OptimiserError, Solution, by_memory};
use crate::demand::Demand;
use crate::packing::{Packed, pack};
use sluice_slo::placement::{Placement, ServerShape};

#[derive(Debug, Clone, PartialEq)]
pub struct Improvement {
    pub solution: Solution,
    /// Where everything would run. Running instances stay where they are as far as possible; all of
    /// them stay where the solution takes more servers only because memory is rounded up to cores.
    pub placement: Placement,
    /// Servers in use before.
    pub before: usize,
}

impl Improvement {
    pub fn saves(&self) -> usize {
        self.before.saturating_sub(self.placement.used())
    }
}

/// A run of the optimiser in its own thread. If dropped, the run ends within its time limit, and
/// its result is lost.
#[derive(Debug)]
pub struct Background {
    result: Receiver<Result<Improvement, OptimiserError>>,
}

impl Background {
    /// Starts a run from the current placement.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(demands: Vec<Demand>, shape: ServerShape, current: Placement, limit: Duration) -> std::io::Result<Self> {
        let (sender, result) = channel();
        std::thread::Builder::new().name("optimiser".into()).spawn(move || {
            // The receiver is gone if the run was given up.
            let _ = sender.send(run(&demands, &shape, &current, limit));
        })?;
        Ok(Self { result })
    }

    /// The result, once; none while it runs.
    pub fn poll(&self) -> Option<Result<Improvement, OptimiserError>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(OptimiserError::Solver("it has ended without an answer".into()))),
        }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// [`OptimiserError`]; the placement stays as it is.
    pub fn wait(self) -> Result<Improvement, OptimiserError> {
        self.result.recv().unwrap_or_else(|_| Err(OptimiserError::Solver("it has ended without an answer".into())))
    }
}

/// One run: the best placement found within the time that takes no more servers than the current
/// one. Where memory is rounded up to cores, the bound is only what cores with ways, and memory,
/// need separately.
///
/// # Errors
/// [`OptimiserError`]; [`OptimiserError::OutOfTime`] if time ran out with nothing better than the
/// current placement.
pub fn run(demands: &[Demand], shape: &ServerShape, current: &Placement, limit: Duration) -> Result<Improvement, OptimiserError> {
    let began = Instant::now();
    let mut solution = solve_in_parts(demands, shape, PART, limit)?;
    let is_rounded = demands.iter().any(|demand| demand.counted_cores > demand.cores);
    if is_rounded {
        // By cores and ways alone.
        let bare = |demand: &Demand| Demand { counted_cores: demand.cores, ..demand.clone() };
        let bare: Vec<Demand> = demands.iter().map(bare).collect();
        let least = solve_in_parts(&bare, shape, PART, limit.saturating_sub(began.elapsed()))?.bound;
        solution.bound = solution.bound.min(least.max(by_memory(demands, shape)));
    }
    let own = || current.servers.iter().filter(|server| server.shape == *shape && !server.instances.is_empty());
    let before = own().count();
    if solution.timed_out && solution.servers() >= before && before > 0 {
        return Err(OptimiserError::OutOfTime { bound: solution.bound });
    }
    // What runs fits, whatever the rounding says; unless its profiles are new.
    let carries = |demand: &Demand| {
        let instances = own().flat_map(|server| &server.instances).filter(|instance| instance.slo == demand.slo);
        demand.is_enough(&instances.map(|instance| instance.ways.min(shape.ways())).collect::<Vec<_>>())
    };
    let stays = is_rounded && solution.servers() > before && demands.iter().all(carries);
    let placement = if stays { current.clone() } else { assign(&solution, demands, shape, current)? };
    Ok(Improvement { solution, placement, before })
}

/// A placement of the same demands from nothing, on the same servers: that of [`run`] where the
/// solver is built, and otherwise the greedy packing, which may take more servers than now.
///
/// # Errors
/// [`OptimiserError`], but not [`OptimiserError::NotBuilt`].
pub fn anew(demands: &[Demand], shape: &ServerShape, current: &Placement, limit: Duration) -> Result<Placement, OptimiserError> {
    if IS_BUILT {
        return run(demands, shape, current, limit).map(|found| found.placement);
    }
    let Packed { patterns, recipes } = pack(demands, shape).map_err(OptimiserError::Impossible)?;
    assign(&Solution { patterns, recipes, bound: 0, timed_out: false }, demands, shape, current)
}
