//! `sluice`: the operator's client of sluiced.
//!
//! Each command is one or two requests to the control socket and a display of the answer;
//! `sluice-lab` runs those of the lab. [`sluice_cli::ending`] describes how the program ends.

mod args;
mod capture;
mod commands;
mod doctor;
#[cfg(test)]
mod documents;
mod drops;
mod filter;
mod flows;
mod header;
mod init;
mod man;
mod needs;
mod other;
mod output;
mod record;
mod replay;
mod revise;
mod save;
mod show;
#[cfg(test)]
#[path = "../../host/src/skip.rs"]
mod skip;
mod top;
mod upgrade;
mod values;
mod why;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    sluice_host::static_names::use_built_in();
    let cli = args::Cli::parse();
    sluice_cli::ending::after(|out| commands::run(cli, out))
}
