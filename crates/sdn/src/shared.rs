//! What the agent's thread and others share.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use sluice_dataplane::chain::Chain;
use sluice_dataplane::queue::QueueCounters;

/// A port of the configuration, as shown to the controller.
#[derive(Debug, Clone)]
pub struct PortView {
    pub number: u16,
    pub name: String,
    /// Counters of its queues.
    pub counters: Vec<Arc<QueueCounters>>,
}

/// The ports, and the chains into which entries can send packets.
#[derive(Debug, Clone, Default)]
pub struct Topology {
    pub ports: Vec<PortView>,
    pub chains: Vec<Arc<Chain>>,
}

/// State of the agent that other threads read.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) connected: AtomicBool,
    /// Time of the last change of `connected`, in nanoseconds.
    pub(crate) since_ns: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) packet_ins: AtomicU64,
    /// Packet-ins not sent because the controller does not read.
    pub(crate) unread: AtomicU64,
    pub(crate) flow_mods: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) problem: Mutex<Option<String>>,
}
