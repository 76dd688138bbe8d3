//! Man pages of `sluice`, made of its command line.

use std::path::Path;
use std::{fs, io};

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::args::Cli;

/// Writes a page for each command that is not hidden: `sluice-nf-add.1` for `sluice nf add`.
pub fn write(folder: &Path) -> io::Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    of(&command, folder)
}

fn of(command: &Command, folder: &Path) -> io::Result<()> {
    let page = Man::new(command.clone().after_help(None::<&'static str>));
    // No date, so that a build can be repeated; an empty one would not be an argument at all.
    let page = page.date(" ").source(concat!("Sluice ", env!("CARGO_PKG_VERSION"))).manual("Sluice");
    let mut text = Vec::new();
    page.render(&mut text)?;
    if let Some(help) = command.get_after_help() {
        notes(&help.to_string()).to_writer(&mut text)?;
    }
    fs::write(folder.join(page.get_filename()), text)?;
    shown(command).try_for_each(|inner| of(inner, folder))
}

/// The text below the options: examples and tables, which are indented, keep their lines.
fn notes(help: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["NOTES"]);
    let mut is_indented = false;
    for line in help.lines() {
        if line.starts_with(' ') != is_indented {
            is_indented = !is_indented;
            roff.control(if is_indented { "nf" } else { "fi" }, []);
        }
        if line.is_empty() {
            roff.control("PP", []);
        } else {
            roff.text([roman(line)]);
        }
    }
    roff
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process;

    use super::*;
    use crate::skip::skip;

    fn names(command: &Command, before: &str, all: &mut BTreeSet<String>) {
        let name = format!("{before}{}", command.get_name());
        shown(command).for_each(|inner| names(inner, &format!("{name}-"), all));
        all.insert(name + ".1");
    }

    #[test]
    fn each_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let mut wanted = BTreeSet::new();
        names(&Cli::command(), "", &mut wanted);
        for (page, there) in [("sluice-nf-add.1", true), ("sluice-bench.1", true), ("sluice-man.1", false)] {
            assert_eq!(wanted.contains(page), there, "{wanted:?}");
        }
        let pages = fs::read_dir(folder.path()).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap());
        assert_eq!(pages.collect::<BTreeSet<_>>(), wanted);
    }

    #[test]
    fn pages_render() {
        if process::Command::new("groff").arg("--version").output().is_err() {
            return skip("groff is not installed");
        }
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for (name, wanted) in [
            ("sluice", ["SLUICE_CONTROL", "sluice-bench(1)", "  sluice check sluice.toml          find mistakes before"]),
            (
                "sluice-rule-add",
                ["--dst-port", "NOTES", "  sluice rule add --chain web --protocol tcp --dst-port 80-443 --position 0"],
            ),
        ] {
            let page = folder.path().join(format!("{name}.1"));
            // As a terminal of 120 columns shows it, without escape sequences; unknown macros are
            // warned of.
            let options = ["-k", "-man", "-Tutf8", "-P-cbou", "-wmac", "-Wbreak", "-rLL=120n"];
            let groff = process::Command::new("groff").args(options).arg(&page).output().unwrap();
            let (shown, warnings) = (String::from_utf8_lossy(&groff.stdout), String::from_utf8_lossy(&groff.stderr));
            assert!(groff.status.success() && warnings.is_empty(), "{name}: {warnings}");
            for words in wanted {
                assert!(shown.contains(words), "{words} is not in\n{shown}");
            }
        }
    }
}
