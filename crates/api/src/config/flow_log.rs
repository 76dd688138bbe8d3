//! The log of flows.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::order::in_order;

/// The log of flows: what each flow had, and how it ended. With `file` or `collector` flows are
/// metered at all times; without both only while `sluice flows` asks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct FlowLogConfig {
    /// File that gets a line of JSON for each flow that has ended. Left out: none.
    #[schemars(extend("format" = "path"))]
    pub file: Option<PathBuf>,
    /// Largest size of the file, in MiB. Then it is renamed to `FILE.1`, `FILE.1` to `FILE.2`, and
    /// so on.
    #[schemars(range(min = 1, max = 1 << 20))]
    pub file_mib: u32,
    /// Most files that are kept, `FILE` among them.
    #[schemars(range(min = 1, max = 1_000))]
    pub files: u32,
    /// Address of an IPFIX collector, which gets each IP flow that has ended, by UDP:
    /// `ADDRESS:PORT`. Left out: there is none.
    pub collector: Option<String>,
    /// Most flows that are metered in each packet thread. Each takes about 200 bytes while flows
    /// are metered. A further flow ends the record of another one.
    #[schemars(range(min = 1_024, max = 1 << 22))]
    pub flows: u32,
    /// Time without a packet after which a flow has ended, in milliseconds.
    #[schemars(range(min = 100, max = 86_400_000))]
    pub idle_ms: u64,
    /// Time after which a flow that goes on is logged, and begins anew, in milliseconds; 0: never.
    #[schemars(range(max = 86_400_000))]
    pub active_ms: u64,
}

impl Default for FlowLogConfig {
    fn default() -> Self {
        Self { file: None, file_mib: 64, files: 8, collector: None, flows: 1 << 17, idle_ms: 15_000, active_ms: 0 }
    }
}
