//! What nodes have for NFs.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use sluice_slo::placement::ServerShape;

/// A class of servers: what the nodes with these labels have for NFs.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "ServerClass",
    plural = "serverclasses",
    category = "sluice",
    status = "ServerClassStatus",
    derive = "PartialEq",
    doc = "A class of servers: what the nodes with these labels have for NFs.",
    printcolumn(name = "Processor", type_ = "string", json_path = ".spec.cpu"),
    printcolumn(name = "Cores", type_ = "integer", json_path = ".spec.cores"),
    printcolumn(name = "Ways", type_ = "integer", json_path = ".spec.llcWays"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(name = "Fitting", type_ = "integer", json_path = ".status.fitting"),
    printcolumn(name = "Accepted", type_ = "string", json_path = ".status.conditions[?(@.type=='Accepted')].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.llcWays >= self.ddioWays + self.minWays").message(
        "nothing of the cache is left for NFs: llcWays is at least ddioWays and minWays together; sluice doctor shows all three"
    )
)]
pub struct ServerClassSpec {
    /// Labels that a node of this class has, all of them. Of several classes that select a node,
    /// the one with most labels counts, then the first by name.
    #[x_kube(validation = Rule::new("size(self) > 0").message("a class without labels takes every node: label those with sluiced, and name the label"))]
    pub node_selector: BTreeMap<String, String>,
    /// The processor's model name, as `sluice doctor` reports it.
    pub cpu: String,
    /// Cores for NFs: as many as `cores` in `[promises]` of sluiced names.
    #[schemars(range(min = 1, max = 4096))]
    pub cores: u32,
    /// Ways of the last-level cache.
    #[schemars(range(min = 1, max = 64))]
    pub llc_ways: u32,
    /// Bytes of a way.
    pub way_bytes: u64,
    /// Ways that devices write packets into.
    #[serde(default)]
    #[schemars(range(max = 64))]
    pub ddio_ways: u32,
    /// Least ways of a class of the cache.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub min_ways: u32,
    /// Classes of the cache, the system's own included.
    #[schemars(range(min = 2, max = 4096))]
    pub classes: u32,
    /// Memory for NFs, in MiB.
    #[schemars(range(min = 1))]
    pub memory_mib: u64,
    /// Time from port to port besides the NFs, which one packet in a thousand exceeds at most, in
    /// microseconds.
    #[serde(default)]
    #[schemars(range(max = 1_000_000))]
    pub path_us: u32,
}

fn one() -> u32 {
    1
}

/// What nodes make of a class.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ServerClassStatus {
    /// The last generation of the spec that this is about.
    pub observed_generation: Option<i64>,
    /// Nodes of this class.
    #[serde(default)]
    pub nodes: i64,
    /// Nodes of these that have what it says, as far as they report.
    #[serde(default)]
    pub fitting: i64,
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl ServerClassSpec {
    pub fn shape(&self) -> ServerShape {
        ServerShape {
            cpu: self.cpu.clone(),
            cores: self.cores,
            llc_ways: self.llc_ways,
            way_bytes: self.way_bytes,
            ddio_ways: self.ddio_ways,
            min_ways: self.min_ways,
            classes: self.classes,
            memory_mib: self.memory_mib,
            path_us: self.path_us,
        }
    }
}
