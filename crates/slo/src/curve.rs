//! A safe curve from few measurements: it never promises more than there is.
//!
//! # Problem
//! A point of a profile costs seconds. Throughput against cache ways is often concave, and then
//! halving intervals until straight lines are right takes few points. But it may be flat, convex,
//! or a step, and a rule that stops where the midpoint of an interval happens to lie on the line
//! then promises too much. Besides, measurements are noisy.
//!
//! # Terms and units
//! *Gap*: two neighbouring points and what is between them. *Doubt*: how far the curve may be from
//! the middle of its bounds in a gap, as a part of it. *Tolerance*: the accepted doubt, 1 % by
//! default. *Spread*: how far the 95 % interval of a median reaches from it, as a part of it.
//! *Side*: a throughput must not be promised too high, a latency not too low; the *safe* side is
//! below or above accordingly.
//!
//! # Approach
//! Lines are drawn through reciprocals. The time of a packet is its time without misses plus a
//! fixed time for each miss. Misses fall in a straight line with the cache where references spread
//! evenly, and by a law that bends one way where they do not. So a hyperbola with a corner in the
//! throughput is two straight lines in its reciprocal; latency near saturation is nearly one.
//! 1. Minimum, maximum and midpoint are measured. Then the gap with most doubt is split, until no
//!    gap has more than is accepted or points run out. It is split where its bounds are furthest
//!    apart, which is where a corner would be, or in the middle if only its ends are trusted.
//! 2. In a gap the curve is between two bounds. *By its ends*: it is monotone. *By its neighbours*:
//!    a curve that bends one way is between the straight line and the lines of the neighbouring
//!    gaps extended into this one. At the ends of the curve, where a neighbour is missing, the bend
//!    may be either way, as much as the other neighbour shows. Neighbours are trusted only for gaps
//!    narrower than a sixth of the whole, so that quarter points and more are measured unless the
//!    ends say enough; for gaps up to a quarter while all points together bend one way. A bound is
//!    widened by a quarter of the error of the line where the gap was split off: a bend does not
//!    end at a point just because it was measured. Remaining points are spent where ends are
//!    furthest apart: a bend that no neighbour shows does most harm there.
//! 3. Each point is measured seven times; if its spread is not accepted then, as often as allowed;
//!    if it is still not accepted, the notes report it. Seven samples are the fewest that reveal
//!    one outlier: a rule that takes three, or stops as soon as they look quiet, stops by chance.
//!    Differences that noise explains, up to 5 % of spread, are no reason to split a gap. A point
//!    with a larger spread is taken at the safe end of a wider interval. So it makes a promise poor
//!    around itself, but neither hides its surroundings nor spoils the rest. The curve is monotone,
//!    so where that end is beyond that of a point that can be no better, the other point's end
//!    counts.
//! 4. Of points that are not monotone the safe envelope is taken: a point is never better than one
//!    with more cache or less load. If that moves a point by more than noise, the notes report it.
//! 5. The curve is in the middle of its bounds. In a gap that is still in doubt when points run
//!    out, it is where a uniform bend would put it, or on the safe side of that, so that the margin
//!    takes it to the safe bound.
//! 6. The margin is the larger of twice the largest accepted doubt, for bends that no neighbour
//!    shows, and the cost of a step hidden between two ends no further apart than that; plus the
//!    largest spread among those that noise explains.
//! 7. The samples themselves show whether the host was quiet ([`Confidence`]): how many of them are
//!    within what is promised at their point; and how many points are not known to within half of
//!    their value, or are promised at more than twice what was measured there because of others. A
//!    curve is safe whatever the noise; where that is large it promises nothing useful.
//!
//! # Limits
//! Between two measured points a curve is known only as far as it bends no more than its
//! neighbourhood; a dip between two neighbouring points goes unseen. With whole ways there are few
//! such places. One median in twenty is outside its interval; as the largest spread is in the
//! margin of the whole curve, fewer than one noisy curve in twenty is promised too high anywhere.
//! Of badly known points one in two hundred is outside, so about one such curve in twenty. Noise
//! that lasts longer than a measurement is in no spread. Twelve points are too few for a curve that
//! climbs by a factor in the middle and bends both ways: what is left in doubt is then promised too
//! low by more than the tolerance, and noted. Of a million curves that climb by up to half of their
//! end in an S, four were promised too high, by less than a thousandth.
//!
//! Source: Tootoonchian et al., "ResQ", NSDI 2018, section 5.2; the checks are ours.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::unit;

/// Gaps wider than this part of the whole are bounded by their ends only.
const WIDEST: f64 = 0.16;
/// The same, while all points lie on a curve that bends one way.
const WIDEST_BENT: f64 = 0.27;
/// Spread up to which noise explains differences.
const EXPLAINED: f64 = 0.05;
/// Chance that a median lies beyond the safe end of a point with a larger spread.
const BEYOND: f64 = 0.005;
/// Spread above which a point is unsure.
const UNSURE: f64 = 0.5;
/// A point is also unsure if what is promised there is more than this many times worse than what
/// was measured.
const LIFTED: f64 = 2.0;
/// Least part of its throughput that such a point is taken as: 0 has no reciprocal.
const WORST: f64 = 0.01;
/// Smaller values count as this, so that they have a reciprocal.
const LEAST: f64 = 1e-300;
/// Positions checked inside a gap, where `x` need not be whole.
const STEPS: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Ways, or packets per second.
    pub x: f64,
    /// Packets per second, or microseconds.
    pub y: f64,
}

/// How far the samples of a curve agree with it: a measure of how quiet the host was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Confidence {
    /// Samples of all points together.
    pub samples: u32,
    /// Samples within what is promised: a throughput no lower, a latency no higher.
    pub within: u32,
    pub points: u32,
    /// Points that are not known to within half of their value, or for which others cause more than
    /// twice, or less than half, of the measured value to be promised.
    pub unsure: u32,
}

