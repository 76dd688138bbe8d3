//! Pure decisions: plain values in, plain values out, time is an argument.
//!
//! Nothing here does I/O, reads a clock, or keeps a thread. Each module opens with its problem, terms, units, approach and limits,
//! and can be driven by the manager on the real clock or by a simulator on a simulated one.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod plan;
pub mod pool;
pub mod restart;
pub mod sched;
pub mod sim;
pub mod spread;
pub mod tcp;
