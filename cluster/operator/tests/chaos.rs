//! Operators are killed at random while SLOs, nodes and pods come and go and the API server cannot
//! be relied on: nothing is bound twice meanwhile, and in the end everything is as if nothing had
//! happened.
//!
//! Some pods are others', and some are of an NF with an image, which the operators make and delete.
//! In the end each instance of that NF has one pod, and none is left over, also where the operator
//! was killed between making a pod and binding it.
//!
//! Every version of every plan and pod is looked at, in the order in which the API server took
//! them.
//!
//! SLUICE_CHAOS is the number of kills, SLUICE_SEED what they depend on. With SLUICE_CHAOS_GAP, the
//! operators also move SLOs to fewer nodes, from that part of the nodes on that can be saved, and
//! SLOs go more often. Without a folder of programs in SLUICE_CLUSTER_BIN it says that it was
//! skipped.

#[path = "testbed/objects.rs"]
mod objects;
#[path = "testbed/proxy.rs"]
mod proxy;
mod testbed;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod as KubePod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions, Resource, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use objects::{Agents, apply, basics, chain, define, gated, node, promise, ready, reserved, state, wait};
use proxy::{Proxy, Random};
use serde::de::DeserializeOwned;
use serde_json::json;
use sluice_cluster_plan::pods::Decision;
use sluice_cluster_plan::{Key, Made, Memo, Node, Pod, World, place, pods};
use sluice_cluster_types::{
    NetworkFunction, NfProfile, NodePlan, NodePlanStatus, ServerClass, ServiceChain, Slo, Use, labels, name,
};
use testbed::{Plane, Process};

const OPERATOR: &str = env!("CARGO_BIN_EXE_sluice-operator");
const NAMESPACE: &str = "chaos";
const NODES: u64 = 8;
const SLOS: u64 = 12;
/// SLOs of the NF with an image.
const BOXED: [&str; 2] = ["b0", "b1"];
/// A node that is deleted in the end.
const GONE: &str = "c-gone";

fn main() {
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let Some(programs) = testbed::programs() else {
        return testbed::skip_all();
    };
    let number = |name: &str, usual: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: write a number")),
        Err(_) => usual,
    };
    let (kills, seed) = (number("SLUICE_CHAOS", 10), number("SLUICE_SEED", 1));
    let gap = std::env::var("SLUICE_CHAOS_GAP").unwrap_or_else(|_| "0".into());
    assert!(gap.parse::<f64>().is_ok(), "SLUICE_CHAOS_GAP={gap}: write a part of the nodes, such as 0.1");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let plane = Plane::start(&programs, true).await;
        chaos(&plane, kills, seed, &gap).await;
    });
}

async fn chaos(plane: &Plane, kills: u64, seed: u64, gap: &str) {
    let client = plane.client().await;
    define(&client).await;
    basics(&client, NAMESPACE).await;
    let plans = Observed::start(Api::<NodePlan>::all(client.clone()), instances);
    let pods = Observed::start(Api::<KubePod>::namespaced(client.clone(), NAMESPACE), place_of);
    for i in 0..NODES {
        node(&client, &format!("c{i}")).await;
    }
    node(&client, GONE).await;
    image(&client, "first").await;
    let _agents = Agents::start(client.clone());
    tokio::spawn(kubelet(client.clone(), seed));
    let mut proxies = Vec::new();
    for i in 0..2 {
        let at = plane.folder.path().join(format!("proxy{i}"));
        proxies.push(Proxy::start(plane.client().await, seed * 2 + i, at).await);
    }
    let site = Site { plane, client: &client, proxies, gap };
    let ends = Arc::new(AtomicBool::new(false));
    let changes = tokio::spawn(churn(client.clone(), seed, site.moves(), ends.clone()));
    let began = Instant::now();
    let caught = kill(&site, kills, seed).await;
    ends.store(true, Ordering::Relaxed);
    let made = changes.await.unwrap();
    println!("{kills} kills and {made} changes in {:.0} s, seed {seed}", began.elapsed().as_secs_f64());
    println!("{caught} times both operators were killed while a pod that one had made was not bound yet");
    site.set_good().await;
    let last: Vec<Process> = (0..2).map(|i| site.start(i)).collect();
    calm(&client).await;
    quiet(&client, &last).await;
    same(&client).await;
    let last = between(&site, last).await;
    quiet(&client, &last).await;
    same(&client).await;
    println!("ok: an operator is killed between making a pod and binding it");
    if site.moves() {
        fewer(&site, last, seed).await;
        same(&client).await;
    } else {
        kill_all(last);
    }
    let (plans, pods) = (plans.end().await, pods.end().await);
    println!("looked at {plans} versions of plans and {pods} of pods");
    println!("ok: {kills} kills: nothing is bound twice, nothing is left over, and the end is as without them");
}

