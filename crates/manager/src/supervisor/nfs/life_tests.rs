//! Lives of NFs without a process: the tests make their events.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::life::{AFTER_CAUSE, MOST_RESPITES, RESPITE, RESPITES, STOP_PATIENCE};
use super::state::tests::steps;
use super::state::{Forbidden, State};
use super::{Action, Again, BACKOFF, Ended, Event, HELLO_PATIENCE, Life, Origin, TrialEnd};
use crate::nf::death::Cause;
use sluice_dataplane::handle::{StopReason, Violation};
use sluice_host::process::Exit;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
const DRAIN: Duration = Duration::from_secs(5);
const STALL_MS: u64 = 1_000;
/// An unexpected end of an NF that is to be restarted.
const CRASH: Ended =
    Ended { stop_reason: StopReason::None, violations: (0, None), lacked_memory: false, comes_again: true, stall_ms: STALL_MS };
const SEGV: Exit = Exit::Signal(libc::SIGSEGV);
const KILLED: Exit = Exit::Signal(libc::SIGKILL);

struct Played {
    life: Life,
    now: u64,
}

impl Played {
    fn new(origin: Origin) -> Self {
        Self { life: Life::new(0, origin), now: 0 }
    }

    fn running(origin: Origin) -> Self {
        let mut nf = Self::new(origin);
        nf.comes();
        nf
    }

    fn on_trial() -> Self {
        Self { life: Life::on_trial(0), now: 0 }
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        self.life.on(self.now, event).unwrap()
    }

    fn all(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Action> {
        events.into_iter().flat_map(|event| self.on(event)).collect()
    }

    /// Lets time pass, and reports it.
    fn after(&mut self, time: Duration) -> Vec<Action> {
        self.now += time.as_nanos() as u64;
        self.on(Event::Due)
    }

    /// Starts it or lets it attach, and makes its handler.
    fn comes(&mut self) -> Vec<Action> {
        match self.life.origin() {
            Origin::Started => self.all([Event::Launched, Event::Spawned, Event::Granted, Event::Admitted, Event::Ready]),
            Origin::Arrives => self.all([Event::Granted, Event::Admitted, Event::Ready]),
            Origin::Foreign => self.all([Event::Launched, Event::Built, Event::Spawned, Event::Joined]),
        }
    }

    /// Lets it run for this long, and end.
    fn runs_for(&mut self, time: Duration, ended: Ended) -> Vec<Action> {
        self.now += time.as_nanos() as u64;
        self.on(Event::Ended(ended))
    }

    fn is(&self, state: State) -> bool {
        self.life.state() == state
    }

    /// The time until its state ends by itself.
    fn left(&self) -> Option<Duration> {
        self.life.deadline_ns().map(|at| Duration::from_nanos(at - self.now))
    }
}

/// The end of an NF that packet threads stopped.
fn for_cause(stop_reason: StopReason) -> Ended {
    Ended { stop_reason, violations: (9, Some(Violation::Frame)), ..CRASH }
}

fn said(todo: &[Action]) -> Option<(Cause, String)> {
    todo.iter().find_map(|action| match action {
        Action::ReportEnd(end) => Some((end.cause.clone(), end.next())),
        _ => None,
    })
}

fn launches(todo: &[Action]) -> Option<Again> {
    todo.iter().find_map(|action| match action {
        Action::Launch(again) => Some(*again),
        _ => None,
    })
}

mod start {
    use super::*;

    #[test]
    fn a_new_nf_is_expected_and_waits_for_nothing() {
        let nf = Played::new(Origin::Started);
        assert!(nf.is(State::Expected) && nf.left().is_none() && nf.life.stays());
    }

