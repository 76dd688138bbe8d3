//! What a profile says, measured again: at loads that lie close together, and not only where its few points are.
//!
//! # Approach
//! The NF is started once more, on the same stand with the same traffic. Throughput is the median of [`SAMPLES`] measurements, latency that of as
//! many at each of the loads, which lie evenly between the ends of the profile's latency curve. Each is put beside the curve and beside what is
//! promised, which is the curve with its margin. The lowest of the measurements stands there too: where even that is above the promise, it is
//! not a host that was disturbed for a moment.
//!
//! # Limits
//! With all ways of the cache: of a profile by classes (resctrl), whose best class is smaller, it says less. A host that is busier than it was
//! shows here as a profile that promises too much, and then it does.

use serde::{Deserialize, Serialize};
use sluice_slo::profile::Profile;

use super::{Bench, LATE, MeasureError, SAMPLE_NS, percentile};
use crate::estimate::Subject;
use crate::estimate::stand;
use crate::profile::traffic::Packets;

/// Measurements of each value.
pub const SAMPLES: usize = 7;

/// Latency at a load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct At {
    /// Packets per second.
    pub load_pps: f64,
    /// 95th percentile in microseconds, measured again.
    pub now_us: f64,
    /// The lowest that was measured.
    pub least_us: f64,
    /// By the profile's curve.
    pub curve_us: f64,
    /// What the profile promises.
    pub promised_us: f64,
}

/// A profile beside what was measured again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Again {
    /// Packets per second with all ways.
    pub now_pps: f64,
    /// What the profile promises with the most ways that it knows.
    pub promised_pps: f64,
    /// Latency, by rising load.
    pub latency: Vec<At>,
}

impl Again {
    /// How far latency is from the curve, as a part of the curve: the median over all loads.
    pub fn distance(&self) -> f64 {
        percentile(self.latency.iter().map(|at| (at.now_us / at.curve_us - 1.0).abs()).collect(), 0.5)
    }

    /// The most by which latency is above what is promised, as a part of that; below 0 if it is nowhere. None without loads.
    pub fn above(&self) -> Option<f64> {
        self.latency.iter().map(|at| at.now_us / at.promised_us - 1.0).max_by(f64::total_cmp)
    }

    /// Loads at which it is above; and at which even the lowest is.
    pub fn loads_above(&self) -> (usize, usize) {
        let count = |of: fn(&At) -> f64| self.latency.iter().filter(|at| of(at) > at.promised_us).count();
        (count(|at| at.now_us), count(|at| at.least_us))
    }
}

/// Measures the NF of a profile again, at so many loads.
///
/// # Errors
/// [`MeasureError`].
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
        latency.push(At {
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

/// So many loads from the first of a latency curve to its last.
fn between(profile: &Profile, loads: u32) -> Vec<f64> {
    let points = &profile.latency.points;
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    let step = (last.x - first.x) / f64::from(loads.max(2) - 1);
    // The last one is not computed: rounded, it may be a little less or more.
    (0..loads).map(|i| if i > 0 && i + 1 == loads { last.x } else { first.x + step * f64::from(i) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now_us: f64, curve_us: f64) -> At {
        At { load_pps: 1e6, now_us, least_us: now_us - 2.0, curve_us, promised_us: curve_us * 1.1 }
    }

    #[test]
    fn what_is_above_the_promise_is_told_and_by_how_much() {
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
