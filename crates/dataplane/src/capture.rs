//! Captures: copies of the packets that pass chosen points.
//!
//! Problem: a packet is to be seen as it was at one point of its way, and is never to wait for the
//! one that looks. Approach: each packet thread has a [`Tap`] of each capture, which copies packets
//! to a buffer of its own that was made before; a [`CaptureReader`] in another thread takes
//! them out. The copy is made while the packet is in the thread's hands: before an NF gets it,
//! after an NF has returned it. What does not fit in the buffer is missed, and counted.
//!
//! A capture that [follows](following) an NF has what the NF gets and returns, with frame, verdict
//! and order: what it gets can be given to another one as well, and their answers compared.
//!
//! Limits: a packet's time is that of the thread's round. The filter is the reader's: it costs more
//! than the copy of a short packet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sluice_api::drops::PortDrop;
use sluice_shm::arena::Arena;
use sluice_shm::descriptor::Descriptor;

use crate::chain::{DropReason, Hop, Path};
use crate::counter::Counter;
use crate::decision::Refusal;
use crate::frame::InFrame;

/// Where packets are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// Before this NF gets them.
    ToNf(u16),
    /// After this NF has returned them to be passed on.
    FromNf(u16),
    /// After this port has received them.
    Received(u16),
    /// Before this port sends them.
    Sent(u16),
    /// When they are dropped.
    Dropped,
}

impl Point {
    /// Its kind and its number, with the place if packets are dropped there.
    fn bits(self, place: Option<DropPlace>) -> (u8, u16) {
        match (self, place) {
            (Self::ToNf(number), _) => (0, number),
            (Self::FromNf(number), _) => (1, number),
            (Self::Received(number), _) => (2, number),
            (Self::Sent(number), _) => (3, number),
            (Self::Dropped, None) => (4, 0),
            (Self::Dropped, Some(DropPlace::Nf(number))) => (5, number),
            (Self::Dropped, Some(DropPlace::Port(number))) => (6, number),
        }
    }

    fn from_bits(kind: u8, number: u16) -> (Self, Option<DropPlace>) {
        match kind {
            0 => (Self::ToNf(number), None),
            1 => (Self::FromNf(number), None),
            2 => (Self::Received(number), None),
            3 => (Self::Sent(number), None),
            5 => (Self::Dropped, Some(DropPlace::Nf(number))),
            6 => (Self::Dropped, Some(DropPlace::Port(number))),
            _ => (Self::Dropped, None),
        }
    }
}

/// The place where packets are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropPlace {
    /// At this NF: it had them, or was to get them.
    Nf(u16),
    /// At this port: they came in there and were not let in, or were to leave there.
    Port(u16),
}

impl DropPlace {
    /// A hop of a path; none behind the last one.
    #[inline(always)]
    pub fn hop(path: &Path, hop: usize) -> Option<Self> {
        path.hops.get(hop).map(|hop| Self::Nf(hop.nf))
    }
}

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// Inside its chain, or at its gate.
    Chain(DropReason),
    /// Before it had a path.
    Entry(Refusal),
    /// By a port, before it was received or after it had left its chain.
    Port(PortDrop),
}

/// First codes of a [`Refusal`] and of a [`PortDrop`].
const REFUSALS: u8 = 64;
const PORT_DROPS: u8 = 128;

impl LossReason {
    /// Its name in statistics and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chain(why) => why.name(),
            Self::Entry(why) => why.name(),
            Self::Port(why) => why.name(),
        }
    }

    /// A code, above 0; 0 stands for none.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Chain(why) => why as u8 + 1,
            Self::Entry(why) => why as u8 + REFUSALS,
            Self::Port(why) => why as u8 + PORT_DROPS,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            code if code >= PORT_DROPS => PortDrop::ALL.get(usize::from(code - PORT_DROPS)).copied().map(Self::Port),
            code if code >= REFUSALS => Refusal::ALL.get(usize::from(code - REFUSALS)).copied().map(Self::Entry),
            code => DropReason::ALL.get(usize::from(code).checked_sub(1)?).copied().map(Self::Chain),
        }
    }
}

impl From<DropReason> for LossReason {
    fn from(why: DropReason) -> Self {
        Self::Chain(why)
    }
}

impl From<Refusal> for LossReason {
    fn from(why: Refusal) -> Self {
        Self::Entry(why)
    }
}

impl From<PortDrop> for LossReason {
    fn from(why: PortDrop) -> Self {
        Self::Port(why)
    }
}