    #[test]
    fn packets_come_when_the_handler_is_made_and_not_before() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned, Event::Granted, Event::Admitted]);
        assert!(nf.is(State::Starting) && !nf.life.takes_packets());
        assert_eq!(nf.on(Event::Ready), [Action::Announce]);
        assert!(nf.life.takes_packets());
    }

    #[test]
    fn a_handler_that_nobody_let_in_gets_no_packets() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned]);
        assert_eq!(nf.on(Event::Ready), []);
        assert!(nf.is(State::Starting));
    }

    #[test]
    fn one_says_once_that_it_is_ready() {
        let mut nf = Played::running(Origin::Started);
        assert_eq!(nf.on(Event::Ready), []);
        assert!(nf.is(State::Running));
    }

    #[test]
    fn a_hello_is_waited_for_as_long_as_the_patience_lasts() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned]);
        assert_eq!(nf.left(), Some(HELLO_PATIENCE));
        assert_eq!(nf.after(HELLO_PATIENCE - MS), []);
        assert_eq!(nf.after(MS), [Action::LookWhetherStarved]);
        assert_eq!(nf.on(Event::Starved(false)), [Action::ReportSilent, Action::Kill]);
        let todo = nf.runs_for(MS, CRASH);
        assert_eq!(said(&todo).unwrap().0, Cause::Silent(10));
    }

    #[test]
    fn a_handler_may_take_as_long_as_it_likes() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned, Event::Granted, Event::Admitted]);
        assert_eq!((nf.left(), nf.after(1000 * S)), (None, vec![]));
    }

    #[test]
    fn a_busy_host_gets_an_nf_more_time_and_that_is_said() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned]);
        nf.after(HELLO_PATIENCE);
        assert_eq!(nf.on(Event::Starved(true)), [Action::ReportStarved(HELLO_PATIENCE)]);
        assert_eq!(nf.left(), Some(HELLO_PATIENCE));
        nf.after(HELLO_PATIENCE);
        assert_eq!(nf.on(Event::Starved(true)), [Action::ReportStarved(2 * HELLO_PATIENCE)]);
    }

    #[test]
    fn even_a_busy_host_is_not_waited_for_for_ever() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned]);
        for _ in 0..RESPITES {
            assert_eq!(nf.after(HELLO_PATIENCE), [Action::LookWhetherStarved]);
            nf.on(Event::Starved(true));
        }
        assert_eq!(nf.after(HELLO_PATIENCE), [Action::ReportSilent, Action::Kill]);
        assert_eq!(said(&nf.runs_for(MS, CRASH)).unwrap().0, Cause::Silent(120));
    }

    #[test]
    fn time_that_one_process_was_given_is_not_held_against_the_next() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned]);
        for _ in 0..RESPITES {
            nf.after(HELLO_PATIENCE);
            nf.on(Event::Starved(true));
        }
        nf.runs_for(MS, CRASH);
        nf.all([Event::Launched, Event::Spawned]);
        assert_eq!(nf.after(HELLO_PATIENCE), [Action::LookWhetherStarved]);
    }

    #[test]
    fn one_that_cannot_be_started_is_lost_and_tried_again() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Fails(Cause::Unstarted("no such program".into()))]);
        let todo = nf.on(Event::Ended(CRASH));
        assert_eq!(said(&todo).unwrap().0, Cause::Unstarted("no such program".into()));
        assert_eq!(launches(&todo), Some(Again::AtOnce));
    }

    #[test]
    fn one_that_gets_no_scheduling_class_is_killed_and_says_why() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned, Event::Granted, Event::Admitted]);
        assert_eq!(nf.on(Event::Troubled(Cause::Unstarted("no class".into()))), [Action::Kill]);
        nf.on(Event::Exited(Some(KILLED)));
        assert_eq!(said(&nf.runs_for(MS, CRASH)).unwrap().0, Cause::Unstarted("no class".into()));
    }

    #[test]
    fn a_name_has_one_process() {
        let mut nf = Played::running(Origin::Started);
        let refused = nf.life.on(nf.now, Event::Launched).unwrap_err();
        assert_eq!(refused, Forbidden { from: State::Running, to: State::Starting });
        assert_eq!(refused.to_string(), "an NF that is running cannot become starting");
        assert!(nf.is(State::Running));
    }
}

mod zygote {
    use super::*;

    #[test]
    fn one_that_waits_for_its_zygote_has_no_deadline_until_it_is_asked_for() {
        let mut nf = Played::new(Origin::Started);
        nf.on(Event::Launched);
        assert!(nf.life.awaits_fork() && nf.left().is_none());
        nf.on(Event::Asked);
        assert_eq!(nf.left(), Some(HELLO_PATIENCE));
    }

    #[test]
    fn a_zygote_that_does_not_fork_in_time_is_looked_at() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Asked]);
        assert_eq!(nf.after(HELLO_PATIENCE), [Action::ForkIsLate]);
    }

    #[test]
    fn one_that_was_forked_is_waited_for_like_one_that_was_spawned() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Asked]);
        nf.now += 1;
        nf.on(Event::Forked);
        assert!(!nf.life.awaits_fork());
        assert_eq!(nf.after(HELLO_PATIENCE), [Action::LookWhetherStarved]);
    }

    #[test]
    fn one_that_was_to_be_forked_is_spawned_instead() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Asked, Event::Launched, Event::Spawned]);
        assert!(nf.is(State::Starting) && !nf.life.awaits_fork());
    }

    #[test]
    fn one_that_is_removed_before_it_is_forked_is_gone_at_once() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Asked]);
        assert_eq!(nf.on(Event::StopRequested(DRAIN)), [Action::Kill, Action::Lose]);
        assert_eq!(nf.on(Event::Ended(CRASH)), [Action::Reclaim, Action::Remove]);
        assert!(nf.is(State::Gone));
    }

    #[test]
    fn a_fork_that_says_hello_before_its_zygote_reports_it_is_let_in() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Asked, Event::Granted, Event::Admitted]);
        assert!(!nf.life.awaits_fork());
        assert_eq!(nf.on(Event::Ready), [Action::Announce]);
    }
}

mod restart {
    use super::*;

    /// Pauses before the restarts that follow these runs.
    fn pauses(nf: &mut Played, runs: impl IntoIterator<Item = Duration>) -> Vec<Duration> {
        let mut pauses = Vec::new();
        for run in runs {
            let todo = nf.runs_for(run, CRASH);
            pauses.push(nf.left().unwrap_or_default());
            if launches(&todo).is_none() {
                let pause = nf.left().unwrap();
                assert_eq!(nf.after(pause), [Action::Launch(Again::AfterPause)]);
            }
            nf.comes();
        }
        pauses
    }

