//! `sluice bench slo-live`: SLOs of three tenants beside a rogue one.
//!
//! # Approach
//! All four run the same NF, each on a quarter of one core, from generators to a sink. First the NF
//! is profiled in this very setup ([`Profiled`]): on its quarter, while its three neighbours are
//! overloaded, throughput, and the 95th percentile of port-to-port latency against load. How
//! throughput depends on cache ways comes from the model of `sluice profile`; if the NF is not
//! built for tracing, it is taken not to depend on them. The SLOs ask for [`LOAD`] of the profiled
//! throughput within the latency at [`LATENCY_AT`] of it. The planner admits them, and the daemon
//! applies the placement. Twice a second the daemon's report on its promises is read; deliveries
//! and their latency are also counted independently.
//!
//! Variants: `kept` polices the input and guarantees each place its part of the core; `policed` and
//! `isolated` do one of them; `open` does neither; `default` does neither and uses the kernel's
//! scheduler without the daemon's. The param `rogue_times` is the fourth tenant's rate as a
//! multiple of what it was promised: 10, or 1 in one case of `kept`.
//!
//! A profile beside overloaded neighbours promises much more time than packets take beside policed
//! ones. `near` is `kept` with a latency that is close to what is delivered: the 95th percentile of
//! a run of `kept` is [`NEAR`] of it. The planner, which would refuse it, is not asked.
//!
//! Metrics that end in `.TENANT`: `promised_pps`, `delivered_pps`, `promised_ns`, `latency_ns_p95`,
//! `kept_ratio`, `unused_ratio`. `kept_ratio` is the share of the daemon's windows in which neither
//! throughput nor latency was violated, and at least [`ENOUGH`] of what was to be sent, up to what
//! was promised, arrived: an unused promise is not a kept one. `unused_ratio` is the share of the
//! windows that failed by that alone. Each window counts once.
//!
//! Metrics of the three tenants that keep to their rate:
//! - `offered_of_promised` (the least): what came from the generator;
//! - `delivered_of_due` (the least): what was offered is due, up to what was promised;
//! - `latency_of_promised` (the greatest 95th percentile);
//! - `kept_ratio` (the least);
//! - `promises_kept`: 1 if all were offered [`ENOUGH`] of what was promised and got [`ENOUGH`] of
//!   what was due, and 95 % of their packets in time.
//!
//! Of the reports, `named_ratio` is the share in which the daemon named the rogue, as sending too
//! much or as the cause of a violation; `wrongly_named_ratio` is the share in which it blamed
//! another tenant.
//!
//! # Limits
//! One core for NFs and one for the manager, so that it runs on two. Other load of the host is no
//! tenant, and breaks promises, too.
//!
//! Throughput and latency are measured here, because `sluice profile` measures NFs on whole cores.
//! The NF only burns cycles and hardly needs the cache, so the experiment shows nothing about
//! promises that depend on it.
//!
//! # Source
//! ResQ (NSDI 2018) keeps SLOs beside neighbours that exceed theirs; the experiment is ours.

use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde_json::Value;
use sluice_cache::host::{Processor, l3_caches};
use sluice_planner::admission::admit_all;
use sluice_slo::assignment::{Assignment, Promised};
use sluice_slo::curve::{Curve, Point};
use sluice_slo::digest::Digest;
use sluice_slo::placement::{Instance, PlacedServer, Placement, ServerShape};
use sluice_slo::profile::{FORM, Key, Profile, Source};
use sluice_slo::slo::{Promise, Slo, Workload};

use crate::bench::daemon::{Daemon, LAB};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Trials, nothing};
use crate::bench::measure::{Sample, sample};
use crate::bench::planner::whole::answer;
use crate::bench::report::Params;
use crate::bench::sched::{COST, Mode, chain_of, nf_of, params};
use crate::bench::setup::{Class, Setup, Traffic};
use crate::bench::stats::Window;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "slo-live",
    about: "three SLOs that are kept while a tenant sends ten times its rate (ResQ)",
    run: |args| Lab::measure(args, &[COST], |_| plan()),
};

