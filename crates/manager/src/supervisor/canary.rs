//! Canaries: another version of a service gets a part of new flows before it takes over.
//!
//! 1. One instance of the new version is tried as in an upgrade ([`super::upgrade`]).
//! 2. It gets its part of new flows: each of the others is among the members of the service several
//!    times. Flows that there are stay where they are.
//! 3. It is compared with the others for the time that was asked for. At the first fault it drains
//!    and leaves, and its flows go to the others as when any instance is removed: none of its
//!    packets is lost, and none is overtaken.
//! 4. Without a fault the service is upgraded as usual, and the canary leaves just before.
//!
//! A fault is an end of its process, also for cause (forged descriptors, standing still); more
//! drops than the others by a margin, and by more than chance; bursts that take too long; an SLO
//! near it that is violated since; too few packets to compare.
//!
//! # Limits
//! Flows are counted, not packets, so the part of packets may differ. Where flows are not looked up
//! (`flow_table = "needed"`), flows that there are are spread anew when it comes and when it goes.
//! A pool gives each flow or class an instance, and each shard has instances of its own: these have
//! no canary.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};

use sluice_shm::clock::monotonic_ns;

use super::nfs::{
    Advance, Canary, CanarySight, CanaryStage, CanaryWatch, ENOUGH_PACKETS, Event, Passage, Trial, canary_fault, canary_lacks,
    wrong_canary,
};
use super::upgrade::{Purpose, Replacement, Upgrade, UpgradeResult};
use super::{Supervisor, SupervisorError};
use crate::controller::events::Subject;
use sluice_api::change::CanaryRequest;
use sluice_api::model::{self as api, EventKind};
use sluice_api::promise::Promise;

/// Time between two looks at a canary, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;

impl Supervisor {
    /// Begins a canary; the receiver is notified when it gets packets.
    ///
    /// # Errors
    /// What is wrong with the request, or why the service can have no canary.
    pub(super) fn begin_canary(&mut self, name: &str, wanted: CanaryRequest) -> Result<Receiver<UpgradeResult>, SupervisorError> {
        if let Some(what) = wrong_canary(&wanted) {
            return Err(SupervisorError::Invalid(what.into()));
        }
        let version = api::Upgrade { exec: wanted.exec.clone(), args: wanted.args.clone() };
        let (number, to) = self.version(name, &version)?;
        let refused = |why: &str| Err(SupervisorError::Conflict(format!("service {name} can have no canary: {why}")));
        if to.config.is_pooled() {
            return refused("its pool gives flows to its instances; upgrade it at once");
        }
        if self.is_sharded(&to.config) {
            return refused("each shard has instances of its own; upgrade it at once");
        }
        let old = self.slots_of(number, &to.config);
        let Some(core) = old.first().and_then(|slot| self.nfs.get(&slot.old?)).map(|nf| nf.core) else {
            return refused("it has no instance to compare it with; upgrade it at once");
        };
        self.has_room_for(old.len() as u32 + 1)?;
        let (reply, told) = channel();
        let slot = Replacement { old: None, core: Some(core) };
        self.try_out(Upgrade::new(number, to, Purpose::Canary(Canary::new(wanted), Some(reply))), vec![slot]);
        Ok(told)
    }

    /// Ends a canary or a shadow, as for a fault.
    ///
    /// # Errors
    /// [`SupervisorError::NoSuch`] if there is neither.
    pub(super) fn abort_canary(&mut self, name: &str) -> Result<(), SupervisorError> {
        let ends = |purpose: &Purpose| matches!(purpose, Purpose::Canary(..) | Purpose::Shadow(..));
        let is_it = |upgrade: &&mut Upgrade| upgrade.to.config.name == name && ends(&upgrade.purpose);
        let Some(upgrade) = self.changes.upgrades.iter_mut().find(is_it) else {
            return Err(self.nothing_to_abort(name));
        };
        upgrade.trial.fails_for("it was ended by request".into());
        Ok(())
    }

    /// Why no version of a service is on trial.
    fn nothing_to_abort(&self, name: &str) -> SupervisorError {
        if self.service_number(name).is_none() {
            return self.no_such("service", name);
        }
        let is_upgrading = self.changes.upgrades.iter().any(|upgrade| upgrade.to.config.name == name);
        let has_passed = self.seen.shadows.get(name).is_some_and(|shadow| shadow.failed.is_none());
        match (is_upgrading, has_passed) {
            (true, true) => SupervisorError::Conflict(format!(
                "the shadow of service {name} has passed, and the service is being upgraded, which --abort does not end; wait for the end, \
                 then upgrade it to its former program"
            )),
            (true, false) => SupervisorError::Conflict(format!(
                "service {name} is being upgraded without a canary or a shadow, which --abort does not end; wait for the end"
            )),
            (false, true) => SupervisorError::NoSuch(format!(
                "service {name} has no canary and no shadow: its last shadow has passed; upgrade it to its former program to go back"
            )),
            (false, false) => SupervisorError::NoSuch(format!(
                "service {name} has no canary and no shadow; `sluice events --kind upgrade` says how the last one ended"
            )),
        }
    }

