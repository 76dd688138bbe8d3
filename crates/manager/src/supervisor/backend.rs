//! The control API's backend: requests run as closures on the supervisor's thread.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use sluice_slo::assignment::Assignment;

use super::change::Gone;
use super::nfs::Nf;
use super::why::Imagined;
use super::{Job, Supervisor, SupervisorError, promises};
use crate::capture::filter::PacketFilter;
use crate::control::{Backend, Pieces};
use crate::controller::events::Subject;
use sluice_api::change::{CanaryRequest, FormerConfig, RunningConfig, SetKeys, Undo};
use sluice_api::config;
use sluice_api::model::{self as api, EventKind};
use sluice_api::promise::{Placed, Promises};
use sluice_api::shadow::{ShadowReport, ShadowRequest};
use sluice_api::{ApiError, ErrorKind};
use sluice_dataplane::trace::{PacketTest, TraceEvent, TraceHead, TraceRequest, TraceWhat};

/// Longest wait of a request for the supervisor.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest wait of a removal for its NFs to leave.
const GONE: Duration = Duration::from_secs(10);
/// Longest wait of an upgrade until new instances have replaced the old ones.
const UPGRADED: Duration = Duration::from_secs(60);
/// Longest wait of a placement until packets go to its instances.
const PLACED: Duration = Duration::from_secs(40);
/// Events that a trace has room for, for each packet, until they are fetched.
const HOPS: usize = 48;

/// The first bytes of traced packets, as hexadecimal digits, in their order: a frame that a refused
/// packet leaves may take another one at the same time.
#[derive(Default)]
struct Heads(HashMap<(u64, u32), VecDeque<String>>);

impl Heads {
    fn next(&mut self, packet: (u64, u32)) -> String {
        self.0.get_mut(&packet).and_then(VecDeque::pop_front).unwrap_or_default()
    }
}

fn heads_of(trace: &TraceRequest) -> Heads {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let digits = |head: TraceHead| hex(&head.bytes[..usize::from(head.len)]);
    let mut heads = Heads::default();
    while let Some(head) = trace.heads.pop() {
        heads.0.entry(head.packet).or_default().push_back(digits(head));
    }
    heads
}

/// A handle by which other threads reach the supervisor.
#[derive(Clone)]
pub struct Remote {
    jobs: Sender<Job>,
    wake: Arc<OwnedFd>,
}

impl From<SupervisorError> for ApiError {
    fn from(error: SupervisorError) -> Self {
        let kind = match &error {
            SupervisorError::Invalid(_) | SupervisorError::Port(_) => ErrorKind::Unprocessable,
            SupervisorError::NoSuch(_) => ErrorKind::NotFound,
            SupervisorError::Conflict(_) => ErrorKind::Conflict,
            _ => ErrorKind::Internal,
        };
        ApiError::new(kind, error.to_string(), "")
    }
}

impl Remote {
    pub(super) fn new(jobs: Sender<Job>, wake: Arc<OwnedFd>) -> Self {
        Self { jobs, wake }
    }

    /// Sends the supervisor's thread a job without waiting.
    pub(super) fn hand(&self, job: Job) {
        // A supervisor that has ended takes no jobs.
        let _ = self.jobs.send(job);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Runs a job on the supervisor's thread, and waits for the answer.
    pub(super) fn call<T: Send + 'static>(&self, job: impl FnOnce(&mut Supervisor) -> T + Send + 'static) -> Result<T, ApiError> {
        let (to, answer) = channel();
        let job: Job = Box::new(move |supervisor| {
            let _ = to.send(job(supervisor));
        });
        self.jobs.send(job).map_err(|_| ApiError::shutting_down())?;
        // A full counter wakes it already.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        answer.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                ApiError::new(ErrorKind::Timeout, "the supervisor is busy with something that takes long", "try again in a moment")
            }
            RecvTimeoutError::Disconnected => ApiError::shutting_down(),
        })
    }

    /// As [`Remote::call`], for changes: refused while the daemon stops.
    pub(super) fn change<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Supervisor) -> Result<T, SupervisorError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.call(
            move |s| if s.turns.stopping || s.turns.quit { Err(ApiError::shutting_down()) } else { job(s).map_err(ApiError::from) },
        )?
    }

    /// Ends the daemon: [`Supervisor::run`] returns when everything has stopped.
    pub fn quit(&self) {
        let _ = self.call(Supervisor::quit);
    }
}

