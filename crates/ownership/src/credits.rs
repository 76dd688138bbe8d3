//! Credits: how many packets are on their way to an NF.
//!
//! Before it starts, a packet takes a credit of each NF of its path; it returns the credit when it
//! has passed the NF for the last time, or will not reach it. However many threads take credits, an
//! NF's count stays between zero and its limit, so its ring has room for each packet with a credit.
//!
//! Functions take the number of threads: a single one needs no atomic step, which would wait for
//! the thread's earlier stores, longer than all other work at the gate.

use crate::sync::{AtomicU32, Ordering};

/// Takes up to `n` credits that keep the count within `limit`, and returns how many.
#[inline(always)]
pub fn reserve(count: &AtomicU32, n: u32, limit: u32, threads: usize) -> u32 {
    // Relaxed: the count orders no other memory; frames travel by rings and the frame table.
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
            // Another packet thread was here; no NF can repeat this for ever.
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

/// Returns `n` credits that were taken.
#[inline(always)]
pub fn give_back(count: &AtomicU32, n: u32, threads: usize) {
    // Relaxed: a thread that waits for the last one polls, and learns nothing about frames by it.
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