impl Confidence {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The sum over several curves.
    pub fn together(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            samples: sum.samples + one.samples,
            within: sum.within + one.within,
            points: sum.points + one.points,
            unsure: sum.unsure + one.unsure,
        })
    }

    /// Whether the curve describes the host and not the NF: over 1 in `TOO_NOISY` points is unsure.
    pub(crate) fn is_too_noisy(&self) -> bool {
        self.unsure * TOO_NOISY > self.points
    }
}

/// One point in this many may be unsure: each raises what is promised above it, and near saturation
/// a percentile is never quiet.
const TOO_NOISY: u32 = 4;

/// A curve of straight lines between points.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Its points, by rising `x`; `y` never falls.
    pub points: Vec<Point>,
    pub measured: u32,
    /// How far the lines may be from the truth, as a part of the value.
    pub error_bound: f64,
    /// Largest distance of the end of a point's 95 % interval from its median, as a part of it.
    pub spread: f64,
    /// The part of a value that is not promised.
    pub margin: f64,
    /// How far its samples agree with it; empty without repeated samples.
    #[serde(default, skip_serializing_if = "Confidence::is_none")]
    pub confidence: Confidence,
    /// Irregularities while it was measured, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Curve {
    /// The value at `x`; none outside the points.
    pub fn at(&self, x: f64) -> Option<f64> {
        let after = self.points.partition_point(|point| point.x < x);
        let right = self.points.get(after)?;
        if right.x == x {
            return Some(right.y);
        }
        let left = self.points.get(after.checked_sub(1)?)?;
        Some(left.y + (right.y - left.y) * (x - left.x) / (right.x - left.x))
    }

    /// The largest `x` at which the curve is not above `y`; none if it is above everywhere.
    pub fn reach(&self, y: f64) -> Option<f64> {
        let after = self.points.partition_point(|point| point.y <= y);
        let left = self.points.get(after.checked_sub(1)?)?;
        let Some(right) = self.points.get(after) else { return Some(left.x) };
        Some(left.x + (right.x - left.x) * (y - left.y) / (right.y - left.y))
    }
}

/// Which way a promise is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Below: a throughput.
    Below,
    /// Above: a latency.
    Above,
}

/// Least and most load of a profile's latency curve, as parts of the throughput that is promised.
pub const LOADS: (f64, f64) = (0.05, 0.95);

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sweep {
    pub from: f64,
    pub to: f64,
    /// Only whole numbers are measured.
    pub whole: bool,
    /// Gaps this wide are not split; 1 for whole numbers.
    pub finest: f64,
    pub side: Side,
    /// Accepted doubt, as a part.
    pub tolerance: f64,
    pub points: u32,
    /// Accepted spread, as a part.
    pub spread: f64,
    /// Least samples of a point: 1 where they are always the same.
    pub samples: usize,
    /// Most samples of a point.
    pub most_samples: usize,
}

impl Sweep {
    /// Throughput against `least` to `ways` whole ways.
    pub fn throughput(least: u32, ways: u32) -> Self {
        Self {
            from: f64::from(least),
            to: f64::from(ways),
            whole: true,
            finest: 1.0,
            side: Side::Below,
            tolerance: 0.01,
            points: 12,
            spread: 0.005,
            samples: 7,
            most_samples: 15,
        }
    }

    /// Latency against load, in packets per second.
    pub fn latency(from_pps: f64, to_pps: f64) -> Self {
        Self {
            from: from_pps,
            to: to_pps,
            whole: false,
            finest: (to_pps - from_pps) / 128.0,
            side: Side::Above,
            spread: 0.05,
            // Disturbances of a host come and go, and double a percentile while they last.
            most_samples: 45,
            ..Self::throughput(1, 1)
        }
    }

    /// Latency against load as in profiles: loads are parts ([`LOADS`]) of the most that is
    /// promised, in packets per second.
    pub fn latency_below(most_pps: f64) -> Self {
        Self::latency(most_pps * LOADS.0, most_pps * LOADS.1)
    }

