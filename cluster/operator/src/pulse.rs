//! Whether the loop is at work. It notes each of its turns, and each request that it has waited
//! for, so it is at work also where the API server is away.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The loop takes a turn at least this often.
pub const TURN: Duration = Duration::from_secs(5);
/// The loop is stuck when it has noted nothing for this long: far longer than a request may take,
/// or a round of the largest cluster that was measured.
const STUCK: Duration = Duration::from_secs(120);

/// The notes of the loop, shared by it and the probe.
#[derive(Debug, Clone)]
pub struct Pulse(Arc<Mutex<Instant>>);

impl Pulse {
    pub fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(now)))
    }

    fn last(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the loop goes on.
    pub fn note(&self, now: Instant) {
        *self.last() = now;
    }

    /// Whether it goes on at this time.
    pub fn is_working(&self, now: Instant) -> bool {
        now.saturating_duration_since(*self.last()) < STUCK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_notes_nothing_is_stuck() {
        let start = Instant::now();
        let pulse = Pulse::new(start);
        let probe = pulse.clone();
        assert!(probe.is_working(start) && !probe.is_working(start + STUCK));
        pulse.note(start + TURN);
        assert!(probe.is_working(start + STUCK) && !probe.is_working(start + TURN + STUCK));
    }
}
