//! Objects of the tests, and nodes that take over whatever their plan says.

// Each test uses a part of it.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams, Resource};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use sluice_cluster_types::{NfProfile, NodePlan, NodePlanStatus, ServerClass, Slo, Use, labels};
use sluice_slo::examples::{profile, shape};

use crate::testbed::PATIENCE;

pub const CLASS: &str = "sluice.dev/class";
/// A node with an agent of its own.
pub const REAL: &str = "real";

/// Makes or changes an object.
pub async fn apply<K: Resource<DynamicType = ()>>(client: &Client, object: &Value) -> Result<DynamicObject, kube::Error> {
    let kind = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    let mut whole = object.clone();
    (whole["apiVersion"], whole["kind"]) = (K::api_version(&()).into(), K::kind(&()).into());
    let name = object["metadata"]["name"].as_str().unwrap();
    api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(whole)).await
}

/// Waits until something is so.
pub async fn wait<F: Future<Output = Option<T>>, T>(what: &str, is_so: impl FnMut() -> F) -> T {
    wait_else(what, String::new, is_so).await
}

/// The same; where it waits in vain, `words` say more.
pub async fn wait_else<F: Future<Output = Option<T>>, T>(
    what: &str,
    words: impl Fn() -> String,
    mut is_so: impl FnMut() -> F,
) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = is_so().await {
            return found;
        }
        assert!(Instant::now() < until, "waited in vain: {what}\n{}", words());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Has the API server know the custom resources.
pub async fn define(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in sluice_cluster_types::crds() {
        let name = crd.name_any();
        crds.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&crd)).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        wait(&format!("{name} is served"), || async {
            let conditions = crds.get(&name).await.ok()?.status?.conditions?;
            let is = |kind: &str| conditions.iter().any(|one| one.type_ == kind && one.status == "True");
            assert!(!is("NonStructuralSchema"), "{conditions:?}");
            is("Established").then_some(())
        })
        .await;
    }
}

/// A node of the class that [`basics`] makes, ready and without taints.
pub async fn node(client: &Client, name: &str) {
    node_of(client, name, "a").await;
}

/// The same of another class.
pub async fn node_of(client: &Client, name: &str, class: &str) {
    let nodes: Api<Node> = Api::all(client.clone());
    let body = json!({"metadata": {"name": name, "labels": {CLASS: class}}});
    let _ = nodes.create(&PostParams::default(), &serde_json::from_value(body).unwrap()).await;
    ready(client, name, true).await;
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"taints": null}}))).await.unwrap();
}

