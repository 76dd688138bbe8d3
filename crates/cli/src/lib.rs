//! What the command lines of `sluice`, `sluice-lab` and `sluice-cluster` share.
//!
//! The commands of the lab ([`lab`]) are defined here once, for two programs. `sluice` offers them
//! in help and completions, checks their arguments, and starts `sluice-lab`, which runs them; with
//! `--cluster` ([`cluster`]) it starts `sluice-cluster`, which is a third one that shares all this.
//! Nothing here measures, simulates or solves.

pub mod bars;
pub mod cluster;
pub mod ending;
pub mod lab;
pub mod number;
#[cfg(feature = "screen")]
pub mod screen;
pub mod svg;
pub mod table;
pub mod top;
pub mod usage;
