//! What the controller decides for simulated NFs, and where it writes it.

use std::time::Instant;

use sluice_policy::sched::priority::Weight;
use sluice_shm::core_page::CorePage;

use super::*;
use sluice_api::model::EventKind;
use sluice_dataplane::fake::{Fake, core_page, page_share};

const PATIENCE: Duration = Duration::from_secs(20);

/// A kernel that keeps what is written, until it refuses.
#[derive(Clone, Default)]
struct Weights {
    written: Arc<Mutex<Vec<f64>>>,
    refuses: Arc<AtomicBool>,
}

impl WriteShare for Weights {
    fn write(&mut self, share: f64) -> Result<(), String> {
        self.written.lock().unwrap().push(share);
        if self.refuses.load(Ordering::Relaxed) { Err("no such device".into()) } else { Ok(()) }
    }
}

impl Weights {
    fn written(&self) -> Vec<f64> {
        self.written.lock().unwrap().clone()
    }
}

/// A controller without a running thread: the test calls it.
struct Rig {
    controller: Controller,
    page: CorePage,
    sched: Sched,
}

impl Rig {
    fn new() -> Self {
        let controller = Controller { shared: Arc::default(), events: Arc::default(), thread: None };
        Self { controller, page: core_page(16), sched: Sched::default() }
    }

    fn add(&self, number: u16, fake: Fake) -> Arc<NfHandle> {
        let handle = fake.on(&self.page, number);
        self.controller.add(handle.clone());
        handle
    }

    /// The same, with weights that it gives to the kernel.
    fn add_weighted(&self, number: u16, fake: Fake) -> (Arc<NfHandle>, Weights) {
        let (handle, weights) = (self.add(number, fake), Weights::default());
        self.controller.link().give(&handle, Box::new(weights.clone()));
        (handle, weights)
    }

    fn weigh(&self) {
        weigh(&mut self.controller.shared.nfs(), &self.sched);
    }

    fn report(&self, now_ns: u64) {
        self.controller.shared.nfs().values_mut().for_each(|nf| report(nf, now_ns, &self.controller.events));
    }
}

/// Packets of one microsecond that keep an NF busy for this many cores.
fn load(handle: &NfHandle, cores: f64) {
    handle.load.arrival_pps.set(cores * 1e6);
    handle.load.service_ns.set(1000.0);
}

fn writes(handle: &NfHandle) -> u64 {
    handle.load.writes.load(Ordering::Relaxed)
}

fn share(handle: &NfHandle) -> f64 {
    handle.load.share.get()
}

#[test]
fn a_share_goes_by_the_flow_that_an_nf_has_and_by_its_position() {
    let mut rig = Rig::new();
    let [a, b] = [0, 1].map(|number| rig.add(number, Fake::default()));
    load(&a, 0.5);
    load(&b, 0.5);
    rig.weigh();
    assert_eq!([&a, &b].map(|nf| nf.load.share.get()), [0.5, 0.5]);
    assert!(a.assign(Weight::new(3.0)));
    assert_eq!(page_share(&a), WHOLE, "at once, of all of the core at most");
    rig.weigh();
    assert_eq!([&a, &b].map(|nf| nf.load.share.get()), [0.75, 0.25]);
    assert_eq!([&a, &b].map(|nf| page_share(nf)), [WHOLE / 4 * 3, WHOLE / 4]);
    // Another flow of the same worth, and back: the decision is the same, and written again.
    assert!(a.assign(Weight::ORDINARY) && a.assign(Weight::new(3.0)));
    a.assign(Weight::ORDINARY);
    rig.weigh();
    assert_eq!([&a, &b].map(|nf| page_share(nf)), [WHOLE / 2, WHOLE / 2]);
    rig.sched.downstream_first = true;
    b.place(&[1], true);
    rig.weigh();
    assert_eq!([&a, &b].map(|nf| page_share(nf)), [WHOLE / 3, WHOLE / 3 * 2]);
}

