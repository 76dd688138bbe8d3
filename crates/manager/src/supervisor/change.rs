//! Changes while packets flow.
//!
//! Each makes the new object first, then new tables, and then removes the old object, so that
//! packets of other chains are not affected.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use sluice_shm::clock::monotonic_ns;

use super::nfs::{Life, Nf, Origin, State};
use super::pools::PoolState;
use super::{ServiceState, Supervisor, SupervisorError};
use crate::features;
use sluice_api::config::{self as model, Config};
use sluice_api::nearest;
use sluice_config::container::find_runtime;
use sluice_config::diff::{self, Change, Turnover};
use sluice_config::problem::At;
use sluice_config::{ConfigErrors, Problem, fuse, host, on_host, validate};
use sluice_dataplane::chain::Chain;
use sluice_host::container::{ContainerBase, Template};
use sluice_host::user::User;

/// Receivers that a caller waits for: one for each NF that is to leave.
pub(super) type Gone = Vec<Receiver<()>>;

impl Supervisor {
    /// Checks that a configuration could be in force, without changing anything.
    pub(super) fn check(&self, wanted: &Config) -> Result<(), SupervisorError> {
        let mut problems = validate::validate(wanted);
        problems.extend(on_host::check(wanted, &host::Host::here()));
        problems.extend(features::problems(wanted));
        problems.retain(Problem::is_error);
        self.keeps_to_memory(wanted)?;
        if problems.is_empty() { Ok(()) } else { Err(SupervisorError::Invalid(ConfigErrors { problems }.to_string())) }
    }

    pub(super) fn port_number(&self, name: &str) -> Option<u16> {
        self.ports.iter().position(|p| p.as_ref().is_some_and(|p| p.config.name == name)).map(|i| i as u16)
    }

    pub(super) fn service_number(&self, name: &str) -> Option<u16> {
        self.services.iter().position(|s| s.as_ref().is_some_and(|s| s.config.name == name)).map(|i| i as u16)
    }

    pub(super) fn chain_number(&self, name: &str) -> Option<u16> {
        self.chains.iter().position(|c| c.as_ref().is_some_and(|c| c.name == name)).map(|i| i as u16)
    }

    pub(super) fn nf_number(&self, name: &str) -> Option<u16> {
        self.nfs.by_name(name)
    }

    /// The error for an unknown name of a kind (`service`, `NF`, `chain`, `port` or `rule`), with
    /// the name that was probably meant.
    pub(super) fn no_such(&self, what: &str, name: &str) -> SupervisorError {
        let rules: Vec<String> = self.config.rules.iter().enumerate().map(|(i, rule)| rule.label(i)).collect();
        let known: Vec<&str> = match what {
            "service" => self.config.services.iter().map(|known| known.name.as_str()).collect(),
            "chain" => self.config.chains.iter().map(|known| known.name.as_str()).collect(),
            "port" => self.config.ports.iter().map(|known| known.name.as_str()).collect(),
            "rule" => rules.iter().map(String::as_str).collect(),
            _ => self.nfs.values().map(|known| known.name.as_str()).collect(),
        };
        let hint = match nearest::nearest(name, &known) {
            Some(near) => format!("did you mean {near:?}?"),
            None if known.is_empty() => "there is none".into(),
            None => format!("see `sluice {} list`", what.to_lowercase()),
        };
        SupervisorError::NoSuch(format!("there is no {what} `{name}`; {hint}"))
    }

    /// Refuses a core that this process may not run NFs on.
    pub(super) fn has_core(core: usize) -> Result<(), SupervisorError> {
        match host::check_core(core, &host::Host::here()) {
            Some((message, help)) => Err(SupervisorError::Invalid(format!("{message}; {help}"))),
            None => Ok(()),
        }
    }

    /// What is probably unintended about an NF of a service on a core, and what to do.
    pub(super) fn warnings_on(&self, service: &str, core: usize) -> Vec<String> {
        let at = At::key("service", "cores");
        let warnings = validate::on_core(&self.config, service, core, at);
        warnings.into_iter().map(|problem| format!("{}; {}", problem.message, problem.help)).collect()
    }

