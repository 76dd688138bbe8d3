//! A run of a peer: its files, its processes, their end, and its output.
//!
//! # Approach
//! Its output goes into a file of the run's folder, of which the end is read. Its processes are a
//! process group, on the cores of the run. The group is killed when its first process has ended,
//! when that takes too long or writes too much, and when the experiment ends before.
//!
//! # Limits
//! A process that leaves the group (a daemon) has to be ended by what the adapter starts.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::adapter::{Adapter, RunValues};
use crate::bench::daemon::Programs;

/// Most output, in bytes.
const MOST_OUTPUT: u64 = 64 << 20;
/// Bytes of it that are read, from its end.
const READ: u64 = 1 << 20;
/// Time from the request to end until a peer is killed.
const GRACE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// The processes of a peer, which end with it.
struct PeerProcesses {
    child: Child,
    is_collected: bool,
}

impl PeerProcesses {
    fn start(command: &[String], cores: &[usize], output: &File) -> anyhow::Result<Self> {
        let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let child = Command::new("taskset")
            .args(["-c", &list])
            .args(command)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .process_group(0)
            .spawn()
            .context("cannot run taskset; install util-linux")?;
        Ok(Self { child, is_collected: false })
    }

    /// Whether its first process has ended. It is not collected, so its number is still its own.
    fn has_ended(&self) -> std::io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.child)), options)?.is_some())
    }

    /// Ends all of its processes; returns how the first one ended.
    fn end(&mut self) -> std::io::Result<ExitStatus> {
        if !self.is_collected {
            let group = Pid::from_child(&self.child);
            let began = Instant::now();
            if !self.has_ended()? {
                // There may be nothing left of the group meanwhile.
                let _ = kill_process_group(group, Signal::TERM);
                while !self.has_ended()? && began.elapsed() < GRACE {
                    std::thread::sleep(LOOK);
                }
            }
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.is_collected = true;
        self.child.wait()
    }
}

impl Drop for PeerProcesses {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("sluice bench: cannot end process {}: {error}", self.child.id());
        }
    }
}

/// The end of a file, as text.
fn end_of(path: &Path) -> anyhow::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(READ)))?;
    let mut bytes = Vec::new();
    file.take(READ).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of an output, for an error.
fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    match &lines[lines.len().saturating_sub(4)..] {
        [] => "it printed nothing".into(),
        last => {
            let last: String = last.join("\n  ").chars().take(1000).collect();
            format!("it printed last:\n  {last}")
        }
    }
}

/// Runs a peer to its end, and returns the packets per second that it delivered.
///
/// # Errors
/// It cannot be started, fails, does not end in time, or prints no rate; or the experiment was
/// interrupted.
pub fn delivered_pps(adapter: &Adapter, values: &RunValues, programs: &Programs) -> anyhow::Result<f64> {
    for (name, text) in adapter.texts(values)? {
        std::fs::write(values.folder.join(name), text).with_context(|| format!("cannot write {name} of {}", adapter.name))?;
    }
    let path = values.folder.join(".output");
    let output = File::create(&path).context("cannot make a file for the output")?;
    let mut peer = PeerProcesses::start(&adapter.command(values)?, values.cores, &output)?;
    let patience = Duration::from_secs_f64(values.seconds + adapter.patience_s);
    let began = Instant::now();
    while !peer.has_ended()? {
        let is_late = began.elapsed() >= patience;
        if is_late || output.metadata()?.len() > MOST_OUTPUT {
            peer.end()?;
            let why = if is_late { format!("does not end after {patience:.1?}") } else { "prints too much".to_string() };
            bail!("{} {why} and was ended; {}", adapter.name, tail(&end_of(&path)?));
        }
        programs.pause(LOOK)?;
    }
    let status = peer.end()?;
    let text = end_of(&path)?;
    ensure!(status.success(), "{} failed ({status}); {}", adapter.name, tail(&text));
    adapter.delivered_pps(&text).with_context(|| format!("{}: {}", adapter.name, tail(&text)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::adapter::tests::shell;
    use super::*;

    /// What a script as a peer leads to; `folder` is that of the run.
    fn run(script: &str, patience_s: f64, folder: &Path) -> Result<f64, String> {
        let programs = Programs { sluiced: "/nowhere".into(), interrupted: Arc::default() };
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let core = (0..rustix::thread::CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
        let mut adapter = shell("stub", script);
        adapter.patience_s = patience_s;
        let values = RunValues { cores: &[core], seconds: 0.0, packet_bytes: 64, flows: 16, chain_length: 3, folder };
        delivered_pps(&adapter, &values, &programs).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_rate_is_read_and_faults_are_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(run("echo rate 1; echo rate {chain_length}{frame_bytes}", 60.0, folder.path()), Ok(360_000.0));
        let said = |script: &str| run(script, 60.0, folder.path()).unwrap_err();
        let failed = said("echo rate 5; echo no hugepages >&2; exit 3");
        assert!(failed.contains("stub failed (exit status: 3)") && failed.contains("no hugepages"), "{failed}");
        let silent = said("true");
        assert!(silent.contains("it prints no rate") && silent.contains("it printed nothing"), "{silent}");
    }

    #[test]
    fn one_that_hangs_is_ended_with_all_of_its_processes() {
        let folder = tempfile::tempdir().unwrap();
        // Neither of them ends when asked to.
        let script = "trap '' TERM; echo alive; sleep 1000 & echo $! > {folder}/pid; wait; sleep 1000";
        let error = run(script, 0.5, folder.path()).unwrap_err();
        assert!(error.contains("stub does not end after 500.0ms") && error.contains("alive"), "{error}");
        let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        // Its parent may not have collected it yet.
        let is_over = || state().ok().is_none_or(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])));
        let began = Instant::now();
        while !is_over() {
            assert!(began.elapsed() < Duration::from_secs(60), "process {} is left", pid.trim());
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn only_the_end_of_a_long_output_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "a".repeat(READ as usize) + "end\n").unwrap();
        let text = end_of(&path).unwrap();
        assert!(text.len() as u64 == READ && text.ends_with("aend\n"));
        assert_eq!(tail("a\n\nb\nc\nd\ne\n"), "it printed last:\n  b\n  c\n  d\n  e");
    }
}
