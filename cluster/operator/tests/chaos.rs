//! Operators are killed at random while SLOs, nodes and pods come and go and the API server cannot
//! be relied on: nothing is bound twice meanwhile, and in the end everything is as if nothing had
//! happened.
//!
//! SLUICE_CHAOS is the number of kills, SLUICE_SEED what they depend on. Without a folder of
//! programs in SLUICE_CLUSTER_BIN it says that it was skipped.

#[path = "testbed/objects.rs"]
mod objects;
#[path = "testbed/proxy.rs"]
mod proxy;
mod testbed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node as KubeNode, Pod as KubePod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use objects::{Agents, apply, basics, define, gated, node, promise, ready};
use proxy::{Proxy, Random};
use serde_json::json;
use sluice_cluster_plan::pods::Decision;
use sluice_cluster_plan::{Key, Memo, Node, Pod, World, place, pods};
use sluice_cluster_types::{
    NetworkFunction, NfProfile, NodePlan, NodePlanStatus, ServerClass, ServiceChain, Slo, Use, labels, name,
};
use testbed::{Plane, Process};

const OPERATOR: &str = env!("CARGO_BIN_EXE_sluice-operator");
const NAMESPACE: &str = "chaos";
const NODES: u64 = 8;
const SLOS: u64 = 12;
/// A node that is deleted in the end.
const GONE: &str = "c-gone";

fn main() {
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let Some(programs) = testbed::programs() else {
        println!("skipped: no control plane; scripts/test-cluster builds one and names it in SLUICE_CLUSTER_BIN");
        return;
    };
    let number = |name: &str, usual: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: write a number")),
        Err(_) => usual,
    };
    let (kills, seed) = (number("SLUICE_CHAOS", 10), number("SLUICE_SEED", 1));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let plane = Plane::start(&programs, true).await;
        chaos(&plane, kills, seed).await;
    });
}

async fn chaos(plane: &Plane, kills: u64, seed: u64) {
    let client = plane.client().await;
    define(&client).await;
    basics(&client, NAMESPACE).await;
    for i in 0..NODES {
        node(&client, &format!("c{i}")).await;
    }
    node(&client, GONE).await;
    let _agents = Agents::start(client.clone());
    let mut proxies = Vec::new();
    for i in 0..2 {
        let at = plane.folder.path().join(format!("proxy{i}"));
        proxies.push(Proxy::start(plane.client().await, seed * 2 + i, at).await);
    }
    let ends = Arc::new(AtomicBool::new(false));
    let watcher = tokio::spawn(observe(client.clone(), ends.clone()));
    let changes = tokio::spawn(churn(client.clone(), seed, ends.clone()));
    let began = Instant::now();
    kill(plane, &proxies, kills, seed).await;
    ends.store(true, Ordering::Relaxed);
    let made = changes.await.unwrap();
    let seen = watcher.await.unwrap();
    println!("{kills} kills and {made} changes in {:.0} s, seed {seed}; looked at {seen} times", began.elapsed().as_secs_f64());
    for proxy in &proxies {
        proxy.fail(false);
        proxy.cut(false);
    }
    let last: Vec<Process> = (0..2).map(|i| start(plane, &proxies, i)).collect();
    calm(&client).await;
    quiet(&client, &last).await;
    same(&client).await;
    println!("ok: {kills} kills: nothing is bound twice, nothing is left over, and the end is as without them");
}

fn start(plane: &Plane, proxies: &[Proxy], i: usize) -> Process {
    plane.operator_by(&format!("op{i}"), OPERATOR, &proxies[i].kubeconfig)
}

