//! The daemon, as far as the agent needs it.

use std::path::Path;

use sluice_api::ErrorKind;
use sluice_api::client::{Client, ClientError};
use sluice_api::model::Apply;
use sluice_api::promise::Promises;
use sluice_slo::assignment::Assignment;

/// Why a request did nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DaemonError {
    /// The daemon does not want it: the same request will not do better.
    #[error("{0}")]
    Refused(String),
    /// It does not answer, or not now.
    #[error("{0}")]
    Away(String),
}

/// What the agent asks of a daemon.
pub trait Daemon {
    /// Applies a configuration, written in TOML. Relative paths in it start at the folder of
    /// `base`.
    fn apply(&mut self, config: &str, base: &Path) -> Result<(), DaemonError>;
    fn place(&mut self, assignment: &Assignment) -> Result<Vec<String>, DaemonError>;
    fn withdraw(&mut self) -> Result<(), DaemonError>;
    /// The assignment in force.
    fn placement(&mut self) -> Result<Option<Assignment>, DaemonError>;
    fn promises(&mut self) -> Result<Promises, DaemonError>;
}

impl From<ClientError> for DaemonError {
    fn from(error: ClientError) -> Self {
        match &error {
            ClientError::Api(api) if !matches!(api.kind, ErrorKind::ShuttingDown | ErrorKind::Internal) => {
                Self::Refused(error.to_string().replace("\n  hint: ", "; "))
            }
            _ => Self::Away(error.to_string()),
        }
    }
}

impl Daemon for Client {
    fn apply(&mut self, config: &str, base: &Path) -> Result<(), DaemonError> {
        let file = Some(base.display().to_string());
        Ok(Client::apply(self, &Apply { config: config.into(), file, dry_run: false }).map(drop)?)
    }

    fn place(&mut self, assignment: &Assignment) -> Result<Vec<String>, DaemonError> {
        Ok(Client::place(self, assignment).map(|placed| placed.notes)?)
    }

    fn withdraw(&mut self) -> Result<(), DaemonError> {
        Ok(Client::withdraw(self).map(drop)?)
    }

    fn placement(&mut self) -> Result<Option<Assignment>, DaemonError> {
        match Client::placement(self) {
            Ok(assignment) => Ok(Some(assignment)),
            Err(ClientError::Api(error)) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn promises(&mut self) -> Result<Promises, DaemonError> {
        Ok(Client::promises(self)?)
    }
}
