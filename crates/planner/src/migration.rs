//! A migration between placements, with every SLO kept at each step.
//!
//! # Terms
//! An instance *stays* if its SLO has one on the same server in both placements; its number of ways
//! may change. Others are started and stopped. A *move* is a start followed by a stop.
//!
//! # Approach
//! Each step is tried on a copy of the current placement, and taken only if the copy holds
//! afterwards: a server has what its instances are given, the instances of an SLO together carry at
//! least what it is promised, and none is sent more than it carries. Steps that move no instance
//! come first (fewer ways, more ways), then starts, then stops, then the steps that these made room
//! for. Where no step is possible and something is left (two instances that exchange places), an
//! instance in the way gets a stand-in on any server with room. Without such room there is no plan,
//! and the current placement stands.
//!
//! New flows are divided anew ([`Step::Redirect`]) after a step that makes room for more of them,
//! and before one that takes room away. Leaving instances get only what the others cannot carry
//! yet. In the mode [`Old::Stay`], an instance keeps its flows until they end, and the step after
//! such a division waits: a stop until the instance has no flows, a change to fewer ways until its
//! remaining load is no more than it carries then. In the mode [`Old::Follow`], old flows are
//! divided like new ones, at once.
//!
//! # Limits
//! A plan has no times. With [`Old::Follow`], an NF loses the state of its flows unless it moves
//! the state itself.

use std::collections::{BTreeMap, BTreeSet};

use sluice_slo::placement::{Instance, Placement};

/// What becomes of the flows of a leaving instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Old {
    /// They stay until they end.
    Stay,
    /// They follow the new ones.
    Follow,
}

/// The parts of an SLO's flows, by the numbers of its instances.
pub type Parts = BTreeMap<u32, f64>;

/// One step; the next is taken when it is done.
#[derive(Debug, Clone, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// An instance's class changes its ways, or the instance counts for another load with the same
    /// ways. Where it carries less then, this is done once its load is no more than that.
    Resize {
        server: String,
        slo: String,
        number: u32,
        /// Ways before.
        from: u32,
        /// Ways afterwards; 0 is the shared class.
        to: u32,
        /// Packets per second that it carries afterwards.
        capacity_pps: f64,
    },
    Start {
        server: String,
        instance: Instance,
    },
    /// New flows of an SLO are divided anew among its instances.
    Redirect {
        slo: String,
        /// The part of each instance that gets any; they add up to 1.
        parts: Parts,
        /// Instances that get no more new flows.
        away_from: Vec<u32>,
        old: Old,
    },
    /// An instance is stopped, once it has no flows.
    Stop {
        server: String,
        slo: String,
        number: u32,
    },
}

/// How to get from one placement to another.
#[derive(Debug, Clone, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Migration {
    pub steps: Vec<Step>,
    /// The result: the wanted placement, in which instances that stay keep their numbers.
    pub placement: Placement,
    /// Servers that are no longer in use.
    pub saves: usize,
    pub starts: usize,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MigrationError {
    #[error("it would save {saves} of {before} servers, and less than {least:.0} % is not worth moving for")]
    NotWorth {
        saves: usize,
        before: usize,
        /// Least saving that is worth it, in percent.
        least: f64,
    },
    #[error(
        "\"{slo}\" cannot be moved without breaking a promise meanwhile: no server has room for a stand-in; add one for the time"
    )]
    NoRoom { slo: String },
    #[error("the placements are not of the same servers")]
    Servers,
    #[error("the step is of another placement: {slo}.{number} is not on {server}")]
    Another { slo: String, number: u32, server: String },
}

