//! What is written into a pod: one that is made, and one that gets its node.

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use sluice_cluster_plan::Made;
use sluice_cluster_plan::pods::NewPod;
use sluice_cluster_types::{GROUP, Slo, labels};

/// The field that names a node.
const NAME: &str = "metadata.name";
/// Where a node has the folders of its SLOs, each with a socket.
const ATTACH: &str = "/run/sluice/attach";
/// Where a pod has the folder of its SLO.
const MOUNTED: &str = "/run/sluice";
/// The user of what runs of an image: one that owns nothing.
const USER: u32 = 65532;

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
        let fields = term.match_fields.get_or_insert_default();
        // One that was made for its instance has it already.
        if !fields.contains(&is_it) {
            fields.push(is_it);
        }
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

/// Whether the containers of a pod run and are ready.
pub fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|one| one.type_ == "Ready" && one.status == "True")
}

/// What matters of a pod that the operator has made; none if it is another one's.
pub fn made(pod: &Pod) -> Option<Made> {
    let is_slo = |kind: &str, version: &str| kind == Slo::kind(&()) && version.split('/').next() == Some(GROUP);
    let mut owners = pod.owner_references().iter();
    let owner = owners.find(|owner| owner.controller == Some(true) && is_slo(&owner.kind, &owner.api_version))?;
    let template = pod.labels().get(labels::TEMPLATE)?.clone();
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    Some(Made {
        owner: owner.uid.clone(),
        template,
        has_ended: pod.metadata.deletion_timestamp.is_none() && matches!(phase, Some("Succeeded" | "Failed")),
    })
}

/// A pod for an instance. It waits at the gate, can run on the node of its instance alone, has the
/// folder of its SLO from there, and no rights.
pub fn new(new: &NewPod) -> Value {
    let is_it = json!({"matchFields": [{"key": NAME, "operator": "In", "values": [new.node]}]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [is_it]}}});
    json!({
        "metadata": {
            "name": new.pod.name,
            "namespace": new.pod.namespace,
            "labels": {
                "app.kubernetes.io/managed-by": "sluice-operator",
                labels::SLO: new.slo,
                labels::FUNCTION: new.function,
                labels::INSTANCE: new.number.to_string(),
                labels::TEMPLATE: new.template,
            },
            "ownerReferences": [{
                "apiVersion": Slo::api_version(&()),
                "kind": Slo::kind(&()),
                "name": new.slo,
                "uid": new.owner,
                "controller": true,
            }],
        },
        "spec": {
            "schedulingGates": [{"name": labels::GATE}],
            "affinity": affinity,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container(new)],
            "volumes": [{"name": "sluice", "hostPath": {"path": format!("{ATTACH}/{}", new.folder), "type": "Directory"}}],
        },
    })
}

fn container(new: &NewPod) -> Value {
    let spec = &new.spec;
    let own = [("SLUICE_NF", new.nf.clone()), ("SLUICE_SOCKET", format!("{MOUNTED}/nf.sock"))];
    let others = spec.env.iter().filter(|(name, _)| own.iter().all(|(known, _)| name != known));
    let others = others.map(|(name, value)| json!({"name": name, "value": value}));
    let env: Vec<Value> = others.chain(own.iter().map(|(name, value)| json!({"name": name, "value": value}))).collect();
    let most = spec.resources.as_ref().and_then(|most| most.memory_mib);
    // No limit of CPU: it would stop the NF for parts of each period.
    let asked = most.map_or(new.memory_mib, u64::from);
    let mut resources = json!({"requests": {"cpu": "10m", "memory": format!("{asked}Mi")}});
    if let Some(most) = most {
        resources["limits"] = json!({"memory": format!("{most}Mi")});
    }
    json!({
        "name": "nf",
        "image": spec.image,
        "command": spec.command,
        "args": spec.args,
        "env": env,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": resources,
        "volumeMounts": [{"name": "sluice", "mountPath": MOUNTED, "readOnly": true}],
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sluice_cluster_plan::Key;
    use sluice_cluster_types::{NetworkFunctionSpec, Resources};

    use super::*;

    #[test]
    fn a_pod_is_made_for_its_instance_and_may_do_nothing_else() {
        let env = BTreeMap::from([("LEVEL", "2"), ("SLUICE_NF", "t_other/0")].map(|(name, value)| (name.into(), value.into())));
        let spec = NetworkFunctionSpec {
            image: Some("nf:1".into()),
            args: vec!["--fast".into()],
            env,
            resources: Some(Resources { memory_mib: Some(256), pids: None }),
            ..NetworkFunctionSpec::default()
        };
        let wanted = NewPod {
            pod: Key::new("t", "web-nat-3-x"),
            slo: "web".into(),
            owner: "uid".into(),
            function: "nat".into(),
            number: 3,
            node: "n1".into(),
            template: "abc".into(),
            nf: "t_nat/3".into(),
            folder: "t_web".into(),
            memory_mib: 16,
            spec,
        };
        let mut pod: Pod = serde_json::from_value(new(&wanted)).unwrap();
        assert!(is_gated(&pod) && !is_ready(&pod));
        assert_eq!((node(&pod), pod.labels()[labels::INSTANCE].as_str()), (Some("n1".into()), "3"));
        let is = Made { owner: "uid".into(), template: "abc".into(), ..Made::default() };
        assert_eq!(made(&pod), Some(is.clone()));
        let spec = pod.spec.clone().unwrap();
        let container = &spec.containers[0];
        let env: Vec<(&str, &str)> =
            container.env.iter().flatten().map(|one| (one.name.as_str(), one.value.as_deref().unwrap())).collect();
        assert_eq!(env, [("LEVEL", "2"), ("SLUICE_NF", "t_nat/3"), ("SLUICE_SOCKET", "/run/sluice/nf.sock")]);
        let resources = container.resources.clone().unwrap();
        assert_eq!(
            (&resources.requests.unwrap()["memory"].0, &resources.limits.unwrap()["memory"].0),
            (&"256Mi".into(), &"256Mi".into())
        );
        let volume = spec.volumes.unwrap()[0].host_path.clone().unwrap();
        assert_eq!(volume.path, "/run/sluice/attach/t_web");
        assert_eq!(
            (spec.automount_service_account_token, spec.security_context.unwrap().run_as_non_root),
            (Some(false), Some(true))
        );
        // The gate is opened for the node that it has.
        let patch = bound(&pod, "n1", 3);
        let terms =
            &patch["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        assert_eq!(terms[0]["matchFields"].as_array().map(Vec::len), Some(1));
        pod.status =
            serde_json::from_value(json!({"phase": "Failed", "conditions": [{"type": "Ready", "status": "True"}]})).unwrap();
        assert_eq!((made(&pod), is_ready(&pod)), (Some(Made { has_ended: true, ..is }), true));
        pod.owner_references_mut()[0].kind = "ReplicaSet".into();
        assert_eq!(made(&pod), None);
    }

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
