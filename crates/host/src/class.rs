//! Scheduling classes of processes, and the time slice of the round-robin class.
//!
//! # Problem
//! The kernel schedules processes that share a core by their class. Experiments and some workloads
//! need another class than the default for all threads of NFs, and an unchanged host after the
//! manager stops.
//!
//! # Terms
//! The *class* is the kernel's scheduling policy: *other* (the default, fair), *batch* (fair, never
//! preempts on wake-up), *idle* (fair, with next to no weight), *rr* (real-time: runs before all
//! fair ones; round robin within a priority, 1 to 99). The *slice* is the time after which the next
//! process of class rr and the same priority runs: one setting for the whole host, in milliseconds.
//!
//! # Approach
//! - A class belongs to a thread, so [`set`] goes through the threads of a process until all have
//!   the class: a new thread inherits the class of the thread that makes it, but for class rr where
//!   this user may set that aside (SCHED_RESET_ON_FORK).
//! - The former state is kept ([`Former`], [`Slice::former`]) and restored at the end. The slice
//!   outlives the manager, so note it with [`Record::changed`](crate::record::Record::changed)
//!   before [`RrSlice::set`].
//! - The kernel rounds the slice up to its ticks (1 ms is 4 ms with 250 ticks a second) but still
//!   shows the written value. Only a thread of class rr can read its real slice:
//!   [`Slice::effective`].
//!
//! # Limits
//! Processes are named by pid: call this only for an uncollected one that is held by a pidfd.
//! Classes that the manager never sets (deadline, fifo) are restored, but not named. A child
//! that a process starts while [`set`] runs may keep the former class. If two managers on one host
//! set different slices, the later one applies.
//!
//! # Source
//! sched(7); `sched_rr_timeslice_ms` in the kernel's `sysctl/kernel.rst` and `kernel/sched/rt.c`.

// The calls for classes have no safe wrapper in rustix.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, capabilities};

use super::cgroup;
use super::process::last_errno;

/// Least and greatest priority of class rr.
const PRIORITIES: (u8, u8) = (1, 99);

/// Maximum number of passes over a process's threads. Usually two suffice.
const PASSES: usize = 16;

/// Why a class or the slice could not be set.
#[derive(Debug, thiserror::Error)]
pub enum ClassError {
    #[error("no process has pid {pid}, so it has no scheduling class; start it first")]
    NoProcess { pid: i32 },
    #[error("class rr has no priority {priority}; choose one from {} to {}", PRIORITIES.0, PRIORITIES.1)]
    Priority { priority: u8 },
    /// This user may not set the class.
    #[error(
        "not permitted to give process {pid} the class {class}; run sluiced as root or with the capability CAP_SYS_NICE, or choose \
         another [sched] class"
    )]
    NotPermitted { pid: i32, class: Class },
    /// The process's cgroup has no real-time budget.
    #[error(
        "process {pid} cannot have class rr: its cgroup {cgroup} has no real-time budget (CONFIG_RT_GROUP_SCHED); choose another \
         [sched] class or weights = false, or write microseconds to cpu.rt_runtime_us there and in those above it (version 1 only), \
         and see that kernel.sched_rt_runtime_us is not 0"
    )]
    NoBudget { pid: i32, cgroup: PathBuf },
    /// The process makes threads faster than their class can be set.
    #[error(
        "process {pid} makes threads faster than they can be given a class; start it with fewer, or choose [sched] class = \"other\""
    )]
    Unsettled { pid: i32 },
    #[error("a slice of {ms} ms is out of range; choose one from 1 to {} ms", i32::MAX)]
    Slice { ms: u32 },
    /// This user may not change the slice, or the container mounts it read-only.
    #[error(
        "not permitted to write {path} ({source}); run sluiced as root and with a writable /proc/sys, or leave out [sched] rr_slice_ms"
    )]
    SliceNotPermitted { path: PathBuf, source: io::Error },
    #[error("cannot {doing} {what}: {source}; choose [sched] class = \"other\" and no rr_slice_ms to do without")]
    System { doing: &'static str, what: String, source: io::Error },
}

