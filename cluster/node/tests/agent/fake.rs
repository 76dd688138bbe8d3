//! Servers of HTTP as the agent needs them: a daemon and an API server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use sluice_api::promise::Promises;

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub body: Value,
}

/// What a server says to a request.
pub enum Answer {
    Json(u16, Value),
    /// Nothing ever changes.
    Watch,
    /// It ends.
    Break,
}

/// Answers the requests of a connection.
fn serve<S: Read + Write>(stream: S, answer: impl Fn(&Request) -> Answer) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut length = 0;
        loop {
            let mut header = String::new();
            stream.read_line(&mut header)?;
            if header.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
                length = value.trim().parse().unwrap_or_else(|_| panic!("{name}: {value}"));
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        match answer(&Request { method, path, body }) {
            Answer::Json(code, body) => {
                let (head, body) = ("Content-Type: application/json\r\nContent-Length", body.to_string());
                write!(stream.get_mut(), "HTTP/1.1 {code} -\r\n{head}: {}\r\n\r\n{body}", body.len())?;
            }
            Answer::Watch => {
                let head = "Content-Type: application/json\r\nTransfer-Encoding: chunked";
                write!(stream.get_mut(), "HTTP/1.1 200 -\r\n{head}\r\n\r\n")?;
                // Until the client goes.
                stream.read_to_end(&mut Vec::new())?;
                return Ok(());
            }
            Answer::Break => return Ok(()),
        }
    }
}

/// A daemon that takes whatever it gets.
#[derive(Clone, Default)]
pub struct Daemon(Arc<Mutex<DaemonState>>);

#[derive(Default)]
struct DaemonState {
    placed: Option<Value>,
    is_away: bool,
}

impl Daemon {
    pub fn start(socket: &Path) -> Self {
        let daemon = Self::default();
        let (own, listener) = (daemon.clone(), UnixListener::bind(socket).unwrap());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                thread::spawn(move || serve(stream, |request| own.answer(request)));
            }
        });
        daemon
    }

    pub fn placed(&self) -> Option<Value> {
        self.0.lock().unwrap().placed.clone()
    }

    pub fn set_away(&self, is_away: bool) {
        self.0.lock().unwrap().is_away = is_away;
    }

    fn answer(&self, request: &Request) -> Answer {
        let mut state = self.0.lock().unwrap();
        if state.is_away {
            return Answer::Break;
        }
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/v1/placement") => match &state.placed {
                Some(placed) => Answer::Json(200, placed.clone()),
                None => Answer::Json(404, json!({"error": "no placement", "hint": ""})),
            },
            ("PUT", "/v1/placement") => {
                state.placed = Some(request.body.clone());
                Answer::Json(200, json!({"changes": [], "notes": []}))
            }
            ("POST", "/v1/apply") => Answer::Json(200, json!({"dry_run": false, "changes": []})),
            ("GET", "/v1/promises") => Answer::Json(200, serde_json::to_value(Promises::default()).unwrap()),
            _ => Answer::Json(404, json!({"error": format!("no {}", request.path), "hint": ""})),
        }
    }
}

/// An API server with a plan of the node `n0`, requests for profiles, and the NF `nat`.
#[derive(Clone)]
pub struct Api(Arc<Mutex<ApiState>>);

struct ApiState {
    plan: Value,
    requests: Vec<Value>,
    writes: Vec<Request>,
}

const GROUP: &str = "/apis/sluice.dev/v1alpha1";

impl Api {
    pub fn start(listener: TcpListener, plan: Value, requests: Vec<Value>) -> Self {
        let api = Self(Arc::new(Mutex::new(ApiState { plan, requests, writes: Vec::new() })));
        let own = api.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                thread::spawn(move || serve(stream, |request| own.answer(request)));
            }
        });
        api
    }

    /// The writes so far.
    pub fn writes(&self) -> Vec<Request> {
        self.0.lock().unwrap().writes.clone()
    }

    fn answer(&self, request: &Request) -> Answer {
        let mut state = self.0.lock().unwrap();
        let path = request.path.split('?').next().unwrap();
        if request.method != "GET" {
            state.writes.push(request.clone());
        } else if request.path.contains("watch=") {
            return Answer::Watch;
        }
        let list =
            |items: Vec<Value>| json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items});
        let missing = || json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": path});
        if request.method == "GET" {
            return match path.strip_prefix(GROUP) {
                Some("/nodeplans") => Answer::Json(200, list(vec![state.plan.clone()])),
                Some("/profilerequests") => Answer::Json(200, list(state.requests.clone())),
                Some("/namespaces/acme/networkfunctions/nat") => Answer::Json(
                    200,
                    json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "NetworkFunction", "metadata": {"name": "nat", "namespace": "acme"},
                        "spec": {"exec": "sluice-nf-nat", "profiledAs": "sluice-nf-nat"}}),
                ),
                _ => Answer::Json(404, missing()),
            };
        }
        if path.ends_with("/nodeplans/n0/status") {
            state.plan["status"] = request.body["status"].clone();
            return Answer::Json(200, state.plan.clone());
        }
        let of =
            |one: &&mut Value| path.ends_with(&format!("/profilerequests/{}/status", one["metadata"]["name"].as_str().unwrap()));
        if let Some(one) = state.requests.iter_mut().find(of) {
            one["status"] = request.body["status"].clone();
            return Answer::Json(200, one.clone());
        }
        // What is made is as it was sent.
        Answer::Json(201, request.body.clone())
    }
}
