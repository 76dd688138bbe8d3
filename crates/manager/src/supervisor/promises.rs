//! The SLO agent: keeps an assignment on the running system, measures it, and finds the causes of
//! violations. [`sluice_promises`] has its logic.
//!
//! An assignment is put in force in three steps, between which packets flow and other requests are
//! served: everything is checked, cache classes are changed, and new services and instances start;
//! these become ready; packets go to them, and what is no longer needed is removed. Classes change
//! in the last step instead if a class that an SLO has now and in the assignment would become
//! smaller or be removed: its instances carry the packets until then. A failure before packets go
//! to the new instances leaves everything as it was.

mod placing;
mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use sluice_cache::Origin;
use sluice_cache::host::Processor;
use sluice_policy::sched::reserve::Reservation;
use sluice_shm::clock::monotonic_ns;
use sluice_shm::histogram::Histogram;
use sluice_slo::assignment::{Assignment, AssignmentError, Program, Promised};
use sluice_slo::digest::Digest;
use sluice_slo::on_demand::Request;
use sluice_slo::placement::Instance;
use sluice_slo::slo::Slo;
use sluice_slo::watch::{Evaluation, TenantWindow, Terms, Violation, Watch, What};

use super::change::Gone;
use super::nfs::State;
use super::{Supervisor, SupervisorError};
use crate::controller::events::Subject;
use sluice_api::config::{self as model, Config, Service};
use sluice_api::model::EventKind;
use sluice_api::promise::{self as report, Placed};
use sluice_config::diff::{self, Change};
use sluice_config::host;
use sluice_dataplane::bucket::Bucket;
use sluice_dataplane::chain::DropReason;
use sluice_promises::classes::Classes;
use sluice_promises::overlay::{Overlaid, overlay, strip};
use sluice_promises::sight::{Counts, InstanceUse, OnDemand, Rates, Uncounted, Windows};
use sluice_promises::steer::{Steering, is_on_demand};

/// Length of a window, in nanoseconds.
const WINDOW_NS: u64 = 1_000_000_000;
/// Least packets that may come at once.
const LEAST_BURST: u64 = 64;
/// Entries of an SLO's most loaded instance among those that flows are spread over.
const SPREAD_PARTS: f64 = 16.0;

/// The result of an assignment: the changes, and the NFs that are leaving.
pub(super) type PlaceResult = Result<(Placed, Gone), SupervisorError>;

struct Kept {
    assignment: Assignment,
    services: BTreeMap<(String, String), String>,
    base: BTreeMap<String, Vec<String>>,
    /// Deviations from the profiles.
    notes: Vec<String>,
}

/// An assignment that is being put in force.
pub(super) struct Placing {
    assignment: Assignment,
    /// Services that were started for it, and instances beside those of existing services.
    started: Vec<String>,
    beside: Vec<u16>,
    /// The former cache classes, and those of instances on demand among them.
    classes: BTreeMap<String, u32>,
    own: BTreeMap<String, u32>,
    /// Whether the classes change when all instances are ready.
    is_late: bool,
    changes: Vec<sluice_api::change::Change>,
    until: Instant,
    reply: Sender<PlaceResult>,
}

/// An instance that is being added for an SLO on demand.
pub(super) struct Adding {
    pub(super) request: Request,
    pub(super) outcome: Receiver<PlaceResult>,
}

/// Observations of an SLO in the last window.
#[derive(Default)]
struct Last {
    rates: Rates,
    latency_us: Option<f64>,
    cpu: f64,
    occupancy_bytes: Option<u64>,
    evaluated: Evaluation,
}

pub(super) struct PromiseKeeper {
    pub(super) settings: model::Promises,
    times: bool,
    pub(super) classes: Classes,
    kept: Option<Kept>,
    pub(super) placing: Option<Placing>,
    pub(super) buckets: BTreeMap<String, Arc<Bucket>>,
    windows: Windows,
    window_s: f64,
    watch: Watch,
    last: BTreeMap<String, Last>,
    /// Bytes from memory for each class or watch, at the end of the last window.
    pub(super) traffic: BTreeMap<String, u64>,
    pub(super) uncounted: Uncounted,
    on_demand: Vec<OnDemand>,
    pub(super) steering: Steering,
    pub(super) adding: Option<Adding>,
    /// The outcome of restoring the placement after a restart.
    restoring: Option<Receiver<PlaceResult>>,
    /// Whether it was logged that SLOs on demand share no cache.
    pub(super) said_unshared: bool,
    /// Troubles with processes and classes, each logged once.
    pub(super) troubles: BTreeSet<String>,
}

