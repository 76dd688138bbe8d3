//! What users read: conditions and columns, of the plans that are written and what nodes report.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sluice_cluster_types::condition::{ACCEPTED, ADMITTED, KEPT, READY, ROLLED_OUT, State, are, written};
use sluice_cluster_types::{
    NetworkFunction, NetworkFunctionStatus, NfProfileStatus, NodePlan, PlannedFunction, ServerClassStatus, ServiceChain,
    ServiceChainStatus, Slo, SloStatus, Use, name,
};

use crate::health::{is_settled, is_silent, refusal, see_agents};
use crate::images::{Images, Turnover};
use crate::ingress::INGRESS_TAKEN;
use crate::round::Memo;
use crate::supply;
use crate::wish::{Why, functions, owners};
use crate::world::{Key, World};

/// The reason of a condition: a node's agent does not report any more.
const AGENT_SILENT: &str = "AgentSilent";
/// The same: the API server does not let the operator place its pods.
const PODS_DENIED: &str = "PodsDenied";
/// The reason of a condition: it has a place, and the API server does not take the plan of a node.
const PLANS_DENIED: &str = "PlansDenied";

/// The statuses that are not as they should be.
#[derive(Debug, Default)]
pub struct Statuses {
    pub slos: Vec<(Key, SloStatus)>,
    pub chains: Vec<(Key, ServiceChainStatus)>,
    pub functions: Vec<(Key, NetworkFunctionStatus)>,
    pub profiles: Vec<(Key, NfProfileStatus)>,
    pub classes: Vec<(String, ServerClassStatus)>,
}

/// Decides which statuses are to be written.
pub fn statuses(world: &World, memo: &Memo, now: &Time) -> Statuses {
    let mut by_slo: HashMap<&str, Vec<&NodePlan>> = HashMap::new();
    let mut by_function: BTreeMap<&str, Vec<(&NodePlan, &PlannedFunction)>> = BTreeMap::new();
    for plan in world.plans.values() {
        for one in &plan.spec.slos {
            by_slo.entry(&one.slo.name).or_default().push(plan);
        }
        for function in &plan.spec.functions {
            by_function.entry(&function.name).or_default().push((plan, function));
        }
    }
    let mut statuses = Statuses::default();
    let (denied, stuck) = (denied_pods(world), stuck(world));
    for (key, slo) in &world.slos {
        let on_node = name::on_node(&key.namespace, &key.name);
        let plans = by_slo.get(on_node.as_str()).map(Vec::as_slice).unwrap_or_default();
        let silent = plans.iter().map(|plan| plan.spec.server.name.as_str()).filter(|node| is_silent(world, node)).collect();
        let on = On { slo: &on_node, plans, silent, denied: denied.get(key).copied(), memo };
        let why = memo.why.get(key).or(stuck.as_ref().filter(|_| plans.is_empty()));
        statuses.slos.extend(of_slo(&on, slo, why, now).map(|status| (key.clone(), status)));
    }
    let owners = owners(world);
    for (key, chain) in &world.chains {
        let (before, generation) = (chain.status.clone().unwrap_or_default(), chain.metadata.generation);
        let state = of_chain(world, memo, &owners, key, chain);
        if before.observed_generation != generation || !are(&before.conditions, std::slice::from_ref(&state)) {
            let conditions = written(&[state], &before.conditions, generation, now);
            statuses.chains.push((key.clone(), ServiceChainStatus { observed_generation: generation, conditions }));
        }
    }
    let images = Images::of(world);
    let turnover = images.turnover(world);
    for (key, function) in &world.functions {
        let on_node = name::on_node(&key.namespace, &key.name);
        let on = by_function.get(on_node.as_str()).map(Vec::as_slice).unwrap_or_default();
        let pods = turnover.get(&(key.namespace.as_str(), key.name.as_str()));
        let far = Far { waits_for: memo.waits_for(&on_node), pods };
        statuses.functions.extend(of_function(function, on, &far, now).map(|status| (key.clone(), status)));
    }
    statuses.profiles = supply::profiles(world, &memo.standings, now);
    statuses.classes = supply::classes(world, now);
    statuses
}

/// Whether a chain can be planned, as far as other objects matter.
fn of_chain(world: &World, memo: &Memo, owners: &HashMap<(&str, &str), &Key>, key: &Key, chain: &ServiceChain) -> State {
    if let Err(why) = functions(world, &key.namespace, &chain.spec.services) {
        return State::new(ACCEPTED, Some(false), why.reason, why.message);
    }
    let Some(slo) = owners.get(&(key.namespace.as_str(), key.name.as_str())) else {
        return State::new(ACCEPTED, Some(true), "Unused", "no SLO is of it, so no node runs it: make one");
    };
    match memo.why.get(*slo).filter(|why| why.reason == INGRESS_TAKEN) {
        Some(why) => State::new(ACCEPTED, Some(false), INGRESS_TAKEN, why.message.clone()),
        None => State::new(ACCEPTED, Some(true), "Promised", format!("the SLO \"{}\" is of it", slo.name)),
    }
}

