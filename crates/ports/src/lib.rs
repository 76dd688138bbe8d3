//! Ports: where packets enter and leave.
//!
//! A port has one or more queues. Each queue belongs to one manager thread; no other calls it.
//!
//! A new kind of port is a variant of [`PortKind`], which answers what it can do, and a module here
//! with its lines in [`All`].

// Printing panics when its reader is gone; the log does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
extern crate tracing;

pub mod af_packet;
pub mod af_xdp;
pub mod capture;
pub mod dpdk;
mod error;
pub mod generator;
pub mod origin;
pub mod pace;
pub mod pcap;
pub mod sink;
#[cfg(test)]
#[path = "../../host/src/skip.rs"]
mod skip;
pub mod spread;
pub mod stamp;
mod watch;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use sluice_shm::arena::{Arena, Geometry, HEADROOM, MAX_STRIDE};

pub use error::PortError;

use af_packet::InterfaceQueue;
use af_packet::socket::SocketOptions;
use af_xdp::XdpQueue;
use origin::Origins;
use pcap::Begins;
use sluice_api::config::{self as model, AfPacket, AfXdp, Config, Port, PortKind, Via};
use sluice_config::problem::{At, Problem};
use sluice_config::validate::cleaned;
use sluice_dataplane::frame::FramePool;
use sluice_dataplane::port::{Devices, Fault, Kinds, OpenPort, WireEnd, WireOptions};

/// All kinds of ports and devices.
#[derive(Debug, Clone, Default)]
pub struct All {
    /// What captures say of the packets that are replayed from them.
    origins: Arc<Origins>,
}

impl Kinds for All {
    fn open(&self, port: &Port, arena: &Arena, frames: &FramePool) -> Result<OpenPort, Fault> {
        self.open_to(port, arena, frames, Begins::Anew)
    }

    fn open_again(&self, port: &Port, arena: &Arena, frames: &FramePool) -> Result<OpenPort, Fault> {
        self.open_to(port, arena, frames, Begins::AtEnd)
    }

    fn look_at(&self, port: &Port, room: usize) -> Result<(), Fault> {
        Ok(look_at(port, room)?)
    }

    fn look_at_memory(&self, port: &Port, frames: &FramePool) -> Result<(), Fault> {
        match &port.kind {
            PortKind::Dpdk(_) => Ok(dpdk::pool(&port.name, frames).map(drop)?),
            _ => Ok(()),
        }
    }

    fn uses(&self, port: &Port) -> String {
        match &port.kind {
            PortKind::AfPacket(AfPacket { interface, netns, .. }) | PortKind::AfXdp(AfXdp { interface, netns, .. }) => {
                match netns {
                    Some(netns) => format!("interface {interface} in {netns}"),
                    None => format!("interface {interface}"),
                }
            }
            PortKind::Dpdk(settings) => format!("device {}", dpdk::name(settings).unwrap_or("?")),
            PortKind::Pcap(model::Pcap { write: Some(path), .. }) => path.display().to_string(),
            PortKind::Gen(_) | PortKind::Sink(_) | PortKind::Pcap(_) => "what it uses".into(),
        }
    }

    fn mtu(&self, port: &Port) -> Option<u32> {
        match &port.kind {
            PortKind::AfPacket(settings) => af_packet::mtu(settings),
            PortKind::AfXdp(settings) => af_xdp::mtu(settings),
            PortKind::Gen(_) | PortKind::Sink(_) | PortKind::Pcap(_) | PortKind::Dpdk(_) => None,
        }
    }

    fn description(&self, port: &Port) -> Option<String> {
        match &port.kind {
            PortKind::Gen(settings) => Some(generator::describe(settings)),
            _ => None,
        }
    }

    fn share(&self, former: &Port, next: &Port) -> bool {
        match (&former.kind, &next.kind) {
            // A file is read when it is opened, and written to when the port is in use.
            (PortKind::Pcap(former), PortKind::Pcap(next)) => {
                let file = |path: &Option<PathBuf>| path.as_deref().map(cleaned);
                next.read.is_some() && file(&next.read) == file(&former.write)
            }
            // Any number of sockets may read an interface.
            (PortKind::Dpdk(former), PortKind::Dpdk(next)) => match (dpdk::name(former), dpdk::name(next)) {
                (Some(former), Some(next)) => sluice_dpdk::is_same_device(former, next),
                _ => false,
            },
            // A queue of an interface has one socket.
            (PortKind::AfXdp(former), PortKind::AfXdp(next)) => {
                (&former.interface, &former.netns) == (&next.interface, &next.netns)
            }
            _ => false,
        }
    }

    fn devices(&self, config: &Config, frames: u32, arenas_are_huge: bool) -> Result<Option<Arc<dyn Devices>>, Fault> {
        Ok(dpdk::start(config, frames, arenas_are_huge)?.map(|started| Arc::new(started) as Arc<dyn Devices>))
    }

