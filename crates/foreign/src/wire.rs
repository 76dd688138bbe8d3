//! The manager's end of the way to a foreign program: an interface pair, or shared memory.
//!
//! # Memory shared by DPDK devices
//! With `memif` and `vhost-user` the manager opens a DPDK device for each side (net_memif as
//! server, net_vhost), which listens on a socket in the runtime folder. The program connects and
//! passes its own memory, with rings and buffers; packets are copied between these and frames.
//! Neither side needs hugepages. The program gets packets once it is connected at all sides.
//!
//! # Limits
//! DPDK's drivers trust the shared rings (net_memif more than net_vhost), so the manager depends on
//! such a program. The fill of its rings is invisible, except that they are full. A program that
//! finds them full drops (dpdk-testpmd does), which counts as not come back.

use std::path::Path;

use super::xdp::XdpQueue;
use sluice_api::config::Via;
use sluice_dataplane::frame::{FrameCache, FramePool, Packet};
use sluice_dataplane::queue::Arrivals;
use sluice_dataplane::queue::PortQueue;
use sluice_ports::af_packet::InterfaceQueue;
use sluice_ports::dpdk::{self, DpdkQueue};
use sluice_shm::BURST;

/// The manager's end of a wire.
#[derive(Debug)]
pub enum End {
    Socket(Box<InterfaceQueue>),
    /// An AF_XDP socket on an interface.
    Xdp(Box<XdpQueue>),
    /// A device that shares memory with the program.
    Device(DpdkQueue),
}

impl End {
    /// Whether there may be a packet to receive.
    #[inline]
    pub fn has_packet(&self) -> bool {
        match self {
            Self::Socket(queue) => queue.has_packet(),
            Self::Xdp(queue) => queue.has_packet(),
            Self::Device(_) => true,
        }
    }

    /// How arrivals are noticed.
    pub fn arrivals(&self) -> Arrivals<'_> {
        match self {
            Self::Socket(queue) => queue.arrivals(),
            Self::Xdp(queue) => Arrivals::Readable(queue.fd()),
            Self::Device(_) => Arrivals::Looked,
        }
    }

    /// Receives, as [`PortQueue::rx_burst`].
    #[inline]
    pub fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        match self {
            Self::Socket(queue) => queue.rx_burst(out, frames, now_ns),
            Self::Xdp(queue) => queue.rx_burst(out, frames),
            Self::Device(queue) => queue.rx_burst(out, frames, now_ns),
        }
    }

    /// Whether it takes the frames that it sends: see [`End::hand_out`].
    #[inline]
    pub fn takes_frames(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// Sends the first packets with their frames, as far as there is room; returns their number.
    #[inline]
    pub fn hand_out(&mut self, packets: &[Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        match self {
            Self::Socket(queue) => queue.tx_burst(packets, frames, now_ns),
            Self::Xdp(queue) => {
                let sent = queue.copy_out(packets, frames);
                frames.free_packets(&packets[..sent]);
                sent
            }
            Self::Device(queue) => queue.tx_burst(packets, frames, now_ns),
        }
    }

    /// Sends copies of the first packets, as far as there is room; returns their number.
    #[inline]
    pub fn copy_out(&mut self, packets: &[Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        match self {
            Self::Socket(queue) => queue.copy_out(packets, frames),
            Self::Xdp(queue) => queue.copy_out(packets, frames),
            Self::Device(queue) => {
                let (copies, copied) = copies(packets, frames);
                let sent = queue.tx_burst(&copies[..copied], frames, now_ns);
                frames.free_packets(&copies[sent..copied]);
                sent
            }
        }
    }

    /// Periodic work. Called a few times a second.
    pub fn housekeeping(&mut self, now_ns: u64) {
        match self {
            Self::Socket(queue) => queue.housekeeping(now_ns),
            Self::Xdp(queue) => queue.housekeeping(),
            Self::Device(queue) => queue.housekeeping(now_ns),
        }
    }

    /// Packets that arrived and found no room.
    pub fn overruns(&self) -> u64 {
        match self {
            Self::Socket(queue) => queue.counters().overruns,
            Self::Xdp(queue) => queue.counters().overruns,
            Self::Device(_) => 0,
        }
    }

    /// Whether the program is connected, if memory is shared. May make system calls.
    pub fn is_connected(&self) -> bool {
        match self {
            Self::Socket(_) | Self::Xdp(_) => true,
            Self::Device(queue) => queue.is_up(),
        }
    }
}

/// Copies packets to new frames, as far as there are any.
fn copies(packets: &[Packet], frames: &mut FrameCache) -> ([Packet; BURST], usize) {
    let (mut fresh, mut copies) = ([0; BURST], [Packet::default(); BURST]);
    let had = frames.alloc(&mut fresh[..packets.len().min(BURST)]);
    let mut bytes = [0; 2048];
    for ((copy, packet), frame) in copies.iter_mut().zip(packets).zip(&fresh[..had]) {
        *copy = Packet { frame: *frame, ..*packet };
        for at in (0..packet.len).step_by(bytes.len()) {
            let part = &mut bytes[..usize::from(packet.len - at).min(2048)];
            frames.arena().read(packet.frame, packet.offset + at, part);
            frames.arena().write(copy.frame, copy.offset + at, part);
        }
    }
    (copies, had)
}

/// Opens a device that listens on a socket. `of` makes its name unique.
///
/// # Errors
/// The fault and its remedy.
pub fn device(via: Via, socket: &Path, of: (u16, usize), frames: &FramePool) -> Result<DpdkQueue, String> {
    let (nf, side) = of;
    let path = socket.display();
    let devargs = match via {
        Via::VhostUser => format!("net_vhost_sluice{nf}_{side},iface={path}"),
        _ => format!("net_memif_sluice{nf}_{side},role=server,id=0,socket={path},socket-abstract=no"),
    };
    dpdk::open_one(&devargs, frames)
}
