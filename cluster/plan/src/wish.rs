//! What an SLO asks for, as far as its objects say.

use std::collections::{BTreeMap, HashMap, HashSet};

use sluice_api::config::{OnFailure, Run};
use sluice_cluster_types::{
    Footprint, Match, NetworkFunction, NfProfile, PlannedChain, PlannedFunction, ServiceChainSpec, Slo, name,
};
use sluice_slo::assignment::Promised;
use sluice_slo::digest::Digest;
use sluice_slo::profile::{Key as ProfileKey, Profile};
use sluice_slo::slo::{Promise, Slo as Terms, Workload};

use crate::world::{Key, World};

/// Longest value of a label, in letters.
const LABEL: usize = 63;

/// Why something is not as it should be: a word for programs, and what to do for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    pub reason: &'static str,
    pub message: String,
}

impl Why {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// What an SLO asks for.
#[derive(Debug, Clone)]
pub struct Wish<'a> {
    pub key: &'a Key,
    /// The SLO's terms, with names of a node, and without a configuration.
    pub terms: Terms,
    /// The newest profile for each processor. None on demand.
    pub profiles: Vec<&'a Profile>,
    pub footprint: Footprint,
    way: Way<'a>,
    /// In the order of the workload's services.
    functions: Vec<(&'a Key, &'a NetworkFunction)>,
    /// Before others with the same promise.
    pub rank: (String, String),
}

/// The packets of a chain, and where they go, as its object says.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Way<'a> {
    ingress: &'a [Match],
    egress: &'a str,
    on_failure: OnFailure,
    run: Run,
}

impl<'a> Way<'a> {
    fn of(chain: &'a ServiceChainSpec) -> Self {
        let ServiceChainSpec { services: _, ingress, egress, on_failure, run } = chain;
        Self { ingress, egress, on_failure: *on_failure, run: *run }
    }
}

/// Good profiles by namespace, what runs, and traffic: the newest for each processor. Where none is
/// good, what is wrong with the newest.
pub struct Profiles<'a>(BTreeMap<(&'a str, &'a Workload, &'a str), Result<Vec<&'a Profile>, String>>);

impl<'a> Profiles<'a> {
    pub fn of(world: &'a World) -> Self {
        let mut all: BTreeMap<_, Vec<&NfProfile>> = BTreeMap::new();
        for (key, profile) in &world.profiles {
            let of = &profile.spec.profile.key;
            all.entry((key.namespace.as_str(), &of.workload, of.traffic.as_str())).or_default().push(profile);
        }
        Self(all.into_iter().map(|(key, same)| (key, newest(same))).collect())
    }

    fn find(&self, namespace: &str, workload: &Workload, traffic: &str) -> Result<Vec<&'a Profile>, Why> {
        match self.0.get(&(namespace, workload, traffic)) {
            Some(Ok(newest)) => return Ok(newest.clone()),
            Some(Err(bad)) => return Err(Why::new("BadProfile", bad.clone())),
            None => {}
        }
        let own = self.0.keys().filter(|(of, ran, _)| *of == namespace && *ran == workload);
        let known: Vec<&str> = own.map(|(.., traffic)| *traffic).collect();
        let rest = match known[..] {
            [] => format!("profile it (sluice profile {workload}), and make an NFProfile of the file"),
            _ => format!("there are profiles of it with the traffic {}: name one of these, or profile it", quoted(&known)),
        };
        Err(Why::new("NoProfile", format!("no NFProfile in {namespace} is of {workload} with the traffic \"{traffic}\": {rest}")))
    }
}

/// What a profile is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is the newest of its kind: how many SLOs can be planned by it.
    Newest(usize),
    /// A newer one counts.
    Older,
    /// Why it cannot be used.
    Bad(String),
}

impl Profiles<'_> {
    /// What each profile is good for. SLOs are planned by those of their wishes.
    pub fn standings(&self, world: &World, wishes: &[Wish<'_>]) -> BTreeMap<Key, Standing> {
        let newest: HashSet<*const Profile> = self.0.values().flatten().flatten().map(|one| std::ptr::from_ref(*one)).collect();
        let mut used: HashMap<*const Profile, usize> = HashMap::new();
        for profile in wishes.iter().flat_map(|wish| &wish.profiles) {
            *used.entry(std::ptr::from_ref(*profile)).or_default() += 1;
        }
        let of = |profile: &Profile| match std::ptr::from_ref(profile) {
            own if newest.contains(&own) => Standing::Newest(used.get(&own).copied().unwrap_or(0)),
            _ => profile.check().map_or_else(|error| Standing::Bad(error.to_string()), |()| Standing::Older),
        };
        world.profiles.iter().map(|(key, profile)| (key.clone(), of(&profile.spec.profile))).collect()
    }
}

