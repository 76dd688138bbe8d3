//! The program, against an API server that gives prepared answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sluice_slo::examples::{profile, shape};

const GROUP: &str = "/apis/sluice.dev/v1alpha1";

/// Answers by path, and what was asked: method, path and query.
#[derive(Clone, Default)]
struct Answers {
    known: Arc<Mutex<Vec<(String, u16, Value)>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Answers {
    fn put(&self, path: &str, status: u16, answer: Value) {
        self.known.lock().unwrap().push((path.into(), status, answer));
    }

    fn list(&self, path: &str, items: Value) {
        self.put(path, 200, json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}));
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Serves on loopback for as long as the test program runs. Returns the address.
    fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (answers, address) = (self.clone(), listener.local_addr().unwrap().to_string());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let answers = answers.clone();
                std::thread::spawn(move || answers.answer(stream));
            }
        });
        address
    }

    fn answer(&self, mut stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let (mut first, mut length) = (String::new(), 0);
        reader.read_line(&mut first).ok()?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let (method, rest) = first.split_once(' ')?;
        let (target, _) = rest.split_once(' ')?;
        let path = target.split('?').next()?;
        self.asked.lock().unwrap().push(format!("{method} {target}"));
        let found = self
            .known
            .lock()
            .unwrap()
            .iter()
            .find(|(known, ..)| known == path)
            .map(|(_, status, answer)| (*status, answer.clone()));
        let (status, text) = match found {
            // A watch that ends at once.
            _ if target.contains("watch=true") => (200, String::new()),
            // What is applied becomes what is written.
            Some((200, _)) if method == "PATCH" => (200, String::from_utf8(body).ok()?),
            Some((status, answer)) => (status, answer.to_string()),
            None => (404, "404 page not found".into()),
        };
        let length = text.len();
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all((head + &text).as_bytes()).ok()
    }
}

/// A home with a kubeconfig.
struct Home(tempfile::TempDir);

impl Home {
    fn new(server: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "trial",
            "clusters": [{"name": "trial", "cluster": {"server": format!("http://{server}")}}],
            "users": [{"name": "trial", "user": {"token": "t"}}],
            "contexts": [{"name": "trial", "context": {"cluster": "trial", "user": "trial", "namespace": "acme"}}],
        });
        std::fs::create_dir(home.path().join(".kube")).unwrap();
        std::fs::write(home.path().join(".kube/config"), config.to_string()).unwrap();
        Self(home)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-cluster"));
        command.args(line.split_whitespace()).env("HOME", self.0.path());
        for name in ["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// What a command says that fails.
    fn refused(&self, line: &str) -> String {
        fails(&self.run(line))
    }

    fn prints(&self, line: &str) -> String {
        let out = self.run(line);
        assert!(out.status.success(), "{line}: {out:?}");
        String::from_utf8(out.stdout).unwrap()
    }
}

fn fails(out: &Output) -> String {
    let said = String::from_utf8(out.stderr.clone()).unwrap();
    assert!(out.status.code() == Some(1) && said.starts_with("sluice: "), "{out:?}");
    said
}

fn object(kind: &str, metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "sluice.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
}

fn slo(name: &str, state: &str) -> Value {
    json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "SLO", "metadata": {"name": name, "namespace": "acme", "uid": name},
        "spec": {"chain": name, "traffic": "64 B", "reserved": {"throughputPps": 3e6, "latencyUs": 1000.0}},
        "status": {"state": state, "instances": 2, "nodes": "n0"},
    })
}

fn node_plan(name: &str) -> Value {
    json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "NodePlan", "metadata": {"name": name, "uid": name},
        "spec": {"term": 1, "revision": 1, "server": {"name": name, "shape": shape(), "instances": []}},
        "status": {"observedRevision": 1, "appliedRevision": 1},
    })
}

