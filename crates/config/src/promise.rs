//! What is promised here, and by what means it is kept: the keys of `[promises]`.

use super::schema::Preset::{Unset, Value};
use super::schema::Type::{Bool, Cores, Integer, Path, Text, Words};
use super::schema::{Key, key};

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
