//! A packet socket on one interface, with a receive ring shared with the kernel and batched sends.
//!
//! # Receiving
//! The kernel writes packets to slots of a mapped ring (TPACKET_V2) and marks each as the user's;
//! the user reads it and marks it as the kernel's. So an idle ring costs no system call. Before
//! each packet lies a `virtio_net_hdr`, which says whether its checksum is open (a sender on this
//! host leaves it to hardware that does not exist): it is computed here. A VLAN tag that the kernel
//! removed is put back.
//!
//! A large segment (TCP, up to 64 KiB) does not fit in a slot. The slot has its beginning, and the
//! kernel queues all of it at the socket (PACKET_COPY_THRESH), where one `recv` fetches it. The
//! caller cuts it ([`super::segment`]).
//!
//! # Sending
//! One `sendmmsg` for a burst. The send ring (PACKET_TX_RING) is not used: the kernel passes on the
//! ring's own pages as packet data, and marks a slot as free when the receiving stack has disowned
//! the packet, perhaps long before it is read. Between two namespaces of one host, the next packet
//! would then overwrite one that still waits in a socket. `sendmmsg` copies from the frame to a
//! fresh buffer, which is the one copy that the ring costs, too.
//!
//! Neighbours in a burst that continue one TCP flow go as one message, gathered from their frames:
//! a large segment again. Not with `bypass`, past the interface's queue, where the kernel does not
//! cut for a device that cannot.

// Raw packet sockets, their options and their mapped ring have no safe wrapper.
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::ops::AddAssign;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_shm::BURST;
use sluice_shm::arena::Arena;

use super::segment::{Headers, MAX_HEADERS, Offload, fold, sum};
use sluice_dataplane::frame::Packet;
use sluice_host::link;

/// Bytes of a `virtio_net_hdr` without the count of buffers.
const VNET: usize = 10;
/// Bytes of a VLAN tag, and its offset in a packet.
const TAG: usize = 4;
const TAG_AT: usize = 12;
/// `virtio_net_hdr` flag: the checksum is open.
const NEEDS_CSUM: u8 = 1;
/// Space in a slot before the packet: ring header, address, `virtio_net_hdr`, and alignment.
const SLOT_HEAD: usize = 128;
/// Bytes of a block of the ring, which the kernel prefers to be contiguous.
const BLOCK: usize = 1 << 16;
/// Bytes that may wait to be sent.
pub(crate) const SEND_BUFFER: libc::c_int = 4 << 20;
/// Bytes of large segments that may wait to be received.
const RECEIVE_BUFFER: libc::c_int = 16 << 20;
/// Bytes of the largest segment, with what precedes it.
const LARGEST: usize = VNET + 16 + (1 << 16);
const LONGEST: usize = u16::MAX as usize;
/// Socket options missing in the libc crate. Source: the kernel's `include/uapi/linux/if_packet.h`.
const PACKET_COPY_THRESH: libc::c_int = 7;
const TP_STATUS_COPY: u32 = 1 << 1;

#[derive(Debug, Clone, Copy)]
pub struct SocketOptions<'a> {
    pub interface: &'a str,
    pub slots: u32,
    /// Largest packet, in bytes.
    pub room: usize,
    /// Whether the interface receives packets for other stations.
    pub promiscuous: bool,
    /// Whether packets go straight to the driver, past the interface's queue: less work, but
    /// packets that the driver does not accept at once are not kept.
    pub bypass: bool,
    /// Sockets with the same number share the packets of an interface by flow.
    pub fanout: Option<u16>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketCounters {
    /// Packets for which the kernel had no slot.
    pub overruns: u64,
    /// Packets larger than a frame, or large segments of a kind that is not cut here.
    pub oversize: u64,
    /// Large segments that were cut into packets.
    pub cut: u64,
    /// Packets sent as parts of large segments.
    pub merged: u64,
    pub checksummed: u64,
    /// Packets larger than the interface's MTU.
    pub refused: u64,
    pub refused_bytes: u64,
}

