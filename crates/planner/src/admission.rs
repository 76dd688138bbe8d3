//! Online admission of one more SLO, without moving any instance.
//!
//! # Problem
//! A tenant waits for an answer. It is yes, with instances, their ways and their servers; or no,
//! with the reason and what would fit.
//!
//! # Approach
//! 1. *Candidates*: the recipe of the paper (as many instances as a fair share's throughput
//!    requires, then one more way for each in turn until the sum suffices), the same with one
//!    instance more or less, and the cheapest recipes for several prices of a way against a core.
//!    The price of a way follows the use of the servers that have instances: where a larger part of
//!    the cores is taken than of the ways, ways are cheap, and recipes with fewer and larger
//!    instances are preferred; and vice versa. So neither is left over when the servers are full.
//! 2. Each candidate is placed, largest instance first, each on the server where the remainder is
//!    smallest in cores and ways together, so that neither is left over alone. An unused server is
//!    taken only if no other has room.
//! 3. Of the candidates that fit, the one with fewest new servers is taken, and of these the one
//!    with the smallest part of all that servers have. Servers of one processor may have several
//!    shapes: each shape is tried, and all instances of an SLO are on servers of one shape.
//! 4. If none fits, a search finds the largest throughput that fits at the same latency, or else
//!    the shortest latency at which the requested throughput fits, or both. Every offer has been
//!    tried. Of several shapes, the nearest offer counts.
//!
//! [`admit_all`] admits many SLOs one after the other, those that take most first: first-fit
//! decreasing, and best-fit within it.
//!
//! Source: Tootoonchian et al., "ResQ", NSDI 2018, section 5.3.1; candidates and best-fit are ours.

use crate::demand::{Demand, DemandError, Recipe};
use sluice_slo::placement::{Instance, Placement, PlacementError, Remaining, ServerShape};
use sluice_slo::profile::Profile;
use sluice_slo::slo::{Cap, Promise, Slo};