fn system(doing: &'static str, what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> ClassError {
    move |source| ClassError::System { doing, what: what.to_string(), source }
}

/// A scheduling class that the manager sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Other,
    /// Fair, but does not preempt on wake-up.
    Batch,
    /// Fair, with next to no weight: all others of the core go first.
    Idle,
    /// Real-time round robin, with a priority from 1 to 99.
    Rr(u8),
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Other => f.write_str("other"),
            Self::Batch => f.write_str("batch"),
            Self::Idle => f.write_str("idle"),
            Self::Rr(priority) => write!(f, "rr (priority {priority})"),
        }
    }
}

/// The kernel's policy and priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Policy {
    number: i32,
    priority: i32,
}

impl Policy {
    fn of(tid: i32) -> Result<Self, Errno> {
        // SAFETY: the call takes no memory of ours.
        let number = unsafe { libc::sched_getscheduler(tid) };
        let mut param = libc::sched_param { sched_priority: 0 };
        // SAFETY: `param` is live and of the type that the call writes.
        if number < 0 || unsafe { libc::sched_getparam(tid, &raw mut param) } != 0 {
            return Err(last_errno());
        }
        Ok(Self { number, priority: param.sched_priority })
    }

    fn give(self, tid: i32) -> Result<(), Errno> {
        let param = libc::sched_param { sched_priority: self.priority };
        // SAFETY: `param` is live and of the type that the call reads.
        if unsafe { libc::sched_setscheduler(tid, self.number, &raw const param) } != 0 {
            return Err(last_errno());
        }
        Ok(())
    }

    fn class(self) -> Option<Class> {
        match self.number & !libc::SCHED_RESET_ON_FORK {
            libc::SCHED_OTHER => Some(Class::Other),
            libc::SCHED_BATCH => Some(Class::Batch),
            libc::SCHED_IDLE => Some(Class::Idle),
            libc::SCHED_RR => self.priority.try_into().ok().map(Class::Rr),
            _ => None,
        }
    }

    /// The policy of a class, for a thread that had this one. What a thread of class rr makes has
    /// the default class, if this user may undo that (`without_heirs`): there are no weights in
    /// class rr, and each process would have as much of the core as its maker.
    fn changed_to(self, class: Class, without_heirs: bool) -> Self {
        let flag = if without_heirs { libc::SCHED_RESET_ON_FORK } else { 0 };
        let (number, priority) = match class {
            Class::Other => (libc::SCHED_OTHER, 0),
            Class::Batch => (libc::SCHED_BATCH, 0),
            Class::Idle => (libc::SCHED_IDLE, 0),
            Class::Rr(priority) => (libc::SCHED_RR | flag, priority.into()),
        };
        // Clearing the flag needs a capability.
        Self { number: number | self.number & libc::SCHED_RESET_ON_FORK, priority }
    }
}

/// Thread ids of a process. `root` is the file-system root.
fn threads(root: &Path, pid: i32) -> Result<Vec<i32>, ClassError> {
    let folder = root.join(format!("proc/{pid}/task"));
    let entries = fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|source| match source.raw_os_error() {
        // A process that is collected between open and read gives ESRCH.
        Some(libc::ENOENT | libc::ESRCH) => ClassError::NoProcess { pid },
        _ => system("read", folder.display())(source),
    })?;
    let tids: Vec<i32> = entries.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    if tids.is_empty() { Err(ClassError::NoProcess { pid }) } else { Ok(tids) }
}

/// The classes of a process's threads by thread id; None for a class that the manager never sets.
///
/// `root` is the file-system root, `/`, whose `proc` names the threads.
///
/// # Errors
/// [`ClassError::NoProcess`], [`ClassError::System`].
pub fn of(root: &Path, pid: Pid) -> Result<Vec<(i32, Option<Class>)>, ClassError> {
    let pid = pid.as_raw_nonzero().get();
    let mut classes = Vec::new();
    for tid in threads(root, pid)? {
        match Policy::of(tid) {
            Ok(policy) => classes.push((tid, policy.class())),
            // The thread has ended meanwhile.
            Err(Errno::SRCH) => {}
            Err(error) => return Err(system("read the scheduling class of thread", tid)(error.into())),
        }
    }
    if classes.is_empty() { Err(ClassError::NoProcess { pid }) } else { Ok(classes) }
}

