//! A client of the control API: one connection, one request at a time, blocking.
//!
//! It connects at the first request and reconnects after a break, so a client may outlive a daemon.
//! Requests that may change something are never sent twice.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sluice_slo::assignment::Assignment;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::change::{CanaryRequest, FormerConfig, RunningConfig, SetKeys, Undo};
use super::model::{
    AddNf, AddRule, Applied, Apply, CaptureRequest, Chain, Done, Event, FlowsReply, FlowsRequest, MoveNf, Nf, Port, RecordRequest,
    Rule, Service, Stats, Status, Timeline, Trace, TraceRequest, Upgrade, Upgraded, WhyReply, WhyRequest,
};
use super::promise::{Placed, Promises};
use super::shadow::{ShadowReport, ShadowRequest};
use super::{ApiError, ErrorBody, ErrorKind};
use crate::config;

/// Timeout of a request; longer than the daemon's own limit.
const PATIENCE: Duration = Duration::from_secs(150);
/// Longest time without a call of the receiver of a stream.
const SILENCE: Duration = Duration::from_millis(100);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens.
    #[error("no sluiced answers at {path}: start one with `sluiced CONFIG`, or name its socket by --socket or $SLUICE_CONTROL")]
    NotRunning {
        /// The socket.
        path: PathBuf,
    },
    /// The socket belongs to another user.
    #[error("no permission for {path}: run as root, as the user that sluiced runs as, or as a member of control.group")]
    NoPermission {
        /// The socket.
        path: PathBuf,
    },
    /// The socket is another one, such as nf.sock.
    #[error("{path} is not a control socket: nf.sock in the same folder is for NFs, and control.sock is for this program")]
    WrongSocket {
        /// The socket.
        path: PathBuf,
    },
    /// No socket can have this path.
    #[error("{path} is too long for a socket: a path has 107 bytes at most; go to its folder, and name it from there")]
    LongPath {
        /// The path.
        path: PathBuf,
    },
    /// The daemon refuses the request.
    #[error("{}{}", .0.error, hint(&.0.hint))]
    Api(ApiError),
    /// The connection broke.
    #[error("the connection to {path} broke: {what}; see whether sluiced still runs")]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The error.
        what: String,
    },
    /// The answer is not what this client expects.
    #[error("cannot understand the answer to {request}: {what}; are sluice and sluiced of the same version?")]
    Answer {
        /// Method and address.
        request: String,
        /// The error.
        what: String,
    },
    /// The runtime of the connection cannot be started.
    #[error("cannot start a client: {0}")]
    Runtime(std::io::Error),
}

fn hint(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("\n  hint: {hint}") }
}

