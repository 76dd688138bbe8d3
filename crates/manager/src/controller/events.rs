//! The log of recent events: decisions about NFs, their deaths, changes of the configuration.
//!
//! Decisions can come thousands of times a second, so those of each NF are summed up over
//! [`EVERY_NS`]: the log stays readable and cheap to write. The last [`KEPT`] events of each kind
//! are kept, so that no kind evicts another.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::SystemTime;

use sluice_shm::clock::monotonic_ns;

use sluice_api::model::{Event, EventKind, PortState};

/// The time that one event sums up, in nanoseconds.
pub const EVERY_NS: u64 = 100_000_000;
pub const KEPT: usize = 1024;
/// Kinds of what an operator has done. The log has these too: it outlives the daemon.
const BY_OPERATOR: [EventKind; 5] = [EventKind::Apply, EventKind::Upgrade, EventKind::Move, EventKind::Add, EventKind::Remove];

/// What happened to an NF or port within [`EVERY_NS`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// Chains that pass the NF were refused packets at their entry.
    Throttled {
        /// How many times a throttle began.
        times: u64,
        /// Whether it still holds.
        now: bool,
    },
    /// The NF's share of its core was written anew.
    Share {
        /// The share before, 0 to 1.
        from: f64,
        /// The share in force, 0 to 1.
        to: f64,
        writes: u64,
    },
    Port(PortState),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    Nf(&'a str),
    /// Something else: its kind, such as `chain`, and its name.
    Other(&'a str, &'a str),
}

pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[derive(Debug, Default)]
pub struct EventLog {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    events: BTreeMap<EventKind, VecDeque<Event>>,
}

impl Inner {
    /// Adds an event in place of the oldest of its kind.
    fn push(&mut self, event: Event) {
        self.last += 1;
        let ring = self.events.entry(event.event).or_default();
        if ring.len() == KEPT {
            ring.pop_front();
        }
        ring.push_back(Event { number: self.last, unix_ms: unix_ms(), ..event });
    }
}

impl EventLog {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Adds an event about an NF or port of this name.
    pub fn add(&self, time_ns: u64, name: &str, what: What) {
        let mut event = Event { time_ns, nf: name.into(), ..Event::default() };
        self.inner().push(match what {
            What::Throttled { times, now } => Event { event: EventKind::Throttle, count: times, throttled: Some(now), ..event },
            What::Share { from, to, writes } => {
                Event { event: EventKind::Share, count: writes, from: Some(from), to: Some(to), ..event }
            }
            What::Port(state) => {
                let port = Some(std::mem::take(&mut event.nf));
                Event { event: EventKind::Port, count: 1, port, state: Some(state), ..event }
            }
        });
    }

    /// Adds an event of this moment, in words.
    pub fn note(&self, kind: EventKind, subject: Subject<'_>, text: impl Into<String>) {
        self.note_at(monotonic_ns(), kind, subject, text);
    }

    /// The same at a time of the monotonic clock, in nanoseconds.
    pub fn note_at(&self, time_ns: u64, kind: EventKind, subject: Subject<'_>, text: impl Into<String>) {
        let text = text.into();
        let (nf, subject) = match subject {
            Subject::Nf(name) => (name.to_string(), None),
            Subject::Other(kind, name) => (String::new(), Some(format!("{kind} {name}").trim_end().to_string())),
        };
        if BY_OPERATOR.contains(&kind) {
            info!("{}: {text}", subject.as_deref().unwrap_or(&nf));
        }
        self.inner().push(Event { time_ns, nf, subject, event: kind, count: 1, text: Some(text), ..Event::default() });
    }

    /// The events with numbers above this one, oldest first.
    pub fn since(&self, number: u64) -> Vec<Event> {
        let inner = self.inner();
        if inner.last <= number {
            return Vec::new();
        }
        let newer = inner.events.values().flat_map(|ring| ring.iter().rev().take_while(move |event| event.number > number));
        let mut newer: Vec<Event> = newer.cloned().collect();
        drop(inner);
        newer.sort_unstable_by_key(|event| event.number);
        newer
    }

    /// The number of the last event; 0 before the first.
    pub fn last(&self) -> u64 {
        self.inner().last
    }

    /// All events, oldest first.
    pub fn all(&self) -> Vec<Event> {
        let inner = self.inner();
        let mut all: Vec<Event> = inner.events.values().flatten().cloned().collect();
        drop(inner);
        all.sort_unstable_by_key(|event| event.number);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_kept_in_order() {
        let log = EventLog::default();
        for i in 0..KEPT as u64 + 10 {
            log.add(i, "ids.0", What::Throttled { times: i, now: false });
        }
        let all = log.all();
        assert_eq!(all.len(), KEPT);
        assert_eq!((all[0].number, all[KEPT - 1].number), (11, KEPT as u64 + 10));
        assert!(all.windows(2).all(|w| w[0].number + 1 == w[1].number));
        log.add(7, "nat.0", What::Share { from: 0.25, to: 0.5, writes: 3 });
        let last = log.all().pop().unwrap();
        assert!(last.unix_ms > 1_700_000_000_000);
        let want = Event {
            number: KEPT as u64 + 11,
            time_ns: 7,
            unix_ms: last.unix_ms,
            nf: "nat.0".into(),
            event: EventKind::Share,
            count: 3,
            throttled: None,
            from: Some(0.25),
            to: Some(0.5),
            ..Event::default()
        };
        assert_eq!(last, want);
        log.add(9, "wan", What::Port(PortState::Gone));
        let last = log.all().pop().unwrap();
        assert_eq!((last.nf.as_str(), last.port.as_deref(), last.state), ("", Some("wan"), Some(PortState::Gone)));
    }

    #[test]
    fn events_since_another_are_in_order_whatever_their_kinds() {
        let log = EventLog::default();
        assert_eq!((log.last(), log.since(0)), (0, Vec::new()));
        for i in 0..6 {
            log.note(if i % 2 == 0 { EventKind::Death } else { EventKind::Add }, Subject::Nf("ids.0"), "x");
        }
        let numbers = |since| log.since(since).iter().map(|event| event.number).collect::<Vec<_>>();
        assert_eq!((log.last(), numbers(0), numbers(3), numbers(6)), (6, vec![1, 2, 3, 4, 5, 6], vec![4, 5, 6], vec![]));
    }

    #[test]
    fn no_kind_pushes_out_another() {
        let log = EventLog::default();
        log.note(EventKind::Death, Subject::Nf("ids.0"), "killed");
        log.note(EventKind::Apply, Subject::Other("configuration", ""), "1 change");
        for i in 0..10 * KEPT as u64 {
            log.add(i, "ids.0", What::Share { from: 0.25, to: 0.5, writes: 1 });
        }
        let all = log.all();
        assert_eq!(all.len(), KEPT + 2);
        let told = |event: &Event| (event.number, event.nf.clone(), event.subject.clone(), event.text.clone());
        assert_eq!(told(&all[0]), (1, "ids.0".into(), None, Some("killed".into())));
        assert_eq!(told(&all[1]), (2, String::new(), Some("configuration".into()), Some("1 change".into())));
    }
}
