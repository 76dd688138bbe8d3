//! Hooks by which features take part in a packet thread's rounds, besides [steering](crate::steer).

use std::any::Any;
use std::sync::atomic::AtomicU64;

use sluice_api::model::FeedCounts;

use crate::chain::{PathRegistry, Tables};
use crate::counter::Counter;
use crate::end::NfEnd;
use crate::plane::Plane;
use crate::queue::Arrivals;

/// Moves packets between the rings and an NF that does not read them itself.
pub trait Feeder: Send {
    /// Number of the NF.
    fn number(&self) -> u16;

    /// One round: moves packets in and out, and returns how many.
    fn poll(&mut self, plane: &mut Plane, registry: &PathRegistry) -> usize;

    /// Whether it holds packets that came from one side and have not gone to the other.
    fn holds_packets(&self) -> bool;

    /// How the arrival of packets that come out is noticed.
    fn arrivals(&self) -> Vec<Arrivals<'_>>;

    /// Runs a few times a second. May make system calls.
    fn housekeeping(&mut self, plane: &mut Plane, now_ns: u64);

    /// The NF is gone with the packets inside it. Those on its rings are reclaimed with its frames.
    fn leave(&mut self, plane: &mut Plane);

    /// Itself as [`Any`], for the feature that installed it.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// Counters of a [`Feeder`]'s NF, over all its lives. The feeding thread writes, all may read.
#[derive(Debug, Default)]
pub struct FeedCounters {
    /// What the API reports.
    pub api: FeedCounts<Counter>,
    /// Packets that are inside, as far as is known.
    pub inside: AtomicU64,
}

/// Schedules the NFs of one core from outside. The thread with the core's Wakeup role calls it.
pub trait Sharing: Send {
    /// The core.
    fn core(&self) -> usize;

    /// Decides which NF has the core, and applies that.
    fn step(&mut self, now_ns: u64);

    /// Reads new tables. Cheap if nothing changed.
    fn learn(&mut self, registry: &PathRegistry, tables: &Tables, nfs: &[Option<NfEnd>]);

    /// Makes the next [`learn`](Self::learn) read all paths again: an NF is gone.
    fn forget_paths(&mut self);

    /// Whether nothing will happen here without an event from outside.
    fn is_idle(&self) -> bool;

    /// Latest end of the current slice if other NFs wait, in nanoseconds.
    fn deadline_ns(&self) -> Option<u64>;

    /// Itself as [`Any`], for the feature that installed it.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}
