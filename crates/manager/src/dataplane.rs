//! The packet threads, as the supervisor starts, commands, queries and stops them.
//!
//! Every change goes to all threads in the same order, and changes that others depend on are waited
//! for. So no thread gives an NF packets after the thread that takes back its frames has begun to.

#![allow(unsafe_code)]

mod arenas;
mod division;
mod hooks;
mod outlook;

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use sluice_policy::sched::threshold::Rules;
use sluice_shm::arena::Arena;
use sluice_shm::clock::Clock;
use sluice_shm::core_page::CorePage;
use sluice_shm::memory::{MemoryError, SharedMemory};
use sluice_shm::page::{Region, RegionLayout};
use sluice_shm::ring;

use sluice_api::config::{self as model, Config, Idle, Overload};
use sluice_config::tenancy::Holder;
use sluice_dataplane::alarm::Alarm;
use sluice_dataplane::batch::OwnedQueue;
use sluice_dataplane::chain::registry::ends;
use sluice_dataplane::chain::{PathRegistry, Tables};
use sluice_dataplane::classify::Classifier;
use sluice_dataplane::classify::flow_table::random_seed;
use sluice_dataplane::classify::rss::owner;
use sluice_dataplane::frame::{FrameCache, FrameTable, NO_ARENA, Stack};
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::hooks::Sharing;
use sluice_dataplane::in_flight::InFlight;
use sluice_dataplane::plane::{self, Plane, Shared};
use sluice_dataplane::pressure::Alerts;
use sluice_dataplane::queue::{PortQueue, QueueCounters};
use sluice_dataplane::roles::{Portion, Roles};
use sluice_dataplane::rx::Rx;
use sluice_dataplane::steer::ChooseChain;
use sluice_dataplane::succession::Succession;
use sluice_dataplane::trace::TraceRequest;
use sluice_dataplane::worker::{self, Command, Snapshot, Worker, WorkerSetup};
use sluice_host::affinity;
use sluice_host::process::Proc;
use sluice_host::silence::{Look, Silence};

use crate::memory::{Memories, NoMemory, TenantMemory};
pub use division::{Division, threads_of};

/// Longest time that a packet thread may run, or be blocked, before it carries out a command. The
/// time that it waits for its core does not count.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes a second at which a host gives memory, at the least: a thread has that much more time for
/// its flow table. The slowest that was measured gave 2 MiB in 25 ms.
const MEMORY_RATE: usize = 64 << 20;
/// Time between two checks of a packet thread that does not answer.
const LOOK: Duration = Duration::from_millis(100);
/// Longest wait for the end of a port's file or device.
const LETTING_GO: Duration = Duration::from_secs(2);
/// Paths whose numbers a packet thread caches.
const WAYS: usize = 4096;
/// Free frames in a packet thread's cache.
const FRAMES_PER_THREAD: usize = 8192;
/// Capacity of the queue between two packet threads.
pub const LANE: u32 = 1024;

/// Why the packet threads could not be started or commanded.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    #[error("cannot start a packet thread on core {core}: {source}")]
    Thread { core: usize, source: std::io::Error },
    /// A thread runs and does not answer, or has ended.
    #[error("packet thread {0} does not answer, though it has had its core; this is a defect of sluiced: please report it")]
    Silent(usize),
    /// A thread is blocked by something other than its core.
    #[error(
        "packet thread {thread} (core {core}) has been blocked for {} s; if a disk or device that a port uses hangs, see to that, or \
         else this is a defect of sluiced: please report it",
        PATIENCE.as_secs()
    )]
    Blocked { thread: usize, core: usize },
    #[error("core {core} has {slots} NFs already, the most that manager.max_nfs allows; raise it and restart")]
    NoSlot { core: usize, slots: u32 },
}

/// Whether a port's file or device was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum LetGo {
    Done,
    /// It takes no more packets and is left to end by itself.
    Stuck,
}

struct Link {
    core: usize,
    roles: Roles,
    commands: Sender<Command>,
    alarm: Arc<Alarm>,
    thread: Option<JoinHandle<()>>,
    busy_ns: Arc<AtomicU64>,
    seen: Arc<Seen>,
}

/// What is known of a packet thread that may not answer.
#[derive(Debug, Default)]
struct Seen {
    /// Its thread id; none before it has run.
    id: OnceLock<Pid>,
    /// Whether the lack of its core was logged.
    was_said: AtomicBool,
}

