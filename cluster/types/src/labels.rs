//! Labels, the scheduling gate of pods that are instances of an SLO, and names that programs agree
//! on.

/// Gate of a pod that waits for its node. The operator takes it away when a plan has a place for
/// the pod.
pub const GATE: &str = "sluice.dev/placement";
/// Label of a pod: the SLO that it is an instance of, in its namespace. Written by what makes it.
pub const SLO: &str = "sluice.dev/slo";
/// Label of a pod: the network function that it runs. Written by what makes it.
pub const FUNCTION: &str = "sluice.dev/function";
/// Label of a pod: the number of its instance. Written by the operator.
pub const INSTANCE: &str = "sluice.dev/instance";
/// Label of a pod that the operator has made: what of the network function it was made of. Of
/// another image, there is another pod.
pub const TEMPLATE: &str = "sluice.dev/template";
/// Label of a lease: it is that of a node's agent, which renews it while it works.
pub const AGENT: &str = "sluice.dev/node-agent";
/// Annotation of a pod that waits at the gate in vain: why. Written by the operator.
pub const REFUSED: &str = "sluice.dev/refused";
/// Annotation of a pod that waits at the gate: the version that was read by an operator that did
/// not know what others had sent. Written by the operator.
pub const FENCE: &str = "sluice.dev/fence";

/// The name of the lease of a node's agent.
pub fn lease_of(node: &str) -> String {
    format!("node-{node}")
}
