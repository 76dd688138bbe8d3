//! The interface without DPDK: nothing can be made, so nothing can be called.

use std::convert::Infallible;
use std::marker::PhantomData;

use sluice_shm::arena::Arena;

use crate::{DeviceOptions, DpdkError, Drops, EalOptions, Link, Packet, Stats};

/// DPDK's environment.
#[derive(Debug, Clone)]
pub struct Eal(Infallible);

impl Eal {
    /// Reports that there is no DPDK.
    ///
    /// # Errors
    /// [`DpdkError::NotBuilt`], always.
    pub fn init(_options: &EalOptions) -> Result<Self, DpdkError> {
        Err(DpdkError::NotBuilt)
    }

    /// Gives the calling thread a cache of free mbufs. Cannot be called: there is no [`Eal`].
    pub fn enter_thread(&self) -> Result<PoolThread, DpdkError> {
        match self.0 {}
    }

    /// Reports that there is no DPDK.
    pub fn version() -> String {
        "none (built without DPDK)".into()
    }
}

/// The memory pool over the arena.
#[derive(Debug, Clone)]
pub struct MbufPool(Infallible);

impl MbufPool {
    /// Makes the pool. Cannot be called: there is no [`Eal`].
    pub fn over(eal: &Eal, _arena: &Arena) -> Result<Self, DpdkError> {
        match eal.0 {}
    }

    /// Makes the pool of one of several arenas. Cannot be called: there is no [`Eal`].
    pub fn beside(eal: &Eal, _arena: &Arena, _shift: u32) -> Result<Self, DpdkError> {
        match eal.0 {}
    }

    /// The arena that the frames lie in.
    pub fn arena(&self) -> &Arena {
        match self.0 {}
    }

    /// Takes free frames.
    pub fn take(&self, _frames: &mut [u32]) -> usize {
        match self.0 {}
    }

    /// Gives frames back.
    pub fn put(&self, _frames: &[u32]) {
        match self.0 {}
    }

    /// Free frames.
    pub fn available(&self) -> u32 {
        match self.0 {}
    }

    /// Name of DPDK's free list behind the pool.
    pub fn kind(&self) -> String {
        match self.0 {}
    }

    /// Gives the calling thread a cache of free mbufs. Cannot be called: there is no pool.
    pub fn enter_thread(&self) -> Result<PoolThread, DpdkError> {
        match self.0 {}
    }
}

/// The calling thread has a cache of free mbufs while this lives.
#[derive(Debug)]
pub struct PoolThread(#[allow(dead_code)] Infallible, #[allow(dead_code)] PhantomData<*const ()>);

/// An open device.
#[derive(Debug, Clone)]
pub struct Device(Infallible);

impl Device {
    /// Opens and starts a device. Cannot be called: there is no [`MbufPool`].
    pub fn open(pool: &MbufPool, _devargs: &str, _options: &DeviceOptions) -> Result<(Self, Vec<Queue>), DpdkError> {
        match pool.0 {}
    }

    /// Name.
    pub fn name(&self) -> &str {
        match self.0 {}
    }

    /// Name of its driver.
    pub fn driver(&self) -> &str {
        match self.0 {}
    }

    /// Descriptors of each queue.
    pub fn descriptors(&self) -> u16 {
        match self.0 {}
    }

    /// Whether the device itself spreads flows over its queues.
    pub fn has_rss(&self) -> bool {
        match self.0 {}
    }

    /// The device's counters.
    pub fn stats(&self) -> Stats {
        match self.0 {}
    }

    /// State of the link.
    pub fn link(&self) -> Link {
        match self.0 {}
    }
}

/// One queue of a device.
#[derive(Debug)]
pub struct Queue(Infallible);

impl Queue {
    /// The device.
    pub fn device(&self) -> &Device {
        match self.0 {}
    }

    /// Number of the queue.
    pub fn index(&self) -> u16 {
        match self.0 {}
    }

    /// Packets that this queue dropped.
    pub fn drops(&self) -> Drops {
        match self.0 {}
    }

    /// Receives packets.
    pub fn rx_burst(&mut self, _out: &mut [Packet]) -> usize {
        match self.0 {}
    }

    /// Sends packets.
    pub fn tx_burst(&mut self, _packets: &[Packet]) -> usize {
        match self.0 {}
    }
}
