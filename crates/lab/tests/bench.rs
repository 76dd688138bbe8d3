//! Every experiment runs for a moment, as a user runs it.

#[path = "../../host/src/skip.rs"]
mod skip;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use skip::skip;

/// Experiments that run at the same time.
const AT_A_TIME: usize = 3;
/// Variants of another kind than the first of their experiment, by parts of their names.
const OTHER_KINDS: [(&str, &str); 26] = [
    ("forward", "inline/needed"),
    ("forward", "flows/steady"),
    ("forward", "start/forked"),
    ("forward", "reclaim"),
    ("chain", "nfvnice/batch"),
    ("chain", "ideal/rr100"),
    ("isolation", "sluice/other"),
    ("storage", "nfvnice/batch"),
    ("overhead", "wake"),
    ("overhead", "tuned/"),
    ("pool-scale", "poll"),
    ("pool-scale", "chain"),
    ("cpu-usage", "poll"),
    ("ports", "null"),
    ("nf-sockets", "sluice"),
    ("flow-setup", "pool"),
    ("flow-churn", "strict"),
    ("chain-priority", "downstream-handover"),
    ("affinity", "wire"),
    ("mixed", "adaptive/rss"),
    ("estimate", "units"),
    ("linux-schedulers", "linux/"),
    ("workflow", "ideal"),
    ("interference", "memory"),
    ("linux-chain", "linux/one"),
    ("linux-chain", "sluice/fused"),
];

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
    names.filter(|name| !["all", "compare", "peers"].contains(&name.as_str())).collect()
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
    let firsts = names.iter().map(|name| (name.as_str(), None));
    let runs: Vec<(&str, Option<&'static str>)> = firsts.chain(OTHER_KINDS.map(|(name, part)| (name, Some(part)))).collect();
    let folder = tempfile::tempdir().unwrap();
    let costs = folder.path().join("host.costs");
    // Those that measure nothing here, and why.
    let idle = Mutex::new(Vec::new());
    let run = |(name, part): (&str, Option<&str>)| {
        let file = folder.path().join(format!("{name}-{}.json", part.unwrap_or("first").replace('/', "-")));
        let mut words = vec![name, "--seconds", "0.1", "--repeats", "1", "--first", "1", "--json", file.to_str().unwrap()];
        words.extend(part.into_iter().flat_map(|part| ["--only", part]));
        words.extend(["--host-costs", costs.to_str().unwrap()]);
        let ended = lab(&words);
        if !ended.status.success() {
            return Err(format!("{name} {}: {}", part.unwrap_or_default(), text(&ended.stderr)));
        }
        let result: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let of = |key: &str| result[key].as_array().cloned().unwrap_or_default();
        let is_measured = |variant: &Value| variant["metrics"].as_object().is_some_and(|metrics| !metrics.is_empty());
        if !of("variants").iter().any(is_measured) {
            let left_out = of("left_out");
            let why = left_out.first().unwrap_or_else(|| panic!("{name} measures nothing, and does not say why: {result}"));
            idle.lock().unwrap().push(format!("{name} measures nothing here: {}", why["why"]));
        }
        Ok(())
    };
    // An experiment that finds out what a core can do may fail beside others: it runs again, alone.
    let again = Mutex::new(Vec::new());
    let one = |(name, part): (&str, Option<&'static str>)| {
        if let Err(why) = run((name, part)) {
            eprintln!("{why}");
            again.lock().unwrap().push((name.to_string(), part));
        }
    };
    // Most of the time they wait, so some are run at a time.
    let waiting = Mutex::new(runs.into_iter());
    let next = || waiting.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| std::iter::from_fn(next).for_each(one));
        }
    });
    for (name, part) in again.into_inner().unwrap() {
        run((&name, part)).unwrap_or_else(|why| panic!("{why}"));
    }
    for why in idle.into_inner().unwrap() {
        // CI traces some NFs alone, and has as many cores as it has.
        if ["scripts/trace-nf", "physical cores"].iter().any(|what| why.contains(what)) {
            eprintln!("{why}");
        } else {
            skip(why);
        }
    }
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

