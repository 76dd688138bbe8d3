//! What is served, by path.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sluice_api::exposition::TextFormat;
use sluice_api::health::Health;
use sluice_api::{ApiError, ErrorKind};
use tokio::sync::Semaphore;

use crate::gate::{ServedAt, guarded};
use crate::{Hub, PageSource};

const HTML: &str = include_str!("../assets/page.html");
const CSS: &str = include_str!("../assets/page.css");
const JS: &str = include_str!("../assets/page.js");

/// For how long an answer that is made of the whole report answers further requests.
const RECENT: Duration = Duration::from_millis(250);
/// Most calls of the daemon at a time. A client that leaves before its call is made has none.
const CALLS: usize = 4;
/// Longest wait for one of these.
const PATIENCE: Duration = Duration::from_secs(5);

/// The routes:
///
/// | path | answer |
/// |---|---|
/// | `/`, `/page.css`, `/page.js` | the page |
/// | `/page/events` | its server-sent events; 503 without a free place |
/// | `/metrics` | all counters, for Prometheus; as OpenMetrics if `Accept` prefers it |
/// | `/healthz` | `alive`; 503 if the daemon does not answer or stops |
/// | `/readyz` | `ready`; 503 while something does not work |
pub fn router(hub: &Hub, at: ServedAt) -> Router {
    let answers = Arc::new(Answers::new(hub));
    Router::new()
        .route("/", get(|| async { file("text/html; charset=utf-8", HTML) }))
        .route("/page.css", get(|| async { file("text/css; charset=utf-8", CSS) }))
        .route("/page.js", get(|| async { file("text/javascript; charset=utf-8", JS) }))
        .route("/page/events", get(events))
        .route("/metrics", get(metrics))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route_layer(from_fn_with_state(at, guarded))
        .with_state(answers)
}

struct Answers {
    hub: Hub,
    /// By [`TextFormat`].
    metrics: [Recent<String>; 2],
    health: Recent<Health>,
    calls: Arc<Semaphore>,
    /// [`PATIENCE`], but in tests.
    patience: Duration,
}

fn file(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

fn words(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

async fn events(State(answers): State<Arc<Answers>>) -> Response {
    match answers.hub.join() {
        Ok(stream) => ([(header::CONTENT_TYPE, "text/event-stream")], Body::new(stream)).into_response(),
        Err(_) => words(StatusCode::SERVICE_UNAVAILABLE, format!("there are {} viewers, the most at a time\n", crate::VIEWERS)),
    }
}

async fn metrics(State(answers): State<Arc<Answers>>, headers: HeaderMap) -> Response {
    let accepted: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = TextFormat::preferred(&accepted.join(","));
    match answers.ask(move |answers| answers.metrics[format as usize].or(|| answers.source().metrics(format))).await {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type()), (header::VARY, "Accept")], text).into_response(),
        Err(error) => failure(&error),
    }
}

async fn alive(State(answers): State<Arc<Answers>>) -> Response {
    match answers.ask(|answers| answers.health.or(|| answers.source().health())).await {
        Ok(_) => words(StatusCode::OK, "alive\n".into()),
        Err(error) => failure(&error),
    }
}

async fn ready(State(answers): State<Arc<Answers>>) -> Response {
    match answers.ask(|answers| answers.health.or(|| answers.source().health())).await {
        Ok(health) if health.problems.is_empty() => words(StatusCode::OK, "ready\n".into()),
        // No names: this is answered without a token.
        Ok(health) => words(StatusCode::SERVICE_UNAVAILABLE, format!("{} problems, see `sluice status`\n", health.problems.len())),
        Err(error) => failure(&error),
    }
}

fn failure(error: &ApiError) -> Response {
    let status = match error.kind {
        ErrorKind::ShuttingDown | ErrorKind::Timeout => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    words(status, format!("{error}\n"))
}

impl Answers {
    fn new(hub: &Hub) -> Self {
        let calls = Arc::new(Semaphore::new(CALLS));
        Self { hub: hub.clone(), metrics: Default::default(), health: Recent::default(), calls, patience: PATIENCE }
    }

    fn source(&self) -> Arc<dyn PageSource> {
        self.hub.source()
    }

    /// Runs a call on a thread that may block. Where all calls wait for a daemon that is stuck, it
    /// is refused after a while: requests without a token come here, and must not fill all places.
    async fn ask<T, F>(self: Arc<Self>, call: F) -> Result<T, ApiError>
    where
        T: Send + 'static,
        F: FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    {
        let failed = |error: &dyn std::fmt::Display| ApiError::internal(format!("the request failed: {error}"));
        // Held until the call is over, also for a client that has left: calls must not pile up.
        let place = tokio::time::timeout(self.patience, self.calls.clone().acquire_owned()).await;
        let busy =
            |_| ApiError::new(ErrorKind::Timeout, format!("{CALLS} requests wait for the daemon already; ask again later"), "");
        let place = place.map_err(busy)?.map_err(|error| failed(&error))?;
        let answer = tokio::task::spawn_blocking(move || {
            let answer = call(self.as_ref());
            drop(place);
            answer
        });
        answer.await.unwrap_or_else(|error| Err(failed(&error)))
    }
}

/// An answer, or an error, that is made once for requests that come together.
struct Recent<T>(Mutex<Option<(Instant, Result<T, ApiError>)>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> Recent<T> {
    /// The last answer if it is recent, or a new one. One is made at a time.
    fn or(&self, make: impl FnOnce() -> Result<T, ApiError>) -> Result<T, ApiError> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, answer)) = &*last
            && made.elapsed() < RECENT
        {
            return answer.clone();
        }
        // Not kept where `make` panics.
        *last = None;
        let answer = make();
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

#[cfg(test)]
#[path = "answers_test.rs"]
mod answers_test;
