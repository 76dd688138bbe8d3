//! The page that the NFs of one core share: doorbells and hand-over hints, nothing else.
//!
//! A wake from another core costs the waker five times what a switch on the core costs, so an NF
//! that is about to sleep starts the next one itself. The manager publishes here which NFs have
//! work; each NF publishes how far it has read.
//!
//! Every NF of the core can write the whole page, so it is a hint: it decides which of several
//! runnable NFs runs next. The manager keeps the slots, the packets and the progress of all NFs in
//! private memory, restores its words where they were changed, and wakes an NF whose packets have
//! waited too long by a doorbell that no other NF can reach ([`crate::page`]). An NF that gets no
//! time slices, or does not give them up, gets none for a while: the kernel schedules it
//! ([`crate::page::Control::Alone`]).
//!
//! # Which NF runs, and for how long
//! The rule is [`sluice_policy::sched::wakeup`]'s; its numbers are here. An NF pays for its time on
//! the core, and hands the core over when its budget is used up and another NF has packets. The
//! manager sets the shares, and only one NF is runnable at a time, so the shares hold in any
//! scheduling class. An NF that the manager *holds* is not chosen, and sleeps after its burst; a
//! *suspended* one waits for something other than packets, and wakes by itself.
//!
//! # Layout
//! | offset | what | written by |
//! |---|---|---|
//! | 0 | magic, version, slots; whether any slot is favoured | the manager |
//! | 64 | `running`: slot + 1 of the NF that has the core, 0 if none | all |
//! | 128 | `pending`: one bit a slot that got packets | set by the manager, cleared by the NF |
//! | then | `returned`: one bit a slot that returned some | set by the NF, cleared by the manager |
//! | then | `favoured`: one bit a slot that may go before others | the manager |
//! | then | the slots, 256 bytes each | – |
//!
//! Lines of a slot: 0 `posted`, `depth`, `hold`, `share`, `level`, `pressing` (the manager); 1
//! `taken`, `suspended` (the NF); 2 `asleep`, doorbell, `budget`, `since` (all).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use sluice_policy::sched::wakeup::{self, Candidate, Core, Rules};

use crate::clock::monotonic_ns;
use crate::doorbell;
use crate::memory::{Mapping, MemoryError, SharedMemory};
use crate::{CACHE_LINE, LAYOUT_VERSION};

/// First word of a core page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sluiceCO");

/// Most slots of a core page.
pub const MAX_SLOTS: u32 = 1 << 16;

const RUNNING: usize = CACHE_LINE;
const PENDING: usize = 2 * CACHE_LINE;
const SLOT: usize = 4 * CACHE_LINE;
const TAKEN: usize = CACHE_LINE;
const SUSPENDED: usize = TAKEN + 4;
const ASLEEP: usize = 2 * CACHE_LINE;
const BELL: usize = ASLEEP + 4;
const BUDGET: usize = ASLEEP + 8;
const SINCE: usize = ASLEEP + 12;
const DEPTH: usize = 4;
const HOLD: usize = 8;
const SHARE: usize = 12;
const LEVEL: usize = 16;
const PRESSING: usize = 20;
const ANY_FAVOURED: usize = 16;

/// A share of all of the core.
pub const WHOLE: u32 = 1 << 16;

/// Candidates that an NF examines before it sleeps: all up to this number, else the next
/// [`OF_MANY`]. Each fetches lines that the manager's core has just written: costly if thousands.
const LOOK_AT: usize = 16;
const OF_MANY: usize = 6;
/// Favoured candidates that are examined.
const FAVOURED: usize = 32;
/// Pending slots that are examined at most: a hostile neighbour can mark all of them.
const MOST_LOOKED_AT: usize = 64;

/// Bit of [`CorePage::hold`]: backpressure.
pub const HELD: u32 = 1;
/// Bit of [`CorePage::hold`]: the slot's NF takes no part in the hand-over.
pub const ALONE: u32 = 2;

/// The manager's words about a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Said {
    /// See [`CorePage::depth`].
    pub depth: u32,
    /// See [`CorePage::hold`].
    pub hold: u32,
    /// See [`CorePage::share`].
    pub share: u32,
    /// See [`CorePage::level`].
    pub level: u32,
    /// See [`CorePage::pressing`].
    pub pressing: u32,
}

impl Said {
    /// Whether level and pressing count are examined ([`CorePage::favour`]).
    pub fn is_favoured(&self) -> bool {
        self.level != 0 || self.pressing != 0
    }
}

/// Bytes of one bit per slot, in whole cache lines.
fn bits_bytes(slots: u32) -> usize {
    ((slots as usize).div_ceil(64) * 8).next_multiple_of(CACHE_LINE)
}

fn slots_at(slots: u32) -> usize {
    (PENDING + 3 * bits_bytes(slots)).next_multiple_of(SLOT)
}

/// Bytes of a core page with `slots` slots.
pub fn bytes(slots: u32) -> usize {
    slots_at(slots) + slots as usize * SLOT
}

/// A mapped core page, for either side.
#[derive(Debug, Clone)]
pub struct CorePage {
    mapping: Arc<Mapping>,
    slots: u32,
    /// Offset of the first slot.
    first: usize,
    /// Not read from the page, where a neighbour could change it.
    hands_over: bool,
}

