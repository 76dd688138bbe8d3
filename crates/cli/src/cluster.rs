//! `--cluster`: a command asks a Kubernetes cluster, and `sluice-cluster` runs it.

use clap::Args;

/// Heading of these options in the help.
const HEADING: &str = "Options of a cluster";

/// Whether a cluster is asked, and which.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = HEADING)]
pub struct Reach {
    /// Ask the Kubernetes cluster that kubectl asks: of $KUBECONFIG, of ~/.kube/config, or the one
    /// of this pod
    #[arg(long)]
    pub cluster: bool,
    /// Context of the kubeconfig; by default its current one
    #[arg(long, value_name = "NAME", requires = "cluster")]
    pub context: Option<String>,
}

/// Whether a cluster is asked, and in which namespace.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = HEADING)]
pub struct Within {
    #[command(flatten)]
    pub reach: Reach,
    /// Namespace; by default that of the context
    #[arg(long, short, value_name = "NAME", requires = "cluster")]
    pub namespace: Option<String>,
}

/// Whether a cluster is asked, and in which namespaces.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = HEADING)]
pub struct Across {
    #[command(flatten)]
    pub within: Within,
    /// In all namespaces
    #[arg(long, short = 'A', requires = "cluster", conflicts_with = "namespace")]
    pub all_namespaces: bool,
}

impl Across {
    /// Whether a cluster is asked.
    pub fn is_set(&self) -> bool {
        self.within.reach.cluster
    }
}
