//! What a packet would meet: the question and its answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/why`: a packet that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WhyRequest {
    /// The port where it would come in; may be left out if there is one that receives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// It from its Ethernet header on, as hexadecimal digits. Its headers are enough.
    #[schemars(length(min = 2, max = MAX_DIGITS))]
    pub packet: String,
    /// Its length in bytes, if it is longer than that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u16>,
}

/// Most digits of a [`WhyRequest`].
pub const MAX_DIGITS: u32 = 2 * u16::MAX as u32;

/// Answer of `POST /v1/why`: what the packet would meet now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct WhyReply {
    /// The port where it would come in.
    pub port: String,
    /// Its headers as the classifier reads them.
    pub packet: String,
    /// Its length in bytes.
    pub bytes: u32,
    /// What happens to it at the entry.
    pub outcome: Fate,
    /// The rule that it matches first, if that names its chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Its chain, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// The NFs of its path, in order; `SERVICE.*` is one of a pool that is chosen when it comes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<String>,
    /// The port where it would leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
    /// The tenants of the services of its chain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<String>,
    /// What the flow table knows of its flow, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<FlowEntry>,
    /// What would drop or hold it now, in the order in which it would meet that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub obstacles: Vec<WhyNot>,
    /// What else concerns it, such as a service that is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What happens to a packet at the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// It is let in.
    #[default]
    Enters,
    /// It waits.
    Waits,
    /// It is dropped.
    Dropped,
}

impl Fate {
    /// Its name in the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Enters => "enters",
            Self::Waits => "waits",
            Self::Dropped => "dropped",
        }
    }
}

/// What the flow table of a packet thread knows of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct FlowEntry {
    /// Core of the packet thread.
    pub core: u32,
    /// The NFs of its path, if its packets have one.
    pub path: Vec<String>,
    /// The decision without a path: a drop reason, or `waits`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
    /// Whether it holds. If not, the flow's next packet is decided about again.
    pub holds: bool,
    /// Milliseconds since the flow's last packet, to within 256.
    pub idle_ms: u64,
}

/// Something that would drop or hold a packet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct WhyNot {
    /// The reason as drops are counted, one of `Stats.drops`; none if packets wait for it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it is, in words.
    pub what: String,
    /// What to do about it; may be empty.
    #[serde(default)]
    pub remedy: String,
}
