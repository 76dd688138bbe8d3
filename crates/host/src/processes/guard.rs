//! The guard: a small process that undoes what controllers did when their process dies.
//!
//! # Problem
//! A killed scheduler leaves processes stopped, frozen, or real-time for ever. After SIGKILL it can
//! do nothing itself.
//!
//! # Approach
//! - [`Guard::start`] runs the same program again with a hidden argument ([`super::helper`]): a new
//!   process with one thread and none of the caller's memory. It gets messages through a socket,
//!   its standard input.
//! - A controller sends what is to be undone (`Undo`) before it makes the change. The guard reads a
//!   message that the kernel has accepted whatever happens to the sender, so no answer is awaited.
//! - The kernel closes the sender's end when the last thread of its process is gone. Then, and not
//!   before, the guard undoes everything that was not taken back, and ends.
//! - It leads its own session, ignores the signals that stop groups, may run on every core, and
//!   raises itself above everything that controllers raise, where permitted: it sleeps until it is
//!   needed, and must not starve then.
//! - With a journal file ([`Guard::start_with`]) all messages are also written there. The guard
//!   removes it when all is undone. If both are killed, the next start undoes its entries:
//!   [`undo_left`].
//!
//! # Limits
//! If only the guard is killed, there is no guard until the next one: [`Guard::is_alive`] reports
//! it, and [`Controller::add`](super::Controller::add) refuses. A process must have the same number
//! for both, so both must be in one pid namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sluice_shm::handshake;

use super::attr::Attr;
use super::undo::{HostOps, Undo};
use super::{Failed, Refused, Target};
use crate::notice;
use crate::process::Proc;

/// First argument of a guard.
pub(super) const ARGUMENT: &str = "__sluice-guard";

/// Maximum time for a new guard's answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Maximum wait for a guard that does not read.
const STUCK: Duration = Duration::from_secs(2);

/// Maximum number of threads in one message, which keeps it below [`LONGEST`].
const THREADS: usize = 128;

/// Maximum size of a message, in bytes.
const LONGEST: usize = 32 * 1024;

/// Attempts of the guard to undo what cannot be undone yet, and milliseconds between.
const TRIES: (u32, u64) = (50, 100);

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) enum Message {
    /// A change that may have to be undone.
    Note(u64, Undo),
    Forget(u64),
    /// The journal of all messages, and the boot id.
    Journal(PathBuf, String),
}

/// A file with all messages to a guard.
#[derive(Debug)]
struct Journal {
    path: PathBuf,
    boot: String,
    file: File,
    lines: usize,
    /// Changes that are not taken back.
    left: BTreeMap<u64, Undo>,
}

/// The journal is rewritten when it has more lines than this and four times its entries.
const COMPACT_LINES: usize = 256;

impl Journal {
    fn make(path: &Path) -> io::Result<Self> {
        let boot = Proc::default().boot_id()?;
        let file = Self::open(path)?;
        let mut journal = Self { path: path.into(), boot, file, lines: 0, left: BTreeMap::new() };
        journal.append(&journal.head())?;
        Ok(journal)
    }

    /// Opens an empty file, in place of an old one.
    fn open(path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
    }

    fn head(&self) -> Message {
        Message::Journal(self.path.clone(), self.boot.clone())
    }

    fn append(&mut self, message: &Message) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.lines += 1;
        self.file.write_all(&line)
    }

    fn write(&mut self, message: &Message) -> io::Result<()> {
        match message {
            Message::Note(key, undo) => drop(self.left.insert(*key, undo.clone())),
            Message::Forget(key) => drop(self.left.remove(key)),
            Message::Journal(..) => {}
        }
        self.append(message)?;
        if self.lines > COMPACT_LINES && self.lines > 4 * self.left.len() {
            self.write_anew()?;
        }
        Ok(())
    }

    /// Writes the remaining entries to a new file, in place of the former one.
    fn write_anew(&mut self) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let (file, left) = (Self::open(&new)?, self.left.clone());
        let old = std::mem::replace(&mut self.file, file);
        self.lines = 0;
        let lines = std::iter::once(self.head()).chain(left.into_iter().map(|(key, undo)| Message::Note(key, undo)));
        let written = { lines }.try_for_each(|line| self.append(&line)).and_then(|()| std::fs::rename(&new, &self.path));
        if written.is_err() {
            self.file = old;
        }
        written
    }
}

