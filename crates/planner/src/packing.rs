//! Greedy packing: the optimiser's start, and the answer without a solver.
//!
//! # Approach
//! 1. *Recipes*: each SLO's cheapest, at one price of a way against a core for all. Bisection finds
//!    the price at which all instances together take the same part of cores and of ways: then
//!    neither is left over.
//! 2. *Servers*, one after the other: the instance that takes most of a server comes first, and
//!    dynamic programming over the remaining cores and ways finds those that fill the server best
//!    beside it. Of equally full servers the one with larger instances is taken, because small ones
//!    fit anywhere later.
//! 3. This is repeated for a few prices around the one found, and the fewest servers are taken.
//!
//! # Limits
//! A place in the shared class brings the class, whose ways are not counted in the price; recipes
//! are also tried with a price for them.

use crate::demand::{Demand, Recipe};
use crate::optimiser::pattern::{Pattern, Slot};
use sluice_slo::placement::{Remaining, ServerShape};

/// Bisection steps for a price.
const ROUNDS: u32 = 14;
/// Range of the price of all ways of a server, where its cores together cost 1.
const PRICES: (f64, f64) = (1.0 / 64.0, 64.0);
/// Factors tried around the price that was found.
const AROUND: [f64; 3] = [1.0, 0.85, 1.2];
/// Ways that a place in the shared class is priced as, in parts of the least class.
const PLACES: [f64; 2] = [0.0, 0.3];
/// Preference of large instances over full servers.
const LARGE: f64 = 0.02;

/// Demands packed on servers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Packed {
    /// The slots of each server: cores and ways.
    pub patterns: Vec<Pattern>,
    /// The recipe of each demand.
    pub recipes: Vec<Recipe>,
}

/// Packs demands on as many empty servers of one shape as required; memory is counted as cores.
///
/// # Errors
/// The name of an SLO that no number of empty servers keeps.
pub fn pack(demands: &[Demand], shape: &ServerShape) -> Result<Packed, String> {
    let mut best: Option<Packed> = None;
    for place in PLACES {
        let price = balanced(demands, shape, place)?;
        for around in AROUND {
            let recipes = recipes(demands, shape, price * around, place)?;
            let (cores, ways) = parts(demands, &recipes, shape);
            // No packing of these recipes can take fewer.
            let least = (cores.max(ways) - 1e-9).ceil() as usize;
            if best.as_ref().is_some_and(|best| best.patterns.len() <= least) {
                continue;
            }
            let patterns = fill(demands, &recipes, shape)?;
            if best.as_ref().is_none_or(|best| patterns.len() < best.patterns.len()) {
                best = Some(Packed { patterns, recipes });
            }
        }
    }
    Ok(best.unwrap_or_default())
}

/// Servers that all instances fill with their cores, and with their ways.
fn parts(demands: &[Demand], recipes: &[Recipe], shape: &ServerShape) -> (f64, f64) {
    let (mut cores, mut ways) = (0.0, 0.0);
    for (demand, recipe) in demands.iter().zip(recipes) {
        cores += recipe.len() as f64 * f64::from(demand.counted_cores);
        ways += recipe.iter().map(|size| f64::from(*size)).sum::<f64>();
    }
    (cores / f64::from(shape.cores), ways / f64::from(shape.ways()))
}

/// Price of each size: its part of a server's cores, plus `way` times its part of the ways. A place
/// in the shared class counts for `place` times the least ways of a class.
fn prices(demand: &Demand, shape: &ServerShape, way: f64, place: f64) -> Vec<f64> {
    let core = f64::from(demand.counted_cores) / f64::from(shape.cores);
    let ways = |size: u32| if size == 0 { place * f64::from(shape.min_ways) } else { f64::from(size.max(shape.min_ways)) };
    (0..=shape.ways()).map(|size| core + way * ways(size) / f64::from(shape.ways())).collect()
}

/// The cheapest recipe of each demand, checked to fit an empty server.
fn recipes(demands: &[Demand], shape: &ServerShape, way: f64, place: f64) -> Result<Vec<Recipe>, String> {
    let cheapest = |demand: &Demand| {
        let (_, recipe) = demand.cheapest(&prices(demand, shape, way, place));
        let fits = |size: &u32| Remaining::of(shape).less(demand.counted_cores, *size, 0).is_some();
        (demand.is_enough(&recipe) && recipe.iter().all(fits)).then_some(recipe).ok_or_else(|| demand.slo.clone())
    };
    demands.iter().map(cheapest).collect()
}

