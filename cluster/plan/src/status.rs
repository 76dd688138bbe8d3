//! What users read: conditions and columns, of the plans that are written and what nodes report.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sluice_cluster_types::condition::{ACCEPTED, ADMITTED, KEPT, READY, ROLLED_OUT, State, are, written};
use sluice_cluster_types::{NetworkFunctionStatus, NodePlan, PlannedFunction, ServiceChainStatus, Slo, SloStatus, Use, name};

use crate::health::{is_settled, refusal};
use crate::round::Memo;
use crate::wish::{Why, functions, owners};
use crate::world::{Key, World};

/// The statuses that are not as they should be.
#[derive(Debug, Default)]
pub struct Statuses {
    pub slos: Vec<(Key, SloStatus)>,
    pub chains: Vec<(Key, ServiceChainStatus)>,
    pub functions: Vec<(Key, NetworkFunctionStatus)>,
}

/// Decides which statuses are to be written.
pub fn statuses(world: &World, memo: &Memo, now: &Time) -> Statuses {
    let mut by_slo: BTreeMap<&str, Vec<&NodePlan>> = BTreeMap::new();
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
    for (key, slo) in &world.slos {
        let on_node = name::on_node(&key.namespace, &key.name);
        let plans = by_slo.get(on_node.as_str()).map(Vec::as_slice).unwrap_or_default();
        statuses.slos.extend(of_slo(&on_node, slo, plans, memo.why.get(key), now).map(|status| (key.clone(), status)));
    }
    let owners = owners(world);
    for (key, chain) in &world.chains {
        let state = match functions(world, &key.namespace, chain) {
            Err(why) => State::new(ACCEPTED, Some(false), why.reason, why.message),
            Ok(_) => match owners.get(key) {
                Some(slo) => State::new(ACCEPTED, Some(true), "Promised", format!("the SLO \"{}\" is of it", slo.name)),
                None => State::new(ACCEPTED, Some(true), "Unused", "no SLO is of it, so no node runs it: make one"),
            },
        };
        let before = chain.status.clone().unwrap_or_default();
        if before.observed_generation == chain.metadata.generation && are(&before.conditions, std::slice::from_ref(&state)) {
            continue;
        }
        let conditions = written(&[state], &before.conditions, chain.metadata.generation, now);
        statuses.chains.push((key.clone(), ServiceChainStatus { observed_generation: chain.metadata.generation, conditions }));
    }
    for (key, function) in &world.functions {
        let on_node = name::on_node(&key.namespace, &key.name);
        let on = by_function.get(on_node.as_str()).map(Vec::as_slice).unwrap_or_default();
        let is_current = |(plan, one): &&(&NodePlan, &PlannedFunction)| one.spec == function.spec && is_settled(plan);
        let (nodes, current) = (on.len() as i64, on.iter().filter(is_current).count() as i64);
        let state = rolled_out(on, nodes, current);
        let before = function.status.clone().unwrap_or_default();
        let generation = function.metadata.generation;
        let is_same = before.observed_generation == generation && (before.nodes, before.current) == (nodes, current);
        if is_same && are(&before.conditions, std::slice::from_ref(&state)) {
            continue;
        }
        let conditions = written(&[state], &before.conditions, generation, now);
        statuses
            .functions
            .push((key.clone(), NetworkFunctionStatus { observed_generation: generation, nodes, current, conditions }));
    }
    statuses
}

fn rolled_out(on: &[(&NodePlan, &PlannedFunction)], nodes: i64, current: i64) -> State {
    let refusing = on.iter().find_map(|(plan, _)| Some((&plan.spec.server.name, refusal(plan)?)));
    match refusing {
        None if nodes == 0 => State::new(ROLLED_OUT, Some(true), "Unused", "no node runs it"),
        None if current == nodes => State::new(ROLLED_OUT, Some(true), "Current", format!("all {nodes} nodes run it as it is")),
        None => State::new(ROLLED_OUT, Some(false), "Rolling", format!("{current} of {nodes} nodes run it as it is")),
        Some((node, why)) => {
            let message = format!(
                "stopped: {current} of {nodes} nodes run it as it is, and node {node} refuses: {why}; change it, or that node"
            );
            State::new(ROLLED_OUT, Some(false), "NodeRefuses", message)
        }
    }
}

/// The state of an SLO: one word, and its conditions.
fn assess(on_node: &str, plans: &[&NodePlan], why: Option<&Why>) -> (&'static str, [State; 3]) {
    let nodes = plans.len();
    let admitted = match why {
        None if nodes > 0 => State::new(ADMITTED, Some(true), "Placed", "all that is promised has a place"),
        None => State::new(ADMITTED, None, "Waiting", "it is not planned yet"),
        Some(why) => State::new(ADMITTED, Some(false), why.reason, why.message.clone()),
    };
    let all = plans.iter().map(|plan| (plan, plan.status.iter().flat_map(|status| &status.uses).find(|one| one.slo == on_node)));
    // What a node has taken over once goes on, whatever else its plan is to have.
    let lacks = |(plan, has): &(&&NodePlan, Option<&Use>)| has.is_none() && !is_settled(plan);
    let late: Vec<&NodePlan> = all.clone().filter(lacks).map(|(plan, _)| *plan).collect();
    let refusing = late.iter().find_map(|plan| Some((&plan.spec.server.name, refusal(plan)?)));
    let ready = match (refusing, late.first()) {
        _ if nodes == 0 => State::new(READY, Some(false), "NotPlaced", "no node runs it"),
        (Some((node, message)), _) => {
            State::new(READY, Some(false), "NodeRefuses", format!("node {node} refuses its plan: {message}"))
        }
        (None, Some(node)) => {
            let (n, node) = (late.len(), &node.spec.server.name);
            let message = format!("{n} of {nodes} nodes have not taken over their plans, as {node}: see sluice-node there");
            State::new(READY, Some(false), "Waiting", message)
        }
        (None, None) => State::new(READY, Some(true), "Applied", "its nodes run it"),
    };
    let is = |word: &str| all.clone().any(|(_, has)| has.is_some_and(|one| one.state == word));
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
        (None, Some(false), _) => "admitted",
        (.., State { reason: "Violated", .. }) => "violated",
        (.., State { reason: "Exceeded", .. }) => "exceeded",
        (.., State { reason: "Measured", .. }) => "kept",
        _ => "ready",
    };
    (word, [admitted, ready, kept])
}

fn of_slo(on_node: &str, slo: &Slo, plans: &[&NodePlan], why: Option<&Why>, now: &Time) -> Option<SloStatus> {
    if plans.is_empty() && why.is_none() {
        return None;
    }
    let (state, states) = assess(on_node, plans, why);
    let of = |plan: &&NodePlan| plan.spec.server.instances.iter().filter(|one| one.slo == on_node).count();
    let nodes: BTreeSet<&str> = plans.iter().map(|plan| plan.spec.server.name.as_str()).collect();
    let before = slo.status.clone().unwrap_or_default();
    let generation = slo.metadata.generation;
    let status = SloStatus {
        observed_generation: generation,
        state: state.into(),
        promised: slo.spec.promise().map(|promise| promise.to_string()).unwrap_or_default(),
        instances: plans.iter().map(of).sum::<usize>() as i64,
        nodes: nodes.into_iter().collect::<Vec<_>>().join(" "),
        why: why.map(|why| why.message.clone()).unwrap_or_default(),
        conditions: before.conditions.clone(),
    };
    let is_same = status == before && are(&before.conditions, &states);
    (!is_same).then(|| SloStatus { conditions: written(&states, &before.conditions, generation, now), ..status })
}
