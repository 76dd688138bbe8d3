//! The control API end to end: the real `sluice` and a mock daemon on a socket.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::Duration;

use sluice_api::change::{Action, CanaryRequest, Change, ChangedKey, FormerConfig, RunningConfig, SetKeys, Undo};
use sluice_api::client::{Client, ClientError};
use sluice_api::config;
use sluice_api::health::{Death, DeathCause, Health, HealthVerdict, Problem};
use sluice_api::model::*;
use sluice_api::promise::{Buffers, Placed, Promise, Promises};
use sluice_api::shadow::{DifferenceKind, ShadowCounts, ShadowDifference, ShadowReport, ShadowRequest};
use sluice_api::{ApiError, ErrorKind};
use sluice_manager::control::server::{Limits, ServeError, Server, serve, serve_with};
use sluice_manager::control::{Backend, Pieces};
use sluice_slo::assignment::Assignment;

use crate::skip::skip;

/// A daemon without packets: it keeps lists, and each read is a second later.
#[derive(Default)]
struct Mock {
    state: Mutex<State>,
    /// Traces wait until this is true.
    gate: (Mutex<bool>, Condvar),
    /// A barrier at which a trace first waits for its test.
    tracing: Option<Arc<Barrier>>,
    /// The process that a shutdown kills.
    process: Mutex<Option<Child>>,
}

#[derive(Default)]
struct State {
    seconds: u64,
    stats: Stats,
    events: Vec<Event>,
    placed: Option<Assignment>,
    down: bool,
}

impl Mock {
    fn new() -> Arc<Self> {
        let mock = Self::default();
        *mock.gate.0.lock().unwrap() = true;
        {
            let mut state = mock.state.lock().unwrap();
            let stats = &mut state.stats;
            stats.status = Status {
                version: "0.1.0".into(),
                uptime_s: 75.0,
                pid: std::process::id(),
                config: Some("/etc/sluice.toml".into()),
                cores: 2,
                threads: vec![Thread { role: "rx+tx".into(), core: 0, busy_percent: 63.0, ..Default::default() }],
                frames: Frames { total: 16_384, free: 16_000, in_use: 384 },
                memories: vec![Memory { tenant: "-".into(), frames: 16_384, free: 16_000, in_use: 384, ..Memory::default() }],
                hugepages: false,
                flows: 1_234,
                tuning_percent: 0.5,
                schedules: Vec::new(),
                openflow: None,
                flow_log: None,
                otlp: None,
                pools: Vec::new(),
                buffers: Buffers { why: Some("not known here".into()), ..Buffers::default() },
                promises: BTreeMap::new(),
                fusable: Vec::new(),
                health: Health::default(),
            };
            stats.drops = BTreeMap::from([("no_rule".into(), 5), ("ring_full".into(), 0)]);
        }
        let mock = Arc::new(mock);
        for port in ["in", "out"] {
            mock.add_port(toml::from_str(&format!("name = {port:?}\nkind = \"sink\"")).unwrap()).unwrap();
        }
        mock.add_service(toml::from_str("name = \"fw\"\nexec = \"firewall\"").unwrap()).unwrap();
        mock.add_chain(toml::from_str("name = \"web\"\nservices = [\"fw\"]\negress = \"out\"").unwrap()).unwrap();
        mock.add_rule(config::Rule { name: Some("all".into()), chain: "web".into(), ..Default::default() }, None).unwrap();
        mock
    }

    fn change<T>(&self, change: impl FnOnce(&mut Stats) -> Result<T, ApiError>) -> Result<T, ApiError> {
        let mut state = self.state.lock().unwrap();
        if state.down {
            return Err(ApiError::shutting_down());
        }
        change(&mut state.stats)
    }
}

/// Warnings of an NF on a core; core 0 has a packet thread.
fn warnings_on(core: u32) -> Vec<String> {
    if core == 0 { vec!["core 0 never sleeps; choose another core".into()] } else { Vec::new() }
}

fn take<T>(all: &mut Vec<T>, what: &str, name: &str, name_of: fn(&T) -> &str) -> Result<(), ApiError> {
    let known: Vec<&str> = all.iter().map(name_of).collect();
    let missing = ApiError::not_found(what, name, &known);
    let at = all.iter().position(|one| name_of(one) == name).ok_or(missing)?;
    all.remove(at);
    Ok(())
}

impl Backend for Mock {
    fn status(&self) -> Result<Status, ApiError> {
        self.change(|stats| Ok(stats.status.clone()))
    }

    fn stats(&self) -> Result<Stats, ApiError> {
        let mut state = self.state.lock().unwrap();
        state.seconds += 1;
        let second = state.seconds;
        state.stats.time_ns = second * 1_000_000_000;
        for nf in &mut state.stats.nfs {
            nf.rx_packets += 12_345_678;
        }
        Ok(state.stats.clone())
    }

    fn events(&self) -> Result<Vec<Event>, ApiError> {
        Ok(self.state.lock().unwrap().events.clone())
    }

    fn add_nf(&self, service: &str, core: Option<usize>) -> Result<Nf, ApiError> {
        self.change(|stats| {
            let known: Vec<&str> = stats.services.iter().map(|s| s.name.as_str()).collect();
            let missing = ApiError::not_found("service", service, &known);
            let kind = stats.services.iter_mut().find(|s| s.name == service).ok_or(missing)?;
            let nf = Nf {
                name: format!("{service}.{}", kind.instances.len()),
                service: service.into(),
                core: core.unwrap_or(1) as u32,
                mode: "sleep".into(),
                queue: 256,
                queue_capacity: 1024,
                ..Default::default()
            };
            kind.instances.push(nf.name.clone());
            stats.nfs.push(nf.clone());
            Ok(Nf { warnings: warnings_on(nf.core), ..nf })
        })
    }

    fn upgrade(&self, service: &str, to: &Upgrade) -> Result<Upgraded, ApiError> {
        self.change(|stats| {
            let known: Vec<&str> = stats.services.iter().map(|s| s.name.as_str()).collect();
            let missing = ApiError::not_found("service", service, &known);
            let kind = stats.services.iter_mut().find(|s| s.name == service).ok_or(missing)?;
            if to.exec == "/bin/true" {
                return Err(ApiError::conflict("it is no NF", "give the program of one"));
            }
            kind.exec = Some(to.exec.clone());
            let args = to.args.clone().unwrap_or_default();
            let instances = vec!["fw.1".into(), "fw.2".into()];
            Ok(Upgraded { service: service.into(), exec: to.exec.clone(), args, instances, leaving: 2 })
        })
    }

    fn canary(&self, service: &str, to: &CanaryRequest) -> Result<Upgraded, ApiError> {
        let upgraded = self.upgrade(service, &Upgrade { exec: to.exec.clone(), args: to.args.clone() })?;
        let (subject, text) = (Some(format!("service {service}")), Some(format!("upgraded to {}: fw.9", to.exec)));
        let mut state = self.state.lock().unwrap();
        let number = state.events.len() as u64 + 1;
        state.events.push(Event { number, event: EventKind::Upgrade, subject, text, count: 1, ..Event::default() });
        Ok(Upgraded { instances: vec!["fw.8".into()], ..upgraded })
    }

    fn shadow(&self, service: &str, to: &ShadowRequest) -> Result<Upgraded, ApiError> {
        let to = CanaryRequest {
            exec: to.exec.clone(),
            args: to.args.clone(),
            percent: 1,
            seconds: to.seconds,
            drops_percent: 0.0,
            burst_us: None,
        };
        self.canary(service, &to)
    }

    fn shadow_report(&self, _: &str) -> Result<ShadowReport, ApiError> {
        let difference = ShadowDifference {
            number: 5,
            kind: DifferenceKind::Bytes,
            packet: "0011".into(),
            old: "next".into(),
            new: "next".into(),
            old_bytes: "0011".into(),
            new_bytes: "00ff".into(),
        };
        Ok(ShadowReport {
            of: "fw.0".into(),
            counts: ShadowCounts { compared: 200, equal: 199, bytes: 1, missed: 3, ..ShadowCounts::default() },
            differences: vec![difference],
            ..ShadowReport::default()
        })
    }

