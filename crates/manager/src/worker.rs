//! The manager's packet threads.
//!
//! Each core that the configuration gives to a role runs one [`Worker`]: one loop with the roles of that core. Rx takes bursts from
//! the port queues that are this thread's, finds each packet's path and lets it in at its chain's gate; Tx drains the tx rings of the
//! NFs that are this thread's and forwards; Wakeup starts a core whose NFs all sleep; Monitor looks for NFs that stand still. A port
//! queue, an NF's tx ring and a flow table belong to one thread each, so nothing on the packet path takes a lock.
//!
//! The supervisor changes what a worker does by [`Command`]s: it queues one and raises a flag, which the loop looks at once a round.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use sluice_shm::BURST;
use sluice_shm::clock::Clock;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::histogram::Histogram;
use sluice_shm::ring::{Consumer, Producer};

use crate::asker::{self, Asker};
use crate::chain::{self, Counter, Drop, PathRegistry, Tables};
use crate::classify::Classifier;
use crate::classify::advice::{Advice, Answer};
use crate::classify::flow_table::FlowTableStats;
use crate::classify::key::{FlowKey, SHORT};
use crate::controller::load::Loads;
use crate::director::{Asked, Director, Env, PoolTable, Wanted};
use crate::foreign;
use crate::forward::{Drain, Plane, TX_BUFFER, TraceRequest};
use crate::frame::{Copied, Packet, Stack};
use crate::nf::handle::{NfHandle, Sentence};
use crate::nf::succession::Succession;
use crate::port::PortQueue;
use crate::pressure::Throttling;
use crate::workflow::CoreSchedule;
use sluice_api::config::{Idle, Overload, Sched};

mod command;
mod drain;
mod entry;
pub mod played;
pub mod rest;
mod turns;

use drain::{MOST_LOOKED_AT, Returns};
use entry::{
    Groups, Instead, classify, direct, gather, give_up, instead_of, is_urgent, read, refuse, traceable_of, turn_away, urgent_of,
    wait,
};
use rest::{AGE_RESTED, Alarm, IDLE_NS};
use turns::Turns;

/// Rounds between two looks at the clock-driven duties.
const ROUNDS_PER_DUTY: u32 = 64;
/// Nanoseconds between two rounds of the Monitor role.
const MONITOR_NS: u64 = 1_000_000;
/// The same for each NF, where there are so many that looking at them would take a good part of a core.
const MONITOR_NF_NS: u64 = 2_000;
/// A Monitor that comes so late, in nanoseconds, or four times its usual time, has not had its core, and maybe nobody had his.
const FROZEN_NS: u64 = 250_000_000;
/// Nanoseconds between two looks for new paths that backpressure has to know.
const REFRESH_NS: u64 = 10_000_000;
/// How long packets that wait for a port may keep it from being closed, in nanoseconds.
const CLOSE_NS: u64 = 1_000_000_000;
/// Nanoseconds between two housekeepings of ports and publications of statistics.
const HOUSEKEEPING_NS: u64 = 50_000_000;
/// Flow table entries looked at for ageing in each duty.
const AGE_BUDGET: usize = 64;
/// Most bursts that are read before packets are let in.
const MOST_BURSTS: usize = 8;
/// Rounds that a port is left alone after a burst of which nothing was let in: under overload the time goes to packets inside.
const MAX_BACKOFF: u32 = 32;

/// Which part of the NFs (or of their cores) a thread of a role has, where several have the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// How many threads have the role.
    pub of: usize,
    /// Which of them this is, from 0.
    pub this: usize,
}

impl Part {
    /// Whether number `n` is this thread's.
    #[inline(always)]
    pub fn has(self, n: usize) -> bool {
        self.of == 1 || n % self.of == self.this
    }
}

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles {
    /// Polls port queues, classifies, and opens or closes the gate.
    pub rx: bool,
    /// Drains NFs and forwards.
    pub tx: bool,
    /// Wakes cores.
    pub wakeup: bool,
    /// Looks for NFs that stand still.
    pub monitor: bool,
}

impl Roles {
    /// Their names.
    pub fn names(self) -> Vec<&'static str> {
        [(self.rx, "rx"), (self.tx, "tx"), (self.wakeup, "wakeup"), (self.monitor, "monitor")]
            .into_iter()
            .filter(|(on, _)| *on)
            .map(|(_, name)| name)
            .collect()
    }
}

/// Counters of one queue of a port; its thread alone writes them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct QueueCounters {
    /// Packets that came in.
    pub rx_packets: Counter,
    /// Their bytes.
    pub rx_bytes: Counter,
    /// Packets that went out.
    pub tx_packets: Counter,
    /// Their bytes.
    pub tx_bytes: Counter,
    /// Packets that it did not take in time.
    pub tx_drops: Counter,
    /// Packets refused at the entry of their chain.
    pub entry_drops: Counter,
    /// Packets for it that were dropped because it had no link. The queue counts these and the following by itself.
    pub no_link: Counter,
    /// Packets that were dropped because they were larger than its interface takes.
    pub mtu: Counter,
    /// Bytes of these and of those.
    pub lost_bytes: Counter,
    /// Packets that came and were dropped because they were larger than packet memory holds.
    pub oversize: Counter,
    /// Packets that were due at the queue's rate and were never made, because it was asked too late.
    pub skipped: Counter,
}

