//! The life of a network function's process: [`spawn`](sluice_host::spawn) starts it, by itself or as an OCI runtime
//! that starts its [`container`](sluice_host::container), [`attach`] meets it, [`output`] logs what it says,
//! [`record`](sluice_host::record) remembers it for the next manager.
//!
//! An NF is a name in the configuration that has at most one process at a time. [`State`] says where it stands:
//!
//! | state | process | may become | when |
//! |---|---|---|---|
//! | expected | none known | starting | the manager starts its process, or it came by itself (`attach = true`) and its hello was accepted |
//! | | | gone | it is removed before it came |
//! | starting | spawned, or asked of its zygote, or attached; its handler is not made yet | running | it says that its handler is made |
//! | | | restarting | it ended, could not be started, or said no hello in time, and is to be tried again |
//! | | | failed | the same, and it is not to be tried again |
//! | | | expected | it came by itself and left before it was ready |
//! | | | stopping | it is removed, or the manager stops |
//! | running | attached and ready | stopping | it is removed, or the manager stops |
//! | | | restarting | it ended and is to be started again |
//! | | | failed | it ended and is not to be started again, or it had come by itself and was stopped for cause: a pause begins |
//! | | | expected | it came by itself and left: another process may come in its name |
//! | stopping | told to end | gone | its process has ended, by itself or killed |
//! | restarting | none, waits its back-off | starting | the wait is over |
//! | | | failed | a further start cannot succeed, or the policy gives up |
//! | | | gone | it is removed; there is no process to stop |
//! | failed | none | starting | the operator has it started again |
//! | | | expected | the pause of an NF that comes by itself is over |
//! | | | gone | it is removed |
//! | gone | none | nothing | its name may be given to a new NF, which starts as expected |
//!
//! Everything else is forbidden, and [`State::to`] refuses it. In particular
//! - nothing becomes running twice: a name has one process, so a hello for an NF that is attached, stops or waits is refused;
//! - nothing with a process becomes gone but through stopping: its frames are taken back when its process has ended, not before;
//! - stopping leads nowhere but to gone: an NF that dies while it is being stopped is not started again.

pub mod attach;
pub mod death;
pub mod output;

use serde::{Deserialize, Serialize};

/// Where an NF stands in its life; see the table of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Configured, no process known.
    Expected,
    /// Its process was started, and its handler is not made yet.
    Starting,
    /// Attached and ready: packets may be given to it.
    Running,
    /// Told to end; it is given no more packets.
    Stopping,
    /// Its process has ended, and a new one is started after a wait.
    Restarting,
    /// Its process has ended, and no new one is started.
    Failed,
    /// Removed.
    Gone,
}

/// A step that the life of an NF does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an NF that is {from} cannot become {to}")]
pub struct Forbidden {
    /// Where it stood.
    pub from: State,
    /// Where it was to go.
    pub to: State,
}

impl State {
    /// All states, in the order of the table.
    pub const ALL: [Self; 7] =
        [Self::Expected, Self::Starting, Self::Running, Self::Stopping, Self::Restarting, Self::Failed, Self::Gone];

    /// States that may follow this one.
    pub const fn successors(self) -> &'static [Self] {
        match self {
            Self::Expected => &[Self::Starting, Self::Gone],
            Self::Starting => &[Self::Running, Self::Restarting, Self::Failed, Self::Stopping, Self::Expected],
            Self::Running => &[Self::Stopping, Self::Restarting, Self::Failed, Self::Expected],
            Self::Stopping => &[Self::Gone],
            Self::Restarting => &[Self::Starting, Self::Failed, Self::Gone],
            Self::Failed => &[Self::Starting, Self::Expected, Self::Gone],
            Self::Gone => &[],
        }
    }

    /// The next state.
    ///
    /// # Errors
    /// [`Forbidden`] if the table has no such step; the NF stays where it is.
    pub fn to(self, next: Self) -> Result<Self, Forbidden> {
        if self.successors().contains(&next) { Ok(next) } else { Err(Forbidden { from: self, to: next }) }
    }

    /// Whether an NF in this state has a process that the manager must wait for before it forgets the NF.
    pub const fn has_process(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Stopping)
    }

    /// As a word, the same one in logs, the API and the client.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Expected => "expected",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Restarting => "restarting",
            Self::Failed => "failed",
            Self::Gone => "gone",
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The allowed steps (x), once more and by hand: rows and columns in the order of [`State::ALL`].
    const ALLOWED: [&str; 7] = [
        // expected starting running stopping restarting failed gone
        ". x . . . . x", // expected
        "x . x x x x .", // starting
        "x . . x x x .", // running
        ". . . . . . x", // stopping
        ". x . . . x x", // restarting
        "x x . . . . x", // failed
        ". . . . . . .", // gone
    ];

    #[test]
    fn every_pair_of_states_is_allowed_or_forbidden_as_the_table_says() {
        for (from, row) in State::ALL.into_iter().zip(ALLOWED) {
            for (to, mark) in State::ALL.into_iter().zip(row.split(' ')) {
                let expected = if mark == "x" { Ok(to) } else { Err(Forbidden { from, to }) };
                assert_eq!(from.to(to), expected, "{from} to {to}");
            }
        }
    }

    #[test]
    fn the_table_in_the_documentation_is_the_one_in_force() {
        let mut from = None;
        let mut documented = Vec::new();
        for line in include_str!("mod.rs").lines().filter_map(|l| l.strip_prefix("//! |")) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let named = |word: &str| State::ALL.into_iter().find(|s| s.word() == word);
            from = named(cells[0]).or(from);
            if let (Some(from), Some(to)) = (from, named(cells[2])) {
                documented.push((from, to));
            }
        }
        let mut in_force: Vec<_> = State::ALL.into_iter().flat_map(|f| f.successors().iter().map(move |t| (f, *t))).collect();
        let key = |pair: &(State, State)| (pair.0.word(), pair.1.word());
        in_force.sort_by_key(key);
        documented.sort_by_key(key);
        assert_eq!(documented, in_force);
    }

    #[test]
    fn what_has_a_process_goes_through_stopping() {
        for state in State::ALL.into_iter().filter(|s| s.has_process() && *s != State::Stopping) {
            assert!(state.to(State::Gone).is_err());
            assert!(state.to(State::Stopping).is_ok());
        }
    }

    #[test]
    fn words_are_the_same_everywhere() {
        for state in State::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.to_string());
        }
        assert_eq!(format!("[{:>8}]", State::Gone), "[    gone]");
        assert_eq!(State::Gone.to(State::Running).unwrap_err().to_string(), "an NF that is gone cannot become running");
    }
}
