//! Why a thread does not answer.
//!
//! # Problem
//! A thread that has not answered for ten seconds may be stuck, which is a defect. Or other
//! programs keep its core busy, and it will answer when it gets the core. Wall-clock time cannot
//! distinguish these.
//!
//! # Approach
//! The waiting side samples the thread: its CPU time, its time in the queue of its core, and
//! whether it is runnable. Each interval between two samples counts as *ran* (its CPU time), as
//! *blocked* (neither ran nor runnable: it waits for a lock, a disk, a device), or else as
//! *queued*. Only ran and blocked time count against the thread.
//!
//! # Limits
//! The kernel adds queue time when it ends, so a sample before that shows only by the thread's
//! state that it is queued. When the whole host is stopped, so are the samples. Without
//! `/proc/PID/schedstat` CPU time is read in clock ticks of 10 ms.

use std::time::Duration;

use rustix::process::Pid;

use super::process::{Proc, Stat};

/// Nanoseconds of a clock tick of `/proc/PID/stat`.
const TICK_NS: u64 = 10_000_000;
/// Maximum number of sampled processes.
const MOST: usize = 64;

/// A sample of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Its CPU time in nanoseconds.
    pub ran_ns: u64,
    /// Its time in the queue of its core, in nanoseconds.
    pub queued_ns: u64,
    /// Whether it runs or is queued now.
    pub is_runnable: bool,
}

impl Look {
    /// A sample of a thread of this process. None if there is no such thread.
    pub fn at_own(proc: &Proc, thread: Pid) -> Option<Self> {
        let folder = proc.path(&format!("self/task/{}", thread.as_raw_nonzero()));
        let stat = Stat::parse(&std::fs::read_to_string(folder.join("stat")).ok()?)?;
        let words = std::fs::read_to_string(folder.join("schedstat")).unwrap_or_default();
        let mut words = words.split_ascii_whitespace().map_while(|word| word.parse().ok());
        Some(Self {
            ran_ns: words.next().unwrap_or((stat.utime + stat.stime) * TICK_NS),
            queued_ns: words.next().unwrap_or(0),
            is_runnable: stat.state == 'R',
        })
    }
}

/// A thread's activity during a wait.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silence {
    last: Option<Look>,
    pub ran: Duration,
    /// Time that it neither ran nor was runnable.
    pub blocked: Duration,
    /// Time that it was queued.
    pub queued: Duration,
}

impl Silence {
    /// Notes a sample, `after` the one before. None: the thread cannot be sampled.
    pub fn note(&mut self, look: Option<Look>, after: Duration) {
        let Some(look) = look else {
            self.blocked += after;
            return;
        };
        let Some(last) = self.last.replace(look) else { return };
        let ran = Duration::from_nanos(look.ran_ns.saturating_sub(last.ran_ns)).min(after);
        let queued = Duration::from_nanos(look.queued_ns.saturating_sub(last.queued_ns));
        self.ran += ran;
        if look.is_runnable || queued > after / 4 {
            self.queued += after - ran;
        } else if ran < after / 4 {
            self.blocked += after - ran;
        }
    }
}

/// Whether a process is runnable or waits for a disk.
pub fn waits(proc: &Proc, process: Pid) -> bool {
    proc.stat(process).is_ok_and(|stat| matches!(stat.state, 'R' | 'D'))
}

/// CPU time of processes, estimated from 64 of them if there are more.
pub fn used_by(proc: &Proc, processes: &[Pid]) -> Duration {
    let step = processes.len().div_ceil(MOST).max(1);
    let used: u64 = processes.iter().step_by(step).filter_map(|pid| proc.stat(*pid).ok()).map(|stat| stat.utime + stat.stime).sum();
    Duration::from_nanos(used * step as u64 * TICK_NS)
}

