//! Configurations that change services: their new versions are tried first.
//!
//! 1. Trial: all services stay; the new instances start beside them, without packets. When all are
//!    ready, the steps follow. When one fails, the configuration is given up, and nothing has
//!    changed.
//! 2. Steps: one change after another ([`Supervisor::apply`]). The new instances of a replaced
//!    service succeed the old ones.
//!
//! The instances change places as in an upgrade ([`super::upgrade`]): no packet is lost, none
//! overtakes another. Where old and new instances cannot stand in for each other ([`hands_over`]),
//! the old ones leave as soon as there are new ones.
//!
//! NFs may come and go during the trial. So the changes are computed again after it, and a new
//! version that is no longer wanted is removed.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::change::{Gone, Start, start_of};
use super::history::ConfigSource;
use super::nfs::{Advance, Nf, step_of_all};
use super::upgrade::{Purpose, Replacement, Upgrade};
use super::{ServiceState, Supervisor, SupervisorError};
use crate::controller::events::Subject;
use crate::flows::FlowOutputs;
use sluice_api::change::Change as Described;
use sluice_api::config::{self as model, Config};
use sluice_api::model::EventKind;
use sluice_config::ConfigErrors;
use sluice_config::diff::{Change, cores_of};

/// The result of a configuration: its changes, and the old instances that are to leave.
pub(super) type ApplyResult = Result<(Vec<Described>, Gone), SupervisorError>;

/// A configuration whose new versions of services are on trial.
pub(super) struct Applying {
    number: u64,
    wanted: Config,
    source: ConfigSource,
    reply: Sender<ApplyResult>,
}

/// Whether new instances of a service can succeed its old ones: the manager starts both, and they
/// can share flows and memory.
fn hands_over(before: &model::Service, after: &model::Service) -> bool {
    let is_started = |service: &model::Service| !service.attach && !service.is_foreign();
    let keys = |service: &model::Service| (service.container.is_some(), service.tenant.clone(), service.per, service.pool.clone());
    is_started(before) && is_started(after) && keys(before) == keys(after)
}

/// The slots of new instances on these cores, and the old instances without one. An old instance,
/// given with its core, gets the slot on its core if there is one.
fn slots(old: &[(u16, usize)], cores: &[usize]) -> (Vec<Replacement>, Vec<u16>) {
    let mut left = old.to_vec();
    let mut take = |is_it: &dyn Fn(usize) -> bool| {
        let place = left.iter().position(|(_, core)| is_it(*core))?;
        Some(left.remove(place).0)
    };
    let mut slots: Vec<Replacement> =
        cores.iter().map(|core| Replacement { old: take(&|at| at == *core), core: Some(*core) }).collect();
    slots.iter_mut().filter(|slot| slot.old.is_none()).for_each(|slot| slot.old = take(&|_| true));
    (slots, left.into_iter().map(|(nf, _)| nf).collect())
}

impl Supervisor {
    /// Begins to put another configuration in force; its outcome goes to the receiver.
    ///
    /// # Errors
    /// As [`Supervisor::plan`], and if there are too few slots for the new instances. Nothing has
    /// changed then.
    pub(super) fn begin_apply(&mut self, wanted: Config, source: ConfigSource) -> Result<Receiver<ApplyResult>, SupervisorError> {
        let (reply, told) = channel();
        let mut trials = Vec::new();
        let number = self.changes.next_apply;
        for change in self.plan(&wanted)? {
            let Change::ReplaceService { service } = change else { continue };
            trials.extend(self.trial_of(service, number)?);
        }
        if trials.is_empty() {
            // The caller waits for it.
            let _ = reply.send(self.apply(&wanted, &source, &mut Vec::new()));
            return Ok(told);
        }
        self.has_room_for(trials.iter().map(|(_, slots)| slots.len() as u32).sum())?;
        self.changes.next_apply += 1;
        self.changes.applying.push(Applying { number, wanted, source, reply });
        trials.into_iter().for_each(|(upgrade, slots)| self.try_out(upgrade, slots));
        Ok(told)
    }

    /// The upgrade of a service to another version, if its instances can hand over.
    fn trial_of(&mut self, service: model::Service, number: u64) -> Result<Option<(Upgrade, Vec<Replacement>)>, SupervisorError> {
        let Some(at) = self.service_number(&service.name) else { return Ok(None) };
        let Some(Some(state)) = self.services.get(usize::from(at)) else { return Ok(None) };
        if !hands_over(&state.config, &service) {
            return Ok(None);
        }
        let there = state.instances.iter().filter_map(|nf| self.nfs.get(nf)).filter(|nf| nf.life().stays());
        let cores = cores_of(service.first_instances(), &service.cores);
        let (slots, surplus) = if service.has_members_for_flows() {
            (vec![Replacement { old: None, core: service.cores.first().copied() }], Vec::new())
        } else if self.is_sharded(&service) {
            // An instance is followed in its shard, on whatever core: its flows stay there.
            let of = self.config.manager.shards.len();
            let old: Vec<(u16, usize)> = there.map(|nf: &Nf| (nf.number, usize::from(nf.number) % of)).collect();
            let shards: Vec<usize> = (0..cores.len()).map(|nth| nth % service.cores.len() % of).collect();
            let (slots, surplus) = slots(&old, &shards);
            (slots.into_iter().zip(&cores).map(|(slot, core)| Replacement { core: Some(*core), ..slot }).collect(), surplus)
        } else {
            let old: Vec<(u16, usize)> = there.map(|nf: &Nf| (nf.number, nf.core)).collect();
            slots(&old, &cores)
        };
        let Start { exec, user, container } = start_of(&service)?;
        let user = self.user_of(&service, user).map_err(|error| SupervisorError::Invalid(error.to_string()))?;
        let to = ServiceState::new(service, exec, user, container);
        let upgrade = Upgrade { surplus, ..Upgrade::new(at, to, Purpose::Configuration(number, None)) };
        Ok(Some((upgrade, slots)))
    }

