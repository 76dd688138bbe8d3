//! Experiments: a set of SLOs placed in every way, and the optimiser on any set.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::admission::{self, Refusal};
use crate::baseline::{Asked, CachePolicy, Floor, Put, agnostic, elastic, predicted, violations};
use crate::demand::{Demand, Recipe};
use crate::optimiser::partition::{PART, solve_in_parts};
use crate::optimiser::{IS_BUILT, OptimiserError, assign, solve};
use crate::packing;
use crate::samples::{Mix, OnServer, Set, SloTerms, set};
use sluice_slo::placement::{Instance, Placement, ServerShape};
use sluice_slo::profile::Profile;
use sluice_slo::slo::Slo;

/// The result of one way of placing.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    pub name: &'static str,
    pub servers: usize,
    /// SLOs that get less than they were promised.
    pub violations: usize,
    pub solve_s: f64,
    /// Lower bound on the servers of any placement with classes; none if not computed.
    pub bound: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error("the set of SLOs cannot be made: {0}")]
    Set(String),
    #[error(transparent)]
    Optimiser(#[from] OptimiserError),
    #[error("{0}")]
    Refused(String),
}

/// Random SLOs and their demands.
///
/// # Errors
/// [`CompareError::Set`].
pub fn demands(mix: Mix, terms: SloTerms, slos: usize, seed: u64, shape: &ServerShape) -> Result<(Set, Vec<Demand>), CompareError> {
    let set = set(mix, terms, slos, seed, shape).map_err(|e| CompareError::Set(e.to_string()))?;
    let demands = set.demands(shape).map_err(|e| CompareError::Set(e.to_string()))?;
    Ok((set, demands))
}

/// The instances of these recipes, as servers for the model of contention. With classes, neighbours
/// have no effect, except in the shared class, where no cache is promised.
fn with_classes(demands: &[Demand], recipes: &[Recipe]) -> Floor {
    let instances = demands.iter().zip(recipes).enumerate().flat_map(|(slo, (demand, recipe))| {
        let carries = |size: &u32| demand.capacity_pps[*size as usize];
        let sum: f64 = recipe.iter().map(carries).sum();
        recipe.iter().map(move |size| vec![Put { slo, load_pps: demand.target_pps * carries(size) / sum, ways: Some(*size) }])
    });
    instances.collect()
}

pub(crate) fn with_profiles(set: &Set) -> Vec<(&Slo, &Profile)> {
    set.samples.iter().map(|sample| (&sample.slo, &set.profiles[sample.profile])).collect()
}

/// How the NF of each SLO really behaves.
pub(crate) fn truths(set: &Set, shape: &ServerShape) -> Vec<OnServer<'static>> {
    set.samples.iter().map(|sample| OnServer { kind: sample.kind, way_bytes: shape.way_bytes }).collect()
}

/// What the other ways of placing know of each SLO.
pub(crate) fn asked<'a>(set: &'a Set, demands: &[Demand], truths: &'a [OnServer<'static>]) -> Vec<Asked<'a>> {
    let with_truth = set.samples.iter().zip(demands).zip(truths);
    with_truth
        .map(|((sample, demand), truth)| Asked {
            demand: demand.clone(),
            latency_us: sample.slo.promise.latency_us(),
            profile: &set.profiles[sample.profile],
            truth,
        })
        .collect()
}

/// An SLO that should have been admitted.
pub(crate) fn refused(slo: &Slo, refusal: &Refusal) -> CompareError {
    CompareError::Refused(format!("\"{}\" is not admitted: {refusal}", slo.name))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Arrival,
    /// Those that take most first: all must be known beforehand.
    Sorted,
}

/// Admits all SLOs, each where it fits, without moving any; on at most `servers` servers.
fn admitted(slos: &[(&Slo, &Profile)], order: Order, servers: usize, shape: &ServerShape) -> Result<Placement, CompareError> {
    let mut placement = Placement::empty(servers, shape);
    let results = match order {
        Order::Arrival => slos.iter().map(|(slo, profile)| admission::admit(&mut placement, slo, profile)).collect(),
        Order::Sorted => admission::admit_all(&mut placement, slos),
    };
    for (result, (slo, _)) in results.into_iter().zip(slos) {
        result.map_err(|refusal| refused(slo, &refusal))?;
    }
    placement.check().map_err(|e| CompareError::Refused(e.to_string()))?;
    Ok(placement)
}

