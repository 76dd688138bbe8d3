//! `sluice bench all --report DIR`: every experiment, and a report on the papers' claims.
//!
//! # Approach
//! Each experiment is a process of its own (`sluice-lab bench NAME`), so that one that fails ends
//! no other. Its result, its plot and what it printed are files in the folder of the report. A
//! result that is there with the same settings from the same host and programs counts, so an
//! interrupted run goes on where it was. What the simulator needs of the host is measured by the
//! first experiment that needs it, and passed on in a file beside the results until the end. Then,
//! and after an interruption too, the report is written from what there is ([`page`]): one page
//! with all plots in it, and the same as Markdown.
//!
//! # Limits
//! The time that is left comes from estimates for `--quick` on two cores, scaled by how long the
//! experiments before took here.

#[cfg(test)]
mod committed;
mod folder;
mod page;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use sluice_cli::lab::bench::BenchArgs;

use crate::bench::figures::{Known, Paper, PlannedRun};
use folder::{Folder, Measuring, RunSettings};

pub const NAME: &str = "all";
pub const ABOUT: &str = "every experiment, and a report on the papers' claims: all --report DIR [--quick]";

/// The experiments of the papers and names in `only`, all without any.
fn chosen<'a>(known: &'a Known, only: &[String]) -> anyhow::Result<Vec<&'a PlannedRun>> {
    let fits = |run: &PlannedRun, word: &str| run.experiment == word || known.paper_of(&run.experiment).word() == word;
    if let Some(word) = only.iter().find(|word| !known.runs.iter().any(|run| fits(run, word))) {
        let papers = Paper::ALL.map(Paper::word).join(", ");
        bail!("--only {word}: there is no such paper or experiment; there are {papers}, and what `sluice bench` lists");
    }
    Ok(known.runs.iter().filter(|run| only.is_empty() || only.iter().any(|word| fits(run, word))).collect())
}

/// Runs what is chosen, and writes the report; `about` gives what an experiment measures.
///
/// # Errors
/// There is no folder for the report, or it cannot be written; an option has no meaning here; an
/// experiment failed; it was interrupted.
pub fn run(args: &BenchArgs, about: fn(&str) -> &'static str, out: &mut dyn Write) -> anyhow::Result<()> {
    let folder = args.report.as_ref().context("name a folder for the report: sluice bench all --report DIR")?;
    ensure!(
        args.json.is_none() && args.svg.is_none(),
        "results and plots of `all` are in the folder of --report; leave out --json and --svg"
    );
    ensure!(args.first.is_none(), "--first is for one experiment; `all` takes --only with papers and experiments");
    ensure!(args.given.is_empty(), "--where is for one experiment; `all` takes --only with papers and experiments");
    ensure!(args.again.is_empty(), "--again is for one experiment; `all` takes --only with papers and experiments");
    let known = Known::read()?;
    let chosen = chosen(&known, &args.only)?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let folder = Folder(folder.clone());
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let costs = folder.file("host", "costs");
    // Those of an earlier run may be of another host.
    remove(&costs)?;
    let ended = conduct(args, &folder, &chosen, &interrupted);
    remove(&costs)?;
    let verdicts = page::write(&known, &folder, page::Words { is_quick: args.quick, about })?;
    writeln!(out, "{verdicts}")?;
    writeln!(out, "{}", folder.0.join("index.html").display())?;
    let failed = ended?;
    ensure!(failed.is_empty(), "failed: {}; what each said is in its .log beside the report", failed.join(", "));
    Ok(())
}

/// Runs the experiments that have no result yet; returns those that failed.
fn conduct(args: &BenchArgs, folder: &Folder, chosen: &[&PlannedRun], interrupted: &AtomicBool) -> anyhow::Result<Vec<String>> {
    let measuring = Measuring::here()?;
    let quick = |run: &PlannedRun| run.quick.as_ref().filter(|_| args.quick).cloned();
    let settings = |run: &PlannedRun| RunSettings::of(args, quick(run).as_ref());
    let mut waiting: Vec<&PlannedRun> = Vec::new();
    for run in chosen {
        match run {
            PlannedRun { slow: Some(why), .. } if args.quick => eprintln!("{}: not with --quick: {why}", run.experiment),
            run if folder.is_done(&run.experiment, &settings(run), &measuring) => eprintln!("{}: there already", run.experiment),
            _ => waiting.push(run),
        }
    }
    let (mut failed, mut left) = (Vec::new(), Left::of(&waiting, args.quick));
    for (run, number) in waiting.iter().zip(1..) {
        eprintln!("{number} of {}: {}{}", waiting.len(), run.experiment, left.words());
        let began = Instant::now();
        if !one(&run.experiment, &settings(run), (folder, &measuring), interrupted)? {
            eprintln!("{} failed: see {}", run.experiment, folder.file(&run.experiment, "log").display());
            failed.push(run.experiment.clone());
        }
        left.note(run, began.elapsed());
    }
    Ok(failed)
}

/// How long the experiments that wait will take.
struct Left {
    /// Usual seconds of those that wait, and of those that ran.
    waiting_s: f64,
    ran_s: f64,
    /// What those that ran took.
    took: Duration,
    /// Whether usual seconds are those of this run, and not only in proportion.
    is_quick: bool,
}

