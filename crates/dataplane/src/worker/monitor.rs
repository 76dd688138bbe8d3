//! The Monitor role: finds NFs that stand still.

use std::sync::atomic::Ordering;

use super::Worker;
use crate::handle::StopReason;

/// Nanoseconds between two rounds of the Monitor role.
pub(super) const MONITOR_NS: u64 = 1_000_000;
/// Nanoseconds between rounds for each NF; with many NFs, a round takes a good part of a core.
pub(super) const MONITOR_NF_NS: u64 = 2_000;
/// Nanoseconds, or four usual periods, by which a late Monitor shows that it lost its core.
const FROZEN_NS: u64 = 250_000_000;

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Progress {
    pub(super) returned: u64,
    pub(super) since_ns: u64,
    /// Slices that it had had, if it is scheduled from outside.
    pub(super) slices: u64,
}

impl Worker {
    /// Stops NFs that have packets and make no progress for too long.
    #[cold]
    pub(super) fn monitor(&mut self, now: u64) {
        let plane = &mut self.setup.plane;
        let n = plane.nfs.len();
        // A new NF has stood still since now, not since the clock began.
        self.progress.resize(n, Progress { returned: 0, since_ns: now, slices: 0 });
        let usual_ns = MONITOR_NS.max(n as u64 * MONITOR_NF_NS);
        if now.saturating_sub(std::mem::replace(&mut self.monitored_ns, now)) > FROZEN_NS.max(4 * usual_ns) {
            // Time in which nothing could run does not count.
            self.progress.iter_mut().for_each(|progress| progress.since_ns = now);
        }
        for (number, end) in plane.nfs.iter().enumerate() {
            let Some(end) = end else { continue };
            if !self.setup.measures.has(number) {
                continue;
            }
            let handle = &end.handle;
            let (posted, returned) = handle.posted_returned();
            let progress = &mut self.progress[number];
            if progress.returned != returned || posted <= returned {
                *progress = Progress { returned, since_ns: now, slices: progress.slices };
                continue;
            }
            if [&handle.gate.held, &handle.is_behind, &handle.is_held_up].iter().any(|word| word.load(Ordering::Relaxed)) {
                // It stands still because it is held, or waits for old packets, or for a port.
                *progress = Progress { returned, since_ns: now, slices: progress.slices };
                continue;
            }
            let slices = handle.load.slices.load(Ordering::Relaxed);
            if handle.governed.load(Ordering::Relaxed) && progress.slices == slices {
                // It waits for its slice, or this one has only begun.
                *progress = Progress { returned, since_ns: now, slices };
                continue;
            }
            let stood_ns = now.saturating_sub(progress.since_ns);
            let is_too_long = self.setup.settings.stall_ms > 0 && stood_ns > self.setup.settings.stall_ms * 1_000_000;
            if is_too_long && !handle.was_never_woken(progress.since_ns) {
                handle.ask_to_stop(StopReason::Stalled);
            }
        }
    }
}
