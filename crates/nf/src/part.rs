//! A handler in a shared object, so that several run in one process, as parts of a group.
//!
//! # Interface
//! The object has one symbol, `sluice_nf_part`, which makes a handler and returns a
//! [`HandlerTable`] of C functions. Object and group may come from different compilers, but not
//! from different releases of the library: [`VERSION`] counts the interface and the layout of
//! shared memory. No panic crosses the border: a function returns [`FAILED`], and
//! [`HandlerTable::said`] has the message.
//!
//! A part has no manager of its own: no storage, and no signals but those that it asks for.

use std::cell::RefCell;
use std::ffi::{OsString, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use sluice_shm::LAYOUT_VERSION;
use sluice_shm::arena::{Arena, Geometry};
use sluice_shm::descriptor::Descriptor;

use crate::context::Context;
use crate::error::NfError;
use crate::handler::Handler;
use crate::packet::Burst;
use crate::run::{FallibleHandler, Plain, guarded};

/// The version that both sides must have.
pub const VERSION: u32 = 1 << 16 | LAYOUT_VERSION;

/// A function has failed; [`HandlerTable::said`] has the reason.
pub const FAILED: c_int = 1;
/// The caller has another [`VERSION`].
pub const OTHER_VERSION: c_int = 2;

/// Name of the object's symbol, with the zero that ends it.
pub const SYMBOL: &[u8] = b"sluice_nf_part\0";

/// The function behind [`SYMBOL`]: version, an encoded [`Context`] and its length, the table to
/// fill in.
pub type EntryPoint = unsafe extern "C" fn(u32, *const u8, usize, *mut HandlerTable) -> c_int;

/// A burst on its way to a part.
#[derive(Debug)]
#[repr(C)]
pub struct Packets {
    /// `count` descriptors, each with verdict `Next`.
    pub descriptors: *mut Descriptor,
    /// [`Arena::zero`] of the packets' arena.
    pub zero: *mut u8,
    /// The time at which the burst was received, in nanoseconds of CLOCK_MONOTONIC.
    pub now_ns: u64,
    /// How many.
    pub count: u32,
    /// The arena's [`Geometry`].
    pub first: u32,
    /// The same.
    pub frames: u32,
    /// The same.
    pub stride: u32,
    /// From the part: packets that it left in an impossible state, and which are dropped.
    pub errors: u32,
}

/// A made handler and its functions, which return 0 or [`FAILED`].
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct HandlerTable {
    /// The handler, first argument of the others.
    pub state: *mut c_void,
    /// [`Handler::burst`].
    pub burst: Option<unsafe extern "C" fn(*mut c_void, *mut Packets) -> c_int>,
    /// [`Handler::tick`].
    pub tick: Option<unsafe extern "C" fn(*mut c_void, u64) -> c_int>,
    /// [`Handler::clean`].
    pub clean: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    /// [`Handler::forked`], with an encoded [`Context`] and its length.
    pub forked: Option<unsafe extern "C" fn(*mut c_void, *const u8, usize) -> c_int>,
    /// Drops the handler.
    pub free: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Copies the message of the last failure, up to a length, and returns its length.
    pub said: Option<unsafe extern "C" fn(*mut u8, usize) -> usize>,
    /// [`Handler::tick_every`] in nanoseconds; 0: never.
    pub tick_ns: u64,
}

impl HandlerTable {
    /// A table that nothing has filled in.
    pub const EMPTY: Self = Self {
        state: std::ptr::null_mut(),
        burst: None,
        tick: None,
        clean: None,
        forked: None,
        free: None,
        said: None,
        tick_ns: 0,
    };
}

/// Lists of texts, each with its length before it; then the core.
#[cfg_attr(not(feature = "group"), allow(dead_code))]
pub(crate) fn encode(context: &Context) -> Vec<u8> {
    let mut out = Vec::new();
    let mut list = |texts: &mut dyn ExactSizeIterator<Item = &[u8]>| {
        out.extend((texts.len() as u32).to_ne_bytes());
        for text in texts {
            out.extend((text.len() as u32).to_ne_bytes());
            out.extend(text);
        }
    };
    list(&mut std::iter::once(context.name.as_bytes()));
    for names in [&context.ports, &context.services, &context.chains] {
        list(&mut names.iter().map(String::as_bytes));
    }
    list(&mut context.args.iter().map(|arg| arg.as_bytes()));
    out.extend(context.core.unwrap_or(u32::MAX).to_ne_bytes());
    out
}

fn decode(mut bytes: &[u8]) -> Option<Context> {
    fn number(bytes: &mut &[u8]) -> Option<u32> {
        let (first, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u32::from_ne_bytes(*first))
    }
    fn list(bytes: &mut &[u8]) -> Option<Vec<Vec<u8>>> {
        let texts = number(bytes)?;
        (0..texts)
            .map(|_| {
                let len = number(bytes)? as usize;
                let (text, rest) = bytes.split_at_checked(len)?;
                *bytes = rest;
                Some(text.to_vec())
            })
            .collect()
    }
    let names = |texts: Vec<Vec<u8>>| texts.into_iter().map(|text| String::from_utf8(text).ok()).collect::<Option<Vec<_>>>();
    let name = names(list(&mut bytes)?)?.pop()?;
    let (ports, services, chains) = (names(list(&mut bytes)?)?, names(list(&mut bytes)?)?, names(list(&mut bytes)?)?);
    let args = list(&mut bytes)?.into_iter().map(OsString::from_vec).collect();
    let core = number(&mut bytes)?;
    Some(Context { name, ports, services, chains, core: (core != u32::MAX).then_some(core), args, page: None })
}

thread_local! {
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

unsafe extern "C" fn said(buffer: *mut u8, capacity: usize) -> usize {
    SAID.with_borrow(|said| {
        let n = said.len().min(capacity);
        // SAFETY: the caller's buffer has that capacity.
        unsafe { std::ptr::copy_nonoverlapping(said.as_ptr(), buffer, n) };
        n
    })
}

fn failed(error: &NfError) -> c_int {
    // Without what NfError says of a whole NF.
    let words = match error {
        NfError::Panicked(words) => format!("it panicked: {words}"),
        NfError::Failed(code) => format!("it failed with code {code}"),
        other => other.to_string(),
    };
    SAID.set(words);
    FAILED
}

fn outcome(result: Result<(), NfError>) -> c_int {
    result.map_or_else(|error| failed(&error), |()| 0)
}

unsafe extern "C" fn burst<S: FallibleHandler>(state: *mut c_void, packets: *mut Packets) -> c_int {
    // SAFETY: the caller passes the state of make(), and a burst of its own.
    let (step, packets) = unsafe { (&mut *state.cast::<S>(), &mut *packets) };
    let Packets { descriptors, zero, now_ns, count, first, frames, stride, .. } = *packets;
    // SAFETY: the arena outlives this call, and the descriptors are the caller's, checked by it.
    let (arena, slots) = unsafe {
        (Arena::view_of(zero, Geometry { first, frames, stride }), std::slice::from_raw_parts_mut(descriptors, count as usize))
    };
    // SAFETY: as above; the frames are this NF's alone.
    let mut burst = unsafe { Burst::new(&arena, slots, now_ns) };
    match guarded(|| step.burst(&mut burst)).and_then(|outcome| outcome) {
        Ok(errors) => {
            packets.errors = errors as u32;
            0
        }
        Err(error) => failed(&error),
    }
}

unsafe extern "C" fn tick<S: FallibleHandler>(state: *mut c_void, now_ns: u64) -> c_int {
    // SAFETY: the caller passes the state of make().
    let step = unsafe { &mut *state.cast::<S>() };
    outcome(guarded(|| step.tick(now_ns)))
}

unsafe extern "C" fn clean<S: FallibleHandler>(state: *mut c_void) -> c_int {
    // SAFETY: the caller passes the state of make().
    let step = unsafe { &mut *state.cast::<S>() };
    outcome(guarded(|| step.clean()))
}

unsafe extern "C" fn forked<S: FallibleHandler>(state: *mut c_void, request: *const u8, len: usize) -> c_int {
    // SAFETY: the caller passes the state of make() and `len` bytes.
    let (step, request) = unsafe { (&mut *state.cast::<S>(), std::slice::from_raw_parts(request, len)) };
    let Some(context) = decode(request) else { return OTHER_VERSION };
    outcome(guarded(|| step.forked(&context)).and_then(|outcome| outcome))
}

unsafe extern "C" fn free<S: FallibleHandler>(state: *mut c_void) {
    // SAFETY: the caller passes the state of make(), once.
    let step = unsafe { Box::from_raw(state.cast::<S>()) };
    let _ = guarded(|| drop(step));
}

/// Makes a step for a group; see [`EntryPoint`].
///
/// # Safety
/// `request` has `len` bytes, and `table` is writable.
pub(crate) unsafe fn make_step<S: FallibleHandler>(
    version: u32,
    request: *const u8,
    len: usize,
    table: *mut HandlerTable,
    make: impl FnOnce(&Context) -> Result<S, NfError>,
) -> c_int {
    if version != VERSION {
        return OTHER_VERSION;
    }
    // SAFETY: as the caller promises.
    let (request, table) = unsafe { (std::slice::from_raw_parts(request, len), &mut *table) };
    table.said = Some(said);
    let Some(context) = decode(request) else { return OTHER_VERSION };
    match guarded(|| make(&context)).and_then(|made| made) {
        Err(error) => failed(&error),
        Ok(step) => {
            let every = step.tick_every().map_or(0, |every| u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1));
            *table = HandlerTable {
                state: Box::into_raw(Box::new(step)).cast(),
                burst: Some(burst::<S>),
                tick: Some(tick::<S>),
                clean: Some(clean::<S>),
                forked: Some(forked::<S>),
                free: Some(free::<S>),
                said: Some(said),
                tick_ns: every,
            };
            0
        }
    }
}

/// Makes a handler for a group. [`nf!`](crate::nf) calls it.
///
/// # Safety
/// As an [`EntryPoint`]: `request` has `len` bytes, and `table` is writable.
#[doc(hidden)]
pub unsafe fn make<H: Handler + Send>(
    version: u32,
    request: *const u8,
    len: usize,
    table: *mut HandlerTable,
    make: impl FnOnce(&Context) -> Result<H, Box<dyn std::error::Error>>,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { make_step(version, request, len, table, |context| make(context).map(Plain).map_err(NfError::Handler)) }
}

/// The NF of a crate that is a library of type `cdylib` and `rlib`: `main`, which a program of the
/// crate calls, and what a group loads from the shared object. The handler is [`Send`]: a group may
/// make it in one thread and run it in another. The argument makes the handler, as
/// for [`run`](crate::run); it takes its arguments from [`Context::args`].
///
/// ```
/// use sluice_nf::{Burst, Context, Handler};
///
/// struct Bridge;
/// impl Handler for Bridge {
///     fn burst(&mut self, _burst: &mut Burst<'_>) {}
/// }
/// sluice_nf::nf!(|_context: &Context| Ok(Bridge));
/// ```
#[macro_export]
macro_rules! nf {
    ($make:expr) => {
        /// Runs the NF as a program of its own.
        pub fn main() -> ::std::process::ExitCode {
            $crate::run($make)
        }
        $crate::part!($make);
    };
}

/// What a group loads from a shared object, without a `main`; see [`nf!`](crate::nf).
#[macro_export]
macro_rules! part {
    ($make:expr) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn sluice_nf_part(
            version: u32,
            request: *const u8,
            len: usize,
            table: *mut $crate::part::HandlerTable,
        ) -> ::std::ffi::c_int {
            // SAFETY: the group calls it as a part::EntryPoint.
            unsafe { $crate::part::make(version, request, len, table, $make) }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_survives_its_way() {
        let context = Context {
            args: vec!["--rules".into(), OsString::from_vec(vec![0xff, b'x'])],
            core: Some(3),
            ..Context::for_test("web.fused.0", &["lan", "", "wan"], &["fw"], &[])
        };
        let bytes = encode(&context);
        let back = decode(&bytes).unwrap();
        assert_eq!(
            (&back.name, &back.ports, &back.services, &back.chains, &back.args, back.core),
            (&context.name, &context.ports, &context.services, &context.chains, &context.args, context.core)
        );
        for n in 0..bytes.len() {
            assert!(decode(&bytes[..n]).is_none(), "{n} bytes");
        }
    }
}
