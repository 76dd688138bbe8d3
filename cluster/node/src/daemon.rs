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
    /// The daemon refuses it: the same request will not do better.
    #[error("{0}")]
    Refused(String),
    /// The daemon does not answer, or is shutting down. It may have done what was asked.
    #[error("{0}")]
    Away(String),
    /// The daemon fails: the same request may do better.
    #[error("{0}")]
    Failed(String),
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
        let words = error.to_string().replace("\n  hint: ", "; ");
        match error {
            ClientError::Api(api) => match api.kind {
                ErrorKind::ShuttingDown => Self::Away(words),
                // What was asked has not arrived in time, or was not done in time.
                ErrorKind::RequestTimeout | ErrorKind::Timeout | ErrorKind::Internal => Self::Failed(words),
                ErrorKind::BadInput
                | ErrorKind::Forbidden
                | ErrorKind::NotFound
                | ErrorKind::MethodNotAllowed
                | ErrorKind::Conflict
                | ErrorKind::TooLarge
                | ErrorKind::Unprocessable => Self::Refused(words),
            },
            ClientError::Answer { .. } => Self::Failed(words),
            ClientError::NotRunning { .. }
            | ClientError::NoPermission { .. }
            | ClientError::WrongSocket { .. }
            | ClientError::LongPath { .. }
            | ClientError::Broken { .. }
            | ClientError::Runtime(_) => Self::Away(words),
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

#[cfg(test)]
mod tests {
    use sluice_api::ApiError;

    use super::*;

    #[test]
    fn only_what_the_daemon_refuses_is_a_refusal() {
        for kind in ErrorKind::ALL {
            let api = ApiError { kind, error: "no".into(), hint: "do".into() };
            let found = DaemonError::from(ClientError::Api(api));
            let words = "no; do".to_string();
            let wanted = match kind.code() {
                503 => DaemonError::Away(words),
                408 | 500.. => DaemonError::Failed(words),
                _ => DaemonError::Refused(words),
            };
            assert_eq!(found, wanted);
        }
        let path = std::path::PathBuf::from("/run/x");
        let silent = ClientError::Broken { path: path.clone(), what: "no answer within 150 s".into() };
        assert!(matches!(DaemonError::from(silent), DaemonError::Away(_)));
        assert!(matches!(DaemonError::from(ClientError::NotRunning { path }), DaemonError::Away(_)));
    }
}
