//! The library that a Sluice network function (NF) is written with.
//!
//! An NF is a process. The manager passes it packets in shared memory, without copies; the NF reads
//! or changes each packet and returns it with a verdict (next, drop, to a port, to a service). Two
//! styles:
//!
//! - **callback**: implement [`Handler`] and call [`run`], or call [`run_each`] with one function
//!   of a packet;
//! - **pull**: [`pull::Nf`] reads packets and writes them back, and the NF owns its loop.
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     sluice_nf::run_each(|_packet| {})
//! }
//! ```
//! is a whole bridge. [`header`] finds and changes headers, [`storage`] reads and writes files
//! without blocking, [`harness`] runs a handler in a unit test without a manager, and
//! `include/sluice_nf.h` is the same for C.
//!
//! # Limits
//! A packet lies in one frame. An NF is one thread; another thread needs an NF of its own. An NF on
//! the packet path should not lock, allocate, log or make system calls; the library does not.

#![warn(missing_docs)]

mod c;
mod context;
mod engine;
mod error;
mod gate;
#[cfg(feature = "group")]
pub mod group;
mod handler;
pub mod harness;
pub mod header;
mod options;
mod packet;
pub mod part;
pub mod pull;
mod run;
mod signals;
#[cfg(test)]
#[path = "../../host/src/skip.rs"]
mod skip;
mod sleeper;
pub mod storage;
#[cfg(feature = "trace")]
mod trace;
mod zygote;

pub use context::Context;
pub use error::{AttachError, NfError};
pub use handler::Handler;
pub use options::{Options, args};
pub use packet::{Burst, IterMut, NoRoom, Packet, PortId, ServiceId, Verdict};
pub use run::{Each, run, run_each, run_with};

/// Now, in nanoseconds of CLOCK_MONOTONIC: the clock of [`Burst::now_ns`] and of ticks.
pub fn now_ns() -> u64 {
    sluice_shm::clock::monotonic_ns()
}

/// Whether this program is traced (its loads and stores recorded) instead of run by a manager. An
/// NF with a randomised memory layout should then turn that off, or no two traces agree.
pub fn is_traced() -> bool {
    #[cfg(feature = "trace")]
    return trace::asked().is_some();
    #[cfg(not(feature = "trace"))]
    return false;
}
