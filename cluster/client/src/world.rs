//! What the operator would decide, by the code that it decides with.
//!
//! The objects are read as they are, and rounds of the plan go on in memory alone. Nodes take over
//! nothing here, so what needs several steps is foreseen as far as its first one: which nodes get
//! which instances. An operator sees that a node is slow because it has waited for it; here every
//! node counts as quick.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as KubeNode;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::core::DeserializeGuard;
use sluice_cluster_plan::{Key, Memo, Node, World, place};
use sluice_cluster_types::{NetworkFunction, NfProfile, NodePlan, ServerClass, ServiceChain, Slo, labels, name};
use sluice_slo::placement::{Instance, PlacedServer};

use crate::connect::Cluster;
use crate::manifest::Object;
use crate::rows;

/// Most rounds: of each, 256 SLOs can be placed.
const MOST_ROUNDS: usize = 64;

/// Reads all that a plan depends on.
///
/// # Errors
/// What is wrong, and what to do.
pub async fn read(cluster: &Cluster) -> anyhow::Result<World> {
    let (of_agents, leases) = (ListParams::default().labels(labels::AGENT), Api::<Lease>::all(cluster.client.clone()));
    let (nodes, leases, classes, functions, chains, slos, profiles, plans) = tokio::try_join!(
        cluster.all::<KubeNode>(),
        cluster.list(&leases, None, &of_agents),
        cluster.all::<DeserializeGuard<ServerClass>>(),
        cluster.all::<NetworkFunction>(),
        cluster.all::<ServiceChain>(),
        cluster.all::<Slo>(),
        cluster.all::<DeserializeGuard<NfProfile>>(),
        cluster.all::<NodePlan>(),
    )?;
    // What cannot be read counts as missing, to the operator, too.
    let classes = classes.into_iter().filter_map(|class| class.0.ok());
    let profiles = profiles.into_iter().filter_map(|profile| profile.0.ok());
    let alive = alive(&leases, Timestamp::now());
    Ok(World {
        nodes: nodes.iter().map(|one| (one.name_any(), node(one, &alive))).collect(),
        classes: classes.map(|class| (class.name_any(), class)).collect(),
        functions: functions.into_iter().map(|one| (key(&one), one)).collect(),
        chains: chains.into_iter().map(|one| (key(&one), one)).collect(),
        slos: slos.into_iter().map(|one| (key(&one), one)).collect(),
        profiles: profiles.map(|one| (key(&one), one)).collect(),
        plans: plans.into_iter().map(|one| (one.name_any(), one)).collect(),
        ..World::default()
    })
}

/// The leases that are renewed. The clock of a node may differ from the one here, so each counts
/// for three times its time.
fn alive(leases: &[Lease], now: Timestamp) -> BTreeSet<String> {
    let is_renewed = |lease: &&Lease| {
        let spec = lease.spec.as_ref();
        let last = spec.and_then(|spec| spec.renew_time.as_ref().map(|time| time.0.as_second()));
        let lasts = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
        last.is_some_and(|last| now.as_second() - last < 3 * i64::from(lasts))
    };
    leases.iter().filter(is_renewed).map(|lease| lease.name_any()).collect()
}

fn node(node: &KubeNode, alive: &BTreeSet<String>) -> Node {
    Node { is_served: alive.contains(&labels::lease_of(&node.name_any())), ..Node::from(node) }
}

fn key(object: &impl ResourceExt) -> Key {
    Key::new(&object.namespace().unwrap_or_default(), &object.name_any())
}

/// What would come of the objects.
pub struct Forecast {
    world: World,
    memo: Memo,
}

/// What would become of an SLO.
#[derive(Debug)]
pub struct Outcome {
    /// The nodes with its instances, which have the name that users know.
    pub servers: Vec<PlacedServer>,
    /// Why it would lack something.
    pub why: Option<String>,
}

impl Forecast {
    /// With what there is already.
    pub fn of(world: World) -> Self {
        let mut forecast = Self { world, memo: Memo::default() };
        forecast.settle();
        forecast
    }

    /// Adds objects, or changes them.
    pub fn put(&mut self, objects: Vec<Object>) {
        self.world.epoch += 1;
        for object in objects {
            match object {
                Object::Profile(one) => drop(self.world.profiles.insert(key(&one), one)),
                Object::Function(one) => drop(self.world.functions.insert(key(&one), one)),
                Object::Chain(one) => drop(self.world.chains.insert(key(&one), one)),
                Object::Slo(one) => drop(self.world.slos.insert(key(&one), one)),
            }
        }
        self.settle();
    }

    /// Plans until nothing more is decided at once.
    fn settle(&mut self) {
        let term = self.world.plans.values().map(|plan| plan.spec.term).max().unwrap_or(1);
        for _ in 0..MOST_ROUNDS {
            let round = place(&self.world, &mut self.memo, term, Duration::ZERO);
            for spec in round.plans {
                let name = spec.server.name.clone();
                let mut plan = NodePlan::new(&name, spec);
                plan.status = self.world.plans.get(&name).and_then(|known| known.status.clone());
                self.world.plans.insert(name, plan);
            }
            round.gone.iter().for_each(|name| drop(self.world.plans.remove(name)));
            if !round.again {
                return;
            }
        }
    }

