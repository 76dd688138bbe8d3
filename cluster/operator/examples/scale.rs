//! Measures the operator with many nodes and SLOs, against a real API server and a real scheduler.
//!
//!     scripts/test-cluster --scale 1000 5000
//!
//! Nodes are objects alone; their agents take over whatever their plans say and renew their
//! leases, in this process. SLOs are of several profiles and lengths of chains, one of ten is on
//! demand, and one of five has pods ([`mix`]). Prints: the whole set from nothing, and its pods
//! bound; one more SLO, from the request until its pod is bound; a twentieth of the nodes lost at
//! once; memory and CPU of the operator.
//!
//! Ends with 1 if something is wrong, however long it has taken: so `--scale 50 250` is a test. An
//! SLO says why it is not kept, also after its node was lost; nothing else moves then, and of what
//! an SLO has elsewhere only that stops which it no longer needs; no instance is in two plans, none
//! is without its SLO, and each pod is where the plan has its instance.

#[path = "scale/mix.rs"]
mod mix;
#[path = "../tests/testbed/objects.rs"]
mod objects;
#[path = "../tests/testbed/mod.rs"]
mod testbed;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event as KubeEvent;
use kube::api::{Api, DeleteParams, ListParams, Resource, WatchEvent, WatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt};
use mix::{TENANTS, tenant};
use objects::{Agents, define, node, ready};
use serde::de::DeserializeOwned;
use sluice_cluster_plan::Key;
use sluice_cluster_types::{NodePlan, ServiceChain, Slo, SloStatus, labels, name};
use testbed::{Plane, Process};

/// Requests at a time.
const WIDTH: usize = 16;
/// Most SLOs that come alone, one after the other.
const PROBES: usize = 200;
/// Time without a change after which all is done.
const REST: Duration = Duration::from_secs(3);
/// Time without an event after which all are written: longer than a request may take.
const CALM: Duration = Duration::from_secs(12);
/// Time for which nothing changes.
const IDLE: Duration = Duration::from_secs(60);
/// Packets per second are equal if they differ by less than this part.
const EPSILON: f64 = 1e-9;

#[tokio::main]
async fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let (&[nodes, slos], Some(programs)) = (&numbers[..], testbed::programs()) else {
        eprintln!("usage: scripts/test-cluster --scale NODES SLOS");
        std::process::exit(2);
    };
    let program = std::env::var("SLUICE_OPERATOR").expect("SLUICE_OPERATOR names the program");
    let plane = Plane::start(&programs, true).await;
    let client = plane.client().await;
    make(&client, nodes, slos).await;
    let _agents = Agents::start(client.clone());
    let mirror = Mirror::start(&client);
    let began = Instant::now();
    let operator = plane.operator("operator", &program);
    let (mut wrong, end) = mirror.rest(slos).await;
    println!("the whole set from nothing: {:.1} s, {:?}", (end - began).as_secs_f64(), mirror.states());
    let bound = mirror.bound(slos).await;
    println!("{bound} pods of it bound: {:.1} s", began.elapsed().as_secs_f64());
    probes(&client, &mirror, slos).await;
    idle(&client, &operator, nodes).await;
    wrong.extend(losses(&client, &mirror, nodes, slos).await);
    mirror.wait("pods are where plans have them", |seen| seen.astray().is_empty()).await;
    wrong.extend(mirror.seen().broken());
    println!("operator: at most {} MiB, {:.1} s of CPU in all", memory(&operator, "VmHWM"), cpu(&operator));
    for what in &wrong {
        println!("WRONG: {what}");
    }
    // What was started ends with these.
    drop((operator, plane));
    std::process::exit(i32::from(!wrong.is_empty()));
}

