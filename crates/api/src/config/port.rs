//! The kinds of port, and what each can do, asked by all that handle ports alike.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AfPacket, AfXdp, Dpdk, Gen, Pcap, PcapSpeed, Sink};

/// Kinds of port. A new kind needs a variant, its settings and its match arms here, and a module of
/// `crates/ports` with its lines in `lib.rs` there.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum PortKind {
    /// Generates traffic.
    Gen(Gen),
    /// Drops packets, and measures what [`Gen`] wrote into them.
    Sink(Sink),
    /// Reads and writes capture files.
    Pcap(Pcap),
    /// Any DPDK device.
    Dpdk(Dpdk),
    /// A network interface of the kernel, without DPDK.
    #[serde(rename = "af_packet")]
    AfPacket(AfPacket),
    /// A network interface of the kernel, past the kernel's network stack.
    #[serde(rename = "af_xdp")]
    AfXdp(AfXdp),
}

impl PortKind {
    /// Its name in a configuration.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Gen(_) => "gen",
            Self::Sink(_) => "sink",
            Self::Pcap(_) => "pcap",
            Self::Dpdk(_) => "dpdk",
            Self::AfPacket(_) => "af_packet",
            Self::AfXdp(_) => "af_xdp",
        }
    }

    /// Why no packet ever enters here; none if packets may.
    pub fn no_input(&self) -> Option<&'static str> {
        match self {
            Self::Sink(_) => Some("is a sink"),
            Self::Pcap(pcap) if pcap.read.is_none() => Some("has no file to read"),
            Self::Gen(_) | Self::Pcap(_) | Self::Dpdk(_) | Self::AfPacket(_) | Self::AfXdp(_) => None,
        }
    }

    /// Why no packet can leave here, and what to do instead; none if packets can.
    pub fn no_output(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Gen(_) => Some(("only generates", "name a port of kind \"sink\", which takes all, or one that leads somewhere")),
            Self::Pcap(pcap) if pcap.write.is_none() => {
                Some(("has no file to write", "give that port `write = \"FILE\"`, or name another port"))
            }
            Self::Sink(_) | Self::Pcap(_) | Self::Dpdk(_) | Self::AfPacket(_) | Self::AfXdp(_) => None,
        }
    }

    /// Packets per second that enter by its settings; none if that is not up to them.
    pub fn rate_pps(&self) -> Option<f64> {
        match self {
            Self::Gen(settings) => Some(settings.rate).filter(|rate| *rate > 0.0),
            Self::Pcap(settings) => Some(settings.rate).filter(|_| settings.speed == PcapSpeed::Rate),
            Self::Sink(_) | Self::Dpdk(_) | Self::AfPacket(_) | Self::AfXdp(_) => None,
        }
    }

    /// Whether it uses something of the host: a file, an interface or a device.
    pub fn is_of_host(&self) -> bool {
        match self {
            Self::Pcap(_) | Self::Dpdk(_) | Self::AfPacket(_) | Self::AfXdp(_) => true,
            Self::Gen(_) | Self::Sink(_) => false,
        }
    }

    /// Whether packets for it wait as long as they must, as for a disk, and are not dropped.
    pub fn output_waits(&self) -> bool {
        matches!(self, Self::Pcap(_))
    }

    /// Whether it receives into one arena for good, which it is given when it is opened.
    pub fn has_fixed_memory(&self) -> bool {
        matches!(self, Self::Dpdk(_) | Self::AfXdp(_))
    }
}