    fn abort_canary(&self, service: &str) -> Result<(), ApiError> {
        Err(ApiError::not_found("canary", service, &[]))
    }

    fn move_nf(&self, name: &str, core: usize) -> Result<Nf, ApiError> {
        self.change(|stats| {
            let known: Vec<&str> = stats.nfs.iter().map(|nf| nf.name.as_str()).collect();
            let missing = ApiError::not_found("NF", name, &known);
            let nf = stats.nfs.iter_mut().find(|nf| nf.name == name).ok_or(missing)?;
            nf.core = core as u32;
            Ok(Nf { warnings: warnings_on(nf.core), ..nf.clone() })
        })
    }

    fn remove_nf(&self, name: &str, force: bool) -> Result<(), ApiError> {
        self.change(|stats| match name {
            "fw.0" if !force => Err(ApiError::conflict("fw.0 is the last instance of service `fw`", "give --force")),
            _ => take(&mut stats.nfs, "NF", name, |n| &n.name),
        })
    }

    fn add_service(&self, service: config::Service) -> Result<Service, ApiError> {
        self.change(|stats| {
            if stats.services.iter().any(|s| s.name == service.name) {
                return Err(ApiError::conflict(format!("service {} is there already", service.name), "remove it first"));
            }
            stats.services.push(Service {
                name: service.name.clone(),
                exec: service.exec.as_ref().map(|e| e.display().to_string()),
                ..Default::default()
            });
            Ok(())
        })?;
        for _ in 0..service.instances {
            self.add_nf(&service.name, None)?;
        }
        self.change(|stats| Ok(stats.services.last().unwrap().clone()))
    }

    fn remove_service(&self, name: &str) -> Result<(), ApiError> {
        self.change(|stats| {
            if stats.chains.iter().any(|c| c.services.iter().any(|s| s == name)) {
                return Err(ApiError::conflict(format!("service {name} is in a chain"), "remove the chain first"));
            }
            take(&mut stats.services, "service", name, |s| &s.name)
        })
    }

    fn add_chain(&self, chain: config::Chain) -> Result<Chain, ApiError> {
        self.change(|stats| {
            let chain = Chain {
                name: chain.name,
                services: chain.services,
                egress: chain.egress,
                on_failure: serde_json::to_value(chain.on_failure).unwrap().as_str().unwrap().into(),
                ..Default::default()
            };
            stats.chains.push(chain.clone());
            Ok(chain)
        })
    }

    fn remove_chain(&self, name: &str) -> Result<(), ApiError> {
        self.change(|stats| take(&mut stats.chains, "chain", name, |c| &c.name))
    }

    fn add_rule(&self, rule: config::Rule, position: Option<usize>) -> Result<Rule, ApiError> {
        self.change(|stats| {
            let position = position.unwrap_or(stats.rules.len());
            if position > stats.rules.len() {
                return Err(ApiError::unprocessable(format!("no position {position}"), "give a smaller one"));
            }
            let name = rule.name.clone().unwrap_or(format!("rule.{}", stats.rules.len()));
            let rule = Rule { name, position, chain: rule.chain.clone(), matches: rule, hits: 0 };
            stats.rules.insert(position, rule.clone());
            stats.rules.iter_mut().enumerate().for_each(|(i, rule)| rule.position = i);
            Ok(rule)
        })
    }

    fn remove_rule(&self, name: &str) -> Result<(), ApiError> {
        self.change(|stats| take(&mut stats.rules, "rule", name, |r| &r.name))
    }

    fn renew_memory(&self, tenant: &str) -> Result<(), ApiError> {
        let stats = &self.state.lock().unwrap().stats;
        let is_there = stats.status.memories.iter().any(|memory| memory.tenant == tenant);
        if is_there { Ok(()) } else { Err(ApiError::new(ErrorKind::NotFound, format!("there is no tenant {tenant}"), "")) }
    }

    fn add_port(&self, port: config::Port) -> Result<Port, ApiError> {
        self.change(|stats| {
            let json = serde_json::to_value(&port).unwrap();
            let port = Port {
                name: port.name,
                kind: json["kind"].as_str().unwrap().into(),
                overload: json["overload"].as_str().unwrap().into(),
                description: "as asked".into(),
                queues: port.queues,
                ..Default::default()
            };
            stats.ports.push(port.clone());
            Ok(port)
        })
    }

    fn remove_port(&self, name: &str) -> Result<(), ApiError> {
        self.change(|stats| take(&mut stats.ports, "port", name, |p| &p.name))
    }

    fn apply(&self, config: &str, file: Option<&str>, dry_run: bool) -> Result<Applied, ApiError> {
        if config.contains("mistake") {
            return Err(ApiError::unprocessable(format!("{}:1: a mistake", file.unwrap_or("-")), "mend it"));
        }
        let detail = if dry_run { "would be new" } else { "" };
        let (kind, name, keys) = ("chain".into(), "dns".into(), Vec::new());
        let add = Change { action: Action::Add, kind, name, detail: detail.into(), keys };
        let changes = if config.contains("same") { Vec::new() } else { vec![add] };
        let warnings = if config.contains("odd") { vec!["new.toml:1:1: warning: this is odd".into()] } else { Vec::new() };
        Ok(Applied { dry_run, changes, warnings })
    }

    fn set(&self, set: &SetKeys) -> Result<Applied, ApiError> {
        let keys: Vec<ChangedKey> = (set.keys.iter())
            .map(|(key, value)| ChangedKey { key: key.clone(), before: Some("1".into()), after: Some(value.to_string()) })
            .collect();
        let (name, detail) = (set.name.clone().unwrap_or_default(), "in words".into());
        let change = Change { action: Action::Change, kind: set.kind.clone(), name, detail, keys };
        Ok(Applied { dry_run: set.dry_run, changes: vec![change], warnings: Vec::new() })
    }

    fn running_config(&self) -> Result<RunningConfig, ApiError> {
        Ok(RunningConfig { config: "[[port]]\nname = \"in\"\n".into() })
    }

    fn history(&self) -> Result<Vec<FormerConfig>, ApiError> {
        Ok(vec![FormerConfig { number: 7, unix_ms: 1_764_036_100_123, source: "/etc/sluice.toml".into() }])
    }

    fn undo(&self, undo: Undo) -> Result<Applied, ApiError> {
        match undo.to {
            None | Some(7) => self.apply("", None, undo.dry_run),
            Some(other) => Err(ApiError::not_found("former configuration", &other.to_string(), &["7"])),
        }
    }

    fn place(&self, assignment: Assignment) -> Result<Placed, ApiError> {
        assignment.check().map_err(|error| ApiError::unprocessable(error.to_string(), ""))?;
        self.state.lock().unwrap().placed = Some(assignment);
        Ok(Placed { changes: Vec::new(), notes: vec!["no cache classes: it is off".into()] })
    }

    fn placement(&self) -> Result<Assignment, ApiError> {
        self.state.lock().unwrap().placed.clone().ok_or_else(|| ApiError::not_found("placement", "", &[]))
    }

    fn withdraw(&self) -> Result<Placed, ApiError> {
        self.state.lock().unwrap().placed = None;
        Ok(Placed::default())
    }

    fn promises(&self) -> Result<Promises, ApiError> {
        let state = self.state.lock().unwrap();
        let slos = state.placed.iter().flat_map(|placed| &placed.slos).map(|promised| promised.slo.name.clone());
        Ok(Promises {
            server: Some("s0".into()),
            promises: slos.map(|slo| Promise { slo, windows: 1, ..Promise::default() }).collect(),
            ..Promises::default()
        })
    }

    fn trace(&self, request: &TraceRequest) -> Result<Trace, ApiError> {
        if let Some(tracing) = &self.tracing {
            tracing.wait();
        }
        let open = self.gate.0.lock().unwrap();
        drop(self.gate.1.wait_while(open, |open| !*open).unwrap());
        let hop = |place: &str, ns| Hop { place: place.into(), ns };
        let packet = TracedPacket {
            chain: Some(request.chain.clone().unwrap_or("web".into())),
            bytes: 60,
            packet: "ffffffffffff0200000000010806".into(),
            hops: vec![hop("port in", 0), hop("nf fw.0", 4_200), hop("port out", 9_000)],
            outcome: "sent to out".into(),
        };
        let there = request.rule.as_deref() != Some("silent");
        Ok(Trace {
            packets: if there { vec![packet; request.count.min(3) as usize] } else { Vec::new() },
            timed_out: request.count > 3,
        })
    }

