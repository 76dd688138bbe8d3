//! Packet memory: frames of one size, cut out of shared mappings.
//!
//! A frame's stride is an odd number of cache lines, so that the headers of neighbouring frames
//! fall on different sets of the L1 cache. The arena holds packet bytes only: free lists, owners
//! and chains are in the manager's private memory.
//!
//! # Several arenas in one range
//! Each tenant has an arena of its own: one file, which only its NFs map. The manager reserves one
//! [`Range`] of addresses, cut into slots of a power of two of frames, and maps each arena at the
//! beginning of its slot. So frame numbers are the same on both sides, a shift of a number gives
//! the slot, and a frame's address is its number times the stride in every arena. An arena is the
//! frames `first..first + frames` (`first` is 0 if it is the only one); an NF maps it anywhere and
//! subtracts `first` frames from the address once.

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::CACHE_LINE;
use crate::memory::{HUGEPAGE, Mapping, MemoryError, MemoryFile, Reservation, SharedMemory};

/// Bytes before a fresh frame's packet, for pushed headers; as DPDK's RTE_PKTMBUF_HEADROOM.
pub const HEADROOM: usize = 128;

/// A frame, and the part of it that is a packet. Layout: as in `dpdk/shim.c`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packet {
    /// Frame number.
    pub frame: u32,
    /// Where the packet starts in its frame, in bytes.
    pub offset: u16,
    /// Length of the packet, in bytes.
    pub len: u16,
}

impl Packet {
    /// A packet of `len` bytes behind the headroom of a fresh frame.
    #[inline(always)]
    pub fn fresh(frame: u32, len: u16) -> Self {
        Self { frame, offset: HEADROOM as u16, len }
    }

    /// The first word of a descriptor of it.
    #[inline(always)]
    pub fn to_word(&self) -> u64 {
        // SAFETY: the size is 8, no byte is padding, and the read needs no alignment.
        unsafe { std::ptr::from_ref(self).cast::<u64>().read_unaligned() }
    }
}

/// Default stride, 35 cache lines: fits 1,518 bytes, headroom, and DPDK's smallest data room.
pub const DEFAULT_STRIDE: usize = 2240;

/// Largest stride: offsets and lengths are 16 bits wide.
pub const MAX_STRIDE: usize = 65_472;

/// Frames of the smallest slot of a [`Range`]: whole hugepages with any valid stride.
pub const SLOT: u32 = (HUGEPAGE / CACHE_LINE) as u32;

/// How frames lie in an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Number of the first frame.
    pub first: u32,
    /// Number of frames.
    pub frames: u32,
    /// Bytes from one frame to the next.
    pub stride: u32,
}

impl Geometry {
    /// Smallest valid stride that holds `packet_bytes` behind the headroom.
    pub fn stride_for(packet_bytes: usize) -> usize {
        let lines = (HEADROOM + packet_bytes).div_ceil(CACHE_LINE);
        (lines | 1) * CACHE_LINE
    }

    /// Whether a stride is an odd number of cache lines within the 16-bit limits.
    pub fn is_valid(&self) -> bool {
        let stride = self.stride as usize;
        self.frames > 0
            && self.first.checked_add(self.frames).is_some()
            && stride > HEADROOM
            && stride <= MAX_STRIDE
            && stride.is_multiple_of(CACHE_LINE)
            && (stride / CACHE_LINE) % 2 == 1
    }

    /// Bytes of all frames.
    pub fn bytes(&self) -> usize {
        self.frames as usize * self.stride as usize
    }

    /// Whether there is a frame with number `frame`.
    #[inline(always)]
    pub fn has(&self, frame: u32) -> bool {
        // A number below the first wraps around to one that is far too large.
        frame.wrapping_sub(self.first) < self.frames
    }

    /// Whether `offset..offset + len` lies in a frame with number `frame`.
    #[inline(always)]
    pub fn contains(&self, frame: u32, offset: u16, len: u16) -> bool {
        // Bitwise: one branch per packet.
        self.has(frame) & (u32::from(offset) + u32::from(len) <= self.stride) & (len != 0)
    }
}

/// Addresses for several arenas: slots of `1 << shift` frames, each for one arena.
#[derive(Debug, Clone)]
pub struct Range {
    addresses: Arc<Reservation>,
    stride: u32,
    shift: u32,
    slots: u32,
}

