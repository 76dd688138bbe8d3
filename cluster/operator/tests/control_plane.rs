//! The operator against a real API server: `scripts/test-cluster` runs this.
//!
//! Without a folder of programs in `SLUICE_CLUSTER_BIN` it says that it was skipped. The cases
//! share one control plane, each with names of its own, and run one after the other.

#[path = "testbed/objects.rs"]
mod objects;
mod testbed;

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use objects::{Agents, apply, basics, chain, define, node, promise, ready, reserved, state, wait, wait_else};
use serde_json::{Value, json};
use sluice_cluster_types::{
    NetworkFunction, NfProfile, NodePlan, ProfileRequest, Progress, ServerClass, ServiceChain, Slo, labels,
};
use sluice_slo::examples::{profile, shape};
use sluice_slo::slo::Workload;
use testbed::{Plane, Process, skip};

const OPERATOR: &str = env!("CARGO_BIN_EXE_sluice-operator");

fn main() {
    // Cargo asks harnesses for their tests.
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let Some(programs) = testbed::programs() else {
        return testbed::skip_all();
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let plane = Plane::start(&programs, true).await;
        let client = plane.client().await;
        define(&client).await;
        done("definitions are accepted");
        refusals(&client).await;
        done("bad objects are refused, with what to do");
        let agents = Agents::start(client.clone());
        let first = plane.operator("first", OPERATOR);
        admission(&client).await;
        done("an SLO is admitted, and what has no room says so");
        pods(&client).await;
        done("gated pods get their nodes");
        images(&client).await;
        done("pods of an image are made for their instances, replaced one after the other, and deleted");
        supply(&client).await;
        done("profiles and classes say what they are good for, and what is wrong");
        alone(&client).await;
        done("an SLO of an NF is kept without a chain");
        missing(&client).await;
        done("an SLO whose chain or NF is deleted goes on, and says so");
        fence(&client).await;
        done("a plan of an earlier term is refused");
        rollout(&client, &agents).await;
        done("a change stops at a node that refuses");
        silence(&client, &agents).await;
        done("an agent that is silent is noticed by time alone");
        losses(&client).await;
        done("what was on a lost node is placed again, and a cordoned one is emptied");
        leaders(&client, &plane, first, &agents).await;
        done("of two operators one acts, and the other goes on after it");
        fewer(&client, &plane).await;
        done("when SLOs have gone, the others move to fewer nodes");
        match std::env::var_os("SLUICE_DAEMON_BIN") {
            None => skip("a real node: SLUICE_DAEMON_BIN names the folder of sluiced and of the example NFs"),
            Some(folder) => {
                real_node(&client, &plane, Path::new(&folder)).await;
            }
        }
    });
}

fn done(what: &str) {
    println!("ok: {what}");
}

/// What the API server says to an object.
fn said<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer.unwrap_err() {
        Error::Api(status) => status.message,
        other => panic!("{other}"),
    }
}

