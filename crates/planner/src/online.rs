//! SLOs that come and go, on a fleet of servers, placed in every way.
//!
//! # Terms
//! Times are in mean stays of an SLO. An SLO that comes and has room is *there* until its stay
//! ends; one without room is refused, and does not come again. *The least* is the number of servers
//! that the optimiser needs for the same SLOs.
//!
//! # Approach
//! 1. Some SLOs are packed all at once, which gives how many the fleet holds. [`LOAD`] of that is
//!    the mean number of SLOs that are there, if none is refused.
//! 2. SLOs come as a Poisson process and stay for times with an exponential distribution. As many
//!    as the mean come at once in the beginning: their number is then in its steady state, and what
//!    comes and goes has until [`WARM`] to wear the placement.
//! 3. Each way of placing gets the same SLOs at the same times. From [`WARM`] to [`END`], servers
//!    are averaged over time. Every [`SAMPLED`], what is there is evaluated by the model of
//!    contention, and compared with the least.
//!
//! The ways are *admission* as tenants get it, without moves; the same with the optimiser every
//! [`OPTIMISED`], whose result is taken over by a plan of steps if it saves a server
//! ([`crate::migration`]); and *prediction* of contention (`baseline`), of one SLO after another,
//! on the same fleet and on as many servers as it asks for.
//!
//! At the same moments, all SLOs that would be there if none was refused are packed at once: by the
//! greedy way, and by the optimiser.
//!
//! # Limits
//! Moves and the optimiser take no time of the sequence: while they would be under way, nothing
//! comes or goes. Large sets are solved in parts ([`crate::optimiser::partition`]), so that the
//! least may be a few above the true one. Stays and their number are assumed, not taken from any
//! operator.
//!
//! Source: Tootoonchian et al., "ResQ", NSDI 2018, sections 5.3 and 6.2, for what is compared; the
//! sequence is ours.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::admission::{self, Reason};
use crate::baseline::{Asked, CachePolicy, Floor, Prediction, violations};
use crate::compare::{self, CompareError};
use crate::demand::Demand;
use crate::migration::{self, MigrationError, Old};
use crate::optimiser::IS_BUILT;
use crate::optimiser::assign::assign;
use crate::optimiser::partition::{PART, solve_in_parts};
use crate::packing;
use crate::samples::{Mix, Set, SloTerms};
use sluice_slo::placement::{Placement, ServerShape};
use sluice_slo::profile::Profile;
use sluice_slo::random::Random;
use sluice_slo::slo::Slo;

/// Mean number of SLOs, of those that the fleet holds if they are packed at once.
pub const LOAD: f64 = 0.8;
/// When measuring begins.
pub const WARM: f64 = 2.0;
/// When the sequence ends.
pub const END: f64 = 3.0;
/// Between two runs of the optimiser.
pub const OPTIMISED: f64 = 0.5;
/// Between two samples. They lie evenly between the runs of the optimiser.
pub const SAMPLED: f64 = 0.25;
/// SLOs that are packed to find out how many the fleet holds.
const PROBED: usize = 400;

/// What comes, and to how many servers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrivals {
    pub mix: Mix,
    pub terms: SloTerms,
    /// Servers of the fleet.
    pub servers: usize,
    pub seed: u64,
}

/// What one way of placing has come to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OneWay {
    pub name: &'static str,
    /// Servers in use, the mean over time.
    pub servers: f64,
    /// SLOs that are there, the mean over time.
    pub slos: f64,
    /// SLOs that came while it was measured.
    pub came: usize,
    /// How many of them were refused.
    pub refused: usize,
    /// Time of the answer to each of them, in seconds.
    pub answer_s: Vec<f64>,
    /// SLOs that get less than they were promised, in any sample.
    pub violations: usize,
    /// From the beginning on.
    pub samples: Vec<Occupied>,
    /// What the optimiser did while it was measured.
    pub moved: Moved,
}

/// A sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Occupied {
    pub at: f64,
    /// Servers in use.
    pub servers: usize,
    /// SLOs that are there.
    pub slos: Vec<usize>,
    /// The least; none before [`WARM`] and without a solver.
    pub least: Option<Least>,
}

/// Result of the optimiser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Least {
    pub servers: usize,
    /// Proven lower bound.
    pub bound: usize,
    pub solve_s: f64,
}

