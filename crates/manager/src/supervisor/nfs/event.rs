//! What happens to an NF, and what is to be done then: what goes into its [`Life`](super::Life) and
//! what comes out.

use std::time::Duration;

use super::state::State;
use crate::nf::death::Cause;
use sluice_dataplane::handle::{Sentence, Violation};
use sluice_host::process::Exit;

/// Something that has happened to an NF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// Its process is about to be started: by its program, its zygote or the runtime of its
    /// container; or the namespace of a foreign program is about to be built.
    Launched,
    /// Its process was spawned.
    Spawned,
    /// Its zygote was asked for it.
    Asked,
    /// Its zygote has forked it.
    Forked,
    /// The process of a foreign program was found, which somebody else has started.
    Found,
    /// The namespace of a foreign program is there.
    Built,
    /// A foreign program is to be looked at after so long: whether it is there and connected.
    Settles(Duration),
    /// It was given memory, and is about to be let in.
    Granted,
    /// It was let in.
    Admitted,
    /// Its handler is made.
    Ready,
    /// A foreign program is fed.
    Joined,
    /// Packet threads ask for its end: why, and how many violations it has.
    Condemned(Sentence, u64),
    /// What its processes have used, if it waits for its core; and the limit that it has passed, in
    /// milliseconds (`manager.stall_ms`).
    Used(Option<Duration>, u64),
    /// Whether the host was so busy that it could not say hello.
    Starved(bool),
    /// Its connection was closed; whether its process is about to end anyhow.
    Closed(bool),
    /// It cannot go on for this, and is lost next.
    Fails(Cause),
    /// It cannot go on for this.
    Troubled(Cause),
    /// It is to be started again with fresh packet memory.
    Renewed,
    /// It is to be gone; how long its packets may take to pass.
    StopRequested(Duration),
    /// Another one has its place and its flows; how long its packets may take to pass.
    Superseded(Duration),
    /// The last of its packets has passed.
    Drained,
    /// The manager stops.
    Shutdown,
    /// The version that it is of works, and is the service's now.
    TrialPassed,
    /// Its service has another version: it goes with the flow that it has.
    Leaves,
    /// Its process was collected, and has ended so.
    Exited(Option<Exit>),
    /// Nothing is left of its process.
    Ended(Ended),
    /// The state that it is in may be over by itself.
    Due,
}

/// What is known of an NF when nothing is left of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    /// For what packet threads have asked for its end.
    pub(crate) sentence: Sentence,
    /// How many violations it had, and what the last one was.
    pub(crate) violations: (u64, Option<Violation>),
    /// The kernel has killed in its cgroup for want of memory.
    pub(crate) lacked_memory: bool,
    /// Whether its service's NFs are started again (`on_failure`, pools).
    pub(crate) comes_again: bool,
    /// How long an NF may hold packets (`manager.stall_ms`).
    pub(crate) stall_ms: u64,
}

/// What the supervisor is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Start its process.
    Launch(Again),
    /// End its process at once.
    Kill,
    /// Ask its process to end by a signal.
    Terminate,
    /// Ask it to end by the word in its page.
    SayStop,
    /// Give it no new packets, and look when the last has passed.
    Drain,
    /// It takes packets from now on.
    Announce,
    /// Look whether its process has hardly run, and feed [`Event::Starved`].
    LookWhetherStarved,
    /// Look what its processes have used, and feed [`Event::Used`].
    LookAtUse,
    /// Hold nothing against it before this, in nanoseconds of the monotonic clock.
    Spare(u64),
    /// Say that it is waited for, because its core is busy, after so long.
    TellStarved(Duration),
    /// Say that it is stopped because it said no hello.
    TellSilent,
    /// Say what it is stopped for.
    TellStopped(Sentence),
    /// See whether a foreign program has settled.
    Settle,
    /// Its zygote has not forked it in time.
    ForkIsLate,
    /// Nothing would report its end: it has ended.
    Lose,
    /// Its version does not work: why.
    TrialFailed(TrialEnd),
    /// Say that it has ended.
    TellEnd(End),
    /// Take back what it has, frames last.
    Reclaim,
    /// Wake up no later than this, in nanoseconds of the monotonic clock.
    ScheduleAt(u64),
    /// Forget it.
    Bury,
}

/// Why a process is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// Because it ended, at once.
    AtOnce,
    /// Because it ended, after a pause.
    AfterPause,
    /// Because a fresh one was asked for.
    Fresh,
}

/// How far an NF of a version on trial had come when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrialEnd {
    /// It had said hello, and its handler was not made.
    BeforeReady,
    /// It was waited for in vain.
    Silent,
    /// It had said no hello.
    BeforeHello,
}

/// How a process ended, and what comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) cause: Cause,
    pub(crate) ran: Duration,
    pub(super) next: State,
    pub(super) pause: Option<Duration>,
}

impl End {
    /// What becomes of the NF, in words.
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
