//! Tests of the packet threads, with simulated ports and NFs.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use sluice_shm::BURST;
use sluice_shm::arena::Arena;
use sluice_shm::descriptor::{Descriptor, Verdict, flags};
use sluice_shm::page::Attached;

use super::*;
use sluice_api::config::{FlowTable, Hugepages, OnFailure};
use sluice_api::drops::PortDrop;
use sluice_dataplane::admit::Obstacle;
use sluice_dataplane::capture::{CaptureReader, CaptureScope, CapturedPacket, DropPlace, Point, pair};
use sluice_dataplane::chain::{Chain, ChainCounters, DropReason, MaySend, Member, Places, PortInfo};
use sluice_dataplane::classify::rule::{Rule, RuleSet};
use sluice_dataplane::decision::Refusal;
use sluice_dataplane::frame::{Copied, DETOUR, DETOURS, FrameCache, Packet};
use sluice_dataplane::handle::StopReason;
use sluice_dataplane::handlers::Inline;
use sluice_dataplane::outlook::Fate;
use sluice_dataplane::queue::{Arrivals, TX_BUFFER};
use sluice_dataplane::steer::Foreseen;
use sluice_dataplane::trace::{TraceEvent, TraceWhat};
use sluice_pools::PoolTable;

/// A port queue: reads what the test put in, and collects what is sent.
#[derive(Clone, Default)]
struct Wire {
    to_read: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Reads that have begun, and those that are over.
    reads: Arc<[AtomicU64; 2]>,
    written: Arc<Mutex<Vec<Vec<u8>>>>,
    jammed: Arc<AtomicBool>,
}

impl PortQueue for Wire {
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        self.reads[0].fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.to_read.lock().unwrap();
        self.reads[1].fetch_add(1, Ordering::Relaxed);
        let n = waiting.len().min(out.len());
        let mut fresh = vec![0; n];
        let n = frames.alloc(&mut fresh);
        for (i, bytes) in waiting.drain(..n).enumerate() {
            out[i] = Packet::fresh(fresh[i], bytes.len() as u16);
            assert!(frames.arena().write(out[i].frame, out[i].offset, &bytes));
        }
        n
    }

    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        if self.jammed.load(Ordering::Relaxed) {
            return 0;
        }
        for packet in packets {
            let mut bytes = vec![0; packet.len as usize];
            frames.arena().read(packet.frame, packet.offset, &mut bytes);
            self.written.lock().unwrap().push(bytes);
            frames.free(packet.frame);
        }
        packets.len()
    }
}

/// A daemon without processes: one wire port (number 0), services with one NF each, one chain.
struct Rig {
    plane: DataPlane,
    wire: Wire,
    handles: Vec<Arc<NfHandle>>,
    chain: Arc<Chain>,
    tables: Tables,
}

const FRAMES: u32 = 1024;

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < until, "waited too long for {what}");
        std::thread::yield_now();
    }
}

fn udp(flow: u8, payload: u32) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, flow], [10, 0, 1, 1], 9).udp(1000, 2000);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &payload.to_be_bytes()).unwrap();
    bytes
}

impl Rig {
    fn new(nfs: u16, ring: u32, overload: Overload, on_failure: OnFailure) -> Self {
        Self::with(nfs, ring, overload, on_failure, |_| {})
    }

    fn with(nfs: u16, ring: u32, overload: Overload, on_failure: OnFailure, set: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.memory.frames = FRAMES;
        config.memory.hugepages = Hugepages::Never;
        config.manager.max_violations = 3;
        config.manager.idle = sluice_api::config::Idle::Sleep;
        set(&mut config);
        let mut plane = DataPlane::start(&config, &sluice_ports::All::default(), &|_| None).unwrap();
        let chain = Arc::new(Chain {
            version: 1,
            name: "c".into(),
            services: (0..nfs).collect(),
            on_failure,
            counters: Arc::new([ChainCounters::default()]),
            ..Chain::default()
        });
        let tables = Tables {
            generation: 1,
            rules: RuleSet::new(vec![Rule::default()]),
            chains: vec![Some(chain.clone())],
            services: (0..nfs)
                .map(|nf| vec![Member { nf, id: u64::from(nf), former: None, is_open: true, thread: None }])
                .collect(),
            ports: vec![Some(PortInfo { name: "p".into(), overload, owners: vec![0], memory: 0 })],
            may_send: vec![MaySend { now: Places::new(0..128, 0..128), ever: Places::default() }; nfs.into()],
            ..Tables::default()
        };
        let mut handles = Vec::new();
        for nf in 0..nfs {
            let place = plane.place(0, None).unwrap();
            handles.push(plane.attach(nf, &format!("s{nf}.0"), nf, 0, true, ring, &place, 1.0, None).unwrap());
        }
        let mut rig = Self { plane, wire: Wire::default(), handles, chain, tables };
        rig.publish();
        rig.plane.start_rx();
        rig.plane.add_port(0, vec![Box::new(rig.wire.clone())], overload, false).unwrap();
        rig
    }

    /// Gives the threads the tables, and waits until each has them: a round that has begun would
    /// read packets with the former ones.
    fn publish(&mut self) {
        self.send_tables();
        self.plane.meet().unwrap();
    }

    fn send_tables(&mut self) {
        self.tables.generation += 1;
        self.plane.use_tables(&Arc::new(self.tables.clone()));
    }

    fn nf(&self, number: usize) -> Attached {
        let region = &self.handles[number].region;
        Attached::map(region.memory.fd(), region.page.layout()).unwrap()
    }

    fn put(&self, packets: impl IntoIterator<Item = Vec<u8>>) {
        self.wire.to_read.lock().unwrap().extend(packets);
    }

    fn dropped(&self, why: DropReason) -> u64 {
        self.chain.counters[0].drops[why as usize].get()
    }

    fn is_empty(&self) -> bool {
        self.plane.table().in_use() == 0
    }
}

/// Reads one descriptor, waiting for it.
fn read(nf: &mut Attached) -> Descriptor {
    let mut one = [Descriptor::default()];
    wait_for("a packet", || nf.rx[0].dequeue(&mut one).unwrap() == 1);
    one[0]
}

/// A wire whose packets can be waited for.
struct Signalled {
    wire: Wire,
    wake: Arc<OwnedFd>,
    was_asked: Arc<AtomicBool>,
}

impl PortQueue for Signalled {
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        let n = self.wire.rx_burst(out, frames, now_ns);
        if n > 0 {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        n
    }

    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        self.wire.tx_burst(packets, frames, now_ns)
    }

    fn arrivals(&self) -> Arrivals<'_> {
        self.was_asked.store(true, Ordering::Relaxed);
        Arrivals::Readable(self.wake.as_fd())
    }
}

// A thread that waits on the descriptor has asked for it; it would wake by itself soon.
#[test]
fn threads_that_sleep_wait_for_packets_where_ports_have_a_descriptor() {
    for idle in [Idle::Sleep, Idle::Adaptive] {
        let mut rig = Rig::with(0, 64, Overload::Wait, OnFailure::Drop, |config| config.manager.idle = idle);
        let (wire, was_asked) = (Wire::default(), Arc::new(AtomicBool::new(false)));
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let queue = Signalled { wire: wire.clone(), wake: wake.clone(), was_asked: was_asked.clone() };
        // The rig's own wire has no descriptor.
        assert_eq!(rig.plane.close_port(0).unwrap(), LetGo::Done);
        rig.plane.add_port(0, vec![Box::new(queue)], Overload::Wait, false).unwrap();
        rig.publish();
        for n in 1..=3 {
            was_asked.store(false, Ordering::Relaxed);
            wait_for("a rest", || was_asked.load(Ordering::Relaxed));
            wire.to_read.lock().unwrap().push(udp(1, n));
            rustix::io::write(&wake, &1u64.to_ne_bytes()).unwrap();
            wait_for("the packet", || wire.written.lock().unwrap().len() == n as usize);
        }
    }
}

#[test]
fn packets_pass_every_nf_in_order_and_all_frames_come_back() {
    let rig = Rig::new(2, 64, Overload::Wait, OnFailure::Drop);
    let sent: Vec<Vec<u8>> = (0..3000).map(|i| udp(1, i)).collect();
    rig.put(sent.clone());
    let done = Arc::new(AtomicBool::new(false));
    let nfs: Vec<_> = (0..2)
        .map(|i| {
            let (mut nf, done) = (rig.nf(i), done.clone());
            std::thread::spawn(move || {
                let mut burst = [Descriptor::default(); 32];
                while !done.load(Ordering::Relaxed) {
                    let n = nf.rx[0].dequeue(&mut burst).unwrap();
                    assert_eq!(nf.tx.enqueue(&burst[..n]).unwrap(), n, "the tx ring holds all that may be on its way");
                    std::thread::yield_now();
                }
            })
        })
        .collect();
    wait_for("all packets", || rig.wire.written.lock().unwrap().len() == sent.len());
    done.store(true, Ordering::Relaxed);
    nfs.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*rig.wire.written.lock().unwrap(), sent);
    wait_for("all frames", || rig.is_empty());
    assert_eq!(rig.handles[0].in_flight.load(Ordering::Relaxed), 0);
    assert_eq!(rig.handles[1].in_flight.load(Ordering::Relaxed), 0);
}

#[test]
fn a_closed_gate_drops_at_the_door_and_nowhere_else() {
    let rig = Rig::new(2, 16, Overload::Drop, OnFailure::Drop);
    rig.put((0..100).map(|i| udp(1, i)));
    wait_for("the drops", || rig.dropped(DropReason::Entry) == 100 - 16);
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    for _ in 0..16 {
        let packet = read(&mut first);
        first.tx.enqueue(&[packet]).unwrap();
        let packet = read(&mut second);
        second.tx.enqueue(&[packet]).unwrap();
    }
    wait_for("the rest", || rig.wire.written.lock().unwrap().len() == 16);
    for why in DropReason::ALL.into_iter().filter(|w| *w != DropReason::Entry) {
        assert_eq!(rig.dropped(why), 0, "{}", why.name());
    }
}

#[test]
fn every_verdict_is_carried_out() {
    let mut rig = Rig::new(2, 16, Overload::Wait, OnFailure::Drop);
    rig.tables.steered = vec![false, false, true];
    rig.publish();
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    rig.put((0..5).map(|i| udp(1, i)));
    let packets: Vec<Descriptor> = (0..5).map(|_| read(&mut first)).collect();
    let verdict = |i: usize, verdict: Verdict, arg| Descriptor { verdict: verdict as u8, arg, ..packets[i] };
    first.tx.enqueue(&[verdict(0, Verdict::Drop, 0), verdict(1, Verdict::ToPort, 0)]).unwrap();
    wait_for("the packet to the port", || rig.wire.written.lock().unwrap().len() == 1);
    assert_eq!(rig.dropped(DropReason::Verdict), 1);
    first.tx.enqueue(&[verdict(2, Verdict::ToService, 1), verdict(3, Verdict::ToPort, 77)]).unwrap();
    let there = read(&mut second);
    second.tx.enqueue(&[there]).unwrap();
    wait_for("the packet from the service", || rig.wire.written.lock().unwrap().len() == 2);
    first.tx.enqueue(&[verdict(4, Verdict::ToService, 2)]).unwrap();
    wait_for("the packet to a service that is not shared", || rig.dropped(DropReason::NotShared) == 1);
    assert_eq!(rig.dropped(DropReason::NoSuchPort), 1);
    wait_for("all frames", || rig.is_empty());
    assert!(rig.handles.iter().all(|h| h.in_flight.load(Ordering::Relaxed) == 0));
}

#[test]
fn each_nf_gets_the_kind_of_each_packet() {
    let rig = Rig::new(2, 16, Overload::Wait, OnFailure::Drop);
    let (mut arp, mut fragment) = (udp(1, 0), udp(1, 1));
    arp[12..14].copy_from_slice(&[8, 6]);
    fragment[20] |= 0x20;
    let wanted = [0, 0, flags::NON_IP, flags::FRAGMENT, flags::FRAGMENT, flags::NON_IP];
    rig.put([udp(1, 2), udp(1, 3), arp.clone(), fragment.clone(), fragment, arp]);
    for (verdict, mut nf) in [(Verdict::ToService, rig.nf(0)), (Verdict::Next, rig.nf(1))] {
        let mut packets: Vec<Descriptor> = (0..wanted.len()).map(|_| read(&mut nf)).collect();
        assert_eq!(packets.iter().map(|packet| packet.flags).collect::<Vec<_>>(), wanted);
        assert!(packets.iter().all(|packet| (packet.arg, packet.verdict, packet.chain, packet.ingress) == (0, 0, 0, 0)));
        // What an NF says of them does not count. The last one goes to the second NF by a verdict.
        packets.iter_mut().for_each(|packet| (packet.flags, packet.chain, packet.ingress) = (!packet.flags, 99, 99));
        (packets[5].verdict, packets[5].arg) = (verdict as u8, 1);
        nf.tx.enqueue(&packets).unwrap();
    }
    wait_for("the packets", || rig.wire.written.lock().unwrap().len() == wanted.len());
    wait_for("all frames", || rig.is_empty());
}

