//! Pods that the operator makes: those of NFs with an image.
//!
//! # Approach
//! An instance in a plan that is written wants a pod of each NF with an image in its chain. The pod
//! is made for this instance on its node, with a name that follows from both, and waits at the gate
//! as any other. So a request that makes it twice is refused, one that comes late makes a pod that
//! waits and is deleted, and the gate is opened by the same fences as that of others' pods.
//!
//! A pod of another image, or with other arguments, is replaced: one of an NF at a time, and the
//! next when all others are ready. One that is not ready is not waited for. So an image that does
//! not start takes one instance of an NF, and no more.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use sluice_cluster_types::{NetworkFunctionSpec, PlannedChain, PlannedFunction, name};
use sluice_slo::digest::Digest;
use sluice_slo::placement::Instance;

use crate::world::{Key, Made, Pod, World};

/// Letters of the digest of a template.
const DIGEST: usize = 12;

/// An instance, as its pods are found: the SLO's name on nodes, the NF, and the number.
pub type Place = (String, String, u32);

/// A pod that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPod {
    pub pod: Key,
    /// Its SLO, in its namespace, and the identity of that.
    pub slo: String,
    pub owner: String,
    pub function: String,
    pub number: u32,
    pub node: String,
    pub template: String,
    /// The name by which it attaches.
    pub nf: String,
    /// The name of its SLO on the node, and so of the folder with its socket.
    pub folder: String,
    /// What the plan counts for it, in MiB.
    pub memory_mib: u64,
    pub spec: NetworkFunctionSpec,
}

/// A pod that an instance wants.
struct Wanted<'a> {
    node: &'a str,
    owner: &'a str,
    chain: &'a PlannedChain,
    function: &'a PlannedFunction,
    instance: &'a Instance,
    template: String,
}

/// What a pod that was made is by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its instance has it.
    Current,
    /// Its instance wants one that is made of something else.
    Old,
    /// No plan has an instance for it.
    Gone,
}

/// How far the pods of an NF are with its image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turnover {
    /// Pods that are to be replaced.
    pub old: usize,
    /// One of the others that is not ready.
    pub waits: Option<Key>,
}

/// The pods that instances want.
pub struct Images<'a>(BTreeMap<Place, Wanted<'a>>);

impl<'a> Images<'a> {
    pub fn of(world: &'a World) -> Self {
        let mut wanted = BTreeMap::new();
        let mut templates: HashMap<&str, (&NetworkFunctionSpec, String)> = HashMap::new();
        for (node, plan) in &world.plans {
            let plan = &plan.spec;
            let with: Vec<&PlannedFunction> = plan.functions.iter().filter(|one| one.spec.image.is_some()).collect();
            if with.is_empty() {
                continue;
            }
            for chain in &plan.chains {
                let own: Vec<&PlannedFunction> =
                    with.iter().copied().filter(|function| chain.chain.services.contains(&function.name)).collect();
                let slo = world.slos.get(&Key::new(&chain.namespace, &chain.slo)).filter(|_| !own.is_empty());
                // What is left of an SLO that is gone wants nothing.
                let Some(slo) = slo else { continue };
                let owner = slo.metadata.uid.as_deref().unwrap_or_default();
                for function in own {
                    let known = templates.get(function.name.as_str()).filter(|(spec, _)| **spec == function.spec);
                    let template = known.map_or_else(|| template(&function.spec), |(_, template)| template.clone());
                    for instance in plan.server.instances.iter().filter(|one| one.slo == chain.name) {
                        let place = (chain.name.clone(), function.function.clone(), instance.number);
                        let template = template.clone();
                        wanted.insert(place, Wanted { node, owner, chain, function, instance, template });
                    }
                    templates.insert(&function.name, (&function.spec, template));
                }
            }
        }
        Self(wanted)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What a pod is by now that was made for this place.
    pub fn fate(&self, place: &Place, pod: &Pod, made: &Made) -> Fate {
        match self.0.get(place) {
            Some(wanted) if pod.node.as_deref() != Some(wanted.node) => Fate::Gone,
            Some(wanted) if (made.owner.as_str(), &made.template) == (wanted.owner, &wanted.template) => Fate::Current,
            Some(_) => Fate::Old,
            None => Fate::Gone,
        }
    }

    /// The pods that are to be made: `has` are the places with one that is bound.
    pub fn missing<'b>(&'b self, world: &'b World, has: &'b BTreeSet<Place>) -> impl Iterator<Item = NewPod> + 'b {
        let without = self.0.iter().filter(move |(place, _)| !has.contains(*place));
        without.map(|((_, _, number), wanted)| wanted.pod(*number)).filter(move |new| !world.pods.contains_key(&new.pod))
    }

    /// The NFs with a place whose pod is not one of `ready`, by namespace and name.
    pub fn unready(&self, ready: &BTreeSet<Place>) -> HashSet<(&'a str, &'a str)> {
        let without = self.0.iter().filter(|(place, _)| !ready.contains(*place)).map(|(_, wanted)| wanted.function);
        without.map(|function| (function.namespace.as_str(), function.function.as_str())).collect()
    }
}

impl Wanted<'_> {
    fn pod(&self, number: u32) -> NewPod {
        let Self { node, owner, chain, function, instance, template } = self;
        let name = name::of_pod(&chain.slo, &function.function, number, &[owner, node, template]);
        // What is counted is the instance's: its NFs share it.
        let nfs = chain.chain.services.len().max(1) as u64;
        NewPod {
            pod: Key::new(&chain.namespace, &name),
            slo: chain.slo.clone(),
            owner: (*owner).into(),
            function: function.function.clone(),
            number,
            node: (*node).into(),
            template: template.clone(),
            nf: format!("{}/{number}", function.name),
            folder: chain.name.clone(),
            memory_mib: instance.memory_mib.div_ceil(nfs).max(1),
            spec: function.spec.clone(),
        }
    }
}

/// A digest of what a pod is made of.
fn template(spec: &NetworkFunctionSpec) -> String {
    let mut bytes = Vec::new();
    let mut add = |part: &str| {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    };
    add(spec.image.as_deref().unwrap_or_default());
    for list in [&spec.command, &spec.args] {
        add(&list.len().to_string());
        list.iter().for_each(|one| add(one));
    }
    spec.env.iter().flat_map(|(name, value)| [name, value]).for_each(|one| add(one));
    let memory = spec.resources.as_ref().and_then(|most| most.memory_mib);
    add(&memory.map(|mib| mib.to_string()).unwrap_or_default());
    let digest = Digest::of(&bytes).to_string();
    digest[digest.len() - DIGEST..].into()
}