/// A client of the control API.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    runtime: Runtime,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// A client of the daemon at `socket`; connects at the first request.
    ///
    /// # Errors
    /// [`ClientError::Runtime`] if the process is out of file descriptors.
    pub fn new(socket: &Path) -> Result<Self, ClientError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(ClientError::Runtime)?;
        Ok(Self { path: socket.to_owned(), runtime, connection: None })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends a request and returns the text of the answer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn request(&mut self, method: Method, address: &str, body: Vec<u8>) -> Result<String, ClientError> {
        let (status, bytes) = self.exchange(&method, address, body)?;
        if !status.is_success() {
            return Err(ClientError::Api(refusal(status, &bytes)));
        }
        String::from_utf8(bytes.into())
            .map_err(|error| ClientError::Answer { request: format!("{method} {address}"), what: error.to_string() })
    }

    /// Sends a request and returns status and JSON of the answer, even of a refusal.
    ///
    /// # Errors
    /// See [`ClientError`]; none is [`ClientError::Api`].
    pub fn call(&mut self, method: &str, address: &str, body: Option<&Value>) -> Result<(u16, Value), ClientError> {
        let wrong = |what: String| ClientError::Answer { request: format!("{method} {address}"), what };
        let verb: Method = method.parse().map_err(|_| wrong("there is no such method".into()))?;
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let (status, bytes) = self.exchange(&verb, address, body)?;
        let json = match serde_json::from_slice(&bytes) {
            // Errors of the HTTP layer have no body.
            Err(_) if !status.is_success() => Value::Null,
            json => json.map_err(|error| wrong(error.to_string()))?,
        };
        Ok((status.as_u16(), json))
    }

    fn exchange(&mut self, method: &Method, address: &str, body: Vec<u8>) -> Result<(StatusCode, Bytes), ClientError> {
        let path = self.path.clone();
        let connection = &mut self.connection;
        let talk = async {
            let mut sender = match connection.take() {
                Some(sender) if sender.is_ready() => sender,
                _ => connect(&path).await?.0,
            };
            let response = send(&path, &mut sender, method, address, body).await?;
            let status = response.status();
            let bytes = response.into_body().collect().await.map_err(|error| broken(&path, error))?.to_bytes();
            *connection = Some(sender);
            Ok((status, bytes))
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, talk).await });
        answer.unwrap_or_else(|_| {
            let what = format!("no answer within {} s", PATIENCE.as_secs());
            Err(ClientError::Broken { path: self.path.clone(), what })
        })
    }

    fn ask<T: DeserializeOwned>(&mut self, method: Method, address: &str, body: Vec<u8>) -> Result<T, ClientError> {
        let text = self.request(method.clone(), address, body)?;
        serde_json::from_str(&text)
            .map_err(|error| ClientError::Answer { request: format!("{method} {address}"), what: error.to_string() })
    }

    fn get<T: DeserializeOwned>(&mut self, address: &str) -> Result<T, ClientError> {
        // A connection closed by the daemon fails only when used. A GET can be repeated safely.
        let reused = self.connection.is_some();
        match self.ask(Method::GET, address, Vec::new()) {
            Err(ClientError::Broken { .. }) if reused => self.ask(Method::GET, address, Vec::new()),
            answer => answer,
        }
    }

    fn post<B: Serialize, T: DeserializeOwned>(&mut self, address: &str, body: &B) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body)
            .map_err(|error| ClientError::Answer { request: format!("POST {address}"), what: error.to_string() })?;
        self.ask(Method::POST, address, body)
    }

    fn delete(&mut self, collection: &str, name: &str) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &format!("/v1/{collection}/{}", escaped(name)), Vec::new()).map(|Done { .. }| ())
    }
}

/// The calls of the API, each with the errors of [`ClientError`].
#[allow(clippy::missing_errors_doc)] // one line above for all
impl Client {
    /// The state of the daemon.
    pub fn status(&mut self) -> Result<Status, ClientError> {
        self.get("/v1/status")
    }

    /// The latest events.
    pub fn events(&mut self) -> Result<Vec<Event>, ClientError> {
        self.get("/v1/events")
    }

    /// All counters.
    pub fn stats(&mut self) -> Result<Stats, ClientError> {
        self.get("/v1/stats")
    }

    /// All metrics in the Prometheus format.
    pub fn metrics(&mut self) -> Result<String, ClientError> {
        self.request(Method::GET, "/v1/metrics", Vec::new())
    }

    /// Starts one more instance of a service.
    pub fn add_nf(&mut self, service: &str, core: Option<usize>) -> Result<Nf, ClientError> {
        self.post("/v1/nfs", &AddNf { service: service.into(), core })
    }

    /// Replaces an instance by one on another core, and returns the new one.
    pub fn move_nf(&mut self, name: &str, core: usize) -> Result<Nf, ClientError> {
        self.post(&format!("/v1/nfs/{}/move", escaped(name)), &MoveNf { core })
    }

    /// Stops an instance, unless it is the last one of a service on an open chain.
    pub fn remove_nf(&mut self, name: &str) -> Result<(), ClientError> {
        self.delete("nfs", name)
    }

    /// Stops an instance, even the last one of a service on an open chain.
    pub fn force_remove_nf(&mut self, name: &str) -> Result<(), ClientError> {
        let _: Done = self.ask(Method::DELETE, &format!("/v1/nfs/{}?force=true", escaped(name)), Vec::new())?;
        Ok(())
    }

