//! The waker of a packet thread that rests: see [`crate::worker`].

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes a packet thread, and flags that it has commands.
#[derive(Debug)]
pub struct Alarm {
    /// There are commands.
    raised: AtomicBool,
    rests: AtomicBool,
    /// When the thread last had a packet to handle, in nanoseconds.
    pub(crate) worked_ns: AtomicU64,
    pub(crate) wake: OwnedFd,
}

impl Alarm {
    /// An alarm that is not raised.
    ///
    /// # Errors
    /// The kernel's error, if it creates no eventfd.
    pub fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { raised: AtomicBool::new(false), rests: AtomicBool::new(false), worked_ns: AtomicU64::new(0), wake })
    }

    /// Flags that commands were sent.
    pub fn raise(&self) {
        // Release: commands are visible before the flag.
        self.raised.store(true, Ordering::Release);
        self.ring();
    }

    /// Ends a rest of the thread, for work that was made visible before.
    #[inline]
    pub fn ring(&self) {
        // SeqCst, as in `begin`: either this sees the thread rest, or the thread sees the work.
        fence(Ordering::SeqCst);
        self.ring_after_fence();
    }

    /// As [`Alarm::ring`], where a fence lies between the work and this call.
    #[inline]
    pub(crate) fn ring_after_fence(&self) {
        // Relaxed: of several ringing threads one takes the flag; their work is behind the fence.
        if self.rests.load(Ordering::Relaxed) && self.rests.swap(false, Ordering::Relaxed) {
            // A write fails only when the counter is full, and then the thread wakes.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Whether there are commands that were not taken.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        // Relaxed: a thread that finds it raised takes it, or looks again after `begin`'s fence.
        self.raised.load(Ordering::Relaxed)
    }

    /// Whether there are commands; clears the flag.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        // Acquire: what was sent before the flag was raised is visible.
        self.is_raised() && self.raised.swap(false, Ordering::Acquire)
    }

    /// The thread is about to rest: it looks for work after this call, and rests if there is none.
    pub(crate) fn begin(&self) {
        // Relaxed: the fence makes this visible before the look for work.
        self.rests.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn end(&self) {
        // Relaxed: a late ring only makes the next rest end at once.
        self.rests.store(false, Ordering::Relaxed);
    }

    pub(crate) fn hush(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn count(alarm: &Alarm) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(&alarm.wake, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn only_one_that_rests_is_called_for_and_once() {
        let alarm = Alarm::new().unwrap();
        alarm.ring();
        assert_eq!(count(&alarm), 0, "nobody rests");
        alarm.raise();
        assert_eq!(count(&alarm), 0, "it looks at the flag in its next round");
        assert!(alarm.take() && !alarm.take());
        alarm.begin();
        alarm.ring();
        alarm.ring();
        alarm.raise();
        assert_eq!(count(&alarm), 1);
        alarm.end();
        assert!(alarm.is_raised());
    }

    #[test]
    fn no_ring_is_lost() {
        const ALL: u64 = 20_000;
        let (alarm, said, heard) = (Alarm::new().unwrap(), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=ALL {
                    said.store(n, Ordering::Relaxed);
                    alarm.ring();
                    while heard.load(Ordering::Relaxed) < n {
                        std::thread::yield_now();
                    }
                }
            });
            while heard.load(Ordering::Relaxed) < ALL {
                alarm.begin();
                if said.load(Ordering::Relaxed) == heard.load(Ordering::Relaxed) {
                    let mut fds = [PollFd::new(&alarm.wake, PollFlags::IN)];
                    // A lost ring is a rest without end.
                    poll(&mut fds, None).unwrap();
                }
                alarm.end();
                alarm.hush();
                heard.store(said.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        });
    }
}