pub async fn ready(client: &Client, name: &str, is_ready: bool) {
    let nodes: Api<Node> = Api::all(client.clone());
    let resources = json!({"cpu": "18", "memory": "64Gi", "pods": "110"});
    let word = if is_ready { "True" } else { "Unknown" };
    let condition = json!({"type": "Ready", "status": word, "reason": "Test", "message": ""});
    let status = json!({"status": {"capacity": resources, "allocatable": resources, "conditions": [condition]}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// A class of servers; and in the namespace an NF `nat` with a profile.
pub async fn basics(client: &Client, namespace: &str) {
    let shape = shape();
    let class = json!({"metadata": {"name": "a"}, "spec": {
        "nodeSelector": {CLASS: "a"}, "cpu": shape.cpu, "cores": shape.cores, "llcWays": shape.llc_ways, "wayBytes": shape.way_bytes,
        "ddioWays": shape.ddio_ways, "minWays": shape.min_ways, "classes": shape.classes, "memoryMib": shape.memory_mib,
    }});
    apply::<ServerClass>(client, &class).await.unwrap();
    apply::<Namespace>(client, &json!({"metadata": {"name": namespace}})).await.unwrap();
    let of = json!({"name": "nat", "namespace": namespace});
    let nf = json!({"metadata": of, "spec": {"exec": "sluice-nf-nat"}});
    apply::<sluice_cluster_types::NetworkFunction>(client, &nf).await.unwrap();
    apply::<NfProfile>(client, &json!({"metadata": of, "spec": {"profile": profile()}})).await.unwrap();
}

pub fn chain(namespace: &str, name: &str) -> Value {
    let mut from = json!({"port": "in"});
    // Of many tenants, each has a VLAN of its own.
    if let Some(tenant) = namespace.strip_prefix("tenant").and_then(|tenant| tenant.parse::<u16>().ok()) {
        from["vlan"] = (tenant + 1).into();
    }
    let spec = json!({"services": ["nat"], "ingress": [from], "egress": "out"});
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

pub fn reserved(namespace: &str, name: &str, throughput_pps: f64) -> Value {
    let promise = json!({"throughputPps": throughput_pps, "latencyUs": 1000.0});
    let spec = json!({"chain": name, "traffic": "64 B", "reserved": promise});
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// An SLO and its chain.
pub async fn promise(client: &Client, namespace: &str, name: &str, throughput_pps: f64) {
    apply::<sluice_cluster_types::ServiceChain>(client, &chain(namespace, name)).await.unwrap();
    apply::<Slo>(client, &reserved(namespace, name, throughput_pps)).await.unwrap();
}

/// Waits until an SLO is in this state.
pub async fn state(client: &Client, namespace: &str, name: &str, state: &str) -> Slo {
    let slos: Api<Slo> = Api::namespaced(client.clone(), namespace);
    wait(&format!("{namespace}/{name} is {state}"), || async {
        let slo = slos.get(name).await.ok()?;
        (slo.status.as_ref()?.state == state).then_some(slo)
    })
    .await
}

/// Makes a pod that is to be an instance of an SLO, and waits at the gate.
pub async fn gated(client: &Client, namespace: &str, name: &str, slo: &str) -> Pod {
    gated_as(client, namespace, name, slo, "nat").await
}

/// The same of this NF.
pub async fn gated_as(client: &Client, namespace: &str, name: &str, slo: &str, function: &str) -> Pod {
    let pod = json!({
        "metadata": {"name": name, "labels": {labels::SLO: slo, labels::FUNCTION: function}},
        "spec": {
            "schedulingGates": [{"name": labels::GATE}],
            "containers": [{"name": "nf", "image": "nf:1", "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}}}],
        },
    });
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
}

/// Time between two renewals of a lease.
const RENEW: Duration = Duration::from_secs(10);

/// Terms and revisions of a plan.
type Revisions = Vec<(i64, i64)>;

/// Nodes that take over their plans, but for those that refuse, with what they say.
#[derive(Clone, Default)]
pub struct Agents {
    pub refuse: Arc<Mutex<BTreeMap<String, String>>>,
    /// The terms and revisions of each plan, in the order in which they came.
    pub seen: Arc<Mutex<BTreeMap<String, Revisions>>>,
    /// Nodes whose agents do not renew their leases.
    pub silent: Arc<Mutex<BTreeSet<String>>>,
}

impl Agents {
    pub fn start(client: Client) -> Self {
        let agents = Self::default();
        tokio::spawn(agents.clone().renew(client.clone()));
        let (own, api) = (agents.clone(), Api::<NodePlan>::all(client));
        tokio::spawn(async move {
            let stream = watcher(api.clone(), Config::default()).default_backoff().applied_objects();
            let each = stream.for_each_concurrent(16, |plan| async {
                if let Ok(plan) = plan {
                    own.take(&api, plan).await;
                }
            });
            each.await;
        });
        agents
    }

    /// Renews the lease of each agent that is not silent, all through the time.
    async fn renew(self, client: Client) {
        let api: Api<Lease> = Api::namespaced(client.clone(), "default");
        loop {
            let names: Vec<String> = self.seen.lock().unwrap().keys().cloned().collect();
            // Some at a time, so that a slow answer delays few others.
            let pause = RENEW / u32::try_from(names.chunks(32).len().max(1)).unwrap();
            for some in names.chunks(32) {
                let next = tokio::time::Instant::now() + pause;
                let renewed = futures::stream::iter(some).for_each_concurrent(None, async |name| {
                    if !self.silent.lock().unwrap().contains(name) {
                        let spec = json!({"spec": {"renewTime": now()}});
                        let _ = api.patch(&labels::lease_of(name), &PatchParams::default(), &Patch::Merge(spec)).await;
                    }
                });
                renewed.await;
                tokio::time::sleep_until(next).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn take(&self, api: &Api<NodePlan>, plan: NodePlan) {
        let name = plan.name_any();
        if name == REAL {
            return;
        }
        if !self.seen.lock().unwrap().contains_key(&name) {
            lease(&api.clone().into_client(), &name, 40).await;
        }
        let revision = plan.spec.revision;
        self.seen.lock().unwrap().entry(name.clone()).or_default().push((plan.spec.term, revision));
        let before = plan.status.unwrap_or_default();
        if before.observed_revision == revision {
            return;
        }
        let refused = self.refuse.lock().unwrap().get(&name).cloned();
        let status = match refused {
            Some(_) => NodePlanStatus { observed_revision: revision, refused, ..before },
            None => {
                let of = |slo: &str| plan.spec.server.instances.iter().filter(|one| one.slo == slo).map(|one| one.load_pps).sum();
                let use_of = |slo: &str| Use { slo: slo.into(), state: "kept".into(), offered_pps: of(slo), ..Use::default() };
                let uses = plan.spec.slos.iter().map(|one| use_of(&one.slo.name)).collect();
                NodePlanStatus { observed_revision: revision, applied_revision: revision, refused: None, uses, ..before }
            }
        };
        let body = json!({"apiVersion": NodePlan::api_version(&()), "kind": NodePlan::kind(&()), "status": status});
        let _ = api.patch_status(&name, &PatchParams::apply("test-agent").force(), &Patch::Apply(body)).await;
    }
}

fn now() -> Value {
    json!(MicroTime(Timestamp::now()))
}

/// Makes the lease of a node's agent, or changes how long it lasts.
pub async fn lease(client: &Client, node: &str, seconds: i32) {
    let metadata = json!({"name": labels::lease_of(node), "namespace": "default", "labels": {labels::AGENT: ""}});
    let spec = json!({"holderIdentity": node, "leaseDurationSeconds": seconds, "renewTime": now()});
    apply::<Lease>(client, &json!({"metadata": metadata, "spec": spec})).await.unwrap();
}
