//! The interface of a port's queue, which each kind of port implements.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use sluice_api::drops::PortDrop;
use sluice_api::model::PortCounts;
use sluice_shm::BURST;
use sluice_shm::histogram::Histogram;

use crate::counter::Counter;
use crate::frame::{FrameCache, Packet};

/// One queue of a port. Calls never block, lock, allocate or log.
pub trait PortQueue: Send {
    /// Fills `out` with packets that came in, in frames taken from `frames`, and returns how many;
    /// 0: none at the moment. `now_ns` is the monotonic clock.
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, now_ns: u64) -> usize;

    /// Sends the first packets, as many as it accepts, and returns how many. It frees their frames
    /// (at once or, with a device, once they are sent). The caller keeps the others. The queue
    /// counts packets that it accepts and drops, see [`PortQueue::count_with`].
    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, now_ns: u64) -> usize;

    /// Sets the counters for packets that it drops by itself.
    fn count_with(&mut self, _counters: &Arc<QueueCounters>) {}

    /// Changes the rate at which the whole port makes packets, in packets per second; 0: as fast as
    /// possible. Only for kinds that have such a rate.
    fn pace(&mut self, _rate_pps: f64) {}

    /// Whether no packet will ever come in again: the file is read, or the generator is done.
    fn is_finished(&self) -> bool {
        false
    }

    /// How the thread notices incoming packets, so that it can rest until then.
    fn arrivals(&self) -> Arrivals<'_> {
        if self.is_finished() { Arrivals::Never } else { Arrivals::Looked }
    }

    /// Flushes files or publishes statistics, a few times a second. May make system calls.
    fn housekeeping(&mut self, _now_ns: u64) {}

    /// Values that only this kind of port has, as (name, value) pairs for `sluice stats`.
    fn details(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Frames that this queue still has, as those of packets between it and another queue of the
    /// port; taken when the port is closed and all its queues have been returned. It may wait.
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
    /// No packets come until a command or [housekeeping](PortQueue::housekeeping) changes that.
    Never,
    /// This descriptor becomes readable.
    Readable(BorrowedFd<'a>),
    /// By polling.
    Looked,
}

/// Counters of one queue of a port; only its thread writes them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct QueueCounters {
    /// What the API reports. Packets of a port that closes are entry drops, too.
    pub api: PortCounts<Counter>,
    /// Packets dropped because it had no link. The queue itself counts these and the following.
    pub no_link: Counter,
    /// Packets dropped because they exceeded the interface's MTU.
    pub mtu: Counter,
    /// Bytes of the packets in `no_link` and `mtu`.
    pub lost_bytes: Counter,
    /// Packets that came in and were dropped because they exceeded a frame of packet memory.
    pub oversize: Counter,
    /// Packets due at the configured rate and never made, because the queue was polled too late.
    pub skipped: Counter,
}

impl QueueCounters {
    /// Drops that the queue counts by itself, by reason.
    pub fn own_drops(&self) -> [(&'static str, u64); 3] {
        [
            (PortDrop::Mtu.name(), self.mtu.get()),
            (PortDrop::NoLink.name(), self.no_link.get()),
            (PortDrop::Oversize.name(), self.oversize.get()),
        ]
    }

    /// Packets, and their bytes, that it accepted for sending and dropped.
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
    /// Whether they wait for ever instead of being dropped.
    pub waits: bool,
    /// Whether the port exists.
    pub open: bool,
}

impl TxBuffer {
    /// Whether it has no space for another burst.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.packets.len() + BURST > TX_BUFFER
    }
}
