//! Process controllers: making one process stop and another run, from outside.
//!
//! # Problem
//! A process that polls never gives its core away. Whoever wants such processes to take turns must stop the one and start the
//! other, within microseconds, whatever they do, and must leave them all running when it ends, however it ends.
//!
//! # Terms
//! A process that a controller has is *parked* (does not run, though it may want to) or *running* (runs as the kernel and its own
//! will have it). A *target* is what is controlled as one: the processes of one NF. Its *slot* is its number with one controller.
//! A *mechanism* is a way to do it; each has a file here.
//!
//! # Approach
//! | mechanism | parked by | needs |
//! |---|---|---|
//! | [`doorbell`] | a word in shared memory that the process looks at between bursts | our library; the process is trusted |
//! | [`realtime`] | a low real-time priority under a runner of a high one, on one core | CAP_SYS_NICE, or a limit (`ulimit -r`) |
//! | [`freeze`] | `cgroup.freeze` of a cgroup of version 2 | a folder where cgroups may be made |
//! | [`signal`] | SIGSTOP through a pidfd | the right to signal it |
//! | [`freezer`] | `freezer.state` of a cgroup of version 1 | a folder where cgroups may be made |
//! | [`gate`] | a signal whose handler, our library's, waits on a word in shared memory | our library, the right to signal it |
//!
//! - [`auto`] tries what this host allows, measures it, and chooses.
//! - Everything that park, run and switch need is opened when a target is added: they open, allocate and format nothing.
//! - What is to be undone is told to the [`guard`], a process of its own, before it is done. It undoes it when this process dies.
//! - What cannot be controlled is refused by [`Target`] and [`Controller::add`] before anything is changed: [`Refused`].
//!
//! # Limits
//! With priorities a parked process runs when nobody above it wants the core, and on other cores that it may use: pin it. STOP and
//! CONT are seen by the parent of a process. Children that a controlled process makes later are stopped by the two cgroup
//! mechanisms alone; with priorities they are of the default class and get what the others leave. Threads that it makes later are
//! passed over until [`Controller::look_again`]; a [`ThreadWatch`] tells when that is due.

// The calls for classes and for signals to threads have no safe wrapper in rustix.
#![allow(unsafe_code)]

mod attr;
pub mod auto;
pub mod doorbell;
pub mod freeze;
pub mod freezer;
pub mod gate;
pub mod guard;
pub mod helper;
pub mod measure;
pub mod realtime;
pub mod signal;
mod slots;
pub mod spinner;
mod target;
mod tree;
mod undo;

#[cfg(test)]
mod tests;

pub use target::{Gates, Member, Target, ThreadWatch, processes_below};

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use rustix::io::Errno;

use guard::Guard;
use undo::Host;

/// A way to stop and run processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// A word that the process looks at between two bursts.
    Doorbell,
    /// A pair of real-time priorities.
    Realtime,
    /// The freezer of cgroups of version 2.
    Freeze,
    /// SIGSTOP and SIGCONT.
    Signal,
    /// The freezer of cgroups of version 1.
    Freezer,
    /// A signal handler that waits.
    Gate,
}

impl Mechanism {
    /// All of them.
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

    /// Why a process that it has parked does not end by SIGKILL until it runs again, in words; None if it does at once.
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

