//! The processes of an NF as a unit of control, safe against pid reuse and checked beforehand.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, geteuid};
use rustix::thread::{CapabilitySet, capabilities};
use sluice_shm::gate::{COMES_WHEN_CALLED, Gate, LOOKS};
use sluice_shm::page::{Counter, Region};

use super::{Failed, Refused};
use crate::affinity::{self, AffinityError};
use crate::process::{Identity, Proc, last_errno};

/// Flag of kernel threads in `/proc/PID/stat`.
const PF_KTHREAD: u64 = 0x0020_0000;

#[derive(Debug, Clone)]
pub struct TargetMember {
    pub identity: Identity,
    pub pid: Pid,
    pidfd: Arc<OwnedFd>,
    owner: u32,
}

impl TargetMember {
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Its pid, as the kernel's calls take it.
    pub fn raw(&self) -> i32 {
        self.identity.pid
    }

    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether it has ended. One system call.
    #[inline]
    pub fn is_ended(&self) -> bool {
        let pidfd = self.pidfd();
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        // Interrupted: the next call will find out.
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n != 0)
    }
}

/// The gate of a process that uses our library, and how the process uses it.
#[derive(Debug, Clone)]
pub struct Gates {
    pub gate: Gate,
    /// The memory that contains it, for the guard.
    pub memory: Arc<OwnedFd>,
    /// Length of that memory, in bytes.
    pub bytes: usize,
    /// A sum of [`LOOKS`] and [`COMES_WHEN_CALLED`].
    pub does: u64,
}

impl Gates {
    /// The gate of an NF that is attached to this region.
    ///
    /// # Errors
    /// Those of duplicating the region's descriptor.
    pub fn of(region: &Region) -> Result<Self, Errno> {
        let memory = rustix::io::fcntl_dupfd_cloexec(region.memory.fd(), 0)?;
        // Acquire: the handler that the NF reports is in place.
        let does = region.page.counter(Counter::Gate).load(Ordering::Acquire);
        Ok(Self { gate: region.page.gate(), memory: Arc::new(memory), bytes: region.page.layout().bytes as usize, does })
    }

    /// The memory that contains it.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Whether the process reads its gate between bursts.
    pub fn looks(&self) -> bool {
        self.does & LOOKS != 0
    }

    /// Whether the process has a handler that waits at the gate.
    pub(crate) fn comes_when_called(&self) -> bool {
        self.does & COMES_WHEN_CALLED != 0
    }
}

/// Processes that are controlled as one.
#[derive(Debug, Clone)]
pub struct Target {
    name: String,
    members: Vec<TargetMember>,
    gates: Option<Gates>,
    cgroup: Option<PathBuf>,
    /// Whether its weight is written to that cgroup.
    weighs: bool,
}

impl Target {
    /// One process, by pid. `name` is for messages.
    ///
    /// # Errors
    /// [`Refused`]: it has ended, or may not be scheduled at all.
    pub fn of_pid(proc: &Proc, name: &str, pid: i32) -> Result<Self, Refused> {
        Self::of_pids(proc, name, &[pid])
    }

    /// Several processes, without those that have ended.
    ///
    /// # Errors
    /// As [`of_pid`](Self::of_pid), if one of them may not be scheduled, or all have ended.
    pub fn of_pids(proc: &Proc, name: &str, pids: &[i32]) -> Result<Self, Refused> {
        let members = pids.iter().filter_map(|pid| hold(proc, *pid).transpose()).collect::<Result<Vec<_>, _>>()?;
        if members.is_empty() {
            return Err(Refused::NoProcess { name: name.into() });
        }
        Ok(Self { name: name.into(), members, gates: None, cgroup: None, weighs: false })
    }

    /// Adds the gate of its process.
    #[must_use]
    pub fn with_gates(self, gates: Gates) -> Self {
        Self { gates: Some(gates), ..self }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its processes; at least one.
    pub fn members(&self) -> &[TargetMember] {
        &self.members
    }

    /// Its gate, if it uses our library.
    pub fn gates(&self) -> Option<&Gates> {
        self.gates.as_ref()
    }

    /// The cgroup of version 2 that holds only its processes, if known.
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_deref()
    }

