use std::collections::HashMap;

use proptest::prelude::*;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::ring::Consumer;

use super::*;
use crate::end::NfEnd;
use crate::fake::{self, Fake};

const MS: u64 = 1_000_000;
/// Wakes for each of three packets, then at two, then three, and so on.
const RULES: Rules = Rules { early: 3, least: 2, most: 8, timer_ns: MS };

struct Rig {
    end: NfEnd,
    timers: Timers,
    reads: Consumer,
}

impl Rig {
    fn new() -> Self {
        let page = fake::core_page(4);
        let handle = Fake { wakeup: Some(RULES), ..Fake::default() }.on(&page, 2);
        let mut timers = Timers::default();
        timers.make_room(2, MS);
        Self { end: fake::end(&handle), timers, reads: handle.region.rx_consumer(0).unwrap() }
    }

    fn post(&mut self, n: u32, urgent: bool, now_ns: u64) -> bool {
        let handle = &self.end.handle;
        handle.core_page.posted(handle.slot).fetch_add(n, Ordering::Relaxed);
        let producer = self.end.producer.as_mut().unwrap();
        assert_eq!(producer.enqueue(&vec![Descriptor::default(); n as usize]), Ok(n as usize));
        self.end.hold_or_wake(&mut self.timers, 0, n, urgent, now_ns);
        self.is_woken()
    }

    fn is_woken(&self) -> bool {
        self.end.handle.core_page.choose(None, 0).is_some()
    }

    fn wakes(&self) -> bool {
        let page = &self.end.handle.core_page;
        page.wake(self.end.handle.slot)
    }

    fn sleep(&mut self) {
        while self.reads.dequeue(&mut [Descriptor::default(); 32]).unwrap() > 0 {}
        let (page, slot) = (&self.end.handle.core_page, self.end.handle.slot);
        page.taken(slot).store(page.posted(slot).load(Ordering::Relaxed), Ordering::Relaxed);
        page.clear_pending(slot);
        page.asleep(slot).store(1, Ordering::Relaxed);
    }

    fn late(&mut self, now_ns: u64) -> bool {
        let late = self.timers.late(now_ns);
        late.inspect(|_| self.end.wake_late(0, now_ns)).is_some()
    }

    /// Wakes by cause: early, threshold, timer, urgent.
    fn causes(&self) -> [u64; CAUSES] {
        std::array::from_fn(|cause| self.end.handle.counters[0].woken[cause].get())
    }
}

#[test]
fn a_flow_begins_at_once_and_then_waits_for_company() {
    let mut rig = Rig::new();
    for _ in 0..3 {
        assert!(rig.post(1, false, 0));
        assert!(rig.wakes());
        rig.sleep();
    }
    assert!(!rig.post(1, false, 0), "the fourth waits");
    assert!(rig.post(1, false, 10), "for the fifth");
    assert_eq!(rig.timers.next_ns(), None);
    rig.sleep();
    assert!(!rig.post(2, false, 0), "the threshold has grown");
    assert!(rig.post(1, false, 0));
    assert_eq!(rig.causes(), [3, 2, 0, 0]);
}

#[test]
fn what_waits_too_long_is_worked_off_and_halves_the_threshold() {
    let mut rig = Rig::new();
    rig.end.waker = Some(Box::new(Waker::new(Rules { early: 0, least: 1, most: 8, timer_ns: MS }, 64)));
    for n in 1..=4 {
        assert!(rig.post(n, false, 0));
        rig.sleep();
    }
    assert!(!rig.post(1, false, 100));
    assert!(!rig.late(MS + 99), "not yet");
    assert!(rig.late(MS + 100) && rig.is_woken());
    assert!(!rig.late(9 * MS), "once");
    rig.sleep();
    assert!(rig.post(2, false, 0), "5 / 2");
    assert_eq!(rig.causes(), [0, 5, 1, 0]);
}

#[test]
fn one_that_runs_is_not_held_back_and_what_was_taken_is_not_late() {
    let mut rig = Rig::new();
    assert!(rig.post(3, false, 0) && rig.wakes());
    assert!(rig.post(1, false, 0), "it is awake");
    assert_eq!(rig.timers.next_ns(), None);
    rig.sleep();
    assert!(!rig.post(1, false, 5));
    // It wakes for another reason and takes what is there.
    rig.sleep();
    assert!(rig.late(5 + MS) && !rig.is_woken());
    assert!(!rig.post(1, false, 2 * MS));
    rig.sleep();
    assert!(!rig.post(1, false, 2 * MS + 10));
    assert_eq!(rig.timers.next_ns(), Some(3 * MS + 10), "it is the second one's time");
    assert_eq!(rig.causes(), [1, 0, 0, 0]);
}

#[test]
fn an_urgent_packet_does_not_wait() {
    let mut rig = Rig::new();
    rig.post(3, false, 0);
    rig.sleep();
    assert!(!rig.post(1, false, 0));
    assert!(rig.post(0, true, 0));
    assert_eq!(rig.causes(), [1, 0, 0, 1]);
}

#[test]
fn the_next_flow_begins_anew_and_may_have_rules_of_its_own() {
    let mut rig = Rig::new();
    rig.post(3, false, 0);
    rig.sleep();
    assert!(!rig.post(1, false, 0));
    rig.sleep();
    rig.end.handle.start.begin(None);
    assert!(rig.post(1, false, 0), "its first packet");
    rig.sleep();
    rig.timers.learn(5 * MS);
    rig.end.handle.start.begin(Some(Rules { early: 0, least: 4, most: 4, timer_ns: 5 * MS }));
    assert!(!rig.post(3, false, 0));
    assert_eq!(rig.timers.next_ns(), Some(5 * MS));
    assert!(rig.post(1, false, 0));
    rig.sleep();
    // The bounds of its ring apply to these, too.
    rig.end.handle.start.begin(Some(Rules { early: 0, least: 60_000, most: 60_000, timer_ns: MS }));
    assert!(!rig.post(fake::RING / 2 - 1, false, 0));
    assert!(rig.post(1, false, 0));
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Set(u16, bool),
    Unset(u16),
    Late(u64),
}

proptest! {
    #[test]
    fn timers_are_over_in_their_order(
        acts in prop::collection::vec(
            prop_oneof![
                4 => (0..12u16, any::<bool>()).prop_map(|(nf, long)| Act::Set(nf, long)),
                2 => (0..12u16).prop_map(Act::Unset),
                3 => (0..40u64).prop_map(Act::Late),
            ],
            1..200,
        ),
    ) {
        let mut timers = Timers::default();
        (0..12).for_each(|nf| timers.make_room(nf, 10));
        timers.learn(100);
        let mut model: HashMap<u16, u64> = HashMap::new();
        let mut now = 0;
        for act in acts {
            match act {
                Act::Set(nf, long) => {
                    let timer = if long { 100 } else { 10 };
                    timers.set(nf, timer, now);
                    model.entry(nf).or_insert(now + timer);
                }
                Act::Unset(nf) => {
                    timers.unset(nf);
                    model.remove(&nf);
                }
                Act::Late(passed) => {
                    now += passed;
                    while let Some(nf) = timers.late(now) {
                        prop_assert!(model.remove(&nf).is_some_and(|at| at <= now));
                    }
                    prop_assert!(model.values().all(|at| *at > now), "{:?}", model);
                }
            }
            prop_assert_eq!(timers.next_ns(), model.values().min().copied());
        }
    }
}
