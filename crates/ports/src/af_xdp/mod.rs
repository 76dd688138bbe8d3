//! Kernel interfaces as ports by AF_XDP (the kernel's express data path): packets go between the
//! driver and packet memory, past the kernel's network stack.
//!
//! # Approach
//! A queue's socket has the arena that the port receives into as its memory: a *chunk* is a frame,
//! chunks lie unaligned. Frames that wait to be filled, and those being sent, are the kernel's; the
//! queue knows which. So a packet is copied once by the kernel on its way in and once on its way
//! out, or never where a driver writes to this memory by itself (zero copy), and a burst costs one
//! system call to send and none to receive. A packet of another arena is copied into this one
//! before it is sent.
//!
//! A [redirect](sluice_host::redirect) in the driver (native), or else in the receive path
//! (generic), leads packets to the sockets. It goes with the port, however the daemon ends.
//!
//! # Limits
//! - Each receive queue of the interface has a queue of the port: packets of others would go to the
//!   kernel.
//! - Checksums and segments that a sender leaves to hardware are invisible here. On a veth pair the
//!   other end has to compute them itself: `ethtool -K INTERFACE tx off`.
//! - A frame of 2,048 to 4,096 bytes.
//! - The kernel keeps the pages that the arena had when the port was opened. Holes, which the NFs'
//!   filter refuses, would part them from the arena until the port is opened again.
//! - An interface that is made anew gets new sockets (`watch.rs`), once the former ones are closed
//!   and the frames that the kernel had are back. Its first packets are lost.
//!
//! Source: `Documentation/networking/af_xdp.rst` of Linux.

mod ring;
mod wire;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_shm::arena::{Arena, Geometry};
use sluice_shm::{BURST, CACHE_LINE};

use crate::af_packet;
use crate::error::PortError;
use crate::watch::{self, Failed, Interface, SocketSource, Watched};
use ring::{Rings, bind, go_on_receiving, is_zero_copy, kick, overruns, socket};
use sluice_api::config::AfXdp;
use sluice_api::drops::PortDrop;
use sluice_api::model::PortState;
use sluice_dataplane::frame::{CopyPlace, FrameCache, FramePool, Packet};
use sluice_dataplane::port::OpenPort;
use sluice_dataplane::queue::{Arrivals, PortQueue, QueueCounters};
use sluice_host::link;
use sluice_host::redirect::{Redirect, XdpMode};
pub use wire::XdpQueue;

/// Sizes of a chunk that the kernel accepts, in bytes.
const CHUNKS: std::ops::RangeInclusive<usize> = 2048..=4096;
/// Bytes before a packet that the kernel keeps free in a chunk that it fills.
const KEPT: usize = 256;
/// Longest time in which the kernel frees a queue whose socket was closed.
const FREED: Duration = Duration::from_millis(300);
/// Bits of an address that name the chunk; the others are the offset in it.
const CHUNK_BITS: u32 = 48;

/// A queue of a port.
#[derive(Debug)]
struct Queue {
    /// None while there is no interface, and once it is closed.
    socket: Option<Socket>,
    slots: usize,
    lent: Lent,
    /// Frames that the kernel had of a former socket, to be freed.
    returned: Vec<u32>,
    /// None once it is closed.
    source: Option<SocketSource<Socket>>,
    counters: Option<Arc<QueueCounters>>,
    /// Of the present socket, and of the former ones.
    overruns: [u64; 2],
}

#[derive(Debug)]
struct Socket {
    // Dropped in this order: nothing is sent to a socket that is gone.
    redirect: Arc<Redirect>,
    rings: Rings,
    fd: OwnedFd,
    /// Bytes of the largest packet that the interface takes.
    largest: usize,
    is_zero_copy: bool,
}

impl Socket {
    /// Closes it, and returns when the kernel and the device use none of its memory any more.
    fn close(self) {
        let is_zero_copy = self.is_zero_copy;
        drop(self);
        if is_zero_copy {
            // The kernel has the driver end its queue some time later, and does not say when.
            std::thread::sleep(FREED);
        }
    }
}

/// The frames that the kernel has.
#[derive(Debug)]
struct Lent {
    geometry: Geometry,
    /// Inverse of a frame's cache lines modulo 2⁶⁴: a product instead of a division.
    inverse: u64,
    /// A bit for each frame of the arena.
    bits: Vec<u64>,
    /// Number of those that it may fill, and of those that it sends.
    filling: usize,
    sending: usize,
}