fn wait_for(gone: Gone) -> Result<(), ApiError> {
    let until = Instant::now() + GONE;
    for nf in gone {
        nf.recv_timeout(until.saturating_duration_since(Instant::now()))
            .map_err(|_| ApiError::conflict("an NF is still stopping", "see `sluice nf list`"))?;
    }
    Ok(())
}

/// The refusal to remove the last instance of a service on open chains, if there are any.
fn last_of(name: &str, service: &str, chains: &[&config::Chain]) -> Option<ApiError> {
    let first = chains.first()?;
    let names: Vec<String> = chains.iter().map(|chain| format!("`{}`", chain.name)).collect();
    let (passes, their) = match names.len() {
        1 => (format!("chain {} passes", names[0]), "its"),
        _ => (format!("chains {} pass", names.join(", ")), "their"),
    };
    let then = match first.on_failure {
        config::OnFailure::Bypass => "go on without it",
        config::OnFailure::Drop | config::OnFailure::Restart => "be dropped",
    };
    Some(ApiError::conflict(
        format!("{name} is the last instance of service `{service}`, which {passes}: {their} packets would {then}"),
        format!("start another one first (`sluice nf add {service}`), or give --force (in the API ?force=true)"),
    ))
}

/// The outcome of a placement, once the instances that it removes are gone.
fn placed(told: &Receiver<promises::PlaceResult>) -> Result<Placed, ApiError> {
    let outcome = told.recv_timeout(PLACED).map_err(|error| match error {
        RecvTimeoutError::Timeout => {
            ApiError::new(ErrorKind::Timeout, "the placement takes long", "it may still take effect: see `sluice slo list --live`")
        }
        RecvTimeoutError::Disconnected => ApiError::shutting_down(),
    })?;
    let (placed, gone) = outcome.map_err(ApiError::from)?;
    wait_for(gone)?;
    Ok(placed)
}

impl Supervisor {
    /// Logs that an object was added or removed by itself.
    fn note_change(&self, kind: EventKind, what: &str, name: &str) {
        let text = if kind == EventKind::Add { "added" } else { "removed" };
        self.controller.events().note(kind, Subject::Other(what, name), text);
    }

    fn nf_names(&self) -> Vec<&str> {
        self.nfs.values().map(|nf| nf.name.as_str()).collect()
    }

    fn begin_trace(
        &mut self,
        request: &api::TraceRequest,
        filter: Option<PacketFilter>,
    ) -> Result<Arc<TraceRequest>, SupervisorError> {
        // There is one trace at a time. One that nothing waits for any more ends by itself.
        let now = Instant::now();
        if self.seen.tracing.as_ref().is_some_and(|(_, until)| now < *until) {
            return Err(SupervisorError::Conflict(
                "another trace goes on, and there can be one at a time; try again when it ends".into(),
            ));
        }
        let rule = match &request.rule {
            Some(name) => {
                let named = |(i, r): &(usize, &config::Rule)| r.name.clone().unwrap_or_else(|| format!("rule.{i}")) == *name;
                let found = self.config.rules.iter().enumerate().find(named);
                Some(found.ok_or_else(|| self.no_such("rule", name))?.0)
            }
            None => None,
        };
        let chain = match request.chain.clone() {
            Some(name) => {
                let found = self.chains.iter().flatten().find(|c| c.name == name);
                Some(found.ok_or_else(|| self.no_such("chain", &name))?.number)
            }
            None => None,
        };
        let port = |name: &String| self.port_number(name).ok_or_else(|| self.no_such("port", name));
        let ingress = request.port.as_ref().map(port).transpose()?;
        let count = request.count.clamp(1, api::MAX_TRACED);
        let (events, heads) = (ArrayQueue::new(count as usize * HOPS), ArrayQueue::new(count as usize));
        let filter = filter.map(|filter| -> Box<dyn PacketTest> { Box::new(filter) });
        let left = AtomicI64::new(i64::from(count));
        let trace = Arc::new(TraceRequest { chain, rule, ingress, filter, left, events, heads });
        self.plane.trace(Some(&trace));
        let lasts = Duration::from_millis(request.timeout_ms.min(api::MAX_TRACE_MS));
        self.seen.tracing = Some((trace.clone(), now + lasts + PATIENCE));
        Ok(trace)
    }

