//! Frames: who owns each, and where free ones are kept.
//!
//! All of this is in the manager's private memory: no NF can corrupt it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;
pub use sluice_ownership::{FrameTable, Held, SAMPLED, TRACED, URGENT, owner};
use sluice_shm::arena::{Arena, HEADROOM};

/// A packet that the manager holds: a frame and the part of it that is the packet.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packet {
    /// Frame number.
    pub frame: u32,
    /// Where the packet starts in its frame, in bytes.
    pub offset: u16,
    /// Its length in bytes.
    pub len: u16,
}

impl Packet {
    /// A packet of `len` bytes behind the headroom of a fresh frame.
    #[inline(always)]
    pub fn fresh(frame: u32, len: u16) -> Self {
        Self { frame, offset: HEADROOM as u16, len }
    }
}

/// Frames that go from a thread that frees to one that allocates travel in batches of so many.
const BATCH: usize = 256;

/// Up to [`BATCH`] frames. Held in place, not on the heap: batches are exchanged on the packet path, where nothing allocates.
#[derive(Debug)]
struct Batch {
    len: usize,
    frames: [u32; BATCH],
}

impl Batch {
    fn of(from: &[u32]) -> Self {
        let mut batch = Self { len: from.len(), frames: [0; BATCH] };
        batch.frames[..from.len()].copy_from_slice(from);
        batch
    }
}

/// Free frames that no thread holds.
///
/// Either a queue of our own, or, where DPDK devices are used, DPDK's memory pool: a device takes frames from there by itself, and
/// gives them back there when they were sent, whatever port they came in by.
#[derive(Debug)]
pub struct FramePool {
    kind: Kind,
}

// There is one pool, so the room that the smaller kind wastes is of no account.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum Kind {
    /// The batches, and how many frames are in them.
    Own(ArrayQueue<Batch>, AtomicUsize),
    Device(sluice_dpdk::Pool),
}

/// With devices a thread keeps at most so many free frames to itself, for devices can use none of them.
const HIGH_WITH_DEVICES: usize = 4 * BATCH;

impl FramePool {
    /// A pool of the frames `0..frames`.
    pub fn new(frames: u32) -> Arc<Self> {
        // A thread gives a batch back only when it is full, so twice the number of full batches can never overflow.
        let batches = ArrayQueue::new((frames as usize).div_ceil(BATCH) * 2 + 64);
        let all: Vec<u32> = (0..frames).rev().collect();
        // The last batch taken should hold the lowest frames; order is of no other importance.
        for batch in all.chunks(BATCH) {
            batches.push(Batch::of(batch)).expect("the queue holds all frames");
        }
        Arc::new(Self { kind: Kind::Own(batches, AtomicUsize::new(frames as usize)) })
    }

    /// The frames of DPDK's pool.
    pub fn over(devices: sluice_dpdk::Pool) -> Arc<Self> {
        Arc::new(Self { kind: Kind::Device(devices) })
    }

    /// DPDK's pool, if frames come from there.
    pub fn devices(&self) -> Option<&sluice_dpdk::Pool> {
        match &self.kind {
            Kind::Own(..) => None,
            Kind::Device(pool) => Some(pool),
        }
    }

    /// What a thread that calls ports does first; it keeps the answer to its end.
    ///
    /// # Errors
    /// [`sluice_dpdk::DpdkError::Thread`] if DPDK has no place for one more thread.
    pub fn enter_thread(&self) -> Result<Option<sluice_dpdk::PoolThread>, sluice_dpdk::DpdkError> {
        self.devices().map(sluice_dpdk::Pool::enter_thread).transpose()
    }

    /// Adds up to a batch to `free`; false if there is none.
    fn take(&self, free: &mut Vec<u32>) -> bool {
        match &self.kind {
            Kind::Own(batches, available) => match batches.pop() {
                Some(batch) => {
                    // Relaxed: a number for those who look.
                    available.fetch_sub(batch.len, Ordering::Relaxed);
                    free.extend_from_slice(&batch.frames[..batch.len]);
                }
                None => return false,
            },
            Kind::Device(pool) => {
                let mut batch = [0; BATCH];
                let n = pool.take(&mut batch);
                free.extend_from_slice(&batch[..n]);
                return n > 0;
            }
        }
        true
    }

    /// Takes up to a batch back.
    fn put(&self, frames: &[u32]) {
        match &self.kind {
            Kind::Own(batches, available) => {
                // Relaxed: as in `take`. Before the push, so that it never falls below what is there.
                available.fetch_add(frames.len(), Ordering::Relaxed);
                batches.push(Batch::of(frames)).expect("the queue holds all frames");
            }
            Kind::Device(pool) => pool.put(frames),
        }
    }

    /// Frames that are in the pool.
    pub fn available(&self) -> usize {
        match &self.kind {
            Kind::Own(_, available) => available.load(Ordering::Relaxed),
            Kind::Device(pool) => pool.available() as usize,
        }
    }
}