impl Step {
    /// Applies this step to a placement. The total load of each SLO is unchanged.
    ///
    /// # Errors
    /// [`MigrationError::Another`]; the placement is unchanged.
    pub fn take(&self, placement: &mut Placement) -> Result<(), MigrationError> {
        match self {
            Self::Resize { server, slo, number, to, capacity_pps, .. } => {
                let (at, i) = find(placement, server, slo, *number)?;
                let instance = &mut placement.servers[at].instances[i];
                (instance.ways, instance.capacity_pps) = (*to, *capacity_pps);
            }
            Self::Start { server, instance } => {
                let at = placement.servers.iter().position(|known| known.name == *server);
                let another =
                    || MigrationError::Another { slo: instance.slo.clone(), number: instance.number, server: server.clone() };
                placement.servers[at.ok_or_else(another)?].instances.push(instance.clone());
            }
            Self::Redirect { slo, parts, .. } => {
                let sum = placement.loads_pps().get(slo.as_str()).copied().unwrap_or(0.0);
                let own = placement.servers.iter_mut().flat_map(|server| &mut server.instances).filter(|i| i.slo == *slo);
                own.for_each(|instance| instance.load_pps = sum * parts.get(&instance.number).copied().unwrap_or(0.0));
            }
            Self::Stop { server, slo, number } => {
                let (at, i) = find(placement, server, slo, *number)?;
                placement.servers[at].instances.remove(i);
            }
        }
        Ok(())
    }
}

/// The indices of a server and of an instance on it.
fn find(placement: &Placement, server: &str, slo: &str, number: u32) -> Result<(usize, usize), MigrationError> {
    let at = placement.servers.iter().position(|known| known.name == server);
    let is_it = |instance: &Instance| instance.slo == slo && instance.number == number;
    let found = at.and_then(|at| Some((at, placement.servers[at].instances.iter().position(is_it)?)));
    found.ok_or_else(|| MigrationError::Another { slo: slo.into(), number, server: server.into() })
}

/// The plan from `current` to `target`, if it saves at least the part `least` of the servers in
/// use.
///
/// # Errors
/// [`MigrationError`]; the current placement stands.
pub fn plan(current: &Placement, target: &Placement, least: f64, old: Old) -> Result<Migration, MigrationError> {
    let same = |a: &Placement, b: &Placement| {
        a.servers.len() == b.servers.len() && a.servers.iter().zip(&b.servers).all(|(a, b)| a.name == b.name && a.shape == b.shape)
    };
    if !same(current, target) {
        return Err(MigrationError::Servers);
    }
    let (before, saves) = (current.used(), current.used().saturating_sub(target.used()));
    if (saves as f64) < least * before as f64 {
        return Err(MigrationError::NotWorth { saves, before, least: least * 100.0 });
    }
    let mut walk = Walk::new(current, target, old);
    walk.all()?;
    walk.now.servers.iter_mut().for_each(|server| server.instances.sort_by(|a, b| (&a.slo, a.number).cmp(&(&b.slo, b.number))));
    let starts = walk.steps.iter().filter(|step| matches!(step, Step::Start { .. })).count();
    Ok(Migration { steps: walk.steps, placement: walk.now, saves, starts })
}

#[derive(Debug, Clone, PartialEq)]
enum Left {
    /// Instances that keep their ways but carry another load by a new profile: server, number, ways
    /// and packets per second of each.
    Recount {
        slo: String,
        instances: Vec<(usize, u32, u32, f64)>,
    },
    Resize {
        at: usize,
        slo: String,
        number: u32,
        to: u32,
        capacity_pps: f64,
    },
    Start {
        at: usize,
        instance: Instance,
    },
    Stop {
        at: usize,
        slo: String,
        number: u32,
    },
}

struct Carries {
    number: u32,
    capacity_pps: f64,
    /// Whether it is leaving.
    is_going: bool,
}

/// The division of flows by what instances carry; leaving ones get only the excess of the others.
/// So none gets more than it carries if all together carry what is promised.
fn divided(instances: &[Carries], promised_pps: f64) -> Parts {
    let of = |going: bool| instances.iter().filter(move |one| one.is_going == going);
    let sum = |going: bool| of(going).map(|one| one.capacity_pps).sum::<f64>();
    let (staying, going) = (sum(false), sum(true));
    // Part of the leaving ones.
    let left = match () {
        () if of(false).next().is_none() => 1.0,
        () if going <= 0.0 || promised_pps <= staying * (1.0 + 1e-9) => 0.0,
        () => 1.0 - staying / promised_pps,
    };
    let part = |one: &Carries| {
        let (all, sum) = if one.is_going { (left, going) } else { (1.0 - left, staying) };
        // On demand, capacities are unknown.
        let part = if sum > 0.0 { one.capacity_pps / sum } else { 1.0 / of(one.is_going).count() as f64 };
        (one.number, all * part)
    };
    instances.iter().map(part).filter(|(_, part)| *part > 0.0).collect()
}