    /// Refuses to remove an instance that its shard needs: the configuration would be wrong.
    pub(super) fn not_alone_in_shard(&self, number: u16) -> Result<(), SupervisorError> {
        let service = self.nfs.get(&number).and_then(|nf| self.services.get(usize::from(nf.service))?.as_ref());
        let Some(service) = service.filter(|service| self.is_sharded(&service.config)) else { return Ok(()) };
        let stays = |other: &u16| *other != number && self.nfs.get(other).is_some_and(|nf| nf.life().stays());
        if service.instances.iter().any(|other| stays(other) && self.plane.division().drains_alike(*other, number)) {
            return Ok(());
        }
        Err(SupervisorError::Conflict(format!(
            "it is the only instance of service `{}` in its shard, and each shard needs one; add another one there first, or remove \
             the service",
            service.config.name
        )))
    }

    /// Open chains that would close without an instance: it is the last one of a service that they
    /// pass, in its packet thread if instances have one. A starting instance counts, and so does
    /// a pool, which starts another member by itself.
    pub(super) fn chains_on(&self, number: u16) -> Vec<&model::Chain> {
        let runs = |nf: &Nf| nf.life().takes_packets();
        let Some(nf) = self.nfs.get(&number).filter(|nf| runs(nf)) else { return Vec::new() };
        let takes_packets = |service: u16, or_starts: bool| {
            let Some(Some(service)) = self.services.get(usize::from(service)) else { return false };
            let others = service.instances.iter().filter(|other| **other != number).filter_map(|other| self.nfs.get(other));
            let serves = |other: &Nf| match &service.config {
                config if config.is_inline() => other.core == nf.core,
                config if self.is_sharded(config) => self.plane.division().drains_alike(other.number, number),
                _ => true,
            };
            let is_one = |nf: &Nf| serves(nf) && nf.life().stays() && (runs(nf) || or_starts && nf.is(State::Starting));
            service.config.per.is_held() || { others }.any(is_one)
        };
        if takes_packets(nf.service, true) {
            return Vec::new();
        }
        let is_open = |chain: &Chain| chain.services.iter().all(|service| *service == nf.service || takes_packets(*service, false));
        let passes = |chain: &&Arc<Chain>| chain.services.contains(&nf.service) && is_open(chain);
        let names: Vec<&str> = self.chains.iter().flatten().filter(passes).map(|chain| chain.name.as_str()).collect();
        self.config.chains.iter().filter(|chain| names.contains(&chain.name.as_str())).collect()
    }

    /// Starts instances of the new kind, sends new flows to them, and lets the old ones leave.
    fn replace_service(&mut self, config: model::Service) -> Result<Gone, SupervisorError> {
        let number = self.service_number(&config.name).ok_or_else(|| self.no_such("service", &config.name))?;
        let Start { exec, user, container } = start_of(&config)?;
        let user = self.user_of(&config, user).map_err(|error| SupervisorError::Invalid(error.to_string()))?;
        self.has_room_for(config.first_instances())?;
        let old = self.services[number as usize].as_ref().map_or(Vec::new(), |s| s.instances.clone());
        if let Some(known) = self.config.services.iter_mut().find(|s| s.name == config.name) {
            known.clone_from(&config);
        }
        let instances = config.first_instances();
        let threads = self.plane.threads();
        let mut closed = None;
        let counted = (!config.is_pooled()).then(|| self.own_pool_report(number)).flatten();
        if let Some(Some(service)) = self.services.get_mut(number as usize) {
            let former = service.pool.take();
            if config.is_pooled() {
                service.pool = PoolState::after(former, &config, threads);
            } else {
                closed = former;
            }
            (service.config, service.exec, service.user, service.container) = (config, exec, user, container);
        }
        if let Some(former) = closed {
            counted.iter().for_each(|pool| self.seen.past.pool(pool));
            self.close_pool(number, former);
        }
        self.know_users();
        self.dismiss_zygote(number);
        self.start_zygote(number);
        self.publish();
        self.publish_pool(number);
        for _ in 0..instances {
            self.new_instance(number, None)?;
        }
        Ok(old.into_iter().map(|nf| self.watch_and_retire(nf)).collect())
    }