async fn refusals(client: &Client) {
    let slo = |change: fn(&mut Value)| {
        let mut slo = reserved("default", "bad", 1e6);
        change(&mut slo["spec"]);
        slo
    };
    let slos = [
        (
            slo(|spec| drop(spec.as_object_mut().unwrap().remove("reserved"))),
            "an SLO is reserved or on demand: write one of the two",
        ),
        (slo(|spec| spec["onDemand"] = json!({"latencyUs": 5.0, "mostInstances": 1})), "an SLO is reserved or on demand"),
        (slo(|spec| drop(spec.as_object_mut().unwrap().remove("traffic"))), "write traffic as the NFProfile has it"),
        (slo(|spec| spec["reserved"]["throughputPps"] = json!(0.0)), "a throughput is above 0"),
        (slo(|spec| spec["reserved"]["latencyUs"] = json!(-1.0)), "a latency is above 0"),
        (slo(|spec| spec["footprint"] = json!({"cores": 1})), "leave footprint out"),
        (slo(|spec| *spec = json!({"chain": "a", "onDemand": {"latencyUs": 5.0}})), "an SLO on demand has a cap"),
        (
            slo(|spec| *spec = json!({"chain": "a", "onDemand": {"latencyUs": 5.0, "mostInstances": 0}})),
            "mostInstances is 1 to 256",
        ),
        (slo(|spec| *spec = json!({"chain": "a", "onDemand": {"latencyUs": 5.0, "mostPps": 0.0}})), "mostPps is above 0"),
        (slo(|spec| spec["chain"] = json!("")), "name a ServiceChain of this namespace"),
        (slo(|spec| drop(spec.as_object_mut().unwrap().remove("chain"))), "an SLO is of a chain or of an NF"),
        (slo(|spec| spec["function"] = json!("nat")), "an SLO is of a chain or of an NF"),
        (
            slo(|spec| {
                spec.as_object_mut().unwrap().remove("chain");
                spec["function"] = json!("nat");
            }),
            "an SLO of an NF says which packets it gets and where they leave",
        ),
    ];
    for (object, message) in slos {
        let said = said(apply::<Slo>(client, &object).await);
        assert!(said.contains(message), "{said}");
    }
    let chains = [
        (json!([]), json!([{"port": "in"}]), "has nothing to promise"),
        (json!(["nat", "nat"]), json!([{"port": "in"}]), "a service occurs twice"),
        (json!(["nat"]), json!([]), "no packet enters the chain"),
        (json!(["nat"]), json!([{}]), "takes the packets of all tenants"),
        (json!(["nat"]), json!([{"port": "in", "vlan": 5000}]), "less than or equal to 4094"),
    ];
    for (services, ingress, message) in chains {
        let mut object = chain("default", "bad");
        (object["spec"]["services"], object["spec"]["ingress"]) = (services, ingress);
        let said = said(apply::<ServiceChain>(client, &object).await);
        assert!(said.contains(message), "{said}");
    }
    let nfs = [
        (json!({"args": ["-v"]}), "args, env and resources are of a program or an image: name it in exec"),
        (json!({"resources": {"memoryMib": 64}}), "args, env and resources are of a program or an image: name it in exec"),
        (json!({"zygote": true}), "zygote is of a program on the node"),
        (json!({"image": "a", "zygote": true}), "zygote is of a program on the node"),
        (json!({"storage": true}), "storage is of a program on the node"),
        (json!({"exec": "a", "image": "b"}), "write one of exec and image"),
        (json!({"exec": "a", "command": ["b"]}), "command is what runs of an image"),
        (json!({"image": ""}), "image is empty"),
        (json!({"image": "a", "resources": {"pids": 5}}), "pids bounds a program of the node"),
        (json!({"exec": "a", "resources": {"memoryMib": 0}}), "greater than or equal to 1"),
        (json!({"exec": "a", "resources": {"pids": 5_000_000}}), "less than or equal to 4194304"),
    ];
    for (spec, message) in nfs {
        let nf = json!({"metadata": {"name": "bad", "namespace": "default"}, "spec": spec});
        let said = said(apply::<NetworkFunction>(client, &nf).await);
        assert!(said.contains(message), "{said}");
    }
    let requests = [
        (json!({"function": "nat", "chain": "web", "class": "a"}), "write one of the two"),
        (json!({"function": "nat", "class": "a", "traffic": "noon.pcap"}), "traffic is settings"),
        (json!({"function": "nat", "class": ""}), "name a class of nodes"),
    ];
    for (spec, message) in requests {
        let request = json!({"metadata": {"name": "bad", "namespace": "default"}, "spec": spec});
        let said = said(apply::<ProfileRequest>(client, &request).await);
        assert!(said.contains(message), "{said}");
    }
    let class = json!({"metadata": {"name": "bad"}, "spec": {
        "nodeSelector": {"a": "b"}, "cpu": "A", "cores": 1, "llcWays": 2, "wayBytes": 1, "ddioWays": 2, "classes": 4, "memoryMib": 64,
    }});
    let message = said(apply::<ServerClass>(client, &class).await);
    assert!(message.contains("nothing of the cache is left"), "{message}");
    // What may not change.
    apply::<Slo>(client, &reserved("default", "fixed", 1e6)).await.unwrap();
    let mut other = reserved("default", "fixed", 1e6);
    other["spec"]["chain"] = json!("other");
    let message = said(apply::<Slo>(client, &other).await);
    assert!(message.contains("an SLO stays with its chain"), "{message}");
    let slos: Api<Slo> = Api::namespaced(client.clone(), "default");
    slos.delete("fixed", &DeleteParams::default()).await.unwrap();
}

async fn admission(client: &Client) {
    node(client, "n0").await;
    basics(client, "acme").await;
    let limited = json!({"exec": "sluice-nf-nat", "zygote": true, "resources": {"memoryMib": 512}});
    apply::<NetworkFunction>(client, &json!({"metadata": {"name": "nat", "namespace": "acme"}, "spec": limited})).await.unwrap();
    promise(client, "acme", "web", 12e6).await;
    let slo = state(client, "acme", "web", "kept").await;
    // There was no other node yet.
    for i in 1..3 {
        node(client, &format!("n{i}")).await;
    }
    let status = slo.status.unwrap();
    assert!(status.instances >= 2 && status.nodes == "n0" && status.promised.starts_with("12000000 packets/s"), "{status:?}");
    let plans: Api<NodePlan> = Api::all(client.clone());
    let plan = plans.get("n0").await.unwrap().spec;
    assert_eq!((plan.slos[0].slo.name.as_str(), plan.functions[0].name.as_str()), ("acme_web", "acme_nat"));
    let spec = &plan.functions[0].spec;
    assert_eq!((spec.zygote, spec.resources.as_ref().and_then(|most| most.memory_mib)), (true, Some(512)));
    event(client, "acme", "SLO", "web", "Admitted").await;
    promise(client, "acme", "huge", 900e6).await;
    let status = state(client, "acme", "huge", "refused").await.status.unwrap();
    assert!(status.why.contains("this would fit"), "{status:?}");
    let message = json!({"spec": {"traffic": "IMIX"}});
    let slos: Api<Slo> = Api::namespaced(client.clone(), "acme");
    slos.patch("huge", &PatchParams::default(), &Patch::Merge(message)).await.unwrap();
    wait("another reason", || async {
        let status = slos.get("huge").await.ok()?.status?;
        status.why.contains("there are profiles of it with the traffic \"64 B\"").then_some(())
    })
    .await;
    slos.delete("huge", &DeleteParams::default()).await.unwrap();
}

