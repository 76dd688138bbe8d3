//! An AF_XDP socket as the end of a wire, in copy mode.
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
use std::os::fd::{AsFd, OwnedFd};

use sluice_shm::BURST;

use super::ring::{Map, Rings, bind, kick, overruns, socket};
use sluice_dataplane::frame::{FrameCache, Packet};
use sluice_dataplane::port::WireEnd;
use sluice_dataplane::queue::{Arrivals, PortQueue};
use sluice_host::link;
use sluice_host::redirect::{Redirect, XdpMode};

/// Bytes that the kernel keeps free at the start of a chunk that it fills.
const KEPT: usize = 256;
/// Chunk sizes in bytes; the kernel accepts only these.
const CHUNKS: [usize; 2] = [2048, 4096];
/// Size of the largest packet in bytes.
pub const LARGEST: usize = CHUNKS[1] - KEPT;

const _: () = assert!(LARGEST == sluice_api::config::AF_XDP_LARGEST, "what the configuration is checked against");

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
    rings: Rings,
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
        let fd = socket().map_err(|error| ("open an AF_XDP socket on", error))?;
        let half = slots as usize * chunk;
        let area = Map::new(2 * half, None).map_err(|error| ("share memory with", error))?;
        let memory = libc::xdp_umem_reg {
            addr: area.at.as_ptr() as u64,
            len: area.bytes as u64,
            chunk_size: chunk as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        let mut rings = Rings::over(&fd, &memory, slots)?;
        (0..slots as u64).for_each(|number| rings.fill.put(number * chunk as u64));
        rings.fill.publish();
        bind(&fd, index, 0, libc::XDP_COPY).map_err(|error| ("bind an AF_XDP socket to", error))?;
        let redirect = Redirect::to(&[fd.as_fd()], index, XdpMode::Generic)?;
        let free = (slots as u64..2 * slots as u64).map(|number| number * chunk as u64).collect();
        let counters = XdpCounters::default();
        Ok(Self { _redirect: redirect, rings, fd, area, chunk, free, room, counters })
    }

    fn collect(&mut self) {
        let done = self.rings.completion.waiting();
        for _ in 0..done {
            let at: u64 = self.rings.completion.take();
            // The kernel returns what it was given; any other chunk would not be ours.
            if (at as usize) < self.area.bytes && self.free.len() < self.free.capacity() {
                self.free.push(at / self.chunk as u64 * self.chunk as u64);
            }
        }
        self.rings.completion.give_back();
    }
}

impl PortQueue for XdpQueue {
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        let mut fresh = [0; BURST];
        let wanted = out.len().min(BURST).min(self.rings.rx.waiting() as usize);
        let had = frames.alloc(&mut fresh[..wanted]);
        let mut n = 0;
        for _ in 0..had {
            let received: libc::xdp_desc = self.rings.rx.take();
            let (from, len) = (received.addr as usize, received.len as usize);
            // The chunk goes back, wherever the packet lay in it.
            self.rings.fill.put(received.addr / self.chunk as u64 * self.chunk as u64);
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
            self.rings.rx.give_back();
            self.rings.fill.publish();
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
        kick(&self.fd, &self.rings.tx, 2 * BURST);
        if let Ok(overruns) = overruns(&self.fd) {
            self.counters.overruns = overruns;
        }
    }

    fn overruns(&self) -> u64 {
        self.counters.overruns
    }
}

impl WireEnd for XdpQueue {
    fn has_packet(&self) -> bool {
        self.rings.rx.waiting() > 0
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
            self.rings.tx.put(libc::xdp_desc { addr: at, len: len as u32, options: 0 });
            n += 1;
        }
        self.rings.tx.publish();
        kick(&self.fd, &self.rings.tx, n);
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::af_packet::InterfaceQueue;
    use crate::af_packet::socket::SocketOptions;
    use crate::skip::skip;
    use sluice_dataplane::fake::cache;
    use sluice_host::netns::Netns;
    use std::time::{Duration, Instant};

    #[test]
    fn packets_cross_a_pair_both_ways_unchanged_and_in_order() {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can make network namespaces");
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
    fn what_is_too_large_is_reported() {
        let (doing, error) = XdpQueue::open("lo", 64, 5000, 9000).unwrap_err();
        assert!(doing.contains("MTU") && error.kind() == io::ErrorKind::InvalidInput, "{doing}: {error}");
    }
}
