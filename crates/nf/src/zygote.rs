//! A zygote: a process that makes its handler once, and is forked for each instance that the manager wants.
//!
//! # Problem
//! A service of hundreds of instances would load its tables hundreds of times, and one more instance would come when its tables are
//! loaded, and not when it is needed.
//!
//! # Approach
//! The manager starts a service's program once more, with a variable that says so ([`ENV_ZYGOTE`](sluice_shm::zygote::ENV_ZYGOTE)). The
//! process connects as an NF does, but gets names and no memory: no rings, no core page, no packets, ever. It makes the handler and
//! waits. For each instance it clones itself; the child attaches under the name that it was given, as if it had been spawned, is told so
//! by [`Handler::forked`](crate::Handler::forked), and runs the copy of the handler. A copy shares the zygote's pages until one writes.
//!
//! The child is a child of the *manager* (`CLONE_PARENT`), which collects it and is told how it ended. What a clone keeps of the zygote:
//! user, groups, `no_new_privs`, the filter of system calls, limits, signal mask and actions,
//! standard input, open files. What it loses and is set again: the death signal, so that it dies
//! with the manager, a process group of its own, and a pipe for standard output and error, which
//! comes with its name and is logged under that. What it loses and nobody sets again: memory locks,
//! timers, record locks (`fcntl`), threads. `pthread_atfork` handlers are not called.
//!
//! # Limits
//! A clone has one thread, and a lock that another one held stays locked: a process with threads is no zygote. Nor is one whose
//! [`storage`](crate::storage) was set up in `make`, because two processes cannot share its rings, nor one in pull style, because the
//! library cannot tell when it is initialised. Each says so, and the manager then starts instances one by one.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, getppid, setpgid};
use sluice_shm::handshake::{HandshakeError, receive, send};
use sluice_shm::zygote::{self, Fork, Report};

use crate::context::Context;
use crate::engine::connect;
use crate::error::{AttachError, NfError};
use crate::options::Options;
use crate::seat::Seat;

/// The name of the instance that this process was forked for.
static FORKED_AS: OnceLock<String> = OnceLock::new();

/// The name of the instance that this process was forked for, if it was.
pub(crate) fn forked_as() -> Option<&'static str> {
    FORKED_AS.get().map(String::as_str)
}

/// Says to the manager that this process cannot be a zygote.
pub(crate) fn decline(options: &Options, why: &str) -> Result<(), AttachError> {
    let (socket, name) = connect(options)?;
    zygote::attach(&socket, &name)?;
    Ok(send(socket.as_fd(), &Report::Unfit(why.into()).encode(), &[])?)
}

/// Is a zygote. Returns what was made and the options of an instance in each process that was forked; None in the zygote itself, when the
/// manager has let it go or it is unfit, which the manager was told.
pub(crate) fn serve<S>(
    options: &Options,
    make: impl FnOnce(&Context) -> Result<S, NfError>,
) -> Result<Option<(S, Options)>, NfError> {
    let (socket, name) = connect(options)?;
    let parent = getppid();
    let surroundings = zygote::attach(&socket, &name).map_err(AttachError::from)?;
    let made = make(&Context::of_zygote(&surroundings))?;
    let say = |report: Report| send(socket.as_fd(), &report.encode(), &[]).map_err(AttachError::from);
    if let Some(why) = unfit() {
        say(Report::Unfit(why))?;
        return Ok(None);
    }
    // What is in a buffer would come out of every child.
    let _ = std::io::stdout().flush();
    // SAFETY: null flushes all of C's streams, and this process has one thread.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    say(Report::Ready)?;
    loop {
        let (message, pipe) = match receive(socket.as_fd()) {
            Ok((message, fds)) => (message, fds.into_iter().next()),
            Err(HandshakeError::Socket(Errno::INTR)) => continue,
            // Let go.
            Err(HandshakeError::Socket(_)) => return Ok(None),
            Err(error) => return Err(AttachError::from(error).into()),
        };
        let Fork { name } = Fork::decode(&message).map_err(AttachError::from)?;
        match clone_sibling() {
            Ok(Some(pid)) => say(Report::Forked { name, pid: pid.as_raw_nonzero().get() })?,
            Ok(None) => {
                pipe.iter().for_each(say_into);
                return Ok(Some(be(name, options, socket, parent, made)));
            }
            Err(error) => say(Report::Failed { name, why: format!("cannot fork: {error}") })?,
        }
    }
}

