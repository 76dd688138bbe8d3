//! What is seen of promises: counters at two moments, and what happened between them.

use std::collections::BTreeMap;

use sluice_shm::histogram::Histogram;

use sluice_dataplane::chain::{Chain, DropReason};

/// Least number of timed packets that a 95th percentile is told of.
const LEAST_TIMED: u64 = 20;

/// Windows after which fewer do.
const MOST_WINDOWS: u32 = 10;

/// What was counted of a chain, ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came for it.
    pub offered: u64,
    /// Of these, the ones above its rate.
    pub policed: u64,
    /// Packets that its NFs were done with: that left, or that an NF dropped.
    pub delivered: u64,
}

impl Counts {
    /// Of a chain.
    pub fn of(chain: &Chain) -> Self {
        let sum = |of: &dyn Fn(&sluice_dataplane::chain::ChainCounters) -> u64| chain.counters.iter().map(of).sum::<u64>();
        let dropped = |why: DropReason| sum(&|c| c.drops[why as usize].get());
        let policed = dropped(DropReason::Policed);
        Self {
            offered: sum(&|c| c.entered.get()) + dropped(DropReason::Entry) + dropped(DropReason::NfDown) + policed,
            policed,
            delivered: sum(&|c| c.left.get()) + dropped(DropReason::Verdict),
        }
    }
}

/// Packets per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// That came.
    pub offered_pps: f64,
    /// Of these, above the promised rate.
    pub policed_pps: f64,
    /// That the NFs were done with.
    pub delivered_pps: f64,
}

/// What was seen of a chain at the end of the last window.
#[derive(Debug, Clone, Default)]
struct Before {
    counts: Counts,
    latency: Histogram,
    /// Windows whose timed packets were too few to tell of.
    waited: u32,
}

/// The windows of chains, by name.
#[derive(Debug, Default)]
pub struct Windows {
    began_ns: u64,
    chains: BTreeMap<String, Before>,
}

impl Windows {
    /// When the window began that goes on; 0 if none does.
    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// Begins windows anew.
    pub fn restart(&mut self, now_ns: u64) {
        *self = Self { began_ns: now_ns, chains: BTreeMap::new() };
    }

    /// Ends the window of a chain: rates, and the 95th percentile of latency in microseconds if enough packets were timed. Nothing of a chain
    /// that was not there at its beginning.
    pub fn end(&mut self, now_ns: u64, chain: &str, counts: Counts, latency: Histogram) -> Option<(Rates, Option<f64>)> {
        let seconds = now_ns.saturating_sub(self.began_ns) as f64 / 1e9;
        let Some(before) = self.chains.get_mut(chain).filter(|_| seconds > 0.0) else {
            self.chains.insert(chain.into(), Before { counts, latency, waited: 0 });
            return None;
        };
        let per_s = |of: fn(&Counts) -> u64| of(&counts).saturating_sub(of(&before.counts)) as f64 / seconds;
        let rates =
            Rates { offered_pps: per_s(|c| c.offered), policed_pps: per_s(|c| c.policed), delivered_pps: per_s(|c| c.delivered) };
        before.counts = counts;
        let timed = latency.since(&before.latency);
        before.waited += 1;
        let p95 = (timed.count() >= LEAST_TIMED).then(|| timed.quantile(0.95)).flatten();
        if p95.is_some() || before.waited >= MOST_WINDOWS {
            (before.latency, before.waited) = (latency, 0);
        }
        Some((rates, p95.map(|ns| ns as f64 / 1e3)))
    }

    /// The next window begins.
    pub fn next(&mut self, now_ns: u64, chains: &[&str]) {
        self.began_ns = now_ns;
        self.chains.retain(|name, _| chains.contains(&name.as_str()));
    }
}

/// What an algorithm for SLOs on demand has to know of one of them, at the end of a window. Rate and latency are of all its instances here
/// together: packets are timed by chain.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OnDemand {
    /// Its name.
    pub slo: String,
    /// What is promised, in microseconds.
    pub promised_us: f64,
    /// 95th percentile of latency, in microseconds, if enough packets were timed.
    pub latency_us: Option<f64>,
    /// Packets per second that came.
    pub offered_pps: f64,
    /// Its instances, by number.
    pub instances: Vec<InstanceUse>,
}

