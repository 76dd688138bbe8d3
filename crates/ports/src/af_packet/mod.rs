//! Kernel interfaces as ports, without DPDK: for hosts without it, and for foreign NFs.
//!
//! A packet is copied once on its way in and once on its way out. Sending a burst is one system
//! call, receiving none ([`socket`]). With several queues the kernel spreads flows over them, both
//! directions of a flow to the same one.
//!
//! **Offloads** of the hosts at both ends may stay on. Checksums left open are computed here, and
//! large segments are cut into packets; consecutive packets leave as one large segment again
//! ([`segment`]). A packet larger than a frame that cannot be cut is dropped and counted as
//! `oversize`; an outgoing packet larger than the interface's MTU, as `mtu`.
//!
//! **An interface may go and come.** A thread watches it (`watch.rs`), sets the port's state, and
//! gives the queues new sockets when an interface with its name comes back. Meanwhile packets for
//! the port are dropped and counted as `no_link`, even with `overload = "wait"`: they would hold up
//! the NFs before the port for an unknown time.
//!
//! **Limits.** Packets leave by the interface's queue (qdisc), which may drop packets: see the
//! interface's own counters (`ip -s link`). `net.core.wmem_max` bounds what may wait to be sent,
//! unless the manager is root.

pub mod segment;
pub mod socket;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sluice_shm::BURST;

use crate::error::PortError;
use crate::watch::{self, Failed, Interface, SocketSource, Watched};
use segment::{Cut, MAX_SEGMENTS};
use sluice_api::config::AfPacket;
use sluice_api::drops::PortDrop;
use sluice_api::model::PortState;
use sluice_dataplane::frame::{FrameCache, Packet};
use sluice_dataplane::port::OpenPort;
use sluice_dataplane::port::WireEnd;
use sluice_dataplane::queue::Arrivals;
use sluice_dataplane::queue::{PortQueue, QueueCounters};
use sluice_host::link;
use sluice_shm::arena::Arena;
use socket::{PacketSocket, Received, SocketCounters, SocketOptions};

/// Ethernet header and a VLAN tag, which an MTU does not include.
pub const OVERHEAD: usize = 18;

#[derive(Debug)]
pub struct InterfaceQueue {
    /// `None` while there is no interface.
    socket: Option<PacketSocket>,
    /// Counters of earlier sockets.
    before: SocketCounters,
    /// Packets cut from a large segment that did not fit in the caller's burst.
    waiting: VecDeque<Packet>,
    room: usize,
    /// Source of new sockets, if it belongs to a port.
    source: Option<SocketSource<PacketSocket>>,
    counters: Option<Arc<QueueCounters>>,
}

impl InterfaceQueue {
    /// Opens a queue in the namespace of the calling thread.
    ///
    /// # Errors
    /// As [`PacketSocket::open`].
    pub fn open(options: &SocketOptions<'_>) -> Result<Self, (&'static str, std::io::Error)> {
        Ok(Self::over(Some(PacketSocket::open(options)?), options.room, None))
    }

    fn over(socket: Option<PacketSocket>, room: usize, source: Option<SocketSource<PacketSocket>>) -> Self {
        let waiting = VecDeque::with_capacity(MAX_SEGMENTS);
        Self { socket, before: SocketCounters::default(), waiting, room, source, counters: None }
    }

    /// Counters of all its sockets.
    pub fn counters(&self) -> SocketCounters {
        let mut all = self.before;
        all += self.socket.as_ref().map(PacketSocket::counters).unwrap_or_default();
        all
    }

    /// Whether packets can leave, by the state of the port.
    #[inline]
    fn has_link(&self) -> bool {
        self.source.as_ref().is_none_or(|source| source.state() == PortState::Up)
    }

    /// For a port, drops packets that cannot leave without a link, and returns how many.
    #[cold]
    fn drop_without_link(&self, arena: &Arena, packets: &[Packet]) -> usize {
        if self.source.is_none() {
            return 0;
        }
        if let Some(counters) = &self.counters {
            packets.first().into_iter().for_each(|packet| counters.lost_packets.keep_packet(PortDrop::NoLink, arena, packet));
            counters.no_link.add(packets.len() as u64);
            counters.lost_bytes.add(packets.iter().map(|packet| u64::from(packet.len)).sum());
        }
        packets.len()
    }
}