/// The point at which packets are, and what is known of them there.
#[derive(Debug, Clone, Copy)]
pub struct Sight<'a> {
    /// The point.
    pub point: Point,
    /// Why they are dropped, if they are.
    pub why: Option<LossReason>,
    /// Where they are dropped, if they are and that is known.
    pub place: Option<DropPlace>,
    /// Number of the port where they came in, if it is known.
    pub ingress: Option<u16>,
    /// Number of their chain, if it is known.
    pub chain: Option<u16>,
    /// The hops of their path; none if they have none.
    pub hops: &'a [Hop],
}

impl<'a> Sight<'a> {
    /// Packets of a path.
    #[inline(always)]
    pub fn on(path: &'a Path, point: Point) -> Self {
        Self { point, why: None, place: None, ingress: Some(path.ingress), chain: Some(path.chain.number), hops: &path.hops }
    }

    /// Packets of a path that are dropped.
    #[inline(always)]
    pub fn lost(path: &'a Path, why: DropReason, place: Option<DropPlace>) -> Self {
        Self { why: Some(why.into()), place, ..Self::on(path, Point::Dropped) }
    }

    /// Packets without a path that a port drops.
    #[inline(always)]
    pub fn refused(ingress: Option<u16>, chain: Option<u16>, why: LossReason, port: u16) -> Self {
        Self { point: Point::Dropped, why: Some(why), place: Some(DropPlace::Port(port)), ingress, chain, hops: &[] }
    }
}

/// What a capture covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureScope {
    /// Only packets of this chain.
    pub chain: Option<u16>,
    /// Only packets at these points; none: at all.
    pub points: Vec<Point>,
    /// Of this many packets of each thread one is copied.
    pub every: u32,
    /// Most packets of each point, chain and reason that a thread copies; none: all.
    pub each: Option<u32>,
    /// Most bytes that are copied of a packet.
    pub snap: u16,
    /// Only packets that this NF gets, returns or loses, with their [`PacketOrigin`], whatever
    /// `points` says. Its taps are those of [`following`].
    pub follows: Option<u16>,
}

impl CaptureScope {
    /// What an NF gets, returns and loses, whole.
    pub fn of_nf(nf: u16) -> Self {
        Self { chain: None, points: Vec::new(), every: 1, each: None, snap: u16::MAX, follows: Some(nf) }
    }

    fn covers(&self, sight: &Sight<'_>) -> bool {
        if let Some(nf) = self.follows {
            return match sight.point {
                Point::ToNf(number) | Point::FromNf(number) => number == nf,
                Point::Dropped => sight.place == Some(DropPlace::Nf(nf)),
                Point::Received(_) | Point::Sent(_) => false,
            };
        }
        self.chain.is_none_or(|own| sight.chain == Some(own)) && (self.points.is_empty() || self.points.contains(&sight.point))
    }
}

/// A number on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cursor(AtomicU64);

/// What was copied and not read yet, as words. A record is three words, two of its [`PacketOrigin`]
/// if the capture follows an NF, the NFs of the path (four in a word), and the bytes of the packet.
///
/// One thread writes and one reads. Both cursors count words since the start, and a record is
/// visible once the cursor of the writer has passed it. A record that begins before the end of the
/// buffer goes on behind it, where there is space for one.
#[derive(Debug)]
struct Buffer {
    words: Box<[AtomicU64]>,
    /// Words without those behind the end; a power of two.
    len: u64,
    written: Cursor,
    read: Cursor,
    missed: Counter,
}

/// Words of a record before its origin, its path and its bytes.
const HEAD: u64 = 3;
/// Words of an origin.
const ORIGIN: u64 = 2;
/// Bit in the kind of a point: the record has an origin.
const HAS_ORIGIN: u8 = 0x80;
/// Most words of a record.
const MOST: u64 = HEAD + ORIGIN + words_of(u8::MAX as usize, u16::MAX as usize);
/// Stands for "no chain".
const NO_CHAIN: u16 = u16::MAX;

/// Words of a path and of bytes.
const fn words_of(hops: usize, bytes: usize) -> u64 {
    (hops.div_ceil(4) + bytes.div_ceil(8)) as u64
}

impl Buffer {
    /// The words of the record that begins at a cursor.
    #[inline(always)]
    fn record(&self, at: u64, words: u64) -> &[AtomicU64] {
        let at = (at & (self.len - 1)) as usize;
        &self.words[at..at + words as usize]
    }
}

/// Packets that a tap has copied, by what was known of them: point, place, chain and reason. A hash
/// table that never grows; what finds no slot near its own is not copied.
#[derive(Debug)]
struct SightCounts {
    most: u32,
    /// A sight in bits and its packets; 0 packets: free.
    slots: Box<[(u64, u32)]>,
}

/// Sights that are counted. A power of two.
const SIGHTS: usize = 1024;
/// Slots that a sight may have.
const PROBES: usize = 16;

