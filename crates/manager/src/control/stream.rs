//! Answers that are made while they are sent.
//!
//! A thread of the runtime's pool makes the pieces, and waits when the client takes none. It ends
//! when the client has left.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use tokio::sync::mpsc::{Receiver, channel};

use super::Pieces;

/// Pieces that wait for the client.
const AHEAD: usize = 4;

struct Streamed(Receiver<Bytes>);

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// The answer that these pieces are.
pub(super) fn streamed(kind: &'static str, pieces: Pieces) -> Response {
    let (to, body) = channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        for piece in pieces {
            // An empty one is the moment to see whether the client has left.
            let has_left = if piece.is_empty() { to.is_closed() } else { to.blocking_send(piece.into()).is_err() };
            if has_left {
                break;
            }
        }
    });
    ([(header::CONTENT_TYPE, kind)], Body::new(Streamed(body))).into_response()
}
