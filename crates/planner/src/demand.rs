//! An SLO in the planner's terms: instance capacities and sufficient recipes.
//!
//! # Terms
//! *Size*: the ways of an instance; 0 is a place in the shared class. *Recipe*: the sizes of all
//! instances of an SLO, largest first. It is sufficient if together they carry the SLO's
//! throughput, which is divided among them by what each carries. *Price*: the cost of a size in any
//! unit of the caller; it never falls with the size.
//!
//! # Limits
//! [`Demand::cheapest`] is exact unless its search takes more than `STEPS` steps; it returns a
//! lower bound of the price either way.

use sluice_slo::on_demand::Footprint;
use sluice_slo::placement::ServerShape;
use sluice_slo::profile::{Profile, Source};
use sluice_slo::slo::{MOST_INSTANCES, Promise, Slo, SloError};

/// Most steps of a search for a recipe.
const STEPS: u32 = 50_000;
/// Packets per second are equal if they differ by less than this part.
const EPSILON: f64 = 1e-9;

/// Sizes of all instances of an SLO, largest first.
pub type Recipe = Vec<u32>;

/// What an SLO needs on servers of one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    pub slo: String,
    /// Packets per second; 0 on demand, which takes one place in the shared class.
    pub target_pps: f64,
    pub cores: u32,
    pub memory_mib: u64,
    /// Cores that an instance counts for, its memory considered.
    pub counted_cores: u32,
    /// What an instance of each size carries within the SLO's latency. A size that no class may
    /// have carries what a smaller one does.
    pub capacity_pps: Vec<f64>,
    /// Sizes that carry more than all smaller ones.
    pub sizes: Vec<u32>,
}

/// Why no number of instances suffices on servers of this shape.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DemandError {
    #[error(transparent)]
    Slo(#[from] SloError),
    #[error(
        "no load is low enough for {asked_us:.1} µs: the shortest that its profile and the server's path_us allow is {least_us:.1} µs"
    )]
    Latency { asked_us: f64, least_us: f64 },
    /// No server gives an instance as many ways as the least that was measured.
    #[error(
        "its profile says what an instance carries with {measured} ways of the cache and more, and on a server {of_ways} are for NFs: profile \
         with fewer ways (sluice profile --cache resctrl, or simulated)"
    )]
    Ways {
        /// The fewest ways with which an instance carries anything.
        measured: f64,
        /// The most that a server gives.
        of_ways: u32,
    },
    #[error(
        "its profile was made without cache control, so it says what an instance carries with the whole cache only, and on a server \
         {of_ways} of {llc_ways} ways are for NFs: profile with fewer ways (sluice profile --cache resctrl, or simulated){}",
        if *measured <= f64::from(*llc_ways) { ", or give an instance all of them (ddio_ways = 0)" } else { "" }
    )]
    WholeCache {
        /// The ways with which it was measured; [`sluice_slo::placement::MOST_WAYS`] if the
        /// cache's number of ways was unknown.
        measured: f64,
        /// The most that a server gives.
        of_ways: u32,
        llc_ways: u32,
    },
    #[error(
        "an instance takes {cores} cores and {memory_mib} MiB, and a server has {of_cores} cores and {of_memory_mib} MiB for NFs"
    )]
    Server { cores: u32, memory_mib: u64, of_cores: u32, of_memory_mib: u64 },
    #[error(
        "{asked_pps:.0} packets/s take {instances} instances of {most_pps:.0} packets/s, more than {MOST_INSTANCES}: split the SLO"
    )]
    Instances { asked_pps: f64, most_pps: f64, instances: usize },
}

/// The cores that an instance counts for on a server of this shape.
fn counted(cores: u32, memory_mib: u64, shape: &ServerShape) -> Result<u32, DemandError> {
    let counted = shape.cores_with_memory(cores, memory_mib);
    let (of_cores, of_memory_mib) = (shape.cores, shape.memory_mib);
    if counted > of_cores { Err(DemandError::Server { cores, memory_mib, of_cores, of_memory_mib }) } else { Ok(counted) }
}

