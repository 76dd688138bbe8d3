//! Real packets through real DPDK devices, a process for each scenario, as EAL starts only once.
//!
//! Each test starts this binary again with [`CHILD`] set, and checks its exit. A scenario that the
//! host does not allow (not root, no hugepages, no /dev/net/tun) is skipped, with the reason; in CI
//! only for want of hugepages.
#![cfg(feature = "dpdk")]

#[path = "../../host/src/skip.rs"]
mod skip;

use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::UnshareFlags;
use sluice_dpdk::{Device, DeviceOptions, DpdkError, Eal, EalOptions, MbufPool, Packet, PoolThread, Queue};
use sluice_shm::arena::{Arena, Geometry, HEADROOM};

use skip::skip;

const CHILD: &str = "SLUICE_DPDK_TEST_CHILD";
const FRAMES: u32 = 4096;
/// Maximum duration of a scenario; all are far below.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a scenario in a separate process, with its output shown here.
fn alone(test: &str, scenario: fn()) {
    if std::env::var_os(CHILD).is_some() {
        return scenario();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test}: {}", output.status);
}

/// The same with hugepages, reserved and released here by one test at a time.
fn alone_on_hugepages(test: &str, scenario: fn()) {
    static ONE: Mutex<()> = Mutex::new(());
    if std::env::var_os(CHILD).is_some() {
        return scenario();
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Hugepages::reserve(64) {
        Some(_reserved) => alone(test, scenario),
        // The host of CI need not have them.
        None => eprintln!("skipped: 64 hugepages of 2 MiB cannot be reserved here"),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

struct Rig {
    pool: MbufPool,
    // Dropped before the pool's other holders end EAL.
    _thread: PoolThread,
    eal: Eal,
}

impl Rig {
    fn with(huge: bool, frames: u32, stride: u32) -> Self {
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames, stride }, huge).unwrap();
        let eal = Eal::init(&EalOptions { hugepages: huge, frames, ..Default::default() }).unwrap();
        let pool = MbufPool::over(&eal, &arena).unwrap();
        assert_eq!(pool.available(), frames);
        Self { _thread: pool.enter_thread().unwrap(), pool, eal }
    }

    fn new() -> Self {
        Self::with(false, FRAMES, 2240)
    }

    fn open(&self, devargs: &str) -> (Device, Queue) {
        let (device, mut queues) = Device::open(&self.pool, devargs, &DeviceOptions::default()).unwrap();
        (device, queues.pop().unwrap())
    }

    fn bytes(&self, packet: &Packet) -> Vec<u8> {
        let mut bytes = vec![0; packet.len as usize];
        assert!(self.pool.arena().read(packet.frame, packet.offset, &mut bytes));
        bytes
    }

    /// A packet of these bytes after the headroom of a free frame.
    fn packet(&self, bytes: &[u8]) -> Packet {
        let mut frame = [0];
        assert_eq!(self.pool.take(&mut frame), 1);
        assert!(self.pool.arena().write(frame[0], HEADROOM as u16, bytes));
        Packet { frame: frame[0], offset: HEADROOM as u16, len: bytes.len() as u16 }
    }
}

/// Moves packets from one queue to another, and frees those that this does not take.
fn pump(pool: &MbufPool, from: &mut Queue, to: &mut Queue) -> usize {
    let mut burst = [Packet::default(); 32];
    let n = from.rx_burst(&mut burst);
    let sent = to.tx_burst(&burst[..n]);
    burst[sent..n].iter().for_each(|p| pool.put(&[p.frame]));
    n
}

fn run(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|e| panic!("{line}: {e}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Output of an iproute2 command, or nothing if it failed.
fn ask(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|e| panic!("{line}: {e}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn is_promiscuous(interface: &str) -> bool {
    ask(&format!("ip link show dev {interface}")).contains("PROMISC")
}

fn new_network_namespace() {
    // Only this thread and its future threads are in it; it ends with them.
    #[allow(deprecated)]
    rustix::thread::unshare(UnshareFlags::NEWNET).unwrap();
}

// ---- net_null -----------------------------------------------------------------------------

#[test]
fn null_device_sends_what_it_receives() {
    alone("null_device_sends_what_it_receives", || {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let rig = Rig::new();
        let after = rustix::thread::sched_getaffinity(None).unwrap();
        assert!((0..1024).all(|cpu| before.is_set(cpu) == after.is_set(cpu)), "EAL pinned this thread");
        assert!(Eal::version().starts_with("DPDK "));
        assert_eq!(rig.pool.kind(), "lf_stack");

        let (device, mut queue) = rig.open("net_null0,size=60");
        assert_eq!((device.name(), device.driver()), ("net_null0", "net_null"));
        let mut burst = [Packet::default(); 32];
        assert_eq!(queue.rx_burst(&mut burst), 32);
        for packet in &burst {
            assert!(packet.frame < FRAMES);
            assert_eq!((packet.offset as usize, packet.len), (HEADROOM, 60));
        }
        assert_eq!(queue.tx_burst(&burst), 32);
        for _ in 0..1000 {
            let n = queue.rx_burst(&mut burst);
            assert_eq!(queue.tx_burst(&burst[..n]), n);
        }
        let stats = device.stats();
        assert_eq!((stats.rx_packets, stats.tx_packets), (32_032, 32_032));
        assert!(device.link().mbps > 0);
        assert_eq!(rig.pool.available(), FRAMES);

        // Any frame can be sent, not only received ones, from any offset. A packet outside of its
        // frame is dropped, counted, and not given to the device.
        let odd = Packet { offset: 3, len: 777, ..rig.packet(&[1; 60]) };
        let wild = [
            odd,
            Packet { frame: FRAMES, offset: 0, len: 60 },
            Packet { offset: 2200, len: 60, ..rig.packet(&[2; 60]) },
            Packet { len: 0, ..rig.packet(&[3; 60]) },
            rig.packet(&[4; 60]),
        ];
        assert_eq!(queue.tx_burst(&wild), 5);
        assert_eq!(queue.drops().tx_invalid, 3);
        assert_eq!(device.stats().tx_packets, 32_034);
        assert_eq!(rig.pool.available(), FRAMES);

        drop((device, queue));
        let Rig { pool, _thread, eal } = rig;
        drop((_thread, pool, eal));
        let rest = format!("sluice-{}", std::process::id());
        for folder in ["/var/run/dpdk", "/tmp/dpdk"] {
            assert!(!Path::new(folder).join(&rest).exists(), "DPDK left {folder}/{rest}");
        }
        assert!(matches!(Eal::init(&EalOptions::default()), Err(DpdkError::StartedBefore)));
    });
}

#[test]
fn every_frame_is_given_once_and_comes_back() {
    alone("every_frame_is_given_once_and_comes_back", || {
        let rig = Rig::with(false, 1000, 192);
        let mut all = vec![0; 1200];
        assert_eq!(rig.pool.take(&mut all), 1000);
        let mut sorted = all[..1000].to_vec();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..1000));
        assert_eq!(rig.pool.take(&mut [0]), 0);
        let base = rig.pool.arena().raw().0 as usize;
        assert_eq!(rig.pool.arena().frame_ptr(7).unwrap() as usize, base + 7 * 192);
        rig.pool.put(&all[..1000]);
        rig.pool.put(&[u32::MAX]);
        assert_eq!(rig.pool.available(), 1000);
        // Frames in a thread's cache return when it ends.
        let (_device, mut queue) = rig.open("net_null0,size=60");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _here = rig.pool.enter_thread().unwrap();
                assert!(matches!(rig.pool.enter_thread(), Err(DpdkError::Thread { .. })));
                let mut burst = [Packet::default(); 32];
                let n = queue.rx_burst(&mut burst);
                assert_eq!(queue.tx_burst(&burst[..n]), n);
            });
        });
        let mut all = vec![0; 1000];
        assert_eq!(rig.pool.take(&mut all), 1000);
        rig.pool.put(&all);
    });
}

