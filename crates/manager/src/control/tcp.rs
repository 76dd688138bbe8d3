//! A listener for programs that do not speak to Unix sockets: browsers, scrapers.
//!
//! It runs on a thread of its own, so that none of them delays an operator at the control socket,
//! and has that socket's limits of clients ([`Limits`]). Any program of the host may ask without
//! end, and with TLS other hosts may, so its threads have a low priority: where a core is
//! contended, they get a tenth of it. What it serves, and to which requests, is the caller's
//! choice.

use std::future::ready;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::{Extension, Router};
use sluice_page::{LOOK, Tls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};

use super::guest::{Guest, find_place};
use super::server::Limits;

/// The threads' nice value: a weight of 110, where others have 1024.
const NICE: i32 = 10;

/// Longest handshake of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Called every [`LOOK`]: reads again what has changed, and says whether clients are to connect
/// anew.
pub type Look = Box<dyn FnMut() -> bool + Send>;

/// A listener that is served; dropping it stops it.
#[derive(Debug)]
pub struct TcpServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl TcpServer {
    /// Its address, with its port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Binds a listener, which is not served yet.
///
/// # Errors
/// The system's: the address is in use, or not one of this host.
pub fn bind(address: SocketAddr) -> io::Result<StdListener> {
    let listener = StdListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves `app` at a listener of [`bind`], with TLS if it is given, until the [`TcpServer`] is
/// dropped.
///
/// # Errors
/// The system has no thread or no descriptors for it.
pub fn serve(listener: StdListener, app: Router, limits: Limits, tls: Option<Tls>, look: Option<Look>) -> io::Result<TcpServer> {
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(limits.clients.max(1) * 2)
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    let (stop, stopped) = watch::channel(false);
    let run = move || {
        // On Linux of this thread alone, and of those that it starts.
        let _ = rustix::process::setpriority_process(None, NICE);
        let everyone = Arc::new(Notify::new());
        if let Some(look) = look {
            // Not beside the clients, which may keep their loop waiting.
            runtime.spawn(look_on(look, everyone.clone()));
        }
        runtime.block_on(accept(listener, app, limits, tls, everyone, stopped));
        // Clients are closed; a call that outlasts the stop ends with the process.
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("sluice-http".into()).spawn(run)?;
    Ok(TcpServer { address, stop, thread: Some(thread) })
}

/// Looks again and again. Rings for `everyone` when clients are to connect anew.
async fn look_on(mut look: Look, everyone: Arc<Notify>) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if look() {
            everyone.notify_waiters();
        }
    }
}

async fn accept(
    listener: StdListener,
    app: Router,
    limits: Limits,
    tls: Option<Tls>,
    everyone: Arc<Notify>,
    mut stopped: watch::Receiver<bool>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let places = Arc::new(Semaphore::new(limits.clients.max(1)));
    let mut guests: Vec<Arc<Guest>> = Vec::new();
    loop {
        let stream = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            stream = listener.accept() => stream,
        };
        let Ok((stream, peer)) = stream else {
            // The client has left, or no file descriptors are left.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let place = tokio::select! {
            place = find_place(&places, &mut guests, limits) => place,
            _ = stopped.wait_for(|stop| *stop) => return,
        };
        // An event is to be seen when it is sent; without this it is only seen later.
        let _ = stream.set_nodelay(true);
        let guest = Arc::new(Guest::default());
        guests.push(guest.clone());
        // The log names clients with a wrong token.
        let app = app.clone().layer(Extension(peer));
        let (stopped, tls, everyone) = (stopped.clone(), tls.clone(), everyone.clone());
        tokio::spawn(async move {
            let attended = async {
                match tls {
                    None => guest.clone().attend(stream, |stream| ready(Ok(stream)), app, limits, stopped).await,
                    Some(tls) => guest.clone().attend(stream, |stream| shake_hands(tls, stream, peer), app, limits, stopped).await,
                }
            };
            tokio::select! {
                () = attended => {}
                () = everyone.notified() => guest.is_gone.store(true, Ordering::Relaxed),
            }
            drop(place);
        });
    }
}

