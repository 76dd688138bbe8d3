//! Metrics as a collector gets them, decoded with the messages of OpenTelemetry.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use sluice_otel::read::{
    Data, ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse, KeyValue, Message, Metric,
    any_value, number_data_point,
};

use crate::support::{Daemon, PATIENCE, chain, find_chain, find_port, nf, port, service};

/// Values by name and labels, as a text for Prometheus has them.
type Samples = BTreeMap<String, f64>;

/// A collector that ends with its test.
struct Collector {
    port: u16,
    requests: Receiver<ExportMetricsServiceRequest>,
    /// Whether it takes what it is sent, and does not answer 503.
    takes: Arc<AtomicBool>,
    stops: Arc<AtomicBool>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        // By this its thread looks.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Takes a request and answers it; none if it is no push.
fn serve(stream: TcpStream, takes: bool) -> Option<ExportMetricsServiceRequest> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_lowercase()),
        }
    }
    if lines.first()? != "post /otlp/v1/metrics http/1.1" || !lines.contains(&"content-type: application/x-protobuf".into()) {
        return None;
    }
    let length = lines.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let request = ExportMetricsServiceRequest::decode(&body[..]).expect("it is a message of OTLP");
    let partial = ExportMetricsPartialSuccess { rejected_data_points: 2, error_message: "two too many".into() };
    let answer = ExportMetricsServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    let head = match takes {
        true => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len()),
        false => "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_string(),
    };
    let body: &[u8] = if takes { &answer } else { b"" };
    reader.get_mut().write_all(&[head.as_bytes(), body].concat()).ok()?;
    Some(request).filter(|_| takes)
}

impl Collector {
    fn start(takes: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let [takes, stops] = [takes, false].map(|is| Arc::new(AtomicBool::new(is)));
        let (to, requests) = channel();
        let collector = Self { port, requests, takes: takes.clone(), stops: stops.clone() };
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stops.load(Ordering::Relaxed) {
                    return;
                }
                if let Some(request) = serve(stream, takes.load(Ordering::Relaxed)) {
                    let _ = to.send(request);
                }
            }
        });
        collector
    }

    /// The section of a daemon that pushes here.
    fn section(&self) -> String {
        format!("[telemetry]\notlp = \"http://127.0.0.1:{}/otlp/\"\ninterval_ms = 100\n", self.port)
    }

    /// A push that begins from now on: the one after the next.
    fn next(&self) -> ExportMetricsServiceRequest {
        while self.requests.try_recv().is_ok() {}
        self.requests.recv_timeout(PATIENCE).unwrap();
        self.requests.recv_timeout(PATIENCE).unwrap()
    }
}

fn text_of(pair: &KeyValue) -> &str {
    match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text,
        other => panic!("{} is {other:?}", pair.key),
    }
}

/// The name of a series, with labels in order.
fn series(name: &str, attributes: &[KeyValue], more: Option<(&str, f64)>) -> String {
    let mut labels: Vec<String> = attributes.iter().map(|pair| format!("{}={:?}", pair.key, text_of(pair))).collect();
    labels.extend(more.map(|(label, value)| match value.is_infinite() {
        true => format!("{label}=\"+Inf\""),
        false => format!("{label}=\"{value}\""),
    }));
    if labels.is_empty() { name.into() } else { format!("{name}{{{}}}", labels.join(",")) }
}

fn number(value: Option<number_data_point::Value>) -> f64 {
    match value {
        Some(number_data_point::Value::AsInt(n)) => n as f64,
        Some(number_data_point::Value::AsDouble(x)) => x,
        None => panic!("a point without a value"),
    }
}

/// The samples of a metric, as the text has them.
fn read(metric: &Metric, into: &mut Samples) {
    let name = metric.name.as_str();
    assert!(!metric.description.is_empty(), "{name}");
    let mut put = |series: String, value: f64| assert!(into.insert(series.clone(), value).is_none(), "{series} comes twice");
    match metric.data.as_ref().expect("a metric has data") {
        Data::Gauge(gauge) => {
            gauge.data_points.iter().for_each(|point| put(series(name, &point.attributes, None), number(point.value)));
        }
        Data::Sum(sum) => {
            assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "{name}");
            for point in &sum.data_points {
                assert!(point.start_time_unix_nano > 0 && point.start_time_unix_nano <= point.time_unix_nano, "{name}");
                put(series(name, &point.attributes, None), number(point.value));
            }
        }
        Data::Histogram(histogram) => {
            for point in &histogram.data_points {
                let edges = point.explicit_bounds.iter().copied().chain([f64::INFINITY]);
                let mut below = 0;
                for (edge, count) in edges.zip(&point.bucket_counts) {
                    below += count;
                    put(series(&format!("{name}_bucket"), &point.attributes, Some(("le", edge))), below as f64);
                }
                assert_eq!(below, point.count, "{name}");
                put(series(&format!("{name}_sum"), &point.attributes, None), point.sum.unwrap());
                put(series(&format!("{name}_count"), &point.attributes, None), point.count as f64);
            }
        }
        Data::Summary(summary) => {
            for point in &summary.data_points {
                for one in &point.quantile_values {
                    put(series(name, &point.attributes, Some(("quantile", one.quantile))), one.value);
                }
                put(series(&format!("{name}_sum"), &point.attributes, None), point.sum);
                put(series(&format!("{name}_count"), &point.attributes, None), point.count as f64);
            }
        }
        other @ Data::ExponentialHistogram(_) => panic!("{name} is {other:?}"),
    }
}