impl CorePage {
    /// Makes the page of a core, whose memory is only taken as slots are used. Without `hand_over`
    /// NFs start no others: the manager wakes each, and the kernel's scheduler divides the core.
    ///
    /// # Errors
    /// As [`SharedMemory::create`].
    pub fn create(slots: u32, hand_over: bool) -> Result<(SharedMemory, Self), MemoryError> {
        assert!((1..=MAX_SLOTS).contains(&slots), "the configuration checks the number of NFs");
        let memory = SharedMemory::create("sluice-core", bytes(slots), false)?;
        let page = Self { mapping: memory.mapping().clone(), slots, first: slots_at(slots), hands_over: hand_over };
        // Relaxed: no other process has the descriptor yet.
        page.word64(0).store(MAGIC, Ordering::Relaxed);
        page.word64(8).store(u64::from(LAYOUT_VERSION) | u64::from(slots) << 32, Ordering::Relaxed);
        Ok((memory, page))
    }

    /// Maps a core page that a manager passed, and that has this many slots. `hands_over` is what
    /// the manager said.
    ///
    /// # Errors
    /// [`MemoryError::TooSmall`] if it does not hold `slots` slots.
    pub fn map(fd: std::os::fd::BorrowedFd<'_>, slots: u32, hands_over: bool) -> Result<Self, MemoryError> {
        if !(1..=MAX_SLOTS).contains(&slots) {
            return Err(MemoryError::TooSmall { actual: 0, expected: bytes(MAX_SLOTS) });
        }
        Ok(Self { mapping: Mapping::new(fd, bytes(slots), false)?, slots, first: slots_at(slots), hands_over })
    }

    /// Whether two values share one mapping.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mapping, &other.mapping)
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU32 {
        self.mapping.atomic_u32(offset).expect("the page is mapped and its slots are checked")
    }

