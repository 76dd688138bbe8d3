//! The least number of servers on which all SLOs can be kept.
//!
//! # Problem
//! As a program with a variable for each instance on each server this is hopeless: all servers are alike, and so are instances, so the
//! solver proves the same thing over and over. But an instance takes only cores and ways, so a server is no more than a multiset of
//! slots (a *pattern*, [`pattern`]), and an SLO no more than a choice among sets of sizes that are enough for it (*recipes*,
//! [`crate::demand`]).
//!
//! # Approach
//! Minimise the number of servers, over how often each pattern and each recipe is used, such that each SLO has a recipe and, for every
//! number of cores and every size, there are at least as many slots of that size or more as instances. That is exact: slots and instances
//! are then matched by size. Curves need not be concave, nor be made of few pieces: a recipe is looked up on the curve itself.
//! 1. The linear relaxation is solved by generating columns: the dual prices of sizes make each SLO's cheapest recipe and the most
//!    worthy pattern, exactly, and what improves is added until nothing does. So the bound is the relaxation's over *all* patterns
//!    and recipes, however many.
//! 2. The integer program is solved over these columns and others of little reduced cost: first with all kept that the relaxation uses whole, which
//!    leaves few columns, then with nothing kept. If it reaches the bound, rounded up, it is proved optimal: so it is, nearly always.
//! 3. If not, all columns are added whose reduced cost leaves room for a better solution; no other can be part of one. If that
//!    program finds nothing better, what there is is optimal. If there are too many such columns, or time is out, the gap is told.
//!
//! The start, and the answer when time is out at once, is what a greedy way finds (`packing::pack`). SLOs that are alike
//! (same profile, same promise) are one row. Cores are counted with memory (`ServerShape::cores_with_memory`).
//!
//! # Limits
//! The solver is built with the feature `optimiser`; without it, [`solve`] says so. Memory is counted in whole cores: where an instance takes more of
//! it than its cores' part, a server may be taken for full that is not, and what is proved is proved of that count ([`background::run`] says less
//! then). All servers have one shape; servers of another are another problem. Which instance gets which slot is decided afterwards
//! ([`assign`]) and has no influence on the number of servers.
//!
//! Source: the problem is that of Tootoonchian et al., "ResQ", NSDI 2018, section 5.3; patterns go back to Gilmore and Gomory, "A linear
//! programming approach to the cutting-stock problem", 1961.

pub mod assign;
pub mod background;
#[cfg(feature = "optimiser")]
mod exact;
#[cfg(feature = "optimiser")]
mod master;
pub mod partition;
pub mod pattern;

use std::collections::BTreeMap;
use std::time::Duration;

use pattern::{Bench, Pattern, Slot};

use crate::demand::{Demand, Recipe};
use crate::placement::{ServerShape, ShapeError};

/// Sums of floating-point numbers are the same if they differ by less.
const EPSILON: f64 = 1e-6;

/// Whether the solver is in this build.
pub const IS_BUILT: bool = cfg!(feature = "optimiser");

/// The least number of servers, or the best that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// Servers, each by its pattern.
    pub patterns: Vec<Pattern>,
    /// The recipe of each demand.
    pub recipes: Vec<Recipe>,
    /// Servers that are needed at least.
    pub bound: usize,
    /// Whether it was stopped by its time limit.
    pub timed_out: bool,
}

impl Solution {
    /// How many servers it takes.
    pub fn servers(&self) -> usize {
        self.patterns.len()
    }

    /// Whether no solution takes fewer.
    pub fn is_optimal(&self) -> bool {
        self.servers() <= self.bound
    }

    /// How many servers too many it may be, as a part of those that it takes.
    pub fn gap(&self) -> f64 {
        if self.patterns.is_empty() { 0.0 } else { self.servers().saturating_sub(self.bound) as f64 / self.servers() as f64 }
    }
}

/// Why there is no solution.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OptimiserError {
    /// Servers have nothing.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// An SLO that no number of servers keeps.
    #[error(
        "SLO \"{0}\" does not fit on any number of empty servers: its instances need more cores, ways or classes than a server has"
    )]
    Impossible(String),
    /// The solver is a part that is not in every build.
    #[error(
        "this build has no solver: build it with `--features optimiser` (cmake, g++ and libclang-dev are needed), or place greedily"
    )]
    NotBuilt,
    /// The solver failed, or answered nonsense.
    #[error("the solver failed ({0}); the placement stays as it is")]
    Solver(String),
    /// Out of time before there was anything.
    #[error(
        "the solver ran out of time with nothing better than now (at least {bound} servers are needed); the placement stays as it is"
    )]
    OutOfTime {
        /// Servers that are needed at least.
        bound: usize,
    },
}

