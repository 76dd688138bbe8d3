//! The changes that a request makes, as a list.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One step from the old configuration to the new.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Change {
    /// What the step does.
    pub action: Action,
    /// `port`, `service`, `pool`, `instances`, `chain`, `rules` or `key`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// For each key that changes, its old and new value, in words. May be empty.
    #[serde(default)]
    pub detail: String,
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

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = match self.action {
            Action::Add => '+',
            Action::Remove => '-',
            Action::Change => '~',
            Action::Restart => '!',
        };
        write!(f, "{sign} {} {}", self.kind, self.name)?;
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
        let change =
            Change { action: Action::Change, kind: "chain".into(), name: "web".into(), detail: "services fw → fw, nat".into() };
        assert_eq!(change.to_string(), "~ chain web: services fw → fw, nat");
    }
}
