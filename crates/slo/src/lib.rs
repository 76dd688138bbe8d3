//! SLOs: NF profiles, what tenants are promised, and placements that keep it.
//!
//! Functions take and return plain values. Nothing here reads a clock, a file or a device unless
//! its documentation says so. The planner (the crate `sluice-planner`) and the agents exchange the
//! types of [`slo`], [`profile`], [`placement`] and [`assignment`] (a server's part of a
//! placement), as JSON.
//!
//! The life of an SLO: [`curve`] builds a [`profile::Profile`] of its NF or chain from
//! measurements. With it, the planner finds a [`placement`]. [`watch`] evaluates what an agent has
//! measured: which SLOs are violated, and by which tenant. SLOs on demand need no profile:
//! [`on_demand`] shares out their leased resources as they are needed.

#![forbid(unsafe_code)]

pub mod assignment;
pub mod curve;
pub mod digest;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
pub mod on_demand;
pub mod placement;
pub mod profile;
pub mod random;
pub mod slo;
pub mod stage;
mod unit;
pub mod watch;
