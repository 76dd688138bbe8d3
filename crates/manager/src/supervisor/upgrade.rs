//! Upgrades: a service changes to another version of its program while packets flow.
//!
//! [`Trial`] decides the progress. The old version is not touched before the trial has succeeded,
//! and an upgrade that is given up leaves nothing behind. Then the service is of the new version,
//! its zygote is replaced, and later starts use the new version.
//!
//! A shared instance hands its place to one of the new version, which gets its flows and those that
//! its hash gives it. What the successor returns waits until the last packet of the old one has
//! gone on ([`sluice_dataplane::succession`]), so that no packet overtakes another. An instance
//! without a successor leaves its flows to the others, which wait for it in the same way. A pool
//! member keeps its one flow to the end, and leaves with it.
//!
//! A move of an instance to another core is the same for that instance alone, with the present
//! version. A configuration that changes a service ([`super::apply`]) tries the new version in the
//! same way.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sluice_shm::clock::monotonic_ns;
use sluice_shm::page::Counter;

use super::change::{Gone, Start, start_of};
use super::nfs::{Advance, Canary, Event, HELLO_PATIENCE, Instance, Life, Nf, ShadowTrial, State, Trial, TrialEnd};
use super::{ServiceState, Supervisor, SupervisorError};
use crate::controller::events::Subject;
use sluice_api::config as model;
use sluice_api::model::{self as api, EventKind};
use sluice_config::host::{self, Host};
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::succession::Succession;

/// The result of an upgrade, and the old instances that are to leave.
pub(super) type UpgradeResult = Result<(api::Upgraded, Gone), SupervisorError>;

pub(super) struct Upgrade {
    pub(super) service: u16,
    pub(super) to: ServiceState,
    /// Instances of the new version, each with the one that it succeeds.
    pub(super) pairs: Vec<(Option<u16>, u16)>,
    /// Instances that leave without a successor.
    pub(super) surplus: Vec<u16>,
    /// Members of the old version, once the new one's pool grows.
    pub(super) old: Option<Vec<u16>>,
    pub(super) trial: Trial,
    pub(super) purpose: Purpose,
}

pub(super) enum Purpose {
    Version(Sender<UpgradeResult>),
    /// One instance moves to this core; the version stays.
    Move(usize, Sender<UpgradeResult>),
    /// The configuration of this number, which is applied when all its upgrades may go on. The
    /// sender is notified when this upgrade is over.
    Configuration(u64, Option<Sender<()>>),
    /// The new version gets a part of new flows first. When it does, that is reported.
    Canary(Canary, Option<Sender<UpgradeResult>>),
    /// The same with copies of packets.
    Shadow(Box<ShadowTrial>, Option<Sender<UpgradeResult>>),
}

/// A slot for an instance of a new version.
pub(super) struct Replacement {
    /// The instance that has it now.
    pub(super) old: Option<u16>,
    /// Its core, if that is not the old instance's.
    pub(super) core: Option<usize>,
}

impl Upgrade {
    pub(super) fn new(service: u16, to: ServiceState, purpose: Purpose) -> Self {
        Self { service, to, pairs: Vec::new(), surplus: Vec::new(), old: None, trial: Trial::new(monotonic_ns()), purpose }
    }
}

impl Supervisor {
    /// Refuses a change while a service is being upgraded.
    pub(super) fn not_upgrading(&self, name: &str) -> Result<(), SupervisorError> {
        let is_it = |u: &Upgrade| u.to.config.name == name;
        match self.changes.upgrades.iter().find(|upgrade| is_it(upgrade)).map(|upgrade| &upgrade.purpose) {
            None => Ok(()),
            Some(Purpose::Canary(..)) => Err(SupervisorError::Conflict(format!(
                "a version of service {name} is on trial with a part of new flows; wait for its end, or end it with `sluice nf upgrade \
                 {name} --abort`"
            ))),
            Some(Purpose::Shadow(..)) => Err(SupervisorError::Conflict(format!(
                "a version of service {name} is on trial with copies of packets; wait for its end, or end it with `sluice nf upgrade {name} \
                 --abort`"
            ))),
            Some(_) => Err(SupervisorError::Conflict(format!("service {name} is being upgraded; try again in a moment"))),
        }
    }

