//! An AF_XDP socket (the kernel's express data path) on one interface, in copy mode.
//!
//! # Terms
//! The *area* is memory shared by the socket and the kernel, divided into *chunks*: one half for
//! incoming, one half for outgoing packets. Four rings hold byte offsets in it: *fill* (empty
//! chunks for the kernel), *rx* (packets), *tx* (packets to be sent), *completion* (sent chunks).
//!
//! # Approach
//! The area is separate from the arena: a veth pair has no hardware that could write to frames, so
//! the kernel copies anyway, and frames would have to be pinned. So a packet is copied twice in
//! each direction. Receiving needs no system call; sending is one for a burst.
//!
//! # Limits
//! One queue. Packets of at most [`LARGEST`] bytes with their Ethernet header. What a sender leaves
//! to hardware (checksums, segments, a VLAN tag beside the packet) is invisible here: the pair's
//! offloads must be off, as by [`link::plain`]; a tag that the kernel itself adds is lost.
//! docs/src/measured-foreign.md compares it with packet sockets.

// Sockets, their options and mapped rings have no safe wrapper.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_shm::BURST;

use sluice_dataplane::frame::{FrameCache, Packet};
use sluice_dataplane::port::WireEnd;
use sluice_dataplane::queue::{Arrivals, PortQueue};
use sluice_host::link;
use sluice_host::redirect::Redirect;

/// Bytes that the kernel keeps free at the start of a chunk that it fills.
const KEPT: usize = 256;
/// Chunk sizes in bytes; the kernel accepts only these.
const CHUNKS: [usize; 2] = [2048, 4096];
/// Size of the largest packet in bytes.
pub const LARGEST: usize = CHUNKS[1] - KEPT;

const _: () = assert!(LARGEST == sluice_api::config::AF_XDP_LARGEST, "what the configuration is checked against");

