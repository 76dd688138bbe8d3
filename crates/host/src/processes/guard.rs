//! The guard: a small process that undoes what controllers did when their process dies.
//!
//! # Problem
//! A scheduler that is killed leaves processes stopped, frozen, or real-time for ever. Nothing that it could do itself happens
//! after SIGKILL.
//!
//! # Approach
//! - [`Guard::start`] runs the same program again with a hidden argument ([`super::helper`]): a fresh process with one
//!   thread and nothing of the caller's memory, whatever threads the caller has. It is told by a socket, its standard input.
//! - A controller says what is to be undone (`Undo`) before it does it. A message that the kernel has taken is read by the guard
//!   whatever becomes of the sender, so no answer is waited for.
//! - When the last thread of the sender's process is gone, the kernel closes its end. Then, and not before, the guard undoes
//!   everything that was not taken back, and ends.
//! - It leads a session of its own and ignores the signals by which groups are stopped, may run on every core, and is raised above
//!   everything that controllers raise, where it is allowed to: it sleeps until it is needed, and must not be starved when it is.
//!
//! - With a file for it ([`Guard::start_with`]) all that is said is written there, too. The guard removes it when all was undone; if both
//!   are killed, it is there at the next start, which does what it says: [`undo_left`].
//!
//! # Limits
//! Who kills the guard alone is not guarded until the next one: [`Guard::is_alive`] tells, and
//! [`Controller::add`](super::Controller::add) refuses.
//! A process must be named by the same number for both, so both must be in one pid namespace.

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
use super::undo::{Host, Undo};
use super::{Failed, Refused, Target};
use crate::notice;
use crate::process::Proc;

/// First argument of a guard.
pub(super) const ARGUMENT: &str = "__sluice-guard";

/// Time that a new guard has to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longest wait for a guard that does not read.
const STUCK: Duration = Duration::from_secs(2);

/// Most threads in one message, which keeps it under [`LONGEST`].
const THREADS: usize = 128;

/// Longest message, in bytes.
const LONGEST: usize = 32 * 1024;

/// Times that the guard tries to undo what cannot be undone yet, and milliseconds between.
const TRIES: (u32, u64) = (50, 100);

/// What is said to the guard.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) enum Message {
    /// To be undone.
    Note(u64, Undo),
    /// Was undone.
    Forget(u64),
    /// The file that says the same, of this boot.
    Journal(PathBuf, String),
}

/// A file that has all that was said to a guard.
#[derive(Debug)]
struct Journal {
    path: PathBuf,
    boot: String,
    file: File,
    lines: usize,
    /// What was said and not taken back.
    left: BTreeMap<u64, Undo>,
}

/// The journal is written anew when it has more lines than this and four times what is left to say.
const COMPACT_LINES: usize = 256;

impl Journal {
    fn make(path: &Path) -> io::Result<Self> {
        let boot = Proc::default().boot_id()?;
        let file = Self::open(path)?;
        let mut journal = Self { path: path.into(), boot, file, lines: 0, left: BTreeMap::new() };
        journal.append(&journal.head())?;
        Ok(journal)
    }

    /// In place of what was there.
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

    /// Writes what is about to be said.
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

    /// Writes what is left to say to a new file, in place of the former one.
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

/// Undoes what a journal says whose guard and whose maker have ended without, and removes it. Says how many changes were undone, and why
/// others were not; those stay in it.
pub fn undo_left(path: &Path) -> (usize, Option<String>) {
    let Ok(text) = std::fs::read_to_string(path) else { return (0, None) };
    let boot = Proc::default().boot_id().ok();
    let (mut left, mut is_of_boot) = (BTreeMap::new(), false);
    // A last line that was cut short is as if it had not been begun.
    for message in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
        match message {
            Message::Journal(_, of) => is_of_boot = Some(of) == boot,
            Message::Note(key, undo) => drop(left.insert(key, undo)),
            Message::Forget(key) => drop(left.remove(&key)),
        }
    }
    // Nothing of another boot is left, and memory went with those who had it.
    left.retain(|_, undo| is_of_boot && !matches!(undo, Undo::Open { .. }));
    let n = left.len();
    let mut noted: BTreeMap<u64, (Undo, Option<OwnedFd>)> = left.into_iter().map(|(key, undo)| (key, (undo, None))).collect();
    let error = undo_all(&mut noted).map(|error| error.to_string());
    if noted.is_empty() {
        let _ = std::fs::remove_file(path);
    }
    (n - noted.len(), error.filter(|_| !noted.is_empty()))
}

