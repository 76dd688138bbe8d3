//! How the operator runs.

use std::time::Duration;

use clap::Args;

/// How to run.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Namespace of the lease.
    #[arg(long, env = "SLUICE_NAMESPACE", default_value = "sluice-system")]
    pub namespace: String,
    /// Name of the lease, by which one of several operators acts.
    #[arg(long, default_value = "sluice-operator")]
    pub lease: String,
    /// Time after which another operator takes over from one that is silent, in seconds.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..=3600))]
    pub lease_seconds: u32,
    /// Most requests to the API server at a time.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub requests: u32,
}

impl RunArgs {
    pub fn lease_time(&self) -> Duration {
        Duration::from_secs(self.lease_seconds.into())
    }
}