    /// Name of a traced packet's port.
    fn port_of(&self, number: u16) -> String {
        self.ports.get(usize::from(number)).and_then(|port| Some(port.as_ref()?.config.name.clone())).unwrap_or_default()
    }

    /// Name of a traced packet's NF.
    fn traced_nf(&self, number: u16) -> String {
        self.nfs.get(&number).map_or_else(|| format!("number {number}"), |nf| nf.name.clone())
    }

    /// The place that an event of a trace is about, if it is one of its hops.
    fn hop_of(&self, what: TraceWhat) -> Option<String> {
        let nf = |number| self.traced_nf(number);
        Some(match what {
            TraceWhat::ToNf(number) => format!("nf {}", nf(number)),
            TraceWhat::FromPart(number, part) => {
                let service = self.services.get(usize::from(self.nfs.get(&number)?.service))?.as_ref()?;
                format!("nf {} part {} done", nf(number), service.config.parts.get(usize::from(part))?)
            }
            TraceWhat::FromNf(number) => format!("nf {} done", nf(number)),
            TraceWhat::ToPort(number) => format!("port {}", self.port_of(number)),
            TraceWhat::WentIn(number) => format!("nf {} went in", nf(number)),
            TraceWhat::CameOut(number, _) => format!("nf {} came out", nf(number)),
            TraceWhat::Crossed(_) => "copied".into(),
            TraceWhat::LostSight(_) | TraceWhat::Dropped(_) | TraceWhat::Refused { .. } => return None,
        })
    }

    /// What became of a traced packet, if an event says it.
    fn outcome_of(&self, what: TraceWhat) -> Option<String> {
        Some(match what {
            TraceWhat::ToPort(number) => format!("sent to {}", self.port_of(number)),
            TraceWhat::LostSight(number) => {
                format!("went into {}, and none came out that is known as it", self.traced_nf(number))
            }
            TraceWhat::Dropped(why) => format!("dropped: {}", why.name()),
            TraceWhat::Refused { why, .. } => format!("dropped: {why}"),
            _ => return None,
        })
    }