impl Range {
    /// Reserves addresses for `slots` slots, each for at least `frames` frames.
    ///
    /// # Errors
    /// [`MemoryError::System`], or [`MemoryError::TooManyFrames`] if frame numbers do not suffice.
    pub fn reserve(slots: u32, frames: u32, stride: u32) -> Result<Self, MemoryError> {
        assert!(Geometry { first: 0, frames, stride }.is_valid(), "the configuration checks the geometry");
        let shift = frames.max(SLOT).next_power_of_two().trailing_zeros();
        let too_many = || MemoryError::TooManyFrames { arenas: slots, frames };
        // Half of the numbers, so that the number of a slot is below 2³² for every shift.
        let all = (u64::from(slots) << shift).checked_mul(u64::from(stride)).filter(|_| u64::from(slots) << shift <= 1 << 31);
        let bytes = all.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(too_many)?;
        Ok(Self { addresses: Reservation::new(bytes)?, stride, shift, slots })
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The shift that turns a frame's number into that of its slot, in bits.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Makes an arena of `frames` frames in a slot, in place of what was there.
    ///
    /// # Errors
    /// As [`SharedMemory::create`] and [`SharedMemory::create_huge`]; then the slot is empty.
    pub fn make(&self, slot: u32, frames: u32, hugepages: bool) -> Result<(MemoryFile, Arena), MemoryError> {
        assert!(slot < self.slots && frames <= 1 << self.shift, "a slot is as large as the largest arena");
        let geometry = Geometry { first: slot << self.shift, frames, stride: self.stride };
        let file = MemoryFile::create("sluice-arena", geometry.bytes(), hugepages)?;
        self.addresses.place(geometry.first as usize * self.stride as usize, &file)?;
        Ok((file, self.view(geometry)))
    }

    /// Empties a slot. A later access to a frame of it ends the process.
    pub fn clear(&self, slot: u32) {
        let bytes = (1usize << self.shift) * self.stride as usize;
        self.addresses.clear(slot as usize * bytes, bytes);
    }

    /// The frames of all slots as one arena, for code whose frame numbers all come from the
    /// manager. Not every number below the number of frames has memory.
    pub fn whole(&self) -> Arena {
        self.view(Geometry { first: 0, frames: self.slots << self.shift, stride: self.stride })
    }

    fn view(&self, geometry: Geometry) -> Arena {
        let zero = Zero(self.addresses.start());
        Arena { zero, geometry, keeps: Keeps::Range { _addresses: self.addresses.clone() } }
    }
}

/// Address of frame 0, which is in the mapping only if the arena has that frame.
#[derive(Debug, Clone, Copy)]
struct Zero(*mut u8);

// SAFETY: an address is plain data; the code that dereferences it keeps the crate's rules.
unsafe impl Send for Zero {}
// SAFETY: as above.
unsafe impl Sync for Zero {}

/// The mapping of an arena's frames, kept as long as the arena.
#[derive(Debug, Clone)]
enum Keeps {
    File(Arc<Mapping>),
    Range { _addresses: Arc<Reservation> },
    Caller,
}

/// A mapped arena.
#[derive(Debug, Clone)]
pub struct Arena {
    zero: Zero,
    geometry: Geometry,
    keeps: Keeps,
}

impl Arena {
    /// Makes an arena in memory of its own.
    ///
    /// # Errors
    /// As [`SharedMemory::create`] and [`SharedMemory::create_huge`].
    pub fn create(geometry: Geometry, hugepages: bool) -> Result<(SharedMemory, Self), MemoryError> {
        assert!(geometry.is_valid(), "the configuration checks the geometry");
        let memory = if hugepages {
            SharedMemory::create_huge("sluice-arena", geometry.bytes())?
        } else {
            // Not populated before the advice, which would leave it on small pages for good.
            let memory = SharedMemory::create("sluice-arena", geometry.bytes(), false)?;
            memory.mapping().advise_hugepages();
            memory
        };
        let arena = Self::of(memory.mapping().clone(), geometry);
        Ok((memory, arena))
    }

    /// Maps an arena that a manager passed.
    ///
    /// # Errors
    /// [`MemoryError::TooSmall`] if the file does not hold the frames.
    pub fn map(fd: BorrowedFd<'_>, geometry: Geometry) -> Result<Self, MemoryError> {
        if !geometry.is_valid() {
            return Err(MemoryError::TooSmall { actual: 0, expected: geometry.bytes() });
        }
        Ok(Self::of(Mapping::new(fd, geometry.bytes(), false)?, geometry))
    }

    /// A view of an arena that another part of this process has mapped, by [`zero`](Self::zero).
    ///
    /// # Safety
    /// Its frames stay mapped and writable for as long as the view exists.
    pub unsafe fn view_of(zero: *mut u8, geometry: Geometry) -> Self {
        Self { zero: Zero(zero), geometry, keeps: Keeps::Caller }
    }