#[test]
fn packets_that_alternate_between_many_paths_reach_their_nfs_in_order() {
    const PATHS: u16 = 40;
    for overload in [Overload::Wait, Overload::Drop] {
        let mut rig = Rig::new(PATHS, 16, overload, OnFailure::Drop);
        rig.tables.chains = (0..PATHS).map(|number| Some(chain_to(number, OnFailure::Drop))).collect();
        rig.tables.rules = RuleSet::new((0..PATHS).map(|number| rule_of(number as u8, number)).collect());
        rig.publish();
        let stray = PATHS as u8;
        let payload = |flow: u8, i: u32| u32::from(flow) << 8 | i;
        rig.put((0..8).flat_map(|i| (0..=stray).map(move |flow| udp(flow, payload(flow, i)))));
        for flow in 0..stray {
            let mut nf = rig.nf(flow.into());
            for i in 0..8 {
                let packet = read(&mut nf);
                let mut bytes = [0; 46];
                assert!(rig.plane.arena().read(packet.frame, packet.offset, &mut bytes));
                assert_eq!(bytes[42..], payload(flow, i).to_be_bytes(), "{overload:?}");
                assert_eq!(packet.chain, u16::from(flow));
                nf.tx.enqueue(&[packet]).unwrap();
            }
        }
        wait_for("the packets", || rig.wire.written.lock().unwrap().len() == 8 * usize::from(PATHS));
        wait_for("all frames", || rig.is_empty());
    }
}