/// The tenants; the last is the rogue.
const TENANTS: [&str; 4] = ["a", "b", "c", "rogue"];
const ROGUE: &str = TENANTS[3];
/// Tenants that keep to their rate.
const HONEST: [&str; 3] = [TENANTS[0], TENANTS[1], TENANTS[2]];
const NF: &str = "nf";
/// Cycles per packet.
const CYCLES: u64 = 2_000;
/// Packets per second for a neighbour while a profile is made: more than a core can process.
const FLOOD_PPS: f64 = 1.2e6;
/// Loads at which latency is profiled, as parts of the throughput.
const LOADS: [f64; 4] = [0.2, 0.4, 0.6, 0.8];
/// Margins of the profile for throughput and latency: the host is not quiet.
const MARGINS: (f64, f64) = (0.1, 0.5);
/// Requested throughput of an SLO, and the load whose latency it requests, as parts of the profiled
/// throughput.
const LOAD: f64 = 0.7;
const LATENCY_AT: f64 = 0.8;
/// Delivered latency, as a part of a near promise.
const NEAR: f64 = 0.7;
/// Part of a promised throughput that counts as kept: windows cut bursts.
const ENOUGH: f64 = 0.98;
/// Shortest measurement of a variant, in seconds: the daemon's windows last one.
const LEAST_SECONDS: f64 = 4.0;
/// Time per point of the profile, in seconds.
const POINT_SECONDS: f64 = 1.0;
/// Interval between two reports.
const LOOK: Duration = Duration::from_millis(500);
const TRAFFIC: &str = "64 B, 16 flows";

const GROUP: Group = Group {
    title: "Three SLOs, each on a quarter of a core, beside a tenant that sends a multiple of what it was promised",
    keys: &["rogue_times"],
    columns: &[
        Column::new("offered_of_promised", "offered, of promised", 1.0, 3),
        Column::new("delivered_of_due", "delivered, of due", 1.0, 3),
        Column::new("latency_of_promised", "p95, of promised", 1.0, 2),
        Column::new("promises_kept", "kept", 1.0, 0),
        Column::new("kept_ratio", "windows kept", 1.0, 2),
        Column::new("named_ratio", "rogue named", 1.0, 2),
        Column::new("wrongly_named_ratio", "another named", 1.0, 2),
        Column::new("delivered_pps.rogue", "rogue kpps", 1e3, 0),
        Column::new("drop_pps.policed", "policed kpps", 1e3, 0),
    ],
    plotted: 3,
    form: Form::Bars,
};

/// How promises are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Means {
    name: &'static str,
    police: bool,
    isolate: bool,
    mode: Mode,
}

const fn means(name: &'static str, police: bool, isolate: bool, mode: Mode) -> Means {
    Means { name, police, isolate, mode }
}

const MEANS: [Means; 5] = [
    means("kept", true, true, Mode::Sluice),
    means("policed", true, false, Mode::Sluice),
    means("isolated", false, true, Mode::Sluice),
    means("open", false, false, Mode::Sluice),
    means("default", false, false, Mode::Default),
];

/// The profile of the NF in this setup, made on first use.
type Profiled = Rc<OnceCell<Profile>>;

fn plan() -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, nothing, vec![(GROUP, |_| true)]);
    let profiled = Profiled::default();
    let cases = std::iter::once((MEANS[0], 1)).chain(MEANS.map(|means| (means, 10)));
    for (means, times) in cases {
        let of: Params = params(&[("rogue_times", times.into())]);
        let profiled = profiled.clone();
        plan.cases.push(Case::one(means.name, of, move |lab| {
            let assignment = admitted(made(lab, &profiled)?)?;
            one(lab, means, f64::from(times), &assignment)
        }));
    }
    let (of, delivered_ns) = (params(&[("rogue_times", 10.into())]), Cell::new(None));
    plan.cases.push(Case::one("near", of, move |lab| near(lab, 10.0, made(lab, &profiled)?, &delivered_ns)));
    plan
}

/// The profile, which is made on first use.
fn made<'a>(lab: &Lab, profiled: &'a Profiled) -> Result<&'a Profile, Miss> {
    if profiled.get().is_none() {
        let _ = profiled.set(profile(lab)?);
    }
    Ok(profiled.get().context("the NF was not profiled")?)
}

