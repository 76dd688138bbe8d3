//! A proxy between an operator and the API server, which does what networks and servers do at
//! worst: late, lost and doubtful answers, errors, slow and broken watches, and partitions.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::sync::watch;

type Failed = Box<dyn Error + Send + Sync>;
type Answer = Response<StreamBody<BoxStream<'static, Result<Frame<Bytes>, Failed>>>>;

/// Numbers that only depend on the seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

struct State {
    client: Client,
    random: Mutex<Random>,
    is_bad: AtomicBool,
    /// Requests that have not come yet, though the program has given up.
    late: AtomicUsize,
    /// Whether nothing comes through.
    is_cut: watch::Sender<bool>,
}

impl State {
    fn below(&self, n: u64) -> u64 {
        self.random.lock().unwrap().below(n)
    }

    fn is_bad(&self) -> bool {
        self.is_bad.load(Ordering::Relaxed)
    }

    async fn until(&self, is_cut: bool) {
        let _ = self.is_cut.subscribe().wait_for(|now| *now == is_cut).await;
    }

    async fn pause(&self, most_ms: u64) {
        tokio::time::sleep(Duration::from_millis(self.below(most_ms))).await;
    }
}

/// A proxy. Its faults begin when they are wanted.
pub struct Proxy {
    state: Arc<State>,
    pub kubeconfig: PathBuf,
}

impl Proxy {
    /// Starts one that passes everything on by a client, and writes the file by which it is
    /// reached.
    pub async fn start(client: Client, seed: u64, kubeconfig: PathBuf) -> Self {
        let (is_cut, _) = watch::channel(false);
        let (random, is_bad) = (Mutex::new(Random::new(seed)), AtomicBool::new(false));
        let state = Arc::new(State { client, random, is_bad, late: AtomicUsize::new(0), is_cut });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: t, cluster: {{server: \"http://{}\"}}}}]\nusers: [{{name: t, user: {{}}}}]\n\
             contexts: [{{name: t, context: {{cluster: t, user: t}}}}]\ncurrent-context: t\n",
            listener.local_addr().unwrap()
        );
        std::fs::write(&kubeconfig, text).unwrap();
        let own = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = own.clone();
                let service = service_fn(move |request| serve(state.clone(), request));
                let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move { drop(connection.await) });
            }
        });
        Self { state, kubeconfig }
    }

    /// Whether requests fail at random.
    pub fn fail(&self, is_bad: bool) {
        self.state.is_bad.store(is_bad, Ordering::Relaxed);
    }

    /// Whether all requests have come.
    pub fn is_idle(&self) -> bool {
        self.state.late.load(Ordering::SeqCst) == 0
    }

    /// Whether nothing comes through.
    pub fn cut(&self, is_cut: bool) {
        self.state.is_cut.send_replace(is_cut);
    }
}

/// What is done to a request.
enum Fault {
    None,
    /// It is answered without the API server.
    Answer(StatusCode),
    /// It is carried out, and the answer is lost.
    Lose,
    /// It is carried out long after the program has given up.
    Late,
}

fn fault(state: &State, request: &Request<Incoming>, is_watch: bool) -> Fault {
    if !state.is_bad() {
        return Fault::None;
    }
    let is_write = request.method() != Method::GET;
    // Of these, what comes late is to be refused, but for a pod that is made: it waits at the gate.
    // An eviction is of one pod, whenever it comes.
    let path = request.uri().path();
    let is_of_pods = match *request.method() {
        Method::PATCH => path.contains("/pods/"),
        Method::POST => path.ends_with("/pods"),
        _ => false,
    };
    let is_fenced = path.contains("/nodeplans") || is_of_pods;
    match state.below(100) {
        0..3 => Fault::Answer(StatusCode::INTERNAL_SERVER_ERROR),
        3..5 => Fault::Answer(StatusCode::TOO_MANY_REQUESTS),
        5..8 if is_write => Fault::Answer(StatusCode::CONFLICT),
        5..8 if is_watch => Fault::Answer(StatusCode::GONE),
        8..12 => Fault::Lose,
        12..15 if is_write && is_fenced => Fault::Late,
        _ => Fault::None,
    }
}

async fn serve(state: Arc<State>, request: Request<Incoming>) -> Result<Answer, Failed> {
    if *state.is_cut.borrow() {
        // Some connections are refused, and some hang.
        if state.below(2) == 0 {
            state.until(false).await;
        }
        return Err("cut off".into());
    }
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true") || query.contains("watch=1"));
    if state.is_bad() && state.below(10) == 0 {
        state.pause(900).await;
    }
    match fault(&state, &request, is_watch) {
        Fault::Answer(code) => return Ok(refusal(code)),
        Fault::Lose => {
            forward(&state, request).await?;
            return Err("the answer is lost".into());
        }
        Fault::Late => {
            let request = whole(request).await?;
            state.late.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(1000 + state.below(6000))).await;
                let _ = state.client.send(request).await;
                state.late.fetch_sub(1, Ordering::SeqCst);
            });
            return Err("it is late".into());
        }
        Fault::None => {}
    }
    let answer = tokio::select! {
        answer = forward(&state, request) => answer?,
        () = state.until(true) => return Err("cut off".into()),
    };
    let (mut head, body) = answer.into_parts();
    strip(&mut head.headers);
    Ok(Response::from_parts(head, StreamBody::new(frames(state, body, is_watch))))
}

fn strip(headers: &mut HeaderMap) {
    let own = [
        header::HOST,
        header::AUTHORIZATION,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::ACCEPT_ENCODING,
    ];
    for name in own {
        headers.remove(name);
    }
}

/// A request that was read as a whole.
async fn whole(request: Request<Incoming>) -> Result<Request<Body>, Failed> {
    let (mut head, body) = request.into_parts();
    strip(&mut head.headers);
    let path = head.uri.path_and_query().cloned().ok_or("no path")?;
    head.uri = path.into();
    head.version = http::Version::HTTP_11;
    let bytes = body.collect().await?.to_bytes();
    Ok(Request::from_parts(head, Body::from(bytes)))
}

async fn forward(state: &State, request: Request<Incoming>) -> Result<Response<Body>, Failed> {
    Ok(state.client.send(whole(request).await?).await?)
}

fn refusal(code: StatusCode) -> Answer {
    let text = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code.as_u16(),
        "reason": "Injected", "message": "a fault of the test",
    });
    let frame = Ok(Frame::data(Bytes::from(text.to_string())));
    let body = StreamBody::new(futures::stream::iter([frame]).boxed());
    Response::builder().status(code).header(header::CONTENT_TYPE, "application/json").body(body).unwrap()
}

/// The parts of an answer, each as late as the faults have it.
fn frames(state: Arc<State>, body: Body, is_watch: bool) -> BoxStream<'static, Result<Frame<Bytes>, Failed>> {
    let next = move |at: Option<(Arc<State>, Body)>| async move {
        let (state, mut body) = at?;
        let frame = tokio::select! {
            frame = body.frame() => frame?,
            () = state.until(true) => {
                if state.below(2) == 0 {
                    state.until(false).await;
                }
                return Some((Err("cut off".into()), None));
            }
        };
        if is_watch && state.is_bad() {
            match state.below(100) {
                0 => return Some((Err("the watch breaks".into()), None)),
                1..10 => state.pause(1500).await,
                _ => {}
            }
        }
        match frame {
            Ok(frame) => Some((Ok(frame), Some((state, body)))),
            Err(error) => Some((Err(error.into()), None)),
        }
    };
    futures::stream::unfold(Some((state, body)), next).boxed()
}
