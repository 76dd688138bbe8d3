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

use std::collections::BTreeMap;

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
    let mut all = Prediction::new(asked, shape, usize::MAX);
    for slo in largest_first(asked) {
        all.place(slo);
    }
    all.floor()
}

/// Placement by prediction, of one SLO after another, none of which is moved.
///
/// What is predicted for an instance depends on the references of its neighbours alone: beside more
/// of them it does not carry more. So what was computed once bounds the answers for others.
pub(crate) struct Prediction<'a> {
    asked: &'a [Asked<'a>],
    shape: &'a ServerShape,
    /// The most servers.
    most: usize,
    servers: Vec<Vec<Predicted>>,
    in_use: usize,
    /// What is known of each sort of instance.
    sorts: Vec<Beside>,
    /// Their indices, by profile, load and latency.
    known: BTreeMap<(*const Profile, u64, u64), usize>,
}

/// A placed instance.
#[derive(Clone, Copy)]
struct Predicted {
    put: Put,
    cores: u32,
    /// References per second that its neighbours are to expect.
    references_per_s: f64,
    /// Index of its sort.
    sort: usize,
}

/// References per second of all neighbours.
struct Beside {
    /// The most beside which an instance is known to carry its load.
    kept: f64,
    /// The least beside which it is known not to.
    broken: f64,
}

impl<'a> Prediction<'a> {
    pub(crate) fn new(asked: &'a [Asked<'a>], shape: &'a ServerShape, most: usize) -> Self {
        Self { asked, shape, most, servers: Vec::new(), in_use: 0, sorts: Vec::new(), known: BTreeMap::new() }
    }

    /// Servers in use.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// The servers in use.
    pub(crate) fn floor(&self) -> Floor {
        let used = self.servers.iter().filter(|server| !server.is_empty());
        used.map(|server| server.iter().map(|one| one.put).collect()).collect()
    }

    /// Places an SLO with the number of instances that takes fewest new servers. False if there is
    /// no room for any.
    pub(crate) fn place(&mut self, slo: usize) -> bool {
        let (before, least) = (self.in_use, alone_instances(&self.asked[slo]));
        let mut best: Option<(usize, usize)> = None;
        for instances in least..least + 4 {
            let Some(at) = self.put(slo, instances) else { continue };
            if self.in_use == before {
                return true;
            }
            if best.is_none_or(|(fewest, _)| self.in_use < fewest) {
                best = Some((self.in_use, instances));
            }
            self.take_back(&at);
        }
        best.is_some_and(|(_, instances)| self.put(slo, instances).is_some())
    }

    pub(crate) fn remove(&mut self, slo: usize) {
        for server in self.servers.iter_mut().filter(|server| !server.is_empty()) {
            server.retain(|one| one.put.slo != slo);
            self.in_use -= usize::from(server.is_empty());
        }
    }

    /// Places this number of instances, or none. Returns the server of each.
    fn put(&mut self, slo: usize, instances: usize) -> Option<Vec<usize>> {
        let new = self.instance(slo, instances);
        let mut at = Vec::new();
        for _ in 0..instances {
            let Some(server) = self.server_for(new) else {
                self.take_back(&at);
                return None;
            };
            self.in_use += usize::from(self.servers[server].is_empty());
            self.servers[server].push(new);
            at.push(server);
        }
        Some(at)
    }

    /// Removes the last instance of each of these servers.
    fn take_back(&mut self, at: &[usize]) {
        for server in at {
            self.servers[*server].pop();
            self.in_use -= usize::from(self.servers[*server].is_empty());
        }
    }

    /// One of an SLO's instances, if it has this number of them.
    fn instance(&mut self, slo: usize, instances: usize) -> Predicted {
        let Asked { demand, latency_us, profile, .. } = &self.asked[slo];
        let put = Put { slo, load_pps: demand.target_pps / instances as f64, ways: None };
        let (key, sorts) = ((std::ptr::from_ref(*profile), put.load_pps.to_bits(), latency_us.to_bits()), &mut self.sorts);
        let sort = *self.known.entry(key).or_insert_with(|| {
            sorts.push(Beside { kept: f64::NEG_INFINITY, broken: f64::INFINITY });
            sorts.len() - 1
        });
        let alone = Behaviour::throughput_pps(*profile, f64::from(self.shape.ways()));
        Predicted { put, cores: demand.counted_cores, references_per_s: alone * profile.references_per_packet(), sort }
    }

    /// The first server in use on which all SLOs are kept, or else an unused one.
    fn server_for(&mut self, new: Predicted) -> Option<usize> {
        let found = (0..self.servers.len()).find(|at| !self.servers[*at].is_empty() && self.are_kept(*at, new));
        let unused = || self.servers.iter().position(Vec::is_empty);
        if let Some(at) = found.or_else(unused) {
            return Some(at);
        }
        (self.servers.len() < self.most).then(|| {
            self.servers.push(Vec::new());
            self.servers.len() - 1
        })
    }

    /// Whether the prediction is that all SLOs of a server are kept with one more instance.
    fn are_kept(&mut self, at: usize, new: Predicted) -> bool {
        let Self { asked, shape, servers, sorts, .. } = self;
        let all = || servers[at].iter().chain([&new]);
        if all().map(|one| one.cores).sum::<u32>() > shape.cores {
            return false;
        }
        let sum: f64 = all().map(|one| one.references_per_s).sum();
        // The new one first: the others are known better.
        all().rev().all(|one| {
            let (others, beside) = ((sum - one.references_per_s).max(0.0), &mut sorts[one.sort]);
            if others > beside.kept && others < beside.broken {
                let is_kept = is_kept_by_prediction(&one.put, others, &asked[one.put.slo], shape);
                *(if is_kept { &mut beside.kept } else { &mut beside.broken }) = others;
            }
            others <= beside.kept
        })
    }
}

