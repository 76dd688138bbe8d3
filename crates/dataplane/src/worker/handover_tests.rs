use std::sync::atomic::AtomicU32;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_shm::descriptor::Descriptor;
use sluice_shm::doorbell;
use sluice_shm::page::{Control, asleep};
use sluice_shm::ring::{Consumer, Producer};

use super::*;
use crate::fake::{self, Fake};

const MS: u64 = 1_000_000;
/// For other threads.
const PATIENCE: Duration = Duration::from_secs(60);
/// Duration of a round of the packet thread here.
const STEP_NS: u64 = 50_000;
/// Shortest slice.
const SWITCH_NS: u64 = 2_000;

struct Nf {
    handle: Arc<NfHandle>,
    post: Producer,
    read: Consumer,
    /// Time worked since it woke, and the budget that it had then.
    used_ns: u64,
    budget_ns: Option<i64>,
}

struct Rig {
    handover: Handover,
    nfs: Vec<Nf>,
    now: u64,
    /// An NF returned packets since the thread took what there was; and whether it notes that.
    have_returned: bool,
    notes_returned: bool,
}

impl Rig {
    fn new(nfs: u16) -> Self {
        let page = fake::core_page(64.max(nfs.into()));
        let mut handover = Handover::new(page.clone(), MS);
        let now = 1_000 * MS;
        let nfs = (0..nfs)
            .map(|number| {
                let handle = Fake::default().on(&page, number);
                handover.add(&handle, now);
                let (post, read) = (handle.region.rx_producer(0).unwrap(), handle.region.rx_consumer(0).unwrap());
                let nf = Nf { handle, post, read, used_ns: 0, budget_ns: None };
                nf.sleep();
                nf
            })
            .collect();
        let mut rig = Self { handover, nfs, now, have_returned: false, notes_returned: true };
        rig.pass(0);
        rig
    }

    fn page(&self) -> &CorePage {
        &self.handover.page
    }

    fn post(&mut self, nf: usize, n: usize) {
        let Nf { handle, post, .. } = &mut self.nfs[nf];
        assert_eq!(post.enqueue(&vec![Descriptor::default(); n]), Ok(n));
        handle.counters[0].api.rx_packets.add(n as u64);
        handle.core_page.posted(handle.slot).store(handle.counters[0].api.rx_packets.get() as u32, Ordering::Relaxed);
        handle.core_page.set_pending(handle.slot, self.now);
    }

    /// Passes time, in rounds of [`STEP_NS`].
    fn pass(&mut self, ns: u64) {
        let until = self.now + ns;
        loop {
            if self.handover.looks_at_some(self.now) && std::mem::take(&mut self.have_returned) && self.notes_returned {
                self.handover.note_moved(self.now);
            }
            self.handover.step(&[], 0, self.now);
            if self.now >= until {
                return;
            }
            self.now += STEP_NS;
        }
    }

    fn wakes(&self, nf: usize) -> u64 {
        self.nfs[nf].handle.counters[0].api.wakes.get()
    }

    fn running(&self) -> u32 {
        self.page().running().load(Ordering::Relaxed)
    }

    fn fill(&mut self, nf: usize, n: usize) {
        let room = fake::RING - self.nfs[nf].handle.unread();
        self.post(nf, n.min(room as usize));
    }

    /// Runs an honest NF for `ns`, if it is awake: it takes packets at this rate, and hands the
    /// core over when it has none, or when its budget is used up and another has some. Returns how
    /// long it had the core, in nanoseconds.
    fn work(&mut self, nf: usize, packets_a_us: usize, ns: u64) -> u64 {
        let (page, now) = (self.handover.page.clone(), self.now);
        let Nf { handle, read, used_ns, budget_ns, .. } = &mut self.nfs[nf];
        let slot = handle.slot;
        if handle.is_asleep() && page.asleep(slot).load(Ordering::Relaxed) != 0 {
            return 0;
        }
        // If a neighbour woke it, it updates both pages when it runs.
        handle.region.page.asleep().store(0, Ordering::Relaxed);
        page.asleep(slot).store(0, Ordering::Relaxed);
        let budget_ns = *budget_ns.get_or_insert_with(|| i64::from(page.budget(slot)));
        let mut left = packets_a_us * (ns / 1_000) as usize;
        let takes_turns = !handle.alone.load(Ordering::Relaxed);
        loop {
            let mut burst = [Descriptor::default(); 32];
            let got = read.dequeue(&mut burst[..left.min(32)]).unwrap();
            read.release();
            handle.counters[0].api.tx_packets.add(got as u64);
            self.have_returned |= got > 0;
            page.taken(slot).fetch_add(got as u32, Ordering::Relaxed);
            *used_ns += (got / packets_a_us) as u64 * 1_000;
            left -= got;
            let is_idle = handle.unread() == 0;
            if is_idle || takes_turns && *used_ns as i64 >= budget_ns && page.has_other(slot) {
                self.nfs[nf].give_away(takes_turns, !is_idle, now);
                break;
            }
            if left == 0 {
                break;
            }
        }
        ns - (left / packets_a_us) as u64 * 1_000
    }