impl AddAssign for SocketCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { overruns, oversize, cut, merged, checksummed, refused, refused_bytes } = other;
        self.overruns += overruns;
        self.oversize += oversize;
        self.cut += cut;
        self.merged += merged;
        self.checksummed += checksummed;
        self.refused += refused;
        self.refused_bytes += refused_bytes;
    }
}

/// A packet that came in, as it lies in a slot.
pub struct Received<'a> {
    pub bytes: &'a [u8],
    /// The VLAN tag that the kernel removed.
    pub tag: Option<[u8; TAG]>,
    /// For a large segment: kind, payload bytes of each packet, and start of its checksum.
    pub large: Option<(Offload, u16, usize)>,
}

impl Received<'_> {
    #[allow(clippy::len_without_is_empty, reason = "the kernel gives no empty packets")]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.tag_len()
    }

    pub(crate) fn tag_len(&self) -> usize {
        if self.tag.is_some() { TAG } else { 0 }
    }

    /// Writes it to a frame. False if it does not fit.
    pub fn write(&self, arena: &Arena, frame: u32, offset: u16) -> bool {
        self.write_part(arena, frame, offset, self.bytes)
    }

    /// Writes the beginning of a packet, with this one's tag, to a frame. False if it does not fit.
    pub(crate) fn write_part(&self, arena: &Arena, frame: u32, offset: u16, bytes: &[u8]) -> bool {
        match self.tag {
            Some(tag) if bytes.len() >= TAG_AT => {
                let (addresses, rest) = bytes.split_at(TAG_AT);
                let at = |n: usize| offset + n as u16;
                arena.write(frame, offset, addresses)
                    && arena.write(frame, at(TAG_AT), &tag)
                    && arena.write(frame, at(TAG_AT + TAG), rest)
            }
            _ => arena.write(frame, offset, bytes),
        }
    }
}

#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    ring: NonNull<u8>,
    bytes: usize,
    slot: usize,
    slots: u32,
    next: u32,
    room: usize,
    counters: SocketCounters,
    /// Buffer for a large segment, and the bytes of the one fetched for the next slot.
    large: Box<[u8]>,
    fetched: Option<usize>,
    /// State of merging, if packets are merged.
    merger: Option<Box<Merger>>,
    name: String,
    /// The interface was down or missing at the last send.
    is_down: bool,
    /// The packet that the kernel has refused last.
    refused: Option<Packet>,
}

#[derive(Debug)]
struct Merger {
    /// By message of a burst.
    headers: [Option<Headers>; BURST],
    /// A private copy of a payload, to verify its checksum.
    payload: Vec<u8>,
    /// MTU: bytes of a packet without the Ethernet header.
    mtu: usize,
}

/// Readable while a packet waits.
impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

// SAFETY: nothing else in this process has a pointer to the ring; one thread owns the socket.
unsafe impl Send for PacketSocket {}

/// Binds a packet socket to an interface by number; it receives packets from now on. A socket whose
/// interface is gone can be bound to another, and keeps its ring.
///
/// # Errors
/// The failed operation, and the kernel's error.
pub fn bind(socket: &OwnedFd, index: u32, promiscuous: bool) -> Result<(), (&'static str, io::Error)> {
    bind_for(socket, index, promiscuous, libc::ETH_P_ALL as u16)
}

/// A socket that is bound to an interface and receives nothing: for the interface's state, and its
/// promiscuous mode as long as it lives.
///
/// # Errors
/// As [`bind`].
pub fn probe(index: u32, promiscuous: bool) -> Result<OwnedFd, (&'static str, io::Error)> {
    let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let fd = new(flags).map_err(|error| ("open a packet socket on", error))?;
    bind_for(&fd, index, promiscuous, 0)?;
    Ok(fd)
}

/// A socket that gets no packet before it is bound.
fn new(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; this function owns the descriptor.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, flags, 0);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

