//! The demand of NFs: how many packets come for them, and what a packet costs.
//!
//! The Monitor role reads counters about once a millisecond: packets posted and refused from the
//! manager's memory, the sampled service time from the NF's page. An NF may claim a false service
//! time, but at most the time that passed. It then gets at most the share that it would get by
//! using its core all the time. At most [`AT_ONCE`] NFs are read a round, round-robin.
//!
//! Source: NFVnice (SIGCOMM 2017), section 3.5: samples each ms, median over 100 ms.

use std::sync::atomic::Ordering;

use sluice_policy::sched::cost::MovingMedian;
use sluice_policy::sched::weight::ArrivalRate;
use sluice_shm::page::Counter;

use crate::end::NfEnd;
use crate::handle::NfHandle;
use crate::roles::Portion;

/// How long a sample of the service time counts, in nanoseconds.
const WINDOW_NS: u64 = 100_000_000;
/// Time constant of arrival rates, in nanoseconds.
const SMOOTHED_NS: u64 = 10_000_000;
/// Most NFs that are read in one round.
pub const AT_ONCE: usize = 64;

#[derive(Debug)]
struct Meter {
    arrivals: ArrivalRate,
    /// Picoseconds a packet.
    cost: MovingMedian,
    /// Nanoseconds and packets of all samples, when last read.
    busy_ns: u64,
    sampled: u64,
    /// When it was last seen idle or with progress, and what it had returned then.
    since_ns: Option<u64>,
    returned: u64,
}

impl Meter {
    fn new() -> Self {
        Self {
            arrivals: ArrivalRate::new(SMOOTHED_NS),
            cost: MovingMedian::new(WINDOW_NS),
            busy_ns: 0,
            sampled: 0,
            since_ns: None,
            returned: 0,
        }
    }

    fn measure(&mut self, now_ns: u64, handle: &NfHandle) {
        self.arrivals.add(now_ns, handle.arrived());
        handle.load.arrival_pps.set(self.arrivals.pps());
        let word = |counter| handle.region.page.counter(counter).load(Ordering::Relaxed);
        let (busy_ns, sampled) = (word(Counter::BusyNs), word(Counter::Sampled));
        let (took, packets) = (busy_ns.wrapping_sub(self.busy_ns), sampled.wrapping_sub(self.sampled));
        (self.busy_ns, self.sampled) = (busy_ns, sampled);
        let (posted, returned) = handle.posted_returned();
        let before_ns = self.since_ns;
        let done = returned.saturating_sub(std::mem::replace(&mut self.returned, returned));
        // A burst of expensive packets takes several readings, and returns all at once.
        if done > 0 || posted <= returned || before_ns.is_none() {
            self.since_ns = Some(now_ns);
        }
        // The first reading only starts an interval: the time that its packets took is unknown.
        if packets > 0
            && let Some(before_ns) = before_ns
        {
            // Its packets cannot have taken longer than the time that passed.
            let passed_ns = now_ns.saturating_sub(before_ns).min(1_000_000_000);
            let most = u128::from(passed_ns) * 1000 / u128::from(done.max(1));
            self.cost.add(now_ns, (u128::from(took) * 1000 / u128::from(packets)).min(most) as u64);
        }
        if let Some(cost) = self.cost.median(now_ns) {
            handle.load.service_ns.set(cost as f64 / 1000.0);
        }
    }
}

/// The meters of all NFs, by number.
#[derive(Debug, Default)]
pub struct Loads {
    meters: Vec<Option<Box<Meter>>>,
    next: usize,
}

