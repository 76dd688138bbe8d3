//! The routes as a client sees them.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::to_bytes;
use axum::http::{Method, Request};
use sluice_api::config::WebPage;
use sluice_api::health::{HealthVerdict, Problem};
use sluice_api::model::{Event, Stats};
use tower::ServiceExt;

use super::*;
use crate::{Tokens, guard, only_reads, with_tokens};

#[derive(Default)]
struct Played {
    health: Mutex<Health>,
    asked: AtomicU64,
}

impl PageSource for Played {
    fn stats(&self) -> Result<Stats, ApiError> {
        Ok(Stats::default())
    }

    fn events(&self) -> Result<Vec<Event>, ApiError> {
        Ok(Vec::new())
    }

    fn health(&self) -> Result<Health, ApiError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(self.health.lock().unwrap().clone())
    }

    fn metrics(&self, format: TextFormat) -> Result<String, ApiError> {
        Ok(match format {
            TextFormat::Plain => "sluice_flows 3\n".into(),
            TextFormat::OpenMetrics => "sluice_flows 3\n# EOF\n".into(),
        })
    }
}

fn app() -> (Arc<Played>, Hub, Router) {
    let played = Arc::new(Played::default());
    let hub = Hub::start(played.clone()).unwrap();
    let app = only_reads(router(&hub, ServedAt::Loopback).route("/v1/shutdown", axum::routing::post(|| async { "stopped" })));
    (played, hub, app)
}

fn request(method: Method, path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(Body::empty()).unwrap()
}

async fn answer(app: &Router, request: Request<Body>) -> (StatusCode, String, Response<()>) {
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let text = String::from_utf8(to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap();
    (parts.status, text, Response::from_parts(parts, ()))
}

async fn get_from(app: &Router, path: &str) -> (StatusCode, String, Response<()>) {
    answer(app, request(Method::GET, path, &[("host", "localhost:9180")])).await
}

async fn ask(app: &Router, method: Method, path: &str, headers: &[(&str, &str)]) -> (StatusCode, String, Response<()>) {
    let headers = [&[("host", "localhost")][..], headers].concat();
    answer(app, request(method, path, &headers)).await
}

#[tokio::test]
async fn the_page_and_its_files_come_with_a_strict_policy() {
    let (_, hub, app) = app();
    for (path, kind, part) in [
        ("/", "text/html; charset=utf-8", "<script src=\"page.js\""),
        ("/page.css", "text/css; charset=utf-8", "prefers-color-scheme"),
        ("/page.js", "text/javascript; charset=utf-8", "textContent"),
    ] {
        let (status, text, answer) = get_from(&app, path).await;
        assert_eq!((status, &answer.headers()["content-type"]), (StatusCode::OK, &kind.parse().unwrap()), "{path}");
        assert!(text.contains(part), "{path}");
        let policy = answer.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    }
    hub.close();
}

/// Markup of names, and anything from outside, would have to go through one of these.
#[test]
fn the_files_name_nothing_outside_and_make_no_markup_of_texts() {
    for word in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "setAttribute(\"style\"",
        "import(",
    ] {
        assert!(!JS.contains(word), "page.js has {word}");
    }
    for (name, text) in [("page.html", HTML), ("page.css", CSS), ("page.js", JS)] {
        let outside = text.replace("http://www.w3.org/2000/svg", "");
        for word in ["http:", "https:", "//cdn", "@import", "url("] {
            assert!(!outside.contains(word), "{name} has {word}");
        }
    }
    for word in ["style=", "onclick", "onload", "<style", "javascript:"] {
        assert!(!HTML.contains(word), "page.html has {word}, which the policy forbids");
    }
}

#[tokio::test]
async fn a_name_of_elsewhere_is_refused() {
    let (_, hub, app) = app();
    for path in ["/", "/page/events", "/metrics", "/healthz"] {
        for elsewhere in ["evil.example:9180", "sluice"] {
            let (status, text, _) = answer(&app, request(Method::GET, path, &[("host", elsewhere)])).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
            assert!(text.contains("names of this host"), "{text}");
        }
    }
    let own = router(&hub, ServedAt::UnixSocket);
    assert_eq!(answer(&own, request(Method::GET, "/metrics", &[("host", "sluice")])).await.0, StatusCode::OK);
    hub.close();
}

#[tokio::test]
async fn a_page_of_a_browser_changes_nothing() {
    let (_, hub, app) = app();
    let from_page = request(Method::POST, "/v1/shutdown", &[("host", "localhost"), ("origin", "http://localhost")]);
    assert_eq!(answer(&app, from_page).await.0, StatusCode::FORBIDDEN);
    let from_client = request(Method::POST, "/v1/shutdown", &[("host", "localhost")]);
    assert_eq!(answer(&app, from_client).await.1, "stopped");
    let read = request(Method::GET, "/metrics", &[("host", "localhost"), ("origin", "http://localhost")]);
    assert_eq!(answer(&app, read).await.0, StatusCode::OK);
    assert_eq!(answer(&app, request(Method::POST, "/", &[("host", "localhost")])).await.0, StatusCode::METHOD_NOT_ALLOWED);
    hub.close();
}

