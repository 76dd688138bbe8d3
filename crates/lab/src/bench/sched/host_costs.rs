//! What a wake and a switch of processes cost on this host.
//!
//! # Limits
//! A wake that interrupts no one is not measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};
use sluice_shm::clock::monotonic_ns;
use sluice_shm::doorbell;

use crate::bench::report::median;

/// Repetitions of a small operation.
pub const TIMES: usize = 1_000;
/// Number of measured wakes.
pub const WAKES: usize = 300;
/// Number of measured wakes on a busy core.
pub const PREEMPTIONS: usize = 100;
/// Time within which a woken thread sleeps again.
const ASLEEP: Duration = Duration::from_micros(300);
/// The same on a busy core: beyond the busy thread's slice, which the kernel lets it keep.
const ASLEEP_BUSY: Duration = Duration::from_millis(5);
/// Time within which the busy thread has the core again, in nanoseconds.
const BACK_NS: u64 = 100_000;
/// Time limit of a wake.
const PATIENCE: Duration = Duration::from_secs(5);

/// Costs in nanoseconds, as the simulator takes them.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
pub struct HostCosts {
    /// A switch of processes.
    pub switch_ns: f64,
    /// The time of the one that wakes.
    pub wake_cost_ns: f64,
    /// From the wake to being able to run on an idle core, without the switch.
    pub wake_idle_ns: f64,
    /// The same on a busy core.
    pub wake_busy_ns: f64,
    /// What the busy core loses to it, without the switches there and back.
    pub interrupt_ns: f64,
}

impl HostCosts {
    /// Measures those between the manager's core and that of NFs, in a second.
    ///
    /// # Errors
    /// Threads cannot run there, or do not run when they are woken.
    pub fn measure(manager_core: usize, nf_core: usize) -> anyhow::Result<Self> {
        let switch_ns = switches(nf_core)?;
        let (wake_cost_ns, until_ns) = wakes(manager_core, nf_core)?;
        let Preemption { until_ns: busy_ns, lost_ns, .. } = preemptions(manager_core, nf_core)?;
        Ok(Self {
            switch_ns,
            wake_cost_ns,
            wake_idle_ns: (until_ns - switch_ns).max(0.0),
            wake_busy_ns: (busy_ns - switch_ns).max(0.0),
            interrupt_ns: (lost_ns - 2.0 * switch_ns).max(0.0),
        })
    }
}

/// Time between two ticks of the kernel, in nanoseconds.
pub fn tick_ns() -> u64 {
    // The coarse clock moves once a tick.
    let tick = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    u64::try_from(tick.tv_nsec).unwrap_or(0).max(1)
}

/// The median of times in nanoseconds.
pub fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    median(&times)
}

/// Pins this thread to a core.
fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on core {core}"))
}

/// State of two threads.
#[derive(Default)]
struct Shared {
    doorbell: AtomicU32,
    other: AtomicU32,
    /// When the woken thread ran, in nanoseconds; 0 until then.
    ran: AtomicU64,
    /// Longest time without the core of the busy thread since this was 0, in nanoseconds.
    gap: AtomicU64,
    stop: AtomicBool,
}

/// A wake on a busy core, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Preemption {
    /// The time of the one that wakes.
    pub caller_ns: f64,
    /// The time until the woken thread runs.
    pub until_ns: f64,
    /// The time in which the busy thread does not have the core.
    pub lost_ns: f64,
}

/// Wakes a thread that sleeps on core `to` from core `from`; returns the caller's time and the time
/// until it runs, in nanoseconds.
///
/// # Errors
/// A thread cannot run on its core, or does not run when it is woken.
pub fn wakes(from: usize, to: usize) -> anyhow::Result<(f64, f64)> {
    let woken = with_sleeper(&Arc::new(Shared::default()), from, to, false)?;
    Ok((woken.caller_ns, woken.until_ns))
}

/// As [`wakes`], while another thread keeps core `to` busy.
///
/// # Errors
/// As for [`wakes`].
pub fn preemptions(from: usize, to: usize) -> anyhow::Result<Preemption> {
    let shared = Arc::new(Shared::default());
    let busy = {
        let shared = shared.clone();
        std::thread::spawn(move || -> anyhow::Result<()> {
            pin(to)?;
            let mut last_ns = monotonic_ns();
            while !shared.stop.load(Ordering::Acquire) {
                let now_ns = monotonic_ns();
                shared.gap.fetch_max(now_ns.saturating_sub(last_ns), Ordering::AcqRel);
                last_ns = now_ns;
            }
            Ok(())
        })
    };
    let measured = with_sleeper(&shared, from, to, true);
    shared.stop.store(true, Ordering::Release);
    busy.join().map_err(|_| anyhow::anyhow!("a thread of the experiment panicked"))??;
    measured
}

