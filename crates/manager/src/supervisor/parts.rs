//! The parts of the supervisor's state, by purpose.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use super::buffers::DeviceWays;
use super::nfs::Process;
use super::sockets::{SOCKET, Sockets};
use super::{Job, RuleCount, SupervisorError, token};
use super::{apply, flows, health, history, holes, memory, notice, numbers, past, pens, report, runtime_dir, sdn, upgrade};
use crate::dataplane::DataPlane;
use crate::flows::FlowOutputs;
use crate::nf::output::Outputs;
use crate::otel::PushCounts;
use crate::timeline::flight::FlightRecorder;
use sluice_api::config::Config;
use sluice_api::shadow::ShadowReport;
use sluice_config::estimates::Kept;
use sluice_dataplane::capture;
use sluice_dataplane::chain::{Places, Tables};
use sluice_dataplane::classify::hits::RuleHits;
use sluice_dataplane::port::{Kinds, OpenPort};
use sluice_dataplane::trace::TraceRequest;
use sluice_dataplane::waker::Waker;
use sluice_dataplane::worker::Snapshot;
use sluice_host::attach::Listener;
use sluice_host::notice::Notices;
use sluice_host::record::Record;

/// Changes under way, and the numbers that they assign.
pub(super) struct Changes {
    /// Services that change to another version.
    pub(super) upgrades: Vec<upgrade::Upgrade>,
    /// Configurations that wait until their new versions of services work.
    pub(super) applying: Vec<apply::Applying>,
    pub(super) next_apply: u64,
    /// Ports that were opened before the rest of a change began, by name.
    pub(super) opened: HashMap<String, OpenPort>,
    /// What the log of flows will write to, and the flight recorder, as `opened`.
    pub(super) outputs: Option<FlowOutputs>,
    pub(super) recorder: Option<FlightRecorder>,
    /// The configurations before the present one.
    pub(super) history: history::History,
    /// The configuration that will be in force when the changes under way are done.
    pub(super) coming: Option<Box<Config>>,
    pub(super) port_numbers: numbers::Numbering,
    pub(super) chain_numbers: numbers::Numbering,
    pub(super) service_numbers: numbers::Numbering,
    pub(super) numbers_looked: Instant,
    pub(super) memory: memory::Resting,
}

impl Changes {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            history: history::History::open(&config.manager.history_folder(), &config.manager.runtime_dir),
            upgrades: Vec::new(),
            applying: Vec::new(),
            next_apply: 0,
            opened: HashMap::new(),
            outputs: None,
            recorder: None,
            coming: None,
            port_numbers: numbers::Numbering::default(),
            chain_numbers: numbers::Numbering::default(),
            service_numbers: numbers::Numbering::default(),
            numbers_looked: Instant::now(),
            memory: memory::Resting::default(),
        }
    }
}

impl Changes {
    /// Closes what was opened ahead and is not used.
    pub(super) fn forget_opened(&mut self) {
        self.opened.clear();
        (self.outputs, self.recorder) = (None, None);
    }
}

/// What was published to the packet threads and the SDN controller, and its counts.
#[derive(Default)]
pub(super) struct Published {
    pub(super) tables: Arc<Tables>,
    pub(super) versions: u32,
    /// Where instances of each service were ever allowed to send packets by a verdict.
    pub(super) allowed: Vec<Places>,
    pub(super) lacked_paths: HashSet<String>,
    pub(super) sdn: sdn::Sdn,
    /// Counters of each rule in force, with the key of the rule.
    pub(super) hits: Vec<(String, RuleHits)>,
    /// The counts reported for rules, also former ones; and the decisions of former rules.
    pub(super) rule_counts: HashMap<String, RuleCount>,
    pub(super) former_decisions: u64,
    /// Numbers of the tenants that rules have named, from 1. They stay, so that a class of a pool
    /// is the same after a change of rules.
    pub(super) tenants: HashMap<String, u32>,
}

impl Published {
    pub(super) fn new(config: &Config) -> Self {
        Self { sdn: sdn::Sdn::new(config), ..Self::default() }
    }
}

/// How ports and devices are opened.
pub(super) struct Opener {
    pub(super) kinds: Arc<dyn Kinds>,
    /// The bound on receive queues.
    pub(super) room: DeviceWays,
}

pub(super) struct Host {
    pub(super) sockets: Sockets,
    pub(super) record: Option<Record>,
    pub(super) epoll: OwnedFd,
    pub(super) outputs: Outputs,
    /// Lines of which few of each kind are logged.
    pub(super) notices: Notices<notice::NoticeKind>,
    pub(super) runtime_dir: runtime_dir::DirWatch,
    pub(super) holes: holes::Holes,
    pub(super) opener: Opener,
    /// The costs of packets in programs, as measured before.
    pub(super) estimates: Kept,
    pub(super) holds: pens::Holds,
    /// Killed wrappers that are not collected yet.
    pub(super) leaving: Vec<Process>,
    pub(super) containers: u64,
    /// Threads whose results are to come: they build or clear namespaces of foreign programs, or
    /// clear the state of inline NFs.
    pub(super) in_work: usize,
    /// Loads of inline NFs so far.
    pub(super) loads: u64,
    /// The threads that clear namespaces, by the namespace's name.
    pub(super) clearing: HashMap<String, JoinHandle<()>>,
}