    fn report_trace(&mut self, trace: &Arc<TraceRequest>, events: Vec<TraceEvent>, mut heads: Heads, count: u32) -> api::Trace {
        if self.seen.tracing.take_if(|(current, _)| Arc::ptr_eq(current, trace)).is_some() {
            self.plane.trace(None);
        }
        let mut packets: Vec<((u64, u32), Vec<TraceEvent>)> = Vec::new();
        // Later names of packets: those that came out of programs, in other frames.
        let mut other_names = Vec::new();
        for event in events {
            if matches!(event.what, TraceWhat::Refused { .. }) {
                // Complete in one event. Its frame may be another packet's at once.
                packets.push((event.packet, vec![event]));
                continue;
            }
            let name = other_names.iter().find(|(other, _)| *other == event.packet).map_or(event.packet, |(_, first)| *first);
            if let TraceWhat::CameOut(_, frame) | TraceWhat::Crossed(frame) = event.what {
                other_names.retain(|(other, _)| *other != (name.0, frame));
                other_names.push(((name.0, frame), name));
            }
            let goes_on = |hops: &[TraceEvent]| !hops.last().is_some_and(|last| last.what.is_end());
            match packets.iter_mut().find(|(packet, hops)| *packet == name && goes_on(hops)) {
                Some((_, hops)) => hops.push(event),
                None => packets.push((name, vec![event])),
            }
        }
        let chain = |number: u16| self.chains.iter().flatten().find(|c| c.number == number).map(|c| c.name.clone());
        let registry = self.plane.registry();
        let traced: Vec<api::TracedPacket> = packets
            .into_iter()
            .filter_map(|(name, events)| {
                let first = *events.first()?;
                let (ingress, chain) = match first.what {
                    TraceWhat::Refused { ingress, chain: number, .. } => (ingress, number.and_then(chain)),
                    _ => registry.get(first.path?).map(|path| (path.ingress, Some(path.chain.name.clone())))?,
                };
                let bytes = u32::from(first.len);
                let mut hops = vec![api::Hop { place: format!("port {}", self.port_of(ingress)), ns: 0 }];
                let mut outcome = "still inside".to_string();
                let mut ns = 0;
                for event in events {
                    // A thread reads its clock once a round, and runs its handlers after that.
                    ns = ns.max(event.at_ns.saturating_sub(name.0));
                    hops.extend(self.hop_of(event.what).map(|place| api::Hop { place, ns }));
                    outcome = self.outcome_of(event.what).unwrap_or(outcome);
                }
                Some(api::TracedPacket { chain, bytes, packet: heads.next(name), hops, outcome })
            })
            .collect();
        let timed_out = traced.iter().filter(|p| p.outcome != "still inside").count() < count as usize;
        api::Trace { packets: traced, timed_out }
    }
}

/// Waits for the outcome of a change, and until the old instances have left.
pub(super) fn outcome<T>(told: &Receiver<Result<(T, Gone), SupervisorError>>, late: &str) -> Result<T, ApiError> {
    let outcome = told.recv_timeout(UPGRADED).map_err(|error| match error {
        RecvTimeoutError::Timeout => ApiError::new(ErrorKind::Timeout, late, "it may still take effect: see `sluice nf list`"),
        RecvTimeoutError::Disconnected => ApiError::shutting_down(),
    })?;
    let (what, gone) = outcome.map_err(ApiError::from)?;
    wait_for(gone)?;
    Ok(what)
}

impl Backend for Remote {
    fn status(&self) -> Result<api::Status, ApiError> {
        self.call(|s| {
            let snapshots = s.plane.snapshots().map_err(SupervisorError::from)?;
            Ok(s.status(&snapshots))
        })?
    }

    fn events(&self) -> Result<Vec<api::Event>, ApiError> {
        self.call(|s| s.controller.events().all())
    }

    fn stats(&self) -> Result<api::Stats, ApiError> {
        self.call(Supervisor::stats)
    }

    fn add_nf(&self, service: &str, core: Option<usize>) -> Result<api::Nf, ApiError> {
        let service = service.to_string();
        self.change(move |s| {
            let number = s.service_number(&service).ok_or_else(|| s.no_such("service", &service))?;
            s.not_upgrading(&service)?;
            s.not_kept(&service)?;
            core.map_or(Ok(()), Supervisor::has_core)?;
            let wanted = s.with(|c| {
                if let Some(service) = c.services.iter_mut().find(|x| x.name == service) {
                    service.instances += 1;
                    service.cores.extend(core.filter(|core| !service.cores.contains(core)));
                }
            })?;
            let nf = s.new_instance(number, core)?;
            for known in &mut s.config.services {
                if let Some(now) = wanted.services.iter().find(|x| x.name == known.name) {
                    (known.instances, known.cores) = (now.instances, now.cores.clone());
                }
            }
            // A report of this NF alone: one of a thousand NFs takes longer than its start. It
            // cannot have been given a frame yet.
            let nf = s.nfs.get(&nf).ok_or_else(|| SupervisorError::Conflict("it ended at once".into()))?;
            s.controller.events().note(EventKind::Add, Subject::Nf(&nf.name), format!("added on core {}", nf.core));
            Ok(api::Nf { warnings: s.warnings_on(&service, nf.core), ..s.nf_report(nf, 0) })
        })
    }