    fn wire(&self, options: &WireOptions<'_>) -> Result<Box<dyn WireEnd>, (&'static str, io::Error)> {
        let WireOptions { interface, via, slots, largest, room } = *options;
        let end: Box<dyn WireEnd> = if via == Via::AfXdp {
            Box::new(XdpQueue::open(interface, slots, largest, room)?)
        } else {
            let options = SocketOptions { interface, slots, room, promiscuous: true, bypass: true, fanout: None };
            Box::new(InterfaceQueue::open(&options)?)
        };
        self.origins.mix();
        Ok(end)
    }

    fn device(&self, devargs: &str, frames: &FramePool) -> Result<Box<dyn WireEnd>, Fault> {
        let end = dpdk::open_one(devargs, frames)?;
        self.origins.mix();
        Ok(Box::new(end))
    }
}

impl All {
    fn open_to(&self, port: &Port, arena: &Arena, frames: &FramePool, begins: Begins) -> Result<OpenPort, Fault> {
        let room = arena.geometry().stride as usize - HEADROOM;
        let is_replay = matches!(&port.kind, PortKind::Pcap(settings) if settings.read.is_some());
        if is_replay {
            self.origins.cover(frames);
        }
        let open = match &port.kind {
            PortKind::Gen(settings) => generator::open(&port.name, port.queues, settings, room)?,
            PortKind::Sink(settings) => sink::open(port.queues, settings),
            PortKind::Pcap(settings) => pcap::open(&port.name, port.queues, settings, room, &self.origins, begins)?,
            PortKind::Dpdk(settings) => dpdk::open(&port.name, port.queues, settings, frames)?,
            PortKind::AfPacket(settings) => af_packet::open(&port.name, port.queues, settings, room)?,
            PortKind::AfXdp(settings) => af_xdp::open(&port.name, port.queues, settings, arena, frames)?,
        };
        if !is_replay && port.kind.no_input().is_none() {
            self.origins.mix();
        }
        Ok(open)
    }

    /// Notes, before the first packet moves, that packets come from elsewhere than from ports, as
    /// from a controller: what a capture says of a packet is not known then.
    pub fn mix(&self) {
        self.origins.mix();
    }
}

fn look_at(port: &Port, room: usize) -> Result<(), PortError> {
    match &port.kind {
        PortKind::Pcap(settings) => pcap::look_at(&port.name, settings, room),
        PortKind::Dpdk(settings) => dpdk::look_at(&port.name, settings),
        PortKind::AfPacket(settings) => af_packet::look_at(&port.name, settings),
        PortKind::AfXdp(settings) => af_xdp::look_at(&port.name, port.queues, settings, room + HEADROOM),
        PortKind::Gen(_) | PortKind::Sink(_) => Ok(()),
    }
}

/// Problems that [`Kinds::look_at`] finds with the ports of a configuration, at their places.
pub fn problems(config: &Config) -> Vec<Problem> {
    let room = Geometry::stride_for(config.memory.packet_bytes as usize) - HEADROOM;
    let look = |(number, port): (usize, &Port)| {
        let error = look_at(port, room).err()?;
        let key = match (&port.kind, &error) {
            (PortKind::Pcap(_), PortError::Capture { .. }) => "read",
            (PortKind::Dpdk(settings), PortError::Device { .. }) => {
                if settings.pci.is_some() {
                    "pci"
                } else {
                    "devargs"
                }
            }
            (PortKind::AfPacket(_) | PortKind::AfXdp(_), PortError::Interface { .. }) => "interface",
            _ => "name",
        };
        let text = error.to_string();
        let (message, help) = text.split_once("; ").unwrap_or((&text, ""));
        Some(Problem::error(At::entry("port", number, key), message, help))
    };
    let mut found: Vec<Problem> = config.ports.iter().enumerate().filter_map(look).collect();
    found.extend(config.ports.iter().enumerate().filter_map(|port| too_large(port, room)));
    found
}

