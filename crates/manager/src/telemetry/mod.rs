//! Telemetry: what is counted, in the forms that others read.

pub mod metrics;
pub mod prometheus;
