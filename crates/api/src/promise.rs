//! What the control API says of promises: how each is kept, and what was placed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_slo::on_demand::Remedy;
use sluice_slo::watch::{Excess, Violation};

use super::change::Change;

/// Answer of `PUT /v1/placement`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Placed {
    /// What changed, in the order in which it did. Empty if this very assignment is in force already.
    pub changes: Vec<Change>,
    /// What it lacks here, in words: such as cache classes, where there is no cache control.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How promises are kept, as of the last window of about a second.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Promises {
    /// Name of this server in placements; none if any placement is for it.
    pub server: Option<String>,
    /// By what the cache is shared: `resctrl` or `none`.
    pub cache: String,
    /// Whether packets above a promised rate are dropped at the entry.
    pub policing: bool,
    /// Whether instances keep their part of a core, whatever load the others have.
    pub isolation: bool,
    /// Length of the last window, in seconds; 0 before there was one.
    pub window_s: f64,
    /// What is lacking, in words.
    pub notes: Vec<String>,
    /// What was decided about SLOs on demand, the last decision last.
    #[serde(default)]
    pub decisions: Vec<Decided>,
    /// The promises, by name.
    pub promises: Vec<Promise>,
}

/// A decision about an SLO on demand.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Decided {
    /// How long ago, in seconds.
    pub age_s: f64,
    /// Name of the SLO.
    pub slo: String,
    /// What, in words.
    pub what: String,
}

/// How an SLO on demand is steered.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Steered {
    /// Ways of instances that have a cache class of their own, by instance.
    pub own_ways: BTreeMap<String, u32>,
    /// Ways of the class that all others share; none if there is no such class.
    pub shared_ways: Option<u32>,
    /// Packets per second that are let in; none lets all in.
    pub limit_pps: Option<f64>,
    /// Instances that it should have and that this server cannot give.
    pub asks_for: Option<Asked>,
    /// What is done about its latency, while that is not kept: `wait`, `share`, `ask` or `police`.
    pub remedy: Option<Remedy>,
}

/// Instances that are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Asked {
    /// How many the SLO should have, on all servers.
    pub instances: u32,
    /// Why there are not so many here.
    pub why: String,
}

/// How a promise is kept.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Promise {
    /// Name of the SLO, and of its chain.
    pub slo: String,
    /// The services of its instances.
    pub services: Vec<String>,
    /// The NFs of its instances.
    pub nfs: Vec<String>,
    /// Packets per second that are promised on this server; none on demand.
    pub promised_pps: Option<f64>,
    /// Promised 95th percentile of latency, in microseconds.
    pub promised_us: f64,
    /// Packets that may come at once; none if nothing is policed.
    pub burst: Option<u64>,
    /// Packets per second that came.
    pub offered_pps: f64,
    /// Packets per second of these that were dropped because they were too many.
    pub policed_pps: f64,
    /// Packets per second that its NFs were done with.
    pub delivered_pps: f64,
    /// 95th percentile of latency in microseconds, if enough packets were timed.
    pub latency_us: Option<f64>,
    /// Cores that it was given; parts of them where several share one.
    pub part: f64,
    /// Cores that its NFs used.
    pub cpu: f64,
    /// Ways of its cache classes; 0 in the shared class.
    pub ways: u32,
    /// Bytes that it has in the cache, where that is counted.
    pub occupancy_bytes: Option<u64>,
    /// Packets dropped because they were too many, ever.
    pub policed: u64,
    /// Windows since it was promised.
    pub windows: u64,
    /// Of these, the ones in which its throughput was not kept.
    pub throughput_violated: u64,
    /// Of these, the ones in which its latency was not kept, and no more than its rate came to its NFs.
    pub latency_violated: u64,
    /// Of these, the ones in which it sent more than was promised.
    pub exceeded: u64,
    /// Whether it sends more than was promised.
    pub excess: Option<Excess>,
    /// What is not kept.
    pub violations: Vec<Violation>,
    /// How it is steered; none if it is reserved.
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

/// How receive queues of NICs are bounded, so that packets are still cached when they are read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Buffers {
    /// Most packets that wait in each queue; none if nothing bounds them.
    pub per_queue: Option<u32>,
    /// By what: `given` (`memory.rx_frames`), the number of I/O ways: `ways` (`memory.io_ways`), `register` or `resctrl`; or `burst`, where these have less room.
    pub by: Option<String>,
    /// Why nothing bounds them, or what to look at, in words.
    pub why: Option<String>,
    /// Receive queues of all NICs.
    pub queues: u32,
    /// Ways of the last-level cache that devices write into, where they are known.
    pub ways: Option<u32>,
    /// Bytes of a way.
    pub way_bytes: Option<u64>,
    /// Bytes that a packet takes of them at most.
    pub frame_bytes: Option<u64>,
}
