//! From one placement to another, in an order in which every promise holds at every step.
//!
//! # Terms
//! An instance *stays* if its SLO has one on the same server in both placements; it may get more or fewer ways there. Others are
//! started and stopped. A *move* is a start that a stop follows.
//!
//! # Approach
//! Steps are taken on a copy of the current placement, and one is taken only if the copy holds afterwards: a server has what its instances
//! are given, and what the instances of an SLO carry together never falls below what it is promised. Steps that move nobody come first
//! (fewer ways, more ways), then starts, then stops, then again what they made room for. Where nothing is possible and something is left
//! (two instances that are to change places), an instance in the way is given a stand-in on any server with room. Without such room
//! there is no plan, and the current placement stands.
//!
//! New flows are sent to a new instance as soon as it runs ([`Step::Redirect`]); in the mode [`Old::Stay`], the old instance keeps its flows
//! until they end, and is stopped then. In the mode [`Old::Follow`] they are sent to the new instance too.
//!
//! # Limits
//! A plan says nothing of time. State that an NF has of its flows is lost with [`Old::Follow`], unless the NF itself moves it.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::{Instance, Placement};

/// What becomes of the flows of an instance that is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Old {
    /// They stay until they end.
    Stay,
    /// They go with the new ones.
    Follow,
}

/// One step; the next is taken when it is done.
#[derive(Debug, Clone, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The class of an instance gets another number of ways.
    Resize {
        /// Its server.
        server: String,
        /// Its SLO.
        slo: String,
        /// Which instance.
        number: u32,
        /// Ways until now.
        from: u32,
        /// Ways from now on; 0 is the shared class.
        to: u32,
        /// Packets per second that it carries then.
        capacity_pps: f64,
    },
    /// An instance is started.
    Start {
        /// Its server.
        server: String,
        /// The instance.
        instance: Instance,
    },
    /// New flows of an SLO are divided anew among its instances, by what they carry; those named get none.
    Redirect {
        /// The SLO.
        slo: String,
        /// Instances that get no more new flows.
        away_from: Vec<u32>,
        /// What becomes of their old flows.
        old: Old,
    },
    /// An instance is stopped, once it has no flows.
    Stop {
        /// Its server.
        server: String,
        /// Its SLO.
        slo: String,
        /// Which instance.
        number: u32,
    },
}

/// How to get from one placement to another.
#[derive(Debug, Clone, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Migration {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Where that leads: the wanted placement, with instances that stay named as they were.
    pub placement: Placement,
    /// Servers that are no longer in use.
    pub saves: usize,
    /// Instances that are started.
    pub starts: usize,
}

/// Why nobody moves.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MigrationError {
    /// Not worth it.
    #[error("it would save {saves} of {before} servers, and less than {least:.0} % is not worth moving for")]
    NotWorth {
        /// Servers that it would save.
        saves: usize,
        /// Servers in use.
        before: usize,
        /// What is worth it, in percent.
        least: f64,
    },
    /// No way.
    #[error(
        "\"{slo}\" cannot be moved without breaking a promise meanwhile: no server has room for a stand-in; add one for the time"
    )]
    NoRoom {
        /// An SLO that is stuck.
        slo: String,
    },
    /// Not the same servers.
    #[error("the placements are not of the same servers")]
    Servers,
}

/// The plan from `current` to `target`, if that saves at least this part of the servers in use.
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

/// Something that is left to do.
#[derive(Debug, Clone, PartialEq)]
enum Left {
    Resize { at: usize, slo: String, number: u32, to: u32, capacity_pps: f64 },
    Start { at: usize, instance: Instance },
    Stop { at: usize, slo: String, number: u32 },
}

struct Walk {
    now: Placement,
    left: Vec<Left>,
    steps: Vec<Step>,
    /// What each SLO is promised.
    promised: BTreeMap<String, f64>,
    /// What SLOs are promised that nothing runs for yet.
    new: BTreeMap<String, f64>,
    /// The next free number of each SLO.
    numbers: BTreeMap<String, u32>,
    /// Instances that get no more new flows.
    leaving: BTreeSet<(String, u32)>,
    old: Old,
}