/// Promises near what is delivered. `delivered_ns` is the latency in a run with those that the
/// planner admits, once there was one.
fn near(lab: &Lab, times: f64, profile: &Profile, delivered_ns: &Cell<Option<f64>>) -> Result<Sample, Miss> {
    let assignment = admitted(profile)?;
    let ns = match delivered_ns.get() {
        Some(ns) => ns,
        None => {
            let sample = one(lab, MEANS[0], times, &assignment)?;
            let of_each = HONEST.iter().filter_map(|tenant| sample.get(&format!("latency_ns_p95.{tenant}")).copied());
            of_each.reduce(f64::max).context("no packet of the tenants was timed")?
        }
    };
    delivered_ns.set(Some(ns));
    one(lab, MEANS[0], times, &within(assignment, ns / 1e3 / NEAR))
}

/// An assignment with another latency in its promises.
fn within(mut assignment: Assignment, latency_us: f64) -> Assignment {
    for promised in &mut assignment.slos {
        let throughput_pps = promised.slo.promise.throughput_pps().unwrap_or(0.0);
        promised.slo.promise = Promise::Reserved { throughput_pps, latency_us };
    }
    assignment
}

fn setup(lab: &Lab, means: Means, rates: [f64; 4]) -> Setup {
    let core = lab.cores.shared();
    let traffic = |(name, rate): (&str, f64)| Traffic {
        name: format!("to-{name}"),
        chain: name.into(),
        rate,
        flows: 16,
        ..Traffic::default()
    };
    let Means { police, isolate, .. } = means;
    Setup {
        manager_core: lab.manager_core,
        sched: Some(means.mode.sched(Class::Other)),
        traffic: TENANTS.into_iter().zip(rates).map(traffic).collect(),
        services: vec![nf_of(NF, core, CYCLES)],
        chains: TENANTS.map(|tenant| chain_of(tenant, &[NF])).into(),
        more: format!(
            "[promises]\nserver = \"s0\"\ncores = [{core}, {core}, {core}, {core}]\npolice = {police}\nisolate = {isolate}\n"
        ),
        ..Setup::default()
    }
}

/// The shape of this host: four places on one core.
fn shape() -> ServerShape {
    let system = Path::new("/");
    let cache = l3_caches(system).into_iter().find(|cache| cache.ways > 2);
    let (llc_ways, way_bytes) = cache.map_or((11, 1 << 20), |cache| (cache.ways.min(64), cache.bytes / u64::from(cache.ways)));
    let cpu = Processor::read(system).model;
    ServerShape { cpu, cores: 4, llc_ways, way_bytes, ddio_ways: 1, min_ways: 1, classes: 2, memory_mib: 1024, path_us: 0 }
}

fn slo(name: &str, throughput_pps: f64, latency_us: f64) -> Slo {
    Slo {
        name: name.into(),
        workload: Workload::Nf(NF.into()),
        configuration: Digest::of_configuration(&nf_of(NF, 0, CYCLES).args, &[]),
        traffic: TRAFFIC.into(),
        promise: Promise::Reserved { throughput_pps, latency_us },
    }
}

/// The 95th percentile of a tenant's latency between two readings, in nanoseconds.
fn p95(window: &Window<'_>, tenant: &str) -> Option<f64> {
    Some(window.latency(tenant).quantile(0.95)? as f64)
}

/// Applies an assignment: each tenant on its quarter, with its promise.
fn place(daemon: &Daemon, assignment: &Assignment) -> anyhow::Result<()> {
    daemon.ask("PUT", "/v1/placement", Some(&serde_json::to_value(assignment)?)).map(drop)
}

/// Throughput and latency of one tenant at this load, beside three that are overloaded.
fn point(lab: &Lab, offered_pps: f64) -> Result<(f64, f64), Miss> {
    let kept = Means { police: false, ..MEANS[0] };
    let daemon = lab.start(&setup(lab, kept, [offered_pps, FLOOD_PPS, FLOOD_PPS, FLOOD_PPS]))?;
    let mut server = PlacedServer::empty("s0", &shape());
    server.instances = TENANTS
        .iter()
        .zip(0..)
        .map(|(tenant, place)| Instance {
            slo: tenant.to_string(),
            number: 0,
            cores: vec![place],
            ways: 0,
            memory_mib: 1,
            capacity_pps: FLOOD_PPS,
            load_pps: FLOOD_PPS,
        })
        .collect();
    let slos = TENANTS.map(|tenant| Promised { slo: slo(tenant, FLOOD_PPS, 1e6), profile: None }).into();
    place(&daemon, &Assignment { server, slos })?;
    lab.warm_up()?;
    let before = lab.read(&daemon)?;
    lab.programs.pause(Duration::from_secs_f64(POINT_SECONDS))?;
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    let window = Window { before: &before.stats, after: &after.stats };
    let latency = p95(&window, TENANTS[0]).with_context(|| format!("no packet was timed at {offered_pps} packets/s"))?;
    Ok((window.exit_pps(TENANTS[0]), latency))
}

