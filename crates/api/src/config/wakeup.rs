//! When instances that sleep are woken: `[service.wakeup]` and `[rule.wakeup]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_policy::sched::threshold::{self, Rules};

use super::order::in_order;

/// When an instance that sleeps is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Wakeup {
    /// At every packet (`min`), at 32 packets or after a time (`naive-100us`, `naive-1ms`), or at the number that its flow makes worth while.
    pub policy: Policy,
    /// With `adaptive`: each of so many packets at the beginning of a flow wakes it.
    pub early: u32,
    /// With `adaptive`: least number of packets that wait for it when it is woken, after those.
    #[schemars(range(min = 1, max = 1 << 16))]
    pub least: u32,
    /// With `adaptive`: largest such number; never more than half of its ring.
    #[schemars(range(min = 1, max = 1 << 16))]
    pub most: u32,
    /// With `adaptive`: how long packets wait for more at most, in microseconds.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub timer_us: u32,
}

/// By what an instance is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Every packet.
    Min,
    /// A number of packets that grows and shrinks with its flow.
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
    /// As the policy's numbers; None if every packet wakes.
    pub fn rules(&self) -> Option<Rules> {
        match self.policy {
            Policy::Min => None,
            Policy::Adaptive => Some(self.bounds()),
            Policy::Naive100Us => Some(Rules::NAIVE_100_US),
            Policy::Naive1Ms => Some(Rules::NAIVE_1_MS),
        }
    }

    /// The same for one that has a flow whose rule says so, where every packet that wakes is a policy too.
    pub fn rules_of_flow(&self) -> Rules {
        self.rules().unwrap_or(Rules { early: 0, least: 1, most: 1, timer_ns: threshold::TIMER_NS })
    }

    fn bounds(&self) -> Rules {
        Rules { early: self.early, least: self.least, most: self.most, timer_ns: u64::from(self.timer_us) * 1_000 }
    }

    /// Whether it has bounds that its policy does not look at.
    pub fn has_idle_bounds(&self) -> bool {
        self.policy != Policy::Adaptive && self.bounds() != Self::default().bounds()
    }
}
