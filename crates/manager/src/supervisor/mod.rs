//! The supervisor: one thread that owns all control state.
//!
//! It starts and stops NFs, opens and closes ports, and publishes every change as new tables to the
//! packet threads. It owns its state alone, so nothing here is locked. Other threads send it
//! closures ([`Remote`]). It sleeps in epoll on the NF socket, the processes of the NFs, signals
//! and those requests.
//!
//! A feature that is left out of the build ([`crate::features`]) is a module of the folder
//! `without`, which does nothing.

mod act;
mod admit;
mod apply;
mod backend;
mod buffers;
mod canary;
mod capture;
mod change;
mod container;
mod end;
mod flows;
#[cfg_attr(not(feature = "foreign"), path = "without/foreign.rs")]
mod foreign;
mod fusing;
mod grouping;
mod health;
mod history;
mod holes;
#[cfg_attr(not(feature = "inline"), path = "without/inline.rs")]
mod inline;
mod launch;
mod members;
mod memory;
mod nfs;
mod notice;
mod numbers;
#[cfg_attr(not(feature = "turns"), path = "without/outside.rs")]
mod outside;
mod parts;
mod past;
mod pens;
#[cfg_attr(not(feature = "pools"), path = "without/pools.rs")]
mod pools;
mod ports;
mod priorities;
#[cfg_attr(not(feature = "promises"), path = "without/promises.rs")]
mod promises;
mod report;
mod requests;
mod revise;
mod runtime_dir;
#[cfg_attr(not(feature = "sdn"), path = "without/sdn.rs")]
mod sdn;
mod settings;
mod shadow;
mod sockets;
#[cfg(feature = "promises")]
mod steering;
mod tick;
mod timeline;
mod tuning;
mod upgrade;
mod why;
mod zygote;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use sluice_policy::sched::priority::Weight;
use sluice_shm::clock::monotonic_ns;

use crate::control::totals;
use crate::controller::Controller;
use crate::dataplane::{DataPlane, PlaneError};
use crate::flows::{FlowLogError, FlowOutputs};
use crate::otel::PushCounts;
use sluice_api::config::{self as model, Config};
use sluice_config::fuse;
use sluice_dataplane::chain::{Chain, ChainCounters, MaySend, Places, PortInfo, Tables};
use sluice_dataplane::classify::compile::compile;
use sluice_dataplane::classify::hits::RuleHits;
use sluice_dataplane::classify::rule::RuleSet;
use sluice_dataplane::link::Link;
use sluice_dataplane::port::{Fault, Kinds};
use sluice_dataplane::queue::QueueCounters;
use sluice_host::container::Template;
use sluice_host::record::{Record, RecordError, Thing};
use sluice_host::user::User;

pub use backend::Remote;
use nfs::{Event, Nf, NfSet};
use parts::{Changes, Host, Observed, Published, Turns};

