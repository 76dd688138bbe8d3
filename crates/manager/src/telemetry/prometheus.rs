//! The text formats of Prometheus.
//!
//! Formats: the text exposition format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>), and OpenMetrics, version 1.0.0
//! (<https://prometheus.io/docs/specs/om/open_metrics_spec/>). All samples of a family are together
//! under one `HELP` and one `TYPE`. Exemplars are in OpenMetrics alone.

use std::fmt::{Display, Write};

use sluice_api::exposition::TextFormat;
use sluice_api::model::{Distribution, Exemplar};

use super::families::{MetricKind, NS, Sink, Value, below_edges};

/// The text of families.
#[derive(Default)]
pub(super) struct Text {
    text: String,
    format: TextFormat,
    /// Of the last family.
    name: String,
    kind: MetricKind,
}

impl Text {
    pub fn new(format: TextFormat, capacity: usize) -> Self {
        Self { text: String::with_capacity(capacity), format, ..Self::default() }
    }

    /// The whole text, once all families are written.
    pub fn end(mut self) -> String {
        if self.format == TextFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// A sample of the last family, and the exemplar of a bucket.
    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display, exemplar: Option<&Exemplar>) {
        self.text.push_str(&self.name);
        self.text.push_str(suffix);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.text.push(if i == 0 { '{' } else { ',' });
            self.push(format_args!("{label}=\""));
            for c in text.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        self.push(format_args!("{} {value}", if labels.is_empty() { "" } else { "}" }));
        if let Some(Exemplar { ns, flow, last_ns }) = exemplar {
            let (seconds, millis) = (last_ns / 1_000_000_000, last_ns / 1_000_000 % 1_000);
            self.push(format_args!(" # {{flow=\"{flow}\"}} {} {seconds}.{millis:03}", *ns as f64 / NS));
        }
        self.text.push('\n');
    }

    fn summary(&mut self, labels: &[(&str, &str)], times: &Distribution) {
        for (q, value) in [("0.5", times.p50), ("0.9", times.p90), ("0.99", times.p99), ("0.999", times.p999)] {
            // The format's value for a quantile of nothing.
            let value = if times.count == 0 { f64::NAN } else { value as f64 / NS };
            self.line("", &[labels, &[("quantile", q)]].concat(), value, None);
        }
    }

    fn histogram(&mut self, labels: &[(&str, &str)], times: &Distribution, exemplars: &[Exemplar]) {
        let has_exemplars = self.format == TextFormat::OpenMetrics;
        let within = |low: f64, high: f64| {
            let is_within = |one: &&Exemplar| has_exemplars && (low..high).contains(&(one.ns as f64 / NS));
            exemplars.iter().rev().find(is_within)
        };
        let mut low = 0.0;
        for (edge, below) in below_edges(times) {
            self.line("_bucket", &[labels, &[("le", &edge.to_string())]].concat(), below, within(low, edge));
            low = edge;
        }
        self.line("_bucket", &[labels, &[("le", "+Inf")]].concat(), times.count, within(low, f64::INFINITY));
    }

    fn push(&mut self, args: std::fmt::Arguments<'_>) {
        self.text.write_fmt(args).expect("a String takes everything");
    }
}

impl Sink for Text {
    fn family(&mut self, name: &str, kind: MetricKind, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let (family, help) = match (self.format, kind) {
            // Its families of counters have no suffix, and their samples have.
            (TextFormat::OpenMetrics, MetricKind::Counter) => {
                (name.strip_suffix("_total").unwrap_or(name), help.replace('"', "\\\""))
            }
            (TextFormat::OpenMetrics, _) => (name, help.replace('"', "\\\"")),
            (TextFormat::Plain, _) => (name, help),
        };
        self.push(format_args!("# HELP {family} {help}\n# TYPE {family} {}\n", kind.word()));
        (self.name, self.kind) = (name.into(), kind);
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: Value) {
        self.line("", labels, value, None);
    }

    fn times(&mut self, labels: &[(&str, &str)], times: &Distribution, exemplars: &[Exemplar]) {
        match self.kind {
            MetricKind::Histogram => self.histogram(labels, times, exemplars),
            _ => self.summary(labels, times),
        }
        self.line("_sum", labels, times.sum as f64 / NS, None);
        self.line("_count", labels, times.count, None);
    }
}
