//! Undoes what a controller did to a process.
//!
//! The controller runs this when it releases a target, the [guard](super::guard) when the
//! controller's process has died: one piece of code, so that the second case is as well tested as
//! the first. Each step is valid at any time: before the change, after it, and twice.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Signal;
use sluice_shm::gate::Gate;
use sluice_shm::memory::Mapping;

use super::Failed;
use super::attr::Attr;
use crate::cgroup::processes_below;
use crate::process::{Identity, Proc, send_signal};

/// Maximum time for moved or ending processes to leave a cgroup.
const PATIENCE: Duration = Duration::from_secs(2);

/// Maximum number of passes over the threads of a process, or the processes of a cgroup.
const PASSES: usize = 16;

/// The host's operations for undoing. Tests inject another root, and plain folders as cgroups.
#[derive(Debug, Clone)]
pub struct HostOps {
    pub(super) proc: Proc,
    pub(super) make: fn(&Path) -> io::Result<()>,
    /// Removes an empty cgroup.
    pub(super) remove: fn(&Path) -> io::Result<()>,
}

impl HostOps {
    /// The host with this file-system root.
    pub fn at(root: &Path) -> Self {
        Self { proc: Proc::at(root.join("proc")), make: |folder| fs::create_dir(folder), remove: |folder| fs::remove_dir(folder) }
    }
}

/// A change to be undone.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Undo {
    /// Send SIGCONT to a process.
    Continue { process: Identity },
    /// Restore class and priority of each thread.
    Classes {
        process: Identity,
        /// The former attributes by thread id.
        threads: BTreeMap<i32, Attr>,
        /// Attributes for newer threads; None leaves them.
        others: Option<Attr>,
    },
    /// Thaw a cgroup, and move processes out of it if it was made for them.
    Thaw {
        folder: PathBuf,
        /// The state file below it.
        file: String,
        text: String,
        /// Whether it was made for them: then they go back, and it is removed.
        made: bool,
        /// Their former cgroup, also for newer processes.
        home: PathBuf,
        /// Processes with another former cgroup.
        elsewhere: Vec<(i32, PathBuf)>,
    },
    /// Remove a cgroup that was made for others.
    Remove { folder: PathBuf },
    /// Open a gate, in memory that is passed along.
    Open {
        at: usize,
        /// Length of the memory, in bytes.
        bytes: usize,
    },
}

impl Undo {
    /// Undoes the change. No error if the process has ended, or it is undone already.
    ///
    /// # Errors
    /// The first thing that could not be undone; the others were.
    pub(crate) fn perform(&self, host: &HostOps, memory: Option<BorrowedFd<'_>>) -> Result<(), Failed> {
        match self {
            Self::Continue { process } => {
                let failed = |source| Failed::System { doing: "continue", pid: process.pid, source };
                match process.open(&host.proc).map_err(failed)? {
                    Some(pidfd) => send_signal(pidfd.as_fd(), Signal::CONT).map_err(failed),
                    None => Ok(()),
                }
            }
            Self::Classes { process, threads, others } => restore_classes(&host.proc, *process, threads, others.as_ref()),
            Self::Thaw { folder, file, text, made, home, elsewhere } => {
                match fs::write(folder.join(file), text) {
                    Err(error) if !is_gone(&error) => return Err(failed("thaw the cgroup of", &error)),
                    _ => {}
                }
                if !*made {
                    return Ok(());
                }
                let moved = leave(folder, home, elsewhere);
                remove(host, folder).map_err(|error| failed("remove the cgroup of", &error))?;
                moved.map_err(|error| failed("move to its former cgroup", &error))
            }
            Self::Remove { folder } => remove(host, folder).map_err(|error| failed("remove the cgroup of", &error)),
            Self::Open { at, bytes } => {
                let failed = || Failed::System { doing: "open the gate of", pid: 0, source: Errno::BADF };
                let mapping = Mapping::new(memory.ok_or_else(failed)?, *bytes, false).map_err(|_| failed())?;
                Gate::in_mapping(&mapping, *at).ok_or_else(failed)?.open();
                Ok(())
            }
        }
    }
}

fn failed(doing: &'static str, error: &io::Error) -> Failed {
    Failed::System { doing, pid: 0, source: Errno::from_io_error(error).unwrap_or(Errno::IO) }
}

/// Whether a file is missing because its cgroup is.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

fn restore_classes(proc: &Proc, process: Identity, former: &BTreeMap<i32, Attr>, others: Option<&Attr>) -> Result<(), Failed> {
    // Held until the end: while it is open, reuse of the number is detected below.
    let Ok(Some(_pidfd)) = process.open(proc) else { return Ok(()) };
    let mut result = Ok(());
    let mut done: Vec<i32> = Vec::new();
    for _ in 0..PASSES {
        let new: Vec<i32> = proc.threads(process.pid).into_iter().filter(|tid| !done.contains(tid)).collect();
        if new.is_empty() {
            break;
        }
        for tid in new {
            done.push(tid);
            let Some(attr) = former.get(&tid).or(others) else { continue };
            match attr.give(tid) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(source) => {
                    result = result.and(Err(Failed::System { doing: "give its class back to", pid: process.pid, source }))
                }
            }
        }
    }
    result
}

/// Moves the processes of a cgroup back to their former ones.
fn leave(folder: &Path, home: &Path, elsewhere: &[(i32, PathBuf)]) -> io::Result<()> {
    let mut result = Ok(());
    for _ in 0..PASSES {
        let mut pids = Vec::new();
        match processes_below(folder, &mut pids) {
            Err(error) if is_gone(&error) => break,
            other => other?,
        }
        if pids.is_empty() {
            break;
        }
        result = Ok(());
        for pid in pids {
            let to = elsewhere.iter().find(|(other, _)| *other == pid).map_or(home, |(_, to)| to);
            match fs::write(to.join("cgroup.procs"), pid.to_string()) {
                // Ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => result = Err(error),
                Ok(()) => {}
            }
        }
    }
    result
}

/// Removes an empty cgroup, waiting a little for leaving processes.
fn remove(host: &HostOps, folder: &Path) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        match (host.remove)(folder) {
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}
