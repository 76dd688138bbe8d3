//! Backpressure in the packet threads: finding bottlenecks, and closing gates.
//!
//! # Approach
//! A thread that puts packets on a ring compares its queue with the high watermark and raises an
//! [`Alerts`] bit: one comparison a burst. Each round, the Wakeup role reads the alerts, runs a
//! small state machine ([`sluice_policy::sched::backpressure`]) for each alerted NF, of hundreds
//! for some in turn, and writes its decision to the NF's handle, which gates read anyway. A gate
//! refuses a path while an NF of it is throttled. So exactly the chains through slow instances are
//! refused, without any notification. NFs that could only lengthen a bottleneck's queue are held:
//! their own page makes them sleep after the burst, and their core's page stops others from
//! starting them.
//!
//! # Limits
//! Effects on NFs upstream are computed over the paths in use; new paths count within 10 ms.
//!
//! Source: NFVnice (SIGCOMM 2017), section 3.3.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_policy::sched::backpressure::{Pressure, QueueState, QueueWatch, Watermarks, queueing_ns};
use sluice_shm::page::Control;

use crate::chain::{PathRegistry, Tables};
use crate::end::NfEnd;
use crate::handle::NfHandle;
use sluice_api::config::Sched;

/// Nanoseconds without returned packets after which an NF stands still: several rounds of a core.
const STILL_NS: u64 = 10_000_000;

/// Watched NFs that a round checks at most, in turn: hundreds would double the round.
const LOOKED_AT: usize = 64;

/// NFs with queues above the high watermark: a bit each, raised by packet threads, taken by Wakeup.
#[derive(Debug)]
pub struct Alerts {
    /// A bit for each word of `nfs` that is not empty.
    summary: Box<[AtomicU64]>,
    nfs: Box<[AtomicU64]>,
}

impl Alerts {
    /// For NFs with numbers below `nfs`.
    pub fn new(nfs: usize) -> Self {
        let words = nfs.div_ceil(64).max(1);
        let zeros = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect();
        Self { summary: zeros(words.div_ceil(64)), nfs: zeros(words) }
    }

    /// Reports that an NF's queue is long. Writes only if the bit is not set.
    #[inline(always)]
    pub fn raise(&self, nf: u16) {
        let (word, bit) = (nf as usize / 64, 1u64 << (nf % 64));
        if let Some(nfs) = self.nfs.get(word)
            && nfs.load(Ordering::Relaxed) & bit == 0
        {
            // Relaxed: it publishes nothing; the reader looks at the queue itself.
            nfs.fetch_or(bit, Ordering::Relaxed);
            self.summary[word / 64].fetch_or(1 << (word % 64), Ordering::Release);
        }
    }