impl PromiseKeeper {
    /// Whether there are no SLOs, and none is being placed.
    pub(super) fn are_none(&self) -> bool {
        self.kept.is_none() && self.placing.is_none() && self.adding.is_none() && self.restoring.is_none()
    }

    pub(super) fn open(config: &Config) -> Result<Self, SupervisorError> {
        let settings = &config.promises;
        let classes = Classes::open(settings).map_err(|error| SupervisorError::Invalid(error.to_string()))?;
        Ok(Self {
            settings: settings.clone(),
            times: config.manager.latency_sample > 0,
            classes,
            kept: None,
            placing: None,
            buckets: BTreeMap::new(),
            windows: Windows::default(),
            window_s: 0.0,
            watch: Watch::default(),
            last: BTreeMap::new(),
            traffic: BTreeMap::new(),
            uncounted: Uncounted::default(),
            on_demand: Vec::new(),
            steering: Steering::new(settings.police),
            adding: None,
            restoring: None,
            said_unshared: false,
            troubles: BTreeSet::new(),
        })
    }

    /// Reports that the placement from before a restart was not restored.
    fn not_restored(&mut self, why: &str) {
        self.trouble(format!("what was placed before the restart is not kept: {why}; place it anew"));
    }

    /// The bucket that limits a chain's input, if the chain has one.
    pub(super) fn bucket(&self, chain: &str) -> Option<Arc<Bucket>> {
        self.buckets.get(chain).cloned()
    }

    /// Cache ways that devices use too, by the cache control.
    pub(super) fn io_mask(&self) -> u32 {
        self.classes.io_mask()
    }

    /// Services that were made for the assignment.
    fn made(&self, config: &Config) -> Vec<Service> {
        let started = self.placing.iter().flat_map(|placing| &placing.started);
        let names: BTreeSet<&String> = self.kept.iter().flat_map(|kept| kept.services.values()).chain(started).collect();
        config.services.iter().filter(|service| names.contains(&service.name)).cloned().collect()
    }

    /// A configuration without what this agent has added to it.
    pub(super) fn base(&self, config: &Config) -> Config {
        let mut config = self.kept.as_ref().map_or_else(|| config.clone(), |kept| strip(config, &kept.services, &kept.base));
        let started: BTreeSet<&String> = self.placing.iter().flat_map(|placing| &placing.started).collect();
        config.services.retain(|service| !started.contains(&service.name));
        config
    }

    pub(super) fn slos(&self) -> impl Iterator<Item = &Slo> {
        self.kept.iter().flat_map(|kept| &kept.assignment.slos).map(|promised| &promised.slo)
    }

    /// The core of the nth different NF of an instance.
    fn core_of(&self, instance: &Instance, nth: usize) -> Option<usize> {
        let place = instance.cores.get(nth % instance.cores.len().max(1))?;
        self.settings.cores.get(*place as usize).copied()
    }

    /// The part of its core that a place is.
    fn part_of(&self, place: u32) -> f64 {
        let core = self.settings.cores.get(place as usize);
        core.map_or(0.0, |core| 1.0 / self.settings.cores.iter().filter(|other| *other == core).count() as f64)
    }

    /// The limit of an SLO's input: packets per second, and a burst.
    pub(super) fn limit(&self, assignment: &Assignment, slo: &Slo) -> Option<(f64, u64)> {
        let pps = if is_on_demand(slo) { self.steering.limit(slo) } else { assignment.throughput_pps(slo) };
        let pps = pps.filter(|_| self.settings.police)?;
        Some((pps, LEAST_BURST.max((pps * f64::from(self.settings.burst_us) / 1e6) as u64)))
    }

