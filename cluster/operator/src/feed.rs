//! Watches: what changes at the API server, into the world.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Instant;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod as KubePod};
use kube::api::{Api, Resource};
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use sluice_cluster_plan::{Key, Node, Pod, World};
use sluice_cluster_types::{Has, NetworkFunction, NfProfile, NodePlan, ServerClass, ServiceChain, Slo, Use, labels};
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;

use crate::agents::Agents;
use crate::pod;

/// A watch is begun anew after this time, in seconds: the connection may be dead, and silent.
const RENEWED: u32 = 60;

/// A change of an object, or of all objects of a kind.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "an event is moved once, and most are of pods")]
pub enum Change {
    Node(Event<KubeNode>),
    Pod(Event<KubePod>),
    Plan(Event<NodePlan>),
    Class(Event<DeserializeGuard<ServerClass>>),
    Function(Event<NetworkFunction>),
    Chain(Event<ServiceChain>),
    Slo(Event<Slo>),
    Profile(Event<DeserializeGuard<NfProfile>>),
    Lease(Event<Lease>),
}

/// Kinds of [`Change`].
const KINDS: usize = 9;

fn start<K>(
    api: Api<K>,
    out: &UnboundedSender<Change>,
    only: Option<&str>,
    wrap: fn(Event<K>) -> Change,
    is_news: impl Fn(&Event<K>) -> bool + Send + 'static,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config { label_selector: only.map(str::to_owned), ..watcher::Config::default() }.timeout(RENEWED);
    let out = out.clone();
    tokio::spawn(async move {
        let stream = watcher(api, config).default_backoff().modify(|object: &mut K| object.managed_fields_mut().clear());
        let mut stream = std::pin::pin!(stream);
        let mut is_watched = true;
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    // Each list begins so, also one that is refused.
                    is_watched |= !matches!(event, Event::Init);
                    if is_news(&event) && out.send(wrap(event)).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    if is_watched {
                        warn!("watch of {}: {error}; it is tried again", K::plural(&()));
                    }
                    is_watched = false;
                }
            }
        }
    });
}

/// Watches everything that a plan depends on. The leases of agents are in the operator's namespace.
pub fn watch(client: &Client, namespace: &str, agents: &Agents, out: &UnboundedSender<Change>) {
    let all = || client.clone();
    let agents = agents.clone();
    // Each of a thousand agents renews its lease every few seconds.
    let is_news = move |event: &Event<Lease>| match event {
        Event::Apply(lease) | Event::InitApply(lease) => !agents.renews(lease, Instant::now()),
        _ => true,
    };
    start(Api::all(all()), out, None, Change::Node, always);
    start(Api::all(all()), out, Some(labels::SLO), Change::Pod, always);
    start(Api::all(all()), out, None, Change::Plan, always);
    start(Api::all(all()), out, None, Change::Class, always);
    start(Api::all(all()), out, None, Change::Function, always);
    start(Api::all(all()), out, None, Change::Chain, always);
    start(Api::all(all()), out, None, Change::Slo, always);
    start(Api::all(all()), out, None, Change::Profile, always);
    start(Api::namespaced(all(), namespace), out, Some(labels::AGENT), Change::Lease, is_news);
}

fn always<K>(_: &Event<K>) -> bool {
    true
}

/// Where in its list each kind is.
#[derive(Debug, Default)]
struct Listed {
    /// Kinds that were listed once.
    done: BTreeSet<&'static str>,
    /// Objects of the list that is being read.
    listed: BTreeMap<&'static str, BTreeSet<Key>>,
}

/// What was read of each kind, as far as it is not in the world.
#[derive(Debug, Default)]
pub struct Lists {
    lists: Listed,
    pub agents: Agents,
}

impl Lists {
    /// Whether all kinds were listed.
    pub fn are_done(&self) -> bool {
        self.lists.done.len() == KINDS
    }

    /// Notes that a plan is there, whatever the list says that is being read: it may be older.
    pub fn note_plan(&mut self, name: &str) {
        if let Some(listed) = self.lists.listed.get_mut("plan") {
            listed.insert(Key::new("", name));
        }
    }

