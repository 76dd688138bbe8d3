//! Which pod is which instance, and where it runs.
//!
//! A pod of an SLO waits at a gate until a plan that is written has an instance without a pod.
//! Then it is bound to that instance: it can run on the instance's node alone. A pod whose instance
//! is no longer in a plan, or has another pod, is evicted; whatever made it makes another one,
//! which waits at the gate. So the number of pods may differ from that of instances at any time,
//! and nothing runs that no plan holds.
//!
//! A pod whose labels name no SLO, a function that the SLO's chain does not have, or one with an
//! image, stays at the gate, and so does one whose instance is on a cordoned node: the scheduler
//! binds nothing there. An annotation says why. Of NFs with an image the operator makes the pods:
//! each for one instance, to which alone it is bound ([`NewPod`]).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use sluice_cluster_types::{labels, name};

use crate::images::{Fate, Images, Place};
pub use crate::images::{NewPod, Turnover};
use crate::world::{Key, Made, Pod, World};

/// What is done with a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is made, and waits at the gate.
    Create(Box<NewPod>),
    /// It is the instance with this number, on this node.
    Bind { pod: Key, node: String, number: u32 },
    /// It is none any more.
    Evict { pod: Key },
    /// The operator has made the one with this identity, and no instance wants it any more.
    Delete { pod: Key, uid: String },
    /// Its annotation is to say why it is not bound, or nothing any more.
    Note { pod: Key, why: Option<String> },
}

impl Decision {
    pub fn pod(&self) -> &Key {
        match self {
            Self::Create(new) => &new.pod,
            Self::Bind { pod, .. } | Self::Evict { pod } | Self::Delete { pod, .. } | Self::Note { pod, .. } => pod,
        }
    }
}

/// How far the pods are of NFs of which some are old, or not ready, by the NF.
pub type Turnovers = BTreeMap<Key, Turnover>;

/// What is to be done with pods, and how far they are.
#[derive(Debug, Default)]
pub struct Decided {
    pub decisions: Vec<Decision>,
    pub turnovers: Turnovers,
}

/// Why a pod that waits is no instance, whatever plans say.
fn refusal(world: &World, key: &Key, pod: &Pod) -> Option<String> {
    let namespace = &key.namespace;
    let of = |label: &str| format!("correct the label {label} of the pod, or of the template that makes it");
    let Some(slo) = world.slos.get(&Key::new(namespace, &pod.slo)) else {
        return Some(format!("there is no SLO \"{}\" in {namespace}: make it, or {}", pod.slo, of(labels::SLO)));
    };
    let services = match (&slo.spec.chain, &slo.spec.function) {
        // Without the chain, the SLO's condition says so.
        (Some(chain), _) => world.chains.get(&Key::new(namespace, chain))?.spec.services.as_slice(),
        (None, function) => function.as_slice(),
    };
    let function = &pod.function;
    if !services.contains(function) {
        let (has, fix) = (services.join(", "), of(labels::FUNCTION));
        let of = slo.spec.chain.as_ref().map_or("its SLO".into(), |chain| format!("the chain \"{chain}\" of its SLO"));
        return Some(format!("{of} has no function \"{function}\", only {has}: {fix}"));
    }
    let has_image = world.functions.get(&Key::new(namespace, function)).is_some_and(|one| one.spec.image.is_some());
    has_image
        .then(|| format!("the NF \"{function}\" has an image, so the operator makes its pods: delete this one and what makes it"))
}

/// The instances in plans that are written: node by number, by the SLO's name on nodes.
type Instances<'a> = BTreeMap<&'a str, BTreeMap<u32, &'a str>>;

/// A pod that is to be replaced.
type Old<'a> = (&'a Key, &'a Pod);

