//! Starts the process of an NF.
//!
//! # Problem
//! The manager has a big address space and threads that move packets. `fork` copies its page tables
//! and makes each of its pages fault on the next write, also on the packet threads. It also copies
//! a table of thousands of descriptors only to close them again.
//!
//! # Approach
//! `clone` with `CLONE_VM | CLONE_VFORK | CLONE_FILES`: for a few tens of microseconds the child
//! runs in the manager's own memory and with its descriptors, while only the calling thread waits.
//! The child runs on a stack of its own, makes only raw system calls, writes only to that stack and
//! its report, and ends in `execve` or `_exit`. What it needs (strings, core mask, filter) is built
//! before. After it has entered its own network namespace, if it has one, the child in this order
//! 1. replaces the manager's descriptor table by a copy of 0, 1, 2 and the pipe that it writes to
//!    (`close_range` with `CLOSE_RANGE_UNSHARE`): an NF inherits none of the manager's other
//!    descriptors, close-on-exec or not;
//! 2. joins its cgroup, if one is named, and makes its own process group, so that Ctrl-C in a
//!    terminal reaches only the manager, which then stops NFs in order;
//! 3. opens its standard streams: input is always `/dev/null`, output as [`Stdio`] says;
//! 4. sets its cores, the manager's original limit of descriptors, and its own
//!    [limits](ProcessLimits);
//! 5. sets its groups, group and user by raw system calls, because glibc's wrappers would change
//!    the manager's threads. Unless it stays root, it drops every capability that it or a program
//!    that it executes could have;
//! 6. always sets `no_new_privs`: a set-user-id program that an NF executes gains nothing;
//! 7. asks to be killed when the manager dies (`PR_SET_PDEATHSIG`; after 5, which clears it), and
//!    ends if the manager has died already;
//! 8. resets signals: they are blocked from before the clone, so no handler of the manager runs;
//! 9. installs the [filter] of system calls, if asked;
//! 10. executes the program: by its path, or, where its user may not enter a folder on the way, by
//!     a descriptor that was opened before 5.
//!
//! If a step fails, [`spawn`] returns step and error, from the shared memory.
//!
//! # Apart
//! With [`SpawnSpec::apart`] the child is the first process of a new process namespace, with its
//! own mounts and cgroup namespace. The kernel ends such a namespace with its first process: all
//! that the program starts, in namespaces of its own or not, ends with the program, and so, by step
//! 7, with the manager. OCI runtimes are started this way, because their containers would otherwise
//! outlive them.
//!
//! # Kept
//! With [`SpawnSpec::keeper`] the child is in a process namespace that all NFs share. Its first
//! process, the [`Keeper`], ends with the manager, and the kernel then ends all that is in the
//! namespace, including detached processes that an NF has forked. A namespace for each NF would do
//! that as well, but its first process ignores signals that it has no handler for, and cannot be a
//! zygote.
//!
//! With [`SpawnSpec::born_in`] the child is in a cgroup of version 2 from its first instruction on
//! (`CLONE_INTO_CGROUP`). Joining one later takes the kernel some 15 ms, which would delay a
//! restart. Where the manager runs under a filter that does not know `clone3`, the child joins the
//! cgroup before step 3 instead.
//!
//! # Limits
//! - The kernel sends the death signal when the *thread* that spawned ends. Spawn from a thread
//!   that lives as long as the manager.
//! - A program with file capabilities loses the death signal at `execve`; [`super::record`] then
//!   finds it at the next start.
//! - The child starts with the working directory, the umask, the scheduling policy and (without
//!   [`SpawnSpec::cores`]) the cores of the calling thread.
//! - Needs Linux 5.11 (`close_range` with its flags; pidfd is from 5.4).

// clone and a child in borrowed memory have no safe wrapper.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_long, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use rustix::process::{Pid, Resource};

use super::filter::{self, Filter};
use super::user::User;
use crate::netns::Netns;
use crate::process::{self, Exit, last_errno};

/// Where an NF's standard output and error go.
#[derive(Debug, Clone, Default)]
pub enum Stdio {
    /// To the manager's own. The process can shut them down for the manager too.
    #[default]
    Inherit,
    Null,
    /// Appended to this file (absolute path), made with mode 0640 if missing, as the manager.
    Log(PathBuf),
    Pipe(Arc<OwnedFd>),
}

#[derive(Debug, Clone)]
pub struct SpawnSpec {
    /// Name of the NF, for messages.
    pub name: String,
    /// Program, an absolute path.
    pub exec: PathBuf,
    /// Its arguments, without the program's own name.
    pub args: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Files that it finds open for reading, from [`FILES_AT`] on, though its user may not reach
    /// their folders. One that cannot be opened is left out. At most [`MOST_FILES`].
    pub files: Vec<PathBuf>,
    /// User that it runs as; the manager's own if None. Needs root, unless it is the manager's own.
    pub user: Option<User>,
    /// Cores that it runs on; those of the calling thread if empty.
    pub cores: BTreeSet<usize>,
    pub stdio: Stdio,
    /// The [filter] of system calls that it starts with.
    pub filter: Filter,
    pub limits: ProcessLimits,
    /// Keeper of its process namespace; the manager's own if None. Needs root; not with `apart`.
    pub keeper: Option<Arc<Keeper>>,
    /// Cgroup of version 2 that it is born in; the manager's own if None.
    pub born_in: Option<PathBuf>,
    /// Network namespace that it runs in; the manager's own if None. Needs root.
    pub netns: Option<Arc<Netns>>,
    /// `cgroup.procs` of the cgroup that it and its children start in; the manager's own if None.
    pub cgroup: Option<PathBuf>,
    /// Whether it is the first process of its own process namespace, which ends with it. It then
    /// has its own mounts and finds a `cgroup` of version 2 at `/sys/fs/cgroup` as if it were the
    /// root. Needs root.
    pub apart: bool,
}

