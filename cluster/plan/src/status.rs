//! What users read: conditions and columns, of the plans that are written and what nodes report.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sluice_api::config::OnFailure;
use sluice_cluster_types::condition::{ACCEPTED, ADMITTED, KEPT, READY, ROLLED_OUT, State, are, written};
use sluice_cluster_types::{
    NetworkFunction, NetworkFunctionStatus, NfProfileStatus, NodePlan, PlannedChain, PlannedFunction, ServerClassStatus,
    ServiceChain, ServiceChainStatus, Slo, SloStatus, Use, labels, name,
};

use crate::health::{is_settled, is_silent, refusal, see_agents};
use crate::ingress::INGRESS_TAKEN;
use crate::pods::{Turnover, Turnovers};
use crate::round::Memo;
use crate::supply;
use crate::wish::{Why, functions, owners};
use crate::world::{Key, Pod, World};

/// The reason of a condition: a node's agent does not report any more.
const AGENT_SILENT: &str = "AgentSilent";
/// The same: the API server does not let the operator place its pods.
const PODS_DENIED: &str = "PodsDenied";
/// The reason of a condition: it has a place, and the API server does not take the plan of a node.
const PLANS_DENIED: &str = "PlansDenied";
/// The same: it is on demand, none of the pods of an NF is ready, and no packets pass.
const NOT_ATTACHED: &str = "NotAttached";

/// The statuses that are not as they should be.
#[derive(Debug, Default)]
pub struct Statuses {
    pub slos: Vec<(Key, SloStatus)>,
    pub chains: Vec<(Key, ServiceChainStatus)>,
    pub functions: Vec<(Key, NetworkFunctionStatus)>,
    pub profiles: Vec<(Key, NfProfileStatus)>,
    pub classes: Vec<(String, ServerClassStatus)>,
}

/// SLOs and NFs of which there may be something else to say, though no plan is another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    pub slos: BTreeSet<Key>,
    pub functions: BTreeSet<Key>,
}

impl Touched {
    pub fn is_empty(&self) -> bool {
        self.slos.is_empty() && self.functions.is_empty()
    }

    /// Notes a pod that has come, changed or gone.
    pub fn note_pod(&mut self, key: &Key, pod: &Pod) {
        self.slos.insert(Key::new(&key.namespace, &pod.slo));
    }

    /// Notes how far pods are now, and how far they were.
    pub fn note_turnovers(&mut self, before: &Turnovers, now: &Turnovers) {
        let differs = |(function, _): &(&Key, &Turnover)| before.get(*function) != now.get(*function);
        self.functions.extend(before.iter().chain(now).filter(differs).map(|(function, _)| function.clone()));
    }
}

/// Decides which statuses are to be written. `turnovers` is of the pods of this world.
pub fn statuses(world: &World, memo: &Memo, turnovers: &Turnovers, now: &Time) -> Statuses {
    let slos = of_slos(world, memo, world.slos.iter().collect(), now);
    let functions = of_functions(world, memo, turnovers, world.functions.iter().collect(), now);
    let mut statuses = Statuses { slos, functions, ..Statuses::default() };
    let owners = owners(world);
    for (key, chain) in &world.chains {
        let (before, generation) = (chain.status.clone().unwrap_or_default(), chain.metadata.generation);
        let state = of_chain(world, memo, &owners, key, chain);
        if before.observed_generation != generation || !are(&before.conditions, std::slice::from_ref(&state)) {
            let conditions = written(&[state], &before.conditions, generation, now);
            statuses.chains.push((key.clone(), ServiceChainStatus { observed_generation: generation, conditions }));
        }
    }
    statuses.profiles = supply::profiles(world, &memo.standings, now);
    statuses.classes = supply::classes(world, now);
    statuses
}

/// The same of these objects alone.
pub fn statuses_of(touched: &Touched, world: &World, memo: &Memo, turnovers: &Turnovers, now: &Time) -> Statuses {
    let slos = touched.slos.iter().filter_map(|key| world.slos.get_key_value(key)).collect();
    let functions = touched.functions.iter().filter_map(|key| world.functions.get_key_value(key)).collect();
    Statuses {
        slos: of_slos(world, memo, slos, now),
        functions: of_functions(world, memo, turnovers, functions, now),
        ..Statuses::default()
    }
}

