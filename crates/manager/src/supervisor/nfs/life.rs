//! The life of an NF as a state machine: events in, actions out.
//!
//! It makes all decisions about an NF's life: its [`State`], the end of a state by a deadline,
//! restarts, the time to start and to stop, trials of a version. It does no I/O, has no clock and
//! opens no process: the time is an argument, and the supervisor carries out each [`Action`].
//!
//! # Ends
//! A process that ends by itself is restarted by [`BACKOFF`], one that was stopped for cause by
//! [`AFTER_CAUSE`]. `on_failure` decides which services are restarted. Where processes attach by
//! themselves the same pauses keep the next one out: each admission is work for all threads. An NF
//! is gone when its process ends while it drains, is on trial, or leaves with its flow.
//!
//! # Patience
//! | what is waited for | how long | then |
//! |---|---|---|
//! | hello of a process | [`HELLO_PATIENCE`] (busy host: [`RESPITES`] more) | it is killed |
//! | packets of one that drains | `manager.drain_ms` | it is asked to stop |
//! | end of one that was asked to stop | [`STOP_PATIENCE`] | it is killed |
//! | packets of a runnable one | [`RESPITE`], up to [`MOST_RESPITES`] times | it is killed |

use std::time::Duration;

use sluice_policy::restart::{self, Backoff, RestartDecision, Streak};

use super::event::{Action, Again, End, Ended, Event, TrialEnd};
use super::state::{Forbidden, State};
use crate::nf::death::Cause;
use sluice_dataplane::handle::StopReason;
use sluice_host::process::Exit;

/// Longest time for a spawned NF to send its hello.
pub(crate) const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How many times it gets that time again, if the host is so busy that it has hardly run.
pub(super) const RESPITES: u32 = 11;
/// How long an NF that stands still and is runnable is checked for progress.
pub(super) const RESPITE: Duration = Duration::from_secs(1);
/// Most such checks: a host may be this busy for that long.
pub(super) const MOST_RESPITES: u32 = 120;
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Restarts, or new admissions, of NFs that end by themselves.
pub(crate) const BACKOFF: Backoff =
    Backoff { first_ns: 10_000_000, longest_ns: 5_000_000_000, good_run_ns: 10_000_000_000, give_up_after: None };

/// Restarts, or new admissions, of NFs that were stopped for cause.
pub(super) const AFTER_CAUSE: Backoff =
    Backoff { first_ns: 1_000_000_000, longest_ns: 60_000_000_000, good_run_ns: 600_000_000_000, give_up_after: None };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Started,
    /// It attaches by itself (`attach = true`).
    Arrives,
    Foreign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    None,
    /// One that the manager may end.
    Ours,
    /// One that the manager did not start and must not end.
    Theirs,
}