/// Whether any process has this in its arguments.
fn any_has(word: &str) -> bool {
    let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.any(|process| std::fs::read(process.path().join("cmdline")).is_ok_and(|line| text(&line).contains(word)))
}

/// An adapter of a shell script in a folder of adapters.
fn write_adapter(folder: &Path, name: &str, more: &str, script: &str) {
    let text = format!(
        "name = \"{name}\"\nprograms = [\"sh\"]\nstart = [\"sh\", \"-c\", {}]\nchain_lengths = [1]\n{more}\n\
         what_is_comparable = \"{name} is a script\"\n[cores]\nbase = 1\n[rate]\npattern = 'rate ([0-9]+)'\n",
        Value::from(script)
    );
    std::fs::write(folder.join(name).with_extension("toml"), text).unwrap();
}

#[test]
fn peers_run_beside_ours_and_faults_of_one_are_no_faults_of_another() {
    if !is_built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let peers = folder.path().join("peers");
    std::fs::create_dir(&peers).unwrap();
    // No other process has this number.
    let seconds = format!("1000.{:07}", std::process::id());
    write_adapter(&peers, "works", "", "echo rate 17; echo rate {chain_length}000000");
    write_adapter(&peers, "fails", "", "echo no hugepages >&2; exit 7");
    write_adapter(&peers, "hangs", "patience_s = 0.5", &format!("sleep {seconds}"));
    write_adapter(&peers, "silent", "", "echo hello");
    write_adapter(&peers, "absent", "", "echo rate 1");
    let absent = std::fs::read_to_string(peers.join("absent.toml")).unwrap();
    std::fs::write(peers.join("absent.toml"), absent.replace("[\"sh\"]", "[\"sluice-no-such-program\"]")).unwrap();
    let file = folder.path().join("peers.json");
    let (with, only) = (peers.to_str().unwrap(), "works,fails,hangs,silent,sluice/inline");
    let to = file.to_str().unwrap();
    let ended = lab(&["peers", "--with", with, "--only", only, "--seconds", "0.1", "--repeats", "1", "--json", to]);
    // A process that was killed may take a moment to go.
    let until = Instant::now() + Duration::from_secs(60);
    while any_has(&seconds) {
        assert!(Instant::now() < until, "a process of the peer that hangs is left");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (said, errors) = (text(&ended.stdout), text(&ended.stderr));
    assert!(!ended.status.success() && errors.contains("3 of the variants failed"), "{errors}");
    assert!(said.contains("works: works is a script") && !said.contains("absent is a script"), "{said}");
    let result: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let named = |list: &str, name: &str, peer: &str| {
        let found = result[list].as_array().unwrap().iter().find(|one| one["name"] == name && one["params"]["peer"] == peer);
        found.cloned().unwrap_or_else(|| panic!("{list} has no {name} for {peer}: {result}"))
    };
    assert_eq!(named("variants", "works", "works")["metrics"]["delivered_pps"]["median"], 1e6);
    for peer in ["works", "fails", "hangs", "silent"] {
        let ours = named("variants", "sluice/inline", peer);
        assert!(ours["metrics"]["delivered_pps"]["median"].as_f64().unwrap() > 0.0, "{ours}");
        assert_eq!(ours["metrics"]["of_peer"].is_object(), peer == "works", "{ours}");
    }
    for (peer, why) in [
        ("fails", "no hugepages"),
        ("hangs", "does not end after"),
        ("silent", "it prints no rate"),
        ("absent", "there is no program sluice-no-such-program here"),
    ] {
        let left_out = named("left_out", peer, peer);
        assert!(left_out["why"].as_str().unwrap().contains(why), "{left_out}");
    }
}

#[test]
fn only_peers_take_a_folder() {
    let said = |words: &[&str]| text(&lab(words).stderr);
    assert!(said(&["peers", "--with", "/nowhere"]).contains("cannot read /nowhere"));
    assert!(said(&["forward", "--with", "/nowhere"]).contains("--with is of `sluice bench peers`"));
}
