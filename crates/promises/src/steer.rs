//! Steers SLOs on demand: turns the decisions of [`Sharing`] into classes, limits and instances.
//!
//! # Approach
//! Packets are timed by chain, so all instances of an SLO have its latency, and equal parts of its
//! input. The lease is what the assignment does not reserve, as far as the hardware has it and
//! groups of others leave it. Ways are only counted here; the cache control lays them out. An
//! instance on demand is in its own class if that exists, else in the shared class, so it has a
//! class even after a refused change.
//!
//! Without cache control the lease is one class of one way, and no misses are seen: sharing then
//! has nothing to give, asks for instances and polices. A request for an instance without a place
//! stays until its SLO is met or a planner places again.
//!
//! # Limits
//! An SLO's share on other servers is unknown here: its cap is taken as this server's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sluice_cache::layout::{self, Want};
use sluice_slo::assignment::Assignment;
use sluice_slo::on_demand::{
    Decision, Footprint, InstanceId, InstanceSample, Lease, LeaseError, Observation, ObservationError, Remedy, Request, Sharing,
    Terms, lease,
};
use sluice_slo::placement::{Instance, Placement, PlacementError};
use sluice_slo::slo::{Promise, Slo};

use super::classes::{self, Capacity, SHARED};
use super::sight::OnDemand;

/// Number of kept decisions.
const MOST_NOTED: usize = 32;

/// Why no decision is made.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    #[error("SLOs on demand are not steered: {0}")]
    Placement(#[from] PlacementError),
    /// The observation is impossible.
    #[error("SLOs on demand are not steered: {0}")]
    Observation(#[from] ObservationError),
}

/// A decision, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// Time on the monotonic clock.
    pub at_ns: u64,
    pub slo: String,
    pub what: String,
}

/// A requested instance that this server cannot provide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lacking {
    /// Number of instances that the SLO should have.
    pub instances: u32,
    pub why: String,
}

/// State of the steering of SLOs on demand.
#[derive(Debug, Clone, Default)]
pub struct Steering {
    /// Whether limits are decided but not applied.
    is_lax: bool,
    sharing: Sharing,
    /// Ways of own classes, by name.
    own: BTreeMap<String, u32>,
    /// Admitted packets per second, by SLO.
    limits: BTreeMap<String, f64>,
    lacking: BTreeMap<String, Lacking>,
    remedies: BTreeMap<String, Remedy>,
    /// Classes that were decided and do not exist yet: name and decision.
    given: Vec<(String, Noted)>,
    noted: VecDeque<Noted>,
    unsaid: Vec<Noted>,
}

pub fn is_on_demand(slo: &Slo) -> bool {
    matches!(slo.promise, Promise::OnDemand { .. })
}

fn on_demand(assignment: &Assignment) -> BTreeSet<&str> {
    assignment.slos.iter().map(|promised| &promised.slo).filter(|slo| is_on_demand(slo)).map(|slo| slo.name.as_str()).collect()
}

fn own_name(slo: &str, number: u32) -> String {
    format!("{slo}.{number}")
}

/// The lease: what is not reserved, as far as the cache has room for it.
fn lease_of(assignment: &Assignment, room: Option<Capacity>) -> Result<Lease, PlacementError> {
    let names = on_demand(assignment);
    let mut lease = assignment.server.lease(|slo| names.contains(slo))?;
    let Some(room) = room else {
        return Ok(Lease { mask: 1, classes: 1, min_ways: 1, reserved: Vec::new(), ..lease });
    };
    let reserved = assignment.server.instances.iter().filter(|instance| instance.ways > 0);
    let reserved: Vec<Want> = reserved.map(|instance| Want { ways: instance.ways, io: false, mask: 0 }).collect();
    lease.min_ways = lease.min_ways.max(room.limits.min_ways);
    // If even the minimum is not available, the cache control reports the holder.
    let ways = lease.ways().min(layout::room(&reserved, false, &room.limits)).max(lease.min_ways);
    lease.mask = 1u64.checked_shl(ways).map_or(u64::MAX, |bit| bit - 1);
    lease.classes = lease.classes.min(room.classes.saturating_sub(reserved.len() as u32)).max(1);
    Ok(lease)
}

