//! What looks at packets on their way: traces, captures and a meter of flows.

use std::sync::Arc;

use sluice_shm::arena::Arena;

use crate::capture::{CaptureScope, Point, Sight, Tap};
use crate::chain::Path;
use crate::frame::{InFrame, Packet};
use crate::meter::{FlowMeter, MeteredFlows};
use crate::trace::TraceRequest;

/// A packet thread's observers. It has none of these while nothing looks.
#[derive(Debug, Default)]
pub struct Observers {
    /// The active trace.
    pub trace: Option<Arc<TraceRequest>>,
    /// Its taps of the active captures.
    pub taps: Vec<Tap>,
    /// Its meter of flows.
    pub meter: Option<Box<FlowMeter>>,
}

impl Observers {
    /// Itself, unless it is empty.
    pub(crate) fn unless_empty(self: Box<Self>) -> Option<Box<Self>> {
        (self.trace.is_some() || !self.taps.is_empty() || self.meter.is_some()).then_some(self)
    }

    /// Takes the tap of a capture out.
    pub(crate) fn end(&mut self, capture: &Arc<CaptureScope>) -> Option<Tap> {
        let at = self.taps.iter().position(|tap| tap.is_of(capture))?;
        Some(self.taps.swap_remove(at))
    }

    /// Shows a packet of `len` bytes that lies in no frame, of which these are first.
    pub(crate) fn show_bytes(&mut self, at_ns: u64, sight: &Sight<'_>, len: u16, bytes: &[u8]) {
        self.taps.iter_mut().for_each(|tap| tap.show_bytes(at_ns, sight, len, bytes));
    }

    /// Takes the meter of these flows out.
    pub(crate) fn end_meter(&mut self, flows: &Arc<MeteredFlows>) -> Option<Box<FlowMeter>> {
        self.meter.take_if(|meter| meter.is_of(flows))
    }

    /// Counts packets that were received, for their flows.
    #[inline(never)]
    pub(crate) fn meter(&mut self, arena: &Arena, at_ns: u64, sight: &Sight<'_>, packets: &[Packet]) {
        if let Some(meter) = &mut self.meter {
            meter.count(arena, at_ns, sight, packets);
        }
    }

    /// Notes the flow of a packet that came in at a port at `since_ns` and is timed.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_timing(&mut self, arena: &Arena, ingress: u16, packet: Packet, since_ns: u64) {
        if let Some(meter) = &mut self.meter {
            meter.begin_timing(arena, ingress, packet, since_ns);
        }
    }

    /// Notes that a packet that is timed lies in another frame now.
    #[cold]
    #[inline(never)]
    pub(crate) fn move_timing(&mut self, from: u32, to: u32) {
        if let Some(meter) = &mut self.meter {
            meter.move_timing(from, to);
        }
    }

    /// Records the latency of the packet in a frame that came in at `since_ns`, for its flow.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_timing(&mut self, frame: u32, since_ns: u64, took_ns: u64) {
        if let Some(meter) = &mut self.meter {
            meter.end_timing(frame, since_ns, took_ns);
        }
    }

    /// Ends flows that are over, among the next `budget`.
    #[cold]
    pub(crate) fn age(&mut self, now_ns: u64, budget: usize) {
        if let Some(meter) = &mut self.meter {
            meter.age(now_ns, budget);
        }
    }

    /// As [`show_on`]. What it needs is made here, and not on the way of the packets.
    #[cold]
    #[inline(never)]
    fn show_on<T: InFrame>(&mut self, arena: &Arena, at_ns: u64, path: &Path, point: Point, packets: &[T]) {
        self.show(arena, at_ns, &Sight::on(path, point), packets);
    }

    /// As [`show`].
    #[cold]
    #[inline(never)]
    pub(crate) fn show<T: InFrame>(&mut self, arena: &Arena, at_ns: u64, sight: &Sight<'_>, packets: &[T]) {
        for tap in &mut self.taps {
            tap.show(arena, at_ns, sight, packets);
        }
        if let (Some(meter), Some(why)) = (&mut self.meter, sight.why) {
            meter.lose(arena, at_ns, sight, why, packets);
        }
    }
}

/// Shows packets in this thread's hands to the captures, if there are any.
#[inline(always)]
pub(crate) fn show<T: InFrame>(
    observers: &mut Option<Box<Observers>>,
    arena: &Arena,
    at_ns: u64,
    sight: &Sight<'_>,
    packets: &[T],
) {
    if let Some(observers) = observers {
        observers.show(arena, at_ns, sight, packets);
    }
}

/// As [`show`], for packets of a path at a point: what is known of them is gathered only if there
/// are captures.
#[inline(always)]
pub(crate) fn show_on<T: InFrame>(
    observers: &mut Option<Box<Observers>>,
    arena: &Arena,
    at_ns: u64,
    path: &Path,
    point: Point,
    packets: &[T],
) {
    if let Some(observers) = observers {
        observers.show_on(arena, at_ns, path, point, packets);
    }
}