fn newest(mut same: Vec<&NfProfile>) -> Result<Vec<&Profile>, String> {
    let made = |profile: &NfProfile| (profile.metadata.creation_timestamp.clone(), profile.metadata.name.clone());
    same.sort_by_cached_key(|profile| std::cmp::Reverse(made(profile)));
    let mut newest: Vec<&Profile> = Vec::new();
    let mut bad = None;
    for profile in same.iter().map(|one| &one.spec.profile) {
        match profile.check() {
            Ok(()) if newest.iter().any(|known| known.key.cpu == profile.key.cpu) => {}
            Ok(()) => newest.push(profile),
            Err(error) => bad = bad.or(Some(error.to_string())),
        }
    }
    // One is bad if none is good.
    if newest.is_empty() { Err(bad.unwrap_or_default()) } else { Ok(newest) }
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

fn workload(mut names: Vec<String>) -> Workload {
    if names.len() == 1 { Workload::Nf(names.remove(0)) } else { Workload::Chain(names) }
}

/// The NFs of a chain.
///
/// # Errors
/// One is missing.
pub fn functions<'a>(world: &'a World, namespace: &str, services: &[String]) -> Result<Vec<(&'a Key, &'a NetworkFunction)>, Why> {
    let find = |service: &String| {
        let missing = || {
            let message = format!("there is no NetworkFunction \"{service}\" in {namespace}: make it, or name another in services");
            Why::new("NoFunction", message)
        };
        let found = world.functions.get_key_value(&Key::new(namespace, service)).ok_or_else(missing)?;
        if found.1.spec.image.is_some() {
            label("NF", service)?;
        }
        Ok(found)
    };
    services.iter().map(find).collect()
}

/// Pods of an image have the names of their SLO and NF as labels.
fn label(what: &str, name: &str) -> Result<(), Why> {
    if name.len() <= LABEL {
        return Ok(());
    }
    let message =
        format!("the pods of the {what} \"{name}\" have its name as a label, of at most {LABEL} letters: choose a shorter one");
    Err(Why::new("Invalid", message))
}

/// The services of an SLO's chain, and its way. An SLO of an NF has a chain by itself.
///
/// # Errors
/// There is no such chain, or another SLO is of it.
fn chain<'a>(
    world: &'a World,
    owners: &HashMap<(&str, &str), &Key>,
    key: &Key,
    slo: &'a Slo,
) -> Result<(&'a [String], Way<'a>), Why> {
    let (namespace, spec) = (key.namespace.as_str(), &slo.spec);
    let name = match (&spec.chain, &spec.function) {
        (Some(name), None) => name,
        (None, Some(function)) => {
            let egress = spec.egress.as_deref().unwrap_or_default();
            let way = Way { ingress: &spec.ingress, egress, on_failure: OnFailure::default(), run: Run::default() };
            return Ok((std::slice::from_ref(function), way));
        }
        _ => return Err(Why::new("Invalid", "write one of chain and function")),
    };
    let missing = || Why::new("NoChain", format!("there is no ServiceChain \"{name}\" in {namespace}: make it"));
    let chain = world.chains.get(&Key::new(namespace, name)).ok_or_else(missing)?;
    match owners.get(&(namespace, name.as_str())).filter(|owner| **owner != key) {
        None => Ok((chain.spec.services.as_slice(), Way::of(&chain.spec))),
        Some(owner) => {
            let message = format!("the chain \"{name}\" has the SLO \"{}\" already: make another chain", owner.name);
            Err(Why::new("SecondSlo", message))
        }
    }
}

impl<'a> Wish<'a> {
    /// What an SLO asks for. `owners` has the first SLO of each chain.
    ///
    /// # Errors
    /// Why it cannot be planned for.
    pub fn of(
        world: &'a World,
        profiles: &Profiles<'a>,
        owners: &HashMap<(&str, &str), &Key>,
        key: &'a Key,
        slo: &'a Slo,
    ) -> Result<Self, Why> {
        let namespace = key.namespace.as_str();
        let (services, way) = chain(world, owners, key, slo)?;
        let functions = functions(world, namespace, services)?;
        if functions.iter().any(|(_, function)| function.spec.image.is_some()) {
            label("SLO", &key.name)?;
        }
        let promise = slo.spec.promise().ok_or_else(|| Why::new("Invalid", "write one of reserved and onDemand"))?;
        let traffic = slo.spec.traffic.clone().unwrap_or_default();
        let profiled = workload(functions.iter().map(|(_, function)| function.profiled_as().to_string()).collect());
        let profiles = match promise {
            Promise::Reserved { .. } => profiles.find(namespace, &profiled, &traffic)?,
            Promise::OnDemand { .. } => Vec::new(),
        };
        let terms = Terms {
            name: name::on_node(namespace, &key.name),
            workload: workload(functions.iter().map(|(key, _)| name::on_node(namespace, &key.name)).collect()),
            configuration: Digest::of(b""),
            traffic,
            promise,
        };
        terms.check().map_err(|error| Why::new("Invalid", error.to_string()))?;
        let made = slo.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
        let rank = (made, key.name.clone());
        let footprint = slo.spec.footprint.clone().unwrap_or_default();
        Ok(Self { key, terms, profiles, footprint, way, functions, rank })
    }