/// What was found of pods, and decided.
#[derive(Default)]
struct Found<'a> {
    decisions: Vec<Decision>,
    /// Why pods wait at the gate, and nothing for those whose annotation says otherwise.
    whys: BTreeMap<&'a Key, Option<String>>,
    /// Those at the gate, by SLO and function.
    waiting: BTreeMap<(String, &'a str), Vec<&'a Key>>,
    /// Those at the gate that were made for an instance.
    own: Vec<(&'a Key, &'a Pod, Place)>,
    taken: BTreeSet<Place>,
    /// Of pods that are to go, and have not gone yet: nobody else has these numbers meanwhile.
    leaving: BTreeSet<Place>,
    /// Places with a pod that is ready, as far as that is known.
    ready: BTreeSet<Place>,
    /// Pods that are to be replaced, by namespace and function.
    old: BTreeMap<(&'a str, &'a str), Vec<Old<'a>>>,
    turnovers: Turnovers,
}

/// Why a pod waits whose instance is on a cordoned node.
fn closed(number: u32, node: &str) -> String {
    format!(
        "instance {number} of its SLO is on node {node}, which is cordoned: kubectl uncordon {node}, or add nodes with room for it"
    )
}

/// What to do with pods, by the plans that are written.
pub fn bind(world: &World) -> Vec<Decision> {
    decide(world).decisions
}

/// What to do with pods, by the plans that are written, and how far they are.
pub fn decide(world: &World) -> Decided {
    let images = Images::of(world);
    if world.pods.is_empty() && images.is_empty() {
        return Decided::default();
    }
    let mut instances = Instances::new();
    for (node, plan) in &world.plans {
        for one in &plan.spec.server.instances {
            instances.entry(&one.slo).or_default().insert(one.number, node);
        }
    }
    let mut found = Found::default();
    for (key, pod) in &world.pods {
        let slo = name::on_node(&key.namespace, &pod.slo);
        match &pod.made {
            Some(made) if !pod.is_ending || made.has_ended => found.made(&images, key, pod, made, slo),
            None if !pod.is_ending => found.others(world, &instances, key, pod, slo),
            _ => {}
        }
    }
    found.open(world, &instances);
    found.replace(&images);
    let Found { mut decisions, whys, taken, turnovers, .. } = found;
    decisions.extend(images.missing(world, &taken).map(|new| Decision::Create(Box::new(new))));
    // One thing is done with a pod at a time, and a note can wait.
    let decided: BTreeSet<Key> = decisions.iter().map(|decision| decision.pod().clone()).collect();
    let is_said = |key: &Key, why: Option<&str>| world.pods.get(key).is_some_and(|pod| pod.refused.as_deref() == why);
    let notes = whys.into_iter().filter(|(key, why)| !decided.contains(*key) && !is_said(key, why.as_deref()));
    decisions.extend(notes.map(|(key, why)| Decision::Note { pod: key.clone(), why }));
    Decided { decisions, turnovers }
}

impl<'a> Found<'a> {
    /// Takes a pod that others have made.
    fn others(&mut self, world: &World, instances: &Instances<'_>, key: &'a Key, pod: &'a Pod, slo: String) {
        let why = if pod.is_gated { refusal(world, key, pod) } else { None };
        let is_refused = why.is_some();
        if is_refused || pod.refused.is_some() {
            self.whys.insert(key, why);
        }
        if is_refused {
            return;
        }
        match pod.instance.zip(pod.node.as_deref()).filter(|_| !pod.is_gated) {
            None if pod.is_gated => self.waiting.entry((slo, &pod.function)).or_default().push(key),
            // It was never at the gate, and is none of ours.
            None => {}
            Some((number, node)) => {
                // The number of an instance that is gone may be another one's, elsewhere.
                let is_planned = instances.get(slo.as_str()).is_some_and(|of| of.get(&number) == Some(&node));
                let place = (slo, pod.function.clone(), number);
                if !is_planned {
                    self.leaving.insert(place);
                    self.decisions.push(Decision::Evict { pod: key.clone() });
                } else if self.taken.insert(place.clone()) {
                    self.ready.insert(place);
                } else {
                    self.decisions.push(Decision::Evict { pod: key.clone() });
                }
            }
        }
    }

