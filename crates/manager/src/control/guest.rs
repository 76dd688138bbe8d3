//! A client of the server: whether it waits for something, and how long it may take.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Poller, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Sleep;

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

    /// Runs one of its calls, from request to answer.
    pub async fn calls(State(guest): State<Arc<Self>>, request: Request, next: Next) -> Response {
        guest.busy.fetch_add(1, Ordering::Relaxed);
        let call = Call(guest);
        let answer = next.run(request).await;
        if answer.body().size_hint().exact().is_some() {
            return answer;
        }
        // The rest of a streamed answer is still to come.
        answer.map(|body| Body::new(Rest { body, _call: call }))
    }
}

/// A call under way, until it is dropped.
struct Call(Arc<Guest>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        self.0.is_heard();
    }
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
