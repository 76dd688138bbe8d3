//! The node's resources as the scheduler sees them: one device, of which each claim takes a part.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity, ResourcePool, ResourceSlice,
    ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::host::Host;
use crate::settings::DRIVER;

/// The device of a node.
const DEVICE: &str = "server";
/// Capacity: cores for NFs.
pub(crate) const CORES: &str = "cores";
/// Capacity: ways of the last-level cache.
pub(crate) const WAYS: &str = "ways";
/// Longest value of an attribute, in bytes.
const LONGEST: usize = 64;

/// Name of the slice of a node.
pub(crate) fn name(node: &str) -> String {
    format!("{node}-{DRIVER}")
}

/// The slice of a node; it is deleted with the node.
pub(crate) fn slice(node: &str, owner: Option<&Node>, host: &Host) -> ResourceSlice {
    let owner = owner.map(|node| OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        ..OwnerReference::default()
    });
    ResourceSlice {
        metadata: ObjectMeta { name: Some(name(node)), owner_references: owner.map(|owner| vec![owner]), ..ObjectMeta::default() },
        spec: ResourceSliceSpec {
            driver: DRIVER.into(),
            node_name: Some(node.into()),
            pool: ResourcePool { name: node.into(), generation: 1, resource_slice_count: 1 },
            devices: Some(vec![device(host)]),
            ..ResourceSliceSpec::default()
        },
    }
}

fn device(host: &Host) -> Device {
    let text = |text: &str| DeviceAttribute { string: Some(text.into()), ..DeviceAttribute::default() };
    let number =
        |number: u64| DeviceAttribute { int: Some(i64::try_from(number).unwrap_or(i64::MAX)), ..DeviceAttribute::default() };
    let mut attributes = BTreeMap::from([("minWays".into(), number(host.min_ways.into()))]);
    let end = (0..=LONGEST.min(host.cpu.len())).rev().find(|end| host.cpu.is_char_boundary(*end)).unwrap_or(0);
    if end > 0 {
        attributes.insert("cpu".into(), text(&host.cpu[..end]));
    }
    if let Some(bytes) = host.way_bytes {
        attributes.insert("wayBytes".into(), number(bytes));
    }
    // A claim that names no ways takes none: its NF is in the shared class.
    // One that names no cores takes one. NFs of an instance with fewer cores than NFs share them:
    // all but one of these take none.
    let capacity = [(CORES, capacity(1, host.cores)), (WAYS, capacity(0, host.ways))];
    Device {
        name: DEVICE.into(),
        allow_multiple_allocations: Some(true),
        attributes: Some(attributes),
        capacity: Some(capacity.map(|(name, capacity)| (name.into(), capacity)).into()),
        ..Device::default()
    }
}

/// A capacity of which claims take whole numbers, `usual` by default.
///
/// It is there even if it is 0: the scheduler takes a request for one that a node lacks for an
/// error, and places the pod nowhere.
fn capacity(usual: u32, all: u32) -> DeviceCapacity {
    let quantity = |number: u32| Quantity(number.to_string());
    let range = CapacityRequestPolicyRange {
        min: quantity(0),
        max: Some(quantity(all)),
        // Refused where not even one step fits.
        step: (all > 0).then(|| quantity(1)),
    };
    let policy = CapacityRequestPolicy { default: Some(quantity(usual.min(all))), valid_range: Some(range), valid_values: None };
    DeviceCapacity { value: quantity(all), request_policy: Some(policy) }
}

/// Whether an API server has kept that several claims can have a part.
pub(crate) fn is_shared(slice: &ResourceSlice) -> bool {
    let devices = slice.spec.devices.as_deref().unwrap_or_default();
    !devices.is_empty() && devices.iter().all(|device| device.allow_multiple_allocations == Some(true))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(cpu: &str, cores: u32, ways: u32) -> Value {
        let host = Host { cpu: cpu.into(), cores, ways, min_ways: 2, way_bytes: None };
        let slice = slice("n1", None, &host);
        assert!(is_shared(&slice));
        serde_json::to_value(&slice.spec.devices.unwrap()[0]).unwrap()
    }

    #[test]
    fn a_capacity_of_none_has_no_step() {
        let device = shown("", 1, 0);
        let range = |name: &str| device["capacity"][name]["requestPolicy"]["validRange"].clone();
        assert_eq!(
            (range("cores"), range("ways")),
            (json!({"min": "0", "max": "1", "step": "1"}), json!({"min": "0", "max": "0"}))
        );
        assert_eq!(device["attributes"], json!({"minWays": {"int": 2}}));
    }

    #[test]
    fn a_long_name_of_a_processor_is_cut_between_letters() {
        let name = format!("{}é and more", "x".repeat(LONGEST - 1));
        assert_eq!(shown(&name, 8, 9)["attributes"]["cpu"]["string"], "x".repeat(LONGEST - 1));
        assert_eq!(shown("Example", 8, 9)["attributes"]["cpu"]["string"], "Example");
    }

    #[test]
    fn a_device_for_one_claim_alone_is_not_shared() {
        let host = Host { cpu: String::new(), cores: 1, ways: 1, min_ways: 1, way_bytes: None };
        let mut slice = slice("n1", None, &host);
        slice.spec.devices.as_mut().unwrap()[0].allow_multiple_allocations = None;
        assert!(!is_shared(&slice));
        slice.spec.devices = None;
        assert!(!is_shared(&slice));
    }
}
