//! `sluice doctor`: what this host has for each feature, and for the cache.

mod features;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use sluice_cache::CacheError;
use sluice_cache::doctor::{Finding, Level, examine, try_out};
use sluice_cache::resctrl::{MOUNT_POINT, Resctrl, TRIAL};
use sluice_config::host::Host;

use sluice_cli::table::{Cell, Table, Tone, colour};
use sluice_cli::usage::json;

/// Help text below the options of `sluice doctor`.
pub const HELP: &str = "\
Examples:
  sluice doctor                         look, and change nothing
  sluice doctor --try                   make a cache class, use it, and release it (root)
  sudo sluice doctor                    what a daemon of root has

It looks as the user that runs it, and in the cgroup that it runs in: run it as the daemon runs.
Exit code 1 if something is there and does not work, or what is to be tried cannot be; what is not there at all is no failure. A trial waits
for nobody: while `sluice profile` or another trial has a class, it says so.";

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Make a class of the fewest ways, use it, and release it
    #[arg(long = "try")]
    pub try_out: bool,
    /// Where resctrl is mounted
    #[arg(long, value_name = "PATH", default_value = MOUNT_POINT)]
    pub resctrl: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints the findings. Fails if something is present and does not work, or the trial cannot begin.
pub fn run(args: &DoctorArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let system = Path::new("/");
    let mut found = features::examine(&Host::here());
    found.extend(examine(system, &args.resctrl));
    if args.try_out {
        found.extend(trial(system, &args.resctrl));
    }
    if args.json {
        json(out, &found)?;
    } else {
        show(&found, colour(), out)?;
    }
    let wrong = found.iter().filter(|finding| finding.level == Level::Wrong).count();
    anyhow::ensure!(wrong == 0, "{wrong} of the findings need something to be done");
    Ok(())
}

/// Tries a class, or reports why that fails.
fn trial(system: &Path, mount: &Path) -> Vec<Finding> {
    let begun = Resctrl::open(mount, system).and_then(|mut control| {
        let had = control.take_over(TRIAL)?;
        Ok((control, had))
    });
    match begun {
        Ok((mut control, had)) => {
            if had {
                eprintln!("removed the cache class {TRIAL}, which a trial before this one has left");
            }
            try_out(&mut control)
        }
        Err(error) => {
            let what = match error {
                CacheError::Locked { .. } => "another trial or a profile has a class, or another program changes classes",
                _ => "it cannot begin",
            };
            let (subject, what, todo) = ("trial".into(), what.into(), Some(error.to_string()));
            vec![Finding { subject, level: Level::Wrong, what, todo }]
        }
    }
}

fn show(found: &[Finding], colour: bool, out: &mut dyn Write) -> std::io::Result<()> {
    let mut table = Table::new(&["STATE", "OF", "WHAT"]);
    for finding in found {
        let state = match finding.level {
            Level::Good => Cell::toned("good", Tone::Good),
            Level::Missing => Cell::toned("missing", Tone::Warn),
            Level::Wrong => Cell::toned("wrong", Tone::Bad),
        };
        table.row(vec![state, finding.subject.as_str().into(), finding.what.as_str().into()]);
        if let Some(todo) = &finding.todo {
            table.row(vec!["".into(), "".into(), format!("→ {todo}").into()]);
        }
    }
    table.print(out, colour)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(args: &DoctorArgs) -> String {
        let mut out = Vec::new();
        run(args, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_host_without_resctrl_is_no_failure() {
        let nowhere = DoctorArgs { try_out: false, resctrl: "/nowhere".into(), json: false };
        let table = printed(&nowhere);
        assert!(table.starts_with("STATE") && table.contains("resctrl") && table.contains("→ "), "{table}");
        assert!(table.contains("hugepages") && table.contains("containers"), "{table}");
        let found: Vec<Finding> = serde_json::from_str(&printed(&DoctorArgs { json: true, ..nowhere })).unwrap();
        let resctrl = found.iter().find(|finding| finding.subject == "resctrl").unwrap();
        assert!(resctrl.level == Level::Missing && resctrl.todo.is_some(), "{resctrl:?}");
    }

    #[test]
    fn what_was_found_is_printed_if_nothing_can_be_tried() {
        for json in [false, true] {
            let args = DoctorArgs { try_out: true, resctrl: "/nowhere".into(), json };
            let mut out = Vec::new();
            let error = run(&args, &mut out).unwrap_err().to_string();
            assert!(error.contains("of the findings"), "{error}");
            let printed = String::from_utf8(out).unwrap();
            for word in ["L3 cache", "cache classes", "trial", "it cannot begin", "resctrl is not mounted at /nowhere"] {
                assert!(printed.contains(word), "{word} is not in\n{printed}");
            }
        }
    }

    #[test]
    fn a_trial_beside_a_profile_says_so() {
        let machine = sluice_resctrl_stand_in::Machine::default();
        let Some(kernel) = sluice_resctrl_stand_in::StandIn::for_test(machine) else { return };
        let system = Path::new("/nowhere");
        let mut tool = Resctrl::open(kernel.path(), system).unwrap();
        tool.take_over(sluice_cache::resctrl::PROFILE).unwrap();
        let found = trial(system, kernel.path());
        assert!(
            matches!(&found[..], [one] if one.level == Level::Wrong && one.what.contains("a profile has a class")),
            "{found:?}"
        );
        drop(tool);
        let found = trial(system, kernel.path());
        assert!(found.iter().all(|finding| finding.level == Level::Good), "{found:?}");
    }
}
