//! What is promised: NFs with several profiles, alone and in chains of up to three, some of it on
//! demand, and some of it with pods.

use kube::Client;
use serde_json::{Value, json};
use sluice_cluster_types::{NetworkFunction, NfProfile, ServiceChain, Slo};
use sluice_slo::examples::{curve, profile};
use sluice_slo::profile::{Key as ProfileKey, Profile, Source};
use sluice_slo::slo::Workload;

use crate::objects::{apply, basics, chain, gated_as, reserved};

pub const TENANTS: usize = 20;
/// SLOs of a tenant in a row, after which the same kinds come again.
const ROW: usize = 10;

pub fn tenant(i: usize) -> String {
    format!("tenant{}", i % TENANTS)
}

/// The NFs that an SLO passes.
fn services(i: usize) -> &'static [&'static str] {
    match i / TENANTS % ROW {
        0..4 => &["nat"],
        4..7 => &["fw"],
        7..9 => &["nat", "fw"],
        _ => &["nat", "fw", "ids"],
    }
}

fn is_on_demand(i: usize) -> bool {
    i / TENANTS % ROW == 6
}

/// Whether NFs of an SLO are pods: one of each.
pub fn has_pods(i: usize) -> bool {
    matches!(i / TENANTS % ROW, 1 | 7)
}

/// An NF or a chain: packets per second with few ways of the cache, and with many.
fn profiled(services: &[&str], few: (f64, f64), many: (f64, f64)) -> Profile {
    let names: Vec<String> = services.iter().map(|name| (*name).to_owned()).collect();
    let workload = match &names[..] {
        [name] => Workload::Nf(name.clone()),
        _ => Workload::Chain(names),
    };
    Profile {
        key: ProfileKey { workload, ..profile().key },
        source: Source::Measured,
        cores: services.len() as u32,
        throughput: curve(&[few, many]),
        latency: curve(&[(few.1 / 2.0, 10.0), (many.1 / 2.0, 30.0), (many.1 * 0.9, 200.0)]),
        best_ways: many.0 as u32,
        floor_pps: None,
        ..profile()
    }
}

/// A tenant's NFs and profiles.
pub async fn make_tenant(client: &Client, namespace: &str) {
    basics(client, namespace).await;
    let of = |name: &str, spec: Value| json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
    for name in ["fw", "ids"] {
        apply::<NetworkFunction>(client, &of(name, json!({"exec": format!("sluice-nf-{name}")}))).await.unwrap();
    }
    for profile in [
        profiled(&["fw"], (1.0, 1.5e6), (4.0, 6e6)),
        profiled(&["nat", "fw"], (2.0, 1e6), (8.0, 4e6)),
        profiled(&["nat", "fw", "ids"], (2.0, 0.8e6), (10.0, 4e6)),
    ] {
        let name = profile.key.workload.services().join("-");
        apply::<NfProfile>(client, &of(&name, json!({"profile": profile}))).await.unwrap();
    }
}

fn pps(i: usize) -> f64 {
    1e6 + (i * 7919 % 20) as f64 * 1e5
}

pub fn name(i: usize) -> String {
    format!("s{i}")
}

/// Packets per second that an SLO promises, by its name on nodes; none on demand.
pub fn promised(on_node: &str) -> Option<f64> {
    let i = on_node.split_once("_s")?.1.parse().ok()?;
    (!is_on_demand(i)).then(|| pps(i))
}

/// Makes the chain of an SLO.
pub async fn make_chain(client: &Client, i: usize) {
    let mut object = chain(&tenant(i), &name(i));
    object["spec"]["services"] = json!(services(i));
    apply::<ServiceChain>(client, &object).await.unwrap();
}

pub async fn make_slo(client: &Client, i: usize) {
    let mut object = reserved(&tenant(i), &name(i), pps(i));
    if is_on_demand(i) {
        object["spec"] = json!({"chain": name(i), "onDemand": {"latencyUs": 1000.0, "mostInstances": 4}});
    }
    apply::<Slo>(client, &object).await.unwrap();
}

/// The names of the pods of an SLO, each with its NF.
pub fn pods(i: usize) -> impl Iterator<Item = (String, &'static str)> {
    services(i).iter().map(move |service| (format!("{}-{service}", name(i)), *service))
}

/// Makes pods of an SLO, which wait at the gate.
pub async fn make_pods(client: &Client, i: usize) {
    for (pod, service) in pods(i) {
        gated_as(client, &tenant(i), &pod, &name(i), service).await;
    }
}
