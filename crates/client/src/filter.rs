//! Capture filters in libpcap's language, compiled by libpcap.
//!
//! Problem: the language is large, and libpcap is what defines it. Approach: the library is loaded
//! when a filter is given, so that nothing else needs it, and only the client has its code; the
//! daemon checks what comes out. Names of hosts and services are looked up on this host.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;

use anyhow::Context;
use libloading::Library;
use sluice_api::model::Instruction;
use sluice_cli::usage::Usage;

/// DLT_EN10MB: Ethernet.
const ETHERNET: c_int = 1;
/// PCAP_NETMASK_UNKNOWN.
const NO_NETMASK: u32 = u32::MAX;
/// Its names: in Debian and Ubuntu, and elsewhere.
const LIBRARIES: [&str; 2] = ["libpcap.so.0.8", "libpcap.so.1"];

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Raw {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// `struct bpf_program`.
#[repr(C)]
struct Program {
    len: c_uint,
    instructions: *mut Raw,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Compile = unsafe extern "C" fn(*mut c_void, *mut Program, *const c_char, c_int, u32) -> c_int;
type GetError = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type FreeCode = unsafe extern "C" fn(*mut Program);
type Close = unsafe extern "C" fn(*mut c_void);

/// Loads libpcap, for good: what its own libraries have begun may go on.
///
/// # Errors
/// It is not installed, or this program is linked statically.
pub fn load() -> anyhow::Result<ManuallyDrop<Library>> {
    // Such a program may load only what fits the C library in it, and cannot find that out before.
    anyhow::ensure!(
        !cfg!(target_feature = "crt-static"),
        "--filter needs libpcap, which this sluice cannot load, because it is linked statically; leave --filter out and filter in \
         Wireshark, or use a sluice from a package"
    );
    // SAFETY: libpcap's initialisers have no conditions.
    let open = |name: &&str| unsafe { Library::new(name) }.ok();
    let library = LIBRARIES.iter().find_map(open).context(
        "--filter needs libpcap, which is not installed; install it (Debian and Ubuntu: `apt-get install libpcap0.8`, Fedora: \
         `dnf install libpcap`), or leave --filter out",
    )?;
    Ok(ManuallyDrop::new(library))
}

/// The program of an expression, for Ethernet.
///
/// # Errors
/// There is no libpcap, or it does not accept the expression.
pub fn compile(expression: &str) -> anyhow::Result<Vec<Instruction>> {
    let text = CString::new(expression).map_err(|_| Usage("the filter has a zero byte; remove it".into()))?;
    let library = load()?;
    // SAFETY: these are the types that libpcap's header gives its functions, in all its versions.
    let (open_dead, compile, get_error, free_code, close) = unsafe {
        (
            library.get::<OpenDead>(b"pcap_open_dead\0")?,
            library.get::<Compile>(b"pcap_compile\0")?,
            library.get::<GetError>(b"pcap_geterr\0")?,
            library.get::<FreeCode>(b"pcap_freecode\0")?,
            library.get::<Close>(b"pcap_close\0")?,
        )
    };
    // SAFETY: both are plain numbers.
    let handle = unsafe { open_dead(ETHERNET, c_int::from(u16::MAX)) };
    anyhow::ensure!(!handle.is_null(), "libpcap has no memory");
    let mut program = Program { len: 0, instructions: std::ptr::null_mut() };
    // SAFETY: the handle is open, the program is this function's, and the text is a C string.
    let compiled = unsafe { compile(handle, &mut program, text.as_ptr(), 1, NO_NETMASK) } == 0;
    let instructions: Result<_, Usage> = if compiled && !program.instructions.is_null() {
        // SAFETY: libpcap has just made this many instructions.
        let raw = unsafe { std::slice::from_raw_parts(program.instructions, program.len as usize) };
        Ok(raw.iter().map(|Raw { code, jt, jf, k }| Instruction { code: *code, jt: *jt, jf: *jf, k: *k }).collect())
    } else {
        // SAFETY: the handle is open, and keeps the text of its error.
        let error = unsafe { CStr::from_ptr(get_error(handle)) }.to_string_lossy().into_owned();
        Err(Usage(format!("the filter {expression:?}: {error}; `man pcap-filter` describes the language")))
    };
    // SAFETY: the program is libpcap's or empty, and neither is used again.
    unsafe {
        if compiled {
            free_code(&mut program);
        }
        close(handle);
    }
    Ok(instructions?)
}
