//! The agent as a program, with a daemon and an API server that are stood in for.

mod fake;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fake::{Api, Daemon, Request};
use serde_json::{Value, json};
use sluice_slo::assignment::Promised;
use sluice_slo::examples::{profile, shape, slo};
use sluice_slo::placement::{Instance, PlacedServer, ServerShape};
use sluice_slo::slo::{Slo, Workload};

const AGENT: &str = env!("CARGO_BIN_EXE_sluice-node");
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);
const BASE: &str = "[[port]]\nname = \"in\"\nkind = \"gen\"\n[[port]]\nname = \"out\"\nkind = \"sink\"\n\
                    [promises]\ncores = [1]\ncache = \"none\"\n";

/// A process that ends with the test.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < until, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for a write of the API server. Returns its place among all.
fn wait_for(api: &Api, what: &str, is_it: impl Fn(&Request) -> bool) -> usize {
    wait(what, || api.writes().iter().position(&is_it))
}

/// An agent of the node `n0` in this folder. The API server is at this port.
fn agent(folder: &Path, port: u16, more: &[&str]) -> Agent {
    let at = |name: &str| folder.join(name);
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "t",
        "clusters": [{"name": "t", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "users": [{"name": "t", "user": {}}], "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
    });
    std::fs::write(at("kubeconfig"), config.to_string()).unwrap();
    std::fs::write(at("base.toml"), BASE).unwrap();
    let mut command = Command::new(AGENT);
    command.args(["--node", "n0", "--namespace", "here"]).args(more);
    for (flag, file) in [("--socket", "control.sock"), ("--base", "base.toml"), ("--kept", "kept.json"), ("--beat", "beat")] {
        command.arg(flag).arg(at(file));
    }
    Agent(command.env("KUBECONFIG", at("kubeconfig")).stdin(Stdio::null()).spawn().unwrap())
}

/// What a plan says, with one instance or none.
fn plan(revision: i64, with_instance: bool) -> Value {
    // No larger than the host of the test is.
    let mut server = PlacedServer::empty("n0", &ServerShape { cores: 1, memory_mib: 64, ..shape() });
    let mut spec = json!({"term": 1, "revision": revision});
    if with_instance {
        let (slo_name, capacity) = ("acme_web".to_string(), 1e6);
        server.instances.push(Instance {
            slo: slo_name.clone(),
            number: 0,
            cores: vec![0],
            ways: 1,
            memory_mib: 16,
            capacity_pps: capacity,
            load_pps: capacity,
        });
        let slo = Slo { name: slo_name, workload: Workload::Nf("acme_nat".into()), ..slo(1e6, 100.0) };
        spec["slos"] = json!([Promised { slo, profile: None }]);
        let chain = json!({"services": ["acme_nat"], "ingress": [{"port": "in"}], "egress": "out"});
        spec["chains"] = json!([{"name": "acme_web", "namespace": "acme", "slo": "web", "chain": chain}]);
        spec["functions"] =
            json!([{"name": "acme_nat", "namespace": "acme", "function": "nat", "spec": {"exec": "sluice-nf-nat"}}]);
    }
    spec["server"] = serde_json::to_value(server).unwrap();
    spec
}

