//! The plans of a round while they change.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_slo::assignment::Promised;
use sluice_slo::placement::{Instance, PlacedServer, Placement};

use crate::applied::Had;
use crate::health::{Health, is_settled};
use crate::world::World;

/// Where a server is.
#[derive(Debug, Clone, Copy)]
enum At {
    Open(usize),
    Rest(usize),
}

/// Where more instances of an SLO may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    None,
    Any,
    /// On this node alone.
    Only(String),
}

impl Room {
    pub fn only(&self) -> Option<&str> {
        if let Self::Only(node) = self { Some(node) } else { None }
    }
}

/// All servers with their instances, while a round changes them. What is found by name is hashed:
/// names of thousands of SLOs differ in their last letters only.
#[derive(Debug, Default)]
pub struct Board<'a> {
    /// Those that can have more instances.
    pub open: Placement,
    rest: Placement,
    at: HashMap<String, At>,
    pub health: HashMap<String, Health>,
    /// The nodes of each SLO.
    on: HashMap<String, BTreeSet<String>>,
    /// The terms of each SLO, by node and name.
    promised: HashMap<String, BTreeMap<Cow<'a, str>, Cow<'a, Promised>>>,
    /// Instances that run: those in plans that are settled, with whether packets are led to them.
    running: HashMap<&'a str, BTreeMap<u32, bool>>,
    /// Whether room was made.
    pub is_freed: bool,
    /// Instances that were added.
    pub added: usize,
    /// Nodes whose agents are silent.
    pub silent: Vec<String>,
    /// Where each SLO gets no instances and no other terms, because the node refuses it.
    pub barred: BTreeMap<String, BTreeSet<String>>,
    /// Where each SLO keeps terms that promise less.
    pub stale: BTreeMap<String, BTreeSet<String>>,
    /// The instances of each SLO that others replace, by their numbers.
    pub leaving: BTreeMap<String, BTreeSet<u32>>,
}

impl<'a> Board<'a> {
    /// Adds a server, with the instances of its plan.
    pub fn add(&mut self, world: &'a World, server: PlacedServer, health: Health) {
        let name = server.name.clone();
        if let Some(plan) = world.plans.get(&name) {
            let of = |one: &'a Promised| (Cow::Borrowed(one.slo.name.as_str()), Cow::Borrowed(one));
            self.promised.insert(name.clone(), plan.spec.slos.iter().map(of).collect());
            if is_settled(plan) && health != Health::Lost {
                for one in &plan.spec.server.instances {
                    self.running.entry(&one.slo).or_default().insert(one.number, one.load_pps > 0.0);
                }
            }
        }
        for instance in &server.instances {
            match self.on.get_mut(&instance.slo) {
                Some(nodes) => _ = nodes.insert(name.clone()),
                None => _ = self.on.insert(instance.slo.clone(), BTreeSet::from([name.clone()])),
            }
        }
        let (placement, at): (_, fn(usize) -> At) =
            if health == Health::Open { (&mut self.open, At::Open) } else { (&mut self.rest, At::Rest) };
        self.at.insert(name.clone(), at(placement.servers.len()));
        self.health.insert(name, health);
        placement.servers.push(server);
    }

    pub fn server(&self, node: &str) -> Option<&PlacedServer> {
        match self.at.get(node)? {
            At::Open(i) => self.open.servers.get(*i),
            At::Rest(i) => self.rest.servers.get(*i),
        }
    }

    fn server_mut(&mut self, node: &str) -> Option<&mut PlacedServer> {
        match self.at.get(node)? {
            At::Open(i) => self.open.servers.get_mut(*i),
            At::Rest(i) => self.rest.servers.get_mut(*i),
        }
    }

    pub fn servers(&self) -> impl Iterator<Item = &PlacedServer> {
        self.open.servers.iter().chain(&self.rest.servers)
    }

    /// The SLOs with an instance, in no order.
    pub fn slos(&self) -> impl Iterator<Item = &String> {
        self.on.keys()
    }

    /// Each SLO with each of its nodes, in no order.
    pub fn places(&self) -> impl Iterator<Item = (&str, &str)> {
        self.on.iter().flat_map(|(slo, nodes)| nodes.iter().map(move |node| (slo.as_str(), node.as_str())))
    }

    /// Whether an SLO has an instance on a node.
    pub fn has(&self, slo: &str, node: &str) -> bool {
        self.on.get(slo).is_some_and(|nodes| nodes.contains(node))
    }

    /// The terms of an SLO on a node.
    pub fn terms(&self, node: &str, slo: &str) -> Option<&Promised> {
        self.promised.get(node)?.get(slo).map(Cow::as_ref)
    }

    /// The terms of all SLOs on a node, by their names.
    pub fn all_terms(&self, node: &str) -> impl Iterator<Item = &Promised> {
        self.promised.get(node).into_iter().flat_map(BTreeMap::values).map(Cow::as_ref)
    }

    /// Gives an SLO other terms on a node.
    pub fn promise(&mut self, node: &str, slo: &str, terms: Promised) {
        self.promised.entry(node.into()).or_default().insert(Cow::Owned(slo.into()), Cow::Owned(terms));
    }

