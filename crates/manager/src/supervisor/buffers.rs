//! Bounds on NIC receive queues, so that packets are still cached when they are read.
//!
//! The calculation is [`sluice_cache::buffers`]; this module collects its inputs. A NIC whose port
//! sets no `descriptors` gets as many as the bound leaves, at most [`DESCRIPTORS`]. Set
//! `descriptors` are kept, with a warning if they are too many.
//!
//! # Limits
//! Only devices write to those cache ways. Processors fill kernel interfaces and virtual devices,
//! which are neither counted nor bounded. A port keeps its bound until it is opened again.

use std::path::Path;

use sluice_cache::buffers::{Bound, BufferError, EXTRA_LINES, IoCache, LEAST_FRAMES, Queues, Source, bound, io_cache};

use sluice_api::config::{Memory, Port, PortKind};
use sluice_api::promise::Buffers;

/// Descriptors of a receive queue by default.
pub const DESCRIPTORS: u16 = 512;

/// The cache ways that devices write to, or why they are unknown.
#[derive(Debug, Clone)]
pub struct DeviceWays {
    cache: Result<(IoCache, Source), String>,
    given: Option<u32>,
    packet_bytes: u32,
    stride: u32,
}

/// Whether a port is a device that writes to memory by itself.
fn is_nic(port: &Port) -> bool {
    matches!(&port.kind, PortKind::Dpdk(settings) if settings.pci.is_some())
}

/// Number of receive queues of all NICs among these ports.
pub fn queues(ports: &[Port]) -> u32 {
    let of = |port: &Port| match &port.kind {
        // One queue of the device is spread over those of the port.
        PortKind::Dpdk(settings) if settings.software_rss => 1,
        _ => port.queues,
    };
    ports.iter().filter(|port| is_nic(port)).map(of).sum()
}

impl DeviceWays {
    /// Reads the host with root directory `system`. `shareable` are the ways that devices share by
    /// resctrl; `stride` is the distance of two frames, 0 if pages lie anywhere.
    pub fn read(system: &Path, memory: &Memory, shareable: u32, stride: u32) -> Self {
        let cache = io_cache(system, memory.io_ways, shareable).map_err(|error| error.to_string());
        Self { cache, given: memory.rx_frames, packet_bytes: memory.packet_bytes, stride }
    }

    fn bound(&self, queues: u32) -> Option<Result<Bound, BufferError>> {
        let (cache, _) = self.cache.as_ref().ok()?;
        let queues = Queues { queues, packet_bytes: self.packet_bytes, extra_lines: EXTRA_LINES, stride: self.stride };
        Some(bound(*cache, queues))
    }

    /// Most packets that wait in each of `queues` queues: at least a burst, even if that is many.
    fn per_queue(&self, queues: u32) -> Option<u32> {
        self.given.or_else(|| match self.bound(queues.max(1))? {
            Ok(bound) => Some(bound.per_queue),
            Err(BufferError::TooFew { .. }) => Some(LEAST_FRAMES),
            Err(BufferError::Zero(_)) => None,
        })
    }

    /// A port with its bound, beside `all` (which may include it).
    pub fn bounded(&self, port: &Port, all: &[Port]) -> Port {
        let mut port = port.clone();
        if !is_nic(&port) {
            return port;
        }
        let others: Vec<Port> = all.iter().filter(|other| other.name != port.name).cloned().collect();
        let per_queue = self.per_queue(queues(&others) + queues(std::slice::from_ref(&port)));
        if let (PortKind::Dpdk(settings), Some(most)) = (&mut port.kind, per_queue)
            && settings.descriptors.is_none()
        {
            let most = 1u32 << most.max(1).ilog2();
            settings.descriptors = Some(DESCRIPTORS.min(u16::try_from(most).unwrap_or(u16::MAX)));
        }
        port
    }

