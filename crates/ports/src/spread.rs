//! Software RSS: spreads one queue of a device or a file over several threads, symmetrically.
//!
//! # Approach
//! The thread of queue 0 owns the device. It reads each burst, keeps packets of its own flows and
//! puts others on rings of the threads that they belong to. The hash is symmetric, so both
//! directions of a flow reach the same thread. Packets that other threads send come back on a ring
//! each, which queue 0 empties whenever it is polled.
//!
//! # Limits
//! The device's thread parses every packet, so this pays only where classification and the rest
//! cost more than that. A thread with a full ring loses a device's packets, counted as
//! `spread_drops`; a file waits for it. A slow sender keeps its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluice_shm::BURST;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::histogram::Histogram;
use sluice_shm::ring::{self, Consumer, Producer};

use sluice_dataplane::classify::key::FlowKey;
use sluice_dataplane::classify::rss::queue_of;
use sluice_dataplane::frame::{FrameCache, Packet};
use sluice_dataplane::queue::{Arrivals, PortQueue, QueueCounters};

/// Packets of each ring between two threads.
const RING: u32 = 1024;
/// Bytes of a packet that the hash covers.
const LOOK: usize = 64;

/// Spreads a queue over `queues`. Fewer than two leave it unchanged. With `waits` no packet is read
/// that a thread has no room for.
pub fn over(device: Box<dyn PortQueue>, queues: u16, waits: bool) -> Vec<Box<dyn PortQueue>> {
    if queues < 2 {
        return vec![device];
    }
    let (drops, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (mut to, mut from, mut all) = (Vec::new(), Vec::new(), Vec::<Box<dyn PortQueue>>::new());
    for _ in 1..queues {
        let (deliver, delivered) = ring::private(RING);
        let (send, sent) = ring::private(RING);
        to.push(deliver);
        from.push(sent);
        let waiting = Vec::with_capacity(if waits { BURST } else { 0 });
        all.push(Box::new(Branch { delivered, send, waits, waiting, is_over: is_over.clone(), is_finished: false }));
    }
    let unsent = (1..queues).map(|_| Vec::with_capacity(BURST)).collect();
    all.insert(0, Box::new(Trunk { device, to, from, unsent, queues, waits, is_over, drops }));
    all
}

fn packet(descriptor: &Descriptor) -> Packet {
    Packet { frame: descriptor.frame, offset: descriptor.offset, len: descriptor.len }
}

fn descriptor(packet: &Packet) -> Descriptor {
    Descriptor { frame: packet.frame, offset: packet.offset, len: packet.len, ..Default::default() }
}

/// The queue that owns the device.
struct Trunk {
    device: Box<dyn PortQueue>,
    to: Vec<Producer>,
    from: Vec<Consumer>,
    /// Packets of each other thread that the device has not accepted yet.
    unsent: Vec<Vec<Packet>>,
    queues: u16,
    waits: bool,
    /// Whether the device has delivered its last packet.
    is_over: Arc<AtomicBool>,
    drops: Arc<AtomicU64>,
}

impl Trunk {
    /// Sends the other threads' packets to the device.
    fn collect(&mut self, frames: &mut FrameCache, now_ns: u64) {
        for (from, unsent) in self.from.iter_mut().zip(&mut self.unsent) {
            if unsent.is_empty() {
                let mut burst = [Descriptor::default(); BURST];
                // The ring is private to this process: its cursors are valid.
                let n = from.dequeue(&mut burst).unwrap_or(0);
                unsent.extend(burst[..n].iter().map(packet));
            }
            if !unsent.is_empty() {
                let sent = self.device.tx_burst(unsent, frames, now_ns);
                unsent.drain(..sent);
            }
        }
    }
}

impl PortQueue for Trunk {
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        self.collect(frames, now_ns);
        let rooms = self.to.iter_mut().filter(|_| self.waits).map(|to| to.room().unwrap_or(0) as usize);
        let most = rooms.min().map_or(out.len(), |room| room.min(out.len()));
        let n = self.device.rx_burst(&mut out[..most], frames, now_ns);
        let mut kept = 0;
        for i in 0..n {
            let one = out[i];
            let mut header = [0; LOOK];
            let len = (one.len as usize).min(LOOK);
            frames.arena().read(one.frame, one.offset, &mut header[..len]);
            // The ingress port is the same for all, so it does not matter here.
            let hash = FlowKey::parse(&header[..len], one.len, 0).symmetric_hash();
            match queue_of(hash, self.queues) {
                0 => {
                    out[kept] = one;
                    kept += 1;
                }
                other => {
                    if self.to[usize::from(other) - 1].enqueue(&[descriptor(&one)]) != Ok(1) {
                        self.drops.fetch_add(1, Ordering::Relaxed);
                        frames.free(one.frame);
                    }
                }
            }
        }
        if self.device.is_finished() {
            // Release: its last packets are on the rings.
            self.is_over.store(true, Ordering::Release);
        }
        kept
    }

    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        self.device.tx_burst(packets, frames, now_ns)
    }

    fn begin(&mut self) {
        self.device.begin();
    }

    fn count_with(&mut self, counters: &Arc<QueueCounters>) {
        self.device.count_with(counters);
    }

    fn is_finished(&self) -> bool {
        self.device.is_finished()
    }

    fn arrivals(&self) -> Arrivals<'_> {
        // Other threads' packets come without notice, after the device's last packet too.
        Arrivals::Looked
    }

    fn housekeeping(&mut self, now_ns: u64) {
        self.device.housekeeping(now_ns);
    }

    fn overruns(&self) -> u64 {
        self.device.overruns()
    }

    fn details(&self) -> Vec<(&'static str, f64)> {
        let mut details = self.device.details();
        details.push(("spread_drops", self.drops.load(Ordering::Relaxed) as f64));
        details
    }

    fn latency(&self) -> Option<&Histogram> {
        self.device.latency()
    }

    fn leftover(&mut self) -> Vec<u32> {
        let mut frames = self.device.leftover();
        frames.extend(self.unsent.iter_mut().flat_map(|unsent| unsent.drain(..)).map(|packet| packet.frame));
        self.from.iter_mut().for_each(|from| drain(from, &mut frames));
        frames
    }
}