    /// Adds the cgroup that holds only its processes; one of version 2 is frozen in place.
    #[must_use]
    pub fn in_cgroup(self, folder: &Path) -> Self {
        Self { cgroup: folder.join("cgroup.freeze").exists().then(|| folder.into()), ..self }
    }

    /// Has a controller with weights set that of its cgroup, which nobody else does.
    #[must_use]
    pub fn weighed_there(self) -> Self {
        Self { weighs: true, ..self }
    }

    pub(super) fn weighs(&self) -> bool {
        self.weighs
    }

    /// Whether its processes run on `core` alone, by their first threads.
    ///
    /// # Errors
    /// [`Refused::Elsewhere`], [`Refused::System`].
    pub fn check_pinned(&self, core: usize) -> Result<(), Refused> {
        for member in &self.members {
            let pid = member.raw();
            match affinity::of_process(member.pid) {
                Ok(cores) if cores == [core] => {}
                Ok(cores) => return Err(Refused::Elsewhere { name: self.name.clone(), pid, cores, core }),
                Err(AffinityError::Ended) => {}
                Err(error) => {
                    let what = format!("the cores of process {pid}");
                    return Err(Refused::System { doing: "read", what, source: std::io::Error::other(error) });
                }
            }
        }
        Ok(())
    }

    #[inline]
    pub fn is_ended(&self) -> bool {
        self.members.iter().all(TargetMember::is_ended)
    }

    /// An error if it has ended. One system call, as long as the first process runs.
    #[inline]
    pub(super) fn check_runs(&self) -> Result<(), Failed> {
        if self.is_ended() { Err(Failed::Ended) } else { Ok(()) }
    }

    /// Refuses processes of other users, unless this user has `capability`.
    ///
    /// # Errors
    /// [`Refused::OtherUser`].
    pub(super) fn check_owner(&self, capability: CapabilitySet, called: &'static str) -> Result<(), Refused> {
        let own = geteuid().as_raw();
        if capabilities(None).is_ok_and(|sets| sets.effective.contains(capability)) {
            return Ok(());
        }
        match self.members.iter().find(|member| member.owner != own) {
            Some(member) => Err(Refused::OtherUser { pid: member.raw(), owner: member.owner, own, capability: called }),
            None => Ok(()),
        }
    }
}

/// Cheaply detects a changed number of a target's threads.
///
/// The folder of its threads has a link for each; reading the count takes a third of a µs.
#[derive(Debug)]
pub struct ThreadWatch(Vec<(OwnedFd, u64)>);

impl ThreadWatch {
    /// A watch of all living processes of a target. Made before the target is
    /// [added](super::Controller::add), it misses nothing.
    pub fn of(proc: &Proc, target: &Target) -> Self {
        let one = |member: &TargetMember| {
            let folder = OwnedFd::from(fs::File::open(proc.path(&format!("{}/task", member.raw()))).ok()?);
            let links = links_of(&folder);
            Some((folder, links))
        };
        Self(target.members.iter().filter_map(one).collect())
    }

    /// Whether the number has changed since the last call.
    pub fn has_changed(&mut self) -> bool {
        let mut has_changed = false;
        for (folder, before) in &mut self.0 {
            let links = links_of(folder);
            has_changed |= std::mem::replace(before, links) != links;
        }
        has_changed
    }
}

#[allow(clippy::useless_conversion, reason = "on some machines it is shorter")]
fn links_of(folder: &OwnedFd) -> u64 {
    rustix::fs::fstat(folder).map_or(0, |stat| u64::from(stat.st_nlink))
}

/// The threads of a process at the last look.
#[derive(Debug)]
pub(super) struct Threads {
    pub(super) pid: i32,
    pub(super) tids: Vec<i32>,
}

