//! A web server and its clients: nginx in one namespace, wrk in another.
//!
//! Each request is a connection of its own, so that flows come and go. Both programs are run by
//! name, and write only into a folder of the experiment, which is removed at the end.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::bench::daemon::Programs;
use crate::bench::sched::netns::{OUTSIDE, Running, Side, Wires, listens};

const PORT: u16 = 8080;
/// Bytes of an answer, without its head.
const BODY: usize = 1024;
const PATIENCE: Duration = Duration::from_secs(15);

/// Why the web server cannot run here, if so.
pub fn missing() -> Option<String> {
    let there = |program: &str| {
        Command::new(program).arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).status().is_ok()
    };
    let absent = [("nginx", "nginx-light"), ("wrk", "wrk")].into_iter().find(|(program, _)| !there(program))?;
    Some(format!("there is no {} here; install {}", absent.0, absent.1))
}

/// Results of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Answers {
    /// Answered requests per second.
    pub requests_per_s: f64,
    /// Median response time, in nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile of the response time, in nanoseconds.
    pub p99_ns: f64,
    /// Connections and answers that failed or timed out.
    pub errors: f64,
}

/// A server that ends with its owner, and its folder.
pub struct WebServer {
    _nginx: Running,
    _folder: tempfile::TempDir,
}

fn conf(folder: &Path) -> String {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {}/{kind};\n", folder.display()))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid {}/pid;\nerror_log stderr crit;\nevents {{ worker_connections 4096; }}\n\
         http {{\naccess_log off;\nkeepalive_timeout 0;\n{temporary}\
         server {{ listen {PORT} backlog=1024; location / {{ default_type text/plain; return 200 \"{}\"; }} }}\n}}\n",
        folder.display(),
        "x".repeat(BODY)
    )
}

impl WebServer {
    /// Starts it in the outer namespace, on `cores`, and waits until it listens.
    pub fn start(wires: &Wires, programs: &Programs, cores: &[usize]) -> anyhow::Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("sluice-bench-web-").permissions(crate::bench::daemon::open_to_nfs()).tempdir()?;
        let path = folder.path().join("nginx.conf");
        std::fs::write(&path, conf(folder.path()))?;
        let (prefix, conf) = (folder.path().display().to_string(), path.display().to_string());
        let mut nginx = wires.spawn(Side::Outside, cores, &["nginx", "-p", &prefix, "-c", &conf, "-e", "stderr"])?;
        let began = Instant::now();
        while !listens(nginx.id(), PORT) {
            if let Some(status) = nginx.ended()? {
                anyhow::bail!("nginx ended at once ({status})");
            }
            ensure!(began.elapsed() < PATIENCE, "nginx does not listen after {PATIENCE:?}");
            programs.pause(Duration::from_millis(5))?;
        }
        Ok(Self { _nginx: nginx, _folder: folder })
    }
}

/// Clients in the inner namespace.
pub struct Clients(Running, Duration);

impl Clients {
    /// Starts clients, each of which sends one request after another for `seconds`.
    pub fn start(wires: &Wires, cores: &[usize], clients: u32, seconds: f64) -> anyhow::Result<Self> {
        let seconds = seconds.ceil().max(1.0);
        let (address, clients) = (format!("http://{OUTSIDE}:{PORT}/"), clients.to_string());
        let time = format!("{seconds}s");
        let args = ["wrk", "-t", "1", "-c", &clients, "-d", &time, "--latency", "-H", "Connection: close", &address];
        Ok(Self(wires.spawn(Side::Inside, cores, &args)?, Duration::from_secs_f64(seconds) + PATIENCE))
    }

    /// Waits for their end.
    pub fn answers(self, programs: &Programs) -> anyhow::Result<Answers> {
        let said = self.0.text(programs, self.1)?.context("wrk does not end")?;
        answers(&said).with_context(|| format!("wrk's answer is not understood: {said}"))
    }
}

/// Parses wrk's output: "Requests/sec:  812.50", "  99%    4.52ms" and, if any, "Socket errors:
/// connect 0, read 12, …".
fn answers(said: &str) -> Option<Answers> {
    let after = |word: &str| said.lines().find_map(|line| line.trim().strip_prefix(word)).map(str::trim);
    let errors = after("Socket errors:")
        .map_or(Some(0.0), |words| words.split(',').map(|word| word.split_ascii_whitespace().last()?.parse::<f64>().ok()).sum());
    Some(Answers {
        requests_per_s: after("Requests/sec:")?.parse().ok()?,
        p50_ns: time(after("50%")?)?,
        p99_ns: time(after("99%")?)?,
        errors: errors?,
    })
}

/// A time with its unit, in nanoseconds.
fn time(text: &str) -> Option<f64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let unit = match &text[at..] {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        _ => return None,
    };
    Some(text[..at].parse::<f64>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Running 2s test @ http://10.99.0.2:8080/\n  1 threads and 16 connections\n  Thread Stats   Avg  \n\
        \x20 Latency Distribution\n     50%  812.00us\n     75%    1.20ms\n     90%    2.00ms\n     99%    4.52ms\n\
        \x20 1625 requests in 2.00s, 1.9MB read\n  Socket errors: connect 0, read 12, write 0, timeout 3\n\
        Requests/sec:    812.50\nTransfer/sec:      0.97MB\n";

    #[test]
    fn what_wrk_says_is_understood() {
        let all = answers(SAID).unwrap();
        assert_eq!(all, Answers { requests_per_s: 812.5, p50_ns: 812e3, p99_ns: 4.52e6, errors: 15.0 });
        let without = SAID.replace("Socket errors", "no errors");
        assert_eq!(answers(&without).unwrap().errors, 0.0);
        assert_eq!(answers("unable to connect"), None);
        assert_eq!((time("1.5s"), time("2.00m"), time("x"), time("3.0h")), (Some(1.5e9), Some(120e9), None, None));
    }

    #[test]
    fn a_server_writes_into_its_folder_alone() {
        let conf = conf(Path::new("/tmp/here"));
        assert_eq!(conf.matches("/tmp/here/").count(), 6);
        assert!(conf.contains("listen 8080") && conf.contains("daemon off"));
    }
}