/// Undoes and removes the journal of a guard that was killed with its maker.
///
/// Returns how many changes were undone, and why others were not; those stay in it.
pub fn undo_left(path: &Path) -> (usize, Option<String>) {
    let Ok(text) = std::fs::read_to_string(path) else { return (0, None) };
    let boot = Proc::default().boot_id().ok();
    let (mut left, mut is_of_boot) = (BTreeMap::new(), false);
    // Ignores a truncated last line.
    for message in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
        match message {
            Message::Journal(_, of) => is_of_boot = Some(of) == boot,
            Message::Note(key, undo) => drop(left.insert(key, undo)),
            Message::Forget(key) => drop(left.remove(&key)),
        }
    }
    // Changes of another boot are void, and memory went with its holders.
    left.retain(|_, undo| is_of_boot && !matches!(undo, Undo::Open { .. }));
    let n = left.len();
    let mut noted: BTreeMap<u64, (Undo, Option<OwnedFd>)> = left.into_iter().map(|(key, undo)| (key, (undo, None))).collect();
    let error = undo_all(&mut noted).map(|error| error.to_string());
    if noted.is_empty() {
        let _ = std::fs::remove_file(path);
    }
    (n - noted.len(), error.filter(|_| !noted.is_empty()))
}

/// Undoes the noted changes, and keeps those that fail; returns the last error.
fn undo_all(noted: &mut BTreeMap<u64, (Undo, Option<OwnedFd>)>) -> Option<Failed> {
    let host = HostOps::at(Path::new("/"));
    let mut last = None;
    for try_ in 0..TRIES.0 {
        // Folders that contain others come last.
        for is_last in [false, true] {
            noted.retain(|_, (undo, memory)| {
                let done = matches!(undo, Undo::Remove { .. }) == is_last
                    && undo.perform(&host, memory.as_ref().map(OwnedFd::as_fd)).map_err(|error| last = Some(error)).is_ok();
                !done
            });
        }
        if noted.is_empty() {
            return None;
        }
        if try_ + 1 < TRIES.0 {
            std::thread::sleep(Duration::from_millis(TRIES.1));
        }
    }
    last
}

/// The sending side of a guard.
#[derive(Debug)]
pub struct Guard {
    said: Mutex<Said>,
    child: Option<Child>,
    pid: i32,
}

#[derive(Debug)]
struct Said {
    socket: Option<OwnedFd>,
    journal: Option<Journal>,
    next: u64,
    /// Processes under control of some controller.
    taken: BTreeSet<i32>,
}

/// Keys of changes that were sent to the guard, to be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note(Vec<u64>);

impl Guard {
    /// Starts a guard; `program` calls [`super::helper::take_over`], as `/proc/self/exe` may.
    ///
    /// # Errors
    /// [`Refused::NoGuard`], [`Refused::System`].
    pub fn start(program: &Path) -> Result<Arc<Self>, Refused> {
        Self::start_with(program, None)
    }