impl QueueCounters {
    /// Drops that the queue counts by itself, by reason.
    pub fn own_drops(&self) -> [(&'static str, u64); 3] {
        [("mtu", self.mtu.get()), ("no_link", self.no_link.get()), ("oversize", self.oversize.get())]
    }

    /// Packets, and their bytes, that it was given to send and has dropped.
    fn lost(&self) -> (u64, u64) {
        (self.no_link.get() + self.mtu.get(), self.lost_bytes.get())
    }
}

/// Packets that are read at most before they are let in.
const VECTOR: usize = MOST_BURSTS * BURST;

/// Packets of a port queue, with what was found about each.
struct Batch {
    packets: [Packet; VECTOR],
    paths: [u32; VECTOR],
    /// Flags of their descriptors.
    flags: [u8; VECTOR],
    /// TCP flags, where a director or a waker wants to know.
    tcp: [u8; VECTOR],
    traceable: [bool; VECTOR],
    /// As which of them it came.
    came: [u8; VECTOR],
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            packets: [Packet::default(); VECTOR],
            paths: [0; VECTOR],
            flags: [0; VECTOR],
            tcp: [0; VECTOR],
            traceable: [false; VECTOR],
            came: [0; VECTOR],
        }
    }
}

/// A port queue with its thread.
pub struct OwnedQueue {
    /// Number of the port.
    pub port: u16,
    /// The queue.
    pub queue: Box<dyn PortQueue>,
    /// Its counters.
    pub counters: Arc<QueueCounters>,
    waits: bool,
    /// Number of the arena that its packets are received into, of those that it takes frames for by itself.
    memory: u8,
    batch: Box<Batch>,
    /// What gathered packets are put into.
    spare: Box<Batch>,
    groups: Box<Groups>,
    /// Whether there is a packet that NFs are woken for at once.
    has_urgent: bool,
    /// Keys of the packets whose path is [`chain::WAIT`], by where they came.
    waiting: Box<[(FlowKey, Wanted); VECTOR]>,
    /// Whether the trace that goes on is about packets of one rule: those that are [`Batch::traceable`].
    traces_rule: bool,
    /// Copies of the first bytes of the packets of a burst.
    headers: [[u8; SHORT]; BURST],
    /// Packets that were read last and still have to be let in: `from..to`.
    from: usize,
    to: usize,
    /// How many bursts are read before packets are let in.
    bursts: usize,
    /// Reads that are not gathered, because the last one was not worth it.
    ungathered: u32,
    /// Generation of the tables that decided the paths of the packets held, and what [`Director::moved`] was.
    generation: u32,
    moved: u32,
    backoff: u32,
    skip: u32,
}

impl OwnedQueue {
    /// A queue for a thread.
    pub fn new(port: u16, mut queue: Box<dyn PortQueue>, overload: Overload, counters: Arc<QueueCounters>) -> Self {
        queue.count_with(&counters);
        Self {
            port,
            queue,
            counters,
            waits: overload == Overload::Wait,
            memory: 0,
            batch: Box::default(),
            spare: Box::default(),
            groups: Box::default(),
            has_urgent: false,
            waiting: Box::new([Default::default(); VECTOR]),
            traces_rule: false,
            headers: [[0; SHORT]; BURST],
            from: 0,
            to: 0,
            bursts: 1,
            ungathered: 0,
            generation: 0,
            moved: 0,
            backoff: 0,
            skip: 0,
        }
    }

    /// Receives into the arena that the tables say from now on.
    fn use_memory(&mut self, tables: &Tables) {
        if let Some(Some(port)) = tables.ports.get(usize::from(self.port)) {
            self.memory = port.memory;
        }
    }
}

