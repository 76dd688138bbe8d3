//! An NF that gets flows of others: what it returns goes on only when nothing will come from those any more. It is one that takes the place of
//! another one, or one that stays when another instance of its service goes.
//!
//! Problem: from the moment at which the tables name the successor, a flow's packets go to it, while earlier ones of the same flow are still
//! in the old NF's rings, or on their way there. The successor's ring is short, so they would overtake. Approach: it gets its packets
//! and works on them, and they wait on its tx ring, which the thread that drained the old one drains too. That goes on when all
//! threads have the new tables and the packets let in for the old NF have passed it, which the old one's credits count anyway. So the
//! ring that holds packets back is the one that they would have come to; nothing is copied, and no port is held up while it has room.
//!
//! Limits: where several threads drain the NFs of a service, an NF and one behind it may be drained by two of them; then a burst of the one can
//! be overtaken. An NF that stays is held up for as long as the other takes, its own flows too.
//! It is about the packets of the paths that the tables name. One that comes out of a foreign program behind which the old NF stood is
//! counted only when it comes out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Who the old NFs are, to the thread that drains them and the one behind them.
#[derive(Debug)]
pub struct Succession {
    former: Box<[Arc<AtomicU32>]>,
    settled: AtomicBool,
}

impl Succession {
    /// After NFs with so many packets on their way to each of them ([`NfHandle::in_flight`](super::handle::NfHandle::in_flight)).
    pub fn after(former: impl IntoIterator<Item = Arc<AtomicU32>>) -> Arc<Self> {
        Arc::new(Self { former: former.into_iter().collect(), settled: AtomicBool::new(false) })
    }

    /// All threads have tables that do not name the old NFs: no more packets are let in for them.
    pub fn settle(&self) {
        // Release: what those threads have let in before is counted.
        self.settled.store(true, Ordering::Release);
    }

    /// Whether the last packet of the old NFs has gone on. For the thread that drains them.
    pub fn is_over(&self) -> bool {
        // Acquire, both: packets are counted off by this thread, and counted in before the tables were settled.
        self.settled.load(Ordering::Acquire) && self.former.iter().all(|former| former.load(Ordering::Acquire) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_no_more_can_come_and_none_is_left() {
        let former = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
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
