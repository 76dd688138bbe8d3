//! The state of a server's lease, and its step.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lease::Lease;
use super::max_min::{self, Wish};
use super::observation::{
    BrokenTerms, CacheClass, Decision, InstanceId, InstanceSample, Observation, ObservationError, Policed, Remedy, Request, Terms,
};
use super::police::Police;
use super::{CALM, CONFIRM, FULL, GONE, HIGH_MISSES, LEAVE, PATIENCE, PROBATION, Pause, SETTLE, SLACK, UNKNOWN, WINDOW};
use crate::placement::bits;

/// How the lease of a server is shared out. Starts empty; the instances are those of each
/// observation.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sharing {
    period: u64,
    /// Periods until evaluation resumes.
    settle: u32,
    /// Sorted by id.
    members: Vec<Member>,
    shared: Shared,
    /// Pause before the next exchange between the shared and an own class.
    exchange: Pause,
    /// SLOs that requested an instance, and their instances then.
    asked: BTreeMap<String, u32>,
    classes: Vec<CacheClass>,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Member {
    seen: InstanceSample,
    latency_ns: u64,
    /// Its own class, if it has one.
    own: Option<Own>,
    /// Whether latency was above the promise in evaluated periods; bit 0 is the last one.
    history: u32,
    /// Consecutive evaluated periods in which it was calm.
    calm: u32,
    /// Consecutive evaluated periods in which the promise was kept, in the same class.
    kept: u32,
    /// Consecutive periods above the promise.
    above: u64,
    /// Consecutive periods with unknown latency.
    unknown: u32,
    /// Evaluated periods in which cache could not help.
    failed: u32,
    /// Its return to the shared class.
    back: Option<Back>,
    /// Pause before the next return.
    pause: Pause,
    police: Police,
    /// The limit in force, including that of the agreed load.
    limit_pps: Option<f64>,
}

/// A class of a single instance.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// The period in which it got it.
    since: u64,
    ways: u32,
    need: u32,
    /// Whether its last change was to give a way away; `pause` is before the next.
    gave: bool,
    pause: Pause,
    /// Its own load and the others' misses, once settled.
    beside: Option<(f64, f64)>,
    /// Whether an instance has left the server since.
    left: bool,
}

/// A return to the shared class that may turn out wrong.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Back {
    since: u64,
    /// What its own class needed.
    need: u32,
    /// Its own load and the others' misses then.
    beside: (f64, f64),
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Shared {
    ways: u32,
    /// Whether its lines are all in use.
    full: bool,
    /// None is the fair share of each instance in it.
    need: Option<u32>,
    gave: bool,
    pause: Pause,
}

/// A class when ways are given out.
struct Part {
    /// Index of its member; none is the shared class.
    member: Option<usize>,
    need: u32,
    weight: u32,
    given: u32,
}

impl Member {
    fn new(seen: &InstanceSample) -> Self {
        Self {
            seen: seen.clone(),
            latency_ns: 0,
            own: None,
            history: 0,
            calm: 0,
            kept: 0,
            above: 0,
            unknown: 0,
            failed: 0,
            back: None,
            pause: Pause::default(),
            police: Police::default(),
            limit_pps: None,
        }
    }

    fn recent(&self) -> u32 {
        self.history & ((1 << WINDOW) - 1)
    }

    /// Whether this period counts: with packets but no latency it does not.
    fn is_known(&self) -> bool {
        self.seen.latency_p95_ns.is_some() || self.seen.offered_pps <= 0.0
    }

    fn is_broken(&self) -> bool {
        self.is_known() && self.history & 1 == 1 && self.recent().count_ones() >= CONFIRM
    }

    /// The promised latency over the measured one; none without packets.
    fn part(&self) -> Option<f64> {
        self.seen.latency_p95_ns.map(|ns| self.latency_ns as f64 / ns.max(1) as f64)
    }

    fn is_above(&self) -> bool {
        self.seen.latency_p95_ns.is_some_and(|ns| ns > self.latency_ns)
    }

    fn is_calm(&self) -> bool {
        match self.part() {
            Some(part) => part >= 1.0 / SLACK,
            None => self.is_known() || self.calm > 0,
        }
    }