/// Makes everything but the operator.
async fn make(client: &Client, nodes: usize, slos: usize) {
    define(client).await;
    let began = Instant::now();
    let each = |i: usize| async move { node(client, &format!("n{i}")).await };
    futures::stream::iter(0..nodes).for_each_concurrent(WIDTH, each).await;
    let each = |i: usize| async move { mix::make_tenant(client, &tenant(i)).await };
    futures::stream::iter(0..TENANTS).for_each_concurrent(4, each).await;
    let each = |i: usize| async move {
        mix::make_chain(client, i).await;
        mix::make_slo(client, i).await;
        if mix::has_pods(i) {
            mix::make_pods(client, i).await;
        }
    };
    futures::stream::iter(0..slos).for_each_concurrent(WIDTH, each).await;
    println!("{nodes} nodes and {slos} SLOs made in {:.1} s", began.elapsed().as_secs_f64());
}

/// An instance, by its SLO's name on nodes.
type Instance = (String, u32);

/// What the API server has, by watches: lists of everything would be work for it while it is
/// measured.
#[derive(Default)]
struct Seen {
    slos: BTreeMap<Key, SloStatus>,
    /// The states that each SLO has had since this was emptied.
    had: BTreeMap<Key, BTreeSet<String>>,
    /// Instances of each node, and packets per second that each can carry.
    plans: BTreeMap<String, BTreeMap<Instance, f64>>,
    /// Pods that are bound, and are not going: the instance and the node of each.
    pods: BTreeMap<Key, (Instance, String)>,
}

/// The instance that a pod is, and its node.
fn bound(key: &Key, pod: &Pod) -> Option<(Instance, String)> {
    let label = |name: &str| pod.labels().get(name).cloned();
    let node = pod.spec.as_ref()?.node_name.clone().filter(|_| pod.metadata.deletion_timestamp.is_none())?;
    let instance = (name::on_node(&key.namespace, &label(labels::SLO)?), label(labels::INSTANCE)?.parse().ok()?);
    Some((instance, node))
}

impl Seen {
    /// The status of an SLO, by its name on nodes: NAMESPACE_NAME, as all of these are short.
    fn status(&self, on_node: &str) -> Option<&SloStatus> {
        let (namespace, name) = on_node.split_once('_')?;
        self.slos.get(&Key::new(namespace, name))
    }

    /// Whether the instances of an SLO carry what it promises. Then others of it may stop: what
    /// replaces a lost one can be larger.
    fn has_enough(&self, on_node: &str) -> bool {
        let has = self.plans.values().flatten().filter(|((slo, _), _)| slo == on_node).map(|(_, pps)| pps).sum::<f64>();
        mix::promised(on_node).is_some_and(|pps| has >= pps * (1.0 - EPSILON))
    }

    /// Pods on nodes whose plans do not have their instances.
    fn astray(&self) -> Vec<&Key> {
        let is_planned = |(instance, node): &(Instance, String)| self.plans.get(node).is_some_and(|has| has.contains_key(instance));
        self.pods.iter().filter(|(_, pod)| !is_planned(pod)).map(|(key, _)| key).collect()
    }

    /// What is in two plans, in a plan without its SLO, or kept without a plan.
    fn broken(&self) -> Vec<String> {
        let (mut wrong, mut on) = (Vec::new(), BTreeMap::<&Instance, &String>::new());
        for (node, instance) in self.plans.iter().flat_map(|(node, all)| all.keys().map(move |one| (node, one))) {
            if let Some(other) = on.insert(instance, node) {
                wrong.push(format!("{instance:?} is on {other} and {node}"));
            }
            if self.status(&instance.0).is_none() {
                wrong.push(format!("{instance:?} on {node} is of no SLO"));
            }
        }
        let placed: BTreeSet<&str> = on.keys().map(|(slo, _)| slo.as_str()).collect();
        for (key, status) in self.slos.iter().filter(|(_, status)| status.state == "kept") {
            if !placed.contains(name::on_node(&key.namespace, &key.name).as_str()) {
                wrong.push(format!("{key} is on no node, and says that it is kept on {}", status.nodes));
            }
        }
        wrong
    }
}