    pub(super) fn add_service(&mut self, config: model::Service) -> Result<(), SupervisorError> {
        let Start { exec, user, container } = start_of(&config)?;
        let user = self.user_of(&config, user).map_err(|error| SupervisorError::Invalid(error.to_string()))?;
        let instances = config.first_instances();
        self.has_room_for(instances)?;
        let number = self.changes.service_numbers.next(self.services.len(), "services")?;
        if self.meets_all_shards(&config) {
            self.plane.share_nfs()?;
        }
        self.config.services.push(config.clone());
        self.plane.learn_cores(&self.config);
        let pool = PoolState::of(&config, self.plane.threads());
        let state = ServiceState { pool, ..ServiceState::new(config, exec, user, container) };
        self.changes.service_numbers.take(number, &mut self.services, state, Instant::now());
        self.know_users();
        self.publish_pool(number);
        self.start_zygote(number);
        for _ in 0..instances {
            self.new_instance(number, None)?;
        }
        Ok(())
    }

    /// Checks that there may be this many more NFs, before anything changes, so that no service is
    /// left with a part of its instances.
    pub(super) fn has_room_for(&self, instances: u32) -> Result<(), SupervisorError> {
        let (max, have) = (self.config.manager.max_nfs, self.nfs.len());
        if have + instances as usize > max as usize {
            return Err(SupervisorError::Conflict(format!(
                "there are {have} NFs, {instances} more are wanted, and manager.max_nfs is {max}; remove some first, or raise it and \
                 restart (a service that is replaced has its old and new instances for a while)"
            )));
        }
        if !self.nfs.has_numbers_for(instances) {
            return Err(SupervisorError::Conflict(
                "the numbers of 65,533 NFs are in use, or were a moment ago; try again, and if that does not help, restart the daemon".into(),
            ));
        }
        Ok(())
    }

    /// Makes one more instance of a service and starts it.
    pub(super) fn new_instance(&mut self, service_number: u16, core: Option<usize>) -> Result<u16, SupervisorError> {
        let number = self.make_instance(service_number, core)?;
        self.count_in(number);
        self.launch(number);
        Ok(number)
    }

    /// Starts one more instance on a core beside the others: no packets before it is counted in.
    pub(super) fn start_beside(&mut self, service_number: u16, core: usize) -> Result<u16, SupervisorError> {
        let number = self.make_instance(service_number, Some(core))?;
        self.launch(number);
        Ok(number)
    }

    /// Makes an instance one of its service's.
    pub(super) fn count_in(&mut self, number: u16) {
        let service = self.nfs.get(&number).map(|nf| nf.service as usize);
        if let Some(Some(service)) = service.and_then(|service| self.services.get_mut(service)) {
            service.instances.push(number);
        }
    }

    /// Whether each instance of a service is of one shard.
    pub(super) fn is_sharded(&self, service: &model::Service) -> bool {
        self.config.manager.shards.len() > 1 && service.is_sharded()
    }

    /// Whether packets of several shards may come to an instance of a service.
    pub(super) fn meets_all_shards(&self, service: &model::Service) -> bool {
        !(service.is_inline() || self.is_sharded(service) && !service.is_foreign())
    }

    /// The shard of a new instance on a core. A core that the configuration does not name counts as
    /// the next in turn. None if it serves all.
    fn shard_of(&self, service: &model::Service, core: usize) -> Option<usize> {
        let of = self.config.manager.shards.len();
        let coming = self.changes.coming.iter().flat_map(|config| &config.services).find(|coming| coming.name == service.name);
        let cores = &coming.unwrap_or(service).cores;
        let place = || cores.iter().position(|one| *one == core).unwrap_or(cores.len());
        self.is_sharded(service).then(|| place() % of)
    }

