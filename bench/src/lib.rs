//! The experiments behind `sluice bench`: what runs, what it prints, what it plots.
//!
//! Each experiment runs its variants in turns, several times over, and writes medians, ratios and their spread in one form (see
//! [`run`]). An experiment changes nothing on the host that it does not put back. A new one is one file and one line in
//! [`EXPERIMENTS`].

pub mod chaos;
pub mod curves;
mod daemon;
mod fair;
mod flow;
mod forward;
mod host;
mod hostile_tenant;
mod lab;
mod leaky_dma;
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
mod slo_live;
mod stats;
mod table;
mod tenants;
mod wakeup;

use std::path::PathBuf;
use std::str::FromStr;

use report::Params;

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
    /// Parameters: variants that have another value of one of them do not run.
    pub given: Vec<Given>,
    /// Seconds that each variant runs, each time.
    pub seconds: f64,
    /// How often each variant runs.
    pub repeats: u32,
    /// What random choices are made of, where there are any.
    pub seed: u64,
}

/// A parameter of variants, and the values of it that are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    key: String,
    values: Vec<String>,
}

impl FromStr for Given {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = text
            .split_once('=')
            .filter(|(key, values)| !key.is_empty() && !values.is_empty())
            .ok_or_else(|| format!("\"{text}\" is no parameter with values; it is written as nfs=900 or nfs=1,45,900"))?;
        Ok(Self { key: key.into(), values: values.split(',').map(str::to_string).collect() })
    }
}

impl Given {
    /// Its name.
    fn key(&self) -> &str {
        &self.key
    }

    fn admits(&self, params: &Params) -> bool {
        let Some(value) = params.get(&self.key) else { return true };
        self.values.iter().any(|wanted| match (value.as_f64(), wanted.parse::<f64>()) {
            (Some(value), Ok(wanted)) => value == wanted,
            _ => value.as_str().map_or_else(|| value.to_string(), str::to_string) == *wanted,
        })
    }
}

impl BenchArgs {
    /// Whether a variant of this name with these parameters is to run.
    fn asks_for(&self, variant: &str, params: &Params) -> bool {
        let is_named = self.only.is_empty() || self.only.iter().any(|part| variant.contains(part.as_str()));
        is_named && self.given.iter().all(|given| given.admits(params))
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
    outside::idle::EXPERIMENT,
    outside::controllers::EXPERIMENT,
    outside::linux_schedulers::EXPERIMENT,
    outside::workflow::EXPERIMENT,
    sched::estimate::EXPERIMENT,
    sched::repack::EXPERIMENT,
    leaky_dma::EXPERIMENT,
    planner::accuracy::EXPERIMENT,
    planner::placement::EXPERIMENT,
    planner::optimiser::EXPERIMENT,
    slo_live::EXPERIMENT,
    tenants::EXPERIMENT,
    hostile_tenant::EXPERIMENT,
    pools::scale::EXPERIMENT,
    pools::weight::EXPERIMENT,
    pools::cpu_usage::EXPERIMENT,
    pools::flow_setup::EXPERIMENT,
    pools::churn::EXPERIMENT,
    pools::soak::EXPERIMENT,
    flow::tenant_priority::EXPERIMENT,
    flow::chain_priority::EXPERIMENT,
    flow::affinity::EXPERIMENT,
    flow::crash_loop::EXPERIMENT,
    wakeup::mixed::EXPERIMENT,
    wakeup::idle_pool::EXPERIMENT,
    chaos::EXPERIMENT,
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
    fn variants_are_chosen_by_name_and_parameters() {
        let given = |text: &str| text.parse::<Given>().unwrap();
        let args = |given| BenchArgs { only: vec!["light".into()], given, ..BenchArgs::default() };
        let params = Params::from([("nfs".into(), 900.into()), ("load".into(), "half".into())]);
        let chosen = |given| args(given).asks_for("light-paced", &params);
        assert!(chosen(vec![]) && chosen(vec![given("nfs=1,900.0"), given("load=half"), given("offered=7")]));
        assert!(!chosen(vec![given("nfs=1,900"), given("load=full")]) && !chosen(vec![given("nfs=9")]));
        assert!(!args(vec![]).asks_for("heavy", &params));
        assert!("nfs".parse::<Given>().is_err() && "=1".parse::<Given>().is_err() && "nfs=".parse::<Given>().is_err());
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EXPERIMENTS.len());
    }
}
