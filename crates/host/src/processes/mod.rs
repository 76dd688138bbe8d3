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
mod controller;
pub mod doorbell;
pub mod freeze;
pub mod freezer;
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
mod tree;
mod undo;

#[cfg(test)]
mod tests;

pub use controller::{Controller, Settings};
pub use mechanism::{Failed, Mechanism, Refused, Slot, UnknownMechanism};
pub use target::{Gates, Member, Target, ThreadWatch};

use std::sync::Arc;

use guard::Guard;

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