/// Kills operators, stops them for a while, and cuts them off.
async fn kill(plane: &Plane, proxies: &[Proxy], kills: u64, seed: u64) {
    let mut random = Random::new(seed ^ 0xdead);
    let mut operators: Vec<Process> = (0..2).map(|i| start(plane, proxies, i)).collect();
    for proxy in proxies {
        proxy.fail(true);
    }
    for _ in 0..kills {
        let i = random.below(2) as usize;
        tokio::time::sleep(Duration::from_millis(300 + random.below(4000))).await;
        let pause = Duration::from_millis(random.below(5000));
        match random.below(4) {
            0 => {
                proxies[i].cut(true);
                tokio::time::sleep(pause).await;
                proxies[i].cut(false);
            }
            1 => {
                operators[i].signal("STOP");
                tokio::time::sleep(pause).await;
                operators[i].signal("CONT");
                tokio::time::sleep(pause / 4).await;
            }
            _ => {}
        }
        let ended = operators[i].child.try_wait().unwrap();
        assert!(ended.is_none(), "an operator has ended by itself ({ended:?}):\n{}", operators[i].last_words());
        // The process that is replaced is killed.
        operators[i] = start(plane, proxies, i);
    }
}

/// Changes SLOs, nodes, NFs and pods until that ends. Returns how many changes were made.
async fn churn(client: Client, seed: u64, ends: Arc<AtomicBool>) -> u64 {
    let mut random = Random::new(seed ^ 0xc0de);
    let (slos, nodes) = (Api::<Slo>::namespaced(client.clone(), NAMESPACE), Api::<KubeNode>::all(client.clone()));
    let pods: Api<KubePod> = Api::namespaced(client.clone(), NAMESPACE);
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let mut made = 0;
    while !ends.load(Ordering::Relaxed) {
        let (slo, at) = (format!("s{}", random.below(SLOS)), format!("c{}", random.below(NODES)));
        match random.below(12) {
            0..4 => promise(&client, NAMESPACE, &slo, 1e6 + random.below(60) as f64 * 1e5).await,
            4 => drop(slos.delete(&slo, &DeleteParams::default()).await),
            5 => ready(&client, &at, random.below(2) == 0).await,
            6 => {
                let cordon = json!({"spec": {"unschedulable": random.below(2) == 0}});
                nodes.patch(&at, &PatchParams::default(), &Patch::Merge(cordon)).await.unwrap();
            }
            7 => args(&client, &format!("--{made}")).await,
            8..11 => drop(gated(&client, NAMESPACE, &format!("p{made}"), &slo).await),
            _ => {
                let all = pods.list(&ListParams::default()).await.unwrap().items;
                if let Some(pod) = all.get(random.below(all.len().max(1) as u64) as usize) {
                    let _ = pods.delete(&pod.name_any(), &at_once).await;
                }
            }
        }
        made += 1;
        tokio::time::sleep(Duration::from_millis(random.below(300))).await;
    }
    made
}

async fn args(client: &Client, arg: &str) {
    let nf = json!({"metadata": {"name": "nat", "namespace": NAMESPACE}, "spec": {"exec": "sluice-nf-nat", "args": [arg]}});
    apply::<NetworkFunction>(client, &nf).await.unwrap();
}

/// What is in two plans, or two pods, at once.
fn doubles(plans: &[NodePlan], pods: &[KubePod]) -> Vec<String> {
    let mut found = Vec::new();
    let mut placed: BTreeMap<(&str, u32), &str> = BTreeMap::new();
    for plan in plans {
        let node = plan.spec.server.name.as_str();
        for one in &plan.spec.server.instances {
            if let Some(other) = placed.insert((one.slo.as_str(), one.number), node) {
                found.push(format!("{} of {} is on {other} and {node}", one.number, one.slo));
            }
        }
    }
    let mut bound: BTreeMap<_, String> = BTreeMap::new();
    for (key, pod) in pods.iter().map(|pod| (pod.name_any(), converted(pod))) {
        let is_bound = !pod.is_gated && !pod.is_ending;
        let Some(number) = pod.instance.filter(|_| is_bound) else { continue };
        if let Some(other) = bound.insert((pod.slo.clone(), pod.function.clone(), number), key.clone()) {
            found.push(format!("{number} of {} are the pods {other} and {key}", pod.slo));
        }
    }
    found
}

