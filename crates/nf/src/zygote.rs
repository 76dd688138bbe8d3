//! A zygote: a process that makes its handler once, and is forked for each instance.
//!
//! # Problem
//! Hundreds of instances would load the service's tables hundreds of times, and a new one would be
//! ready when its tables are loaded, not when it is needed.
//!
//! # Approach
//! The manager starts a service's program once more, with the variable
//! [`ENV_ZYGOTE`](sluice_shm::zygote::ENV_ZYGOTE). The process connects as an NF does, but gets
//! names and no memory: no rings, no core page, no packets, ever. It makes the handler and waits.
//! For each instance it clones itself; the child attaches under its given name, as if it had been
//! spawned, is notified by [`Handler::forked`](crate::Handler::forked), and runs its copy of the
//! handler, which shares the zygote's pages until one writes.
//!
//! The child is a child of the *manager* (`CLONE_PARENT`), which collects it and its exit status. A
//! clone keeps the zygote's user, groups, `no_new_privs`, system call filter, limits, signal mask
//! and actions, standard input and open files. It loses and sets again: the death signal, so that
//! it dies with the manager, a process group of its own, and a pipe for standard output and error,
//! which comes with its name and is logged under that. It loses for good: memory locks, timers,
//! record locks (`fcntl`), threads. `pthread_atfork` handlers are not called.
//!
//! # Limits
//! These report that they are unfit, and the manager then starts instances one by one: a process
//! with threads, as a lock that another thread held would stay locked; one that set up its
//! [`storage`](crate::storage) in `make`, as processes cannot share its rings; and one in pull
//! style, as the library cannot tell when it is initialised.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, getppid, setpgid};
use sluice_shm::handshake::{HandshakeError, receive, send};
use sluice_shm::zygote::{self, Fork, ZygoteReport};

use crate::context::Context;
use crate::engine::connect;
use crate::error::{AttachError, NfError};
use crate::options::Options;
use crate::sleeper::Sleeper;

static FORKED_AS: OnceLock<String> = OnceLock::new();

/// The name of the instance that this process was forked for, if it was.
pub(crate) fn forked_as() -> Option<&'static str> {
    FORKED_AS.get().map(String::as_str)
}

/// Reports to the manager that this process cannot be a zygote.
pub(crate) fn decline(options: &Options, why: &str) -> Result<(), AttachError> {
    let (socket, name) = connect(options)?;
    zygote::attach(&socket, &name)?;
    Ok(send(socket.as_fd(), &ZygoteReport::Unfit(why.into()).encode(), &[])?)
}

/// Runs a zygote. Returns, in each forked process, what was made and its options; None in the
/// zygote itself, when the manager has let it go or it has reported that it is unfit.
pub(crate) fn serve<S>(
    options: &Options,
    make: impl FnOnce(&Context) -> Result<S, NfError>,
) -> Result<Option<(S, Options)>, NfError> {
    let (socket, name) = connect(options)?;
    let parent = getppid();
    let surroundings = zygote::attach(&socket, &name).map_err(AttachError::from)?;
    let made = make(&Context::of_zygote(&surroundings))?;
    let say_with =
        |report: ZygoteReport, fds: &[BorrowedFd<'_>]| send(socket.as_fd(), &report.encode(), fds).map_err(AttachError::from);
    let say = |report: ZygoteReport| say_with(report, &[]);
    if let Some(why) = unfit() {
        say(ZygoteReport::Unfit(why))?;
        return Ok(None);
    }
    // Buffered output would come out of every child.
    let _ = std::io::stdout().flush();
    // SAFETY: null flushes all of C's streams, and this process has one thread.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    say(ZygoteReport::Ready)?;
    loop {
        let (message, pipe) = match receive(socket.as_fd()) {
            Ok((message, fds)) => (message, fds.into_iter().next()),
            Err(HandshakeError::Socket(Errno::INTR)) => continue,
            // The manager has let the zygote go.
            Err(HandshakeError::Socket(_)) => return Ok(None),
            Err(error) => return Err(AttachError::from(error).into()),
        };
        let Fork { name } = Fork::decode(&message).map_err(AttachError::from)?;
        match clone_sibling() {
            Ok(Some((pid, pidfd))) => {
                let report = ZygoteReport::Forked { name, pid: pid.as_raw_nonzero().get() };
                match pidfd {
                    Some(pidfd) => say_with(report, &[pidfd.as_fd()])?,
                    None => say(report)?,
                }
            }
            Ok(None) => {
                pipe.iter().for_each(say_into);
                return Ok(Some(be(name, options, socket, parent, made)));
            }
            Err(error) => say(ZygoteReport::Failed { name, why: format!("cannot fork: {error}") })?,
        }
    }
}

/// Why this process cannot be forked, if it cannot.
fn unfit() -> Option<String> {
    if Sleeper::here().storage().is_some() {
        return Some("its storage was set up with its handler; set it up in `forked`".into());
    }
    match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
        Ok(1) => None,
        Ok(threads) => Some(format!("it has {threads} threads when its handler is made; start threads in `forked`")),
        Err(error) => Some(format!("its threads cannot be counted: /proc/self/task: {error}")),
    }
}

