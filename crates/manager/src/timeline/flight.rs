//! The flight recorder: the last seconds of the timeline in memory, written when something goes
//! wrong.
//!
//! A thread of its own samples and keeps observations in a ring of a fixed size. When one leaves
//! the ring its value stays, so that states and counts are known where the ring begins. The log of
//! events says when a file is to be written: an NF died or was stopped for cause, or an SLO was
//! broken. The file is written a moment after that (`AFTER`), with what followed, and some time
//! after the one before (`EVERY`): what happens meanwhile is in one file.
//!
//! Limits: the length in seconds depends on how much changes. While a file is written nothing is
//! sampled, and the timeline says so.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_api::config::Recorder;
use sluice_api::model::{Event, EventKind};
use sluice_shm::clock::monotonic_ns;

use super::drawing::{self, Drawing};
use super::kept;
use super::track::{Objects, Observation, Track};
use super::watcher::{Ask, Watcher};
use crate::controller::events::{EventLog, Subject, unix_ms};
use crate::threads::join_within;

/// Time that a file shows after its cause.
const AFTER: Duration = Duration::from_millis(250);
/// Least time between two files.
const EVERY: Duration = Duration::from_secs(10);
/// Time between two looks at the log of events.
const LOOK: Duration = Duration::from_millis(50);
/// Least number of objects above which those that are gone are forgotten.
const MOST_OBJECTS: usize = 1 << 14;
/// Bytes that are written at a time.
const PIECE: usize = 1 << 16;
/// Longest wait for a file that is due at the end: a disk may hang.
const WRITTEN: Duration = Duration::from_secs(10);

/// The last observations.
#[derive(Debug)]
pub(super) struct Backwards {
    observed: VecDeque<Observation>,
    most: usize,
    /// The values of those that have left.
    before: HashMap<(u32, Track), u64>,
    /// Since when it has all that was observed, in nanoseconds.
    since_ns: u64,
}

impl Backwards {
    /// A ring of this many bytes, which begins at `now_ns`.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(bytes: usize, now_ns: u64) -> io::Result<Self> {
        let most = (bytes / size_of::<Observation>()).max(1);
        let mut observed = VecDeque::new();
        observed.try_reserve_exact(most).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self { observed, most, before: HashMap::new(), since_ns: now_ns })
    }

    /// Adds an observation in place of the oldest one.
    pub fn push(&mut self, observation: Observation) {
        if self.observed.len() >= self.most
            && let Some(oldest) = self.observed.pop_front()
        {
            self.leave(oldest);
            self.since_ns = self.observed.front().map_or(observation.at_ns, |first| first.at_ns);
        }
        self.observed.push_back(observation);
    }

    fn leave(&mut self, oldest: Observation) {
        let Observation { object, track, value, .. } = oldest;
        match track {
            Track::Missed => {}
            // Its counts begin anew.
            Track::Begins => self.before.retain(|(of, track), _| *of != object || !track.is_counted()),
            track => drop(self.before.insert((object, track), value)),
        }
    }

    /// What it has, oldest first, after the values with which it begins.
    pub fn all(&self) -> impl Iterator<Item = Observation> {
        let at_ns = self.since_ns;
        let before = self.before.iter().map(move |(&(object, track), &value)| Observation { at_ns, object, track, value });
        before.chain(self.observed.iter().copied())
    }

    /// Since when it has all that was observed, in nanoseconds.
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// The objects of its observations.
    fn objects(&self) -> HashSet<u32> {
        let runs = self.all().filter(|observation| observation.track == Track::Runs).map(|observation| observation.value as u32);
        let own = self.observed.iter().map(|observation| observation.object);
        own.chain(runs).collect()
    }

    /// Forgets the values of objects of which it has no observations, unless they are known.
    fn forget(&mut self, objects: &Objects) {
        self.before.retain(|(object, _), _| !objects.label(*object).is_empty());
    }
}

/// Writes the trace of what a ring has, with the events of that time, piece by piece.
///
/// # Errors
/// The writer's.
pub(super) fn trace(ring: &Backwards, objects: &mut Objects, events: &[Event], to: &mut dyn Write) -> io::Result<()> {
    let mut out = Vec::with_capacity(2 * PIECE);
    drawing::begin(&mut out);
    let mut drawing = Drawing::default();
    for observation in ring.all() {
        drawing.observe(&mut out, objects, &observation);
        if out.len() >= PIECE {
            to.write_all(&out)?;
            out.clear();
        }
    }
    // The log of events is short.
    for event in events.iter().filter(|event| event.time_ns >= ring.since_ns()) {
        drawing.event(&mut out, objects, event);
    }
    drawing.end(&mut out, 0);
    to.write_all(&out)
}