/// The price at which cores and ways are filled alike.
fn balanced(demands: &[Demand], shape: &ServerShape, place: f64) -> Result<f64, String> {
    let (mut low, mut high) = PRICES;
    for _ in 0..ROUNDS {
        let middle = (low * high).sqrt();
        let (cores, ways) = parts(demands, &recipes(demands, shape, middle, place)?, shape);
        // The dearer ways are, the fewer are taken.
        if ways > cores { low = middle } else { high = middle }
    }
    Ok((low * high).sqrt())
}

/// Fills servers with the instances of these recipes.
fn fill(demands: &[Demand], recipes: &[Recipe], shape: &ServerShape) -> Result<Vec<Pattern>, String> {
    let mut left = Left::of(demands, recipes, shape);
    let mut patterns = Vec::new();
    while let Some(first) = left.largest() {
        let pattern = left.server(first);
        if pattern.is_empty() {
            // Recipes have only instances that fit an empty server.
            return Err(demands.first().map(|demand| demand.slo.clone()).unwrap_or_default());
        }
        patterns.push(pattern);
    }
    Ok(patterns)
}

/// Instances that have no server yet.
struct Left<'a> {
    shape: &'a ServerShape,
    /// What they take, and how many there are; those that take most of a server first.
    kinds: Vec<(Slot, usize)>,
    /// Most classes that are worth counting: 0 if there are enough for every core.
    classes: u32,
}

impl<'a> Left<'a> {
    fn of(demands: &[Demand], recipes: &[Recipe], shape: &'a ServerShape) -> Self {
        let mut counts = std::collections::BTreeMap::new();
        for (demand, recipe) in demands.iter().zip(recipes) {
            for size in recipe {
                *counts.entry((demand.counted_cores, *size)).or_insert(0) += 1;
            }
        }
        let mut kinds: Vec<(Slot, usize)> = counts.into_iter().collect();
        let part = |(cores, size): Slot| (f64::from(cores) / f64::from(shape.cores)).max(f64::from(size) / f64::from(shape.ways()));
        kinds.sort_by(|a, b| part(b.0).total_cmp(&part(a.0)).then(b.0.cmp(&a.0)));
        let classes = if shape.own_classes() > shape.cores { 0 } else { shape.own_classes() };
        Self { shape, kinds, classes }
    }

    fn largest(&self) -> Option<usize> {
        self.kinds.iter().position(|(_, count)| *count > 0)
    }

    /// Takes the next server's instances, one of them of kind `first`; returns its pattern.
    fn server(&mut self, first: usize) -> Pattern {
        let mut best: Option<(f64, Vec<usize>)> = None;
        for shared in [false, true] {
            let mut room = Remaining::of(self.shape);
            if shared {
                let Some((ways, classes)) = room.ways.checked_sub(self.shape.min_ways).zip(room.classes.checked_sub(1)) else {
                    continue;
                };
                room = Remaining { ways, classes, shared, ..room };
            }
            let (cores, size) = self.kinds[first].0;
            if size == 0 && !shared {
                continue;
            }
            let Some(room) = room.less(cores, size, 0) else { continue };
            self.kinds[first].1 -= 1;
            let (value, mut counts) = self.beside(&room);
            self.kinds[first].1 += 1;
            counts[first] += 1;
            if best.as_ref().is_none_or(|best| value > best.0 + 1e-9) {
                best = Some((value, counts));
            }
        }
        let mut pattern = Pattern::new();
        for (kind, n) in self.kinds.iter_mut().zip(best.map(|best| best.1).unwrap_or_default()) {
            kind.1 -= n;
            pattern.extend(std::iter::repeat_n(kind.0, n));
        }
        pattern.sort_unstable_by(|a, b| b.cmp(a));
        pattern
    }

