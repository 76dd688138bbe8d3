//! The manager: takes packets from ports, through chains of NF processes, to ports.
//!
//! The modules of the packet path come first, then those that only the supervisor's thread enters.

// What panics when nobody reads it: `log_line!` does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

// Its macro is everybody's.
#[macro_use]
extern crate sluice_host;

pub mod bell;
pub mod frame;
pub mod port;

pub mod classify;

pub mod chain;
pub mod nf;
pub mod promise;

pub mod director;

pub mod foreign;
pub mod forward;
pub mod mark;
pub mod pressure;

pub mod controller;
pub mod workflow;

pub mod asker;
pub mod openflow;

pub mod wake;
pub mod worker;

pub mod dataplane;

pub mod memory;

pub mod supervisor;

pub mod telemetry;

pub mod control;
