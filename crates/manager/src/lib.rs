//! The manager: takes packets from ports, through chains of NF processes, to ports.
//!
//! The modules of the packet path come first, then those that only the supervisor's thread enters.

// What panics when nobody reads it: the log does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
// Whatever a feature alone needs is unused where that is left out.
#![cfg_attr(
    not(all(feature = "foreign", feature = "pools", feature = "promises", feature = "sdn", feature = "turns")),
    allow(dead_code, unused_imports)
)]

#[macro_use]
extern crate tracing;

pub mod features;

pub mod log;

pub mod nf;

pub mod controller;

pub mod dataplane;

pub mod memory;

pub mod supervisor;

pub mod telemetry;

pub mod control;

#[cfg(test)]
mod valid_rules_test;
