//! Requests of the control API: all get an answer that is no fault of the daemon's, and parsed JSON
//! survives a round trip.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_api::ApiError;
use sluice_api::change::{CanaryRequest, FormerConfig, RunningConfig, SetKeys, Undo};
use sluice_api::config;
use sluice_api::model;
use sluice_api::promise::{Placed, Promises};
use sluice_api::shadow::{ShadowReport, ShadowRequest};
use sluice_dataplane::trace::PacketTest;
use sluice_manager::capture::filter::PacketFilter;
use sluice_manager::control::server::{Limits, Unconnected};
use sluice_manager::control::{Backend, Pieces};
use sluice_slo::assignment::Assignment;

/// A backend that has nothing and refuses every parsed request.
struct Nobody;

fn nothing<T>() -> Result<T, ApiError> {
    Err(ApiError::not_found("thing", "of this name", &[]))
}

fn again<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let text = serde_json::to_string(value).expect("it came as JSON");
    assert_eq!(&serde_json::from_str::<T>(&text).expect(&text), value, "{text}");
}

impl Backend for Nobody {
    fn status(&self) -> Result<model::Status, ApiError> {
        Ok(model::Status::default())
    }

    fn stats(&self) -> Result<model::Stats, ApiError> {
        Ok(model::Stats::default())
    }

    fn events(&self) -> Result<Vec<model::Event>, ApiError> {
        Ok(Vec::new())
    }

    fn add_nf(&self, _: &str, _: Option<usize>) -> Result<model::Nf, ApiError> {
        nothing()
    }

    fn upgrade(&self, _: &str, to: &model::Upgrade) -> Result<model::Upgraded, ApiError> {
        again(to);
        nothing()
    }

    fn canary(&self, _: &str, to: &CanaryRequest) -> Result<model::Upgraded, ApiError> {
        again(to);
        nothing()
    }

    fn shadow(&self, _: &str, to: &ShadowRequest) -> Result<model::Upgraded, ApiError> {
        again(to);
        nothing()
    }

    fn shadow_report(&self, _: &str) -> Result<ShadowReport, ApiError> {
        nothing()
    }

    fn abort_canary(&self, _: &str) -> Result<(), ApiError> {
        nothing()
    }

    fn move_nf(&self, _: &str, _: usize) -> Result<model::Nf, ApiError> {
        nothing()
    }

    fn remove_nf(&self, _: &str, _: bool) -> Result<(), ApiError> {
        nothing()
    }

    fn add_service(&self, service: config::Service) -> Result<model::Service, ApiError> {
        again(&service);
        nothing()
    }

    fn remove_service(&self, _: &str) -> Result<(), ApiError> {
        nothing()
    }

    fn add_chain(&self, chain: config::Chain) -> Result<model::Chain, ApiError> {
        again(&chain);
        nothing()
    }

    fn remove_chain(&self, _: &str) -> Result<(), ApiError> {
        nothing()
    }

    fn add_rule(&self, rule: config::Rule, _: Option<usize>) -> Result<model::Rule, ApiError> {
        again(&rule);
        nothing()
    }

    fn remove_rule(&self, _: &str) -> Result<(), ApiError> {
        nothing()
    }

    fn renew_memory(&self, _: &str) -> Result<(), ApiError> {
        nothing()
    }

    fn add_port(&self, port: config::Port) -> Result<model::Port, ApiError> {
        again(&port);
        nothing()
    }

    fn remove_port(&self, _: &str) -> Result<(), ApiError> {
        nothing()
    }

    fn apply(&self, config: &str, file: Option<&str>, dry_run: bool) -> Result<model::Applied, ApiError> {
        sluice_config::load::parse(config, file.unwrap_or("request"))?;
        Ok(model::Applied { dry_run, ..model::Applied::default() })
    }

    fn set(&self, set: &SetKeys) -> Result<model::Applied, ApiError> {
        again(set);
        sluice_config::edit::with_keys(&config::Config::default(), set)?;
        Ok(model::Applied::default())
    }

    fn running_config(&self) -> Result<RunningConfig, ApiError> {
        nothing()
    }

    fn history(&self) -> Result<Vec<FormerConfig>, ApiError> {
        Ok(Vec::new())
    }