    fn of(mapping: Arc<Mapping>, geometry: Geometry) -> Self {
        let zero = Zero(mapping.start().wrapping_sub(geometry.first as usize * geometry.stride as usize));
        Self { zero, geometry, keeps: Keeps::File(mapping) }
    }

    /// How the frames lie.
    #[inline(always)]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// First byte and length of the memory of its frames, for a DPDK memory pool over it.
    pub fn raw(&self) -> (*mut u8, usize) {
        let len = match &self.keeps {
            Keeps::File(mapping) => mapping.len(),
            Keeps::Range { .. } | Keeps::Caller => self.geometry.bytes(),
        };
        (self.at(self.geometry.first, 0), len)
    }

    /// Address of frame 0; the address of a frame is this plus its number times the stride. It is
    /// not to be dereferenced: the arena may begin with another frame.
    #[inline(always)]
    pub fn zero(&self) -> *mut u8 {
        self.zero.0
    }

    /// Address of a byte of a frame, which the caller has checked.
    #[inline(always)]
    fn at(&self, frame: u32, offset: usize) -> *mut u8 {
        self.zero.0.wrapping_add(frame as usize * self.geometry.stride as usize + offset)
    }

    /// First byte of a frame, for drivers and the NF library. None if there is no such frame.
    #[inline(always)]
    pub fn frame_ptr(&self, frame: u32) -> Option<*mut u8> {
        self.geometry.has(frame).then(|| self.at(frame, 0))
    }

    /// Address of a packet, checked. None if it does not lie in one frame.
    #[inline(always)]
    pub fn packet_ptr(&self, frame: u32, offset: u16, len: u16) -> Option<*mut u8> {
        self.geometry.contains(frame, offset, len).then(|| self.at(frame, offset.into()))
    }

    /// Copies bytes out of a frame. False, and nothing copied, if they do not lie in it.
    #[inline(always)]
    pub fn read(&self, frame: u32, offset: u16, out: &mut [u8]) -> bool {
        let end = offset as usize + out.len();
        if !self.geometry.has(frame) || end > self.geometry.stride as usize {
            return false;
        }
        // SAFETY: the source lies in the mapping; out is private memory, so the two do not overlap.
        // A peer that writes meanwhile makes the copy nonsense, and the caller only uses the copy.
        unsafe { std::ptr::copy_nonoverlapping(self.at(frame, offset.into()), out.as_mut_ptr(), out.len()) };
        end_copy();
        true
    }

    /// As [`Arena::read`], for `N` bytes: without a loop when `N` is small.
    #[inline(always)]
    pub fn read_array<const N: usize>(&self, frame: u32, offset: u16) -> Option<[u8; N]> {
        if !self.geometry.has(frame) || offset as usize + N > self.geometry.stride as usize {
            return None;
        }
        // SAFETY: as in read(); an array of bytes has no alignment and no invalid values.
        let copied = unsafe { self.at(frame, offset.into()).cast::<[u8; N]>().read_unaligned() };
        end_copy();
        Some(copied)
    }

    /// The first `N` bytes of a packet where they lie. None if they do not lie in the frame.
    #[inline(always)]
    pub fn head<const N: usize>(&self, frame: u32, offset: u16) -> Option<Head<'_, N>> {
        let is_inside = self.geometry.has(frame) && offset as usize + N <= self.geometry.stride as usize;
        is_inside.then(|| Head { at: self.at(frame, offset.into()), _arena: PhantomData })
    }

    /// Copies bytes into a frame. False, and nothing copied, if they do not fit.
    #[inline(always)]
    pub fn write(&self, frame: u32, offset: u16, bytes: &[u8]) -> bool {
        let end = offset as usize + bytes.len();
        if !self.geometry.has(frame) || end > self.geometry.stride as usize {
            return false;
        }
        // SAFETY: the target lies in the mapping; bytes is private memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(frame, offset.into()), bytes.len()) };
        true
    }

    /// Copies `N` bytes into a frame. False if they do not fit.
    #[inline(always)]
    pub fn write_array<const N: usize>(&self, frame: u32, offset: u16, bytes: &[u8; N]) -> bool {
        if !self.geometry.has(frame) || offset as usize + N > self.geometry.stride as usize {
            return false;
        }
        // SAFETY: as in write().
        unsafe { self.at(frame, offset.into()).cast::<[u8; N]>().write_unaligned(*bytes) };
        true
    }

