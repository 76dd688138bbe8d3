//! What is written into a pod that gets its node.

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};
use sluice_cluster_types::labels;

/// The field that names a node.
const NAME: &str = "metadata.name";

/// Whether a pod waits at the gate.
pub fn is_gated(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten()).any(|gate| gate.name == labels::GATE)
}

/// The node that [`bound`] has written into a pod.
pub fn node(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let term = affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms.first()?;
    let fields = term.match_fields.as_ref()?;
    fields.iter().rev().find(|field| field.key == NAME)?.values.as_ref()?.first().cloned()
}

/// The patch that takes a pod from the gate to its node: it can run there alone, besides what its
/// own affinity says.
pub fn bound(pod: &Pod, node: &str, number: u32) -> Value {
    let spec = pod.spec.clone().unwrap_or_default();
    let gates: Vec<_> = spec.scheduling_gates.unwrap_or_default().into_iter().filter(|gate| gate.name != labels::GATE).collect();
    let affinity = spec.affinity.and_then(|affinity| affinity.node_affinity);
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution);
    let mut terms = required.map(|required| required.node_selector_terms).unwrap_or_default();
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    // Of a pod at a gate, terms can get requirements, and nothing else of them can change.
    for term in &mut terms {
        let values = Some(vec![node.to_owned()]);
        let is_it = NodeSelectorRequirement { key: NAME.into(), operator: "In".into(), values };
        term.match_fields.get_or_insert_default().push(is_it);
    }
    let required = NodeSelector { node_selector_terms: terms };
    json!({
        "metadata": {"resourceVersion": pod.resource_version(), "labels": {labels::INSTANCE: number.to_string()}},
        "spec": {
            "schedulingGates": gates,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_keeps_its_other_gates_and_terms() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a", "resourceVersion": "7"},
            "spec": {
                "containers": [],
                "schedulingGates": [{"name": "other"}, {"name": labels::GATE}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
                ]}}},
            },
        }))
        .unwrap();
        let patch = bound(&pod, "n1", 3);
        assert_eq!(patch["spec"]["schedulingGates"], json!([{"name": "other"}]));
        assert_eq!(patch["metadata"], json!({"resourceVersion": "7", "labels": {labels::INSTANCE: "3"}}));
        let terms =
            &patch["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let fields = json!([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]);
        assert_eq!(*terms, json!([{"matchExpressions": [{"key": "zone", "operator": "Exists"}], "matchFields": fields}]));
        let bare: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {"containers": []}})).unwrap();
        let patch = bound(&bare, "n2", 0);
        let terms =
            &patch["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        assert_eq!(terms[0]["matchFields"][0]["values"], json!(["n2"]));
        let written: Pod =
            serde_json::from_value(json!({"metadata": {}, "spec": {"containers": [], "affinity": patch["spec"]["affinity"]}}))
                .unwrap();
        assert_eq!((node(&written), node(&bare)), (Some("n2".into()), None));
        assert!(is_gated(&pod) && !is_gated(&bare));
    }
}
