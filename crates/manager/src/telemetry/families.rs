//! Families of samples that are declared once, and written in any format ([`Sink`]).
//!
//! Names begin with `sluice_` and have their base unit (seconds, bytes, ratios from 0 to 1); names
//! of counters end in `_total`.

use std::borrow::Cow;
use std::fmt;

use sluice_api::counted::Counters;
use sluice_api::model::{Distribution, Exemplar};

/// Edges of a histogram: 2^8 ns (256 ns) to 2^30 ns (1.07 s).
pub(super) const EDGES: std::ops::RangeInclusive<u32> = 8..=30;

/// Nanoseconds in a second. A divisor, as a product with 1e-9 would not print as short.
pub(super) const NS: f64 = 1e9;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum MetricKind {
    Counter,
    #[default]
    Gauge,
    Summary,
    Histogram,
}

impl MetricKind {
    pub fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Summary => "summary",
            Self::Histogram => "histogram",
        }
    }
}

/// The value of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(n) => fmt::Display::fmt(n, f),
            Self::Real(x) => fmt::Display::fmt(x, f),
        }
    }
}

/// Values are read as they are reported: whole numbers of any size, and references to them.
macro_rules! values {
    ($($kind:ty => $value:expr;)*) => {
        $(impl From<$kind> for Value {
            fn from(from: $kind) -> Self {
                let make: fn($kind) -> Self = $value;
                make(from)
            }
        })*
    };
}

values! {
    u8 => |n| Value::Whole(n.into());
    u32 => |n| Value::Whole(n.into());
    u64 => Value::Whole;
    usize => |n| Value::Whole(n as u64);
    &u64 => |n| Value::Whole(*n);
    // Literals.
    i32 => |n| Value::Real(n.into());
    f64 => Value::Real;
    &f64 => |x| Value::Real(*x);
}

/// What families are written to. Each family is followed by all of its samples.
pub(super) trait Sink {
    fn family(&mut self, name: &str, kind: MetricKind, help: &str);

    /// A value of the last family.
    fn sample(&mut self, labels: &[(&str, &str)], value: Value);

    /// Times of the last family, a summary or a histogram. The exemplars are of a histogram.
    fn times(&mut self, labels: &[(&str, &str)], times: &Distribution, exemplars: &[Exemplar]);
}

/// The upper edge of each bucket of a histogram in seconds, with the number of times below it.
/// The one without an edge, which has all, is left out.
///
/// The edge of one of the daemon's buckets belongs to the bucket above, and in Prometheus to the
/// one below. The difference is one nanosecond, far below the precision of a measured time.
pub(super) fn below_edges(times: &Distribution) -> impl Iterator<Item = (f64, u64)> {
    EDGES.map(move |edge| {
        let edge = 1u64 << edge;
        let below = times.buckets.iter().filter(|(lowest, _)| *lowest < edge).fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        (edge as f64 / NS, below)
    })
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
    out: &'a mut dyn Sink,
    labels: Vec<(&'a str, &'a str)>,
}

impl Rows<'_> {
    /// Writes a value of the family.
    pub fn is(&mut self, value: impl Into<Value>) {
        self.out.sample(&self.labels, value.into());
    }

    /// The same with more labels.
    pub fn with(&mut self, labels: &[(&str, &str)], value: impl Into<Value>) {
        self.out.sample(&[&self.labels, labels].concat(), value.into());
    }

    /// Writes times of the family.
    pub fn times(&mut self, times: &Distribution) {
        self.out.times(&self.labels, times, &[]);
    }

    /// The same with flows that some of them are of.
    pub fn times_of(&mut self, times: &Distribution, exemplars: &[Exemplar]) {
        self.out.times(&self.labels, times, exemplars);
    }
}

/// Writes families to a sink.
pub(super) struct Families<'a>(pub &'a mut dyn Sink);

impl Families<'_> {
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

    /// The sums of these counters; names and help as with [`Families::write_sums`].
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
            self.0.family(&name(counter.metric), MetricKind::Counter, &help(text));
            for (labels, object) in objects {
                let labels: Vec<_> = labels.iter().map(|(label, text)| (*label, &**text)).collect();
                self.0.sample(&labels, (counter.get)(object).into());
            }
        }
    }

    fn write_as<T>(&mut self, family: &Family<T>, name: &str, help: &str, objects: &[Object<'_, T>]) {
        self.0.family(name, family.kind, help);
        for (labels, object) in objects {
            let labels = labels.iter().map(|(label, text)| (*label, &**text)).collect();
            (family.read)(object, &mut Rows { out: &mut *self.0, labels });
        }
    }
}