impl PortQueue for InterfaceQueue {
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        let wanted = out.len().min(BURST);
        let mut n = 0;
        let mut fresh = [0; BURST];
        // No frame is taken while no packet waits.
        let had = if self.has_packet() { frames.alloc(&mut fresh[..wanted]) } else { 0 };
        let mut used = 0;
        let oversize = self.socket.as_ref().map_or(0, |socket| socket.counters().oversize);
        while n < wanted {
            if let Some(packet) = self.waiting.pop_front() {
                out[n] = packet;
                n += 1;
                continue;
            }
            let Some(socket) = self.socket.as_mut().filter(|_| used < had) else { break };
            let (frame, room, waiting) = (fresh[used], self.room, &mut self.waiting);
            let mut refused = false;
            let lost = |len: usize, bytes: &[u8]| {
                if let Some(counters) = &self.counters {
                    counters.lost_packets.keep(PortDrop::Oversize, len, bytes);
                }
            };
            let take = |received: Received<'_>| {
                let Some((offload, size, start)) = received.large else {
                    let packet = Packet::fresh(frame, received.len() as u16);
                    // It fits: the socket compared it with the space of a frame.
                    received.write(frames.arena(), packet.frame, packet.offset);
                    return Some(Some(packet));
                };
                let cut = Cut::of(received.bytes, offload, size, start).filter(|cut| cut.largest() + received.tag_len() <= room);
                refused = cut.is_none();
                if refused {
                    lost(received.bytes.len(), received.bytes);
                }
                // `None` while there are not enough frames: the segment stays where it is.
                split(&received, &cut?, frames, waiting).then_some(None)
            };
            let came = socket.receive(take, lost);
            match came {
                Some(Some(packet)) => {
                    out[n] = packet;
                    (n, used) = (n + 1, used + 1);
                }
                Some(None) => {}
                None if refused => socket.refuse(),
                None => break,
            }
        }
        fresh[used..had].iter().for_each(|frame| frames.free(*frame));
        if let (Some(counters), Some(socket)) = (&self.counters, &self.socket) {
            counters.oversize.add(socket.counters().oversize - oversize);
        }
        n
    }

    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        let mut sent = 0;
        let has_link = self.has_link();
        let is_down = match self.socket.as_mut().filter(|_| has_link) {
            Some(socket) => {
                let before = socket.counters();
                sent = socket.send(frames.arena(), packets);
                let now = socket.counters();
                if let Some(counters) = self.counters.as_ref().filter(|_| now.refused > before.refused) {
                    let refused = socket.refused_packet();
                    refused.iter().for_each(|packet| counters.lost_packets.keep_packet(PortDrop::Mtu, frames.arena(), packet));
                    counters.mtu.add(now.refused - before.refused);
                    counters.lost_bytes.add(now.refused_bytes - before.refused_bytes);
                }
                socket.is_down()
            }
            None => true,
        };
        if is_down {
            sent += self.drop_without_link(frames.arena(), &packets[sent..]);
        }
        frames.free_packets(&packets[..sent]);
        sent
    }

    fn count_with(&mut self, counters: &Arc<QueueCounters>) {
        self.counters = Some(counters.clone());
    }

    fn arrivals(&self) -> Arrivals<'_> {
        match &self.socket {
            _ if !self.waiting.is_empty() => Arrivals::Looked,
            Some(socket) => Arrivals::Readable(socket.as_fd()),
            None => Arrivals::Never,
        }
    }

    fn housekeeping(&mut self, _now_ns: u64) {
        self.socket.iter_mut().for_each(PacketSocket::look);
        while let Some(next) = self.source.as_ref().and_then(SocketSource::next) {
            let former = std::mem::replace(&mut self.socket, next);
            if let (Some(former), Some(source)) = (former, &self.source) {
                self.before += former.counters();
                source.give_back(former);
            }
        }
    }

    fn overruns(&self) -> u64 {
        self.counters().overruns
    }

    fn leftover(&mut self) -> Vec<u32> {
        self.waiting.drain(..).map(|packet| packet.frame).collect()
    }

    fn details(&self) -> Vec<(&'static str, f64)> {
        let counters = self.counters();
        vec![
            ("overruns", counters.overruns as f64),
            ("oversize", counters.oversize as f64),
            ("checksummed", counters.checksummed as f64),
            ("cut", counters.cut as f64),
            ("merged", counters.merged as f64),
            ("refused", counters.refused as f64),
        ]
    }
}