fn object(kind: &str, metadata: &Value, spec: &Value) -> Value {
    json!({"apiVersion": "sluice.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
}

fn node_plan(spec: &Value) -> Value {
    object("NodePlan", &json!({"name": "n0", "uid": "u0", "resourceVersion": "1"}), spec)
}

fn request(name: &str, status: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": "acme", "uid": name, "resourceVersion": "1"});
    let mut request = object("ProfileRequest", &metadata, &json!({"function": "nat", "class": "trial", "traffic": "flows=10"}));
    request["status"] = status.clone();
    request
}

fn is_report(request: &Request) -> bool {
    request.path.contains("/nodeplans/n0/status")
}

#[test]
fn without_an_api_server_the_last_plan_goes_on_and_is_reported_later() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let spec = plan(7, true);
    std::fs::write(at("kept.json"), spec.to_string()).unwrap();
    let daemon = Daemon::start(&at("control.sock"));
    // Nothing listens there.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _agent = agent(folder.path(), address.port(), &[]);
    let placed = wait("the daemon has the last plan", || daemon.placed());
    assert_eq!(placed["server"]["instances"][0]["slo"], "acme_web");
    let probe = |what: &str| {
        let mut command = Command::new(AGENT);
        command.args(["--node", "n0", "--probe", what, "--beat"]).arg(at("beat"));
        command.stderr(Stdio::null()).status().unwrap().success()
    };
    wait("it is ready", || probe("ready").then_some(()));

    let api = Api::start(TcpListener::bind(address).unwrap(), node_plan(&spec), Vec::new());
    let report = wait_for(&api, "a report", |one| is_report(one) && one.body["status"]["appliedRevision"] == 7);
    let said = api.writes()[report].body["status"].clone();
    assert_eq!((&said["conditions"][0]["reason"], &said["profiling"]), (&json!("Applied"), &json!(false)));
    let owned = |one: &Request| {
        one.path.contains("/namespaces/here/leases/node-n0") && one.body["metadata"]["ownerReferences"][0]["uid"] == "u0"
    };
    let lease = wait_for(&api, "the lease", owned);
    let lease = api.writes()[lease].body.clone();
    assert_eq!(
        (&lease["metadata"]["labels"]["sluice.dev/node-agent"], &lease["spec"]["leaseDurationSeconds"]),
        (&json!(""), &json!(40))
    );
    assert!(lease["spec"]["renewTime"].is_string(), "{lease}");

    daemon.set_away(true);
    let event = |reason: &str| {
        let is_it = |one: &Request| one.path.contains("/namespaces/default/events") && one.body["reason"] == reason;
        let found = wait_for(&api, reason, is_it);
        assert_eq!(api.writes()[found].body["regarding"]["uid"], "u0");
    };
    event("DaemonAway");
    wait("it is not ready", || (!probe("ready")).then_some(()));
    assert!(probe("alive"));
    let is_away = |one: &Request| is_report(one) && one.body["status"]["conditions"][0]["reason"] == "DaemonAway";
    let away = wait_for(&api, "the report that the daemon is away", is_away);
    assert!(api.writes()[away].body["status"]["refused"].is_null(), "that is no refusal");
    daemon.set_away(false);
    event("DaemonBack");
}

#[test]
fn a_node_without_instances_profiles_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = Daemon::start(&folder.path().join("control.sock"));
    let program = folder.path().join("sluice");
    std::fs::write(&program, format!("#!/bin/sh\necho '{}'\n", serde_json::to_string(&profile()).unwrap())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut other = request("other", &Value::Null);
    other["spec"]["class"] = json!("edge");
    let api = Api::start(listener, node_plan(&plan(3, false)), vec![other, request("nat", &Value::Null)]);
    let _agent = agent(folder.path(), port, &["--class", "trial", "--profiler", program.to_str().unwrap()]);

    let of = |one: &Request, state: &str| one.path.contains("/profilerequests/nat/status") && one.body["status"]["state"] == state;
    let claimed = wait_for(&api, "a claim", |one| of(one, "Running"));
    let claim = api.writes()[claimed].body.clone();
    assert_eq!((&claim["status"]["node"], &claim["metadata"]["resourceVersion"]), (&json!("n0"), &json!("1")));
    let closed = wait_for(&api, "the report that it profiles", |one| is_report(one) && one.body["status"]["profiling"] == true);
    let made = wait_for(&api, "the profile", |one| one.method == "POST" && one.path.contains("/acme/nfprofiles"));
    let done = wait_for(&api, "the end of the request", |one| of(one, "Done"));
    assert!(claimed < closed && closed < made && made < done, "{claimed} {closed} {made} {done}");
    let writes = api.writes();
    let metadata = &writes[made].body["metadata"];
    assert_eq!((&metadata["name"], &metadata["ownerReferences"][0]["uid"]), (&json!("nat"), &json!("nat")));
    assert_eq!(writes[made].body["spec"]["profile"]["key"]["workload"], json!({"nf": "sluice-nf-nat"}));
    assert_eq!(writes[done].body["status"]["profile"], "nat");
    let is_open = |(i, one): (usize, &Request)| i > done && is_report(one) && one.body["status"]["profiling"] == false;
    wait("it has room again", || api.writes().iter().enumerate().any(is_open).then_some(()));
    assert!(!api.writes().iter().any(|one| one.path.contains("/profilerequests/other/")), "that is for another class");
}

#[test]
fn what_an_agent_has_begun_before_it_was_restarted_waits_again() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = Daemon::start(&folder.path().join("control.sock"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let running = |attempts: i64, node: &str| json!({"state": "Running", "node": node, "attempts": attempts});
    let requests =
        vec![request("once", &running(1, "n0")), request("often", &running(3, "n0")), request("there", &running(1, "n1"))];
    let api = Api::start(listener, node_plan(&plan(3, true)), requests);
    let _agent = agent(folder.path(), port, &["--class", "trial"]);
    for (name, state) in [("once", "Pending"), ("often", "Failed")] {
        let of = |one: &Request| one.path.contains(&format!("/profilerequests/{name}/status"));
        let written = wait_for(&api, name, of);
        let status = &api.writes()[written].body["status"];
        assert_eq!((status["state"].as_str(), status["message"].as_str().unwrap().contains("restarted")), (Some(state), true));
    }
    assert!(!api.writes().iter().any(|one| one.path.contains("/profilerequests/there/")), "another node measures that");
}
