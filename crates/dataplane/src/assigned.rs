//! NFs with a new priority, passed from packet threads to the thread that applies it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A set of NF numbers to which any thread adds and which one empties, lock-free.
#[derive(Debug)]
pub struct Assigned {
    words: Box<[AtomicU64]>,
    any: AtomicBool,
}

impl Assigned {
    /// For numbers below `nfs`; higher ones are ignored.
    pub fn new(nfs: usize) -> Self {
        Self { words: (0..nfs.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(), any: AtomicBool::new(false) }
    }

    /// Adds an NF.
    #[inline]
    pub fn add(&self, number: u16) {
        if let Some(word) = self.words.get(usize::from(number / 64)) {
            // Release: the taker of the bit sees what was written about the NF before.
            word.fetch_or(1 << (number % 64), Ordering::Release);
            // Release: the reader of this flag sees the bit.
            self.any.store(true, Ordering::Release);
        }
    }

    /// Calls `each` once for each NF added since the last call. Returns whether there were any.
    pub fn take(&self, mut each: impl FnMut(u16)) -> bool {
        // Acquire: earlier bits are seen. A bit set now is taken now, or next time by its later
        // flag.
        if !self.any.swap(false, Ordering::Acquire) {
            return false;
        }
        for (index, word) in self.words.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                each((index * 64) as u16 + bits.trailing_zeros() as u16);
                bits &= bits - 1;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn each_is_taken_once_whatever_comes_meanwhile() {
        let assigned = Arc::new(Assigned::new(130));
        assert!(!assigned.take(|_| panic!("there is none")));
        for number in [3, 129, 3, 64, 200] {
            assigned.add(number);
        }
        let mut taken = Vec::new();
        assert!(assigned.take(|number| taken.push(number)));
        assert_eq!(taken, [3, 64, 129]);
        let adder = std::thread::spawn({
            let assigned = assigned.clone();
            move || (0..128).for_each(|number| assigned.add(number))
        });
        let mut all = BTreeSet::new();
        while all.len() < 128 {
            assigned.take(|number| assert!(all.insert(number)));
        }
        adder.join().unwrap();
        assert!(!assigned.take(|_| panic!("there is none left")) || all.len() == 128);
    }
}
