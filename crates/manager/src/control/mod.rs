//! Control: the operator's door to the running daemon.
//!
//! Problem: an operator, a script and a monitoring system want to see and change what the daemon does, while packets flow and
//! without any of them being able to hold a packet up. Approach: HTTP/1.1 and JSON on a Unix socket ([`server`]), served by one
//! thread of its own; what is asked for is done by a [`Backend`], which the supervisor is. The words of the API are in [`model`],
//! [`client`] speaks it, and `deploy/openapi.json` describes it to others.
//!
//! Trust: the socket has file mode 0600, and the server asks the kernel for the peer's user as well: only root and the daemon's own
//! user are answered. Limits: see [`server::Limits`].

pub mod client;
pub mod health;
pub mod model;
pub mod promise;
pub mod server;
pub mod totals;

use serde::{Deserialize, Serialize};
use sluice_slo::assignment::Assignment;

use crate::config::{ConfigErrors, model as config};

/// Where the socket is when nobody says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/sluice/control.sock";

/// What went wrong, as HTTP says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// 400: the request makes no sense, whatever the daemon's state.
    BadInput,
    /// 403: not for this user.
    Forbidden,
    /// 404: nothing has this name.
    NotFound,
    /// 405: the address is known, the method is not.
    MethodNotAllowed,
    /// 408: the request did not arrive in time.
    RequestTimeout,
    /// 409: it makes sense, but not in the daemon's present state.
    Conflict,
    /// 413: more bytes than the daemon reads.
    TooLarge,
    /// 500: a fault of the daemon's.
    Internal,
    /// 503: the daemon is shutting down.
    ShuttingDown,
    /// 504: it takes longer than the daemon lets a request take.
    Timeout,
}

impl ErrorKind {
    const ALL: [Self; 10] = [
        Self::BadInput,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::Conflict,
        Self::TooLarge,
        Self::Internal,
        Self::ShuttingDown,
        Self::Timeout,
    ];

    /// The HTTP status.
    pub fn code(self) -> u16 {
        match self {
            Self::BadInput => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::Conflict => 409,
            Self::TooLarge => 413,
            Self::Internal => 500,
            Self::ShuttingDown => 503,
            Self::Timeout => 504,
        }
    }

    /// The kind of an HTTP status; [`ErrorKind::Internal`] for one that the daemon does not use.
    pub fn from_code(code: u16) -> Self {
        Self::ALL.into_iter().find(|kind| kind.code() == code).unwrap_or(Self::Internal)
    }
}

/// A refusal: what is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ApiError {
    /// What went wrong, as HTTP says it.
    pub kind: ErrorKind,
    /// What is wrong, in one sentence without a full stop.
    pub error: String,
    /// What to do about it; may be empty.
    pub hint: String,
}

/// An [`ApiError`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct ErrorBody {
    /// What is wrong.
    pub error: String,
    /// What to do about it; may be empty.
    #[serde(default)]
    pub hint: String,
}

impl ApiError {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, error: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { kind, error: error.into(), hint: hint.into() }
    }

    /// 400: the request makes no sense, whatever the daemon's state.
    pub fn bad_input(error: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadInput, error, hint)
    }

    /// 404: there is no `what` of this name. Names that are near help in the hint.
    pub fn not_found(what: &str, name: &str, known: &[&str]) -> Self {
        let hint = if known.is_empty() { format!("there is no {what} at all") } else { format!("there are: {}", known.join(", ")) };
        Self::new(ErrorKind::NotFound, format!("no {what} is named \"{name}\""), hint)
    }

    /// 409: it makes sense, but not in the daemon's present state.
    pub fn conflict(error: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, error, hint)
    }

    /// 503: the daemon is shutting down.
    pub fn shutting_down() -> Self {
        Self::new(ErrorKind::ShuttingDown, "the daemon is shutting down", "start it again and repeat the request")
    }

    /// 500: a fault of the daemon's.
    pub fn internal(error: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, error, "see the daemon's log")
    }
}

impl From<ConfigErrors> for ApiError {
    fn from(errors: ConfigErrors) -> Self {
        Self::bad_input(errors.to_string().trim_end(), "nothing was changed; mend the configuration and send it again")
    }
}

/// What the daemon can do for an operator. The supervisor is one; tests have others.
///
/// Calls come from several threads at a time and may take as long as they need: none of them is a packet thread. What a call
/// changes has taken effect when it returns.
///
/// # Errors
/// Each call refuses bad input ([`ErrorKind::BadInput`]), names that nothing has ([`ErrorKind::NotFound`]), what the present state
/// forbids, such as a second port of one name or the removal of one that a chain needs ([`ErrorKind::Conflict`]), and everything
/// during shutdown ([`ErrorKind::ShuttingDown`]). A call that is refused has changed nothing.
#[allow(clippy::missing_errors_doc)] // one section above for all
pub trait Backend: Send + Sync {
    /// What the daemon is and has.
    fn status(&self) -> Result<model::Status, ApiError>;

