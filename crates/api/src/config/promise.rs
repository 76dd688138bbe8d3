//! Promises to tenants (SLOs): `[promises]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MAX_CORE;
use super::order::in_order;

/// Promises to tenants (SLOs): where the instances of a placement may run, and by what means promises are kept.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Promises {
    /// Name of this server in placements. Left out: any placement is for it.
    pub server: Option<String>,
    /// The cores that a placement counts from 0 on. One that is there several times is shared in equal parts.
    #[schemars(inner(range(max = MAX_CORE)))]
    pub cores: Vec<usize>,
    /// Shares of the last-level cache: by the kernel's resctrl, by nothing, or `auto`, which takes what there is.
    pub cache: Cache,
    /// Where resctrl is mounted.
    #[schemars(extend("format" = "path"))]
    pub resctrl: std::path::PathBuf,
    /// File in which a placement is kept, and from which it is taken again after a restart. Left out: it is not.
    #[schemars(extend("format" = "path"))]
    pub placement: Option<std::path::PathBuf>,
    /// Whether packets above a promised rate are dropped at the entry.
    pub police: bool,
    /// What may come at once, as a time at the promised rate, in microseconds; 64 packets at least.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub burst_us: u32,
    /// Whether instances keep their part of a core, whatever load the others have.
    pub isolate: bool,
}

/// By what the last-level cache is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// resctrl where it is mounted, nothing where not.
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
