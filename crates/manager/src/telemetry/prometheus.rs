//! The text format of Prometheus, and families of samples that are declared once.
//!
//! Format: the text exposition format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>). Names begin with `sluice_` and
//! have their base unit (seconds, bytes, ratios from 0 to 1); names of counters end in `_total`.
//! All samples of a family are together under one `HELP` and one `TYPE`.
//!
//! The edge of one of the daemon's buckets belongs to the bucket above, and in Prometheus to the
//! one below. The difference is one nanosecond, far below the precision of a measured time.

use std::borrow::Cow;
use std::fmt::{Display, Write};

use sluice_api::counted::Counters;
use sluice_api::model::Distribution;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Edges of a histogram: 2^8 ns (256 ns) to 2^30 ns (1.07 s).
pub(super) const EDGES: std::ops::RangeInclusive<u32> = 8..=30;

/// Nanoseconds in a second. A divisor, as a product with 1e-9 would not print as short.
pub(super) const NS: f64 = 1e9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    Summary,
    Histogram,
}

/// A metric: its name with its unit, its meaning, and how it is read from its object.
pub(super) struct Family<T> {
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    is_summed: bool,
    read: fn(&T, &mut Rows<'_>),
}

/// An object that families are read from, with the labels that name it.
pub(super) type Object<'a, T> = (Vec<(&'static str, Cow<'a, str>)>, &'a T);

impl<T> Family<T> {
    pub const fn counter(name: &'static str, help: &'static str, read: fn(&T, &mut Rows<'_>)) -> Self {
        Self { name, kind: MetricKind::Counter, help, is_summed: true, read }
    }

    /// A counter without a family of the sum over all objects.
    pub const fn counter_of_each(name: &'static str, help: &'static str, read: fn(&T, &mut Rows<'_>)) -> Self {
        Self { name, kind: MetricKind::Counter, help, is_summed: false, read }
    }

    pub const fn gauge(name: &'static str, help: &'static str, read: fn(&T, &mut Rows<'_>)) -> Self {
        Self { name, kind: MetricKind::Gauge, help, is_summed: false, read }
    }

    pub const fn summary(name: &'static str, help: &'static str, read: fn(&T, &mut Rows<'_>)) -> Self {
        Self { name, kind: MetricKind::Summary, help, is_summed: false, read }
    }

    pub const fn histogram(name: &'static str, help: &'static str, read: fn(&T, &mut Rows<'_>)) -> Self {
        Self { name, kind: MetricKind::Histogram, help, is_summed: true, read }
    }
}

/// The samples of a family for one object.
pub(super) struct Rows<'a> {
    out: &'a mut Text,
    name: &'a str,
    kind: MetricKind,
    labels: Vec<(&'a str, &'a str)>,
}

impl Rows<'_> {
    /// Writes a value of the family.
    pub fn is(&mut self, value: impl Display) {
        self.out.sample(self.name, &self.labels, value);
    }

    /// The same with more labels.
    pub fn with(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.out.sample(self.name, &[&self.labels, labels].concat(), value);
    }

    /// Writes times of the family.
    pub fn times(&mut self, times: &Distribution) {
        match self.kind {
            MetricKind::Histogram => self.out.histogram(self.name, &self.labels, times),
            _ => self.out.summary(self.name, &self.labels, times),
        }
    }
}

#[derive(Default)]
pub(super) struct Text(pub String);

impl Text {
    pub fn write<T>(&mut self, families: &[Family<T>], objects: &[Object<'_, T>]) {
        families.iter().for_each(|family| self.write_as(family, family.name, family.help, objects));
    }

    /// Writes the families of sums: `all` replaces `one` in their names, and their help begins with
    /// `of_what`.
    pub fn write_sums<T>(&mut self, families: &[Family<T>], [one, all]: [&str; 2], of_what: &str, sums: &[Object<'_, T>]) {
        for family in families.iter().filter(|family| family.is_summed) {
            self.write_as(family, &family.name.replacen(one, all, 1), &format!("{of_what}: {}", family.help), sums);
        }
    }

    /// The counters of one kind of object, as its type declares them.
    pub fn write_counters<T: Counters>(&mut self, objects: &[Object<'_, T>]) {
        self.counters_as(objects, str::to_string, str::to_string);
    }

    /// The sums of these counters; names and help as with [`Text::write_sums`].
    pub fn write_counter_sums<T: Counters>(&mut self, [one, all]: [&str; 2], of_what: &str, sums: &[Object<'_, T>]) {
        self.counters_as(sums, |name| name.replacen(one, all, 1), |help| format!("{of_what}: {help}"));
    }

    fn counters_as<T: Counters>(
        &mut self,
        objects: &[Object<'_, T>],
        name: impl Fn(&str) -> String,
        help: impl Fn(&str) -> String,
    ) {
        for (counter, text) in T::COUNTERS.iter().zip(T::help()) {
            let name = name(counter.metric);
            self.family(&name, "counter", &help(text));
            for (labels, object) in objects {
                let labels: Vec<_> = labels.iter().map(|(label, text)| (*label, &**text)).collect();
                self.sample(&name, &labels, (counter.get)(object));
            }
        }
    }

    fn write_as<T>(&mut self, family: &Family<T>, name: &str, help: &str, objects: &[Object<'_, T>]) {
        self.family(name, &format!("{:?}", family.kind).to_lowercase(), help);
        for (labels, object) in objects {
            let labels = labels.iter().map(|(label, text)| (*label, &**text)).collect();
            (family.read)(object, &mut Rows { out: self, name, kind: family.kind, labels });
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.push(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.0.push(if i == 0 { '{' } else { ',' });
            self.push(format_args!("{label}=\""));
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        self.push(format_args!("{} {value}\n", if labels.is_empty() { "" } else { "}" }));
    }

    fn summary(&mut self, name: &str, labels: &[(&str, &str)], times: &Distribution) {
        for (q, value) in [("0.5", times.p50), ("0.9", times.p90), ("0.99", times.p99), ("0.999", times.p999)] {
            // The format's value for a quantile of nothing.
            let value = if times.count == 0 { f64::NAN } else { value as f64 / NS };
            self.sample(name, &[labels, &[("quantile", q)]].concat(), value);
        }
        self.sum_and_count(name, labels, times);
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], times: &Distribution) {
        let bucket = format!("{name}_bucket");
        for edge in EDGES {
            let edge = 1u64 << edge;
            let below: u64 = times.buckets.iter().filter(|(lowest, _)| *lowest < edge).map(|(_, n)| n).sum();
            self.sample(&bucket, &[labels, &[("le", &(edge as f64 / NS).to_string())]].concat(), below);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), times.count);
        self.sum_and_count(name, labels, times);
    }

    fn sum_and_count(&mut self, name: &str, labels: &[(&str, &str)], times: &Distribution) {
        self.sample(&format!("{name}_sum"), labels, times.sum as f64 / NS);
        self.sample(&format!("{name}_count"), labels, times.count);
    }

    fn push(&mut self, args: std::fmt::Arguments<'_>) {
        self.0.write_fmt(args).expect("a String takes everything");
    }
}
