//! Solver with proof: column generation, then integer programs over the columns.

use std::time::{Duration, Instant};

use super::master::{Columns, Master};
use super::pattern::{Bench, Slot};
use super::{EPSILON, Group, OptimiserError, Prices, Solution, groups, slots, whole};
use crate::demand::{Demand, Recipe};
use crate::packing;
use sluice_slo::placement::ServerShape;

/// Most columns that are added to close the gap.
const MOST_COLUMNS: usize = 40_000;
/// Most patterns of little reduced cost in the first integer program.
const MOST_PATTERNS: usize = 400;
/// Most recipes of an SLO in it.
const MOST_RECIPES: usize = 24;
/// Node limit of an integer program with a part kept.
const FEW_NODES: i32 = 200;
/// What counts as little reduced cost, in servers.
const LITTLE: f64 = 0.02;
/// [`solve`](super::solve), with the dual prices at the end of the relaxation.
///
/// # Errors
/// [`OptimiserError`].
pub(crate) fn solve_with_prices(
    demands: &[Demand],
    shape: &ServerShape,
    limit: Duration,
) -> Result<(Solution, Prices), OptimiserError> {
    let began = Instant::now();
    let left = || limit.saturating_sub(began.elapsed());
    shape.check()?;
    let groups = groups(demands);
    let start = packing::pack(demands, shape).map_err(OptimiserError::Impossible)?;
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
        // A solver without time may or may not answer, so it is not called.
        if left().is_zero() {
            best.timed_out = true;
            break;
        }
        let budget = best.servers() as f64 - 1.0 - relaxed.bound + EPSILON;
        let is_all = reach >= budget;
        let is_complete = more_columns(&groups, shape, &slots, &prices, reach.min(budget), is_all, &mut columns);
        let master = Master { groups: &groups, slots: &slots, columns: &columns };
        let mut ended = false;
        for (kept, nodes) in programs(&master.whole_parts(left()), columns.patterns.len()) {
            if best.is_optimal() || left().is_zero() {
                break;
            }
            let found = master.integers(&best, kept, nodes, left())?;
            ended = found.ended;
            if let Some((patterns, recipes)) = found.solution
                && patterns.len() < best.servers()
            {
                let recipes = hand_out(&groups, recipes, demands.len());
                best = Solution { patterns, recipes, ..best };
            }
        }
        if best.is_optimal() || left().is_zero() || !ended {
            best.timed_out = !best.is_optimal();
            break;
        }
        if is_all {
            // The columns hold all that a solution better than the former best could use, so the
            // best over them is optimal.
            if is_complete {
                best.bound = best.servers();
            }
            break;
        }
        reach = if reach < 0.1 { reach * 4.0 } else { f64::INFINITY };
    }
    Ok((best, prices))
}

/// Integer programs to try in turn: the amounts to keep, and a node limit. First everything the
/// relaxation uses whole is kept, then only its patterns: the rest is small, and mostly enough. A
/// failure of these proves nothing.
fn programs(kept: &[f64], patterns: usize) -> Vec<(&[f64], i32)> {
    let (of_patterns, of_recipes) = kept.split_at(patterns.min(kept.len()));
    let is_used = |parts: &[f64]| parts.iter().any(|part| *part > 0.0);
    let mut programs = vec![(&[][..], i32::MAX)];
    if is_used(of_patterns) {
        programs.insert(0, (of_patterns, FEW_NODES));
    }
    if is_used(of_recipes) {
        programs.insert(0, (kept, FEW_NODES));
    }
    programs
}

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
        // Only the bound, rounded up, is needed; but good prices make good columns.
        if !improves || value - best.bound < 1e-4 || left().is_zero() {
            return Ok(best);
        }
    }
}

/// Adds all columns up to a reduced cost; returns whether none is missing.
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
