//! The control socket: `[control]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::order::in_order;

/// The control socket: `RUNTIME_DIR/control.sock`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Control {
    /// Group, by name or number, whose members may use the socket, as root may: they can have
    /// sluiced run any program as root. Left out: root and the daemon's own user alone.
    pub group: Option<String>,
}
