//! The states of an NF, and the table of transitions between them.
//!
//! An NF is a name in the configuration that has at most one process at a time. [`STEPS`] is the
//! table: [`State::to`] refuses every other transition. docs/src/how-nfs.md has it as a test prints
//! it. In particular:
//! - A running NF cannot start to run again: a name has one process, so a hello for an NF that is
//!   attached, stops or waits is refused.
//! - An NF with a process is gone only after stopping: its frames are taken back when its process
//!   has ended.
//! - A stopping NF can only be gone next: one that dies while it is being stopped is not restarted.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// Configured, no process known.
    Expected,
    /// Its process was started, and its handler is not made yet.
    Starting,
    /// Attached and ready: it may get packets.
    Running,
    /// Asked to end; it gets no more packets.
    Stopping,
    /// Its process has ended, and a new one starts after a pause.
    Restarting,
    /// Its process has ended, and no new one starts; one that comes by itself is let in after a
    /// pause.
    Failed,
    Gone,
}

/// A transition that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an NF that is {from} cannot become {to}")]
pub(crate) struct Forbidden {
    pub(crate) from: State,
    pub(crate) to: State,
}

use State::{Expected, Failed, Gone, Restarting, Running, Starting, Stopping};

/// The transitions, and when each is taken.
const STEPS: [(State, State, &str); 17] = [
    (Expected, Starting, "the manager starts its process, or it came by itself (`attach = true`) and its hello was accepted"),
    (Expected, Failed, "processes that came by themselves left before they were let in: a pause begins"),
    (Expected, Gone, "it is removed before it came"),
    (Starting, Running, "it says that its handler is made"),
    (Starting, Restarting, "it ended, could not be started, or said no hello in time, and is to be tried again"),
    (
        Starting,
        Failed,
        "the same, and it is not to be tried again; or it had come by itself, as another shortly before: a pause begins",
    ),
    (Starting, Expected, "it came by itself and left before it was ready"),
    (Starting, Stopping, "it is removed, or the manager stops; or it is of a version on trial, and ended"),
    (Running, Stopping, "it is removed, or the manager stops; or it ended on its way out"),
    (Running, Restarting, "it ended and is to be started again"),
    (
        Running,
        Failed,
        "it ended and is not to be started again; or it had come by itself, and was stopped for cause or ended soon once more: a \
         pause begins",
    ),
    (Running, Expected, "it came by itself and left: another process may come in its name"),
    (Stopping, Gone, "its process has ended, by itself or killed"),
    (Restarting, Starting, "the wait is over"),
    (Restarting, Gone, "it is removed; there is no process to stop"),
    (Failed, Expected, "the pause of an NF that comes by itself is over"),
    (Failed, Gone, "it is removed"),
];

impl State {
    /// All states, in the order of the table.
    #[cfg(test)]
    const ALL: [Self; 7] = [Expected, Starting, Running, Stopping, Restarting, Failed, Gone];

    /// The next state.
    ///
    /// # Errors
    /// [`Forbidden`] if the table has no such transition; the NF keeps its state.
    pub(crate) fn to(self, next: Self) -> Result<Self, Forbidden> {
        let is_step = STEPS.iter().any(|(from, to, _)| (*from, *to) == (self, next));
        if is_step { Ok(next) } else { Err(Forbidden { from: self, to: next }) }
    }

    /// The same word in logs, the API and the client.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Expected => "expected",
            Starting => "starting",
            Running => "running",
            Stopping => "stopping",
            Restarting => "restarting",
            Failed => "failed",
            Gone => "gone",
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.word())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use sluice_api::model::NfState;

    /// The process of an NF in each state.
    fn process_of(state: State) -> &'static str {
        match state {
            Expected => "none known",
            Starting => "spawned, or asked of its zygote, or attached; its handler is not made yet",
            Running => "attached and ready",
            Stopping => "asked to end",
            Restarting => "none, waits its back-off",
            Failed | Gone => "none",
        }
    }

    /// The table as docs/src/how-nfs.md has it.
    fn table() -> String {
        let mut lines = vec!["| state | process | may become | when |".to_string(), "|---|---|---|---|".to_string()];
        for state in State::ALL {
            let mut first = format!("{state} | {}", process_of(state));
            for (_, to, when) in STEPS.iter().filter(|(from, ..)| *from == state) {
                lines.push(format!("| {first} | {to} | {when} |"));
                first = "|".into();
            }
            if state == Gone {
                lines.push(format!("| {first} | nothing | its name may be given to a new NF, which starts as expected |"));
            }
        }
        lines.join("\n") + "\n"
    }

    pub(in super::super) fn steps() -> impl Iterator<Item = (State, State)> {
        STEPS.iter().map(|(from, to, _)| (*from, *to))
    }

    #[test]
    fn what_the_table_does_not_have_is_refused() {
        for (from, to) in State::ALL.into_iter().flat_map(|from| State::ALL.map(|to| (from, to))) {
            let expected = if steps().any(|step| step == (from, to)) { Ok(to) } else { Err(Forbidden { from, to }) };
            assert_eq!(from.to(to), expected, "{from} to {to}");
        }
    }

    #[test]
    fn the_table_in_the_documentation_is_the_one_in_force() {
        let printed = include_str!("../../../../../docs/src/how-nfs.md");
        assert!(printed.contains(&table()), "print this in docs/src/how-nfs.md:\n{}", table());
    }

    #[test]
    fn what_has_a_process_goes_through_stopping() {
        for state in [Starting, Running] {
            assert!(state.to(Gone).is_err());
            assert!(state.to(Stopping).is_ok());
        }
    }

    #[test]
    fn words_are_the_same_everywhere() {
        for (state, told) in [
            (Expected, NfState::Expected),
            (Starting, NfState::Starting),
            (Running, NfState::Running),
            (Stopping, NfState::Stopping),
            (Restarting, NfState::Restarting),
            (Failed, NfState::Failed),
        ] {
            assert_eq!(serde_json::to_value(told).unwrap(), state.to_string());
        }
        assert_eq!(format!("[{:>8}]", Gone), "[    gone]");
        assert_eq!(Gone.to(Running).unwrap_err().to_string(), "an NF that is gone cannot become running");
    }
}
