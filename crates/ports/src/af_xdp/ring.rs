//! Rings and options of AF_XDP sockets.

// Sockets, their options and mapped rings have no safe wrapper.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_shm::BURST;

use crate::af_packet::socket::{self, SEND_BUFFER};

/// Mapped memory, shared only with the kernel.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) at: NonNull<u8>,
    pub(super) bytes: usize,
}

// SAFETY: memory with one owner, on any thread.
unsafe impl Send for Map {}

impl Map {
    /// Maps memory of a socket from an offset on, or new memory.
    pub(super) fn new(bytes: usize, socket: Option<(&OwnedFd, libc::off_t)>) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, from, kind) = match socket {
            Some((fd, from)) => (fd.as_raw_fd(), from, libc::MAP_SHARED),
            None => (-1, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
        };
        // SAFETY: a new mapping at a place that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, kind | libc::MAP_POPULATE, fd, from) };
        match NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED) {
            Some(at) => Ok(Self { at, bytes }),
            None => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, unmapped once.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// A ring shared with the kernel, and our position in it.
#[derive(Debug)]
pub(super) struct Ring {
    map: Map,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    slots: u32,
    /// Our index: number of entries put, or taken.
    own: u32,
}

impl Ring {
    pub(super) fn new<T>(fd: &OwnedFd, slots: u32, name: libc::c_int, from: u64, of: &libc::xdp_ring_offset) -> io::Result<Self> {
        set(fd, name, &(slots as libc::c_int))?;
        let (producer, consumer, flags, entries) =
            (of.producer as usize, of.consumer as usize, of.flags as usize, of.desc as usize);
        let map = Map::new(entries + slots as usize * size_of::<T>(), Some((fd, from as libc::off_t)))?;
        Ok(Self { map, producer, consumer, flags, entries, slots, own: 0 })
    }

    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the kernel placed an aligned index here, before the entries, in the mapping.
        unsafe { AtomicU32::from_ptr(self.map.at.as_ptr().add(at).cast()) }
    }

    fn entry<T>(&self, number: u32) -> *mut T {
        // SAFETY: within the mapping, which has as many entries of this type as the ring has slots.
        unsafe { self.map.at.as_ptr().add(self.entries).cast::<T>().add((number & (self.slots - 1)) as usize) }
    }

    /// Puts an entry, visible once published. The caller ensures that there is room.
    pub(super) fn put<T>(&mut self, value: T) {
        // SAFETY: the entry is ours until it is published.
        unsafe { self.entry::<T>(self.own).write(value) };
        self.own = self.own.wrapping_add(1);
    }

    pub(super) fn publish(&self) {
        // Release: the entries, and what they name, were written before.
        self.index(self.producer).store(self.own, Ordering::Release);
    }

    /// Number of entries to take.
    pub(super) fn waiting(&self) -> u32 {
        // Acquire: what they name was written before.
        self.index(self.producer).load(Ordering::Acquire).wrapping_sub(self.own).min(self.slots)
    }

    /// Takes an entry. The caller ensures that there is one.
    pub(super) fn take<T: Copy>(&mut self) -> T {
        // SAFETY: the kernel has published it, and does not write it until it is given back.
        let value = unsafe { self.entry::<T>(self.own).read() };
        self.own = self.own.wrapping_add(1);
        value
    }

    pub(super) fn give_back(&self) {
        // Release: what was taken was read before.
        self.index(self.consumer).store(self.own, Ordering::Release);
    }

    /// Whether the kernel goes on only after a call.
    pub(super) fn wants_wakeup(&self) -> bool {
        // Relaxed: a hint.
        self.index(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Number of entries that the kernel has not taken.
    pub(super) fn unsent(&self) -> u32 {
        // Relaxed: only the count is needed.
        self.own.wrapping_sub(self.index(self.consumer).load(Ordering::Relaxed))
    }
}

/// The rings of a socket.
#[derive(Debug)]
pub(super) struct Rings {
    /// Empty chunks for the kernel.
    pub(super) fill: Ring,
    /// Packets that came.
    pub(super) rx: Ring,
    /// Packets to be sent.
    pub(super) tx: Ring,
    /// Chunks that were sent.
    pub(super) completion: Ring,
}

impl Rings {
    /// Gives memory to a socket, and makes its rings, each with `slots` entries, a power of two.
    pub(super) fn over(fd: &OwnedFd, memory: &libc::xdp_umem_reg, slots: u32) -> Result<Self, (&'static str, io::Error)> {
        let shared = |error| ("share memory with", error);
        set(fd, libc::XDP_UMEM_REG, memory).map_err(shared)?;
        let offsets = offsets(fd).map_err(shared)?;
        let ringed = |error| ("make the rings of", error);
        let (at_fill, at_done) = (libc::XDP_UMEM_PGOFF_FILL_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
        let (at_rx, at_tx) = (libc::XDP_PGOFF_RX_RING as u64, libc::XDP_PGOFF_TX_RING as u64);
        Ok(Self {
            fill: Ring::new::<u64>(fd, slots, libc::XDP_UMEM_FILL_RING, at_fill, &offsets.fr).map_err(ringed)?,
            completion: Ring::new::<u64>(fd, slots, libc::XDP_UMEM_COMPLETION_RING, at_done, &offsets.cr).map_err(ringed)?,
            rx: Ring::new::<libc::xdp_desc>(fd, slots, libc::XDP_RX_RING, at_rx, &offsets.rx).map_err(ringed)?,
            tx: Ring::new::<libc::xdp_desc>(fd, slots, libc::XDP_TX_RING, at_tx, &offsets.tx).map_err(ringed)?,
        })
    }
}

/// Binds a socket to a queue of an interface by number.
pub(super) fn bind(fd: &OwnedFd, interface: u32, queue: u32, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let length = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the address is live and of the length that is passed.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the kernel send what is in the tx ring, `packets` at most.
pub(super) fn kick(fd: &OwnedFd, tx: &Ring, packets: usize) {
    // Each call sends a kernel burst, which is not larger than ours.
    for _ in 0..=packets.div_ceil(BURST) {
        if tx.unsent() == 0 || !tx.wants_wakeup() {
            return;
        }
        // SAFETY: a call without memory.
        let sent = unsafe { libc::sendto(fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if sent < 0 && !matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
            return;
        }
    }
}

/// Makes a driver go on receiving that has found the fill ring empty.
#[inline]
pub(super) fn go_on_receiving(fd: &OwnedFd, fill: &Ring) {
    if fill.wants_wakeup() {
        // SAFETY: a call without memory. An error shows in the next call, which repeats it.
        unsafe {
            libc::recvfrom(fd.as_raw_fd(), std::ptr::null_mut(), 0, libc::MSG_DONTWAIT, std::ptr::null_mut(), std::ptr::null_mut())
        };
    }
}

/// Packets that the kernel dropped because it found no chunk or slot for them.
pub(super) fn overruns(fd: &OwnedFd) -> io::Result<u64> {
    // SAFETY: all zeros is a value of this plain structure.
    let mut stats: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    get(fd, libc::XDP_STATISTICS, &mut stats)?;
    Ok(stats.rx_dropped + stats.rx_ring_full)
}

/// Whether the driver reads and writes the socket's memory itself.
pub(super) fn is_zero_copy(fd: &OwnedFd) -> bool {
    let mut options: u32 = 0;
    get(fd, libc::XDP_OPTIONS, &mut options).is_ok() && options & libc::XDP_OPTIONS_ZEROCOPY != 0
}

/// A new socket.
pub(super) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; the descriptor is ours.
    let fd = unsafe {
        let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // As large as possible: without the privilege to exceed it, the host's limit applies.
    for name in [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE] {
        let _ = socket::set(&fd, libc::SOL_SOCKET, name, &SEND_BUFFER);
    }
    Ok(fd)
}

fn offsets(fd: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: all zeros is a value of this plain structure.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    get(fd, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
    Ok(offsets)
}

fn get<T>(fd: &OwnedFd, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is live, plain, and of the size that is passed.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, std::ptr::from_mut(value).cast(), &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set<T>(fd: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    socket::set(fd, libc::SOL_XDP, name, value)
}
