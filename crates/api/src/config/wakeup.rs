//! When sleeping instances are woken: `[service.wakeup]` and `[rule.wakeup]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_policy::sched::threshold::{self, Rules};

use super::order::in_order;

/// When a sleeping instance is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Wakeup {
    /// Wake at each packet (`min`), at 32 packets or after a time (`naive-100us`, `naive-1ms`), or
    /// at a threshold that follows its flow (`adaptive`).
    pub policy: Policy,
    /// With `adaptive`: number of packets at the beginning of a flow that each wake the instance.
    pub early: u32,
    /// With `adaptive`: least threshold after those, in packets.
    #[schemars(range(min = 1, max = 1 << 16))]
    pub least: u32,
    /// With `adaptive`: largest threshold, in packets; at most half of the ring.
    #[schemars(range(min = 1, max = 1 << 16))]
    pub most: u32,
    /// With `adaptive`: longest time that packets wait for more, in microseconds.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub timer_us: u32,
}

/// The wake policy of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Every packet.
    Min,
    /// A threshold that grows and shrinks with its flow.
    Adaptive,
    /// 32 packets, or 100 µs.
    #[serde(rename = "naive-100us")]
    Naive100Us,
    /// 32 packets, or a millisecond.
    #[serde(rename = "naive-1ms")]
    Naive1Ms,
}

impl Default for Wakeup {
    fn default() -> Self {
        let Rules { early, least, most, timer_ns } = Rules::ADAPTIVE;
        Self { policy: Policy::Adaptive, early, least, most, timer_us: (timer_ns / 1_000) as u32 }
    }
}

impl Wakeup {
    /// The policy's parameters; None if every packet wakes.
    pub fn rules(&self) -> Option<Rules> {
        match self.policy {
            Policy::Min => None,
            Policy::Adaptive => Some(self.bounds()),
            Policy::Naive100Us => Some(Rules::NAIVE_100_US),
            Policy::Naive1Ms => Some(Rules::NAIVE_1_MS),
        }
    }

    /// The parameters for a flow whose rule sets this policy; waking at every packet is one too.
    pub fn rules_of_flow(&self) -> Rules {
        self.rules().unwrap_or(Rules { early: 0, least: 1, most: 1, timer_ns: threshold::TIMER_NS })
    }

    fn bounds(&self) -> Rules {
        Rules { early: self.early, least: self.least, most: self.most, timer_ns: u64::from(self.timer_us) * 1_000 }
    }

    /// Whether bounds are set that its policy ignores.
    pub fn has_idle_bounds(&self) -> bool {
        self.policy != Policy::Adaptive && self.bounds() != Self::default().bounds()
    }
}