/// Descriptor of the first of [`SpawnSpec::files`].
pub const FILES_AT: usize = 100;

/// Most of [`SpawnSpec::files`].
pub const MOST_FILES: usize = 16;

impl SpawnSpec {
    /// A program without arguments or environment, with default settings.
    pub fn new(name: impl Into<String>, exec: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            exec: exec.into(),
            args: Vec::new(),
            env: Vec::new(),
            files: Vec::new(),
            user: None,
            cores: BTreeSet::new(),
            stdio: Stdio::default(),
            filter: Filter::None,
            limits: ProcessLimits::default(),
            keeper: None,
            born_in: None,
            netns: None,
            cgroup: None,
            apart: false,
        }
    }
}

/// Limits of a program, besides those of its filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessLimits {
    /// Drops all capabilities, also for what it executes, and leaves no core file.
    pub unprivileged: bool,
    /// Maximum number of processes and threads of its user.
    pub processes: Option<u64>,
    /// Maximum of locked memory, in bytes.
    pub locked: Option<u64>,
    /// Whether the OOM killer picks it first (`oom_score_adj` 1000), with all that it starts. It
    /// cannot undo this where the manager has CAP_SYS_RESOURCE.
    pub goes_first: bool,
}

/// The first process of the process namespace that NFs run in.
///
/// All processes of the namespace end with it. It ends with the manager, or when this is dropped.
#[derive(Debug)]
pub struct Keeper {
    spawned: Spawned,
    /// The manager's own namespace, to return to.
    own: OwnedFd,
}

impl Keeper {
    /// Starts a keeper: a program that only collects orphans, for ever. Needs root.
    pub fn start(program: &Path, args: &[&str]) -> Result<Self, SpawnError> {
        let mut spec = SpawnSpec::new("keeper", program);
        spec.args = args.iter().map(Into::into).collect();
        (spec.apart, spec.stdio) = (true, Stdio::Null);
        let failed = |error| SpawnError::Clone { name: "keeper".into(), error };
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let own = rustix::fs::open("/proc/self/ns/pid", flags, rustix::fs::Mode::empty()).map_err(failed)?;
        Ok(Self { spawned: spawn(&spec)?, own })
    }

    /// Whether it still runs. One system call.
    pub fn is_alive(&self) -> bool {
        process::wait_readable(self.spawned.pidfd.as_fd(), Some(0)) == Ok(false)
    }

    pub fn pid(&self) -> Pid {
        self.spawned.pid
    }

    /// Kills it and all of its namespace. It is gone when all of them have been collected.
    pub fn kill(&self) {
        let _ = process::send_signal(self.spawned.pidfd.as_fd(), rustix::process::Signal::KILL);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.kill();
        // It ends when all processes in there are collected, including children of this process.
        let _ = process::wait_readable(self.spawned.pidfd.as_fd(), Some(1_000));
        let _ = process::reap(self.spawned.pidfd.as_fd());
    }
}

/// A process that was started; a child, to be collected with [`reap`]. Not killed on drop.
#[derive(Debug)]
pub struct Spawned {
    /// Its pid, for messages and `/proc`; also the id of its process group.
    pub pid: Pid,
    /// Names it for ever; readable once it has ended.
    pub pidfd: OwnedFd,
}

/// Collects a process that has ended, and returns how it ended. None while it runs. Never blocks.
///
/// # Errors
/// [`Errno::CHILD`] if it was collected before.
pub fn reap(spawned: &Spawned) -> Result<Option<Exit>, Errno> {
    process::reap(spawned.pidfd.as_fd())
}

/// The step at which the child failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum ChildStep {
    Namespace = 14,
    Cgroup = 15,
    /// Making its own mounts.
    Mounts = 16,
    /// Closing the manager's descriptors.
    Descriptors = 1,
    /// Making its process group.
    Group,
    /// Opening `/dev/null`.
    Null,
    Log,
    /// Placing the standard streams.
    Streams,
    Core,
    /// Setting its limits.
    Limit,
    /// Setting supplementary groups, group and user.
    User,
    NoNewPrivileges,
    /// Asking for a signal when the manager dies.
    DeathSignal,
    Signals,
    Filter,
    Exec,
    Capabilities = 17,
    /// Entering the process namespace of NFs.
    Kept = 18,
}

impl ChildStep {
    const ALL: [Self; 18] = [
        Self::Namespace,
        Self::Cgroup,
        Self::Mounts,
        Self::Descriptors,
        Self::Group,
        Self::Null,
        Self::Log,
        Self::Streams,
        Self::Core,
        Self::Limit,
        Self::User,
        Self::NoNewPrivileges,
        Self::DeathSignal,
        Self::Signals,
        Self::Filter,
        Self::Exec,
        Self::Capabilities,
        Self::Kept,
    ];
}