impl SightCounts {
    fn new(most: u32) -> Self {
        Self { most, slots: vec![(0, 0); SIGHTS].into() }
    }

    /// The slot in which a packet is counted; none if there are as many of its sight as are wanted.
    fn slot_for(&mut self, sight: &Sight<'_>) -> Option<usize> {
        let (kind, number) = sight.point.bits(sight.place);
        let why = sight.why.map_or(0, LossReason::code);
        let chain = sight.chain.unwrap_or(NO_CHAIN);
        let bits = u64::from(kind) | u64::from(why) << 8 | u64::from(number) << 16 | u64::from(chain) << 32;
        let first = (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        for slot in first..first + PROBES {
            let slot = slot % SIGHTS;
            let (known, packets) = &mut self.slots[slot];
            if *packets == 0 {
                *known = bits;
            }
            if *known == bits {
                return (*packets < self.most).then_some(slot);
            }
        }
        None
    }

    /// Counts a packet in a slot that was found for it: one that was missed is not counted.
    fn count(&mut self, slot: usize) {
        self.slots[slot].1 += 1;
    }
}

/// The capture of one packet thread: copies packets, and never waits.
#[derive(Debug)]
pub struct Tap {
    request: Arc<CaptureScope>,
    buffer: Arc<Buffer>,
    written: u64,
    /// The reader's cursor when it was last looked at.
    read: u64,
    /// Packets to let go by before the next one is copied.
    skip: u32,
    /// Packets missed since the last one that was copied.
    missed: u32,
    /// What has been copied, if that is bounded.
    counts: Option<SightCounts>,
    /// Of a capture that follows an NF: the order of the next copy, which its taps share.
    order: Option<Arc<AtomicU32>>,
    scratch: Box<[u8]>,
}

/// A packet of an NF that is followed, besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketOrigin {
    /// Number of its copy among those of all threads, modulo 2³². The packets that an NF gets have
    /// smaller numbers than the same packets when it has returned them; none is left out, since
    /// packets that are missed have none.
    pub order: u32,
    /// Its descriptor as the NF got it or returned it.
    pub descriptor: Descriptor,
}

impl PacketOrigin {
    /// As two words. The length is that of the record, and the chain too.
    fn words(self) -> [u64; ORIGIN as usize] {
        let Descriptor { frame, offset, verdict, flags, arg, ingress, .. } = self.descriptor;
        let place = u64::from(self.order) | u64::from(offset) << 32 | u64::from(ingress) << 48;
        [place, u64::from(frame) | u64::from(arg) << 32 | u64::from(verdict) << 48 | u64::from(flags) << 56]
    }

    fn from_words([a, b]: [u64; ORIGIN as usize], len: u16, chain: u16) -> Self {
        let (offset, ingress) = ((a >> 32) as u16, (a >> 48) as u16);
        let (frame, arg, verdict, flags) = (b as u32, (b >> 32) as u16, (b >> 48) as u8, (b >> 56) as u8);
        Self { order: a as u32, descriptor: Descriptor { frame, offset, len, chain, verdict, flags, arg, ingress } }
    }
}

/// The taps of a capture that follows an NF, one for each of `threads`, with their readers.
pub fn following(request: &Arc<CaptureScope>, words: usize, threads: usize) -> Vec<(Tap, CaptureReader)> {
    let order = Arc::new(AtomicU32::new(0));
    let with_order = |(tap, reader)| (Tap { order: Some(order.clone()), ..tap }, reader);
    (0..threads).map(|_| with_order(pair(request, words))).collect()
}

/// A tap, and the reader of what it copies. The buffer has `words` words of eight bytes, rounded up
/// to a power of two.
pub fn pair(request: &Arc<CaptureScope>, words: usize) -> (Tap, CaptureReader) {
    let len = words.next_power_of_two() as u64;
    let buffer = Arc::new(Buffer {
        // Written here, so that no page is missing when the first packet comes.
        words: (0..len + MOST).map(AtomicU64::new).collect(),
        len,
        written: Cursor::default(),
        read: Cursor::default(),
        missed: Counter::default(),
    });
    // Whole words.
    let scratch = vec![0; usize::from(request.snap).next_multiple_of(8)].into();
    let (request, counts) = (request.clone(), request.each.map(SightCounts::new));
    let tap = Tap { request, buffer: buffer.clone(), written: 0, read: 0, skip: 0, missed: 0, counts, order: None, scratch };
    (tap, CaptureReader { buffer, read: 0, written: 0 })
}

impl Tap {
    /// Whether it copies packets that are dropped.
    pub(crate) fn shows_drops(&self) -> bool {
        // Of an NF that is followed they are inside, and not at the entry.
        self.request.follows.is_none() && (self.request.points.is_empty() || self.request.points.contains(&Point::Dropped))
    }

