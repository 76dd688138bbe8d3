//! A burst of packets, and a packet in its frame, as a handler sees them.
//!
//! # Why slices are sound
//! A frame lies in memory that other processes map. The manager gives a frame to one NF until the
//! NF returns it, so among honest processes the slice of a packet is exclusive. The library checks
//! once, when it takes a burst in, that every descriptor lies inside its frame, and trusts the
//! manager for the rest. A hostile NF of the same tenant could write to it, because all NFs of a
//! tenant map its whole arena; but packet bytes are plain data (any value is valid), memory safety
//! does not depend on them, and the library's state is elsewhere. A handler must not depend on them
//! either: read a length once, check it, use the copy.

use std::fmt;
use std::marker::PhantomData;

use sluice_shm::arena::Arena;
use sluice_shm::descriptor::{Descriptor, Verdict as RawVerdict, flags};

/// Number of a port, from [`crate::Context::port`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

/// Number of a service, from [`crate::Context::service`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u16);

/// What an NF wants done with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verdict {
    /// To the next hop of its chain. Every packet starts with this.
    #[default]
    Next,
    /// Drop it.
    Drop,
    /// Out of a port.
    ToPort(PortId),
    /// To a service; the packet leaves its chain.
    ToService(ServiceId),
}

impl Verdict {
    /// The verdict of a descriptor. An invalid number, which the library never writes, is `Next`.
    pub(crate) fn of(descriptor: &Descriptor) -> Self {
        match RawVerdict::from_raw(descriptor.verdict) {
            None | Some(RawVerdict::Next) => Self::Next,
            Some(RawVerdict::Drop) => Self::Drop,
            Some(RawVerdict::ToPort) => Self::ToPort(PortId(descriptor.arg)),
            Some(RawVerdict::ToService) => Self::ToService(ServiceId(descriptor.arg)),
        }
    }
}

/// The frame has no room, or the packet is too short (one byte must remain).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the frame has no room for that, or the packet is too short for it")]
pub struct NoRoom;

/// A packet in its frame, as long as the burst that it came in. It begins with its Ethernet header.
/// [`push`](Self::push) and [`append`](Self::append) take room before it (headroom, 128 bytes in a
/// fresh frame) and behind it; [`pull`](Self::pull) and [`trim`](Self::trim) give it back.
pub struct Packet<'a> {
    descriptor: &'a mut Descriptor,
    /// First byte of the frame.
    frame: *mut u8,
    stride: u32,
    bytes: PhantomData<&'a mut [u8]>,
}