    fn why(&self, request: &WhyRequest) -> Result<WhyReply, ApiError> {
        let port = request.port.clone().ok_or_else(|| ApiError::unprocessable("say at which port it comes in: in", ""))?;
        if port != "in" {
            return Err(ApiError::not_found("port", &port, &["in"]));
        }
        let what = "the gate of chain web is closed: NF fw.0 is throttled, its queue is long";
        let closed = WhyNot { reason: Some("entry".into()), what: what.into(), remedy: "Give it a core.".into() };
        let entry = FlowEntry { core: 2, path: vec!["fw.0".into()], instead: None, holds: true, idle_ms: 128 };
        Ok(WhyReply {
            port,
            packet: "tcp 10.0.0.1:1234 > 10.0.1.2:80 dscp 0".into(),
            bytes: (request.packet.len() / 2) as u32,
            outcome: Fate::Dropped,
            rule: Some("http".into()),
            chain: Some("web".into()),
            path: vec!["fw.0".into(), "nat.*".into()],
            egress: Some("out".into()),
            tenants: vec!["blue".into()],
            entry: Some(entry),
            obstacles: vec![closed],
            notes: vec!["a note".into()],
        })
    }

    fn capture(&self, request: &CaptureRequest) -> Result<Pieces, ApiError> {
        let known = ["fw.0:in", "fw.0:out"];
        if let Some(unknown) = request.hops.iter().find(|hop| !known.contains(&hop.as_str())) {
            return Err(ApiError::not_found("hop", unknown, &known));
        }
        // A block in two pieces, and one after a while.
        let packet = |body: usize| {
            [&6u32.to_le_bytes()[..], &[12 + body as u8, 0, 0, 0], &vec![7; body], &[12 + body as u8, 0, 0, 0]].concat()
        };
        let (first, second) = (packet(40), packet(20));
        Ok(Box::new(vec![first[..10].to_vec(), first[10..].to_vec(), Vec::new(), second].into_iter()))
    }

    fn flows(&self, request: &FlowsRequest) -> Result<FlowsReply, ApiError> {
        if let Some(unknown) = request.chain.as_ref().filter(|chain| *chain != "web") {
            return Err(ApiError::not_found("chain", unknown, &["web"]));
        }
        let flow = |number: Option<u64>| FlowReport {
            number,
            protocol: "udp".into(),
            src: "10.0.0.1".into(),
            src_port: Some(1000),
            dst: "192.0.2.1".into(),
            dst_port: Some(53),
            port: "in".into(),
            chain: Some("web".into()),
            nfs: vec!["fw.0".into()],
            packets: 1_234,
            bytes: 99_000,
            dropped_packets: 2,
            drop_reason: Some("verdict".into()),
            end: number.map(|_| FlowEndReason::Idle),
            ..FlowReport::default()
        };
        // After the number that the first answer gives, two flows end; then the daemon does.
        let (flows, next) = match request.after {
            None => (vec![flow(None)], 7),
            Some(7) => (vec![flow(Some(8)), flow(Some(9))], 9),
            Some(_) => return Err(ApiError::shutting_down()),
        };
        Ok(FlowsReply {
            flows,
            next,
            missed: 0,
            log: FlowLogCounts { live: 1, ended: next, metered_s: 61.0, ..FlowLogCounts::default() },
        })
    }

    fn record(&self, request: &RecordRequest) -> Result<Pieces, ApiError> {
        if request.rate_hz == 666 {
            return Err(ApiError::conflict("2 recordings go on", "wait"));
        }
        // A packet in two pieces, and one after a while.
        let packet = |body: usize| [&[0x0a, body as u8][..], &vec![7; body]].concat();
        let (first, second) = (packet(request.duration_ms as usize / 100), packet(20));
        Ok(Box::new(vec![first[..10].to_vec(), first[10..].to_vec(), Vec::new(), second].into_iter()))
    }

    fn timelines(&self) -> Result<Vec<Timeline>, ApiError> {
        let one = |unix_ms: u64, why: &str, bytes| Timeline {
            name: format!("flight-{unix_ms}-{why}.pftrace"),
            unix_ms,
            why: why.into(),
            bytes,
        };
        Ok(vec![one(1_764_036_100_123, "death-nf-fw.0", 12), one(1_764_036_200_456, "promise-slo-a-b", 1_234_567)])
    }

    fn timeline(&self, name: &str) -> Result<Pieces, ApiError> {
        let all = self.timelines()?;
        let known: Vec<&str> = all.iter().map(|known| known.name.as_str()).collect();
        let place = known.iter().position(|known| *known == name);
        let place = place.ok_or_else(|| ApiError::not_found("timeline", name, &known))?;
        Ok(Box::new(std::iter::once(vec![0x0a, 2, place as u8, 9])))
    }

    fn shutdown(&self) -> Result<(), ApiError> {
        self.state.lock().unwrap().down = true;
        if let Some(mut process) = self.process.lock().unwrap().take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        Ok(())
    }
}

struct Daemon {
    folder: tempfile::TempDir,
    mock: Arc<Mock>,
    server: Option<Server>,
}

impl Daemon {
    fn start() -> Self {
        Self::with(Mock::new(), Limits::default())
    }