    /// Of a capture that follows an NF: the order that the next copy gets. What its thread did with
    /// packets before has smaller numbers, as far as other threads have copied it.
    pub fn next_order(&self) -> u32 {
        // Relaxed: the rings order what other threads have copied of packets that this one had.
        self.order.as_ref().map_or(0, |order| order.load(Ordering::Relaxed))
    }

    /// Whether it belongs to this capture.
    pub fn is_of(&self, request: &Arc<CaptureScope>) -> bool {
        Arc::ptr_eq(&self.request, request)
    }

    /// Copies packets that are in this thread's hands, as far as the capture covers them.
    pub fn show<T: InFrame>(&mut self, arena: &Arena, at_ns: u64, sight: &Sight<'_>, packets: &[T]) {
        if !self.request.covers(sight) {
            return;
        }
        for packet in packets {
            if let Some(slot) = self.takes(sight) {
                let descriptor = packet.descriptor();
                let Descriptor { frame, offset, len, .. } = descriptor;
                // An NF may have returned it with any offset and length.
                let len = if arena.geometry().contains(frame, offset, len) { len } else { 0 };
                // It lies in its frame, as was checked.
                self.copy(at_ns, sight, (slot, descriptor), len, len.into(), |bytes| {
                    arena.read(frame, offset, bytes);
                });
            }
        }
        // Release: the words of the records come before the cursor that shows them.
        self.buffer.written.0.store(self.written, Ordering::Release);
    }

    /// As [`Tap::show`] for a packet of `len` bytes that lies in no frame, of which these are the
    /// first.
    pub(crate) fn show_bytes(&mut self, at_ns: u64, sight: &Sight<'_>, len: u16, bytes: &[u8]) {
        if self.request.covers(sight)
            && let Some(slot) = self.takes(sight)
        {
            self.copy(at_ns, sight, (slot, Descriptor::default()), len, bytes.len(), |to| to.copy_from_slice(&bytes[..to.len()]));
            // Release: as above.
            self.buffer.written.0.store(self.written, Ordering::Release);
        }
    }

    /// Whether the next packet is copied: the slot in which it is counted then.
    fn takes(&mut self, sight: &Sight<'_>) -> Option<usize> {
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.skip = self.request.every.saturating_sub(1);
        self.counts.as_mut().map_or(Some(0), |counts| counts.slot_for(sight))
    }

    /// Copies a packet of `len` bytes, of which `have` can be read, and counts it in a slot.
    fn copy(
        &mut self,
        at_ns: u64,
        sight: &Sight<'_>,
        (slot, descriptor): (usize, Descriptor),
        len: u16,
        have: usize,
        read: impl FnOnce(&mut [u8]),
    ) {
        let caught = have.min(len.min(self.request.snap).into());
        let hops = sight.hops.len().min(usize::from(u8::MAX));
        let of_origin = if self.order.is_some() { ORIGIN } else { 0 };
        let words = HEAD + of_origin + words_of(hops, caught);
        if !self.has_room(words) {
            self.missed = self.missed.saturating_add(1);
            self.buffer.missed.add(1);
            return;
        }
        self.counts.iter_mut().for_each(|counts| counts.count(slot));
        let (kind, number) = sight.point.bits(sight.place);
        let why = sight.why.map_or(0, LossReason::code);
        let chain = sight.chain.unwrap_or(NO_CHAIN);
        let missed = std::mem::take(&mut self.missed);
        // Relaxed, here and below: the cursor publishes them.
        let put = |to: &AtomicU64, word: u64| to.store(word, Ordering::Relaxed);
        let (head, rest) = self.buffer.record(self.written, words).split_at(HEAD as usize);
        let (origin, rest) = rest.split_at(of_origin as usize);
        let (path, content) = rest.split_at(hops.div_ceil(4));
        let kind = match &self.order {
            Some(order) => {
                // Relaxed: what an NF returns was copied before for it, and the rings between order
                // the two.
                let words = PacketOrigin { order: order.fetch_add(1, Ordering::Relaxed), descriptor }.words();
                origin.iter().zip(words).for_each(|(to, word)| put(to, word));
                kind | HAS_ORIGIN
            }
            None => kind,
        };
        put(&head[0], at_ns);
        let place = u64::from(number) << 32 | u64::from(kind) << 48 | u64::from(why) << 56;
        put(&head[1], u64::from(len) | (caught as u64) << 16 | place);
        put(&head[2], u64::from(missed) | u64::from(chain) << 32 | (hops as u64) << 48);
        for (to, four) in path.iter().zip(sight.hops[..hops].chunks(4)) {
            put(to, four.iter().rev().fold(0, |word, hop| word << 16 | u64::from(hop.nf)));
        }
        // What is behind it in its last word is old.
        read(&mut self.scratch[..caught]);
        let (eights, _) = self.scratch.as_chunks();
        content.iter().zip(eights).for_each(|(to, eight)| put(to, u64::from_le_bytes(*eight)));
        self.written += words;
    }

