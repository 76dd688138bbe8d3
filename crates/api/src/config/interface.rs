//! Interfaces of the kernel as ports.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::order::in_order;

/// A network interface of the kernel, without DPDK.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = in_order::<Self>)]
pub struct AfPacket {
    /// Name of the interface.
    pub interface: String,
    /// Name of its network namespace; by default the daemon's own.
    #[serde(default)]
    pub netns: Option<String>,
    /// Most packets that wait to be received in each queue.
    #[serde(default = "super::slots")]
    #[schemars(range(min = 64, max = 1 << 20))]
    pub slots: u32,
    /// Whether packets for other stations are received too.
    #[serde(default = "super::yes")]
    pub promiscuous: bool,
    /// What happens if the interface is missing when the port is opened: `refuse` refuses the
    /// configuration, `wait` opens the port later. An interface that disappears later is awaited.
    #[serde(default)]
    pub when_missing: WhenMissing,
}

/// A network interface of the kernel, past the kernel's network stack (AF_XDP).
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = in_order::<Self>)]
pub struct AfXdp {
    /// Name of the interface. The port needs as many queues as it has receive queues.
    pub interface: String,
    /// Name of its network namespace; by default the daemon's own.
    #[serde(default)]
    pub netns: Option<String>,
    /// Packets that may wait in each direction of a queue, rounded up to a power of two. That many
    /// frames of packet memory are always set aside for those that come.
    #[serde(default = "xdp_slots")]
    #[schemars(range(min = 64, max = 1 << 15))]
    pub slots: u32,
    /// Whether packets for other stations are received too.
    #[serde(default = "super::yes")]
    pub promiscuous: bool,
    /// What happens if the interface is missing when the port is opened: `refuse` refuses the
    /// configuration, `wait` opens the port later. An interface that disappears later is awaited.
    #[serde(default)]
    pub when_missing: WhenMissing,
}

fn xdp_slots() -> u32 {
    1024
}

/// What happens if a port's interface is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenMissing {
    /// The configuration is refused.
    #[default]
    Refuse,
    /// The port is opened when the interface appears.
    Wait,
}
