//! The thread that pushes.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::pin;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// The thread's nice value: a weight of 110, where others have 1024.
const NICE: i32 = 10;
/// The bounds of the time that a push has; within them it is the interval.
const PATIENCE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// Largest answer.
const ANSWER: usize = 64 << 10;
/// Most characters of an answer that are reported.
const REPORTED: usize = 200;

/// A collector, and how often it is sent metrics.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Its name or its address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What goes before `/v1/metrics`: nothing, or a path that begins with a slash.
    pub path: String,
    /// Name and version of the program, for the collector's log.
    pub agent: String,
    /// Time between two pushes.
    pub every: Duration,
}

/// What a collector says to a push that it takes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Taken {
    /// Values that it does not take.
    pub rejected: u64,
    /// Why, or another remark; may be empty.
    pub remark: String,
}

/// Why a push was dropped.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The name of the host leads nowhere.
    #[error("there is no address of {host}: {source}")]
    Name {
        /// The host.
        host: String,
        /// The error.
        source: io::Error,
    },
    /// Nothing listens there.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The connection broke, or what listens does not speak HTTP.
    #[error("no answer by HTTP: {0}")]
    Broken(String),
    /// The collector refuses it.
    #[error("it answers {status}{}", words(.text))]
    Refused {
        /// The status.
        status: StatusCode,
        /// What it says; may be empty.
        text: String,
    },
    /// The collector takes too long.
    #[error("no answer within {} ms", .0.as_millis())]
    Late(Duration),
}

fn words(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// Pushes until it is dropped. The thread then ends by itself: it may be in a call of the caller's.
#[derive(Debug)]
pub struct Pusher {
    stop: watch::Sender<bool>,
}

impl Pusher {
    /// Starts the thread: at once and then in each interval it posts what `message` makes, if
    /// anything, and reports what became of it.
    ///
    /// # Errors
    /// The system has no thread or no descriptors for it.
    pub fn start(
        endpoint: Endpoint,
        message: impl FnMut() -> Option<Vec<u8>> + Send + 'static,
        report: impl FnMut(Result<Taken, PushError>) + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, mut stopped) = watch::channel(false);
        let run = move || {
            // On Linux of this thread alone.
            let _ = rustix::process::setpriority_process(None, NICE);
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = stopped.wait_for(|stop| *stop) => {}
                    () = push(&endpoint, message, report) => {}
                }
            });
        };
        std::thread::Builder::new().name("sluice-otel".into()).spawn(run)?;
        Ok(Self { stop })
    }
}

impl Drop for Pusher {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}

async fn push(endpoint: &Endpoint, mut message: impl FnMut() -> Option<Vec<u8>>, mut report: impl FnMut(Result<Taken, PushError>)) {
    let [least, most] = PATIENCE;
    let patience = endpoint.every.clamp(least, most);
    let mut ticks = tokio::time::interval(endpoint.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(message) = message() else { continue };
        report(within(patience, exchange(endpoint, message.into())).await);
    }
}

async fn within<T>(patience: Duration, done: impl Future<Output = Result<T, PushError>>) -> Result<T, PushError> {
    tokio::time::timeout(patience, done).await.unwrap_or(Err(PushError::Late(patience)))
}

/// Posts a message. Whatever it has begun ends with it: nothing is left behind by one that is late.
async fn exchange(endpoint: &Endpoint, message: Bytes) -> Result<Taken, PushError> {
    let broken = |error: hyper::Error| PushError::Broken(error.to_string());
    let stream = TokioIo::new(connect(endpoint).await?);
    let (mut sender, connection) = handshake(stream).await.map_err(broken)?;
    let Endpoint { host, port, path, agent, .. } = endpoint;
    let host = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let request = Request::post(format!("{path}/v1/metrics"))
        .header(header::HOST, host)
        .header(header::USER_AGENT, agent)
        .header(header::CONTENT_TYPE, "application/x-protobuf")
        .header(header::CONNECTION, "close")
        .body(Full::new(message))
        .map_err(|error| PushError::Broken(error.to_string()))?;
    let mut talk = pin!(async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER).collect().await;
        answer(status, &body.map_err(|error| PushError::Broken(error.to_string()))?.to_bytes())
    });
    tokio::select! {
        biased;
        answer = &mut talk => answer,
        // All of the answer may be there by now; otherwise it says why not.
        _ = connection => talk.await,
    }
}