async fn pods(client: &Client) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "acme");
    let pod = |name: &str| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {labels::SLO: "web", labels::FUNCTION: "nat"}},
            "spec": {
                "schedulingGates": [{"name": labels::GATE}],
                "containers": [{"name": "nf", "image": "nf:1", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}],
            },
        }))
        .unwrap()
    };
    let plans: Api<NodePlan> = Api::all(client.clone());
    let instances = plans.get("n0").await.unwrap().spec.server.instances.len();
    for i in 0..=instances {
        pods.create(&PostParams::default(), &pod(&format!("p{i}"))).await.unwrap();
    }
    // The stock scheduler binds them.
    let bound = wait("pods are bound", || async {
        let all = pods.list(&ListParams::default()).await.ok()?.items;
        let bound: Vec<Pod> =
            all.into_iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())).collect();
        (bound.len() == instances).then_some(bound)
    })
    .await;
    let of = |pod: &Pod| pod.metadata.labels.as_ref().unwrap()[labels::INSTANCE].clone();
    assert!(bound.iter().all(|pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some("n0")));
    assert_eq!(bound.iter().map(of).collect::<BTreeSet<_>>().len(), instances, "each has an instance of its own");
    let waits = pods.get(&format!("p{instances}")).await.unwrap();
    assert_eq!(waits.spec.unwrap().scheduling_gates.unwrap()[0].name, labels::GATE, "one more than there are instances waits");
    // Where one goes, the next takes its place.
    let gone = bound[0].metadata.name.clone().unwrap();
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete(&gone, &at_once).await.unwrap();
    let next = wait("the next pod is bound", || async {
        let pod = pods.get(&format!("p{instances}")).await.ok()?;
        pod.spec.as_ref()?.node_name.is_some().then_some(pod)
    })
    .await;
    assert_eq!(of(&next), of(&bound[0]));
}

/// Does with the pods of an SLO what a kubelet would: those that run are ready, and those that are
/// deleted go. Returns them.
async fn kubelet(pods: &Api<Pod>, slo: &str) -> Vec<Pod> {
    let of = ListParams::default().labels(&format!("{}={slo}", labels::SLO));
    let all = pods.list(&of).await.unwrap().items;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    for pod in &all {
        let name = pod.metadata.name.as_deref().unwrap();
        // Each of them may have gone meanwhile.
        if pod.metadata.deletion_timestamp.is_some() {
            let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            let _ = pods.delete(name, &at_once).await;
        } else if is_bound(pod) {
            let _ = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&ready)).await;
        }
    }
    all
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) && pod.metadata.deletion_timestamp.is_none()
}

fn image(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.containers.first()?.image.as_deref()
}

async fn images(client: &Client) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "acme");
    let nf = |image: &str| {
        let spec = json!({"image": image, "args": ["--fast"], "profiledAs": "nat", "resources": {"memoryMib": 64}});
        json!({"metadata": {"name": "boxed", "namespace": "acme"}, "spec": spec})
    };
    apply::<NetworkFunction>(client, &nf("nf:1")).await.unwrap();
    let mut object = chain("acme", "boxed");
    object["spec"]["services"] = json!(["boxed"]);
    apply::<ServiceChain>(client, &object).await.unwrap();
    apply::<Slo>(client, &reserved("acme", "boxed", 12e6)).await.unwrap();
    let slo = state(client, "acme", "boxed", "kept").await;
    let status = slo.status.unwrap();
    let count = usize::try_from(status.instances).unwrap();
    assert!(count > 1, "{status:?}");
    let runs = |image_of: &'static str| {
        let pods = pods.clone();
        wait("each instance has its pod", move || {
            let pods = pods.clone();
            async move {
                let all = kubelet(&pods, "boxed").await;
                let is_it = |pod: &&Pod| is_bound(pod) && image(pod) == Some(image_of);
                (all.len() == count && all.iter().filter(is_it).count() == count).then_some(all)
            }
        })
    };
    let first = runs("nf:1").await;
    for pod in &first {
        let (spec, number) = (pod.spec.as_ref().unwrap(), &pod.metadata.labels.as_ref().unwrap()[labels::INSTANCE]);
        assert!(status.nodes.split(' ').any(|node| spec.node_name.as_deref() == Some(node)), "{pod:?}");
        let nf = spec.containers[0].env.iter().flatten().find(|one| one.name == "SLUICE_NF").unwrap();
        assert_eq!(nf.value.as_ref(), Some(&format!("acme_boxed/{number}")));
        let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("SLO", slo.metadata.uid.as_ref()));
    }
    // One that goes is followed by one of the same name.
    let (gone, uid) = (first[0].metadata.name.clone().unwrap(), first[0].metadata.uid.clone());
    pods.delete(&gone, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await.unwrap();
    wait("it is made again", || async {
        let pod = pods.get_opt(&gone).await.ok()??;
        (pod.metadata.uid != uid && is_bound(&pod)).then_some(())
    })
    .await;
    runs("nf:1").await;
    apply::<NetworkFunction>(client, &nf("nf:2")).await.unwrap();
    wait("all have the next image", || async {
        let all = kubelet(&pods, "boxed").await;
        let up: Vec<&Pod> = all.iter().filter(|pod| is_bound(pod)).collect();
        assert!(up.len() + 1 >= count, "one at a time is replaced");
        (up.len() == count && up.iter().all(|pod| image(pod) == Some("nf:2"))).then_some(())
    })
    .await;
    // Nobody else makes pods of it.
    let other: Pod = serde_json::from_value(json!({
        "metadata": {"name": "other", "labels": {labels::SLO: "boxed", labels::FUNCTION: "boxed"}},
        "spec": {"schedulingGates": [{"name": labels::GATE}], "containers": [{"name": "nf", "image": "nf:1"}]},
    }))
    .unwrap();
    pods.create(&PostParams::default(), &other).await.unwrap();
    wait("it is said why it waits", || async {
        let said = pods.get("other").await.ok()?.metadata.annotations?.get(labels::REFUSED)?.clone();
        said.contains("the operator makes its pods").then_some(())
    })
    .await;
    pods.delete("other", &DeleteParams::default()).await.unwrap();
    let slos: Api<Slo> = Api::namespaced(client.clone(), "acme");
    slos.delete("boxed", &DeleteParams::default()).await.unwrap();
    wait("its pods are gone", || async { kubelet(&pods, "boxed").await.is_empty().then_some(()) }).await;
    let plans: Api<NodePlan> = Api::all(client.clone());
    wait("no node runs it", || async {
        let all = plans.list(&ListParams::default()).await.ok()?.items;
        all.iter().all(|plan| plan.spec.functions.iter().all(|one| one.function != "boxed")).then_some(())
    })
    .await;
}