    /// The report of `sluice status` for these ports.
    pub fn report(&self, ports: &[Port]) -> Buffers {
        let queues = queues(ports);
        let found = self.bound(queues.max(1));
        let per_queue = self.per_queue(queues);
        let more = ports.iter().filter(|port| is_nic(port)).find_map(|port| match &port.kind {
            PortKind::Dpdk(settings) => {
                let own = u32::from(settings.descriptors?);
                per_queue.filter(|most| own > *most).map(|most| {
                    format!("port {} has {own} descriptors, and {most} packets stay cached: leave `descriptors` out", port.name)
                })
            }
            _ => None,
        });
        let of_ways = match (&self.cache, &found) {
            (Err(why), _) => Some(why.clone()),
            (_, Some(Err(why))) => Some(why.to_string()),
            _ => None,
        };
        let source = self.cache.as_ref().ok().map(|(_, source)| match source {
            Source::Given => "ways",
            Source::Register => "register",
            Source::Resctrl => "resctrl",
        });
        let of_ways_alone = source.filter(|_| matches!(found, Some(Ok(_))));
        let by = match per_queue {
            None => None,
            Some(_) if self.given.is_some() => Some("given"),
            Some(_) => of_ways_alone.or(Some("burst")),
        };
        Buffers {
            per_queue,
            by: by.map(String::from),
            why: more.or_else(|| of_ways.filter(|_| self.given.is_none())),
            queues,
            ways: self.cache.as_ref().ok().map(|(cache, _)| cache.ways),
            way_bytes: self.cache.as_ref().ok().map(|(cache, _)| cache.way_bytes),
            frame_bytes: found.and_then(Result::ok).map(|bound| bound.frame_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::config::Dpdk;

    /// A root directory whose L3 cache has 20 ways of 2.25 MiB.
    fn host() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/devices/system/cpu/cpu0/cache/index3");
        std::fs::create_dir_all(&folder).unwrap();
        let fields = [
            ("level", "3"),
            ("id", "0"),
            ("type", "Unified"),
            ("size", "46080K"),
            ("ways_of_associativity", "20"),
            ("coherency_line_size", "64"),
            ("shared_cpu_list", "0"),
        ];
        fields.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
        root
    }

    fn nic(name: &str, queues: u32, descriptors: Option<u16>) -> Port {
        let dpdk = Dpdk { pci: Some("0000:3b:00.0".into()), descriptors, ..Dpdk::default() };
        Port { name: name.into(), overload: Default::default(), queues, tenant: None, kind: PortKind::Dpdk(dpdk) }
    }

    fn descriptors(port: &Port) -> Option<u16> {
        if let PortKind::Dpdk(settings) = &port.kind { settings.descriptors } else { None }
    }

    fn memory(packet_bytes: u32) -> Memory {
        Memory { packet_bytes, ..Memory::default() }
    }

    #[test]
    fn a_nic_gets_what_stays_cached() {
        let root = host();
        let room = DeviceWays::read(root.path(), &memory(1_518), 0xc_0000, 0);
        // The paper's machine: 2,693 frames.
        let ports = [nic("a", 6, None), nic("b", 6, Some(2_048))];
        assert_eq!(descriptors(&room.bounded(&ports[0], &ports)), Some(128));
        assert_eq!(descriptors(&room.bounded(&ports[1], &ports)), Some(2_048), "what was written is what was meant");
        assert_eq!(descriptors(&room.bounded(&nic("c", 1, None), &[])), Some(512), "no more than without a bound");
        let told = room.report(&ports);
        assert_eq!((told.queues, told.per_queue, told.ways, told.by.as_deref()), (12, Some(224), Some(2), Some("resctrl")));
        assert!(told.why.unwrap().contains("port b has 2048 descriptors, and 224"));
    }

    #[test]
    fn many_queues_are_bounded_by_a_burst_each_and_that_is_said() {
        let root = host();
        let room = DeviceWays::read(root.path(), &memory(1_518), 0xc_0000, 0);
        let ports = [nic("a", 100, None)];
        assert_eq!(descriptors(&room.bounded(&ports[0], &ports)), Some(32));
        let told = room.report(&ports);
        assert_eq!((told.per_queue, told.by.as_deref()), (Some(32), Some("burst")));
        assert!(told.why.unwrap().contains("26 frames each, fewer than 32"));
    }

    #[test]
    fn a_number_stands_where_nothing_can_be_read() {
        let nowhere = Path::new("/nowhere");
        let room = DeviceWays::read(nowhere, &Memory { rx_frames: Some(300), ..memory(1_518) }, 0, 0);
        assert_eq!(descriptors(&room.bounded(&nic("a", 4, None), &[])), Some(256));
        let told = room.report(&[nic("a", 4, None)]);
        assert_eq!((told.per_queue, told.by.as_deref(), told.why), (Some(300), Some("given"), None));
        let room = DeviceWays::read(nowhere, &memory(1_518), 0, 0);
        assert_eq!(descriptors(&room.bounded(&nic("a", 4, None), &[])), None);
        let told = room.report(&[]);
        assert!(told.per_queue.is_none() && told.why.unwrap().contains("no last-level cache"));
        let root = host();
        let room = DeviceWays::read(root.path(), &Memory { io_ways: Some(4), ..memory(1_518) }, 0, 0);
        assert_eq!(room.report(&[nic("a", 12, None)]).by.as_deref(), Some("ways"));
    }

    #[test]
    fn only_devices_are_bounded() {
        let room = DeviceWays::read(host().path(), &memory(1_518), 0xc_0000, 0);
        let virtual_device = Dpdk { devargs: Some("net_null0".into()), ..Dpdk::default() };
        let port = Port { kind: PortKind::Dpdk(virtual_device), ..nic("v", 200, None) };
        assert_eq!(descriptors(&room.bounded(&port, &[])), None);
        assert_eq!(room.report(std::slice::from_ref(&port)).queues, 0);
    }
}
