//! A bounded queue of descriptors from one producer process to one consumer process.
//!
//! # Layout
//! | offset | what | written by |
//! |---|---|---|
//! | 0 | `head`: descriptors ever enqueued, modulo 2³² | the producer |
//! | 64 | `tail`: descriptors ever dequeued, modulo 2³² | the consumer |
//! | 128 | `capacity` slots of 16 bytes | the producer |
//!
//! Capacity is a power of two. Either side may be hostile: each keeps its own cursor in private
//! memory and only publishes it. The peer's cursor is cached, and read again when the cached one
//! shows no room (or nothing to read). One out of range is [`WildCursor`], a violation.

#[cfg(not(loom))]
use std::ptr::NonNull;
use std::sync::Arc;

use crate::CACHE_LINE;
use crate::descriptor::{Descriptor, RingSlot};
use crate::memory::Mapping;
use crate::sync::{AtomicU32, Ordering};

const SLOTS: usize = 2 * CACHE_LINE;

/// Largest capacity of a ring.
pub const MAX_CAPACITY: u32 = 1 << 20;

/// The peer's cursor is impossible: more than a capacity ahead, or behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer's cursor is out of range")]
pub struct WildCursor;

/// Bytes of a ring of `capacity` descriptors, a whole number of cache lines.
pub const fn bytes(capacity: u32) -> usize {
    (SLOTS + capacity as usize * size_of::<Descriptor>()).next_multiple_of(CACHE_LINE)
}

/// Whether a capacity is a power of two within the limits.
pub const fn is_valid_capacity(capacity: u32) -> bool {
    capacity.is_power_of_two() && capacity >= 2 && capacity <= MAX_CAPACITY
}

/// What keeps a ring's memory alive.
#[derive(Debug, Clone)]
enum Owner {
    Mapping { _mapping: Arc<Mapping> },
    Private { _memory: Arc<PrivateRing> },
}

#[derive(Debug)]
struct PrivateRing {
    head: Box<AtomicU32>,
    tail: Box<AtomicU32>,
    slots: Box<[RingSlot]>,
}

#[derive(Debug, Clone)]
struct Raw {
    head: *const AtomicU32,
    tail: *const AtomicU32,
    slots: *const RingSlot,
    capacity: u32,
    _owner: Owner,
}

// SAFETY: points to atomics in memory that the owner keeps alive and any thread may touch.
unsafe impl Send for Raw {}

impl Raw {
    fn in_mapping(mapping: &Arc<Mapping>, offset: usize, capacity: u32) -> Option<Self> {
        if !is_valid_capacity(capacity) {
            return None;
        }
        let start = mapping.at(offset, bytes(capacity), CACHE_LINE)?.as_ptr();
        // SAFETY: at() checked that bytes(capacity) bytes are mapped; the parts lie in them.
        let (tail, slots) = unsafe { (start.add(CACHE_LINE), start.add(SLOTS)) };
        Some(Self {
            head: start.cast(),
            tail: tail.cast(),
            slots: slots.cast(),
            capacity,
            _owner: Owner::Mapping { _mapping: mapping.clone() },
        })
    }

