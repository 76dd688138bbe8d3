//! The kernel's only program for AF_XDP: it hands every packet of an interface to a socket.
//!
//! # Approach
//! An AF_XDP socket gets packets only from a program on the interface. This one has five
//! instructions, so it is written here directly: look the socket of the packet's queue up in a map,
//! and pass the packet if there is none. It is attached by a link, so it goes with the descriptor,
//! however this process ends.
//!
//! # Limits
//! Needs CAP_BPF and CAP_NET_ADMIN, or root, and Linux 5.9 for such links.

// The call has no safe wrapper.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands of the call.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;

const MAP_OF_SOCKETS: u32 = 17;
const PROGRAM_OF_XDP: u32 = 6;
const ATTACHED_TO_XDP: u32 = 37;

/// Where the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the kernel's receive path, which every interface has.
    Generic = 1 << 1,
    /// In the driver, before there is a socket buffer; not every driver can.
    Native = 1 << 2,
}

/// The program's answer for a packet without a socket: pass.
const PASS: i32 = 2;
/// `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;

/// An instruction: operation, registers (target in the lower half), offset, number.
#[repr(C)]
struct Instruction(u8, u8, i16, i32);

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u64,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct Load {
    kind: u32,
    instructions: u32,
    at: u64,
    licence: u64,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attached_to: u32,
    flags: u32,
}

/// Makes a call whose structure has a size that the kernel knows.
fn call<T>(command: libc::c_int, structure: &T) -> io::Result<libc::c_long> {
    // SAFETY: the structure is live and its size is passed; what it points to outlives the call, as
    // its makers below ensure. The kernel takes what a shorter structure lacks for zero.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(structure), size_of::<T>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn make<T>(command: libc::c_int, structure: &T) -> io::Result<OwnedFd> {
    let fd = call(command, structure)?;
    // SAFETY: the call has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Sends packets of an interface to a socket as long as it lives.
#[derive(Debug)]
pub struct Redirect {
    _link: OwnedFd,
    _map: OwnedFd,
    mode: XdpMode,
}

impl Redirect {
    /// Redirects an interface's first queues, in the calling thread's namespace, each to its bound
    /// socket.
    ///
    /// # Errors
    /// What was tried, and the kernel's error.
    pub fn to(sockets: &[BorrowedFd<'_>], interface: u32, mode: XdpMode) -> Result<Self, (&'static str, io::Error)> {
        let map = MapCreate { kind: MAP_OF_SOCKETS, key_size: 4, value_size: 4, max_entries: sockets.len() as u32 };
        let map = make(MAP_CREATE, &map).map_err(|error| ("make a map of sockets for", error))?;
        for (key, socket) in (0u32..).zip(sockets) {
            let value = socket.as_raw_fd() as u32;
            let place = MapUpdate {
                map: map.as_raw_fd() as u64,
                key: std::ptr::from_ref(&key) as u64,
                value: std::ptr::from_ref(&value) as u64,
                flags: 0,
            };
            call(MAP_UPDATE, &place).map_err(|error| ("put a socket in the map of", error))?;
        }
        let program = [
            // r2 = the packet's queue: `rx_queue_index` of its context
            Instruction(0x61, 0x12, 16, 0),
            // r1 = the map, by its descriptor
            Instruction(0x18, 0x11, 0, map.as_raw_fd()),
            Instruction(0, 0, 0, 0),
            // r3 = the answer if there is no such entry
            Instruction(0xb7, 3, 0, PASS),
            Instruction(0x85, 0, 0, REDIRECT_MAP),
            Instruction(0x95, 0, 0, 0),
        ];
        let load = Load {
            kind: PROGRAM_OF_XDP,
            instructions: program.len() as u32,
            at: program.as_ptr() as u64,
            licence: c"Apache-2.0".as_ptr() as u64,
        };
        let program = make(PROG_LOAD, &load).map_err(|error| ("load a program for", error))?;
        let program = program.as_fd().as_raw_fd() as u32;
        let link = LinkCreate { program, interface, attached_to: ATTACHED_TO_XDP, flags: mode as u32 };
        let link = make(LINK_CREATE, &link).map_err(|error| ("attach a program to", error))?;
        Ok(Self { _link: link, _map: map, mode })
    }

    /// Where the program runs.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }
}
