//! Requests to the API server.

use std::time::Duration;

use kube::Error;

/// The owner of the fields that the agent writes.
pub const MANAGER: &str = "sluice-node";
/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(5);

/// A request with a time limit.
///
/// # Errors
/// The request's, or that it took too long; it may have been carried out then.
pub async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(LIMIT, request).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::Service(format!("no answer within {} s", LIMIT.as_secs()).into())),
    }
}