impl Seen {
    /// Waits for the thread's answer: without limit while it lacks its core, which is logged once.
    fn wait_for<T>(&self, thread: usize, core: usize, answer: &Receiver<T>) -> Result<T, PlaneError> {
        self.wait_with(thread, core, answer, LOOK, PATIENCE)
    }

    fn wait_with<T>(
        &self,
        thread: usize,
        core: usize,
        answer: &Receiver<T>,
        every: Duration,
        patience: Duration,
    ) -> Result<T, PlaneError> {
        let (proc, mut silence, mut at) = (Proc::default(), Silence::default(), Instant::now());
        loop {
            match answer.recv_timeout(every) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(PlaneError::Silent(thread)),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // This thread may have lacked its own core meanwhile.
            let (now, before) = (Instant::now(), at);
            at = now;
            match self.id.get() {
                Some(id) => silence.note(Look::at_own(&proc, *id), now.duration_since(before)),
                None => silence.queued += now.duration_since(before),
            }
            if silence.ran >= patience {
                return Err(PlaneError::Silent(thread));
            }
            if silence.blocked >= patience {
                return Err(PlaneError::Blocked { thread, core });
            }
            // Relaxed: only one thread waits.
            if silence.queued >= patience && !self.was_said.swap(true, Ordering::Relaxed) {
                warn!(
                    "packet thread {thread} has waited {} s for core {core}, where other programs run, and goes on waiting; keep \
                     them off that core (taskset, cpusets, isolcpus), or give `[manager]` another one",
                    silence.queued.as_secs()
                );
            }
        }
    }
}

struct Core {
    memory: SharedMemory,
    page: CorePage,
    used: Vec<bool>,
}

#[derive(Debug, Clone)]
pub struct ThreadInfo {
    pub core: usize,
    pub roles: Roles,
    /// Time with packets to handle, in nanoseconds.
    pub busy_ns: u64,
}

/// A barrier: the last command to all packet threads, answered when the earlier ones are done.
#[derive(Debug)]
pub struct Fence {
    answers: Receiver<()>,
    left: usize,
}

impl Fence {
    pub fn is_passed(&mut self) -> bool {
        while self.left > 0 {
            match self.answers.try_recv() {
                Ok(()) => self.left -= 1,
                Err(TryRecvError::Disconnected) => self.left = 0,
                Err(TryRecvError::Empty) => return false,
            }
        }
        true
    }
}

/// Puts the calling thread onto its core, and into the devices. What is returned is dropped at its
/// end.
fn enter(core: usize, devices: Option<&dyn sluice_dataplane::port::Devices>) -> Result<Option<Box<dyn Any>>, std::io::Error> {
    // Tests may have more packet threads than their host has cores.
    let cores = if cfg!(test) { std::thread::available_parallelism().map_or(1, usize::from) } else { usize::MAX };
    affinity::pin(core % cores).map_err(std::io::Error::other)?;
    devices.map(|devices| devices.enter_thread()).transpose().map_err(std::io::Error::other)
}

/// A packet thread. Answers when it is on its core, and when it has its memory.
fn run(
    mut setup: WorkerSetup,
    core: usize,
    devices: Option<&dyn sluice_dataplane::port::Devices>,
    pinned: &Sender<Result<(), std::io::Error>>,
    populated: &Sender<()>,
) {
    // What a device gives is kept as long as the thread runs.
    let (entered, here) = match enter(core, devices) {
        Ok(here) => (Ok(()), Some(here)),
        Err(error) => (Err(error), None),
    };
    let _ = pinned.send(entered);
    if here.is_some() {
        setup.rx.classifier.table().populate();
        let _ = populated.send(());
        Worker::new(setup).run();
    }
}

/// An Rx thread, for features that choose chains or instances there.
#[derive(Debug, Clone, Copy)]
pub struct RxThread {
    /// Its number among all packet threads.
    pub thread: usize,
    /// Its number among the Rx threads, and their count.
    pub part: Portion,
    /// Most flows that it tracks.
    pub flows: usize,
    /// Most paths of all threads.
    pub paths: usize,
}

/// Makes the chooser of new flows' chains on an Rx thread, if any feature adds one to the rules.
pub type MakeChooser<'a> = &'a dyn Fn(RxThread) -> Option<Box<dyn ChooseChain>>;

