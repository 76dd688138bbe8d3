//! Chooses this host's mechanism: tries each on two processes of ours, and takes the fastest.
//!
//! What a host allows depends on more than can be read (user, capabilities, limits, cgroup version,
//! delegation, container), so it is tried. Every result comes with its reason, in one sentence.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::guard::Guard;
use super::measure::{self, Effort, Figures};
use super::{Mechanism, Settings, make};

/// Part of the switches that may be missed.
///
/// With more, a mechanism would often stop and start NFs late, however fast its other switches are.
const MISSED: f64 = 0.1;

/// Order of preference without a measurement (one core): by the cost of a switch elsewhere.
const BY_REPUTE: [Mechanism; 6] =
    [Mechanism::Doorbell, Mechanism::Gate, Mechanism::Freeze, Mechanism::Signal, Mechanism::Freezer, Mechanism::Realtime];

#[derive(Debug, Clone, PartialEq)]
pub enum Probe {
    /// It works, with these figures.
    Works(Figures),
    /// It works, but could not be measured: why.
    Unmeasured(String),
    Refused(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    pub mechanism: Mechanism,
    pub outcome: Probe,
}

impl Tried {
    /// Its figures. None if it works too badly, or if there are none.
    fn figures(&self) -> Option<&Figures> {
        match &self.outcome {
            Probe::Works(figures) if figures.missed as f64 <= MISSED * figures.switches() as f64 => Some(figures),
            _ => None,
        }
    }

    /// Median time until the new process runs, in nanoseconds. None if it works too badly.
    pub fn latency_ns(&self) -> Option<f64> {
        self.figures()?.latency_ns()
    }
}

/// The choice and its reasons.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The best one; None if none works.
    pub mechanism: Option<Mechanism>,
    /// All candidates, in the given order.
    pub tried: Vec<Tried>,
}

impl Choice {
    /// The candidate with the lowest latency, or else the preferred unmeasured one.
    pub fn of(tried: Vec<Tried>) -> Self {
        let measured = tried.iter().filter_map(|t| Some((t.mechanism, t.latency_ns()?)));
        let best = measured.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(mechanism, _)| mechanism);
        let works =
            |mechanism: &Mechanism| tried.iter().any(|t| t.mechanism == *mechanism && matches!(t.outcome, Probe::Unmeasured(_)));
        let mechanism = best.or_else(|| BY_REPUTE.into_iter().find(works));
        Self { mechanism, tried }
    }

    /// The chosen mechanism's median time until the new process runs, in nanoseconds.
    pub fn latency_ns(&self) -> Option<f64> {
        self.chosen()?.latency_ns()
    }

    /// Its median time until the old process has stopped, in nanoseconds.
    pub fn stop_ns(&self) -> Option<f64> {
        Figures::quantile(&self.chosen()?.figures()?.old_stops_ns, 0.5)
    }

    fn chosen(&self) -> Option<&Tried> {
        self.tried.iter().find(|tried| Some(tried.mechanism) == self.mechanism)
    }

    /// One sentence for each candidate.
    pub fn reasons(&self) -> Vec<String> {
        self.tried.iter().map(|tried| Reason { tried, chosen: self }.to_string()).collect()
    }
}

struct Reason<'a> {
    tried: &'a Tried,
    chosen: &'a Choice,
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tried { mechanism, outcome } = self.tried;
        let is_chosen = self.chosen.mechanism == Some(*mechanism);
        let us = |ns: f64| format!("{:.1} µs", ns / 1000.0);
        match (outcome, self.tried.latency_ns(), self.chosen.latency_ns()) {
            (Probe::Works(_), Some(own), _) if is_chosen => {
                write!(f, "{mechanism}: chosen, because its switch takes effect after {} here, the fastest that works", us(own))
            }
            (Probe::Works(_), Some(own), Some(best)) => {
                write!(
                    f,
                    "{mechanism}: not chosen, because its switch takes effect after {} here, the chosen one's after {}",
                    us(own),
                    us(best)
                )
            }
            (Probe::Works(figures), ..) => {
                write!(f, "{mechanism}: refused, because {} of {} switches took no effect", figures.missed, figures.switches())
            }
            (Probe::Unmeasured(why), ..) if is_chosen => {
                write!(f, "{mechanism}: chosen for what it does elsewhere, because it works but could not be measured: {why}")
            }
            (Probe::Unmeasured(why), ..) => write!(f, "{mechanism}: not chosen, because it could not be measured: {why}"),
            (Probe::Refused(why), ..) => write!(f, "{mechanism}: refused, because {why}"),
        }
    }
}