    #[test]
    fn the_first_crash_is_answered_at_once() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::Exited(Some(SEGV)));
        let todo = nf.runs_for(S, CRASH);
        assert_eq!(said(&todo), Some((Cause::Ended(SEGV), "it is started again at once".into())));
        assert_eq!(todo[1..], [Action::Reclaim, Action::Launch(Again::AtOnce)]);
        assert_eq!(nf.life.restarts(), 1);
    }

    #[test]
    fn the_pause_doubles_up_to_the_longest() {
        let mut nf = Played::running(Origin::Started);
        let got = pauses(&mut nf, [MS; 13]);
        assert_eq!(
            got.iter().map(|pause| pause.as_millis()).collect::<Vec<_>>(),
            [0, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000, 5000]
        );
        assert_eq!((nf.life.restarts(), nf.life.deaths_in_a_row()), (13, 13));
    }

    #[test]
    fn a_good_run_makes_the_next_start_immediate_again() {
        let mut nf = Played::running(Origin::Started);
        let good = Duration::from_nanos(BACKOFF.good_run_ns);
        assert_eq!(pauses(&mut nf, [MS, MS, MS, good, MS]), [0, 10, 20, 0, 10].map(|ms| ms * MS));
        assert_eq!(nf.life.deaths_in_a_row(), 2);
    }

    #[test]
    fn a_run_that_is_a_moment_too_short_is_no_good_one() {
        let mut nf = Played::running(Origin::Started);
        let nearly = Duration::from_nanos(BACKOFF.good_run_ns - 1);
        assert_eq!(pauses(&mut nf, [MS, nearly, nearly]), [0, 10, 20].map(|ms| ms * MS));
    }

    #[test]
    fn one_that_never_says_hello_has_no_good_run_however_long_it_is_waited_for() {
        let mut nf = Played::new(Origin::Started);
        let mut got = Vec::new();
        for _ in 0..3 {
            nf.all([Event::Launched, Event::Spawned]);
            nf.runs_for(60 * S, CRASH);
            got.push(nf.left().unwrap_or_default());
            nf.after(5 * S);
        }
        assert_eq!(got, [0, 10, 20].map(|ms| ms * MS));
    }

    #[test]
    fn nothing_is_started_before_the_pause_is_over() {
        let mut nf = Played::running(Origin::Started);
        nf.runs_for(MS, CRASH);
        nf.comes();
        let todo = nf.runs_for(MS, CRASH);
        assert_eq!(todo[1..], [Action::Reclaim, Action::ScheduleAt(nf.now + 10_000_000)]);
        assert_eq!(said(&todo).unwrap().1, "it is started again in 10 ms");
        assert_eq!(nf.after(10 * MS - Duration::from_nanos(1)), []);
        assert!(nf.is(State::Restarting) && nf.life.pause_until_ns().is_some());
        assert_eq!(nf.after(Duration::from_nanos(1)), [Action::Launch(Again::AfterPause)]);
    }

    #[test]
    fn on_failure_drop_or_bypass_starts_nothing_again() {
        let mut nf = Played::running(Origin::Started);
        let todo = nf.runs_for(S, Ended { comes_again: false, ..CRASH });
        assert_eq!(said(&todo).unwrap().1, "it is not started again (on_failure)");
        assert!(nf.is(State::Failed) && nf.life.is_lost() && launches(&todo).is_none());
        assert_eq!((nf.left(), nf.after(1000 * S)), (None, vec![]));
    }

    #[test]
    fn one_that_has_failed_can_be_removed() {
        let mut nf = Played::running(Origin::Started);
        nf.runs_for(S, Ended { comes_again: false, ..CRASH });
        assert_eq!(nf.on(Event::StopRequested(DRAIN)), [Action::Remove]);
        assert!(nf.is(State::Gone));
    }

    #[test]
    fn one_that_is_removed_in_its_pause_is_not_started_again() {
        let mut nf = Played::running(Origin::Started);
        nf.runs_for(MS, CRASH);
        nf.comes();
        nf.runs_for(MS, CRASH);
        assert_eq!(nf.on(Event::StopRequested(DRAIN)), [Action::Remove]);
        assert!(nf.is(State::Gone));
        assert_eq!(nf.after(S), []);
    }

    #[test]
    fn a_member_that_had_its_one_flow_is_followed_by_a_fresh_one_without_a_word() {
        let mut nf = Played::running(Origin::Started);
        assert_eq!(nf.on(Event::MustStop(StopReason::Spent, 0)), [Action::Kill]);
        let todo = nf.runs_for(MS, for_cause(StopReason::Spent));
        assert_eq!(todo, [Action::Reclaim, Action::Launch(Again::Fresh)]);
        assert_eq!((nf.life.restarts(), nf.life.deaths_in_a_row()), (0, 0));
    }

    #[test]
    fn its_frames_come_back_before_the_next_one_is_started() {
        let mut nf = Played::running(Origin::Started);
        let todo = nf.runs_for(S, CRASH);
        let at = |action: &Action| todo.iter().position(|a| a == action).unwrap();
        assert!(at(&Action::Reclaim) < at(&Action::Launch(Again::AtOnce)));
    }

    #[test]
    fn what_the_kernel_killed_for_want_of_memory_is_said() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::Exited(Some(KILLED)));
        assert_eq!(said(&nf.runs_for(S, Ended { lacked_memory: true, ..CRASH })).unwrap().0, Cause::Memory);
    }

    #[test]
    fn the_cause_of_one_death_is_not_that_of_the_next() {
        let mut nf = Played::running(Origin::Started);
        nf.all([Event::Closed(false), Event::Exited(Some(KILLED))]);
        assert_eq!(said(&nf.runs_for(S, CRASH)).unwrap().0, Cause::Closed);
        nf.comes();
        assert_eq!(said(&nf.runs_for(S, CRASH)).unwrap().0, Cause::Unknown);
    }

    #[test]
    fn one_that_closes_its_connection_is_killed_and_one_that_just_dies_is_not_blamed_for_it() {
        let mut nf = Played::running(Origin::Started);
        assert_eq!(nf.on(Event::Closed(true)), [Action::Kill]);
        nf.on(Event::Exited(Some(SEGV)));
        assert_eq!(said(&nf.runs_for(S, CRASH)).unwrap().0, Cause::Ended(SEGV));
    }
}

