//! The server of the control API on a Unix socket.
//!
//! One thread runs a single-threaded runtime that accepts, reads and writes. Each call of the
//! [`Backend`] runs on a thread of the runtime's pool, so a long one (a trace, a chain that drains)
//! delays no other. One table, `routes`, is the source of the router and of the OpenAPI document.
//!
//! Limits ([`Limits`]): the number of clients is bounded, and further ones wait in the socket's
//! backlog. A client is closed if it sends no request or half of one, or does not read its answer.
//! While another client waits, one that is silent for a second is closed, unless its request lacks
//! a part of its body. A body over the limit is refused. A call that takes too long is answered
//! with 504, and ends by itself. When the daemon has no file descriptors left, clients get the
//! [`SPARE`] ones that this server keeps, so that an operator can remove something.
//!
//! Every [`LOOK`] the server checks whether its socket's file exists, and makes it anew if it was
//! removed.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context as Poller, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path as UrlPath, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodFilter, MethodRouter};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::fs::Mode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_slo::assignment::Assignment;
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::Backend;
use super::guest::{Guest, Patient};
use super::openapi::{Operation, document};
use super::stream::streamed;
use crate::telemetry::{metrics, prometheus};
use sluice_api::ErrorKind::{Conflict, NotFound};
use sluice_api::change::{CanaryRequest, FormerConfig, SetKeys, Undo};
use sluice_api::model::{
    self, AddNf, AddRule, Apply, CaptureRequest, Done, MAX_TRACE_MS, MAX_TRACED, MoveNf, RemoveNf, TraceRequest, Upgrade,
};
use sluice_api::{ApiError, ErrorBody, ErrorKind};
use sluice_api::{config, promise};
use sluice_host::record::is_ours;

pub static OPENAPI: LazyLock<String> =
    LazyLock::new(|| document(&routes().into_iter().map(|route| route.operation).collect::<Vec<_>>()));

pub const SPARE: usize = 8;

/// Time between two checks of the socket's file.
pub const LOOK: Duration = Duration::from_secs(1);

/// The limits of clients and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub clients: usize,
    pub body_bytes: usize,
    /// Longest time to send a request, and of silence between two requests.
    pub read: Duration,
    /// The same while another client waits: the one that is silent longest is closed.
    pub spare: Duration,
    /// Longest time that a client takes no byte of its answer, with a full socket buffer.
    pub write: Duration,
    pub call: Duration,
    /// Longest wait for calls under way at a stop.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 64,
            body_bytes: 4 << 20,
            read: Duration::from_secs(30),
            spare: Duration::from_secs(1),
            write: Duration::from_secs(10),
            call: Duration::from_millis(MAX_TRACE_MS) + Duration::from_secs(60),
            stop: Duration::from_secs(2),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("another sluiced answers at {0}; stop it (`sluice stop`), or give this one another manager.runtime_dir")]
    InUse(PathBuf),
    /// Something other than a socket is in its place.
    #[error("{0} is not a socket; remove it, or give another manager.runtime_dir")]
    NotASocket(PathBuf),
    #[error("cannot make the control socket {path}: {source}; its folder must exist and be writable")]
    Bind { path: PathBuf, source: std::io::Error },
    #[error("cannot start the control thread: {0}")]
    Thread(std::io::Error),
}

/// A served API; dropping it stops it.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    /// Device and inode of the socket's file; None once it is to be there no more.
    inode: Arc<Mutex<Option<(u64, u64)>>>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts no more clients, waits at most [`Limits::stop`] for calls, and removes the socket.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let _ = self.stop.send(true);
        // From here on the thread makes no other file. Only this server's file is removed.
        let ours = self.inode.lock().unwrap_or_else(PoisonError::into_inner).take();
        if ours.is_some() && ours == inode_of(&self.path).ok() {
            let _ = std::fs::remove_file(&self.path);
        }
        let _ = thread.join();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Serves `backend` at `socket` until the [`Server`] is dropped. Replaces a dead daemon's socket.
