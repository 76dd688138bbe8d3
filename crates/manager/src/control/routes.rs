//! What the control API answers: one table, which the router and the OpenAPI document are made of.

use std::future::Future;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path as UrlPath, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodFilter, MethodRouter};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_slo::assignment::Assignment;

use super::Backend;
use super::limits::Limits;
use super::openapi::{Operation, document};
use super::stream::streamed;
use crate::telemetry::metrics;
use sluice_api::ErrorKind::{Conflict, NotFound};
use sluice_api::change::{CanaryRequest, FormerConfig, RunningConfig, SetKeys, Undo};
use sluice_api::exposition::TextFormat;
use sluice_api::model::{
    self, AddNf, AddRule, Apply, CaptureRequest, Done, FlowsRequest, MAX_TRACE_MS, MAX_TRACED, MoveNf, RemoveNf, TraceRequest,
    Upgrade, WhyRequest,
};
use sluice_api::shadow::{ShadowReport, ShadowRequest};
use sluice_api::{ApiError, ErrorBody, ErrorKind};
use sluice_api::{config, promise};

pub static OPENAPI: LazyLock<String> =
    LazyLock::new(|| document(&routes().into_iter().map(|route| route.operation).collect::<Vec<_>>()));

/// The kind of a trace of Perfetto.
const PERFETTO: &str = "application/x-protobuf";

/// The state of the handlers.
#[derive(Clone)]
struct Context {
    backend: Arc<dyn Backend>,
    limits: Limits,
    /// Whether calls run on threads of their own.
    has_threads: bool,
}

struct Route {
    operation: Operation,
    handler: MethodRouter<Context>,
}

/// A route of its entry in the document and its handler.
fn route<H, T>(operation: Operation, handler: H) -> Route
where
    H: axum::handler::Handler<T, Context>,
    T: 'static,
{
    let method = match operation.method {
        "GET" => MethodFilter::GET,
        "POST" => MethodFilter::POST,
        "PUT" => MethodFilter::PUT,
        _ => MethodFilter::DELETE,
    };
    Route { operation, handler: routing::on(method, handler) }
}

fn get(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::new("GET", path, id, summary)
}

fn post(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::new("POST", path, id, summary)
}

fn put(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::new("PUT", path, id, summary)
}

fn delete(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::new("DELETE", path, id, summary).refuses(&[Conflict])
}

/// A list, and one of its objects by name, both read from the statistics.
macro_rules! collection {
    ($list:literal, $one:literal, $what:literal, $field:ident, $type:ty, $list_id:literal, $one_id:literal) => {
        [
            route(
                get($list, $list_id, concat!("All ", $what, "s")).answers::<Vec<$type>>(200),
                |State(cx): State<Context>| async move { cx.call(|b| Ok(b.stats()?.$field)).await },
            ),
            route(
                get($one, $one_id, concat!("One ", $what)).answers::<$type>(200),
                |State(cx): State<Context>, UrlPath(name): UrlPath<String>| async move {
                    cx.call(move |b| {
                        let all = b.stats()?.$field;
                        let known: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
                        let missing = ApiError::not_found($what, &name, &known);
                        all.into_iter().find(|one| one.name == name).ok_or(missing)
                    })
                    .await
                },
            ),
        ]
    };
}

macro_rules! removal {
    ($one:literal, $id:literal, $summary:literal, $remove:ident) => {
        route(
            delete($one, $id, $summary).answers::<Done>(200),
            |State(cx): State<Context>, UrlPath(name): UrlPath<String>| async move {
                cx.call(move |b| b.$remove(&name).map(|()| Done { done: true })).await
            },
        )
    };
}

macro_rules! question {
    ($operation:expr, $call:ident -> $type:ty) => {
        route($operation.answers::<$type>(200), |State(cx): State<Context>| async move { cx.call(|b| b.$call()).await })
    };
}

