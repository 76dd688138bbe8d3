//! The operating system's scheduler of one core.
//!
//! The fair classes follow EEVDF. A process has a virtual run time, its run time divided by its
//! weight, and requests one slice at a time; its deadline is the virtual time by which that should
//! be served. It is eligible with no more than the average; of these, the one with the earliest
//! deadline runs until its slice is used up or it sleeps. A sleeper keeps its lag, up to a slice.

use std::collections::VecDeque;

use super::scenario::Class;

/// Slice of the fair classes, in nanoseconds.
const FAIR_SLICE_NS: u64 = 3_000_000;

#[derive(Debug, Clone, Copy)]
struct Task {
    awake: bool,
    weight: f64,
    vtime: f64,
    /// Virtual time by which the present slice should be served.
    deadline: f64,
    /// Virtual time that it was owed when it went to sleep.
    lag: f64,
    /// Nanoseconds used of the slice.
    used_ns: u64,
}

/// Processes of one core, numbered from 0.
#[derive(Debug, Clone)]
pub(super) struct RunQueue {
    class: Class,
    slice_ns: u64,
    tasks: Vec<Task>,
    queue: VecDeque<usize>,
    current: Option<usize>,
    preempt: bool,
}

impl RunQueue {
    pub(super) fn new(class: Class, tasks: usize) -> Self {
        let slice_ns = match class {
            Class::Other | Class::Batch => FAIR_SLICE_NS,
            Class::Rr(ms) => u64::from(ms.max(1)) * 1_000_000,
        };
        let task = Task { awake: false, weight: 1.0, vtime: 0.0, deadline: 0.0, lag: 0.0, used_ns: 0 };
        Self { class, slice_ns, tasks: vec![task; tasks], queue: VecDeque::new(), current: None, preempt: false }
    }

    fn is_fair(&self) -> bool {
        !matches!(self.class, Class::Rr(_))
    }

    #[inline]
    pub(super) fn current(&self) -> Option<usize> {
        self.current
    }

    pub(super) fn is_busy(&self) -> bool {
        self.current.is_some() || self.tasks.iter().any(|t| t.awake)
    }

    /// Sets a process's weight; 1 is average.
    pub(super) fn set_weight(&mut self, task: usize, weight: f64) {
        let t = &mut self.tasks[task];
        t.weight = weight;
        t.deadline = t.vtime + self.slice_ns as f64 / weight;
    }

    /// Average virtual time of the processes that are awake, by weight.
    fn average(&self) -> Option<f64> {
        let awake = self.tasks.iter().filter(|t| t.awake);
        let (sum, weight) = awake.fold((0.0, 0.0), |(s, w), t| (s + t.vtime * t.weight, w + t.weight));
        (weight > 0.0).then(|| sum / weight)
    }

    /// Makes a process able to run. It preempts if its class does.
    pub(super) fn wake(&mut self, task: usize) {
        if self.tasks[task].awake {
            return;
        }
        if !self.is_fair() {
            self.tasks[task].awake = true;
            self.queue.push_back(task);
            return;
        }
        let slice = self.slice_ns as f64;
        let average = self.average();
        let t = &mut self.tasks[task];
        // On an idle core no lag remains.
        t.vtime = average.map_or(t.vtime, |a| a - t.lag);
        t.deadline = t.vtime + slice / t.weight;
        t.awake = true;
        if let (Class::Other, Some(current)) = (self.class, self.current) {
            self.preempt |= self.fairest() != Some(current);
        }
    }

    pub(super) fn sleep(&mut self) {
        let Some(current) = self.current.take() else { return };
        self.preempt = false;
        let average = self.average();
        let slice = self.slice_ns as f64;
        let t = &mut self.tasks[current];
        let most = slice / t.weight;
        t.lag = average.map_or(0.0, |a| (a - t.vtime).clamp(-most, most));
        t.awake = false;
        t.used_ns = 0;
    }