///
/// # Errors
/// See [`ServeError`]; nothing is left behind.
pub fn serve(socket: &Path, backend: Arc<dyn Backend>, limits: Limits) -> Result<Server, ServeError> {
    let listener = bind(socket)?;
    let failed = |source| ServeError::Bind { path: socket.to_owned(), source };
    let inode = Arc::new(Mutex::new(Some(inode_of(socket).map_err(failed)?)));
    let door = Door { path: socket.to_owned(), inode: inode.clone() };
    let (stop, stopped) = watch::channel(false);
    let (started, starting) = mpsc::sync_channel(1);
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(limits.clients.max(1) * 2)
            .thread_keep_alive(Duration::from_secs(1))
            .build();
        match runtime {
            Ok(runtime) => {
                let _ = started.send(Ok(()));
                runtime.block_on(accept(listener, door, backend, limits, stopped));
                // A call that outlasts the stop ends with the process.
                runtime.shutdown_background();
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    };
    let thread = std::thread::Builder::new().name("sluice-control".into()).spawn(run).map_err(ServeError::Thread)?;
    let server = Server { path: socket.to_owned(), inode, stop, thread: Some(thread) };
    match starting.recv() {
        Ok(Ok(())) => Ok(server),
        Ok(Err(error)) => Err(ServeError::Thread(error)),
        Err(_) => Err(ServeError::Thread(std::io::Error::other("it ended at once"))),
    }
}

fn inode_of(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

struct Door {
    path: PathBuf,
    inode: Arc<Mutex<Option<(u64, u64)>>>,
}

impl Door {
    /// Makes a new socket if its file was removed or replaced by another daemon's. None if the
    /// server stops, or the folder is not this daemon's: the supervisor makes that, and takes its
    /// lock.
    fn make_anew(&self) -> Option<UnixListener> {
        let mut ours = self.inode.lock().unwrap_or_else(PoisonError::into_inner);
        if ours.is_none() || *ours == inode_of(&self.path).ok() || !is_ours(self.path.parent()?) {
            return None;
        }
        let listener = bind(&self.path).ok()?;
        *ours = Some(inode_of(&self.path).ok()?);
        warn!("{} was removed; it is there again", self.path.display());
        UnixListener::from_std(listener).ok()
    }
}

fn bind(path: &Path) -> Result<StdListener, ServeError> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => return Err(ServeError::NotASocket(path.to_owned())),
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                let _ = std::fs::remove_file(path);
            }
            _ => return Err(ServeError::InUse(path.to_owned())),
        },
        Err(_) => {}
    }
    let make = || -> Result<StdListener, std::io::Error> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The file that bind makes has the mode of the socket: others can connect at no time.
        rustix::fs::fchmod(socket.as_fd(), Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, 128)?;
        Ok(socket.into())
    };
    make().map_err(|source| ServeError::Bind { path: path.to_owned(), source })
}

async fn accept(listener: StdListener, door: Door, backend: Arc<dyn Backend>, limits: Limits, mut stopped: watch::Receiver<bool>) {
    let Ok(mut listener) = UnixListener::from_std(listener) else { return };
    let mut looks = tokio::time::interval(LOOK);
    let places = Arc::new(Semaphore::new(limits.clients.max(1)));
    let app = router(backend, limits);
    let own_uid = rustix::process::geteuid().as_raw();
    let spare = Spare::default();
    spare.fill();
    let mut guests: Vec<Arc<Guest>> = Vec::new();
    loop {
        let stream = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => break,
            _ = looks.tick() => {
                if let Some(anew) = door.make_anew() {
                    listener = anew;
                }
                continue;
            }
            stream = listener.accept() => stream,
        };
        let Ok((stream, _)) = stream else {
            // Most likely no file descriptors are left. A spare one may help, and clients free
            // theirs.
            if !spare.give() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            continue;
        };
        let place = tokio::select! {
            place = find_place(&places, &mut guests, limits) => place,
            _ = stopped.wait_for(|stop| *stop) => break,
        };
        // The kernel noted the peer when it connected. A peer without credentials is refused.
        let allowed = stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own_uid);
        let app = if allowed { app.clone() } else { refusal() };
        let (stopped, spare) = (stopped.clone(), spare.clone());
        let guest = Arc::new(Guest::default());
        guests.push(guest.clone());
        tokio::spawn(async move {
            let stream = Patient::new(stream, limits.write, guest.clone());
            let app = app.layer(axum::middleware::from_fn_with_state(guest.clone(), Guest::calls));
            tokio::select! {
                () = converse(TokioIo::new(stream), app, limits, false, stopped) => {}
                () = guest.goes.notified() => {}
            }
            guest.is_gone.store(true, Ordering::Relaxed);
            spare.fill();
            drop(place);
        });
    }
    drop(listener);
    let all = u32::try_from(limits.clients.max(1)).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(limits.stop, places.acquire_many(all)).await;
}

