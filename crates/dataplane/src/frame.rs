//! Ownership of frames, and where free ones are kept.
//!
//! All of it is private memory of the manager: no NF can corrupt it. Each tenant has an arena; a
//! frame's number shifted right is its arena's.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;
pub use sluice_ownership::{DETOUR, DETOURS, FrameTable, Held, MARKS, SAMPLED, TRACED, URGENT, kind_of, owner, with_kind};
use sluice_shm::BURST;
use sluice_shm::arena::Arena;
pub use sluice_shm::arena::Packet;
use sluice_shm::descriptor::Descriptor;

/// Stands for "no arena".
pub const NO_ARENA: u8 = u8::MAX;

/// Most frames that are left for a chain when all others stand still: what 200,000 packets a second
/// need that an NF takes once in a millisecond.
const FRAMES_A_CHAIN: usize = 8 * BURST;

/// Most frames in a batch that passes from a freeing thread to an allocating one.
const BATCH: usize = 256;

/// Least number of free frames that a thread may keep: a burst comes and another goes.
const LEAST: usize = 2 * BURST;

/// Least number of batches of a fresh arena, so that no thread takes a large part of a small one.
const PARTS: usize = 16;

/// Spare places for batches that several threads put back at once.
const SLACK: usize = 64;

/// Up to [`BATCH`] frames, inline: they are exchanged on the packet path, which never allocates.
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

    fn fill_from(&mut self, other: &mut Self) {
        let n = other.len.min(BATCH - self.len);
        other.len -= n;
        self.frames[self.len..self.len + n].copy_from_slice(&other.frames[other.len..other.len + n]);
        self.len += n;
    }
}

/// Free frames of one arena that no thread holds.
///
/// Either a queue of batches, or the memory pool of devices: they take frames from it themselves,
/// and return sent ones there whatever port they came from.
#[derive(Debug)]
pub struct FramePool {
    kind: Kind,
    first: u32,
    frames: usize,
}

/// A pool that devices take frames from and return them to by themselves.
pub trait DevicePool: Send + Sync + std::fmt::Debug {
    /// The first of its frames.
    fn first(&self) -> u32;

    /// All of its frames, free or not.
    fn frames(&self) -> usize;

    /// Free frames, without those that devices hold to receive into.
    fn available(&self) -> usize;

    /// Takes up to `out.len()` frames, and returns how many.
    fn take(&self, out: &mut [u32]) -> usize;

    /// Takes frames back.
    fn put(&self, frames: &[u32]);

    /// Itself, for the ports of these devices.
    fn as_any(&self) -> &dyn std::any::Any;
}

// There are few pools, so the space that the smaller variant wastes does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum Kind {
    Own { batches: ArrayQueue<Batch>, free: AtomicUsize },
    Device(Box<dyn DevicePool>),
}

/// Most free frames that a thread keeps if there are devices, which cannot use these.
const HIGH_WITH_DEVICES: usize = 4 * BATCH;

impl FramePool {
    /// A pool of the frames `0..frames`.
    pub fn new(frames: u32) -> Arc<Self> {
        Self::from(0, frames)
    }

    /// A pool of `frames` frames from `first` on.
    pub fn from(first: u32, frames: u32) -> Arc<Self> {
        // Twice the number of full batches. Beyond that, many are partial, and `put` fills them.
        let batches = ArrayQueue::new((frames as usize).div_ceil(BATCH) * 2 + SLACK);
        let all: Vec<u32> = (first..first + frames).rev().collect();
        // The last batch taken holds the lowest frames; otherwise the order does not matter.
        for batch in all.chunks((frames as usize / PARTS).clamp(BURST, BATCH)) {
            batches.push(Batch::of(batch)).expect("the queue holds all frames");
        }
        Arc::new(Self { kind: Kind::Own { batches, free: AtomicUsize::new(frames as usize) }, first, frames: frames as usize })
    }

    /// A pool over the pool of devices.
    pub fn over(devices: Box<dyn DevicePool>) -> Arc<Self> {
        let (first, frames) = (devices.first(), devices.frames());
        Arc::new(Self { kind: Kind::Device(devices), first, frames })
    }