    /// A number for a new NF of a shard, or of all.
    pub(super) fn new_number(&mut self, shard: Option<usize>) -> u16 {
        let is_of_shard = shard.map(|shard| self.plane.division().is_of_shard(shard));
        self.nfs.next_number(|number| is_of_shard.as_ref().is_none_or(|is_of| is_of(number)))
    }

    fn make_instance(&mut self, service_number: u16, core: Option<usize>) -> Result<u16, SupervisorError> {
        self.has_room_for(1)?;
        let none = || SupervisorError::NoSuch("there is no such service".into());
        let Some(Some(service)) = self.services.get_mut(service_number as usize) else { return Err(none()) };
        let members = service.instances.iter().filter_map(|number| self.nfs.get(number)).map(|nf| nf.index() as u16);
        let former = service.pool.as_mut().and_then(|pool| pool.life.spare(self.plane.rx().len(), members));
        service.next_index += u32::from(former.is_none());
        let index = former.map_or(service.next_index.wrapping_sub(1), |(_, index)| index);
        let Some(Some(service)) = self.services.get(service_number as usize) else { return Err(none()) };
        let core = core.unwrap_or_else(|| service.core_of(index));
        let shard = self.shard_of(&service.config, core);
        let number = former.map_or_else(|| self.new_number(shard), |(number, _)| number);
        let Some(Some(service)) = self.services.get(service_number as usize) else { return Err(none()) };
        let origin = match (service.config.is_foreign(), service.config.attach) {
            (true, _) => Origin::Foreign,
            (false, true) => Origin::Arrives,
            (false, false) => Origin::Started,
        };
        let life = Life::new(monotonic_ns(), origin);
        let mut nf = Nf::new(number, service_number, format!("{}.{index}", service.config.name), core, life);
        nf.counted.parts = service.config.is_group().then(Box::default);
        self.nfs.add(nf);
        Ok(number)
    }

    pub(super) fn starts(&self, changes: &[Change]) -> u32 {
        let started = |change: &Change| match change {
            Change::AddService { service } | Change::ReplaceService { service } => service.first_instances(),
            Change::ChangeInstances { service, instances, cores, .. } => {
                let (starts, _) = self.turnover(service, *instances, cores);
                starts.len() as u32
            }
            _ => 0,
        };
        changes.iter().map(started).sum()
    }

    /// The cores of the instances that a service lacks, for this many on these cores, and its
    /// surplus instances, with all that will not be restarted.
    pub(super) fn turnover(&self, service: &str, instances: u32, cores: &[usize]) -> (Vec<usize>, Vec<u16>) {
        let state = self.services.iter().flatten().find(|state| state.config.name == service);
        let all = state.into_iter().flat_map(|state| &state.instances).filter_map(|number| self.nfs.get(number));
        let (lost, mut living): (Vec<&Nf>, Vec<&Nf>) = all.filter(|nf| nf.life().stays()).partition(|nf| nf.life().is_lost());
        // On each core the first stay, and instances of the placement come first.
        living.sort_by_key(|nf| nf.position.instance.is_none());
        let there: Vec<usize> = living.iter().map(|nf| nf.core).collect();
        // As when the changes were computed: instances added or removed by themselves count.
        let known = self.config.services.iter().find(|known| known.name == service);
        let before = known.map_or(Vec::new(), |known| diff::cores_of(known.instances, &known.cores));
        let Turnover { starts, stops } = diff::turnover(&before, &diff::cores_of(instances, cores), &there);
        (starts, stops.into_iter().map(|place| living[place]).chain(lost).map(|nf| nf.number).collect())
    }

    /// Removes an instance: it gets no new flows, and is stopped when its packets have left.
    pub(super) fn remove_instance(&mut self, name: &str) -> Result<Gone, SupervisorError> {
        let number = self.nf_number(name).ok_or_else(|| self.no_such("NF", name))?;
        Ok(vec![self.watch_and_retire(number)])
    }

    pub(super) fn watch_and_retire(&mut self, number: u16) -> Receiver<()> {
        let (gone, told) = channel();
        if let Some(nf) = self.nfs.get_mut(&number) {
            nf.removal.waiters.push(gone);
        }
        self.retire(number);
        told
    }

