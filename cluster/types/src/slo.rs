//! What is promised to a chain or an NF.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use sluice_slo::slo::{Cap, Promise};

use crate::chain::Match;

/// A service level objective: what is promised to a chain or an NF.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "SLO",
    root = "Slo",
    plural = "slos",
    category = "sluice",
    namespaced,
    status = "SloStatus",
    derive = "PartialEq",
    doc = "A service level objective: what is promised to a chain or an NF.",
    printcolumn(name = "Chain", type_ = "string", json_path = ".spec.chain"),
    printcolumn(name = "NF", type_ = "string", json_path = ".spec.function"),
    printcolumn(name = "Promised", type_ = "string", json_path = ".status.promised"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Instances", type_ = "integer", json_path = ".status.instances"),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.nodes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Why", type_ = "string", json_path = ".status.why", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.reserved) != has(self.onDemand)").message(
        "an SLO is reserved or on demand: write one of the two, reserved: {throughputPps: 1000000, latencyUs: 100}, for example"
    ),
    validation = Rule::new("!has(self.reserved) || (has(self.traffic) && size(self.traffic) > 0)").message(
        "a reserved SLO is admitted by a profile with the same traffic: write traffic as the NFProfile has it"
    ),
    validation = Rule::new("!has(self.reserved) || !has(self.footprint)").message(
        "the profile says what an instance of a reserved SLO takes: leave footprint out"
    ),
    // `function` is a reserved word of CEL.
    validation = Rule::new("has(self.chain) != has(self.__function__)").message(
        "an SLO is of a chain or of an NF: write one of the two, chain: web, for example"
    ),
    validation = Rule::new("has(self.__function__) == has(self.ingress) && has(self.__function__) == has(self.egress)").message(
        "an SLO of an NF says which packets it gets and where they leave: write ingress: [{port: in}] and egress: out; a chain has its own"
    ),
    validation = Rule::new("has(self.chain) == has(oldSelf.chain) && (!has(self.chain) || self.chain == oldSelf.chain)").message(
        "an SLO stays with its chain: delete this one, and make another for the other chain"
    ),
    validation = Rule::new("!has(self.__function__) || !has(oldSelf.__function__) || self.__function__ == oldSelf.__function__").message(
        "an SLO stays with its NF: delete this one, and make another for the other NF"
    )
)]
pub struct SloSpec {
    /// The ServiceChain in this namespace. A chain has one SLO at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("size(self) > 0").message("chain is empty: name a ServiceChain of this namespace"))]
    pub chain: Option<String>,
    /// In place of a chain: the NetworkFunction in this namespace that is a chain by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("size(self) > 0").message("function is empty: name a NetworkFunction of this namespace"))]
    pub function: Option<String>,
    /// Of an NF: the packets that it gets, those that match any entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("size(self) > 0").message("no packet enters the NF: write ingress: [{port: in}], for example"))]
    pub ingress: Vec<Match>,
    /// Of an NF: port of the node where packets leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
    /// The traffic, as the NFProfile has it. Not needed on demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<String>,
    /// Throughput and latency, kept whatever others do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Reserved>,
    /// Latency only, as far as what is not reserved allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_demand: Option<OnDemand>,
    /// What an instance on demand takes of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub footprint: Option<Footprint>,
}

/// A reserved throughput.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Reserved {
    /// Packets per second.
    #[x_kube(validation = Rule::new("self > 0.0").message("a throughput is above 0: write packets per second, such as 1000000"))]
    pub throughput_pps: f64,
    /// 95 % of the packets leave within this many microseconds.
    #[x_kube(validation = Rule::new("self > 0.0").message("a latency is above 0: write microseconds, such as 100"))]
    pub latency_us: f64,
}

/// A latency up to a cap.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.mostInstances) || has(self.mostPps)").message(
        "an SLO on demand has a cap, where the promise ends: write mostInstances: 4, mostPps: 2000000, or both"
    )
)]
pub struct OnDemand {
    /// 95 % of the packets leave within this many microseconds.
    #[x_kube(validation = Rule::new("self > 0.0").message("a latency is above 0: write microseconds, such as 100"))]
    pub latency_us: f64,
    /// Most instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 256").message("mostInstances is 1 to 256"))]
    pub most_instances: Option<i64>,
    /// Highest load of all instances together, in packets per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self > 0.0").message("mostPps is above 0: write packets per second, such as 2000000"))]
    pub most_pps: Option<f64>,
}

/// What an instance on demand takes of a node.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Footprint {
    /// Cores.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 256))]
    pub cores: u32,
    /// Memory, in MiB.
    #[serde(default = "tables")]
    #[schemars(range(min = 1, max = 1 << 20))]
    pub memory_mib: u32,
}

fn one() -> u32 {
    1
}

/// Enough for tables of medium size.
fn tables() -> u32 {
    64
}

impl Default for Footprint {
    fn default() -> Self {
        Self { cores: one(), memory_mib: tables() }
    }
}

/// What became of an SLO.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct SloStatus {
    /// The last generation of the spec that this is about.
    pub observed_generation: Option<i64>,
    /// `refused`, `degraded` (some of its instances are missing), `admitted` (nodes do not run it
    /// yet), `ready`, or as the nodes measure: `kept`, `violated`, `exceeded`.
    #[serde(default)]
    pub state: String,
    /// What is promised, in words.
    #[serde(default)]
    pub promised: String,
    /// Instances in plans.
    #[serde(default)]
    pub instances: i64,
    /// Their nodes.
    #[serde(default)]
    pub nodes: String,
    /// Why it is not as it should be, and what to do.
    #[serde(default)]
    pub why: String,
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl SloSpec {
    /// The name of the chain or of the NF that it is of.
    pub fn subject(&self) -> &str {
        self.chain.as_deref().or(self.function.as_deref()).unwrap_or_default()
    }

    /// What is promised; none if the spec has both kinds or none, which the API server refuses.
    pub fn promise(&self) -> Option<Promise> {
        match (&self.reserved, &self.on_demand) {
            (Some(Reserved { throughput_pps, latency_us }), None) => {
                Some(Promise::Reserved { throughput_pps: *throughput_pps, latency_us: *latency_us })
            }
            (None, Some(OnDemand { latency_us, most_instances, most_pps })) => {
                let instances = most_instances.map(|most| u32::try_from(most).unwrap_or(0));
                Some(Promise::OnDemand { latency_us: *latency_us, cap: Cap { instances, load_pps: *most_pps } })
            }
            _ => None,
        }
    }
}