    /// Takes a pod that the operator has made.
    fn made(&mut self, images: &Images<'_>, key: &'a Key, pod: &'a Pod, made: &Made, slo: String) {
        if pod.refused.is_some() {
            self.whys.insert(key, None);
        }
        let place = pod.instance.map(|number| (slo, pod.function.clone(), number));
        let fate = place.as_ref().map_or(Fate::Gone, |place| images.fate(place, pod, made));
        if !pod.is_ending {
            self.turn_over(key, pod, fate);
        }
        match (fate, place) {
            (Fate::Current, Some(place)) if pod.is_gated && !made.has_ended => self.own.push((key, pod, place)),
            (Fate::Current | Fate::Old, Some(place)) if !pod.is_gated && !made.has_ended && self.taken.insert(place.clone()) => {
                if pod.is_ready {
                    self.ready.insert(place);
                }
                if fate == Fate::Old {
                    self.old.entry((&key.namespace, &pod.function)).or_default().push((key, pod));
                }
            }
            (_, place) => {
                if fate == Fate::Gone && !pod.is_gated {
                    self.leaving.extend(place);
                }
                self.delete(key, pod);
            }
        }
    }

    /// Notes how far the NF of a pod is by it.
    fn turn_over(&mut self, key: &Key, pod: &Pod, fate: Fate) {
        let is_late = fate == Fate::Current && !pod.is_ready;
        if fate != Fate::Old && !is_late {
            return;
        }
        let of = self.turnovers.entry(Key::new(&key.namespace, &pod.function)).or_default();
        match fate {
            Fate::Old => of.old += 1,
            _ => _ = of.waits.get_or_insert_with(|| key.clone()),
        }
    }

    fn delete(&mut self, key: &Key, pod: &Pod) {
        self.decisions.push(Decision::Delete { pod: key.clone(), uid: pod.uid.clone() });
    }

    /// Binds pods at the gate to instances without one.
    fn open(&mut self, world: &World, instances: &Instances<'_>) {
        let is_cordoned = |node: &str| world.nodes.get(node).is_some_and(|node| node.is_cordoned);
        let is_free = |place: &Place| !self.taken.contains(place) && !self.leaving.contains(place);
        let mut decisions = Vec::new();
        for ((slo, function), pods) in std::mem::take(&mut self.waiting) {
            let of = instances.get(slo.as_str()).into_iter().flatten();
            let free = of.filter(|(number, _)| is_free(&(slo.clone(), function.into(), **number)));
            let (later, open): (Vec<_>, Vec<_>) = free.partition(|(_, node)| is_cordoned(node));
            let late = pods.iter().skip(open.len()).zip(later);
            self.whys.extend(late.map(|(pod, (number, node))| (*pod, Some(closed(*number, node)))));
            let bound = pods.into_iter().zip(open);
            decisions.extend(bound.map(|(pod, (number, node))| Decision::Bind {
                pod: pod.clone(),
                node: (*node).into(),
                number: *number,
            }));
        }
        for (key, pod, place) in self.own.iter().filter(|(.., place)| is_free(place)) {
            let (node, number) = (pod.node.clone().unwrap_or_default(), place.2);
            if is_cordoned(&node) {
                self.whys.insert(key, Some(closed(number, &node)));
            } else {
                decisions.push(Decision::Bind { pod: (*key).clone(), node, number });
            }
        }
        self.decisions.append(&mut decisions);
    }

    /// Deletes pods that are to be replaced: of an NF those that are not ready, or else one if all
    /// others are ready.
    fn replace(&mut self, images: &Images<'_>) {
        let old = std::mem::take(&mut self.old);
        let waiting = if old.is_empty() { HashSet::new() } else { images.unready(&self.ready) };
        for (function, pods) in old {
            let unready = pods.iter().filter(|(_, pod)| !pod.is_ready);
            let first = pods.first().filter(|_| !waiting.contains(&function));
            for (key, pod) in unready.chain(first) {
                self.delete(key, pod);
            }
        }
    }
}
