//! The web page as a plain client of HTTP sees it, at the listener and at the control socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;

use serde_json::Value;
use sluice_api::model::{FlowReport, FlowsReply, WhyReply};

use crate::support::{Daemon, PATIENCE, chain, head, nf, open_folder, port, refusal, service, sluice};

/// A chain of a bridge, behind the keys of `[page]`.
fn body(page: &str) -> String {
    format!("[page]\n{page}\n")
        + &port("in", "gen", "rate = 5000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("fw", &nf("sluice-nf-bridge"), "")
        + &chain("web", "in", &["fw"], "out", "")
}

/// The address of the listener, as the log names it.
fn address(daemon: &Daemon) -> SocketAddr {
    let log = daemon.log();
    let (_, rest) = log.split_once("the page is at http://").expect("the log names the address");
    rest.split_once('/').unwrap().0.parse().unwrap()
}

fn request(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n")
}

fn answer(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(at: SocketAddr, path: &str, headers: &str) -> String {
    answer(connected(at), &request("GET", path, headers))
}

fn connected(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The events of a stream, each with its kind: the lines of its chunks are those of the events.
fn events(mut stream: impl Read + Write, path: &str) -> impl Iterator<Item = (String, Value)> {
    stream.write_all(request("GET", path, "Accept: text/event-stream\r\n").as_bytes()).unwrap();
    let mut kind = String::new();
    BufReader::new(stream).lines().map_while(Result::ok).filter_map(move |line| {
        if let Some(name) = line.strip_prefix("event: ") {
            kind = name.into();
        }
        Some((kind.clone(), serde_json::from_str(line.strip_prefix("data: ")?).unwrap()))
    })
}

/// Follows a stream until an NF's packets per second are above 0.
#[track_caller]
fn follow(mut events: impl Iterator<Item = (String, Value)>) {
    let (kind, whole) = events.next().expect("the whole state comes first");
    assert_eq!(kind, "full", "{whole}");
    let nfs = &whole["tables"]["nf"];
    let column = nfs["columns"].as_array().unwrap().iter().position(|name| name == "rx_pps").unwrap();
    assert!(nfs["rows"]["fw.0"].is_array() && whole["tables"]["chain"]["rows"]["web"].is_array(), "{whole}");
    let mut tick = whole["tick"].as_u64();
    let mut rate = nfs["rows"]["fw.0"][column].clone();
    while !rate.as_f64().is_some_and(|rate| rate > 0.0) {
        let (kind, next) = events.next().expect("the stream goes on");
        let nfs = &next["tables"]["nf"];
        // A reader that was too slow is sent the whole state again.
        let now = if kind == "full" { &nfs["rows"]["fw.0"][column] } else { &nfs["change"]["fw.0"][column.to_string()] };
        assert!(kind == "full" || next["tick"].as_u64() == tick.map(|tick| tick + 1), "{next}");
        tick = next["tick"].as_u64();
        if !now.is_null() {
            rate = now.clone();
        }
    }
}

#[test]
fn a_browser_a_scraper_and_a_probe_are_answered() {
    let mut daemon = Daemon::start("", &body("listen = \"127.0.0.1:0\""));
    daemon.wait("packets flow", |stats| stats.chains[0].exit_packets > 0);
    let at = address(&daemon);
    let page = get(at, "/", "");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("content-security-policy: default-src 'none'"), "{page}");
    assert!(get(at, "/page.js", "").contains("new EventSource(\"page/events\")"));
    follow(events(connected(at), "/page/events"));
    let metrics = get(at, "/metrics", "");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    assert!(metrics.contains("sluice_nf_rx_packets_total{nf=\"fw.0\",service=\"fw\"} "), "{metrics}");
    assert!(get(at, "/healthz", "").ends_with("alive\n"));
    assert!(get(at, "/readyz", "").ends_with("ready\n"));
    // The API is not there: the listener only shows.
    assert!(get(at, "/v1/status", "").starts_with("HTTP/1.1 404 "));
    let elsewhere = answer(connected(at), "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert!(elsewhere.starts_with("HTTP/1.1 403 "), "{elsewhere}");
    daemon.stop();
}

#[test]
fn a_scraper_of_openmetrics_gets_a_flow_for_a_slow_packet() {
    let files = open_folder();
    let log = files.path().join("flows.json");
    let body = format!("[flow_log]\nfile = {log:?}\nidle_ms = 100\n[page]\nlisten = \"127.0.0.1:0\"\n")
        + &port("in", "gen", "rate = 5000\ncount = 2000\nflows = 7\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("fw", &nf("sluice-nf-bridge"), "")
        + &chain("web", "in", &["fw"], "out", "");
    let mut daemon = Daemon::start("latency_sample = 1", &body);
    daemon.wait("all flows have ended, and one was slow", |stats| {
        let is_over = stats.status.flow_log.as_ref().is_some_and(|log| log.ended >= 7 && log.live == 0);
        is_over && stats.ports[0].finished && !stats.chains[0].exemplars.is_empty()
    });
    let answer = get(address(&daemon), "/metrics", "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n");
    assert!(
        answer.contains("content-type: application/openmetrics-text; version=1.0.0") && answer.ends_with("# EOF\n"),
        "{answer}"
    );
    let found: Vec<(&str, &str)> = answer.lines().filter_map(|line| line.split_once(" # {flow=\"")).collect();
    let (_, exemplar) = found.first().expect("a bucket has one");
    let (number, _) = exemplar.split_once('"').unwrap();
    let mut command = Command::new(sluice());
    command.arg("--socket").arg(daemon.run_dir().join("control.sock")).args(["flows", "--json", "--number", number]);
    let output = command.output().unwrap();
    let reply: FlowsReply = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(reply.flows.iter().map(|flow| flow.number).collect::<Vec<_>>(), [number.parse().ok()]);
    let why: WhyReply = serde_json::from_str(&daemon.says(&["why", "--flow", number, "--json"])).unwrap();
    assert_eq!((why.port.as_str(), why.chain.as_deref()), ("in", Some("web")), "{why:?}");
    let none = Command::new(sluice())
        .arg("--socket")
        .arg(daemon.run_dir().join("control.sock"))
        .args(["flows", "--number", "1000000"])
        .output()
        .unwrap();
    assert!(!none.status.success() && String::from_utf8_lossy(&none.stderr).contains("flow 1000000 has not ended"), "{none:?}");
    daemon.stop();
    let lines = std::fs::read_to_string(&log).unwrap();
    let logged: Vec<FlowReport> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (sample, exemplar) in found {
        let (bucket, count) = sample.rsplit_once(' ').unwrap();
        assert!(bucket.starts_with("sluice_chain_latency_seconds_bucket{chain=\"web\",le=\"") && count != "0", "{sample}");
        let (number, rest) = exemplar.split_once("\"} ").unwrap();
        let (seconds, _) = rest.split_once(' ').unwrap();
        let flow = logged.iter().find(|flow| flow.number == number.parse().ok()).unwrap_or_else(|| panic!("{number}: {lines}"));
        let longest = flow.longest_latency_ns.expect("it was timed") as f64 / 1e9;
        assert_eq!((flow.chain.as_deref(), seconds.parse::<f64>().unwrap()), (Some("web"), longest));
    }
}

#[test]
fn the_control_socket_has_the_page_and_refuses_changes_of_browsers() {
    let daemon = Daemon::start("", &body(""));
    assert!(!daemon.log().contains("the page is at"));
    let socket = || {
        let stream = UnixStream::connect(daemon.run_dir().join("control.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    assert!(answer(socket(), &request("GET", "/", "")).contains("<title>sluiced</title>"));
    follow(events(socket(), "/page/events"));
    let stop = request("POST", "/v1/shutdown", "Origin: http://localhost\r\n");
    assert!(answer(socket(), &stop).starts_with("HTTP/1.1 403 "));
    assert!(answer(socket(), &request("GET", "/v1/status", "Origin: http://localhost\r\n")).starts_with("HTTP/1.1 200 "));
    daemon.stop();
}

#[test]
fn a_stop_ends_the_streams_and_the_listener() {
    let daemon = Daemon::start("", &body("listen = \"127.0.0.1:0\""));
    let at = address(&daemon);
    let mut streams: Vec<_> = (0..3).map(|_| events(connected(at), "/page/events")).collect();
    streams.iter_mut().for_each(|events| assert_eq!(events.next().unwrap().0, "full"));
    daemon.stop();
    streams.into_iter().for_each(|events| assert!(events.last().is_none_or(|(kind, _)| kind == "delta")));
    assert!(TcpStream::connect(at).is_err());
}

#[test]
fn a_token_is_asked_for() {
    let folder = open_folder();
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    let page = body("listen = \"127.0.0.1:0\"\ntoken = \"token\"");
    // Others may read it.
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = refusal(folder.path(), &(head(folder.path(), "") + &page));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("chmod 600"), "{said}");
    assert!(!folder.path().join("run").exists(), "the runtime folder was made: {said}");
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let daemon = Daemon::again(folder);
    let at = address(&daemon);
    assert!(get(at, "/", "").starts_with("HTTP/1.1 401 "));
    assert!(get(at, "/metrics", "Authorization: Bearer no\r\n").starts_with("HTTP/1.1 401 "));
    assert!(get(at, "/metrics", "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n").starts_with("HTTP/1.1 200 "));
    assert!(get(at, "/healthz", "").starts_with("HTTP/1.1 200 "));
    daemon.stop();
}

#[test]
fn what_cannot_be_listened_at_is_refused_before_anything_starts() {
    let folder = open_folder();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    for (listen, words) in [
        ("0.0.0.0:9180".to_string(), "there is no TLS"),
        ("localhost".to_string(), "is no address with a port"),
        (at.to_string(), "give page.listen another port"),
    ] {
        let output = refusal(folder.path(), &(head(folder.path(), "") + &body(&format!("listen = {listen:?}"))));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{listen}: {said}");
        assert!(!folder.path().join("run").exists(), "the runtime folder was made: {said}");
    }
}
