//! A cluster of values: rounds, and nodes that take over their plans.

mod admission;
mod change;
mod images;
mod moves;
mod on_demand;
mod random;
mod refusals;
mod scale;
mod supply;
mod tenants;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use sluice_cluster_types::{
    Match, NetworkFunction, NetworkFunctionSpec, NfProfile, NfProfileSpec, NodePlan, NodePlanStatus, Reserved, ServerClass,
    ServerClassSpec, ServiceChain, ServiceChainSpec, Slo, SloSpec, SloStatus, Use,
};
use sluice_slo::examples::{profile, shape};
use sluice_slo::placement::{Instance, Placement};
use sluice_slo::slo::Promise;

use crate::pods::decide;
use crate::status::{Statuses, statuses};
use crate::{Key, Memo, Node, World, place};

/// A cluster that is simulated: the world, an operator's memory, and nodes.
struct Cluster {
    world: World,
    memo: Memo,
    term: i64,
    now: Duration,
    /// Nodes that refuse any change, with what they say.
    refuse: BTreeMap<String, String>,
    /// Nodes that refuse any plan with an instance, with what they say.
    liars: BTreeMap<String, String>,
    /// Nodes that refuse any plan with an SLO of more packets per second.
    most: BTreeMap<String, f64>,
    /// SLOs that every node refuses, by their name on nodes, with what is said.
    bad: BTreeMap<String, String>,
    /// Nodes that do nothing.
    silent: Vec<String>,
    /// Packets per second of SLOs on demand, by their name on nodes.
    loads: BTreeMap<String, f64>,
    /// Whether packets come to instances that none are led to any more.
    lingers: bool,
}

fn class() -> ServerClassSpec {
    let shape = shape();
    ServerClassSpec {
        node_selector: [("sluice.dev/class".to_string(), "a".to_string())].into(),
        cpu: shape.cpu,
        cores: shape.cores,
        llc_ways: shape.llc_ways,
        way_bytes: shape.way_bytes,
        ddio_ways: shape.ddio_ways,
        min_ways: shape.min_ways,
        classes: shape.classes,
        memory_mib: shape.memory_mib,
        path_us: shape.path_us,
    }
}

fn reserved(chain: &str, throughput_pps: f64) -> SloSpec {
    let reserved = Some(Reserved { throughput_pps, latency_us: 1000.0 });
    SloSpec { chain: Some(chain.into()), traffic: Some("64 B".into()), reserved, ..SloSpec::default() }
}

/// A node that is ready, with an agent.
fn good_node(labels: &BTreeMap<String, String>) -> Node {
    Node { labels: labels.clone(), is_ready: true, is_cordoned: false, is_served: true }
}

fn node_name(i: usize) -> String {
    format!("n{i:03}")
}

impl Cluster {
    /// Empty nodes that run an agent, and a profile of `nat` in the namespace `t`.
    fn new(nodes: usize) -> Self {
        let mut world = World::default();
        world.classes.insert("a".into(), ServerClass::new("a", class()));
        let labels: BTreeMap<String, String> = class().node_selector;
        for i in 0..nodes {
            world.nodes.insert(node_name(i), good_node(&labels));
        }
        let mut cluster = Self {
            world,
            memo: Memo::default(),
            term: 1,
            now: Duration::ZERO,
            refuse: BTreeMap::new(),
            liars: BTreeMap::new(),
            most: BTreeMap::new(),
            bad: BTreeMap::new(),
            silent: Vec::new(),
            loads: BTreeMap::new(),
            lingers: false,
        };
        cluster.tenant("t");
        cluster.run();
        cluster
    }

    /// A namespace with `nat` and its profile.
    fn tenant(&mut self, namespace: &str) {
        let spec = NfProfileSpec { profile: profile() };
        self.world.profiles.insert(Key::new(namespace, "nat"), NfProfile::new("nat", spec));
        let spec = NetworkFunctionSpec { exec: Some("sluice-nf-nat".into()), ..NetworkFunctionSpec::default() };
        self.world.functions.insert(Key::new(namespace, "nat"), NetworkFunction::new("nat", spec));
    }