/// What a file is to be written for, and when.
struct Due {
    at: Instant,
    /// The first cause, for the name; and how many there were.
    why: String,
    causes: u64,
}

struct Flight {
    watcher: Watcher,
    settings: Recorder,
    /// Name of the file that it writes, until it is whole.
    unfinished: String,
    period: Duration,
    ring: Backwards,
    due: Option<Due>,
    written: Option<Instant>,
    looked: Instant,
    /// The number of objects above which those that are gone are forgotten.
    most_objects: usize,
}

/// Whether an event is a cause for a file, and its words in the file's name.
fn cause(event: &Event) -> Option<String> {
    let of = event.subject.clone().unwrap_or_else(|| format!("nf {}", event.nf));
    matches!(event.event, EventKind::Death | EventKind::Promise).then(|| format!("{} {of}", event.event.word()))
}

impl Flight {
    /// Samples until the recorder is dropped. A file that is due is written before the end.
    fn run(mut self, stop: &Receiver<()>) {
        let mut observed = Vec::new();
        let mut next = Instant::now();
        loop {
            self.watcher.sample(&mut observed);
            observed.drain(..).for_each(|observation| self.ring.push(observation));
            if self.looked.elapsed() >= LOOK {
                self.look();
            }
            let now = Instant::now();
            next = (next + self.period).max(now);
            // Not without any rest, if a sample takes longer than its period.
            let rest = next.duration_since(now).max(self.period / 4);
            if stop.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        self.look();
        if self.due.is_some() {
            self.write();
        }
    }

    /// Looks for causes, and writes the file that is due.
    fn look(&mut self) {
        self.looked = Instant::now();
        for why in self.watcher.news().iter().filter_map(cause) {
            let now = Instant::now();
            let soonest = self.written.map_or(now, |written| written + EVERY);
            let due = self.due.get_or_insert_with(|| Due { at: (now + AFTER).max(soonest), why, causes: 0 });
            due.causes += 1;
        }
        if self.due.as_ref().is_some_and(|due| Instant::now() >= due.at) {
            self.write();
        }
        if self.watcher.objects().count() > self.most_objects {
            let used = self.ring.objects();
            self.watcher.forget(|object| used.contains(&object));
            self.ring.forget(self.watcher.objects());
            // Not again at once, if most are in use.
            self.most_objects = MOST_OBJECTS.max(2 * self.watcher.objects().count());
        }
    }

    fn write(&mut self) {
        let Some(Due { why, causes, .. }) = self.due.take() else { return };
        let events = self.watcher.log().since(0);
        let Recorder { folder, files, .. } = &self.settings;
        let (ring, objects) = (&self.ring, self.watcher.objects());
        let to = (folder.as_path(), self.unfinished.as_str());
        let written = kept::write(to, unix_ms(), &why, *files as usize, |file| trace(ring, objects, &events, file));
        match written {
            Ok(path) => {
                let lasts_ns = monotonic_ns().saturating_sub(self.ring.since_ns());
                let more = if causes > 1 { format!(" and {} more", causes - 1) } else { String::new() };
                let text = format!("{why}{more}: {:.1} s are in {}", lasts_ns as f64 / 1e9, path.display());
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                self.watcher.log().note(EventKind::Timeline, Subject::Other("timeline", &name), text);
            }
            Err(error) => warn!("cannot write a timeline into {} ({why}): {error}; see recorder.folder", folder.display()),
        }
        self.written = Some(Instant::now());
    }
}

/// The flight recorder; dropping it ends it, once it has written what is due or its time is over.
#[derive(Debug)]
pub struct FlightRecorder {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FlightRecorder {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, if there is no memory or no thread for it.
    pub fn start(settings: &Recorder, unfinished: String, ask: Ask, log: Arc<EventLog>) -> io::Result<Self> {
        let period = Duration::from_secs(1) / settings.rate_hz.max(1);
        let flight = Flight {
            watcher: Watcher::new(period, ask, log),
            period,
            ring: Backwards::new((settings.memory_mib as usize) << 20, monotonic_ns())?,
            settings: settings.clone(),
            unfinished,
            due: None,
            written: None,
            looked: Instant::now(),
            most_objects: MOST_OBJECTS,
        };
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("sluice-flight".into()).spawn(move || flight.run(&stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl FlightRecorder {
    /// Has it end, without a wait: its thread still writes what is due.
    pub fn end(&mut self) {
        self.stop = None;
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for FlightRecorder {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && !join_within(thread, WRITTEN)
        {
            warn!("the flight recorder has not written its file within {} s and is left; see recorder.folder", WRITTEN.as_secs());
        }
    }
}
