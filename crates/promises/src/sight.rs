//! Observation of SLOs: counters at two times, and the difference.

use std::collections::BTreeMap;

use sluice_shm::histogram::Histogram;

use sluice_dataplane::chain::{Chain, DropReason};

/// Minimum number of timed packets for a 95th percentile.
const LEAST_TIMED: u64 = 20;

/// Number of windows after which timed packets are discarded anyway.
const MOST_WINDOWS: u32 = 10;

/// Counters of a chain so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that arrived for it.
    pub offered: u64,
    /// Those above its rate.
    pub policed: u64,
    /// Packets finished by its NFs: they left, or an NF dropped them.
    pub delivered: u64,
}

impl Counts {
    pub fn of(chain: &Chain) -> Self {
        let sum = |of: &dyn Fn(&sluice_dataplane::chain::ChainCounters) -> u64| chain.counters.iter().map(of).sum::<u64>();
        let dropped = |why: DropReason| sum(&|c| c.drops[why as usize].get());
        let policed = dropped(DropReason::Policed);
        Self {
            offered: sum(&|c| c.api.entry_packets.get()) + dropped(DropReason::Entry) + policed,
            policed,
            delivered: sum(&|c| c.api.exit_packets.get()) + dropped(DropReason::Verdict),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    pub offered_pps: f64,
    /// Those above the promised rate.
    pub policed_pps: f64,
    /// Packets finished by the NFs.
    pub delivered_pps: f64,
}

/// State of a chain at the end of the last window.
#[derive(Debug, Clone, Default)]
struct Before {
    counts: Counts,
    latency: Histogram,
    /// Windows with too few timed packets for a percentile.
    waited: u32,
}

/// The windows of chains, by name.
#[derive(Debug, Default)]
pub struct Windows {
    began_ns: u64,
    chains: BTreeMap<String, Before>,
}

impl Windows {
    /// Begin of the current window; 0 if there is none.
    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }

    pub fn restart(&mut self, now_ns: u64) {
        *self = Self { began_ns: now_ns, chains: BTreeMap::new() };
    }

    /// Ends a chain's window: rates, and the 95th percentile of latency in µs if enough were timed.
    ///
    /// None for a chain that was missing at the window's begin.
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

    pub fn next(&mut self, now_ns: u64, chains: &[&str]) {
        self.began_ns = now_ns;
        self.chains.retain(|name, _| chains.contains(&name.as_str()));
    }
}

/// A window's input to the algorithm for SLOs on demand, of one SLO.
///
/// Rate and latency are of all its instances here together: packets are timed by chain.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OnDemand {
    pub slo: String,
    /// The promised latency in microseconds.
    pub promised_us: f64,
    /// 95th percentile of latency in microseconds, if enough packets were timed.
    pub latency_us: Option<f64>,
    /// Arrived packets per second.
    pub offered_pps: f64,
    pub instances: Vec<InstanceUse>,
}

/// An instance's use of the cache.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InstanceUse {
    pub number: u32,
    pub class: String,
    pub ways: u32,
    /// Bytes in the cache, if counted.
    pub occupancy_bytes: Option<u64>,
    /// Lines from memory per second, if counted.
    pub misses_per_s: Option<f64>,
}

/// Windows in a row to wait for an instance's count, which needs two readings with a value.
const UNCOUNTED_WINDOWS: u32 = 2;

/// Uncounted instances, with their windows in a row.
///
/// Such a counter may be held elsewhere, or its NF may never have existed: waiting must end.
#[derive(Debug, Default)]
pub struct Uncounted {
    windows: BTreeMap<(String, u32), u32>,
}

impl Uncounted {
    /// Evaluates one window: whether to wait for some count.
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
    fn one_that_is_not_counted_is_waited_for_and_not_for_ever() {
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
        // Another one has changed its class, and is waited for.
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
