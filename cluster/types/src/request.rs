//! A wish for a profile.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A request for a profile: a node of the class that has no instances measures an NF or a chain.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "ProfileRequest",
    plural = "profilerequests",
    category = "sluice",
    namespaced,
    status = "ProfileRequestStatus",
    derive = "PartialEq",
    doc = "A request for a profile: a node of the class that has no instances measures an NF or a chain.",
    printcolumn(name = "NF", type_ = "string", json_path = ".spec.function"),
    printcolumn(name = "Chain", type_ = "string", json_path = ".spec.chain"),
    printcolumn(name = "Class", type_ = "string", json_path = ".spec.class"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.node"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.function) != has(self.chain)").message(
        "a profile is of an NF or of a chain: write one of the two, function: nat, for example"
    ),
    validation = Rule::new("self == oldSelf").message("a request is carried out once, as it was made: make another one")
)]
pub struct ProfileRequestSpec {
    /// The NetworkFunction in this namespace that is profiled, as it is when a node begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("size(self) > 0").message("function is empty: name a NetworkFunction of this namespace"))]
    pub function: Option<String>,
    /// The ServiceChain in this namespace that is profiled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("size(self) > 0").message("chain is empty: name a ServiceChain of this namespace"))]
    pub chain: Option<String>,
    /// The class of the node that measures: the value of its label sluice.dev/class.
    #[x_kube(
        validation = Rule::new("size(self) > 0").message("class is empty: name a class of nodes, the value of their label sluice.dev/class")
    )]
    pub class: String,
    /// The traffic, as an SLO names it.
    #[serde(default = "traffic")]
    #[schemars(length(max = 128))]
    #[x_kube(
        validation = Rule::new("self.matches('^[a-z]+=[0-9.]+(,[a-z]+=[0-9.]+)*$')").message(
            "traffic is settings with commas between them, such as size=60,flows=1000,zipf=1.1"
        )
    )]
    pub traffic: String,
    /// Source of throughput with fewer cache ways.
    #[serde(default)]
    pub cache: CacheSource,
    /// Whether there is to be a profile even if the node is too noisy; its notes say so.
    #[serde(default)]
    pub noisy: bool,
}

fn traffic() -> String {
    "size=60,flows=1000".into()
}

/// Source of throughput with fewer cache ways, as `--cache` of `sluice profile`.
#[derive(JsonSchema, Deserialize, Serialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub enum CacheSource {
    #[default]
    Auto,
    Resctrl,
    Simulated,
    None,
}

impl CacheSource {
    /// The word for it in a command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Resctrl => "resctrl",
            Self::Simulated => "simulated",
            Self::None => "none",
        }
    }
}

/// How far a request is.
#[derive(JsonSchema, Deserialize, Serialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Progress {
    /// It waits for a node of the class that has no instances.
    #[default]
    Pending,
    Running,
    Done,
    Failed,
}

/// What became of a request.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ProfileRequestStatus {
    #[serde(default)]
    pub state: Progress,
    /// The node that measures, or has measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The NFProfile that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Why there is none, and what to do.
    #[serde(default)]
    pub message: String,
    /// Nodes that have begun.
    #[serde(default)]
    pub attempts: i64,
}