    fn with(mock: Arc<Mock>, limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = serve(&folder.path().join("control.sock"), mock.clone(), limits).unwrap();
        Self { folder, mock, server: Some(server) }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    fn client(&self) -> Client {
        Client::new(&self.socket()).unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(crate::support::sluice());
        command.arg("--socket").arg(self.socket()).args(args).env_remove("SLUICE_CONTROL").stdin(Stdio::null());
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The output of a command that must succeed.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The errors of a command that must end with this code.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The whole answer to a raw request.
    fn raw(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn status_and_lists_are_tables_without_colour_in_a_pipe() {
    let daemon = Daemon::start();
    let status = daemon.ok(&["status"]);
    for line in [
        "sluiced 0.1.0",
        "up 1 min 15 s",
        "frames   384 of 16,384 in use, ordinary pages",
        "flows    1,234",
        "rx+tx      0  63 %",
        "tuning   0.50 % of a core",
        "buffers  no receive queue of a NIC\n",
    ] {
        assert!(status.contains(line), "{line} is not in\n{status}");
    }
    assert!(daemon.ok(&["nf", "list"]).contains("fw.0  starting"));
    assert!(daemon.ok(&["service", "list"]).contains("firewall"));
    let chains = daemon.ok(&["chain", "list"]);
    assert!(chains.contains("fw → out") && chains.contains("WASTED"), "{chains}");
    assert!(daemon.ok(&["rule", "list"]).contains("everything"));
    assert!(daemon.ok(&["ports", "list"]).contains("sink"));
    let stats = daemon.ok(&["stats"]);
    assert!(stats.contains("no_rule") && !stats.contains('\x1b'));
    let json: Stats = serde_json::from_str(&daemon.ok(&["stats", "--json"])).unwrap();
    assert_eq!(json.rules[0].name, "all");
    let json: Vec<Nf> = serde_json::from_str(&daemon.ok(&["nf", "list", "--json"])).unwrap();
    assert_eq!(json.len(), 1);
    assert!(daemon.ok(&["stats", "--prometheus"]).contains("sluice_nf_queue_packets{nf=\"fw.0\",service=\"fw\"} 256\n"));
}

#[test]
fn a_verdict_comes_with_what_does_not_work_and_an_exit_code() {
    let daemon = Daemon::start();
    assert!(daemon.ok(&["status"]).lines().nth(1).unwrap().starts_with("health   healthy"));
    let problem = Problem { subject: "chain web".into(), what: "refuses packets".into(), since_s: 75.0 };
    let degraded = Health { verdict: HealthVerdict::Degraded, problems: vec![problem], ..Health::default() };
    daemon.mock.state.lock().unwrap().stats.status.health = degraded.clone();
    for (args, wanted) in [
        (&["status"][..], "health   degraded\n  chain web refuses packets, since 1 min 15 s\n"),
        (&["status", "--json"], "\"verdict\": \"degraded\""),
    ] {
        let output = daemon.output(args);
        let (said, complained) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(said.contains(wanted), "{said}");
        assert_eq!((output.status.code(), complained.as_str()), (Some(3), ""));
    }
    assert_eq!(daemon.client().status().unwrap().health, degraded);
    assert!(daemon.ok(&["status", "--help"]).contains("Exit codes: 0 healthy, 1 "));
}

#[test]
fn an_nf_is_shown_with_its_last_death() {
    let daemon = Daemon::start();
    assert!(daemon.ok(&["nf", "show", "fw.0"]).contains("last death  never\n"));
    assert!(!daemon.ok(&["nf", "list"]).contains("LAST DEATH"));
    let what = "killed by signal 11 (SIGSEGV)".to_string();
    let death = Death { time_ns: 0, unix_ms: 1_764_036_100_123, cause: DeathCause::Signal, what };
    daemon.mock.state.lock().unwrap().stats.nfs[0].last_death = Some(death.clone());
    let words = "2025-11-25T02:01:40.123Z killed by signal 11 (SIGSEGV)";
    assert!(daemon.ok(&["nf", "show", "fw.0"]).contains(&format!("last death  {words} (")));
    let list = daemon.ok(&["nf", "list"]);
    assert!(list.contains("LAST DEATH") && list.contains(words), "{list}");
    let json: Nf = serde_json::from_str(&daemon.ok(&["nf", "show", "fw.0", "--json"])).unwrap();
    assert_eq!(json.last_death, Some(death));
    assert!(daemon.fails(2, &["nf", "show", "wf.0"]).contains("no NF is named \"wf.0\"; there are: fw.0"));
}

#[test]
fn a_placement_is_sent_shown_and_withdrawn() {
    let daemon = Daemon::start();
    assert_eq!(daemon.ok(&["slo", "list", "--live"]), "nothing is placed here\n");
    let plan = tempfile::tempdir().unwrap();
    let at = plan.path().to_str().unwrap();
    let shape =
        "cpu = \"A\"\ncores = 4\nllc_ways = 11\nway_bytes = 1048576\nddio_ways = 2\nmin_ways = 1\nclasses = 16\nmemory_mib = 64\n";
    std::fs::write(plan.path().join("servers.toml"), format!("[[server]]\nname = \"s0\"\n{shape}")).unwrap();
    assert_eq!(daemon.ok(&["slo", "--plan", at, "apply"]), "nothing to change\nnote: no cache classes: it is off\n");
    assert!(
        daemon.fails(1, &["slo", "--plan", at, "apply", "--server", "s1"]).contains("the plan has no server \"s1\"; it has s0")
    );
    assert_eq!(daemon.client().placement().unwrap().server.name, "s0");
    // An SLO on demand needs no profile; instances that the daemon adds survive the next apply.
    let web = plan.path().join("web.toml");
    let footprint = "footprint = { cores = 1, memory_mib = 1 }";
    let promise = "promise = { on_demand = { latency_us = 80, cap = { instances = 4 } } }";
    std::fs::write(&web, format!("name = \"web\"\nworkload = {{ nf = \"fw\" }}\n{footprint}\n{promise}\n")).unwrap();
    daemon.ok(&["slo", "--plan", at, "add", web.to_str().unwrap()]);
    daemon.ok(&["slo", "--plan", at, "apply"]);
    let mut more = daemon.client().placement().unwrap();
    let first = more.server.instances[0].clone();
    more.server.instances.push(sluice_slo::placement::Instance { number: 1, cores: vec![2], ..first });
    daemon.client().place(&more).unwrap();
    daemon.ok(&["slo", "--plan", at, "apply"]);
    assert_eq!(daemon.client().placement().unwrap(), more);
    assert!(daemon.fails(1, &["slo", "show", "acme", "--live"]).contains("no SLO \"acme\" is placed here; there are: web"));
    assert_eq!(daemon.ok(&["slo", "withdraw"]), "nothing to change\n");
    assert!(daemon.client().placement().is_err());
}

#[test]
fn top_prints_one_snapshot_in_a_pipe() {
    let text = Daemon::start().ok(&["top", "--interval", "0.01"]);
    for word in ["sluiced 0.1.0", "NF (by name)", "fw.0", "12.3 M", "25 %", "CHAIN", "PORT", "no_rule 0 /s (5)"] {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'));
}

/// An event of the mock: a share of fw.0, or a throttle of another NF.
fn event(number: u64, nf: &str) -> Event {
    let event = Event { number, time_ns: number * 100_000_000, nf: nf.into(), count: 2, ..Event::default() };
    match nf {
        "fw.0" => Event { event: EventKind::Share, from: Some(0.25), to: Some(0.501), ..event },
        _ => Event { event: EventKind::Throttle, throttled: Some(true), ..event },
    }
}

#[test]
fn events_are_lines_with_times_before_now() {
    let daemon = Daemon::start();
    assert_eq!(daemon.ok(&["events"]), "nothing was decided lately\n");
    assert_eq!(daemon.ok(&["events", "--json"]), "[]\n");
    daemon.mock.state.lock().unwrap().events = vec![event(5, "fw.0"), event(6, "nat.0")];
    daemon.mock.state.lock().unwrap().seconds = 0;
    let fw = "-0.5 s  fw.0   share 25.0 % → 50.1 % (2 writes)\n";
    let nat = "-0.4 s  nat.0  throttled 2 times, still is\n";
    assert_eq!(daemon.ok(&["events"]), format!("        {fw}        {nat}"));
    // The events of an NF that is gone can be listed; a name that never existed is an error.
    assert!(daemon.ok(&["events", "--nf", "nat.0"]).ends_with(" s  nat.0  throttled 2 times, still is\n"));
    assert!(daemon.fails(2, &["events", "--nf", "nta.0"]).contains("no NF is named \"nta.0\"; there are: fw.0"));
    let json: Vec<Event> = serde_json::from_str(&daemon.ok(&["events", "--json", "--nf", "fw.0"])).unwrap();
    assert_eq!(json, [event(5, "fw.0")]);
}

#[test]
fn events_of_some_kinds_alone_have_the_time_of_day() {
    let daemon = Daemon::start();
    let text = Some("killed by signal 9 (SIGKILL)".to_string());
    let death =
        Event { number: 7, unix_ms: 1_764_036_100_123, event: EventKind::Death, nf: "fw.0".into(), text, ..Event::default() };
    let (subject, text) = (Some("chain web".to_string()), Some("takes packets".to_string()));
    let chain = Event { number: 8, unix_ms: 1_764_036_100_456, event: EventKind::Chain, subject, text, ..Event::default() };
    daemon.mock.state.lock().unwrap().events = vec![event(5, "fw.0"), event(6, "nat.0"), death.clone(), chain.clone()];
    let said = daemon.ok(&["events", "--kind", "death,chain"]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].starts_with("2025-11-25T02:01:40.123Z  ")
            && lines[0].ends_with("  fw.0       death: killed by signal 9 (SIGKILL)")
    );
    assert!(
        lines[1].starts_with("2025-11-25T02:01:40.456Z  ") && lines[1].ends_with("  chain web  chain: takes packets"),
        "{said}"
    );
    let json: Vec<Event> = serde_json::from_str(&daemon.ok(&["events", "--json", "--kind", "death", "--nf", "fw.0"])).unwrap();
    assert_eq!(json, [death]);
    assert!(daemon.fails(2, &["events", "--kind", "deaths"]).contains("the kinds are throttle, share, death"));
    assert_eq!(daemon.ok(&["events", "--kind", "upgrade"]), "nothing was decided lately\n");
}

#[test]
fn events_are_followed_each_once() {
    let daemon = Daemon::start();
    daemon.mock.state.lock().unwrap().events = vec![event(1, "fw.0"), event(2, "nat.0")];
    let mut child =
        daemon.command(&["events", "--follow", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        serde_json::from_str::<Event>(&line).unwrap().number
    };
    assert_eq!([next(), next()], [1, 2]);
    daemon.mock.state.lock().unwrap().events.push(event(3, "fw.0"));
    assert_eq!(next(), 3);
    // Two events were pushed out before they were read.
    daemon.mock.state.lock().unwrap().events = vec![event(6, "fw.0")];
    assert_eq!(next(), 6);
    // Another daemon numbers from 1 again.
    daemon.mock.state.lock().unwrap().events = vec![event(1, "fw.0")];
    assert_eq!(next(), 1);
    drop(lines);
    // The output has no reader any more: the next event ends the program.
    daemon.mock.state.lock().unwrap().events.push(event(2, "fw.0"));
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(0), 1), "{said}");
    assert!(said.starts_with("sluice: 2 events went by unread"), "{said}");
}

#[test]
fn things_are_added_and_removed() {
    let daemon = Daemon::start();
    assert_eq!(daemon.ok(&["nf", "add", "fw", "--core", "3"]), "added NF fw.1 on core 3 (starting)\n");
    assert_eq!(daemon.ok(&["nf", "remove", "fw.1"]), "removed NF fw.1\n");
    let refused = "sluice: fw.0 is the last instance of service `fw`\n  hint: give --force\n";
    assert_eq!(daemon.fails(1, &["nf", "remove", "fw.0"]), refused);
    assert!(!daemon.raw("DELETE /v1/nfs/fw.0?force=perhaps HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").contains("200 OK"));
    assert_eq!(daemon.ok(&["nf", "remove", "fw.0", "--force"]), "removed NF fw.0\n");
    let upgraded = "upgraded fw to /opt/fw2: fw.1, fw.2; 2 of the old version leave, each with its flow\n";
    assert_eq!(daemon.ok(&["nf", "upgrade", "fw", "--exec", "/opt/fw2", "--args", "--rules", "x"]), upgraded);
    assert!(daemon.fails(1, &["nf", "upgrade", "fw", "--exec", "/bin/true"]).contains("it is no NF"));
    let canary = "canary fw.8 gets 1 % of new flows for 60 s; `sluice nf upgrade fw --abort` ends it\nupgraded to /opt/fw2: fw.9\n";
    assert_eq!(daemon.ok(&["nf", "upgrade", "fw", "--exec", "/opt/fw2", "--canary", "1%", "--for", "60s"]), canary);
    let shadow = "shadow fw.8 gets copies of packets for 60 s; `sluice nf upgrade fw --abort` ends it\n\
                  200 packets compared: 199 equal, 1 different (verdict 0, bytes 1, order 0, kept 0); 3 missed\n\
                  packet 5 of fw.0: bytes, from byte 1\n  got  0011\n  old  next 0011\n  new  next 00ff\nupgraded to /opt/fw2: fw.9\n";
    assert_eq!(daemon.ok(&["nf", "upgrade", "fw", "--exec", "/opt/fw2", "--shadow", "--allow", "1"]), shadow);
    assert!(daemon.fails(1, &["nf", "upgrade", "fw", "--abort"]).contains("no canary is named"));
    assert_eq!(
        daemon.ok(&["port", "add", "load", "gen", "size=60", "rate=1e6", "--overload", "wait"]),
        "added port load: as asked\n"
    );
    assert_eq!(daemon.client().stats().unwrap().ports[2].overload, "wait");
    assert_eq!(
        daemon.ok(&["port", "add", "--toml", "name = \"odd name/ü\", kind = \"sink\""]),
        "added port odd name/ü: as asked\n"
    );
    assert_eq!(daemon.ok(&["port", "remove", "odd name/ü"]), "removed port odd name/ü\n");
    assert_eq!(
        daemon.ok(&["chain", "add", "two", "fw", "nat", "--egress", "out", "--on-failure", "bypass"]),
        "added chain two: fw → nat → out\n"
    );
    assert_eq!(daemon.client().stats().unwrap().chains[1].on_failure, "bypass");
    let added = daemon.ok(&["rule", "add", "--chain", "two", "--protocol", "tcp", "--dst-port", "80-81", "--position", "0"]);
    assert_eq!(added, "added rule rule.1 at position 0: protocol tcp, dst-port 80-81 → two\n");
    assert_eq!(daemon.client().stats().unwrap().rules[1].position, 1);
    assert_eq!(daemon.ok(&["rule", "rm", "rule.1"]), "removed rule rule.1\n");
    assert_eq!(daemon.ok(&["chain", "remove", "two"]), "removed chain two\n");
    let file = daemon.folder.path().join("ids.toml");
    std::fs::write(&file, "[[service]]\nname = \"ids\"\nexec = \"ids\"\ninstances = 2\n").unwrap();
    assert_eq!(daemon.ok(&["service", "add", file.to_str().unwrap()]), "added service ids with ids.0, ids.1\n");
    assert_eq!(daemon.ok(&["service", "remove", "ids"]), "removed service ids\n");
}

#[test]
fn warnings_of_an_answer_are_printed() {
    let daemon = Daemon::start();
    for (args, done) in [
        (["nf", "add", "fw", "--core", "0"], "added NF fw.1 on core 0 (starting)\n"),
        (["nf", "move", "fw.1", "--core", "0"], "moved fw.1 to core 0: it is fw.1 now\n"),
    ] {
        let output = daemon.output(&args);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "warning: core 0 never sleeps; choose another core\n");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), done);
    }
    assert!(daemon.output(&["nf", "add", "fw", "--core", "2"]).stderr.is_empty());
}

