//! Alerts, and the Wakeup role's reaction to queues that the test sets.

use std::sync::atomic::AtomicU32;

use sluice_shm::core_page::CorePage;

use super::*;
use crate::chain::registry::Course;
use crate::chain::{Chain, ChainCounters, PathKind};
use crate::fake::{Fake, RING, core_page, end, give_back, post};
use sluice_api::config::OnFailure;

#[test]
fn an_alert_is_taken_once() {
    let alerts = Alerts::new(5000);
    let taken = || -> Vec<u16> {
        let mut taken = Vec::new();
        alerts.take(|nf| taken.push(nf));
        taken
    };
    assert!(taken().is_empty());
    for nf in [0, 63, 64, 4096, 4999, 63] {
        alerts.raise(nf);
    }
    assert_eq!(taken(), [0, 63, 64, 4096, 4999]);
    assert!(taken().is_empty());
    alerts.raise(4999);
    assert_eq!(taken(), [4999]);
    // Out of range: nothing happens.
    alerts.raise(u16::MAX);
    assert!(taken().is_empty());
}

/// Watermarks of a ring in packets: 80 and 60 % of it, rounded up.
const HIGH: u64 = (RING as u64 * 80).div_ceil(100);
const LOW: u64 = (RING as u64 * 60).div_ceil(100);
/// Service times that make a queue at the high watermark wait less, and more, than 100 µs.
const SHORT_NS: f64 = 900.0;
const LONG_NS: f64 = 1_000.0;

struct Rig {
    throttling: Throttling,
    alerts: Arc<Alerts>,
    registry: PathRegistry,
    tables: Tables,
    nfs: Vec<Option<NfEnd>>,
    page: CorePage,
    now_ns: u64,
}

impl Rig {
    /// NFs of unknown cost, the named ones polling, and chains over them.
    fn new(nfs: u16, polling: &[u16], chains: &[&[u16]]) -> Self {
        let most = u32::from(nfs).max(16);
        let (alerts, page) = (Arc::new(Alerts::new(most as usize)), core_page(most));
        let make = |number| Some(end(&Fake { poll: polling.contains(&number), ..Fake::default() }.on(&page, number)));
        let nfs = (0..nfs).map(make).collect();
        let throttling = Throttling::new(alerts.clone(), &Sched::default());
        let (registry, tables) = (PathRegistry::new(16), Tables::default());
        let mut rig = Self { throttling, alerts, registry, tables, nfs, page, now_ns: 1_000_000_000 };
        chains.iter().for_each(|hops| rig.add_chain(hops));
        rig.refresh();
        rig
    }

    fn add_chain(&mut self, hops: &[u16]) {
        let number = self.tables.chains.len() as u16;
        let counters: Arc<[ChainCounters]> = Arc::new([ChainCounters::default()]);
        let name = format!("c{number}");
        let (services, on_failure) = (hops.to_vec(), OnFailure::Drop);
        let chain = Arc::new(Chain { number, version: 1, name, services, on_failure, counters, ..Chain::default() });
        self.registry.number(&Course { ingress: 0, chain: &chain, nfs: hops, reversed: &[], kind: PathKind::Whole, under: 1 });
        self.tables.chains.push(Some(chain));
        self.tables.generation += 1;
    }

    fn refresh(&mut self) {
        self.throttling.refresh(&self.registry, &self.tables, &self.nfs);
    }

    fn nf(&self, number: usize) -> &Arc<NfHandle> {
        &self.nfs[number].as_ref().unwrap().handle
    }

    /// Sets an NF's queue length as a packet thread sees it: over the high watermark it alerts.
    fn queue(&self, number: usize, packets: u64) {
        let nf = self.nf(number);
        let (posted, returned) = nf.posted_returned();
        match packets.checked_sub(posted - returned) {
            Some(more) => post(nf, more),
            None => give_back(nf, posted - returned - packets),
        }
        if packets >= HIGH {
            self.alerts.raise(number as u16);
        }
    }

    fn cost(&self, number: usize, service_ns: f64) {
        self.nf(number).load.service_ns.set(service_ns);
    }

    fn step(&mut self) {
        self.step_after(1_000);
    }

    fn step_after(&mut self, ns: u64) {
        self.now_ns += ns;
        self.throttling.step(&self.nfs, self.now_ns);
    }

    fn jam(&mut self, number: usize) {
        self.cost(number, LONG_NS);
        self.queue(number, HIGH);
        self.step();
        assert!(self.is_throttled(number));
    }

    fn clear(&mut self, number: usize) {
        self.queue(number, 0);
        self.step();
        assert!(!self.is_throttled(number));
    }

    fn is_throttled(&self, number: usize) -> bool {
        self.nf(number).gate.throttled.load(Ordering::Relaxed)
    }

    fn throttles(&self, number: usize) -> u64 {
        self.nf(number).gate.throttles.load(Ordering::Relaxed)
    }