    fn private(capacity: u32) -> Self {
        assert!(is_valid_capacity(capacity));
        let memory = Arc::new(PrivateRing {
            head: Box::new(AtomicU32::new(0)),
            tail: Box::new(AtomicU32::new(0)),
            slots: (0..capacity).map(|_| RingSlot::default()).collect(),
        });
        Self {
            head: &raw const *memory.head,
            tail: &raw const *memory.tail,
            slots: memory.slots.as_ptr(),
            capacity,
            _owner: Owner::Private { _memory: memory },
        }
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU32 {
        // SAFETY: aligned, kept alive by the owner, and only ever accessed as an atomic.
        unsafe { &*self.head }
    }

    #[inline(always)]
    fn tail(&self) -> &AtomicU32 {
        // SAFETY: as head().
        unsafe { &*self.tail }
    }

    #[inline(always)]
    fn slot(&self, cursor: u32) -> &RingSlot {
        // SAFETY: the mask keeps the index below capacity, the number of slots.
        unsafe { &*self.slots.add((cursor & (self.capacity - 1)) as usize) }
    }
}

const BURST_LINES: u32 = (crate::BURST * size_of::<Descriptor>() / CACHE_LINE) as u32;
const SLOTS_A_LINE: u32 = (CACHE_LINE / size_of::<Descriptor>()) as u32;

/// The writing end.
#[derive(Debug)]
pub struct Producer {
    raw: Raw,
    head: u32,
    cached_tail: u32,
}

impl Producer {
    /// The producer of the ring at `offset` in a mapping, from its published cursor on. None if the
    /// ring is not inside, not aligned to a cache line, or its capacity is not valid.
    pub fn in_mapping(mapping: &Arc<Mapping>, offset: usize, capacity: u32) -> Option<Self> {
        let raw = Raw::in_mapping(mapping, offset, capacity)?;
        // Relaxed: only this side writes head.
        let head = raw.head().load(Ordering::Relaxed);
        let cached_tail = head.wrapping_sub(capacity); // "full": the first enqueue reads the real one
        Some(Self { raw, head, cached_tail })
    }

    /// Descriptors that the ring holds.
    pub fn capacity(&self) -> u32 {
        self.raw.capacity
    }

    /// Descriptors ever enqueued, modulo 2³².
    #[inline(always)]
    pub fn cursor(&self) -> u32 {
        self.head
    }

    /// Free slots, by a fresh read of the consumer's cursor.
    ///
    /// # Errors
    /// [`WildCursor`] if the consumer claims to have read what was never written.
    #[inline]
    pub fn room(&mut self) -> Result<u32, WildCursor> {
        // Acquire: the consumer's reads of freed slots come before our writes to them.
        let tail = self.raw.tail().load(Ordering::Acquire);
        let used = self.head.wrapping_sub(tail);
        if used > self.raw.capacity {
            return Err(WildCursor);
        }
        self.cached_tail = tail;
        Ok(self.raw.capacity - used)
    }

    /// How many of `n` slots are free, by a read of the consumer's cursor if fewer are known to be.
    /// They stay free until this side writes them.
    ///
    /// # Errors
    /// [`WildCursor`] as [`Producer::room`].
    #[inline(always)]
    pub fn room_for(&mut self, n: usize) -> Result<usize, WildCursor> {
        let mut room = self.raw.capacity - self.head.wrapping_sub(self.cached_tail);
        if (room as usize) < n {
            room = self.room()?;
        }
        Ok(n.min(room as usize))
    }

    /// Upper bound of the descriptors in the ring, without a read of the consumer's cursor.
    #[inline(always)]
    pub fn at_most(&self) -> u32 {
        self.head.wrapping_sub(self.cached_tail)
    }

    /// Fetches the lines of the slots of the burst after the next `ahead` slots. The consumer had
    /// them last.
    #[inline(always)]
    pub fn prefetch(&self, ahead: usize) {
        for line in 0..BURST_LINES {
            crate::prefetch_write(self.raw.slot(self.head.wrapping_add(ahead as u32 + line * SLOTS_A_LINE)));
        }
    }

    /// Fetches the lines of the next `n` slots, at most those of a burst. The consumer had them
    /// last.
    #[inline(always)]
    pub fn prefetch_for(&self, n: usize) {
        let within = self.head % SLOTS_A_LINE;
        for line in 0..(within + n as u32).div_ceil(SLOTS_A_LINE).min(BURST_LINES) {
            crate::prefetch_write(self.raw.slot((self.head - within).wrapping_add(line * SLOTS_A_LINE)));
        }
    }

    /// Fetches the lines of the next slot and of the cursor.
    #[inline(always)]
    pub fn prefetch_next(&self) {
        crate::prefetch_write(self.raw.slot(self.head));
        crate::prefetch_write(self.raw.head());
    }