/// The result of `sluice profile` for the NF on a whole core, if it is built for tracing.
fn modelled(lab: &Lab) -> Result<Option<Profile>, Miss> {
    let program = lab.programs.path(COST);
    let mut command = Command::new(lab.programs.path(LAB));
    command.arg("profile").arg(&program).args(["--traffic", "flows=16", "--cache", "simulated", "--noisy", "--json", "--"]);
    match answer(command.args(nf_of(NF, 0, CYCLES).args)) {
        Ok(profile) => Ok(Some(serde_json::from_value(profile).context("sluice profile printed no profile")?)),
        Err(Miss::LeaveOut(why)) => {
            eprintln!("  its throughput is taken to be the same with any share of the cache: {why}");
            Ok(None)
        }
        Err(failed) => Err(failed),
    }
}

/// The curves of the NF on its quarter of a core.
fn profile(lab: &Lab) -> Result<Profile, Miss> {
    eprintln!("  profile of the NF on a quarter of a core, beside neighbours that have more than they can do");
    let (throughput, _) = point(lab, FLOOD_PPS)?;
    let mut latency: Vec<Point> = Vec::new();
    for load in LOADS {
        let (_, ns) = point(lab, load * throughput)?;
        // A monotone upper envelope.
        let highest = latency.last().map_or(0.0, |point| point.y);
        latency.push(Point { x: load * throughput, y: highest.max(ns / 1e3) });
    }
    let modelled = modelled(lab)?;
    let ways = f64::from(shape().ways());
    let against_ways = |profile: &Profile| {
        let most = profile.throughput_pps(profile.best_ways).max(f64::MIN_POSITIVE);
        let part = |x: f64| throughput * profile.throughput_pps(x as u32) / most;
        profile.throughput.points.iter().map(|point| Point { x: point.x, y: part(point.x) }).collect()
    };
    let same = || vec![Point { x: 1.0, y: throughput }, Point { x: ways, y: throughput }];
    let points: Vec<Point> = modelled.as_ref().map_or_else(same, against_ways);
    let floor = |profile: &Profile| {
        let most = profile.throughput.points.last()?.y;
        Some(throughput * profile.floor_pps? / most)
    };
    let floor_pps = modelled.as_ref().map_or(Some(throughput), floor);
    let floor_pps = floor_pps.and_then(|floor| Some(floor.min(points.first()?.y)));
    let curve = |points: Vec<Point>, margin| Curve { measured: points.len() as u32, points, margin, ..Curve::default() };
    let program = lab.programs.path(COST);
    let bytes = std::fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    let profile = Profile {
        form: FORM,
        key: Key {
            workload: Workload::Nf(NF.into()),
            binaries: vec![Digest::of(&bytes)],
            configuration: slo(NF, 1.0, 1.0).configuration,
            traffic: TRAFFIC.into(),
            cpu: shape().cpu,
        },
        source: modelled.as_ref().map_or(Source::None, |profile| profile.source),
        cores: 1,
        memory_mib: 1,
        best_ways: points.last().map_or(0, |point| point.x as u32),
        floor_pps,
        throughput: curve(points, MARGINS.0),
        latency: curve(latency, MARGINS.1),
        cache: modelled.and_then(|profile| profile.cache),
        stages: Vec::new(),
    };
    profile.check().map_err(|error| anyhow!("the profile makes no sense: {error}"))?;
    Ok(profile)
}