#[test]
fn devices_come_and_go_while_packets_flow() {
    alone("devices_come_and_go_while_packets_flow", || {
        let rig = Rig::new();
        let (device, mut queue) = rig.open("net_null0,size=60");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let moved = scope.spawn(|| {
                let _here = rig.pool.enter_thread().unwrap();
                let (mut moved, mut burst) = (0, [Packet::default(); 32]);
                while !stop.load(Ordering::Relaxed) {
                    let n = queue.rx_burst(&mut burst);
                    assert_eq!(queue.tx_burst(&burst[..n]), n);
                    moved += n as u64;
                }
                moved
            });
            for round in 0..20 {
                let (other, mut queue) = rig.open(&format!("net_null{},size=100", 1 + round % 3));
                let mut burst = [Packet::default(); 8];
                assert_eq!(queue.rx_burst(&mut burst), 8);
                assert_eq!(queue.tx_burst(&burst), 8);
                assert_eq!(other.stats().tx_packets, 8);
                let again = Device::open(&rig.pool, other.name(), &DeviceOptions::default());
                assert!(matches!(again, Err(DpdkError::Busy { .. })), "{again:?}");
            }
            stop.store(true, Ordering::Relaxed);
            let moved = moved.join().unwrap();
            assert_eq!(device.stats().tx_packets, moved);
        });
        assert_eq!(rig.pool.available(), FRAMES);
    });
}