fn pushed(request: &ExportMetricsServiceRequest) -> Samples {
    let mut samples = Samples::new();
    let [resource] = &request.resource_metrics[..] else { panic!("{request:?}") };
    let [scope] = &resource.scope_metrics[..] else { panic!("{request:?}") };
    scope.metrics.iter().for_each(|metric| read(metric, &mut samples));
    samples
}

/// The samples of a text. What is no number there, a quantile of nothing, is not pushed.
fn scraped(text: &str) -> Samples {
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
        let value: f64 = value.parse().expect("a number");
        (!value.is_nan()).then(|| (series.to_string(), value))
    });
    samples.collect()
}

#[test]
fn a_collector_gets_what_the_text_for_prometheus_has() {
    let collector = Collector::start(true);
    let body = collector.section()
        + &port("in", "gen", "rate = 20000\ncount = 5000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("fw", &nf("sluice-nf-bridge"), "")
        + &chain("web", "in", &["fw"], "out", "");
    let mut daemon = Daemon::start("latency_sample = 1", &body);
    daemon.wait("all are sent", |s| find_port(s, "in").finished && find_chain(s, "web").exit_packets == 5000);
    let until = Instant::now() + PATIENCE;
    loop {
        // What is the same before and after a push is the same in it.
        let before = scraped(&daemon.client().metrics().unwrap());
        let request = collector.next();
        let after = scraped(&daemon.client().metrics().unwrap());
        let got = pushed(&request);
        let names = |samples: &Samples| samples.keys().cloned().collect::<Vec<_>>();
        let steady: Vec<&String> = before.keys().filter(|series| after.get(*series) == before.get(*series)).collect();
        let wrong: Vec<_> = steady.iter().filter(|series| got.get(**series) != before.get(**series)).collect();
        if names(&before) == names(&got) && wrong.is_empty() {
            assert!(steady.len() > 100, "{steady:?}");
            assert_eq!(got["sluice_chain_exit_packets_total{chain=\"web\"}"], 5000.0);
            assert!(got["sluice_chain_latency_seconds_count{chain=\"web\"}"] > 0.0);
            let resource = request.resource_metrics[0].resource.as_ref().unwrap();
            let of = |key: &str| resource.attributes.iter().find(|pair| pair.key == key).map(text_of);
            assert_eq!(of("service.name"), Some("sluiced"));
            assert!(of("service.instance.id").is_some_and(|id| id.ends_with(&daemon.run_dir().display().to_string())));
            break;
        }
        // A report may have come while something was measured.
        assert!(Instant::now() < until, "{wrong:?} of\n{before:#?}\nand\n{got:#?}");
    }
    let otlp = daemon.stats().status.otlp.expect("it pushes");
    assert!(otlp.pushes > 0 && otlp.rejected_points >= 2 * (otlp.pushes - 1), "{otlp:?}");
    assert!(daemon.log().contains("refuses 2 values of a push (two too many)"), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn what_a_collector_does_not_take_is_dropped_and_counted() {
    let collector = Collector::start(false);
    let body = collector.section()
        + &port("in", "gen", "rate = 1000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("fw", &nf("sluice-nf-bridge"), "")
        + &chain("web", "in", &["fw"], "out", "");
    let mut daemon = Daemon::start("", &body);
    let stats = daemon.wait("pushes are dropped", |s| s.status.otlp.as_ref().is_some_and(|otlp| otlp.dropped_pushes >= 3));
    let otlp = stats.status.otlp.unwrap();
    assert_eq!((otlp.pushes, otlp.problem.as_deref()), (0, Some("it answers 503 Service Unavailable")));
    let collected = format!("http://127.0.0.1:{}/otlp/", collector.port);
    assert_eq!(otlp.collector, collected);
    let said = format!("metrics cannot be pushed to {collected}: it answers 503 Service Unavailable");
    assert_eq!(daemon.log().matches(&said).count(), 1, "{}", daemon.log());
    collector.takes.store(true, Ordering::Relaxed);
    let stats = daemon.wait("pushes are taken", |s| s.status.otlp.as_ref().is_some_and(|otlp| otlp.pushes > 0));
    assert_eq!(stats.status.otlp.unwrap().problem, None);
    daemon.wait_for_log(&format!("{collected} takes metrics again"));
    // What it gets then has the pushes that it did not take.
    assert!(pushed(&collector.next())[&format!("sluice_otlp_dropped_pushes_total{{collector={collected:?}}}")] >= 3.0);
    daemon.stop();
}