    /// Whether it misses so much that cache may be short.
    fn misses(&self) -> bool {
        let carried = self.limit_pps.map_or(self.seen.offered_pps, |limit| limit.min(self.seen.offered_pps));
        self.seen.misses_per_s > 0.0 && self.seen.misses_per_s >= HIGH_MISSES * carried
    }

    /// Whether it fills this many ways.
    fn fills(&self, ways: u32, lease: &Lease) -> bool {
        fills(self.seen.occupancy_bytes as f64, ways, lease)
    }

    /// Whether its promise is broken and cache seems to be short.
    fn lacks_cache(&self, shared: &Shared, lease: &Lease) -> bool {
        let is_full = self.own.as_ref().map_or(shared.full, |own| self.fills(own.ways, lease));
        self.is_broken() && self.misses() && is_full
    }
}

fn fills(bytes: f64, ways: u32, lease: &Lease) -> bool {
    bytes >= FULL * f64::from(ways) * lease.way_bytes as f64
}

impl Sharing {
    /// Whether another instance of an SLO is requested: until its promise has held for a while, or
    /// the number of its instances changes.
    pub fn asks_for(&self, slo: &str) -> bool {
        self.asked.contains_key(slo)
    }

    /// Advances one period: from an observation to a decision.
    ///
    /// # Errors
    /// [`ObservationError`]; the state is unchanged.
    pub fn step(&mut self, seen: &Observation) -> Result<Decision, ObservationError> {
        seen.check()?;
        let lease = &seen.lease;
        self.period += 1;
        let settled = !self.meet(seen) && self.settle == 0;
        self.settle = self.settle.saturating_sub(1);
        if settled {
            self.evaluate(lease);
            self.share(lease);
        }
        let moved = self.lay_out(lease);
        let (requests, policed) = self.ask_and_police(&seen.slos, settled);
        let violations = self.violations(&requests, &policed, settled);
        Ok(Decision { classes: self.classes.clone(), moved, requests, policed, violations })
    }

    /// Updates the members from an observation. Returns whether they have changed, or the lease has
    /// become too small for all own classes.
    fn meet(&mut self, seen: &Observation) -> bool {
        let mut before: BTreeMap<InstanceId, Member> =
            std::mem::take(&mut self.members).into_iter().map(|member| (member.seen.id.clone(), member)).collect();
        let had = before.len();
        let promised: BTreeMap<&str, u64> = seen.slos.iter().map(|terms| (terms.slo.as_str(), terms.latency_ns)).collect();
        let mut sorted: Vec<&InstanceSample> = seen.instances.iter().collect();
        sorted.sort_by(|a, b| a.id.cmp(&b.id));
        let mut came = false;
        for now in sorted {
            let known = before.remove(&now.id);
            came |= known.is_none();
            let mut member = known.unwrap_or_else(|| Member::new(now));
            member.seen = now.clone();
            member.latency_ns = promised.get(now.id.slo.as_str()).copied().unwrap_or(u64::MAX);
            member.unknown = if member.is_known() { 0 } else { member.unknown.saturating_add(1) };
            if member.is_known() {
                member.above = if member.is_above() { member.above + 1 } else { 0 };
            }
            member.pause.step();
            if let Some(own) = &mut member.own {
                own.pause.step();
            }
            self.members.push(member);
        }
        if !before.is_empty() {
            self.members.iter_mut().filter_map(|member| member.own.as_mut()).for_each(|own| own.left = true);
        }
        self.shared.pause.step();
        self.exchange.step();
        let others = came || self.members.len() != had;
        if others {
            // What was learnt of the shared class was about other members; a class that gave too
            // much may have more now.
            self.shared = Shared { ways: self.shared.ways, ..Shared::default() };
            self.exchange.forget();
            self.members.iter_mut().filter_map(|member| member.own.as_mut()).for_each(|own| own.pause.forget());
            self.settle = SETTLE;
        }
        let mut fewer = false;
        while self.owns() + u32::from(self.has_shared(&seen.lease)) > seen.lease.most_classes() {
            let own = (0..self.members.len()).filter(|i| self.members[*i].own.is_some());
            let Some(least) = own.min_by(|a, b| self.members[*a].seen.misses_per_s.total_cmp(&self.members[*b].seen.misses_per_s))
            else {
                break;
            };
            self.members[least].own = None;
            fewer = true;
        }
        others || fewer
    }

