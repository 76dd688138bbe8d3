//! Pacing: how many packets are due at a rate.
//!
//! The number is computed from the time since the first call, never by adding up intervals. So
//! nothing drifts: it is right to the packet at any time (up to 2⁵³ packets). A late caller finds
//! at most [`BEHIND`] packets due. The rest is skipped and counted, because a burst that makes up
//! for a pause would measure the pause and not the path.

use std::sync::Arc;

use sluice_dataplane::queue::QueueCounters;

/// Most packets that are made up for after a delay.
pub const BEHIND: u64 = 32;

#[derive(Debug, Clone)]
pub struct Pacer {
    per_ns: f64,
    start_ns: Option<u64>,
    sent: u64,
    skipped: u64,
    counters: Option<Arc<QueueCounters>>,
}

impl Pacer {
    /// A pacer for a rate in packets per second, above 0. The first packet is due at once.
    pub fn new(rate: f64) -> Self {
        Self { per_ns: rate / 1e9, start_ns: None, sent: 0, skipped: 0, counters: None }
    }

    /// Goes over to another rate: from the next call on, as a new pacer. What it has skipped stays.
    pub fn change(&mut self, rate: f64) {
        (self.per_ns, self.start_ns, self.sent) = (rate / 1e9, None, 0);
    }

    pub fn count_with(&mut self, counters: &Arc<QueueCounters>) {
        self.counters = Some(counters.clone());
    }

    /// Packets that may be sent now, at most [`BEHIND`].
    #[inline]
    pub fn due(&mut self, now_ns: u64) -> u64 {
        let start = *self.start_ns.get_or_insert(now_ns);
        let total = (now_ns.saturating_sub(start) as f64 * self.per_ns) as u64 + 1;
        let due = total.saturating_sub(self.sent);
        if due > BEHIND {
            self.sent += due - BEHIND;
            self.skipped += due - BEHIND;
            if let Some(counters) = &self.counters {
                counters.skipped.add(due - BEHIND);
            }
            return BEHIND;
        }
        due
    }

    /// Records that `n` of the due packets were sent.
    #[inline(always)]
    pub fn sent(&mut self, n: u64) {
        self.sent += n;
    }

    /// Packets that were due while the caller was away, and were never sent.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_rate_is_exact_and_no_burst_is_large(rate in 1e3f64..5e7, steps in proptest::collection::vec(1u64..3000, 1..300)) {
            let mut pacer = Pacer::new(rate);
            let (mut now, mut sent) = (1_000_000_007, 0);
            let start = now;
            prop_assert_eq!(pacer.due(now), 1);
            for step in steps {
                now += step;
                let due = pacer.due(now);
                prop_assert!(due <= BEHIND);
                pacer.sent(due);
                sent += due;
            }
            let exact = (now - start) as f64 * rate / 1e9 + 1.0;
            prop_assert!(((sent + pacer.skipped()) as f64 - exact).abs() <= 1.0, "{} for {}", sent + pacer.skipped(), exact);
        }
    }

    #[test]
    fn a_day_does_not_drift() {
        let mut pacer = Pacer::new(14_880_952.0);
        pacer.due(5);
        let day = 86_400_000_000_000;
        pacer.due(5 + day);
        // The caller is exactly 32 behind at the end of the day.
        assert_eq!(pacer.skipped(), 14_880_952 * 86_400 + 1 - BEHIND);
    }

    #[test]
    fn another_rate_begins_anew_and_forgets_nothing_that_was_skipped() {
        let mut pacer = Pacer::new(1e6);
        pacer.due(0);
        assert_eq!((pacer.due(1_000_000), pacer.skipped()), (BEHIND, 1001 - BEHIND));
        pacer.change(1e3);
        assert_eq!(pacer.due(2_000_000), 1);
        pacer.sent(1);
        assert_eq!([pacer.due(2_500_000), pacer.due(4_100_000)], [0, 2]);
        assert_eq!(pacer.skipped(), 1001 - BEHIND);
    }

    #[test]
    fn what_is_skipped_counts_for_others_too() {
        let (mut pacer, counters) = (Pacer::new(1e6), Arc::default());
        pacer.count_with(&counters);
        pacer.due(0);
        pacer.due(1_000_000);
        assert_eq!((counters.skipped.get(), pacer.skipped()), (1001 - BEHIND, 1001 - BEHIND));
    }

    #[test]
    fn time_that_stands_or_goes_back_gives_nothing_twice() {
        let mut pacer = Pacer::new(1e6);
        assert_eq!(pacer.due(10_000), 1);
        pacer.sent(1);
        assert_eq!(pacer.due(10_000), 0);
        assert_eq!(pacer.due(9_000), 0);
        assert_eq!(pacer.due(12_000), 2);
    }
}