    pub(super) fn is_upgrading(&self, service: u16) -> bool {
        self.changes.upgrades.iter().any(|u| u.service == service)
    }

    /// The new versions of services.
    pub(super) fn versions_on_trial(&self) -> impl Iterator<Item = &ServiceState> + Clone {
        self.changes.upgrades.iter().map(|upgrade| &upgrade.to)
    }

    /// The new version of a service, if it has one.
    pub(super) fn version_on_trial(&self, service: u16) -> Option<&ServiceState> {
        self.changes.upgrades.iter().find(|upgrade| upgrade.service == service).map(|upgrade| &upgrade.to)
    }

    /// The service of an NF; for one on trial, the new version.
    pub(super) fn service_of(&self, nf: &Nf) -> Option<&ServiceState> {
        let on_trial = self.version_on_trial(nf.service).filter(|_| nf.life().is_on_trial());
        on_trial.or_else(|| self.services.get(usize::from(nf.service))?.as_ref())
    }

    /// Another version of a service by its program, if the service can be upgraded.
    ///
    /// # Errors
    /// Why it cannot, or what is wrong with the program.
    pub(super) fn version(&self, name: &str, to: &api::Upgrade) -> Result<(u16, ServiceState), SupervisorError> {
        let number = self.service_number(name).ok_or_else(|| self.no_such("service", name))?;
        self.not_upgrading(name)?;
        self.not_kept(name)?;
        let Some(Some(service)) = self.services.get(number as usize) else { return Err(self.no_such("service", name)) };
        let refused = |why: &str| Err(SupervisorError::Conflict(format!("service {name} cannot be upgraded: {why}")));
        if service.config.attach {
            return refused("its instances come by themselves; start the new version in their place");
        }
        if service.config.is_group() {
            return refused("it is a group, which is replaced as a whole; apply a configuration with its parts' new programs");
        }
        let groups = self.services.iter().flatten().filter(|service| service.config.is_group());
        if let Some(group) = groups.map(|service| &service.config).find(|group| group.parts.iter().any(|part| part == name)) {
            return refused(&format!(
                "it is a part of {}, which is replaced as a whole; apply a configuration with its new program",
                group.name
            ));
        }
        if service.config.is_foreign() {
            return refused("its program is foreign; apply a configuration with the new one, which replaces the instances");
        }
        if service.config.container.as_ref().is_some_and(|c| c.bundle.is_some()) {
            return refused("its container is a bundle, which names the program; apply a configuration with another bundle");
        }
        let change = |service: &mut model::Service| {
            service.exec = Some(PathBuf::from(&to.exec));
            service.args = to.args.clone().unwrap_or_else(|| service.args.clone());
        };
        let mut all = self.with(|c| c.services.iter_mut().filter(|s| s.name == name).for_each(change))?;
        host::resolve(&mut all, &Host::here());
        let wanted = all.services.into_iter().find(|s| s.name == name).ok_or_else(|| self.no_such("service", name))?;
        let Start { exec, container, .. } = start_of(&wanted)?;
        Ok((number, ServiceState::new(wanted, exec, service.user.clone(), container)))
    }

    /// The slots for a new version: one for each instance that stays, or one for a pool of which
    /// each member has a flow.
    pub(super) fn slots_of(&self, number: u16, wanted: &model::Service) -> Vec<Replacement> {
        let at_its_core = |old| Replacement { old: Some(old), core: None };
        let stays = |n: &&u16| self.nfs.get(n).is_some_and(|nf| nf.life().stays());
        let old = self.services.get(usize::from(number)).into_iter().flatten().flat_map(|service| &service.instances);
        match wanted.has_members_for_flows() {
            true => vec![Replacement { old: None, core: None }],
            false => old.filter(stays).copied().map(at_its_core).collect(),
        }
    }

