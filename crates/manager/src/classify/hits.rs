//! How many decisions each rule has made.
//!
//! A rule decides about a flow when its first packet comes, and about a known flow once more when the rules change or its path ends; the flow
//! table answers for all other packets. The counters outlive the tables that refer to them, so they never go back.

use std::sync::Arc;

use crate::chain::counter::Counter;

/// Decisions of one thread, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(Counter);

/// Decisions of one rule, by manager thread. Clones count together.
#[derive(Debug, Clone)]
pub struct RuleHits(Arc<[Line]>);

impl RuleHits {
    /// None so far.
    pub fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Line::default()).collect())
    }

    /// One more, by this thread. Only the thread itself may say so.
    pub fn add(&self, thread: usize) {
        if let Some(line) = self.0.get(thread) {
            line.0.add(1);
        }
    }

    /// Whether both count together.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Those of all threads.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|line| line.0.get()).sum()
    }
}