    /// The cache use of an SLO's instances, by number; `before` is the former window's traffic.
    fn uses(&mut self, assignment: &Assignment, slo: &Slo, seconds: f64, before: &BTreeMap<String, u64>) -> Vec<InstanceUse> {
        let mut all = Vec::new();
        for instance in assignment.instances(&slo.name) {
            let (class, watch) = self.steering.class_of(instance);
            let found = self.classes.usage(&class, watch.as_deref());
            // By both names: an instance that has changed its class is counted anew.
            let name = format!("{class}/{}", watch.unwrap_or_default());
            let was = before.get(&name).copied();
            self.traffic.extend(found.traffic.map(|now| (name, now)));
            let lines = found.traffic.zip(was).map(|(now, before)| now.saturating_sub(before) as f64 / 64.0);
            all.push(InstanceUse {
                number: instance.number,
                ways: self.classes.classes().get(&class).copied().unwrap_or(0),
                class,
                occupancy_bytes: found.occupancy,
                misses_per_s: lines.map(|lines| lines / seconds.max(1e-9)),
            });
        }
        all
    }

    /// Evaluates a window, with what was seen of all tenants and of each SLO.
    fn evaluate(&mut self, began: u64, now: u64, seen: &[TenantWindow], mut last: BTreeMap<String, Last>) {
        self.window_s = (now - began) as f64 / 1e9;
        for evaluated in self.watch.evaluate(began, now, seen) {
            if let Some(last) = last.get_mut(&evaluated.tenant) {
                last.evaluated = evaluated;
            }
        }
        self.last = last;
    }

    /// The SLOs that are violated, by the last window.
    fn broken(&self) -> BTreeSet<String> {
        let broken = self.last.iter().filter(|(_, last)| !last.evaluated.violations.is_empty());
        broken.map(|(slo, _)| slo.clone()).collect()
    }

    /// Notes whether latencies are measured from now on.
    pub(super) fn time(&mut self, times: bool) {
        self.times = times;
    }

    fn notes(&self) -> Vec<String> {
        let none = self.classes.why_none().filter(|_| self.kept.is_some());
        let mut notes: Vec<String> = none.map(|why| format!("no cache classes: {why}")).into_iter().collect();
        notes.extend(self.why_unshared());
        if !self.times && self.kept.is_some() {
            let why = "latencies are not measured (manager.latency_sample = 0): nobody knows whether they are kept, and SLOs on demand are not helped";
            notes.push(why.into());
        }
        notes.extend(self.kept.iter().flat_map(|kept| kept.notes.iter().cloned()));
        notes.extend(self.troubles.iter().cloned());
        notes
    }
}

fn said_of_violation(violation: &Violation) -> String {
    let (measured, promised) = (violation.measured, violation.promised);
    let what = match violation.what {
        What::Throughput => format!("broken: {measured:.0} packets per second are delivered of {promised:.0} promised"),
        What::Latency => format!("broken: the latency is {measured:.1} us, and {promised:.1} us are promised"),
    };
    let cause = violation.cause.as_ref().map_or(String::new(), |cause| format!("; {} takes more than it may", cause.tenant));
    format!("{what}{cause}")
}

/// An NF, and the instance of an SLO that it belongs to.
struct Member {
    nf: u16,
    slo: String,
    instance: Instance,
    /// Number among the different NFs of the SLO.
    nth: usize,
}

/// Checks that profiles are of this host and of the services of a configuration.
fn check_profiles(base: &Config, assignment: &Assignment) -> Result<(), AssignmentError> {
    let profiled: Vec<&Promised> = assignment.slos.iter().filter(|promised| promised.profile.is_some()).collect();
    if profiled.is_empty() {
        return Ok(());
    }
    let names: BTreeSet<&str> = profiled.into_iter().flat_map(|promised| promised.slo.workload.services()).collect();
    let programs = base.services.iter().filter(|service| names.contains(service.name.as_str()));
    let programs = programs.map(|service| (service.name.clone(), program_of(service))).collect();
    assignment.check_profiles(&Processor::read(std::path::Path::new("/")).model, &programs)
}

