//! Stack distances in each set of the last-level cache.

use super::Geometry;
use super::filter::Sets;

/// Marks an empty place.
const EMPTY: u64 = u64::MAX;

/// A list of lines for each set, ordered by last use.
#[derive(Debug, Clone)]
pub struct Stack {
    sets: Sets,
    ways: usize,
    lines: Vec<u64>,
    /// Hits at each distance; the last entry counts misses.
    found: Vec<u64>,
    /// Sets that have a line at each distance.
    filled: Vec<u64>,
}

impl Stack {
    pub(super) fn new(geometry: Geometry) -> Self {
        let ways = geometry.ways as usize;
        Self {
            sets: Sets::new(geometry.sets),
            ways,
            lines: vec![EMPTY; geometry.sets as usize * ways],
            found: vec![0; ways + 1],
            filled: vec![0; ways],
        }
    }

    #[inline]
    pub(super) fn access(&mut self, line: u64) {
        let distance = self.distance(line);
        self.found[distance] += 1;
    }

    /// Uses a line, without counting. Returns its distance, or the number of ways if it was absent.
    #[inline]
    pub(super) fn distance(&mut self, line: u64) -> usize {
        let from = self.sets.of(line) * self.ways;
        let set = &mut self.lines[from..from + self.ways];
        let mut before = line;
        for (distance, held) in set.iter_mut().enumerate() {
            std::mem::swap(held, &mut before);
            if before == line {
                return distance;
            }
            if before == EMPTY {
                self.filled[distance] += 1;
                return self.ways;
            }
        }
        self.ways
    }

    pub(super) fn start(&mut self) {
        self.found.fill(0);
    }

    /// Accesses since the start.
    pub fn accesses(&self) -> u64 {
        self.found.iter().sum()
    }

    /// Misses since the start with this many ways.
    pub fn misses(&self, ways: u32) -> u64 {
        self.found.iter().skip(ways as usize).sum()
    }

    /// Lines that would be cached now with this many ways.
    pub fn lines(&self, ways: u32) -> u64 {
        self.filled.iter().take(ways as usize).sum()
    }
}
