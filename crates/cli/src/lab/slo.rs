//! `sluice slo`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::plan::PlanFolder;
use crate::cluster::{Across, Within};
use crate::usage::Json;

/// Text of `sluice slo --help` below the options.
pub const HELP: &str = "\
Examples:
  sluice slo add --dry-run acme.toml    would it fit, and where?
  sluice slo add acme.toml              promise it: instances, cache ways, cores and servers
  sluice slo list
  sluice slo remove acme
  sluice slo apply                      have the running sluiced keep what is placed on its server
  sluice slo list --live                and see how it is kept, and which tenant breaks it

An SLO is a file of TOML or JSON:
  name = \"acme\"
  workload = { nf = \"nat\" }               or { chain = [\"firewall\", \"nat\"] }
  traffic = \"size=60,flows=1000\"          as its profile names it
  promise = { reserved = { throughput_pps = 2e6, latency_us = 80 } }
                                          or { on_demand = { latency_us = 80, cap = { instances = 4, load_pps = 2e6 } } }
On demand, no profile and no traffic are needed, and footprint = { cores = 1, memory_mib = 64 } says what an instance takes.
The latency is that of 95 % of the packets. `configuration`, the digest in the profile, is needed only where several are profiled.
What runs already is not moved. `sluice plan` shows the servers. Only apply, withdraw and --live need a daemon.

With --cluster, add, list, show and remove are of a Kubernetes cluster, whose operator plans and whose agents apply:
  sluice slo add --cluster --dry-run web.yaml    would it fit, and where?
  sluice slo list --cluster -A
  sluice slo show web --cluster -n acme";

#[derive(Debug, Args)]
pub struct SloArgs {
    #[command(flatten)]
    pub folder: PlanFolder,
    #[command(subcommand)]
    pub command: SloCommand,
}

#[derive(Debug, Subcommand)]
pub enum SloCommand {
    /// Add SLOs if there is capacity: all of them, or none
    #[command(after_help = "\
Examples:
  sluice slo add acme.toml
  sluice slo add --binary nat=/usr/libexec/sluice/sluice-nf-nat acme.toml
                                        and be sure that the profile is of this program
  sluice slo add --json web.toml dns.toml | jq '.refused[].nearest'

Without enough capacity nothing changes, and the nearest promise that would fit is shown.

With --cluster, the files are manifests, as `kubectl apply` takes them: of SLOs, and of the NetworkFunctions, ServiceChains and NFProfiles
that they need. The API server checks them, and they are planned as the operator would, before anything is written:
  sluice slo add --cluster --dry-run web.yaml
  sluice slo add --cluster web.yaml")]
    Add(AddArgs),
    /// List the SLOs
    #[command(after_help = "\
Examples:
  sluice slo list
  sluice slo list --live                how the running daemon keeps them
  sluice slo list --cluster -n acme     those of a namespace
  sluice slo list --cluster -A --live   how nodes keep them, and a line for each change, until Ctrl-C")]
    List {
        #[command(flatten)]
        live: Live,
        #[command(flatten)]
        json: Json,
        #[command(flatten)]
        across: Across,
    },
    /// Show one SLO and its instances
    Show {
        /// The SLO
        name: String,
        #[command(flatten)]
        live: Live,
        #[command(flatten)]
        json: Json,
        #[command(flatten)]
        within: Within,
    },
    /// Have the running daemon apply the SLOs that are placed on its server
    #[command(after_help = "\
Each SLO is kept by the chain of its name, which the daemon's configuration defines: its rules and its egress, and services that say what
runs. Section [promises] says which cores a placement counts, and by what means promises are kept. A placement that cannot be kept changes
nothing.

Examples:
  sluice slo apply                      the server is the one that [promises] names
  sluice slo apply --server s0")]
    Apply {
        /// Server of the plan that the daemon is; by default the one that its configuration names
        #[arg(long, value_name = "NAME")]
        server: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Have the running daemon drop all SLOs: chains are as its configuration says
    Withdraw(Json),
    /// Remove SLOs, and free what their instances have
    #[command(visible_alias = "rm")]
    Remove {
        /// The SLOs
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        within: Within,
    },
}

impl SloCommand {
    /// Whether it asks a cluster.
    pub fn is_of_cluster(&self) -> bool {
        match self {
            Self::Add(args) => args.within.reach.cluster,
            Self::List { across, .. } => across.is_set(),
            Self::Show { within, .. } | Self::Remove { within, .. } => within.reach.cluster,
            Self::Apply { .. } | Self::Withdraw(_) => false,
        }
    }
}

/// Report from the daemon instead of the plan.
#[derive(Debug, Clone, Copy, Args)]
pub struct Live {
    /// Show how the running daemon meets it: rates, latency, CPU, cache, and the cause of
    /// violations. Of a cluster: how its nodes meet it, and each change, until Ctrl-C
    #[arg(long)]
    pub live: bool,
}

// `-n` is its dry run, so the namespace has no letter here.
#[derive(Debug, Args)]
#[command(mut_arg("namespace", |arg| arg.short(None::<char>)))]
pub struct AddArgs {
    /// Files of one SLO each, TOML or JSON, or manifests of a cluster; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Program that runs as an NF: a profile of another one is refused; repeatable
    #[arg(long = "binary", value_name = "NF=FILE", conflicts_with = "cluster")]
    pub binaries: Vec<String>,
    /// Print the outcome, and change nothing
    #[arg(long, short = 'n')]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub within: Within,
}
