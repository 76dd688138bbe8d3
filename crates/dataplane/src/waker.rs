//! The supervisor's waker: packet threads signal work that only the supervisor can do.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes the supervisor to start or end a process. The first call costs a system call; further
/// calls before [`take`](Self::take) only read a flag.
#[derive(Debug)]
pub struct Waker {
    wake: Arc<OwnedFd>,
    called: AtomicBool,
}

impl Waker {
    /// A waker that writes to this eventfd.
    pub fn new(wake: Arc<OwnedFd>) -> Self {
        Self { wake, called: AtomicBool::new(false) }
    }

    /// Wakes the supervisor, unless it was called already.
    #[inline]
    pub fn wake(&self) {
        // Release: the thread that takes it sees the work that it was called for.
        if !self.called.load(Ordering::Relaxed) && !self.called.swap(true, Ordering::Release) {
            // A write fails only when the counter is full, and then the reader is awake already.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Whether it was called since the last [`take`](Self::take).
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// Whether it was called; clears it.
    pub fn take(&self) -> bool {
        self.called.swap(false, Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn it_wakes_once_until_it_is_taken() {
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let waker = Waker::new(wake.clone());
        let count = || {
            let mut count = [0; 8];
            rustix::io::read(&*wake, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        };
        assert!(!waker.is_called() && !waker.take());
        waker.wake();
        waker.wake();
        assert_eq!((waker.is_called(), count(), count()), (true, 1, 0));
        assert!(waker.take() && !waker.take());
        waker.wake();
        assert_eq!(count(), 1);
    }
}
