//! What is asked and reported of single packets: traces and captures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The paths of sampled packets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Trace {
    /// The packets, in the order in which their paths ended.
    pub packets: Vec<TracedPacket>,
    /// Whether the time expired before the requested number was seen.
    #[serde(default)]
    pub timed_out: bool,
}

/// The path of one packet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct TracedPacket {
    /// Its chain; none if no rule matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// Its length at the entry, in bytes.
    #[serde(default)]
    pub bytes: u32,
    /// Its first bytes at the entry, as hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub packet: String,
    /// The points that it passed, in order.
    pub hops: Vec<Hop>,
    /// `sent to PORT`, or `dropped: REASON`.
    pub outcome: String,
}

/// A point that a packet passed, and when.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Hop {
    /// The point, such as `port in0`, `rule web`, `nf fw.0`, `port out0`.
    #[serde(rename = "where")]
    pub place: String,
    /// Nanoseconds since its entry.
    pub ns: u64,
}

/// Body of `POST /v1/trace`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// Only packets of this chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// Only packets that this rule classifies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Only packets that come in at this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Only packets that this program accepts by their first 256 bytes, in the units of
    /// [`CaptureRequest::filter`]. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Instruction>,
    /// Number of packets.
    #[schemars(range(min = 1, max = MAX_TRACED))]
    #[serde(default = "ten")]
    pub count: u32,
    /// Longest wait for them, in milliseconds.
    #[schemars(range(min = 1, max = MAX_TRACE_MS))]
    #[serde(default = "five_seconds")]
    pub timeout_ms: u64,
}

/// Most packets of one [`TraceRequest`].
pub const MAX_TRACED: u32 = 1024;

/// Longest wait of one [`TraceRequest`], in milliseconds.
pub const MAX_TRACE_MS: u64 = 60_000;

fn ten() -> u32 {
    10
}

fn five_seconds() -> u64 {
    5_000
}

impl Default for TraceRequest {
    fn default() -> Self {
        Self { chain: None, rule: None, port: None, filter: Vec::new(), count: ten(), timeout_ms: five_seconds() }
    }
}

/// Body of `POST /v1/captures`. The answer is a stream of pcapng, which ends with the capture.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Only packets of this chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// Only packets at these hops: `NF:in`, `NF:out`, `port:NAME` or `drop`; none: at all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<String>,
    /// Only packets that this program accepts; none: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Instruction>,
    /// Ends after this many packets.
    #[schemars(range(min = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Ends after this many milliseconds.
    #[schemars(range(min = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Of this many packets in each packet thread one is captured, before the filter.
    #[schemars(range(min = 1))]
    #[serde(default = "one")]
    pub sample: u32,
    /// Most packets of each kind in each packet thread, before the filter: those at one hop, of one
    /// chain, dropped for one reason at one place; none: all.
    #[schemars(range(min = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each: Option<u32>,
    /// Most bytes that are captured of a packet.
    #[schemars(range(min = 1))]
    #[serde(default = "whole")]
    pub snaplen: u16,
}

/// An instruction of classic BPF, as libpcap compiles filters to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// Instructions to skip if a comparison holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// Its constant.
    pub k: u32,
}

/// Most captures at a time.
pub const MAX_CAPTURES: usize = 8;

fn one() -> u32 {
    1
}

fn whole() -> u16 {
    u16::MAX
}

impl Default for CaptureRequest {
    fn default() -> Self {
        Self {
            chain: None,
            hops: Vec::new(),
            filter: Vec::new(),
            count: None,
            duration_ms: None,
            sample: one(),
            each: None,
            snaplen: whole(),
        }
    }
}
