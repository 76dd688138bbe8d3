//! Instances of pooled services: `[service.pool]`, and the values of `per`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::order::in_order;

/// Instances of a pooled service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "PoolConfig", transform = in_order::<Self>)]
pub struct Pool {
    /// Least number of instances, and that at start. Fixed with `per = "rss"` or `"round-robin"`.
    #[schemars(range(max = 65_000))]
    pub min: u32,
    /// Most instances. Their number follows the flows.
    #[schemars(range(min = 1, max = 65_000))]
    pub max: u32,
    /// With `per = "class"`: what flows of a class share: `tenant` (of their rule), `vlan`, `port`
    /// (ingress), `dscp`, `source-prefix/24` or `destination-prefix/24`, with `/24/56` if IPv6
    /// prefixes do not have 64 bits. The first packet of a connection decides for both directions.
    pub class: Option<String>,
    /// Capacity of each ring of an instance, a power of two. Keep it small where an instance has
    /// one flow at a time.
    #[schemars(range(min = 2, max = 1 << 20))]
    pub ring: u32,
    /// How long late packets of an ended flow still reach its instance, in milliseconds. A class
    /// ends with its last flow.
    #[schemars(range(max = 3_600_000))]
    pub linger_ms: u32,
    /// Idle timeout of an established TCP connection, in milliseconds.
    #[schemars(range(min = 1))]
    pub tcp_idle_ms: u32,
    /// Idle timeout of a TCP connection in which one side has not sent, or one side has ended, in
    /// milliseconds.
    #[schemars(range(min = 1))]
    pub half_open_ms: u32,
    /// Idle timeout of a flow that is not TCP, in milliseconds.
    #[schemars(range(min = 1))]
    pub idle_ms: u32,
    /// What happens to a new flow when no instance is idle.
    pub when_empty: WhenEmpty,
    /// With `when_empty = "wait"`: most waiting packets of an Rx thread; one more drops the oldest.
    #[schemars(range(min = 1, max = 1 << 16))]
    pub queue: u32,
    /// With `when_empty = "fallback"`: the shared service that handles the flow to its end.
    pub fallback: Option<String>,
    /// How an instance is reset for the next flow.
    pub isolation: Isolation,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            min: 1,
            max: 64,
            class: None,
            ring: 64,
            linger_ms: 100,
            tcp_idle_ms: 300_000,
            half_open_ms: 10_000,
            idle_ms: 30_000,
            when_empty: WhenEmpty::Wait,
            queue: 256,
            fallback: None,
            isolation: Isolation::Reset,
        }
    }
}

/// What an instance of a service receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// Any packets: flows are spread over the instances.
    #[default]
    Shared,
    /// One flow at a time, in both directions.
    Flow,
    /// All flows of a traffic class, in both directions.
    Class,
    /// The flows of one hash value.
    Rss,
    /// Packets round robin, of any flow.
    RoundRobin,
}

impl Per {
    /// Whether connections are assigned to instances as they arrive, and stay to their end.
    #[inline]
    pub fn is_held(self) -> bool {
        matches!(self, Self::Flow | Self::Class)
    }

    /// Its name in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Flow => "flow",
            Self::Class => "class",
            Self::Rss => "rss",
            Self::RoundRobin => "round-robin",
        }
    }
}

/// What happens to a new flow when no instance is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenEmpty {
    /// Its packets wait for an idle instance.
    Wait,
    /// A shared service handles it.
    Fallback,
    /// Its packets are dropped until an instance is idle.
    Drop,
}

/// How an instance is reset for the next flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Its state cleaner is called.
    Reset,
    /// Its process is replaced by another.
    Strict,
}
