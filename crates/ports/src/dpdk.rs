//! DPDK devices as ports: a NIC by its PCI address, or a virtual device by its devargs.
//!
//! **Frames.** A device receives into frames of the DPDK memory pool of the arena that it was
//! opened with, and returns sent frames to their own pools. So that a device can send packets of
//! any port without a copy, all frames come from such pools ([`pool`](port::Devices::pool)) if the
//! configuration has a `dpdk` port, a service that shares memory through a device, or `memory.dpdk
//! = true` (for ports added later). Otherwise DPDK is never started.
//!
//! **Configurations that work.** For a veth pair or any other kernel interface: `devargs =
//! "net_af_packet0,iface=veth0,qdisc_bypass=1"`; with two queues add `qpairs=2`; for packets over
//! 1,800 bytes add `framesz=16384,blocksz=65536,framecnt=512`. Each device has its own number. The
//! kernel leaves checksums and segmentation of a veth's packets to hardware that does not exist, so
//! run `ethtool -K veth1 tx off tso off gso off` at the far end. A tap device is
//! `net_tap0,iface=tap0`, a null device `net_null0,size=60`.
//!
//! **Limits.** A NIC must be named when sluiced starts; virtual devices come and go at any time.
//! Each queue keeps `descriptors` frames. net_af_packet spreads flows over all its `qpairs`, so the
//! port must have as many queues.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use sluice_dpdk::{Device, DeviceOptions, DpdkError, Eal, EalOptions, Link, MbufPool, Queue, Stats};
use sluice_shm::BURST;
use sluice_shm::arena::{Arena, HEADROOM};
use sluice_shm::memory::HUGEPAGE;

use crate::error::PortError;
use crate::spread;
use sluice_api::config::{Config, Dpdk, PortKind};
use sluice_api::model::PortState;
use sluice_dataplane::frame::{DevicePool, FrameCache, FramePool, Packet};
use sluice_dataplane::link::Link as PortLink;
use sluice_dataplane::port::{self, Fault, OpenPort, WireEnd};
use sluice_dataplane::queue::{PortQueue, QueueCounters};

/// Ethernet header and a VLAN tag, which an MTU does not include.
const OVERHEAD: usize = 18;

/// Frame space (bytes) above which a device gets a larger MTU: that of the default stride.
const JUMBO_ROOM: usize = 2112;

#[derive(Debug, Clone)]
pub struct Devices {
    eal: Eal,
}

impl port::Devices for Devices {
    fn pool(&self, arena: &Arena, shift: u32) -> Result<Arc<FramePool>, Fault> {
        Ok(FramePool::over(Box::new(Frames(MbufPool::beside(&self.eal, arena, shift)?))))
    }

    fn enter_thread(&self) -> Result<Box<dyn Any>, Fault> {
        Ok(Box::new(self.eal.enter_thread()?))
    }
}

#[derive(Debug)]
struct Frames(MbufPool);

/// DPDK's pool, if these frames are in one.
fn own(frames: &FramePool) -> Option<&Frames> {
    frames.devices()?.as_any().downcast_ref()
}

impl DevicePool for Frames {
    fn first(&self) -> u32 {
        self.0.arena().geometry().first
    }

    fn frames(&self) -> usize {
        self.0.arena().geometry().frames as usize
    }

    fn available(&self) -> usize {
        self.0.available() as usize
    }

    fn take(&self, out: &mut [u32]) -> usize {
        self.0.take(out)
    }

