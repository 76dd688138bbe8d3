//! Meters of flows: what each flow of a packet thread had, while something asks.
//!
//! Problem: an operator asks which flows there are, what they had and how they ended; the packet
//! path pays nothing while nobody asks, and little while somebody does. Approach: a packet thread
//! has a [`FlowMeter`] among its observers, or none. The meter counts in [`MeteredFlows`], which
//! other threads read meanwhile, and puts the record of a flow that has ended on a bounded queue.
//!
//! A flow here is a direction of a connection: packets of one ingress port, VLAN, protocol, pair of
//! addresses and pair of ports, whatever their DSCP. A slot has a version, odd while a flow is in
//! it: a reader that sees the same odd version before and after it has read a flow's own record.
//!
//! Limits: 16 flows share a set of slots. A new one in a full set ends the one that has had no
//! packet for the longest time. The flow of a packet that is dropped is found by the packet's bytes
//! as they are then: if an NF has altered the addresses, it is a flow of the altered ones. A drop
//! behind the entry begins no flow, for an NF can write any addresses: where there is none, as in
//! another thread than the one that received the packet, it is counted as one of no flow. A packet
//! that leaves in another thread has no latency. Drops by ports are of no flow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam_queue::ArrayQueue;
use sluice_api::model::FlowEndReason;
use sluice_shm::arena::Arena;

use crate::capture::{LossReason, Sight};
use crate::chain::{DropReason, Hop};
use crate::classify::flow_table::random_seed;
use crate::classify::key::{FlowKey, HashKeys, WORDS};
use crate::classify::{key_of, tcp, tcp_flags};
use crate::counter::Counter;
use crate::frame::{InFrame, Packet};

/// Slots in a set.
const WAYS: usize = 16;
/// NFs of a path that a record has.
pub const METERED_NFS: usize = 8;
/// Records of flows that have ended, until they are taken.
const QUEUE: usize = 1 << 16;
/// Time without a packet after which a flow ends whose end was seen: late packets belong to it.
const LINGER_NS: u64 = 2_000_000_000;

/// Words of a slot: the key, and then these.
const SLOT: usize = 16;
/// Chain (16 bits), TCP flags (8), drop reason (8), version (32).
const META: usize = WORDS;
/// Time of the last packet, in nanoseconds. Ageing reads no more than these words.
const LAST: usize = WORDS + 1;
/// Time of the first packet, in nanoseconds.
const FIRST: usize = WORDS + 2;
const PACKETS: usize = WORDS + 3;
const BYTES: usize = WORDS + 4;
const DROPPED: usize = WORDS + 5;
/// Sum of latencies in nanoseconds.
const LATENCY: usize = WORDS + 6;
/// Number of latencies (32 bits), and the longest in microseconds.
const TIMED: usize = WORDS + 7;
/// The NFs of the path, four in a word.
const NFS: usize = WORDS + 8;

const _: () = assert!(NFS + METERED_NFS / 4 == SLOT);

const NO_CHAIN: u64 = 0xffff;
const NO_NF: u16 = u16::MAX;
const TCP: u32 = 16;
const WHY: u32 = 24;
/// The lowest bit of the version.
const IN_USE: u64 = 1 << 32;

/// What a meter keeps, and when flows end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeterSettings {
    /// Flows at a time; some hundred more may fit, and some fewer.
    pub flows: usize,
    /// Time without a packet after which a flow ends, in nanoseconds.
    pub idle_ns: u64,
    /// Longest time of a record, in nanoseconds: then it ends, and another one begins with the next
    /// packet. 0: without limit.
    pub active_ns: u64,
}

/// A copy of what is known of a flow.
#[derive(Debug, Clone, Copy)]
pub struct FlowRecord {
    words: [u64; SLOT],
    /// Why it has ended, if it has.
    pub end: Option<FlowEndReason>,
}

impl FlowRecord {
    /// Its key, with DSCP 0.
    pub fn key(&self) -> FlowKey {
        let [k0, k1, k2, k3, k4, k5, ..] = self.words;
        FlowKey::of_words([k0, k1, k2, k3, k4, k5])
    }

    /// Number of its chain, if it has one.
    pub fn chain(&self) -> Option<u16> {
        let chain = self.words[META] & NO_CHAIN;
        (chain != NO_CHAIN).then_some(chain as u16)
    }

    /// Numbers of the NFs of its path, at most [`METERED_NFS`].
    pub fn nfs(&self) -> impl Iterator<Item = u16> + use<> {
        let words = [self.words[NFS], self.words[NFS + 1]];
        words.into_iter().flat_map(|word| (0..4).map(move |at| (word >> (16 * at)) as u16)).take_while(|nf| *nf != NO_NF)
    }