    /// Adds a service.
    pub fn add_service(&mut self, service: &config::Service) -> Result<Service, ClientError> {
        self.post("/v1/services", service)
    }

    /// Removes a service.
    pub fn remove_service(&mut self, name: &str) -> Result<(), ClientError> {
        self.delete("services", name)
    }

    /// Upgrades a service to another version of its program.
    pub fn upgrade(&mut self, service: &str, to: &Upgrade) -> Result<Upgraded, ClientError> {
        self.post(&format!("/v1/services/{}/upgrade", escaped(service)), to)
    }

    /// Gives another version of a service a part of new flows. Returns when it gets them.
    pub fn canary(&mut self, service: &str, to: &CanaryRequest) -> Result<Upgraded, ClientError> {
        self.post(&format!("/v1/services/{}/canary", escaped(service)), to)
    }

    /// Gives another version of a service copies of packets. Returns when it gets them.
    pub fn shadow(&mut self, service: &str, to: &ShadowRequest) -> Result<Upgraded, ClientError> {
        self.post(&format!("/v1/services/{}/shadow", escaped(service)), to)
    }

    /// What the comparison of the present or last shadow of a service says.
    pub fn shadow_report(&mut self, service: &str) -> Result<ShadowReport, ClientError> {
        self.get(&format!("/v1/services/{}/shadow", escaped(service)))
    }

    /// Gives up the version of a service that has a part of its new flows, or copies.
    pub fn abort_canary(&mut self, service: &str) -> Result<(), ClientError> {
        let _: Done = self.ask(Method::DELETE, &format!("/v1/services/{}/canary", escaped(service)), Vec::new())?;
        Ok(())
    }

    /// Adds a chain.
    pub fn add_chain(&mut self, chain: &config::Chain) -> Result<Chain, ClientError> {
        self.post("/v1/chains", chain)
    }

    /// Removes a chain.
    pub fn remove_chain(&mut self, name: &str) -> Result<(), ClientError> {
        self.delete("chains", name)
    }

    /// Adds a rule.
    pub fn add_rule(&mut self, rule: config::Rule, position: Option<usize>) -> Result<Rule, ClientError> {
        self.post("/v1/rules", &AddRule { rule, position })
    }

    /// Removes a rule.
    pub fn remove_rule(&mut self, name: &str) -> Result<(), ClientError> {
        self.delete("rules", name)
    }

    /// Gives a tenant fresh packet memory and restarts its NFs.
    pub fn renew_memory(&mut self, tenant: &str) -> Result<(), ClientError> {
        let _: Done = self.ask(Method::DELETE, &format!("/v1/tenants/{}/memory", escaped(tenant)), Vec::new())?;
        Ok(())
    }

    /// Opens a port.
    pub fn add_port(&mut self, port: &config::Port) -> Result<Port, ClientError> {
        self.post("/v1/ports", port)
    }

    /// Closes a port.
    pub fn remove_port(&mut self, name: &str) -> Result<(), ClientError> {
        self.delete("ports", name)
    }

    /// Applies another configuration.
    pub fn apply(&mut self, apply: &Apply) -> Result<Applied, ClientError> {
        self.post("/v1/apply", apply)
    }

    /// Changes keys of the configuration in force.
    pub fn set(&mut self, set: &SetKeys) -> Result<Applied, ClientError> {
        self.post("/v1/set", set)
    }

    /// The configuration in force, as TOML.
    pub fn running_config(&mut self) -> Result<String, ClientError> {
        self.ask(Method::POST, "/v1/config", Vec::new()).map(|RunningConfig { config }| config)
    }

    /// The configurations before the one in force, the latest first.
    pub fn history(&mut self) -> Result<Vec<FormerConfig>, ClientError> {
        self.get("/v1/history")
    }

