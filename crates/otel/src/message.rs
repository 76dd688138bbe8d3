//! Metrics as a message of OTLP.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::summary_data_point::ValueAtQuantile;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics,
    Sum, Summary, SummaryDataPoint, exemplar, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource as ProtoResource;
use prost::Message as _;

const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A sum that only grows.
    Counter,
    /// A value of the moment.
    Gauge,
}

/// A value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A whole number. Those above 2^63 - 1 are sent as that.
    Whole(u64),
    /// Any other.
    Real(f64),
}

/// Something that one of the times of a histogram is of.
#[derive(Debug, Clone, Copy)]
pub struct Example<'a> {
    /// The time, in seconds.
    pub seconds: f64,
    /// When it was, in nanoseconds since 1970.
    pub time_ns: u64,
    /// What it is of.
    pub labels: &'a [(&'a str, &'a str)],
}

/// What the metrics are of.
#[derive(Debug, Clone, Default)]
pub struct Resource {
    /// Its attributes, by OpenTelemetry's names.
    pub attributes: Vec<(&'static str, String)>,
    /// Name and version of what counts.
    pub scope: [String; 2],
}

/// A message with metrics, as it is made.
#[derive(Debug)]
pub struct MetricsMessage {
    metrics: Vec<Metric>,
    kind: Kind,
    /// Since when counters count, and when this is, in nanoseconds since 1970.
    start_ns: u64,
    time_ns: u64,
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.into())) });
    KeyValue { key: key.into(), value, ..KeyValue::default() }
}

fn attributes(labels: &[(&str, &str)]) -> Vec<KeyValue> {
    labels.iter().map(|(label, text)| attribute(label, text)).collect()
}

/// The unit that the name of a metric ends in, by UCUM.
fn unit(name: &str) -> &'static str {
    match name.strip_suffix("_total").unwrap_or(name) {
        name if name.ends_with("_seconds") => "s",
        name if name.ends_with("_bytes") => "By",
        _ => "",
    }
}

impl MetricsMessage {
    /// A message without metrics. Both times are in nanoseconds since 1970; counters count since
    /// `start_ns`.
    pub fn new(start_ns: u64, time_ns: u64) -> Self {
        Self { metrics: Vec::new(), kind: Kind::Gauge, start_ns, time_ns }
    }

    /// Begins a metric. What follows is of it; one without a value is not sent.
    pub fn metric(&mut self, name: &str, help: &str, kind: Kind) {
        let metric = Metric { name: name.into(), description: help.into(), unit: unit(name).into(), ..Metric::default() };
        self.metrics.push(metric);
        self.kind = kind;
    }

