//! Pull style for C.

use std::ffi::c_int;
use std::time::Duration;

use sluice_shm::BURST;
use sluice_shm::arena::Geometry;
use sluice_shm::descriptor::{Descriptor, Verdict as RawVerdict};

use super::{CContext, COptions, CPacket, Code, fail, fail_with, guard, options};
use crate::pull::Nf;

/// `sluice_nf`: an attached NF and the frames that C has.
pub struct CNf {
    nf: Nf,
    context: CContext,
    geometry: Geometry,
    zero: *mut u8,
    /// One bit per frame: read, and not yet written.
    held: Box<[u64]>,
}

impl CNf {
    fn word(&mut self, frame: u32) -> Option<(&mut u64, u64)> {
        let index = frame.wrapping_sub(self.geometry.first);
        self.held.get_mut(index as usize / 64).map(|word| (word, 1 << (index % 64)))
    }

    fn hold(&mut self, frame: u32) {
        if let Some((word, bit)) = self.word(frame) {
            *word |= bit;
        }
    }

    fn release(&mut self, frame: u32) -> bool {
        let Some((word, bit)) = self.word(frame) else { return false };
        let held = *word & bit != 0;
        *word &= !bit;
        held
    }
}

impl Drop for CNf {
    fn drop(&mut self) {
        for frame in self.geometry.first..self.geometry.first + self.geometry.frames {
            if self.release(frame) {
                let drop = Descriptor { frame, len: 1, verdict: RawVerdict::Drop as u8, ..Default::default() };
                // If the manager is gone it takes its frames back by itself.
                let _ = self.nf.send(&[drop]);
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_attach(given: *const COptions, out: *mut *mut CNf) -> c_int {
    guard(|| {
        if out.is_null() {
            return fail(Code::Argument);
        }
        // SAFETY: not null, and the header requires a writable pointer.
        unsafe { *out = std::ptr::null_mut() };
        // SAFETY: the header requires the same of the caller.
        match Nf::attach_with(&unsafe { options(given) }) {
            Err(error) => fail_with(&error),
            Ok(nf) => {
                let (geometry, zero) = nf.with_arena(|arena| (arena.geometry(), arena.zero()));
                let context = CContext::new(nf.context().clone());
                let held = vec![0; (geometry.frames as usize).div_ceil(64)].into_boxed_slice();
                let nf = Box::new(CNf { nf, context, geometry, zero, held });
                // SAFETY: as above.
                unsafe { *out = Box::into_raw(nf) };
                0
            }
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_detach(nf: *mut CNf) {
    guard(|| {
        if !nf.is_null() {
            // SAFETY: not null, made by sluice_attach, and the header forbids its use afterwards.
            drop(unsafe { Box::from_raw(nf) });
        }
        0
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_context_of(nf: *const CNf) -> *const CContext {
    // SAFETY: null or from sluice_attach, as the header requires.
    unsafe { nf.as_ref() }.map_or(std::ptr::null(), |nf| &raw const nf.context)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_read(nf: *mut CNf, out: *mut CPacket, max: u32, timeout_ms: c_int) -> c_int {
    guard(|| {
        // SAFETY: null or from sluice_attach and used by one thread, as the header requires.
        let Some(nf) = (unsafe { nf.as_mut() }) else { return fail(Code::Argument) };
        if out.is_null() || max == 0 {
            return fail(Code::Argument);
        }
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let mut burst = [Descriptor::default(); BURST];
        let n = match nf.nf.take(&mut burst[..BURST.min(max as usize)], timeout) {
            Ok(None) => return 0,
            Ok(Some(0)) => return fail(Code::Timeout),
            Ok(Some(n)) => n,
            Err(error) => return fail_with(&error),
        };
        for (i, descriptor) in burst[..n].iter().enumerate() {
            nf.hold(descriptor.frame);
            let frame = nf.zero.wrapping_add(descriptor.frame as usize * nf.geometry.stride as usize);
            let packet = CPacket::new(descriptor, frame, nf.geometry.stride);
            // SAFETY: the header requires room for `max` packets, and n is not more.
            unsafe { out.add(i).write(packet) };
        }
        n as c_int
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_write(nf: *mut CNf, packets: *const CPacket, count: u32) -> c_int {
    guard(|| {
        // SAFETY: null or from sluice_attach and used by one thread, as the header requires.
        let Some(nf) = (unsafe { nf.as_mut() }) else { return fail(Code::Argument) };
        if packets.is_null() && count > 0 {
            return fail(Code::Argument);
        }
        let mut burst = [Descriptor::default(); BURST];
        let mut n = 0;
        for i in 0..count as usize {
            // SAFETY: the header requires `count` packets.
            let packet = unsafe { packets.add(i).read() };
            let valid = packet.descriptor(packet.frame, nf.geometry);
            // A packet outside its frame stays C's until it is written right.
            let Some(descriptor) = valid.filter(|d| nf.release(d.frame)) else {
                return match nf.nf.send(&burst[..n]) {
                    Ok(()) => fail(Code::Packet),
                    Err(error) => fail_with(&error),
                };
            };
            burst[n] = descriptor;
            n += 1;
            if n == BURST || i + 1 == count as usize {
                if let Err(error) = nf.nf.send(&burst[..n]) {
                    return fail_with(&error);
                }
                n = 0;
            }
        }
        0
    })
}
