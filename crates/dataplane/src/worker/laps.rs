//! How many NFs of a core page share the core, how long they take for a lap, and whether they move.
//!
//! A look of the thread checks some NFs of a crowded page, one group after another, and the core
//! goes from NF to NF in the same order. So for many looks in a row the thread may see none that
//! has moved, although all do: as a film shows a wheel at rest. And hundreds of switches with cold
//! caches take longer than the round that the NFs share, which counts their own time alone. So on
//! such a page these numbers say whether the NFs move, and how long one may wait for its turn.

/// Nanoseconds for each NF that the last one may wait at most: the longest turn of each, and its
/// switch.
pub(super) const LONGEST_TURN_NS: u64 = 400_000;

#[derive(Debug, Clone, Copy, Default)]
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
    /// What all NFs had moved when that was counted last.
    pulse: u64,
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
            (self.began_ns, self.moved, self.last_ns) = (now, 0, now - self.began_ns);
        }
    }

    /// Nanoseconds that a lap takes.
    pub(super) fn lap_ns(&self, now: u64) -> u64 {
        self.last_ns.max(now - self.began_ns)
    }

    /// Whether any NF has moved since this was asked last. `pulse` is the sum of what they moved.
    pub(super) fn beats(&mut self, pulse: u64) -> bool {
        std::mem::replace(&mut self.pulse, pulse) != pulse
    }
}