/// Waits for a slot for one more client: one leaves, or has been silent for too long.
async fn find_place(places: &Arc<Semaphore>, guests: &mut Vec<Arc<Guest>>, limits: Limits) -> OwnedSemaphorePermit {
    let mut look = Duration::ZERO;
    loop {
        guests.retain(|guest| !guest.is_gone.load(Ordering::Relaxed));
        tokio::select! {
            biased;
            place = places.clone().acquire_owned() => return place.expect("the semaphore is never closed"),
            () = tokio::time::sleep(look) => {}
        }
        if let Some((silent, guest)) =
            guests.iter().filter_map(|guest| Some((guest.silent()?, guest))).max_by_key(|(silent, _)| *silent)
            && silent >= limits.spare
        {
            guest.goes.notify_one();
        }
        look = (limits.spare / 10).max(Duration::from_millis(1));
    }
}

/// Serves one client until it leaves, is silent for too long, or the server stops. With
/// `half_close`, a client that has closed its sending side is still answered.
async fn converse<S>(stream: S, app: Router, limits: Limits, half_close: bool, mut stopped: watch::Receiver<bool>)
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.read)
        .half_close(half_close)
        .serve_connection(stream, TowerToHyperService::new(app));
    tokio::pin!(connection);
    let stop = stopped.wait_for(|stop| *stop);
    tokio::select! {
        // An error here is the client's: it left, or its bytes were not HTTP.
        _ = connection.as_mut() => return,
        _ = stop => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Descriptors kept for clients that come when no others are left.
#[derive(Clone, Default)]
struct Spare(Arc<Mutex<Vec<OwnedFd>>>);

impl Spare {
    /// Closes one, if there is one.
    fn give(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }

    /// Opens as many as are missing, while the system has any.
    fn fill(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while all.len() < SPARE {
            match rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC) {
                Ok(fd) => all.push(fd),
                Err(_) => return,
            }
        }
    }
}

/// The server without its socket, for tests and fuzzing.
pub struct Unconnected {
    app: Router,
    limits: Limits,
    runtime: tokio::runtime::Runtime,
}

impl Unconnected {
    /// A server for `backend`.
    ///
    /// # Errors
    /// The host has no memory for it.
    pub fn new(backend: Arc<dyn Backend>, limits: Limits) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        Ok(Self { app: router(backend, limits), limits, runtime })
    }

    /// The answer to a client that sends `request` and nothing more.
    pub fn answer(&self, request: &[u8]) -> Vec<u8> {
        let mut client = Client { request, answer: Vec::new() };
        let (_stop, stopped) = watch::channel(false);
        self.runtime.block_on(converse(&mut client, self.app.clone(), self.limits, true, stopped));
        client.answer
    }
}

struct Client<'a> {
    /// What it has not sent yet.
    request: &'a [u8],
    answer: Vec<u8>,
}

impl hyper::rt::Read for &mut Client<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Poller<'_>,
        mut room: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        let (now, later) = self.request.split_at(self.request.len().min(room.remaining()));
        room.put_slice(now);
        self.request = later;
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for &mut Client<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Poller<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.answer.extend(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Poller<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Poller<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn refusal() -> Router {
    Router::new().fallback(|| async {
        Refusal(ApiError::new(
            ErrorKind::Forbidden,
            "this socket is the operator's alone",
            "run as root or as the user that sluiced runs as",
        ))
    })
}

/// The state of the handlers.
#[derive(Clone)]
struct Context {
    backend: Arc<dyn Backend>,
    limits: Limits,
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
    [questions(), of_nfs(), of_services(), of_packets(), of_sights(), of_the_whole()].into_iter().flatten().collect()
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
                let text = cx.blocking(|b| Ok(metrics::exposition(&b.stats()?))).await?;
                Ok::<_, Refusal>(([(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)], text))
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
                    Refusal(ApiError::bad_input(what, "see /v1/openapi.json"))
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
        removal!("/v1/services/{name}/canary", "abortCanary", "Give up a version that has a part of new flows", abort_canary),
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
                    return Err(Refusal(ApiError::unprocessable(what, format!("ask for 1 to {MAX_TRACED}"))));
                }
                if request.timeout_ms == 0 || request.timeout_ms > MAX_TRACE_MS {
                    let what = format!("cannot wait {} ms", request.timeout_ms);
                    return Err(Refusal(ApiError::unprocessable(what, format!("ask for 1 to {MAX_TRACE_MS} ms"))));
                }
                cx.call(move |b| b.trace(&request)).await
            },
        ),
        route(
            post("/v1/captures", "capture", "Capture packets at hops of their way, until the limits or until the client leaves")
                .takes::<CaptureRequest>()
                .streams("application/x-pcapng")
                .refuses(&[NotFound, Conflict]),
            |State(cx): State<Context>, request: Request| async move {
                let request: CaptureRequest = cx.body(request).await?;
                Ok::<_, Refusal>(streamed("application/x-pcapng", cx.blocking(move |b| b.capture(&request)).await?))
            },
        ),
    ]
}

