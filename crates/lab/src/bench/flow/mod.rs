//! Experiments on NFs for flows: pools, priorities, and flow affinity.
//!
//! # Source
//! Zhang et al., *Flurries: Countless Fine-Grained NFs for Flexible Per-Flow Customization*, CoNEXT
//! 2016, section 6. Each module names its figure.

pub mod affinity;
pub mod chain_priority;
pub mod crash_loop;
pub mod tenant_priority;
pub mod web;
