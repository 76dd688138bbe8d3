//! What is known of an NF beside its packets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_policy::plan::load::Measured;

use super::Nf;
use crate::counted::counted;

/// Wakes of an NF that is not woken for each packet, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Woken {
    /// Its flow had just begun.
    pub early: u64,
    /// The threshold was reached.
    pub threshold: u64,
    /// The timer expired below the threshold.
    pub timer: u64,
    /// A packet that ends a connection arrived.
    pub urgent: u64,
}

impl Woken {
    /// Each cause as a word, with its count.
    pub fn causes(&self) -> [(&'static str, u64); 4] {
        [("early", self.early), ("threshold", self.threshold), ("timer", self.timer), ("urgent", self.urgent)]
    }
}

counted! {
/// Counters of a foreign program, over all its restarts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct NfForeign: FeedCounts {
    /// Packets that entered it.
    pub entered: u64 => "sluice_foreign_entered_total" by threads,
    /// Packets that left it and went on.
    pub returned: u64 => "sluice_foreign_returned_total" by threads,
    /// Of these, the ones that it created.
    pub originated: u64 => "sluice_foreign_originated_total" by threads,
    /// Packets that entered and did not come back in time; no losses if consumed by design.
    pub not_back: u64 => "sluice_foreign_not_back_total" by threads,
    /// Packets that entered and may still come back.
    pub inside: u64,
    /// Packets that left it and belong to no chain.
    pub strays: u64 => "sluice_foreign_stray_total" by threads,
    /// Packets that a tap missed because its interface was full.
    pub missed: u64 => "sluice_foreign_missed_total" by threads,
    /// Packets that left it when there was no space for them.
    pub overruns: u64 => "sluice_foreign_overrun_total" by threads,
    /// Whether it consumes packets by design.
    pub by_design: bool,
    /// Its process IDs.
    pub processes: Vec<u32>,
}
}

counted! {
/// A handler that runs in a group, over all the group's restarts. The group's process counts.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct NfPart {
    /// Its service.
    pub service: String,
    /// Packets that it handled.
    pub packets: u64 => "sluice_part_packets_total",
    /// Packets that it dropped.
    pub drops: u64 => "sluice_part_drops_total",
    /// Time for a packet in nanoseconds, from one burst each millisecond; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_ns: Option<f64>,
}
}

/// A chain of separate NFs that do little with a packet against what the way between them costs.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Fusable {
    /// The chain.
    pub chain: String,
    /// Its services.
    pub services: Vec<String>,
    /// Mean time of a packet in the handlers of all of them, in nanoseconds.
    pub packet_ns: f64,
    /// The core on which one process would save most.
    pub core: u32,
    /// What it would save there, in percent of the core: the CPU time of the NFs beyond their
    /// packets' time in handlers, less that of the service that has most of it. Of the last half
    /// second or more.
    pub saves_percent: f64,
}

impl Nf {
    /// Cost of a packet in nanoseconds; 0 until known. Measured from outside, it includes taking
    /// and returning packets.
    pub fn cost_ns(&self) -> f64 {
        self.sched.service_ns.max(self.sched.outside_ns)
    }

    /// Its load in cores, from its other measurements ([`sluice_policy::plan::load`]).
    pub fn load(&self) -> f64 {
        let (arrival_pps, used) = (self.sched.arrival_pps, self.cpu_percent / 100.0);
        Measured { arrival_pps, cost_ns: self.cost_ns(), used, polls: self.mode == "poll" }.load()
    }
}
