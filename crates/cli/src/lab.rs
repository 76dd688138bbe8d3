//! The commands that `sluice-lab` runs.

pub mod bench;
pub mod estimate;
pub mod pack;
pub mod plan;
pub mod profile;
pub mod simulate;
pub mod slo;
pub mod traffic;

use clap::Subcommand;

/// A command of the lab.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Run an experiment; without a name, list them
    #[command(after_help = bench::HELP)]
    Bench(bench::BenchArgs),
    /// Say what a configuration would carry on so many cores; nothing is started
    #[command(after_help = simulate::HELP)]
    Simulate(simulate::SimulateArgs),
    /// Measure what a packet costs an NF; no daemon is needed
    #[command(after_help = estimate::HELP)]
    Estimate(estimate::EstimateArgs),
    /// Measure what an NF or a chain can do: throughput against cache, latency against load; no daemon is needed
    #[command(after_help = profile::HELP)]
    Profile(profile::ProfileArgs),
    /// Put NFs on as few cores as their load needs
    #[command(after_help = pack::HELP)]
    Pack(pack::PackArgs),
    /// Promises to tenants: add, list, show and remove them, and have them kept
    #[command(after_help = slo::HELP)]
    Slo(slo::SloArgs),
    /// Servers and what is promised on them; on how few it could be kept
    #[command(after_help = plan::HELP)]
    Plan(plan::PlanArgs),
}
