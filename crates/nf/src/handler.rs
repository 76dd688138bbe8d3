//! What an NF in callback style is written as.

use std::time::Duration;

use crate::context::Context;
use crate::packet::Burst;

/// A network function, callback style.
pub trait Handler {
    /// Handles up to 32 packets. Every packet's verdict starts as `Next`. On this path a handler should not lock, allocate, log or
    /// make system calls.
    fn burst(&mut self, burst: &mut Burst<'_>);

    /// Called every [`tick_every`](Self::tick_every) while the NF lives, packets or not; under load to within a millisecond. `now_ns`
    /// is CLOCK_MONOTONIC.
    fn tick(&mut self, _now_ns: u64) {}

    /// How often to call [`tick`](Self::tick); the NF wakes for it. Asked once.
    fn tick_every(&self) -> Option<Duration> {
        None
    }

    /// The state cleaner: forgets everything learnt from packets. Called on a clean stop, and where an NF serves one flow at a time
    /// (`per = "flow"`), after each flow: before the first packet of the next, and within about a second.
    fn clean(&mut self) {}

    /// Called in an instance that was forked from its service's zygote, before its first packet: the handler is a copy of the one that was
    /// made there, and `context` is this instance's own. What belongs to one process is made here and not with the handler: a
    /// [`storage`](crate::storage), threads, timers, memory locks, io_uring and epoll instances, random state (all copies begin with the
    /// same; that of `HashMap` too), and files with a place of their own: those that were opened with the handler are shared with all
    /// instances, offset and `flock` locks included. Memory is this instance's own, but for what was mapped to be shared.
    ///
    /// # Errors
    /// What makes it impossible to go on; the instance ends, as one whose handler cannot be made.
    fn forked(&mut self, _context: &Context) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}
