//! A core's private cache, which only distinguishes hits from misses.

use super::Geometry;

/// Marks an empty way.
const EMPTY: u64 = u64::MAX;

/// A set-associative cache with least-recently-used replacement; each set is ordered by last use.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    sets: Sets,
    ways: usize,
    lines: Vec<u64>,
}

impl Filter {
    pub(crate) fn new(geometry: Geometry) -> Self {
        let ways = geometry.ways as usize;
        Self { sets: Sets::new(geometry.sets), ways, lines: vec![EMPTY; geometry.sets as usize * ways] }
    }

    #[inline]
    pub(crate) fn holds(&mut self, line: u64) -> bool {
        let from = self.sets.of(line) * self.ways;
        let set = &mut self.lines[from..from + self.ways];
        let mut before = line;
        for held in set.iter_mut() {
            // Shifts each line back by one, up to the old position of `line`.
            std::mem::swap(held, &mut before);
            if before == line {
                return true;
            }
        }
        false
    }
}

/// Maps a line to its set; a number of sets that is a power of two needs no division.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sets {
    count: u64,
    mask: Option<u64>,
}

impl Sets {
    pub(crate) fn new(count: u32) -> Self {
        let count = u64::from(count);
        Self { count, mask: count.is_power_of_two().then_some(count - 1) }
    }

    #[inline]
    pub(crate) fn of(self, line: u64) -> usize {
        let set = match self.mask {
            Some(mask) => line & mask,
            None => line % self.count,
        };
        set as usize
    }
}