impl Walk {
    fn new(current: &Placement, target: &Placement, old: Old) -> Self {
        let owned =
            |loads: BTreeMap<&str, f64>| -> BTreeMap<String, f64> { loads.into_iter().map(|(k, v)| (k.to_string(), v)).collect() };
        let mut promised = owned(current.loads_pps());
        // A new SLO is not promised anything before its instances run.
        promised.retain(|slo, _| target.instances().any(|(_, instance)| instance.slo == *slo));
        let mut numbers = BTreeMap::new();
        for (_, instance) in current.instances() {
            let next = numbers.entry(instance.slo.clone()).or_insert(0);
            *next = (*next).max(instance.number + 1);
        }
        let (mut left, mut leaving) = (Vec::new(), BTreeSet::new());
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
                    Some(want) if want.ways == instance.ways => {}
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
        let mut new = owned(target.loads_pps());
        new.retain(|slo, _| !promised.contains_key(slo));
        Self { now: current.clone(), left, steps: Vec::new(), promised, new, numbers, leaving, old }
    }

    fn all(&mut self) -> Result<(), MigrationError> {
        while !self.left.is_empty() {
            let moved_nobody = self.some(|left| matches!(left, Left::Resize { .. }));
            let started = self.some(|left| matches!(left, Left::Start { .. }));
            let stopped = self.some(|left| matches!(left, Left::Stop { .. }));
            if !moved_nobody && !started && !stopped {
                self.stand_in()?;
            }
        }
        for (slo, promised) in std::mem::take(&mut self.new) {
            self.promised.insert(slo.clone(), promised);
            self.divide(&slo);
        }
        Ok(())
    }

    /// Does what can be done now of this sort; whether that was anything.
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

    /// Takes a step if everything holds afterwards.
    fn take(&mut self, left: &Left) -> bool {
        let (at, slo) = match left {
            Left::Resize { at, slo, .. } | Left::Stop { at, slo, .. } => (*at, slo),
            Left::Start { at, instance } => (*at, &instance.slo),
        };
        let before = self.now.servers[at].instances.clone();
        let server = &mut self.now.servers[at];
        let name = server.name.clone();
        let step = match left {
            Left::Resize { slo, number, to, capacity_pps, .. } => {
                let Some(instance) = server.instances.iter_mut().find(|i| i.slo == *slo && i.number == *number) else {
                    return true;
                };
                let from = std::mem::replace(&mut instance.ways, *to);
                instance.capacity_pps = *capacity_pps;
                Step::Resize { server: name, slo: slo.clone(), number: *number, from, to: *to, capacity_pps: *capacity_pps }
            }
            Left::Start { instance, .. } => {
                let Some(cores) = server.free_cores(instance.cores.len() as u32) else { return false };
                let instance = Instance { cores, load_pps: 0.0, ..instance.clone() };
                server.instances.push(instance.clone());
                Step::Start { server: name, instance }
            }
            Left::Stop { slo, number, .. } => {
                server.instances.retain(|i| i.slo != *slo || i.number != *number);
                Step::Stop { server: name, slo: slo.clone(), number: *number }
            }
        };
        let holds = server.room().is_ok() && self.is_kept(slo);
        if !holds {
            self.now.servers[at].instances = before;
            return false;
        }
        let slo = slo.clone();
        let is_start = matches!(step, Step::Start { .. });
        self.steps.push(step);
        self.divide(&slo);
        if is_start {
            let going = self.leaving.iter().filter(|(of, _)| *of == slo).map(|(_, number)| *number);
            let away_from = going.filter(|number| self.now.instances().any(|(_, i)| i.slo == slo && i.number == *number)).collect();
            self.steps.push(Step::Redirect { slo, away_from, old: self.old });
        }
        true
    }

    /// Whether the instances of an SLO carry what it is promised.
    fn is_kept(&self, slo: &str) -> bool {
        let carries: f64 = self.now.instances().filter(|(_, i)| i.slo == slo).map(|(_, i)| i.capacity_pps).sum();
        self.promised.get(slo).is_none_or(|promised| carries >= promised * (1.0 - 1e-9))
    }