/// Whether two capacities are equal; a new profile makes them differ.
fn is_alike(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.max(b)
}

fn alike(a: &Parts, b: &Parts) -> bool {
    a.len() == b.len() && a.iter().all(|(number, part)| b.get(number).is_some_and(|other| (part - other).abs() <= 1e-9))
}

/// By SLO, indices of servers.
type Homes = BTreeMap<String, BTreeSet<usize>>;

/// The instances of an SLO, in the order of their servers.
fn instances_of<'a>(slo: &'a str, placement: &'a Placement, homes: &'a Homes) -> impl Iterator<Item = &'a Instance> {
    let servers = homes.get(slo).into_iter().flatten();
    servers.flat_map(move |at| &placement.servers[*at].instances).filter(move |instance| instance.slo == slo)
}

struct Walk {
    now: Placement,
    left: Vec<Left>,
    steps: Vec<Step>,
    promised: BTreeMap<String, f64>,
    /// What SLOs without a running instance are promised.
    new: BTreeMap<String, f64>,
    /// The next free number of each SLO.
    numbers: BTreeMap<String, u32>,
    leaving: BTreeSet<(String, u32)>,
    /// The servers that have instances of each SLO, or had any.
    homes: Homes,
    /// How the flows of each SLO are divided.
    parts: BTreeMap<String, Parts>,
    old: Old,
}

impl Walk {
    fn new(current: &Placement, target: &Placement, old: Old) -> Self {
        let owned =
            |loads: BTreeMap<&str, f64>| -> BTreeMap<String, f64> { loads.into_iter().map(|(k, v)| (k.to_string(), v)).collect() };
        let mut promised = owned(current.loads_pps());
        // A new SLO is promised nothing before its instances run.
        let wanted: BTreeSet<&str> = target.instances().map(|(_, instance)| instance.slo.as_str()).collect();
        promised.retain(|slo, _| wanted.contains(slo.as_str()));
        let (mut numbers, mut homes) = (BTreeMap::new(), Homes::new());
        for (at, instance) in current.instances() {
            let next = numbers.entry(instance.slo.clone()).or_insert(0);
            *next = (*next).max(instance.number + 1);
            homes.entry(instance.slo.clone()).or_default().insert(at);
        }
        let (mut left, mut leaving, mut recounts) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        for (at, (has, wants)) in current.servers.iter().zip(&target.servers).enumerate() {
            let mut wanted: Vec<&Instance> = wants.instances.iter().collect();
            // Those of the same size first.
            let mut stays: Vec<Option<&Instance>> = vec![None; has.instances.len()];
            for exact in [true, false] {
                for (stay, instance) in stays.iter_mut().zip(&has.instances).filter(|(stay, _)| stay.is_none()) {
                    let fits = |want: &&Instance| want.slo == instance.slo && (!exact || want.ways == instance.ways);
                    *stay = wanted.iter().position(fits).map(|i| wanted.remove(i));
                }
            }
            for (instance, stay) in has.instances.iter().zip(stays) {
                let (slo, number) = (instance.slo.clone(), instance.number);
                match stay {
                    Some(want) if want.ways == instance.ways => {
                        if !is_alike(want.capacity_pps, instance.capacity_pps) {
                            let counted: &mut Vec<_> = recounts.entry(slo).or_default();
                            counted.push((at, number, want.ways, want.capacity_pps));
                        }
                    }
                    Some(want) => left.push(Left::Resize { at, slo, number, to: want.ways, capacity_pps: want.capacity_pps }),
                    None => {
                        leaving.insert((slo.clone(), number));
                        left.push(Left::Stop { at, slo, number });
                    }
                }
            }
            for want in wanted {
                let next = numbers.entry(want.slo.clone()).or_insert(0);
                left.push(Left::Start { at, instance: Instance { number: *next, ..want.clone() } });
                *next += 1;
            }
        }
        left.extend(recounts.into_iter().map(|(slo, instances)| Left::Recount { slo, instances }));
        let mut new = owned(target.loads_pps());
        new.retain(|slo, _| !promised.contains_key(slo));
        let mut parts: BTreeMap<String, Parts> = BTreeMap::new();
        for (slo, sum) in current.loads_pps() {
            let own = || instances_of(slo, current, &homes);
            let given = || own().filter(|i| i.load_pps > 0.0).map(|i| (i.number, i.load_pps / sum)).collect::<Parts>();
            let carries = |i: &Instance| Carries { number: i.number, capacity_pps: i.capacity_pps, is_going: false };
            let of = if sum > 0.0 { given() } else { divided(&own().map(carries).collect::<Vec<_>>(), 0.0) };
            parts.insert(slo.to_string(), of);
        }
        Self { now: current.clone(), left, steps: Vec::new(), promised, new, numbers, leaving, homes, parts, old }
    }