fn bind_for(socket: &OwnedFd, index: u32, promiscuous: bool, protocol: u16) -> Result<(), (&'static str, io::Error)> {
    let index = index as libc::c_int;
    if promiscuous {
        let request =
            libc::packet_mreq { mr_ifindex: index, mr_type: libc::PACKET_MR_PROMISC as u16, mr_alen: 0, mr_address: [0; 8] };
        set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
            .map_err(|error| ("take packets for other stations on", error))?;
    }
    // SAFETY: all zeros is a value of this plain structure.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is live and of the length that is passed.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } < 0 {
        return Err(("bind a packet socket to", io::Error::last_os_error()));
    }
    Ok(())
}

/// Makes a socket's buffers as large as possible: without the privilege to exceed it, the host's
/// limit applies.
fn enlarge_buffers(fd: &OwnedFd) {
    let buffers = [
        (libc::SO_SNDBUF, SEND_BUFFER),
        (libc::SO_SNDBUFFORCE, SEND_BUFFER),
        (libc::SO_RCVBUF, RECEIVE_BUFFER),
        (libc::SO_RCVBUFFORCE, RECEIVE_BUFFER),
    ];
    for (name, bytes) in buffers {
        let _ = set(fd, libc::SOL_SOCKET, name, &bytes);
    }
}

