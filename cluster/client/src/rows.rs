//! How SLOs are kept, by what the operator and the nodes say.

use std::collections::BTreeMap;

use kube::ResourceExt;
use serde::Serialize;
use sluice_cli::number;
use sluice_cli::table::{Cell, Tone};
use sluice_cluster_types::{NodePlan, Slo};
use sluice_slo::placement::{Instance, PlacedServer};
use sluice_slo::slo::Promise;

/// An SLO on a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OnNode {
    pub node: String,
    pub namespace: String,
    pub slo: String,
    /// As the node measures it: `new`, `kept`, `violated` or `exceeded`; `refused` or `waiting`
    /// where the node does not run it.
    pub state: String,
    pub promise: Option<Promise>,
    pub instances: usize,
    /// Packets per second that are to be led to these instances.
    pub given_pps: f64,
    pub offered_pps: Option<f64>,
    pub delivered_pps: Option<f64>,
    pub latency_us: Option<f64>,
    pub asks_for: Option<u32>,
}

/// An SLO, and how all its nodes together keep it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Live {
    pub namespace: String,
    pub name: String,
    /// As the operator says.
    pub state: String,
    pub promise: Option<Promise>,
    pub offered_pps: Option<f64>,
    pub delivered_pps: Option<f64>,
    /// Of the node where it is longest.
    pub latency_us: Option<f64>,
    pub nodes: Vec<OnNode>,
}

/// The SLOs of nodes, in a namespace or in all.
pub fn on_nodes<'a>(plans: impl IntoIterator<Item = &'a NodePlan>, namespace: Option<&str>) -> Vec<OnNode> {
    let mut rows = Vec::new();
    for plan in plans {
        let uses = plan.status.as_ref().map(|status| status.uses.as_slice()).unwrap_or_default();
        for chain in plan.spec.chains.iter().filter(|chain| namespace.is_none_or(|only| only == chain.namespace)) {
            let used = uses.iter().find(|one| one.slo == chain.name);
            let here: Vec<&Instance> = plan.spec.server.instances.iter().filter(|one| one.slo == chain.name).collect();
            rows.push(OnNode {
                node: plan.spec.server.name.clone(),
                namespace: chain.namespace.clone(),
                slo: chain.slo.clone(),
                state: match used {
                    Some(one) => one.state.clone(),
                    None if refusal(plan).is_some() => "refused".into(),
                    None => "waiting".into(),
                },
                promise: plan.spec.slos.iter().find(|one| one.slo.name == chain.name).map(|one| one.slo.promise),
                instances: here.len(),
                given_pps: here.iter().map(|one| one.load_pps).sum(),
                offered_pps: used.map(|one| one.offered_pps),
                delivered_pps: used.map(|one| one.delivered_pps),
                latency_us: used.and_then(|one| one.latency_us),
                asks_for: used.and_then(|one| one.asks_for),
            });
        }
    }
    rows
}

/// How each SLO is kept, by namespace and name.
pub fn live<'a>(slos: impl IntoIterator<Item = &'a Slo>, nodes: Vec<OnNode>) -> Vec<Live> {
    let mut by_slo: BTreeMap<(String, String), Vec<OnNode>> = BTreeMap::new();
    for node in nodes {
        by_slo.entry((node.namespace.clone(), node.slo.clone())).or_default().push(node);
    }
    let mut rows: Vec<Live> = slos
        .into_iter()
        .map(|slo| {
            let (namespace, name) = (slo.namespace().unwrap_or_default(), slo.name_any());
            let nodes = by_slo.remove(&(namespace.clone(), name.clone())).unwrap_or_default();
            let sum = |of: fn(&OnNode) -> Option<f64>| nodes.iter().filter_map(of).reduce(|a, b| a + b);
            Live {
                state: state(slo).into(),
                promise: slo.spec.promise(),
                offered_pps: sum(|one| one.offered_pps),
                delivered_pps: sum(|one| one.delivered_pps),
                latency_us: nodes.iter().filter_map(|one| one.latency_us).reduce(f64::max),
                namespace,
                name,
                nodes,
            }
        })
        .collect();
    rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    rows
}

/// The state of an SLO, in one word.
pub fn state(slo: &Slo) -> &str {
    let state = slo.status.as_ref().map(|status| status.state.as_str()).unwrap_or_default();
    if state.is_empty() { "new" } else { state }
}

/// A state with its colour.
pub fn word(state: &str) -> Cell {
    Cell::toned(state, tone(state))
}

pub fn tone(state: &str) -> Tone {
    match state {
        "kept" | "ready" => Tone::Good,
        "refused" | "violated" => Tone::Bad,
        _ => Tone::Warn,
    }
}

/// A rate that may be unknown.
pub fn rate(pps: Option<f64>) -> String {
    pps.map_or_else(|| "?".into(), number::rate)
}

/// Microseconds that may be unknown.
pub fn micros(us: Option<f64>) -> String {
    us.map_or_else(|| "?".into(), |us| number::time((us * 1e3) as u64))
}

/// The rate that is promised.
pub fn promised(promise: Option<&Promise>) -> String {
    match promise {
        None => "?".into(),
        Some(promise) => promise.throughput_pps().map_or_else(|| "on demand".into(), number::rate),
    }
}

/// Why a node refuses its plan, if it does.
fn refusal(plan: &NodePlan) -> Option<&str> {
    let status = plan.status.as_ref().filter(|status| status.observed_revision == plan.spec.revision)?;
    status.refused.as_deref()
}