#[allow(clippy::should_implement_trait)] // next and drop are this field's words, and neither is the trait's method
impl<'a> Packet<'a> {
    /// # Safety
    /// The descriptor lies in a frame of `stride` bytes that starts at `frame`, and no other
    /// reference into that frame exists in this process for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn new(descriptor: &'a mut Descriptor, frame: *mut u8, stride: u32) -> Self {
        Self { descriptor, frame, stride, bytes: PhantomData }
    }

    #[inline(always)]
    fn at(&self) -> *mut u8 {
        // SAFETY: offset lies in the frame, as new() requires and each change of it keeps.
        unsafe { self.frame.add(self.descriptor.offset as usize) }
    }

    /// The packet's bytes.
    #[inline(always)]
    pub fn data(&self) -> &[u8] {
        // SAFETY: offset and len lie in the frame (as new() requires); exclusive as argued above.
        unsafe { std::slice::from_raw_parts(self.at(), self.descriptor.len as usize) }
    }

    /// The packet's bytes, to change in place.
    #[inline(always)]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as data(); &mut self makes it the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.at(), self.descriptor.len as usize) }
    }

    /// Length in bytes, never 0.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.descriptor.len as usize
    }

    /// Bytes that [`push`](Self::push) can still add.
    #[inline(always)]
    pub fn headroom(&self) -> usize {
        self.descriptor.offset as usize
    }

    /// Bytes that [`append`](Self::append) can still add.
    #[inline(always)]
    pub fn tailroom(&self) -> usize {
        self.stride as usize - self.descriptor.offset as usize - self.descriptor.len as usize
    }

    /// Adds `n` bytes at the front and returns them, with whatever they held before.
    ///
    /// # Errors
    /// [`NoRoom`] if there are fewer than `n` bytes of headroom; nothing changes.
    #[inline]
    pub fn push(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        if n > self.headroom() {
            return Err(NoRoom);
        }
        self.descriptor.offset -= n as u16;
        self.descriptor.len += n as u16;
        Ok(&mut self.data_mut()[..n])
    }

    /// Takes `n` bytes off the front.
    ///
    /// # Errors
    /// [`NoRoom`] if no byte would remain; nothing changes.
    #[inline]
    pub fn pull(&mut self, n: usize) -> Result<(), NoRoom> {
        if n >= self.len() {
            return Err(NoRoom);
        }
        self.descriptor.offset += n as u16;
        self.descriptor.len -= n as u16;
        Ok(())
    }

    /// Adds `n` bytes at the end and returns them, with whatever they held before.
    ///
    /// # Errors
    /// [`NoRoom`] if the frame has fewer than `n` bytes behind the packet; nothing changes.
    #[inline]
    pub fn append(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        if n > self.tailroom() {
            return Err(NoRoom);
        }
        let old = self.len();
        self.descriptor.len += n as u16;
        Ok(&mut self.data_mut()[old..])
    }

    /// Takes `n` bytes off the end.
    ///
    /// # Errors
    /// [`NoRoom`] if no byte would remain; nothing changes.
    #[inline]
    pub fn trim(&mut self, n: usize) -> Result<(), NoRoom> {
        if n >= self.len() {
            return Err(NoRoom);
        }
        self.descriptor.len -= n as u16;
        Ok(())
    }

    /// Verdict: to the next hop of its chain. The default.
    #[inline(always)]
    pub fn next(&mut self) {
        self.descriptor.verdict = RawVerdict::Next as u8;
    }

    /// Verdict: drop it.
    #[inline(always)]
    pub fn drop(&mut self) {
        self.descriptor.verdict = RawVerdict::Drop as u8;
    }

    /// Verdict: out of `port`.
    #[inline(always)]
    pub fn to_port(&mut self, port: PortId) {
        self.descriptor.verdict = RawVerdict::ToPort as u8;
        self.descriptor.arg = port.0;
    }

    /// Verdict: to `service`, off its chain; a later `Next` sends it to the chain's egress port.
    #[inline(always)]
    pub fn to_service(&mut self, service: ServiceId) {
        self.descriptor.verdict = RawVerdict::ToService as u8;
        self.descriptor.arg = service.0;
    }

    /// Sets any verdict.
    #[inline]
    pub fn set_verdict(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Next => self.next(),
            Verdict::Drop => self.drop(),
            Verdict::ToPort(port) => self.to_port(port),
            Verdict::ToService(service) => self.to_service(service),
        }
    }

    /// The current verdict.
    #[inline]
    pub fn verdict(&self) -> Verdict {
        Verdict::of(self.descriptor)
    }

    /// Number of the packet's chain; its name is in [`crate::Context::chain_name`].
    #[inline(always)]
    pub fn chain(&self) -> u16 {
        self.descriptor.chain
    }

    /// Number of the port where the packet entered.
    #[inline(always)]
    pub fn ingress(&self) -> u16 {
        self.descriptor.ingress
    }

    /// Whether it was an IP fragment when it came in, the first one included.
    #[inline(always)]
    pub fn is_fragment(&self) -> bool {
        self.descriptor.flags & flags::FRAGMENT != 0
    }

    /// Whether it was IPv4 or IPv6 when it came in.
    #[inline(always)]
    pub fn is_ip(&self) -> bool {
        self.descriptor.flags & flags::NON_IP == 0
    }
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet")
            .field("len", &self.len())
            .field("chain", &self.chain())
            .field("ingress", &self.ingress())
            .field("verdict", &self.verdict())
            .finish_non_exhaustive()
    }
}

/// Up to 32 packets that are handled together, each with verdict `Next` at first.
///
/// ```
/// # use sluice_nf::{Burst, Handler};
/// struct OnlyIp;
/// impl Handler for OnlyIp {
///     fn burst(&mut self, burst: &mut Burst<'_>) {
///         for mut packet in burst.iter_mut() {
///             if !packet.is_ip() {
///                 packet.drop();
///             }
///         }
///     }
/// }
/// ```
pub struct Burst<'a> {
    descriptors: &'a mut [Descriptor],
    arena: &'a Arena,
    now_ns: u64,
    /// Whether the next iteration fetches packets as it goes.
    fetching: bool,
}

