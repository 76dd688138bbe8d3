//! Measured times, and flows that had them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_shm::histogram::Histogram;

#[cfg(doc)]
use super::FlowReport;

/// Times in nanoseconds, to within an eighth: see [`sluice_shm::histogram`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Distribution {
    /// Number of measurements.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Least time and count of each bucket that is not empty. May be left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<(u64, u64)>,
}

impl Distribution {
    /// The measurements since an `earlier` state of this distribution; `self` without buckets.
    pub fn since(&self, earlier: &Self) -> Self {
        if self.buckets.is_empty() || earlier.count > self.count {
            return self.clone();
        }
        let then: BTreeMap<u64, u64> = earlier.buckets.iter().copied().collect();
        let now = self.buckets.iter().map(|(lowest, n)| (*lowest, n.saturating_sub(then.get(lowest).copied().unwrap_or(0))));
        Self::from_buckets(now.filter(|(_, n)| *n > 0).collect())
    }

    /// A distribution of buckets (smallest time, count) in rising order.
    pub fn from_buckets(buckets: Vec<(u64, u64)>) -> Self {
        use sluice_shm::histogram::{BUCKETS, bucket, lowest};
        let middle = |low: u64| low + (lowest((bucket(low) + 1).min(BUCKETS - 1)).saturating_sub(low)) / 2;
        // An NF may write any counts into its page.
        let count = buckets.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        let sum = buckets.iter().fold(0u64, |sum, (low, n)| sum.saturating_add(middle(*low).saturating_mul(*n)));
        let quantile = |q: f64| {
            let rank = ((q * count as f64).ceil() as u64).max(1);
            let mut seen = 0u64;
            let found = buckets.iter().find(|(_, n)| {
                seen = seen.saturating_add(*n);
                seen >= rank
            });
            found.map_or(0, |(low, _)| middle(*low))
        };
        let (p50, p90, p99, p999) = (quantile(0.5), quantile(0.9), quantile(0.99), quantile(0.999));
        Self { count, sum, p50, p90, p99, p999, buckets }
    }
}

impl From<&Histogram> for Distribution {
    fn from(histogram: &Histogram) -> Self {
        Self::from_buckets(histogram.buckets().collect())
    }
}

/// A flow that has ended and that had a timed packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Exemplar {
    /// The longest time of its packets from entry to exit, to the microsecond.
    pub ns: u64,
    /// Its number among the flows that have ended: [`FlowReport::number`].
    pub flow: u64,
    /// Time of its last packet, in nanoseconds since 1970.
    pub last_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_says_what_its_histogram_says() {
        let mut histogram = Histogram::default();
        for value in [3, 100, 100, 5_000, 1 << 50] {
            histogram.record(value);
        }
        let all = Distribution::from(&histogram);
        assert_eq!(all.count, 5);
        for (q, got) in [(0.5, all.p50), (0.9, all.p90), (0.99, all.p99)] {
            let want = histogram.quantile(q).unwrap();
            assert!(got.abs_diff(want) <= want / 8, "{got} for {want}");
        }
        let earlier = all.clone();
        for _ in 0..10 {
            histogram.record(1_000_000);
        }
        let recent = Distribution::from(&histogram).since(&earlier);
        assert_eq!(recent.count, 10);
        assert!(recent.p50 > 900_000 && recent.p50 == recent.p999);
        assert_eq!(recent.sum, recent.p50 * 10);
        assert_eq!(earlier.since(&Distribution::default()), earlier);
        assert_eq!(Distribution::default().since(&earlier), Distribution::default());
    }
}