    fn has_room(&mut self, words: u64) -> bool {
        let all = self.buffer.len;
        if self.written + words - self.read > all {
            // Acquire: the reader has read the words before it moved its cursor behind them.
            self.read = self.buffer.read.0.load(Ordering::Acquire);
        }
        self.written + words - self.read <= all
    }
}

/// Where a packet was captured, and what was known of it there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sighting {
    /// The point.
    pub point: Point,
    /// Why it was dropped, if it was.
    pub why: Option<LossReason>,
    /// Where it was dropped, if it was and that is known.
    pub place: Option<DropPlace>,
    /// Number of its chain, if it was known.
    pub chain: Option<u16>,
    /// Numbers of the NFs of its path; none if it had none.
    pub path: Vec<u16>,
}

/// A captured packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedPacket {
    /// Time, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Where it was.
    pub sighting: Sighting,
    /// Packets that were missed between the packet before it and this one.
    pub missed: u32,
    /// Its length in bytes; of its headers, or 0, if it is lost with its NF or by an invalid
    /// descriptor.
    pub len: u16,
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// What else is known of it if the capture follows an NF.
    pub origin: Option<PacketOrigin>,
}

impl Default for CapturedPacket {
    fn default() -> Self {
        let sighting = Sighting { point: Point::Dropped, why: None, place: None, chain: None, path: Vec::new() };
        Self { at_ns: 0, sighting, missed: 0, len: 0, bytes: Vec::new(), origin: None }
    }
}

/// Takes out what a [`Tap`] has copied.
#[derive(Debug)]
pub struct CaptureReader {
    buffer: Arc<Buffer>,
    read: u64,
    /// The writer's cursor when it was last looked at.
    written: u64,
}

impl CaptureReader {
    /// The time of the next packet, in nanoseconds, if there is one.
    pub fn next_ns(&mut self) -> Option<u64> {
        if self.read == self.written {
            // Acquire: the words of all records before the cursor are there.
            self.written = self.buffer.written.0.load(Ordering::Acquire);
        }
        // Relaxed, here and below: the cursor was acquired.
        (self.read < self.written).then(|| self.buffer.record(self.read, 1)[0].load(Ordering::Relaxed))
    }

    /// The order of the next packet, if there is one and the capture follows an NF.
    pub fn next_order(&mut self) -> Option<u32> {
        self.next_ns()?;
        let words = self.buffer.record(self.read, HEAD + 1);
        let has_origin = (words[1].load(Ordering::Relaxed) >> 48) as u8 & HAS_ORIGIN != 0;
        has_origin.then(|| words[HEAD as usize].load(Ordering::Relaxed) as u32)
    }

    /// Takes the next packet. False if there is none.
    pub fn take(&mut self, record: &mut CapturedPacket) -> bool {
        let Some(at_ns) = self.next_ns() else { return false };
        let head = self.buffer.record(self.read, HEAD);
        let (second, third) = (head[1].load(Ordering::Relaxed), head[2].load(Ordering::Relaxed));
        let kind = (second >> 48) as u8;
        let (point, place) = Point::from_bits(kind & !HAS_ORIGIN, (second >> 32) as u16);
        record.at_ns = at_ns;
        record.len = second as u16;
        record.missed = third as u32;
        let chain = (third >> 32) as u16;
        (record.sighting.point, record.sighting.place) = (point, place);
        record.sighting.why = LossReason::from_code((second >> 56) as u8);
        record.sighting.chain = (chain != NO_CHAIN).then_some(chain);
        let (hops, caught) = (usize::from((third >> 48) as u8), usize::from((second >> 16) as u16));
        let of_origin = if kind & HAS_ORIGIN == 0 { 0 } else { ORIGIN };
        let words = HEAD + of_origin + words_of(hops, caught);
        let (origin, rest) = self.buffer.record(self.read, words)[HEAD as usize..].split_at(of_origin as usize);
        let (path, content) = rest.split_at(hops.div_ceil(4));
        record.origin = match origin {
            [a, b] => Some(PacketOrigin::from_words([a, b].map(|word| word.load(Ordering::Relaxed)), record.len, chain)),
            _ => None,
        };
        record.sighting.path.clear();
        for word in path {
            let word = word.load(Ordering::Relaxed);
            record.sighting.path.extend((0..4).map(|at| (word >> (16 * at)) as u16));
        }
        record.sighting.path.truncate(hops);
        record.bytes.resize(content.len() * 8, 0);
        let (eights, _) = record.bytes.as_chunks_mut();
        eights.iter_mut().zip(content).for_each(|(eight, word)| *eight = word.load(Ordering::Relaxed).to_le_bytes());
        record.bytes.truncate(caught);
        self.read += words;
        // Release: its words were read before the writer may use them again.
        self.buffer.read.0.store(self.read, Ordering::Release);
        true
    }