/// Undoes what is noted, and keeps what cannot be undone: the last reason is given.
fn undo_all(noted: &mut BTreeMap<u64, (Undo, Option<OwnedFd>)>) -> Option<Failed> {
    let host = Host::at(Path::new("/"));
    let mut last = None;
    for try_ in 0..TRIES.0 {
        // Folders that others are in come last.
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

/// The caller's side.
#[derive(Debug)]
pub struct Guard {
    said: Mutex<Said>,
    child: Option<Child>,
    /// The guard's own number.
    pid: i32,
}

#[derive(Debug)]
struct Said {
    socket: Option<OwnedFd>,
    journal: Option<Journal>,
    next: u64,
    /// Processes that some controller has.
    taken: BTreeSet<i32>,
}

/// What was said to the guard, to be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note(Vec<u64>);

impl Guard {
    /// Starts one from a program that calls [`super::helper::take_over`]: `/proc/self/exe` is the caller's own.
    ///
    /// # Errors
    /// [`Refused::NoGuard`], [`Refused::System`].
    pub fn start(program: &Path) -> Result<Arc<Self>, Refused> {
        Self::start_with(program, None)
    }

    /// As [`Self::start`], and all that it is told is written to a file, too.
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
        // It keeps the other end of the socket.
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

    /// Writes the file of [`Self::start_with`] anew, which somebody has removed.
    ///
    /// # Errors
    /// The system's answer.
    pub fn write_journal_anew(&self) -> io::Result<()> {
        self.said().journal.as_mut().map_or(Ok(()), Journal::write_anew)
    }

    /// One that listens at the other end of a socket.
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

    /// Its number.
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

    /// Notes that a controller has the processes of a target.
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

    /// The opposite.
    pub(super) fn give(&self, target: &Target) {
        let mut said = self.said();
        target.members().iter().for_each(|member| {
            said.taken.remove(&member.raw());
        });
    }

    /// Says what is to be undone. When this returns the guard has it, or will read it whatever happens.
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

    /// Says that it was undone. A guard that is gone has nothing to forget.
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
            // The guard has it all the same.
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

/// Cuts what is too long for one message.
fn cut(undo: &Undo) -> Vec<Undo> {
    match undo {
        Undo::Classes { process, threads, others } if threads.len() > THREADS => {
            let all: Vec<(i32, Attr)> = threads.iter().map(|(tid, attr)| (*tid, *attr)).collect();
            // They are undone in this order: the first part gives all others what newcomers get, the next ones set theirs right.
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
        // It sees the end, undoes what is left, and ends.
        self.said().socket = None;
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }
}

/// The guard itself, whose socket is its standard input.
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
            // The end of the other side, or nothing that could be waited for.
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

/// Leaves the caller's session, cores and class, and what it may be killed by. What is not permitted is done without.
fn step_aside() {
    for signal in
        [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE, libc::SIGTSTP, libc::SIGUSR1, libc::SIGUSR2]
    {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"sluice-guard");
    // SAFETY: whatever descriptors came along are nobody's here; the three standard ones stay.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    let mut all = rustix::thread::CpuSet::new();
    (0..rustix::thread::CpuSet::MAX_CPU).for_each(|core| all.set(core));
    let _ = rustix::thread::sched_setaffinity(None, &all);
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    if let Ok(attr) = Attr::of(0) {
        let _ = attr.round_robin(99).give(0);
    }
}
