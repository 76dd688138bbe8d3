use sluice_shm::descriptor::Descriptor;
use sluice_shm::page::{Control, asleep};
use sluice_shm::ring::{Consumer, Producer};

use super::*;
use crate::nf::fake::{self, Fake};

const MS: u64 = 1_000_000;

/// An NF whose process the test plays.
struct Nf {
    handle: Arc<NfHandle>,
    post: Producer,
    read: Consumer,
}

/// A core of NFs that sleep.
struct Rig {
    turns: Turns,
    nfs: Vec<Nf>,
    now: u64,
}

impl Rig {
    fn new(nfs: u16) -> Self {
        let page = fake::core_page(64);
        let mut turns = Turns::new(page.clone(), MS);
        let now = 1_000 * MS;
        let nfs = (0..nfs)
            .map(|number| {
                let handle = Fake::default().on(&page, number);
                turns.add(&handle, now);
                let nf = Nf { post: handle.region.rx_producer(0).unwrap(), read: handle.region.rx_consumer(0).unwrap(), handle };
                nf.sleep();
                nf
            })
            .collect();
        let mut rig = Self { turns, nfs, now };
        rig.pass(0);
        rig
    }

    fn page(&self) -> &CorePage {
        &self.turns.page
    }

    /// Packets come to an NF.
    fn post(&mut self, nf: usize, n: usize) {
        let Nf { handle, post, .. } = &mut self.nfs[nf];
        assert_eq!(post.enqueue(&vec![Descriptor::default(); n]), Ok(n));
        handle.counters[0].posted.add(n as u64);
        handle.core_page.posted(handle.slot).store(handle.counters[0].posted.get() as u32, Ordering::Relaxed);
        handle.core_page.set_pending(handle.slot, self.now);
    }

    /// Time passes, in rounds of 50 µs.
    fn pass(&mut self, ns: u64) {
        let until = self.now + ns;
        loop {
            self.turns.step(&[], 0, self.now);
            if self.now >= until {
                return;
            }
            self.now += 50_000;
        }
    }

    fn wakes(&self, nf: usize) -> u64 {
        self.nfs[nf].handle.counters[0].wakes.get()
    }

    fn running(&self) -> u32 {
        self.page().running().load(Ordering::Relaxed)
    }

    fn is_alone(&self, nf: usize) -> bool {
        let handle = &self.nfs[nf].handle;
        let told = handle.region.page.control(Control::Alone).load(Ordering::Relaxed) != 0;
        let on_hold = handle.core_page.hold(handle.slot).load(Ordering::Relaxed) & sluice_shm::core_page::ALONE != 0;
        assert_eq!((told, on_hold), (self.turns.members[nf].is_alone(), self.turns.members[nf].is_alone()));
        told
    }
}

impl Nf {
    /// It says on both pages that it sleeps.
    fn sleep(&self) {
        let handle = &self.handle;
        handle.region.page.asleep().store(asleep::ASLEEP | asleep::HEARS, Ordering::Relaxed);
        handle.core_page.asleep(handle.slot).store(1, Ordering::Relaxed);
    }

    /// It takes all that it has and returns it.
    fn work(&mut self) {
        let mut n = 0;
        loop {
            match self.read.dequeue(&mut [Descriptor::default(); 32]).unwrap() {
                0 => break,
                got => n += got as u64,
            }
        }
        self.read.release();
        self.handle.counters[0].returned.add(n);
        self.handle.core_page.taken(self.handle.slot).fetch_add(n as u32, Ordering::Relaxed);
    }
}

#[test]
fn a_free_core_is_given_to_who_has_packets_and_to_nobody_else() {
    let mut rig = Rig::new(3);
    rig.post(1, 5);
    rig.pass(0);
    assert_eq!((rig.wakes(1), rig.running(), rig.nfs[1].handle.is_asleep()), (1, 2, false));
    // It works, and sleeps as nobody has packets.
    rig.nfs[1].work();
    rig.nfs[1].sleep();
    rig.page().running().store(0, Ordering::Relaxed);
    // A neighbour says that all have packets.
    (0..3).for_each(|slot| rig.page().set_pending(slot, rig.now));
    (0..3).for_each(|slot| rig.page().posted(slot).store(77, Ordering::Relaxed));
    rig.pass(3 * MS);
    assert_eq!([0, 1, 2].map(|nf| rig.wakes(nf)), [0, 1, 0]);
}