    /// Begins to upgrade a service; the outcome goes to the receiver.
    pub(super) fn begin_upgrade(&mut self, name: &str, to: &api::Upgrade) -> Result<Receiver<UpgradeResult>, SupervisorError> {
        let (number, to) = self.version(name, to)?;
        let slots = self.slots_of(number, &to.config);
        self.has_room_for(slots.len() as u32)?;
        let (reply, told) = channel();
        self.try_out(Upgrade::new(number, to, Purpose::Version(reply)), slots);
        Ok(told)
    }

    /// Begins to move an instance to another core; the outcome goes to the receiver.
    pub(super) fn begin_move(&mut self, name: &str, core: usize) -> Result<Receiver<UpgradeResult>, SupervisorError> {
        let number = self.nf_number(name).ok_or_else(|| self.no_such("NF", name))?;
        let Some(nf) = self.nfs.get(&number) else { return Err(self.no_such("NF", name)) };
        let at = nf.service;
        let Some(Some(service)) = self.services.get(at as usize) else { return Err(self.no_such("NF", name)) };
        let (of, can_move) = (service.config.name.clone(), service.config.can_be_moved());
        self.not_upgrading(&of)?;
        self.not_kept(&of)?;
        let refused = |why: &str| Err(SupervisorError::Conflict(format!("{name} cannot be moved to core {core}: {why}")));
        if !can_move {
            return refused(
                "an NF that attaches by itself, a foreign or inline one, and one that has a flow to itself stay where they are",
            );
        }
        if nf.core == core {
            return refused("it is there");
        }
        if !nf.is(State::Running) || !nf.life().stays() || nf.life().is_on_trial() {
            return refused("it is coming or going; try again when it runs");
        }
        let other_shard = self.config.shard_of(core).filter(|shard| !self.plane.division().is_of_shard(*shard)(number));
        let is_sharded = self.is_sharded(&service.config);
        if is_sharded && other_shard.is_some() {
            return refused("that is of another shard, which has other flows");
        }
        let Start { exec, container, .. } = start_of(&service.config)?;
        let to = ServiceState::new(service.config.clone(), exec, service.user.clone(), container);
        Self::has_core(core)?;
        // The configuration's rules about cores apply to this one too.
        self.with(|c| {
            // The place of a core says its shard, and this one's was looked at.
            let known = c.services.iter_mut().filter(|s| s.name == of && !is_sharded);
            known.for_each(|s| s.cores.extend(Some(core).filter(|core| !s.cores.contains(core))));
        })?;
        self.has_room_for(1)?;
        let (reply, told) = channel();
        self.try_out(Upgrade::new(at, to, Purpose::Move(core, reply)), vec![Replacement { old: Some(number), core: Some(core) }]);
        Ok(told)
    }

    /// Begins an upgrade: starts an instance for each of these slots, or the first of a pool.
    pub(super) fn try_out(&mut self, mut upgrade: Upgrade, slots: Vec<Replacement>) {
        for slot in slots {
            match self.add_on_trial(upgrade.service, &upgrade.to.config, &slot) {
                Ok(new) => upgrade.pairs.push((slot.old, new)),
                Err(error) => upgrade.trial.fails_for(error.to_string()),
            }
        }
        let launched: Vec<u16> = upgrade.pairs.iter().map(|(_, new)| *new).collect();
        self.changes.upgrades.push(upgrade);
        // Its user may connect from now on.
        self.know_users();
        launched.into_iter().for_each(|new| self.launch(new));
    }

