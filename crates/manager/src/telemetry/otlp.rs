//! Metrics as a message for an OpenTelemetry collector.
//!
//! Names, labels and values are those of the text for Prometheus. A counter is a monotonic sum, and
//! all but gauges are cumulative. A summary that has quantiles alone is a gauge, with its label
//! `quantile`.

use sluice_api::model::{Distribution, Exemplar, Stats};
use sluice_otel::{Example, Kind, MetricsMessage, Number};

use super::families::{MetricKind, NS, Sink, Value, below_edges};
use super::metrics;

/// A message, and the kind of its last family.
struct Filled {
    message: MetricsMessage,
    kind: MetricKind,
}

/// All metrics. Both times are in nanoseconds since 1970; counters count since `start_ns`.
pub(crate) fn message(stats: &Stats, start_ns: u64, time_ns: u64) -> MetricsMessage {
    let mut filled = Filled { message: MetricsMessage::new(start_ns, time_ns), kind: MetricKind::default() };
    metrics::write(stats, &mut filled);
    filled.message
}

impl Sink for Filled {
    fn family(&mut self, name: &str, kind: MetricKind, help: &str) {
        let sent = if kind == MetricKind::Counter { Kind::Counter } else { Kind::Gauge };
        self.message.metric(name, help, sent);
        self.kind = kind;
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: Value) {
        let number = match value {
            Value::Whole(n) => Number::Whole(n),
            Value::Real(x) => Number::Real(x),
        };
        self.message.number(labels, number);
    }

    fn times(&mut self, labels: &[(&str, &str)], times: &Distribution, exemplars: &[Exemplar]) {
        let all = (times.count, times.sum as f64 / NS);
        if self.kind == MetricKind::Histogram {
            let flows: Vec<String> = exemplars.iter().map(|one| one.flow.to_string()).collect();
            let named: Vec<[(&str, &str); 1]> = flows.iter().map(|flow| [("flow", flow.as_str())]).collect();
            let example = |(one, labels): (&Exemplar, _)| Example { seconds: one.ns as f64 / NS, time_ns: one.last_ns, labels };
            let examples: Vec<Example<'_>> = exemplars.iter().zip(named.iter().map(|one| &one[..])).map(example).collect();
            return self.message.histogram(labels, all, below_edges(times), &examples);
        }
        let quantiles = [(0.5, times.p50), (0.9, times.p90), (0.99, times.p99), (0.999, times.p999)];
        // Of nothing there are none.
        let quantiles: Vec<(f64, f64)> =
            quantiles.iter().filter(|_| times.count > 0).map(|(q, ns)| (*q, *ns as f64 / NS)).collect();
        self.message.summary(labels, all, &quantiles);
    }
}