/// The servers of a placement that are in use, for the model of contention.
pub(crate) fn in_use(placement: &Placement, slos: &[(&Slo, &Profile)]) -> Floor {
    let places: BTreeMap<&str, usize> = slos.iter().enumerate().map(|(i, (slo, _))| (slo.name.as_str(), i)).collect();
    let put = |instance: &Instance| {
        let slo = *places.get(instance.slo.as_str())?;
        Some(Put { slo, load_pps: instance.load_pps, ways: Some(instance.ways) })
    };
    let used = placement.servers.iter().filter(|server| !server.instances.is_empty());
    used.map(|server| server.instances.iter().filter_map(put).collect()).collect()
}

/// Places a set of SLOs in every way and evaluates the results. *Admission* is what tenants
/// experience: one SLO after the other as they come, and no instance moves. *Admission/sorted*
/// knows all SLOs beforehand and takes the largest first. *Greedy* packs all at once. The optimum
/// comes last; it is left out with a `limit` of 0, and by a build without a solver ([`IS_BUILT`]).
///
/// # Errors
/// [`CompareError`].
pub fn placement(
    mix: Mix,
    terms: SloTerms,
    slos: usize,
    seed: u64,
    shape: &ServerShape,
    limit: Duration,
) -> Result<Vec<Tried>, CompareError> {
    let (set, demands) = demands(mix, terms, slos, seed, shape)?;
    let truths = truths(&set, shape);
    let asked = asked(&set, &demands, &truths);
    let mut outcomes = Vec::new();
    let mut add = |name, cache, f: &mut dyn FnMut() -> Result<(Floor, usize, Option<usize>), CompareError>| {
        let began = Instant::now();
        let (floor, servers, bound) = f()?;
        let solve_s = began.elapsed().as_secs_f64();
        let violations = violations(&floor, &asked, shape, cache).len();
        outcomes.push(Tried { name, servers, violations, solve_s, bound });
        Ok::<(), CompareError>(())
    };
    let plain = |floor: Floor| {
        let servers = floor.len();
        Ok((floor, servers, None))
    };
    add("agnostic", CachePolicy::Shared, &mut || plain(agnostic(&asked, shape)))?;
    add("agnostic/even", CachePolicy::Even, &mut || plain(agnostic(&asked, shape)))?;
    add("elastic", CachePolicy::Shared, &mut || plain(elastic(&asked, shape)))?;
    add("prediction", CachePolicy::Shared, &mut || plain(predicted(&asked, shape)))?;
    for (name, order) in [("admission", Order::Arrival), ("admission/sorted", Order::Sorted)] {
        add(name, CachePolicy::Classes, &mut || {
            let slos = with_profiles(&set);
            let placed = admitted(&slos, order, slos.len(), shape)?;
            Ok((in_use(&placed, &slos), placed.used(), None))
        })?;
    }
    add("greedy", CachePolicy::Classes, &mut || {
        let packed = packing::pack(&demands, shape).map_err(CompareError::Refused)?;
        Ok((with_classes(&demands, &packed.recipes), packed.patterns.len(), None))
    })?;
    if !IS_BUILT || limit.is_zero() {
        return Ok(outcomes);
    }
    add("optimum", CachePolicy::Classes, &mut || {
        let solution = solve(&demands, shape, limit)?;
        let placed = assign::assign(&solution, &demands, shape, &Placement::empty(solution.servers(), shape))?;
        Ok((with_classes(&demands, &solution.recipes), placed.used(), Some(solution.bound)))
    })?;
    Ok(outcomes)
}

/// A run of the optimiser on a set.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimiserRun {
    pub servers: usize,
    pub bound: usize,
    /// Servers of the greedy packing.
    pub greedy: usize,
    pub solve_s: f64,
    /// Time of the greedy packing, in seconds.
    pub greedy_s: f64,
}

/// Runs the optimiser on a set with [`SloTerms::FairShare`], whole or (above a size) in parts.
///
/// # Errors
/// [`CompareError`].
pub fn optimum(
    mix: Mix,
    slos: usize,
    in_parts: bool,
    seed: u64,
    shape: &ServerShape,
    limit: Duration,
) -> Result<OptimiserRun, CompareError> {
    let (_, demands) = demands(mix, SloTerms::FairShare, slos, seed, shape)?;
    let began = Instant::now();
    let greedy = packing::pack(&demands, shape).map_err(CompareError::Refused)?.patterns.len();
    let greedy_s = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let part = if in_parts { PART } else { usize::MAX };
    let solution = solve_in_parts(&demands, shape, part, limit)?;
    let solve_s = began.elapsed().as_secs_f64();
    // A solution must have a placement.
    assign::assign(&solution, &demands, shape, &Placement::empty(solution.servers(), shape))?;
    Ok(OptimiserRun { servers: solution.servers(), bound: solution.bound, greedy, solve_s, greedy_s })
}