    /// Puts a change into the world. Returns whether it matters.
    pub fn take(&mut self, world: &mut World, change: Change) -> bool {
        let Self { lists, agents } = self;
        match change {
            Change::Node(event) => lists.each(world, "node", event, |world, key, node| {
                let node = node.map(|node| Node { is_served: agents.is_served(&key.name), ..Node::from(&node) });
                let is_new = world.nodes.get(&key.name) != node.as_ref();
                world.epoch += u64::from(is_new);
                set(&mut world.nodes, key.name, node);
                is_new
            }),
            Change::Pod(event) => lists.each(world, "pod", event, |world, key, pod| {
                let pod = pod.map(|pod| convert_pod(&pod));
                let known = world.pods.get(&key);
                // A gate never comes back: the watch is behind what was written.
                let is_behind = |(pod, known): (&Pod, &Pod)| pod.uid == known.uid && pod.is_gated && !known.is_gated;
                if pod.as_ref().zip(known).is_some_and(is_behind) {
                    return false;
                }
                let is_new = known != pod.as_ref();
                set(&mut world.pods, key, pod);
                is_new
            }),
            // The one that is known was made after that one was deleted.
            Change::Plan(Event::Delete(plan)) if is_other(world, &plan) => false,
            Change::Plan(event) => lists.each(world, "plan", event, |world, key, plan| match plan {
                Some(plan) => put_plan(world, plan),
                None => world.plans.remove(&key.name).is_some(),
            }),
            Change::Class(event) => lists.each(world, "class", event, |world, key, class| {
                let class = readable(&key, class);
                let is_new = put(&mut world.classes, key.name, class);
                world.epoch += u64::from(is_new);
                is_new
            }),
            Change::Function(event) => lists.each(world, "function", event, |world, key, object| {
                let is_new = put(&mut world.functions, key, object);
                world.epoch += u64::from(is_new);
                is_new
            }),
            Change::Chain(event) => lists.each(world, "chain", event, |world, key, object| {
                let is_new = put(&mut world.chains, key, object);
                world.epoch += u64::from(is_new);
                is_new
            }),
            Change::Slo(event) => lists.each(world, "slo", event, |world, key, object| put(&mut world.slos, key, object)),
            Change::Profile(event) => lists.each(world, "profile", event, |world, key, object| {
                let object = readable(&key, object);
                let is_new = put(&mut world.profiles, key, object);
                world.epoch += u64::from(is_new);
                is_new
            }),
            Change::Lease(event) => self.take_lease(world, event),
        }
    }

    /// Puts the answer to a request into the world, unless its object was deleted meanwhile.
    /// Returns whether it matters.
    pub fn take_answer(&mut self, world: &mut World, answer: Change) -> bool {
        let is_there = match &answer {
            Change::Pod(Event::Apply(pod)) => world.pods.get(&key(pod)).is_some_and(|known| pod.uid().as_ref() == Some(&known.uid)),
            Change::Slo(Event::Apply(slo)) => is_known(&world.slos, slo),
            Change::Chain(Event::Apply(chain)) => is_known(&world.chains, chain),
            Change::Function(Event::Apply(function)) => is_known(&world.functions, function),
            Change::Profile(Event::Apply(DeserializeGuard(Ok(profile)))) => is_known(&world.profiles, profile),
            Change::Class(Event::Apply(DeserializeGuard(Ok(class)))) => {
                world.classes.get(&class.name_any()).is_some_and(|known| known.uid() == class.uid())
            }
            _ => true,
        };
        is_there && self.take(world, answer)
    }

    fn take_lease(&mut self, world: &mut World, event: Event<Lease>) -> bool {
        match event {
            Event::Apply(lease) | Event::InitApply(lease) => {
                self.agents.see(&lease, Instant::now()).is_some_and(|node| serve(world, &node, true))
            }
            Event::Delete(lease) => self.agents.lose(&lease).is_some_and(|node| serve(world, &node, false)),
            Event::Init => false,
            // One that is gone will be silent.
            Event::InitDone => self.lists.done.insert("lease"),
        }
    }

    /// Takes each lease of an agent as just seen: nothing may have been seen for long.
    pub fn trust_agents(&mut self, world: &mut World) {
        self.agents.trust(Instant::now());
        for (name, node) in &mut world.nodes {
            node.is_served = self.agents.is_served(name);
        }
    }

    /// The nodes whose agents have been silent for too long.
    pub fn silence(&mut self, world: &mut World) -> Vec<String> {
        let mut silent = self.agents.silence(Instant::now());
        silent.retain(|node| serve(world, node, false));
        silent
    }
}

/// Notes whether a node is served. Returns whether that is news.
fn serve(world: &mut World, name: &str, is_served: bool) -> bool {
    let Some(node) = world.nodes.get_mut(name).filter(|node| node.is_served != is_served) else { return false };
    node.is_served = is_served;
    world.epoch += 1;
    true
}