    fn all(&mut self) -> Result<(), MigrationError> {
        while !self.left.is_empty() {
            let moved_nobody = self.some(|left| matches!(left, Left::Recount { .. } | Left::Resize { .. }));
            let started = self.some(|left| matches!(left, Left::Start { .. }));
            // Recounts that have to wait for new instances come before stops.
            let stopped = !started && self.some(|left| matches!(left, Left::Stop { .. }));
            if !moved_nobody && !started && !stopped {
                self.stand_in()?;
            }
        }
        for (slo, promised) in std::mem::take(&mut self.new) {
            self.promised.insert(slo.clone(), promised);
            self.give(&slo);
        }
        Ok(())
    }

    /// Takes the steps of this sort that are possible now; returns whether there were any.
    fn some(&mut self, sort: impl Fn(&Left) -> bool) -> bool {
        let mut done = false;
        for left in std::mem::take(&mut self.left) {
            let is_done = sort(&left) && self.take(&left);
            done |= is_done;
            if !is_done {
                self.left.push(left);
            }
        }
        done
    }

    /// Recounts what instances carry by a new profile, if that suffices: first those that carry
    /// more; then, with flows divided accordingly, those that carry less.
    fn recount(&mut self, slo: &str, instances: &[(usize, u32, u32, f64)]) -> bool {
        let (mut more, mut less) = (Vec::new(), Vec::new());
        let before = self.now.clone();
        for (at, number, ways, capacity_pps) in instances.iter().copied() {
            let server = &self.now.servers[at];
            let Some(instance) = server.instances.iter().find(|i| i.slo == slo && i.number == number) else { continue };
            let is_more = capacity_pps > instance.capacity_pps;
            let server = server.name.clone();
            let step = Step::Resize { server, slo: slo.into(), number, from: ways, to: ways, capacity_pps };
            if step.take(&mut self.now).is_ok() {
                if is_more { &mut more } else { &mut less }.push(step);
            }
        }
        if !self.is_kept(slo) {
            self.now = before;
            return false;
        }
        self.steps.append(&mut more);
        self.redirect(slo, &[]);
        self.steps.append(&mut less);
        true
    }

    /// Takes a step if everything holds afterwards.
    fn take(&mut self, left: &Left) -> bool {
        let (at, slo) = match left {
            Left::Recount { slo, instances } => return self.recount(slo, instances),
            Left::Resize { at, slo, .. } | Left::Stop { at, slo, .. } => (*at, slo),
            Left::Start { at, instance } => (*at, &instance.slo),
        };
        let server = &self.now.servers[at];
        let (name, before) = (server.name.clone(), server.instances.clone());
        // A step that takes room away waits until flows no longer need it.
        let mut is_less = matches!(left, Left::Stop { .. });
        let step = match left {
            Left::Resize { slo, number, to, capacity_pps, .. } => {
                let Some(instance) = before.iter().find(|i| i.slo == *slo && i.number == *number) else { return true };
                is_less = *capacity_pps < instance.capacity_pps;
                let (slo, number, from) = (slo.clone(), *number, instance.ways);
                Step::Resize { server: name, slo, number, from, to: *to, capacity_pps: *capacity_pps }
            }
            Left::Recount { .. } => return false,
            Left::Start { instance, .. } => {
                let Some(cores) = server.free_cores(instance.cores.len() as u32) else { return false };
                Step::Start { server: name, instance: Instance { cores, load_pps: 0.0, ..instance.clone() } }
            }
            Left::Stop { slo, number, .. } => Step::Stop { server: name, slo: slo.clone(), number: *number },
        };
        if step.take(&mut self.now).is_err() {
            // It is gone already.
            return true;
        }
        if matches!(left, Left::Start { .. }) {
            self.homes.entry(slo.clone()).or_default().insert(at);
        }
        if self.now.servers[at].room().is_err() || !self.is_kept(slo) {
            self.now.servers[at].instances = before;
            return false;
        }
        let slo = slo.clone();
        if is_less {
            self.redirect(&slo, &before);
            self.steps.push(step);
        } else {
            self.steps.push(step);
            self.redirect(&slo, &[]);
        }
        true
    }

