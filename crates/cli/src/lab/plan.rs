//! `sluice plan`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sluice_cache::resctrl::MOUNT_POINT;

use crate::cluster::Reach;
use crate::usage::seconds;

/// Text of `sluice plan --help` below the options.
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
No daemon is needed. `sluice plan show --cluster` shows the nodes of a Kubernetes cluster.";

/// Default folder of the plan, for root.
const DEFAULT: &str = "/var/lib/sluice/plan";

#[derive(Debug, Clone, Args)]
pub struct PlanFolder {
    /// Folder of the plan: servers.toml, profiles/*.json and placement.json
    #[arg(long, value_name = "DIR", env = "SLUICE_PLAN", default_value = DEFAULT, global = true)]
    pub plan: PathBuf,
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub folder: PlanFolder,
    #[command(subcommand)]
    pub command: PlanCommand,
}

#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Create a plan with this host as its server
    #[command(after_help = INIT)]
    Init(InitArgs),
    /// Show servers as bars of cores and cache ways
    #[command(after_help = "\
A letter is an SLO on that server, `=` the class that instances without a class of their own share, `D` what DDIO writes to, `·` free.

With --cluster, servers are nodes, and those that have not taken over their plans are named with the reason.")]
    Show(ShowArgs),
    /// Find the least number of servers, and the steps to get there
    #[command(visible_alias = "optimize", after_help = OPTIMISE)]
    Optimise(OptimiseArgs),
    /// Take the next of the steps that `optimise --in-steps` has kept
    #[command(after_help = STEPS)]
    Step(StepArgs),
}

impl PlanCommand {
    /// Whether it asks a cluster.
    pub fn is_of_cluster(&self) -> bool {
        matches!(self, Self::Show(args) if args.reach.cluster)
    }
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Write a picture, and print nothing
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "svg")]
    pub json: bool,
    #[command(flatten)]
    pub reach: Reach,
}

/// Text of `sluice plan init --help` below the options.
const INIT: &str = "\
It writes servers.toml, which people keep from then on, and makes the folder `profiles`. Where the kernel gives no cache ways (`sluice doctor`
says why), the server has ddio_ways = 0, as profiles of the whole cache (`sluice profile --cache none`) ask for.";

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Name of the server, as `server` in `[promises]` of its configuration
    #[arg(long, value_name = "NAME", default_value = "s0")]
    pub server: String,
    /// Cores for NFs; all but one by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub cores: Option<u32>,
    /// Where resctrl is mounted
    #[arg(long, value_name = "PATH", default_value = MOUNT_POINT)]
    pub resctrl: PathBuf,
}

/// Text of `sluice plan optimise --help` below the options.
const OPTIMISE: &str = "\
Examples:
  sluice plan optimise                            how few servers would do, within a minute
  sluice plan optimise --limit 10 --threshold 3   ten seconds, and only if three servers or more are saved
  sluice plan optimise --leave-old                steps that leave old flows where they are until they end
  sluice plan optimise --apply                    write the end result into the plan
  sluice plan optimise --in-steps                 keep the steps, for `sluice plan step` to take one by one

The steps say how to get there with every promise kept at each: those that move nobody come first, new instances run before old ones stop.
--in-steps keeps them, and changes nothing yet. --apply writes their end result into the plan, and `sluice slo apply` has a daemon go over to
that at once, where new instances are ready before old ones go, and flows move. If time is out, the best answer counts that was found, with
how far it may be from the least; if none is better, the placement stays as it is.
A build with `--features optimiser` is needed.";

#[derive(Debug, Args)]
pub struct OptimiseArgs {
    /// Time limit of the solver
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    pub limit: f64,
    /// Servers that a new placement must save; otherwise nothing moves
    #[arg(long, value_name = "SERVERS", default_value_t = 1)]
    pub threshold: usize,
    /// In the steps, flows stay on an instance that is to go until they end; by default they move
    /// with the new flows
    #[arg(long)]
    pub leave_old: bool,
    /// Write the result into the plan as the new placement
    #[arg(long)]
    pub apply: bool,
    /// Keep the steps in the plan, for `sluice plan step` to take one by one
    #[arg(long, conflicts_with = "apply")]
    pub in_steps: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Text of `sluice plan step --help` below the options.
const STEPS: &str = "\
Examples:
  sluice plan optimise --in-steps       keep the steps, and change nothing yet; old flows stay until they end
  sluice plan step                      take the first of them: the placement is what it is after it
  sluice slo apply                      on each server that is named, so that its daemon goes over to that; then the next step

At each step every promise holds. A change of the plan in between (an SLO added or removed) makes the steps void: optimise again.";

#[derive(Debug, Args)]
pub struct StepArgs {
    /// Only print the next step
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
