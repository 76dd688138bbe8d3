//! Telemetry: counters in the formats of other tools.

pub mod metrics;
pub mod prometheus;