impl WireEnd for InterfaceQueue {
    fn has_packet(&self) -> bool {
        !self.waiting.is_empty() || self.socket.as_ref().is_some_and(PacketSocket::has_packet)
    }

    fn copy_out(&mut self, packets: &[Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        self.socket.as_mut().map_or(0, |socket| socket.send(frames.arena(), packets))
    }
}

/// Cuts a large segment into packets in new frames. False, without effect, if frames lack.
fn split(received: &Received<'_>, cut: &Cut<'_>, frames: &mut FrameCache, packets: &mut VecDeque<Packet>) -> bool {
    let mut fresh = [0; MAX_SEGMENTS];
    let fresh = &mut fresh[..cut.segments()];
    let had = frames.alloc(fresh);
    if had < fresh.len() {
        fresh[..had].iter().for_each(|frame| frames.free(*frame));
        return false;
    }
    for (number, frame) in fresh.iter().enumerate() {
        let (headers, payload) = cut.segment(number);
        let head = headers.bytes().len() + received.tag_len();
        let packet = Packet::fresh(*frame, (head + payload.len()) as u16);
        // They fit: the largest was compared with the space of a frame.
        received.write_part(frames.arena(), packet.frame, packet.offset, headers.bytes());
        frames.arena().write(packet.frame, packet.offset + head as u16, payload);
        packets.push_back(packet);
    }
    true
}

/// How a port's sockets are opened.
#[derive(Debug)]
struct Sockets {
    settings: AfPacket,
    queues: u32,
    room: usize,
}

impl watch::Sockets for Sockets {
    type Socket = PacketSocket;

    fn open(&self, nth: u16) -> Result<(Vec<PacketSocket>, OwnedFd), Failed> {
        let settings = &self.settings;
        // Depends on process, interface and time: the kernel refuses a number that sockets of
        // another interface use, and old sockets may still be open.
        let group = (std::process::id() as u16).wrapping_mul(31).wrapping_add(settings.interface.bytes().map(u16::from).sum());
        let group = group.wrapping_add(nth.wrapping_mul(7919));
        let options = SocketOptions {
            interface: &settings.interface,
            slots: settings.slots,
            room: self.room,
            promiscuous: settings.promiscuous,
            bypass: false,
            fanout: (self.queues > 1).then_some(group),
        };
        let sockets = (0..self.queues).map(|_| PacketSocket::open(&options)).collect::<Result<Vec<_>, _>>()?;
        let probe = sockets[0].probe().map_err(|error| ("open a packet socket on", error))?;
        Ok((sockets, probe))
    }

    fn can_bind(&self) -> bool {
        self.queues == 1
    }

    fn bind(&self, probe: &OwnedFd, index: u32) -> Result<(), Failed> {
        socket::bind(probe, index, self.settings.promiscuous)
    }

