//! Metrics that are pushed to an OpenTelemetry collector: what is sent, and what becomes of it.
//!
//! `sluice-otel` has the thread and the messages. What that thread counts is in the daemon's
//! report, so in the metrics themselves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluice_otel::{Endpoint, PushError, Pusher, Resource, Taken};

use crate::control::Backend;
use crate::telemetry::otlp;
use sluice_api::config::Config;
use sluice_api::model::Otlp;
use sluice_api::parse;

/// What the thread that pushes has counted, which the supervisor reports.
#[derive(Debug)]
pub struct PushCounts {
    collector: String,
    pushes: AtomicU64,
    dropped: AtomicU64,
    rejected: AtomicU64,
    problem: Mutex<Option<String>>,
}

impl PushCounts {
    /// Those of a daemon that is to push metrics.
    pub(crate) fn of(config: &Config) -> Option<Arc<Self>> {
        let collector = config.telemetry.otlp.clone()?;
        let [pushes, dropped, rejected] = [0; 3].map(AtomicU64::new);
        Some(Arc::new(Self { collector, pushes, dropped, rejected, problem: Mutex::default() }))
    }

    /// The counts, and why the last push was not taken.
    pub(crate) fn report(&self) -> Otlp {
        // Relaxed: numbers for people.
        Otlp {
            collector: self.collector.clone(),
            pushes: self.pushes.load(Ordering::Relaxed),
            dropped_pushes: self.dropped.load(Ordering::Relaxed),
            rejected_points: self.rejected.load(Ordering::Relaxed),
            problem: self.problem().clone(),
        }
    }

    fn problem(&self) -> MutexGuard<'_, Option<String>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a push. The first of several that fail is logged, and the first that does not.
    fn count(&self, result: Result<Taken, PushError>) {
        let collector = &self.collector;
        match result {
            Ok(Taken { rejected, remark }) => {
                self.pushes.fetch_add(1, Ordering::Relaxed);
                let before = self.rejected.fetch_add(rejected, Ordering::Relaxed);
                if self.problem().take().is_some() {
                    info!("{collector} takes metrics again");
                }
                if rejected > 0 && before == 0 {
                    warn!("{collector} refuses {rejected} values of a push ({remark}); `sluice status` counts them from now on");
                }
            }
            Err(error) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                if self.problem().replace(error.to_string()).is_none() {
                    warn!("metrics cannot be pushed to {collector}: {error}; each push is dropped until it takes one");
                }
            }
        }
    }
}

/// What is needed to push metrics, of a configuration that names a collector.
#[derive(Debug)]
pub struct PushSettings {
    endpoint: Endpoint,
    resource: Resource,
    /// Before anything counts, in nanoseconds since 1970.
    start_ns: u64,
}

impl PushSettings {
    /// Those of a configuration that was checked, of a daemon that counts nothing yet.
    pub fn of(config: &Config) -> Option<Self> {
        let address = parse::http_address(config.telemetry.otlp.as_deref()?).ok()?;
        let version = env!("CARGO_PKG_VERSION");
        let agent = format!("sluiced/{version}");
        let every = Duration::from_millis(config.telemetry.interval_ms);
        let endpoint = Endpoint { host: address.host, port: address.port, path: address.path, agent, every };
        let host = host_name();
        let attributes = vec![
            ("service.name", "sluiced".into()),
            ("service.version", version.into()),
            // The same after a restart, and another one for a second daemon of the host.
            ("service.instance.id", format!("{host}:{}", config.manager.runtime_dir.display())),
            ("host.name", host),
        ];
        let resource = Resource { attributes, scope: ["sluiced".into(), version.into()] };
        Some(Self { endpoint, resource, start_ns: now_ns() })
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_string()
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Pushes while it is kept.
pub struct MetricsPusher {
    pusher: Pusher,
}

impl MetricsPusher {
    /// Ends the thread that pushes.
    pub fn stop(self) {
        drop(self.pusher);
    }
}

/// Starts to push, with the counts of the supervisor that is read.
///
/// # Errors
/// The system has no thread for it.
pub fn start(settings: PushSettings, counts: Arc<PushCounts>, backend: Arc<dyn Backend>) -> std::io::Result<MetricsPusher> {
    let PushSettings { endpoint, resource, start_ns } = settings;
    let message = move || match backend.stats() {
        // The clock may have been set back, and a collector refuses an end before its start.
        Ok(stats) => Some(otlp::message(&stats, start_ns, now_ns().max(start_ns)).encode(&resource)),
        Err(error) => {
            debug!("there are no metrics to push: {error}");
            None
        }
    };
    let pusher = Pusher::start(endpoint, message, move |result| counts.count(result))?;
    Ok(MetricsPusher { pusher })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn config(more: &str) -> Config {
        toml::from_str(&format!("[telemetry]\notlp = \"http://[::1]:4318/otlp\"\n{more}")).unwrap()
    }

    #[test]
    fn a_collector_gets_the_same_name_of_a_daemon_after_a_restart() {
        let of = |more: &str| PushSettings::of(&config(more)).unwrap();
        let settings = of("interval_ms = 2500");
        let Endpoint { host, port, path, every, .. } = &settings.endpoint;
        assert_eq!((host.as_str(), *port, path.as_str(), *every), ("::1", 4318, "/otlp", Duration::from_millis(2500)));
        assert_eq!(settings.resource.attributes, of("").resource.attributes);
        let other = of("[manager]\nruntime_dir = \"/run/other\"");
        assert_ne!(settings.resource.attributes, other.resource.attributes);
        assert!(PushSettings::of(&Config::default()).is_none() && PushCounts::of(&Config::default()).is_none());
    }

    #[test]
    fn pushes_are_counted_and_a_problem_lasts_until_one_is_taken() {
        let counts = PushCounts::of(&config("")).unwrap();
        counts.count(Ok(Taken::default()));
        counts.count(Err(PushError::Connect(io::ErrorKind::ConnectionRefused.into())));
        counts.count(Err(PushError::Late(Duration::from_secs(1))));
        let report = counts.report();
        assert_eq!((report.pushes, report.dropped_pushes, report.rejected_points), (1, 2, 0));
        assert_eq!(report.problem.as_deref(), Some("no answer within 1000 ms"));
        counts.count(Ok(Taken { rejected: 3, remark: "too old".into() }));
        let report = counts.report();
        assert_eq!((report.pushes, report.rejected_points, report.problem), (2, 3, None));
        assert_eq!(report.collector, "http://[::1]:4318/otlp");
    }
}
