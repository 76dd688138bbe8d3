//! Measures how fast a controller switches on this host.
//!
//! # Approach
//! Two [spinners](super::spinner) share a core, the caller has another one. Each writes to shared
//! memory when it runs, by the processor's time-stamp counter, which all cores share. For a switch
//! at time *t*:
//! - the *cost* is the time that the caller spends in it;
//! - the *new one runs* at the end of the gap that it reports;
//! - the *old one has stopped* at its last write.
//!
//! Then slices of falling length alternate. A slice is *right* if the spinner that should run is
//! the one that ran last just before its end. The *shortest slice* is the shortest of a ladder at
//! which, and at all longer ones, nine of ten slices are right. A slice in which neither ran does
//! not count: another process had the core, or the kernel had taken it from real-time classes for a
//! while.
//!
//! # Limits
//! Other load on the core is measured, too; hence medians. Gaps below a microsecond are invisible.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use sluice_shm::clock::{Clock, ticks};

use super::guard::Guard;
use super::spinner::Spinner;
use super::{Controller, Failed, Mechanism, Refused, Settings, Slot, make, realtime};
use crate::affinity::{self, Saved};
use crate::process::Proc;

/// First argument of the measuring helper, before mechanism, core, switches and slices.
pub(super) const ARGUMENT: &str = "__sluice-measure";
/// Settling time before a switch, in nanoseconds.
const SETTLE_NS: u64 = 60_000;
/// Time after which a switch without effect is missed, in nanoseconds.
const MISSED_NS: u64 = 20_000_000;
/// Slice lengths, in microseconds, from the longest on.
const LADDER_US: [u32; 14] = [1000, 500, 300, 200, 150, 100, 75, 50, 40, 30, 20, 15, 10, 5];
/// Maximum time for slices of one length.
const LONGEST: Duration = Duration::from_secs(10);
/// Required part of right slices.
const RIGHT: f64 = 0.9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    pub switches: usize,
    /// Slices of each length; 0 skips them.
    pub slices: usize,
}

impl Effort {
    /// For `auto`: some milliseconds a mechanism.
    pub(crate) const QUICK: Self = Self { switches: 101, slices: 0 };
}

/// Measurements of one mechanism.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Figures {
    /// Time that the caller spent in each switch, in nanoseconds.
    pub switch_cost_ns: Vec<f64>,
    /// Time from the start of a switch until the old one had stopped, in nanoseconds.
    pub old_stops_ns: Vec<f64>,
    /// Time until the new one ran, in nanoseconds.
    pub new_runs_ns: Vec<f64>,
    /// Switches without effect in 20 ms.
    pub missed: usize,
    /// Slice in microseconds, and the part of right slices.
    pub right: Vec<(u32, f64)>,
    /// The shortest slice that works, in microseconds.
    pub shortest_slice_us: Option<u32>,
}

impl Figures {
    /// A quantile of samples, 0 to 1; None without samples.
    pub fn quantile(samples: &[f64], q: f64) -> Option<f64> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(((sorted.len().saturating_sub(1)) as f64 * q).round() as usize).copied()
    }

    /// Number of timed switches, including missed ones.
    pub fn switches(&self) -> usize {
        self.new_runs_ns.len() + self.missed
    }

    /// The median time until the new one runs, in nanoseconds: the scheduler's switch latency.
    pub fn latency_ns(&self) -> Option<f64> {
        Self::quantile(&self.new_runs_ns, 0.5)
    }
}

/// The shortest slice that works, of (length, part of right slices) from the longest on.
fn shortest(right: &[(u32, f64)]) -> Option<u32> {
    right.iter().take_while(|(_, right)| *right >= RIGHT).last().map(|(slice, _)| *slice)
}

/// The caller's thread on its measuring core.
struct Observer {
    former: Saved,
    _raised: Option<realtime::Raised>,
}