impl Lent {
    fn new(geometry: Geometry) -> Self {
        let lines = u64::from(geometry.stride) / CACHE_LINE as u64;
        // Newton's iteration: three bits are right at first, and twice as many each time.
        let inverse = (0..5).fold(lines, |inverse, _| inverse.wrapping_mul(2u64.wrapping_sub(lines.wrapping_mul(inverse))));
        let bits = vec![0; (geometry.frames as usize).div_ceil(64)];
        Self { geometry, inverse, bits, filling: 0, sending: 0 }
    }

    /// Notes that the kernel gets a frame; returns the kernel's address of it, in bytes.
    fn give(&mut self, frame: u32) -> u64 {
        let number = frame - self.geometry.first;
        self.bits[(number / 64) as usize] |= 1 << (number % 64);
        u64::from(number) * u64::from(self.geometry.stride)
    }

    /// Notes that the kernel returns what lies at an address; returns the frame, and the offset in
    /// it. None if it did not have that frame.
    fn take(&mut self, address: u64) -> Option<(u32, u16)> {
        let (chunk, offset) = (address & ((1 << CHUNK_BITS) - 1), address >> CHUNK_BITS);
        // The kernel names a chunk by its beginning; others give a number that is too large.
        let number = (chunk / CACHE_LINE as u64).wrapping_mul(self.inverse);
        let (word, bit) = (self.bits.get_mut(usize::try_from(number / 64).ok()?)?, 1 << (number % 64));
        let had = *word & bit != 0;
        *word &= !bit;
        had.then_some((self.geometry.first + number as u32, offset as u16))
    }

    /// All of them, which come back when there is no socket any more.
    fn take_all(&mut self) -> Vec<u32> {
        (self.filling, self.sending) = (0, 0);
        let none = vec![0; self.bits.len()];
        let words = std::mem::replace(&mut self.bits, none).into_iter().zip(0u32..);
        let of = |(word, at): (u64, u32)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit);
        words.flat_map(of).map(|number| self.geometry.first + number).collect()
    }
}

impl Queue {
    fn has_link(&self) -> bool {
        self.socket.is_some() && self.source.as_ref().is_some_and(|source| source.state() == PortState::Up)
    }

    /// Takes the sockets that come, and parts with those that go.
    fn renew(&mut self) {
        while let Some(next) = self.source.as_ref().and_then(SocketSource::next) {
            if let (Some(former), Some(source)) = (self.socket.take(), &self.source) {
                // The kernel may write to its frames until it is closed.
                debug_assert!(next.is_none(), "a socket comes when the former one is closed");
                source.give_back(former);
                self.overruns = [0, self.overruns[0] + self.overruns[1]];
                continue;
            }
            self.returned.extend(self.lent.take_all());
            self.socket = next;
        }
    }

    #[cold]
    fn free_returned(&mut self, frames: &mut FrameCache) {
        self.returned.drain(..).for_each(|frame| frames.free(frame));
    }

    /// Gives the kernel frames to fill.
    fn refill(&mut self, frames: &mut FrameCache) {
        let Some(socket) = &mut self.socket else { return };
        let before = self.lent.filling;
        while self.lent.filling + BURST <= self.slots {
            let mut fresh = [0; BURST];
            let n = frames.alloc(&mut fresh);
            if n == 0 || !self.lent.geometry.has(fresh[0]) {
                // Of another arena than the port was opened with: it receives nothing.
                fresh[..n].iter().for_each(|frame| frames.free(*frame));
                break;
            }
            fresh[..n].iter().for_each(|frame| socket.rings.fill.put(self.lent.give(*frame)));
            self.lent.filling += n;
        }
        if self.lent.filling > before {
            socket.rings.fill.publish();
        }
    }

    /// Frees frames that were sent.
    fn collect(&mut self, frames: &mut FrameCache) {
        let Some(socket) = &mut self.socket else { return };
        let done = socket.rings.completion.waiting();
        if done == 0 {
            return;
        }
        for _ in 0..done {
            let address: u64 = socket.rings.completion.take();
            self.lent.take(address).into_iter().for_each(|(frame, _)| frames.free(frame));
        }
        self.lent.sending = self.lent.sending.saturating_sub(done as usize);
        socket.rings.completion.give_back();
    }