/// Waits for an event of an object with this reason.
async fn event(client: &Client, namespace: &str, kind: &str, name: &str, reason: &str) -> Event {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    wait(&format!("{kind} {name}: {reason}"), || async {
        let all = events.list(&ListParams::default()).await.ok()?.items;
        let is_it = |event: &Event| {
            let of = event.regarding.clone().unwrap_or_default();
            event.reason.as_deref() == Some(reason) && of.kind.as_deref() == Some(kind) && of.name.as_deref() == Some(name)
        };
        all.into_iter().find(is_it)
    })
    .await
}

async fn supply(client: &Client) {
    let profiles: Api<NfProfile> = Api::namespaced(client.clone(), "acme");
    let says = |name: &'static str, reason: &'static str, message: &'static str, slos: i64| {
        let profiles = profiles.clone();
        wait(reason, move || {
            let profiles = profiles.clone();
            async move {
                let status = profiles.get(name).await.ok()?.status?;
                let one = status.conditions.first()?;
                (one.reason == reason && one.message.contains(message) && status.slos == slos).then_some(())
            }
        })
    };
    says("nat", "Used", "classes of its processor: a", 1).await;
    let mut other = json!({"metadata": {"name": "other", "namespace": "acme"}, "spec": {"profile": profile()}});
    other["spec"]["profile"]["key"]["cpu"] = json!("B");
    apply::<NfProfile>(client, &other).await.unwrap();
    says("other", "NoServer", "profile it on one of their nodes", 0).await;
    profiles.delete("other", &DeleteParams::default()).await.unwrap();
    let classes: Api<ServerClass> = Api::all(client.clone());
    let class = |reason: &'static str, message: &'static str| {
        let classes = classes.clone();
        wait(reason, move || {
            let classes = classes.clone();
            async move {
                let status = classes.get("a").await.ok()?.status?;
                let one = status.conditions.first()?;
                (one.reason == reason && one.message.contains(message)).then_some((status.nodes, status.fitting))
            }
        })
    };
    assert_eq!(class("Fits", "3 of 3 nodes").await, (3, 3));
    let plans: Api<NodePlan> = Api::all(client.clone());
    let report = |has: Value| {
        let plans = plans.clone();
        async move {
            let status = Patch::Merge(json!({"status": {"has": has}}));
            plans.patch_status("n2", &PatchParams::default(), &status).await.unwrap();
        }
    };
    report(json!({"cpu": shape().cpu, "cores": 1, "ways": 0, "memoryMib": 0})).await;
    assert_eq!(class("NodeDiffers", "as n2, which has 1 cores").await, (3, 2));
    event(client, "default", "ServerClass", "a", "NodeDiffers").await;
    report(Value::Null).await;
    assert_eq!(class("Fits", "3 of 3 nodes").await, (3, 3));
}

async fn alone(client: &Client) {
    let mut object = reserved("acme", "alone", 4e5);
    let spec = object["spec"].as_object_mut().unwrap();
    spec.remove("chain");
    let of = json!({"function": "nat", "ingress": [{"port": "in"}], "egress": "out"});
    spec.extend(of.as_object().unwrap().clone());
    apply::<Slo>(client, &object).await.unwrap();
    let status = state(client, "acme", "alone", "kept").await.status.unwrap();
    let plans: Api<NodePlan> = Api::all(client.clone());
    let plan = plans.get(&status.nodes).await.unwrap().spec;
    let planned = plan.chains.iter().find(|one| one.name == "acme_alone").unwrap();
    assert_eq!((planned.chain.services.clone(), planned.chain.egress.as_str()), (vec!["acme_nat".to_string()], "out"));
    object["spec"]["function"] = json!("other");
    let message = said(apply::<Slo>(client, &object).await);
    assert!(message.contains("an SLO stays with its NF"), "{message}");
    let slos: Api<Slo> = Api::namespaced(client.clone(), "acme");
    slos.delete("alone", &DeleteParams::default()).await.unwrap();
    wait("no node runs it", || async {
        let all = plans.list(&ListParams::default()).await.ok()?.items;
        all.iter().all(|plan| plan.spec.chains.iter().all(|one| one.name != "acme_alone")).then_some(())
    })
    .await;
}

