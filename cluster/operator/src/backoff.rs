//! Pauses after failures, one for each object: what fails again and again is tried less and less
//! often, and holds nothing else up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::Error;

use crate::write::is_conflict;

/// First pause; each further failure doubles it.
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause where the API server does not answer: that passes for all objects at once.
const SHORT: Duration = Duration::from_secs(5);
/// Longest pause where it refuses this object.
const LONG: Duration = Duration::from_secs(60);

/// How a request has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The object has changed, come or gone meanwhile: the first time, it is tried again at once.
    Conflict,
    /// No answer, or the API server has too much to do, or does not know the operator just now.
    Away,
    /// The API server refuses it.
    Refused,
}

impl Failure {
    pub fn of(error: &Error) -> Self {
        match error {
            _ if is_conflict(error) => Self::Conflict,
            Error::Api(status) if status.code < 500 && !matches!(status.code, 401 | 429) => Self::Refused,
            _ => Self::Away,
        }
    }

    /// Whether what failed in this way may have been carried out, or may be yet.
    pub fn is_doubtful(error: &Error) -> bool {
        !matches!(error, Error::Api(status) if status.code < 500)
    }

    /// The pause after this failure, which `before` others have preceded.
    fn pause(self, before: u32) -> Duration {
        let (doubled, longest) = match self {
            Self::Conflict if before == 0 => return Duration::ZERO,
            Self::Conflict => (before - 1, SHORT),
            Self::Away => (before, SHORT),
            Self::Refused => (before, LONG),
        };
        (FIRST * (1 << doubled.min(10))).min(longest)
    }
}

#[derive(Debug)]
struct Pause {
    failures: u32,
    until: Instant,
}

/// The objects that have failed, each with its pause.
#[derive(Debug)]
pub struct Backoff<K>(BTreeMap<K, Pause>);

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Backoff<K> {
    /// Notes a failure.
    pub fn fail(&mut self, key: K, failure: Failure, now: Instant) {
        let pause = self.0.entry(key).or_insert(Pause { failures: 0, until: now });
        pause.until = now + failure.pause(pause.failures);
        pause.failures += 1;
    }

    /// Ends a pause: the object was written, or is another one now.
    pub fn end(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// Whether an object may be tried.
    pub fn may(&self, key: &K, now: Instant) -> bool {
        self.0.get(key).is_none_or(|pause| pause.until <= now)
    }

    /// When the next pause is over.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.0.values().map(|pause| pause.until).filter(|until| *until > now).min()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_for_each_object_alone() {
        let (mut pauses, now) = (Backoff::default(), Instant::now());
        let mut lasts = |failure: Failure, times: usize| -> Vec<u64> {
            let of = |pauses: &mut Backoff<&str>| {
                pauses.fail("a", failure, now);
                pauses.0["a"].until.duration_since(now).as_millis() as u64
            };
            pauses.end(&"a");
            (0..times).map(|_| of(&mut pauses)).collect()
        };
        assert_eq!(lasts(Failure::Refused, 9), [500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
        assert_eq!(lasts(Failure::Away, 6), [500, 1000, 2000, 4000, 5000, 5000]);
        assert_eq!(lasts(Failure::Conflict, 4), [0, 500, 1000, 2000]);
        assert!(!pauses.may(&"a", now) && pauses.may(&"b", now));
        assert!(pauses.may(&"a", now + Duration::from_secs(2)) && pauses.next(now).is_some());
        pauses.end(&"a");
        assert!(pauses.may(&"a", now) && pauses.next(now).is_none());
        for _ in 0..100 {
            pauses.fail("a", Failure::Refused, now);
        }
        assert_eq!(pauses.next(now), Some(now + LONG));
    }
}