impl Demand {
    /// What an SLO needs by its profile.
    ///
    /// # Errors
    /// [`DemandError`].
    pub fn of(slo: &Slo, profile: &Profile, shape: &ServerShape) -> Result<Self, DemandError> {
        slo.check()?;
        let counted_cores = counted(profile.cores, profile.memory_mib, shape)?;
        // What is left for the NFs.
        let path_us = f64::from(shape.path_us);
        let latency_us = (slo.promise.latency_us() - path_us).max(0.0);
        let mut best = 0.0;
        let capacity_pps: Vec<f64> = (0..=shape.ways())
            .map(|ways| {
                if ways == 0 || ways >= shape.min_ways {
                    best = profile.capacity_pps(ways, latency_us).max(best);
                }
                best
            })
            .collect();
        let target_pps = match slo.promise {
            Promise::Reserved { throughput_pps, .. } => throughput_pps,
            Promise::OnDemand { .. } => 0.0,
        };
        let of_ways = shape.ways();
        if profile.shared_pps() <= 0.0 && profile.throughput_pps(of_ways) <= 0.0 {
            let carries = profile.throughput.points.iter().find(|point| point.y > 0.0);
            let measured = carries.map_or(f64::INFINITY, |point| point.x);
            return Err(match profile.source {
                Source::None => DemandError::WholeCache { measured, of_ways, llc_ways: shape.llc_ways },
                Source::Measured | Source::Simulated => DemandError::Ways { measured, of_ways },
            });
        }
        // On demand, the agent finds the cache; a latency that no load keeps, it cannot keep
        // either.
        if best <= 0.0 {
            let least_us = profile.least_latency_us(of_ways) + path_us;
            return Err(DemandError::Latency { asked_us: slo.promise.latency_us(), least_us });
        }
        let instances = (target_pps / best).ceil() as usize;
        if instances > MOST_INSTANCES {
            return Err(DemandError::Instances { asked_pps: target_pps, most_pps: best, instances });
        }
        let sizes = (0..=shape.ways())
            .filter(|&size| {
                let carries = capacity_pps[size as usize];
                carries > 0.0 && (size == 0 || carries > capacity_pps[size as usize - 1] * (1.0 + EPSILON))
            })
            .collect();
        let (cores, memory_mib) = (profile.cores, profile.memory_mib);
        Ok(Self { slo: slo.name.clone(), target_pps, cores, memory_mib, counted_cores, capacity_pps, sizes })
    }

    /// What an SLO on demand without a profile needs: a place in the shared class, for an instance
    /// with this footprint.
    ///
    /// # Errors
    /// [`DemandError::Slo`] and [`DemandError::Server`].
    pub fn unmeasured(slo: &Slo, footprint: Footprint, shape: &ServerShape) -> Result<Self, DemandError> {
        slo.check()?;
        let Footprint { cores, memory_mib } = footprint;
        let counted_cores = counted(cores, memory_mib, shape)?;
        let capacity_pps = vec![0.0; shape.ways() as usize + 1];
        Ok(Self { slo: slo.name.clone(), target_pps: 0.0, cores, memory_mib, counted_cores, capacity_pps, sizes: vec![0] })
    }

    /// The target, less what rounding may take.
    fn enough(&self) -> f64 {
        self.target_pps * (1.0 - EPSILON)
    }

    pub(crate) fn is_enough(&self, recipe: &[u32]) -> bool {
        let sum: f64 = recipe.iter().map(|size| self.capacity_pps[*size as usize]).sum();
        !recipe.is_empty() && sum >= self.enough()
    }

    /// The recipe of the paper: as many instances with `fair` ways each as required, then one more
    /// way for each in turn until the sum suffices. `instances` overrides their number. None if
    /// that many do not suffice.
    pub fn in_turn(&self, fair: u32, instances: Option<usize>) -> Option<Recipe> {
        if self.target_pps <= 0.0 {
            return Some(vec![0]);
        }
        let (&least, &most) = (self.sizes.first()?, self.sizes.last()?);
        let fair_pps = self.capacity_pps[(fair as usize).min(self.capacity_pps.len() - 1)];
        let n = instances.unwrap_or_else(|| {
            let each = if fair_pps > 0.0 { fair_pps } else { self.capacity_pps[most as usize] };
            (self.enough() / each).ceil().max(1.0) as usize
        });
        if n == 0 || n > MOST_INSTANCES {
            return None;
        }
        let mut recipe = vec![least; n];
        let mut turn = 0;
        while !self.is_enough(&recipe) {
            if recipe.iter().all(|size| *size >= most) {
                return None;
            }
            // The next size that carries more.
            let size = &mut recipe[turn % n];
            *size = self.sizes.iter().copied().find(|next| next > size).unwrap_or(*size);
            turn += 1;
        }
        self.shrink(&mut recipe);
        Some(recipe)
    }