    fn owns(&self) -> u32 {
        self.members.iter().filter(|member| member.own.is_some()).count() as u32
    }

    fn in_shared(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|i| self.members[*i].own.is_none())
    }

    fn has_shared(&self, lease: &Lease) -> bool {
        lease.riders || self.in_shared().next().is_some()
    }

    fn lacks_cache(&self, i: usize, lease: &Lease) -> bool {
        self.members[i].lacks_cache(&self.shared, lease)
    }

    fn fair(&self, lease: &Lease) -> u32 {
        (lease.ways() / (self.members.len() as u32).max(1)).max(lease.min_ways)
    }

    fn evaluate(&mut self, lease: &Lease) {
        let held: f64 = self.in_shared().map(|i| self.members[i].seen.occupancy_bytes as f64).sum();
        self.shared.full = lease.riders || fills(held, self.shared.ways, lease);
        for member in self.members.iter_mut().filter(|member| member.is_known()) {
            member.history = member.history << 1 | u32::from(member.is_above());
            member.calm = if member.is_calm() { member.calm.saturating_add(1) } else { 0 };
            member.kept = if member.is_above() { 0 } else { member.kept.saturating_add(1) };
            if member.recent() == 0 {
                member.failed = 0;
            }
        }
    }

    /// Gives and takes classes, and learns needs.
    fn share(&mut self, lease: &Lease) {
        if self.bring_back(lease) {
            return;
        }
        let isolated = self.isolate_broken(lease);
        self.learn(lease);
        let helped = self.give(lease);
        let parts = self.parts(lease);
        for i in 0..self.members.len() {
            let member = &self.members[i];
            let at = if member.own.is_some() { Some(i) } else { None };
            let is_short = parts.iter().any(|part| part.member == at && part.need > part.given);
            let stuck = member.is_broken() && (!self.lacks_cache(i, lease) || (is_short && !helped));
            if stuck && !isolated.contains(&i) {
                self.members[i].failed = self.members[i].failed.saturating_add(1);
            }
        }
    }

    /// Returns members to the shared class that keep their promise and whose reason for isolation
    /// has gone.
    fn bring_back(&mut self, lease: &Lease) -> bool {
        let all: f64 = self.members.iter().map(|member| member.seen.misses_per_s).sum();
        let (mut ways, now) = (0, self.period);
        for member in &mut self.members {
            let (others, offered) = ((all - member.seen.misses_per_s).max(0.0), member.seen.offered_pps);
            let (kept, may) = (member.kept, member.pause.is_over());
            match &mut member.own {
                Some(own) => {
                    let (load, misses) = *own.beside.get_or_insert((offered, others));
                    let gone = own.left || (misses > 0.0 && others <= GONE * misses) || (load > 0.0 && offered <= GONE * load);
                    if gone && may && kept >= LEAVE {
                        member.back = Some(Back { since: now, need: own.need, beside: (offered, others) });
                        ways += own.ways;
                        member.own = None;
                    }
                }
                None if member.back.is_some_and(|back| now - back.since > PROBATION) => {
                    member.back = None;
                    member.pause.shorten();
                }
                None => {}
            }
        }
        if ways > 0 {
            // Their ways come with them: no other class has less for it.
            self.shared.gave = false;
            self.keep_shared(self.shared.ways + ways, lease);
        }
        ways > 0
    }

    /// The shared class has new members: it needs the fair share of each, but at most `most`.
    fn keep_shared(&mut self, most: u32, lease: &Lease) {
        let fair = self.in_shared().count() as u32 * self.fair(lease);
        self.shared.need = Some(fair.min(most).max(lease.min_ways));
    }

    /// Gives own classes to members of the shared class that lack cache; returns which got one.
    fn isolate_broken(&mut self, lease: &Lease) -> Vec<usize> {
        let broken: Vec<usize> = self.in_shared().filter(|i| self.lacks_cache(*i, lease)).collect();
        if broken.is_empty() {
            return broken;
        }
        if std::mem::take(&mut self.shared.gave) {
            // A way less was too few.
            self.shared.need = Some(self.shared.ways + 1);
            self.shared.pause.start();
            return Vec::new();
        }
        let slots = lease.most_classes().saturating_sub(self.owns() + 1) as usize;
        let chosen = if slots >= broken.len() { broken } else { self.in_shared().filter(|i| self.members[*i].misses()).collect() };
        let isolated = self.isolate(chosen, slots, lease);
        if isolated.is_empty() {
            self.shared.need = Some(self.shared.ways + 1);
        }
        isolated
    }

    /// Isolates the members of `some` that miss most.
    fn isolate(&mut self, mut some: Vec<usize>, most: usize, lease: &Lease) -> Vec<usize> {
        let misses = |i: &usize| self.members[*i].seen.misses_per_s;
        some.sort_by(|a, b| misses(b).total_cmp(&misses(a)).then(a.cmp(b)));
        some.truncate(most);
        // Alone in the shared class, an instance is as in its own.
        if some.len() == self.in_shared().count() && !lease.riders {
            some.pop();
        }
        let (fair, since) = (self.fair(lease), self.period);
        let all: f64 = self.members.iter().map(|member| member.seen.misses_per_s).sum();
        for &i in &some {
            let member = &mut self.members[i];
            let others = (all - member.seen.misses_per_s).max(0.0);
            let (need, beside) = match member.back.take() {
                Some(Back { need, beside: (load, misses), .. }) => {
                    member.pause.start();
                    // If nothing has come since, the level of then was too much.
                    let came = others * GONE > misses || member.seen.offered_pps * GONE > load;
                    (need, (!came).then_some((load, misses)))
                }
                None => (fair, None),
            };
            member.own = Some(Own { since, ways: 0, need, gave: false, pause: Pause::default(), beside, left: false });
        }
        if !some.is_empty() {
            self.keep_shared(self.shared.ways, lease);
        }
        some
    }

    /// Raises the need of an own class whose promise breaks, and lowers one that holds with less.
    fn learn(&mut self, lease: &Lease) {
        for member in &mut self.members {
            let (lacks, calm) = (member.lacks_cache(&self.shared, lease), member.calm);
            let Some(own) = member.own.as_mut().filter(|own| own.ways > 0) else { continue };
            if lacks && own.ways >= own.need {
                own.need = own.ways + 1;
                if std::mem::take(&mut own.gave) {
                    own.pause.start();
                }
            } else if calm >= CALM && own.ways < own.need {
                own.need = own.ways;
            }
        }
    }

    /// Calm classes give a way to each that lacks one; if none can, the shared class is divided.
    /// Returns whether anything was or can soon be done.
    fn give(&mut self, lease: &Lease) -> bool {
        let parts = self.parts(lease);
        let lacks = |part: &&Part| {
            part.need > part.given
                && match part.member {
                    Some(i) => self.lacks_cache(i, lease),
                    None => self.in_shared().any(|i| self.lacks_cache(i, lease)),
                }
        };
        let short = parts.iter().filter(lacks).count();
        if short == 0 {
            return false;
        }
        let calm = |part: &Part| match part.member {
            Some(i) => self.members[i].is_calm().then_some(self.members[i].calm),
            None => {
                let all_calm = self.in_shared().all(|i| self.members[i].is_calm());
                all_calm.then(|| self.in_shared().map(|i| self.members[i].calm).min().unwrap_or(u32::MAX))
            }
        };
        let paused = |part: &Part| match part.member {
            Some(i) => self.members[i].own.as_ref().is_some_and(|own| !own.pause.is_over() || own.since == self.period),
            None => !self.shared.pause.is_over(),
        };
        let mut donors: Vec<(&Part, u32)> = parts
            .iter()
            .filter(|part| part.given > lease.min_ways && !paused(part))
            .filter_map(|part| Some((part, calm(part)?)))
            .collect();
        let soon = !donors.is_empty();
        donors.retain(|(_, calm)| *calm >= CALM);
        // Those that have most per instance.
        donors.sort_by(|(a, _), (b, _)| (b.given * a.weight).cmp(&(a.given * b.weight)));
        let gifts: Vec<(Option<usize>, u32)> = donors.iter().take(short).map(|(part, _)| (part.member, part.given - 1)).collect();
        for (member, need) in gifts {
            match member {
                Some(i) => {
                    self.members[i].calm = 0;
                    if let Some(own) = &mut self.members[i].own {
                        (own.need, own.gave) = (need, true);
                    }
                }
                None => {
                    (self.shared.need, self.shared.gave) = (Some(need), true);
                    let shared: Vec<usize> = self.in_shared().collect();
                    shared.into_iter().for_each(|i| self.members[i].calm = 0);
                }
            }
        }
        if soon {
            return true;
        }
        let slots = lease.most_classes().saturating_sub(self.owns() + 1) as usize;
        let missing = self.in_shared().filter(|i| self.members[*i].misses()).collect();
        !self.isolate(missing, slots.min(1), lease).is_empty() || (slots == 0 && self.exchange(lease))
    }

    /// Where promises break in the shared class and no class is left: its member that misses most
    /// takes the class of the owner that misses least.
    fn exchange(&mut self, lease: &Lease) -> bool {
        let misses = |i: &usize| self.members[*i].seen.misses_per_s;
        let most = self.in_shared().max_by(|a, b| misses(a).total_cmp(&misses(b)));
        let owning = (0..self.members.len()).filter(|i| self.members[*i].own.is_some());
        let least = owning.min_by(|a, b| misses(a).total_cmp(&misses(b)));
        let (Some(most), Some(least)) = (most, least) else { return false };
        let breaks = self.in_shared().any(|i| self.lacks_cache(i, lease));
        if !breaks || !self.exchange.is_over() || misses(&most) <= misses(&least) {
            return false;
        }
        self.members[least].own = None;
        self.isolate(vec![most], 1, lease);
        self.shared.gave = false;
        self.exchange.start();
        true
    }

    /// The ways of each class, the shared class first.
    fn parts(&self, lease: &Lease) -> Vec<Part> {
        let mut owns: Vec<(u64, usize)> =
            self.members.iter().enumerate().filter_map(|(i, member)| Some((member.own.as_ref()?.since, i))).collect();
        owns.sort_unstable();
        let mut parts = Vec::new();
        if self.has_shared(lease) {
            let weight = self.in_shared().count() as u32;
            let need = self.shared.need.unwrap_or(weight * self.fair(lease));
            parts.push(Part { member: None, need, weight: weight.max(1), given: 0 });
        }
        for (_, i) in owns {
            let need = self.members[i].own.as_ref().map_or(0, |own| own.need);
            parts.push(Part { member: Some(i), need, weight: 1, given: 0 });
        }
        let wishes: Vec<Wish> = parts.iter().map(|part| Wish { ways: part.need, weight: part.weight }).collect();
        let mut given = max_min::ways(&wishes, lease.min_ways, lease.ways());
        let left = lease.ways().saturating_sub(given.iter().sum());
        match parts.first() {
            Some(Part { member: None, .. }) => given[0] += left,
            Some(_) => {
                let more: Vec<Wish> = wishes.iter().map(|wish| Wish { ways: lease.ways(), ..*wish }).collect();
                max_min::fill(&mut given, &more, left);
            }
            None => {}
        }
        parts.iter_mut().zip(given).for_each(|(part, given)| part.given = given);
        parts
    }

    /// Lays out the classes; returns whether they have changed.
    fn lay_out(&mut self, lease: &Lease) -> bool {
        let parts = self.parts(lease);
        let low = lease.mask.trailing_zeros();
        let (mut top, mut classes) = (low + lease.ways(), Vec::new());
        for part in &parts {
            let id = |i: usize| self.members[i].seen.id.clone();
            classes.push(match part.member {
                None => {
                    let instances = self.in_shared().map(id).collect();
                    CacheClass { mask: bits(low, part.given), shared: true, instances }
                }
                Some(i) => {
                    top -= part.given;
                    CacheClass { mask: bits(top, part.given), shared: false, instances: vec![id(i)] }
                }
            });
        }
        if classes == self.classes {
            return false;
        }
        self.settle = SETTLE;
        let shared_before = self.classes.first().filter(|class| class.shared);
        let shared_moved = classes.first().filter(|class| class.shared) != shared_before;
        self.shared.ways = 0;
        for part in &parts {
            match part.member {
                None => self.shared.ways = part.given,
                Some(i) => {
                    if let Some(own) = self.members[i].own.as_mut().filter(|own| own.ways != part.given) {
                        own.ways = part.given;
                        (self.members[i].history, self.members[i].kept) = (0, 0);
                    }
                }
            }
        }
        for member in &mut self.members {
            if shared_moved && member.own.is_none() {
                member.history = 0;
            }
            member.police.forget();
        }
        self.classes = classes;
        true
    }

    /// Requests and policing, for what sharing could not do.
    fn ask_and_police(&mut self, slos: &[Terms], settled: bool) -> (Vec<Request>, Vec<Policed>) {
        let (mut requests, mut policed) = (Vec::new(), Vec::new());
        self.asked.retain(|slo, _| slos.iter().any(|terms| terms.slo == *slo));
        let mut sorted: Vec<&Terms> = slos.iter().collect();
        sorted.sort_by(|a, b| a.slo.cmp(&b.slo));
        for terms in sorted {
            let here: Vec<usize> = (0..self.members.len()).filter(|i| self.members[*i].seen.id.slo == terms.slo).collect();
            let instances = here.len() as u32 + terms.elsewhere;
            if self.asked.get(&terms.slo).is_some_and(|before| *before != instances) {
                // A new instance takes its part; or one has gone.
                self.asked.remove(&terms.slo);
                here.iter().for_each(|i| self.members[*i].failed = 0);
            }
            let at_peace = |member: &Member| member.recent() == 0 && member.calm >= CALM && member.police.limit_pps.is_none();
            if here.iter().any(|i| self.members[*i].failed >= PATIENCE) {
                self.asked.insert(terms.slo.clone(), instances);
            } else if here.iter().all(|i| at_peace(&self.members[*i])) {
                self.asked.remove(&terms.slo);
            }
            let has_asked = self.asked.contains_key(&terms.slo);
            let at_cap = terms.refused || terms.cap.instances.is_some_and(|most| instances >= most);
            if has_asked && !at_cap {
                requests.push(Request { slo: terms.slo.clone(), instances: instances + 1 });
            }
            let offered: Vec<f64> = here.iter().map(|i| self.members[*i].seen.offered_pps).collect();
            let agreed = terms.cap.load_pps.filter(|most| offered.iter().sum::<f64>() > *most);
            let agreed = agreed.map(|most| max_min::rates(&offered, most));
            for (k, &i) in here.iter().enumerate() {
                let member = &mut self.members[i];
                let part = member.part().filter(|_| has_asked && at_cap && settled && member.is_broken() && member.failed > 0);
                let offered = agreed.as_ref().map_or(offered[k], |agreed| agreed[k].min(offered[k]));
                let calm = match member.unknown {
                    0 => member.calm,
                    periods if periods < UNKNOWN => 0,
                    _ => CALM,
                };
                member.police.step(part, calm, offered);
                let limits = [member.police.limit_pps, agreed.as_ref().map(|agreed| agreed[k])];
                member.limit_pps = limits.into_iter().flatten().min_by(f64::total_cmp);
                if let Some(limit_pps) = member.limit_pps {
                    policed.push(Policed { id: member.seen.id.clone(), limit_pps });
                }
            }
        }
        (requests, policed)
    }

    fn violations(&self, requests: &[Request], policed: &[Policed], settled: bool) -> Vec<BrokenTerms> {
        let violation = |member: &Member| {
            let id = member.seen.id.clone();
            let latency_p95_ns = member.seen.latency_p95_ns.filter(|_| member.above > 0)?;
            let remedy = match () {
                () if policed.iter().any(|policed| policed.id == id) => Remedy::Police,
                () if requests.iter().any(|request| request.slo == id.slo) => Remedy::Ask,
                () if settled && member.is_broken() && member.failed == 0 => Remedy::Share,
                () if member.own.is_some() => Remedy::Share,
                () => Remedy::Wait,
            };
            Some(BrokenTerms { id, latency_p95_ns, periods: member.above, remedy })
        };
        self.members.iter().filter_map(violation).collect()
    }
}