mod offences {
    use super::*;

    #[test]
    fn one_that_forges_is_stopped_and_that_is_said() {
        let mut nf = Played::running(Origin::Started);
        let todo = nf.on(Event::MustStop(StopReason::Violations, 9));
        assert_eq!(todo, [Action::ReportStopped(StopReason::Violations), Action::Kill]);
        let todo = nf.runs_for(S, for_cause(StopReason::Violations));
        assert_eq!(said(&todo).unwrap().0, Cause::Violations { times: 9, last: Some(Violation::Frame) });
        assert_eq!(nf.life.stops(), 1);
    }

    #[test]
    fn no_forger_is_started_again_at_once() {
        let mut nf = Played::running(Origin::Started);
        let mut got = Vec::new();
        for _ in 0..8 {
            let todo = nf.runs_for(MS, for_cause(StopReason::Violations));
            assert_eq!(launches(&todo), None);
            let pause = nf.left().unwrap();
            got.push(pause.as_secs());
            nf.after(pause);
            nf.comes();
        }
        assert_eq!(got, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn ten_good_minutes_make_up_for_an_offence() {
        let mut nf = Played::running(Origin::Started);
        nf.runs_for(MS, for_cause(StopReason::Violations));
        nf.after(S);
        nf.comes();
        nf.runs_for(Duration::from_nanos(AFTER_CAUSE.good_run_ns), for_cause(StopReason::Violations));
        assert_eq!(nf.left(), Some(S));
    }

    #[test]
    fn offences_and_crashes_are_counted_apart() {
        let mut nf = Played::running(Origin::Started);
        nf.runs_for(MS, for_cause(StopReason::Violations));
        nf.after(S);
        nf.comes();
        assert_eq!(launches(&nf.runs_for(MS, CRASH)), Some(Again::AtOnce));
    }

    #[test]
    fn the_first_stall_is_answered_at_once_because_it_stood_still_long_enough() {
        let mut nf = Played::running(Origin::Started);
        assert_eq!(nf.on(Event::MustStop(StopReason::Stalled, 0)), [Action::LookAtUse]);
        assert_eq!(nf.on(Event::Used(None, STALL_MS)), [Action::ReportStopped(StopReason::Stalled), Action::Kill]);
        let todo = nf.runs_for(MS, for_cause(StopReason::Stalled));
        assert_eq!(said(&todo).unwrap(), (Cause::Stalled(STALL_MS), "it is started again at once".into()));
        nf.comes();
        nf.runs_for(MS, for_cause(StopReason::Stalled));
        assert_eq!(nf.left(), Some(S));
    }

    #[test]
    fn one_that_waits_for_its_core_is_spared_while_it_does_not_run() {
        let mut nf = Played::running(Origin::Started);
        for _ in 0..5 {
            let until = nf.now + RESPITE.as_nanos() as u64;
            assert_eq!(nf.on(Event::Used(Some(S), STALL_MS)), [Action::Spare(until)]);
            nf.now = until;
        }
    }

    #[test]
    fn one_that_runs_and_still_returns_nothing_is_stopped() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::Used(Some(S), STALL_MS));
        nf.now += RESPITE.as_nanos() as u64;
        // 51 ms of a second: more than a twentieth.
        assert_eq!(nf.on(Event::Used(Some(S + 51 * MS), STALL_MS)), [Action::ReportStopped(StopReason::Stalled), Action::Kill]);
    }

    #[test]
    fn what_one_used_at_another_time_says_nothing() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::Used(Some(S), STALL_MS));
        nf.now += 60_000_000_000;
        assert!(matches!(nf.on(Event::Used(Some(50 * S), STALL_MS))[..], [Action::Spare(_)]));
    }

    #[test]
    fn a_stall_is_not_excused_for_ever() {
        let mut nf = Played::running(Origin::Started);
        for _ in 0..MOST_RESPITES {
            assert!(matches!(nf.on(Event::Used(Some(S), STALL_MS))[..], [Action::Spare(_)]));
            nf.now += RESPITE.as_nanos() as u64;
        }
        assert!(nf.on(Event::Used(Some(S), STALL_MS)).contains(&Action::Kill));
    }

    #[test]
    fn one_that_is_dying_already_gets_no_respite() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::Closed(false));
        assert_eq!(nf.on(Event::MustStop(StopReason::Stalled, 0)), [Action::ReportStopped(StopReason::Stalled), Action::Kill]);
    }

    #[test]
    fn a_hole_in_memory_was_said_already_when_the_nf_is_ended_for_it() {
        let mut nf = Played::running(Origin::Started);
        assert_eq!(nf.on(Event::MustStop(StopReason::Violations, 0)), [Action::Kill]);
    }

    #[test]
    fn one_that_is_being_stopped_is_not_stopped_twice() {
        let mut nf = Played::running(Origin::Started);
        nf.all([Event::StopRequested(DRAIN), Event::Drained]);
        assert_eq!(nf.on(Event::MustStop(StopReason::Violations, 9)), []);
    }

    #[test]
    fn nothing_is_held_against_one_without_a_stop_reason() {
        let mut nf = Played::running(Origin::Started);
        assert_eq!(nf.on(Event::MustStop(StopReason::None, 3)), []);
    }
}

mod removal {
    use super::*;

