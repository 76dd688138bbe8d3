//! `sluice-operator`: plans the SLOs of a cluster, and writes a plan for each node.
//!
//! It needs nothing but the API server: what it has decided is in the NodePlans, so that it can be
//! killed and started anywhere at any time. Several may run; the one with the lease acts.

mod access;
mod agents;
mod args;
mod backoff;
mod feed;
mod jobs;
mod lease;
mod news;
mod optimise;
mod order;
mod pod;
mod pulse;
mod run;
mod write;
mod writer;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};

use crate::args::RunArgs;

/// Plans the SLOs of a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Plan until stopped. The API server is that of the pod, or of $KUBECONFIG.
    Run(RunArgs),
    /// See whether an operator is at work: a probe of its pod, which is restarted if it is not.
    Alive {
        /// The file that it writes.
        #[arg(long, value_name = "FILE")]
        beat: PathBuf,
    },
    /// See whether it is also let do what it has to: the other probe.
    Ready {
        /// The file that it writes.
        #[arg(long, value_name = "FILE")]
        beat: PathBuf,
    },
    /// Print the definitions of the custom resources.
    Crds {
        /// Write a file for each into this folder instead.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
    },
}

fn crds(out: Option<PathBuf>) -> anyhow::Result<()> {
    for crd in sluice_cluster_types::crds() {
        let (file, text) = sluice_cluster_types::manifest(&crd).context("a definition cannot be written as YAML")?;
        match &out {
            None => print!("---\n{text}"),
            Some(folder) => {
                let path = folder.join(file);
                std::fs::write(&path, text).with_context(|| format!("cannot write {}; does the folder exist?", path.display()))?;
            }
        }
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Crds { out } => crds(out),
        Command::Alive { beat } => sluice_access::beat::read(&beat, write::MANAGER).map(drop),
        Command::Ready { beat } => sluice_access::beat::read(&beat, write::MANAGER)?.has_access(),
        Command::Run(args) => {
            let filter = tracing_subscriber::EnvFilter::try_from_env("SLUICE_LOG").unwrap_or_else(|_| "info".into());
            tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(run::run(&args))
        }
    }
}
