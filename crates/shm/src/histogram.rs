//! A histogram of durations with a bounded relative error, small enough for a shared page.
//!
//! Buckets are log-linear: [`SUB`] to each power of two, so a value is known to within 1/[`SUB`] =
//! 12.5 %. Values are nanoseconds from 0 to 2⁴⁰ (18 minutes); larger ones count in the last bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::Mapping;

/// Buckets to each power of two.
pub const SUB: usize = 8;
const SUB_BITS: u32 = SUB.trailing_zeros();
const POWERS: usize = 40;

/// Number of buckets.
pub const BUCKETS: usize = (POWERS - SUB_BITS as usize + 1) * SUB;

/// Bucket of a value.
#[inline(always)]
pub fn bucket(value: u64) -> usize {
    if value < SUB as u64 {
        return value as usize;
    }
    let power = 63 - value.leading_zeros();
    let sub = (value >> (power - SUB_BITS)) as usize & (SUB - 1);
    ((power - SUB_BITS + 1) as usize * SUB + sub).min(BUCKETS - 1)
}

/// Smallest value of a bucket.
pub fn lowest(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let power = (bucket / SUB) as u32 - 1;
    ((SUB + bucket % SUB) as u64) << power
}

/// Middle of a bucket: what a quantile reports.
fn middle(bucket: usize) -> u64 {
    let low = lowest(bucket);
    low + (lowest(bucket + 1) - low) / 2
}

/// A histogram in private memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64]>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice() }
    }
}

impl Histogram {
    /// Adds a value.
    #[inline(always)]
    pub fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
    }

    /// Adds a value `n` times.
    #[inline(always)]
    pub fn record_many(&mut self, value: u64, n: u64) {
        self.counts[bucket(value)] += n;
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.wrapping_add(*theirs);
        }
    }

    /// What was counted since `earlier`, a former state of the same histogram.
    pub fn since(&self, earlier: &Self) -> Self {
        Self { counts: self.counts.iter().zip(&earlier.counts).map(|(now, then)| now.wrapping_sub(*then)).collect() }
    }

    /// Number of values that were added.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.wrapping_add(*n))
    }

    /// The value below which a share `q` (0 to 1) of the values lies. None if there are no values.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut seen = 0u64;
        for (i, n) in self.counts.iter().enumerate() {
            seen = seen.wrapping_add(*n);
            if seen >= rank {
                return Some(middle(i));
            }
        }
        Some(middle(BUCKETS - 1))
    }

    /// Buckets that are not empty: smallest value and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, n)| (lowest(i), *n))
    }
}

/// A histogram in shared memory, with one writer. Its counts are 32 bits wide and wrap: a reader
/// follows them by [`Followed`].
#[derive(Debug, Clone)]
pub struct SharedHistogram {
    mapping: Arc<Mapping>,
    offset: usize,
}

/// Bytes of a [`SharedHistogram`].
pub const SHARED_BYTES: usize = (BUCKETS * 4).next_multiple_of(64);

impl SharedHistogram {
    /// The histogram at `offset` of a mapping, or None if it does not lie inside.
    pub fn in_mapping(mapping: &Arc<Mapping>, offset: usize) -> Option<Self> {
        mapping.at(offset, SHARED_BYTES, 4)?;
        Some(Self { mapping: mapping.clone(), offset })
    }

    fn count(&self, bucket: usize) -> &AtomicU32 {
        self.mapping.atomic_u32(self.offset + bucket * 4).expect("in_mapping checked the size")
    }