impl Listed {
    fn each<K: ResourceExt>(
        &mut self,
        world: &mut World,
        kind: &'static str,
        event: Event<K>,
        mut put: impl FnMut(&mut World, Key, Option<K>) -> bool,
    ) -> bool {
        match event {
            Event::Apply(object) => put(world, key(&object), Some(object)),
            Event::Delete(object) => put(world, key(&object), None),
            Event::Init => {
                self.listed.insert(kind, BTreeSet::new());
                false
            }
            Event::InitApply(object) => {
                let key = key(&object);
                self.listed.entry(kind).or_default().insert(key.clone());
                put(world, key, Some(object))
            }
            Event::InitDone => {
                let listed = self.listed.remove(kind).unwrap_or_default();
                let gone: Vec<Key> = keys(world, kind).into_iter().filter(|key| !listed.contains(key)).collect();
                for key in gone {
                    put(world, key, None);
                }
                self.done.insert(kind);
                true
            }
        }
    }
}

/// Namespace and name of an object.
pub fn key<K: ResourceExt>(object: &K) -> Key {
    Key::new(&object.namespace().unwrap_or_default(), &object.name_any())
}

/// Whether an object is there, and not another one of its name.
fn is_known<K: ResourceExt>(map: &BTreeMap<Key, K>, object: &K) -> bool {
    map.get(&key(object)).is_some_and(|known| known.uid() == object.uid())
}

/// What can be read: one number that the definition lets pass and no program can hold must not stop
/// the watch of all others.
fn readable<K: Resource<DynamicType = ()>>(key: &Key, object: Option<DeserializeGuard<K>>) -> Option<K> {
    let warned = |error: &InvalidObject| warn!("{} {key} counts as missing: {error}", K::kind(&()));
    object?.0.inspect_err(warned).ok()
}

fn keys(world: &World, kind: &str) -> Vec<Key> {
    let of_cluster = |names: Vec<&String>| names.into_iter().map(|name| Key::new("", name)).collect();
    match kind {
        "node" => of_cluster(world.nodes.keys().collect()),
        "plan" => of_cluster(world.plans.keys().collect()),
        "class" => of_cluster(world.classes.keys().collect()),
        "pod" => world.pods.keys().cloned().collect(),
        "function" => world.functions.keys().cloned().collect(),
        "chain" => world.chains.keys().cloned().collect(),
        "slo" => world.slos.keys().cloned().collect(),
        _ => world.profiles.keys().cloned().collect(),
    }
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

/// Puts an object, or that it is gone, where it belongs. Returns whether its spec is another one.
fn put<I: Ord, K: ResourceExt>(map: &mut BTreeMap<I, K>, key: I, object: Option<K>) -> bool {
    let known = map.get(&key);
    if is_behind(known, object.as_ref()) {
        return false;
    }
    let is_new = spec_differs(known, object.as_ref());
    set(map, key, object);
    is_new
}

/// Whether an object has come, gone, or has another spec.
fn spec_differs<K: ResourceExt>(before: Option<&K>, now: Option<&K>) -> bool {
    let of = |object: &K| (object.meta().uid.clone(), object.meta().generation);
    before.map(of) != now.map(of)
}

/// Whether an object is older than the one that is known: a watch may be behind what was written.
fn is_behind<K: ResourceExt>(known: Option<&K>, now: Option<&K>) -> bool {
    let version = |object: &K| object.resource_version()?.parse::<u64>().ok();
    known.zip(now).is_some_and(|(known, now)| {
        known.uid() == now.uid() && version(known).zip(version(now)).is_some_and(|(known, now)| now < known)
    })
}

/// Whether the plan that is known of a node is another object.
fn is_other(world: &World, plan: &NodePlan) -> bool {
    world.plans.get(&plan.name_any()).is_some_and(|known| known.metadata.uid != plan.metadata.uid)
}

/// Puts a plan into the world, unless a later one is there: a watch may be behind what was written.
pub fn put_plan(world: &mut World, plan: NodePlan) -> bool {
    let name = plan.name_any();
    let is_older = |known: &NodePlan| {
        known.metadata.uid == plan.metadata.uid && (plan.spec.term, plan.spec.revision) < (known.spec.term, known.spec.revision)
    };
    if world.plans.get(&name).is_some_and(is_older) {
        return false;
    }
    let is_news = world.plans.get(&name).is_none_or(|before| before.spec != plan.spec || said(before) != said(&plan));
    world.plans.insert(name, plan);
    is_news
}

/// How an SLO is kept, without numbers: its name, its state, whether packets come, whether they
/// pass, and what it asks for.
type Said<'a> = (&'a str, &'a str, [bool; 2], Option<u32>);

/// What a node says: its revisions, whether it profiles, why it refuses, what it has, and how its
/// SLOs are kept.
type Report<'a> = ([i64; 2], bool, Option<&'a str>, Option<&'a Has>, Vec<Said<'a>>);