impl PacketSocket {
    /// Opens a socket in the calling thread's network namespace; it receives packets from now on.
    ///
    /// # Errors
    /// The failed operation, and the kernel's error.
    pub fn open(options: &SocketOptions<'_>) -> Result<Self, (&'static str, io::Error)> {
        let index = link::index(options.interface).map_err(|error| ("find", error))?;
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = new(flags).map_err(|error| ("open a packet socket on", error))?;
        let level = libc::SOL_PACKET;
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        let set = |what, name, value: libc::c_int| set(&fd, level, name, &value).map_err(|error| (what, error));
        set("choose the ring's version on", libc::PACKET_VERSION, version)?;
        set("enable offload headers on", libc::PACKET_VNET_HDR, 1)?;
        set("leave out what this host sends on", libc::PACKET_IGNORE_OUTGOING, 1)?;
        set("have large segments queued on", PACKET_COPY_THRESH, 1)?;
        if options.bypass {
            set("go past the queue of", libc::PACKET_QDISC_BYPASS, 1)?;
        }
        enlarge_buffers(&fd);
        let slot = (options.room + SLOT_HEAD).next_power_of_two();
        let block = BLOCK.max(slot);
        let blocks = (options.slots as usize * slot).div_ceil(block);
        let request = libc::tpacket_req {
            tp_block_size: block as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot as u32,
            tp_frame_nr: (blocks * block / slot) as u32,
        };
        self::set(&fd, level, libc::PACKET_RX_RING, &request).map_err(|error| ("make the receive ring of", error))?;
        let bytes = blocks * block;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let shared = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a fresh mapping of the ring just made, at an address that the kernel chooses.
        let ring = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, shared, fd.as_raw_fd(), 0) };
        let Some(ring) = NonNull::new(ring.cast::<u8>()).filter(|_| ring != libc::MAP_FAILED) else {
            return Err(("map the receive ring of", io::Error::last_os_error()));
        };
        let slots = request.tp_frame_nr;
        let merger = (!options.bypass)
            .then(|| Box::new(Merger { headers: [None; BURST], payload: Vec::with_capacity(options.room), mtu: 0 }));
        let mut socket = Self {
            fd,
            ring,
            bytes,
            slot,
            slots,
            next: 0,
            room: options.room,
            counters: SocketCounters::default(),
            large: vec![0; LARGEST].into(),
            fetched: None,
            merger,
            name: options.interface.into(),
            is_down: false,
            refused: None,
        };
        socket.look_at_mtu();
        bind(&socket.fd, index, options.promiscuous)?;
        if let Some(group) = options.fanout {
            // Kind 0 in the upper half: by flow, both directions to one socket.
            self::set(&socket.fd, level, libc::PACKET_FANOUT, &libc::c_int::from(group))
                .map_err(|error| ("share the packets of", error))?;
        }
        Ok(socket)
    }

    /// Slots of the receive ring.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Another descriptor of the same socket, for queries about its interface.
    ///
    /// # Errors
    /// The kernel's.
    pub fn probe(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Whether the interface was down or missing at the last send.
    #[inline]
    pub fn is_down(&self) -> bool {
        self.is_down
    }

    pub fn counters(&self) -> SocketCounters {
        self.counters
    }

    /// The next slot and its status.
    fn status(&self) -> (&AtomicU32, *mut u8) {
        // SAFETY: `next` is below the number of slots, so the slot lies in the mapping. Its first
        // word is the aligned status, which the kernel and this process access as one word.
        unsafe {
            let slot = self.ring.as_ptr().add(self.next as usize * self.slot);
            (AtomicU32::from_ptr(slot.cast()), slot)
        }
    }

    #[inline]
    pub fn has_packet(&self) -> bool {
        self.status().0.load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0
    }

    /// The packet that the kernel has refused last, if it has refused one.
    pub(crate) fn refused_packet(&self) -> Option<Packet> {
        self.refused
    }

    /// Passes the next packet to `take`. `None` if there is none, or if `take` leaves it for later.
    /// `lost` gets the length and the first bytes of packets that count as oversize here.
    #[inline]
    pub fn receive<T>(&mut self, mut take: impl FnMut(Received<'_>) -> Option<T>, lost: impl Fn(usize, &[u8])) -> Option<T> {
        loop {
            let (status, slot) = self.status();
            // Acquire: the packet was written before the status.
            let word = status.load(Ordering::Acquire);
            if word & libc::TP_STATUS_USER == 0 {
                return None;
            }
            // SAFETY: a slot begins with this header and is larger than it.
            let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
            let is_whole = header.tp_snaplen == header.tp_len;
            if !is_whole && word & TP_STATUS_COPY != 0 && self.fetched.is_none() {
                self.fetched = Some(self.fetch());
            }
            let mut summed = false;
            let (packet, large) = match self.fetched {
                Some(bytes) => packet_in(&mut self.large[..bytes], VNET, bytes.saturating_sub(VNET), &mut summed),
                None => {
                    // SAFETY: the slot is ours until its status changes; no other reference exists.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(slot, self.slot) };
                    packet_in(bytes, header.tp_mac.into(), header.tp_snaplen as usize, &mut summed).filter(|_| is_whole)
                }
            }
            .unzip();
            let tag = (word & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
                let kind = if word & libc::TP_STATUS_VLAN_TPID_VALID != 0 { header.tp_vlan_tpid } else { 0x8100 };
                let ([a, b], [c, d]) = (kind.to_be_bytes(), header.tp_vlan_tci.to_be_bytes());
                [a, b, c, d]
            });
            let large = large.flatten();
            let packet = packet.map(|bytes| Received { bytes, tag, large });
            let is_large = large.is_some();
            let (is_oversize, taken) = match packet {
                Some(packet) if is_large || packet.len() <= self.room => (false, take(packet)),
                Some(packet) => {
                    lost(packet.bytes.len(), packet.bytes);
                    (true, None)
                }
                // The beginning of a large segment that the kernel had no space to queue.
                None if !is_whole && word & TP_STATUS_COPY == 0 => {
                    self.counters.overruns += 1;
                    (false, None)
                }
                // Of a kind that is not cut here, or not fetched: the slot has its beginning.
                None => {
                    let (mac, there) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
                    if mac + there <= self.slot {
                        // SAFETY: these bytes lie in the slot, which is ours until its status
                        // changes; no other reference exists any more.
                        lost(header.tp_len as usize, unsafe { std::slice::from_raw_parts(slot.add(mac), there) });
                    }
                    (true, None)
                }
            };
            if taken.is_none() && is_large && !is_oversize {
                return None;
            }
            self.pass();
            self.counters.checksummed += u64::from(summed);
            self.counters.cut += u64::from(is_large);
            if taken.is_some() {
                return taken;
            }
            self.counters.oversize += u64::from(is_oversize);
        }
    }

    /// Drops the next packet, which `take` left because it is too large or cannot be cut.
    pub fn refuse(&mut self) {
        self.pass();
        self.counters.oversize += 1;
    }

    /// Returns the slot to the kernel.
    fn pass(&mut self) {
        // Release: the slot was read before the kernel may write to it again.
        self.status().0.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = if self.next + 1 == self.slots { 0 } else { self.next + 1 };
        self.fetched = None;
    }

    /// Fetches a segment that the kernel queued, and returns its bytes including the header; 0 if
    /// there is none, or it is larger than the buffer.
    fn fetch(&mut self) -> usize {
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: the buffer is live, and its length is passed.
        let got = unsafe { libc::recv(self.fd.as_raw_fd(), self.large.as_mut_ptr().cast(), self.large.len(), flags) };
        usize::try_from(got).ok().filter(|bytes| *bytes <= self.large.len()).unwrap_or(0)
    }

    /// Sends the first packets of a burst; returns how many. The caller keeps the frames.
    #[inline]
    pub fn send(&mut self, arena: &Arena, packets: &[Packet]) -> usize {
        let mut done = 0;
        let mut one_by_one = 0usize;
        let mut was_down = std::mem::take(&mut self.is_down);
        while done < packets.len() {
            let burst = &packets[done..packets.len().min(done + BURST)];
            // Packets in each message.
            let mut groups = [1usize; BURST];
            let mut count = burst.len();
            if let Some(merger) = self.merger.as_mut().filter(|_| one_by_one == 0) {
                count = merger.group(arena, burst, &mut groups);
            }
            let sent = self.send_groups(arena, burst, &groups[..count]);
            if sent > 0 {
                let packets = groups[..sent].iter().sum::<usize>();
                done += packets;
                one_by_one = one_by_one.saturating_sub(packets);
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                // Try again: the kernel reports once that it was down, even if it is up again.
                Some(libc::ENETDOWN) if !was_down => was_down = true,
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    self.is_down = true;
                    break;
                }
                // An interface that rejects a large segment may accept its packets.
                Some(libc::EMSGSIZE | libc::EINVAL | libc::EFAULT) if groups[0] > 1 => one_by_one = groups[0],
                // Waiting would not help, also where an NF has made a hole under the packet.
                Some(libc::EMSGSIZE | libc::EINVAL | libc::EFAULT) => {
                    self.refused = Some(packets[done]);
                    self.counters.refused += 1;
                    self.counters.refused_bytes += u64::from(packets[done].len);
                    done += 1;
                    one_by_one = one_by_one.saturating_sub(1);
                }
                // Its buffer is full: the caller keeps the rest.
                _ => break,
            }
        }
        done
    }

    /// Sends a burst in messages of `groups` packets, and returns how many; 0 with an error.
    fn send_groups(&mut self, arena: &Arena, burst: &[Packet], groups: &[usize]) -> usize {
        let plain = [0u8; VNET];
        let mut offloads = [plain; BURST];
        // SAFETY: all zeros is a value of these plain structures.
        let (mut parts, mut messages): ([libc::iovec; 3 * BURST], [libc::mmsghdr; BURST]) = unsafe { (zeroed(), zeroed()) };
        let (mut packets, mut part) = (burst.iter(), 0);
        for (number, (size, message)) in groups.iter().zip(&mut messages).enumerate() {
            let merged = self.merger.as_ref().and_then(|merger| merger.headers[number].as_ref()).filter(|_| *size > 1);
            let first = part;
            let mut add = |base: *const u8, len: usize| {
                // The kernel only reads.
                parts[part] = libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len };
                part += 1;
            };
            let skip = match merged {
                None => {
                    add(plain.as_ptr(), VNET);
                    0
                }
                Some(headers) => {
                    let head = headers.bytes();
                    let payload = burst[burst.len() - packets.len()].len as usize - head.len();
                    offloads[number] = large_header(headers, payload);
                    add(offloads[number].as_ptr(), VNET);
                    add(head.as_ptr(), head.len());
                    head.len() as u16
                }
            };
            for packet in packets.by_ref().take(*size) {
                match arena.packet_ptr(packet.frame, packet.offset + skip, packet.len - skip) {
                    Some(at) => add(at, (packet.len - skip).into()),
                    // Impossible: packets are checked on entry. An empty one is refused.
                    None => add(std::ptr::null(), 0),
                }
            }
            message.msg_hdr.msg_iov = &raw mut parts[first];
            message.msg_hdr.msg_iovlen = part - first;
        }
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: there is a message for each group, and each points to live parts: headers here or
        // in the merger, and packets in the arena, which the manager holds. An NF that writes there
        // meanwhile only changes bytes.
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), groups.len() as u32, flags as _) };
        let sent = usize::try_from(sent).unwrap_or(0);
        self.counters.merged += groups[..sent].iter().filter(|size| **size > 1).sum::<usize>() as u64;
        sent
    }

    /// Reads the interface's MTU.
    fn look_at_mtu(&mut self) {
        if let Some(merger) = &mut self.merger {
            // Nothing is merged while it is unknown.
            merger.mtu = link::mtu_by(&self.fd, &self.name).unwrap_or(0) as usize;
        }
    }

    /// Reads the MTU, and the kernel's count of packets without a slot.
    pub fn look(&mut self) {
        self.look_at_mtu();
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the structure is live, and its size is passed. Reading resets the counters.
        let result = unsafe {
            let stats = (&raw mut stats).cast();
            libc::getsockopt(self.fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, stats, &raw mut length)
        };
        if result == 0 {
            self.counters.overruns += u64::from(stats.tp_drops);
        }
    }
}