#[test]
fn a_packet_that_nfs_send_to_each_other_without_end_is_dropped() {
    let rig = Rig::new(2, 16, Overload::Wait, OnFailure::Drop);
    let mut nfs = [rig.nf(0), rig.nf(1)];
    rig.put([udp(1, 0)]);
    let most = usize::from(DETOURS / DETOUR);
    for n in 0..=most {
        let (from, to) = (n % 2, (n + 1) % 2);
        let packet = read(&mut nfs[from]);
        nfs[from].tx.enqueue(&[Descriptor { verdict: Verdict::ToService as u8, arg: to as u16, ..packet }]).unwrap();
    }
    wait_for("the packet to be dropped", || rig.dropped(DropReason::NotAllowed) == 1);
    wait_for("all frames", || rig.is_empty());
    assert!(rig.handles.iter().all(|h| h.in_flight.load(Ordering::Relaxed) == 0 && h.violations.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_throttle_drops_no_packet_that_is_inside() {
    let rig = Rig::new(2, 16, Overload::Drop, OnFailure::Drop);
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    rig.put([udp(1, 0), udp(1, 1)]);
    let (next, there) = (read(&mut first), read(&mut first));
    rig.handles[1].gate.throttled.store(true, Ordering::Relaxed);
    rig.put([udp(1, 2)]);
    wait_for("the refusal of a third", || rig.dropped(DropReason::Entry) == 1);
    // One packet goes on along its chain; a verdict sends the other to the same NF.
    first.tx.enqueue(&[next, Descriptor { verdict: Verdict::ToService as u8, arg: 1, ..there }]).unwrap();
    for _ in 0..2 {
        let packet = read(&mut second);
        second.tx.enqueue(&[packet]).unwrap();
    }
    wait_for("both packets", || rig.wire.written.lock().unwrap().len() == 2);
    assert_eq!(rig.dropped(DropReason::RingFull), 0);
    wait_for("all frames", || rig.is_empty());
}

#[test]
fn forged_descriptors_hurt_only_the_forger() {
    let rig = Rig::new(2, 64, Overload::Wait, OnFailure::Drop);
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    rig.put((0..2).map(|i| udp(1, i)));
    let mine = read(&mut first);
    let long = read(&mut first);
    // A replay, another's frame, a frame that does not exist, and a length past the frame.
    let forged = [
        mine,
        mine,
        Descriptor { frame: (mine.frame + 500) % FRAMES, ..mine },
        Descriptor { frame: u32::MAX, ..mine },
        Descriptor { offset: 2000, len: 2000, ..long },
    ];
    first.tx.enqueue(&forged).unwrap();
    wait_for("the violations", || rig.handles[0].violations.load(Ordering::Relaxed) == 4);
    wait_for("the frame with the wild length to be taken away", || rig.dropped(DropReason::Violation) == 1);
    wait_for("the stop reason", || rig.handles[0].stop_reason() == StopReason::Violations);
    let passed = read(&mut second);
    assert_eq!(passed.frame, mine.frame);
    second.tx.enqueue(&[passed]).unwrap();
    wait_for("the one good packet", || rig.wire.written.lock().unwrap().len() == 1);
    wait_for("all frames", || rig.is_empty());
    assert_eq!(rig.handles[1].violations.load(Ordering::Relaxed), 0);
}

#[test]
fn wild_cursors_are_violations() {
    let rig = Rig::new(1, 16, Overload::Wait, OnFailure::Drop);
    let layout = rig.handles[0].region.page.layout();
    let mapping = sluice_shm::memory::Mapping::new(rig.handles[0].region.memory.fd(), layout.bytes as usize, false).unwrap();
    let tx = layout.rings as usize + layout.rx_rings as usize * sluice_shm::ring::bytes(layout.capacity);
    mapping.atomic_u32(tx).unwrap().store(1_000_000, Ordering::Relaxed);
    wait_for("the stop reason", || rig.handles[0].stop_reason() == StopReason::Violations);
    assert!(rig.is_empty());
}

#[test]
fn past_its_limit_nothing_more_is_taken_from_an_nf() {
    let rig = Rig::new(1, 16, Overload::Wait, OnFailure::Drop);
    let mut nf = rig.nf(0);
    rig.put((0..2).map(|i| udp(1, i)));
    let good = [read(&mut nf), read(&mut nf)];
    let forged = Descriptor { frame: u32::MAX, ..good[0] };
    nf.tx.enqueue(&[good[0], forged, forged, forged, forged]).unwrap();
    wait_for("the stop reason", || rig.handles[0].stop_reason() == StopReason::Violations);
    nf.tx.enqueue(&[good[1], forged]).unwrap();
    // Whole rounds of the thread lie between two of these.
    (0..3).for_each(|_| rig.plane.meet().unwrap());
    assert_eq!(rig.handles[0].violations.load(Ordering::Relaxed), 4, "what came later was not looked at");
    assert_eq!(rig.plane.detach(0).unwrap(), 1);
    assert_eq!((rig.dropped(DropReason::NfDied), rig.chain.counters[0].api.exit_packets.get()), (1, 1));
    assert!(rig.is_empty());
}

#[test]
fn one_that_goes_on_writing_a_dead_nfs_ring_does_not_keep_its_thread() {
    let rig = Rig::with(1, 16, Overload::Wait, OnFailure::Drop, |config| config.manager.max_violations = u64::MAX);
    let layout = rig.handles[0].region.page.layout();
    let mapping = sluice_shm::memory::Mapping::new(rig.handles[0].region.memory.fd(), layout.bytes as usize, false).unwrap();
    let tx = layout.rings as usize + layout.rx_rings as usize * sluice_shm::ring::bytes(layout.capacity);
    let done = Arc::new(AtomicBool::new(false));
    let child = std::thread::spawn({
        let done = done.clone();
        move || {
            let (head, tail) = (mapping.atomic_u32(tx).unwrap(), mapping.atomic_u32(tx + 64).unwrap());
            while !done.load(Ordering::Relaxed) {
                head.store(tail.load(Ordering::Relaxed).wrapping_add(16), Ordering::Relaxed);
            }
        }
    });
    wait_for("it to be drained", || rig.handles[0].violations.load(Ordering::Relaxed) > 1000);
    assert_eq!(rig.plane.detach(0).unwrap(), 0);
    done.store(true, Ordering::Relaxed);
    child.join().unwrap();
}

#[test]
fn the_frames_of_a_dead_nf_come_back_and_its_neighbours_go_on() {
    let mut rig = Rig::new(2, 64, Overload::Drop, OnFailure::Bypass);
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    rig.put((0..10).map(|i| udp(1, i)));
    let packets: Vec<Descriptor> = (0..10).map(|_| read(&mut first)).collect();
    // It returned three before it died, and got five more that it never read.
    first.tx.enqueue(&packets[..3]).unwrap();
    rig.put((10..15).map(|i| udp(1, i)));
    wait_for("the unread ones", || rig.handles[0].posted_returned().0 == 15);
    rig.tables.services[0].clear();
    rig.publish();
    assert_eq!(rig.plane.detach(0).unwrap(), 12);
    assert_eq!(rig.dropped(DropReason::NfDied), 12);
    for _ in 0..3 {
        let packet = read(&mut second);
        second.tx.enqueue(&[packet]).unwrap();
    }
    wait_for("what it had returned", || rig.wire.written.lock().unwrap().len() == 3);
    rig.put([udp(1, 99)]);
    let packet = read(&mut second);
    second.tx.enqueue(&[packet]).unwrap();
    wait_for("the chain without it", || rig.wire.written.lock().unwrap().last() == Some(&udp(1, 99)));
    wait_for("all frames", || rig.is_empty());
    assert_eq!(rig.handles[1].in_flight.load(Ordering::Relaxed), 0);
}

#[test]
fn a_waiting_port_holds_its_packets_until_the_nf_is_back() {
    let mut rig = Rig::new(1, 64, Overload::Wait, OnFailure::Restart);
    rig.tables.services[0].clear();
    rig.publish();
    rig.plane.detach(0).unwrap();
    rig.put((0..3).map(|i| udp(1, i)));
    wait_for("the packets to be held", || rig.plane.snapshots().unwrap()[0].waiting == 3);
    let place = rig.plane.place(0, None).unwrap();
    rig.handles[0] = rig.plane.attach(0, "s0.0", 0, 0, true, 64, &place, 1.0, None).unwrap();
    rig.tables.services[0].push(Member { nf: 0, id: 0, former: None, is_open: true, thread: None });
    rig.publish();
    let mut nf = rig.nf(0);
    for _ in 0..3 {
        let packet = read(&mut nf);
        nf.tx.enqueue(&[packet]).unwrap();
    }
    wait_for("all of them", || rig.wire.written.lock().unwrap().len() == 3);
}

#[test]
fn what_is_foreseen_of_a_packet_is_what_happens_to_it() {
    let mut rig = Rig::new(2, 16, Overload::Drop, OnFailure::Drop);
    let outlook = |rig: &Rig, flow: u8| rig.plane.outlooks(&[0], &udp(flow, 0), 46, 0).unwrap().remove(0);
    let fresh = outlook(&rig, 1);
    assert_eq!((fresh.fate, fresh.rule, fresh.chain, fresh.flow), (Fate::Enters, Some(0), Some(0), None));
    assert_eq!(fresh.nfs, [Foreseen::Nf(0), Foreseen::Nf(1)]);
    // However often it is asked, what is granted to packets stays.
    let asked = rig.plane.ask(0, |worker| {
        let (plane, rx) = worker.parts();
        rx.outlook(plane, &udp(1, 0), 46, 0);
        let before = (plane.rooms.clone(), plane.unlooked);
        (0..100).for_each(|_| drop(rx.outlook(plane, &udp(1, 0), 46, 0)));
        (before, (plane.rooms.clone(), plane.unlooked))
    });
    let (before, after) = asked.unwrap();
    assert_eq!(before, after);
    rig.put((0..100).map(|i| udp(1, i)));
    wait_for("the drops", || rig.dropped(DropReason::Entry) == 100 - 16);
    for flow in [1, 2] {
        let closed = outlook(&rig, flow);
        let is_closed = matches!(closed.fate, Fate::KeptOut(Obstacle::Full(0 | 1) | Obstacle::Throttled(0 | 1)));
        assert!(is_closed && closed.flow.is_some() == (flow == 1), "{closed:?}");
    }
    let known = outlook(&rig, 1).flow.unwrap();
    assert!(known.stands && known.nfs == [0, 1], "{known:?}");
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    for _ in 0..16 {
        let packet = read(&mut first);
        first.tx.enqueue(&[packet]).unwrap();
        let packet = read(&mut second);
        second.tx.enqueue(&[packet]).unwrap();
    }
    wait_for("an open gate", || outlook(&rig, 1).fate == Fate::Enters);
    wait_for("the rest", || rig.wire.written.lock().unwrap().len() == 16);
    // Whatever was asked, nothing was let in.
    assert_eq!((rig.dropped(DropReason::Entry), rig.chain.counters[0].api.entry_packets.get()), (84, 16));
    assert!(rig.handles.iter().all(|handle| handle.in_flight.load(Ordering::Relaxed) == 0));
    rig.tables.services[1].clear();
    rig.publish();
    for flow in [1, 2] {
        assert_eq!(outlook(&rig, flow).fate, Fate::Refused(Refusal::NfDown));
    }
    rig.tables.rules = RuleSet::default();
    rig.publish();
    let stray = outlook(&rig, 2);
    assert_eq!((stray.fate, stray.rule, stray.chain), (Fate::Refused(Refusal::NoRule), None, None));
}

/// Captures one packet of each kind that is dropped from now on.
fn capture_drops(plane: &DataPlane) -> CaptureReader {
    let scope = CaptureScope { chain: None, points: vec![Point::Dropped], every: 1, each: Some(1), snap: 100, follows: None };
    let (tap, reader) = pair(&Arc::new(scope), 1 << 14);
    plane.send(0, move |worker| worker.capture(tap));
    plane.meet().unwrap();
    reader
}

#[test]
fn what_a_port_does_not_take_is_captured_with_the_reason() {
    let rig = Rig::new(1, 1024, Overload::Drop, OnFailure::Drop);
    let mut reader = capture_drops(&rig.plane);
    rig.wire.jammed.store(true, Ordering::Relaxed);
    let mut nf = rig.nf(0);
    let mut pass_on = || {
        let mut burst = [Descriptor::default(); BURST];
        let room = nf.tx.room().unwrap() as usize;
        let n = nf.rx[0].dequeue(&mut burst[..room.min(BURST)]).unwrap();
        nf.tx.enqueue(&burst[..n]).unwrap();
    };
    let mut record = CapturedPacket::default();
    wait_for("the drop", || {
        if rig.wire.to_read.lock().unwrap().is_empty() {
            rig.put((0..501).map(|i| udp(1, i)));
        }
        pass_on();
        // The chain's gate drops some, too.
        while reader.take(&mut record) {
            if record.sighting.why == Some(PortDrop::Untaken.into()) {
                return true;
            }
        }
        false
    });
    assert_eq!((record.sighting.place, record.len), (Some(DropPlace::Port(0)), 46));
    // Up to the checksum.
    assert_eq!(record.bytes[..40], udp(1, 0)[..40]);
    rig.wire.jammed.store(false, Ordering::Relaxed);
    wait_for("all frames", || {
        pass_on();
        rig.is_empty()
    });
}

#[test]
fn of_a_packet_whose_length_is_lost_the_headers_are_shown() {
    let rig = Rig::new(1, 16, Overload::Wait, OnFailure::Drop);
    let mut reader = capture_drops(&rig.plane);
    let mut long = udp(1, 0);
    long.resize(300, 7);
    long[16..18].copy_from_slice(&286u16.to_be_bytes());
    rig.put([long.clone()]);
    let mut nf = rig.nf(0);
    let packet = read(&mut nf);
    nf.tx.enqueue(&[Descriptor { offset: 2000, len: 2000, ..packet }]).unwrap();
    let mut record = CapturedPacket::default();
    wait_for("the drop", || reader.take(&mut record));
    let sighting = &record.sighting;
    assert_eq!((sighting.why, sighting.place), (Some(DropReason::Violation.into()), Some(DropPlace::Nf(0))));
    assert_eq!((record.len, &record.bytes[..]), (64, &long[..64]));
    wait_for("all frames", || rig.is_empty());
}

#[test]
fn a_packet_that_finds_no_room_on_a_detour_is_dropped_where_there_is_none() {
    let rig = Rig::new(2, 16, Overload::Drop, OnFailure::Drop);
    let mut reader = capture_drops(&rig.plane);
    rig.put((0..100).map(|i| udp(1, i)));
    wait_for("a full chain", || rig.dropped(DropReason::Entry) == 100 - 16);
    let mut first = rig.nf(0);
    let packet = read(&mut first);
    first.tx.enqueue(&[Descriptor { verdict: Verdict::ToService as u8, arg: 1, ..packet }]).unwrap();
    let mut record = CapturedPacket::default();
    let is_it = |record: &CapturedPacket| record.sighting.why == Some(DropReason::RingFull.into());
    wait_for("the drop", || reader.take(&mut record) && is_it(&record));
    assert_eq!(record.sighting.place, Some(DropPlace::Nf(1)));
}

/// Traces up to `count` packets from now on.
fn trace(plane: &DataPlane, chain: Option<u16>, rule: Option<usize>, count: i64) -> Arc<TraceRequest> {
    let (left, events) = (std::sync::atomic::AtomicI64::new(count), crossbeam_queue::ArrayQueue::new(8192));
    let heads = crossbeam_queue::ArrayQueue::new(count as usize);
    let trace = Arc::new(TraceRequest { rule, chain, ingress: None, filter: None, left, events, heads });
    plane.trace(Some(&trace));
    plane.meet().unwrap();
    trace
}

/// The events of a trace until this many packets have ended.
fn reported(trace: &TraceRequest, ends: usize) -> Vec<TraceEvent> {
    let mut events: Vec<TraceEvent> = Vec::new();
    wait_for("the ends of traced packets", || {
        events.extend(std::iter::from_fn(|| trace.events.pop()));
        events.iter().filter(|event| event.what.is_end()).count() >= ends
    });
    events
}

/// The chains and reasons of refused packets in a trace.
fn refused(events: &[TraceEvent]) -> Vec<(Option<u16>, &'static str)> {
    let refused = |event: &TraceEvent| match event.what {
        TraceWhat::Refused { ingress: 0, chain, why } => Some((chain, why)),
        _ => None,
    };
    events.iter().filter_map(refused).collect()
}

#[test]
fn a_trace_tells_every_hop() {
    let rig = Rig::new(1, 64, Overload::Wait, OnFailure::Drop);
    let trace = trace(&rig.plane, Some(0), None, 1);
    rig.put([udp(1, 1), udp(1, 2)]);
    let mut nf = rig.nf(0);
    let burst = [read(&mut nf), read(&mut nf)];
    nf.tx.enqueue(&burst).unwrap();
    wait_for("both", || rig.wire.written.lock().unwrap().len() == 2);
    let events: Vec<_> = std::iter::from_fn(|| trace.events.pop()).collect();
    use sluice_dataplane::trace::TraceWhat::{FromNf, ToNf, ToPort};
    assert_eq!(events.iter().map(|e| e.what).collect::<Vec<_>>(), [ToNf(0), FromNf(0), ToPort(0)]);
    assert!(events.windows(2).all(|w| w[0].at_ns <= w[1].at_ns && w[0].packet == w[1].packet));
}

#[test]
fn a_trace_of_a_chain_without_services_ends_at_its_port() {
    let rig = Rig::new(0, 64, Overload::Wait, OnFailure::Drop);
    let trace = trace(&rig.plane, Some(0), None, 1);
    rig.put([udp(1, 1)]);
    assert_eq!(reported(&trace, 1).iter().map(|e| e.what).collect::<Vec<_>>(), [TraceWhat::ToPort(0)]);
}

#[test]
fn packets_that_no_rule_takes_are_traced_and_are_of_no_chain() {
    let mut rig = Rig::new(1, 16, Overload::Drop, OnFailure::Drop);
    rig.tables.rules = RuleSet::new(vec![rule_of(1, 0)]);
    rig.publish();
    for (chain, rule) in [(None, None), (Some(0), None), (None, Some(0))] {
        let trace = trace(&rig.plane, chain, rule, 2);
        rig.put([udp(2, 0), udp(2, 1), udp(2, 2), udp(1, 3)]);
        let mut nf = rig.nf(0);
        let packet = read(&mut nf);
        nf.tx.enqueue(&[packet]).unwrap();
        match (chain, rule) {
            (None, None) => assert_eq!(refused(&reported(&trace, 2)), [(None, "no_rule"); 2], "as many as are wanted"),
            _ => assert!(refused(&reported(&trace, 1)).is_empty(), "those of the chain, or of the rule, alone"),
        }
    }
}

#[test]
fn packets_that_are_refused_are_traced_with_the_reason() {
    let mut rig = Rig::new(1, 16, Overload::Drop, OnFailure::Drop);
    rig.tables.rules = RuleSet::new(vec![rule_of(1, 0), rule_of(2, 0)]);
    rig.publish();
    let packets = |flow: u8| (0..40).map(move |i| udp(flow, i));
    // The gate closes when the ring is full.
    let request = trace(&rig.plane, Some(0), None, 24);
    rig.put(packets(1));
    // Of a burst, the trace follows one admitted packet, and each refused one, up to the limit.
    let entry = (Some(0), DropReason::Entry.name());
    let events = reported(&request, 23);
    assert_eq!((refused(&events), events[0].what), (vec![entry; 23], TraceWhat::ToNf(0)));
    wait_for("the drops", || rig.dropped(DropReason::Entry) == 24);
    let of_rule = trace(&rig.plane, None, Some(1), 100);
    rig.put(packets(1).chain(packets(2)));
    let events = reported(&of_rule, 40);
    assert_eq!(refused(&events), [entry; 40], "those of the rule alone");
    assert!(events.iter().all(|event| event.len == udp(1, 0).len() as u16));
    let mut nf = rig.nf(0);
    for _ in 0..16 {
        let packet = read(&mut nf);
        nf.tx.enqueue(&[packet]).unwrap();
    }
    wait_for("all frames", || rig.is_empty());
    // More packets than the limit admits.
    let counters = rig.chain.counters.clone();
    let bucket = sluice_dataplane::bucket::Bucket::default();
    bucket.limit(0, Some((1e-3, 1)));
    let name = rig.chain.name.clone();
    let (number, version, services, reversed, egress, on_failure) = (0, 2, vec![0], Vec::new(), 0, OnFailure::Drop);
    let police = Some(Arc::new(bucket));
    rig.tables.chains[0] =
        Some(Arc::new(Chain { number, version, name, services, reversed, egress, on_failure, counters, police }));
    rig.publish();
    let policed = trace(&rig.plane, Some(0), None, 8);
    rig.put(packets(2));
    assert_eq!(refused(&reported(&policed, 7))[..7], [(Some(0), DropReason::Policed.name()); 7]);
    rig.tables.services[0].clear();
    rig.publish();
    let down = trace(&rig.plane, Some(0), None, 8);
    rig.put(packets(1));
    assert_eq!(refused(&reported(&down, 8)), [(Some(0), Refusal::NfDown.name()); 8]);
}

#[test]
fn packets_that_wait_at_the_entry_are_traced_once_when_they_go() {
    let mut rig = Rig::new(1, 16, Overload::Wait, OnFailure::Drop);
    rig.tables.rules = RuleSet::new(vec![rule_of(1, 0), rule_of(2, 0)]);
    rig.publish();
    let everything = trace(&rig.plane, None, None, 1000);
    rig.put((0..100).map(|i| udp(1, i)));
    wait_for("a full ring", || rig.handles[0].in_flight.load(Ordering::Relaxed) == 16);
    // The waiting packets were read before the request for a rule.
    let none = trace(&rig.plane, None, Some(1), 1000);
    let mut nf = rig.nf(0);
    let mut pass = |n: usize| {
        for _ in 0..n {
            let packet = read(&mut nf);
            nf.tx.enqueue(&[packet]).unwrap();
        }
    };
    pass(50);
    rig.plane.trace(Some(&everything));
    pass(50);
    wait_for("all packets", || rig.wire.written.lock().unwrap().len() == 100);
    rig.plane.meet().unwrap();
    assert_eq!(none.left.load(Ordering::Relaxed), 1000);
    let events: Vec<_> = std::iter::from_fn(|| everything.events.pop()).collect();
    let began = events.iter().filter(|event| event.what == TraceWhat::ToNf(0)).count() as i64;
    assert!(refused(&events).is_empty());
    assert_eq!(everything.left.load(Ordering::Relaxed), 1000 - began);
}

#[test]
fn nfs_of_one_core_share_a_page_and_those_of_another_tenant_do_not() {
    let mut rig = Rig::new(1, 16, Overload::Drop, OnFailure::Drop);
    let a = rig.plane.place(1, None).unwrap();
    let b = rig.plane.place(1, None).unwrap();
    let c = rig.plane.place(1, Some("t".into())).unwrap();
    assert!(a.page.is_same(&b.page) && a.slot != b.slot);
    assert!(!a.page.is_same(&c.page));
    rig.plane.vacate(&a);
    assert_eq!(rig.plane.place(1, None).unwrap().slot, a.slot);
}

#[test]
fn packets_upstream_of_an_nf_that_restarts_are_counted_off_and_the_gate_opens_again() {
    let mut rig = Rig::new(2, 16, Overload::Drop, OnFailure::Restart);
    let mut first = rig.nf(0);
    rig.put((0..16).map(|i| udp(1, i)));
    let packets: Vec<Descriptor> = (0..16).map(|_| read(&mut first)).collect();
    // The second NF is removed while all packets are with the first. Half of them come back while
    // it is gone, half when it is there again.
    rig.tables.services[1].clear();
    rig.publish();
    rig.plane.detach(1).unwrap();
    first.tx.enqueue(&packets[..8]).unwrap();
    wait_for("the drops", || rig.dropped(DropReason::NfGone) == 8);
    let place = rig.plane.place(0, None).unwrap();
    rig.handles[1] = rig.plane.attach(1, "s1.0", 1, 0, true, 16, &place, 1.0, None).unwrap();
    assert_eq!(rig.handles[1].in_flight.load(Ordering::Relaxed), 8);
    rig.tables.services[1].push(Member { nf: 1, id: 1, former: None, is_open: true, thread: None });
    rig.publish();
    let mut second = rig.nf(1);
    first.tx.enqueue(&packets[8..]).unwrap();
    for _ in 0..8 {
        let packet = read(&mut second);
        second.tx.enqueue(&[packet]).unwrap();
    }
    wait_for("the other half", || rig.wire.written.lock().unwrap().len() == 8);
    wait_for("all frames", || rig.is_empty());
    assert!(rig.handles.iter().all(|h| h.in_flight.load(Ordering::Relaxed) == 0));
    rig.put([udp(1, 99)]);
    let packet = read(&mut first);
    first.tx.enqueue(&[packet]).unwrap();
    let packet = read(&mut second);
    second.tx.enqueue(&[packet]).unwrap();
    wait_for("a packet of the open chain", || rig.wire.written.lock().unwrap().len() == 9);
}

#[test]
fn what_a_successor_returns_waits_for_the_last_packet_of_the_one_before() {
    let mut rig = Rig::new(1, 16, Overload::Wait, OnFailure::Restart);
    let mut old = rig.nf(0);
    rig.put((0..4).map(|i| udp(1, i)));
    let packets: Vec<Descriptor> = (0..4).map(|_| read(&mut old)).collect();
    let place = rig.plane.place(0, None).unwrap();
    rig.handles.push(rig.plane.attach(1, "s0.1", 0, 0, true, 16, &place, 1.0, None).unwrap());
    let succession = Succession::after([rig.handles[0].in_flight.clone()]);
    rig.plane.follow(1, &succession).unwrap();
    rig.tables.services[0] = vec![Member { nf: 1, id: 0, former: Some(0), is_open: true, thread: None }];
    rig.publish();
    succession.settle();
    rig.put((4..8).map(|i| udp(1, i)));
    let mut new = rig.nf(1);
    let more: Vec<Descriptor> = (0..4).map(|_| read(&mut new)).collect();
    new.tx.enqueue(&more).unwrap();
    old.tx.enqueue(&packets[..2]).unwrap();
    wait_for("half of the old ones", || rig.wire.written.lock().unwrap().len() == 2);
    // Whole rounds of the thread lie between two of these.
    (0..3).for_each(|_| rig.plane.meet().unwrap());
    assert_eq!(rig.wire.written.lock().unwrap().len(), 2, "two are with the old one still");
    assert!(rig.handles[1].is_behind.load(Ordering::Relaxed));
    old.tx.enqueue(&packets[2..]).unwrap();
    wait_for("all of them", || rig.wire.written.lock().unwrap().len() == 8);
    assert_eq!(*rig.wire.written.lock().unwrap(), (0..8).map(|i| udp(1, i)).collect::<Vec<_>>());
    wait_for("all frames", || rig.is_empty());
    assert!(!rig.handles[1].is_behind.load(Ordering::Relaxed));
}

#[test]
fn a_thread_passes_a_fence_when_it_has_sent_what_it_had_decided_before() {
    let mut rig = Rig::new(1, 16, Overload::Wait, OnFailure::Restart);
    let wire = rig.wire.clone();
    let mut to_read = wire.to_read.lock().unwrap();
    wait_for("a read that waits", || wire.reads[0].load(Ordering::Relaxed) > wire.reads[1].load(Ordering::Relaxed));
    rig.tables.services[0].clear();
    rig.send_tables();
    let mut fence = rig.plane.fence();
    assert!(!fence.is_passed(), "the thread reads with the old tables");
    to_read.push(udp(1, 0));
    drop(to_read);
    wait_for("the thread", || fence.is_passed());
    assert_eq!(rig.handles[0].in_flight.load(Ordering::Relaxed), 1);
    assert!(fence.is_passed(), "and remains so");
    rig.plane.stop();
    assert!(rig.plane.fence().is_passed(), "nobody is left to wait for");
}

/// A rule that sends packets with this last byte of the source address to a chain.
fn rule_of(flow: u8, chain: u16) -> Rule {
    let text = format!("src = \"10.0.0.{flow}\"\nchain = \"c\"");
    let rule: sluice_api::config::Rule = toml::from_str(&text).unwrap();
    sluice_dataplane::classify::compile::compile(&rule, 0, &HashMap::new(), &HashMap::from([("c".into(), chain)])).unwrap()
}

/// A chain to the one NF that has its number.
fn chain_to(number: u16, on_failure: OnFailure) -> Arc<Chain> {
    let counters = Arc::new([ChainCounters::default()]);
    let (name, services) = (format!("c{number}"), vec![number]);
    Arc::new(Chain { number, version: 2, name, services, on_failure, counters, ..Chain::default() })
}

/// Gives the rig two chains of one NF: flow 1 takes chain 0, flow 2 chain 1. Returns the counts.
fn part(rig: &mut Rig) -> [sluice_dataplane::classify::hits::RuleHits; 2] {
    use sluice_dataplane::classify::hits::RuleHits;
    let hits = [RuleHits::new(1), RuleHits::new(1)];
    rig.tables.chains = [0, 1].map(|number| Some(chain_to(number, rig.chain.on_failure))).into();
    rig.tables.rules = RuleSet::new(vec![rule_of(1, 0), rule_of(2, 1)]).counting(hits.to_vec());
    rig.publish();
    hits
}

/// Gives the rig `n` chains of one NF, beside those that it has of them: flow n takes chain n - 1.
fn part_in(rig: &mut Rig, n: u16) {
    rig.tables.chains.retain(|chain| chain.as_ref().is_some_and(|chain| chain.version == 2));
    let had = rig.tables.chains.len() as u16;
    rig.tables.chains.extend((had..n).map(|number| Some(chain_to(number, OnFailure::Drop))));
    rig.tables.rules = RuleSet::new((0..n).map(|number| rule_of(number as u8 + 1, number)).collect());
    rig.publish();
}

/// Passes a packet of a flow through its NF and out. No other packet may be on its way out.
fn pass(rig: &Rig, nf: &mut Attached, flow: u8) {
    rig.put([udp(flow, 0)]);
    pass_next(rig, nf);
}

/// Passes the packet that is or will be in the NF's ring, and waits until it is out.
fn pass_next(rig: &Rig, nf: &mut Attached) {
    let packet = read(nf);
    let before = rig.wire.written.lock().unwrap().len();
    nf.tx.enqueue(&[packet]).unwrap();
    wait_for("the packet", || rig.wire.written.lock().unwrap().len() > before);
    assert_eq!(rig.wire.written.lock().unwrap().len(), before + 1);
}

#[test]
fn the_end_and_the_start_of_an_nf_have_no_flows_decided_anew_but_its_own() {
    let mut rig = Rig::new(2, 16, Overload::Wait, OnFailure::Restart);
    let hits = part(&mut rig);
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    pass(&rig, &mut first, 1);
    pass(&rig, &mut second, 2);
    assert_eq!(hits.each_ref().map(|hits| hits.total()), [1, 1]);
    for round in 1..4 {
        rig.tables.services[1].clear();
        rig.publish();
        rig.plane.detach(1).unwrap();
        pass(&rig, &mut first, 1);
        rig.put([udp(2, 0)]);
        wait_for("the packet that waits for the other NF", || rig.plane.snapshots().unwrap()[0].waiting == 1);
        let place = rig.plane.place(0, None).unwrap();
        rig.handles[1] = rig.plane.attach(1, "s1.0", 1, 0, true, 16, &place, 1.0, None).unwrap();
        rig.tables.services[1].push(Member { nf: 1, id: 1, former: None, is_open: true, thread: None });
        rig.publish();
        second = rig.nf(1);
        pass_next(&rig, &mut second);
        pass(&rig, &mut first, 1);
        assert_eq!(hits[0].total(), 1, "round {round}: nobody asked the rules about a flow that went on");
        assert!(hits[1].total() > round, "round {round}: those of the NF were decided anew");
    }
    // Another chain, another port, and other instances elsewhere change nothing either.
    let another = Arc::new(Chain {
        number: 2,
        version: 9,
        name: "c2".into(),
        services: vec![0],
        on_failure: OnFailure::Drop,
        counters: Arc::new([ChainCounters::default()]),
        ..Chain::default()
    });
    rig.tables.chains.push(Some(another));
    rig.tables.ports.push(Some(PortInfo { name: "q".into(), overload: Overload::Drop, owners: vec![0], memory: 0 }));
    rig.publish();
    pass(&rig, &mut first, 1);
    assert_eq!(hits[0].total(), 1);
    // Other rules do.
    rig.tables.rules = RuleSet::new(vec![rule_of(1, 2), rule_of(2, 1)]).counting(hits.to_vec());
    rig.publish();
    pass(&rig, &mut first, 1);
    assert_eq!(hits[0].total(), 2);
}

#[test]
fn a_pool_that_comes_has_no_flows_decided_anew_but_those_of_its_service() {
    use sluice_api::config::Per;
    use sluice_pools::{PoolCounters, PoolMember};
    let mut rig = Rig::new(2, 16, Overload::Wait, OnFailure::Restart);
    let hits = part(&mut rig);
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    pass(&rig, &mut first, 1);
    pass(&rig, &mut second, 2);
    let come = |rig: &mut Rig, service: u16, nfs: &[u16]| {
        let table = PoolTable {
            service,
            per: Per::Rss,
            pool: model::Pool::default(),
            fallback: None,
            members: nfs.iter().map(|nf| PoolMember { nf: *nf, part: 0, leaves: false }).collect(),
            counters: Arc::new([PoolCounters::default()]),
            assigned: None,
            waker: None,
        };
        rig.plane.use_pool(&Arc::new(table));
        rig.plane.meet().unwrap();
    };
    come(&mut rig, 7, &[]);
    pass(&rig, &mut first, 1);
    pass(&rig, &mut second, 2);
    assert_eq!(hits.each_ref().map(|hits| hits.total()), [1, 1], "the pool of a service of no chain");
    come(&mut rig, 1, &[1]);
    pass(&rig, &mut first, 1);
    pass(&rig, &mut second, 2);
    assert_eq!(hits.each_ref().map(|hits| hits.total()), [1, 2], "a service that is a pool from now on");
}

#[test]
fn a_chain_that_is_replaced_again_and_again_uses_no_more_paths_than_there_are() {
    let mut rig = Rig::with(1, 16, Overload::Wait, OnFailure::Restart, |config| config.manager.max_paths = 4);
    let mut nf = rig.nf(0);
    let mut one = [Descriptor::default()];
    for n in 0..1000 {
        let old = &rig.chain;
        let (name, services, counters) = (old.name.clone(), old.services.clone(), old.counters.clone());
        let on_failure = if n % 2 == 0 { OnFailure::Bypass } else { OnFailure::Restart };
        let (number, version, reversed, egress, police) = (0, n + 2, Vec::new(), 0, None);
        let chain = Chain { number, version, name, services, reversed, egress, on_failure, counters, police };
        rig.tables.chains[0] = Some(Arc::new(chain));
        rig.publish();
        rig.put([udp(1, n), udp(2, n)]);
        let mut passed = 0;
        wait_for("both packets", || {
            rig.plane.collect();
            if nf.rx[0].dequeue(&mut one).unwrap() == 1 {
                nf.tx.enqueue(&one).unwrap();
                passed += 1;
            }
            passed == 2
        });
    }
    wait_for("all packets", || rig.wire.written.lock().unwrap().len() == 2000);
    assert!(DropReason::ALL.into_iter().all(|why| rig.dropped(why) == 0));
    assert_eq!(rig.plane.snapshots().unwrap()[0].refused(Refusal::NoPath), 0);
    pass(&rig, &mut nf, 1);
    wait_for("former paths to be freed", || {
        rig.plane.collect();
        rig.plane.is_collected() && rig.plane.registry().len() == 1
    });
    assert_eq!(Arc::strong_count(&rig.chain), 1, "nobody has the chain that there was at first");
}

#[test]
fn a_chain_that_gets_the_number_of_another_has_none_of_its_latencies() {
    let mut rig = Rig::new(1, 16, Overload::Wait, OnFailure::Restart);
    let mut nf = rig.nf(0);
    (0..64).for_each(|_| pass(&rig, &mut nf, 1));
    let timed =
        |rig: &Rig| rig.plane.snapshots().unwrap()[0].latencies.iter().flatten().next().map_or(0, |latency| latency.count());
    assert!(timed(&rig) > 0);
    rig.publish();
    assert!(timed(&rig) > 0, "it is the same one");
    let chain = rig.tables.chains[0].take();
    rig.publish();
    rig.tables.chains[0] = chain;
    rig.publish();
    assert_eq!(timed(&rig), 0);
}

#[test]
fn chains_and_ports_that_come_and_go_leave_nothing_behind() {
    let mut rig = Rig::new(1, 16, Overload::Wait, OnFailure::Restart);
    let mut nf = rig.nf(0);
    pass(&rig, &mut nf, 1);
    let mut gone = Vec::new();
    // Numbers that are never given again, as with a controller.
    for number in 1..=50u16 {
        let (at, to) = (usize::from(number), Wire::default());
        let chain = Chain { number, egress: number, ..Arc::try_unwrap(chain_to(0, OnFailure::Drop)).unwrap() };
        rig.tables.chains.resize(at + 1, None);
        rig.tables.chains[at] = Some(Arc::new(chain));
        rig.tables.ports.resize(at + 1, None);
        rig.tables.ports[at] = Some(PortInfo { name: "q".into(), overload: Overload::Drop, owners: vec![0], memory: 0 });
        rig.tables.rules = RuleSet::new(vec![rule_of(2, number), rule_of(1, 0)]);
        rig.publish();
        let counters = rig.plane.add_port(number, vec![Box::new(to.clone())], Overload::Drop, false).unwrap();
        rig.put([udp(2, 0)]);
        let packet = read(&mut nf);
        nf.tx.enqueue(&[packet]).unwrap();
        wait_for("the packet", || to.written.lock().unwrap().len() == 1);
        assert_eq!(rig.plane.snapshots().unwrap()[0].latencies[at].as_ref().map_or(0, |latency| latency.count()), 1);
        let chain = rig.tables.chains[at].take().unwrap();
        rig.tables.rules = RuleSet::new(vec![rule_of(1, 0)]);
        rig.publish();
        assert_eq!(rig.plane.close_port(number).unwrap(), LetGo::Done);
        rig.tables.ports[at] = None;
        rig.publish();
        gone.push((chain, counters));
    }
    wait_for("what they used to be freed", || {
        rig.plane.collect();
        rig.plane.is_collected() && rig.plane.registry().len() == 1
    });
    assert!(gone.iter().all(|(chain, _)| Arc::strong_count(chain) == 1 && Arc::strong_count(&chain.counters) == 1));
    assert!(gone.iter().flat_map(|(_, counters)| counters).all(|counters| Arc::strong_count(counters) == 1));
    let snapshot = rig.plane.snapshots().unwrap().remove(0);
    assert_eq!(
        (snapshot.latencies.iter().flatten().count(), snapshot.details.len()),
        (1, 1),
        "those of the chain and the port that stay"
    );
}

#[test]
fn rounds_of_all_threads_are_counted_without_waiting() {
    let mut rig = Rig::new(1, 16, Overload::Wait, OnFailure::Restart);
    let wire = rig.wire.clone();
    let to_read = wire.to_read.lock().unwrap();
    wait_for("a read that waits", || wire.reads[0].load(Ordering::Relaxed) > wire.reads[1].load(Ordering::Relaxed));
    let before = rig.plane.rounds();
    assert_eq!(rig.plane.rounds(), before, "the thread has begun no other round");
    drop(to_read);
    wait_for("rounds", || rig.plane.rounds() >= before + 3);
}

#[test]
fn a_thread_that_has_not_had_its_core_is_waited_for_and_one_that_is_stuck_is_not() {
    const MS: Duration = Duration::from_millis(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // It has never run, as if another program had its core: the wait exceeds all patience.
        let (to, answer) = channel();
        let queued = Arc::new(Seen::default());
        let own = queued.clone();
        let waiter = scope.spawn(move || own.wait_with(0, 1, &answer, MS, 5 * MS));
        wait_for("the patience to be over", || queued.was_said.load(Ordering::Relaxed));
        to.send(()).unwrap();
        assert!(waiter.join().unwrap().is_ok());

        // One that runs and does not answer, and one that is blocked.
        let (busy, stuck) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        let (own, stop) = (busy.clone(), &stop);
        scope.spawn(move || {
            own.id.set(rustix::thread::gettid()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let (own, (_release, wait)) = (stuck.clone(), channel::<()>());
        scope.spawn(move || {
            own.id.set(rustix::thread::gettid()).unwrap();
            wait.recv().unwrap_err();
        });
        wait_for("both", || busy.id.get().is_some() && stuck.id.get().is_some());
        let (_to, answer) = channel::<()>();
        let of_busy = busy.wait_with(2, 1, &answer, MS, 50 * MS);
        assert!(matches!(of_busy, Err(PlaneError::Silent(2))), "{of_busy:?}");
        let of_stuck = stuck.wait_with(3, 1, &answer, MS, 50 * MS);
        assert!(matches!(of_stuck, Err(PlaneError::Blocked { thread: 3, core: 1 })), "{of_stuck:?}");
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn chains_that_stand_still_leave_frames_to_the_next_one() {
    const STUCK: u16 = 32;
    const RING: u32 = 512;
    // Four of them could hold all frames.
    let frames = 4 * RING;
    let mut rig = Rig::with(STUCK + 1, RING, Overload::Drop, OnFailure::Drop, |config| config.memory.frames = frames);
    part_in(&mut rig, STUCK);
    // One after another, so that each finds what those before it have left.
    for flow in 1..=STUCK {
        rig.put((0..RING + 64).map(|round| udp(flow as u8, round)));
        wait_for("all packets to be read", || rig.wire.to_read.lock().unwrap().is_empty());
    }
    let of = |rig: &Rig, chain: u16| rig.tables.chains[usize::from(chain)].clone().unwrap();
    let held = |rig: &Rig| (0..STUCK).map(|chain| of(rig, chain).frames()).sum::<u64>();
    let stuck = held(&rig);
    assert!(stuck > u64::from(frames) / 2, "what is there is used: {stuck}");
    // The next one comes when all others stand still.
    part_in(&mut rig, STUCK + 1);
    let mut nf = rig.nf(STUCK.into());
    for n in 1..=20 {
        rig.put((0..8).map(|i| udp(STUCK as u8 + 1, i)));
        pass_on(&mut nf, 0, 8);
        wait_for("every packet of the chain that goes on", || rig.wire.written.lock().unwrap().len() == n * 8);
    }
    assert_eq!(held(&rig), stuck, "the others stand still");
    let drops = |chain: u16| of(&rig, chain).counters[0].drops[DropReason::Entry as usize].get();
    assert_eq!(drops(STUCK), 0);
    assert!((0..STUCK).all(|chain| drops(chain) > 0));
    for chain in 0..STUCK {
        pass_on(&mut rig.nf(chain.into()), 0, of(&rig, chain).frames() as usize);
    }
    wait_for("all frames", || rig.is_empty() && rig.handles.iter().all(|nf| nf.in_flight.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_verdict_leads_where_the_configuration_allows_and_nowhere_else() {
    let mut rig = Rig::new(2, 16, Overload::Wait, OnFailure::Drop);
    let others = Wire::default();
    rig.plane.add_port(1, vec![Box::new(others.clone())], Overload::Drop, false).unwrap();
    rig.tables.ports.push(Some(PortInfo { name: "q".into(), overload: Overload::Drop, owners: vec![0], memory: 0 }));
    rig.tables.may_send = vec![MaySend { now: Places::new([0], []), ever: Places::new([0], [1]) }; 2];
    rig.publish();
    let mut nf = rig.nf(0);
    rig.put((0..3).map(|i| udp(1, i)));
    let packets: Vec<Descriptor> = (0..3).map(|_| read(&mut nf)).collect();
    let to = |i: usize, verdict: Verdict, arg| Descriptor { verdict: verdict as u8, arg, ..packets[i] };
    nf.tx.enqueue(&[to(0, Verdict::ToPort, 0), to(1, Verdict::ToPort, 1), to(2, Verdict::ToService, 1)]).unwrap();
    wait_for("both to be dropped", || rig.dropped(DropReason::NotAllowed) == 2);
    wait_for("the one that may go", || rig.wire.written.lock().unwrap().len() == 1);
    assert_eq!(rig.handles[0].violations.load(Ordering::Relaxed), 1, "the service was allowed once");
    assert!(others.written.lock().unwrap().is_empty());
    wait_for("all frames", || rig.is_empty());
    assert!(rig.handles.iter().all(|h| h.in_flight.load(Ordering::Relaxed) == 0));
    // An NF that continues is stopped.
    rig.put((0..3).map(|i| udp(1, i)));
    for _ in 0..3 {
        let packet = read(&mut nf);
        nf.tx.enqueue(&[Descriptor { verdict: Verdict::ToService as u8, arg: 0, ..packet }]).unwrap();
    }
    wait_for("the stop reason", || rig.handles[0].stop_reason() == StopReason::Violations);
}

#[test]
fn an_nf_that_has_not_had_its_core_is_not_stopped_for_a_while() {
    let rig = Rig::new(1, 16, Overload::Wait, OnFailure::Restart);
    let nf = &rig.handles[0];
    nf.ask_to_stop(StopReason::Stalled);
    nf.spare(u64::MAX);
    assert_eq!(nf.stop_reason(), StopReason::None);
    nf.ask_to_stop(StopReason::Stalled);
    assert_eq!(nf.stop_reason(), StopReason::None, "not yet");
    nf.spare(0);
    nf.ask_to_stop(StopReason::Stalled);
    assert_eq!(nf.stop_reason(), StopReason::Stalled);
    // Only for standing still.
    nf.spare(u64::MAX);
    nf.ask_to_stop(StopReason::Violations);
    nf.spare(u64::MAX);
    assert_eq!(nf.stop_reason(), StopReason::Violations);
}

#[test]
fn one_that_keeps_its_packets_and_says_that_it_sleeps_stands_still() {
    use sluice_shm::page::asleep::{ASLEEP, SUSPENDED};
    for says in [ASLEEP, ASLEEP | SUSPENDED] {
        let mut rig = Rig::with(1, 16, Overload::Wait, OnFailure::Restart, |config| config.manager.stall_ms = 1);
        rig.plane.detach(0).unwrap();
        let place = rig.plane.place(0, None).unwrap();
        rig.handles[0] = rig.plane.attach(0, "s0.0", 0, 0, false, 16, &place, 1.0, None).unwrap();
        let (mut nf, asleep) = (rig.nf(0), rig.handles[0].region.page.asleep());
        rig.put((0..3).map(|i| udp(1, i)));
        for _ in 0..3 {
            read(&mut nf);
        }
        nf.rx[0].release();
        wait_for("the stop reason", || {
            asleep.store(says, Ordering::Relaxed);
            rig.handles[0].stop_reason() == StopReason::Stalled
        });
        assert_eq!(rig.handles[0].unread(), 0);
    }
}

#[test]
fn time_in_which_the_monitor_had_no_core_counts_against_no_nf() {
    const STALL: Duration = Duration::from_millis(400);
    let stall_ms = STALL.as_millis() as u64;
    let rig = Rig::with(1, 16, Overload::Wait, OnFailure::Restart, |config| config.manager.stall_ms = stall_ms);
    let mut nf = rig.nf(0);
    rig.put([udp(1, 0)]);
    // It keeps the packet.
    read(&mut nf);
    let wire = rig.wire.clone();
    let to_read = wire.to_read.lock().unwrap();
    wait_for("a read that waits", || wire.reads[0].load(Ordering::Relaxed) > wire.reads[1].load(Ordering::Relaxed));
    // As if the host were frozen, for longer than an NF may stand still.
    let frozen = Instant::now();
    wait_for("the end of that time", || frozen.elapsed() > STALL);
    // Clears a stop reason from a pause of this test.
    rig.handles[0].spare(0);
    let goes_on = Instant::now();
    drop(to_read);
    wait_for("the stop reason", || rig.handles[0].stop_reason() == StopReason::Stalled);
    assert!(goes_on.elapsed() > STALL / 2, "it was given its time anew");
}

#[test]
fn one_whose_packets_wait_for_a_jammed_port_does_not_stand_still() {
    let rig = Rig::with(2, 16, Overload::Wait, OnFailure::Restart, |config| config.manager.stall_ms = 1);
    rig.plane.send(0, |worker| worker.open_port(0, true));
    rig.wire.jammed.store(true, Ordering::Relaxed);
    let sent = 2 * TX_BUFFER;
    rig.put((0..sent as u32).map(|i| udp(1, i)));
    let mut nfs = [rig.nf(0), rig.nf(1)];
    // The first one keeps a packet.
    read(&mut nfs[0]);
    let mut pass_on = |nf: &mut Attached| {
        let mut burst = [Descriptor::default(); BURST];
        let room = nf.tx.room().unwrap() as usize;
        let n = nf.rx[0].dequeue(&mut burst[..room.min(BURST)]).unwrap();
        nf.rx[0].release();
        nf.tx.enqueue(&burst[..n]).unwrap();
    };
    wait_for("packets that nobody takes", || {
        nfs.iter_mut().for_each(&mut pass_on);
        rig.handles[1].is_held_up.load(Ordering::Relaxed)
    });
    // Clears stop reasons from pauses of this test.
    rig.handles.iter().for_each(|handle| handle.spare(0));
    wait_for("the stop reason of the other", || rig.handles[0].stop_reason() == StopReason::Stalled);
    assert_eq!(rig.handles[1].stop_reason(), StopReason::None);
    // Nor afterwards.
    rig.wire.jammed.store(false, Ordering::Relaxed);
    wait_for("all of them", || {
        nfs.iter_mut().for_each(&mut pass_on);
        rig.wire.written.lock().unwrap().len() == sent - 1
    });
    wait_for("it to be on time", || !rig.handles[1].is_held_up.load(Ordering::Relaxed));
}

#[test]
fn what_is_sent_to_a_jammed_port_from_the_middle_of_a_chain_is_bounded() {
    let rig = Rig::new(2, 64, Overload::Wait, OnFailure::Drop);
    rig.plane.send(0, |worker| worker.open_port(0, true));
    rig.wire.jammed.store(true, Ordering::Relaxed);
    let sent: Vec<Vec<u8>> = (0..900).map(|i| udp(1, i)).collect();
    rig.put(sent.clone());
    let mut nf = rig.nf(0);
    let mut pass_on = || {
        let mut burst = [Descriptor::default(); BURST];
        let room = nf.tx.room().unwrap() as usize;
        let n = nf.rx[0].dequeue(&mut burst[..room.min(BURST)]).unwrap();
        burst[..n].iter_mut().for_each(|packet| (packet.verdict, packet.arg) = (Verdict::ToPort as u8, 0));
        nf.tx.enqueue(&burst[..n]).unwrap();
    };
    let left = || rig.chain.counters[0].api.exit_packets.get() as usize;
    wait_for("a full buffer", || {
        pass_on();
        left() >= TX_BUFFER - BURST
    });
    // Whole rounds of the thread lie between two of these.
    for _ in 0..100 {
        pass_on();
        rig.plane.meet().unwrap();
    }
    assert!(left() <= TX_BUFFER + 2 * BURST, "{} wait for the port", left());
    rig.wire.jammed.store(false, Ordering::Relaxed);
    wait_for("the others", || {
        pass_on();
        rig.wire.written.lock().unwrap().len() == sent.len()
    });
    assert_eq!(*rig.wire.written.lock().unwrap(), sent);
    wait_for("all frames", || rig.is_empty());
}

#[test]
fn one_in_the_middle_of_a_chain_that_sends_to_no_port_goes_on_while_the_ports_of_others_are_jammed() {
    let rig = Rig::new(2, 64, Overload::Wait, OnFailure::Drop);
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    rig.plane.send(0, |worker| worker.open_port(0, true));
    rig.wire.jammed.store(true, Ordering::Relaxed);
    rig.put((0..900).map(|i| udp(1, i)));
    let pass = |nf: &mut Attached| {
        let mut burst = [Descriptor::default(); BURST];
        let room = nf.tx.room().unwrap() as usize;
        let n = nf.rx[0].dequeue(&mut burst[..room.min(BURST)]).unwrap();
        nf.tx.enqueue(&burst[..n]).unwrap();
    };
    wait_for("a second one that is kept, and a first one that is not", || {
        pass(&mut first);
        pass(&mut second);
        first.tx.room() == Ok(64) && second.tx.room() == Ok(0)
    });
    rig.wire.jammed.store(false, Ordering::Relaxed);
    wait_for("all packets", || {
        pass(&mut first);
        pass(&mut second);
        rig.wire.written.lock().unwrap().len() == 900
    });
}

/// Two tenants on one port: chains `red` and `blue` of one NF each, and `both`, which crosses.
/// Packets from 10.0.0.1 take the first, those from 10.0.0.2 the second, others the third.
struct Tenants {
    plane: DataPlane,
    wire: Wire,
    handles: Vec<Arc<NfHandle>>,
    places: Vec<Place>,
    chains: Vec<Arc<Chain>>,
    tables: Tables,
}

impl Tenants {
    fn new(red_frames: u32, ring: u32) -> Self {
        Self::with(red_frames, ring, Overload::Wait)
    }

    fn with(red_frames: u32, ring: u32, overload: Overload) -> Self {
        Self::of(&Self::config(red_frames, ring), overload)
    }

    /// The same, on a port with this many queues, the first of which has packets.
    fn on(red_frames: u32, ring: u32, overload: Overload, queues: usize) -> Self {
        Self::of_queues(&Self::config(red_frames, ring), overload, queues)
    }

    fn config(red_frames: u32, ring: u32) -> Config {
        let text = "port = [{ name = \"p\", kind = \"gen\" }]
            service = [{ name = \"r\", attach = true, tenant = \"red\" }, { name = \"b\", attach = true, tenant = \"blue\" }]
            chain = [{ name = \"red\", services = [\"r\"], egress = \"p\" }, { name = \"blue\", services = [\"b\"], egress = \"p\" },
                     { name = \"both\", services = [\"r\", \"b\"], egress = \"p\" }]
            rule = [{ src = \"10.0.0.1/32\", chain = \"red\" }, { src = \"10.0.0.2/32\", chain = \"blue\" }, { chain = \"both\" }]";
        let mut config: Config = toml::from_str(text).unwrap();
        config.services.iter_mut().for_each(|service| service.ring = ring);
        config.memory.frames = FRAMES;
        config.memory.tenants = [("red".to_string(), red_frames)].into();
        config
    }

    /// A rig with the services and chains of a configuration, and one NF of each service.
    fn of(config: &Config, overload: Overload) -> Self {
        Self::of_queues(config, overload, 1)
    }

    fn of_queues(config: &Config, overload: Overload, queues: usize) -> Self {
        let mut config = config.clone();
        config.memory.hugepages = Hugepages::Never;
        config.manager.idle = sluice_api::config::Idle::Sleep;
        let mut plane = DataPlane::start(&config, &sluice_ports::All::default(), &|_| None).unwrap();
        let memory = plane.memory_for_port(&config, &config.ports[0]);
        assert_eq!(plane.memories().get(memory).unwrap().holder, Holder::Ingress);
        let service = |name: &String| config.services.iter().position(|service| service.name == *name).unwrap() as u16;
        let chains: Vec<Arc<Chain>> = config
            .chains
            .iter()
            .enumerate()
            .map(|(number, chain)| {
                Arc::new(Chain {
                    number: number as u16,
                    version: 1,
                    name: chain.name.clone(),
                    services: chain.services.iter().map(service).collect(),
                    on_failure: OnFailure::Drop,
                    counters: (0..plane.threads()).map(|_| ChainCounters::default()).collect(),
                    ..Chain::default()
                })
            })
            .collect();
        let ports = HashMap::from([("p".to_string(), 0)]);
        let names = chains.iter().map(|chain| (chain.name.clone(), chain.number)).collect();
        let rules = config
            .rules
            .iter()
            .enumerate()
            .map(|(i, rule)| sluice_dataplane::classify::compile::compile(rule, i, &ports, &names).unwrap())
            .collect();
        let nfs = 0..config.services.len() as u16;
        let tables = Tables {
            generation: 1,
            rules: RuleSet::new(rules),
            chains: chains.iter().cloned().map(Some).collect(),
            services: nfs.map(|nf| vec![Member { nf, id: u64::from(nf), former: None, is_open: true, thread: None }]).collect(),
            ports: vec![Some(PortInfo {
                name: "p".into(),
                overload,
                owners: if queues == 1 { plane.owners(0, 1) } else { vec![0; queues] },
                memory,
            })],
            ..Tables::default()
        };
        let (mut handles, mut places) = (Vec::new(), Vec::new());
        for (nf, service) in config.services.iter().enumerate() {
            let place = plane.place(0, service.tenant.clone()).unwrap();
            assert_eq!(plane.memory_of(&place).unwrap().holder.to_string(), service.tenant.clone().unwrap());
            let name = format!("s{nf}.0");
            handles.push(plane.attach(nf as u16, &name, nf as u16, 0, true, service.ring, &place, 1.0, None).unwrap());
            places.push(place);
        }
        plane.use_tables(&Arc::new(tables.clone()));
        let wire = Wire::default();
        plane.start_rx();
        plane.add_port(0, vec![Box::new(wire.clone())], overload, false).unwrap();
        Self { plane, wire, handles, places, chains, tables }
    }

    /// Gives a service these instances.
    fn use_members(&mut self, service: usize, members: Vec<Member>) {
        self.tables.services[service] = members;
        self.tables.generation += 1;
        self.plane.use_tables(&Arc::new(self.tables.clone()));
        self.plane.meet().unwrap();
    }

    /// Has the port receive into an arena.
    fn receive_into(&mut self, memory: u8) {
        self.tables.ports[0].as_mut().unwrap().memory = memory;
        self.tables.generation += 1;
        self.plane.use_tables(&Arc::new(self.tables.clone()));
        self.plane.meet().unwrap();
    }

    /// The packet memory that an NF of a tenant has mapped.
    fn arena_of(&self, nf: usize) -> Arena {
        let memory = self.plane.memories().get(self.handles[nf].memory.load(Ordering::Relaxed)).unwrap();
        Arena::map(memory.file().fd(), memory.geometry()).unwrap()
    }

    fn nf(&self, number: usize) -> Attached {
        let region = &self.handles[number].region;
        Attached::map(region.memory.fd(), region.page.layout()).unwrap()
    }

    /// What the first packet thread has copied into the memory of a holder.
    fn copied(&self, holder: &str) -> Copied {
        let number = self.plane.memories().iter().find(|memory| memory.holder.to_string() == holder).unwrap().number;
        self.plane.snapshots().unwrap()[0].memories[usize::from(number)].1
    }

    /// Whether all frames of all tenants are free.
    fn is_empty(&self) -> bool {
        let threads = self.plane.snapshots().unwrap();
        let cached = |number: u8| threads.iter().map(|thread| thread.memories[usize::from(number)].0).sum::<usize>();
        let is_full = |memory: &TenantMemory| cached(memory.number) + memory.pool.available() == memory.geometry().frames as usize;
        self.plane.memories().iter().all(is_full) && self.handles.iter().all(|h| h.in_flight.load(Ordering::Relaxed) == 0)
    }
}

#[test]
fn a_hostile_tenant_reaches_no_packet_of_another() {
    const EACH: u32 = 2_000;
    let rig = Tenants::new(FRAMES, 64);
    let done = Arc::new(AtomicBool::new(false));
    let nfs: Vec<_> = [0, 1]
        .into_iter()
        .map(|i| {
            let (mut nf, arena, done) = (rig.nf(i), rig.arena_of(i), done.clone());
            std::thread::spawn(move || {
                let mut burst = [Descriptor::default(); 32];
                while !done.load(Ordering::Relaxed) {
                    let n = nf.rx[0].dequeue(&mut burst).unwrap();
                    // All packets lie in what this tenant has mapped.
                    assert!(burst[..n].iter().all(|d| arena.geometry().contains(d.frame, d.offset, d.len)));
                    assert_eq!(nf.tx.enqueue(&burst[..n]).unwrap(), n);
                    std::thread::yield_now();
                }
            })
        })
        .collect();
    // All packet memory that red has mapped is overwritten all the time.
    let (arena, stop) = (rig.arena_of(0), done.clone());
    let hostile = std::thread::spawn(move || {
        let sluice_shm::arena::Geometry { first, frames, stride } = arena.geometry();
        let noise = vec![0xa5; stride as usize];
        while !stop.load(Ordering::Relaxed) {
            (first..first + frames).for_each(|frame| assert!(arena.write(frame, 0, &noise)));
        }
    });
    let blue: Vec<Vec<u8>> = (0..EACH).map(|i| udp(2, i)).collect();
    for (i, packet) in blue.iter().enumerate() {
        rig.wire.to_read.lock().unwrap().extend([udp(1, i as u32), packet.clone(), udp(3, i as u32)]);
    }
    wait_for("all packets", || rig.wire.written.lock().unwrap().len() == 3 * EACH as usize);
    done.store(true, Ordering::Relaxed);
    nfs.into_iter().for_each(|t| t.join().unwrap());
    hostile.join().unwrap();
    let is_blue = |packet: &Vec<u8>| packet.get(26..30) == Some(&[10, 0, 0, 2]);
    let got: Vec<Vec<u8>> = rig.wire.written.lock().unwrap().iter().filter(|packet| is_blue(packet)).cloned().collect();
    assert_eq!(got, blue, "each byte of each packet, in order");
    wait_for("all frames", || rig.is_empty());
    let len = blue[0].len() as u64;
    let n = u64::from(EACH);
    assert_eq!(rig.copied("red"), Copied { at_gate: (2 * n, 2 * n * len), ..Copied::default() });
    assert_eq!(rig.copied("blue"), Copied { at_gate: (n, n * len), at_crossing: (n, n * len), starved: 0 });
    assert_eq!(rig.copied("ingress"), Copied::default());
}

#[test]
fn what_was_read_for_one_tenant_is_out_of_its_reach_once_the_port_is_of_several() {
    let mut rig = Tenants::new(FRAMES, 16);
    let (of_red, ingress) = (rig.places[0].memory, rig.tables.ports[0].as_ref().unwrap().memory);
    rig.receive_into(of_red);
    // Blue's ring takes 16 of them, and the others wait at the gate.
    let blue: Vec<Vec<u8>> = (0..32).map(|i| udp(2, i)).collect();
    rig.wire.to_read.lock().unwrap().extend(blue.clone());
    wait_for("a full ring", || rig.handles[1].in_flight.load(Ordering::Relaxed) == 16);
    rig.receive_into(ingress);
    wait_for("those that wait", || rig.copied("ingress").at_gate.0 == 16);
    let arena = rig.arena_of(0);
    let sluice_shm::arena::Geometry { first, frames, stride } = arena.geometry();
    let noise = vec![0xa5; stride as usize];
    (first..first + frames).for_each(|frame| assert!(arena.write(frame, 0, &noise)));
    let mut second = rig.nf(1);
    for _ in 0..32 {
        let packet = read(&mut second);
        second.tx.enqueue(&[packet]).unwrap();
    }
    wait_for("all packets", || *rig.wire.written.lock().unwrap() == blue);
    wait_for("all frames", || rig.is_empty());
}

#[test]
fn a_tenant_without_free_frames_starves_alone() {
    let rig = Tenants::with(512, 1024, Overload::Drop);
    let trace = trace(&rig.plane, Some(0), None, 1000);
    rig.wire.to_read.lock().unwrap().extend((0..800).map(|i| udp(1, i)));
    // Its NF returns nothing: it has all the frames that it may have, and its ring has free slots.
    let dropped = |chain: usize, why: DropReason| rig.chains[chain].counters[0].drops[why as usize].get();
    let of_red = || dropped(0, DropReason::NoFrame) + dropped(0, DropReason::Entry);
    let held = || u64::from(rig.handles[0].in_flight.load(Ordering::Relaxed));
    wait_for("the drops", || of_red() > 0 && of_red() + held() == 800);
    assert!(held() <= 512);
    let reasons = refused(&reported(&trace, of_red() as usize));
    let traced = |why: DropReason| reasons.iter().filter(|reason| **reason == (Some(0), why.name())).count() as u64;
    assert_eq!(
        [DropReason::NoFrame, DropReason::Entry].map(traced),
        [DropReason::NoFrame, DropReason::Entry].map(|why| dropped(0, why))
    );
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    for i in 0..600 {
        rig.wire.to_read.lock().unwrap().push(udp(2, i));
        let packet = read(&mut second);
        second.tx.enqueue(&[packet]).unwrap();
    }
    let blue: Vec<Vec<u8>> = (0..600).map(|i| udp(2, i)).collect();
    wait_for("those of the other", || *rig.wire.written.lock().unwrap() == blue);
    assert_eq!((dropped(1, DropReason::NoFrame), dropped(1, DropReason::Entry)), (0, 0));
    for _ in 0..held() {
        let packet = read(&mut first);
        first.tx.enqueue(&[packet]).unwrap();
    }
    wait_for("all frames", || rig.is_empty());
}

#[test]
fn what_ports_receive_into_takes_nothing_from_a_small_tenant() {
    // As many queues as a NIC may have, none of which receives into red's memory.
    let rig = Tenants::on(512, 1024, Overload::Drop, 8);
    rig.wire.to_read.lock().unwrap().extend((0..800).map(|i| udp(1, i)));
    let held = || rig.handles[0].in_flight.load(Ordering::Relaxed);
    let dropped = |why: DropReason| rig.chains[0].counters[0].drops[why as usize].get() as u32;
    wait_for("the drops", || held() + dropped(DropReason::Entry) + dropped(DropReason::NoFrame) == 800);
    assert!((256..=512).contains(&held()), "a chain that is alone may have half of its tenant's frames: {}", held());
    let mut first = rig.nf(0);
    for _ in 0..held() {
        let packet = read(&mut first);
        first.tx.enqueue(&[packet]).unwrap();
    }
    wait_for("all frames", || rig.is_empty());
}

#[test]
fn memory_that_an_nf_has_mapped_is_not_taken_away() {
    let mut rig = Tenants::new(FRAMES, 64);
    let (_first, _second) = (rig.nf(0), rig.nf(1));
    let place = rig.plane.place(0, Some("red".into())).unwrap();
    let old = place.memory;
    rig.plane.renew(Some("red".into())).unwrap();
    // All of its frames are free, and two NFs have it: one with packets, and one not ready yet.
    wait_for("all frames", || rig.is_empty());
    assert_eq!(rig.plane.drop_former().unwrap(), 1);
    rig.plane.detach(0).unwrap();
    rig.plane.vacate(&rig.places[0]);
    assert_eq!(rig.plane.drop_former().unwrap(), 1);
    assert!(rig.plane.memories().get(old).is_some());
    rig.plane.vacate(&place);
    wait_for("its end", || rig.plane.drop_former().unwrap() == 0);
    assert!(rig.plane.memories().get(old).is_none());
}

#[test]
fn memory_that_is_given_up_stays_until_its_last_packet_has_left() {
    let mut rig = Tenants::new(FRAMES, 64);
    let (mut first, old) = (rig.nf(0), rig.places[0].memory);
    rig.plane.send(0, |worker| worker.open_port(0, true));
    rig.plane.meet().unwrap();
    rig.wire.jammed.store(true, Ordering::Relaxed);
    rig.wire.to_read.lock().unwrap().push(udp(1, 7));
    let former = read(&mut first);
    first.tx.enqueue(&[former]).unwrap();
    wait_for("its exit", || rig.chains[0].counters[0].api.exit_packets.get() == 1);
    // It waits for the port, and no NF has the memory any more.
    rig.use_members(0, Vec::new());
    rig.plane.detach(0).unwrap();
    rig.plane.vacate(&rig.places[0]);
    rig.plane.give_up(old).unwrap();
    assert_eq!(rig.plane.drop_former().unwrap(), 1);
    assert_ne!(rig.plane.place(0, Some("green".into())).unwrap().memory, old);
    assert_eq!(rig.plane.drop_former().unwrap(), 1);
    rig.wire.jammed.store(false, Ordering::Relaxed);
    wait_for("the packet", || *rig.wire.written.lock().unwrap() == [udp(1, 7)]);
    wait_for("its end", || rig.plane.drop_former().unwrap() == 0);
    // Another tenant gets the number, and nothing of what was there.
    let place = rig.plane.place(0, Some("white".into())).unwrap();
    assert_eq!(place.memory, old);
    rig.handles[0] = rig.plane.attach(0, "s0.0", 0, 0, true, 64, &place, 1.0, None).unwrap();
    rig.use_members(0, vec![Member { nf: 0, id: 0, former: None, is_open: true, thread: None }]);
    let (mut first, arena) = (rig.nf(0), rig.arena_of(0));
    let bytes = |packet: &Descriptor| {
        let mut bytes = vec![0; packet.len.into()];
        assert!(arena.read(packet.frame, packet.offset, &mut bytes));
        bytes
    };
    assert!(bytes(&former).iter().all(|byte| *byte == 0));
    rig.wire.to_read.lock().unwrap().push(udp(1, 8));
    let packet = read(&mut first);
    assert_eq!(bytes(&packet), udp(1, 8));
    first.tx.enqueue(&[packet]).unwrap();
    wait_for("the other packet", || *rig.wire.written.lock().unwrap() == [udp(1, 7), udp(1, 8)]);
    wait_for("all frames", || rig.is_empty());
}

#[test]
fn what_crosses_tenants_stays_as_it_was_returned() {
    let rig = Tenants::new(FRAMES, 64);
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    let (red, blue) = (rig.arena_of(0), rig.arena_of(1));
    rig.wire.to_read.lock().unwrap().push(udp(3, 7));
    let packet = read(&mut first);
    // It pushes a header, and goes on writing after it has returned the packet.
    let longer = Descriptor { offset: packet.offset - 4, len: packet.len + 4, ..packet };
    assert!(red.write(longer.frame, longer.offset, &[9; 4]));
    first.tx.enqueue(&[longer]).unwrap();
    let there = read(&mut second);
    assert!(red.write(longer.frame, 0, &[0xff; 512]), "it still has that frame mapped");
    assert_eq!((there.offset, there.len), (longer.offset, longer.len));
    let mut bytes = vec![0; there.len.into()];
    assert!(blue.read(there.frame, there.offset, &mut bytes));
    assert_eq!(bytes, [vec![9; 4], udp(3, 7)].concat());
    assert!(!blue.geometry().has(longer.frame) && !red.geometry().has(there.frame));
    second.tx.enqueue(&[there]).unwrap();
    wait_for("the packet", || *rig.wire.written.lock().unwrap() == [bytes.clone()]);
    // An NF cannot return a frame of another tenant.
    second.tx.enqueue(&[longer]).unwrap();
    wait_for("the violation", || rig.handles[1].violations.load(Ordering::Relaxed) == 1);
    wait_for("all frames", || rig.is_empty());
}

/// Passes on `n` packets of an NF; `ring` is that of the thread that posts to it.
fn pass_on(nf: &mut Attached, ring: usize, n: usize) {
    let mut burst = [Descriptor::default(); 32];
    let mut passed = 0;
    wait_for("packets", || {
        let got = nf.rx[ring].dequeue(&mut burst).unwrap();
        assert_eq!(nf.tx.enqueue(&burst[..got]).unwrap(), got);
        passed += got;
        passed == n
    });
}

#[test]
fn a_small_arena_goes_round_between_threads_that_receive_and_threads_that_send() {
    let mut config = Tenants::config(512, 64);
    (config.manager.rx, config.manager.tx) = (vec![0], vec![1]);
    let rig = Tenants::of(&config, Overload::Wait);
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    for round in 1..=100 {
        rig.wire.to_read.lock().unwrap().extend((0..16).map(|i| udp(3, i)));
        pass_on(&mut first, 0, 16);
        // The other thread copies them.
        pass_on(&mut second, 1, 16);
        wait_for("the packets", || rig.wire.written.lock().unwrap().len() == round * 16);
    }
    wait_for("all frames", || rig.is_empty());
}

#[test]
fn chains_that_stand_still_in_another_tenants_memory_leave_frames_to_its_own() {
    const STUCK: usize = 8;
    const EACH: usize = 4;
    // Four of them could hold all frames of blue.
    const RING: u32 = 2048;
    let mut config = Tenants::config(FRAMES, 64);
    let (service, chain) = (config.services[1].clone(), config.chains[2].clone());
    config.memory.tenants = [("red".to_string(), 8 * RING), ("blue".to_string(), 4 * RING)].into();
    (config.services[1].ring, config.chains) = (RING, Vec::new());
    config.rules.clear();
    for number in 0..=STUCK {
        let name = format!("b{number}");
        let services = if number < STUCK { vec!["r".to_string(), name.clone()] } else { vec![name.clone()] };
        let rule = format!("src = \"10.0.0.{}\"\nchain = \"{name}\"", number + 1);
        config.services.push(sluice_api::config::Service { name: name.clone(), ring: RING, ..service.clone() });
        config.chains.push(sluice_api::config::Chain { name, services, ..chain.clone() });
        config.rules.push(toml::from_str(&rule).unwrap());
    }
    config.services.remove(1);
    let rig = Tenants::of(&config, Overload::Drop);
    let done = AtomicBool::new(false);
    let (mut red, mut blue) = (rig.nf(0), rig.nf(STUCK + 1));
    let held = || rig.chains[..STUCK].iter().map(|chain| chain.frames()).sum::<u64>();
    let drops = |chain: usize, why: DropReason| rig.chains[chain].counters[0].drops[why as usize].get();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut burst = [Descriptor::default(); 32];
            while !done.load(Ordering::Relaxed) {
                let n = red.rx[0].dequeue(&mut burst).unwrap();
                red.tx.enqueue(&burst[..n]).unwrap();
                std::thread::yield_now();
            }
        });
        for round in 0..RING / EACH as u32 {
            let packets = (1..=STUCK).flat_map(|flow| (0..EACH).map(move |_| udp(flow as u8, round)));
            rig.wire.to_read.lock().unwrap().extend(packets);
            // Few packets are on their way at once: those not in blue's memory yet take no frame of
            // it.
            let is_read = || rig.wire.to_read.lock().unwrap().is_empty();
            wait_for("them to cross", || is_read() && rig.handles[0].in_flight.load(Ordering::Relaxed) == 0);
        }
        done.store(true, Ordering::Relaxed);
    });
    let stuck = held();
    assert!(stuck > u64::from(4 * RING) / 2, "what is there is used: {stuck}");
    for n in 0..20u32 {
        rig.wire.to_read.lock().unwrap().extend((0..32).map(|i| udp(STUCK as u8 + 1, n * 32 + i)));
        pass_on(&mut blue, 0, 32);
    }
    wait_for("every packet of blue's own chain", || rig.wire.written.lock().unwrap().len() == 640);
    assert_eq!((drops(STUCK, DropReason::Entry), drops(STUCK, DropReason::NoFrame), held()), (0, 0, stuck));
    assert!((0..STUCK).all(|chain| drops(chain, DropReason::Entry) > 0 && drops(chain, DropReason::NoFrame) == 0));
}

#[test]
fn paths_come_back_while_frames_of_others_are_given_away_without_pause() {
    let mut rig = Rig::new(1, 16, Overload::Wait, OnFailure::Restart);
    let mut nf = rig.nf(0);
    pass(&rig, &mut nf, 1);
    let old = &rig.chain;
    let (name, services, reversed, counters) = (old.name.clone(), old.services.clone(), Vec::new(), old.counters.clone());
    let on_failure = old.on_failure;
    rig.tables.chains[0] =
        Some(Arc::new(Chain { number: 0, version: 2, name, services, reversed, egress: 0, on_failure, counters, police: None }));
    rig.publish();
    // As a thread does that feeds a program by shared memory.
    let table = rig.plane.table().clone();
    let given = table.give_away(std::iter::empty(), || {
        wait_for("the former path to be freed", || {
            rig.plane.collect();
            rig.plane.is_collected()
        });
        0
    });
    assert_eq!((given, rig.plane.registry().len()), (0, 0));
    pass(&rig, &mut nf, 1);
    assert_eq!(rig.plane.registry().len(), 1);
}

/// Gives each packet the verdict that the last byte of its payload says, to this number; 255 is a
/// failure.
struct Sorts(u16);

impl Inline for Sorts {
    fn burst(&mut self, arena: &Arena, burst: &mut [Descriptor], _now_ns: u64) -> bool {
        let mut goes = true;
        for descriptor in burst {
            let mut last = [0];
            assert!(arena.read(descriptor.frame, descriptor.offset + descriptor.len - 1, &mut last));
            (descriptor.verdict, descriptor.arg) = (last[0] % 4, self.0);
            goes &= last[0] != 255;
        }
        goes
    }

    fn tick(&mut self, _now_ns: u64) -> bool {
        true
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

#[test]
fn an_nf_in_the_packet_thread_gives_verdicts_as_one_with_rings_does() {
    let mut rig = Rig::new(2, 64, Overload::Wait, OnFailure::Restart);
    rig.plane.detach(1).unwrap();
    let place = rig.plane.place_foreign(0).unwrap();
    let handle = rig.plane.inline_handle((1, "s1.0", 1), 64, &place).unwrap();
    rig.plane.attach_inline(&handle, Box::new(Sorts(0))).unwrap();
    let mut first = rig.nf(0);
    let flow = |n: u32| udp(1, n);
    // Next, drop, to port 0, to service 0: those meet the first NF twice.
    rig.put((0..40).map(flow));
    for _ in 0..50 {
        let packet = read(&mut first);
        assert_eq!(first.tx.enqueue(&[packet]), Ok(1));
    }
    wait_for("all packets", || rig.wire.written.lock().unwrap().len() == 30);
    assert_eq!(rig.dropped(DropReason::Verdict), 10);
    assert_eq!(handle.posted_returned(), (40, 40));
    assert_eq!((handle.counters[0].api.verdict_drops.get(), handle.stop_reason()), (10, StopReason::None));
    wait_for("all frames", || rig.plane.free_frames().unwrap() == FRAMES as usize);
    assert_eq!([0, 1].map(|nf| rig.plane.in_flight(nf)), [0, 0]);
    // It fails with three packets in its hands, and gets no more.
    rig.put([flow(0), flow(255), flow(4)]);
    let packets: Vec<Descriptor> = (0..3).map(|_| read(&mut first)).collect();
    assert_eq!(first.tx.enqueue(&packets), Ok(3));
    wait_for("its failure", || handle.stop_reason() == StopReason::Failed);
    wait_for("what it had", || rig.dropped(DropReason::NfDied) == 3);
    assert!(rig.plane.take_inline(1).unwrap().is_some() && rig.plane.take_inline(1).unwrap().is_none());
    assert_eq!([0, 1].map(|nf| rig.plane.in_flight(nf)), [0, 0]);
    wait_for("all frames again", || rig.plane.free_frames().unwrap() == FRAMES as usize);
}

/// Sends packets with these last bytes through an NF in the packet thread, to a port 1 that waits
/// and takes none for a while, as the egress or by verdicts.
fn fills_a_waiting_port(egress: u16, last: u32) {
    let mut rig = Rig::new(1, 64, Overload::Wait, OnFailure::Restart);
    rig.plane.detach(0).unwrap();
    let place = rig.plane.place_foreign(0).unwrap();
    let handle = rig.plane.inline_handle((0, "s0.0", 0), 64, &place).unwrap();
    rig.plane.attach_inline(&handle, Box::new(Sorts(1))).unwrap();
    let file = Wire::default();
    file.jammed.store(true, Ordering::Relaxed);
    rig.plane.add_port(1, vec![Box::new(file.clone())], Overload::Drop, true).unwrap();
    rig.tables.ports.push(Some(PortInfo { name: "file".into(), overload: Overload::Drop, owners: vec![0], memory: 0 }));
    let Chain { number, name, services, counters, on_failure, .. } = &*rig.chain;
    let (name, services, counters) = (name.clone(), services.clone(), counters.clone());
    let (version, reversed, police) = (2, Vec::new(), None);
    let chain = Chain { number: *number, version, name, services, reversed, egress, on_failure: *on_failure, counters, police };
    rig.tables.chains[0] = Some(Arc::new(chain));
    rig.publish();
    rig.put((0..800).map(|n| udp(1, n << 8 | last)));
    let entered = || rig.chain.counters[0].api.entry_packets.get();
    wait_for("a full buffer", || entered() >= TX_BUFFER as u64);
    rig.plane.meet().unwrap();
    rig.plane.meet().unwrap();
    assert!(entered() <= (TX_BUFFER + BURST) as u64, "{} have entered", entered());
    file.jammed.store(false, Ordering::Relaxed);
    wait_for("all packets", || file.written.lock().unwrap().len() == 800);
    wait_for("all frames", || rig.plane.free_frames().unwrap() == FRAMES as usize);
}

#[test]
fn an_nf_in_the_packet_thread_lets_in_no_more_than_a_waiting_port_takes() {
    fills_a_waiting_port(1, Verdict::Next as u32);
    fills_a_waiting_port(0, Verdict::ToPort as u32);
}

#[test]
fn packets_of_a_port_with_one_path_are_not_looked_up_if_so_configured() {
    let mut rig = Rig::with(2, 16, Overload::Wait, OnFailure::Bypass, |config| config.manager.flow_table = FlowTable::Needed);
    let (mut first, mut second) = (rig.nf(0), rig.nf(1));
    let pass_both = |rig: &Rig, first: &mut Attached, second: &mut Attached, flow: u8| {
        let before = rig.wire.written.lock().unwrap().len();
        rig.put([udp(flow, 0)]);
        let packet = read(first);
        first.tx.enqueue(&[packet]).unwrap();
        let packet = read(second);
        second.tx.enqueue(&[packet]).unwrap();
        wait_for("the packet", || rig.wire.written.lock().unwrap().len() == before + 1);
    };
    let looked_up = |rig: &Rig| {
        let flows = rig.plane.snapshots().unwrap()[0].flows;
        (flows.entries, flows.hits + flows.misses)
    };
    (0..40).for_each(|flow| pass_both(&rig, &mut first, &mut second, flow));
    assert_eq!((looked_up(&rig), rig.plane.registry().len()), ((0, 0), 1));
    // A bypass is another path; with a second instance packets are looked up.
    rig.tables.services[1].clear();
    rig.publish();
    pass(&rig, &mut first, 1);
    rig.tables.services[1] = [1, 1].map(|nf| Member { nf, id: 1, former: None, is_open: true, thread: None }).into();
    rig.publish();
    (0..4).for_each(|flow| pass_both(&rig, &mut first, &mut second, flow));
    assert_eq!(looked_up(&rig).0, 4);
    // So they are where a rule asks for more than the port.
    rig.tables.services[1].pop();
    let other = Rule { vlan: Some(7), ..Rule::default() };
    let all = Rule::default();
    rig.tables.rules = RuleSet::new(vec![other, all]);
    rig.publish();
    let (_, before) = looked_up(&rig);
    pass_both(&rig, &mut first, &mut second, 9);
    assert!(looked_up(&rig).1 > before);
}