/// What TLS makes of a client's connection.
async fn shake_hands<S>(tls: Tls, stream: S, peer: SocketAddr) -> io::Result<impl AsyncRead + AsyncWrite + Unpin>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let shaken = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await;
    let shaken = shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    shaken.inspect_err(|error| debug!("no TLS with {peer}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    use axum::routing::get;

    use super::*;

    fn served(limits: Limits, look: Option<Look>) -> TcpServer {
        let app = Router::new().route("/", get(|| async { "here" }));
        serve(bind(([127, 0, 0, 1], 0).into()).unwrap(), app, limits, None, look).unwrap()
    }

    fn ask(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn clients_are_answered_until_it_is_dropped() {
        let server = served(Limits::default(), None);
        let address = server.address();
        assert!(address.ip().is_loopback() && address.port() != 0);
        for _ in 0..3 {
            let answer = ask(address);
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhere"), "{answer}");
        }
        assert!(bind(address).is_err());
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn a_request_has_the_address_of_its_client() {
        let app = Router::new().route("/", get(|Extension(peer): Extension<SocketAddr>| ready(peer.to_string())));
        let listener = bind(([127, 0, 0, 1], 0).into()).unwrap();
        let server = serve(listener, app, Limits::default(), None, None).unwrap();
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with(&format!("\r\n\r\n{}", stream.local_addr().unwrap())), "{answer}");
    }

    #[test]
    fn a_body_that_no_call_reads_costs_no_connection() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counts = asked.clone();
        let refuse = move || {
            counts.fetch_add(1, Ordering::Relaxed);
            ready((axum::http::StatusCode::METHOD_NOT_ALLOWED, "not so"))
        };
        let app = Router::new().fallback(refuse);
        let server = serve(bind(([127, 0, 0, 1], 0).into()).unwrap(), app, Limits::default(), None, None).unwrap();
        let mut stream = TcpStream::connect(server.address()).unwrap();
        for request in 1..=3 {
            stream.write_all(b"QUERY / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n").unwrap();
            let until = Instant::now() + Duration::from_secs(60);
            while asked.load(Ordering::Relaxed) < request {
                assert!(Instant::now() < until, "request {request} is not answered");
                std::thread::yield_now();
            }
            stream.write_all(b"body").unwrap();
            let answer = read_until(&mut stream, b"not so");
            assert!(!answer.contains("connection: close"), "{answer}");
        }
    }

    #[test]
    fn a_body_that_is_too_long_ends_the_connection_and_the_answer_says_so() {
        let limits = Limits { body_bytes: 8, ..Limits::default() };
        let server = served(limits, None);
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nnine byte").unwrap();
        let answer = read_until(&mut stream, b"here");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }

    #[test]
    fn a_body_that_is_late_or_held_back_ends_the_connection_and_the_answer_says_so() {
        let server = served(Limits { read: Duration::from_secs(2), ..Limits::default() }, None);
        for more in ["", "Expect: 100-continue\r\n"] {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            write!(stream, "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n{more}\r\n").unwrap();
            let answer = read_until(&mut stream, b"here");
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("connection: close\r\n"), "{answer}");
        }
    }

    #[test]
    fn a_client_that_lacks_a_part_of_a_body_that_no_call_reads_makes_place_for_another() {
        let server = served(Limits { clients: 1, spare: Duration::ZERO, ..Limits::default() }, None);
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n").unwrap();
        assert!(ask(server.address()).ends_with("here"));
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "it was closed");
    }

    /// What a client reads up to `end`.
    fn read_until(stream: &mut TcpStream, end: &[u8]) -> String {
        let mut answer = Vec::new();
        while !answer.ends_with(end) {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn a_silent_client_makes_place_for_another() {
        let server = served(Limits { clients: 1, spare: Duration::ZERO, ..Limits::default() }, None);
        let mut silent = TcpStream::connect(server.address()).unwrap();
        assert!(ask(server.address()).ends_with("here"));
        assert_eq!(silent.read(&mut [0]).unwrap(), 0, "it was closed");
    }

    #[test]
    fn clients_connect_anew_when_a_look_says_so() {
        let known = Arc::new(AtomicUsize::new(0));
        let changes = known.clone();
        // Once, when the client below is known to be served.
        let look = move || changes.compare_exchange(1, 2, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let server = served(Limits::default(), Some(Box::new(look)));
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        read_until(&mut stream, b"here");
        known.store(1, Ordering::Relaxed);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it was closed");
        assert!(ask(server.address()).ends_with("here"), "another is served");
    }
}