    #[inline]
    pub(super) fn account(&mut self, ns: u64) {
        if let Some(current) = self.current {
            let t = &mut self.tasks[current];
            t.used_ns += ns;
            t.vtime += ns as f64 / t.weight;
        }
    }

    /// Picks the process to run, after a burst of the current one or when there is none.
    pub(super) fn pick(&mut self) -> Option<usize> {
        if let Some(current) = self.current {
            let is_used_up = self.tasks[current].used_ns >= self.slice_ns;
            if !self.preempt && !is_used_up {
                return self.current;
            }
            if is_used_up {
                let slice = self.slice_ns as f64;
                let t = &mut self.tasks[current];
                t.used_ns = 0;
                t.deadline = t.vtime + slice / t.weight;
            }
            self.preempt = false;
            if !self.is_fair() {
                self.queue.push_back(current);
            }
        }
        self.current = if self.is_fair() { self.fairest() } else { self.queue.pop_front() };
        self.current
    }

    /// The eligible process with the earliest deadline.
    fn fairest(&self) -> Option<usize> {
        let average = self.average()?;
        // Sums of large numbers round: a nanosecond above the average is still eligible.
        let eligible = self.tasks.iter().enumerate().filter(|(_, t)| t.awake && t.vtime <= average + 1.0);
        let best = eligible.min_by(|(_, a), (_, b)| a.deadline.total_cmp(&b.deadline));
        best.map(|(i, _)| i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time of each of three busy processes in a simulated 3 s of 10 µs bursts.
    fn times(class: Class, weights: [f64; 3]) -> [f64; 3] {
        let mut q = RunQueue::new(class, 3);
        for (i, weight) in weights.into_iter().enumerate() {
            q.set_weight(i, weight);
            q.wake(i);
        }
        let mut time = [0u32; 3];
        for _ in 0..300_000 {
            time[q.pick().expect("all are awake")] += 1;
            q.account(10_000);
        }
        time.map(|t| f64::from(t) / 300_000.0)
    }

    #[test]
    fn the_fair_classes_follow_weights_and_the_queue_does_not() {
        let near = |got: [f64; 3], want: [f64; 3]| {
            assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 0.005), "{got:?}, expected {want:?}");
        };
        for class in [Class::Other, Class::Batch] {
            near(times(class, [1.0; 3]), [1.0 / 3.0; 3]);
            near(times(class, [120.0 / 313.3, 270.0 / 313.3, 550.0 / 313.3]), [120.0 / 940.0, 270.0 / 940.0, 550.0 / 940.0]);
        }
        near(times(Class::Rr(1), [0.1, 1.0, 1.9]), [1.0 / 3.0; 3]);
    }

    #[test]
    fn only_other_is_preempted_by_one_that_wakes() {
        for (class, preempted) in [(Class::Other, true), (Class::Batch, false), (Class::Rr(3), false)] {
            let mut q = RunQueue::new(class, 2);
            // 0 uses up a slice; 1 runs for a little, sleeps, and is owed time while 0 goes on.
            q.wake(0);
            q.wake(1);
            q.pick();
            q.account(3_000_000);
            assert_eq!(q.pick(), Some(1), "{class}");
            q.account(100_000);
            q.sleep();
            assert_eq!(q.pick(), Some(0), "{class}");
            q.account(500_000);
            q.wake(1);
            assert_eq!(q.pick(), Some(usize::from(preempted)), "{class}");
        }
    }

    #[test]
    fn a_slice_ends() {
        for class in [Class::Batch, Class::Rr(3)] {
            let mut q = RunQueue::new(class, 2);
            q.wake(0);
            q.wake(1);
            assert_eq!(q.pick(), Some(0));
            q.account(2_999_999);
            assert_eq!(q.pick(), Some(0), "{class}");
            q.account(1);
            assert_eq!(q.pick(), Some(1), "{class}");
            q.sleep();
            assert_eq!(q.pick(), Some(0), "{class}");
            q.sleep();
            assert_eq!((q.pick(), q.is_busy()), (None, false));
        }
    }
}