#[derive(Debug, Clone, Copy, Default)]
struct Course {
    /// It is being removed: when its packets are gone it is asked to stop.
    drains: bool,
    /// Its version is not the service's yet: it gets no packets, and is not restarted.
    on_trial: bool,
    /// Its version is no longer the service's: it leaves with its present flow.
    leaves: bool,
    /// It is ended to be started again with fresh packet memory.
    renewed: bool,
    /// It was asked to stop, and has no process whose end would be noticed.
    is_leaving: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Past {
    restarts: u64,
    streak: Streak,
    offences: Streak,
    stopped_for: Option<StopReason>,
    stops: u64,
}

/// The life of an NF. Only [`Life::on`] changes it.
#[derive(Debug)]
pub(crate) struct Life {
    state: State,
    origin: Origin,
    process: Process,
    is_attached: bool,
    /// The namespace of a foreign program is built.
    has_namespace: bool,
    course: Course,
    started_ns: u64,
    /// When its state ends by itself: a missing hello, the end of a pause, a late stop.
    deadline_ns: Option<u64>,
    /// How many times its process got more time because the host is busy.
    respites: u32,
    /// Its CPU time when it stood still, and when that was.
    used: Option<(Duration, u64)>,
    past: Past,
    /// How its process has ended, and why it was ended or did not start.
    exit: Option<Exit>,
    ended_for: Option<Cause>,
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl Life {
    pub(crate) fn new(now_ns: u64, origin: Origin) -> Self {
        Self {
            state: State::Expected,
            origin,
            process: Process::None,
            is_attached: false,
            has_namespace: false,
            course: Course::default(),
            started_ns: now_ns,
            deadline_ns: None,
            respites: 0,
            used: None,
            past: Past::default(),
            exit: None,
            ended_for: None,
        }
    }

    /// The life of an NF of a version on trial.
    pub(crate) fn on_trial(now_ns: u64) -> Self {
        Self { course: Course { on_trial: true, ..Course::default() }, ..Self::new(now_ns, Origin::Started) }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn takes_packets(&self) -> bool {
        self.state == State::Running && !self.course.drains
    }

    pub(crate) fn drains(&self) -> bool {
        self.course.drains
    }

    pub(crate) fn is_on_trial(&self) -> bool {
        self.course.on_trial
    }

    pub(crate) fn leaves(&self) -> bool {
        self.course.leaves
    }

    /// Whether it is to be treated as ended, because it has no process of its own that would end.
    pub(crate) fn is_leaving(&self) -> bool {
        self.course.is_leaving
    }

    pub(crate) fn stays(&self) -> bool {
        !self.course.drains && !self.course.leaves && self.state != State::Stopping
    }

    /// Whether it will not be restarted, nor let in again.
    pub(crate) fn is_lost(&self) -> bool {
        self.state == State::Gone || self.state == State::Failed && self.deadline_ns.is_none()
    }

    pub(crate) fn awaits_fork(&self) -> bool {
        self.state == State::Starting && self.process == Process::None
    }

    /// Whether it was removed before it had a process.
    pub(crate) fn left_while_starting(&self) -> bool {
        self.state == State::Stopping && self.process == Process::None
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.past.restarts
    }

    pub(crate) fn stops(&self) -> u64 {
        self.past.stops
    }

    /// Consecutive ends without a good run in between.
    pub(crate) fn deaths_in_a_row(&self) -> u32 {
        self.past.streak.failures.max(self.past.offences.failures)
    }

    /// When it was started or admitted.
    pub(crate) fn started_ns(&self) -> u64 {
        self.started_ns
    }

    /// When its state ends by itself.
    #[cfg(test)]
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// Whether its state ends by itself now.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.deadline_ns.is_some_and(|deadline| now_ns >= deadline)
    }

    /// When its pause ends, if it has one.
    pub(crate) fn pause_until_ns(&self) -> Option<u64> {
        self.deadline_ns.filter(|_| matches!(self.state, State::Restarting | State::Failed))
    }

    /// Until when an NF that attaches by itself is kept out, and what it was stopped for, if it
    /// was.
    pub(crate) fn kept_out(&self) -> Option<(Option<StopReason>, u64)> {
        self.deadline_ns.filter(|_| self.state == State::Failed).map(|until_ns| (self.past.stopped_for, until_ns))
    }

    #[cfg(test)]
    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    fn to(&mut self, next: State) -> Result<(), Forbidden> {
        self.state = self.state.to(next)?;
        Ok(())
    }

    /// Handles an event, and returns the actions in their order.
    ///
    /// # Errors
    /// [`Forbidden`] if the event cannot happen in the present state. Nothing has changed then.
    pub(super) fn on(&mut self, now_ns: u64, event: Event) -> Result<Vec<Action>, Forbidden> {
        let mut todo = Vec::new();
        match event {
            Event::Launched => self.launched(now_ns)?,
            Event::Spawned => self.has_process(Process::Ours, (self.origin != Origin::Foreign).then_some(now_ns))?,
            Event::Forked => self.has_process(Process::Ours, None)?,
            Event::Found => self.has_process(Process::Theirs, None)?,
            Event::Asked => self.has_process(Process::None, Some(now_ns))?,
            Event::Built => self.has_namespace = true,
            Event::Settles(after) => self.deadline_ns = Some(now_ns + ns(after)),
            Event::Granted => self.is_attached = true,
            Event::Admitted => self.admitted(now_ns)?,
            Event::Ready if self.state == State::Starting && self.is_attached => {
                self.to(State::Running)?;
                todo.push(Action::Announce);
            }
            Event::Ready => {}
            Event::Joined => self.joined(now_ns)?,
            Event::MustStop(stop_reason, violations) => self.must_stop(stop_reason, violations, &mut todo),
            Event::Used(used, stall_ms) => self.has_stalled(now_ns, used, stall_ms, &mut todo),
            Event::Starved(is_starved) => self.said_no_hello(now_ns, is_starved, &mut todo),
            Event::Closed(is_ending) => {
                if self.state != State::Stopping && self.process != Process::None && !is_ending {
                    self.note(Cause::Closed);
                }
                todo.push(Action::Kill);
            }
            Event::Fails(cause) => self.note(cause),
            Event::Troubled(cause) => {
                self.note(cause);
                todo.push(if self.process == Process::Ours { Action::Kill } else { Action::Lose });
            }
            Event::Renewed => {
                self.course.renewed = true;
                todo.push(Action::Kill);
            }
            Event::StopRequested(drain) => self.stop_requested(now_ns, drain, &mut todo)?,
            Event::Superseded(drain) => {
                if self.state == State::Running && self.is_attached {
                    self.drain(now_ns, drain);
                }
            }
            Event::Drained if self.state == State::Running && self.course.drains => self.stop(now_ns, &mut todo)?,
            Event::Drained => {}
            Event::Shutdown => match self.state {
                State::Running => self.stop(now_ns, &mut todo)?,
                State::Starting => self.stop_requested(now_ns, Duration::ZERO, &mut todo)?,
                _ => {}
            },
            Event::TrialPassed => self.course.on_trial = false,
            Event::Leaves => self.course.leaves |= self.state == State::Running,
            Event::Exited(exit) => self.exit = exit,
            Event::Ended(ended) => self.ended(now_ns, &ended, &mut todo)?,
            Event::Due if self.is_due(now_ns) => self.due(now_ns, &mut todo)?,
            Event::Due => {}
        }
        Ok(todo)
    }

    /// Notes why it is about to be ended, or did not start, if no reason is noted yet.
    fn note(&mut self, cause: Cause) {
        self.ended_for.get_or_insert(cause);
    }

    fn launched(&mut self, now_ns: u64) -> Result<(), Forbidden> {
        // It was to be forked, and is spawned instead.
        if !self.awaits_fork() || self.is_attached {
            self.to(State::Starting)?;
        }
        (self.started_ns, self.deadline_ns) = (now_ns, None);
        (self.respites, self.used) = (0, None);
        Ok(())
    }

    /// Notes its process, which must send its hello in time from `from_ns`, if that is given.
    fn has_process(&mut self, process: Process, from_ns: Option<u64>) -> Result<(), Forbidden> {
        if self.state != State::Starting {
            return Err(Forbidden { from: self.state, to: State::Starting });
        }
        self.process = process;
        self.deadline_ns = from_ns.map(|now| now + ns(HELLO_PATIENCE)).or(self.deadline_ns);
        Ok(())
    }

    fn admitted(&mut self, now_ns: u64) -> Result<(), Forbidden> {
        if self.state != State::Starting || !self.is_attached {
            self.to(State::Starting)?;
        }
        self.process = Process::Ours;
        (self.deadline_ns, self.past.stopped_for) = (None, None);
        self.started_ns = now_ns;
        Ok(())
    }

    fn joined(&mut self, now_ns: u64) -> Result<(), Forbidden> {
        self.to(State::Running)?;
        self.is_attached = true;
        (self.started_ns, self.deadline_ns) = (now_ns, None);
        Ok(())
    }

    fn must_stop(&mut self, stop_reason: StopReason, violations: u64, todo: &mut Vec<Action>) {
        if !matches!(self.state, State::Starting | State::Running) || !self.is_attached {
            return;
        }
        match stop_reason {
            StopReason::None => {}
            // A dying process looks like one that waits for its core.
            StopReason::Stalled if self.ended_for.is_none() => todo.push(Action::LookAtUse),
            // Without violations it was stopped for another reason, which was logged.
            StopReason::Spent => self.end_for_cause(None, todo),
            // Its end is logged with what failed.
            StopReason::Failed => self.end_for_cause(None, todo),
            StopReason::Violations if violations == 0 => self.end_for_cause(None, todo),
            _ => self.end_for_cause(Some(stop_reason), todo),
        }
    }

    fn end_for_cause(&mut self, reported: Option<StopReason>, todo: &mut Vec<Action>) {
        todo.extend(reported.map(Action::ReportStopped));
        todo.push(Action::Kill);
        // There is no process of ours whose end would be noticed.
        self.course.is_leaving |= self.origin == Origin::Foreign && self.process != Process::Ours;
    }

    /// Gives an NF that stands still more time if it is runnable and has not run. That shows after
    /// a while, so it is spared once.
    fn has_stalled(&mut self, now_ns: u64, used: Option<Duration>, stall_ms: u64, todo: &mut Vec<Action>) {
        let is_spared = used.is_some_and(|used| {
            // Its CPU time from an earlier standstill does not count.
            let recent = |(_, at): &(Duration, u64)| now_ns.saturating_sub(*at) < 4 * ns(RESPITE);
            let before = self.used.replace((used, now_ns)).filter(recent);
            let has_run = |(before, at): (Duration, u64)| ns(used.saturating_sub(before)) > now_ns.saturating_sub(at) / 20;
            !before.is_some_and(has_run) && self.respites < MOST_RESPITES
        });
        if is_spared {
            self.respites += 1;
            todo.push(Action::Spare(now_ns + ns(RESPITE)));
        } else {
            self.note(Cause::Stalled(stall_ms));
            self.end_for_cause(Some(StopReason::Stalled), todo);
        }
    }

    fn said_no_hello(&mut self, now_ns: u64, is_starved: bool, todo: &mut Vec<Action>) {
        if self.state != State::Starting {
            return;
        }
        if is_starved && self.respites < RESPITES {
            self.respites += 1;
            self.deadline_ns = Some(now_ns + ns(HELLO_PATIENCE));
            todo.push(Action::ReportStarved(HELLO_PATIENCE * self.respites));
        } else {
            self.note(Cause::Silent(HELLO_PATIENCE.as_secs() * u64::from(self.respites + 1)));
            todo.extend([Action::ReportSilent, Action::Kill]);
        }
    }

    fn drain(&mut self, now_ns: u64, drain: Duration) {
        self.course.drains = true;
        self.deadline_ns = Some(now_ns + ns(drain));
    }

    fn stop_requested(&mut self, now_ns: u64, drain: Duration, todo: &mut Vec<Action>) -> Result<(), Forbidden> {
        match self.state {
            State::Running => {
                self.drain(now_ns, drain);
                todo.push(Action::Drain);
            }
            State::Starting => {
                self.to(State::Stopping)?;
                todo.push(Action::Kill);
                match self.origin {
                    // If its namespace is being built, the thread that builds it notices.
                    Origin::Foreign => self.course.is_leaving = self.process != Process::Ours && self.has_namespace,
                    // It was to be forked. If it is forked after all, its zygote's report or its
                    // hello shows that, and it is ended then.
                    _ if self.process == Process::None => todo.push(Action::Lose),
                    _ => {}
                }
            }
            State::Stopping | State::Gone => {}
            // A foreign program's former namespace may still be in clearing, without the NF.
            State::Expected | State::Restarting | State::Failed => {
                self.to(State::Gone)?;
                todo.push(Action::Remove);
            }
        }
        Ok(())
    }

    fn stop(&mut self, now_ns: u64, todo: &mut Vec<Action>) -> Result<(), Forbidden> {
        self.to(State::Stopping)?;
        self.course.drains = false;
        self.deadline_ns = Some(now_ns + ns(STOP_PATIENCE));
        let is_foreign = self.origin == Origin::Foreign;
        self.course.is_leaving = is_foreign && self.process != Process::Ours;
        todo.push(if is_foreign { Action::Terminate } else { Action::SayStop });
        Ok(())
    }

    fn due(&mut self, now_ns: u64, todo: &mut Vec<Action>) -> Result<(), Forbidden> {
        self.deadline_ns = None;
        match self.state {
            State::Running if self.course.drains => self.stop(now_ns, todo)?,
            State::Restarting => {
                self.past.restarts += 1;
                todo.push(Action::Launch(Again::AfterPause));
            }
            State::Starting if self.origin == Origin::Foreign => todo.push(Action::Settle),
            State::Starting if self.process == Process::None => todo.push(Action::ForkIsLate),
            State::Starting if self.respites < RESPITES => todo.push(Action::LookWhetherStarved),
            State::Starting => self.said_no_hello(now_ns, false, todo),
            State::Stopping => todo.push(Action::Kill),
            // It had attached by itself.
            State::Failed => self.to(State::Expected)?,
            State::Expected | State::Running | State::Gone => {}
        }
        Ok(())
    }

    fn ended(&mut self, now_ns: u64, ended: &Ended, todo: &mut Vec<Action>) -> Result<(), Forbidden> {
        let has_none = match self.state {
            State::Expected => self.origin != Origin::Arrives,
            state => matches!(state, State::Restarting | State::Failed | State::Gone),
        };
        if has_none {
            (self.exit, self.ended_for, self.course.renewed) = Default::default();
            todo.push(Action::Reclaim);
            return Ok(());
        }
        let stop_reason = ended.stop_reason;
        let for_cause = matches!(stop_reason, StopReason::Violations | StopReason::Stalled);
        let ran_ns = now_ns.saturating_sub(self.started_ns);
        let is_renewed = std::mem::take(&mut self.course.renewed) && !for_cause;
        if self.course.on_trial && !is_renewed {
            todo.push(Action::TrialFailed(match self.is_attached {
                true => TrialEnd::BeforeReady,
                false if ran_ns >= ns(HELLO_PATIENCE) => TrialEnd::Silent,
                false => TrialEnd::BeforeHello,
            }));
        }
        self.past.stops += u64::from(for_cause);
        self.past.stopped_for = for_cause.then_some(stop_reason);
        let cause = self.cause(ended, is_renewed);
        let comes = self.origin == Origin::Arrives;
        let (is_fresh, is_spent) = (is_renewed && !comes, stop_reason == StopReason::Spent);
        let goes = self.course.drains || self.course.leaves || self.course.on_trial && !is_fresh;
        let mut pause_ns = None;
        let next = match self.state {
            State::Stopping => State::Gone,
            _ if goes => State::Gone,
            _ if comes && !for_cause => {
                if !is_renewed {
                    pause_ns = self.pause(stop_reason, ran_ns).filter(|pause| *pause > 0);
                }
                if pause_ns.is_some() { State::Failed } else { State::Expected }
            }
            // It is to get its tenant's fresh memory.
            _ if is_fresh => State::Restarting,
            _ if !comes && !ended.comes_again => State::Failed,
            // Its end was requested.
            _ if is_spent => State::Restarting,
            _ => {
                pause_ns = self.pause(stop_reason, ran_ns);
                if comes || pause_ns.is_none() { State::Failed } else { State::Restarting }
            }
        };
        self.take_end(next)?;
        self.deadline_ns = pause_ns.map(|pause| now_ns + pause);
        if next != State::Gone && !is_spent {
            let (ran, pause) = (Duration::from_nanos(ran_ns), pause_ns.map(Duration::from_nanos));
            todo.push(Action::ReportEnd(End { cause, ran, next, pause }));
        }
        todo.push(Action::Reclaim);
        todo.extend(self.what_follows(next, pause_ns));
        Ok(())
    }

    fn cause(&mut self, ended: &Ended, is_renewed: bool) -> Cause {
        let (times, last) = ended.violations;
        let noted = self.ended_for.take();
        let ended_for = match ended.stop_reason {
            StopReason::Violations => Some(Cause::Violations { times, last }),
            StopReason::Stalled => Some(Cause::Stalled(ended.stall_ms)),
            _ if is_renewed => Some(Cause::Renewed),
            _ => noted,
        };
        Cause::of(self.exit.take(), ended_for, ended.lacked_memory)
    }

    /// The pause until it is restarted or admitted again; none if it is not.
    fn pause(&mut self, stop_reason: StopReason, ran_ns: u64) -> Option<u64> {
        // One that is still expected was not admitted.
        let ran_ns = restart::run_ns(self.is_attached && self.state != State::Expected, ran_ns);
        let decision = match stop_reason {
            // It has stood still for `stall_ms` already.
            StopReason::Stalled if self.origin != Origin::Arrives => AFTER_CAUSE.after_failure(&mut self.past.offences, ran_ns),
            StopReason::Violations | StopReason::Stalled => AFTER_CAUSE.after_offence(&mut self.past.offences, ran_ns),
            _ => BACKOFF.after_failure(&mut self.past.streak, ran_ns),
        };
        match decision {
            RestartDecision::StartAfter(pause_ns) => Some(pause_ns),
            RestartDecision::GiveUp => None,
        }
    }

    /// Notes that it has no process, and its next state.
    fn take_end(&mut self, next: State) -> Result<(), Forbidden> {
        if next == State::Gone && self.state != State::Stopping {
            self.to(State::Stopping)?;
        }
        if self.state != next {
            self.to(next)?;
        }
        (self.process, self.is_attached, self.has_namespace) = (Process::None, false, false);
        self.course.is_leaving = false;
        Ok(())
    }

    fn what_follows(&mut self, next: State, pause_ns: Option<u64>) -> Option<Action> {
        match (next, pause_ns) {
            (State::Gone, _) => Some(Action::Remove),
            (State::Restarting, None) => Some(Action::Launch(Again::Fresh)),
            // What a foreign program leaves behind is still being cleared.
            (State::Restarting, Some(0)) if self.origin != Origin::Foreign => {
                self.deadline_ns = None;
                self.past.restarts += 1;
                Some(Action::Launch(Again::AtOnce))
            }
            _ => self.deadline_ns.map(Action::ScheduleAt),
        }
    }
}