    /// TCP flags that its packets had, each with those of all others.
    pub fn tcp_flags(&self) -> u8 {
        (self.words[META] >> TCP) as u8
    }

    /// Why its last packet that was dropped was dropped.
    pub fn why(&self) -> Option<LossReason> {
        LossReason::from_code((self.words[META] >> WHY) as u8)
    }

    /// Time of its first packet, in nanoseconds of the monotonic clock.
    pub fn first_ns(&self) -> u64 {
        self.words[FIRST]
    }

    /// Time of its last packet, in nanoseconds of the monotonic clock.
    pub fn last_ns(&self) -> u64 {
        self.words[LAST]
    }

    /// Packets received.
    pub fn packets(&self) -> u64 {
        self.words[PACKETS]
    }

    /// Bytes received.
    pub fn bytes(&self) -> u64 {
        self.words[BYTES]
    }

    /// Packets dropped, at the entry and behind it; not by ports.
    pub fn dropped(&self) -> u64 {
        self.words[DROPPED]
    }

    /// Average and longest latency of its packets that were timed, in nanoseconds.
    pub fn latency_ns(&self) -> Option<(u64, u64)> {
        let (count, longest_us) = (self.words[TIMED] & 0xffff_ffff, self.words[TIMED] >> 32);
        Some((self.words[LATENCY].checked_div(count)?, longest_us * 1000))
    }
}

/// The flows of a packet thread: its meter writes, and all may read.
#[derive(Debug)]
pub struct MeteredFlows {
    slots: Box<[AtomicU64]>,
    /// Words before the first slot, which begins a cache line.
    start: usize,
    ended: ArrayQueue<FlowRecord>,
    live: Counter,
    lost: Counter,
    flowless: Counter,
}

