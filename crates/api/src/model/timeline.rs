//! What is asked and reported of timelines.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/timelines`. The answer is a trace of Perfetto, which ends with the recording.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordRequest {
    /// Length, in milliseconds.
    #[schemars(range(min = 1, max = MAX_TIMELINE_MS))]
    #[serde(default = "five_seconds")]
    pub duration_ms: u64,
    /// Samples a second, if the host has time for them.
    #[schemars(range(min = MIN_TIMELINE_HZ, max = MAX_TIMELINE_HZ))]
    #[serde(default = "often")]
    pub rate_hz: u32,
}

/// Longest recording of one [`RecordRequest`], in milliseconds.
pub const MAX_TIMELINE_MS: u64 = 600_000;

/// Fewest samples a second.
pub const MIN_TIMELINE_HZ: u32 = 10;

/// Most samples a second.
pub const MAX_TIMELINE_HZ: u32 = 20_000;

/// Most recordings at a time.
pub const MAX_TIMELINES: usize = 2;

fn five_seconds() -> u64 {
    5_000
}

fn often() -> u32 {
    2_000
}

impl Default for RecordRequest {
    fn default() -> Self {
        Self { duration_ms: five_seconds(), rate_hz: often() }
    }
}

/// A timeline that the flight recorder has written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Timeline {
    /// Name of its file.
    pub name: String,
    /// Time in milliseconds since 1970 (UTC) at which it was written.
    pub unix_ms: u64,
    /// Why: the kind of the event and its subject, such as `death-nf-fw.0`.
    pub why: String,
    /// Size in bytes.
    pub bytes: u64,
}