    /// Adds a value. Only one thread may.
    pub fn record(&self, value: u64) {
        let count = self.count(bucket(value));
        // Relaxed: a statistic; nothing else is published by it.
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// What one reader has seen of a [`SharedHistogram`]: the same counts, 64 bits wide.
#[derive(Debug)]
pub struct Followed {
    seen: Box<[u32]>,
    counts: Histogram,
}

impl Default for Followed {
    fn default() -> Self {
        Self { seen: vec![0; BUCKETS].into_boxed_slice(), counts: Histogram::default() }
    }
}

impl Followed {
    /// Adds what was counted since the last call, less than 2³² in each bucket, and returns all
    /// counts. The writer may be active: counts may be of slightly different moments.
    pub fn follow(&mut self, shared: &SharedHistogram) -> &Histogram {
        for (i, (seen, count)) in self.seen.iter_mut().zip(&mut self.counts.counts).enumerate() {
            let now = shared.count(i).load(Ordering::Relaxed);
            *count = count.wrapping_add(u64::from(now.wrapping_sub(*seen)));
            *seen = now;
        }
        &self.counts
    }

    /// All counts, as of the last [`follow`](Self::follow).
    pub fn counts(&self) -> &Histogram {
        &self.counts
    }

    /// Follows another histogram from now on, which began at 0. Former counts stay.
    pub fn begin(&mut self) {
        self.seen.fill(0);
    }
}

/// A histogram that one thread writes and others of the same process read.
#[derive(Debug)]
pub struct AtomicHistogram {
    counts: Box<[AtomicU64]>,
}

impl Default for AtomicHistogram {
    fn default() -> Self {
        Self { counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl AtomicHistogram {
    /// Adds a value. Only one thread may.
    #[inline]
    pub fn record(&self, value: u64) {
        let count = &self.counts[bucket(value)];
        // Relaxed: a statistic; nothing else is published by it.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A copy. Counts may be of slightly different moments.
    pub fn snapshot(&self) -> Histogram {
        Histogram { counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_lies_in_its_bucket(value in 0u64..1 << 40) {
            let b = bucket(value);
            prop_assert!(lowest(b) <= value);
            prop_assert!(b == BUCKETS - 1 || value < lowest(b + 1));
        }

        #[test]
        fn a_quantile_is_within_the_error(values in proptest::collection::vec(1u64..1 << 39, 1..200), q in 0.0f64..=1.0) {
            let mut histogram = Histogram::default();
            let mut sorted = values.clone();
            sorted.sort_unstable();
            values.iter().for_each(|v| histogram.record(*v));
            let exact = sorted[(((q * sorted.len() as f64).ceil() as usize).max(1) - 1).min(sorted.len() - 1)] as f64;
            let got = histogram.quantile(q).unwrap() as f64;
            prop_assert!((got - exact).abs() <= exact / SUB as f64 + 1.0, "{got} for {exact}");
        }
    }

    #[test]
    fn buckets_are_in_order_and_large_values_stay_in_the_last() {
        assert!((1..BUCKETS).all(|b| lowest(b) > lowest(b - 1)));
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn counts_that_wrap_in_shared_memory_go_on_for_their_reader() {
        let mapping = crate::memory::SharedMemory::create("histogram", 4096, false).unwrap().mapping().clone();
        let shared = SharedHistogram::in_mapping(&mapping, 0).unwrap();
        let mut followed = Followed::default();
        shared.record(1000);
        assert_eq!(followed.follow(&shared).count(), 1);
        shared.count(bucket(1000)).store(u32::MAX, Ordering::Relaxed);
        let before = followed.follow(&shared).clone();
        assert_eq!(before.count(), u64::from(u32::MAX));
        (0..10).for_each(|_| shared.record(1000));
        let now = followed.follow(&shared).clone();
        assert_eq!((now.since(&before).count(), now.count()), (10, u64::from(u32::MAX) + 10));
    }

    #[test]
    fn what_a_thread_records_is_what_others_read() {
        let (atomic, mut plain) = (AtomicHistogram::default(), Histogram::default());
        for value in [0, 7, 4_000_000, 4_000_000, u64::MAX] {
            atomic.record(value);
            plain.record(value);
        }
        assert_eq!(atomic.snapshot(), plain);
    }
}
