//! The supervisor: one thread that starts and loses NFs, opens and closes ports, and turns every change into new tables for the
//! packet threads.
//!
//! A feature that is left out of the build ([`crate::features`]) is a module of the folder `without` instead, which has nothing to do.
//!
//! It owns all control state, so nothing here is locked. Others ask it for something by sending it a closure ([`Remote`]). It sleeps
//! in epoll on the NF socket, on the processes of the NFs, on signals and on those requests.

mod act;
mod admit;
mod apply;
mod backend;
mod change;
mod container;
mod end;
#[cfg_attr(not(feature = "foreign"), path = "without/foreign.rs")]
mod foreign;
mod grouping;
mod health;
mod holes;
mod launch;
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
mod runtime_dir;
#[cfg_attr(not(feature = "sdn"), path = "without/sdn.rs")]
mod sdn;
#[cfg(feature = "promises")]
mod steering;
mod tick;
mod tuning;
mod upgrade;
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
use sluice_api::config::{self as model, Config};
use sluice_dataplane::chain::{Chain, ChainCounters, MaySend, Member, Places, PortInfo, Tables};
use sluice_dataplane::classify::compile::compile;
use sluice_dataplane::classify::hits::RuleHits;
use sluice_dataplane::classify::rule::RuleSet;
use sluice_dataplane::queue::QueueCounters;
use sluice_host::container::Template;
use sluice_host::record::{Record, RecordError, Thing};
use sluice_host::user::User;
use sluice_ports::{self as port};
use sluice_ports::{self, PortError};

pub use backend::Remote;
use nfs::{Event, Nf, NfSet};
use parts::{Changes, Host, Published, Seen, Turns};