#[test]
fn a_share_goes_by_load_and_priority_to_the_page_and_the_kernel() {
    let rig = Rig::new();
    let (light, light_weights) = rig.add_weighted(0, Fake::default());
    let (heavy, heavy_weights) = rig.add_weighted(1, Fake::default());
    load(&light, 0.5);
    load(&heavy, 1.5);
    rig.weigh();
    assert_eq!((share(&light), share(&heavy)), (0.25, 0.75));
    assert_eq!((page_share(&light), page_share(&heavy)), (WHOLE / 4, WHOLE / 4 * 3));
    assert_eq!((light_weights.written(), heavy_weights.written()), (vec![0.25], vec![0.75]));
    assert_eq!((writes(&light), writes(&heavy)), (1, 1));
    // A third NF with twice the priority gets as much as both others.
    let (dear, dear_weights) = rig.add_weighted(2, Fake { priority: 2.0, ..Fake::default() });
    load(&dear, 1.0);
    rig.weigh();
    assert_eq!((share(&light), share(&heavy), share(&dear)), (0.125, 0.375, 0.5));
    assert_eq!((page_share(&dear), dear_weights.written()), (WHOLE / 2, vec![0.5]));
}

#[test]
fn one_that_polls_has_a_share_as_long_as_it_has_turns() {
    let rig = Rig::new();
    let (polls, sleeps) = (rig.add(0, Fake { poll: true, ..Fake::default() }), rig.add(1, Fake::default()));
    [&polls, &sleeps].into_iter().for_each(|nf| load(nf, 1.0));
    rig.weigh();
    assert_eq!((share(&polls), share(&sleeps)), (0.0, 1.0));
    polls.governed.store(true, Ordering::Relaxed);
    rig.weigh();
    assert_eq!((share(&polls), share(&sleeps)), (0.5, 0.5));
}

#[test]
fn one_that_has_no_load_keeps_the_least_share() {
    let mut rig = Rig::new();
    rig.sched.min_share_percent = 25;
    let (idle, busy) = (rig.add(0, Fake::default()), rig.add(1, Fake::default()));
    load(&busy, 1.0);
    // Its packets are wanted, but their cost is not yet known.
    idle.load.arrival_pps.set(1e9);
    rig.weigh();
    assert_eq!((share(&idle), share(&busy)), (0.25, 0.75));
}

#[test]
fn cores_are_divided_each_for_itself_and_polling_nfs_are_left_out() {
    let rig = Rig::new();
    let sleeping = [rig.add(0, Fake::default()), rig.add(1, Fake::default())];
    let (polling, weights) = rig.add_weighted(2, Fake { poll: true, ..Fake::default() });
    let elsewhere = rig.add(3, Fake { core: 1, ..Fake::default() });
    let untouched = page_share(&polling);
    sleeping.iter().for_each(|nf| load(nf, 0.1));
    load(&polling, 5.0);
    load(&elsewhere, 0.001);
    rig.weigh();
    assert_eq!(sleeping.each_ref().map(|nf| share(nf)), [0.5, 0.5]);
    assert_eq!(share(&elsewhere), 1.0);
    assert_eq!((share(&polling), writes(&polling), page_share(&polling)), (0.0, 0, untouched));
    assert!(weights.written().is_empty());
    // A change on one core changes nothing on the other.
    load(&elsewhere, 3.0);
    load(&sleeping[0], 0.3);
    rig.weigh();
    assert_eq!(sleeping.each_ref().map(|nf| writes(nf)), [2, 2]);
    assert_eq!(writes(&elsewhere), 1);
}