    /// Takes all alerts.
    #[inline]
    pub fn take(&self, mut each: impl FnMut(u16)) {
        for (index, summary) in self.summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire: a bit that is raised after its word was taken raises its summary again.
            let mut words = summary.swap(0, Ordering::Acquire);
            while words != 0 {
                let word = index * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut bits = self.nfs[word].swap(0, Ordering::Relaxed);
                while bits != 0 {
                    each((word * 64) as u16 + bits.trailing_zeros() as u16);
                    bits &= bits - 1;
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Watched {
    watch: QueueWatch,
    /// It is among those that are watched.
    is_watched: bool,
    /// Packets that it had returned, and since when: the oldest one has waited at least that long.
    returned: u64,
    since_ns: u64,
}

/// The Wakeup role's part: finds bottlenecks, and holds the NFs that feed them.
#[derive(Debug)]
pub struct Throttling {
    alerts: Arc<Alerts>,
    high_percent: u32,
    low_percent: u32,
    threshold_ns: u64,
    states: Vec<Watched>,
    watched: Vec<u16>,
    /// Index of the watched NF that is checked next.
    next: usize,
    pressure: Pressure,
    /// Paths, NFs and generation of the tables that `pressure` was made from.
    made_of: (u32, usize, u32),
}

impl Throttling {
    /// A state in which no NF is throttled.
    pub fn new(alerts: Arc<Alerts>, sched: &Sched) -> Self {
        let mut throttling = Self {
            alerts,
            high_percent: 0,
            low_percent: 0,
            threshold_ns: 0,
            states: Vec::new(),
            watched: Vec::new(),
            next: 0,
            pressure: Pressure::new::<Vec<usize>>(0, &[]),
            made_of: (0, 0, 0),
        };
        throttling.tune(sched);
        throttling
    }

    /// Changes the limits of queues. NFs that are watched follow them when they are checked next.
    pub fn tune(&mut self, sched: &Sched) {
        (self.high_percent, self.low_percent) = (sched.high_watermark, sched.low_watermark);
        self.threshold_ns = u64::from(sched.queueing_us) * 1_000;
    }

    /// Checks the NFs that were alerted since the last round or are being watched: all of them, or
    /// of hundreds the next 64.
    #[inline]
    pub fn step(&mut self, nfs: &[Option<NfEnd>], now_ns: u64) {
        let Self { alerts, watched, states, .. } = self;
        alerts.take(|nf| {
            if states.len() <= nf as usize {
                states.resize(nf as usize + 1, Watched::default());
            }
            let state = &mut states[nf as usize];
            if !state.is_watched {
                (state.is_watched, state.since_ns) = (true, now_ns);
                watched.push(nf);
            }
        });
        if !self.watched.is_empty() {
            self.look(nfs, now_ns);
        }
    }

    /// Whether no NF is watched or alerted.
    pub fn is_quiet(&self) -> bool {
        self.watched.is_empty() && self.alerts.summary.iter().all(|summary| summary.load(Ordering::Relaxed) == 0)
    }

    fn look(&mut self, nfs: &[Option<NfEnd>], now_ns: u64) {
        let mut changed = false;
        // The last one takes the place of one that is watched no more. Where not all are checked,
        // it waits for the next circle: else new ones at the end could keep the others waiting.
        let step_on = usize::from(self.watched.len() > LOOKED_AT);
        for _ in 0..self.watched.len().min(LOOKED_AT) {
            let at = if self.next < self.watched.len() { self.next } else { 0 };
            let Some(&number) = self.watched.get(at) else { break };
            let stays = self.check(number, nfs.get(usize::from(number)).and_then(Option::as_ref), now_ns, &mut changed);
            if stays {
                self.next = at + 1;
            } else {
                self.states[usize::from(number)].is_watched = false;
                self.watched.swap_remove(at);
                self.next = at + step_on;
            }
        }
        if changed {
            self.apply(nfs);
        }
    }

    /// Whether a watched NF has to be checked again. Sets `changed` if it is throttled from now on,
    /// or no more.
    fn check(&mut self, number: u16, end: Option<&NfEnd>, now_ns: u64, changed: &mut bool) -> bool {
        let watched = &mut self.states[usize::from(number)];
        let Some(NfEnd { handle, .. }) = end else {
            *watched = Watched::default();
            return false;
        };
        let is_known = usize::from(number) < self.made_of.1;
        if handle.governed.load(Ordering::Relaxed) {
            // Its ring fills in others' slices, as intended: credits bound it.
            *watched = Watched::default();
            if handle.gate.throttled.swap(false, Ordering::Relaxed) && is_known {
                *changed |= self.pressure.set(usize::from(number), false);
            }
            return false;
        }
        if handle.gate.held.load(Ordering::Relaxed) {
            // A held NF with a long queue is no bottleneck. Its time starts when it is free.
            watched.since_ns = now_ns;
            return true;
        }
        let (posted, returned) = handle.posted_returned();
        let queue = u32::try_from(posted.saturating_sub(returned)).unwrap_or(u32::MAX);
        if watched.returned != returned {
            (watched.returned, watched.since_ns) = (returned, now_ns);
        }
        let age_ns = now_ns.saturating_sub(watched.since_ns);
        let watch = &mut watched.watch;
        let limits = Watermarks::new(handle.limit, self.high_percent, self.low_percent, self.threshold_ns);
        let service = handle.load.service_ns.get();
        let service = (service > 0.0).then(|| service.ceil() as u64);
        // An NF that waits for its core is no bottleneck; one that stands still is.
        let age_ns = if age_ns > STILL_NS { age_ns } else { 0 };
        if watch.step(&limits, queue, queueing_ns(queue, service, age_ns)) {
            let throttled = watch.state() == QueueState::Throttle;
            handle.gate.throttled.store(throttled, Ordering::Relaxed);
            if throttled {
                handle.gate.throttles.fetch_add(1, Ordering::Relaxed);
            }
            if is_known {
                *changed |= self.pressure.set(usize::from(number), throttled);
            }
        }
        watch.state() != QueueState::Clear
    }

    fn apply(&mut self, nfs: &[Option<NfEnd>]) {
        for number in self.pressure.changed_nfs() {
            if let Some(Some(end)) = nfs.get(*number) {
                hold(&end.handle, self.pressure.is_held(*number));
            }
        }
        self.pressure.forget_changes();
    }

    /// Reads new paths and NFs, if there are any.
    #[cold]
    pub(crate) fn refresh(&mut self, registry: &PathRegistry, tables: &Tables, nfs: &[Option<NfEnd>]) {
        let now = (registry.changes(), nfs.len(), tables.generation);
        if now == self.made_of {
            return;
        }
        self.made_of = now;
        let current = |path: &&crate::chain::Path| {
            tables
                .chains
                .get(path.chain.number as usize)
                .is_some_and(|c| c.as_ref().is_some_and(|c| c.version == path.chain.version))
        };
        let hops = |path: &crate::chain::Path| path.hops.iter().map(|hop| hop.nf as usize).collect::<Vec<_>>();
        let paths: Vec<Vec<usize>> = registry.iter().filter(current).map(hops).collect();
        self.pressure = Pressure::new(nfs.len(), &paths);
        for (number, end) in nfs.iter().enumerate() {
            let Some(end) = end else { continue };
            if end.handle.gate.throttled.load(Ordering::Relaxed) {
                self.pressure.set(number, true);
            }
        }
        for (number, end) in nfs.iter().enumerate() {
            let Some(end) = end else { continue };
            let held = self.pressure.is_held(number);
            if end.handle.gate.held.load(Ordering::Relaxed) != held {
                hold(&end.handle, held);
            }
        }
        self.pressure.forget_changes();
    }

    /// Reverts decisions that were due to an NF that is gone.
    pub fn forget(&mut self, number: u16, nfs: &[Option<NfEnd>]) {
        self.watched.retain(|n| *n != number);
        if let Some(state) = self.states.get_mut(number as usize) {
            *state = Watched::default();
        }
        if (number as usize) < self.made_of.1 && self.pressure.set(number as usize, false) {
            self.apply(nfs);
        }
    }
}

/// Holds an NF or releases it. A polling NF never sleeps: it is held by getting no slices if it is
/// scheduled from outside; else it has its core to itself.
fn hold(handle: &NfHandle, held: bool) {
    if handle.poll {
        handle.gate.held.store(held && handle.governed.load(Ordering::Relaxed), Ordering::Relaxed);
        return;
    }
    handle.gate.held.store(held, Ordering::Relaxed);
    // Its own page, for itself; the core's page, for NFs that would start it.
    handle.region.page.control(Control::Yield).store(u32::from(held), Ordering::Relaxed);
    handle.publish_hold();
}

#[cfg(test)]
#[path = "pressure_tests.rs"]
mod tests;