/// A word for how far a node is with its plan.
pub fn progress(plan: &NodePlan) -> &'static str {
    match &plan.status {
        None => "no agent",
        Some(_) if refusal(plan).is_some() => "refused",
        Some(status) if status.applied_revision != plan.spec.revision => "waiting",
        Some(_) => "ready",
    }
}

/// Why a node does not run its plan as it is, and what to do.
pub fn lag(plan: &NodePlan) -> Option<String> {
    let revision = plan.spec.revision;
    match (&plan.status, refusal(plan)) {
        (None, _) => {
            Some("has no agent that has answered, so it gets nothing: look for the pod of the chart's DaemonSet there".into())
        }
        (Some(_), Some(why)) => Some(format!("refuses its plan: {why}")),
        (Some(status), None) if status.applied_revision != revision => {
            let has = status.applied_revision;
            Some(format!("has not taken over revision {revision} of its plan, and runs {has}: see the log of sluice-node there"))
        }
        (Some(_), None) => None,
    }
}

/// A node's server with the names of SLOs that users know.
pub fn server(plan: &NodePlan) -> PlacedServer {
    let mut server = plan.spec.server.clone();
    for instance in &mut server.instances {
        if let Some(chain) = plan.spec.chains.iter().find(|chain| chain.name == instance.slo) {
            instance.slo = format!("{}/{}", chain.namespace, chain.slo);
        }
    }
    server
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;
    use sluice_slo::examples::shape;

    use super::*;

    /// A plan of a node with an SLO of two instances, which has been taken over.
    pub fn plan(node: &str, state: &str) -> NodePlan {
        let instance = |number: u32| json!({"slo": "acme_web", "number": number, "cores": [number], "ways": 4, "memory_mib": 64, "capacity_pps": 4e6, "load_pps": 3e6});
        let slo = json!({
            "name": "acme_web", "workload": {"nf": "acme_nat"}, "configuration": sluice_slo::digest::Digest::of(b"").to_string(),
            "traffic": "64 B", "promise": {"reserved": {"throughput_pps": 6e6, "latency_us": 100.0}},
        });
        let chain = json!({"services": ["acme_nat"], "ingress": [{"port": "in"}], "egress": "out"});
        let used = json!({"slo": "acme_web", "state": state, "offeredPps": 5.9e6, "deliveredPps": 5.8e6, "latencyUs": 55.0});
        serde_json::from_value(json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "NodePlan", "metadata": {"name": node},
            "spec": {
                "term": 1, "revision": 3, "server": {"name": node, "shape": shape(), "instances": [instance(0), instance(1)]},
                "slos": [{"slo": slo}],
                "chains": [{"name": "acme_web", "namespace": "acme", "slo": "web", "chain": chain}],
            },
            "status": {"observedRevision": 3, "appliedRevision": 3, "uses": [used]},
        }))
        .unwrap()
    }

    pub fn slo(namespace: &str, name: &str, state: &str, why: &str) -> Slo {
        serde_json::from_value(json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "SLO", "metadata": {"name": name, "namespace": namespace},
            "spec": {"chain": name, "traffic": "64 B", "reserved": {"throughputPps": 6e6, "latencyUs": 100.0}},
            "status": {
                "state": state, "promised": "6000000 packets/s, 95 % within 100.0 µs", "instances": 2, "nodes": "n0 n1", "why": why,
                "conditions": [{
                    "type": "Admitted", "status": if why.is_empty() { "True" } else { "False" }, "reason": "Placed",
                    "message": "all that is promised has a place", "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn nodes_are_summed_up_for_each_slo() {
        let plans = [plan("n0", "kept"), plan("n1", "violated")];
        let nodes = on_nodes(&plans, None);
        assert_eq!(nodes.iter().map(|one| (one.node.as_str(), one.instances)).collect::<Vec<_>>(), [("n0", 2), ("n1", 2)]);
        assert!(on_nodes(&plans, Some("other")).is_empty());
        let rows = live(&[slo("acme", "web", "violated", ""), slo("acme", "db", "", "")], nodes);
        assert_eq!(
            rows.iter().map(|row| (row.name.as_str(), row.state.as_str())).collect::<Vec<_>>(),
            [("db", "new"), ("web", "violated")]
        );
        assert_eq!((rows[1].offered_pps, rows[1].delivered_pps, rows[1].latency_us), (Some(11.8e6), Some(11.6e6), Some(55.0)));
        assert_eq!((rows[0].offered_pps, rows[0].nodes.len()), (None, 0));
    }

    #[test]
    fn a_node_that_does_not_run_its_plan_says_why() {
        let mut one = plan("n0", "kept");
        assert_eq!((progress(&one), lag(&one)), ("ready", None));
        one.spec.revision = 4;
        let said = lag(&one).unwrap();
        assert!(progress(&one) == "waiting" && said.starts_with("has not taken over revision 4 of its plan, and runs 3"), "{said}");
        let status = one.status.as_mut().unwrap();
        (status.observed_revision, status.refused) = (4, Some("no port in".into()));
        status.uses.clear();
        assert_eq!((progress(&one), lag(&one)), ("refused", Some("refuses its plan: no port in".into())));
        assert_eq!(on_nodes([&one], None)[0].state, "refused");
        one.status = None;
        assert!(progress(&one) == "no agent" && lag(&one).unwrap().contains("DaemonSet"));
        assert_eq!(on_nodes([&one], None)[0].state, "waiting");
        assert_eq!(server(&one).instances[0].slo, "acme/web");
    }
}
