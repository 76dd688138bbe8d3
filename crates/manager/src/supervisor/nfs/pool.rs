//! The size of a pool over time, and the numbers that members leave to later ones.
//!
//! [`Sizing`] decides how many members are wanted. Where flows wait for a member and none is
//! starting, more are started at once. Otherwise every [`EVERY`] a check finds whether there are
//! too few or too many.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_policy::pool::sizing::{Counts, Sizing};

/// Time between two checks of a pool's size.
const EVERY: Duration = Duration::from_millis(100);
/// Most members that one check starts.
const STARTS: u32 = 64;

#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolSize {
    pub(crate) counts: Counts,
    pub(crate) is_starting: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PoolChange {
    /// Members to start.
    pub(crate) start: u32,
    /// Idle members to remove.
    pub(crate) dismiss: u32,
}

/// The members of a service that has a pool.
#[derive(Debug)]
pub(crate) struct PoolLife {
    sizing: Sizing,
    looked_ns: u64,
    /// Whether members have come since the last publication.
    is_stirred: bool,
    /// Numbers and indices of removed members.
    spare: VecDeque<(u16, u32)>,
}

impl PoolLife {
    /// A pool with these bounds on the number of members.
    pub(crate) fn new(now_ns: u64, (least, most): (u32, u32)) -> Self {
        Self { sizing: Sizing::new(least, most), looked_ns: now_ns, is_stirred: true, spare: VecDeque::new() }
    }

    pub(crate) fn bound(&mut self, (least, most): (u32, u32)) {
        self.sizing.bound(least, most);
    }

    pub(crate) fn stir(&mut self) {
        self.is_stirred = true;
    }

    /// Notes that the packet threads know all members.
    pub(crate) fn is_published(&mut self) {
        self.is_stirred = false;
    }

    /// Whether members have come since the last publication.
    pub(crate) fn is_stirred(&self) -> bool {
        self.is_stirred
    }

    /// Whether a check is worthwhile when flows have found no member `unmet` times.
    pub(crate) fn wants_look(&self, now_ns: u64, unmet: u64) -> bool {
        self.is_due(now_ns) || self.sizing.lacks(unmet)
    }

    fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.looked_ns) >= EVERY.as_nanos() as u64
    }

    pub(crate) fn look(&mut self, now_ns: u64, seen: &PoolSize) -> PoolChange {
        let (unmet, members) = (seen.counts.unmet, seen.counts.members);
        let wanted = match self.is_due(now_ns) {
            true => {
                self.looked_ns = now_ns;
                self.sizing.look(now_ns, seen.counts)
            }
            // They may be waiting for the member that is starting.
            false if seen.is_starting => return PoolChange::default(),
            false => self.sizing.demand(unmet, members).max(members),
        };
        PoolChange { start: wanted.saturating_sub(members).min(STARTS), dismiss: members.saturating_sub(wanted) }
    }

    /// Keeps the number of a removed member for a later one.
    pub(crate) fn keep_number(&mut self, number: u16, index: u32) {
        self.spare.push_back((number, index));
    }

    pub(crate) fn spares(&self) -> impl Iterator<Item = u16> {
        self.spare.iter().map(|(number, _)| *number)
    }

    /// The kept number and index whose part, of `threads`, has the fewest indices in `members`.
    pub(crate) fn spare(&mut self, threads: usize, members: impl Iterator<Item = u16>) -> Option<(u16, u32)> {
        if self.spare.is_empty() {
            return None;
        }
        let mut of_part = vec![0u32; threads];
        members.for_each(|index| of_part[usize::from(index) % threads] += 1);
        let few = |(_, (_, index)): &(usize, &(u16, u32))| of_part[*index as usize % threads];
        let (at, _) = self.spare.iter().enumerate().min_by_key(few)?;
        self.spare.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn counts(members: u32, unmet: u64) -> Counts {
        Counts { met: 0, unmet, ended: 0, lifetimes_ns: 0, members, in_use: 0 }
    }

    fn seen(members: u32, unmet: u64) -> PoolSize {
        PoolSize { counts: counts(members, unmet), is_starting: false }
    }

    #[test]
    fn flows_that_find_no_member_get_more_at_once() {
        let mut pool = PoolLife::new(0, (1, 100));
        assert!(!pool.wants_look(MS, 0));
        assert!(pool.wants_look(MS, 5));
        assert!(pool.look(MS, &seen(1, 5)).start > 0);
    }

    #[test]
    fn while_a_member_starts_no_more_are_started_for_the_same_flows() {
        let mut pool = PoolLife::new(0, (1, 100));
        assert_eq!(pool.look(MS, &PoolSize { is_starting: true, ..seen(1, 5) }), PoolChange::default());
    }

    #[test]
    fn a_pool_never_has_more_than_its_most() {
        let mut pool = PoolLife::new(0, (1, 4));
        assert_eq!(pool.look(MS, &seen(4, 500)), PoolChange::default());
        let change = pool.look(200 * MS, &seen(3, 1000));
        assert!(change.start <= 1, "{change:?}");
    }

    #[test]
    fn one_look_starts_no_flood_of_processes() {
        let mut pool = PoolLife::new(0, (1000, 1000));
        assert_eq!(pool.look(100 * MS, &seen(200, 0)).start, STARTS);
    }

    #[test]
    fn members_that_have_died_are_made_up_for() {
        let mut pool = PoolLife::new(0, (3, 9));
        assert!(pool.wants_look(100 * MS, 0));
        assert_eq!(pool.look(100 * MS, &seen(1, 0)), PoolChange { start: 2, dismiss: 0 });
    }

    #[test]
    fn it_is_looked_at_once_a_period_where_nothing_is_wanted() {
        let mut pool = PoolLife::new(0, (1, 9));
        pool.look(100 * MS, &seen(1, 0));
        assert!(!pool.wants_look(199 * MS, 0) && pool.wants_look(200 * MS, 0));
    }

    #[test]
    fn a_pool_that_is_idle_for_long_shrinks_to_its_least_and_no_further() {
        let mut pool = PoolLife::new(0, (2, 50));
        let mut members = 40;
        for look in 1..2_000 {
            let change = pool.look(look * 100 * MS, &seen(members, 0));
            members = members - change.dismiss + change.start;
            assert!(members >= 2);
        }
        assert_eq!(members, 2);
    }

    #[test]
    fn the_next_member_has_the_number_of_one_that_was_let_go_where_its_part_has_fewest() {
        let mut pool = PoolLife::new(0, (1, 9));
        [(7, 0), (8, 1), (9, 2)].into_iter().for_each(|(number, index)| pool.keep_number(number, index));
        // Two parts: members with even indices are in the first, which has two already.
        assert_eq!(pool.spare(2, [4, 6].into_iter()), Some((8, 1)));
        assert_eq!(pool.spare(2, [4, 6].into_iter()), Some((7, 0)));
        assert_eq!(pool.spares().collect::<Vec<_>>(), [9]);
    }

    #[test]
    fn a_new_pool_reaches_the_packet_threads() {
        let mut pool = PoolLife::new(0, (1, 9));
        assert!(pool.is_stirred());
        pool.is_published();
        assert!(!pool.is_stirred());
        pool.stir();
        assert!(pool.is_stirred());
    }
}
