//! Which packets pass which NFs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use sluice_api::config::{OnFailure, Run};

/// A chain of network functions, and the packets that enter it.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "ServiceChain",
    shortname = "chain",
    category = "sluice",
    namespaced,
    status = "ServiceChainStatus",
    derive = "PartialEq",
    doc = "A chain of network functions, and the packets that enter it.",
    printcolumn(name = "Services", type_ = "string", json_path = ".spec.services"),
    printcolumn(name = "Egress", type_ = "string", json_path = ".spec.egress"),
    printcolumn(name = "Accepted", type_ = "string", json_path = ".status.conditions[?(@.type=='Accepted')].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ServiceChainSpec {
    /// The NFs that packets pass, in order, by the names of NetworkFunctions in this namespace.
    #[schemars(length(max = 16), inner(length(max = 253)))]
    #[x_kube(
        validation = Rule::new("size(self) > 0").message("a chain without services has nothing to promise: name a NetworkFunction"),
        validation = Rule::new("self.all(one, self.exists_one(other, other == one))").message(
            "a service occurs twice: make another NetworkFunction with the same program"
        )
    )]
    pub services: Vec<String>,
    /// The packets that enter it: those that match any entry.
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("size(self) > 0").message("no packet enters the chain: write ingress: [{port: in}], for example"))]
    pub ingress: Vec<Match>,
    /// Port of the node where packets leave.
    pub egress: String,
    /// What happens when an NF of the chain dies.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Whether its NFs run in processes of their own, or all in one.
    #[serde(default)]
    pub run: Run,
}

/// Packets. All given keys must match.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "has(self.port) || has(self.vlan) || has(self.protocol) || has(self.src) || has(self.dst) || has(self.srcPort) || has(self.dstPort) \
         || has(self.dscp)"
    )
    .message("an entry without keys takes the packets of all tenants: name at least a port of the node")
)]
pub struct Match {
    /// Port of the node where packets enter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// VLAN id; 0 matches untagged packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4094))]
    pub vlan: Option<u16>,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, `ip`, `non-ip`, or a protocol number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Source prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<String>,
    /// Destination prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst: Option<String>,
    /// Source ports: `80` or `1000-2000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src_port: Option<String>,
    /// Destination ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<String>,
    /// DSCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 63))]
    pub dscp: Option<u8>,
}

/// What other objects make of a chain.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ServiceChainStatus {
    /// The last generation of the spec that this is about.
    pub observed_generation: Option<i64>,
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
