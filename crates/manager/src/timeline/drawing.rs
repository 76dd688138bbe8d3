//! Makes packets of a trace of observations and events.
//!
//! An object is a track with its instants: wakes, time slices, violations, events. Below it is a
//! track for each state and each curve. A core's own track has a slice for each time that an NF had
//! it. Tracks are described when they are first needed.

use std::collections::{HashMap, HashSet};

use rustix::time::{ClockId, clock_gettime};
use sluice_api::model::{Event, EventKind};

use super::perfetto::{self, ClockTimes, Note, TrackEvent, TrackHead};
use super::track::{AWAKE, DAEMON, Objects, Observation, Style, Track};

/// Names of the values of [`Track::MustStop`].
const STOP_REASONS: [&str; 5] = ["may go on", "violations", "stalled", "spent", "failed"];

/// A trace that is being written.
#[derive(Debug, Default)]
pub struct Drawing {
    described: HashSet<u64>,
    /// The last value of each track.
    last: HashMap<(u32, Track), u64>,
    /// What was counted when the recording began.
    base: HashMap<(u32, Track), u64>,
    /// The time of the last event, in nanoseconds.
    last_ns: u64,
}

/// The number of a track in the trace; 0 as the track is the object's own.
fn uuid(object: u32, code: u8) -> u64 {
    u64::from(object) << 8 | u64::from(code)
}

/// The label of what an event is about.
fn label(event: &Event) -> String {
    match (&event.port, &event.subject, event.nf.as_str()) {
        (Some(port), ..) => format!("port {port}"),
        (None, Some(subject), _) => subject.clone(),
        (None, None, "") => DAEMON.into(),
        (None, None, nf) => format!("nf {nf}"),
    }
}

