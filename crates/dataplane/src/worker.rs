//! A packet thread: its loop, and its roles.
//!
//! Each core with a role in the configuration runs one [`Worker`]: a loop with that core's roles.
//! Rx reads bursts from this thread's port queues, finds each packet's path and admits it at its
//! chain's gate. Tx drains the tx rings of this thread's NFs and forwards. Wakeup starts a core
//! whose NFs all sleep. Monitor finds NFs that stand still. A port queue, an NF's tx ring and a
//! flow table belong to one thread each, so the packet path takes no lock.
//!
//! The supervisor queues [`Command`]s and raises a flag, which the loop reads once a round.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use sluice_api::config::{Idle, Sched};
use sluice_shm::BURST;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::histogram::Histogram;
use sluice_shm::ring::{Consumer, Producer};

use crate::alarm::Alarm;
use crate::batch::OwnedQueue;
use crate::end::Drain;
use crate::frame::Packet;
use crate::hooks::{Feeder, Sharing};
use crate::load::Loads;
use crate::plane::Plane;
use crate::pressure::Throttling;
use crate::queue::PortQueue;
use crate::queue::TX_BUFFER;
use crate::roles::{Portion, Roles};
use crate::rx::Rx;
use crate::tx;

mod command;
mod drain;
mod handover;
mod laps;
mod monitor;
#[cfg(any(test, feature = "played"))]
pub mod played;
mod rest;
mod shortlist;
mod snapshot;
mod thefts;
mod watch;

use drain::{MOST_LOOKED_AT, Returns};
use handover::Handover;
use monitor::{MONITOR_NF_NS, MONITOR_NS, Progress};
use rest::{AGE_RESTED, IDLE_NS, nap_exactly};
pub use snapshot::Snapshot;

/// Rounds between two runs of the clock-driven duties.
const ROUNDS_PER_DUTY: u32 = 64;
/// Nanoseconds between two refreshes of the paths that backpressure knows.
const REFRESH_NS: u64 = 10_000_000;
/// Nanoseconds between two housekeepings of ports and publications of statistics.
const HOUSEKEEPING_NS: u64 = 50_000_000;
/// Slots of the flow table, and of a meter of flows, visited for ageing in each duty.
const AGE_BUDGET: usize = 64;
/// Nanoseconds between two comparisons of the cycle counter with the clock.
const RESYNC_NS: u64 = 1_000_000_000;

/// A change to a worker, applied between two rounds.
pub type Command = Box<dyn FnOnce(&mut Worker) + Send>;

/// Configured settings of a packet thread.
#[derive(Debug, Clone)]
pub struct ThreadSettings {
    /// What to do when idle.
    pub idle: Idle,
    /// Milliseconds without a packet after which a flow is removed.
    pub flow_timeout_ms: u64,
    /// Microseconds until a core without movement is checked; see [`sluice_api::config::Manager`].
    pub fallback_wake_us: u64,
    /// Milliseconds after which an NF that returns nothing is stopped; 0: never.
    pub stall_ms: u64,
    /// Scheduling and admission.
    pub sched: Sched,
}

/// The parts of a packet thread.
pub struct WorkerSetup {
    /// Its roles.
    pub roles: Roles,
    /// Whether it decides about backpressure: at most one thread does.
    pub throttles: bool,
    /// The NFs that it measures, if it has the Monitor role.
    pub measures: Portion,
    /// Its settings.
    pub settings: ThreadSettings,
    /// Its forwarding state.
    pub plane: Plane,
    /// Its Rx role.
    pub rx: Rx,
    /// Commands.
    pub commands: Receiver<Command>,
    /// Raised when there are commands; rung to end a rest of this thread.
    pub alarm: Arc<Alarm>,
    /// Alarms of the other threads, to end their rests.
    pub others: Vec<Arc<Alarm>>,
    /// Lanes to the other threads, for packets of ports that they own.
    pub lanes_out: Vec<Option<Producer>>,
    /// Lanes from the other threads.
    pub lanes_in: Vec<Option<Consumer>>,
    /// Nanoseconds with packets to handle, for all to read.
    pub busy_ns: Arc<AtomicU64>,
    /// Nanoseconds spent on measuring and deciding, for all to read.
    pub tuning_ns: Arc<AtomicU64>,
}