/// Prices of a way for which candidates are made, as multiples of its present price.
const PRICES: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];
/// Power of the ratio of taken ways to taken cores that gives the price of a way. From 2 to 16 it
/// makes little difference.
const FOLLOWS: i32 = 4;
/// Bounds of the price of all ways of a server, where its cores together cost 1.
const WAYS: (f64, f64) = (1.0 / 64.0, 64.0);
/// Precision of the search for the nearest offer, as a part.
const NEAREST: f64 = 0.002;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Reason {
    /// Not even an empty server could keep it.
    #[error(transparent)]
    Impossible(#[from] DemandError),
    /// Running instances leave too little room.
    #[error("no room: {instances} instances or more are needed, and of {servers} servers none can take enough of them ({free})")]
    Full { instances: usize, servers: usize, free: String },
    #[error("no server has the processor of the profile, \"{cpu}\"")]
    NoServer { cpu: String },
    #[error("an SLO named \"{0}\" is already placed: remove it, or choose another name")]
    Twice(String),
    #[error("the placement cannot be: {0}")]
    Placement(#[from] PlacementError),
}

/// A refusal, and what would fit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{reason}{}", nearest.map(|promise| format!("; this would fit: {promise}")).unwrap_or_default())]
pub struct Refusal {
    pub reason: Reason,
    pub nearest: Option<Promise>,
}

impl Refusal {
    /// Of two refusals of the same SLO, the one whose offer is nearer to what was asked for.
    #[must_use]
    pub fn or_nearer(self, other: Self, asked: &Slo) -> Self {
        let far = |refusal: &Self| refusal.nearest.as_ref().map_or(f64::INFINITY, |promise| nearness(promise, asked));
        if far(&other) < far(&self) { other } else { self }
    }
}

/// Finds room for an SLO and adds its instances to the placement. Returns each with the index of
/// its server. Other instances do not move.
///
/// # Errors
/// [`Refusal`]; the placement is unchanged.
pub fn admit(placement: &mut Placement, slo: &Slo, profile: &Profile) -> Result<Vec<(usize, Instance)>, Refusal> {
    let no = |reason| Refusal { reason, nearest: None };
    if placement.instances().any(|(_, instance)| instance.slo == slo.name) {
        return Err(no(Reason::Twice(slo.name.clone())));
    }
    let floors = Floor::all(placement, &profile.key.cpu).map_err(|e| no(e.into()))?;
    let (mut possible, mut impossible) = (Vec::new(), None);
    for floor in &floors {
        match Demand::of(slo, profile, &floor.shape) {
            Ok(demand) => possible.push((floor, demand)),
            Err(error) => impossible = impossible.or(Some(error)),
        }
    }
    let fits = possible.iter().filter_map(|(floor, demand)| Some((floor.fit(demand)?, demand)));
    if let Some((fit, demand)) = fits.min_by(|(a, _), (b, _)| a.new.cmp(&b.new).then(a.part.total_cmp(&b.part))) {
        return Ok(settle(placement, demand, &fit));
    }
    let reason = match (full(&possible), impossible) {
        (Some(full), _) => full,
        (None, Some(error)) => error.into(),
        (None, None) => Reason::NoServer { cpu: profile.key.cpu.clone() },
    };
    let nearest = floors.iter().filter_map(|floor| floor.nearest(slo, profile));
    Err(Refusal { reason, nearest: nearest.min_by(|a, b| nearness(a, slo).total_cmp(&nearness(b, slo))) })
}

/// Admits SLOs one after the other, those that take most first. Returns results in the order given.
pub fn admit_all(placement: &mut Placement, slos: &[(&Slo, &Profile)]) -> Vec<Result<Vec<(usize, Instance)>, Refusal>> {
    let shapes = distinct(placement);
    let takes_of = |(slo, profile): &(&Slo, &Profile)| {
        let own = shapes.iter().filter(|shape| shape.cpu == profile.key.cpu);
        let all = own.filter_map(|shape| Some(takes(&Demand::of(slo, profile, shape).ok()?, shape)));
        all.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))).unwrap_or_default()
    };
    let mut order: Vec<(usize, (f64, f64))> = slos.iter().map(takes_of).enumerate().collect();
    order.sort_by(|(_, a), (_, b)| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)));
    let mut results: Vec<_> = slos.iter().map(|_| None).collect();
    for (i, _) in order {
        results[i] = Some(admit(placement, slos[i].0, slos[i].1));
    }
    results.into_iter().flatten().collect()
}

fn distinct(placement: &Placement) -> Vec<&ServerShape> {
    let mut shapes: Vec<&ServerShape> = Vec::new();
    for server in &placement.servers {
        if !shapes.contains(&&server.shape) {
            shapes.push(&server.shape);
        }
    }
    shapes
}

/// Distance of a promise from what is asked for: throughput only comes before latency only, and
/// that before both.
fn nearness(promise: &Promise, asked: &Slo) -> f64 {
    let longer = promise.latency_us() / asked.promise.latency_us();
    let part = promise.throughput_pps().zip(asked.promise.throughput_pps()).map_or(1.0, |(pps, asked)| pps / asked);
    // Each is between 0 and 1, so that they count in this order.
    let (less, longer) = (1.0 - part, 1.0 - 1.0 / longer);
    match (less > 0.0, longer > 0.0) {
        (_, false) => less,
        (false, true) => 1.0 + longer,
        (true, true) => 2.0 + less + longer,
    }
}

/// How hard a demand is to place: the largest part of a server that one of its instances takes, and
/// what all of them take.
fn takes(demand: &Demand, shape: &ServerShape) -> (f64, f64) {
    let (all, recipe) = demand.cheapest(&prices(demand, shape, 1.0));
    let ways = recipe.iter().max().map_or(0.0, |size| f64::from(*size) / f64::from(shape.ways()));
    (ways.max(f64::from(demand.counted_cores) / f64::from(shape.cores)), all)
}