#[test]
fn refusals_say_what_is_wrong_and_what_to_do() {
    let daemon = Daemon::start();
    assert_eq!(daemon.fails(1, &["chain", "remove", "wbe"]), "sluice: no chain is named \"wbe\"\n  hint: there are: web\n");
    assert_eq!(daemon.fails(1, &["service", "remove", "fw"]), "sluice: service fw is in a chain\n  hint: remove the chain first\n");
    assert!(daemon.fails(1, &["rule", "add", "--chain", "web", "--position", "9"]).contains("no position 9"));
    assert!(daemon.fails(1, &["apply", "/nowhere.toml"]).contains("cannot read /nowhere.toml"));
    assert!(daemon.fails(1, &["trace", "--rule", "silent"]).contains("no packet came by"));
    assert!(daemon.fails(1, &["bench", "nothing"]).contains("no experiment is named \"nothing\""));
    for usage in
        [&["bogus"][..], &["nf", "add"], &["trace", "--count", "0"], &["port", "add", "x", "gen", "size"], &["port", "add", "x"]]
    {
        assert!(!daemon.fails(2, usage).is_empty());
    }
}

#[test]
fn without_a_daemon_the_message_says_how_to_start_one() {
    let output = Command::new(crate::support::sluice()).args(["status"]).env("SLUICE_CONTROL", "/nowhere/s").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let want = "sluice: no sluiced answers at /nowhere/s: start one with `sluiced CONFIG`, or name its socket by --socket or \
                $SLUICE_CONTROL\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), want);
}

