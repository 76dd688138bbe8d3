//! The decision about each flow: a bounded, ageing, exact-match table.
//!
//! Problem: remember up to a million flows, find one for each packet at more than 25 million
//! packets a second, and never grow, allocate or pause to clean up.
//!
//! Terms: a *slot* holds one flow in 64 bytes, a cache line. Eight slots are a *bucket*. Its eight
//! one-byte *tags* are one word (0: free); the words of eight buckets are a line, a *group*.
//!
//! Approach: the hash picks a group and a first and second bucket in it. A lookup compares the
//! hash's tag with eight tags at once in ordinary registers, and reads a slot only if the tag
//! matches. So a miss costs one cache line of an array with one byte a slot, mostly held in the L2
//! cache; a hit costs one line more. Both are fetched ahead for a whole burst
//! ([`Hasher`], [`FlowTable::lookup_burst`]).
//! A new flow goes to its first bucket, else to its second. If both are full, one of their 16 flows
//! moves to its own other bucket; if none can, the one idle longest is evicted. There are at least
//! three slots to two flows, so evictions below the limit are rare.
//!
//! Time is in ticks of [`TICK_MS`]: a slot is written once a tick. A call ages a few slots.
//!
//! Memory comes zeroed, on hugepages if possible. One thread owns it, and touches all of it before
//! the first packet ([`FlowTable::populate`]): few flows touch all hugepages, and the first touch
//! of one has taken up to 25 ms in a virtual machine.
//!
//! Limits: a flow may outlive its timeout by two ticks and one round of ageing.

use std::hash::{BuildHasher, RandomState};

use sluice_shm::memory::{advise_hugepages, populate};
use sluice_shm::{BURST, prefetch};

use super::key::{FlowKey, HashKeys, WORDS};
use crate::decision::Packed;

/// Milliseconds in a tick.
pub const TICK_MS: u64 = 128;

const SLOTS_PER_BUCKET: usize = 8;
const SLOTS_PER_GROUP: usize = 64;

/// What the table holds for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Known {
    /// The decision.
    pub decision: Packed,
    /// Generation of the configuration behind the decision; the caller decides again if it is old.
    pub generation: u32,
    /// Note of [`ChooseChain`](crate::steer::ChooseChain), at most [`MAX_NOTE`]; 0: none.
    pub note: u32,
}

impl Known {
    /// Whether it is a path, decided under this generation, of packets that nobody counts.
    #[inline(always)]
    pub(crate) fn is_settled(&self, generation: u32) -> bool {
        self.generation == generation && self.note == 0 && self.decision.number().is_some()
    }
}

/// Bits of a hash that [`parts`] reads; a slot's stamp keeps only these.
const HASH_BITS: u32 = 14;

/// Largest note of a decision.
pub const MAX_NOTE: u32 = (1 << (32 - HASH_BITS)) - 1;

/// Counters of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowTableStats {
    /// Flows in the table.
    pub entries: u64,
    /// Lookups that found their flow.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Flows evicted for a new one.
    pub evictions: u64,
    /// Flows removed because they were idle.
    pub aged: u64,
}

/// A flow: the key's words; path and generation; tick of its last packet, low hash bits and note.
type Slot = [u64; 8];

const DECISION: usize = WORDS;
const STAMP: usize = WORDS + 1;

const FREE: u64 = 0;

/// Zeroed words, aligned to cache lines and untouched until they are written.
#[derive(Debug)]
struct Lines {
    words: Vec<u64>,
    start: usize,
    count: usize,
}

impl Lines {
    fn new(count: usize) -> Self {
        // The allocator gets zeroed plain words from the system without touching them. Seven more
        // words leave space for the alignment.
        let words = vec![0u64; count * 8 + 7];
        let start = words.as_ptr().align_offset(64).min(7);
        advise_hugepages(&words);
        Self { words, start, count }
    }

