//! What a claim takes of this node, and for which pod.

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::settings::DRIVER;
use crate::slice::{CORES, WAYS};

/// What a claim takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    pub(crate) cores: u32,
    pub(crate) ways: u32,
    /// Name and UID of the pod.
    pub(crate) pod: String,
    pub(crate) pod_uid: String,
}

/// Why a claim is none that can be prepared.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error("the claim is another one by now, of the same name: its UID is {now}")]
    Replaced { now: String },
    #[error("no device is allocated to the claim")]
    NotAllocated,
    #[error("the claim has {0} devices of {DRIVER}, and a pod is one NF: write one request with `count: 1`")]
    Devices(usize),
    #[error("the claim has a device of the pool {pool}, and this node's is {node}")]
    OtherNode { pool: String, node: String },
    #[error("the claim is reserved for no pod")]
    NoPod,
    #[error("the claim is reserved for {0} pods, and a pod is one NF: give each a claim of its own, by resourceClaimTemplateName")]
    Pods(usize),
    #[error("the claim takes \"{value}\" of {capacity}, which is no number")]
    Number { capacity: &'static str, value: String },
}

/// What a claim takes of the node, and the pod that takes it.
pub(crate) fn taken(claim: &ResourceClaim, uid: &str, node: &str) -> Result<Taken, ClaimError> {
    let now = claim.metadata.uid.clone().unwrap_or_default();
    if now != uid {
        return Err(ClaimError::Replaced { now });
    }
    let status = claim.status.as_ref().ok_or(ClaimError::NotAllocated)?;
    let devices = status.allocation.as_ref().and_then(|allocation| allocation.devices.as_ref());
    let results = devices.and_then(|devices| devices.results.as_deref()).ok_or(ClaimError::NotAllocated)?;
    let ours: Vec<_> = results.iter().filter(|result| result.driver == DRIVER).collect();
    let [device] = ours[..] else { return Err(ClaimError::Devices(ours.len())) };
    if device.pool != node {
        return Err(ClaimError::OtherNode { pool: device.pool.clone(), node: node.into() });
    }
    let reserved = status.reserved_for.as_deref().unwrap_or_default();
    let pod = match reserved {
        [] => return Err(ClaimError::NoPod),
        [one] => one,
        more => return Err(ClaimError::Pods(more.len())),
    };
    Ok(Taken {
        // A request with alternatives has the chosen one behind a slash.
        request: device.request.split('/').next().unwrap_or_default().into(),
        pool: device.pool.clone(),
        device: device.device.clone(),
        cores: consumed(device, CORES)?,
        ways: consumed(device, WAYS)?,
        pod: pod.name.clone(),
        pod_uid: pod.uid.clone(),
    })
}

fn consumed(device: &DeviceRequestAllocationResult, capacity: &'static str) -> Result<u32, ClaimError> {
    let all = device.consumed_capacity.as_ref();
    match all.and_then(|all| all.get(capacity)) {
        None => Ok(0),
        Some(value) => whole(value).ok_or_else(|| ClaimError::Number { capacity, value: value.0.clone() }),
    }
}

/// A whole number, as Kubernetes writes quantities: 1,024 may be `1Ki`.
fn whole(quantity: &Quantity) -> Option<u32> {
    let text = quantity.0.as_str();
    let (digits, unit) = match (text.strip_suffix("Ki"), text.strip_suffix('k')) {
        (Some(digits), _) => (digits, 1024),
        (None, Some(digits)) => (digits, 1000),
        (None, None) => (text, 1),
    };
    digits.parse::<u32>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(results: &Value, pods: &[&str]) -> ResourceClaim {
        let pods: Vec<Value> =
            pods.iter().map(|pod| json!({"resource": "pods", "name": pod, "uid": format!("{pod}-uid")})).collect();
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "acme", "uid": "u-1"},
            "spec": {},
            "status": {"allocation": {"devices": {"results": results}}, "reservedFor": pods},
        }))
        .unwrap()
    }

    fn result(driver: &str, pool: &str, consumed: &Value) -> Value {
        json!({"driver": driver, "pool": pool, "device": "server", "request": "nf/first", "consumedCapacity": consumed})
    }

    #[test]
    fn a_claim_says_what_it_takes_and_for_which_pod() {
        let ours = result(DRIVER, "n1", &json!({"cores": "2", "ways": "1Ki"}));
        let found = taken(&claim(&json!([result("gpu.example.com", "n1", &json!({})), ours]), &["web-0"]), "u-1", "n1").unwrap();
        assert_eq!((found.cores, found.ways, found.request.as_str()), (2, 1024, "nf"));
        assert_eq!((found.pod.as_str(), found.pod_uid.as_str()), ("web-0", "web-0-uid"));
    }

    #[test]
    fn what_cannot_be_prepared_says_why() {
        let ours = result(DRIVER, "n1", &json!({"cores": "1"}));
        let why = |results: Value, pods: &[&str]| taken(&claim(&results, pods), "u-1", "n1").unwrap_err();
        assert_eq!(why(json!([]), &["a"]), ClaimError::Devices(0));
        assert_eq!(why(json!([ours, ours]), &["a"]), ClaimError::Devices(2));
        assert_eq!(why(json!([ours]), &[]), ClaimError::NoPod);
        assert_eq!(why(json!([ours]), &["a", "b"]), ClaimError::Pods(2));
        let other = why(json!([result(DRIVER, "n2", &json!({}))]), &["a"]);
        assert_eq!(other, ClaimError::OtherNode { pool: "n2".into(), node: "n1".into() });
        let odd = why(json!([result(DRIVER, "n1", &json!({"cores": "1500m"}))]), &["a"]);
        assert_eq!(odd, ClaimError::Number { capacity: CORES, value: "1500m".into() });
        let replaced = taken(&claim(&json!([ours]), &["a"]), "u-0", "n1").unwrap_err();
        assert_eq!(replaced, ClaimError::Replaced { now: "u-1".into() });
        let bare: ResourceClaim = serde_json::from_value(json!({"metadata": {"uid": "u-1"}, "spec": {}})).unwrap();
        assert_eq!(taken(&bare, "u-1", "n1").unwrap_err(), ClaimError::NotAllocated);
    }
}