/// An object that is made from the request's body.
macro_rules! addition {
    ($path:literal, $id:literal, $summary:literal, $body:ty => $type:ty, |$b:ident, $one:ident| $call:expr) => {
        route(
            post($path, $id, $summary).takes::<$body>().answers::<$type>(201).refuses(&[NotFound, Conflict]),
            |State(cx): State<Context>, request: Request| async move {
                let $one: $body = cx.body(request).await?;
                cx.create(move |$b| $call).await
            },
        )
    };
}

fn routes() -> Vec<Route> {
    [
        questions(),
        of_nfs(),
        of_services(),
        of_versions(),
        of_shadows(),
        of_packets(),
        of_sights(),
        of_timelines(),
        of_the_whole(),
        of_placement(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Routes that change nothing.
fn questions() -> Vec<Route> {
    let mut all = vec![
        question!(get("/v1/status", "status", "What the daemon is and has"), status -> model::Status),
        question!(get("/v1/stats", "stats", "Everything that is counted"), stats -> model::Stats),
        question!(get("/v1/events", "listEvents", "What has happened lately, oldest first"), events -> Vec<model::Event>),
        route(
            get("/v1/metrics", "metrics", "Everything that is counted, for Prometheus"),
            |State(cx): State<Context>| async move {
                let text = cx.blocking(|b| Ok(metrics::exposition(&b.stats()?, TextFormat::Plain))).await?;
                Ok::<_, RefusedRequest>(([(header::CONTENT_TYPE, TextFormat::Plain.content_type())], text))
            },
        ),
        route(
            get("/v1/openapi.json", "openapi", "This document").answers::<serde_json::Map<String, serde_json::Value>>(200),
            || async { ([(header::CONTENT_TYPE, "application/json")], OPENAPI.as_str()) },
        ),
        question!(
            get("/v1/history", "history", "The configurations before the one in force, the latest first"),
            history -> Vec<FormerConfig>
        ),
        question!(
            get("/v1/placement", "placement", "The assignment that is kept").refuses(&[NotFound]),
            placement -> Assignment
        ),
        question!(get("/v1/promises", "promises", "How promises are kept, and which tenant breaks them"), promises -> promise::Promises),
    ];
    all.extend(collection!("/v1/nfs", "/v1/nfs/{name}", "NF", nfs, model::Nf, "listNfs", "getNf"));
    all.extend(collection!(
        "/v1/services",
        "/v1/services/{name}",
        "service",
        services,
        model::Service,
        "listServices",
        "getService"
    ));
    all.extend(collection!("/v1/chains", "/v1/chains/{name}", "chain", chains, model::Chain, "listChains", "getChain"));
    all.extend(collection!("/v1/rules", "/v1/rules/{name}", "rule", rules, model::Rule, "listRules", "getRule"));
    all.extend(collection!("/v1/ports", "/v1/ports/{name}", "port", ports, model::Port, "listPorts", "getPort"));
    all
}

fn of_nfs() -> Vec<Route> {
    vec![
        addition!("/v1/nfs", "addNf", "Start one more instance of a service", AddNf => model::Nf, |b, add| {
            b.add_nf(&add.service, add.core)
        }),
        route(
            delete(
                "/v1/nfs/{name}",
                "removeNf",
                "Stop an instance: its packets come back first. The last one of a service that an open chain passes is refused without force \
                 (409)",
            )
            .asks::<RemoveNf>()
            .answers::<Done>(200),
            |State(cx): State<Context>, UrlPath(name): UrlPath<String>, query: Result<Query<RemoveNf>, QueryRejection>| async move {
                let Query(RemoveNf { force }) = query.map_err(|error| {
                    let what = format!("the parameters of the request: {}", error.body_text());
                    RefusedRequest(ApiError::bad_input(what, "see /v1/openapi.json"))
                })?;
                cx.call(move |b| b.remove_nf(&name, force).map(|()| Done { done: true })).await
            },
        ),
        route(
            post(
                "/v1/nfs/{name}/move",
                "moveNf",
                "Have an instance on another core take the place of an NF, while packets flow: none is lost and none overtakes another. Where \
                 it does not come up, nothing has changed (409)",
            )
            .takes::<MoveNf>()
            .answers::<model::Nf>(200)
            .refuses(&[Conflict]),
            |State(cx): State<Context>, UrlPath(name): UrlPath<String>, request: Request| async move {
                let to: MoveNf = cx.body(request).await?;
                cx.call(move |b| b.move_nf(&name, to.core)).await
            },
        ),
    ]
}

fn of_services() -> Vec<Route> {
    vec![
        addition!("/v1/services", "addService", "Add a service and start its instances", config::Service => model::Service, |b, one| {
            b.add_service(one)
        }),
        removal!("/v1/services/{name}", "removeService", "Remove a service that no chain has", remove_service),
    ]
}

/// Routes that change the version of a service's program.
fn of_versions() -> Vec<Route> {
    vec![
        route(
            post(
                "/v1/services/{name}/upgrade",
                "upgradeService",
                "Go over to another version of a service's program, while packets flow: none is lost and none overtakes another. Members of a \
                 pool leave with their flows. A version that does not work changes nothing (409)",
            )
            .takes::<Upgrade>()
            .answers::<model::Upgraded>(200)
            .refuses(&[Conflict]),
            |State(cx): State<Context>, UrlPath(name): UrlPath<String>, request: Request| async move {
                let to: Upgrade = cx.body(request).await?;
                cx.call(move |b| b.upgrade(&name, &to)).await
            },
        ),
        route(
            post(
                "/v1/services/{name}/canary",
                "canaryService",
                "Give another version of a service's program a part of new flows for a time. Without a fault it takes over then, as in an \
                 upgrade; with one its flows go back. The answer comes when it gets packets, and the end is an event",
            )
            .takes::<CanaryRequest>()
            .answers::<model::Upgraded>(200)
            .refuses(&[NotFound, Conflict]),
            |State(cx): State<Context>, UrlPath(name): UrlPath<String>, request: Request| async move {
                let to: CanaryRequest = cx.body(request).await?;
                cx.call(move |b| b.canary(&name, &to)).await
            },
        ),
        removal!(
            "/v1/services/{name}/canary",
            "abortCanary",
            "Give up the version of a service that has a part of new flows, or copies",
            abort_canary
        ),
    ]
}

/// Routes of a version that gets copies.
fn of_shadows() -> Vec<Route> {
    vec![
        route(
            post(
                "/v1/services/{name}/shadow",
                "shadowService",
                "Give another version of a service's program copies of an instance's packets for a time, and compare verdicts, bytes and \
                 order with those of the instance. Nothing that it returns goes anywhere. If no more packets differ than may, it takes over \
                 then, as in an upgrade. The answer comes when it gets copies, and the end is an event",
            )
            .takes::<ShadowRequest>()
            .answers::<model::Upgraded>(200)
            .refuses(&[NotFound, Conflict]),
            |State(cx): State<Context>, UrlPath(name): UrlPath<String>, request: Request| async move {
                let to: ShadowRequest = cx.body(request).await?;
                cx.call(move |b| b.shadow(&name, &to)).await
            },
        ),
        route(
            get("/v1/services/{name}/shadow", "getShadow", "What was compared of the present or last shadow of a service")
                .answers::<ShadowReport>(200)
                .refuses(&[NotFound]),
            |State(cx): State<Context>, UrlPath(name): UrlPath<String>| async move {
                cx.call(move |b| b.shadow_report(&name)).await
            },
        ),
    ]
}

/// Routes that change where packets go (chains, rules, ports), and their memory.
fn of_packets() -> Vec<Route> {
    vec![
        addition!("/v1/chains", "addChain", "Add a chain", config::Chain => model::Chain, |b, one| b.add_chain(one)),
        removal!("/v1/chains/{name}", "removeChain", "Remove a chain that no rule has", remove_chain),
        addition!("/v1/rules", "addRule", "Add a rule", AddRule => model::Rule, |b, add| b.add_rule(add.rule, add.position)),
        removal!("/v1/rules/{name}", "removeRule", "Remove a rule", remove_rule),
        addition!("/v1/ports", "addPort", "Open a port", config::Port => model::Port, |b, one| b.add_port(one)),
        removal!("/v1/ports/{name}", "removePort", "Close a port that no chain and no rule has", remove_port),
        removal!(
            "/v1/tenants/{name}/memory",
            "renewMemory",
            "Give a tenant fresh packet memory, and start its NFs again; other tenants notice nothing",
            renew_memory
        ),
    ]
}

/// Routes that show packets.
fn of_sights() -> Vec<Route> {
    vec![
        route(
            post("/v1/trace", "trace", "Follow packets on their way, hop by hop")
                .takes::<TraceRequest>()
                .answers::<model::Trace>(200)
                .refuses(&[NotFound]),
            |State(cx): State<Context>, request: Request| async move {
                let request: TraceRequest = cx.body(request).await?;
                if request.count == 0 || request.count > MAX_TRACED {
                    let what = format!("cannot trace {} packets", request.count);
                    return Err(RefusedRequest(ApiError::unprocessable(what, format!("ask for 1 to {MAX_TRACED}"))));
                }
                if request.timeout_ms == 0 || request.timeout_ms > MAX_TRACE_MS {
                    let what = format!("cannot wait {} ms", request.timeout_ms);
                    return Err(RefusedRequest(ApiError::unprocessable(what, format!("ask for 1 to {MAX_TRACE_MS} ms"))));
                }
                cx.call(move |b| b.trace(&request)).await
            },
        ),
        route(
            post("/v1/why", "why", "What a packet would meet if it came now: rule, chain, path, and what would drop or hold it")
                .takes::<WhyRequest>()
                .answers::<model::WhyReply>(200)
                .refuses(&[NotFound]),
            |State(cx): State<Context>, request: Request| async move {
                let request: WhyRequest = cx.body(request).await?;
                cx.call(move |b| b.why(&request)).await
            },
        ),
        route(
            post("/v1/flows", "flows", "The flows that there are, and those that have ended lately")
                .takes::<FlowsRequest>()
                .answers::<model::FlowsReply>(200)
                .refuses(&[NotFound]),
            |State(cx): State<Context>, request: Request| async move {
                let request: FlowsRequest = cx.body(request).await?;
                cx.call(move |b| b.flows(&request)).await
            },
        ),
        route(
            post("/v1/captures", "capture", "Capture packets at hops of their way, until the limits or until the client leaves")
                .takes::<CaptureRequest>()
                .streams("application/x-pcapng")
                .refuses(&[NotFound, Conflict]),
            |State(cx): State<Context>, request: Request| async move {
                let request: CaptureRequest = cx.body(request).await?;
                Ok::<_, RefusedRequest>(streamed("application/x-pcapng", cx.blocking(move |b| b.capture(&request)).await?))
            },
        ),
    ]
}

/// Routes that show what ran when.
fn of_timelines() -> Vec<Route> {
    vec![
        question!(
            get("/v1/timelines", "listTimelines", "The timelines that the flight recorder has written, oldest first"),
            timelines -> Vec<model::Timeline>
        ),
        route(
            get("/v1/timelines/{name}", "getTimeline", "One of these: a trace of Perfetto").streams(PERFETTO),
            |State(cx): State<Context>, UrlPath(name): UrlPath<String>| async move {
                Ok::<_, RefusedRequest>(streamed(PERFETTO, cx.blocking(move |b| b.timeline(&name)).await?))
            },
        ),
        route(
            post("/v1/timelines", "record", "Record a timeline: a trace of Perfetto, until its end or until the client leaves")
                .takes::<model::RecordRequest>()
                .streams(PERFETTO)
                .refuses(&[Conflict]),
            |State(cx): State<Context>, request: Request| async move {
                let request: model::RecordRequest = cx.body(request).await?;
                Ok::<_, RefusedRequest>(streamed(PERFETTO, cx.blocking(move |b| b.record(&request)).await?))
            },
        ),
    ]
}

/// Routes of the whole configuration, and of the daemon.
fn of_the_whole() -> Vec<Route> {
    vec![
        route(
            post("/v1/apply", "apply", "Go over to another configuration by the smallest set of changes")
                .takes::<Apply>()
                .answers::<model::Applied>(200)
                .refuses(&[Conflict]),
            |State(cx): State<Context>, request: Request| async move {
                let Apply { config, file, dry_run } = cx.body(request).await?;
                cx.call(move |b| b.apply(&config, file.as_deref(), dry_run)).await
            },
        ),
        route(
            post("/v1/set", "set", "Change keys of the configuration in force, as an apply of it with these keys would")
                .takes::<SetKeys>()
                .answers::<model::Applied>(200)
                .refuses(&[Conflict]),
            |State(cx): State<Context>, request: Request| async move {
                let keys: SetKeys = cx.body(request).await?;
                cx.call(move |b| b.set(&keys)).await
            },
        ),
        // Not by GET, which readers may: it may have secrets.
        question!(
            post("/v1/config", "runningConfig", "The configuration in force, as TOML"),
            running_config -> RunningConfig
        ),
        route(
            post("/v1/undo", "undo", "Go back to a former configuration, as an apply of it would")
                .takes::<Undo>()
                .answers::<model::Applied>(200)
                .refuses(&[NotFound, Conflict]),
            |State(cx): State<Context>, request: Request| async move {
                let to: Undo = cx.body(request).await?;
                cx.call(move |b| b.undo(to)).await
            },
        ),
        route(
            post("/v1/shutdown", "shutdown", "Stop the daemon: packets inside leave first").answers::<Done>(202),
            |State(cx): State<Context>| async move {
                let done = cx.blocking(|b| b.shutdown()).await.map(|()| Done { done: true })?;
                Ok::<_, RefusedRequest>(json(StatusCode::ACCEPTED, &done))
            },
        ),
    ]
}

fn of_placement() -> Vec<Route> {
    vec![
        route(
            put(
                "/v1/placement",
                "place",
                "Keep an assignment from now on, instead of the one before; if something is wrong with it, that one stands",
            )
            .takes::<Assignment>()
            .answers::<promise::Placed>(200)
            .refuses(&[Conflict]),
            |State(cx): State<Context>, request: Request| async move {
                let assignment: Assignment = cx.body(request).await?;
                cx.call(move |b| b.place(assignment)).await
            },
        ),
        question!(
            delete("/v1/placement", "withdraw", "Keep no assignment any more: chains are as the configuration says").refuses(&[NotFound]),
            withdraw -> promise::Placed
        ),
    ]
}

pub(crate) fn router(backend: Arc<dyn Backend>, limits: Limits) -> Router {
    router_of(Context { backend, limits, has_threads: true })
}

/// The same for one client alone: calls run on the thread of its connection.
pub(super) fn router_of_one(backend: Arc<dyn Backend>, limits: Limits) -> Router {
    router_of(Context { backend, limits, has_threads: false })
}

fn router_of(context: Context) -> Router {
    let router = routes().into_iter().fold(Router::new(), |router, route| router.route(route.operation.path, route.handler));
    router
        .method_not_allowed_fallback(|request: Request| async move {
            let what = format!("{} is not possible on {}", request.method(), request.uri().path());
            RefusedRequest(ApiError::new(ErrorKind::MethodNotAllowed, what, "see /v1/openapi.json"))
        })
        .fallback(|request: Request| async move {
            let what = format!("there is nothing at {}", request.uri().path());
            RefusedRequest(ApiError::new(ErrorKind::NotFound, what, "see /v1/openapi.json"))
        })
        .with_state(context)
}

impl Context {
    /// Runs a call, on a thread that may block.
    async fn blocking<T, F>(&self, call: F) -> Result<T, RefusedRequest>
    where
        T: Send + 'static,
        F: FnOnce(&dyn Backend) -> Result<T, ApiError> + Send + 'static,
    {
        if !self.has_threads {
            return call(&*self.backend).map_err(RefusedRequest);
        }
        let backend = self.backend.clone();
        let answer = tokio::task::spawn_blocking(move || call(&*backend));
        let answer = match tokio::time::timeout(self.limits.call, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(ApiError::internal("the daemon failed in this call")),
            Err(_) => {
                let what = format!("no answer within {} s", self.limits.call.as_secs_f64());
                Err(ApiError::new(ErrorKind::Timeout, what, "it may still take effect: look again later"))
            }
        };
        answer.map_err(RefusedRequest)
    }

    async fn call<T, F>(&self, call: F) -> Result<Response, RefusedRequest>
    where
        T: Serialize + Send + 'static,
        F: FnOnce(&dyn Backend) -> Result<T, ApiError> + Send + 'static,
    {
        Ok(json(StatusCode::OK, &self.blocking(call).await?))
    }

    async fn create<T, F>(&self, call: F) -> Result<Response, RefusedRequest>
    where
        T: Serialize + Send + 'static,
        F: FnOnce(&dyn Backend) -> Result<T, ApiError> + Send + 'static,
    {
        Ok(json(StatusCode::CREATED, &self.blocking(call).await?))
    }

    /// Reads a body within the limits, and parses it.
    fn body<T: DeserializeOwned>(&self, request: Request) -> impl Future<Output = Result<T, RefusedRequest>> + Send {
        let limits = self.limits;
        async move {
            let too_large = || {
                let what = format!("the request is larger than {} bytes", limits.body_bytes);
                RefusedRequest(ApiError::new(ErrorKind::TooLarge, what, "send less"))
            };
            let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
            if announced.is_some_and(|bytes| bytes > limits.body_bytes as u64) {
                return Err(too_large());
            }
            let bytes = match tokio::time::timeout(limits.read, to_bytes(request.into_body(), limits.body_bytes)).await {
                Ok(Ok(bytes)) => bytes,
                Ok(Err(_)) => return Err(too_large()),
                Err(_) => {
                    let what = "the request did not arrive in time";
                    return Err(RefusedRequest(ApiError::new(ErrorKind::RequestTimeout, what, "send it in one go")));
                }
            };
            let (kind, why) = match serde_json::from_slice(&bytes) {
                // serde takes the fields of an object as a list, too.
                Ok(_) if bytes.trim_ascii_start().starts_with(b"[") => (ErrorKind::Unprocessable, "a list is no object".into()),
                Ok(value) => return Ok(value),
                Err(error) if error.is_data() => (ErrorKind::Unprocessable, error.to_string()),
                Err(error) => (ErrorKind::BadInput, error.to_string()),
            };
            Err(RefusedRequest(ApiError::new(kind, format!("the request's JSON: {why}"), "see /v1/openapi.json")))
        }
    }
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, "application/json")], Body::from(bytes)).into_response(),
        Err(error) => RefusedRequest(ApiError::internal(format!("cannot write the answer: {error}"))).into_response(),
    }
}

/// What is refused, as an answer.
pub(super) struct RefusedRequest(pub(super) ApiError);

impl IntoResponse for RefusedRequest {
    fn into_response(self) -> Response {
        let Self(ApiError { kind, error, hint }) = self;
        let status = StatusCode::from_u16(kind.code()).expect("the codes are HTTP's");
        let body = serde_json::to_vec(&ErrorBody { error, hint }).expect("two strings are JSON");
        let mut response = (status, [(header::CONTENT_TYPE, "application/json")], Body::from(body)).into_response();
        if matches!(kind, ErrorKind::TooLarge | ErrorKind::RequestTimeout | ErrorKind::Forbidden) {
            // The rest of the request is not read, so no other request can follow.
            response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
#[path = "openapi_test.rs"]
mod openapi_test;