    /// Divides what an SLO is promised by what its instances carry.
    fn divide(&mut self, slo: &str) {
        let promised = self.promised.get(slo).copied();
        let sum: f64 = self.now.instances().filter(|(_, i)| i.slo == slo).map(|(_, i)| i.capacity_pps).sum();
        for instance in self.now.servers.iter_mut().flat_map(|server| &mut server.instances).filter(|i| i.slo == slo) {
            instance.load_pps = match promised {
                Some(promised) if sum > 0.0 => promised * instance.capacity_pps / sum,
                _ => 0.0,
            };
        }
    }

    /// Gives an instance that is in the way a stand-in elsewhere.
    fn stand_in(&mut self) -> Result<(), MigrationError> {
        let starts: BTreeSet<usize> =
            self.left.iter().filter_map(|left| if let Left::Start { at, .. } = left { Some(*at) } else { None }).collect();
        let in_the_way = self.left.iter().position(|left| matches!(left, Left::Stop { at, .. } if starts.contains(at)));
        let in_the_way = in_the_way.or_else(|| self.left.iter().position(|left| matches!(left, Left::Stop { .. })));
        let slo_of = |left: &Left| match left {
            Left::Resize { slo, .. } | Left::Stop { slo, .. } => slo.clone(),
            Left::Start { instance, .. } => instance.slo.clone(),
        };
        let first = self.left.first().map(slo_of).unwrap_or_default();
        let stuck = || MigrationError::NoRoom { slo: first.clone() };
        let Some(Left::Stop { at, slo, number }) = in_the_way.map(|i| self.left[i].clone()) else { return Err(stuck()) };
        let find = |i: &&Instance| i.slo == slo && i.number == number;
        let Some(instance) = self.now.servers[at].instances.iter().find(find).cloned() else { return Err(stuck()) };
        let next = self.numbers.get(&slo).copied().unwrap_or(0);
        let copy = Instance { number: next, ..instance };
        // Not where somebody else is to go, if there is another place.
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
    use crate::placement::ServerShape;
    use crate::placement::tests::shape;

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

    /// Takes the steps one by one and looks whether everything holds at each.
    fn assert_holds(current: &Placement, migration: &Migration) {
        let promised: BTreeMap<String, f64> = current.loads_pps().into_iter().map(|(slo, pps)| (slo.to_string(), pps)).collect();
        let mut now = current.clone();
        for step in &migration.steps {
            let place: BTreeMap<String, usize> =
                now.servers.iter().enumerate().map(|(i, server)| (server.name.clone(), i)).collect();
            match step {
                Step::Resize { server, slo, number, to, capacity_pps, .. } => {
                    let found =
                        now.servers[place[server]].instances.iter_mut().find(|i| i.slo == *slo && i.number == *number).unwrap();
                    (found.ways, found.capacity_pps) = (*to, *capacity_pps);
                }
                Step::Start { server, instance } => now.servers[place[server]].instances.push(instance.clone()),
                Step::Stop { server, slo, number } => {
                    now.servers[place[server]].instances.retain(|i| i.slo != *slo || i.number != *number)
                }
                Step::Redirect { .. } => {}
            }
            for server in &now.servers {
                server.room().unwrap();
            }
            for (slo, promised) in &promised {
                let carries: f64 = now.instances().filter(|(_, i)| i.slo == *slo).map(|(_, i)| i.capacity_pps).sum();
                assert!(carries >= promised * 0.999, "{slo} at {step:?}");
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
        let names: Vec<&str> = migration
            .steps
            .iter()
            .map(|step| match step {
                Step::Resize { .. } => "resize",
                Step::Start { .. } => "start",
                Step::Redirect { away_from, .. } if away_from == &[0] => "redirect",
                Step::Redirect { .. } => "?",
                Step::Stop { .. } => "stop",
            })
            .collect();
        assert_eq!(names, ["start", "redirect", "stop"]);
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
        // Eight ways at one place become four at each of two.
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