    #[inline(always)]
    fn get(&self) -> &[Slot] {
        &self.words[self.start..].as_chunks().0[..self.count]
    }

    #[inline(always)]
    fn get_mut(&mut self) -> &mut [Slot] {
        &mut self.words[self.start..].as_chunks_mut().0[..self.count]
    }
}

/// The table of flows: see the module.
#[derive(Debug)]
pub struct FlowTable {
    /// A line of tags for each group.
    tags: Lines,
    slots: Lines,
    groups: u64,
    keys: HashKeys,
    /// Bucket that ageing visits next.
    hand: usize,
    stats: FlowTableStats,
}

/// Hashes keys, and fetches what their lookups read first. It has copies of the table's fields: the
/// compiler would load those anew after each key that is stored.
#[derive(Debug)]
pub struct Hasher<'a> {
    tags: &'a [Slot],
    groups: u64,
    keys: HashKeys,
}

impl Hasher<'_> {
    /// The hash of a key, as [`FlowTable::hash_of`].
    #[inline(always)]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        let hash = key.hash(&self.keys);
        prefetch(&self.tags[group_of(hash, self.groups)]);
        hash
    }
}

/// Number of the group of a hash, of `groups`.
#[inline(always)]
fn group_of(hash: u64, groups: u64) -> usize {
    (((hash >> 32) * groups) >> 32) as usize
}

#[derive(Debug, Clone, Copy)]
struct Place {
    group: usize,
    first: usize,
    second: usize,
    tag: u64,
}

const EACH: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The high bit of each zero byte of `word`; above the lowest one, a byte of 1 may count as zero.
#[inline(always)]
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(EACH) & !word & HIGH
}

#[inline(always)]
fn lowest(marks: u64) -> usize {
    (marks.trailing_zeros() / 8) as usize & 7
}

/// Tag, bucket, and distance between the two buckets, from the low half of a hash.
#[inline(always)]
fn parts(hash: u32) -> (u64, usize, usize) {
    let tag = u64::from(hash & 0xff).max(1);
    let bucket = (hash >> 8 & 7) as usize;
    let apart = (hash >> 11 & 7).max(1) as usize;
    (tag, bucket, apart)
}

/// Ticks count from 1: a stamp of zero means a free slot.
#[inline(always)]
fn tick(now_ms: u64) -> u32 {
    (now_ms / TICK_MS) as u32 + 1
}

#[inline(always)]
fn stamp(tick: u32, hash: u64, note: u32) -> u64 {
    let low = hash & ((1 << HASH_BITS) - 1);
    u64::from(tick) | low << 32 | u64::from(note.min(MAX_NOTE)) << (32 + HASH_BITS)
}

#[inline(always)]
fn is(slot: &Slot, key: &FlowKey) -> bool {
    // Bitwise: one branch a packet.
    let k = key.words();
    let address = (slot[0] ^ k[0]) | (slot[1] ^ k[1]) | (slot[2] ^ k[2]) | (slot[3] ^ k[3]);
    (address | (slot[4] ^ k[4]) | (slot[5] ^ k[5])) == 0
}

#[inline(always)]
fn known(slot: &Slot) -> Known {
    Known {
        decision: Packed::from_bits(slot[DECISION] as u32),
        generation: (slot[DECISION] >> 32) as u32,
        note: (slot[STAMP] >> (32 + HASH_BITS)) as u32,
    }
}

/// A seed from the system, for [`FlowTable::new`].
pub fn random_seed() -> u64 {
    RandomState::new().hash_one(0u64)
}

impl FlowTable {
    /// A table for `max_flows` flows, about 98 bytes each, with hashes keyed by `seed`.
    pub fn new(max_flows: usize, seed: u64) -> Self {
        let groups = (max_flows.saturating_mul(3) / 2).div_ceil(SLOTS_PER_GROUP).clamp(1, u32::MAX as usize / SLOTS_PER_GROUP);
        Self {
            tags: Lines::new(groups),
            slots: Lines::new(groups * SLOTS_PER_GROUP),
            groups: groups as u64,
            keys: HashKeys::new(seed),
            hand: 0,
            stats: FlowTableStats::default(),
        }
    }