/// The program of a service, as far as it can be read; not one in a container, or of others.
fn program_of(service: &Service) -> Program {
    if service.container.is_some() || service.attach {
        return Program::default();
    }
    let exec = service.exec.as_ref().and_then(|exec| host::resolve_exec(exec, &host::Host::here()).ok());
    let env: Vec<_> = service.env.iter().map(|(key, value)| (key.into(), value.into())).collect();
    Program {
        binary: exec.and_then(|exec| std::fs::read(exec).ok()).map(|program| Digest::of(&program)),
        configuration: Some(Digest::of_configuration(&service.args, &env)),
    }
}

impl Supervisor {
    /// Refuses a change while a placement is under way.
    pub(super) fn not_placing(&self) -> Result<(), SupervisorError> {
        match self.promises.placing {
            Some(_) => Err(SupervisorError::Conflict("a placement is being taken; try again in a moment".into())),
            None => Ok(()),
        }
    }

    /// Refuses a change of a chain that has an SLO.
    pub(super) fn not_promised(&self, chain: &str) -> Result<(), SupervisorError> {
        match self.promises.slos().any(|slo| slo.name == chain) {
            true => {
                Err(SupervisorError::Conflict(format!("an SLO is kept by chain `{chain}`; take it out of the placement first")))
            }
            false => Ok(()),
        }
    }

