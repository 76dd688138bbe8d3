//! The program against a real API server, with a real operator: `scripts/test-cluster` runs this.
//!
//! Without a folder of programs in `SLUICE_CLUSTER_BIN` it says that it was skipped.

#[path = "../../operator/tests/testbed/objects.rs"]
mod objects;
#[path = "../../operator/tests/testbed/mod.rs"]
mod testbed;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::Client;
use kube::api::Api;
use objects::{Agents, apply, basics, chain, define, node, reserved, state, wait};
use serde_json::{Value, json};
use sluice_cluster_types::{NodePlan, ServiceChain, Slo};
use testbed::Plane;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sluice-cluster");

fn main() {
    // Cargo asks harnesses for their tests.
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
        let admin = User { kubeconfig: plane.kubeconfig.clone() };
        let said = admin.refused("slo list --cluster");
        assert!(said.contains("has no slos of Sluice: install the chart"), "{said}");
        define(&client).await;
        println!("ok: a cluster without the definitions is told from one with them");
        rights(&client, &plane).await;
        println!("ok: a right that is missing is named, and can be given");
        let _agents = Agents::start(client.clone());
        let operator = Path::new(PROGRAM).with_file_name("sluice-operator");
        let _operator = plane.operator("only", operator.to_str().unwrap());
        slos(&client, &plane, &admin).await;
        println!("ok: what is foreseen comes true, and what has no room is not written");
    });
}

/// A user of the cluster.
struct User {
    kubeconfig: PathBuf,
}

impl User {
    fn run(&self, line: &str) -> Output {
        Command::new(PROGRAM).args(line.split(' ')).env("KUBECONFIG", &self.kubeconfig).output().unwrap()
    }

    fn prints(&self, line: &str) -> String {
        let out = self.run(line);
        assert!(out.status.success(), "{line}: {out:?}");
        String::from_utf8(out.stdout).unwrap()
    }

    fn refused(&self, line: &str) -> String {
        let out = self.run(line);
        assert_eq!(out.status.code(), Some(1), "{line}: {out:?}");
        String::from_utf8(out.stderr).unwrap()
    }
}

async fn rights(client: &Client, plane: &Plane) {
    let kubeconfig = plane.folder.path().join("jane");
    let own = std::fs::read_to_string(&plane.kubeconfig).unwrap();
    std::fs::write(&kubeconfig, own.replace("{token: secret}", "{token: secret, as: jane}")).unwrap();
    let jane = User { kubeconfig };
    basics(client, "acme").await;
    let said = jane.refused("slo list --cluster -n acme");
    assert!(said.contains("jane may not list slos in acme") && said.contains("--clusterrole=sluice-viewer"), "{said}");
    let rule = json!({"apiGroups": ["sluice.dev"], "resources": ["slos"], "verbs": ["get", "list", "watch"]});
    apply::<ClusterRole>(client, &json!({"metadata": {"name": "sluice-viewer"}, "rules": [rule]})).await.unwrap();
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sluice-viewer"});
    let subjects = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]);
    let binding = json!({"metadata": {"name": "jane", "namespace": "acme"}, "roleRef": role, "subjects": subjects});
    apply::<RoleBinding>(client, &binding).await.unwrap();
    wait("jane may list", || async { jane.run("slo list --cluster -n acme").status.success().then_some(()) }).await;
    assert_eq!(jane.prints("slo list --cluster -n acme"), "nothing is promised in acme; -A shows all namespaces\n");
    let said = jane.refused("slo list --cluster -A");
    assert!(said.contains("jane may not list slos of the whole cluster: name a namespace with -n"), "{said}");
    let said = jane.refused("plan show --cluster");
    assert!(said.contains("jane may not list nodeplans of the whole cluster"), "{said}");
    let rule = json!({"apiGroups": ["sluice.dev"], "resources": ["nodeplans"], "verbs": ["list"]});
    apply::<ClusterRole>(client, &json!({"metadata": {"name": "sluice-reader"}, "rules": [rule]})).await.unwrap();
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sluice-reader"});
    let binding = json!({"metadata": {"name": "jane"}, "roleRef": role, "subjects": subjects});
    apply::<ClusterRoleBinding>(client, &binding).await.unwrap();
    wait("jane may read plans", || async { jane.run("plan show --cluster").status.success().then_some(()) }).await;
}

