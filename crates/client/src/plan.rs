//! `sluice plan`: the servers of a plan, and on how few of them its promises could be kept.

mod bars;
pub mod folder;
mod init;
mod optimise;
pub mod profiles;
mod steps;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::table::colour;
use crate::usage::json;
use folder::{Folder, Plan};

/// What `sluice plan --help` says below the options.
pub const HELP: &str = "\
Examples:
  sluice plan init                      servers.toml for this host
  sluice plan show                      servers as bars of cores and cache ways
  sluice plan show --svg plan.svg       the same as a picture
  sluice plan optimise                  how few servers would do, and the steps to get there
  sluice plan optimise --apply          and take the end of them as the new placement
  sluice plan optimise --in-steps       or keep them, and take one after the other:
  sluice plan step

A plan is a folder with servers.toml, a folder `profiles` of JSON files, and placement.json, which `sluice slo` writes.
servers.toml has for each server, which is what shares one last-level cache:
  [[server]]
  name = \"s0\"
  cpu = \"Intel(R) Xeon(R) Gold 6138 CPU @ 2.00GHz\"   as /proc/cpuinfo says, and the profiles
  cores = 9                cores that NFs may have
  llc_ways = 11            ways of the last-level cache
  way_bytes = 2883584      bytes of one way
  ddio_ways = 2            ways that DDIO writes to, which are the system's too: with cache classes, min_ways or more;
                           0 where SLOs are admitted by profiles of the whole cache (--cache none)
  min_ways = 1             least ways of a class
  classes = 16             classes (CLOS), the system's own included
  memory_mib = 65536       memory that NFs may have
  path_us = 30             what packets take beside NFs, from port to port, 99.9 % of them at most; 0 if left out
No daemon is needed.";

/// Arguments of `sluice plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    folder: Folder,
    /// What to do
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// Begin a plan: this host as its server
    #[command(after_help = init::HELP)]
    Init(init::InitArgs),
    /// Show servers as bars of cores and cache ways
    #[command(after_help = "\
A letter is an SLO on that server, `=` the class that instances without a class of their own share, `D` what DDIO writes to, `·` free.")]
    Show(ShowArgs),
    /// Find the least number of servers, and the steps to get there
    #[command(visible_alias = "optimize", after_help = optimise::HELP)]
    Optimise(optimise::OptimiseArgs),
    /// Take the next of the steps that `optimise --in-steps` has kept
    #[command(after_help = steps::HELP)]
    Step(steps::StepArgs),
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Write a picture, and print nothing
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "svg")]
    json: bool,
}

/// A plan, as it is told.
#[derive(Serialize)]
struct TellPlan<'a> {
    slos: &'a [folder::Admitted],
    servers: &'a [sluice_slo::placement::PlacedServer],
}

/// Runs a command.
pub fn run(args: &PlanArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    match &args.command {
        PlanCommand::Init(init) => init::run(&args.folder, init, out),
        PlanCommand::Show(show) => self::show(&args.folder.read()?, show, out),
        PlanCommand::Optimise(optimise) => optimise::run(&args.folder, optimise, out),
        PlanCommand::Step(step) => steps::run(&args.folder, step, out),
    }
}

fn show(plan: &Plan, args: &ShowArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if args.json {
        return json(out, &TellPlan { slos: &plan.slos, servers: &plan.placement.servers });
    }
    let Some(path) = &args.svg else { return bars::print(plan, colour(), out) };
    std::fs::write(path, bars::svg(plan)?).with_context(|| format!("cannot write {}", path.display()))
}
