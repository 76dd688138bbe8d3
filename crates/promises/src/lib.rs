//! Promises kept: what an agent does on its server with the part of a placement that is for it ([`sluice_slo::assignment`]).
//!
//! # Problem
//! A planner says: this tenant's NFs run on these places, with so many ways of the cache, and get so many packets a second. The running system
//! has services, chains and rules. One must become the other without losing a packet of anybody, and back; what was promised must be kept
//! whatever a neighbour does; and whoever is not given it, or takes more, must be named.
//!
//! # Terms
//! A *place* is what a placement calls a core: place n is the n-th entry of `promises.cores`. A core that is there k times has k places of
//! a k-th each. An SLO has a chain of its own name, which the configuration defines: its rules and its egress say which packets they are. The
//! services of that chain are *templates*: an instance of the SLO runs what they name, as a service of its own.
//!
//! # Approach
//! - [`overlay`] makes, of a configuration and an assignment, the configuration that keeps it: own services for each SLO, on its cores, and its
//!   chain led through them. Then everything is checked and carried out as any change of the configuration, and taking it back is the same
//!   the other way round. New instances are ready before packets are led to them.
//! - A [bucket](sluice_dataplane::bucket) lets in what was promised and no more, where a packet's chain is chosen.
//! - [`classes`] gives instances their ways of the cache.
//! - Weights keep each place its part of its core ([`sluice_policy::sched::reserve`]).
//! - [`sight`] takes windows of about a second from the counters, and [`sluice_slo::watch`] judges them.
//! - [`steer`] feeds those of SLOs on demand to [`sluice_slo::on_demand`] and makes classes, limits and instances of what it decides.
//!
//! The supervisor does all of it (`promises.rs` and `steering.rs` there).
//!
//! # Limits
//! Packets that wait for an NF of a pool, and packets that an SDN controller lets go on, are not policed. A tenant's packets are known by the
//! rules: a rogue that pretends to be another is that other.
//!
//! Source: Tootoonchian et al., "ResQ", NSDI 2018, section 5.

// What panics when nobody reads it: the log does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
extern crate tracing;

pub mod classes;
pub mod kept;
pub mod overlay;
pub mod sight;
pub mod steer;
