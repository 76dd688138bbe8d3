//! Shares of the last-level cache.
//!
//! # Problem
//! NFs on one processor share its last-level cache (L3), and an NF that reads much evicts the
//! others' data. Processors can give each *class* of processes its own ways. Where they cannot, or
//! it is not permitted, a model shows what would happen.
//!
//! # Terms
//! A *way* is a fixed part of a cache; a *mask* has a bit for each. A *domain* is one L3 cache,
//! named by the kernel's id. A *class* has ways that no other class has, in the domains that it
//! asks for; everything without a class of ours is in the *root class*. Devices write packets into
//! some ways too (DDIO); those are the *I/O ways*.
//!
//! # Approach
//! [`CacheControl`] is the interface for other crates. It is implemented by [`resctrl`] (the
//! kernel), [`simulated`] (a model fed with loads and stores), and [`none`]. [`layout`] computes
//! which ways a class gets; [`others`] reads what other programs' groups have. The [`model`] behind
//! `simulated` also gives the misses of an NF for every number of ways in one pass. [`buffers`]
//! bounds receive queues so that packets are still cached when they are read; [`host`] reads what
//! the machine has, and [`doctor`] reports what is missing.

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