pub struct DataPlane {
    links: Vec<Link>,
    rx: Vec<RxThread>,
    division: Division,
    memories: Memories,
    table: FrameTable,
    registry: Arc<PathRegistry>,
    clock: Clock,
    cores: HashMap<(usize, Option<String>), Core>,
    slots: u32,
    /// Packets on their way to each NF, by number: see
    /// [`Hot::in_flight`](sluice_dataplane::handle::Hot::in_flight).
    in_flight: HashMap<u16, Arc<InFlight>>,
    hands_over: bool,
    tuning_ns: Arc<AtomicU64>,
    /// What the threads use now: the tables, and what features keep for each service.
    tables: Arc<Tables>,
    kept: HashMap<u16, Arc<dyn Any + Send + Sync>>,
    /// What they used before, until no thread uses it.
    former: Vec<(Fence, Arc<dyn Any + Send + Sync>)>,
    collecting: Collecting,
    /// Paths that have ended and that frames still name.
    lingering: Vec<u32>,
    /// How many fences all threads have passed since the first query, and the next fence.
    rounds: (u64, Option<Fence>),
}

/// The progress of freeing paths: see [`sluice_dataplane::chain::registry`].
#[derive(Debug)]
enum Collecting {
    Nothing,
    Ended(Vec<u32>, Fence),
    Hidden(Vec<u32>, Fence),
}

/// A slot on a core's page, assigned to an NF.
#[derive(Debug, Clone)]
pub struct Place {
    pub page: CorePage,
    pub slot: u32,
    /// Number of the arena of its tenant; [`NO_ARENA`] for a program that maps none.
    pub memory: u8,
    key: (usize, Option<String>),
}

