//! The region of one NF: its page, its rx rings and its tx ring, in a mapping of its own.
//!
//! # Layout
//! | offset | what | written by |
//! |---|---|---|
//! | 0 | [`RegionLayout`]: magic, version, sizes and offsets | the manager, once |
//! | 128 | [`asleep`](Page::asleep) and the NF's own doorbell | both |
//! | 256 | control words: [`Control`] | the manager |
//! | 320 | counters: [`Counter`] | the NF |
//! | 448 | what the NF asks for: [`NfRequest`] | the NF |
//! | 512 | service-time histogram, ns per burst | the NF |
//! | 2048 | counters of the parts of a group: [`PartCounter`] | the NF |
//! | 2560 | the traced packet that each part returned last: [`Page::traced`] | the NF |
//! | 4096 | the rx rings, one for each manager thread that may enqueue | see [`crate::ring`] |
//! | … | the tx ring | see [`crate::ring`] |

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::gate::Gate;
use crate::histogram::{SHARED_BYTES, SharedHistogram};
use crate::memory::{Mapping, MemoryError, SharedMemory};
use crate::ring::{self, Consumer, Gauge, Producer};
use crate::{CACHE_LINE, LAYOUT_VERSION};

/// First word of a region.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sluiceNF");

/// Where the rings start.
pub const PAGE_BYTES: usize = 4096;

/// Most rx rings, that is, manager threads that enqueue.
pub const MAX_RX_RINGS: u32 = 64;

const ASLEEP: usize = 128;
const BELL: usize = ASLEEP + 4;
const CONTROL: usize = 256;
const COUNTERS: usize = 320;
const REQUESTS: usize = 448;
const HISTOGRAM: usize = 512;
const PARTS: usize = 2048;
const _: () = assert!(HISTOGRAM + SHARED_BYTES <= PARTS);
const TRACED: usize = PARTS + MAX_PARTS * PART_COUNTERS * 8;
const _: () = assert!(TRACED + MAX_PARTS * 8 <= PAGE_BYTES);

/// Most parts of a group: handlers that run in one process, one after another.
pub const MAX_PARTS: usize = 16;
const PART_COUNTERS: usize = 4;

/// Layout of a region. Sent in the handshake; the NF checks it against what it maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct RegionLayout {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`LAYOUT_VERSION`].
    pub version: u32,
    /// Bytes of the region.
    pub bytes: u32,
    /// Number of rx rings.
    pub rx_rings: u32,
    /// Capacity of each ring.
    pub capacity: u32,
    /// Offset of the first rx ring. The others follow, [`ring::bytes`] apart, then the tx ring.
    pub rings: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<RegionLayout>() == 32);

impl RegionLayout {
    /// The layout for `rx_rings` rx rings of this capacity. None if out of limits.
    pub fn new(rx_rings: u32, capacity: u32) -> Option<Self> {
        if rx_rings == 0 || rx_rings > MAX_RX_RINGS || !ring::is_valid_capacity(capacity) {
            return None;
        }
        let bytes = tx_ring(rx_rings, capacity) + ring::bytes(capacity);
        let bytes = u32::try_from(bytes.next_multiple_of(PAGE_BYTES)).ok()?;
        Some(Self { magic: MAGIC, version: LAYOUT_VERSION, bytes, rx_rings, capacity, rings: PAGE_BYTES as u32, reserved: 0 })
    }

    /// Whether a layout from elsewhere is one that [`RegionLayout::new`] makes.
    pub fn is_valid(&self) -> bool {
        Self::new(self.rx_rings, self.capacity) == Some(*self)
    }

    fn rx_ring(&self, index: u32) -> usize {
        self.rings as usize + index as usize * ring::bytes(self.capacity)
    }

    fn tx_ring(&self) -> usize {
        tx_ring(self.rx_rings, self.capacity)
    }
}

