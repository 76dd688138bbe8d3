//! What the manager asks of the kinds of ports and devices.
//!
//! `sluice-ports` implements [`Kinds`], and the daemon hands it to the manager: neither is built
//! again when the other changes.

use std::any::Any;
use std::error::Error;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use sluice_api::config::{Config, Port, Via};
use sluice_shm::arena::Arena;

use crate::frame::{FrameCache, FramePool, Packet};
use crate::link::Link;
use crate::queue::PortQueue;

/// Why a port or device could not be opened, with advice.
pub type Fault = Box<dyn Error + Send + Sync>;

/// A port that was opened.
pub struct OpenPort {
    /// Its queues, each for one packet thread.
    pub queues: Vec<Box<dyn PortQueue>>,
    /// What was opened, for `sluice port list`.
    pub description: String,
    /// Number of the arena that it receives into, if that is fixed.
    pub memory: Option<u8>,
    /// The state of its interface, device or file.
    pub link: Arc<Link>,
}

/// The kinds of ports.
pub trait Kinds: Debug + Send + Sync {
    /// Opens a port. All its errors are found now, before a packet moves.
    ///
    /// # Errors
    /// [`Fault`].
    fn open(&self, port: &Port, arena: &Arena, frames: &FramePool) -> Result<OpenPort, Fault>;

    /// Opens a port again that was closed for another one, which cannot be opened: what it writes
    /// goes on where it ended.
    ///
    /// # Errors
    /// As [`Kinds::open`].
    fn open_again(&self, port: &Port, arena: &Arena, frames: &FramePool) -> Result<OpenPort, Fault>;

    /// Checks what a port would open, without opening it, so that a truncated capture or missing
    /// device is reported before anything starts or changes. `room`: the largest packet, in bytes.
    ///
    /// # Errors
    /// As [`Kinds::open`].
    fn look_at(&self, port: &Port, room: usize) -> Result<(), Fault>;

    /// Checks that a port with memory of its own can use these frames.
    ///
    /// # Errors
    /// As [`Kinds::open`].
    fn look_at_memory(&self, port: &Port, frames: &FramePool) -> Result<(), Fault>;

    /// The interface, device or file of a port, for messages.
    fn uses(&self, port: &Port) -> String;

    /// The MTU of a port's interface, if it has one; asks the system.
    fn mtu(&self, _port: &Port) -> Option<u32> {
        None
    }

    /// The description of a port with these settings, if it is up to them alone.
    fn description(&self, _port: &Port) -> Option<String> {
        None
    }

    /// Whether a port needs the file or device of a former one, which must close before it opens.
    fn share(&self, former: &Port, next: &Port) -> bool;

    /// Starts what devices need for this many frames, if the configuration has devices.
    ///
    /// # Errors
    /// [`Fault`].
    fn devices(&self, config: &Config, frames: u32, arenas_are_huge: bool) -> Result<Option<Arc<dyn Devices>>, Fault>;

    /// Opens the end of a wire, in the namespace of the calling thread.
    ///
    /// # Errors
    /// What failed, and the kernel's error.
    fn wire(&self, options: &WireOptions<'_>) -> Result<Box<dyn WireEnd>, (&'static str, io::Error)>;

    /// Opens a device with one queue that belongs to no port, by its devargs.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    fn device(&self, devargs: &str, frames: &FramePool) -> Result<Box<dyn WireEnd>, Fault>;
}

/// Devices that share packet memory, and their threads.
pub trait Devices: Debug + Send + Sync {
    /// Makes the pool of an arena. A frame's number shifted right by `shift` is its arena's.
    ///
    /// # Errors
    /// [`Fault`] if there is no memory for it.
    fn pool(&self, arena: &Arena, shift: u32) -> Result<Arc<FramePool>, Fault>;

    /// Registers a thread that calls ports; it keeps the result until its end.
    ///
    /// # Errors
    /// [`Fault`] if there are too many.
    fn enter_thread(&self) -> Result<Box<dyn Any>, Fault>;
}

/// An interface as the end of a wire.
#[derive(Debug, Clone, Copy)]
pub struct WireOptions<'a> {
    /// Its name.
    pub interface: &'a str,
    /// The kind of socket.
    pub via: Via,
    /// Packets that may wait in each direction.
    pub slots: u32,
    /// The largest packet on the wire, in bytes.
    pub largest: usize,
    /// The largest packet that fits in a frame, in bytes.
    pub room: usize,
}

/// The manager's end of a way to a program that does not read rings.
pub trait WireEnd: PortQueue + Debug {
    /// Whether there may be a packet to receive.
    fn has_packet(&self) -> bool {
        true
    }

    /// Whether it takes the frames that it sends by [`PortQueue::tx_burst`], and may reuse them
    /// before that returns.
    fn takes_frames(&self) -> bool {
        false
    }

    /// Sends copies of the first packets, as far as there is room, and returns how many. The caller
    /// keeps the frames.
    fn copy_out(&mut self, packets: &[Packet], frames: &mut FrameCache, now_ns: u64) -> usize;

    /// Whether the program is connected. May make system calls.
    fn is_connected(&self) -> bool {
        true
    }
}