/// Writes what a trace begins with.
pub fn begin(out: &mut Vec<u8>) {
    let now_ns = |clock| {
        let now = clock_gettime(clock);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    let (monotonic_ns, boot_ns, real_ns) = (now_ns(ClockId::Monotonic), now_ns(ClockId::Boottime), now_ns(ClockId::Realtime));
    perfetto::begin(out, &ClockTimes { monotonic_ns, boot_ns, real_ns });
}

impl Drawing {
    fn describe_object(&mut self, out: &mut Vec<u8>, objects: &Objects, object: u32) -> u64 {
        let own = uuid(object, 0);
        if self.described.insert(own) {
            perfetto::track(out, &TrackHead { uuid: own, parent: None, name: objects.label(object), is_counter: false });
        }
        own
    }

    /// Describes a track, and returns its number.
    fn describe(&mut self, out: &mut Vec<u8>, objects: &Objects, object: u32, track: Track) -> u64 {
        let own = self.describe_object(out, objects, object);
        let style = track.style();
        if track == Track::Runs || style == Style::Instant {
            return own;
        }
        let number = uuid(object, track.code());
        if self.described.insert(number) {
            let is_counter = matches!(style, Style::Gauge | Style::Count);
            perfetto::track(out, &TrackHead { uuid: number, parent: Some(own), name: &track.name(), is_counter });
        }
        number
    }

    /// Writes an observation.
    pub fn observe(&mut self, out: &mut Vec<u8>, objects: &Objects, observation: &Observation) {
        let Observation { at_ns, object, track, value } = *observation;
        self.last_ns = self.last_ns.max(at_ns);
        if track == Track::Begins {
            // Its counts begin anew. Its states have ended.
            self.last.retain(|(of, track), _| *of != object || !track.is_counted());
            self.base.retain(|(of, _), _| *of != object);
        }
        let before = self.last.insert((object, track), value);
        if before == Some(value) && track.style() != Style::Instant {
            return;
        }
        match track.style() {
            Style::State => self.change(out, objects, observation, before.unwrap_or(0)),
            Style::Gauge => {
                let number = self.describe(out, objects, object, track);
                perfetto::event(out, at_ns, number, &TrackEvent::Value(clamped(value)));
            }
            Style::Count => {
                let base = *self.base.entry((object, track)).or_insert(value);
                // Without a curve for what is never counted.
                if value != base || before.is_some() {
                    let number = self.describe(out, objects, object, track);
                    perfetto::event(out, at_ns, number, &TrackEvent::Value(clamped(value.saturating_sub(base))));
                }
            }
            Style::Instant => self.mark(out, objects, observation, before),
        }
    }

    /// Ends the slice of a state, and begins that of the next one.
    fn change(&mut self, out: &mut Vec<u8>, objects: &Objects, observation: &Observation, before: u64) {
        let Observation { at_ns, object, track, value } = *observation;
        if before == 0 && value == 0 {
            return;
        }
        let number = self.describe(out, objects, object, track);
        if before != 0 {
            perfetto::event(out, at_ns, number, &TrackEvent::End);
        }
        if value == 0 {
            return;
        }
        let name = match track {
            Track::Runs => {
                let label = objects.label(value as u32);
                label.strip_prefix("nf ").unwrap_or(label).to_string()
            }
            Track::Awake if value != AWAKE => "waits for something else".into(),
            track => track.name(),
        };
        perfetto::event(out, at_ns, number, &TrackEvent::Begin(&name));
    }

    /// Writes the instant of an increase. The first value of a count is none.
    fn mark(&mut self, out: &mut Vec<u8>, objects: &Objects, observation: &Observation, before: Option<u64>) {
        let Observation { at_ns, object, track, value } = *observation;
        let more = match (track, before) {
            (Track::Begins | Track::Missed, _) => value,
            (_, None) => 0,
            (Track::MustStop, Some(_)) => u64::from(value > 0),
            (_, Some(before)) => value.saturating_sub(before),
        };
        if more == 0 {
            return;
        }
        let own = self.describe_object(out, objects, object);
        let why = STOP_REASONS.get(value as usize).copied().unwrap_or("unknown");
        let notes = match track {
            Track::Begins => vec![],
            Track::MustStop => vec![("why", Note::Text(why))],
            Track::Missed => vec![("nanoseconds", Note::Number(more))],
            _ => vec![("times", Note::Number(more))],
        };
        perfetto::event(out, at_ns, own, &TrackEvent::Instant(&track.name(), &notes));
    }

    /// Writes an event of the log, unless a track shows it.
    pub fn event(&mut self, out: &mut Vec<u8>, objects: &mut Objects, event: &Event) {
        if matches!(event.event, EventKind::Throttle | EventKind::Share) {
            return;
        }
        let object = objects.number(&label(event));
        let own = self.describe_object(out, objects, object);
        let text = event.text.as_deref().or(event.state.map(|state| state.words())).unwrap_or("");
        self.last_ns = self.last_ns.max(event.time_ns);
        let notes = [("what", Note::Text(text)), ("number", Note::Number(event.number))];
        perfetto::event(out, event.time_ns, own, &TrackEvent::Instant(event.event.word(), &notes));
    }

    /// Ends the slices that have begun, at `at_ns` or with the last event.
    pub fn end(&mut self, out: &mut Vec<u8>, at_ns: u64) {
        let at_ns = at_ns.max(self.last_ns);
        let mut open: Vec<(u32, Track)> = self
            .last
            .iter()
            .filter(|((_, track), value)| track.style() == Style::State && **value != 0)
            .map(|(key, _)| *key)
            .collect();
        open.sort_unstable_by_key(|(object, track)| (*object, track.code()));
        for (object, track) in open {
            let number = if track == Track::Runs { uuid(object, 0) } else { uuid(object, track.code()) };
            perfetto::event(out, at_ns, number, &TrackEvent::End);
            self.last.insert((object, track), 0);
        }
    }
}

/// The largest value of a curve instead of larger ones: an NF may report any count.
fn clamped(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