/// Where it happens.
struct Site<'a> {
    plane: &'a Plane,
    client: &'a Client,
    proxies: Vec<Proxy>,
    /// Part of the nodes in use that can be saved, from which on SLOs move; 0: none moves.
    gap: &'a str,
}

impl Site<'_> {
    fn moves(&self) -> bool {
        self.gap.parse::<f64>().unwrap() > 0.0
    }

    fn start(&self, i: usize) -> Process {
        self.plane.operator_with(&format!("op{i}"), OPERATOR, &self.proxies[i].kubeconfig, self.gap)
    }

    /// Whether requests of operators fail. Nothing is cut off from now on.
    fn set_bad(&self, is_bad: bool) {
        for proxy in &self.proxies {
            proxy.fail(is_bad);
            proxy.cut(false);
        }
    }

    /// Requests fail no more, and what was late has come.
    async fn set_good(&self) {
        self.set_bad(false);
        wait("late requests have come", || async { self.proxies.iter().all(Proxy::is_idle).then_some(()) }).await;
    }
}

/// Kills operators, stops them for a while, and cuts them off. Returns how often both were killed
/// while a pod that one of them had made was not bound yet.
async fn kill(site: &Site<'_>, kills: u64, seed: u64) -> u64 {
    let (mut random, proxies) = (Random::new(seed ^ 0xdead), &site.proxies);
    let mut operators: Vec<Process> = (0..2).map(|i| site.start(i)).collect();
    let mut caught = 0;
    site.set_bad(true);
    for _ in 0..kills {
        let i = random.below(2) as usize;
        tokio::time::sleep(Duration::from_millis(300 + random.below(4000))).await;
        let pause = Duration::from_millis(random.below(5000));
        let mut both = false;
        match random.below(5) {
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
            2 => {
                both = true;
                let until = Instant::now() + Duration::from_secs(2);
                while Instant::now() < until && !is_made(site.client).await {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            _ => {}
        }
        operators[i].kill();
        if both {
            operators[1 - i].kill();
            caught += u64::from(is_made(site.client).await);
            operators[1 - i] = site.start(1 - i);
        }
        operators[i] = site.start(i);
    }
    kill_all(operators);
    caught
}

fn kill_all(operators: Vec<Process>) {
    operators.into_iter().for_each(|mut one| one.kill());
}

/// Whether a pod was made and is not bound.
async fn is_made(client: &Client) -> bool {
    let pods: Api<KubePod> = Api::namespaced(client.clone(), NAMESPACE);
    let all = pods.list(&ListParams::default().labels(labels::TEMPLATE)).await.unwrap().items;
    all.iter().any(|pod| converted(pod).is_gated)
}

/// Changes SLOs, nodes, NFs and pods until that ends. Returns how many changes were made.
/// Where SLOs move, they go more often, so that nodes can be saved.
async fn churn(client: Client, seed: u64, moves: bool, ends: Arc<AtomicBool>) -> u64 {
    let mut random = Random::new(seed ^ 0xc0de);
    let (slos, nodes) = (Api::<Slo>::namespaced(client.clone(), NAMESPACE), Api::<KubeNode>::all(client.clone()));
    let pods: Api<KubePod> = Api::namespaced(client.clone(), NAMESPACE);
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let mut made = 0;
    while !ends.load(Ordering::Relaxed) {
        let (slo, at) = (format!("s{}", random.below(SLOS)), format!("c{}", random.below(NODES)));
        let boxed = BOXED[random.below(BOXED.len() as u64) as usize];
        match random.below(15) {
            2..4 if moves => drop(slos.delete(&slo, &DeleteParams::default()).await),
            0..4 => promise(&client, NAMESPACE, &slo, 1e6 + random.below(60) as f64 * 1e5).await,
            4 => drop(slos.delete(&slo, &DeleteParams::default()).await),
            5 => ready(&client, &at, random.below(2) == 0).await,
            6 => {
                let cordon = json!({"spec": {"unschedulable": random.below(2) == 0}});
                nodes.patch(&at, &PatchParams::default(), &Patch::Merge(cordon)).await.unwrap();
            }
            7 => args(&client, &format!("--{made}")).await,
            8..11 => drop(gated(&client, NAMESPACE, &format!("p{made}"), &slo).await),
            11 => promise_boxed(&client, boxed, 1e6 + random.below(120) as f64 * 1e5).await,
            12 => drop(slos.delete(boxed, &DeleteParams::default()).await),
            13 => image(&client, &made.to_string()).await,
            _ => {
                let of_operator = ListParams::default().labels(labels::TEMPLATE);
                let of = if random.below(2) == 0 { of_operator } else { ListParams::default() };
                let all = pods.list(&of).await.unwrap().items;
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

/// Changes the NF with an image.
async fn image(client: &Client, tag: &str) {
    let spec = json!({"image": format!("nf:{tag}"), "profiledAs": "nat"});
    let nf = json!({"metadata": {"name": "boxed", "namespace": NAMESPACE}, "spec": spec});
    apply::<NetworkFunction>(client, &nf).await.unwrap();
}

/// An SLO of that NF, and its chain.
async fn promise_boxed(client: &Client, name: &str, throughput_pps: f64) {
    let mut object = chain(NAMESPACE, name);
    object["spec"]["services"] = json!(["boxed"]);
    apply::<ServiceChain>(client, &object).await.unwrap();
    apply::<Slo>(client, &reserved(NAMESPACE, name, throughput_pps)).await.unwrap();
}

/// Does with pods that operators make what kubelets would, some sooner and some later: those that
/// are bound become ready, and those that are deleted go.
async fn kubelet(client: Client, seed: u64) {
    let mut random = Random::new(seed ^ 0xcafe);
    let pods: Api<KubePod> = Api::namespaced(client, NAMESPACE);
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    loop {
        let all = pods.list(&ListParams::default().labels(labels::TEMPLATE)).await.map(|all| all.items).unwrap_or_default();
        let due: Vec<KubePod> = all.into_iter().filter(|_| random.below(3) == 0).collect();
        for pod in due {
            let (name, seen) = (pod.name_any(), converted(&pod));
            // Each of them may have gone meanwhile.
            if seen.is_ending {
                let preconditions = Some(Preconditions { uid: pod.uid(), resource_version: None });
                let it = DeleteParams { grace_period_seconds: Some(0), preconditions, ..DeleteParams::default() };
                let _ = pods.delete(&name, &it).await;
            } else if !seen.is_gated && !seen.is_ready {
                let _ = pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&ready)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What one object has at a time: an instance that a plan has, or a pod is.
type Place = (String, String, u32);

fn instances(plan: &NodePlan) -> BTreeSet<Place> {
    plan.spec.server.instances.iter().map(|one| (one.slo.clone(), String::new(), one.number)).collect()
}

fn place_of(pod: &KubePod) -> BTreeSet<Place> {
    let pod = converted(pod);
    let bound = pod.instance.filter(|_| !pod.is_gated && !pod.is_ending);
    bound.map(|number| (pod.slo, pod.function, number)).into_iter().collect()
}

/// Objects of a kind, with their places, and what two of them had at once.
#[derive(Default)]
struct Places {
    of: BTreeMap<String, BTreeSet<Place>>,
    versions: u64,
    /// The last version.
    reached: u64,
    doubles: Vec<String>,
}

impl Places {
    /// Takes the next version of an object.
    fn take(&mut self, name: &str, version: u64, places: BTreeSet<Place>) {
        self.versions += 1;
        self.reached = self.reached.max(version);
        for (other, has) in self.of.iter().filter(|(other, _)| *other != name) {
            let both = has.intersection(&places);
            self.doubles
                .extend(both.map(|(slo, _, number)| format!("{number} of {slo} is {other} and {name} at version {version}")));
        }
        self.of.insert(name.into(), places);
    }
}

fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().unwrap().parse().unwrap()
}

/// Looks at every version of a kind's objects: lists would miss what is twice for a moment.
struct Observed<K> {
    api: Api<K>,
    places: Arc<Mutex<Places>>,
    task: tokio::task::JoinHandle<()>,
}

impl<K> Observed<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    fn start(api: Api<K>, of: fn(&K) -> BTreeSet<Place>) -> Self {
        let places = Arc::new(Mutex::new(Places::default()));
        let task = tokio::spawn(observe(api.clone(), places.clone(), of));
        Self { api, places, task }
    }

    /// Ends it once it has seen what there is. Returns how many versions it has seen.
    async fn end(self) -> u64 {
        let last = self.api.list(&ListParams::default()).await.unwrap().items.iter().map(version).max().unwrap_or(0);
        wait("all versions are seen", || async {
            assert!(!self.task.is_finished(), "versions were missed");
            (self.places.lock().unwrap().reached >= last).then_some(())
        })
        .await;
        self.task.abort();
        let places = self.places.lock().unwrap();
        assert_eq!(places.doubles, Vec::<String>::new());
        assert!(places.versions > 0, "there was nothing to see");
        places.versions
    }
}

/// Follows every version from the first on. A watch that ends is begun again where it has ended.
async fn observe<K>(api: Api<K>, places: Arc<Mutex<Places>>, of: fn(&K) -> BTreeSet<Place>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let listed = api.list(&ListParams::default()).await.unwrap();
    for object in &listed.items {
        places.lock().unwrap().take(&object.name_any(), version(object), of(object));
    }
    let mut at = listed.metadata.resource_version.unwrap();
    loop {
        let mut events = std::pin::pin!(api.watch(&WatchParams::default(), &at).await.unwrap());
        while let Some(event) = events.next().await {
            let (object, has) = match event {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                    let has = of(&object);
                    (object, has)
                }
                Ok(WatchEvent::Deleted(object)) => (object, BTreeSet::new()),
                Ok(WatchEvent::Bookmark(mark)) => {
                    at = mark.metadata.resource_version;
                    continue;
                }
                Ok(WatchEvent::Error(status)) => panic!("versions are missed: {status:?}"),
                // The connection has ended.
                Err(_) => break,
            };
            at = object.resource_version().unwrap();
            places.lock().unwrap().take(&object.name_any(), version(&object), has);
        }
    }
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
    // It has more than one instance.
    promise_boxed(client, BOXED[0], 12e6).await;
    promise_boxed(client, BOXED[1], 2e6).await;
    image(client, "last").await;
}

async fn cordon(client: &Client, is_cordoned: bool) {
    let nodes: Api<KubeNode> = Api::all(client.clone());
    let spec = json!({"spec": {"unschedulable": is_cordoned}});
    for i in 0..NODES {
        nodes.patch(&format!("c{i}"), &PatchParams::default(), &Patch::Merge(&spec)).await.unwrap();
    }
}

/// Both operators are killed while a pod that was made is not bound: nodes are cordoned, so it
/// waits at the gate. Then one SLO goes, so that its pods are nobody's. Returns the next operators.
async fn between(site: &Site<'_>, running: Vec<Process>) -> Vec<Process> {
    let client = site.client;
    let (slos, pods): (Api<Slo>, Api<KubePod>) =
        (Api::namespaced(client.clone(), NAMESPACE), Api::namespaced(client.clone(), NAMESPACE));
    // Where one node after the other is cordoned, what is there goes to the next.
    kill_all(running);
    cordon(client, true).await;
    let running: Vec<Process> = (0..2).map(|i| site.start(i)).collect();
    // There is no other node for it, so it stays, and says so.
    state(client, NAMESPACE, BOXED[0], "degraded").await;
    let of = ListParams::default().labels(&format!("{},{}={}", labels::TEMPLATE, labels::SLO, BOXED[0]));
    let all = pods.list(&of).await.unwrap().items;
    assert!(all.len() > 1, "{all:?}");
    let (name, before) = (all[0].name_any(), all[0].uid());
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete(&name, &at_once).await.unwrap();
    let made = wait("its next pod is made", || async {
        let pod = pods.get_opt(&name).await.ok()??;
        (pod.uid() != before).then_some(pod)
    })
    .await;
    assert!(converted(&made).is_gated, "{made:?}");
    kill_all(running);
    slos.delete(BOXED[1], &DeleteParams::default()).await.unwrap();
    cordon(client, false).await;
    let waits = pods.get(&name).await.unwrap();
    assert!(waits.uid() == made.uid() && converted(&waits).is_gated, "nothing else binds it: {waits:?}");
    let next = (0..2).map(|i| site.start(i)).collect();
    wait("it is bound by the next operator", || async {
        let pod = pods.get(&name).await.ok()?;
        assert_eq!(pod.uid(), made.uid(), "it is not made again");
        (!converted(&pod).is_gated).then_some(())
    })
    .await;
    next
}

fn converted(pod: &KubePod) -> Pod {
    let label = |name: &str| pod.labels().get(name).cloned().unwrap_or_default();
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    let affinity = serde_json::to_value(pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref())).unwrap();
    let field = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0";
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
    let template = pod.labels().get(labels::TEMPLATE).cloned();
    Pod {
        slo: label(labels::SLO),
        function: label(labels::FUNCTION),
        uid: pod.uid().unwrap_or_default(),
        instance: label(labels::INSTANCE).parse().ok(),
        node: affinity.pointer(field).and_then(|node| node.as_str()).map(str::to_owned),
        is_gated: gates.clone().any(|gate| gate.name == labels::GATE),
        is_ending: pod.metadata.deletion_timestamp.is_some(),
        is_ready: conditions.any(|one| one.type_ == "Ready" && one.status == "True"),
        made: owner.zip(template).map(|(owner, template)| Made { owner: owner.uid.clone(), template, has_ended: false }),
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
        let is_more = |one: &Decision| !matches!(one, Decision::Note { .. });
        let is_late = |pod: &Pod| pod.made.is_some() && (pod.is_ending || !pod.is_ready);
        let is_kept = |slo: &Slo| slo.status.as_ref().is_some_and(|status| status.state == "kept");
        let left = [
            ("plans to write", round.plans.len() + round.gone.len()),
            ("plans to take over", world.plans.values().filter(|plan| !is_settled(plan)).count()),
            ("pods to make, bind, evict or delete", pods::bind(&world).iter().filter(|one| is_more(one)).count()),
            ("pods that were made and are going, or not ready", world.pods.values().filter(|pod| is_late(pod)).count()),
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

/// SLOs that fill a node each shrink, so that one node is enough, and operators are killed while
/// they move.
async fn fewer(site: &Site<'_>, running: Vec<Process>, seed: u64) {
    let client = site.client;
    let (slos, plans): (Api<Slo>, Api<NodePlan>) = (Api::namespaced(client.clone(), NAMESPACE), Api::all(client.clone()));
    let used = || async {
        let all = plans.list(&ListParams::default()).await.ok()?.items;
        let is_settled = |plan: &NodePlan| plan.status.as_ref().is_some_and(|status| status.applied_revision == plan.spec.revision);
        let count = all.iter().filter(|plan| !plan.spec.server.instances.is_empty()).count();
        all.iter().all(is_settled).then_some(count)
    };
    let until = |count: usize| wait("nodes in use", move || async move { (used().await? == count).then_some(()) });
    for slo in slos.list(&ListParams::default()).await.unwrap() {
        slos.delete(&slo.name_any(), &DeleteParams::default()).await.unwrap();
    }
    until(0).await;
    let names = ["wide-a", "wide-b", "wide-c"];
    for name in names {
        promise(client, NAMESPACE, name, 15e6).await;
        state(client, NAMESPACE, name, "kept").await;
    }
    for name in names {
        promise(client, NAMESPACE, name, 2e6).await;
    }
    kill_all(running);
    let log = |i: usize| std::fs::read_to_string(site.plane.folder.path().join(format!("op{i}.log"))).unwrap_or_default();
    // An operator that is started again goes on with its log.
    let before = [0, 1].map(|i| log(i).len());
    site.set_bad(true);
    let mut random = Random::new(seed ^ 0xfeed);
    for _ in 0..3 {
        let some: Vec<Process> = (0..2).map(|i| site.start(i)).collect();
        tokio::time::sleep(Duration::from_millis(5000 + random.below(4000))).await;
        kill_all(some);
    }
    site.set_good().await;
    let last: Vec<Process> = (0..2).map(|i| site.start(i)).collect();
    until(1).await;
    quiet(client, &last).await;
    let moved = |i: usize| log(i)[before[i]..].contains(", so that ");
    assert!(moved(0) || moved(1), "the one that is left is where they moved to");
    kill_all(last);
    println!("ok: SLOs move to fewer nodes while operators are killed");
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
    boxes(&end);
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

/// Each instance of the NF with an image has one pod, on its node, and the operators have made no
/// others.
fn boxes(end: &World) {
    let slos = BOXED.map(|slo| name::on_node(NAMESPACE, slo));
    let mut wanted = Vec::new();
    for (node, plan) in &end.plans {
        let of = plan.spec.server.instances.iter().filter(|one| slos.contains(&one.slo));
        wanted.extend(of.map(|one| (one.slo.clone(), Some(one.number), Some(node.clone()))));
    }
    let mut has = Vec::new();
    for (key, pod) in end.pods.iter().filter(|(_, pod)| pod.made.is_some()) {
        assert!(pod.function == "boxed" && !pod.is_gated && !pod.is_ending && pod.is_ready, "{key}: {pod:?}");
        has.push((name::on_node(&key.namespace, &pod.slo), pod.instance, pod.node.clone()));
    }
    wanted.sort();
    has.sort();
    assert_eq!(has, wanted);
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