    /// Adds an instance of the new version beside the others, on trial.
    fn add_on_trial(&mut self, service: u16, to: &model::Service, slot: &Replacement) -> Result<u16, SupervisorError> {
        let of = self.config.manager.shards.len();
        let place = slot.core.and_then(|core| to.cores.iter().position(|one| *one == core));
        let shard = place.filter(|_| self.is_sharded(to)).map(|place| place % of);
        let fits = |number: u16| shard.is_none_or(|shard| self.plane.division().is_of_shard(shard)(number));
        // An instance of another shard has other flows.
        let former = slot.old.filter(|old| fits(*old)).and_then(|old| self.nfs.get(&old));
        let former = former.map(|nf| (nf.number, nf.core, nf.position.spread_id, nf.position.former));
        // The two numbers of a slot alternate, so that there are no more paths than with one.
        let number = match former {
            Some((old, _, _, Some(before))) if self.may_have(before) && self.plane.division().drains_alike(old, before) => {
                self.nfs.take_number(before);
                before
            }
            Some((old, ..)) => {
                self.has_room_for(1)?;
                let drains = self.plane.division().is_of_shard(old.into());
                self.nfs.next_number(drains)
            }
            None => self.new_number(shard),
        };
        let Some(Some(known)) = self.services.get_mut(service as usize) else {
            return Err(SupervisorError::NoSuch("there is no such service".into()));
        };
        known.next_index += 1;
        let index = known.next_index - 1;
        let core = slot.core.unwrap_or_else(|| former.map_or_else(|| known.core_of(index), |(_, core, ..)| core));
        let name = format!("{}.{index}", known.config.name);
        let is_group = known.config.is_group();
        let mut nf = Nf::new(number, service, name, core, Life::on_trial(monotonic_ns()));
        nf.counted.parts = is_group.then(Box::default);
        if let Some((old, _, id, _)) = former {
            (nf.position.former, nf.position.spread_id) = (Some(old), id);
        }
        self.nfs.add(nf);
        Ok(number)
    }

    /// Whether a former number is free.
    fn may_have(&self, number: u16) -> bool {
        let is_spare =
            |s: &super::ServiceState| s.pool.as_ref().is_some_and(|pool| pool.life.spares().any(|spare| spare == number));
        self.nfs.get(&number).is_none() && !self.services.iter().flatten().any(is_spare)
    }

    /// Starts an instance on trial. It is never forked: the zygote is of the old version.
    pub(super) fn launch_on_trial(&mut self, number: u16) {
        let Some(nf) = self.nfs.get(&number) else { return };
        let Some(version) = self.version_on_trial(nf.service) else { return };
        if let Some(template) = version.container.clone() {
            return self.launch_container(number, &template);
        }
        let Some(exec) = version.exec.clone() else { return };
        let spec = self.spec_of(version, &nf.name, exec, nf.core, []);
        if let Err(error) = self.start_process(number, &spec, None) {
            self.trial_failed(number, error);
            self.lost(number);
        }
    }

    /// Notes that an instance on trial has shown that its version does not work.
    pub(super) fn trial_failed(&mut self, number: u16, why: String) {
        let Some(service) = self.nfs.get(&number).map(|nf| nf.service) else { return };
        if let Some(upgrade) = self.changes.upgrades.iter_mut().find(|u| u.service == service) {
            upgrade.trial.fails_for(why);
        }
    }

