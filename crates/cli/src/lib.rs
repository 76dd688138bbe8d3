//! What the command lines of `sluice` and `sluice-lab` share.
//!
//! The commands of the lab ([`lab`]) are defined here once, for two programs. `sluice` offers them
//! in help and completions, checks their arguments, and starts `sluice-lab`, which runs them.
//! Nothing here measures, simulates or solves.

pub mod ending;
pub mod lab;
pub mod number;
pub mod table;
pub mod usage;