    /// Numbers of the NFs that are held; checks that handle and both pages agree.
    fn held(&self) -> Vec<u16> {
        let handles = self.nfs.iter().flatten().map(|end| &end.handle);
        let held = |nf: &&Arc<NfHandle>| {
            let told = nf.gate.held.load(Ordering::Relaxed);
            assert_eq!(words(nf), [u32::from(told); 2], "NF {}", nf.number);
            told
        };
        handles.filter(held).map(|nf| nf.number).collect()
    }

    /// Replaces an NF by another process, as the packet thread does.
    fn replace(&mut self, number: u16) {
        self.nfs[number as usize] = None;
        self.throttling.forget(number, &self.nfs);
        self.page.reset(u32::from(number));
        self.nfs[number as usize] = Some(end(&Fake::default().on(&self.page, number)));
        self.tables.generation += 1;
    }
}

/// The hold words on an NF's own page and on its core's page.
fn words(nf: &NfHandle) -> [u32; 2] {
    let words: [&AtomicU32; 2] = [nf.region.page.control(Control::Yield), nf.core_page.hold(nf.slot)];
    words.map(|word| word.load(Ordering::Relaxed))
}

#[test]
fn a_long_queue_is_watched_then_throttled_then_cleared_below_the_low_watermark() {
    let mut rig = Rig::new(1, &[], &[&[0]]);
    rig.cost(0, SHORT_NS);
    // Long in packets but not in time: watched.
    rig.queue(0, HIGH);
    rig.step();
    assert!(!rig.is_throttled(0));
    // It need not be alerted again.
    rig.cost(0, LONG_NS);
    rig.step();
    assert!(rig.is_throttled(0));
    for queue in [HIGH - 1, LOW, HIGH, LOW] {
        rig.queue(0, queue);
        rig.step();
        assert!(rig.is_throttled(0), "{queue} packets");
    }
    rig.queue(0, LOW - 1);
    rig.step();
    assert!(!rig.is_throttled(0));
    assert_eq!(rig.throttles(0), 1);
    // Between the watermarks nothing begins.
    rig.queue(0, HIGH - 1);
    rig.alerts.raise(0);
    rig.step();
    assert!(!rig.is_throttled(0));
    rig.jam(0);
    assert_eq!(rig.throttles(0), 2);
}

#[test]
fn one_that_was_named_by_nobody_is_not_looked_at() {
    let mut rig = Rig::new(2, &[], &[&[0, 1]]);
    rig.cost(0, LONG_NS);
    post(rig.nf(0), HIGH);
    rig.step();
    assert!(!rig.is_throttled(0));
    rig.jam(1);
    assert!(!rig.is_throttled(0));
    // Once clear, it has to be alerted again.
    rig.clear(1);
    post(rig.nf(1), HIGH);
    rig.step();
    assert!(!rig.is_throttled(1));
    // An alert for an NF that does not exist, or not any more, does no harm.
    rig.alerts.raise(40);
    rig.nfs[1] = None;
    rig.alerts.raise(1);
    rig.step();
    rig.jam(0);
}

#[test]
fn without_a_known_cost_one_that_stands_still_is_a_bottleneck_and_one_that_waits_for_its_turn_is_not() {
    let mut rig = Rig::new(1, &[], &[&[0]]);
    rig.queue(0, u64::from(RING));
    rig.step();
    // Longer than the threshold, but no longer than other NFs may have had the core.
    rig.step_after(STILL_NS);
    assert!(!rig.is_throttled(0));
    // It returned some: the time starts again.
    rig.queue(0, HIGH);
    rig.step_after(1);
    rig.step_after(STILL_NS);
    assert!(!rig.is_throttled(0));
    rig.step_after(1);
    assert!(rig.is_throttled(0));
}

#[test]
fn those_before_a_bottleneck_are_held_and_let_go() {
    // 1 is before the bottleneck in its only chain, 0 in one of two; 3 is behind, 4 elsewhere.
    let mut rig = Rig::new(5, &[], &[&[0, 1, 2, 3], &[0, 4]]);
    rig.jam(2);
    assert_eq!(rig.held(), [1]);
    // When the other chain has a bottleneck, too, 0 has nothing left to do.
    rig.jam(4);
    assert_eq!(rig.held(), [0, 1]);
    // A bottleneck is never held; NFs before it are.
    rig.jam(3);
    assert_eq!(rig.held(), [0, 1]);
    rig.clear(2);
    assert_eq!(rig.held(), [0, 1, 2]);
    rig.clear(4);
    assert_eq!(rig.held(), [1, 2]);
    rig.clear(3);
    assert!(rig.held().is_empty());
    assert_eq!([2, 3, 4].map(|nf| rig.throttles(nf)), [1; 3]);
}

