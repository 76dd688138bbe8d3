//! Runs a handler without a manager, on private memory, for the unit tests of an NF.
//!
//! ```
//! use sluice_nf::{Burst, Handler, Verdict, harness::Harness};
//!
//! struct NoShort;
//! impl Handler for NoShort {
//!     fn burst(&mut self, burst: &mut Burst<'_>) {
//!         for mut packet in burst.iter_mut() {
//!             if packet.len() < 60 {
//!                 packet.drop();
//!             }
//!         }
//!     }
//! }
//!
//! let mut nf = Harness::new(NoShort);
//! assert_eq!(nf.send(&[0; 64]).verdict, Verdict::Next);
//! assert_eq!(nf.send(&[0; 20]).verdict, Verdict::Drop);
//! ```
//! The test moves the clock, from 0, by [`Harness::set_now`] and [`Harness::tick`].

use sluice_shm::BURST;
use sluice_shm::arena::{Arena, Geometry, HEADROOM};
use sluice_shm::descriptor::{Descriptor, flags};
use sluice_shm::memory::SharedMemory;

use crate::handler::Handler;
use crate::header;
use crate::packet::{Burst, PortId, Verdict};

/// What became of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The handler's verdict.
    pub verdict: Verdict,
    /// The packet as the handler left it.
    pub bytes: Vec<u8>,
}

/// A handler and the memory that it works on.
pub struct Harness<H> {
    handler: H,
    arena: Arena,
    _memory: SharedMemory,
    now_ns: u64,
    ingress: u16,
    chain: u16,
}

impl<H: Handler> Harness<H> {
    /// A harness for packets of up to 2,112 bytes behind 128 bytes of headroom, as usual.
    pub fn new(handler: H) -> Self {
        Self::with_packet_bytes(handler, 2112)
    }

    /// A harness with frames that hold packets of `bytes`.
    ///
    /// # Panics
    /// If the kernel gives no memory, or a packet is too large for a frame (from 65,344 bytes).
    pub fn with_packet_bytes(handler: H, bytes: usize) -> Self {
        let geometry = Geometry { first: 0, frames: BURST as u32, stride: Geometry::stride_for(bytes) as u32 };
        let (memory, arena) = Arena::create(geometry, false).expect("a test needs memory");
        Self { handler, arena, _memory: memory, now_ns: 0, ingress: 0, chain: 0 }
    }

    /// The handler.
    pub fn handler(&mut self) -> &mut H {
        &mut self.handler
    }

    /// Sets [`Burst::now_ns`].
    pub fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Sets the ingress port of the next packets.
    pub fn set_ingress(&mut self, port: PortId) {
        self.ingress = port.0;
    }

    /// Sets the chain of the next packets.
    pub fn set_chain(&mut self, chain: u16) {
        self.chain = chain;
    }

    /// Passes one packet to the handler.
    ///
    /// # Panics
    /// If the packet is empty or does not fit a frame.
    pub fn send(&mut self, packet: &[u8]) -> Outcome {
        self.chunk(&[packet]).remove(0)
    }

    /// Passes packets to the handler, in bursts of up to 32.
    ///
    /// # Panics
    /// As [`Harness::send`].
    pub fn burst<P: AsRef<[u8]>>(&mut self, packets: &[P]) -> Vec<Outcome> {
        let packets: Vec<&[u8]> = packets.iter().map(AsRef::as_ref).collect();
        packets.chunks(BURST).flat_map(|chunk| self.chunk(chunk)).collect()
    }

    /// Moves the clock to `now_ns` and calls the handler's tick.
    pub fn tick(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.handler.tick(now_ns);
    }

    /// Calls the handler's state cleaner.
    pub fn clean(&mut self) {
        self.handler.clean();
    }

    fn chunk(&mut self, packets: &[&[u8]]) -> Vec<Outcome> {
        let descriptors = self.give(packets);
        descriptors.iter().map(|d| Outcome { verdict: Verdict::of(d), bytes: self.packet(d) }).collect()
    }

    fn packet(&self, descriptor: &Descriptor) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.read(descriptor, &mut bytes);
        bytes
    }

    /// As [`packet`](Self::packet), in place of what `bytes` holds.
    pub(crate) fn read(&self, descriptor: &Descriptor, bytes: &mut Vec<u8>) {
        bytes.resize(descriptor.len as usize, 0);
        assert!(self.arena.read(descriptor.frame, descriptor.offset, bytes), "a packet never leaves its frame");
    }

    /// Passes one burst to the handler, and leaves the packets where they are.
    pub(crate) fn give<P: AsRef<[u8]>>(&mut self, packets: &[P]) -> Vec<Descriptor> {
        self.give_of_kind(packets, |bytes| match header::parse(bytes).and_then(|h| h.ip) {
            None => flags::NON_IP,
            Some(ip) if ip.fragment.is_some() => flags::FRAGMENT,
            Some(_) => 0,
        })
    }

    /// As [`give`](Self::give), with flags by the caller.
    pub(crate) fn give_of_kind<P: AsRef<[u8]>>(&mut self, packets: &[P], flags: impl Fn(&[u8]) -> u8) -> Vec<Descriptor> {
        let mut descriptors: Vec<Descriptor> =
            packets.iter().zip(0..).map(|(bytes, frame)| self.place(frame, bytes.as_ref(), flags(bytes.as_ref()))).collect();
        let geometry = self.arena.geometry();
        assert!(descriptors.iter().all(|d| geometry.contains(d.frame, d.offset, d.len)), "place() puts every packet in its frame");
        // SAFETY: the harness owns the arena, frames are distinct, and former slices have ended.
        let mut burst = unsafe { Burst::new(&self.arena, &mut descriptors, self.now_ns) };
        self.handler.burst(&mut burst);
        descriptors
    }

    fn place(&self, frame: u32, bytes: &[u8], flags: u8) -> Descriptor {
        assert!(!bytes.is_empty(), "a packet has at least one byte");
        assert!(self.arena.write(frame, HEADROOM as u16, bytes), "the packet fits a frame; see with_packet_bytes");
        Descriptor {
            frame,
            offset: HEADROOM as u16,
            len: bytes.len() as u16,
            chain: self.chain,
            flags,
            ingress: self.ingress,
            ..Default::default()
        }
    }
}
