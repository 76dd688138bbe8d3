//! The web page as a plain client of HTTP sees it, at the listener and at the control socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::support::{Daemon, PATIENCE, chain, head, nf, open_folder, port, refusal, service};

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
