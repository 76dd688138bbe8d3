//! Backoff of an NF's restarts: when to start an NF again that has ended.
//!
//! # Problem
//! An NF that dies once in a while should be back at once: each millisecond without it costs its
//! chains packets. An NF that dies as soon as it starts (a missing file, a bad argument, a hostile
//! packet that comes again) must not burn the host in a start loop.
//!
//! # Terms and units
//! *Run*: from the start of a process to its end, in nanoseconds; 0 if it never came up
//! ([`run_ns`]). *Good run*: one of at least [`Backoff::good_run_ns`]. *Failure*: the unrequested
//! end of a run. *Streak*: failures since the last good run.
//!
//! # Approach
//! The first failure of a streak is followed by a start at once ([`Backoff::after_failure`]). The
//! second waits [`Backoff::first_ns`], and each further one twice as long as the one before, up to
//! [`Backoff::longest_ns`]. The failure that ends a good run is the first of a new streak. With
//! [`Backoff::give_up_after`] = n, a streak has at most n starts.
//!
//! | failure of the streak | 1 | 2 | 3 | … | 8 | 9 | 10 | 11 and later |
//! |---|---|---|---|---|---|---|---|---|
//! | wait, by default | 0 | 10 ms | 20 ms | doubling | 640 ms | 1.28 s | 2.56 s | 5 s |
//!
//! An NF whose run was ended for cause most likely breaks the rule again. Such ends have a streak
//! and a `Backoff` of their own, and the first waits already ([`Backoff::after_offence`]).
//!
//! # Limits
//! There is no jitter: the NFs of one host share no server that simultaneous starts could overrun.
//! The policy ignores why a run ended; if no start can succeed, the caller should not ask.

/// Parameters of the waits between restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Wait after the second failure of a streak, in nanoseconds.
    pub first_ns: u64,
    /// Longest wait, in nanoseconds.
    pub longest_ns: u64,
    /// Least length of a good run, which ends a streak, in nanoseconds.
    pub good_run_ns: u64,
    /// Most starts in one streak; None is no limit, 0 never starts again.
    pub give_up_after: Option<u32>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first_ns: 10_000_000, longest_ns: 5_000_000_000, good_run_ns: 10_000_000_000, give_up_after: None }
    }
}

/// What is remembered of one NF between its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Streak {
    /// Failures since the last good run.
    pub failures: u32,
}

/// Length of a run, in nanoseconds: 0 for a process that never reported that it is up.
pub fn run_ns(has_come: bool, lived_ns: u64) -> u64 {
    if has_come { lived_ns } else { 0 }
}

/// What to do after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartDecision {
    /// Start it again after this many nanoseconds; 0 is at once.
    StartAfter(u64),
    /// Do not start it again.
    GiveUp,
}

impl Backoff {
    /// Decides after a failed run of `ran_ns` (0 if it did not start), and counts it in `streak`.
    pub fn after_failure(&self, streak: &mut Streak, ran_ns: u64) -> RestartDecision {
        if ran_ns >= self.good_run_ns {
            streak.failures = 0;
        }
        streak.failures = streak.failures.saturating_add(1);
        if self.give_up_after.is_some_and(|most| streak.failures > most) {
            return RestartDecision::GiveUp;
        }
        RestartDecision::StartAfter(self.wait_ns(streak.failures))
    }

    /// Decides after a run of `ran_ns` that was ended for cause, and counts it in `streak`: as
    /// after a failure, but the waits begin with [`Backoff::first_ns`].
    pub fn after_offence(&self, streak: &mut Streak, ran_ns: u64) -> RestartDecision {
        match self.after_failure(streak, ran_ns) {
            RestartDecision::StartAfter(_) => RestartDecision::StartAfter(self.wait_ns(streak.failures.saturating_add(1))),
            RestartDecision::GiveUp => RestartDecision::GiveUp,
        }
    }