/// An assignment with one more instance of an SLO on demand, on a free place.
///
/// # Errors
/// No place is free, or the cap is reached.
pub fn one_more(assignment: &Assignment, slo: &str) -> Result<Assignment, LeaseError> {
    let full = |cores, memory_mib| LeaseError::Full { cores, memory_mib };
    let known = assignment.instances(slo);
    let like = known.first().ok_or_else(|| full(0, 0))?;
    let footprint = Footprint { cores: like.cores.len() as u32, memory_mib: like.memory_mib };
    let promised = assignment.slos.iter().find(|promised| promised.slo.name == slo);
    let promised = promised.ok_or_else(|| full(footprint.cores, footprint.memory_mib))?;
    let mut placement = Placement { servers: vec![assignment.server.clone()] };
    lease(&mut placement, &promised.slo, footprint)?;
    let server = placement.servers.pop().unwrap_or_else(|| assignment.server.clone());
    Ok(Assignment { server, slos: assignment.slos.clone() })
}

impl Steering {
    /// Without SLOs; `police` says whether limits are applied.
    pub fn new(police: bool) -> Self {
        Self { is_lax: !police, ..Self::default() }
    }

    /// The class of an instance, and the name that it is counted under in a shared class.
    pub fn class_of(&self, instance: &Instance) -> (String, Option<String>) {
        let own = own_name(&instance.slo, instance.number);
        if self.own.contains_key(&own) { (own, None) } else { classes::class_of(instance) }
    }

    /// Ways of all own classes, by name.
    pub fn all_own(&self) -> &BTreeMap<String, u32> {
        &self.own
    }

    /// Restores own classes after a refused layout.
    pub fn put_back(&mut self, own: BTreeMap<String, u32>) {
        self.own = own;
    }

    /// Ways of own classes of an SLO's instances, by name.
    pub fn own(&self, assignment: &Assignment, slo: &str) -> BTreeMap<String, u32> {
        let names = assignment.instances(slo).into_iter().map(|instance| own_name(slo, instance.number));
        names.filter_map(|name| self.own.get(&name).map(|ways| (name, *ways))).collect()
    }

    /// Admitted packets per second of an SLO, if limited.
    pub fn limit(&self, slo: &Slo) -> Option<f64> {
        let Promise::OnDemand { cap, .. } = slo.promise else { return None };
        let limits = [cap.load_pps, self.limits.get(&slo.name).copied()];
        limits.into_iter().flatten().min_by(f64::total_cmp)
    }

    /// What an SLO lacks and another server may have.
    pub fn lacking(&self, slo: &str) -> Option<&Lacking> {
        self.lacking.get(slo)
    }

    /// The remedy for an SLO's latency, while it is violated.
    pub fn remedy(&self, slo: &str) -> Option<Remedy> {
        self.remedies.get(slo).copied()
    }

    /// The last decisions, oldest first.
    pub fn noted(&self) -> impl Iterator<Item = &Noted> {
        self.noted.iter()
    }

    /// Decisions since the last call.
    pub fn unsaid(&mut self) -> Vec<Noted> {
        std::mem::take(&mut self.unsaid)
    }

    /// Takes over the real classes after a change or its refusal; forgets own ones without a class.
    pub fn made(&mut self, classes: &BTreeMap<String, u32>) {
        self.own.retain(|name, _| classes.contains_key(name));
        self.own.iter_mut().for_each(|(name, ways)| *ways = classes[name]);
        for (name, noted) in std::mem::take(&mut self.given) {
            if self.own.contains_key(&name) {
                self.say(noted);
            }
        }
    }

    /// Records a decision for people.
    pub fn note(&mut self, at_ns: u64, slo: &str, what: String) {
        self.say(Noted { at_ns, slo: slo.into(), what });
    }

    fn say(&mut self, noted: Noted) {
        self.unsaid.push(noted.clone());
        self.noted.push_back(noted);
        while self.noted.len() > MOST_NOTED {
            self.noted.pop_front();
        }
    }

