//! A thread's cache of paths, which needs no lock.
//!
//! A four-way set-associative table with the whole key in each entry. A new entry in a full set
//! replaces the one whose turn it is; the registry still knows that path. Whether a path found here
//! still holds is for the registry to say.

use super::PathKind;
use super::detours::Detours;

const WAYS: usize = 4;
const NO_NUMBER: u32 = u32::MAX;

/// Most NFs of a path in the cache. Longer paths are only in the registry.
pub const MAX_NFS: usize = sluice_policy::spread::MAX_NFS;

/// The key of a path. The version stands for the chain, with its services and egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Version of the chain.
    pub version: u32,
    /// Number of the ingress port.
    pub ingress: u16,
    /// How many NFs there are.
    pub len: u16,
    /// What kind of path it is.
    pub kind: PathKind,
    /// The NFs.
    pub nfs: [u16; MAX_NFS],
}

impl Way {
    /// A way through these NFs, unless there are too many.
    pub fn new(version: u32, ingress: u16, kind: PathKind, through: &[u16]) -> Option<Self> {
        let mut nfs = [0; MAX_NFS];
        nfs.get_mut(..through.len())?.copy_from_slice(through);
        Some(Self { version, ingress, len: through.len() as u16, kind, nfs })
    }

    fn hash(&self) -> usize {
        let mut sum = u64::from(self.version) << 32 | u64::from(self.ingress) << 16 | u64::from(self.len) << 2 | self.kind as u64;
        for nf in &self.nfs[..self.len as usize] {
            // FNV-1a over words, and a final mixing step below.
            sum = (sum ^ u64::from(*nf)).wrapping_mul(0x0100_0000_01b3);
        }
        (sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
    }
}

/// The cache.
#[derive(Debug)]
pub struct Ways {
    entries: Vec<[Option<(Way, u32)>; WAYS]>,
    turn: usize,
    /// By place in the registry: the path number that was noted last.
    noted: Vec<u32>,
    /// What it knows of detours; these are not among the entries.
    pub(super) detours: Detours,
    /// Number of the packet thread.
    pub(super) thread: usize,
}

impl Ways {
    /// A cache for about `most` paths, of packet thread number `thread`.
    pub fn new(most: usize, thread: usize) -> Self {
        let most = most.next_power_of_two();
        let entries = vec![[None; WAYS]; (most / 2).max(1)];
        Self { entries, turn: 0, noted: vec![NO_NUMBER; most], detours: Detours::new(2 * most), thread }
    }

    /// Number of a path, if it is in the cache.
    #[inline]
    pub fn find(&self, way: &Way) -> Option<u32> {
        let set = &self.entries[way.hash() & (self.entries.len() - 1)];
        set.iter().flatten().find(|(known, _)| known == way).map(|(_, number)| *number)
    }

    /// Whether a path's number is the last one noted for its place.
    #[inline]
    pub fn knows(&self, number: u32) -> bool {
        self.noted[number as usize & (self.noted.len() - 1)] == number
    }

    /// Adds a path.
    pub fn insert(&mut self, way: &Way, number: u32) {
        let last = self.noted.len() - 1;
        self.noted[number as usize & last] = number;
        let at = way.hash() & (self.entries.len() - 1);
        self.turn = (self.turn + 1) % WAYS;
        let set = &mut self.entries[at];
        let same = set.iter().position(|entry| entry.as_ref().is_some_and(|(known, _)| known == way));
        let place = same.or_else(|| set.iter().position(Option::is_none)).unwrap_or(self.turn);
        set[place] = Some((*way, number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_found_or_was_pushed_out() {
        let mut ways = Ways::new(64, 0);
        let way = |n: u16| Way::new(7, n % 2, PathKind::Whole, &[n, n + 1]).unwrap();
        for n in 0..1000u16 {
            assert!(ways.find(&way(n)).is_none() && !ways.knows(n.into()));
            ways.insert(&way(n), n.into());
            assert!(ways.find(&way(n)) == Some(n.into()) && ways.knows(n.into()));
            assert_eq!(ways.find(&Way { version: 8, ..way(n) }), None);
            assert_eq!(ways.find(&Way { kind: PathKind::Bypasses, ..way(n) }), None);
        }
        let known = (0..1000u16).filter(|n| ways.find(&way(*n)) == Some(u32::from(*n))).count();
        assert!((64..=128).contains(&known), "{known}");
        assert!((1000 - 64..1000).all(|number| ways.knows(number)) && !ways.knows(0) && !ways.knows(u32::MAX - 3));
    }

    #[test]
    fn a_way_that_has_another_number_by_now_is_found_by_that() {
        let mut ways = Ways::new(64, 0);
        let way = Way::new(7, 0, PathKind::Whole, &[1]).unwrap();
        (0..10).for_each(|number| ways.insert(&way, number));
        assert_eq!(ways.find(&way), Some(9));
        assert!(Way::new(7, 0, PathKind::Whole, &[0; MAX_NFS + 1]).is_none());
    }
}
