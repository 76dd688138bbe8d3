//! How long a packet takes in an NF: a moving median.
//!
//! # Problem
//! The cost of a packet decides how much CPU an NF needs. It varies: an interrupt or a preemption in the middle of a sampled burst
//! makes one sample a hundred times too long, and a mean would carry that for the whole window.
//!
//! # Terms and units
//! *Sample*: service time of one packet in nanoseconds, the time of a burst by its packets. *Window*: how long a sample counts, in
//! nanoseconds.
//!
//! # Approach
//! The samples of the window are kept in order of time and in order of size. The median of an even number is the mean of the two in
//! the middle. A window without samples gives the last median there was: an NF that got no packets, or no CPU, costs what it did.
//!
//! # Limits
//! At most [`MOST`] samples are kept; the oldest makes room. With one sample a millisecond, a window of 100 ms holds 100. Adding is
//! linear in the samples, some tens of nanoseconds. Nothing is allocated after [`MovingMedian::new`].
//!
//! Source: NFVnice, section 3.2 and 4.2: samples once a millisecond, the median over a moving window of 100 ms.

use std::collections::VecDeque;

/// Most samples that are kept.
pub const MOST: usize = 256;

/// The moving median of one NF's service time.
#[derive(Debug, Clone)]
pub struct MovingMedian {
    window_ns: u64,
    /// Time and value, oldest first.
    in_time: VecDeque<(u64, u64)>,
    /// The same values, smallest first.
    in_size: Vec<u64>,
    last: Option<u64>,
}

impl MovingMedian {
    /// Without samples; `window_ns` is how long a sample counts, 100 ms in the paper.
    pub fn new(window_ns: u64) -> Self {
        Self { window_ns, in_time: VecDeque::with_capacity(MOST), in_size: Vec::with_capacity(MOST), last: None }
    }

    /// Adds a sample: a service time of `value` nanoseconds a packet, taken at `now_ns`. Time does not go back; a sample that claims
    /// to be older than the one before counts as old as that one.
    pub fn add(&mut self, now_ns: u64, value: u64) {
        let now_ns = self.in_time.back().map_or(now_ns, |(latest, _)| now_ns.max(*latest));
        self.expire(now_ns);
        if self.in_time.len() == MOST {
            self.pop();
        }
        self.in_time.push_back((now_ns, value));
        let place = self.in_size.partition_point(|v| *v < value);
        self.in_size.insert(place, value);
        self.last = self.middle();
    }

    /// The median of the samples that are at most one window old, else the last median there was; None before the first sample.
    pub fn median(&mut self, now_ns: u64) -> Option<u64> {
        if self.expire(now_ns) {
            self.last = self.middle().or(self.last);
        }
        self.last
    }

    /// Samples that counted when last asked.
    pub fn len(&self) -> usize {
        self.in_time.len()
    }

    /// Whether no sample counted when last asked.
    pub fn is_empty(&self) -> bool {
        self.in_time.is_empty()
    }

    /// Forgets everything: another process has taken the NF's place.
    pub fn forget(&mut self) {
        self.in_time.clear();
        self.in_size.clear();
        self.last = None;
    }

    /// Drops the samples that are older than a window; says whether there were any.
    fn expire(&mut self, now_ns: u64) -> bool {
        let before = self.in_time.len();
        while self.in_time.front().is_some_and(|(then, _)| now_ns.saturating_sub(*then) > self.window_ns) {
            self.pop();
        }
        self.in_time.len() != before
    }

    fn pop(&mut self) {
        if let Some((_, value)) = self.in_time.pop_front() {
            let place = self.in_size.partition_point(|v| *v < value);
            self.in_size.remove(place);
        }
    }

    fn middle(&self) -> Option<u64> {
        let n = self.in_size.len();
        let upper = *self.in_size.get(n / 2)?;
        Some(if n % 2 == 1 { upper } else { self.in_size[n / 2 - 1].midpoint(upper) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn an_outlier_does_not_move_the_median() {
        let mut m = MovingMedian::new(100 * MS);
        assert_eq!(m.median(0), None);
        // 550 cycles at 2.6 GHz are 211 ns; one burst was preempted for 4 ms, 125 µs a packet.
        for (i, value) in [211, 212, 210, 125_000, 211].into_iter().enumerate() {
            m.add(i as u64 * MS, value);
        }
        assert_eq!(m.median(5 * MS), Some(211));
        // The mean would be 25,168.
        m.add(6 * MS, 213);
        // 210 211 | 211 212 | 213 125000: between 211 and 212.
        assert_eq!(m.median(6 * MS), Some(211));
        m.add(7 * MS, 215);
        assert_eq!(m.median(7 * MS), Some(212));
    }

    #[test]
    fn a_change_shows_after_half_a_window() {
        let mut m = MovingMedian::new(100 * MS);
        (0..200).for_each(|t| m.add(t * MS, 100));
        // The window is closed at both ends: 101 samples.
        assert_eq!(m.len(), 101);
        let mut changed = None;
        for t in 200..400 {
            m.add(t * MS, 300);
            if m.median(t * MS) == Some(300) && changed.is_none() {
                changed = Some(t);
            }
        }
        // 51 of 101.
        assert_eq!(changed, Some(250));
    }

    #[test]
    fn samples_grow_old_and_the_last_median_stays() {
        let mut m = MovingMedian::new(100 * MS);
        m.add(0, 10);
        m.add(50 * MS, 20);
        m.add(60 * MS, 30);
        assert_eq!(m.median(100 * MS), Some(20));
        assert_eq!(m.median(101 * MS), Some(25));
        assert_eq!(m.median(155 * MS), Some(30));
        assert_eq!((m.median(500 * MS), m.len()), (Some(30), 0));
        m.forget();
        assert_eq!((m.median(501 * MS), m.is_empty()), (None, true));
    }

    #[test]
    fn time_that_goes_back_and_large_numbers_do_no_harm() {
        let mut m = MovingMedian::new(10);
        m.add(100, u64::MAX);
        m.add(5, u64::MAX - 2);
        assert_eq!((m.median(0), m.len()), (Some(u64::MAX - 1), 2));
        assert_eq!((m.median(111), m.len()), (Some(u64::MAX - 1), 0));
    }

    #[test]
    fn the_number_of_samples_is_bounded_and_agrees_with_sorting() {
        let mut m = MovingMedian::new(u64::MAX);
        let mut all = Vec::new();
        let mut z = 1u64;
        for t in 0..2 * MOST as u64 {
            z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            all.push(z >> 50);
            m.add(t, z >> 50);
            let mut kept: Vec<u64> = all.iter().rev().take(MOST).copied().collect();
            kept.sort_unstable();
            let (a, b) = (kept[(kept.len() - 1) / 2], kept[kept.len() / 2]);
            assert_eq!(m.median(t), Some(a.midpoint(b)));
        }
        assert_eq!(m.len(), MOST);
    }
}
