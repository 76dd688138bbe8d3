//! The keys of pushed metrics.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::order::in_order;

/// Metrics that are pushed to an OpenTelemetry collector, by OTLP over HTTP: those that
/// `/metrics` has for Prometheus.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Telemetry {
    /// The collector, such as `http://127.0.0.1:4318`; the path `/v1/metrics` is added. There is no
    /// TLS. Left out: nothing is pushed.
    pub otlp: Option<String>,
    /// Time between two pushes, in milliseconds.
    #[schemars(range(min = 100, max = 3_600_000))]
    pub interval_ms: u64,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { otlp: None, interval_ms: 15_000 }
    }
}
