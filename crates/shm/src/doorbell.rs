//! The futexes that an NF sleeps on.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{ClockId, futex};

use crate::clock::monotonic_ns;

/// Sleeps until the doorbell rings, its value differs from `seen`, or `timeout` expires. It may
/// also wake without cause: the caller looks at its rings again.
pub fn wait(bell: &AtomicU32, seen: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|t| futex::Timespec { tv_sec: t.as_secs() as _, tv_nsec: t.subsec_nanos() as _ });
    // EAGAIN (rung meanwhile), EINTR and ETIMEDOUT all mean: look again.
    let _ = futex::wait(bell, futex::Flags::empty(), seen, timeout.as_ref());
}

/// A doorbell, and the value with which it is waited for.
pub type Expected<'a> = (&'a AtomicU32, u32);

/// Whether the kernel can wait for more than one futex (Linux 5.16).
static WAITS_FOR_MORE: AtomicBool = AtomicBool::new(true);

/// Whether [`wait_for_either`] can wait for both.
pub fn waits_for_more() -> bool {
    // Relaxed: a fact about the kernel; a thread that does not know it finds it out again.
    WAITS_FOR_MORE.load(Ordering::Relaxed)
}

/// Finds out whether the kernel can wait for more than one futex.
pub fn look_for_more() -> bool {
    let word = AtomicU32::new(0);
    // The word does not have this value, so a kernel that knows the call returns at once.
    let answer = futex::waitv(&[waiter((&word, 1))], futex::WaitvFlags::empty(), None, ClockId::Monotonic);
    let knows = answer != Err(Errno::NOSYS) && answer != Err(Errno::PERM);
    WAITS_FOR_MORE.store(knows, Ordering::Relaxed);
    knows
}

fn waiter((bell, seen): Expected<'_>) -> futex::Wait {
    let mut waiter = futex::Wait::new();
    waiter.val = seen.into();
    waiter.uaddr = futex::WaitPtr::new(bell.as_ptr().cast());
    waiter.flags = futex::WaitFlags::SIZE_U32;
    waiter
}

/// As [`wait`], for either of two doorbells; for `first` alone on a kernel that cannot do both.
pub fn wait_for_either(first: Expected<'_>, second: Expected<'_>, timeout: Option<Duration>) {
    if !waits_for_more() {
        return wait(first.0, first.1, timeout);
    }
    let until = timeout.map(|timeout| {
        let ns = monotonic_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        futex::Timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ }
    });
    let both = [waiter(first), waiter(second)];
    // EAGAIN, EINTR and ETIMEDOUT as in wait().
    if futex::waitv(&both, futex::WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic) == Err(Errno::NOSYS) {
        WAITS_FOR_MORE.store(false, Ordering::Relaxed);
    }
}

/// Rings a doorbell: changes its value and wakes one sleeper.
pub fn ring(bell: &AtomicU32) {
    ring_for(bell, 1);
}

/// As [`ring`], for a doorbell on which other threads may sleep in the intended one's place. It
/// wakes up to `sleepers` and returns how many it woke: those of real-time classes first, by their
/// priority, and equal ones and all others in the order in which they came.
pub fn ring_for(bell: &AtomicU32, sleepers: u32) -> usize {
    // Release: the woken one sees what the caller wrote before.
    bell.fetch_add(1, Ordering::Release);
    futex::wake(bell, futex::Flags::empty(), sleepers).unwrap_or(0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn either_doorbell_ends_a_sleep() {
        look_for_more();
        let bells: &'static [AtomicU32; 2] = Box::leak(Box::default());
        for rung in [0, 1] {
            if rung == 1 && !waits_for_more() {
                continue;
            }
            let sleeper = std::thread::spawn(move || {
                let seen = bells.each_ref().map(|bell| bell.load(Ordering::Acquire));
                wait_for_either((&bells[0], seen[0]), (&bells[1], seen[1]), None);
            });
            while !sleeper.is_finished() {
                ring(&bells[rung]);
                std::thread::yield_now();
            }
            sleeper.join().unwrap();
        }
        // A value that has changed, and a timeout that expires.
        wait_for_either((&bells[0], 0), (&bells[1], u32::MAX), None);
        let seen = bells.each_ref().map(|bell| bell.load(Ordering::Acquire));
        wait_for_either((&bells[0], seen[0]), (&bells[1], seen[1]), Some(Duration::from_micros(50)));
    }
}