    /// Whether the instances of an SLO carry what it is promised; on demand, whether there is any.
    fn is_kept(&self, slo: &str) -> bool {
        let own = || instances_of(slo, &self.now, &self.homes);
        let carries: f64 = own().map(|instance| instance.capacity_pps).sum();
        self.promised.get(slo).is_none_or(|promised| own().next().is_some() && carries >= promised * (1.0 - 1e-9))
    }

    /// Divides the flows of an SLO by what its instances carry now, with a step if that changes
    /// anything. Instances about to be stopped are in `stopped` only.
    fn redirect(&mut self, slo: &str, stopped: &[Instance]) {
        if !self.promised.contains_key(slo) && !self.new.contains_key(slo) {
            // The SLO goes altogether.
            return;
        }
        let going: BTreeSet<u32> = self.leaving.iter().filter(|(of, _)| of == slo).map(|(_, number)| *number).collect();
        let carries =
            |i: &Instance| Carries { number: i.number, capacity_pps: i.capacity_pps, is_going: going.contains(&i.number) };
        let own: Vec<Carries> = instances_of(slo, &self.now, &self.homes).map(carries).collect();
        let parts = divided(&own, self.promised.get(slo).copied().unwrap_or(0.0));
        if self.parts.get(slo).is_none_or(|now| !alike(now, &parts)) {
            let runs = |number: &u32| {
                let stops = stopped.iter().any(|i| i.slo == slo && i.number == *number);
                stops || own.iter().any(|one| one.number == *number)
            };
            let away_from = going.iter().copied().filter(|number| runs(number) && !parts.contains_key(number)).collect();
            self.steps.push(Step::Redirect { slo: slo.into(), parts: parts.clone(), away_from, old: self.old });
        }
        self.parts.insert(slo.into(), parts);
        self.give(slo);
    }

    /// Sets the loads of an SLO's instances to their parts of what it is promised.
    fn give(&mut self, slo: &str) {
        let promised = self.promised.get(slo).copied().unwrap_or(0.0);
        let parts = self.parts.get(slo);
        for at in self.homes.get(slo).into_iter().flatten() {
            for instance in self.now.servers[*at].instances.iter_mut().filter(|instance| instance.slo == slo) {
                let part = parts.and_then(|parts| parts.get(&instance.number)).copied().unwrap_or(0.0);
                instance.load_pps = promised * part;
            }
        }
    }