/// Writes an SLO and its chain into a file. Returns its path.
fn file(plane: &Plane, name: &str, pps: f64) -> String {
    let whole = |kind: &str, mut object: Value| {
        (object["apiVersion"], object["kind"]) = ("sluice.dev/v1alpha1".into(), kind.into());
        object.to_string()
    };
    let path = plane.folder.path().join(format!("{name}.yaml"));
    let text = format!("{}\n---\n{}\n", whole("SLO", reserved("acme", name, pps)), whole("ServiceChain", chain("acme", name)));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

async fn slos(client: &Client, plane: &Plane, admin: &User) {
    for name in ["n0", "n1"] {
        node(client, name).await;
    }
    let plans: Api<NodePlan> = Api::all(client.clone());
    for name in ["n0", "n1"] {
        wait("a node has taken over its plan", || async { plans.get_opt(name).await.ok()??.status.map(drop) }).await;
    }
    let (web, huge, wrong) = (file(plane, "web", 12e6), file(plane, "huge", 900e6), file(plane, "wrong", 0.0));
    let foreseen: Value = serde_json::from_str(&admin.prints(&format!("slo add --cluster --dry-run --json {web}"))).unwrap();
    let slos: Api<Slo> = Api::namespaced(client.clone(), "acme");
    let chains: Api<ServiceChain> = Api::namespaced(client.clone(), "acme");
    let are_none = || async {
        slos.list(&Default::default()).await.unwrap().items.is_empty()
            && chains.list(&Default::default()).await.unwrap().items.is_empty()
    };
    assert!(are_none().await, "a dry run writes nothing");
    let said = admin.refused(&format!("slo add --cluster {huge}"));
    assert!(said.contains("\"acme/huge\" is refused: ") && said.contains("this would fit"), "{said}");
    let said = admin.refused(&format!("slo add --cluster {wrong}"));
    assert!(said.contains("a throughput is above 0"), "{said}");
    assert!(are_none().await, "what is refused is not written");
    let said = admin.prints(&format!("slo add --cluster {web}"));
    assert!(said.starts_with("added: acme/web, 12000000 packets/s"), "{said}");
    let status = state(client, "acme", "web", "kept").await.status.unwrap();
    let instances = foreseen["added"][0]["instances"].as_array().unwrap();
    let mut nodes: Vec<&str> = instances.iter().map(|one| one["node"].as_str().unwrap()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!((nodes.join(" "), instances.len() as i64), (status.nodes.clone(), status.instances), "what was foreseen");
    let listed = admin.prints("slo list --cluster -n acme");
    assert!(listed.lines().nth(1).is_some_and(|line| line.starts_with("web ") && line.contains(" kept ")), "{listed}");
    let shown = admin.prints("slo show web --cluster -n acme");
    assert!(shown.contains("\nit is kept\n") && shown.contains("acme/web.0  n0 ") && shown.contains("Admitted   yes"), "{shown}");
    let shown = admin.prints("plan show --cluster");
    assert!(shown.contains("acme/web (") && shown.contains("not in use: n1\n"), "{shown}");
    let top = admin.prints("top --cluster -A --once");
    assert!(top.contains("2 nodes · 1 SLO: 1 kept\n"), "{top}");
    let said = admin.refused("slo show other --cluster -n acme");
    assert!(said.contains("there is no other in acme"), "{said}");
    let said = admin.prints("slo remove web --cluster -n acme");
    assert!(said.starts_with("removed acme/web: its "), "{said}");
    wait("its node is empty", || async { plans.get("n0").await.ok()?.spec.server.instances.is_empty().then_some(()) }).await;
}