    /// As [`Self::start`], and writes all messages to a file, too.
    ///
    /// # Errors
    /// [`Refused::NoGuard`], [`Refused::System`].
    pub fn start_with(program: &Path, journal: Option<&Path>) -> Result<Arc<Self>, Refused> {
        let (own, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(Refused::NoGuard)?;
        let mut command = Command::new(program);
        command.arg0("sluice-guard").arg(ARGUMENT).env_clear().current_dir("/");
        command.stdin(theirs).stdout(Stdio::null());
        let system = |source| Refused::System { doing: "start the guard from", what: program.display().to_string(), source };
        let child = command.spawn().map_err(system)?;
        // It holds the other end of the socket.
        drop(command);
        let pid = child.id() as i32;
        let mut guard = Self::over(own);
        (guard.child, guard.pid) = (Some(child), pid);
        guard.await_hello()?;
        if let Some(path) = journal {
            let system = |source| Refused::System { doing: "write", what: path.display().to_string(), source };
            let made = Journal::make(path).map_err(system)?;
            let mut said = guard.said();
            said.send(&made.head(), None).map_err(Refused::NoGuard)?;
            said.journal = Some(made);
        }
        Ok(Arc::new(guard))
    }

    /// Writes the removed file of [`Self::start_with`] again.
    pub fn write_journal_anew(&self) -> io::Result<()> {
        self.said().journal.as_mut().map_or(Ok(()), Journal::write_anew)
    }

    /// A guard that listens at the other end of a socket.
    pub(super) fn over(socket: OwnedFd) -> Self {
        let _ = set_socket_timeout(&socket, Timeout::Send, Some(STUCK));
        let said = Said { socket: Some(socket), journal: None, next: 0, taken: BTreeSet::new() };
        Self { said: Mutex::new(said), child: None, pid: 0 }
    }

    fn await_hello(&self) -> Result<(), Refused> {
        let said = self.said();
        let socket = said.socket.as_ref().ok_or(Refused::NoGuard(Errno::PIPE))?;
        let _ = set_socket_timeout(socket, Timeout::Recv, Some(PATIENCE));
        match handshake::receive(socket.as_fd()) {
            Ok(_) => Ok(()),
            Err(handshake::HandshakeError::Socket(error)) => Err(Refused::NoGuard(error)),
            Err(_) => Err(Refused::NoGuard(Errno::PROTO)),
        }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it still listens. One system call.
    pub fn is_alive(&self) -> bool {
        let said = self.said();
        let Some(socket) = &said.socket else { return false };
        let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        !fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }

    /// Marks the processes of a target as taken.
    pub(super) fn take(&self, target: &Target) -> Result<(), Refused> {
        let mut said = self.said();
        for member in target.members() {
            let pid = member.raw();
            if pid == self.pid {
                return Err(Refused::Ourselves { pid });
            }
            if said.taken.contains(&pid) {
                return Err(Refused::Taken { pid });
            }
        }
        said.taken.extend(target.members().iter().map(|member| member.raw()));
        Ok(())
    }

    pub(super) fn give(&self, target: &Target) {
        let mut said = self.said();
        target.members().iter().for_each(|member| {
            said.taken.remove(&member.raw());
        });
    }

    /// Sends what is to be undone. After this returns, the guard will read it in any case.
    pub(super) fn note(&self, undos: &[Undo], memory: Option<BorrowedFd<'_>>) -> Result<Note, Refused> {
        let mut note = Note(Vec::new());
        for undo in undos.iter().flat_map(cut) {
            let mut said = self.said();
            let key = said.next;
            said.next += 1;
            let result = said.send(&Message::Note(key, undo), memory);
            drop(said);
            if let Err(error) = result {
                self.forget(&note);
                return Err(Refused::NoGuard(error));
            }
            note.0.push(key);
        }
        Ok(note)
    }

    /// Reports that it was undone. A guard that is gone needs no message.
    pub(super) fn forget(&self, note: &Note) {
        let mut said = self.said();
        for key in &note.0 {
            let _ = said.send(&Message::Forget(*key), None);
        }
    }
}

impl Said {
    fn send(&mut self, message: &Message, memory: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        if self.socket.is_none() {
            return Err(Errno::PIPE);
        }
        let text = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
        if text.len() > LONGEST {
            return Err(Errno::MSGSIZE);
        }
        if let Some(journal) = &mut self.journal
            && let Err(error) = journal.write(message)
        {
            // The guard gets the message even so.
            warn!(
                "cannot write {}: {error}; if sluiced and its guard are killed together, processes may stay parked",
                journal.path.display()
            );
            self.journal = None;
        }
        let socket = self.socket.as_ref().ok_or(Errno::PIPE)?;
        match handshake::send(socket.as_fd(), &text, memory.as_slice()) {
            Ok(()) => Ok(()),
            Err(handshake::HandshakeError::Socket(error)) => Err(error),
            Err(_) => Err(Errno::PROTO),
        }
    }
}

/// Splits what is too long for one message.
fn cut(undo: &Undo) -> Vec<Undo> {
    match undo {
        Undo::Classes { process, threads, others } if threads.len() > THREADS => {
            let all: Vec<(i32, Attr)> = threads.iter().map(|(tid, attr)| (*tid, *attr)).collect();
            // Undone in this order: the first part sets all others, the next ones correct theirs.
            let part = |(i, part): (usize, &[(i32, Attr)])| Undo::Classes {
                process: *process,
                threads: part.iter().copied().collect(),
                others: others.filter(|_| i == 0),
            };
            all.chunks(THREADS).enumerate().map(part).collect()
        }
        other => vec![other.clone()],
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The guard sees the end of the socket, undoes what is left, and ends.
        self.said().socket = None;
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }
}

/// Main function of the guard, whose socket is its standard input.
pub(super) fn keep() -> ExitCode {
    step_aside();
    let stdin = std::io::stdin();
    let Ok(socket) = rustix::io::fcntl_dupfd_cloexec(&stdin, 3) else { return ExitCode::FAILURE };
    if handshake::send(socket.as_fd(), b"ready", &[]).is_err() {
        return ExitCode::FAILURE;
    }
    let mut noted: BTreeMap<u64, (Undo, Option<OwnedFd>)> = BTreeMap::new();
    let mut journal = None;
    let done = |journal: &Option<PathBuf>| {
        if let Some(path) = journal {
            let _ = std::fs::remove_file(path);
        }
    };
    loop {
        match handshake::receive(socket.as_fd()) {
            Ok((bytes, mut fds)) => match serde_json::from_slice(&bytes) {
                Ok(Message::Note(key, undo)) => drop(noted.insert(key, (undo, fds.pop()))),
                Ok(Message::Forget(key)) => drop(noted.remove(&key)),
                Ok(Message::Journal(path, _)) => journal = Some(path),
                Err(error) => notice::write(&format!("sluice-guard: a message that makes no sense: {error}\n")),
            },
            Err(handshake::HandshakeError::Socket(Errno::INTR)) => {}
            // The other side has ended, or the socket has failed.
            Err(_) => break,
        }
    }
    if noted.is_empty() {
        done(&journal);
        return ExitCode::SUCCESS;
    }
    let n = noted.len();
    let last = undo_all(&mut noted);
    if noted.is_empty() {
        done(&journal);
        notice::write(&format!(
            "sluice-guard: the scheduler has ended without giving back what it had changed on processes; now it is ({n} changes)\n"
        ));
        return ExitCode::SUCCESS;
    }
    if let Some(error) = last {
        notice::write(&format!(
            "sluice-guard: the scheduler has ended, and {} of {n} changes could not be given back: {error}\n",
            noted.len()
        ));
    }
    ExitCode::FAILURE
}

/// Leaves the caller's session, cores and class, and ignores its signals, where permitted.
fn step_aside() {
    for signal in
        [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE, libc::SIGTSTP, libc::SIGUSR1, libc::SIGUSR2]
    {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"sluice-guard");
    // SAFETY: no code here uses inherited descriptors; the three standard ones stay.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    let mut all = rustix::thread::CpuSet::new();
    (0..rustix::thread::CpuSet::MAX_CPU).for_each(|core| all.set(core));
    let _ = rustix::thread::sched_setaffinity(None, &all);
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    if let Ok(attr) = Attr::of(0) {
        let _ = attr.round_robin(99).give(0);
    }
}