impl Left {
    fn of(waiting: &[&PlannedRun], is_quick: bool) -> Self {
        let waiting_s = waiting.iter().map(|run| usual_s(run)).sum();
        Self { waiting_s, ran_s: 0.0, took: Duration::ZERO, is_quick }
    }

    fn note(&mut self, run: &PlannedRun, took: Duration) {
        self.waiting_s -= usual_s(run);
        self.ran_s += usual_s(run);
        self.took += took;
    }

    fn words(&self) -> String {
        let scale = match self.ran_s {
            ran if ran > 0.0 => self.took.as_secs_f64() / ran,
            _ if self.is_quick => 1.0,
            _ => return String::new(),
        };
        format!(", about {:.0} minutes left", (self.waiting_s * scale / 60.0).max(1.0))
    }
}

fn usual_s(run: &PlannedRun) -> f64 {
    run.quick.as_ref().map_or(0.0, |quick| quick.takes_s)
}

/// Runs an experiment into the folder; returns whether it succeeded.
fn one(experiment: &str, settings: &RunSettings, place: (&Folder, &Measuring), interrupted: &AtomicBool) -> anyhow::Result<bool> {
    let (folder, measuring) = place;
    let file = |extension: &str| folder.file(experiment, extension);
    for extension in ["json", "svg", "settings"] {
        remove(&file(extension))?;
    }
    let log = File::create(file("log")).with_context(|| format!("cannot write {}", file("log").display()))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench").arg(experiment).arg("--json").arg(file("json")).args(settings.words());
    command.arg("--host-costs").arg(folder.file("host", "costs"));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let status = wait(command.spawn().context("cannot start sluice-lab")?, interrupted)?;
    if file("json").exists() {
        folder.keep_settings(experiment, settings, measuring)?;
    }
    Ok(status.success())
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Waits for an experiment. After an interruption it is asked to end, and restores the host first.
fn wait(mut child: Child, interrupted: &AtomicBool) -> anyhow::Result<std::process::ExitStatus> {
    let mut is_asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(!is_asked, "interrupted; the same command goes on from here");
            return Ok(status);
        }
        if interrupted.load(Ordering::Relaxed) && !is_asked {
            is_asked = true;
            // It may have ended meanwhile.
            let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> BenchArgs {
        let only = words.iter().map(|word| word.to_string()).collect();
        BenchArgs { name: Some(NAME.into()), seconds: 5.0, repeats: 3, seed: 1, only, ..BenchArgs::default() }
    }

    #[test]
    fn papers_and_experiments_are_chosen() {
        let known = Known::read().unwrap();
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|word| word.to_string()).collect();
            chosen(&known, &only).map(|runs| runs.iter().map(|run| run.experiment.clone()).collect::<Vec<_>>())
        };
        assert_eq!(names(&["unis"]).unwrap(), ["estimate", "linux-schedulers", "workflow"]);
        assert_eq!(names(&["workflow", "chain"]).unwrap(), ["chain", "workflow"]);
        assert!(names(&["platform"]).unwrap().contains(&"forward".to_string()));
        assert_eq!(names(&[]).unwrap().len(), known.runs.len());
        let error = names(&["chain", "vpp"]).unwrap_err().to_string();
        assert!(error.starts_with("--only vpp: there is no such paper or experiment"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_said_before_anything_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        let report = Some(path.clone());
        let said = |args: BenchArgs| run(&args, |_| "", &mut Vec::new()).unwrap_err().to_string();
        assert!(said(args(&[])).starts_with("name a folder for the report"));
        assert!(said(BenchArgs { report: report.clone(), json: Some("x".into()), ..args(&[]) }).contains("leave out --json"));
        let given = vec!["nfs=1".parse().unwrap()];
        assert!(said(BenchArgs { report: report.clone(), given, ..args(&[]) }).contains("--where is for one experiment"));
        assert!(said(BenchArgs { report: report.clone(), ..args(&["vpp"]) }).contains("no such paper"));
        assert!(!path.exists(), "nothing was made");
    }

    #[test]
    fn the_time_that_is_left_follows_what_was_taken() {
        let known = Known::read().unwrap();
        let runs = chosen(&known, &["chain".into(), "forward".into()]).unwrap();
        let mut left = Left::of(&runs, false);
        assert_eq!(left.words(), "");
        let total = usual_s(runs[0]) + usual_s(runs[1]);
        left.note(runs[0], Duration::from_secs_f64(10.0 * usual_s(runs[0])));
        let minutes = (10.0 * (total - usual_s(runs[0])) / 60.0).max(1.0);
        assert_eq!(left.words(), format!(", about {minutes:.0} minutes left"));
    }

    #[test]
    fn an_interrupted_experiment_is_asked_to_end() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let error = wait(child, &AtomicBool::new(true)).unwrap_err().to_string();
        assert!(error.starts_with("interrupted"), "{error}");
        assert!(wait(Command::new("true").spawn().unwrap(), &AtomicBool::new(false)).unwrap().success());
    }
}
