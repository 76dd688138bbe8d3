//! Counters and measurements of an NF over all its processes; totals never go back.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::process::Pid;
use sluice_shm::histogram::Followed;
use sluice_shm::page::{Counter, MAX_PARTS, PartCounter};

use sluice_api::health::Death;
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::wake::CAUSES;
use sluice_host::process::CpuClock;

/// Least time between two samples of a process's CPU time, in nanoseconds.
const CPU_EVERY_NS: u64 = 500_000_000;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) posted: u64,
    pub(crate) returned: u64,
    pub(crate) dropped: u64,
    pub(crate) wakes: u64,
    pub(crate) violations: u64,
    pub(crate) woken: [u64; CAUSES],
    pub(crate) marked: u64,
    pub(crate) share_writes: u64,
    pub(crate) throttles: u64,
    pub(crate) turns: u64,
    pub(crate) spoken: [u64; SPOKEN.len()],
}

/// Counters that a process writes in its page itself.
const SPOKEN: [Counter; 2] = [Counter::Sleeps, Counter::HandOvers];

/// The maximum of each of these. A process may write anything; its counters never go back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spoken([u64; SPOKEN.len()]);

impl Spoken {
    /// Includes the present values in its page.
    pub(crate) fn hear(mut self, handle: &NfHandle) -> Self {
        for (most, counter) in self.0.iter_mut().zip(SPOKEN) {
            // Relaxed: a statistic.
            *most = (*most).max(handle.region.page.counter(counter).load(Ordering::Relaxed));
        }
        self
    }
}

impl Totals {
    /// Adds the counts of a handle, and those that its process wrote itself.
    pub(crate) fn add(&mut self, handle: &NfHandle, spoken: Spoken) {
        for counters in &handle.counters {
            self.posted += counters.posted.get();
            self.returned += counters.returned.get();
            self.dropped += counters.dropped.get();
            self.wakes += counters.wakes.get();
            self.marked += counters.marked.get();
            self.woken.iter_mut().zip(&counters.woken).for_each(|(sum, woken)| *sum += woken.get());
        }
        self.violations += handle.violations.load(Ordering::Relaxed);
        self.share_writes += handle.load.writes.load(Ordering::Relaxed);
        self.turns += handle.load.slices.load(Ordering::Relaxed);
        self.throttles += handle.gate.throttles.load(Ordering::Relaxed);
        self.spoken.iter_mut().zip(spoken.hear(handle).0).for_each(|(sum, n)| *sum = sum.saturating_add(n));
    }
}

/// Counters of the parts of a group: packets, drops, sampled nanoseconds, sampled packets.
pub(crate) type Parts = [[u64; PART_COUNTERS.len()]; MAX_PARTS];

const PART_COUNTERS: [PartCounter; 4] = [PartCounter::Packets, PartCounter::Drops, PartCounter::BusyNs, PartCounter::Sampled];

/// The same over all processes. A process may write anything; its counters never go back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpokenParts {
    before: Parts,
    now: Parts,
}

impl SpokenParts {
    /// Includes the present values in its page.
    fn hear(&mut self, handle: &NfHandle) {
        for (number, most) in self.now.iter_mut().enumerate() {
            for (most, counter) in most.iter_mut().zip(PART_COUNTERS) {
                // Relaxed: a statistic.
                let spoken = handle.region.page.part(number, counter).map_or(0, |word| word.load(Ordering::Relaxed));
                *most = (*most).max(spoken);
            }
        }
    }

    /// The counts of a process that has ended are those of former ones.
    fn count_off(&mut self) {
        let now = std::mem::take(&mut self.now);
        for (sum, n) in self.before.as_flattened_mut().iter_mut().zip(now.as_flattened()) {
            *sum = sum.saturating_add(*n);
        }
    }

    /// All of them, with those of this process if there is one.
    pub(crate) fn all(&mut self, handle: Option<&NfHandle>) -> Parts {
        handle.into_iter().for_each(|handle| self.hear(handle));
        let mut all = self.before;
        for (sum, n) in all.as_flattened_mut().iter_mut().zip(self.now.as_flattened()) {
            *sum = sum.saturating_add(*n);
        }
        all
    }
}

/// The counters and measurements of an NF over all its lives.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Counters of its former processes, so that totals never go back.
    pub(crate) before: Totals,
    /// Counters that its process wrote itself.
    pub(crate) spoken: Cell<Spoken>,
    /// Those of the parts of a group.
    pub(crate) parts: Option<Box<RefCell<SpokenParts>>>,
    /// The service times of its bursts, which its process counts in its page.
    pub(crate) service_times: RefCell<Followed>,
    pub(crate) cpu: CpuMeter,
    /// When its process was started, on the monotonic clock, and how long its admission took.
    pub(crate) spawned_ns: Option<u64>,
    pub(crate) welcomed_ns: Option<u64>,
    /// How long the frames of its last process took to come back.
    pub(crate) reclaim_ns: Option<u64>,
    pub(crate) last_death: Option<Death>,
}

