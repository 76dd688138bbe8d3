//! Which requests are answered.
//!
//! A browser is a stranger's program: any page that it shows can have it send requests to
//! addresses of this host. What protects the daemon:
//!
//! - Such a request names its page in `Origin`, and one that could change something is refused for
//!   it ([`only_reads`]). `sluice`, curl and Prometheus send no such header.
//! - A page of a name that was made to lead here (DNS rebinding) still says its own name in
//!   `Host`: pages and streams are for the names of this host alone. With TLS the browser asks
//!   for a certificate of that name, which there is not.
//! - A listener may ask for a token ([`with_tokens`]); its role says whether it may change things.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use crate::token::{Role, Tokens};

/// What serves the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedAt {
    /// The control socket, which no browser reaches by a name. Clients write `Host: sluice` there.
    UnixSocket,
    /// A TCP listener at a loopback address.
    Loopback,
    /// A TCP listener with TLS, at any address. Browsers refuse names that its certificate lacks.
    Tls,
}

/// Paths that say one word, and need no token: probes have none.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Most characters of a path that are logged.
const LOGGED: usize = 200;

/// Refuses requests that a page of a browser sends and that could change something.
pub fn only_reads(app: Router) -> Router {
    app.layer(from_fn(is_read))
}

/// Whether a request of this method changes nothing: routes of these methods only show.
fn reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

async fn is_read(request: Request, next: Next) -> Response {
    if !reads(request.method()) && request.headers().contains_key(header::ORIGIN) {
        return refusal(StatusCode::FORBIDDEN, "a page of a browser may only read here; use `sluice`, or curl without Origin\n");
    }
    next.run(request).await
}

/// Answers only requests that have a token, but for those of probes. An operator's token may do
/// everything, and what it does is logged; the others may read. Of wrong tokens the log has a
/// count, and the client's address where requests have it as an extension ([`SocketAddr`]).
pub fn with_tokens(app: Router, tokens: Arc<Tokens>) -> Router {
    app.layer(from_fn_with_state(tokens, has_token))
}

async fn has_token(State(tokens): State<Arc<Tokens>>, request: Request, next: Next) -> Response {
    let reads = reads(request.method());
    let given = request.headers().get(header::AUTHORIZATION).and_then(|given| tokens.find(given.as_bytes()));
    match given {
        Some(_) if reads => next.run(request).await,
        Some(given) if given.role == Role::Operator => {
            let path: String = request.uri().path().chars().take(LOGGED).flat_map(char::escape_debug).collect();
            // Before: a client that leaves early has asked, too.
            info!("{}, by a token of page.operators: {} {path}", given.name, request.method());
            next.run(request).await
        }
        Some(_) => refusal(
            StatusCode::FORBIDDEN,
            "this token may only read; what is not GET needs a token of page.operators, or `sluice` on the daemon's host\n",
        ),
        None if reads && PROBES.contains(&request.uri().path()) => next.run(request).await,
        None => {
            // A browser's first request has none, and is not worth a line.
            if request.headers().contains_key(header::AUTHORIZATION) {
                tokens.refuse(request.extensions().get::<SocketAddr>().copied());
            }
            let text = "this needs a token of the page, as the password or as a bearer token; [page] of the configuration names its file\n";
            let mut refusal = refusal(StatusCode::UNAUTHORIZED, text);
            let asks = HeaderValue::from_static("Basic realm=\"sluice\", charset=\"UTF-8\"");
            refusal.headers_mut().insert(header::WWW_AUTHENTICATE, asks);
            refusal
        }
    }
}

/// Guards routes as those of the page are: see [`ServedAt`].
pub fn guard(app: Router, at: ServedAt) -> Router {
    app.layer(from_fn_with_state(at, guarded))
}

/// Answers requests that name this host, and adds the headers that a browser is held by.
pub(crate) async fn guarded(State(at): State<ServedAt>, request: Request, next: Next) -> Response {
    // A request by HTTP/1.0 may have none; browsers send one.
    let host = request.headers().get(header::HOST).map_or(Some("localhost"), |host| host.to_str().ok());
    if at != ServedAt::Tls && !host.is_some_and(|host| is_here(host, at)) {
        return refusal(StatusCode::FORBIDDEN, "this is served to names of this host alone: localhost, or its loopback address\n");
    }
    let mut answer = next.run(request).await;
    for (name, value) in HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    // Of another version of the daemon the files are others.
    ("cache-control", "no-cache"),
];

/// Whether a `Host` header names this host. In a network `sluice` may be the name of another one.
fn is_here(host: &str, at: ServedAt) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _port)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || (name == "sluice" && at == ServedAt::UnixSocket)
        || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn refusal(status: StatusCode, text: &'static str) -> Response {
    // The rest of such a request is not read, so no other can follow.
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CONNECTION, "close")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_host_are_known() {
        for here in ["localhost", "LocalHost:9180", "127.0.0.1", "127.8.8.8:1", "[::1]", "[::1]:9180"] {
            assert!(is_here(here, ServedAt::Loopback) && is_here(here, ServedAt::UnixSocket), "{here}");
        }
        assert!(is_here("sluice", ServedAt::UnixSocket) && !is_here("sluice", ServedAt::Loopback));
        for other in ["", "example.org", "localhost.example.org:80", "127.0.0.1.example.org", "10.0.0.1:9180", "[::2]:80", "[", ":"]
        {
            assert!(!is_here(other, ServedAt::Loopback) && !is_here(other, ServedAt::UnixSocket), "{other}");
        }
    }
}
