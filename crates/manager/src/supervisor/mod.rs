//! The supervisor: one thread that starts and loses NFs, opens and closes ports, and turns every change into new tables for the
//! packet threads.
//!
//! It owns all control state, so nothing here is locked. Others ask it for something by sending it a closure ([`Remote`]). It sleeps
//! in epoll on the NF socket, on the processes of the NFs, on signals and on those requests.

mod apply;
mod backend;
mod change;
mod container;
mod foreign;
mod grouping;
mod health;
mod holes;
mod life;
mod memory;
mod numbers;
mod outside;
mod past;
mod pens;
mod pools;
mod ports;
mod priorities;
mod promises;
mod report;
mod runtime_dir;
mod steering;
mod tuning;
mod upgrade;
mod zygote;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};
use sluice_policy::restart;
use sluice_policy::sched::priority::Weight;
use sluice_shm::clock::monotonic_ns;
use sluice_shm::histogram::Followed;

use crate::control::totals;
use crate::controller::Controller;
use crate::dataplane::{DataPlane, Fence, Place, PlaneError};
use crate::nf::State;
use crate::nf::attach::Listener;
use crate::nf::death::Cause;
use crate::nf::output::Outputs;
use crate::rules;
use sluice_api::config::{self as model, Config};
use sluice_api::health::Death;
use sluice_config::estimates::Kept;
use sluice_dataplane::bell::Bell;
use sluice_dataplane::chain::{Chain, ChainCounters, MaySend, Member, Places, PortInfo, Tables};
use sluice_dataplane::classify::hits::RuleHits;
use sluice_dataplane::classify::rule::RuleSet;
use sluice_dataplane::handle::{NfHandle, Sentence};
use sluice_dataplane::queue::QueueCounters;
use sluice_dataplane::trace::TraceRequest;
use sluice_host::cgroup::pen::Pen;
use sluice_host::container::Template;
use sluice_host::notice::Notices;
use sluice_host::process::Exit;
use sluice_host::record::{Record, RecordError, Thing};
use sluice_host::user::User;
use sluice_ports::{self as port, PortError};
use sluice_sdn::{self, Agent};

pub use backend::Remote;

