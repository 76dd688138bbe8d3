//! The operating system's scheduler of one core, as Linux has it since 6.12.
//!
//! The fair classes follow EEVDF. A process has a virtual run time, its run time divided by its
//! weight, and requests one slice at a time; its deadline is the virtual time by which that should
//! be served. It is eligible with no more than the average. The eligible one with the earliest
//! deadline runs, and stays while it is eligible and its slice lasts. That a slice has ended is
//! seen only at a tick or when a process wakes; after another process that had the core, no slice
//! lasts. A process that sleeps keeps what it is owed; one that owes stays in the average until it
//! has paid by waiting, and then owes nothing.
//!
//! The queue counts ticks: the one that runs at a tick is charged all of it.
//!
//! Source: Linux 6.18, `kernel/sched/fair.c` and `rt.c`.

use std::collections::VecDeque;

use super::scenario::{Class, Machine};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asleep,
    Awake,
    /// Asleep, and still in the average: it owes time.
    Owing,
}

#[derive(Debug, Clone, Copy)]
struct Task {
    state: State,
    weight: f64,
    vtime: f64,
    /// Virtual time by which the present slice should be served.
    deadline: f64,
    /// The deadline that it had when it got the core: until then it keeps it while it is eligible.
    kept_until: f64,
    /// Virtual time that it was owed when it went to sleep.
    lag: f64,
    /// Ticks left of a slice of the queue.
    ticks: u32,
}

impl Task {
    fn is_counted(&self) -> bool {
        self.state != State::Asleep
    }
}

/// Processes of one core, numbered from 0.
#[derive(Debug, Clone)]
pub(super) struct RunQueue {
    class: Class,
    slice_ns: f64,
    /// Largest lag, in nanoseconds of a process of average weight.
    most_lag_ns: f64,
    /// Ticks of a slice of the queue.
    ticks: u32,
    tasks: Vec<Task>,
    queue: VecDeque<usize>,
    current: Option<usize>,
    /// Whether another is picked as soon as the core can switch.
    is_due: bool,
}

impl RunQueue {
    pub(super) fn new(class: Class, machine: &Machine, tasks: usize) -> Self {
        let ticks = match class {
            Class::Other | Class::Batch => 1,
            Class::Rr(ms) => (u64::from(ms) * 1_000_000).div_ceil(machine.tick_ns.max(1)),
        };
        let ticks = ticks.clamp(1, u64::from(u32::MAX)) as u32;
        let task = Task { state: State::Asleep, weight: 1.0, vtime: 0.0, deadline: 0.0, kept_until: 0.0, lag: 0.0, ticks };
        Self {
            class,
            slice_ns: machine.slice_ns as f64,
            most_lag_ns: (2 * machine.slice_ns).max(machine.tick_ns) as f64,
            ticks,
            tasks: vec![task; tasks],
            queue: VecDeque::new(),
            current: None,
            is_due: false,
        }
    }

    fn is_fair(&self) -> bool {
        !matches!(self.class, Class::Rr(_))
    }

    #[inline]
    pub(super) fn current(&self) -> Option<usize> {
        self.current
    }