#[derive(Clone, Default)]
struct Mirror(Arc<Mutex<Seen>>);

impl Mirror {
    fn start(client: &Client) -> Self {
        let mirror = Self::default();
        mirror.follow(client, |seen: &mut Seen, key, slo: Option<Slo>| match slo {
            Some(slo) => {
                let status = slo.status.unwrap_or_default();
                seen.had.entry(key.clone()).or_default().insert(status.state.clone());
                seen.slos.insert(key, status);
            }
            None => drop(seen.slos.remove(&key)),
        });
        mirror.follow(client, |seen: &mut Seen, key, plan: Option<NodePlan>| match plan {
            Some(plan) => {
                let all = plan.spec.server.instances.into_iter().map(|one| ((one.slo, one.number), one.capacity_pps)).collect();
                seen.plans.insert(key.name, all);
            }
            None => drop(seen.plans.remove(&key.name)),
        });
        mirror.follow(client, |seen: &mut Seen, key, pod: Option<Pod>| match pod.and_then(|pod| bound(&key, &pod)) {
            Some(bound) => drop(seen.pods.insert(key, bound)),
            None => drop(seen.pods.remove(&key)),
        });
        mirror
    }

    /// Waits until the pods of all SLOs are bound that have a place. Returns how many these are.
    async fn bound(&self, slos: usize) -> usize {
        let with_pods = (0..slos).filter(|i| mix::has_pods(*i));
        let pods: Vec<(String, Key)> = with_pods
            .flat_map(|i| mix::pods(i).map(move |(pod, _)| (name::on_node(&tenant(i), &mix::name(i)), Key::new(&tenant(i), &pod))))
            .collect();
        let are_bound = |seen: &Seen| {
            let is_placed = |slo: &str| seen.plans.values().flatten().any(|((placed, _), _)| placed == slo);
            seen.astray().is_empty() && pods.iter().all(|(slo, pod)| seen.pods.contains_key(pod) || !is_placed(slo))
        };
        self.wait("pods are bound", are_bound).await;
        self.seen().pods.len()
    }

