//! Mechanisms, and their errors.

use std::fmt;
use std::str::FromStr;

use rustix::io::Errno;

use crate::affinity;

/// A way to stop and run processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// A word that the process reads between two bursts.
    Doorbell,
    /// A pair of real-time priorities.
    Realtime,
    /// The freezer of cgroups of version 2.
    Freeze,
    Signal,
    /// The freezer of cgroups of version 1.
    Freezer,
    /// A signal handler that waits.
    Gate,
}

impl Mechanism {
    pub const ALL: [Self; 6] = [Self::Doorbell, Self::Realtime, Self::Freeze, Self::Signal, Self::Freezer, Self::Gate];

    /// Its name in configuration, metrics and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Doorbell => "doorbell",
            Self::Realtime => "realtime",
            Self::Freeze => "freeze",
            Self::Signal => "signal",
            Self::Freezer => "freezer",
            Self::Gate => "gate",
        }
    }

    /// Why a process parked by it does not end by SIGKILL before it runs; None if it does.
    pub const fn outlives_a_kill(self) -> Option<&'static str> {
        match self {
            Self::Realtime => Some(
                "a process that waits for its turn by a low real-time priority gets no CPU time, not even to end: `kill -9` takes effect in \
                 its next turn; `sluice nf remove` or a stop of the daemon gives it one",
            ),
            Self::Freezer => Some(
                "a process that is frozen by version 1 of control groups cannot be killed: `kill -9` takes effect in its next turn; \
                 `sluice nf remove` or a stop of the daemon gives it one",
            ),
            Self::Doorbell | Self::Freeze | Self::Signal | Self::Gate => None,
        }
    }

    /// Whether it stops a process that does not cooperate.
    pub const fn works_uncooperatively(self) -> bool {
        !matches!(self, Self::Doorbell | Self::Gate)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No mechanism has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no way to stop processes is named \"{0}\"; there are: doorbell, realtime, freeze, signal, freezer, gate")]
pub struct UnknownMechanism(pub String);

impl FromStr for Mechanism {
    type Err = UnknownMechanism;
    fn from_str(text: &str) -> Result<Self, UnknownMechanism> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == text).ok_or_else(|| UnknownMechanism(text.into()))
    }
}

/// A target's number with its controller; reused after
/// [`Controller::remove`](super::Controller::remove).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

impl Slot {
    /// The number: small, counted from 0.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why a target cannot be controlled, or a mechanism not used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{name} has no process that runs, so there is nothing to control; start it first")]
    NoProcess { name: String },
    /// The first process of the host or container.
    #[error("process 1 is not to be scheduled: the whole host or container depends on it; name another process")]
    Init,
    #[error("process {pid} ({comm}) is a thread of the kernel, which user space cannot schedule; name another process")]
    KernelThread { pid: i32, comm: String },
    /// This process, its guard, or an ancestor.
    #[error("process {pid} is this scheduler or one that it depends on, and cannot be stopped by it; name another process")]
    Ourselves { pid: i32 },
    #[error(
        "process {pid} belongs to user {owner}, and sluiced runs as user {own}, which may not control it; run it as root, with the \
         capability {capability}, or as that user"
    )]
    OtherUser {
        pid: i32,
        owner: u32,
        /// This process's user.
        own: u32,
        /// The missing capability.
        capability: &'static str,
    },
    #[error("{pid} is a thread of process {process}, not a process; name process {process}")]
    Thread {
        pid: i32,
        /// The process of the thread.
        process: i32,
    },
    /// Another controller has it.
    #[error("process {pid} is under control already; remove it there first")]
    Taken { pid: i32 },
    /// It may run beside those that it should exclude, or that it should leave alone.
    #[error(
        "process {pid} may run on cores {}, and with a real-time priority it would keep all else off any of them; pin it to core \
         {core} (`taskset`) before it becomes the NF {name}, or choose another mechanism",
        affinity::list(.cores)
    )]
    Elsewhere {
        name: String,
        pid: i32,
        /// Its cores, ascending.
        cores: Vec<usize>,
        /// The core of its slices.
        core: usize,
    },
    /// The process lacks a part of our library that this mechanism needs.
    #[error("{name} cannot be controlled by {mechanism}: {why}; choose another mechanism for it")]
    NotOurs {
        name: String,
        mechanism: Mechanism,
        /// What is missing.
        why: &'static str,
    },
    /// The kernel does not permit it to this user.
    #[error("{mechanism} is not permitted: {what}")]
    NotPermitted {
        mechanism: Mechanism,
        /// What was tried, the error, and what is missing.
        what: String,
    },
    #[error("{mechanism} is not possible on this host: {what}")]
    NotHere {
        mechanism: Mechanism,
        /// What is missing, and what to do.
        what: String,
    },
    /// The guard is gone, so no change may be made that it would have to undo.
    #[error("the guard process, which would undo it if sluiced died, does not answer ({0}); restart sluiced")]
    NoGuard(Errno),
    #[error("cannot {doing} {what}: {source}")]
    System { doing: &'static str, what: String, source: std::io::Error },
}

/// Why a target could not be parked, run or released.
///
/// Small and without allocation, because these errors occur between two slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// All its processes have ended: remove it.
    #[error("it has ended")]
    Ended,
    #[error("no target has slot {}", .0.index())]
    NoSuchSlot(Slot),
    #[error("cannot {doing} process {pid}: {source}")]
    System {
        doing: &'static str,
        /// The process; 0 for all.
        pid: i32,
        source: Errno,
    },
}

impl Failed {
    /// The error of a target that could not be added.
    pub(super) fn into_refused(self, mechanism: Mechanism, name: &str) -> Refused {
        match self {
            Self::Ended | Self::NoSuchSlot(_) => Refused::NoProcess { name: name.into() },
            Self::System { source: Errno::PERM | Errno::ACCESS, .. } => Refused::NotPermitted { mechanism, what: self.to_string() },
            Self::System { doing, pid, source } => {
                Refused::System { doing, what: format!("process {pid} ({name})"), source: source.into() }
            }
        }
    }
}
