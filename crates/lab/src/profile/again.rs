//! A repeated measurement of a profile, at closely spaced loads between its few points.
//!
//! # Approach
//! The NF is started once more on the same stand with the same traffic. Throughput is the median of
//! [`SAMPLES`] measurements. Latency is the median of as many at each load; loads are even between
//! the ends of the profile's latency curve. Each value is compared with the curve and with the
//! promise, which is the curve with its margin. The lowest measurement is reported, too: if even
//! that exceeds the promise, a short disturbance of the host is not the reason.
//!
//! # Limits
//! It uses all ways of the cache, so it is less meaningful for a profile by classes (resctrl),
//! whose best class is smaller. On a host that has become busier, a profile appears to promise too
//! much, and then it does.

use serde::{Deserialize, Serialize};
use sluice_slo::profile::Profile;

use super::{Bench, LATE, MeasureError, SAMPLE_NS, percentile};
use crate::estimate::Subject;
use crate::estimate::stand;
use crate::profile::traffic::Packets;

pub const SAMPLES: usize = 7;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LoadPoint {
    pub load_pps: f64,
    /// 95th percentile in microseconds, measured again.
    pub now_us: f64,
    /// The lowest measurement.
    pub least_us: f64,
    pub curve_us: f64,
    pub promised_us: f64,
}

/// A profile's promises beside new measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Again {
    /// Packets per second with all ways.
    pub now_pps: f64,
    /// The promise for the most ways in the profile.
    pub promised_pps: f64,
    /// Latency, by rising load.
    pub latency: Vec<LoadPoint>,
}

impl Again {
    /// Relative distance of latency from the curve: the median over all loads.
    pub fn distance(&self) -> f64 {
        percentile(self.latency.iter().map(|at| (at.now_us / at.curve_us - 1.0).abs()).collect(), 0.5)
    }

    /// Largest relative excess over the promise; negative if there is none. None without loads.
    pub fn above(&self) -> Option<f64> {
        self.latency.iter().map(|at| at.now_us / at.promised_us - 1.0).max_by(f64::total_cmp)
    }

    /// Number of loads with an excess, and of those where even the lowest measurement exceeds.
    pub fn loads_above(&self) -> (usize, usize) {
        let count = |of: fn(&LoadPoint) -> f64| self.latency.iter().filter(|at| of(at) > at.promised_us).count();
        (count(|at| at.now_us), count(|at| at.least_us))
    }
}

/// Measures the NF of a profile again, at this number of loads.
pub fn measure(subject: &Subject, core: usize, packets: Packets, profile: &Profile, loads: u32) -> Result<Again, MeasureError> {
    let _pin = stand::Pin::away_from(core)?;
    let (mut bench, _) = Bench::start(subject, core, packets)?;
    let samples = |of: &mut dyn FnMut() -> Result<f64, MeasureError>| (0..SAMPLES).map(|_| of()).collect::<Result<Vec<_>, _>>();
    let now_pps = percentile(samples(&mut || bench.fill(SAMPLE_NS))?, 0.5);
    let curve = &profile.latency;
    let mut latency = Vec::with_capacity(loads as usize);
    for load_pps in between(profile, loads) {
        let found = samples(&mut || bench.latency_us(load_pps, LATE))?;
        let curve_us = curve.at(load_pps).unwrap_or(f64::INFINITY);
        let promised_us = curve_us * (1.0 + curve.margin);
        latency.push(LoadPoint {
            load_pps,
            least_us: percentile(found.clone(), 0.0),
            now_us: percentile(found, 0.5),
            curve_us,
            promised_us,
        });
    }
    bench.stand.stop()?;
    Ok(Again { now_pps, promised_pps: profile.throughput_pps(profile.best_ways), latency })
}

/// Evenly spaced loads from the first of a latency curve to its last.
fn between(profile: &Profile, loads: u32) -> Vec<f64> {
    let points = &profile.latency.points;
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    let step = (last.x - first.x) / f64::from(loads.max(2) - 1);
    // The last one is not computed, because rounding may change it.
    (0..loads).map(|i| if i > 0 && i + 1 == loads { last.x } else { first.x + step * f64::from(i) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now_us: f64, curve_us: f64) -> LoadPoint {
        LoadPoint { load_pps: 1e6, now_us, least_us: now_us - 2.0, curve_us, promised_us: curve_us * 1.1 }
    }

    #[test]
    fn what_is_above_the_promise_is_reported_and_by_how_much() {
        let again = Again { now_pps: 1e6, promised_pps: 1e6, latency: vec![at(10.0, 10.0), at(12.0, 10.0), at(19.0, 20.0)] };
        assert_eq!(again.loads_above(), (1, 0));
        assert!((again.above().unwrap() - (12.0 / 11.0 - 1.0)).abs() < 1e-12);
        assert!((again.distance() - 0.05).abs() < 1e-12);
        let kept = Again { latency: vec![at(10.9, 10.0)], ..again.clone() };
        assert!(kept.loads_above() == (0, 0) && kept.above().unwrap() < 0.0);
        let far = Again { latency: vec![at(14.0, 10.0)], ..again.clone() };
        assert_eq!(far.loads_above(), (1, 1));
        assert_eq!(Again { latency: Vec::new(), ..again }.above(), None);
    }

    #[test]
    fn loads_lie_evenly_and_within_the_curve() {
        let mut profile: Profile = serde_json::from_str(
            r#"{"form":1,"key":{"workload":{"nf":"x"},"binaries":[],"configuration":"0","traffic":"t","cpu":"c"},"source":"none","cores":1,
                "memory_mib":1,"throughput":{"points":[{"x":20,"y":1e6}],"measured":1,"error_bound":0,"spread":0,"margin":0},
                "latency":{"points":[{"x":5e4,"y":1},{"x":9.5e5,"y":9}],"measured":2,"error_bound":0,"spread":0,"margin":0},"best_ways":20}"#,
        )
        .unwrap();
        assert_eq!(between(&profile, 4), [5e4, 3.5e5, 6.5e5, 9.5e5]);
        assert!(between(&profile, 7).iter().all(|load| profile.latency.at(*load).is_some()));
        let ends = [855.6057044954929, 16256.508385414363];
        profile.latency.points.iter_mut().zip(ends).for_each(|(point, x)| point.x = x);
        assert_eq!([between(&profile, 4)[0], between(&profile, 4)[3]], ends, "though they are rounded");
        profile.latency.points.clear();
        assert!(between(&profile, 4).is_empty());
    }
}