/// Price of each size: its part of a server's cores, plus `way` times its part of the ways.
fn prices(demand: &Demand, shape: &ServerShape, way: f64) -> Vec<f64> {
    let core = f64::from(demand.counted_cores) / f64::from(shape.cores);
    (0..=shape.ways()).map(|ways| core + way * f64::from(ways) / f64::from(shape.ways())).collect()
}

/// Price of all ways of a server where its cores together cost 1, from what is left on the servers
/// in use.
fn price<'a>(in_use: impl Iterator<Item = &'a Remaining>, shape: &ServerShape) -> f64 {
    let part = |left: u32, of: u32| f64::from(of.saturating_sub(left)) / f64::from(of.max(1));
    let taken = in_use.map(|room| (part(room.cores, shape.cores), part(room.ways, shape.ways())));
    let (cores, ways) = taken.fold((0.0, 0.0), |(cores, ways), (more_cores, more_ways)| (cores + more_cores, ways + more_ways));
    if cores > 0.0 { (ways / cores).powi(FOLLOWS).clamp(WAYS.0, WAYS.1) } else { 1.0 }
}

/// Where the instances of a recipe go.
struct Fit {
    /// Server and size of each.
    at: Vec<(usize, u32)>,
    /// Servers that were not in use.
    new: usize,
    /// Part of all that servers have.
    part: f64,
}

/// What all servers of one shape have left.
struct Floor {
    rooms: Vec<(usize, Remaining, bool)>,
    shape: ServerShape,
    /// Price of all ways of a server, where its cores together cost 1.
    way: f64,
}

impl Floor {
    /// The servers with this processor, one entry for each shape.
    fn all(placement: &Placement, cpu: &str) -> Result<Vec<Self>, PlacementError> {
        let shapes = distinct(placement).into_iter().filter(|shape| shape.cpu == cpu);
        shapes.map(|shape| Self::of(placement, shape)).collect()
    }

    fn of(placement: &Placement, shape: &ServerShape) -> Result<Self, PlacementError> {
        let mut rooms = Vec::new();
        for (i, server) in placement.servers.iter().enumerate().filter(|(_, server)| server.shape == *shape) {
            rooms.push((i, server.room()?, !server.instances.is_empty()));
        }
        let way = price(rooms.iter().filter(|(.., used)| *used).map(|(_, room, _)| room), shape);
        Ok(Self { rooms, shape: shape.clone(), way })
    }

    fn candidates(&self, demand: &Demand) -> Vec<Recipe> {
        let shape = &self.shape;
        let fair = (shape.ways() / shape.cores * demand.cores).max(shape.min_ways);
        let mut recipes: Vec<Recipe> = demand.in_turn(fair, None).into_iter().collect();
        if let Some(n) = recipes.first().map(Vec::len) {
            recipes.extend([n - 1, n + 1].iter().filter_map(|n| demand.in_turn(fair, Some(*n))));
        }
        recipes.extend(PRICES.iter().map(|times| demand.cheapest(&prices(demand, shape, self.way * times)).1));
        recipes.sort_unstable();
        recipes.dedup();
        recipes.retain(|recipe| demand.is_enough(recipe));
        recipes
    }

    fn fit(&self, demand: &Demand) -> Option<Fit> {
        let fits = self.candidates(demand).into_iter().filter_map(|recipe| self.place(&recipe, demand));
        fits.min_by(|a, b| a.new.cmp(&b.new).then(a.part.total_cmp(&b.part)))
    }

    fn place(&self, recipe: &Recipe, demand: &Demand) -> Option<Fit> {
        let shape = &self.shape;
        // Only servers that this recipe touches are copied.
        let mut touched: Vec<(usize, Remaining)> = Vec::new();
        let mut fit = Fit { at: Vec::new(), new: 0, part: 0.0 };
        for &size in recipe {
            let mut best: Option<(bool, f64, usize, Remaining)> = None;
            for (k, (_, room, used)) in self.rooms.iter().enumerate() {
                let now = touched.iter().find(|(touched, _)| *touched == k).map(|(_, room)| *room);
                let is_new = !used && now.is_none();
                if is_new && best.as_ref().is_some_and(|best| best.0) {
                    continue;
                }
                let Some(left) = now.unwrap_or(*room).less(demand.cores, size, demand.memory_mib) else { continue };
                let rank = (is_new, unused(&left, shape));
                if best.as_ref().is_none_or(|best| (rank.0, rank.1) < (best.0, best.1)) {
                    best = Some((rank.0, rank.1, k, left));
                }
            }
            let (is_new, _, k, left) = best?;
            touched.retain(|(touched, _)| *touched != k);
            touched.push((k, left));
            fit.at.push((self.rooms[k].0, size));
            fit.new += usize::from(is_new);
            fit.part += prices(demand, shape, self.way)[size as usize];
        }
        Some(fit)
    }