/// The assignment of four SLOs that the planner admits.
fn admitted(profile: &Profile) -> anyhow::Result<Assignment> {
    let throughput_pps = LOAD * profile.throughput_pps(profile.best_ways);
    let at = LATENCY_AT * profile.throughput.points[0].y;
    let latency_us = profile.latency.at(at).context("the latency curve has no such load")? * (1.0 + profile.latency.margin);
    let slos = TENANTS.map(|tenant| slo(tenant, throughput_pps, latency_us));
    let mut placement = Placement::empty(1, &shape());
    let asked: Vec<(&Slo, &Profile)> = slos.iter().map(|slo| (slo, profile)).collect();
    for result in admit_all(&mut placement, &asked) {
        result.map_err(|refusal| anyhow!("an SLO is not admitted: {refusal}"))?;
    }
    let promised = slos.map(|slo| Promised { slo, profile: Some(profile.key.clone()) });
    Assignment::of(&placement, "s0", promised).context("the placement has no server s0")
}

/// One counter of a promise in the daemon's report.
fn count(promises: &Value, tenant: &str, what: &str) -> f64 {
    let all = promises["promises"].as_array();
    let one = all.and_then(|all| all.iter().find(|promise| promise["slo"] == tenant));
    one.and_then(|promise| promise[what].as_f64()).unwrap_or(0.0)
}

/// Whether a report names the rogue, and whether it names another tenant.
fn named(promises: &Value) -> (bool, bool) {
    let all: Vec<&Value> = promises["promises"].as_array().into_iter().flatten().collect();
    let exceeds = |promise: &&&Value| !promise["excess"].is_null();
    let sends_more = all.iter().filter(exceeds).filter_map(|promise| promise["slo"].as_str());
    let causes = all.iter().flat_map(|promise| promise["violations"].as_array().into_iter().flatten());
    let causes = causes.filter_map(|violation| violation["cause"]["tenant"].as_str());
    let names: Vec<&str> = sends_more.chain(causes).collect();
    (names.contains(&ROGUE), names.iter().any(|name| *name != ROGUE))
}

/// Windows of a promise that ended during observation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Windows {
    all: f64,
    /// Windows in which it was not kept.
    violated: f64,
    /// Unviolated windows in which too little arrived.
    idle: f64,
}

impl Windows {
    /// Adds the windows that ended between two reports; `due_pps` is what was to arrive.
    fn add(&mut self, before: &Value, now: &Value, tenant: &str, due_pps: f64) {
        let since = |what: &str| count(now, tenant, what) - count(before, tenant, what);
        let ended = since("windows");
        if ended <= 0.0 {
            return;
        }
        // Both may be violated in one window.
        let violated = since("throughput_violated").max(since("latency_violated"));
        self.all += ended;
        self.violated += violated;
        if violated <= 0.0 && count(now, tenant, "offered_pps") < ENOUGH * due_pps {
            self.idle += 1.0;
        }
    }

    /// The part in which the promise was kept; none if there were no windows.
    fn kept(&self) -> Option<f64> {
        (self.all > 0.0).then(|| 1.0 - (self.violated + self.idle) / self.all)
    }

    /// The part that was not kept for want of packets alone; none if there were no windows.
    fn unused(&self) -> Option<f64> {
        (self.all > 0.0).then(|| self.idle / self.all)
    }
}

