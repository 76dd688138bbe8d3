//! What is promised here, and by what means it is kept: the keys of `[promises]`.

use serde::{Deserialize, Serialize};

use super::schema::Preset::{Unset, Value};
use super::schema::Type::{Bool, Cores, Integer, Path, Text, Words};
use super::schema::{Key, key};

/// Promises to tenants (SLOs): where the instances of a placement may run, and by what means promises are kept.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Promises {
    /// Name of this server in placements. Left out: any placement is for it.
    pub server: Option<String>,
    /// The cores that a placement counts from 0 on. One that is there several times is shared in equal parts.
    pub cores: Vec<usize>,
    /// Shares of the last-level cache: by the kernel's resctrl, by nothing, or `auto`, which takes what there is.
    pub cache: Cache,
    /// Where resctrl is mounted.
    pub resctrl: std::path::PathBuf,
    /// File in which a placement is kept, and from which it is taken again after a restart. Left out: it is not.
    pub placement: Option<std::path::PathBuf>,
    /// Whether packets above a promised rate are dropped at the entry.
    pub police: bool,
    /// What may come at once, as a time at the promised rate, in microseconds; 64 packets at least.
    pub burst_us: u32,
    /// Whether instances keep their part of a core, whatever load the others have.
    pub isolate: bool,
}

/// By what the last-level cache is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
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
            resctrl: sluice_cache::resctrl::MOUNT_POINT.into(),
            placement: None,
            police: true,
            burst_us: 10_000,
            isolate: true,
        }
    }
}

/// The keys.
pub(super) const PROMISES: &[Key] = &[
    key("server", Text, Unset, "Name of this server in placements. Left out: any placement is for it."),
    key(
        "cores",
        Cores,
        Value("[]"),
        "The cores that a placement counts from 0 on. One that is there several times is shared in equal parts.",
    ),
    key(
        "cache",
        Words(&["auto", "resctrl", "none"]),
        Value("\"auto\""),
        "Shares of the last-level cache: by the kernel's resctrl, by nothing, or `auto`, which takes what there is.",
    ),
    key("resctrl", Path, Value("\"/sys/fs/resctrl\""), "Where resctrl is mounted."),
    key(
        "placement",
        Path,
        Unset,
        "File in which a placement is kept, and from which it is taken again after a restart. Left out: it is not.",
    ),
    key("police", Bool, Value("true"), "Whether packets above a promised rate are dropped at the entry."),
    key(
        "burst_us",
        Integer(1, 10_000_000),
        Value("10000"),
        "What may come at once, as a time at the promised rate, in microseconds; 64 packets at least.",
    ),
    key("isolate", Bool, Value("true"), "Whether instances keep their part of a core, whatever load the others have."),
];