    /// For measurements that are always the same.
    pub fn exact(self) -> Self {
        Self { samples: 1, most_samples: 1, ..self }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CurveError<E> {
    #[error("a curve from {from} to {to} with at most {points} points cannot be measured: 3 points are the least, and a range")]
    Sweep { from: f64, to: f64, points: u32 },
    #[error("the point {x} cannot be measured: {why}")]
    Measure { x: f64, why: E },
    #[error("the point {x} gave {sample} and must be 0 or more, finite, and there")]
    NoNumber {
        x: f64,
        /// The sample; NaN if there was none.
        sample: f64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    x: f64,
    /// The reciprocal of the measured value.
    y: f64,
    spread: f64,
    /// How far its value may be off on the safe side, as a part of it.
    safe: f64,
    /// Error of the line that was there before, as a part: above 0 if the point lay above.
    off: f64,
    /// In which order it was measured.
    turn: usize,
}

/// Builds a curve. `measure(x)` returns at least one sample of the value at `x`, and may be called
/// again for the same point.
///
/// # Errors
/// [`CurveError`].
pub fn build<E>(plan: &Sweep, mut measure: impl FnMut(f64) -> Result<Vec<f64>, E>) -> Result<Curve, CurveError<E>> {
    let Sweep { from, to, points: most, .. } = *plan;
    if !(from >= 0.0 && to >= from && to.is_finite() && most >= 3) {
        return Err(CurveError::Sweep { from, to, points: most });
    }
    let mut notes = Vec::new();
    let mut taken: Vec<(f64, Vec<f64>)> = Vec::new();
    let mut point = |x: f64| {
        let (point, samples) = sample(plan, x, &mut measure, &mut notes)?;
        taken.push((x, samples));
        Ok(point)
    };
    let mut points = vec![point(from)?];
    if to > from {
        points.push(point(to)?);
    }
    loop {
        // The midpoint of the whole is always measured: a curve with equal ends need not be flat.
        if points.len() >= most as usize {
            break;
        }
        let Some(right) = plan.next(&points) else { break };
        let Some(x) = plan.split(&points, right) else { break };
        let (a, b) = (points[right - 1], points[right]);
        let line = a.y + (b.y - a.y) * (x - a.x) / (b.x - a.x);
        let new = point(x)?;
        let off = new.y / line - 1.0;
        let turn = points.len();
        points.insert(right, Measured { off, turn, ..new });
    }
    let measured = u32::try_from(points.len()).unwrap_or(u32::MAX);
    plan.settle(&mut points);
    plan.envelop(&mut points, &mut notes);
    let curve = plan.finish(&points, measured, notes);
    Ok(Curve { confidence: plan.confidence(&curve, &taken), ..curve })
}

/// How far a curve may be from the line in a gap.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    /// As a part of the line's value, beyond what noise explains.
    part: f64,
    /// The same, on the unsafe side only.
    unsafe_part: f64,
    /// For the choice of the next gap: like `part`, but larger for wide gaps.
    weight: f64,
    /// How far its ends are apart, as a part, beyond what noise explains.
    apart: f64,
}

/// A position inside a gap.
#[derive(Debug, Clone, Copy)]
struct Inside {
    x: f64,
    /// Bounds of the curve there.
    low: f64,
    high: f64,
    /// Where it most likely is.
    likely: f64,
}

impl Sweep {
    /// Where a point is, in words.
    fn place(&self, x: f64) -> String {
        match self.side {
            Side::Below if self.from >= self.to => "the whole cache".into(),
            Side::Below if x == 1.0 => "1 way".into(),
            Side::Below => format!("{x:.0} ways"),
            Side::Above => unit::rate(x),
        }
    }

    /// A value, in words.
    fn value(&self, y: f64) -> String {
        match self.side {
            Side::Below => unit::rate(y),
            Side::Above => unit::time(y),
        }
    }

    /// How far the samples agree with the curve made from them. Samples that are always the same
    /// say nothing about the host.
    fn confidence(&self, curve: &Curve, taken: &[(f64, Vec<f64>)]) -> Confidence {
        if self.most_samples <= 1 {
            return Confidence::default();
        }
        let of = |(x, samples): &(f64, Vec<f64>)| {
            let (y, median) = (curve.at(*x).unwrap_or(0.0), middle(samples));
            let (within, is_lifted): (fn(f64, f64) -> bool, bool) = match self.side {
                Side::Below => (|sample, promised| sample >= promised, y * LIFTED < median),
                Side::Above => (|sample, promised| sample <= promised, y > median * LIFTED),
            };
            let promised = match self.side {
                Side::Below => y * (1.0 - curve.margin),
                Side::Above => y * (1.0 + curve.margin),
            };
            Confidence {
                samples: samples.len() as u32,
                within: samples.iter().filter(|sample| within(**sample, promised)).count() as u32,
                points: 1,
                // With a median of 0, half of the samples were 0.
                unsure: u32::from(is_lifted || median <= 0.0 || spread(samples, median) > UNSURE),
            }
        };
        Confidence::together(taken.iter().map(of))
    }

    /// Where to split a gap in the middle, if it may be split.
    fn middle(&self, left: f64, right: f64) -> Option<f64> {
        let middle = (left + right) / 2.0;
        let middle = if self.whole { middle.floor() } else { middle };
        (middle > left && right - left > self.finest * (1.0 + 1e-9)).then_some(middle)
    }

    /// Where to split a gap: in the middle if only its ends bound it, or else where its bounds are
    /// furthest apart, which is where a corner would be.
    fn split(&self, points: &[Measured], right: usize) -> Option<f64> {
        let (a, b) = (points[right - 1], points[right]);
        let middle = self.middle(a.x, b.x)?;
        if self.is_wide(points, right) {
            return Some(middle);
        }
        let apart = |inside: &Inside| (inside.high - inside.low) / (inside.high + inside.low);
        let furthest = self.inside(points, right).max_by(|a, b| {
            let near = |x: f64| (x - middle).abs();
            let (one, other) = (apart(a), apart(b));
            if (one - other).abs() > 1e-9 { one.total_cmp(&other) } else { near(b.x).total_cmp(&near(a.x)) }
        });
        furthest.map(|inside| inside.x)
    }

    /// Whether a gap is so wide that only its ends bound what is inside.
    fn is_wide(&self, points: &[Measured], right: usize) -> bool {
        let widest = if self.bends_one_way(points) { WIDEST_BENT } else { WIDEST };
        points[right].x - points[right - 1].x > (self.to - self.from) * widest
    }

    /// Whether all points lie on a curve that bends one way only.
    fn bends_one_way(&self, points: &[Measured]) -> bool {
        let bends = points.windows(3).map(|of| {
            let line = of[0].y + (of[2].y - of[0].y) * (of[1].x - of[0].x) / (of[2].x - of[0].x);
            let noise = of.iter().map(|point| self.noise(*point)).fold(1e-9, f64::max);
            if (of[1].y - line).abs() <= noise * line { 0.0 } else { (of[1].y - line).signum() }
        });
        let (least, most) = bends.fold((0.0, 0.0), |(least, most): (f64, f64), bend| (least.min(bend), most.max(bend)));
        least >= 0.0 || most <= 0.0
    }

    /// The gap to split next, by its right end: the one with most doubt; if all doubts are
    /// accepted, the one whose ends are furthest apart, while there are points left. None if all
    /// are known.
    fn next(&self, points: &[Measured]) -> Option<usize> {
        let splits = (1..points.len()).filter(|right| self.middle(points[right - 1].x, points[*right].x).is_some());
        let doubts: Vec<(usize, Doubt)> = splits.map(|right| (right, self.doubt(points, right))).collect();
        let worst = doubts.iter().max_by(|a, b| a.1.weight.total_cmp(&b.1.weight))?;
        if worst.1.part > self.tolerance || points.len() == 2 {
            return Some(worst.0);
        }
        let apart = doubts.iter().max_by(|a, b| a.1.apart.total_cmp(&b.1.apart))?;
        (apart.1.apart > 2.0 * self.tolerance).then_some(apart.0)
    }

    /// The doubt about the gap that ends at `right`.
    fn doubt(&self, points: &[Measured], right: usize) -> Doubt {
        let (a, b) = (points[right - 1], points[right]);
        let width = (b.x - a.x) / (self.to - self.from);
        let noise = self.noise(a).max(self.noise(b));
        let (mut part, mut unsafe_part): (f64, f64) = (0.0, 0.0);
        for Inside { low, likely, high, .. } in self.inside(points, right) {
            part = part.max((high - low) / (high + low));
            unsafe_part = unsafe_part.max(match self.side {
                Side::Below => high / likely - 1.0,
                Side::Above => 1.0 - low / likely,
            });
        }
        let (part, unsafe_part) = ((part - noise).max(0.0), (unsafe_part - noise).max(0.0));
        let apart = (b.y - a.y).abs() / a.y.max(b.y).max(f64::MIN_POSITIVE) - 2.0 * noise;
        Doubt { part, unsafe_part, weight: part * (1.0 + width), apart }
    }

    /// Positions inside the gap that ends at `right`, with the bounds of the curve there.
    fn inside(&self, points: &[Measured], right: usize) -> impl Iterator<Item = Inside> {
        let (a, b) = (points[right - 1], points[right]);
        let line = |p: Measured, q: Measured| move |x: f64| p.y + (q.y - p.y) * (x - p.x) / (q.x - p.x);
        let own = line(a, b);
        let before = right.checked_sub(2).map(|i| line(points[i], a));
        let after = points.get(right + 1).map(|c| line(b, *c));
        let (low, high) = (a.y.min(b.y), a.y.max(b.y));
        let by_ends = self.is_wide(points, right);
        let off = if a.turn > b.turn { a.off } else { b.off } / 4.0;
        let steps = if self.whole { (b.x - a.x).round() as u32 } else { STEPS };
        (1..steps).map(move |i| {
            let x = a.x + (b.x - a.x) * f64::from(i) / f64::from(steps);
            if by_ends {
                return Inside { x, low, likely: (low + high) / 2.0, high };
            }
            let y = own(x);
            let (mut below, mut above) = (None, None);
            for other in [before.as_ref().map(|f| f(x)), after.as_ref().map(|f| f(x))].into_iter().flatten() {
                if (other - y).abs() <= y * 1e-9 {
                    // On one line with the neighbour: a curve that bends one way stays on it.
                    (below, above) = (Some(y), Some(y));
                    break;
                }
                if other < y {
                    below = Some(below.unwrap_or(low).max(other));
                } else if other > y {
                    above = Some(above.unwrap_or(high).min(other));
                }
            }
            let below = below.unwrap_or(y).min(y * (1.0 + off)).max(low);
            let above = above.unwrap_or(y).max(y * (1.0 + off)).min(high);
            // At an end one neighbour is missing: the bend may be either way, as much as the other
            // shows.
            if before.is_none() || after.is_none() {
                let bend = (y - below).max(above - y);
                return Inside { x, low: (y - bend).max(low), likely: y, high: (y + bend).min(high) };
            }
            // A uniform bend goes a quarter of the way to the neighbours' lines.
            Inside { x, low: below, likely: y + (above + below - 2.0 * y) / 4.0, high: above }
        })
    }

    /// The part of a point's spread that explains differences.
    fn noise(&self, point: Measured) -> f64 {
        point.spread.min(EXPLAINED.max(self.spread))
    }

    /// Moves badly known points to where they may be on the safe side, but no further than a point
    /// that can be no better, since the curve is monotone. Their remaining spread is what noise
    /// explains.
    fn settle(&self, points: &mut [Measured]) {
        // Where the last point is that can be no better.
        let mut bound = if self.side == Side::Below { f64::INFINITY } else { 0.0 };
        let one = |point: &mut Measured| {
            let noise = self.noise(*point);
            if point.spread > noise {
                point.spread = noise;
                point.y = match self.side {
                    Side::Below => (point.y / (1.0 - point.safe).max(WORST)).min(bound).max(point.y),
                    Side::Above => (point.y / (1.0 + point.safe)).max(bound).min(point.y),
                };
            }
            bound = if self.side == Side::Below { bound.min(point.y) } else { bound.max(point.y) };
        };
        match self.side {
            Side::Below => points.iter_mut().for_each(one),
            Side::Above => points.iter_mut().rev().for_each(one),
        }
    }

    /// Moves points to the safe side until the curve never falls.
    fn envelop(&self, points: &mut [Measured], notes: &mut Vec<String>) {
        let before: Vec<f64> = points.iter().map(|point| point.y).collect();
        match self.side {
            Side::Below => {
                for i in (1..points.len()).rev() {
                    points[i - 1].y = points[i - 1].y.max(points[i].y);
                }
            }
            Side::Above => {
                for i in 1..points.len() {
                    points[i].y = points[i].y.min(points[i - 1].y);
                }
            }
        }
        for (point, was) in points.iter().zip(before) {
            let moved = (point.y - was).abs() / was.max(f64::MIN_POSITIVE);
            if moved > self.tolerance + 2.0 * point.spread {
                let (was, is) = (self.value(1.0 / was), self.value(1.0 / point.y));
                notes.push(format!("not monotone at {}: {was} was taken as {is}", self.place(point.x)));
            }
        }
    }

    /// The curve of all points, with gaps that are still in doubt made safe.
    fn finish(&self, points: &[Measured], measured: u32, mut notes: Vec<String>) -> Curve {
        let spread = points.iter().map(|point| point.spread).fold(0.0, f64::max);
        let mut out = vec![Point { x: points[0].x, y: 1.0 / points[0].y }];
        let (mut error_bound, mut exposed): (f64, f64) = (0.0, 0.0);
        for right in 1..points.len() {
            let (a, b) = (points[right - 1], points[right]);
            let Doubt { part, unsafe_part, apart, .. } = self.doubt(points, right);
            let is_known = part <= self.tolerance;
            if !is_known && unsafe_part > self.tolerance {
                let (part, a, b) = (part * 100.0, self.place(a.x), self.place(b.x));
                notes.push(format!("in doubt by {part:.1} % between {a} and {b}: the safe bound is promised"));
            }
            error_bound = error_bound.max(if is_known { part } else { unsafe_part.min(self.tolerance) });
            let mut last = a.y;
            for Inside { x, low, likely, high } in self.inside(points, right) {
                let y = match self.side {
                    _ if is_known => (low + high) / 2.0,
                    // The margin takes it to the safe bound.
                    Side::Below => likely.max(high / (1.0 + self.tolerance)),
                    Side::Above => likely.min(low / (1.0 - self.tolerance)),
                };
                last = y.clamp(b.y.min(last), last);
                if apart <= 2.0 * self.tolerance {
                    exposed = exposed.max(match self.side {
                        Side::Below => 1.0 - last / a.y,
                        Side::Above => 1.0 - b.y / last,
                    });
                }
                out.push(Point { x, y: 1.0 / last });
            }
            out.push(Point { x: b.x, y: 1.0 / b.y });
        }
        straighten(&mut out);
        Curve {
            points: out,
            measured,
            error_bound,
            spread,
            margin: ((2.0 * error_bound).max(exposed) + spread).min(0.99),
            confidence: Confidence::default(),
            notes,
        }
    }
}

/// Removes points that lie on the line between their neighbours.
fn straighten(points: &mut Vec<Point>) {
    let mut kept: Vec<Point> = Vec::with_capacity(points.len());
    for (i, point) in points.iter().enumerate() {
        let between = kept.last().zip(points.get(i + 1)).is_some_and(|(left, right)| {
            let line = left.y + (right.y - left.y) * (point.x - left.x) / (right.x - left.x);
            (line - point.y).abs() <= point.y.abs() * 1e-12
        });
        if !between {
            kept.push(*point);
        }
    }
    *points = kept;
}

/// Measures a point until its spread is accepted. Returns its samples sorted.
fn sample<E>(
    plan: &Sweep,
    x: f64,
    measure: &mut impl FnMut(f64) -> Result<Vec<f64>, E>,
    notes: &mut Vec<String>,
) -> Result<(Measured, Vec<f64>), CurveError<E>> {
    let mut samples: Vec<f64> = Vec::new();
    loop {
        let more = measure(x).map_err(|why| CurveError::Measure { x, why })?;
        let bad = |sample: &&f64| !sample.is_finite() || **sample < 0.0;
        if let Some(&sample) = more.iter().find(bad).or(more.is_empty().then_some(&f64::NAN)) {
            return Err(CurveError::NoNumber { x, sample });
        }
        let before = samples.len();
        samples.extend(more);
        samples.sort_by(f64::total_cmp);
        let y = middle(&samples);
        let (spread, safe) = (spread(&samples, y), safe(&samples, y, plan.side));
        // Checked only twice: more checks would find a quiet moment by chance.
        let is_quiet = spread <= plan.spread && before < plan.samples && samples.len() >= plan.samples;
        if is_quiet || samples.len() >= plan.most_samples {
            if spread > plan.spread {
                let badly = if spread > EXPLAINED.max(plan.spread) { ": its safe end counts" } else { "" };
                let (place, known, n) = (plan.place(x), known_to(spread), samples.len());
                notes.push(format!("noisy at {place}: known to {known} after {n} samples{badly}"));
            }
            return Ok((Measured { x, y: 1.0 / y.max(LEAST), spread, safe, off: 0.0, turn: 0 }, samples));
        }
    }
}

/// The precision of a point in words: many per cent are given as a factor.
fn known_to(spread: f64) -> String {
    match spread {
        0.0..1.0 => format!("{:.1} %", spread * 100.0),
        1.0..1000.0 => format!("a factor of {:.0}", 1.0 + spread),
        _ => "more than a factor of 1000".into(),
    }
}

fn middle(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 }
}

/// How far the 95 % interval of the median of sorted samples reaches from it, as a part of it. It
/// holds for any distribution of the noise: each sample is as likely above the true median as below
/// it, so the number of those below is binomial.
fn spread(sorted: &[f64], median: f64) -> f64 {
    let n = sorted.len();
    if n < 2 || median <= 0.0 {
        return 0.0;
    }
    let end = rank(n, 0.025);
    (sorted[n - end] - median).max(median - sorted[end - 1]) / median
}

/// How far the true median may be from that of the samples on the safe side, as a part of it.
fn safe(sorted: &[f64], median: f64, side: Side) -> f64 {
    let n = sorted.len();
    if n < 2 || median <= 0.0 {
        return 0.0;
    }
    let end = rank(n, BEYOND);
    match side {
        Side::Below => 1.0 - sorted[end - 1] / median,
        Side::Above => sorted[n - end] / median - 1.0,
    }
}

/// The rank from an end of the sample beyond which the true median lies with at most this chance;
/// with few samples, a larger chance.
fn rank(samples: usize, chance: f64) -> usize {
    let (mut rank, mut sum) = (0, 0.0);
    // The chance that exactly `rank` samples are below the median.
    let mut exactly = 0.5f64.powi(i32::try_from(samples).unwrap_or(i32::MAX));
    while rank < samples / 2 {
        sum += exactly;
        if sum > chance {
            break;
        }
        exactly *= (samples - rank) as f64 / (rank + 1) as f64;
        rank += 1;
    }
    rank.max(1)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    const WAYS: u32 = 20;

    fn ways(f: impl Fn(f64) -> f64) -> Curve {
        build(&Sweep::throughput(1, WAYS).exact(), |x| Ok::<_, Infallible>(vec![f(x)])).unwrap()
    }

    /// Largest error of what is promised, and the largest excess of it, over all ways.
    fn errors(curve: &Curve, f: impl Fn(f64) -> f64) -> (f64, f64) {
        (1..=WAYS).map(f64::from).fold((0.0, f64::NEG_INFINITY), |(error, over): (f64, f64), x| {
            let (line, truth) = (curve.at(x).unwrap(), f(x));
            (error.max((line / truth - 1.0).abs()), over.max(line * (1.0 - curve.margin) / truth - 1.0))
        })
    }

    fn assert_good(name: &str, most: u32, most_error: f64, f: impl Fn(f64) -> f64) {
        let curve = ways(&f);
        let (error, over) = errors(&curve, &f);
        assert!(error <= most_error && over <= 1e-9, "{name}: error {error}, over {over}, {curve:?}");
        assert!(curve.measured <= most, "{name}: {} points", curve.measured);
        assert!(curve.margin <= 0.02 + 1e-9, "{name}: margin {}", curve.margin);
    }

    /// Uniform accesses to `set` ways of memory: the time of a packet falls in a straight line.
    fn uniform(set: f64) -> impl Fn(f64) -> f64 {
        move |x| 1e9 / (50.0 + 100.0 * (1.0 - x / set).max(0.0))
    }

    #[test]
    fn shapes_take_few_points_and_promise_no_more_than_there_is() {
        assert_good("flat", 3, 0.0101, |_| 10e6);
        assert_good("straight", 12, 0.0101, |x| 5e6 + 1e5 * x);
        assert_good("saturating", 12, 0.0101, |x| 10e6 * (1.0 - (-x / 3.0).exp()) + 5e6);
        assert_good("slowly saturating", 12, 0.0101, |x| 1e9 / (60.0 + 90.0 / x.sqrt()));
        assert_good("convex", 12, 0.0101, uniform(25.0));
        assert_good("convex, then flat", 12, 0.0101, uniform(12.0));
        assert_good("convex, then flat late", 12, 0.0101, uniform(17.3));
        assert_good("a step", 12, 0.0101, |x| if x < 8.0 { 4e6 } else { 9e6 });
        assert_good("a step at the end", 12, 0.0101, |x| if x < 20.0 { 4e6 } else { 9e6 });
        assert_good("bent both ways", 12, 0.0101, |x| 5e6 + 5e6 / (1.0 + (-(x - 10.0) / 2.0).exp()));
    }

    #[test]
    fn the_paper_s_rule_would_stop_where_this_does_not() {
        // The midpoint lies on the line, and the quarter points do not.
        let f = |x: f64| 10e6 + 2e5 * (x - 1.0) + 4e5 * ((x - 1.0) / 18.0 * std::f64::consts::TAU).sin();
        assert!((f(10.0) / (f(1.0) + (f(20.0) - f(1.0)) * 9.0 / 19.0) - 1.0).abs() < 0.01);
        let curve = ways(f);
        assert!(errors(&curve, f).1 <= 0.0 && curve.measured > 5, "{curve:?}");
    }

    #[test]
    fn what_is_not_monotone_is_said_and_not_promised() {
        let f = |x: f64| if (5.0..8.0).contains(&x) { 9e6 } else { 5e6 + 1e5 * x };
        let curve = ways(f);
        assert!(curve.notes.iter().any(|note| note.starts_with("not monotone at")), "{curve:?}");
        assert!(curve.points.windows(2).all(|pair| pair[0].y <= pair[1].y));
    }

    #[test]
    fn points_that_run_out_leave_the_safe_bound() {
        let f = |x: f64| 1e6 * 1.3f64.powf(x);
        let plan = Sweep { points: 4, ..Sweep::throughput(1, WAYS).exact() };
        let curve = build(&plan, |x| Ok::<_, Infallible>(vec![f(x)])).unwrap();
        assert_eq!(curve.measured, 4);
        assert!(curve.notes.iter().any(|note| note.contains("the safe bound is promised")));
        assert!(errors(&curve, f).1 <= 0.0, "{curve:?}");
    }

    #[test]
    fn a_latency_is_promised_from_above() {
        let f = |load: f64| 5.0 + 2.0 / (1.0 - load / 10e6);
        let plan = Sweep::latency(0.5e6, 9.5e6).exact();
        let curve = build(&plan, |x| Ok::<_, Infallible>(vec![f(x)])).unwrap();
        assert!(curve.measured <= 12, "{}", curve.measured);
        for i in 0..=1000 {
            let load = 0.5e6 + 9e6 * f64::from(i) / 1000.0;
            assert!(curve.at(load).unwrap() * (1.0 + curve.margin) >= f(load) * (1.0 - 1e-12), "{load} {curve:?}");
        }
    }

    #[test]
    fn noise_is_measured_away_or_said() {
        let mut turn = 0;
        let mut asked = 0;
        let mut wave = |size: f64| {
            turn += 1;
            1.0 + size * [0.0, 1.0, -1.0, 0.5, -0.5][turn % 5]
        };
        let little = build(&Sweep::throughput(1, WAYS), |_| {
            asked += 1;
            Ok::<_, Infallible>(vec![10e6 * wave(0.002)])
        });
        let little = little.unwrap();
        assert!(little.notes.is_empty() && little.margin <= 0.02 && asked == 7 * little.measured, "{little:?}");
        let much = build(&Sweep::throughput(1, WAYS), |_| Ok::<_, Infallible>(vec![10e6 * wave(0.2)])).unwrap();
        assert!(much.notes.iter().any(|note| note.starts_with("noisy at")), "{much:?}");
        assert!(much.margin > 0.01);
    }

    /// Latency on a host with occasional other work: a point's value is now and then a multiple of
    /// the true one.
    #[test]
    fn a_point_that_is_known_badly_hides_nothing_and_spoils_no_other() {
        let f = |load: f64| 1.0 + 2.0 / (1.0 - load / 10e6) + if load > 5e6 { (load - 5e6) * 8e-6 } else { 0.0 };
        let plan = Sweep::latency(0.5e6, 9.5e6);
        for bad in [9.5e6, 5e6] {
            let mut turn = 0u32;
            let curve = build(&plan, |x| {
                turn += 1;
                let strays = (x - bad).abs() < 1.0 && turn % 5 < 2;
                Ok::<_, Infallible>(vec![f(x) * if strays { 9.0 } else { 1.0 }])
            });
            let curve = curve.unwrap();
            for i in 0..=1000 {
                let load = 0.5e6 + 9e6 * f64::from(i) / 1000.0;
                assert!(curve.at(load).unwrap() * (1.0 + curve.margin) >= f(load) * (1.0 - 1e-12), "{load} {curve:?}");
            }
            assert!(curve.measured > 8 && curve.margin < 0.08, "{curve:?}");
            assert!(curve.points[0].y < f(0.5e6) * 1.001, "{curve:?}");
            assert!(curve.notes.iter().any(|note| note.contains("its safe end counts")), "{curve:?}");
        }
    }

    /// A host where other work has the core now and then: most samples take 0.65 µs, others
    /// milliseconds.
    fn busy(part: f64) -> Curve {
        let mut random = crate::random::Random::new(3);
        let mut sample = move |load: f64| {
            let quiet = 0.6 + 0.05 / (1.0 - load / 10e6);
            Ok::<_, Infallible>(vec![if random.part() < part {
                7_000.0 * random.part()
            } else {
                quiet * (1.0 + 0.02 * random.part())
            }])
        };
        build(&Sweep::latency(0.5e6, 9.5e6), &mut sample).unwrap()
    }

    #[test]
    fn samples_say_how_quiet_the_host_was() {
        let quiet = busy(0.0).confidence;
        assert!(!quiet.is_too_noisy() && quiet.unsure == 0 && quiet.within * 10 > quiet.samples * 8, "{quiet:?}");
        assert!(quiet.samples >= 7 * quiet.points, "{quiet:?}");
        let noisy = busy(0.45);
        assert!(noisy.confidence.is_too_noisy(), "{noisy:?}");
        // One badly known point is reported, and does not invalidate the rest.
        let mut turn = 0u32;
        let end = build(&Sweep::latency(0.5e6, 9.5e6), |load| {
            turn += 1;
            let strays = load > 9e6 && turn % 5 < 2;
            Ok::<_, Infallible>(vec![(1.0 + load / 10e6) * if strays { 9.0 } else { 1.0 }])
        });
        let end = end.unwrap().confidence;
        assert!(!end.is_too_noisy() && end.unsure == 1, "{end:?}");
        // A wrong point at the beginning with a small spread, because the noise lasted as long as
        // its measurement: it raises all others.
        let start = build(&Sweep::latency(0.5e6, 9.5e6), |load| {
            Ok::<_, Infallible>(vec![if load < 1e6 { 7_152.0 } else { 0.65 + load * 1e-9 }])
        });
        let start = start.unwrap();
        assert!(start.confidence.is_too_noisy() && start.notes[0].starts_with("not monotone at"), "{start:?}");
        // One sample in seven is below what is promised; the median is known all the same.
        let one = build(&Sweep::throughput(4, 4), |_| Ok::<_, Infallible>(vec![1e7, 1e7, 1e7, 5e6, 1e7, 1e7, 1e7]));
        assert_eq!(one.unwrap().confidence, Confidence { samples: 21, within: 18, points: 1, unsure: 0 });
        let none = build(&Sweep::throughput(4, 4), |_| Ok::<_, Infallible>(vec![0.0, 0.0, 0.0, 0.0, 1e7, 1e7, 1e7]));
        assert!(none.unwrap().confidence.is_too_noisy(), "the host had the core for others");
        // Computed values say nothing about a host.
        assert_eq!(ways(|x| 1e6 * x).confidence, Confidence::default());
    }

    #[test]
    fn notes_are_in_units_of_people() {
        let mut notes = busy(0.45).notes;
        let latency = build(&Sweep::latency(377_290.839_269_990_6, 9.5e6), |load| {
            Ok::<_, Infallible>(vec![if load < 1e6 { 6_684.3 } else { 4_970.7 }])
        });
        let latency = latency.unwrap().notes;
        assert!(latency.iter().any(|note| note.ends_with("pps: 4.97 ms was taken as 6.68 ms")), "{latency:?}");
        let throughput = ways(|x| if (5.0..8.0).contains(&x) { 9e6 } else { 5e6 + 1e5 * x }).notes;
        assert!(throughput.iter().any(|note| note.contains(" ways: 9.00 Mpps was taken as ")), "{throughput:?}");
        notes.extend(latency.into_iter().chain(throughput));
        // No number has more than three digits behind its point or more than four before it.
        let long = |note: &String| note.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4);
        assert!(!notes.iter().any(long), "{notes:?}");
    }