/// What a node says, without the numbers, which change all the time and decide nothing.
fn said(plan: &NodePlan) -> Option<Report<'_>> {
    let status = plan.status.as_ref()?;
    let flows = |one: &Use| [one.offered_pps > 0.0, one.delivered_pps > 0.0];
    let uses = status.uses.iter().map(|one| (one.slo.as_str(), one.state.as_str(), flows(one), one.asks_for));
    let revisions = [status.observed_revision, status.applied_revision];
    Some((revisions, status.profiling, status.refused.as_deref(), status.has.as_ref(), uses.collect()))
}

fn convert_pod(pod: &KubePod) -> Pod {
    let label = |name: &str| pod.labels().get(name).cloned();
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    Pod {
        slo: label(labels::SLO).unwrap_or_default(),
        function: label(labels::FUNCTION).unwrap_or_default(),
        uid: pod.uid().unwrap_or_default(),
        instance: label(labels::INSTANCE).and_then(|number| number.parse().ok()),
        node: pod::node(pod),
        is_gated: pod::is_gated(pod),
        refused: pod.annotations().get(labels::REFUSED).cloned(),
        is_ending: pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed")),
        is_ready: pod::is_ready(pod),
        made: pod::made(pod),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A node, or the lease of its agent, as it was renewed.
    fn seen(renewed: Option<&str>) -> Change {
        let name = if renewed.is_some() { labels::lease_of("a") } else { "a".into() };
        let spec = renewed.map(|time| json!({"renewTime": time, "leaseDurationSeconds": 40})).unwrap_or_default();
        let object = json!({"metadata": {"name": name, "namespace": "s"}, "spec": spec});
        match renewed {
            Some(_) => Change::Lease(Event::Apply(serde_json::from_value(object).unwrap())),
            None => Change::Node(Event::Apply(serde_json::from_value(object).unwrap())),
        }
    }

    #[test]
    fn a_renewed_lease_is_no_news() {
        let (mut world, mut lists) = (World::default(), Lists::default());
        let first = "2026-01-01T00:00:00.000000Z";
        assert!(!lists.take(&mut world, seen(Some(first))), "its node is not known yet");
        assert!(lists.take(&mut world, seen(None)) && world.nodes["a"].is_served);
        let epoch = world.epoch;
        let last = "2026-01-01T00:00:10.000000Z";
        assert!(!lists.take(&mut world, seen(Some(last))));
        assert!(!lists.take(&mut world, seen(None)), "a node stays as it is served");
        assert_eq!(world.epoch, epoch);
        let Change::Lease(Event::Apply(lease)) = seen(Some(last)) else { unreachable!() };
        assert!(lists.take(&mut world, Change::Lease(Event::Delete(lease))) && !world.nodes["a"].is_served);
        assert!(lists.take(&mut world, seen(Some(first))) && world.nodes["a"].is_served && world.epoch > epoch);
    }

    #[test]
    fn what_a_node_says_is_news_and_how_much_of_it_is_not() {
        let plan = |is_profiling: bool, delivered: f64| -> NodePlan {
            let uses = json!([{"slo": "t_web", "state": "kept", "offeredPps": 9.0, "deliveredPps": delivered}]);
            let shape = sluice_slo::placement::PlacedServer::empty("a", &sluice_slo::examples::shape());
            serde_json::from_value(json!({
                "metadata": {"name": "a", "uid": "1"}, "spec": {"term": 1, "revision": 1, "server": shape},
                "status": {"observedRevision": 1, "appliedRevision": 1, "profiling": is_profiling, "uses": uses},
            }))
            .unwrap()
        };
        let mut world = World::default();
        assert!(put_plan(&mut world, plan(true, 0.0)) && !put_plan(&mut world, plan(true, 0.0)));
        assert!(put_plan(&mut world, plan(false, 0.0)), "it can have instances again");
        assert!(put_plan(&mut world, plan(false, 1.0)), "packets pass");
        assert!(!put_plan(&mut world, plan(false, 9.0)));
    }

    #[test]
    fn an_object_that_cannot_be_read_stops_no_other() {
        let spec = |path: u64| {
            json!({
                "nodeSelector": {"a": "b"}, "cpu": "A", "cores": 4, "llcWays": 8, "wayBytes": 1, "classes": 4, "memoryMib": 64, "pathUs": path,
            })
        };
        let class = |name: &str, path: u64| {
            let object = json!({
                "apiVersion": "sluice.dev/v1alpha1", "kind": "ServerClass", "metadata": {"name": name}, "spec": spec(path),
            });
            Change::Class(Event::Apply(serde_json::from_value(object).unwrap()))
        };
        let (mut world, mut lists) = (World::default(), Lists::default());
        for change in [class("good", 5), class("bad", 5_000_000_000)] {
            lists.take(&mut world, change);
        }
        assert_eq!(world.classes.keys().collect::<Vec<_>>(), ["good"]);
    }
}
