//! How long an NF looks for packets before it sleeps, where no NF of its core has any.
//!
//! # Problem
//! A core whose NFs all sleep is woken from another core. That costs the packet thread several
//! microseconds, in which it moves no packet, and the NF starts late. Many pauses of a busy core
//! are shorter than that: an interrupt of the packet thread is one. An NF that looks for packets
//! until the pause is over avoids both costs. It wastes its core's time where no packet comes.
//!
//! # Terms and units
//! To *linger* is to look for packets before sleeping. A *gap* is the time from when no NF of a
//! core has packets until the first of them gets some, in nanoseconds. *Trust* says how often
//! lingering would have paid lately, from 0 to [`MOST`].
//!
//! # Approach
//! No linger is longer than what a sleep and a wake cost ([`Linger::LONGEST_NS`]), so one in vain
//! at most doubles the cost of a sleep. Its length grows with trust. A gap that the longest linger
//! would have bridged adds one to trust, and a longer gap takes two away. So an NF lingers for long
//! only where more than two of three gaps are short, and stops after four long ones.
//!
//! The least linger is always waited for: a packet thread takes that long to pass packets on to the
//! next NF of a chain. Gaps that it bridges are no evidence. They are part of each packet's way,
//! also where packets come seldom.
//!
//! The gap of a sleep counts as well: it is known from the time of the first packet. Otherwise
//! trust could not come back.
//!
//! # Limits
//! The gaps are of one core page. An NF that lingers keeps the core from what is not on the page:
//! where there is such, the caller stays with the least linger. Gaps that alternate between short
//! and long ones earn no trust, although half of the lingers would pay.
//!
//! Source: A. Karlin, K. Li, M. Manasse, S. Owicki, "Empirical studies of competitive spinning for
//! a shared-memory multiprocessor", SOSP 1991: spin for no longer than a block costs, and adapt
//! that to the waits seen lately.

/// Most trust.
const MOST: u32 = 8;
/// Trust lost by a gap that no linger bridges.
const LOSS: u32 = 2;

/// How far lingering is trusted to pay, on one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Linger(u32);

impl Linger {
    /// Least linger, in nanoseconds: several rounds of a packet thread.
    pub const LEAST_NS: u64 = 3_000;
    /// Longest linger, in nanoseconds: a wake from another core costs the packet thread 8 µs, and
    /// the NF starts 22 µs after it began (two-core guest, 2.3 GHz).
    pub const LONGEST_NS: u64 = 30_000;

    /// From a word that another process may have written.
    #[inline]
    pub fn of(word: u32) -> Self {
        Self(word.min(MOST))
    }

    /// The word for [`Linger::of`].
    #[inline]
    pub fn word(self) -> u32 {
        self.0
    }

    /// Length of the next linger, in nanoseconds.
    #[inline]
    pub fn length_ns(self) -> u64 {
        Self::LEAST_NS + (Self::LONGEST_NS - Self::LEAST_NS) * u64::from(self.0) / u64::from(MOST)
    }

    /// The trust after a gap.
    #[inline]
    #[must_use]
    pub fn after(self, gap_ns: u64) -> Self {
        match gap_ns {
            ..=Self::LEAST_NS => self,
            ..=Self::LONGEST_NS => Self::of(self.0 + 1),
            _ => Self(self.0.saturating_sub(LOSS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: u64 = 10_000;
    const LONG: u64 = 5_000_000;

    fn after(linger: Linger, gaps: impl IntoIterator<Item = u64>) -> Linger {
        gaps.into_iter().fold(linger, Linger::after)
    }

    #[test]
    fn the_length_grows_with_short_gaps_to_what_a_wake_costs() {
        let mut linger = Linger::default();
        assert_eq!(linger.length_ns(), Linger::LEAST_NS);
        for _ in 0..MOST {
            let longer = linger.after(SHORT);
            assert!(longer.length_ns() > linger.length_ns());
            linger = longer;
        }
        assert_eq!(linger.length_ns(), Linger::LONGEST_NS);
        assert_eq!(linger.after(Linger::LONGEST_NS), linger);
    }

    #[test]
    fn four_long_gaps_end_it_and_cost_less_than_three_wakes() {
        let mut linger = Linger::of(u32::MAX);
        let mut wasted_ns = 0;
        for _ in 0..4 {
            wasted_ns += linger.length_ns();
            linger = linger.after(LONG);
        }
        assert_eq!(linger, Linger::default());
        assert!(wasted_ns < 3 * Linger::LONGEST_NS, "{wasted_ns}");
        assert_eq!(linger.after(LONG).length_ns(), Linger::LEAST_NS);
    }

    #[test]
    fn packets_that_come_seldom_and_pass_a_chain_earn_no_trust() {
        // Each is passed on twice, which takes a microsecond, and the next one comes much later.
        let linger = after(Linger::default(), [1_000, 1_000, LONG].into_iter().cycle().take(3_000));
        assert_eq!(linger, Linger::default());
        assert_eq!(Linger::of(5).after(Linger::LEAST_NS), Linger::of(5));
    }

    #[test]
    fn as_many_long_gaps_as_short_ones_earn_no_trust_and_three_of_four_do() {
        let half = after(Linger::default(), [SHORT, LONG].into_iter().cycle().take(1_000));
        assert_eq!(half.length_ns(), Linger::LEAST_NS);
        let most = after(Linger::default(), [SHORT, SHORT, SHORT, LONG].into_iter().cycle().take(1_000));
        assert!(most.length_ns() > Linger::LONGEST_NS / 2);
    }

    #[test]
    fn whatever_a_neighbour_wrote_is_a_length_within_the_bounds() {
        for word in [0, 1, MOST, MOST + 1, 1 << 31, u32::MAX] {
            let linger = Linger::of(word);
            assert!((Linger::LEAST_NS..=Linger::LONGEST_NS).contains(&linger.length_ns()));
            assert!(after(linger, [0, SHORT, LONG, u64::MAX]).word() <= MOST);
            assert_eq!(Linger::of(linger.word()), linger);
        }
    }
}
