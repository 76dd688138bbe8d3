//! What the daemon does on the host, and how it is undone.
//!
//! Each module is a thin, safe wrapper of one mechanism of the kernel, with errors that say what an operator can do. Nothing here
//! knows of packets, chains or the configuration.

// What panics when nobody reads it: the log does not.
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
pub mod user;

pub mod attach;
pub mod container;
pub mod spawn;

pub mod announce;
pub mod link;
pub mod redirect;
pub mod silence;

pub mod processes;