    /// Copies a packet, and no byte beside it, to the same place of another frame. False, and
    /// nothing copied, if it does not lie in its frame or `to` is the same frame or none.
    #[inline(always)]
    pub fn copy(&self, from: u32, to: u32, offset: u16, len: u16) -> bool {
        let geometry = self.geometry;
        if !geometry.contains(from, offset, len) || !geometry.has(to) || from == to {
            return false;
        }
        let (source, target) = (self.at(from, offset.into()), self.at(to, offset.into()));
        // SAFETY: contains() checked that the bytes lie in their frame, and so in the other, which
        // is as large. The frames differ, so they do not overlap. A peer that writes meanwhile
        // makes nonsense of the copy, which is its own packet.
        unsafe { copy_bytes(source, target, len.into()) };
        end_copy();
        true
    }

    /// Fetches the cache line at `offset` of a frame, to be read.
    #[inline(always)]
    pub fn prefetch(&self, frame: u32, offset: u16) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.at(frame, offset.into());
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (frame, offset);
    }

    /// Fetches the cache line at `offset` of a frame, to be written.
    #[inline(always)]
    pub fn prefetch_write(&self, frame: u32, offset: u16) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults; PREFETCHW is a no-op where unknown.
        unsafe {
            let at = self.at(frame, offset.into());
            std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (frame, offset);
    }
}

/// `N` bytes of a frame, which others may write at any time. Each load is one access, so what was
/// checked is what is used; two loads of a byte may differ. Numbers are in native byte order.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a, const N: usize> {
    at: *const u8,
    _arena: PhantomData<&'a Arena>,
}

/// Loads a number at an offset checked at compile time: on x86-64 by one instruction, elsewhere
/// byte by byte, each once.
macro_rules! load {
    ($name:ident, $number:ty, $register:ident, $instruction:literal) => {
        #[doc = concat!("The ", stringify!($number), " at offset `AT`.")]
        #[inline(always)]
        pub fn $name<const AT: usize>(self) -> $number {
            const { assert!(AT + size_of::<$number>() <= N) };
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            {
                let value;
                // SAFETY: the bytes lie in the mapping, which the arena keeps.
                unsafe {
                    std::arch::asm!($instruction, value = out($register) value, at = in(reg) self.at, offset = const AT,
                        options(nostack, preserves_flags, readonly));
                }
                value
            }
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            // SAFETY: as above; an array of bytes has no alignment.
            <$number>::from_ne_bytes(unsafe { self.at.add(AT).cast::<[u8; size_of::<$number>()]>().read_volatile() })
        }
    };
}

impl<const N: usize> Head<'_, N> {
    load!(u16, u16, reg, "mov {value:x}, word ptr [{at} + {offset}]");
    load!(u32, u32, reg, "mov {value:e}, dword ptr [{at} + {offset}]");
    load!(u64, u64, reg, "mov {value}, qword ptr [{at} + {offset}]");
}

/// Ends a copy out of memory that others may write: the compiler can neither move the loads behind
/// this point nor repeat one there, so what is checked is what is used. No instruction.
///
/// As in rust-vmm's vm-memory, bytes of one copy may be from different writes: longer copies are
/// ordinary ones there, too.
#[inline(always)]
fn end_copy() {
    compiler_fence(Ordering::SeqCst);
}

