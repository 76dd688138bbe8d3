//! An experiment, as the table of all has it.

pub use sluice_cli::lab::bench::BenchArgs;

pub struct Experiment {
    pub name: &'static str,
    /// What it measures, in one line.
    pub about: &'static str,
    pub run: fn(&BenchArgs) -> anyhow::Result<()>,
}
