//! The interface between the daemon and its clients.
//!
//! [`config`] is the configuration file. [`model`] holds requests and reports, [`drops`] the
//! reasons of dropped packets, [`health`] the state of the daemon and deaths of NFs, [`promise`]
//! reports on SLOs. [`parse`] reads the small languages inside values, [`exposition`] is about
//! texts of metrics. [`client`] is the client's side of the control socket. `deploy/openapi.json`
//! describes the same for other clients.

#![warn(missing_docs)]

pub mod change;
#[cfg(feature = "client")]
pub mod client;
pub mod config;
pub mod counted;
pub mod drops;
pub mod exposition;
pub mod health;
#[cfg(test)]
mod in_the_tree;
pub mod model;
pub mod nearest;
pub mod parse;
pub mod promise;
pub mod protocol;
pub mod shadow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Default path of the control socket.
pub const DEFAULT_SOCKET: &str = "/run/sluice/control.sock";

/// Kind of an error, as an HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
pub enum ErrorKind {
    /// 400: the request is malformed.
    BadInput,
    /// 403: this user has no permission.
    Forbidden,
    /// 404: no object has this name.
    NotFound,
    /// 405: the address exists, the method does not.
    MethodNotAllowed,
    /// 408: the request did not arrive in time.
    RequestTimeout,
    /// 409: valid, but impossible in the daemon's present state.
    Conflict,
    /// 413: the body is larger than the daemon accepts.
    TooLarge,
    /// 422: well formed, but the content is refused in any state of the daemon.
    Unprocessable,
    /// 500: an internal error of the daemon.
    Internal,
    /// 503: the daemon is shutting down.
    ShuttingDown,
    /// 504: the request exceeded the daemon's time limit.
    Timeout,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::BadInput,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::Conflict,
        Self::TooLarge,
        Self::Unprocessable,
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
            Self::Unprocessable => 422,
            Self::Internal => 500,
            Self::ShuttingDown => 503,
            Self::Timeout => 504,
        }
    }

    /// The kind of an HTTP status; [`ErrorKind::Internal`] for an unknown one.
    pub fn from_code(code: u16) -> Self {
        Self::ALL.into_iter().find(|kind| kind.code() == code).unwrap_or(Self::Internal)
    }
}

/// An error: what is wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ApiError {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// What is wrong, in one sentence without a full stop.
    pub error: String,
    /// What to do; may be empty.
    pub hint: String,
}

/// An error: what is wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct ErrorBody {
    /// What is wrong.
    pub error: String,
    /// What to do; may be empty.
    #[serde(default)]
    pub hint: String,
}

impl ApiError {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, error: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { kind, error: error.into(), hint: hint.into() }
    }

    /// 400: the request is malformed.
    pub fn bad_input(error: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadInput, error, hint)
    }

    /// 404: no `what` has this name. The hint lists the known names, or has the nearest of many.
    pub fn not_found(what: &str, name: &str, known: &[&str]) -> Self {
        Self::new(ErrorKind::NotFound, format!("no {what} is named \"{name}\""), nearest::instead(what, name, known))
    }

    /// 422: well formed, but the content is refused in any state of the daemon.
    pub fn unprocessable(error: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unprocessable, error, hint)
    }

    /// 409: valid, but impossible in the daemon's present state.
    pub fn conflict(error: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, error, hint)
    }

    /// 503: the daemon is shutting down.
    pub fn shutting_down() -> Self {
        Self::new(ErrorKind::ShuttingDown, "the daemon is shutting down", "start it again and repeat the request")
    }

    /// 500: an internal error of the daemon.
    pub fn internal(error: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, error, "see the daemon's log")
    }
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