/// What the optimiser has moved, all its runs together.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moved {
    pub runs: usize,
    /// Instances that were there.
    pub instances: usize,
    /// Instances that were started, each for one that was stopped or for a stand-in.
    pub starts: usize,
    /// Runs whose result could not be taken over with every promise kept.
    pub stuck: usize,
    /// Time to solve and to plan the steps, in seconds.
    pub seconds: f64,
}

/// All SLOs packed at once, at one sample.
#[derive(Debug, Clone, PartialEq)]
pub struct AllAtOnce {
    pub at: f64,
    /// Servers of the greedy packing, and the time that it took, in seconds.
    pub greedy: (usize, f64),
    /// None without a solver.
    pub least: Option<Least>,
}

/// What each way has come to, and all SLOs packed at once at each sample from [`WARM`] on.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    pub ways: Vec<OneWay>,
    pub packed: Vec<AllAtOnce>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    Comes(usize),
    Goes(usize),
    Optimise,
    Sample,
    End,
}

/// The sequence.
#[derive(Debug, Clone, PartialEq)]
struct Sequence {
    set: Set,
    demands: Vec<Demand>,
    moments: Vec<(f64, Moment)>,
}

impl Sequence {
    fn of(arrivals: &Arrivals, shape: &ServerShape) -> Result<Self, CompareError> {
        let Arrivals { mix, terms, servers, seed } = *arrivals;
        let (_, probe) = compare::demands(mix, terms, PROBED, seed, shape)?;
        let takes = packing::pack(&probe, shape).map_err(CompareError::Refused)?.patterns.len();
        let holds = (servers * PROBED) as f64 / takes.max(1) as f64;
        let stays = stays(LOAD * holds, seed);
        let (set, demands) = compare::demands(mix, terms, stays.len(), seed, shape)?;
        let mut moments = Vec::new();
        for (slo, (from, to)) in stays.into_iter().enumerate() {
            moments.extend([(from, Moment::Comes(slo)), (to, Moment::Goes(slo))]);
        }
        let times = |first: f64, every: f64| (0u32..).map(move |i| first + every * f64::from(i)).take_while(|at| *at < END);
        moments.extend(times(OPTIMISED, OPTIMISED).map(|at| (at, Moment::Optimise)));
        moments.extend(times(SAMPLED / 2.0, SAMPLED).map(|at| (at, Moment::Sample)));
        moments.retain(|(at, _)| *at < END);
        moments.push((END, Moment::End));
        moments.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(Self { set, demands, moments })
    }

    /// The SLOs that are there at each sample from [`WARM`] on, if none is refused.
    fn offered(&self) -> Vec<(f64, Vec<usize>)> {
        let (mut there, mut offered) = (BTreeSet::new(), Vec::new());
        for (at, moment) in &self.moments {
            match moment {
                Moment::Comes(slo) => {
                    there.insert(*slo);
                }
                Moment::Goes(slo) => {
                    there.remove(slo);
                }
                Moment::Sample if *at >= WARM => offered.push((*at, there.iter().copied().collect())),
                Moment::Sample | Moment::Optimise | Moment::End => {}
            }
        }
        offered
    }
}

/// When each SLO comes and goes; `mean` of them are there on average.
fn stays(mean: f64, seed: u64) -> Vec<(f64, f64)> {
    // The SLOs themselves are drawn from the seed as it is.
    let mut random = Random::new(!seed);
    let mut time = |mean: f64| -mean * (1.0 - random.part()).ln();
    let mut stays: Vec<(f64, f64)> = (0..mean.round() as usize).map(|_| (0.0, time(1.0))).collect();
    let mut now = time(1.0 / mean);
    while now < END {
        stays.push((now, now + time(1.0)));
        now += time(1.0 / mean);
    }
    stays
}

/// A way of placing SLOs one after another.
trait Way {
    /// Places an SLO; false if it is refused.
    fn come(&mut self, slo: usize) -> Result<bool, CompareError>;
    fn go(&mut self, slo: usize);
    /// Servers in use.
    fn used(&self) -> usize;
    /// The servers in use, for the model of contention, and how they share the cache.
    fn evaluated(&self) -> Result<(Floor, CachePolicy), CompareError>;
    /// Moves what is there to fewer servers, if that belongs to it.
    fn optimise(&mut self, _there: &BTreeSet<usize>) -> Result<Moved, CompareError> {
        Ok(Moved::default())
    }
}