async fn missing(client: &Client) {
    let slos: Api<Slo> = Api::namespaced(client.clone(), "acme");
    let plans: Api<NodePlan> = Api::all(client.clone());
    let runs = || async {
        let server = plans.get("n0").await.unwrap().spec.server;
        server.instances.iter().filter(|one| one.slo == "acme_web").map(|one| one.number).collect::<Vec<_>>()
    };
    let before = runs().await;
    let says = |why: &'static str| {
        let slos = slos.clone();
        wait(why, move || {
            let slos = slos.clone();
            async move {
                let status = slos.get("web").await.ok()?.status?;
                (status.state == "degraded" && status.why.contains(why)).then_some(())
            }
        })
    };
    let chains: Api<ServiceChain> = Api::namespaced(client.clone(), "acme");
    chains.delete("web", &DeleteParams::default()).await.unwrap();
    says("there is no ServiceChain \"web\"").await;
    assert_eq!(runs().await, before, "it goes on");
    apply::<ServiceChain>(client, &chain("acme", "web")).await.unwrap();
    state(client, "acme", "web", "kept").await;
    let nfs: Api<NetworkFunction> = Api::namespaced(client.clone(), "acme");
    nfs.delete("nat", &DeleteParams::default()).await.unwrap();
    says("there is no NetworkFunction \"nat\"").await;
    assert_eq!(runs().await, before, "it goes on");
    let nf = json!({"metadata": {"name": "nat", "namespace": "acme"}, "spec": {"exec": "sluice-nf-nat"}});
    apply::<NetworkFunction>(client, &nf).await.unwrap();
    state(client, "acme", "web", "kept").await;
    assert_eq!(runs().await, before);
    assert_eq!(event(client, "acme", "SLO", "web", "NoChain").await.type_.as_deref(), Some("Warning"));
}

async fn silence(client: &Client, agents: &Agents) {
    agents.silent.lock().unwrap().insert("n0".into());
    // Nothing else changes: it is time that has the operator look.
    objects::lease(client, "n0", 2).await;
    let event = event(client, "default", "Node", "n0", "AgentSilent").await;
    assert_eq!(event.regarding.unwrap().uid.as_deref(), Some("n0"), "kubectl describe node finds it");
    agents.silent.lock().unwrap().clear();
    objects::lease(client, "n0", 40).await;
}

async fn fence(client: &Client) {
    let plans: Api<NodePlan> = Api::all(client.clone());
    let mut plan = plans.get("n0").await.unwrap();
    plan.spec.term -= 1;
    plan.spec.revision += 100;
    let message = said(plans.replace("n0", &PostParams::default(), &plan).await);
    assert!(message.contains("an operator with a newer lease"), "{message}");
}

async fn rollout(client: &Client, agents: &Agents) {
    // One on each of the others, so that three nodes run the NF.
    for name in ["roll-a", "roll-b"] {
        promise(client, "acme", name, 15e6).await;
        state(client, "acme", name, "kept").await;
    }
    agents.refuse.lock().unwrap().insert("n1".into(), "no such option".into());
    let change = json!({"metadata": {"name": "nat", "namespace": "acme"}, "spec": {"exec": "sluice-nf-nat", "args": ["--new"]}});
    apply::<NetworkFunction>(client, &change).await.unwrap();
    let nfs: Api<NetworkFunction> = Api::namespaced(client.clone(), "acme");
    let rolled = |reason: &'static str| {
        let nfs = nfs.clone();
        wait(reason, move || {
            let nfs = nfs.clone();
            async move {
                let status = nfs.get("nat").await.ok()?.status?;
                status.conditions.iter().any(|one| one.reason == reason).then_some(status)
            }
        })
    };
    let status = rolled("NodeRefuses").await;
    assert_eq!((status.nodes, status.current), (3, 1));
    assert!(status.conditions[0].message.contains("node n1 refuses: no such option"), "{status:?}");
    let plans: Api<NodePlan> = Api::all(client.clone());
    assert!(plans.get("n2").await.unwrap().spec.functions[0].spec.args.is_empty(), "it stops there");
    event(client, "acme", "NetworkFunction", "nat", "RolloutStopped").await;
    event(client, "default", "Node", "n1", "PlanRefused").await;
    agents.refuse.lock().unwrap().clear();
    let better = json!({"metadata": {"name": "nat", "namespace": "acme"}, "spec": {"exec": "sluice-nf-nat", "args": ["--better"]}});
    apply::<NetworkFunction>(client, &better).await.unwrap();
    wait("all nodes have the next change", || async {
        let status = nfs.get("nat").await.ok()?.status?;
        (status.conditions.first()?.reason == "Current" && status.current == 3).then_some(())
    })
    .await;
}

async fn losses(client: &Client) {
    for i in 3..5 {
        node(client, &format!("n{i}")).await;
    }
    let slos: Api<Slo> = Api::namespaced(client.clone(), "acme");
    let on = |name: &'static str| {
        let slos = slos.clone();
        async move { slos.get(name).await.unwrap().status.unwrap().nodes }
    };
    let lost = on("web").await;
    ready(client, &lost, false).await;
    wait("it is elsewhere, and kept", || async {
        let status = slos.get("web").await.ok()?.status?;
        (!status.nodes.contains(&lost) && status.state == "kept").then_some(())
    })
    .await;
    event(client, "acme", "SLO", "web", "Moved").await;
    // An SLO may have instances on several nodes.
    let cordoned = on("roll-b").await.split(' ').find(|node| *node != lost).unwrap().to_string();
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.patch(&cordoned, &PatchParams::default(), &Patch::Merge(json!({"spec": {"unschedulable": true}}))).await.unwrap();
    let plans: Api<NodePlan> = Api::all(client.clone());
    wait("the cordoned node is empty", || async {
        plans.get(&cordoned).await.ok()?.spec.server.instances.is_empty().then_some(())
    })
    .await;
    for name in ["web", "roll-a", "roll-b"] {
        wait(&format!("{name} is kept, and elsewhere"), || async {
            let status = slos.get(name).await.ok()?.status?;
            let is_elsewhere = status.nodes.split(' ').all(|node| node != lost && node != cordoned);
            (status.state == "kept" && is_elsewhere).then_some(())
        })
        .await;
    }
    for name in [&lost, &cordoned] {
        nodes.delete(name, &DeleteParams::default()).await.unwrap();
        wait("the plan of a node that is gone goes", || async { plans.get_opt(name).await.ok()?.is_none().then_some(()) }).await;
    }
}