/// Demands that are alike.
#[derive(Debug, Clone, PartialEq)]
struct Group {
    /// One of them.
    demand: Demand,
    /// Their places.
    members: Vec<usize>,
}

fn groups(demands: &[Demand]) -> Vec<Group> {
    let mut groups: BTreeMap<(u32, u64, Vec<u64>), Group> = BTreeMap::new();
    for (i, demand) in demands.iter().enumerate() {
        let bits = demand.capacity_pps.iter().map(|pps| pps.to_bits()).collect();
        let key = (demand.counted_cores, demand.target_pps.to_bits(), bits);
        groups.entry(key).or_insert_with(|| Group { demand: demand.clone(), members: Vec::new() }).members.push(i);
    }
    groups.into_values().collect()
}

/// All slots that instances of these demands may want.
fn slots(groups: &[Group]) -> Vec<Slot> {
    let on_demand = |group: &Group| if group.demand.target_pps <= 0.0 { vec![0] } else { group.demand.sizes.clone() };
    let all = groups.iter().flat_map(|group| on_demand(group).into_iter().map(|size| (group.demand.counted_cores, size)));
    let mut slots: Vec<Slot> = all.collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// Dual prices: of slots, and of each group's recipe.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prices {
    /// What a slot is worth, in servers; sizes between two have the price of the smaller.
    slots: BTreeMap<Slot, f64>,
    /// What the relaxation pays for a recipe of each group.
    recipes: Vec<f64>,
}

impl Prices {
    fn of(&self, slot: Slot) -> f64 {
        self.slots.range((slot.0, 0)..=slot).next_back().map_or(0.0, |(_, price)| *price)
    }

    /// The price of each size, from 0 to all ways.
    fn sizes(&self, cores: u32, ways: u32) -> Vec<f64> {
        (0..=ways).map(|size| self.of((cores, size))).collect()
    }

    /// Servers that these demands need at least, by these prices: what their cheapest recipes cost, in servers of the most worthy
    /// pattern. Right whatever the prices are.
    pub fn bound(&self, demands: &[Demand], shape: &ServerShape) -> f64 {
        let groups = groups(demands);
        let (worth, _) = Bench::new(shape, &slots(&groups), |slot| self.of(slot)).most();
        let costs = groups.iter().map(|group| {
            let prices = self.sizes(group.demand.counted_cores, shape.ways());
            group.members.len() as f64 * group.demand.cheapest(&prices).0
        });
        costs.sum::<f64>() / worth.max(f64::MIN_POSITIVE)
    }
}

/// Servers that are needed at least for the memory of as few instances as there can be.
fn by_memory(demands: &[Demand], shape: &ServerShape) -> usize {
    let instances = |demand: &Demand| {
        let most = demand.capacity_pps.last().copied().unwrap_or(0.0);
        if most > 0.0 { (demand.target_pps / most * (1.0 - EPSILON)).ceil().max(1.0) } else { 1.0 }
    };
    let memory_mib: f64 = demands.iter().map(|demand| instances(demand) * demand.memory_mib as f64).sum();
    whole(memory_mib / shape.memory_mib.max(1) as f64)
}

/// Rounds up, but not because of the last bits.
fn whole(servers: f64) -> usize {
    (servers - EPSILON * servers.max(1.0)).ceil().max(0.0) as usize
}

/// Finds the least number of servers within a time.
///
/// # Errors
/// [`OptimiserError`]. That time is out is no error: the solution says how good it is.
pub fn solve(demands: &[Demand], shape: &ServerShape, limit: Duration) -> Result<Solution, OptimiserError> {
    solve_with_prices(demands, shape, limit).map(|(solution, _)| solution)
}

/// The same, and the dual prices at the end of the relaxation.
///
/// # Errors
/// [`OptimiserError`].
#[cfg(feature = "optimiser")]
pub(crate) use exact::solve_with_prices;

/// The same, and the dual prices at the end of the relaxation: not in this build.
///
/// # Errors
/// [`OptimiserError::NotBuilt`].
#[cfg(not(feature = "optimiser"))]
pub(crate) fn solve_with_prices(_: &[Demand], shape: &ServerShape, _: Duration) -> Result<(Solution, Prices), OptimiserError> {
    shape.check()?;
    Err(OptimiserError::NotBuilt)
}

#[cfg(all(test, feature = "optimiser"))]
mod tests;

#[cfg(all(test, not(feature = "optimiser")))]
mod tests_without {
    use super::*;
    use crate::demand::tests::demand;
    use crate::placement::tests::shape;

    #[test]
    fn without_a_solver_it_is_said_how_to_build_it() {
        let demands = [demand("a", 1.0, 1, &[0.0, 1.0])];
        let error = solve(&demands, &shape(), Duration::from_secs(1)).unwrap_err().to_string();
        assert!(error.contains("--features optimiser"), "{error}");
    }
}