impl DataPlane {
    /// Makes the arenas and starts the threads. Calls `chooser` for each Rx thread.
    ///
    /// # Errors
    /// [`PlaneError::NoMemory`] if there is no memory for packets, or devices do not start;
    /// [`PlaneError::Thread`] if a thread cannot start on its core.
    pub fn start(config: &Config, kinds: &dyn sluice_dataplane::port::Kinds, chooser: MakeChooser) -> Result<Self, PlaneError> {
        let memories = Memories::new(config, kinds)?;
        let frames = memories.slots() << memories.shift();
        let table = FrameTable::new(frames);
        let entered_ns: Arc<[AtomicU64]> = (0..frames).map(|_| AtomicU64::new(0)).collect();
        let registry = Arc::new(PathRegistry::new(config.manager.max_paths as usize));
        let clock = Clock::new();
        let manager = &config.manager;

        let threads = threads_of(manager);
        let n = threads.len();

        let mut lanes_out: Vec<Vec<_>> = (0..n).map(|_| (0..n).map(|_| None).collect()).collect();
        let mut lanes_in: Vec<Vec<_>> = (0..n).map(|_| (0..n).map(|_| None).collect()).collect();
        for from in 0..n {
            for to in (0..n).filter(|to| *to != from) {
                let (producer, consumer) = ring::private(LANE);
                lanes_out[from][to] = Some(producer);
                lanes_in[to][from] = Some(consumer);
            }
        }
        let seed = random_seed();
        let jammed: Arc<[AtomicBool]> = (0..=u16::MAX).map(|_| AtomicBool::new(false)).collect();
        let alerts = Arc::new(Alerts::new(manager.max_nfs as usize));
        let tuning_ns = Arc::new(AtomicU64::new(0));
        // A thread's number among those of a role, and their count.
        let part = |has: fn(&Roles) -> bool, index: usize| {
            let threads: Vec<usize> = (0..n).filter(|i| has(&threads[*i].1)).collect();
            Portion { of: threads.len().max(1), this: threads.iter().position(|t| *t == index).unwrap_or(0) }
        };
        let measures: Vec<Portion> = (0..n).map(|i| part(|r| r.monitor, i)).collect();
        let wakeup: Vec<usize> = (0..n).filter(|i| threads[*i].1.wakeup).collect();
        let numbers: Vec<usize> = (0..n).filter(|i| threads[*i].1.rx).collect();
        let flows = manager.max_flows.div_ceil(numbers.len() as u32) as usize;
        let paths = manager.max_paths as usize;
        let rx: Vec<RxThread> =
            numbers.into_iter().map(|thread| RxThread { thread, part: part(|r| r.rx, thread), flows, paths }).collect();
        let tx: Vec<usize> = (0..n).filter(|i| threads[*i].1.tx).collect();
        let alarm = |at: usize| Alarm::new().map(Arc::new).map_err(|source| PlaneError::Thread { core: threads[at].0, source });
        let alarms = (0..n).map(alarm).collect::<Result<Vec<_>, _>>()?;
        let shared = Shared { table: table.clone(), entered_ns, alerts, jammed, registry: registry.clone() };
        let plane_settings = plane_settings(config);
        let worker_settings = worker::ThreadSettings {
            idle: manager.idle,
            flow_timeout_ms: manager.flow_timeout_ms,
            fallback_wake_us: manager.fallback_wake_us,
            stall_ms: manager.stall_ms,
            sched: config.sched.clone(),
        };
        let (mut links, mut begun) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for (index, ((core, roles), (lanes_out, lanes_in))) in
            threads.into_iter().zip(lanes_out.into_iter().zip(lanes_in)).enumerate()
        {
            let (commands, receiver) = channel();
            let busy_ns = Arc::new(AtomicU64::new(0));
            // Threads that never sleep need no alarm.
            let rests = manager.idle != Idle::Spin;
            let others = (0..n).filter(|other| rests && *other != index).map(|other| alarms[other].clone()).collect();
            let frames = {
                let mut cache = FrameCache::over(memories.whole().clone(), memories.shift(), memories.slots() as usize);
                memories.iter().for_each(|memory| cache.add(memory.number, stack(memory, n)));
                cache.set_usual(memories.usual());
                cache
            };
            let setup = WorkerSetup {
                roles,
                // One decides, because it concerns whole chains.
                throttles: wakeup.first() == Some(&index) && config.sched.backpressure,
                measures: measures[index],
                settings: worker_settings.clone(),
                plane: Plane::new(index, n, shared.clone(), frames, plane_settings),
                rx: Rx {
                    registry: registry.clone(),
                    classifier: Classifier::new(if roles.rx { flows } else { 1 }, seed),
                    clock,
                    chains: rx.iter().find(|rx| rx.thread == index).and_then(|rx| chooser(*rx)),
                    instances: None,
                },
                commands: receiver,
                alarm: alarms[index].clone(),
                others,
                lanes_out,
                lanes_in,
                busy_ns: busy_ns.clone(),
                tuning_ns: tuning_ns.clone(),
            };
            let table_bytes = setup.rx.classifier.flows().bytes();
            let (pinned, answer) = channel();
            let (populated, ready) = channel();
            let seen = Arc::new(Seen::default());
            let own = seen.clone();
            let devices = memories.devices().cloned();
            let thread = std::thread::Builder::new().name(format!("sluice-{core}")).spawn(move || {
                let _ = own.id.set(rustix::thread::gettid());
                run(setup, core, devices.as_deref(), &pinned, &populated);
            });
            let failed = |source| PlaneError::Thread { core, source };
            let thread = thread.map_err(failed)?;
            seen.wait_for(index, core, &answer)?.map_err(failed)?;
            begun.push((ready, PATIENCE + Duration::from_secs((table_bytes / MEMORY_RATE) as u64)));
            links.push(Link { core, roles, commands, alarm: alarms[index].clone(), thread: Some(thread), busy_ns, seen });
        }
        // All at once: each has its own memory.
        for (index, (link, (ready, patience))) in links.iter().zip(begun).enumerate() {
            link.seen.wait_with(index, link.core, &ready, LOOK, patience)?;
        }
        Ok(Self {
            links,
            rx,
            division: Division::new(config, n, tx, wakeup),
            memories,
            table,
            registry,
            clock,
            cores: HashMap::new(),
            slots: manager.max_nfs,
            in_flight: HashMap::new(),
            hands_over: config.sched.handover,
            tuning_ns,
            tables: Arc::default(),
            kept: HashMap::new(),
            former: Vec::new(),
            collecting: Collecting::Nothing,
            lingering: Vec::new(),
            rounds: (0, None),
        })
    }

    pub fn memories(&self) -> &Memories {
        &self.memories
    }

    /// The range that all frames lie in.
    pub fn arena(&self) -> &Arena {
        self.memories.whole()
    }

    /// The arena that an NF with this place maps, if it maps one.
    pub fn memory_of(&self, place: &Place) -> Option<&TenantMemory> {
        self.memories.get(place.memory)
    }

    /// The arena that a port receives into, by this configuration.
    pub fn memory_for_port(&self, config: &Config, port: &model::Port) -> u8 {
        self.memories.for_port(config, port)
    }

