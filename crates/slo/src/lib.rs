//! SLOs: NF profiles, what tenants are promised, and placements that keep it.
//!
//! Functions take and return plain values. Nothing here reads a clock, a file or a device unless
//! its documentation says so, so the planner can run in the daemon, in the client, or on another
//! machine. The planner and the agents exchange the types of [`slo`], [`profile`], [`placement`]
//! and [`assignment`] (a server's part of a placement), as JSON.
//!
//! The life of an SLO: [`curve`] builds a [`profile::Profile`] of its NF or chain from
//! measurements. With the profile, the SLO becomes a [`demand::Demand`]: throughput against cache
//! ways. [`admission`] places it at once and moves no running instance; `packing` places many
//! together; [`optimiser`] minimises the number of servers for all of them, in the background;
//! [`migration`] plans the way to its result. [`watch`] evaluates what an agent has measured: which
//! SLOs are violated, and by which tenant. SLOs on demand need no profile: [`on_demand`] shares out
//! their leased resources as they are needed. [`contention`] and `baseline` serve comparison: what
//! other ways of placing promise, and what they would deliver.

#![forbid(unsafe_code)]

pub mod admission;
pub mod assignment;
mod baseline;
pub mod compare;
pub mod contention;
pub mod curve;
pub mod demand;
pub mod digest;
pub mod migration;
pub mod on_demand;
pub mod optimiser;
mod packing;
pub mod placement;
pub mod profile;
pub mod samples;
pub mod slo;
pub mod stage;
mod unit;
pub mod watch;