/// Has a thread sleep on core `to` and wakes it from core `from`, again and again.
fn with_sleeper(shared: &Arc<Shared>, from: usize, to: usize, is_busy: bool) -> anyhow::Result<Preemption> {
    let sleeper = {
        let shared = shared.clone();
        std::thread::spawn(move || -> anyhow::Result<()> {
            pin(to)?;
            let mut seen = 0;
            while !shared.stop.load(Ordering::Acquire) {
                doorbell::wait(&shared.doorbell, seen, Some(PATIENCE));
                let now = shared.doorbell.load(Ordering::Acquire);
                if now != seen {
                    seen = now;
                    shared.ran.store(monotonic_ns(), Ordering::Release);
                }
            }
            Ok(())
        })
    };
    // In a separate thread, so that the affinity of this one does not change.
    let waker = {
        let shared = shared.clone();
        std::thread::spawn(move || -> anyhow::Result<Preemption> {
            let measured = wake_all(&shared, from, is_busy);
            shared.stop.store(true, Ordering::Release);
            doorbell::ring(&shared.doorbell);
            measured
        })
    };
    let measured = waker.join().map_err(|_| anyhow::anyhow!("a thread of the experiment panicked"))?;
    sleeper.join().map_err(|_| anyhow::anyhow!("a thread of the experiment panicked"))??;
    measured
}

fn wake_all(shared: &Shared, from: usize, is_busy: bool) -> anyhow::Result<Preemption> {
    pin(from)?;
    let (times, asleep) = if is_busy { (PREEMPTIONS, ASLEEP_BUSY) } else { (WAKES, ASLEEP) };
    let (mut caller, mut until, mut lost) = (Vec::with_capacity(times), Vec::with_capacity(times), Vec::new());
    for _ in 0..times {
        std::thread::sleep(asleep);
        shared.ran.store(0, Ordering::Release);
        shared.gap.store(0, Ordering::Release);
        let (began, start) = (Instant::now(), monotonic_ns());
        doorbell::ring(&shared.doorbell);
        caller.push(began.elapsed().as_nanos() as f64);
        let ran = loop {
            let ran = shared.ran.load(Ordering::Acquire);
            if ran != 0 {
                break ran;
            }
            anyhow::ensure!(began.elapsed() < PATIENCE, "a thread that was woken does not run");
            std::hint::spin_loop();
        };
        until.push(ran.saturating_sub(start) as f64);
        if is_busy {
            while monotonic_ns().saturating_sub(ran) < BACK_NS {
                std::hint::spin_loop();
            }
            lost.push(shared.gap.load(Ordering::Acquire) as f64);
        }
    }
    let lost_ns = if is_busy { middle(lost) } else { 0.0 };
    Ok(Preemption { caller_ns: middle(caller), until_ns: middle(until), lost_ns })
}

/// Has two threads on a core wake each other in turns; returns the time of a switch, in
/// nanoseconds.
///
/// # Errors
/// They cannot run on that core, or do not wake each other.
pub fn switches(core: usize) -> anyhow::Result<f64> {
    let shared = Arc::new(Shared::default());
    // Each waits for one more ring of its own doorbell, then rings the other's.
    let player = |first: bool| {
        let shared = shared.clone();
        move || -> anyhow::Result<f64> {
            pin(core)?;
            let (own, other) = if first { (&shared.doorbell, &shared.other) } else { (&shared.other, &shared.doorbell) };
            let began = Instant::now();
            for round in 0..TIMES as u32 {
                if first {
                    doorbell::ring(other);
                }
                while own.load(Ordering::Acquire) == round {
                    doorbell::wait(own, round, Some(PATIENCE));
                    anyhow::ensure!(began.elapsed() < PATIENCE * 4, "two threads on core {core} do not wake each other");
                }
                if !first {
                    doorbell::ring(other);
                }
            }
            // Two switches a round.
            Ok(began.elapsed().as_nanos() as f64 / (2 * TIMES) as f64)
        }
    };
    let (first, second) = (std::thread::spawn(player(true)), std::thread::spawn(player(false)));
    let panicked = |_| anyhow::anyhow!("a thread of the experiment panicked");
    let ns = first.join().map_err(panicked)?;
    second.join().map_err(panicked)??;
    ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_and_a_wake_take_time() {
        let cores = crate::bench::host::Cores::here();
        let Ok(manager) = cores.manager() else {
            return crate::skip::skip("there is one core, and so nobody is woken on another");
        };
        let costs = HostCosts::measure(manager, cores.shared()).unwrap();
        assert!(costs.switch_ns > 0.0 && costs.wake_cost_ns > 0.0 && costs.wake_idle_ns >= 0.0, "{costs:?}");
        assert!(costs.wake_busy_ns >= 0.0 && costs.interrupt_ns >= 0.0, "{costs:?}");
    }
}