    /// Goes back to a former configuration.
    pub fn undo(&mut self, undo: Undo) -> Result<Applied, ClientError> {
        self.post("/v1/undo", &undo)
    }

    /// Traces packets.
    pub fn trace(&mut self, request: &TraceRequest) -> Result<Trace, ClientError> {
        self.post("/v1/trace", request)
    }

    /// What a packet would meet if it came now.
    pub fn why(&mut self, request: &WhyRequest) -> Result<WhyReply, ClientError> {
        self.post("/v1/why", request)
    }

    /// The flows that there are, and those that have ended lately.
    pub fn flows(&mut self, request: &FlowsRequest) -> Result<FlowsReply, ClientError> {
        self.post("/v1/flows", request)
    }

    /// Captures packets. `take` gets the pcapng in pieces as they come, and an empty one after a
    /// while without; the capture ends when it returns false, or by itself. A connection of its own
    /// serves it.
    pub fn capture(&mut self, request: &CaptureRequest, take: impl FnMut(&[u8]) -> bool) -> Result<(), ClientError> {
        self.post_stream("/v1/captures", request, take)
    }

    /// Records a timeline. `take` gets the trace in pieces, as [`Client::capture`] does.
    pub fn record(&mut self, request: &RecordRequest, take: impl FnMut(&[u8]) -> bool) -> Result<(), ClientError> {
        self.post_stream("/v1/timelines", request, take)
    }

    /// The timelines that the flight recorder has written, oldest first.
    pub fn timelines(&mut self) -> Result<Vec<Timeline>, ClientError> {
        self.get("/v1/timelines")
    }

    /// One of these. `take` gets it in pieces, as [`Client::capture`] does.
    pub fn timeline(&mut self, name: &str, take: impl FnMut(&[u8]) -> bool) -> Result<(), ClientError> {
        self.stream(Method::GET, &format!("/v1/timelines/{}", escaped(name)), Vec::new(), take)
    }

    fn post_stream<B: Serialize>(&mut self, address: &str, body: &B, take: impl FnMut(&[u8]) -> bool) -> Result<(), ClientError> {
        let body = serde_json::to_vec(body)
            .map_err(|error| ClientError::Answer { request: format!("POST {address}"), what: error.to_string() })?;
        self.stream(Method::POST, address, body, take)
    }

