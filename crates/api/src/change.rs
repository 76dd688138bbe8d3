//! The configuration in force, requests that change keys of it or go back to a former one, and the
//! changes that a request makes, as a list.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Body of `POST /v1/set`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetKeys {
    /// The section of the configuration, such as `service`, `port` or `sched`.
    pub kind: String,
    /// Name of the object, in sections that have several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The keys and their new values. A key of a nested table has a path: `pool.max`. Null sets a
    /// key back to its default.
    pub keys: BTreeMap<String, Value>,
    /// Whether to report what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Body of `POST /v1/undo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Undo {
    /// Number of the configuration to go back to. Left out: the last one before the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// Whether to report what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Body of `POST /v1/services/{name}/canary`: another version of the service's program, which gets
/// a part of new flows for a time.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CanaryRequest {
    /// Its program, as in an upgrade.
    pub exec: String,
    /// Its arguments; by default those of the old version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Its part of new flows, in percent.
    #[schemars(range(min = 1, max = 50))]
    pub percent: u32,
    /// How long it has to do without a fault, in seconds; then its version takes over.
    #[schemars(range(min = 1, max = 86_400))]
    pub seconds: u64,
    /// By how many percent of its packets it may drop more than the old version.
    #[serde(default = "one")]
    pub drops_percent: f64,
    /// Longest time for a burst, which 99 of 100 must keep, in microseconds. Left out: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_us: Option<f64>,
}

fn one() -> f64 {
    1.0
}

/// The configuration in force. Its services may have secrets in their environment.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct RunningConfig {
    /// Its text as TOML: with absolute paths, without keys that have their default.
    pub config: String,
}

/// A former configuration, to which the daemon can go back.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct FormerConfig {
    /// Its number; a later one has a larger number.
    pub number: u64,
    /// When it was replaced, in milliseconds since 1970 (UTC).
    pub unix_ms: u64,
    /// What replaced it: the file that was applied, or the keys that were set.
    pub source: String,
}

/// One step from the old configuration to the new.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Change {
    /// What the step does.
    pub action: Action,
    /// `port`, `service`, `pool`, `instances`, `chain`, `rules`, `section` or `key`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// For each key that changes, its old and new value, in words. May be empty.
    #[serde(default)]
    pub detail: String,
    /// The keys that change; of an object that is added or removed, those that are no defaults.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<ChangedKey>,
}

/// A key of an object that changes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ChangedKey {
    /// The key; one of a nested table has a path: `pool.min`.
    pub key: String,
    /// Its old value; none if it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Its new value; none if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// What a [`Change`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Adds an object.
    Add,
    /// Removes an object.
    Remove,
    /// Changes an object.
    Change,
    /// Changes an object when the daemon is restarted.
    Restart,
}

impl Action {
    /// The sign at the beginning of its line.
    pub fn sign(self) -> char {
        match self {
            Self::Add => '+',
            Self::Remove => '-',
            Self::Change => '~',
            Self::Restart => '!',
        }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.action.sign(), self.kind, self.name)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_reads_like_a_diff() {
        let detail = "services fw → fw, nat".into();
        let change = Change { action: Action::Change, kind: "chain".into(), name: "web".into(), detail, keys: Vec::new() };
        assert_eq!(change.to_string(), "~ chain web: services fw → fw, nat");
    }
}