/// Copies `len` bytes; short packets without a call.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy_bytes(source: *const u8, target: *mut u8, len: usize) {
    // Two halves that overlap in the middle cover every length between one and two halves.
    if (32..=64).contains(&len) {
        let last = len - 32;
        // SAFETY: as the caller's; both halves lie in the packet. Byte arrays need no alignment.
        unsafe {
            let first = source.cast::<[u8; 32]>().read_unaligned();
            let second = source.add(last).cast::<[u8; 32]>().read_unaligned();
            target.cast::<[u8; 32]>().write_unaligned(first);
            target.add(last).cast::<[u8; 32]>().write_unaligned(second);
        }
    } else {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn strides_are_odd_numbers_of_lines() {
        assert_eq!(Geometry::stride_for(2112), DEFAULT_STRIDE);
        assert_eq!(Geometry::stride_for(2113), DEFAULT_STRIDE + 128);
        for packet in [60, 64, 1518, 9018] {
            let geometry = Geometry { first: 0, frames: 1, stride: Geometry::stride_for(packet) as u32 };
            assert!(geometry.is_valid());
            assert!(geometry.stride as usize >= HEADROOM + packet);
        }
        assert!(!Geometry { first: 0, frames: 1, stride: 2048 }.is_valid());
        assert!(!Geometry { first: 0, frames: 0, stride: 2240 }.is_valid());
    }

    #[test]
    fn bytes_stay_inside_their_frame() {
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 2, stride: 192 }, false).unwrap();
        assert!(arena.write(1, 128, &[7; 64]));
        assert!(!arena.write(1, 129, &[7; 64]));
        assert!(!arena.write(2, 0, &[7]));
        assert_eq!(arena.read_array::<64>(1, 128), Some([7; 64]));
        assert_eq!(arena.read_array::<64>(1, 129), None);
        assert_eq!(arena.read_array::<1>(0, 128), Some([0]));
        assert!(arena.packet_ptr(1, 128, 64).is_some());
        assert!(arena.packet_ptr(1, 128, 65).is_none());
        assert!(arena.packet_ptr(1, 128, 0).is_none());
        assert!(arena.packet_ptr(u32::MAX, 0, 1).is_none());
    }

    #[test]
    fn a_geometry_has_its_own_frames_alone() {
        let own = Geometry { first: 4096, frames: 64, stride: 192 };
        assert!(own.is_valid() && own.contains(4096, 128, 64) && own.contains(4159, 0, 192));
        for frame in [0, 63, 4095, 4160, u32::MAX] {
            assert!(!own.contains(frame, 128, 64), "{frame}");
        }
        assert!(!Geometry { first: u32::MAX, ..own }.is_valid());
    }

    #[test]
    fn arenas_of_a_range_keep_their_frames_apart() {
        let range = Range::reserve(3, 100, 192).unwrap();
        let whole = range.whole();
        let first = |slot: u32| slot << range.shift();
        let (file, red) = range.make(0, 100, false).unwrap();
        let (blue_file, blue) = range.make(2, 50, false).unwrap();
        assert_eq!((red.geometry().first, blue.geometry().first), (0, first(2)));
        assert!(whole.write(7, 128, &[1; 64]) && whole.write(first(2) + 7, 128, &[2; 64]));
        assert_eq!((red.read_array(7, 128), red.read_array::<64>(first(2) + 7, 128)), (Some([1; 64]), None));
        assert_eq!((blue.read_array(first(2) + 7, 128), blue.read_array::<64>(7, 128)), (Some([2; 64]), None));
        assert!(blue.frame_ptr(first(2) + 50).is_none());
        // An NF maps the file anywhere and uses the same numbers.
        let nf = Arena::map(blue_file.fd(), blue.geometry()).unwrap();
        assert_eq!(nf.read_array(first(2) + 7, 128), Some([2; 64]));
        assert!(nf.write(first(2) + 49, 0, &[3; 192]) && !nf.write(first(2) + 50, 0, &[3]) && !nf.write(0, 0, &[3]));
        assert_eq!(whole.read_array(first(2) + 49, 0), Some([3; 192]));
        assert_eq!(nf.zero() as usize + (first(2) as usize + 1) * 192, nf.frame_ptr(first(2) + 1).unwrap() as usize);
        // Neither side of a fresh file in the same slot sees anything of the old one's.
        let (_file, _) = range.make(2, 50, false).unwrap();
        assert_eq!(whole.read_array(first(2) + 7, 128), Some([0; 64]));
        assert!(whole.write(first(2) + 7, 128, &[4; 64]));
        assert_eq!(nf.read_array(first(2) + 7, 128), Some([2; 64]));
        range.clear(2);
        drop(file);
        assert_eq!(whole.read_array(7, 128), Some([1; 64]), "the mapping is there as long as the range is");
        assert!(matches!(Range::reserve(1 << 17, 100, 192), Err(MemoryError::TooManyFrames { .. })));
    }

    #[test]
    fn a_copied_packet_is_the_same_and_nothing_beside_it_goes_with_it() {
        let (_memory, arena) = Arena::create(Geometry { first: 64, frames: 2, stride: 2240 }, false).unwrap();
        for len in (1..=80).chain([128, 1500, 1514, 2000, 2112]) {
            for offset in [0, 1, 63, 128] {
                if offset + len > 2240 {
                    continue;
                }
                let bytes: Vec<u8> = (0..2240).map(|i| (i * 7 + len) as u8 | 1).collect();
                assert!(arena.write(64, 0, &bytes) && arena.write(65, 0, &[0; 2240]));
                assert!(arena.copy(64, 65, offset as u16, len as u16));
                let mut got = [0; 2240];
                assert!(arena.read(65, 0, &mut got));
                let (before, after) = (&got[..offset], &got[offset + len..]);
                assert_eq!(got[offset..offset + len], bytes[offset..offset + len], "{len} at {offset}");
                assert!(before.iter().chain(after).all(|byte| *byte == 0), "{len} at {offset}");
            }
        }
        assert!(
            !arena.copy(64, 65, 2200, 41) && !arena.copy(64, 64, 0, 8) && !arena.copy(64, 66, 0, 8) && !arena.copy(3, 65, 0, 8)
        );
    }
}
