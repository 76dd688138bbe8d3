//! The web page and the control API by TLS, as curl sees them from another program: certificates,
//! tokens with their roles, and what is read again while the daemon runs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};

use crate::skip::skip;
use crate::support::{Daemon, PATIENCE, chain, head, nf, open_folder, port, refusal, service, sluice};

const READER: &str = "0123456789abcdef0123456789abcdef";
const ALICE: &str = "fedcba9876543210fedcba9876543210";
const BOB: &str = "abcdefghijklmnopqrstuvwxyz012345";

/// The exit code of a curl whose time was over.
const TIMED_OUT: i32 = 28;

/// Whether this host has curl.
fn has_curl() -> bool {
    let has = Command::new("curl").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has {
        skip("curl is missing; run `make deps`");
    }
    has
}

/// Writes a file that its owner alone may read.
fn put(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
    std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Writes a certificate for this host, its key, and what a client trusts then.
fn certify(folder: &Path, trusted: &str) {
    let key = KeyPair::generate().unwrap();
    let names = ["localhost", "127.0.0.1"].map(String::from);
    let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap().pem();
    put(folder, trusted, &certificate);
    put(folder, "key.pem", &key.serialize_pem());
    put(folder, "certificate.pem", &certificate);
}

/// A folder with all files that the configuration of [`keys`] names.
fn folder() -> tempfile::TempDir {
    let folder = open_folder();
    certify(folder.path(), "trusted.pem");
    put(folder.path(), "reader.token", &format!("{READER}\n"));
    put(folder.path(), "alice.token", &format!("{ALICE}\n"));
    folder
}

/// Keys of a listener that other hosts may reach.
fn keys() -> String {
    "listen = \"0.0.0.0:0\"\ncertificate = \"certificate.pem\"\nkey = \"key.pem\"\ntoken = \"reader.token\"\n\
     operators = { alice = \"alice.token\" }\n"
        .into()
}

/// A configuration with a chain of a bridge.
fn config(folder: &Path, page: &str) -> String {
    head(folder, "")
        + &format!("[page]\n{page}\n")
        + &port("in", "gen", "rate = 5000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("fw", &nf("sluice-nf-bridge"), "")
        + &chain("web", "in", &["fw"], "out", "")
}

fn started(folder: tempfile::TempDir) -> Daemon {
    std::fs::write(folder.path().join("sluice.toml"), config(folder.path(), &keys())).unwrap();
    Daemon::again(folder)
}

/// A client of the listener.
struct Curl {
    port: u16,
    trusted: PathBuf,
}

impl Curl {
    fn new(daemon: &Daemon, trusted: &str) -> Self {
        let log = daemon.log();
        let (_, rest) = log.split_once("the page is at https://0.0.0.0:").expect("the log names the address");
        Self { port: rest.split_once('/').unwrap().0.parse().unwrap(), trusted: daemon.folder().join(trusted) }
    }

    fn command(&self, token: Option<&str>, path: &str, arguments: &[&str]) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "60", "--write-out", "\n%{http_code}", "--cacert"]);
        curl.arg(&self.trusted).args(arguments);
        if let Some(token) = token {
            curl.arg("--header").arg(format!("Authorization: Bearer {token}"));
        }
        curl.arg(format!("https://127.0.0.1:{}{path}", self.port));
        curl
    }

    fn run(&self, token: Option<&str>, path: &str, arguments: &[&str]) -> Output {
        self.command(token, path, arguments).output().unwrap()
    }

    /// Status and body of an answer.
    #[track_caller]
    fn ask(&self, token: Option<&str>, path: &str, arguments: &[&str]) -> (u16, String) {
        let output = self.run(token, path, arguments);
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.into())
    }

    #[track_caller]
    fn status(&self, token: Option<&str>, path: &str, arguments: &[&str]) -> u16 {
        self.ask(token, path, arguments).0
    }

    /// Whether it is answered with this status. A change of tokens may end its connection first.
    fn gets(&self, token: &str, status: u16) -> bool {
        let output = self.run(Some(token), "/", &[]);
        output.status.success() && output.stdout.ends_with(format!("\n{status}").as_bytes())
    }

    /// Whether it trusts the daemon's certificate.
    fn trusts(&self) -> bool {
        self.run(None, "/healthz", &[]).status.success()
    }
}

#[track_caller]
fn wait(what: &str, daemon: &Daemon, is: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "waited in vain until {what}:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn other_hosts_read_by_tls_with_a_token_and_operators_change() {
    if !has_curl() {
        return;
    }
    let daemon = started(folder());
    let curl = Curl::new(&daemon, "trusted.pem");
    // Without a token there are probes alone.
    assert_eq!(curl.ask(None, "/healthz", &[]), (200, "alive\n".into()));
    for path in ["/", "/metrics", "/page/events", "/v1/status"] {
        assert_eq!(curl.status(None, path, &[]), 401, "{path}");
        assert_eq!(curl.status(Some(BOB), path, &[]), 401, "{path}");
    }
    assert_eq!(curl.status(None, "/v1/shutdown", &["--request", "POST"]), 401);
    // A reader reads.
    assert!(curl.ask(Some(READER), "/", &[]).1.contains("<title>sluiced</title>"));
    assert!(curl.ask(Some(READER), "/metrics", &[]).1.contains("sluice_nf_rx_packets_total{"));
    assert!(curl.ask(Some(READER), "/v1/rules", &[]).1.contains("\"web\""));
    assert_eq!(curl.status(None, "/", &["--user", &format!("any:{READER}")]), 200, "as a browser sends it");
    assert_eq!(curl.status(Some(READER), "/", &["--header", "Host: nfv.example"]), 200, "any name may lead there");
    for (method, path) in [("POST", "/v1/shutdown"), ("DELETE", "/v1/rules/web"), ("POST", "/v1/flows"), ("PUT", "/v1/placement")] {
        let (status, said) = curl.ask(Some(READER), path, &["--request", method]);
        assert!(status == 403 && said.contains("needs a token of page.operators"), "{method} {path}: {status} {said}");
    }
    // An operator changes, but not for a page of a browser.
    let of_browser = curl.ask(Some(ALICE), "/v1/rules/web", &["--request", "DELETE", "--header", "Origin: https://evil.example"]);
    assert_eq!(of_browser.0, 403, "{}", of_browser.1);
    assert_eq!(daemon.client().stats().unwrap().rules.len(), 1);
    assert_eq!(curl.status(Some(ALICE), "/v1/rules/web", &["--request", "DELETE"]), 200);
    assert_eq!(daemon.client().stats().unwrap().rules.len(), 0);
    assert_eq!(curl.status(Some(ALICE), "/metrics", &[]), 200);
    let log = daemon.log();
    assert!(log.contains("alice, by a token of page.operators: DELETE /v1/rules/web"), "{log}");
    assert!([READER, ALICE].iter().all(|token| !log.contains(token)), "{log}");
    daemon.stop();
}

