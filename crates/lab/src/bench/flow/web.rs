//! A web server and clients around a chain: real HTTP, for experiments with pools.
//!
//! ```text
//! wrk ── inside ── veth ──► sluiced: there ──► veth ── outside ── nginx
//!                       ◄── back ◄──
//! ```
//! Both directions pass the service `nf`. Manager, clients and server run on the manager's core and
//! on spare cores; all NFs share one core. A packet costs an NF so much that this core is the
//! bottleneck.
//!
//! # Limits
//! Needs root, nginx and wrk. wrk opens a connection per request if configured
//! (`Connection: close`), and has one request at a time on each connection.

use sluice_api::model::NfState;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::bench::lab::{Lab, Miss};
use crate::bench::measure::{Reading, Sample};
use crate::bench::sched::COST;
use crate::bench::sched::netns::{self, INSIDE, OUTSIDE, Running, SECOND, Wires, call};
use crate::bench::setup::Setup;

/// Time limit of each action besides the measured time.
const PATIENCE: Duration = Duration::from_secs(15);
const PORT: u16 = 80;

pub const SERVICE: &str = "nf";

/// Addresses of each tenant's clients and of their server.
pub const TENANTS: [(&str, &str); 2] = [(INSIDE, OUTSIDE), (SECOND[0], SECOND[1])];

/// Why the experiments cannot run here, if so.
pub fn missing() -> Option<String> {
    let there = |program: &str, args: &[&str]| {
        Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).status().is_ok()
    };
    let programs = [("nginx", "nginx-light"), ("wrk", "wrk")];
    let absent = programs.iter().find(|(program, _)| !there(program, &["-v"]));
    netns::missing_without(&["iperf3"])
        .or_else(|| absent.map(|(program, package)| format!("there is no {program} here; install {package}")))
}

/// A pool for the service.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Unit of assignment: the pool's `per`.
    pub per: &'static str,
    /// Number of NFs.
    pub nfs: u32,
    /// Cycles per packet.
    pub cycles: u64,
}

/// The configuration: ports, chains and rules between both wires, the pool, and `more`.
///
/// `rule` has additions to the rule of each tenant's clients.
pub fn setup(lab: &Lab, wires: &Wires, pool: &Pool, rule: [&str; 2], more: &str) -> Setup {
    let core = lab.cores.shared();
    let mut text = String::from(more);
    for (name, host) in ["inside", "outside"].iter().zip(wires.hosts()) {
        let _ = write!(text, "[[port]]\nname = \"{name}\"\nkind = \"af_packet\"\ninterface = \"{host}\"\n");
    }
    let Pool { per, nfs, cycles } = pool;
    let _ = write!(
        text,
        "[[service]]\nname = \"{SERVICE}\"\nexec = \"{COST}\"\nargs = [\"--cycles\", \"{cycles}\"]\ncores = [{core}]\nzygote = true\n\
         per = \"{per}\"\n[service.pool]\nmin = {nfs}\nmax = {nfs}\nring = 128\nlinger_ms = 100\nhalf_open_ms = 1000\n\
         [[chain]]\nname = \"there\"\nservices = [\"{SERVICE}\"]\negress = \"outside\"\n\
         [[chain]]\nname = \"back\"\nservices = [\"{SERVICE}\"]\negress = \"inside\"\n"
    );
    for ((client, server), rule) in TENANTS.iter().zip(rule) {
        let _ = write!(
            text,
            "[[rule]]\nport = \"inside\"\nsrc = \"{client}/32\"\nchain = \"there\"\n{rule}\n\
             [[rule]]\nport = \"outside\"\nsrc = \"{server}/32\"\nchain = \"back\"\n{rule}\n"
        );
    }
    // Other traffic of a namespace bypasses the NFs.
    for (from, chain) in [("inside", "past-there"), ("outside", "past-back")] {
        let to = if from == "inside" { "outside" } else { "inside" };
        let _ =
            write!(text, "[[chain]]\nname = \"{chain}\"\negress = \"{to}\"\n[[rule]]\nport = \"{from}\"\nchain = \"{chain}\"\n");
    }
    Setup { manager_core: lab.manager_core, frames: 32_768, more: text, ..Setup::default() }
}

/// nginx in the outer namespace; stopped on drop.
pub struct WebServer {
    child: Child,
    folder: tempfile::TempDir,
}