#[test]
fn a_share_is_written_when_it_differs_by_more_than_the_margin_from_the_one_written() {
    let mut rig = Rig::new();
    rig.sched.weight_margin_percent = 10;
    let (nf, weights) = rig.add_weighted(0, Fake::default());
    let other = rig.add(1, Fake::default());
    // In percent; the other NF has the rest.
    let mut share_becomes = |percent: f64| {
        load(&nf, percent / 100.0);
        load(&other, (100.0 - percent) / 100.0);
        rig.weigh();
        weights.written().len()
    };
    assert_eq!(share_becomes(50.0), 1);
    // Small steps add up: each is compared with what was written, not with the last decision.
    let counts = [51.0, 52.0, 53.0, 54.0, 54.9].map(&mut share_becomes);
    assert_eq!(counts, [1; 5]);
    assert_eq!(share_becomes(56.0), 2);
    assert_eq!(share_becomes(51.0), 2);
    assert_eq!(share_becomes(50.0), 3);
    let within = |got: f64, percent: f64| (got - percent / 100.0).abs() < 1e-9;
    assert!(weights.written().into_iter().zip([50.0, 56.0, 50.0]).all(|(got, percent)| within(got, percent)));
    assert_eq!(writes(&nf), 3);
    assert!(within(share(&nf), 50.0) && page_share(&nf).abs_diff(WHOLE / 2) <= 1);
}

#[test]
fn weights_that_come_late_are_written_at_the_next_decision() {
    let rig = Rig::new();
    let nf = rig.add(0, Fake::default());
    rig.weigh();
    assert_eq!((share(&nf), writes(&nf)), (1.0, 1));
    let weights = Weights::default();
    rig.controller.link().give(&nf, Box::new(weights.clone()));
    assert!(weights.written().is_empty(), "only the controller writes");
    rig.weigh();
    assert_eq!(weights.written(), [1.0]);
    rig.weigh();
    assert_eq!(weights.written(), [1.0], "and once");
}

#[test]
fn weights_of_a_process_that_is_gone_are_refused() {
    let rig = Rig::new();
    let former = rig.add(0, Fake::default());
    // Another process took its name and number before its cgroup was made.
    let nf = rig.add(0, Fake::default());
    let late = Weights::default();
    rig.controller.link().give(&former, Box::new(late.clone()));
    rig.weigh();
    assert!(late.written().is_empty());
    assert_eq!((writes(&former), writes(&nf)), (0, 1));
    rig.controller.remove(0);
    rig.controller.link().give(&nf, Box::new(late.clone()));
    rig.weigh();
    assert!(late.written().is_empty());
    assert_eq!(writes(&nf), 1, "nothing is decided for who was removed");
}

#[test]
fn where_the_kernel_refuses_only_that_weight_is_given_up() {
    let rig = Rig::new();
    let (broken, broken_weights) = rig.add_weighted(0, Fake::default());
    let (whole, whole_weights) = rig.add_weighted(1, Fake::default());
    load(&broken, 1.0);
    load(&whole, 1.0);
    rig.weigh();
    broken_weights.refuses.store(true, Ordering::Relaxed);
    load(&broken, 3.0);
    rig.weigh();
    assert_eq!(broken_weights.written(), [0.5, 0.75], "tried once");
    load(&broken, 0.25);
    load(&whole, 0.75);
    rig.weigh();
    assert_eq!(broken_weights.written(), [0.5, 0.75], "and not again");
    assert_eq!(whole_weights.written(), [0.5, 0.25, 0.75]);
    // It still has its share on its core's page.
    assert_eq!((share(&broken), page_share(&broken)), (0.25, WHOLE / 4));
    // It is tried again with another cgroup.
    let again = Weights::default();
    rig.controller.link().give(&broken, Box::new(again.clone()));
    rig.weigh();
    assert_eq!(again.written(), [0.25]);
}

