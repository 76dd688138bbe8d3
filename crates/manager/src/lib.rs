//! The manager: moves packets from ports through chains of NF processes to ports.

// These macros panic when the stream is closed; the log does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
// Items that one feature alone needs are unused in a build without it.
#![cfg_attr(
    not(all(feature = "foreign", feature = "page", feature = "pools", feature = "promises", feature = "sdn", feature = "turns")),
    allow(dead_code, unused_imports)
)]

#[macro_use]
extern crate tracing;

pub mod features;

pub mod levels;

pub mod capture;

mod flows;

mod shadow;

mod threads;

pub mod nf;

pub mod controller;

pub mod dataplane;

pub mod memory;

pub mod supervisor;

pub mod telemetry;

pub mod timeline;

pub mod control;

#[cfg_attr(not(feature = "page"), path = "without/page.rs")]
pub mod page;

#[cfg_attr(not(feature = "otel"), path = "without/otel.rs")]
pub mod otel;

#[cfg(test)]
#[path = "../../api/src/in_the_tree.rs"]
mod in_the_tree;

#[cfg(test)]
mod valid_rules_test;
