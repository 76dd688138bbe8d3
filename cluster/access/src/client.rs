//! A client of the API server whose answers are looked at.

use std::task::{Context, Poll};
use std::time::Instant;

use anyhow::Context as _;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::client::{Body, ClientBuilder, DynBody};
use kube::core::Status;
use kube::{Client, Config};
use tower::layer::layer_fn;
use tower::{BoxError, Service};

use crate::fault::{Asked, Certificate, Fault, causes};
use crate::faults::Faults;
use crate::review::review;

type Answer = Response<Box<DynBody>>;

/// A client of the API server that `$KUBECONFIG` names, or that of the pod. What it lacks in access
/// is noted in `faults`.
///
/// # Errors
/// No API server is named, or what names it cannot be read.
pub async fn connect(faults: &Faults) -> anyhow::Result<Client> {
    let config = Config::infer().await.context("no API server is known: run in a pod, or name a file in $KUBECONFIG")?;
    let wrong = "the API server cannot be reached as $KUBECONFIG, or the pod, says";
    let reviewer = Client::try_from(config.clone()).context(wrong)?;
    let builder = ClientBuilder::try_from(config).context(wrong)?;
    tokio::spawn(review(reviewer, faults.clone()));
    Ok(builder.with_layer(&layer_fn(|inner| Seen { inner, faults: faults.clone() })).build())
}

/// A client beneath, and where faults are noted.
struct Seen<S> {
    inner: S,
    faults: Faults,
}

impl<S> Service<Request<Body>> for Seen<S>
where
    S: Service<Request<Body>, Response = Answer, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Answer;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Answer, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (asked, faults) = (Asked::of(&request), self.faults.clone());
        let answer = self.inner.call(request);
        Box::pin(async move { look(answer.await, asked.as_ref(), &faults).await })
    }
}

/// Notes what an answer says of access, and passes it on.
async fn look(answer: Result<Answer, BoxError>, asked: Option<&Asked>, faults: &Faults) -> Result<Answer, BoxError> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            if let Some(found) = Certificate::of(&causes(&*error)) {
                faults.meet(Fault::Certificate(found), None, Instant::now());
            }
            return Err(error);
        }
    };
    let code = answer.status().as_u16();
    if code != 403 {
        faults.answered(asked, code, "", Instant::now());
        return Ok(answer);
    }
    // Policies forbid, too: its words alone show whether a right is missing.
    let (head, body) = answer.into_parts();
    let bytes = body.collect().await?.to_bytes();
    let message = serde_json::from_slice::<Status>(&bytes).map(|status| status.message).unwrap_or_default();
    faults.answered(asked, code, &message, Instant::now());
    let body: Box<DynBody> = Box::new(Body::from(bytes).map_err(BoxError::from));
    Ok(Response::from_parts(head, body))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn answer(code: u16, text: &str) -> Result<Answer, BoxError> {
        let body: Box<DynBody> = Box::new(Body::from(text.as_bytes().to_vec()).map_err(BoxError::from));
        Ok(Response::builder().status(code).body(body).unwrap())
    }

    #[test]
    fn an_answer_is_passed_on_as_it_is() {
        let (faults, _said) = Faults::new("sluice-operator");
        let request = Request::patch("/api/v1/namespaces/acme/pods/p").body(()).unwrap();
        let asked = Asked::of(&request);
        let text = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "pods \"p\" is forbidden: User \"op\" cannot patch resource \"pods\" in API group \"\" in the namespace \"acme\"",
        });
        let text = text.to_string();
        let passed = look(answer(403, &text), asked.as_ref(), &faults).now_or_never().unwrap().unwrap();
        assert_eq!(passed.status(), 403);
        assert_eq!(passed.into_body().collect().now_or_never().unwrap().unwrap().to_bytes(), text.as_bytes());
        assert!(faults.summary(Instant::now()).unwrap().starts_with("op may not patch pods in acme"));
        look(answer(200, ""), asked.as_ref(), &faults).now_or_never().unwrap().unwrap();
        assert_eq!(faults.summary(Instant::now()), None);
        let error = Err("invalid peer certificate: UnknownIssuer".into());
        assert!(look(error, asked.as_ref(), &faults).now_or_never().unwrap().is_err());
        assert!(faults.summary(Instant::now()).unwrap().contains("of an authority"));
    }
}