#[test]
fn errors_say_what_to_do() {
    alone("errors_say_what_to_do", || {
        let rig = Rig::new();
        let error = |devargs: &str, queues| {
            let options = DeviceOptions { queues, ..Default::default() };
            Device::open(&rig.pool, devargs, &options).unwrap_err().to_string()
        };
        for (devargs, queues, wanted) in [
            ("net_af_packet0,iface=no-such0", 1, "no interface no-such0"),
            ("net_nonesuch0", 1, "check the driver's name"),
            ("nonesuch", 1, "names no driver"),
            ("net_pcap0,rx_pcap=/no/such.pcap,tx_pcap=/tmp/x", 1, "no file /no/such.pcap"),
            ("0000:ff:1f.7", 1, "lspci -D"),
            ("net_null0", 5000, "lower the port's `queues`"),
            ("net_null0\0", 1, "Invalid argument"),
        ] {
            let said = error(devargs, queues);
            println!("{said}");
            assert!(said.contains(wanted), "{devargs}: {said}");
        }
        // The failures left nothing open.
        let (_device, mut queue) = rig.open("net_null0,size=60");
        let mut burst = [Packet::default(); 4];
        assert_eq!(queue.rx_burst(&mut burst), 4);
        assert_eq!(queue.tx_burst(&burst), 4);
        // A second pool is refused.
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 64, stride: 192 }, false).unwrap();
        assert!(matches!(MbufPool::over(&rig.eal, &arena), Err(DpdkError::Pool { frames: 64, .. })));
    });
}

#[test]
fn hugepages_carry_packets_too() {
    alone_on_hugepages("hugepages_carry_packets_too", || {
        let rig = Rig::with(true, FRAMES, 2240);
        let (device, mut queue) = rig.open("net_null0,size=60");
        let mut burst = [Packet::default(); 32];
        for _ in 0..100 {
            assert_eq!(queue.rx_burst(&mut burst), 32);
            assert_eq!(queue.tx_burst(&burst), 32);
        }
        assert_eq!(device.stats().tx_packets, 3200);
        let sent = pcap_round_trip(&rig);
        assert!(sent > 0);
        drop((device, queue));
        assert_eq!(rig.pool.available(), FRAMES);
    });
}

/// Hugepages reserved for a test, and released at its end.
struct Hugepages(u64);

impl Hugepages {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";

    fn read() -> Option<u64> {
        std::fs::read_to_string(Self::FILE).ok()?.trim().parse().ok()
    }

    fn reserve(n: u64) -> Option<Self> {
        let before = Self::read()?;
        std::fs::write(Self::FILE, (before + n).to_string()).ok()?;
        let reserved = Self(before);
        (Self::read()? >= before + n).then_some(reserved)
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        std::fs::write(Self::FILE, self.0.to_string()).expect("it could be written before");
    }
}

// ---- net_pcap -----------------------------------------------------------------------------

fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    for (i, packet) in packets.iter().enumerate() {
        for word in [i as u32, 0, packet.len() as u32, packet.len() as u32] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(packet);
    }
    file
}

