//! How many NFs of a core page share the core, and how long they take for a lap: a turn of each.
//!
//! On a page with hundreds of NFs, switches with cold caches take longer than the round that the
//! NFs share, which counts their own time alone. So an NF there may wait for some laps, as they are
//! measured. A liar can make a lap longer, but not longer than [`LONGEST_TURN_NS`] for each NF.

/// Most nanoseconds of a lap for each NF that shares the core. An NF waits for three laps, so turns
/// of three times this are not yet too long.
const LONGEST_TURN_NS: u64 = 150_000;

#[derive(Debug, Default)]
pub(super) struct Laps {
    /// NFs that have packets or moved lately: their number, and their sum of shares, of
    /// [`WHOLE`](sluice_shm::core_page::WHOLE). Counted anew in each circle of looks.
    pub(super) takers: (u32, u32),
    counting: (u32, u32),
    /// When this lap began, and NFs that were seen to have moved since.
    began_ns: u64,
    moved: u32,
    /// How long the last lap took.
    last_ns: u64,
}

impl Laps {
    /// Begins anew: the thread did not run.
    pub(super) fn restart(&mut self, now: u64) {
        (self.began_ns, self.moved, self.last_ns) = (now, 0, 0);
    }

    /// Counts an NF with this share that has packets, or moved lately.
    #[inline]
    pub(super) fn count_taker(&mut self, share: u32) {
        self.counting = (self.counting.0 + 1, self.counting.1.saturating_add(share));
    }

    /// Counts an NF that has moved since the last look at it.
    #[inline]
    pub(super) fn count_moved(&mut self) {
        self.moved += 1;
    }

    /// All have been looked at. A lap is over when as many have moved as share the core.
    pub(super) fn end_circle(&mut self, now: u64) {
        self.takers = std::mem::take(&mut self.counting);
        if self.moved >= self.takers.0 {
            let lap_ns = now.saturating_sub(self.began_ns);
            (self.began_ns, self.moved, self.last_ns) = (now, 0, lap_ns);
        }
    }

    /// Nanoseconds that a lap takes.
    pub(super) fn lap_ns(&self, now: u64) -> u64 {
        let most_ns = u64::from(self.takers.0) * LONGEST_TURN_NS;
        self.last_ns.max(now.saturating_sub(self.began_ns)).min(most_ns)
    }
}