/// Where the tx ring starts: half a page off the rx rings, unless they are small. An NF reads one
/// and writes the other in step, and loads wait for stores with the same last 12 address bits.
const fn tx_ring(rx_rings: u32, capacity: u32) -> usize {
    let end = PAGE_BYTES + rx_rings as usize * ring::bytes(capacity);
    if ring::bytes(capacity) < PAGE_BYTES { end } else { end.next_multiple_of(PAGE_BYTES) + PAGE_BYTES / 2 }
}

/// Words that the manager writes and the NF reads.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub enum Control {
    /// 1: finish what was read, return every frame, and leave.
    Stop = 0,
    /// 1: go to sleep after this burst.
    Yield = 1,
    /// The NF's gate: see [`crate::gate`].
    Gate = 2,
    /// Changes when the NF gets another flow: it forgets its state before it handles packets read
    /// later. The manager waits until all packets of the former flow are back, then sets it, then
    /// posts.
    Reset = 3,
    /// 1: outside the hand-over. The kernel schedules the NF; only the manager wakes it.
    Alone = 4,
    /// 1: the NF sleeps on its own doorbell too: another NF took a wake meant for it.
    Guarded = 5,
}

/// Bits of [`Page::asleep`]; 0 while the NF is awake.
pub mod asleep {
    /// It sleeps or is about to.
    pub const ASLEEP: u32 = 1;
    /// It waits for its own doorbell. In the hand-over it also waits for, or only for, the core
    /// page's.
    pub const HEARS: u32 = 2;
    /// It waits for something other than packets, such as the disk, and cannot take any.
    pub const SUSPENDED: u32 = 4;
}

/// Counters that the NF writes and the manager shows, never used for a decision about safety.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub enum Counter {
    /// Packets handled.
    Packets = 0,
    /// Packets it dropped.
    Drops = 1,
    /// Bursts handled.
    Bursts = 2,
    /// Times it went to sleep.
    Sleeps = 3,
    /// Times it started the next NF on its core.
    HandOvers = 4,
    /// Nanoseconds of all sampled bursts.
    BusyNs = 5,
    /// Errors and panics of its handler.
    Errors = 6,
    /// 1 once its handler is ready.
    Ready = 7,
    /// Packets whose service time was sampled.
    Sampled = 8,
    /// Its use of its gate: a sum of [`LOOKS`](crate::gate::LOOKS) and
    /// [`COMES_WHEN_CALLED`](crate::gate::COMES_WHEN_CALLED).
    Gate = 9,
    /// The value of [`Control::Reset`] for which it has cleared its state.
    Reset = 10,
}

/// Number of [`Counter`]s.
pub const COUNTER_COUNT: usize = 11;
const _: () = assert!(COUNTERS + COUNTER_COUNT * 8 <= REQUESTS);

/// What an NF may ask for. Hints: the manager decides, and when. A request is for one flow, by the
/// value of [`Counter::Reset`]; an NF that gets another flow asks for nothing until it asks again.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub enum NfRequest {
    /// A priority, in thousandths, within the bounds of its service.
    Priority = 0,
    /// 1: its flow is over.
    FlowEnd = 1,
}

const REQUEST_COUNT: usize = 2;
const _: () = assert!(REQUESTS + REQUEST_COUNT * 8 <= HISTOGRAM);

/// Counters of one part of a group, written and shown as [`Counter`]s are.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub enum PartCounter {
    /// Packets handled.
    Packets = 0,
    /// Packets it dropped.
    Drops = 1,
    /// Nanoseconds of its sampled bursts.
    BusyNs = 2,
    /// Packets whose service time was sampled.
    Sampled = 3,
}

/// The word of a traced packet that a part returned: its frame, and when, in nanoseconds on the
/// monotonic clock, of which it keeps the lower half.
#[inline]
pub fn returned(frame: u32, at_ns: u64) -> u64 {
    u64::from(frame) << 32 | u64::from((at_ns as u32).max(1))
}

/// When the packet in a frame was returned, by its word: within two seconds of `now_ns`. None: the
/// word is of another packet.
#[inline]
pub fn returned_at(word: u64, frame: u32, now_ns: u64) -> Option<u64> {
    let before = (now_ns as u32).wrapping_sub(word as u32) as i32;
    ((word >> 32) as u32 == frame && word as u32 != 0).then(|| now_ns.saturating_add_signed(-i64::from(before)))
}