/// Objects with their names on nodes.
fn named<'a, K>(all: Vec<(&'a Key, &'a K)>) -> Vec<(String, &'a Key, &'a K)> {
    all.into_iter().map(|(key, one)| (name::on_node(&key.namespace, &key.name), key, one)).collect()
}

fn of_slos(world: &World, memo: &Memo, slos: Vec<(&Key, &Slo)>, now: &Time) -> Vec<(Key, SloStatus)> {
    let slos = named(slos);
    let mut by_slo: HashMap<&str, Vec<&NodePlan>> = slos.iter().map(|(slo, ..)| (slo.as_str(), Vec::new())).collect();
    for plan in world.plans.values() {
        for one in &plan.spec.slos {
            if let Some(plans) = by_slo.get_mut(one.slo.name.as_str()) {
                plans.push(plan);
            }
        }
    }
    let (denied, stuck, pods) = (denied_pods(world), stuck(world), ready_pods(world, &slos));
    let of = |(name, key, slo): &(String, &Key, &Slo)| {
        let plans = by_slo.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        let silent = plans.iter().map(|plan| plan.spec.server.name.as_str()).filter(|node| is_silent(world, node)).collect();
        let on = On { slo: name, key, plans, silent, denied: denied.get(key).copied(), pods: &pods, memo };
        let why = memo.why.get(*key).or(stuck.as_ref().filter(|_| plans.is_empty()));
        Some(((*key).clone(), of_slo(&on, slo, why, now)?))
    };
    slos.iter().filter_map(of).collect()
}

fn of_functions(
    world: &World,
    memo: &Memo,
    turnovers: &Turnovers,
    functions: Vec<(&Key, &NetworkFunction)>,
    now: &Time,
) -> Vec<(Key, NetworkFunctionStatus)> {
    let functions = named(functions);
    let mut by_function: HashMap<&str, Vec<(&NodePlan, &PlannedFunction)>> =
        functions.iter().map(|(function, ..)| (function.as_str(), Vec::new())).collect();
    for plan in world.plans.values() {
        for function in &plan.spec.functions {
            if let Some(on) = by_function.get_mut(function.name.as_str()) {
                on.push((plan, function));
            }
        }
    }
    let of = |(name, key, function): &(String, &Key, &NetworkFunction)| {
        let on = by_function.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        let far = Far { waits_for: memo.waits_for(name), pods: turnovers.get(*key) };
        Some(((*key).clone(), of_function(function, on, &far, now)?))
    };
    functions.iter().filter_map(of).collect()
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
fn denied_pods(world: &World) -> BTreeMap<&Key, &str> {
    let is_ending = |key: &Key| world.pods.get(key).is_some_and(|pod| pod.is_ending);
    let living = world.denied_pods.iter().filter(|(key, _)| !is_ending(key));
    living.map(|(_, (slo, why))| (slo, why.as_str())).collect()
}

/// Namespace, SLO, NF and node of pods that are ready.
type Ready<'a> = HashSet<[&'a str; 4]>;

/// The pods that are ready of those of these SLOs that are on demand.
fn ready_pods<'a>(world: &'a World, slos: &[(String, &'a Key, &'a Slo)]) -> Ready<'a> {
    let on_demand = slos.iter().filter(|(.., slo)| slo.spec.on_demand.is_some());
    let keys: HashSet<[&str; 2]> = on_demand.map(|(_, key, _)| [key.namespace.as_str(), key.name.as_str()]).collect();
    if keys.is_empty() {
        return Ready::new();
    }
    let of = |(key, pod): (&'a Key, &'a Pod)| {
        let node = pod.node.as_deref().filter(|_| pod.is_ready && !pod.is_gated && !pod.is_ending)?;
        let (namespace, slo) = (key.namespace.as_str(), pod.slo.as_str());
        keys.contains(&[namespace, slo]).then_some([namespace, slo, pod.function.as_str(), node])
    };
    world.pods.iter().filter_map(of).collect()
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
    /// The NF's pods, if some are old, or not ready.
    pods: Option<&'a Turnover>,
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
            let said: Vec<String> = old.into_iter().chain(far.pods.and_then(|pods| pods.waits.as_ref()).map(waits)).collect();
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
    key: &'a Key,
    plans: &'a [&'a NodePlan],
    memo: &'a Memo,
    /// Pods that are ready, of SLOs on demand.
    pods: &'a Ready<'a>,
    /// Those of its nodes whose agents are silent.
    silent: Vec<&'a str>,
    /// Why its pods cannot be placed.
    denied: Option<&'a str>,
}

