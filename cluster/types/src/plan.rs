//! What one node runs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use sluice_slo::assignment::Promised;
use sluice_slo::placement::PlacedServer;

use crate::chain::ServiceChainSpec;
use crate::function::NetworkFunctionSpec;

/// The plan of the node of the same name: written by the operator, taken over by the node.
///
/// # Fence
/// `term` grows with each operator that leads, `revision` with each change of this plan. The API
/// server refuses what an operator writes that no longer leads, once its successor has written.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "NodePlan",
    plural = "nodeplans",
    category = "sluice",
    status = "NodePlanStatus",
    derive = "PartialEq",
    doc = "The plan of the node of the same name: written by the operator, taken over by the node.",
    printcolumn(name = "Revision", type_ = "integer", json_path = ".spec.revision"),
    printcolumn(name = "Applied", type_ = "integer", json_path = ".status.appliedRevision"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Refused", type_ = "string", json_path = ".status.refused", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.term > oldSelf.term || (self.term == oldSelf.term && self.revision >= oldSelf.revision)").message(
        "an operator with a newer lease, or a later round of this one, has written this plan: read it again"
    )
)]
pub struct NodePlanSpec {
    /// Which operator wrote it: the transitions of the lease when it began to lead.
    pub term: i64,
    /// Counts the changes of this plan.
    pub revision: i64,
    /// The node with its instances, as `PUT /v1/placement` has it.
    pub server: PlacedServer,
    /// The SLOs of these instances. Their names, and those of services, are those on the node.
    #[serde(default)]
    pub slos: Vec<Promised>,
    /// The chain of each SLO.
    #[serde(default)]
    pub chains: Vec<PlannedChain>,
    /// The NFs of these chains.
    #[serde(default)]
    pub functions: Vec<PlannedFunction>,
}

/// The chain of an SLO on a node.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PlannedChain {
    /// Its name on the node: that of the SLO.
    pub name: String,
    /// The namespace of chain and SLO.
    pub namespace: String,
    /// The SLO's own name.
    pub slo: String,
    /// The services have their names on the node.
    pub chain: ServiceChainSpec,
}

/// An NF on a node.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PlannedFunction {
    /// Its name on the node.
    pub name: String,
    /// Its namespace, and so its tenant.
    pub namespace: String,
    /// Its own name.
    pub function: String,
    pub spec: NetworkFunctionSpec,
}

/// What the node made of its plan.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct NodePlanStatus {
    /// The last revision that the node has tried.
    #[serde(default)]
    pub observed_revision: i64,
    /// The last revision that it has taken over as a whole.
    #[serde(default)]
    pub applied_revision: i64,
    /// Why it does not take over the observed revision. What it had before goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// How its SLOs are kept.
    #[serde(default)]
    pub uses: Vec<Use>,
    /// What it has for NFs, as its agent finds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has: Option<Has>,
    /// Whether it profiles, and is to get no instances meanwhile.
    #[serde(default)]
    pub profiling: bool,
    /// What the node lacks for its promises, in words.
    #[serde(default)]
    pub notes: Vec<String>,
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// What a node has for NFs.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Has {
    /// The processor's model name.
    pub cpu: String,
    /// Cores that the daemon's configuration names.
    pub cores: u32,
    /// Ways of the last-level cache that the daemon can give; 0 if none.
    pub ways: u32,
    /// Memory of the whole node, in MiB; 0 if unknown.
    pub memory_mib: u64,
}

/// How an SLO is kept on a node.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Use {
    /// Its name on the node.
    pub slo: String,
    /// `new`, `kept`, `violated` or `exceeded`.
    pub state: String,
    /// Packets per second that came, with two digits.
    pub offered_pps: f64,
    /// Packets per second that its NFs completed, with two digits.
    pub delivered_pps: f64,
    /// 95th percentile of latency, in microseconds, with two digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
    /// Instances that it needs on this node, where it has no room for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4_294_967_295u32))]
    pub asks_for: Option<u32>,
}
