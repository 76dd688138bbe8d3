//! Cost of a packet in an NF: a moving median, reported by the NF or seen from outside.
//!
//! # Problem
//! The cost of a packet decides how much CPU an NF needs. It varies: an interrupt or a preemption
//! in the middle of a sampled burst makes one sample a hundred times too long, and a mean would
//! carry that for the whole window. The cost of an NF that reports nothing, or is not trusted, is
//! derived from outside: from the packets that it takes from its ring and the CPU time that it
//! uses. If it polls, that CPU time includes polls of an empty ring.
//!
//! # Terms and units
//! *Sample*: service time of one packet in nanoseconds, the time of a burst divided by its packets.
//! *Window*: how long a sample counts, in nanoseconds. *Waiting*: packets on an NF's ring.
//! *Stretch*: a time in which the ring was never empty.
//!
//! # Approach
//! The samples of the window are kept in order of time and in order of size. The median of an even
//! number is the mean of the two in the middle. A window without samples gives the last median: an
//! NF that got no packets or no CPU keeps its cost.
//!
//! [`Outside`] makes samples of CPU time over packets taken. For an NF that polls, only stretches
//! count, and the ring alone shows them: if an NF has taken fewer packets since the last look than
//! were waiting then, its ring has not been empty in between. So a stretch is a row of looks which
//! each prove its next part, however few of them also read the CPU clock.
//!
//! # Limits
//! The newest [`MOST`] samples are kept; with one a millisecond, a window of 100 ms holds 100.
//! Adding is linear in the samples, some tens of nanoseconds. Only [`MovingMedian::new`] allocates.
//!
//! A cost seen from outside includes taking and returning a burst. That is right for what a packet
//! costs its core; for the handler alone it is some tens of nanoseconds a burst too much. The
//! bursts in hand at the beginning and the end of a stretch make an error of at most one in
//! [`STRETCH`] packets over 32, either way, and none on average. A polling NF whose ring runs empty
//! between any two looks gives no samples: look more often, or when its slice ends.
//!
//! Source: NFVnice, section 3.5: samples once a millisecond, the median over a moving
//! window of 100 ms. UNiS (Anthony and Bai): costs from the progress of rings.

use std::collections::VecDeque;

/// Most samples that are kept.
pub const MOST: usize = 256;

/// Fewest packets of a sample from outside, so that bursts in hand at its ends hardly count.
pub const STRETCH: u64 = 512;

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
    /// Without samples. `window_ns` is how long a sample counts; 100 ms in the paper.
    pub fn new(window_ns: u64) -> Self {
        Self { window_ns, in_time: VecDeque::with_capacity(MOST), in_size: Vec::with_capacity(MOST), last: None }
    }

    /// Adds a sample: a service time of `value` nanoseconds a packet, taken at `now_ns`. A time
    /// before that of the last sample counts as that sample's time.
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

    /// Median of samples at most one window old, else the last one. None before the first sample.
    pub fn median(&mut self, now_ns: u64) -> Option<u64> {
        if self.expire(now_ns) {
            self.last = self.middle().or(self.last);
        }
        self.last
    }

    /// Number of samples at the last [`median`](Self::median) or [`add`](Self::add).
    pub fn len(&self) -> usize {
        self.in_time.len()
    }

    /// Whether [`len`](Self::len) is 0.
    pub fn is_empty(&self) -> bool {
        self.in_time.is_empty()
    }

    /// Forgets everything, for another process in the NF's place.
    pub fn forget(&mut self) {
        self.in_time.clear();
        self.in_size.clear();
        self.last = None;
    }

    /// Drops the samples that are older than a window. Returns whether there were any.
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

/// What an NF does while its ring is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// It sleeps, and uses CPU time for packets only.
    Sleeps,
    /// It polls the ring, and only stretches count.
    Polls,
}

#[derive(Debug, Clone, Copy)]
struct Start {
    taken: u64,
    cpu_ns: u64,
}

/// Cost of a packet seen from outside: CPU time used over packets taken from the ring. For an NF
/// that polls, the time at an empty ring is left out.
///
/// Call [`ring`](Self::ring) at each look at the ring, and [`cpu`](Self::cpu) right after some of
/// them (it costs a system call): when the NF's slice begins and ends, or once a millisecond.
#[derive(Debug, Clone)]
pub struct Outside {
    idle: Idle,
    /// In picoseconds a packet.
    cost: MovingMedian,
    /// Packets taken and packets waiting, at the last look.
    seen: Option<(u64, u64)>,
    start: Option<Start>,
}

impl Outside {
    /// Without looks; `window_ns` is how long a sample counts.
    pub fn new(window_ns: u64, idle: Idle) -> Self {
        Self { idle, cost: MovingMedian::new(window_ns), seen: None, start: None }
    }

    /// Takes a look at the ring: packets ever taken from it, and packets waiting on it. A count
    /// that goes back (a new process, or one that writes nonsense) ends the stretch.
    pub fn ring(&mut self, taken: u64, waiting: u64) {
        let goes_on = self.seen.is_some_and(|(before, waited)| {
            let progress = taken.checked_sub(before);
            progress.is_some_and(|progress| self.idle == Idle::Sleeps || progress < waited)
        });
        if !goes_on {
            self.start = None;
        }
        self.seen = Some((taken, waiting));
    }

