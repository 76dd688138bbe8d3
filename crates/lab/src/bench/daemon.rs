//! A `sluiced` for one variant of an experiment, with its own configuration and folder.
//!
//! It is measured through its control socket. Dropping a [`Daemon`], also after an error or an
//! interruption, stops it and removes its folder.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bench::setup::Setup;
use sluice_api::client::Client;
use sluice_api::model::{Nf, Stats};

/// Time limit for a daemon to be ready.
const START_PATIENCE: Duration = Duration::from_secs(180);
/// Time limit for a daemon to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// Polling interval of waits.
const LOOK: Duration = Duration::from_millis(1);

/// This program: experiments start it for other commands and as an NF without a daemon, and daemons
/// start it as a hostile NF.
pub const LAB: &str = "sluice-lab";
/// The NF of most experiments.
pub const COST: &str = "sluice-nf-cost";

/// Programs that experiments start, and the interruption flag.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The daemon. NFs are expected beside it.
    pub sluiced: PathBuf,
    pub interrupted: Arc<AtomicBool>,
}

impl Programs {
    /// The programs beside this one. The first SIGINT or SIGTERM ends the experiment cleanly, a
    /// second one at once.
    ///
    /// # Errors
    /// `sluiced` or one of the NFs is missing.
    pub fn beside_this_one(nfs: &[&str]) -> anyhow::Result<Self> {
        let exe = std::env::current_exe().context("cannot find this program's own folder")?;
        let programs = Self::in_folder(exe.parent().unwrap_or(Path::new("/")), nfs)?;
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, programs.interrupted.clone())?;
            signal_hook::flag::register(signal, programs.interrupted.clone())?;
        }
        Ok(programs)
    }

    /// The programs in a folder.
    ///
    /// # Errors
    /// `sluiced` or one of the NFs is missing.
    pub fn in_folder(folder: &Path, nfs: &[&str]) -> anyhow::Result<Self> {
        let programs = Self { sluiced: folder.join("sluiced"), interrupted: Arc::default() };
        programs.has("sluiced", "sluice-daemon")?;
        for nf in nfs {
            programs.has(nf, nf)?;
        }
        Ok(programs)
    }

    pub fn path(&self, program: &str) -> PathBuf {
        self.sluiced.with_file_name(program)
    }

    /// Checks that a program is beside the daemon. `package` is the package that builds it.
    pub fn has(&self, program: &str, package: &str) -> anyhow::Result<()> {
        let folder = self.sluiced.parent().unwrap_or(Path::new("/"));
        ensure!(
            folder.join(program).is_file(),
            "there is no {program} in {}; build it with `cargo build --release -p {package}`",
            folder.display()
        );
        Ok(())
    }

    /// Sleeps.
    ///
    /// # Errors
    /// The experiment was interrupted.
    pub fn pause(&self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        loop {
            self.go_on()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    /// Checks that the experiment may continue.
    pub fn go_on(&self) -> anyhow::Result<()> {
        ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted; what ran was stopped, and nothing was written");
        Ok(())
    }
}

#[derive(Debug)]
pub struct Daemon {
    programs: Programs,
    child: Child,
    folder: TempDir,
    /// Time from start to the first answer.
    pub ready_after: Duration,
}

/// Mode of folders that NFs access; they run as their own users where the daemon is root.
pub fn open_to_nfs() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o1777)
}

fn run_dir(folder: &TempDir) -> PathBuf {
    folder.path().join("run")
}

/// Starts a daemon. Configuration and log are in `folder`; the log of an earlier daemon is kept.
fn spawn(programs: &Programs, folder: &Path, config: &str) -> anyhow::Result<Child> {
    let file = folder.join("sluice.toml");
    std::fs::write(&file, config).context("cannot write the configuration")?;
    let log = File::options().create(true).append(true).open(folder.join("log")).context("cannot write the log")?;
    Command::new(&programs.sluiced)
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", programs.sluiced.display()))
}