    /// Starts a stand-in elsewhere for an instance that is in the way.
    fn stand_in(&mut self) -> Result<(), MigrationError> {
        let starts: BTreeSet<usize> =
            self.left.iter().filter_map(|left| if let Left::Start { at, .. } = left { Some(*at) } else { None }).collect();
        let in_the_way = self.left.iter().position(|left| matches!(left, Left::Stop { at, .. } if starts.contains(at)));
        let in_the_way = in_the_way.or_else(|| self.left.iter().position(|left| matches!(left, Left::Stop { .. })));
        let slo_of = |left: &Left| match left {
            Left::Recount { slo, .. } | Left::Resize { slo, .. } | Left::Stop { slo, .. } => slo.clone(),
            Left::Start { instance, .. } => instance.slo.clone(),
        };
        let first = self.left.first().map(slo_of).unwrap_or_default();
        let stuck = || MigrationError::NoRoom { slo: first.clone() };
        let Some(Left::Stop { at, slo, number }) = in_the_way.map(|i| self.left[i].clone()) else { return Err(stuck()) };
        let find = |i: &&Instance| i.slo == slo && i.number == number;
        let Some(instance) = self.now.servers[at].instances.iter().find(find).cloned() else { return Err(stuck()) };
        let next = self.numbers.get(&slo).copied().unwrap_or(0);
        let copy = Instance { number: next, ..instance };
        // If possible, not where another instance is to start.
        let mut places: Vec<usize> = (0..self.now.servers.len()).filter(|i| *i != at).collect();
        places.sort_by_key(|i| starts.contains(i));
        let Some(place) = places.into_iter().find(|place| self.take(&Left::Start { at: *place, instance: copy.clone() })) else {
            return Err(stuck());
        };
        self.numbers.insert(slo.clone(), next + 1);
        self.leaving.insert((slo.clone(), next));
        let stop = Left::Stop { at, slo: slo.clone(), number };
        if !self.take(&stop) {
            return Err(MigrationError::NoRoom { slo });
        }
        self.left.retain(|left| *left != stop);
        self.left.push(Left::Stop { at: place, slo, number: next });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_slo::examples::shape;
    use sluice_slo::placement::ServerShape;

    fn instance(slo: &str, number: u32, core: u32, ways: u32) -> Instance {
        let pps = f64::from(ways) * 1e6;
        Instance { slo: slo.into(), number, cores: vec![core], ways, memory_mib: 1, capacity_pps: pps, load_pps: pps }
    }

    fn placement(servers: &[&[Instance]], cores: u32, ways: u32) -> Placement {
        let shape = ServerShape { cores, llc_ways: ways + 2, ..shape() };
        let mut placement = Placement::empty(servers.len(), &shape);
        for (server, instances) in placement.servers.iter_mut().zip(servers) {
            server.instances = instances.to_vec();
        }
        placement.check().unwrap();
        placement
    }

    /// Takes the steps one by one and checks at each that servers have what is given, SLOs get what
    /// they are promised, and no instance gets more than it carries, or anything when it stops.
    fn assert_holds(current: &Placement, migration: &Migration) {
        let promised: BTreeMap<String, f64> = current.loads_pps().into_iter().map(|(slo, pps)| (slo.to_string(), pps)).collect();
        let mut now = current.clone();
        for step in &migration.steps {
            match step {
                Step::Stop { slo, number, .. } => {
                    let of = now.instances().map(|(_, i)| i).filter(|i| i.slo == *slo && i.number == *number);
                    assert_eq!(of.map(|i| i.load_pps).collect::<Vec<_>>(), [0.0], "{step:?}");
                }
                Step::Redirect { parts, away_from, .. } => {
                    assert!((parts.values().sum::<f64>() - 1.0).abs() < 1e-6, "{step:?}");
                    assert!(away_from.iter().all(|number| !parts.contains_key(number)), "{step:?}");
                }
                Step::Resize { .. } | Step::Start { .. } => {}
            }
            step.take(&mut now).unwrap();
            for server in &now.servers {
                server.room().unwrap();
            }
            for (slo, promised) in &promised {
                let carries: f64 = now.instances().filter(|(_, i)| i.slo == *slo).map(|(_, i)| i.capacity_pps).sum();
                assert!(carries >= promised * 0.999, "{slo} at {step:?}");
                let given = now.loads_pps()[slo.as_str()];
                assert!((given - promised).abs() <= promised * 1e-6, "{slo} at {step:?}: {given}");
            }
            for (_, i) in now.instances() {
                assert!(i.load_pps <= i.capacity_pps * (1.0 + 1e-6), "{i:?} at {step:?}");
            }
        }
        migration.placement.check().unwrap();
        let sorted = |placement: &Placement| -> Vec<(usize, String, u32)> {
            let mut all: Vec<_> = placement.instances().map(|(at, i)| (at, i.slo.clone(), i.ways)).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(&now), sorted(&migration.placement));
    }

    #[test]
    fn two_servers_become_one() {
        let current = placement(&[&[instance("a", 0, 0, 4)], &[instance("b", 0, 0, 4)]], 4, 10);
        let target = placement(&[&[instance("a", 0, 0, 4), instance("b", 0, 1, 4)], &[]], 4, 10);
        let migration = plan(&current, &target, 0.1, Old::Stay).unwrap();
        assert_holds(&current, &migration);
        assert_eq!((migration.saves, migration.starts), (1, 1));
        assert_eq!(names(&migration), ["start", "redirect", "stop"]);
        let Step::Redirect { parts, away_from, .. } = &migration.steps[1] else { panic!("{migration:?}") };
        assert_eq!((parts, away_from.as_slice()), (&Parts::from([(1, 1.0)]), &[0][..]));
    }

    #[test]
    fn a_step_of_another_placement_changes_nothing() {
        let current = placement(&[&[instance("a", 0, 0, 4)], &[instance("b", 0, 0, 4)]], 4, 10);
        let (server, slo) = (String::from("s0"), String::from("b"));
        let stop = Step::Stop { server: server.clone(), slo: slo.clone(), number: 0 };
        let resize = Step::Resize { server, slo, number: 0, from: 4, to: 2, capacity_pps: 2e6 };
        let start = Step::Start { server: "s9".into(), instance: instance("b", 1, 0, 4) };
        for step in [stop, resize, start] {
            let mut now = current.clone();
            let error = step.take(&mut now).unwrap_err();
            assert!(matches!(&error, MigrationError::Another { slo, .. } if slo == "b"), "{error}");
            assert_eq!(now, current);
        }
    }

    fn names(migration: &Migration) -> Vec<&'static str> {
        let name = |step: &Step| match step {
            Step::Resize { .. } => "resize",
            Step::Start { .. } => "start",
            Step::Redirect { .. } => "redirect",
            Step::Stop { .. } => "stop",
        };
        migration.steps.iter().map(name).collect()
    }