impl Observer {
    /// Moves to a core other than the spinners'.
    fn away_from(core: usize, settings: &Settings) -> Result<Self, Refused> {
        let system = |source: affinity::AffinityError| Refused::System {
            doing: "move to",
            what: format!("another core than {core}"),
            source: std::io::Error::other(source),
        };
        let former = Saved::of_this_thread().map_err(system)?;
        let other = former.cores().into_iter().find(|other| *other != core).ok_or_else(|| Refused::System {
            doing: "measure on",
            what: format!("core {core}"),
            source: std::io::Error::other("this process may use no other core, and cannot watch a core that others have"),
        })?;
        affinity::pin(other).map_err(system)?;
        // From here on the drop cleans up. A raised priority improves the figures, but is optional.
        Ok(Self { former, _raised: realtime::raise_self(settings, None).ok() })
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = self.former.restore();
    }
}

/// Measures a controller with two spinners on `core`. It has none of our targets afterwards.
///
/// # Errors
/// [`Refused`]: a spinner could not be started or added, or there is no other core.
pub fn measure(
    controller: &mut dyn Controller,
    settings: &Settings,
    program: &Path,
    core: usize,
    effort: Effort,
) -> Result<Figures, Refused> {
    // Started first: they inherit this thread's class and priority. A spinner that reads its gate
    // would not need the gate's signal.
    let looks = controller.mechanism() == Mechanism::Doorbell;
    let spinners = [Spinner::start(program, Some(core), 1, looks)?, Spinner::start(program, Some(core), 1, looks)?];
    let proc = settings.host().proc;
    let slots = add_both(controller, &spinners, &proc)?;
    let observer = Observer::away_from(core, settings);
    let result = observer.and_then(|_observer| {
        Bench { controller, spinners: &spinners, slots }.run(effort).map_err(|error| Refused::System {
            doing: "switch",
            what: "between two spinners".into(),
            source: std::io::Error::other(error),
        })
    });
    for slot in slots {
        // A spinner that stays parked is released by the guard's note.
        let _ = controller.remove(slot);
    }
    result
}

/// The measuring helper's answer, as JSON: the benchmark runs in another program, which starts this
/// one for each mechanism.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Answer {
    figures: Option<Figures>,
    refused: Option<String>,
    warnings: Vec<String>,
}

/// Main function of the measuring helper. Arguments: mechanism, core, switches, slices.
#[allow(clippy::print_stdout, reason = "the answer goes to the process that started it")]
pub(super) fn answer(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut text = || arguments.next().and_then(|text| text.into_string().ok()).unwrap_or_default();
    let (mechanism, core) = (text(), text());
    let effort = Effort { switches: text().parse().unwrap_or(Effort::QUICK.switches), slices: text().parse().unwrap_or(0) };
    let settings = Settings::new(&format!("sluice-{}-measure", std::process::id()));
    let program = Path::new("/proc/self/exe");
    let figures = || -> Result<Figures, String> {
        let mechanism: Mechanism = mechanism.parse().map_err(|error: super::UnknownMechanism| error.to_string())?;
        let core = core.parse().map_err(|_| format!("\"{core}\" is no core"))?;
        let guard = Guard::start(program).map_err(|error| error.to_string())?;
        let mut controller = make(mechanism, &settings, &guard).map_err(|error| error.to_string())?;
        measure(&mut *controller, &settings, program, core, effort).map_err(|error| error.to_string())
    };
    let (figures, refused) = match figures() {
        Ok(figures) => (Some(figures), None),
        Err(why) => (None, Some(why)),
    };
    let warnings = if mechanism == Mechanism::Realtime.name() { realtime::warnings(&settings) } else { Vec::new() };
    match serde_json::to_string(&Answer { figures, refused, warnings }) {
        Ok(text) => println!("{text}"),
        Err(error) => crate::notice::write(&format!("{error}\n")),
    }
    ExitCode::SUCCESS
}

fn add_both(controller: &mut dyn Controller, spinners: &[Spinner; 2], proc: &Proc) -> Result<[Slot; 2], Refused> {
    let first = controller.add(&spinners[0].target(proc, "spinner-a")?)?;
    match spinners[1].target(proc, "spinner-b").and_then(|target| controller.add(&target)) {
        Ok(second) => Ok([first, second]),
        Err(error) => {
            let _ = controller.remove(first);
            Err(error)
        }
    }
}