    fn put(&self, frames: &[u32]) {
        self.0.put(frames);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Starts DPDK for this many frames, if the configuration needs it.
///
/// # Errors
/// [`DpdkError`] if DPDK is needed and does not start, with advice.
pub fn start(config: &Config, frames: u32, arenas_are_huge: bool) -> Result<Option<Devices>, DpdkError> {
    let devices: Vec<&Dpdk> =
        config.ports.iter().filter_map(|p| if let PortKind::Dpdk(d) = &p.kind { Some(d) } else { None }).collect();
    let shares = config.services.iter().any(|service| service.via.is_device());
    if devices.is_empty() && !shares && !config.memory.dpdk {
        return Ok(None);
    }
    let hugepages = arenas_are_huge && free_hugepages(Path::new("/")) >= hugepages_for(frames);
    let pci = devices.iter().filter_map(|d| d.pci.clone()).collect();
    Ok(Some(Devices { eal: Eal::init(&EalOptions { hugepages, pci, frames, verbose: false })? }))
}

/// Hugepages for DPDK besides the arena: a third of a KiB a frame, 32 MiB for tables and devices.
fn hugepages_for(frames: u32) -> u64 {
    16 + (u64::from(frames) * 320).div_ceil(HUGEPAGE as u64)
}

fn free_hugepages(root: &Path) -> u64 {
    let file = root.join("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// A port's name for its device.
pub fn name(settings: &Dpdk) -> Option<&str> {
    settings.pci.as_deref().or(settings.devargs.as_deref())
}

/// Checks whether a device could be opened, as far as possible without starting DPDK.
///
/// # Errors
/// As [`open`].
pub fn look_at(port: &str, settings: &Dpdk) -> Result<(), PortError> {
    let devargs = device(port, settings)?;
    sluice_dpdk::look_at(devargs).map_err(|error| PortError::Device { port: port.into(), what: error.to_string() })
}

/// The device of a port, if this build has DPDK.
fn device<'a>(port: &str, settings: &'a Dpdk) -> Result<&'a str, PortError> {
    if !sluice_dpdk::BUILT_IN {
        return Err(PortError::NoDpdk { port: port.into() });
    }
    let what = "a dpdk port needs `devargs` or `pci`";
    name(settings).ok_or_else(|| PortError::Setting { port: port.into(), what: what.into() })
}

/// The pool that a device takes frames from, if frames are DPDK's.
///
/// # Errors
/// [`PortError::NoDpdk`], [`PortError::Setting`].
pub fn pool<'a>(port: &str, frames: &'a FramePool) -> Result<&'a MbufPool, PortError> {
    if !sluice_dpdk::BUILT_IN {
        return Err(PortError::NoDpdk { port: port.into() });
    }
    let what =
        "sluiced was started without any dpdk port, so its frames are not DPDK's; set `dpdk = true` in [memory] and start it again";
    own(frames).map(|Frames(pool)| pool).ok_or_else(|| PortError::Setting { port: port.into(), what: what.into() })
}

/// Opens a device.
///
/// # Errors
/// [`PortError::NoDpdk`] if this build has none; [`PortError::Setting`] if frames do not come from
/// DPDK's pool; [`PortError::Device`] with what the device lacks.
pub fn open(name: &str, queues: u32, settings: &Dpdk, frames: &FramePool) -> Result<OpenPort, PortError> {
    let pool = pool(name, frames)?;
    let devargs = device(name, settings)?;
    let room = pool.arena().geometry().stride as usize - HEADROOM;
    let wanted = u16::try_from(queues).unwrap_or(u16::MAX);
    let mut options = DeviceOptions { queues: if settings.software_rss { 1 } else { wanted }, ..Default::default() };
    options.descriptors = settings.descriptors.unwrap_or(options.descriptors);
    options.mtu = (room > JUMBO_ROOM).then(|| (room - OVERHEAD) as u16);
    let state = Arc::new(PortLink::default());
    let (device, queues) =
        Device::open(pool, devargs, &options).map_err(|error| PortError::Device { port: name.into(), what: error.to_string() })?;
    let description = format!(
        "{devargs} ({}, {} queue{}, {} descriptors{})",
        device.driver(),
        queues.len(),
        if queues.len() == 1 { "" } else { "s" },
        device.descriptors(),
        match (device.has_rss(), settings.software_rss) {
            (_, true) => ", spread in software",
            (true, _) => ", symmetric RSS",
            _ => "",
        }
    );
    // The device's link is that of all its queues, so one of them reads it.
    let queue = |queue: Queue| DpdkQueue { state: (queue.index() == 0).then(|| state.clone()), ..DpdkQueue::new(queue) };
    let mut queues: Vec<_> = queues.into_iter().map(|it| Box::new(queue(it)) as Box<dyn PortQueue>).collect();
    if settings.software_rss
        && let Some(device) = queues.pop()
    {
        queues = spread::over(device, wanted, false);
    }
    Ok(OpenPort { queues, description, memory: None, link: state })
}

/// Opens a device with one queue that belongs to no port, by its devargs.
///
/// # Errors
/// What is wrong, and what to do.
pub(crate) fn open_one(devargs: &str, frames: &FramePool) -> Result<DpdkQueue, String> {
    let Some(Frames(pool)) = own(frames) else {
        let what = "sluiced was started without DPDK; set `dpdk = true` in [memory] and start it again";
        return Err(if sluice_dpdk::BUILT_IN { what.into() } else { DpdkError::NotBuilt.to_string() });
    };
    let (_, queues) = Device::open(pool, devargs, &DeviceOptions::default()).map_err(|error| error.to_string())?;
    let queue = queues.into_iter().next().ok_or("the device has no queue")?;
    Ok(DpdkQueue::new(queue))
}

