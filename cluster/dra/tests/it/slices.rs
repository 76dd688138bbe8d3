//! What the node publishes, at a real API server.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::resource::v1::{Device, DeviceClass, ResourceClaim, ResourceSlice};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_dra::{DRIVER, Host};

use crate::PATIENCE;
use crate::kubelet::Server;
use crate::plane::Plane;

const GATES: &str = "DRAConsumableCapacity=true";

fn host(cores: u32, ways: u32) -> Host {
    Host { cpu: "Example CPU @ 2.10GHz".into(), cores, ways, min_ways: 1, way_bytes: Some(1 << 20) }
}

/// Asks until the answer is what is wanted.
async fn asked<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(Instant::now() < end, "not so in {} s: {what}", PATIENCE.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn make<K>(api: &Api<K>, object: Value) -> K
where
    K: Resource + Clone + serde::Serialize + DeserializeOwned + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

async fn make_node(client: &Client) -> Node {
    make(&Api::all(client.clone()), json!({"metadata": {"name": "n1"}})).await
}

/// A slice with a device for one claim alone.
async fn make_slice(api: &Api<ResourceSlice>, name: &str) {
    let pool = json!({"name": "n1", "generation": 1, "resourceSliceCount": 1});
    let spec = json!({"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": [{"name": "server"}]});
    make(api, json!({"metadata": {"name": name}, "spec": spec})).await;
}

/// The devices of all slices.
async fn devices(client: &Client) -> Vec<Device> {
    let api: Api<ResourceSlice> = Api::all(client.clone());
    let all = api.list(&ListParams::default()).await.unwrap();
    all.items.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default()).collect()
}

/// The values of the capacities of the only device: cores, ways.
async fn capacities(client: &Client) -> Option<(String, String)> {
    let devices = devices(client).await;
    let [device] = &devices[..] else { return None };
    let value = |name: &str| device.capacity.as_ref().unwrap()[name].value.0.clone();
    Some((value("cores"), value("ways")))
}

#[tokio::test]
async fn a_node_publishes_what_it_has_and_each_change() {
    let Some(plane) = Plane::start(GATES).await else { return };
    let client = plane.client().await;
    let server = Server::start(client.clone()).await;
    server.host.send_replace(Some(host(8, 9)));
    let object = make_node(&client).await;
    asked("the slice is there", async || capacities(&client).await.filter(|had| *had == ("8".into(), "9".into()))).await;
    let api: Api<ResourceSlice> = Api::all(client.clone());
    let slice = api.get("n1-sluice.dev").await.unwrap();
    let owner = &slice.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("Node", object.metadata.uid.as_ref()));
    let wanted = json!([{
        "name": "server",
        "allowMultipleAllocations": true,
        "attributes": {
            "cpu": {"string": "Example CPU @ 2.10GHz"}, "minWays": {"int": 1}, "wayBytes": {"int": 1_048_576},
        },
        "capacity": {
            "cores": {"value": "8", "requestPolicy": {"default": "1", "validRange": {"min": "0", "max": "8", "step": "1"}}},
            "ways": {"value": "9", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "9", "step": "1"}}},
        },
    }]);
    assert_eq!(serde_json::to_value(&slice.spec.devices).unwrap(), wanted);
    // A node without cache control, and with one core.
    server.host.send_replace(Some(host(1, 0)));
    asked("the change is there", async || capacities(&client).await.filter(|had| *had == ("1".into(), "0".into()))).await;
    // A kubelet that starts deletes it.
    let before = api.get("n1-sluice.dev").await.unwrap().metadata.uid;
    api.delete("n1-sluice.dev", &DeleteParams::default()).await.unwrap();
    let is_new = |slice: &ResourceSlice| slice.metadata.uid != before;
    asked("it comes back", async || api.get_opt("n1-sluice.dev").await.unwrap().filter(is_new)).await;
    // One of another name, as of an older driver.
    make_slice(&api, "old").await;
    asked("it is removed", async || api.get_opt("old").await.unwrap().is_none().then_some(())).await;
    assert_eq!(capacities(&client).await, Some(("1".into(), "0".into())));
}

#[tokio::test]
async fn without_the_feature_nothing_is_published() {
    let Some(plane) = Plane::start("DRAConsumableCapacity=false").await else { return };
    let client = plane.client().await;
    make_node(&client).await;
    // What a driver without this check would have left: a device for one claim alone.
    let api: Api<ResourceSlice> = Api::all(client.clone());
    make_slice(&api, "n1-sluice.dev").await;
    let server = Server::start(client.clone()).await;
    server.host.send_replace(Some(host(8, 9)));
    asked("it is removed", async || devices(&client).await.is_empty().then_some(())).await;
}

