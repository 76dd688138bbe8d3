//! DPDK devices whose packet buffers are the frames of Sluice's arena.
//!
//! **Problem.** A device driver needs mbufs: headers with pointers, reference counts and a free
//! list, which no NF may ever write. The arena holds only packet bytes, and every NF can write all
//! of it.
//!
//! **Terms.** A *frame* is a slot of the arena, named by its number. An *mbuf* is DPDK's header of
//! a buffer. [`Eal`] is DPDK's environment, one per process. A [`MbufPool`] is the memory pool over
//! an arena, a [`Device`] a NIC or a virtual device.
//!
//! **Approach.** The arena is registered as external memory, under an mbuf pool with pinned
//! buffers: each mbuf has one frame for good. mbufs lie in DPDK's own memory, private to the
//! manager. Frame → mbuf is a table look-up, mbuf → frame a multiplication. C code (`shim.c`) wraps
//! DPDK's inline functions, a burst a call; this is its safe interface. Sent frames return to the
//! pool by themselves.
//!
//! **Limits.** One process, one EAL start, one pool for each arena. A packet that does not fit in
//! one frame is dropped and counted. All offloads are off: VLAN tags stay in the packet, checksums
//! are unchanged. PCI devices need an IOMMU (`vfio-pci`) or a driver of their own kind (mlx5),
//! since all addresses are virtual. Devices that refuse external memory (net_af_xdp) do not work.
//!
//! Without the feature `dpdk` all exists, but [`Eal::init`] returns [`DpdkError::NotBuilt`].
//!
//! # Rules for unsafe code
//! The C functions trust their caller for pointers, port and queue numbers, and for one thread at a
//! time per queue. So a [`Queue`] is the only way to a queue and is called by `&mut`. A queue holds
//! its device, a device its pool, a pool the arena and the EAL, so that each outlives what was made
//! from it. C code checks frames, offsets and lengths of each packet.

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
pub use face::{Device, Eal, MbufPool, PoolThread, Queue};
pub use forecast::look_at;
pub use options::{DeviceOptions, EalOptions, is_same_device};

pub use sluice_shm::arena::Packet;

/// Whether this build has DPDK.
pub const BUILT_IN: bool = cfg!(feature = "dpdk");

/// Packets that a queue dropped, by reason.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drops {
    /// Received packets that do not fit in one frame; raise `memory.packet_bytes`.
    pub rx_too_long: u64,
    /// Received packets in a foreign buffer: an error of the driver.
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
    /// Packets that arrived damaged.
    pub rx_errors: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Number of packets that found no free frame.
    pub rx_no_frame: u64,
}

/// State of a device's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Whether the link is up.
    pub up: bool,
    /// Its speed in Mbit/s, as reported by the driver.
    pub mbps: u32,
}
