//! `sluice bench chaos`: random changes and faults under load, with exact packet counts.
//!
//! Do the daemon's books balance, and are other tenants undisturbed?
//!
//! # Terms
//! - *Step*: one action: a request, a configuration, a signal.
//! - *Round*: some steps, after which everything is counted.
//! - *Life*: some rounds, after which the daemon itself is killed and another takes its place.
//! - *Protected*: of chains: no step names them (`site`).
//!
//! # Approach
//! The seed and the step's number alone decide a step (`step`), not answers and not times: the same
//! seed does the same things in the same order, for as long as the run lasts. NFs that break the
//! rules ([`hostile`]) run in chains beside the protected ones, in their tenant and in others.
//! Generated packets are numbered; sinks count lost, reordered and duplicated ones.
//!
//! After each round, all generators but protected ones are removed. Then
//! - each chain has as many packets that entered as left or were dropped for a counted reason,
//!   exactly, and so have all chains together that were removed meanwhile;
//! - protected chains have no lost, reordered, duplicated or altered packet, have delivered
//!   packets, and have the NFs that they had;
//! - totals of dropped packets have not decreased, and the daemon's descriptors and memory have not
//!   grown beyond a bound.
//!
//! At the end of each life all generators are removed. Then the books of protected chains balance
//! as well, as many packets have left ports as have left chains, and each frame is in the pool of
//! its own memory, once. Then traffic resumes, and the daemon is killed in the middle of it, or
//! stopped at the very end. After that no process, cgroup or namespace is left on the host, and
//! after a stop nothing in the folder of its sockets. The daemon answers each request, and none
//! with an internal error.
//!
//! # Limits
//! The latency and throughput of protected chains are reported, but fail nothing. Packets inside
//! the daemon when it was killed are gone, and not counted. Two runs of one seed have the same
//! steps at different times.

mod attacks;
mod draw;
pub mod hostile;
mod site;
mod step;
pub mod watch;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, PidfdFlags, Signal as Sys, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use sluice_shm::histogram::Histogram;

use crate::bench::daemon::{Daemon, LAB};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::sched::params;
use crate::bench::table::{Column, Form, Group};
use crate::bench::{daemon, stats};
use sluice_api::model::Stats;

use site::{Site, SiteHost};
use step::{Call, ROUND, ROUNDS_OF_A_LIFE, Signal, Step};
use watch::Size;

pub const EXPERIMENT: Experiment = Experiment {
    name: "chaos",
    about: "random changes, kills and hostile NFs; packets are counted (--seconds 600 --seed S --repeats 1)",
    run,
};

/// Time limit for packets to leave chains that nothing enters, and for killed processes to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Polling interval of waits.
const LOOK: Duration = Duration::from_millis(20);
/// Traffic before a daemon is killed.
const LAST: Duration = Duration::from_millis(300);
/// Packets of a protected chain after which each of its flows has had some.
const STARTED: u64 = 1_000;
/// Findings after which a run stops.
const ENOUGH: usize = 20;
/// Last steps that are printed with a finding.
const LAST_STEPS: usize = 25;

/// All protected chains have their own tenants.
const APART: &str = "apart";
/// One protected chain shares the tenant of NFs that break the rules, and their core.
const AMONG: &str = "among";
/// As `APART`, and some chains pass a kernel bridge in a network namespace.
const FOREIGN: &str = "foreign";
/// As `APART`, with two packet threads that both receive and forward, and fresh memory for a tenant
/// after each stop for violations.
const THREADS: &str = "threads";
const VARIANTS: [&str; 4] = [APART, AMONG, FOREIGN, THREADS];

