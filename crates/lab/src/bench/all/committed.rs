//! The report in the tree: every claim has a run behind it, and it says what the runs say.

use std::path::Path;

use sluice_cli::lab::bench::BenchArgs;

use super::folder::Folder;
use super::page::{self, Words};
use crate::bench::figures::Known;
use crate::bench::planner::placement::MEDIAN;
use crate::in_the_tree;

/// How the report in the tree is made again.
const AGAIN: &str = "sluice bench all --quick --report docs/measured --only";

/// The folder of the report.
fn folder() -> Folder {
    Folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measured"))
}

#[test]
fn every_claim_has_a_run_behind_it() {
    let (known, folder) = (Known::read().unwrap(), folder());
    let mut measured = 0;
    for figure in &known.figures {
        let at = format!("{} {}", figure.paper.title(), figure.name);
        let Some(name) = &figure.experiment else { continue };
        let run = known.runs.iter().find(|run| run.experiment == *name).unwrap();
        // Those that take too long for it are not in the report.
        let Some(quick) = &run.quick else { continue };
        let report = folder.result(name).unwrap_or_else(|| panic!("{at}: there is no result: {AGAIN} {name}"));
        let given = quick.given.iter().map(|given| given.parse().unwrap()).collect();
        let asked = BenchArgs { only: quick.only.clone(), given, ..BenchArgs::default() };
        for check in &figure.checks {
            let checked = check.against(&report);
            let has_reason = !checked.needs_reason() || checked.why.is_some();
            assert!(has_reason, "{at}, {}: it {}; say why in figures.toml", check.what, checked.verdict);
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
}

#[test]
fn the_report_in_the_tree_is_what_its_results_say() {
    let words = Words { is_quick: true, about: crate::bench::about };
    let [html, markdown, _] = page::texts(&Known::read().unwrap(), &folder(), words);
    in_the_tree::file("docs/measured/index.html", &html);
    in_the_tree::file("docs/measured/report.md", &markdown);
}