struct Bench<'a> {
    controller: &'a mut dyn Controller,
    spinners: &'a [Spinner; 2],
    slots: [Slot; 2],
}

#[inline(always)]
fn spin_until(time: u64) {
    while ticks() < time {
        std::hint::spin_loop();
    }
}

impl Bench<'_> {
    fn run(&mut self, effort: Effort) -> Result<Figures, Failed> {
        let mut figures = Figures::default();
        let ns = Clock::new().ns_per_tick();
        let in_ticks = |time_ns: u64| (time_ns as f64 / ns) as u64;
        let (settle, missed) = (in_ticks(SETTLE_NS), in_ticks(MISSED_NS));
        self.controller.run(self.slots[0])?;
        self.await_beat(0, ticks(), in_ticks(2_000_000_000));
        let mut old = 0;
        for i in 0..effort.switches {
            // A little longer each time, to avoid synchrony with the kernel's ticks.
            spin_until(ticks() + settle + in_ticks(i as u64 % 17 * 1000));
            let new = 1 - old;
            let before = ticks();
            self.controller.switch(self.slots[old], self.slots[new])?;
            let after = ticks();
            if self.await_beat(new, before, missed) {
                let ran = self.spinners[new].gap(0).1;
                spin_until(ticks() + settle);
                let stopped = self.spinners[old].beat(0);
                // Otherwise it still runs.
                if ran > before && ticks().saturating_sub(stopped) > settle / 2 {
                    figures.switch_cost_ns.push((after - before) as f64 * ns);
                    figures.new_runs_ns.push((ran - before) as f64 * ns);
                    figures.old_stops_ns.push(stopped.saturating_sub(before) as f64 * ns);
                } else {
                    figures.missed += 1;
                }
            } else {
                figures.missed += 1;
            }
            old = new;
        }
        if effort.slices > 0 {
            for slice_us in LADDER_US {
                let right = self.slices(in_ticks(u64::from(slice_us) * 1000), effort.slices, &mut old)?;
                figures.right.push((slice_us, right));
            }
        }
        figures.shortest_slice_us = shortest(&figures.right);
        Ok(figures)
    }

    /// Waits until a spinner has run after `after`; false after `patience` ticks.
    fn await_beat(&self, which: usize, after: u64, patience: u64) -> bool {
        while self.spinners[which].beat(0) <= after {
            if ticks() > after + patience {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }

    /// Part of right slices of a length, of those in which one of the two ran.
    fn slices(&mut self, length: u64, slices: usize, old: &mut usize) -> Result<f64, Failed> {
        let (mut right, mut counted) = (0, 0);
        let begin = Instant::now();
        let mut end = ticks();
        for _ in 0..slices {
            let new = 1 - *old;
            let start = ticks();
            self.controller.switch(self.slots[*old], self.slots[new])?;
            // Keeps the rhythm, as a scheduler would, where possible.
            end = (end + length).max(ticks());
            spin_until(end);
            let (expected, other) = (self.spinners[new].beat(0), self.spinners[*old].beat(0));
            if expected.max(other) > start {
                counted += 1;
                right += usize::from(expected > other);
            }
            *old = new;
            if begin.elapsed() > LONGEST {
                break;
            }
        }
        Ok(right as f64 / counted.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_slice_is_the_last_before_the_first_that_fails() {
        assert_eq!(shortest(&[(100, 1.0), (50, 0.95), (20, 0.9), (10, 0.5), (5, 0.95)]), Some(20));
        assert_eq!(shortest(&[(100, 0.5), (50, 1.0)]), None);
        assert_eq!(shortest(&[]), None);
    }

    #[test]
    fn quantiles_are_samples() {
        assert_eq!(Figures::quantile(&[3.0, 1.0, 2.0], 0.5), Some(2.0));
        assert_eq!(Figures::quantile(&[3.0, 1.0, 2.0], 1.0), Some(3.0));
        assert_eq!(Figures::quantile(&[], 0.5), None);
        assert_eq!(Figures { new_runs_ns: vec![5.0], ..Figures::default() }.latency_ns(), Some(5.0));
    }
}
