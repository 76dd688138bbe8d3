//! The C interface: what `include/sluice_nf.h` declares.
//!
//! # Rules
//! - No panic and no exit crosses the border: every function returns a negative [`Code`] instead,
//!   and [`sluice_last_error`] returns the message of the thread's last failure.
//! - Shared structs are `repr(C)` with fixed widths; sizes and offsets are asserted here and there.
//! - A [`CPacket`] from a C handler is checked before it becomes a descriptor: a packet outside its
//!   frame is dropped and counted as an error of the NF.
//! - A null pointer where one is needed is [`Code::Argument`]. Other bad pointers are the caller's
//!   fault, as everywhere in C.
//!
//! The library keeps nothing from C beyond a call, except the handler's functions and state in
//! [`sluice_run`], and a request's function and context until it has ended.

#![allow(clippy::missing_safety_doc)] // the contract of each function is in the header, which its users read

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sluice_shm::arena::Geometry;
use sluice_shm::descriptor::{Descriptor, Verdict as RawVerdict};

use crate::context::Context;
use crate::error::NfError;
use crate::options::Options;

mod header;
mod pull;
mod run;
mod storage;

/// Version of this interface; the header's SLUICE_ABI.
const ABI: u32 = 3;

/// Error codes. The numbers are the header's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum Code {
    Argument = -1,
    Attach = -2,
    Handler = -3,
    Panic = -4,
    Gone = -5,
    Broken = -6,
    NotThere = -7,
    Packet = -8,
    Timeout = -9,
    Storage = -10,
    Full = -11,
}

impl Code {
    const ALL: [Self; 11] = [
        Self::Argument,
        Self::Attach,
        Self::Handler,
        Self::Panic,
        Self::Gone,
        Self::Broken,
        Self::NotThere,
        Self::Packet,
        Self::Timeout,
        Self::Storage,
        Self::Full,
    ];

    fn words(self) -> &'static CStr {
        match self {
            Self::Argument => c"an argument is null, not UTF-8 or out of range",
            Self::Attach => c"cannot attach to the manager",
            Self::Handler => c"the handler failed",
            Self::Panic => c"the library failed; this is a bug in it",
            Self::Gone => c"the manager is gone",
            Self::Broken => c"the manager's side of the shared memory is broken",
            Self::NotThere => c"there is no such header or name, or no manager to ask",
            Self::Packet => c"the packet was not read, was written before, or left its frame",
            Self::Timeout => c"no packet came in time",
            Self::Storage => c"there can be no storage",
            Self::Full => c"both buffers of the storage are full, and a callback cannot wait",
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn remember(words: &str) {
    let clean: Vec<u8> = words.bytes().filter(|b| *b != 0).collect();
    LAST.with(|last| *last.borrow_mut() = CString::new(clean).unwrap_or_default());
}

fn fail(code: Code) -> c_int {
    remember(&code.words().to_string_lossy());
    code as c_int
}

fn code_of(error: &NfError) -> Code {
    match error {
        NfError::Attach(_) => Code::Attach,
        NfError::Handler(_) | NfError::Failed(_) => Code::Handler,
        NfError::Panicked(_) => Code::Panic,
        NfError::ManagerGone => Code::Gone,
        NfError::Broken(_) => Code::Broken,
    }
}

fn fail_with(error: &NfError) -> c_int {
    remember(&error.to_string());
    code_of(error) as c_int
}

fn guard(f: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| fail(Code::Panic))
}

/// The meaning of an error code. Never null; never freed.
#[unsafe(no_mangle)]
extern "C" fn sluice_strerror(code: c_int) -> *const c_char {
    let known = Code::ALL.into_iter().find(|known| *known as c_int == code);
    known.map_or(if code >= 0 { c"no error" } else { c"unknown error" }, Code::words).as_ptr()
}

/// The message of this thread's last failure, until its next one. Never null.
#[unsafe(no_mangle)]
extern "C" fn sluice_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn sluice_abi() -> u32 {
    ABI
}

#[unsafe(no_mangle)]
extern "C" fn sluice_now_ns() -> u64 {
    sluice_shm::clock::monotonic_ns()
}

/// `struct sluice_packet`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CPacket {
    data: *mut u8,
    len: u16,
    headroom: u16,
    tailroom: u16,
    chain: u16,
    ingress: u16,
    arg: u16,
    verdict: u8,
    flags: u8,
    reserved: u16,
    frame: u32,
    reserved2: u32,
}

