//! Counters of the packet threads.

use std::sync::atomic::{AtomicU64, Ordering};

use sluice_api::counted::CounterValue;

/// A counter that one thread writes and all may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it. Only the writing thread may call it.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        // Relaxed, and no read-modify-write: one writer, and it publishes nothing.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets its value.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl CounterValue for Counter {
    fn count(&self) -> u64 {
        self.get()
    }
}