impl Way for Prediction<'_> {
    fn come(&mut self, slo: usize) -> Result<bool, CompareError> {
        Ok(self.place(slo))
    }

    fn go(&mut self, slo: usize) {
        self.remove(slo);
    }

    fn used(&self) -> usize {
        self.in_use()
    }

    fn evaluated(&self) -> Result<(Floor, CachePolicy), CompareError> {
        Ok((self.floor(), CachePolicy::Shared))
    }
}

/// Admission, with or without the optimiser.
struct Admission<'a> {
    placement: Placement,
    slos: &'a [(&'a Slo, &'a Profile)],
    demands: &'a [Demand],
    shape: &'a ServerShape,
    /// Time limit of the optimiser; none if it does not run.
    limit: Option<Duration>,
}

impl Way for Admission<'_> {
    fn come(&mut self, slo: usize) -> Result<bool, CompareError> {
        let (slo, profile) = self.slos[slo];
        match admission::admit(&mut self.placement, slo, profile) {
            Ok(_) => Ok(true),
            Err(refusal) if matches!(refusal.reason, Reason::Full { .. }) => Ok(false),
            Err(refusal) => Err(compare::refused(slo, &refusal)),
        }
    }

    fn go(&mut self, slo: usize) {
        self.placement.remove(&self.slos[slo].0.name);
    }

    fn used(&self) -> usize {
        self.placement.used()
    }

    fn evaluated(&self) -> Result<(Floor, CachePolicy), CompareError> {
        self.placement.check().map_err(|e| CompareError::Refused(e.to_string()))?;
        Ok((compare::in_use(&self.placement, self.slos), CachePolicy::Classes))
    }

    fn optimise(&mut self, there: &BTreeSet<usize>) -> Result<Moved, CompareError> {
        let Some(limit) = self.limit else { return Ok(Moved::default()) };
        let began = Instant::now();
        let mut moved = Moved { runs: 1, instances: self.placement.instances().count(), ..Moved::default() };
        let demands: Vec<Demand> = there.iter().map(|slo| self.demands[*slo].clone()).collect();
        let solution = solve_in_parts(&demands, self.shape, PART, limit)?;
        if solution.servers() < self.placement.used() {
            let target = assign(&solution, &demands, self.shape, &self.placement)?;
            match migration::plan(&self.placement, &target, 0.0, Old::Follow) {
                Ok(plan) => (moved.starts, self.placement) = (plan.starts, plan.placement),
                Err(MigrationError::NoRoom { .. }) => moved.stuck = 1,
                Err(error) => return Err(CompareError::Refused(error.to_string())),
            }
        }
        moved.seconds = began.elapsed().as_secs_f64();
        Ok(moved)
    }
}

/// Has the sequence placed in one way. The least is not in its samples yet.
fn placed(
    name: &'static str,
    way: &mut dyn Way,
    sequence: &Sequence,
    asked: &[Asked<'_>],
    shape: &ServerShape,
) -> Result<OneWay, CompareError> {
    let mut found = OneWay { name, ..OneWay::default() };
    let (mut there, mut violated) = (BTreeSet::new(), BTreeSet::new());
    let mut before = WARM;
    for (at, moment) in sequence.moments.iter().copied() {
        let is_measured = at >= WARM;
        if is_measured {
            let part = (at - before) / (END - WARM);
            found.servers += part * way.used() as f64;
            found.slos += part * there.len() as f64;
            before = at;
        }
        match moment {
            Moment::Comes(slo) => {
                let began = Instant::now();
                let is_there = way.come(slo)?;
                let took = began.elapsed().as_secs_f64();
                if is_there {
                    there.insert(slo);
                }
                if is_measured {
                    found.came += 1;
                    found.refused += usize::from(!is_there);
                    found.answer_s.push(took);
                }
            }
            Moment::Goes(slo) => {
                if there.remove(&slo) {
                    way.go(slo);
                }
            }
            Moment::Optimise => {
                let moved = way.optimise(&there)?;
                if is_measured {
                    found.moved.add(&moved);
                }
            }
            Moment::Sample => {
                if is_measured {
                    let (floor, cache) = way.evaluated()?;
                    violated.extend(violations(&floor, asked, shape, cache));
                }
                found.samples.push(Occupied { at, servers: way.used(), slos: there.iter().copied().collect(), least: None });
            }
            Moment::End => {}
        }
    }
    found.violations = violated.len();
    Ok(found)
}

impl Moved {
    fn add(&mut self, more: &Self) {
        self.runs += more.runs;
        self.instances += more.instances;
        self.starts += more.starts;
        self.stuck += more.stuck;
        self.seconds += more.seconds;
    }
}

/// Finds the least of sets of SLOs, once for each.
struct Optima<'a> {
    demands: &'a [Demand],
    shape: &'a ServerShape,
    limit: Duration,
    known: BTreeMap<Vec<usize>, Least>,
}