    /// Handles an instance on trial whose process has ended, or has sent no hello.
    pub(super) fn trial_ended(&mut self, number: u16, how: TrialEnd) {
        let Some(nf) = self.nfs.get(&number) else { return };
        let Some(version) = self.version_on_trial(nf.service) else { return };
        let program = version.config.exec.as_ref().map_or(String::new(), |exec| exec.display().to_string());
        let advice = "run it by hand with its arguments to see why";
        let why = match how {
            TrialEnd::BeforeReady if self.is_canary(number) => {
                format!("{} ended while it took packets; the daemon's log has its last output", nf.name)
            }
            TrialEnd::BeforeReady if self.gets_copies(number) => {
                format!("{} ended while it got copies; the daemon's log has its last output", nf.name)
            }
            TrialEnd::BeforeReady => format!("{program} ended before its handler was ready; {advice}"),
            TrialEnd::Silent => {
                format!("{program} said no hello within {} s; is it an NF, written with the library?", HELLO_PATIENCE.as_secs())
            }
            TrialEnd::BeforeHello => format!("{program} ended before it said hello; is it an NF? {advice}"),
        };
        // It had packets, as any NF that dies.
        if (self.is_canary(number) || self.gets_copies(number)) && !self.turns.stopping {
            self.controller.events().note(EventKind::Death, Subject::Nf(&nf.name), why.clone());
        }
        self.trial_failed(number, why);
    }

    /// Takes the next step of each upgrade that can take one.
    pub(super) fn go_on_upgrading(&mut self) {
        if self.turns.stopping {
            // What it would start is not among those that are asked to stop.
            return;
        }
        let mut at = 0;
        while at < self.changes.upgrades.len() {
            let upgrade = &self.changes.upgrades[at];
            if matches!(upgrade.purpose, Purpose::Canary(..)) {
                at += usize::from(!self.go_on_with_canary(at));
                continue;
            }
            if matches!(upgrade.purpose, Purpose::Shadow(..)) {
                at += usize::from(!self.go_on_with_shadow(at));
                continue;
            }
            // A configuration decides for all of its upgrades.
            let is_waited_for = upgrade.trial.is_open() && matches!(upgrade.purpose, Purpose::Configuration(..));
            let step = if is_waited_for { Advance::Wait } else { self.step_of(upgrade) };
            if step == Advance::Wait {
                at += 1;
                continue;
            }
            let upgrade = self.changes.upgrades.remove(at);
            match step {
                Advance::Switch => self.switch_pool(upgrade),
                Advance::GiveUp => drop(self.give_up(upgrade)),
                Advance::GoOver | Advance::Wait => drop(self.go_over(upgrade)),
            }
        }
    }

    pub(super) fn step_of(&self, upgrade: &Upgrade) -> Advance {
        // Acquire: pairs with the library's store when its handler is made.
        let is_made = |h: &NfHandle| h.region.page.counter(Counter::Ready).load(Ordering::Acquire) > 0;
        let seen = |nf: &Nf| Instance { state: nf.life().state(), is_made: nf.handle.as_deref().is_some_and(is_made) };
        upgrade.trial.step(monotonic_ns(), upgrade.pairs.iter().map(|(_, new)| self.nfs.get(new).map(seen)))
    }

    /// Changes the service to a version that works, and answers the caller. For a configuration,
    /// returns the NFs that are to leave.
    pub(super) fn go_over(&mut self, upgrade: Upgrade) -> Gone {
        match upgrade.to.config.has_members_for_flows() {
            true => self.grow(upgrade),
            false => self.switch(upgrade),
        }
    }

    /// Ends an upgrade that does not work: what was started for it is removed, and everything else
    /// is as before. Returns the reason.
    pub(super) fn give_up(&mut self, upgrade: Upgrade) -> String {
        for (_, new) in &upgrade.pairs {
            self.retire(*new);
        }
        self.know_users();
        let why = upgrade.trial.why();
        let name_of = |old: u16| self.nfs.get(&old).map(|nf| nf.name.clone());
        let service = &upgrade.to.config.name;
        let stays = || format!("service {service} is not upgraded and goes on as it was");
        let (kind, what, reply) = match upgrade.purpose {
            Purpose::Version(reply) => (EventKind::Upgrade, stays(), Some(reply)),
            Purpose::Canary(_, reply) | Purpose::Shadow(_, reply) => (EventKind::Upgrade, stays(), reply),
            Purpose::Move(core, reply) => {
                let name = upgrade.pairs.first().and_then(|(old, _)| name_of((*old)?)).unwrap_or_default();
                (EventKind::Move, format!("{name} is not moved to core {core} and goes on where it is"), Some(reply))
            }
            Purpose::Configuration(..) => (EventKind::Apply, format!("the new version of service {service} does not work"), None),
        };
        let said = format!("{what}: {why}");
        self.controller.events().note(kind, Subject::Other("service", service), format!("failed: {said}"));
        // The caller may be gone.
        reply.into_iter().for_each(|reply| _ = reply.send(Err(SupervisorError::Conflict(said.clone()))));
        said
    }

