//! The server of the control API on a Unix socket.
//!
//! One thread runs a single-threaded runtime that accepts, reads and writes. Each call of the
//! [`Backend`] runs on a thread of the runtime's pool, so a long one (a trace, a chain that drains)
//! delays no other. What it answers is in `routes`.
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

use std::future::ready;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Poller, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use rustix::fs::Mode;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};

use super::Backend;
use super::guest::{Guest, converse, find_place};
pub use super::limits::Limits;
pub use super::routes::OPENAPI;
pub(crate) use super::routes::router;
use super::routes::{RefusedRequest, router_of_one};
use sluice_api::{ApiError, ErrorKind};
use sluice_host::process::peer_is_in_group;
use sluice_host::record::is_ours;

pub const SPARE: usize = 8;

/// Time between two checks of the socket's file.
pub const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("another sluiced answers at {0}; stop it (`sluice stop`), or give this one another manager.runtime_dir")]
    InUse(PathBuf),
    /// Something other than a socket is in its place.
    #[error("{0} is not a socket; remove it, or give another manager.runtime_dir")]
    NotASocket(PathBuf),
    #[error("cannot make the control socket {path}: {source}; its folder must exist and be writable")]
    Bind { path: PathBuf, source: std::io::Error },
    #[error(
        "cannot give the control socket {path} to group {gid}: {source}; run sluiced as root or as a member, or leave out control.group"
    )]
    Group { path: PathBuf, gid: u32, source: std::io::Error },
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
    serve_with(socket, None, backend, limits, |app| app)
}

/// The same, also for members of a group, and with what `with` makes of the API's routes.
///
/// # Errors
/// As [`serve`].
pub fn serve_with(
    socket: &Path,
    group: Option<u32>,
    backend: Arc<dyn Backend>,
    limits: Limits,
    with: impl FnOnce(Router) -> Router + Send + 'static,
) -> Result<Server, ServeError> {
    let listener = bind(socket, group)?;
    let failed = |source| ServeError::Bind { path: socket.to_owned(), source };
    let inode = Arc::new(Mutex::new(Some(inode_of(socket).map_err(failed)?)));
    let door = Door { path: socket.to_owned(), group, inode: inode.clone() };
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
                runtime.block_on(accept(listener, door, with(router(backend, limits)), limits, stopped));
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
    /// Whose members are answered, too.
    group: Option<u32>,
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
        let listener = bind(&self.path, self.group).ok()?;
        *ours = Some(inode_of(&self.path).ok()?);
        warn!("{} was removed; it is there again", self.path.display());
        UnixListener::from_std(listener).ok()
    }
}

fn bind(path: &Path, group: Option<u32>) -> Result<StdListener, ServeError> {
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
    let make = || -> Result<OwnedFd, std::io::Error> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The file that bind makes has the mode of the socket: others can connect at no time.
        rustix::fs::fchmod(socket.as_fd(), Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    };
    let failed = |source| ServeError::Bind { path: path.to_owned(), source };
    let socket = make().map_err(failed)?;
    if let Some(gid) = group {
        let open = || {
            std::os::unix::fs::lchown(path, None, Some(gid))?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
        };
        open().map_err(|source| {
            let _ = std::fs::remove_file(path);
            ServeError::Group { path: path.to_owned(), gid, source }
        })?;
    }
    rustix::net::listen(&socket, 128).map_err(|error| failed(error.into()))?;
    Ok(socket.into())
}

async fn accept(listener: StdListener, door: Door, app: Router, limits: Limits, mut stopped: watch::Receiver<bool>) {
    let Ok(mut listener) = UnixListener::from_std(listener) else { return };
    let mut looks = tokio::time::interval(LOOK);
    let places = Arc::new(Semaphore::new(limits.clients.max(1)));
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
        let is_owner = stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own_uid);
        let is_member = |gid: u32| peer_is_in_group(stream.as_fd(), gid) == Ok(true);
        let allowed = is_owner || door.group.is_some_and(is_member);
        let app = if allowed { app.clone() } else { refusal() };
        let (stopped, spare) = (stopped.clone(), spare.clone());
        let guest = Arc::new(Guest::default());
        guests.push(guest.clone());
        tokio::spawn(async move {
            guest.attend(stream, |stream| ready(Ok(stream)), app, limits, stopped).await;
            spare.fill();
            drop(place);
        });
    }
    drop(listener);
    let all = u32::try_from(limits.clients.max(1)).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(limits.stop, places.acquire_many(all)).await;
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
        Ok(Self { app: router_of_one(backend, limits), limits, runtime })
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
        RefusedRequest(ApiError::new(
            ErrorKind::Forbidden,
            "this socket is the operator's alone",
            "run as root, as the user that sluiced runs as, or as a member of control.group",
        ))
    })
}
