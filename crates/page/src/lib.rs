//! The web page of the daemon, and what Prometheus and probes read by HTTP.
//!
//! Problem: an operator wants to see chains, cores, NFs and SLOs live, in a browser, without tools
//! to install; and the page must not cost what it shows. Approach:
//!
//! - The page is three files in `assets`, served as they are. They name nothing outside, and a
//!   strict content security policy forbids it. Names come from configurations, so the script
//!   writes text and never markup.
//! - One sampler ([`Hub`]) reads the report twice a second at most, for all viewers together, and
//!   only while there are viewers. It makes rates of counters, and sends what differs from the
//!   sample before as one server-sent event, whose text all viewers share.
//! - Everything here only reads. Nothing that a browser sends changes the daemon ([`only_reads`]).
//! - The listener may have TLS ([`Tls`]) and ask for tokens ([`Tokens`]), which are read again when
//!   their files change.
//!
//! Limits: [`VIEWERS`] viewers, 5,000 rows of each table. A viewer that does not keep up is sent
//! the whole state once it reads again. Samples take a fiftieth of the time: with many thousands of
//! NFs they are fewer.
//!
//! The caller has the sockets; see [`router`] for what is served.

#![warn(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
extern crate tracing;

mod answers;
mod delta;
mod files;
mod gate;
mod hub;
#[cfg(test)]
#[path = "../../host/src/skip.rs"]
mod skip;
#[cfg_attr(not(feature = "tls"), path = "without/tls.rs")]
mod tls;
mod token;
mod view;

use sluice_api::ApiError;
use sluice_api::exposition::TextFormat;
use sluice_api::health::Health;
use sluice_api::model::{Event, Stats};

pub use answers::router;
pub use files::{FileError, FileKind, LOOK};
pub use gate::{ServedAt, guard, only_reads, with_tokens};
pub use hub::{Hub, VIEWERS};
pub use tls::Tls;
pub use token::Tokens;

/// What the page is made of. Calls may block, and come from several threads.
///
/// # Errors
/// As the calls of the control API: during shutdown, and if the daemon does not answer in time.
#[allow(clippy::missing_errors_doc)] // one section above for all
pub trait PageSource: Send + Sync {
    /// All counters.
    fn stats(&self) -> Result<Stats, ApiError>;

    /// Recent events, oldest first.
    fn events(&self) -> Result<Vec<Event>, ApiError>;

    /// Whether everything works.
    fn health(&self) -> Result<Health, ApiError>;

    /// All counters as a text for Prometheus.
    fn metrics(&self, format: TextFormat) -> Result<String, ApiError>;
}
