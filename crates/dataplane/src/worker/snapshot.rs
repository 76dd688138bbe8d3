//! A packet thread's report of its own state.

use sluice_shm::histogram::Histogram;

use super::{Worker, WorkerSetup};
use crate::classify::flow_table::FlowTableStats;
use crate::decision::Refusal;
use crate::frame::Copied;

/// State of a packet thread, made on request.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Latency from entry to exit since start, by chain number; none if no packet was timed.
    pub latencies: Vec<Option<Histogram>>,
    /// Details of the port queues: (port, (name, value)).
    pub details: Vec<(u16, Vec<(&'static str, f64)>)>,
    /// Latency from generator to sink, by port.
    pub port_latencies: Vec<(u16, Histogram)>,
    /// Per port: whether this thread's queues have no more packets to come.
    pub finished: Vec<(u16, bool)>,
    /// Counters of the flow table.
    pub flows: FlowTableStats,
    /// Packets that no chain let in, by [`Refusal`].
    pub refused: [u64; Refusal::ALL.len()],
    /// Packets that left their chain and were dropped because their port has no owner any more.
    pub unsent: u64,
    /// Duration of connection set-up, by service number.
    pub setups: Vec<(u16, Histogram)>,
    /// Durations of rounds with packets, one of every `ROUNDS_PER_DUTY`, in nanoseconds.
    pub rounds: Histogram,
    /// Frames in this thread's cache.
    pub frames_cached: u64,
    /// Its free frames of each arena and the packets it copied into it, by arena number.
    pub memories: Vec<(usize, Copied)>,
    /// Packets that wait for a port, here or on lanes to here, and packets held at a gate.
    pub waiting: u64,
}

impl Snapshot {
    /// Packets that were dropped at the entry for this reason.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize]
    }
}

impl Worker {
    /// Takes a snapshot of this thread.
    pub fn snapshot(&mut self) -> Snapshot {
        let on_lanes: u32 = self.setup.lanes_in.iter_mut().flatten().map(|lane| lane.available().unwrap_or(0)).sum();
        let WorkerSetup { plane, rx, .. } = &self.setup;
        let held: usize = self.queues.iter().map(|q| q.to - q.from).sum();
        let buffered: usize = plane.out.iter().map(|buffer| buffer.packets.len()).sum();
        Snapshot {
            latencies: plane.latencies.clone(),
            details: self.queues.iter().map(|q| (q.port, q.queue.details())).collect(),
            port_latencies: self.queues.iter().filter_map(|q| Some((q.port, q.queue.latency()?.clone()))).collect(),
            finished: self.queues.iter().map(|q| (q.port, q.queue.is_finished() && q.from == q.to)).collect(),
            flows: rx.classifier.stats(),
            refused: std::array::from_fn(|why| plane.refused[why].get()),
            unsent: plane.unsent.get(),
            setups: rx.instances.as_ref().map_or(Vec::new(), |instances| instances.setups()),
            rounds: self.rounds.clone(),
            frames_cached: plane.frames.held() as u64,
            memories: plane.frames.by_arena(),
            waiting: (held + rx.waiting() + buffered) as u64 + u64::from(on_lanes),
        }
    }
}
