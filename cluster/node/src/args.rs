//! How the agent runs.

use std::path::PathBuf;

use clap::Parser;

use crate::pulse::Probe;

/// Has a server's daemon keep the plan of its node.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub struct Args {
    /// Name of the node, and so of its NodePlan.
    #[arg(long, env = "NODE_NAME")]
    pub node: String,
    /// Namespace of the operator, where the lease of this agent is.
    #[arg(long, env = "SLUICE_NAMESPACE", default_value = "sluice-system")]
    pub namespace: String,
    /// Control socket of sluiced.
    #[arg(long, env = "SLUICE_CONTROL", default_value = "/run/sluice/control.sock")]
    pub socket: PathBuf,
    /// Configuration of this server without a plan: the file that sluiced was started with. It has
    /// the ports and the cores; the plan adds services, chains and rules.
    #[arg(long, default_value = "/etc/sluice/sluice.toml")]
    pub base: PathBuf,
    /// File of the last plan that the daemon has taken over.
    #[arg(long, default_value = "/var/lib/sluice/node-plan.json")]
    pub kept: PathBuf,
    /// Class of the node, whose ProfileRequests it carries out while its plan has no instances.
    /// Left out: none.
    #[arg(long)]
    pub class: Option<String>,
    /// The program that profiles: `sluice`, beside which is sluice-lab.
    #[arg(long, value_name = "PROGRAM", default_value = "sluice")]
    pub profiler: PathBuf,
    /// Run the driver of dynamic resource allocation: pods may claim the cores and cache ways of
    /// their instances.
    #[arg(long)]
    pub dra: bool,
    /// The kubelet's folder, by the same path as on the host. With --dra.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub kubelet: PathBuf,
    /// Folder of CDI files that the container runtime reads. With --dra.
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    pub cdi: PathBuf,
    /// File that the agent writes every few seconds, for --probe.
    #[arg(long, value_name = "FILE")]
    pub beat: Option<PathBuf>,
    /// Only see by the file of --beat how the agent is that writes it, and end.
    #[arg(long, requires = "beat")]
    pub probe: Option<Probe>,
}
