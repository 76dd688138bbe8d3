//! The ring monitor: what waits before, in and behind an NF, at a glance.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_policy::sched::workflow::Reading;
use sluice_shm::page::Counter;
use sluice_shm::ring::Gauge;

use crate::foreign;
use crate::nf::handle::NfHandle;

/// The rings of one NF, and those that its packets go to next.
///
/// How much work an NF has is told by the manager's own counters, which no NF can reach. The rings' cursors are the NF's word in part:
/// one that lies there has its turns end sooner or later than they should, and no more.
#[derive(Debug)]
pub struct NfRings {
    handle: Arc<NfHandle>,
    rx: Vec<Gauge>,
    tx: Gauge,
    /// Of a program that knows nothing of Sluice.
    foreign: Option<Arc<foreign::Counters>>,
    /// Who may come after it on a path.
    next: Vec<Arc<NfHandle>>,
}

impl NfRings {
    /// Of an NF; `foreign` if it is a program that knows nothing of Sluice.
    pub fn new(handle: Arc<NfHandle>, foreign: Option<Arc<foreign::Counters>>) -> Self {
        let rings = handle.region.page.layout().rx_rings;
        let rx = (0..rings).filter_map(|ring| handle.region.rx_gauge(ring)).collect();
        Self { rx, tx: handle.region.tx_gauge(), handle, foreign, next: Vec::new() }
    }

    /// The NF.
    pub fn handle(&self) -> &Arc<NfHandle> {
        &self.handle
    }

    /// Says anew who may come after it.
    pub fn lead_to(&mut self, next: Vec<Arc<NfHandle>>) {
        self.next = next;
    }

    /// Packets that it has taken from its rings, ever, and packets that lie there now.
    #[inline]
    pub fn taken(&self) -> (u64, u32) {
        let unread = self.unread();
        (self.handle.posted_returned().0.saturating_sub(unread.into()), unread)
    }

    #[inline]
    fn unread(&self) -> u32 {
        self.rx.iter().map(Gauge::fill).sum()
    }

    /// What is seen of it now.
    #[inline]
    pub fn read(&self) -> Reading {
        let handle = &self.handle;
        if !handle.alive.load(Ordering::Relaxed) {
            return Reading { held: true, ..Reading::default() };
        }
        let (posted, returned) = handle.posted_returned();
        let mut work = u32::try_from(posted.saturating_sub(returned)).unwrap_or(u32::MAX);
        let held = handle.gate.held.load(Ordering::Relaxed);
        if handle.wants_core.load(Ordering::Relaxed) {
            // It has something else to do than packets: to end.
            return Reading { work: u32::MAX, unread: u32::MAX, room: u32::MAX, ..Reading::default() };
        }
        if let Some(foreign) = &self.foreign {
            // What is in it cannot be told apart from what it has eaten; both are written off in time. And it may have timers,
            // connections of its own, or a tap's copies to look at.
            work = work.saturating_add(u32::try_from(foreign.inside.load(Ordering::Relaxed)).unwrap_or(u32::MAX));
            return Reading { work, unread: u32::MAX, room: u32::MAX, held, background: true };
        }
        if handle.region.page.counter(Counter::Ready).load(Ordering::Relaxed) == 0 {
            // It has still to begin.
            return Reading { work: u32::MAX, unread: u32::MAX, room: u32::MAX, ..Reading::default() };
        }
        // What an NF puts on its own ring goes to the manager, which takes it at once if it can pass it on.
        let behind = |next: &Arc<NfHandle>| {
            let (posted, returned) = next.posted_returned();
            let room = u64::from(next.limit).saturating_sub(posted.saturating_sub(returned));
            // One that is gone takes nothing, and what it had does not come back to be counted. Half of a small ring is room enough.
            if !next.alive.load(Ordering::Relaxed) || 2 * room >= u64::from(next.limit) { u64::MAX } else { room }
        };
        let behind = self.next.iter().map(behind).min().unwrap_or(u64::MAX);
        let room = self.tx.room().min(u32::try_from(behind).unwrap_or(u32::MAX));
        Reading { work, unread: self.unread().min(work), room, held, background: false }
    }
}

