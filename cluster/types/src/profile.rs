//! What an NF or a chain can do.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use sluice_slo::profile::Profile;

/// A profile: what an instance of an NF or of a chain can do on a processor.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "NFProfile",
    root = "NfProfile",
    plural = "nfprofiles",
    category = "sluice",
    namespaced,
    status = "NfProfileStatus",
    derive = "PartialEq",
    doc = "A profile: what an instance of an NF or of a chain can do on a processor.",
    printcolumn(name = "NF", type_ = "string", json_path = ".spec.profile.key.workload.nf"),
    printcolumn(name = "Chain", type_ = "string", json_path = ".spec.profile.key.workload.chain"),
    printcolumn(name = "Traffic", type_ = "string", json_path = ".spec.profile.key.traffic"),
    printcolumn(name = "Processor", type_ = "string", json_path = ".spec.profile.key.cpu"),
    printcolumn(name = "Source", type_ = "string", json_path = ".spec.profile.source"),
    printcolumn(name = "SLOs", type_ = "integer", json_path = ".status.slos"),
    printcolumn(name = "Accepted", type_ = "string", json_path = ".status.conditions[?(@.type=='Accepted')].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = Rule::new("self == oldSelf").message("a profile is what was measured: make another one; of two for the same, the newer counts")
)]
pub struct NfProfileSpec {
    /// The file that `sluice profile --out FILE` writes.
    pub profile: Profile,
}

/// What a profile is good for.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct NfProfileStatus {
    /// The last generation of the spec that this is about.
    pub observed_generation: Option<i64>,
    /// SLOs that are planned by it.
    #[serde(default)]
    pub slos: i64,
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