/// Admission time in seconds of each of `tries` SLOs, beside `slos` others, on two more servers
/// than those take. The last tries are refused, and the search for an offer is timed too.
///
/// # Errors
/// [`CompareError`], also if not all of the others are admitted.
pub fn admission_s(mix: Mix, slos: usize, tries: usize, seed: u64, shape: &ServerShape) -> Result<Vec<f64>, CompareError> {
    let (set, demands) = demands(mix, SloTerms::FairShare, slos + tries, seed, shape)?;
    let servers = packing::pack(&demands[..slos], shape).map_err(CompareError::Refused)?.patterns.len();
    let all = with_profiles(&set);
    // Admission needs more servers than packing; the unused ones are removed.
    let mut placement = admitted(&all[..slos], Order::Sorted, servers * 3 / 2 + 8, shape)?;
    let mut empty = 0;
    placement.servers.retain(|server| {
        empty += usize::from(server.instances.is_empty());
        !server.instances.is_empty() || empty <= 2
    });
    let mut times = Vec::new();
    for (slo, profile) in &all[slos..] {
        let began = Instant::now();
        let _ = admission::admit(&mut placement, slo, profile);
        times.push(began.elapsed().as_secs_f64());
    }
    placement.check().map_err(|e| CompareError::Refused(e.to_string()))?;
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::server;

    /// Expected results of `sluice bench placement`, on one set of each mix. No times, so they do
    /// not depend on the machine.
    #[test]
    fn prediction_takes_more_servers_and_greedy_and_admission_few_more_than_the_least() {
        for mix in Mix::ALL {
            let outcomes = placement(mix, SloTerms::FairShare, 200, 1, &server(), Duration::from_secs(600)).unwrap();
            let of = |name: &str| outcomes.iter().find(|one| one.name == name);
            let greedy = of("greedy").unwrap();
            for name in ["admission", "admission/sorted", "greedy", "optimum"] {
                assert!(of(name).is_none_or(|one| one.violations == 0), "{mix:?} {name}: {outcomes:#?}");
            }
            let least = of("optimum").map_or(greedy.servers, |one| one.servers);
            // Without moves, chains that need the cache and several cores leave more over; and many
            // of the traced NFs hardly need the cache.
            let (online, more) = match mix {
                Mix::TracedSensitive => (1.17, 1.6),
                Mix::Traced => (1.15, 1.3),
                Mix::Mixed | Mix::Sensitive => (1.10, 1.6),
                Mix::Insensitive | Mix::TracedInsensitive => (1.10, 1.0),
            };
            for (name, most) in [("greedy", 1.10), ("admission", online), ("admission/sorted", online)] {
                assert!(of(name).unwrap().servers as f64 <= most * least as f64, "{mix:?} {name}: {outcomes:#?}");
            }
            let predicted = of("prediction").unwrap().servers as f64;
            assert!(predicted >= more * greedy.servers as f64, "{mix:?}: {outcomes:#?}");
        }
    }

    #[test]
    fn promises_of_what_an_instance_does_alone_are_kept() {
        for mix in Mix::ALL {
            let outcomes = placement(mix, SloTerms::Alone, 40, 1, &server(), Duration::ZERO).unwrap();
            let ours = outcomes.iter().filter(|one| ["admission", "admission/sorted", "greedy"].contains(&one.name));
            let ours: Vec<&Tried> = ours.collect();
            assert!(ours.len() == 3 && ours.iter().all(|one| one.violations == 0), "{mix:?}: {outcomes:#?}");
        }
    }

    #[test]
    fn tenants_are_admitted_as_they_come() {
        let shape = server();
        let (set, _) = demands(Mix::Sensitive, SloTerms::FairShare, 30, 1, &shape).unwrap();
        let slos = with_profiles(&set);
        let by_hand = {
            let mut placement = Placement::empty(slos.len(), &shape);
            slos.iter().for_each(|(slo, profile)| drop(admission::admit(&mut placement, slo, profile).unwrap()));
            placement
        };
        let as_they_come = admitted(&slos, Order::Arrival, slos.len(), &shape).unwrap();
        assert!(as_they_come == by_hand);
        let is_same = as_they_come == admitted(&slos, Order::Sorted, slos.len(), &shape).unwrap();
        assert!(!is_same, "the order is to make a difference");
        // Both are compared, each under its name.
        let outcomes = placement(Mix::Sensitive, SloTerms::FairShare, 30, 1, &shape, Duration::from_secs(60)).unwrap();
        let servers = |name| outcomes.iter().find(|one| one.name == name).unwrap().servers;
        assert_eq!(servers("admission"), as_they_come.used());
        assert!(outcomes.iter().any(|one| one.name == "admission/sorted"));
    }
}
