//! Succession: packets of an NF that took over flows wait until the old NFs' packets are through.
//!
//! The successor replaces an old NF, or remains when another instance of its service goes.
//!
//! Problem: once the tables name the successor, a flow's packets go to it, while earlier ones are
//! still in the old NF's rings or on their way there. The successor's ring is short, so they would
//! overtake. Approach: the successor works on its packets, and they wait on its tx ring, which the
//! thread that drained the old NF drains, too. Draining starts once all threads have the new tables
//! and all packets let in for the old NF have passed it, which its credits count anyway. Nothing is
//! copied, and no port is held up while that ring has room.
//!
//! Limits: where several threads drain the NFs of a service, two of them may drain an NF and one
//! behind it; then a burst of the former can be overtaken. An NF that remains is held up while the
//! other finishes, including its own flows. Only packets of paths that the tables name are covered.
//! A packet that was sent out before the old NF counts only once it is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::in_flight::InFlight;

/// The old NFs, for the thread that drains them and their successor.
#[derive(Debug)]
pub struct Succession {
    former: Box<[Arc<InFlight>]>,
    settled: AtomicBool,
}

impl Succession {
    /// A succession after NFs with these counts of packets on their way
    /// ([`Hot::in_flight`](super::handle::Hot::in_flight)).
    pub fn after(former: impl IntoIterator<Item = Arc<InFlight>>) -> Arc<Self> {
        Arc::new(Self { former: former.into_iter().collect(), settled: AtomicBool::new(false) })
    }

    /// All threads have tables without the old NFs: no more packets are let in for them.
    pub fn settle(&self) {
        // Release: what those threads let in before is counted.
        self.settled.store(true, Ordering::Release);
    }

    /// Whether the last packet of the old NFs has gone on. For the thread that drains them.
    pub fn is_over(&self) -> bool {
        // Acquire, both: this thread counts packets off, and all were counted before `settle`.
        self.settled.load(Ordering::Acquire) && self.former.iter().all(|former| former.load(Ordering::Acquire) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_no_more_can_come_and_none_is_left() {
        let former: [Arc<InFlight>; 2] = Default::default();
        let succession = Succession::after(former.clone());
        assert!(!succession.is_over(), "a thread may still let packets in");
        former[1].store(3, Ordering::Relaxed);
        succession.settle();
        assert!(!succession.is_over());
        former[1].store(0, Ordering::Relaxed);
        assert!(succession.is_over());
        former[0].store(1, Ordering::Relaxed);
        assert!(!succession.is_over());
    }
}