    /// Drops packets that cannot leave without a link, and returns how many.
    #[cold]
    fn drop_without_link(&self, packets: &[Packet], frames: &mut FrameCache) -> usize {
        if let Some(counters) = &self.counters {
            let first = packets.first().into_iter();
            first.for_each(|packet| counters.lost_packets.keep_packet(PortDrop::NoLink, frames.arena(), packet));
            counters.no_link.add(packets.len() as u64);
            counters.lost_bytes.add(packets.iter().map(|packet| u64::from(packet.len)).sum());
        }
        frames.free_packets(packets);
        packets.len()
    }
}

#[cold]
fn drop_as_too_large(counters: Option<&QueueCounters>, packet: &Packet, frames: &mut FrameCache) {
    if let Some(counters) = counters {
        counters.lost_packets.keep_packet(PortDrop::Mtu, frames.arena(), packet);
        counters.mtu.add(1);
        counters.lost_bytes.add(u64::from(packet.len));
    }
    frames.free(packet.frame);
}

impl PortQueue for Queue {
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        if !self.returned.is_empty() {
            self.free_returned(frames);
        }
        self.collect(frames);
        let Some(socket) = &mut self.socket else { return 0 };
        let came = out.len().min(BURST).min(socket.rings.rx.waiting() as usize);
        let mut n = 0;
        for _ in 0..came {
            let received: libc::xdp_desc = socket.rings.rx.take();
            if let Some((frame, offset)) = self.lent.take(received.addr) {
                out[n] = Packet { frame, offset, len: received.len as u16 };
                n += 1;
            }
        }
        if came > 0 {
            socket.rings.rx.give_back();
        }
        self.lent.filling = self.lent.filling.saturating_sub(came);
        let had = self.lent.filling;
        self.refill(frames);
        if came == 0 || self.lent.filling > had {
            self.socket.iter().for_each(|socket| go_on_receiving(&socket.fd, &socket.rings.fill));
        }
        n
    }

    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        if !self.has_link() {
            return self.drop_without_link(packets, frames);
        }
        self.collect(frames);
        let mut taken = 0;
        for some in packets.chunks(BURST) {
            let mut burst = [Packet::default(); BURST];
            let burst = &mut burst[..some.len().min(self.slots - self.lent.sending)];
            burst.copy_from_slice(&some[..burst.len()]);
            let Some(socket) = &mut self.socket else { break };
            let n = frames.bring(burst, frames.arena_of(self.lent.geometry.first), CopyPlace::Crossing, |_, _| {});
            for packet in &burst[..n] {
                if usize::from(packet.len) > socket.largest {
                    drop_as_too_large(self.counters.as_deref(), packet, frames);
                    continue;
                }
                let addr = self.lent.give(packet.frame) | u64::from(packet.offset) << CHUNK_BITS;
                socket.rings.tx.put(libc::xdp_desc { addr, len: packet.len.into(), options: 0 });
                self.lent.sending += 1;
            }
            socket.rings.tx.publish();
            kick(&socket.fd, &socket.rings.tx, n);
            taken += n;
            if n < some.len() {
                break;
            }
        }
        taken
    }

    fn count_with(&mut self, counters: &Arc<QueueCounters>) {
        self.counters = Some(counters.clone());
    }

    fn arrivals(&self) -> Arrivals<'_> {
        match &self.socket {
            Some(socket) if self.lent.filling > 0 => Arrivals::Readable(socket.fd.as_fd()),
            None if self.returned.is_empty() => Arrivals::Never,
            _ => Arrivals::Looked,
        }
    }

    fn housekeeping(&mut self, _now_ns: u64) {
        if let Some(socket) = &self.socket {
            kick(&socket.fd, &socket.rings.tx, 2 * BURST);
            self.overruns[0] = overruns(&socket.fd).unwrap_or(self.overruns[0]);
        }
        self.renew();
    }

    fn leftover(&mut self) -> Vec<u32> {
        // The kernel writes to frames as long as there is a socket.
        self.socket.take().into_iter().for_each(Socket::close);
        self.source.take().iter().for_each(SocketSource::end);
        let mut frames = std::mem::take(&mut self.returned);
        frames.extend(self.lent.take_all());
        frames
    }

    fn overruns(&self) -> u64 {
        self.overruns[0] + self.overruns[1]
    }

    fn details(&self) -> Vec<(&'static str, f64)> {
        let lent = self.lent.filling + self.lent.sending + self.returned.len();
        let mut details = vec![("overruns", self.overruns() as f64), ("lent", lent as f64)];
        if let Some(socket) = &self.socket {
            details.push(("in_driver", f64::from(socket.redirect.mode() == XdpMode::Native)));
            details.push(("zero_copy", f64::from(socket.is_zero_copy)));
        }
        details
    }
}