/// Why pods cannot be placed, by their SLOs.
fn denied_pods(world: &World) -> BTreeMap<Key, &str> {
    let is_ending = |key: &Key| world.pods.get(key).is_some_and(|pod| pod.is_ending);
    let living = world.denied_pods.iter().filter(|(key, _)| !is_ending(key));
    living.map(|(_, (slo, why))| (slo.clone(), why.as_str())).collect()
}

/// Why SLOs that have no plan may not get one.
fn stuck(world: &World) -> Option<Why> {
    let (node, why) = world.denied_plans.first_key_value()?;
    Some(Why::new(PLANS_DENIED, format!("the plan of node {node} cannot be written: {why}")))
}

/// How far a change of an NF is.
struct Far<'a> {
    /// The node that it waits for.
    waits_for: Option<&'a str>,
    /// The NF's pods, if the operator makes them.
    pods: Option<&'a Turnover<'a>>,
}

fn of_function(
    function: &NetworkFunction,
    on: &[(&NodePlan, &PlannedFunction)],
    far: &Far<'_>,
    now: &Time,
) -> Option<NetworkFunctionStatus> {
    let is_current = |(plan, one): &&(&NodePlan, &PlannedFunction)| one.spec == function.spec && is_settled(plan);
    let (nodes, current) = (on.len() as i64, on.iter().filter(is_current).count() as i64);
    let state = rolled_out(on, nodes, current, far);
    let before = function.status.clone().unwrap_or_default();
    let observed_generation = function.metadata.generation;
    let is_same = before.observed_generation == observed_generation && (before.nodes, before.current) == (nodes, current);
    if is_same && are(&before.conditions, std::slice::from_ref(&state)) {
        return None;
    }
    let conditions = written(&[state], &before.conditions, observed_generation, now);
    Some(NetworkFunctionStatus { observed_generation, nodes, current, conditions })
}

fn rolled_out(on: &[(&NodePlan, &PlannedFunction)], nodes: i64, current: i64, far: &Far<'_>) -> State {
    let refusing = on.iter().find_map(|(plan, _)| Some((&plan.spec.server.name, refusal(plan)?)));
    match refusing {
        None if nodes == 0 => State::new(ROLLED_OUT, Some(true), "Unused", "no node runs it"),
        None if current == nodes && far.pods.is_some_and(|pods| pods.old > 0 || pods.waits.is_some()) => {
            let waits = |key: &Key| format!("the pod {key} is waited for, which is not ready: kubectl describe pod says why");
            let old = far.pods.filter(|pods| pods.old > 0).map(|pods| format!("{} pods are of what it was before", pods.old));
            let said: Vec<String> = old.into_iter().chain(far.pods.and_then(|pods| pods.waits).map(waits)).collect();
            State::new(ROLLED_OUT, Some(false), "Rolling", said.join("; "))
        }
        None if current == nodes => State::new(ROLLED_OUT, Some(true), "Current", format!("all {nodes} nodes run it as it is")),
        None => {
            let waits = far.waits_for.map(|node| format!("; node {node} is waited for: see sluice-node there")).unwrap_or_default();
            State::new(ROLLED_OUT, Some(false), "Rolling", format!("{current} of {nodes} nodes run it as it is{waits}"))
        }
        Some((node, why)) => {
            let message = format!(
                "stopped: {current} of {nodes} nodes run it as it is, and node {node} refuses: {why}; change it, or that node"
            );
            State::new(ROLLED_OUT, Some(false), "NodeRefuses", message)
        }
    }
}

/// Where an SLO is.
struct On<'a> {
    /// Its name on nodes.
    slo: &'a str,
    plans: &'a [&'a NodePlan],
    memo: &'a Memo,
    /// Those of its nodes whose agents are silent.
    silent: Vec<&'a str>,
    /// Why its pods cannot be placed.
    denied: Option<&'a str>,
}