    /// Removes what a recipe does not need, smallest instances first, and sorts it.
    fn shrink(&self, recipe: &mut Recipe) {
        recipe.sort_unstable_by(|a, b| b.cmp(a));
        for i in (0..recipe.len()).rev() {
            while let Some(&smaller) = self.sizes.iter().rev().find(|size| **size < recipe[i]) {
                let was = std::mem::replace(&mut recipe[i], smaller);
                if !self.is_enough(recipe) {
                    recipe[i] = was;
                    break;
                }
            }
        }
        recipe.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// The recipe of least price, and a lower bound of the price. `price` has one entry for each
    /// size from 0 to all ways, and never falls.
    pub fn cheapest(&self, price: &[f64]) -> (f64, Recipe) {
        if self.target_pps <= 0.0 {
            return (price[0], vec![0]);
        }
        let mut search = Search::new(self, price);
        search.go(0, self.enough(), 0.0);
        let bound = if search.steps > 0 { search.best } else { search.at_least.min(search.best) };
        (bound, search.recipe())
    }

    /// Minimal recipes up to a price, at most `most` of them, and whether these are all. Minimal:
    /// no instance can be smaller or left out.
    pub fn up_to(&self, price: &[f64], highest: f64, most: usize) -> (Vec<Recipe>, bool) {
        if self.target_pps <= 0.0 {
            return (vec![vec![0]], true);
        }
        let mut all = Vec::new();
        let mut recipe = Vec::new();
        let mut steps = STEPS;
        let ratio = self.ratios(price);
        let mut walk = Walk { demand: self, price, ratio: &ratio, highest, most, steps: &mut steps, all: &mut all };
        let complete = walk.go(self.sizes.len(), self.enough(), 0.0, &mut recipe);
        (all, complete)
    }

    /// Least price per packet per second among the smallest `k` sizes, as `ratio[k]`.
    fn ratios(&self, price: &[f64]) -> Vec<f64> {
        let mut ratio = vec![f64::INFINITY];
        for &size in &self.sizes {
            let own = price[size as usize] / self.capacity_pps[size as usize];
            ratio.push(ratio.last().copied().unwrap_or(f64::INFINITY).min(own));
        }
        ratio
    }
}

/// A search for the cheapest recipe: sizes by rising price per packet per second, with as many as
/// possible of each first.
struct Search<'a> {
    demand: &'a Demand,
    price: &'a [f64],
    order: Vec<u32>,
    counts: Vec<usize>,
    best: f64,
    best_counts: Vec<usize>,
    at_least: f64,
    steps: u32,
}

impl<'a> Search<'a> {
    fn new(demand: &'a Demand, price: &'a [f64]) -> Self {
        let ratio = |size: u32| price[size as usize] / demand.capacity_pps[size as usize];
        let mut order = demand.sizes.clone();
        // Of two with the same ratio, the larger leaves fewer instances.
        order.sort_by(|a, b| ratio(*a).total_cmp(&ratio(*b)).then(b.cmp(a)));
        let at_least = order.first().map_or(f64::INFINITY, |size| ratio(*size) * demand.enough());
        let counts = vec![0; order.len()];
        Self { demand, price, best_counts: counts.clone(), order, counts, best: f64::INFINITY, at_least, steps: STEPS }
    }

    fn go(&mut self, k: usize, missing: f64, price: f64) {
        if missing <= 0.0 {
            if price < self.best {
                self.best = price;
                self.best_counts.clone_from(&self.counts);
            }
            return;
        }
        let Some(&size) = self.order.get(k) else { return };
        let (carries, costs) = (self.demand.capacity_pps[size as usize], self.price[size as usize]);
        if self.steps == 0 || price + missing * costs / carries >= self.best * (1.0 - 1e-12) {
            return;
        }
        self.steps -= 1;
        for n in (0..=(missing / carries).ceil() as usize).rev() {
            self.counts[k] = n;
            self.go(k + 1, missing - n as f64 * carries, price + n as f64 * costs);
        }
        self.counts[k] = 0;
    }

    fn recipe(&self) -> Recipe {
        let repeated = |(size, n): (&u32, &usize)| vec![*size; *n];
        let mut recipe: Recipe = self.order.iter().zip(&self.best_counts).flat_map(repeated).collect();
        recipe.sort_unstable_by(|a, b| b.cmp(a));
        recipe
    }
}

/// A walk over all recipes up to a price, largest sizes first.
struct Walk<'a> {
    demand: &'a Demand,
    price: &'a [f64],
    ratio: &'a [f64],
    highest: f64,
    most: usize,
    steps: &'a mut u32,
    all: &'a mut Vec<Recipe>,
}