/// How a port's sockets are opened.
#[derive(Debug)]
struct Sockets {
    settings: AfXdp,
    queues: u32,
    arena: Arena,
    /// The frames that are registered.
    geometry: Geometry,
}

impl Sockets {
    /// Opens them in the calling thread's namespace.
    fn open_in(&self, mode: XdpMode) -> Result<(Vec<Socket>, OwnedFd), Failed> {
        let settings = &self.settings;
        let index = link::index(&settings.interface).map_err(|error| ("find", error))?;
        let mtu = link::mtu(&settings.interface).map_err(|error| ("ask for the MTU of", error))?;
        let none = || ("register packet memory for", io::ErrorKind::NotFound.into());
        let memory = libc::xdp_umem_reg {
            addr: self.arena.frame_ptr(self.geometry.first).ok_or_else(none)? as u64,
            len: self.geometry.bytes() as u64,
            chunk_size: self.geometry.stride,
            headroom: 0,
            flags: libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
            tx_metadata_len: 0,
        };
        let mut sockets = Vec::new();
        for queue in 0..self.queues {
            let fd = socket().map_err(|error| ("open an AF_XDP socket on", error))?;
            let rings = Rings::over(&fd, &memory, slots_of(settings))?;
            // Without a flag, the kernel copies where the driver does not.
            let flags = if mode == XdpMode::Native { 0 } else { libc::XDP_COPY };
            bind_when_free(&fd, index, queue, flags).map_err(|error| ("bind an AF_XDP socket to", error))?;
            sockets.push((fd, rings));
        }
        let fds: Vec<_> = sockets.iter().map(|(fd, _)| fd.as_fd()).collect();
        let redirect = Arc::new(Redirect::to(&fds, index, mode)?);
        let probe = af_packet::socket::probe(index, settings.promiscuous)?;
        let largest = mtu as usize + af_packet::OVERHEAD;
        let socket = |(fd, rings)| {
            let is_zero_copy = is_zero_copy(&fd);
            Socket { redirect: redirect.clone(), rings, fd, largest, is_zero_copy }
        };
        Ok((sockets.into_iter().map(socket).collect(), probe))
    }
}

impl watch::Sockets for Sockets {
    type Socket = Socket;

    fn open(&self, _nth: u16) -> Result<(Vec<Socket>, OwnedFd), Failed> {
        check(self.queues, &self.settings, self.geometry.stride as usize).map_err(Unfit::into_failed)?;
        // The driver's way first. Not every driver has it, or with this memory.
        let (what, error) = match self.open_in(XdpMode::Native) {
            Ok(opened) => return Ok(opened),
            Err(failed) => failed,
        };
        let opened = self.open_in(XdpMode::Generic)?;
        let name = &self.settings.interface;
        info!("packets of interface {name} are copied in the receive path: cannot {what} it in its driver: {error}");
        Ok(opened)
    }

    fn close(&self, socket: Socket) {
        socket.close();
    }

    fn is_exclusive(&self) -> bool {
        // Their frames come back only then, and a queue has one socket.
        true
    }
}

/// Opens the queues of a port.
///
/// # Errors
/// [`PortError::Setting`] if frames or queues do not suit; [`PortError::Interface`].
pub fn open(name: &str, queues: u32, settings: &AfXdp, arena: &Arena, frames: &FramePool) -> Result<OpenPort, PortError> {
    let whole = arena.geometry();
    let geometry = Geometry { first: frames.first(), frames: frames.frames() as u32, stride: whole.stride };
    look_at(name, queues, settings, whole.stride as usize)?;
    let interface = interface_of(settings);
    let sockets = Sockets { settings: settings.clone(), queues, arena: arena.clone(), geometry };
    let mut watched = Watched::new(name, queues, interface.clone(), sockets);
    let sockets = match watched.open() {
        Ok(sockets) => sockets.into_iter().map(Some).collect(),
        Err((_, error)) if watch::may_wait(settings.when_missing, &error) => (0..queues).map(|_| None).collect::<Vec<_>>(),
        Err(error) => return Err(interface.failed(name, error)),
    };
    let way = match sockets.iter().flatten().next() {
        Some(socket) if socket.is_zero_copy => ", zero copy",
        Some(socket) if socket.redirect.mode() == XdpMode::Native => ", copied in the driver",
        Some(_) => ", copied in the receive path",
        None => "",
    };
    let slots = slots_of(settings);
    let description = format!("{interface} by AF_XDP{way}, {slots} slots");
    let link = watched.link();
    let sources = watched.start(sockets.iter().flatten().count()).map_err(|error| interface.failed(name, ("watch", error)))?;
    let queue = |(socket, source)| {
        Box::new(Queue {
            socket,
            slots: slots as usize,
            lent: Lent::new(geometry),
            returned: Vec::new(),
            source: Some(source),
            counters: None,
            overruns: [0; 2],
        }) as Box<dyn PortQueue>
    };
    Ok(OpenPort { queues: sockets.into_iter().zip(sources).map(queue).collect(), description, memory: None, link })
}

