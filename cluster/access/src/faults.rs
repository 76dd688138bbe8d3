//! The faults that there are now.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::{info, warn};

use crate::fault::{Asked, Fault, object, right};

/// What lasts is said again after this time.
const AGAIN: Duration = Duration::from_secs(600);
/// A fault that nothing has met for this long is forgotten: neither a request nor a review.
const FORGET: Duration = Duration::from_secs(180);
/// A right that no request has asked for in this time is reviewed. What is read or written again
/// and again is asked for each minute at least; events, evictions and deletions may not be.
pub const REVIEWED: Duration = Duration::from_secs(60);
/// A right that no request was refused for in this time is needed no more, and not reviewed: its
/// namespace is gone, say.
const NEEDED: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct Times {
    said: Instant,
    met: Instant,
    /// When a request met it last, and not a review.
    asked: Instant,
    /// The object of that request, if it named one: a role may have the right for that one alone.
    object: Option<String>,
}

impl Times {
    /// Notes that it lasts. Returns whether that is to be said.
    fn last(&mut self, now: Instant) -> bool {
        self.met = now;
        let is_due = now.saturating_duration_since(self.said) >= AGAIN;
        if is_due {
            self.said = now;
        }
        is_due
    }
}

#[derive(Debug)]
struct Shared {
    program: &'static str,
    known: Mutex<BTreeMap<Fault, Times>>,
    out: UnboundedSender<String>,
}

/// The faults that there are now, shared by the client that notes them and those that show them.
#[derive(Debug, Clone)]
pub struct Faults(Arc<Shared>);