#[tokio::test]
async fn probes_and_scrapers_are_answered_and_share_a_report() {
    let (played, hub, app) = app();
    assert_eq!(get_from(&app, "/healthz").await.1, "alive\n");
    assert_eq!(get_from(&app, "/readyz").await.1, "ready\n");
    assert!(played.asked.load(Ordering::Relaxed) <= 2);
    let (status, text, answer) = get_from(&app, "/metrics").await;
    assert_eq!((status, text.as_str()), (StatusCode::OK, "sluice_flows 3\n"));
    assert_eq!(answer.headers()["content-type"], TextFormat::Plain.content_type());
    // The other format, at once: its text is another one.
    let headers = [("host", "localhost"), ("accept", "application/openmetrics-text;version=1.0.0,*/*;q=0.1")];
    let (status, text, answer) = self::answer(&app, request(Method::GET, "/metrics", &headers)).await;
    assert_eq!((status, text.as_str()), (StatusCode::OK, "sluice_flows 3\n# EOF\n"));
    assert_eq!(answer.headers()["content-type"], TextFormat::OpenMetrics.content_type());
    let problem = Problem { subject: "nf secret.0".into(), what: "has failed".into(), since_s: 1.0 };
    *played.health.lock().unwrap() = Health { verdict: HealthVerdict::Degraded, problems: vec![problem], ..Health::default() };
    // Of a state of its own, as the last answer is recent.
    let app = router(&hub, ServedAt::Loopback);
    let (status, text, _) = get_from(&app, "/readyz").await;
    assert_eq!((status, text.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "1 problems, see `sluice status`\n"));
    assert_eq!(get_from(&app, "/healthz").await.0, StatusCode::OK);
    hub.close();
}

/// The tokens `0123456789abcdef`, which may read, and `fedcba9876543210`, alice's.
fn tokens() -> (tempfile::TempDir, Arc<Tokens>) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    };
    let operators = [("alice".to_string(), file("alice", "fedcba9876543210\n"))].into();
    let page = WebPage { token: Some(file("token", "0123456789abcdef\n")), operators, ..WebPage::default() };
    let (tokens, errors) = Tokens::read(&page);
    assert!(errors.is_empty(), "{errors:?}");
    (folder, Arc::new(tokens))
}

#[tokio::test]
async fn without_the_token_only_probes_are_answered() {
    let (_, hub, app) = app();
    let (_folder, tokens) = tokens();
    let app = with_tokens(app, tokens);
    for path in ["/", "/page.js", "/page/events", "/metrics", "/nothing"] {
        let (status, _, answer) = get_from(&app, path).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
        assert!(answer.headers()["www-authenticate"].to_str().unwrap().starts_with("Basic "));
    }
    assert_eq!(get_from(&app, "/healthz").await.0, StatusCode::OK);
    assert_eq!(get_from(&app, "/readyz").await.0, StatusCode::OK);
    let headers = [("host", "localhost"), ("authorization", "Bearer 0123456789abcdef")];
    assert_eq!(answer(&app, request(Method::GET, "/metrics", &headers)).await.0, StatusCode::OK);
    hub.close();
}