/// Redirects standard output and error into a pipe.
fn say_into(pipe: &OwnedFd) {
    for stream in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: closes the stream's former file, which only the stream uses by that number.
        unsafe { libc::dup2(pipe.as_raw_fd(), stream) };
    }
}

/// A clone's first steps: leaves the zygote's connection, sets its process group.
fn be<S>(name: String, options: &Options, socket: OwnedFd, parent: Option<Pid>, made: S) -> (S, Options) {
    drop(socket);
    if getppid() != parent {
        // The manager died before the death signal was set: no signal will come.
        std::process::exit(1);
    }
    // It leads no session, so this cannot fail.
    let _ = setpgid(None, None);
    let _ = FORKED_AS.set(name.clone());
    (made, Options { name: Some(name), zygote: false, ..options.clone() })
}

/// Clones this single-threaded process as a sibling. The child's number and pidfd, if the kernel
/// gives one; None in the child.
fn clone_sibling() -> Result<Option<(Pid, Option<OwnedFd>)>, Errno> {
    let mut death_signal: libc::c_int = 0;
    // SAFETY: the kernel writes an int.
    unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut death_signal) };
    let thread_word = thread_word();
    let (mut robust, mut robust_len) = (std::ptr::null_mut::<libc::c_void>(), 0usize);
    // SAFETY: the kernel writes a pointer and a length, of this thread.
    let has_robust = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut robust, &raw mut robust_len) } == 0;
    let mut pidfd: libc::c_int = -1;
    let mut flags = libc::CLONE_PARENT | libc::CLONE_PIDFD | libc::SIGCHLD;
    if !thread_word.is_null() {
        flags |= libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID;
    }
    let none = std::ptr::null_mut::<libc::c_void>();
    // The order of the last two arguments differs between machines.
    #[cfg(target_arch = "x86_64")]
    let (fourth, fifth) = (thread_word.cast::<libc::c_void>(), none);
    #[cfg(not(target_arch = "x86_64"))]
    let (fourth, fifth) = (none, thread_word.cast::<libc::c_void>());
    // SAFETY: without CLONE_VM the child has a copy of memory and stack; with one thread (see
    // unfit()) no other holds a lock. The kernel writes to the C library's word in the child, and
    // a file's number here.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), none, &raw mut pidfd, fourth, fifth) };
    if pid < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    if pid > 0 {
        // SAFETY: a number that the kernel has written is that of a file which nobody else has.
        let pidfd = (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) });
        return Ok(Pid::from_raw(pid as libc::pid_t).map(|pid| (pid, pidfd)));
    }
    // SAFETY: the parent's values: a signal's number, and this thread's list, at the same address.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::c_ulong::from(death_signal.cast_unsigned()));
        if has_robust {
            libc::syscall(libc::SYS_set_robust_list, robust, robust_len);
        }
    }
    Ok(None)
}

/// The C library's word for this thread's number, which a clone must update; null if unknown.
fn thread_word() -> *mut libc::c_int {
    // In the headers of Linux since 3.5, not in those of every C library.
    const PR_GET_TID_ADDRESS: libc::c_int = 40;
    let mut word: *mut libc::c_int = std::ptr::null_mut();
    // SAFETY: the kernel writes a pointer, which the C library set at the thread's start.
    let ok = unsafe { libc::prctl(PR_GET_TID_ADDRESS, &raw mut word) } == 0;
    // SAFETY: the word lives as long as the thread. A C library without it names another word.
    let is_number = ok && !word.is_null() && unsafe { word.read_volatile() } == rustix::thread::gettid().as_raw_nonzero().get();
    if is_number { word } else { std::ptr::null_mut() }
}