impl Drop for PacketSocket {
    fn drop(&mut self) {
        // SAFETY: `open` made the mapping; it is unmapped once, and no reference outlives it.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), self.bytes) };
    }
}

impl Merger {
    /// Groups neighbours that can leave as one. Returns the number of messages; sizes in `groups`.
    fn group(&mut self, arena: &Arena, burst: &[Packet], groups: &mut [usize; BURST]) -> usize {
        let mut count = 0;
        let mut next = 0;
        let parse = |packet: &Packet| {
            let mut start = [0; MAX_HEADERS];
            let start = &mut start[..MAX_HEADERS.min(packet.len.into())];
            let headers = if arena.read(packet.frame, packet.offset, start) { Headers::parse(start) } else { None };
            // Bytes behind the IP packet are padding, which a large segment cannot have.
            headers.filter(|it| it.may_lead() && it.payload() == usize::from(packet.len).checked_sub(it.bytes().len()))
        };
        let mut current = burst.first().and_then(parse);
        while next < burst.len() {
            let first = next;
            next += 1;
            let Some(mut all) = current.take() else {
                groups[count] = 1;
                count += 1;
                current = burst.get(next).and_then(parse);
                continue;
            };
            let head = all.bytes().len();
            let size = usize::from(burst[first].len) - head;
            let mut payload = size;
            let mut is_open = size > 0 && usize::from(burst[first].len) - all.ip() <= self.mtu;
            let mut is_checked = false;
            while let Some(packet) = burst.get(next) {
                current = parse(packet);
                let Some(headers) = current.as_ref().filter(|_| is_open) else { break };
                let part = usize::from(packet.len) - head.min(packet.len.into());
                let fits = part > 0 && part <= size && payload + part + head - all.ip() <= LONGEST;
                if !fits || !all.follows(headers, payload) {
                    break;
                }
                if (!is_checked && !self.is_right(arena, &burst[first], &all)) || !self.is_right(arena, packet, headers) {
                    break;
                }
                is_checked = true;
                all.absorb(headers);
                payload += part;
                next += 1;
                // A short packet is the last, and so is one with the push flag.
                is_open = part == size && !headers.is_pushed();
            }
            if next - first > 1 {
                all.merge(payload);
                if next == burst.len() {
                    current = None;
                }
            }
            self.headers[count] = (next - first > 1).then_some(all);
            groups[count] = next - first;
            count += 1;
        }
        count
    }