/// What a thread knows that others want to see, made when asked.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Latency from entry to exit by chain number, since start.
    pub latencies: Vec<Histogram>,
    /// Details of the port queues: port, (name, value).
    pub details: Vec<(u16, Vec<(&'static str, f64)>)>,
    /// Latency from generator to sink by port.
    pub port_latencies: Vec<(u16, Histogram)>,
    /// Ports of which all queues of this thread have no more packets to come.
    pub finished: Vec<(u16, bool)>,
    /// What the flow table counted.
    pub flows: FlowTableStats,
    /// Packets that matched no rule.
    pub no_rule: u64,
    /// Packets refused because their chain lacks an NF.
    pub nf_down: u64,
    /// Packets for which no path could be made.
    pub no_path: u64,
    /// Packets that had left their chain, and were dropped because nobody has their port any more.
    pub unsent: u64,
    /// Packets that an entry of the SDN controller's forbids.
    pub forbidden: u64,
    /// Packets that the SDN controller was to be asked about, and that were dropped without an answer.
    pub unanswered: u64,
    /// Packets dropped because no NF of a pool was idle.
    pub none_idle: u64,
    /// How long setting up a connection took, by number of the service.
    pub setups: Vec<(u16, Histogram)>,
    /// How long rounds with packets took, of each `ROUNDS_PER_DUTY`th, in nanoseconds.
    pub rounds: Histogram,
    /// Frames in this thread's cache.
    pub frames_cached: u64,
    /// Free frames that it has of each arena, and what it copied into it, by number of the arena.
    pub memories: Vec<(usize, Copied)>,
    /// Packets that wait for a port, here or on their way from another thread, and packets held at a gate.
    pub waiting: u64,
}

/// Changes that the supervisor asks for.
pub enum Command {
    /// Use these tables from now on; `true`: flows are decided anew.
    Tables(Arc<Tables>, bool),
    /// Follow this advice from now on.
    Advice(Arc<Advice>),
    /// Let a packet that is held go where this says; without, where the advice says.
    Release(u32, Option<Answer>),
    /// Let this packet go where this says, or the advice, as if it had come in at this port.
    Inject(u16, Option<Answer>, Vec<u8>),
    /// A new NF: this thread's end of its rx ring, and of its tx ring if it drains it.
    Attach(Arc<NfHandle>, Producer, Option<Consumer>, Sender<()>),
    /// Give no more packets to an NF.
    Detach(u16, Sender<()>),
    /// Take back the frames of a dead NF, say how many, and forget it. Only for the thread that drains it.
    Reclaim(u16, Sender<usize>),
    /// Feed a program that knows nothing of Sluice. Only for the thread that drains it.
    Feed(Box<foreign::Hop>, Sender<()>),
    /// Feed it no more, and give back what it was fed with, if it was.
    Unfeed(u16, Sender<Option<Box<foreign::Hop>>>),
    /// Take nothing from this NF until that is over. Only for the thread that drains it.
    Follow(u16, Arc<Succession>, Sender<()>),
    /// Say that what was told before is done.
    Meet(Sender<()>),
    /// Forget an NF.
    Forget(u16, Sender<()>),
    /// This is how a pool stands now.
    Pool(Arc<PoolTable>),
    /// Let so many idle members of a service's pool go.
    Dismiss(u16, u32),
    /// Take over a port queue.
    AddQueue(Box<OwnedQueue>, Sender<()>),
    /// Packets for this port may be sent; `waits`: they are held rather than dropped when it takes none.
    OpenPort(u16, bool),
    /// Send what waits for a port, as far as it goes, and give back its queues: whoever asked drops them, which may take long.
    ClosePort(u16, Sender<Vec<Box<dyn PortQueue>>>),
    /// Give frames back that nobody has any more.
    Free(Vec<u32>),
    /// Have no free frames of an arena; `last`: nor anything else of it, it goes away. What is left of it is given back, to be freed elsewhere.
    DropMemory(u8, bool, Sender<Option<Stack>>),
    /// There is one more arena. From now on frames are taken from `usual` where nobody says from which.
    AddMemory {
        /// Its number.
        number: u8,
        /// Where this thread's free frames of it go.
        stack: Box<Stack>,
        /// Number of the arena that frames are taken from where it is not known for whom.
        usual: u8,
        /// Told when it is done.
        done: Sender<()>,
    },
    /// Begin to read packets from ports.
    StartRx,
    /// Read no more packets from ports.
    StopRx(Sender<()>),
    /// Have this schedule of a core from now on. Only for the thread that wakes the core.
    Schedule(Box<CoreSchedule>, Sender<()>),
    /// Give back the schedule of a core, if it is there.
    Lend(usize, Sender<Option<Box<CoreSchedule>>>),
    /// Trace packets, or no more.
    Trace(Option<Arc<TraceRequest>>),
    /// Tell what you know.
    Snapshot(Sender<Snapshot>),
    /// Give everything back and end.
    Stop,
}

/// What a worker is told to use.
pub struct WorkerSetup {
    /// Its roles.
    pub roles: Roles,
    /// The paths.
    pub registry: Arc<PathRegistry>,
    /// What it forwards with.
    pub plane: Plane,
    /// Its flow table and the reading of headers.
    pub classifier: Classifier,
    /// Who has which NF of a pool.
    pub director: Director,
    /// The clock.
    pub clock: Clock,
    /// Commands.
    pub commands: Receiver<Command>,
    /// Raised when there are some, and rung to end a rest of this thread.
    pub alarm: Arc<Alarm>,
    /// To end rests of the other threads, where they rest.
    pub others: Vec<Arc<Alarm>>,
    /// What to do when idle.
    pub idle: Idle,
    /// Milliseconds after which a flow is forgotten.
    pub flow_timeout_ms: u64,
    /// Microseconds after which a core on which nobody moves is looked after; see there, [`sluice_api::config::Manager`].
    pub fallback_wake_us: u64,
    /// Milliseconds after which an NF that returns nothing is stopped; 0: never.
    pub stall_ms: u64,
    /// To the other threads: packets for ports whose queues they have.
    pub lanes_out: Vec<Option<Producer>>,
    /// From the other threads.
    pub lanes_in: Vec<Option<Consumer>>,
    /// Nanoseconds that this thread had packets to handle, for all to read.
    pub busy_ns: Arc<AtomicU64>,
    /// Nanoseconds that it spent measuring and deciding, for all to read.
    pub tuning_ns: Arc<AtomicU64>,
    /// Who runs, and who is let in.
    pub sched: Sched,
    /// The cores that it wakes, with the Wakeup role.
    pub wakes: Part,
    /// The NFs that it measures, with the Monitor role.
    pub measures: Part,
}

#[derive(Debug, Default, Clone, Copy)]
struct Progress {
    returned: u64,
    since_ns: u64,
    /// Turns that it had had, where they are made from outside.
    turns: u64,
}

/// A manager thread.
pub struct Worker {
    setup: WorkerSetup,
    queues: Vec<OwnedQueue>,
    /// NFs that this thread drains, furthest downstream first.
    drains: Vec<Drain>,
    /// The same by page and slot, where there are more than [`MOST_LOOKED_AT`].
    returns: Returns,
    /// Programs that know nothing of Sluice, which this thread feeds.
    foreign: Vec<foreign::Hop>,
    /// The NFs that the Wakeup role wakes, by page.
    turns: Vec<Turns>,
    /// Schedules of cores whose NFs do not cooperate.
    schedules: Vec<CoreSchedule>,
    progress: Vec<Progress>,
    /// When the Monitor last looked.
    monitored_ns: u64,
    /// How long rounds with packets took, of each `ROUNDS_PER_DUTY`th, in nanoseconds.
    rounds: Histogram,
    rx_stopped: bool,
    /// What the Wakeup role decides with.
    throttling: Option<Throttling>,
    /// What the Monitor role measures.
    loads: Loads,
    closing: Vec<Closing>,
    /// Number of an NF that had packets when this thread last wanted to rest.
    last_busy: usize,
    /// When it offered its core to others, if it did in the last round, in nanoseconds.
    yielded_ns: Option<u64>,
}

/// A port that is to be closed once what waits for it was sent.
struct Closing {
    port: u16,
    until_ns: u64,
    done: Sender<Vec<Box<dyn PortQueue>>>,
}

impl Worker {
    /// A worker that has nothing yet.
    pub fn new(setup: WorkerSetup) -> Self {
        // One decides about backpressure: a decision is about whole chains.
        let throttling = setup.roles.wakeup && setup.wakes.this == 0 && setup.sched.backpressure;
        Self {
            throttling: throttling.then(|| Throttling::new(setup.plane.alerts.clone(), &setup.sched)),
            loads: Loads::default(),
            closing: Vec::new(),
            last_busy: 0,
            yielded_ns: None,
            setup,
            queues: Vec::new(),
            drains: Vec::new(),
            returns: Returns::default(),
            foreign: Vec::new(),
            turns: Vec::new(),
            schedules: Vec::new(),
            progress: Vec::new(),
            monitored_ns: 0,
            rounds: Histogram::default(),
            // Until everything is in place that a first packet needs.
            rx_stopped: true,
        }
    }

    /// Runs until told to stop.
    pub fn run(mut self) {
        let mut round = 0u32;
        let (mut monitor_at, mut refresh_at, mut housekeeping_at, mut resync_at) = (0, 0, 0, 0);
        let mut last_work_ns = self.setup.clock.now_ns();
        let mut has_rested = false;
        loop {
            let now = self.setup.clock.now_ns();
            self.setup.plane.now_ns = now;
            let has_commands = self.setup.alarm.take();
            if has_commands && !self.obey() {
                return;
            }
            let mut work = 0;
            self.setup.director.step(self.setup.classifier.table(), now);
            if self.setup.director.wants_look(now) {
                work += self.look_at_waiting();
            }
            if self.setup.plane.asker.as_ref().is_some_and(|asker| asker.has_pooled()) {
                let WorkerSetup { plane, classifier, registry, director, clock, .. } = &mut self.setup;
                work += direct(classifier, registry, plane, director, clock);
            }
            // What the NFs returned since the last round is fetched while packets are received.
            if self.drains.len() <= MOST_LOOKED_AT {
                self.drains.iter_mut().for_each(|d| d.consumer.look_ahead());
            }
            if self.setup.roles.rx && !self.rx_stopped {
                for i in 0..self.queues.len() {
                    work += self.receive(i);
                }
            }
            if self.setup.roles.tx {
                // A thread that naps has few rounds, and a hint that was missed would wait for many of them.
                let may_nap = self.setup.idle != Idle::Spin && now.saturating_sub(last_work_ns) > IDLE_NS;
                work += self.transmit(round.is_multiple_of(ROUNDS_PER_DUTY) || may_nap);
            }
            work += self.flush();
            if self.setup.plane.timers.are_used() {
                self.setup.plane.wake_late();
            }
            self.setup.plane.announce();
            if self.setup.roles.wakeup {
                self.wake();
            }
            round = round.wrapping_add(1);
            if work > 0 {
                last_work_ns = now;
            }
            if work > 0 || has_commands {
                self.ring_others(work > 0);
            }
            let is_sample = round.is_multiple_of(ROUNDS_PER_DUTY);
            // Where packets have ended a rest, they go first: many rounds follow.
            let is_due = has_rested && work == 0;
            if is_sample || is_due {
                let age = if is_due { AGE_RESTED } else { AGE_BUDGET };
                self.setup.classifier.age(now / 1_000_000, self.setup.flow_timeout_ms, age);
                self.setup.director.age(self.setup.classifier.table(), now / 1_000_000, self.setup.flow_timeout_ms);
                if work > 0 && is_sample {
                    // The share of busy rounds, told in time: one of so many stands for all.
                    let took = self.setup.clock.now_ns().saturating_sub(now);
                    self.rounds.record(took);
                    self.setup.busy_ns.fetch_add(took * u64::from(ROUNDS_PER_DUTY), Ordering::Relaxed);
                }
                if self.setup.roles.monitor && now >= monitor_at {
                    monitor_at = now + MONITOR_NS.max(self.setup.plane.nfs.len() as u64 * MONITOR_NF_NS);
                    self.monitor(now);
                    let measured = self.setup.clock.now_ns();
                    self.loads.measure(measured, &self.setup.plane.nfs, self.setup.measures);
                    let took = self.setup.clock.now_ns().saturating_sub(measured);
                    self.setup.tuning_ns.fetch_add(took, Ordering::Relaxed);
                }
                if now >= refresh_at {
                    refresh_at = now + REFRESH_NS;
                    let Plane { tables, nfs, .. } = &self.setup.plane;
                    if let Some(throttling) = &mut self.throttling {
                        throttling.refresh(&self.setup.registry, tables, nfs);
                    }
                    self.schedules.iter_mut().for_each(|schedule| schedule.learn(&self.setup.registry, tables, nfs));
                }
                if !self.closing.is_empty() {
                    self.finish_closing();
                }
                if self.setup.plane.asker.as_ref().is_some_and(|asker| asker.held() > 0) {
                    asker::tend(&mut self.setup.plane, &self.setup.registry);
                }
                if now >= housekeeping_at {
                    housekeeping_at = now + HOUSEKEEPING_NS;
                    for queue in &mut self.queues {
                        queue.queue.housekeeping(now);
                    }
                    self.foreign.iter_mut().for_each(|hop| hop.housekeeping(&self.setup.plane, now));
                }
                if now >= resync_at {
                    resync_at = now + 1_000_000_000;
                    self.setup.clock.resync();
                }
            }
            has_rested = work == 0 && self.wait(now, now.saturating_sub(last_work_ns));
        }
    }

    /// Takes packets from a port queue, or what is left of the last ones, and lets in what there is room for.
    #[inline]
    fn receive(&mut self, index: usize) -> usize {
        let WorkerSetup { plane, classifier, registry, director, clock, .. } = &mut self.setup;
        let owned = &mut self.queues[index];
        if owned.from == owned.to {
            if owned.skip > 0 {
                owned.skip -= 1;
                return 0;
            }
            if !read(classifier, registry, plane, director, clock, owned) {
                return 0;
            }
        } else if owned.generation != plane.generation || owned.moved != director.moved() {
            classify(classifier, registry, plane, director, clock, owned);
        }
        if owned.moved != director.moved() {
            // A packet has ended a connection that packets before it still went to.
            classify(classifier, registry, plane, director, clock, owned);
        }
        if !owned.waits {
            gather(owned);
        }
        let before = owned.from;
        let mut let_in = 0;
        let mut looked = false;
        while owned.from < owned.to {
            let first = owned.from;
            let number = owned.batch.paths[first];
            let most = owned.to.min(first + BURST);
            let mut end = first + 1;
            while end < most && owned.batch.paths[end] == number {
                end += 1;
            }
            let path = registry.get(number);
            let path = match path.filter(|path| path.goes() || looked && !path.refuses()) {
                Some(path) => path,
                None => {
                    match instead_of(path, number, looked) {
                        Instead::LookAgain => {
                            looked = true;
                            classify(classifier, registry, plane, director, clock, owned);
                            if owned.moved != director.moved() {
                                classify(classifier, registry, plane, director, clock, owned);
                            }
                        }
                        // They come again when there is an NF, or a place for their path.
                        Instead::Refuse(chain::REFUSED | chain::NO_PATH) if owned.waits => break,
                        Instead::Refuse(chain::WAIT) => {
                            wait(plane, director, owned, first, end);
                            owned.from = end;
                        }
                        Instead::Refuse(number) => {
                            refuse(plane, owned, number, first, end);
                            owned.from = end;
                        }
                    }
                    continue;
                }
            };
            if !plane.changed.is_empty() && plane.awaits_former(&path.chain) {
                break;
            }
            let within = path.chain.police.as_ref().map_or(end - first, |bucket| bucket.take(plane.now_ns, end - first));
            let m = plane.admit(path, within);
            if m > 0 {
                let (traceable, urgent) = (traceable_of(owned, first, m), urgent_of(owned, first, m));
                let Batch { packets, flags, .. } = &*owned.batch;
                plane.enter(path, number, &packets[first..first + m], &flags[first..first + m], traceable, urgent);
                let_in += m;
            }
            owned.from += m;
            if m < within {
                if owned.waits {
                    // They come again, and are counted against the promise then.
                    path.chain.police.iter().for_each(|bucket| bucket.give_back(within - m));
                    break;
                }
                let closed = owned.from;
                plane.count_refused(path, within - m);
                turn_away(plane, path, owned, Drop::Entry, closed, first + within);
            }
            if within < end - first {
                turn_away(plane, path, owned, Drop::Policed, first + within, end);
            }
        }
        plane.announce();
        if let_in == 0 {
            owned.backoff = (owned.backoff * 2 + 1).min(MAX_BACKOFF);
            owned.skip = owned.backoff;
        } else {
            owned.backoff = 0;
        }
        owned.from - before
    }

    /// Lets packets go on that waited for an idle NF of a pool, as far as there is one now. Says how many.
    #[cold]
    fn look_at_waiting(&mut self) -> usize {
        let WorkerSetup { plane, classifier, registry, director, clock, .. } = &mut self.setup;
        let mut went = 0;
        while let Some(waiting) = director.next_waiting() {
            let (packet, key) = (waiting.packet, waiting.key);
            if director.is_over(&waiting, plane.now_ns) {
                director.gives_up(&waiting);
                give_up(plane, &waiting);
                continue;
            }
            let tables = plane.tables.clone();
            let Wanted { chain, note, terms, .. } = waiting.wanted;
            let Some(Some(chain)) = tables.chains.get(usize::from(chain)) else {
                director.leaves(&waiting);
                plane.no_rule.add(1);
                plane.tell_refused(packet, &key, None, "no_rule");
                plane.discard(packet.frame);
                continue;
            };
            let generation = plane.generation;
            let hash = classifier.table().hash_of(&key);
            // What is behind it in line goes first.
            let settles = note == 0 && director.is_last(&waiting);
            let (flags, old, has_waited, since_ns) = (waiting.tcp, None, true, clock.now_ns());
            let asked = Asked { key: &key, hash, chain, flags, old, has_waited, settles, note, terms, since_ns };
            let mut env = Env { tables: &tables, registry, flows: classifier.table(), generation, clock };
            let number = director.decide(&asked, &mut env);
            if number == chain::WAIT {
                director.waits_on(&waiting);
                continue;
            }
            match registry.get(number) {
                Some(path) if plane.admit(path, 1) == 1 => {
                    director.leaves(&waiting);
                    let (traceable, urgent) = (u32::from(plane.traces(&key)), u32::from(is_urgent(waiting.tcp)));
                    plane.enter(path, number, &[packet], &[waiting.flags], traceable, urgent);
                    went += 1;
                }
                Some(_) => director.stands(&waiting),
                None => {
                    director.leaves(&waiting);
                    give_up(plane, &waiting);
                }
            }
        }
        went
    }

    /// Sends what waits for ports: through our own queues, or to the thread that has one.
    #[inline]
    fn flush(&mut self) -> usize {
        let plane = &mut self.setup.plane;
        let mut work = 0;
        for lane in self.setup.lanes_in.iter_mut().flatten() {
            let mut burst = [Descriptor::default(); BURST];
            let n = lane.dequeue(&mut burst).unwrap_or(0);
            work += n;
            for descriptor in &burst[..n] {
                match plane.out.get_mut(descriptor.arg as usize) {
                    // Past the mark there is at most what was on the lane when the mark was set.
                    Some(buffer)
                        if (buffer.open || self.closing.iter().any(|c| c.port == descriptor.arg))
                            && (buffer.waits || buffer.packets.len() < TX_BUFFER) =>
                    {
                        buffer.packets.push(Packet { frame: descriptor.frame, offset: descriptor.offset, len: descriptor.len });
                    }
                    _ => {
                        count_lost(&self.queues, &plane.unsent, descriptor.arg, 1);
                        plane.discard(descriptor.frame);
                    }
                }
            }
        }
        for port in 0..plane.out.len() {
            if !plane.out[port].packets.is_empty() {
                work += send(plane, &mut self.queues, &mut self.setup.lanes_out, port as u16);
            }
        }
        work
    }

    /// Starts each core whose NFs all sleep and one of which has packets.
    #[inline]
    fn wake(&mut self) {
        if let Some(throttling) = &mut self.throttling {
            throttling.step(&self.setup.plane.nfs, self.setup.plane.now_ns);
        }
        for schedule in &mut self.schedules {
            schedule.step(self.setup.plane.now_ns);
        }
        let Plane { nfs, index, now_ns, .. } = &self.setup.plane;
        self.turns.iter_mut().for_each(|turns| turns.step(nfs, *index, *now_ns));
    }

    /// Looks for NFs that have packets and make no progress, and past the limit condemns them.
    #[cold]
    fn monitor(&mut self, now: u64) {
        let plane = &mut self.setup.plane;
        let n = plane.nfs.len();
        // An NF that is new has stood still since now, not since the clock began.
        self.progress.resize(n, Progress { returned: 0, since_ns: now, turns: 0 });
        let usual_ns = MONITOR_NS.max(n as u64 * MONITOR_NF_NS);
        if now.saturating_sub(std::mem::replace(&mut self.monitored_ns, now)) > FROZEN_NS.max(4 * usual_ns) {
            // Nobody is blamed for the time in which nobody could do anything.
            self.progress.iter_mut().for_each(|progress| progress.since_ns = now);
        }
        for (number, end) in plane.nfs.iter().enumerate() {
            let Some(end) = end else { continue };
            if !self.setup.measures.has(number) {
                continue;
            }
            let handle = &end.handle;
            let (posted, returned) = handle.posted_returned();
            let progress = &mut self.progress[number];
            if progress.returned != returned || posted <= returned {
                *progress = Progress { returned, since_ns: now, turns: progress.turns };
                continue;
            }
            if [&handle.gate.held, &handle.is_behind, &handle.is_held_up].iter().any(|word| word.load(Ordering::Relaxed)) {
                // It stands still because it was told to, or seems to, or because others do not take what it returns.
                *progress = Progress { returned, since_ns: now, turns: progress.turns };
                continue;
            }
            let turns = handle.load.turns.load(Ordering::Relaxed);
            if handle.governed.load(Ordering::Relaxed) && progress.turns == turns {
                // It waits for its turn, or this one has only begun.
                *progress = Progress { returned, since_ns: now, turns };
                continue;
            }
            let stood_ns = now.saturating_sub(progress.since_ns);
            let is_too_long = self.setup.stall_ms > 0 && stood_ns > self.setup.stall_ms * 1_000_000;
            if is_too_long && !handle.was_never_woken(progress.since_ns) {
                handle.condemn(Sentence::Stalled);
            }
        }
    }

    fn use_tables(&mut self, tables: Arc<Tables>, anew: bool) {
        let depths = tables.depths();
        self.setup.plane.nfs.iter().flatten().for_each(|end| end.handle.place(&depths, tables.downstream_first));
        tables.rules.timers_ns().for_each(|timer_ns| self.setup.plane.timers.learn(timer_ns));
        self.queues.iter_mut().for_each(|owned| owned.use_memory(&tables));
        // The supervisor keeps the old ones until all threads have these: freeing them would take time here.
        // A burst that is being read for each queue, and one behind it.
        let received = tables.ports.iter().flatten().map(|port| (port.memory, port.owners.len() * 2 * BURST));
        self.setup.plane.frames.reserve(received);
        self.setup.plane.tables = tables;
        self.setup.plane.generation = self.setup.plane.generation.wrapping_add(u32::from(anew));
        self.arrange();
    }

    /// Puts the NFs to drain in order.
    fn arrange(&mut self) {
        let plane = &mut self.setup.plane;
        self.schedules.iter_mut().for_each(|schedule| schedule.learn(&self.setup.registry, &plane.tables, &plane.nfs));
        let depths = plane.tables.depths();
        self.drains.sort_by_key(|d| std::cmp::Reverse(depths.get(d.handle.service as usize).copied().unwrap_or(0)));
        self.returns = Returns::default();
        if self.drains.len() > MOST_LOOKED_AT {
            for (i, drain) in self.drains.iter().enumerate() {
                self.returns.add(&drain.handle.core_page, drain.handle.slot, i);
            }
        }
    }

    /// Has the Wakeup role wake an NF, if it is this thread's.
    fn take_turns(&mut self, handle: &Arc<NfHandle>) {
        if !self.setup.roles.wakeup || handle.poll || !self.setup.wakes.has(handle.core) {
            return;
        }
        let now = self.setup.plane.now_ns;
        let at = self.turns.iter().position(|turns| turns.page().is_same(&handle.core_page)).unwrap_or_else(|| {
            self.turns.push(Turns::new(handle.core_page.clone(), self.setup.fallback_wake_us * 1_000));
            self.turns.len() - 1
        });
        self.turns[at].add(handle, now);
    }

    fn forget(&mut self, number: u16) {
        if let Some(end) = self.setup.plane.nfs.get_mut(number as usize)
            && let Some(end) = end.take()
        {
            self.turns.iter_mut().filter(|turns| turns.page().is_same(&end.handle.core_page)).for_each(|t| t.remove(&end.handle));
            self.turns.retain(|turns| !turns.is_empty());
        }
        self.setup.plane.timers.unset(number);
        if let Some(throttling) = &mut self.throttling {
            throttling.forget(number, &self.setup.plane.nfs);
        }
        self.loads.forget(number);
        self.schedules.iter_mut().for_each(CoreSchedule::forget_ways);
        self.arrange();
    }

    /// Drops what waits for a port, and gives back its queues.
    fn close(&mut self, port: u16) -> Vec<Box<dyn PortQueue>> {
        let plane = &mut self.setup.plane;
        if let Some(buffer) = plane.out.get_mut(port as usize) {
            buffer.open = false;
            let lost = std::mem::take(&mut buffer.packets);
            if !lost.is_empty() {
                count_lost(&self.queues, &plane.unsent, port, lost.len());
            }
            for packet in lost {
                plane.table.free(packet.frame);
                plane.frames.free(packet.frame);
            }
        }
        if let Some(mark) = plane.jammed.get(port as usize) {
            mark.store(false, Ordering::Relaxed);
        }
        let mut queues = Vec::new();
        for owned in self.queues.extract_if(.., |q| q.port == port) {
            owned.counters.entry_drops.add((owned.to - owned.from) as u64);
            for packet in &owned.batch.packets[owned.from..owned.to] {
                plane.table.free(packet.frame);
                plane.frames.free(packet.frame);
            }
            queues.push(owned.queue);
        }
        queues
    }

    /// Closes the ports for which nothing waits any more, or whose time is over. What still waits is sent by the usual rounds.
    #[cold]
    fn finish_closing(&mut self) {
        let now = self.setup.plane.now_ns;
        let mut at = 0;
        while let Some(closing) = self.closing.get(at) {
            let empty = self.setup.plane.out.get(closing.port as usize).is_none_or(|b| b.packets.is_empty());
            if !empty && now < closing.until_ns {
                at += 1;
                continue;
            }
            let closing = self.closing.swap_remove(at);
            let queues = self.close(closing.port);
            let _ = closing.done.send(queues);
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let on_lanes: u32 = self.setup.lanes_in.iter_mut().flatten().map(|lane| lane.available().unwrap_or(0)).sum();
        let plane = &self.setup.plane;
        let held: usize = self.queues.iter().map(|q| q.to - q.from).sum();
        let asked = |of: fn(&Asker) -> u64| plane.asker.as_deref().map_or(0, of);
        Snapshot {
            latencies: plane.latencies.clone(),
            details: self.queues.iter().map(|q| (q.port, q.queue.details())).collect(),
            port_latencies: self.queues.iter().filter_map(|q| Some((q.port, q.queue.latency()?.clone()))).collect(),
            finished: self.queues.iter().map(|q| (q.port, q.queue.is_finished() && q.from == q.to)).collect(),
            flows: self.setup.classifier.stats(),
            no_rule: plane.no_rule.get(),
            nf_down: plane.nf_down.get(),
            no_path: plane.no_path.get(),
            unsent: plane.unsent.get(),
            rounds: self.rounds.clone(),
            forbidden: asked(|asker| asker.forbidden.get()),
            unanswered: asked(|asker| asker.unanswered.get()),
            none_idle: plane.none_idle.get(),
            setups: self.setup.director.setups(),
            frames_cached: plane.frames.held() as u64,
            memories: plane.frames.by_arena(),
            waiting: asked(|asker| asker.held() as u64)
                + (held + self.setup.director.waiting() + plane.out.iter().map(|b| b.packets.len()).sum::<usize>()) as u64
                + u64::from(on_lanes),
        }
    }
}

/// Sends what waits for a port. Says how many packets went.
#[inline]
fn send(plane: &mut Plane, queues: &mut [OwnedQueue], lanes: &mut [Option<Producer>], port: u16) -> usize {
    let mut packets = std::mem::take(&mut plane.out[port as usize].packets);
    let waits = plane.out[port as usize].waits;
    let mut sent = 0;
    if let Some(owned) = queues.iter_mut().find(|q| q.port == port) {
        let counters = &owned.counters;
        let before = counters.lost();
        sent = owned.queue.tx_burst(&packets, &mut plane.frames, plane.now_ns);
        let lost = counters.lost();
        if waits {
            // Half of the mark, so that a full buffer is not told of at every other packet.
            let jammed = packets.len() - sent > TX_BUFFER / 2;
            if let Some(mark) = plane.jammed.get(port as usize)
                && mark.load(Ordering::Relaxed) != jammed
            {
                mark.store(jammed, Ordering::Relaxed);
            }
        }
        counters.tx_packets.add(sent as u64 - (lost.0 - before.0));
        counters.tx_bytes.add(packets[..sent].iter().map(|p| u64::from(p.len)).sum::<u64>() - (lost.1 - before.1));
        if sent < packets.len() && !waits && packets.len() + BURST > TX_BUFFER {
            counters.tx_drops.add((packets.len() - sent) as u64);
            for packet in &packets[sent..] {
                plane.frames.free(packet.frame);
            }
            packets.truncate(sent);
        }
    } else {
        let owner = match plane.tables.ports.get(port as usize) {
            Some(Some(info)) if !info.owners.is_empty() => Some(info.owners[plane.index % info.owners.len()]),
            _ => None,
        };
        match owner.and_then(|o| lanes.get_mut(o)) {
            Some(Some(_)) if plane.jammed.get(port as usize).is_some_and(|mark| mark.load(Ordering::Relaxed)) => {}
            Some(Some(lane)) => {
                while sent < packets.len() {
                    let mut burst = [Descriptor::default(); BURST];
                    let n = (packets.len() - sent).min(BURST);
                    for (descriptor, packet) in burst.iter_mut().zip(&packets[sent..sent + n]) {
                        *descriptor = Descriptor {
                            frame: packet.frame,
                            offset: packet.offset,
                            len: packet.len,
                            arg: port,
                            ..Default::default()
                        };
                    }
                    let taken = lane.enqueue(&burst[..n]).unwrap_or(0);
                    sent += taken;
                    if taken < n {
                        break;
                    }
                }
            }
            _ => {
                // Nobody has the port any more.
                sent = packets.len();
                plane.unsent.add(sent as u64);
                for packet in &packets {
                    plane.discard(packet.frame);
                }
            }
        }
    }
    packets.drain(..sent);
    plane.out[port as usize].packets = packets;
    sent
}

/// Counts packets that a port's queue could not be given: as the queue's, if this thread has it.
#[cold]
fn count_lost(queues: &[OwnedQueue], unsent: &Counter, port: u16, n: usize) {
    let own = queues.iter().find(|q| q.port == port).map(|owned| &owned.counters.tx_drops);
    own.unwrap_or(unsent).add(n as u64);
}