    /// A value of a counter or a gauge.
    pub fn number(&mut self, labels: &[(&str, &str)], number: Number) {
        let value = match number {
            Number::Whole(n) => number_data_point::Value::AsInt(i64::try_from(n).unwrap_or(i64::MAX)),
            Number::Real(x) => number_data_point::Value::AsDouble(x),
        };
        let start_time_unix_nano = if self.kind == Kind::Counter { self.start_ns } else { 0 };
        let point = NumberDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano,
            time_unix_nano: self.time_ns,
            value: Some(value),
            ..NumberDataPoint::default()
        };
        let empty = match self.kind {
            Kind::Counter => Data::Sum(Sum { data_points: Vec::new(), aggregation_temporality: CUMULATIVE, is_monotonic: true }),
            Kind::Gauge => Data::Gauge(Gauge::default()),
        };
        match self.data(empty) {
            Some(Data::Sum(sum)) => sum.data_points.push(point),
            Some(Data::Gauge(gauge)) => gauge.data_points.push(point),
            _ => {}
        }
    }

    /// A histogram: its number of values and their sum, and for each bucket the upper edge and how
    /// many values are in it or below.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        (count, sum): (u64, f64),
        below: impl Iterator<Item = (f64, u64)>,
        examples: &[Example<'_>],
    ) {
        let (mut explicit_bounds, mut bucket_counts, mut so_far) = (Vec::new(), Vec::new(), 0);
        for (edge, below) in below {
            explicit_bounds.push(edge);
            bucket_counts.push(below.saturating_sub(so_far));
            so_far = below;
        }
        bucket_counts.push(count.saturating_sub(so_far));
        let exemplar = |one: &Example<'_>| Exemplar {
            filtered_attributes: attributes(one.labels),
            time_unix_nano: one.time_ns,
            value: Some(exemplar::Value::AsDouble(one.seconds)),
            ..Exemplar::default()
        };
        let point = HistogramDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: self.start_ns,
            time_unix_nano: self.time_ns,
            count,
            sum: Some(sum),
            bucket_counts,
            explicit_bounds,
            exemplars: examples.iter().map(exemplar).collect(),
            ..HistogramDataPoint::default()
        };
        let empty = Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality: CUMULATIVE });
        if let Some(Data::Histogram(histogram)) = self.data(empty) {
            histogram.data_points.push(point);
        }
    }

    /// A summary: its number of values and their sum, and its quantiles.
    pub fn summary(&mut self, labels: &[(&str, &str)], (count, sum): (u64, f64), quantiles: &[(f64, f64)]) {
        let point = SummaryDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: self.start_ns,
            time_unix_nano: self.time_ns,
            count,
            sum,
            quantile_values: quantiles.iter().map(|&(quantile, value)| ValueAtQuantile { quantile, value }).collect(),
            ..SummaryDataPoint::default()
        };
        if let Some(Data::Summary(summary)) = self.data(Data::Summary(Summary::default())) {
            summary.data_points.push(point);
        }
    }

    /// The data of the last metric, which are `empty` at first.
    fn data(&mut self, empty: Data) -> Option<&mut Data> {
        Some(self.metrics.last_mut()?.data.get_or_insert(empty))
    }

    /// The bytes of a request to export it.
    pub fn encode(self, resource: &Resource) -> Vec<u8> {
        let [name, version] = resource.scope.clone();
        let scope_metrics = ScopeMetrics {
            scope: Some(InstrumentationScope { name, version, ..InstrumentationScope::default() }),
            metrics: self.metrics.into_iter().filter(|metric| metric.data.is_some()).collect(),
            ..ScopeMetrics::default()
        };
        let attributes = resource.attributes.iter().map(|(key, value)| attribute(key, value)).collect();
        let resource_metrics = ResourceMetrics {
            resource: Some(ProtoResource { attributes, ..ProtoResource::default() }),
            scope_metrics: vec![scope_metrics],
            ..ResourceMetrics::default()
        };
        ExportMetricsServiceRequest { resource_metrics: vec![resource_metrics] }.encode_to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_again() {
        let mut message = MetricsMessage::new(5, 9);
        message.number(&[], Number::Whole(1));
        message.metric("sluice_port_rx_bytes_total", "Bytes received.", Kind::Counter);
        message.number(&[("port", "in")], Number::Whole(u64::MAX));
        message.number(&[("port", "out")], Number::Real(0.5));
        message.metric("sluice_uptime_seconds", "Time.", Kind::Gauge);
        message.number(&[], Number::Real(2.5));
        message.metric("sluice_nothing", "Without a value.", Kind::Gauge);
        message.metric("sluice_latency_seconds", "Latency.", Kind::Gauge);
        let example = Example { seconds: 0.3, time_ns: 7, labels: &[("flow", "12")] };
        message.histogram(&[("chain", "web")], (6, 3.5), [(0.25, 1), (0.5, 4)].into_iter(), &[example]);
        message.metric("sluice_service_seconds", "Service.", Kind::Gauge);
        message.summary(&[], (2, 0.5), &[(0.5, 0.25)]);
        let resource = Resource { attributes: vec![("service.name", "sluiced".into())], scope: ["sluice".into(), "1".into()] };
        let request = ExportMetricsServiceRequest::decode(message.encode(&resource).as_slice()).unwrap();

        let [of_resource] = &request.resource_metrics[..] else { panic!("{request:?}") };
        assert_eq!(of_resource.resource.as_ref().unwrap().attributes, [attribute("service.name", "sluiced")]);
        let [scope] = &of_resource.scope_metrics[..] else { panic!("{request:?}") };
        assert_eq!(scope.scope.as_ref().unwrap().name, "sluice");
        let [bytes, uptime, latency, service] = &scope.metrics[..] else { panic!("{scope:?}") };
        let known = |metric: &Metric| (metric.name.clone(), metric.unit.clone());
        assert_eq!(known(bytes), ("sluice_port_rx_bytes_total".into(), "By".into()));
        assert_eq!(known(uptime), ("sluice_uptime_seconds".into(), "s".into()));

        let Some(Data::Sum(sum)) = &bytes.data else { panic!("{bytes:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality == CUMULATIVE);
        assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsInt(i64::MAX)));
        assert_eq!(sum.data_points[1].value, Some(number_data_point::Value::AsDouble(0.5)));
        assert_eq!(sum.data_points[1].attributes, [attribute("port", "out")]);
        assert_eq!((sum.data_points[1].start_time_unix_nano, sum.data_points[1].time_unix_nano), (5, 9));
        let Some(Data::Gauge(gauge)) = &uptime.data else { panic!("{uptime:?}") };
        assert_eq!((gauge.data_points[0].start_time_unix_nano, gauge.data_points[0].time_unix_nano), (0, 9));
        let Some(Data::Histogram(histogram)) = &latency.data else { panic!("{latency:?}") };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum, &point.bucket_counts[..]), (6, Some(3.5), &[1, 3, 2][..]));
        assert_eq!((&point.explicit_bounds[..], point.exemplars.len()), (&[0.25, 0.5][..], 1));
        assert_eq!(point.exemplars[0].filtered_attributes, [attribute("flow", "12")]);
        let Some(Data::Summary(summary)) = &service.data else { panic!("{service:?}") };
        assert_eq!((summary.data_points[0].count, summary.data_points[0].quantile_values[0].value), (2, 0.25));
    }
}
