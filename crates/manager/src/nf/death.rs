//! Why an NF's process ended.
//!
//! # Problem
//! To find out why an NF died, an operator needs its signal or exit code, whether the kernel had no
//! memory left for it, or why the daemon stopped it.
//!
//! # Approach
//! Three things are known when a process is collected: how it ended ([`Exit`]), why the daemon
//! ended it if it did, and whether the kernel killed for want of memory in its cgroup.
//! [`Cause::of`] makes one cause of them. What the process did by itself comes before what the
//! daemon was about to do to it.
//!
//! # Limits
//! Only its parent learns how a process ended. Of an NF that something else started (a script, a
//! container's runtime, an operator), only the end is known.

use std::fmt;

use sluice_api::health::DeathCause;
use sluice_dataplane::handle::Violation;
use sluice_host::process::{Exit, signal_name};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cause {
    /// By itself, or by a signal from elsewhere.
    Ended(Exit),
    Memory,
    Violations {
        /// How many; 0 if it was stopped for the first.
        times: u64,
        /// The kind of the last one.
        last: Option<Violation>,
    },
    /// It was stopped because it held packets for this many milliseconds and returned none.
    Stalled(u64),
    /// It was stopped because it sent no hello within this many seconds.
    Silent(u64),
    /// It closed its connection, and was stopped.
    Closed,
    /// It was stopped to start again with fresh packet memory; not a fault.
    Renewed,
    /// It could not be started or admitted, and why.
    Unstarted(String),
    /// Its handlers have failed in a packet thread, and how.
    Failed(String),
    #[default]
    Unknown,
}

impl Cause {
    /// The cause, from how the process ended, why the daemon ended it, and whether the kernel
    /// killed for want of memory in its cgroup.
    pub fn of(exit: Option<Exit>, ended_for: Option<Self>, lacked_memory: bool) -> Self {
        const KILLED: Exit = Exit::Signal(libc::SIGKILL);
        match (exit, ended_for) {
            // It was over its limit, however it ended.
            (_, Some(cause @ (Self::Violations { .. } | Self::Stalled(_)))) => cause,
            (Some(KILLED), _) if lacked_memory => Self::Memory,
            (Some(KILLED) | None, Some(cause)) => cause,
            (Some(exit), _) => Self::Ended(exit),
            (None, None) => Self::Unknown,
        }
    }

    /// The cause as the API reports it.
    pub fn kind(&self) -> DeathCause {
        match self {
            Self::Ended(Exit::Signal(_)) => DeathCause::Signal,
            Self::Ended(Exit::Code(_)) => DeathCause::Exit,
            Self::Memory => DeathCause::Memory,
            Self::Violations { .. } => DeathCause::Violations,
            Self::Stalled(_) => DeathCause::Stalled,
            Self::Silent(_) => DeathCause::Silent,
            Self::Closed => DeathCause::Closed,
            Self::Unstarted(_) => DeathCause::Unstarted,
            Self::Failed(_) => DeathCause::Failed,
            Self::Renewed | Self::Unknown => DeathCause::Unknown,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(exit @ Exit::Signal(_)) => write!(f, "killed by {exit}"),
            // As a shell and a container's runtime report it.
            Self::Ended(exit @ Exit::Code(code)) => match signal_name(code - 128) {
                Some(name) => write!(f, "{exit} (which stands for {name})"),
                None => write!(f, "{exit}"),
            },
            Self::Memory => write!(f, "out of memory: the kernel killed it"),
            Self::Violations { times, last } => {
                write!(f, "stopped for violations")?;
                match (times, last) {
                    (0, Some(last)) => write!(f, ": it {last}"),
                    (n, Some(last @ Violation::Hole)) => write!(f, ": {n} of them; the last time it {last}"),
                    (n, Some(last)) => write!(f, ": {n} forged descriptors or cursors; the last time it {last}"),
                    (n, None) => write!(f, ": {n} forged descriptors or cursors"),
                }
            }
            Self::Stalled(ms) => write!(f, "stopped because it held packets for {ms} ms and returned none (manager.stall_ms)"),
            Self::Silent(seconds) => write!(f, "stopped because it said no hello within {seconds} s"),
            Self::Closed => write!(f, "stopped because it closed its connection to the daemon"),
            Self::Renewed => write!(f, "ended to have fresh packet memory"),
            Self::Unstarted(why) => write!(f, "not started: {why}"),
            Self::Failed(how) => write!(f, "{how}"),
            Self::Unknown => write!(f, "for a reason that is not known, because only its parent learns how it ended"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_did_by_itself_comes_before_what_was_to_be_done_to_it() {
        const SEGV: Exit = Exit::Signal(libc::SIGSEGV);
        const KILL: Exit = Exit::Signal(libc::SIGKILL);
        let violations = || Cause::Violations { times: 5, last: Some(Violation::Frame) };
        for (exit, ended_for, lacked_memory, cause) in [
            (Some(SEGV), None, false, Cause::Ended(SEGV)),
            (Some(SEGV), Some(Cause::Closed), true, Cause::Ended(SEGV)),
            (Some(KILL), Some(Cause::Closed), false, Cause::Closed),
            (Some(KILL), None, false, Cause::Ended(KILL)),
            (Some(KILL), None, true, Cause::Memory),
            (Some(KILL), Some(violations()), true, violations()),
            (Some(Exit::Code(3)), Some(Cause::Silent(10)), false, Cause::Ended(Exit::Code(3))),
            (None, Some(Cause::Silent(10)), false, Cause::Silent(10)),
            (None, None, false, Cause::Unknown),
        ] {
            assert_eq!(Cause::of(exit, ended_for, lacked_memory), cause);
        }
    }

    #[test]
    fn causes_read_as_sentences_do() {
        let words = |cause: Cause| cause.to_string();
        assert_eq!(words(Cause::Ended(Exit::Signal(libc::SIGSEGV))), "killed by signal 11 (SIGSEGV)");
        assert_eq!(words(Cause::Ended(Exit::Code(3))), "exit status 3");
        assert_eq!(words(Cause::Ended(Exit::Code(139))), "exit status 139 (which stands for SIGSEGV)");
        let forged = Cause::Violations { times: 65, last: Some(Violation::Frame) };
        let said =
            "stopped for violations: 65 forged descriptors or cursors; the last time it returned a frame that it did not have";
        assert_eq!(words(forged), said);
        let dug = Cause::Violations { times: 65, last: Some(Violation::Hole) };
        let said = "stopped for violations: 65 of them; the last time it has, or may have, made a hole in shared memory";
        assert_eq!(words(dug), said);
    }
}
