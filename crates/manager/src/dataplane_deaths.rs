//! Tests with NFs that cheat and die repeatedly under load, with several packet threads: no frame
//! is lost, none comes back twice, credit is left.
//!
//! Each death replaces the chain, and its former paths are looked for and freed all the time while
//! packets are on them. With NFs of two tenants these change frames on their way.
//!
//! The short form runs with the other tests. `make deaths DEATHS=10000` runs a longer one and
//! prints its counts; CI runs one of some thousands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use sluice_shm::BURST;
use sluice_shm::descriptor::{Descriptor, Verdict};
use sluice_shm::memory::Mapping;
use sluice_shm::page::Attached;

use super::*;
use sluice_api::config::{Hugepages, Idle, OnFailure};
use sluice_dataplane::chain::{Chain, ChainCounters, DropReason, Member, PortInfo};
use sluice_dataplane::classify::rule::{Rule, RuleSet};
use sluice_dataplane::frame::Packet;

const FRAMES: u32 = 2048;
const RING: u32 = 64;
/// The NF before the one that dies, that one, and the one behind.
const NFS: u16 = 3;
const DIES: u16 = 1;
/// Default number of deaths in each form.
const DEATHS: u64 = 40;

#[derive(Debug, Clone, Copy)]
struct Form {
    threads: usize,
    /// Half of the threads receive, and the others send; else each does both.
    apart: bool,
    /// The NF that dies is of another tenant than the others.
    tenants: bool,
    backpressure: bool,
    max_violations: u64,
}

impl Form {
    fn of(threads: usize) -> Self {
        Self { threads, apart: false, tenants: false, backpressure: true, max_violations: u64::MAX }
    }

    fn config(self) -> Config {
        let tenant = |nf: u16| if self.tenants && nf == DIES { "red" } else { "blue" };
        let service = |nf: u16| format!("{{ name = \"s{nf}\", attach = true, tenant = \"{}\" }}", tenant(nf));
        let services: Vec<String> = (0..NFS).map(service).collect();
        let text = format!(
            "port = [{{ name = \"p\", kind = \"sink\" }}]\nservice = [{}]\nchain = [{{ name = \"c\", services = [\"s0\", \"s1\", \"s2\"], egress = \
             \"p\" }}]\nrule = [{{ chain = \"c\" }}]",
            services.join(", ")
        );
        let mut config: Config = toml::from_str(&text).unwrap();
        config.memory.frames = FRAMES;
        config.memory.hugepages = Hugepages::Never;
        config.manager.max_violations = self.max_violations;
        config.manager.stall_ms = 0;
        config.manager.idle = Idle::Sleep;
        config.sched.backpressure = self.backpressure;
        let all: Vec<usize> = (0..self.threads).collect();
        let (rx, tx) = if self.apart { all.split_at(self.threads / 2) } else { (&all[..], &all[..]) };
        (config.manager.rx, config.manager.tx) = (rx.to_vec(), tx.to_vec());
        config
    }
}

/// As many packets as are wanted, until stopped; sent packets are discarded.
struct Flood {
    stop: Arc<AtomicBool>,
    packet: Vec<u8>,
}

impl PortQueue for Flood {
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        if self.stop.load(Ordering::Relaxed) {
            return 0;
        }
        let mut fresh = [0; BURST];
        let most = out.len().min(BURST);
        let n = frames.alloc(&mut fresh[..most]);
        for (packet, frame) in out.iter_mut().zip(&fresh[..n]) {
            *packet = Packet::fresh(*frame, self.packet.len() as u16);
            assert!(frames.arena().write(packet.frame, packet.offset, &self.packet));
        }
        n
    }

    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        frames.free_packets(packets);
        packets.len()
    }
}

fn udp(flow: u8) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, flow], [10, 0, 1, 1], 9).udp(1000, 2000);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &[0; 18]).unwrap();
    bytes
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < until, "waited too long for {what}");
        std::thread::yield_now();
    }
}

