//! Callback style for C.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use sluice_shm::BURST;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::descriptor::Verdict as RawVerdict;

use super::{CContext, COptions, CPacket, Code, fail, fail_with, guard, options};
use crate::context::Context;
use crate::error::NfError;
use crate::packet::Burst;
use crate::part::{self, HandlerTable};
use crate::run::{FallibleHandler, is_answered, run_step};

/// `struct sluice_handler`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CHandler {
    state: *mut c_void,
    burst: Option<unsafe extern "C" fn(state: *mut c_void, packets: *mut CPacket, count: u32, now_ns: u64) -> c_int>,
    tick: Option<unsafe extern "C" fn(state: *mut c_void, now_ns: u64)>,
    clean: Option<unsafe extern "C" fn(state: *mut c_void)>,
    tick_ns: u64,
    /// Since SLUICE_ABI 2; before, the struct ended here.
    forked: Option<unsafe extern "C" fn(state: *mut c_void, context: *const CContext) -> c_int>,
}

const _: () = assert!(size_of::<CHandler>() == 48 && std::mem::offset_of!(CHandler, forked) == FIRST_SIZE);

/// Size of the struct of SLUICE_ABI 1.
const FIRST_SIZE: usize = 40;

const LARGEST_SIZE: usize = size_of::<CHandler>();

/// `sluice_make`.
type Make = unsafe extern "C" fn(context: *const CContext, arg: *mut c_void, handler: *mut CHandler) -> c_int;

struct CStep {
    handler: CHandler,
    packets: [CPacket; BURST],
    /// Kept for the handler, which may hold pointers to its names.
    _context: Box<CContext>,
    /// The context of a forked instance, kept for the same reason.
    forked_context: Option<Box<CContext>>,
}

impl FallibleHandler for CStep {
    fn burst(&mut self, burst: &mut Burst<'_>) -> Result<usize, NfError> {
        let Some(handle) = self.handler.burst else { return Ok(0) };
        let (now_ns, n) = (burst.now_ns(), burst.len());
        let arena = burst.arena();
        let geometry = arena.geometry();
        let zero = arena.zero();
        for (i, slot) in self.packets[..n].iter_mut().enumerate() {
            let descriptor = &burst.descriptors()[i];
            let frame = zero.wrapping_add(descriptor.frame as usize * geometry.stride as usize);
            *slot = CPacket::new(descriptor, frame, geometry.stride);
        }
        // SAFETY: function and state are the NF's make()'s; packets has n elements.
        let code = unsafe { handle(self.handler.state, self.packets.as_mut_ptr(), n as u32, now_ns) };
        let mut errors = 0;
        for (descriptor, packet) in burst.descriptors().iter_mut().zip(&self.packets) {
            match packet.descriptor(descriptor.frame, geometry) {
                Some(valid) => {
                    // These are information, also for the handlers behind it.
                    let Descriptor { chain, ingress, flags, .. } = *descriptor;
                    *descriptor = Descriptor { chain, ingress, flags, ..valid };
                }
                None => {
                    descriptor.verdict = RawVerdict::Drop as u8;
                    errors += 1;
                }
            }
        }
        if code < 0 { Err(NfError::Failed(code)) } else { Ok(errors) }
    }

    fn tick(&mut self, now_ns: u64) {
        if let Some(tick) = self.handler.tick {
            // SAFETY: as in burst().
            unsafe { tick(self.handler.state, now_ns) };
        }
    }

    fn tick_every(&self) -> Option<Duration> {
        (self.handler.tick.is_some() && self.handler.tick_ns > 0).then(|| Duration::from_nanos(self.handler.tick_ns))
    }

    fn clean(&mut self) {
        if let Some(clean) = self.handler.clean {
            // SAFETY: as in burst().
            unsafe { clean(self.handler.state) };
        }
    }

    fn forked(&mut self, context: &Context) -> Result<(), NfError> {
        let context = self.forked_context.insert(Box::new(CContext::new(context.clone())));
        let Some(forked) = self.handler.forked else { return Ok(()) };
        // SAFETY: as in burst(); the context lives as long as the handler is used.
        let code = unsafe { forked(self.handler.state, &raw const **context) };
        if code == 0 { Ok(()) } else { Err(NfError::Failed(code)) }
    }
}

fn made(context: &Context, make: Make, arg: *mut c_void) -> Result<CStep, NfError> {
    let context = Box::new(CContext::new(context.clone()));
    let mut handler = CHandler { state: arg, burst: None, tick: None, clean: None, tick_ns: 0, forked: None };
    // SAFETY: make is the NF's function; handler outlives the call, context outlives the handler.
    let code = unsafe { make(&raw const *context, arg, &raw mut handler) };
    if code != 0 {
        return Err(NfError::Failed(code));
    }
    if handler.burst.is_none() {
        return Err(NfError::Handler("make() set no burst function".into()));
    }
    Ok(CStep { handler, packets: [CPacket::EMPTY; BURST], _context: context, forked_context: None })
}

/// Makes a handler for a group, as [`crate::part::EntryPoint`].
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_part(
    version: u32,
    request: *const u8,
    length: usize,
    table: *mut HandlerTable,
    make: Option<Make>,
    handler_size: usize,
) -> c_int {
    let (Some(make), FIRST_SIZE..=LARGEST_SIZE) = (make, handler_size) else { return part::OTHER_VERSION };
    // SAFETY: SLUICE_NF passes what the group passed.
    unsafe { part::make_step(version, request, length, table, |context| made(context, make, std::ptr::null_mut())) }
}

/// For programs of SLUICE_ABI 1. Fields that their make() does not know stay null.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_run(given: *const COptions, make: Option<Make>, arg: *mut c_void) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { sluice_run_sized(given, make, arg, FIRST_SIZE) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_run_sized(given: *const COptions, make: Option<Make>, arg: *mut c_void, handler_size: usize) -> c_int {
    guard(|| {
        // A larger struct is that of a later version: make() would write behind ours.
        let (Some(make), FIRST_SIZE..=LARGEST_SIZE) = (make, handler_size) else { return fail(Code::Argument) };
        // A program that gives options has read its arguments.
        if given.is_null() && is_answered() {
            return 0;
        }
        // SAFETY: the header requires the same of the caller.
        let options = unsafe { options(given) };
        match run_step(&options, |context| made(context, make, arg)) {
            Ok(()) => 0,
            Err(ended) => fail_with(&ended.error),
        }
    })
}
