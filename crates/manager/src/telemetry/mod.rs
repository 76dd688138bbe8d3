//! Telemetry: counters in the formats of other tools.

mod families;
pub mod metrics;
#[cfg(feature = "otel")]
pub(crate) mod otlp;
mod prometheus;