impl Faults {
    /// No faults, and what is said of them: each when it begins, and at a bounded rate while it
    /// lasts. The log has the same.
    pub fn new(program: &'static str) -> (Self, UnboundedReceiver<String>) {
        let (out, said) = unbounded_channel();
        (Self(Arc::new(Shared { program, known: Mutex::default(), out })), said)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Fault, Times>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wrong now, and what to do: one line each, the gravest first.
    pub fn list(&self, now: Instant) -> Vec<String> {
        let mut known = self.known();
        known.retain(|_, times| now.saturating_duration_since(times.met) < FORGET);
        known.keys().map(|fault| fault.message(self.0.program)).collect()
    }

    /// The same in one line; none if nothing is wrong.
    pub fn summary(&self, now: Instant) -> Option<String> {
        let all = self.list(now);
        let more = if all.len() > 1 { format!("; and {} more, which its log names", all.len() - 1) } else { String::new() };
        Some(format!("{}{more}", all.first()?))
    }

    /// Notes that a request has met a fault, and the object that it named.
    pub(crate) fn meet(&self, fault: Fault, object: Option<&str>, now: Instant) {
        let (message, object) = (fault.message(self.0.program), object.map(str::to_owned));
        let is_due = match self.known().entry(fault) {
            Entry::Vacant(free) => {
                free.insert(Times { said: now, met: now, asked: now, object });
                true
            }
            Entry::Occupied(mut known) => {
                let times = known.get_mut();
                (times.asked, times.object) = (now, object);
                times.last(now)
            }
        };
        if is_due {
            self.say(message);
        }
    }

    fn say(&self, message: String) {
        warn!("{message}; it is tried again, and everything else goes on");
        // Nobody may listen any more.
        let _ = self.0.out.send(message);
    }

    /// The rights that were missing, and that no request has asked for of late, with the object
    /// that the last one named.
    pub(crate) fn unasked(&self, now: Instant) -> Vec<(Asked, Option<String>)> {
        let since = |then: Instant| now.saturating_duration_since(then);
        let of = |(fault, times): (&Fault, &Times)| match fault {
            Fault::Right(asked, _) if since(times.met) >= REVIEWED && since(times.asked) < NEEDED => {
                Some((asked.clone(), times.object.clone()))
            }
            _ => None,
        };
        self.known().iter().filter_map(of).collect()
    }

    /// Notes whether the API server says that the program has a right that was missing.
    pub(crate) fn reviewed(&self, asked: &Asked, is_given: bool, now: Instant) {
        if is_given {
            return self.answered(Some(asked), 200, "", now);
        }
        let mut due = Vec::new();
        for (fault, times) in self.known().iter_mut() {
            if matches!(fault, Fault::Right(of, _) if of == asked) && times.last(now) {
                due.push(fault.message(self.0.program));
            }
        }
        due.into_iter().for_each(|message| self.say(message));
    }

    /// Notes an answer: its status, and its message where that is a refusal.
    pub(crate) fn answered(&self, asked: Option<&Asked>, code: u16, message: &str, now: Instant) {
        let missing = asked.filter(|_| code == 403).and_then(|asked| Some((asked, right(message, self.0.program)?)));
        let is_over = |fault: &Fault| match fault {
            Fault::Certificate(_) => true,
            Fault::Unknown => code != 401 && code < 500,
            Fault::Right(of, _) => Some(of) == asked && missing.is_none() && !matches!(code, 401 | 429 | 500..),
        };
        let mut over = Vec::new();
        self.known().retain(|fault, _| {
            let ends = is_over(fault);
            if ends {
                over.push(fault.message(self.0.program));
            }
            !ends
        });
        for message in over {
            info!("this is over: {message}");
        }
        if code == 401 {
            self.meet(Fault::Unknown, None, now);
        }
        if let Some((asked, why)) = missing {
            self.meet(Fault::Right(asked.clone(), why), object(message), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(verb: &'static str) -> Asked {
        Asked { verb, group: String::new(), resource: "pods".into(), namespace: Some("acme".into()) }
    }

    fn cannot(verb: &str) -> String {
        format!("pods is forbidden: User \"op\" cannot {verb} resource \"pods\" in API group \"\" in the namespace \"acme\"")
    }

    #[test]
    fn a_fault_is_said_once_and_ends_with_the_request_that_met_it() {
        let (faults, mut said) = Faults::new("sluice-operator");
        let (start, patch) = (Instant::now(), asked("patch"));
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for second in 0..10 {
            faults.answered(Some(&patch), 403, &cannot("patch"), at(second));
        }
        assert!(said.try_recv().unwrap().starts_with("op may not patch pods in acme"));
        assert!(said.try_recv().is_err(), "once");
        // Other requests, and answers that say nothing of rights, do not end it.
        faults.answered(Some(&asked("get")), 200, "", at(10));
        for code in [429, 500, 401] {
            faults.answered(Some(&patch), code, "", at(10));
        }
        let all = faults.list(at(11));
        assert!(all[0].contains("does not know sluice-operator") && all[1].starts_with("op may not patch"), "{all:?}");
        assert!(faults.summary(at(11)).unwrap().ends_with("; and 1 more, which its log names"));
        faults.answered(Some(&asked("get")), 200, "", at(12));
        assert_eq!(faults.list(at(12)).len(), 1, "it is known again");
        faults.answered(Some(&patch), 409, "", at(13));
        assert_eq!(faults.summary(at(13)), None);
    }

    #[test]
    fn a_right_that_is_seldom_asked_for_is_missing_until_it_is_given() {
        let (faults, mut said) = Faults::new("sluice-operator");
        let (start, create) = (Instant::now(), asked("create"));
        let at = |minutes: u32| start + REVIEWED * minutes;
        faults.answered(Some(&create), 403, &cannot("create"), at(0));
        assert!(faults.unasked(at(0)).is_empty(), "it was asked for just now");
        let mut count = u32::from(said.try_recv().is_ok());
        for minute in 1..=20 {
            assert_eq!(faults.unasked(at(minute)), [(create.clone(), None::<String>)], "{minute}");
            faults.reviewed(&create, false, at(minute));
            // Of another right nothing is known.
            faults.reviewed(&asked("delete"), false, at(minute));
            assert_eq!(faults.list(at(minute)).len(), 1);
            count += u32::from(said.try_recv().is_ok());
        }
        assert_eq!(count, 3, "at once, and after ten and twenty minutes");
        faults.reviewed(&create, true, at(21));
        assert!(faults.list(at(21)).is_empty() && faults.unasked(at(99)).is_empty());
    }

    #[test]
    fn a_right_that_nothing_needs_any_more_is_forgotten() {
        let (faults, _said) = Faults::new("sluice-operator");
        let (start, create) = (Instant::now(), asked("create"));
        let at = |minutes: u32| start + REVIEWED * minutes;
        let reviewed = |minute: u32| {
            let due = faults.unasked(at(minute));
            due.iter().for_each(|(asked, _)| faults.reviewed(asked, false, at(minute)));
            // The probe looks, too.
            (due.len(), faults.list(at(minute)).len())
        };
        faults.answered(Some(&create), 403, &cannot("create"), at(0));
        assert!((1..30).all(|minute| reviewed(minute) == (1, 1)));
        // It is asked for once more.
        faults.answered(Some(&create), 403, &cannot("create"), at(30));
        assert!((31..90).all(|minute| reviewed(minute) == (1, 1)));
        assert_eq!([90, 91, 92].map(reviewed), [(0, 1), (0, 1), (0, 0)]);
    }

    #[test]
    fn a_right_for_one_object_is_asked_for_with_its_name() {
        let (faults, _said) = Faults::new("sluice-operator");
        let (start, update) = (Instant::now(), asked("update"));
        let cannot = |name: &str| cannot("update").replacen("pods", &format!("pods \"{name}\""), 1);
        for name in ["a", "b"] {
            faults.answered(Some(&update), 403, &cannot(name), start);
        }
        assert_eq!(faults.list(start).len(), 1, "it is one right");
        let later = start + REVIEWED;
        assert_eq!(faults.unasked(later), [(update.clone(), Some("b".to_owned()))]);
        faults.reviewed(&update, false, later);
        assert_eq!(faults.unasked(later + REVIEWED), [(update, Some("b".to_owned()))], "it is kept");
    }

    #[test]
    fn what_lasts_is_said_again_and_what_nothing_meets_is_forgotten() {
        let (faults, mut said) = Faults::new("sluice-node");
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut count = 0;
        for minute in 0..=20 {
            faults.answered(Some(&asked("list")), 403, &cannot("list"), at(minute * 60));
            count += u32::from(said.try_recv().is_ok());
        }
        assert_eq!(count, 3, "at once, and after ten and twenty minutes");
        assert_eq!(faults.list(at(20 * 60 + 179)).len(), 1);
        assert!(faults.list(at(20 * 60 + 180)).is_empty());
        // A policy that refuses an object is no missing right.
        faults.answered(Some(&asked("patch")), 403, "pods \"p\" is forbidden: exceeded quota", at(0));
        assert!(faults.list(at(0)).is_empty());
    }
}