#[test]
fn without_a_cluster_it_says_what_is_missing() {
    let nowhere = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let home = Home::new(&nowhere);
    let said = home.refused("slo list --cluster");
    assert!(said.contains(&format!("the API server at http://{nowhere} does not answer: ")) && said.lines().count() == 1, "{said}");
    assert_eq!(home.refused("top --cluster --context other"), "sluice: the kubeconfig has no context other: it has trial\n");
    let named = fails(&home.command("plan show --cluster").env("KUBECONFIG", "/nowhere/config").output().unwrap());
    assert!(named.starts_with("sluice: cannot read /nowhere/config, which $KUBECONFIG names: "), "{named}");
    std::fs::remove_file(home.0.path().join(".kube/config")).unwrap();
    let said = home.refused("slo list --cluster");
    assert!(said.starts_with("sluice: there is no kubeconfig: name one in $KUBECONFIG") && said.lines().count() == 1, "{said}");
}

#[test]
fn what_the_api_server_refuses_says_what_to_do() {
    let answers = Answers::default();
    let home = Home::new(&answers.serve());
    let said = home.refused("slo list --cluster");
    assert!(said.contains("has no slos of Sluice: install the chart"), "{said}");
    let message = "nodeplans.sluice.dev is forbidden: User \"jane\" cannot list resource \"nodeplans\" in API group \"sluice.dev\"";
    let forbidden = json!({"kind": "Status", "status": "Failure", "message": message, "reason": "Forbidden", "code": 403});
    answers.put(&format!("{GROUP}/nodeplans"), 403, forbidden);
    let said = home.refused("plan show --cluster");
    assert!(
        said.contains("jane may not list nodeplans of the whole cluster") && said.contains("--clusterrole=sluice-reader"),
        "{said}"
    );
    answers.put(&format!("{GROUP}/namespaces/acme/slos/web"), 200, slo("web", "kept"));
    // Without the plans there is less to show.
    let out = home.run("slo show web --cluster");
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success() && said.contains("nodes and instances are left out: jane may not"), "{said}");
    assert!(String::from_utf8(out.stdout).unwrap().starts_with("acme/web: 3000000 packets/s"));
    let unauthorized =
        json!({"kind": "Status", "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
    answers.put(&format!("{GROUP}/slos"), 401, unauthorized);
    let said = home.refused("slo list --cluster -A");
    assert!(said.contains("does not know this user"), "{said}");
}

#[test]
fn slos_are_listed_and_removed() {
    let answers = Answers::default();
    answers.list(&format!("{GROUP}/namespaces/acme/slos"), json!([slo("web", "kept"), slo("db", "refused")]));
    answers.list(&format!("{GROUP}/namespaces/beta/slos"), json!([]));
    answers.put(&format!("{GROUP}/namespaces/acme/slos/web"), 200, slo("web", "kept"));
    let home = Home::new(&answers.serve());
    let listed = home.prints("slo list --cluster");
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].starts_with("NAME  CHAIN") && lines[1].starts_with("db ") && lines[2].starts_with("web "), "{listed}");
    assert_eq!(home.prints("slo list --cluster -n beta"), "nothing is promised in beta; -A shows all namespaces\n");
    let found: Value = serde_json::from_str(&home.prints("slo list --cluster --json")).unwrap();
    assert_eq!(found[0]["metadata"]["name"], "db");
    assert!(answers.asked().iter().all(|asked| asked.starts_with("GET ")), "{:?}", answers.asked());
    // None of them goes where one is not there.
    home.refused("slo remove web other --cluster");
    assert!(answers.asked().iter().all(|asked| asked.starts_with("GET ")), "{:?}", answers.asked());
    assert_eq!(home.prints("slo remove web --cluster"), "removed acme/web: its 2 instances go\n");
    assert!(answers.asked().iter().any(|asked| asked.starts_with(&format!("DELETE {GROUP}/namespaces/acme/slos/web"))));
}

