//! What the host did between two results of an experiment.
//!
//! # Approach
//! Both results say how fast the host was meanwhile ([`host_speed`]). How much a metric depends on
//! arithmetic, on memory or on the way between two cores is not known, and a rate that was given
//! depends on nothing. So the host explains of a change whatever lies between no change and the
//! largest that one of its speeds would make alone, with what others left of a core on top.
//!
//! # Limits
//! Where the host has become faster and the build slower by as much, nothing shows. The speeds are
//! printed, so that this is known.
//!
//! [`host_speed`]: crate::bench::host_speed

use super::direction::Follows;
use crate::bench::host_speed::{COPY, LEFT, LINE, SPIN, STEADY};
use crate::bench::report::{Report, median};

/// Speeds, and the words for them.
pub const SPEEDS: [(&str, &str); 3] = [(SPIN, "arithmetic"), (COPY, "copies"), (LINE, "from core to core")];

/// By what the speeds of the host have changed, as natural logarithms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostChange {
    speeds: [f64; SPEEDS.len()],
    left: f64,
}

impl HostChange {
    /// None if a result does not say how fast the host was.
    pub fn between(before: &Report, after: &Report) -> Option<Self> {
        let of = |name: &str| {
            let (was, is) = (before.host_speed.get(name)?, after.host_speed.get(name)?);
            Some((is.median / was.median).ln()).filter(|change| change.is_finite())
        };
        let speeds = SPEEDS.map(|(name, _)| of(name));
        // One that could not be sampled has not changed.
        speeds
            .iter()
            .any(Option::is_some)
            .then(|| Self { speeds: speeds.map(Option::unwrap_or_default), left: of(LEFT).unwrap_or_default() })
    }

    /// What the host explains of a change of a metric, as a logarithm.
    pub fn explains(&self, change: f64, follows: Follows) -> f64 {
        let [speeds @ .., left] = self.would_make(follows);
        let least = speeds.into_iter().fold(0.0, f64::min) + left.min(0.0);
        let most = speeds.into_iter().fold(0.0, f64::max) + left.max(0.0);
        change.clamp(least, most)
    }

    /// The changes of a metric that depends on one of the speeds in full, and on what others left.
    pub fn alone(&self, follows: Follows) -> [f64; SPEEDS.len()] {
        let [speeds @ .., left] = self.would_make(follows);
        speeds.map(|speed| speed + left)
    }

    /// Whether one of its speeds is no longer that of a [steady](STEADY) host.
    pub fn is_large(&self) -> bool {
        self.speeds.iter().any(|change| change.abs() > STEADY.ln())
    }

    fn would_make(&self, follows: Follows) -> [f64; SPEEDS.len() + 1] {
        let [spin, copy, line] = self.speeds;
        [spin, copy, line, self.left].map(|change| follows.sign() * change)
    }

    /// Each speed in the middle of some experiments, after to before, with the least and the most.
    pub fn words(all: &[Self]) -> String {
        let named =
            SPEEDS.iter().enumerate().map(|(at, (_, words))| (*words, all.iter().map(|one| one.speeds[at]).collect::<Vec<f64>>()));
        let left = ("left by others", all.iter().map(|one| one.left).collect::<Vec<f64>>());
        let words = named.chain([left]).map(|(words, mut changes)| {
            changes.sort_by(f64::total_cmp);
            let middle = median(&changes).exp();
            match changes.as_slice() {
                [least, .., most] => format!("{words} × {middle:.2} ({:.2}–{:.2})", least.exp(), most.exp()),
                _ => format!("{words} × {middle:.2}"),
            }
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bench::compare::tests::report;
    use crate::bench::report::Summary;

    /// Gives a result these speeds of the host, and the part of a core that others left.
    pub fn set(report: &mut Report, speeds: [f64; 3], left: f64) {
        let named = SPEEDS.map(|(name, _)| name).into_iter().zip(speeds).chain([(LEFT, left)]);
        report.host_speed = named.map(|(name, value)| (name.into(), Summary::of(vec![value]))).collect();
    }

    fn between(before: [f64; 3], after: [f64; 3], left: f64) -> HostChange {
        let (mut was, mut is) = (report("chain", &[]), report("chain", &[]));
        set(&mut was, before, 1.0);
        set(&mut is, after, left);
        HostChange::between(&was, &is).unwrap()
    }

    #[test]
    fn the_host_explains_what_lies_between_nothing_and_its_change() {
        let slower = between([1.0, 2.0, 4.0], [0.9, 2.0, 3.2], 1.0);
        let left = |ratio: f64, follows| (ratio.ln() - slower.explains(ratio.ln(), follows)).exp();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} and {b}");
        close(left(0.85, Follows::Speed), 1.0);
        close(left(1.0, Follows::Speed), 1.0);
        close(left(0.72, Follows::Speed), 0.9);
        close(left(1.1, Follows::Speed), 1.1);
        close(left(1.25, Follows::Slowness), 1.0);
        close(left(0.9, Follows::Slowness), 0.9);
        close(left(0.9, Follows::Nothing), 0.9);
        close(slower.alone(Follows::Speed)[2], 0.8f64.ln());
        let same = between([1.0; 3], [1.0; 3], 1.0);
        assert!(!slower.is_large() && between([1.0, 2.0, 4.0], [1.0, 1.3, 4.0], 1.0).is_large());
        assert_eq!(
            HostChange::words(&[slower]),
            "arithmetic × 0.90, copies × 1.00, from core to core × 0.80, left by others × 1.00"
        );
        let words = HostChange::words(&[slower, same, same]);
        assert!(words.starts_with("arithmetic × 1.00 (0.90–1.00), copies × 1.00 (1.00–1.00), "), "{words}");
    }

    #[test]
    fn what_others_took_comes_on_top() {
        let busy = between([1.0; 3], [0.9, 1.0, 1.0], 0.5);
        assert!((busy.explains(-5.0, Follows::Speed) - 0.45f64.ln()).abs() < 1e-9);
        assert!((busy.alone(Follows::Speed)[0] - 0.45f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn an_older_result_says_nothing_of_the_host() {
        let (mut was, is) = (report("chain", &[]), report("chain", &[]));
        assert_eq!(HostChange::between(&was, &is), None);
        set(&mut was, [1.0; 3], 1.0);
        assert_eq!(HostChange::between(&was, &is), None);
    }
}