    pub fn outcome(&self, slo: &Key) -> Outcome {
        let on_node = name::on_node(&slo.namespace, &slo.name);
        let has = |plan: &&NodePlan| plan.spec.server.instances.iter().any(|one| one.slo == on_node);
        let servers = self.world.plans.values().filter(has).map(rows::server).collect();
        Outcome { servers, why: self.memo.why.get(slo).map(|why| why.message.clone()) }
    }
}

impl Outcome {
    /// The instances of an SLO, with their servers and masks.
    pub fn instances<'a>(&'a self, slo: &'a Key) -> impl Iterator<Item = (&'a str, &'a Instance, u64)> {
        let name = slo.to_string();
        let of = |server: &'a PlacedServer| {
            let masks = server.masks();
            server.instances.iter().map(move |one| {
                let mask = masks.get(&(one.slo.clone(), one.number)).copied().unwrap_or(0);
                (server.name.as_str(), one, mask)
            })
        };
        self.servers.iter().flat_map(of).filter(move |(_, one, _)| one.slo == name)
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};
    use sluice_slo::examples::{profile, shape};

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(kind: &str, name: &str, rest: Value) -> K {
        let mut value = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": "acme"}});
        value.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    /// Two nodes with agents, an NF with a profile, and no SLO.
    pub fn world() -> World {
        let shape = shape();
        let class: ServerClass = object(
            "ServerClass",
            "a",
            json!({"spec": {
                "nodeSelector": {"class": "a"}, "cpu": shape.cpu, "cores": shape.cores, "llcWays": shape.llc_ways,
                "wayBytes": shape.way_bytes, "ddioWays": shape.ddio_ways, "classes": shape.classes, "memoryMib": shape.memory_mib,
            }}),
        );
        let mut world = World::default();
        world.classes.insert("a".into(), class);
        for name in ["n0", "n1"] {
            let ready = json!({"metadata": {"name": name, "labels": {"class": "a"}}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            world.nodes.insert(name.into(), node(&serde_json::from_value(ready).unwrap(), &[labels::lease_of(name)].into()));
            let server = json!({"name": name, "shape": shape, "instances": []});
            let plan: NodePlan = object(
                "NodePlan",
                name,
                json!({"spec": {"term": 1, "revision": 1, "server": server}, "status": {"appliedRevision": 1, "observedRevision": 1}}),
            );
            world.plans.insert(name.into(), plan);
        }
        let nat = Key::new("acme", "nat");
        world.functions.insert(nat.clone(), object("NetworkFunction", "nat", json!({"spec": {"exec": "sluice-nf-nat"}})));
        world.profiles.insert(nat, object("NFProfile", "nat", json!({"spec": {"profile": profile()}})));
        world
    }

    pub fn asked(name: &str, pps: f64) -> Vec<Object> {
        let chain = json!({"spec": {"services": ["nat"], "ingress": [{"port": "in"}], "egress": "out"}});
        let slo = json!({"spec": {"chain": name, "traffic": "64 B", "reserved": {"throughputPps": pps, "latencyUs": 1000.0}}});
        vec![Object::Chain(object("ServiceChain", name, chain)), Object::Slo(object("SLO", name, slo))]
    }

    #[test]
    fn an_agent_that_renews_its_lease_is_at_work() {
        let lease = |name: &str, renewed: &str| -> Lease {
            let spec = json!({"renewTime": renewed, "leaseDurationSeconds": 40});
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
        };
        let leases = [lease("node-a", "2026-01-01T00:10:00.000000Z"), lease("node-b", "2026-01-01T00:05:00.000000Z")];
        let now: Timestamp = "2026-01-01T00:10:30Z".parse().unwrap();
        let alive = alive(&leases, now);
        let is_served = |name: &str| {
            let kube: KubeNode = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            node(&kube, &alive).is_served
        };
        assert_eq!(["a", "b", "c"].map(is_served), [true, false, false]);
    }

    #[test]
    fn what_would_become_of_an_slo_is_foreseen() {
        let mut forecast = Forecast::of(world());
        forecast.put(asked("web", 12e6));
        let web = Key::new("acme", "web");
        let outcome = forecast.outcome(&web);
        assert_eq!(outcome.why, None);
        let instances: Vec<_> = outcome.instances(&web).collect();
        let carries: f64 = instances.iter().map(|(_, one, _)| one.capacity_pps).sum();
        assert!(
            carries >= 12e6 && instances.iter().all(|(server, one, mask)| *server == "n0" && one.slo == "acme/web" && *mask != 0)
        );
        // Another one goes where there is room, and one that is too large nowhere.
        forecast.put(asked("db", 12e6));
        let db = Key::new("acme", "db");
        let outcome = forecast.outcome(&db);
        assert!(outcome.why.is_none() && outcome.instances(&db).any(|(server, ..)| server == "n1"), "{outcome:?}");
        forecast.put(asked("huge", 900e6));
        let huge = Key::new("acme", "huge");
        let outcome = forecast.outcome(&huge);
        assert!(
            outcome.instances(&huge).next().is_none() && outcome.why.as_ref().unwrap().contains("this would fit"),
            "{outcome:?}"
        );
        assert_eq!(forecast.outcome(&web).why, None);
        forecast.put(vec![asked("none", 1e6).remove(1)]);
        assert!(forecast.outcome(&Key::new("acme", "none")).why.unwrap().contains("there is no ServiceChain"));
    }
}
