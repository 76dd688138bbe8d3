//! Max-min shares: a larger share would be taken from one that is no larger.
//!
//! # Terms
//! *Wish*: the most that a participant would take. *Weight*: how many participants it stands for;
//! shares are compared per participant.
//!
//! # Approach
//! Ways are whole. Each participant gets the least that a class may have; then one way after the
//! other goes to the participant with least per weight that wishes more, the first of several. Ways
//! beyond all wishes are left over. Rates are not whole: the level is raised past one wish after
//! the other.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Ways at most.
    pub ways: u32,
    /// How many it stands for; 0 counts as 1.
    pub weight: u32,
}

/// Shares out `ways` ways; each gets at least `least`, which must fit.
pub fn ways(wishes: &[Wish], least: u32, ways: u32) -> Vec<u32> {
    let mut given = vec![least; wishes.len()];
    let left = ways.saturating_sub(least * wishes.len() as u32);
    fill(&mut given, wishes, left);
    given
}

/// Shares out `left` ways one at a time; returns how many are left over.
pub fn fill(given: &mut [u32], wishes: &[Wish], mut left: u32) -> u32 {
    while left > 0 {
        let wanting = (0..wishes.len()).filter(|&i| given[i] < wishes[i].ways);
        // The least per weight, by cross multiplication: fractions would be rounded.
        let next = wanting.min_by_key(|&i| Part { of: given[i], weight: wishes[i].weight.max(1) });
        let Some(next) = next else { break };
        given[next] += 1;
        left -= 1;
    }
    left
}

/// Shares out a rate: none gets more than it offers, unless more than all offers is left, which is
/// divided evenly.
pub fn rates(offered: &[f64], total: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..offered.len()).collect();
    order.sort_by(|&a, &b| offered[a].total_cmp(&offered[b]));
    let (mut left, mut given) = (total, vec![0.0; offered.len()]);
    for (done, &i) in order.iter().enumerate() {
        given[i] = offered[i].min(left / (order.len() - done) as f64);
        left -= given[i];
    }
    let more = left.max(0.0) / offered.len().max(1) as f64;
    given.iter().map(|pps| pps + more).collect()
}

#[derive(PartialEq, Eq)]
struct Part {
    of: u32,
    weight: u32,
}

impl Ord for Part {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (u64::from(self.of) * u64::from(other.weight)).cmp(&(u64::from(other.of) * u64::from(self.weight)))
    }
}

impl PartialOrd for Part {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wishes(of: &[(u32, u32)]) -> Vec<Wish> {
        of.iter().map(|&(ways, weight)| Wish { ways, weight }).collect()
    }

    #[test]
    fn small_wishes_are_met_and_the_others_share_what_is_left() {
        assert_eq!(ways(&wishes(&[(2, 1), (20, 1), (20, 1)]), 1, 18), [2, 8, 8]);
        assert_eq!(ways(&wishes(&[(20, 4), (20, 1), (20, 1)]), 1, 18), [12, 3, 3], "one that stands for four");
        assert_eq!(ways(&wishes(&[(3, 1), (4, 1)]), 1, 18), [3, 4]);
        assert_eq!(ways(&wishes(&[(20, 1), (20, 1)]), 2, 5), [3, 2]);
        assert_eq!(rates(&[1.0, 5.0, 9.0], 9.0), [1.0, 4.0, 4.0]);
        assert_eq!(rates(&[1.0, 2.0], 5.0), [2.0, 3.0]);
    }

    proptest! {
        /// One more way for any participant would take one from another that has no more per
        /// weight; and no way that is wished is left over.
        #[test]
        fn shares_are_max_min(
            all in prop::collection::vec((0u32..20, 1u32..5), 1..8),
            least in 1u32..3,
            more in 0u32..40,
        ) {
            let wishes = wishes(&all);
            let total = least * wishes.len() as u32 + more;
            let given = ways(&wishes, least, total);
            let sum: u32 = given.iter().sum();
            prop_assert!(sum <= total && given.iter().all(|given| *given >= least));
            for (i, wish) in wishes.iter().enumerate() {
                prop_assert!(given[i] <= wish.ways.max(least));
                if given[i] >= wish.ways {
                    continue;
                }
                prop_assert_eq!(sum, total);
                for (j, other) in wishes.iter().enumerate().filter(|(j, _)| given[*j] > least) {
                    // When j was given its last way, it had no more per weight than i has now.
                    prop_assert!((given[j] - 1) * wish.weight <= given[i] * other.weight, "{given:?} {i} {j}");
                }
            }
        }

        #[test]
        fn rates_are_max_min(offered in prop::collection::vec(0.0..10.0f64, 1..8), total in 0.1..60.0f64) {
            let given = rates(&offered, total);
            prop_assert!((given.iter().sum::<f64>() - total).abs() < 1e-9);
            let most = given.iter().zip(&offered).filter(|(given, offered)| given < offered).map(|(given, _)| *given);
            if let Some(level) = most.min_by(f64::total_cmp) {
                prop_assert!(given.iter().all(|given| *given <= level + 1e-9), "{given:?}");
            }
        }
    }
}
