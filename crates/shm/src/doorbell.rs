//! The futex that an NF sleeps on.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex;

/// Sleeps until `bell` is rung, unless its value is no longer `seen`, or `timeout` is over. Wakes without cause are possible: the
/// caller looks at its rings again.
pub fn wait(bell: &AtomicU32, seen: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|t| futex::Timespec { tv_sec: t.as_secs() as _, tv_nsec: t.subsec_nanos() as _ });
    // EAGAIN (rung meanwhile), EINTR and ETIMEDOUT all mean: look again.
    let _ = futex::wait(bell, futex::Flags::empty(), seen, timeout.as_ref());
}

/// Rings `bell`: changes its value and wakes the one who sleeps on it.
pub fn ring(bell: &AtomicU32) {
    // Release: what the caller wrote before is seen by the one who wakes.
    bell.fetch_add(1, std::sync::atomic::Ordering::Release);
    let _ = futex::wake(bell, futex::Flags::empty(), 1);
}