/// A warning about a port whose interface takes larger packets than frames hold.
fn too_large((number, port): (usize, &Port), room: usize) -> Option<Problem> {
    let PortKind::AfPacket(settings) = &port.kind else { return None };
    let mtu = af_packet::mtu(settings)? as usize;
    let wanted = mtu + af_packet::OVERHEAD;
    (wanted > room).then(|| {
        let lower = format!("lower the MTU at both ends: ip link set {} mtu {}", settings.interface, room - af_packet::OVERHEAD);
        let may_be = wanted <= MAX_STRIDE - HEADROOM;
        Problem::warning(
            At::entry("port", number, "interface"),
            format!(
                "packets of interface {} may have {wanted} bytes (its MTU is {mtu}), and a frame holds {room}: larger ones are dropped as oversize",
                settings.interface
            ),
            if may_be { format!("write packet_bytes = {wanted} in [memory], or {lower}") } else { lower },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::origin::FrameOrigin;
    use super::*;
    use sluice_dataplane::fake::cache;

    #[test]
    fn every_kind_is_opened_with_its_queues() {
        let (frames, pool) = (cache(64), FramePool::new(64));
        for (text, queues, words) in [
            (
                "kind = \"gen\"\nname = \"p\"\nqueues = 3\nflows = 7",
                3,
                "generates UDP/IPv4, 60 bytes, 7 flows, as fast as possible",
            ),
            ("kind = \"sink\"\nname = \"p\"\nqueues = 2", 2, "swallows"),
            ("kind = \"pcap\"\nname = \"p\"\nwrite = \"/dev/null\"", 1, "writes /dev/null"),
        ] {
            let port: Port = toml::from_str(text).unwrap();
            let open = All::default().open(&port, frames.arena(), &pool).unwrap();
            assert_eq!(open.queues.len(), queues);
            assert!(open.description.contains(words), "{}", open.description);
        }
        let port: Port = toml::from_str("kind = \"dpdk\"\nname = \"p\"").unwrap();
        let error = All::default().open(&port, frames.arena(), &pool).err().unwrap().to_string();
        let wanted = if sluice_dpdk::BUILT_IN { "started without any dpdk port" } else { "build with `--features dpdk`" };
        assert!(error.contains(wanted), "{error}");
    }

    #[test]
    fn origins_are_known_until_another_kind_of_port_or_another_source_is_open() {
        let (frames, pool) = (cache(64), FramePool::new(64));
        let port = |text: &str| -> Port { toml::from_str(&format!("name = \"p\"\n{text}")).unwrap() };
        let are_known = |all: &All| {
            all.origins.cover(&pool);
            all.origins.note(0, FrameOrigin::default());
            all.origins.of(0, &frames).is_some()
        };
        let all = All::default();
        for without_input in ["kind = \"sink\"", "kind = \"pcap\"\nwrite = \"/dev/null\""] {
            all.open(&port(without_input), frames.arena(), &pool).unwrap();
            assert!(are_known(&all), "{without_input}");
        }
        assert!(all.open(&port("kind = \"dpdk\""), frames.arena(), &pool).is_err());
        assert!(are_known(&all), "no packet comes from a port that is not open");
        all.open(&port("kind = \"gen\""), frames.arena(), &pool).unwrap();
        assert!(!are_known(&all));
        let all = All::default();
        all.mix();
        assert!(!are_known(&all));
    }

    #[test]
    fn ports_share_files_and_devices() {
        let port = |text: &str| -> Port { toml::from_str(&format!("name = \"p\"\n{text}")).unwrap() };
        let pcap = |keys: &str| port(&format!("kind = \"pcap\"\n{keys}"));
        let dpdk = |devargs: &str| port(&format!("kind = \"dpdk\"\ndevargs = {devargs:?}"));
        let share = |a: &Port, b: &Port| All::default().share(a, b);
        let (writes, reads) = (pcap("write = \"/a\""), pcap("read = \"/a\""));
        assert!(share(&writes, &reads), "what is written is read at the end");
        assert!(share(&writes, &pcap("read = \"/b/.././a\"")), "by another name, too");
        assert!(!share(&reads, &reads), "any number may read a file");
        assert!(!share(&writes, &writes) && !share(&reads, &writes), "the file is begun when the former port is closed");
        assert!(!share(&writes, &pcap("write = \"/b\"")) && !share(&writes, &port("kind = \"sink\"")));
        assert!(share(&dpdk("net_null0"), &dpdk("net_null0,size=60")));
        assert!(!share(&dpdk("net_null0"), &dpdk("net_null1")) && !share(&dpdk("net_null0"), &writes));
    }

    #[test]
    fn what_is_wrong_is_reported_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cut.pcap");
        std::fs::write(&file, [0xd4, 0xc3, 0xb2, 0xa1, 2, 0]).unwrap();
        let ports = format!("[[port]]\nname = \"a\"\nkind = \"sink\"\n[[port]]\nname = \"b\"\nkind = \"pcap\"\nread = {file:?}\n");
        let found = problems(&toml::from_str(&ports).unwrap());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].at, Some(At::entry("port", 1, "read")));
        assert!(found[0].message.contains("cut.pcap"), "{}", found[0].message);
        let device = "[[port]]\nname = \"c\"\nkind = \"dpdk\"\ndevargs = \"net_nope0\"\n";
        let found = problems(&toml::from_str(device).unwrap());
        let wanted = if sluice_dpdk::BUILT_IN { "no driver" } else { "without DPDK" };
        assert!(found.len() == 1 && found[0].message.contains(wanted), "{found:?}");
    }
}
