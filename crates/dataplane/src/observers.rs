//! What looks at packets on their way: traces and captures.

use std::sync::Arc;

use sluice_shm::arena::Arena;

use crate::capture::{CaptureScope, Sight, Tap};
use crate::frame::InFrame;
use crate::trace::TraceRequest;

/// A packet thread's observers. It has none of these while nothing looks.
#[derive(Debug, Default)]
pub struct Observers {
    /// The active trace.
    pub trace: Option<Arc<TraceRequest>>,
    /// Its taps of the active captures.
    pub taps: Vec<Tap>,
}

impl Observers {
    /// Itself, unless it is empty.
    pub(crate) fn unless_empty(self: Box<Self>) -> Option<Box<Self>> {
        (self.trace.is_some() || !self.taps.is_empty()).then_some(self)
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

    /// As [`show`].
    #[cold]
    #[inline(never)]
    pub(crate) fn show<T: InFrame>(&mut self, arena: &Arena, at_ns: u64, sight: &Sight<'_>, packets: &[T]) {
        for tap in &mut self.taps {
            tap.show(arena, at_ns, sight, packets);
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