/// Why this process cannot be forked, if it cannot.
fn unfit() -> Option<String> {
    if Seat::here().storage().is_some() {
        return Some("its storage was set up with its handler; set it up in `forked`".into());
    }
    match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
        Ok(1) => None,
        Ok(threads) => Some(format!("it has {threads} threads when its handler is made; start threads in `forked`")),
        Err(error) => Some(format!("its threads cannot be counted: /proc/self/task: {error}")),
    }
}

/// Has standard output and error go into a pipe.
fn say_into(pipe: &OwnedFd) {
    for stream in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: closes the stream's former file, which only the stream uses by that number.
        unsafe { libc::dup2(pipe.as_raw_fd(), stream) };
    }
}

/// What a clone does first: it leaves the zygote's connection, and takes a process group and the death signal.
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

/// Clones this process, which has one thread: a child of this process's parent that goes on from here. Its number, or None in the child.
fn clone_sibling() -> Result<Option<Pid>, Errno> {
    let mut death_signal: libc::c_int = 0;
    // SAFETY: the kernel writes an int.
    unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut death_signal) };
    let thread_word = thread_word();
    let (mut robust, mut robust_len) = (std::ptr::null_mut::<libc::c_void>(), 0usize);
    // SAFETY: the kernel writes a pointer and a length, of this thread.
    let has_robust = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut robust, &raw mut robust_len) } == 0;
    let mut flags = libc::CLONE_PARENT | libc::SIGCHLD;
    if !thread_word.is_null() {
        flags |= libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID;
    }
    let none = std::ptr::null_mut::<libc::c_void>();
    // The order of the last two arguments differs between machines.
    #[cfg(target_arch = "x86_64")]
    let (fourth, fifth) = (thread_word.cast::<libc::c_void>(), none);
    #[cfg(not(target_arch = "x86_64"))]
    let (fourth, fifth) = (none, thread_word.cast::<libc::c_void>());
    // SAFETY: without CLONE_VM the child has a copy of this memory, with this stack; the process has one thread (see unfit()), so no lock
    // is held by another. The kernel writes the child's number to the C library's own word for it, in the child.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), none, none, fourth, fifth) };
    if pid < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    if pid > 0 {
        return Ok(Pid::from_raw(pid as libc::pid_t));
    }
    // SAFETY: what the parent had: a signal's number, and the list of this thread, which lies where it lay.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::c_ulong::from(death_signal.cast_unsigned()));
        if has_robust {
            libc::syscall(libc::SYS_set_robust_list, robust, robust_len);
        }
    }
    Ok(None)
}

/// Where the C library keeps the number of this thread, which a clone must have changed; null if it cannot be told.
fn thread_word() -> *mut libc::c_int {
    // In the headers of Linux since 3.5, not in those of every C library.
    const PR_GET_TID_ADDRESS: libc::c_int = 40;
    let mut word: *mut libc::c_int = std::ptr::null_mut();
    // SAFETY: the kernel writes a pointer. It is the one that the C library named at the thread's start.
    let told = unsafe { libc::prctl(PR_GET_TID_ADDRESS, &raw mut word) } == 0;
    // SAFETY: the word that the kernel was named lives as long as the thread. Another C library names another word.
    let is_number = told && !word.is_null() && unsafe { word.read_volatile() } == rustix::thread::gettid().as_raw_nonzero().get();
    if is_number { word } else { std::ptr::null_mut() }
}
