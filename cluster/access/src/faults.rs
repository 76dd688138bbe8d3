//! The faults that there are now.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::{info, warn};

use crate::fault::{Asked, Fault, right};

/// What lasts is said again after this time.
const AGAIN: Duration = Duration::from_secs(600);
/// A fault that nothing has met for this long is forgotten: neither a request nor a review.
const FORGET: Duration = Duration::from_secs(180);
/// A right that no request has asked for in this time is reviewed. What is read or written again
/// and again is asked for each minute at least; events, evictions and deletions may not be.
pub const REVIEWED: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Times {
    said: Instant,
    met: Instant,
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

    /// Notes that a request has met a fault.
    pub(crate) fn meet(&self, fault: Fault, now: Instant) {
        let message = fault.message(self.0.program);
        let is_due = match self.known().entry(fault) {
            Entry::Vacant(free) => {
                free.insert(Times { said: now, met: now });
                true
            }
            Entry::Occupied(mut known) => {
                let times = known.get_mut();
                times.met = now;
                let is_due = now.saturating_duration_since(times.said) >= AGAIN;
                if is_due {
                    times.said = now;
                }
                is_due
            }
        };
        if is_due {
            warn!("{message}; it is tried again, and everything else goes on");
            // Nobody may listen any more.
            let _ = self.0.out.send(message);
        }
    }

    /// The rights that were missing, and that no request has asked for of late.
    pub(crate) fn unasked(&self, now: Instant) -> Vec<Asked> {
        let known = self.known();
        let late = known.iter().filter(|(_, times)| now.saturating_duration_since(times.met) >= REVIEWED);
        late.filter_map(|(fault, _)| if let Fault::Right(asked, _) = fault { Some(asked.clone()) } else { None }).collect()
    }

    /// Notes whether the API server says that the program has a right that was missing.
    pub(crate) fn reviewed(&self, asked: &Asked, is_given: bool, now: Instant) {
        if is_given {
            return self.answered(Some(asked), 200, "", now);
        }
        let is_it = |fault: &&Fault| matches!(fault, Fault::Right(of, _) if of == asked);
        let lasting: Vec<Fault> = self.known().keys().filter(is_it).cloned().collect();
        lasting.into_iter().for_each(|fault| self.meet(fault, now));
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
            self.meet(Fault::Unknown, now);
        }
        if let Some((asked, message)) = missing {
            self.meet(Fault::Right(asked.clone(), message), now);
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
            assert_eq!(faults.unasked(at(minute)), [create.clone()], "{minute}");
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