impl Threads {
    /// Those of each process of a target.
    pub(super) fn of(proc: &Proc, target: &Target) -> Result<Vec<Self>, Refused> {
        let one = |member: &TargetMember| -> Result<Self, Refused> {
            let path = proc.path(&format!("{}/task", member.raw()));
            let system =
                |source: io::Error| Refused::System { doing: "read the threads in", what: path.display().to_string(), source };
            fs::metadata(&path).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => Refused::NoProcess { name: target.name.clone() },
                _ => system(source),
            })?;
            let threads = Self { pid: member.raw(), tids: proc.threads(member.raw()) };
            if threads.tids.is_empty() && !member.is_ended() {
                return Err(system(io::ErrorKind::NotFound.into()));
            }
            Ok(threads)
        };
        target.members.iter().map(one).collect()
    }

    /// Signals one of them by number: only right after the process was seen alive.
    #[inline]
    pub(super) fn signal(&self, tid: i32, signal: i32) -> Result<(), Errno> {
        // SAFETY: the call takes no memory of ours.
        if unsafe { libc::syscall(libc::SYS_tgkill, self.pid, tid, signal) } != 0 {
            return Err(last_errno());
        }
        Ok(())
    }

    /// Reads them again; returns the new ones.
    #[cold]
    pub(super) fn look_again(&mut self, proc: &Proc) -> Vec<i32> {
        let before = std::mem::replace(&mut self.tids, proc.threads(self.pid));
        self.tids.iter().copied().filter(|tid| !before.contains(tid)).collect()
    }
}

/// Holds a process that may be scheduled. None if it has ended.
fn hold(proc: &Proc, pid: i32) -> Result<Option<TargetMember>, Refused> {
    // from_raw() rejects negative numbers.
    let Some(number) = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw) else { return Ok(None) };
    if pid == 1 {
        return Err(Refused::Init);
    }
    let ended = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
    let read = |file: &str| match fs::read_to_string(proc.path(&format!("{pid}/{file}"))) {
        Ok(text) => Ok(Some(text)),
        Err(error) if ended(&error) => Ok(None),
        Err(source) => Err(Refused::System { doing: "read", what: format!("/proc/{pid}/{file}"), source }),
    };
    // The identity first: what is read later belongs to it, or opening detects a reuse.
    let Some(identity) = proc.identity(number) else { return Ok(None) };
    let (Some(stat), Some(status)) = (read("stat")?, read("status")?) else { return Ok(None) };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let process = field("Tgid").and_then(|text| text.parse().ok()).unwrap_or(pid);
    if process != pid {
        return Err(Refused::Thread { pid, process });
    }
    // Field 9 of proc(5); the second one, in parentheses, may contain anything.
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(6)?.parse::<u64>().ok());
    if flags.is_some_and(|flags| flags & PF_KTHREAD != 0) {
        return Err(Refused::KernelThread { pid, comm: field("Name").unwrap_or("?").into() });
    }
    if is_ours(proc, pid) {
        return Err(Refused::Ourselves { pid });
    }
    // Real, effective, …
    let owner = field("Uid").and_then(|text| text.split_ascii_whitespace().nth(1)?.parse().ok()).unwrap_or(u32::MAX);
    let pidfd = identity.open(proc).map_err(|error| Refused::System {
        doing: "open a descriptor of process",
        what: pid.to_string(),
        source: error.into(),
    })?;
    Ok(pidfd.map(|pidfd| TargetMember { identity, pid: number, pidfd: Arc::new(pidfd), owner }))
}

/// Whether it is this process or an ancestor.
fn is_ours(proc: &Proc, pid: i32) -> bool {
    let mut at = rustix::process::getpid();
    // Bounded: a fake, or a race with reused pids, could be circular.
    for _ in 0..64 {
        if at.as_raw_nonzero().get() == pid {
            return true;
        }
        match proc.stat(at).ok().and_then(|stat| Pid::from_raw(stat.ppid)) {
            Some(parent) => at = parent,
            None => return false,
        }
    }
    false
}