    /// Whether it stops a process that knows nothing of it.
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

/// A target's number with its controller. After [`Controller::remove`] another target may get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

impl Slot {
    /// The number: small, counted from 0.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why a target cannot be controlled, or a mechanism not be used. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is no process to control.
    #[error("{name} has no process that runs, so there is nothing to control; start it first")]
    NoProcess {
        /// The target.
        name: String,
    },
    /// The first process of the host or container.
    #[error("process 1 is not to be scheduled: the whole host or container depends on it; name another process")]
    Init,
    /// A thread of the kernel.
    #[error("process {pid} ({comm}) is a thread of the kernel, which user space cannot schedule; name another process")]
    KernelThread {
        /// The pid.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// This process, its guard, or one that it descends from.
    #[error("process {pid} is this scheduler or one that it depends on, and cannot be stopped by it; name another process")]
    Ourselves {
        /// The pid.
        pid: i32,
    },
    /// Another user's process.
    #[error(
        "process {pid} belongs to user {owner} and this is user {own}, who may not control it; run sluiced as root, with the \
         capability {capability}, or as that user"
    )]
    OtherUser {
        /// The pid.
        pid: i32,
        /// Its user.
        owner: u32,
        /// Our user.
        own: u32,
        /// What is lacking.
        capability: &'static str,
    },
    /// The pid is that of a thread.
    #[error("{pid} is a thread of process {process}, not a process; name process {process}")]
    Thread {
        /// What was given.
        pid: i32,
        /// Whose thread it is.
        process: i32,
    },
    /// Another controller has it.
    #[error("process {pid} is under control already; remove it there first")]
    Taken {
        /// The pid.
        pid: i32,
    },
    /// The process has no part of our library that this mechanism needs.
    #[error("{name} cannot be controlled by {mechanism}: {why}; choose another mechanism for it")]
    NotOurs {
        /// The target.
        name: String,
        /// The mechanism.
        mechanism: Mechanism,
        /// What is lacking.
        why: &'static str,
    },
    /// The kernel does not allow it to this user.
    #[error("{mechanism} is not permitted: {what}")]
    NotPermitted {
        /// The mechanism.
        mechanism: Mechanism,
        /// What was tried, the answer, and what is lacking.
        what: String,
    },
    /// The host has no such thing.
    #[error("{mechanism} is not possible on this host: {what}")]
    NotHere {
        /// The mechanism.
        mechanism: Mechanism,
        /// What there is not, and what to do.
        what: String,
    },
    /// The guard is gone, so nothing may be changed that it would have to undo.
    #[error("the guard process, which would undo it if sluiced died, does not answer ({0}); restart sluiced")]
    NoGuard(Errno),
    /// Something else was refused.
    #[error("cannot {doing} {what}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// With what.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Why a target could not be parked, run or let go. Small and without memory of its own, because these happen between two slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// All its processes have ended: remove it.
    #[error("it has ended")]
    Ended,
    /// No target has this slot.
    #[error("no target has slot {}", .0.index())]
    NoSuchSlot(Slot),
    /// The system refused.
    #[error("cannot {doing} process {pid}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// With which process; 0 if with all.
        pid: i32,
        /// The answer.
        source: Errno,
    },
}

impl Failed {
    /// Of a target that could not be added.
    fn into_refused(self, mechanism: Mechanism, target: &Target) -> Refused {
        match self {
            Self::Ended | Self::NoSuchSlot(_) => Refused::NoProcess { name: target.name().into() },
            Self::System { source: Errno::PERM | Errno::ACCESS, .. } => Refused::NotPermitted { mechanism, what: self.to_string() },
            Self::System { doing, pid, source } => {
                Refused::System { doing, what: format!("process {pid} ({})", target.name()), source: source.into() }
            }
        }
    }
}

/// Stops and runs targets by one mechanism.
///
/// Not for several threads at once: each core's scheduler has its own. Dropping it is [`teardown`](Controller::teardown).
pub trait Controller: Send {
    /// What it does it by.
    fn mechanism(&self) -> Mechanism;

    /// Takes a target under control: it is parked from now on.
    ///
    /// # Errors
    /// [`Refused`]; then the target is as before.
    fn add(&mut self, target: &Target) -> Result<Slot, Refused>;

