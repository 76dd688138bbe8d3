//! An API server that has objects and answers GET.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// Objects by their path.
#[derive(Clone, Default)]
pub struct Objects(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    is_away: bool,
}

impl Objects {
    pub fn client(&self) -> Client {
        let objects = self.clone();
        let answer = move |request: Request<Body>| {
            let answer = objects.answer(request.uri().path());
            async move { Ok::<_, Infallible>(answer) }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    pub fn be_away(&self, is_away: bool) {
        self.0.lock().unwrap().is_away = is_away;
    }

    /// A pod of the namespace acme on the node n1, and its claim, which takes this.
    pub fn add(&self, pod: &str, claim: &str, cores: u32, ways: u32) {
        let consumed = json!({"cores": cores.to_string(), "ways": ways.to_string()});
        let result =
            json!({"driver": sluice_dra::DRIVER, "pool": "n1", "device": "server", "request": "nf", "consumedCapacity": consumed});
        self.put(
            &format!("/apis/resource.k8s.io/v1/namespaces/acme/resourceclaims/{claim}"),
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"name": claim, "namespace": "acme", "uid": format!("{claim}-uid")},
                "spec": {},
                "status": {
                    "allocation": {"devices": {"results": [result]}},
                    "reservedFor": [{"resource": "pods", "name": pod, "uid": format!("{pod}-uid")}],
                },
            }),
        );
        self.put(
            &format!("/api/v1/namespaces/acme/pods/{pod}"),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": pod, "namespace": "acme", "uid": format!("{pod}-uid"), "labels": {"nf": pod}},
                "spec": {"nodeName": "n1", "containers": []},
            }),
        );
    }

    pub fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().objects.insert(path.into(), object);
    }

    /// Changes an object at a path.
    pub fn edit(&self, path: &str, change: impl FnOnce(&mut Value)) {
        change(self.0.lock().unwrap().objects.get_mut(path).unwrap());
    }

    pub fn remove(&self, path: &str) {
        self.0.lock().unwrap().objects.remove(path).unwrap();
    }

    fn answer(&self, path: &str) -> Response<Body> {
        let state = self.0.lock().unwrap();
        let (code, body) = match state.objects.get(path) {
            _ if state.is_away => (503, refusal(503, "the server is away")),
            None => (404, refusal(404, "not found")),
            Some(object) => (200, object.clone()),
        };
        let mut answer = Response::new(Body::from(body.to_string().into_bytes()));
        *answer.status_mut() = StatusCode::from_u16(code).unwrap();
        answer
    }
}

fn refusal(code: u16, message: &str) -> Value {
    let reason = if code == 404 { "NotFound" } else { "ServiceUnavailable" };
    json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "reason": reason, "message": message, "code": code})
}
