//! Shadows: another version of a service gets copies of packets before it takes over.
//!
//! 1. One instance of the new version is started on trial, as in an upgrade, with the user, the
//!    filter and the limits of the service, and with the least weight. Its packet memory is its own
//!    ([`crate::shadow`]), and no packet thread knows it.
//! 2. It gets copies of the packets of one instance of the service, and what both do with them is
//!    compared for the time that was asked for.
//! 3. If no more packets differ than may, it leaves, and the service is upgraded as usual. Else,
//!    and if it ends, breaks the rules, or an SLO near it is violated meanwhile, it leaves, and
//!    nothing has changed.
//!
//! # Limits
//! State that depends on the time, on random numbers or on packets before the first copy makes
//! packets differ that both versions treat alike. Pools give flows to their instances in other
//! ways: they have no shadow.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use sluice_shm::clock::monotonic_ns;
use sluice_shm::handshake::Welcome;
use sluice_shm::memory::MemoryError;

use super::backend::{Remote, outcome};
use super::nfs::{Advance, Event, Instance, Nf, Process, ShadowPlan, ShadowStage, ShadowTrial, ShadowWatch, at_once};
use super::upgrade::{Purpose, Replacement, Upgrade, UpgradeResult};
use super::{Supervisor, SupervisorError};
use crate::controller::events::Subject;
use crate::shadow::{ShadowMemory, Shadowing, shadow_fault, wrong_shadow};
use sluice_api::ApiError;
use sluice_api::model::{self as api, EventKind};
use sluice_api::shadow::{ShadowReport, ShadowRequest};
use sluice_dataplane::capture::{CaptureScope, following};
use sluice_host::attach::Caller;
use sluice_host::cgroup::pen::Pen;
use sluice_host::class::{self, Class};

/// Time between two looks at a shadow, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;
/// Most shadows at a time: packets are copied for each.
const MOST: usize = 4;
/// Words of eight bytes that a packet thread may be ahead of a shadow.
const WORDS: usize = 1 << 20;

impl Remote {
    /// Begins to give another version of a service copies; returns when it gets them.
    pub(super) fn begin_shadow(&self, name: &str, wanted: &ShadowRequest) -> Result<api::Upgraded, ApiError> {
        let (service, asked) = (name.to_string(), wanted.clone());
        let plan = self.change(move |s| s.plan_shadow(&service, &asked))?;
        // The supervisor does not wait for the memory.
        let no_memory =
            |error: MemoryError| ApiError::conflict(format!("no memory for a shadow: {error}"), "free some, or give smaller rings");
        let memory = ShadowMemory::new(plan.stride, plan.ring).map_err(no_memory)?;
        let (taps, readers) = following(&plan.scope, WORDS, plan.threads).into_iter().unzip();
        let mappings = memory.mappings();
        let stage = ShadowStage::Starts(Some(Box::new((memory, taps, readers))));
        let (service, trial) = (name.to_string(), ShadowTrial { wanted: wanted.clone(), plan, stage, mappings });
        let told = self.change(move |s| s.begin_shadow(&service, trial))?;
        outcome(&told, "the new version takes long until it is ready")
    }
}

impl Supervisor {
    /// What a shadow of a service would get.
    ///
    /// # Errors
    /// What is wrong with the request, or why the service can have no shadow.
    fn plan_shadow(&self, name: &str, wanted: &ShadowRequest) -> Result<ShadowPlan, SupervisorError> {
        if let Some(what) = wrong_shadow(wanted) {
            return Err(SupervisorError::Invalid(what.into()));
        }
        wanted.core.map_or(Ok(()), Self::has_core)?;
        let version = api::Upgrade { exec: wanted.exec.clone(), args: wanted.args.clone() };
        let (number, to) = self.version(name, &version)?;
        let refused = |why: &str| Err(SupervisorError::Conflict(format!("service {name} can have no shadow: {why}")));
        if to.config.is_pooled() {
            return refused("its pool gives flows to its instances; upgrade it at once");
        }
        self.has_place_for_shadow(name)?;
        let instances = self.services.get(usize::from(number)).into_iter().flatten().flat_map(|service| &service.instances);
        let takes = |nf: &&Nf| nf.life().takes_packets() && nf.handle.is_some();
        let Some(of) = instances.filter_map(|nf| self.nfs.get(nf)).find(takes) else {
            return refused("it has no instance to compare it with; upgrade it at once");
        };
        Ok(ShadowPlan {
            of: of.number,
            pid: of.process.as_ref().map(Process::number),
            scope: Arc::new(CaptureScope::of_nf(of.number)),
            threads: self.plane.threads(),
            stride: self.plane.arena().geometry().stride,
            ring: to.config.ring_slots(),
        })
    }

