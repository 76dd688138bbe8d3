//! Measures the operator with many nodes and SLOs, against a real API server.
//!
//!     scripts/test-cluster --scale 1000 5000
//!
//! Nodes are objects alone; their agents take over whatever their plans say, in this process.
//! Prints: the whole set from nothing; one more SLO, from the request until its pod has a node; a
//! twentieth of the nodes lost at once; memory and CPU of the operator.

#[path = "../tests/testbed/objects.rs"]
mod objects;
// The tests use all of it.
#[allow(dead_code)]
#[path = "../tests/testbed/mod.rs"]
mod testbed;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use objects::{Agents, basics, define, node, promise, ready, state, wait};
use serde_json::json;
use sluice_cluster_types::{Slo, labels};
use testbed::{Plane, Process};

const TENANTS: usize = 20;
/// Requests at a time.
const WIDTH: usize = 16;
/// SLOs that come alone.
const MORE: usize = 200;

#[tokio::main]
async fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let (&[nodes, slos], Some(programs)) = (&numbers[..], testbed::programs()) else {
        eprintln!("usage: scripts/test-cluster --scale NODES SLOS");
        std::process::exit(2);
    };
    let operator = std::env::var("SLUICE_OPERATOR").expect("SLUICE_OPERATOR names the program");
    let plane = Plane::start(&programs, false).await;
    let client = plane.client().await;
    define(&client).await;
    let began = Instant::now();
    futures::stream::iter(0..nodes)
        .for_each_concurrent(WIDTH, |i| {
            let client = &client;
            async move { node(client, &format!("n{i}")).await }
        })
        .await;
    futures::stream::iter(0..TENANTS)
        .for_each_concurrent(4, |i| {
            let client = &client;
            async move { basics(client, &tenant(i)).await }
        })
        .await;
    let ask = |i: usize| {
        let client = &client;
        async move { promise(client, &tenant(i), &format!("s{i}"), pps(i)).await }
    };
    futures::stream::iter(0..slos).for_each_concurrent(WIDTH, ask).await;
    println!("{nodes} nodes and {slos} SLOs made in {:.1} s", began.elapsed().as_secs_f64());
    let _agents = Agents::start(client.clone());
    let began = Instant::now();
    let operator = plane.operator("operator", &operator);
    let states = settled(&client, slos).await;
    println!("the whole set from nothing: {:.1} s, {states:?}", began.elapsed().as_secs_f64());
    println!("operator: {} MiB", memory(&operator));
    more(&client, slos).await;
    idle(&operator).await;
    losses(&client, nodes, slos + MORE).await;
    println!("operator: {} MiB, {:.1} s of CPU", memory(&operator), cpu(&operator));
}

fn tenant(i: usize) -> String {
    format!("tenant{}", i % TENANTS)
}

fn pps(i: usize) -> f64 {
    1e6 + (i * 7919 % 20) as f64 * 1e5
}

/// Waits until each SLO is kept or refused. Returns how many are what.
async fn settled(client: &Client, slos: usize) -> BTreeMap<String, usize> {
    let api: Api<Slo> = Api::all(client.clone());
    wait_long("all SLOs are kept or refused", || async {
        let mut states: BTreeMap<String, usize> = BTreeMap::new();
        for slo in api.list(&ListParams::default()).await.ok()? {
            *states.entry(slo.status.unwrap_or_default().state).or_default() += 1;
        }
        let of = |state: &str| states.get(state).copied().unwrap_or(0);
        (of("kept") + of("refused") + of("degraded") >= slos).then_some(states)
    })
    .await
}

async fn wait_long<F: Future<Output = Option<T>>, T>(what: &str, mut is_so: impl FnMut() -> F) -> T {
    let until = Instant::now() + Duration::from_secs(600);
    loop {
        if let Some(found) = is_so().await {
            return found;
        }
        assert!(Instant::now() < until, "waited in vain: {what}");
        // A list of everything is work for the API server, which is to do other work.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// SLOs that come one at a time, each with a pod that waits for its node.
async fn more(client: &Client, from: usize) {
    let mut times = Vec::new();
    for i in from..from + MORE {
        let (namespace, name) = (tenant(i), format!("s{i}"));
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let pod = json!({
            "metadata": {"name": name, "labels": {labels::SLO: name, labels::FUNCTION: "nat"}},
            "spec": {"schedulingGates": [{"name": labels::GATE}], "containers": [{"name": "nf", "image": "nf:1"}]},
        });
        let made = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let only = WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut events = std::pin::pin!(pods.watch(&only, &made.resource_version().unwrap()).await.unwrap());
        let began = Instant::now();
        promise(client, &namespace, &name, pps(i)).await;
        while let Some(Ok(event)) = events.next().await {
            let WatchEvent::Modified(pod) = event else { continue };
            if pod.spec.is_some_and(|spec| spec.scheduling_gates.is_none_or(|gates| gates.is_empty())) {
                break;
            }
        }
        times.push(began.elapsed());
        state(client, &namespace, &name, "kept").await;
    }
    times.sort();
    let at = |part: f64| times[((times.len() as f64 * part) as usize).min(times.len() - 1)].as_secs_f64() * 1e3;
    println!(
        "one more, from the request until its pod has a node: median {:.0} ms, p99 {:.0} ms, most {:.0} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

async fn idle(operator: &Process) {
    // Whatever is still to be written.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = cpu(operator);
    tokio::time::sleep(Duration::from_secs(30)).await;
    println!("operator when nothing changes: {:.1} % of a core, {} MiB", (cpu(operator) - before) / 30.0 * 100.0, memory(operator));
}

async fn losses(client: &Client, nodes: usize, slos: usize) {
    let lost: Vec<String> = (0..nodes / 20).map(|i| format!("n{}", i * 20)).collect();
    let api: Api<Slo> = Api::all(client.clone());
    let is_on = |slo: &Slo| {
        slo.status.as_ref().is_some_and(|status| status.nodes.split(' ').any(|node| lost.iter().any(|gone| gone == node)))
    };
    let hit = api.list(&ListParams::default()).await.unwrap().items.iter().filter(|slo| is_on(slo)).count();
    let began = Instant::now();
    futures::stream::iter(&lost).for_each_concurrent(WIDTH, |name| async move { ready(client, name, false).await }).await;
    let made = began.elapsed();
    wait("all are elsewhere", || async {
        let all = api.list(&ListParams::default()).await.ok()?;
        (!all.items.iter().any(is_on)).then_some(())
    })
    .await;
    let placed = began.elapsed();
    let states = settled(client, slos).await;
    println!(
        "{} nodes lost within {:.1} s, with {hit} SLOs: placed again after {:.1} s, on their nodes after {:.1} s, {states:?}",
        lost.len(),
        made.as_secs_f64(),
        placed.as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
}

fn memory(process: &Process) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Seconds that a process has computed.
fn cpu(process: &Process) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", process.child.id())).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    // In ticks of a hundredth of a second: user and system.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}