    fn upgrade(&self, service: &str, to: &api::Upgrade) -> Result<api::Upgraded, ApiError> {
        let (service, to) = (service.to_string(), to.clone());
        let told = self.change(move |s| s.begin_upgrade(&service, &to))?;
        outcome(&told, "the upgrade takes long")
    }

    fn canary(&self, service: &str, to: &CanaryRequest) -> Result<api::Upgraded, ApiError> {
        let (service, to) = (service.to_string(), to.clone());
        let told = self.change(move |s| s.begin_canary(&service, to))?;
        outcome(&told, "the new version takes long until it is ready")
    }

    fn shadow(&self, service: &str, to: &ShadowRequest) -> Result<api::Upgraded, ApiError> {
        self.begin_shadow(service, to)
    }

    fn shadow_report(&self, service: &str) -> Result<ShadowReport, ApiError> {
        let service = service.to_string();
        self.call(move |s| s.shadow_report(&service).map_err(ApiError::from))?
    }

    fn abort_canary(&self, service: &str) -> Result<(), ApiError> {
        let service = service.to_string();
        self.change(move |s| s.abort_canary(&service))
    }

    fn move_nf(&self, name: &str, core: usize) -> Result<api::Nf, ApiError> {
        let name = name.to_string();
        let told = self.change(move |s| s.begin_move(&name, core))?;
        let moved = outcome(&told, "the move takes long")?;
        self.call(move |s| {
            let number = moved.instances.first().and_then(|name| s.nf_number(name));
            let nf = number.and_then(|number| s.nfs.get(&number));
            let report = |nf: &Nf| api::Nf { warnings: s.warnings_on(&moved.service, nf.core), ..s.nf_report(nf, 0) };
            nf.map(report).ok_or_else(|| SupervisorError::Conflict("it ended at once".into()))
        })?
        .map_err(ApiError::from)
    }

    fn remove_nf(&self, name: &str, force: bool) -> Result<(), ApiError> {
        let name = name.to_string();
        let gone = self.call(move |s| {
            let Some(number) = s.nf_number(&name) else {
                return Err(ApiError::not_found("NF", &name, &s.nf_names()));
            };
            let service = s.nfs.get(&number).and_then(|nf| s.services[nf.service as usize].as_ref()).map(|x| x.config.name.clone());
            if let Some(service) = &service {
                s.not_upgrading(service).and_then(|()| s.not_kept(service)).map_err(ApiError::from)?;
            }
            s.not_alone_in_shard(number).map_err(ApiError::from)?;
            if !force && let Some(refusal) = last_of(&name, service.as_deref().unwrap_or_default(), &s.chains_on(number)) {
                return Err(refusal);
            }
            for known in s.config.services.iter_mut().filter(|x| Some(&x.name) == service.as_ref() && !x.is_pooled()) {
                known.instances = known.instances.saturating_sub(1);
            }
            let gone = s.remove_instance(&name).map_err(ApiError::from)?;
            s.controller.events().note(EventKind::Remove, Subject::Nf(&name), "removed");
            Ok(gone)
        })??;
        wait_for(gone)
    }

    fn add_service(&self, service: config::Service) -> Result<api::Service, ApiError> {
        self.change(move |s| {
            s.with_memory(|c| c.services.push(service.clone()))?;
            let name = service.name.clone();
            s.add_service(service)?;
            s.publish();
            s.note_change(EventKind::Add, "service", &name);
            let found = s.service_reports().into_iter().find(|r| r.name == name);
            found.ok_or_else(|| SupervisorError::NoSuch(format!("there is no service `{name}`")))
        })
    }