    fn is_early(&self, error: &io::Error) -> bool {
        // A recreated interface is brought up later; only then can sockets share it.
        error.raw_os_error() == Some(libc::EINVAL) && self.queues > 1
    }
}

fn interface_of(settings: &AfPacket) -> Interface {
    Interface { name: settings.interface.clone(), netns: settings.netns.clone() }
}

/// Opens the queues of a port.
///
/// # Errors
/// [`PortError::Interface`].
pub fn open(name: &str, queues: u32, settings: &AfPacket, room: usize) -> Result<OpenPort, PortError> {
    let interface = interface_of(settings);
    let mut watched = Watched::new(name, queues, interface.clone(), Sockets { settings: settings.clone(), queues, room });
    let sockets = match watched.open() {
        Ok(sockets) => sockets.into_iter().map(Some).collect(),
        Err((_, error)) if watch::may_wait(settings.when_missing, &error) => (0..queues).map(|_| None).collect::<Vec<_>>(),
        Err(error) => return Err(interface.failed(name, error)),
    };
    let slots = sockets.iter().flatten().map(PacketSocket::slots).next().unwrap_or(settings.slots);
    let description = format!("{interface}, {slots} slots");
    let link = watched.link();
    let sources = watched.start(sockets.iter().flatten().count()).map_err(|error| interface.failed(name, ("watch", error)))?;
    let queue = |(socket, source)| Box::new(InterfaceQueue::over(socket, room, Some(source))) as Box<dyn PortQueue>;
    Ok(OpenPort { queues: sockets.into_iter().zip(sources).map(queue).collect(), description, memory: None, link })
}

/// Checks that the interface exists.
///
/// # Errors
/// [`PortError::Interface`].
pub fn look_at(name: &str, settings: &AfPacket) -> Result<(), PortError> {
    let interface = interface_of(settings);
    match interface.visit(|| link::index(&settings.interface).map_err(|error| ("find", error))) {
        Err((_, error)) if watch::may_wait(settings.when_missing, &error) => Ok(()),
        found => found.map(drop).map_err(|error| interface.failed(name, error)),
    }
}

/// MTU of an interface: bytes without the Ethernet header. `None` if unknown or missing.
pub fn mtu(settings: &AfPacket) -> Option<u32> {
    interface_of(settings).visit(|| link::mtu(&settings.interface).map_err(|error| ("ask", error))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use sluice_api::config::{PortKind, WhenMissing};
    use sluice_dataplane::fake::cache;
    use sluice_dataplane::frame::FramePool;
    use sluice_host::netns::Netns;
    use sluice_shm::arena::Geometry;
    use std::time::{Duration, Instant};

    /// Two connected interfaces in a new namespace, with a queue each; `None` without root.
    fn pair(options: SocketOptions<'_>) -> Option<(Netns, InterfaceQueue, InterfaceQueue)> {
        if !rustix::process::geteuid().is_root() {
            skip("only root can make network namespaces");
            return None;
        }
        let ns = Netns::private().unwrap();
        let queues = ns.visit(|| {
            link::make_pair("a", "b", ns.fd(), 1500)?;
            for end in ["a", "b"] {
                link::plain(end)?;
                link::up(end)?;
            }
            let open = |interface| {
                InterfaceQueue::open(&SocketOptions { interface, ..options })
                    .map_err(|(doing, error)| io::Error::other(format!("{doing}: {error}")))
            };
            Ok::<_, io::Error>((open("a")?, open("b")?))
        });
        let (a, b) = queues.unwrap();
        Some((ns, a, b))
    }

    const OPTIONS: SocketOptions<'_> =
        SocketOptions { interface: "", slots: 64, room: 2112, promiscuous: true, bypass: true, fanout: None };

    fn packet(cache: &mut FrameCache, number: u32, len: usize) -> Packet {
        let mut frame = [0];
        assert_eq!(cache.alloc(&mut frame), 1);
        let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 1, 1], 9).udp(1000, 2000);
        let mut bytes = Vec::new();
        let mut payload = vec![0; len];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        builder.write(&mut bytes, &payload).unwrap();
        let packet = Packet::fresh(frame[0], bytes.len() as u16);
        assert!(cache.arena().write(packet.frame, packet.offset, &bytes));
        packet
    }

    /// Receives until there are this many.
    fn receive(queue: &mut InterfaceQueue, cache: &mut FrameCache, wanted: usize) -> Vec<Packet> {
        let (mut got, until) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while got.len() < wanted {
            let mut out = [Packet::default(); BURST];
            let n = queue.rx_burst(&mut out, cache, 0);
            got.extend(&out[..n]);
            assert!(Instant::now() < until, "{} of {wanted} came", got.len());
        }
        got
    }

    #[test]
    fn packets_cross_a_pair_unchanged_and_in_order() {
        let Some((_ns, mut a, mut b)) = pair(OPTIONS) else { return };
        let mut cache = cache(512);
        let all = cache.held();
        for round in 0..20u32 {
            let packets: Vec<Packet> = (0..50).map(|i| packet(&mut cache, round * 50 + i, 4 + (i as usize * 29) % 1400)).collect();
            let sent: Vec<Vec<u8>> = packets.iter().map(|p| bytes(&cache, p)).collect();
            assert_eq!(a.tx_burst(&packets, &mut cache, 0), 50);
            let got = receive(&mut b, &mut cache, 50);
            assert_eq!(got.iter().map(|p| bytes(&cache, p)).collect::<Vec<_>>(), sent);
            cache.free_packets(&got);
        }
        assert_eq!(cache.held(), all, "no frame is lost");
        assert!(!a.has_packet(), "what is sent here does not come back");
    }