    /// Everything that is counted.
    fn stats(&self) -> Result<model::Stats, ApiError>;

    /// What was decided about NFs lately, oldest first.
    fn events(&self) -> Result<Vec<model::Event>, ApiError>;

    /// Starts one more instance of a service (or expects one, where instances attach by themselves), on `core` or on the next of
    /// the service's cores. Returns without waiting until it runs. Its `warnings` say what is probably not as it was meant.
    fn add_nf(&self, service: &str, core: Option<usize>) -> Result<model::Nf, ApiError>;

    /// Goes over to another version of a service's program. Returns when new flows meet it and shared instances of the old one have left;
    /// members of a pool leave with their flows. A version that does not work changes nothing.
    fn upgrade(&self, service: &str, to: &model::Upgrade) -> Result<model::Upgraded, ApiError>;

    /// Has an instance on another core take the place of this one, while packets flow: none is lost, and none overtakes another. Returns when
    /// the old one has left. Where the new one does not come up, nothing has changed. Its `warnings` say what is probably not as it was
    /// meant.
    fn move_nf(&self, name: &str, core: usize) -> Result<model::Nf, ApiError>;

    /// Stops an instance: no new packets, those inside come back, then it leaves. The last one of a service that an open chain passes is
    /// removed with `force` alone, and refused without ([`ErrorKind::Conflict`]).
    fn remove_nf(&self, name: &str, force: bool) -> Result<(), ApiError>;

    /// Adds a service and starts its instances.
    fn add_service(&self, service: config::Service) -> Result<model::Service, ApiError>;

    /// Removes a service that no chain has, and stops its instances.
    fn remove_service(&self, name: &str) -> Result<(), ApiError>;

    /// Adds a chain.
    fn add_chain(&self, chain: config::Chain) -> Result<model::Chain, ApiError>;

    /// Removes a chain that no rule has.
    fn remove_chain(&self, name: &str) -> Result<(), ApiError>;

    /// Adds a rule at a place in the order, or last. Flows that are known are classified anew.
    fn add_rule(&self, rule: config::Rule, position: Option<usize>) -> Result<model::Rule, ApiError>;

    /// Removes a rule. Flows that are known are classified anew.
    fn remove_rule(&self, name: &str) -> Result<(), ApiError>;

    /// Gives a tenant fresh packet memory (`-`: that of services without one), and starts its NFs again. Others notice nothing.
    fn renew_memory(&self, tenant: &str) -> Result<(), ApiError>;

    /// Opens a port.
    fn add_port(&self, port: config::Port) -> Result<model::Port, ApiError>;

    /// Closes a port that no chain and no rule has.
    fn remove_port(&self, name: &str) -> Result<(), ApiError>;

    /// Goes over to another configuration by the smallest set of changes, or only says which (`dry_run`). `file` names where the
    /// text came from, for messages.
    fn apply(&self, config: &str, file: Option<&str>, dry_run: bool) -> Result<model::Applied, ApiError>;

    /// Keeps an assignment from now on, instead of the one before; or says what is wrong with it, and the one before stands. Returns when the
    /// packets of its chains go to its instances.
    fn place(&self, assignment: Assignment) -> Result<promise::Placed, ApiError>;

    /// The assignment that is kept.
    fn placement(&self) -> Result<Assignment, ApiError>;

    /// Keeps no assignment any more: chains are as the configuration says.
    fn withdraw(&self) -> Result<promise::Placed, ApiError>;

    /// How promises are kept.
    fn promises(&self) -> Result<promise::Promises, ApiError>;

    /// Follows packets on their way. Blocks until there are as many as asked for, or the time is over.
    fn trace(&self, request: &model::TraceRequest) -> Result<model::Trace, ApiError>;

    /// Starts the daemon's shutdown and returns at once.
    fn shutdown(&self) -> Result<(), ApiError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_codes_are_one_to_one() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), kind);
        }
        assert_eq!(ErrorKind::from_code(418), ErrorKind::Internal);
    }

    #[test]
    fn a_missing_name_comes_with_those_there_are() {
        let error = ApiError::not_found("chain", "wbe", &["web", "dns"]);
        assert_eq!((error.to_string().as_str(), error.hint.as_str()), ("no chain is named \"wbe\"", "there are: web, dns"));
        assert_eq!(ApiError::not_found("rule", "x", &[]).hint, "there is no rule at all");
    }
}