/// Mapped memory, shared only with the kernel.
#[derive(Debug)]
struct Map {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory with one owner, on any thread.
unsafe impl Send for Map {}

impl Map {
    /// Maps memory of a socket from an offset on, or new memory.
    fn new(bytes: usize, socket: Option<(&OwnedFd, libc::off_t)>) -> io::Result<Self> {
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
struct Ring {
    map: Map,
    producer: usize,
    consumer: usize,
    entries: usize,
    slots: u32,
    /// Our index: number of entries put, or taken.
    own: u32,
}

impl Ring {
    fn new<T>(fd: &OwnedFd, slots: u32, name: libc::c_int, from: u64, of: &libc::xdp_ring_offset) -> io::Result<Self> {
        set(fd, name, &(slots as libc::c_int))?;
        let (producer, consumer, entries) = (of.producer as usize, of.consumer as usize, of.desc as usize);
        let map = Map::new(entries + slots as usize * size_of::<T>(), Some((fd, from as libc::off_t)))?;
        Ok(Self { map, producer, consumer, entries, slots, own: 0 })
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
    fn put<T>(&mut self, value: T) {
        // SAFETY: the entry is ours until it is published.
        unsafe { self.entry::<T>(self.own).write(value) };
        self.own = self.own.wrapping_add(1);
    }

    fn publish(&self) {
        // Release: the entries, and what they name, were written before.
        self.index(self.producer).store(self.own, Ordering::Release);
    }

    /// Number of entries to take.
    fn waiting(&self) -> u32 {
        // Acquire: what they name was written before.
        self.index(self.producer).load(Ordering::Acquire).wrapping_sub(self.own).min(self.slots)
    }

    /// Takes an entry. The caller ensures that there is one.
    fn take<T: Copy>(&mut self) -> T {
        // SAFETY: the kernel has published it, and does not write it until it is given back.
        let value = unsafe { self.entry::<T>(self.own).read() };
        self.own = self.own.wrapping_add(1);
        value
    }

    fn give_back(&self) {
        // Release: what was taken was read before.
        self.index(self.consumer).store(self.own, Ordering::Release);
    }

    /// Number of entries that the kernel has not taken.
    fn unsent(&self) -> u32 {
        // Relaxed: only the count is needed.
        self.own.wrapping_sub(self.index(self.consumer).load(Ordering::Relaxed))
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct XdpCounters {
    /// Packets that found no chunk or slot.
    pub overruns: u64,
    /// Packets that do not fit in a frame or a chunk.
    pub oversize: u64,
}

#[derive(Debug)]
pub struct XdpQueue {
    // Dropped in this order: nothing is sent to a socket that is gone, and the area goes last.
    _redirect: Redirect,
    fill: Ring,
    rx: Ring,
    tx: Ring,
    completion: Ring,
    fd: OwnedFd,
    area: Map,
    chunk: usize,
    /// Offsets of the free chunks for outgoing packets.
    free: Vec<u64>,
    room: usize,
    counters: XdpCounters,
}

impl XdpQueue {
    /// Opens a socket on an interface of the calling thread's namespace.
    ///
    /// For packets of at most `largest` bytes, of which `slots` may wait in each direction. `room`
    /// is the largest packet that fits in a frame.
    ///
    /// # Errors
    /// What was tried, and the kernel's error.
    pub fn open(interface: &str, slots: u32, largest: usize, room: usize) -> Result<Self, (&'static str, io::Error)> {
        let index = link::index(interface).map_err(|error| ("find", error))?;
        let chunk = CHUNKS.into_iter().find(|chunk| largest + KEPT <= *chunk);
        let chunk = chunk.ok_or(("have packets as large as its MTU by AF_XDP on", io::ErrorKind::InvalidInput.into()))?;
        let slots = slots.next_power_of_two();
        // SAFETY: a plain system call; the descriptor is ours.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            if fd < 0 {
                return Err(("open an AF_XDP socket on", io::Error::last_os_error()));
            }
            OwnedFd::from_raw_fd(fd)
        };
        let shared = |error| ("share memory with", error);
        let half = slots as usize * chunk;
        let area = Map::new(2 * half, None).map_err(shared)?;
        let register = libc::xdp_umem_reg {
            addr: area.at.as_ptr() as u64,
            len: area.bytes as u64,
            chunk_size: chunk as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set(&fd, libc::XDP_UMEM_REG, &register).map_err(shared)?;
        let offsets = offsets(&fd).map_err(shared)?;
        let ringed = |error| ("make the rings of", error);
        let (at_fill, at_done) = (libc::XDP_UMEM_PGOFF_FILL_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
        let mut fill = Ring::new::<u64>(&fd, slots, libc::XDP_UMEM_FILL_RING, at_fill, &offsets.fr).map_err(ringed)?;
        let completion = Ring::new::<u64>(&fd, slots, libc::XDP_UMEM_COMPLETION_RING, at_done, &offsets.cr).map_err(ringed)?;
        let at = libc::XDP_PGOFF_RX_RING as u64;
        let rx = Ring::new::<libc::xdp_desc>(&fd, slots, libc::XDP_RX_RING, at, &offsets.rx).map_err(ringed)?;
        let at = libc::XDP_PGOFF_TX_RING as u64;
        let tx = Ring::new::<libc::xdp_desc>(&fd, slots, libc::XDP_TX_RING, at, &offsets.tx).map_err(ringed)?;
        (0..slots as u64).for_each(|number| fill.put(number * chunk as u64));
        fill.publish();
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: index,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        let length = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
        // SAFETY: the address is live and of the length that is passed.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) } < 0 {
            return Err(("bind an AF_XDP socket to", io::Error::last_os_error()));
        }
        let redirect = Redirect::to(fd.as_fd(), index)?;
        let free = (slots as u64..2 * slots as u64).map(|number| number * chunk as u64).collect();
        let counters = XdpCounters::default();
        Ok(Self { _redirect: redirect, fill, rx, tx, completion, fd, area, chunk, free, room, counters })
    }

    /// Makes the kernel send; it takes the rest with the next burst.
    fn kick(&mut self) {
        // Each call sends a kernel burst, which is not larger than ours.
        for _ in 0..4 {
            if self.tx.unsent() == 0 {
                return;
            }
            // SAFETY: a call without memory.
            let sent = unsafe { libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
            if sent < 0 && !matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
                return;
            }
        }
    }

    fn collect(&mut self) {
        let done = self.completion.waiting();
        for _ in 0..done {
            let at: u64 = self.completion.take();
            // The kernel returns what it was given; any other chunk would not be ours.
            if (at as usize) < self.area.bytes && self.free.len() < self.free.capacity() {
                self.free.push(at / self.chunk as u64 * self.chunk as u64);
            }
        }
        self.completion.give_back();
    }
}

impl PortQueue for XdpQueue {
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        let mut fresh = [0; BURST];
        let wanted = out.len().min(BURST).min(self.rx.waiting() as usize);
        let had = frames.alloc(&mut fresh[..wanted]);
        let mut n = 0;
        for _ in 0..had {
            let received: libc::xdp_desc = self.rx.take();
            let (from, len) = (received.addr as usize, received.len as usize);
            // The chunk goes back, wherever the packet lay in it.
            self.fill.put(received.addr / self.chunk as u64 * self.chunk as u64);
            if len > self.room || from.saturating_add(len) > self.area.bytes {
                self.counters.oversize += 1;
                continue;
            }
            // SAFETY: within the area; the kernel writes it only after the chunk is published
            // again.
            let bytes = unsafe { std::slice::from_raw_parts(self.area.at.as_ptr().add(from), len) };
            let packet = Packet::fresh(fresh[n], len as u16);
            frames.arena().write(packet.frame, packet.offset, bytes);
            out[n] = packet;
            n += 1;
        }
        fresh[n..had].iter().for_each(|frame| frames.free(*frame));
        if had > 0 {
            self.rx.give_back();
            self.fill.publish();
        }
        n
    }

    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        let sent = self.copy_out(packets, frames, now_ns);
        frames.free_packets(&packets[..sent]);
        sent
    }

    fn arrivals(&self) -> Arrivals<'_> {
        Arrivals::Readable(self.fd.as_fd())
    }

    /// Sends the rest and reads the kernel's drop counters.
    fn housekeeping(&mut self, _now_ns: u64) {
        self.kick();
        // SAFETY: all zeros is a value of this plain structure.
        let mut stats: libc::xdp_statistics = unsafe { std::mem::zeroed() };
        if get(&self.fd, libc::XDP_STATISTICS, &mut stats).is_ok() {
            self.counters.overruns = stats.rx_dropped + stats.rx_ring_full;
        }
    }
}

impl WireEnd for XdpQueue {
    fn has_packet(&self) -> bool {
        self.rx.waiting() > 0
    }

