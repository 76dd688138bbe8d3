//! Which metrics should be large, which small, and which change with the speed of the host.

/// Largest probability of measurements like these without a change.
pub const SIGNIFICANT: f64 = 0.05;

/// What is better of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    More,
    Less,
    /// The value has a sign, and 0 is best.
    NearZero,
}

impl Better {
    /// Whether `after` is better than `before`.
    pub fn is_improved(self, before: f64, after: f64) -> bool {
        match self {
            Self::More => after > before,
            Self::Less => after < before,
            Self::NearZero => after.abs() < before.abs(),
        }
    }
}

/// Metrics of which less is better, or which have no better, and whose names begin as others' do.
const LESS_BY_NAME: [&str; 6] = ["tcp_starved", "of_greedy", "of_optimum", "of_least", "of_untuned", "of_ample"];
/// Of which a smaller distance from 0 is better.
const NEAR_ZERO: [&str; 1] = ["error_percent"];
const NEITHER: [&str; 1] = ["latency_points_count"];
/// Starts of metrics of which more is better.
const MORE: [&str; 15] = [
    "delivered_",
    "processed_",
    "throughput_pps",
    "kept_ratio",
    "named_ratio",
    "right_percent",
    "ndr_pps",
    "tcp_",
    "udp_",
    "plain_kept",
    "requests_",
    "activations_",
    "of_",
    "jain",
    "promises_kept",
];
/// Starts of metrics of which less is better.
const LESS: [&str; 29] = [
    "latency_",
    "setup_ns",
    "start_",
    "ready_s",
    "restart_ms",
    "wasted_",
    "drop_pps",
    "none_idle_pps",
    "mixed_pps",
    "violations",
    "servers",
    "solve_s",
    "sink_ns_",
    "switch_cost_ns_",
    "weight_write_ns",
    "wake_ns",
    "order_spread_percent",
    "altered_count",
    "lost_",
    "failed_",
    "reordered_",
    "left_",
    "findings_",
    "private_kib",
    "runtime_kib",
    "memory_",
    "round_ns",
    "nf_ns_per_packet",
    "longest_wait_ns",
];

/// What is better of a metric, if that can be said: counts of switches, say, have no better.
pub fn better(metric: &str) -> Option<Better> {
    let starts = |with: &[&str]| with.iter().any(|start| metric.starts_with(start));
    match () {
        () if NEITHER.contains(&metric) => None,
        () if NEAR_ZERO.contains(&metric) => Some(Better::NearZero),
        () if LESS_BY_NAME.contains(&metric) || metric.contains("error_percent") => Some(Better::Less),
        () if starts(&MORE) => Some(Better::More),
        () if starts(&LESS) => Some(Better::Less),
        () => None,
    }
}

/// Whether it is a ratio to what another variant had, as the ideal.
pub fn has_shared_base(metric: &str) -> bool {
    metric.starts_with("of_")
}

/// How a metric changes with the speed of the host, by its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// A rate of work: at most in proportion to it, and not at all where the rate was given or
    /// something else is the limit.
    Speed,
    /// A time, or a rate of losses: at most in inverse proportion, and not at all where a timer
    /// ends it.
    Slowness,
    /// Ratios, of which both sides change, and counts.
    Nothing,
}

impl Follows {
    pub fn of(metric: &str) -> Self {
        let name = metric.split('.').next().unwrap_or(metric);
        let has = |units: &[&str]| units.iter().any(|unit| name.contains(unit));
        match () {
            // Of packets that are lost: a slower host loses more.
            () if has(&["_pps"]) && better(metric) == Some(Better::Less) => Self::Slowness,
            () if has(&["_pps", "_bps", "_per_s", "_per_cpu_s"]) => Self::Speed,
            () if has(&["_ns", "_us", "_ms"]) || name.ends_with("_s") => Self::Slowness,
            () => Self::Nothing,
        }
    }

    /// By what the logarithm of a speed is multiplied.
    pub fn sign(self) -> f64 {
        match self {
            Self::Speed => 1.0,
            Self::Slowness => -1.0,
            Self::Nothing => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_follow_the_host_and_ratios_do_not() {
        for (metric, follows) in [
            ("delivered_pps", Follows::Speed),
            ("processed_pps.nf1", Follows::Speed),
            ("delivered_pps_per_core", Follows::Speed),
            ("tcp_bps", Follows::Speed),
            ("requests_per_s", Follows::Speed),
            ("delivered_per_cpu_s", Follows::Speed),
            ("drop_pps.no_rule", Follows::Slowness),
            ("wasted_pps", Follows::Slowness),
            ("latency_ns_p99", Follows::Slowness),
            ("nf_ns_per_packet", Follows::Slowness),
            ("solve_s", Follows::Slowness),
            ("start_us_per_nf", Follows::Slowness),
            ("of_ideal", Follows::Nothing),
            ("jain", Follows::Nothing),
            ("servers", Follows::Nothing),
            ("latency_of_promised", Follows::Nothing),
        ] {
            assert_eq!(Follows::of(metric), follows, "{metric}");
        }
    }
}