    /// Whether a packet's checksum is right.
    fn is_right(&mut self, arena: &Arena, packet: &Packet, headers: &Headers) -> bool {
        let head = headers.bytes().len() as u16;
        self.payload.resize(usize::from(packet.len - head), 0);
        arena.read(packet.frame, packet.offset + head, &mut self.payload) && headers.is_right(&self.payload)
    }
}

/// The `virtio_net_hdr` of a large segment, to be cut into packets with `payload` bytes each.
fn large_header(headers: &Headers, payload: usize) -> [u8; VNET] {
    let mut header = [0; VNET];
    header[0] = NEEDS_CSUM;
    header[1] = headers.offload().kind();
    // Lengths of headers and payload, start of the checksum, and its offset from there.
    let words = [headers.bytes().len() as u16, payload as u16, headers.transport() as u16, 16];
    for (place, word) in header[2..].chunks_exact_mut(2).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    header
}

/// As [`Received::large`].
type Large = (Offload, u16, usize);

/// The packet in a slot, with its open checksum computed, and how to cut it. `None` if it is no
/// packet, or of a kind that is not cut here.
fn packet_in<'a>(slot: &'a mut [u8], mac: usize, len: usize, summed: &mut bool) -> Option<(&'a [u8], Option<Large>)> {
    let header: [u8; VNET] = slot.get(mac.checked_sub(VNET)?..mac)?.try_into().ok()?;
    let packet = slot.get_mut(mac..mac + len)?;
    let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]) as usize;
    // The kind of segments, without the congestion flag.
    let kind = header[1] & 0x7f;
    if kind != 0 {
        let large = (Offload::from_kind(kind)?, word(4) as u16, word(6));
        return Some((packet, Some(large)));
    }
    if header[0] & NEEDS_CSUM != 0 {
        let (start, at) = (word(6), word(8));
        let part = packet.get_mut(start..)?;
        let sum = !fold(sum(part));
        // In UDP 0 means "none"; both values are equal in sums.
        let sum = if sum == 0 { u16::MAX } else { sum };
        part.get_mut(at..at + 2)?.copy_from_slice(&sum.to_be_bytes());
        *summed = true;
    }
    Some((packet, None))
}

