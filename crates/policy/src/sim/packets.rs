//! Packets in batches, and rings of them.

use std::collections::VecDeque;

/// Consecutive packets of one chain at one hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Batch {
    pub chain: u32,
    /// Place in the chain, from 0.
    pub hop: u32,
    /// Sequence number of the first packet in its chain.
    pub first: u64,
    pub count: u32,
    /// Time of arrival in the ring.
    pub since_ns: u64,
}

impl Batch {
    fn split(&mut self, count: u32) -> Self {
        let head = Self { count: count.min(self.count), ..*self };
        self.first += u64::from(head.count);
        self.count -= head.count;
        head
    }
}

#[derive(Debug, Clone)]
pub(super) struct Ring {
    batches: VecDeque<Batch>,
    len: u32,
    capacity: u32,
}

impl Ring {
    pub(super) fn new(capacity: u32) -> Self {
        Self { batches: VecDeque::new(), len: 0, capacity }
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    #[inline]
    pub(super) fn room(&self) -> u32 {
        self.capacity - self.len
    }

    #[inline]
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.batches.front().map(|b| b.since_ns)
    }

    /// Appends as much of the batch as there is room for. Returns how many packets did not fit.
    pub(super) fn push(&mut self, mut batch: Batch) -> u32 {
        let fits = batch.split(self.room());
        if fits.count == 0 {
            return batch.count;
        }
        self.len += fits.count;
        match self.batches.back_mut() {
            Some(last)
                if (last.chain, last.hop, last.since_ns) == (fits.chain, fits.hop, fits.since_ns)
                    && last.first + u64::from(last.count) == fits.first =>
            {
                last.count += fits.count;
            }
            _ => self.batches.push_back(fits),
        }
        batch.count
    }

    /// Takes up to `most` packets of one batch from the front.
    #[inline]
    pub(super) fn pop(&mut self, most: u32) -> Option<Batch> {
        let front = self.batches.front_mut()?;
        let head = front.split(most);
        if front.count == 0 {
            self.batches.pop_front();
        }
        self.len -= head.count;
        (head.count > 0).then_some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_split_joined_and_cut_to_the_room() {
        let batch = |first, count, since_ns| Batch { chain: 1, hop: 0, first, count, since_ns };
        let mut ring = Ring::new(100);
        assert_eq!(ring.push(batch(0, 30, 5)), 0);
        assert_eq!(ring.push(batch(30, 30, 5)), 0);
        assert_eq!(ring.push(batch(70, 60, 6)), 20);
        assert_eq!((ring.len(), ring.room(), ring.oldest_ns()), (100, 0, Some(5)));
        assert_eq!(ring.push(batch(500, 1, 7)), 1);
        assert_eq!(ring.pop(32), Some(batch(0, 32, 5)));
        assert_eq!(ring.pop(32), Some(batch(32, 28, 5)));
        assert_eq!((ring.pop(0), ring.oldest_ns()), (None, Some(6)));
        assert_eq!(ring.pop(99), Some(batch(70, 40, 6)));
        assert_eq!((ring.pop(1), ring.len(), ring.oldest_ns()), (None, 0, None));
    }
}
