//! The flight recorder: `[recorder]`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::order::in_order;

/// The flight recorder: it keeps the last seconds of the timeline in memory, and writes them to a
/// file when an NF dies or is stopped for cause, or an SLO is broken.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Recorder {
    /// Memory for the last seconds, in MiB; 0: there is no flight recorder. A MiB holds 43,690
    /// changes. A busy NF has about five in a sample.
    #[schemars(range(max = 4_096))]
    pub memory_mib: u32,
    /// Samples a second. Each reads words that the packet threads and the NFs write.
    #[schemars(range(min = 10, max = 20_000))]
    pub rate_hz: u32,
    /// Folder of the files.
    #[schemars(extend("format" = "path"))]
    pub folder: PathBuf,
    /// Most files in it: the oldest one goes when another is written.
    #[schemars(range(min = 1, max = 1_000))]
    pub files: u32,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { memory_mib: 0, rate_hz: 1_000, folder: "/var/lib/sluice/timelines".into(), files: 8 }
    }
}