    /// Checks that one more service may have a shadow.
    ///
    /// # Errors
    /// As many have one as may.
    fn has_place_for_shadow(&self, name: &str) -> Result<(), SupervisorError> {
        match self.changes.upgrades.iter().filter(|upgrade| matches!(upgrade.purpose, Purpose::Shadow(..))).count() {
            ..MOST => Ok(()),
            _ => Err(SupervisorError::Conflict(format!(
                "service {name} can have no shadow: {MOST} services have one, the most at a time; wait for the end of one, or end one"
            ))),
        }
    }

    /// Starts a shadow; the receiver is notified when it gets copies.
    fn begin_shadow(&mut self, name: &str, trial: ShadowTrial) -> Result<Receiver<UpgradeResult>, SupervisorError> {
        let version = api::Upgrade { exec: trial.wanted.exec.clone(), args: trial.wanted.args.clone() };
        let (number, to) = self.version(name, &version)?;
        // Others may have begun since it was planned.
        self.has_place_for_shadow(name)?;
        self.has_room_for(1)?;
        let core = trial.wanted.core.or_else(|| self.nfs.get(&trial.plan.of).map(|nf| nf.core));
        let (reply, told) = channel();
        let purpose = Purpose::Shadow(Box::new(trial), Some(reply));
        self.try_out(Upgrade::new(number, to, purpose), vec![Replacement { old: None, core }]);
        Ok(told)
    }

    /// Whether an NF is a shadow. It is in no packet thread.
    pub(super) fn is_shadow(&self, number: u16) -> bool {
        self.changes
            .upgrades
            .iter()
            .any(|upgrade| matches!(upgrade.purpose, Purpose::Shadow(..)) && upgrade.pairs.iter().any(|(_, new)| *new == number))
    }

    /// Whether an NF is a shadow that gets copies.
    pub(super) fn gets_copies(&self, number: u16) -> bool {
        self.changes.upgrades.iter().any(|upgrade| match &upgrade.purpose {
            Purpose::Shadow(trial, _) => matches!(&trial.stage, ShadowStage::Watched(watch) if watch.nf == number),
            _ => false,
        })
    }

    /// Gives the process of a shadow its memory, and lets it in.
    pub(super) fn welcome_shadow(&mut self, number: u16, caller: Caller) -> Result<(), SupervisorError> {
        let Some(nf) = self.nfs.get_mut(&number) else { return Err(self.no_such("NF", &caller.hello.name)) };
        nf.learned.push(at_once(Instant::now()));
        let (name, core, is_forked) = (nf.name.clone(), nf.core, nf.held.pen.is_none());
        // Before it learns its address: its filter keeps it from moving by itself.
        if let (Some(pid), Ok(pidfd)) = (caller.peer.pid, caller.peer.pidfd.try_clone()) {
            self.confine(number, pid, pidfd, is_forked);
        }
        let memory = self.changes.upgrades.iter().find_map(|upgrade| match &upgrade.purpose {
            Purpose::Shadow(trial, _) if upgrade.pairs.iter().any(|(_, new)| *new == number) => match &trial.stage {
                ShadowStage::Starts(parts) => parts.as_ref().map(|parts| &parts.0),
                ShadowStage::Watched(_) => None,
            },
            _ => None,
        });
        let Some(memory) = memory else {
            return Err(SupervisorError::Conflict(format!("{name} has its memory already")));
        };
        let welcome = Welcome {
            geometry: memory.geometry(),
            region: memory.layout(),
            slots: 1,
            slot: 0,
            hands_over: false,
            name,
            core: core as u32,
            // Also where instances poll: it has what others leave of the core.
            poll: false,
            linger_ns: 0,
            clock_scale: self.plane.clock().scale_raw(),
            ports: self.port_names(),
            services: self.service_names(),
            chains: self.chain_names(),
        };
        let sent = caller.welcome(&welcome, memory.fds());
        self.feed(number, Event::Granted);
        match sent {
            Ok(attached) => self.was_let_in(number, attached),
            Err(_) => {
                // It left before its admission; its end will be noticed.
                self.nfs.get(&number).into_iter().for_each(Nf::kill);
            }
        }
        Ok(())
    }