    /// Lays out all classes of an assignment: reserved and own ones as decided, and the shared
    /// class with the rest of the lease.
    ///
    /// Gives up own classes if they no longer fit.
    pub fn lay_out(&mut self, assignment: &Assignment, room: Option<Capacity>) -> BTreeMap<String, u32> {
        let mut wanted = classes::wanted(assignment);
        let names = on_demand(assignment);
        let here = || assignment.server.instances.iter().filter(|instance| names.contains(instance.slo.as_str()));
        let known: BTreeSet<String> = here().map(|instance| own_name(&instance.slo, instance.number)).collect();
        self.own.retain(|name, _| known.contains(name));
        if names.is_empty() || room.is_none() {
            return wanted;
        }
        let Ok(lease) = lease_of(assignment, room) else { return wanted };
        let shares = lease.riders || self.own.len() < known.len();
        let owned: u32 = self.own.values().sum();
        let least = if shares { lease.min_ways } else { 0 };
        if self.own.len() as u32 + u32::from(shares) > lease.classes || owned + least > lease.ways() {
            self.own.clear();
        }
        let owned: u32 = self.own.values().sum();
        wanted.extend(self.own.clone());
        if lease.riders || self.own.len() < known.len() {
            wanted.insert(SHARED.into(), lease.ways() - owned);
        } else {
            wanted.remove(SHARED);
        }
        wanted
    }

    /// Follows a change of assignment: forgets SLOs that are not in it.
    pub fn follow(&mut self, assignment: Option<&Assignment>) {
        let names = assignment.map(on_demand).unwrap_or_default();
        if names.is_empty() {
            let (noted, unsaid) = (std::mem::take(&mut self.noted), std::mem::take(&mut self.unsaid));
            *self = Self { noted, unsaid, ..Self::new(!self.is_lax) };
        }
        self.limits.retain(|slo, _| names.contains(slo.as_str()));
        self.lacking.retain(|slo, _| names.contains(slo.as_str()));
        self.remedies.retain(|slo, _| names.contains(slo.as_str()));
    }

    /// After a new placement: requests that failed may succeed.
    pub fn ask_anew(&mut self) {
        self.lacking.clear();
    }

    /// Records that a requested instance is not available here.
    pub fn refuse(&mut self, now_ns: u64, request: &Request, why: String) {
        let Request { slo, instances } = request;
        self.note(now_ns, slo, format!("asks for {instances} instances, which are not to be had here: {why}"));
        self.lacking.insert(slo.clone(), Lacking { instances: *instances, why });
    }

    /// Evaluates one window of all SLOs on demand; returns requested instances.
    ///
    /// # Errors
    /// [`SteerError`]; nothing has changed.
    pub fn step(
        &mut self,
        now_ns: u64,
        assignment: &Assignment,
        room: Option<Capacity>,
        seen: &[OnDemand],
    ) -> Result<Vec<Request>, SteerError> {
        let mut observation = Observation { lease: lease_of(assignment, room)?, slos: Vec::new(), instances: Vec::new() };
        for slo in assignment.slos.iter().map(|promised| &promised.slo) {
            let Promise::OnDemand { latency_us, cap } = slo.promise else { continue };
            let Some(seen) = seen.iter().find(|seen| seen.slo == slo.name) else { continue };
            let refused = self.lacking.contains_key(&slo.name);
            let latency_ns = ((latency_us * 1e3) as u64).max(1);
            observation.slos.push(Terms { slo: slo.name.clone(), latency_ns, cap, elsewhere: 0, refused });
            let parts = seen.instances.len().max(1) as f64;
            observation.instances.extend(seen.instances.iter().map(|one| InstanceSample {
                id: InstanceId { slo: slo.name.clone(), number: one.number },
                latency_p95_ns: seen.latency_us.map(|us| (us * 1e3) as u64),
                occupancy_bytes: one.occupancy_bytes.unwrap_or(0),
                misses_per_s: one.misses_per_s.unwrap_or(0.0),
                offered_pps: seen.offered_pps / parts,
            }));
        }
        let decision = self.sharing.step(&observation)?;
        self.isolate(now_ns, &decision);
        self.police(now_ns, &decision, &observation.instances);
        self.remedies.clear();
        let rank = |remedy: Remedy| match remedy {
            Remedy::Wait => 0,
            Remedy::Share => 1,
            Remedy::Ask => 2,
            Remedy::Police => 3,
        };
        for violation in &decision.violations {
            // Without policing, this remedy is not applied.
            let is_done = !self.is_lax || violation.remedy != Remedy::Police;
            let remedy = if is_done { violation.remedy } else { Remedy::Wait };
            let known = self.remedies.entry(violation.id.slo.clone()).or_insert(remedy);
            if rank(remedy) > rank(*known) {
                *known = remedy;
            }
        }
        let (limits, sharing) = (&self.limits, &self.sharing);
        self.lacking.retain(|slo, _| limits.contains_key(slo) || sharing.asks_for(slo));
        Ok(decision.requests)
    }

