//! Configuration: one TOML file, typed, validated before anything takes effect.

pub mod model;