    /// Wait after the failure number `failure` (from 1) of a streak, in nanoseconds.
    pub fn wait_ns(&self, failure: u32) -> u64 {
        // The second failure doubles nothing, the third once. An overflow is past any limit.
        let Some(doublings) = failure.checked_sub(2) else { return 0 };
        let factor = 1u64.checked_shl(doublings).unwrap_or(u64::MAX);
        self.first_ns.saturating_mul(factor).min(self.longest_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1_000 * MS;

    /// Waits, in milliseconds, after runs of these lengths; None is giving up.
    fn waits(policy: Backoff, runs: &[u64]) -> Vec<Option<u64>> {
        let mut streak = Streak::default();
        let decide = |ran: &u64| match policy.after_failure(&mut streak, *ran) {
            RestartDecision::StartAfter(ns) => Some(ns / MS),
            RestartDecision::GiveUp => None,
        };
        runs.iter().map(decide).collect()
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let got = waits(Backoff::default(), &[MS; 13]);
        // 10 ms · 2^9 = 5,120 ms, more than 5 s.
        let expected = [0, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000, 5000];
        assert_eq!(got, expected.map(Some));
    }

    #[test]
    fn a_good_run_ends_the_streak() {
        let got = waits(Backoff::default(), &[MS, MS, MS, 10 * S, MS, 10 * S - 1, 60 * S]);
        assert_eq!(got, [0, 10, 20, 0, 10, 20, 0].map(Some));
    }

    #[test]
    fn one_that_never_comes_has_no_good_run() {
        let lives = [60 * S; 4].map(|lived| run_ns(false, lived));
        assert_eq!(waits(Backoff::default(), &lives), [0, 10, 20, 40].map(Some));
        assert_eq!(run_ns(true, 60 * S), 60 * S);
    }

    #[test]
    fn a_lone_failure_is_answered_at_once_every_time() {
        assert_eq!(waits(Backoff::default(), &[3600 * S; 4]), [Some(0); 4]);
    }

    #[test]
    fn a_streak_is_answered_by_a_number_of_starts() {
        let policy = Backoff { give_up_after: Some(3), ..Backoff::default() };
        assert_eq!(waits(policy, &[0, 0, 0, 0, 0]), [Some(0), Some(10), Some(20), None, None]);
        // A good run in between allows four more.
        assert_eq!(waits(policy, &[0, 0, 0, 11 * S, 0, 0, 0]), [Some(0), Some(10), Some(20), Some(0), Some(10), Some(20), None]);
        assert_eq!(waits(Backoff { give_up_after: Some(0), ..policy }, &[99 * S]), [None]);
    }

    #[test]
    fn long_streaks_and_odd_numbers_do_not_overflow() {
        let policy = Backoff { first_ns: 3, longest_ns: u64::MAX, ..Backoff::default() };
        assert_eq!(policy.wait_ns(2), 3);
        assert_eq!(policy.wait_ns(12), 3 << 10);
        assert_eq!(policy.wait_ns(65), u64::MAX);
        assert_eq!(policy.wait_ns(u32::MAX), u64::MAX);
        let mut streak = Streak { failures: u32::MAX };
        assert_eq!(Backoff::default().after_failure(&mut streak, 0), RestartDecision::StartAfter(5 * S));
        assert_eq!(streak.failures, u32::MAX);
        // A first wait past the longest is cut, too.
        assert_eq!(Backoff { first_ns: 9 * S, ..Backoff::default() }.wait_ns(2), 5 * S);
    }

    #[test]
    fn no_end_for_cause_is_answered_at_once() {
        let mut streak = Streak::default();
        let after = |ran_ns| Backoff::default().after_offence(&mut streak, ran_ns);
        let got = [MS, MS, MS, 60 * S, MS].map(after);
        assert_eq!(got, [10, 20, 40, 10, 20].map(|ms| RestartDecision::StartAfter(ms * MS)));
        let policy = Backoff { give_up_after: Some(1), ..Backoff::default() };
        let mut streak = Streak::default();
        assert_eq!(policy.after_offence(&mut streak, 0), RestartDecision::StartAfter(10 * MS));
        assert_eq!(policy.after_offence(&mut streak, 0), RestartDecision::GiveUp);
    }
}
