//! Which metrics should be large, and which small.

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
const LESS: [&str; 26] = [
    "latency_",
    "setup_ns",
    "start_",
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