    /// An SLO, and a chain of its name.
    fn ask(&mut self, name: &str, spec: SloSpec) {
        self.ask_in("t", name, spec, Match { port: Some("in".into()), ..Match::default() });
    }

    fn ask_in(&mut self, namespace: &str, name: &str, spec: SloSpec, from: Match) {
        let ingress = vec![from];
        let chain = ServiceChainSpec { services: vec!["nat".into()], ingress, egress: "out".into(), ..ServiceChainSpec::default() };
        let of = spec.subject();
        self.world.chains.insert(Key::new(namespace, of), ServiceChain::new(of, chain));
        self.world.slos.insert(Key::new(namespace, name), Slo::new(name, spec));
        self.world.epoch += 1;
    }

    fn promise(&mut self, name: &str, throughput_pps: f64) {
        self.ask(name, reserved(name, throughput_pps));
    }

    fn node(&mut self, i: usize) -> &mut Node {
        self.world.epoch += 1;
        self.world.nodes.get_mut(&node_name(i)).unwrap()
    }

    /// One round, all of whose plans are written. Returns how many.
    fn round(&mut self) -> usize {
        let round = place(&self.world, &mut self.memo, self.term, self.now);
        let count = round.plans.len() + round.gone.len();
        for spec in round.plans {
            let name = spec.server.name.clone();
            let before = self.world.plans.get(&name);
            let status = before.and_then(|plan| plan.status.clone());
            if let Some(before) = before {
                assert_eq!(spec.revision, before.spec.revision + 1);
            }
            let mut plan = NodePlan::new(&name, spec);
            plan.status = status;
            self.world.plans.insert(name, plan);
        }
        for name in round.gone {
            self.world.plans.remove(&name);
        }
        self.check();
        count
    }

    /// Each node takes over its plan. Returns whether any had to.
    fn agents(&mut self) -> bool {
        let lingers = self.lingers;
        let before: Vec<_> = self.world.plans.values().map(|plan| plan.status.clone()).collect();
        for (name, plan) in &mut self.world.plans {
            if self.silent.contains(name) || !self.world.nodes.get(name).is_some_and(|node| node.is_ready && node.is_served) {
                continue;
            }
            let status = plan.status.get_or_insert_with(NodePlanStatus::default);
            if status.applied_revision == plan.spec.revision {
                continue;
            }
            status.observed_revision = plan.spec.revision;
            let bad = || plan.spec.slos.iter().find_map(|one| self.bad.get(&one.slo.name));
            let lies = || self.liars.get(name).filter(|_| !plan.spec.server.instances.is_empty());
            let is_more = |most: &f64| plan.spec.slos.iter().any(|one| one.slo.promise.throughput_pps() > Some(*most));
            let more = self.most.get(name).filter(|most| is_more(most)).map(|most| format!("more than {most}"));
            status.refused = self.refuse.get(name).or_else(lies).or_else(bad).cloned().or(more);
            if status.refused.is_some() {
                continue;
            }
            status.applied_revision = plan.spec.revision;
            let of =
                |slo: &str| plan.spec.server.instances.iter().filter(|one| one.slo == slo).map(|one| one.load_pps).sum::<f64>();
            let use_of = |slo: &str| Use {
                slo: slo.into(),
                state: "kept".into(),
                offered_pps: if lingers { of(slo).max(1.0) } else { of(slo) },
                ..Use::default()
            };
            status.uses = plan.spec.slos.iter().map(|one| use_of(&one.slo.name)).collect();
        }
        self.offer();
        before != self.world.plans.values().map(|plan| plan.status.clone()).collect::<Vec<_>>()
    }

