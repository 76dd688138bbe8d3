//! A `sluiced` that one command starts for itself, in a folder that goes with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sluice_api::client::Client;
use tempfile::TempDir;

/// How long its end may take, with the packets that are inside.
const STOPPING: Duration = Duration::from_secs(30);
/// Time between two looks.
pub const LOOK: Duration = Duration::from_millis(10);
/// Lines of its log that an error has.
const LINES: usize = 8;

/// A running daemon. It is stopped on drop.
#[derive(Debug)]
pub struct OwnDaemon {
    child: Child,
    folder: TempDir,
}

/// The configuration in the folder of a daemon.
pub fn configuration(folder: &Path) -> PathBuf {
    folder.join("sluice.toml")
}

/// The runtime directory in the folder of a daemon.
pub fn runtime_dir(folder: &Path) -> PathBuf {
    folder.join("run")
}

impl OwnDaemon {
    /// Starts a daemon on the configuration in its folder, and waits until it answers, or `stops`.
    ///
    /// # Errors
    /// It does not start; the error has the end of its log.
    pub fn start(program: &Path, folder: TempDir, stops: &AtomicBool) -> anyhow::Result<(Self, Client)> {
        let log = File::create(folder.path().join("log")).context("cannot write a log")?;
        let child = Command::new(program)
            .arg(configuration(folder.path()))
            // Its log is what a failure is explained with, and nothing waits for it to be ready.
            .env_remove("SLUICE_LOG")
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot write a log")?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut daemon = Self { child, folder };
        let mut client = Client::new(&runtime_dir(daemon.folder.path()).join("control.sock"))?;
        loop {
            ensure!(!stops.load(Ordering::Relaxed), "interrupted");
            if client.status().is_ok() {
                return Ok((daemon, client));
            }
            daemon.is_there()?;
            std::thread::sleep(LOOK);
        }
    }

    /// Checks that it runs.
    ///
    /// # Errors
    /// It has ended; the error has the end of its log.
    pub fn is_there(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("sluiced has ended ({status}):\n{}", self.log()),
        }
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let text = fs::read(self.folder.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }

    /// Stops it, and waits until all that it writes is written.
    ///
    /// # Errors
    /// It failed on the way, or did not end in time and was killed; the error has the end of its
    /// log.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("sluiced has ended ({status}):\n{}", self.log());
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("cannot stop sluiced")?;
        let until = Instant::now() + STOPPING;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "sluiced has ended ({status}):\n{}", self.log());
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        self.child.kill().context("cannot kill sluiced")?;
        self.child.wait()?;
        bail!("sluiced did not stop within {} s and was killed:\n{}", STOPPING.as_secs(), self.log())
    }
}

impl Drop for OwnDaemon {
    fn drop(&mut self) {
        // It has ended, or an error is under way that says more.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.stop();
        }
    }
}
