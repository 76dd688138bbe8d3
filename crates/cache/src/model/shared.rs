//! Several NFs, each on its own core, with one last-level cache.
//!
//! # Approach
//! Each core has an L1 and an L2. All share one list of lines for each set of the last-level cache,
//! ordered by last use. A distance in it is counted for the NF that made the access, so one pass
//! gives each NF's misses for every number of ways that all of them share. A second list for each
//! NF alone gives its misses without the others.
//!
//! # Limits
//! Those of the [`Model`](super::Model). NFs have no line in common: a packet in two NFs counts as
//! two. The caller determines the order of accesses.

use super::filter::Filter;
use super::{Curve, Hierarchy, Model, Stack};
use crate::control::Origin;
use crate::error::CacheError;

/// Bits of a line's number within an NF; the NF's number is above them.
const LINE_BITS: u32 = 52;

#[derive(Debug, Clone)]
struct Core {
    l1: Option<Filter>,
    l2: Option<Filter>,
    /// Its own lines, without the others'.
    alone: Stack,
    /// Hits at each distance in the shared list; the last entry counts misses.
    found: Vec<u64>,
    accesses: u64,
}

#[derive(Debug, Clone)]
pub struct Shared {
    hierarchy: Hierarchy,
    line_bits: u32,
    cores: Vec<Core>,
    stack: Stack,
}

/// Misses of an NF.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedMisses {
    /// With the others, for every number of ways that all share.
    pub together: Curve,
    /// Without them, with all ways.
    pub alone: u64,
}

impl SharedMisses {
    /// Misses per packet without the others, with all ways.
    pub fn alone_per_packet(&self) -> f64 {
        self.alone as f64 / self.together.packets.max(1) as f64
    }
}

impl Shared {
    /// Empty caches for a number of NFs.
    ///
    /// # Errors
    /// A size is invalid.
    pub fn new(hierarchy: Hierarchy, nfs: usize) -> Result<Self, CacheError> {
        // It checks the sizes.
        Model::new(hierarchy)?;
        let core = Core {
            l1: hierarchy.l1.map(Filter::new),
            l2: hierarchy.l2.map(Filter::new),
            alone: Stack::new(hierarchy.llc),
            found: vec![0; hierarchy.llc.ways as usize + 1],
            accesses: 0,
        };
        let line_bits = hierarchy.line.trailing_zeros();
        Ok(Self { hierarchy, line_bits, cores: vec![core; nfs], stack: Stack::new(hierarchy.llc) })
    }

    /// A load or store of `bytes` bytes by NF number `nf`, from 0. Ignored if there is no such NF.
    #[inline]
    pub fn access(&mut self, nf: usize, address: u64, bytes: u32) {
        let Some(core) = self.cores.get_mut(nf) else { return };
        core.accesses += 1;
        let first = address >> self.line_bits;
        let last = (address + u64::from(bytes.max(1)) - 1) >> self.line_bits;
        for line in first..=last {
            if core.l1.as_mut().is_some_and(|l1| l1.holds(line)) || core.l2.as_mut().is_some_and(|l2| l2.holds(line)) {
                continue;
            }
            core.alone.access(line);
            core.found[self.stack.distance((nf as u64) << LINE_BITS ^ line)] += 1;
        }
    }

    /// Clears all counters but not the caches, at the end of a warm-up.
    pub fn start(&mut self) {
        for core in &mut self.cores {
            core.accesses = 0;
            core.found.fill(0);
            core.alone.start();
        }
    }

    /// The counts of an NF over `packets` packets; none if there is no such NF.
    pub fn sharing(&self, nf: usize, packets: u64) -> Option<SharedMisses> {
        let core = self.cores.get(nf)?;
        let ways = self.hierarchy.llc.ways;
        let together = Curve {
            origin: Origin::Simulated,
            way_bytes: self.hierarchy.way_bytes(),
            packets,
            accesses: core.accesses,
            reads: core.found.iter().sum(),
            misses: (1..=ways as usize).map(|ways| core.found.iter().skip(ways).sum()).collect(),
        };
        Some(SharedMisses { together, alone: core.alone.misses(ways) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Geometry;
    use super::*;

    proptest! {
        /// One NF alone is the plain model; two are one model of both their lines, and each alone
        /// is a plain model too.
        #[test]
        fn misses_are_those_of_one_model_by_part(
            accesses in proptest::collection::vec((0usize..2, 0u64..150), 1..600), sets in 1u32..12, ways in 1u32..9,
        ) {
            let l2 = Geometry { sets: 2, ways: 2 };
            let hierarchy = Hierarchy { line: 64, l1: None, l2: Some(l2), llc: Geometry { sets, ways } };
            let mut shared = Shared::new(hierarchy, 2).unwrap();
            let mut alone = [Model::new(hierarchy).unwrap(), Model::new(hierarchy).unwrap()];
            let mut both = Model::new(Hierarchy { l2: None, ..hierarchy }).unwrap();
            let mut filters = [Filter::new(l2), Filter::new(l2)];
            for (nf, line) in &accesses {
                shared.access(*nf, line * 64, 8);
                alone[*nf].access(line * 64, 8);
                if !filters[*nf].holds(*line) {
                    both.access(((*nf as u64) << LINE_BITS ^ line) * 64, 1);
                }
            }
            let found = [0, 1].map(|nf| shared.sharing(nf, 1).unwrap());
            let wanted = both.curve(1);
            for ways in 0..ways as usize {
                prop_assert_eq!(found[0].together.misses[ways] + found[1].together.misses[ways], wanted.misses[ways]);
            }
            for nf in 0..2 {
                prop_assert_eq!(found[nf].alone, *alone[nf].curve(1).misses.last().unwrap());
                prop_assert_eq!(found[nf].together.reads, alone[nf].curve(1).reads);
                prop_assert!(found[nf].together.misses.iter().zip(alone[nf].curve(1).misses).all(|(with, without)| *with >= without));
            }
            prop_assert_eq!(shared.sharing(2, 1), None);
        }
    }
}
