//! A real API server, and its etcd, on loopback. Their programs are in $SLUICE_CLUSTER_BIN.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::json;

use crate::skip::skip;
use crate::until;

const TOKEN: &str = "of-this-test";

/// A process that ends with its test.
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An API server.
pub struct Plane {
    server: Process,
    _etcd: Process,
    folder: tempfile::TempDir,
    address: String,
    programs: PathBuf,
}

/// A port that is free now.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(folder: &Path, program: &Path, arguments: &[String]) -> Process {
    let name = program.file_name().unwrap().to_str().unwrap();
    let log = File::create(folder.join(format!("{name}.log"))).unwrap();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).current_dir(folder);
    Process(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display())))
}

impl Plane {
    /// Starts an API server with these feature gates; none where the programs are not built.
    pub async fn start(gates: &str) -> Option<Self> {
        let Some(programs) = std::env::var_os("SLUICE_CLUSTER_BIN").map(PathBuf::from) else {
            skip("$SLUICE_CLUSTER_BIN names no folder with etcd and kube-apiserver: run scripts/test-cluster");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let key =
            Command::new("openssl").args(["ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", &at("sa.key")]).output();
        assert!(key.as_ref().is_ok_and(|done| done.status.success()), "openssl makes no key: {key:?}");
        std::fs::write(at("tokens.csv"), format!("{TOKEN},admin,admin,system:masters\n")).unwrap();
        let [client, peer, secure] = [port(), port(), port()].map(|port| format!("127.0.0.1:{port}"));
        let etcd = [
            format!("--data-dir={}", at("etcd")),
            "--unsafe-no-fsync".into(),
            format!("--listen-client-urls=http://{client}"),
            format!("--advertise-client-urls=http://{client}"),
            format!("--listen-peer-urls=http://{peer}"),
            format!("--initial-advertise-peer-urls=http://{peer}"),
            format!("--initial-cluster=default=http://{peer}"),
        ];
        let etcd = start(folder.path(), &programs.join("etcd"), &etcd);
        let server = [
            format!("--etcd-servers=http://{client}"),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={}", secure.rsplit(':').next().unwrap()),
            format!("--cert-dir={}", at("certificates")),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            format!("--service-account-key-file={}", at("sa.key")),
            format!("--service-account-signing-key-file={}", at("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--token-auth-file={}", at("tokens.csv")),
            "--authorization-mode=RBAC".into(),
            "--disable-admission-plugins=ServiceAccount".into(),
            "--endpoint-reconciler-type=none".into(),
            "--profiling=false".into(),
            format!("--feature-gates={gates}"),
        ];
        let server = start(folder.path(), &programs.join("kube-apiserver"), &server);
        let mut plane = Self { server, _etcd: etcd, folder, address: secure, programs };
        plane.ready().await;
        Some(plane)
    }

    async fn ready(&mut self) {
        let client = self.client().await;
        for _ in 0..1200 {
            if let Ok(Some(ended)) = self.server.0.try_wait() {
                let log = std::fs::read_to_string(self.folder.path().join("kube-apiserver.log")).unwrap();
                panic!("kube-apiserver has ended, with {ended}: {log}");
            }
            let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
            if client.request_text(request).await.is_ok_and(|text| text == "ok") {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        panic!("kube-apiserver does not get ready");
    }

    pub async fn client(&self) -> Client {
        let text = self.kubeconfig();
        let config = Config::from_custom_kubeconfig(Kubeconfig::from_yaml(&text).unwrap(), &KubeConfigOptions::default()).await;
        Client::try_from(config.unwrap()).unwrap()
    }

    fn kubeconfig(&self) -> String {
        let cluster = json!({"server": format!("https://{}", self.address), "insecure-skip-tls-verify": true});
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        })
        .to_string()
    }

    /// Starts a scheduler that ends with its test; none where the program is not built.
    pub async fn scheduler(&self, gates: &str) -> Option<Process> {
        let program = self.programs.join("kube-scheduler");
        if !program.exists() {
            skip(format_args!("there is no {}: run scripts/test-cluster", program.display()));
            return None;
        }
        let file = self.folder.path().join("kubeconfig");
        std::fs::write(&file, self.kubeconfig()).unwrap();
        let port = port();
        let flag = |name: &str| format!("--{name}={}", file.display());
        let arguments = [
            flag("kubeconfig"),
            flag("authentication-kubeconfig"),
            flag("authorization-kubeconfig"),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={port}"),
            "--leader-elect=false".into(),
            format!("--feature-gates={gates}"),
        ];
        let scheduler = start(self.folder.path(), &program, &arguments);
        until("the scheduler listens", move || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
        Some(scheduler)
    }
}