    /// Free frames, in the pools and in the threads' caches; inexact while threads run.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn free_frames(&self) -> Result<usize, PlaneError> {
        let cached: u64 = self.snapshots()?.iter().map(|snapshot| snapshot.frames_cached).sum();
        Ok(self.memories.iter().map(|memory| memory.pool.available()).sum::<usize>() + cached as usize)
    }

    pub fn table(&self) -> &FrameTable {
        &self.table
    }

    pub fn registry(&self) -> &Arc<PathRegistry> {
        &self.registry
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Time that the packet threads spent measuring and deciding, in nanoseconds.
    pub fn tuning_ns(&self) -> &Arc<AtomicU64> {
        &self.tuning_ns
    }

    /// The number of each Rx thread, its command channel, and its alarm.
    pub fn rx_commands(&self) -> Vec<(usize, Sender<Command>, Arc<Alarm>)> {
        let of = |rx: &RxThread| (rx.thread, self.links[rx.thread].commands.clone(), self.links[rx.thread].alarm.clone());
        self.rx.iter().map(of).collect()
    }

    pub fn threads(&self) -> usize {
        self.links.len()
    }

    pub fn thread_infos(&self) -> Vec<ThreadInfo> {
        self.links.iter().map(|l| ThreadInfo { core: l.core, roles: l.roles, busy_ns: l.busy_ns.load(Ordering::Relaxed) }).collect()
    }

    /// Sends a thread a command, to run between two rounds.
    pub(crate) fn send(&self, thread: usize, act: impl FnOnce(&mut Worker) + Send + 'static) {
        let link = &self.links[thread];
        // A thread that has ended does nothing; a wait for its answer notices that.
        let _ = link.commands.send(Box::new(act));
        link.alarm.raise();
    }

    fn send_all(&self, act: impl Fn(&mut Worker) + Clone + Send + 'static) {
        (0..self.links.len()).for_each(|thread| self.send(thread, act.clone()));
    }

    /// Sends a thread a command with an answer, and returns without waiting.
    fn begin<T: Send + 'static>(&self, thread: usize, act: impl FnOnce(&mut Worker) -> T + Send + 'static) -> Receiver<T> {
        let (to, answer) = channel();
        self.send(thread, move |worker| {
            let _ = to.send(act(worker));
        });
        answer
    }

    fn wait_for<T>(&self, thread: usize, answer: &Receiver<T>) -> Result<T, PlaneError> {
        let link = &self.links[thread];
        link.seen.wait_for(thread, link.core, answer)
    }

    fn ask<T: Send + 'static>(&self, thread: usize, act: impl FnOnce(&mut Worker) -> T + Send + 'static) -> Result<T, PlaneError> {
        self.wait_for(thread, &self.begin(thread, act))
    }

    fn ask_all<T: Send + 'static>(&self, act: impl Fn(&mut Worker) -> T + Clone + Send + 'static) -> Result<Vec<T>, PlaneError> {
        let answers: Vec<_> = (0..self.links.len()).map(|thread| self.begin(thread, act.clone())).collect();
        answers.into_iter().enumerate().map(|(i, answer)| self.wait_for(i, &answer)).collect()
    }

    /// Gives all threads new tables. They use them within a round of their loops, and before any
    /// later command. Paths whose NFs, chains or ports are gone end, and their flows are decided
    /// anew; all flows are if the rules differ.
    pub fn use_tables(&mut self, tables: &Arc<Tables>) {
        let former = std::mem::replace(&mut self.tables, tables.clone());
        self.registry.end(&ends(&former, tables), Some(tables.generation));
        let anew = former.rules.rules() != tables.rules.rules();
        let new = tables.clone();
        self.send_all(move |worker| worker.use_tables(new.clone(), anew));
        self.former.push((self.fence(), former));
    }

    /// Keeps what a feature has given the threads for a service. The former object is freed when no
    /// thread uses it: send the new one to its users before this call.
    pub(crate) fn keep(&mut self, service: u16, what: Arc<dyn Any + Send + Sync>) {
        if let Some(former) = self.kept.insert(service, what) {
            self.former.push((self.fence(), former));
        }
    }

    /// Frees former tables and ended paths that no thread uses. Does not wait; call it again.
    pub fn collect(&mut self) {
        self.former.retain_mut(|(fence, _)| !fence.is_passed());
        let mut collecting = std::mem::replace(&mut self.collecting, Collecting::Nothing);
        if let Collecting::Ended(_, fence) | Collecting::Hidden(_, fence) = &mut collecting
            && !fence.is_passed()
        {
            self.collecting = collecting;
            return;
        }
        self.collecting = match collecting {
            Collecting::Ended(ended, _) => {
                // No thread admits packets to them any more, so those inside only become fewer.
                let paths = ended.iter().filter_map(|number| Some((*number, &self.registry.get(*number)?.moves)));
                let left = self.table.left(paths);
                let (hidden, inside): (Vec<u32>, Vec<u32>) = ended.into_iter().partition(|number| left.contains(number));
                self.lingering = inside;
                self.registry.hide(&hidden);
                // A thread that has just taken a path's last packet may still use the path.
                Collecting::Hidden(hidden, self.fence())
            }
            Collecting::Hidden(hidden, _) => {
                // SAFETY: all packet threads have begun another round since the paths were hidden,
                // or have ended; only the caller of this function looks paths up otherwise.
                unsafe { self.registry.free(&hidden) };
                Collecting::Nothing
            }
            Collecting::Nothing => {
                let mut ended = self.registry.take_ended();
                ended.append(&mut self.lingering);
                if ended.is_empty() { Collecting::Nothing } else { Collecting::Ended(ended, self.fence()) }
            }
        };
    }

    pub fn is_collected(&self) -> bool {
        self.former.is_empty() && self.lingering.is_empty() && matches!(self.collecting, Collecting::Nothing)
    }

    pub fn rx(&self) -> &[RxThread] {
        &self.rx
    }

    /// Assigns an NF a slot on the page of a core, which the NFs of one tenant share.
    ///
    /// # Errors
    /// [`PlaneError::NoSlot`] if there is none left; [`PlaneError::Memory`],
    /// [`PlaneError::NoMemory`].
    pub fn place(&mut self, core: usize, tenant: Option<String>) -> Result<Place, PlaneError> {
        let memory = self.provide_one(&Holder::Tenant(tenant.clone()))?;
        let place = self.take_slot((core, tenant), memory)?;
        self.memories.share(memory);
        Ok(place)
    }

    /// The same for a program that maps nothing.
    ///
    /// # Errors
    /// As [`DataPlane::place`].
    pub fn place_foreign(&mut self, core: usize) -> Result<Place, PlaneError> {
        self.take_slot((core, None), NO_ARENA)
    }

    fn take_slot(&mut self, key: (usize, Option<String>), memory: u8) -> Result<Place, PlaneError> {
        let core = key.0;
        if !self.cores.contains_key(&key) {
            let (memory, page) = CorePage::create(self.slots, self.hands_over)?;
            self.cores.insert(key.clone(), Core { memory, page, used: Vec::new() });
        }
        let slots = self.slots;
        let entry = self.cores.get_mut(&key).expect("it was just put there");
        let slot = match entry.used.iter().position(|used| !used) {
            Some(slot) => slot,
            None if entry.used.len() < slots as usize => {
                entry.used.push(false);
                entry.used.len() - 1
            }
            None => return Err(PlaneError::NoSlot { core, slots }),
        };
        entry.used[slot] = true;
        entry.page.reset(slot as u32);
        Ok(Place { page: entry.page.clone(), slot: slot as u32, memory, key })
    }

    /// Frees the slot of an NF whose process has ended and which no thread has.
    pub fn vacate(&mut self, place: &Place) {
        self.memories.leave(place.memory);
        if let Some(entry) = self.cores.get_mut(&place.key) {
            entry.page.reset(place.slot);
            entry.used[place.slot as usize] = false;
        }
    }

    /// The memory of a place's page, whose descriptor goes to the NF.
    pub fn page_memory(&self, place: &Place) -> Option<&SharedMemory> {
        self.cores.get(&place.key).map(|c| &c.memory)
    }

    /// Makes a region and gives its rings to the threads. On return the NF may be welcomed.
    /// `wakeup` is its wake policy, if it is not woken for each packet.
    ///
    /// # Errors
    /// [`PlaneError::Memory`], [`PlaneError::Silent`].
    #[allow(clippy::too_many_arguments)]
    pub fn attach(
        &mut self,
        number: u16,
        name: &str,
        service: u16,
        core: usize,
        poll: bool,
        capacity: u32,
        place: &Place,
        priority: f64,
        wakeup: Option<Rules>,
    ) -> Result<Arc<NfHandle>, PlaneError> {
        let layout = RegionLayout::new(self.links.len() as u32, capacity).expect("the configuration checks the ring size");
        let region = Region::create(layout)?;
        let (page, slot) = (place.page.clone(), place.slot);
        let threads = self.links.len();
        let in_flight = self.in_flight.entry(number).or_default().clone();
        in_flight.share(self.division.sharers);
        let name = name.into();
        let handle = NfHandle::new(number, name, service, core, poll, region, page, slot, threads, in_flight, priority, wakeup);
        // Relaxed: a channel passes the handle to the threads.
        handle.memory.store(place.memory, Ordering::Relaxed);
        let (drains, wakes) = (self.division.drains(number), self.division.wakes(core));
        let answers: Vec<_> = (0..self.links.len())
            .map(|thread| {
                let producer = handle.region.rx_producer(thread as u32).expect("there is a ring for each thread");
                let consumer = (thread == drains).then(|| handle.region.tx_consumer());
                let handle = handle.clone();
                self.begin(thread, move |worker| worker.attach(&handle, producer, consumer, thread == wakes))
            })
            .collect();
        for (thread, answer) in answers.into_iter().enumerate() {
            self.wait_for(thread, &answer)?;
        }
        Ok(handle)
    }

    /// Which thread drains and wakes an NF.
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// As [`Division::learn_cores`].
    pub fn learn_cores(&mut self, config: &Config) {
        let has_nfs = |core: usize| self.cores.iter().any(|(key, of)| key.0 == core && of.used.contains(&true));
        self.division.learn_cores(config, has_nfs);
    }

    /// Has all threads share each NF from now on: one is there that is not of one shard, and so a
    /// thread may meet packets of another's NFs. To be called before there are paths through it.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn share_nfs(&mut self) -> Result<(), PlaneError> {
        if self.division.sharers == self.links.len() {
            return Ok(());
        }
        self.division.sharers = self.links.len();
        self.in_flight.values().for_each(|in_flight| in_flight.share(self.division.sharers));
        self.meet()
    }

    /// Takes nothing from an NF until the succession is over.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn follow(&self, number: u16, succession: &Arc<Succession>) -> Result<(), PlaneError> {
        let succession = succession.clone();
        self.ask(self.division.drains(number), move |worker| worker.follow(number, succession))
    }

    /// Waits until all threads have done their earlier commands.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn meet(&self) -> Result<(), PlaneError> {
        self.ask_all(|_| ()).map(drop)
    }

    /// The same without waiting.
    pub fn fence(&self) -> Fence {
        let (to, answers) = channel();
        self.send_all(move |_| {
            let _ = to.send(());
        });
        Fence { answers, left: self.links.len() }
    }

    /// Counts rounds that all threads have begun one after the other, at most one per call. The
    /// difference of two calls, less one that may have begun before, have passed between. Does not
    /// wait.
    pub fn rounds(&mut self) -> u64 {
        if self.rounds.1.as_mut().is_none_or(Fence::is_passed) {
            self.rounds = (self.rounds.0 + u64::from(self.rounds.1.is_some()), Some(self.fence()));
        }
        self.rounds.0
    }

    pub fn in_flight(&self, number: u16) -> u32 {
        self.in_flight.get(&number).map_or(0, |in_flight| in_flight.load(Ordering::Relaxed))
    }

    /// Gives a core's sharing to the thread that wakes the core.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn put_sharing(&self, sharing: Box<dyn Sharing>) -> Result<(), PlaneError> {
        self.ask(self.division.wakes(sharing.core()), |worker| worker.put_sharing(sharing))
    }

    /// Borrows a core's sharing, if any. Until it is put back, the NF that has the core keeps it.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn take_sharing(&self, core: usize) -> Result<Option<Box<dyn Sharing>>, PlaneError> {
        self.ask(self.division.wakes(core), move |worker| worker.take_sharing(core))
    }

    /// Removes an NF that is gone from all threads. Returns how many frames came back.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn detach(&self, number: u16) -> Result<usize, PlaneError> {
        self.ask_all(move |worker| worker.detach(number))?;
        let drains = self.division.drains(number);
        let taken = self.ask(drains, move |worker| worker.reclaim(number))?;
        for thread in (0..self.links.len()).filter(|t| *t != drains) {
            self.ask(thread, move |worker| worker.forget(number))?;
        }
        Ok(taken)
    }

    /// The threads that the queues of a port go to. Where each thread gets as many, queues of one
    /// number go to one thread, whatever the port. So do both directions of a flow, if ports spread
    /// flows over their queues alike.
    pub fn owners(&self, port: u16, queues: usize) -> Vec<usize> {
        (0..queues).map(|queue| self.rx[owner(port, queue, queues, self.rx.len())].thread).collect()
    }

    /// Gives the queues of a port to their threads. Returns the counters of each.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn add_port(
        &self,
        port: u16,
        queues: Vec<Box<dyn PortQueue>>,
        overload: Overload,
        tx_waits: bool,
    ) -> Result<Vec<Arc<QueueCounters>>, PlaneError> {
        let owners = self.owners(port, queues.len());
        let mut counters = Vec::with_capacity(queues.len());
        for (queue, owner) in queues.into_iter().zip(owners) {
            let count = Arc::new(QueueCounters::default());
            let owned = OwnedQueue::new(port, queue, overload, count.clone());
            self.ask(owner, |worker| worker.add_queue(owned))?;
            counters.push(count);
        }
        // Last: a packet that left a chain for a port without queues would not be counted.
        self.send_all(move |worker| worker.open_port(port, tx_waits));
        Ok(counters)
    }

    /// Closes a port after sending what waits for it.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn close_port(&self, port: u16) -> Result<LetGo, PlaneError> {
        let answers: Vec<_> = (0..self.links.len())
            .map(|thread| {
                let (to, answer) = channel();
                self.send(thread, move |worker| worker.close_port(port, to));
                answer
            })
            .collect();
        let mut queues = Vec::new();
        for (thread, answer) in answers.iter().enumerate() {
            queues.extend(self.wait_for(thread, answer)?);
        }
        // A queue's end may wait for a disk, a device or the kernel: not on a packet thread, and
        // with a limit.
        let (commands, alarm) = (self.links[0].commands.clone(), self.links[0].alarm.clone());
        let (done, gone) = channel();
        let closer = std::thread::Builder::new().name("sluice-close".into()).spawn(move || {
            let frames: Vec<u32> = queues.iter_mut().flat_map(|queue| queue.leftover()).collect();
            if !frames.is_empty() {
                let _ = commands.send(Box::new(move |worker: &mut Worker| worker.free(frames)));
                alarm.raise();
            }
            drop(queues);
            let _ = done.send(());
        });
        match closer {
            Ok(_) if gone.recv_timeout(LETTING_GO).is_err() => Ok(LetGo::Stuck),
            _ => Ok(LetGo::Done),
        }
    }

    pub fn start_rx(&self) {
        self.send_all(Worker::start_rx);
    }

    /// Stops reception on ports.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn stop_rx(&self) -> Result<(), PlaneError> {
        self.ask_all(Worker::stop_rx).map(drop)
    }

    /// A snapshot of each thread.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, PlaneError> {
        self.ask_all(Worker::snapshot)
    }

    /// Starts a trace, or ends it.
    pub fn trace(&self, trace: Option<&Arc<TraceRequest>>) {
        let trace = trace.cloned();
        self.send_all(move |worker| worker.trace(trace.clone()));
    }

    pub fn stop(&mut self) {
        self.send_all(Worker::stop);
        for link in &mut self.links {
            if let Some(thread) = link.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

pub(crate) fn plane_settings(config: &Config) -> plane::ForwardSettings {
    let (manager, sched) = (&config.manager, &config.sched);
    plane::ForwardSettings {
        sample_every: manager.latency_sample,
        skips_lookups: manager.flow_table == model::FlowTable::Needed,
        backpressure: sched.backpressure,
        ecn: sched.ecn,
        max_violations: manager.max_violations,
        ways: WAYS.min(manager.max_paths as usize),
    }
}

/// A thread's stack of free frames of an arena that this many threads share.
fn stack(memory: &TenantMemory, threads: usize) -> Stack {
    let frames = memory.geometry().frames as usize;
    // A small arena is shared out, so that no thread starves another.
    Stack::new(memory.pool.clone(), if threads == 1 { frames } else { FRAMES_PER_THREAD.min(frames / (2 * threads)) })
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
#[path = "dataplane_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "dataplane_deaths.rs"]
mod deaths;