async fn leaders(client: &Client, plane: &Plane, first: Process, agents: &Agents) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    let holder = || async { leases.get("sluice-operator").await.ok()?.spec?.holder_identity };
    let led = |name: &'static str| wait(name, move || async move { holder().await?.starts_with(name).then_some(()) });
    led("first-").await;
    let second = plane.operator("second", OPERATOR);
    promise(client, "acme", "one", 4e5).await;
    state(client, "acme", "one", "kept").await;
    led("first-").await;
    // The first is stopped in the middle of whatever it does, and goes on when another one leads.
    first.signal("STOP");
    led("second-").await;
    promise(client, "acme", "two", 4e5).await;
    state(client, "acme", "two", "kept").await;
    first.signal("CONT");
    promise(client, "acme", "three", 4e5).await;
    state(client, "acme", "three", "kept").await;
    led("second-").await;
    drop(second);
    led("first-").await;
    promise(client, "acme", "four", 4e5).await;
    state(client, "acme", "four", "kept").await;
    // One that ends in order leaves at once.
    first.signal("TERM");
    wait("the lease is given back", || async { holder().await?.is_empty().then_some(()) }).await;
    for (node, seen) in agents.seen.lock().unwrap().iter() {
        assert!(seen.is_sorted(), "{node}: terms and revisions never go back: {seen:?}");
    }
}

async fn fewer(client: &Client, plane: &Plane) {
    let (slos, plans): (Api<Slo>, Api<NodePlan>) = (Api::namespaced(client.clone(), "acme"), Api::all(client.clone()));
    let used = || async {
        let all = plans.list(&ListParams::default()).await.ok()?.items;
        let is_settled = |plan: &NodePlan| plan.status.as_ref().is_some_and(|status| status.applied_revision == plan.spec.revision);
        let count = all.iter().filter(|plan| !plan.spec.server.instances.is_empty()).count();
        all.iter().all(is_settled).then_some(count)
    };
    let until = |count: usize| wait("some nodes are in use", move || async move { (used().await? == count).then_some(()) });
    let operator = plane.operator("filler", OPERATOR);
    for slo in slos.list(&ListParams::default()).await.unwrap() {
        slos.delete(&slo.metadata.name.unwrap(), &DeleteParams::default()).await.unwrap();
    }
    until(0).await;
    // Each fills a node, and then shrinks.
    let names = ["wide-a", "wide-b", "wide-c"];
    for name in names {
        promise(client, "acme", name, 15e6).await;
        state(client, "acme", name, "kept").await;
    }
    for name in names {
        promise(client, "acme", name, 2e6).await;
    }
    wait("they have shrunk", || async {
        let all = plans.list(&ListParams::default()).await.ok()?.items;
        let loads: Vec<f64> = all.iter().flat_map(|plan| &plan.spec.server.instances).map(|one| one.load_pps).collect();
        // What is on its way out does not move, and the next search is minutes later.
        let is_over = loads.iter().all(|pps| *pps > 0.0) && loads.iter().sum::<f64>() < 7e6;
        (is_over && used().await? == 3).then_some(())
    })
    .await;
    drop(operator);
    let operator = plane.operator_with("fewer", OPERATOR, &plane.kubeconfig, "0.1");
    let words = || operator.last_words();
    wait_else("one node is enough", words, || async { (used().await? == 1).then_some(()) }).await;
    for name in names {
        state(client, "acme", name, "kept").await;
        slos.delete(name, &DeleteParams::default()).await.unwrap();
    }
    // In two steps where the first search had to leave out a node.
    assert!(words().contains("so that 2 nodes are free") || words().matches(" is free").count() == 2, "{}", words());
    until(0).await;
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    wait("the nodes say so", || async {
        let all = events.list(&ListParams::default()).await.ok()?.items;
        (all.iter().filter(|event| event.reason.as_deref() == Some("Freed")).count() == 2).then_some(())
    })
    .await;
}

/// Ports of a server that needs no hardware.
const BASE: &str = r#"
[[port]]
name = "in"
kind = "gen"
rate = 1000
overload = "wait"

[[port]]
name = "out"
kind = "sink"

[promises]
cores = [1]
cache = "none"
"#;

