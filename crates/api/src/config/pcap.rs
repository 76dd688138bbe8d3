//! Ports that replay and write capture files.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::order::in_order;

/// Capture files.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Pcap {
    /// File to read packets from (pcap or pcapng).
    #[schemars(extend("format" = "path"))]
    pub read: Option<PathBuf>,
    /// File to write packets to: pcapng if its name ends in `.pcapng`, else pcap; nanosecond time
    /// stamps. Packets that a capture held in part keep their original length. A pcapng file has an
    /// interface of its own for packets whose Ethernet header was made.
    #[schemars(extend("format" = "path"))]
    pub write: Option<PathBuf>,
    /// Time stamps of written packets.
    pub times: PcapTimes,
    /// Speed of the replay.
    pub speed: PcapSpeed,
    /// With `speed = "rate"`: packets per second.
    #[schemars(range(min = 0))]
    pub rate: f64,
    /// How many times the file is read; 0 repeats for ever.
    pub repeat: Option<u32>,
}

/// Time stamps of written packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PcapTimes {
    /// When they were written.
    #[default]
    Written,
    /// As in the capture that they were replayed from. Where packets also come from ports of other
    /// kinds, out of foreign programs or from an OpenFlow controller, or tenants have memory of
    /// their own: when they were written.
    Recorded,
}

/// Speed of the replay of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PcapSpeed {
    /// As fast as possible.
    #[default]
    Fast,
    /// At the recorded times.
    Recorded,
    /// At `rate` packets per second.
    Rate,
}