    /// Enqueues the first descriptors that fit, and returns how many.
    ///
    /// # Errors
    /// [`WildCursor`] as [`Producer::room`]; nothing was enqueued.
    #[inline]
    pub fn enqueue(&mut self, descriptors: &[Descriptor]) -> Result<usize, WildCursor> {
        let n = self.write(descriptors)?;
        self.publish();
        Ok(n)
    }

    /// Writes the first descriptors that fit; returns how many. [`Producer::publish`] shows them.
    ///
    /// # Errors
    /// [`WildCursor`] as [`Producer::room`]; nothing was written.
    #[inline]
    pub fn write(&mut self, descriptors: &[Descriptor]) -> Result<usize, WildCursor> {
        let n = self.room_for(descriptors.len())?;
        for (i, &descriptor) in descriptors[..n].iter().enumerate() {
            self.raw.slot(self.head.wrapping_add(i as u32)).store(descriptor);
        }
        self.head = self.head.wrapping_add(n as u32);
        Ok(n)
    }

    /// The next slots to write: at most `most`, less where the ring ends or is full. After the
    /// writes, call [`Producer::advance`].
    ///
    /// # Errors
    /// [`WildCursor`] as [`Producer::room`].
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn slots(&mut self, most: usize) -> Result<NonNull<[Descriptor]>, WildCursor> {
        let room = self.room_for(most)?;
        let to_end = self.raw.capacity - (self.head & (self.raw.capacity - 1));
        let n = room.min(to_end as usize);
        // SAFETY: the mask keeps the index below the number of slots; the memory is not null.
        let first =
            unsafe { NonNull::new_unchecked(self.raw.slots.add((self.head & (self.raw.capacity - 1)) as usize).cast_mut()) };
        Ok(NonNull::slice_from_raw_parts(first.cast(), n))
    }

    /// Advances over the next `n` written slots; [`Producer::publish`] shows them.
    #[inline(always)]
    pub fn advance(&mut self, n: usize) {
        debug_assert!(n <= (self.raw.capacity - self.head.wrapping_sub(self.cached_tail)) as usize, "slots() gave fewer");
        self.head = self.head.wrapping_add(n as u32);
    }