/// Where a manager thread takes frames from and gives them back to: a stack of its own, last in, first out, so that the frames in
/// use are the ones that caches hold, with batches exchanged through the pool when the stack runs empty or full.
#[derive(Debug)]
pub struct FrameCache {
    free: Vec<u32>,
    high: usize,
    pool: Arc<FramePool>,
    arena: Arena,
}

impl FrameCache {
    /// A cache that keeps up to `high` free frames to itself before it gives batches back.
    pub fn new(pool: Arc<FramePool>, arena: Arena, high: usize) -> Self {
        let high = if pool.devices().is_some() { high.min(HIGH_WITH_DEVICES) } else { high }.max(2 * BATCH);
        Self { free: Vec::with_capacity(high + BATCH), high, pool, arena }
    }

    /// The arena that the frames lie in.
    #[inline(always)]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Takes up to `out.len()` frames and says how many.
    #[inline]
    pub fn alloc(&mut self, out: &mut [u32]) -> usize {
        if self.free.len() < out.len() {
            self.refill(out.len());
        }
        let n = out.len().min(self.free.len());
        let rest = self.free.len() - n;
        for (slot, frame) in out.iter_mut().zip(self.free[rest..].iter().rev()) {
            *slot = *frame;
        }
        self.free.truncate(rest);
        n
    }

    #[cold]
    fn refill(&mut self, wanted: usize) {
        while self.free.len() < wanted && self.pool.take(&mut self.free) {}
    }

    /// Gives a frame back.
    #[inline(always)]
    pub fn free(&mut self, frame: u32) {
        if self.free.len() >= self.high {
            self.spill();
        }
        self.free.push(frame);
    }

    /// Gives the frames of packets back, faster than one by one.
    #[inline]
    pub fn free_packets(&mut self, packets: &[Packet]) {
        for some in packets.chunks(BATCH) {
            if self.free.len() + some.len() > self.high {
                self.spill();
            }
            self.free.extend(some.iter().map(|packet| packet.frame));
        }
    }

    #[cold]
    fn spill(&mut self) {
        // The oldest ones go: the young ones are warm.
        self.pool.put(&self.free[..BATCH]);
        self.free.drain(..BATCH);
    }

    /// Gives all frames back, when the thread ends.
    pub fn release(&mut self) {
        for batch in std::mem::take(&mut self.free).chunks(BATCH) {
            self.pool.put(batch);
        }
    }

    /// Frames that this thread can have: those in this cache, and those that no thread holds. Not those in caches of others.
    #[inline]
    pub fn left(&self) -> usize {
        self.free.len() + self.pool.available()
    }

    /// Frames in this cache, not counting the pool.
    pub fn held(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_shm::arena::Geometry;

    #[test]
    fn no_frame_is_lost_or_given_twice() {
        let (_memory, arena) = Arena::create(Geometry { frames: 3000, stride: 192 }, false).unwrap();
        let pool = FramePool::new(3000);
        let mut a = FrameCache::new(pool.clone(), arena.clone(), 512);
        let mut b = FrameCache::new(pool, arena, 512);
        let mut got = vec![0; 2900];
        assert_eq!(a.alloc(&mut got), 2900);
        let mut seen: Vec<u32> = got.clone();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 2900);
        got.iter().for_each(|f| b.free(*f));
        let mut again = vec![0; 4000];
        // b keeps its own share, the rest came back through the pool.
        let n = a.alloc(&mut again);
        assert_eq!(n + b.held(), 3000);
        again[..n].iter().for_each(|f| a.free(*f));
        b.release();
        assert_eq!(a.alloc(&mut again), 3000);
    }

    #[test]
    fn the_last_frame_freed_is_the_first_taken() {
        let (_memory, arena) = Arena::create(Geometry { frames: 600, stride: 192 }, false).unwrap();
        let mut cache = FrameCache::new(FramePool::new(600), arena, 512);
        let mut two = [0; 2];
        cache.alloc(&mut two);
        cache.free(two[0]);
        cache.free(two[1]);
        let mut one = [0; 1];
        cache.alloc(&mut one);
        assert_eq!(one[0], two[1]);
    }

    #[test]
    fn frames_of_packets_come_back_and_the_surplus_goes_to_the_pool() {
        let (_memory, arena) = Arena::create(Geometry { frames: 2000, stride: 192 }, false).unwrap();
        let pool = FramePool::new(2000);
        let (mut a, mut b) = (FrameCache::new(pool.clone(), arena.clone(), 512), FrameCache::new(pool, arena, 512));
        let mut got = vec![0; 2000];
        assert_eq!(a.alloc(&mut got), 2000);
        let packets: Vec<Packet> = got.iter().map(|f| Packet::fresh(*f, 60)).collect();
        packets.chunks(700).for_each(|some| b.free_packets(some));
        assert!(b.held() <= 512);
        let n = a.alloc(&mut got);
        assert_eq!(n + b.held() + a.held(), 2000);
    }
}
