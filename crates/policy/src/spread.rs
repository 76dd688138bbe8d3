//! Choice of the instance of a service for a flow.
//!
//! Problem: instances of a service share its flows. A flow must keep its instance in both
//! directions, and when an instance comes or goes, only the flows that it gains or loses may move.
//!
//! Approach: rendezvous hashing. Each pair of flow and member has a pseudo-random weight; the
//! member with the highest gets the flow. Nothing is stored: threads need to agree on the members
//! only.
//!
//! Limits: linear in the members, a nanosecond each, once a flow. Shares count flows, heavy or not.
//!
//! Source: D. Thaler, C. Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM
//! Transactions on Networking 6(1), 1998.

/// Most NFs of a path through pools, which packet threads store inline.
pub const MAX_NFS: usize = 16;

/// Index of the member that gets the flow with this symmetric hash; 0 if there are none. `members`
/// are ids that are constant for the life of a member; their order does not matter.
#[inline]
pub fn pick(hash: u32, members: impl Iterator<Item = u64>) -> usize {
    let mut best = 0;
    let mut highest = (0, 0);
    for (index, member) in members.enumerate() {
        // The id breaks ties, so that the result does not depend on the order.
        let weight = (weight(hash, member), member);
        if weight >= highest {
            (best, highest) = (index, weight);
        }
    }
    best
}

/// Weight of a flow and a member: the finaliser of SplitMix64 over both.
#[inline(always)]
fn weight(hash: u32, member: u64) -> u64 {
    let mut z = member.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(hash) << 32 | u64::from(hash));
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOWS: u32 = 100_000;

    fn flows() -> impl Iterator<Item = u32> {
        (0..FLOWS).map(|i| i.wrapping_mul(0x9e37_79b1))
    }

    #[test]
    fn flows_spread_evenly() {
        for n in [1, 2, 3, 7, 16] {
            let members: Vec<u64> = (0..n).collect();
            let mut count = vec![0u32; members.len()];
            flows().for_each(|f| count[pick(f, members.iter().copied())] += 1);
            let share = FLOWS / n as u32;
            assert!(count.iter().all(|c| c.abs_diff(share) <= share / 20), "{n} members: {count:?}");
        }
    }

    #[test]
    fn only_the_flows_of_one_that_leaves_move() {
        let before: Vec<u64> = (10..18).collect();
        for gone in 0..before.len() {
            let mut after = before.clone();
            let id = after.remove(gone);
            let mut moved = 0;
            for flow in flows() {
                let (old, new) = (before[pick(flow, before.iter().copied())], after[pick(flow, after.iter().copied())]);
                assert!(old == new || old == id);
                moved += u32::from(old != new);
            }
            let share = FLOWS / 8;
            assert!(moved.abs_diff(share) <= share / 20, "{moved} flows moved");
        }
    }

    #[test]
    fn one_that_comes_takes_one_nth() {
        let before: Vec<u64> = (0..4).collect();
        let after: Vec<u64> = (0..5).collect();
        let mut moved = 0;
        for flow in flows() {
            let (old, new) = (pick(flow, before.iter().copied()), pick(flow, after.iter().copied()));
            assert!(old == new || new == 4);
            moved += u32::from(old != new);
        }
        assert!(moved.abs_diff(FLOWS / 5) <= FLOWS / 100, "{moved} flows moved");
    }

    #[test]
    fn order_does_not_matter() {
        let members = [5, 900, 7, u64::MAX, 0];
        let mut turned = members;
        turned.reverse();
        for flow in flows().take(1000) {
            assert_eq!(members[pick(flow, members.iter().copied())], turned[pick(flow, turned.iter().copied())]);
        }
        assert_eq!(pick(1, [].into_iter()), 0);
    }
}
