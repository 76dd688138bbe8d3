//! A queue of a port, as its packet thread sees it: what each kind of port implements.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use sluice_shm::BURST;
use sluice_shm::histogram::Histogram;

use crate::counter::Counter;
use crate::frame::{FrameCache, Packet};

/// One queue of a port. Calls never block, lock, allocate or log.
pub trait PortQueue: Send {
    /// Fills `out` with packets that came in, in frames taken from `frames`, and says how many. `now_ns` is the monotonic clock.
    /// 0 means: nothing at the moment.
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, now_ns: u64) -> usize;

    /// Sends the first packets that it can take, gives their frames back (at once or, with a device, when they were sent), and says
    /// how many it took. The caller keeps the others. What it took and dropped it has counted, see [`PortQueue::count_with`].
    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, now_ns: u64) -> usize;

    /// Gives it the counters for the packets that it drops by itself.
    fn count_with(&mut self, _counters: &Arc<QueueCounters>) {}

    /// Whether no packet will ever come in again: a file that was read, a generator that has sent its count.
    fn is_finished(&self) -> bool {
        false
    }

    /// How the thread notices packets that come in, so that it can rest until then.
    fn arrivals(&self) -> Arrivals<'_> {
        if self.is_finished() { Arrivals::Never } else { Arrivals::Looked }
    }

    /// Called a few times a second by the thread that has the queue: flush files, publish statistics. May make system calls.
    fn housekeeping(&mut self, _now_ns: u64) {}

    /// What only this kind of port knows, as (name, value) pairs for `sluice stats`.
    fn details(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Frames of packets that lie between this queue and another of the port, taken when all queues of a port that is closed have been
    /// given back.
    fn leftover(&mut self) -> Vec<u32> {
        Vec::new()
    }

    /// Latency from generator to sink, if this queue measures it, in nanoseconds.
    fn latency(&self) -> Option<&Histogram> {
        None
    }
}

/// How packets that come to a queue are noticed.
#[derive(Debug, Clone, Copy)]
pub enum Arrivals<'a> {
    /// None will come, until a command or [housekeeping](PortQueue::housekeeping) changes that.
    Never,
    /// This descriptor becomes readable.
    Readable(BorrowedFd<'a>),
    /// By looking.
    Looked,
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
    pub(crate) fn lost(&self) -> (u64, u64) {
        (self.no_link.get() + self.mtu.get(), self.lost_bytes.get())
    }
}

/// Most packets that wait for an egress port in one thread.
pub const TX_BUFFER: usize = 512;

/// Packets that wait for one egress port.
#[derive(Debug, Default)]
pub struct TxBuffer {
    /// The packets, oldest first.
    pub packets: Vec<Packet>,
    /// Whether they wait for ever rather than be dropped.
    pub waits: bool,
    /// Whether the port is there.
    pub open: bool,
}

impl TxBuffer {
    /// Whether a burst more would be more than it holds.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.packets.len() + BURST > TX_BUFFER
    }
}