    pub(super) fn remove_service(&mut self, name: &str) -> Result<Gone, SupervisorError> {
        let number = self.service_number(name).ok_or_else(|| self.no_such("service", name))?;
        self.dismiss_zygote(number);
        let instances = self.services[number as usize].as_ref().map_or(Vec::new(), |s| s.instances.clone());
        let gone = instances.into_iter().map(|nf| self.watch_and_retire(nf)).collect();
        self.own_pool_report(number).iter().for_each(|pool| self.seen.past.pool(pool));
        self.config.services.retain(|s| s.name != name);
        // Its number is kept until its instances are gone: they still name it.
        if let Some(Some(service)) = self.services.get_mut(number as usize) {
            service.config.name.clear();
        }
        Ok(gone)
    }

    pub(super) fn make_chain(&mut self, number: u16, config: &model::Chain) -> Result<Arc<Chain>, SupervisorError> {
        let services = config
            .services
            .iter()
            .map(|s| self.service_number(model::hop(s).0).ok_or_else(|| self.no_such("service", s)))
            .collect::<Result<Vec<_>, _>>()?;
        let reversed = config.services.iter().map(|s| model::hop(s).1).collect();
        let egress = self.port_number(&config.egress).ok_or_else(|| self.no_such("port", &config.egress))?;
        let kept = self.chains.get(number as usize).and_then(|c| Some(c.as_ref()?.counters.clone()));
        let counters = kept.unwrap_or_else(|| self.fresh_counters());
        self.published.versions += 1;
        let version = self.published.versions;
        Ok(Arc::new(Chain {
            number,
            version,
            name: config.name.clone(),
            services,
            reversed,
            egress,
            on_failure: config.on_failure,
            counters,
            police: self.promises.bucket(&config.name),
        }))
    }

    pub(super) fn add_chain(&mut self, config: model::Chain) -> Result<(), SupervisorError> {
        let number = self.changes.chain_numbers.next(self.chains.len(), "chains")?;
        let chain = self.make_chain(number, &config)?;
        self.changes.chain_numbers.take(number, &mut self.chains, chain, Instant::now());
        self.config.chains.push(config);
        self.publish();
        Ok(())
    }

    /// Adds a chain; a fused or inline one with its group. Services that run in groups alone from
    /// then on lose their instances.
    ///
    /// # Errors
    /// [`SupervisorError::Invalid`] with all that is wrong with it, and what else refuses a change
    /// of its services.
    pub(super) fn add_chain_and_group(&mut self, chain: model::Chain) -> Result<Gone, SupervisorError> {
        let mut wanted = self.with(|config| config.chains.push(chain))?;
        // A service that ran in groups alone has instances again.
        fuse::expand(&mut wanted);
        fuse::resolve(&mut wanted, &host::Host::here());
        self.check(&wanted)?;
        let changes = diff::diff(&self.config, &wanted);
        for service in changes.iter().filter_map(Change::service) {
            self.not_upgrading(service)?;
            self.not_kept(service)?;
        }
        self.plane.provide(&wanted)?;
        let mut gone = Gone::new();
        let done = changes.iter().try_for_each(|change| {
            gone.extend(self.step(change)?);
            Ok(())
        });
        // A group without its chain is of no use.
        if let (Err(_), Some(Change::AddService { service })) = (&done, changes.first())
            && self.service_number(&service.name).is_some()
        {
            self.remove_service(&service.name)?;
        }
        done.map(|()| gone)
    }

    /// After a chain is gone: stops instances of services that are in groups alone now.
    pub(super) fn settle_parts(&mut self) -> Result<Gone, SupervisorError> {
        let mut wanted = self.config.clone();
        fuse::expand(&mut wanted);
        let mut gone = Gone::new();
        for change in diff::diff(&self.config, &wanted) {
            gone.extend(self.step(&change)?);
        }
        Ok(gone)
    }

