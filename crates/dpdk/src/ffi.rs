//! The declarations of shim.h. The layouts are asserted here and in shim.c.

use std::ffi::{c_char, c_int, c_void};

use crate::{Drops, Packet, Stats};

/// `SLUICE_BURST`.
pub const BURST: usize = sluice_shm::BURST;

#[repr(C)]
pub struct DeviceLimits {
    pub port: u16,
    pub max_rx_queues: u16,
    pub max_tx_queues: u16,
    pub min_mtu: u16,
    pub max_mtu: u16,
    pub can_rss: u16,
    pub driver: [u8; 64],
}

#[repr(C)]
pub struct DeviceSetup {
    pub rx_queues: u16,
    pub tx_queues: u16,
    pub descriptors: u16,
    pub mtu: u16,
    pub rss: u16,
    pub stage: u16,
}

/// The shim's opaque pool.
#[repr(C)]
pub struct RawPool {
    _private: [u8; 0],
}

const _: () = {
    assert!(BURST == 32 && sluice_shm::arena::HEADROOM == 128, "as in shim.h");
    assert!(size_of::<Packet>() == 8 && std::mem::offset_of!(Packet, offset) == 4 && std::mem::offset_of!(Packet, len) == 6);
    assert!(size_of::<Drops>() == 24 && size_of::<Stats>() == 64);
    assert!(size_of::<DeviceLimits>() == 76 && size_of::<DeviceSetup>() == 12);
};

// SAFETY: these are the functions of shim.h, with the types of this module, whose sizes are checked
// above and there. Those marked `safe` follow no pointer.
unsafe extern "C" {
    pub fn sluice_eal_init(argc: c_int, argv: *mut *mut c_char, verbose: c_int) -> c_int;
    pub fn sluice_eal_cleanup() -> c_int;
    pub fn sluice_log_take(out: *mut c_char, len: usize) -> usize;
    pub safe fn sluice_version() -> *const c_char;
    pub safe fn sluice_runtime_dir() -> *const c_char;
    pub safe fn sluice_plugin_dir() -> *const c_char;

    pub safe fn sluice_thread_enter() -> c_int;
    pub safe fn sluice_thread_leave();

    pub fn sluice_pool_create(
        out: *mut *mut RawPool,
        base: *mut c_void,
        mapped: usize,
        page: usize,
        first: u32,
        frames: u32,
        stride: u32,
        shift: u32,
    ) -> c_int;
    pub fn sluice_pool_free(pool: *mut RawPool);
    pub fn sluice_pool_take(pool: *mut RawPool, frames: *mut u32, n: u32) -> u32;
    pub fn sluice_pool_put(pool: *mut RawPool, frames: *const u32, n: u32);
    pub fn sluice_pool_available(pool: *const RawPool) -> u32;
    pub fn sluice_pool_ops(pool: *const RawPool) -> *const c_char;

    pub fn sluice_device_probe(devargs: *const c_char, name: *const c_char, out: *mut DeviceLimits) -> c_int;
    pub fn sluice_device_start(pool: *const RawPool, port: u16, setup: *mut DeviceSetup) -> c_int;
    pub fn sluice_device_promiscuous(port: u16, on: c_int) -> c_int;
    pub fn sluice_device_close(port: u16);
    pub fn sluice_device_stats(port: u16, out: *mut Stats) -> c_int;
    pub fn sluice_device_link(port: u16, mbps: *mut u32) -> c_int;

    pub fn sluice_rx_burst(pool: *const RawPool, port: u16, queue: u16, out: *mut Packet, n: u16, drops: *mut Drops) -> u16;
    pub fn sluice_tx_burst(port: u16, queue: u16, packets: *const Packet, n: u16, drops: *mut Drops) -> u16;
}
