//! Requests to the API server, with an end.

use std::time::Duration;

use kube::Error;

/// Longest wait for an answer. The kubelet waits 45 s for the driver, and asks again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a request did nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The object is not there, or not even its kind.
    #[error("the API server does not know it")]
    Gone,
    #[error("{0}")]
    Other(String),
}

/// Waits for an answer, but not for ever.
pub(crate) async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, RequestError> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Error::Api(status))) if status.code == 404 => Err(RequestError::Gone),
        Ok(Err(Error::Api(status))) => Err(RequestError::Other(status.message)),
        Ok(Err(error)) => Err(RequestError::Other(error.to_string())),
        Err(_) => Err(RequestError::Other(format!("no answer within {} s", PATIENCE.as_secs()))),
    }
}
