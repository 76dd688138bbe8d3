//! The report in the tree: every claim has a run behind it, and it says what the runs say.

use std::path::Path;

use sluice_cli::lab::bench::BenchArgs;

use super::folder::Folder;
use super::page::{self, Words};
use crate::bench::figures::{Check, Known};
use crate::bench::planner::placement::MEDIAN;
use crate::bench::report::Variant;
use crate::in_the_tree;

/// How the report in the tree is made again.
const AGAIN: &str = "sluice bench all --quick --report docs/measured --only";

/// Experiments of which some variants are repeated, and a check reads another one, too: that takes
/// long, or its values are medians already.
const ONCE: [&str; 8] = ["sched-baseline", "storage", "overhead", "pool-scale", "flow-setup", "affinity", "mixed", "workflow"];

/// The folder of the report.
fn folder() -> Folder {
    Folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measured"))
}

#[test]
fn every_claim_has_a_run_behind_it() {
    let (known, folder) = (Known::read().unwrap(), folder());
    let (mut measured, mut silent) = (0, Vec::new());
    for figure in &known.figures {
        let at = format!("{} {}", figure.paper.title(), figure.name);
        let Some(name) = &figure.experiment else { continue };
        let run = known.runs.iter().find(|run| run.experiment == *name).unwrap();
        // Those that take too long for it are not in the report.
        let Some(quick) = &run.quick else { continue };
        let report = folder.result(name).unwrap_or_else(|| panic!("{at}: there is no result: {AGAIN} {name}"));
        let given = quick.given.iter().map(|given| given.parse().unwrap()).collect();
        for shown in &figure.shows {
            let has = |variant: &Variant| !variant.medians(shown).is_empty();
            let has_any = figure.lacking(&report).is_some() || report.variants.iter().any(has);
            assert!(has_any, "{at}: no variant of {name} has {shown}; after a change: {AGAIN} {name}");
        }
        let asked = BenchArgs { only: quick.only.clone(), given, ..BenchArgs::default() };
        for check in &figure.checks {
            let checked = check.against(&report);
            if checked.needs_reason() && checked.why.is_none() {
                silent.push(format!("{at}, {}: it {}", check.what, checked.verdict));
            }
            match checked.ours {
                Ok(_) => measured += 1,
                Err(why) => {
                    // What the host lacks is said; a run that was to be there and is not, is none.
                    let is_said = report.left_out.iter().any(|left| left.why == why);
                    // Medians are of all sets that are run.
                    let mut of_runs = check.params.clone();
                    of_runs.retain(|_, value| *value != MEDIAN);
                    let is_asked = asked.asks_for(&check.variant, &of_runs);
                    assert!(is_said || !is_asked, "{at}, {}: {why}; after a change: {AGAIN} {name}", check.what);
                }
            }
        }
    }
    assert!(measured > 60, "only {measured} checks are measured");
    assert!(silent.is_empty(), "say why in figures.toml:\n{}", silent.join("\n"));
}

#[test]
fn what_is_repeated_is_what_checks_read() {
    let (known, folder) = (Known::read().unwrap(), folder());
    let mut once = Vec::new();
    for run in &known.runs {
        let Some(quick) = run.quick.as_ref().filter(|quick| !quick.again.is_empty()) else { continue };
        let figures = known.figures.iter().filter(|figure| figure.experiment.as_ref() == Some(&run.experiment));
        let checks: Vec<&Check> = figures.flat_map(|figure| &figure.checks).collect();
        if checks.is_empty() {
            continue;
        }
        let again = quick.again.iter().map(|again| again.parse().unwrap()).collect();
        let args = BenchArgs { again, ..BenchArgs::default() };
        let report = folder.result(&run.experiment).unwrap_or_else(|| panic!("there is no result: {AGAIN} {}", run.experiment));
        let read = report.variants.iter().filter(|variant| checks.iter().any(|check| check.reads(variant)));
        let (repeated, others): (Vec<&Variant>, Vec<&Variant>) = read.partition(|one| args.runs_again(&one.name, &one.params));
        assert!(!repeated.is_empty(), "{}: no check reads what is repeated", run.experiment);
        if !others.is_empty() {
            once.push(run.experiment.as_str());
        }
    }
    assert_eq!(once, ONCE);
}

#[test]
fn the_report_in_the_tree_is_what_its_results_say() {
    let words = Words { is_quick: true, about: crate::bench::about };
    let [html, markdown, _] = page::texts(&Known::read().unwrap(), &folder(), words);
    in_the_tree::file("docs/measured/index.html", &html);
    in_the_tree::file("docs/measured/report.md", &markdown);
}