    /// Makes the new version the service's.
    fn take_over(&mut self, upgrade: &Upgrade) {
        for (_, new) in &upgrade.pairs {
            self.feed(*new, Event::TrialPassed);
        }
        if matches!(upgrade.purpose, Purpose::Move(..)) {
            return;
        }
        if let Some(known) = self.config.services.iter_mut().find(|s| s.name == upgrade.to.config.name) {
            known.clone_from(&upgrade.to.config);
        }
        let number = upgrade.service;
        self.dismiss_zygote(number);
        if let Some(Some(service)) = self.services.get_mut(number as usize) {
            let ServiceState { config, exec, user, container, .. } = &upgrade.to;
            service.config.clone_from(config);
            (service.exec, service.user, service.container) = (exec.clone(), user.clone(), container.clone());
        }
        self.know_users();
        self.start_zygote(number);
    }

    /// Instances of the new version succeed the old ones.
    fn switch(&mut self, upgrade: Upgrade) -> Gone {
        self.take_over(&upgrade);
        let number = upgrade.service;
        let (mut gone, mut retired) = (Gone::new(), Vec::new());
        // Old instances with packets, which the successors' packets must not overtake.
        let mut draining = Vec::new();
        for old in upgrade.pairs.iter().filter_map(|(old, _)| *old).chain(upgrade.surplus.iter().copied()) {
            let Some(nf) = self.nfs.get_mut(&old) else { continue };
            let (to, told) = channel();
            nf.removal.waiters.push(to);
            gone.push(told);
            self.feed(old, Event::Superseded(Duration::from_millis(self.config.manager.drain_ms)));
            let drains = self.nfs.get(&old).is_some_and(|nf| nf.life().drains());
            if drains { draining.push(old) } else { retired.push(old) }
        }
        let mut successions = Vec::new();
        for (old, new) in &upgrade.pairs {
            let Some(old) = *old else {
                self.count_in(*new);
                successions.extend(self.follow(*new, upgrade.surplus.iter().filter(|nf| draining.contains(nf))));
                continue;
            };
            if let Some(Some(service)) = self.services.get_mut(number as usize) {
                // At the same position: it decides which flows of a hash a pool member has.
                match service.instances.iter().position(|n| *n == old) {
                    Some(place) => {
                        service.instances[place] = *new;
                        service.instances.push(old);
                    }
                    None => service.instances.push(*new),
                }
            }
            successions.extend(self.follow(*new, [&old].into_iter().chain(&upgrade.surplus).filter(|nf| draining.contains(nf))));
        }
        if !self.publish_pool(number) {
            self.publish();
        }
        self.let_follow(&successions);
        retired.into_iter().for_each(|old| self.retire(old));
        self.answer(upgrade, gone, 0)
    }

