//! The optimiser beside everything else: it takes its time, and the last good placement stands until there is a better one.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use super::assign::assign;
use super::partition::{PART, solve_in_parts};
use super::{OptimiserError, Solution, by_volume};
use crate::demand::Demand;
use crate::placement::{Placement, ServerShape};

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The solution, with its bound.
    pub solution: Solution,
    /// Where everything would run; what runs now is left where it is as far as possible, and all of it where the solution takes more servers.
    pub placement: Placement,
    /// Servers in use before.
    pub before: usize,
}

impl Outcome {
    /// Servers that it saves.
    pub fn saves(&self) -> usize {
        self.before.saturating_sub(self.placement.used())
    }
}

/// A run of the optimiser in a thread of its own. Dropped, it ends by itself within its time limit, and nobody learns the result.
#[derive(Debug)]
pub struct Background {
    result: Receiver<Result<Outcome, OptimiserError>>,
}

impl Background {
    /// Starts a run, with what is placed now.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(demands: Vec<Demand>, shape: ServerShape, current: Placement, limit: Duration) -> std::io::Result<Self> {
        let (tell, result) = channel();
        std::thread::Builder::new().name("optimiser".into()).spawn(move || {
            // Nobody listens any more if the run was given up.
            let _ = tell.send(run(&demands, &shape, &current, limit));
        })?;
        Ok(Self { result })
    }

    /// What came of it; none while it runs. Once told, it is not told again.
    pub fn poll(&self) -> Option<Result<Outcome, OptimiserError>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(OptimiserError::Solver("it has ended without an answer".into()))),
        }
    }

    /// Waits for what comes of it.
    ///
    /// # Errors
    /// [`OptimiserError`]; what is placed stays as it is.
    pub fn wait(self) -> Result<Outcome, OptimiserError> {
        self.result.recv().unwrap_or_else(|_| Err(OptimiserError::Solver("it has ended without an answer".into())))
    }
}

/// One run: the best placement within the time that takes no more servers than the current one. Where memory is rounded up to cores, nothing more is
/// proved than what cores and memory need, each for itself.
///
/// # Errors
/// [`OptimiserError`]; [`OptimiserError::OutOfTime`] if time was out and nothing was better than what is placed now.
pub fn run(demands: &[Demand], shape: &ServerShape, current: &Placement, limit: Duration) -> Result<Outcome, OptimiserError> {
    let mut solution = solve_in_parts(demands, shape, PART, limit)?;
    if demands.iter().any(|demand| demand.counted_cores > demand.cores) {
        solution.bound = solution.bound.min(by_volume(demands, shape));
    }
    let before = current.servers.iter().filter(|server| server.shape == *shape && !server.instances.is_empty()).count();
    if solution.timed_out && solution.servers() >= before && before > 0 {
        return Err(OptimiserError::OutOfTime { bound: solution.bound });
    }
    let takes_more = before > 0 && solution.servers() > before;
    let placement = if takes_more { current.clone() } else { assign(&solution, demands, shape, current)? };
    Ok(Outcome { solution, placement, before })
}
