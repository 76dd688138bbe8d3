//! A real control plane on loopback: etcd, kube-apiserver, and kube-scheduler where it is wanted.

// Each test uses a part of it.
#![allow(dead_code)]

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tempfile::TempDir;

#[path = "../../../../crates/host/src/skip.rs"]
mod skip;

pub use skip::skip;

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The folder of the programs; none if no tests with a control plane are wanted.
pub fn programs() -> Option<PathBuf> {
    std::env::var_os("SLUICE_CLUSTER_BIN").map(PathBuf::from)
}

/// What a test does without them.
#[track_caller]
pub fn skip_all() {
    skip("no control plane: scripts/test-cluster builds one and names it in SLUICE_CLUSTER_BIN");
}

/// A process that ends with its owner.
pub struct Process {
    pub child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program, whose output goes into a file.
    pub fn start(command: &mut Command, log: PathBuf) -> Self {
        let out = File::options().create(true).append(true).open(&log).unwrap();
        let program = command.get_program().to_owned();
        let started = command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out).spawn();
        let child = started.unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        Self { child, log }
    }

    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    /// Kills it. It must not have ended by itself before.
    pub fn kill(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "a program has ended by itself ({ended:?}):\n{}", self.last_words());
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The last lines that it wrote.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The curve of keys.
const CURVE: &str = "ec_paramgen_curve:prime256v1";

fn openssl(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("openssl");
    command.current_dir(folder).args(args);
    command
}