#[test]
fn one_that_is_held_with_a_long_queue_is_no_bottleneck_itself() {
    let mut rig = Rig::new(2, &[], &[&[0, 1]]);
    rig.cost(0, SHORT_NS);
    rig.queue(0, HIGH);
    rig.step();
    rig.jam(1);
    assert_eq!(rig.held(), [0]);
    // It stands still because it is held.
    rig.step_after(10 * STILL_NS);
    rig.step_after(10 * STILL_NS);
    assert_eq!((rig.throttles(0), rig.held()), (0, vec![0]));
    // Released, it gets the usual time, and is checked again.
    rig.clear(1);
    rig.step_after(STILL_NS);
    assert!(rig.held().is_empty() && !rig.is_throttled(0));
    rig.step_after(STILL_NS);
    assert!(rig.is_throttled(0));
}

#[test]
fn a_bottleneck_that_is_gone_lets_go_of_those_before_it() {
    let mut rig = Rig::new(3, &[], &[&[0, 1, 2]]);
    rig.jam(2);
    assert_eq!(rig.held(), [0, 1]);
    rig.replace(2);
    assert!(rig.held().is_empty());
    rig.refresh();
    rig.step();
    assert!(rig.held().is_empty() && !rig.is_throttled(2));
    // Its successor is treated like any NF.
    rig.jam(2);
    assert_eq!((rig.held(), rig.throttles(2)), (vec![0, 1], 1));
    // The successor of a held NF is held, too.
    rig.replace(0);
    rig.refresh();
    assert_eq!(rig.held(), [0, 1]);
    rig.clear(2);
    assert!(rig.held().is_empty());
}

#[test]
fn new_paths_and_chains_are_taken_in() {
    let mut rig = Rig::new(3, &[], &[&[0, 2]]);
    rig.jam(2);
    assert_eq!(rig.held(), [0]);
    // 0 gets a chain of its own, and 1 comes before the bottleneck.
    rig.add_chain(&[0]);
    rig.add_chain(&[1, 2]);
    assert_eq!(rig.held(), [0]);
    rig.refresh();
    assert_eq!(rig.held(), [1]);
    // An NF that was added and jammed before a refresh.
    rig.nfs.push(Some(end(&Fake::default().on(&rig.page, 3))));
    rig.jam(3);
    rig.add_chain(&[0, 3]);
    rig.refresh();
    assert_eq!(rig.held(), [1]);
    // A chain that is gone or replaced does not count, though its paths may carry packets.
    rig.tables.chains[1] = None;
    rig.tables.generation += 1;
    rig.refresh();
    assert_eq!(rig.held(), [0, 1]);
    let old = rig.tables.chains[2].take().unwrap();
    let (name, services, counters) = (old.name.clone(), vec![1], old.counters.clone());
    let new = Arc::new(Chain { number: 2, version: 2, name, services, on_failure: OnFailure::Drop, counters, ..Chain::default() });
    rig.registry.number(&Course { ingress: 0, chain: &new, nfs: &[1], reversed: &[], kind: PathKind::Whole, under: 1 });
    rig.tables.chains[2] = Some(new);
    rig.tables.generation += 1;
    rig.refresh();
    assert_eq!(rig.held(), [0]);
    rig.clear(2);
    rig.clear(3);
    assert!(rig.held().is_empty());
}

#[test]
fn polling_nfs_throttle_and_are_never_put_to_sleep() {
    let mut rig = Rig::new(3, &[0, 2], &[&[0, 1, 2]]);
    rig.jam(2);
    assert_eq!(rig.held(), [1]);
    assert_eq!(words(rig.nf(0)), [0; 2]);
    // Nor by paths that are added later.
    rig.add_chain(&[0, 2]);
    rig.refresh();
    assert_eq!(rig.held(), [1]);
    rig.clear(2);
    assert!(rig.held().is_empty());
}

#[test]
fn of_hundreds_a_round_checks_some_and_each_has_its_turn() {
    const NFS: usize = 2 * LOOKED_AT + 20;
    let mut rig = Rig::new(NFS as u16, &[], &[]);
    let throttled = |rig: &Rig| (0..NFS).filter(|nf| rig.is_throttled(*nf)).count();
    for nf in 0..NFS {
        rig.cost(nf, LONG_NS);
        rig.queue(nf, HIGH);
    }
    for expected in [LOOKED_AT, 2 * LOOKED_AT, NFS] {
        rig.step();
        assert_eq!(throttled(&rig), expected);
    }
    // One that goes leaves no gap in which another is forgotten.
    rig.replace(3);
    (0..NFS).for_each(|nf| rig.queue(nf, 0));
    (0..3).for_each(|_| rig.step());
    assert_eq!(throttled(&rig), 0);
    assert!(rig.throttling.is_quiet());
    rig.jam(NFS - 1);
    rig.clear(NFS - 1);
}

#[test]
fn one_of_hundreds_has_its_turn_though_others_come_and_go() {
    let mut rig = Rig::new(3 * LOOKED_AT as u16, &[], &[]);
    rig.jam(0);
    for round in 0..8 {
        (1..2 * LOOKED_AT + 2).for_each(|nf| rig.alerts.raise(nf as u16));
        rig.step();
        assert!(round > 0 || rig.is_throttled(0));
        rig.queue(0, 0);
    }
    assert!(!rig.is_throttled(0));
}