    /// Runs the honest NFs that neighbours have woken for [`STEP_NS`], one after another.
    fn work_all(&mut self) {
        let mut left_ns = STEP_NS;
        while left_ns > 0 {
            let is_awake = |nf: &usize| self.page().asleep(*nf as u32).load(Ordering::Relaxed) == 0;
            let Some(nf) = (0..self.nfs.len()).find(is_awake) else { break };
            left_ns = left_ns.saturating_sub(self.work(nf, 1, left_ns).max(SWITCH_NS));
        }
    }

    /// Whether an NF sleeps on packets.
    fn is_kept(&self, nf: usize) -> bool {
        let handle = &self.nfs[nf].handle;
        handle.unread() > 0 && handle.is_asleep() && self.page().asleep(nf as u32).load(Ordering::Relaxed) != 0
    }

    fn is_alone(&self, nf: usize) -> bool {
        let handle = &self.nfs[nf].handle;
        let told = handle.region.page.control(Control::Alone).load(Ordering::Relaxed) != 0;
        let on_hold = handle.core_page.hold(handle.slot).load(Ordering::Relaxed) & sluice_shm::core_page::ALONE != 0;
        assert_eq!((told, on_hold), (self.handover.members[nf].is_alone(), self.handover.members[nf].is_alone()));
        told
    }
}

impl Nf {
    fn sleep(&self) {
        let handle = &self.handle;
        handle.region.page.asleep().store(asleep::ASLEEP | asleep::HEARS, Ordering::Relaxed);
        handle.core_page.asleep(handle.slot).store(1, Ordering::Relaxed);
    }

    /// Makes it pay and sleep; with hand-overs, it starts the next NF that has packets.
    fn give_away(&mut self, takes_turns: bool, has_packets: bool, now: u64) {
        let (page, slot) = (&self.handle.core_page, self.handle.slot);
        self.budget_ns = None;
        let used_ns = std::mem::take(&mut self.used_ns);
        page.clear_pending(slot);
        self.sleep();
        if has_packets {
            page.set_pending(slot, now);
        }
        if takes_turns {
            page.pay(slot, used_ns);
            page.hand_over_at(slot, now);
        } else {
            page.give_up(slot);
        }
    }

    /// A word of its rx ring: 0 is the head, 1 the tail.
    fn cursor(&self, which: usize) -> &AtomicU32 {
        let region = &self.handle.region;
        region.memory.mapping().atomic_u32(region.page.layout().rings as usize + which * 64).unwrap()
    }

    fn work(&mut self) {
        let mut n = 0;
        loop {
            match self.read.dequeue(&mut [Descriptor::default(); 32]).unwrap() {
                0 => break,
                got => n += got as u64,
            }
        }
        self.read.release();
        self.handle.counters[0].api.tx_packets.add(n);
        self.handle.core_page.taken(self.handle.slot).fetch_add(n as u32, Ordering::Relaxed);
    }
}

#[test]
fn a_free_core_is_given_to_one_with_packets_and_to_no_other() {
    let mut rig = Rig::new(3);
    rig.post(1, 5);
    rig.pass(0);
    assert_eq!((rig.wakes(1), rig.running(), rig.nfs[1].handle.is_asleep()), (1, 2, false));
    // It works, and sleeps, as no NF has packets.
    rig.nfs[1].work();
    rig.nfs[1].sleep();
    rig.page().running().store(0, Ordering::Relaxed);
    // A neighbour claims that all have packets.
    (0..3).for_each(|slot| rig.page().set_pending(slot, rig.now));
    (0..3).for_each(|slot| rig.page().posted(slot).store(77, Ordering::Relaxed));
    rig.pass(3 * MS);
    assert_eq!([0, 1, 2].map(|nf| rig.wakes(nf)), [0, 1, 0]);
}

