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
//! 2. The integer program is solved over these columns and others of little reduced cost. If it reaches the bound, rounded up, it is
//!    proved optimal: so it is, nearly always.
//! 3. If not, all columns are added whose reduced cost leaves room for a better solution; no other can be part of one. If that
//!    program finds nothing better, what there is is optimal. If there are too many such columns, or time is out, the gap is told.
//!
//! The start, and the answer when time is out at once, is first-fit decreasing ([`crate::admission::pack`]). SLOs that are alike
//! (same profile, same promise) are one row. Cores are counted with memory ([`crate::placement::ServerShape::cores_with_memory`]).
//!
//! # Limits
//! All servers have one shape; servers of another are another problem. Which instance gets which slot is decided afterwards
//! ([`assign`]) and has no influence on the number of servers.
//!
//! Source: the problem is that of Tootoonchian et al., "ResQ", NSDI 2018, section 5.3; patterns go back to Gilmore and Gomory, "A linear
//! programming approach to the cutting-stock problem", 1961.

pub mod assign;
pub mod background;
mod master;
pub mod partition;
pub mod pattern;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use master::{Columns, Master};
use pattern::{Bench, Pattern, Slot};

use crate::admission;
use crate::demand::{Demand, Recipe};
use crate::placement::{ServerShape, ShapeError};

/// Columns that are added at most to close the gap.
const MOST_COLUMNS: usize = 40_000;
/// Patterns of little reduced cost that the first integer program has.
const MOST_PATTERNS: usize = 400;
/// Recipes of an SLO that it has.
const MOST_RECIPES: usize = 24;
/// What counts as little reduced cost, in servers.
const LITTLE: f64 = 0.02;
/// Sums of floating-point numbers are the same if they differ by less.
const EPSILON: f64 = 1e-6;

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
pub fn solve_with_prices(demands: &[Demand], shape: &ServerShape, limit: Duration) -> Result<(Solution, Prices), OptimiserError> {
    let began = Instant::now();
    let left = || limit.saturating_sub(began.elapsed());
    shape.check()?;
    let groups = groups(demands);
    let start = admission::pack(demands, shape).map_err(OptimiserError::Impossible)?;
    let mut best = Solution { patterns: start.patterns, recipes: start.recipes, bound: 0, timed_out: false };
    if demands.is_empty() {
        return Ok((best, Prices::default()));
    }
    let slots = slots(&groups);
    let mut columns = Columns::of(&groups, &best);
    let relaxed = relax(&groups, shape, &slots, &mut columns, &left)?;
    best.bound = whole(relaxed.bound).min(best.servers());
    let prices = relaxed.prices;
    if best.is_optimal() {
        return Ok((best, prices));
    }
    // Columns of little reduced cost, then all that a better solution may have.
    let mut reach = LITTLE;
    loop {
        let budget = best.servers() as f64 - 1.0 - relaxed.bound + EPSILON;
        let is_all = reach >= budget;
        let is_complete = more_columns(&groups, shape, &slots, &prices, reach.min(budget), is_all, &mut columns);
        let master = Master { groups: &groups, slots: &slots, columns: &columns };
        let found = master.integers(&best, best.bound, left())?;
        let (ended, found) = (found.ended, found.solution);
        if let Some((patterns, recipes)) = found
            && patterns.len() < best.servers()
        {
            let recipes = hand_out(&groups, recipes, demands.len());
            best = Solution { patterns, recipes, ..best };
        }
        if best.is_optimal() || left().is_zero() || !ended {
            best.timed_out = !best.is_optimal();
            break;
        }
        if is_all {
            // Nothing better among all that a better solution could be made of: but then the budget is of the one that was beaten.
            if is_complete {
                best.bound = best.servers();
            }
            break;
        }
        reach = if reach < 0.1 { reach * 4.0 } else { f64::INFINITY };
    }
    Ok((best, prices))
}

/// The relaxation, solved.
struct Relaxed {
    bound: f64,
    prices: Prices,
}

/// Generates columns until none improves, or time is out.
fn relax(
    groups: &[Group],
    shape: &ServerShape,
    slots: &[Slot],
    columns: &mut Columns,
    left: &dyn Fn() -> Duration,
) -> Result<Relaxed, OptimiserError> {
    let mut best = Relaxed { bound: 0.0, prices: Prices::default() };
    let mut model = Master { groups, slots, columns }.relaxation()?;
    loop {
        let (value, prices) = model.solve()?;
        let bench = Bench::new(shape, slots, |slot| prices.of(slot));
        let (worth, pattern) = bench.most();
        let mut bound = 0.0;
        let mut improves = false;
        for (i, group) in groups.iter().enumerate() {
            let sizes = prices.sizes(group.demand.counted_cores, shape.ways());
            let (cost, recipe) = group.demand.cheapest(&sizes);
            bound += cost * group.members.len() as f64;
            if cost < prices.recipes[i] - EPSILON && !recipe.is_empty() && columns.add_recipe(i, recipe.clone()) {
                model.add_recipe(groups, slots, i, &recipe)?;
                improves = true;
            }
        }
        let bound = bound / worth.max(1.0);
        if bound > best.bound || best.prices.recipes.is_empty() {
            best = Relaxed { bound, prices };
        }
        if worth > 1.0 + EPSILON && columns.add_pattern(pattern.clone()) {
            model.add_pattern(slots, &pattern)?;
            improves = true;
        }
        // The bound, rounded up, is all that is asked of the relaxation; but good prices make good columns.
        if !improves || value - best.bound < 1e-4 || left().is_zero() {
            return Ok(best);
        }
    }
}

/// Adds all columns up to a reduced cost; whether none is missing.
fn more_columns(
    groups: &[Group],
    shape: &ServerShape,
    slots: &[Slot],
    prices: &Prices,
    reach: f64,
    all: bool,
    columns: &mut Columns,
) -> bool {
    let bench = Bench::new(shape, slots, |slot| prices.of(slot));
    // Prices that are a little too high are divided by this.
    let scale = bench.most().0.max(1.0);
    let (patterns, mut complete) = bench.at_least(scale * (1.0 - reach), if all { MOST_COLUMNS } else { MOST_PATTERNS });
    for pattern in patterns {
        columns.add_pattern(pattern);
    }
    for (i, group) in groups.iter().enumerate() {
        let sizes = prices.sizes(group.demand.counted_cores, shape.ways());
        let (cost, _) = group.demand.cheapest(&sizes);
        let most = if all { MOST_COLUMNS } else { MOST_RECIPES };
        let (recipes, is_all) = group.demand.up_to(&sizes, cost + reach * scale + EPSILON, most);
        complete &= is_all;
        for recipe in recipes {
            columns.add_recipe(i, recipe);
        }
        if columns.len() > MOST_COLUMNS {
            return false;
        }
    }
    complete
}

/// Gives each demand a recipe of its group's.
fn hand_out(groups: &[Group], mut recipes: Vec<Vec<Recipe>>, demands: usize) -> Vec<Recipe> {
    let mut out = vec![Recipe::new(); demands];
    for (group, recipes) in groups.iter().zip(&mut recipes) {
        for member in &group.members {
            out[*member] = recipes.pop().unwrap_or_default();
        }
    }
    out
}

#[cfg(test)]
mod tests;