/// Takes all frames off a ring.
fn drain(ring: &mut Consumer, frames: &mut Vec<u32>) {
    let mut burst = [Descriptor::default(); BURST];
    while let Ok(n @ 1..) = ring.dequeue(&mut burst) {
        frames.extend(burst[..n].iter().map(|descriptor| descriptor.frame));
    }
}

struct Branch {
    delivered: Consumer,
    send: Producer,
    waits: bool,
    /// A file's packets that lie in an arena that is not received into any more, and wait for
    /// frames of the other. A device keeps its arena.
    waiting: Vec<Packet>,
    is_over: Arc<AtomicBool>,
    is_finished: bool,
}

impl PortQueue for Branch {
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        let mut burst = [Descriptor::default(); BURST];
        let most = out.len().min(BURST);
        let is_over = self.is_over.load(Ordering::Acquire);
        let n = if self.waiting.is_empty() {
            let n = self.delivered.dequeue(&mut burst[..most]).unwrap_or(0);
            out.iter_mut().zip(&burst[..n]).for_each(|(out, descriptor)| *out = packet(descriptor));
            n
        } else {
            let n = most.min(self.waiting.len());
            out.iter_mut().zip(self.waiting.drain(..n)).for_each(|(out, packet)| *out = packet);
            n
        };
        self.is_finished = is_over && n == 0;
        if !self.waits {
            return n;
        }
        let there = frames.bring_in(&mut out[..n]);
        self.waiting.extend_from_slice(&out[there..n]);
        there
    }

    fn tx_burst(&mut self, packets: &[Packet], _frames: &mut FrameCache, _now_ns: u64) -> usize {
        let mut sent = 0;
        for burst in packets.chunks(BURST) {
            let mut descriptors = [Descriptor::default(); BURST];
            descriptors.iter_mut().zip(burst).for_each(|(to, packet)| *to = descriptor(packet));
            let taken = self.send.enqueue(&descriptors[..burst.len()]).unwrap_or(0);
            sent += taken;
            if taken < burst.len() {
                break;
            }
        }
        sent
    }

    fn is_finished(&self) -> bool {
        self.is_finished
    }

    fn leftover(&mut self) -> Vec<u32> {
        let mut frames: Vec<u32> = self.waiting.drain(..).map(|packet| packet.frame).collect();
        drain(&mut self.delivered, &mut frames);
        frames
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};
    use std::sync::Mutex;

    use sluice_shm::arena::{Arena, Geometry};

    use super::*;
    use sluice_dataplane::frame::FramePool;

    /// A device with prepared packets, which accepts a few at a time.
    struct Device {
        incoming: VecDeque<Packet>,
        outgoing: Arc<Mutex<Vec<u32>>>,
    }

    impl PortQueue for Device {
        fn rx_burst(&mut self, out: &mut [Packet], _: &mut FrameCache, _: u64) -> usize {
            let n = out.len().min(self.incoming.len());
            out.iter_mut().zip(self.incoming.drain(..n)).for_each(|(out, packet)| *out = packet);
            n
        }

        fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, _: u64) -> usize {
            let n = packets.len().min(5);
            for packet in &packets[..n] {
                self.outgoing.lock().unwrap().push(packet.frame);
                frames.free(packet.frame);
            }
            n
        }

        fn is_finished(&self) -> bool {
            self.incoming.is_empty()
        }
    }

    fn udp(flow: u8, back: bool) -> Vec<u8> {
        let mut packet = vec![0; 60];
        packet[12..14].copy_from_slice(&[8, 0]);
        packet[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        let (a, b) = ([10, 0, 0, flow], [10, 0, 1, 1]);
        let (src, dst) = if back { (b, a) } else { (a, b) };
        packet[26..30].copy_from_slice(&src);
        packet[30..34].copy_from_slice(&dst);
        let (a, b) = ([0x10, flow], [0, 80]);
        let (from, to) = if back { (b, a) } else { (a, b) };
        packet[34..36].copy_from_slice(&from);
        packet[36..38].copy_from_slice(&to);
        packet
    }

    #[test]
    fn both_directions_of_a_flow_meet_one_thread_and_nothing_is_lost() {
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 1024, stride: 2240 }, false).unwrap();
        let pool = FramePool::new(1024);
        let mut caches: Vec<FrameCache> = (0..3).map(|_| FrameCache::new(pool.clone(), arena.clone(), 256)).collect();
        let mut incoming = VecDeque::new();
        let mut flow_of = BTreeMap::new();
        for i in 0..600u32 {
            let mut frame = [0];
            assert_eq!(caches[0].alloc(&mut frame), 1);
            let [frame] = frame;
            let flow = (i % 100) as u8;
            assert!(arena.write(frame, 128, &udp(flow, i % 200 >= 100)));
            flow_of.insert(frame, flow);
            incoming.push_back(Packet { frame, offset: 128, len: 60 });
        }
        let outgoing = Arc::new(Mutex::new(Vec::new()));
        let mut queues = over(Box::new(Device { incoming, outgoing: outgoing.clone() }), 3, false);
        assert_eq!(queues.len(), 3);
        let mut met: BTreeMap<u8, usize> = BTreeMap::new();
        let mut seen = [0; 3];
        let mut waiting: [Vec<Packet>; 3] = Default::default();
        while outgoing.lock().unwrap().len() < 600 {
            for (i, (queue, cache)) in queues.iter_mut().zip(&mut caches).enumerate() {
                let mut out = [Packet::default(); BURST];
                let n = queue.rx_burst(&mut out, cache, 0);
                seen[i] += n;
                for packet in &out[..n] {
                    let flow = flow_of[&packet.frame];
                    assert_eq!(*met.entry(flow).or_insert(i), i, "flow {flow} meets two threads");
                    waiting[i].push(*packet);
                }
                let sent = queue.tx_burst(&waiting[i], cache, 0);
                waiting[i].drain(..sent);
            }
        }
        assert_eq!(seen.iter().sum::<usize>(), 600);
        assert!(seen.iter().all(|n| *n > 60), "{seen:?}");
        assert!(queues[0].is_finished());
        for (queue, cache) in queues.iter_mut().zip(&mut caches) {
            assert_eq!(queue.rx_burst(&mut [Packet::default(); BURST], cache, 0), 0);
        }
        assert!(queues.iter().all(|queue| queue.is_finished()), "the file is read, and the rings are empty");
        assert_eq!(queues[0].details(), [("spread_drops", 0.0)]);
        let mut sent = outgoing.lock().unwrap().clone();
        sent.sort_unstable();
        assert!(sent.windows(2).all(|w| w[0] != w[1]), "each packet leaves once");
    }

    /// 4,000 packets of 200 flows.
    fn packets(cache: &mut FrameCache, arena: &Arena) -> VecDeque<Packet> {
        let packet = |i: u32| {
            let mut frame = [0];
            assert_eq!(cache.alloc(&mut frame), 1);
            let [frame] = frame;
            assert!(arena.write(frame, 128, &udp((i % 200) as u8, false)));
            Packet { frame, offset: 128, len: 60 }
        };
        (0..4000).map(packet).collect()
    }

    #[test]
    fn a_thread_that_takes_nothing_loses_its_own_packets_alone() {
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 4096, stride: 2240 }, false).unwrap();
        let pool = FramePool::new(4096);
        let mut cache = FrameCache::new(pool, arena.clone(), 4096);
        let incoming = packets(&mut cache, &arena);
        let mut queues = over(Box::new(Device { incoming, outgoing: Arc::default() }), 2, false);
        let mut kept = 0;
        while !queues[0].is_finished() {
            kept += queues[0].rx_burst(&mut [Packet::default(); BURST], &mut cache, 0);
        }
        let drops = queues[0].details()[0].1 as usize;
        assert!(drops > 0);
        assert_eq!(kept + RING as usize + drops, 4000);
        // Packets between the threads are returned when the port is closed.
        assert_eq!(queues[1].tx_burst(&[Packet { frame: 7, offset: 0, len: 60 }], &mut cache, 0), 1);
        assert_eq!((queues[0].leftover(), queues[1].leftover().len()), (vec![7], RING as usize));
    }

    #[test]
    fn a_file_waits_for_a_thread_without_room() {
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 4096, stride: 2240 }, false).unwrap();
        let mut cache = FrameCache::new(FramePool::new(4096), arena.clone(), 4096);
        let incoming = packets(&mut cache, &arena);
        let mut queues = over(Box::new(Device { incoming, outgoing: Arc::default() }), 2, true);
        let mut out = [Packet::default(); BURST];
        let mut seen = 0;
        // The other thread takes nothing until this one gets nothing more.
        loop {
            let before = seen;
            (0..200).for_each(|_| seen += queues[0].rx_burst(&mut out, &mut cache, 0));
            if seen == before {
                break;
            }
        }
        assert!(!queues[0].is_finished() && !queues[1].is_finished());
        while !queues.iter().all(|queue| queue.is_finished()) {
            queues.iter_mut().for_each(|queue| seen += queue.rx_burst(&mut out, &mut cache, 0));
        }
        assert_eq!((seen, queues[0].details()[0].1), (4000, 0.0));
    }
}
