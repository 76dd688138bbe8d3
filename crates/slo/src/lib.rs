//! Promises: what NFs can do (profiles), what tenants are promised (SLOs), and where instances run so that it is kept (placements).
//!
//! Plain values in, plain values out: nothing here reads a clock, a file or a device except where a function says so, so that the
//! planner can run in the daemon, in the client, or on another machine. What planner and agents tell each other are the types of
//! [`slo`], [`profile`], [`placement`] and [`assignment`] (a server's part of a placement), which are JSON.
//!
//! The way of an SLO: a [`profile::Profile`] of its NF or chain is built from measurements ([`curve`]); with the profile, the SLO is
//! a [`demand::Demand`]: so much throughput for so many cache ways; [`admission`] finds room for it at once, among instances that do not
//! move; `packing` places many at once, and [`optimiser`] finds the least number of servers for all of them, in the background;
//! [`migration`] says how to get there. [`watch`] judges what an agent has measured: who is not given what was promised, and because of whom.
//! SLOs on demand need no profile: [`on_demand`] shares out what they have leased, as it is needed.
//! [`contention`] and `baseline` are for comparison: what other ways of placing would promise, and what would come of it.

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
