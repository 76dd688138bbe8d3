//! The count of packets on their way to an NF, with the threads that may change it.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_ownership::credits;

/// Credits of an NF that packets have: one for each packet on its way to the NF. On a cache line of
/// its own, as a thread that gives an NF packets writes it with each burst.
#[derive(Debug)]
#[repr(align(64))]
pub struct InFlight {
    count: AtomicU32,
    /// How many packet threads may let packets in for the NF, or take them from it.
    threads: AtomicU32,
}

impl Default for InFlight {
    fn default() -> Self {
        // As if there were several: always right.
        Self { count: AtomicU32::new(0), threads: AtomicU32::new(u32::MAX) }
    }
}

/// The count.
impl Deref for InFlight {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.count
    }
}

impl InFlight {
    /// Sets how many packet threads may let packets in for the NF, or take them from it. If there
    /// are more than before, none of them does so until all threads have passed a fence.
    pub fn share(&self, threads: usize) {
        self.threads.store(threads as u32, Ordering::Relaxed);
    }

    /// Whether one packet thread alone lets packets in for the NF and takes them from it.
    #[inline(always)]
    pub(crate) fn has_one_thread(&self) -> bool {
        self.threads() == 1
    }

    #[inline(always)]
    fn threads(&self) -> usize {
        self.threads.load(Ordering::Relaxed) as usize
    }

    /// As [`credits::reserve`].
    #[inline(always)]
    pub(crate) fn reserve(&self, n: u32, limit: u32) -> u32 {
        credits::reserve(&self.count, n, limit, self.threads())
    }

    /// As [`credits::take`].
    #[inline(always)]
    pub(crate) fn take(&self, n: u32) {
        credits::take(&self.count, n, self.threads());
    }

    /// As [`credits::give_back`].
    #[inline(always)]
    pub(crate) fn give_back(&self, n: u32) {
        credits::give_back(&self.count, n, self.threads());
    }
}