    #[test]
    fn the_interval_of_a_median_is_of_order_statistics() {
        let ends: Vec<usize> = [1, 2, 5, 6, 8, 9, 11, 12, 14, 15, 20].map(|n| rank(n, 0.025)).into();
        assert_eq!(ends, [1, 1, 1, 1, 1, 2, 2, 3, 3, 4, 6]);
        assert_eq!((rank(7, BEYOND), rank(15, BEYOND)), (1, 3));
        assert_eq!((spread(&[1.0], 1.0), spread(&[0.0, 0.0], 0.0)), (0.0, 0.0));
        let samples: Vec<f64> = (1..=15).map(f64::from).collect();
        assert_eq!((safe(&samples, 8.0, Side::Above), safe(&samples, 8.0, Side::Below)), (5.0 / 8.0, 5.0 / 8.0));
        // One outlier of seven is seen, one of nine is left out.
        assert_eq!(spread(&[4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 6.0], 4.0), 0.5);
        assert_eq!(spread(&[3.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 5.0, 6.0], 4.0), 0.25);
    }

    /// Noise of a few per cent, with as many samples as profiles have: the margin covers it in 95
    /// of 100 curves.
    #[test]
    fn noise_is_in_the_margin_of_nearly_all_curves() {
        let mut random = crate::random::Random::new(1);
        let (curves, mut above) = (400, 0);
        for _ in 0..curves {
            let mut between = |from: f64, to: f64| from + (to - from) * random.part();
            let (base, misses) = (between(20.0, 500.0), between(0.0, 500.0));
            let (set, noise) = (between(2.0, 40.0), between(0.0, 0.03));
            let f = move |x: f64| 1e9 / (base + misses * (1.0 - x / set).max(0.0));
            let mut noisy = |x: f64| f(x) * between(1.0 - noise, 1.0 + noise);
            let curve = build(&Sweep::throughput(1, WAYS), |x| Ok::<_, Infallible>(vec![noisy(x)])).unwrap();
            above += u32::from(errors(&curve, f).1 > 1e-9);
        }
        assert!(above * 20 <= curves, "{above} of {curves} are promised more than there is");
    }