    fn isolate(&mut self, now_ns: u64, decision: &Decision) {
        let mut own = BTreeMap::new();
        self.given.clear();
        for class in decision.classes.iter().filter(|class| !class.shared) {
            for id in &class.instances {
                let name = own_name(&id.slo, id.number);
                if !self.own.contains_key(&name) {
                    let what = format!("{name} is given a cache class of its own, with {} ways", class.ways());
                    self.given.push((name.clone(), Noted { at_ns: now_ns, slo: id.slo.clone(), what }));
                }
                own.insert(name, class.ways());
            }
        }
        let before = std::mem::replace(&mut self.own, own);
        for id in decision.classes.iter().filter(|class| class.shared).flat_map(|class| &class.instances) {
            let name = own_name(&id.slo, id.number);
            if before.contains_key(&name) {
                self.note(now_ns, &id.slo, format!("{name} goes back to the shared cache class"));
            }
        }
    }

    fn police(&mut self, now_ns: u64, decision: &Decision, instances: &[InstanceSample]) {
        let limit_of = |id: &InstanceId| decision.policed.iter().find(|policed| policed.id == *id).map(|policed| policed.limit_pps);
        let mut limits: BTreeMap<String, f64> = BTreeMap::new();
        for policed in &decision.policed {
            // An instance without a limit is given its whole input, since there is one input.
            let own = instances.iter().filter(|seen| seen.id.slo == policed.id.slo);
            let sum = own.map(|seen| limit_of(&seen.id).unwrap_or(seen.offered_pps)).sum();
            limits.insert(policed.id.slo.clone(), sum);
        }
        let began: Vec<(String, f64)> =
            limits.iter().filter(|(slo, _)| !self.limits.contains_key(*slo)).map(|(slo, pps)| (slo.clone(), *pps)).collect();
        let ended: Vec<String> = self.limits.keys().filter(|slo| !limits.contains_key(*slo)).cloned().collect();
        self.limits = limits;
        for (slo, pps) in began {
            let what = match self.is_lax {
                true => format!("input would be policed, at {pps:.0} packets/s for now, and policing is off (promises.police)"),
                false => format!("input is policed, at {pps:.0} packets/s for now"),
            };
            self.note(now_ns, &slo, what);
        }
        let what = if self.is_lax { "input would not be policed any more" } else { "input is not policed any more" };
        ended.iter().for_each(|slo| self.note(now_ns, slo, what.into()));
    }
}

#[cfg(test)]
mod tests {
    use sluice_cache::layout::Limits;
    use sluice_slo::slo::Cap;

    use super::super::overlay::tests::assignment;
    use super::super::sight::InstanceUse;
    use super::*;

    /// Twenty ways, two of them shared with devices.
    const LIMITS: Limits = Limits { all: 0xf_ffff, io: 0xc_0000, taken: 0, root: 0xf_ffff, min_ways: 1, sparse: false };
    const ROOM: Option<Capacity> = Some(Capacity { limits: LIMITS, classes: 15 });

    /// "acme" is reserved, "dns" and "web" are on demand.
    fn three(web: &[&[u32]], most: u32) -> Assignment {
        let mut three = assignment(&[("acme", &["nat"], &[&[0]], 2), ("dns", &["fw"], &[&[1]], 0), ("web", &["fw"], web, 0)]);
        for promised in &mut three.slos[1..] {
            let cap = Cap { instances: Some(most), load_pps: None };
            promised.slo.promise = Promise::OnDemand { latency_us: 100.0, cap };
        }
        three.server.instances.iter_mut().filter(|one| one.ways == 0).for_each(|one| (one.load_pps, one.capacity_pps) = (0.0, 0.0));
        three
    }