    /// The first frame of its arena.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// All frames of its arena, free or not.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// The pool of devices, if this is one.
    pub fn devices(&self) -> Option<&dyn DevicePool> {
        match &self.kind {
            Kind::Own { .. } => None,
            Kind::Device(pool) => Some(&**pool),
        }
    }

    /// Free frames that no manager thread holds, without those that devices hold to receive into.
    pub fn available(&self) -> usize {
        match &self.kind {
            // Relaxed: for reports, and for a wait until all are back, which reads it again.
            Kind::Own { free, .. } => free.load(Ordering::Relaxed),
            Kind::Device(pool) => pool.available(),
        }
    }

    /// Adds up to a batch to `free`; false if there is none.
    fn take(&self, free: &mut Vec<u32>) -> bool {
        match &self.kind {
            Kind::Own { batches, free: count } => match batches.pop() {
                Some(batch) => {
                    count.fetch_sub(batch.len, Ordering::Relaxed);
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

    fn put(&self, frames: &[u32]) {
        match &self.kind {
            Kind::Own { batches, free } => {
                free.fetch_add(frames.len(), Ordering::Relaxed);
                let mut left = Batch::of(frames);
                // With as many batches as twice the frames would fill, half of them have space.
                while left.len > 0 && batches.len() >= batches.capacity() - SLACK {
                    let Some(mut oldest) = batches.pop() else { break };
                    oldest.fill_from(&mut left);
                    batches.push(oldest).expect("each thread lacks one place at most");
                }
                if left.len > 0 {
                    batches.push(left).expect("each thread lacks one place at most");
                }
            }
            Kind::Device(pool) => pool.put(frames),
        }
    }
}

/// What a thread copied into an arena, or failed to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Packets copied at the gate, from a port's arena: (packets, bytes).
    pub at_gate: (u64, u64),
    /// Packets that came from another tenant's NF, or out of a program: (packets, bytes).
    pub at_crossing: (u64, u64),
    /// Packets that were dropped because the arena had no free frame for them.
    pub starved: u64,
}

/// A thread's free frames of one arena.
#[derive(Debug)]
pub struct Stack {
    free: Vec<u32>,
    high: usize,
    /// Frames that gates leave for receiving, and for the chains that have less than `least`.
    reserve: usize,
    /// Frames that a chain may hold however many the others hold.
    least: usize,
    /// `None` where there is no arena.
    pool: Option<Arc<FramePool>>,
    /// What was copied into it.
    pub copied: Copied,
}

impl Stack {
    /// A stack that returns batches above `high` free frames, or above `LEAST` if that is more.
    pub fn new(pool: Arc<FramePool>, high: usize) -> Self {
        let high = if pool.devices().is_some() { high.min(HIGH_WITH_DEVICES) } else { high }.max(LEAST);
        Self { free: Vec::with_capacity(high + BATCH), high, reserve: 0, least: 0, pool: Some(pool), copied: Copied::default() }
    }

    fn none() -> Self {
        Self { free: Vec::new(), high: 0, reserve: 0, least: 0, pool: None, copied: Copied::default() }
    }

    #[cold]
    fn refill(&mut self, wanted: usize) {
        while self.free.len() < wanted && self.pool.as_ref().is_some_and(|pool| pool.take(&mut self.free)) {}
    }

    #[cold]
    fn spill(&mut self) {
        // The oldest go: young ones are warm, and a small stack keeps some.
        let n = BATCH.min(self.free.len().div_ceil(2));
        if let Some(pool) = &self.pool {
            pool.put(&self.free[..n]);
        }
        self.free.drain(..n);
    }

    fn release(&mut self) {
        for batch in self.free.chunks(BATCH) {
            self.pool.iter().for_each(|pool| pool.put(batch));
        }
        self.free.clear();
    }
}

/// A manager thread's frames: for each arena a last-in-first-out stack, so that frames in use stay
/// in the CPU caches. Batches move between stack and pool when the stack runs empty or full.
///
/// Frames come from the arena chosen last ([`FrameCache::choose`]), and return to their own.
#[derive(Debug)]
pub struct FrameCache {
    stacks: Vec<Stack>,
    chosen: usize,
    /// The default arena: no NF maps it, or it is the only one.
    usual: usize,
    /// Shift from a frame's number to its arena's.
    shift: u32,
    arena: Arena,
}

impl FrameCache {
    /// A cache of one arena that keeps up to `high` free frames before it returns batches.
    pub fn new(pool: Arc<FramePool>, arena: Arena, high: usize) -> Self {
        // Frame numbers stay below half of the range, so none is in a second arena.
        Self { stacks: vec![Stack::new(pool, high)], chosen: 0, usual: 0, shift: 31, arena }
    }

    /// A cache without arenas, for those of a [`Range`](sluice_shm::arena::Range) of `slots` slots.
    pub fn over(arena: Arena, shift: u32, slots: usize) -> Self {
        Self { stacks: Vec::with_capacity(slots), chosen: 0, usual: 0, shift, arena }
    }

    /// Adds an arena.
    pub fn add(&mut self, number: u8, stack: Stack) {
        while self.stacks.len() <= usize::from(number) {
            self.stacks.push(Stack::none());
        }
        self.stacks[usize::from(number)] = stack;
    }

    /// Returns the free frames of an arena to its pool.
    pub fn empty(&mut self, number: u8) {
        self.stacks.get_mut(usize::from(number)).into_iter().for_each(Stack::release);
    }

    /// Removes an unused arena; its free frames go to its pool.
    pub fn remove(&mut self, number: u8) -> Option<Stack> {
        let mut stack = std::mem::replace(self.stacks.get_mut(usize::from(number))?, Stack::none());
        stack.release();
        Some(stack)
    }

    /// Sets the default arena.
    pub fn set_usual(&mut self, number: u8) {
        (self.usual, self.chosen) = (usize::from(number), usize::from(number));
    }

    /// Takes frames from this arena until [`FrameCache::choose_usual`].
    #[inline(always)]
    pub fn choose(&mut self, number: u8) {
        self.chosen = usize::from(number);
    }

    /// Takes frames from the default arena again.
    #[inline(always)]
    pub fn choose_usual(&mut self) {
        self.chosen = self.usual;
    }

    /// Whether there is more than one arena.
    #[inline(always)]
    pub fn are_several(&self) -> bool {
        self.stacks.len() > 1
    }

    /// Number of a frame's arena.
    #[inline(always)]
    pub fn arena_of(&self, frame: u32) -> u8 {
        (frame >> self.shift) as u8
    }

    /// The range of an arena's frame numbers; with [`NO_ARENA`], of all.
    pub fn frames_of(&self, number: u8) -> Range<u32> {
        let Range { start, end } = self.arena.geometry().first..self.arena.geometry().first + self.arena.geometry().frames;
        if number == NO_ARENA {
            return start..end;
        }
        let first = u32::from(number) << self.shift;
        first.max(start)..first.saturating_add(1 << self.shift).min(end)
    }

    /// The address range of all frames.
    #[inline(always)]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Takes up to `out.len()` frames of the chosen arena, and returns how many.
    #[inline]
    pub fn alloc(&mut self, out: &mut [u32]) -> usize {
        self.alloc_of(self.chosen, out)
    }

    #[inline]
    fn alloc_of(&mut self, number: usize, out: &mut [u32]) -> usize {
        let Some(stack) = self.stacks.get_mut(number) else { return 0 };
        if stack.free.len() < out.len() {
            stack.refill(out.len());
        }
        let n = out.len().min(stack.free.len());
        let rest = stack.free.len() - n;
        for (slot, frame) in out.iter_mut().zip(stack.free[rest..].iter().rev()) {
            *slot = *frame;
        }
        stack.free.truncate(rest);
        n
    }

    /// Returns a frame to its arena.
    #[inline(always)]
    pub fn free(&mut self, frame: u32) {
        let Some(stack) = self.stacks.get_mut((frame >> self.shift) as usize) else { return };
        if stack.free.len() >= stack.high {
            stack.spill();
        }
        stack.free.push(frame);
    }

    /// Frees packets' frames; faster than one by one if there is a single arena.
    #[inline]
    pub fn free_packets(&mut self, packets: &[Packet]) {
        if let [stack] = &mut self.stacks[..] {
            // Half of the stack has space for them: that much is spilled first.
            for some in packets.chunks((stack.high / 2).clamp(1, BATCH)) {
                if stack.free.len() + some.len() > stack.high {
                    stack.spill();
                }
                stack.free.extend(some.iter().map(|packet| packet.frame));
            }
        } else {
            packets.iter().for_each(|packet| self.free(packet.frame));
        }
    }

    /// Copies packets into frames of an arena, at the same offset, and frees their old frames, each
    /// after `moved(old, new)`. Packets in the arena stay. Returns how many, counted from the
    /// first, are there now: fewer than all if the arena ran out of free frames.
    #[inline]
    pub fn bring<T: InFrame>(&mut self, packets: &mut [T], arena: u8, place: CopyPlace, mut moved: impl FnMut(u32, u32)) -> usize {
        let of = usize::from(arena);
        let strays = packets.iter().filter(|packet| self.arena_of(packet.packet().frame) != arena).count();
        if strays == 0 {
            return packets.len();
        }
        let mut fresh = [0; BURST];
        let (mut done, mut bytes, mut copied) = (0, 0, 0);
        for some in packets.chunks_mut(BURST) {
            let wanted = some.iter().filter(|packet| self.arena_of(packet.packet().frame) != arena).count();
            let mut n = self.alloc_of(of, &mut fresh[..wanted]);
            fresh[..n].iter().zip(&*some).for_each(|(frame, packet)| self.arena.prefetch_write(*frame, packet.packet().offset));
            for packet in some {
                let Packet { frame, offset, len } = packet.packet();
                if self.arena_of(frame) != arena {
                    if n == 0 {
                        self.count(of, place, copied, bytes);
                        return done;
                    }
                    n -= 1;
                    self.arena.copy(frame, fresh[n], offset, len);
                    packet.move_to(fresh[n]);
                    moved(frame, fresh[n]);
                    self.free(frame);
                    (copied, bytes) = (copied + 1, bytes + u64::from(len));
                }
                done += 1;
            }
        }
        self.count(of, place, copied, bytes);
        done
    }

    /// As [`FrameCache::bring`], into the chosen arena, for packets that no NF has. Without such an
    /// arena all stay where they are.
    #[inline]
    pub fn bring_in(&mut self, packets: &mut [Packet]) -> usize {
        if !self.are_several() || self.stacks.get(self.chosen).is_none_or(|stack| stack.pool.is_none()) {
            return packets.len();
        }
        self.bring(packets, self.chosen as u8, CopyPlace::Gate, |_, _| {})
    }

    fn count(&mut self, arena: usize, place: CopyPlace, packets: u64, bytes: u64) {
        let Some(stack) = self.stacks.get_mut(arena) else { return };
        let counter = match place {
            CopyPlace::Gate => &mut stack.copied.at_gate,
            CopyPlace::Crossing => &mut stack.copied.at_crossing,
        };
        *counter = (counter.0 + packets, counter.1 + bytes);
    }

    /// Counts packets that an arena had no frames for.
    #[cold]
    pub(crate) fn count_starved(&mut self, arena: u8, packets: usize) {
        if let Some(stack) = self.stacks.get_mut(usize::from(arena)) {
            stack.copied.starved += packets as u64;
        }
    }

    /// Returns all frames, when the thread ends.
    pub fn release(&mut self) {
        self.stacks.iter_mut().for_each(Stack::release);
    }

    /// Sets how many frames of each arena gates leave for receiving, by number; of others, none.
    /// `chains` has an arena's number for each chain whose packets may lie there ([`NO_ARENA`]: the
    /// default one). Gates leave up to 256 for each, or fewer in a small arena, so that one finds
    /// frames when all others stand still, however many they are.
    pub fn reserve(&mut self, received: impl Iterator<Item = (u8, usize)>, chains: impl Iterator<Item = u8>) {
        let mut wanted = vec![(0_usize, 0_usize); self.stacks.len()];
        for (number, frames) in received {
            wanted.get_mut(usize::from(number)).into_iter().for_each(|(receiving, _)| *receiving += frames);
        }
        for number in chains {
            let number = if number == NO_ARENA { self.usual } else { usize::from(number) };
            wanted.get_mut(number).into_iter().for_each(|(_, chains)| *chains += 1);
        }
        for (stack, (receiving, chains)) in self.stacks.iter_mut().zip(wanted) {
            // At most a quarter for each, or these would use up a small arena; what chains get
            // beyond a burst is at most an eighth.
            let most = stack.pool.as_ref().map_or(0, |pool| pool.frames()) / 4;
            let share = |of: usize, at_most: usize| (of / chains.max(1)).min(at_most);
            stack.least = share(most, BURST).max(share(most / 2, FRAMES_A_CHAIN)).max(1);
            // Whichever chain takes more than its least is one of them.
            stack.reserve = receiving.min(most) + (chains.saturating_sub(1) * stack.least).min(most);
        }
    }

    /// How many frames of an arena a chain may hold: as many as this thread finds, in this cache
    /// and in the pool but not in other threads' caches, without [reserved](Self::reserve) ones. If
    /// its share of these is more, that, or half of what there is with the `at_gate` packets that
    /// ask, which have frames already: no chain takes the last ones.
    #[inline]
    pub fn left_of(&self, number: u8, at_gate: usize) -> usize {
        let number = if number == NO_ARENA { self.usual } else { usize::from(number) };
        let Some(Stack { free, pool: Some(pool), reserve, least, .. }) = self.stacks.get(number) else { return 0 };
        let found = free.len() + pool.available();
        let half = ((found + at_gate) / 2).max(at_gate.min(1));
        found.saturating_sub(*reserve).max((*least).min(half))
    }

    /// Frames in this cache, without the pools.
    pub fn held(&self) -> usize {
        self.stacks.iter().map(|stack| stack.free.len()).sum()
    }

    /// Free frames and copies of each arena, by number.
    pub(crate) fn by_arena(&self) -> Vec<(usize, Copied)> {
        self.stacks.iter().map(|stack| (stack.free.len(), stack.copied)).collect()
    }
}

/// Where packets are copied into another arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyPlace {
    /// At the entry of a chain.
    Gate,
    /// Inside a chain.
    Crossing,
}

/// A value that says where a packet lies.
pub trait InFrame {
    /// Where the packet lies.
    fn packet(&self) -> Packet;
    /// The same, with all else that is known of it.
    fn descriptor(&self) -> Descriptor {
        let Packet { frame, offset, len } = self.packet();
        Descriptor { frame, offset, len, ..Descriptor::default() }
    }
    /// Records that it lies in another frame now, at the same offset.
    fn move_to(&mut self, frame: u32);
}

impl InFrame for Packet {
    #[inline(always)]
    fn packet(&self) -> Packet {
        *self
    }

    #[inline(always)]
    fn move_to(&mut self, frame: u32) {
        self.frame = frame;
    }
}

impl InFrame for Descriptor {
    #[inline(always)]
    fn packet(&self) -> Packet {
        Packet { frame: self.frame, offset: self.offset, len: self.len }
    }

    #[inline(always)]
    fn descriptor(&self) -> Descriptor {
        *self
    }

    #[inline(always)]
    fn move_to(&mut self, frame: u32) {
        self.frame = frame;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_shm::arena::{Geometry, Range};

    #[test]
    fn no_frame_is_lost_or_given_twice() {
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 3000, stride: 192 }, false).unwrap();
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
        // `b` keeps its share; the rest came back through the pool.
        let n = a.alloc(&mut again);
        assert_eq!(n + b.held(), 3000);
        again[..n].iter().for_each(|f| a.free(*f));
        b.release();
        assert_eq!(a.alloc(&mut again), 3000);
    }

    #[test]
    fn the_last_frame_freed_is_the_first_taken() {
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 600, stride: 192 }, false).unwrap();
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
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 2000, stride: 192 }, false).unwrap();
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

    /// A cache over three arenas: 0 of 600 frames, none at 1, 2 of 300.
    fn several() -> (FrameCache, [Arc<FramePool>; 2]) {
        let range = Range::reserve(3, 600, 2240).unwrap();
        range.make(0, 600, false).unwrap();
        range.make(2, 300, false).unwrap();
        let pools = [FramePool::from(0, 600), FramePool::from(2 << range.shift(), 300)];
        let mut cache = FrameCache::over(range.whole(), range.shift(), 3);
        cache.add(0, Stack::new(pools[0].clone(), 512));
        cache.add(2, Stack::new(pools[1].clone(), 512));
        (cache, pools)
    }

    #[test]
    fn frames_go_back_to_the_arena_that_they_are_of() {
        let (mut cache, pools) = several();
        let mut got = [0; 900];
        assert_eq!(cache.alloc(&mut got), 600);
        assert!(got[..600].iter().all(|frame| cache.arena_of(*frame) == 0));
        cache.choose(2);
        let mut others = [0; 900];
        assert_eq!(cache.alloc(&mut others), 300, "no frame of another arena is given instead");
        assert!(others[..300].iter().all(|frame| cache.arena_of(*frame) == 2));
        let packets: Vec<Packet> = got[..600].iter().chain(&others[..300]).map(|frame| Packet::fresh(*frame, 60)).collect();
        cache.free_packets(&packets);
        assert_eq!(cache.held() + pools[0].available() + pools[1].available(), 900);
        assert_eq!(cache.alloc(&mut got), 300);
        got[..300].iter().for_each(|frame| cache.free(*frame));
        cache.choose_usual();
        assert_eq!(cache.alloc(&mut got), 600);
        got[..600].iter().for_each(|frame| cache.free(*frame));
        cache.choose(1);
        assert_eq!(cache.alloc(&mut got), 0, "there is no such arena");
        let gone = cache.remove(2).unwrap();
        assert_eq!((gone.free.len(), pools[1].available()), (0, 300));
        cache.release();
        assert_eq!(pools[0].available(), 600);
    }

    #[test]
    fn frames_are_kept_for_receiving_where_ports_receive_and_a_quarter_at_most() {
        let (mut cache, pools) = several();
        assert_eq!([0, 1, 2].map(|arena| cache.left_of(arena, 0)), [600, 0, 300]);
        cache.reserve([(0, 64), (0, 64), (2, 4096), (1, 64), (NO_ARENA, 64)].into_iter(), [0].into_iter());
        assert_eq!([0, 1, 2, NO_ARENA].map(|arena| cache.left_of(arena, 0)), [600 - 128, 0, 225, 600 - 128]);
        cache.reserve([(0, 4096)].into_iter(), [0].into_iter());
        assert_eq!([0, 2].map(|arena| cache.left_of(arena, 0)), [450, 300], "those of other arenas are of no use there");
        let mut got = [0; 500];
        assert_eq!(cache.alloc(&mut got), 500, "they are there to be received into");
        assert_eq!(cache.left_of(0, 0), 50, "a chain gets half, and the rest is not for it");
        got.iter().for_each(|frame| cache.free(*frame));
        cache.release();
        assert_eq!(pools[0].available(), 600);
    }

    #[test]
    fn each_chain_finds_frames_when_all_others_stand_still_and_none_takes_the_last_ones() {
        let (mut cache, _pools) = several();
        // Five chains of the default arena, by name or without; a sixth is alone in another one.
        cache.reserve([(0, 64)].into_iter(), [0, 0, 0, NO_ARENA, NO_ARENA, 2].into_iter());
        assert_eq!([0, 2].map(|arena| cache.left_of(arena, 0)), [600 - 64 - 4 * 30, 300]);
        let (mut held, mut got) = (Vec::new(), [0; 600]);
        for _ in 0..5 {
            let n = cache.left_of(0, 0);
            assert!(n >= 30, "each has its share: {n}");
            assert_eq!(cache.alloc(&mut got[..n]), n);
            held.extend_from_slice(&got[..n]);
        }
        assert!(600 - held.len() >= 64, "and ports receive");
        // Others that came afterwards take half of what there is, again and again.
        for _ in 0..20 {
            let n = cache.left_of(0, 0);
            assert_eq!(cache.alloc(&mut got[..n]), n);
            held.extend_from_slice(&got[..n]);
        }
        assert!(held.len() < 600);
        // A port has read into all that was left: what it has read counts.
        let read = cache.alloc(&mut got);
        assert!(read > 0 && cache.left_of(0, 0) == 0 && cache.left_of(0, BURST) == BURST / 2);
        assert_eq!(cache.left_of(0, 1), 1, "a single packet that has its frame passes");
        // More chains than frames for them.
        cache.reserve([(0, 64)].into_iter(), [2; 200].into_iter());
        assert_eq!([0, 2].map(|arena| cache.left_of(arena, 2)), [1, 300 - 75]);
    }

    #[test]
    fn a_chain_among_stuck_ones_has_more_than_a_burst_in_a_large_arena() {
        let range = Range::reserve(1, 16_384, 2240).unwrap();
        range.make(0, 16_384, false).unwrap();
        let mut cache = FrameCache::over(range.whole(), range.shift(), 1);
        cache.add(0, Stack::new(FramePool::from(0, 16_384), 512));
        cache.reserve([(0, 64)].into_iter(), [0; 8].into_iter());
        let most = cache.left_of(0, 0);
        assert_eq!(most, 16_384 - 64 - 7 * FRAMES_A_CHAIN);
        assert_eq!(cache.alloc(&mut vec![0; most]), most, "the stuck ones have all that they may");
        assert_eq!(cache.left_of(0, 0), FRAMES_A_CHAIN);
        cache.reserve([(0, 64)].into_iter(), [0; 100].into_iter());
        assert_eq!(cache.left_of(0, 0), BURST, "there are many");
    }

    #[test]
    fn packets_are_brought_into_an_arena_as_they_are() {
        let (mut cache, pools) = several();
        let mut frames = [0; 100];
        cache.alloc(&mut frames[..90]);
        cache.choose(2);
        cache.alloc(&mut frames[90..]);
        let mut packets: Vec<Packet> = frames
            .iter()
            .enumerate()
            .map(|(i, frame)| Packet { frame: *frame, offset: (i * 7 % 300) as u16, len: (1 + i * 17) as u16 })
            .collect();
        let bytes = |packet: &Packet, i: usize| (0..packet.len).map(|at| (at as usize * 3 + i) as u8).collect::<Vec<u8>>();
        for (i, packet) in packets.iter().enumerate() {
            assert!(cache.arena().write(packet.frame, packet.offset, &bytes(packet, i)));
        }
        let before = packets.clone();
        assert_eq!(cache.bring(&mut packets, 2, CopyPlace::Gate, |_, _| {}), 100);
        assert_eq!(packets[90..], before[90..], "those that are there already stay");
        let mut seen = std::collections::HashSet::new();
        for (i, (packet, was)) in packets.iter().zip(&before).enumerate() {
            assert_eq!((cache.arena_of(packet.frame), packet.offset, packet.len), (2, was.offset, was.len));
            assert!(seen.insert(packet.frame));
            let mut got = vec![0; packet.len.into()];
            assert!(cache.arena().read(packet.frame, packet.offset, &mut got));
            assert_eq!(got, bytes(was, i));
        }
        let total: u64 = before[..90].iter().map(|packet| u64::from(packet.len)).sum();
        assert_eq!(cache.by_arena()[2].1, Copied { at_gate: (90, total), ..Copied::default() });
        cache.free_packets(&packets);
        cache.release();
        assert_eq!((pools[0].available(), pools[1].available()), (600, 300));
    }

    #[test]
    fn without_free_frames_the_rest_stays_where_it_is() {
        let (mut cache, pools) = several();
        let mut frames = [0; 400];
        cache.alloc(&mut frames);
        let mut packets: Vec<Packet> = frames.iter().map(|frame| Packet::fresh(*frame, 60)).collect();
        assert_eq!(cache.bring(&mut packets, 2, CopyPlace::Crossing, |_, _| {}), 300);
        assert!(packets[..300].iter().all(|packet| cache.arena_of(packet.frame) == 2));
        assert_eq!(packets[300..].iter().map(|packet| packet.frame).collect::<Vec<_>>(), frames[300..]);
        assert_eq!(cache.by_arena()[2].1.at_crossing, (300, 300 * 60));
        cache.free_packets(&packets);
        cache.release();
        assert_eq!((pools[0].available(), pools[1].available()), (600, 300));
    }
}