    /// The nodes of an SLO.
    pub fn nodes(&self, slo: &str) -> Vec<String> {
        self.on.get(slo).into_iter().flatten().cloned().collect()
    }

    /// The instances of an SLO, with their nodes.
    pub fn instances<'b>(&'b self, slo: &'b str) -> impl Iterator<Item = (&'b str, &'b Instance)> {
        let servers = self.on.get(slo).into_iter().flatten().filter_map(|node| self.server(node));
        servers.flat_map(move |server| {
            server.instances.iter().filter(move |one| one.slo == slo).map(|one| (server.name.as_str(), one))
        })
    }

    /// Whether an instance runs, in a plan that is settled.
    pub fn is_running(&self, slo: &str, number: u32) -> bool {
        self.running.get(slo).is_some_and(|of| of.contains_key(&number))
    }

    /// Whether an instance runs, and no packets are led to it.
    pub fn is_idle(&self, slo: &str, number: u32) -> bool {
        self.running.get(slo).and_then(|of| of.get(&number)) == Some(&false)
    }

    /// Changes the instances of an SLO.
    pub fn edit(&mut self, slo: &str, mut change: impl FnMut(&str, &mut Instance)) {
        for node in self.nodes(slo) {
            if let Some(server) = self.server_mut(&node) {
                server.instances.iter_mut().filter(|one| one.slo == slo).for_each(|one| change(&node, one));
            }
        }
    }

    /// Removes the instances of an SLO for which this is so.
    pub fn remove(&mut self, slo: &str, is_gone: impl Fn(&str, &Instance) -> bool) {
        for node in self.nodes(slo) {
            let Some(server) = self.server_mut(&node) else { continue };
            let before = server.instances.len();
            server.instances.retain(|one| one.slo != slo || !is_gone(&node, one));
            let (after, is_left) = (server.instances.len(), server.instances.iter().any(|one| one.slo == slo));
            self.is_freed |= after < before;
            if !is_left {
                if let Some(nodes) = self.on.get_mut(slo) {
                    nodes.remove(&node);
                }
                self.promised.entry(node).or_default().remove(slo);
            }
        }
        if self.on.get(slo).is_some_and(BTreeSet::is_empty) {
            self.on.remove(slo);
        }
    }

    /// Takes an SLO off a node, or back to what it had there.
    pub fn put_back(&mut self, node: &str, slo: &str, had: Option<&Had>) {
        self.remove(slo, |on, one| on == node && had.is_none_or(|had| had.find(one).is_none()));
        let Some(had) = had.filter(|_| self.has(slo, node)) else { return };
        self.edit(slo, |on, one| {
            if let Some(was) = had.find(one).filter(|_| on == node) {
                (one.capacity_pps, one.load_pps) = (was.capacity_pps, was.load_pps);
            }
        });
        self.promise(node, slo, had.promised.clone());
    }

    /// Whether a node refuses what an SLO asks for.
    pub fn is_barred(&self, slo: &str, node: &str) -> bool {
        self.barred.get(slo).is_some_and(|nodes| nodes.contains(node))
    }

    /// Has an instance added: to any open server where the SLO may be, or to one server alone.
    /// `add` returns the servers that it has changed, by their index.
    ///
    /// # Errors
    /// Those of `add`.
    pub fn add_to<E>(
        &mut self,
        slo: &str,
        room: &Room,
        add: impl FnOnce(&mut Placement) -> Result<Vec<usize>, E>,
        promised: impl Fn() -> Promised,
    ) -> Result<(), E> {
        let names: Vec<String> = match room.only() {
            None => self.add_open(slo, add)?,
            Some(node) => {
                let mut one = Placement { servers: self.server(node).cloned().into_iter().collect() };
                let at = add(&mut one)?;
                if let Some((to, from)) = self.server_mut(node).zip(one.servers.pop()) {
                    *to = from;
                }
                at.into_iter().map(|_| node.to_owned()).collect()
            }
        };
        self.added += names.len();
        for name in names {
            self.on.entry(slo.into()).or_default().insert(name.clone());
            self.promise(&name, slo, promised());
        }
        Ok(())
    }

    /// Has an instance added to any open server where the SLO may be. Returns their names.
    fn add_open<E>(&mut self, slo: &str, add: impl FnOnce(&mut Placement) -> Result<Vec<usize>, E>) -> Result<Vec<String>, E> {
        let index = |node: &String| if let Some(At::Open(i)) = self.at.get(node) { Some(*i) } else { None };
        let mut hidden: Vec<usize> = self.barred.get(slo).into_iter().flatten().filter_map(index).collect();
        hidden.sort_unstable_by(|a, b| b.cmp(a));
        let servers = &mut self.open.servers;
        let taken: Vec<(usize, PlacedServer)> = hidden.into_iter().map(|i| (i, servers.remove(i))).collect();
        let added = add(&mut self.open);
        let names = added.map(|at| at.into_iter().map(|i| self.open.servers[i].name.clone()).collect());
        for (i, server) in taken.into_iter().rev() {
            self.open.servers.insert(i, server);
        }
        names
    }
}
