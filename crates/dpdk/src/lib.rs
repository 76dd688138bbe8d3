//! DPDK devices whose packet buffers are the frames of Sluice's arena.
//!
//! **Problem.** A device driver wants mbufs: headers with pointers, reference counts and a free list, that no NF may ever write.
//! The arena holds packet bytes and nothing else, and every NF can write all of it.
//!
//! **Terms.** A *frame* is a slot of the arena, named by its number. An *mbuf* is DPDK's header of a buffer. [`Eal`] is DPDK's
//! environment, of which a process has one. A [`Pool`] is the memory pool over the arena, a [`Device`] a NIC or a virtual device.
//!
//! **Approach.** The arena is registered as external memory and an mbuf pool is made over it whose buffers are pinned to it: each
//! mbuf has one frame for good. mbufs live in DPDK's own memory, private to the manager. Frame → mbuf is a table look-up, mbuf →
//! frame a multiplication. C code (`shim.c`) wraps DPDK's inline functions, a burst a call; this is its safe face. Frames that
//! a device has sent go back to the pool by themselves.
//!
//! **Limits.** One process, one EAL start, one pool at a time. A packet that does not fit in one frame is dropped and counted.
//! All offloads are off: VLAN tags stay in the packet, checksums are as they came. PCI devices need an IOMMU (`vfio-pci`) or a
//! driver of their own kind (mlx5): addresses are always virtual ones. Devices that refuse external memory (net_af_xdp) do not work.
//!
//! Without the feature `dpdk` everything here exists, and [`Eal::init`] answers [`DpdkError::NotBuilt`].
//!
//! # Rules for unsafe code
//! The C functions trust their caller for pointers, port and queue numbers, and for one thread at a time per queue. Hence: a
//! [`Queue`] is the only way to a queue and is called by `&mut`; a queue holds its device, a device its pool, a pool the arena and the
//! EAL, so that each outlives what was made from it; frames, offsets and lengths are checked in C, a packet at a time.

mod error;
mod forecast;
mod options;

#[cfg(feature = "dpdk")]
mod face;
#[cfg(not(feature = "dpdk"))]
#[path = "absent.rs"]
mod face;
#[cfg(feature = "dpdk")]
mod ffi;
#[cfg(feature = "dpdk")]
mod interface;

pub use error::DpdkError;
pub use face::{Device, Eal, Pool, PoolThread, Queue};
pub use forecast::look_at;
pub use options::{DeviceOptions, EalOptions, is_same_device};

pub use sluice_shm::arena::Packet;

/// Whether this build has DPDK.
pub const BUILT_IN: bool = cfg!(feature = "dpdk");

/// Packets that a queue did not pass on, by reason.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drops {
    /// Received packets that do not fit in one frame; raise `memory.packet_bytes`.
    pub rx_too_long: u64,
    /// Received packets in a buffer that is not of the pool: an error of the driver.
    pub rx_foreign: u64,
    /// Packets to be sent that do not lie in one frame: an error of the caller.
    pub tx_invalid: u64,
}

/// A device's own counters, over all its queues.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Packets in.
    pub rx_packets: u64,
    /// Packets out.
    pub tx_packets: u64,
    /// Bytes in.
    pub rx_bytes: u64,
    /// Bytes out.
    pub tx_bytes: u64,
    /// Packets that found the receive queue full.
    pub rx_missed: u64,
    /// Packets that came in damaged.
    pub rx_errors: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Times that no frame was free for a packet.
    pub rx_no_frame: u64,
}

/// State of a device's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Whether there is one.
    pub up: bool,
    /// Its speed in Mbit/s, as the driver says.
    pub mbps: u32,
}