    #[test]
    fn flows_are_led_away_before_an_instance_carries_less() {
        // Six million are promised: the excess is taken away.
        let given = |instance: Instance, load_pps: f64| Instance { load_pps, ..instance };
        let one = given(instance("a", 0, 0, 6), 3.6e6);
        let current = placement(&[&[one], &[given(instance("a", 1, 0, 4), 2.4e6)]], 4, 10);
        let target = placement(&[&[instance("a", 0, 0, 3)], &[instance("a", 1, 0, 4)]], 4, 10);
        let migration = plan(&current, &target, 0.0, Old::Stay).unwrap();
        assert_holds(&current, &migration);
        assert_eq!(names(&migration), ["redirect", "resize"]);
        let Step::Redirect { parts, away_from, .. } = &migration.steps[0] else { panic!("{migration:?}") };
        assert!((parts[&0] - 3.0 / 7.0).abs() < 1e-9 && away_from.is_empty(), "{parts:?}");
        // More ways first, and then more flows.
        let back = plan(&migration.placement, &current, 0.0, Old::Stay).unwrap();
        assert_holds(&migration.placement, &back);
        assert_eq!(names(&back), ["resize", "redirect"]);
    }

    #[test]
    fn what_carries_less_by_its_profile_of_now_is_given_less() {
        let given = |instance: Instance, capacity_pps: f64, load_pps: f64| Instance { capacity_pps, load_pps, ..instance };
        // With four ways it carried four million by its old profile, and carries three now.
        let current = placement(&[&[given(instance("a", 0, 0, 4), 4e6, 4e6)], &[]], 4, 10);
        let second = given(instance("a", 1, 0, 1), 1e6, 1e6);
        let target = placement(&[&[given(instance("a", 0, 0, 4), 3e6, 3e6)], &[second]], 4, 10);
        let migration = plan(&current, &target, 0.0, Old::Stay).unwrap();
        assert_holds(&current, &migration);
        assert_eq!(names(&migration), ["start", "redirect", "redirect", "resize"]);
        let at = |at: usize| &migration.placement.servers[at].instances[0];
        assert!((at(0).load_pps - 3e6).abs() < 1.0 && at(0).capacity_pps == 3e6, "{:?}", at(0));
        assert!((at(1).load_pps - 1e6).abs() < 1.0, "{:?}", at(1));
        // With the same change in both, flows stay as they are; with one up and one down, they do
        // not.
        let two = |a: f64, b: f64, loads: [f64; 2]| {
            let one = |number, pps, load_pps| given(instance("a", number, 0, 4), pps, load_pps);
            placement(&[&[one(0, a, loads[0])], &[one(1, b, loads[1])]], 4, 10)
        };
        let current = two(4.2e6, 4.2e6, [4e6, 4e6]);
        let migration = plan(&current, &two(4.1e6, 4.1e6, [4e6, 4e6]), 0.0, Old::Stay).unwrap();
        assert_holds(&current, &migration);
        assert_eq!(names(&migration), ["resize", "resize"]);
        let migration = plan(&current, &two(5e6, 3e6, [5e6, 3e6]), 0.0, Old::Stay).unwrap();
        assert_holds(&current, &migration);
        assert_eq!(names(&migration), ["resize", "redirect", "resize"]);
        // The same ways and the same load: nothing to do.
        assert!(plan(&target, &target, 0.0, Old::Stay).unwrap().steps.is_empty());
    }