    /// Makes what an NF returns wait for the last packets of others whose flows it is about to get
    /// ([`sluice_dataplane::succession`]). Call [`Supervisor::let_follow`] when the new tables are
    /// out.
    pub(super) fn follow<'a>(&self, number: u16, former: impl Iterator<Item = &'a u16>) -> Option<Arc<Succession>> {
        let former: Vec<_> = former.filter_map(|nf| Some(self.nfs.get(nf)?.handle.as_ref()?.in_flight.clone())).collect();
        if former.is_empty() {
            return None;
        }
        let succession = Succession::after(former);
        if let Err(error) = self.plane.follow(number, &succession) {
            warn!("{error}");
        }
        Some(succession)
    }

    /// Settles successions when all threads use the new tables: no more packets for the former.
    pub(super) fn let_follow(&self, successions: &[Arc<Succession>]) {
        if successions.is_empty() {
            return;
        }
        if let Err(error) = self.plane.meet() {
            warn!("{error}");
        }
        successions.iter().for_each(|succession| succession.settle());
    }

    /// Starts as many members of the new version as the old one has, up to the maximum.
    fn grow(&mut self, mut upgrade: Upgrade) -> Gone {
        let number = upgrade.service;
        let old = self.services[number as usize].as_ref().map_or(Vec::new(), |s| s.instances.clone());
        // Members that are starting wait for a zygote that is being removed.
        for nf in &old {
            if self.nfs.get(nf).is_some_and(|nf| matches!(nf.life().state(), State::Starting | State::Restarting)) {
                self.retire(*nf);
            }
        }
        self.take_over(&upgrade);
        if let Some(Some(service)) = self.services.get_mut(number as usize) {
            service.instances.extend(upgrade.pairs.iter().map(|(_, new)| *new));
        }
        self.stir_pool(number);
        let living =
            old.iter().filter(|nf| self.nfs.get(nf).is_some_and(|nf| nf.is(State::Running) && !nf.life().leaves())).count();
        let wanted = living.max(upgrade.to.config.first_instances() as usize);
        while upgrade.pairs.len() < wanted
            && let Ok(new) = self.new_instance(number, None)
        {
            upgrade.pairs.push((None, new));
        }
        upgrade.old = Some(old);
        upgrade.trial.grows_from(monotonic_ns());
        self.changes.upgrades.push(upgrade);
        Gone::new()
    }

    /// New flows go to members of the new version; old members leave with their flows.
    fn switch_pool(&mut self, upgrade: Upgrade) {
        let mut leaving = 0;
        for nf in upgrade.old.iter().flatten() {
            self.feed(*nf, Event::Leaves);
            match self.nfs.get(nf).map(|nf| nf.life().leaves()) {
                Some(true) => leaving += 1,
                Some(false) => self.retire(*nf),
                None => {}
            }
        }
        self.publish_pool(upgrade.service);
        self.answer(upgrade, Gone::new(), leaving);
    }

    fn answer(&self, upgrade: Upgrade, gone: Gone, leaving: u32) -> Gone {
        let (moves_to, reply) = match upgrade.purpose {
            Purpose::Version(reply) => (None, Some(reply)),
            Purpose::Move(core, reply) => (Some(core), Some(reply)),
            Purpose::Canary(_, reply) | Purpose::Shadow(_, reply) => (None, reply),
            Purpose::Configuration(_, waiter) => {
                waiter.into_iter().for_each(|waiter| _ = waiter.send(()));
                return gone;
            }
        };
        let name = |(_, new): &(Option<u16>, u16)| self.nfs.get(new).map(|nf| nf.name.clone());
        let upgraded = api::Upgraded {
            service: upgrade.to.config.name.clone(),
            exec: upgrade.to.config.exec.as_ref().map_or(String::new(), |exec| exec.display().to_string()),
            args: upgrade.to.config.args.clone(),
            instances: upgrade.pairs.iter().filter_map(name).collect(),
            leaving,
        };
        let instances = upgraded.instances.join(", ");
        let (kind, text) = match moves_to {
            Some(core) => (EventKind::Move, format!("an instance has moved to core {core}: it is {instances} now")),
            None => (EventKind::Upgrade, format!("upgraded to {}: {instances}", upgraded.exec)),
        };
        self.controller.events().note(kind, Subject::Other("service", &upgraded.service), text);
        if let Some(reply) = reply {
            // The caller may be gone.
            let _ = reply.send(Ok((upgraded, gone)));
        }
        Gone::new()
    }
}
