//! Promises to tenants (SLOs): `[promises]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MAX_CORE;
use super::order::in_order;

/// SLOs: where the instances of a placement may run, and how promises are kept.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Promises {
    /// Name of this server in placements. Left out: every placement is for it.
    pub server: Option<String>,
    /// Cores that a placement numbers from 0. One listed several times is shared in equal parts.
    #[schemars(inner(range(max = MAX_CORE)))]
    pub cores: Vec<usize>,
    /// How the last-level cache is partitioned: `resctrl`, `none`, or what is available (`auto`).
    pub cache: Cache,
    /// Mount point of resctrl.
    #[schemars(extend("format" = "path"))]
    pub resctrl: std::path::PathBuf,
    /// File that keeps the placement across restarts. Left out: it is not kept.
    #[schemars(extend("format" = "path"))]
    pub placement: Option<std::path::PathBuf>,
    /// Whether packets above a promised rate are dropped at the entry.
    pub police: bool,
    /// Largest burst, as a time at the promised rate, in microseconds; at least 64 packets.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub burst_us: u32,
    /// Whether instances keep their part of a core under any load of the others.
    pub isolate: bool,
}

/// How the last-level cache is partitioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// resctrl if it is mounted, nothing otherwise.
    Auto,
    /// The kernel's resctrl.
    Resctrl,
    /// Nothing.
    None,
}

impl Default for Promises {
    fn default() -> Self {
        Self {
            server: None,
            cores: Vec::new(),
            cache: Cache::Auto,
            resctrl: "/sys/fs/resctrl".into(),
            placement: None,
            police: true,
            burst_us: 10_000,
            isolate: true,
        }
    }
}
