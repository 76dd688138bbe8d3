//! Processes: unambiguous names, signals, collection, and resource figures.
//!
//! # Problem
//! A pid is reused as soon as its process was collected. A manager that signals by pid can kill an
//! unrelated process.
//!
//! # Approach
//! - A child or a peer is held by a *pidfd*: it names one process for ever, becomes readable once
//!   that has ended (so the supervisor can poll it), and signals through it reach only that
//!   process.
//! - A process that must be found again after the manager's own death is recorded as an
//!   [`Identity`]: pid and start time, in clock ticks since boot. [`Identity::open`] opens the
//!   pidfd first and then compares the start time, so it detects every reuse of the pid.
//! - Figures come from `/proc`, whose location is an argument ([`Proc`]). CPU time comes from the
//!   process's clock, with nanosecond resolution and one system call a reading; `/proc/PID/stat`
//!   has ticks of 10 ms.
//!
//! # Limits
//! Two processes with one pid within one clock tick (10 ms) have the same identity. The kernel
//! assigns pids cyclically, so this needs a namespace with a handful of pids. Start times count
//! from boot: compare the boot id too.

// The kernel's process clocks and SO_PEERPIDFD have no safe wrapper in rustix.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It returned this status; 0 is success.
    Code(i32),
    Signal(i32),
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => match signal_name(signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
        }
    }
}

/// The name of a signal, such as `SIGSEGV`; None for real-time signals.
pub fn signal_name(signal: i32) -> Option<&'static str> {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSTKFLT => "SIGSTKFLT",
        libc::SIGCHLD => "SIGCHLD",
        libc::SIGCONT => "SIGCONT",
        libc::SIGSTOP => "SIGSTOP",
        libc::SIGTSTP => "SIGTSTP",
        libc::SIGTTIN => "SIGTTIN",
        libc::SIGTTOU => "SIGTTOU",
        libc::SIGURG => "SIGURG",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGVTALRM => "SIGVTALRM",
        libc::SIGPROF => "SIGPROF",
        libc::SIGWINCH => "SIGWINCH",
        libc::SIGIO => "SIGIO",
        libc::SIGPWR => "SIGPWR",
        libc::SIGSYS => "SIGSYS",
        _ => return None,
    };
    Some(name)
}

/// Bytes of what the kernel says of a pidfd, at most.
const FDINFO: u64 = 1024;

/// Opens a pidfd. `pid` may have been reused: see [`Identity::open`].
///
/// # Errors
/// [`Errno::SRCH`] if there is no such process.
pub fn pidfd_open(pid: Pid) -> Result<OwnedFd, Errno> {
    rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK)
}

/// The number of a pidfd's process; None if it has been collected, or if the file is no pidfd.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> Option<Pid> {
    let mut info = String::new();
    let file = fs::File::open(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    // That of another kind of file may be long.
    file.take(FDINFO).read_to_string(&mut info).ok()?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()?;
    Some(number).filter(|number| *number > 0).and_then(Pid::from_raw)
}

/// Signals a process; no error if it has ended already.
///
/// # Errors
/// [`Errno::PERM`] if it belongs to another user.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> Result<(), Errno> {
    match rustix::process::pidfd_send_signal(pidfd, signal) {
        Err(Errno::SRCH) => Ok(()),
        other => other,
    }
}

/// Kills the process group that a process leads, even if the leader has ended.
///
/// An empty group is no error. Before Linux 6.9 only the process itself is killed.
///
/// # Errors
/// [`Errno::PERM`] if it belongs to another user.
pub fn kill_group(pidfd: BorrowedFd<'_>) -> Result<(), Errno> {
    // In libc's headers since 2024.
    const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;
    let (fd, info) = (pidfd.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: the call takes no memory of ours: without a siginfo the kernel makes one.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, info, PIDFD_SIGNAL_PROCESS_GROUP) };
    match if sent < 0 { last_errno() } else { return Ok(()) } {
        // An older kernel, or a process that leads no group.
        Errno::INVAL | Errno::SRCH => send_signal(pidfd, Signal::KILL),
        error => Err(error),
    }
}