impl Counted {
    /// Keeps the counts of a process that has ended.
    pub(crate) fn count_off(&mut self, handle: &NfHandle) {
        self.before.add(handle, self.spoken.take());
        self.service_times.get_mut().follow(handle.region.page.service_time());
        if let Some(parts) = self.parts.as_mut().map(|parts| parts.get_mut()) {
            parts.hear(handle);
            parts.count_off();
        }
    }

    pub(crate) fn welcomed(&mut self, now_ns: u64) {
        self.welcomed_ns = self.spawned_ns.map(|at| now_ns.saturating_sub(at));
    }
}

struct Members(Box<dyn Fn() -> Vec<Pid> + Send>);

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Members")
    }
}

/// Counters of a process: the packets that it has returned, and its sampled bursts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Handled {
    packets: u64,
    busy_ns: u64,
    sampled: u64,
}

impl Handled {
    pub(crate) fn of(handle: &NfHandle) -> Self {
        // Relaxed: a statistic.
        let word = |counter| handle.region.page.counter(counter).load(Ordering::Relaxed);
        Self { packets: handle.posted_returned().1, busy_ns: word(Counter::BusyNs), sampled: word(Counter::Sampled) }
    }
}

/// What a process did in a period.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Work {
    /// Packets per second.
    pub(crate) pps: f64,
    /// Mean time of a packet in the handler; 0 if none was sampled.
    pub(crate) packet_ns: f64,
}

impl Work {
    fn between(before: Handled, now: Handled, passed_ns: f64) -> Self {
        let more = |of: fn(&Handled) -> u64| of(&now).saturating_sub(of(&before)) as f64;
        let sampled = more(|h| h.sampled);
        let packet_ns = if sampled > 0.0 { more(|h| h.busy_ns) / sampled } else { 0.0 };
        Self { pps: more(|h| h.packets) * 1e9 / passed_ns, packet_ns }
    }
}

/// Measures the share of a core that a process uses, or all processes of a foreign program.
#[derive(Debug, Default)]
pub(crate) struct CpuMeter {
    clock: Option<CpuClock>,
    members: Option<Members>,
    /// Clocks of its processes, and what each has used so far.
    clocks: HashMap<Pid, (CpuClock, u64)>,
    /// What they have all used since the start, with those that have ended.
    used: u64,
    last: Option<(Instant, u64, Handled)>,
    percent: f64,
    work: Work,
}

impl CpuMeter {
    pub(crate) fn start(&mut self, pid: Pid) {
        *self = Self { clock: CpuClock::of(pid).ok(), ..Self::default() };
    }

    /// Starts over for a new program of several processes.
    #[cfg(feature = "foreign")]
    pub(crate) fn start_of(&mut self, members: impl Fn() -> Vec<Pid> + Send + 'static) {
        *self = Self { members: Some(Members(Box::new(members))), ..Self::default() };
    }

    /// Share of a core over the last period, 0 to 100.
    pub(crate) fn percent(&self) -> f64 {
        self.percent
    }

    /// What it did in the same period.
    pub(crate) fn work(&self) -> Work {
        self.work
    }

    /// CPU time at the last sample, in nanoseconds.
    pub(crate) fn last_ns(&self) -> Option<u64> {
        self.last.map(|(_, used, _)| used)
    }

    /// Reads the clocks of all present processes.
    fn used(&mut self) -> Option<u64> {
        let Some(Members(members)) = &self.members else { return self.clock?.read_ns().ok() };
        let members = members();
        self.clocks.retain(|pid, _| members.contains(pid));
        for pid in members {
            if let Entry::Vacant(new) = self.clocks.entry(pid)
                && let Ok(clock) = CpuClock::of(pid)
            {
                new.insert((clock, 0));
            }
        }
        for (clock, before) in self.clocks.values_mut() {
            if let Ok(now) = clock.read_ns() {
                self.used += now.saturating_sub(*before);
                *before = now;
            }
        }
        Some(self.used)
    }

    /// Takes a sample if it is time to, and returns whether it did.
    pub(crate) fn sample(&mut self, now: Instant, handled: impl FnOnce() -> Handled) -> bool {
        if self.clock.is_none() && self.members.is_none() {
            return false;
        }
        if self.last.is_some_and(|(at, ..)| ((now - at).as_nanos() as u64) < CPU_EVERY_NS) {
            return false;
        }
        let Some(used) = self.used() else { return true };
        let handled = handled();
        if let Some((at, before, handled_before)) = self.last {
            let passed_ns = (now - at).as_nanos().max(1) as f64;
            self.percent = used.saturating_sub(before) as f64 * 100.0 / passed_ns;
            self.work = Work::between(handled_before, handled, passed_ns);
        }
        self.last = Some((now, used, handled));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_what_counters_gained_in_the_period() {
        let before = Handled { packets: 1_000, busy_ns: 7_000, sampled: 100 };
        let now = Handled { packets: 501_000, busy_ns: 19_000, sampled: 340 };
        assert_eq!(Work::between(before, now, 5e8), Work { pps: 1e6, packet_ns: 50.0 });
        // Nothing was sampled, or the process wrote less than before.
        assert_eq!(Work::between(now, now, 5e8), Work::default());
        assert_eq!(Work::between(now, before, 5e8), Work::default());
    }
}
