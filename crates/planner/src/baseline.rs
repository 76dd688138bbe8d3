//! Other ways of placing, for comparison, and what a placement delivers.
//!
//! - *Agnostic*: as many instances as their throughput alone on a server requires, packed by cores
//!   only. The cache is shared by all, or split evenly between the instances of a server.
//! - *Elastic*: starts as agnostic. An SLO that is violated gets one more instance, until none is
//!   violated or rounds run out.
//! - *Prediction*: no isolation. An instance goes where no SLO is violated, as predicted from the
//!   references of its neighbours. These are the references of an instance alone at full speed: the
//!   source measures the references per second of each competitor in a run by itself, and predicts
//!   from their sum. A less loaded instance makes fewer references, so the prediction errs on the
//!   side of more servers. Sensitivity to references is measured against a competitor that never
//!   hits. The number of instances is the one that takes fewest new servers, up to three more than
//!   alone would need.
//!
//! All place the largest first on the first server that fits, and use the same profiles, margins
//! included, as our own planner.
//!
//! Sources: ResQ, section 6.2, which compares with these; elastic scaling: Palkar et al., "E2",
//! SOSP 2015; prediction: Dobrescu et al., "Toward predictable performance in software
//! packet-processing platforms", NSDI 2012.

use crate::contention::{Behaviour, Running, held_beside_references, occupancies};
use crate::demand::Demand;
use sluice_slo::placement::ServerShape;
use sluice_slo::profile::Profile;

/// An SLO to be placed.
pub struct Asked<'a> {
    pub demand: Demand,
    /// Promised latency in µs.
    pub latency_us: f64,
    pub profile: &'a Profile,
    /// How its NF really behaves.
    pub truth: &'a dyn Behaviour,
}

/// A placed instance, and what it gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Put {
    pub slo: usize,
    pub load_pps: f64,
    /// Ways of its own class, if classes are used.
    pub ways: Option<u32>,
}

/// Servers with their instances.
pub type Floor = Vec<Vec<Put>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePolicy {
    Shared,
    /// Each instance has an equal part.
    Even,
    /// Each instance has [`Put::ways`].
    Classes,
}

const ROUNDS: u32 = 100;
/// Shortfall from which an SLO counts as violated, as a part.
const VIOLATED: f64 = 0.01;

/// Indices of the SLOs in placement order.
fn largest_first(asked: &[Asked<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..asked.len()).collect();
    let rank = |i: &usize| (asked[*i].demand.counted_cores, asked[*i].demand.target_pps / alone_pps(&asked[*i]));
    order.sort_by(|a, b| rank(b).partial_cmp(&rank(a)).unwrap_or(std::cmp::Ordering::Equal));
    order
}

/// What an instance carries alone on a server.
fn alone_pps(one: &Asked<'_>) -> f64 {
    one.demand.capacity_pps.last().copied().unwrap_or(0.0)
}

fn alone_instances(one: &Asked<'_>) -> usize {
    (one.demand.target_pps / alone_pps(one) * (1.0 - 1e-9)).ceil().max(1.0) as usize
}