/// Sends a request to the daemon at a socket; a refusal is a normal result.
pub fn call(socket: &Path, method: &str, address: &str, body: Option<&Value>) -> anyhow::Result<(u16, Value)> {
    Client::new(socket)?.call(method, address, body).with_context(|| format!("cannot ask sluiced for {method} {address}"))
}

impl Daemon {
    /// Starts a daemon and waits until it is ready.
    ///
    /// # Errors
    /// It does not start; the error includes its log.
    pub fn start(programs: &Programs, setup: &Setup) -> anyhow::Result<Self> {
        Self::start_with(programs, |run_dir| setup.toml(run_dir))
    }

    /// Like [`Daemon::start`], with a configuration made for the folder of its sockets.
    ///
    /// # Errors
    /// It does not start; the error includes its log.
    pub fn start_with(programs: &Programs, config: impl FnOnce(&Path) -> String) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("sluice-bench-")
            .permissions(open_to_nfs())
            .tempdir()
            .context("cannot make a temporary folder")?;
        let began = Instant::now();
        let child = spawn(programs, folder.path(), &config(&run_dir(&folder)))?;
        let mut daemon = Self { programs: programs.clone(), child, folder, ready_after: Duration::ZERO };
        daemon.wait_until_ready(began)?;
        Ok(daemon)
    }

    /// Kills it, and waits for the end of its process; its children may remain.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill sluiced")?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again after its end, in the same folder.
    ///
    /// # Errors
    /// It does not start; the error includes its log.
    pub fn start_again(&mut self, config: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        self.child = spawn(&self.programs, self.folder.path(), config)?;
        self.wait_until_ready(began)
    }

    fn wait_until_ready(&mut self, began: Instant) -> anyhow::Result<()> {
        loop {
            if self.socket().exists() && self.ask("GET", "/v1/status", None).is_ok() {
                self.ready_after = began.elapsed();
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("sluiced does not start ({status}): {}", self.log());
            }
            ensure!(began.elapsed() < START_PATIENCE, "sluiced is not ready after {START_PATIENCE:?}: {}", self.log());
            self.wait_a_little()?;
        }
    }

    /// Folder of its sockets.
    pub fn run_dir(&self) -> PathBuf {
        run_dir(&self.folder)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn socket(&self) -> PathBuf {
        run_dir(&self.folder).join("control.sock")
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n  ")
    }

    /// Sends a request.
    ///
    /// # Errors
    /// It refuses, or is gone.
    pub fn ask(&self, method: &str, address: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let (status, json) = self.call(method, address, body)?;
        if !(200..300).contains(&status) {
            bail!("sluiced answers {status} to {method} {address}: {}", json["error"].as_str().unwrap_or("no reason given"));
        }
        Ok(json)
    }

    /// Sends a request; a refusal is a normal result. Returns the status and the JSON.
    pub fn call(&self, method: &str, address: &str, body: Option<&Value>) -> anyhow::Result<(u16, Value)> {
        call(&self.socket(), method, address, body)
    }

    /// Applies another setup.
    ///
    /// # Errors
    /// It refuses, or is gone.
    pub fn apply(&self, setup: &Setup) -> anyhow::Result<()> {
        let config = setup.toml(&run_dir(&self.folder));
        self.ask("POST", "/v1/apply", Some(&json!({ "config": config }))).map(drop)
    }

    /// Reads all counters.
    pub fn stats(&self) -> anyhow::Result<Stats> {
        Ok(serde_json::from_value(self.ask("GET", "/v1/stats", None)?)?)
    }

    /// Reads the state of one NF.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn nf(&self, name: &str) -> anyhow::Result<Nf> {
        Ok(serde_json::from_value(self.ask("GET", &format!("/v1/nfs/{name}"), None)?)?)
    }

    /// Sleeps for one polling interval.
    ///
    /// # Errors
    /// The experiment was interrupted.
    pub fn wait_a_little(&self) -> anyhow::Result<()> {
        self.programs.pause(LOOK)
    }

    /// Polls until `look` returns something.
    ///
    /// # Errors
    /// It takes longer than `patience`, or the experiment was interrupted.
    pub fn wait_for<T>(
        &self,
        what: &str,
        patience: Duration,
        mut look: impl FnMut(&Self) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let began = Instant::now();
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            ensure!(
                began.elapsed() < patience,
                "after {patience:?} there is still no sign of: {what}; sluiced says: {}",
                self.log()
            );
            self.wait_a_little()?;
        }
    }

    /// Stops it, and checks that nothing is left.
    ///
    /// # Errors
    /// It failed, took too long, or left something behind.
    pub fn stop(mut self) -> anyhow::Result<()> {
        let nfs: Vec<u32> = self.stats()?.nfs.iter().filter_map(|nf| nf.pid).collect();
        let status = self.end(STOP_PATIENCE)?.context("sluiced did not stop in time, and was killed")?;
        let how = status.signal().map_or_else(|| status.to_string(), |signal| format!("signal {signal}"));
        ensure!(status.success(), "sluiced did not end well ({how}): {}", self.log());
        let left: Vec<u32> = nfs.into_iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
        ensure!(left.is_empty(), "sluiced left the NF processes {left:?} behind");
        if let Ok(entries) = std::fs::read_dir(self.folder.path().join("run")) {
            let left: Vec<_> = entries.flatten().map(|e| e.file_name()).collect();
            ensure!(left.is_empty(), "sluiced left {left:?} behind in its runtime folder");
        }
        Ok(())
    }

    /// Stops it and waits; if that takes too long, kills it and returns nothing.
    fn end(&mut self, patience: Duration) -> anyhow::Result<Option<ExitStatus>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(status));
        }
        // Not reaped yet, so the number is still its own.
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let began = Instant::now();
        while began.elapsed() < patience {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(LOOK);
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(None)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(error) = self.end(STOP_PATIENCE) {
            eprintln!("sluice bench: cannot stop sluiced (process {}): {error}", self.child.id());
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::skip::skip;

    /// The programs built beside this test, if all of them were.
    pub fn built(nfs: &[&str]) -> Option<Programs> {
        let exe = std::env::current_exe().ok()?;
        let found = Programs::in_folder(exe.parent()?.parent()?, nfs);
        found.inspect_err(|why| skip(format_args!("{why:#}"))).ok()
    }

    /// Runs `sluice check` on a configuration, if it and the NFs were built.
    pub fn assert_accepted(setup: &Setup, nfs: &[&str]) {
        let Some(sluice) = built(nfs).map(|p| p.path("sluice")).filter(|s| s.is_file()) else {
            return skip("sluice is not built");
        };
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("sluice.toml");
        std::fs::write(&config, setup.toml(&folder.path().join("run"))).unwrap();
        let answer = Command::new(sluice).args(["check", "--no-host"]).arg(config).output().unwrap();
        assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    }

    #[test]
    fn missing_programs_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Programs::in_folder(folder.path(), &["sluice-nf-bridge"]).unwrap_err().to_string();
        assert!(error.contains("no sluiced in") && error.contains("cargo build --release -p sluice-daemon"), "{error}");
        std::fs::write(folder.path().join("sluiced"), "").unwrap();
        let error = Programs::in_folder(folder.path(), &["sluice-nf-bridge"]).unwrap_err().to_string();
        assert!(error.contains("no sluice-nf-bridge in"), "{error}");
    }

    #[test]
    fn a_program_that_ends_at_once_is_an_error_with_its_words() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sluiced");
        std::fs::write(&path, "#!/bin/sh\necho no luck today >&2\nexit 3\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(folder.path().join("nf"), "").unwrap();
        let programs = Programs::in_folder(folder.path(), &["nf"]).unwrap();
        let error = Daemon::start(&programs, &Setup::default()).unwrap_err().to_string();
        assert!(error.contains("does not start") && error.contains("no luck today"), "{error}");
    }

    #[test]
    fn an_interruption_ends_a_wait() {
        let programs = Programs { sluiced: "/nowhere".into(), interrupted: Arc::new(AtomicBool::new(true)) };
        assert!(programs.pause(Duration::from_secs(3600)).unwrap_err().to_string().starts_with("interrupted"));
    }
}