    fn undo(&self, undo: Undo) -> Result<model::Applied, ApiError> {
        again(&undo);
        nothing()
    }

    fn place(&self, assignment: Assignment) -> Result<Placed, ApiError> {
        again(&assignment);
        nothing()
    }

    fn placement(&self) -> Result<Assignment, ApiError> {
        nothing()
    }

    fn withdraw(&self) -> Result<Placed, ApiError> {
        nothing()
    }

    fn promises(&self) -> Result<Promises, ApiError> {
        Ok(Promises::default())
    }

    fn trace(&self, _: &model::TraceRequest) -> Result<model::Trace, ApiError> {
        nothing()
    }

    fn why(&self, request: &model::WhyRequest) -> Result<model::WhyReply, ApiError> {
        again(request);
        nothing()
    }

    fn capture(&self, request: &model::CaptureRequest) -> Result<Pieces, ApiError> {
        again(request);
        if !request.filter.is_empty()
            && let Ok(filter) = PacketFilter::new(request.filter.clone())
        {
            filter.accepts(&[0x45; 60], 60);
        }
        nothing()
    }

    fn flows(&self, request: &model::FlowsRequest) -> Result<model::FlowsReply, ApiError> {
        again(request);
        nothing()
    }

    fn record(&self, request: &model::RecordRequest) -> Result<Pieces, ApiError> {
        again(request);
        nothing()
    }

    fn timelines(&self) -> Result<Vec<model::Timeline>, ApiError> {
        Ok(Vec::new())
    }

    fn timeline(&self, _: &str) -> Result<Pieces, ApiError> {
        nothing()
    }

    fn shutdown(&self) -> Result<(), ApiError> {
        nothing()
    }
}

/// Addresses of requests whose body alone is generated.
const ADDRESSES: [(&str, &str); 12] = [
    ("POST", "/v1/nfs"),
    ("POST", "/v1/nfs/a.0/move"),
    ("POST", "/v1/services"),
    ("POST", "/v1/services/a/upgrade"),
    ("POST", "/v1/chains"),
    ("POST", "/v1/rules"),
    ("POST", "/v1/ports"),
    ("POST", "/v1/apply"),
    ("PUT", "/v1/placement"),
    ("POST", "/v1/trace"),
    ("GET", "/v1/stats"),
    ("GET", "/v1/metrics"),
];

/// Largest body that the server reads, in bytes.
const BODY: usize = 1 << 16;

thread_local! {
    /// One server for all inputs; it keeps no state between them.
    static SERVER: Unconnected = {
        let limits = Limits { body_bytes: BODY, read: Duration::from_millis(50), ..Limits::default() };
        Unconnected::new(Arc::new(Nobody), limits).expect("memory for a server")
    };
}

/// Runs one request: the first byte selects the address of the rest, or the rest is the request.
pub fn run(bytes: &[u8]) {
    let Some((which, rest)) = bytes.split_first() else { return };
    let (request, is_whole) = match ADDRESSES.get(usize::from(which % 16)) {
        Some((method, address)) => {
            let head = format!("{method} {address} HTTP/1.1\r\nhost: sluice\r\ncontent-length: {}\r\n\r\n", rest.len());
            ([head.as_bytes(), rest].concat(), true)
        }
        None => (rest.to_vec(), false),
    };
    let answer = SERVER.with(|server| server.answer(&request));
    if answer.is_empty() {
        assert!(!is_whole, "a whole request is answered");
        return;
    }
    let status: u16 =
        answer.strip_prefix(b"HTTP/1.").and_then(|a| std::str::from_utf8(a.get(2..5)?).ok()?.parse().ok()).expect("HTTP");
    assert!((200..500).contains(&status), "{status}: {}", String::from_utf8_lossy(&answer));
    let body = answer.windows(4).position(|part| part == b"\r\n\r\n").map(|at| &answer[at + 4..]).expect("an end of the head");
    if is_whole && status >= 400 {
        let refusal: serde_json::Value = serde_json::from_slice(body).expect("a refusal is JSON");
        assert!(refusal["error"].as_str().is_some_and(|why| !why.is_empty()), "a refusal says why: {refusal}");
    }
}
