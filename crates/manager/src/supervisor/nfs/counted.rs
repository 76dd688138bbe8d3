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
use sluice_api::model::{NfCounts, SchedCounts};
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::wake::CAUSES;
use sluice_host::process::CpuClock;

/// Least time between two samples of a process's CPU time, in nanoseconds.
const CPU_EVERY_NS: u64 = 500_000_000;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) api: NfCounts,
    pub(crate) sched: SchedCounts,
    pub(crate) violations: u64,
    pub(crate) woken: [u64; CAUSES],
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
            self.api.add(&counters.api.read());
            self.sched.add(&counters.sched.read());
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

/// Measures the share of a core that a process uses, or all processes of a foreign program.
#[derive(Debug, Default)]
pub(crate) struct CpuMeter {
    clock: Option<CpuClock>,
    members: Option<Members>,
    /// Clocks of its processes, and what each has used so far.
    clocks: HashMap<Pid, (CpuClock, u64)>,
    /// What they have all used since the start, with those that have ended.
    used: u64,
    last: Option<(Instant, u64, u64)>,
    percent: f64,
    pps: f64,
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

    /// Packets per second that it returned in the same period.
    pub(crate) fn pps(&self) -> f64 {
        self.pps
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

    /// Takes a sample if it is time to, and returns whether it did. `returned`: the packets that it
    /// has returned so far.
    pub(crate) fn sample(&mut self, now: Instant, returned: impl FnOnce() -> u64) -> bool {
        if self.clock.is_none() && self.members.is_none() {
            return false;
        }
        if self.last.is_some_and(|(at, ..)| ((now - at).as_nanos() as u64) < CPU_EVERY_NS) {
            return false;
        }
        let Some(used) = self.used() else { return true };
        let returned = returned();
        if let Some((at, used_before, returned_before)) = self.last {
            let passed_ns = (now - at).as_nanos().max(1) as f64;
            self.percent = used.saturating_sub(used_before) as f64 * 100.0 / passed_ns;
            self.pps = returned.saturating_sub(returned_before) as f64 * 1e9 / passed_ns;
        }
        self.last = Some((now, used, returned));
        true
    }
}
