//! Traces: the recorded hops of selected packets.

use std::sync::atomic::{AtomicI64, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::chain::DropReason;
use crate::classify::key::LONG;
use crate::frame::kind_of;

/// One hop of a traced packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// The packet: its entry time in nanoseconds, and its frame.
    pub packet: (u64, u32),
    /// Number of its path; `None` if it was dropped before it had one.
    pub path: Option<u32>,
    /// What happened.
    pub what: TraceWhat,
    /// Time, in nanoseconds.
    pub at_ns: u64,
    /// Length of the packet in bytes; 0 if it was lost with its NF.
    pub len: u16,
}

/// What happened to a traced packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceWhat {
    /// It was put on the ring of this NF.
    ToNf(u16),
    /// This part of this NF, a group, returned it, by the group's own account.
    FromPart(u16, u8),
    /// This NF returned it.
    FromNf(u16),
    /// It went to this port.
    ToPort(u16),
    /// It went into this NF, whose rings a [feeder](crate::hooks::Feeder) reads.
    WentIn(u16),
    /// A packet with the same ending came out of this NF, in this frame.
    CameOut(u16, u32),
    /// No packet with the same ending came out of this NF, or it is ambiguous.
    LostSight(u16),
    /// It was copied into another tenant's memory, in this frame.
    Crossed(u32),
    /// It was dropped.
    Dropped(DropReason),
    /// It was dropped at the entry.
    Refused {
        /// Number of its ingress port.
        ingress: u16,
        /// Number of its chain, if it is known.
        chain: Option<u16>,
        /// The reason, as in statistics.
        why: &'static str,
    },
}

impl TraceWhat {
    /// Whether it is the last event of a packet.
    pub fn is_end(self) -> bool {
        matches!(self, Self::ToPort(_) | Self::LostSight(_) | Self::Dropped(_) | Self::Refused { .. })
    }
}

/// The first bytes of a traced packet, as it came in.
#[derive(Debug, Clone, Copy)]
pub struct TraceHead {
    /// The packet, as in its first event.
    pub packet: (u64, u32),
    /// The bytes.
    pub bytes: [u8; LONG],
    /// How many there are.
    pub len: u16,
}

/// The marks of a sampled or traced packet inside a program, restored when it comes out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// Its marks; 0: none.
    pub flags: u8,
    /// The frame from which it went in.
    pub frame: u32,
    /// Its length, in bytes.
    pub len: u16,
    /// Number of its path.
    pub path: u32,
    /// Entry time, in nanoseconds.
    pub entered_ns: u64,
}

impl Mark {
    /// The marks, for a packet whose descriptor has these flags: FRAGMENT and NON_IP.
    pub fn of_kind(self, flags: u8) -> Self {
        Self { flags: self.flags | kind_of(flags), ..self }
    }
}

/// A filter of packets by their bytes.
pub trait PacketTest: std::fmt::Debug + Send + Sync {
    /// Whether it accepts a packet of `len` bytes, of which the first are here.
    fn accepts(&self, packet: &[u8], len: u32) -> bool;
}

/// A request for a trace.
#[derive(Debug)]
pub struct TraceRequest {
    /// Trace only packets of this chain.
    pub chain: Option<u16>,
    /// Trace only packets whose first match is this rule, by index.
    pub rule: Option<usize>,
    /// Trace only packets that came in at this port.
    pub ingress: Option<u16>,
    /// Trace only packets that it accepts by their first [`LONG`] bytes.
    pub filter: Option<Box<dyn PacketTest>>,
    /// Packets left to pick.
    pub left: AtomicI64,
    /// Recorded hops. Further hops are lost while it is full.
    pub events: ArrayQueue<TraceEvent>,
    /// The first bytes of each packet.
    pub heads: ArrayQueue<TraceHead>,
}

impl TraceRequest {
    /// Whether each packet has to be looked at, because it does not cover all of a chain.
    pub(crate) fn is_selective(&self) -> bool {
        (self.rule.is_some() || self.ingress.is_some() || self.filter.is_some()) && self.wants_more()
    }

    /// Whether packets are left to pick.
    pub(crate) fn wants_more(&self) -> bool {
        // Relaxed, here and below: a mere number, which publishes nothing.
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Picks a packet, if any are left to pick.
    pub(crate) fn pick(&self) -> bool {
        self.wants_more() && self.left.fetch_sub(1, Ordering::Relaxed) > 0
    }
}