/// Operator, agent and daemon, as on a node.
async fn real_node(client: &Client, plane: &Plane, programs: &Path) {
    let at = |name: &str| plane.folder.path().join(name);
    let (base, socket) = (at("base.toml"), at("run/control.sock"));
    std::fs::write(&base, format!("[manager]\nruntime_dir = {:?}\n{BASE}", at("run"))).unwrap();
    let daemon = Process::start(Command::new(programs.join("sluiced")).arg(&base), at("sluiced.log"));
    let _operator = plane.operator("third", OPERATOR);
    let mut agent = Command::new(Path::new(OPERATOR).with_file_name("sluice-node"));
    agent
        .args(["--node", "real", "--namespace", "default", "--class", "real"])
        .arg("--profiler")
        .arg(programs.join("sluice"))
        .arg("--socket")
        .arg(&socket)
        .arg("--base")
        .arg(&base)
        .arg("--kept")
        .arg(at("kept.json"));
    let agent = Process::start(agent.env("KUBECONFIG", &plane.kubeconfig), at("sluice-node.log"));
    let class = json!({"metadata": {"name": "real"}, "spec": {
        "nodeSelector": {objects::CLASS: "real"}, "cpu": "any", "cores": 1, "llcWays": 2, "wayBytes": 1048576, "classes": 4,
        "memoryMib": 1024,
    }});
    apply::<ServerClass>(client, &class).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    // The SLO is to come to this node.
    for other in nodes.list(&ListParams::default()).await.unwrap() {
        let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
        nodes.patch(&other.metadata.name.unwrap(), &PatchParams::default(), &cordon).await.unwrap();
    }
    objects::node_of(client, objects::REAL, "real").await;
    let bridge = json!({"metadata": {"name": "bridge", "namespace": "acme"}, "spec": {"exec": "sluice-nf-bridge"}});
    apply::<NetworkFunction>(client, &bridge).await.unwrap();
    let mut object = chain("acme", "packets");
    object["spec"]["services"] = json!(["bridge"]);
    apply::<ServiceChain>(client, &object).await.unwrap();
    let spec = json!({"chain": "packets", "onDemand": {"latencyUs": 1e6, "mostInstances": 1}});
    apply::<Slo>(client, &json!({"metadata": {"name": "packets", "namespace": "acme"}, "spec": spec})).await.unwrap();
    let words = || format!("{}\n{}", daemon.last_words(), agent.last_words());
    let plans: Api<NodePlan> = Api::all(client.clone());
    let flows = || async {
        let status = plans.get("real").await.ok()?.status?;
        assert!(status.refused.is_none(), "{status:?}\n{}", words());
        status.uses.first().is_some_and(|one| one.delivered_pps > 0.0).then_some(())
    };
    wait("packets flow", flows).await;
    assert_eq!(state(client, "acme", "packets", "kept").await.status.unwrap().nodes, "real");
    let slos: Api<Slo> = Api::namespaced(client.clone(), "acme");
    slos.delete("packets", &DeleteParams::default()).await.unwrap();
    wait("the daemon keeps nothing any more", || async {
        let plan = plans.get("real").await.ok()?;
        let status = plan.status?;
        (status.applied_revision == plan.spec.revision && status.uses.is_empty()).then_some(())
    })
    .await;
    guests(client, &at("run"), programs, &words).await;
    done("a real daemon runs what its node is given, and packets flow");
    let slos: Api<Slo> = Api::namespaced(client.clone(), "acme");
    slos.delete("guests", &DeleteParams::default()).await.unwrap();
    nothing_runs(client).await;
    match why_not_profiled(programs) {
        Some(why) => skip(why),
        None => {
            profiles(client, programs, &words).await;
            done("a node without instances profiles an NF, and what is promised by that is kept");
        }
    }
    liar(client, words).await;
    done("a node whose class says more than it has refuses that, and SLOs go elsewhere");
}

/// Waits until that node has no instances, and its daemon keeps none.
async fn nothing_runs(client: &Client) {
    let plans: Api<NodePlan> = Api::all(client.clone());
    wait("the daemon keeps nothing any more", || async {
        let plan = plans.get("real").await.ok()?;
        (plan.spec.server.instances.is_empty() && plan.status?.applied_revision == plan.spec.revision).then_some(())
    })
    .await;
}