const GROUP: Group = Group {
    title: "Everything at once",
    keys: &["seed"],
    columns: &[
        Column::new("findings_count", "findings", 1.0, 0),
        Column::new("steps_count", "steps", 1.0, 0),
        Column::new("refused_count", "refused", 1.0, 0),
        Column::new("signals_count", "signals", 1.0, 0),
        Column::new("lives_count", "lives", 1.0, 0),
        Column::new("delivered_count", "protected packets", 1.0, 0),
        Column::new("delivered_percent", "of offered %", 1.0, 1),
        Column::new("lost_count", "lost", 1.0, 0),
        Column::new("latency_ns_p50", "p50 ms", 1e6, 2),
        Column::new("latency_ns_p999", "p99.9 ms", 1e6, 2),
    ],
    plotted: 1,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    // Each repetition has its own seed.
    let lab = Lab::here(&BenchArgs { repeats: 1, ..args.clone() }, &site::PROGRAMS)?;
    let findings = std::rc::Rc::new(RefCell::new(Vec::new()));
    let mut plan = Trials::new(EXPERIMENT.name, nothing, vec![(GROUP, |_| true)]);
    let seeds = (args.seed..).take(args.repeats as usize);
    for (seed, name) in seeds.flat_map(|seed| VARIANTS.map(|name| (seed, name))) {
        let of = params(&[("seed", seed.into())]);
        if name == THREADS && lab.cores.besides_manager() == [lab.manager_core] {
            plan.leave_out(name, of, "it needs two cores");
            continue;
        }
        if name == FOREIGN && !(rustix::process::geteuid().is_root() && Path::new("/sbin/ip").exists()) {
            plan.leave_out(name, of, "network namespaces need root, and `ip` (make deps)");
            continue;
        }
        let all = findings.clone();
        plan.cases.push(Case::one(name, of, move |lab| {
            let mut run = Run::start(lab, seed, name)?;
            let ended = run.go();
            let sample = run.sample();
            if let Err(error) = ended {
                lab.programs.go_on()?;
                run.find(format!("{error:#}"));
            }
            all.borrow_mut().extend(run.conclude());
            Ok(sample)
        }));
    }
    lab.run(&plan)?;
    let findings = findings.borrow();
    ensure!(findings.is_empty(), "{} findings:\n  {}", findings.len(), findings.join("\n  "));
    Ok(())
}

/// Modes of NFs that break the rules.
fn modes(variant: &str) -> Vec<&'static str> {
    let all = hostile::MODES.map(|(name, _)| name).into_iter().chain(attacks::ATTACKS.map(|(name, ..)| name));
    // NFs that overwrite packets harm those of their own tenant, which may include a protected
    // chain.
    all.filter(|name| variant != AMONG || !hostile::ALTER.contains(name)).collect()
}

/// This host, as configurations describe it.
fn host(lab: &Lab, variant: &str) -> SiteHost {
    let program = lab.programs.path(LAB);
    let is_root = rustix::process::geteuid().is_root();
    SiteHost {
        manager_cores: if variant == THREADS { vec![lab.manager_core, lab.cores.shared()] } else { vec![lab.manager_core] },
        cores: lab.cores.besides_manager(),
        hostile: (program.display().to_string(), vec!["hostile-nf".into()]),
        modes: modes(variant),
        is_root,
        among: variant == AMONG,
        // Named after this process, so that concurrent runs do not clash.
        netns: (variant == FOREIGN).then(|| format!("chaos-{}", std::process::id())),
        replaces_memory: variant == THREADS,
    }
}

/// A daemon, and the history of its run.
struct Run<'a> {
    lab: &'a Lab,
    host: SiteHost,
    variant: &'static str,
    seed: u64,
    daemon: Option<Daemon>,
    daemons: Vec<u32>,
    step: u64,
    /// One line per step.
    log: String,
    /// Checks that failed.
    findings: Vec<String>,
    /// Stopped processes, each with the step before which it continues.
    stopped: Vec<(u32, u64)>,
    checked: Stats,
    at_first: Option<Size>,
    sums: Sums,
    life_began: Instant,
}

/// Counts over all daemons.
#[derive(Default)]
struct Sums {
    latency: Histogram,
    refused: u64,
    signals: u64,
    delivered: u64,
    offered: f64,
    lost: f64,
}

/// Resolves `SERVICE#i` to the name of that instance now; leaves other words as they are.
fn meant(stats: &Stats, word: &str) -> String {
    let Some((service, index)) = word.split_once('#') else { return word.into() };
    let index: usize = index.parse().unwrap_or(0);
    let instances = stats.services.iter().find(|s| s.name == service).map(|s| &s.instances[..]).unwrap_or_default();
    instances.get(index % instances.len().max(1)).cloned().unwrap_or_else(|| format!("{service}.{index}"))
}

fn send(pid: u32, signal: Sys) -> bool {
    // A pidfd: no other process can take the number after it is opened.
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    pidfd_open(pid, PidfdFlags::empty()).is_ok_and(|process| pidfd_send_signal(&process, signal).is_ok())
}

