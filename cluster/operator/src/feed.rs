//! Watches: what changes at the API server, into the world.

use std::collections::BTreeSet;
use std::fmt::Debug;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod as KubePod};
use kube::api::{Api, Resource};
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use sluice_cluster_plan::{Key, Node, Pod, World};
use sluice_cluster_types::{NetworkFunction, NfProfile, NodePlan, ServerClass, ServiceChain, Slo, labels};
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;

use crate::pod;

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
}

/// Kinds of [`Change`].
const KINDS: usize = 8;

fn start<K>(client: &Client, out: &UnboundedSender<Change>, only: Option<&str>, wrap: fn(Event<K>) -> Change)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config { label_selector: only.map(str::to_owned), ..watcher::Config::default() };
    let api: Api<K> = Api::all(client.clone());
    let out = out.clone();
    tokio::spawn(async move {
        let stream = watcher(api, config).default_backoff().modify(|object: &mut K| object.managed_fields_mut().clear());
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    if out.send(wrap(event)).is_err() {
                        return;
                    }
                }
                Err(error) => warn!("watch of {}: {error}; it is tried again", K::plural(&())),
            }
        }
    });
}

/// Watches everything that a plan depends on.
pub fn watch(client: &Client, out: &UnboundedSender<Change>) {
    start(client, out, None, Change::Node);
    start(client, out, Some(labels::SLO), Change::Pod);
    start(client, out, None, Change::Plan);
    start(client, out, None, Change::Class);
    start(client, out, None, Change::Function);
    start(client, out, None, Change::Chain);
    start(client, out, None, Change::Slo);
    start(client, out, None, Change::Profile);
}

/// Where in its list each kind is.
#[derive(Debug, Default)]
pub struct Lists {
    /// Kinds that were listed once.
    done: BTreeSet<&'static str>,
    /// Objects of the list that is being read.
    listed: std::collections::BTreeMap<&'static str, BTreeSet<Key>>,
}

impl Lists {
    /// Whether all kinds were listed.
    pub fn are_done(&self) -> bool {
        self.done.len() == KINDS
    }

    /// Notes that a plan is there, whatever the list says that is being read: it may be older.
    pub fn note_plan(&mut self, name: &str) {
        if let Some(listed) = self.listed.get_mut("plan") {
            listed.insert(Key::new("", name));
        }
    }

    /// Puts a change into the world. Returns whether it matters.
    pub fn take(&mut self, world: &mut World, change: Change) -> bool {
        match change {
            Change::Node(event) => self.each(world, "node", event, |world, key, node| {
                let node = node.map(|node| Node::from(&node));
                let is_new = world.nodes.get(&key.name) != node.as_ref();
                world.epoch += u64::from(is_new);
                set(&mut world.nodes, key.name, node);
                is_new
            }),
            Change::Pod(event) => self.each(world, "pod", event, |world, key, pod| {
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
            Change::Plan(event) => self.each(world, "plan", event, |world, key, plan| match plan {
                Some(plan) => put_plan(world, plan),
                None => world.plans.remove(&key.name).is_some(),
            }),
            Change::Class(event) => self.each(world, "class", event, |world, key, class| {
                world.epoch += 1;
                let class = readable(&key, class);
                set(&mut world.classes, key.name, class.map(|class| class.spec));
                true
            }),
            Change::Function(event) => self.each(world, "function", event, |world, key, object| {
                let is_new = spec_differs(world.functions.get(&key), object.as_ref());
                world.epoch += u64::from(is_new);
                set(&mut world.functions, key, object);
                is_new
            }),
            Change::Chain(event) => self.each(world, "chain", event, |world, key, object| {
                let is_new = spec_differs(world.chains.get(&key), object.as_ref());
                world.epoch += u64::from(is_new);
                set(&mut world.chains, key, object);
                is_new
            }),
            Change::Slo(event) => self.each(world, "slo", event, |world, key, object| {
                let is_new = spec_differs(world.slos.get(&key), object.as_ref());
                set(&mut world.slos, key, object);
                is_new
            }),
            Change::Profile(event) => self.each(world, "profile", event, |world, key, object| {
                let object = readable(&key, object);
                let is_new = spec_differs(world.profiles.get(&key), object.as_ref());
                world.epoch += u64::from(is_new);
                set(&mut world.profiles, key, object);
                is_new
            }),
        }
    }

    fn each<K: ResourceExt>(
        &mut self,
        world: &mut World,
        kind: &'static str,
        event: Event<K>,
        mut put: impl FnMut(&mut World, Key, Option<K>) -> bool,
    ) -> bool {
        let key = |object: &K| Key::new(&object.namespace().unwrap_or_default(), &object.name_any());
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

fn set<K: Ord, V>(map: &mut std::collections::BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

/// Whether an object has come, gone, or has another spec.
fn spec_differs<K: ResourceExt>(before: Option<&K>, now: Option<&K>) -> bool {
    let of = |object: &K| (object.meta().uid.clone(), object.meta().generation);
    before.map(of) != now.map(of)
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

/// How an SLO is kept, without numbers: its name, its state, whether packets come, and what it asks
/// for.
type Said<'a> = (&'a str, &'a str, bool, Option<u32>);

/// What a node says, without the numbers, which change all the time and decide nothing.
fn said(plan: &NodePlan) -> Option<(i64, i64, Option<&str>, Vec<Said<'_>>)> {
    let status = plan.status.as_ref()?;
    let uses = status.uses.iter().map(|one| (one.slo.as_str(), one.state.as_str(), one.offered_pps > 0.0, one.asks_for));
    Some((status.observed_revision, status.applied_revision, status.refused.as_deref(), uses.collect()))
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
        is_ending: pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
