//! A listener for programs of this host that do not speak to Unix sockets: browsers, scrapers.
//!
//! It runs on a thread of its own, so that none of them delays an operator at the control socket,
//! and has that socket's limits of clients ([`Limits`]). Any program of the host may ask without
//! end, so its threads have a low priority: where a core is contended, they get a tenth of it. What
//! it serves, and to which requests, is the caller's choice.

use std::future::ready;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::guest::{Guest, find_place};
use super::server::Limits;

/// Most calls of the backend at a time.
const CALLS: usize = 4;

/// The threads' nice value: a weight of 110, where others have 1024.
const NICE: i32 = 10;

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
pub fn bind(address: SocketAddr) -> std::io::Result<StdListener> {
    let listener = StdListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves `app` at a listener of [`bind`] until the [`TcpServer`] is dropped.
///
/// # Errors
/// The system has no thread or no descriptors for it.
pub fn serve(listener: StdListener, app: Router, limits: Limits) -> std::io::Result<TcpServer> {
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(CALLS)
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    let (stop, stopped) = watch::channel(false);
    let run = move || {
        // On Linux of this thread alone, and of those that it starts.
        let _ = rustix::process::setpriority_process(None, NICE);
        runtime.block_on(accept(listener, app, limits, stopped));
        // Clients are closed; a call that outlasts the stop ends with the process.
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("sluice-http".into()).spawn(run)?;
    Ok(TcpServer { address, stop, thread: Some(thread) })
}

async fn accept(listener: StdListener, app: Router, limits: Limits, mut stopped: watch::Receiver<bool>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let places = Arc::new(Semaphore::new(limits.clients.max(1)));
    let mut guests: Vec<Arc<Guest>> = Vec::new();
    loop {
        let stream = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            stream = listener.accept() => stream,
        };
        let Ok((stream, _)) = stream else {
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
        let (app, stopped) = (app.clone(), stopped.clone());
        tokio::spawn(async move {
            guest.attend(stream, |stream| ready(Ok(stream)), app, limits, stopped).await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use axum::routing::get;

    use super::*;

    fn served(limits: Limits) -> TcpServer {
        let app = Router::new().route("/", get(|| async { "here" }));
        serve(bind(([127, 0, 0, 1], 0).into()).unwrap(), app, limits).unwrap()
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
        let server = served(Limits::default());
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
    fn a_silent_client_makes_place_for_another() {
        let server = served(Limits { clients: 1, spare: Duration::ZERO, ..Limits::default() });
        let mut silent = TcpStream::connect(server.address()).unwrap();
        assert!(ask(server.address()).ends_with("here"));
        assert_eq!(silent.read(&mut [0]).unwrap(), 0, "it was closed");
    }
}
