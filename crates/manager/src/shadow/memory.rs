//! The memory of a shadow: an arena, rings and a core page of its own.
//!
//! Nothing else of the daemon knows them: what the shadow writes there reaches no packet, and what
//! it returns is read here only. Descriptors are checked as those of any NF; a frame that it does
//! not have, or a wild cursor, ends it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use sluice_dataplane::capture::{CapturedPacket, PacketOrigin};
use sluice_shm::BURST;
use sluice_shm::arena::{Arena, Geometry};
use sluice_shm::core_page::CorePage;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::doorbell;
use sluice_shm::memory::{Mapping, MemoryError, SharedMemory};
use sluice_shm::page::{Region, RegionLayout};
use sluice_shm::ring::{Consumer, Producer, WildCursor};

use super::compare::Decided;

/// What a shadow did that an NF may not do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("it has set a ring cursor where it cannot be")]
    Cursor,
    #[error("it has returned a packet that it did not have")]
    Frame,
}

impl From<WildCursor> for Broken {
    fn from(_: WildCursor) -> Self {
        Self::Cursor
    }
}

#[derive(Debug)]
pub(crate) struct ShadowMemory {
    arena_memory: SharedMemory,
    arena: Arena,
    region: Region,
    core_memory: SharedMemory,
    core: CorePage,
    rx: Producer,
    tx: Consumer,
    /// Frames that it does not have.
    free: Vec<u32>,
    /// The number of the packet in each frame that it has.
    numbers: Vec<Option<u64>>,
    /// Whether packets were put on its ring since it was woken last.
    has_posted: bool,
    scratch: Vec<u8>,
}

impl ShadowMemory {
    /// Makes the memory of a shadow with rings of this capacity and frames of this stride.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(stride: u32, ring: u32) -> Result<Self, MemoryError> {
        // As many as its rings and its hands hold.
        let frames = 2 * ring + BURST as u32;
        let (arena_memory, arena) = Arena::create(Geometry { first: 0, frames, stride }, false)?;
        let (core_memory, core) = CorePage::create(1, false)?;
        core.reset(0);
        let layout = RegionLayout::new(1, ring).expect("the configuration checks the ring size");
        let region = Region::create(layout)?;
        let (rx, tx) = (region.rx_producer(0).expect("there is one ring"), region.tx_consumer());
        let (free, numbers) = ((0..frames).rev().collect(), vec![None; frames as usize]);
        let scratch = vec![0; stride as usize];
        Ok(Self { arena_memory, arena, region, core_memory, core, rx, tx, free, numbers, has_posted: false, scratch })
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.arena.geometry()
    }

    pub(crate) fn layout(&self) -> RegionLayout {
        self.region.page.layout()
    }

    /// What goes to its process: arena, region, core page.
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.arena_memory.fd(), self.region.memory.fd(), self.core_memory.fd()]
    }

    /// The daemon's mappings of these.
    pub(crate) fn mappings(&self) -> [Arc<Mapping>; 3] {
        [&self.arena_memory, &self.region.memory, &self.core_memory].map(|memory| memory.mapping().clone())
    }

    /// Whether it has no packets.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.numbers.len()
    }

    /// Packets on its ring that it has not taken.
    pub(crate) fn unread(&mut self) -> Result<u32, Broken> {
        Ok(self.rx.capacity() - self.rx.room()?)
    }

    /// Whether it can get a packet.
    pub(crate) fn has_room(&mut self) -> Result<bool, Broken> {
        Ok(!self.free.is_empty() && self.rx.room_for(1)? > 0)
    }

    /// Whether a packet lies in a frame as it does in that of the old version.
    pub(crate) fn fits(&self, packet: &CapturedPacket, origin: &PacketOrigin) -> bool {
        packet.bytes.len() == usize::from(packet.len) && self.geometry().contains(0, origin.descriptor.offset, packet.len)
    }

    /// Gives it a copy of a packet that [fits](Self::fits), if it [has room](Self::has_room).
    pub(crate) fn give(&mut self, number: u64, packet: &CapturedPacket, origin: &PacketOrigin) -> Result<(), Broken> {
        let Some(frame) = self.free.pop() else { return Ok(()) };
        self.arena.write(frame, origin.descriptor.offset, &packet.bytes);
        self.numbers[frame as usize] = Some(number);
        self.rx.write(&[Descriptor { frame, verdict: 0, arg: 0, ..origin.descriptor }])?;
        self.has_posted = true;
        Ok(())
    }

    /// Shows it what it was given, and wakes it if it sleeps.
    pub(crate) fn wake(&mut self) {
        if !std::mem::take(&mut self.has_posted) {
            return;
        }
        self.rx.publish();
        self.core.posted(0).store(self.rx.cursor(), Ordering::Release);
        // SeqCst: the packets are visible before we read how it sleeps. It says that it sleeps,
        // then looks for packets: one of the two sees the other.
        fence(Ordering::SeqCst);
        let page = &self.region.page;
        if page.asleep().load(Ordering::Relaxed) != 0 {
            page.asleep().store(0, Ordering::Relaxed);
            self.core.asleep(0).store(0, Ordering::Relaxed);
            // On a core page without hand-over it sleeps on its own doorbell.
            doorbell::ring(page.doorbell());
        }
    }

    /// Calls `each` with a burst of packets that it has returned; returns how many there were.
    pub(crate) fn collect(&mut self, mut each: impl FnMut(u64, Decided, &[u8])) -> Result<usize, Broken> {
        let mut burst = [Descriptor::default(); BURST];
        let n = self.tx.dequeue(&mut burst)?;
        for descriptor in &burst[..n] {
            let Descriptor { frame, offset, len, verdict, arg, .. } = *descriptor;
            let number = self.numbers.get_mut(frame as usize).and_then(Option::take).ok_or(Broken::Frame)?;
            let caught = usize::from(len).min(self.scratch.len());
            let bytes = &mut self.scratch[..caught];
            let decided = match self.arena.geometry().contains(frame, offset, len) {
                true => Decided::of(verdict, arg),
                false => Decided::Invalid,
            };
            match decided.passes() && self.arena.read(frame, offset, bytes) {
                true => each(number, decided, bytes),
                false => each(number, decided, &[]),
            }
            self.free.push(frame);
        }
        Ok(n)
    }
}
