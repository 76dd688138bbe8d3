//! What was decided about NFs lately: the last decisions, each with its time, bounded.
//!
//! Decisions can come thousands of times a second; what is told is summed up over [`EVERY_NS`] for each NF. So the log stays readable,
//! and writing it costs nothing that counts.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

/// Time that one event sums up, in nanoseconds.
pub const EVERY_NS: u64 = 100_000_000;
/// Most events that are kept.
pub const KEPT: usize = 4096;

/// What happened to an NF within a tenth of a second.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
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
}

/// One event.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Event {
    /// Number of the event, from 1; one that is missing has been pushed out.
    pub number: u64,
    /// The monotonic clock of the host, in nanoseconds.
    pub time_ns: u64,
    /// Name of the NF.
    pub nf: String,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
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
    /// Adds an event; the oldest makes room.
    pub fn add(&self, time_ns: u64, nf: &str, what: What) {
        let mut inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        inner.last += 1;
        let number = inner.last;
        if inner.events.len() == KEPT {
            inner.events.pop_front();
        }
        inner.events.push_back(Event { number, time_ns, nf: nf.into(), what });
    }

    /// The events with numbers above `number`, oldest first.
    pub fn after(&self, number: u64) -> Vec<Event> {
        let inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        inner.events.iter().filter(|e| e.number > number).cloned().collect()
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
        let all = log.after(0);
        assert_eq!(all.len(), KEPT);
        assert_eq!((all[0].number, all[KEPT - 1].number), (11, KEPT as u64 + 10));
        assert!(all.windows(2).all(|w| w[0].number + 1 == w[1].number));
        let last = log.after(KEPT as u64 + 9);
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].what, What::Throttled { times: KEPT as u64 + 9, now: false });
        let json = serde_json::to_value(&last[0]).unwrap();
        assert_eq!(json["event"], "throttled");
        assert_eq!(serde_json::from_value::<Event>(json).unwrap(), last[0]);
    }
}