#[derive(Debug)]
pub struct DpdkQueue {
    queue: Queue,
    /// As of the last housekeeping.
    stats: Stats,
    link: Link,
    /// State of the port, if it belongs to one.
    state: Option<Arc<PortLink>>,
    /// Counters for packets that are too long, and how many were counted.
    counters: Option<Arc<QueueCounters>>,
    too_long: u64,
}

impl DpdkQueue {
    fn new(queue: Queue) -> Self {
        let link = Link { up: false, mbps: 0 };
        Self { queue, stats: Stats::default(), link, state: None, counters: None, too_long: 0 }
    }
}

/// Shares memory with a program.
impl WireEnd for DpdkQueue {
    fn takes_frames(&self) -> bool {
        true
    }

    fn copy_out(&mut self, packets: &[Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        let (copies, copied) = copies(packets, frames);
        let sent = self.tx_burst(&copies[..copied], frames, now_ns);
        frames.free_packets(&copies[sent..copied]);
        sent
    }

    fn is_connected(&self) -> bool {
        self.queue.device().link().up
    }
}

/// Copies packets to new frames, as far as there are any.
fn copies(packets: &[Packet], frames: &mut FrameCache) -> ([Packet; BURST], usize) {
    let (mut fresh, mut copies) = ([0; BURST], [Packet::default(); BURST]);
    let had = frames.alloc(&mut fresh[..packets.len().min(BURST)]);
    let mut bytes = [0; 2048];
    for ((copy, packet), frame) in copies.iter_mut().zip(packets).zip(&fresh[..had]) {
        *copy = Packet { frame: *frame, ..*packet };
        for at in (0..packet.len).step_by(bytes.len()) {
            let part = &mut bytes[..usize::from(packet.len - at).min(2048)];
            frames.arena().read(packet.frame, packet.offset + at, part);
            frames.arena().write(copy.frame, copy.offset + at, part);
        }
    }
    (copies, had)
}

impl PortQueue for DpdkQueue {
    #[inline]
    fn rx_burst(&mut self, out: &mut [Packet], _frames: &mut FrameCache, _now_ns: u64) -> usize {
        let n = out.len().min(BURST);
        self.queue.rx_burst(&mut out[..n])
    }

    #[inline]
    fn tx_burst(&mut self, packets: &[Packet], _frames: &mut FrameCache, _now_ns: u64) -> usize {
        let mut taken = 0;
        for some in packets.chunks(BURST) {
            let n = self.queue.tx_burst(some);
            taken += n;
            if n < some.len() {
                break;
            }
        }
        taken
    }

    fn housekeeping(&mut self, _now_ns: u64) {
        // The device's counters cover all its queues, so one of them reads them.
        if self.queue.index() == 0 {
            self.stats = self.queue.device().stats();
            self.link = self.queue.device().link();
            if let Some(state) = &self.state {
                // If it cannot be set now, the next housekeeping sets it.
                let _ = state.set(if self.link.up { PortState::Up } else { PortState::NoLink });
            }
        }
        if let Some(counters) = &self.counters {
            let too_long = self.queue.drops().rx_too_long;
            counters.oversize.add(too_long - std::mem::replace(&mut self.too_long, too_long));
        }
    }

    fn count_with(&mut self, counters: &Arc<QueueCounters>) {
        self.counters = Some(counters.clone());
    }

    fn overruns(&self) -> u64 {
        self.stats.rx_missed
    }

