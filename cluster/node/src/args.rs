//! How the agent runs.

use std::path::PathBuf;

use clap::Parser;

/// Has a server's daemon keep the plan of its node.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub struct Args {
    /// Name of the node, and so of its NodePlan.
    #[arg(long, env = "NODE_NAME")]
    pub node: String,
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
}
