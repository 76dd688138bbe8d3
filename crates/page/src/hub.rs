//! The sampler, and the viewers that it serves.
//!
//! One thread samples for all viewers, and rests while there are none. A sample is made into one
//! text, and each viewer's stream is given a reference to it: ten viewers cost what one costs. A
//! new viewer is given the whole state, of the last sample if that is recent.
//!
//! Limits: [`VIEWERS`] viewers; [`AHEAD`] events wait for a viewer. One that takes none misses the
//! next, and is given the whole state when it takes events again. A sample is made twice a second
//! at most, and so seldom that samples take a fiftieth of the time, but every [`SLOWEST`], unless
//! they would take more than a tenth of it then.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Bytes, HttpBody};
use hyper::body::Frame;
use serde_json::Value;
use sluice_api::model::{Event, Stats};
use sluice_api::{ApiError, ErrorKind};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::PageSource;
use crate::delta::{Tick, delta, full};
use crate::view::{TableRows, of_event, tables};

/// Most viewers at a time.
pub const VIEWERS: usize = 16;
/// Events that wait for a viewer.
const AHEAD: usize = 2;
/// Least time between two samples.
const FASTEST: Duration = Duration::from_millis(500);
/// Most time between two samples, unless one takes more than a share of it.
const SLOWEST: Duration = Duration::from_secs(2);
/// Share of its time that the sampler takes: one of this many.
const SHARE: u32 = 50;
/// The same where that would be less often than [`SLOWEST`].
const MOST_SHARE: u32 = 10;
/// Most events in the whole state, and in a delta.
const EVENTS: usize = 200;

/// The sampler of a daemon's report, with its viewers.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
}

struct Shared {
    source: Arc<dyn PageSource>,
    viewers: Mutex<Viewers>,
    /// Rung when a viewer has come, and at the end.
    came: Condvar,
}

#[derive(Default)]
struct Viewers {
    all: Vec<Viewer>,
    is_closed: bool,
}

struct Viewer {
    to: Sender<Bytes>,
    /// Whether it was sent everything up to the last sample.
    is_current: bool,
}

/// There are [`VIEWERS`] viewers, or the daemon stops.
#[derive(Debug, PartialEq)]
pub(crate) struct NoPlace;

impl Hub {
    /// Starts the sampler. It ends with [`Hub::close`].
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start(source: Arc<dyn PageSource>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { source, viewers: Mutex::default(), came: Condvar::new() });
        let hub = Self { shared: shared.clone() };
        std::thread::Builder::new().name("sluice-page".into()).spawn(move || sample(&shared))?;
        Ok(hub)
    }

    /// Ends all streams and the sampler. New viewers are refused.
    pub fn close(&self) {
        self.shared.close();
    }

    pub(crate) fn source(&self) -> Arc<dyn PageSource> {
        self.shared.source.clone()
    }

    /// Adds a viewer.
    pub(crate) fn join(&self) -> Result<EventStream, NoPlace> {
        let mut viewers = self.shared.viewers();
        viewers.all.retain(|viewer| !viewer.to.is_closed());
        if viewers.is_closed || viewers.all.len() >= VIEWERS {
            return Err(NoPlace);
        }
        let (to, events) = channel(AHEAD);
        viewers.all.push(Viewer { to, is_current: false });
        self.shared.came.notify_one();
        Ok(EventStream(events))
    }
}