const _: () = assert!(size_of::<CPacket>() == 32 && align_of::<CPacket>() == 8);
const _: () = assert!(std::mem::offset_of!(CPacket, ingress) == 16 && std::mem::offset_of!(CPacket, frame) == 24);

impl CPacket {
    const EMPTY: Self = Self {
        data: std::ptr::null_mut(),
        len: 0,
        headroom: 0,
        tailroom: 0,
        chain: 0,
        ingress: 0,
        arg: 0,
        verdict: 0,
        flags: 0,
        reserved: 0,
        frame: 0,
        reserved2: 0,
    };

    /// For a checked descriptor; `frame` is the first byte of its frame.
    #[inline(always)]
    fn new(descriptor: &Descriptor, frame: *mut u8, stride: u32) -> Self {
        Self {
            data: frame.wrapping_add(descriptor.offset as usize),
            len: descriptor.len,
            headroom: descriptor.offset,
            tailroom: (stride - u32::from(descriptor.offset) - u32::from(descriptor.len)) as u16,
            chain: descriptor.chain,
            ingress: descriptor.ingress,
            arg: 0,
            verdict: RawVerdict::Next as u8,
            flags: descriptor.flags,
            frame: descriptor.frame,
            ..Self::EMPTY
        }
    }

    /// The descriptor of a packet from C. None if it is outside `frame` or its verdict is invalid.
    #[inline(always)]
    fn descriptor(&self, frame: u32, geometry: Geometry) -> Option<Descriptor> {
        let valid = geometry.contains(frame, self.headroom, self.len) && RawVerdict::from_raw(self.verdict).is_some();
        valid.then_some(Descriptor {
            frame,
            offset: self.headroom,
            len: self.len,
            chain: self.chain,
            verdict: self.verdict,
            flags: self.flags,
            arg: self.arg,
            ingress: self.ingress,
        })
    }
}

/// `struct sluice_options`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct COptions {
    socket: *const c_char,
    name: *const c_char,
    keep_signals: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<COptions>() == 24);

/// The text at `text`.
///
/// # Safety
/// Null, or a string that ends with a zero and lives as long as the result.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller promised.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// The environment's options, overridden by C's, if any.
///
/// # Safety
/// Null, or a valid `struct sluice_options` whose strings are null or end with a zero.
unsafe fn options(given: *const COptions) -> Options {
    let mut options = Options::from_env();
    // SAFETY: as the caller promised.
    if let Some(given) = unsafe { given.as_ref() } {
        // SAFETY: as the caller promised.
        let (socket, name) = unsafe { (text(given.socket), text(given.name)) };
        options.socket = socket.map(Into::into).or(options.socket);
        options.name = name.map(str::to_owned).or(options.name);
        options.signals = given.keep_signals == 0;
    }
    options
}

/// `sluice_context`: a context whose names C can read.
pub struct CContext {
    context: Context,
    name: CString,
    ports: Vec<CString>,
    chains: Vec<CString>,
    args: Vec<CString>,
}

fn strings(names: &[String]) -> Vec<CString> {
    names.iter().map(|name| CString::new(name.as_str()).unwrap_or_default()).collect()
}

impl CContext {
    fn new(context: Context) -> Self {
        Self {
            name: CString::new(context.name.as_str()).unwrap_or_default(),
            ports: strings(&context.ports),
            chains: strings(&context.chains),
            args: context.args.iter().map(|arg| CString::new(arg.as_bytes()).unwrap_or_default()).collect(),
            context,
        }
    }
}

