//! The trait of an NF in callback style.

use std::time::Duration;

use crate::context::Context;
use crate::packet::Burst;

/// A network function, callback style.
pub trait Handler {
    /// Handles up to 32 packets, each with verdict `Next` at first. On this path a handler should
    /// not lock, allocate, log or make system calls.
    fn burst(&mut self, burst: &mut Burst<'_>);

    /// Called every [`tick_every`](Self::tick_every), packets or not; under load within a
    /// millisecond. `now_ns` is CLOCK_MONOTONIC.
    fn tick(&mut self, _now_ns: u64) {}

    /// Period of [`tick`](Self::tick), for which the NF wakes. Called once.
    fn tick_every(&self) -> Option<Duration> {
        None
    }

    /// Forgets everything learnt from packets. Called on a clean stop and, with `per = "flow"`,
    /// after each flow: within about a second, and before the first packet of the next.
    fn clean(&mut self) {}

    /// Called in an instance that was forked from its service's zygote, before its first packet.
    /// The handler is a copy of the zygote's; `context` is this instance's own. Make here what
    /// belongs to one process: a [`storage`](crate::storage), threads, timers, memory locks,
    /// io_uring and epoll instances, random state (equal in all copies, also `HashMap`'s), and
    /// files: instances share offset and `flock` lock of earlier ones. Memory is private, except
    /// for shared mappings.
    ///
    /// # Errors
    /// Any reason not to go on; the instance ends, as one whose handler cannot be made.
    fn forked(&mut self, _context: &Context) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}