impl On<'_> {
    fn uses<'a>(&self, plan: &'a NodePlan) -> Option<&'a Use> {
        plan.status.iter().flat_map(|status| &status.uses).find(|one| one.slo == self.slo)
    }

    /// Whether a node measures this, as far as it reports.
    fn is(&self, word: &str) -> bool {
        let reporting = self.plans.iter().filter(|plan| !self.silent.contains(&plan.spec.server.name.as_str()));
        reporting.filter_map(|plan| self.uses(plan)).any(|one| one.state == word)
    }

    fn ready(&self) -> State {
        let nodes = self.plans.len();
        // What a node has taken over once goes on, whatever else its plan is to have.
        let is_refused = |plan: &NodePlan| refusal(plan).is_some() && self.memo.is_changed(plan, self.slo);
        let lacks = |plan: &&&NodePlan| !is_settled(plan) && (self.uses(plan).is_none() || is_refused(plan));
        let late: Vec<&&NodePlan> = self.plans.iter().filter(lacks).collect();
        let refusing = late.iter().find_map(|plan| Some((&plan.spec.server.name, refusal(plan)?)));
        if nodes > 0
            && self.silent.is_empty()
            && let Some(why) = self.denied
        {
            return State::new(READY, Some(false), PODS_DENIED, format!("its pods cannot be placed: {why}"));
        }
        match (refusing, late.first()) {
            _ if nodes == 0 => State::new(READY, Some(false), "NotPlaced", "no node runs it"),
            _ if !self.silent.is_empty() => State::new(READY, Some(false), AGENT_SILENT, see_agents(&self.silent)),
            (Some((node, message)), _) => {
                State::new(READY, Some(false), "NodeRefuses", format!("node {node} refuses its plan: {message}"))
            }
            (None, Some(node)) => {
                let (n, node) = (late.len(), &node.spec.server.name);
                let message = format!("{n} of {nodes} nodes have not taken over their plans, as {node}: see sluice-node there");
                State::new(READY, Some(false), "Waiting", message)
            }
            (None, None) => State::new(READY, Some(true), "Applied", "its nodes run it"),
        }
    }
}

/// The state of an SLO: one word, and its conditions.
fn assess(on: &On<'_>, why: Option<&Why>) -> (&'static str, [State; 3]) {
    let nodes = on.plans.len();
    let admitted = match why {
        None if nodes > 0 => State::new(ADMITTED, Some(true), "Placed", "all that is promised has a place"),
        None => State::new(ADMITTED, None, "Waiting", "it is not planned yet"),
        Some(why) => State::new(ADMITTED, Some(false), why.reason, why.message.clone()),
    };
    let ready = on.ready();
    let is = |word: &str| on.is(word);
    let kept = match () {
        () if is("violated") => {
            State::new(KEPT, Some(false), "Violated", "a node measures less than is promised: sluice slo list --live there")
        }
        () if is("exceeded") => State::new(KEPT, Some(true), "Exceeded", "more comes than is promised, and the rest is dropped"),
        () if is("kept") => State::new(KEPT, Some(true), "Measured", "its nodes measure what is promised"),
        () => State::new(KEPT, None, "NotMeasured", "no node has measured it yet"),
    };
    let word = match (why, &ready.holds, &kept) {
        (Some(_), ..) if nodes == 0 => "refused",
        (Some(_), ..) => "degraded",
        _ if [AGENT_SILENT, PODS_DENIED].contains(&ready.reason) => "degraded",
        (None, Some(false), _) => "admitted",
        (.., State { reason: "Violated", .. }) => "violated",
        (.., State { reason: "Exceeded", .. }) => "exceeded",
        (.., State { reason: "Measured", .. }) => "kept",
        _ => "ready",
    };
    (word, [admitted, ready, kept])
}

fn of_slo(on: &On<'_>, slo: &Slo, why: Option<&Why>, now: &Time) -> Option<SloStatus> {
    let plans = on.plans;
    if plans.is_empty() && why.is_none() {
        return None;
    }
    let (state, states) = assess(on, why);
    let of = |plan: &&NodePlan| plan.spec.server.instances.iter().filter(|one| one.slo == on.slo).count();
    let lacks = states.iter().find(|state| [AGENT_SILENT, PODS_DENIED].contains(&state.reason)).map(|state| &state.message);
    let nodes: BTreeSet<&str> = plans.iter().map(|plan| plan.spec.server.name.as_str()).collect();
    let before = slo.status.clone().unwrap_or_default();
    let generation = slo.metadata.generation;
    let status = SloStatus {
        observed_generation: generation,
        state: state.into(),
        promised: slo.spec.promise().map(|promise| promise.to_string()).unwrap_or_default(),
        instances: plans.iter().map(of).sum::<usize>() as i64,
        nodes: nodes.into_iter().collect::<Vec<_>>().join(" "),
        why: why.map(|why| &why.message).or(lacks).cloned().unwrap_or_default(),
        conditions: before.conditions.clone(),
    };
    let is_same = status == before && are(&before.conditions, &states);
    (!is_same).then(|| SloStatus { conditions: written(&states, &before.conditions, generation, now), ..status })
}