    fn details(&self) -> Vec<(&'static str, f64)> {
        let drops = self.queue.drops();
        let mut details = vec![
            ("rx_too_long", drops.rx_too_long as f64),
            ("rx_foreign", drops.rx_foreign as f64),
            ("tx_invalid", drops.tx_invalid as f64),
        ];
        if self.queue.index() == 0 {
            details.extend([
                ("device_rx_packets", self.stats.rx_packets as f64),
                ("device_rx_bytes", self.stats.rx_bytes as f64),
                ("device_tx_packets", self.stats.tx_packets as f64),
                ("device_tx_bytes", self.stats.tx_bytes as f64),
                ("rx_missed", self.stats.rx_missed as f64),
                ("rx_errors", self.stats.rx_errors as f64),
                ("tx_errors", self.stats.tx_errors as f64),
                ("rx_no_frame", self.stats.rx_no_frame as f64),
                ("link_up", f64::from(u8::from(self.link.up))),
                ("link_mbps", f64::from(self.link.mbps)),
            ]);
        }
        details
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_shm::arena::Geometry;

    fn arena() -> Arena {
        Arena::create(Geometry { first: 0, frames: 4096, stride: 2240 }, false).unwrap().1
    }

    fn settings(devargs: &str) -> Dpdk {
        Dpdk { devargs: Some(devargs.into()), ..Default::default() }
    }

    #[test]
    fn without_devices_frames_are_our_own_and_a_late_device_is_refused() {
        let arena = arena();
        assert!(start(&Config::default(), 4096, false).unwrap().is_none());
        let frames = FramePool::new(arena.geometry().frames);
        let error = open("wan", 1, &settings("net_null0"), &frames).map(|_| ()).unwrap_err().to_string();
        let wanted = if sluice_dpdk::BUILT_IN { "set `dpdk = true` in [memory]" } else { "built without DPDK" };
        assert!(error.contains("wan") && error.contains(wanted), "{error}");
    }

    #[test]
    fn hugepages_are_counted_on_the_host() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(free_hugepages(root.path()), 0);
        let folder = root.path().join("sys/kernel/mm/hugepages/hugepages-2048kB");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("free_hugepages"), "12\n").unwrap();
        assert_eq!(free_hugepages(root.path()), 12);
        assert_eq!(hugepages_for(16_384), 19);
    }

    #[cfg(feature = "dpdk")]
    fn with_device() -> Config {
        let port = sluice_api::config::Port {
            name: "wan".into(),
            overload: Default::default(),
            queues: 1,
            tenant: None,
            kind: PortKind::Dpdk(settings("net_null0")),
        };
        Config { ports: vec![port], ..Default::default() }
    }

    /// The only test here that starts DPDK: a process can do so only once.
    #[cfg(feature = "dpdk")]
    #[test]
    fn frames_go_round_between_devices_and_threads() {
        let arena = arena();
        use port::Devices as _;
        let devices = start(&with_device(), 4096, false).unwrap().unwrap();
        let frames = devices.pool(&arena, 31).unwrap();
        let available = || frames.devices().unwrap().available();
        let (mut own, mut other) =
            (FrameCache::new(frames.clone(), arena.clone(), 100_000), FrameCache::new(frames.clone(), arena.clone(), 512));
        let _here = devices.enter_thread().unwrap();
        // A thread cannot keep all frames from the devices.
        let mut all = vec![0; 4096];
        assert_eq!(own.alloc(&mut all), 4096);
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..4096));
        all.iter().for_each(|frame| own.free(*frame));
        assert!(own.held() <= 1024 && available() == 4096 - own.held());

        let port = open("wan", 1, &Dpdk { descriptors: Some(64), ..settings("net_null0,size=60") }, &frames).unwrap();
        assert!(port.description.contains("net_null, 1 queue, 64 descriptors"), "{}", port.description);
        let mut queue = port.queues.into_iter().next().unwrap();
        let mut packets = [Packet::default(); BURST];
        for _ in 0..1000 {
            // Received frames go to a thread's stack, and frames of a stack are sent.
            let n = queue.rx_burst(&mut packets, &mut own, 0);
            assert_eq!(n, BURST);
            assert_eq!(packets[0], Packet::fresh(packets[0].frame, 60));
            own.free_packets(&packets);
            let mut mine = [0; BURST];
            assert_eq!(other.alloc(&mut mine), BURST);
            let mine = mine.map(|frame| Packet::fresh(frame, 60));
            assert_eq!(queue.tx_burst(&mine, &mut other, 0), BURST);
        }
        queue.housekeeping(0);
        let detail = |name: &str| queue.details().iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        assert_eq!(detail("device_tx_packets"), Some(32_000.0));
        assert_eq!(detail("rx_no_frame"), Some(0.0));
        assert_eq!(detail("tx_invalid"), Some(0.0));
        drop(queue);
        own.release();
        other.release();
        assert_eq!(available(), 4096);
        let error = open("wan", 1, &settings("net_af_packet0,iface=no-such0"), &frames).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("port wan") && error.contains("no interface no-such0"), "{error}");
    }
}