/// Connects to the first address of a host that takes it.
async fn connect(Endpoint { host, port, .. }: &Endpoint) -> Result<TcpStream, PushError> {
    // This thread may wait for the look-up: it has nothing else to do.
    let found = (host.as_str(), *port).to_socket_addrs().map_err(|source| PushError::Name { host: host.clone(), source })?;
    let mut last = PushError::Name { host: host.clone(), source: io::ErrorKind::NotFound.into() };
    for address in found.collect::<Vec<SocketAddr>>() {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = PushError::Connect(error),
        }
    }
    Err(last)
}

/// The first line of a text, if it is one for people.
fn reported(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    if line.chars().any(char::is_control) { String::new() } else { line.chars().take(REPORTED).collect() }
}

/// What an answer says.
fn answer(status: StatusCode, body: &Bytes) -> Result<Taken, PushError> {
    if !status.is_success() {
        let text = reported(std::str::from_utf8(body).unwrap_or_default());
        return Err(PushError::Refused { status, text });
    }
    // One that is no such message says nothing more.
    let partial = ExportMetricsServiceResponse::decode(body.clone()).ok().and_then(|answer| answer.partial_success);
    Ok(partial.map_or_else(Taken::default, |partial| Taken {
        rejected: partial.rejected_data_points.try_into().unwrap_or(0),
        remark: reported(&partial.error_message),
    }))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, channel};

    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsPartialSuccess;

    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    /// Pushes the message "metrics" to a listener; what became of each comes from the receiver.
    fn pushed(listener: &TcpListener) -> (Pusher, Receiver<Result<Taken, PushError>>) {
        let port = listener.local_addr().unwrap().port();
        let every = Duration::from_millis(10);
        let endpoint = Endpoint { host: "127.0.0.1".into(), port, path: "/otlp".into(), agent: "sluiced/1".into(), every };
        let (to, results) = channel();
        let pusher = Pusher::start(endpoint, || Some(b"metrics".to_vec()), move |result| drop(to.send(result))).unwrap();
        (pusher, results)
    }

    /// Takes a request and answers it. Returns its first lines, in small letters, and its body.
    fn serve(listener: &TcpListener, answer: &[u8]) -> (Vec<String>, Vec<u8>) {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        let mut reader = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_lowercase()),
            }
        }
        let length = lines.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap();
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        reader.get_mut().write_all(answer).unwrap();
        (lines, body)
    }

    fn ok(body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    }

    #[test]
    fn a_collector_gets_the_message_and_says_what_it_does_not_take() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_pusher, results) = pushed(&listener);
        let partial = ExportMetricsPartialSuccess { rejected_data_points: 3, error_message: "too old".into() };
        let answer = ExportMetricsServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        let (lines, body) = serve(&listener, &ok(&answer));
        assert_eq!((lines[0].as_str(), &body[..]), ("post /otlp/v1/metrics http/1.1", &b"metrics"[..]));
        let host = format!("host: {}", listener.local_addr().unwrap());
        for line in [host.as_str(), "content-type: application/x-protobuf", "user-agent: sluiced/1"] {
            assert!(lines.iter().any(|known| known == line), "{line:?} is not in {lines:?}");
        }
        assert_eq!(results.recv_timeout(WAIT).unwrap().unwrap(), Taken { rejected: 3, remark: "too old".into() });
        for body in [&b""[..], b"{}"] {
            serve(&listener, &ok(body));
            assert_eq!(results.recv_timeout(WAIT).unwrap().unwrap(), Taken::default());
        }
    }

    #[test]
    fn what_is_not_taken_says_why_and_pushes_go_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_pusher, results) = pushed(&listener);
        let next = || results.recv_timeout(WAIT).unwrap().map_err(|error| error.to_string());
        serve(&listener, b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 9\r\n\r\nbusy now\n");
        assert_eq!(next().unwrap_err(), "it answers 503 Service Unavailable: busy now");
        serve(&listener, b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n\x08\x05");
        assert_eq!(next().unwrap_err(), "it answers 404 Not Found");
        serve(&listener, b"");
        assert!(next().unwrap_err().starts_with("no answer by HTTP: "));
        serve(&listener, b"220 mail.example.org ESMTP\r\n");
        assert!(next().unwrap_err().starts_with("no answer by HTTP: "));
        // Nobody takes the connection from the queue.
        assert_eq!(next().unwrap_err(), "no answer within 1000 ms");
    }

    #[test]
    fn where_nothing_listens_pushes_are_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_pusher, results) = {
            let pushed = pushed(&listener);
            drop(listener);
            pushed
        };
        // One may have been in the queue of the listener.
        let refused = |result: Result<Taken, PushError>| matches!(result, Err(PushError::Connect(_)));
        while !refused(results.recv_timeout(WAIT).unwrap()) {}
    }
}
