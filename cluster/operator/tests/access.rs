//! Operator and agent lack a right, or the API server does not know them: each says so where it is
//! looked for, everything else goes on, and it heals when it is mended.
//!
//! They have the roles of the chart, less what a case takes away. Without a folder of programs in
//! `SLUICE_CLUSTER_BIN` it says that it was skipped.

#[path = "testbed/objects.rs"]
mod objects;
mod testbed;

use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use objects::{Agents, apply, basics, define, gated, node, promise, state, wait};
use serde_json::{Value, json};
use sluice_cluster_types::{NodePlan, Slo, SloStatus, labels};
use testbed::{Plane, Process};

const OPERATOR: &str = env!("CARGO_BIN_EXE_sluice-operator");
/// Their names at the API server: the testbed has their tokens.
const OPERATOR_USER: &str = "system:serviceaccount:default:sluice-operator";
const AGENT_USER: &str = "system:serviceaccount:default:sluice-node";

fn main() {
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let Some(programs) = testbed::programs() else {
        return testbed::skip_all();
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let plane = Plane::start(&programs, false).await;
        let client = plane.client().await;
        define(&client).await;
        basics(&client, "acme").await;
        for name in ["n0", "n1"] {
            node(&client, name).await;
        }
        let _agents = Agents::start(client.clone());
        let roles = [chart("operator-rbac.yaml"), chart("node-rbac.yaml")].concat();
        for object in &roles {
            give(&client, object).await;
        }
        // A token in a file is read again within a minute: meanwhile, the other cases run.
        let strangers = strangers(&plane).await;
        done("programs that the API server does not know say so, and wait");
        let operator = roles.iter().find(|role| role["metadata"]["name"] == "sluice-operator").unwrap();
        let first = plane.operator_by("first", OPERATOR, &plane.reach("first", &json!({"token": "operator"})));
        promise(&client, "acme", "web", 12e6).await;
        state(&client, "acme", "web", "kept").await;
        wait("the operator is ready", || async { ready(&plane, "first").is_empty().then_some(()) }).await;
        done("the chart's rights are enough for the operator");
        let case = Case { client: &client, plane: &plane, role: operator };
        pods(&case, &first).await;
        done("without the right to patch pods, their SLO says so, and all else goes on");
        statuses(&case).await;
        done("without the right to write statuses, plans are made, and the operator says so");
        plans(&case).await;
        done("without the right to write plans, an SLO that waits for one says so");
        begin(&case).await;
        done("an operator that may not read nodes waits for the right");
        agent(&client, &plane, &roles).await;
        done("an agent without a right says so in its NodePlan, or by its probe");
        certificates(&plane).await;
        done("an expired certificate, and one of another authority, is named");
        healed(&plane).await;
        drop(strangers);
        done("with a token that is known, they go on by themselves");
    });
}

fn done(what: &str) {
    println!("ok: {what}");
}

/// The objects of a file of the chart, in the namespace `default`, with all that depends on values.
fn chart(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../chart/templates").join(file);
    let text = std::fs::read_to_string(path).unwrap().replace("{{ .Release.Namespace }}", "default");
    let is_plain = |line: &&str| !line.trim_start().starts_with("{{") && line.trim() != "labels:";
    let plain: Vec<&str> = text.lines().filter(is_plain).collect();
    serde_saphyr::from_multiple(&plain.join("\n")).unwrap()
}

/// Makes or changes a role or a binding.
async fn give(client: &Client, object: &Value) {
    let given = match object["kind"].as_str() {
        Some("ClusterRole") => apply::<ClusterRole>(client, object).await,
        Some("ClusterRoleBinding") => apply::<ClusterRoleBinding>(client, object).await,
        Some("Role") => apply::<Role>(client, object).await,
        Some("RoleBinding") => apply::<RoleBinding>(client, object).await,
        // Tokens of these tests name no node, by which the policy goes.
        _ => return,
    };
    given.unwrap();
}