/// Why a process could not be started. No process is left.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("NF {name}: the program {exec} is not an absolute path; give the whole path")]
    NotAbsolute { name: String, exec: PathBuf },
    /// A string cannot be passed to a program.
    #[error("NF {name}: {what} contains a zero byte (or, in a variable's name, an equals sign); take it out")]
    Text {
        name: String,
        /// The program, an argument or a variable.
        what: String,
    },
    #[error("NF {name}: cannot make a process: {error}; look at the limits of processes and memory (ulimit -u, pids.max)")]
    Clone { name: String, error: Errno },
    /// A step between the new process and its program failed.
    #[error("NF {name}: cannot {what}: {error}{advice}")]
    Step {
        name: String,
        step: ChildStep,
        what: String,
        error: Errno,
        /// What to do, if more is known than the error says.
        advice: &'static str,
    },
}

impl SpawnError {
    fn step(spec: &SpawnSpec, step: ChildStep, error: Errno) -> Self {
        let uid = spec.user.as_ref().map_or(0, |u| u.uid);
        let what = match step {
            ChildStep::Namespace => "enter its network namespace".into(),
            ChildStep::Cgroup => "join its cgroup".into(),
            ChildStep::Mounts => "make mounts of its own".into(),
            ChildStep::Descriptors => "close the manager's descriptors".into(),
            ChildStep::Group => "make a process group".into(),
            ChildStep::Null => "open /dev/null".into(),
            ChildStep::Log => match &spec.stdio {
                Stdio::Log(path) => format!("open its log {}", path.display()),
                Stdio::Inherit | Stdio::Null | Stdio::Pipe(_) => "open its log".into(),
            },
            ChildStep::Streams => "place its standard streams".into(),
            ChildStep::Core => {
                let cores: Vec<String> = spec.cores.iter().map(ToString::to_string).collect();
                format!("pin it to core {}", cores.join(", "))
            }
            ChildStep::Limit => "set its limits".into(),
            ChildStep::User => format!("become user {uid}"),
            ChildStep::NoNewPrivileges => "give up gaining privileges".into(),
            ChildStep::DeathSignal => "tie it to the manager's life".into(),
            ChildStep::Signals => "reset its signals".into(),
            ChildStep::Filter => "install its filter of system calls".into(),
            ChildStep::Exec => format!("execute {}", spec.exec.display()),
            ChildStep::Capabilities => "give up its capabilities".into(),
            ChildStep::Kept => "enter the process namespace of NFs".into(),
        };
        let advice = match (step, error) {
            (ChildStep::Descriptors, Errno::NOSYS | Errno::INVAL) => "; Linux 5.11 or later is needed",
            (ChildStep::Core, Errno::INVAL) => "; choose a core that this host has and that the manager may use",
            (ChildStep::Mounts, Errno::PERM) => "; run sluiced as root, in a container or unit that may mount",
            (ChildStep::User, Errno::PERM) => "; run sluiced as root, or leave `user` out",
            (ChildStep::User, Errno::INVAL) => {
                "; this user namespace does not have that user: set [manager] uids to a range that it has"
            }
            (ChildStep::Exec, Errno::AGAIN) => "; its user has as many processes as it may: raise `pids` of its service",
            (ChildStep::Exec, Errno::NOENT) => "; there is no such program, or not the interpreter that its first line names",
            (ChildStep::Exec, Errno::ACCESS) => {
                "; it is not executable, or closed to the NF's user: put it in a folder that is open to others, such as /usr/local/bin, \
                 and `chmod o+rx` it"
            }
            (ChildStep::Exec, Errno::NOEXEC) => "; it is not a program for this machine",
            _ => "",
        };
        Self::Step { name: spec.name.clone(), step, what, error, advice }
    }
}

