//! A client of the control API, as small as an experiment needs: one request a connection, blocking, no dependency on the daemon.
//!
//! Limits: answers have a `content-length` or end with the connection; chunked ones are refused.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

/// How long a call may take: stopping an NF waits until its packets have gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks the daemon at `socket`, and gives back the answer's JSON.
///
/// # Errors
/// Nobody answers, or the daemon refuses; with its own words.
pub fn ask(socket: &Path, method: &str, address: &str, body: Option<&Value>) -> anyhow::Result<Value> {
    let (status, json) = call(socket, method, address, body)?;
    if !(200..300).contains(&status) {
        bail!("sluiced answers {status} to {method} {address}: {}", json["error"].as_str().unwrap_or("no reason given"));
    }
    Ok(json)
}

/// The same, and a refusal is an answer like any other: the status, and the JSON that came with it.
///
/// # Errors
/// No answer comes, or one that is no HTTP.
pub fn call(socket: &Path, method: &str, address: &str, body: Option<&Value>) -> anyhow::Result<(u16, Value)> {
    let talk = || -> anyhow::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} {address} HTTP/1.1\r\nhost: sluice\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = talk().with_context(|| format!("cannot ask sluiced at {} for {method} {address}", socket.display()))?;
    let (status, body) = parse(&answer).with_context(|| format!("cannot understand the answer to {method} {address}"))?;
    Ok((status, serde_json::from_slice(body).unwrap_or(Value::Null)))
}

/// Status and body of an answer.
fn parse(answer: &[u8]) -> anyhow::Result<(u16, &[u8])> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").context("it has no end of headers")?;
    let head = std::str::from_utf8(&answer[..end]).context("its headers are no text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).context("it has no status")?;
    let mut body = &answer[end + 4..];
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("transfer-encoding") {
            bail!("it comes in pieces (transfer-encoding: {})", value.trim());
        }
        if name.eq_ignore_ascii_case("content-length") {
            let length: usize = value.trim().parse().context("its length is no number")?;
            body = body.get(..length).context("it was cut short")?;
        }
    }
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_apart() {
        let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nserver: x\r\n\r\n{}left over";
        assert_eq!(parse(answer).unwrap(), (404, &b"{}"[..]));
        assert_eq!(parse(b"HTTP/1.0 200 OK\r\n\r\n[1]").unwrap(), (200, &b"[1]"[..]));
    }

    #[test]
    fn a_broken_answer_is_refused() {
        for (answer, why) in [
            (&b""[..], "end of headers"),
            (b"hello\r\n\r\n", "status"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", "cut short"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n{}", "no number"),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "in pieces"),
        ] {
            assert!(parse(answer).unwrap_err().to_string().contains(why));
        }
    }

    #[test]
    fn nobody_there_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let error = ask(&folder.path().join("none.sock"), "GET", "/v1/stats", None).unwrap_err();
        assert!(error.to_string().starts_with("cannot ask sluiced at "));
    }
}
