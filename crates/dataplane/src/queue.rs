//! The interface of a port's queue, which each kind of port implements.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluice_api::drops::PortDrop;
use sluice_api::model::PortCounts;
use sluice_shm::BURST;
use sluice_shm::arena::Arena;
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

    /// Called once, when a packet thread gets the queue: until then, what it writes to stays as it
    /// was. May make system calls.
    fn begin(&mut self) {}

    /// Sets the counters for packets that it drops by itself.
    fn count_with(&mut self, _counters: &Arc<QueueCounters>) {}

    /// Changes the rate at which the whole port makes packets, in packets per second; 0: as fast as
    /// possible. Only for kinds that have such a rate.
    fn pace(&mut self, _rate_pps: f64) {}

    /// Whether no packet will ever come in again: the file is read, or the generator is done.
    fn is_finished(&self) -> bool {
        false
    }

    /// Packets that came in and found no room, since it was opened.
    fn overruns(&self) -> u64 {
        0
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
    /// Packets that came in and found no room, as of the last housekeeping.
    pub overruns: Counter,
    /// Packets due at the configured rate and never made, because the queue was polled too late.
    pub skipped: Counter,
    /// Some of the packets that it dropped by itself, while something looks.
    pub lost_packets: LostPackets,
}

impl QueueCounters {
    /// Drops that the queue counts by itself, by reason.
    pub fn own_drops(&self) -> [(&'static str, u64); 4] {
        [
            (PortDrop::Mtu.name(), self.mtu.get()),
            (PortDrop::NoLink.name(), self.no_link.get()),
            (PortDrop::Oversize.name(), self.oversize.get()),
            (PortDrop::Overrun.name(), self.overruns.get()),
        ]
    }

    /// Packets, and their bytes, that it accepted for sending and dropped.
    pub(crate) fn lost(&self) -> (u64, u64) {
        (self.no_link.get() + self.mtu.get(), self.lost_bytes.get())
    }
}

/// First bytes of a packet in [`LostPackets`].
const KEPT: usize = 128;
/// Stands for a packet in its slot, with its length and the number of bytes that are kept.
const PRESENT: u64 = 1 << 63;

/// The first packet that a queue dropped by itself for each reason since the thread has last taken
/// it. Nothing is kept while nothing looks. Only the queue's thread reads and writes packets.
#[derive(Debug, Default)]
pub struct LostPackets {
    is_watched: AtomicBool,
    slots: [LostSlot; PortDrop::ALL.len()],
}

#[derive(Debug, Default)]
struct LostSlot {
    head: AtomicU64,
    words: [AtomicU64; KEPT / 8],
}

impl LostPackets {
    /// Sets whether packets are kept, from the next one on.
    pub(crate) fn watch(&self, is_watched: bool) {
        // Relaxed, here and below: only one thread uses them.
        self.slots.iter().for_each(|slot| slot.head.store(0, Ordering::Relaxed));
        self.is_watched.store(is_watched, Ordering::Relaxed);
    }

    /// Keeps the beginning of a packet of `len` bytes, unless there is one for this reason.
    #[cold]
    pub fn keep(&self, why: PortDrop, len: usize, head: &[u8]) {
        let slot = &self.slots[why as usize];
        if !self.lacks(why) {
            return;
        }
        let mut bytes = [0u8; KEPT];
        let kept = head.len().min(KEPT);
        bytes[..kept].copy_from_slice(&head[..kept]);
        let (eights, _) = bytes.as_chunks();
        slot.words.iter().zip(eights).for_each(|(to, eight)| to.store(u64::from_le_bytes(*eight), Ordering::Relaxed));
        slot.head.store(PRESENT | (kept as u64) << 32 | len.min(u16::MAX.into()) as u64, Ordering::Relaxed);
    }

    fn lacks(&self, why: PortDrop) -> bool {
        self.is_watched.load(Ordering::Relaxed) && self.slots[why as usize].head.load(Ordering::Relaxed) == 0
    }

    /// As [`LostPackets::keep`], of a packet in a frame.
    #[cold]
    pub fn keep_packet(&self, why: PortDrop, arena: &Arena, packet: &Packet) {
        if !self.lacks(why) {
            return;
        }
        let mut head = [0; KEPT];
        let len = usize::from(packet.len).min(KEPT);
        let there = arena.read(packet.frame, packet.offset, &mut head[..len]);
        self.keep(why, packet.len.into(), if there { &head[..len] } else { &[] });
    }

    /// Takes the packets out: reason, length, first bytes.
    pub(crate) fn take(&self, mut each: impl FnMut(PortDrop, u16, &[u8])) {
        for (why, slot) in PortDrop::ALL.into_iter().zip(&self.slots) {
            let head = slot.head.load(Ordering::Relaxed);
            if head == 0 {
                continue;
            }
            let mut bytes = [0u8; KEPT];
            let (eights, _) = bytes.as_chunks_mut();
            eights.iter_mut().zip(&slot.words).for_each(|(to, word)| *to = word.load(Ordering::Relaxed).to_le_bytes());
            each(why, head as u16, &bytes[..usize::from((head >> 32) as u8).min(KEPT)]);
            slot.head.store(0, Ordering::Relaxed);
        }
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

#[cfg(test)]
mod tests {
    use sluice_shm::arena::Geometry;

    use super::*;

    fn taken(lost: &LostPackets) -> Vec<(PortDrop, u16, Vec<u8>)> {
        let mut all = Vec::new();
        lost.take(|why, len, head| all.push((why, len, head.to_vec())));
        all
    }

    #[test]
    fn one_packet_of_each_reason_is_kept_while_something_looks() {
        let lost = LostPackets::default();
        lost.keep(PortDrop::Mtu, 60, &[1; 60]);
        assert_eq!(taken(&lost), []);
        lost.watch(true);
        lost.keep(PortDrop::Oversize, 70_000, &[2; 300]);
        lost.keep(PortDrop::Oversize, 60, &[3; 60]);
        lost.keep(PortDrop::NoLink, 9, &[]);
        let wanted = [(PortDrop::NoLink, 9, vec![]), (PortDrop::Oversize, u16::MAX, vec![2; KEPT])];
        assert_eq!(taken(&lost), wanted);
        assert_eq!(taken(&lost), [], "once");
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 2, stride: 576 }, false).unwrap();
        let packet = Packet::fresh(1, 61);
        assert!(arena.write(1, packet.offset, &[7; 61]));
        lost.keep_packet(PortDrop::Mtu, &arena, &packet);
        lost.keep_packet(PortDrop::NoLink, &arena, &Packet { frame: 2, ..packet });
        assert_eq!(taken(&lost), [(PortDrop::NoLink, 61, vec![]), (PortDrop::Mtu, 61, vec![7; 61])]);
        lost.keep(PortDrop::Mtu, 60, &[1; 60]);
        lost.watch(false);
        assert_eq!(taken(&lost), [], "nothing looks any more");
    }
}