    /// The canary of a service that gets a part of new flows, and its part in percent.
    pub(super) fn canary_of(&self, service: u16) -> Option<(u16, u32)> {
        let mut its = self.changes.upgrades.iter().filter(|upgrade| upgrade.service == service);
        its.find_map(|upgrade| match &upgrade.purpose {
            Purpose::Canary(canary, _) => canary.takes(),
            _ => None,
        })
    }

    /// When the canary or shadow of an upgrade is looked at next, on the monotonic clock, if
    /// nothing else moves the upgrade on until then.
    pub(super) fn next_look_ns(upgrade: &Upgrade) -> Option<u64> {
        match &upgrade.purpose {
            Purpose::Canary(Canary { stage: CanaryStage::Watched(watch), .. }, _) => Some(watch.look_ns),
            Purpose::Shadow(shadow, _) => shadow.look_ns(),
            _ => None,
        }
    }

    /// Whether an NF is a canary that gets packets.
    pub(super) fn is_canary(&self, number: u16) -> bool {
        let service = self.nfs.get(&number).map(|nf| nf.service);
        service.and_then(|service| self.canary_of(service)).is_some_and(|(nf, _)| nf == number)
    }

    /// Takes the next step of the canary at this place of the upgrades. Returns whether it has left
    /// the place.
    pub(super) fn go_on_with_canary(&mut self, at: usize) -> bool {
        let mut upgrade = self.changes.upgrades.remove(at);
        let step = self.step_of_canary(&mut upgrade);
        let Purpose::Canary(canary, _) = &upgrade.purpose else { return true };
        let (is_new, takes) = (matches!(canary.stage, CanaryStage::Starts), canary.takes());
        let is_passed = matches!(canary.stage, CanaryStage::Passed(_));
        match (step, takes) {
            (Advance::Wait, _) => {
                self.changes.upgrades.insert(at, upgrade);
                return false;
            }
            (Advance::GoOver, None) if is_new => {
                self.watch_canary(upgrade, at);
                return false;
            }
            (Advance::GoOver, Some((nf, _))) if !is_passed => self.pass(upgrade, nf),
            (Advance::GoOver | Advance::Switch, takes) => {
                takes.into_iter().for_each(|(nf, _)| self.retire_canary(nf));
                drop(self.go_over(upgrade));
            }
            (Advance::GiveUp, takes) => {
                takes.into_iter().for_each(|(nf, _)| self.dismiss_canary(&mut upgrade, nf));
                drop(self.give_up(upgrade));
            }
        }
        true
    }

    /// Lets a canary leave: its flows go to the others in order, before these hand over or go on.
    pub(super) fn retire_canary(&mut self, nf: u16) {
        // Its end says nothing about a later version.
        self.feed(nf, Event::TrialPassed);
        self.retire(nf);
    }

    /// Lets a canary leave whose upgrade is given up, which would let it leave again.
    fn dismiss_canary(&mut self, upgrade: &mut Upgrade, nf: u16) {
        upgrade.pairs.retain(|(_, new)| *new != nf);
        self.retire_canary(nf);
    }

    fn step_of_canary(&self, upgrade: &mut Upgrade) -> Advance {
        let now_ns = monotonic_ns();
        let (service, has_failed) = (upgrade.service, upgrade.trial.has_failed());
        let Purpose::Canary(Canary { wanted, stage: CanaryStage::Watched(watch) }, _) = &mut upgrade.purpose else {
            return self.step_of(upgrade);
        };
        if has_failed {
            return Advance::GiveUp;
        }
        if now_ns < watch.look_ns {
            return Advance::Wait;
        }
        watch.look_ns = now_ns + LOOK_NS;
        let is_over = now_ns >= watch.until_ns;
        let seen = self.sight(watch, service, wanted.burst_us.is_some());
        match canary_fault(wanted, &seen).or_else(|| canary_lacks(&seen).filter(|_| is_over)) {
            Some(why) => {
                upgrade.trial.fails_for(why);
                Advance::GiveUp
            }
            None if is_over => Advance::GoOver,
            None => Advance::Wait,
        }
    }

