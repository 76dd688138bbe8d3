//! The least number of servers on which all SLOs can be kept.
//!
//! # Problem
//! A program with a variable for each instance on each server is hopeless: all servers are alike,
//! and so are instances, so the solver proves the same thing over and over. But an instance takes
//! only cores and ways. So a server is just a multiset of slots (a *pattern*, [`pattern`]), and an
//! SLO is a choice among sufficient sets of sizes (*recipes*, [`crate::demand`]).
//!
//! # Approach
//! Minimise the number of servers, over how often each pattern and each recipe is used, such that
//! each SLO has a recipe and, for every number of cores and every size, there are at least as many
//! slots of that size or more as instances. That is exact: slots and instances are then matched by
//! size. Curves need not be concave, nor be made of few pieces: a recipe is looked up on the curve
//! itself.
//! 1. Column generation solves the linear relaxation. The dual prices of sizes give each SLO's
//!    cheapest recipe and the most valuable pattern, exactly; what improves is added until nothing
//!    does. So the bound is that of the relaxation over *all* patterns and recipes, however many.
//! 2. The integer program is solved over these columns and others of little reduced cost: first
//!    with all kept that the relaxation uses whole, which leaves few columns, then with nothing
//!    kept. A solution at the bound, rounded up, is proved optimal; it nearly always is.
//! 3. If not, all columns are added whose reduced cost leaves room for a better solution; no other
//!    can be part of one. If that program finds nothing better, the present solution is optimal. If
//!    there are too many such columns, or time is out, the gap is reported.
//!
//! The greedy packing (`packing::pack`) is the start, and the answer if time is out at once. SLOs
//! that are alike (same profile, same promise) are one row. Cores are counted with memory
//! (`ServerShape::cores_with_memory`).
//!
//! # Limits
//! The solver is built with the feature `optimiser`; without it, [`solve`] returns
//! [`OptimiserError::NotBuilt`]. Memory is counted in whole cores: where an instance takes more of
//! it than its cores' part, a server with room may count as full, and what is proved is proved for
//! that count ([`background::run`] then claims less). All servers have one shape; servers of
//! another shape are a separate problem. [`assign`] decides afterwards which instance gets which
//! slot, which has no influence on the number of servers.
//!
//! Source: the problem is that of Tootoonchian et al., "ResQ", NSDI 2018, section 5.3; patterns go
//! back to Gilmore and Gomory, "A linear programming approach to the cutting-stock problem", 1961.

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
use sluice_slo::placement::{ServerShape, ShapeError};

/// Sums of floating-point numbers are equal if they differ by less.
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
    /// Lower bound on the number of servers.
    pub bound: usize,
    pub timed_out: bool,
}

impl Solution {
    pub fn servers(&self) -> usize {
        self.patterns.len()
    }

    /// Whether no solution takes fewer.
    pub fn is_optimal(&self) -> bool {
        self.servers() <= self.bound
    }

    /// Upper bound of the excess servers, as a part of those that it takes.
    pub fn gap(&self) -> f64 {
        if self.patterns.is_empty() { 0.0 } else { self.servers().saturating_sub(self.bound) as f64 / self.servers() as f64 }
    }
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OptimiserError {
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error(
        "SLO \"{0}\" does not fit on any number of empty servers: its instances need more cores, ways or classes than a server has"
    )]
    Impossible(String),
    #[error(
        "this build has no solver: build it with `--features optimiser` (cmake, g++ and libclang-dev are needed), or place greedily"
    )]
    NotBuilt,
    /// The solver failed, or its answer is invalid.
    #[error("the solver failed ({0}); the placement stays as it is")]
    Solver(String),
    #[error(
        "the solver ran out of time with nothing better than now (at least {bound} servers are needed); the placement stays as it is"
    )]
    OutOfTime { bound: usize },
}

/// Demands that are alike.
#[derive(Debug, Clone, PartialEq)]
struct Group {
    /// One of them.
    demand: Demand,
    /// Their indices.
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
    /// Value of a slot, in servers; sizes between two have the price of the smaller.
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

    /// Lower bound on the servers of these demands by these prices: the cost of their cheapest
    /// recipes, over the value of the most valuable pattern. Valid for any prices.
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

/// Lower bound on the servers for the memory of as few instances as possible.
fn by_memory(demands: &[Demand], shape: &ServerShape) -> usize {
    let instances = |demand: &Demand| {
        let most = demand.capacity_pps.last().copied().unwrap_or(0.0);
        if most > 0.0 { (demand.target_pps / most * (1.0 - EPSILON)).ceil().max(1.0) } else { 1.0 }
    };
    let memory_mib: f64 = demands.iter().map(|demand| instances(demand) * demand.memory_mib as f64).sum();
    whole(memory_mib / shape.memory_mib.max(1) as f64)
}

/// Rounds up, tolerating errors in the last bits.
fn whole(servers: f64) -> usize {
    (servers - EPSILON * servers.max(1.0)).ceil().max(0.0) as usize
}

/// Finds the least number of servers within a time.
///
/// # Errors
/// [`OptimiserError`]. Running out of time is no error: the solution has its gap.
pub fn solve(demands: &[Demand], shape: &ServerShape, limit: Duration) -> Result<Solution, OptimiserError> {
    solve_with_prices(demands, shape, limit).map(|(solution, _)| solution)
}

#[cfg(feature = "optimiser")]
pub(crate) use exact::solve_with_prices;

/// Not in this build.
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