    fn seen(slo: &str, instances: u32, latency_us: f64, misses_per_s: f64) -> OnDemand {
        let one = |number| InstanceUse {
            number,
            occupancy_bytes: Some(6 << 20),
            misses_per_s: Some(misses_per_s),
            ..InstanceUse::default()
        };
        OnDemand {
            slo: slo.into(),
            promised_us: 100.0,
            latency_us: Some(latency_us),
            offered_pps: 1e5,
            instances: (0..instances).map(one).collect(),
        }
    }

    fn steps(steering: &mut Steering, on: &Assignment, room: Option<Capacity>, seen: &[OnDemand], n: usize) -> Vec<Request> {
        let step = |k: usize| {
            let requests = steering.step(k as u64, on, room, seen).unwrap();
            let made = steering.lay_out(on, room);
            steering.made(&made);
            requests
        };
        (0..n).map(step).last().unwrap_or_default()
    }

    fn of(classes: &[(&str, u32)]) -> BTreeMap<String, u32> {
        classes.iter().map(|(name, ways)| (name.to_string(), *ways)).collect()
    }

    #[test]
    fn one_that_breaks_its_promise_and_misses_has_a_class_until_its_neighbour_is_quiet() {
        let (mut steering, on) = (Steering::default(), three(&[&[2]], 1));
        // Eleven ways less DDIO's two and those of "acme".
        assert_eq!(steering.lay_out(&on, ROOM), of(&[("acme.0", 2), ("shared", 7)]));
        let noisy = [seen("dns", 1, 10.0, 1e6), seen("web", 1, 300.0, 1e5)];
        for _ in 0..20 {
            steps(&mut steering, &on, ROOM, &noisy, 1);
            if !steering.own(&on, "web").is_empty() {
                break;
            }
        }
        assert_eq!(steering.lay_out(&on, ROOM), of(&[("acme.0", 2), ("shared", 4), ("web.0", 3)]));
        let instance = on.instances("web")[0].clone();
        assert_eq!(steering.class_of(&instance), ("web.0".into(), None));
        assert_eq!(steering.remedy("web"), Some(Remedy::Share));
        let kept = [seen("dns", 1, 10.0, 1e6), seen("web", 1, 50.0, 1e5)];
        steps(&mut steering, &on, ROOM, &kept, 20);
        assert_eq!(steering.own(&on, "web").len(), 1, "the neighbour misses still");
        steps(&mut steering, &on, ROOM, &[seen("dns", 1, 10.0, 0.0), seen("web", 1, 50.0, 1e5)], 20);
        assert_eq!(steering.lay_out(&on, ROOM), of(&[("acme.0", 2), ("shared", 7)]));
        assert_eq!(steering.class_of(&instance), ("shared".into(), Some("web.0".into())));
        let noted: Vec<String> = steering.unsaid().into_iter().map(|noted| noted.what).collect();
        assert_eq!(noted, ["web.0 is given a cache class of its own, with 3 ways", "web.0 goes back to the shared cache class"]);
    }

    #[test]
    fn a_class_that_is_refused_is_nobodys_and_is_reported_when_it_is_there() {
        let (mut steering, on) = (Steering::default(), three(&[&[2]], 1));
        let before = steering.lay_out(&on, ROOM);
        let noisy = [seen("dns", 1, 10.0, 1e6), seen("web", 1, 300.0, 1e5)];
        let instance = on.instances("web")[0].clone();
        let mut refused = 0;
        for now in 0..20 {
            steering.step(now, &on, ROOM, &noisy).unwrap();
            refused += u32::from(steering.lay_out(&on, ROOM) != before);
            steering.made(&before);
            assert_eq!(steering.class_of(&instance), ("shared".into(), Some("web.0".into())), "where it is counted");
        }
        assert!(refused > 1 && steering.unsaid().is_empty() && steering.own(&on, "web").is_empty(), "{refused}");
        steps(&mut steering, &on, ROOM, &noisy, 1);
        assert_eq!(steering.class_of(&instance), ("web.0".into(), None));
        assert!(steering.unsaid()[0].what.contains("web.0 is given a cache class of its own"));
    }