    #[inline(always)]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        self.mapping.atomic_u64(offset).expect("the page is mapped and its slots are checked")
    }

    #[inline(always)]
    fn slot_word(&self, slot: u32, offset: usize) -> &AtomicU32 {
        self.word(self.first + slot.min(self.slots - 1) as usize * SLOT + offset)
    }

    #[inline(always)]
    fn pending_word(&self, index: usize) -> &AtomicU64 {
        self.word64(PENDING + index * 8)
    }

    #[inline(always)]
    fn returned_word(&self, index: usize) -> &AtomicU64 {
        self.word64(PENDING + bits_bytes(self.slots) + index * 8)
    }

    /// Marks a slot whose NF has returned packets; writes the bit only if it is clear. A hint,
    /// which a concurrent [`take_returned`](Self::take_returned) may miss.
    #[inline(always)]
    pub fn note_returned(&self, slot: u32) {
        let (word, bit) = (self.returned_word((slot / 64) as usize), 1u64 << (slot % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            // Release: a reader of the bit sees what was returned.
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Number of words of [`take_returned`](Self::take_returned), each for 64 slots.
    pub fn words(&self) -> usize {
        (self.slots as usize).div_ceil(64)
    }

    /// Takes the bits of the slots `index * 64 + i` that returned packets, for i in `mine`.
    #[inline(always)]
    pub fn take_returned(&self, index: usize, mine: u64) -> u64 {
        let word = self.returned_word(index);
        let found = word.load(Ordering::Relaxed) & mine;
        if found != 0 {
            // Acquire: sees what was returned before the bit was set.
            word.fetch_and(!found, Ordering::Acquire);
        }
        found
    }

    #[inline(always)]
    fn favoured_word(&self, index: usize) -> &AtomicU64 {
        self.word64(PENDING + 2 * bits_bytes(self.slots) + index * 8)
    }

    /// Slot + 1 of the NF that seems to have the core; 0 if none.
    #[inline(always)]
    pub fn running(&self) -> &AtomicU32 {
        self.word(RUNNING)
    }

    /// Packets ever posted to a slot, modulo 2³². The manager's word.
    #[inline(always)]
    pub fn posted(&self, slot: u32) -> &AtomicU32 {
        self.slot_word(slot, 0)
    }

    /// Position of the slot's NF in its chains: its largest hop number. The manager's word.
    #[inline(always)]
    pub fn depth(&self, slot: u32) -> &AtomicU32 {
        self.slot_word(slot, DEPTH)
    }

    /// Whether NFs that go to sleep start the next one.
    #[inline(always)]
    pub fn hands_over(&self) -> bool {
        self.hands_over
    }

    /// Not 0 if neighbours must not start a slot's NF: [`HELD`] and [`ALONE`]. The manager's word.
    #[inline(always)]
    pub fn hold(&self, slot: u32) -> &AtomicU32 {
        self.slot_word(slot, HOLD)
    }

    /// A slot's share of the core, of [`WHOLE`]. The manager's word.
    #[inline(always)]
    pub fn share(&self, slot: u32) -> &AtomicU32 {
        self.slot_word(slot, SHARE)
    }

    /// A slot's level: a higher one goes first while it has budget. The manager's word.
    #[inline(always)]
    pub fn level(&self, slot: u32) -> u32 {
        self.slot_word(slot, LEVEL).load(Ordering::Relaxed)
    }

    /// Packets from which a slot's NF precedes those above it; 0: never. The manager's word.
    #[inline(always)]
    pub fn pressing(&self, slot: u32) -> u32 {
        self.slot_word(slot, PRESSING).load(Ordering::Relaxed)
    }

    /// Sets a slot's level; [`favour`](Self::favour) must follow.
    pub fn set_level(&self, slot: u32, level: u32) {
        self.slot_word(slot, LEVEL).store(level, Ordering::Relaxed);
    }

    /// Sets [`pressing`](Self::pressing); [`favour`](Self::favour) must follow.
    pub fn set_pressing(&self, slot: u32, packets: u32) {
        self.slot_word(slot, PRESSING).store(packets, Ordering::Relaxed);
    }

    /// Whether any slot has been favoured since an NF of the page ended last.
    #[inline(always)]
    pub fn has_favoured(&self) -> bool {
        self.word(ANY_FAVOURED).load(Ordering::Relaxed) != 0
    }

    /// Sets whether a slot's level and pressing count are examined. True if the page differed, also
    /// in whether NFs look for favoured slots.
    pub fn favour(&self, slot: u32, is_favoured: bool) -> bool {
        let (word, bit) = (self.favoured_word((slot / 64) as usize), 1u64 << (slot % 64));
        let differs = is_favoured != (word.load(Ordering::Relaxed) & bit != 0);
        if differs {
            // Relaxed: an NF that misses the bit still reaches the slot in the circle.
            if is_favoured {
                word.fetch_or(bit, Ordering::Relaxed)
            } else {
                word.fetch_and(!bit, Ordering::Relaxed)
            };
        }
        let is_unseen = is_favoured && !self.has_favoured();
        if is_unseen {
            self.set_any_favoured(true);
        }
        differs || is_unseen
    }

    /// Restores the manager's words of a slot. Returns how many had been changed.
    pub fn restore(&self, slot: u32, said: &Said) -> u32 {
        let words = [(DEPTH, said.depth), (HOLD, said.hold), (SHARE, said.share), (LEVEL, said.level), (PRESSING, said.pressing)];
        let mut wrong = 0;
        for (offset, value) in words {
            let word = self.slot_word(slot, offset);
            // Relaxed: independent hints.
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Relaxed);
                wrong += 1;
            }
        }
        wrong + u32::from(self.favour(slot, said.is_favoured()))
    }

    /// Clears marks of slots that no NF has, to which others would hand the core over. `given` has
    /// a bit for each slot of an NF, up to the last one. True if one of the others was marked as
    /// having packets. Reads two words for each 64 slots of the page ([`MAX_SLOTS`]).
    pub fn sweep(&self, given: &[u64]) -> bool {
        let mut found = false;
        for index in 0..self.words() {
            let given = given.get(index).copied().unwrap_or(0);
            // Relaxed: hints. Bits of slots with an NF stay, whatever others do to them meanwhile.
            let clear = |word: &AtomicU64| {
                let is_marked = word.load(Ordering::Relaxed) & !given != 0;
                if is_marked {
                    word.fetch_and(given, Ordering::Relaxed);
                }
                is_marked
            };
            found |= clear(self.pending_word(index));
            clear(self.favoured_word(index));
        }
        found
    }

    /// Sets whether NFs look for favoured slots; [`favour`](Self::favour) has them do so, too.
    pub fn set_any_favoured(&self, any: bool) {
        self.word(ANY_FAVOURED).store(u32::from(any), Ordering::Relaxed);
    }

    /// The budget as a two's complement word; negative if overdrawn.
    #[inline(always)]
    fn budget_word(&self, slot: u32) -> &AtomicU32 {
        self.slot_word(slot, BUDGET)
    }

    /// Nanoseconds that a slot's NF may still run in this round; not positive if it has none left.
    #[inline(always)]
    pub fn budget(&self, slot: u32) -> i32 {
        self.budget_word(slot).load(Ordering::Relaxed) as i32
    }

    /// Sets the rest of a slot's budget, in nanoseconds.
    pub fn set_budget(&self, slot: u32, ns: i64) {
        // Relaxed, no read-modify-write: only the NF with the core writes; errors cost only time.
        self.budget_word(slot).store(ns.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 as u32, Ordering::Relaxed);
    }

    /// Sets a slot's budget, whatever it was.
    pub fn endow(&self, slot: u32, ns: u64) {
        self.set_budget(slot, i64::try_from(ns).unwrap_or(i64::MAX));
    }

    /// Subtracts time on the core from a slot's budget.
    pub fn pay(&self, slot: u32, ns: u64) {
        self.set_budget(slot, wakeup::paid(i64::from(self.budget(slot)), ns));
    }

    /// Packets ever taken by a slot's NF, modulo 2³². The NF's word.
    #[inline(always)]
    pub fn taken(&self, slot: u32) -> &AtomicU32 {
        self.slot_word(slot, TAKEN)
    }

    /// 1 while a slot's NF waits for something other than packets, such as the disk. The NF's word.
    #[inline(always)]
    pub fn suspended(&self, slot: u32) -> &AtomicU32 {
        self.slot_word(slot, SUSPENDED)
    }

    /// Time since which a slot has been pending, in microseconds modulo 2³².
    #[inline(always)]
    fn since(&self, slot: u32) -> &AtomicU32 {
        self.slot_word(slot, SINCE)
    }

    /// 1 while a slot's NF sleeps or is about to.
    #[inline(always)]
    pub fn asleep(&self, slot: u32) -> &AtomicU32 {
        self.slot_word(slot, ASLEEP)
    }

    /// The doorbell that a slot's NF sleeps on.
    #[inline(always)]
    pub fn doorbell(&self, slot: u32) -> &AtomicU32 {
        self.slot_word(slot, BELL)
    }

    /// Empties a slot for a new NF, asleep.
    pub fn reset(&self, slot: u32) {
        // Relaxed: the NF gets the slot's number afterwards, over a socket.
        self.posted(slot).store(0, Ordering::Relaxed);
        self.depth(slot).store(0, Ordering::Relaxed);
        self.hold(slot).store(0, Ordering::Relaxed);
        self.share(slot).store(WHOLE / 8, Ordering::Relaxed);
        self.set_level(slot, 0);
        self.set_pressing(slot, 0);
        self.favour(slot, false);
        self.budget_word(slot).store(0, Ordering::Relaxed);
        self.taken(slot).store(0, Ordering::Relaxed);
        self.suspended(slot).store(0, Ordering::Relaxed);
        self.since(slot).store(0, Ordering::Relaxed);
        self.asleep(slot).store(1, Ordering::Relaxed);
        self.release(slot);
    }

    /// Clears a slot whose process has ended, so that no NF starts it or waits for it.
    pub fn release(&self, slot: u32) {
        self.clear_pending(slot);
        self.give_up(slot);
    }

    /// Clears `running` if it names this slot.
    pub fn give_up(&self, slot: u32) {
        // AcqRel: an NF that sees the core free sees what the former one did before.
        let _ = self.running().compare_exchange(slot + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Marks a slot as having packets, at `now_ns` of CLOCK_MONOTONIC.
    #[inline(always)]
    pub fn set_pending(&self, slot: u32, now_ns: u64) {
        Self::publish_posts();
        self.mark_pending(slot, now_ns);
    }

    /// Orders posts to any number of slots before [`mark_pending`](Self::mark_pending) for them.
    /// Called once for many: it waits until this thread's stores are visible.
    #[inline(always)]
    pub fn publish_posts() {
        // SeqCst: posts become visible before we read the bit. The sleeper clears the bit, then
        // looks for packets: one of the two sees the other.
        fence(Ordering::SeqCst);
    }

    /// As [`set_pending`](Self::set_pending), after [`publish_posts`](Self::publish_posts). Writes
    /// the bit only if it is clear, so that its line stays shared.
    #[inline(always)]
    pub fn mark_pending(&self, slot: u32, now_ns: u64) {
        let (word, bit) = (self.pending_word((slot / 64) as usize), 1u64 << (slot % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            self.since(slot).store((now_ns / 1_000) as u32, Ordering::Relaxed);
            // Release: a reader of the bit sees the posted count and the time before it.
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Whether a slot's NF sleeps and is not pending: packets on its ring would not start it.
    #[inline]
    pub fn is_dormant(&self, slot: u32) -> bool {
        // SeqCst: posts become visible before the load. The sleeper sets "asleep", then looks for
        // packets: one of the two sees the other.
        fence(Ordering::SeqCst);
        let (word, bit) = (self.pending_word((slot / 64) as usize), 1u64 << (slot % 64));
        // Acquire: sees what it had taken before it went to sleep.
        self.asleep(slot).load(Ordering::Acquire) != 0 && word.load(Ordering::Relaxed) & bit == 0
    }

    /// Marks a slot as having no packets.
    #[inline(always)]
    pub fn clear_pending(&self, slot: u32) {
        let (word, bit) = (self.pending_word((slot / 64) as usize), 1u64 << (slot % 64));
        if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Packets that wait for a slot, by the page's counts.
    #[inline(always)]
    pub fn waiting(&self, slot: u32) -> u32 {
        let waiting = self.posted(slot).load(Ordering::Acquire).wrapping_sub(self.taken(slot).load(Ordering::Relaxed));
        // An impossible count comes from a hostile neighbour.
        if waiting > 1 << 31 { 0 } else { waiting }
    }

    /// The slot to run next at `now_ns`, by [`wakeup::choose`], among all candidates up to 16, else
    /// the next six after `me`. Never `me`, nor a slot that is held or suspended.
    pub fn choose(&self, me: Option<u32>, now_ns: u64) -> Option<u32> {
        wakeup::choose(&mut Choice { page: self, me, now_us: (now_ns / 1_000) as u32 }, &Rules::default())
    }

    /// Whether a slot is marked as having packets.
    #[inline(always)]
    pub fn is_pending(&self, slot: u32) -> bool {
        self.pending_word((slot / 64) as usize).load(Ordering::Relaxed) & 1u64 << (slot % 64) != 0
    }

    /// The slots `index * 64 + i` that are marked as having packets, as bits i.
    #[inline(always)]
    pub fn pending(&self, index: usize) -> u64 {
        // Acquire: a reader of a bit sees the posted count and the time before it.
        self.pending_word(index).load(Ordering::Acquire)
    }

    /// Nanoseconds for which a slot has been pending, at `now_us` of the page's clock. A future
    /// time, which is another core's clock or a neighbour's lie, counts as 0.
    #[inline(always)]
    pub fn age_ns(&self, slot: u32, now_us: u32) -> u64 {
        let age_us = now_us.wrapping_sub(self.since(slot).load(Ordering::Relaxed));
        if age_us > 1 << 31 { 0 } else { u64::from(age_us) * 1_000 }
    }

    /// Adds a budget of `rounds` rounds to a slot, as [`wakeup::refilled`].
    pub fn refill(&self, slot: u32, part_ns: i64, rounds: i64) {
        self.set_budget(slot, wakeup::refilled(i64::from(self.budget(slot)), part_ns, rounds));
    }

    /// Whether any NF but `me` may run; changes nothing.
    #[inline]
    pub fn has_other(&self, me: u32) -> bool {
        let mut found = false;
        self.visit(Some(me), 1, false, |_| found = true);
        found
    }

    /// Whether another NF precedes `me` despite its budget ([`wakeup::is_preceded`]).
    #[cold]
    pub fn is_preceded(&self, me: u32) -> bool {
        let choice = Choice { page: self, me: Some(me), now_us: 0 };
        self.has_favoured() && wakeup::is_preceded(&choice, self.level(me))
    }

    /// Whether a slot's NF may take packets.
    #[inline]
    fn is_free(&self, slot: u32) -> bool {
        self.hold(slot).load(Ordering::Relaxed) == 0 && self.suspended(slot).load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn has_more_than(&self, most: usize) -> bool {
        let mut count = 0;
        (0..(self.slots as usize).div_ceil(64)).any(|index| {
            count += self.pending_word(index).load(Ordering::Relaxed).count_ones() as usize;
            count > most
        })
    }

    /// Calls `each` with up to `most` slots that have packets and may take them, those after `me`
    /// first and `me` never. With `favoured`, only with favoured slots.
    #[inline]
    fn visit(&self, me: Option<u32>, most: usize, favoured: bool, mut each: impl FnMut(u32)) {
        let words = (self.slots as usize).div_ceil(64);
        let (mut left, mut looks) = (most, MOST_LOOKED_AT);
        // Begins after `me` and wraps around, so that of many candidates all get their turn.
        let from = me.map_or(0, |me| (me + 1) % self.slots);
        let (first, behind) = (from as usize / 64, u64::MAX << (from % 64));
        for step in 0..=words {
            let index = (first + step) % words;
            let mask = match step {
                0 => behind,
                last if last == words => !behind,
                _ => u64::MAX,
            };
            let mut bits = self.pending_word(index).load(Ordering::Acquire) & mask;
            if favoured {
                bits &= self.favoured_word(index).load(Ordering::Relaxed);
            }
            while bits != 0 {
                let slot = index as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if slot >= self.slots || Some(slot) == me {
                    continue;
                }
                if self.is_free(slot) && self.waiting(slot) > 0 {
                    each(slot);
                    left -= 1;
                }
                looks -= 1;
                if left == 0 || looks == 0 {
                    return;
                }
            }
        }
    }

    /// Wakes a slot's NF by this page's doorbell and gives it the core. True if this call woke it.
    pub fn wake(&self, slot: u32) -> bool {
        // AcqRel: exactly one waker takes the 1.
        if self.asleep(slot).swap(0, Ordering::AcqRel) == 0 {
            return false;
        }
        self.running().store(slot + 1, Ordering::Relaxed);
        doorbell::ring(self.doorbell(slot));
        true
    }

    /// Passes the core to a slot from `before` (slot + 1, or 0 for none). False if another has it
    /// by now. The caller then checks whether that NF sleeps.
    pub fn pass_to(&self, slot: u32, before: u32) -> bool {
        if self.running().compare_exchange(before, slot + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        // SeqCst: we set `running`, then check "asleep". The NF sets "asleep", then reads
        // `running`. One of the two sees the other: we wake it, or it gives the core away.
        fence(Ordering::SeqCst);
        true
    }

    /// Sleeps in slot `me` and starts the next NF of the core that has packets. Returns when woken,
    /// when `has_work` finds packets, or after `timeout`; true if it handed the core over. No wake
    /// is lost: we set "asleep", fence, then look for work; the manager posts work, then checks
    /// "asleep". One of the two sees the other, as the manager polls: a store of ours that it
    /// missed in one round it sees in the next.
    pub fn sleep(&self, me: u32, timeout: Option<std::time::Duration>, has_work: impl FnMut() -> bool) -> bool {
        let turn = self.hands_over().then(monotonic_ns);
        self.sleep_by(me, turn, has_work, |bell, seen| doorbell::wait(bell, seen, timeout))
    }

    /// As [`sleep`](Self::sleep), for an NF that waits for more than its doorbell: `wait` returns
    /// when the doorbell's value differs from the given one, on any other event, or without cause.
    /// `turn` is the time, in nanoseconds of the monotonic clock; without it, it starts no NF.
    pub fn sleep_by(
        &self,
        me: u32,
        turn: Option<u64>,
        mut has_work: impl FnMut() -> bool,
        wait: impl FnOnce(&AtomicU32, u32),
    ) -> bool {
        let seen = self.doorbell(me).load(Ordering::Acquire);
        self.clear_pending(me);
        self.asleep(me).store(1, Ordering::Relaxed);
        // SeqCst: "asleep" is visible before we look for work, and before we read `running`.
        fence(Ordering::SeqCst);
        if has_work() {
            self.asleep(me).store(0, Ordering::Relaxed);
            if turn.is_some() {
                // Takes a free core. Another NF that has it gives it away later.
                let _ = self.running().compare_exchange(0, me + 1, Ordering::AcqRel, Ordering::Relaxed);
            }
            return false;
        }
        let handed_over = match turn {
            Some(now_ns) => self.hand_over_at(me, now_ns),
            None => {
                self.give_up(me);
                false
            }
        };
        // The page is not asked whether we still sleep: every waker changes the doorbell.
        wait(self.doorbell(me), seen);
        // The waker set `running`. After a timeout another NF may have the core: the hint stays.
        self.asleep(me).store(0, Ordering::Relaxed);
        handed_over
    }

    /// Gives the core, if `me` has it, to the next NF with packets, and returns whether it woke
    /// one. A core that was passed on meanwhile is left alone.
    pub fn hand_over(&self, me: u32) -> bool {
        self.hand_over_at(me, monotonic_ns())
    }

    /// As [`hand_over`](Self::hand_over), at `now_ns` of the monotonic clock.
    pub fn hand_over_at(&self, me: u32, now_ns: u64) -> bool {
        let mut before = me + 1;
        loop {
            match self.choose(Some(me), now_ns) {
                Some(next) if !self.pass_to(next, before) => return false,
                Some(next) => {
                    // If it is awake it has the core next, and hands over itself.
                    let woken = self.asleep(next).swap(0, Ordering::AcqRel) != 0;
                    if woken {
                        doorbell::ring(self.doorbell(next));
                    }
                    return woken;
                }
                // A later poster sees that no NF runs; an earlier post is seen here.
                None if before == 0 => return false,
                None => {
                    if self.running().compare_exchange(before, 0, Ordering::SeqCst, Ordering::Relaxed).is_err() {
                        return false;
                    }
                    before = 0;
                }
            }
        }
    }

    /// Leaves slot `me` for good, and gives the core away.
    pub fn leave(&self, me: u32) {
        self.clear_pending(me);
        if self.hands_over() {
            self.hand_over(me);
        }
        self.give_up(me);
    }
}

/// A core page as seen by the NF that gives the core away.
struct Choice<'a> {
    page: &'a CorePage,
    me: Option<u32>,
    now_us: u32,
}

impl Choice<'_> {
    #[inline]
    fn candidate(&self, slot: u32) -> Candidate {
        let page = self.page;
        Candidate {
            waiting: page.waiting(slot),
            age_ns: page.age_ns(slot, self.now_us),
            depth: page.depth(slot).load(Ordering::Relaxed),
            level: page.level(slot),
            pressing: page.pressing(slot),
        }
    }
}

impl Core for Choice<'_> {
    fn candidates(&self, mut each: impl FnMut(u32, Candidate)) {
        let most = if self.page.has_more_than(LOOK_AT) { OF_MANY } else { LOOK_AT };
        self.page.visit(self.me, most, false, |slot| each(slot, self.candidate(slot)));
    }

    fn favoured(&self, mut each: impl FnMut(u32, Candidate)) {
        if self.page.has_favoured() {
            self.page.visit(self.me, FAVOURED, true, |slot| each(slot, self.candidate(slot)));
        }
    }

    fn leaving(&self) -> Option<(u32, u32)> {
        self.me.map(|me| (self.page.depth(me).load(Ordering::Relaxed), me))
    }

    fn leaves_packets(&self) -> bool {
        self.me.is_some_and(|me| self.page.waiting(me) > 0)
    }

    fn budget_ns(&self, slot: u32) -> i64 {
        i64::from(self.page.budget(slot))
    }

    fn part_ns(&self, slot: u32, round_ns: u64) -> i64 {
        let share = self.page.share(slot).load(Ordering::Relaxed).min(WHOLE);
        wakeup::part_ns(round_ns, f64::from(share) / f64::from(WHOLE))
    }

    fn grant(&mut self, slot: u32, rounds: i64, round_ns: u64) {
        self.page.refill(slot, self.part_ns(slot, round_ns), rounds);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// In nanoseconds; the page's clock wraps soon after.
    const NOW: u64 = (u32::MAX as u64 - 5) * 1_000;

    fn page(slots: u32) -> CorePage {
        let (_memory, page) = CorePage::create(slots, true).unwrap();
        (0..slots).for_each(|slot| page.reset(slot));
        page
    }

    fn post(page: &CorePage, slot: u32, n: u32) {
        page.posted(slot).fetch_add(n, Ordering::Relaxed);
        page.set_pending(slot, NOW);
    }

    #[test]
    fn the_next_slot_down_the_chains_is_chosen_and_behind_the_last_the_first() {
        let page = page(130);
        for (slot, depth) in [(1, 2), (70, 0), (129, 1)] {
            page.depth(slot).store(depth, Ordering::Relaxed);
        }
        assert_eq!(page.choose(None, NOW), None);
        post(&page, 1, 100);
        post(&page, 70, 100);
        post(&page, 129, 3);
        assert_eq!(page.choose(None, NOW), Some(70));
        assert_eq!([70, 129, 1].map(|me| page.choose(Some(me), NOW)), [Some(129), Some(1), Some(70)]);
        page.taken(129).store(3, Ordering::Relaxed);
        assert_eq!(page.choose(Some(70), NOW), Some(1));
        page.clear_pending(1);
        assert_eq!(page.choose(Some(70), NOW), None);
    }

    /// Runs the chosen NF for `turn_ns` at a time, `turns` times. Returns the time of each slot.
    fn work(page: &CorePage, turn_ns: u64, turns: usize) -> Vec<u64> {
        let mut used = vec![0u64; page.slots() as usize];
        let mut me = None;
        for _ in 0..turns {
            let next = page.choose(me, NOW).unwrap();
            assert_ne!(Some(next), me);
            while page.budget(next) > 0 {
                used[next as usize] += turn_ns;
                page.pay(next, turn_ns);
            }
            me = Some(next);
        }
        used
    }

    #[test]
    fn time_is_divided_by_shares() {
        let page = page(3);
        for (slot, share) in [WHOLE / 2, WHOLE / 4, WHOLE / 4].into_iter().enumerate() {
            page.share(slot as u32).store(share, Ordering::Relaxed);
            post(&page, slot as u32, 1_000_000);
        }
        // Slices of 40 µs, whatever the budget: debts are paid back.
        let used = work(&page, 40_000, 10_000);
        let total: u64 = used.iter().sum();
        for (used, percent) in used.into_iter().zip([50, 25, 25]) {
            assert!((used * 100 / total).abs_diff(percent) <= 1, "{used} of {total}");
        }
    }

    #[test]
    fn one_that_is_in_debt_waits_until_others_had_their_part() {
        let page = page(3);
        for slot in 0..3 {
            page.share(slot).store(WHOLE / 3, Ordering::Relaxed);
            post(&page, slot, 10);
        }
        page.pay(1, 2_000_000);
        // 2 ms of debt are six parts of a third of a millisecond; the others get theirs of each.
        let used = work(&page, 20_000, 12);
        assert!(used[1] == 0 && (1_900_000..2_300_000).contains(&used[0]), "{used:?}");
        assert!(work(&page, 20_000, 4)[1] > 0);
        page.pay(1, u64::MAX);
        assert_eq!(i64::from(page.budget(1)), -wakeup::DEBT_NS);
    }

    #[test]
    fn a_slot_on_hold_is_not_chosen() {
        let page = page(2);
        post(&page, 0, 5);
        page.hold(0).store(1, Ordering::Relaxed);
        assert_eq!(page.choose(None, NOW), None);
        assert!(!page.has_other(1));
        page.hold(0).store(0, Ordering::Relaxed);
        assert_eq!(page.choose(None, NOW), Some(0));
        assert!(page.has_other(1) && !page.has_other(0));
    }

    #[test]
    fn favoured_slots_are_found_among_many_and_go_first_while_they_have_budget() {
        let page = page(200);
        (0..200).for_each(|slot| post(&page, slot, 5));
        assert!(!page.is_preceded(7));
        page.set_level(150, 2);
        page.favour(150, true);
        assert!(!page.is_preceded(7), "it had no part yet");
        page.endow(150, 10_000);
        assert!(page.is_preceded(7) && !page.is_preceded(150));
        assert_eq!(page.choose(Some(7), NOW), Some(150));
        page.set_level(150, 0);
        page.favour(150, false);
        assert!(!page.is_preceded(7));
        assert_eq!(page.choose(Some(7), NOW), Some(8));
        // One that is further down with a full ring precedes all; a new NF in its slot does not.
        page.depth(180).store(1, Ordering::Relaxed);
        page.set_pressing(180, 5);
        page.favour(180, true);
        page.pay(180, 9_000_000);
        assert!(page.is_preceded(7));
        assert_eq!(page.choose(Some(7), NOW), Some(180));
        page.reset(180);
        assert_eq!((page.level(180), page.pressing(180)), (0, 0));
        post(&page, 180, 5);
        assert!(!page.is_preceded(7));
    }

    #[test]
    fn a_suspended_slot_is_not_chosen() {
        let page = page(2);
        post(&page, 0, 5);
        page.suspended(0).store(1, Ordering::Relaxed);
        assert_eq!(page.choose(None, NOW), None);
        assert!(!page.has_other(1));
        page.suspended(0).store(0, Ordering::Relaxed);
        assert_eq!(page.choose(None, NOW), Some(0));
    }

    #[test]
    fn one_that_waits_too_long_goes_first() {
        let page = page(2);
        page.depth(0).store(1, Ordering::Relaxed);
        post(&page, 0, 1);
        let later = NOW + Rules::default().bound_ns;
        page.set_pending(1, later);
        page.posted(1).store(100, Ordering::Relaxed);
        assert_eq!(page.choose(None, later), Some(1));
        assert_eq!(page.choose(None, later + 1_000), Some(0));
        // Once it has run, its wait starts anew.
        page.clear_pending(0);
        page.set_pending(0, later);
        assert_eq!(page.choose(None, later + 1_000), Some(1));
        // A future time counts as no wait.
        page.clear_pending(0);
        page.set_pending(0, later + 1_000_000_000);
        assert_eq!(page.choose(None, later), Some(1));
    }

    #[test]
    fn with_many_slots_each_has_its_turn() {
        let page = page(200);
        (0..200).for_each(|slot| post(&page, slot, 5));
        let mut turns = vec![0u32; 200];
        let mut me = None;
        for _ in 0..20_000 {
            let next = page.choose(me, NOW).unwrap();
            turns[next as usize] += 1;
            page.pay(next, 200_000);
            me = Some(next);
        }
        assert!(turns.iter().all(|n| (50..=150).contains(n)), "{turns:?}");
    }

    #[test]
    fn nonsense_from_a_neighbour_is_no_work() {
        let page = page(2);
        post(&page, 1, 1);
        page.taken(1).store(77, Ordering::Relaxed);
        assert_eq!(page.choose(None, NOW), None);
    }

    #[test]
    fn whether_nfs_hand_over_is_not_read_from_the_page() {
        let (memory, page) = CorePage::create(2, true).unwrap();
        (0..CACHE_LINE).step_by(4).for_each(|offset| page.word(offset).store(0, Ordering::Relaxed));
        let is_said = [true, false].map(|said| CorePage::map(memory.fd(), 2, said).unwrap().hands_over());
        assert_eq!(is_said, [true, false]);
    }

    #[test]
    fn a_sleeper_starts_the_next_one_and_is_woken_itself() {
        let page = page(2);
        post(&page, 1, 5);
        page.asleep(0).store(0, Ordering::Relaxed);
        page.running().store(1, Ordering::Relaxed);
        let sleeper = std::thread::spawn({
            let page = page.clone();
            move || page.sleep(0, None, || false)
        });
        while page.asleep(1).load(Ordering::Acquire) != 0 {
            std::hint::spin_loop();
        }
        // Slot 0 said "asleep" before it woke slot 1.
        while !page.wake(0) {
            std::hint::spin_loop();
        }
        assert!(sleeper.join().unwrap());
    }

    #[test]
    fn with_nothing_to_start_the_core_is_given_up() {
        let page = page(1);
        page.running().store(1, Ordering::Relaxed);
        assert!(!page.sleep(0, Some(std::time::Duration::from_millis(1)), || false));
        assert_eq!(page.running().load(Ordering::Relaxed), 0, "a timeout is no claim to the core");
        page.running().store(1, Ordering::Relaxed);
        assert!(!page.sleep(0, None, || true), "work came: no sleep");
    }

    #[test]
    fn an_nf_that_finds_the_next_one_awake_leaves_the_core_to_it_and_not_to_a_sleeper() {
        let page = page(2);
        post(&page, 1, 5);
        page.running().store(1, Ordering::Relaxed);
        page.asleep(1).store(0, Ordering::Relaxed);
        assert!(!page.hand_over(0));
        assert_eq!(page.running().load(Ordering::Relaxed), 2, "it is awake, and hands over itself");
        // It fell asleep meanwhile: it has read `running` before the check, or it is woken.
        page.running().store(1, Ordering::Relaxed);
        page.asleep(1).store(1, Ordering::Relaxed);
        assert!(page.hand_over(0));
        assert_eq!((page.running().load(Ordering::Relaxed), page.asleep(1).load(Ordering::Relaxed)), (2, 0));
    }

    #[test]
    fn one_that_does_not_have_the_core_gives_it_to_nobody() {
        let page = page(3);
        post(&page, 1, 5);
        page.running().store(3, Ordering::Relaxed);
        assert!(!page.hand_over(0));
        page.sleep_by(0, Some(0), || true, |_, _| panic!("work came"));
        assert_eq!(page.running().load(Ordering::Relaxed), 3);
        assert_eq!(page.asleep(1).load(Ordering::Relaxed), 1, "nobody was started");
        page.give_up(0);
        page.release(1);
        assert_eq!(page.running().load(Ordering::Relaxed), 3);
        page.release(2);
        assert_eq!(page.running().load(Ordering::Relaxed), 0);
        // No NF had the core: the one that finds packets takes it.
        page.sleep_by(0, Some(0), || true, |_, _| panic!("work came"));
        assert_eq!(page.running().load(Ordering::Relaxed), 1);
    }

    #[test]
    fn one_that_leaves_starts_the_next_one_and_is_not_waited_for() {
        let page = page(3);
        post(&page, 0, 5);
        post(&page, 2, 5);
        page.running().store(1, Ordering::Relaxed);
        page.leave(0);
        assert_eq!((page.running().load(Ordering::Relaxed), page.asleep(2).load(Ordering::Relaxed)), (3, 0));
        assert!(!page.is_pending(0));
        // One outside the hand-over starts no NF.
        page.asleep(2).store(1, Ordering::Relaxed);
        page.running().store(2, Ordering::Relaxed);
        assert!(!page.sleep_by(1, None, || false, |_, _| {}));
        assert_eq!((page.running().load(Ordering::Relaxed), page.asleep(2).load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn what_the_manager_says_is_written_again_and_the_lies_are_counted() {
        let page = page(70);
        let said = Said { depth: 3, hold: ALONE, share: WHOLE / 4, level: 2, pressing: 0 };
        assert_eq!(page.restore(68, &said), 5, "depth, hold, share, level and the bit of the favoured");
        assert_eq!(page.restore(68, &said), 0);
        page.depth(68).store(9, Ordering::Relaxed);
        page.favoured_word(1).store(0, Ordering::Relaxed);
        assert_eq!(page.restore(68, &said), 2);
        assert_eq!((page.depth(68).load(Ordering::Relaxed), page.favoured_word(1).load(Ordering::Relaxed)), (3, 1 << 4));
        page.set_any_favoured(false);
        assert_eq!((page.restore(68, &said), page.has_favoured(), page.restore(68, &said)), (1, true, 0));
    }

    #[test]
    fn marks_of_slots_without_an_nf_are_cleared_and_those_of_others_stay() {
        let page = page(130);
        let mark = || {
            for slot in [3, 64, 129] {
                post(&page, slot, 1);
                page.favour(slot, true);
            }
        };
        mark();
        assert!(page.sweep(&[1 << 3]));
        let favoured = |index: usize| page.favoured_word(index).load(Ordering::Relaxed);
        let marks = || [0, 1, 2].map(|index| (page.pending(index), favoured(index)));
        assert_eq!(marks(), [(1 << 3, 1 << 3), (0, 0), (0, 0)]);
        assert!(!page.sweep(&[1 << 3]));
        mark();
        assert!(!page.sweep(&[1 << 3, 1, 2]), "NFs have them");
        assert_eq!(marks(), [(1 << 3, 1 << 3), (1, 1), (2, 2)]);
    }

    /// Xorshift: the same noise in each run.
    fn noise() -> impl FnMut() -> u32 {
        let mut state = 0x5eed_5eed_5eed_5eedu64;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u32
        }
    }

    #[test]
    fn noise_all_over_the_page_costs_a_choice_a_constant() {
        let page = page(4096);
        let mut noise = noise();
        for round in 0..50 {
            for offset in (CACHE_LINE..bytes(4096)).step_by(4) {
                page.word(offset).store(noise(), Ordering::Relaxed);
            }
            if round == 0 {
                // All claim to have packets, and none has.
                (0..64).for_each(|index| page.pending_word(index).store(u64::MAX, Ordering::Relaxed));
                (0..4096).for_each(|slot| page.posted(slot).store(page.taken(slot).load(Ordering::Relaxed), Ordering::Relaxed));
                let mut named = 0;
                page.visit(None, usize::MAX, false, |_| named += 1);
                assert_eq!((page.choose(Some(3), NOW), named), (None, 0));
            }
            for me in [0, 63, 64, 4095] {
                let mut named = 0;
                page.visit(Some(me), usize::MAX, false, |slot| {
                    assert!(slot < 4096 && slot != me);
                    named += 1;
                });
                assert!(named <= MOST_LOOKED_AT);
                page.choose(Some(me), NOW);
                page.is_preceded(me);
                page.has_other(me);
                page.pay(me, u64::from(noise()));
                assert!(page.waiting(me) <= 1 << 31);
            }
        }
    }

    #[test]
    fn only_one_waker_rings() {
        let page = page(1);
        assert!(page.wake(0));
        assert!(!page.wake(0));
    }
}
