//! Asks the API server for rights that were missing and that no request has asked for since: those
//! that are seldom used, as that to evict pods.

use std::time::{Duration, Instant};

use http::Request;
use http::header::CONTENT_TYPE;
use kube::Client;
use serde_json::{Value, json};

use crate::fault::Asked;
use crate::faults::{Faults, REVIEWED};

/// Any program that the API server knows may ask what it may itself.
const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(5);

/// Asks for ever. The client's own answers are not looked at.
pub async fn review(client: Client, faults: Faults) {
    loop {
        tokio::time::sleep(REVIEWED).await;
        for (asked, object) in faults.unasked(Instant::now()) {
            // Without an answer, nothing is known.
            if let Some(is_given) = is_given(&client, &asked, object.as_deref()).await {
                faults.reviewed(&asked, is_given, Instant::now());
            }
        }
    }
}

/// Whether the program has a right, for the object if one is named; none if the API server does not
/// say so.
async fn is_given(client: &Client, asked: &Asked, object: Option<&str>) -> Option<bool> {
    let Asked { verb, group, namespace, .. } = asked;
    let (resource, sub) = asked.resource.split_once('/').unwrap_or((&asked.resource, ""));
    let of = json!({
        "verb": verb, "group": group, "resource": resource, "subresource": sub, "namespace": namespace, "name": object,
    });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": of},
    });
    let request = Request::post(PATH).header(CONTENT_TYPE, "application/json").body(review.to_string().into_bytes()).ok()?;
    let answer: Value = tokio::time::timeout(LIMIT, client.request(request)).await.ok()?.ok()?;
    answer["status"]["allowed"].as_bool()
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use futures::future::BoxFuture;
    use http::Response;
    use http_body_util::BodyExt;
    use kube::client::Body;
    use tower::{BoxError, Service};

    use super::*;

    /// An API server with one answer, to one request.
    #[derive(Clone)]
    struct Server(u16, Value);

    impl Service<Request<Body>> for Server {
        type Response = Response<Body>;
        type Error = BoxError;
        type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            let Self(code, answer) = self.clone();
            Box::pin(async move {
                assert_eq!((request.method().as_str(), request.uri().path()), ("POST", PATH));
                let asked: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
                let of = json!({
                    "verb": "create", "group": "", "resource": "pods", "subresource": "eviction", "namespace": "acme", "name": "p",
                });
                assert_eq!((&asked["kind"], &asked["spec"]["resourceAttributes"]), (&json!("SelfSubjectAccessReview"), &of));
                Ok(Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))?)
            })
        }
    }

    #[tokio::test]
    async fn a_right_is_asked_for_as_a_role_has_it() {
        let asked =
            Asked { verb: "create", group: String::new(), resource: "pods/eviction".into(), namespace: Some("acme".into()) };
        for (code, answer, wanted) in [
            (201, json!({"status": {"allowed": true}}), Some(true)),
            (201, json!({"status": {"allowed": false, "reason": "no role"}}), Some(false)),
            (403, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "message": "no"}), None),
        ] {
            let client = Client::new(Server(code, answer), "default");
            assert_eq!(is_given(&client, &asked, Some("p")).await, wanted, "{code}");
        }
    }
}
