//! A change over 100 nodes, one of which refuses: it stops there, says so, and every node has the
//! old or the new as a whole.
//!
//! Without a folder of programs in SLUICE_CLUSTER_BIN it says that it was skipped.

#[path = "testbed/objects.rs"]
mod objects;
mod testbed;

use futures::StreamExt;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams};
use objects::{Agents, apply, basics, define, node, promise, state, wait};
use serde_json::json;
use sluice_cluster_types::{NetworkFunction, NetworkFunctionStatus, NodePlan, Slo};
use testbed::{Plane, Process};

const OPERATOR: &str = env!("CARGO_BIN_EXE_sluice-operator");
const NAMESPACE: &str = "roll";
const NODES: usize = 100;
/// More than one node has, so that a hundred of them are on all nodes.
const WHOLE: f64 = 18e6;
/// The node that refuses, by its place in the order of names.
const REFUSES: usize = 50;

fn main() {
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let Some(programs) = testbed::programs() else {
        return testbed::skip_all();
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let plane = Plane::start(&programs, false).await;
        let client = plane.client().await;
        define(&client).await;
        basics(&client, NAMESPACE).await;
        let each = futures::stream::iter(0..NODES).for_each_concurrent(16, |i| {
            let client = client.clone();
            async move {
                node(&client, &name(i)).await;
                promise(&client, NAMESPACE, &format!("s{i:03}"), WHOLE).await;
            }
        });
        each.await;
        let agents = Agents::start(client.clone());
        let operator = plane.operator("operator", OPERATOR);
        rollout(&client, &agents, &operator).await;
    });
}

fn name(i: usize) -> String {
    format!("r{i:03}")
}

async fn change(client: &Client, arg: &str) {
    let spec = json!({"exec": "sluice-nf-nat", "args": [arg]});
    apply::<NetworkFunction>(client, &json!({"metadata": {"name": "nat", "namespace": NAMESPACE}, "spec": spec})).await.unwrap();
}

/// Waits until the NF's condition has a reason, and this many nodes have the change.
async fn rolled(client: &Client, operator: &Process, reason: &str, current: usize) -> NetworkFunctionStatus {
    let nfs: Api<NetworkFunction> = Api::namespaced(client.clone(), NAMESPACE);
    wait(&format!("{reason} with {current} nodes:\n{}", operator.last_words()), || async {
        let status = nfs.get("nat").await.ok()?.status?;
        let is_it = status.conditions.first()?.reason == reason && status.nodes == NODES as i64 && status.current == current as i64;
        is_it.then_some(status)
    })
    .await
}

/// The arguments that each node's plan has, in the order of names; all of it taken over but where
/// a node refuses.
async fn args(client: &Client) -> Vec<Vec<String>> {
    let plans: Api<NodePlan> = Api::all(client.clone());
    let mut all = plans.list(&ListParams::default()).await.unwrap().items;
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    for plan in &all {
        let status = plan.status.as_ref().unwrap();
        let has_all = status.applied_revision == plan.spec.revision;
        assert_eq!(has_all, status.refused.is_none(), "{:?}: {status:?}", plan.metadata.name);
        assert_eq!(plan.spec.functions.len(), 1);
    }
    all.into_iter().map(|mut plan| plan.spec.functions.remove(0).spec.args).collect()
}

async fn rollout(client: &Client, agents: &Agents, operator: &Process) {
    rolled(client, operator, "Current", NODES).await;
    agents.refuse.lock().unwrap().insert(name(REFUSES), "no such option".into());
    change(client, "--new").await;
    let status = rolled(client, operator, "NodeRefuses", REFUSES).await;
    let message = format!("node {} refuses: no such option", name(REFUSES));
    assert!(status.conditions[0].message.contains(&message), "{status:?}");
    let mut expected = vec![vec!["--new".to_owned()]; REFUSES + 1];
    expected.resize(NODES, Vec::new());
    assert_eq!(args(client).await, expected);
    // What else is to be done is done, and the change stays where it is.
    let slos: Api<Slo> = Api::namespaced(client.clone(), NAMESPACE);
    let without_room = slos.list(&ListParams::default()).await.unwrap().items.into_iter();
    let without_room = without_room.filter(|slo| slo.status.as_ref().is_none_or(|status| status.instances == 0));
    let gone: Vec<String> = without_room.filter_map(|slo| slo.metadata.name).chain(["s000".into()]).collect();
    for name in gone {
        slos.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    promise(client, NAMESPACE, "other", WHOLE).await;
    state(client, NAMESPACE, "other", "kept").await;
    assert_eq!(args(client).await, expected);
    agents.refuse.lock().unwrap().clear();
    change(client, "--better").await;
    rolled(client, operator, "Current", NODES).await;
    assert!(args(client).await.iter().all(|args| *args == ["--better"]), "all have the next change");
    println!("ok: a change of {NODES} nodes stops at one that refuses, and the others have it as a whole or not at all");
}
