//! Placement decisions, which hold for a while.

pub mod load;
pub mod packing;
