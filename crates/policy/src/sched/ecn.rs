//! ECN marks on packets, so that senders slow down before packets are refused.
//!
//! # Problem
//! A sender that supports explicit congestion notification slows down when packets carry the mark
//! "congestion experienced". Marks must follow lasting congestion, and not each burst in a queue.
//!
//! # Terms and units
//! *Queue*: packets in a ring. *Average*: an exponentially weighted moving average of the queue,
//! seen at each arrival of a burst. *Weight*: how much one observation counts, 2^−k. *Threshold*:
//! the average from which packets are marked, in packets.
//!
//! # Approach
//! average += (queue − average) · 2^−k. Packets are marked while the average is at or above the
//! threshold. No arrival observes a queue that stands empty, so the average decays as if as many
//! packets had found it empty as could have been served.
//!
//! # Limits
//! Marks are all or nothing, without RED's probability: senders behind a chain see the same mark at
//! the same time. The caller knows which packets may be marked at all (ECT).
//!
//! Source: RFC 3168, section 5; S. Floyd, V. Jacobson, "Random Early Detection Gateways for
//! Congestion Avoidance", IEEE/ACM Trans. Networking 1(4), 1993, section 4 (average, idle time);
//! NFVnice, section 3.3.

/// k of the usual weight: RED's 0.002 is about 2^−9.
pub const USUAL_SHIFT: u32 = 9;

/// Fractional bits of an average.
const POINT: u32 = 20;

/// Average queue of one ring, and whether its packets are marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    shift: u32,
    /// In packets, with [`POINT`] fractional bits.
    threshold: u64,
    average: u64,
}

impl Marker {
    /// For a ring of `ring` packets: marks from an average of `percent` of it, with k = `shift` ≤
    /// 16.
    pub fn new(ring: u32, percent: u32, shift: u32) -> Self {
        let mut marker = Self { shift: shift.min(16), threshold: 1, average: 0 };
        marker.mark_from(ring, percent);
        marker
    }

    /// Marks from an average of `percent` of a ring of `ring` packets from now on.
    pub fn mark_from(&mut self, ring: u32, percent: u32) {
        let threshold = (u64::from(ring) << POINT).saturating_mul(u64::from(percent)) / 100;
        self.threshold = threshold.max(1);
    }

    /// Observes the queue that an arriving burst meets; returns whether to mark the burst.
    #[inline]
    pub fn should_mark(&mut self, queue: u32) -> bool {
        let queue = u64::from(queue) << POINT;
        if queue >= self.average {
            self.average += (queue - self.average) >> self.shift;
        } else {
            // Rounded up, so that the average of an empty queue reaches 0.
            self.average -= (self.average - queue).div_ceil(1 << self.shift);
        }
        self.average >= self.threshold
    }

    /// Records, before the next arrival, a queue empty for as long as `packets` packets take.
    pub fn idle(&mut self, packets: u64) {
        let kept = 1.0 - 1.0 / f64::from(1u32 << self.shift);
        let kept = kept.powi(i32::try_from(packets).unwrap_or(i32::MAX));
        self.average = (self.average as f64 * kept) as u64;
    }

    /// The average, in packets.
    pub fn average(&self) -> f64 {
        self.average as f64 / f64::from(1u32 << POINT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_exponentially_weighted() {
        let mut m = Marker::new(1000, 50, 2);
        // A quarter of the way each time: 200, 350, 462.5, 546.875.
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push((m.should_mark(800), m.average()));
        }
        assert_eq!(seen, [(false, 200.0), (false, 350.0), (false, 462.5), (true, 546.875)]);
        // And back: 546.875 · 3/4 = 410.15625.
        assert!(!m.should_mark(0));
        assert!((m.average() - 410.15625).abs() < 1e-5);
    }

    #[test]
    fn a_short_burst_is_not_marked_and_a_long_queue_is() {
        let mut m = Marker::new(4096, 40, USUAL_SHIFT);
        // 20 observations of a full ring: 4096 · (1 − (511/512)^20) = 157.
        assert!((0..20).all(|_| !m.should_mark(4096)));
        assert!((m.average() - 157.0).abs() < 1.0, "{}", m.average());
        // ln(1 − 0.4) / ln(511/512) = 261.3 observations until 40 %.
        let more = (21..).find(|_| m.should_mark(4096));
        assert_eq!(more, Some(262));
    }

    #[test]
    fn another_threshold_keeps_the_average() {
        let mut m = Marker::new(1000, 90, 2);
        (0..4).for_each(|_| assert!(!m.should_mark(800)));
        m.mark_from(1000, 50);
        assert_eq!((m.should_mark(800), m.average()), (true, 610.15625));
    }

    #[test]
    fn an_idle_queue_decays_the_average() {
        let mut m = Marker::new(1000, 10, 3);
        (0..200).for_each(|_| _ = m.should_mark(512));
        assert!((m.average() - 512.0).abs() < 0.01);
        // (7/8)^10 = 0.2631.
        m.idle(10);
        assert!((m.average() - 134.7).abs() < 0.1, "{}", m.average());
        m.idle(0);
        assert!((m.average() - 134.7).abs() < 0.1);
        // Equal to ten observations of an empty queue.
        let mut other = m;
        m.idle(5);
        (0..5).for_each(|_| _ = other.should_mark(0));
        assert!((m.average() - other.average()).abs() < 0.001);
        m.idle(u64::MAX);
        assert_eq!(m.average(), 0.0);
    }

    #[test]
    fn the_extremes_are_harmless() {
        // The average of an empty queue reaches 0, and an average of 0 is never marked.
        let mut m = Marker::new(64, 0, 16);
        assert!((0..10).all(|_| !m.should_mark(0)));
        let mut m = Marker::new(u32::MAX, 100, 0);
        assert!(m.should_mark(u32::MAX));
        assert!(!m.should_mark(0));
        assert_eq!(m.average(), 0.0);
        let mut m = Marker::new(100, 50, 40);
        assert!(!m.should_mark(100));
        let mut m = Marker::new(100, 50, 4);
        (0..1000).for_each(|_| _ = m.should_mark(100));
        assert!((0..100_000).any(|_| !m.should_mark(0) && m.average() == 0.0));
    }
}
