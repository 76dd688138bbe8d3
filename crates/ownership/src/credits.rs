//! Credits: how many packets are on their way to an NF.
//!
//! A packet takes a credit of each NF of its path before it starts, and gives it back when it has passed the NF for the last time, or
//! will not come. The count of an NF never passes its limit, however many threads take credits at once, so its ring has room for each
//! packet that has one; and no count goes below zero.
//!
//! One packet thread alone needs no atomic step: that would wait until all that the thread has stored before is seen by the others, which
//! takes longer than all else that a packet costs at the gate. So every function is given the number of packet threads.

use crate::sync::{AtomicU32, Ordering};

/// Takes up to `n` credits, as many as keep the count within `limit`, and says how many.
#[inline(always)]
pub fn reserve(count: &AtomicU32, n: u32, limit: u32, threads: usize) -> u32 {
    // Relaxed: the count says nothing about other memory; the frames travel by the rings, and by their words in the table.
    let mut before = count.load(Ordering::Relaxed);
    loop {
        let granted = n.min(limit.saturating_sub(before));
        if granted == 0 {
            return 0;
        }
        if threads == 1 {
            count.store(before + granted, Ordering::Relaxed);
            return granted;
        }
        match count.compare_exchange_weak(before, before + granted, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return granted,
            // Another packet thread was here: no NF can keep this one going.
            Err(now) => before = now,
        }
    }
}

/// Takes `n` credits, whatever the limit.
#[inline(always)]
pub fn take(count: &AtomicU32, n: u32, threads: usize) {
    // Relaxed: as in `reserve`.
    if threads == 1 {
        count.store(count.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    } else {
        count.fetch_add(n, Ordering::Relaxed);
    }
}

/// Gives `n` credits back that were taken.
#[inline(always)]
pub fn give_back(count: &AtomicU32, n: u32, threads: usize) {
    // Relaxed: whoever waits for the last one looks again, and by that learns nothing about the frames.
    let before = if threads == 1 {
        let before = count.load(Ordering::Relaxed);
        count.store(before.wrapping_sub(n), Ordering::Relaxed);
        before
    } else {
        count.fetch_sub(n, Ordering::Relaxed)
    };
    debug_assert!(before >= n, "{n} credits given back of {before}");
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_granted_as_the_limit_leaves() {
        for threads in [1, 2] {
            let count = AtomicU32::new(0);
            assert_eq!(reserve(&count, 32, 48, threads), 32);
            assert_eq!(reserve(&count, 32, 48, threads), 16);
            assert_eq!(reserve(&count, 32, 48, threads), 0);
            give_back(&count, 8, threads);
            assert_eq!(reserve(&count, 32, 40, threads), 0, "a smaller ring than before");
            assert_eq!(reserve(&count, 32, 41, threads), 1);
            take(&count, 100, threads);
            assert_eq!(count.load(Ordering::Relaxed), 141);
        }
    }

    #[test]
    fn threads_that_take_at_once_stay_within_the_limit() {
        let (count, limit) = (AtomicU32::new(0), 64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let granted = reserve(&count, 32, limit, 4);
                        assert!(count.load(Ordering::Relaxed) <= limit);
                        give_back(&count, granted, 4);
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }

    #[test]
    #[should_panic(expected = "given back")]
    #[cfg(debug_assertions)]
    fn a_credit_that_nobody_took_is_not_given_back() {
        give_back(&AtomicU32::new(1), 2, 1);
    }
}