    fn fits(&self, slo: &Slo, profile: &Profile, promise: Promise) -> bool {
        let slo = Slo { promise, ..slo.clone() };
        Demand::of(&slo, profile, &self.shape).is_ok_and(|demand| self.fit(&demand).is_some())
    }

    fn nearest(&self, slo: &Slo, profile: &Profile) -> Option<Promise> {
        slo.check().ok()?;
        let asked_us = slo.promise.latency_us();
        // The latency at which every measured load is allowed.
        let slowest = profile.slower(self.fewest(profile));
        let last = profile.latency.points.last()?.y * (1.0 + profile.latency.margin);
        let longest_us = last * slowest * 1.000_001 + f64::from(self.shape.path_us);
        let (asked_pps, cap) = match slo.promise {
            Promise::Reserved { throughput_pps, .. } => (Some(throughput_pps), Cap::default()),
            Promise::OnDemand { cap, .. } => (None, cap),
        };
        let Some(asked_pps) = asked_pps else {
            let at = |latency_us| Promise::OnDemand { latency_us, cap };
            return least(asked_us, longest_us, |us| self.fits(slo, profile, at(us))).map(|us| at(rounded(us, f64::ceil)));
        };
        let at = |throughput_pps, latency_us| Promise::Reserved { throughput_pps, latency_us };
        let most = |latency_us: f64| {
            // Search over the part of the throughput that is given up.
            let part = least(0.0, 1.0, |less| self.fits(slo, profile, at(asked_pps * (1.0 - less), latency_us)))?;
            let pps = rounded(asked_pps * (1.0 - part), f64::floor);
            (pps > 0.0 && self.fits(slo, profile, at(pps, latency_us))).then(|| at(pps, latency_us))
        };
        let longer = || {
            let us = least(asked_us, longest_us, |us| self.fits(slo, profile, at(asked_pps, us)))?;
            let us = rounded(us, f64::ceil);
            self.fits(slo, profile, at(asked_pps, us)).then(|| at(asked_pps, us))
        };
        most(asked_us).or_else(longer).or_else(|| most(rounded(longest_us, f64::ceil)))
    }

    /// The fewest ways with which an instance carries anything: below the measured range it carries
    /// nothing.
    fn fewest(&self, profile: &Profile) -> u32 {
        let shape = &self.shape;
        let carries = |ways: &u32| if *ways == 0 { profile.shared_pps() > 0.0 } else { profile.throughput_pps(*ways) > 0.0 };
        std::iter::once(0).chain(shape.min_ways..=shape.ways()).find(carries).unwrap_or(shape.ways())
    }
}

/// Why none of these has room; none if there are none.
fn full(floors: &[(&Floor, Demand)]) -> Option<Reason> {
    let rooms = || floors.iter().flat_map(|(floor, _)| &floor.rooms);
    let free = |of: fn(&Remaining) -> u32| rooms().map(|(_, room, _)| u64::from(of(room))).sum::<u64>();
    let least = |demand: &Demand| {
        let most = demand.capacity_pps.last().copied().unwrap_or(0.0);
        (demand.target_pps / most).ceil().max(1.0) as usize
    };
    let instances = floors.iter().map(|(_, demand)| least(demand)).min()?;
    let (cores, ways, classes) = (free(|room| room.cores), free(|room| room.ways), free(|room| room.classes));
    let free = format!("{cores} cores, {ways} ways and {classes} classes are free on all together");
    Some(Reason::Full { instances, servers: rooms().count(), free })
}