impl<'a> Run<'a> {
    fn start(lab: &'a Lab, seed: u64, variant: &'static str) -> anyhow::Result<Self> {
        let host = host(lab, variant);
        lab.programs.has(LAB, LAB)?;
        let site = Site::at_rest(&host);
        let daemon = Daemon::start_with(&lab.programs, |run_dir| site.toml(&host, run_dir))?;
        let mut run = Self {
            lab,
            host,
            variant,
            seed,
            daemons: vec![daemon.pid()],
            daemon: Some(daemon),
            step: 0,
            log: String::new(),
            findings: Vec::new(),
            stopped: Vec::new(),
            checked: Stats::default(),
            at_first: None,
            sums: Sums::default(),
            life_began: Instant::now(),
        };
        run.settle()?;
        Ok(run)
    }

    fn daemon(&self) -> anyhow::Result<&Daemon> {
        self.daemon.as_ref().context("the daemon was stopped")
    }

    fn find(&mut self, what: String) {
        let line = format!("{} seed {} step {}: {what}", self.variant, self.seed, self.step);
        eprintln!("sluice bench: {line}");
        let _ = writeln!(self.log, "       ! {what}");
        self.findings.push(line);
    }

    fn find_all(&mut self, what: Vec<String>) {
        what.into_iter().for_each(|what| self.find(what));
    }

    /// Waits until the protected chains run with all their flows, and starts counting.
    ///
    /// A packet that came before its rule existed is not counted as lost. It shows when its flow
    /// goes on.
    fn settle(&mut self) -> anyhow::Result<()> {
        let daemon = self.daemon()?;
        self.checked = daemon.wait_for("packets in each protected chain", PATIENCE, |daemon| {
            let stats = daemon.stats()?;
            Ok(watch::left(&stats).values().all(|n| *n > STARTED).then_some(stats))
        })?;
        self.at_first = None;
        self.life_began = Instant::now();
        Ok(())
    }

    fn go(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(self.lab.args.seconds);
        while Instant::now() < end && self.findings.len() < ENOUGH {
            self.do_step()?;
            self.step += 1;
            if self.step.is_multiple_of(ROUND) {
                self.check()?;
                if self.step.is_multiple_of(ROUND * ROUNDS_OF_A_LIFE) && Instant::now() < end {
                    self.another_life()?;
                }
            }
            self.lab.programs.pause(Duration::from_millis(Step::pause_ms(self.seed, self.step)))?;
        }
        self.check()?;
        self.drain()?;
        self.stop()
    }

    fn do_step(&mut self) -> anyhow::Result<()> {
        let number = self.step;
        let (due, later) = std::mem::take(&mut self.stopped).into_iter().partition(|(_, until)| *until <= number);
        self.stopped = later;
        self.let_go(due);
        let step = Step::draw(&self.host, self.seed, number);
        let _ = write!(self.log, "{number:>6} {step}");
        let answer = match step {
            Step::Calls(calls) => self.call_all(&calls)?,
            Step::Apply(site) => {
                let config = site.toml(&self.host, &self.daemon()?.run_dir());
                let call = Call { method: "POST", address: "/v1/apply".into(), body: Some(json!({ "config": config })) };
                self.call_all(&[call])?
            }
            Step::Signal(nf, signal) => {
                let signal = match signal {
                    Signal::Kill => Sys::KILL,
                    Signal::Segv => Sys::SEGV,
                    Signal::Term => Sys::TERM,
                    Signal::Abrt => Sys::ABORT,
                };
                let pid = self.process_of(&nf)?;
                self.signal(pid, signal)
            }
            Step::Stop(nf, steps) => {
                let pid = self.process_of(&nf)?;
                self.stopped.extend(pid.map(|pid| (pid, number + steps)));
                self.signal(pid, Sys::STOP)
            }
            Step::KillZygote(service) => {
                let stats = self.daemon()?.stats()?;
                let zygote = stats.services.iter().find(|s| s.name == service).and_then(|s| s.zygote.as_ref()?.pid);
                self.signal(zygote, Sys::KILL)
            }
        };
        let _ = writeln!(self.log, " -> {answer}");
        Ok(())
    }

    fn process_of(&self, nf: &str) -> anyhow::Result<Option<u32>> {
        let stats = self.daemon()?.stats()?;
        let name = meant(&stats, nf);
        Ok(stats.nfs.iter().find(|nf| nf.name == name).and_then(|nf| nf.pid))
    }

    fn signal(&mut self, pid: Option<u32>, signal: Sys) -> String {
        let Some(pid) = pid else { return "no process".into() };
        let sent = send(pid, signal);
        self.sums.signals += u64::from(sent);
        format!("process {pid}{}", if sent { "" } else { " had ended" })
    }

