//! A bell that packet threads ring when something waits for what only the supervisor does: a process that is to be started or ended.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The bell. Rung again before it was answered, it costs a look at a flag; the first ring costs a system call.
#[derive(Debug)]
pub struct Bell {
    wake: Arc<OwnedFd>,
    rung: AtomicBool,
}

impl Bell {
    /// A bell that wakes whoever waits for an eventfd.
    pub fn new(wake: Arc<OwnedFd>) -> Self {
        Self { wake, rung: AtomicBool::new(false) }
    }

    /// Rings.
    #[inline]
    pub fn ring(&self) {
        // Release: who takes it sees what it was rung for.
        if !self.rung.load(Ordering::Relaxed) && !self.rung.swap(true, Ordering::Release) {
            // It can fail only where the counter is full, and then whoever waits is awake.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Whether it was rung since it was taken last.
    pub fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed)
    }

    /// Whether it was rung; it can be rung again.
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