impl Walk<'_> {
    /// Adds instances of one of the smallest `k` sizes; false if there are too many recipes.
    fn go(&mut self, k: usize, missing: f64, price: f64, recipe: &mut Recipe) -> bool {
        if missing <= 0.0 {
            if self.is_minimal(recipe) {
                self.all.push(recipe.clone());
            }
            return self.all.len() <= self.most;
        }
        if *self.steps == 0 {
            return false;
        }
        *self.steps -= 1;
        for i in (0..k).rev() {
            if recipe.len() >= MOST_INSTANCES || price + missing * self.ratio[i + 1] > self.highest {
                break;
            }
            let size = self.demand.sizes[i] as usize;
            let costs = price + self.price[size];
            if costs > self.highest {
                continue;
            }
            recipe.push(size as u32);
            let go_on = self.go(i + 1, missing - self.demand.capacity_pps[size], costs, recipe);
            recipe.pop();
            if !go_on {
                return false;
            }
        }
        true
    }

    /// Whether no instance could be smaller.
    fn is_minimal(&self, recipe: &Recipe) -> bool {
        let sum: f64 = recipe.iter().map(|size| self.demand.capacity_pps[*size as usize]).sum();
        recipe.iter().all(|&size| {
            let k = self.demand.sizes.partition_point(|s| *s < size);
            let smaller = k.checked_sub(1).map_or(0.0, |k| self.demand.capacity_pps[self.demand.sizes[k] as usize]);
            sum - self.demand.capacity_pps[size as usize] + smaller < self.demand.enough()
        })
    }
}