    fn stream(
        &mut self,
        method: Method,
        address: &str,
        body: Vec<u8>,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ClientError> {
        let path = &self.path;
        self.runtime.block_on(async {
            let (mut sender, connection) = connect(path).await?;
            let begins = async {
                let response = send(path, &mut sender, &method, address, body).await?;
                let status = response.status();
                if status.is_success() {
                    return Ok(response.into_body());
                }
                let bytes = response.into_body().collect().await.map_err(|error| broken(path, error))?.to_bytes();
                Err(ClientError::Api(refusal(status, &bytes)))
            };
            let late = |_| ClientError::Broken { path: path.clone(), what: format!("no answer within {} s", PATIENCE.as_secs()) };
            let mut body = tokio::time::timeout(PATIENCE, begins).await.map_err(late)??;
            loop {
                let goes_on = match tokio::time::timeout(SILENCE, body.frame()).await {
                    Err(_) => take(&[]),
                    Ok(None) => return Ok(()),
                    Ok(Some(Err(error))) => return Err(broken(path, error)),
                    Ok(Some(Ok(frame))) => frame.data_ref().is_none_or(|piece| take(piece)),
                };
                if !goes_on {
                    // By this the daemon learns it.
                    connection.abort();
                    let _ = connection.await;
                    return Ok(());
                }
            }
        })
    }

    /// Puts an assignment in force.
    pub fn place(&mut self, assignment: &Assignment) -> Result<Placed, ClientError> {
        let body = serde_json::to_vec(assignment)
            .map_err(|error| ClientError::Answer { request: "PUT /v1/placement".into(), what: error.to_string() })?;
        self.ask(Method::PUT, "/v1/placement", body)
    }

    /// The assignment in force.
    pub fn placement(&mut self) -> Result<Assignment, ClientError> {
        self.get("/v1/placement")
    }

    /// Withdraws the assignment in force.
    pub fn withdraw(&mut self) -> Result<Placed, ClientError> {
        self.ask(Method::DELETE, "/v1/placement", Vec::new())
    }

    /// How SLOs are kept.
    pub fn promises(&mut self) -> Result<Promises, ClientError> {
        self.get("/v1/promises")
    }

    /// Starts the daemon's shutdown.
    pub fn shutdown(&mut self) -> Result<(), ClientError> {
        self.ask(Method::POST, "/v1/shutdown", Vec::new()).map(|Done { .. }| ())
    }
}

/// A connection, and the task that drives it.
async fn connect(path: &Path) -> Result<(SendRequest<Full<Bytes>>, JoinHandle<Result<(), hyper::Error>>), ClientError> {
    use std::io::ErrorKind as Io;
    let stream = UnixStream::connect(path).await.map_err(|error| match error.kind() {
        Io::NotFound | Io::ConnectionRefused => ClientError::NotRunning { path: path.into() },
        _ if error.raw_os_error() == Some(libc::EPROTOTYPE) => ClientError::WrongSocket { path: path.into() },
        Io::PermissionDenied => ClientError::NoPermission { path: path.into() },
        Io::InvalidInput => ClientError::LongPath { path: path.into() },
        _ => ClientError::Broken { path: path.into(), what: error.to_string() },
    })?;
    let (sender, connection) = handshake(TokioIo::new(stream))
        .await
        .map_err(|error| ClientError::Broken { path: path.into(), what: error.to_string() })?;
    // The next request's block_on drives it, and reports its error.
    Ok((sender, tokio::spawn(connection)))
}

async fn send(
    path: &Path,
    sender: &mut SendRequest<Full<Bytes>>,
    method: &Method,
    address: &str,
    body: Vec<u8>,
) -> Result<Response<Incoming>, ClientError> {
    let request = Request::builder()
        .method(method)
        .uri(address)
        .header(header::HOST, "sluice")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| ClientError::Answer { request: format!("{method} {address}"), what: error.to_string() })?;
    sender.ready().await.map_err(|error| broken(path, error))?;
    sender.send_request(request).await.map_err(|error| broken(path, error))
}

fn broken(path: &Path, error: hyper::Error) -> ClientError {
    ClientError::Broken { path: path.into(), what: error.to_string() }
}

fn refusal(status: StatusCode, body: &[u8]) -> ApiError {
    let kind = ErrorKind::from_code(status.as_u16());
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => ApiError::new(kind, body.error, body.hint),
        Err(_) => ApiError::new(kind, format!("the daemon answers {status}"), ""),
    }
}

/// Percent-encodes a name as a segment of an address.
fn escaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_addresses() {
        assert_eq!(escaped("fw.0"), "fw.0");
        assert_eq!(escaped("a/b c?%ü"), "a%2Fb%20c%3F%25%C3%BC");
    }

    #[test]
    fn nobody_there_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none.sock");
        let error = Client::new(&path).unwrap().status().unwrap_err();
        let want = format!(
            "no sluiced answers at {}: start one with `sluiced CONFIG`, or name its socket by --socket or $SLUICE_CONTROL",
            path.display()
        );
        assert_eq!(error.to_string(), want);
    }

    #[test]
    fn a_path_that_no_socket_can_have_says_so() {
        let error = Client::new(Path::new(&format!("/{}/control.sock", "a".repeat(100)))).unwrap().status().unwrap_err();
        assert!(error.to_string().contains("a path has 107 bytes at most"), "{error}");
    }

    #[test]
    fn the_socket_of_nfs_is_no_control_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nf.sock");
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        let error = Client::new(&path).unwrap().status().unwrap_err();
        assert!(matches!(error, ClientError::WrongSocket { .. }), "{error}");
        assert!(error.to_string().contains("control.sock is for this program"), "{error}");
    }
}