    fn remove_service(&self, name: &str) -> Result<(), ApiError> {
        let name = name.to_string();
        let gone = self.change(move |s| {
            if let Some(chain) = s.config.chains.iter().find(|c| c.services.iter().any(|s| config::hop(s).0 == name)) {
                let chain = &chain.name;
                return Err(SupervisorError::Conflict(format!(
                    "chain `{chain}` passes service `{name}`; change or remove it first"
                )));
            }
            s.not_upgrading(&name)?;
            s.not_kept(&name)?;
            s.not_copied(&name)?;
            s.provide_for_rest(|c| c.services.retain(|service| service.name != name));
            let gone = s.remove_service(&name)?;
            s.note_change(EventKind::Remove, "service", &name);
            Ok(gone)
        })?;
        wait_for(gone)
    }

    fn add_chain(&self, chain: config::Chain) -> Result<api::Chain, ApiError> {
        let (added, gone) = self.change(move |s| {
            let name = chain.name.clone();
            let gone = s.add_chain_and_group(chain)?;
            s.note_change(EventKind::Add, "chain", &name);
            let found = s.stats().chains.into_iter().find(|c| c.name == name);
            Ok((found.ok_or_else(|| SupervisorError::NoSuch(format!("there is no chain `{name}`")))?, gone))
        })?;
        wait_for(gone)?;
        Ok(added)
    }

    fn remove_chain(&self, name: &str) -> Result<(), ApiError> {
        let name = name.to_string();
        self.change(move |s| {
            if s.config.rules.iter().any(|r| r.chain == name) {
                return Err(SupervisorError::Conflict(format!("a rule leads to chain `{name}`; remove the rule first")));
            }
            s.not_promised(&name)?;
            let chain = s.config.chains.iter().find(|chain| chain.name == name);
            let hops: Vec<String> = chain.map_or_else(Vec::new, |chain| chain.services.clone());
            s.remove_chain(&name)?;
            s.note_change(EventKind::Remove, "chain", &name);
            // Nothing else uses the group of a fused or inline chain.
            let groups = s.config.services.iter().filter(|service| service.is_group() && hops.contains(&service.name));
            let groups: Vec<String> = groups.map(|service| service.name.clone()).collect();
            let mut gone = Vec::new();
            for group in &groups {
                gone.extend(s.remove_service(group)?);
            }
            gone.extend(s.settle_parts()?);
            Ok(gone)
        })
        .and_then(wait_for)
    }

    fn add_rule(&self, rule: config::Rule, position: Option<usize>) -> Result<api::Rule, ApiError> {
        self.change(move |s| {
            let at = position.unwrap_or(s.config.rules.len()).min(s.config.rules.len());
            let wanted = s.with_memory(|c| c.rules.insert(at, rule))?;
            s.set_rules(wanted.rules);
            let found = s.stats().rules.into_iter().nth(at);
            found.iter().for_each(|rule| s.note_change(EventKind::Add, "rule", &rule.name));
            found.ok_or_else(|| SupervisorError::NoSuch("there is no such rule".into()))
        })
    }

    fn remove_rule(&self, name: &str) -> Result<(), ApiError> {
        let name = name.to_string();
        self.change(move |s| {
            let named = |(i, r): (usize, &config::Rule)| r.name.clone().unwrap_or_else(|| format!("rule.{i}")) == name;
            let at = s.config.rules.iter().enumerate().position(named);
            let at = at.ok_or_else(|| s.no_such("rule", &name))?;
            let mut rules = s.config.rules.clone();
            rules.remove(at);
            s.provide_for_rest(|c| c.rules.clone_from(&rules));
            s.set_rules(rules);
            s.note_change(EventKind::Remove, "rule", &name);
            Ok(())
        })
    }

    fn renew_memory(&self, tenant: &str) -> Result<(), ApiError> {
        let tenant = (tenant != "-").then(|| tenant.to_string());
        self.change(move |s| s.renew_memory(tenant.as_deref()))
    }

    fn add_port(&self, port: config::Port) -> Result<api::Port, ApiError> {
        self.change(move |s| {
            s.with_memory(|c| c.ports.push(port.clone()))?;
            s.look_at(&port)?;
            let name = port.name.clone();
            s.add_port(port)?;
            s.note_change(EventKind::Add, "port", &name);
            let found = s.stats().ports.into_iter().find(|p| p.name == name);
            found.ok_or_else(|| SupervisorError::NoSuch(format!("there is no port `{name}`")))
        })
    }

