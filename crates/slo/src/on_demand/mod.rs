//! SLOs on demand: only a latency is promised, and the cache is shared out as it turns out to be needed.
//!
//! # Problem
//! Instances whose need of the cache nobody has measured share what a server leases to them. Most are best off in one class, where whoever
//! needs cache at the moment has it; but one that brings in lines faster than the others takes theirs, and then their latencies break.
//! Nobody knows how many ways an instance needs: only whether its promise holds with what it has.
//!
//! # Terms
//! *Lease*: ways and classes for all instances on demand of a server ([`mod@lease`]). *Shared class*: one of them, where each instance begins.
//! *Own class*: that of an instance alone. *Fair share*: the ways of the lease over its instances. *Need*: the ways that a class is believed
//! to need: one more than it had when the promise broke. *Broken*: above the promised latency in this period and `CONFIRM` of the last
//! `WINDOW`. *Calm*: at most `SLACK` of the promised latency, or no packet. *Period*: a call of [`Sharing::step`].
//!
//! # Approach
//! 1. All are in the shared class, which has the whole lease.
//! 2. An instance whose promise breaks and that misses (for each fiftieth packet, or more) is given its own class, with its fair share. If there are
//!    fewer classes than such instances, those that miss most get one, whoever they are: what is left in the shared class is then at peace. If none is left, who misses most in the shared class has the class of who misses
//!    least of the others.
//! 3. Ways are given max-min by need ([`max_min`]); the shared class counts for all in it, and has what nobody needs. A promise that
//!    breaks in a class of its own that is full of lines raises the need by a way.
//! 4. Where the sum of needs is more than there is, a class that is calm gives a way away, one for each that lacks one. If its promise
//!    then breaks, it has the way back and gives none for a while. If none is calm, the shared class is divided further.
//! 5. An instance goes back to the shared class once it has kept its promise for `LEAVE` periods and what was against it seems to have gone: an
//!    instance has left, or the misses of the others, or its own load, are a quarter less than they were beside its own class. If its promise breaks soon after, it has the class
//!    back, and the next return is later, each time twice as late, and wants a quarter less than there was at this one.
//! 6. If sharing does not help (all of that is done, or it hardly misses, or it does not even fill its class), another instance is asked for;
//!    at the cap, or when there is no room for one, its input is policed ([`police`]). Load above what was agreed is policed at once.
//!
//! After each change nobody is judged for `SETTLE` periods: a mask that shrinks evicts nothing at once. Classes of reserved SLOs are not
//! part of the lease and are not touched.
//!
//! # Limits
//! Cause is inferred: misses and a full class say that cache is short, not that more of it would help. Ways move one at a time, so an
//! instance that needs ten more waits some forty periods. A partition that keeps all promises is found if one keeps all latencies within
//! `SLACK` of what is promised and there are classes enough; one that is tighter may be missed.
//!
//! Source: Tootoonchian et al., "ResQ", NSDI 2018, sections 4.2 and 4.3: shared class first, violators with high miss rates isolated near
//! their fair share, max-min. Needs, gifts and returns are ours.

pub mod lease;
pub mod max_min;
pub mod observation;
pub mod police;
mod sharing;
#[cfg(test)]
mod tests;

pub use lease::{Footprint, Lease, LeaseError, lease};
pub use observation::{
    Class, Decision, InstanceId, Observation, ObservationError, Policed, Remedy, Request, Seen, Terms, Violation,
};
pub use sharing::Sharing;

use serde::{Deserialize, Serialize};

/// Periods of the last `WINDOW` in which a latency is above its promise before something is done.
pub(crate) const CONFIRM: u32 = 2;
/// Periods that are looked back on.
pub(crate) const WINDOW: u32 = 4;
/// Part of the promised latency below which an instance can do with less.
pub const SLACK: f64 = 0.85;
/// Periods in which nobody is judged after ways have moved.
pub(crate) const SETTLE: u32 = 2;
/// Calm periods before a way is given away or a limit raised.
pub(crate) const CALM: u32 = 3;
/// Periods in which packets came and no latency is known, after which a limit is raised all the same: it may be what leaves too few to tell.
pub(crate) const UNKNOWN: u32 = 12;
/// Periods in which a promise is kept before an instance goes back to the shared class.
pub(crate) const LEAVE: u32 = 8;

/// Misses per packet from which on cache may be what is short.
const HIGH_MISSES: f64 = 0.02;
/// Part of its class that an instance holds if it could use more.
const FULL: f64 = 0.8;
/// Part of load or misses that is left when they have gone.
const GONE: f64 = 0.75;
/// Judged periods in which sharing has failed before another instance is asked for.
const PATIENCE: u32 = 4;
/// Periods after a return in which a broken promise counts against it.
const PROBATION: u64 = 16;
/// Shortest and longest pause after what turned out wrong, in periods.
const PAUSES: (u32, u32) = (32, 1024);

/// A pause after something that turned out wrong; each one is twice as long as the one before.
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

    /// It went well this time.
    fn shorten(&mut self) {
        self.last /= 2;
    }

    fn forget(&mut self) {
        *self = Self::default();
    }
}