    /// The best filling of a room: its worth, and how many of each kind.
    fn beside(&self, room: &Remaining) -> (f64, Vec<usize>) {
        let classes = if self.classes == 0 { 0 } else { room.classes };
        let (wide, deep) = (room.ways as usize + 1, classes as usize + 1);
        let at = |cores: u32, classes: u32, ways: u32| (cores as usize * deep + classes as usize) * wide + ways as usize;
        let states = (room.cores as usize + 1) * deep * wide;
        let mut worth = vec![0.0; states];
        // How many of each kind, in the best filling of each state with this kind and those before.
        let mut taken: Vec<Vec<u8>> = Vec::new();
        for ((cores, size), count) in &self.kinds {
            let (takes_ways, takes_class) = match size {
                0 => (0, 0),
                size => ((*size).max(self.shape.min_ways), u32::from(self.classes > 0)),
            };
            let most = if *size == 0 && !room.shared { 0 } else { (*count).min((room.cores / cores) as usize).min(255) as u32 };
            let of_one = self.worth(*cores, takes_ways);
            let mut next = worth.clone();
            let mut chosen = vec![0; if most == 0 { 0 } else { states }];
            if most > 0 {
                for c in *cores..=room.cores {
                    for k in takes_class..=classes {
                        for w in takes_ways..=room.ways {
                            let here = at(c, k, w);
                            for n in 1..=most {
                                let Some(((c, k), w)) =
                                    c.checked_sub(n * cores).zip(k.checked_sub(n * takes_class)).zip(w.checked_sub(n * takes_ways))
                                else {
                                    break;
                                };
                                let value = worth[at(c, k, w)] + f64::from(n) * of_one;
                                if value > next[here] + 1e-12 {
                                    (next[here], chosen[here]) = (value, n as u8);
                                }
                            }
                        }
                    }
                }
            }
            worth = next;
            taken.push(chosen);
        }
        let (mut c, mut k, mut w) = (room.cores, classes, room.ways);
        let value = worth[at(c, k, w)];
        let mut counts = vec![0; self.kinds.len()];
        for (i, ((cores, size), _)) in self.kinds.iter().enumerate().rev() {
            let n = u32::from(taken[i].get(at(c, k, w)).copied().unwrap_or(0));
            let takes_ways = if *size == 0 { 0 } else { (*size).max(self.shape.min_ways) };
            counts[i] = n as usize;
            c -= n * cores;
            w -= n * takes_ways;
            k -= n * if *size == 0 { 0 } else { u32::from(self.classes > 0) };
        }
        (value, counts)
    }

    fn worth(&self, cores: u32, ways: u32) -> f64 {
        let (cores, ways) = (f64::from(cores) / f64::from(self.shape.cores), f64::from(ways) / f64::from(self.shape.ways()));
        cores + ways + LARGE * (cores * cores + ways * ways)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::demand::tests::demand;
    use crate::samples::{Mix, SloTerms, server, set};
    use sluice_slo::examples::shape;

    fn assert_holds(packed: &Packed, demands: &[Demand], shape: &ServerShape) {
        for (demand, recipe) in demands.iter().zip(&packed.recipes) {
            assert!(demand.is_enough(recipe), "{}: {recipe:?}", demand.slo);
        }
        let mut wanted: Vec<Slot> =
            demands.iter().zip(&packed.recipes).flat_map(|(d, r)| r.iter().map(|size| (d.counted_cores, *size))).collect();
        let mut there: Vec<Slot> = packed.patterns.iter().flatten().copied().collect();
        wanted.sort_unstable();
        there.sort_unstable();
        assert_eq!(wanted, there);
        for pattern in &packed.patterns {
            let room = pattern.iter().try_fold(Remaining::of(shape), |room, (cores, ways)| room.less(*cores, *ways, 0));
            assert!(room.is_some(), "{pattern:?}");
        }
    }

    #[test]
    fn servers_are_nearly_full() {
        for mix in Mix::ALL {
            let shape = server();
            let demands = set(mix, SloTerms::FairShare, 100, 5, &shape).unwrap().demands(&shape).unwrap();
            let packed = pack(&demands, &shape).unwrap();
            assert_holds(&packed, &demands, &shape);
            let (cores, ways) = parts(&demands, &packed.recipes, &shape);
            assert!(packed.patterns.len() as f64 <= 1.1 * cores.max(ways) + 1.0, "{} {cores} {ways}", packed.patterns.len());
        }
    }

    #[test]
    fn what_fits_nowhere_is_named() {
        assert_eq!(pack(&[demand("large", 1.0, 10, &[1.0; 19])], &shape()), Err("large".into()));
        assert_eq!(pack(&[], &shape()), Ok(Packed::default()));
    }

    proptest! {
        /// On any servers, the packing fits and suffices.
        #[test]
        fn what_is_packed_fits(
            targets in prop::collection::vec((0.4..2.4f64, 0usize..3, 1u32..4), 0..12),
            classes in 2u32..6,
            min_ways in 1u32..3,
        ) {
            let curves = [[0.0, 0.4, 0.9, 1.5, 1.9, 2.2], [0.8, 0.9, 1.0, 1.0, 1.0, 1.0], [0.0, 0.2, 0.3, 0.5, 1.0, 2.0]];
            let shape = ServerShape { cores: 3, llc_ways: 6, ddio_ways: 1, classes, min_ways, ..shape() };
            let demands: Vec<Demand> = targets.iter().enumerate().map(|(i, (target, curve, cores))| {
                let mut capacity = curves[*curve];
                for ways in 1..min_ways as usize {
                    capacity[ways] = capacity[0];
                }
                demand(&format!("s{i}"), *target, *cores, &capacity)
            }).collect();
            assert_holds(&pack(&demands, &shape).unwrap(), &demands, &shape);
        }
    }
}