#[test]
fn a_configuration_is_applied_or_only_compared() {
    let daemon = Daemon::start();
    let file = daemon.folder.path().join("new.toml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, "").unwrap();
    assert_eq!(daemon.ok(&["apply", path]), "+ chain dns\n1 change done\n");
    assert_eq!(daemon.ok(&["apply", "--dry-run", path]), "+ chain dns: would be new\n1 change; nothing was done, as asked\n");
    std::fs::write(&file, "# odd").unwrap();
    let output = daemon.output(&["apply", path]);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "new.toml:1:1: warning: this is odd\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "+ chain dns\n1 change done\n");
    std::fs::write(&file, "# same").unwrap();
    assert!(daemon.ok(&["apply", path]).starts_with("nothing to change"));
    let set = daemon.ok(&["set", "service", "fw", "priority=2", "pool.max=8"]);
    assert_eq!(
        set,
        "~ service fw\n-     pool.max = 1\n+     pool.max = 8\n-     priority = 1\n+     priority = 2\n1 change done\n"
    );
    let planned = daemon.ok(&["set", "sched", "ecn=false", "--dry-run"]);
    assert_eq!(planned, "~ sched \n-     ecn = 1\n+     ecn = false\n1 change; nothing was done, as asked\n");
    assert!(daemon.fails(2, &["set", "sched", "ecn"]).contains("no key is given"));
    let listed = daemon.ok(&["undo", "--list"]);
    assert_eq!(listed, "NUMBER  UNTIL                     REPLACED BY\n     7  2025-11-25T02:01:40.123Z  /etc/sluice.toml\n");
    let until = "back to configuration 7, in force until 2025-11-25T02:01:40.123Z, when it was replaced by /etc/sluice.toml\n";
    assert_eq!(daemon.ok(&["undo"]), format!("{until}+ chain dns\n1 change done\n"));
    assert!(daemon.fails(1, &["undo", "--to", "3"]).contains("no former configuration is named \"3\""));
    std::fs::write(&file, "# mistake").unwrap();
    let whole = std::fs::canonicalize(&file).unwrap();
    assert_eq!(daemon.fails(1, &["apply", path]), format!("sluice: {}:1: a mistake\n  hint: mend it\n", whole.display()));
}

#[test]
fn check_needs_no_daemon() {
    let daemon = Daemon::start();
    let file = daemon.folder.path().join("c.toml");
    let path = file.to_str().unwrap();
    let ports = "[[port]]\nname = \"a\"\nkind = \"gen\"\n[[port]]\nname = \"b\"\nkind = \"sink\"\n";
    let chains = "[[chain]]\nname = \"c\"\negress = \"b\"\n[[rule]]\nchain = \"c\"\n";
    std::fs::write(&file, [ports, chains].concat()).unwrap();
    assert!(daemon.ok(&["check", "--no-host", path]).ends_with("is good: 2 ports, 0 services, 0 NFs, 1 chain, 1 rule\n"));
    // Without --strict, warnings are no errors; an empty configuration has one.
    std::fs::write(&file, "").unwrap();
    let output = daemon.output(&["check", "--no-host", path]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.starts_with(&format!("{path}:1:1: warning: this configuration has no port")), "{said}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("is good, with 1 warning: 0 ports"));
    let said = daemon.fails(1, &["check", "--no-host", "--strict", path]);
    assert!(said.starts_with(&format!("{path}:1:1: warning: ")) && said.ends_with("\nsluice: 1 warning\n"), "{said}");
    // Each finding begins with its place, as editors expect; their number comes last.
    std::fs::write(&file, "[[prot]]\n[memory]\nframe = 7\n").unwrap();
    let said = daemon.fails(1, &["check", path]);
    let findings: Vec<&str> = said.lines().filter(|line| line.contains("c.toml:")).collect();
    let begins = [format!("{path}:1:3: error: no section"), format!("{path}:3:1: error: [memory] has no key")];
    assert!(findings.len() == 2 && findings.iter().zip(&begins).all(|(line, begin)| line.starts_with(begin)), "{said}");
    assert!(said.ends_with("\nsluice: 2 errors\n"), "{said}");
    std::fs::write(&file, "[[prot]]\n").unwrap();
    let error = daemon.fails(1, &["check", path]);
    assert!(error.contains("c.toml:1") && error.contains("prot") && error.contains("port"), "{error}");
    let explained = daemon.ok(&["check", "--explain"]);
    assert!(explained.contains("runtime_dir") && explained.contains("[[rule]]"));
    daemon.fails(2, &["check"]);
}

#[test]
fn a_simulation_takes_costs_from_the_daemon() {
    let daemon = Daemon::start();
    let file = daemon.folder.path().join("c.toml");
    let ports = "[[port]]\nname = \"a\"\nkind = \"gen\"\nrate = 1e5\n[[port]]\nname = \"b\"\nkind = \"sink\"\n";
    let chain = "[[service]]\nname = \"fw\"\nexec = \"firewall\"\n[[chain]]\nname = \"c\"\nservices = [\"fw\"]\negress = \"b\"\n";
    std::fs::write(&file, [ports, chain, "[[rule]]\nchain = \"c\"\n"].concat()).unwrap();
    let args = ["simulate", file.to_str().unwrap(), "--measured", "--seconds", "0.05", "--json"];
    assert!(daemon.fails(2, &args).contains("costs fw;"), "no NF has worked yet");
    daemon.mock.state.lock().unwrap().stats.nfs[0].sched.service_ns = 5_000.0;
    let report: serde_json::Value = serde_json::from_str(&daemon.ok(&args)).unwrap();
    // 100,000 packets/s of 5 µs each are half a core at any clock, plus hops and switches.
    let cpu = |report: &serde_json::Value| report["runs"][0]["nfs"][0]["cpu_percent"].as_f64().unwrap();
    assert!((45.0..60.0).contains(&cpu(&report)), "{report}");
    assert_eq!(report["switch_ns"], 5_000);
    let free: serde_json::Value = serde_json::from_str(&daemon.ok(&[&args[..], &["--switch", "0"]].concat())).unwrap();
    assert!(free["switch_ns"] == 0 && cpu(&free) < cpu(&report), "{free}");
}

#[test]
fn a_trace_is_shown_hop_by_hop() {
    let daemon = Daemon::start();
    let output = daemon.output(&["trace", "--chain", "dns", "--count", "4"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    let begin = "packet 1 · chain dns · 60 bytes · sent to out · 9.00 µs\n  arp 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff\n";
    assert!(text.starts_with(begin), "{text}");
    assert!(text.contains("    4.20 µs    +4.20 µs  nf fw.0\n"), "{text}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "sluice: only 3 of 4 packets came by within 5 s\n");
    let json: Trace = serde_json::from_str(&daemon.ok(&["trace", "-n", "2", "--json"])).unwrap();
    assert_eq!(json.packets.len(), 2);
}

#[test]
fn a_capture_is_written_as_it_comes_and_a_refused_one_not_at_all() {
    let daemon = Daemon::start();
    let file = daemon.folder.path().join("a.pcapng");
    let name = file.to_str().unwrap();
    assert!(daemon.fails(1, &["capture", "--hop", "fw.1:in", "-w", name]).contains("no hop is named"));
    assert!(!file.exists());
    let output = daemon.output(&["capture", "--hop", "fw.0:in", "-w", name]);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "sluice: 2 packets, 0 missed\n");
    assert_eq!(output.stdout, b"");
    let written = std::fs::read(&file).unwrap();
    assert_eq!(written.len(), 52 + 32);
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777 & !0o640, 0, "others cannot read it");
    assert_eq!(daemon.output(&["capture", "-w", "-"]).stdout, written);
    assert!(daemon.fails(1, &["capture", "-w", "/nowhere/a.pcapng"]).contains("cannot write /nowhere/a.pcapng"));
    for usage in [&["capture"][..], &["capture", "-w", name, "--count", "0"], &["capture", "-w", name, "--sample", "0"]] {
        assert!(!daemon.fails(2, usage).is_empty());
    }
}

#[test]
fn flows_are_a_table_or_lines_as_they_end() {
    let daemon = Daemon::start();
    let output = daemon.output(&["flows", "--top", "bytes", "--verdict", "dropped", "--chain", "web"]);
    let table = String::from_utf8(output.stdout).unwrap();
    for word in ["PROTOCOL", "10.0.0.1:1000", "192.0.2.1:53", "fw.0", "1,234", "2 verdict", "live"] {
        assert!(table.contains(word), "{word} is not in\n{table}");
    }
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "sluice: 1 live, 7 ended in 1 min 1 s\n");
    let json: FlowsReply = serde_json::from_str(&daemon.ok(&["flows", "--json"])).unwrap();
    assert_eq!((json.flows.len(), json.next), (1, 7));
    let followed = daemon.output(&["flows", "--follow"]);
    let lines = String::from_utf8(followed.stdout).unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.starts_with("udp 10.0.0.1:1000 → 192.0.2.1:53  chain web  fw.0  1,234 packets, 99,000 bytes in "), "{lines}");
    assert!(lines.ends_with("  flow 9  dropped 2 verdict  idle\n"), "{lines}");
    assert!(String::from_utf8(followed.stderr).unwrap().contains("shutting down"));
    let followed = daemon.output(&["flows", "--follow", "--json"]);
    let numbers = String::from_utf8(followed.stdout).unwrap();
    let numbers = numbers.lines().map(|line| serde_json::from_str::<FlowReport>(line).unwrap().number);
    assert_eq!(numbers.collect::<Vec<_>>(), [Some(8), Some(9)]);
    assert!(daemon.fails(1, &["flows", "--chain", "wbe"]).contains("no chain is named"));
    for usage in [&["flows", "--follow", "--live"][..], &["flows", "--live", "--ended"], &["flows", "-n", "0"]] {
        assert!(!daemon.fails(2, usage).is_empty());
    }
}

#[test]
fn a_recording_is_written_as_it_comes_and_those_of_the_flight_recorder_are_listed() {
    let daemon = Daemon::start();
    let file = daemon.folder.path().join("a.pftrace");
    let name = file.to_str().unwrap();
    assert!(daemon.fails(1, &["record", "--rate", "666", "-w", name]).contains("2 recordings go on"));
    assert!(!file.exists());
    let output = daemon.output(&["record", "--seconds", "4", "-w", name]);
    let said = format!("sluice: 2 packets in {name}; open it at https://ui.perfetto.dev\n");
    assert_eq!((String::from_utf8(output.stderr).unwrap(), output.stdout), (said, Vec::new()));
    let written = std::fs::read(&file).unwrap();
    assert_eq!(written.len(), 42 + 22);
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777 & !0o640, 0, "others cannot read it");
    assert_eq!(daemon.output(&["record", "--seconds", "4", "-w", "-"]).stdout, written);

    let listed = daemon.ok(&["record", "--list"]);
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "WRITTEN", "WHY", "BYTES"]);
    let second = ["flight-1764036200456-promise-slo-a-b.pftrace", "2025-11-25T02:03:20.456Z", "promise-slo-a-b", "1,234,567"];
    assert_eq!((lines.len(), &lines[2][..]), (3, &second[..]));
    let json: Vec<Timeline> = serde_json::from_str(&daemon.ok(&["record", "--list", "--json"])).unwrap();
    assert_eq!((json.len(), json[0].bytes), (2, 12));
    assert_eq!(daemon.output(&["record", "--last", "-w", "-"]).stdout, [0x0a, 2, 1, 9]);
    assert_eq!(daemon.output(&["record", "--name", &json[0].name, "-w", "-"]).stdout, [0x0a, 2, 0, 9]);
    assert!(daemon.fails(1, &["record", "--name", "x/../y", "-w", "-"]).contains("no timeline is named \"x/../y\""));
    for usage in [
        &["record"][..],
        &["record", "-w", name, "--rate", "9"],
        &["record", "--list", "-w", name],
        &["record", "--last", "--seconds", "1", "-w", name],
        &["record", "-w", name, "--json"],
    ] {
        assert!(!daemon.fails(2, usage).is_empty());
    }
}

