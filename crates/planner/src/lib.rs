//! Plans SLOs: from what NFs can do and what tenants were promised to where instances run.
//!
//! Functions take and return plain values, those of [`sluice_slo`]. Nothing here reads a clock, a
//! file or a device unless its documentation says so, so a plan can be made on any machine. No
//! daemon depends on this crate: it keeps a placement, whatever planned it.
//!
//! With a [`profile`](sluice_slo::profile::Profile), an SLO becomes a [`demand::Demand`]:
//! throughput against cache ways. [`admission`] places it at once and moves no running instance;
//! `packing` places many together; [`optimiser`] minimises the number of servers for all of them,
//! in the background; [`migration`] plans the way to its result. [`contention`] and `baseline`
//! serve comparison: what other ways of placing promise, and what they would deliver, for a set of
//! SLOs ([`compare`]) and while SLOs come and go ([`online`]).

#![forbid(unsafe_code)]

pub mod admission;
mod baseline;
pub mod compare;
pub mod contention;
pub mod demand;
pub mod migration;
pub mod online;
pub mod optimiser;
mod packing;
pub mod samples;