fn one(lab: &Lab, means: Means, times: f64, assignment: &Assignment) -> Result<Sample, Miss> {
    let promised = |tenant: &str| {
        let slo = assignment.slos.iter().map(|promised| &promised.slo).find(|slo| slo.name == tenant);
        slo.map_or((0.0, 0.0), |slo| (slo.promise.throughput_pps().unwrap_or(0.0), slo.promise.latency_us() * 1e3))
    };
    let to_send = |tenant: &str| promised(tenant).0 * if tenant == ROGUE { times } else { 1.0 };
    let setup = setup(lab, means, TENANTS.map(to_send));
    let daemon = lab.start(&setup)?;
    place(&daemon, assignment)?;
    lab.warm_up()?;
    let first = daemon.ask("GET", "/v1/promises", None)?;
    let before = lab.read(&daemon)?;
    let until = Instant::now() + Duration::from_secs_f64(lab.args.seconds.max(LEAST_SECONDS));
    let (mut looks, mut last) = (Vec::new(), first);
    let mut windows = [Windows::default(); TENANTS.len()];
    while Instant::now() < until {
        lab.programs.pause(LOOK.min(until.saturating_duration_since(Instant::now())))?;
        let now = daemon.ask("GET", "/v1/promises", None)?;
        if count(&now, ROGUE, "windows") > 0.0 {
            looks.push(named(&now));
        }
        for (windows, tenant) in windows.iter_mut().zip(TENANTS) {
            windows.add(&last, &now, tenant, to_send(tenant).min(promised(tenant).0));
        }
        last = now;
    }
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    let window = Window { before: &before.stats, after: &after.stats };
    let mut out = sample(&setup, &before, &after);
    // For tenants with different rates, it means nothing.
    out.remove("jain");
    for (tenant, windows) in TENANTS.into_iter().zip(windows) {
        let (pps, ns) = promised(tenant);
        out.insert(format!("promised_pps.{tenant}"), pps);
        out.insert(format!("promised_ns.{tenant}"), ns);
        out.extend(p95(&window, tenant).map(|ns| (format!("latency_ns_p95.{tenant}"), ns)));
        out.extend(windows.kept().map(|kept| (format!("kept_ratio.{tenant}"), kept)));
        out.extend(windows.unused().map(|unused| (format!("unused_ratio.{tenant}"), unused)));
    }
    put_worst(&mut out, &window, &promised);
    if looks.is_empty() {
        return Err(Miss::Failed(anyhow!("the daemon has checked no window")));
    }
    let part = |of: &dyn Fn(&(bool, bool)) -> bool| looks.iter().filter(|look| of(look)).count() as f64 / looks.len() as f64;
    out.insert("named_ratio".into(), part(&|look| look.0));
    out.insert("wrongly_named_ratio".into(), part(&|look| look.1));
    Ok(out)
}

