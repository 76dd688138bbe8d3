//! Placement decisions, which hold for a while.

pub mod fusing;
pub mod load;
pub mod packing;
