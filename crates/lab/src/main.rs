//! `sluice-lab`: experiments, measurements, simulation and planning.
//!
//! `sluice` starts it for its commands `bench`, `simulate`, `estimate`, `profile`, `pack`, `slo`
//! and `plan`. So the client needs no experiments and no solver.

mod bench;
mod estimate;
#[cfg(test)]
#[path = "../../api/src/in_the_tree.rs"]
#[expect(dead_code, reason = "the lab makes no page of the book")]
mod in_the_tree;
mod pack;
mod plan;
mod profile;
mod simulate;
#[cfg(test)]
#[path = "../../host/src/skip.rs"]
mod skip;
mod slo;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sluice_api::DEFAULT_SOCKET;
use sluice_api::client::Client;
use sluice_cli::ending;
use sluice_cli::lab::LabCommand;
use sluice_cli::usage::Usage;

/// Measure NFs, simulate configurations, plan servers and run experiments; `sluice` starts it for
/// its commands of the same names
#[derive(Debug, Parser)]
#[command(name = "sluice-lab", version, propagate_version = true)]
struct Cli {
    /// Control socket of the daemon
    #[arg(long, global = true, value_name = "PATH", env = "SLUICE_CONTROL", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Shared(Box<LabCommand>),
    /// An NF that breaks the rules, for `sluice bench chaos`
    #[command(hide = true)]
    HostileNf {
        /// Mode
        mode: String,
        /// Words by which its processes are found
        words: Vec<String>,
    },
    /// An NF with a packet socket of its own, for `sluice bench nf-sockets`
    #[command(hide = true)]
    SocketNf {
        /// Interface
        interface: String,
        /// Slots of the socket's ring
        slots: u32,
        /// Cycles for a packet
        cycles: u64,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    ending::after(|out| run(&cli, out))
}

fn run(cli: &Cli, out: &mut dyn Write) -> anyhow::Result<()> {
    let client = || Client::new(&cli.socket);
    match &cli.command {
        Command::HostileNf { mode, .. } => bench::chaos::hostile::run(mode),
        Command::SocketNf { interface, slots, cycles } => bench::pools::sockets::run_nf(interface, *slots, *cycles),
        Command::Shared(command) if command.is_of_cluster() => {
            Err(Usage("`--cluster` is of `sluice`, which starts sluice-cluster for it".into()).into())
        }
        Command::Shared(command) => match command.as_ref() {
            LabCommand::Bench(args) => bench::run(args, out),
            LabCommand::Simulate(args) => simulate::command::run(args, client, out),
            LabCommand::Estimate(args) => estimate::command::run(args, out),
            LabCommand::Profile(args) => profile::command::run(args, out),
            LabCommand::Pack(args) => pack::command::run(args, &mut client()?, out),
            LabCommand::Slo(args) => slo::run(args, client, out),
            LabCommand::Plan(args) => plan::run(args, out),
        },
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
}