#[test]
fn wireshark_is_answered() {
    let daemon = Daemon::start();
    let interfaces = daemon.ok(&["extcap", "--extcap-interfaces", "--extcap-version=4.0"]);
    let interfaces: Vec<&str> = interfaces.lines().skip(1).collect();
    let hops = ["fw.0:in", "fw.0:out", "port:in", "port:out", "drop"];
    assert_eq!(interfaces, hops.map(|hop| format!("interface {{value=sluice-{hop}}}{{display=Sluice: {hop}}}")));
    let of = |args: &[&str]| daemon.ok(&[&["extcap", "--extcap-interface", "sluice-fw.0:in"], args].concat());
    assert_eq!(of(&["--extcap-dlts"]), "dlt {number=1}{name=EN10MB}{display=Ethernet}\n");
    assert!(of(&["--extcap-config"]).starts_with("arg {number=0}{call=--chain}"));
    let file = daemon.folder.path().join("fifo");
    assert_eq!(of(&["--capture", "--fifo", file.to_str().unwrap()]), "");
    assert_eq!(std::fs::read(&file).unwrap().len(), 52 + 32);
    assert!(daemon.fails(2, &["extcap"]).contains("Wireshark runs this command"));
}

#[test]
fn output_that_nobody_reads_ends_quietly() {
    let daemon = Daemon::start();
    let mut child = daemon
        .command(&["stats", "--json", "--watch", "--interval", "0.01"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    for second in 1..=2 {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(serde_json::from_str::<Stats>(&line).unwrap().time_ns, second * 1_000_000_000);
    }
    drop(lines);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn completions_and_help_come_without_a_daemon() {
    let daemon = Daemon::start();
    for shell in ["bash", "zsh", "fish"] {
        assert!(daemon.ok(&["completions", shell]).contains("sluice"));
    }
    let help = daemon.ok(&["--help"]);
    assert!(help.contains("First steps:") && help.contains("Exit codes"));
    assert!(daemon.ok(&["port", "add", "--help"]).contains("sluice port add replay pcap read="));
    assert!(!daemon.ok(&["bench"]).is_empty());
}

#[test]
fn stop_waits_until_the_daemon_has_gone() {
    let daemon = Daemon::start();
    let process = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = process.id();
    daemon.mock.state.lock().unwrap().stats.status.pid = pid;
    *daemon.mock.process.lock().unwrap() = Some(process);
    assert_eq!(daemon.ok(&["stop"]), format!("sluiced (process {pid}) has stopped\n"));
    assert!(daemon.fails(1, &["nf", "add", "fw"]).contains("shutting down"));
}

#[test]
fn the_server_answers_strangers_requests_with_the_right_codes() {
    let daemon = Daemon::start();
    let ask = |request: &str| daemon.raw(request);
    let head = "HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    assert!(ask(&format!("GET /v1/openapi.json {head}\r\n")).contains("\"openapi\": \"3.1.0\""));
    assert!(ask(&format!("GET /v1/metrics {head}\r\n")).contains("content-type: text/plain; version=0.0.4"));
    assert!(ask(&format!("GET /v1/nfs/fw.0 {head}\r\n")).starts_with("HTTP/1.1 200"));
    assert!(ask(&format!("GET /v2 {head}\r\n")).starts_with("HTTP/1.1 404"));
    let answer = ask(&format!("PUT /v1/nfs {head}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("\"hint\""), "{answer}");
    assert!(ask(&format!("POST /v1/nfs {head}content-length: 2\r\n\r\n[]")).starts_with("HTTP/1.1 422"));
    assert!(ask(&format!("POST /v1/nfs {head}content-length: 2\r\n\r\n[}}")).starts_with("HTTP/1.1 400"));
    let answer = ask(&format!("POST /v1/nfs {head}content-length: 27\r\n\r\n{{\"service\":\"fw\",\"kore\":123}}"));
    assert!(answer.starts_with("HTTP/1.1 422") && answer.contains("kore"), "{answer}");
    assert!(ask(&format!("POST /v1/nfs {head}content-length: 16\r\n\r\n{{\"service\":\"fw\"}}")).starts_with("HTTP/1.1 201"));
    assert!(
        ask(&format!("POST /v1/services {head}content-length: 33\r\n\r\n{{\"name\":\"fw\",\"exec\":\"/bin/false\"}}"))
            .starts_with("HTTP/1.1 409")
    );
    // All fields of this one may be left out.
    assert!(ask(&format!("POST /v1/trace {head}content-length: 12\r\n\r\n[null, null]")).starts_with("HTTP/1.1 422"));
    assert!(ask(&format!("POST /v1/trace {head}content-length: 15\r\n\r\n{{\"count\":99999}}")).starts_with("HTTP/1.1 422"));
    assert!(ask(&format!("POST /v1/apply {head}content-length: 99999999\r\n\r\n")).starts_with("HTTP/1.1 413"));
    assert!(ask(&format!("POST /v1/shutdown {head}content-length: 0\r\n\r\n")).starts_with("HTTP/1.1 202"));
    assert!(ask(&format!("GET /v1/status {head}\r\n")).starts_with("HTTP/1.1 503"));
}

#[test]
fn a_body_over_the_limit_is_refused_even_if_it_does_not_say_so() {
    let daemon = Daemon::with(Mock::new(), Limits { body_bytes: 64, ..Limits::default() });
    let body =
        format!("POST /v1/apply HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n50\r\n{}\r\n0\r\n\r\n", "x".repeat(80));
    assert!(daemon.raw(&body).starts_with("HTTP/1.1 413"));
}

#[test]
fn clients_that_say_nothing_or_half_are_closed() {
    // Longer than a client that has connected may wait for a core until it speaks.
    let limits = Limits { read: Duration::from_millis(500), clients: 1, ..Limits::default() };
    let daemon = Daemon::with(Mock::new(), limits);
    // Each ends only when the server closes; with one client slot, it also waits for the last.
    daemon.raw("");
    daemon.raw("GET /v1/sta");
    let half = daemon.raw("POST /v1/nfs HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{");
    assert!(half.starts_with("HTTP/1.1 408"), "{half}");
    let kept = daemon.raw("GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(kept.starts_with("HTTP/1.1 200"), "{kept}");
    assert_eq!(daemon.client().status().unwrap().cores, 2);
}

#[test]
fn a_client_that_never_reads_is_closed() {
    let limits = Limits { write: Duration::from_millis(20), clients: 1, ..Limits::default() };
    let daemon = Daemon::with(Mock::new(), limits);
    let mut deaf = UnixStream::connect(daemon.socket()).unwrap();
    // The answers are larger than a socket holds.
    let request = "GET /v1/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n";
    deaf.write_all(request.repeat(50).as_bytes()).unwrap();
    // It occupies the only client slot.
    assert_eq!(daemon.client().status().unwrap().cores, 2);
    let mut answers = Vec::new();
    let end = deaf.read_to_end(&mut answers);
    assert!(end.is_err() || answers.len() < 50 * sluice_manager::control::server::OPENAPI.len(), "it was closed");
}

#[test]
fn a_long_call_holds_up_nobody_and_may_take_only_so_long() {
    let mut mock = Arc::into_inner(Mock::new()).unwrap();
    let tracing = Arc::new(Barrier::new(2));
    mock.tracing = Some(tracing.clone());
    *mock.gate.0.lock().unwrap() = false;
    let daemon = Daemon::with(Arc::new(mock), Limits::default());
    let mut client = daemon.client();
    let tracer = std::thread::spawn(move || client.trace(&TraceRequest::default()));
    tracing.wait();
    assert_eq!(daemon.client().status().unwrap().cores, 2);
    assert!(!tracer.is_finished());
    *daemon.mock.gate.0.lock().unwrap() = true;
    daemon.mock.gate.1.notify_all();
    assert_eq!(tracer.join().unwrap().unwrap().packets.len(), 3);
}

#[test]
fn a_call_over_its_time_is_answered() {
    let mock = Mock::new();
    *mock.gate.0.lock().unwrap() = false;
    let daemon = Daemon::with(mock, Limits { call: Duration::from_millis(20), ..Limits::default() });
    let Err(ClientError::Api(error)) = daemon.client().trace(&TraceRequest::default()) else { panic!("it was answered") };
    assert_eq!(error.kind, ErrorKind::Timeout);
    *daemon.mock.gate.0.lock().unwrap() = true;
    daemon.mock.gate.1.notify_all();
}

#[test]
fn clients_that_say_nothing_make_room_for_those_that_do() {
    // The read limit is long: idle clients are closed only because others wait.
    let limits = Limits { read: Duration::from_secs(3600), clients: 4, ..Limits::default() };
    let daemon = Daemon::with(Mock::new(), limits);
    let mut idle: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(daemon.socket()).unwrap()).collect();
    // Half a request counts as none.
    idle.iter_mut().for_each(|stream| stream.write_all(b"GET /v1/st").unwrap());
    let (said, answer) = std::sync::mpsc::channel();
    let socket = daemon.socket();
    std::thread::spawn(move || said.send(Client::new(&socket).unwrap().stats().is_ok()));
    assert_eq!(answer.recv_timeout(Duration::from_secs(60)), Ok(true));
}

#[test]
fn many_clients_are_served_at_a_time() {
    let daemon = Daemon::with(Mock::new(), Limits { clients: 4, ..Limits::default() });
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = daemon.client();
                (0..5).for_each(|_| assert_eq!(client.status().unwrap().cores, 2));
            });
        }
    });
}