    fn let_go(&mut self, stopped: Vec<(u32, u64)>) {
        for (pid, _) in stopped {
            send(pid, Sys::CONT);
        }
    }

    /// Makes calls concurrently, and returns the answers as text.
    fn call_all(&mut self, calls: &[Call]) -> anyhow::Result<String> {
        let socket = self.daemon()?.socket();
        let mut calls = calls.to_vec();
        if calls.iter().any(|call| call.address.contains('#')) {
            let stats = self.daemon()?.stats()?;
            for call in calls.iter_mut().filter(|call| call.address.contains('#')) {
                let parts = call.address.split('/').map(|part| meant(&stats, part)).collect::<Vec<_>>();
                call.address = parts.join("/");
                let _ = write!(self.log, " [{}]", call.address);
            }
        }
        let one = |call: &Call| daemon::call(&socket, call.method, &call.address, call.body.as_ref());
        let answers: Vec<anyhow::Result<(u16, Value)>> = match &calls[..] {
            [call] => vec![one(call)],
            calls => std::thread::scope(|scope| {
                let threads: Vec<_> = calls.iter().map(|call| scope.spawn(|| one(call))).collect();
                let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
                threads
                    .into_iter()
                    .map(|t| join(t).unwrap_or_else(|_| Err(anyhow::anyhow!("a thread of this program panicked"))))
                    .collect()
            }),
        };
        let mut said = Vec::new();
        for (call, answer) in calls.iter().zip(answers) {
            let (status, body) = answer?;
            let why = body["error"].as_str().unwrap_or_default();
            match status {
                200..300 => said.push(status.to_string()),
                400..500 => {
                    self.sums.refused += 1;
                    said.push(format!("{status} {}", why.lines().next().unwrap_or_default()));
                }
                _ => {
                    said.push(format!("{status} {why}"));
                    self.find(format!("{} {} is answered with {status}: {why}", call.method, call.address));
                }
            }
        }
        Ok(said.join("; "))
    }

    /// Removes all unprotected generators, waits until none of their packets is inside, and counts.
    fn check(&mut self) -> anyhow::Result<()> {
        let stopped = std::mem::take(&mut self.stopped);
        self.let_go(stopped);
        let stats = self.daemon()?.stats()?;
        self.find_all(watch::gone_back(&self.checked, &stats));
        self.checked.drops.clone_from(&stats.drops);
        let others =
            |names: Vec<&str>| names.into_iter().filter(|n| !site::is_protected(n)).map(str::to_string).collect::<Vec<_>>();
        let answer = self.daemon()?.ask("GET", "/v1/rules", None)?;
        let rules = others(answer.as_array().into_iter().flatten().filter_map(|rule| rule["name"].as_str()).collect());
        let ports =
            others(stats.ports.iter().filter(|p| site::GENERATORS.contains(&p.name.as_str())).map(|p| p.name.as_str()).collect());
        let calls =
            rules.iter().map(|name| format!("/v1/rules/{name}")).chain(ports.iter().map(|name| format!("/v1/ports/{name}")));
        for address in calls.collect::<Vec<_>>() {
            let (status, answer) = self.daemon()?.call("DELETE", &address, None)?;
            if status != 200 {
                self.find(format!("DELETE {address} is answered with {status}: {}", answer["error"]));
            }
        }
        let stats = self.wait_until(|stats| {
            let mut wrong = watch::unbalanced(stats, |name| !site::is_protected(name));
            let holds = stats.nfs.iter().filter(|nf| !site::is_protected(&nf.name) && nf.frames_held > 0);
            wrong.extend(holds.map(|nf| {
                format!("{} ({}) holds {} frames, and nothing enters its chains", nf.name, nf.state.word(), nf.frames_held)
            }));
            wrong
        })?;
        self.find_all(watch::gone_back(&self.checked, &stats));
        self.look_at_protected(&stats);
        self.checked = stats;
        // With only the protected part left, its size is comparable with the first one.
        let config = Site::at_rest(&self.host).toml(&self.host, &self.daemon()?.run_dir());
        self.daemon()?.ask("POST", "/v1/apply", Some(&json!({ "config": config })))?;
        let stats = self.wait_until(|stats| {
            let others = stats.nfs.iter().filter(|nf| !site::is_protected(&nf.name));
            others.map(|nf| format!("{} ({}) is still there, and its service is not", nf.name, nf.state.word())).collect()
        })?;
        self.find_all(watch::gone_back(&self.checked, &stats));
        self.checked.drops.clone_from(&stats.drops);
        // Cgroups, logs and memory of NFs are closed shortly after the NFs leave the lists.
        if let Some(first) = self.at_first.clone() {
            self.wait_until(|stats| match Size::of(stats.status.pid) {
                Ok(size) => size.grown_since(&first),
                Err(error) => vec![format!("the size of sluiced cannot be read: {error}")],
            })?;
        }
        let size = Size::of(stats.status.pid)?;
        let _ = writeln!(
            self.log,
            "       checked: {} descriptors, {} KiB, {:?}",
            size.descriptors(),
            size.memory_kib,
            stats.status.frames
        );
        self.at_first.get_or_insert(size);
        Ok(())
    }