    #[test]
    fn one_that_runs_drains_is_asked_to_stop_and_is_gone_when_it_ends() {
        let mut nf = Played::running(Origin::Started);
        assert_eq!(nf.on(Event::StopRequested(DRAIN)), [Action::Drain]);
        assert!(nf.is(State::Running) && !nf.life.takes_packets() && !nf.life.stays());
        assert_eq!(nf.on(Event::Drained), [Action::SayStop]);
        assert!(nf.is(State::Stopping));
        assert_eq!(nf.runs_for(MS, CRASH), [Action::Reclaim, Action::Remove]);
        assert!(nf.is(State::Gone));
    }

    #[test]
    fn a_drain_that_outlasts_its_limit_ends_with_the_word_to_stop() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::StopRequested(DRAIN));
        assert_eq!(nf.after(DRAIN - MS), []);
        assert_eq!(nf.after(MS), [Action::SayStop]);
    }

    #[test]
    fn one_that_ignores_the_word_to_stop_is_killed() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::StopRequested(DRAIN));
        nf.after(DRAIN);
        assert_eq!(nf.after(STOP_PATIENCE - MS), []);
        assert_eq!(nf.after(MS), [Action::Kill]);
        assert!(nf.is(State::Stopping));
    }

    #[test]
    fn one_that_dies_while_it_drains_is_gone_and_not_started_again() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::StopRequested(DRAIN));
        assert_eq!(nf.runs_for(MS, CRASH), [Action::Reclaim, Action::Remove]);
        assert!(nf.is(State::Gone));
    }

    #[test]
    fn a_stop_during_the_start_kills_it_and_is_not_forgotten() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned]);
        assert_eq!(nf.on(Event::StopRequested(DRAIN)), [Action::Kill]);
        assert!(nf.is(State::Stopping));
        // Its hello was on the way.
        assert_eq!(nf.on(Event::Ready), []);
        assert_eq!(nf.on(Event::Ended(CRASH)), [Action::Reclaim, Action::Remove]);
    }

    #[test]
    fn one_that_never_came_is_gone_at_once() {
        let mut nf = Played::new(Origin::Arrives);
        assert_eq!(nf.on(Event::StopRequested(DRAIN)), [Action::Remove]);
        assert!(nf.is(State::Gone));
    }

    #[test]
    fn asking_twice_while_it_stops_changes_nothing() {
        let mut nf = Played::running(Origin::Started);
        nf.all([Event::StopRequested(DRAIN), Event::Drained]);
        let left = nf.left();
        assert_eq!((nf.on(Event::StopRequested(DRAIN)), nf.left()), (vec![], left));
    }

    #[test]
    fn asking_again_while_it_drains_gives_its_packets_the_whole_time_again() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::StopRequested(DRAIN));
        nf.after(DRAIN / 2);
        assert_eq!(nf.on(Event::StopRequested(DRAIN)), [Action::Drain]);
        assert_eq!(nf.left(), Some(DRAIN));
    }

    #[test]
    fn the_end_of_the_manager_waits_for_no_drain() {
        let mut nf = Played::running(Origin::Started);
        assert_eq!(nf.on(Event::Shutdown), [Action::SayStop]);
        assert_eq!(nf.left(), Some(STOP_PATIENCE));
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned]);
        assert_eq!(nf.on(Event::Shutdown), [Action::Kill]);
    }

    #[test]
    fn the_end_of_the_manager_stops_what_drains_at_once() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::StopRequested(DRAIN));
        assert_eq!(nf.on(Event::Shutdown), [Action::SayStop]);
    }

    #[test]
    fn one_that_is_gone_stays_gone() {
        let mut nf = Played::new(Origin::Started);
        nf.on(Event::StopRequested(DRAIN));
        for event in [Event::Ready, Event::Due, Event::Drained, Event::Shutdown, Event::StopRequested(DRAIN)] {
            assert_eq!(nf.on(event), []);
        }
        assert_eq!(nf.life.on(0, Event::Launched), Err(Forbidden { from: State::Gone, to: State::Starting }));
    }

    #[test]
    fn a_drain_that_was_not_asked_for_does_not_end() {
        let mut nf = Played::running(Origin::Started);
        assert_eq!((nf.on(Event::Drained), nf.is(State::Running)), (vec![], true));
    }
}

mod arrival {
    use super::*;

    #[test]
    fn one_that_comes_by_itself_is_waited_for_without_end() {
        let mut nf = Played::new(Origin::Arrives);
        assert_eq!((nf.left(), nf.after(1000 * S)), (None, vec![]));
        assert_eq!(nf.comes(), [Action::Announce]);
        assert!(nf.is(State::Running));
    }

    #[test]
    fn another_process_may_come_in_the_place_of_one_that_left() {
        let mut nf = Played::running(Origin::Arrives);
        let todo = nf.runs_for(S, CRASH);
        assert_eq!(said(&todo).unwrap().1, "another process may come in its place");
        assert!(nf.is(State::Expected) && launches(&todo).is_none());
        assert_eq!(nf.comes(), [Action::Announce]);
    }

    #[test]
    fn one_that_leaves_before_it_is_ready_is_expected_again() {
        let mut nf = Played::new(Origin::Arrives);
        nf.all([Event::Granted, Event::Admitted]);
        nf.on(Event::Ended(CRASH));
        assert!(nf.is(State::Expected));
    }

    #[test]
    fn one_that_leaves_before_it_is_let_in_is_still_expected() {
        let mut nf = Played::new(Origin::Arrives);
        nf.on(Event::Granted);
        assert!(nf.on(Event::Ended(CRASH)).contains(&Action::Reclaim));
        assert!(nf.is(State::Expected));
    }