#[cfg(test)]
mod tests {
    use sluice_shm::core_page::CorePage;
    use sluice_shm::descriptor::Descriptor;
    use sluice_shm::page::{Attached, Region, RegionLayout};

    use super::*;

    fn nf(number: u16) -> (Arc<NfHandle>, Attached) {
        let layout = RegionLayout::new(2, 64).unwrap();
        let region = Region::create(layout).unwrap();
        let attached = Attached::map(region.memory.fd(), layout).unwrap();
        let (_, page) = CorePage::create(8, true).unwrap();
        let name = format!("nf.{number}");
        let handle = NfHandle::new(number, name, 0, 1, true, region, page, u32::from(number), 1, 2, Arc::default(), 1.0, None);
        (handle, attached)
    }

    #[test]
    fn what_waits_is_seen_on_every_ring() {
        let ((handle, mut nf), (behind, _)) = (nf(0), nf(1));
        nf.page.counter(Counter::Ready).store(1, Ordering::Relaxed);
        let mut rings = NfRings::new(handle.clone(), None);
        assert_eq!(rings.read(), Reading { work: 0, unread: 0, room: 64, held: false, background: false });
        for (ring, packets) in [(0, 3), (1, 5)] {
            handle.region.rx_producer(ring).unwrap().enqueue(&[Descriptor::default(); 8][..packets]).unwrap();
            handle.counters[ring as usize].posted.add(packets as u64);
        }
        assert_eq!(rings.read(), Reading { work: 8, unread: 8, room: 64, held: false, background: false });
        nf.rx[1].dequeue(&mut [Descriptor::default(); 4]).unwrap();
        nf.tx.enqueue(&[Descriptor::default(); 2]).unwrap();
        assert_eq!(
            rings.read(),
            Reading { work: 8, unread: 4, room: 62, held: false, background: false },
            "two in hand, two on the output"
        );
        assert_eq!(rings.taken(), (4, 4));
        handle.counters[0].returned.add(2);
        // The ring behind it is nearly full.
        rings.lead_to(vec![behind.clone()]);
        behind.counters[0].posted.add(60);
        assert_eq!(rings.read(), Reading { work: 6, unread: 4, room: behind.limit - 60, held: false, background: false });
        // It has died with them.
        behind.alive.store(false, Ordering::Relaxed);
        assert_eq!(rings.read().room, 62);
    }

    #[test]
    fn one_that_begins_or_ends_wants_the_core_and_a_dead_one_does_not() {
        let (handle, nf) = nf(0);
        let rings = NfRings::new(handle.clone(), None);
        assert!(rings.read().work > 0, "it has not begun");
        nf.page.counter(Counter::Ready).store(1, Ordering::Relaxed);
        assert_eq!(rings.read().work, 0);
        handle.gate.held.store(true, Ordering::Relaxed);
        assert!(rings.read().held);
        handle.wants_core.store(true, Ordering::Relaxed);
        assert!(rings.read().work > 0 && !rings.read().held);
        handle.alive.store(false, Ordering::Relaxed);
        assert_eq!(rings.read(), Reading { held: true, ..Reading::default() });
    }

    #[test]
    fn what_is_inside_a_foreign_program_is_its_work() {
        let (handle, _nf) = nf(0);
        let counters = Arc::new(foreign::Counters::default());
        let rings = NfRings::new(handle.clone(), Some(counters.clone()));
        assert_eq!((rings.read().work, rings.read().background), (0, true), "it may have something to do that nobody sees");
        counters.inside.store(7, Ordering::Relaxed);
        handle.counters[1].posted.add(2);
        assert_eq!((rings.read().work, rings.read().held), (9, false));
    }
}
