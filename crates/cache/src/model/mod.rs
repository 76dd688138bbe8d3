//! Cache model of an NF: its misses for every number of ways in one pass.
//!
//! # Problem
//! A profile needs the misses of an NF with 1, 2, … 20 ways of the last-level cache. Running it
//! that often takes that much longer, and needs a processor that can give ways.
//!
//! # Approach
//! A cache of fixed sets whose ways are given to one class is, for that class, a smaller cache with
//! the same sets. Under least-recently-used replacement, the contents of a cache of w ways are a
//! part of those of one with w + 1 ways. So one list for each set, ordered by last use, gives for
//! each access the fewest ways with which it would have hit: its stack distance. A counter for each
//! distance gives all curves at once. The core's own caches (L1, and L2 if there is one) come
//! first, because only their misses get there.
//!
//! # Limits
//! True LRU, no prefetcher, addresses of the process instead of the machine's, no hash over slices,
//! loads and stores alike, no instructions, and no invalidation by other cores. The results are
//! marked as simulated.
//!
//! # Source
//! Mattson, Gecsei, Slutz and Traiger, Evaluation techniques for storage hierarchies, IBM Systems
//! Journal 1970.

mod filter;
mod geometry;
mod shared;
mod stack;

use serde::{Deserialize, Serialize};

pub use geometry::Geometry;
pub use shared::{Shared, SharedMisses};
pub use stack::Stack;

use filter::Filter;

use crate::control::Origin;
use crate::error::CacheError;
use crate::host::Cache;

/// Most ways of the last-level cache.
pub const MOST_WAYS: u32 = 32;

/// The caches on the way to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hierarchy {
    /// Bytes of a line, the same in all.
    pub line: u32,
    pub l1: Option<Geometry>,
    pub l2: Option<Geometry>,
    /// The last-level cache, with all ways that curves cover.
    pub llc: Geometry,
}

impl Hierarchy {
    /// The caches of this host (see [`host::caches`](crate::host::caches)); none if the kernel does
    /// not describe an L3.
    pub fn of_host(caches: &[Cache]) -> Option<Self> {
        let level = |level: u32| caches.iter().find(|cache| cache.level == level && cache.data && cache.ways > 0);
        let geometry = |cache: &Cache| Geometry::of(cache.bytes, cache.ways, cache.line);
        let last = level(3)?;
        Some(Self { line: last.line, l1: level(1).and_then(geometry), l2: level(2).and_then(geometry), llc: geometry(last)? })
    }

    /// Bytes of a way of the last-level cache.
    pub fn way_bytes(&self) -> u64 {
        u64::from(self.llc.sets) * u64::from(self.line)
    }
}

#[derive(Debug, Clone)]
pub struct Model {
    hierarchy: Hierarchy,
    line_bits: u32,
    l1: Option<Filter>,
    l2: Option<Filter>,
    stack: Stack,
    accesses: u64,
}

impl Model {
    /// Empty caches.
    ///
    /// # Errors
    /// A size is invalid.
    pub fn new(hierarchy: Hierarchy) -> Result<Self, CacheError> {
        let wrong = |what: String, cure| Err(CacheError::Model { what, cure });
        if !hierarchy.line.is_power_of_two() || hierarchy.line < 8 {
            return wrong(format!("a cache line of {} bytes cannot be", hierarchy.line), "choose a power of two, such as 64");
        }
        for (name, cache) in [("L1", hierarchy.l1), ("L2", hierarchy.l2), ("last-level", Some(hierarchy.llc))] {
            let Some(cache) = cache else { continue };
            if cache.sets == 0 || cache.ways == 0 || cache.ways > MOST_WAYS {
                return wrong(
                    format!("a {name} cache of {} sets and {} ways cannot be", cache.sets, cache.ways),
                    "choose 1 to 32 ways",
                );
            }
        }
        Ok(Self {
            line_bits: hierarchy.line.trailing_zeros(),
            l1: hierarchy.l1.map(Filter::new),
            l2: hierarchy.l2.map(Filter::new),
            stack: Stack::new(hierarchy.llc),
            accesses: 0,
            hierarchy,
        })
    }

    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// A load or store of `bytes` bytes.
    #[inline]
    pub fn access(&mut self, address: u64, bytes: u32) {
        self.accesses += 1;
        let first = address >> self.line_bits;
        let last = (address + u64::from(bytes.max(1)) - 1) >> self.line_bits;
        for line in first..=last {
            if self.l1.as_mut().is_some_and(|l1| l1.holds(line)) || self.l2.as_mut().is_some_and(|l2| l2.holds(line)) {
                continue;
            }
            self.stack.access(line);
        }
    }

    /// Clears the counters but not the caches, at the end of a warm-up.
    pub fn start(&mut self) {
        self.accesses = 0;
        self.stack.start();
    }

    /// Loads and stores since the start.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The counts over `packets` packets.
    pub fn curve(&self, packets: u64) -> Curve {
        Curve {
            origin: Origin::Simulated,
            way_bytes: self.hierarchy.way_bytes(),
            packets,
            accesses: self.accesses,
            reads: self.stack.accesses(),
            misses: (1..=self.hierarchy.llc.ways).map(|ways| self.stack.misses(ways)).collect(),
        }
    }
}