/// How much of a server is left, and how unevenly: cores without ways, or ways without cores, are
/// useless.
fn unused(left: &Remaining, shape: &ServerShape) -> f64 {
    let part = |of: u32, all: u32| f64::from(of) / f64::from(all);
    let (cores, ways) = (part(left.cores, shape.cores), part(left.ways, shape.ways()));
    cores + ways + 2.0 * (cores - ways).abs()
}

/// The least value between `from` and `to` from which on `holds` is true; none if it never is.
fn least(from: f64, to: f64, holds: impl Fn(f64) -> bool) -> Option<f64> {
    let (mut no, mut yes) = (from, to);
    // Giving up all of the throughput leaves nothing to fit.
    let last = if from == 0.0 { 1.0 - NEAREST } else { to };
    if to <= from || !holds(last) {
        return None;
    }
    while yes - no > NEAREST * yes.max(NEAREST) {
        let middle = (no + yes) / 2.0;
        if holds(middle) { yes = middle } else { no = middle }
    }
    Some(yes)
}

/// Rounds to three digits.
fn rounded(value: f64, towards: fn(f64) -> f64) -> f64 {
    let unit = 10f64.powf(value.abs().max(f64::MIN_POSITIVE).log10().floor() - 2.0);
    // A value with three digits stays as it is, whatever its last bit.
    let (near, moved) = ((value / unit).round(), towards(value / unit));
    if (near * unit - value).abs() <= value.abs() * 1e-12 { near * unit } else { moved * unit }
}

