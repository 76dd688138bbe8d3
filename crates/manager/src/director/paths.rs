//! The paths that one thread has used, found without the registry's lock.
//!
//! Approach: a table of sets of four, with the whole key in each entry. What finds no place in its set pushes out the one that came first:
//! the registry knows it still.

use crate::config::validate::MAX_POOLED_HOPS;

const WAYS: usize = 4;

/// What tells paths of one thread apart. The version stands for the chain, and with it for services and egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Way {
    /// Version of the chain.
    pub version: u32,
    /// Number of the ingress port.
    pub ingress: u16,
    /// How many NFs there are.
    pub len: u16,
    /// The NFs.
    pub nfs: [u16; MAX_POOLED_HOPS],
}

impl Way {
    fn hash(&self) -> usize {
        let mut sum = u64::from(self.version) << 32 | u64::from(self.ingress) << 16 | u64::from(self.len);
        for nf in &self.nfs[..self.len as usize] {
            // FNV-1a over words, and a last mixing below.
            sum = (sum ^ u64::from(*nf)).wrapping_mul(0x0100_0000_01b3);
        }
        (sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    way: Way,
    number: u32,
    used: bool,
}

/// The table.
#[derive(Debug)]
pub struct Paths {
    entries: Vec<[Entry; WAYS]>,
    turn: usize,
    /// A bit for each number that was ever noted.
    noted: Vec<u64>,
}

impl Paths {
    /// For about so many paths.
    pub fn new(most: usize) -> Self {
        Self { entries: vec![[Entry::default(); WAYS]; (most / 2).next_power_of_two().max(1)], turn: 0, noted: Vec::new() }
    }

    /// Number of a path, if it is known here.
    #[inline]
    pub fn find(&self, way: &Way) -> Option<u32> {
        let set = &self.entries[way.hash() & (self.entries.len() - 1)];
        set.iter().find(|entry| entry.used && entry.way == *way).map(|entry| entry.number)
    }

    /// Whether the number of a path was ever noted.
    #[inline]
    pub fn knows(&self, number: u32) -> bool {
        self.noted.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    /// Notes the number of a path.
    pub fn insert(&mut self, way: &Way, number: u32) {
        let word = number as usize / 64;
        self.noted.resize(self.noted.len().max(word + 1), 0);
        self.noted[word] |= 1 << (number % 64);
        let at = way.hash() & (self.entries.len() - 1);
        self.turn = (self.turn + 1) % WAYS;
        let set = &mut self.entries[at];
        let place = set.iter().position(|entry| !entry.used).unwrap_or(self.turn);
        set[place] = Entry { way: *way, number, used: true };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_found_or_was_pushed_out() {
        let mut paths = Paths::new(64);
        let way =
            |n: u16| Way { version: 7, ingress: n % 2, len: 2, nfs: { [n, n + 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] } };
        for n in 0..1000u16 {
            assert!(paths.find(&way(n)).is_none() && !paths.knows(n.into()));
            paths.insert(&way(n), n.into());
            assert!(paths.find(&way(n)) == Some(n.into()) && paths.knows(n.into()));
            assert_eq!(paths.find(&Way { version: 8, ..way(n) }), None);
        }
        let known = (0..1000u16).filter(|n| paths.find(&way(*n)) == Some(u32::from(*n))).count();
        assert!((64..=128).contains(&known), "{known}");
        assert!((0..1000).all(|number| paths.knows(number)) && !paths.knows(u32::MAX - 3));
    }
}
