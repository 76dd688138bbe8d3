//! A simulated core for the fuzzer, which plays its NFs and writes its memory. Not for production.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_shm::core_page::CorePage;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::memory::{MemoryError, SharedMemory, Snapshot};
use sluice_shm::page::{Region, RegionLayout, asleep};
use sluice_shm::ring::{Consumer, Producer};

use super::handover::{Handover, RESCUES};
use super::shortlist::CANDIDATES;
use crate::handle::NfHandle;

/// Capacity of an NF's ring.
const RING: u32 = 128;
/// Nanoseconds after which a core on which no NF moves is checked: the daemon's default.
const STILL_NS: u64 = 1_000_000;

/// Most NFs that a round wakes.
pub const MOST_WAKES: u64 = (CANDIDATES + RESCUES) as u64;

/// An NF that the fuzzer plays.
struct Played {
    handle: Arc<NfHandle>,
    post: Producer,
    read: Consumer,
}

/// A core with the Wakeup role.
pub struct PlayedCore {
    handover: Handover,
    nfs: Vec<Played>,
    page: CorePage,
    memory: SharedMemory,
    /// The page and each region as they were made.
    as_made: Vec<Snapshot>,
    /// Wakes of all NFs until now.
    woken: u64,
}

fn write(memory: &SharedMemory, at: usize, value: u32) {
    let words = memory.mapping().len() / 4;
    // Relaxed here and below: one thread plays all parts.
    memory.mapping().atomic_u32(at % words * 4).into_iter().for_each(|word| word.store(value, Ordering::Relaxed));
}

impl PlayedCore {
    /// A core with this many NFs, on a page with `slots` slots.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(nfs: u16, slots: u32) -> Result<Self, MemoryError> {
        let (memory, page) = CorePage::create(slots, true)?;
        (0..slots).for_each(|slot| page.reset(slot));
        let layout = RegionLayout::new(1, RING).expect("a power of two");
        let played = |number: u16| -> Result<Played, MemoryError> {
            let (region, slot) = (Region::create(layout)?, u32::from(number));
            let (name, in_flight) = (format!("nf.{number}"), Arc::default());
            let handle = NfHandle::new(number, name, 0, 0, false, region, page.clone(), slot, 1, in_flight, 1.0, None);
            let post = handle.region.rx_producer(0).expect("it has one");
            let read = handle.region.rx_consumer(0).expect("it has one");
            Ok(Played { handle, post, read })
        };
        let nfs = (0..nfs).map(played).collect::<Result<Vec<_>, _>>()?;
        let as_made = std::iter::once(&memory).chain(nfs.iter().map(|nf| &nf.handle.region.memory));
        let as_made = as_made.map(|memory| Snapshot::of(memory.mapping())).collect();
        let mut core = Self { handover: Handover::new(page.clone(), STILL_NS), nfs, page, memory, as_made, woken: 0 };
        core.begin_again(0);
        Ok(core)
    }

    /// Restores the initial state: all NFs sleep without packets.
    pub fn begin_again(&mut self, now_ns: u64) {
        let (page, regions) = self.as_made.split_first().expect("the page's are there");
        page.restore(self.memory.mapping());
        self.handover = Handover::new(self.page.clone(), STILL_NS);
        for (nf, region) in self.nfs.iter_mut().zip(regions) {
            let handle = &nf.handle;
            region.restore(handle.region.memory.mapping());
            nf.post = handle.region.rx_producer(0).expect("it has one");
            nf.read = handle.region.rx_consumer(0).expect("it has one");
            let (posted, returned) = handle.posted_returned();
            handle.counters[0].api.tx_packets.add(posted - returned);
            handle.core_page.posted(handle.slot).store(posted as u32, Ordering::Relaxed);
            handle.core_page.taken(handle.slot).store(posted as u32, Ordering::Relaxed);
            handle.set_alone(false);
            handle.set_guarded(false);
            self.handover.add(handle, now_ns);
        }
        (0..self.nfs.len()).for_each(|nf| self.sleep(nf));
    }

    /// Writes a word of the page, as any NF may.
    pub fn write_page(&self, at: usize, word: u32) {
        write(&self.memory, at, word);
    }

    /// Writes a word of an NF's region, as that NF may.
    pub fn write_region(&self, nf: usize, at: usize, word: u32) {
        if let Some(nf) = self.nfs.get(nf) {
            write(&nf.handle.region.memory, at, word);
        }
    }

    /// Posts packets to an NF, as many as there is room for.
    pub fn post(&mut self, nf: usize, packets: usize, now_ns: u64) {
        let Some(Played { handle, post, .. }) = self.nfs.get_mut(nf) else { return };
        let posted = post.enqueue(&[Descriptor::default(); RING as usize][..packets.min(RING as usize)]).unwrap_or(0);
        handle.counters[0].api.rx_packets.add(posted as u64);
        handle.core_page.posted(handle.slot).store(handle.counters[0].api.rx_packets.get() as u32, Ordering::Relaxed);
        handle.core_page.set_pending(handle.slot, now_ns);
    }

    /// Makes an NF return all its packets, as an honest one does.
    pub fn work(&mut self, nf: usize) {
        let Some(Played { handle, read, .. }) = self.nfs.get_mut(nf) else { return };
        let mut n = 0;
        while let Ok(got @ 1..) = read.dequeue(&mut [Descriptor::default(); 32]) {
            n += got as u64;
        }
        read.release();
        let (posted, returned) = handle.posted_returned();
        handle.counters[0].api.tx_packets.add(n.min(posted - returned));
        handle.core_page.taken(handle.slot).fetch_add(n as u32, Ordering::Relaxed);
    }

    /// Makes an NF say that it sleeps.
    pub fn sleep(&self, nf: usize) {
        let Some(Played { handle, .. }) = self.nfs.get(nf) else { return };
        handle.region.page.asleep().store(asleep::ASLEEP | asleep::HEARS, Ordering::Relaxed);
        handle.core_page.asleep(handle.slot).store(1, Ordering::Relaxed);
    }

    /// Runs a round of the packet thread. Returns how many NFs it woke.
    pub fn round(&mut self, now_ns: u64) -> u64 {
        self.handover.step(&[], 0, now_ns);
        let woken = self.nfs.iter().map(|nf| nf.handle.counters[0].api.wakes.get()).sum();
        woken - std::mem::replace(&mut self.woken, woken)
    }

    /// Times that an NF was woken.
    pub fn wakes(&self, nf: usize) -> u64 {
        self.nfs.get(nf).map_or(0, |nf| nf.handle.counters[0].api.wakes.get())
    }

    /// Packets that an NF has not read.
    pub fn unread(&self, nf: usize) -> u32 {
        self.nfs.get(nf).map_or(0, |nf| nf.handle.unread())
    }
}