    fn remove_port(&self, name: &str) -> Result<(), ApiError> {
        let name = name.to_string();
        self.change(move |s| {
            if let Some(chain) = s.config.chains.iter().find(|c| c.egress == name) {
                let chain = &chain.name;
                return Err(SupervisorError::Conflict(format!(
                    "chain `{chain}` leaves by port `{name}`; change or remove it first"
                )));
            }
            if s.config.rules.iter().any(|r| r.port.as_deref() == Some(&name)) {
                return Err(SupervisorError::Conflict(format!("a rule names port `{name}`; remove the rule first")));
            }
            s.remove_port(&name)?;
            s.note_change(EventKind::Remove, "port", &name);
            Ok(())
        })
    }

    fn apply(&self, text: &str, file: Option<&str>, dry_run: bool) -> Result<api::Applied, ApiError> {
        self.apply_text(text, file, dry_run)
    }

    fn set(&self, set: &SetKeys) -> Result<api::Applied, ApiError> {
        self.set_keys(set)
    }

    fn running_config(&self) -> Result<RunningConfig, ApiError> {
        self.running_text()
    }

    fn history(&self) -> Result<Vec<FormerConfig>, ApiError> {
        self.call(|s| s.changes.history.list())
    }

    fn undo(&self, undo: Undo) -> Result<api::Applied, ApiError> {
        self.go_back(undo)
    }

    fn place(&self, assignment: Assignment) -> Result<Placed, ApiError> {
        placed(&self.change(move |s| s.begin_placing(assignment))?)
    }

    fn placement(&self) -> Result<Assignment, ApiError> {
        Ok(self.call(|s| s.placement())??)
    }

    fn withdraw(&self) -> Result<Placed, ApiError> {
        placed(&self.change(Supervisor::begin_withdrawing)?)
    }

    fn promises(&self) -> Result<Promises, ApiError> {
        self.call(|s| s.promises_report())
    }

    fn trace(&self, request: &api::TraceRequest) -> Result<api::Trace, ApiError> {
        let asked = request.clone();
        let filter = PacketFilter::asked(&request.filter)?;
        let trace = self.change(move |s| s.begin_trace(&asked, filter))?;
        let until = Instant::now() + Duration::from_millis(request.timeout_ms.min(api::MAX_TRACE_MS));
        let mut events = Vec::new();
        let ended = |events: &[TraceEvent]| events.iter().filter(|event| event.what.is_end()).count() >= request.count as usize;
        while Instant::now() < until && !ended(&events) {
            std::thread::sleep(Duration::from_millis(2));
            events.extend(std::iter::from_fn(|| trace.events.pop()));
        }
        let (heads, count) = (heads_of(&trace), request.count);
        self.call(move |s| s.report_trace(&trace, events, heads, count))
    }

    fn why(&self, request: &api::WhyRequest) -> Result<api::WhyReply, ApiError> {
        let packet = Imagined::of(request)?;
        self.call(move |s| s.why(&packet).map_err(ApiError::from))?
    }

    fn capture(&self, request: &api::CaptureRequest) -> Result<Pieces, ApiError> {
        self.begin_capture(request)
    }

    fn flows(&self, request: &api::FlowsRequest) -> Result<api::FlowsReply, ApiError> {
        self.look_at_flows(request)
    }

    fn record(&self, request: &api::RecordRequest) -> Result<Pieces, ApiError> {
        self.begin_timeline(request)
    }

    fn timelines(&self) -> Result<Vec<api::Timeline>, ApiError> {
        self.kept_timelines()
    }

    fn timeline(&self, name: &str) -> Result<Pieces, ApiError> {
        self.kept_timeline(name)
    }

    fn shutdown(&self) -> Result<(), ApiError> {
        self.call(Supervisor::quit)
    }
}