/// How often sentences are carried out, timers looked at and processes measured.
const TICK: Duration = Duration::from_millis(20);
/// The same while nothing moves.
const QUIET_TICK: Duration = Duration::from_millis(100);
/// Least time between two answers to the bell: what is done then looks at every NF.
const ANSWERS: Duration = Duration::from_millis(2);
/// Why the supervisor could not start or change something. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The packet threads.
    #[error(transparent)]
    Plane(#[from] PlaneError),
    /// A port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The runtime directory or the record in it.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The NF socket.
    #[error(transparent)]
    Attach(#[from] sluice_host::attach::AttachError),
    /// A scheduling class or its slice.
    #[error(transparent)]
    Class(#[from] sluice_host::class::ClassError),
    /// A system call of the event loop.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// The kernel's answer.
        source: rustix::io::Errno,
    },
    /// What was asked for is not valid.
    #[error("{0}")]
    Invalid(String),
    /// What was named is not there.
    #[error("{0}")]
    NoSuch(String),
    /// What was asked for does not go with what is there.
    #[error("{0}")]
    Conflict(String),
    /// It was to stop before its NFs were ready.
    #[error("it was stopped before its NFs were ready")]
    Interrupted,
}

/// Something that another thread wants done.
pub type Job = Box<dyn FnOnce(&mut Supervisor) + Send>;

struct PortState {
    config: model::Port,
    description: String,
    counters: Vec<Arc<QueueCounters>>,
    /// Number of the arena that it receives into, if it cannot change that.
    memory: Option<u8>,
    /// Its state.
    link: Arc<port::link::Link>,
    /// What the log has reported of packets that were too large to come in, and to leave.
    reported: (ports::Reported, ports::Reported),
    /// How far it is behind its rate.
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
    /// What its instances run in, where that is a container; `exec` is none then.
    container: Option<Arc<Template>>,
    /// Numbers of its instances.
    instances: Vec<u16>,
    next_index: u32,
    /// What instances are forked from, where they are.
    zygote: Option<zygote::Zygote>,
    /// Of one that is not shared.
    pool: Option<pools::PoolState>,
    added: Instant,
}

impl ServiceState {
    /// One without instances.
    fn new(config: model::Service, exec: Option<PathBuf>, user: Option<User>, container: Option<Arc<Template>>) -> Self {
        let (instances, added) = (Vec::new(), Instant::now());
        Self { config, exec, user, container, instances, next_index: 0, zygote: None, pool: None, added }
    }

    /// The core of an instance.
    fn core_of(&self, index: u32) -> usize {
        self.config.cores[index as usize % self.config.cores.len()]
    }
}

/// What a rule of a name, or in a place, is told to have decided: `base`, and what it has counted
/// since it is there.
#[derive(Debug, Default)]
struct RuleCount {
    hits: Option<RuleHits>,
    base: u64,
}

/// The one who knows everything.
pub struct Supervisor {
    config: Config,
    plane: DataPlane,
    controller: Controller,
    tuning: tuning::Tuning,
    promises: promises::Promises,
    outside: outside::Outside,
    ports: Vec<Option<PortState>>,
    services: Vec<Option<ServiceState>>,
    chains: Vec<Option<Arc<Chain>>>,
    nfs: NfSet,
    changes: Changes,
    published: Published,
    host: Host,
    turns: Turns,
    seen: Seen,
}

mod token {
    //! What an epoll event is about.
    pub const WAKE: u64 = 0;
    pub const LISTENER: u64 = 1;
    pub const PROCESS: u64 = 2 << 32;
    pub const CONNECTION: u64 = 3 << 32;
    /// With the process's number.
    pub const WRAPPER: u64 = 4 << 32;
    /// With the number of the zygote's process.
    pub const ZYGOTE: u64 = 5 << 32;
    /// With the number of its service.
    pub const ZYGOTE_SAYS: u64 = 6 << 32;
    pub const KIND: u64 = 0xffff_ffff << 32;
}

impl Supervisor {
    /// Starts the packet threads, opens the ports and spawns the NFs that a valid configuration names. If anything fails, everything
    /// that was started is stopped again. While it waits for NFs, which may take as long as they like, `stop` ends it.
    ///
    /// # Errors
    /// The first thing that failed; [`SupervisorError::Interrupted`].
    pub fn start(config: Config, config_path: Option<PathBuf>, record: Record, stop: &AtomicBool) -> Result<Self, SupervisorError> {
        // Before there is any shared memory.
        sluice_shm::hole::install();
        let promises = promises::Promises::open(&config)?;
        let published = Published::new(&config);
        let plane = DataPlane::start(&config, &|rx| published.sdn.chooser(&config, rx))?;
        let controller =
            Controller::start(&config.sched).map_err(|source| PlaneError::Thread { core: config.manager.monitor[0], source })?;
        let turns = Turns::new()?;
        let host = Host::open(&config, record, &plane, promises.io_mask(), &turns.wake)?;
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
            changes: Changes::new(),
            published,
            host,
            turns,
            seen: Seen::new(config_path),
        };
        let socket = this.host.listener.path().to_path_buf();
        this.note(|r| r.made(Thing::Socket, &socket));
        let prepared = this.prepare_scheduling().and_then(|()| this.prepare_outside(&wanted));
        this.prepare_pens();
        match prepared.and_then(|()| this.build(wanted, stop)) {
            Ok(()) => Ok(this),
            Err(error) => {
                this.shut_down();
                Err(error)
            }
        }
    }

    /// Brings everything up in the order in which packets need it, ports last, so that the first packet finds its chain complete.
    fn build(&mut self, wanted: Config, stop: &AtomicBool) -> Result<(), SupervisorError> {
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
        // The controller is met when there is all that it is told of.
        let started = self.published.sdn.start(&self.config, &self.plane);
        started.map_err(|source| PlaneError::Thread { core: self.config.manager.monitor[0], source })?;
        self.tell_agent();
        // Only now: a generator that begins before the sink is there would lose packets.
        self.plane.start_rx();
        self.seen.watch.is_up = true;
        self.restore_placement();
        Ok(())
    }

    /// A handle by which other threads reach this one.
    pub fn remote(&self) -> Remote {
        Remote::new(self.turns.remote.clone(), self.turns.wake.clone())
    }

    /// The configuration that is in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Serves until told to stop, then drains and stops everything.
    pub fn run(mut self) {
        while !self.turns.quit {
            self.turn(QUIET_TICK);
        }
        self.shut_down();
    }

    /// Ends [`Supervisor::run`].
    pub fn quit(&mut self) {
        self.turns.quit = true;
    }

    /// Waits for events for so long, and handles them.
    fn turn(&mut self, timeout: Duration) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut timeout = timeout.min(self.until_due(Instant::now()));
        if self.turns.bell.is_rung() {
            timeout = timeout.min(ANSWERS.saturating_sub(self.turns.answered.elapsed()));
        }
        if self.host.holds.is_waiting() {
            timeout = timeout.min(Duration::from_millis(1));
        }
        if let Some(deadline_ns) = self.host.listener.next_deadline_ns() {
            timeout = timeout.min(Duration::from_nanos(deadline_ns.saturating_sub(monotonic_ns())));
        }
        let timeout = rustix::event::Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        // EINTR is an empty turn.
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
        // Not after each event: it looks at every NF, and with a thousand of them that would hold up whoever waits to be let in.
        let now = Instant::now();
        if now.duration_since(self.turns.answered) >= ANSWERS && self.turns.bell.take() {
            self.turns.answered = now;
            self.end_condemned();
            self.size_pools();
        }
        if self.until_due(now).is_zero() {
            self.turns.ticked = now;
            self.tick(now);
        }
        // Last: a member that has become ready in this turn waits for nothing more.
        self.publish_stirred_pools();
    }

    /// Stops reading ports, lets the packets inside leave, stops every NF and thread, and removes what was made on the host.
    pub(super) fn shut_down(&mut self) {
        self.turns.stopping = true;
        self.published.sdn.stop();
        let _ = self.plane.stop_rx();
        let until = Instant::now() + Duration::from_millis(self.config.manager.drain_ms);
        let inside = |this: &Self| {
            let held = |nf: &Nf| nf.handle.as_ref().is_some_and(|h| h.in_flight.load(Ordering::Relaxed) > 0);
            let waiting = || this.plane.snapshots().map_or(0, |s| s.iter().map(|s| s.waiting).sum::<u64>());
            this.nfs.values().any(held) || waiting() > 0
        };
        while inside(self) && Instant::now() < until {
            self.turn(Duration::from_millis(1));
        }
        self.dismiss_zygotes();
        let all: Vec<u16> = self.nfs.values().map(|nf| nf.number).collect();
        all.into_iter().for_each(|number| self.feed(number, Event::Shutdown));
        self.let_leave();
        while self.nfs.values().any(|nf| nf.process.is_some()) || !self.host.leaving.is_empty() || self.host.rooms_in_work > 0 {
            self.turn(Duration::from_millis(5));
        }
        for number in 0..self.ports.len() {
            let _ = self.close(number as u16);
        }
        self.plane.stop();
        self.controller.stop();
        self.restore_pens();
        self.restore_scheduling();
        // It removes its file when it has nothing more to undo.
        self.outside.end_guard();
        if let Some(record) = self.host.record.take() {
            match record.finish() {
                Ok(undone) if undone.failed.is_empty() => {}
                Ok(undone) => error!("could not undo: {}", undone.failed.join(", ")),
                Err(error) => warn!("{error}"),
            }
        }
    }

    /// Makes tables of what there is now and gives them to the packet threads.
    fn publish(&mut self) {
        // Parts of flows are of instances of the placement, and an NF may have become one of them just now.
        self.bind();
        let rules = self.rules();
        let parts = self.spread_parts();
        let services = self
            .services
            .iter()
            .map(|service| {
                // Members of pools are nobody's to choose from but the directors'.
                let shared = service.as_ref().filter(|s| s.pool.is_none());
                let instances = shared.map_or(&[][..], |s| &s.instances);
                let runs = |nf: &&Nf| nf.life().takes_packets();
                let living = instances.iter().filter_map(|n| self.nfs.get(n)).filter(runs);
                let parts_of = |nf: &Nf| parts.get(&nf.number).copied().unwrap_or(1);
                // Where all that live are to end their flows, new ones are with them all the same.
                let none_open = living.clone().all(|nf| parts_of(nf) == 0);
                let member = |nf: &Nf, parts: u32| Member {
                    nf: nf.number,
                    id: nf.position.spread_id,
                    former: nf.position.former,
                    is_open: none_open || parts > 0,
                };
                living.flat_map(|nf| several(member(nf, parts_of(nf)), parts_of(nf).max(1))).collect()
            })
            .collect();
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
        self.tell_agent();
    }

    /// Says once of each chain that it lacks paths.
    fn tell_of_lacking_paths(&mut self) {
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

    /// Where the instances of each service may send packets by a verdict.
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
            service.as_ref().map_or_else(Places::default, |service| places(number as u16, &service.config))
        };
        let now: Vec<Places> = self.services.iter().enumerate().map(now).collect();
        self.published.allowed.resize_with(now.len(), Places::default);
        let may = |(now, ever): (Places, &mut Places)| {
            ever.add(&now);
            MaySend { now, ever: ever.clone() }
        };
        now.into_iter().zip(&mut self.published.allowed).map(may).collect()
    }

    /// The rules, compiled. All that is named in them is there: a change that would leave one dangling is refused before. A rule goes
    /// on counting where it was: one with a name as long as there is one of this name, one without as long as it stays the same.
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

    /// Has what is told of each rule go on where it was, by its name or place.
    fn count_rules(&mut self) {
        let now: HashMap<String, &RuleHits> = (self.config.rules.iter().enumerate().zip(&self.published.hits))
            .map(|((place, rule), (_, hits))| (report::series_of(rule, place), hits))
            .collect();
        for (name, count) in &mut self.published.rule_counts {
            if let Some(hits) = count.hits.take_if(|hits| now.get(name).is_none_or(|now| !now.is(hits))) {
                count.base = count.base.wrapping_add(hits.total());
            }
        }
        // Those that are gone and forgotten begin at 0 if they come again.
        while self.published.rule_counts.len() > now.len() + totals::MOST
            && let Some(gone) =
                self.published.rule_counts.iter().find(|(_, count)| count.hits.is_none()).map(|(name, _)| name.clone())
        {
            self.published.rule_counts.remove(&gone);
        }
        for (name, hits) in now {
            let count = self.published.rule_counts.entry(name).or_default();
            if count.hits.is_none() {
                // What it has decided in another place is told there.
                count.base = count.base.wrapping_sub(hits.total());
                count.hits = Some(hits.clone());
            }
        }
    }

    /// Notes in the record; a full disk is no reason to stop packets.
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

/// A member so many times, each known by another id, so that it gets so many times the flows.
fn several(member: Member, times: u32) -> impl Iterator<Item = Member> {
    (0..u64::from(times)).map(move |n| Member { id: member.id.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)), ..member })
}
