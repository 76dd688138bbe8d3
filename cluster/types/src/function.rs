//! What an NF is.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// A network function: a program of the node's daemon, or pods.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Eq, Default)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "NetworkFunction",
    shortname = "nf",
    category = "sluice",
    namespaced,
    status = "NetworkFunctionStatus",
    derive = "PartialEq",
    doc = "A network function: a program of the node's daemon, or pods.",
    printcolumn(name = "Runs", type_ = "string", json_path = ".spec.exec"),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.current"),
    printcolumn(name = "RolledOut", type_ = "string", json_path = ".status.conditions[?(@.type=='RolledOut')].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.exec) || !has(self.image)").message(
        "an NF is a program of the node, or pods of an image: write one of exec and image"
    ),
    validation = Rule::new("has(self.exec) || has(self.image) || (!has(self.args) && !has(self.env) && !has(self.resources))").message(
        "args, env and resources are of a program or an image: name it in exec or image; pods that others make have them in their template"
    ),
    validation = Rule::new("has(self.image) || !has(self.command)").message(
        "command is what runs of an image: name that in image; what runs of a node is in exec"
    ),
    validation = Rule::new("has(self.exec) || !has(self.zygote) || !self.zygote").message(
        "zygote is of a program on the node, which the daemon forks: name it in exec; pods are started as they are"
    ),
    validation = Rule::new("has(self.exec) || !has(self.storage) || !self.storage").message(
        "storage is of a program on the node, which has a filter: name it in exec; what a pod may do, its runtime says"
    ),
    validation = Rule::new("has(self.exec) || !has(self.resources) || !has(self.resources.pids)").message(
        "pids bounds a program of the node: name it in exec; those of pods, their kubelet bounds (podPidsLimit)"
    )
)]
pub struct NetworkFunctionSpec {
    /// Program of an instance, on the node: a path, or a bare name, which sluiced searches for in
    /// its own folder and in PATH. Left out, without an image: instances are pods that others make,
    /// with the labels sluice.dev/slo and sluice.dev/function, and the scheduling gate
    /// sluice.dev/placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("size(self) > 0").message("exec is empty: name a program, such as sluice-nf-nat"))]
    pub exec: Option<String>,
    /// Image of a container: the operator makes a pod of it for each instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("size(self) > 0").message("image is empty: name one, such as localhost/sluice:0.1.0"))]
    pub image: Option<String>,
    /// What runs of the image, with its first arguments. Left out: what the image says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub command: Vec<String>,
    /// Arguments of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub args: Vec<String>,
    /// Environment of the program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Its name in profiles. Left out: its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiled_as: Option<String>,
    /// What an instance may take at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Whether it keeps state beyond its process by the library's storage, and so needs io_uring,
    /// which the filter of system calls then allows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub storage: bool,
    /// Whether instances are forked from a process that has made the handler (a zygote). They start
    /// fast and share unchanged memory. For programs in callback style that have one thread when
    /// the handler is made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zygote: bool,
}

/// What an instance may take at most.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Most memory, in MiB: its own, and shared memory that it touches first. Above that the kernel
    /// kills it. Left out: the host's. A pod of an image requests it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1 << 24))]
    pub memory_mib: Option<u32>,
    /// Most processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_194_304))]
    pub pids: Option<u32>,
}

/// Where an NF runs.
#[derive(KubeSchema, Deserialize, Serialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct NetworkFunctionStatus {
    /// The last generation of the spec that this is about.
    pub observed_generation: Option<i64>,
    /// Nodes whose plan has it.
    #[serde(default)]
    pub nodes: i64,
    /// Nodes of these that run its last change.
    #[serde(default)]
    pub current: i64,
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl NetworkFunction {
    /// Its name in profiles.
    pub fn profiled_as(&self) -> &str {
        self.spec.profiled_as.as_deref().or(self.metadata.name.as_deref()).unwrap_or_default()
    }
}