/// Looks up a name.
///
/// # Safety
/// `context` is null or valid, `name` null or a string that ends with a zero.
unsafe fn number(context: *const CContext, name: *const c_char, find: impl FnOnce(&Context, &str) -> Option<u16>) -> c_int {
    guard(|| {
        // SAFETY: as the caller promised.
        let (Some(context), Some(name)) = (unsafe { context.as_ref() }, unsafe { text(name) }) else {
            return fail(Code::Argument);
        };
        find(&context.context, name).map_or_else(|| fail(Code::NotThere), c_int::from)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_port(context: *const CContext, name: *const c_char) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { number(context, name, |c, name| c.port(name).map(|p| p.0)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_service(context: *const CContext, name: *const c_char) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { number(context, name, |c, name| c.service(name).map(|s| s.0)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_chain(context: *const CContext, name: *const c_char) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { number(context, name, Context::chain) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_name(context: *const CContext) -> *const c_char {
    // SAFETY: null or valid, as the header requires.
    unsafe { context.as_ref() }.map_or(c"".as_ptr(), |c| c.name.as_ptr())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_port_name(context: *const CContext, number: u16) -> *const c_char {
    // SAFETY: null or valid, as the header requires.
    unsafe { context.as_ref() }.and_then(|c| c.ports.get(number as usize)).map_or(c"".as_ptr(), |name| name.as_ptr())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_chain_name(context: *const CContext, number: u16) -> *const c_char {
    // SAFETY: null or valid, as the header requires.
    unsafe { context.as_ref() }.and_then(|c| c.chains.get(number as usize)).map_or(c"".as_ptr(), |name| name.as_ptr())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_core(context: *const CContext) -> c_int {
    // SAFETY: null or valid, as the header requires.
    let core = unsafe { context.as_ref() }.and_then(|c| c.context.core);
    core.and_then(|core| c_int::try_from(core).ok()).unwrap_or(-1)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_arg_count(context: *const CContext) -> u32 {
    // SAFETY: null or valid, as the header requires.
    unsafe { context.as_ref() }.map_or(0, |c| c.args.len() as u32)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_arg(context: *const CContext, number: u32) -> *const c_char {
    // SAFETY: null or valid, as the header requires.
    unsafe { context.as_ref() }.and_then(|c| c.args.get(number as usize)).map_or(c"".as_ptr(), |arg| arg.as_ptr())
}

/// Asks the manager.
///
/// # Safety
/// `context` is null or valid.
unsafe fn ask(context: *const CContext, ask: impl FnOnce(&Context) -> bool) -> c_int {
    guard(|| {
        // SAFETY: as the caller promised.
        let Some(context) = (unsafe { context.as_ref() }) else { return fail(Code::Argument) };
        if ask(&context.context) { 0 } else { fail(Code::NotThere) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_ask_priority(context: *const CContext, priority: f64) -> c_int {
    if !(priority.is_finite() && priority >= 0.0) {
        return fail(Code::Argument);
    }
    // SAFETY: the header requires the same of the caller.
    unsafe { ask(context, |c| c.ask_priority(priority)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_end_flow(context: *const CContext) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { ask(context, Context::end_flow) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_left_its_frame_is_no_descriptor() {
        let geometry = Geometry { first: 0, frames: 4, stride: 2240 };
        let descriptor = Descriptor { frame: 3, offset: 128, len: 60, chain: 2, ingress: 9, ..Default::default() };
        let mut packet = CPacket::new(&descriptor, std::ptr::null_mut(), geometry.stride);
        assert_eq!((packet.headroom, packet.tailroom, packet.ingress), (128, 2240 - 188, 9));
        assert_eq!(packet.descriptor(3, geometry), Some(descriptor));
        packet.headroom = 2200;
        assert_eq!(packet.descriptor(3, geometry), None);
        packet.headroom = 0;
        packet.len = 0;
        assert_eq!(packet.descriptor(3, geometry), None);
        packet.len = 2240;
        assert!(packet.descriptor(3, geometry).is_some());
        packet.verdict = 4;
        assert_eq!(packet.descriptor(3, geometry), None);
    }

    #[test]
    fn failures_have_words() {
        assert_eq!(fail(Code::Timeout), -9);
        // SAFETY: both return strings that end with a zero and are never freed.
        let (last, general) = unsafe { (CStr::from_ptr(sluice_last_error()), CStr::from_ptr(sluice_strerror(-9))) };
        assert_eq!(last, general);
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(sluice_strerror(-99)) }, c"unknown error");
        assert_eq!(guard(|| panic!("x")), Code::Panic as c_int);
    }
}