    /// Checks and counts what protected chains did since the last check.
    fn look_at_protected(&mut self, stats: &Stats) {
        let (amiss, disturbed) = (watch::amiss(&self.checked, stats), watch::disturbed(&self.checked, stats));
        self.sums.lost += sum_lost(stats) - sum_lost(&self.checked);
        self.find_all(amiss);
        self.find_all(disturbed);
        let (now, then) = (watch::left(stats), watch::left(&self.checked));
        self.sums.delivered += now.iter().map(|(chain, n)| n.saturating_sub(then.get(chain).copied().unwrap_or(0))).sum::<u64>();
        let seconds = stats.time_ns.saturating_sub(self.checked.time_ns) as f64 / 1e9;
        self.sums.offered += seconds * Site::offered(&self.host);
        for chain in stats.chains.iter().filter(|c| site::is_protected(&c.name)) {
            let then = self.checked.chains.iter().find(|c| c.name == chain.name).map(|c| c.latency_ns.clone()).unwrap_or_default();
            self.sums.latency.merge(&stats::since(&chain.latency_ns, &then));
        }
    }

    /// Waits until `wrong` returns nothing; after `PATIENCE`, records what it returned.
    fn wait_until(&mut self, wrong: impl Fn(&Stats) -> Vec<String>) -> anyhow::Result<Stats> {
        let began = Instant::now();
        loop {
            let stats = self.daemon()?.stats()?;
            let found = wrong(&stats);
            if found.is_empty() {
                return Ok(stats);
            }
            if began.elapsed() > PATIENCE {
                self.find_all(found);
                return Ok(stats);
            }
            self.lab.programs.pause(LOOK)?;
        }
    }

    /// Ends all traffic; then every frame is back in its pool, and all books balance.
    fn drain(&mut self) -> anyhow::Result<()> {
        let config = Site::at_rest(&self.host).silent().toml(&self.host, &self.daemon()?.run_dir());
        self.daemon()?.ask("POST", "/v1/apply", Some(&json!({ "config": config })))?;
        let stats = self.wait_until(|stats| {
            let mut wrong = watch::unbalanced(stats, |_| true);
            wrong.extend(watch::unsent(stats));
            wrong.extend(watch::astray(stats));
            wrong
        })?;
        // Rules go with the generators or before them. A packet that finds no rule is no loss of
        // the chain.
        self.find_all(watch::amiss(&self.checked, &stats));
        self.find_all(watch::gone_back(&self.checked, &stats));
        self.checked = stats;
        Ok(())
    }

    /// Counts everything, kills the daemon under load, and starts another one in the same folder.
    fn another_life(&mut self) -> anyhow::Result<()> {
        self.drain()?;
        let _ = writeln!(self.log, "       another life: {:?}", self.checked.status.memories);
        // The configuration that the next step would have applied.
        let site = Site::random(&self.host, &mut draw::Draw::new(self.seed, self.step));
        let config = site.toml(&self.host, &self.daemon()?.run_dir());
        let call = Call { method: "POST", address: "/v1/apply".into(), body: Some(json!({ "config": config })) };
        let answer = self.call_all(&[call])?;
        let _ = writeln!(self.log, "       apply before the end -> {answer}");
        self.lab.programs.pause(LAST)?;
        let silent = Site::at_rest(&self.host).silent();
        let mut daemon = self.daemon.take().context("the daemon was stopped")?;
        let run_dir = daemon.run_dir();
        daemon.kill()?;
        let left = self.wait_for_the_end(&run_dir)?;
        for (pid, name) in left {
            self.find(format!("{name} (process {pid}) outlives the killed daemon"));
        }
        let started = daemon.start_again(&silent.toml(&self.host, &run_dir));
        let killed = std::mem::replace(&mut self.daemons, vec![daemon.pid()]);
        self.daemon = Some(daemon);
        started?;
        self.find_all(watch::things_of(&killed).into_iter().map(|what| format!("{what} is left of the killed daemon")).collect());
        self.daemons.extend(killed);
        self.wait_until(watch::astray)?;
        let config = Site::at_rest(&self.host).toml(&self.host, &run_dir);
        self.daemon()?.ask("POST", "/v1/apply", Some(&json!({ "config": config })))?;
        self.settle()
    }