/// A role without a right.
fn without(role: &Value, verb: &str, resource: &str) -> Value {
    let (mut left, mut is_found) = (Vec::new(), false);
    for rule in role["rules"].as_array().unwrap() {
        let words = |of: &str| rule[of].as_array().unwrap().clone();
        if !words("resources").contains(&resource.into()) || !words("verbs").contains(&verb.into()) {
            left.push(rule.clone());
            continue;
        }
        is_found = true;
        let except = |of: &str, word: &str| words(of).into_iter().filter(|one| one != word).collect::<Vec<_>>();
        for (resources, verbs) in [(except("resources", resource), words("verbs")), (vec![resource.into()], except("verbs", verb))]
        {
            if resources.is_empty() || verbs.is_empty() {
                continue;
            }
            let mut part = rule.clone();
            (part["resources"], part["verbs"]) = (resources.into(), verbs.into());
            left.push(part);
        }
    }
    assert!(is_found, "no rule has {verb} of {resource}: {role}");
    let mut role = role.clone();
    role["rules"] = left.into();
    role
}

/// A cluster, and the role of its operator.
struct Case<'a> {
    client: &'a Client,
    plane: &'a Plane,
    role: &'a Value,
}

impl Case<'_> {
    /// Takes a right from the operator, and waits until that is so.
    async fn take(&self, verb: &str, group: &str, resource: &str) {
        give(self.client, &without(self.role, verb, resource)).await;
        self.until(verb, group, resource, false).await;
    }

    /// Gives it back.
    async fn give_back(&self, verb: &str, group: &str, resource: &str) {
        give(self.client, self.role).await;
        self.until(verb, group, resource, true).await;
    }

    async fn until(&self, verb: &str, group: &str, resource: &str, may: bool) {
        let what = format!("{verb} of {resource}: {may}");
        wait(&what, || async { (allowed(self.client, OPERATOR_USER, verb, group, resource).await == may).then_some(()) }).await;
    }

    /// Waits until the probe of the first operator says this.
    async fn says(&self, words: &str) {
        wait(words, || async { ready(self.plane, "first").contains(words).then_some(()) }).await;
    }

    /// Waits until the first operator lacks nothing.
    async fn is_well(&self) {
        wait("it lacks nothing", || async { ready(self.plane, "first").is_empty().then_some(()) }).await;
    }

    /// Waits until an SLO says why it is not kept.
    async fn why(&self, slo: &str, words: &str) -> SloStatus {
        let slos: Api<Slo> = Api::namespaced(self.client.clone(), "acme");
        wait(words, || async { slos.get(slo).await.ok()?.status.filter(|status| status.why.contains(words)) }).await
    }
}

async fn allowed(client: &Client, user: &str, verb: &str, group: &str, resource: &str) -> bool {
    let (kind, sub) = resource.split_once('/').unwrap_or((resource, ""));
    let asked = json!({"verb": verb, "group": group, "resource": kind, "subresource": sub});
    let review = json!({"metadata": {}, "spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": asked}});
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &serde_json::from_value(review).unwrap()).await.unwrap();
    answer.status.is_some_and(|status| status.allowed)
}

