//! Process controllers: stop one process and run another, from outside.
//!
//! # Problem
//! A process that polls never yields its core. To share a core among such processes, a scheduler
//! must stop one and start another within microseconds, whatever they do, and must leave them all
//! running however it ends itself.
//!
//! # Terms
//! A process under control is *parked* (does not run, though it may want to) or *running* (runs as
//! far as the kernel and the process itself allow). A *target* is a unit of control: the processes
//! of one NF. Its *slot* is its number with one controller. A *mechanism* is a way to control; each
//! has a file here, and both of cgroups have one together.
//!
//! # Approach
//! | mechanism | parked by | needs |
//! |---|---|---|
//! | [`doorbell`] | a shared word that the process reads between bursts | our library; trust |
//! | [`realtime`] | a low real-time priority below a high one | CAP_SYS_NICE or `ulimit -r` |
//! | [`freeze`] | `cgroup.freeze` of a cgroup of version 2 | a folder where cgroups may be made |
//! | [`signal`] | SIGSTOP through a pidfd | the right to signal it |
//! | [`freezer`](freeze) | `freezer.state`, in version 1 | a folder where cgroups may be made |
//! | [`gate`] | a signal handler that waits on a shared word | our library, right to signal |
//!
//! - [`auto`] tries what this host allows, measures it, and chooses.
//! - Adding a target opens all it needs: park, run and switch open, allocate and format nothing.
//! - A change is reported to the [`guard`], a separate process, before it is made. The guard undoes
//!   it when this process dies.
//! - [`Target`] and [`Controller::add`] refuse unsuitable processes before any change: [`Refused`].
//!
//! # Limits
//! With priorities, a parked process still runs when no process above it wants the core, and on any
//! other core that it may use: pin it. STOP and CONT are visible to the parent of a process. Only
//! the two cgroup mechanisms stop children that a controlled process makes later; with priorities
//! these have the default class and get what is left. Threads made later are ignored until
//! [`Controller::look_again`]; a [`ThreadWatch`] reports when that is due.

// The calls for classes and for signals to threads have no safe wrapper in rustix.
#![allow(unsafe_code)]

mod attr;
pub mod auto;
mod controller;
pub mod doorbell;
pub mod freeze;
pub mod gate;
pub mod guard;
pub mod helper;
pub mod measure;
mod mechanism;
pub mod realtime;
pub mod signal;
mod slots;
pub mod spinner;
mod target;
mod undo;

#[cfg(test)]
mod tests;

pub use attr::fair_slice;
pub use controller::{Controller, Settings};
pub use mechanism::{Failed, Mechanism, Refused, Slot, UnknownMechanism};
pub use target::{Gates, Target, TargetMember, ThreadWatch};

use std::sync::Arc;

use guard::Guard;

/// Makes a controller.
///
/// # Errors
/// [`Refused`]: host or user lack what it needs; nothing has been changed.
pub fn make(mechanism: Mechanism, settings: &Settings, guard: &Arc<Guard>) -> Result<Box<dyn Controller>, Refused> {
    Ok(match mechanism {
        Mechanism::Doorbell => Box::new(doorbell::Doorbell::new(settings, guard)?),
        Mechanism::Realtime => Box::new(realtime::Realtime::new(settings, guard)?),
        Mechanism::Freeze => Box::new(freeze::Freezer::new(freeze::V2, settings, guard)?),
        Mechanism::Signal => Box::new(signal::Signal::new(settings, guard)?),
        Mechanism::Freezer => Box::new(freeze::Freezer::new(freeze::V1, settings, guard)?),
        Mechanism::Gate => Box::new(gate::GateController::new(settings, guard)?),
    })
}