/// Looks again and again whether anything is bound twice.
async fn observe(client: Client, ends: Arc<AtomicBool>) -> u64 {
    let (plans, pods) = (Api::<NodePlan>::all(client.clone()), Api::<KubePod>::namespaced(client.clone(), NAMESPACE));
    let mut times = 0;
    while !ends.load(Ordering::Relaxed) {
        let all = plans.list(&ListParams::default()).await.unwrap().items;
        let found = doubles(&all, &pods.list(&ListParams::default()).await.unwrap().items);
        assert!(found.is_empty(), "{found:?}");
        times += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    times
}

/// All nodes are well, but for one that goes; each SLO has pods.
async fn calm(client: &Client) {
    let nodes: Api<KubeNode> = Api::all(client.clone());
    nodes.delete(GONE, &DeleteParams::default()).await.unwrap();
    for i in 0..NODES {
        let name = format!("c{i}");
        ready(client, &name, true).await;
        let free = json!({"spec": {"unschedulable": false, "taints": null}});
        nodes.patch(&name, &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    }
    for i in 0..SLOS / 2 {
        promise(client, NAMESPACE, &format!("s{i}"), 1e6).await;
        gated(client, NAMESPACE, &format!("last{i}"), &format!("s{i}")).await;
    }
    args(client, "--last").await;
}

fn converted(pod: &KubePod) -> Pod {
    let label = |name: &str| pod.labels().get(name).cloned().unwrap_or_default();
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    let affinity = serde_json::to_value(pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref())).unwrap();
    let field = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0";
    Pod {
        slo: label(labels::SLO),
        function: label(labels::FUNCTION),
        uid: pod.uid().unwrap_or_default(),
        instance: label(labels::INSTANCE).parse().ok(),
        node: affinity.pointer(field).and_then(|node| node.as_str()).map(str::to_owned),
        is_gated: gates.clone().any(|gate| gate.name == labels::GATE),
        is_ending: pod.metadata.deletion_timestamp.is_some(),
        ..Pod::default()
    }
}

/// The world as it is now, in which all nodes are well.
async fn world(client: &Client) -> World {
    async fn all<K>(client: &Client) -> Vec<K>
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        Api::<K>::all(client.clone()).list(&ListParams::default()).await.unwrap().items
    }
    fn keyed<K: ResourceExt>(all: Vec<K>) -> BTreeMap<Key, K> {
        all.into_iter().map(|one| (Key::new(&one.namespace().unwrap_or_default(), &one.name_any()), one)).collect()
    }
    let node = |node: KubeNode| {
        let well = Node { labels: node.labels().clone(), is_ready: true, is_served: true, ..Node::default() };
        (node.name_any(), well)
    };
    World {
        nodes: all::<KubeNode>(client).await.into_iter().map(node).collect(),
        classes: all::<ServerClass>(client).await.into_iter().map(|class| (class.name_any(), class)).collect(),
        functions: keyed(all::<NetworkFunction>(client).await),
        chains: keyed(all::<ServiceChain>(client).await),
        slos: keyed(all::<Slo>(client).await),
        profiles: keyed(all::<NfProfile>(client).await),
        plans: all::<NodePlan>(client).await.into_iter().map(|plan| (plan.name_any(), plan)).collect(),
        pods: keyed(all::<KubePod>(client).await).into_iter().map(|(key, pod)| (key, converted(&pod))).collect(),
        ..World::default()
    }
}