    /// Packets that were missed, all together.
    pub fn missed(&self) -> u64 {
        self.buffer.missed.get()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use sluice_shm::arena::{Geometry, HEADROOM};

    use super::*;
    use crate::frame::Packet;

    const STRIDE: u32 = 2240;

    fn arena() -> Arena {
        Arena::create(Geometry { first: 0, frames: 64, stride: STRIDE }, false).unwrap().1
    }

    /// Writes a packet of this length to a frame.
    fn packet(arena: &Arena, frame: u32, len: u16) -> (Packet, Vec<u8>) {
        let bytes: Vec<u8> = (0..len).map(|i| (u32::from(i) * 7 + frame) as u8).collect();
        assert!(arena.write(frame, HEADROOM as u16, &bytes));
        (Packet::fresh(frame, len), bytes)
    }

    fn request(snap: u16) -> CaptureScope {
        CaptureScope { chain: None, points: Vec::new(), every: 1, each: None, snap, follows: None }
    }

    fn taken(reader: &mut CaptureReader) -> Vec<CapturedPacket> {
        let mut record = CapturedPacket::default();
        std::iter::from_fn(|| reader.take(&mut record).then(|| record.clone())).collect()
    }

    fn at(point: Point) -> Sight<'static> {
        Sight { point, why: None, place: None, ingress: None, chain: Some(3), hops: &[] }
    }

    #[test]
    fn every_point_and_reason_comes_back_from_its_bits() {
        for point in [Point::ToNf(7), Point::FromNf(u16::MAX), Point::Received(0), Point::Sent(258), Point::Dropped] {
            let (kind, number) = point.bits(None);
            assert_eq!(Point::from_bits(kind, number), (point, None));
        }
        for place in [DropPlace::Nf(0), DropPlace::Nf(u16::MAX), DropPlace::Port(7)] {
            let (kind, number) = Point::Dropped.bits(Some(place));
            assert_eq!(Point::from_bits(kind, number), (Point::Dropped, Some(place)));
        }
        let before = DropReason::ALL.map(LossReason::from).into_iter().chain(Refusal::ALL.map(LossReason::from));
        for why in before.chain(PortDrop::ALL.map(LossReason::from)) {
            assert_eq!(LossReason::from_code(why.code()), Some(why));
        }
        assert_eq!(LossReason::from_code(0), None);
    }

    #[test]
    fn packets_of_every_length_come_out_as_they_went_in() {
        let arena = arena();
        let (mut tap, mut reader) = pair(&Arc::new(request(100)), 64);
        let hops: Vec<Hop> = (0..9).map(|nf| Hop { nf: nf * 1000, last_visit: true, reverse: false }).collect();
        // Many times as much as the buffer holds.
        for len in 1..300 {
            let (packet, bytes) = packet(&arena, u32::from(len) % 64, len);
            let hops = &hops[..usize::from(len) % 10];
            let why = (len % 2 == 0).then_some(LossReason::Entry(Refusal::NoneIdle));
            let sight =
                Sight { point: Point::FromNf(len), why, place: None, ingress: None, chain: (len % 3 > 0).then_some(len), hops };
            tap.show(&arena, 1 << 40 | u64::from(len), &sight, &[packet]);
            let path = hops.iter().map(|hop| hop.nf).collect();
            let sighting = Sighting { point: Point::FromNf(len), why, place: None, chain: sight.chain, path };
            let bytes = bytes[..bytes.len().min(100)].to_vec();
            let at_ns = 1 << 40 | u64::from(len);
            assert_eq!(taken(&mut reader), [CapturedPacket { at_ns, sighting, missed: 0, len, bytes, origin: None }]);
        }
        assert_eq!(reader.missed(), 0);
    }

    #[test]
    fn what_does_not_fit_is_counted_and_the_next_one_that_fits_says_so() {
        let arena = arena();
        let (mut tap, mut reader) = pair(&Arc::new(request(64)), 64);
        let packets: Vec<Packet> = (0..20).map(|frame| packet(&arena, frame, 64).0).collect();
        // Eleven words each.
        tap.show(&arena, 5, &at(Point::Dropped), &packets);
        assert_eq!((taken(&mut reader).len(), reader.missed()), (5, 15));
        tap.show(&arena, 6, &at(Point::Dropped), &packets[..2]);
        let missed: Vec<u32> = taken(&mut reader).iter().map(|record| record.missed).collect();
        assert_eq!((missed, reader.missed()), (vec![15, 0], 15));
    }