    pub fn name(&self) -> &str {
        &self.terms.name
    }

    /// The packets of its chain.
    pub fn ingress(&self) -> &[Match] {
        self.way.ingress
    }

    /// The terms as they are kept on a node, by this profile.
    pub fn promised(&self, profile: Option<&Profile>) -> Promised {
        let profile = profile.map(|profile| ProfileKey { workload: self.terms.workload.clone(), ..profile.key.clone() });
        let configuration = profile.as_ref().map_or_else(|| self.terms.configuration.clone(), |key| key.configuration.clone());
        Promised { slo: Terms { configuration, ..self.terms.clone() }, profile }
    }

    /// Its chain on a node.
    pub fn chain(&self) -> PlannedChain {
        let namespace = self.key.namespace.clone();
        let services = self.functions.iter().map(|(key, _)| name::on_node(&namespace, &key.name)).collect();
        let Way { ingress, egress, on_failure, run } = self.way;
        let chain = ServiceChainSpec { services, ingress: ingress.to_vec(), egress: egress.into(), on_failure, run };
        PlannedChain { name: self.terms.name.clone(), namespace, slo: self.key.name.clone(), chain }
    }

    /// Whether this is its chain on a node, as it is now.
    pub fn is_chain(&self, planned: &PlannedChain) -> bool {
        let is_it = (planned.name.as_str(), planned.namespace.as_str(), planned.slo.as_str())
            == (self.name(), self.key.namespace.as_str(), self.key.name.as_str());
        // Services have other names there.
        is_it && self.runs(&planned.chain.services) && Way::of(&planned.chain) == self.way
    }

    /// Whether its chain has these services, by their names on a node.
    pub fn runs(&self, services: &[String]) -> bool {
        match &self.terms.workload {
            Workload::Nf(name) => services == std::slice::from_ref(name),
            Workload::Chain(names) => services == names,
        }
    }

    /// The NF of this name on a node.
    pub fn function(&self, service: &str) -> Option<(&'a Key, &'a NetworkFunction)> {
        let at = match &self.terms.workload {
            Workload::Nf(name) => (name == service).then_some(0),
            Workload::Chain(names) => names.iter().position(|name| name == service),
        };
        self.functions.get(at?).copied()
    }

    /// The NFs of its chain on a node.
    pub fn functions(&self) -> impl Iterator<Item = PlannedFunction> {
        self.functions.iter().copied().map(on_node)
    }
}

/// Whether this is an NF on a node, as it is now.
pub fn is_on_node((key, function): (&Key, &NetworkFunction), planned: &PlannedFunction) -> bool {
    (&key.namespace, &key.name, &function.spec) == (&planned.namespace, &planned.function, &planned.spec)
}

/// An NF on a node.
pub fn on_node((key, function): (&Key, &NetworkFunction)) -> PlannedFunction {
    PlannedFunction {
        name: name::on_node(&key.namespace, &key.name),
        namespace: key.namespace.clone(),
        function: key.name.clone(),
        spec: function.spec.clone(),
    }
}

/// The first SLO of each chain, by namespace and the chain's name: the oldest.
pub fn owners(world: &World) -> HashMap<(&str, &str), &Key> {
    let mut owners: HashMap<(&str, &str), (&Key, &Slo)> = HashMap::with_capacity(world.slos.len());
    for (key, slo) in &world.slos {
        let made = |slo: &Slo| slo.metadata.creation_timestamp.clone();
        let Some(chain) = &slo.spec.chain else { continue };
        let owner = owners.entry((&key.namespace, chain)).or_insert((key, slo));
        // Of the same age, the first by name, which is there already.
        if made(slo) < made(owner.1) {
            *owner = (key, slo);
        }
    }
    owners.into_iter().map(|(chain, (key, _))| (chain, key)).collect()
}