impl Optima<'_> {
    /// None without a solver, and with a limit of 0.
    fn of(&mut self, slos: &[usize]) -> Result<Option<Least>, CompareError> {
        if !is_solved(self.limit) {
            return Ok(None);
        }
        if let Some(known) = self.known.get(slos) {
            return Ok(Some(*known));
        }
        let demands: Vec<Demand> = slos.iter().map(|slo| self.demands[*slo].clone()).collect();
        let began = Instant::now();
        let solution = solve_in_parts(&demands, self.shape, PART, self.limit)?;
        let least = Least { servers: solution.servers(), bound: solution.bound, solve_s: began.elapsed().as_secs_f64() };
        self.known.insert(slos.to_vec(), least);
        Ok(Some(least))
    }
}

fn is_solved(limit: Duration) -> bool {
    IS_BUILT && !limit.is_zero()
}

/// Places a sequence in every way, and packs what would be there at once. Without a solver
/// ([`IS_BUILT`]) and with a `limit` of 0, the optimiser and the least are left out.
///
/// # Errors
/// [`CompareError`].
pub fn run(arrivals: &Arrivals, shape: &ServerShape, limit: Duration) -> Result<Compared, CompareError> {
    let sequence = Sequence::of(arrivals, shape)?;
    let Sequence { set, demands, .. } = &sequence;
    let truths = compare::truths(set, shape);
    let asked = compare::asked(set, demands, &truths);
    let slos = compare::with_profiles(set);
    let admission = |limit| -> Box<dyn Way + '_> {
        let placement = Placement::empty(arrivals.servers, shape);
        Box::new(Admission { placement, slos: &slos, demands, shape, limit })
    };
    let prediction = |most| -> Box<dyn Way + '_> { Box::new(Prediction::new(&asked, shape, most)) };
    let mut ways = vec![("admission", admission(None))];
    if is_solved(limit) {
        ways.push(("admission/optimised", admission(Some(limit))));
    }
    ways.push(("prediction", prediction(arrivals.servers)));
    ways.push(("prediction/unlimited", prediction(usize::MAX)));
    let mut optima = Optima { demands, shape, limit, known: BTreeMap::new() };
    let mut compared = Compared { ways: Vec::new(), packed: Vec::new() };
    for (name, mut way) in ways {
        let mut found = placed(name, way.as_mut(), &sequence, &asked, shape)?;
        for sample in found.samples.iter_mut().filter(|sample| sample.at >= WARM) {
            sample.least = optima.of(&sample.slos)?;
        }
        compared.ways.push(found);
    }
    for (at, slos) in sequence.offered() {
        let there: Vec<Demand> = slos.iter().map(|slo| demands[*slo].clone()).collect();
        let began = Instant::now();
        let servers = packing::pack(&there, shape).map_err(CompareError::Refused)?.patterns.len();
        let greedy = (servers, began.elapsed().as_secs_f64());
        compared.packed.push(AllAtOnce { at, greedy, least: optima.of(&slos)? });
    }
    Ok(compared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::server;

    const FEW: Arrivals = Arrivals { mix: Mix::Mixed, terms: SloTerms::Alone, servers: 4, seed: 1 };
    const LIMIT: Duration = Duration::from_secs(5);

    fn sequence(arrivals: &Arrivals) -> Sequence {
        Sequence::of(arrivals, &server()).unwrap()
    }

    /// Has admission and prediction on the fleet checked.
    fn with_each(check: impl Fn(&Sequence, &mut dyn Way)) {
        let (sequence, shape) = (sequence(&FEW), server());
        let (truths, slos) = (compare::truths(&sequence.set, &shape), compare::with_profiles(&sequence.set));
        let asked = compare::asked(&sequence.set, &sequence.demands, &truths);
        let placement = Placement::empty(FEW.servers, &shape);
        check(&sequence, &mut Admission { placement, slos: &slos, demands: &sequence.demands, shape: &shape, limit: Some(LIMIT) });
        check(&sequence, &mut Prediction::new(&asked, &shape, FEW.servers));
    }

    /// Lets SLOs come until one is refused. Returns those that are there, and the refused one.
    fn filled(sequence: &Sequence, way: &mut dyn Way) -> (BTreeSet<usize>, usize) {
        let mut there = BTreeSet::new();
        for slo in 0..sequence.demands.len() {
            if !way.come(slo).unwrap() {
                return (there, slo);
            }
            there.insert(slo);
        }
        panic!("{} SLOs have room", there.len());
    }

    fn assert_served(sequence: &Sequence, way: &dyn Way, there: &BTreeSet<usize>) {
        let (floor, _) = way.evaluated().unwrap();
        assert_eq!(floor.len(), way.used());
        for (slo, demand) in sequence.demands.iter().enumerate() {
            let wanted = if there.contains(&slo) { demand.target_pps } else { 0.0 };
            let load: f64 = floor.iter().flatten().filter(|put| put.slo == slo).map(|put| put.load_pps).sum();
            assert!((load - wanted).abs() <= 1e-6 * demand.target_pps, "{slo}: {load} and not {wanted}");
        }
    }

    #[test]
    fn a_sequence_is_the_same_each_time_and_each_slo_comes_once() {
        let one = sequence(&FEW);
        assert_eq!(one, sequence(&FEW));
        assert_ne!(one.moments, sequence(&Arrivals { seed: 2, ..FEW }).moments);
        assert!(one.moments.is_sorted_by(|a, b| a.0 <= b.0) && one.moments.last() == Some(&(END, Moment::End)));
        let (mut came, mut there) = (BTreeSet::new(), BTreeSet::new());
        for (_, moment) in &one.moments {
            match moment {
                Moment::Comes(slo) => assert!(came.insert(*slo) && there.insert(*slo), "{slo}"),
                Moment::Goes(slo) => assert!(there.remove(slo), "{slo}"),
                Moment::Optimise | Moment::Sample | Moment::End => {}
            }
        }
        assert!(came.len() == one.demands.len() && came.len() > there.len());
        let count = |of: Moment| one.moments.iter().filter(|(_, moment)| *moment == of).count();
        assert_eq!((count(Moment::Optimise), count(Moment::Sample), one.offered().len()), (5, 12, 4));
    }

    #[test]
    fn as_many_as_the_mean_are_there_at_all_times() {
        let stays = stays(1000.0, 1);
        for at in [0.0, 0.5, 1.0, 2.0, 2.9] {
            let there = stays.iter().filter(|(from, to)| (*from..*to).contains(&at)).count();
            assert!((800..1200).contains(&there), "{there} at {at}");
        }
        let mean = stays.iter().map(|(from, to)| to - from).sum::<f64>() / stays.len() as f64;
        assert!((0.9..1.1).contains(&mean), "{mean}");
    }

    #[test]
    fn every_way_gets_the_same_slos_and_the_least_is_no_more_than_the_greedy_packing() {
        let sequence = sequence(&FEW);
        let Compared { ways, packed } = run(&FEW, &server(), LIMIT).unwrap();
        let names: Vec<&str> = ways.iter().map(|way| way.name).collect();
        let without = ["admission", "prediction", "prediction/unlimited"];
        let with = ["admission", "admission/optimised", "prediction", "prediction/unlimited"];
        assert_eq!(names, if IS_BUILT { &with[..] } else { &without[..] });
        let is_measured = |(at, moment): &&(f64, Moment)| *at >= WARM && matches!(moment, Moment::Comes(_));
        let came = sequence.moments.iter().filter(is_measured).count();
        let offered = sequence.offered();
        for way in &ways {
            assert_eq!((way.came, way.answer_s.len(), way.samples.len()), (came, came, 12), "{}", way.name);
            assert!(way.refused <= came && way.servers > 0.0 && way.slos > 0.0, "{way:?}");
            let measured: Vec<&Occupied> = way.samples.iter().filter(|sample| sample.at >= WARM).collect();
            assert!(measured.iter().all(|sample| sample.least.is_some() == IS_BUILT), "{way:?}");
            for (sample, (at, all)) in measured.iter().zip(&offered) {
                assert!(sample.at == *at && sample.slos.iter().all(|slo| all.contains(slo)), "{way:?}");
                if way.name == "prediction/unlimited" {
                    assert_eq!((&sample.slos, way.refused), (all, 0));
                } else {
                    assert!(sample.servers <= FEW.servers, "{way:?}");
                }
                if way.name.starts_with("admission") {
                    assert!(sample.least.is_none_or(|least| least.bound <= sample.servers), "{way:?}");
                    assert_eq!(way.violations, 0);
                }
            }
        }
        assert_eq!(packed.len(), 4);
        for AllAtOnce { greedy, least, .. } in packed {
            assert_eq!(least.is_some(), IS_BUILT);
            assert!(least.is_none_or(|least| least.bound <= least.servers && least.servers <= greedy.0), "{greedy:?} {least:?}");
        }
    }

    #[test]
    fn what_goes_leaves_all_of_its_room() {
        with_each(|sequence, way| {
            let (there, refused) = filled(sequence, way);
            assert!(way.used() <= FEW.servers && !there.is_empty());
            assert_served(sequence, way, &there);
            there.iter().for_each(|slo| way.go(*slo));
            assert_eq!(way.used(), 0);
            assert_served(sequence, way, &BTreeSet::new());
            assert!(way.come(refused).unwrap());
            assert_served(sequence, way, &BTreeSet::from([refused]));
        });
    }

    #[cfg(feature = "optimiser")]
    #[test]
    fn the_optimiser_moves_instances_and_each_slo_keeps_what_it_has() {
        with_each(|sequence, way| {
            let (mut there, _) = filled(sequence, way);
            // Every second goes, so that all servers are half empty.
            for slo in there.iter().copied().filter(|slo| slo % 2 == 1).collect::<Vec<_>>() {
                there.remove(&slo);
                way.go(slo);
            }
            let before = way.used();
            let moved = way.optimise(&there).unwrap();
            assert_served(sequence, way, &there);
            // Prediction is not optimised.
            if moved.runs == 1 {
                assert!(moved.starts > 0 && moved.starts <= 2 * moved.instances && moved.stuck == 0, "{moved:?}");
                assert!(way.used() < before, "{} of {before}", way.used());
            } else {
                assert_eq!((moved, way.used()), (Moved::default(), before));
            }
        });
    }

    /// A server for each SLO.
    struct Counted {
        servers: usize,
        most: usize,
    }

    impl Way for Counted {
        fn come(&mut self, _: usize) -> Result<bool, CompareError> {
            let has_room = self.servers < self.most;
            self.servers += usize::from(has_room);
            Ok(has_room)
        }

        fn go(&mut self, _: usize) {
            self.servers -= 1;
        }

        fn used(&self) -> usize {
            self.servers
        }

        fn evaluated(&self) -> Result<(Floor, CachePolicy), CompareError> {
            Ok((Floor::new(), CachePolicy::Classes))
        }
    }

    #[test]
    fn means_are_over_the_measured_time_and_a_refused_slo_does_not_go() {
        let moments = vec![
            (0.0, Moment::Comes(0)),
            (2.5, Moment::Comes(1)),
            (2.5, Moment::Comes(2)),
            (2.75, Moment::Goes(0)),
            (2.75, Moment::Goes(2)),
            (END, Moment::End),
        ];
        let sequence = Sequence { moments, ..sequence(&FEW) };
        let found = placed("counted", &mut Counted { servers: 0, most: 2 }, &sequence, &[], &server()).unwrap();
        // One for half of the time, two for a quarter, one for a quarter.
        assert_eq!((found.servers, found.slos), (1.25, 1.25));
        assert_eq!((found.came, found.refused, found.answer_s.len()), (2, 1, 2));
    }
}