/// Collects a child that has ended. None while it runs. Never blocks.
///
/// # Errors
/// [`Errno::CHILD`] if it is no child of this process, or was collected before.
pub fn reap(pidfd: BorrowedFd<'_>) -> Result<Option<Exit>, Errno> {
    collect(pidfd, WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
}

/// Whether a process is an uncollected child of this one. Collects nothing.
pub fn is_child(pidfd: BorrowedFd<'_>) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // For a running child a nonblocking pidfd answers AGAIN.
    !matches!(rustix::process::waitid(WaitId::PidFd(pidfd), options), Err(error) if error != Errno::AGAIN && error != Errno::INTR)
}

/// Whether this process has an uncollected child that has ended. Collects nothing.
pub fn has_ended_child() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(rustix::process::waitid(WaitId::All, options), Ok(Some(_)))
}

/// Collects the children of a process group that have ended. Never blocks.
pub fn reap_group(leader: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    // An error (no child left) ends the loop.
    while let Ok(Some(_)) = rustix::process::waitid(WaitId::Pgid(Some(leader)), options) {}
}

/// Waits for a child to end, and collects it.
pub fn wait(pidfd: BorrowedFd<'_>) -> Result<Exit, Errno> {
    // A nonblocking pidfd makes waitid return EAGAIN instead of waiting: poll it first.
    wait_readable(pidfd, None)?;
    collect(pidfd, WaitIdOptions::EXITED)?.ok_or(Errno::CHILD)
}

fn collect(pidfd: BorrowedFd<'_>, options: WaitIdOptions) -> Result<Option<Exit>, Errno> {
    let status = loop {
        match rustix::process::waitid(WaitId::PidFd(pidfd), options) {
            Err(Errno::INTR) => {}
            // The answer of a nonblocking pidfd while the process runs.
            Err(Errno::AGAIN) => return Ok(None),
            other => break other?,
        }
    };
    let Some(status) = status else { return Ok(None) };
    let killed = status.terminating_signal().map(Exit::Signal);
    Ok(killed.or(status.exit_status().map(Exit::Code)))
}

/// Waits until a process, child or not, has ended; returns whether it has.
///
/// Waits at most `timeout_ms` milliseconds, or for ever if None.
pub fn wait_readable(pidfd: BorrowedFd<'_>, timeout_ms: Option<u64>) -> Result<bool, Errno> {
    let end = timeout_ms.map(|ms| std::time::Instant::now() + std::time::Duration::from_millis(ms));
    loop {
        let left = end.map(|end| end.saturating_duration_since(std::time::Instant::now()));
        let left = left.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() });
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => {}
            other => return Ok(other? != 0),
        }
    }
}

/// Pid, user and group of a Unix socket's peer, as they were when it connected.
///
/// No pid if this pid namespace does not know the process.
///
/// # Errors
/// Those of the kernel if it is no Unix socket.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> Result<(Option<Pid>, u32, u32), Errno> {
    // Not rustix's type: its pid cannot be 0.
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (fd, place) = (socket.as_raw_fd(), (&raw mut credentials).cast());
    // SAFETY: `credentials` and `len` are live, and `len` is the size of `credentials`, so the
    // kernel writes nothing else.
    if unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut len) } != 0 {
        return Err(last_errno());
    }
    // Before a peer connects, the kernel answers with pid 0 and user -1.
    Ok((Some(credentials.pid).filter(|pid| *pid > 0).and_then(Pid::from_raw), credentials.uid, credentials.gid))
}