    /// Waits until no process of the daemon is left; returns those that remain.
    fn wait_for_the_end(&self, run_dir: &Path) -> anyhow::Result<Vec<(u32, String)>> {
        let began = Instant::now();
        loop {
            let left = watch::processes_of(run_dir);
            if left.is_empty() || began.elapsed() > PATIENCE {
                return Ok(left);
            }
            self.lab.programs.pause(LOOK)?;
        }
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        let daemon = self.daemon.take().context("the daemon was stopped")?;
        let run_dir = daemon.run_dir();
        daemon.stop()?;
        for (pid, name) in self.wait_for_the_end(&run_dir)? {
            self.find(format!("{name} (process {pid}) is left after the stop"));
        }
        self.find_all(watch::things_of(&self.daemons).into_iter().map(|what| format!("{what} is left after the stop")).collect());
        if let Some(netns) = self.host.netns.as_ref().filter(|name| Path::new("/run/netns").join(name).exists()) {
            self.find(format!("the namespace {netns} is left after the stop"));
        }
        Ok(())
    }

    fn sample(&self) -> Sample {
        let mut out: Sample = BTreeMap::from([
            ("findings_count".into(), self.findings.len() as f64),
            ("steps_count".into(), self.step as f64),
            ("refused_count".into(), self.sums.refused as f64),
            ("signals_count".into(), self.sums.signals as f64),
            ("lives_count".into(), self.daemons.len() as f64),
            ("delivered_count".into(), self.sums.delivered as f64),
            ("lost_count".into(), self.sums.lost),
        ]);
        if self.sums.offered > 0.0 {
            out.insert("delivered_percent".into(), self.sums.delivered as f64 / self.sums.offered * 100.0);
        }
        for (metric, q) in [("latency_ns_p50", 0.5), ("latency_ns_p99", 0.99), ("latency_ns_p999", 0.999)] {
            out.extend(self.sums.latency.quantile(q).map(|ns| (metric.to_string(), ns as f64)));
        }
        out
    }

    /// Writes the steps to a file if requested or if there are findings, and returns the findings.
    fn conclude(self) -> Vec<String> {
        let file = match &self.lab.args.json {
            Some(json) => Some(json.with_extension(format!("{}-{}.steps", self.variant, self.seed))),
            None if !self.findings.is_empty() => Some(PathBuf::from(format!("chaos-{}-{}.steps", self.variant, self.seed))),
            None => None,
        };
        if let Some(file) = file {
            match std::fs::write(&file, &self.log) {
                Ok(()) => eprintln!("sluice bench: the steps are in {}", file.display()),
                Err(error) => eprintln!("sluice bench: cannot write the steps to {}: {error}", file.display()),
            }
        }
        if !self.findings.is_empty() {
            let lines: Vec<&str> = self.log.lines().collect();
            eprintln!("the last steps of seed {}:", self.seed);
            lines[lines.len().saturating_sub(LAST_STEPS)..].iter().for_each(|line| eprintln!("  {line:.300}"));
            let Self { seed, variant, lab, .. } = &self;
            eprintln!(
                "the same again: sluice bench chaos --only {variant} --seed {seed} --repeats 1 --seconds {}",
                lab.args.seconds
            );
            if let Some(daemon) = &self.daemon {
                eprintln!("sluiced says: {}", daemon.log());
            }
        }
        self.findings
    }
}

fn sum_lost(stats: &Stats) -> f64 {
    stats.ports.iter().filter(|p| site::is_protected(&p.name)).filter_map(|p| p.details.get("lost")).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_draws_all_modes_that_spare_its_protected_chains() {
        for variant in VARIANTS {
            let modes = modes(variant);
            assert!(attacks::ATTACKS.iter().all(|(name, ..)| modes.contains(name)), "{variant}");
            assert_eq!(hostile::ALTER.iter().any(|name| modes.contains(name)), variant != AMONG, "{variant}");
        }
    }
}