    /// Has the kernel give all of its memory now. To be called by the thread that will use it, once
    /// it is where it stays: the memory is then near its core.
    pub fn populate(&mut self) {
        populate(&mut self.tags.words);
        populate(&mut self.slots.words);
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        (self.tags.words.len() + self.slots.words.len()) * size_of::<u64>()
    }

    /// Number of slots: the most flows that the table can hold.
    pub fn capacity(&self) -> usize {
        self.groups as usize * SLOTS_PER_GROUP
    }

    /// The counters so far.
    pub fn stats(&self) -> FlowTableStats {
        self.stats
    }

    /// The hash of a key that the other calls take.
    #[inline(always)]
    pub fn hash_of(&self, key: &FlowKey) -> u64 {
        key.hash(&self.keys)
    }

    #[inline(always)]
    fn place(&self, hash: u64) -> Place {
        let (tag, first, apart) = parts(hash as u32);
        Place { group: group_of(hash, self.groups), first, second: first ^ apart, tag }
    }

    #[inline]
    fn find(&self, key: &FlowKey, place: Place) -> Option<usize> {
        let tags = self.tags.get()[place.group];
        let slots = self.slots.get();
        [place.first, place.second].into_iter().find_map(|bucket| {
            let mut marks = zeros(tags[bucket] ^ (place.tag * EACH));
            while marks != 0 {
                let at = slot_at(place.group, bucket, lowest(marks));
                // Next to a tag of 1, a free slot may be marked, with the words of a removed flow.
                if is(&slots[at], key) && slots[at][STAMP] != FREE {
                    return Some(at);
                }
                marks &= marks - 1;
            }
            None
        })
    }

    /// What is known of a flow; records that it has a packet.
    #[inline]
    pub fn lookup(&mut self, key: &FlowKey, hash: u64, now_ms: u64) -> Option<Known> {
        let Some(at) = self.find(key, self.place(hash)) else {
            self.stats.misses += 1;
            return None;
        };
        self.stats.hits += 1;
        let slot = &mut self.slots.get_mut()[at];
        touch(slot, tick(now_ms));
        Some(known(slot))
    }

    /// What is known of a flow. Nothing is counted or recorded.
    pub fn peek(&self, key: &FlowKey, hash: u64) -> Option<Known> {
        self.find(key, self.place(hash)).map(|at| known(&self.slots.get()[at]))
    }

    /// A flow's decision, and its idle time in milliseconds to within two ticks. Is not counted.
    pub fn idle_ms(&self, key: &FlowKey, hash: u64, now_ms: u64) -> Option<(u64, Packed)> {
        let slot = &self.slots.get()[self.find(key, self.place(hash))?];
        Some((u64::from(tick(now_ms).saturating_sub(slot[STAMP] as u32)) * TICK_MS, known(slot).decision))
    }

