//! Shares of the last-level cache.
//!
//! # Problem
//! NFs that share a processor share its last-level cache (L3), and one that reads much pushes the others' data out. Processors can give each
//! *class* of processes ways of its own; where they cannot, or nobody may, a model tells what would be.
//!
//! # Terms
//! A *way* is a fixed part of a cache; a *mask* has a bit for each. A *domain* is one L3 cache, named by the kernel's id. A *class* has ways that
//! no other class has, in the domains that it asks for; what belongs to no class of ours is in the *root class*. Devices write packets into
//! some ways too (DDIO); those are the *I/O ways*.
//!
//! # Approach
//! [`CacheControl`] is what everybody above uses. It is implemented by [`resctrl`] (the kernel), [`simulated`] (a model that is fed with loads
//! and stores), and [`none`]. [`layout`] decides which ways a class gets, and is plain computation; [`others`] reads what groups of others have. The
//! [`model`] behind `simulated` also gives the misses of an NF for every number of ways in one pass. [`buffers`] bounds receive queues so that
//! packets are still cached when they are read; [`host`] reads what the machine is, and [`doctor`] says what is missing.

pub mod buffers;
pub mod control;
pub mod doctor;
mod error;
pub mod host;
pub mod layout;
pub mod leak;
pub mod model;
pub mod none;
pub mod others;
pub mod resctrl;
pub mod schemata;
pub mod simulated;
pub mod trace;

pub use control::{CacheControl, ClassSpec, Count, Domain, Granted, Moved, Origin, Shape, Usage};
pub use error::CacheError;
