//! Pure decisions: plain values in, plain values out, time is an argument.
//!
//! No I/O, no clock, no threads. Each module opens with its problem, terms, units, approach and
//! limits, and runs in the manager on the real clock or in a simulator on a simulated one.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod plan;
pub mod pool;
pub mod restart;
pub mod sched;
pub mod sim;
pub mod spread;
pub mod tcp;