#[test]
fn one_that_is_woken_and_does_not_move_is_woken_ever_more_rarely() {
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

/// Makes this NF hold the core with packets that it does not touch.
fn block(rig: &mut Rig, nf: usize) {
    rig.nfs[nf].handle.region.page.asleep().store(0, Ordering::Relaxed);
    rig.page().asleep(nf as u32).store(0, Ordering::Relaxed);
    rig.page().running().store(nf as u32 + 1, Ordering::Relaxed);
    rig.post(nf, 5);
}

#[test]
fn none_waits_for_one_that_has_the_core_and_does_not_move() {
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
    // The host has the core.
    rig.pass(50 * MS);
    for nf in 0..3 {
        assert!(rig.handover.members[nf].silences.n <= 1 && !rig.is_alone(nf), "{nf}");
    }
    assert!(rig.wakes(1) > 1 && rig.wakes(2) > 1, "they are woken all the same");
}

#[test]
fn one_that_is_rescued_again_and_again_waits_for_its_own_doorbell_for_a_while() {
    let mut rig = Rig::new(2);
    let guarded = |rig: &Rig| rig.nfs[1].handle.region.page.control(Control::Guarded).load(Ordering::Relaxed) != 0;
    for rescues in 1..3 {
        // Something takes the wake: it was woken by all appearances, and sleeps.
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
fn one_that_cannot_wait_for_two_doorbells_takes_no_turns_while_its_wakes_are_taken() {
    for hears in [0, asleep::HEARS] {
        let mut rig = Rig::new(2);
        for rescues in 1..4 {
            rig.post(1, 5);
            // It sleeps by its own word and was woken by the page's.
            rig.nfs[1].handle.region.page.asleep().store(asleep::ASLEEP | hears, Ordering::Relaxed);
            rig.page().running().store(2, Ordering::Relaxed);
            let before = rig.wakes(1);
            while rig.wakes(1) == before {
                rig.pass(STEP_NS);
            }
            assert_eq!(rig.is_alone(1), rescues == 3 && hears == 0, "{rescues} rescues, hears {hears}");
            rig.nfs[1].work();
            rig.page().running().store(0, Ordering::Relaxed);
            // Too far apart to count as held slices.
            rig.pass(2 * STRIKE_NS);
        }
        let bell = |rig: &Rig| rig.nfs[1].handle.region.page.doorbell().load(Ordering::Relaxed);
        let rung = bell(&rig);
        rig.nfs[1].sleep();
        rig.pass(2_000 * MS);
        assert!(!rig.is_alone(1), "it joins again");
        assert_eq!(bell(&rig) != rung, hears == 0, "and hears of it");
    }
}

#[test]
fn one_that_blocks_again_and_again_takes_no_turns_for_a_while() {
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
fn whatever_stands_on_the_page_one_with_packets_is_woken_within_two_milliseconds() {
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
            for word in [rig.page().taken(slot), rig.page().suspended(slot), rig.page().asleep(slot), rig.page().doorbell(slot)] {
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
    // It ends: the page is as it should be, and after a while all join hand-overs again.
    rig.nfs.iter_mut().for_each(Nf::work);
    rig.nfs.iter_mut().for_each(|nf| nf.sleep());
    rig.pass(1_500 * MS);
    assert_eq!(rig.running(), 0);
    for nf in 0..4 {
        let handle = &rig.nfs[nf].handle;
        assert!(!rig.is_alone(nf));
        assert_eq!(rig.page().restore(handle.slot, &handle.said()), 0);
        assert_eq!(rig.page().posted(handle.slot).load(Ordering::Relaxed), handle.counters[0].api.rx_packets.get() as u32);
    }
}

#[test]
fn one_that_others_call_waiting_for_its_disk_is_woken_and_one_that_says_so_itself_is_not() {
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
fn a_core_is_not_kept_for_one_that_died_left_or_never_was() {
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
    rig.handover.remove(&handle);
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
    rig.handover.step(&[], 0, rig.now);
    assert!(!rig.is_alone(0) && rig.wakes(1) == 0);
    assert_eq!(rig.handover.members[0].silences.n, 0);
    rig.pass(3 * MS / 2);
    assert!(rig.handover.members[0].silences.n == 1 && rig.wakes(1) == 1);
}

/// Says that a slot has had packets for a second, and goes before all others.
fn raise_ghost(page: &CorePage, slot: u32, now: u64) {
    page.posted(slot).store(page.taken(slot).load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    page.set_level(slot, 9);
    page.endow(slot, 10 * MS);
    page.set_pending(slot, now - 1_000 * MS);
    page.favour(slot, true);
}

#[test]
fn a_slot_that_no_nf_has_is_nobody_that_others_wait_for() {
    let mut rig = Rig::new(3);
    rig.now += 1_000 * MS;
    rig.pass(0);
    (0..2).for_each(|nf| rig.post(nf, 5));
    // NF 2 says so of two slots and of its own, and ends.
    [2, 9, 63].iter().for_each(|slot| raise_ghost(rig.page(), *slot, rig.now));
    let handle = rig.nfs[2].handle.clone();
    rig.handover.remove(&handle);
    let page = rig.page().clone();
    page.favour(63, true);
    assert_eq!((page.choose(Some(0), rig.now), page.is_preceded(0)), (Some(9), true));
    page.running().store(10, Ordering::Relaxed);
    rig.pass(LOOK_NS);
    assert_eq!((page.pending(0), page.choose(Some(0), rig.now), page.is_preceded(0)), (0b11, Some(1), false));
    assert!([1, 2].contains(&rig.running()), "one that has packets has the core: {}", rig.running());
    for nf in &rig.nfs[..2] {
        assert_eq!(page.restore(nf.handle.slot, &nf.handle.said()), 0);
        assert_eq!(page.waiting(nf.handle.slot), 5);
    }
    assert_eq!(rig.handover.distrust_until_ns, 0, "it was said once");
    for _ in 0..2 {
        raise_ghost(&page, 9, rig.now);
        rig.pass(LOOK_NS);
        assert_eq!(page.pending(0) & !0b11, 0);
    }
    assert!(rig.handover.distrust_until_ns > rig.now);
    // The last one that says such a thing takes it along.
    assert!(page.has_favoured());
    let handle = rig.nfs[1].handle.clone();
    rig.handover.remove(&handle);
    assert!(!page.has_favoured());
}

/// NF 0's lie: it has the core, and is to have it next.
fn claim(page: &CorePage) {
    page.running().store(1, Ordering::Relaxed);
    page.set_pending(0, 0);
}

/// In addition: NF 1 owes all that it can.
fn indebt(page: &CorePage) {
    claim(page);
    page.set_budget(1, -wakeup::DEBT_NS);
}

/// In addition: NF 1 has no packets.
fn hide(page: &CorePage) {
    indebt(page);
    page.clear_pending(1);
}

/// NF 0 forwards a few packets each millisecond, and lies at the times of `lies`. NF 1 is honest
/// and always has packets. Returns its sleep on them in four seconds: sum and maximum, in ns.
fn beside_a_liar(lie: fn(&CorePage), lies: fn(u64) -> bool) -> (u64, u64) {
    let mut rig = Rig::new(2);
    let (began, mut all, mut longest, mut kept) = (rig.now, 0, 0, 0);
    while rig.now < began + 4_000 * MS {
        let at_ns = rig.now - began;
        rig.fill(1, 10);
        if at_ns.is_multiple_of(MS) {
            rig.fill(0, 5);
        }
        rig.pass(STEP_NS);
        if lies(at_ns) {
            if at_ns.is_multiple_of(MS) {
                rig.nfs[0].work();
            }
            lie(rig.page());
        } else {
            rig.work(0, 1, STEP_NS / 2);
        }
        rig.work(1, 5, STEP_NS / 2);
        if lies(at_ns) {
            lie(rig.page());
        }
        kept = if rig.is_kept(1) { kept + STEP_NS } else { 0 };
        all += if kept > 0 { STEP_NS } else { 0 };
        longest = longest.max(kept);
    }
    (all, longest)
}

#[test]
fn one_that_lies_and_works_on_delays_its_neighbour_by_a_few_rounds_and_then_hardly_ever() {
    let (all, longest) = beside_a_liar(claim, |_| false);
    assert!(all < 4_000 * MS / 2 && longest <= 2 * MS, "an honest one has its turns: {all} {longest}");
    for (name, lie) in [("claim", claim as fn(&CorePage)), ("indebt", indebt), ("hide", hide)] {
        let (all, longest) = beside_a_liar(lie, |_| true);
        // Three rounds of a millisecond, and what it can owe.
        assert!(longest <= 4 * MS + MS / 2, "{name}: {longest}");
        assert!(all <= 40 * MS, "{name}: {all} of four seconds");
        // Now and then, for as long as a look takes, and then until all is forgotten.
        let (all, longest) = beside_a_liar(lie, |at_ns| at_ns % (150 * MS) < 20 * MS);
        assert!(longest <= 12 * MS, "{name}, at times: {longest}");
        let honest = beside_a_liar(claim, |_| false).0;
        assert!(all <= honest + 100 * MS, "{name}, at times: {all}, else {honest}");
    }
}

fn assert_none_neglected(rig: &Rig, what: &str) {
    assert_eq!(rig.handover.distrust_until_ns, 0, "{what}");
    for member in &rig.handover.members {
        assert_eq!(member.neglects.n, 0, "{what}: {}", member.handle.name);
    }
}

#[test]
fn one_whose_packets_end_a_rest_of_the_thread_was_not_neglected() {
    let mut rig = Rig::new(2);
    for _ in 0..10 {
        rig.now += 20 * MS;
        rig.post(0, 5);
        rig.pass(STEP_NS);
        for _ in 0..10 {
            rig.work(0, 1, STEP_NS);
            rig.pass(STEP_NS);
        }
        assert_eq!(rig.nfs[0].handle.unread(), 0);
    }
    assert_none_neglected(&rig, "after rests");
}

/// Honest NFs that take a packet a microsecond, for `ns`. `fill` says how many each gets before a
/// step, by how many it has.
fn run_honest(rig: &mut Rig, ns: u64, fill: impl Fn(u32) -> usize) {
    for _ in 0..ns / STEP_NS {
        for nf in 0..rig.nfs.len() {
            if rig.handover.member(nf as u32).is_some() {
                rig.fill(nf, fill(rig.nfs[nf].handle.unread()));
            }
        }
        rig.pass(STEP_NS);
        rig.work_all();
    }
}

#[test]
fn honest_ones_that_always_have_packets_are_not_neglected() {
    for nfs in [3, 5, 10, 40] {
        let mut rig = Rig::new(nfs);
        run_honest(&mut rig, 2_000 * MS, |_| 100);
        assert_none_neglected(&rig, &format!("{nfs} NFs"));
    }
}

fn assert_none_struck(rig: &Rig, what: &str) {
    assert_none_neglected(rig, what);
    let struck = rig.handover.members.iter().filter(|member| member.silences.n > 0).count();
    assert_eq!(struck, 0, "{what}");
}

#[test]
fn a_crowd_that_goes_round_as_looks_do_is_neither_neglected_nor_taken_for_still() {
    // The microseconds of a turn.
    let cases = [(200, 16), (200, 17), (200, 25), (200, 100), (500, 120)];
    for ((nfs, packets), notes_returned) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let mut rig = Rig { notes_returned, ..Rig::new(nfs) };
        run_honest(&mut rig, 500 * MS, |unread| if unread == 0 { packets } else { 0 });
        let what = format!("{nfs} NFs, {packets} packets, {notes_returned}");
        assert_none_struck(&rig, &what);
        let moved = rig.handover.members.iter().filter(|member| member.moved > 0).count();
        assert_eq!(moved, usize::from(nfs), "{what}");
    }
}

#[test]
fn a_crowd_from_which_nfs_go_is_not_neglected() {
    let mut rig = Rig::new(500);
    for gone in 0..10 {
        run_honest(&mut rig, 70 * MS, |unread| if unread == 0 { 120 } else { 0 });
        rig.nfs[7 * gone].sleep();
        rig.handover.remove(&rig.nfs[7 * gone].handle.clone());
    }
    assert_none_struck(&rig, "some go");
}

#[test]
fn a_crowd_with_one_that_owes_again_and_again_is_believed() {
    let mut rig = Rig::new(200);
    for _ in 0..8 {
        rig.page().set_budget(7, -4 * MS as i64);
        run_honest(&mut rig, 150 * MS, |unread| if unread == 0 { 35 } else { 0 });
    }
    // It may be rescued when its debt is nearly paid.
    let most = rig.handover.members.iter().map(|member| member.neglects.n).max();
    assert!(rig.handover.distrust_until_ns == 0 && most < Some(STRIKES), "{most:?}");
}

#[test]
fn a_crowd_that_stands_still_is_soon_rescued() {
    for notes_returned in [false, true] {
        let mut rig = Rig { notes_returned, ..Rig::new(200) };
        run_honest(&mut rig, 50 * MS, |unread| if unread == 0 { 20 } else { 0 });
        assert_none_struck(&rig, "while they go round");
        // Nobody works, as if the holder of the core hung.
        let woken = |rig: &Rig| (0..200).map(|nf| rig.wakes(nf)).sum::<u64>();
        let before = woken(&rig);
        rig.pass(4 * MS);
        assert!(woken(&rig) > before);
    }
}

#[test]
fn one_of_a_crowd_that_has_just_moved_keeps_the_core_though_its_look_was_long_ago() {
    let mut rig = Rig::new(200);
    rig.pass(20 * MS);
    let nf = (rig.handover.next + LOOKED_AT + 10) % 200;
    rig.post(nf, 1);
    rig.page().running().store(nf as u32 + 1, Ordering::Relaxed);
    rig.nfs[nf].work();
    let looked_ns = rig.handover.looked_ns;
    while rig.handover.looked_ns == looked_ns {
        rig.pass(STEP_NS);
    }
    assert_eq!(rig.running(), nf as u32 + 1);
    rig.pass(3 * MS);
    assert_eq!(rig.running(), 0, "it has nothing to do");
}

#[test]
fn one_of_a_crowd_that_is_neglected_for_long_each_time_has_its_page_distrusted_for_much_longer() {
    const WAITED_NS: u64 = 2_000 * MS;
    let mut rig = Rig::new(LOOKED_AT as u16 + 1);
    for _ in 0..NEGLECTS {
        assert_eq!(rig.handover.distrust_until_ns, 0);
        rig.handover.members[0].since_ns = rig.now;
        rig.now += WAITED_NS;
        rig.handover.neglect(0, rig.now);
    }
    assert_eq!(rig.handover.distrust_until_ns, rig.now + 25 * WAITED_NS);
}

#[test]
fn neglects_of_a_crowd_are_remembered_by_the_longest_of_them_and_a_small_lie_does_not_end_distrust() {
    const WAITED_NS: u64 = 400 * MS;
    let mut rig = Rig::new(LOOKED_AT as u16 + 1);
    let neglect = |rig: &mut Rig, waited_ns| {
        rig.handover.members[0].since_ns = rig.now - waited_ns;
        rig.handover.neglect(0, rig.now);
        rig.now += 1_100 * MS;
    };
    (1..NEGLECTS).for_each(|_| neglect(&mut rig, WAITED_NS));
    assert_eq!(rig.handover.distrust_until_ns, 0);
    let now = rig.now;
    neglect(&mut rig, MS);
    let until = now + 25 * WAITED_NS;
    assert_eq!(rig.handover.distrust_until_ns, until);
    for _ in 0..2 {
        rig.handover.count_lie(rig.now);
        rig.now += MS;
    }
    assert_eq!(rig.handover.distrust_until_ns, until);
}

/// How long an NF of a crowd of `nfs` waits at most until its page is distrusted, while the others
/// work by `others`, and hide it.
fn passed_over(nfs: u16, others: impl Fn(&mut Rig)) -> u64 {
    let mut rig = Rig::new(nfs);
    let last = nfs - 1;
    let (mut kept, mut longest) = (0, 0);
    let until = rig.now + 4_000 * MS;
    while rig.handover.distrust_until_ns == 0 {
        assert!(rig.now < until, "it waited for {longest} ns, and its page is believed");
        rig.fill(last.into(), 1);
        rig.page().clear_pending(last.into());
        rig.pass(STEP_NS);
        rig.page().clear_pending(last.into());
        others(&mut rig);
        if !rig.nfs[usize::from(last)].handle.is_asleep() {
            rig.work(last.into(), 1, STEP_NS);
        }
        kept = if rig.is_kept(last.into()) { kept + STEP_NS } else { 0 };
        longest = longest.max(kept);
    }
    longest
}

#[test]
fn one_that_a_crowd_passes_over_is_rescued_after_three_laps_however_long_they_seem() {
    /// A circle of looks.
    const LOOK_MS: u64 = 4;
    let short_laps = passed_over(100, |rig| {
        (0..99).for_each(|nf| rig.fill(nf, if rig.nfs[nf].handle.unread() == 0 { 10 } else { 0 }));
        rig.work_all();
    });
    assert!(short_laps <= (30 + LOOK_MS) * MS, "{short_laps}");
    // One that keeps the core, and moves so seldom that a lap hardly ever ends. All others wait,
    // and a look rescues four.
    let no_laps = passed_over(200, |rig| {
        (0..199).for_each(|nf| rig.fill(nf, 1));
        rig.page().running().store(1, Ordering::Relaxed);
        if rig.now.is_multiple_of(MS / 2) {
            rig.nfs[0].work();
        }
    });
    assert!(no_laps > 40 * MS && no_laps <= (90 + 200 / RESCUES as u64 + LOOK_MS) * MS, "{no_laps}");
}

#[test]
fn a_host_that_takes_the_core_away_has_nobody_neglected() {
    let mut state = 0x5eed_5eed_5eed_5eedu64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut rig = Rig::new(4);
    let (began, mut returns_at) = (rig.now, 0);
    let mut takes_at = rig.now + 5 * MS;
    while rig.now < began + 20_000 * MS {
        (0..4).for_each(|nf| rig.fill(nf, [10, 10, 3, 1][nf]));
        rig.pass(STEP_NS);
        if rig.now >= takes_at {
            returns_at = rig.now + MS / 2 + random(40 * MS);
            takes_at = returns_at + MS / 2 + random(60 * MS);
        }
        let mut left_ns = STEP_NS;
        while left_ns > 0 {
            // The NF that has the core, or of several that are awake another one each time.
            let awake = |nf: &usize| {
                let handle = &rig.nfs[*nf].handle;
                !handle.is_asleep() || rig.page().asleep(*nf as u32).load(Ordering::Relaxed) == 0
            };
            let awake: Vec<usize> = (0..4).filter(awake).collect();
            let Some(nf) = awake.get(random(awake.len().max(1) as u64) as usize).copied() else { break };
            if rig.now < returns_at {
                // It pays for the time all the same.
                rig.nfs[nf].used_ns += STEP_NS;
                break;
            }
            // Where one hands the core over, the next one has the rest of the time.
            left_ns = left_ns.saturating_sub(rig.work(nf, 1, left_ns).max(SWITCH_NS));
        }
    }
    assert_none_neglected(&rig, "a host that takes the core away");
}

#[test]
fn one_that_takes_packets_back_and_again_does_not_move() {
    let mut rig = Rig::new(2);
    rig.post(0, 5);
    rig.post(1, 5);
    rig.nfs[1].handle.region.page.asleep().store(0, Ordering::Relaxed);
    let toggle = |rig: &mut Rig, rounds: u32| {
        let before = (rig.wakes(0), rig.wakes(1));
        for round in 0..rounds {
            // It holds a packet, and claims that it sleeps, has packets, and the core is free.
            rig.nfs[0].sleep();
            rig.nfs[0].cursor(1).store([1, 4, 2, 3][round as usize % 4], Ordering::Relaxed);
            rig.page().running().store(0, Ordering::Relaxed);
            rig.page().set_pending(0, rig.now);
            rig.pass(STEP_NS);
        }
        (rig.wakes(0) - before.0, rig.wakes(1) - before.1)
    };
    let (own, others) = toggle(&mut rig, 40);
    assert!(own <= 12 && others > 0, "{own} wakes, and {others} of the one that nobody starts");
    assert!(toggle(&mut rig, 2_000).0 <= 16, "100 ms");
    // With more packets it may be woken more often: each can be taken once.
    rig.nfs[0].cursor(1).store(5, Ordering::Relaxed);
    for round in 0..400 {
        if round % 10 == 0 {
            rig.post(0, 1);
        }
        toggle(&mut rig, 1);
    }
    assert!(rig.wakes(0) < 12 + 16 + 2 * 45 + 16, "{}", rig.wakes(0));
}

fn wait_until(what: &str, is: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

/// Threads that sleep on the doorbell of slot 0.
fn crowd(page: &CorePage, threads: usize) -> Vec<JoinHandle<()>> {
    let waiting: &'static [AtomicU32] = Box::leak((0..threads).map(|_| AtomicU32::new(0)).collect::<Box<[_]>>());
    let seen = page.doorbell(0).load(Ordering::Relaxed);
    let start = |mine: &'static AtomicU32| {
        let page = page.clone();
        let sleeper = move || {
            mine.store(rustix::thread::gettid().as_raw_pid() as u32, Ordering::Relaxed);
            doorbell::wait(page.doorbell(0), seen, None);
        };
        std::thread::Builder::new().stack_size(1 << 18).spawn(sleeper).unwrap()
    };
    let threads = waiting.iter().map(start).collect();
    let sleeps = |thread: &AtomicU32| {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", thread.load(Ordering::Relaxed)));
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')))
    };
    for thread in waiting {
        wait_until("all sleep", || sleeps(thread));
    }
    threads
}

#[test]
fn one_that_sleeps_behind_more_than_a_rescue_wakes_is_reached_by_the_next_one() {
    let mut rig = Rig::new(2);
    let page = rig.page().clone();
    let threads = crowd(&page, CROWD as usize + 20);
    rig.post(0, 5);
    rig.nfs[0].handle.region.page.asleep().store(asleep::ASLEEP, Ordering::Relaxed);
    page.running().store(1, Ordering::Relaxed);
    let rescue = |rig: &mut Rig| {
        let before = rig.wakes(0);
        while rig.wakes(0) == before {
            rig.pass(STEP_NS);
        }
    };
    rescue(&mut rig);
    wait_until("a crowd is woken", || threads.iter().filter(|thread| thread.is_finished()).count() >= CROWD as usize);
    // It has not moved.
    rescue(&mut rig);
    assert_eq!(doorbell::ring_for(page.doorbell(0), u32::MAX >> 1), 0, "still slept");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn rescues_of_a_look_wake_no_more_than_one_may_and_the_next_look_goes_on() {
    // How many crowds the last rescue of each has woken, and looks that the next ones take.
    for (crowds, looks) in [(0, 1), (3, 2), (7, RESCUES)] {
        let mut rig = Rig::new(RESCUES as u16);
        rig.pass(2 * MS);
        for nf in 0..RESCUES {
            let thefts = &mut rig.handover.members[nf].thefts;
            for _ in 0..crowds {
                let asked = thefts.count(0, rig.now);
                thefts.woke(asked, asked as usize);
            }
            rig.post(nf, 5);
            rig.nfs[nf].handle.region.page.asleep().store(asleep::ASLEEP, Ordering::Relaxed);
        }
        rig.page().running().store(1, Ordering::Relaxed);
        let (mut taken, mut rescued) = (0, Vec::new());
        while rescued.len() < RESCUES {
            let now = rig.now;
            let wanted: Vec<u32> = rig.handover.members.iter_mut().map(|member| member.wanted(now)).collect();
            let before: Vec<u64> = (0..RESCUES).map(|nf| rig.wakes(nf)).collect();
            rig.pass(STEP_NS);
            let newly: Vec<usize> = (0..RESCUES).filter(|nf| rig.wakes(*nf) > before[*nf]).collect();
            assert!(newly.iter().map(|nf| wanted[*nf]).sum::<u32>() <= LOOK_WAKES, "{crowds}: {newly:?} of {wanted:?}");
            taken += usize::from(!newly.is_empty());
            rescued.extend(newly);
        }
        rescued.sort_unstable();
        assert_eq!((taken, rescued), (looks, (0..RESCUES).collect::<Vec<_>>()), "{crowds}");
    }
}

#[test]
fn one_that_is_rescued_again_and_again_does_not_have_crowds_woken() {
    const THREADS: usize = 40;
    let mut rig = Rig::new(2);
    let rescue = |rig: &mut Rig| {
        rig.nfs[0].work();
        rig.post(0, 5);
        rig.nfs[0].handle.region.page.asleep().store(asleep::ASLEEP, Ordering::Relaxed);
        rig.page().running().store(1, Ordering::Relaxed);
        let before = rig.wakes(0);
        while rig.wakes(0) == before {
            rig.pass(STEP_NS);
        }
    };
    // The third finds that it waits where others can take its wakes, and takes it out.
    (0..3).for_each(|_| rescue(&mut rig));
    assert!(rig.is_alone(0));
    // Its own threads wait for its doorbell.
    let page = rig.page().clone();
    let threads = crowd(&page, THREADS);
    (0..10).for_each(|_| rescue(&mut rig));
    let left = doorbell::ring_for(page.doorbell(0), u32::MAX >> 1);
    assert!(left >= THREADS - 10, "{left} of {THREADS} still slept");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn one_that_has_read_its_packets_or_waits_for_something_else_was_woken() {
    let mut rig = Rig::new(1);
    let handle = rig.nfs[0].handle.clone();
    let since = rig.now;
    rig.now += MS;
    // As the Monitor sees it before the Wakeup role has checked.
    rig.post(0, 5);
    assert!(handle.was_never_woken(since), "it sleeps, and nobody has woken it");
    rig.pass(0);
    assert!(!handle.was_never_woken(since), "it was woken");
    rig.nfs[0].sleep();
    assert!(!handle.was_never_woken(since), "and sleeps again");
    assert!(handle.was_never_woken(rig.now + 1), "since then it has returned some");
    handle.region.page.asleep().store(asleep::ASLEEP | asleep::SUSPENDED, Ordering::Relaxed);
    assert!(!handle.was_never_woken(rig.now + 1));
    rig.nfs[0].sleep();
    assert_eq!(rig.nfs[0].read.dequeue(&mut [Descriptor::default(); 32]), Ok(5));
    rig.nfs[0].read.release();
    assert!(!handle.was_never_woken(rig.now + 1), "it keeps them");
}