#[test]
fn the_socket_is_the_operators_and_goes_with_the_server() {
    let mut daemon = Daemon::start();
    let meta = std::fs::metadata(daemon.socket()).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    // A second daemon does not take the first one's socket away.
    let error = serve(&daemon.socket(), Mock::new(), Limits::default()).unwrap_err();
    assert!(matches!(&error, ServeError::InUse(path) if *path == daemon.socket()), "{error}");
    assert_eq!(std::fs::metadata(daemon.socket()).unwrap().ino(), meta.ino());
    // A client that is connected does not keep it from stopping.
    let mut client = daemon.client();
    client.status().unwrap();
    daemon.server.take().unwrap().stop();
    assert!(!daemon.socket().exists());
    assert!(matches!(client.status(), Err(ClientError::NotRunning { .. })));
}

#[test]
fn a_socket_of_a_dead_daemon_is_replaced_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = serve(&path, Mock::new(), Limits::default()).unwrap();
    assert_eq!(Client::new(&path).unwrap().status().unwrap().cores, 2);
    drop(server);
    std::fs::write(&path, "a file").unwrap();
    assert!(matches!(serve(&path, Mock::new(), Limits::default()), Err(ServeError::NotASocket(_))));
    assert!(matches!(serve(&folder.path().join("no/such"), Mock::new(), Limits::default()), Err(ServeError::Bind { .. })));
}

#[test]
fn a_client_survives_a_restart_of_the_daemon() {
    let mut daemon = Daemon::start();
    let mut client = daemon.client();
    client.status().unwrap();
    daemon.server.take().unwrap().stop();
    daemon.server = Some(serve(&daemon.socket(), daemon.mock.clone(), Limits::default()).unwrap());
    assert_eq!(client.status().unwrap().cores, 2);
}

fn open(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn other_users_are_refused_by_the_file_and_by_the_server() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let daemon = Daemon::start();
    open(daemon.folder.path(), 0o755);
    // A copy: the build folder may be closed to others.
    let program = daemon.folder.path().join("sluice");
    std::fs::copy(crate::support::sluice(), &program).unwrap();
    let as_other = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--socket").arg(daemon.socket()).args(args).uid(65_534).gid(65_534).current_dir("/");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(as_other(&["status"]).contains("no permission for"), "by the file");
    // With an open file mode, the server refuses them by the user that the kernel reports.
    open(&daemon.socket(), 0o666);
    for args in [&["status"][..], &["nf", "add", "fw"], &["stop"]] {
        let said = as_other(args);
        assert!(said.contains("this socket is the operator's alone"), "{said}");
    }
    assert_eq!(daemon.client().stats().unwrap().nfs.len(), 1);
}

#[test]
fn members_of_the_control_group_are_answered_and_no_others() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can run programs as another user");
    }
    const GROUP: u32 = 1_879_199_998;
    let folder = tempfile::tempdir().unwrap();
    open(folder.path(), 0o755);
    let socket = folder.path().join("control.sock");
    let server = serve_with(&socket, Some(GROUP), Mock::new(), Limits::default(), |app| app).unwrap();
    let program = folder.path().join("sluice");
    std::fs::copy(crate::support::sluice(), &program).unwrap();
    let status = |gid: u32, groups: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", &format!("--regid={gid}"), groups]).arg(&program);
        let output = command.arg("--socket").arg(&socket).arg("status").current_dir("/").output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let others = format!("--groups=4242,{GROUP}");
    for (gid, groups) in [(GROUP, "--clear-groups"), (65_534, &others)] {
        assert_eq!(status(gid, groups), (Some(0), String::new()), "{gid} {groups}");
    }
    let (code, said) = status(65_534, "--groups=4242");
    assert!(code == Some(1) && said.contains("control.group"), "by the file: {said}");
    // With an open file mode, the server refuses by the groups that the kernel reports.
    open(&socket, 0o666);
    let (code, said) = status(65_534, "--groups=4242");
    assert!(code == Some(1) && said.contains("this socket is the operator's alone"), "{said}");
    assert_eq!(status(65_534, &others).0, Some(0));
    server.stop();
    assert!(!socket.exists());
}