    /// Shows the consumer all that was written.
    #[inline(always)]
    pub fn publish(&self) {
        // Release: the slots are written before the consumer sees the cursor.
        self.raw.head().store(self.head, Ordering::Release);
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Consumer {
    raw: Raw,
    tail: u32,
    cached_head: u32,
}

impl Consumer {
    /// The consumer of the ring at `offset` in a mapping. None as for [`Producer::in_mapping`].
    pub fn in_mapping(mapping: &Arc<Mapping>, offset: usize, capacity: u32) -> Option<Self> {
        let raw = Raw::in_mapping(mapping, offset, capacity)?;
        // Relaxed: only this side writes tail.
        let tail = raw.tail().load(Ordering::Relaxed);
        Some(Self { raw, tail, cached_head: tail })
    }

    /// Descriptors that the ring holds.
    pub fn capacity(&self) -> u32 {
        self.raw.capacity
    }

    /// Descriptors ever dequeued, modulo 2³².
    #[inline(always)]
    pub fn cursor(&self) -> u32 {
        self.tail
    }

    /// Descriptors that wait, by a fresh read of the producer's cursor.
    ///
    /// # Errors
    /// [`WildCursor`] if the producer claims more than the ring holds.
    #[inline]
    pub fn available(&mut self) -> Result<u32, WildCursor> {
        // Acquire: the producer's writes to the slots come before our reads of them.
        let head = self.raw.head().load(Ordering::Acquire);
        let waiting = head.wrapping_sub(self.tail);
        if waiting > self.raw.capacity {
            return Err(WildCursor);
        }
        self.cached_head = head;
        Ok(waiting)
    }

    /// Reads the producer's cursor if no descriptor is known to wait, and fetches the slots of the
    /// next burst for a later [`Consumer::dequeue`], which reports a wild cursor.
    #[inline(always)]
    pub fn look_ahead(&mut self) {
        if self.known() == 0 {
            let _ = self.available();
        }
        self.prefetch_known();
    }

    /// Fetches the lines of the next burst's slots that are known to be written: the producer keeps
    /// the line that it is writing.
    #[inline(always)]
    pub fn prefetch_known(&self) {
        let lines = self.known() / SLOTS_A_LINE;
        for line in 0..BURST_LINES {
            // No branch on what another core wrote: mispredicted, it would cost the wait for it.
            let slot = std::ptr::from_ref(self.raw.slot(self.tail.wrapping_add(line * SLOTS_A_LINE)));
            crate::prefetch_at(if line < lines { slot.cast() } else { self.raw.tail.cast() });
        }
    }

    /// Descriptors that are known to wait without a read of the producer's cursor.
    #[inline(always)]
    pub fn known(&self) -> u32 {
        self.cached_head.wrapping_sub(self.tail)
    }

    /// Dequeues up to `out.len()` descriptors into `out`; returns how many.
    ///
    /// # Errors
    /// [`WildCursor`] as [`Consumer::available`]; nothing was dequeued.
    #[inline]
    pub fn dequeue(&mut self, out: &mut [Descriptor]) -> Result<usize, WildCursor> {
        let n = self.read(out)?;
        if n > 0 {
            self.release();
        }
        Ok(n)
    }

    /// Reads up to `out.len()` descriptors into `out`; returns how many. [`Consumer::release`]
    /// frees their slots.
    ///
    /// # Errors
    /// [`WildCursor`] as [`Consumer::available`]; nothing was read.
    #[inline]
    pub fn read(&mut self, out: &mut [Descriptor]) -> Result<usize, WildCursor> {
        let mut waiting = self.known();
        if (waiting as usize) < out.len() {
            waiting = self.available()?;
        }
        let n = out.len().min(waiting as usize);
        for (i, descriptor) in out[..n].iter_mut().enumerate() {
            *descriptor = Descriptor::from_words(self.raw.slot(self.tail.wrapping_add(i as u32)).load());
        }
        self.tail = self.tail.wrapping_add(n as u32);
        Ok(n)
    }

    /// Calls `take` with up to `most` descriptors as words, in order; else as [`Consumer::read`].
    ///
    /// # Errors
    /// As [`Consumer::read`].
    #[inline(always)]
    pub fn read_words(&mut self, most: usize, mut take: impl FnMut([u64; 2])) -> Result<usize, WildCursor> {
        let mut waiting = self.known();
        if (waiting as usize) < most {
            waiting = self.available()?;
        }
        let n = most.min(waiting as usize);
        // Two runs that load only the slots: for all the compiler knows, `take` may write to the
        // ring's fields.
        let first = self.tail & (self.raw.capacity - 1);
        let run = n.min((self.raw.capacity - first) as usize);
        for (start, count) in [(first, run), (0, n - run)] {
            // SAFETY: start + count is at most the capacity, the number of slots.
            let slots = unsafe { std::slice::from_raw_parts(self.raw.slots.add(start as usize), count) };
            slots.iter().for_each(|slot| take(slot.load()));
        }
        self.tail = self.tail.wrapping_add(n as u32);
        Ok(n)
    }

    /// Gives the producer the slots of all that was read.
    #[inline(always)]
    pub fn release(&self) {
        // Release: the slots are read before the producer sees that they are free.
        self.raw.tail().store(self.tail, Ordering::Release);
    }
}

/// A view of a ring's fill, from neither end.
#[derive(Debug)]
pub struct Gauge {
    raw: Raw,
}

// SAFETY: threads may share it, as it only loads the two cursors; it keeps the memory alive.
unsafe impl Sync for Gauge {}

impl Gauge {
    /// The gauge of the ring at `offset` in a mapping. None as for [`Producer::in_mapping`].
    pub fn in_mapping(mapping: &Arc<Mapping>, offset: usize, capacity: u32) -> Option<Self> {
        Raw::in_mapping(mapping, offset, capacity).map(|raw| Self { raw })
    }

    /// Descriptors that the ring holds at most.
    pub fn capacity(&self) -> u32 {
        self.raw.capacity
    }

    /// Descriptors that wait. Impossible cursors, which a hostile end wrote, make it full.
    #[inline(always)]
    pub fn fill(&self) -> u32 {
        // Relaxed: it reads no slot. Tail first: a concurrent enqueue must not make it negative.
        let tail = self.raw.tail().load(Ordering::Relaxed);
        self.raw.head().load(Ordering::Relaxed).wrapping_sub(tail).min(self.raw.capacity)
    }

    /// Descriptors ever dequeued, modulo 2³², as published by the consumer.
    #[inline(always)]
    pub fn taken(&self) -> u32 {
        // Relaxed: a number that shows progress.
        self.raw.tail().load(Ordering::Relaxed)
    }

    /// Free slots.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.raw.capacity - self.fill()
    }
}

/// A ring in private memory, for tests, harnesses and hand-over between the manager's threads.
pub fn private(capacity: u32) -> (Producer, Consumer) {
    let raw = Raw::private(capacity);
    (Producer { raw: raw.clone(), head: 0, cached_tail: 0 }, Consumer { raw, tail: 0, cached_head: 0 })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn descriptor(frame: u32) -> Descriptor {
        Descriptor { frame, len: 60, ..Default::default() }
    }

    #[test]
    fn a_gauge_sees_what_waits_and_is_not_misled_out_of_range() {
        let (mut producer, mut consumer) = private(8);
        let gauge = Gauge { raw: producer.raw.clone() };
        assert_eq!((gauge.capacity(), gauge.fill(), gauge.room()), (8, 0, 8));
        producer.enqueue(&[descriptor(1); 5]).unwrap();
        assert_eq!((gauge.fill(), gauge.room()), (5, 3));
        consumer.dequeue(&mut [Descriptor::default(); 4]).unwrap();
        assert_eq!((gauge.fill(), gauge.room()), (1, 7));
        producer.raw.tail().store(1000, Ordering::Relaxed);
        assert_eq!((gauge.fill(), gauge.room()), (8, 0));
    }

    fn ring_at(capacity: u32, start: u32) -> (Producer, Consumer) {
        let (mut producer, mut consumer) = private(capacity);
        producer.raw.head().store(start, Ordering::Relaxed);
        producer.raw.tail().store(start, Ordering::Relaxed);
        (producer.head, producer.cached_tail) = (start, start);
        (consumer.tail, consumer.cached_head) = (start, start);
        (producer, consumer)
    }

    #[test]
    fn a_full_ring_takes_no_more_and_an_empty_one_gives_nothing() {
        let (mut producer, mut consumer) = private(4);
        let mut out = [Descriptor::default(); 8];
        assert_eq!(consumer.dequeue(&mut out), Ok(0));
        assert_eq!(producer.enqueue(&[descriptor(1); 6]), Ok(4));
        assert_eq!((producer.enqueue(&[descriptor(1)]), producer.room()), (Ok(0), Ok(0)));
        assert_eq!((consumer.available(), consumer.dequeue(&mut out)), (Ok(4), Ok(4)));
        assert_eq!(consumer.dequeue(&mut out), Ok(0));
    }

    #[test]
    fn what_is_kept_back_is_seen_when_it_is_published() {
        let (mut producer, mut consumer) = private(4);
        let mut out = [Descriptor::default(); 4];
        assert_eq!((producer.write(&[descriptor(1); 3]), consumer.dequeue(&mut out)), (Ok(3), Ok(0)));
        producer.publish();
        assert_eq!((consumer.read(&mut out[..2]), consumer.known()), (Ok(2), 1));
        assert_eq!(producer.room(), Ok(1), "what was read keeps its slots");
        consumer.release();
        assert_eq!(producer.room(), Ok(3));
    }

    #[test]
    fn slots_that_are_written_in_place_end_with_the_ring_and_with_its_room() {
        let (mut producer, mut consumer) = ring_at(8, 5);
        let put = |producer: &mut Producer, most, frame| {
            let slots = producer.slots(most).unwrap();
            // SAFETY: no other code looks at them before they are published.
            (0..slots.len()).for_each(|i| unsafe { slots.cast::<Descriptor>().add(i).write(descriptor(frame + i as u32)) });
            producer.advance(slots.len());
            producer.publish();
            slots.len()
        };
        assert_eq!(put(&mut producer, 6, 10), 3, "to the end of the ring");
        assert_eq!(put(&mut producer, 3, 13), 3);
        assert_eq!(put(&mut producer, 6, 16), 2, "all the room");
        assert_eq!(put(&mut producer, 6, 18), 0);
        let mut seen = Vec::new();
        assert_eq!(consumer.read_words(5, |words| seen.push(Descriptor::from_words(words).frame)), Ok(5));
        assert_eq!(consumer.read_words(5, |words| seen.push(Descriptor::from_words(words).frame)), Ok(3));
        assert_eq!(seen, (10..18).collect::<Vec<_>>());
        assert_eq!(producer.room(), Ok(0));
        consumer.release();
        assert_eq!(producer.room(), Ok(8));
        producer.raw.tail().store(1000, Ordering::Relaxed);
        producer.cached_tail = producer.head.wrapping_sub(8);
        assert_eq!(producer.slots(1), Err(WildCursor));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(usize),
        Take(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![(0usize..70).prop_map(Step::Put), (0usize..70).prop_map(Step::Take)]
    }

    /// Cursors near the ends of their range, and others.
    fn cursor() -> impl Strategy<Value = u32> {
        prop_oneof![any::<u32>(), 0u32..80, (u32::MAX - 80)..=u32::MAX]
    }

    proptest! {
        #[test]
        fn it_is_a_bounded_queue(order in 1u32..7, start in cursor(), steps in proptest::collection::vec(step(), 1..80)) {
            let capacity = 1 << order;
            let (mut producer, mut consumer) = ring_at(capacity, start);
            let (mut model, mut next) = (VecDeque::new(), 0);
            for step in steps {
                match step {
                    Step::Put(n) => {
                        let put: Vec<_> = (next..next + n as u32).map(descriptor).collect();
                        let fits = n.min(capacity as usize - model.len());
                        prop_assert_eq!(producer.enqueue(&put), Ok(fits));
                        model.extend(&put[..fits]);
                        next += fits as u32;
                    }
                    Step::Take(n) => {
                        let mut out = vec![Descriptor::default(); n];
                        let got = n.min(model.len());
                        prop_assert_eq!(consumer.dequeue(&mut out), Ok(got));
                        prop_assert_eq!(&out[..got], &model.drain(..got).collect::<Vec<_>>()[..]);
                    }
                }
                prop_assert_eq!(producer.cursor().wrapping_sub(consumer.cursor()), model.len() as u32);
            }
        }

        #[test]
        fn a_hostile_producer_only_hurts_itself(
            order in 1u32..7, start in cursor(), heads in proptest::collection::vec((cursor(), 1usize..70), 1..40)
        ) {
            let capacity = 1 << order;
            let (producer, mut consumer) = ring_at(capacity, start);
            for (offset, n) in heads {
                let head = start.wrapping_add(offset);
                producer.raw.head().store(head, Ordering::Relaxed);
                let (before, cached) = (consumer.cursor(), consumer.cached_head.wrapping_sub(consumer.cursor()));
                let mut out = vec![Descriptor::default(); n];
                match consumer.dequeue(&mut out) {
                    Ok(got) => {
                        prop_assert!(got <= n && got <= capacity as usize);
                        prop_assert_eq!(consumer.cursor(), before.wrapping_add(got as u32));
                    }
                    Err(WildCursor) => {
                        prop_assert!((cached as usize) < n && head.wrapping_sub(before) > capacity);
                        prop_assert_eq!(consumer.cursor(), before);
                    }
                }
                prop_assert!(consumer.available().is_ok_and(|n| n <= capacity) || head.wrapping_sub(consumer.cursor()) > capacity);
            }
        }

        #[test]
        fn a_hostile_consumer_only_hurts_itself(
            order in 1u32..7, start in cursor(), tails in proptest::collection::vec((cursor(), 1usize..70), 1..40)
        ) {
            let capacity = 1 << order;
            let (mut producer, consumer) = ring_at(capacity, start);
            for (offset, n) in tails {
                let tail = start.wrapping_add(offset);
                consumer.raw.tail().store(tail, Ordering::Relaxed);
                let before = producer.cursor();
                match producer.enqueue(&vec![descriptor(1); n]) {
                    Ok(put) => {
                        prop_assert!(put <= n && put <= capacity as usize);
                        prop_assert_eq!(producer.cursor(), before.wrapping_add(put as u32));
                    }
                    Err(WildCursor) => {
                        prop_assert!(before.wrapping_sub(tail) > capacity);
                        prop_assert_eq!(producer.cursor(), before);
                    }
                }
                prop_assert!(producer.room().is_ok_and(|n| n <= capacity) || producer.cursor().wrapping_sub(tail) > capacity);
            }
        }
    }
}

/// Every order of both sides' steps that loom knows the processor to allow: `RUSTFLAGS="--cfg loom"
/// cargo test -p sluice-shm --lib --release loom`.
#[cfg(all(test, loom))]
mod loom_model {
    use loom::thread;

    use super::*;

    fn descriptor(frame: u32) -> Descriptor {
        Descriptor { frame, len: frame as u16, chain: !frame as u16, ..Default::default() }
    }

    /// Takes `count` descriptors, which must be 1, 2, … in order and whole.
    fn take(consumer: &mut Consumer, count: u32, burst: usize) {
        let mut next = 1;
        while next <= count {
            let mut out = vec![Descriptor::default(); burst];
            let got = consumer.dequeue(&mut out).expect("both sides are honest");
            for taken in &out[..got] {
                assert_eq!(*taken, descriptor(next));
                next += 1;
            }
            if got == 0 {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn what_is_put_is_taken_once_whole_and_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer) = private(2);
            let writer = thread::spawn(move || {
                for frame in 1..=3 {
                    while producer.enqueue(&[descriptor(frame)]) == Ok(0) {
                        thread::yield_now();
                    }
                }
            });
            take(&mut consumer, 3, 1);
            writer.join().unwrap();
        });
    }

    #[test]
    fn bursts_are_put_and_taken_once_whole_and_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer) = private(2);
            let writer = thread::spawn(move || {
                let all = [descriptor(1), descriptor(2), descriptor(3)];
                let mut sent = 0;
                while sent < all.len() {
                    match producer.enqueue(&all[sent..]).expect("both sides are honest") {
                        0 => thread::yield_now(),
                        n => sent += n,
                    }
                }
            });
            take(&mut consumer, 3, 2);
            writer.join().unwrap();
        });
    }

    #[test]
    fn a_producer_that_writes_any_cursor_and_slot_meets_a_check() {
        loom::model(|| {
            let (producer, mut consumer) = private(2);
            let hostile = thread::spawn(move || {
                producer.raw.slot(0).store(descriptor(9));
                producer.raw.head().store(1, Ordering::Relaxed);
                producer.raw.head().store(u32::MAX, Ordering::Relaxed);
                producer.raw.tail().store(77, Ordering::Relaxed);
            });
            for _ in 0..2 {
                let before = consumer.cursor();
                let mut out = [Descriptor::default(); 2];
                match consumer.dequeue(&mut out) {
                    Ok(got) => assert!(got <= 2 && consumer.cursor() == before + got as u32),
                    Err(WildCursor) => assert_eq!(consumer.cursor(), before),
                }
            }
            hostile.join().unwrap();
        });
    }
}