    /// What hashes the keys of a burst.
    #[inline(always)]
    pub(crate) fn hasher(&self) -> Hasher<'_> {
        Hasher { tags: self.tags.get(), groups: self.groups, keys: self.keys }
    }

    /// As [`FlowTable::lookup`] for a burst: calls `found` with the index of each key and what is
    /// known of it, first for the keys that are found at once. Handles at most [`BURST`] keys and
    /// hashes, which a [`Hasher`] made.
    #[inline(always)]
    pub fn lookup_burst(&mut self, keys: &[FlowKey], hashes: &[u64], now_ms: u64, mut found: impl FnMut(usize, Option<Known>)) {
        let now = tick(now_ms);
        let mut at = [0u32; BURST];
        let tags = self.tags.get();
        let slots = self.slots.get();
        for (at, hash) in at.iter_mut().zip(hashes) {
            let place = self.place(*hash);
            let tags = &tags[place.group];
            let (mut bucket, mut marks) = (place.first, zeros(tags[place.first] ^ (place.tag * EACH)));
            if marks == 0 {
                (bucket, marks) = (place.second, zeros(tags[place.second] ^ (place.tag * EACH)));
            }
            // Without a mark this is some slot, which the comparison rejects.
            let guess = slot_at(place.group, bucket, lowest(marks));
            *at = guess as u32;
            prefetch(&slots[guess]);
        }
        let mut hits = 0;
        let slots = self.slots.get_mut();
        let mut unsure = 0u32;
        for (i, ((key, at), _)) in keys.iter().zip(at).zip(hashes).enumerate() {
            let slot = &mut slots[at as usize];
            // A free slot may still hold the words of a removed flow.
            if is(slot, key) && slot[STAMP] != FREE {
                touch(slot, now);
                hits += 1;
                found(i, Some(known(slot)));
            } else {
                unsure |= 1 << i;
            }
        }
        self.stats.hits += hits;
        // The first matching tag was another flow's, or none matched.
        while unsure != 0 {
            let i = unsure.trailing_zeros() as usize;
            unsure &= unsure - 1;
            found(i, self.lookup(&keys[i], hashes[i], now_ms));
        }
    }

    /// Sets what is known of a flow.
    pub fn insert(&mut self, key: &FlowKey, hash: u64, known: Known, now_ms: u64) {
        let place = self.place(hash);
        let now = tick(now_ms);
        let at = match self.find(key, place) {
            Some(at) => at,
            None => {
                let at = self.make_room(place);
                self.tags.get_mut()[place.group][at / SLOTS_PER_BUCKET % 8] |= place.tag << (at % SLOTS_PER_BUCKET * 8);
                self.stats.entries += 1;
                at
            }
        };
        let slot = &mut self.slots.get_mut()[at];
        slot[..WORDS].copy_from_slice(key.words());
        slot[DECISION] = u64::from(known.decision.bits()) | u64::from(known.generation) << 32;
        slot[STAMP] = stamp(now, hash, known.note);
    }

    /// A free slot for a flow that is not in the table.
    fn make_room(&mut self, place: Place) -> usize {
        let group = place.group;
        let free = |tags: &[u64; 8], bucket: usize| {
            let marks = zeros(tags[bucket]);
            (marks != 0).then(|| slot_at(group, bucket, lowest(marks)))
        };
        let tags = self.tags.get()[group];
        if let Some(at) = free(&tags, place.first).or_else(|| free(&tags, place.second)) {
            return at;
        }
        // Both are full: a flow moves to its other bucket, or the one idle longest is evicted.
        let slots = self.slots.get();
        let mut oldest = (u32::MAX, 0);
        let mut moving = None;
        for from in [place.first, place.second].into_iter().flat_map(|b| (0..8).map(move |way| slot_at(group, b, way))) {
            let stamp = slots[from][STAMP];
            let bucket = from / SLOTS_PER_BUCKET % 8;
            let (_, _, apart) = parts((stamp >> 32) as u32);
            if let Some(to) = free(&tags, bucket ^ apart) {
                moving = Some((from, to));
                break;
            }
            oldest = oldest.min((stamp as u32, from));
        }
        if let Some((from, to)) = moving {
            let slots = self.slots.get_mut();
            slots[to] = slots[from];
            let (tag, _, _) = parts((slots[from][STAMP] >> 32) as u32);
            self.tags.get_mut()[group][to / SLOTS_PER_BUCKET % 8] |= tag << (to % SLOTS_PER_BUCKET * 8);
            self.stats.entries += 1;
            self.release(from);
            return from;
        }
        let (_, at) = oldest;
        self.release(at);
        self.stats.evictions += 1;
        at
    }

    fn release(&mut self, at: usize) {
        let word = &mut self.tags.get_mut()[at / SLOTS_PER_GROUP][at / SLOTS_PER_BUCKET % 8];
        *word &= !(0xff << (at % SLOTS_PER_BUCKET * 8));
        self.slots.get_mut()[at][STAMP] = FREE;
        self.stats.entries -= 1;
    }

    /// Removes a flow, and returns whether it was known.
    pub fn remove(&mut self, key: &FlowKey, hash: u64) -> bool {
        let found = self.find(key, self.place(hash));
        if let Some(at) = found {
            self.release(at);
        }
        found.is_some()
    }

    /// Removes all flows. Takes milliseconds for a large table.
    pub fn clear(&mut self) {
        for at in 0..self.capacity() {
            if self.tags.get()[at / SLOTS_PER_GROUP][at / SLOTS_PER_BUCKET % 8] >> (at % SLOTS_PER_BUCKET * 8) & 0xff != 0 {
                self.release(at);
            }
        }
    }

    /// Visits the next `budget` slots (rounded up to whole buckets), removes flows without a packet
    /// for `timeout_ms`, and returns how many. Never early, at most two ticks late. Call it with a
    /// few slots each round: it prefetches what the next call visits.
    pub fn age(&mut self, now_ms: u64, timeout_ms: u64, budget: usize) -> usize {
        let now = tick(now_ms);
        let limit = u32::try_from(timeout_ms.div_ceil(TICK_MS) + 1).unwrap_or(u32::MAX);
        let all = self.groups as usize * 8;
        let visits = budget.div_ceil(SLOTS_PER_BUCKET).min(all);
        let mut aged = 0;
        for _ in 0..visits {
            let bucket = self.hand;
            self.hand = if bucket + 1 == all { 0 } else { bucket + 1 };
            for at in taken(self.tags.get(), bucket) {
                let seen = self.slots.get()[at][STAMP] as u32;
                if now.saturating_sub(seen) >= limit {
                    self.release(at);
                    aged += 1;
                }
            }
        }
        for ahead in 0..visits.min(all - self.hand) {
            for at in taken(self.tags.get(), self.hand + ahead) {
                prefetch(&self.slots.get()[at]);
            }
        }
        self.stats.aged += aged as u64;
        aged
    }
}