/// Also used by tests of other modules.
#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use sluice_slo::examples::shape;
    use sluice_slo::examples::{profile, slo, whole};

    pub fn demand(name: &str, target_pps: f64, cores: u32, capacity_pps: &[f64]) -> Demand {
        let sizes = (0..capacity_pps.len() as u32)
            .filter(|&i| capacity_pps[i as usize] > if i == 0 { 0.0 } else { capacity_pps[i as usize - 1] })
            .collect();
        let capacity_pps = capacity_pps.to_vec();
        Demand { slo: name.into(), target_pps, cores, memory_mib: 1, counted_cores: cores, capacity_pps, sizes }
    }

    #[test]
    fn an_slo_and_a_profile_are_a_demand() {
        let demand = Demand::of(&slo(3e6, 1000.0), &profile(), &shape()).unwrap();
        assert_eq!(demand.capacity_pps.len(), 19);
        assert_eq!(demand.sizes, (0..=10).collect::<Vec<_>>(), "11 ways carry no more than 10");
        assert!(demand.is_enough(&[4]) && !demand.is_enough(&[3]) && demand.is_enough(&[2, 2]));
    }

    #[test]
    fn the_shortest_latency_of_a_chain_counts_each_nf_as_it_is_slowed() {
        use sluice_slo::examples::curve;
        let stage = |us: f64, speed: f64| sluice_slo::stage::Stage {
            latency: curve(&[(1e5, us), (5e6, 10.0 * us)]),
            speed: curve(&[(0.0, speed), (20.0, speed)]),
        };
        let chain = Profile { cores: 2, stages: vec![stage(10.0, 1.0), stage(4.0, 0.25)], ..profile() };
        chain.check().unwrap();
        let error = Demand::of(&slo(1e5, 20.0), &chain, &shape()).unwrap_err();
        let DemandError::Latency { least_us, .. } = error else { panic!("{error}") };
        assert!((least_us - 26.0 * (1.0 + chain.latency.margin)).abs() < 1e-9, "{least_us}");
    }

    #[test]
    fn nfs_have_what_the_path_leaves_of_the_latency() {
        let (short, long) = (shape(), ServerShape { path_us: 30, ..shape() });
        let of = |latency_us, shape| Demand::of(&slo(1e6, latency_us), &profile(), shape);
        assert_eq!(of(45.0, &long).unwrap().capacity_pps, of(15.0, &short).unwrap().capacity_pps);
        assert_ne!(of(45.0, &long).unwrap().capacity_pps, of(45.0, &short).unwrap().capacity_pps);
        let said = [39.0, 10.0].map(|latency_us| of(latency_us, &long).unwrap_err().to_string());
        assert!(said.iter().all(|said| said.contains("allow is 40.0 µs")), "{said:?}");
    }

    #[test]
    fn what_cannot_be_is_said() {
        let said = |slo: &Slo, profile: &Profile| Demand::of(slo, profile, &shape()).unwrap_err().to_string();
        assert!(
            said(&slo(1e6, 5.0), &profile()).contains("the shortest that its profile and the server's path_us allow is 10.0 µs")
        );
        assert!(said(&slo(1e10, 1000.0), &profile()).contains("more than 256"));
        assert!(said(&slo(-1.0, 1000.0), &profile()).contains("above 0"));
        let large = Profile { cores: 10, ..profile() };
        assert!(said(&slo(1e6, 1000.0), &large).contains("takes 10 cores"));
        let fat = Profile { memory_mib: 1 << 20, ..profile() };
        assert!(said(&slo(1e6, 1000.0), &fat).contains("1048576 MiB"));
    }

    #[test]
    fn a_profile_of_the_whole_cache_takes_all_of_it() {
        // Two of the twenty ways are DDIO's.
        let said = |profile: &Profile| Demand::of(&slo(1e6, 1000.0), profile, &shape()).unwrap_err().to_string();
        let two = said(&whole());
        assert!(
            two.contains("with the whole cache only") && two.contains("18 of 20 ways") && two.contains("ddio_ways = 0"),
            "{two}"
        );
        // The number of ways it was made with is unknown: 64, to be safe.
        let mut unknown = whole();
        (unknown.throughput.points[0].x, unknown.best_ways) = (64.0, 64);
        let unknown = said(&unknown);
        assert!(!unknown.contains("64") && !unknown.contains("ddio_ways = 0"), "{unknown}");
        let mut measured = whole();
        measured.source = Source::Measured;
        assert!(said(&measured).contains("with 20 ways of the cache and more"));
        let without = ServerShape { ddio_ways: 0, ..shape() };
        let demand = Demand::of(&slo(12e6, 1000.0), &whole(), &without).unwrap();
        assert_eq!((demand.sizes.as_slice(), demand.in_turn(2, None)), (&[20][..], Some(vec![20, 20])));
    }

    #[test]
    fn ways_are_added_in_turn() {
        let demand = Demand::of(&slo(5e6, 1000.0), &profile(), &shape()).unwrap();
        // Two ways carry 1.8 million: three instances, and 5.56 ways between them.
        assert_eq!(demand.in_turn(2, None), Some(vec![2, 2, 2]));
        assert_eq!(demand.in_turn(2, Some(2)), Some(vec![3, 3]));
        assert_eq!(demand.in_turn(2, Some(1)), Some(vec![6]));
        assert_eq!(Demand::of(&slo(10e6, 1000.0), &profile(), &shape()).unwrap().in_turn(2, Some(1)), None);
    }

    #[test]
    fn on_demand_takes_one_place_of_the_shared_class() {
        let cap = sluice_slo::slo::Cap { instances: Some(1), load_pps: None };
        let on_demand = Slo { promise: Promise::OnDemand { latency_us: 1000.0, cap }, ..slo(1.0, 1.0) };
        let demand = Demand::of(&on_demand, &profile(), &shape()).unwrap();
        assert_eq!(demand.cheapest(&[1.0; 19]), (1.0, vec![0]));
        assert_eq!(demand.in_turn(2, None), Some(vec![0]));
    }

    proptest! {
        /// The cheapest recipe is the cheapest of all, and all are sufficient and minimal.
        #[test]
        fn the_cheapest_is_cheapest(
            gains in prop::collection::vec(0.0..3.0f64, 7),
            rises in prop::collection::vec(0.0..1.0f64, 7),
            target in 1.0..12.0f64,
        ) {
            let sums = |steps: &[f64], from: f64| -> Vec<f64> {
                steps.iter().scan(from, |sum, step| { *sum += step; Some(*sum) }).collect()
            };
            let capacity = sums(&gains, 0.3);
            let price = sums(&rises, 0.1);
            let demand = demand("a", target, 1, &capacity);
            let (cost, recipe) = demand.cheapest(&price);
            let cost_of = |recipe: &Recipe| recipe.iter().map(|size| price[*size as usize]).sum::<f64>();
            prop_assert!(demand.is_enough(&recipe));
            prop_assert!((cost_of(&recipe) - cost).abs() < 1e-9);
            if let (all, true) = demand.up_to(&price, cost * 1.5, 100_000) {
                prop_assert!(all.iter().all(|recipe| demand.is_enough(recipe)));
                let least = all.iter().map(cost_of).fold(f64::INFINITY, f64::min);
                prop_assert!((least - cost).abs() < 1e-9, "{least} {cost} {recipe:?}");
            }
        }
    }
}
