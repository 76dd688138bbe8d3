//! Other programs that the client starts, found beside it or in PATH.
//!
//! `sluice-lab` runs some of its commands, `sluice-cluster` those with `--cluster`, and `sluiced`
//! checks ports and replays captures.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use sluice_api::config::Config;
use sluice_config::host::{Host, resolve_exec};
use sluice_config::problem::{At, Problem, Severity};
use sluice_config::schema;

const LAB: &str = "sluice-lab";
const CLUSTER: &str = "sluice-cluster";
const DAEMON: &str = "sluiced";

/// Becomes `sluice-lab`. Returns only on an error.
pub fn become_lab() -> anyhow::Result<()> {
    become_other(LAB, "install the package sluice-lab")
}

/// Becomes `sluice-cluster`. Returns only on an error.
pub fn become_cluster() -> anyhow::Result<()> {
    become_other(CLUSTER, "`make install-cluster` in the sources builds and installs it")
}

/// Becomes another program, with the same arguments, environment and files.
fn become_other(program: &str, remedy: &str) -> anyhow::Result<()> {
    let Some(path) = find(program) else {
        bail!("this command needs the program {program}, which is neither beside sluice nor in PATH: {remedy}");
    };
    let error = Command::new(&path).args(std::env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("cannot start {}", path.display()))
}

fn find(program: &str) -> Option<PathBuf> {
    resolve_exec(Path::new(program), &Host::here()).ok()
}

/// The program of the daemon.
pub fn daemon() -> anyhow::Result<PathBuf> {
    find(DAEMON).with_context(|| format!("the program {DAEMON} is neither beside sluice nor in PATH"))
}

/// A problem from `sluiced --ports`.
#[derive(Debug, Deserialize)]
struct Found {
    severity: Severity,
    at: Place,
    message: String,
    help: String,
}

/// The value of a problem.
#[derive(Debug, Deserialize)]
struct Place {
    section: String,
    entry: Option<usize>,
    key: String,
}

impl From<Found> for Problem {
    fn from(found: Found) -> Self {
        let Place { section, entry, key } = found.at;
        let known = || schema::SECTIONS.iter().filter(|known| known.name == section);
        let key = known().flat_map(|known| &known.keys).find(|known| known.name == key).map_or("", |known| known.name);
        let at = At { section: known().next().map_or("manager", |known| known.name), entry, key, item: None };
        Self { severity: found.severity, ..Self::error(at, found.message, found.help) }
    }
}

const PORT: &str = "port";

/// What the daemon of this host cannot do of a configuration: it knows its drivers and features,
/// opens the ports, and reads the files of the page.
pub fn port_problems(path: &Path, config: &Config) -> Vec<Problem> {
    let first = config.ports.iter().position(|port| port.kind.is_of_host());
    let page = &config.page;
    let files = page.certificate.is_some() || page.token.is_some() || !page.operators.is_empty();
    ask(path).unwrap_or_else(|error| {
        let help = "install sluiced beside sluice, or check with --no-host";
        let warn = |at, what: &str| Problem::warning(at, format!("{what} were not looked at: {error:#}"), help);
        let ports = first.map(|first| warn(At::entry(PORT, first, "kind"), "ports"));
        let page = files.then(|| warn(At::key("page", "listen"), "files of the page"));
        ports.into_iter().chain(page).collect()
    })
}

fn ask(path: &Path) -> anyhow::Result<Vec<Problem>> {
    let daemon = daemon()?;
    let mut command = Command::new(&daemon);
    // Its log is not what is asked for.
    command.env_remove("SLUICE_LOG");
    let answer = command.arg("--ports").arg(path).stdin(Stdio::null()).output();
    let answer = answer.with_context(|| format!("cannot start {}", daemon.display()))?;
    ensure!(answer.status.success(), "{} says: {}", daemon.display(), String::from_utf8_lossy(&answer.stderr).trim());
    let found: Vec<Found> =
        serde_json::from_slice(&answer.stdout).with_context(|| format!("{} is another version", daemon.display()))?;
    Ok(found.into_iter().map(Problem::from).collect())
}