/// Whether a Unix socket's peer was a member of a group when it connected.
///
/// # Errors
/// Those of the kernel if it is no Unix socket.
pub fn peer_is_in_group(socket: BorrowedFd<'_>, gid: u32) -> Result<bool, Errno> {
    let (_, _, own) = peer_credentials(socket)?;
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut len = (groups.len() * size_of::<libc::gid_t>()) as libc::socklen_t;
        let place = groups.as_mut_ptr().cast();
        // SAFETY: `groups` has `len` bytes, and the kernel writes no more.
        if unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, place, &raw mut len) } == 0 {
            groups.truncate(len as usize / size_of::<libc::gid_t>());
            return Ok(own == gid || groups.contains(&gid));
        }
        match last_errno() {
            // `len` says now how many there are. The kernel's maximum is 65,536.
            Errno::RANGE if groups.len() < 65_536 => groups.resize(65_536, 0),
            error => return Err(error),
        }
    }
}

/// The peer process of a Unix socket as of its connection, safe against reuse of its pid.
///
/// # Errors
/// [`Errno::NOPROTOOPT`] before Linux 6.5; [`Errno::SRCH`] if that process has ended.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // Not in libc yet. The same number on every architecture but alpha, mips, parisc and sparc.
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `fd` and `len` are live, and `len` is the size of `fd`.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut len) };
    if rc != 0 || fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has just made this descriptor for us, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The error of the last call of the C library that failed in this thread.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// The CPU clock of a process: user and system time of all its threads.
///
/// It names the process by pid: read it only before the process is collected.
#[derive(Debug, Clone, Copy)]
pub struct CpuClock(libc::clockid_t);

impl CpuClock {
    /// Opens the clock of a process.
    ///
    /// # Errors
    /// [`Errno::SRCH`] if there is no such process.
    pub fn of(pid: Pid) -> Result<Self, Errno> {
        let mut clock: libc::clockid_t = 0;
        // SAFETY: `clock` is live and of the type that the function writes.
        match unsafe { libc::clock_getcpuclockid(pid.as_raw_nonzero().get(), &raw mut clock) } {
            0 => Ok(Self(clock)),
            error => Err(Errno::from_raw_os_error(error)),
        }
    }

    /// CPU time used so far, in nanoseconds. One system call.
    ///
    /// # Errors
    /// [`Errno::INVAL`] once the process has been collected.
    pub fn read_ns(self) -> Result<u64, Errno> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is live and of the type that the function writes.
        if unsafe { libc::clock_gettime(self.0, &raw mut time) } != 0 {
            return Err(last_errno());
        }
        Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

/// The soft limit of open descriptors before [`raise_nofile`].
static NOFILE_BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Maximum number of the manager's descriptors for an NF: pidfd, socket, region, the doorbell's
/// page, the pipe of its output, and one temporary.
pub const NOFILE_OF_NF: u64 = 6;

/// Raises the descriptor limit to `wanted`, and returns the new limit.
///
/// The result is the hard limit if that is higher, or may not be raised.
pub fn raise_nofile(wanted: u64) -> Result<u64, Errno> {
    let before = rustix::process::getrlimit(Resource::Nofile);
    let _ = NOFILE_BEFORE.set(before);
    let all = before.maximum.map(|hard| hard.max(wanted));
    // Only a process that may administer the host may raise a hard limit.
    if rustix::process::setrlimit(Resource::Nofile, Rlimit { current: all, maximum: all }).is_ok() {
        return Ok(all.unwrap_or(u64::MAX));
    }
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum })?;
    Ok(before.maximum.unwrap_or(u64::MAX))
}

/// The limits of this process before [`raise_nofile`], if that was called.
///
/// An NF starts with these, since programs that use select() break above 1,024.
pub(crate) fn nofile_before() -> Option<Rlimit> {
    NOFILE_BEFORE.get().copied()
}

/// Maximum number of generations of ancestors. Real NFs have fewer.
const GENERATIONS: usize = 64;

/// Maximum number of repeated readings until two are the same.
const LOOKS: usize = 4;

/// The process file system, `/proc` unless it is elsewhere.
#[derive(Debug, Clone)]
pub struct Proc {
    root: PathBuf,
}

impl Default for Proc {
    fn default() -> Self {
        Self::at("/proc")
    }
}

/// Fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `D`, `Z` (ended, not collected), …
    pub state: char,
    pub ppid: i32,
    /// The kernel's flags of the main thread (`PF_EXITING` and others).
    pub flags: u64,
    /// CPU time in user mode, in clock ticks (10 ms).
    pub utime: u64,
    /// CPU time in the kernel, in clock ticks.
    pub stime: u64,
    /// Start of the process, in clock ticks since boot.
    pub start: u64,
}

impl Stat {
    /// Parses the text of the file; None if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        // The second field is the program's name in parentheses, which may hold both, and spaces.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // Field n of proc(5) is fields[n - 3].
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            ppid: fields.get(1)?.parse().ok()?,
            flags: number(9)?,
            utime: number(14)?,
            stime: number(15)?,
            start: number(22)?,
        })
    }

    /// Whether the process has ended, collected or not.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Whether the process has ended or is exiting: its exit status is final.
    pub fn is_ending(&self) -> bool {
        const EXITING: u64 = 0x4;
        self.has_ended() || self.flags & EXITING != 0
    }
}

impl Proc {
    /// A process file system at another root.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    fn file(&self, pid: Pid, name: &str) -> PathBuf {
        self.root.join(pid.as_raw_nonzero().to_string()).join(name)
    }

    /// Reads `/proc/PID/stat`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such process.
    pub fn stat(&self, pid: Pid) -> io::Result<Stat> {
        let path = self.file(pid, "stat");
        // A process that is collected between open and read gives ESRCH.
        let text = fs::read_to_string(&path).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => io::ErrorKind::NotFound.into(),
            _ => error,
        })?;
        Stat::parse(&text).ok_or_else(|| malformed(&path))
    }

    /// The parent of a process, the parent's parent, and so on, 64 at most.
    ///
    /// The list is consistent although each process is read separately: it is read until it is the
    /// same twice, and a process that loses its parent never gets it back.
    ///
    /// # Errors
    /// As [`Self::stat`]; [`io::ErrorKind::Interrupted`] if it changes with each reading.
    pub fn ancestors(&self, pid: Pid) -> io::Result<Vec<Pid>> {
        let look = || -> io::Result<Vec<Pid>> {
            let mut found = Vec::new();
            let mut at = pid;
            // Pid 0: above the host's first process, or a parent outside of this process namespace.
            while let (true, Some(parent)) = (found.len() < GENERATIONS, Pid::from_raw(self.stat(at)?.ppid)) {
                found.push(parent);
                at = parent;
            }
            Ok(found)
        };
        let mut before = look()?;
        for _ in 0..LOOKS {
            let now = look()?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    /// Living descendants of a process, as far as the parents between them live.
    ///
    /// May miss a process that is created or orphaned during the call.
    pub fn descendants(&self, pid: Pid) -> Vec<Pid> {
        let mut found = Vec::new();
        let mut parents = vec![pid];
        while let Some(parent) = parents.pop() {
            for task in fs::read_dir(self.file(parent, "task")).into_iter().flatten().flatten() {
                let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                let children = text.split_ascii_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?));
                for child in children.filter(|child| self.stat(*child).is_ok_and(|stat| !stat.has_ended())) {
                    // A reused pid must not cause an endless loop.
                    if !found.contains(&child) && child != pid {
                        found.push(child);
                        parents.push(child);
                    }
                }
            }
        }
        found
    }

    /// The children of this process, collected or not.
    pub fn children(&self) -> Vec<Pid> {
        let tasks = fs::read_dir(self.path("self/task")).into_iter().flatten().flatten();
        let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        texts
            .flat_map(|text| text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<i32>>())
            .filter_map(Pid::from_raw)
            .collect()
    }

    /// The numbers of a process's threads; none if it has ended.
    pub(crate) fn threads(&self, pid: i32) -> Vec<i32> {
        let Ok(entries) = fs::read_dir(self.path(&format!("{pid}/task"))) else { return Vec::new() };
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
    }

    /// The pid of a process in its own namespace, if that is below this process's own.
    pub fn number_inside(&self, pid: Pid) -> Option<i32> {
        let text = fs::read_to_string(self.file(pid, "status")).ok()?;
        let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        numbers.split_ascii_whitespace().skip(1).last()?.parse().ok()
    }

    /// Number of a user's processes and threads. Reads all of `/proc`.
    pub fn threads_of(&self, uid: u32) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let processes = entries.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
        let of_user = processes.filter(|entry| entry.metadata().is_ok_and(|metadata| metadata.uid() == uid));
        of_user.map(|entry| fs::read_dir(entry.path().join("task")).map_or(0, |tasks| tasks.count() as u64)).sum()
    }

    /// Memory that this process shares with no other, in bytes: the cost of one more such process.
    ///
    /// Takes tens of microseconds and the process's memory lock: read it once in seconds.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] or [`io::ErrorKind::PermissionDenied`] (another user's process).
    pub fn private_bytes(&self, pid: Pid) -> io::Result<u64> {
        let path = self.file(pid, "smaps_rollup");
        let text = fs::read_to_string(&path)?;
        let mut kib = None;
        for line in text.lines() {
            let Some(rest) = line.strip_prefix("Private_") else { continue };
            let value = rest.split_ascii_whitespace().nth(1).and_then(|v| v.parse::<u64>().ok());
            kib = Some(kib.unwrap_or(0) + value.ok_or_else(|| malformed(&path))?);
        }
        Ok(kib.ok_or_else(|| malformed(&path))? * 1024)
    }

    /// The id of this boot: start times of two boots are not comparable.
    pub(crate) fn boot_id(&self) -> io::Result<String> {
        Ok(fs::read_to_string(self.root.join("sys/kernel/random/boot_id"))?.trim().to_owned())
    }

    /// The identity of a process, unique while the host is up. None if it has ended.
    pub fn identity(&self, pid: Pid) -> Option<Identity> {
        let stat = self.stat(pid).ok().filter(|stat| !stat.has_ended())?;
        Some(Identity { pid: pid.as_raw_nonzero().get(), start: stat.start })
    }
}