#[test]
fn who_is_woken_and_does_not_move_is_woken_ever_more_rarely() {
    let mut rig = Rig::new(1);
    rig.post(0, 5);
    let mut counts = Vec::new();
    for _ in 0..4 {
        let before = rig.wakes(0);
        for _ in 0..200 {
            // It sleeps again at once, and says that the core is free.
            rig.nfs[0].sleep();
            rig.page().running().store(0, Ordering::Relaxed);
            rig.pass(50_000);
        }
        counts.push(rig.wakes(0) - before);
    }
    assert!(counts[0] < 12 && counts[3] <= 2, "{counts:?}");
    rig.nfs[0].work();
    rig.post(0, 1);
    rig.nfs[0].sleep();
    rig.page().running().store(0, Ordering::Relaxed);
    let before = rig.wakes(0);
    rig.pass(50_000);
    assert_eq!(rig.wakes(0), before + 1, "it has moved");
}

/// Says that this NF has the core, and gives it packets that it does not touch.
fn block(rig: &mut Rig, nf: usize) {
    rig.nfs[nf].handle.region.page.asleep().store(0, Ordering::Relaxed);
    rig.page().asleep(nf as u32).store(0, Ordering::Relaxed);
    rig.page().running().store(nf as u32 + 1, Ordering::Relaxed);
    rig.post(nf, 5);
}

#[test]
fn nobody_waits_for_who_has_the_core_and_does_not_move() {
    let mut rig = Rig::new(3);
    block(&mut rig, 0);
    rig.post(1, 5);
    rig.pass(MS / 2);
    assert_eq!(rig.wakes(1), 0, "it has its time");
    rig.pass(MS);
    assert_eq!((rig.wakes(1), rig.running()), (1, 2));
    assert!(!rig.is_alone(0), "the host may have taken the core away");
    // Again and again the others go on, and it does not.
    for _ in 0..2 {
        rig.nfs[1].work();
        rig.nfs[1].sleep();
        rig.pass(MS / 2);
        rig.page().running().store(1, Ordering::Relaxed);
        rig.post(1, 5);
        rig.pass(3 * MS / 2);
    }
    assert!(rig.is_alone(0) && !rig.is_alone(1));
    assert_eq!(rig.page().choose(Some(1), rig.now), None, "its neighbours do not start it");
    rig.nfs[1].work();
    rig.pass(3_000 * MS);
    assert!(rig.is_alone(0), "as long as it does not move");
    rig.nfs[0].work();
    rig.pass(MS);
    assert!(!rig.is_alone(0));
}

#[test]
fn nobody_is_blamed_while_nobody_has_the_core() {
    let mut rig = Rig::new(3);
    block(&mut rig, 0);
    (1..3).for_each(|nf| rig.post(nf, 5));
    // The host has it.
    rig.pass(50 * MS);
    for nf in 0..3 {
        assert!(rig.turns.members[nf].strikes <= 1 && !rig.is_alone(nf), "{nf}");
    }
    assert!(rig.wakes(1) > 1 && rig.wakes(2) > 1, "they are woken all the same");
}

#[test]
fn who_is_rescued_again_and_again_waits_for_its_own_bell_for_a_while() {
    let mut rig = Rig::new(2);
    let guarded = |rig: &Rig| rig.nfs[1].handle.region.page.control(Control::Guarded).load(Ordering::Relaxed) != 0;
    for rescues in 1..3 {
        // Somebody takes the wake: it has been woken, by all that can be seen, and sleeps.
        rig.post(1, 5);
        rig.nfs[1].handle.region.page.asleep().store(0, Ordering::Relaxed);
        rig.page().running().store(2, Ordering::Relaxed);
        rig.pass(2 * MS);
        assert_eq!(guarded(&rig), rescues == 2);
        rig.nfs[1].work();
        rig.nfs[1].sleep();
        rig.page().running().store(0, Ordering::Relaxed);
        rig.pass(MS);
    }
    rig.pass(2_000 * MS);
    assert!(!guarded(&rig));
}

#[test]
fn who_blocks_again_and_again_takes_no_turns_for_a_while() {
    let mut rig = Rig::new(2);
    for _ in 0..5 {
        block(&mut rig, 0);
        rig.post(1, 5);
        rig.pass(2 * MS);
        rig.nfs[0].work();
        rig.nfs[1].work();
        rig.nfs[1].sleep();
        rig.pass(MS / 2);
    }
    assert!(rig.is_alone(0));
    // Its packets wake it all the same, each time.
    let before = rig.wakes(0);
    rig.page().running().store(2, Ordering::Relaxed);
    rig.nfs[0].sleep();
    rig.post(0, 1);
    rig.pass(50_000);
    assert_eq!((rig.wakes(0) - before, rig.running()), (1, 2));
    rig.nfs[0].work();
    rig.pass(2_000 * MS);
    assert!(!rig.is_alone(0));
}