/// The control plane. Everything ends with it.
pub struct Plane {
    // In the order in which they end.
    _scheduler: Option<Process>,
    pub api: Process,
    _etcd: Process,
    pub folder: TempDir,
    pub kubeconfig: PathBuf,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Plane {
    /// Starts a control plane with the programs of a folder, and waits until it answers.
    pub async fn start(programs: &Path, with_scheduler: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let [client, peer, secure] = [(); 3].map(|()| free_port());
        let (etcd_url, peer_url) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut etcd = Command::new(programs.join("etcd"));
        etcd.arg("--data-dir").arg(at("etcd")).arg("--unsafe-no-fsync");
        etcd.args(["--listen-client-urls", &etcd_url, "--advertise-client-urls", &etcd_url, "--listen-peer-urls", &peer_url]);
        etcd.args(["--initial-advertise-peer-urls", &peer_url, "--initial-cluster", &format!("default={peer_url}")]);
        let etcd = Process::start(&mut etcd, at("etcd.log"));
        // It signs tokens that nobody asks for.
        let key = at("sa.key");
        let made = Command::new("openssl").args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"]).arg(&key).output();
        assert!(made.is_ok_and(|made| made.status.success()), "no key can be made: apt-get install openssl");
        // The programs have the names that the chart gives them, in the namespace `default`.
        let program = |token: &str| format!("{token},system:serviceaccount:default:sluice-{token},{token}\n");
        let tokens = format!("secret,admin,admin,system:masters\n{}{}", program("operator"), program("node"));
        std::fs::write(at("tokens.csv"), tokens).unwrap();
        let authority = ["req", "-x509", "-newkey", "ec", "-pkeyopt", CURVE, "-nodes", "-subj", "/CN=test", "-days", "1"];
        let made = openssl(folder.path(), &authority).args(["-keyout", "ca.key", "-out", "ca.crt"]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut api = Command::new(programs.join("kube-apiserver"));
        api.args(["--etcd-servers", &etcd_url, "--bind-address", "127.0.0.1", "--secure-port", &secure.to_string()]);
        api.arg("--cert-dir").arg(at("pki")).arg("--service-account-key-file").arg(&key);
        api.arg("--service-account-signing-key-file").arg(&key).arg("--token-auth-file").arg(at("tokens.csv"));
        api.args(["--service-account-issuer", "https://kubernetes.default.svc", "--service-cluster-ip-range", "10.96.0.0/16"]);
        api.args(["--authorization-mode", "RBAC", "--disable-admission-plugins", "ServiceAccount"]);
        api.arg("--client-ca-file").arg(at("ca.crt"));
        api.args(["--endpoint-reconciler-type", "none", "--profiling=false"]);
        let api = Process::start(&mut api, at("kube-apiserver.log"));
        let kubeconfig = at("kubeconfig");
        let authority = at("pki/apiserver.crt");
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: t, cluster: {{server: \"https://127.0.0.1:{secure}\", \
             certificate-authority: \"{}\"}}}}]\nusers: [{{name: t, user: {{token: secret}}}}]\n\
             contexts: [{{name: t, context: {{cluster: t, user: t}}}}]\ncurrent-context: t\n",
            authority.display()
        );
        std::fs::write(&kubeconfig, text).unwrap();
        let mut plane = Self { _scheduler: None, api, _etcd: etcd, folder, kubeconfig };
        plane.ready(&authority).await;
        if with_scheduler {
            let mut scheduler = Command::new(programs.join("kube-scheduler"));
            for flag in ["--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig"] {
                scheduler.arg(flag).arg(&plane.kubeconfig);
            }
            scheduler.args(["--bind-address", "127.0.0.1", "--secure-port", &free_port().to_string(), "--leader-elect=false"]);
            plane._scheduler = Some(Process::start(&mut scheduler, plane.folder.path().join("kube-scheduler.log")));
        }
        plane
    }

    async fn ready(&mut self, authority: &Path) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.api.child.try_wait().unwrap() {
                panic!("kube-apiserver has ended with {status}:\n{}", self.api.last_words());
            }
            assert!(Instant::now() < until, "kube-apiserver does not become ready:\n{}", self.api.last_words());
            if authority.exists() {
                let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
                if self.client().await.request_text(request).await.is_ok() {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn client(&self) -> Client {
        let config = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }

    /// Writes a file by which the API server is reached as another user, which is as kubeconfigs
    /// have it.
    pub fn reach(&self, name: &str, user: &serde_json::Value) -> PathBuf {
        let text = std::fs::read_to_string(&self.kubeconfig).unwrap();
        let path = self.folder.path().join(format!("{name}.kubeconfig"));
        std::fs::write(&path, text.replace("{token: secret}", &user.to_string())).unwrap();
        path
    }

    /// Makes a client certificate of an administrator, which ends after these days; -1: yesterday.
    /// Returns the user of a kubeconfig.
    pub fn certificate(&self, name: &str, days: i32) -> serde_json::Value {
        let folder = self.folder.path();
        let (request, key, certificate) = (format!("{name}.csr"), format!("{name}.key"), format!("{name}.crt"));
        let mut ask =
            openssl(folder, &["req", "-newkey", "ec", "-pkeyopt", CURVE, "-nodes", "-subj", "/O=system:masters/CN=admin"]);
        // With an extension it is of version 3: programs refuse to use others.
        ask.args(["-addext", "extendedKeyUsage=clientAuth", "-keyout", &key, "-out", &request]);
        let mut sign = openssl(
            folder,
            &["x509", "-req", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copyall"],
        );
        sign.args(["-in", &request, "-days", &days.to_string(), "-out", &certificate]);
        for mut command in [ask, sign] {
            let made = command.output().unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        serde_json::json!({"client-certificate": folder.join(certificate), "client-key": folder.join(key)})
    }

    /// The file that an operator of this name writes for its probe.
    pub fn beat(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.beat"))
    }

    /// An operator of this cluster.
    pub fn operator(&self, name: &str, program: &str) -> Process {
        self.operator_by(name, program, &self.kubeconfig)
    }

    /// An operator that reaches the API server as a file says. One that is started again goes on
    /// with the log of the one before.
    pub fn operator_by(&self, name: &str, program: &str, kubeconfig: &Path) -> Process {
        self.operator_with(name, program, kubeconfig, "0")
    }

    /// An operator that moves SLOs where this part of the nodes in use can be saved.
    pub fn operator_with(&self, name: &str, program: &str, kubeconfig: &Path, gap: &str) -> Process {
        let mut command = Command::new(program);
        command.args(["run", "--namespace", "default", "--lease-seconds", "3", "--optimise-gap", gap]);
        command.arg("--beat").arg(self.beat(name));
        command.env("KUBECONFIG", kubeconfig).env("HOSTNAME", name).env("SLUICE_LOG", "info,kube=warn");
        Process::start(&mut command, self.folder.path().join(format!("{name}.log")))
    }
}
