//! The experiments behind `sluice bench`.
//!
//! Each experiment runs its variants in turns, several times over, and writes medians, ratios and
//! their spread in one form (see [`run`]). It restores everything that it changes on the host. A
//! new experiment is one file and one line in [`EXPERIMENTS`].

mod all;
pub mod chaos;
mod compare;
mod counters;
pub mod curves;
mod daemon;
mod density;
mod experiment;
mod fair;
mod figures;
mod flow;
mod flow_tables;
mod forward;
mod host;
mod host_speed;
mod hostile_tenant;
mod interfaces;
mod interference;
mod lab;
mod latency;
mod leaky_dma;
mod lines;
mod linux_chain;
mod measure;
mod observers;
mod outside;
mod peers;
mod planner;
mod plot;
pub mod pools;
mod proc;
mod report;
mod sched;
mod search;
mod setup;
mod shards;
mod slo_live;
mod stats;
mod table;
mod tenants;
mod wakeup;

use std::io::Write;

use experiment::{BenchArgs, Experiment};

pub const EXPERIMENTS: &[Experiment] = &[
    forward::EXPERIMENT,
    latency::EXPERIMENT,
    shards::EXPERIMENT,
    density::EXPERIMENT,
    observers::EXPERIMENT,
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
    interfaces::EXPERIMENT,
    outside::controllers::EXPERIMENT,
    outside::linux_schedulers::EXPERIMENT,
    outside::workflow::EXPERIMENT,
    sched::estimate::EXPERIMENT,
    sched::repack::EXPERIMENT,
    leaky_dma::EXPERIMENT,
    interference::EXPERIMENT,
    planner::accuracy::EXPERIMENT,
    planner::placement::EXPERIMENT,
    planner::online::EXPERIMENT,
    planner::optimiser::EXPERIMENT,
    slo_live::EXPERIMENT,
    tenants::EXPERIMENT,
    hostile_tenant::EXPERIMENT,
    pools::scale::EXPERIMENT,
    pools::weight::EXPERIMENT,
    pools::cpu_usage::EXPERIMENT,
    pools::ports::EXPERIMENT,
    pools::sockets::EXPERIMENT,
    pools::containers::EXPERIMENT,
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
    linux_chain::EXPERIMENT,
    peers::EXPERIMENT,
    Experiment { name: all::NAME, about: all::ABOUT, run: |args| all::run(args, about, &mut std::io::stdout().lock()) },
    Experiment { name: compare::NAME, about: compare::ABOUT, run: |args| compare::run(args, &mut std::io::stdout().lock()) },
];

/// Those that measure by themselves: not all of them together, no comparison, and no programs of
/// others.
fn measuring() -> impl Iterator<Item = &'static Experiment> {
    EXPERIMENTS.iter().filter(|known| ![all::NAME, compare::NAME, peers::EXPERIMENT.name].contains(&known.name))
}

/// What an experiment measures.
fn about(experiment: &str) -> &'static str {
    measuring().find(|known| known.name == experiment).map_or("", |known| known.about)
}

/// Runs an experiment, prints its table, and writes its JSON if requested; without a name, lists
/// all.
///
/// # Errors
/// No experiment has the name, or it cannot run on this host; the error says what to do.
pub fn run(args: &BenchArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let Some(name) = &args.name else {
        for experiment in EXPERIMENTS {
            writeln!(out, "{:<14} {}", experiment.name, experiment.about)?;
        }
        return Ok(());
    };
    let Some(experiment) = EXPERIMENTS.iter().find(|known| known.name == name) else {
        let names: Vec<&str> = EXPERIMENTS.iter().map(|known| known.name).collect();
        anyhow::bail!("no experiment is named \"{name}\"; there are: {}", names.join(", "));
    };
    if !args.files.is_empty() && name != compare::NAME {
        anyhow::bail!("{name} takes no files; --json names the file for its result");
    }
    if (args.report.is_some() || args.quick) && name != all::NAME {
        anyhow::bail!("--report and --quick are of `sluice bench all`; --json names the file for the result of {name}");
    }
    if args.with.is_some() && name != peers::EXPERIMENT.name {
        anyhow::bail!("--with is of `sluice bench peers`, which runs other data planes beside ours; leave it out of {name}");
    }
    (experiment.run)(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused() {
        let args = BenchArgs { name: Some("nothing".into()), seconds: 1.0, repeats: 1, ..BenchArgs::default() };
        assert!(run(&args, &mut Vec::new()).unwrap_err().to_string().starts_with("no experiment is named \"nothing\""));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EXPERIMENTS.len());
    }

    #[test]
    fn experiments_of_documents_are_experiments() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let mut found = 0;
        let files =
            ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "fuzz/README.md"].map(|name| root.join(name));
        let pages = std::fs::read_dir(root.join("docs/src")).unwrap().map(|page| page.unwrap().path());
        let pages = pages.filter(|page| page.extension().is_some_and(|extension| extension == "md"));
        for path in files.into_iter().chain(pages) {
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            for rest in text.split("sluice bench ").skip(1) {
                let word = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap_or_default();
                // BENCH stands for any.
                if !word.is_empty() && !word.starts_with("--") && word != "BENCH" {
                    found += 1;
                    assert!(
                        EXPERIMENTS.iter().any(|known| known.name == word),
                        "{}: there is no experiment {word}",
                        path.display()
                    );
                }
            }
        }
        assert!(found > 20, "only {found} are found");
    }
}
