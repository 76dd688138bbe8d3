//! A client of the server: its place, whether it waits for something, and how long it may take.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Poller, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Sleep;

use super::limits::Limits;

/// A connected client.
#[derive(Default)]
pub(super) struct Guest {
    /// Its calls under way, plus one while it does not take its answer.
    busy: AtomicUsize,
    /// When it last sent or took something.
    heard: Mutex<Option<Instant>>,
    /// Rung when it is to go.
    pub goes: Notify,
    pub is_gone: AtomicBool,
}

impl Guest {
    /// How long it has been silent. None while the server has to answer it.
    pub fn silent(&self) -> Option<Duration> {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = heard.get_or_insert_with(Instant::now);
        (self.busy.load(Ordering::Relaxed) == 0).then(|| heard.elapsed())
    }

    fn is_heard(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Serves it until it leaves, is to go, is silent for too long, or the server stops. `open`
    /// makes what HTTP is spoken on of its connection: with TLS, that of a handshake.
    pub async fn attend<S, T, F>(
        self: Arc<Self>,
        stream: S,
        open: impl FnOnce(Patient<S>) -> F,
        app: Router,
        limits: Limits,
        stopped: watch::Receiver<bool>,
    ) where
        T: AsyncRead + AsyncWrite + Unpin,
        F: Future<Output = io::Result<T>>,
    {
        let opened = open(Patient::new(stream, limits.write, self.clone()));
        let app = app.layer(from_fn_with_state((self.clone(), limits), Self::calls));
        let stays = async {
            // Without, it has left, or was refused.
            if let Ok(stream) = opened.await {
                converse(TokioIo::new(stream), app, limits, false, stopped).await;
            }
        };
        tokio::select! {
            () = stays => {}
            () = self.goes.notified() => {}
        }
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// Runs one of its calls, from request to answer. What a call did not read of its request is
    /// read before the answer is sent: HTTP's server closes the connection of a request that has a
    /// rest, and the client's next request would be lost. A rest that is too long or too late, or
    /// that the client holds back until it is asked for, is announced as the connection's end.
    /// While it is waited for, another client may have this one's place.
    pub async fn calls(State((guest, limits)): State<(Arc<Self>, Limits)>, request: Request, next: Next) -> Response {
        let mut call = Call::begin(guest.clone());
        let (head, body) = request.into_parts();
        let is_held_back = head.headers.contains_key(header::EXPECT);
        let body = Arc::new(Mutex::new(body));
        let mut answer = next.run(Request::from_parts(head, Body::new(Lent(body.clone())))).await;
        let rest = std::mem::take(&mut *body.lock().unwrap_or_else(PoisonError::into_inner));
        if !rest.is_end_stream() && !answer.headers().contains_key(header::CONNECTION) {
            drop(call);
            let is_read =
                !is_held_back && tokio::time::timeout(limits.read, discard(rest, limits.body_bytes)).await.unwrap_or(false);
            if !is_read {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            call = Call::begin(guest);
        }
        if answer.body().size_hint().exact().is_some() {
            return answer;
        }
        // The rest of a streamed answer is still to come.
        answer.map(|body| Body::new(Rest { body, _call: call }))
    }
}

/// Waits for a slot for one more client: one leaves, or has been silent for too long.
pub(super) async fn find_place(places: &Arc<Semaphore>, guests: &mut Vec<Arc<Guest>>, limits: Limits) -> OwnedSemaphorePermit {
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
pub(super) async fn converse<S>(stream: S, app: Router, limits: Limits, half_close: bool, mut stopped: watch::Receiver<bool>)
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

/// A call under way, until it is dropped.
struct Call(Arc<Guest>);

impl Call {
    fn begin(guest: Arc<Guest>) -> Self {
        guest.busy.fetch_add(1, Ordering::Relaxed);
        Self(guest)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        self.0.is_heard();
    }
}

/// The body of a request, as its call gets it.
struct Lent(Arc<Mutex<Body>>);

impl Lent {
    fn body(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.body()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}

/// Reads a body to its end; false if it is longer than `most` bytes or breaks off.
async fn discard(mut body: Body, most: usize) -> bool {
    let mut bytes = 0;
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        bytes += match frame {
            Ok(frame) => frame.data_ref().map_or(0, Bytes::len),
            Err(_) => return false,
        };
        if bytes > most {
            return false;
        }
    }
    true
}

/// A streamed answer.
struct Rest {
    body: Body,
    _call: Call,
}

impl HttpBody for Rest {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// A client's connection; it fails when the client takes no byte for too long.
pub(super) struct Patient<S> {
    stream: S,
    limit: Duration,
    /// Runs while the socket's buffer is full.
    timer: Option<Pin<Box<Sleep>>>,
    guest: Arc<Guest>,
}

impl<S> Patient<S> {
    pub fn new(stream: S, limit: Duration, guest: Arc<Guest>) -> Self {
        Self { stream, limit, timer: None, guest }
    }

    /// Notes whether the client is taking its answer.
    fn waits(&mut self, timer: Option<Pin<Box<Sleep>>>) {
        match (&self.timer, &timer) {
            (None, Some(_)) => drop(self.guest.busy.fetch_add(1, Ordering::Relaxed)),
            (Some(_), None) => drop(self.guest.busy.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        self.timer = timer;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Poller<'_>, bytes: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = bytes.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, bytes);
        if bytes.filled().len() > before {
            self.guest.is_heard();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Poller<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, bytes) {
            self.waits(None);
            self.guest.is_heard();
            return Poll::Ready(written);
        }
        if self.timer.is_none() {
            let timer = Box::pin(tokio::time::sleep(self.limit));
            self.waits(Some(timer));
        }
        let timer = self.timer.as_mut().expect("it was set");
        timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
