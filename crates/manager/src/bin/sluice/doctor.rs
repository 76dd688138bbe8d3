//! `sluice doctor`: what this host has of cache control.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use sluice_cache::doctor::{Finding, Level, examine, try_out};
use sluice_cache::resctrl::{MOUNT_POINT, Resctrl};

use crate::commands::json;
use crate::table::{Cell, Table, Tone, colour};

/// What `sluice doctor --help` says below the options.
pub const HELP: &str = "\
Examples:
  sluice doctor                         look, and change nothing
  sluice doctor --try                   make a cache class, use it, and release it (root)

Exit code 1 if something is there and does not work; what is not there at all is no failure.";

/// Arguments of `sluice doctor`.
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

/// Looks, and tells.
///
/// # Errors
/// Something is there and does not work, or the trial cannot begin.
pub fn run(args: &DoctorArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let system = Path::new("/");
    let mut found = examine(system, &args.resctrl);
    if args.try_out {
        found.extend(try_out(&mut Resctrl::open(&args.resctrl, system)?));
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

    fn told(args: &DoctorArgs) -> String {
        let mut out = Vec::new();
        run(args, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_host_without_resctrl_is_no_failure() {
        let nowhere = DoctorArgs { try_out: false, resctrl: "/nowhere".into(), json: false };
        let table = told(&nowhere);
        assert!(table.starts_with("STATE") && table.contains("resctrl") && table.contains("→ "), "{table}");
        let found: Vec<Finding> = serde_json::from_str(&told(&DoctorArgs { json: true, ..nowhere })).unwrap();
        let resctrl = found.iter().find(|finding| finding.subject == "resctrl").unwrap();
        assert!(resctrl.level == Level::Missing && resctrl.todo.is_some(), "{resctrl:?}");
    }

    #[test]
    fn there_must_be_something_to_try() {
        let args = DoctorArgs { try_out: true, resctrl: "/nowhere".into(), json: false };
        assert!(run(&args, &mut Vec::new()).unwrap_err().to_string().contains("resctrl"));
    }
}
