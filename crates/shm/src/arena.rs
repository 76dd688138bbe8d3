//! Packet memory: one shared mapping, cut in frames.
//!
//! A frame's stride is an odd number of cache lines, so that the headers of neighbouring frames fall on different sets of the L1
//! cache. The arena holds packet bytes and nothing else: free lists, owners and chains are in the manager's private memory.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::CACHE_LINE;
use crate::memory::{Mapping, MemoryError, SharedMemory};

/// Bytes before the packet in a fresh frame, for headers that an NF pushes. The same as DPDK's RTE_PKTMBUF_HEADROOM.
pub const HEADROOM: usize = 128;

/// Default distance between frames: 35 cache lines, room for a 1,518-byte packet, its headroom, and DPDK's smallest data room.
pub const DEFAULT_STRIDE: usize = 2240;

/// Largest stride: offsets and lengths are 16 bits wide.
pub const MAX_STRIDE: usize = 65_472;

/// How frames lie in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
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
            && stride > HEADROOM
            && stride <= MAX_STRIDE
            && stride.is_multiple_of(CACHE_LINE)
            && (stride / CACHE_LINE) % 2 == 1
    }

    /// Bytes of all frames.
    pub fn bytes(&self) -> usize {
        self.frames as usize * self.stride as usize
    }

    /// Whether `offset..offset + len` lies in a frame with number `frame`.
    #[inline(always)]
    pub fn contains(&self, frame: u32, offset: u16, len: u16) -> bool {
        // Bitwise: one branch a packet.
        (frame < self.frames) & (u32::from(offset) + u32::from(len) <= self.stride) & (len != 0)
    }
}

/// The mapped arena.
#[derive(Debug, Clone)]
pub struct Arena {
    mapping: Arc<Mapping>,
    geometry: Geometry,
}

impl Arena {
    /// Makes the memory for an arena.
    ///
    /// # Errors
    /// As [`SharedMemory::create`] and [`SharedMemory::create_huge`].
    pub fn create(geometry: Geometry, hugepages: bool) -> Result<(SharedMemory, Self), MemoryError> {
        assert!(geometry.is_valid(), "the configuration checks the geometry");
        let memory = if hugepages {
            SharedMemory::create_huge("sluice-arena", geometry.bytes())?
        } else {
            // Not populated before the advice, or it would stand on small pages for good.
            let memory = SharedMemory::create("sluice-arena", geometry.bytes(), false)?;
            memory.mapping().advise_hugepages();
            memory
        };
        let arena = Self { mapping: memory.mapping().clone(), geometry };
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
        Ok(Self { mapping: Mapping::new(fd, geometry.bytes(), false)?, geometry })
    }

    /// How the frames lie.
    #[inline(always)]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The whole mapping, for a DPDK memory pool over it: first byte and length.
    pub fn raw(&self) -> (*mut u8, usize) {
        (self.mapping.start(), self.mapping.len())
    }

    /// First byte of a frame, for device drivers and the NF library. None if there is no such frame.
    #[inline(always)]
    pub fn frame_ptr(&self, frame: u32) -> Option<*mut u8> {
        if frame >= self.geometry.frames {
            return None;
        }
        // SAFETY: frames × stride bytes are mapped, and frame is below frames.
        Some(unsafe { self.mapping.start().add(frame as usize * self.geometry.stride as usize) })
    }

    /// Address of a packet, checked. None if it does not lie in one frame.
    #[inline(always)]
    pub fn packet_ptr(&self, frame: u32, offset: u16, len: u16) -> Option<*mut u8> {
        if !self.geometry.contains(frame, offset, len) {
            return None;
        }
        // SAFETY: contains() said that offset and len lie inside the frame.
        Some(unsafe { self.mapping.start().add(frame as usize * self.geometry.stride as usize + offset as usize) })
    }

    /// Copies bytes out of a frame. False, and nothing copied, if they do not lie in it.
    #[inline(always)]
    pub fn read(&self, frame: u32, offset: u16, out: &mut [u8]) -> bool {
        let end = offset as usize + out.len();
        if frame >= self.geometry.frames || end > self.geometry.stride as usize {
            return false;
        }
        let from = frame as usize * self.geometry.stride as usize + offset as usize;
        // SAFETY: the source lies in the mapping; out is private memory, so the two do not overlap. A peer that writes meanwhile
        // makes the copy nonsense, and the caller only uses the copy.
        unsafe { std::ptr::copy_nonoverlapping(self.mapping.start().add(from), out.as_mut_ptr(), out.len()) };
        true
    }

    /// Copies `N` bytes out of a frame, without a loop when `N` is small. None if they do not lie in it.
    #[inline(always)]
    pub fn read_array<const N: usize>(&self, frame: u32, offset: u16) -> Option<[u8; N]> {
        if frame >= self.geometry.frames || offset as usize + N > self.geometry.stride as usize {
            return None;
        }
        let from = frame as usize * self.geometry.stride as usize + offset as usize;
        // SAFETY: as in read(); an array of bytes has no alignment and no invalid values.
        Some(unsafe { self.mapping.start().add(from).cast::<[u8; N]>().read_unaligned() })
    }

    /// Copies bytes into a frame. False, and nothing copied, if they do not fit.
    #[inline(always)]
    pub fn write(&self, frame: u32, offset: u16, bytes: &[u8]) -> bool {
        let end = offset as usize + bytes.len();
        if frame >= self.geometry.frames || end > self.geometry.stride as usize {
            return false;
        }
        let to = frame as usize * self.geometry.stride as usize + offset as usize;
        // SAFETY: the target lies in the mapping; bytes is private memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.mapping.start().add(to), bytes.len()) };
        true
    }

    /// Copies `N` bytes into a frame. False if they do not fit.
    #[inline(always)]
    pub fn write_array<const N: usize>(&self, frame: u32, offset: u16, bytes: &[u8; N]) -> bool {
        if frame >= self.geometry.frames || offset as usize + N > self.geometry.stride as usize {
            return false;
        }
        let to = frame as usize * self.geometry.stride as usize + offset as usize;
        // SAFETY: as in write().
        unsafe { self.mapping.start().add(to).cast::<[u8; N]>().write_unaligned(*bytes) };
        true
    }

    /// Fetches the cache line at `offset` of a frame, to be read.
    #[inline(always)]
    pub fn prefetch(&self, frame: u32, offset: u16) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.mapping.start().wrapping_add(frame as usize * self.geometry.stride as usize + offset as usize);
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (frame, offset);
    }

    /// Fetches the cache line at `offset` of a frame, to be written.
    #[inline(always)]
    pub fn prefetch_write(&self, frame: u32, offset: u16) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults, whatever the address; PREFETCHW is a no-op where it is unknown.
        unsafe {
            let at = self.mapping.start().wrapping_add(frame as usize * self.geometry.stride as usize + offset as usize);
            std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (frame, offset);
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
            let geometry = Geometry { frames: 1, stride: Geometry::stride_for(packet) as u32 };
            assert!(geometry.is_valid());
            assert!(geometry.stride as usize >= HEADROOM + packet);
        }
        assert!(!Geometry { frames: 1, stride: 2048 }.is_valid());
        assert!(!Geometry { frames: 0, stride: 2240 }.is_valid());
    }

    #[test]
    fn bytes_stay_inside_their_frame() {
        let (_memory, arena) = Arena::create(Geometry { frames: 2, stride: 192 }, false).unwrap();
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
}