/// A pod with a claim of its own, which asks for this.
async fn make_pod(client: &Client, name: &str, asks: Value) {
    let exactly = json!({"deviceClassName": DRIVER, "capacity": {"requests": asks}});
    let claim = json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "nf", "exactly": exactly}]}}});
    make(&Api::<ResourceClaim>::namespaced(client.clone(), "acme"), claim).await;
    let container = json!({"name": "nf", "image": "nf", "resources": {"claims": [{"name": "nf"}]}});
    let spec = json!({"resourceClaims": [{"name": "nf", "resourceClaimName": name}], "containers": [container]});
    make(&Api::<Pod>::namespaced(client.clone(), "acme"), json!({"metadata": {"name": name}, "spec": spec})).await;
}

async fn make_schedulable(client: &Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    make_node(client).await;
    let has = json!({"cpu": "8", "memory": "8Gi", "pods": "110"});
    let ready = json!({"type": "Ready", "status": "True", "reason": "Test", "message": ""});
    let status = json!({"status": {"capacity": has, "allocatable": has, "conditions": [ready]}});
    nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    nodes.patch("n1", &PatchParams::default(), &Patch::Merge(json!({"spec": {"taints": null}}))).await.unwrap();
    let selector = json!({"cel": {"expression": format!("device.driver == '{DRIVER}'")}});
    make(&Api::<DeviceClass>::all(client.clone()), json!({"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}})).await;
    make(&Api::<Namespace>::all(client.clone()), json!({"metadata": {"name": "acme"}})).await;
}

#[tokio::test]
async fn the_scheduler_gives_parts_of_a_node_to_claims() {
    let Some(plane) = Plane::start(GATES).await else { return };
    let Some(_scheduler) = plane.scheduler(GATES).await else { return };
    let client = plane.client().await;
    make_schedulable(&client).await;
    let server = Server::start(client.clone()).await;
    server.host.send_replace(Some(host(2, 4)));
    asked("the slice is there", async || capacities(&client).await).await;
    let (pods, claims) = (Api::<Pod>::namespaced(client.clone(), "acme"), Api::<ResourceClaim>::namespaced(client.clone(), "acme"));
    let node_of = async |pod: &str| pods.get(pod).await.unwrap().spec?.node_name;
    let took = async |claim: &str| {
        let results = claims.get(claim).await.unwrap().status?.allocation?.devices?.results?;
        let consumed = results[0].consumed_capacity.clone()?;
        Some((consumed["cores"].0.clone(), consumed["ways"].0.clone()))
    };
    make_pod(&client, "web", json!({"ways": "3"})).await;
    asked("it is bound", async || node_of("web").await).await;
    assert_eq!(took("web").await, Some(("1".into(), "3".into())));
    // One way is left; then one core.
    make_pod(&client, "big", json!({"ways": "2"})).await;
    make_pod(&client, "dns", json!({})).await;
    asked("it is bound", async || node_of("dns").await).await;
    assert_eq!(took("dns").await, Some(("1".into(), "0".into())));
    make_pod(&client, "fw", json!({})).await;
    for pod in ["big", "fw"] {
        let is_refused = async || {
            let conditions = pods.get(pod).await.unwrap().status?.conditions?;
            conditions.into_iter().find(|one| one.reason.as_deref() == Some("Unschedulable"))
        };
        let why = asked("it finds no node", is_refused).await.message.unwrap();
        assert!(why.contains("cannot allocate all claims"), "{why}");
    }
    // What the scheduler has written is what the driver reads.
    server.plan.put("web", "acme_nat/0", "acme_web/0", 1, 3);
    let uid = claims.get("web").await.unwrap().metadata.uid.unwrap();
    let (pool, device, requests, ids) = server.prepare_as("web", &uid).await.unwrap();
    assert_eq!((pool.as_str(), device.as_str()), ("n1", "server"));
    assert_eq!((requests, ids), (vec!["nf".to_owned()], vec![format!("sluice.dev/nf={uid}")]));
    let uid = claims.get("dns").await.unwrap().metadata.uid.unwrap();
    assert!(server.prepare_as("dns", &uid).await.unwrap_err().contains("no place for the pod acme/dns"));
}
