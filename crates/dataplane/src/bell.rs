//! The supervisor's waker: packet threads signal work that only the supervisor can do.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes the supervisor to start or end a process. The first ring costs a system call; further
/// rings before [`take`](Self::take) only read a flag.
#[derive(Debug)]
pub struct Bell {
    wake: Arc<OwnedFd>,
    rung: AtomicBool,
}

impl Bell {
    /// A waker that writes to this eventfd.
    pub fn new(wake: Arc<OwnedFd>) -> Self {
        Self { wake, rung: AtomicBool::new(false) }
    }

    /// Wakes the supervisor, unless it was rung already.
    #[inline]
    pub fn ring(&self) {
        // Release: the thread that takes it sees the work that it was rung for.
        if !self.rung.load(Ordering::Relaxed) && !self.rung.swap(true, Ordering::Release) {
            // A write fails only when the counter is full, and then the reader is awake already.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Whether it was rung since the last [`take`](Self::take).
    pub fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed)
    }

    /// Whether it was rung; clears it.
    pub fn take(&self) -> bool {
        self.rung.swap(false, Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn it_wakes_once_until_it_is_taken() {
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let bell = Bell::new(wake.clone());
        let count = || {
            let mut count = [0; 8];
            rustix::io::read(&*wake, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        };
        assert!(!bell.is_rung() && !bell.take());
        bell.ring();
        bell.ring();
        assert_eq!((bell.is_rung(), count(), count()), (true, 1, 0));
        assert!(bell.take() && !bell.take());
        bell.ring();
        assert_eq!(count(), 1);
    }
}
