//! Traces: the hops of packets that somebody asked for.

use std::sync::atomic::{AtomicI64, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::chain::DropReason;

/// One hop of a traced packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// Which packet: the time when it entered, in nanoseconds, and its frame.
    pub packet: (u64, u32),
    /// Number of its path; none if it was dropped before it had one.
    pub path: Option<u32>,
    /// What happened.
    pub what: TraceWhat,
    /// When, in nanoseconds.
    pub at_ns: u64,
    /// Length of the packet, in bytes; 0 if it was lost with its NF.
    pub len: u16,
}

/// What happened to a traced packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceWhat {
    /// It was put on the ring of this NF.
    ToNf(u16),
    /// This NF returned it.
    FromNf(u16),
    /// It went to this port.
    ToPort(u16),
    /// It went into this NF, which a [feeder](crate::hooks::Feeder) reads the rings for.
    WentIn(u16),
    /// One that ends as it does came out of this NF, and is in this frame.
    CameOut(u16, u32),
    /// None that ends as it does came out of this NF, or more than one may have.
    LostSight(u16),
    /// It was copied into the memory of another tenant, and is in this frame.
    Crossed(u32),
    /// It was dropped.
    Dropped(DropReason),
    /// It was dropped at the entry.
    Refused {
        /// Number of the port where it came in.
        ingress: u16,
        /// Number of its chain; none if nothing says which.
        chain: Option<u16>,
        /// Why, as statistics name it.
        why: &'static str,
    },
}

impl TraceWhat {
    /// Whether it is the last that is known of a packet.
    pub fn is_end(self) -> bool {
        matches!(self, Self::ToPort(_) | Self::LostSight(_) | Self::Dropped(_) | Self::Refused { .. })
    }
}

/// What is known of a sampled or traced packet that goes into a program, so that it can go on as such when it comes out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// Its marks; 0 of a packet without.
    pub flags: u8,
    /// The frame that it went in from.
    pub frame: u32,
    /// Its length, in bytes.
    pub len: u16,
    /// Number of its path.
    pub path: u32,
    /// When it entered its path, in nanoseconds.
    pub entered_ns: u64,
}

/// What a trace is asked for.
#[derive(Debug)]
pub struct TraceRequest {
    /// Packets of this chain only.
    pub chain: Option<u16>,
    /// Packets only that this rule matches first: its place among the rules.
    pub rule: Option<usize>,
    /// How many packets are still to be picked.
    pub left: AtomicI64,
    /// Where the hops are told. When it is full, hops are missing.
    pub events: ArrayQueue<TraceEvent>,
}

impl TraceRequest {
    /// Whether packets are still to be picked.
    pub(crate) fn wants_more(&self) -> bool {
        // Relaxed, here and below: it is a number alone, and nothing is published by it.
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Picks a packet, if one is still to be picked.
    pub(crate) fn pick(&self) -> bool {
        self.wants_more() && self.left.fetch_sub(1, Ordering::Relaxed) > 0
    }
}
