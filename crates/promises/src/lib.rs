//! Keeps SLOs: an agent's work on its server for its part of a placement
//! ([`sluice_slo::assignment`]).
//!
//! # Problem
//! A planner decides that a tenant's NFs run on certain places, with a number of cache ways and a
//! packet rate. The running system has services, chains and rules. One must become the other, and
//! back, without losing any packet. What was promised must be kept whatever a neighbour does. A
//! tenant that does not get it, or takes more, must be named.
//!
//! # Terms
//! A *place* is a placement's core: place n is the n-th entry of `promises.cores`. A core that is
//! listed k times has k places of a k-th each. An SLO has a chain of its name, which the
//! configuration defines: its rules and egress select the packets. The services of that chain are
//! *templates*: an instance of the SLO runs them as services of its own.
//!
//! # Approach
//! - [`overlay`] makes, from a configuration and an assignment, the configuration that keeps it:
//!   own services for each SLO, on its cores, and its chain through them. This is checked and
//!   applied like any change of the configuration, and undone the same way. New instances are ready
//!   before packets are sent to them.
//! - A [bucket](sluice_dataplane::bucket) admits only the promised rate, where a chain is chosen.
//! - [`classes`] gives instances their ways of the cache.
//! - Weights keep each place its part of its core ([`sluice_policy::sched::reserve`]).
//! - [`sight`] takes windows of about a second from the counters; [`sluice_slo::watch`] evaluates.
//! - [`steer`] feeds those of SLOs on demand to [`sluice_slo::on_demand`] and turns its decisions
//!   into classes, limits and instances.
//!
//! The supervisor runs all of it (`promises.rs` and `steering.rs` there).
//!
//! # Limits
//! Packets that wait for an NF of a pool, and packets that an SDN controller releases, are not
//! policed. The rules identify a tenant's packets: a sender that imitates another tenant counts as
//! that tenant.
//!
//! Source: Tootoonchian et al., "ResQ", NSDI 2018, section 5.

// Prints would panic on a closed stream; the log does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
extern crate tracing;

pub mod classes;
pub mod kept;
pub mod overlay;
pub mod sight;
pub mod steer;
