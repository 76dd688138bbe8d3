//! The objects as last read.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node as KubeNode;
use sluice_cluster_types::{NetworkFunction, NfProfile, NodePlan, ServerClass, ServiceChain, Slo};

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What matters of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    pub labels: BTreeMap<String, String>,
    /// Whether its kubelet reports that it is ready.
    pub is_ready: bool,
    /// Whether it is to get no more pods, as before it is drained.
    pub is_cordoned: bool,
    /// Whether its agent is at work and reaches its daemon.
    pub is_served: bool,
}

impl From<&KubeNode> for Node {
    fn from(node: &KubeNode) -> Self {
        let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        Self {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            is_ready: conditions.any(|one| one.type_ == "Ready" && one.status == "True"),
            is_cordoned: node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)),
            // Its lease says so.
            is_served: false,
        }
    }
}

/// What matters of a pod with the labels of an SLO.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// Its SLO, in its namespace.
    pub slo: String,
    pub function: String,
    /// Its identity: another pod may come to have its name.
    pub uid: String,
    /// The instance that it has been bound to.
    pub instance: Option<u32>,
    /// The node of that instance when it was bound.
    pub node: Option<String>,
    /// Whether it waits at the gate.
    pub is_gated: bool,
    /// Whether it has ended, or is being deleted.
    pub is_ending: bool,
    /// Whether its containers run and are ready.
    pub is_ready: bool,
    /// Why it is not bound, as its annotation says.
    pub refused: Option<String>,
    /// What matters besides, if the operator has made it.
    pub made: Option<Made>,
}

/// What matters of a pod that the operator has made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Made {
    /// The identity of its SLO.
    pub owner: String,
    /// What of its NF it was made of.
    pub template: String,
    /// Whether it has ended, and is not being deleted.
    pub has_ended: bool,
}

/// The objects as last read. A change of nodes, classes, profiles, chains or functions also raises
/// `epoch`: what was refused is tried again then.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub nodes: BTreeMap<String, Node>,
    pub classes: BTreeMap<String, ServerClass>,
    pub functions: BTreeMap<Key, NetworkFunction>,
    pub chains: BTreeMap<Key, ServiceChain>,
    pub slos: BTreeMap<Key, Slo>,
    pub profiles: BTreeMap<Key, NfProfile>,
    pub plans: BTreeMap<String, NodePlan>,
    pub pods: BTreeMap<Key, Pod>,
    /// Why the API server does not take a node's plan, in words that say what to do.
    pub denied_plans: BTreeMap<String, String>,
    /// The same of what was decided about a pod, with its SLO; also of one that cannot be made.
    pub denied_pods: BTreeMap<Key, (Key, String)>,
    pub epoch: u64,
}