/// Changes the class of that node.
async fn class(client: &Client, spec: Value) {
    let classes: Api<ServerClass> = Api::all(client.clone());
    classes.patch("real", &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await.unwrap();
}

/// What is missing for a real profile.
fn why_not_profiled(programs: &Path) -> Option<String> {
    if let Some(missing) = ["sluice", "sluice-lab"].into_iter().find(|program| !programs.join(program).exists()) {
        return Some(format!("a real profile: there is no {missing} in {}", programs.display()));
    }
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    (!is_root).then(|| "a real profile: it needs root, as its NF runs as another user".into())
}

/// A ProfileRequest is carried out with `sluice profile`: quick traffic and one point of the cache.
/// Then something is promised by what was measured.
async fn profiles(client: &Client, programs: &Path, words: &impl Fn() -> String) {
    // In the folder of the build, the user of NFs may have no rights.
    let open = tempfile::tempdir().unwrap();
    std::fs::set_permissions(open.path(), Permissions::from_mode(0o755)).unwrap();
    let program = open.path().join("sluice-nf-bridge");
    std::fs::copy(programs.join("sluice-nf-bridge"), &program).unwrap();
    let named = |spec: Value| json!({"metadata": {"name": "measured", "namespace": "acme"}, "spec": spec});
    apply::<NetworkFunction>(client, &named(json!({"exec": program}))).await.unwrap();
    let mut object = chain("acme", "measured");
    object["spec"]["services"] = json!(["measured"]);
    apply::<ServiceChain>(client, &object).await.unwrap();
    let traffic = "size=60,flows=64";
    let request = json!({"function": "measured", "class": "real", "traffic": traffic, "cache": "none", "noisy": true});
    apply::<ProfileRequest>(client, &named(request)).await.unwrap();
    let requests: Api<ProfileRequest> = Api::namespaced(client.clone(), "acme");
    let ended = wait("the request is carried out", || async {
        let status = requests.get("measured").await.ok()?.status?;
        matches!(status.state, Progress::Done | Progress::Failed).then_some(status)
    })
    .await;
    if ended.message.contains("need a core each") {
        return skip(ended.message);
    }
    assert_eq!((ended.state, ended.node.as_deref()), (Progress::Done, Some("real")), "{ended:?}\n{}", words());
    let made: Api<NfProfile> = Api::namespaced(client.clone(), "acme");
    let profile = made.get(ended.profile.as_deref().unwrap()).await.unwrap().spec.profile;
    assert_eq!((&profile.key.workload, profile.key.traffic.as_str()), (&Workload::Nf("measured".into()), traffic));
    let most = profile.throughput_pps(profile.best_ways);
    assert!(most > 0.0, "{profile:?}");
    // The profile is of the whole cache, and of this processor.
    class(client, json!({"cpu": profile.key.cpu, "llcWays": profile.best_ways})).await;
    let reserved = json!({"throughputPps": (most / 4.0).min(2000.0), "latencyUs": 1e6});
    let slo = named(json!({"chain": "measured", "traffic": traffic, "reserved": reserved}));
    apply::<Slo>(client, &slo).await.unwrap();
    let slos: Api<Slo> = Api::namespaced(client.clone(), "acme");
    wait("what was measured is promised, and kept", || async {
        let status = slos.get("measured").await.ok()?.status?;
        // More may come than is promised.
        (status.nodes == "real" && ["kept", "exceeded"].contains(&status.state.as_str())).then_some(())
    })
    .await;
    slos.delete("measured", &DeleteParams::default()).await.unwrap();
    nothing_runs(client).await;
}

/// The class of that node says more than there is, one thing after the other.
async fn liar(client: &Client, words: impl Fn() -> String) {
    let slos: Api<Slo> = Api::namespaced(client.clone(), "acme");
    let plans: Api<NodePlan> = Api::all(client.clone());
    let refuses = |what: &'static str| {
        let plans = plans.clone();
        wait(what, move || {
            let plans = plans.clone();
            async move {
                let status = plans.get("real").await.ok()?.status?;
                let says = |one: &Condition| one.type_ == "Ready" && one.reason == "Refused" && one.message.contains(what);
                status.conditions.iter().any(says).then_some(())
            }
        })
    };
    class(client, json!({"memoryMib": 1_u64 << 40})).await;
    refuses("write as memoryMib what NFs may have of it").await;
    class(client, json!({"memoryMib": 1024, "cores": 64})).await;
    refuses("has 64 cores for NFs, and `cores` in [promises] of its sluiced names 1").await;
    event(client, "default", "Node", "real", "PlanRefused").await;
    // It would serve this one, if it were not for its class.
    node(client, "spare").await;
    let spec = json!({"chain": "packets", "onDemand": {"latencyUs": 1e6, "mostInstances": 1}});
    apply::<Slo>(client, &json!({"metadata": {"name": "packets", "namespace": "acme"}, "spec": spec})).await.unwrap();
    assert_eq!(state(client, "acme", "packets", "kept").await.status.unwrap().nodes, "spare", "{}", words());
    // Once the class says what there is, the node is as any other.
    class(client, json!({"cores": 1})).await;
    ready(client, "spare", false).await;
    wait("the node has it", || async {
        let status = slos.get("packets").await.ok()?.status?;
        (status.nodes == "real" && status.state == "kept").then_some(())
    })
    .await;
    let status = plans.get("real").await.unwrap().status.unwrap();
    assert!(status.refused.is_none() && status.conditions.iter().all(|one| one.status == "True"), "{status:?}");
}

/// An NF of pods on that node: it attaches by the socket of its SLO, and so does its successor.
async fn guests(client: &Client, run: &Path, programs: &Path, words: &impl Fn() -> String) {
    let named = |name: &str, spec: Value| json!({"metadata": {"name": name, "namespace": "acme"}, "spec": spec});
    apply::<NetworkFunction>(client, &named("guest", json!({}))).await.unwrap();
    let mut object = chain("acme", "guests");
    object["spec"]["services"] = json!(["guest"]);
    apply::<ServiceChain>(client, &object).await.unwrap();
    let spec = json!({"chain": "guests", "onDemand": {"latencyUs": 1e6, "mostInstances": 1}});
    apply::<Slo>(client, &named("guests", spec)).await.unwrap();
    let plans: Api<NodePlan> = Api::all(client.clone());
    let socket = run.join("attach/acme_guests/nf.sock");
    let number = wait("the node waits for the NF", || async {
        let plan = plans.get("real").await.ok()?;
        let status = plan.status?;
        assert!(status.refused.is_none(), "{status:?}\n{}", words());
        let is_new = status.uses.first().is_some_and(|one| one.state == "new");
        (status.applied_revision == plan.spec.revision && is_new && socket.exists()).then_some(())?;
        plan.spec.server.instances.first().map(|one| one.number)
    })
    .await;
    let delivers = |is_so: bool| {
        let plans = plans.clone();
        async move {
            let uses = plans.get("real").await.ok()?.status?.uses;
            uses.first().is_some_and(|one| (one.delivered_pps > 0.0) == is_so).then_some(())
        }
    };
    for nth in 0..2 {
        let mut bridge = Command::new(programs.join("sluice-nf-bridge"));
        bridge.env("SLUICE_SOCKET", &socket).env("SLUICE_NF", format!("acme_guest/{number}"));
        let guest = Process::start(&mut bridge, run.with_file_name(format!("guest-{nth}.log")));
        wait("packets flow through the NF of a pod", || delivers(true)).await;
        drop(guest);
        wait("it is gone", || delivers(false)).await;
    }
}
