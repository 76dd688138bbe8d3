//! What instances of services that are not shared are given: `[service.pool]`, and the words of `per`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::order::in_order;

/// Instances of a service that is not shared.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "PoolConfig", transform = in_order::<Self>)]
pub struct Pool {
    /// Least number of instances. There are so many at the start, and always so many with `per = "rss"` and `per = "round-robin"`.
    #[schemars(range(max = 65_000))]
    pub min: u32,
    /// Most instances. There are as many as flows come and last.
    #[schemars(range(min = 1, max = 65_000))]
    pub max: u32,
    /// With `per = "class"`: what flows of one class have in common. `tenant` (of their rule), `vlan`, `port` (where they come in), `dscp`,
    /// `source-prefix/24` or `destination-prefix/24`, with `/24/56` where IPv6 networks have other than 64 bits. The first packet of
    /// a connection says it, for both directions.
    pub class: Option<String>,
    /// Capacity of each ring of an instance, a power of two: small where it has one flow at a time.
    #[schemars(range(min = 2, max = 1 << 20))]
    pub ring: u32,
    /// How long late packets of a flow that has ended still meet its instance, in milliseconds. A class ends with its last flow.
    #[schemars(range(max = 3_600_000))]
    pub linger_ms: u32,
    /// An established TCP connection without packets for so long is over, in milliseconds.
    #[schemars(range(min = 1))]
    pub tcp_idle_ms: u32,
    /// A TCP connection that only one side has spoken in, or that one side has ended, is over without packets for so long, in milliseconds.
    #[schemars(range(min = 1))]
    pub half_open_ms: u32,
    /// A flow that is not TCP is over without packets for so long, in milliseconds.
    #[schemars(range(min = 1))]
    pub idle_ms: u32,
    /// What happens to a new flow when no instance is idle.
    pub when_empty: WhenEmpty,
    /// With `when_empty = "wait"`: most packets that wait, at each Rx thread. For one more, the one that has waited longest is dropped.
    #[schemars(range(min = 1, max = 1 << 16))]
    pub queue: u32,
    /// With `when_empty = "fallback"`: the shared service that has the flow instead, to its end.
    pub fallback: Option<String>,
    /// How an instance is made as new for the next flow.
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

/// What an instance of a service is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// Whatever comes: flows are spread over the instances.
    #[default]
    Shared,
    /// One flow at a time, both directions of it.
    Flow,
    /// All flows of a traffic class, both directions of them.
    Class,
    /// The flows of one hash.
    Rss,
    /// Packets in turn, whatever flow they are of.
    RoundRobin,
}

impl Per {
    /// Whether connections are given instances as they come, and hold them to their ends.
    #[inline]
    pub fn is_held(self) -> bool {
        matches!(self, Self::Flow | Self::Class)
    }

    /// As a word.
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
    /// Its packets wait until one is.
    Wait,
    /// A shared service has it.
    Fallback,
    /// Its packets are dropped until one is.
    Drop,
}

/// How an instance is made as new for the next flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Its state cleaner is called.
    Reset,
    /// It is ended, and another process takes its place.
    Strict,
}