    /// Refuses a change of a service that serves an SLO, and any during a placement.
    pub(super) fn not_kept(&self, service: &str) -> Result<(), SupervisorError> {
        self.not_placing()?;
        let mut kept = self.promises.kept.iter().flat_map(|kept| &kept.services);
        match kept.find(|(_, name)| *name == service) {
            Some(((slo, _), _)) => Err(SupervisorError::Conflict(format!(
                "the instances of `{service}` keep the SLO `{slo}`, and a placement says how many there are and where: place it anew"
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a change of a service whose copies serve an SLO.
    pub(super) fn not_copied(&self, service: &str) -> Result<(), SupervisorError> {
        let mut kept = self.promises.kept.iter().flat_map(|kept| kept.services.keys());
        match kept.find(|(_, template)| template == service) {
            Some((slo, _)) => Err(SupervisorError::Conflict(format!(
                "the SLO `{slo}` is kept by instances like those of `{service}`; take it out of the placement first"
            ))),
            None => Ok(()),
        }
    }

    /// Whether a placement decides where the instances of a service are.
    pub(super) fn is_kept(&self, service: &str) -> bool {
        self.promises.kept.iter().any(|kept| kept.services.values().any(|name| name == service))
    }

    /// A configuration with the placement laid over it; none if nothing is placed.
    pub(super) fn with_promises(&self, wanted: &Config) -> Result<Option<Overlaid>, SupervisorError> {
        self.not_placing()?;
        let Some(kept) = &self.promises.kept else { return Ok(None) };
        let refuse = |error| SupervisorError::Conflict(format!("this configuration does not keep what is placed: {error}"));
        let overlaid = self.overlaid(wanted, &kept.assignment).map_err(refuse)?;
        self.can_have_sockets(&overlaid).map_err(SupervisorError::Conflict)?;
        Ok(Some(overlaid))
    }

    /// Notes that this configuration is in force.
    pub(super) fn promises_follow(&mut self, overlaid: Overlaid) {
        let slos = sockets::attaching(&overlaid.config, &overlaid.services);
        if let Err(error) = self.open_sockets(&slos) {
            self.promises.trouble(error);
        }
        self.close_sockets(&slos);
        if let Some(kept) = &mut self.promises.kept {
            (kept.services, kept.base, kept.notes) = (overlaid.services, overlaid.base, overlaid.notes);
        }
    }

    fn overlaid(&self, base: &Config, assignment: &Assignment) -> Result<Overlaid, sluice_promises::overlay::OverlayError> {
        overlay(base, assignment, &self.promises.settings.cores, &self.promises.made(&self.config))
    }

    /// Checks that the placement still matches its profiles under another configuration. SLOs whose
    /// services stay the same are skipped.
    pub(super) fn keeps_profiles(&self, wanted: &Config) -> Result<(), SupervisorError> {
        let Some(kept) = &self.promises.kept else { return Ok(()) };
        let of = |config: &Config, name: &str| config.services.iter().find(|service| service.name == name).cloned();
        let changes = |promised: &&Promised| {
            promised.slo.workload.services().into_iter().any(|name| of(wanted, name) != of(&self.config, name))
        };
        let slos = kept.assignment.slos.iter().filter(changes).cloned().collect();
        let changed = Assignment { slos, ..kept.assignment.clone() };
        let refuse = |error| SupervisorError::Conflict(format!("this configuration does not keep what is placed: {error}"));
        check_profiles(wanted, &changed).map_err(refuse)
    }

    pub(super) fn placement(&self) -> Result<Assignment, SupervisorError> {
        let kept = self.promises.kept.as_ref().map(|kept| kept.assignment.clone());
        kept.ok_or_else(|| SupervisorError::NoSuch("nothing is placed here".into()))
    }

    /// The different NFs of all SLOs: the SLO, the index of the NF, and the service.
    fn kept_services(&self) -> Vec<(String, usize, u16)> {
        let mut found = Vec::new();
        let Some(kept) = &self.promises.kept else { return found };
        for slo in self.promises.slos() {
            let mut seen: Vec<&str> = Vec::new();
            for template in slo.workload.services() {
                if seen.contains(&template) {
                    continue;
                }
                let name = kept.services.get(&(slo.name.clone(), template.to_string()));
                found.extend(name.and_then(|name| Some((slo.name.clone(), seen.len(), self.service_number(name)?))));
                seen.push(template);
            }
        }
        found
    }

    /// Binds NFs to the instances of the placement: those that are bound, while they are on the
    /// instance's core, and otherwise an unbound one on that core.
    pub(super) fn bind(&mut self) {
        for (slo, nth, service) in self.kept_services() {
            let Some(kept) = &self.promises.kept else { return };
            let mut left: Vec<(u32, Option<usize>)> =
                kept.assignment.instances(&slo).into_iter().map(|one| (one.number, self.promises.core_of(one, nth))).collect();
            let nfs = self.services[service as usize].as_ref().map_or(Vec::new(), |service| service.instances.clone());
            let (mut bound, mut free) = (Vec::new(), Vec::new());
            for nf in nfs.iter().filter_map(|number| self.nfs.get(number)).filter(|nf| nf.life().stays() && !nf.life().is_lost()) {
                match left.iter().position(|(number, core)| nf.position.instance == Some(*number) && *core == Some(nf.core)) {
                    Some(place) => bound.push((nf.number, Some(left.remove(place).0))),
                    None => free.push((nf.number, nf.core)),
                }
            }
            for (nf, on) in free {
                let place = left.iter().position(|(_, core)| *core == Some(on));
                bound.push((nf, place.map(|place| left.remove(place).0)));
            }
            for (nf, instance) in bound {
                self.nfs.get_mut(&nf).into_iter().for_each(|nf| nf.position.instance = instance);
            }
        }
    }

    /// The NFs of all SLOs. A leaving one counts for an instance on its core, or for the first.
    fn members(&self) -> Vec<Member> {
        let mut members = Vec::new();
        let Some(kept) = &self.promises.kept else { return members };
        for (slo, nth, service) in self.kept_services() {
            let instances = kept.assignment.instances(&slo);
            let nfs = self.services[service as usize].as_ref().map_or(&[][..], |service| &service.instances);
            for nf in nfs.iter().filter_map(|number| self.nfs.get(number)) {
                let own = instances.iter().find(|instance| nf.position.instance == Some(instance.number));
                let there = || instances.iter().find(|instance| self.promises.core_of(instance, nth) == Some(nf.core));
                if let Some(instance) = own.or_else(there).or(instances.first()) {
                    members.push(Member { nf: nf.number, slo: slo.clone(), instance: (*instance).clone(), nth });
                }
            }
        }
        members
    }

    /// The entries of each NF among those that flows are spread over, in proportion to its
    /// instance's load: none for a load of 0 beside others that have load.
    pub(super) fn spread_parts(&self) -> BTreeMap<u16, u32> {
        let members = self.members();
        let most = |slo: &str| members.iter().filter(|m| m.slo == slo).map(|m| m.instance.load_pps).fold(0.0, f64::max);
        let parts = |member: &Member| {
            let most = most(&member.slo);
            let given = member.instance.load_pps;
            let part = if given > 0.0 { ((given / most * SPREAD_PARTS).round() as u32).max(1) } else { 0 };
            (member.nf, part)
        };
        let alike = |slo: &str| members.iter().filter(|m| m.slo == slo).all(|m| m.instance.load_pps == most(slo));
        members.iter().filter(|member| !alike(&member.slo)).map(parts).collect()
    }

    /// Gives new instances their part of the core and of the cache.
    pub(super) fn attend(&mut self) {
        self.bind();
        let members = self.members();
        let (mut pids, mut troubles) = (Vec::new(), Vec::new());
        for member in &members {
            let Some(nf) = self.nfs.get(&member.nf) else { continue };
            if let Some(handle) = &nf.handle {
                let cores = &member.instance.cores;
                let place = cores[member.nth % cores.len().max(1)];
                let part = Reservation { group: place + 1, part: self.promises.part_of(place) };
                handle.load.reserve.set(Some(part).filter(|_| self.promises.settings.isolate));
            }
            if let Some(process) = &nf.process {
                let (class, watch) = self.promises.steering.class_of(&member.instance);
                pids.push(process.number());
                if let Err(error) = self.promises.classes.put(process.number(), &class, watch.as_deref()) {
                    troubles.push(format!("{} {error}", nf.name));
                }
            }
        }
        self.promises.classes.keep(&pids);
        troubles.into_iter().for_each(|trouble| self.promises.trouble(trouble));
    }

    /// Attends to new instances, and ends a window that is over.
    pub(super) fn poll_promises(&mut self) {
        // SLOs end with the input: nothing new begins.
        if self.promises.kept.is_none() || self.turns.stopping {
            return;
        }
        self.attend();
        let now = monotonic_ns();
        if now.saturating_sub(self.promises.windows.began_ns()) >= WINDOW_NS {
            self.promises.classes.try_again();
            self.promises.classes.lost().into_iter().for_each(|lost| self.promises.trouble(lost));
            self.end_window(now);
        }
    }

    fn end_window(&mut self, now: u64) {
        let Ok(snapshots) = self.plane.snapshots() else { return };
        let Some(kept) = &self.promises.kept else { return };
        let assignment = kept.assignment.clone();
        let began = self.promises.windows.began_ns();
        let members = self.members();
        let cpu_of = |number: &u16| {
            self.nfs.get(number).map_or(0.0, |nf| if nf.process.is_some() { nf.counted.cpu.percent() / 100.0 } else { 0.0 })
        };
        let (mut seen, mut on_demand, attaching) = (Vec::new(), Vec::new(), self.attaching_now());
        let traffic = std::mem::take(&mut self.promises.traffic);
        let mut last: BTreeMap<String, Last> = BTreeMap::new();
        for slo in assignment.slos.iter().map(|promised| &promised.slo) {
            let Some(chain) = self.chains.iter().flatten().find(|chain| chain.name == slo.name) else { continue };
            let mut latency = Histogram::default();
            snapshots.iter().filter_map(|s| s.latencies.get(chain.number as usize)?.as_ref()).for_each(|h| latency.merge(h));
            let ended = self.promises.windows.end(now, &slo.name, Counts::of(chain), latency);
            let own: Vec<&Member> = members.iter().filter(|member| member.slo == slo.name).collect();
            let cores: BTreeSet<usize> = own.iter().filter_map(|member| Some(self.nfs.get(&member.nf)?.core)).collect();
            let is_down = chain.services.iter().any(|service| !self.runs(*service));
            let cpu: f64 = own.iter().map(|member| cpu_of(&member.nf)).sum();
            let part = self.part(&assignment, slo);
            // Also for the first window: its traffic is the start of the next one.
            let uses = self.promises.uses(&assignment, slo, (now - began) as f64 / 1e9, &traffic);
            let Some((rates, latency_us)) = ended else { continue };
            let terms = Terms { throughput_pps: assignment.throughput_pps(slo), latency_us: slo.promise.latency_us() };
            let occupancy_bytes = uses.iter().filter_map(|one| one.occupancy_bytes).reduce(|a, b| a + b);
            if terms.throughput_pps.is_none() {
                let (promised_us, offered_pps) = (terms.latency_us, rates.offered_pps);
                on_demand.push(OnDemand { slo: slo.name.clone(), promised_us, latency_us, offered_pps, instances: uses });
            }
            // It is new until its NFs have attached once.
            if is_down && attaching.contains(&slo.name) && !self.promises.last.contains_key(&slo.name) {
                continue;
            }
            seen.push(TenantWindow {
                tenant: slo.name.clone(),
                terms: Some(terms),
                offered_pps: rates.offered_pps,
                policed_pps: rates.policed_pps,
                delivered_pps: rates.delivered_pps,
                latency_us,
                is_down,
                cpu,
                part,
                cores: cores.into_iter().collect(),
            });
            last.insert(slo.name.clone(), Last { rates, latency_us, cpu, occupancy_bytes, evaluated: Evaluation::default() });
        }
        seen.extend(self.others(&members, cpu_of));
        if !last.is_empty() {
            let before = self.promises.broken();
            self.promises.evaluate(began, now, &seen, last);
            self.note_broken(&before);
            self.promises.on_demand.clone_from(&on_demand);
        }
        let names: Vec<&str> = assignment.slos.iter().map(|promised| promised.slo.name.as_str()).collect();
        self.promises.windows.next(now, &names);
        self.steer(now, &assignment, &on_demand);
    }

    /// Whether an instance of a service runs.
    fn runs(&self, service: u16) -> bool {
        let instances = self.services[service as usize].as_ref().map_or(&[][..], |service| &service.instances);
        instances.iter().any(|number| self.nfs.get(number).is_some_and(|nf| nf.is(State::Running)))
    }

    /// Logs the SLOs that are violated and were not before.
    fn note_broken(&self, before: &BTreeSet<String>) {
        for (slo, last) in self.promises.last.iter().filter(|(slo, _)| !before.contains(*slo)) {
            if let Some(first) = last.evaluated.violations.first() {
                self.controller.events().note(EventKind::Promise, Subject::Other("slo", slo), said_of_violation(first));
            }
        }
    }

    /// Cores that an SLO has got.
    fn part(&self, assignment: &Assignment, slo: &Slo) -> f64 {
        assignment.instances(&slo.name).iter().flat_map(|instance| &instance.cores).map(|place| self.promises.part_of(*place)).sum()
    }

    /// Tenants without an SLO, and services without a tenant: their use of cores, and what is left.
    fn others(&self, members: &[Member], cpu_of: impl Fn(&u16) -> f64) -> Vec<TenantWindow> {
        let mut others: BTreeMap<String, TenantWindow> = BTreeMap::new();
        for nf in self.nfs.values().filter(|nf| !members.iter().any(|member| member.nf == nf.number)) {
            let Some(service) = self.services.get(nf.service as usize).and_then(Option::as_ref) else { continue };
            let name = service.config.tenant.clone().unwrap_or_else(|| service.config.name.clone());
            let name = if self.promises.slos().any(|slo| slo.name == name) { format!("{name} (without a promise)") } else { name };
            let seen = others.entry(name.clone()).or_insert_with(|| TenantWindow { tenant: name, ..TenantWindow::default() });
            seen.cpu += cpu_of(&nf.number);
            if !seen.cores.contains(&nf.core) {
                seen.cores.push(nf.core);
                seen.part += self.left_of(nf.core);
            }
        }
        others.into_values().collect()
    }

    /// The part of a core that no instance has got.
    fn left_of(&self, core: usize) -> f64 {
        let places =
            self.promises.kept.iter().flat_map(|kept| &kept.assignment.server.instances).flat_map(|instance| &instance.cores);
        let given: f64 = places
            .filter(|place| self.promises.settings.cores.get(**place as usize) == Some(&core))
            .map(|place| self.promises.part_of(*place))
            .sum();
        (1.0 - given).max(0.0)
    }

    /// Observations of SLOs on demand in the last window.
    pub fn on_demand(&self) -> &[OnDemand] {
        &self.promises.on_demand
    }

    /// Reports of how the SLOs are kept.
    pub(super) fn promise_reports(&self) -> Vec<report::Promise> {
        let Some(kept) = &self.promises.kept else { return Vec::new() };
        let members = self.members();
        let nothing = Last::default();
        let report_of = |slo: &Slo| {
            let last = self.promises.last.get(&slo.name).unwrap_or(&nothing);
            let own = members.iter().filter(|member| member.slo == slo.name);
            let services = kept.services.iter().filter(|((of, _), _)| *of == slo.name).map(|(_, name)| name.clone());
            let chain = self.chains.iter().flatten().find(|chain| chain.name == slo.name);
            report::Promise {
                slo: slo.name.clone(),
                services: services.collect(),
                nfs: own.filter_map(|member| Some(self.nfs.get(&member.nf)?.name.clone())).collect(),
                promised_pps: kept.assignment.throughput_pps(slo),
                promised_us: slo.promise.latency_us(),
                burst: self.promises.limit(&kept.assignment, slo).map(|(_, burst)| burst),
                offered_pps: last.rates.offered_pps,
                policed_pps: last.rates.policed_pps,
                delivered_pps: last.rates.delivered_pps,
                latency_us: last.latency_us,
                part: self.part(&kept.assignment, slo),
                cpu: last.cpu,
                ways: kept.assignment.instances(&slo.name).iter().map(|instance| instance.ways).sum::<u32>()
                    + self.promises.steering.own(&kept.assignment, &slo.name).values().sum::<u32>(),
                occupancy_bytes: last.occupancy_bytes,
                policed: {
                    let former = self.seen.past.of_chain(&slo.name).drops.get(DropReason::Policed.name()).copied().unwrap_or(0);
                    chain.map_or(0, |chain| Counts::of(chain).policed) + former
                },
                windows: last.evaluated.windows,
                throughput_violated: last.evaluated.violated[0],
                latency_violated: last.evaluated.violated[1],
                exceeded: last.evaluated.exceeded,
                excess: last.evaluated.excess,
                violations: last.evaluated.violations.clone(),
                steered: self.promises.steered(&kept.assignment, &slo.name),
            }
        };
        let mut all: Vec<report::Promise> = self.promises.slos().map(report_of).collect();
        all.sort_by(|a, b| a.slo.cmp(&b.slo));
        all
    }

    pub(super) fn promises_report(&self) -> report::Promises {
        let settings = &self.promises.settings;
        let cache = match self.promises.classes.origin() {
            Origin::Resctrl => "resctrl",
            Origin::Simulated => "simulated",
            Origin::None => "none",
        };
        let mut notes = self.promises.notes();
        if settings.isolate && !self.config.sched.weights && self.promises.kept.is_some() {
            notes.push("parts of cores are not kept: weights are off (sched.weights)".into());
        }
        report::Promises {
            server: settings.server.clone(),
            cache: cache.into(),
            policing: settings.police,
            isolation: settings.isolate && self.config.sched.weights,
            window_s: self.promises.window_s,
            notes,
            decisions: self.promises.decisions(monotonic_ns()),
            promises: self.promise_reports(),
        }
    }

    pub(super) fn promise_states(&self) -> BTreeMap<String, Vec<String>> {
        let mut states: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for promise in self.promise_reports() {
            states.entry(promise.word().into()).or_default().push(promise.slo);
        }
        states
    }

    /// The changes from the configuration in force to another one, as it is.
    fn plan_as_is(&self, wanted: &Config) -> Result<Vec<Change>, SupervisorError> {
        self.check(wanted)?;
        let changes = diff::diff(&self.config, wanted);
        for service in changes.iter().filter_map(Change::service) {
            self.not_upgrading(service)?;
        }
        Ok(changes)
    }
}