/// Binds a socket, at the latest after [`FREED`]: the kernel frees a queue some time after its
/// former socket was closed.
fn bind_when_free(fd: &OwnedFd, index: u32, queue: u32, flags: u16) -> io::Result<()> {
    let until = Instant::now() + FREED;
    loop {
        match bind(fd, index, queue, flags) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            bound => return bound,
        }
    }
}

fn slots_of(settings: &AfXdp) -> u32 {
    settings.slots.next_power_of_two()
}

fn interface_of(settings: &AfXdp) -> Interface {
    Interface { name: settings.interface.clone(), netns: settings.netns.clone() }
}

/// The MTU of a port's interface, if that can be found.
pub fn mtu(settings: &AfXdp) -> Option<u32> {
    interface_of(settings).visit(|| link::mtu(&settings.interface).map_err(|error| ("ask", error))).ok()
}

/// Checks that the interface and its queues are there, and that frames suit.
///
/// # Errors
/// As [`open`].
pub fn look_at(name: &str, queues: u32, settings: &AfXdp, stride: usize) -> Result<(), PortError> {
    let interface = interface_of(settings);
    match interface.visit(|| check(queues, settings, stride)) {
        Err(Unfit::Failed((_, error))) if watch::may_wait(settings.when_missing, &error) => Ok(()),
        Err(Unfit::Failed(error)) => Err(interface.failed(name, error)),
        Err(Unfit::Setting(what)) => Err(PortError::Setting { port: name.into(), what }),
        Ok(()) => Ok(()),
    }
}

/// Why an interface cannot be had.
enum Unfit {
    Failed(Failed),
    /// What does not suit, with advice.
    Setting(String),
}

impl From<Failed> for Unfit {
    fn from(error: Failed) -> Self {
        Self::Failed(error)
    }
}

impl Unfit {
    fn into_failed(self) -> Failed {
        match self {
            Self::Failed(error) => error,
            Self::Setting(what) => ("use", io::Error::new(io::ErrorKind::InvalidInput, what)),
        }
    }
}