    #[test]
    fn only_what_is_asked_for_is_copied() {
        let arena = arena();
        let packets: Vec<Packet> = (0..6).map(|frame| packet(&arena, frame, 60).0).collect();
        let seen = |request: CaptureScope, sight: &Sight<'_>| {
            let (mut tap, mut reader) = pair(&Arc::new(request), 1024);
            tap.show(&arena, 0, sight, &packets);
            taken(&mut reader).len()
        };
        let points = vec![Point::ToNf(1), Point::Dropped];
        for (point, wanted) in [(Point::ToNf(1), 6), (Point::ToNf(2), 0), (Point::FromNf(1), 0), (Point::Dropped, 6)] {
            assert_eq!(seen(CaptureScope { points: points.clone(), ..request(64) }, &at(point)), wanted, "{point:?}");
        }
        for (chain, wanted) in [(Some(3), 6), (Some(4), 0), (None, 6)] {
            assert_eq!(seen(CaptureScope { chain, ..request(64) }, &at(Point::Sent(0))), wanted, "{chain:?}");
        }
        let unknown = Sight { chain: None, ..at(Point::Received(0)) };
        assert_eq!(seen(CaptureScope { chain: Some(3), ..request(64) }, &unknown), 0);
        assert_eq!(seen(CaptureScope { every: 4, ..request(64) }, &at(Point::Sent(0))), 2);
    }

    #[test]
    fn of_each_sight_there_are_as_many_as_were_asked_for() {
        let arena = arena();
        let (packet, _) = packet(&arena, 0, 60);
        let (mut tap, mut reader) = pair(&Arc::new(CaptureScope { each: Some(2), ..request(64) }), 1 << 14);
        let lost = |why: LossReason, port: u16| Sight::refused(None, None, why, port);
        // A flood of one kind hides no other.
        for port in 0..3 {
            tap.show(&arena, 1, &lost(Refusal::NoRule.into(), port), &[packet; 32]);
            tap.show(&arena, 2, &lost(Refusal::NfDown.into(), port), &[packet]);
        }
        tap.show(&arena, 3, &lost(Refusal::NoRule.into(), 0), &[packet; 32]);
        let mut seen = HashMap::new();
        for record in taken(&mut reader) {
            *seen.entry((record.sighting.why.unwrap().name(), record.sighting.place.unwrap())).or_insert(0) += 1;
        }
        assert_eq!((seen.len(), reader.missed()), (6, 0), "{seen:?}");
        assert!(seen.iter().all(|((why, _), n)| *n == if *why == "no_rule" { 2 } else { 1 }), "{seen:?}");
        // However many kinds there are, the table stays as it is.
        (0..u16::MAX).for_each(|port| tap.show(&arena, 4, &lost(Refusal::NoPath.into(), port), &[packet]));
        assert!((SIGHTS / 2..=SIGHTS).contains(&taken(&mut reader).len()));
    }

    #[test]
    fn a_packet_that_was_missed_is_none_of_those_that_were_asked_for() {
        let arena = arena();
        let (packet, _) = packet(&arena, 0, 64);
        let (mut tap, mut reader) = pair(&Arc::new(CaptureScope { each: Some(1), ..request(64) }), 64);
        // Eleven words each, of 64: the first five fill the buffer.
        (0..7).for_each(|nf| tap.show(&arena, 1, &at(Point::ToNf(nf)), &[packet]));
        assert_eq!((taken(&mut reader).len(), reader.missed()), (5, 2));
        (0..7).for_each(|nf| tap.show(&arena, 2, &at(Point::ToNf(nf)), &[packet; 3]));
        let points: Vec<Point> = taken(&mut reader).into_iter().map(|record| record.sighting.point).collect();
        assert_eq!((points, reader.missed()), (vec![Point::ToNf(5), Point::ToNf(6)], 2));
    }

    #[test]
    fn bytes_that_lie_in_no_frame_are_shown_as_far_as_there_are_any() {
        let (mut tap, mut reader) = pair(&Arc::new(request(100)), 1024);
        let sight = Sight::refused(None, None, PortDrop::Mtu.into(), 7);
        for (len, have) in [(1600, 128), (60, 60), (90, 0), (0, 5)] {
            tap.show_bytes(9, &sight, len, &vec![len as u8; have]);
        }
        let seen: Vec<_> = taken(&mut reader).into_iter().map(|record| (record.len, record.bytes)).collect();
        assert_eq!(seen, [(1600, vec![64; 100]), (60, vec![60; 60]), (90, vec![]), (0, vec![])]);
    }

    #[test]
    fn a_packet_outside_of_its_frame_has_no_bytes() {
        let arena = arena();
        let (mut tap, mut reader) = pair(&Arc::new(request(u16::MAX)), 1024);
        let wild = [Packet { frame: 3, offset: 2200, len: 100 }, Packet { frame: 64, offset: 0, len: 1 }];
        let lost = Packet { frame: 3, offset: 0, len: 0 };
        tap.show(&arena, 0, &at(Point::Dropped), &wild);
        tap.show(&arena, 0, &at(Point::Dropped), &[lost]);
        let lengths: Vec<(u16, usize)> = taken(&mut reader).iter().map(|record| (record.len, record.bytes.len())).collect();
        assert_eq!(lengths, [(0, 0); 3]);
    }

    #[test]
    fn what_an_nf_gets_returns_and_loses_has_its_descriptor_and_its_order_over_all_threads() {
        let arena = arena();
        let (packet, bytes) = packet(&arena, 9, 77);
        let hops = [Hop { nf: 4, last_visit: true, reverse: false }];
        let sight = |point| Sight { ingress: Some(6), chain: Some(3), hops: &hops, ..at(point) };
        let mut taps = following(&Arc::new(CaptureScope::of_nf(4)), 1024, 2);
        let given = Descriptor { frame: 9, offset: packet.offset, len: 77, chain: 3, verdict: 0, flags: 2, arg: 0, ingress: 6 };
        let returned = Descriptor { verdict: 2, arg: 0xabcd, flags: 0, ..given };
        taps[0].0.show(&arena, 7, &sight(Point::ToNf(4)), &[given]);
        taps[1].0.show(&arena, 5, &sight(Point::FromNf(4)), &[returned]);
        let lost = Sight { why: Some(DropReason::Verdict.into()), place: Some(DropPlace::Nf(4)), ..sight(Point::Dropped) };
        taps[1].0.show(&arena, 6, &lost, &[packet]);
        // Not its own.
        let others = Sight { place: Some(DropPlace::Nf(5)), ..lost };
        for sight in [sight(Point::ToNf(5)), sight(Point::FromNf(3)), sight(Point::Received(4)), sight(Point::Sent(4)), others] {
            taps[0].0.show(&arena, 8, &sight, &[given]);
        }
        assert!(!taps[0].0.shows_drops());
        assert_eq!(taps[0].1.next_order(), Some(0));
        assert_eq!(taps[1].1.next_order(), Some(1));
        let got = taken(&mut taps[0].1);
        assert_eq!((got.len(), &got[0].bytes, got[0].origin), (1, &bytes, Some(PacketOrigin { order: 0, descriptor: given })));
        assert_eq!(got[0].sighting.path, [4]);
        let got = taken(&mut taps[1].1);
        assert_eq!((got.len(), got[0].origin), (2, Some(PacketOrigin { order: 1, descriptor: returned })));
        let dropped = Descriptor { verdict: 0, arg: 0, ingress: 0, ..returned };
        assert_eq!((got[1].origin, &got[1].bytes), (Some(PacketOrigin { order: 2, descriptor: dropped }), &bytes));
        assert_eq!(got[1].sighting.why, Some(DropReason::Verdict.into()));
    }

    #[test]
    fn what_is_missed_has_no_order() {
        let arena = arena();
        let (packet, _) = packet(&arena, 0, 64);
        let mut taps = following(&Arc::new(CaptureScope::of_nf(1)), 64, 1);
        let (tap, reader) = &mut taps[0];
        // Thirteen words each, of 64.
        tap.show(&arena, 1, &at(Point::ToNf(1)), &[packet; 9]);
        assert_eq!((taken(reader).len(), reader.missed()), (4, 5));
        tap.show(&arena, 1, &at(Point::ToNf(1)), &[packet]);
        let next = taken(reader);
        assert_eq!((next[0].missed, next[0].origin.unwrap().order), (5, 4));
    }

    #[test]
    fn two_threads_lose_nothing_that_is_not_counted() {
        let arena = arena();
        let (packet, bytes) = packet(&arena, 0, 90);
        let (mut tap, mut reader) = pair(&Arc::new(request(90)), 256);
        const PACKETS: u64 = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(move || (0..PACKETS).for_each(|at_ns| tap.show(&arena, at_ns, &at(Point::ToNf(1)), &[packet])));
            let (mut record, mut next) = (CapturedPacket::default(), 0);
            // The last packet may be missed.
            while next + reader.missed() < PACKETS {
                if reader.take(&mut record) {
                    assert_eq!((record.bytes.as_slice(), record.len), (&bytes[..], 90));
                    next += 1;
                } else {
                    std::thread::yield_now();
                }
            }
            assert_eq!(next + reader.missed(), PACKETS);
        });
    }
}