/// Whether the prediction is that an instance carries its load beside neighbours with these
/// references per second.
fn is_kept_by_prediction(put: &Put, others_per_s: f64, one: &Asked<'_>, shape: &ServerShape) -> bool {
    let running = Running { behaviour: one.profile, load_pps: put.load_pps };
    let held = held_beside_references(&running, others_per_s, f64::from(shape.ways()));
    let carries = one.profile.carries_pps(held, one.latency_us / (1.0 + one.profile.latency.margin));
    carries * (1.0 - one.profile.throughput.margin) * (1.0 + 1e-9) >= put.load_pps
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
    fn prediction_keeps_what_it_has_and_what_goes_leaves_room() {
        run(Mix::Sensitive, |asked, shape| {
            let mut few = Prediction::new(asked, shape, 5);
            let placed: Vec<usize> = (0..asked.len()).filter(|slo| few.place(*slo)).collect();
            let floor = few.floor();
            assert!(few.in_use() == 5 && floor.len() == 5 && placed.len() < asked.len(), "{placed:?}");
            for (slo, one) in asked.iter().enumerate() {
                let wanted = if placed.contains(&slo) { one.demand.target_pps } else { 0.0 };
                assert!((loads(&floor, slo) - wanted).abs() <= 1e-6 * one.demand.target_pps, "{slo}");
            }
            // Computed for each, without what was known before.
            let references = |put: &Put| {
                let profile = asked[put.slo].profile;
                Behaviour::throughput_pps(profile, f64::from(shape.ways())) * profile.references_per_packet()
            };
            for (server, put) in floor.iter().flat_map(|server| server.iter().map(move |put| (server, put))) {
                let others = server.iter().map(references).sum::<f64>() - references(put);
                assert!(is_kept_by_prediction(put, others.max(0.0), &asked[put.slo], shape), "{put:?} of {server:?}");
            }
            placed.iter().for_each(|slo| few.remove(*slo));
            assert_eq!((few.in_use(), few.floor()), (0, Floor::new()));
            assert!(placed.iter().all(|slo| few.place(*slo)));
            assert_eq!(few.floor(), floor);
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
