//! Attacks of an NF on what it shares with others, which last as long as it runs.
//!
//! An NF that kept its packets or broke the rules of its rings would be stopped, and its attack
//! would end. So these return their packets, and write to rings nothing else.

// They are system calls.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_shm::core_page::CorePage;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::memory::Mapping;
use sluice_shm::page::{Attached, PAGE_BYTES, asleep};
use sluice_shm::{BURST, CACHE_LINE, doorbell, ring};

/// The name of a mode, what it does, and the function that does it.
type Attack = (&'static str, &'static str, fn(AttackingNf) -> !);

/// Further modes of a hostile NF.
pub const ATTACKS: [Attack; 3] = [
    ("bits", "sets all bits of the core page and of its own page, and says that it sleeps and the core is free", bits),
    ("move", "tries to get to each other core and into the real-time classes", leave),
    ("steal", "waits on the doorbells of its core page with many threads, and says that it sleeps and the core is free", steal),
];

/// Offset of the first bits of a core page, behind the word that names the slot that has the core.
const BITS: usize = 2 * CACHE_LINE;
/// Offset of what an NF and the manager write on the NF's page.
const WORDS: usize = 2 * CACHE_LINE;
/// Bytes of the core page that `bits` sets between two polls of its rings.
const STRETCH: usize = 4096;
/// Threads of `steal`: most of the processes that an NF may have.
const THIEVES: u32 = 240;
/// Slots, from the first on, whose doorbells they wait for.
const SLOTS: u32 = 4;
/// Bytes of a thief's stack.
const STACK: usize = 1 << 16;
/// The highest priority of a real-time class.
const HIGHEST: libc::c_int = 99;

/// An NF that has attached.
pub struct AttackingNf {
    pub attached: Attached,
    pub region: Arc<Mapping>,
    pub core: Arc<Mapping>,
    /// `core`, by its meaning.
    pub page: CorePage,
    pub slot: u32,
    /// The processor that it belongs on.
    pub processor: u32,
}

impl AttackingNf {
    /// Returns the packets that have come.
    fn pass(&mut self) {
        let mut burst = [Descriptor::default(); BURST];
        let n = take(&mut self.attached.rx, &mut burst);
        let _ = self.attached.tx.enqueue(&burst[..n]);
    }

    /// Sets all bits of a stretch of the core page, of its beginning and of the NF's page.
    fn set_bits(&self, at: usize) {
        fill(&self.core, at, at + STRETCH);
        fill(&self.core, BITS, BITS + STRETCH);
        fill(&self.region, WORDS, PAGE_BYTES);
        self.lie();
    }

    /// Says that it sleeps with packets and that the core is free, which makes the packet thread
    /// look for NFs to wake, and wake this one.
    fn lie(&self) {
        self.page.asleep(self.slot).store(1, Ordering::Relaxed);
        self.attached.page.asleep().store(asleep::ASLEEP, Ordering::Relaxed);
        self.page.running().store(0, Ordering::Relaxed);
        self.page.set_pending(self.slot, 0);
    }
}

/// Dequeues a burst from all rings together.
pub fn take(rings: &mut [ring::Consumer], burst: &mut [Descriptor; BURST]) -> usize {
    rings.iter_mut().fold(0, |n, ring| n + ring.dequeue(&mut burst[n..]).unwrap_or(0))
}

/// Sets all bits from one offset to another, or to the end.
fn fill(over: &Mapping, from: usize, to: usize) {
    for word in (from..to).step_by(4).map_while(|offset| over.atomic_u32(offset)) {
        word.store(u32::MAX, Ordering::Relaxed);
    }
}

fn bits(mut nf: AttackingNf) -> ! {
    loop {
        for at in (BITS..nf.core.len()).step_by(STRETCH) {
            nf.set_bits(at);
            nf.pass();
        }
    }
}

fn leave(mut nf: AttackingNf) -> ! {
    // SAFETY: the call takes a number.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let processors = processors.clamp(1, libc::CPU_SETSIZE.into()) as usize;
    loop {
        for processor in 0..processors {
            if processor != nf.processor as usize {
                change_place(processor);
            }
            nf.pass();
        }
    }
}

/// Tries to get to a processor, and to have it before all others.
fn change_place(processor: usize) {
    // SAFETY: each call gets valid arguments; its effect on this process, if allowed, is the
    // attack.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        let param = libc::sched_param { sched_priority: HIGHEST };
        for class in [libc::SCHED_FIFO, libc::SCHED_RR] {
            libc::sched_setscheduler(0, class, &raw const param);
        }
        libc::setpriority(libc::PRIO_PROCESS, 0, -20);
    }
}

fn steal(mut nf: AttackingNf) -> ! {
    let slots = nf.page.slots().min(SLOTS);
    for n in 0..THIEVES {
        let page = nf.page.clone();
        let thief = move || {
            loop {
                let bell = page.doorbell(n % slots);
                doorbell::wait(bell, bell.load(Ordering::Relaxed), None);
            }
        };
        // Fewer, if it may not have as many.
        if std::thread::Builder::new().stack_size(STACK).spawn(thief).is_err() {
            break;
        }
    }
    loop {
        nf.lie();
        for slot in 0..slots {
            let bell = nf.page.doorbell(slot);
            if slot == nf.slot {
                doorbell::ring(bell);
            } else {
                // A wake would help its sleeper. This wait ends at once, and holds the kernel's
                // lock of the doorbell meanwhile.
                doorbell::wait(bell, !bell.load(Ordering::Relaxed), Some(Duration::ZERO));
            }
        }
        nf.pass();
    }
}

#[cfg(test)]
mod tests {
    use sluice_shm::core_page;
    use sluice_shm::page::{Counter, Region, RegionLayout};

    use super::*;

    #[test]
    fn all_bits_are_set_and_packets_pass() {
        const SLOTS: u32 = 70;
        let layout = RegionLayout::new(1, 8).unwrap();
        let region = Region::create(layout).unwrap();
        let (memory, page) = CorePage::create(SLOTS, true).unwrap();
        page.running().store(2, Ordering::Relaxed);
        let mut nf = AttackingNf {
            attached: Attached::map(region.memory.fd(), layout).unwrap(),
            region: Mapping::new(region.memory.fd(), layout.bytes as usize, false).unwrap(),
            core: Mapping::new(memory.fd(), core_page::bytes(SLOTS), false).unwrap(),
            page: CorePage::map(memory.fd(), SLOTS, true).unwrap(),
            slot: 1,
            processor: 0,
        };
        let sent = Descriptor { frame: 5, len: 60, ..Default::default() };
        region.rx_producer(0).unwrap().enqueue(&[sent]).unwrap();
        (BITS..nf.core.len()).step_by(STRETCH).for_each(|at| nf.set_bits(at));
        nf.pass();
        assert_eq!((page.pending(0), page.pending(1)), (u64::MAX, u64::MAX));
        assert_eq!((page.take_returned(1, u64::MAX), page.hold(SLOTS - 1).load(Ordering::Relaxed)), (u64::MAX, u32::MAX));
        assert_eq!((page.running().load(Ordering::Relaxed), page.asleep(1).load(Ordering::Relaxed)), (0, 1));
        assert_eq!(region.page.counter(Counter::Bursts).load(Ordering::Relaxed), u64::MAX);
        assert_eq!(region.page.asleep().load(Ordering::Relaxed), asleep::ASLEEP);
        // Its rings are as they were, so that it is not stopped.
        let mut got = [Descriptor::default(); 4];
        assert_eq!((region.tx_consumer().dequeue(&mut got), got[0]), (Ok(1), sent));
    }
}