/// Time between ticks: stop reasons, timers and CPU times are checked.
const TICK: Duration = Duration::from_millis(20);
/// The same while no packet moves and nothing is under way.
const QUIET_TICK: Duration = Duration::from_millis(100);
/// Least time between two answers to the waker: each answer checks every NF.
const ANSWERS: Duration = Duration::from_millis(2);
/// Why the supervisor could not start or change something. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    #[error(transparent)]
    Plane(#[from] PlaneError),
    #[error(transparent)]
    Port(#[from] Fault),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Attach(#[from] sluice_host::attach::AttachError),
    #[error(transparent)]
    Class(#[from] sluice_host::class::ClassError),
    #[error(transparent)]
    FlowLog(#[from] FlowLogError),
    #[error("cannot {doing}: {source}")]
    System { doing: &'static str, source: rustix::io::Errno },
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    NoSuch(String),
    #[error("{0}")]
    Conflict(String),
    /// A stop was requested before its NFs were ready.
    #[error("it was stopped before its NFs were ready")]
    Interrupted,
}

/// A request of another thread.
pub type Job = Box<dyn FnOnce(&mut Supervisor) + Send>;

struct PortState {
    config: model::Port,
    description: String,
    counters: Vec<Arc<QueueCounters>>,
    /// Number of the arena that it receives into, if it cannot change.
    memory: Option<u8>,
    link: Arc<Link>,
    /// The packets too large to receive, and to send, that the log has reported.
    reported: (ports::Reported, ports::Reported),
    /// How far it is behind its configured rate.
    behind: ports::Behind,
}

impl PortState {
    fn new(config: model::Port) -> Self {
        let (link, reported, behind) = Default::default();
        Self { config, description: String::new(), counters: Vec::new(), memory: None, link, reported, behind }
    }
}

struct ServiceState {
    config: model::Service,
    exec: Option<PathBuf>,
    user: Option<User>,
    /// What its instances run in, if that is a container; `exec` is then none.
    container: Option<Arc<Template>>,
    instances: Vec<u16>,
    next_index: u32,
    /// What its instances are forked from, if they are.
    zygote: Option<zygote::Zygote>,
    /// Only of a service with a pool.
    pool: Option<pools::PoolState>,
}

impl ServiceState {
    fn new(config: model::Service, exec: Option<PathBuf>, user: Option<User>, container: Option<Arc<Template>>) -> Self {
        Self { config, exec, user, container, instances: Vec::new(), next_index: 0, zygote: None, pool: None }
    }

    fn core_of(&self, index: u32) -> usize {
        self.config.cores[index as usize % self.config.cores.len()]
    }
}

/// The count reported for a rule, by its name or place: that of `hits`, plus `base`.
#[derive(Debug, Default)]
struct RuleCount {
    hits: Option<RuleHits>,
    base: u64,
}

pub struct Supervisor {
    config: Config,
    plane: DataPlane,
    controller: Controller,
    tuning: tuning::Tuning,
    promises: promises::PromiseKeeper,
    outside: outside::Outside,
    ports: Vec<Option<PortState>>,
    services: Vec<Option<ServiceState>>,
    chains: Vec<Option<Arc<Chain>>>,
    nfs: NfSet,
    changes: Changes,
    published: Published,
    host: Host,
    turns: Turns,
    seen: Observed,
}

mod token {
    //! Tokens of epoll events: a kind, and for some a number.
    pub const WAKE: u64 = 0;
    pub const LISTENER: u64 = 1;
    /// Of any SLO.
    pub const SLO_LISTENER: u64 = 2;
    pub const PROCESS: u64 = 2 << 32;
    pub const CONNECTION: u64 = 3 << 32;
    /// With the number of the process.
    pub const WRAPPER: u64 = 4 << 32;
    /// With the number of the zygote's process.
    pub const ZYGOTE: u64 = 5 << 32;
    /// With the number of its service.
    pub const ZYGOTE_SAYS: u64 = 6 << 32;
    pub const KIND: u64 = 0xffff_ffff << 32;
}

impl Supervisor {
    /// Starts the packet threads, opens the ports and spawns the NFs of a valid configuration. If
    /// anything fails, everything that was started is stopped. The wait for NFs has no time limit;
    /// `stop` ends it.
    ///
    /// # Errors
    /// The first failure; [`SupervisorError::Interrupted`].
    pub fn start(
        config: Config,
        config_path: Option<PathBuf>,
        kinds: Arc<dyn Kinds>,
        record: Record,
        stop: &AtomicBool,
    ) -> Result<Self, SupervisorError> {
        // Before there is any shared memory.
        sluice_shm::hole::install();
        let promises = promises::PromiseKeeper::open(&config)?;
        let published = Published::new(&config);
        let plane = DataPlane::start(&config, &*kinds, &|rx| published.sdn.chooser(&config, rx))?;
        let controller = Controller::start(&config.sched)
            .map_err(|source| PlaneError::Thread { core: config.manager.first_monitor(), source })?;
        let turns = Turns::new()?;
        let host = Host::open(&config, kinds, record, &plane, promises.io_mask(), &turns.wake)?;
        let wanted = config.clone();
        let mut this = Self {
            config: Config { ports: vec![], services: vec![], chains: vec![], rules: vec![], ..config },
            plane,
            controller,
            tuning: tuning::Tuning::default(),
            promises,
            outside: outside::Outside::default(),
            ports: Vec::new(),
            services: Vec::new(),
            chains: Vec::new(),
            nfs: NfSet::default(),
            changes: Changes::new(&wanted),
            published,
            host,
            turns,
            seen: Observed::new(config_path, PushCounts::of(&wanted)),
        };
        let socket = this.host.sockets.main.path().to_path_buf();
        this.note(|r| r.made(Thing::Socket, &socket));
        let prepared = this.prepare_scheduling().and_then(|()| this.prepare_outside(&wanted));
        this.prepare_pens();
        match prepared.and_then(|()| this.build(wanted, stop)) {
            Ok(()) => Ok(this),
            Err(error) => {
                this.shut_down(|| ());
                Err(error)
            }
        }
    }

    /// Starts everything in the order in which packets need it, ports last.
    fn build(&mut self, wanted: Config, stop: &AtomicBool) -> Result<(), SupervisorError> {
        let outputs = FlowOutputs::open(&wanted.flow_log)?;
        self.seen.recorder = self.make_recorder(&wanted.recorder)?;
        let opened = wanted.ports.iter().map(|port| self.open(port, &wanted)).collect::<Result<Vec<_>, _>>()?;
        // Numbers first: chains name ports and services.
        for port in &wanted.ports {
            let number = self.changes.port_numbers.next(self.ports.len(), "ports")?;
            self.changes.port_numbers.take(number, &mut self.ports, PortState::new(port.clone()), Instant::now());
        }
        self.config.ports.clone_from(&wanted.ports);
        for service in &wanted.services {
            self.add_service(service.clone())?;
        }
        for chain in &wanted.chains {
            self.add_chain(chain.clone())?;
        }
        self.config.rules = wanted.rules;
        self.publish();
        self.await_hellos(stop)?;
        for (number, open) in opened.into_iter().enumerate() {
            self.put_port(number as u16, open)?;
        }
        // The SDN controller is connected last, when everything that is reported to it exists.
        let started = self.published.sdn.start(&self.config, &self.plane);
        started.map_err(|source| PlaneError::Thread { core: self.config.manager.first_monitor(), source })?;
        self.update_agent();
        self.start_flow_log(outputs)?;
        // Only now: a generator that starts before the sink loses packets.
        self.plane.start_rx();
        self.seen.watch.is_up = true;
        self.restore_placement();
        Ok(())
    }

    pub fn remote(&self) -> Remote {
        Remote::new(self.turns.remote.clone(), self.turns.wake.clone())
    }

    /// What is counted of pushed metrics, if there are any.
    pub fn pushes(&self) -> Option<Arc<PushCounts>> {
        self.seen.pushes.clone()
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Serves until [`Supervisor::quit`], then drains and stops everything. `stop_serving` stops
    /// the API's server before the runtime directory goes, in which it would make its socket anew.
    pub fn run(mut self, stop_serving: impl FnOnce()) {
        while !self.turns.quit {
            self.turn(QUIET_TICK);
        }
        self.shut_down(stop_serving);
    }

    pub fn quit(&mut self) {
        self.turns.quit = true;
    }

    /// Waits at most `timeout` for events, and handles them.
    fn turn(&mut self, timeout: Duration) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut timeout = timeout.min(self.until_due(Instant::now()));
        if self.turns.waker.is_called() {
            timeout = timeout.min(ANSWERS.saturating_sub(self.turns.answered.elapsed()));
        }
        if self.host.holds.is_waiting() {
            timeout = timeout.min(Duration::from_millis(1));
        }
        if let Some(deadline_ns) = self.host.sockets.next_deadline_ns() {
            timeout = timeout.min(Duration::from_nanos(deadline_ns.saturating_sub(monotonic_ns())));
        }
        let timeout = rustix::event::Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        // EINTR is an empty round.
        let _ = epoll::wait(&self.host.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
        self.turns.is_quiet &= events.is_empty();
        for event in &events {
            let data = event.data.u64();
            match data & token::KIND {
                token::PROCESS => self.process_ended((data & !token::KIND) as u16),
                token::WRAPPER => self.wrapper_ended((data & !token::KIND) as u32),
                token::ZYGOTE => self.zygote_ended((data & !token::KIND) as u32),
                token::ZYGOTE_SAYS => self.hear_zygote((data & !token::KIND) as u16),
                token::CONNECTION => self.hear((data & !token::KIND) as u16),
                _ if data == token::LISTENER => {}
                _ if data == token::SLO_LISTENER => self.host.sockets.are_called = true,
                _ => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&*self.turns.wake, &mut count);
                }
            }
        }
        if self.host.holds.is_waiting() {
            self.let_go();
        }
        self.greet();
        while let Ok(job) = self.turns.jobs.try_recv() {
            job(self);
        }
        self.go_on_upgrading();
        self.go_on_applying();
        self.go_on_placing();
        self.plane.collect();
        // Not after each event: with a thousand NFs this would delay those that attach.
        let now = Instant::now();
        if now.duration_since(self.turns.answered) >= ANSWERS && self.turns.waker.take() {
            self.turns.answered = now;
            self.stop_marked();
            self.size_pools();
        }
        if self.until_due(now).is_zero() {
            self.turns.ticked = now;
            self.tick(now);
        }
        // Last: a member that became ready in this round is published in it.
        self.publish_stirred_pools();
    }

    /// Stops reception, drains, stops every NF and thread, and restores the host.
    fn shut_down(mut self, stop_serving: impl FnOnce()) {
        self.turns.stopping = true;
        self.published.sdn.stop();
        let _ = self.plane.stop_rx();
        let until = Instant::now() + Duration::from_millis(self.config.manager.drain_ms);
        let inside = |this: &Self| {
            let held = |nf: &Nf| nf.handle.as_ref().is_some_and(|h| h.in_flight.load(Ordering::Relaxed) > 0);
            let waiting = || this.plane.snapshots().map_or(0, |s| s.iter().map(|s| s.waiting).sum::<u64>());
            this.nfs.values().any(held) || waiting() > 0
        };
        while inside(&self) && Instant::now() < until {
            self.turn(Duration::from_millis(1));
        }
        self.dismiss_zygotes();
        let all: Vec<u16> = self.nfs.values().map(|nf| nf.number).collect();
        all.into_iter().for_each(|number| self.feed(number, Event::Shutdown));
        self.let_leave();
        while self.nfs.values().any(|nf| nf.process.is_some()) || !self.host.leaving.is_empty() || self.host.in_work > 0 {
            self.turn(Duration::from_millis(5));
        }
        for number in 0..self.ports.len() {
            let _ = self.close(number as u16);
        }
        self.stop_flow_log();
        self.plane.stop();
        self.controller.stop();
        self.restore_pens();
        self.restore_scheduling();
        // The guard removes its file when it has nothing left to undo.
        self.outside.end_guard();
        let record = self.host.record.take();
        // Calls that still wait are answered by this.
        drop(self);
        stop_serving();
        match record.map(Record::finish) {
            None => {}
            Some(Ok(undone)) if undone.failed.is_empty() => {}
            Some(Ok(undone)) => error!("could not undo: {}", undone.failed.join(", ")),
            Some(Err(error)) => warn!("{error}"),
        }
    }

    /// Publishes tables of the present state to the packet threads.
    fn publish(&mut self) {
        // Shares of flows belong to instances of the placement, and an NF may have just become one.
        self.bind();
        let rules = self.rules();
        let parts = self.spread_parts();
        let services = self.spread(&parts);
        let ports = self
            .ports
            .iter()
            .enumerate()
            .map(|(number, port)| {
                port.as_ref().map(|p| PortInfo {
                    name: p.config.name.clone(),
                    overload: p.config.overload,
                    owners: self.plane.owners(number as u16, p.counters.len()),
                    memory: self.plane.memory_for_port(&self.config, &p.config),
                })
            })
            .collect();
        let generation = self.published.tables.generation + 1;
        let (chains, downstream_first) = (self.chains.clone(), self.config.sched.downstream_first);
        let steered = self.services.iter().map(|service| service.as_ref().is_some_and(|s| s.pool.is_some())).collect();
        let may_send = self.may_send();
        self.published.tables =
            Arc::new(Tables { generation, rules, chains, services, steered, ports, downstream_first, may_send });
        self.plane.use_tables(&self.published.tables);
        self.rank_again();
        self.update_agent();
    }

    /// Reports once for each chain that it lacks paths.
    fn report_lacking_paths(&mut self) {
        for chain in self.chains.iter().flatten() {
            let lacks = chain.counters.iter().any(|counters| counters.no_path.get() > 0);
            if lacks && self.published.lacked_paths.insert(chain.name.clone()) {
                warn!(
                    "chain {} finds no place for a path, and its packets are dropped: there are {} paths, and manager.max_paths is {}; \
                     raise it and restart, or have fewer combinations of ports, chains and instances",
                    chain.name,
                    self.plane.registry().len(),
                    self.config.manager.max_paths
                );
            }
        }
    }

    /// The ports and services that instances of each service may send packets to by a verdict.
    fn may_send(&mut self) -> Vec<MaySend> {
        let places = |service: u16, config: &model::Service| match &config.may_send_to {
            Some(names) => {
                let (ports, services) =
                    (names.iter().filter_map(|n| self.port_number(n)), names.iter().filter_map(|n| self.service_number(n)));
                Places::new(ports, services)
            }
            None => {
                let own = || self.chains.iter().flatten().filter(|chain| chain.services.contains(&service));
                Places::new(own().map(|chain| chain.egress), own().flat_map(|chain| chain.services.iter().copied()))
            }
        };
        let now = |(number, service): (usize, &Option<ServiceState>)| {
            let of = |config: &model::Service| {
                let parts = fuse::targets_if_isolated(config).iter().filter_map(|part| self.service_number(part));
                (places(number as u16, config), Places::new([], parts))
            };
            service.as_ref().map(|service| of(&service.config)).unwrap_or_default()
        };
        let now: Vec<(Places, Places)> = self.services.iter().enumerate().map(now).collect();
        self.published.allowed.resize_with(now.len(), Places::default);
        let may = |((now, parts), ever): ((Places, Places), &mut Places)| {
            ever.add(&now);
            ever.add(&parts);
            MaySend { now, ever: ever.clone() }
        };
        now.into_iter().zip(&mut self.published.allowed).map(may).collect()
    }

    /// The compiled rules. Everything that they name exists: a change that would leave a dangling
    /// name is refused before. A rule keeps its count: a named one while a rule of its name exists,
    /// an unnamed one while it stays the same.
    fn rules(&mut self) -> RuleSet {
        let ports = self.ports.iter().enumerate().filter_map(|(i, p)| Some((p.as_ref()?.config.name.clone(), i as u16))).collect();
        let chains = self.chains.iter().flatten().map(|c| (c.name.clone(), c.number)).collect();
        let mut known: HashMap<String, Vec<RuleHits>> = HashMap::new();
        for (key, hits) in std::mem::take(&mut self.published.hits).into_iter().rev() {
            known.entry(key).or_default().push(hits);
        }
        let threads = self.plane.threads();
        let (mut rules, mut hits) = (Vec::new(), Vec::new());
        for (number, rule) in self.config.rules.iter().enumerate() {
            let key = rule.name.clone().unwrap_or_else(|| serde_json::to_string(rule).unwrap_or_default());
            let own = known.get_mut(&key).and_then(Vec::pop).unwrap_or_else(|| RuleHits::new(threads));
            match compile(rule, number, &ports, &chains) {
                Ok(mut compiled) => {
                    let of_tenant = self.config.sched.priority_of(rule.tenant.as_deref());
                    let terms = &mut compiled.terms;
                    terms.weight = Weight::new(terms.weight.get() * of_tenant);
                    terms.tenant = rule.tenant.as_ref().map_or(0, |tenant| {
                        let next = self.published.tenants.len() as u32 + 1;
                        *self.published.tenants.entry(tenant.clone()).or_insert(next)
                    });
                    rules.push(compiled);
                    hits.push(own.clone());
                }
                Err(error) => warn!("a rule is left out: {error}"),
            }
            self.published.hits.push((key, own));
        }
        self.published.former_decisions += known.values().flatten().map(RuleHits::total).sum::<u64>();
        self.count_rules();
        RuleSet::new(rules).counting(hits)
    }

    /// Continues the reported count of each rule, by its name or place.
    fn count_rules(&mut self) {
        let now: HashMap<String, &RuleHits> = (self.config.rules.iter().enumerate().zip(&self.published.hits))
            .map(|((place, rule), (_, hits))| (report::series_of(rule, place), hits))
            .collect();
        for (name, count) in &mut self.published.rule_counts {
            if let Some(hits) = count.hits.take_if(|hits| now.get(name).is_none_or(|now| !now.is(hits))) {
                count.base = count.base.wrapping_add(hits.total());
            }
        }
        // Rules that are gone and forgotten begin at 0 when they come back.
        while self.published.rule_counts.len() > now.len() + totals::MOST
            && let Some(gone) =
                self.published.rule_counts.iter().find(|(_, count)| count.hits.is_none()).map(|(name, _)| name.clone())
        {
            self.published.rule_counts.remove(&gone);
        }
        for (name, hits) in now {
            let count = self.published.rule_counts.entry(name).or_default();
            if count.hits.is_none() {
                // What it decided at another place is reported there.
                count.base = count.base.wrapping_sub(hits.total());
                count.hits = Some(hits.clone());
            }
        }
    }

    /// Writes to the record; a failure, such as a full disk, is only logged.
    fn note(&mut self, what: impl FnOnce(&mut Record) -> Result<(), RecordError>) {
        if let Some(record) = &mut self.host.record
            && let Err(error) = what(record)
        {
            warn!("{error}");
        }
    }

    fn fresh_counters(&self) -> Arc<[ChainCounters]> {
        (0..self.plane.threads()).map(|_| ChainCounters::default()).collect()
    }
}
