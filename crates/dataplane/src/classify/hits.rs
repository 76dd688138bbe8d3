//! Counters of the decisions that each rule has made.
//!
//! A rule decides for a flow's first packet, and again when rules change or the path ends; the flow
//! table answers for all others. Counters outlive the tables that refer to them and never decrease.

use std::sync::Arc;

use crate::counter::Counter;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(Counter);

/// Decisions of one rule, by manager thread. Clones count together.
#[derive(Debug, Clone)]
pub struct RuleHits(Arc<[Line]>);

impl RuleHits {
    /// Counters for this many threads, all zero.
    pub fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Line::default()).collect())
    }

    /// Adds one for this thread; only the thread itself may call it.
    pub fn add(&self, thread: usize) {
        if let Some(line) = self.0.get(thread) {
            line.0.add(1);
        }
    }

    /// Whether both are clones of the same counters.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The sum over all threads.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|line| line.0.get()).sum()
    }
}