    /// Lets it attach and end this often, each run this long; returns the pauses.
    fn pauses(nf: &mut Played, times: usize, run: Duration) -> Vec<Option<Duration>> {
        let once = |_| {
            nf.comes();
            nf.runs_for(run, CRASH);
            let left = nf.left();
            assert!(if left.is_some() { nf.is(State::Failed) } else { nf.is(State::Expected) });
            assert_eq!(nf.life.kept_out(), left.map(|left| (None, nf.now + left.as_nanos() as u64)));
            nf.after(left.unwrap_or_default());
            assert!(nf.is(State::Expected) && nf.left().is_none());
            left
        };
        (0..times).map(once).collect()
    }

    #[test]
    fn one_that_leaves_again_and_again_is_let_in_ever_later() {
        let mut nf = Played::new(Origin::Arrives);
        assert_eq!(pauses(&mut nf, 4, MS), [None, Some(10 * MS), Some(20 * MS), Some(40 * MS)]);
        assert_eq!(pauses(&mut nf, 20, MS).last(), Some(&Some(5 * S)));
        // After a calm time it comes at once.
        assert_eq!(pauses(&mut nf, 2, 10 * S), [None, None]);
        assert_eq!(pauses(&mut nf, 2, MS), [Some(10 * MS), Some(20 * MS)]);
    }

    #[test]
    fn one_that_leaves_before_it_is_let_in_is_let_in_ever_later_too() {
        let mut nf = Played::new(Origin::Arrives);
        let mut left = || {
            // It is a long time since it was expected first.
            nf.now += 3600 * S.as_nanos() as u64;
            nf.on(Event::Due);
            nf.all([Event::Granted, Event::Ended(CRASH)]);
            nf.left()
        };
        assert_eq!([left(), left(), left()], [None, Some(10 * MS), Some(20 * MS)]);
        assert!(nf.is(State::Failed));
    }

    #[test]
    fn one_that_was_stopped_for_cause_is_kept_out_for_a_while() {
        let mut nf = Played::running(Origin::Arrives);
        let todo = nf.runs_for(MS, for_cause(StopReason::Violations));
        assert_eq!(said(&todo).unwrap().1, "it is let in again in 1.0 s");
        assert_eq!(nf.life.kept_out(), Some((Some(StopReason::Violations), nf.now + 1_000_000_000)));
        assert!(nf.life.on(nf.now, Event::Admitted).is_err());
        assert_eq!(nf.after(S), []);
        assert!(nf.is(State::Expected) && nf.life.kept_out().is_none());
        nf.comes();
        assert!(nf.is(State::Running));
    }

    #[test]
    fn a_stall_keeps_one_out_that_comes_by_itself() {
        let mut nf = Played::running(Origin::Arrives);
        nf.runs_for(MS, for_cause(StopReason::Stalled));
        assert_eq!((nf.is(State::Failed), nf.left()), (true, Some(S)));
    }

    #[test]
    fn fresh_memory_is_for_the_next_process_that_comes() {
        let mut nf = Played::running(Origin::Arrives);
        assert_eq!(nf.on(Event::Renewed), [Action::Kill]);
        let todo = nf.runs_for(MS, CRASH);
        assert_eq!((said(&todo).unwrap().0, nf.is(State::Expected)), (Cause::Renewed, true));
        assert_eq!(nf.life.deaths_in_a_row(), 0);
    }
}

mod upgrade {
    use super::*;

    #[test]
    fn a_crash_in_the_trial_gives_the_new_version_up() {
        let mut nf = Played::on_trial();
        nf.all([Event::Launched, Event::Spawned, Event::Granted, Event::Admitted]);
        let todo = nf.on(Event::Ended(CRASH));
        assert_eq!(todo, [Action::TrialFailed(TrialEnd::BeforeReady), Action::Reclaim, Action::Remove]);
        assert!(nf.is(State::Gone));
    }

    #[test]
    fn the_reason_tells_a_program_that_is_no_nf_from_one_that_is_slow() {
        for (ran, how) in [(S, TrialEnd::BeforeHello), (HELLO_PATIENCE, TrialEnd::Silent)] {
            let mut nf = Played::on_trial();
            nf.all([Event::Launched, Event::Spawned]);
            assert_eq!(nf.runs_for(ran, CRASH)[0], Action::TrialFailed(how));
        }
    }

    #[test]
    fn one_that_was_ready_and_dies_before_it_has_the_place_fails_the_trial() {
        let mut nf = Played::on_trial();
        nf.comes();
        assert_eq!(nf.runs_for(S, CRASH)[0], Action::TrialFailed(TrialEnd::BeforeReady));
    }

    #[test]
    fn after_the_trial_it_is_started_again_like_any_other() {
        let mut nf = Played::on_trial();
        nf.comes();
        assert!(nf.life.is_on_trial());
        nf.on(Event::TrialPassed);
        assert!(!nf.life.is_on_trial());
        assert_eq!(launches(&nf.runs_for(S, CRASH)), Some(Again::AtOnce));
    }

    #[test]
    fn a_trial_that_is_given_up_ends_like_a_removal() {
        let mut nf = Played::on_trial();
        nf.comes();
        assert_eq!(nf.all([Event::StopRequested(DRAIN), Event::Drained]), [Action::Drain, Action::SayStop]);
        nf.on(Event::Ended(CRASH));
        assert!(nf.is(State::Gone));
    }

    #[test]
    fn fresh_memory_during_a_trial_starts_it_once_more() {
        let mut nf = Played::on_trial();
        nf.comes();
        nf.on(Event::Renewed);
        let todo = nf.runs_for(MS, CRASH);
        assert_eq!(said(&todo).unwrap().0, Cause::Renewed);
        assert_eq!(launches(&todo), Some(Again::Fresh));
        assert!(nf.life.is_on_trial());
    }