impl WebServer {
    /// Starts a server whose answers have this many bytes.
    pub fn start(lab: &Lab, wires: &Wires, bytes: usize) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("sluice-bench-web-")
            .permissions(crate::bench::daemon::open_to_nfs())
            .tempdir()
            .context("cannot make a temporary folder")?;
        let at = folder.path();
        std::fs::write(at.join("file"), vec![b'x'; bytes])?;
        std::fs::write(at.join("nginx.conf"), config(at))?;
        let cores = ends(lab);
        let child = Command::new("taskset")
            .args(["-c", &cores, "ip", "netns", "exec", wires.namespaces()[1], "nginx", "-e"])
            .arg(at.join("error.log"))
            .arg("-c")
            .arg(at.join("nginx.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run taskset; install util-linux")?;
        let mut server = Self { child, folder };
        let began = Instant::now();
        while !netns::listens(server.child.id(), PORT) {
            let said = || std::fs::read_to_string(server.folder.path().join("error.log")).unwrap_or_default();
            if let Some(status) = server.child.try_wait()? {
                anyhow::bail!("nginx ended at once ({status}): {}", said());
            }
            ensure!(began.elapsed() < PATIENCE, "nginx does not listen after {PATIENCE:?}: {}", said());
            lab.programs.pause(Duration::from_millis(5))?;
        }
        Ok(server)
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        // On SIGTERM the master ends its workers; if killed, it would leave them behind.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

fn config(folder: &Path) -> String {
    let at = folder.display();
    format!(
        "daemon off; user root; worker_processes 1; pid {at}/pid;\nevents {{ worker_connections 2048; }}\n\
         http {{ access_log off; keepalive_requests 1000000; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;\n\
         fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\n\
         server {{ listen {PORT} backlog=4096; root {at}; }} }}\n"
    )
}

/// Cores of clients and server: all but the NFs' core.
fn ends(lab: &Lab) -> String {
    let mut cores = lab.cores.besides_manager();
    cores.retain(|core| *core != lab.cores.shared());
    cores.push(lab.manager_core);
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Waits until all NFs of the pool run.
pub fn wait_for_nfs(lab: &Lab, daemon: &crate::bench::daemon::Daemon, nfs: u32) -> anyhow::Result<()> {
    daemon.wait_for("all NFs run", PATIENCE, |daemon| {
        let running = daemon.stats()?.nfs.iter().filter(|nf| nf.state == NfState::Running).count();
        Ok((running == nfs as usize).then_some(()))
    })?;
    lab.warm_up()
}

/// Load of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Concurrent requests.
    pub at_once: u32,
    /// Whether each request has a connection of its own.
    pub close: bool,
}

/// Results of a client.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Served {
    /// Answered requests per second.
    pub per_s: f64,
    /// 99th percentile of the response time, in nanoseconds.
    pub p99_ns: f64,
    /// Requests without an answer.
    pub failed: f64,
}

/// Runs clients of these tenants for the requested time. Returns what each of them got, and
/// out-of-order segments per second at either end.
///
/// # Errors
/// A client fails, or the experiment was interrupted.
pub fn request(lab: &Lab, wires: &Wires, tenants: &[(&str, &str)], load: Load) -> anyhow::Result<(Vec<Served>, f64)> {
    let seconds = lab.args.seconds.ceil().max(1.0);
    let client = |server: &str| -> anyhow::Result<Running> {
        let mut command = Command::new("taskset");
        command.args(["-c", &ends(lab), "ip", "netns", "exec", wires.namespaces()[0], "wrk", "--latency"]);
        command.args(["-t", "1", "-c", &load.at_once.to_string(), "-d", &format!("{seconds}s"), "--timeout", "5s"]);
        if load.close {
            command.args(["-H", "Connection: close"]);
        }
        let child = command.arg(format!("http://{server}:{PORT}/file")).stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(Running(child.stderr(Stdio::null()).spawn().context("cannot run taskset; install util-linux")?))
    };
    let disorder_before = disorder(wires)?;
    let clients = tenants.iter().map(|(_, server)| client(server)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut served = Vec::new();
    for client in clients {
        let said = client.text(&lab.programs, Duration::from_secs_f64(seconds) + PATIENCE)?;
        let said = said.context("wrk did not end in time")?;
        served.push(parse(&said).with_context(|| format!("cannot understand what wrk says: {said}"))?);
    }
    let disorder = disorder(wires)? - disorder_before;
    Ok((served, disorder as f64 / seconds))
}

/// As [`request`], with all counters before and after.
///
/// # Errors
/// A client fails, or the experiment was interrupted.
pub fn ask(
    lab: &Lab,
    wires: &Wires,
    daemon: &crate::bench::daemon::Daemon,
    tenants: &[(&str, &str)],
    load: Load,
) -> Result<WebResults, Miss> {
    let before = lab.read(daemon)?;
    let (served, disorder) = request(lab, wires, tenants, load)?;
    let after = lab.read(daemon)?;
    Ok(WebResults { served, disorder, sample: nfs(&before, &after) })
}

/// Results of a measurement.
pub struct WebResults {
    /// By tenant.
    pub served: Vec<Served>,
    /// Out-of-order segments per second, at either end.
    pub disorder: f64,
    /// What the NFs did.
    pub sample: Sample,
}

/// CPU time of all NFs, their context switches, and how many of them run or wait for the core.
fn nfs(before: &Reading, after: &Reading) -> Sample {
    let seconds = after.tasks.seconds_since(&before.tasks);
    let tasks = after.stats.nfs.iter().filter_map(|nf| after.tasks.since(&before.tasks, &nf.name));
    let (mut run_ns, mut wait_ns, mut switches) = (0u64, 0u64, 0u64);
    for task in tasks {
        run_ns += task.run_ns;
        wait_ns += task.wait_ns;
        switches += task.voluntary + task.involuntary;
    }
    let count = |of: &Reading| of.stats.nfs.iter().map(|nf| nf.tx_packets).sum::<u64>();
    Sample::from([
        ("nf_core_percent".into(), run_ns as f64 / 1e7 / seconds),
        ("runnable_nfs".into(), (run_ns + wait_ns) as f64 / 1e9 / seconds),
        ("switches_per_s".into(), switches as f64 / seconds),
        ("processed_pps".into(), count(after).saturating_sub(count(before)) as f64 / seconds),
    ])
}

/// Total of out-of-order segments at both ends, which the kernel had to queue.
fn disorder(wires: &Wires) -> anyhow::Result<u64> {
    let mut sum = 0;
    for namespace in wires.namespaces() {
        let counters = call("ip", &["netns", "exec", namespace, "cat", "/proc/net/netstat"])?;
        sum += netns::counter(&counters, "TcpExt:", "TCPOFOQueue").context("the kernel does not count what is out of order")?;
    }
    Ok(sum)
}

/// Parses the output of wrk.
fn parse(text: &str) -> anyhow::Result<Served> {
    let after = |word: &str| text.lines().find_map(|line| line.trim().strip_prefix(word)).map(str::trim);
    let per_s = after("Requests/sec:").and_then(|number| number.parse().ok()).context("it names no rate")?;
    let p99_ns = after("99%").and_then(time_ns).unwrap_or(f64::NAN);
    // Format: "Socket errors: connect 0, read 12, write 0, timeout 3".
    let errors = after("Socket errors:").unwrap_or("");
    let failed = errors.split(',').filter_map(|part| part.split_whitespace().last()?.parse::<f64>().ok()).sum();
    Ok(Served { per_s, p99_ns, failed })
}

/// Parses a time as wrk writes it: 1.25ms, 300.00us, 2.00s.
fn time_ns(text: &str) -> Option<f64> {
    let units = [("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9)];
    units.iter().find_map(|(unit, ns)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Running 2s test @ http://10.99.0.2:80/file\n  1 threads and 32 connections\n  \
        Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency    12.53ms    3.28ms  40.10ms   72.00%\n  \
        Latency Distribution\n     50%   11.90ms\n     75%   14.00ms\n     90%   16.96ms\n     99%   24.31ms\n  \
        5028 requests in 2.00s, 1.20MB read\n  Socket errors: connect 0, read 5, write 0, timeout 2\nRequests/sec:   2513.77\n\
        Transfer/sec:    613.72KB\n";

    #[test]
    fn what_wrk_says_is_understood() {
        let served = parse(SAID).unwrap();
        assert_eq!((served.per_s, served.failed), (2513.77, 7.0));
        assert!((served.p99_ns - 24.31e6).abs() < 1.0);
        assert!(parse("unable to connect").is_err());
        assert_eq!([time_ns("300.00us"), time_ns("2.00s"), time_ns("soon")], [Some(300e3), Some(2e9), None]);
    }

    #[test]
    fn the_server_writes_nowhere_but_in_its_folder() {
        let text = config(Path::new("/tmp/x"));
        assert_eq!(text.matches("/tmp/x").count(), 7, "{text}");
    }
}