impl On<'_> {
    fn uses<'a>(&self, plan: &'a NodePlan) -> Option<&'a Use> {
        plan.status.iter().flat_map(|status| &status.uses).find(|one| one.slo == self.slo)
    }

    /// Whether the node of a plan measures this, as far as it reports.
    fn measures(&self, plan: &NodePlan, word: &str) -> bool {
        !self.silent.contains(&plan.spec.server.name.as_str()) && self.uses(plan).is_some_and(|one| one.state == word)
    }

    /// Whether any of its nodes does.
    fn is(&self, word: &str) -> bool {
        self.plans.iter().any(|plan| self.measures(plan, word))
    }

    /// Whether all NFs of its chain run on the node of a plan, because packets pass: without one,
    /// the chain takes none, unless it is to leave that one out.
    fn passes(&self, plan: &NodePlan, chain: &PlannedChain) -> bool {
        chain.chain.on_failure != OnFailure::Bypass && self.uses(plan).is_some_and(|one| one.delivered_pps > 0.0)
    }

    /// Which NF has no pod that is ready, on a node for which the latency is kept: without packets
    /// none is late. Where they pass, its pod may be unready for another reason.
    fn detached(&self) -> Option<String> {
        let Key { namespace, name } = self.key;
        let lacks = |plan: &&NodePlan| {
            let (node, spec) = (plan.spec.server.name.as_str(), &plan.spec);
            let chain = spec.chains.iter().find(|one| one.name == self.slo).filter(|chain| !self.passes(plan, chain))?;
            let is_own = |one: &&PlannedFunction| one.spec.exec.is_none() && chain.chain.services.contains(&one.name);
            let has_pod = |of: &str| self.pods.contains(&[namespace.as_str(), name.as_str(), of, node]);
            let function = &spec.functions.iter().filter(is_own).find(|one| !has_pod(&one.function))?.function;
            let of = format!("{}={name},{}={function}", labels::SLO, labels::FUNCTION);
            let ask = format!("kubectl describe pods -n {namespace} -l {of} says why");
            Some(format!("no pod of the NF \"{function}\" is ready on node {node}: {ask}"))
        };
        self.plans.iter().filter(|plan| self.measures(plan, "kept")).find_map(lacks)
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
fn assess(on: &On<'_>, is_on_demand: bool, why: Option<&Why>) -> (&'static str, [State; 3]) {
    let nodes = on.plans.len();
    let admitted = match why {
        None if nodes > 0 => State::new(ADMITTED, Some(true), "Placed", "all that is promised has a place"),
        None => State::new(ADMITTED, None, "Waiting", "it is not planned yet"),
        Some(why) => State::new(ADMITTED, Some(false), why.reason, why.message.clone()),
    };
    let ready = on.ready();
    let is = |word: &str| on.is(word);
    let detached = if is_on_demand { on.detached() } else { None };
    let kept = match detached {
        _ if is("violated") => {
            State::new(KEPT, Some(false), "Violated", "a node measures less than is promised: sluice slo list --live there")
        }
        Some(lacks) => State::new(KEPT, Some(false), NOT_ATTACHED, lacks),
        None if is("exceeded") => State::new(KEPT, Some(true), "Exceeded", "more comes than is promised, and the rest is dropped"),
        None if is("kept") => State::new(KEPT, Some(true), "Measured", "its nodes measure what is promised"),
        None => State::new(KEPT, None, "NotMeasured", "no node has measured it yet"),
    };
    let word = match (why, &ready.holds, &kept) {
        (Some(_), ..) if nodes == 0 => "refused",
        (Some(_), ..) => "degraded",
        _ if [AGENT_SILENT, PODS_DENIED].contains(&ready.reason) => "degraded",
        (None, Some(false), _) => "admitted",
        (.., State { holds: Some(false), .. }) => "violated",
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
    let (state, states) = assess(on, slo.spec.on_demand.is_some(), why);
    let of = |plan: &&NodePlan| plan.spec.server.instances.iter().filter(|one| one.slo == on.slo).count();
    let says_more = |state: &&State| [AGENT_SILENT, PODS_DENIED, NOT_ATTACHED].contains(&state.reason);
    let lacks = states.iter().find(says_more).map(|state| &state.message);
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