    /// Takes the steps of configurations whose new versions work, and gives up the others.
    pub(super) fn go_on_applying(&mut self) {
        if self.turns.stopping {
            return;
        }
        let mut at = 0;
        while at < self.changes.applying.len() {
            let number = self.changes.applying[at].number;
            let is_its = |upgrade: &Upgrade| {
                upgrade.trial.is_open() && matches!(upgrade.purpose, Purpose::Configuration(of, _) if of == number)
            };
            let its = self.changes.upgrades.iter().filter(|upgrade| is_its(upgrade));
            let step = step_of_all(its.map(|upgrade| self.step_of(upgrade)));
            if step == Advance::Wait {
                at += 1;
                continue;
            }
            let fails = step == Advance::GiveUp;
            let Applying { wanted, source, reply, .. } = self.changes.applying.remove(at);
            let mut trials: Vec<Upgrade> = self.changes.upgrades.extract_if(.., |upgrade| is_its(upgrade)).collect();
            let outcome = match fails {
                false => self.apply(&wanted, &source, &mut trials),
                true => Ok(Default::default()),
            };
            // For a configuration that is given up, the first upgrade that fails is the reason.
            trials.sort_by_key(|upgrade| self.step_of(upgrade) != Advance::GiveUp);
            let why: Vec<String> = trials.into_iter().map(|upgrade| self.give_up(upgrade)).collect();
            let refused = || Err(SupervisorError::Conflict(format!("nothing has changed: {}", why[0])));
            // The receiver may be gone.
            let _ = reply.send(if fails { refused() } else { outcome });
        }
    }

    /// Puts another configuration in force, step by step. The former one is kept for an undo.
    /// `proved` are new versions of services that work; those that are used are taken from it.
    ///
    /// # Errors
    /// As [`Supervisor::plan`], before anything has changed; or the step that failed. The steps
    /// before it stand, and its own beginnings are undone: the same configuration, corrected, can
    /// be applied again.
    fn apply(&mut self, wanted: &Config, source: &ConfigSource, proved: &mut Vec<Upgrade>) -> ApplyResult {
        let changes = self.plan(wanted)?;
        let told: Vec<Described> = changes.iter().map(|change| sluice_config::changes::describe(change, &self.config)).collect();
        let kept = self.with_promises(wanted)?;
        // Most failures happen here, before anything has changed.
        self.plane.provide(kept.as_ref().map_or(wanted, |kept| &kept.config))?;
        self.open_ahead(&changes, wanted)?;
        self.plane.learn_cores(wanted);
        if wanted.services.iter().any(|service| self.meets_all_shards(service)) {
            self.plane.share_nfs().inspect_err(|_| self.changes.forget_opened())?;
        }
        self.warn_of_frames(wanted);
        let former = (!changes.is_empty()).then(|| sluice_config::edit::text(&self.promises.base(&self.config)));
        let mut gone = Gone::new();
        let coming = kept.as_ref().map_or(wanted, |kept| &kept.config).clone();
        self.changes.coming = Some(Box::new(coming));
        let mut steps = 0;
        let done: Result<(), SupervisorError> = changes.iter().try_for_each(|change| {
            gone.extend(self.take(change, proved)?);
            steps += 1;
            Ok(())
        });
        self.changes.coming = None;
        self.changes.forget_opened();
        self.note_applied(source, &told[..steps], done.as_ref().err());
        self.remember(former.filter(|_| steps > 0), source, done.is_ok());
        done?;
        kept.into_iter().for_each(|kept| self.promises_follow(kept));
        Ok((told, gone))
    }

    /// Keeps the configuration that another one has replaced, at least in part; after a whole undo,
    /// forgets the one that is in force again.
    fn remember(&mut self, former: Option<Result<String, ConfigErrors>>, source: &ConfigSource, is_done: bool) {
        match (source, former) {
            (ConfigSource::Undo(number), _) if is_done => self.changes.history.forget_from(*number),
            (_, None) => {}
            (_, Some(Ok(text))) => self.changes.history.keep(text, &source.to_string()),
            (_, Some(Err(error))) => warn!("the former configuration is not kept for `sluice undo`: {error}"),
        }
    }