#[test]
fn whatever_stands_on_the_page_who_has_packets_is_woken_within_two_milliseconds() {
    let mut state = 0x5eed_5eed_5eed_5eedu64;
    let mut noise = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u32
    };
    let mut rig = Rig::new(4);
    // It has the core, and works on and on.
    for _ in 0..200 {
        rig.post(3, 5);
        for slot in 0..64 {
            for word in [rig.page().posted(slot), rig.page().depth(slot), rig.page().hold(slot), rig.page().share(slot)] {
                word.store(noise(), Ordering::Relaxed);
            }
            for word in [rig.page().taken(slot), rig.page().suspended(slot), rig.page().asleep(slot), rig.page().bell(slot)] {
                word.store(noise(), Ordering::Relaxed);
            }
            rig.page().pay(slot, u64::from(noise()));
            if noise() % 2 == 0 { rig.page().clear_pending(slot) } else { rig.page().set_pending(slot, u64::from(noise())) }
        }
        rig.page().running().store([0, 1, 2, 4, 70, noise()][noise() as usize % 6], Ordering::Relaxed);
        let before = rig.wakes(1);
        if rig.nfs[1].handle.unread() == 0 {
            rig.post(1, 1);
        }
        for _ in 0..8 {
            rig.pass(MS / 4);
            rig.nfs[3].work();
            rig.post(3, 1);
        }
        assert!(rig.wakes(1) > before || !rig.nfs[1].handle.is_asleep());
        rig.nfs[1].work();
        rig.nfs[1].sleep();
    }
    // It ends: the page is as it should be, and after a while everybody takes turns.
    rig.nfs.iter_mut().for_each(Nf::work);
    rig.nfs.iter_mut().for_each(|nf| nf.sleep());
    rig.pass(1_500 * MS);
    assert_eq!(rig.running(), 0);
    for nf in 0..4 {
        let handle = &rig.nfs[nf].handle;
        assert!(!rig.is_alone(nf));
        assert_eq!(rig.page().restore(handle.slot, &handle.said()), 0);
        assert_eq!(rig.page().posted(handle.slot).load(Ordering::Relaxed), handle.counters[0].posted.get() as u32);
    }
}

#[test]
fn who_is_said_to_wait_for_its_disk_is_woken_and_who_says_so_itself_is_not() {
    let mut rig = Rig::new(2);
    rig.post(0, 5);
    rig.page().running().store(2, Ordering::Relaxed);
    rig.page().suspended(0).store(1, Ordering::Relaxed);
    rig.pass(3 * MS / 2);
    assert_eq!((rig.wakes(0), rig.page().suspended(0).load(Ordering::Relaxed)), (1, 0));
    rig.nfs[0].work();
    rig.post(0, 5);
    let own = rig.nfs[0].handle.region.page.asleep();
    own.store(asleep::ASLEEP | asleep::HEARS | asleep::SUSPENDED, Ordering::Relaxed);
    rig.page().running().store(0, Ordering::Relaxed);
    rig.pass(20 * MS);
    assert_eq!(rig.wakes(0), 1);
}

#[test]
fn a_core_is_not_kept_for_who_has_died_left_or_never_was() {
    let mut rig = Rig::new(3);
    for running in [3, 9, 64, u32::MAX] {
        rig.page().running().store(running, Ordering::Relaxed);
        rig.nfs[2].handle.alive.store(false, Ordering::Relaxed);
        rig.pass(MS);
        assert_eq!(rig.running(), 0, "{running}");
    }
    rig.page().running().store(3, Ordering::Relaxed);
    rig.page().set_pending(2, rig.now);
    let handle = rig.nfs[2].handle.clone();
    rig.turns.remove(&handle);
    assert_eq!((rig.running(), rig.page().is_pending(2)), (0, false));
    rig.post(0, 1);
    rig.pass(0);
    assert_eq!(rig.wakes(0), 1, "those that are left are where they were");
}

#[test]
fn a_thread_that_did_not_run_blames_nobody() {
    let mut rig = Rig::new(2);
    block(&mut rig, 0);
    rig.post(1, 5);
    rig.now += 500 * MS;
    rig.turns.step(&[], 0, rig.now);
    assert!(!rig.is_alone(0) && rig.wakes(1) == 0);
    assert_eq!(rig.turns.members[0].strikes, 0);
    rig.pass(3 * MS / 2);
    assert!(rig.turns.members[0].strikes == 1 && rig.wakes(1) == 1);
}