    /// Replaces a chain of the same name. Packets inside follow the old one to its end.
    pub(super) fn replace_chain(&mut self, config: model::Chain) -> Result<(), SupervisorError> {
        let number = self.chain_number(&config.name).ok_or_else(|| self.no_such("chain", &config.name))?;
        self.chains[number as usize] = Some(self.make_chain(number, &config)?);
        if let Some(old) = self.config.chains.iter_mut().find(|c| c.name == config.name) {
            *old = config;
        }
        self.publish();
        Ok(())
    }

    /// Removes a chain that no rule names. Packets inside follow it to its end.
    pub(super) fn remove_chain(&mut self, name: &str) -> Result<(), SupervisorError> {
        let number = self.chain_number(name).ok_or_else(|| self.no_such("chain", name))?;
        let latency = super::report::latency_of(number, &self.snapshots());
        if let Some(chain) = self.chains[number as usize].take() {
            self.seen.past.chain(&chain.name, &chain.counters, latency);
        }
        self.config.chains.retain(|c| c.name != name);
        self.published.lacked_paths.remove(name);
        self.publish();
        let round = self.plane.rounds();
        self.changes.chain_numbers.rest(number, Instant::now(), round);
        Ok(())
    }

    pub(super) fn set_rules(&mut self, rules: Vec<model::Rule>) {
        self.config.rules = rules;
        self.publish();
    }

    /// The changes from the configuration in force to another one.
    ///
    /// # Errors
    /// [`SupervisorError::Invalid`] with all that is wrong with it, and with what needs a restart;
    /// [`SupervisorError::Port`] if a port that is to be opened could not be.
    pub(super) fn plan(&self, wanted: &Config) -> Result<Vec<Change>, SupervisorError> {
        let kept = self.with_promises(wanted)?;
        let base = wanted;
        let wanted = kept.as_ref().map_or(wanted, |kept| &kept.config);
        self.check(wanted)?;
        self.takes_no_capture(wanted)?;
        self.keeps_profiles(base)?;
        let changes = diff::diff(&self.config, wanted);
        let restart: Vec<String> = changes
            .iter()
            .filter_map(|c| match c {
                Change::NeedsRestart { key } => Some(key.clone()),
                _ => None,
            })
            .collect();
        if !restart.is_empty() {
            return Err(SupervisorError::Conflict(format!(
                "{} cannot be changed on a running daemon; restart it",
                restart.join(", ")
            )));
        }
        for change in &changes {
            if let Some(service) = change.service() {
                self.not_upgrading(service)?;
            }
            if let Change::AddPort { port } | Change::ReplacePort { port } | Change::ChangeRate { port } = change {
                self.look_at(port)?;
            }
        }
        Ok(changes)
    }

    /// Warns if a change makes frames scarce.
    pub(super) fn warn_of_frames(&self, wanted: &Config) {
        let is_it = |problem: &Problem| problem.at.as_ref().is_some_and(|at| (at.section, at.key) == ("memory", "frames"));
        let warning = |config: &Config| validate::validate(config).into_iter().find(is_it);
        if let (Some(problem), None) = (warning(wanted), warning(&self.config)) {
            warn!("{problem}");
        }
    }

    pub(super) fn step(&mut self, change: &Change) -> Result<Gone, SupervisorError> {
        match change.clone() {
            Change::NeedsRestart { .. } => {}
            Change::ChangeManager { manager } => self.change_manager(&manager),
            Change::ChangeSched { sched } => self.change_sched(&sched)?,
            Change::ChangeFlowLog { flow_log } => self.change_flow_log(flow_log)?,
            Change::ChangeRecorder { recorder } => self.change_recorder(recorder)?,
            Change::AddPort { port } => self.add_port(port)?,
            Change::ChangeRate { port } => self.change_rate(port)?,
            Change::ReplacePort { port } => self.replace_port(port)?,
            Change::RemovePort { port } => self.remove_port(&port)?,
            Change::AddService { service } => self.add_service(service)?,
            Change::ReplaceService { service } => return self.replace_service(service),
            Change::ChangePriority { service } => self.change_priority(&service)?,
            Change::ChangePool { service } => self.change_pool(service)?,
            Change::RemoveService { service } => return self.remove_service(&service),
            Change::ChangeInstances { service, instances, cores, .. } => {
                let number = self.service_number(&service).ok_or_else(|| self.no_such("service", &service))?;
                let (starts, stops) = self.turnover(&service, instances, &cores);
                self.has_room_for(starts.len() as u32)?;
                for core in starts {
                    self.new_instance(number, Some(core))?;
                }
                self.set_instances(&service, instances, &cores);
                return Ok(stops.into_iter().map(|nf| self.watch_and_retire(nf)).collect());
            }
            Change::AddChain { chain } => self.add_chain(chain)?,
            Change::ReplaceChain { chain } => self.replace_chain(chain)?,
            Change::RemoveChain { chain } => self.remove_chain(&chain)?,
            Change::ReplaceRules { rules } => self.set_rules(rules),
        }
        Ok(Gone::new())
    }