pub(crate) fn set<T>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value is live and of the size that is passed.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_that_was_left_open_is_computed() {
        for payload in [&b"odd"[..], b"even"] {
            let mut right = Vec::new();
            let builder =
                etherparse::PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, 1], [10, 0, 1, 1], 9).udp(1000, 2000);
            builder.write(&mut right, payload).unwrap();
            // What a sender leaves: the folded sum of the pseudo header in place of the checksum.
            let mut packet = right.clone();
            let words = [0x0a00, 1, 0x0a00, 0x0101, 17, 8 + payload.len() as u32];
            let mut sum: u32 = words.iter().sum();
            sum = (sum & 0xffff) + (sum >> 16);
            packet[40..42].copy_from_slice(&(sum as u16).to_be_bytes());
            let mut slot = vec![0; 64];
            let mac = slot.len();
            slot[mac - VNET] = NEEDS_CSUM;
            slot[mac - 4..mac - 2].copy_from_slice(&34u16.to_ne_bytes());
            slot[mac - 2..].copy_from_slice(&6u16.to_ne_bytes());
            slot.extend(&packet);
            let mut summed = false;
            assert_eq!(packet_in(&mut slot, mac, packet.len(), &mut summed), Some((&right[..], None)));
            assert!(summed);
            // A large segment gets its checksums when it is cut; unknown kinds are rejected.
            slot[mac - VNET + 1] = 1;
            let large = packet_in(&mut slot, mac, packet.len(), &mut summed).unwrap().1;
            assert_eq!(large, Some((Offload::Tcp4, 0, 34)));
            slot[mac - VNET + 1] = 9;
            assert_eq!(packet_in(&mut slot, mac, packet.len(), &mut summed), None);
        }
    }

    #[test]
    fn what_the_kernel_says_of_a_slot_is_not_believed_beyond_the_slot() {
        let mut summed = false;
        assert_eq!(packet_in(&mut [0; 64], 60, 10, &mut summed), None);
        assert_eq!(packet_in(&mut [0; 64], 4, 10, &mut summed), None);
        let mut slot = [0; 64];
        slot[10] = NEEDS_CSUM;
        slot[16] = 200;
        assert_eq!(packet_in(&mut slot, 20, 40, &mut summed), None);
        assert!(!summed);
    }
}
