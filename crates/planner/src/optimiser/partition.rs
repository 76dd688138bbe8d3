//! Large sets of SLOs, solved in parts.
//!
//! A part of a few hundred SLOs is solved in about a second. It loses less than one server: what
//! does not fill a server there could have shared one with another part. The bound is that of the
//! whole: dual prices of one part are prices for all, and no solution costs less than the cheapest
//! recipes of all SLOs at them. The prices of several parts are tried, and the best bound is
//! reported.

use std::time::{Duration, Instant};

use super::{OptimiserError, Prices, Solution, solve_with_prices, whole};
use crate::demand::Demand;
use crate::packing;
use sluice_slo::placement::ServerShape;

/// SLOs of a part by default.
pub const PART: usize = 400;
/// Parts whose prices are tried for the bound.
const MOST_PRICES: usize = 4;

/// Solves in parts of at most `part` SLOs. Each gets its share of the remaining time.
///
/// # Errors
/// [`OptimiserError`].
pub(crate) fn solve_in_parts(
    demands: &[Demand],
    shape: &ServerShape,
    part: usize,
    limit: Duration,
) -> Result<Solution, OptimiserError> {
    let began = Instant::now();
    let parts = demands.len().div_ceil(part.max(1)).max(1);
    if parts == 1 {
        return super::solve(demands, shape, limit);
    }
    // Every part should be like the whole: SLOs are dealt out in order of size.
    let mut order: Vec<usize> = (0..demands.len()).collect();
    let rank = |i: &usize| demands[*i].target_pps / demands[*i].capacity_pps.last().copied().unwrap_or(1.0);
    order.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
    let mut all = Solution { patterns: Vec::new(), recipes: vec![Vec::new(); demands.len()], bound: 0, timed_out: false };
    let mut prices: Vec<Prices> = Vec::new();
    for k in 0..parts {
        let members: Vec<usize> = order.iter().copied().skip(k).step_by(parts).collect();
        let of_part: Vec<Demand> = members.iter().map(|i| demands[*i].clone()).collect();
        let share = limit.saturating_sub(began.elapsed()) / (parts - k) as u32;
        let (solution, of_prices) = solve_with_prices(&of_part, shape, share)?;
        all.patterns.extend(solution.patterns);
        for (i, recipe) in members.iter().zip(solution.recipes) {
            all.recipes[*i] = recipe;
        }
        all.timed_out |= solution.timed_out;
        prices.push(of_prices);
    }
    let bounds = prices.iter().take(MOST_PRICES).map(|prices| prices.bound(demands, shape));
    all.bound = whole(bounds.fold(0.0, f64::max)).min(all.servers());
    // Each part leaves a server half full, the greedy packing only one.
    let greedy = packing::pack(demands, shape).map_err(OptimiserError::Impossible)?;
    if greedy.patterns.len() < all.servers() {
        all = Solution { patterns: greedy.patterns, recipes: greedy.recipes, ..all };
        all.bound = all.bound.min(all.servers());
    }
    Ok(all)
}
