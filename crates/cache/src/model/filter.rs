//! A cache of a core: it says whether it holds a line, and holds it from then on.

use super::Geometry;

/// A set's lines, the one used last first; `EMPTY` is none.
const EMPTY: u64 = u64::MAX;

/// Sets by line, least recently used replaced.
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
            // Each moves one place back, until the line's old place takes up the last that was moved.
            std::mem::swap(held, &mut before);
            if before == line {
                return true;
            }
        }
        false
    }
}

/// Which set a line is in. A number of sets that is a power of two needs no division.
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
