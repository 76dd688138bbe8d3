//! `sluice-cluster`: the commands of `sluice` with `--cluster`.
//!
//! `sluice` starts it, so that the client of one server has nothing of Kubernetes in it. It asks
//! the API server that kubectl asks, with the same kubeconfig and the same rights, and writes
//! nothing but what `sluice slo add` and `remove` are given.

mod add;
mod connect;
mod feed;
mod list;
mod manifest;
mod plan;
mod rows;
mod show;
mod top;
mod trouble;
mod world;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use sluice_cli::ending;
use sluice_cli::lab::plan::{PlanArgs, PlanCommand};
use sluice_cli::lab::slo::{SloArgs, SloCommand};
use sluice_cli::top::Top;
use sluice_cli::usage::Usage;

use connect::Cluster;

/// SLOs and nodes of a Kubernetes cluster; `sluice` starts it for its commands with `--cluster`
#[derive(Debug, Parser)]
#[command(name = "sluice-cluster", version, propagate_version = true)]
struct Cli {
    /// Of the daemon of one server, which is not asked
    #[arg(long = "socket", global = true, hide = true, value_name = "PATH")]
    _socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// SLOs: add, list, show and remove them
    Slo(SloArgs),
    /// Nodes, and the SLOs placed on them
    Plan(PlanArgs),
    /// Watch how nodes keep SLOs
    Top(Top),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    ending::after(|out| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot wait for answers")?;
        runtime.block_on(run(&cli.command, out))
    })
}

async fn run(command: &Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::Slo(args) if args.command.is_of_cluster() => slo(&args.command, out).await,
        Command::Plan(PlanArgs { command: PlanCommand::Show(args), .. }) if args.reach.cluster => {
            plan::show(&Cluster::connect(&args.reach).await?, args, out).await
        }
        Command::Top(args) if args.across.is_set() => top::run(args, out).await,
        _ => Err(Usage("sluice-cluster runs commands with `--cluster` alone: use sluice".into()).into()),
    }
}

async fn slo(command: &SloCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        SloCommand::Add(args) => add::run(args, out).await,
        SloCommand::List { live, json, across } => list::run(across, live.live, json.json, out).await,
        SloCommand::Show { name, live, json, within } => show::run(name, within, live.live, json.json, out).await,
        SloCommand::Remove { names, within } => add::remove(names, within, out).await,
        SloCommand::Apply { .. } | SloCommand::Withdraw(_) => Err(Usage("agents apply what the operator plans".into()).into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_of_one_server_is_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for line in ["sluice-cluster slo list", "sluice-cluster plan show", "sluice-cluster top", "sluice-cluster slo apply"] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert!(runtime.block_on(run(&cli.command, &mut Vec::new())).unwrap_err().is::<Usage>(), "{line}");
        }
    }
}
