//! Configuration: one TOML file, typed, validated before anything takes effect.

pub mod model;
pub mod nearest;
pub mod parse;