/// Misses for every number of ways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    pub origin: Origin,
    pub way_bytes: u64,
    pub packets: u64,
    /// Loads and stores.
    pub accesses: u64,
    /// Accesses that reached the last-level cache.
    pub reads: u64,
    /// Misses with 1 way, 2 ways, and so on; never rising.
    pub misses: Vec<u64>,
}

impl Curve {
    /// Misses per packet with this many ways; ways beyond the last entry add nothing.
    pub fn misses_per_packet(&self, ways: u32) -> f64 {
        let misses = match ways as usize {
            0 => self.reads,
            ways => self.misses.get(ways - 1).or(self.misses.last()).copied().unwrap_or(self.reads),
        };
        misses as f64 / self.packets.max(1) as f64
    }

    /// Packets per second, if a packet takes `packet_ns` without misses and each miss adds
    /// `miss_ns`.
    pub fn packets_per_second(&self, ways: u32, packet_ns: f64, miss_ns: f64) -> f64 {
        1e9 / (packet_ns + miss_ns * self.misses_per_packet(ways)).max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hierarchy(sets: u32, ways: u32) -> Hierarchy {
        Hierarchy { line: 64, l1: None, l2: None, llc: Geometry { sets, ways } }
    }

    /// A plain implementation of a cache of one size.
    fn plain(geometry: Geometry, lines: &[u64]) -> u64 {
        let mut sets = vec![Vec::new(); geometry.sets as usize];
        let mut misses = 0;
        for line in lines {
            let set: &mut Vec<u64> = &mut sets[(line % u64::from(geometry.sets)) as usize];
            match set.iter().position(|held| held == line) {
                Some(i) => drop(set.remove(i)),
                None => misses += 1,
            }
            set.insert(0, *line);
            set.truncate(geometry.ways as usize);
        }
        misses
    }

    proptest! {
        #[test]
        fn one_pass_tells_what_a_cache_of_each_size_misses(
            lines in proptest::collection::vec(0u64..200, 1..600), sets in 1u32..12, ways in 1u32..9,
        ) {
            let mut model = Model::new(hierarchy(sets, ways)).unwrap();
            lines.iter().for_each(|line| model.access(line * 64 + 3, 8));
            let curve = model.curve(1);
            for ways in 1..=ways {
                prop_assert_eq!(curve.misses[ways as usize - 1], plain(Geometry { sets, ways }, &lines), "{} ways", ways);
                let held: std::collections::BTreeSet<u64> = lines.iter().copied().collect();
                let mut in_sets = vec![0u64; sets as usize];
                held.iter().for_each(|line| in_sets[(line % u64::from(sets)) as usize] += 1);
                prop_assert_eq!(model.stack().lines(ways), in_sets.iter().map(|n| (*n).min(u64::from(ways))).sum::<u64>());
            }
        }

        #[test]
        fn what_the_first_caches_hold_gets_no_further(lines in proptest::collection::vec(0u64..100, 1..400), l1_sets in 1u32..6) {
            let l1 = Geometry { sets: l1_sets, ways: 2 };
            let mut model = Model::new(Hierarchy { l1: Some(l1), ..hierarchy(4, 4) }).unwrap();
            lines.iter().for_each(|line| model.access(line * 64, 1));
            prop_assert_eq!(model.curve(1).reads, plain(l1, &lines));
        }
    }

    #[test]
    fn an_access_over_two_lines_touches_both() {
        let mut model = Model::new(hierarchy(16, 4)).unwrap();
        model.access(60, 8);
        assert_eq!((model.curve(1).reads, model.accesses()), (2, 1));
        model.access(56, 8);
        assert_eq!(model.curve(1).misses, [2, 2, 2, 2]);
        model.start();
        model.access(64, 1);
        assert_eq!((model.curve(2).reads, model.curve(2).misses_per_packet(1), model.curve(2).misses_per_packet(0)), (1, 0.0, 0.5));
    }

    #[test]
    fn sizes_that_no_cache_has_are_refused() {
        for wrong in [Hierarchy { line: 48, ..hierarchy(4, 4) }, hierarchy(0, 4), hierarchy(4, 33), hierarchy(4, 0)] {
            assert!(Model::new(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(Geometry::of(45 << 20, 20, 64), Some(Geometry { sets: 36_864, ways: 20 }));
        assert_eq!(Geometry::of(1, 0, 64), None);
    }

    #[test]
    fn the_hosts_caches_make_a_hierarchy() {
        let root = crate::host::tests::two_sockets();
        let found = Hierarchy::of_host(&crate::host::caches(root.path())).unwrap();
        assert_eq!((found.l1, found.llc), (Some(Geometry { sets: 64, ways: 8 }), Geometry { sets: 36_864, ways: 20 }));
        assert_eq!(found.way_bytes(), (45 << 20) / 20);
    }

    #[test]
    fn misses_make_packets_slower() {
        let curve = Curve { origin: Origin::Simulated, way_bytes: 64, packets: 10, accesses: 100, reads: 20, misses: vec![10, 0] };
        assert_eq!(curve.packets_per_second(2, 100.0, 80.0), 1e7);
        assert_eq!(curve.packets_per_second(1, 100.0, 80.0), 1e9 / 180.0);
        assert_eq!(curve.misses_per_packet(9), 0.0);
    }
}