/// Starts a process and returns when it executes its program.
///
/// Takes less than 0.1 ms, independent of the manager's memory and descriptors. The filter costs
/// about as much again, because the kernel precomputes its answer for each system call.
///
/// # Errors
/// [`SpawnError`]; then nothing is left, except perhaps a new, empty log.
pub fn spawn(spec: &SpawnSpec) -> Result<Spawned, SpawnError> {
    if !spec.exec.is_absolute() {
        return Err(SpawnError::NotAbsolute { name: spec.name.clone(), exec: spec.exec.clone() });
    }
    let texts = Texts::of(spec)?;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
    let pointers = |texts: &[CString]| -> Vec<*const c_char> { texts.iter().map(|text| text.as_ptr()).chain([null()]).collect() };
    let (argv, envp, files) = (pointers(&texts.argv), pointers(&texts.envp), pointers(&texts.files));
    let pipe = match &spec.stdio {
        Stdio::Pipe(pipe) => Some(pipe.as_fd()),
        _ => None,
    };
    let mask = core_mask(&spec.cores);
    let filter = filter::program_of(spec.filter).map(|program| libc::sock_fprog {
        // A program has at most 4,096 instructions, or the kernel refuses it.
        len: program.len() as u16,
        // The kernel only reads through this pointer.
        filter: program.as_ptr().cast_mut(),
    });
    let user = spec.user.as_ref().filter(|user| !is_already(user));
    let born_in = spec.born_in.as_ref().map(|folder| open_folder(folder)).transpose();
    let born_in = born_in.map_err(|error| SpawnError::step(spec, ChildStep::Cgroup, error))?;

    // A child that is apart sees the manager's end by this: the manager's pid means nothing there.
    let manager = if spec.apart { process::pidfd_open(rustix::process::getpid()) } else { Err(Errno::SRCH) };

    let plan = Needs {
        exec: argv[0],
        files: (files.as_ptr(), texts.files.len()),
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        inherit: matches!(spec.stdio, Stdio::Inherit),
        pipe: -1,
        log: pointer(&texts.log),
        mask: mask.as_ptr(),
        mask_bytes: size_of_val(mask.as_slice()),
        limit: process::nofile_before().map(|limit| libc::rlimit {
            rlim_cur: limit.current.unwrap_or(libc::RLIM_INFINITY),
            rlim_max: limit.maximum.unwrap_or(libc::RLIM_INFINITY),
        }),
        user: user.map(|u| (u.uid, u.gid, u.groups.as_ptr(), u.groups.len())),
        filter: filter.as_ref().map_or(null(), |f| &raw const *f),
        netns: spec.netns.as_ref().map_or(-1, |ns| ns.fd().as_raw_fd()),
        cgroup: pointer(&texts.cgroup),
        members: pointer(&texts.members),
        // A parent outside of the namespace appears as 0.
        parent: if spec.apart || spec.keeper.is_some() { 0 } else { std::process::id() as libc::pid_t },
        unprivileged: spec.limits.unprivileged,
        processes: spec.limits.processes.map(|most| at_most(Resource::Nproc, most)),
        locked: spec.limits.locked.map(|most| at_most(Resource::Memlock, most)),
        goes_first: spec.limits.goes_first,
        apart: spec.apart,
        manager: manager.as_ref().map_or(-1, |pidfd| pidfd.as_raw_fd()),
        step: 0,
        errno: 0,
    };
    match clone_and_exec(plan, spec.keeper.as_deref(), born_in.as_ref().map(AsFd::as_fd), pipe) {
        Err(error) => Err(SpawnError::Clone { name: spec.name.clone(), error }),
        Ok((spawned, 0, _)) => Ok(spawned),
        Ok((failed, step, errno)) => {
            // The child has ended, or is about to: collect it here, since no other code knows it.
            let _ = process::wait(failed.pidfd.as_fd());
            let step = ChildStep::ALL.into_iter().find(|s| *s as i32 == step).unwrap_or(ChildStep::Exec);
            Err(SpawnError::step(spec, step, Errno::from_raw_os_error(errno)))
        }
    }
}

/// All texts that a child needs.
struct Texts {
    argv: Vec<CString>,
    envp: Vec<CString>,
    files: Vec<CString>,
    log: Option<CString>,
    cgroup: Option<CString>,
    members: Option<CString>,
}

impl Texts {
    fn of(spec: &SpawnSpec) -> Result<Self, SpawnError> {
        let text = |bytes: &OsStr, what: &str| {
            CString::new(bytes.as_bytes()).map_err(|_| SpawnError::Text { name: spec.name.clone(), what: what.into() })
        };
        let path = |path: &Path, what: &str| text(path.as_os_str(), what);
        let exec = path(&spec.exec, "the program's path");
        let log = if let Stdio::Log(log) = &spec.stdio { Some(path(log, "the log's path")?) } else { None };
        Ok(Self {
            argv: std::iter::once(exec).chain(spec.args.iter().map(|arg| text(arg, "an argument"))).collect::<Result<_, _>>()?,
            envp: spec.env.iter().map(|(key, value)| text(&variable(spec, key, value)?, "a variable")).collect::<Result<_, _>>()?,
            files: spec.files.iter().take(MOST_FILES).map(|file| path(file, "a file's path")).collect::<Result<_, _>>()?,
            log,
            cgroup: spec.cgroup.as_ref().map(|file| path(file, "the cgroup's path")).transpose()?,
            members: spec.born_in.as_ref().map(|folder| path(&folder.join("cgroup.procs"), "the cgroup's path")).transpose()?,
        })
    }
}

fn open_folder(folder: &Path) -> Result<OwnedFd, Errno> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(folder, flags, rustix::fs::Mode::empty())
}

/// A variable as `KEY=VALUE`.
fn variable(spec: &SpawnSpec, key: &OsStr, value: &OsStr) -> Result<OsString, SpawnError> {
    if key.is_empty() || key.as_bytes().contains(&b'=') {
        return Err(SpawnError::Text { name: spec.name.clone(), what: format!("the variable {}", key.display()) });
    }
    Ok([key, OsStr::new("="), value].into_iter().collect())
}

/// Whether the manager already is this user and, not being root, need and may not change.
fn is_already(user: &User) -> bool {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    !uid.is_root() && uid.as_raw() == user.uid && gid.as_raw() == user.gid
}

/// A limit of the child, at most the manager's: root may lack CAP_SYS_RESOURCE to raise it.
fn at_most(resource: Resource, most: u64) -> libc::rlimit {
    let most = rustix::process::getrlimit(resource).maximum.map_or(most, |own| own.min(most));
    libc::rlimit { rlim_cur: most, rlim_max: most }
}

/// Core mask in the kernel's form, as long as necessary; empty without cores.
fn core_mask(cores: &BTreeSet<usize>) -> Vec<c_long> {
    let bits = c_long::BITS as usize;
    let mut mask = Vec::new();
    // The kernel ignores cores that it does not support; a longer mask only costs time.
    for core in cores.iter().map(|core| (*core).min(1 << 16)) {
        mask.resize(mask.len().max(core / bits + 1), 0);
        mask[core / bits] |= 1 << (core % bits);
    }
    mask
}

