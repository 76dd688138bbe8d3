//! Decisions that are made once and hold for a while: where things run.

pub mod load;
pub mod packing;
