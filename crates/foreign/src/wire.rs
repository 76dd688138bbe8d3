//! The manager's end of what leads to a foreign program: an interface whose other end the program has, or memory that is shared with it.
//!
//! # Memory shared by devices of DPDK
//! With `memif` and `vhost-user` the manager opens a device of DPDK for each side (net_memif as server, net_vhost), which listens on a
//! socket in the runtime folder. The program connects, and sends memory of its own along: rings and buffers lie there, and packets are
//! copied between them and frames. No hugepages are needed, neither here nor there. The program gets packets when it has connected at
//! all sides.
//!
//! # Limits
//! DPDK's drivers believe what stands in the shared rings (net_memif more than net_vhost), so such a program is trusted with the manager.
//! Nobody sees how much waits in its rings besides that they are full, and a program that finds them full drops (dpdk-testpmd does), which
//! counts as not come back.

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
    /// A packet socket on an interface.
    Socket(Box<InterfaceQueue>),
    /// A socket of the express data path on one.
    Xdp(Box<XdpQueue>),
    /// A device that shares memory with the program.
    Device(DpdkQueue),
}

impl End {
    /// Whether a packet may be there to be received.
    #[inline]
    pub fn has_packet(&self) -> bool {
        match self {
            Self::Socket(queue) => queue.has_packet(),
            Self::Xdp(queue) => queue.has_packet(),
            Self::Device(_) => true,
        }
    }

    /// How packets that come are noticed.
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

    /// Whether it takes the frames of what it sends: see [`End::hand_out`].
    #[inline]
    pub fn takes_frames(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// Sends the first packets that there is room for, whose frames go with them, and says how many.
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

    /// Sends copies of the first packets that there is room for, and says how many; the frames stay with the caller.
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

    /// Called a few times a second.
    pub fn housekeeping(&mut self, now_ns: u64) {
        match self {
            Self::Socket(queue) => queue.housekeeping(now_ns),
            Self::Xdp(queue) => queue.housekeeping(),
            Self::Device(queue) => queue.housekeeping(now_ns),
        }
    }

    /// Packets that came while there was no room for them.
    pub fn overruns(&self) -> u64 {
        match self {
            Self::Socket(queue) => queue.counters().overruns,
            Self::Xdp(queue) => queue.counters().overruns,
            Self::Device(_) => 0,
        }
    }

    /// Whether the program is there: of shared memory, whether it has connected. May make system calls.
    pub fn is_connected(&self) -> bool {
        match self {
            Self::Socket(_) | Self::Xdp(_) => true,
            Self::Device(queue) => queue.is_up(),
        }
    }
}

/// Copies of packets in fresh frames, as many as there are frames for.
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

/// Opens a device that listens on a socket. `of` makes its name unlike that of any other device.
///
/// # Errors
/// What is wrong, and what to do.
pub fn device(via: Via, socket: &Path, of: (u16, usize), frames: &FramePool) -> Result<DpdkQueue, String> {
    let (nf, side) = of;
    let path = socket.display();
    let devargs = match via {
        Via::VhostUser => format!("net_vhost_sluice{nf}_{side},iface={path}"),
        _ => format!("net_memif_sluice{nf}_{side},role=server,id=0,socket={path},socket-abstract=no"),
    };
    dpdk::open_one(&devargs, frames)
}