    /// Takes the total CPU time of the NF, in nanoseconds, read at `now_ns` right after a look at
    /// the ring. Returns nanoseconds a packet if that completes a sample.
    pub fn cpu(&mut self, now_ns: u64, cpu_ns: u64) -> Option<f64> {
        let (taken, _) = self.seen?;
        let here = Start { taken, cpu_ns };
        let start = *self.start.get_or_insert(here);
        let packets = taken.saturating_sub(start.taken);
        let Some(used_ns) = cpu_ns.checked_sub(start.cpu_ns) else {
            self.start = Some(here);
            return None;
        };
        if packets < STRETCH {
            return None;
        }
        self.start = Some(here);
        let picoseconds = (u128::from(used_ns) * 1000 / u128::from(packets)).min(u128::from(u64::MAX)) as u64;
        self.cost.add(now_ns, picoseconds);
        Some(picoseconds as f64 / 1000.0)
    }

    /// Nanoseconds a packet: the window's median, else the last one. None before the first sample.
    pub fn ns_per_packet(&mut self, now_ns: u64) -> Option<f64> {
        self.cost.median(now_ns).map(|picoseconds| picoseconds as f64 / 1000.0)
    }

    /// Forgets everything, for another process in the NF's place.
    pub fn forget(&mut self) {
        self.cost.forget();
        (self.seen, self.start) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// An NF that polls, seen from outside: 200 ns a packet.
    struct Polling {
        outside: Outside,
        now_ns: u64,
        cpu_ns: u64,
        taken: u64,
        posted: u64,
    }

    impl Polling {
        fn new(idle: Idle) -> Self {
            Self { outside: Outside::new(100 * MS, idle), now_ns: 0, cpu_ns: 0, taken: 0, posted: 0 }
        }

        /// Adds packets to its ring, and runs it for `ns`.
        fn run(&mut self, given: u64, ns: u64) -> &mut Self {
            self.posted += given;
            self.taken += (ns / 200).min(self.posted - self.taken);
            (self.now_ns, self.cpu_ns) = (self.now_ns + ns, self.cpu_ns + ns);
            self
        }

        /// Adds packets to its ring, while another NF has the core for `ns`.
        fn park(&mut self, given: u64, ns: u64) -> &mut Self {
            self.posted += given;
            self.now_ns += ns;
            self
        }

        fn ring(&mut self) {
            self.outside.ring(self.taken, self.posted - self.taken);
        }

        fn look(&mut self) -> Option<f64> {
            self.ring();
            self.outside.cpu(self.now_ns, self.cpu_ns)
        }
    }

    #[test]
    fn time_at_an_empty_ring_is_not_a_packets() {
        let mut nf = Polling::new(Idle::Polls);
        assert_eq!(nf.park(2000, 0).look(), None);
        // 1,000 of 2,000 packets in 200 µs; then the rest, and 800 µs at an empty ring.
        assert_eq!(nf.run(0, 200_000).look(), Some(200.0));
        assert_eq!(nf.run(0, 1_000_000).look(), None);
        // Packets arrive while it polls: when it began to work is unknown.
        assert_eq!(nf.run(2000, 100_000).look(), None);
        assert_eq!(nf.run(0, 200_000).look(), Some(200.0));
        assert_eq!(nf.outside.ns_per_packet(nf.now_ns), Some(200.0));
        // The same for an NF that sleeps while its ring is empty, and uses no time there.
        let mut nf = Polling::new(Idle::Sleeps);
        nf.look();
        assert_eq!(nf.run(1000, 200_000).park(0, MS).look(), Some(200.0));
    }

    #[test]
    fn looks_at_the_ring_alone_prove_a_long_stretch() {
        // 100 packets are always waiting; 5,000 are taken between two readings of the CPU clock.
        let stretch = |looks: u64| {
            let mut nf = Polling::new(Idle::Polls);
            nf.park(100, 0).look();
            for _ in 0..looks {
                nf.run(5000 / looks, 1_000_000 / looks).ring();
            }
            nf.look()
        };
        assert_eq!(stretch(100), Some(200.0), "50 of 100 are taken between two looks");
        assert_eq!(stretch(50), None, "100 of 100 may have left it empty");
    }

    #[test]
    fn slices_add_up_until_they_are_enough() {
        let mut nf = Polling::new(Idle::Polls);
        nf.park(2000, 0).look();
        // Slices of 300 packets with pauses, in which CPU time stands still.
        assert_eq!(nf.run(300, 60_000).look(), None);
        assert_eq!(nf.park(0, 5 * MS).look(), None);
        assert_eq!(nf.run(300, 60_000).look(), Some(200.0));
        assert_eq!(nf.park(0, 5 * MS).look(), None);
    }

    #[test]
    fn counts_that_go_back_begin_anew() {
        let mut outside = Outside::new(100 * MS, Idle::Sleeps);
        outside.ring(5000, 10);
        assert_eq!(outside.cpu(0, 1_000_000), None);
        outside.ring(0, 10);
        assert_eq!(outside.cpu(1, 2_000_000), None);
        outside.ring(1000, 10);
        assert_eq!(outside.cpu(2, 1_500_000), None, "another process's clock");
        outside.ring(2000, 10);
        assert_eq!(outside.cpu(3, 1_600_000), Some(100.0));
        outside.ring(u64::MAX, u64::MAX);
        assert!(outside.cpu(4, u64::MAX).is_some_and(f64::is_finite));
        outside.forget();
        assert_eq!((outside.cpu(5, 1), outside.ns_per_packet(5)), (None, None));
    }

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