/// Adds how the honest tenant fared that fared worst, by what is known of each.
fn put_worst(out: &mut Sample, window: &Window<'_>, promised: &dyn Fn(&str) -> (f64, f64)) {
    let worst = |worse: fn(f64, f64) -> f64, of: &dyn Fn(&str) -> Option<f64>| {
        let all = HONEST.iter().map(|tenant| of(tenant)).collect::<Option<Vec<f64>>>()?;
        all.into_iter().reduce(worse)
    };
    // A generator that shares its core may send less than configured.
    let offered = |tenant: &str| window.rx_pps(&format!("to-{tenant}"));
    let due = |tenant: &str| offered(tenant).min(promised(tenant).0);
    let sent = worst(f64::min, &|tenant| Some(offered(tenant) / promised(tenant).0));
    let delivered = worst(f64::min, &|tenant| Some(out.get(&format!("delivered_pps.{tenant}"))? / due(tenant)));
    let late = worst(f64::max, &|tenant| Some(out.get(&format!("latency_ns_p95.{tenant}"))? / promised(tenant).1));
    let kept = worst(f64::min, &|tenant| out.get(&format!("kept_ratio.{tenant}")).copied());
    let is_kept = |((sent, delivered), late): ((f64, f64), f64)| sent >= ENOUGH && delivered >= ENOUGH && late <= 1.0;
    let all_kept = sent.zip(delivered).zip(late).map(|of| f64::from(u8::from(is_kept(of))));
    let more = [
        ("offered_of_promised", sent),
        ("delivered_of_due", delivered),
        ("latency_of_promised", late),
        ("kept_ratio", kept),
        ("promises_kept", all_kept),
    ];
    out.extend(more.into_iter().filter_map(|(metric, value)| Some((metric.to_string(), value?))));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::lab::tests::lab;

    /// A profile for a quarter of a core, with latencies.
    fn profile() -> Profile {
        let curve = |points: &[(f64, f64)], margin| Curve {
            points: points.iter().map(|&(x, y)| Point { x, y }).collect(),
            margin,
            ..Curve::default()
        };
        let ways = f64::from(shape().ways());
        Profile {
            form: FORM,
            key: Key {
                workload: Workload::Nf(NF.into()),
                binaries: vec![Digest::of(b"nf")],
                configuration: slo(NF, 1.0, 1.0).configuration,
                traffic: TRAFFIC.into(),
                cpu: shape().cpu,
            },
            source: Source::None,
            cores: 1,
            memory_mib: 1,
            throughput: curve(&[(1.0, 2e5), (ways, 2e5)], MARGINS.0),
            latency: curve(&[(4e4, 800.0), (8e4, 900.0), (12e4, 1_000.0), (16e4, 4_000.0)], MARGINS.1),
            best_ways: shape().ways(),
            floor_pps: Some(2e5),
            cache: None,
            stages: Vec::new(),
        }
    }

    #[test]
    fn what_is_asked_for_is_admitted_a_place_each() {
        let assignment = admitted(&profile()).unwrap();
        assert_eq!(assignment.check(), Ok(()));
        let mut places: Vec<u32> = assignment.server.instances.iter().flat_map(|instance| instance.cores.clone()).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2, 3]);
        assert!(assignment.server.instances.iter().all(|instance| instance.ways == 0), "no cache makes it faster");
        let promised = assignment.throughput_pps(&assignment.slos[3].slo).unwrap();
        assert!((promised - LOAD * 2e5 * 0.9).abs() < 1.0, "{promised}");
        assert_eq!(assignment.slos[0].slo.promise.latency_us(), 6_000.0);
        // A near promise differs in its latency alone.
        let near = within(assignment.clone(), 400.0);
        assert_eq!((near.check(), near.slos[3].slo.promise.latency_us()), (Ok(()), 400.0));
        assert_eq!(within(near, 6_000.0), assignment);
    }

    #[test]
    fn each_tenant_has_a_port_and_a_chain_of_its_own() {
        let setup = setup(&lab(1), MEANS[4], [1.0, 2.0, 3.0, 4.0]);
        let led: Vec<(&str, f64)> = setup.traffic.iter().map(|t| (t.chain.as_str(), t.rate)).collect();
        assert_eq!(led, [("a", 1.0), ("b", 2.0), ("c", 3.0), ("rogue", 4.0)]);
        assert!(setup.more.contains("police = false\nisolate = false"), "{}", setup.more);
        let names: Vec<String> = plan().cases.iter().map(|case| format!("{} {}", case.name, case.params["rogue_times"])).collect();
        assert_eq!(names, ["kept 1", "kept 10", "policed 10", "isolated 10", "open 10", "default 10", "near 10"]);
    }

    #[test]
    fn a_window_that_was_violated_or_idle_counts_once() {
        let look = |windows: u32, throughput: u32, latency: u32, offered: f64| {
            let (slo, counts) = ("a", [("windows", windows), ("throughput_violated", throughput), ("latency_violated", latency)]);
            let mut promise = json!({"slo": slo, "offered_pps": offered});
            counts.into_iter().for_each(|(name, count)| promise[name] = count.into());
            json!({ "promises": [promise] })
        };
        let seen = |looks: &[Value]| {
            let mut windows = Windows::default();
            looks.windows(2).for_each(|two| windows.add(&two[0], &two[1], "a", 1e5));
            windows
        };
        let first = look(2, 1, 0, 1e5);
        assert_eq!(seen(&[first.clone(), first.clone()]).kept(), None);
        // No window has ended in the second report; too little came in the third window.
        let kept = seen(&[first.clone(), look(3, 1, 0, 1e5), look(3, 1, 0, 0.0), look(4, 1, 0, 1e5), look(5, 1, 0, 0.0)]);
        assert_eq!((kept, kept.kept()), (Windows { all: 3.0, violated: 0.0, idle: 1.0 }, Some(1.0 - 1.0 / 3.0)));
        // Late and too little in the first one, both violated in the second.
        let violated = seen(&[first.clone(), look(3, 1, 1, 0.0), look(4, 2, 2, 1e5), look(5, 2, 2, 1e5), look(6, 2, 2, 1e5)]);
        assert_eq!((violated, violated.kept()), (Windows { all: 4.0, violated: 2.0, idle: 0.0 }, Some(0.5)));
    }

    #[test]
    fn the_rogue_is_named_as_a_sender_or_as_a_cause() {
        let found = |of: Value| named(&json!({ "promises": of }));
        let quiet = json!({"slo": "a", "excess": null, "violations": []});
        assert_eq!(found(json!([quiet])), (false, false));
        assert_eq!(found(json!([quiet, {"slo": "rogue", "excess": {"offered_pps": 1.0}, "violations": []}])), (true, false));
        let blames = |who: Value| json!([{"slo": "a", "excess": null, "violations": [{"cause": who}]}]);
        assert_eq!(found(blames(json!({"tenant": "rogue"}))), (true, false));
        assert_eq!(found(blames(json!({"tenant": "b"}))), (false, true));
        assert_eq!(found(blames(Value::Null)), (false, false));
    }
}
