//! The library that a Sluice network function (NF) is written with.
//!
//! An NF is a process. The manager gives it packets in shared memory, without copying; the NF looks at them, changes them, gives each
//! a verdict (next, drop, to a port, to a service), and they go on. Two styles:
//!
//! - **callback**: implement [`Handler`] and call [`run`], or call [`run_each`] with one function of a packet;
//! - **pull**: [`pull::Nf`] reads packets and writes them back, and the NF owns its loop.
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     sluice_nf::run_each(|_packet| {})
//! }
//! ```
//! is a whole bridge. [`header`] finds and changes headers, [`storage`] reads and writes files
//! without waiting, [`harness`] runs a handler in a unit test without a manager, and
//! `include/sluice_nf.h` is the same for C.
//!
//! # Limits
//! A packet lies in one frame. One thread of a process is the NF; another one needs an NF of its own. An NF on the packet path should
//! not lock, allocate, log or make system calls; the library does not.

#![warn(missing_docs)]

mod c;
mod context;
mod engine;
mod error;
mod gate;
mod handler;
pub mod harness;
pub mod header;
mod options;
mod packet;
pub mod pull;
mod run;
mod seat;
mod signals;
pub mod storage;
#[cfg(feature = "trace")]
mod trace;
mod zygote;

pub use context::Context;
pub use error::{AttachError, NfError};
pub use handler::Handler;
pub use options::{Options, args};
pub use packet::{Burst, IterMut, NoRoom, Packet, PortId, ServiceId, Verdict};
pub use run::{run, run_each, run_with};

/// Now, in nanoseconds of CLOCK_MONOTONIC: the clock of [`Burst::now_ns`] and of ticks.
pub fn now_ns() -> u64 {
    sluice_shm::clock::monotonic_ns()
}

/// Whether this program's loads and stores are written, instead of it being run by a manager. An NF that places its data at random should not
/// do so then, or no two traces are alike.
pub fn is_traced() -> bool {
    #[cfg(feature = "trace")]
    return trace::asked().is_some();
    #[cfg(not(feature = "trace"))]
    return false;
}
