//! What a node's plan has for pods.

use k8s_openapi::api::core::v1::Pod;

/// The place that a plan has for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name that the NF attaches by: its service, and its number among the instances of the SLO,
    /// such as `acme_ids/0`.
    pub nf: String,
    /// The SLO's name on the node, and so that of the folder with its socket.
    pub slo: String,
    /// The instance of the plan that the NF is of. The claims of its pods take no more of the node
    /// than it has, together.
    pub instance: String,
    /// Cores of the instance.
    pub cores: u32,
    /// Cache ways of the instance; 0 in the shared class.
    pub ways: u32,
}

/// What a node's plan has for pods.
pub trait Places: Send + Sync + 'static {
    /// The place of a pod.
    ///
    /// # Errors
    /// There is none: why, and what to do, in words.
    fn place(&self, pod: &Pod) -> Result<Place, String>;
}