/// The page of a mapped region, for either side.
#[derive(Debug, Clone)]
pub struct Page {
    mapping: Arc<Mapping>,
    layout: RegionLayout,
    service_time: SharedHistogram,
}

impl Page {
    fn new(mapping: Arc<Mapping>, layout: RegionLayout) -> Option<Self> {
        let service_time = SharedHistogram::in_mapping(&mapping, HISTOGRAM)?;
        (mapping.len() >= layout.bytes as usize).then_some(Self { mapping, layout, service_time })
    }

    /// The layout of its region.
    pub fn layout(&self) -> RegionLayout {
        self.layout
    }

    /// A word that the manager writes.
    #[inline(always)]
    pub fn control(&self, word: Control) -> &AtomicU32 {
        self.mapping.atomic_u32(CONTROL + word as usize * 4).expect("the page is mapped")
    }

    /// The NF's gate.
    pub fn gate(&self) -> Gate {
        Gate::in_mapping(&self.mapping, CONTROL + Control::Gate as usize * 4).expect("the page is mapped")
    }

    /// How the NF sleeps, by the bits of [`asleep`]. Clearing them wakes it.
    #[inline(always)]
    pub fn asleep(&self) -> &AtomicU32 {
        self.mapping.atomic_u32(ASLEEP).expect("the page is mapped")
    }

    /// The NF's own doorbell, besides that on the core page: no other NF can ring it or wait on it.
    #[inline(always)]
    pub fn doorbell(&self) -> &AtomicU32 {
        self.mapping.atomic_u32(BELL).expect("the page is mapped")
    }

    /// A counter that the NF writes.
    #[inline(always)]
    pub fn counter(&self, counter: Counter) -> &AtomicU64 {
        self.mapping.atomic_u64(COUNTERS + counter as usize * 8).expect("the page is mapped")
    }

