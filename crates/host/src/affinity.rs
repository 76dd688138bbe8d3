//! The cores that a thread may run on.
//!
//! Terms: *core* is the kernel's processor number. *Allowed* cores are those given to this process
//! (cpuset, `taskset`); *online* cores are enabled on the host. Limits: this interface covers 1,024
//! cores. Pinning is per thread; new threads and processes inherit the cores.

use std::io;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

#[derive(Debug, thiserror::Error)]
pub enum AffinityError {
    /// The core does not exist, or this process may not use it.
    #[error("core {core} is not among the cores that this process may use ({}); choose one of those", list(.allowed))]
    NoSuchCore { core: usize, allowed: Vec<usize> },
    #[error("cannot read or set the cores of a thread: {0}")]
    System(#[from] rustix::io::Errno),
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
        Err(rustix::io::Errno::INVAL) => Err(refused(&before)),
        Err(error) => Err(error.into()),
    }
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

/// Formats cores as the kernel's files do, such as `0-3,8`.
pub fn list(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
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