fn system(doing: &'static str) -> impl Fn(Errno) -> SupervisorError {
    move |source| SupervisorError::System { doing, source }
}

impl Host {
    pub(super) fn open(
        config: &Config,
        kinds: Arc<dyn Kinds>,
        record: Record,
        plane: &DataPlane,
        io_mask: u32,
        wake: &OwnedFd,
    ) -> Result<Self, SupervisorError> {
        let listener = Listener::bind(&config.manager.runtime_dir.join(SOCKET), 0o666)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("make an epoll instance"))?;
        let interest = epoll::EventFlags::IN;
        epoll::add(&epoll, wake.as_fd(), epoll::EventData::new_u64(token::WAKE), interest).map_err(system("watch requests"))?;
        epoll::add(&epoll, listener.fd(), epoll::EventData::new_u64(token::LISTENER), interest)
            .map_err(system("watch the NF socket"))?;
        let outputs = Outputs::start().map_err(|error| {
            system("start the thread that reads the output of NFs")(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
        })?;
        let stride = if plane.memories().are_huge() { plane.arena().geometry().stride } else { 0 };
        Ok(Self {
            sockets: Sockets::new(listener),
            record: Some(record),
            epoll,
            outputs,
            notices: Notices::new(|line| warn!(target: "sluice_manager::supervisor", "{line}")),
            runtime_dir: runtime_dir::DirWatch::default(),
            holes: holes::Holes::default(),
            opener: Opener { kinds, room: DeviceWays::read(Path::new("/"), &config.memory, io_mask, stride) },
            estimates: Kept::read(&config.manager.estimates).unwrap_or_else(|error| {
                warn!("{error}; NFs start without a first guess of their cost");
                Kept::default()
            }),
            holds: pens::Holds::default(),
            leaving: Vec::new(),
            containers: 0,
            in_work: 0,
            loads: 0,
            clearing: HashMap::new(),
        })
    }
}

/// What the supervisor's thread waits for, and when it acts next.
pub(super) struct Turns {
    pub(super) jobs: Receiver<Job>,
    pub(super) wake: Arc<OwnedFd>,
    pub(super) remote: Sender<Job>,
    /// The waker for packet threads that wait for work only this thread does.
    pub(super) waker: Arc<Waker>,
    pub(super) answered: Instant,
    /// When timers and stop reasons were checked last, which process is measured next, and which
    /// NF's requests are read next.
    pub(super) ticked: Instant,
    pub(super) next_sample: u16,
    pub(super) next_request: u16,
    /// Nothing has moved between the last two ticks and nothing has happened since; and the packets
    /// of all ports at the last tick.
    pub(super) is_quiet: bool,
    pub(super) moved: u64,
    /// When the first pause of an NF ends, on the monotonic clock.
    pub(super) due_ns: Option<u64>,
    pub(super) stopping: bool,
    /// Set once everything is to stop.
    pub(super) quit: bool,
}

impl Turns {
    pub(super) fn new() -> Result<Self, SupervisorError> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("make an eventfd"))?);
        let (remote, jobs) = channel();
        Ok(Self {
            jobs,
            waker: Arc::new(Waker::new(wake.clone())),
            wake,
            remote,
            answered: Instant::now(),
            ticked: Instant::now(),
            next_sample: 0,
            next_request: 0,
            is_quiet: false,
            moved: 0,
            due_ns: None,
            stopping: false,
            quit: false,
        })
    }
}

pub(super) struct Observed {
    pub(super) config_path: Option<PathBuf>,
    pub(super) started: Instant,
    pub(super) meter: report::ThreadMeter,
    /// The last snapshots of the packet threads.
    pub(super) snapshots: Arc<[Snapshot]>,
    /// The counts of chains and ports that are gone.
    pub(super) past: past::Past,
    /// The trace under way, and its deadline.
    pub(super) tracing: Option<(Arc<TraceRequest>, Instant)>,
    /// The captures under way.
    pub(super) captures: Vec<Weak<capture::CaptureScope>>,
    /// The log of flows, while they are metered.
    pub(super) flows: Option<flows::FlowKeeper>,
    /// What becomes of pushed metrics, if there are any.
    pub(super) pushes: Option<Arc<PushCounts>>,
    /// The recordings of timelines under way.
    pub(super) timelines: Vec<Weak<()>>,
    /// The flight recorder, if there is one.
    pub(super) recorder: Option<FlightRecorder>,
    /// Those before it that may still write.
    pub(super) former_recorders: Vec<FlightRecorder>,
    /// The parts that do not work, and since when.
    pub(super) watch: health::HealthWatch,
    /// What was compared of the last shadow of each service that has had one.
    pub(super) shadows: BTreeMap<String, ShadowReport>,
}

impl Observed {
    pub(super) fn new(config_path: Option<PathBuf>, pushes: Option<Arc<PushCounts>>) -> Self {
        Self {
            config_path,
            started: Instant::now(),
            meter: report::ThreadMeter::default(),
            snapshots: Arc::default(),
            past: past::Past::default(),
            tracing: None,
            captures: Vec::new(),
            flows: None,
            pushes,
            timelines: Vec::new(),
            recorder: None,
            former_recorders: Vec::new(),
            watch: health::HealthWatch::default(),
            shadows: BTreeMap::new(),
        }
    }
}