/// Tries mechanisms on `core`, from another one, and chooses.
///
/// Takes some tens of milliseconds for each, in which two processes of ours keep the core busy.
/// They run `program` (`/proc/self/exe`, if it calls [`take_over`](super::helper::take_over)).
/// Nothing is left afterwards. For processes that do not cooperate, `wanted` is [`UNCOOPERATIVE`].
pub fn choose(settings: &Settings, guard: &Arc<Guard>, program: &Path, core: usize, wanted: &[Mechanism]) -> Choice {
    let settings = Settings { folder: format!("{}-try", settings.folder), ..settings.clone() };
    let one = |mechanism: &Mechanism| {
        let outcome = match make(*mechanism, &settings, guard) {
            Err(error) => Probe::Refused(error.to_string()),
            Ok(mut controller) => match measure::measure(&mut *controller, &settings, program, core, Effort::QUICK) {
                Ok(figures) => Probe::Works(figures),
                Err(error) if has_one_core(core) => Probe::Unmeasured(error.to_string()),
                Err(error) => Probe::Refused(error.to_string()),
            },
        };
        Tried { mechanism: *mechanism, outcome }
    };
    Choice::of(wanted.iter().map(one).collect())
}

fn has_one_core(core: usize) -> bool {
    crate::affinity::allowed().is_ok_and(|cores| cores.iter().all(|other| *other == core))
}

/// The mechanisms for processes that do not cooperate.
pub const UNCOOPERATIVE: [Mechanism; 4] = [Mechanism::Realtime, Mechanism::Freeze, Mechanism::Signal, Mechanism::Freezer];

#[cfg(test)]
mod tests {
    use super::*;

    fn works(mechanism: Mechanism, latency_ns: f64) -> Tried {
        let figures = Figures { new_runs_ns: vec![latency_ns], ..Figures::default() };
        Tried { mechanism, outcome: Probe::Works(figures) }
    }

    #[test]
    fn the_time_until_the_old_one_stops_is_that_of_the_chosen_one() {
        let stops = |mut tried: Tried, old_stops_ns: Vec<f64>| {
            if let Probe::Works(figures) = &mut tried.outcome {
                figures.old_stops_ns = old_stops_ns;
            }
            tried
        };
        let tried = vec![
            stops(works(Mechanism::Signal, 20_000.0), vec![1.0]),
            stops(works(Mechanism::Freeze, 13_000.0), vec![7_000.0, 9_000.0, 8_000.0]),
        ];
        assert_eq!(Choice::of(tried).stop_ns(), Some(8_000.0));
        let unmeasured = Tried { mechanism: Mechanism::Gate, outcome: Probe::Unmeasured("one core".into()) };
        let choice = Choice::of(vec![unmeasured]);
        assert_eq!((choice.mechanism, choice.stop_ns()), (Some(Mechanism::Gate), None));
    }

    #[test]
    fn the_fastest_is_chosen_and_each_has_its_reason() {
        let refused = Tried { mechanism: Mechanism::Realtime, outcome: Probe::Refused("it is not permitted: EPERM".into()) };
        let never = Figures { missed: 7, ..Figures::default() };
        let never = Tried { mechanism: Mechanism::Freezer, outcome: Probe::Works(never) };
        let choice = Choice::of(vec![works(Mechanism::Signal, 14_200.0), refused, works(Mechanism::Freeze, 13_000.0), never]);
        assert_eq!((choice.mechanism, choice.latency_ns()), (Some(Mechanism::Freeze), Some(13_000.0)));
        let want = [
            "signal: not chosen, because its switch takes effect after 14.2 µs here, the chosen one's after 13.0 µs",
            "realtime: refused, because it is not permitted: EPERM",
            "freeze: chosen, because its switch takes effect after 13.0 µs here, the fastest that works",
            "freezer: refused, because 7 of 7 switches took no effect",
        ];
        assert_eq!(choice.reasons(), want);
    }

    #[test]
    fn one_that_misses_many_switches_is_refused_however_quick_the_others_are() {
        let missing = |missed| {
            let figures = Figures { new_runs_ns: vec![9_000.0; 90], missed, ..Figures::default() };
            Tried { mechanism: Mechanism::Realtime, outcome: Probe::Works(figures) }
        };
        let of = |missed| Choice::of(vec![missing(missed), works(Mechanism::Signal, 14_200.0)]);
        assert_eq!(of(10).mechanism, Some(Mechanism::Realtime), "a tenth");
        let choice = of(11);
        assert_eq!((choice.mechanism, choice.latency_ns()), (Some(Mechanism::Signal), Some(14_200.0)));
        let want = [
            "realtime: refused, because 11 of 101 switches took no effect",
            "signal: chosen, because its switch takes effect after 14.2 µs here, the fastest that works",
        ];
        assert_eq!(choice.reasons(), want);
        // Alone it is refused as well.
        assert_eq!(Choice::of(vec![missing(11)]).mechanism, None);
    }

    #[test]
    fn on_one_core_the_one_of_the_best_repute_is_chosen() {
        let unmeasured = |mechanism| Tried { mechanism, outcome: Probe::Unmeasured("there is one core".into()) };
        let choice = Choice::of([Mechanism::Realtime, Mechanism::Signal, Mechanism::Freeze].map(unmeasured).to_vec());
        assert_eq!(choice.mechanism, Some(Mechanism::Freeze));
        assert!(choice.reasons()[2].contains("chosen for what it does elsewhere"));
        assert_eq!(Choice::of(vec![]).mechanism, None);
    }
}
