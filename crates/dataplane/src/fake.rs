//! NFs without processes, for tests; the test writes what a process would write.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_policy::sched::threshold::Rules;
use sluice_shm::arena::{Arena, Geometry};
use sluice_shm::core_page::CorePage;
use sluice_shm::page::{Counter, Region, RegionLayout};

use crate::end::NfEnd;
use crate::frame::{FrameCache, FramePool};
use crate::handle::NfHandle;
use sluice_api::config::Sched;

/// Capacity of their rings, and of the credits of each NF.
pub const RING: u32 = 128;

/// An NF to make; the default one sleeps.
#[derive(Debug, Clone, Copy)]
pub struct Fake {
    /// Its core.
    pub core: usize,
    /// Whether it polls.
    pub poll: bool,
    /// Weight beside its load.
    pub priority: f64,
    /// When it is woken, if not for each packet.
    pub wakeup: Option<Rules>,
}

impl Default for Fake {
    fn default() -> Self {
        Self { core: 0, poll: false, priority: 1.0, wakeup: None }
    }
}

/// The page of a core with `slots` slots.
pub fn core_page(slots: u32) -> CorePage {
    let (_memory, page) = CorePage::create(slots, true).unwrap();
    (0..slots).for_each(|slot| page.reset(slot));
    page
}

impl Fake {
    /// The NF with this number and slot, as a single manager thread with all roles sees it.
    pub fn on(self, page: &CorePage, number: u16) -> Arc<NfHandle> {
        let region = Region::create(RegionLayout::new(1, RING).unwrap()).unwrap();
        let (name, slot) = (format!("s.{number}"), u32::from(number));
        let in_flight = Arc::default();
        NfHandle::new(number, name, 0, self.core, self.poll, region, page.clone(), slot, 1, in_flight, self.priority, self.wakeup)
    }
}

/// The manager thread's end of an NF.
pub fn end(handle: &Arc<NfHandle>) -> NfEnd {
    let producer = handle.region.rx_producer(0).unwrap();
    NfEnd::new(handle.clone(), producer, &Sched::default())
}

/// Posts packets to an NF.
pub fn post(handle: &NfHandle, packets: u64) {
    handle.counters[0].api.rx_packets.add(packets);
}

/// Returns packets from an NF.
pub fn give_back(handle: &NfHandle, packets: u64) {
    handle.counters[0].api.tx_packets.add(packets);
}

/// Makes it report sampled packets and the time that they took together, in nanoseconds.
pub fn claim(handle: &NfHandle, packets: u64, took_ns: u64) {
    let page = &handle.region.page;
    page.add(Counter::Sampled, packets);
    page.add(Counter::BusyNs, took_ns);
}

/// Its share on its core page, of [`WHOLE`](sluice_shm::core_page::WHOLE).
pub fn page_share(handle: &NfHandle) -> u32 {
    handle.core_page.share(handle.slot).load(Ordering::Relaxed)
}

/// A cache that holds all of `frames` frames of the default size.
pub fn cache(frames: u32) -> FrameCache {
    let (_memory, arena) = Arena::create(Geometry { first: 0, frames, stride: 2240 }, false).unwrap();
    let mut cache = FrameCache::new(FramePool::new(frames), arena, frames as usize);
    let mut all = vec![0; frames as usize];
    assert_eq!(cache.alloc(&mut all), all.len());
    all.iter().for_each(|frame| cache.free(*frame));
    cache
}