/// What a probe says; nothing if all is well.
fn probe(program: &Path, args: &[&str], beat: &Path) -> String {
    let output = Command::new(program).args(args).arg("--beat").arg(beat).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

/// What the probe of an operator says.
fn ready(plane: &Plane, name: &str) -> String {
    probe(Path::new(OPERATOR), &["ready"], &plane.beat(name))
}

/// An operator that waits for its rights is not restarted.
fn is_alive(plane: &Plane, name: &str) {
    assert_eq!(probe(Path::new(OPERATOR), &["alive"], &plane.beat(name)), "");
}

fn agent_program() -> PathBuf {
    Path::new(OPERATOR).with_file_name("sluice-node")
}

/// What the probe of an agent says.
fn ready_agent(plane: &Plane, name: &str) -> String {
    probe(&agent_program(), &["--node", name, "--probe", "ready"], &plane.beat(name))
}

/// An agent without a daemon.
fn start_agent(plane: &Plane, name: &str, kubeconfig: &Path) -> Process {
    let at = |what: &str| plane.folder.path().join(format!("{name}.{what}"));
    let mut command = Command::new(agent_program());
    command.args(["--node", name, "--namespace", "default", "--class", "a"]);
    command.arg("--socket").arg(at("sock")).arg("--base").arg(at("toml")).arg("--kept").arg(at("json"));
    command.arg("--beat").arg(plane.beat(name)).env("KUBECONFIG", kubeconfig);
    Process::start(&mut command, at("log"))
}

/// How often a log warns of something.
fn warnings(plane: &Plane, name: &str, words: &str) -> usize {
    let text = std::fs::read_to_string(plane.folder.path().join(format!("{name}.log"))).unwrap();
    text.lines().filter(|line| line.contains("WARN") && line.contains(words)).count()
}

async fn pods(case: &Case<'_>, operator: &Process) {
    let client = case.client;
    case.take("patch", "", "pods").await;
    gated(client, "acme", "web-0", "web").await;
    let words = "system:serviceaccount:default:sluice-operator may not patch pods in acme: `helm upgrade`";
    let status = case.why("web", words).await;
    let is_ready = status.conditions.iter().find(|one| one.type_ == "Ready").unwrap();
    assert_eq!((status.state.as_str(), is_ready.reason.as_str()), ("degraded", "PodsDenied"), "{}", operator.last_words());
    case.says("may not patch pods in acme").await;
    let events: Api<Event> = Api::all(client.clone());
    for (kind, reason) in [("Lease", "NoAccess"), ("Pod", "PodRefused")] {
        wait(reason, || async {
            let all = events.list(&ListParams::default()).await.ok()?.items;
            let is_it = |event: &Event| {
                let of = event.regarding.clone().unwrap_or_default();
                let note = event.note.clone().unwrap_or_default();
                event.reason.as_deref() == Some(reason) && of.kind.as_deref() == Some(kind) && note.contains("may not patch pods")
            };
            all.iter().any(is_it).then_some(())
        })
        .await;
    }
    promise(client, "acme", "other", 1e6).await;
    state(client, "acme", "other", "kept").await;
    assert_eq!(warnings(case.plane, "first", "may not patch pods in acme"), 1, "however often it is tried");
    case.give_back("patch", "", "pods").await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "acme");
    wait("the pod has its instance", || async {
        pods.get("web-0").await.ok()?.metadata.labels?.contains_key(labels::INSTANCE).then_some(())
    })
    .await;
    state(client, "acme", "web", "kept").await;
    case.is_well().await;
}

async fn statuses(case: &Case<'_>) {
    case.take("patch", "sluice.dev", "slos/status").await;
    promise(case.client, "acme", "mute", 1e6).await;
    case.says("may not patch slos/status in acme").await;
    let plans: Api<NodePlan> = Api::all(case.client.clone());
    wait("it has a place", || async {
        let all = plans.list(&ListParams::default()).await.ok()?.items;
        all.iter().any(|plan| plan.spec.slos.iter().any(|one| one.slo.name == "acme_mute")).then_some(())
    })
    .await;
    case.give_back("patch", "sluice.dev", "slos/status").await;
    state(case.client, "acme", "mute", "kept").await;
    case.is_well().await;
}

async fn plans(case: &Case<'_>) {
    case.take("update", "sluice.dev", "nodeplans").await;
    promise(case.client, "acme", "late", 1e6).await;
    let status = case.why("late", "may not update nodeplans of the whole cluster").await;
    assert_eq!((status.state.as_str(), status.conditions[0].reason.as_str()), ("refused", "PlansDenied"), "{status:?}");
    case.says("may not update nodeplans of the whole cluster").await;
    let slos: Api<Slo> = Api::namespaced(case.client.clone(), "acme");
    assert_eq!(slos.get("web").await.unwrap().status.unwrap().state, "kept", "what runs goes on");
    case.give_back("update", "sluice.dev", "nodeplans").await;
    state(case.client, "acme", "late", "kept").await;
    case.is_well().await;
}

/// An operator that starts without a right.
async fn begin(case: &Case<'_>) {
    case.take("list", "", "nodes").await;
    let mut second = case.plane.operator_by("second", OPERATOR, &case.plane.reach("second", &json!({"token": "operator"})));
    let words = "may not list nodes of the whole cluster";
    wait(words, || async { ready(case.plane, "second").contains(words).then_some(()) }).await;
    is_alive(case.plane, "second");
    assert!(second.child.try_wait().unwrap().is_none(), "it waits");
    case.give_back("list", "", "nodes").await;
    wait("it lacks nothing", || async { ready(case.plane, "second").is_empty().then_some(()) }).await;
}