    #[test]
    fn the_former_instance_drains_when_another_has_its_place() {
        let mut nf = Played::running(Origin::Started);
        assert_eq!(nf.on(Event::Superseded(DRAIN)), []);
        assert!(nf.life.drains() && nf.left() == Some(DRAIN));
        assert_eq!(nf.on(Event::Drained), [Action::SayStop]);
    }

    #[test]
    fn one_that_does_not_run_has_nothing_to_drain_for_its_successor() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned, Event::Superseded(DRAIN)]);
        assert!(!nf.life.drains());
    }

    #[test]
    fn a_member_of_the_old_version_goes_with_the_flow_that_it_has() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::Leaves);
        assert!(nf.life.leaves() && nf.life.takes_packets() && !nf.life.stays());
        nf.on(Event::MustStop(StopReason::Spent, 0));
        assert_eq!(nf.runs_for(MS, for_cause(StopReason::Spent)), [Action::Reclaim, Action::Remove]);
    }

    #[test]
    fn a_member_that_has_no_flow_yet_does_not_leave_with_one() {
        let mut nf = Played::new(Origin::Started);
        nf.all([Event::Launched, Event::Spawned, Event::Leaves]);
        assert!(!nf.life.leaves());
    }
}

mod memory {
    use super::*;

    #[test]
    fn fresh_memory_is_no_failure_and_costs_no_pause() {
        let mut nf = Played::running(Origin::Started);
        for _ in 0..5 {
            nf.on(Event::Renewed);
            let todo = nf.runs_for(MS, CRASH);
            assert_eq!(launches(&todo), Some(Again::Fresh));
            nf.comes();
        }
        assert_eq!((nf.life.deaths_in_a_row(), nf.life.restarts()), (0, 0));
    }

    #[test]
    fn what_is_not_started_again_otherwise_is_started_with_fresh_memory() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::Renewed);
        assert_eq!(launches(&nf.runs_for(MS, Ended { comes_again: false, ..CRASH })), Some(Again::Fresh));
    }

    #[test]
    fn one_that_forged_meanwhile_gets_its_pause_all_the_same() {
        let mut nf = Played::running(Origin::Started);
        nf.on(Event::Renewed);
        let todo = nf.runs_for(MS, for_cause(StopReason::Violations));
        assert_eq!((launches(&todo), nf.left()), (None, Some(S)));
    }

    #[test]
    fn one_that_is_on_its_way_out_goes_without_fresh_memory() {
        let mut nf = Played::running(Origin::Started);
        nf.all([Event::StopRequested(DRAIN), Event::Renewed]);
        assert_eq!(nf.runs_for(MS, CRASH), [Action::Reclaim, Action::Remove]);
    }
}

mod foreign {
    use super::*;

    #[test]
    fn a_program_says_nothing_and_is_looked_at_when_it_has_settled() {
        let mut nf = Played::new(Origin::Foreign);
        nf.all([Event::Launched, Event::Built, Event::Spawned]);
        assert_eq!(nf.left(), None);
        nf.on(Event::Settles(100 * MS));
        assert_eq!(nf.after(100 * MS), [Action::Settle]);
        nf.on(Event::Joined);
        assert!(nf.life.takes_packets() && nf.left().is_none());
    }

    #[test]
    fn a_program_is_asked_to_end_by_a_signal() {
        let mut nf = Played::running(Origin::Foreign);
        assert_eq!(nf.all([Event::StopRequested(DRAIN), Event::Drained]), [Action::Drain, Action::Terminate]);
        assert!(!nf.life.is_leaving());
        assert_eq!(nf.after(STOP_PATIENCE), [Action::Kill]);
    }

    #[test]
    fn a_program_of_somebody_else_is_let_be() {
        let mut nf = Played::new(Origin::Foreign);
        nf.all([Event::Launched, Event::Built, Event::Found, Event::Joined, Event::StopRequested(DRAIN), Event::Drained]);
        assert!(nf.life.is_leaving());
        nf.on(Event::Ended(CRASH));
        assert!(nf.is(State::Gone) && !nf.life.is_leaving());
    }

    #[test]
    fn one_without_a_process_is_taken_out_when_it_stands_still() {
        let mut nf = Played::new(Origin::Foreign);
        nf.all([Event::Launched, Event::Built, Event::Joined]);
        nf.on(Event::Used(None, STALL_MS));
        assert!(nf.life.is_leaving());
    }

    #[test]
    fn a_program_that_dies_is_started_when_its_former_namespace_is_cleared() {
        let mut nf = Played::running(Origin::Foreign);
        let todo = nf.runs_for(S, CRASH);
        assert_eq!((launches(&todo), nf.left()), (None, Some(Duration::ZERO)));
        assert_eq!(nf.on(Event::Due), [Action::Launch(Again::AfterPause)]);
    }

    #[test]
    fn one_that_is_removed_while_its_namespace_is_built_is_left_to_the_builder() {
        let mut nf = Played::new(Origin::Foreign);
        nf.on(Event::Launched);
        assert_eq!(nf.on(Event::StopRequested(DRAIN)), [Action::Kill]);
        assert!(nf.life.left_while_starting() && !nf.life.is_leaving());
    }

    #[test]
    fn one_that_is_removed_with_its_namespace_built_leaves_by_itself() {
        let mut nf = Played::new(Origin::Foreign);
        nf.all([Event::Launched, Event::Built, Event::StopRequested(DRAIN)]);
        assert!(nf.life.is_leaving());
    }