/// A packet thread.
pub struct Worker {
    setup: WorkerSetup,
    queues: Vec<OwnedQueue>,
    /// NFs that this thread drains, furthest downstream first.
    drains: Vec<Drain>,
    /// The same by page and slot, if there are more than [`MOST_LOOKED_AT`].
    returns: Returns,
    /// Feeders of NFs whose rings this thread reads.
    feeders: Vec<Box<dyn Feeder>>,
    /// The NFs that the Wakeup role wakes, by page.
    handovers: Vec<Handover>,
    /// Schedulers from outside, by core.
    sharings: Vec<Box<dyn Sharing>>,
    progress: Vec<Progress>,
    monitored_ns: u64,
    /// Durations of rounds with packets, one of every `ROUNDS_PER_DUTY`, in nanoseconds.
    rounds: Histogram,
    rx_stopped: bool,
    is_stopped: bool,
    throttling: Option<Throttling>,
    loads: Loads,
    closing: Vec<Closing>,
    /// Index of an NF that had packets when this thread last tried to rest.
    last_busy: usize,
    /// When it yielded its core, if it did in the last round, in nanoseconds.
    yielded_ns: Option<u64>,
}

/// When clock-driven work is due, in nanoseconds.
#[derive(Debug, Default)]
struct Duties {
    round: u32,
    monitor_at: u64,
    refresh_at: u64,
    housekeeping_at: u64,
    resync_at: u64,
}

impl Duties {
    /// Counts a round. Returns whether it drains all NFs, and whether it reads the clock.
    #[inline(always)]
    fn begin_round(&mut self) -> (bool, bool) {
        self.round = self.round.wrapping_add(1);
        let at = self.round % ROUNDS_PER_DUTY;
        (at == 1, at == 0)
    }
}

struct Closing {
    port: u16,
    until_ns: u64,
    done: Sender<Vec<Box<dyn PortQueue>>>,
}

impl Worker {
    /// A worker without queues and NFs.
    pub fn new(setup: WorkerSetup) -> Self {
        Self {
            throttling: setup.throttles.then(|| Throttling::new(setup.plane.alerts.clone(), &setup.settings.sched)),
            loads: Loads::default(),
            closing: Vec::new(),
            last_busy: 0,
            yielded_ns: None,
            setup,
            queues: Vec::new(),
            drains: Vec::new(),
            returns: Returns::default(),
            feeders: Vec::new(),
            handovers: Vec::new(),
            sharings: Vec::new(),
            progress: Vec::new(),
            monitored_ns: 0,
            rounds: Histogram::default(),
            // Until everything that the first packet needs is in place.
            rx_stopped: true,
            is_stopped: false,
        }
    }

    /// Runs until it is stopped.
    pub fn run(mut self) {
        nap_exactly();
        let mut duties = Duties::default();
        let mut last_work_ns = self.setup.rx.clock.now_ns();
        let mut has_rested = false;
        loop {
            let now = self.setup.rx.clock.now_ns();
            self.setup.plane.now_ns = now;
            let has_commands = self.setup.alarm.take();
            if has_commands && !self.carry_out_commands() {
                return;
            }
            let (is_all, is_sample) = duties.begin_round();
            // A thread that naps has few rounds, and a missed hint would wait for many of them.
            let may_nap = self.setup.settings.idle != Idle::Spin && now.saturating_sub(last_work_ns) > IDLE_NS;
            let work = self.round(is_all || may_nap);
            if work > 0 {
                last_work_ns = now;
            }
            if work > 0 || has_commands {
                self.ring_others(work > 0);
            }
            // If packets ended a rest, they go first: many rounds follow.
            if is_sample || has_rested && work == 0 {
                if work > 0 {
                    self.sample_round(now);
                }
                self.age(now, if has_rested && work == 0 { AGE_RESTED } else { AGE_BUDGET });
                self.do_duties(&mut duties, now);
            }
            has_rested = work == 0 && self.wait(now, now.saturating_sub(last_work_ns));
        }
    }

    /// One round: packets in, on and out. `all`: drains all NFs, not only those with a hint of
    /// packets. Returns how many packets there were.
    #[inline(always)]
    fn round(&mut self, all: bool) -> usize {
        let mut work = self.setup.rx.step(&mut self.setup.plane);
        // What the NFs returned since the last round is prefetched while packets are received.
        if self.drains.len() <= MOST_LOOKED_AT {
            self.drains.iter_mut().for_each(|d| d.consumer.look_ahead());
        }
        if self.setup.roles.rx && !self.rx_stopped {
            let WorkerSetup { plane, rx, .. } = &mut self.setup;
            self.queues.iter_mut().for_each(|owned| work += rx.receive(plane, owned));
        }
        if self.setup.roles.tx {
            work += self.transmit(all);
        }
        work += self.flush();
        if self.setup.plane.timers.are_used() {
            self.setup.plane.wake_late();
        }
        self.setup.plane.announce();
        if self.setup.roles.wakeup {
            self.wake();
        }
        work
    }