async fn agent(client: &Client, plane: &Plane, roles: &[Value]) {
    let role = |kind: &str| roles.iter().find(|role| role["kind"] == kind && role["metadata"]["name"] == "sluice-node").unwrap();
    let whole = role("ClusterRole");
    let until = |verb: &'static str, resource: &'static str, may: bool| async move {
        let is_so = || async { (allowed(client, AGENT_USER, verb, "sluice.dev", resource).await == may).then_some(()) };
        wait(&format!("{verb} of {resource}: {may}"), is_so).await;
    };
    give(client, &without(whole, "list", "profilerequests")).await;
    until("list", "profilerequests", false).await;
    node(client, objects::REAL).await;
    let plans: Api<NodePlan> = Api::all(client.clone());
    let kubeconfig = plane.reach("real", &json!({"token": "node"}));
    let condition = |kind: &'static str, reason: &'static str| {
        let plans = plans.clone();
        async move {
            let is_it = || async {
                let all = plans.get(objects::REAL).await.ok()?.status?.conditions;
                all.into_iter().find(|one| one.type_ == kind && one.reason == reason)
            };
            wait(&format!("{kind}: {reason}"), is_it).await
        }
    };
    let running = start_agent(plane, objects::REAL, &kubeconfig);
    let said = condition("Connected", "NoAccess").await;
    assert!(said.message.contains("may not list profilerequests of the whole cluster"), "{said:?}\n{}", running.last_words());
    condition("Ready", "DaemonAway").await;
    give(client, whole).await;
    until("list", "profilerequests", true).await;
    assert_eq!(condition("Connected", "Allowed").await.status, "True");
    drop(running);
    // What it may not report at all, its probe says.
    give(client, &without(whole, "patch", "nodeplans/status")).await;
    until("patch", "nodeplans/status", false).await;
    let running = start_agent(plane, objects::REAL, &kubeconfig);
    let words = "may not patch nodeplans/status of the whole cluster";
    wait(words, || async { ready_agent(plane, objects::REAL).contains(words).then_some(()) }).await;
    give(client, whole).await;
    wait("it reports again", || async { (!ready_agent(plane, objects::REAL).contains(words)).then_some(()) }).await;
    drop(running);
}

async fn certificates(plane: &Plane) {
    let expired = plane.reach("expired", &plane.certificate("expired", -1));
    let mut operator = plane.operator_by("expired", OPERATOR, &expired);
    let mut agent = start_agent(plane, "expired-node", &expired);
    let words = "its token or client certificate has expired";
    wait(words, || async { ready(plane, "expired").contains(words).then_some(()) }).await;
    wait(words, || async { ready_agent(plane, "expired-node").contains(words).then_some(()) }).await;
    for process in [&mut operator, &mut agent] {
        assert!(process.child.try_wait().unwrap().is_none(), "it waits");
    }
    drop((operator, agent));
    // As the message says: a certificate is read when the program starts.
    let _operator = plane.operator_by("expired", OPERATOR, &plane.reach("renewed", &plane.certificate("renewed", 1)));
    wait("the new certificate is taken", || async { ready(plane, "expired").is_empty().then_some(()) }).await;
    let other = plane.folder.path().join("other.kubeconfig");
    let text = std::fs::read_to_string(&plane.kubeconfig).unwrap();
    std::fs::write(&other, text.replace("pki/apiserver.crt", "ca.crt")).unwrap();
    let _other = plane.operator_by("other", OPERATOR, &other);
    let words = "is of an authority that sluice-operator does not know";
    wait(words, || async { ready(plane, "other").contains(words).then_some(()) }).await;
}

/// Starts an operator and an agent with a wrong token in a file, and puts one there that is known.
async fn strangers(plane: &Plane) -> [Process; 2] {
    let token = plane.folder.path().join("token");
    std::fs::write(&token, "wrong").unwrap();
    let kubeconfig = plane.reach("stranger", &json!({"tokenFile": &token}));
    let operator = plane.operator_by("stranger", OPERATOR, &kubeconfig);
    let agent = start_agent(plane, "stranger-node", &kubeconfig);
    wait("it is not known", || async { ready(plane, "stranger").contains("does not know sluice-operator").then_some(()) }).await;
    is_alive(plane, "stranger");
    wait("it is not known", || async { ready_agent(plane, "stranger-node").contains("does not know sluice-node").then_some(()) })
        .await;
    // One that may do all that both do.
    std::fs::write(&token, "secret").unwrap();
    [operator, agent]
}

async fn healed(plane: &Plane) {
    wait("the operator is known", || async { ready(plane, "stranger").is_empty().then_some(()) }).await;
    wait("the agent is known", || async { (!ready_agent(plane, "stranger-node").contains("does not know")).then_some(()) }).await;
}