struct Player {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Player {
    fn start(mut round: impl FnMut() + Send + 'static) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, counted) = (stop.clone(), rounds.clone());
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                round();
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        Self { stop, rounds, thread: Some(thread) }
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl std::ops::Drop for Player {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn map(handle: &NfHandle) -> Attached {
    Attached::map(handle.region.memory.fd(), handle.region.page.layout()).unwrap()
}

/// Returns all that it gets. With backpressure there is always space for it.
fn honest(handle: &NfHandle, backpressure: bool) -> Player {
    let mut nf = map(handle);
    let mut held = Vec::new();
    Player::start(move || {
        let mut burst = [Descriptor::default(); BURST];
        for ring in 0..nf.rx.len() {
            if held.is_empty() {
                let n = nf.rx[ring].dequeue(&mut burst).unwrap();
                held.extend_from_slice(&burst[..n]);
            }
            let n = nf.tx.enqueue(&held).unwrap();
            assert!(n == held.len() || !backpressure, "the tx ring holds all that may be on its way");
            held.drain(..n);
        }
    })
}

/// A pseudo-random number (xorshift).
fn next(seed: &mut u64) -> u32 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed >> 16) as u32
}

/// Returns some of its packets, at times twice, keeps some, guesses frames, also of other tenants,
/// and overwrites the cursors of its rings. `arenas`: the first frame of each.
fn hostile(handle: &NfHandle, arenas: &[u32], mut seed: u64) -> Player {
    let arenas = arenas.to_vec();
    let mut nf = map(handle);
    let layout = handle.region.page.layout();
    let mapping = Mapping::new(handle.region.memory.fd(), layout.bytes as usize, false).unwrap();
    let rx_ring = move |ring: u32| layout.rings as usize + ring as usize * sluice_shm::ring::bytes(layout.capacity);
    Player::start(move || {
        let mut burst = [Descriptor::default(); BURST];
        let ring = next(&mut seed) as usize % nf.rx.len();
        let n = nf.rx[ring].dequeue(&mut burst).unwrap_or(0);
        for descriptor in &mut burst[..n] {
            (descriptor.verdict, descriptor.arg) = match next(&mut seed) % 16 {
                0 => (Verdict::Drop as u8, 0),
                1 => (Verdict::ToPort as u8, 0),
                2 => (Verdict::ToService as u8, NFS - 1),
                3 => (77, 0),
                _ => (0, 0),
            };
        }
        match next(&mut seed) % 8 {
            0 => {}
            1 => {
                let _ = nf.tx.enqueue(&burst[..n]);
                let _ = nf.tx.enqueue(&burst[..n]);
            }
            2 | 3 => {
                let _ = nf.tx.enqueue(&burst[..n]);
                for descriptor in &mut burst {
                    descriptor.frame = arenas[next(&mut seed) as usize % arenas.len()] + next(&mut seed) % FRAMES;
                    descriptor.offset = 128;
                    descriptor.len = 60;
                }
                let _ = nf.tx.enqueue(&burst);
            }
            4 => {
                let _ = nf.tx.enqueue(&burst[..n]);
                // A cursor of a ring to it or, after the last of these, of the ring from it.
                let at = rx_ring(next(&mut seed) % (nf.rx.len() as u32 + 1)) + if next(&mut seed) & 1 == 0 { 0 } else { 64 };
                if let Some(word) = mapping.atomic_u32(at) {
                    let near = word.load(Ordering::Relaxed).wrapping_add(next(&mut seed) % (4 * RING)).wrapping_sub(2 * RING);
                    word.store(near, Ordering::Relaxed);
                }
            }
            _ => {
                let _ = nf.tx.enqueue(&burst[..n]);
            }
        }
    })
}

#[derive(Debug)]
#[allow(dead_code, reason = "it is printed")]
struct Counted {
    form: Form,
    deaths: u64,
    taken_back: usize,
    violations: u64,
    entered: u64,
    left: u64,
    dropped: u64,
}

fn run(form: Form, deaths: u64) -> Counted {
    let config = form.config();
    let threads = form.threads;
    let mut plane = DataPlane::start(&config, &sluice_ports::All::default(), &|_| None).unwrap();
    let memory = plane.memory_for_port(&config, &config.ports[0]);
    let arenas: Vec<u32> = plane.memories().iter().map(|memory| memory.geometry().first).collect();
    assert!(form.tenants == (arenas.len() > 1));
    let counters: Arc<[ChainCounters]> = (0..threads).map(|_| ChainCounters::default()).collect();
    let rules = RuleSet::new(vec![Rule::default()]);
    let queues = plane.rx().len();
    let owners = plane.owners(0, queues);
    let mut generation = 0;
    let mut publish = |plane: &mut DataPlane, dies: bool| {
        generation += 1;
        let chain = Arc::new(Chain {
            version: generation,
            name: "c".into(),
            services: (0..NFS).collect(),
            on_failure: OnFailure::Drop,
            counters: counters.clone(),
            ..Chain::default()
        });
        let member = |nf| Member { nf, id: u64::from(nf), former: None, is_open: true, thread: None };
        let services = (0..NFS).map(|nf| if nf == DIES && !dies { Vec::new() } else { vec![member(nf)] }).collect();
        plane.use_tables(&Arc::new(Tables {
            generation,
            rules: rules.clone(),
            chains: vec![Some(chain)],
            services,
            ports: vec![Some(PortInfo { name: "p".into(), overload: Overload::Drop, owners: owners.clone(), memory })],
            ..Default::default()
        }));
    };
    let attach = |plane: &mut DataPlane, nf: u16| {
        let place = plane.place(0, config.services[usize::from(nf)].tenant.clone()).unwrap();
        let handle = plane.attach(nf, &format!("s{nf}.0"), nf, 0, true, RING, &place, 1.0, None).unwrap();
        (handle, place)
    };
    let mut handles: Vec<_> = (0..NFS).map(|nf| attach(&mut plane, nf)).collect();
    let others: Vec<Player> = [0, NFS - 1].map(|nf| honest(&handles[usize::from(nf)].0, form.backpressure)).into();
    let mut dying = hostile(&handles[usize::from(DIES)].0, &arenas, 1);
    publish(&mut plane, true);
    plane.start_rx();
    let stop = Arc::new(AtomicBool::new(false));
    let queue = |i| Box::new(Flood { stop: stop.clone(), packet: udp(i as u8) }) as Box<dyn PortQueue>;
    let ports = plane.add_port(0, (0..queues).map(queue).collect(), Overload::Drop, false).unwrap();

    let (mut taken_back, mut violations) = (0, 0);
    for death in 1..=deaths {
        let handle = handles[usize::from(DIES)].0.clone();
        // One that has forged the end of its ring at once gets none.
        wait_for("packets for the NF", || {
            plane.collect();
            let has_been_seen = handle.posted_returned().0 > 0 || handle.violations.load(Ordering::Relaxed) > 0;
            dying.rounds.load(Ordering::Relaxed) > 20 && has_been_seen
        });
        publish(&mut plane, false);
        // Its remains go on writing while its frames are taken back.
        plane.collect();
        taken_back += plane.detach(DIES).unwrap();
        violations += handle.violations.load(Ordering::Relaxed);
        plane.vacate(&handles[usize::from(DIES)].1);
        plane.collect();
        dying.end();
        handles[usize::from(DIES)] = attach(&mut plane, DIES);
        dying = hostile(&handles[usize::from(DIES)].0, &arenas, death + 1);
        publish(&mut plane, true);
    }
    stop.store(true, Ordering::Relaxed);
    publish(&mut plane, false);
    taken_back += plane.detach(DIES).unwrap();
    dying.end();
    wait_for("the packets inside", || plane.table().in_use() == 0);
    wait_for("the packets at the ports", || plane.snapshots().unwrap().iter().all(|s| s.waiting == 0));
    assert_eq!(plane.free_frames().unwrap(), arenas.len() * FRAMES as usize, "every frame is free");
    wait_for("former paths to be freed", || {
        plane.collect();
        plane.is_collected()
    });
    for (handle, _) in &handles {
        assert_eq!(handle.in_flight.load(Ordering::Relaxed), 0, "packets on their way to {}", handle.name);
    }
    let sum = |of: fn(&ChainCounters) -> u64| counters.iter().map(of).sum::<u64>();
    let inside = |c: &ChainCounters| {
        DropReason::ALL
            .iter()
            .filter(|why| why.is_wasted() || **why == DropReason::Verdict)
            .map(|why| c.drops[*why as usize].get())
            .sum()
    };
    let (entered, left, dropped) = (sum(|c| c.api.entry_packets.get()), sum(|c| c.api.exit_packets.get()), sum(inside));
    assert_eq!(entered, left + dropped);
    assert_eq!(left, ports.iter().map(|queue| queue.api.tx_packets.get() + queue.api.tx_drops.get()).sum::<u64>());
    others.into_iter().for_each(Player::end);
    plane.stop();
    // All frames, each once.
    for memory in plane.memories().iter() {
        let first = memory.geometry().first;
        let mut all = FrameCache::new(memory.pool.clone(), plane.arena().clone(), FRAMES as usize);
        let mut frames = vec![0; FRAMES as usize + 1];
        let n = all.alloc(&mut frames);
        frames.truncate(n);
        frames.sort_unstable();
        assert!(frames.iter().copied().eq(first..first + FRAMES), "each frame is free once");
    }
    Counted { form, deaths, taken_back, violations, entered, left, dropped }
}

fn die(forms: &[Form]) {
    let deaths = std::env::var("SLUICE_DEATHS").map_or(DEATHS, |n| n.parse().expect("SLUICE_DEATHS is a number"));
    // Half of the forms allow any number of forgeries; the others stop the NF.
    let forms: Vec<Form> = forms.iter().flat_map(|form| [*form, Form { max_violations: 300, ..*form }]).collect();
    let (mut entered, mut taken_back, mut violations) = (0, 0, 0);
    for form in &forms {
        let counted = run(*form, deaths.div_ceil(forms.len() as u64));
        println!("{counted:?}");
        (entered, violations) = (entered + counted.entered, violations + counted.violations);
        taken_back += counted.taken_back;
    }
    assert!(entered > 0 && taken_back > 0 && violations > 0, "{entered} {taken_back} {violations}");
}

#[test]
fn deaths_under_load_lose_nothing_with_one_packet_thread() {
    die(&[Form::of(1)]);
}

#[test]
fn deaths_under_load_lose_nothing_with_two_packet_threads() {
    die(&[Form::of(2)]);
}

#[test]
fn deaths_under_load_lose_nothing_with_four_packet_threads() {
    die(&[Form::of(4)]);
}

#[test]
fn deaths_under_load_lose_nothing_where_threads_have_one_role_each() {
    die(&[Form { apart: true, ..Form::of(2) }, Form { apart: true, ..Form::of(4) }]);
}

#[test]
fn deaths_under_load_lose_nothing_between_tenants() {
    let form = Form { tenants: true, ..Form::of(2) };
    die(&[Form { threads: 1, ..form }, form, Form { apart: true, ..form }]);
}

#[test]
fn deaths_under_load_lose_nothing_without_backpressure() {
    let form = Form { backpressure: false, ..Form::of(2) };
    die(&[form, Form { tenants: true, ..form }]);
}