#[test]
fn nodes_are_shown() {
    let answers = Answers::default();
    answers.list(&format!("{GROUP}/nodeplans"), json!([node_plan("n1"), node_plan("n0")]));
    answers.list(&format!("{GROUP}/slos"), json!([slo("web", "kept")]));
    let home = Home::new(&answers.serve());
    assert_eq!(home.prints("plan show --cluster"), "not in use: n0 n1\n");
    let picture = home.0.path().join("plan.svg");
    home.prints(&format!("plan show --cluster --svg {}", picture.display()));
    assert!(std::fs::read_to_string(picture).unwrap().contains("0 of 2 servers in use"));
    let top = home.prints("top --cluster -A --once");
    assert!(top.contains("2 nodes · 1 SLO: 1 kept\n") && top.contains("all namespaces"), "{top}");
    assert!(top.lines().any(|line| line.starts_with("n1 ") && line.contains("ready")), "{top}");
}

#[test]
fn what_would_not_fit_is_not_written() {
    let answers = Answers::default();
    let nat = json!({"name": "nat", "namespace": "acme"});
    let class = json!({
        "nodeSelector": {"class": "a"}, "cpu": shape().cpu, "cores": shape().cores, "llcWays": shape().llc_ways,
        "wayBytes": shape().way_bytes, "ddioWays": shape().ddio_ways, "classes": shape().classes, "memoryMib": shape().memory_mib,
    });
    let node = json!({
        "metadata": {"name": "n0", "labels": {"class": "a"}}, "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    answers.list("/api/v1/nodes", json!([node]));
    let renewed =
        json!({"metadata": {"name": "node-n0"}, "spec": {"renewTime": "2999-01-01T00:00:00.000000Z", "leaseDurationSeconds": 40}});
    answers.list("/apis/coordination.k8s.io/v1/leases", json!([renewed]));
    answers.list(&format!("{GROUP}/serverclasses"), json!([object("ServerClass", json!({"name": "a"}), class)]));
    answers.list(
        &format!("{GROUP}/networkfunctions"),
        json!([object("NetworkFunction", nat.clone(), json!({"exec": "sluice-nf-nat"}))]),
    );
    answers.list(&format!("{GROUP}/servicechains"), json!([]));
    answers.list(&format!("{GROUP}/slos"), json!([]));
    answers.list(&format!("{GROUP}/nfprofiles"), json!([object("NFProfile", nat, json!({"profile": profile()}))]));
    answers.list(&format!("{GROUP}/nodeplans"), json!([node_plan("n0")]));
    for kind in ["slos", "servicechains"] {
        answers.put(&format!("{GROUP}/namespaces/acme/{kind}/web"), 200, Value::Null);
    }
    let home = Home::new(&answers.serve());
    let file = |name: &str, pps: &str| {
        let text = format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: SLO\nmetadata: {{name: web}}\nspec:\n  chain: web\n  traffic: 64 B\n  \
             reserved: {{throughputPps: {pps}, latencyUs: 1000}}\n---\napiVersion: sluice.dev/v1alpha1\nkind: ServiceChain\n\
             metadata: {{name: web}}\nspec: {{services: [nat], ingress: [{{port: in}}], egress: out}}\n"
        );
        home.file(name, &text).display().to_string()
    };
    let (small, large) = (file("small.yaml", "3000000"), file("large.yaml", "900000000"));
    let written =
        || answers.asked().into_iter().filter(|asked| asked.starts_with("PATCH ") && !asked.contains("dryRun=All")).count();
    let said = home.prints(&format!("slo add --cluster --dry-run {small}"));
    assert!(said.starts_with("would be added: acme/web, 3000000 packets/s") && said.contains("acme/web.0  n0 "), "{said}");
    let said = home.refused(&format!("slo add --cluster {large}"));
    assert!(said.contains("\"acme/web\" is refused: ") && said.ends_with("nothing was changed\n"), "{said}");
    assert_eq!(written(), 0, "{:?}", answers.asked());
    let said = home.prints(&format!("slo add --cluster {small}"));
    assert!(said.starts_with("added: acme/web, "), "{said}");
    assert_eq!(written(), 2, "{:?}", answers.asked());
    let last = answers.asked().pop().unwrap();
    assert!(
        last.starts_with(&format!("PATCH {GROUP}/namespaces/acme/slos/web?")) && last.contains("fieldManager=sluice"),
        "{last}"
    );
}