// Relaxed, here and below: what is not ordered by the version is a number for people.
fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn put(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

fn add(word: &AtomicU64, n: u64) {
    put(word, load(word).wrapping_add(n));
}

/// Shows the flow of a slot under its version, or with other flags.
fn show(slot: &[AtomicU64; SLOT], meta: u64) {
    // Release: the words of the flow come before the version that shows them.
    slot[META].store(meta, Ordering::Release);
}

impl MeteredFlows {
    fn slot(&self, at: usize) -> &[AtomicU64; SLOT] {
        let (slots, _) = self.slots[self.start..].as_chunks();
        &slots[at]
    }

    /// A copy of the flow in a slot; none if there is none, or it went meanwhile.
    fn copy(&self, at: usize) -> Option<FlowRecord> {
        let slot = self.slot(at);
        // Acquire: the words of the flow that this version shows are there.
        let meta = slot[META].load(Ordering::Acquire);
        if meta & IN_USE == 0 {
            return None;
        }
        let mut words = slot.each_ref().map(load);
        words[META] = meta;
        // With the fence of `begin`: if a word read above is of the next flow in this slot, this
        // sees that the version has changed.
        fence(Ordering::Acquire);
        (load(&slot[META]) >> 32 == meta >> 32).then_some(FlowRecord { words, end: None })
    }

    /// Shows each flow that has not ended.
    pub fn live(&self, each: impl FnMut(FlowRecord)) {
        (0..self.slots.len() / SLOT).filter_map(|at| self.copy(at)).for_each(each);
    }

    /// Flows that have not ended.
    pub fn count(&self) -> u64 {
        self.live.get()
    }

    /// Takes the record of a flow that has ended, the oldest first.
    pub fn take(&self) -> Option<FlowRecord> {
        self.ended.pop()
    }

    /// Records of flows that nothing took in time.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// Packets dropped behind the entry whose bytes name no flow that there is.
    pub fn flowless_drops(&self) -> u64 {
        self.flowless.get()
    }
}

/// Packets that are timed at a time; of more, some are not.
const TIMED_AT_ONCE: usize = 1024;

/// A packet on its way whose latency will be recorded.
#[derive(Debug, Clone, Copy)]
struct TimedPacket {
    frame: u32,
    /// The slot of its flow, and the version of the slot.
    at: u32,
    version: u64,
    /// When it came in, in nanoseconds: another packet in its frame came at another time.
    since_ns: u64,
}

impl TimedPacket {
    const NONE: Self = Self { frame: u32::MAX, at: 0, version: 0, since_ns: 0 };
}

/// Meters the flows of one packet thread, and never waits.
#[derive(Debug)]
pub struct FlowMeter {
    flows: Arc<MeteredFlows>,
    settings: MeterSettings,
    keys: HashKeys,
    /// A byte of the hash of each flow, by set; 0: free.
    tags: Box<[[u8; WAYS]]>,
    live: u64,
    /// By the number of the frame.
    timed: Box<[TimedPacket; TIMED_AT_ONCE]>,
    /// Set that ageing visits next.
    hand: usize,
}

/// A meter, and the flows that it counts.
pub fn meter(settings: MeterSettings) -> (Box<FlowMeter>, Arc<MeteredFlows>) {
    // Half as many again, so that few sets are full.
    let sets = (settings.flows + settings.flows / 2).div_ceil(WAYS).max(1);
    // Written here, so that no page is missing when the first packet comes: numbers, for zeros may
    // be left to the kernel. Seven more words leave space for the alignment.
    let words = (sets * WAYS * SLOT + 7) as u64;
    let slots: Box<[AtomicU64]> = (0..words).map(AtomicU64::new).collect();
    let start = slots.as_ptr().align_offset(64).min(7);
    // No flow is in a slot.
    slots[start..].iter().skip(META).step_by(SLOT).for_each(|word| put(word, 0));
    let flows = Arc::new(MeteredFlows {
        start,
        slots,
        ended: ArrayQueue::new(QUEUE),
        live: Counter::default(),
        lost: Counter::default(),
        flowless: Counter::default(),
    });
    let (keys, tags) = (HashKeys::new(random_seed()), vec![[0; WAYS]; sets].into());
    let timed = Box::new([TimedPacket::NONE; TIMED_AT_ONCE]);
    (Box::new(FlowMeter { flows: flows.clone(), settings, keys, tags, live: 0, timed, hand: 0 }), flows)
}

impl FlowMeter {
    /// Has flows end after other times: [`MeterSettings::idle_ns`] and `active_ns`.
    pub fn set_times(&mut self, idle_ns: u64, active_ns: u64) {
        self.settings = MeterSettings { idle_ns, active_ns, ..self.settings };
    }
}

/// The end that TCP flags show, if they show one.
fn end_of(tcp_flags: u8) -> Option<FlowEndReason> {
    match tcp_flags {
        flags if flags & tcp::RST != 0 => Some(FlowEndReason::Reset),
        flags if flags & tcp::FIN != 0 => Some(FlowEndReason::Finished),
        _ => None,
    }
}

/// Whether packets are dropped at the entry, as they came in.
fn is_at_entry(sight: &Sight<'_>, why: LossReason) -> bool {
    let is_refused = matches!(why, LossReason::Entry(_) | LossReason::Chain(DropReason::Entry | DropReason::Policed));
    is_refused || sight.hops.is_empty()
}

/// The first NFs of a path, as words.
fn nf_words(hops: &[Hop]) -> [u64; 2] {
    let nf = |at: usize| hops.get(at).map_or(NO_NF, |hop| hop.nf);
    [0, 4].map(|from| (from..from + 4).rev().fold(0, |word, at| word << 16 | u64::from(nf(at))))
}

impl FlowMeter {
    /// Whether it counts these flows.
    pub(crate) fn is_of(&self, flows: &Arc<MeteredFlows>) -> bool {
        Arc::ptr_eq(&self.flows, flows)
    }

    /// Counts packets that were received, and what is decided about them.
    pub fn count(&mut self, arena: &Arena, at_ns: u64, sight: &Sight<'_>, packets: &[Packet]) {
        let Some(ingress) = sight.ingress else { return };
        let nfs = nf_words(sight.hops);
        for packet in packets {
            let key = key_of(arena, *packet, ingress);
            let flags = tcp_flags(&key, arena, *packet);
            let at = self.place(&key.without_dscp(), at_ns, flags);
            let slot = self.flows.slot(at);
            put(&slot[LAST], at_ns);
            add(&slot[PACKETS], 1);
            add(&slot[BYTES], packet.len.into());
            let mut meta = load(&slot[META]) | u64::from(flags) << TCP;
            // What waits for a decision has no chain yet.
            if let Some(chain) = sight.chain {
                meta = meta & !NO_CHAIN | u64::from(chain);
                put(&slot[NFS], nfs[0]);
                put(&slot[NFS + 1], nfs[1]);
            }
            show(slot, meta);
        }
    }

    /// Counts packets that are dropped, as far as they can be read.
    pub fn lose<T: InFrame>(&mut self, arena: &Arena, at_ns: u64, sight: &Sight<'_>, why: LossReason, packets: &[T]) {
        let Some(ingress) = sight.ingress else { return };
        let (nfs, is_at_entry) = (nf_words(sight.hops), is_at_entry(sight, why));
        for packet in packets.iter().map(InFrame::packet) {
            // An NF may have returned it with any offset and length. Without a length, it went with
            // its NF.
            if !arena.geometry().contains(packet.frame, packet.offset, packet.len) {
                continue;
            }
            let key = key_of(arena, packet, ingress).without_dscp();
            let at = if is_at_entry { Some(self.place(&key, at_ns, 0)) } else { self.known(&key) };
            let Some(at) = at else {
                self.flows.flowless.add(1);
                continue;
            };
            let slot = self.flows.slot(at);
            put(&slot[LAST], at_ns);
            add(&slot[DROPPED], 1);
            let mut meta = load(&slot[META]) & !(0xff << WHY) | u64::from(why.code()) << WHY;
            if let Some(chain) = sight.chain {
                meta = meta & !NO_CHAIN | u64::from(chain);
            }
            if !sight.hops.is_empty() {
                put(&slot[NFS], nfs[0]);
                put(&slot[NFS + 1], nfs[1]);
            }
            show(slot, meta);
        }
    }

    /// Notes the flow of a packet that is timed, and that came in at `since_ns`. An NF may alter it
    /// on its way.
    pub fn begin_timing(&mut self, arena: &Arena, ingress: u16, packet: Packet, since_ns: u64) {
        let key = key_of(arena, packet, ingress).without_dscp();
        let timed = self.known(&key).map_or(TimedPacket::NONE, |at| TimedPacket {
            frame: packet.frame,
            at: at as u32,
            version: load(&self.flows.slot(at)[META]) >> 32,
            since_ns,
        });
        self.timed[packet.frame as usize % TIMED_AT_ONCE] = timed;
    }

    /// Notes that a packet that is timed lies in another frame now.
    pub(crate) fn move_timing(&mut self, from: u32, to: u32) {
        let former = &mut self.timed[from as usize % TIMED_AT_ONCE];
        if former.frame == from {
            let timed = std::mem::replace(former, TimedPacket::NONE);
            self.timed[to as usize % TIMED_AT_ONCE] = TimedPacket { frame: to, ..timed };
        }
    }

    /// Records the latency of the packet in a frame that came in at `since_ns`, if its flow is
    /// still there.
    pub fn end_timing(&mut self, frame: u32, since_ns: u64, took_ns: u64) {
        let timed = &mut self.timed[frame as usize % TIMED_AT_ONCE];
        if timed.frame != frame {
            return;
        }
        let TimedPacket { at, version, since_ns: began_ns, .. } = std::mem::replace(timed, TimedPacket::NONE);
        if began_ns != since_ns {
            // Of a packet that was in the frame before, and left without being timed.
            return;
        }
        let slot = self.flows.slot(at as usize);
        let so_far = load(&slot[TIMED]);
        let (count, longest_us) = (so_far as u32, so_far >> 32);
        if load(&slot[META]) >> 32 != version || count == u32::MAX {
            return;
        }
        add(&slot[LATENCY], took_ns);
        let longest_us = longest_us.max((took_ns / 1000).min(u64::from(u32::MAX)));
        put(&slot[TIMED], u64::from(count + 1) | longest_us << 32);
    }

    /// Ends flows that are over, among the next `budget` slots (rounded up to whole sets). It stops
    /// while the queue of ended flows is full: they end later.
    pub fn age(&mut self, now_ns: u64, budget: usize) {
        let sets = self.tags.len();
        for _ in 0..budget.div_ceil(WAYS).min(sets) {
            if self.flows.ended.len() + WAYS > self.flows.ended.capacity() {
                return;
            }
            let set = self.hand;
            self.hand = if set + 1 == sets { 0 } else { set + 1 };
            for way in 0..WAYS {
                let at = set * WAYS + way;
                if self.tags[set][way] != 0
                    && let Some(why) = self.is_over(at, now_ns)
                {
                    self.end(at, why);
                }
            }
        }
    }

    /// Why the flow in a slot ends now, if it does.
    fn is_over(&self, at: usize, now_ns: u64) -> Option<FlowEndReason> {
        let slot = self.flows.slot(at);
        let idle_ns = now_ns.saturating_sub(load(&slot[LAST]));
        let ended = end_of((load(&slot[META]) >> TCP) as u8).filter(|_| idle_ns >= LINGER_NS);
        let active_ns = self.settings.active_ns;
        let is_due = active_ns > 0 && now_ns.saturating_sub(load(&slot[FIRST])) >= active_ns;
        ended
            .or_else(|| (idle_ns >= self.settings.idle_ns).then_some(FlowEndReason::Idle))
            .or_else(|| is_due.then_some(FlowEndReason::Active))
    }

    fn set_of(&self, hash: u64) -> (usize, u8) {
        let set = ((hash >> 32) * self.tags.len() as u64) >> 32;
        (set as usize, (hash as u8).max(1))
    }

    fn find(&self, key: &FlowKey, set: usize, tag: u8) -> Option<usize> {
        let is_it = |at: &usize| self.flows.slot(*at).iter().zip(key.words()).all(|(word, own)| load(word) == *own);
        let tags = self.tags[set].iter().enumerate().filter(|(_, own)| **own == tag);
        tags.map(|(way, _)| set * WAYS + way).find(is_it)
    }

    /// The slot of a flow, if it is there.
    fn known(&self, key: &FlowKey) -> Option<usize> {
        let (set, tag) = self.set_of(key.hash(&self.keys));
        self.find(key, set, tag)
    }

    /// The slot of a flow, which is new if it was not there, or begins again.
    fn place(&mut self, key: &FlowKey, now_ns: u64, flags: u8) -> usize {
        let (set, tag) = self.set_of(key.hash(&self.keys));
        if let Some(at) = self.find(key, set, tag) {
            let seen = end_of((load(&self.flows.slot(at)[META]) >> TCP) as u8);
            match seen {
                Some(why) if flags & (tcp::SYN | tcp::ACK) == tcp::SYN => self.end(at, why),
                _ => return at,
            }
        }
        let way = self.tags[set].iter().position(|tag| *tag == 0).unwrap_or_else(|| {
            let last_ns = |way: &usize| load(&self.flows.slot(set * WAYS + way)[LAST]);
            let oldest = (0..WAYS).min_by_key(last_ns).unwrap_or(0);
            self.end(set * WAYS + oldest, FlowEndReason::Evicted);
            oldest
        });
        let at = set * WAYS + way;
        self.tags[set][way] = tag;
        self.live += 1;
        self.flows.live.set(self.live);
        self.begin(at, key, now_ns);
        at
    }

    /// Puts a flow without packets into a free slot.
    fn begin(&self, at: usize, key: &FlowKey, now_ns: u64) {
        let slot = self.flows.slot(at);
        let version = (load(&slot[META]) >> 32).wrapping_add(1);
        // Release: a reader that sees one of the words below sees that the slot was freed before.
        fence(Ordering::Release);
        slot.iter().zip(key.words()).for_each(|(word, own)| put(word, *own));
        slot[FIRST..].iter().for_each(|word| put(word, 0));
        put(&slot[FIRST], now_ns);
        put(&slot[LAST], now_ns);
        put(&slot[NFS], u64::MAX);
        put(&slot[NFS + 1], u64::MAX);
        show(slot, version << 32 | NO_CHAIN);
    }

    /// Ends the flow in a slot, and frees the slot.
    fn end(&mut self, at: usize, why: FlowEndReason) {
        let record = self.flows.copy(at);
        let slot = self.flows.slot(at);
        put(&slot[META], load(&slot[META]).wrapping_add(IN_USE));
        self.tags[at / WAYS][at % WAYS] = 0;
        self.live -= 1;
        self.flows.live.set(self.live);
        // Last: to one that has taken the record, the flow is live no more.
        if let Some(record) = record
            && self.flows.ended.push(FlowRecord { end: Some(why), ..record }).is_err()
        {
            self.flows.lost.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use sluice_shm::arena::{Geometry, HEADROOM};

    use super::*;
    use crate::capture::Point;
    use crate::decision::Refusal;
    use sluice_api::drops::PortDrop;

    const SECOND: u64 = 1_000_000_000;
    const SETTINGS: MeterSettings = MeterSettings { flows: 64, idle_ns: 10 * SECOND, active_ns: 0 };
    static HOPS: [Hop; 9] = {
        let (mut hops, mut at) = ([Hop { nf: 7, last_visit: true, reverse: false }; 9], 0);
        while at < 9 {
            hops[at].nf = 100 + at as u16;
            at += 1;
        }
        hops
    };

    struct Rig {
        arena: Arena,
        meter: Box<FlowMeter>,
        flows: Arc<MeteredFlows>,
    }

    /// A packet of the flow from 10.0.0.0 + n, in frame 0.
    fn packet(arena: &Arena, n: u32, tcp_flags: Option<u8>) -> Packet {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4((0x0a00_0000 + n).to_be_bytes(), [192, 0, 2, 1], 64);
        match tcp_flags {
            None => builder.udp(1000, 2000).write(&mut bytes, &[0; 18]).unwrap(),
            Some(flags) => {
                builder.tcp(1000, 2000, 1, 1).write(&mut bytes, &[0; 6]).unwrap();
                bytes[14 + 20 + 13] = flags;
            }
        }
        assert!(arena.write(0, HEADROOM as u16, &bytes));
        Packet::fresh(0, bytes.len() as u16)
    }

    fn received(hops: &[Hop], chain: Option<u16>) -> Sight<'_> {
        Sight { point: Point::Received(3), why: None, place: None, ingress: Some(3), chain, hops }
    }

    impl Rig {
        fn new(settings: MeterSettings) -> Self {
            let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 4, stride: 2240 }, false).unwrap();
            let (meter, flows) = meter(settings);
            Self { arena, meter, flows }
        }

        fn udp(&mut self, n: u32, at_ns: u64) {
            let packet = packet(&self.arena, n, None);
            self.meter.count(&self.arena, at_ns, &received(&HOPS[..2], Some(5)), &[packet]);
        }

        fn tcp(&mut self, n: u32, flags: u8, at_ns: u64) {
            let packet = packet(&self.arena, n, Some(flags));
            self.meter.count(&self.arena, at_ns, &received(&HOPS[..2], Some(5)), &[packet]);
        }

        fn live(&self) -> Vec<FlowRecord> {
            let mut all = Vec::new();
            self.flows.live(|record| all.push(record));
            assert_eq!(self.flows.count(), all.len() as u64);
            all.sort_by_key(|record| record.key().addresses());
            all
        }

        fn ended(&self) -> Vec<(u32, u64, FlowEndReason)> {
            let number = |record: &FlowRecord| match record.key().addresses() {
                Some((std::net::IpAddr::V4(src), _)) => src.to_bits() - 0x0a00_0000,
                other => panic!("{other:?}"),
            };
            let all = std::iter::from_fn(|| self.flows.take());
            all.map(|record| (number(&record), record.packets(), record.end.unwrap())).collect()
        }
    }

    #[test]
    fn a_flow_has_what_its_packets_had() {
        let mut rig = Rig::new(SETTINGS);
        assert!(rig.live().is_empty());
        for at_ns in [5, 9, 700] {
            rig.udp(1, at_ns);
        }
        rig.udp(2, 800);
        let all = rig.live();
        let [one, two] = &all[..] else { panic!("{all:?}") };
        assert_eq!((one.packets(), one.bytes(), one.dropped(), one.first_ns(), one.last_ns()), (3, 180, 0, 5, 700));
        assert_eq!(
            (one.chain(), one.nfs().collect::<Vec<_>>(), one.why(), one.latency_ns()),
            (Some(5), vec![100, 101], None, None)
        );
        assert_eq!((one.key().ingress(), one.key().ports(), one.end), (3, Some((1000, 2000)), None));
        assert_eq!((two.packets(), two.first_ns()), (1, 800));
        assert!(rig.ended().is_empty());
    }

    #[test]
    fn packets_that_wait_have_their_chain_later_and_long_paths_are_cut() {
        let mut rig = Rig::new(SETTINGS);
        let packet = packet(&rig.arena, 1, None);
        rig.meter.count(&rig.arena, 1, &received(&[], None), &[packet]);
        assert_eq!((rig.live()[0].chain(), rig.live()[0].nfs().count()), (None, 0));
        rig.meter.count(&rig.arena, 2, &received(&HOPS, Some(0)), &[packet]);
        let nfs: Vec<u16> = rig.live()[0].nfs().collect();
        assert_eq!((rig.live()[0].chain(), nfs), (Some(0), (100..108).collect()));
        rig.meter.count(&rig.arena, 3, &received(&[], None), &[packet]);
        assert_eq!((rig.live()[0].chain(), rig.live()[0].nfs().count(), rig.live()[0].packets()), (Some(0), 8, 3));
    }

    #[test]
    fn drops_belong_to_the_flow_of_their_bytes_and_what_cannot_be_read_to_none() {
        let mut rig = Rig::new(SETTINGS);
        rig.udp(1, 1);
        let dropped = packet(&rig.arena, 1, None);
        let lost = Sight { point: Point::Dropped, ..received(&HOPS[..1], Some(5)) };
        rig.meter.lose(&rig.arena, 2, &lost, DropReason::Verdict.into(), &[dropped, dropped]);
        let of_none = [Packet { len: 0, ..dropped }, Packet { offset: 2200, ..dropped }, Packet { frame: 4, ..dropped }];
        rig.meter.lose(&rig.arena, 3, &lost, DropReason::NfDied.into(), &of_none);
        let refused = Sight::refused(None, None, PortDrop::Untaken.into(), 4);
        rig.meter.lose(&rig.arena, 3, &refused, PortDrop::Untaken.into(), &[dropped]);
        let [one] = rig.live()[..] else { panic!("{:?}", rig.live()) };
        assert_eq!((one.packets(), one.dropped(), one.why()), (1, 2, Some(DropReason::Verdict.into())));
        let refused = Sight::refused(Some(3), None, Refusal::NoRule.into(), 3);
        rig.meter.lose(&rig.arena, 4, &refused, Refusal::NoRule.into(), &[dropped]);
        let [one] = rig.live()[..] else { panic!("{:?}", rig.live()) };
        assert_eq!((one.dropped(), one.why(), one.chain()), (3, Some(Refusal::NoRule.into()), Some(5)));
    }

    #[test]
    fn latencies_are_of_the_flow_that_came_in_wherever_its_packet_lies() {
        let mut rig = Rig::new(SETTINGS);
        let first = packet(&rig.arena, 1, None);
        rig.meter.begin_timing(&rig.arena, 3, first, 1);
        rig.meter.end_timing(0, 1, 99_000);
        rig.udp(1, 1);
        rig.meter.begin_timing(&rig.arena, 3, first, 1);
        // Its addresses do not matter any more.
        packet(&rig.arena, 2, None);
        rig.meter.end_timing(0, 1, 4_000);
        rig.meter.end_timing(0, 1, 99_000);
        let again = packet(&rig.arena, 1, None);
        rig.meter.begin_timing(&rig.arena, 3, again, 2);
        rig.meter.move_timing(0, 3);
        rig.meter.move_timing(2, 1);
        rig.meter.end_timing(0, 2, 99_000);
        rig.meter.end_timing(3, 2, 10_000);
        assert_eq!((rig.live()[0].latency_ns(), rig.flows.count()), (Some((7_000, 10_000)), 1));
        // Another flow is in the slot when the packet leaves.
        rig.meter.begin_timing(&rig.arena, 3, again, 3);
        rig.meter.age(100 * SECOND, 1 << 20);
        rig.udp(1, 100 * SECOND);
        rig.meter.end_timing(0, 3, 99_000);
        assert_eq!(rig.live()[0].latency_ns(), None);
    }

    #[test]
    fn a_packet_that_was_dropped_gives_its_time_to_no_other_in_its_frame() {
        let mut rig = Rig::new(SETTINGS);
        rig.udp(1, 1);
        let dropped = packet(&rig.arena, 1, None);
        rig.meter.begin_timing(&rig.arena, 3, dropped, 5);
        // The next packet in the frame is timed by another thread, or went through a program.
        rig.meter.end_timing(0, 6, 99_000);
        assert_eq!(rig.live()[0].latency_ns(), None);
        rig.meter.end_timing(0, 5, 99_000);
        assert_eq!(rig.live()[0].latency_ns(), None, "it is forgotten");
    }

    #[test]
    fn a_drop_behind_the_entry_begins_no_flow() {
        let mut rig = Rig::new(SETTINGS);
        let inside = Sight { point: Point::Dropped, ..received(&HOPS[..1], Some(5)) };
        for n in 1..100 {
            let forged = packet(&rig.arena, n, None);
            rig.meter.lose(&rig.arena, 1, &inside, DropReason::Verdict.into(), &[forged, forged]);
        }
        assert_eq!((rig.flows.count(), rig.flows.flowless_drops()), (0, 198));
        // Those at the entry are as they came in.
        for (n, why) in [(1, DropReason::Policed.into()), (2, DropReason::Entry.into()), (3, Refusal::NfDown.into())] {
            let refused = packet(&rig.arena, n, None);
            rig.meter.lose(&rig.arena, 2, &inside, why, &[refused]);
        }
        let nowhere = packet(&rig.arena, 4, None);
        let without_nfs = Sight { point: Point::Dropped, ..received(&[], Some(5)) };
        rig.meter.lose(&rig.arena, 2, &without_nfs, DropReason::TxFull.into(), &[nowhere]);
        assert_eq!((rig.flows.count(), rig.flows.flowless_drops()), (4, 198));
        let known = packet(&rig.arena, 4, None);
        rig.meter.lose(&rig.arena, 3, &inside, DropReason::Verdict.into(), &[known]);
        assert_eq!((rig.live()[3].dropped(), rig.flows.flowless_drops()), (2, 198));
    }

    #[test]
    fn flows_end_when_they_are_idle_finished_or_due() {
        let mut rig = Rig::new(MeterSettings { active_ns: 60 * SECOND, ..SETTINGS });
        let all = rig.flows.slots.len() / SLOT;
        rig.udp(1, SECOND);
        rig.tcp(2, tcp::SYN, SECOND);
        rig.tcp(2, tcp::FIN | tcp::ACK, SECOND);
        rig.tcp(3, tcp::RST, SECOND);
        rig.tcp(4, tcp::ACK, SECOND);
        rig.meter.age(2 * SECOND, all);
        assert!(rig.ended().is_empty());
        rig.meter.age(3 * SECOND, all);
        let mut ended = rig.ended();
        ended.sort_by_key(|(number, ..)| *number);
        assert_eq!(ended, [(2, 2, FlowEndReason::Finished), (3, 1, FlowEndReason::Reset)]);
        rig.tcp(4, tcp::ACK, 9 * SECOND);
        rig.meter.age(11 * SECOND, all);
        assert_eq!(rig.ended(), [(1, 1, FlowEndReason::Idle)]);
        for second in 10..61 {
            rig.tcp(4, tcp::ACK, second * SECOND);
        }
        rig.meter.age(61 * SECOND, all);
        assert_eq!((rig.ended(), rig.flows.count()), (vec![(4, 53, FlowEndReason::Active)], 0));
        rig.tcp(4, tcp::ACK, 62 * SECOND);
        assert_eq!((rig.live()[0].packets(), rig.live()[0].first_ns()), (1, 62 * SECOND));
    }

    #[test]
    fn a_new_connection_of_the_same_ports_is_another_flow() {
        let mut rig = Rig::new(SETTINGS);
        for flags in [tcp::SYN, tcp::ACK, tcp::FIN | tcp::ACK, tcp::ACK] {
            rig.tcp(1, flags, SECOND);
        }
        assert!(rig.ended().is_empty());
        rig.tcp(1, tcp::SYN, 2 * SECOND);
        rig.tcp(1, tcp::SYN, 2 * SECOND);
        assert_eq!(rig.ended(), [(1, 4, FlowEndReason::Finished)]);
        assert_eq!((rig.live()[0].packets(), rig.live()[0].tcp_flags()), (2, tcp::SYN));
    }

    #[test]
    fn a_full_set_evicts_the_flow_without_packets_for_longest_and_none_is_lost() {
        let mut rig = Rig::new(MeterSettings { flows: 10, ..SETTINGS });
        assert_eq!(rig.flows.slots.len() / SLOT, WAYS);
        for n in 0..40 {
            rig.udp(n, u64::from(n));
            rig.udp(0, u64::from(n));
        }
        let ended = rig.ended();
        assert_eq!(ended, (1..=24).map(|n| (n, 1, FlowEndReason::Evicted)).collect::<Vec<_>>());
        assert_eq!((rig.flows.count(), rig.flows.lost(), rig.live()[0].packets()), (16, 0, 41));
    }

    #[test]
    fn flows_wait_while_the_queue_is_full_and_evicted_ones_are_counted_as_lost() {
        let mut rig = Rig::new(MeterSettings { flows: 10, ..SETTINGS });
        for n in 0..QUEUE as u32 + 20 {
            rig.udp(n, 1);
        }
        assert_eq!((rig.flows.ended.len(), rig.flows.lost(), rig.flows.count()), (QUEUE, 4, 16));
        rig.meter.age(100 * SECOND, WAYS);
        assert_eq!(rig.flows.count(), 16);
        while rig.flows.take().is_some() {}
        rig.meter.age(100 * SECOND, WAYS);
        assert_eq!((rig.flows.count(), rig.ended().len(), rig.flows.lost()), (0, 16, 4));
    }

    #[test]
    fn a_reader_sees_whole_flows_while_they_come_and_go() {
        let mut rig = Rig::new(MeterSettings { flows: 10, ..SETTINGS });
        let flows = rig.flows.clone();
        let is_over = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0u64;
                while load(&is_over) == 0 || seen == 0 {
                    flows.live(|record| {
                        let Some((std::net::IpAddr::V4(src), _)) = record.key().addresses() else { panic!("{record:?}") };
                        // The time of a flow's first packet is its number.
                        assert_eq!(u64::from(src.to_bits() - 0x0a00_0000), record.first_ns(), "{record:?}");
                        seen += 1;
                    });
                }
            });
            for n in 1..50_000 {
                rig.udp(n, u64::from(n));
                while rig.flows.take().is_some() {}
            }
            put(&is_over, 1);
            reader.join().unwrap();
        });
    }
}