    fn bytes(cache: &FrameCache, packet: &Packet) -> Vec<u8> {
        let mut bytes = vec![0; packet.len.into()];
        assert!(cache.arena().read(packet.frame, packet.offset, &mut bytes));
        bytes
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let Some((_ns, mut a, mut b)) = pair(SocketOptions { room: 1000, ..OPTIONS }) else { return };
        let mut cache = cache(512);
        // Larger than the MTU, larger than the receiver's frames, and one that fits.
        let packets = [packet(&mut cache, 1, 1600), packet(&mut cache, 2, 1200), packet(&mut cache, 3, 100)];
        assert_eq!(a.tx_burst(&packets, &mut cache, 0), 3);
        let got = receive(&mut b, &mut cache, 1);
        assert_eq!(bytes(&cache, &got[0])[42..46], 3u32.to_be_bytes());
        assert_eq!((a.counters().refused, b.counters().oversize), (1, 1));
        // More than there are slots.
        for i in 0..8 {
            let packets: Vec<Packet> = (0..32).map(|n| packet(&mut cache, i * 32 + n, 100)).collect();
            assert_eq!(a.tx_burst(&packets, &mut cache, 0), 32);
        }
        b.housekeeping(0);
        let slots = u64::from(b.socket.as_ref().unwrap().slots());
        assert_eq!(b.overruns(), 256 - slots);
        assert_eq!(receive(&mut b, &mut cache, slots as usize).len() as u64, slots);
    }

    #[test]
    fn a_packet_in_a_hole_is_dropped_and_holds_up_no_other() {
        let Some((_ns, mut a, mut b)) = pair(OPTIONS) else { return };
        let geometry = Geometry { first: 0, frames: 16, stride: 2240 };
        let file = memfd_create("holes", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, geometry.bytes() as u64).unwrap();
        let arena = Arena::map(file.as_fd(), geometry).unwrap();
        let mut frames = FrameCache::new(FramePool::new(16), arena, 16);
        let all: Vec<Packet> = (0..16).map(|number| packet(&mut frames, number, 100)).collect();
        let at = |frame: u32| *all.iter().find(|packet| packet.frame == frame).unwrap();
        let sent = [0, 1].map(|frame| bytes(&frames, &at(frame)));
        // Stands in for a hole without memory for a page: nothing lies behind frame 12.
        ftruncate(&file, 5 * 4096).unwrap();
        assert_eq!(a.tx_burst(&[at(0), at(12), at(1)], &mut frames, 0), 3);
        let mut others = cache(64);
        let got = receive(&mut b, &mut others, 2);
        assert_eq!(got.iter().map(|packet| bytes(&others, packet)).collect::<Vec<_>>(), sent);
        assert_eq!((a.counters().refused, a.counters().refused_bytes), (1, at(12).len.into()));
    }

    #[test]
    fn a_vlan_tag_stays_on() {
        let Some((_ns, mut a, mut b)) = pair(OPTIONS) else { return };
        let mut cache = cache(512);
        let mut frame = [0];
        cache.alloc(&mut frame);
        let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6])
            .single_vlan(etherparse::VlanId::try_new(42).unwrap())
            .ipv4([10, 0, 0, 1], [10, 0, 1, 1], 9)
            .udp(1000, 2000);
        let mut tagged = Vec::new();
        builder.write(&mut tagged, b"tagged").unwrap();
        let packet = Packet::fresh(frame[0], tagged.len() as u16);
        assert!(cache.arena().write(packet.frame, packet.offset, &tagged));
        assert_eq!(a.tx_burst(&[packet], &mut cache, 0), 1);
        let got = receive(&mut b, &mut cache, 1);
        assert_eq!(bytes(&cache, &got[0]), tagged);
    }

    #[test]
    fn what_is_wrong_with_an_interface_is_reported() {
        let port: sluice_api::config::Port =
            toml::from_str("name = \"p\"\nkind = \"af_packet\"\ninterface = \"nope-nope\"").unwrap();
        let PortKind::AfPacket(settings) = &port.kind else { panic!() };
        let said = look_at("p", settings).unwrap_err().to_string();
        assert!(said.contains("port p: cannot find interface nope-nope") && said.contains("`ip link`"), "{said}");
        let elsewhere = AfPacket { netns: Some("sluice-no-such".into()), ..settings.clone() };
        let said = look_at("p", &elsewhere).unwrap_err().to_string();
        assert!(said.contains("`ip netns` lists"), "{said}");
        for waits in [settings, &elsewhere].map(|it| AfPacket { when_missing: WhenMissing::Wait, ..it.clone() }) {
            look_at("p", &waits).unwrap();
            let open = open("p", 2, &waits, 2112).unwrap();
            assert_eq!((open.queues.len(), open.link.state()), (2, PortState::Waiting));
        }
    }
}