#[tokio::test]
async fn wrong_tokens_are_logged_together() {
    let (_, hub, app) = app();
    let (_folder, tokens) = tokens();
    let app = with_tokens(app, tokens.clone());
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let (right, wrong) = (("authorization", "Bearer 0123456789abcdef"), ("authorization", "Bearer 0123456789abcdeF"));
    assert_eq!(ask(&app, Method::GET, "/metrics", &[]).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(ask(&app, Method::GET, "/metrics", &[right]).await.0, StatusCode::OK);
    assert_eq!(ask(&app, Method::POST, "/v1/shutdown", &[right]).await.0, StatusCode::FORBIDDEN);
    assert_eq!(ask(&app, Method::GET, "/healthz", &[wrong]).await.0, StatusCode::OK);
    assert_eq!(tokens.refusals(at(0)), None, "none was wrong, or none refused");
    for wrong in [wrong, ("authorization", "Bearer"), ("authorization", "Digest x")] {
        assert_eq!(ask(&app, Method::GET, "/metrics", &[wrong]).await.0, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(tokens.refusals(at(0)).as_deref(), Some("the page refused 3 requests with a wrong token"));
    let mut from = request(Method::GET, "/metrics", &[("host", "localhost"), wrong]);
    from.extensions_mut().insert(std::net::SocketAddr::from(([192, 0, 2, 1], 7)));
    assert_eq!(answer(&app, from).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(tokens.refusals(at(9)), None, "a line was logged lately");
    assert_eq!(
        tokens.refusals(at(10)).as_deref(),
        Some("the page refused 1 requests with a wrong token, the last from 192.0.2.1:7")
    );
    assert_eq!(tokens.refusals(at(30)), None);
    hub.close();
}

#[tokio::test]
async fn only_an_operator_may_change_something() {
    let (_, hub, app) = app();
    let (_folder, tokens) = tokens();
    let app = with_tokens(app, tokens);
    let (reader, alice) = (("authorization", "Bearer 0123456789abcdef"), ("authorization", "Bearer fedcba9876543210"));
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS] {
        for path in ["/v1/shutdown", "/", "/healthz"] {
            let (status, text, answer) = ask(&app, method.clone(), path, &[reader]).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{method} {path}");
            assert!(text.contains("page.operators") && answer.headers()["connection"] == "close", "{text}");
        }
    }
    assert_eq!(ask(&app, Method::POST, "/healthz", &[]).await.0, StatusCode::UNAUTHORIZED, "probes read");
    assert_eq!(ask(&app, Method::HEAD, "/", &[reader]).await.0, StatusCode::OK);
    assert_eq!(ask(&app, Method::GET, "/metrics", &[alice]).await.0, StatusCode::OK);
    assert_eq!(ask(&app, Method::POST, "/v1/shutdown", &[alice]).await.1, "stopped");
    let from_page = ask(&app, Method::POST, "/v1/shutdown", &[alice, ("origin", "http://localhost")]).await;
    assert_eq!(from_page.0, StatusCode::FORBIDDEN, "a browser keeps the password, and has pages of strangers");
    hub.close();
}

#[tokio::test]
async fn with_tls_the_certificate_says_which_names_are_good() {
    let hub = Hub::start(Arc::new(Played::default())).unwrap();
    let other = Router::new().route("/v1/status", get(|| async { "well" }));
    let app = guard(other.clone(), ServedAt::Tls).merge(router(&hub, ServedAt::Tls));
    for path in ["/metrics", "/v1/status"] {
        let (status, _, answer) = answer(&app, request(Method::GET, path, &[("host", "nfv.example:9180")])).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        assert_eq!(answer.headers()["cross-origin-resource-policy"], "same-origin", "{path}");
    }
    let app = guard(other, ServedAt::Loopback);
    let elsewhere = answer(&app, request(Method::GET, "/v1/status", &[("host", "nfv.example:9180")])).await;
    assert_eq!(elsewhere.0, StatusCode::FORBIDDEN);
    hub.close();
}

#[tokio::test]
async fn calls_of_clients_that_have_left_do_not_pile_up() {
    let hub = Hub::start(Arc::new(Played::default())).unwrap();
    let answers = Arc::new(Answers::new(&hub));
    let made = Arc::new(AtomicU64::new(0));
    let (gate, closed) = std::sync::mpsc::channel::<()>();
    let closed = Arc::new(Mutex::new(closed));
    let ask = || {
        let (answers, made, closed) = (answers.clone(), made.clone(), closed.clone());
        answers.ask(move |_| {
            made.fetch_add(1, Ordering::Relaxed);
            // It ends when the gate goes.
            let _ = closed.lock().unwrap().recv();
            Ok(())
        })
    };
    for _ in 0..3 * CALLS {
        tokio::select! {
            biased;
            _ = ask() => panic!("the gate is closed"),
            () = std::future::ready(()) => {}
        }
    }
    drop(gate);
    ask().await.unwrap();
    assert!(made.load(Ordering::Relaxed) <= CALLS as u64 + 1);
    hub.close();
}

#[tokio::test]
async fn requests_that_find_all_calls_waiting_are_refused() {
    let hub = Hub::start(Arc::new(Played::default())).unwrap();
    let answers = Arc::new(Answers { patience: Duration::ZERO, ..Answers::new(&hub) });
    let waiting = answers.calls.clone().acquire_many_owned(CALLS as u32).await.unwrap();
    let answer = alive(State(answers.clone())).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let text = to_bytes(answer.into_body(), 1 << 10).await.unwrap();
    assert_eq!(text, "4 requests wait for the daemon already; ask again later\n");
    drop(waiting);
    assert_eq!(alive(State(answers)).await.status(), StatusCode::OK);
    hub.close();
}

#[test]
fn an_error_is_kept_as_long_as_an_answer() {
    let (recent, mut made) = (Recent::<u32>::default(), 0);
    let mut fail = |recent: &Recent<u32>| {
        recent.or(|| {
            made += 1;
            Err(ApiError::internal(format!("error {made}")))
        })
    };
    assert_eq!(fail(&recent).unwrap_err().error, "error 1");
    // Recent, however slow this test is.
    recent.0.lock().unwrap().as_mut().unwrap().0 += Duration::from_secs(3600);
    assert_eq!(fail(&recent).unwrap_err().error, "error 1", "it was not made again");
    recent.0.lock().unwrap().as_mut().unwrap().0 = Instant::now() - RECENT;
    assert_eq!(fail(&recent).unwrap_err().error, "error 2");
    recent.0.lock().unwrap().as_mut().unwrap().0 = Instant::now() - RECENT;
    assert_eq!(recent.or(|| Ok(7)), Ok(7));
}

#[tokio::test]
async fn too_many_viewers_are_refused() {
    let (_, hub, app) = app();
    let streams: Vec<_> = (0..crate::VIEWERS).map(|_| hub.join().unwrap()).collect();
    let (status, text, _) = get_from(&app, "/page/events").await;
    assert_eq!((status, text.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "there are 16 viewers, the most at a time\n"));
    drop(streams);
    hub.close();
}