impl Shared {
    fn viewers(&self) -> MutexGuard<'_, Viewers> {
        self.viewers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let mut viewers = self.viewers();
        viewers.is_closed = true;
        viewers.all.clear();
        self.came.notify_one();
    }

    /// Waits until a sample is due: there are viewers, and it is time. Meanwhile new viewers are
    /// given the last sample. False at the end.
    fn wait(&self, last: &Sampler) -> bool {
        let mut viewers = self.viewers();
        loop {
            if viewers.is_closed {
                return false;
            }
            viewers.all.retain(|viewer| !viewer.to.is_closed());
            let now = Instant::now();
            let to_wait = last.due.saturating_duration_since(now);
            if viewers.all.is_empty() {
                viewers = self.came.wait(viewers).unwrap_or_else(PoisonError::into_inner);
            } else if to_wait.is_zero() {
                return true;
            } else {
                last.greet(&mut viewers);
                viewers = self.came.wait_timeout(viewers, to_wait).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// The sampler's thread.
fn sample(shared: &Shared) {
    let mut sampler = Sampler::default();
    while shared.wait(&sampler) {
        match sampler.sample(&*shared.source) {
            Ok(delta) => sampler.send(&mut shared.viewers(), &delta),
            Err(error) if error.kind == ErrorKind::ShuttingDown => {
                shared.close();
                return;
            }
            Err(error) => {
                debug!("the page has no sample: {error}");
                sampler.due = Instant::now() + SLOWEST;
            }
        }
    }
}

/// The time from sample to sample, if one takes this long.
fn every(cost: Duration) -> Duration {
    (cost * SHARE).clamp(FASTEST, SLOWEST.max(cost * MOST_SHARE))
}

/// The last sample.
struct Sampler {
    stats: Option<Stats>,
    tables: Vec<TableRows>,
    /// The latest events, oldest first.
    events: Vec<Value>,
    /// Number of the last of them.
    last_event: u64,
    tick: Tick,
    /// When the next is made.
    due: Instant,
}

impl Default for Sampler {
    fn default() -> Self {
        let tick = Tick { number: 0, every_ms: FASTEST.as_millis() as u64 };
        Self { stats: None, tables: Vec::new(), events: Vec::new(), last_event: 0, tick, due: Instant::now() }
    }
}

impl Sampler {
    /// Makes the next sample; returns the event with what differs.
    fn sample(&mut self, source: &dyn PageSource) -> Result<Bytes, ApiError> {
        let began = Instant::now();
        let stats = source.stats()?;
        // The log is long, and nobody reads it twice a second.
        let fresh = if self.tick.number.is_multiple_of(2) { self.fresh(source.events()?) } else { Vec::new() };
        let now = tables(&stats, self.stats.as_ref());
        let tick = Tick { number: self.tick.number + 1, ..self.tick };
        let differs = delta(tick, &self.tables, &now, &fresh);
        self.events.extend(fresh);
        let past = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..past);
        let every = every(began.elapsed());
        self.tick = Tick { every_ms: every.as_millis() as u64, ..tick };
        (self.stats, self.tables, self.due) = (Some(stats), now, began + every);
        Ok(differs)
    }

    /// The latest of the events that were not seen before.
    fn fresh(&mut self, mut events: Vec<Event>) -> Vec<Value> {
        events.retain(|event| event.number > self.last_event);
        events.sort_by_key(|event| event.number);
        self.last_event = events.last().map_or(self.last_event, |event| event.number);
        events[events.len().saturating_sub(EVENTS)..].iter().map(of_event).collect()
    }

    /// Sends the last sample to viewers: what differs to those that know the one before.
    fn send(&self, viewers: &mut Viewers, differs: &Bytes) {
        for viewer in viewers.all.iter_mut().filter(|viewer| viewer.is_current) {
            viewer.is_current = viewer.to.try_send(differs.clone()).is_ok();
        }
        self.greet(viewers);
    }

    /// Sends the whole state to viewers that lack it.
    fn greet(&self, viewers: &mut Viewers) {
        // One that does not take events has no place for it either.
        let takes = |viewer: &Viewer| !viewer.is_current && viewer.to.capacity() > 0;
        if self.stats.is_none() || !viewers.all.iter().any(takes) {
            return;
        }
        let whole = full(self.tick, &self.tables, &self.events);
        for viewer in viewers.all.iter_mut().filter(|viewer| takes(viewer)) {
            viewer.is_current = viewer.to.try_send(whole.clone()).is_ok();
        }
    }
}

/// The events of a viewer, as the body of an answer.
pub(crate) struct EventStream(Receiver<Bytes>);

impl HttpBody for EventStream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::delta::tests::parse;
    use crate::view::NFS;
    use sluice_api::exposition::TextFormat;
    use sluice_api::health::Health;
    use sluice_api::model::Nf;

    /// A daemon whose only NF has taken one more packet at each sample.
    #[derive(Default)]
    struct Played {
        samples: AtomicU64,
        stops: std::sync::atomic::AtomicBool,
    }

    impl PageSource for Played {
        fn stats(&self) -> Result<Stats, ApiError> {
            if self.stops.load(Ordering::Relaxed) {
                return Err(ApiError::shutting_down());
            }
            let n = self.samples.fetch_add(1, Ordering::Relaxed) + 1;
            let nf = Nf { name: "fw.0".into(), restarts: n, ..Nf::default() };
            Ok(Stats { time_ns: n * 500_000_000, nfs: vec![nf], ..Stats::default() })
        }

        fn events(&self) -> Result<Vec<Event>, ApiError> {
            let last = self.samples.load(Ordering::Relaxed);
            Ok((1..=last).map(|number| Event { number, nf: "fw.0".into(), ..Event::default() }).collect())
        }

        fn health(&self) -> Result<Health, ApiError> {
            Ok(Health::default())
        }

        fn metrics(&self, _: TextFormat) -> Result<String, ApiError> {
            Ok(String::new())
        }
    }

    fn restarts_of(data: &Value) -> &Value {
        let table = &data["tables"]["nf"];
        let at = table["columns"].as_array().unwrap().iter().position(|column| column == "restarts").unwrap();
        &table["rows"]["fw.0"][at]
    }

    #[test]
    fn samples_take_a_tenth_of_the_time_at_most() {
        for (cost_ms, every_ms) in [(0, 500), (10, 500), (20, 1_000), (100, 2_000), (300, 3_000), (5_000, 50_000)] {
            assert_eq!(every(Duration::from_millis(cost_ms)), Duration::from_millis(every_ms), "{cost_ms}");
        }
    }

    #[test]
    fn a_viewer_has_the_whole_state_first_and_then_what_differs() {
        let played = Arc::new(Played::default());
        let hub = Hub::start(played.clone()).unwrap();
        let mut first = hub.join().unwrap();
        let (kind, data) = parse(&first.0.blocking_recv().unwrap());
        assert_eq!((kind.as_str(), restarts_of(&data), &data["tick"]), ("full", &Value::from(1), &Value::from(1)));
        assert_eq!(data["events"][0]["number"], 1);
        let (kind, data) = parse(&first.0.blocking_recv().unwrap());
        assert_eq!((kind.as_str(), &data["tick"]), ("delta", &Value::from(2)));
        let restarts = NFS.iter().position(|column| *column == "restarts").unwrap().to_string();
        assert_eq!(data["tables"]["nf"]["change"]["fw.0"][restarts], 2);
        hub.close();
        // What was sent before is still there; then it ends.
        while first.0.blocking_recv().is_some() {}
        assert_eq!(hub.join().err(), Some(NoPlace));
    }

    #[test]
    fn all_viewers_are_given_the_same_sample() {
        let mut sampler = Sampler::default();
        let played = Played::default();
        let mut streams = Vec::new();
        let mut viewers = Viewers::default();
        for _ in 0..3 {
            let (to, events) = channel(AHEAD);
            viewers.all.push(Viewer { to, is_current: false });
            streams.push(events);
        }
        for _ in 0..2 {
            let differs = sampler.sample(&played).unwrap();
            sampler.send(&mut viewers, &differs);
        }
        assert_eq!(played.samples.load(Ordering::Relaxed), 2);
        let sent: Vec<[Bytes; 2]> =
            streams.iter_mut().map(|events| [events.try_recv().unwrap(), events.try_recv().unwrap()]).collect();
        assert_eq!(parse(&sent[0][0]).0, "full");
        assert_eq!(parse(&sent[0][1]).0, "delta");
        // The same bytes, and not copies of them.
        assert!(
            sent.iter().all(|[whole, differs]| whole.as_ptr() == sent[0][0].as_ptr() && differs.as_ptr() == sent[0][1].as_ptr())
        );
    }

    #[test]
    fn a_viewer_that_takes_nothing_is_given_the_whole_state_later() {
        let (mut sampler, played, mut viewers) = (Sampler::default(), Played::default(), Viewers::default());
        let (to, mut events) = channel(AHEAD);
        viewers.all.push(Viewer { to, is_current: false });
        let mut step = |viewers: &mut Viewers| {
            let differs = sampler.sample(&played).unwrap();
            sampler.send(viewers, &differs);
        };
        // More than wait for it.
        (0..AHEAD + 2).for_each(|_| step(&mut viewers));
        assert!(!viewers.all[0].is_current);
        let kinds: Vec<String> = std::iter::from_fn(|| events.try_recv().ok()).map(|event| parse(&event).0).collect();
        assert_eq!(kinds, ["full", "delta"]);
        step(&mut viewers);
        let (kind, data) = parse(&events.try_recv().unwrap());
        assert_eq!((kind.as_str(), restarts_of(&data)), ("full", &Value::from(AHEAD as u64 + 3)));
        assert!(viewers.all[0].is_current);
    }

    #[test]
    fn events_come_once_and_not_without_end() {
        let (mut sampler, played) = (Sampler::default(), Played::default());
        played.samples.store(1_000, Ordering::Relaxed);
        let (_, first) = parse(&sampler.sample(&played).unwrap());
        let numbers = |data: &Value| -> Vec<u64> {
            data["events"].as_array().into_iter().flatten().filter_map(|event| event["number"].as_u64()).collect()
        };
        assert_eq!(numbers(&first), (1_001 - EVENTS as u64 + 1..=1_001).collect::<Vec<_>>());
        let (_, second) = parse(&sampler.sample(&played).unwrap());
        assert_eq!(numbers(&second), [0; 0]);
        let (_, third) = parse(&sampler.sample(&played).unwrap());
        assert_eq!(numbers(&third), [1_002, 1_003]);
        assert_eq!(sampler.events.len(), EVENTS);
    }

    #[test]
    fn there_is_an_end_of_places_and_a_viewer_that_leaves_makes_one_free() {
        let hub = Hub::start(Arc::new(Played::default())).unwrap();
        let mut all: Vec<EventStream> = (0..VIEWERS).map(|_| hub.join().unwrap()).collect();
        assert_eq!(hub.join().err(), Some(NoPlace));
        all.pop();
        assert!(hub.join().is_ok());
        hub.close();
    }

    #[test]
    fn a_daemon_that_shuts_down_ends_the_streams() {
        let played = Arc::new(Played::default());
        played.stops.store(true, Ordering::Relaxed);
        let hub = Hub::start(played).unwrap();
        let mut stream = hub.join().unwrap();
        assert_eq!(stream.0.blocking_recv(), None);
        assert_eq!(hub.join().err(), Some(NoPlace));
    }
}