fn packets_of(file: &[u8]) -> Vec<Vec<u8>> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut packets) = (24, Vec::new());
    while at < file.len() {
        let len = word(at + 8);
        packets.push(file[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    packets
}

/// Sends packets of many sizes from file to file; drops and counts one that does not fit in a
/// frame. Returns how many came through.
fn pcap_round_trip(rig: &Rig) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from.pcap"), folder.path().join("to.pcap"));
    let mut packets: Vec<Vec<u8>> = (0..200).map(|i| (0..14 + i * 7).map(|b| (b + i) as u8).collect()).collect();
    // A VLAN tag stays in the packet.
    packets[50][12..16].copy_from_slice(&[0x81, 0, 0x20, 7]);
    let too_long = vec![9; 5000];
    let mut written = packets.clone();
    written.insert(100, too_long);
    std::fs::write(&from, pcap(&written)).unwrap();
    let (device, mut queue) = rig.open(&format!("net_pcap0,rx_pcap={},tx_pcap={}", from.display(), to.display()));
    let mut burst = [Packet::default(); 32];
    // Empty bursts do not mean the end, since all packets of one may be dropped. After this number
    // of them the driver has no more.
    let mut through = 0;
    while through < packets.len() {
        let n = queue.rx_burst(&mut burst);
        assert!(n > 0 || through + 1 >= packets.len() || queue.drops().rx_too_long > 0, "the file ended early");
        for (packet, sent) in burst[..n].iter().zip(&packets[through..]) {
            assert_eq!(&rig.bytes(packet), sent);
        }
        assert_eq!(queue.tx_burst(&burst[..n]), n);
        through += n;
    }
    assert_eq!(queue.drops().rx_too_long, 1);
    assert_eq!(device.stats().tx_packets as usize, packets.len());
    drop((device, queue));
    assert_eq!(packets_of(&std::fs::read(&to).unwrap()), packets);
    through
}

#[test]
fn captures_come_out_as_they_went_in() {
    alone("captures_come_out_as_they_went_in", || {
        let rig = Rig::new();
        assert_eq!(pcap_round_trip(&rig), 200);
        assert_eq!(rig.pool.available(), FRAMES);
    });
}

// ---- net_tap ------------------------------------------------------------------------------

/// Reverses a UDP packet: MACs, addresses and ports are swapped, so its checksums stay right.
fn echo(bytes: &mut [u8]) {
    for (a, b, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        for i in 0..len {
            bytes.swap(a + i, b + i);
        }
    }
}

#[test]
fn tap_device_speaks_with_the_kernel() {
    alone("tap_device_speaks_with_the_kernel", || {
        if !is_root() || !Path::new("/dev/net/tun").exists() {
            return skip("a tap device needs root and /dev/net/tun");
        }
        new_network_namespace();
        let rig = Rig::new();
        let (device, mut queue) = rig.open("net_tap0,iface=sluicetap0");
        run("ip addr add 10.9.0.1/24 dev sluicetap0");
        run("ip link set sluicetap0 up");
        run("ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev sluicetap0");
        let socket = UdpSocket::bind("10.9.0.1:5000").unwrap();
        socket.connect("10.9.0.2:6000").unwrap();
        socket.set_nonblocking(true).unwrap();
        let (start, mut answers, mut asked) = (Instant::now(), 0, 0u32);
        let mut burst = [Packet::default(); 32];
        while answers < 50 {
            assert!(start.elapsed() < PATIENCE, "{answers} of {asked} answers came");
            if asked == answers {
                asked += 1;
                socket.send(&asked.to_be_bytes()).unwrap();
            }
            let n = queue.rx_burst(&mut burst);
            for packet in &burst[..n] {
                let mut bytes = rig.bytes(packet);
                // Other packets, such as router solicitations, are ignored.
                let is_udp = bytes.len() >= 46 && bytes[12..14] == [8, 0] && bytes[23] == 17;
                if is_udp {
                    echo(&mut bytes);
                    assert!(rig.pool.arena().write(packet.frame, packet.offset, &bytes));
                    assert_eq!(queue.tx_burst(&[*packet]), 1);
                } else {
                    rig.pool.put(&[packet.frame]);
                }
            }
            let mut answer = [0; 4];
            if let Ok(4) = socket.recv(&mut answer) {
                answers += 1;
                assert_eq!(u32::from_be_bytes(answer), answers);
            }
        }
        assert!(device.link().up);
        assert!(ask("ip link show dev sluicetap0").contains("sluicetap0"));
        drop((device, queue));
        assert_eq!(rig.pool.available(), FRAMES);
        assert_eq!(ask("ip link show dev sluicetap0"), "");
    });
}

// ---- net_af_packet ------------------------------------------------------------------------

/// A separate network namespace at the far end of a veth pair, with a thread that answers UDP.
fn far_end(ready: &std::sync::mpsc::Sender<i32>, go: &std::sync::mpsc::Receiver<()>, interface: &str, host: u8) -> UdpSocket {
    new_network_namespace();
    ready.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
    go.recv().unwrap();
    // The kernel leaves checksums of a veth's packets to missing hardware.
    run(&format!("ethtool -K {interface} tx off"));
    run(&format!("ip addr add 10.1.0.{host}/24 dev {interface}"));
    run(&format!("ip link set {interface} up"));
    let socket = UdpSocket::bind(format!("10.1.0.{host}:5000")).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

fn veth_scenario(huge: bool) {
    new_network_namespace();
    run("ip link add a0 type veth peer name a1");
    run("ip link add b0 type veth peer name b1");
    run("ip link set a0 up");
    run("ip link set b0 up");
    let rig = Rig::with(huge, FRAMES, 2240);
    let (a, mut a_queue) = rig.open("net_af_packet0,iface=a0");
    let (b, mut b_queue) = rig.open("net_af_packet1,iface=b0");
    assert!(is_promiscuous("a0") && is_promiscuous("b0"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut ends = Vec::new();
        for (interface, host) in [("a1", 1), ("b1", 2)] {
            let (ready, tid) = std::sync::mpsc::channel();
            let (go, wait) = std::sync::mpsc::channel();
            let done = &done;
            ends.push(scope.spawn(move || {
                let socket = far_end(&ready, &wait, interface, host);
                if host == 2 {
                    // Answers until the other end is done.
                    let mut buffer = [0; 2000];
                    while !done.load(Ordering::Relaxed) {
                        if let Ok((n, from)) = socket.recv_from(&mut buffer) {
                            socket.send_to(&buffer[..n], from).unwrap();
                        }
                    }
                    return;
                }
                for size in [4, 100, 1400] {
                    let (question, start, mut answer) = (vec![size as u8; size], Instant::now(), [0; 2000]);
                    // The first may be lost to address resolution.
                    loop {
                        socket.send_to(&question, "10.1.0.2:5000").unwrap();
                        match socket.recv(&mut answer) {
                            Ok(n) if answer[..n] == question => break,
                            Ok(_) => {}
                            Err(_) => assert!(start.elapsed() < PATIENCE, "no answer of {size} bytes"),
                        }
                    }
                }
                done.store(true, Ordering::Relaxed);
            }));
            let tid = tid.recv().unwrap();
            run(&format!("ip link set {interface} netns {tid}"));
            go.send(()).unwrap();
        }
        let start = Instant::now();
        while !done.load(Ordering::Relaxed) && ends.iter().all(|end| !end.is_finished()) && start.elapsed() < 3 * PATIENCE {
            pump(&rig.pool, &mut a_queue, &mut b_queue);
            pump(&rig.pool, &mut b_queue, &mut a_queue);
        }
        done.store(true, Ordering::Relaxed);
    });
    // Three questions one way, three answers the other.
    for stats in [a.stats(), b.stats()] {
        assert!(stats.rx_packets >= 3 && stats.tx_packets >= 3, "{stats:?}");
    }
    assert_eq!(a_queue.drops(), Default::default());
    drop((a, b, a_queue, b_queue));
    assert_eq!(rig.pool.available(), FRAMES);
    assert!(!is_promiscuous("a0") && !is_promiscuous("b0"));
}

#[test]
fn veth_pairs_are_joined() {
    alone("veth_pairs_are_joined", || {
        if !is_root() {
            return skip("only root can make network namespaces");
        }
        veth_scenario(false);
    });
}

#[test]
fn veth_pairs_are_joined_on_hugepages() {
    alone_on_hugepages("veth_pairs_are_joined_on_hugepages", || {
        if !is_root() {
            return skip("only root can make network namespaces");
        }
        veth_scenario(true);
    });
}

#[test]
fn two_queues_of_a_veth_share_its_flows() {
    alone("two_queues_of_a_veth_share_its_flows", || {
        if !is_root() {
            return skip("only root can make network namespaces");
        }
        new_network_namespace();
        run("ip link add a0 type veth peer name a1");
        run("ip link set a0 up");
        run("ip link set a1 up");
        let rig = Rig::new();
        let two = DeviceOptions { queues: 2, ..Default::default() };
        let refused = Device::open(&rig.pool, "net_af_packet0,iface=a0", &two).unwrap_err().to_string();
        assert!(refused.contains("add `qpairs=2`"), "{refused}");
        let (_a, mut queues) = Device::open(&rig.pool, "net_af_packet0,iface=a0,qpairs=2", &two).unwrap();
        let (_b, mut far) = rig.open("net_af_packet1,iface=a1");
        // UDP over IPv4, 64 flows; the sender takes as much as its ring holds.
        let mut sent = 0;
        let (start, mut got) = (Instant::now(), [0usize; 2]);
        let mut burst = [Packet::default(); 32];
        while got.iter().sum::<usize>() < 64 {
            assert!(start.elapsed() < PATIENCE, "{got:?} of {sent}");
            if sent < 64 {
                let mut bytes = vec![0u8; 60];
                bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
                bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
                bytes[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0x40, sent as u8, 0, 9]);
                bytes[38..40].copy_from_slice(&[0, 26]);
                let packet = rig.packet(&bytes);
                match far.tx_burst(&[packet]) {
                    1 => sent += 1,
                    _ => rig.pool.put(&[packet.frame]),
                }
            }
            for (queue, got) in queues.iter_mut().zip(&mut got) {
                let n = queue.rx_burst(&mut burst);
                for packet in &burst[..n] {
                    *got += usize::from(rig.bytes(packet)[26..30] == [10, 0, 0, 1]);
                    rig.pool.put(&[packet.frame]);
                }
            }
        }
        assert!(got[0] > 0 && got[1] > 0, "{got:?}");
    });
}

#[test]
fn vlan_tags_stay_in_the_packet() {
    alone("vlan_tags_stay_in_the_packet", || {
        if !is_root() {
            return skip("only root can make network namespaces");
        }
        new_network_namespace();
        run("ip link add a0 type veth peer name a1");
        run("ip link set a0 promisc on");
        run("ip link set a0 up");
        run("ip link set a1 up");
        let rig = Rig::new();
        let (a, mut near) = rig.open("net_af_packet0,iface=a0");
        let (b, mut far) = rig.open("net_af_packet1,iface=a1");
        let mut burst = [Packet::default(); 32];
        for tag in [[0x81, 0, 0x20, 7], [0x81, 0, 0xef, 0xff]] {
            let mut bytes: Vec<u8> = (0..100).collect();
            bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            bytes[12..16].copy_from_slice(&tag);
            bytes[16..18].copy_from_slice(&[0x88, 0xb5]);
            assert_eq!(far.tx_burst(&[rig.packet(&bytes)]), 1);
            let (start, mut came) = (Instant::now(), false);
            while !came {
                assert!(start.elapsed() < PATIENCE, "the packet did not come");
                let n = near.rx_burst(&mut burst);
                for packet in &burst[..n] {
                    let got = rig.bytes(packet);
                    // Others are the kernel's own, such as router solicitations.
                    came |= got == bytes;
                    assert!(got == bytes || got[12..14] == [0x86, 0xdd], "{got:?}");
                    rig.pool.put(&[packet.frame]);
                }
            }
        }
        drop((a, b, near, far));
        assert!(is_promiscuous("a0") && !is_promiscuous("a1"));
    });
}
