//! The daemon's operations on the host, and how they are undone.
//!
//! Each module is a thin, safe wrapper of one kernel mechanism; its errors say what an operator can
//! do. This crate does not know packets, chains or the configuration.

// Prints would panic on a closed stream; the log does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
extern crate tracing;

pub mod notice;

pub mod file;
pub mod record;

pub mod process;

pub mod affinity;
pub mod cgroup;
pub mod class;
pub mod filter;
pub mod netns;
pub mod static_names;
pub mod user;

pub mod attach;
pub mod container;
pub mod spawn;

pub mod announce;
pub mod link;
pub mod redirect;
pub mod silence;

pub mod processes;

#[cfg(test)]
mod skip;