    fn set_instances(&mut self, name: &str, instances: u32, cores: &[usize]) {
        let set = |service: &mut model::Service| (service.instances, service.cores) = (instances, cores.to_vec());
        self.config.services.iter_mut().filter(|known| known.name == name).for_each(set);
        let state = self.services.iter_mut().flatten().find(|service| service.config.name == name);
        state.into_iter().for_each(|service| set(&mut service.config));
    }

    /// The configuration in force with a change made to it, if that is valid.
    pub(super) fn with(&self, change: impl FnOnce(&mut Config)) -> Result<Config, SupervisorError> {
        let mut wanted = self.config.clone();
        change(&mut wanted);
        self.check(&wanted)?;
        self.warn_of_frames(&wanted);
        Ok(wanted)
    }

    /// The same, after making the packet memory that it needs.
    pub(super) fn with_memory(&mut self, change: impl FnOnce(&mut Config)) -> Result<Config, SupervisorError> {
        let wanted = self.with(change)?;
        self.plane.provide(&wanted)?;
        Ok(wanted)
    }

    /// Makes the packet memory that is needed after a removal: a port that loses its last rule has
    /// packets of unknown tenants. Without it the port receives nothing: no reason for a refusal.
    pub(super) fn provide_for_rest(&mut self, change: impl FnOnce(&mut Config)) {
        let mut rest = self.config.clone();
        change(&mut rest);
        if let Err(error) = self.plane.provide(&rest) {
            warn!("ports of which no rule says whose their packets are receive nothing from now on: {error}");
        }
    }
}

/// How the instances of a service are started: by a program of the host, or in a container; neither
/// if they attach by themselves.
pub(super) struct Start {
    pub exec: Option<PathBuf>,
    pub user: Option<User>,
    pub container: Option<Arc<Template>>,
}

pub(super) fn start_of(config: &model::Service) -> Result<Start, SupervisorError> {
    let invalid = |why: String| SupervisorError::Invalid(format!("service {}: {why}", config.name));
    let user = config.user.as_deref().map(User::look_up).transpose().map_err(|error| invalid(error.to_string()))?;
    let here = host::Host::here();
    let (mut exec, mut container) = (None, None);
    match (&config.container, &config.exec) {
        (Some(wanted), of_root) => {
            let source = match (&wanted.bundle, &wanted.root, of_root) {
                (Some(bundle), _, _) => ContainerBase::Bundle(bundle.clone()),
                (None, Some(root), Some(exec)) => ContainerBase::Root { root: root.clone(), exec: exec.clone() },
                _ => return Err(invalid("its container has no program".into())),
            };
            container = Some(Arc::new(Template {
                source,
                runtime: find_runtime(&wanted.runtime, &here).map_err(invalid)?,
                writable: wanted.writable,
                args: config.args.clone(),
                env: config.env.clone().into_iter().collect(),
                user: user.clone(),
                pids: config.pids,
            }));
        }
        (None, Some(program)) if !config.attach && !config.is_inline() => {
            exec = Some(host::resolve_exec(program, &here).map_err(invalid)?)
        }
        _ => {}
    }
    Ok(Start { exec, user, container })
}