    #[test]
    fn what_cannot_be_measured_is_said() {
        let said = |result: Result<Curve, CurveError<String>>| result.unwrap_err().to_string();
        let plan = Sweep::throughput(1, WAYS);
        assert_eq!(said(build(&plan, |_| Err("no core".into()))), "the point 1 cannot be measured: no core");
        assert!(said(build(&plan, |_| Ok(vec![f64::INFINITY]))).contains("gave inf"));
        assert!(said(build(&plan, |_| Ok(vec![]))).contains("gave NaN"));
        assert!(said(build(&Sweep { points: 2, ..plan }, |_| Ok(vec![1.0]))).contains("3 points are the least"));
        let one = build(&Sweep::throughput(4, 4), |_| Ok::<_, Infallible>(vec![1.0])).unwrap();
        assert_eq!(one.points.len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Concave: a base and a part that saturates, by either of two laws.
        #[test]
        fn concave(base in 20.0..500.0f64, gain in 0.0..5.0f64, scale in 0.3..30.0f64, power in 0.2..1.0f64, law in 0..2) {
            let f = move |x: f64| 1e6 * base * (1.0 + gain * if law == 0 { 1.0 - (-x / scale).exp() } else { (x / 20.0).powf(power) });
            let curve = ways(f);
            let (error, over) = errors(&curve, f);
            prop_assert!(error <= 0.0101 && over <= 1e-9, "{error} {over} {curve:?}");
        }

        /// Convex throughput: a packet's time is a fixed part plus misses, which fall linearly
        /// until the working set fits.
        #[test]
        fn convex(base in 20.0..500.0f64, misses in 0.0..1000.0f64, set in 1.0..60.0f64) {
            let f = move |x: f64| 1e9 / (base + misses * (1.0 - x / set).max(0.0));
            let curve = ways(f);
            let (error, over) = errors(&curve, f);
            prop_assert!(error <= 0.0101 && over <= 1e-9, "{error} {over} {curve:?}");
        }

        /// Zipf: as the two above, by another law of misses, with a corner where everything fits.
        #[test]
        fn zipf(misses in 0.0..3.0f64, set in 0.5..60.0f64, exponent in 0.1..0.95f64) {
            let f = move |x: f64| 1e7 / (1.0 + misses * (1.0 - (x / set).min(1.0).powf(1.0 - exponent)));
            let curve = ways(f);
            let (error, over) = errors(&curve, f);
            prop_assert!(error <= 0.0101 && over <= 1e-9, "{error} {over} {curve:?}");
        }

        /// Convex, then concave: it may be too low, but too high by at most a thousandth.
        #[test]
        fn bent_both_ways(gain in 0.1..1.0f64, at in 1.0..20.0f64, width in 0.3..6.0f64) {
            let f = move |x: f64| 5e6 * (1.0 + gain / (1.0 + (-(x - at) / width).exp()));
            let curve = ways(f);
            let over = errors(&curve, f).1;
            prop_assert!(over <= 1e-3, "{over} {curve:?}");
        }

        /// Steps, at any ways.
        #[test]
        fn steps(base in 1e6..10e6f64, jumps in prop::collection::vec((1u32..21, 1.0..3.0f64), 0..3)) {
            let f = move |x: f64| base * jumps.iter().filter(|(at, _)| x >= f64::from(*at)).map(|(_, by)| by).product::<f64>();
            let curve = ways(&f);
            let over = errors(&curve, &f).1;
            prop_assert!(over <= 1e-9, "{over} {curve:?}");
        }

        /// Noise of a few per cent, with as many samples as profiles have: what is promised exceeds
        /// the truth by at most the noise.
        #[test]
        fn noisy(base in 20.0..500.0f64, misses in 0.0..500.0f64, set in 2.0..40.0f64, noise in 0.0..0.03f64, seed in any::<u64>()) {
            let f = move |x: f64| 1e9 / (base + misses * (1.0 - x / set).max(0.0));
            let mut state = seed | 1;
            let mut random = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
            };
            let curve = build(&Sweep::throughput(1, WAYS), |x| Ok::<_, Infallible>(vec![f(x) * (1.0 + noise * random())])).unwrap();
            let over = errors(&curve, f).1;
            prop_assert!(over <= noise, "{over} with noise {noise}, {curve:?}");
        }
    }
}