    #[test]
    fn trouble_before_there_is_a_process_ends_it_at_once() {
        let mut nf = Played::new(Origin::Foreign);
        nf.on(Event::Launched);
        assert_eq!(nf.on(Event::Troubled(Cause::Unstarted("no namespace".into()))), [Action::Lose]);
        assert_eq!(said(&nf.on(Event::Ended(CRASH))).unwrap().0, Cause::Unstarted("no namespace".into()));
    }

    #[test]
    fn trouble_with_its_process_ends_that() {
        let mut nf = Played::running(Origin::Foreign);
        assert_eq!(nf.on(Event::Troubled(Cause::Unstarted("its interface was removed".into()))), [Action::Kill]);
    }
}

fn event() -> impl Strategy<Value = Event> {
    let stop_reason = proptest::sample::select(vec![
        StopReason::None,
        StopReason::None,
        StopReason::None,
        StopReason::Violations,
        StopReason::Stalled,
        StopReason::Spent,
    ]);
    let ended = (stop_reason.clone(), any::<bool>(), any::<bool>());
    let ended =
        ended.prop_map(|(stop_reason, comes_again, lacked_memory)| Ended { stop_reason, comes_again, lacked_memory, ..CRASH });
    prop_oneof![
        4 => proptest::sample::select(vec![Event::Launched, Event::Spawned, Event::Granted, Event::Admitted, Event::Ready]),
        2 => proptest::sample::select(vec![
            Event::Asked, Event::Forked, Event::Found, Event::Built, Event::Joined, Event::Drained, Event::Renewed,
            Event::TrialPassed, Event::Leaves, Event::Closed(false), Event::Closed(true), Event::Starved(true),
            Event::Starved(false), Event::Exited(Some(SEGV)), Event::Exited(None), Event::Shutdown,
            Event::Settles(MS), Event::Fails(Cause::Closed), Event::Troubled(Cause::Closed), Event::Superseded(DRAIN),
        ]),
        1 => Just(Event::StopRequested(DRAIN)),
        2 => ended.prop_map(Event::Ended),
        1 => (stop_reason, 0u64..3).prop_map(|(stop_reason, violations)| Event::MustStop(stop_reason, violations)),
        1 => proptest::option::of(0u64..100).prop_map(|ms| Event::Used(ms.map(Duration::from_millis), STALL_MS)),
        3 => Just(Event::Due),
    ]
}

fn life() -> impl Strategy<Value = Life> {
    (proptest::sample::select(vec![Origin::Started, Origin::Arrives, Origin::Foreign]), any::<bool>())
        .prop_map(|(origin, on_trial)| if on_trial { Life::on_trial(0) } else { Life::new(0, origin) })
}

/// Whether the table leads from one state to another in one event.
fn is_in_the_table(from: State, to: State) -> bool {
    let step = |from, to| steps().any(|known| known == (from, to));
    from == to || step(from, to) || step(from, State::Stopping) && step(State::Stopping, to)
}

proptest! {
    #[test]
    fn no_sequence_of_events_takes_a_step_that_the_table_forbids(
        mut life in life(),
        events in proptest::collection::vec((event(), 0u64..12_000), 1..60),
    ) {
        let mut now = 0;
        for (event, ms) in events {
            now += ms * 1_000_000;
            let (before, was) = (life.state(), format!("{life:?}"));
            match life.on(now, event.clone()) {
                Ok(_) => prop_assert!(is_in_the_table(before, life.state()), "{event:?}: {before} to {}", life.state()),
                Err(_) => prop_assert_eq!(was, format!("{life:?}"), "what is refused changes nothing"),
            }
        }
    }

    /// Whatever has happened before and however it behaves, it is gone in time once it is to go.
    #[test]
    fn one_that_is_to_go_is_gone_in_the_end(
        mut life in life(),
        events in proptest::collection::vec((event(), 0u64..12_000), 0..60),
        complies in any::<bool>(),
    ) {
        let mut now = 0;
        for (event, ms) in events {
            now += ms * 1_000_000;
            let _ = life.on(now, event);
        }
        let mut events = vec![Event::StopRequested(DRAIN)];
        for _ in 0..20 {
            let Some(event) = events.pop() else { break };
            let todo = life.on(now, event).unwrap();
            let ends = |action: &Action| match action {
                Action::Kill | Action::Lose => true,
                Action::SayStop | Action::Terminate => complies,
                _ => false,
            };
            if life.state() == State::Gone {
                break;
            }
            let will_end = todo.iter().any(ends) || life.is_leaving() || life.left_while_starting();
            match life.deadline_ns() {
                Some(at) if !will_end => {
                    now = at.max(now);
                    events.push(Event::Due);
                }
                // Where it waits for nothing more, it was killed before.
                _ => events.push(Event::Ended(CRASH)),
            }
        }
        prop_assert_eq!(life.state(), State::Gone);
    }
}

#[test]
fn every_step_of_the_table_is_taken_by_some_life() {
    let mut taken = std::collections::BTreeSet::new();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..5_000 {
        let lives = (life(), proptest::collection::vec(event(), 40));
        let (mut life, events) = lives.new_tree(&mut runner).unwrap().current();
        for (n, event) in events.into_iter().enumerate() {
            let before = life.state();
            if life.on(n as u64 * 3_000_000_000, event).is_ok() && life.state() != before {
                taken.insert((before.word(), life.state().word()));
            }
        }
    }
    let missing: Vec<_> = steps().filter(|(from, to)| !taken.contains(&(from.word(), to.word()))).collect();
    assert_eq!(missing, []);
}
