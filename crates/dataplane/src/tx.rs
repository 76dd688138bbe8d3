//! Egress: the buffers of ports, and the bursts that ports are given.

use std::sync::atomic::Ordering;

use sluice_api::drops::PortDrop;
use sluice_shm::BURST;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::ring::Producer;

use crate::batch::OwnedQueue;
use crate::capture::{DropPlace, Point, Sight};
use crate::chain::{Chain, DropReason, Path};
use crate::frame::{InFrame, Packet};
use crate::handle::NfHandle;
use crate::observers;
use crate::plane::Plane;
use crate::queue::TX_BUFFER;

impl Plane {
    /// Puts packets, which no NF owns any more, into a port's buffer.
    #[inline(always)]
    pub(crate) fn emit(&mut self, path: &Path, port: u16, burst: &[Descriptor]) {
        match self.out.get_mut(port as usize) {
            Some(buffer) if buffer.open => {
                // A waiting port drops nothing: only a bounded number comes before the next check.
                let room = if buffer.waits { burst.len() } else { TX_BUFFER.saturating_sub(buffer.packets.len()).min(burst.len()) };
                buffer.packets.extend(burst[..room].iter().map(|d| Packet { frame: d.frame, offset: d.offset, len: d.len }));
                self.filled |= u64::from(buffer.is_full()) << (port % 64);
                let counters = self.counters(path);
                counters.api.exit_packets.add(room as u64);
                observers::show_on(&mut self.observers, self.frames.arena(), self.now_ns, path, Point::Sent(port), &burst[..room]);
                if room < burst.len() {
                    counters.drops[DropReason::TxFull as usize].add((burst.len() - room) as u64);
                    self.show_lost(path, DropReason::TxFull, Some(DropPlace::Port(port)), &burst[room..]);
                    for descriptor in &burst[room..] {
                        self.discard(descriptor.frame);
                    }
                }
            }
            _ => {
                self.counters(path).drops[DropReason::NoSuchPort as usize].add(burst.len() as u64);
                // An NF's verdict may name any number.
                let place = (port == path.egress).then_some(DropPlace::Port(port));
                self.show_lost(path, DropReason::NoSuchPort, place, burst);
                for descriptor in burst {
                    self.discard(descriptor.frame);
                }
            }
        }
    }

    /// Whether a waiting port's buffer is full: its packets stay on their NF's tx ring.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.out.iter().any(|b| b.open && b.waits && b.is_full())
    }

    /// Whether packets that this NF returns may go to a port with a full buffer: the NF is the last
    /// one of a chain to it, or has filled the buffer by verdicts before (`fills`,
    /// [`Drain::fills`](crate::end::Drain::fills)). Other NFs go on, for their other chains.
    #[cold]
    pub fn may_block(&self, handle: &NfHandle, fills: u64) -> bool {
        let full = |port: u16| self.out.get(port as usize).is_some_and(|b| b.open && b.waits && b.is_full());
        if fills != 0 && (0..self.out.len() as u16).any(|port| fills >> (port % 64) & 1 != 0 && full(port)) {
            return true;
        }
        // With bypass, any NF of a chain may become the last one.
        let sends = |c: &Chain| match c.on_failure {
            sluice_api::config::OnFailure::Bypass => c.services.contains(&handle.service),
            _ => c.services.last() == Some(&handle.service),
        };
        self.tables.chains.iter().flatten().any(|c| full(c.egress) && sends(c))
    }
}

/// Sends packets that wait for a port. Returns how many.
#[inline]
pub(crate) fn send(plane: &mut Plane, queues: &mut [OwnedQueue], lanes: &mut [Option<Producer>], port: u16) -> usize {
    let mut packets = std::mem::take(&mut plane.out[port as usize].packets);
    let sent = match queues.iter_mut().find(|q| q.port == port) {
        Some(owned) => transmit(plane, owned, &mut packets),
        None => pass_to_owner(plane, lanes, port, &packets),
    };
    packets.drain(..sent);
    plane.out[port as usize].packets = packets;
    sent
}

/// Gives packets to a port's queue. The others stay in the buffer, which shrinks if they are
/// dropped. Returns how many were sent.
#[inline]
fn transmit(plane: &mut Plane, owned: &mut OwnedQueue, packets: &mut Vec<Packet>) -> usize {
    let port = owned.port as usize;
    let waits = plane.out[port].waits;
    let before = owned.counters.lost();
    let sent = owned.queue.tx_burst(packets, &mut plane.frames, plane.now_ns);
    let counters = &owned.counters;
    let lost = counters.lost();
    if waits {
        // Half of the mark, so that a full buffer is not reported at every other packet.
        let jammed = packets.len() - sent > TX_BUFFER / 2;
        if let Some(mark) = plane.jammed.get(port)
            && mark.load(Ordering::Relaxed) != jammed
        {
            mark.store(jammed, Ordering::Relaxed);
        }
    }
    counters.api.tx_packets.add(sent as u64 - (lost.0 - before.0));
    counters.api.tx_bytes.add(packets[..sent].iter().map(|p| u64::from(p.len)).sum::<u64>() - (lost.1 - before.1));
    if sent < packets.len() && !waits && packets.len() + BURST > TX_BUFFER {
        counters.api.tx_drops.add((packets.len() - sent) as u64);
        plane.show(&Sight::refused(None, None, PortDrop::Untaken.into(), owned.port), &packets[sent..]);
        for packet in &packets[sent..] {
            plane.frames.free(packet.frame);
        }
        packets.truncate(sent);
    }
    sent
}

/// Passes packets to the thread that owns a port's queue. Returns how many.
fn pass_to_owner(plane: &mut Plane, lanes: &mut [Option<Producer>], port: u16, packets: &[Packet]) -> usize {
    let owner = match plane.tables.ports.get(port as usize) {
        Some(Some(info)) if !info.owners.is_empty() => Some(info.owners[plane.index % info.owners.len()]),
        _ => None,
    };
    match owner.and_then(|owner| lanes.get_mut(owner)) {
        Some(Some(_)) if plane.jammed.get(port as usize).is_some_and(|mark| mark.load(Ordering::Relaxed)) => 0,
        Some(Some(lane)) => enqueue(lane, port, packets),
        _ => {
            // The port has no owner any more.
            drop_waiting(plane, &[], port, packets);
            packets.len()
        }
    }
}

/// Puts packets for a port on a lane to another thread. Returns how many fitted.
fn enqueue(lane: &mut Producer, port: u16, packets: &[Packet]) -> usize {
    let mut sent = 0;
    for some in packets.chunks(BURST) {
        let mut burst = [Descriptor::default(); BURST];
        for (descriptor, packet) in burst.iter_mut().zip(some) {
            let Packet { frame, offset, len } = *packet;
            *descriptor = Descriptor { frame, offset, len, arg: port, ..Default::default() };
        }
        let taken = lane.enqueue(&burst[..some.len()]).unwrap_or(0);
        sent += taken;
        if taken < some.len() {
            break;
        }
    }
    sent
}

/// Drops packets that wait for a port, or find no room before it. They count as its queue's, if
/// this thread has the queue.
#[cold]
pub(crate) fn drop_waiting<T: InFrame>(plane: &mut Plane, queues: &[OwnedQueue], port: u16, packets: &[T]) {
    let own = queues.iter().find(|q| q.port == port).map(|owned| &owned.counters.api.tx_drops);
    own.unwrap_or(&plane.unsent).add(packets.len() as u64);
    plane.show(&Sight::refused(None, None, PortDrop::Untaken.into(), port), packets);
    packets.iter().for_each(|packet| plane.discard(packet.packet().frame));
}
