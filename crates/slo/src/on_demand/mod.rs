//! SLOs on demand: only latency is promised, and cache is shared as needed.
//!
//! # Problem
//! Instances with unmeasured cache needs share what a server leases to them. Most do best in one
//! class, where any of them can use the cache it needs at the moment. But an instance that brings
//! in lines faster than the others takes theirs, and then their latencies break. It is unknown how
//! many ways an instance needs, only whether its promise holds with what it has.
//!
//! # Terms
//! *Lease*: ways and classes for all instances on demand of a server ([`mod@lease`]). *Shared
//! class*: one of them, where each instance begins. *Own class*: that of an instance alone. *Fair
//! share*: the ways of the lease divided by its instances. *Need*: the estimated ways of a class,
//! one more than it had when the promise broke. *Broken*: above the promised latency in this period
//! and in `CONFIRM` of the last `WINDOW`. *Calm*: at most `SLACK` of the promised latency, or no
//! packet. *Period*: a call of [`Sharing::step`].
//!
//! # Approach
//! 1. All are in the shared class, which has the whole lease.
//! 2. An instance whose promise breaks and that misses (for every fiftieth packet, or more) gets
//!    its own class with its fair share. If there are fewer classes than such instances, those with
//!    most misses get one, broken or not: the rest of the shared class is then undisturbed. If no
//!    class is left, the instance with most misses in the shared class takes the class of the owner
//!    with fewest.
//! 3. Ways are given max-min by need ([`max_min`]); the shared class counts for all its instances,
//!    and has the ways that no class needs. A promise that breaks in an own class that is full of
//!    lines raises the need by a way.
//! 4. Where the needs exceed the ways, a calm class gives a way away, one for each class that lacks
//!    one. If its promise then breaks, it gets the way back and gives none for a while. If none is
//!    calm, the shared class is divided further.
//! 5. An instance returns to the shared class once it has kept its promise for `LEAVE` periods and
//!    the cause of its isolation seems gone: an instance has left, or the others' misses or its own
//!    load are a quarter less than at its isolation. If its promise breaks soon after, it gets the
//!    class back; its next return waits twice as long each time, and requires a quarter less than
//!    there was at this one.
//! 6. If sharing does not help (all of that is done, or it hardly misses, or it does not even fill
//!    its class), another instance is requested. At the cap, or when there is no room for one, its
//!    input is policed ([`police`]). Load above the agreed cap is policed at once.
//!
//! After each change, `SETTLE` periods are not evaluated: a mask that shrinks evicts nothing at
//! once. Classes of reserved SLOs are not part of the lease and stay untouched.
//!
//! # Limits
//! The cause is inferred: misses and a full class show that cache is short, not that more of it
//! would help. Ways move one at a time, so an instance that needs ten more waits some forty
//! periods. A partition that keeps all promises is found if one keeps all latencies within `SLACK`
//! of what is promised and there are enough classes; a tighter one may be missed.
//!
//! Source: Tootoonchian et al., "ResQ", NSDI 2018, section 5.3.2: shared class first,
//! violators with high miss rates isolated near their fair share, max-min. Needs, gifts and returns
//! are ours.

pub mod lease;
pub mod max_min;
pub mod observation;
pub mod police;
mod sharing;
pub use lease::{Footprint, Lease, LeaseError, lease};
pub use observation::{
    BrokenTerms, CacheClass, Decision, InstanceId, InstanceSample, Observation, ObservationError, Policed, Remedy, Request, Terms,
};
pub use sharing::Sharing;

use serde::{Deserialize, Serialize};

/// Periods of the last `WINDOW` with a latency above the promise that make it broken.
pub(crate) const CONFIRM: u32 = 2;
/// Length of the history, in periods.
pub(crate) const WINDOW: u32 = 4;
/// Part of the promised latency up to which an instance is calm.
pub const SLACK: f64 = 0.85;
/// Periods without evaluation after ways have moved.
pub(crate) const SETTLE: u32 = 2;
/// Calm periods before a way is given away or a limit raised.
pub(crate) const CALM: u32 = 3;
/// Periods with packets and unknown latency after which a limit is raised nevertheless: the limit
/// itself may leave too few packets to measure.
pub(crate) const UNKNOWN: u32 = 12;
/// Periods in which a promise is kept before an instance goes back to the shared class.
pub(crate) const LEAVE: u32 = 8;

/// Misses per packet from which on cache may be short.
const HIGH_MISSES: f64 = 0.02;
/// Part of its class that an instance holds if it could use more.
const FULL: f64 = 0.8;
/// Load or misses have gone if this part or less is left.
const GONE: f64 = 0.75;
/// Evaluated periods without success of sharing before another instance is requested.
const PATIENCE: u32 = 4;
/// Periods after a return in which a broken promise counts against it.
const PROBATION: u64 = 16;
/// Shortest and longest pause after a failure, in periods.
const PAUSES: (u32, u32) = (32, 1024);

/// A pause after a failure; each one is twice as long as the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    left: u32,
    last: u32,
}

impl Pause {
    fn start(&mut self) {
        self.last = (self.last * 2).clamp(PAUSES.0, PAUSES.1);
        self.left = self.last;
    }

    fn step(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Halves the next pause, after a success.
    fn shorten(&mut self) {
        self.last /= 2;
    }

    fn forget(&mut self) {
        *self = Self::default();
    }
}
