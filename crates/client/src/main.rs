//! `sluice`: the operator's client of sluiced.
//!
//! Each command is one or two requests to the control socket and a way to show the answer; those of the lab are run by `sluice-lab`.
//! How the program ends is said in [`sluice_cli::ending`].

mod args;
mod commands;
mod doctor;
#[cfg(test)]
mod documents;
mod other;
mod show;
mod top;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    sluice_cli::ending::after(|out| commands::run(cli, out))
}
