//! Pushes metrics to an OpenTelemetry collector, by OTLP over HTTP. Empty without the feature
//! `otlp`.
//!
//! Problem: some monitoring systems do not scrape: they are sent what is counted. Approach: the
//! caller writes all metrics into a `MetricsMessage`, as it writes them into a text for
//! Prometheus; a thread of its own (`Pusher`) asks for one in each interval, and posts it
//! (<https://opentelemetry.io/docs/specs/otlp/>, version 1). Values are cumulative since the start,
//! so a push that is not taken is dropped: the next one says the same and more. There is one push
//! at a time, and no queue.
//!
//! Limits: protobuf without compression, HTTP/1.1 without TLS, no redirects, metrics alone. A
//! collector on this host sends on by TLS.

#![warn(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[cfg(feature = "otlp")]
mod message;
#[cfg(feature = "otlp")]
mod push;

#[cfg(feature = "otlp")]
pub use message::{Example, Kind, MetricsMessage, Number, Resource};
#[cfg(feature = "otlp")]
pub use push::{Endpoint, PushError, Pusher, Taken};

/// What reads the messages, for tests of what is sent.
#[cfg(feature = "otlp")]
pub mod read {
    pub use opentelemetry_proto::tonic::collector::metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
    };
    pub use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
    pub use opentelemetry_proto::tonic::metrics::v1::{Metric, metric::Data, number_data_point};
    pub use prost::Message;
}