    fn overruns(&self) -> u64 {
        self.counters.overruns
    }

    fn copy_out(&mut self, packets: &[Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        if self.free.len() < packets.len() {
            self.collect();
        }
        let mut n = 0;
        for packet in packets {
            let len = usize::from(packet.len);
            if len > self.chunk {
                // Waiting would not help.
                self.counters.oversize += 1;
                n += 1;
                continue;
            }
            let Some(at) = self.free.pop() else { break };
            // SAFETY: the chunk lies in the area and is ours: neither filled nor being sent.
            let bytes = unsafe { std::slice::from_raw_parts_mut(self.area.at.as_ptr().add(at as usize), len) };
            frames.arena().read(packet.frame, packet.offset, bytes);
            self.tx.put(libc::xdp_desc { addr: at, len: len as u32, options: 0 });
            n += 1;
        }
        self.tx.publish();
        self.kick();
        n
    }
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
    // SAFETY: the value is live and of the size that is passed.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::af_packet::InterfaceQueue;
    use crate::af_packet::socket::SocketOptions;
    use sluice_dataplane::fake::cache;
    use sluice_host::netns::Netns;
    use std::time::{Duration, Instant};

    #[test]
    fn packets_cross_a_pair_both_ways_unchanged_and_in_order() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "this needs root");
            eprintln!("skipped: not root");
            return;
        }
        let ns = Netns::private().unwrap();
        let (mut xdp, mut socket) = ns
            .visit(|| {
                link::make_pair("a", "b", ns.fd(), 1500)?;
                for end in ["a", "b"] {
                    link::plain(end)?;
                    link::up(end)?;
                }
                let told = |(doing, error)| io::Error::other(format!("cannot {doing} it: {error}"));
                let options =
                    SocketOptions { interface: "b", slots: 64, room: 2112, promiscuous: true, bypass: true, fanout: None };
                Ok::<_, io::Error>((
                    XdpQueue::open("a", 64, 1518, 2112).map_err(told)?,
                    InterfaceQueue::open(&options).map_err(told)?,
                ))
            })
            .unwrap();
        let mut cache = cache(512);
        let all = cache.held();
        // Rings of 64 wrap many times.
        for round in 0..100u32 {
            let mut fresh = [0; BURST];
            assert_eq!(cache.alloc(&mut fresh), BURST);
            let packets = fresh.map(|frame| Packet::fresh(frame, 60 + ((round * 32 + frame) * 29 % 1400) as u16));
            let bytes = |cache: &FrameCache, packet: &Packet| {
                let mut bytes = vec![0; packet.len.into()];
                assert!(cache.arena().read(packet.frame, packet.offset, &mut bytes));
                bytes
            };
            for (number, packet) in packets.iter().enumerate() {
                let content: Vec<u8> = (0..packet.len).map(|at| (u32::from(at) + round + number as u32) as u8 | 2).collect();
                assert!(cache.arena().write(packet.frame, packet.offset, &content));
            }
            let sent: Vec<_> = packets.iter().map(|packet| bytes(&cache, packet)).collect();
            let there = round % 2 == 0;
            let (mut got, until) = (Vec::new(), Instant::now() + Duration::from_secs(20));
            let taken = if there { xdp.copy_out(&packets, &mut cache, 0) } else { socket.copy_out(&packets, &mut cache, 0) };
            assert_eq!(taken, BURST);
            while got.len() < BURST {
                let mut out = [Packet::default(); BURST];
                let n = if there { socket.rx_burst(&mut out, &mut cache, 0) } else { xdp.rx_burst(&mut out, &mut cache, 0) };
                got.extend(out[..n].iter().map(|packet| bytes(&cache, packet)));
                cache.free_packets(&out[..n]);
                assert!(Instant::now() < until, "round {round}: {} came, {:?}", got.len(), xdp.counters);
            }
            assert!(got == sent, "round {round}");
            cache.free_packets(&packets);
        }
        xdp.housekeeping(0);
        assert_eq!((cache.held(), xdp.counters), (all, XdpCounters::default()));
    }

    #[test]
    fn what_is_too_large_is_told() {
        let (doing, error) = XdpQueue::open("lo", 64, 5000, 9000).unwrap_err();
        assert!(doing.contains("MTU") && error.kind() == io::ErrorKind::InvalidInput, "{doing}: {error}");
    }
}