    /// Whether the one that runs is to give the core away.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    pub(super) fn is_busy(&self) -> bool {
        self.current.is_some() || self.tasks.iter().any(|t| t.state == State::Awake)
    }

    /// Sets a process's weight; 1 is average. What it owes or is owed stays the same time.
    pub(super) fn set_weight(&mut self, task: usize, weight: f64) {
        let by = self.tasks[task].weight / weight;
        if !self.tasks[task].is_counted() {
            let t = &mut self.tasks[task];
            (t.weight, t.lag) = (weight, t.lag * by);
            return;
        }
        let (lag, t) = (self.lag(task), self.tasks[task]);
        self.tasks[task].weight = weight;
        self.place(task, lag * by);
        let placed = &mut self.tasks[task];
        placed.deadline = placed.vtime + (t.deadline - t.vtime) * by;
    }

    /// Virtual time that a process is owed, within bounds.
    fn lag(&self, task: usize) -> f64 {
        let t = &self.tasks[task];
        let most = self.most_lag_ns / t.weight;
        self.average(None).map_or(0.0, |a| (a - t.vtime).clamp(-most, most))
    }

    /// Average virtual time of the processes that count, by weight, without `except`.
    fn average(&self, except: Option<usize>) -> Option<f64> {
        let (sum, weight) = self.sums(except);
        (weight > 0.0).then(|| sum / weight)
    }

    fn sums(&self, except: Option<usize>) -> (f64, f64) {
        let counted = self.tasks.iter().enumerate().filter(|(i, t)| t.is_counted() && Some(*i) != except);
        counted.fold((0.0, 0.0), |(s, w), (_, t)| (s + t.vtime * t.weight, w + t.weight))
    }

    /// Puts a process among the others so that it is owed `lag` with itself in the average.
    fn place(&mut self, task: usize, lag: f64) {
        let (sum, weight) = self.sums(Some(task));
        let t = &mut self.tasks[task];
        // On an idle core no lag remains.
        if weight > 0.0 {
            t.vtime = sum / weight - lag * (weight + t.weight) / weight;
        }
        t.deadline = t.vtime + self.slice_ns / t.weight;
    }

    /// Makes a process able to run. True if another is to give it the core now.
    pub(super) fn wake(&mut self, task: usize) -> bool {
        let before = self.is_due;
        match self.tasks[task].state {
            State::Awake => return false,
            _ if !self.is_fair() => {
                // The one that runs has the same priority.
                self.tasks[task].state = State::Awake;
                self.queue.push_back(task);
                return false;
            }
            State::Owing => {
                if self.lag(task) > 0.0 {
                    self.place(task, 0.0);
                }
            }
            State::Asleep => {
                self.look();
                self.place(task, self.tasks[task].lag);
            }
        }
        self.tasks[task].state = State::Awake;
        if self.class == Class::Other && self.current.is_some() && !self.is_due {
            self.look();
            self.is_due |= self.fairest() == Some(task);
        }
        self.is_due && !before
    }

    /// The one that runs goes to sleep.
    pub(super) fn sleep(&mut self) {
        let Some(current) = self.current.take() else { return };
        self.is_due = false;
        let (lag, is_fair) = (self.lag(current), self.is_fair());
        let t = &mut self.tasks[current];
        (t.lag, t.state) = (lag, if is_fair && lag < -1.0 { State::Owing } else { State::Asleep });
    }

    /// A process that is none of these takes the core: the next one is picked anew, and no slice
    /// lasts. Returns the one that ran. Fair classes only.
    pub(super) fn put_back(&mut self) -> Option<usize> {
        debug_assert!(self.is_fair(), "a real-time process keeps its core");
        self.look();
        self.is_due = false;
        self.current.take()
    }

    /// Charges the one that runs.
    #[inline]
    pub(super) fn account(&mut self, ns: u64) {
        if let Some(current) = self.current {
            let t = &mut self.tasks[current];
            t.vtime += ns as f64 / t.weight;
        }
    }

    /// The timer's tick.
    pub(super) fn tick(&mut self) {
        let Some(current) = self.current else { return };
        if self.is_fair() {
            self.look();
            return;
        }
        let t = &mut self.tasks[current];
        t.ticks -= 1;
        if t.ticks == 0 {
            t.ticks = self.ticks;
            self.is_due |= !self.queue.is_empty();
        }
    }

    /// Looks whether the slice of the one that runs has ended.
    fn look(&mut self) {
        let Some(current) = self.current else { return };
        let is_alone = self.tasks.iter().filter(|t| t.is_counted()).count() == 1;
        let t = &mut self.tasks[current];
        let has_ended = t.vtime >= t.deadline;
        if has_ended {
            t.deadline = t.vtime + self.slice_ns / t.weight;
        }
        self.is_due |= !is_alone && (has_ended || t.vtime >= t.kept_until);
    }

    /// Picks the process to run, when the one that runs must give the core away or none runs.
    pub(super) fn pick(&mut self) -> Option<usize> {
        if self.current.is_some() && !self.is_due {
            return self.current;
        }
        self.is_due = false;
        if !self.is_fair() {
            self.queue.extend(self.current);
            self.current = self.queue.pop_front();
            return self.current;
        }
        let before = self.current;
        while let Some(next) = self.fairest() {
            let lag = self.lag(next);
            let t = &mut self.tasks[next];
            if t.state == State::Owing {
                // It has paid.
                (t.state, t.lag) = (State::Asleep, lag.min(0.0));
                continue;
            }
            if before != Some(next) {
                t.kept_until = t.deadline;
            }
            self.current = Some(next);
            return self.current;
        }
        self.current = None;
        None
    }

    /// The one that runs, if it may stay; else the eligible one with the earliest deadline.
    fn fairest(&self) -> Option<usize> {
        let average = self.average(None)?;
        // Sums of large numbers round: a nanosecond above the average is still eligible.
        let is_eligible = |t: &Task| t.is_counted() && t.vtime <= average + 1.0;
        let may_stay = self.current.filter(|current| is_eligible(&self.tasks[*current]));
        if let Some(current) = may_stay.filter(|current| self.tasks[*current].vtime < self.tasks[*current].kept_until) {
            return Some(current);
        }
        let others = self.tasks.iter().enumerate().filter(|(i, t)| Some(*i) != self.current && is_eligible(t));
        let best = others.min_by(|(_, a), (_, b)| a.deadline.total_cmp(&b.deadline)).map(|(i, _)| i);
        // With the same deadline, another goes first.
        let is_before = |best: usize| may_stay.is_some_and(|current| self.tasks[current].deadline < self.tasks[best].deadline);
        best.filter(|best| !is_before(*best)).or(may_stay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE_NS: u64 = 1_000_000;
    const MACHINE: fn() -> Machine = || Machine { slice_ns: SLICE_NS, tick_ns: 4 * SLICE_NS, ..Machine::default() };

    fn queue(class: Class, awake: usize) -> RunQueue {
        let mut q = RunQueue::new(class, &MACHINE(), 3);
        (0..awake).for_each(|task| assert!(!q.wake(task)));
        q
    }

    /// Part of the time of each of three busy processes in a simulated 30 s of 10 µs bursts.
    fn times(class: Class, weights: [f64; 3]) -> [f64; 3] {
        let mut q = queue(class, 3);
        weights.into_iter().enumerate().for_each(|(task, weight)| q.set_weight(task, weight));
        let mut time = [0u32; 3];
        for burst in 1..=3_000_000 {
            time[q.pick().expect("all are awake")] += 1;
            q.account(10_000);
            if burst % 400 == 0 {
                q.tick();
            }
        }
        time.map(|t| f64::from(t) / 3_000_000.0)
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
    fn a_slice_ends_at_a_tick() {
        for class in [Class::Other, Class::Batch, Class::Rr(4)] {
            let mut q = queue(class, 2);
            assert_eq!(q.pick(), Some(0));
            q.account(3 * SLICE_NS);
            assert_eq!((q.pick(), q.is_due()), (Some(0), false), "{class}");
            q.tick();
            assert!(q.is_due(), "{class}");
            assert_eq!(q.pick(), Some(1), "{class}");
        }
    }

    #[test]
    fn a_slice_ends_when_another_wakes_late_also_of_a_class_that_does_not_preempt() {
        for class in [Class::Other, Class::Batch] {
            let mut q = queue(class, 2);
            q.pick();
            q.account(SLICE_NS);
            assert!(q.wake(2), "{class}: one waits already, and the slice has ended");
            let mut q = queue(class, 2);
            q.pick();
            q.account(SLICE_NS - 1);
            assert!(!q.wake(2) && !q.is_due(), "{class}: the slice lasts, and 1 would go before 2");
        }
        let mut q = queue(Class::Rr(4), 2);
        q.pick();
        q.account(9 * SLICE_NS);
        assert!(!q.wake(2) && !q.is_due(), "the queue has one priority");
    }

    #[test]
    fn one_that_is_eligible_keeps_the_core_until_its_slice_ends() {
        let mut q = queue(Class::Other, 1);
        q.pick();
        q.account(SLICE_NS / 2);
        // What wakes without lag comes in at the average, which is the running one's time.
        assert!(!q.wake(1));
        assert_eq!(q.pick(), Some(0));
        let mut q = queue(Class::Other, 1);
        q.pick();
        q.account(SLICE_NS);
        assert!(q.wake(1), "its slice has ended");
        assert_eq!(q.pick(), Some(1));
    }

    #[test]
    fn a_sleeper_keeps_what_it_is_owed() {
        for (class, preempted) in [(Class::Other, true), (Class::Batch, false)] {
            let mut q = queue(class, 2);
            // 1 sleeps before it has had as much as 0; 0 goes on for a little.
            q.pick();
            q.account(SLICE_NS);
            q.tick();
            assert_eq!(q.pick(), Some(1), "{class}");
            q.account(SLICE_NS / 10);
            q.sleep();
            assert_eq!(q.tasks[1].state, State::Asleep, "{class}");
            assert_eq!(q.pick(), Some(0), "{class}");
            q.account(SLICE_NS / 10);
            assert_eq!(q.wake(1), preempted, "{class}");
        }
    }

    #[test]
    fn a_sleeper_pays_what_it_owes_by_waiting_and_then_owes_nothing() {
        let mut q = queue(Class::Batch, 2);
        q.pick();
        q.account(SLICE_NS / 2);
        q.sleep();
        assert_eq!(q.tasks[0].state, State::Owing);
        let before = q.tasks[0].vtime;
        // It wakes soon: it still owes.
        assert_eq!(q.pick(), Some(1));
        q.account(SLICE_NS / 10);
        q.wake(0);
        assert_eq!((q.tasks[0].state, q.tasks[0].vtime), (State::Awake, before));
        // It wakes late: it is no better than the average.
        let mut q = queue(Class::Batch, 2);
        q.pick();
        q.account(SLICE_NS / 2);
        q.sleep();
        q.pick();
        q.account(5 * SLICE_NS);
        q.wake(0);
        assert_eq!(q.tasks[0].vtime, q.tasks[1].vtime);
        // It is met when it has paid: then it sleeps for good.
        let mut q = queue(Class::Batch, 2);
        q.pick();
        q.account(SLICE_NS / 2);
        q.sleep();
        q.pick();
        q.account(5 * SLICE_NS);
        q.tick();
        assert_eq!(q.pick(), Some(1));
        assert_eq!((q.tasks[0].state, q.tasks[0].lag), (State::Asleep, 0.0));
    }

    #[test]
    fn after_another_process_the_one_that_was_owed_goes_first_whatever_was_left_of_a_slice() {
        for class in [Class::Other, Class::Batch] {
            let mut q = queue(class, 2);
            assert_eq!(q.pick(), Some(0), "{class}");
            q.account(SLICE_NS / 2);
            assert_eq!(q.pick(), Some(0), "{class}: its slice lasts");
            assert_eq!(q.put_back(), Some(0), "{class}");
            assert_eq!((q.current(), q.is_busy()), (None, true), "{class}");
            assert_eq!(q.pick(), Some(1), "{class}: 0 has had more than the average");
            // One that is alone goes on, with what is left of its slice.
            let mut q = queue(class, 1);
            q.pick();
            q.account(SLICE_NS / 2);
            q.put_back();
            assert_eq!(q.pick(), Some(0), "{class}");
            assert_eq!(q.tasks[0].kept_until, SLICE_NS as f64, "{class}");
        }
    }

    #[test]
    fn the_queue_charges_a_tick_to_the_one_that_runs_at_it() {
        // A slice of two ticks.
        let mut q = queue(Class::Rr(8), 2);
        assert_eq!(q.pick(), Some(0));
        q.tick();
        q.account(8 * SLICE_NS);
        assert_eq!(q.pick(), Some(0), "the second tick has not come");
        q.tick();
        assert_eq!(q.pick(), Some(1));
        q.sleep();
        assert_eq!(q.pick(), Some(0));
        q.tick();
        q.tick();
        assert_eq!((q.pick(), q.is_due()), (Some(0), false), "no other waits");
        q.sleep();
        assert_eq!((q.pick(), q.is_busy()), (None, false));
    }
}