    /// What is known of a canary; `timed`: also of its bursts.
    fn sight(&self, watch: &mut CanaryWatch, service: u16, timed: bool) -> CanarySight {
        let nf = self.nfs.get(&watch.nf).filter(|_| timed);
        let times = nf.map(|nf| self.own_report(nf, 0).service_ns).filter(|times| times.count >= ENOUGH_PACKETS);
        // Each for itself: some come, go or are restarted.
        for other in self.instances_of(service) {
            let now = self.passage(other);
            let before = watch.before.insert(other, now).unwrap_or_default();
            watch.others = watch.others.and(now.since(before));
        }
        CanarySight {
            own: self.passage(watch.nf),
            others: watch.others,
            burst_ns: times.map(|times| times.p99),
            violated: self.violated(service, watch.nf).into_iter().find(|slo| !watch.violated.contains(slo)),
        }
    }

    /// The SLOs that are violated, and that a canary of this service may have harmed: they are kept
    /// by services of its chains, or by an NF on its core.
    pub(super) fn violated(&self, service: u16, canary: u16) -> Vec<String> {
        let name_of = |service: &u16| Some(self.services.get(usize::from(*service))?.as_ref()?.config.name.as_str());
        let chains = self.chains.iter().flatten().filter(|chain| chain.services.contains(&service));
        let near: Vec<&str> = chains.flat_map(|chain| chain.services.iter()).chain([&service]).filter_map(name_of).collect();
        let core = self.nfs.get(&canary).map(|nf| nf.core);
        let core_of = |name: &String| self.nfs.get(&self.nf_number(name)?).map(|nf| nf.core);
        let is_near = |slo: &Promise| {
            slo.services.iter().any(|name| near.contains(&name.as_str()))
                || core.is_some() && slo.nfs.iter().any(|name| core_of(name) == core)
        };
        let violated = self.promise_reports().into_iter().filter(|slo| slo.word() == "violated" && is_near(slo));
        violated.map(|slo| slo.slo).collect()
    }

    fn instances_of(&self, service: u16) -> Vec<u16> {
        let service = self.services.get(usize::from(service)).and_then(Option::as_ref);
        service.map_or(Vec::new(), |service| service.instances.clone())
    }

    fn passage(&self, nf: u16) -> Passage {
        let handle = self.nfs.get(&nf).and_then(|nf| nf.handle.as_ref());
        let counters = handle.into_iter().flat_map(|handle| handle.counters.iter());
        counters.fold(Passage::default(), |sum, counters| Passage {
            received: sum.received + counters.api.rx_packets.get(),
            dropped: sum.dropped + counters.api.verdict_drops.get(),
        })
    }

    /// Gives a canary that is ready its part of new flows, and puts its upgrade in its place.
    fn watch_canary(&mut self, mut upgrade: Upgrade, at: usize) {
        let now_ns = monotonic_ns();
        let before: BTreeMap<u16, Passage> =
            self.instances_of(upgrade.service).into_iter().map(|other| (other, self.passage(other))).collect();
        let instances: Vec<String> = upgrade.pairs.iter().filter_map(|(_, nf)| Some(self.nfs.get(nf)?.name.clone())).collect();
        let config = &upgrade.to.config;
        let exec = config.exec.as_ref().map_or(String::new(), |exec| exec.display().to_string());
        let (Some((_, nf)), Purpose::Canary(canary, reply)) = (upgrade.pairs.first().copied(), &mut upgrade.purpose) else {
            return;
        };
        let violated = self.violated(upgrade.service, nf);
        let CanaryRequest { percent, seconds, .. } = &canary.wanted;
        let text = format!("canary {} of {exec} gets {percent} % of new flows for {seconds} s", instances.join(", "));
        self.controller.events().note(EventKind::Upgrade, Subject::Other("service", &config.name), text);
        let until_ns = now_ns + seconds * 1_000_000_000;
        let (look_ns, others) = (now_ns + LOOK_NS, Passage::default());
        canary.stage = CanaryStage::Watched(CanaryWatch { nf, until_ns, look_ns, before, others, violated });
        let upgraded = api::Upgraded { service: config.name.clone(), exec, args: config.args.clone(), instances, leaving: 0 };
        if let Some(reply) = reply.take() {
            // The caller may be gone.
            let _ = reply.send(Ok((upgraded, Vec::new())));
        }
        self.changes.upgrades.insert(at, upgrade);
        self.publish();
    }

    /// Starts instances of a version that has passed in place of all others.
    fn pass(&mut self, mut upgrade: Upgrade, nf: u16) {
        let slots = self.slots_of(upgrade.service, &upgrade.to.config);
        if let Err(error) = self.has_room_for(slots.len() as u32) {
            upgrade.trial.fails_for(error.to_string());
            self.dismiss_canary(&mut upgrade, nf);
            drop(self.give_up(upgrade));
            return;
        }
        if let Purpose::Canary(canary, _) = &mut upgrade.purpose {
            canary.stage = CanaryStage::Passed(nf);
        }
        upgrade.pairs.clear();
        upgrade.trial = Trial::new(monotonic_ns());
        self.try_out(upgrade, slots);
    }
}