/// What an instance uses of the cache.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InstanceUse {
    /// Its number.
    pub number: u32,
    /// Its class.
    pub class: String,
    /// Ways of the class.
    pub ways: u32,
    /// Bytes that it has in the cache, where that is counted.
    pub occupancy_bytes: Option<u64>,
    /// Lines a second that came from memory, where that is counted.
    pub misses_per_s: Option<f64>,
}

/// Windows in a row in which the count of an instance is waited for: two moments are needed, and at one the counter may have no value.
const UNCOUNTED_WINDOWS: u32 = 2;

/// Instances that are not counted, and for how many windows in a row. The counter of one may be somebody else's, or its NF may never have been there:
/// the others are not to wait for it for ever.
#[derive(Debug, Default)]
pub struct Uncounted {
    windows: BTreeMap<(String, u32), u32>,
}

impl Uncounted {
    /// One window: whether there is somebody whose count is to be waited for.
    pub fn awaits(&mut self, seen: &[OnDemand]) -> bool {
        let is_uncounted = |one: &&InstanceUse| one.misses_per_s.is_none();
        let before = std::mem::take(&mut self.windows);
        for slo in seen {
            for one in slo.instances.iter().filter(is_uncounted) {
                let id = (slo.slo.clone(), one.number);
                let windows = before.get(&id).map_or(1, |windows| windows.saturating_add(1));
                self.windows.insert(id, windows);
            }
        }
        self.windows.values().any(|windows| *windows <= UNCOUNTED_WINDOWS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn who_is_not_counted_is_waited_for_and_not_for_ever() {
        let seen = |counted: &[bool]| {
            let one = |(number, is_counted): (u32, &bool)| InstanceUse {
                number,
                misses_per_s: is_counted.then_some(0.0),
                ..InstanceUse::default()
            };
            [OnDemand { slo: "a".into(), instances: (0..).zip(counted).map(one).collect(), ..OnDemand::default() }]
        };
        let mut uncounted = Uncounted::default();
        let mut awaits = |counted: &[bool]| uncounted.awaits(&seen(counted));
        assert!(!awaits(&[true]));
        assert_eq!([(); 4].map(|()| awaits(&[true, false])), [true, true, false, false]);
        // Another one has gone to another class: that one is waited for.
        assert_eq!([(); 3].map(|()| awaits(&[false, false])), [true, true, false]);
        assert!(!awaits(&[true, true]) && awaits(&[true, false]), "and the next time again");
    }

    #[test]
    fn a_window_is_the_difference_of_two_moments() {
        let mut windows = Windows::default();
        windows.restart(S);
        let mut latency = Histogram::default();
        let counts = |n: u64| Counts { offered: 10 * n, policed: 2 * n, delivered: 8 * n };
        assert_eq!(windows.end(S, "a", counts(5), latency.clone()), None);
        windows.next(S, &["a"]);
        latency.record_many(50_000, 10);
        let (rates, p95) = windows.end(3 * S, "a", counts(105), latency.clone()).unwrap();
        assert_eq!((rates, p95), (Rates { offered_pps: 500.0, policed_pps: 100.0, delivered_pps: 400.0 }, None), "ten are too few");
        windows.next(3 * S, &["a"]);
        latency.record_many(50_000, 10);
        let p95 = windows.end(4 * S, "a", counts(105), latency.clone()).unwrap().1.unwrap();
        assert!((45.0..55.0).contains(&p95), "with those of the window before: {p95}");
        windows.next(4 * S, &["a"]);
        latency.record_many(900_000, 20);
        assert!(windows.end(5 * S, "a", counts(105), latency.clone()).unwrap().1.unwrap() > 800.0, "and not again");
        windows.next(5 * S, &[]);
        assert_eq!(windows.end(6 * S, "a", counts(200), latency), None, "forgotten meanwhile");
    }
}