/// How often sentences are carried out, timers looked at and processes measured.
const TICK: Duration = Duration::from_millis(20);
/// The same while nothing moves.
const QUIET_TICK: Duration = Duration::from_millis(100);
/// Least time between two answers to the bell: what is done then looks at every NF.
const ANSWERS: Duration = Duration::from_millis(2);
/// How long a spawned NF may take to say hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How often it gets as long once more, where the host is so busy that it has hardly run.
const RESPITES: u32 = 11;
/// How long an NF that stands still and is runnable is watched for whether it runs.
const RESPITE: Duration = Duration::from_secs(1);
/// How often at most: so long may a host be so busy.
const MOST_RESPITES: u32 = 120;
/// How long an NF that was told to stop may take.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

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
    Attach(#[from] crate::nf::attach::AttachError),
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

/// An NF, whether it has a process or not.
struct NfState {
    number: u16,
    name: String,
    service: u16,
    core: usize,
    state: State,
    handle: Option<Arc<NfHandle>>,
    place: Option<Place>,
    process: Option<life::Process>,
    /// What we started, where that is a program that started the NF's own process. It ends with the NF.
    wrapper: Option<life::Process>,
    connection: Option<OwnedFd>,
    /// On this connection, that its handler is made.
    has_said_ready: bool,
    /// What holds all that its process starts.
    pen: Option<Pen>,
    restarts: u64,
    streak: restart::Streak,
    /// Ends for cause, why it was stopped last, and how often.
    offences: restart::Streak,
    stopped_for: Option<Sentence>,
    stops: u64,
    /// When the state it is in ends by itself: a hello that did not come, a pause that is over, a stop that takes too long.
    deadline: Option<Instant>,
    started_at: Instant,
    /// When its process was told the names of ports, services and chains: first and last.
    told: Option<(Instant, Instant)>,
    /// How often it was given more time, because the host is busy, and what it had used and when that was.
    respites: u32,
    used: Option<(Duration, Instant)>,
    /// Monotonic clock when its process was started, and how long it took to be let in.
    spawned_ns: Option<u64>,
    welcomed_ns: Option<u64>,
    /// How long the frames of its last process took to come back.
    reclaim_ns: Option<u64>,
    /// It is on its way out: when its packets are gone it is told to stop.
    draining: bool,
    /// What packet threads pass when they send it nothing more. Until then, one may be about to.
    fence: Option<Fence>,
    /// How its process has ended, from when it was collected until it is lost; and why it was
    /// ended, or did not come.
    exit: Option<Exit>,
    ended_for: Option<Cause>,
    /// How it died last, if it has.
    last_death: Option<Death>,
    /// Counters of its former processes, so that totals never go back.
    before: report::NfTotals,
    /// What its process has said of itself.
    spoken: Cell<report::Spoken>,
    /// What its process has counted in its page of how long its bursts took.
    service_times: RefCell<Followed>,
    cpu: report::CpuMeter,
    waiters: Vec<Sender<()>>,
    /// What a program that knows nothing of Sluice has besides.
    foreign: Option<foreign::Foreign>,
    /// It is of a version that its service does not have yet: it gets no packets, and is not started again.
    on_trial: bool,
    /// It is of a version that its service does not have any more, and goes with the flow that it has.
    leaves: bool,
    /// It was ended to be started again with fresh packet memory.
    renewed: bool,
    /// Number of the instance whose place it has taken.
    former: Option<u16>,
    /// What it is known by when flows are spread.
    spread_id: u64,
    /// Number of the placement's instance that it is of, if it keeps a promise.
    instance: Option<u32>,
}

impl NfState {
    /// An NF that has no process yet.
    fn new(number: u16, service: u16, name: String, core: usize) -> Self {
        Self {
            number,
            service,
            core,
            state: State::Expected,
            handle: None,
            place: None,
            process: None,
            wrapper: None,
            connection: None,
            has_said_ready: false,
            pen: None,
            restarts: 0,
            streak: restart::Streak::default(),
            offences: restart::Streak::default(),
            stopped_for: None,
            stops: 0,
            deadline: None,
            started_at: Instant::now(),
            told: None,
            respites: 0,
            used: None,
            spawned_ns: None,
            welcomed_ns: None,
            reclaim_ns: None,
            draining: false,
            fence: None,
            exit: None,
            ended_for: None,
            last_death: None,
            before: report::NfTotals::default(),
            spoken: Cell::default(),
            service_times: RefCell::default(),
            cpu: report::CpuMeter::default(),
            waiters: Vec::new(),
            foreign: None,
            on_trial: false,
            leaves: false,
            renewed: false,
            former: None,
            spread_id: restart_stable_id(&name),
            instance: None,
            name,
        }
    }

    /// Whether it is not on its way out.
    fn stays(&self) -> bool {
        !self.draining && !self.leaves && self.state != State::Stopping
    }

    /// Whether its process ends so that it is started again with fresh packet memory, and not for
    /// cause.
    fn starts_anew(&self) -> bool {
        let sentence = self.handle.as_ref().map_or(Sentence::None, |handle| handle.sentence());
        self.renewed && !matches!(sentence, Sentence::Violations | Sentence::Stalled)
    }

    /// Whether nobody starts it again.
    fn is_lost(&self) -> bool {
        matches!(self.state, State::Failed | State::Gone)
    }
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
    config_path: Option<PathBuf>,
    plane: DataPlane,
    controller: Controller,
    /// Who speaks with the SDN controller, if there is one.
    agent: Option<Agent>,
    tuning: tuning::Tuning,
    promises: promises::Promises,
    /// What bounds receive queues.
    room: port::room::Room,
    outside: outside::Outside,
    holds: pens::Holds,
    /// Standard output and error of NFs.
    outputs: Outputs,
    holes: holes::Holes,
    /// What packets cost programs, as measured before.
    estimates: Kept,
    ports: Vec<Option<PortState>>,
    services: Vec<Option<ServiceState>>,
    chains: Vec<Option<Arc<Chain>>>,
    nfs: BTreeMap<u16, NfState>,
    /// Their numbers by name.
    names: HashMap<String, u16>,
    /// Services that go over to another version.
    upgrades: Vec<upgrade::Upgrade>,
    /// Configurations that wait until their new versions of services have shown that they work.
    applying: Vec<apply::Applying>,
    next_apply: u64,
    /// Wrappers that were killed and have not been collected yet.
    leaving: Vec<life::Process>,
    /// How many containers were started.
    containers: u64,
    /// Threads that build or clear rooms of foreign programs, and whose results are to come.
    rooms_in_work: usize,
    /// The threads that clear rooms, by the name of the room's namespace.
    clearing: HashMap<String, std::thread::JoinHandle<()>>,
    next_nf: u16,
    /// Numbers of NFs that are gone: those that paths may name still, and those that may be given again.
    resting: Vec<u16>,
    free_nfs: Vec<u16>,
    port_numbers: numbers::Numbering,
    chain_numbers: numbers::Numbering,
    service_numbers: numbers::Numbering,
    numbers_looked: Instant,
    /// Ports that were opened before anything of a change was done, by name.
    opened: HashMap<String, port::OpenPort>,
    next_version: u32,
    /// Where instances of each service were ever allowed to send packets by a verdict.
    allowed: Vec<Places>,
    /// Chains that lacked paths, of which that was said.
    lacked_paths: HashSet<String>,
    tables: Arc<Tables>,
    /// What is to be in force when the changes that are being made are done.
    coming: Option<Box<Config>>,
    listener: Listener,
    record: Option<Record>,
    epoll: OwnedFd,
    jobs: Receiver<Job>,
    wake: Arc<OwnedFd>,
    remote: Sender<Job>,
    started: Instant,
    /// When timers and sentences were looked at last, and whose processes are to be measured next.
    ticked: Instant,
    /// Nothing has moved between the last two of these, and nothing has happened since; and the packets of all ports then.
    is_quiet: bool,
    moved: u64,
    next_sample: u16,
    meter: report::ThreadMeter,
    /// What the packet threads knew when they last answered.
    snapshots: Arc<[sluice_dataplane::worker::Snapshot]>,
    /// What chains and ports that are gone have counted.
    past: past::Past,
    /// The trace that goes on, and until when at the latest.
    tracing: Option<(Arc<TraceRequest>, Instant)>,
    /// Decisions of each rule in force, with what the rule is known by.
    hits: Vec<(String, RuleHits)>,
    /// What rules are told to have decided, by name or place, those that are gone too; and
    /// decisions of rules that are gone.
    rule_counts: HashMap<String, RuleCount>,
    former_decisions: u64,
    /// Numbers of tenants that rules have named, from 1. They stay, so that a class of a pool is the same after a change of rules.
    tenants: HashMap<String, u32>,
    /// Rung by packet threads that wait for what only this thread does.
    bell: Arc<Bell>,
    /// When the bell was answered last.
    answered: Instant,
    /// When the pause of an NF ends, at the earliest.
    due: Option<Instant>,
    /// What is said at most once a second.
    notices: Notices<life::Kind>,
    /// What does not work, and since when.
    watch: health::Watch,
    runtime_dir: runtime_dir::Watch,
    stopping: bool,
    /// Told once everything has stopped.
    quit: bool,
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

fn system(doing: &'static str) -> impl Fn(rustix::io::Errno) -> SupervisorError {
    move |source| SupervisorError::System { doing, source }
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
        let plane = DataPlane::start(&config)?;
        let controller =
            Controller::start(&config.sched).map_err(|source| PlaneError::Thread { core: config.manager.monitor[0], source })?;
        let listener = Listener::bind(&config.manager.runtime_dir.join("nf.sock"), 0o666)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("make an epoll instance"))?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("make an eventfd"))?);
        let interest = epoll::EventFlags::IN;
        epoll::add(&epoll, wake.as_fd(), epoll::EventData::new_u64(token::WAKE), interest).map_err(system("watch requests"))?;
        epoll::add(&epoll, listener.fd(), epoll::EventData::new_u64(token::LISTENER), interest)
            .map_err(system("watch the NF socket"))?;
        let outputs = Outputs::start().map_err(|error| {
            system("start the thread that reads the output of NFs")(
                rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::INVAL),
            )
        })?;
        let (remote, jobs) = channel();
        let wanted = config.clone();
        let stride = if plane.memories().are_huge() { plane.arena().geometry().stride } else { 0 };
        let room = port::room::Room::read(Path::new("/"), &config.memory, promises.io_mask(), stride);
        let estimates = Kept::read(&config.manager.estimates).unwrap_or_else(|error| {
            warn!("{error}; NFs start without a first guess of their cost");
            Kept::default()
        });
        let mut this = Self {
            config: Config { ports: vec![], services: vec![], chains: vec![], rules: vec![], ..config },
            config_path,
            plane,
            controller,
            agent: None,
            tuning: tuning::Tuning::default(),
            promises,
            room,
            outside: outside::Outside::default(),
            holds: pens::Holds::default(),
            outputs,
            holes: holes::Holes::default(),
            estimates,
            ports: Vec::new(),
            services: Vec::new(),
            chains: Vec::new(),
            nfs: BTreeMap::new(),
            names: HashMap::new(),
            upgrades: Vec::new(),
            applying: Vec::new(),
            next_apply: 0,
            leaving: Vec::new(),
            containers: 0,
            rooms_in_work: 0,
            clearing: HashMap::new(),
            next_nf: 0,
            resting: Vec::new(),
            port_numbers: numbers::Numbering::default(),
            chain_numbers: numbers::Numbering::default(),
            service_numbers: numbers::Numbering::default(),
            numbers_looked: Instant::now(),
            free_nfs: Vec::new(),
            opened: HashMap::new(),
            next_version: 1,
            allowed: Vec::new(),
            lacked_paths: HashSet::new(),
            tables: Arc::default(),
            coming: None,
            listener,
            record: Some(record),
            epoll,
            jobs,
            wake: wake.clone(),
            remote,
            started: Instant::now(),
            ticked: Instant::now(),
            is_quiet: false,
            moved: 0,
            next_sample: 0,
            meter: report::ThreadMeter::default(),
            snapshots: Arc::default(),
            past: past::Past::default(),
            tracing: None,
            hits: Vec::new(),
            rule_counts: HashMap::new(),
            former_decisions: 0,
            tenants: HashMap::new(),
            bell: Arc::new(Bell::new(wake)),
            answered: Instant::now(),
            due: None,
            notices: Notices::new(|line| warn!("{line}")),
            watch: health::Watch::default(),
            runtime_dir: runtime_dir::Watch::default(),
            stopping: false,
            quit: false,
        };
        let socket = this.listener.path().to_path_buf();
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
            let number = self.port_numbers.next(self.ports.len(), "ports")?;
            self.port_numbers.take(number, &mut self.ports, PortState::new(port.clone()), Instant::now());
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
        self.agent = Agent::start(&self.config.openflow, self.plane.adviser())
            .map_err(|source| PlaneError::Thread { core: self.config.manager.monitor[0], source })?;
        self.tell_agent();
        // Only now: a generator that begins before the sink is there would lose packets.
        self.plane.start_rx();
        self.watch.is_up = true;
        self.restore_placement();
        Ok(())
    }

    /// A handle by which other threads reach this one.
    pub fn remote(&self) -> Remote {
        Remote::new(self.remote.clone(), self.wake.clone())
    }

    /// The configuration that is in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Serves until told to stop, then drains and stops everything.
    pub fn run(mut self) {
        while !self.quit {
            self.turn(QUIET_TICK);
        }
        self.shut_down();
    }

    /// Ends [`Supervisor::run`].
    pub fn quit(&mut self) {
        self.quit = true;
    }

    /// Waits for events for so long, and handles them.
    fn turn(&mut self, timeout: Duration) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut timeout = timeout.min(self.until_due(Instant::now()));
        if self.bell.is_rung() {
            timeout = timeout.min(ANSWERS.saturating_sub(self.answered.elapsed()));
        }
        if self.holds.is_waiting() {
            timeout = timeout.min(Duration::from_millis(1));
        }
        if let Some(deadline_ns) = self.listener.next_deadline_ns() {
            timeout = timeout.min(Duration::from_nanos(deadline_ns.saturating_sub(monotonic_ns())));
        }
        let timeout = rustix::event::Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        // EINTR is an empty turn.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
        self.is_quiet &= events.is_empty();
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
                    let _ = rustix::io::read(&*self.wake, &mut count);
                }
            }
        }
        if self.holds.is_waiting() {
            self.let_go();
        }
        self.greet();
        while let Ok(job) = self.jobs.try_recv() {
            job(self);
        }
        self.go_on_upgrading();
        self.go_on_applying();
        self.go_on_placing();
        self.plane.collect();
        // Not after each event: it looks at every NF, and with a thousand of them that would hold up whoever waits to be let in.
        let now = Instant::now();
        if now.duration_since(self.answered) >= ANSWERS && self.bell.take() {
            self.answered = now;
            self.end_condemned();
            self.size_pools(now);
        }
        if self.until_due(now).is_zero() {
            self.ticked = now;
            self.tick(now);
        }
        // Last: a member that has become ready in this turn waits for nothing more.
        self.publish_stirred_pools();
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
                let runs = |nf: &&NfState| nf.state == State::Running && !nf.draining;
                let living = instances.iter().filter_map(|n| self.nfs.get(n)).filter(runs);
                let parts_of = |nf: &NfState| parts.get(&nf.number).copied().unwrap_or(1);
                // Where all that live are to end their flows, new ones are with them all the same.
                let none_open = living.clone().all(|nf| parts_of(nf) == 0);
                let member = |nf: &NfState, parts: u32| Member {
                    nf: nf.number,
                    id: nf.spread_id,
                    former: nf.former,
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
        let generation = self.tables.generation + 1;
        let (chains, downstream_first) = (self.chains.clone(), self.config.sched.downstream_first);
        let steered = self.services.iter().map(|service| service.as_ref().is_some_and(|s| s.pool.is_some())).collect();
        let may_send = self.may_send();
        self.tables = Arc::new(Tables { generation, rules, chains, services, steered, ports, downstream_first, may_send });
        self.plane.use_tables(&self.tables);
        self.rank_again();
        self.tell_agent();
    }

    /// A number for one more NF: one that was given before, if `fits` says so, else a new one.
    fn next_nf_number(&mut self, fits: impl Fn(u16) -> bool) -> u16 {
        if let Some(at) = self.free_nfs.iter().position(|number| fits(*number)) {
            let number = self.free_nfs.swap_remove(at);
            // It is another place's now: flows of that one are not for who took the place of the NF that had the number before.
            self.nfs.values_mut().filter(|nf| nf.former == Some(number)).for_each(|nf| nf.former = None);
            return number;
        }
        while !fits(self.next_nf) && self.next_nf < u16::MAX - 3 {
            self.resting.push(self.next_nf);
            self.next_nf += 1;
        }
        self.next_nf += 1;
        self.next_nf - 1
    }

    /// Says once of each chain that it lacks paths.
    fn tell_of_lacking_paths(&mut self) {
        for chain in self.chains.iter().flatten() {
            let lacks = chain.counters.iter().any(|counters| counters.no_path.get() > 0);
            if lacks && self.lacked_paths.insert(chain.name.clone()) {
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
        self.allowed.resize_with(now.len(), Places::default);
        let may = |(now, ever): (Places, &mut Places)| {
            ever.add(&now);
            MaySend { now, ever: ever.clone() }
        };
        now.into_iter().zip(&mut self.allowed).map(may).collect()
    }

    /// Says to the one who speaks with the SDN controller what ports and chains there are.
    fn tell_agent(&self) {
        let Some(agent) = &self.agent else { return };
        let port = |(number, port): (usize, &Option<PortState>)| {
            let port = port.as_ref()?;
            let counters = port.counters.clone();
            Some(sluice_sdn::PortView { number: number as u16, name: port.config.name.clone(), counters })
        };
        let ports = self.ports.iter().enumerate().filter_map(port).collect();
        agent.tell(sluice_sdn::Topology { ports, chains: self.chains.iter().flatten().cloned().collect() });
    }

    /// The rules, compiled. All that is named in them is there: a change that would leave one dangling is refused before. A rule goes
    /// on counting where it was: one with a name as long as there is one of this name, one without as long as it stays the same.
    fn rules(&mut self) -> RuleSet {
        let ports = self.ports.iter().enumerate().filter_map(|(i, p)| Some((p.as_ref()?.config.name.clone(), i as u16))).collect();
        let chains = self.chains.iter().flatten().map(|c| (c.name.clone(), c.number)).collect();
        let mut known: HashMap<String, Vec<RuleHits>> = HashMap::new();
        for (key, hits) in std::mem::take(&mut self.hits).into_iter().rev() {
            known.entry(key).or_default().push(hits);
        }
        let threads = self.plane.threads();
        let (mut rules, mut hits) = (Vec::new(), Vec::new());
        for (number, rule) in self.config.rules.iter().enumerate() {
            let key = rule.name.clone().unwrap_or_else(|| serde_json::to_string(rule).unwrap_or_default());
            let own = known.get_mut(&key).and_then(Vec::pop).unwrap_or_else(|| RuleHits::new(threads));
            match rules::compile(rule, number, &ports, &chains) {
                Ok(mut compiled) => {
                    let of_tenant = self.config.sched.priority_of(rule.tenant.as_deref());
                    let terms = &mut compiled.terms;
                    terms.weight = Weight::new(terms.weight.get() * of_tenant);
                    terms.tenant = rule.tenant.as_ref().map_or(0, |tenant| {
                        let next = self.tenants.len() as u32 + 1;
                        *self.tenants.entry(tenant.clone()).or_insert(next)
                    });
                    rules.push(compiled);
                    hits.push(own.clone());
                }
                Err(error) => warn!("a rule is left out: {error}"),
            }
            self.hits.push((key, own));
        }
        self.former_decisions += known.values().flatten().map(RuleHits::total).sum::<u64>();
        self.count_rules();
        RuleSet::new(rules).counting(hits)
    }

    /// Has what is told of each rule go on where it was, by its name or place.
    fn count_rules(&mut self) {
        let now: HashMap<String, &RuleHits> = (self.config.rules.iter().enumerate().zip(&self.hits))
            .map(|((place, rule), (_, hits))| (report::series_of(rule, place), hits))
            .collect();
        for (name, count) in &mut self.rule_counts {
            if let Some(hits) = count.hits.take_if(|hits| now.get(name).is_none_or(|now| !now.is(hits))) {
                count.base = count.base.wrapping_add(hits.total());
            }
        }
        // Those that are gone and forgotten begin at 0 if they come again.
        while self.rule_counts.len() > now.len() + totals::MOST
            && let Some(gone) = self.rule_counts.iter().find(|(_, count)| count.hits.is_none()).map(|(name, _)| name.clone())
        {
            self.rule_counts.remove(&gone);
        }
        for (name, hits) in now {
            let count = self.rule_counts.entry(name).or_default();
            if count.hits.is_none() {
                // What it has decided in another place is told there.
                count.base = count.base.wrapping_sub(hits.total());
                count.hits = Some(hits.clone());
            }
        }
    }

    /// Notes in the record; a full disk is no reason to stop packets.
    fn note(&mut self, what: impl FnOnce(&mut Record) -> Result<(), RecordError>) {
        if let Some(record) = &mut self.record
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

/// What an instance is known by when flows are spread: of its name, so that it stays the same over restarts of NF and manager.
fn restart_stable_id(name: &str) -> u64 {
    // FNV-1a: any fixed hash will do.
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
