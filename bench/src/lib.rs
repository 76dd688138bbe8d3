//! The experiments behind `sluice bench`: what runs, what it prints, what it plots.
//!
//! Each experiment runs its variants in turns, several times over, and writes medians, ratios and their spread in one form (see
//! [`run`]). An experiment changes nothing on the host that it does not put back. A new one is one file and one line in
//! [`EXPERIMENTS`].

mod daemon;
mod fair;
mod flow;
mod forward;
mod host;
mod http;
mod lab;
mod lines;
mod measure;
mod outside;
mod planner;
mod plot;
mod pools;
mod proc;
mod report;
mod sched;
mod setup;
mod stats;
mod table;
mod wakeup;

use std::path::PathBuf;

/// What `sluice bench` was asked for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BenchArgs {
    /// Name of the experiment.
    pub name: String,
    /// File for the result and its raw samples; none prints the table only.
    pub json: Option<PathBuf>,
    /// File for the plot; none puts it beside `json`, if that is given.
    pub svg: Option<PathBuf>,
    /// Parts of names: variants whose name has none of them do not run. Empty runs all.
    pub only: Vec<String>,
    /// Seconds that each variant runs, each time.
    pub seconds: f64,
    /// How often each variant runs.
    pub repeats: u32,
}

impl BenchArgs {
    /// Whether a variant of this name is to run.
    fn asks_for(&self, variant: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| variant.contains(part.as_str()))
    }
}

/// An experiment.
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// What it measures, in one line.
    pub about: &'static str,
    /// Runs it.
    pub run: fn(&BenchArgs) -> anyhow::Result<()>,
}

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    forward::EXPERIMENT,
    sched::baseline::EXPERIMENT,
    sched::chain::EXPERIMENT,
    sched::multicore::EXPERIMENT,
    sched::shared_nf::EXPERIMENT,
    sched::variable_cost::EXPERIMENT,
    sched::chain_order::EXPERIMENT,
    sched::mixed_order::EXPERIMENT,
    sched::isolation::EXPERIMENT,
    sched::storage::EXPERIMENT,
    sched::dynamic::EXPERIMENT,
    sched::fairness::EXPERIMENT,
    sched::chain_length::EXPERIMENT,
    sched::watermarks::EXPERIMENT,
    sched::overhead::EXPERIMENT,
    outside::controllers::EXPERIMENT,
    outside::linux_schedulers::EXPERIMENT,
    outside::workflow::EXPERIMENT,
    sched::estimate::EXPERIMENT,
    sched::repack::EXPERIMENT,
    planner::placement::EXPERIMENT,
    planner::optimiser::EXPERIMENT,
    pools::scale::EXPERIMENT,
    pools::weight::EXPERIMENT,
    pools::cpu_usage::EXPERIMENT,
    pools::flow_setup::EXPERIMENT,
    pools::churn::EXPERIMENT,
    pools::soak::EXPERIMENT,
    flow::tenant_priority::EXPERIMENT,
    flow::chain_priority::EXPERIMENT,
    flow::affinity::EXPERIMENT,
    wakeup::mixed::EXPERIMENT,
    wakeup::idle_pool::EXPERIMENT,
];

/// Runs an experiment, prints its table, and writes its JSON if asked to.
///
/// # Errors
/// No experiment has the name, the times make no sense, or the experiment cannot run on this host; each says what to do.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    let Some(experiment) = EXPERIMENTS.iter().find(|e| e.name == args.name) else {
        let names: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).collect();
        let known = if names.is_empty() { "this build has none".into() } else { format!("there are: {}", names.join(", ")) };
        anyhow::bail!("no experiment is named \"{}\"; {known}", args.name);
    };
    anyhow::ensure!(args.seconds > 0.0 && args.seconds.is_finite(), "--seconds must be above 0");
    anyhow::ensure!(args.repeats > 0, "--repeats must be 1 or more");
    (experiment.run)(&args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused() {
        let args = BenchArgs { name: "nothing".into(), seconds: 1.0, repeats: 1, ..BenchArgs::default() };
        assert!(run(args).unwrap_err().to_string().starts_with("no experiment is named \"nothing\""));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EXPERIMENTS.len());
    }
}