impl Loads {
    /// Reads the next NFs.
    #[cold]
    pub fn measure(&mut self, now_ns: u64, nfs: &[Option<NfEnd>], part: Portion) {
        if self.meters.len() < nfs.len() {
            self.meters.resize_with(nfs.len(), || None);
        }
        let mut left = AT_ONCE;
        for _ in 0..nfs.len() {
            let number = if self.next < nfs.len() { self.next } else { 0 };
            self.next = number + 1;
            if let Some(end) = nfs[number].as_ref().filter(|_| part.has(number)) {
                self.meters[number].get_or_insert_with(|| Box::new(Meter::new())).measure(now_ns, &end.handle);
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
    }

    /// Forgets an NF that is gone: its successor starts afresh.
    pub fn forget(&mut self, number: u16) {
        if let Some(meter) = self.meters.get_mut(number as usize) {
            *meter = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fake::{Fake, claim, core_page, end, give_back, post};

    const MS: u64 = 1_000_000;
    const ALL: Portion = Portion { of: 1, this: 0 };

    struct Rig {
        loads: Loads,
        nfs: Vec<Option<NfEnd>>,
        now_ns: u64,
    }

    impl Rig {
        fn new(nfs: u16) -> Self {
            let page = core_page(u32::from(nfs));
            let nfs = (0..nfs).map(|number| Some(end(&Fake::default().on(&page, number)))).collect();
            Self { loads: Loads::default(), nfs, now_ns: 5_000 * MS }
        }

        fn nf(&self, number: usize) -> &Arc<NfHandle> {
            &self.nfs[number].as_ref().unwrap().handle
        }

        fn measure(&mut self) {
            self.measure_part(ALL);
        }

        fn measure_part(&mut self, part: Portion) {
            self.now_ns += MS;
            self.loads.measure(self.now_ns, &self.nfs, part);
        }

        /// NF 0 is given and returns packets, and claims a cost for each.
        fn work(&mut self, packets: u64, each_ns: u64) -> f64 {
            let nf = self.nf(0);
            post(nf, packets);
            give_back(nf, packets);
            claim(nf, 32, 32 * each_ns);
            self.measure();
            self.service_ns(0)
        }

        fn service_ns(&self, number: usize) -> f64 {
            self.nf(number).load.service_ns.get()
        }

        fn arrival_pps(&self, number: usize) -> f64 {
            self.nf(number).load.arrival_pps.get()
        }
    }

    #[test]
    fn the_service_time_is_the_median_of_the_last_100_ms() {
        let mut rig = Rig::new(1);
        rig.measure();
        assert_eq!(rig.service_ns(0), 0.0, "not known yet");
        (0..100).for_each(|_| _ = rig.work(10, 211));
        assert_eq!(rig.service_ns(0), 211.0);
        // At worst, now and then interrupted.
        (0..20).for_each(|_| assert_eq!(rig.work(10, 90_000), 211.0));
        // More expensive from now on: known when more than half of the window agrees.
        let changed = (21..200).find(|_| rig.work(10, 633) == 633.0);
        assert!(changed.is_some_and(|after| (40..=70).contains(&after)), "{changed:?}");
        // An NF without packets keeps its cost.
        (0..500).for_each(|_| rig.measure());
        assert_eq!(rig.service_ns(0), 633.0);
        // Less than a nanosecond is reported, too.
        claim(rig.nf(0), 1000, 250);
        give_back(rig.nf(0), 1000);
        rig.measure();
        assert_eq!(rig.service_ns(0), 0.25);
    }

    #[test]
    fn one_that_lies_gets_no_more_than_the_time_that_passed() {
        // 100 packets were returned within a millisecond: 10 µs each at most.
        for lie in [10_001, u64::MAX / 32] {
            let mut rig = Rig::new(1);
            rig.measure();
            (0..5).for_each(|_| assert_eq!(rig.work(100, lie), 10_000.0, "{lie}"));
        }
        // The limit itself may be true.
        let mut rig = Rig::new(1);
        rig.measure();
        assert_eq!(rig.work(100, 10_000), 10_000.0);
        // Nothing was returned: one packet may have taken all of the time.
        let mut rig = Rig::new(1);
        rig.measure();
        claim(rig.nf(0), 1, u64::MAX);
        rig.measure();
        assert_eq!(rig.service_ns(0), 1e6);
        // Counters that decrease are a lie like any other.
        let mut rig = Rig::new(1);
        rig.measure();
        assert_eq!(rig.work(100, 50), 50.0);
        let page = &rig.nf(0).region.page;
        page.counter(Counter::BusyNs).store(0, Ordering::Relaxed);
        (0..5).for_each(|_| _ = rig.work(100, 50));
        assert_eq!(rig.service_ns(0), 50.0);
        // A lie before the first reading gains nothing either.
        let mut rig = Rig::new(1);
        assert_eq!(rig.work(100, u64::MAX / 32), 0.0);
        assert_eq!(rig.work(100, u64::MAX / 32), 10_000.0);
    }

    #[test]
    fn a_burst_that_takes_longer_than_a_reading_costs_what_it_took() {
        let mut rig = Rig::new(1);
        rig.measure();
        // Bursts of 32 packets of 100 µs each: 3.2 ms, seen at every fourth reading.
        post(rig.nf(0), 3200);
        for _ in 0..20 {
            (0..3).for_each(|_| rig.measure());
            give_back(rig.nf(0), 32);
            claim(rig.nf(0), 32, 3_200_000);
            rig.measure();
        }
        assert_eq!(rig.service_ns(0), 100_000.0);
    }

    #[test]
    fn arrivals_are_what_was_posted_and_what_was_refused() {
        let mut rig = Rig::new(2);
        rig.measure();
        for _ in 0..200 {
            post(rig.nf(0), 30);
            rig.nf(0).counters[0].refused.add(70);
            rig.measure();
        }
        assert_eq!(rig.arrival_pps(0).round(), 100_000.0);
        assert_eq!(rig.arrival_pps(1), 0.0);
        // Smoothed: a pause shows gradually.
        rig.measure();
        assert!((50_000.0..100_000.0).contains(&rig.arrival_pps(0)), "{}", rig.arrival_pps(0));
    }

    #[test]
    fn another_process_in_the_place_of_an_nf_begins_anew() {
        let mut rig = Rig::new(1);
        rig.measure();
        for _ in 0..50 {
            rig.work(100, 5_000);
        }
        assert_eq!(rig.service_ns(0), 5_000.0);
        rig.loads.forget(0);
        rig.nfs[0] = None;
        rig.measure();
        // Its counters begin at 0, and so do those of its handle.
        rig.nfs = Rig::new(1).nfs;
        rig.measure();
        assert_eq!((rig.service_ns(0), rig.arrival_pps(0)), (0.0, 0.0));
        assert_eq!(rig.work(100, 7), 7.0, "nothing of the former one is left");
        assert_eq!(rig.arrival_pps(0).round(), 100_000.0);
        rig.loads.forget(77);
    }

    #[test]
    fn many_are_read_in_turn() {
        let mut rig = Rig::new(150);
        // A gap, and one at the end.
        rig.nfs[3] = None;
        let known = |rig: &Rig| rig.nfs.iter().flatten().filter(|end| end.handle.load.service_ns.get() > 0.0).count();
        let work = |rig: &Rig| {
            rig.nfs.iter().flatten().for_each(|end| {
                give_back(&end.handle, 10);
                claim(&end.handle, 10, 1000);
            });
        };
        // All have been read once; the rest follow in the next rounds.
        (0..3).for_each(|_| rig.measure());
        work(&rig);
        let counts = [(); 3].map(|()| {
            rig.measure();
            known(&rig)
        });
        assert_eq!(counts, [AT_ONCE, 2 * AT_ONCE, 149]);
    }

    #[test]
    fn a_thread_reads_its_own_part() {
        let mut rig = Rig::new(5);
        let part = Portion { of: 2, this: 1 };
        rig.measure_part(part);
        rig.nfs.iter().flatten().for_each(|end| claim(&end.handle, 10, 100));
        rig.measure_part(part);
        let known: Vec<bool> = (0..5).map(|number| rig.service_ns(number) > 0.0).collect();
        assert_eq!(known, [false, true, false, true, false]);
        // An NF that is added later is read, too.
        let page = core_page(8);
        rig.nfs.push(Some(end(&Fake::default().on(&page, 5))));
        rig.measure_part(part);
        claim(rig.nf(5), 10, 100);
        rig.measure_part(part);
        assert_eq!(rig.service_ns(5), 10.0);
    }
}