/// The slots in use of a bucket, as indices into the whole table.
#[inline(always)]
fn taken(tags: &[Slot], bucket: usize) -> impl Iterator<Item = usize> + use<> {
    let word = tags[bucket / 8][bucket % 8];
    (0..SLOTS_PER_BUCKET)
        .take(if word == 0 { 0 } else { SLOTS_PER_BUCKET })
        .filter(move |way| word >> (way * 8) & 0xff != 0)
        .map(move |way| bucket * SLOTS_PER_BUCKET + way)
}

#[inline(always)]
fn slot_at(group: usize, bucket: usize, way: usize) -> usize {
    (group * 8 + bucket) * SLOTS_PER_BUCKET + way
}

/// Records that a flow has a packet, once a tick.
#[inline(always)]
fn touch(slot: &mut Slot, now: u32) {
    if slot[STAMP] as u32 != now {
        slot[STAMP] = slot[STAMP] >> 32 << 32 | u64::from(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn key(n: u32) -> FlowKey {
        let mut packet = [0u8; 64];
        packet[12] = 0x08;
        packet[14] = 0x45;
        packet[17] = 46;
        packet[23] = 17;
        packet[26..30].copy_from_slice(&n.to_be_bytes());
        FlowKey::parse(&packet, 64, 1)
    }

    fn decide(n: u32) -> Known {
        Known { decision: Packed::path(n), generation: !n, note: n & MAX_NOTE }
    }

    /// Page faults of this thread for which no disk was read.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The tenth field; the second one, in brackets, is the thread's name.
        stat.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn a_populated_table_takes_no_memory_later() {
        let fill = |mut table: FlowTable| {
            let before = faults();
            (0..100_000).for_each(|n| table.insert(&key(n), table.hash_of(&key(n)), decide(n), 0));
            (faults() - before, table)
        };
        let (lazy, _) = fill(FlowTable::new(100_000, 1));
        let mut table = FlowTable::new(100_000, 1);
        table.populate();
        let (populated, table) = fill(table);
        // To ask for the number may fault, too.
        assert!(lazy > 2 * populated, "{lazy} faults, {populated} where it was populated");
        assert!(table.bytes() > 100_000 * 64);
    }

    #[test]
    fn holds_as_many_flows_as_it_was_made_for() {
        for (flows, seed) in [(1000, 1), (20_000, 2), (100_000, 3)] {
            let mut table = FlowTable::new(flows, seed);
            for n in 0..flows as u32 {
                table.insert(&key(n), table.hash_of(&key(n)), decide(n), 0);
            }
            let lost = table.stats().evictions as usize;
            assert!(lost * 1000 <= flows, "{lost} of {flows} evicted");
            assert_eq!(table.stats().entries as usize, flows - lost);
            // Many share a tag here: both lookups must tell them apart.
            let (mut one_by_one, mut in_bursts) = (0, 0);
            for start in (0..flows as u32).step_by(BURST) {
                let numbers: Vec<u32> = (start..(start + BURST as u32).min(flows as u32)).collect();
                let keys: Vec<FlowKey> = numbers.iter().map(|n| key(*n)).collect();
                let hashes: Vec<u64> = keys.iter().map(|k| table.hash_of(k)).collect();
                let right = |i: usize, found: Option<Known>| usize::from(found == Some(decide(numbers[i])));
                one_by_one += (0..keys.len()).map(|i| right(i, table.lookup(&keys[i], hashes[i], 0))).sum::<usize>();
                table.lookup_burst(&keys, &hashes, 0, |i, found| in_bursts += right(i, found));
            }
            assert_eq!((one_by_one, in_bursts), (flows - lost, flows - lost));
        }
    }

    #[test]
    fn a_flood_evicts_the_idle_ones_and_never_grows() {
        let mut table = FlowTable::new(64, 7);
        let capacity = table.capacity() as u64;
        for n in 0..10_000u32 {
            // Flow 0 has a packet all the time.
            let now = u64::from(n) * TICK_MS;
            table.insert(&key(0), table.hash_of(&key(0)), decide(0), now);
            table.insert(&key(n), table.hash_of(&key(n)), decide(n), now);
        }
        let stats = table.stats();
        assert!(stats.entries <= capacity);
        assert_eq!(stats.entries + stats.evictions, 10_000);
        assert_eq!(table.lookup(&key(0), table.hash_of(&key(0)), 0), Some(decide(0)));
        table.clear();
        assert_eq!(table.stats().entries, 0);
        assert_eq!(table.lookup(&key(0), table.hash_of(&key(0)), 0), None);
    }

    #[test]
    fn what_left_is_not_found_in_its_free_slot() {
        let mut table = FlowTable::new(64, 7);
        let (k, hash) = (key(5), table.hash_of(&key(5)));
        table.insert(&k, hash, decide(5), 0);
        assert!(table.remove(&k, hash));
        assert!(!table.remove(&k, hash));
        let mut answers = Vec::new();
        table.lookup_burst(&[k], &[hash], 0, |i, d| answers.push((i, d)));
        assert_eq!(answers, [(0, None)]);
        let mut answers = Vec::new();
        table.lookup_burst(&[FlowKey::default()], &[0], 0, |i, d| answers.push((i, d)));
        assert_eq!(answers, [(0, None)]);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u32),
        Remove(u32),
        Lookup(Vec<u32>),
        Wait(u64),
        Age,
    }

    fn step() -> impl Strategy<Value = Step> {
        let n = || 0..60u32;
        prop_oneof![
            4 => n().prop_map(Step::Insert),
            1 => n().prop_map(Step::Remove),
            4 => prop::collection::vec(n(), 1..=BURST).prop_map(Step::Lookup),
            2 => (0..3000u64).prop_map(Step::Wait),
            2 => Just(Step::Age),
        ]
    }

    /// Compares with a map of (decision, last packet): equal answers, until a flow may be removed.
    fn check_against_a_map(steps: &[Step], seed: u64) -> Result<(), TestCaseError> {
        const TIMEOUT: u64 = 5000;
        let mut table = FlowTable::new(1000, seed);
        let mut model: HashMap<u32, (Known, u64)> = HashMap::new();
        let mut now = 0;
        let mut version = 0;
        for step in steps {
            match step {
                Step::Insert(n) => {
                    version += 1;
                    table.insert(&key(*n), table.hash_of(&key(*n)), decide(version), now);
                    model.insert(*n, (decide(version), now));
                }
                Step::Remove(n) => prop_assert_eq!(table.remove(&key(*n), table.hash_of(&key(*n))), model.remove(n).is_some()),
                Step::Lookup(burst) => {
                    let keys: Vec<FlowKey> = burst.iter().map(|n| key(*n)).collect();
                    let hashes: Vec<u64> = keys.iter().map(|k| table.hash_of(k)).collect();
                    let mut answers = vec![None; burst.len()];
                    table.lookup_burst(&keys, &hashes, now, |i, found| answers[i] = Some(found));
                    for (n, answer) in burst.iter().zip(answers) {
                        prop_assert_eq!(answer, Some(model.get(n).map(|m| m.0)));
                        model.entry(*n).and_modify(|m| m.1 = now);
                    }
                }
                Step::Wait(ms) => now += ms,
                Step::Age => {
                    let before = model.len();
                    let aged = table.age(now, TIMEOUT, table.capacity());
                    // Never early, never later than two ticks; in between, the table decides.
                    for (n, (decision, seen)) in std::mem::take(&mut model) {
                        let idle = now - seen;
                        let known = table.find(&key(n), table.place(table.hash_of(&key(n)))).is_some();
                        prop_assert!(known || idle >= TIMEOUT, "{n} forgotten after {idle} ms");
                        prop_assert!(!known || idle < TIMEOUT + 2 * TICK_MS, "{n} known after {idle} ms");
                        if known {
                            model.insert(n, (decision, seen));
                        }
                    }
                    prop_assert_eq!(before - model.len(), aged);
                }
            }
            prop_assert_eq!(table.stats().entries as usize, model.len());
            prop_assert_eq!(table.stats().evictions, 0);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn behaves_as_a_map_with_ageing(steps in prop::collection::vec(step(), 1..200), seed in any::<u64>()) {
            check_against_a_map(&steps, seed)?;
        }
    }

    #[test]
    fn behaves_as_a_map_where_it_once_did_not() {
        // 33 takes the slot after 55's, whose tag is 1.
        use Step::{Age, Insert, Lookup, Remove, Wait};
        let seed = 10_095_655_749_529_196_757;
        let to_age = [Insert(55), Insert(33), Wait(877), Wait(2392), Wait(1979), Insert(55), Age];
        for then in [vec![], vec![Lookup(vec![33, 55])], vec![Remove(33)], vec![Insert(33), Lookup(vec![33]), Remove(33)]] {
            check_against_a_map(&[&to_age[..], &then].concat(), seed).unwrap();
        }
    }

    #[test]
    fn ageing_comes_round_a_few_slots_at_a_time() {
        let mut table = FlowTable::new(500, 3);
        for n in 0..300 {
            table.insert(&key(n), table.hash_of(&key(n)), decide(n), 0);
        }
        let mut aged = 0;
        for _ in 0..table.capacity() / 16 {
            let n = table.age(60_000, 30_000, 16);
            assert!(n <= 16);
            aged += n;
        }
        assert_eq!((aged, table.stats().aged, table.stats().entries), (300, 300, 0));
        assert_eq!(table.age(120_000, 30_000, 1), 0);
    }
}