/// All that the child needs, and its report.
///
/// The pointers are into values that [`spawn`] keeps until the child has left its memory.
struct Needs {
    exec: *const c_char,
    files: (*const *const c_char, usize),
    argv: *const *const c_char,
    envp: *const *const c_char,
    inherit: bool,
    /// Descriptor of the pipe that it writes to, above 2, or -1.
    pipe: c_int,
    log: *const c_char,
    mask: *const c_long,
    mask_bytes: usize,
    limit: Option<libc::rlimit>,
    user: Option<(u32, u32, *const u32, usize)>,
    filter: *const libc::sock_fprog,
    unprivileged: bool,
    processes: Option<libc::rlimit>,
    locked: Option<libc::rlimit>,
    goes_first: bool,
    /// Descriptor of its network namespace, or -1.
    netns: c_int,
    /// `cgroup.procs` of the cgroup that it joins, or null.
    cgroup: *const c_char,
    /// `cgroup.procs` of the cgroup that it is born in, or null.
    members: *const c_char,
    parent: libc::pid_t,
    apart: bool,
    /// Descriptor of the manager's process, or -1.
    manager: c_int,
    /// The [`ChildStep`] that failed, or 0.
    step: i32,
    errno: i32,
}

/// The child's stack, made once and kept.
///
/// Unmapping it after each spawn would interrupt every core that runs a packet thread.
struct Stack {
    base: *mut c_void,
    /// A low-numbered descriptor where the child finds its pipe: it copies the manager's table only
    /// up to there. `/dev/null` between spawns.
    slot: OwnedFd,
    null: OwnedFd,
}

// SAFETY: the address of a mapping that belongs to no thread; the mutex around it lets one thread
// at a time use it.
unsafe impl Send for Stack {}

static STACK: Mutex<Option<Stack>> = Mutex::new(None);

/// Bytes of the child's stack. It needs about one KiB.
const STACK_BYTES: usize = 64 * 1024;

/// Bytes of the guard area below the stack: the largest page size of the supported machines.
const GUARD_BYTES: usize = 64 * 1024;

impl Stack {
    fn new() -> Result<Self, Errno> {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        // SAFETY: a fresh mapping at a place that the kernel chooses; it aliases nothing.
        let base = unsafe {
            mmap_anonymous(null_mut(), STACK_BYTES + GUARD_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        // SAFETY: within the mapping just made, which no other code knows.
        unsafe { mprotect(base, GUARD_BYTES, MprotectFlags::empty()) }?;
        let null =
            rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
        // Above 2 even if the manager has closed one of its own streams.
        let slot = rustix::io::fcntl_dupfd_cloexec(&null, 3)?;
        Ok(Self { base, slot, null })
    }

    /// Its upper end, aligned to 16 bytes as the ABIs require.
    fn top(&self) -> *mut c_void {
        self.base.wrapping_byte_add(STACK_BYTES + GUARD_BYTES)
    }

    /// Puts a descriptor into the slot, or clears it, and returns the slot's number.
    fn place(&mut self, pipe: Option<BorrowedFd<'_>>) -> Result<c_int, Errno> {
        let what = pipe.unwrap_or(self.null.as_fd());
        rustix::io::dup3(what, &mut self.slot, rustix::io::DupFlags::CLOEXEC)?;
        Ok(self.slot.as_raw_fd())
    }
}

/// The kernel's signal set of 64 bits; libc's refuses to name the signals that libc itself uses.
type SignalSet = u64;

/// Clones and runs the child through the plan; returns it with the failed step (or 0) and errno.
fn clone_and_exec(
    mut plan: Needs,
    keeper: Option<&Keeper>,
    born_in: Option<BorrowedFd<'_>>,
    pipe: Option<BorrowedFd<'_>>,
) -> Result<(Spawned, i32, i32), Errno> {
    // A poisoned lock is harmless: the stack has no state.
    let mut stack = STACK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let stack = match &mut *stack {
        Some(stack) => stack,
        none => none.insert(Stack::new()?),
    };
    let top = stack.top();
    if pipe.is_some() {
        plan.pipe = stack.place(pipe)?;
    }
    let apart = if plan.apart { libc::CLONE_NEWPID | libc::CLONE_NEWNS } else { 0 };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_PIDFD | apart;
    let mut pidfd: c_int = -1;
    let plan: *mut Needs = &raw mut plan;

    let all: SignalSet = !0;
    let mut before: SignalSet = 0;
    // SAFETY: both sets are live and of the size that is passed. Blocks all signals of this thread,
    // so that no handler of the manager runs in the child, on the manager's memory.
    let blocked = unsafe { set_signal_mask(&all, &raw mut before) };
    if blocked < 0 {
        return Err(last_errno());
    }
    let entered = keeper.map_or(Ok(()), |keeper| children_go_to(keeper.spawned.pidfd.as_fd()));
    let made = entered.and_then(|()| {
        // `child` follows the rules of a child in borrowed memory (see there). No other thread uses
        // its stack, because the lock is held and CLONE_VFORK keeps this thread here until the
        // child has left this memory. For the same reason `plan` and all that it points to outlive
        // the child's use. The kernel writes the descriptor's number to `pidfd`.
        let mut pid = match born_in {
            // SAFETY: see above.
            None => unsafe { libc::clone(child, top, flags | libc::SIGCHLD, plan.cast(), &raw mut pidfd) },
            // SAFETY: see above.
            Some(folder) => unsafe { clone_into(folder, top, flags, plan, &raw mut pidfd) },
        };
        if pid < 0 && born_in.is_some() && last_errno() == Errno::NOSYS {
            // A seccomp filter of a unit or container cannot inspect `clone3` and answers ENOSYS.
            // SAFETY: as above; no child was made, so the plan is this function's alone.
            pid = unsafe {
                (*plan).cgroup = (*plan).members;
                libc::clone(child, top, flags | libc::SIGCHLD, plan.cast(), &raw mut pidfd)
            };
        }
        (pid > 0).then(|| Pid::from_raw(pid)).flatten().ok_or_else(last_errno)
    });
    if let Some(keeper) = keeper {
        // Threads that this one makes must be in its own namespace; it may always return there.
        let _ = children_go_to(keeper.own.as_fd());
    }
    // SAFETY: as above; `before` is what this thread had.
    let restored = unsafe { set_signal_mask(&before, null_mut()) };
    debug_assert_eq!(restored, 0);
    if pipe.is_some() {
        // Otherwise the pipe's reader would wait for this process too.
        let _ = stack.place(None);
    }
    let pid = made?;
    // SAFETY: the kernel made this descriptor for us in this clone, and no other code knows it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: the child is past its last use of the plan, which lives in this function. Read
    // through the pointer that the child had.
    let (step, errno) = unsafe { ((*plan).step, (*plan).errno) };
    Ok((Spawned { pid, pidfd }, step, errno))
}

/// Sets the process namespace of the calling thread's future children, by pidfd or file.
fn children_go_to(namespace: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the call takes no memory.
    if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWPID) } != 0 {
        return Err(last_errno());
    }
    Ok(())
}

