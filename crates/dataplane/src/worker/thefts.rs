//! How many sleepers a rescue wakes, where others may sleep in an NF's place.
//!
//! The kernel wakes those of a real-time class first, by their priority, and others in the order in
//! which they came. One that sleeps again comes behind the NF, or before it by a higher priority:
//! then the NF is reached only if one rescue wakes all that are before it at once. So each rescue
//! of an NF that does not move wakes more than the last. Each wake costs the manager time, so it
//! wakes many only where there were many.

/// From this many rescues on, an NF also waits for its own doorbell, for this time in nanoseconds.
/// That costs it more, but a sleeper in its place gets none of the manager's wakes. Counts rescues
/// between which it moved, each within this time of the last.
const THEFTS: u32 = 2;
pub(super) const GUARDED_NS: u64 = 1_000_000_000;
/// Sleepers that the first rescue wakes at most: as many as an NF has threads, unless its service
/// has more `pids`, or they wait for more than one futex each.
pub(super) const CROWD: u32 = 256;
/// Most crowds that one rescue wakes.
const CROWDS: u32 = 8;
/// Sleepers that the rescues of a look wake at most together: as many as one of them may have to
/// wake. With more, the round of the thread would be longer for all tenants.
pub(super) const LOOK_WAKES: u32 = CROWDS * CROWD;

/// Rescues of an NF, as far as others may have taken its wakes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Thefts {
    /// Rescues between which it moved, each soon after the last.
    n: u32,
    /// When the last rescue was, and what it had moved then.
    last_ns: u64,
    moved: u64,
    /// Crowds that the last rescue was to wake, and whether there may have been more.
    crowds: u32,
    are_more: bool,
}

impl Thefts {
    /// Counts a rescue at `now` of an NF that has moved so much. Returns how many sleepers to wake:
    /// at first, all that may be before it; later it hears its own doorbell.
    pub(super) fn count(&mut self, moved: u64, now: u64) -> u32 {
        let is_soon = now.saturating_sub(std::mem::replace(&mut self.last_ns, now)) <= GUARDED_NS;
        let has_moved = std::mem::replace(&mut self.moved, moved) != moved;
        if is_soon && !has_moved {
            if self.are_more && self.crowds < CROWDS {
                self.crowds += 1;
                return CROWD * self.crowds;
            }
            if self.n < THEFTS {
                return 1;
            }
        }
        self.n = if is_soon { self.n.saturating_add(1) } else { 1 };
        self.crowds = 1;
        if self.n <= THEFTS { CROWD } else { 1 }
    }

    /// What [`Thefts::count`] would return.
    pub(super) fn wanted(mut self, moved: u64, now: u64) -> u32 {
        self.count(moved, now)
    }

    /// Notes how many of those that were to be woken were there.
    pub(super) fn woke(&mut self, asked: u32, woken: usize) {
        self.are_more = asked > 1 && woken >= asked as usize;
    }

    /// Whether it is to wait for its own doorbell, too.
    pub(super) fn recur(&self) -> bool {
        self.n >= THEFTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const NOW: u64 = 5_000 * MS;

    /// Where those that were woken sleep again.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Again {
        Behind,
        /// By a higher priority.
        Before,
    }

    /// How many rescues it takes to wake an NF that sleeps behind all these others, which sleep
    /// again at once; None: more than 50.
    fn rescues_behind(others: u32, again: Again) -> Option<u64> {
        let (mut thefts, mut before_it) = (Thefts::default(), others);
        for n in 1..=50 {
            let wanted = thefts.wanted(0, NOW + n * MS);
            let asked = thefts.count(0, NOW + n * MS);
            assert!(asked == wanted && asked <= LOOK_WAKES, "one has its turn in a look that it is first in");
            thefts.woke(asked, asked.min(others + 1) as usize);
            if asked > before_it {
                return Some(n);
            }
            if again == Again::Behind {
                before_it -= asked;
            }
        }
        None
    }

    #[test]
    fn one_that_sleeps_behind_the_threads_of_several_nfs_is_reached() {
        const THREADS: u32 = CROWD - 1;
        for (thieves, rescues) in [(1, 1), (2, 2), (3, 2), (4, 3), (6, 3), (7, 4)] {
            assert_eq!(rescues_behind(thieves * THREADS, Again::Behind), Some(rescues), "{thieves}");
        }
        for thieves in 1..=CROWDS {
            assert_eq!(rescues_behind(thieves * THREADS, Again::Before), Some(thieves.into()), "{thieves}");
        }
        // There is an end.
        assert_eq!(rescues_behind(CROWDS * CROWD, Again::Before), None);
        assert_eq!(rescues_behind(37 * CROWD, Again::Behind), None);
    }

    #[test]
    fn crowds_are_woken_only_where_there_are_some() {
        let mut thefts = Thefts::default();
        assert_eq!(thefts.count(0, NOW), CROWD);
        thefts.woke(CROWD, 1);
        assert_eq!(thefts.count(0, NOW + MS), 1, "it alone was there");
        thefts.woke(1, 1);
        assert_eq!(thefts.count(0, NOW + 2 * MS), 1, "one is no crowd");
        assert!(!thefts.recur());
        assert_eq!((thefts.count(7, NOW + 3 * MS), thefts.recur()), (CROWD, true));
        thefts.woke(CROWD, CROWD as usize);
        assert_eq!(thefts.count(9, NOW + 4 * MS), 1, "it hears its own doorbell");
        assert_eq!(thefts.count(11, NOW + 5 * MS + GUARDED_NS), CROWD, "it has been forgotten");
        assert!(!thefts.recur());
    }
}