/// [`look_at`] in the calling thread's namespace.
fn check(queues: u32, settings: &AfXdp, stride: usize) -> Result<(), Unfit> {
    let interface = &settings.interface;
    if !CHUNKS.contains(&stride) {
        return Err(Unfit::Setting(format!(
            "AF_XDP needs frames of {} to {} bytes, and these have {stride}; write packet_bytes = 1518 in [memory]",
            CHUNKS.start(),
            CHUNKS.end()
        )));
    }
    link::index(interface).map_err(|error| ("find", error))?;
    // A driver that does not report it has one.
    let has = link::rx_queues(interface).unwrap_or(1);
    if has != queues {
        return Err(Unfit::Setting(format!(
            "interface {interface} has {has} receive {}, and this port has {queues}; write queues = {has}, or change the interface's \
             (ethtool -L {interface} combined {queues})",
            if has == 1 { "queue" } else { "queues" }
        )));
    }
    let room = stride - KEPT;
    let wanted = link::mtu(interface).map_or(0, |mtu| mtu as usize + af_packet::OVERHEAD);
    if wanted > room {
        return Err(Unfit::Setting(format!(
            "packets of interface {interface} may have {wanted} bytes, and a frame holds {room} behind the {KEPT} that the kernel \
             keeps; lower the MTU at both ends (ip link set {interface} mtu {}), or write a larger packet_bytes in [memory]",
            room - af_packet::OVERHEAD
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::af_packet::InterfaceQueue;
    use crate::af_packet::socket::SocketOptions;
    use crate::skip::skip;
    use sluice_api::config::WhenMissing;
    use sluice_dataplane::fake::cache;
    use sluice_host::netns::Netns;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A namespace with a pair of interfaces, "a" and "b"; none without root.
    fn pair() -> Option<Netns> {
        if !rustix::process::geteuid().is_root() {
            skip("only root can make network namespaces");
            return None;
        }
        let ns = Netns::private().unwrap();
        make_pair(&ns);
        Some(ns)
    }

    fn make_pair(ns: &Netns) {
        ns.visit(|| {
            link::make_pair("a", "b", ns.fd(), 1500)?;
            ["a", "b"].into_iter().try_for_each(|end| link::plain(end).and_then(|()| link::up(end)))
        })
        .unwrap();
    }

    fn open_socket(ns: &Netns) -> InterfaceQueue {
        let options = SocketOptions { interface: "b", slots: 256, room: 2112, promiscuous: true, bypass: true, fanout: None };
        let open = || InterfaceQueue::open(&options).map_err(|(doing, error)| io::Error::other(format!("{doing}: {error}")));
        ns.visit(open).unwrap()
    }

    /// Calls this, and the queue's housekeeping, until it is so.
    #[track_caller]
    fn wait(what: &str, xdp: &mut dyn PortQueue, mut is: impl FnMut(&mut dyn PortQueue) -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !is(xdp) {
            assert!(Instant::now() < until, "waited in vain until {what}");
            xdp.housekeeping(0);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn settings() -> AfXdp {
        AfXdp { interface: "a".into(), netns: None, slots: 64, promiscuous: true, when_missing: WhenMissing::Refuse }
    }

    fn bytes(cache: &FrameCache, packet: &Packet) -> Vec<u8> {
        let mut bytes = vec![0; packet.len.into()];
        assert!(cache.arena().read(packet.frame, packet.offset, &mut bytes));
        bytes
    }

    fn open_in(ns: &Netns, queues: u32, settings: &AfXdp, cache: &FrameCache, pool: &FramePool) -> Result<OpenPort, PortError> {
        let mut opened = None;
        let visited = ns.visit(|| Ok::<_, io::Error>(opened.insert(open("p", queues, settings, cache.arena(), pool)).is_ok()));
        visited.unwrap();
        opened.unwrap()
    }

    #[test]
    fn the_kernel_returns_what_it_was_lent_and_nothing_else() {
        for stride in [2_112, 2_240, 4_032] {
            let mut lent = Lent::new(Geometry { first: 7, frames: 1_000, stride });
            for frame in [7, 8, 500, 1_006] {
                let address = lent.give(frame);
                assert_eq!(lent.take(address + 64), None, "the beginning of no frame");
                assert_eq!(lent.take(address | 256 << CHUNK_BITS), Some((frame, 256)));
                assert_eq!(lent.take(address), None, "it has come back");
            }
            for frame in [9, 70] {
                lent.give(frame);
            }
            assert_eq!(lent.take_all(), [9, 70]);
        }
    }

    #[test]
    fn packets_cross_a_pair_both_ways_unchanged_and_all_frames_come_back() {
        let Some(ns) = pair() else { return };
        let mut cache = cache(1024);
        let all = cache.held();
        let port = open_in(&ns, 1, &settings(), &cache, &FramePool::new(1024)).unwrap();
        assert!(port.description.contains("interface a by AF_XDP, copied"), "{}", port.description);
        let mut xdp = port.queues.into_iter().next().unwrap();
        let mut socket = open_socket(&ns);
        let mut out = [Packet::default(); BURST];
        assert_eq!(xdp.rx_burst(&mut out, &mut cache, 0), 0, "nothing was sent, and frames are given to the kernel");
        assert_eq!(cache.held(), all - 64);
        // Rings of 64 wrap many times.
        for round in 0..100u32 {
            let mut fresh = [0; BURST];
            assert_eq!(cache.alloc(&mut fresh), BURST);
            let packets = fresh.map(|frame| Packet::fresh(frame, 60 + ((round * 32 + frame) * 29 % 1400) as u16));
            for (number, packet) in packets.iter().enumerate() {
                let content: Vec<u8> = (0..packet.len).map(|at| (u32::from(at) + round + number as u32) as u8 | 2).collect();
                assert!(cache.arena().write(packet.frame, packet.offset, &content));
            }
            let sent: Vec<_> = packets.iter().map(|packet| bytes(&cache, packet)).collect();
            let there = round % 2 == 0;
            let (mut got, mut gone, until) = (Vec::new(), 0, Instant::now() + Duration::from_secs(20));
            while got.len() < BURST {
                let (from, to): (&mut dyn PortQueue, &mut dyn PortQueue) =
                    if there { (&mut *xdp, &mut socket) } else { (&mut socket, &mut *xdp) };
                gone += from.tx_burst(&packets[gone..], &mut cache, 0);
                let n = to.rx_burst(&mut out, &mut cache, 0);
                got.extend(out[..n].iter().map(|packet| bytes(&cache, packet)));
                cache.free_packets(&out[..n]);
                assert!(Instant::now() < until, "round {round}: {gone} went, {} came", got.len());
            }
            assert!(got == sent, "round {round}");
        }
        let left = xdp.leftover();
        drop(xdp);
        left.iter().for_each(|frame| cache.free(*frame));
        assert_eq!(cache.held(), all, "no frame is lost, and none came back twice");
        // Nothing is left on the interface: another can be opened.
        open_in(&ns, 1, &settings(), &cache, &FramePool::new(1024)).unwrap();
    }

    #[test]
    fn what_does_not_leave_is_counted() {
        let Some(ns) = pair() else { return };
        let mut cache = cache(1024);
        let all = cache.held();
        let port = open_in(&ns, 1, &settings(), &cache, &FramePool::new(1024)).unwrap();
        let mut xdp = port.queues.into_iter().next().unwrap();
        let counters = Arc::<QueueCounters>::default();
        xdp.count_with(&counters);
        let send = |len: u16, xdp: &mut dyn PortQueue, cache: &mut FrameCache| {
            let mut frame = [0];
            assert_eq!(cache.alloc(&mut frame), 1);
            assert_eq!(xdp.tx_burst(&[Packet::fresh(frame[0], len)], cache, 0), 1);
            xdp.housekeeping(0);
        };
        send(1600, &mut *xdp, &mut cache);
        assert_eq!((counters.mtu.get(), counters.lost_bytes.get(), cache.held()), (1, 1600, all));
        ns.visit(|| link::remove("b")).unwrap();
        wait("it is gone", &mut *xdp, |_| port.link.state() == PortState::Gone);
        send(60, &mut *xdp, &mut cache);
        assert_eq!((counters.no_link.get(), cache.held()), (1, all));
    }

    #[test]
    fn an_interface_that_is_made_anew_gets_new_sockets_and_frames_of_the_former_come_back() {
        let Some(ns) = pair() else { return };
        ns.visit(|| link::remove("b")).unwrap();
        let mut cache = cache(1024);
        let all = cache.held();
        let pool = FramePool::new(1024);
        let waiting = AfXdp { when_missing: WhenMissing::Wait, ..settings() };
        let refused = open_in(&ns, 1, &settings(), &cache, &pool).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("cannot find interface a") && refused.contains("when_missing"), "{refused}");
        let port = open_in(&ns, 1, &waiting, &cache, &pool).unwrap();
        assert_eq!((port.link.state(), port.description.as_str()), (PortState::Waiting, "interface a by AF_XDP, 64 slots"));
        let mut xdp = port.queues.into_iter().next().unwrap();
        let mut out = [Packet::default(); BURST];
        for round in 0..3 {
            make_pair(&ns);
            wait("it is up", &mut *xdp, |_| port.link.state() == PortState::Up);
            wait("the kernel has frames", &mut *xdp, |xdp| {
                assert_eq!(xdp.rx_burst(&mut out, &mut cache, 0), 0, "nothing was sent");
                cache.held() == all - 64
            });
            let mut socket = open_socket(&ns);
            let mut frame = [0];
            assert_eq!(cache.alloc(&mut frame), 1);
            assert!(cache.arena().write(frame[0], Packet::fresh(frame[0], 60).offset, &[round | 2; 60]));
            assert_eq!(socket.tx_burst(&[Packet::fresh(frame[0], 60)], &mut cache, 0), 1);
            wait("the packet comes", &mut *xdp, |xdp| xdp.rx_burst(&mut out, &mut cache, 0) == 1);
            assert_eq!(bytes(&cache, &out[0]), [round | 2; 60]);
            assert_eq!(xdp.tx_burst(&out[..1], &mut cache, 0), 1);
            let mut back = [Packet::default(); BURST];
            wait("it comes back", &mut *xdp, |_| socket.rx_burst(&mut back, &mut cache, 0) == 1);
            assert_eq!(bytes(&cache, &back[0]), [round | 2; 60]);
            cache.free_packets(&back[..1]);
            drop(socket);
            ns.visit(|| link::remove("b")).unwrap();
            wait("all frames are back", &mut *xdp, |xdp| {
                assert_eq!(xdp.rx_burst(&mut out, &mut cache, 0), 0);
                cache.held() == all
            });
            assert_eq!(port.link.state(), PortState::Gone);
        }
        // Frames come back too if the port is closed before its queue has parted with its socket.
        make_pair(&ns);
        wait("the kernel has frames", &mut *xdp, |xdp| {
            assert_eq!(xdp.rx_burst(&mut out, &mut cache, 0), 0);
            cache.held() == all - 64
        });
        ns.visit(|| link::remove("b")).unwrap();
        xdp.leftover().iter().for_each(|frame| cache.free(*frame));
        assert_eq!(cache.held(), all);
    }

    #[test]
    fn what_does_not_suit_is_refused_with_advice() {
        let Some(ns) = pair() else { return };
        let cache = cache(1024);
        let pool = FramePool::new(1024);
        let refused = |queues, settings: &AfXdp| open_in(&ns, queues, settings, &cache, &pool).map(|_| ()).unwrap_err().to_string();
        let two = refused(2, &settings());
        assert!(two.contains("has 1 receive queue, and this port has 2; write queues = 1"), "{two}");
        let missing = refused(1, &AfXdp { interface: "nope".into(), ..settings() });
        assert!(missing.contains("cannot find interface nope"), "{missing}");
        let large = ns.visit(|| Ok::<_, io::Error>(look_at("p", 1, &settings(), 9_024).unwrap_err().to_string())).unwrap();
        assert!(large.contains("write packet_bytes = 1518"), "{large}");
        let taken = open_in(&ns, 1, &settings(), &cache, &pool).unwrap();
        assert!(refused(1, &settings()).contains("another program"));
        drop(taken);
    }

    /// Sockets that only count how many of them are open.
    struct Counted {
        queues: u32,
        open: Arc<AtomicUsize>,
    }

    struct One(Arc<AtomicUsize>);

    impl Drop for One {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl watch::Sockets for Counted {
        type Socket = One;

        fn open(&self, _nth: u16) -> Result<(Vec<One>, OwnedFd), Failed> {
            let probe = af_packet::socket::probe(link::index("a").map_err(|error| ("find", error))?, false)?;
            self.open.fetch_add(self.queues as usize, Ordering::SeqCst);
            Ok(((0..self.queues).map(|_| One(self.open.clone())).collect(), probe))
        }

        fn is_exclusive(&self) -> bool {
            true
        }
    }

    /// The next message for a queue.
    #[track_caller]
    fn next_of<S>(source: &SocketSource<S>) -> Option<S> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match source.next() {
                Some(next) => return next,
                None => assert!(Instant::now() < until, "no message came"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn queues_get_nothing_before_the_sockets_of_all_are_closed() {
        let Some(ns) = pair() else { return };
        let open = Arc::<AtomicUsize>::default();
        let interface = Interface { name: "a".into(), netns: None };
        let mut watched = Watched::new("p", 2, interface, Counted { queues: 2, open: open.clone() });
        // The thread stays in the namespace where it was started.
        let started = ns.visit(|| {
            let sockets = watched.open().map_err(|(_, error)| error)?;
            Ok::<_, io::Error>((sockets, watched.start(2)?))
        });
        let (sockets, sources) = started.unwrap();
        let [first, second] = <[One; 2]>::try_from(sockets).unwrap_or_else(|_| panic!("two sockets"));
        ns.visit(|| link::remove("b")).unwrap();
        sources.iter().for_each(|source| assert!(next_of(source).is_none(), "the interface is gone"));
        sources[0].give_back(first);
        // One queue still has its socket while the interface is there again.
        make_pair(&ns);
        let until = Instant::now() + Duration::from_secs(20);
        while open.load(Ordering::SeqCst) > 1 {
            assert!(Instant::now() < until, "it is closed");
            std::thread::sleep(Duration::from_millis(1));
        }
        sources[1].give_back(second);
        let again = sources.iter().map(|source| {
            assert!(next_of(source).is_none(), "both are closed");
            next_of(source).expect("it is open again")
        });
        let again: Vec<One> = again.collect();
        assert_eq!(open.load(Ordering::SeqCst), 2);
        // What comes back when the thread has ended is closed as well.
        sources[0].end();
        again.into_iter().zip(&sources).for_each(|(socket, source)| source.give_back(socket));
        assert_eq!(open.load(Ordering::SeqCst), 0);
    }
}
