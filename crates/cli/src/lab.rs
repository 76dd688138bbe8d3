//! The commands that `sluice-lab` runs; some of them `sluice-cluster`, too.

pub mod bench;
pub mod estimate;
pub mod pack;
pub mod plan;
pub mod profile;
pub mod simulate;
pub mod slo;
pub mod traffic;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Run an experiment; without a name, list them
    #[command(after_help = bench::HELP)]
    Bench(bench::BenchArgs),
    /// Estimate what a configuration carries on a number of cores; starts nothing
    #[command(after_help = simulate::HELP)]
    Simulate(simulate::SimulateArgs),
    /// Measure what a packet costs an NF; needs no daemon
    #[command(after_help = estimate::HELP)]
    Estimate(estimate::EstimateArgs),
    /// Measure throughput against cache and latency against load of an NF or a chain; needs no
    /// daemon
    #[command(after_help = profile::HELP)]
    Profile(profile::ProfileArgs),
    /// Place NFs on as few cores as their load allows
    #[command(after_help = pack::HELP)]
    Pack(pack::PackArgs),
    /// SLOs of tenants: add, list, show and remove them, and apply them to the daemon
    #[command(after_help = slo::HELP)]
    Slo(slo::SloArgs),
    /// Servers and the SLOs placed on them; the least number of servers that would do
    #[command(after_help = plan::HELP)]
    Plan(plan::PlanArgs),
}

impl LabCommand {
    /// Whether it asks a cluster, so that `sluice-cluster` runs it.
    pub fn is_of_cluster(&self) -> bool {
        match self {
            Self::Slo(args) => args.command.is_of_cluster(),
            Self::Plan(args) => args.command.is_of_cluster(),
            Self::Bench(_) | Self::Simulate(_) | Self::Estimate(_) | Self::Profile(_) | Self::Pack(_) => false,
        }
    }
}