    #[test]
    fn those_that_are_to_go_get_what_the_others_cannot_carry_yet() {
        let current = placement(&[&[instance("a", 0, 0, 4)], &[instance("a", 1, 0, 4)], &[]], 4, 10);
        let target = placement(&[&[], &[], &[instance("a", 0, 0, 4), instance("a", 1, 1, 4)]], 4, 10);
        let migration = plan(&current, &target, 0.0, Old::Stay).unwrap();
        assert_holds(&current, &migration);
        assert_eq!(names(&migration), ["start", "redirect", "start", "redirect", "stop", "stop"]);
        let away = |step: &Step| if let Step::Redirect { away_from, .. } = step { away_from.clone() } else { Vec::new() };
        assert_eq!((away(&migration.steps[1]), away(&migration.steps[3])), (vec![], vec![0, 1]));
    }

    #[test]
    fn on_demand_one_starts_before_the_other_stops() {
        let lease = |core: u32| Instance { capacity_pps: 0.0, load_pps: 0.0, ..instance("d", 0, core, 0) };
        let current = placement(&[&[instance("a", 0, 0, 4)], &[lease(0)]], 4, 10);
        let target = placement(&[&[instance("a", 0, 0, 4), lease(1)], &[]], 4, 10);
        let migration = plan(&current, &target, 0.0, Old::Stay).unwrap();
        assert_holds(&current, &migration);
        assert_eq!(names(&migration), ["start", "redirect", "stop"]);
    }

    #[test]
    fn what_is_not_worth_it_is_left() {
        let current = placement(&[&[instance("a", 0, 0, 4)], &[instance("b", 0, 0, 4)]], 4, 10);
        let said = plan(&current, &current, 0.1, Old::Stay).unwrap_err();
        assert_eq!(said, MigrationError::NotWorth { saves: 0, before: 2, least: 10.0 });
        assert!(plan(&current, &current, 0.0, Old::Stay).unwrap().steps.is_empty());
        assert_eq!(plan(&current, &Placement::default(), 0.0, Old::Stay), Err(MigrationError::Servers));
    }

    #[test]
    fn ways_change_first_and_no_promise_breaks() {
        // Eight ways in one place become four in each of two.
        let current = placement(&[&[instance("a", 0, 0, 8)], &[instance("b", 0, 0, 6)]], 4, 10);
        let target = placement(&[&[instance("a", 0, 0, 4), instance("b", 0, 1, 6)], &[instance("a", 1, 1, 4)]], 4, 10);
        let migration = plan(&current, &target, 0.0, Old::Follow).unwrap();
        assert_holds(&current, &migration);
    }

    #[test]
    fn two_that_change_places_need_a_third() {
        let current = placement(&[&[instance("a", 0, 0, 8)], &[instance("b", 0, 0, 7)], &[]], 1, 10);
        let target = placement(&[&[instance("b", 0, 0, 7)], &[instance("a", 0, 0, 8)], &[]], 1, 10);
        let migration = plan(&current, &target, 0.0, Old::Stay).unwrap();
        assert_holds(&current, &migration);
        assert_eq!(migration.placement.used(), 2);
        let (current, target) = (
            placement(&[&[instance("a", 0, 0, 8)], &[instance("b", 0, 0, 7)]], 1, 10),
            placement(&[&[instance("b", 0, 0, 7)], &[instance("a", 0, 0, 8)]], 1, 10),
        );
        assert!(plan(&current, &target, 0.0, Old::Stay).unwrap_err().to_string().contains("stand-in"));
    }
}