    /// Stops a target. It is no error if it is parked already.
    ///
    /// # Errors
    /// [`Failed`]; [`Failed::Ended`] if there is nobody left to stop.
    fn park(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Lets a target run. It is no error if it runs already.
    ///
    /// # Errors
    /// As [`park`](Controller::park).
    fn run(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Stops one target and lets another run. Both are tried: if `from` fails, `to` runs all the same. What is told is `to`'s
    /// failure, else `from`'s.
    ///
    /// # Errors
    /// As [`park`](Controller::park); ask [`is_ended`](Controller::is_ended) which of both it was.
    fn switch(&mut self, from: Slot, to: Slot) -> Result<(), Failed> {
        let parked = self.park(from);
        self.run(to).and(parked)
    }

    /// Gives a target a share of the core, 0 to 1, for as long as it is running and others are, and says whether this mechanism has
    /// such weights at all.
    ///
    /// # Errors
    /// As [`park`](Controller::park).
    fn set_weight(&mut self, slot: Slot, share: f64) -> Result<bool, Failed> {
        let _ = (slot, share);
        Ok(false)
    }

    /// Looks for threads that the targets have made since, which [`park`](Controller::park) and [`run`](Controller::run) pass over
    /// until then. It reads folders, so it is not for the time between two slices.
    ///
    /// # Errors
    /// What could not be done about one of them; all others were looked for.
    fn look_again(&mut self) -> Result<(), Failed> {
        Ok(())
    }

    /// Makes sure that a target that is parked can be killed: SIGKILL does nothing to one that is frozen by version 1, and little
    /// to one that waits for a core under a real-time spinner. It may run a little by that.
    ///
    /// # Errors
    /// As [`park`](Controller::park).
    fn before_kill(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Whether all processes of a target have ended (or there is no such target).
    fn is_ended(&self, slot: Slot) -> bool;

    /// Lets a target go: it runs, with the class and in the cgroup that it had before. The slot is free in any case.
    ///
    /// # Errors
    /// What could not be given back. That it has ended is no error here.
    fn remove(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Lets all targets go, and removes what was made for them. Tells what could not be given back.
    fn teardown(&mut self) -> Vec<Failed>;
}

/// What controllers are made with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Root of the file system: below it are `proc` and what is mounted. Tests inject another.
    pub root: PathBuf,
    /// Name of the folder that is made for cgroups, one for each controller: must be the only one of its name.
    pub folder: String,
    /// Folder of version 2 below which that one is made. None: the one that this process is in, and no other if that refuses.
    pub freeze_parent: Option<PathBuf>,
    /// The same in the freezer hierarchy of version 1.
    pub freezer_parent: Option<PathBuf>,
    /// Real-time priority of parked processes.
    pub low: u8,
    /// Real-time priority of running processes; the controller itself has the next one, see [`raise_self`](realtime::raise_self).
    pub high: u8,
    /// Folders that do as cgroups do.
    #[cfg(test)]
    pub(crate) fake: Option<Host>,
}

impl Settings {
    /// The ones that most hosts need. `folder` must be the only one of its name on the host, such as `sluice-PID-core1`.
    pub fn new(folder: &str) -> Self {
        Self {
            root: "/".into(),
            folder: folder.into(),
            freeze_parent: None,
            freezer_parent: None,
            low: 10,
            high: 20,
            #[cfg(test)]
            fake: None,
        }
    }

    fn host(&self) -> Host {
        #[cfg(test)]
        if let Some(host) = &self.fake {
            return host.clone();
        }
        Host::at(&self.root)
    }
}

/// Makes a controller.
///
/// # Errors
/// [`Refused`]: this host or this user has not what it needs, and nothing has been changed.
pub fn make(mechanism: Mechanism, settings: &Settings, guard: &Arc<Guard>) -> Result<Box<dyn Controller>, Refused> {
    Ok(match mechanism {
        Mechanism::Doorbell => Box::new(doorbell::Doorbell::new(settings, guard)?),
        Mechanism::Realtime => Box::new(realtime::Realtime::new(settings, guard)?),
        Mechanism::Freeze => Box::new(freeze::Freeze::new(settings, guard)?),
        Mechanism::Signal => Box::new(signal::Signal::new(settings, guard)?),
        Mechanism::Freezer => Box::new(freezer::Freezer::new(settings, guard)?),
        Mechanism::Gate => Box::new(gate::Gate::new(settings, guard)?),
    })
}
