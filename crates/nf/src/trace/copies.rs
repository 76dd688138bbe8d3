//! Copies of variable length, followed.
//!
//! The pass was not applied to the C library, so in a traced program these functions replace its
//! own: they record each line that they read or write, and leave the rest to an instruction. Copies
//! of a fixed, small size are no calls, and are not followed.

use std::arch::asm;
use std::ffi::{c_int, c_void};

use super::{__sanitizer_sluice_many, SIZES};

const LOAD: usize = 0;
const STORE: usize = SIZES as usize;

/// # Safety
/// As the C library's.
// SAFETY: the program has this in place of the C library's, and it does the same.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    // SAFETY: as the caller promised.
    unsafe { forward(to, from, bytes) };
    to
}

/// # Safety
/// As that of memcpy, but the ranges may overlap if the bytes move down.
#[inline(always)]
unsafe fn forward(to: *mut c_void, from: *const c_void, bytes: usize) {
    __sanitizer_sluice_many(from as usize, bytes, LOAD);
    __sanitizer_sluice_many(to as usize, bytes, STORE);
    // SAFETY: both ranges are the caller's. The direction flag is clear in all code.
    unsafe {
        asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags));
    }
}

/// # Safety
/// As the C library's.
// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    if (to as usize).wrapping_sub(from as usize) >= bytes {
        // SAFETY: as the caller promised; no byte is written before it is read.
        unsafe { forward(to, from, bytes) };
        return to;
    }
    __sanitizer_sluice_many(from as usize, bytes, LOAD);
    __sanitizer_sluice_many(to as usize, bytes, STORE);
    let (last_to, last_from) =
        (to.wrapping_byte_add(bytes).wrapping_byte_sub(1), from.wrapping_byte_add(bytes).wrapping_byte_sub(1));
    // SAFETY: both ranges are the caller's, and the flag is cleared again.
    unsafe {
        asm!(
            "std", "rep movsb", "cld",
            inout("rcx") bytes => _, inout("rdi") last_to => _, inout("rsi") last_from => _, options(nostack)
        );
    }
    to
}

/// # Safety
/// As the C library's.
// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut c_void, byte: c_int, bytes: usize) -> *mut c_void {
    __sanitizer_sluice_many(to as usize, bytes, STORE);
    // SAFETY: as above; only the low byte of `byte` is used, as in C.
    unsafe {
        asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") byte as u8, options(nostack, preserves_flags));
    }
    to
}

// The code generator's calls come after the decision which functions are used.
#[used]
static COPY: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void = memcpy;
#[used]
static MOVE: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void = memmove;
#[used]
static SET: unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void = memset;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_those_of_the_c_library() {
        let whole: Vec<u8> = (0..=255).cycle().take(1_000).collect();
        for (to, from, bytes) in
            [(0, 0, 0), (0, 500, 300), (10, 3, 400), (3, 10, 400), (7, 7, 90), (1, 0, 999), (0, 1, 999), (5, 6, 1)]
        {
            // Byte by byte: the library's copies are under test.
            let moved = |i: usize| if (to..to + bytes).contains(&i) { whole[from + (i - to)] } else { whole[i] };
            let (wanted, mut got): (Vec<u8>, _) = ((0..whole.len()).map(moved).collect(), whole.clone());
            let start = got.as_mut_ptr();
            // SAFETY: both ranges are in the vector.
            let back = unsafe { memmove(start.add(to).cast(), start.add(from).cast(), bytes) };
            assert!(got == wanted && back == start.wrapping_add(to).cast(), "{to} {from} {bytes}");
            let mut copy = vec![0xaa; bytes + 1];
            // SAFETY: the vector is a byte longer.
            unsafe { memcpy(copy.as_mut_ptr().cast(), whole.as_ptr().add(from).cast(), bytes) };
            assert!(copy[..bytes] == whole[from..from + bytes] && copy[bytes] == 0xaa);
            // SAFETY: as above.
            unsafe { memset(copy.as_mut_ptr().cast(), 0x1ff, bytes) };
            assert!(copy[..bytes].iter().all(|byte| *byte == 0xff) && copy[bytes] == 0xaa);
        }
    }
}
