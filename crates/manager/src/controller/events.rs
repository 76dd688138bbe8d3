//! What was decided about NFs lately: the last decisions, each with its time, bounded.
//!
//! Decisions can come thousands of times a second; what is told is summed up over [`EVERY_NS`] for each NF. So the log stays readable,
//! and writing it costs nothing that counts.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::control::model::{Event, EventKind, PortState};

/// Time that one event sums up, in nanoseconds.
pub const EVERY_NS: u64 = 100_000_000;
/// Most events that are kept.
pub const KEPT: usize = 1024;

/// What happened to an NF within a tenth of a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// Chains that pass the NF were refused at their entry.
    Throttled {
        /// How many times they began to be.
        times: u64,
        /// Whether they still are.
        now: bool,
    },
    /// The NF's share of its core was written anew.
    Share {
        /// The share before, 0 to 1.
        from: f64,
        /// The share that holds now.
        to: f64,
        /// How many times it was written.
        writes: u64,
    },
    /// A port has another state.
    Port(PortState),
}

/// The last events.
#[derive(Debug, Default)]
pub struct EventLog {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    events: VecDeque<Event>,
}

impl EventLog {
    /// Adds an event about an NF or port of this name; the oldest makes room.
    pub fn add(&self, time_ns: u64, name: &str, what: What) {
        let mut inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        inner.last += 1;
        let number = inner.last;
        if inner.events.len() == KEPT {
            inner.events.pop_front();
        }
        let mut event = Event { number, time_ns, nf: name.into(), ..Event::default() };
        inner.events.push_back(match what {
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

    /// All that are kept, oldest first.
    pub fn all(&self) -> Vec<Event> {
        let inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        inner.events.iter().cloned().collect()
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
        let want = Event {
            number: KEPT as u64 + 11,
            time_ns: 7,
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
}