#[test]
fn what_was_decided_is_summed_up_and_reported_once() {
    let rig = Rig::new();
    let (a, b) = (rig.add(0, Fake::default()), rig.add(1, Fake::default()));
    let mut told = 0;
    let mut news = |now_ns: u64| {
        rig.report(now_ns);
        let all = rig.controller.events().all();
        let new = all[told..].to_vec();
        told = all.len();
        new.into_iter().map(|e| (e.nf, e.time_ns, e.event, e.count, e.from, e.to, e.throttled)).collect::<Vec<_>>()
    };
    assert_eq!(news(1), []);
    for cores in [1.0, 2.0, 3.0] {
        load(&a, cores);
        load(&b, 1.0);
        rig.weigh();
    }
    let of_share = |nf: &str, time, count, from, to| (nf.to_string(), time, EventKind::Share, count, Some(from), Some(to), None);
    assert_eq!(news(2), [of_share("s.0", 2, 3, 0.0, 0.75), of_share("s.1", 2, 3, 0.0, 0.25)]);
    assert_eq!(news(3), []);
    load(&b, 3.0);
    rig.weigh();
    assert_eq!(news(4), [of_share("s.0", 4, 1, 0.75, 0.5), of_share("s.1", 4, 1, 0.25, 0.5)]);
    // One NF was throttled twice and is free again; the other is still throttled.
    a.gate.throttles.store(2, Ordering::Relaxed);
    b.gate.throttles.store(1, Ordering::Relaxed);
    b.gate.throttled.store(true, Ordering::Relaxed);
    let of_throttle = |nf: &str, time, count, now| (nf.to_string(), time, EventKind::Throttle, count, None, None, Some(now));
    assert_eq!(news(5), [of_throttle("s.0", 5, 2, false), of_throttle("s.1", 5, 1, true)]);
    b.gate.throttled.store(false, Ordering::Relaxed);
    assert_eq!(news(6), [of_throttle("s.1", 6, 0, false)]);
    assert_eq!(news(7), []);
}

#[test]
fn the_thread_decides_by_itself_and_writes_nothing_for_one_that_was_removed() {
    let wait_for = |what: &str, is: &dyn Fn() -> bool| {
        let until = Instant::now() + PATIENCE;
        while !is() {
            assert!(Instant::now() < until, "waited too long until {what}");
            std::thread::yield_now();
        }
    };
    let sched = Sched { weight_every_ms: 1, ..Sched::default() };
    let mut controller = Controller::start(&sched).unwrap();
    let (page, weights) = (core_page(2), Weights::default());
    let handles = [0, 1].map(|number| Fake::default().on(&page, number));
    handles.iter().for_each(|handle| controller.add(handle.clone()));
    controller.link().give(&handles[0], Box::new(weights.clone()));
    wait_for("both have a share", &|| handles.iter().all(|nf| share(nf) == 0.5) && weights.written().last() == Some(&0.5));
    wait_for("it is told", &|| controller.events().all().len() >= 2);
    assert!(controller.cpu_ns() > 0);
    controller.remove(0);
    let (before, written) = (writes(&handles[0]), weights.written());
    wait_for("the other has all of the core", &|| share(&handles[1]) == 1.0);
    assert_eq!((writes(&handles[0]), weights.written()), (before, written));
    controller.stop();
}

#[test]
fn without_weights_nothing_is_decided_and_throttles_are_reported() {
    let sched = Sched { weights: false, weight_every_ms: 1, ..Sched::default() };
    let mut controller = Controller::start(&sched).unwrap();
    let page = core_page(1);
    let (nf, untouched) = (Fake::default().on(&page, 0), page.share(0).load(Ordering::Relaxed));
    load(&nf, 1.0);
    controller.add(nf.clone());
    nf.gate.throttles.store(1, Ordering::Relaxed);
    let until = Instant::now() + PATIENCE;
    while controller.events().all().is_empty() {
        assert!(Instant::now() < until, "nothing is told");
        std::thread::yield_now();
    }
    controller.stop();
    assert_eq!((writes(&nf), share(&nf), page_share(&nf)), (0, 0.0, untouched));
    assert!(controller.events().all().iter().all(|event| event.event == EventKind::Throttle));
}
