//! Shared memory between Sluice's manager and its network functions.
//!
//! Only what both sides of the trust boundary compile: the [`arena`] of frames, the 16-byte
//! [`descriptor`], the [`ring`] (one producer, one consumer), the [`page`] of an NF, the
//! [`core_page`] with doorbells and hand-over hints, the [`histogram`], and the [`handshake`].
//!
//! # Rules for unsafe code
//! All unsafe shared-memory code of the project is here. The other side of a mapping may be hostile
//! and may write any byte at any time, so
//! - words that both sides touch are atomics, never plain references;
//! - packet bytes are copied in and out through raw pointers ([`arena::Arena::read`],
//!   [`arena::Arena::write`]), never referenced by the manager;
//! - an offset, index or cursor from the other side is copied once and checked, and only the copy
//!   is used;
//! - whatever is made from a mapping holds an `Arc` of it.

#![warn(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod arena;
pub mod clock;
pub mod core_page;
pub mod descriptor;
pub mod doorbell;
pub mod gate;
pub mod handshake;
pub mod histogram;
pub mod hole;
pub mod memory;
pub mod object;
pub mod page;
pub mod ring;
mod sync;
pub mod zygote;

/// Bytes of a cache line. Every word with one writer has a line of its own.
pub const CACHE_LINE: usize = 64;

/// Most descriptors in a burst.
pub const BURST: usize = 32;

/// Version of every layout in this crate. Both sides must have the same.
pub const LAYOUT_VERSION: u32 = 10;

/// Fetches the cache line that a value starts in, for a read soon after.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).cast());
}

/// Fetches all cache lines of a value, for reads soon after.
#[inline(always)]
pub fn prefetch_whole<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    (0..size_of::<T>()).step_by(CACHE_LINE).for_each(|at| prefetch_at(start.wrapping_add(at)));
    // It may begin in the middle of a line, and end in one more.
    prefetch_at(start.wrapping_add(size_of::<T>().saturating_sub(1)));
}

/// Fetches the cache line of an address, for a read soon after.
#[inline(always)]
fn prefetch_at(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Fetches the cache line that a value starts in, for a write soon after.
#[inline(always)]
pub fn prefetch_write<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; PREFETCHW is a no-op where unknown.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) std::ptr::from_ref(value), options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