/// The policies of a process's threads before [`set`].
#[derive(Debug, Clone)]
pub struct Former {
    root: PathBuf,
    pid: i32,
    threads: BTreeMap<i32, Policy>,
}

impl Former {
    /// Restores the threads' policies; new threads get that of the main thread.
    ///
    /// No error if the process has ended.
    ///
    /// # Errors
    /// [`ClassError::NotPermitted`], [`ClassError::System`].
    pub fn restore(&self) -> Result<(), ClassError> {
        let first = self.threads.get(&self.pid).or(self.threads.values().next());
        let tids = match threads(&self.root, self.pid) {
            Err(ClassError::NoProcess { .. }) => return Ok(()),
            other => other?,
        };
        for tid in tids {
            let Some(policy) = self.threads.get(&tid).or(first) else { return Ok(()) };
            match policy.give(tid) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(refused(&self.root, self.pid, policy.class().unwrap_or(Class::Other), error)),
            }
        }
        Ok(())
    }
}

/// Sets the class of all threads of a process.
///
/// `root` is the file-system root, `/`, whose `proc` names the threads.
///
/// # Errors
/// [`ClassError`]; then the threads have their former policies.
pub fn set(root: &Path, pid: Pid, class: Class) -> Result<Former, ClassError> {
    let pid = pid.as_raw_nonzero().get();
    if let Class::Rr(priority) = class
        && !(PRIORITIES.0..=PRIORITIES.1).contains(&priority)
    {
        return Err(ClassError::Priority { priority });
    }
    let mut former = Former { root: root.into(), pid, threads: BTreeMap::new() };
    let done = set_all(&mut former, class);
    if done.is_err() {
        // Only the first error is reported.
        let _ = former.restore();
    }
    done.map(|()| former)
}

/// Whether this user has the capability to give any class, and to take it back.
pub(crate) fn may_give() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE))
}

fn set_all(former: &mut Former, class: Class) -> Result<(), ClassError> {
    let without_heirs = may_give();
    for _ in 0..PASSES {
        let mut has_changed = false;
        for tid in threads(&former.root, former.pid)? {
            if former.threads.contains_key(&tid) {
                continue;
            }
            let result = Policy::of(tid).and_then(|policy| {
                let wanted = policy.changed_to(class, without_heirs);
                if policy != wanted {
                    wanted.give(tid)?;
                    has_changed = true;
                }
                former.threads.insert(tid, policy);
                Ok(())
            });
            match result {
                // The thread has ended meanwhile.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(refused(&former.root, former.pid, class, error)),
            }
        }
        if !has_changed {
            return if former.threads.is_empty() { Err(ClassError::NoProcess { pid: former.pid }) } else { Ok(()) };
        }
    }
    Err(ClassError::Unsettled { pid: former.pid })
}

/// The error for a class that the kernel refuses.
fn refused(root: &Path, pid: i32, class: Class, error: Errno) -> ClassError {
    if error != Errno::PERM {
        return system("set the scheduling class of process", pid)(error.into());
    }
    // The kernel returns EPERM in both cases.
    match cgroup::without_real_time(root, pid, may_give()) {
        Some(cgroup) if matches!(class, Class::Rr(_)) => ClassError::NoBudget { pid, cgroup },
        _ => ClassError::NotPermitted { pid, class },
    }
}

/// The kernel's slice of a thread: zero for other real-time classes, undefined for fair ones.
fn interval(tid: i32) -> Result<Duration, Errno> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live and of the type that the call writes.
    if unsafe { libc::sched_rr_get_interval(tid, &raw mut time) } != 0 {
        return Err(last_errno());
    }
    Ok(Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0)))
}