    /// Notes each key that was set.
    fn note_set(&self, done: &[Described]) {
        for Described { kind, name, detail, .. } in done {
            self.controller.events().note(EventKind::Apply, Subject::Other(kind, name), format!("set {detail}"));
        }
    }

    /// Logs what an apply has changed, and why it went no further if it did not.
    fn note_applied(&self, source: &ConfigSource, done: &[Described], error: Option<&SupervisorError>) {
        /// Most changes that are listed one by one.
        const TOLD: usize = 8;
        if done.is_empty() && error.is_none() {
            return;
        }
        if let (ConfigSource::Set(_), None) = (source, error) {
            return self.note_set(done);
        }
        let mut words: Vec<String> = done.iter().take(TOLD).map(Described::to_string).collect();
        words.extend((done.len() > TOLD).then(|| format!("and {} more", done.len() - TOLD)));
        let changes = if done.len() == 1 { "1 change".into() } else { format!("{} changes", done.len()) };
        let failed = error.map_or(String::new(), |error| format!("; the next one failed: {error}"));
        let text = format!("applied {source}: {changes} ({}){failed}", words.join("; "));
        self.controller.events().note(EventKind::Apply, Subject::Other("configuration", ""), text);
    }

    /// Opens the ports and outputs that changes add or replace. If one fails, the others are closed
    /// again.
    fn open_ahead(&mut self, changes: &[Change], wanted: &Config) -> Result<(), SupervisorError> {
        let opened = changes.iter().try_for_each(|change| self.open_for(change, wanted));
        opened.inspect_err(|_| self.changes.forget_opened())
    }

    fn open_for(&mut self, change: &Change, wanted: &Config) -> Result<(), SupervisorError> {
        match change {
            Change::AddPort { port } => drop(self.changes.opened.insert(port.name.clone(), self.open(port, wanted)?)),
            Change::ReplacePort { port } if !self.shares_with_former(port) => {
                drop(self.changes.opened.insert(port.name.clone(), self.open(port, wanted)?));
            }
            Change::ChangeFlowLog { flow_log } => self.changes.outputs = Some(FlowOutputs::open(flow_log)?),
            Change::ChangeRecorder { recorder } => self.changes.recorder = self.make_recorder(recorder)?,
            _ => {}
        }
        Ok(())
    }

    /// Whether a port can open only after the former one of its name is closed.
    fn shares_with_former(&self, port: &model::Port) -> bool {
        self.config.ports.iter().any(|known| known.name == port.name && self.host.opener.kinds.share(known, port))
    }

    fn take(&mut self, change: &Change, proved: &mut Vec<Upgrade>) -> Result<Gone, SupervisorError> {
        let is_its = |upgrade: &Upgrade| matches!(change, Change::ReplaceService { service } if *service == upgrade.to.config);
        let Some(place) = proved.iter().position(is_its) else { return self.step(change) };
        let mut upgrade = proved.remove(place);
        let (over, told) = channel();
        if let Purpose::Configuration(_, waiter) = &mut upgrade.purpose {
            *waiter = Some(over);
        }
        let mut gone = self.go_over(upgrade);
        gone.push(told);
        Ok(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Assigned = Vec<(Option<u16>, Option<usize>)>;

    fn assigned(old: &[(u16, usize)], cores: &[usize]) -> (Assigned, Vec<u16>) {
        let (slots, surplus) = slots(old, cores);
        (slots.into_iter().map(|slot| (slot.old, slot.core)).collect(), surplus)
    }

    #[test]
    fn an_instance_is_followed_at_its_core() {
        assert_eq!(assigned(&[(5, 0), (6, 1)], &[1, 0]), (vec![(Some(6), Some(1)), (Some(5), Some(0))], vec![]));
        assert_eq!(assigned(&[(5, 0), (6, 1)], &[1, 2]), (vec![(Some(6), Some(1)), (Some(5), Some(2))], vec![]));
    }

    #[test]
    fn more_instances_follow_nobody_and_of_fewer_the_rest_goes() {
        assert_eq!(assigned(&[(5, 0)], &[0, 1]), (vec![(Some(5), Some(0)), (None, Some(1))], vec![]));
        assert_eq!(assigned(&[(5, 0), (6, 1)], &[1]), (vec![(Some(6), Some(1))], vec![5]));
        assert_eq!(assigned(&[], &[1]), (vec![(None, Some(1))], vec![]));
    }

    #[test]
    fn only_services_that_the_manager_starts_for_the_same_flows_hand_over() {
        let service = |keys: &str| toml::from_str::<model::Service>(&format!("name = \"s\"\nexec = \"s\"\n{keys}")).unwrap();
        let plain = service("");
        for keys in
            ["args = [\"x\"]", "ring = 64", "mode = \"poll\"", "user = \"nobody\"", "instances = 3", "zygote = true", "pids = 9"]
        {
            assert!(hands_over(&plain, &service(keys)), "{keys}");
        }
        for keys in ["attach = true", "tenant = \"t\"", "per = \"flow\"", "container = { root = \"/r\" }"] {
            assert!(!hands_over(&plain, &service(keys)) && !hands_over(&service(keys), &plain), "{keys}");
        }
    }
}
