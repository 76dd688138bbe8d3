//! Every experiment runs for a moment, as a user runs it.

#[path = "../../host/src/skip.rs"]
mod skip;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

use serde_json::Value;

use skip::skip;

/// Experiments that run at the same time.
const AT_A_TIME: usize = 3;

fn lab(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice-lab")).arg("bench").args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Experiments that measure.
fn experiments() -> Vec<String> {
    let list = text(&lab(&[]).stdout);
    let names = list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_string);
    names.filter(|name| !["all", "compare"].contains(&name.as_str())).collect()
}

/// Whether the daemon is built beside the lab, which `make test` sees to.
fn is_built() -> bool {
    let sluiced = Path::new(env!("CARGO_BIN_EXE_sluice-lab")).with_file_name("sluiced");
    if sluiced.exists() {
        return true;
    }
    skip(format_args!("{} is not built", sluiced.display()));
    false
}

#[test]
fn every_experiment_runs_for_a_moment() {
    if !is_built() {
        return;
    }
    let names = experiments();
    assert!(names.len() > 40, "{names:?}");
    let folder = tempfile::tempdir().unwrap();
    let one = |name: &String| {
        let file = folder.path().join(name).with_extension("json");
        let ended = lab(&[name, "--seconds", "0.1", "--repeats", "1", "--first", "1", "--json", file.to_str().unwrap()]);
        assert!(ended.status.success(), "{name}: {}", text(&ended.stderr));
        let result: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let of = |key: &str| result[key].as_array().map_or(0, Vec::len);
        assert!(of("variants") + of("left_out") > 0, "{name}: {result}");
    };
    // Most of the time they wait, so some are run at a time.
    let names = Mutex::new(names.iter());
    let next = || names.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| std::iter::from_fn(next).for_each(one));
        }
    });
}

#[test]
fn a_report_is_made_and_what_is_there_is_not_run_again() {
    if !is_built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let run = || lab(&["all", "--quick", "--only", "leaky-dma", "--report", report.to_str().unwrap()]);
    let first = run();
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(text(&first.stderr).contains("1 of 1: leaky-dma"), "{}", text(&first.stderr));
    let page = std::fs::read_to_string(report.join("index.html")).unwrap();
    assert!(page.contains("Table 2, Figure 5") && page.contains("<svg"), "{page}");
    let second = run();
    assert!(text(&second.stderr).contains("leaky-dma: there already"), "{}", text(&second.stderr));
}
