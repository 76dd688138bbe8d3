//! Maglev hashing: independent balancers pick the same backend for a flow.
//!
//! # Problem
//! Several load balancers, and the same one after a restart, must send a flow to the same backend.
//! Backends must get equal shares (or shares by weight). When a backend comes or goes, nearly all
//! other flows must stay.
//!
//! # Approach
//! Each backend has a permutation of the slots of a table, made from its name alone. In turn, each
//! backend takes the next free slot of its permutation, until the table is full; a flow's hash
//! picks a slot. With weights, a backend skips turns so that it takes slots in proportion. Source:
//! Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016,
//! section 3.4.
//!
//! # Limits
//! The table's size is a prime of at least 100 slots a backend, which keeps shares within about a
//! percent of each other. The hashes are fixed (FNV-1a and the finalizer of SplitMix64), so that
//! other versions and processors build the same table.

/// Table sizes: primes, as the permutations need.
const SIZES: [usize; 3] = [65_537, 655_373, 6_553_621];

/// Most backends: 100 slots each in the largest table.
pub const MAX_BACKENDS: usize = u16::MAX as usize - 1;

const NOBODY: u16 = u16::MAX;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maglev {
    places: Vec<u16>,
}

impl Maglev {
    /// The table of at most [`MAX_BACKENDS`] backends: unique names, and weights; weight 0 gets
    /// nothing.
    pub fn new(backends: &[(&str, u32)]) -> Self {
        let size = SIZES.into_iter().find(|size| *size >= 100 * backends.len()).unwrap_or(SIZES[SIZES.len() - 1]);
        Self::with_size(backends, size)
    }

    /// As [`Maglev::new`], with `size` slots; a prime.
    fn with_size(backends: &[(&str, u32)], size: usize) -> Self {
        assert!(backends.len() <= MAX_BACKENDS, "the backends file checks the number");
        let heaviest = backends.iter().map(|&(_, weight)| weight).max().unwrap_or_default();
        if heaviest == 0 {
            return Self { places: Vec::new() };
        }
        let mut takers: Vec<Taker> = backends.iter().map(|&(name, weight)| Taker::new(name, weight, size)).collect();
        let mut places = vec![NOBODY; size];
        let mut left = size;
        'full: loop {
            for (number, taker) in takers.iter_mut().enumerate() {
                taker.credit += u64::from(taker.weight);
                if taker.credit < u64::from(heaviest) {
                    continue;
                }
                taker.credit -= u64::from(heaviest);
                // Ends: the permutation visits every slot, and one is free.
                while places[taker.next] != NOBODY {
                    taker.advance(size);
                }
                places[taker.next] = number as u16;
                taker.advance(size);
                left -= 1;
                if left == 0 {
                    break 'full;
                }
            }
        }
        Self { places }
    }

    /// Index of the backend for a flow with this hash; None if no backend has weight.
    #[inline]
    pub fn pick(&self, hash: u64) -> Option<u16> {
        let place = (u128::from(hash) * self.places.len() as u128) >> 64;
        self.places.get(place as usize).copied()
    }
}

/// A backend while the table is filled.
struct Taker {
    weight: u32,
    /// Saved turns; a slot costs the weight of the heaviest backend.
    credit: u64,
    next: usize,
    skip: usize,
}

impl Taker {
    fn new(name: &str, weight: u32, size: usize) -> Self {
        let first = hash_bytes(name.as_bytes());
        let second = mix(first ^ 0x9e37_79b9_7f4a_7c15);
        let (offset, skip) = (first % size as u64, second % (size as u64 - 1) + 1);
        Self { weight, credit: 0, next: offset as usize, skip: skip as usize }
    }

    fn advance(&mut self, size: usize) {
        self.next += self.skip;
        if self.next >= size {
            self.next -= size;
        }
    }
}

/// FNV-1a, mixed.
fn hash_bytes(bytes: &[u8]) -> u64 {
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)))
}

/// A flow's hash, the same on every machine.
#[inline]
pub fn hash_words(words: &[u64]) -> u64 {
    words.iter().fold(0, |h, word| mix(h ^ word))
}

/// The finalizer of SplitMix64.
#[inline]
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("web{i}")).collect()
    }

    fn even(names: &[String]) -> Vec<(&str, u32)> {
        names.iter().map(|name| (name.as_str(), 1)).collect()
    }

    fn shares(maglev: &Maglev, n: usize) -> Vec<usize> {
        let mut shares = vec![0; n];
        for place in &maglev.places {
            shares[*place as usize] += 1;
        }
        shares
    }

    #[test]
    fn shares_are_equal() {
        for n in [1, 2, 3, 10, 100] {
            let shares = shares(&Maglev::new(&even(&names(n))), n);
            let (min, max) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(max - min <= 1, "turns are taken in order, so places differ by one at most: {min} to {max}");
        }
    }

    #[test]
    fn flows_spread_as_the_places_do() {
        let maglev = Maglev::new(&even(&names(10)));
        let mut hits = [0u32; 10];
        for flow in 0..100_000u64 {
            hits[maglev.pick(hash_words(&[flow, 7])).unwrap() as usize] += 1;
        }
        // 10,000 each; a standard deviation is 95.
        assert!(hits.iter().all(|h| h.abs_diff(10_000) < 500), "{hits:?}");
    }

    #[test]
    fn shares_follow_weights() {
        let maglev = Maglev::new(&[("a", 1), ("b", 2), ("c", 5), ("d", 0)]);
        let shares = shares(&maglev, 4);
        for (share, weight) in shares.iter().zip([1, 2, 5, 0]) {
            assert!(share.abs_diff(65_537 * weight / 8) <= 8, "{shares:?}");
        }
    }

    #[test]
    fn few_flows_move_when_a_backend_goes() {
        let all = names(100);
        let before = Maglev::new(&even(&all));
        let mut fewer = even(&all);
        fewer[42].1 = 0;
        let after = Maglev::new(&fewer);
        let moved = before.places.iter().zip(&after.places).filter(|(b, a)| **b != 42 && a != b).count();
        // Figure 12 of the paper: a few percent of the other slots change at this size.
        assert!(moved * 100 < before.places.len() * 5, "{moved} of {} places moved", before.places.len());
        assert!(after.places.iter().all(|place| *place != 42));
    }

    #[test]
    fn order_in_the_file_hardly_matters_and_time_not_at_all() {
        let all = names(10);
        let table = Maglev::new(&even(&all));
        assert_eq!(table, Maglev::new(&even(&all)));
        let mut turned = even(&all);
        turned.reverse();
        let other = Maglev::new(&turned);
        let moved = table.places.iter().zip(&other.places).filter(|(a, b)| **a != 9 - **b).count();
        assert!(moved * 4 < table.places.len(), "{moved}");
    }

    #[test]
    fn the_hashes_never_change() {
        assert_eq!(hash_bytes(b""), mix(0xcbf2_9ce4_8422_2325));
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf, "first output of SplitMix64 with seed 0");
    }

    #[test]
    fn nobody_is_picked_from_an_empty_table() {
        assert_eq!(Maglev::new(&[]).pick(u64::MAX), None);
        assert_eq!(Maglev::new(&[("a", 0)]).pick(5), None);
        assert_eq!(Maglev::new(&[("a", 1)]).pick(u64::MAX), Some(0));
    }
}
