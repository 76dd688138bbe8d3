//! The geometry of a cache.

use serde::{Deserialize, Serialize};

/// Sets and ways of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    pub sets: u32,
    pub ways: u32,
}

impl Geometry {
    /// A cache of this size in bytes.
    pub fn of(bytes: u64, ways: u32, line: u32) -> Option<Self> {
        let sets = u32::try_from(bytes.checked_div(u64::from(ways) * u64::from(line))?).ok()?;
        (sets > 0).then_some(Self { sets, ways })
    }
}
