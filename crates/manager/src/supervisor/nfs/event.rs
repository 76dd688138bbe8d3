//! Input and output of an NF's [`Life`](super::Life): events and actions.

use std::time::Duration;

use super::state::State;
use crate::nf::death::Cause;
use sluice_dataplane::handle::{StopReason, Violation};
use sluice_host::process::Exit;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// Its process is about to be started by its program, its zygote or its container's runtime; or
    /// a foreign program's namespace is about to be built.
    Launched,
    Spawned,
    /// Its zygote was asked to fork it.
    Asked,
    Forked,
    /// The process of a foreign program was found, which something else has started.
    Found,
    Built,
    /// A foreign program is to be checked after this time: whether it runs and is connected.
    Settles(Duration),
    /// It has got its memory, and is about to be admitted.
    Granted,
    Admitted,
    Ready,
    Joined,
    /// Packet threads request its stop: the reason, and its number of violations.
    MustStop(StopReason, u64),
    /// The CPU time of its processes, if it waits for its core; and the limit that it has passed,
    /// in milliseconds (`manager.stall_ms`).
    Used(Option<Duration>, u64),
    /// Whether the host was too busy for it to send its hello.
    Starved(bool),
    /// Its connection was closed; whether its process is ending anyway.
    Closed(bool),
    /// It cannot go on for this reason, and will be lost next.
    Fails(Cause),
    Troubled(Cause),
    /// It is to be started again with fresh packet memory.
    Renewed,
    /// It is to be removed; the longest time for its packets to pass.
    StopRequested(Duration),
    /// Another NF has its place and its flows; the longest time for its packets to pass.
    Superseded(Duration),
    /// The last of its packets has passed.
    Drained,
    Shutdown,
    /// Its version works, and is now the service's.
    TrialPassed,
    /// Its service has another version: it leaves with its present flow.
    Leaves,
    /// Its process was collected; how it ended.
    Exited(Option<Exit>),
    Ended(Ended),
    /// The deadline of its state may have passed.
    Due,
}

/// What is known of an NF when nothing is left of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) stop_reason: StopReason,
    /// How many violations it had, and the last one.
    pub(crate) violations: (u64, Option<Violation>),
    /// Whether the kernel has killed in its cgroup for want of memory.
    pub(crate) lacked_memory: bool,
    /// Whether its service's NFs are restarted (`on_failure`, pools).
    pub(crate) comes_again: bool,
    /// How long an NF may hold packets (`manager.stall_ms`).
    pub(crate) stall_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Launch(Again),
    Kill,
    /// Ask its process to end by a signal.
    Terminate,
    /// Ask it to stop through its page.
    SayStop,
    /// Give it no new packets, and check when the last one has passed.
    Drain,
    /// Make it eligible for packets.
    Announce,
    /// Check whether its process has hardly run, and feed [`Event::Starved`].
    LookWhetherStarved,
    /// Check the CPU time of its processes, and feed [`Event::Used`].
    LookAtUse,
    /// Hold nothing against it before this time, in nanoseconds of the monotonic clock.
    Spare(u64),
    /// Log that the daemon still waits for it after this time, because its core is busy.
    ReportStarved(Duration),
    /// Log that it is stopped because it sent no hello.
    ReportSilent,
    ReportStopped(StopReason),
    Settle,
    ForkIsLate,
    /// Treat it as ended: nothing would report its end.
    Lose,
    /// Its version does not work: why.
    TrialFailed(TrialEnd),
    ReportEnd(End),
    /// Take back what it has, frames last.
    Reclaim,
    /// Wake up no later than this time, in nanoseconds of the monotonic clock.
    ScheduleAt(u64),
    Remove,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// It ended, and restarts at once.
    AtOnce,
    /// It ended, and restarts after a pause.
    AfterPause,
    Fresh,
}

/// How far an NF of a version on trial had come when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrialEnd {
    /// It had sent its hello, and its handler was not made.
    BeforeReady,
    Silent,
    BeforeHello,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) cause: Cause,
    pub(crate) ran: Duration,
    pub(super) next: State,
    pub(super) pause: Option<Duration>,
}

impl End {
    pub(crate) fn next(&self) -> String {
        let time = |pause: Duration| match pause.as_millis() {
            ms @ ..1_000 => format!("{ms} ms"),
            _ => format!("{:.1} s", pause.as_secs_f64()),
        };
        match (self.next, self.pause) {
            (State::Restarting, None | Some(Duration::ZERO)) => "it is started again at once".into(),
            (State::Restarting, Some(pause)) => format!("it is started again in {}", time(pause)),
            (State::Failed, Some(pause)) => format!("it is let in again in {}", time(pause)),
            (State::Failed, None) => "it is not started again (on_failure)".into(),
            (State::Expected, _) => "another process may come in its place".into(),
            (state, _) => format!("it is {state} now"),
        }
    }
}
