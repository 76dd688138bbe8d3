//! The cores that a thread may run on.
//!
//! Terms: *core* is the kernel's processor number. *Allowed* cores are those given to this process
//! (cpuset, `taskset`); *online* cores are enabled on the host. Limits: this interface covers 1,024
//! cores. Pinning is per thread; new threads and processes inherit the cores.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::process;

/// Most passes over a process's threads: one that is made meanwhile may have the former cores.
const PASSES: usize = 16;
/// Most threads of a process that are moved, so that none keeps this thread busy.
const MOST_THREADS: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum AffinityError {
    /// The core does not exist, or this process may not use it.
    #[error("core {core} is not among the cores that this process may use ({}); choose one of those", list(.allowed))]
    NoSuchCore { core: usize, allowed: Vec<usize> },
    /// The process has ended: what has its number is another one.
    #[error("the process has ended")]
    Ended,
    #[error("the process has more than {MOST_THREADS} threads, or makes them faster than they can be moved; start it with fewer")]
    Unsettled,
    #[error("cannot read or set the cores of a thread: {0}")]
    System(#[from] Errno),
}

/// A thread's cores at some time, to be restored.
#[derive(Debug, Clone)]
pub struct Saved(CpuSet);

impl Saved {
    /// The cores of the calling thread.
    ///
    /// # Errors
    /// [`AffinityError::System`].
    pub fn of_this_thread() -> Result<Self, AffinityError> {
        Ok(Self(sched_getaffinity(None)?))
    }

    /// Core numbers, ascending.
    pub fn cores(&self) -> Vec<usize> {
        (0..CpuSet::MAX_CPU).filter(|core| self.0.is_set(*core)).collect()
    }

    /// Restores these cores for the calling thread.
    ///
    /// # Errors
    /// [`AffinityError::System`], for example when all of them are offline by now.
    pub fn restore(&self) -> Result<(), AffinityError> {
        Ok(sched_setaffinity(None, &self.0)?)
    }
}

/// The calling thread's cores, ascending. Call it before pinning: a pinned thread sees one.
///
/// # Errors
/// [`AffinityError::System`].
pub fn allowed() -> Result<Vec<usize>, AffinityError> {
    Ok(Saved::of_this_thread()?.cores())
}

/// The cores of the first thread of a process, ascending.
///
/// # Errors
/// [`AffinityError::Ended`], [`AffinityError::System`].
pub fn of_process(pid: Pid) -> Result<Vec<usize>, AffinityError> {
    match sched_getaffinity(Some(pid)) {
        Ok(cores) => Ok(Saved(cores).cores()),
        Err(Errno::SRCH) => Err(AffinityError::Ended),
        Err(error) => Err(error.into()),
    }
}

/// Pins the calling thread to `core`; returns its former cores.
///
/// # Errors
/// [`AffinityError::NoSuchCore`], [`AffinityError::System`].
pub fn pin(core: usize) -> Result<Saved, AffinityError> {
    let before = Saved::of_this_thread()?;
    let refused = |before: &Saved| AffinityError::NoSuchCore { core, allowed: before.cores() };
    if core >= CpuSet::MAX_CPU {
        return Err(refused(&before));
    }
    let mut only = CpuSet::new();
    only.set(core);
    match sched_setaffinity(None, &only) {
        Ok(()) => Ok(before),
        Err(Errno::INVAL) => Err(refused(&before)),
        Err(error) => Err(error.into()),
    }
}

/// Pins all threads of a process to `core`. `pidfd` is the process, whatever has its number by now.
///
/// # Errors
/// [`AffinityError`]; then all threads have their former cores.
pub fn pin_process(pid: Pid, pidfd: BorrowedFd<'_>, core: usize) -> Result<(), AffinityError> {
    let lives = || -> Result<(), AffinityError> {
        if process::wait_readable(pidfd, Some(0))? { Err(AffinityError::Ended) } else { Ok(()) }
    };
    lives()?;
    let mut former = HashMap::new();
    // What was moved belonged to the process if that has not ended meanwhile.
    let done = pin_threads(pid, core, &mut former).and_then(|()| lives());
    if done.is_err() {
        for (tid, cores) in &former {
            // It may have ended.
            let _ = sched_setaffinity(Some(*tid), cores);
        }
    }
    done
}

fn pin_threads(pid: Pid, core: usize, former: &mut HashMap<Pid, CpuSet>) -> Result<(), AffinityError> {
    let mut only = CpuSet::new();
    only.set(core);
    for _ in 0..PASSES {
        let new: Vec<Pid> = threads(pid)?.into_iter().filter(|tid| !former.contains_key(tid)).collect();
        if new.is_empty() {
            return Ok(());
        }
        if former.len() + new.len() > MOST_THREADS {
            break;
        }
        for tid in new {
            let moved = sched_getaffinity(Some(tid)).and_then(|before| sched_setaffinity(Some(tid), &only).map(|()| before));
            match moved {
                // It may be another process's thread by now.
                Ok(before) if !task(pid, tid).exists() => {
                    let _ = sched_setaffinity(Some(tid), &before);
                }
                Ok(before) => {
                    former.insert(tid, before);
                }
                // The thread has ended meanwhile.
                Err(Errno::SRCH) => {}
                Err(Errno::INVAL) => {
                    return Err(AffinityError::NoSuchCore { core, allowed: Saved(sched_getaffinity(Some(tid))?).cores() });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Err(AffinityError::Unsettled)
}

fn task(pid: Pid, tid: Pid) -> PathBuf {
    PathBuf::from(format!("/proc/{}/task/{}", pid.as_raw_nonzero(), tid.as_raw_nonzero()))
}

/// The threads of a process; none if it has ended.
fn threads(pid: Pid) -> Result<Vec<Pid>, AffinityError> {
    let folder = format!("/proc/{}/task", pid.as_raw_nonzero());
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = match entries.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
        Err(Errno::NOENT | Errno::SRCH) => return Ok(Vec::new()),
        entries => entries?,
    };
    Ok(entries.iter().filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect())
}

/// The host's online cores, ascending. `sys` is the root of sysfs, `/sys`.
///
/// # Errors
/// The system's; [`io::ErrorKind::InvalidData`] if the kernel's list is malformed.
pub fn online(sys: &Path) -> io::Result<Vec<usize>> {
    let text = std::fs::read_to_string(sys.join("devices/system/cpu/online"))?;
    parse_list(text.trim()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("not a list of cores: {text:?}")))
}

/// Parses a list such as `0-3,8`, the form of the kernel's files. None if it is malformed.
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || last >= 1 << 16 {
            return None;
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Some(cores)
}

/// Formats cores, ascending, as the kernel's files do, such as `0-3,8`.
pub fn list<'a>(cores: impl IntoIterator<Item = &'a usize>) -> String {
    let cores: Vec<usize> = cores.into_iter().copied().collect();
    let runs = cores.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_thread_is_pinned_and_let_go() {
        let worker = std::thread::spawn(|| {
            let before = allowed().unwrap();
            let core = *before.last().unwrap();
            let saved = pin(core).unwrap();
            assert_eq!(saved.cores(), before);
            assert_eq!(allowed().unwrap(), [core]);
            assert_eq!(rustix::thread::sched_getcpu(), core);
            saved.restore().unwrap();
            assert_eq!(allowed().unwrap(), before);
        });
        worker.join().unwrap();
    }

    const THREADS: &str = "SLUICE_TEST_PINNED";

    /// Not a test itself: the process with threads of [`all_threads_of_a_process_are_pinned`].
    #[test]
    fn process_to_pin() {
        if std::env::var_os(THREADS).is_some() {
            (0..3).for_each(|_| drop(std::thread::spawn(std::thread::park)));
            println!("threads started");
            std::thread::park();
        }
    }

    #[test]
    fn all_threads_of_a_process_are_pinned() {
        use std::io::BufRead;
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let name = format!("{}::process_to_pin", module_path!().split_once("::").unwrap().1);
        command.args(["--exact", &name, "--nocapture"]).env(THREADS, "1").stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert!({ lines }.any(|line| line.unwrap().contains("threads started")));
        let pid = Pid::from_child(&child);
        let pidfd = process::pidfd_open(pid).unwrap();
        let cores = || -> Vec<Vec<usize>> {
            let of = |tid| Saved(sched_getaffinity(Some(tid)).unwrap()).cores();
            threads(pid).unwrap().into_iter().map(of).collect()
        };
        let (core, before) = (*allowed().unwrap().last().unwrap(), cores());
        assert!(before.len() >= 4, "{before:?}");
        let error = pin_process(pid, pidfd.as_fd(), CpuSet::MAX_CPU - 1).unwrap_err();
        assert!(matches!(error, AffinityError::NoSuchCore { .. }), "{error}");
        assert_eq!(cores(), before);
        pin_process(pid, pidfd.as_fd(), core).unwrap();
        assert_eq!(cores(), vec![vec![core]; before.len()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(pin_process(pid, pidfd.as_fd(), core), Err(AffinityError::Ended)));
    }

    #[test]
    fn a_core_that_is_not_there_is_named_with_those_that_are() {
        let have = list(&allowed().unwrap());
        for core in [1023, 5000] {
            let error = pin(core).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("core {core} is not among the cores that this process may use ({have}); choose one of those")
            );
        }
    }

    #[test]
    fn lists_are_read_and_written() {
        assert_eq!(parse_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("3-1"), None);
        assert_eq!(parse_list("0-99999999999"), None);
        assert_eq!(parse_list("a"), None);
        assert_eq!(list(&[0, 1, 2, 3, 8]), "0-3,8");
        assert_eq!(list(&[1]), "1");
        assert_eq!(list(&[0, 2, 3, 4, 9]), "0,2-4,9");
        assert_eq!(list(&[]), "");
    }

    #[test]
    fn online_cores_come_from_the_given_root() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("devices/system/cpu");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("online"), "0-1,4\n").unwrap();
        assert_eq!(online(root.path()).unwrap(), [0, 1, 4]);
        std::fs::write(folder.join("online"), "many\n").unwrap();
        assert_eq!(online(root.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(online(Path::new("/sys")).unwrap().contains(&rustix::thread::sched_getcpu()));
    }
}