    /// Packets of SLOs on demand come to their instances in equal parts, but to none that others
    /// are preferred to.
    fn offer(&mut self) {
        for (slo, pps) in &self.loads {
            let own = |plan: &NodePlan| -> Vec<f64> {
                let of = plan.spec.server.instances.iter().filter(|one| one.slo == *slo);
                of.map(|one| one.load_pps).collect()
            };
            let all: Vec<f64> = self.world.plans.values().flat_map(own).collect();
            let most = all.iter().copied().fold(0.0, f64::max);
            let count = |of: &[f64]| of.iter().filter(|load| **load == most).count() as f64;
            for plan in self.world.plans.values_mut() {
                let part = count(&own(plan)) / count(&all);
                let uses = plan.status.iter_mut().flat_map(|status| &mut status.uses);
                uses.filter(|one| one.slo == *slo).for_each(|one| one.offered_pps = pps * part);
            }
        }
    }

    /// Rounds until nothing changes.
    fn run(&mut self) {
        for _ in 0..200 {
            let wrote = self.round();
            if !self.agents() && wrote == 0 {
                return;
            }
        }
        panic!("rounds do not end");
    }

    /// What holds at each step: plans can be kept, and no instance is in two of them.
    fn check(&self) {
        let servers = self.world.plans.values().map(|plan| plan.spec.server.clone()).collect();
        Placement { servers }.check().unwrap();
        for plan in self.world.plans.values() {
            let names = |of: Vec<&str>| of.into_iter().map(str::to_owned).collect::<std::collections::BTreeSet<String>>();
            let placed = names(plan.spec.server.instances.iter().map(|one| one.slo.as_str()).collect());
            assert_eq!(names(plan.spec.slos.iter().map(|one| one.slo.name.as_str()).collect()), placed);
            assert_eq!(names(plan.spec.chains.iter().map(|one| one.name.as_str()).collect()), placed);
        }
    }

    fn instances(&self, slo: &str) -> Vec<(String, Instance)> {
        let name = format!("t_{slo}");
        let of = self
            .world
            .plans
            .values()
            .flat_map(|plan| plan.spec.server.instances.iter().map(|one| (plan.spec.server.name.clone(), one.clone())));
        of.filter(|(_, one)| one.slo == name).collect()
    }

    fn nodes(&self, slo: &str) -> Vec<String> {
        let mut nodes: Vec<String> = self.instances(slo).into_iter().map(|(node, _)| node).collect();
        nodes.dedup();
        nodes
    }

    /// Packets per second that instances with packets carry, on nodes that are not lost.
    fn carried(&self, slo: &str) -> f64 {
        let is_up = |node: &String| self.world.nodes.get(node).is_some_and(|node| node.is_ready);
        let led = self.instances(slo).into_iter().filter(|(node, one)| is_up(node) && one.load_pps > 0.0);
        led.map(|(_, one)| one.capacity_pps).sum()
    }

    fn is_kept(&self, slo: &str) -> bool {
        let spec = &self.world.slos[&Key::new("t", slo)].spec;
        match spec.promise() {
            Some(Promise::Reserved { throughput_pps, .. }) => {
                let led: f64 = self.instances(slo).iter().map(|(_, one)| one.load_pps).sum();
                self.carried(slo) >= throughput_pps * (1.0 - 1e-6) && led >= throughput_pps * (1.0 - 1e-6)
            }
            _ => !self.instances(slo).is_empty(),
        }
    }

    fn statuses(&self) -> Statuses {
        statuses(&self.world, &self.memo, &decide(&self.world).turnovers, &Time(Timestamp::UNIX_EPOCH))
    }

    fn status(&self, slo: &str) -> SloStatus {
        self.statuses().slos.into_iter().find(|(key, _)| key.name == slo).unwrap().1
    }

    /// State, and the reason of the first condition.
    fn said(&self, slo: &str) -> (String, String) {
        let status = self.status(slo);
        (status.state, status.conditions[0].reason.clone())
    }

    /// Another operator begins, with what is written alone.
    fn succeed(&mut self) {
        self.memo = Memo::default();
        self.term += 1;
    }
}