impl<'a> Burst<'a> {
    /// A burst that was received at `now_ns`, with verdict `Next` for every packet.
    ///
    /// # Safety
    /// Every packet lies in its frame. The descriptors name frames of this NF alone, each once, and
    /// no other reference into them exists.
    #[inline(always)]
    pub(crate) unsafe fn new(arena: &'a Arena, descriptors: &'a mut [Descriptor], now_ns: u64) -> Self {
        Self { descriptors, arena, now_ns, fetching: false }
    }

    /// Number of packets.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// Whether there are no packets. The library calls no handler with none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.descriptors.is_empty()
    }

    /// Time at which the burst was received, in nanoseconds of CLOCK_MONOTONIC.
    #[inline(always)]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Fetches the first cache line of every packet: some now, each other one during the next
    /// [`Burst::iter_mut`], a few packets ahead; a core cannot fetch all at once. Worth its cost if
    /// another core wrote the headers and the handler does much per packet. A handler that does not
    /// read packets must not call it.
    #[inline]
    pub fn prefetch(&mut self) {
        for descriptor in self.descriptors.iter().take(FETCHED_AHEAD) {
            self.arena.prefetch(descriptor.frame, descriptor.offset);
        }
        self.fetching = true;
    }

    /// Packet number `index`, from 0.
    #[inline(always)]
    pub fn get(&mut self, index: usize) -> Option<Packet<'_>> {
        let descriptor = self.descriptors.get_mut(index)?;
        Some(packet(self.arena, descriptor))
    }

    /// The packets, in order.
    #[inline(always)]
    pub fn iter_mut(&mut self) -> IterMut<'_> {
        let ahead = if std::mem::take(&mut self.fetching) { FETCHED_AHEAD } else { usize::MAX };
        IterMut { descriptors: self.descriptors.iter_mut(), arena: self.arena, ahead }
    }

    /// The descriptors as they are, for the library's other interfaces.
    pub(crate) fn descriptors(&mut self) -> &mut [Descriptor] {
        self.descriptors
    }

    pub(crate) fn arena(&self) -> &'a Arena {
        self.arena
    }
}

/// The packet of a descriptor of a burst.
#[inline(always)]
fn packet<'a>(arena: &'a Arena, descriptor: &'a mut Descriptor) -> Packet<'a> {
    let stride = arena.geometry().stride;
    // new()'s caller guaranteed that the frame is one of the arena's.
    let frame = arena.zero().wrapping_add(descriptor.frame as usize * stride as usize);
    // SAFETY: new()'s caller guaranteed that the packet lies in its frame, which is this burst's
    // alone; the borrow of the descriptor excludes a second Packet.
    unsafe { Packet::new(descriptor, frame, stride) }
}

impl fmt::Debug for Burst<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Burst").field("len", &self.len()).field("now_ns", &self.now_ns).finish_non_exhaustive()
    }
}

impl<'b> IntoIterator for &'b mut Burst<'_> {
    type Item = Packet<'b>;
    type IntoIter = IterMut<'b>;

    fn into_iter(self) -> IterMut<'b> {
        self.iter_mut()
    }
}

/// Packets by which [`Burst::prefetch`] is ahead: as many lines as a core fetches at a time.
const FETCHED_AHEAD: usize = 8;

/// The packets of a burst, in order.
pub struct IterMut<'a> {
    descriptors: std::slice::IterMut<'a, Descriptor>,
    /// How many packets ahead one is fetched.
    ahead: usize,
    arena: &'a Arena,
}

impl<'a> Iterator for IterMut<'a> {
    type Item = Packet<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Packet<'a>> {
        if let Some(later) = self.descriptors.as_slice().get(self.ahead) {
            self.arena.prefetch(later.frame, later.offset);
        }
        let descriptor = self.descriptors.next()?;
        Some(packet(self.arena, descriptor))
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.descriptors.size_hint()
    }
}

impl ExactSizeIterator for IterMut<'_> {}
