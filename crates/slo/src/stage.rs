//! Latency of a chain whose NFs the cache slows by different factors.
//!
//! # Approach
//! An NF whose packets take s times as long as when it was measured has, at load λ, the latency
//! measured at s λ, times s: everything in its queue happens s times as slowly. So the latency of a
//! chain is the sum of its NFs' curves, each taken with its own s. With the s of the slowest NF
//! alone, too short a latency would be promised where another NF, with time to spare, is slowed
//! more.
//!
//! # Limits
//! Times that do not grow with the NF's (such as a wakeup) are scaled all the same: the result is
//! too long, and so safe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::curve::{Confidence, Curve, Point};

/// Bisection steps for a load: to a millionth of the most.
const HALVINGS: u32 = 20;

/// An NF of a chain.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Its latency in microseconds against packets per second that enter the chain: that of all
    /// packets but its share of the late ones.
    pub latency: Curve,
    /// Its speed against ways, from 0 (a class that others thrash) on, as a part of its speed when
    /// latency was measured.
    pub speed: Curve,
}

impl Stage {
    /// Its speed with this many ways; ways beyond the last point add nothing. 0 if unknown.
    pub fn speed(&self, ways: f64) -> f64 {
        let last = self.speed.points.last().map_or(0.0, |point| point.x);
        self.speed.at(ways.min(last)).unwrap_or(0.0)
    }

    /// Highest load with known latency at this speed, in packets per second.
    fn most_pps(&self, speed: f64) -> f64 {
        self.latency.points.last().map_or(0.0, |point| point.x * speed)
    }

    /// Its latency at a load: below the first point that of the first, beyond the last unknown.
    fn latency_us(&self, speed: f64, load_pps: f64) -> Option<f64> {
        let (first, last) = (self.latency.points.first()?, self.latency.points.last()?);
        let load_pps = load_pps / speed;
        // Rounding must not take it over the end.
        let load_pps = if load_pps <= last.x * (1.0 + 1e-9) { load_pps.min(last.x) } else { return None };
        Some(self.latency.at(load_pps.max(first.x))? / speed)
    }
}

/// Packets per second that a chain carries with this many ways within `latency_us` microseconds. 0
/// if it cannot, or if its latency is unknown.
pub fn within(stages: &[Stage], ways: f64, latency_us: f64) -> f64 {
    let speeds: Vec<f64> = stages.iter().map(|stage| stage.speed(ways)).collect();
    if speeds.is_empty() || speeds.iter().any(|speed| *speed <= 0.0) {
        return 0.0;
    }
    let at = |load_pps: f64| -> Option<f64> {
        stages.iter().zip(&speeds).try_fold(0.0, |sum, (stage, speed)| Some(sum + stage.latency_us(*speed, load_pps)?))
    };
    let fits = |load_pps: f64| at(load_pps).is_some_and(|us| us <= latency_us);
    let most = stages.iter().zip(&speeds).map(|(stage, speed)| stage.most_pps(*speed)).fold(f64::INFINITY, f64::min);
    if fits(most) {
        return most;
    }
    let (mut carries, mut too_much) = (0.0, most);
    for _ in 0..HALVINGS {
        let load_pps = f64::midpoint(carries, too_much);
        *(if fits(load_pps) { &mut carries } else { &mut too_much }) = load_pps;
    }
    carries
}

/// The latency of all NFs together at their measured speed, over the loads from the least first
/// point to the least last point. None if there are no stages or one has no curve.
pub fn together(stages: &[Stage]) -> Option<Curve> {
    let least = |end: fn(&Curve) -> Option<&Point>| -> Option<f64> {
        let ends = stages.iter().map(|stage| Some(end(&stage.latency)?.x)).collect::<Option<Vec<_>>>();
        ends?.into_iter().min_by(f64::total_cmp)
    };
    let from = least(|latency| latency.points.first())?;
    let to = least(|latency| latency.points.last())?;
    // Between the points of all of them it is a straight line.
    let points = stages.iter().flat_map(|stage| stage.latency.points.iter().map(|point| point.x));
    let mut at: Vec<f64> = points.filter(|x| (from..=to).contains(x)).collect();
    at.sort_by(f64::total_cmp);
    // Merge loads that differ by rounding only.
    at.dedup_by(|b, a| *b <= *a * (1.0 + 1e-9));
    let sum = |x: f64| stages.iter().try_fold(0.0, |sum, stage| Some(sum + stage.latency_us(1.0, x)?));
    let points = at.into_iter().map(|x| Some(Point { x, y: sum(x)? })).collect::<Option<Vec<_>>>()?;
    let most = |value: fn(&Curve) -> f64| stages.iter().map(|stage| value(&stage.latency)).fold(0.0, f64::max);
    Some(Curve {
        points,
        measured: stages.iter().map(|stage| stage.latency.measured).sum(),
        error_bound: most(|curve| curve.error_bound),
        spread: most(|curve| curve.spread),
        margin: most(|curve| curve.margin),
        confidence: Confidence::together(stages.iter().map(|stage| stage.latency.confidence)),
        notes: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::curve;

    fn stage(latency: &[(f64, f64)], speed: &[(f64, f64)]) -> Stage {
        Stage { latency: curve(latency), speed: curve(speed) }
    }

    #[test]
    fn the_one_that_is_slowed_most_counts_by_its_own_curve() {
        // The second is fast, and takes four times as long with one way.
        let slow = stage(&[(1e5, 10.0), (1e6, 100.0)], &[(0.0, 0.5), (1.0, 1.0), (2.0, 1.0)]);
        let fast = stage(&[(1e5, 4.0), (4e6, 40.0)], &[(0.0, 0.1), (1.0, 0.25), (2.0, 1.0)]);
        let both = [slow, fast];
        assert_eq!(within(&both, 2.0, 1e3), 1e6, "as far as the first was measured");
        // 10 + 4 µs at the least load with two ways; 10 + 16 with one.
        assert!(within(&both, 2.0, 14.1) > 1e5 && within(&both, 2.0, 13.9) == 0.0);
        assert!(within(&both, 1.0, 26.5) > 0.0 && within(&both, 1.0, 25.9) == 0.0);
        let at = within(&both, 1.0, 60.0);
        let sum = both[0].latency.at(at).unwrap() + 4.0 * both[1].latency.at(4.0 * at).unwrap();
        assert!((sum - 60.0).abs() < 0.01 && sum <= 60.0, "{at} {sum}");
        assert!((within(&both, 0.0, 1e3) / 0.4e6 - 1.0).abs() < 1e-5, "no further than its curve goes, at its speed");
        assert_eq!(within(&[], 1.0, 1e3), 0.0);
        assert_eq!(within(&[stage(&[(1e5, 1.0)], &[(2.0, 1.0)])], 1.0, 1e3), 0.0, "fewer ways than are known");
    }

    #[test]
    fn latencies_add_up_where_all_are_known() {
        let both =
            [stage(&[(5e5, 2.0), (9e6, 10.0)], &[(1.0, 1.0)]), stage(&[(4e5, 3.0), (4e6, 5.0), (7.2e6, 20.0)], &[(1.0, 1.0)])];
        let sum = together(&both).unwrap();
        assert_eq!(sum.points.iter().map(|point| point.x).collect::<Vec<_>>(), [4e5, 5e5, 4e6, 7.2e6]);
        assert_eq!(sum.points[0].y, 5.0, "below its first point the first takes as long as there");
        assert!(together(&[]).is_none() && together(&[stage(&[], &[])]).is_none());
    }
}