    /// Lets all others of its core go before a shadow, once it is ready.
    fn let_others_go_first(&self, number: u16) {
        let Some(nf) = self.nfs.get(&number) else { return };
        if let Some(Err(error)) = nf.process.as_ref().map(|process| class::set(Path::new("/"), process.pid, Class::Idle)) {
            debug!("{} has the class of its service: {error}", nf.name);
        }
        nf.held.pen.iter().for_each(Pen::weigh_least);
    }

    /// Takes the next step of the shadow at this place of the upgrades. Returns whether it has left
    /// the place.
    pub(super) fn go_on_with_shadow(&mut self, at: usize) -> bool {
        let mut upgrade = self.changes.upgrades.remove(at);
        let Purpose::Shadow(trial, _) = &upgrade.purpose else { return true };
        let is_new = matches!(trial.stage, ShadowStage::Starts(_));
        match self.step_of_shadow(&mut upgrade) {
            Advance::Wait => {}
            Advance::GoOver if is_new => self.watch_shadow(&mut upgrade),
            Advance::GoOver | Advance::Switch => {
                self.pass_shadow(upgrade);
                return true;
            }
            Advance::GiveUp => {
                self.end_shadow(&mut upgrade, true);
                drop(self.give_up(upgrade));
                return true;
            }
        }
        self.changes.upgrades.insert(at, upgrade);
        false
    }

    fn step_of_shadow(&mut self, upgrade: &mut Upgrade) -> Advance {
        let now_ns = monotonic_ns();
        let Purpose::Shadow(trial, _) = &mut upgrade.purpose else { return Advance::GiveUp };
        let ShadowTrial { wanted, plan, stage, .. } = &mut **trial;
        let ShadowStage::Watched(watch) = stage else {
            // It says that its handler is made; no packet thread has its page.
            let seen = |nf: &Nf| Instance { state: nf.life().state(), is_made: true };
            return upgrade.trial.step(now_ns, upgrade.pairs.iter().map(|(_, new)| self.nfs.get(new).map(seen)));
        };
        if upgrade.trial.has_failed() {
            return Advance::GiveUp;
        }
        if now_ns < watch.look_ns {
            return Advance::Wait;
        }
        watch.look_ns = now_ns + LOOK_NS;
        let progress = watch.thread.progress();
        let violated = || self.violated(upgrade.service, watch.nf).into_iter().find(|slo| !watch.violated.contains(slo));
        let fault = match &progress.broken {
            Some(what) => Some(what.clone()),
            None if self.has_changed(plan) => {
                Some("the instance whose packets it got was started again meanwhile; begin the shadow again".into())
            }
            None => violated().map(|slo| format!("the SLO {slo} is violated since it gets copies")),
        };
        let fault = fault.or_else(|| shadow_fault(wanted, &progress.counts).filter(|_| progress.is_done));
        if let Some(why) = fault {
            upgrade.trial.fails_for(why);
            return Advance::GiveUp;
        }
        if now_ns >= watch.until_ns && !std::mem::replace(&mut watch.ends, true) {
            watch.thread.end(self.end_capture(&plan.scope));
        }
        if progress.is_done { Advance::GoOver } else { Advance::Wait }
    }

    /// Whether the instance whose packets are copied has another process, or none.
    fn has_changed(&self, plan: &ShadowPlan) -> bool {
        let pid = |nf: &Nf| nf.process.as_ref().map(Process::number);
        self.nfs.get(&plan.of).is_none_or(|nf| !nf.life().takes_packets() || pid(nf) != plan.pid)
    }