/// As `libc::clone` of [`child`], into a cgroup of version 2. Returns the pid, or -1 with `errno`.
///
/// # Safety
/// As for `libc::clone`: `top` is the upper end of a stack of [`STACK_BYTES`], unused by others
/// until the child has executed or ended; `plan` and `pidfd` live as long.
unsafe fn clone_into(folder: BorrowedFd<'_>, top: *mut c_void, flags: c_int, plan: *mut Needs, pidfd: *mut c_int) -> libc::pid_t {
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    // SAFETY: a structure of numbers, where 0 stands for what is not asked for.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags as u32 as u64 | CLONE_INTO_CGROUP;
    args.pidfd = pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.stack = top.wrapping_byte_sub(STACK_BYTES) as u64;
    args.stack_size = STACK_BYTES as u64;
    args.cgroup = folder.as_raw_fd() as u64;
    let result: isize;
    // SAFETY: the parent comes out at `2:` with all registers but the result unchanged. The child
    // has the stack's upper end, aligned as the ABI wants it before a call, and calls `child`,
    // which never returns; it changes nothing of the parent's stack.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r8",
            "call r9",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") &raw const args,
            in("rsi") size_of::<libc::clone_args>(),
            in("r8") plan,
            in("r9") child as extern "C" fn(*mut c_void) -> c_int,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x9",
            "blr x10",
            "brk #1",
            "2:",
            in("x8") libc::SYS_clone3,
            inlateout("x0") &raw const args => result,
            in("x1") size_of::<libc::clone_args>(),
            in("x9") plan,
            in("x10") child as extern "C" fn(*mut c_void) -> c_int,
        );
    }
    if result < 0 {
        // SAFETY: `errno` is this thread's own.
        unsafe { *libc::__errno_location() = -result as c_int };
        return -1;
    }
    result as libc::pid_t
}

/// Sets the signal mask of the calling thread, and stores the old one.
///
/// # Safety
/// `new` is readable, `old` is writable or null.
unsafe fn set_signal_mask(new: *const SignalSet, old: *mut SignalSet) -> c_long {
    // SAFETY: as promised by the caller; the size is that of the sets.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, size_of::<SignalSet>()) }
}

/// Runs in the child.
///
/// It runs in the manager's memory while the manager's other threads run on. So it takes no lock,
/// allocates nothing, cannot panic (no checked arithmetic, no index), makes only system calls, and
/// writes only to its own stack, its report and `errno`, which belongs to the waiting thread.
extern "C" fn child(plan: *mut c_void) -> c_int {
    let plan: *mut Needs = plan.cast();
    // SAFETY: `clone_and_exec` passes a plan that outlives this process's use of its memory, and
    // does not access it until then. Every pointer in it is null or points to what its field says;
    // the system calls below only read from them.
    unsafe {
        let (step, errno) = prepare_and_exec(&*plan);
        (*plan).step = step as i32;
        (*plan).errno = errno;
        libc::syscall(libc::SYS_exit_group, 127);
    }
    127
}

