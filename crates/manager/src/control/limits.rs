//! The limits of the control API.

use std::time::Duration;

use sluice_api::model::MAX_TRACE_MS;

/// The limits of clients and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub clients: usize,
    pub body_bytes: usize,
    /// Longest time to send a request, and of silence between two requests.
    pub read: Duration,
    /// The same while another client waits: the one that is silent longest is closed.
    pub spare: Duration,
    /// Longest time that a client takes no byte of its answer, with a full socket buffer.
    pub write: Duration,
    pub call: Duration,
    /// Longest wait for calls under way at a stop.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 64,
            body_bytes: 4 << 20,
            read: Duration::from_secs(30),
            spare: Duration::from_secs(1),
            write: Duration::from_secs(10),
            call: Duration::from_millis(MAX_TRACE_MS) + Duration::from_secs(60),
            stop: Duration::from_secs(2),
        }
    }
}