/// Waits until a planner that has seen nothing else has nothing to do, and every SLO is kept.
async fn quiet(client: &Client, operators: &[Process]) {
    let until = Instant::now() + testbed::PATIENCE;
    loop {
        let world = world(client).await;
        let round = place(&world, &mut Memo::default(), 1, Duration::ZERO);
        let is_settled = |plan: &NodePlan| plan.status.as_ref().is_some_and(|status| status.applied_revision == plan.spec.revision);
        let is_moved = |one: &Decision| matches!(one, Decision::Bind { .. } | Decision::Evict { .. });
        let is_kept = |slo: &Slo| slo.status.as_ref().is_some_and(|status| status.state == "kept");
        let left = [
            ("plans to write", round.plans.len() + round.gone.len()),
            ("plans to take over", world.plans.values().filter(|plan| !is_settled(plan)).count()),
            ("pods to bind or evict", pods::bind(&world).iter().filter(|one| is_moved(one)).count()),
            ("SLOs that are not kept", world.slos.values().filter(|slo| !is_kept(slo)).count()),
        ];
        if left.iter().all(|(_, count)| *count == 0) {
            return;
        }
        let words: Vec<String> = operators.iter().map(Process::last_words).collect();
        assert!(Instant::now() < until, "it does not come to rest: {left:?}\n{}", words.join("\n---\n"));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What is promised in plans: the SLOs, and how much of each is led to instances.
fn promised(world: &World) -> BTreeMap<String, i64> {
    let mut all: BTreeMap<String, f64> = BTreeMap::new();
    for one in world.plans.values().flat_map(|plan| &plan.spec.server.instances) {
        *all.entry(one.slo.clone()).or_default() += one.load_pps;
    }
    all.into_iter().map(|(slo, pps)| (slo, pps.round() as i64)).collect()
}

/// Compares the end with what a planner makes of the same wishes that nothing disturbs.
async fn same(client: &Client) {
    let end = world(client).await;
    let plans: Vec<NodePlan> = end.plans.values().cloned().collect();
    let pods: Vec<KubePod> = Api::namespaced(client.clone(), NAMESPACE).list(&ListParams::default()).await.unwrap().items;
    assert_eq!(doubles(&plans, &pods), Vec::<String>::new());
    let names =
        |slos: Vec<&Key>| -> BTreeSet<String> { slos.into_iter().map(|key| name::on_node(&key.namespace, &key.name)).collect() };
    let placed: BTreeSet<String> = plans.iter().flat_map(|plan| plan.spec.slos.iter().map(|one| one.slo.name.clone())).collect();
    assert_eq!(placed, names(end.slos.keys().collect()), "each SLO has a place, and nothing is left of others");
    assert_eq!(end.plans.keys().collect::<Vec<_>>(), end.nodes.keys().collect::<Vec<_>>(), "each node has a plan, and no other");
    for (key, pod) in end.pods.iter().filter(|(_, pod)| !pod.is_gated && !pod.is_ending) {
        let plan = pod.node.as_ref().and_then(|node| end.plans.get(node)).unwrap_or_else(|| panic!("{key} has no plan: {pod:?}"));
        let slo = name::on_node(&key.namespace, &pod.slo);
        let has = plan.spec.server.instances.iter().any(|one| one.slo == slo && Some(one.number) == pod.instance);
        assert!(has, "{key} is no instance of its node's plan: {pod:?}");
    }
    let mut calm = World { plans: BTreeMap::new(), pods: BTreeMap::new(), ..end.clone() };
    let mut memo = Memo::default();
    for _ in 0..100 {
        let round = place(&calm, &mut memo, 1, Duration::ZERO);
        let is_done = round.plans.is_empty();
        for spec in round.plans {
            take_over(&mut calm, spec);
        }
        if is_done {
            break;
        }
    }
    assert_eq!(promised(&end), promised(&calm), "the same SLOs with the same promises");
}

/// A node takes its plan over at once.
fn take_over(world: &mut World, spec: sluice_cluster_types::NodePlanSpec) {
    let of = |slo: &str| spec.server.instances.iter().filter(|one| one.slo == slo).map(|one| one.load_pps).sum();
    let use_of = |slo: &str| Use { slo: slo.into(), state: "kept".into(), offered_pps: of(slo), ..Use::default() };
    let uses = spec.slos.iter().map(|one| use_of(&one.slo.name)).collect();
    let revision = spec.revision;
    let status = NodePlanStatus { observed_revision: revision, applied_revision: revision, uses, ..NodePlanStatus::default() };
    let node = spec.server.name.clone();
    let mut plan = NodePlan::new(&node, spec);
    plan.status = Some(status);
    world.plans.insert(node, plan);
}