    fn follow<K>(&self, client: &Client, put: fn(&mut Seen, Key, Option<K>))
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let (own, api) = (self.clone(), Api::<K>::all(client.clone()));
        tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(api, Config::default()).default_backoff());
            while let Some(event) = events.next().await {
                let key = |object: &K| Key::new(&object.namespace().unwrap_or_default(), &object.name_any());
                match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => put(&mut own.seen(), key(&object), Some(object)),
                    Ok(Event::Delete(object)) => put(&mut own.seen(), key(&object), None),
                    _ => {}
                }
            }
        });
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }

    /// Waits until something is so.
    async fn wait(&self, what: &str, is_so: impl Fn(&Seen) -> bool) {
        let until = Instant::now() + Duration::from_secs(1800);
        while !is_so(&self.seen()) {
            assert!(Instant::now() < until, "waited in vain: {what}: {:?}", self.states());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn states(&self) -> BTreeMap<String, usize> {
        let mut states: BTreeMap<String, usize> = BTreeMap::new();
        for status in self.seen().slos.values() {
            *states.entry(status.state.clone()).or_default() += 1;
        }
        states
    }

    /// As [`Mirror::settle`], until nothing has changed for a while: all are refused before the
    /// agents have answered. Also returns when that began.
    async fn rest(&self, slos: usize) -> (Vec<String>, Instant) {
        loop {
            let wrong = self.settle(slos).await;
            let (states, since) = (self.states(), Instant::now());
            tokio::time::sleep(REST).await;
            if self.states() == states {
                return (wrong, since);
            }
        }
    }

    /// Waits until each SLO is kept, or lacks something. Returns those that do not say why.
    async fn settle(&self, slos: usize) -> Vec<String> {
        let is_settled = |status: &SloStatus| matches!(status.state.as_str(), "kept" | "refused" | "degraded");
        self.wait("all SLOs are kept or refused", |seen| seen.slos.len() == slos && seen.slos.values().all(is_settled)).await;
        let seen = self.seen();
        let silent = seen.slos.iter().filter(|(_, status)| status.state != "kept" && status.why.is_empty());
        silent.map(|(key, status)| format!("{key} is {}, and does not say why", status.state)).collect()
    }
}

/// SLOs that come one at a time, each with a pod that waits for its node, and go again.
async fn probes(client: &Client, mirror: &Mirror, from: usize) {
    let (mut opened, mut bound) = (Vec::new(), Vec::new());
    let probes = PROBES.min(from.div_ceil(5));
    for i in from..from + probes {
        let (open, bind) = probe(client, mirror, i).await;
        opened.push(open);
        bound.push(bind);
    }
    for (what, mut times) in [("its pod has a node", opened), ("its pod is bound", bound)] {
        times.sort();
        let at = |part: f64| times[((times.len() as f64 * part) as usize).min(times.len() - 1)].as_secs_f64() * 1e3;
        let (half, most, all) = (at(0.5), at(0.99), at(1.0));
        println!("one more of {probes}, from the request until {what}: p50 {half:.0} ms, p99 {most:.0} ms, max {all:.0} ms");
    }
}

/// Returns the time from the request for an SLO until its pod may be bound, and until it is.
async fn probe(client: &Client, mirror: &Mirror, i: usize) -> (Duration, Duration) {
    let (namespace, name) = (&tenant(i), &mix::name(i));
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    mix::make_chain(client, i).await;
    let (pod, function) = mix::pods(i).next().expect("a chain has NFs");
    let made = objects::gated_as(client, namespace, &pod, name, function).await;
    let only = WatchParams::default().fields(&format!("metadata.name={pod}"));
    let mut events = std::pin::pin!(pods.watch(&only, &made.resource_version().unwrap()).await.unwrap());
    let began = Instant::now();
    mix::make_slo(client, i).await;
    let mut opened = None;
    let bound = loop {
        let event = events.next().await.expect("the watch ends before the pod is bound").unwrap();
        let WatchEvent::Modified(changed) = event else { continue };
        let spec = changed.spec.unwrap();
        if spec.scheduling_gates.is_none_or(|gates| gates.is_empty()) {
            opened.get_or_insert_with(|| began.elapsed());
        }
        if spec.node_name.is_some() {
            break began.elapsed();
        }
    };
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    Api::<Slo>::namespaced(client.clone(), namespace).delete(name, &at_once).await.unwrap();
    pods.delete(&pod, &at_once).await.unwrap();
    Api::<ServiceChain>::namespaced(client.clone(), namespace).delete(name, &at_once).await.unwrap();
    let on_node = name::on_node(namespace, name);
    let is_gone = |seen: &Seen| {
        let is_planned = seen.plans.values().flatten().any(|((slo, _), _)| *slo == on_node);
        !is_planned && !seen.slos.contains_key(&Key::new(namespace, name))
    };
    mirror.wait("an SLO that is deleted goes", is_gone).await;
    (opened.unwrap_or(bound), bound)
}

async fn idle(client: &Client, operator: &Process, nodes: usize) {
    // Events are written at a bounded rate, long after what they are of.
    let all: Api<KubeEvent> = Api::all(client.clone());
    let newest = || async {
        let listed = all.list_metadata(&ListParams::default()).await.unwrap();
        let version =
            |event: &PartialObjectMeta<KubeEvent>| event.resource_version().and_then(|version| version.parse::<u64>().ok());
        (listed.items.len(), listed.items.iter().filter_map(version).max())
    };
    let (began, mut events) = (Instant::now(), newest().await);
    let mut last = began;
    while last.elapsed() < CALM {
        tokio::time::sleep(REST).await;
        let now = newest().await;
        if now != events {
            (events, last) = (now, Instant::now());
        }
    }
    println!("{} events, the last of them {:.0} s after the last SLO", events.0, (last - began).as_secs_f64());
    let before = cpu(operator);
    tokio::time::sleep(IDLE).await;
    let part = (cpu(operator) - before) / IDLE.as_secs_f64() * 100.0;
    let (seconds, memory) = (IDLE.as_secs(), memory(operator, "VmRSS"));
    println!("operator when nothing changes but {nodes} leases, {seconds} s: {part:.1} % of a core, {memory} MiB");
}

/// Nodes that are lost at once. Returns what is wrong afterwards.
async fn losses(client: &Client, mirror: &Mirror, nodes: usize, slos: usize) -> Vec<String> {
    let lost: BTreeSet<String> = (0..nodes.div_ceil(20)).map(|i| format!("n{}", i * 20)).collect();
    let (before, hit) = {
        let mut seen = mirror.seen();
        seen.had.clear();
        let hit: BTreeSet<String> =
            lost.iter().filter_map(|node| seen.plans.get(node)).flatten().map(|((slo, _), _)| slo.clone()).collect();
        (seen.plans.clone(), hit)
    };
    let began = Instant::now();
    futures::stream::iter(&lost).for_each_concurrent(WIDTH, |name| async move { ready(client, name, false).await }).await;
    let made = began.elapsed();
    let is_off = |seen: &Seen| lost.iter().all(|node| seen.plans.get(node).is_none_or(BTreeMap::is_empty));
    let has_place = |seen: &Seen| {
        let placed: BTreeSet<&String> = seen.plans.values().flatten().map(|((slo, _), _)| slo).collect();
        hit.iter().all(|slo| placed.contains(slo) || seen.status(slo).is_some_and(|status| !status.why.is_empty()))
    };
    mirror.wait("all that fits is elsewhere", |seen| is_off(seen) && has_place(seen)).await;
    let placed = began.elapsed();
    let is_told = |status: &SloStatus| {
        let is_elsewhere = status.nodes.split(' ').all(|node| !lost.contains(node));
        is_elsewhere && (status.state == "kept" || !status.why.is_empty())
    };
    mirror.wait("all is kept, or says why", |seen| hit.iter().all(|slo| seen.status(slo).is_some_and(is_told))).await;
    let kept = began.elapsed();
    let mut wrong = mirror.settle(slos).await;
    let seen = mirror.seen();
    let without: Vec<&Key> = seen.slos.iter().filter(|(_, status)| status.state != "kept").map(|(key, _)| key).collect();
    println!(
        "{} nodes lost within {:.1} s, with {} SLOs: placed again after {:.1} s, kept after {:.1} s; {} SLOs without all of it",
        lost.len(),
        made.as_secs_f64(),
        hit.len(),
        placed.as_secs_f64(),
        kept.as_secs_f64(),
        without.len(),
    );
    for (node, had) in before.iter().filter(|(node, _)| !lost.contains(*node)) {
        let gone = had.keys().filter(|one| !seen.plans.get(node).is_some_and(|has| has.contains_key(*one)));
        for (slo, number) in gone.filter(|(slo, _)| !hit.contains(slo) || !seen.has_enough(slo)) {
            wrong.push(format!("{number} of {slo} was on {node}, which is well, and is not any more"));
        }
    }
    for (key, states) in seen.had.iter().filter(|(key, _)| !hit.contains(&name::on_node(&key.namespace, &key.name))) {
        if states.iter().any(|state| state != "kept") {
            wrong.push(format!("{key} had nothing on these nodes, and was {states:?} meanwhile"));
        }
    }
    wrong
}

/// A line of a process's status, in MiB: what it has now (`VmRSS`), or had at most (`VmHWM`).
fn memory(process: &Process, what: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = text.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Seconds that a process has computed.
fn cpu(process: &Process) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", process.child.id())).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    // In ticks of a hundredth of a second: user and system.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}