    /// Adds to a counter. Only the NF's thread may.
    #[inline(always)]
    pub fn add(&self, counter: Counter, n: u64) {
        let word = self.counter(counter);
        // Relaxed, no read-modify-write: one writer, and it publishes nothing.
        word.store(word.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    fn request(&self, request: NfRequest) -> &AtomicU64 {
        self.mapping.atomic_u64(REQUESTS + request as usize * 8).expect("the page is mapped")
    }

    /// Asks for something; 0 withdraws it. Only the NF may.
    pub fn ask(&self, request: NfRequest, value: u32) {
        let flow = self.counter(Counter::Reset).load(Ordering::Relaxed) as u32;
        // Relaxed: the value and its flow are one word, which publishes nothing else.
        self.request(request).store(u64::from(flow) << 32 | u64::from(value), Ordering::Relaxed);
    }

    /// What the NF asks for; 0: nothing, or not for the flow of this [`Control::Reset`]. An NF may
    /// write anything.
    pub fn asked(&self, request: NfRequest, flow: u32) -> u32 {
        let word = self.request(request).load(Ordering::Relaxed);
        if (word >> 32) as u32 == flow { word as u32 } else { 0 }
    }

    /// A counter of part `part` of a group. None beyond [`MAX_PARTS`].
    #[inline(always)]
    pub fn part(&self, part: usize, counter: PartCounter) -> Option<&AtomicU64> {
        let at = (part < MAX_PARTS).then(|| PARTS + (part * PART_COUNTERS + counter as usize) * 8)?;
        self.mapping.atomic_u64(at)
    }

    /// The traced packet that part `part` of a group returned last, as [`returned`]; 0: none. None
    /// beyond [`MAX_PARTS`].
    pub fn traced(&self, part: usize) -> Option<&AtomicU64> {
        self.mapping.atomic_u64((part < MAX_PARTS).then(|| TRACED + part * 8)?)
    }

    /// Service time of its bursts, in nanoseconds per burst.
    pub fn service_time(&self) -> &SharedHistogram {
        &self.service_time
    }
}

/// The manager's side of a region.
#[derive(Debug)]
pub struct Region {
    /// The memory, whose descriptor goes to the NF.
    pub memory: SharedMemory,
    /// Its page.
    pub page: Page,
}

impl Region {
    /// Makes a region.
    ///
    /// # Errors
    /// As [`SharedMemory::create`].
    pub fn create(layout: RegionLayout) -> Result<Self, MemoryError> {
        assert!(layout.is_valid(), "the configuration checks the ring size");
        let memory = SharedMemory::create("sluice-nf", layout.bytes as usize, false)?;
        let words: [u64; 4] = [
            layout.magic,
            u64::from(layout.version) | u64::from(layout.bytes) << 32,
            u64::from(layout.rx_rings) | u64::from(layout.capacity) << 32,
            u64::from(layout.rings) | u64::from(layout.reserved) << 32,
        ];
        for (i, word) in words.into_iter().enumerate() {
            // Relaxed: no other process has the descriptor yet.
            memory.mapping().atomic_u64(i * 8).expect("the region holds its page").store(word, Ordering::Relaxed);
        }
        let page = Page::new(memory.mapping().clone(), layout).expect("the region holds its page");
        Ok(Self { memory, page })
    }

    /// The manager's end of rx ring `index`.
    pub fn rx_producer(&self, index: u32) -> Option<Producer> {
        let layout = self.page.layout;
        if index >= layout.rx_rings {
            return None;
        }
        Producer::in_mapping(self.memory.mapping(), layout.rx_ring(index), layout.capacity)
    }

    /// The far end of rx ring `index`, which the manager reads for a program that cannot.
    pub fn rx_consumer(&self, index: u32) -> Option<Consumer> {
        let layout = self.page.layout;
        if index >= layout.rx_rings {
            return None;
        }
        Consumer::in_mapping(self.memory.mapping(), layout.rx_ring(index), layout.capacity)
    }

    /// Gauge of rx ring `index`.
    pub fn rx_gauge(&self, index: u32) -> Option<Gauge> {
        let layout = self.page.layout;
        if index >= layout.rx_rings {
            return None;
        }
        Gauge::in_mapping(self.memory.mapping(), layout.rx_ring(index), layout.capacity)
    }

    /// Gauge of the tx ring.
    pub fn tx_gauge(&self) -> Gauge {
        let layout = self.page.layout;
        Gauge::in_mapping(self.memory.mapping(), layout.tx_ring(), layout.capacity).expect("the layout is valid")
    }

    /// The manager's end of the tx ring.
    pub fn tx_consumer(&self) -> Consumer {
        let layout = self.page.layout;
        Consumer::in_mapping(self.memory.mapping(), layout.tx_ring(), layout.capacity).expect("the layout is valid")
    }
}

/// The NF's side of a region.
#[derive(Debug)]
pub struct Attached {
    /// Its page.
    pub page: Page,
    /// Its ends of the rx rings.
    pub rx: Vec<Consumer>,
    /// Its end of the tx ring.
    pub tx: Producer,
}

impl Attached {
    /// Maps a region that a manager passed.
    ///
    /// # Errors
    /// [`MemoryError::TooSmall`] if the layout does not fit the memory or is not valid.
    pub fn map(fd: std::os::fd::BorrowedFd<'_>, layout: RegionLayout) -> Result<Self, MemoryError> {
        let wrong = MemoryError::TooSmall { actual: 0, expected: layout.bytes as usize };
        if !layout.is_valid() {
            return Err(wrong);
        }
        let mapping = Mapping::new(fd, layout.bytes as usize, false)?;
        let rx = (0..layout.rx_rings)
            .map(|i| Consumer::in_mapping(&mapping, layout.rx_ring(i), layout.capacity))
            .collect::<Option<Vec<_>>>();
        let tx = Producer::in_mapping(&mapping, layout.tx_ring(), layout.capacity);
        let page = Page::new(mapping, layout);
        match (page, rx, tx) {
            (Some(page), Some(rx), Some(tx)) => Ok(Self { page, rx, tx }),
            _ => Err(wrong),
        }
    }
}

const _: () = assert!(CONTROL.is_multiple_of(CACHE_LINE) && COUNTERS.is_multiple_of(CACHE_LINE));
const _: () = assert!(REQUESTS.is_multiple_of(CACHE_LINE));

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::descriptor::Descriptor;

    #[test]
    fn a_traced_packet_is_known_by_its_frame_and_its_time_by_half_of_it() {
        for at_ns in [1u64, 5_000_000_000, u64::from(u32::MAX) + 7, (1 << 40) + 3] {
            let word = returned(9, at_ns);
            for now_ns in [at_ns, at_ns + 1_500_000_000, at_ns.saturating_sub(900)] {
                assert_eq!(returned_at(word, 9, now_ns), Some(at_ns), "{now_ns}");
            }
            assert_eq!(returned_at(word, 8, at_ns), None, "another packet");
        }
        assert_eq!(returned_at(0, 0, 5), None, "none, and not frame 0");
        assert_eq!(returned_at(returned(0, 1 << 32), 0, 1 << 32), Some((1 << 32) + 1), "a nanosecond late, and not none");
    }

    #[test]
    fn both_sides_of_a_region_see_the_same_rings() {
        let layout = RegionLayout::new(2, 8).unwrap();
        let region = Region::create(layout).unwrap();
        let mut nf = Attached::map(region.memory.fd(), layout).unwrap();
        let sent = Descriptor { frame: 5, len: 60, ..Default::default() };
        region.rx_producer(1).unwrap().enqueue(&[sent]).unwrap();
        let mut got = [Descriptor::default(); 4];
        assert_eq!(nf.rx[0].dequeue(&mut got), Ok(0));
        assert_eq!(nf.rx[1].dequeue(&mut got), Ok(1));
        assert_eq!(got[0], sent);
        nf.tx.enqueue(&[sent, sent]).unwrap();
        assert_eq!(region.tx_consumer().dequeue(&mut got), Ok(2));
        assert!(region.rx_producer(2).is_none());
        nf.page.add(Counter::Packets, 3);
        nf.page.service_time().record(900);
        assert_eq!(region.page.counter(Counter::Packets).load(Ordering::Relaxed), 3);
        assert_eq!(crate::histogram::Followed::default().follow(region.page.service_time()).count(), 1);
    }

    #[test]
    fn a_request_is_for_the_flow_that_the_nf_has() {
        let layout = RegionLayout::new(1, 8).unwrap();
        let region = Region::create(layout).unwrap();
        let nf = Attached::map(region.memory.fd(), layout).unwrap();
        let asked = |flow| [NfRequest::Priority, NfRequest::FlowEnd].map(|request| region.page.asked(request, flow));
        assert_eq!((asked(0), asked(1)), ([0, 0], [0, 0]));
        nf.page.ask(NfRequest::Priority, 2_500);
        nf.page.ask(NfRequest::FlowEnd, 1);
        assert_eq!((asked(0), asked(1)), ([2_500, 1], [0, 0]));
        // As the library does when it has forgotten a flow.
        nf.page.counter(Counter::Reset).store(1, Ordering::Relaxed);
        assert_eq!((asked(0), asked(1)), ([2_500, 1], [0, 0]), "it has not asked for the new one");
        nf.page.ask(NfRequest::Priority, 500);
        assert_eq!((asked(0), asked(1)), ([0, 1], [500, 0]));
        nf.page.ask(NfRequest::Priority, 0);
        assert_eq!(asked(1), [0, 0]);
    }

    #[test]
    fn a_layout_that_does_not_fit_is_refused() {
        let layout = RegionLayout::new(1, 8).unwrap();
        let region = Region::create(layout).unwrap();
        assert!(RegionLayout::new(0, 8).is_none());
        assert!(RegionLayout::new(1, 9).is_none());
        assert!(Attached::map(region.memory.fd(), RegionLayout::new(1, 4096).unwrap()).is_err());
        assert!(Attached::map(region.memory.fd(), RegionLayout { rings: 0, ..layout }).is_err());
    }
}