/// Works through the plan. Returns only when a step fails.
///
/// # Safety
/// Only in the child, with a plan whose pointers are valid.
unsafe fn prepare_and_exec(plan: &Needs) -> (ChildStep, i32) {
    /// Makes a system call and evaluates to its result; returns the step and errno if it fails.
    macro_rules! must {
        ($step:expr, $number:ident $(, $argument:expr)*) => {{
            let result = libc::syscall(libc::$number $(, $argument)*);
            if result < 0 {
                return ($step, *libc::__errno_location());
            }
            result
        }};
    }
    const UNUSED: c_long = 0;
    // SAFETY: see `child`. Each call gets the arguments that the kernel's interface asks for:
    // numbers as c_long or c_int, pointers to live values of this stack or of the plan, with their
    // sizes.
    unsafe {
        if plan.apart {
            // Set while the manager's descriptor is open to check that it lives.
            must!(ChildStep::DeathSignal, SYS_prctl, c_long::from(libc::PR_SET_PDEATHSIG), c_long::from(libc::SIGKILL));
            let mut manager = libc::pollfd { fd: plan.manager, events: libc::POLLIN, revents: 0 };
            let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let one = 1 as c_long;
            if must!(ChildStep::DeathSignal, SYS_ppoll, &raw mut manager, one, &raw mut now, null::<c_void>(), UNUSED) != 0 {
                return (ChildStep::DeathSignal, libc::ESRCH);
            }
        }
        if plan.netns >= 0 {
            must!(ChildStep::Namespace, SYS_setns, c_long::from(plan.netns), c_long::from(libc::CLONE_NEWNET));
        }
        let (first, last, unshare) = (3 as c_long, c_long::from(u32::MAX), c_long::from(libc::CLOSE_RANGE_UNSHARE));
        let pipe = c_long::from(plan.pipe);
        if pipe < first {
            must!(ChildStep::Descriptors, SYS_close_range, first, last, unshare);
        } else {
            must!(ChildStep::Descriptors, SYS_close_range, pipe.wrapping_add(1), last, unshare);
            if pipe > first {
                must!(ChildStep::Descriptors, SYS_close_range, first, pipe.wrapping_sub(1), UNUSED);
            }
        }
        must!(ChildStep::Group, SYS_setpgid, UNUSED, UNUSED);
        if !plan.cgroup.is_null() {
            let flags = c_long::from(libc::O_WRONLY | libc::O_CLOEXEC);
            let file = must!(ChildStep::Cgroup, SYS_openat, c_long::from(libc::AT_FDCWD), plan.cgroup, flags, UNUSED);
            // 0 stands for the writing process.
            must!(ChildStep::Cgroup, SYS_write, file, c"0".as_ptr(), 1 as c_long);
            must!(ChildStep::Cgroup, SYS_close, file);
        }
        if plan.apart {
            // Mounts made here are invisible outside; unmounts of the host propagate here.
            let (top, proc, cgroups) = (c"/".as_ptr(), c"/proc".as_ptr(), c"/sys/fs/cgroup".as_ptr());
            let slave = (libc::MS_REC | libc::MS_SLAVE) as c_long;
            must!(ChildStep::Mounts, SYS_mount, c"none".as_ptr(), top, null::<c_char>(), slave, null::<c_void>());
            let plain = (libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC) as c_long;
            must!(ChildStep::Mounts, SYS_mount, c"proc".as_ptr(), proc, c"proc".as_ptr(), plain, null::<c_void>());
            if !plan.cgroup.is_null() {
                must!(ChildStep::Mounts, SYS_unshare, c_long::from(libc::CLONE_NEWCGROUP));
                let kind = c"cgroup2".as_ptr();
                must!(ChildStep::Mounts, SYS_mount, c"cgroup2".as_ptr(), cgroups, kind, plain, null::<c_void>());
            }
        }

        let null_device = c"/dev/null".as_ptr();
        let flags = c_long::from(libc::O_RDWR | libc::O_CLOEXEC);
        let device = must!(ChildStep::Null, SYS_openat, c_long::from(libc::AT_FDCWD), null_device, flags, UNUSED);
        // Above 2 even if the manager has closed one of its own streams.
        let device = must!(ChildStep::Streams, SYS_fcntl, device, c_long::from(libc::F_DUPFD_CLOEXEC), 3 as c_long);
        must!(ChildStep::Streams, SYS_dup3, device, 0 as c_long, UNUSED);
        if !plan.inherit {
            let mut out = device;
            if plan.pipe >= 0 {
                out = pipe;
            } else if !plan.log.is_null() {
                let flags = c_long::from(libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOCTTY);
                out = must!(ChildStep::Log, SYS_openat, c_long::from(libc::AT_FDCWD), plan.log, flags, 0o640 as c_long);
                out = must!(ChildStep::Streams, SYS_fcntl, out, c_long::from(libc::F_DUPFD_CLOEXEC), 3 as c_long);
            }
            must!(ChildStep::Streams, SYS_dup3, out, 1 as c_long, UNUSED);
            must!(ChildStep::Streams, SYS_dup3, out, 2 as c_long, UNUSED);
        }

        if plan.mask_bytes > 0 {
            must!(ChildStep::Core, SYS_sched_setaffinity, UNUSED, plan.mask_bytes, plan.mask);
        }
        if let Some(limit) = &plan.limit {
            // Lowers the soft limit; the hard one stays.
            must!(ChildStep::Limit, SYS_prlimit64, UNUSED, c_long::from(libc::RLIMIT_NOFILE), &raw const *limit, null::<c_void>());
        }
        if let Some(limit) = &plan.processes {
            must!(ChildStep::Limit, SYS_prlimit64, UNUSED, c_long::from(libc::RLIMIT_NPROC), &raw const *limit, null::<c_void>());
        }
        if let Some(limit) = &plan.locked {
            must!(ChildStep::Limit, SYS_prlimit64, UNUSED, c_long::from(libc::RLIMIT_MEMLOCK), &raw const *limit, null::<c_void>());
        }
        if plan.goes_first {
            // Before privileges are dropped: without CAP_SYS_RESOURCE a process cannot lower what
            // one with it has raised. For a process that shares memory by vfork the kernel changes
            // no other process. If the file is missing, the setting is skipped.
            let (file, flags) = (c"/proc/self/oom_score_adj".as_ptr(), c_long::from(libc::O_WRONLY | libc::O_CLOEXEC));
            let file = libc::syscall(libc::SYS_openat, c_long::from(libc::AT_FDCWD), file, flags, UNUSED);
            if file >= 0 {
                libc::syscall(libc::SYS_write, file, c"1000".as_ptr(), 4 as c_long);
                libc::syscall(libc::SYS_close, file);
            }
        }
        let program = open_program_and_files(plan);
        if plan.unprivileged {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            must!(ChildStep::Limit, SYS_prlimit64, UNUSED, c_long::from(libc::RLIMIT_CORE), &raw const none, null::<c_void>());
            // Up to the first that this kernel does not have. A manager without the right to drop
            // is not root and has none to pass on.
            let mut capability: c_long = 0;
            let drop = c_long::from(libc::PR_CAPBSET_DROP);
            while capability < 64 && libc::syscall(libc::SYS_prctl, drop, capability, UNUSED, UNUSED, UNUSED) == 0 {
                capability = capability.wrapping_add(1);
            }
        }
        if let Some((uid, gid, groups, count)) = plan.user {
            let (uid, gid) = (c_long::from(uid), c_long::from(gid));
            must!(ChildStep::User, SYS_setgroups, count, groups);
            must!(ChildStep::User, SYS_setresgid, gid, gid, gid);
            must!(ChildStep::User, SYS_setresuid, uid, uid, uid);
        }
        if plan.unprivileged {
            let (ambient, clear) = (c_long::from(libc::PR_CAP_AMBIENT), c_long::from(libc::PR_CAP_AMBIENT_CLEAR_ALL));
            must!(ChildStep::Capabilities, SYS_prctl, ambient, clear, UNUSED, UNUSED, UNUSED);
            // Version 3: header (version, pid), and twice effective, permitted, inheritable.
            let (header, none) = ([0x2008_0522u32, 0], [0u32; 6]);
            must!(ChildStep::Capabilities, SYS_capset, header.as_ptr(), none.as_ptr());
        }
        must!(ChildStep::NoNewPrivileges, SYS_prctl, c_long::from(libc::PR_SET_NO_NEW_PRIVS), 1 as c_long, UNUSED, UNUSED, UNUSED);
        must!(ChildStep::DeathSignal, SYS_prctl, c_long::from(libc::PR_SET_PDEATHSIG), c_long::from(libc::SIGKILL));
        if libc::syscall(libc::SYS_getppid) != c_long::from(plan.parent) {
            // The manager died before the `prctl` above: no signal will come.
            return (ChildStep::DeathSignal, libc::ESRCH);
        }

        // The kernel's struct sigaction: handler (0 is SIG_DFL), flags, restorer (if any), mask.
        let default_action = [0u64; 4];
        let mut signal: c_long = 1;
        while signal <= 64 {
            // KILL and STOP cannot be changed; trying is an error.
            if signal != c_long::from(libc::SIGKILL) && signal != c_long::from(libc::SIGSTOP) {
                let action = default_action.as_ptr();
                must!(ChildStep::Signals, SYS_rt_sigaction, signal, action, null::<c_void>(), size_of::<SignalSet>());
            }
            signal = signal.wrapping_add(1);
        }
        let none: SignalSet = 0;
        if set_signal_mask(&raw const none, null_mut()) < 0 {
            return (ChildStep::Signals, *libc::__errno_location());
        }
        if !plan.filter.is_null() {
            // SPEC_ALLOW: a filter of a few calls is no reason to slow down speculation.
            let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW as c_long;
            must!(ChildStep::Filter, SYS_seccomp, c_long::from(libc::SECCOMP_SET_MODE_FILTER), flags, plan.filter);
        }
        libc::syscall(libc::SYS_execve, plan.exec, plan.argv, plan.envp);
        let errno = *libc::__errno_location();
        if errno == libc::EACCES && program >= 0 {
            let itself = c_long::from(libc::AT_EMPTY_PATH);
            libc::syscall(libc::SYS_execveat, program, c"".as_ptr(), plan.argv, plan.envp, itself);
        }
        (ChildStep::Exec, errno)
    }
}

/// Opens the program by its path, and its files for reading, while every folder on the way is
/// accessible. Returns the program's descriptor, if it is one; `execve` reports an error.
///
/// # Safety
/// As [`prepare_and_exec`].
unsafe fn open_program_and_files(plan: &Needs) -> c_long {
    let (here, unused) = (c_long::from(libc::AT_FDCWD), 0 as c_long);
    let (files, count) = plan.files;
    // SAFETY: see `child`; `files` has `count` strings that end with a zero.
    unsafe {
        let mut at = 0;
        while at < count {
            let flags = c_long::from(libc::O_RDONLY | libc::O_CLOEXEC);
            let file = libc::syscall(libc::SYS_openat, here, *files.wrapping_add(at), flags, unused);
            if file >= 0 {
                libc::syscall(libc::SYS_dup3, file, FILES_AT.wrapping_add(at), unused);
                libc::syscall(libc::SYS_close, file);
            }
            at = at.wrapping_add(1);
        }
        let path_only = c_long::from(libc::O_PATH | libc::O_CLOEXEC);
        libc::syscall(libc::SYS_openat, here, plan.exec, path_only, unused)
    }
}

#[cfg(test)]
#[path = "spawn_tests.rs"]
mod tests;
