//! Reports of the control API on SLOs and placements.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_slo::on_demand::Remedy;
use sluice_slo::watch::{Excess, Violation};

use super::change::Change;

/// Answer of `PUT /v1/placement`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Placed {
    /// The changes, in order. Empty if this assignment is already in force.
    pub changes: Vec<Change>,
    /// What the server lacks for it, in words, such as control of the cache.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How SLOs are kept, as of the last window of about a second.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Promises {
    /// Name of this server in placements; none if every placement is for it.
    pub server: Option<String>,
    /// Mechanism that partitions the cache: `resctrl` or `none`.
    pub cache: String,
    /// Whether packets above a promised rate are dropped at the entry.
    pub policing: bool,
    /// Whether instances keep their part of a core under any load of the others.
    pub isolation: bool,
    /// Length of the last window, in seconds; 0 before the first.
    pub window_s: f64,
    /// What is missing, in words.
    pub notes: Vec<String>,
    /// Decisions about SLOs on demand, the latest last.
    #[serde(default)]
    pub decisions: Vec<Decided>,
    /// The SLOs, by name.
    pub promises: Vec<Promise>,
}

/// A decision about an SLO on demand.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Decided {
    /// Age of the decision, in seconds.
    pub age_s: f64,
    /// Name of the SLO.
    pub slo: String,
    /// The decision, in words.
    pub what: String,
}

/// Control state of an SLO on demand.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Steered {
    /// Cache ways of instances with their own cache class, by instance.
    pub own_ways: BTreeMap<String, u32>,
    /// Cache ways of the shared class; none if there is no such class.
    pub shared_ways: Option<u32>,
    /// Admitted packets per second; none admits all.
    pub limit_pps: Option<f64>,
    /// Instances that it needs and this server cannot provide.
    pub asks_for: Option<Asked>,
    /// Present measure against its high latency: `wait`, `share`, `ask` or `police`.
    pub remedy: Option<Remedy>,
}

/// Instances that an SLO needs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Asked {
    /// Number of instances on all servers.
    pub instances: u32,
    /// Why this server does not provide them.
    pub why: String,
}

/// How an SLO is kept.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Promise {
    /// Name of the SLO, and of its chain.
    pub slo: String,
    /// The services of its instances.
    pub services: Vec<String>,
    /// The NFs of its instances.
    pub nfs: Vec<String>,
    /// Promised packets per second on this server; none for an SLO on demand.
    pub promised_pps: Option<f64>,
    /// Promised 95th percentile of latency, in microseconds.
    pub promised_us: f64,
    /// Largest admitted burst, in packets; none if nothing is policed.
    pub burst: Option<u64>,
    /// Packets per second that arrived.
    pub offered_pps: f64,
    /// Packets per second above the promised rate that were dropped.
    pub policed_pps: f64,
    /// Packets per second that its NFs completed.
    pub delivered_pps: f64,
    /// 95th percentile of latency in microseconds, if enough packets were timed.
    pub latency_us: Option<f64>,
    /// Cores that it was assigned; fractions where a core is shared.
    pub part: f64,
    /// Cores that its NFs used.
    pub cpu: f64,
    /// Ways of its cache classes; 0 in the shared class.
    pub ways: u32,
    /// Bytes that it occupies in the cache, where that is counted.
    pub occupancy_bytes: Option<u64>,
    /// Packets above the promised rate that were dropped, in total.
    pub policed: u64,
    /// Windows since the promise was made.
    pub windows: u64,
    /// Windows in which its throughput was not kept.
    pub throughput_violated: u64,
    /// Windows in which its latency was not kept while its load was within the promised rate.
    pub latency_violated: u64,
    /// Windows in which it sent more than was promised.
    pub exceeded: u64,
    /// Present excess over the promised rate.
    pub excess: Option<Excess>,
    /// Present violations.
    pub violations: Vec<Violation>,
    /// Its control state; none if it is reserved.
    #[serde(default)]
    pub steered: Option<Steered>,
}

impl Promise {
    /// Its state in one word.
    pub fn word(&self) -> &'static str {
        match (self.windows, &self.violations[..], &self.excess) {
            (0, ..) => "new",
            (_, [_, ..], _) => "violated",
            (.., Some(_)) => "exceeded",
            _ => "kept",
        }
    }
}

/// Bounds of NIC receive queues, which keep packets in the cache until they are read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Buffers {
    /// Most packets in each queue; none if nothing bounds them.
    pub per_queue: Option<u32>,
    /// Source of the bound: `given` (`memory.rx_frames`), `ways` (`memory.io_ways`), `register` or
    /// `resctrl` for the number of I/O ways, or `burst` where these hold less than a burst.
    pub by: Option<String>,
    /// Why nothing bounds the queues, or what to check, in words.
    pub why: Option<String>,
    /// Receive queues of all NICs.
    pub queues: u32,
    /// Ways of the last-level cache that devices write into, if known.
    pub ways: Option<u32>,
    /// Size of a way, in bytes.
    pub way_bytes: Option<u64>,
    /// Bytes that a packet takes in them at most.
    pub frame_bytes: Option<u64>,
}
