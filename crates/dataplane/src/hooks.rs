//! Where features take part in a packet thread's rounds, other than by [steering](crate::steer).

use std::any::Any;
use std::sync::atomic::AtomicU64;

use crate::chain::{PathRegistry, Tables};
use crate::counter::Counter;
use crate::end::NfEnd;
use crate::plane::Plane;
use crate::queue::Arrivals;

/// Moves the packets of an NF that does not read its rings itself: from the rings into it, and on when they come out.
pub trait Feeder: Send {
    /// Number of the NF.
    fn number(&self) -> u16;

    /// One round: packets in, packets out. Says how many.
    fn poll(&mut self, plane: &mut Plane, registry: &PathRegistry) -> usize;

    /// Whether packets are here that have come from one side and not gone to the other.
    fn holds_packets(&self) -> bool;

    /// How packets that come out are noticed.
    fn arrivals(&self) -> Vec<Arrivals<'_>>;

    /// Called a few times a second. May make system calls.
    fn housekeeping(&mut self, plane: &Plane, now_ns: u64);

    /// The NF has gone: what is inside went with it. What is on its rings is taken back with the frames of an NF that died.
    fn leave(&mut self, plane: &mut Plane);

    /// Itself, for whoever gave it.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// What a [`Feeder`] counts of its NF, over all its lives. The thread that feeds it writes, all may read.
#[derive(Debug, Default)]
pub struct FeedCounters {
    /// Packets that went in.
    pub entered: Counter,
    /// Packets that came out and went on.
    pub returned: Counter,
    /// Of these, the ones that the NF made: more than went in.
    pub originated: Counter,
    /// Packets that went in and did not come back in time.
    pub not_back: Counter,
    /// Packets that came out and belong to no chain.
    pub strays: Counter,
    /// Copies that an NF with one interface missed.
    pub missed: Counter,
    /// Packets that came out while there was no room for them.
    pub overruns: Counter,
    /// Packets that are inside, as far as is known.
    pub inside: AtomicU64,
}

/// Decides from outside which NF of a core runs. The thread with the core's Wakeup role asks it once a round.
pub trait Sharing: Send {
    /// The core.
    fn core(&self) -> usize;

    /// Decides once more who has the core, and sees to it.
    fn step(&mut self, now_ns: u64);

    /// Takes in new tables. Cheap if there are none.
    fn learn(&mut self, registry: &PathRegistry, tables: &Tables, nfs: &[Option<NfEnd>]);

    /// Has paths looked at anew by the next [`learn`](Self::learn): an NF is gone.
    fn forget_paths(&mut self);

    /// Whether nothing happens here by itself.
    fn is_idle(&self) -> bool;

    /// When the slice that goes on ends at the latest, if others wait, in nanoseconds.
    fn deadline_ns(&self) -> Option<u64>;

    /// Itself, for whoever gave it.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}