fn malformed(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} is not in the form that proc(5) describes", path.display()))
}

/// A process, by pid and start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    pub pid: i32,
    /// Its start, in clock ticks since boot.
    pub start: u64,
}

impl Identity {
    /// Opens the process if it still runs. None if it has ended, even if its pid was reused.
    ///
    /// # Errors
    /// Those of the kernel, other than that there is no such process.
    pub fn open(&self, proc: &Proc) -> Result<Option<OwnedFd>, Errno> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let pidfd = match pidfd_open(pid) {
            Ok(pidfd) => pidfd,
            // EINVAL is the answer for a thread's number.
            Err(Errno::SRCH | Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error),
        };
        // In this order: after the pidfd was opened, the process with this pid is the one that the
        // pidfd names, or the pidfd names a dead process.
        Ok((proc.identity(pid) == Some(*self)).then_some(pidfd))
    }

    /// Kills the process if it still runs; returns whether it did.
    ///
    /// Waits at most `timeout_ms` milliseconds for its end.
    ///
    /// # Errors
    /// [`Errno::PERM`] if it is another user's, [`Errno::TIMEDOUT`] if it did not end.
    pub fn kill(&self, proc: &Proc, timeout_ms: u64) -> Result<bool, Errno> {
        let Some(pidfd) = self.open(proc)? else { return Ok(false) };
        send_signal(pidfd.as_fd(), Signal::KILL)?;
        if wait_readable(pidfd.as_fd(), Some(timeout_ms))? { Ok(true) } else { Err(Errno::TIMEDOUT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;
    use std::process::{Command, Stdio};

    fn sleeper() -> (std::process::Child, Pid) {
        let child = Command::new("/bin/sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        (child, pid)
    }

    #[test]
    fn a_child_is_signalled_and_collected_by_its_pidfd() {
        let (_child, pid) = sleeper();
        let pidfd = pidfd_open(pid).unwrap();
        assert_eq!(reap(pidfd.as_fd()), Ok(None));
        assert_eq!(wait_readable(pidfd.as_fd(), Some(0)), Ok(false));
        assert_eq!((pid_of(pidfd.as_fd()), pid_of(fs::File::open("/dev/null").unwrap().as_fd())), (Some(pid), None));
        send_signal(pidfd.as_fd(), Signal::KILL).unwrap();
        assert_eq!(wait_readable(pidfd.as_fd(), None), Ok(true));
        assert_eq!(reap(pidfd.as_fd()), Ok(Some(Exit::Signal(9))));
        assert_eq!(reap(pidfd.as_fd()), Err(Errno::CHILD));
        assert_eq!(pid_of(pidfd.as_fd()), None);
        // The process is long gone: no error, and no other process is hit.
        send_signal(pidfd.as_fd(), Signal::KILL).unwrap();
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "collected by its pidfd")]
    fn a_group_is_killed_with_its_leader_or_without() {
        use std::os::unix::process::CommandExt;
        // A leader that prints its child's pid, and lives on, ends, or leads no group.
        for (script, group) in [("sleep 1000 & echo $!; wait", 0), ("sleep 1000 & echo $!", 0), ("echo $$; exec sleep 1000", -1)] {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
            if group == 0 {
                command.process_group(0);
            }
            let mut leader = command.spawn().unwrap();
            let pidfd = pidfd_open(Pid::from_child(&leader)).unwrap();
            let mut line = String::new();
            io::BufRead::read_line(&mut io::BufReader::new(leader.stdout.take().unwrap()), &mut line).unwrap();
            let member = pidfd_open(Pid::from_raw(line.trim().parse().unwrap()).unwrap()).unwrap();
            if script.ends_with("$!") {
                wait_readable(pidfd.as_fd(), None).unwrap();
            }
            assert_eq!(wait_readable(member.as_fd(), Some(0)), Ok(false));
            kill_group(pidfd.as_fd()).unwrap();
            wait(pidfd.as_fd()).unwrap();
            let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
            let mut version = release.split('.').map_while(|part| part.parse::<u32>().ok());
            let has_groups = (version.next(), version.next()) >= (Some(6), Some(9));
            if has_groups || group == -1 {
                assert_eq!(wait_readable(member.as_fd(), Some(30_000)), Ok(true), "{script}");
            } else {
                send_signal(member.as_fd(), Signal::KILL).unwrap();
            }
            // An empty group is no error.
            kill_group(pidfd.as_fd()).unwrap();
        }
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "collected by its pidfd")]
    fn an_exit_status_is_reported() {
        let child = Command::new("/bin/sh").args(["-c", "exit 7"]).spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child)).unwrap();
        assert_eq!(wait(pidfd.as_fd()), Ok(Exit::Code(7)));
        assert_eq!(Exit::Code(7).to_string(), "exit status 7");
        assert_eq!(Exit::Signal(9).to_string(), "signal 9 (SIGKILL)");
    }

    #[test]
    fn another_start_time_is_another_process() {
        let (mut child, pid) = sleeper();
        let proc = Proc::default();
        let identity = proc.identity(pid).unwrap();
        let reused = Identity { start: identity.start - 1, ..identity };
        assert_eq!(reused.kill(&proc, 0), Ok(false));
        assert_eq!(proc.identity(pid), Some(identity));
        assert_eq!(identity.kill(&proc, 10_000), Ok(true));
        // A zombie has ended.
        assert_eq!(proc.identity(pid), None);
        assert_eq!(identity.kill(&proc, 10_000), Ok(false));
        child.wait().unwrap();
        assert!(identity.open(&proc).unwrap().is_none());
        assert!(Identity { pid: 0, start: 0 }.open(&proc).unwrap().is_none());
    }

    #[test]
    fn the_clock_of_a_process_runs_with_its_work() {
        let clock = CpuClock::of(getpid()).unwrap();
        let before = clock.read_ns().unwrap();
        let mut x = 1u64;
        while clock.read_ns().unwrap() < before + 1_000_000 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        let stat = Proc::default().stat(getpid()).unwrap();
        // Ticks are truncated, not rounded: the clock is at most a few ticks ahead, and never
        // behind by more than one for each field.
        assert!((stat.utime + stat.stime) * 10_000_000 <= clock.read_ns().unwrap() + 20_000_000);

        let (mut child, pid) = sleeper();
        let clock = CpuClock::of(pid).unwrap();
        assert!(clock.read_ns().is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(clock.read_ns().is_err());
        assert!(CpuClock::of(pid).is_err());
    }

    #[test]
    fn ends_are_reported_by_the_name_of_their_signal() {
        let told = [Exit::Code(3), Exit::Signal(libc::SIGSEGV), Exit::Signal(libc::SIGSYS), Exit::Signal(40)];
        let words = ["exit status 3", "signal 11 (SIGSEGV)", "signal 31 (SIGSYS)", "signal 40"];
        assert_eq!(told.map(|exit| exit.to_string()), words);
        assert!((1..=31).all(|signal| signal_name(signal).is_some()));
    }

    #[test]
    fn stat_survives_any_program_name() {
        let text = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 0 0 0 13 14 0 0 20 0 1 0 987654 1 2 3\n";
        assert_eq!(Stat::parse(text), Some(Stat { state: 'S', ppid: 7, flags: 4_194_560, utime: 13, stime: 14, start: 987_654 }));
        assert!(!Stat::parse(text).unwrap().is_ending() && Stat::parse(&text.replace("4194560", "4194564")).unwrap().is_ending());
        assert_eq!(Stat::parse("42 (x) S 7"), None);
        assert_eq!(Stat::parse(""), None);
        assert_eq!(Proc::default().stat(getpid()).unwrap().ppid, rustix::process::getppid().unwrap().as_raw_nonzero().get());
    }

    #[test]
    fn figures_come_from_the_given_root() {
        let root = tempfile::tempdir().unwrap();
        let proc = Proc::at(root.path());
        let pid = Pid::from_raw(42).unwrap();
        assert_eq!(proc.stat(pid).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::create_dir_all(root.path().join("42")).unwrap();
        let rollup = "5581-7ffe ---p 00000000 00:00 0 [rollup]\nRss: 900 kB\nShared_Dirty: 5 kB\n\
                      Private_Clean:       12 kB\nPrivate_Dirty:      80 kB\nPrivate_Hugetlb: 0 kB\n";
        fs::write(root.path().join("42/smaps_rollup"), rollup).unwrap();
        assert_eq!(proc.private_bytes(pid).unwrap(), 92 * 1024);
        fs::write(root.path().join("42/smaps_rollup"), "Rss: 900 kB\n").unwrap();
        assert_eq!(proc.private_bytes(pid).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::write(root.path().join("42/stat"), "42 (x) Z 1 2").unwrap();
        assert_eq!(proc.stat(pid).unwrap_err().kind(), io::ErrorKind::InvalidData);

        let own = Proc::default().private_bytes(getpid()).unwrap();
        assert!(own > 4096);
        assert_eq!(Proc::default().boot_id().unwrap().len(), 36);
    }

    #[test]
    fn the_limit_of_descriptors_is_raised_and_remembered() {
        let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise_nofile(1).unwrap(), hard.unwrap_or(u64::MAX), "never less than there was");
        assert_eq!(rustix::process::getrlimit(Resource::Nofile).current, hard);
        assert!(nofile_before().is_some());
        // Above the hard limit needs privilege.
        let more = hard.unwrap_or(u64::MAX).saturating_add(1);
        let got = raise_nofile(more).unwrap();
        assert!(got == more || got == hard.unwrap_or(u64::MAX));
        assert_eq!(rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), got);
    }

    #[test]
    fn the_peer_of_a_socket_is_known_by_its_process() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (a, _b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let own = (Some(getpid()), rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(peer_credentials(a.as_fd()), Ok(own));
        match peer_pidfd(a.as_fd()) {
            // This process itself: alive, so not readable.
            Ok(pidfd) => assert_eq!(wait_readable(pidfd.as_fd(), Some(0)), Ok(false)),
            Err(error) => assert_eq!(error, Errno::NOPROTOOPT),
        }
    }
}