/// Tries class rr in a new thread, and returns the slice that this gets.
///
/// Call it before NFs of class rr run on the caller's cores: the thread has the lowest priority.
///
/// # Errors
/// [`ClassError::NotPermitted`], [`ClassError::NoBudget`], [`ClassError::System`].
pub fn try_rr(root: &Path) -> Result<Duration, ClassError> {
    let ask =
        || Policy::of(0).and_then(|policy| policy.changed_to(Class::Rr(PRIORITIES.0), false).give(0)).and_then(|()| interval(0));
    let thread = std::thread::Builder::new().name("rr-slice".into()).spawn(ask).map_err(system("start", "a thread"))?;
    let answer = thread.join().unwrap_or(Err(Errno::INVAL));
    answer.map_err(|error| refused(root, std::process::id() as i32, Class::Rr(PRIORITIES.0), error))
}

/// The host's setting for the slice.
#[derive(Debug, Clone)]
pub struct RrSlice {
    root: PathBuf,
    path: PathBuf,
}

impl RrSlice {
    /// The setting below a file-system root, `/`: `proc/sys/kernel/sched_rr_timeslice_ms`.
    pub fn at(root: &Path) -> Self {
        Self { root: root.into(), path: root.join("proc/sys/kernel/sched_rr_timeslice_ms") }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The setting in milliseconds. The kernel rounds it up to its ticks.
    ///
    /// # Errors
    /// [`ClassError::System`].
    pub fn read_ms(&self) -> Result<u32, ClassError> {
        let read = fs::read_to_string(&self.path).and_then(|text| {
            let malformed = |_| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no number of milliseconds"));
            text.trim().parse().map_err(malformed)
        });
        read.map_err(system("read", self.path.display()))
    }

    /// Sets it, in milliseconds, until the result is dropped or restored.
    ///
    /// # Errors
    /// [`ClassError::Slice`], [`ClassError::SliceNotPermitted`], [`ClassError::System`].
    pub fn set(&self, ms: u32) -> Result<Slice, ClassError> {
        let former = self.read_ms()?;
        self.write(ms)?;
        Ok(Slice { setting: self.clone(), former, is_set: true })
    }

    fn write(&self, ms: u32) -> Result<(), ClassError> {
        // The kernel takes 0 for "the default".
        if ms == 0 || i32::try_from(ms).is_err() {
            return Err(ClassError::Slice { ms });
        }
        let file = OpenOptions::new().write(true).truncate(true).open(&self.path);
        // In a single write: the kernel would take the first digit for the whole number.
        let written = file.and_then(|mut file| file.write_all(ms.to_string().as_bytes()));
        written.map_err(|source| match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => ClassError::SliceNotPermitted { path: self.path.clone(), source },
            _ => system("write", self.path.display())(source),
        })
    }
}

/// The slice while set. Drop restores the old one; [`restore`](Self::restore) reports errors.
#[derive(Debug)]
pub struct Slice {
    setting: RrSlice,
    former: u32,
    is_set: bool,
}

impl Slice {
    /// The setting's file, for the record.
    pub fn path(&self) -> &Path {
        &self.setting.path
    }

    /// The former setting, in milliseconds.
    pub fn former(&self) -> u32 {
        self.former
    }

    /// Sets another one, in milliseconds. The former setting stays the host's own.
    ///
    /// # Errors
    /// Those of [`RrSlice::set`]; the slice stays as it was.
    pub fn change(&self, ms: u32) -> Result<(), ClassError> {
        self.setting.write(ms)
    }

    /// The slice that the kernel really uses now: see [`try_rr`].
    ///
    /// # Errors
    /// Those of [`try_rr`]; the slice stays set.
    pub fn effective(&self) -> Result<Duration, ClassError> {
        try_rr(&self.setting.root)
    }

    /// Restores the host's own slice.
    ///
    /// # Errors
    /// [`ClassError::SliceNotPermitted`], [`ClassError::System`].
    pub fn restore(mut self) -> Result<(), ClassError> {
        self.is_set = false;
        self.setting.write(self.former)
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        if self.is_set {
            // The record still has it.
            let _ = self.setting.write(self.former);
        }
    }
}

#[cfg(test)]
#[path = "class_tests.rs"]
mod tests;
