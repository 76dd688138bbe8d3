//! What is asked and reported of flows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::packet::Instruction;
use crate::counted::counted;

/// A flow: packets of one ingress port, VLAN, protocol, pair of addresses and pair of ports. A
/// connection has one for each direction.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct FlowReport {
    /// Its number among the flows that have ended, from 1; none if it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Name of the protocol above IP, or its number; of what is not IP the EtherType, as `0x0806`.
    pub protocol: String,
    /// Source address; of what is not IP the MAC address.
    pub src: String,
    /// Source port, if the protocol has ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src_port: Option<u16>,
    /// Destination address.
    pub dst: String,
    /// Destination port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<u16>,
    /// VLAN, if it has a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The port where it comes in.
    pub port: String,
    /// Its chain; none if no packet of it was led to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// The tenant of the chain's services, if they have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The NFs of its path, the first eight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nfs: Vec<String>,
    /// Packets received.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets dropped, wherever.
    pub dropped_packets: u64,
    /// Why the last of them was dropped, as in the statistics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_reason: Option<String>,
    /// Time of its first packet, in nanoseconds since 1970.
    pub first_ns: u64,
    /// Time of its last packet, in nanoseconds since 1970.
    pub last_ns: u64,
    /// State of this direction of a TCP connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpState>,
    /// Average latency of its packets that were timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<u64>,
    /// Longest latency of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_latency_ns: Option<u64>,
    /// Why it has ended, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<FlowEndReason>,
}

/// State of one direction of a TCP connection, by the flags that were seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TcpState {
    /// Only SYN was seen.
    Opening,
    /// Packets flow.
    Open,
    /// FIN was seen.
    Finished,
    /// RST was seen.
    Reset,
}

impl TcpState {
    /// Its word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Open => "open",
            Self::Finished => "finished",
            Self::Reset => "reset",
        }
    }
}

/// Why a flow has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlowEndReason {
    /// It had no packet for `flow_log.idle_ms`.
    Idle,
    /// It goes on as another flow: `flow_log.active_ms` is over.
    Active,
    /// FIN ended it.
    Finished,
    /// RST ended it.
    Reset,
    /// There were more flows than `flow_log.flows`, and this one had no packet for the longest
    /// time. It goes on as another flow if it has one.
    Evicted,
    /// The daemon, or the metering of flows, has stopped.
    Stopped,
}

impl FlowEndReason {
    /// Its word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Active => "active",
            Self::Finished => "finished",
            Self::Reset => "reset",
            Self::Evicted => "evicted",
            Self::Stopped => "stopped",
        }
    }
}

/// What flows are sorted by, the greatest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlowOrder {
    /// The time of the last packet.
    #[default]
    Last,
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
    /// Packets dropped.
    Dropped,
    /// Average latency.
    Latency,
}

/// Body of `POST /v1/flows`. Flows are metered from the first request on, and until a minute after
/// the last one, unless `[flow_log]` has a file or a collector: then they are at all times.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FlowsRequest {
    /// Only flows of this chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// Only flows of chains of this tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Only flows with packets that were dropped (true), or without (false).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<bool>,
    /// Only flows that this program accepts; it is given headers of a packet of the flow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Instruction>,
    /// Whether flows that go on are wanted.
    pub live: bool,
    /// Whether flows that have ended are wanted.
    pub ended: bool,
    /// Only flows that ended after the one of this number, in the order of their ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// What they are sorted by, without `after`.
    pub order: FlowOrder,
    /// Most flows.
    #[schemars(range(min = 1, max = MAX_FLOWS))]
    pub limit: u32,
}

/// Most flows of one [`FlowsRequest`].
pub const MAX_FLOWS: u32 = 10_000;

impl Default for FlowsRequest {
    fn default() -> Self {
        Self {
            chain: None,
            tenant: None,
            dropped: None,
            filter: Vec::new(),
            live: true,
            ended: true,
            after: None,
            order: FlowOrder::Last,
            limit: 100,
        }
    }
}

/// Answer to `POST /v1/flows`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct FlowsReply {
    /// The flows.
    pub flows: Vec<FlowReport>,
    /// The `after` of a request for the flows that end from now on.
    pub next: u64,
    /// Flows that ended after `after` and are not kept any more.
    #[serde(default)]
    pub missed: u64,
    /// What is counted of flows, of all chains.
    pub log: FlowLogCounts,
}

counted! {
/// What is counted of flows since they are metered.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct FlowLogCounts {
    /// Flows that go on now.
    pub live: u64,
    /// Flows that have ended.
    pub ended: u64 => "sluice_flow_log_ended_total",
    /// Flows that have ended and whose record was lost: the flow log did not take it in time.
    pub lost: u64 => "sluice_flow_log_lost_total",
    /// Flows that could not be written to the file of the flow log.
    pub unwritten: u64 => "sluice_flow_log_unwritten_total",
    /// Flows that could not be sent to the collector of the flow log.
    pub unsent: u64 => "sluice_flow_log_unsent_total",
    /// Packets dropped inside a chain whose bytes name no flow: an NF has altered them, or another
    /// packet thread received them.
    pub flowless_drops: u64 => "sluice_flow_log_flowless_drops_total",
    /// Seconds for which flows are metered.
    pub metered_s: f64,
}
}