#[test]
fn what_is_no_tls_or_not_trusted_gets_nothing() {
    if !has_curl() {
        return;
    }
    let (mine, others) = (folder(), folder());
    std::fs::copy(others.path().join("trusted.pem"), mine.path().join("other.pem")).unwrap();
    let daemon = started(mine);
    let curl = Curl::new(&daemon, "trusted.pem");
    assert!(curl.trusts() && !Curl::new(&daemon, "other.pem").trusts());
    assert!(!curl.run(Some(READER), "/", &["--tls-max", "1.2"]).status.success(), "TLS 1.2");
    let mut stream = TcpStream::connect(("127.0.0.1", curl.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {READER}\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // It may be reset, too.
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.windows(4).any(|word| word == b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    // One that never speaks holds up nobody.
    let _silent = TcpStream::connect(("127.0.0.1", curl.port)).unwrap();
    assert!(curl.trusts());
    daemon.stop();
}

#[test]
fn certificates_and_tokens_are_read_again() {
    if !has_curl() {
        return;
    }
    let daemon = started(folder());
    let folder = daemon.folder();
    let curl = Curl::new(&daemon, "trusted.pem");
    assert!(curl.trusts());
    put(folder, "certificate.pem", "-----BEGIN CERTIFICATE-----\nhalf");
    daemon.wait_for_log("is cut short; copy it again; until then the former certificate stays in use");
    assert!(curl.trusts(), "the former stays");
    certify(folder, "renewed.pem");
    let renewed = Curl::new(&daemon, "renewed.pem");
    wait("the renewed certificate is in use", &daemon, || renewed.trusts());
    assert!(!curl.trusts());
    // Another token: what has the former one ends, streams that are open too.
    let mut stream = renewed.command(Some(READER), "/page/events", &["--no-buffer"]);
    let mut stream = stream.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut events = BufReader::new(stream.stdout.take().unwrap()).lines();
    assert_eq!(events.next().unwrap().unwrap(), "event: full");
    put(folder, "reader.token", &format!("{BOB}\n"));
    wait("the other token is good", &daemon, || renewed.gets(BOB, 200));
    assert_eq!(renewed.status(Some(READER), "/", &[]), 401);
    events.for_each(drop);
    let code = stream.wait().unwrap().code();
    assert!(code.is_some_and(|code| code != 0 && code != TIMED_OUT), "curl ended with {code:?}");
    // None.
    std::fs::remove_file(folder.join("alice.token")).unwrap();
    daemon.wait_for_log("until then this token is refused");
    wait("the token that is gone is refused", &daemon, || renewed.gets(ALICE, 401));
    assert_eq!(renewed.status(Some(BOB), "/", &[]), 200);
    daemon.stop();
}

#[test]
fn bad_files_are_refused_by_check_and_at_the_start() {
    let folder = folder();
    let good = config(folder.path(), &keys());
    let stranger = KeyPair::generate().unwrap().serialize_pem();
    let file = folder.path().join("sluice.toml");
    std::fs::write(&file, &good).unwrap();
    let check = || Command::new(sluice()).arg("check").arg(&file).output().unwrap();
    assert!(check().status.success(), "{:?}", check());
    for (name, text, mode, words) in [
        ("certificate.pem", "no certificate", 0o600, "certificate.pem, the certificate of the page, has no certificate"),
        ("key.pem", "no key", 0o600, "key.pem, the key of the page, has no private key"),
        ("key.pem", stranger.as_str(), 0o600, "key.pem, the key of the page, is not that of the first certificate in "),
        ("key.pem", stranger.as_str(), 0o644, "other users may read or write "),
        ("reader.token", "short", 0o600, "reader.token, a token of the page, needs to be one line of 16 to 256 letters"),
        ("alice.token", READER, 0o600, "alice.token, a token of the page, is another one's too"),
    ] {
        let before = std::fs::read(folder.path().join(name)).unwrap();
        put(folder.path(), name, text);
        std::fs::set_permissions(folder.path().join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        for output in [check(), refusal(folder.path(), &good)] {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && said.contains(words) && said.contains(name), "{name}: {said}");
            assert!(said.contains("sluice.toml:"), "its line is named: {said}");
        }
        assert!(!folder.path().join("run").exists(), "the runtime folder was made");
        put(folder.path(), name, std::str::from_utf8(&before).unwrap());
    }
    // One that has no token is not for other hosts.
    let without = keys().replace("token = \"reader.token\"\noperators = { alice = \"alice.token\" }\n", "");
    let output = refusal(folder.path(), &config(folder.path(), &without));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("there is no token"), "{said}");
}