/// Whether a process and its descendants have had too little CPU time to be measured by a clock.
///
/// One of them must be runnable or wait for a disk, and all have used less than half of `given`.
pub fn is_starved(proc: &Proc, process: Pid, given: Duration) -> bool {
    let all = std::iter::once(process).chain(proc.descendants(process));
    let stats: Vec<Stat> = all.filter_map(|pid| proc.stat(pid).ok()).collect();
    let used: u64 = stats.iter().map(|stat| (stat.utime + stat.stime) * TICK_NS).sum();
    stats.iter().any(|stat| matches!(stat.state, 'R' | 'D')) && Duration::from_nanos(used) < given / 2
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    const AFTER: Duration = Duration::from_millis(100);

    fn noted(looks: impl IntoIterator<Item = (u64, u64, bool)>) -> Silence {
        let mut silence = Silence::default();
        for (ran_ms, queued_ms, is_runnable) in looks {
            let look = Look { ran_ns: ran_ms * 1_000_000, queued_ns: queued_ms * 1_000_000, is_runnable };
            silence.note(Some(look), AFTER);
        }
        silence
    }

    #[test]
    fn a_thread_in_the_queue_has_done_nothing_wrong() {
        // The kernel reports the queue time when it is over.
        let queued = noted((0..200).map(|_| (7, 3, true)));
        assert_eq!((queued.ran, queued.blocked, queued.queued), (Duration::ZERO, Duration::ZERO, 199 * AFTER));
        // It had the core for moments, and slept at each sample.
        let shared = noted((0..200).map(|n| (2 * n, 98 * n, false)));
        assert_eq!((shared.ran, shared.blocked), (199 * Duration::from_millis(2), Duration::ZERO));
    }

    #[test]
    fn a_thread_that_runs_or_is_blocked_has() {
        let runs = noted((0..200).map(|n| (100 * n, 0, true)));
        assert_eq!((runs.ran, runs.blocked, runs.queued), (199 * AFTER, Duration::ZERO, Duration::ZERO));
        let blocked = noted((0..200).map(|_| (7, 3, false)));
        assert_eq!((blocked.ran, blocked.blocked), (Duration::ZERO, 199 * AFTER));
        let mut gone = Silence::default();
        gone.note(None, AFTER);
        assert_eq!(gone.blocked, AFTER);
    }

    #[test]
    fn a_process_that_sleeps_does_not_wait_for_its_core() {
        let proc = Proc::default();
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let mut spinner = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let pid = |child: &std::process::Child| Pid::from_child(child);
        let used = |child| used_by(&proc, &[pid(child)]);
        while waits(&proc, pid(&sleeper)) || !waits(&proc, pid(&spinner)) || used(&spinner) < AFTER {
            std::thread::yield_now();
        }
        assert!(is_starved(&proc, pid(&spinner), Duration::from_secs(3600)) && !is_starved(&proc, pid(&spinner), AFTER));
        assert!(!is_starved(&proc, pid(&sleeper), Duration::from_secs(3600)));
        for child in [&mut sleeper, &mut spinner] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn real_threads_are_seen() {
        let proc = Proc::default();
        let (ids, started) = channel();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (blocker, wait) = channel::<()>();
            let id = ids.clone();
            scope.spawn(move || {
                id.send(rustix::thread::gettid()).unwrap();
                wait.recv().unwrap_err();
            });
            let blocked = started.recv().unwrap();
            scope.spawn(|| {
                ids.send(rustix::thread::gettid()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let busy = started.recv().unwrap();
            let mut of_blocked = Silence::default();
            let first = Look::at_own(&proc, busy).unwrap();
            // However busy the host is: one of them gets CPU time, and the other does not.
            while Look::at_own(&proc, busy).unwrap().ran_ns < first.ran_ns + 20 * TICK_NS || of_blocked.blocked < 5 * AFTER {
                of_blocked.note(Look::at_own(&proc, blocked), AFTER);
                std::thread::yield_now();
            }
            assert!(Look::at_own(&proc, busy).unwrap().is_runnable);
            stop.store(true, Ordering::Relaxed);
            drop(blocker);
        });
        assert_eq!(Look::at_own(&proc, Pid::from_raw(1).unwrap()), None);
    }
}