    #[test]
    fn without_cache_classes_instances_are_asked_for_and_input_is_policed() {
        let (mut steering, on) = (Steering::default(), three(&[&[2]], 3));
        let broken = [seen("dns", 1, 10.0, 0.0), seen("web", 1, 300.0, 0.0)];
        let requests = steps(&mut steering, &on, None, &broken, 12);
        assert_eq!(requests, [Request { slo: "web".into(), instances: 2 }]);
        assert!(steering.own.is_empty() && steering.limits.is_empty());
        steering.refuse(12, &requests[0], "full".into());
        assert!(steps(&mut steering, &on, None, &broken, 6).is_empty());
        let web = &on.slos[2].slo;
        assert!(steering.limit(web).unwrap() < 1e5 && steering.limit(&on.slos[1].slo).is_none());
        assert_eq!((steering.lacking("web").unwrap().instances, steering.remedy("web")), (2, Some(Remedy::Police)));
        steering.ask_anew();
        assert_eq!(steps(&mut steering, &on, None, &broken, 1), requests, "somebody has placed: it may be had now");
        steering.follow(Some(&assignment(&[])));
        assert!(steering.limits.is_empty());
    }

    #[test]
    fn a_limit_that_nobody_keeps_is_not_said_to_be_kept() {
        let on = three(&[&[2]], 1);
        let broken = [seen("dns", 1, 10.0, 0.0), seen("web", 1, 300.0, 0.0)];
        for (police, begins, remedy) in
            [(true, "input is policed, at", Remedy::Police), (false, "input would be policed, at", Remedy::Wait)]
        {
            let mut steering = Steering::new(police);
            steering.follow(Some(&assignment(&[])));
            steps(&mut steering, &on, None, &broken, 30);
            let noted = steering.unsaid();
            assert!(noted.iter().any(|noted| noted.what.starts_with(begins)), "{noted:?}");
            assert_eq!((noted.iter().any(|noted| noted.what.contains("is off")), steering.remedy("web")), (!police, Some(remedy)));
        }
    }

    #[test]
    fn a_load_that_was_agreed_is_a_limit_from_the_beginning() {
        let mut on = three(&[&[2]], 1);
        let cap = Cap { instances: None, load_pps: Some(5e4) };
        on.slos[2].slo.promise = Promise::OnDemand { latency_us: 100.0, cap };
        assert_eq!(Steering::default().limit(&on.slos[2].slo), Some(5e4));
        assert_eq!(Steering::default().limit(&on.slos[0].slo), None, "reserved");
    }

    #[test]
    fn one_more_needs_a_place_and_the_cap() {
        let more = one_more(&three(&[&[2]], 2), "web").unwrap();
        assert_eq!(more.instances("web").iter().map(|one| one.cores[0]).collect::<Vec<_>>(), [2, 3]);
        more.check().unwrap();
        assert!(one_more(&more, "web").unwrap_err().to_string().contains("as many as its cap allows"));
        assert!(one_more(&three(&[&[2], &[3]], 9), "web").unwrap_err().to_string().contains("no server has 1 cores"));
    }

    #[test]
    fn a_placement_that_leaves_less_takes_own_classes_back() {
        let (mut steering, on) = (Steering::default(), three(&[&[2]], 1));
        steering.own = of(&[("web.0", 6), ("gone.0", 1)]);
        assert_eq!(steering.lay_out(&on, ROOM), of(&[("acme.0", 2), ("shared", 1), ("web.0", 6)]));
        let mut more = on.clone();
        more.server.instances[0].ways = 4;
        assert_eq!(steering.lay_out(&more, ROOM), of(&[("acme.0", 4), ("shared", 5)]));
        let small = Capacity { limits: Limits { all: 0x7f, io: 0x60, ..LIMITS }, classes: 2 };
        assert_eq!(steering.lay_out(&on, Some(small)), of(&[("acme.0", 2), ("shared", 3)]));
    }

    #[test]
    fn ways_of_others_are_not_leased() {
        let (mut steering, on) = (Steering::default(), three(&[&[2]], 1));
        let mut beside = |taken| {
            let room = Capacity { limits: Limits { taken, ..LIMITS }, classes: 15 };
            steering.lay_out(&on, Some(room))["shared"]
        };
        assert_eq!(beside(0), 7);
        // Eighteen less those of the other and of "acme".
        assert_eq!(beside(0x3_ff00), 6);
        // Five and six in two pieces: "acme" fits into one.
        assert_eq!(beside(0x3_c0e0), 6, "in one piece");
        assert_eq!(beside(0xf_ffff), 1, "who has them all is found by the change that is refused");
    }
}