/// Routes that change more than one object.
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
        route(
            post("/v1/shutdown", "shutdown", "Stop the daemon: packets inside leave first").answers::<Done>(202),
            |State(cx): State<Context>| async move {
                let done = cx.blocking(|b| b.shutdown()).await.map(|()| Done { done: true })?;
                Ok::<_, Refusal>(json(StatusCode::ACCEPTED, &done))
            },
        ),
    ]
}

fn router(backend: Arc<dyn Backend>, limits: Limits) -> Router {
    let router = routes().into_iter().fold(Router::new(), |router, route| router.route(route.operation.path, route.handler));
    router
        .method_not_allowed_fallback(|request: Request| async move {
            let what = format!("{} is not possible on {}", request.method(), request.uri().path());
            Refusal(ApiError::new(ErrorKind::MethodNotAllowed, what, "see /v1/openapi.json"))
        })
        .fallback(|request: Request| async move {
            let what = format!("there is nothing at {}", request.uri().path());
            Refusal(ApiError::new(ErrorKind::NotFound, what, "see /v1/openapi.json"))
        })
        .with_state(Context { backend, limits })
}

impl Context {
    /// Runs a call on a thread that may block.
    async fn blocking<T, F>(&self, call: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&dyn Backend) -> Result<T, ApiError> + Send + 'static,
    {
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
        answer.map_err(Refusal)
    }

    async fn call<T, F>(&self, call: F) -> Result<Response, Refusal>
    where
        T: Serialize + Send + 'static,
        F: FnOnce(&dyn Backend) -> Result<T, ApiError> + Send + 'static,
    {
        Ok(json(StatusCode::OK, &self.blocking(call).await?))
    }

    async fn create<T, F>(&self, call: F) -> Result<Response, Refusal>
    where
        T: Serialize + Send + 'static,
        F: FnOnce(&dyn Backend) -> Result<T, ApiError> + Send + 'static,
    {
        Ok(json(StatusCode::CREATED, &self.blocking(call).await?))
    }

    /// Reads a body within the limits, and parses it.
    fn body<T: DeserializeOwned>(&self, request: Request) -> impl Future<Output = Result<T, Refusal>> + Send {
        let limits = self.limits;
        async move {
            let too_large = || {
                let what = format!("the request is larger than {} bytes", limits.body_bytes);
                Refusal(ApiError::new(ErrorKind::TooLarge, what, "send less"))
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
                    return Err(Refusal(ApiError::new(ErrorKind::RequestTimeout, what, "send it in one go")));
                }
            };
            let (kind, why) = match serde_json::from_slice(&bytes) {
                // serde takes the fields of an object as a list, too.
                Ok(_) if bytes.trim_ascii_start().starts_with(b"[") => (ErrorKind::Unprocessable, "a list is no object".into()),
                Ok(value) => return Ok(value),
                Err(error) if error.is_data() => (ErrorKind::Unprocessable, error.to_string()),
                Err(error) => (ErrorKind::BadInput, error.to_string()),
            };
            Err(Refusal(ApiError::new(kind, format!("the request's JSON: {why}"), "see /v1/openapi.json")))
        }
    }
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, "application/json")], Body::from(bytes)).into_response(),
        Err(error) => Refusal(ApiError::internal(format!("cannot write the answer: {error}"))).into_response(),
    }
}

struct Refusal(ApiError);

impl IntoResponse for Refusal {
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
