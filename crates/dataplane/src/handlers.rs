//! A hook: handlers that run in a packet thread ([`crate::inline`]).

use std::any::Any;

use sluice_shm::arena::Arena;
use sluice_shm::descriptor::Descriptor;

/// The handlers of an NF that runs in a packet thread.
pub trait Inline: Send {
    /// Handles a burst in place: it sets verdicts, and changes neither frames nor their order.
    /// False: it has failed, and is not called again.
    fn burst(&mut self, arena: &Arena, burst: &mut [Descriptor], now_ns: u64) -> bool;

    /// Runs every fraction of a millisecond while packets come, and at least every 50 ms, with the
    /// time in nanoseconds. False as for `burst`.
    fn tick(&mut self, now_ns: u64) -> bool;

    /// Itself as [`Any`], for the feature that installed it.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}