    /// Records the duration of a round with packets, as a sample of [`ROUNDS_PER_DUTY`] rounds.
    fn sample_round(&mut self, began_ns: u64) {
        let took = self.setup.rx.clock.now_ns().saturating_sub(began_ns);
        self.rounds.record(took);
        self.setup.busy_ns.fetch_add(took * u64::from(ROUNDS_PER_DUTY), Ordering::Relaxed);
    }

    /// Removes flows without packets for too long, among the next `budget` slots of the flow table,
    /// and of the meter of flows.
    fn age(&mut self, now: u64, budget: usize) {
        let Rx { instances, classifier, .. } = &mut self.setup.rx;
        let (now_ms, timeout_ms) = (now / 1_000_000, self.setup.settings.flow_timeout_ms);
        classifier.age(now_ms, timeout_ms, budget);
        if let Some(instances) = instances {
            instances.age(classifier.table(), now_ms, timeout_ms);
        }
        if let Some(observers) = &mut self.setup.plane.observers {
            observers.age(now, budget);
        }
    }

    #[cold]
    fn do_duties(&mut self, duties: &mut Duties, now: u64) {
        if self.setup.roles.monitor && now >= duties.monitor_at {
            duties.monitor_at = now + MONITOR_NS.max(self.setup.plane.nfs.len() as u64 * MONITOR_NF_NS);
            self.monitor(now);
            let measured = self.setup.rx.clock.now_ns();
            self.loads.measure(measured, &self.setup.plane.nfs, self.setup.measures);
            let took = self.setup.rx.clock.now_ns().saturating_sub(measured);
            self.setup.tuning_ns.fetch_add(took, Ordering::Relaxed);
        }
        if now >= duties.refresh_at {
            duties.refresh_at = now + REFRESH_NS;
            // What was granted ahead is of frames that were left then.
            self.setup.plane.unlooked = 0;
            let Plane { tables, nfs, .. } = &self.setup.plane;
            if let Some(throttling) = &mut self.throttling {
                throttling.refresh(&self.setup.rx.registry, tables, nfs);
            }
            self.sharings.iter_mut().for_each(|sharing| sharing.learn(&self.setup.rx.registry, tables, nfs));
        }
        if !self.setup.plane.inlines.is_empty() {
            self.setup.plane.tick_inline();
        }
        if !self.closing.is_empty() {
            self.finish_closing();
        }
        if self.setup.plane.observers.is_some() {
            self.show_lost();
        }
        if let Some(chains) = self.setup.rx.chains.as_mut().filter(|chains| chains.held() > 0) {
            chains.poll(&mut self.setup.plane);
        }
        if now >= duties.housekeeping_at {
            duties.housekeeping_at = now + HOUSEKEEPING_NS;
            for queue in &mut self.queues {
                queue.queue.housekeeping(now);
                queue.counters.overruns.set(queue.queue.overruns());
            }
            self.feeders.iter_mut().for_each(|feeder| feeder.housekeeping(&mut self.setup.plane, now));
        }
        if now >= duties.resync_at {
            duties.resync_at = now + RESYNC_NS;
            self.setup.rx.clock.resync();
        }
    }

    /// Sends packets that wait for ports: through own queues, or to the owning thread.
    #[inline]
    fn flush(&mut self) -> usize {
        let plane = &mut self.setup.plane;
        let mut work = 0;
        for lane in self.setup.lanes_in.iter_mut().flatten() {
            // Mostly nothing: a look at each of many lanes must cost little.
            if lane.available() == Ok(0) {
                continue;
            }
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
                    _ => tx::drop_waiting(plane, &self.queues, descriptor.arg, std::slice::from_ref(descriptor)),
                }
            }
        }
        for port in 0..plane.out.len() {
            if !plane.out[port].packets.is_empty() {
                work += tx::send(plane, &mut self.queues, &mut self.setup.lanes_out, port as u16);
            }
        }
        work
    }

    /// Starts each core whose NFs all sleep while one has packets.
    #[inline]
    fn wake(&mut self) {
        if let Some(throttling) = &mut self.throttling {
            throttling.step(&self.setup.plane.nfs, self.setup.plane.now_ns);
        }
        for sharing in &mut self.sharings {
            sharing.step(self.setup.plane.now_ns);
        }
        let Plane { nfs, index, now_ns, .. } = &self.setup.plane;
        for handover in &mut self.handovers {
            if handover.looks_at_some(*now_ns) && self.returns.take_moved(handover.page()) {
                handover.note_moved(*now_ns);
            }
            handover.step(nfs, *index, *now_ns);
        }
    }
}