/// Puts an instance on the first server with enough cores.
fn put(floor: &mut Floor, asked: &[Asked<'_>], shape: &ServerShape, new: Put) {
    let cores = |server: &[Put]| server.iter().map(|put| asked[put.slo].demand.counted_cores).sum::<u32>();
    let needs = asked[new.slo].demand.counted_cores;
    match floor.iter_mut().find(|server| cores(server) + needs <= shape.cores) {
        Some(server) => server.push(new),
        None => floor.push(vec![new]),
    }
}

pub(crate) fn agnostic(asked: &[Asked<'_>], shape: &ServerShape) -> Floor {
    let mut floor = Floor::new();
    for slo in largest_first(asked) {
        let n = alone_instances(&asked[slo]);
        for _ in 0..n {
            let load_pps = asked[slo].demand.target_pps / n as f64;
            put(&mut floor, asked, shape, Put { slo, load_pps, ways: None });
        }
    }
    floor
}

/// Elastic scaling, with the cache shared.
pub(crate) fn elastic(asked: &[Asked<'_>], shape: &ServerShape) -> Floor {
    let mut floor = agnostic(asked, shape);
    for _ in 0..ROUNDS {
        let violated = violations(&floor, asked, shape, CachePolicy::Shared);
        if violated.is_empty() {
            break;
        }
        for slo in violated {
            put(&mut floor, asked, shape, Put { slo, load_pps: 0.0, ways: None });
            let n = floor.iter().flatten().filter(|put| put.slo == slo).count();
            for put in floor.iter_mut().flatten().filter(|put| put.slo == slo) {
                put.load_pps = asked[slo].demand.target_pps / n as f64;
            }
        }
    }
    floor
}

pub(crate) fn predicted(asked: &[Asked<'_>], shape: &ServerShape) -> Floor {
    let mut floor = Floor::new();
    for slo in largest_first(asked) {
        let least = alone_instances(&asked[slo]);
        let tries = (least..least + 4).map(|n| {
            let mut tried = floor.clone();
            let new = Put { slo, load_pps: asked[slo].demand.target_pps / n as f64, ways: None };
            for _ in 0..n {
                let fits = tried.iter().position(|server| is_kept_by_prediction(server, new, asked, shape));
                match fits {
                    Some(at) => tried[at].push(new),
                    None => tried.push(vec![new]),
                }
            }
            tried
        });
        if let Some(best) = tries.min_by_key(Vec::len) {
            floor = best;
        }
    }
    floor
}

/// Whether the prediction is that all SLOs are kept with one more instance.
fn is_kept_by_prediction(server: &[Put], new: Put, asked: &[Asked<'_>], shape: &ServerShape) -> bool {
    let all: Vec<Put> = server.iter().copied().chain([new]).collect();
    if all.iter().map(|put| asked[put.slo].demand.counted_cores).sum::<u32>() > shape.cores {
        return false;
    }
    let alone = |put: &Put| Behaviour::throughput_pps(asked[put.slo].profile, f64::from(shape.ways()));
    let references = |put: &Put| alone(put) * asked[put.slo].profile.references_per_packet();
    let sum: f64 = all.iter().map(references).sum();
    all.iter().all(|put| {
        let one = &asked[put.slo];
        let running = Running { behaviour: one.profile, load_pps: put.load_pps };
        let held = held_beside_references(&running, (sum - references(put)).max(0.0), f64::from(shape.ways()));
        let carries = one.profile.carries_pps(held, one.latency_us / (1.0 + one.profile.latency.margin));
        carries * (1.0 - one.profile.throughput.margin) * (1.0 + 1e-9) >= put.load_pps
    })
}

/// SLOs with an instance whose load is over what it carries within its latency, by more than a
/// hundredth. Throughput and latency are those of the real behaviour, not of a profile.
pub fn violations(floor: &Floor, asked: &[Asked<'_>], shape: &ServerShape, cache: CachePolicy) -> Vec<usize> {
    let mut violated = std::collections::BTreeSet::new();
    for server in floor.iter().filter(|server| !server.is_empty()) {
        let ways = f64::from(shape.ways());
        let running: Vec<Running<'_>> =
            server.iter().map(|put| Running { behaviour: asked[put.slo].truth, load_pps: put.load_pps }).collect();
        let held = match cache {
            CachePolicy::Shared => occupancies(&running, ways),
            // Whole ways, as in classes; where there are more instances than ways, they share them.
            CachePolicy::Even if server.len() as f64 > ways => vec![ways / server.len() as f64; server.len()],
            CachePolicy::Even => vec![(ways / server.len() as f64).floor(); server.len()],
            // At worst, the instances of the shared class thrash it.
            CachePolicy::Classes => server.iter().map(|put| f64::from(put.ways.unwrap_or(0))).collect(),
        };
        for (put, held) in server.iter().zip(held) {
            let one = &asked[put.slo];
            if one.truth.carries_pps(held, one.latency_us) < put.load_pps * (1.0 - VIOLATED) {
                violated.insert(put.slo);
            }
        }
    }
    violated.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Mix, OnServer, Set, SloTerms, server, set};

    fn run(mix: Mix, check: impl Fn(&[Asked<'_>], &ServerShape)) {
        let shape = server();
        let Set { profiles, samples } = set(mix, SloTerms::FairShare, 30, 1, &shape).unwrap();
        let truths: Vec<OnServer<'_>> =
            samples.iter().map(|sample| OnServer { kind: sample.kind, way_bytes: shape.way_bytes }).collect();
        let asked: Vec<Asked<'_>> = samples
            .iter()
            .zip(&truths)
            .map(|(sample, truth)| {
                let profile = &profiles[sample.profile];
                let demand = Demand::of(&sample.slo, profile, &shape).unwrap();
                Asked { demand, latency_us: sample.slo.promise.latency_us(), profile, truth }
            })
            .collect();
        check(&asked, &shape);
    }

    fn loads(floor: &Floor, slo: usize) -> f64 {
        floor.iter().flatten().filter(|put| put.slo == slo).map(|put| put.load_pps).sum()
    }

    #[test]
    fn everything_is_placed_and_no_server_has_more_cores_than_it_has() {
        run(Mix::Mixed, |asked, shape| {
            for floor in [agnostic(asked, shape), elastic(asked, shape), predicted(asked, shape)] {
                assert!(floor.iter().all(|server| server.len() <= shape.cores as usize));
                for (i, one) in asked.iter().enumerate() {
                    assert!((loads(&floor, i) / one.demand.target_pps - 1.0).abs() < 1e-6);
                }
            }
        });
    }

    #[test]
    fn agnostic_violates_and_prediction_does_not() {
        run(Mix::Sensitive, |asked, shape| {
            let (blind, careful) = (agnostic(asked, shape), predicted(asked, shape));
            assert!(!violations(&blind, asked, shape, CachePolicy::Shared).is_empty());
            assert!(violations(&careful, asked, shape, CachePolicy::Shared).is_empty());
            assert!(careful.len() > blind.len());
        });
    }

    #[test]
    fn our_own_promises_are_kept() {
        run(Mix::Mixed, |asked, shape| {
            let demands: Vec<Demand> = asked.iter().map(|one| one.demand.clone()).collect();
            let packed = crate::packing::pack(&demands, shape).unwrap();
            let mut floor = Floor::new();
            for (slo, recipe) in packed.recipes.iter().enumerate() {
                let sum: f64 = recipe.iter().map(|size| demands[slo].capacity_pps[*size as usize]).sum();
                floor.extend(recipe.iter().map(|size| {
                    let load_pps = demands[slo].target_pps * demands[slo].capacity_pps[*size as usize] / sum;
                    vec![Put { slo, load_pps, ways: Some(*size) }]
                }));
            }
            assert_eq!(violations(&floor, asked, shape, CachePolicy::Classes), Vec::<usize>::new());
        });
    }
}