    /// Lets a shadow that is ready have copies.
    fn watch_shadow(&mut self, upgrade: &mut Upgrade) {
        let now_ns = monotonic_ns();
        let (service, config) = (upgrade.service, &upgrade.to.config);
        let exec = config.exec.as_ref().map_or(String::new(), |exec| exec.display().to_string());
        let Some((_, nf)) = upgrade.pairs.first().copied() else { return };
        let Purpose::Shadow(trial, reply) = &mut upgrade.purpose else { return };
        let (seconds, of) = (trial.wanted.seconds, trial.plan.of);
        let watch = |thread| ShadowWatch {
            thread,
            nf,
            until_ns: now_ns + seconds * 1_000_000_000,
            look_ns: now_ns + LOOK_NS,
            ends: false,
            violated: self.violated(service, nf),
        };
        let ShadowStage::Starts(parts) = &mut trial.stage else { return };
        let Some((memory, taps, readers)) = parts.take().map(|parts| *parts) else { return };
        self.let_others_go_first(nf);
        let begun = self.begin_following(taps);
        match Shadowing::start(memory, readers, begun) {
            Ok(thread) => trial.stage = ShadowStage::Watched(watch(thread)),
            Err(error) => {
                drop(self.end_capture(&trial.plan.scope));
                return upgrade.trial.fails_for(format!("no thread can be made for it: {error}"));
            }
        }
        let name_of = |number: u16| self.nfs.get(&number).map_or(String::new(), |nf| nf.name.clone());
        let (name, of) = (name_of(nf), name_of(of));
        let text = format!("shadow {name} of {exec} gets copies of the packets of {of} for {seconds} s");
        self.controller.events().note(EventKind::Upgrade, Subject::Other("service", &config.name), text);
        let upgraded =
            api::Upgraded { service: config.name.clone(), exec, args: config.args.clone(), instances: vec![name], leaving: 0 };
        if let Some(reply) = reply.take() {
            // The caller may be gone.
            let _ = reply.send(Ok((upgraded, Vec::new())));
        }
    }

    /// Lets a shadow leave, and keeps what was compared.
    fn end_shadow(&mut self, upgrade: &mut Upgrade, fails: bool) {
        let Purpose::Shadow(trial, _) = &upgrade.purpose else { return };
        if let ShadowStage::Watched(watch) = &trial.stage {
            if !watch.ends {
                watch.thread.end(self.end_capture(&trial.plan.scope));
            }
            let failed = upgrade.trial.reason().filter(|_| fails).map(String::from);
            let report = ShadowReport { runs: false, failed, ..self.report_of(upgrade, trial, watch) };
            let name = &upgrade.to.config.name;
            let text = format!("shadow {}: {}", report.nf, report.counts);
            self.controller.events().note(EventKind::Upgrade, Subject::Other("service", name), text);
            let there: Vec<String> = self.config.services.iter().map(|service| service.name.clone()).collect();
            self.seen.shadows.retain(|name, _| there.contains(name));
            self.seen.shadows.insert(name.clone(), report);
        }
        for (_, new) in std::mem::take(&mut upgrade.pairs) {
            self.retire_canary(new);
        }
    }

    /// Upgrades a service whose shadow has passed.
    fn pass_shadow(&mut self, mut upgrade: Upgrade) {
        self.end_shadow(&mut upgrade, false);
        let slots = self.slots_of(upgrade.service, &upgrade.to.config);
        if let Err(error) = self.has_room_for(slots.len() as u32) {
            upgrade.trial.fails_for(error.to_string());
            return drop(self.give_up(upgrade));
        }
        // The caller was answered; the end is an event.
        let (reply, _) = channel();
        self.try_out(Upgrade::new(upgrade.service, upgrade.to, Purpose::Version(reply)), slots);
    }

    fn report_of(&self, upgrade: &Upgrade, trial: &ShadowTrial, watch: &ShadowWatch) -> ShadowReport {
        let name_of = |number: u16| self.nfs.get(&number).map_or(String::new(), |nf| nf.name.clone());
        let progress = watch.thread.progress();
        ShadowReport {
            nf: name_of(watch.nf),
            exec: upgrade.to.config.exec.as_ref().map_or(String::new(), |exec| exec.display().to_string()),
            of: name_of(trial.plan.of),
            runs: true,
            failed: None,
            counts: progress.counts,
            differences: progress.differences.clone(),
        }
    }

    /// What was compared of the present or last shadow of a service.
    ///
    /// # Errors
    /// [`SupervisorError::NoSuch`] if it has had none.
    pub(super) fn shadow_report(&self, name: &str) -> Result<ShadowReport, SupervisorError> {
        let live = self.changes.upgrades.iter().find_map(|upgrade| match &upgrade.purpose {
            Purpose::Shadow(trial, _) if upgrade.to.config.name == name => match &trial.stage {
                ShadowStage::Watched(watch) => Some(self.report_of(upgrade, trial, watch)),
                ShadowStage::Starts(_) => None,
            },
            _ => None,
        });
        let known = live.or_else(|| self.seen.shadows.get(name).cloned());
        known.ok_or_else(|| match self.service_number(name) {
            Some(_) => SupervisorError::NoSuch(format!("service {name} has had no shadow; see `sluice nf upgrade --help`")),
            None => self.no_such("service", name),
        })
    }
}