fn settle(placement: &mut Placement, demand: &Demand, fit: &Fit) -> Vec<(usize, Instance)> {
    let carries = |size: u32| demand.capacity_pps[size as usize];
    let sum: f64 = fit.at.iter().map(|(_, size)| carries(*size)).sum();
    let mut added = Vec::new();
    for (number, &(at, ways)) in fit.at.iter().enumerate() {
        let server = &mut placement.servers[at];
        let instance = Instance {
            slo: demand.slo.clone(),
            number: number as u32,
            cores: server.free_cores(demand.cores).unwrap_or_default(),
            ways,
            memory_mib: demand.memory_mib,
            capacity_pps: carries(ways),
            load_pps: if sum > 0.0 { demand.target_pps * carries(ways) / sum } else { 0.0 },
        };
        server.instances.push(instance.clone());
        added.push((at, instance));
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_slo::examples::shape;
    use sluice_slo::examples::slo;
    use sluice_slo::examples::{profile, whole};

    fn named(name: &str, throughput_pps: f64) -> Slo {
        Slo { name: name.into(), ..slo(throughput_pps, 1000.0) }
    }

    #[test]
    fn an_slo_is_placed_and_the_placement_holds() {
        let mut placement = Placement::empty(3, &shape());
        let added = admit(&mut placement, &named("a", 12e6), &profile()).unwrap();
        placement.check().unwrap();
        assert!((placement.loads_pps()["a"] - 12e6).abs() < 1.0);
        assert_eq!(placement.used(), 1);
        assert!(added.len() >= 2 && added.iter().all(|(at, _)| *at == 0));
        // A second one does not move the first.
        let before = placement.servers[0].instances.clone();
        admit(&mut placement, &named("b", 5e6), &profile()).unwrap();
        assert_eq!(placement.servers[0].instances[..before.len()], before);
        placement.check().unwrap();
    }

    #[test]
    fn what_there_is_more_of_is_cheap() {
        let shape = shape();
        let left = |cores: u32, ways: u32| Remaining { cores, ways, ..Remaining::of(&shape) };
        let (all, none) = (Remaining::of(&shape), left(0, 0));
        assert_eq!(price([].iter(), &shape), 1.0);
        assert_eq!(price([none, none].iter(), &shape), 1.0);
        let (few_cores, few_ways) = (left(0, all.ways / 2), left(all.cores / 2, 0));
        assert!(price([few_cores].iter(), &shape) < 0.1 && price([few_ways].iter(), &shape) > 10.0);
        assert_eq!(price([left(0, all.ways)].iter(), &shape), WAYS.0);
    }

    #[test]
    fn the_nearest_promise_fits() {
        let mut placement = Placement::empty(1, &shape());
        let refusal = admit(&mut placement, &named("a", 40e6), &profile()).unwrap_err();
        assert_eq!(placement, Placement::empty(1, &shape()));
        assert!(matches!(refusal.reason, Reason::Full { servers: 1, .. }), "{refusal}");
        let nearest = refusal.nearest.unwrap();
        // 18 ways carry 16.2 million, and a place in the shared class 0.45 million.
        let pps = nearest.throughput_pps().unwrap();
        assert!((15e6..20e6).contains(&pps), "{refusal}");
        admit(&mut placement, &Slo { promise: nearest, ..named("a", 1.0) }, &profile()).unwrap();
        let full = admit(&mut placement, &named("b", 9e6), &profile()).unwrap_err();
        assert!(full.to_string().contains("no room"), "{full}");
    }

    #[test]
    fn of_two_refusals_the_nearer_promise_counts() {
        let asked = named("a", 10e6);
        let refusal = |throughput_pps: Option<f64>| Refusal {
            reason: Reason::NoServer { cpu: "c".into() },
            nearest: throughput_pps.map(|throughput_pps| Promise::Reserved { throughput_pps, latency_us: 1000.0 }),
        };
        for (first, second) in [(Some(1e6), Some(9e6)), (Some(9e6), Some(1e6)), (None, Some(9e6)), (Some(9e6), None)] {
            assert_eq!(refusal(first).or_nearer(refusal(second), &asked), refusal(Some(9e6)));
        }
        assert_eq!(refusal(None).or_nearer(refusal(None), &asked), refusal(None));
    }

    #[test]
    fn an_impossible_latency_is_refused_with_one_that_is_not() {
        let mut placement = Placement::empty(2, &shape());
        let refusal = admit(&mut placement, &slo(5e6, 2.0), &profile()).unwrap_err();
        let nearest = refusal.nearest.unwrap();
        assert!(matches!(refusal.reason, Reason::Impossible(DemandError::Latency { .. })));
        assert!(nearest.latency_us() >= 10.0 && nearest.throughput_pps() == Some(5e6), "{nearest}");
        assert!(admit(&mut placement, &Slo { promise: nearest, ..slo(1.0, 1.0) }, &profile()).is_ok());
    }

    #[test]
    fn others_are_refused() {
        let mut placement = Placement::empty(1, &shape());
        admit(&mut placement, &named("a", 1e6), &profile()).unwrap();
        let said =
            |placement: &mut Placement, slo: &Slo, profile: &Profile| admit(placement, slo, profile).unwrap_err().to_string();
        assert!(said(&mut placement, &named("a", 1e6), &profile()).contains("already placed"));
        let mut other = profile();
        other.key.cpu = "B".into();
        assert!(said(&mut placement, &named("b", 1e6), &other).contains("no server has the processor of the profile, \"B\""));
        placement.servers[0].instances[0].ways = 40;
        assert!(said(&mut placement, &named("b", 1e6), &profile()).contains("does not have the ways"));
    }

    #[test]
    fn servers_of_one_processor_may_have_several_shapes() {
        let mut placement = Placement::empty(2, &shape());
        placement.servers[1].shape.cores = 10;
        let taken = Instance {
            slo: "old".into(),
            number: 0,
            cores: (0..9).collect(),
            ways: 0,
            memory_mib: 64,
            capacity_pps: 1.0,
            load_pps: 0.0,
        };
        placement.servers[0].instances.push(taken.clone());
        let added = admit(&mut placement, &named("a", 5e6), &profile()).unwrap();
        assert!(added.iter().all(|(at, _)| *at == 1), "the first shape is full: {added:?}");
        placement.check().unwrap();
        // The offer is the best of both.
        let refusal = admit(&mut placement, &named("c", 60e6), &profile()).unwrap_err();
        assert!(matches!(refusal.reason, Reason::Full { servers: 2, .. }), "{refusal}");
        let nearest = refusal.nearest.unwrap();
        assert!(admit(&mut placement, &Slo { promise: nearest, ..named("c", 1.0) }, &profile()).is_ok(), "{nearest}");
        // Servers in use are taken first, whatever their shape.
        let mut placement = Placement::empty(2, &shape());
        placement.servers[1].shape.cores = 10;
        placement.servers[1].instances.push(Instance { cores: vec![0], ..taken });
        let added = admit(&mut placement, &named("a", 1e6), &profile()).unwrap();
        assert!(added.iter().all(|(at, _)| *at == 1));
    }

    #[test]
    fn a_profile_with_the_whole_cache_goes_where_an_instance_can_have_it() {
        let mut placement = Placement::empty(2, &shape());
        placement.servers[1].shape.ddio_ways = 0;
        let whole = whole();
        let added = admit(&mut placement, &named("a", 1e6), &whole).unwrap();
        assert_eq!(added.iter().map(|(at, instance)| (*at, instance.ways)).collect::<Vec<_>>(), [(1, 20)]);
        placement.check().unwrap();
        // The other shape can never take one, and this one is full.
        let refusal = admit(&mut placement, &named("b", 1e6), &whole).unwrap_err();
        assert!(matches!(refusal.reason, Reason::Full { servers: 1, .. }), "{refusal}");
        placement.servers.truncate(1);
        let refusal = admit(&mut placement, &named("b", 1e6), &whole).unwrap_err();
        assert!(matches!(refusal.reason, Reason::Impossible(DemandError::WholeCache { .. })), "{refusal}");
    }

    #[test]
    fn the_nearest_of_several_is_that_with_most_throughput_then_that_with_least_latency() {
        let asked = named("a", 10e6);
        let at = |throughput_pps, latency_us| nearness(&Promise::Reserved { throughput_pps, latency_us }, &asked);
        let falling = [at(9e6, 1000.0), at(5e6, 1000.0), at(10e6, 1100.0), at(10e6, 5000.0), at(5e6, 2000.0), at(4e6, 2000.0)];
        assert!(falling.is_sorted(), "{falling:?}");
    }

    #[test]
    fn classes_and_the_shared_class_are_limits() {
        let few = ServerShape { classes: 3, ..shape() };
        let mut placement = Placement::empty(1, &few);
        for name in ["a", "b"] {
            admit(&mut placement, &named(name, 1.8e6), &profile()).unwrap();
        }
        placement.check().unwrap();
        let mut on_demand = named("c", 1.0);
        on_demand.promise = Promise::OnDemand { latency_us: 1000.0, cap: Cap { instances: Some(1), load_pps: None } };
        let result = admit(&mut placement, &on_demand, &profile());
        let shared = placement.instances().any(|(_, instance)| instance.ways == 0);
        assert_eq!(result.is_ok(), shared, "two classes are taken unless one of them is shared");
    }

    #[test]
    fn many_are_packed() {
        let slos: Vec<Slo> = (0..20).map(|i| named(&format!("s{i}"), 1e6 + 4e5 * f64::from(i))).collect();
        let profile = profile();
        let mut placement = Placement::empty(20, &shape());
        let results = admit_all(&mut placement, &slos.iter().map(|slo| (slo, &profile)).collect::<Vec<_>>());
        assert!(results.iter().all(Result::is_ok));
        placement.check().unwrap();
        for slo in &slos {
            assert!((placement.loads_pps()[slo.name.as_str()] - slo.promise.throughput_pps().unwrap()).abs() < 1.0);
        }
    }

    #[test]
    fn numbers_are_rounded_to_three_digits() {
        assert_eq!(rounded(1234567.0, f64::floor), 1230000.0);
        assert_eq!(rounded(1234567.0, f64::ceil), 1240000.0);
        assert_eq!(rounded(5e6, f64::ceil), 5e6);
    }
}
