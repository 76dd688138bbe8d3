//! Checks of ports.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use super::Validation;
use crate::problem::{At, Problem};
use sluice_api::config::{AfXdp, Config, Dpdk, Gen, GenProtocol, Pcap, PcapSpeed, PcapTimes, Port, PortKind};
use sluice_host::link;

/// Size of the sequence number and time stamp in a generated packet's payload, in bytes.
const STAMP: usize = 16;

/// Smallest packet of a generator, in bytes: Ethernet header, other headers, and [`STAMP`].
fn smallest_packet(g: &Gen) -> usize {
    let vlan = if g.vlan.is_some() { 4 } else { 0 };
    let ip = if g.ipv6 { 40 } else { 20 };
    let transport = match g.protocol {
        GenProtocol::Udp => 8,
        GenProtocol::Tcp => 20,
    };
    14 + vlan + ip + transport + STAMP
}

impl Validation<'_> {
    pub(super) fn ports(&mut self) {
        let config = self.config;
        let mut seen = HashMap::new();
        // In shards a flow leaves by the one that it came in at, but for instances of all shards.
        let has_shards = config.manager.shards.len() > 1;
        for (i, port) in config.ports.iter().enumerate() {
            self.name("port", i, &port.name, true, &mut seen);
            let at = |key| At::entry("port", i, key);
            match &port.kind {
                PortKind::Gen(g) => self.generator(i, g),
                PortKind::Sink(_) if port.queues > 1 && !has_shards => self.error(
                    at("queues"),
                    "a sink has one queue: it finds loss by the sequence numbers of each flow, and must see all of a flow's packets",
                    "write queues = 1, or leave it out",
                ),
                PortKind::AfPacket(p) => self.interface(i, &p.interface, p.netns.as_deref()),
                PortKind::AfXdp(p) => {
                    self.interface(i, &p.interface, p.netns.as_deref());
                    self.xdp(i, port, p);
                }
                PortKind::Pcap(p) => self.pcap(i, port, p),
                PortKind::Dpdk(d) => self.dpdk(i, &port.name, d),
                // Its settings are right together if each is.
                _ => {}
            }
        }
        self.written();
    }

    /// Checks that no two ports write one capture, over each other's packets.
    fn written(&mut self) {
        let config = self.config;
        let mut seen: HashMap<PathBuf, usize> = HashMap::new();
        for (i, port) in config.ports.iter().enumerate() {
            let Some(file) = capture_of(port) else { continue };
            if let Some(&first) = seen.get(&file) {
                let (other, file) = (&config.ports[first].name, file.display());
                let what = format!("ports \"{other}\" and \"{}\" write one file, {file}", port.name);
                let problem = Problem::error(At::entry("port", i, "write"), what, "give each of them a file of its own");
                self.problems.push(problem.after(At::entry("port", first, "write")));
            } else {
                seen.insert(file, i);
            }
        }
    }

    fn pcap(&mut self, i: usize, port: &Port, p: &Pcap) {
        let at = |key| At::entry("port", i, key);
        if p.read.is_none() && p.write.is_none() {
            self.error(at("kind"), format!("pcap port \"{}\" has no file", port.name), "give it `read`, `write`, or both");
        }
        if p.read.is_some() && p.read.as_deref().map(cleaned) == p.write.as_deref().map(cleaned) {
            self.error(at("write"), "a pcap port cannot write the file that it reads", "give `write` another file");
        }
        if p.times == PcapTimes::Recorded && p.write.is_none() {
            self.error(
                at("times"),
                "the times of a pcap port are those of the file that it writes",
                "give it `write`, or remove `times`",
            );
        }
        if p.speed == PcapSpeed::Rate && p.rate <= 0.0 {
            self.error(at("rate"), "speed = \"rate\" needs a rate", "write rate = 1000 for 1,000 packets per second");
        } else if p.speed != PcapSpeed::Rate && p.rate != 0.0 {
            self.error(at("rate"), "the rate of a pcap port counts only with speed = \"rate\"", "write speed = \"rate\"");
        }
        if port.queues > 1 && self.config.manager.shards.len() < 2 {
            self.error(
                at("queues"),
                "a pcap port has one queue, which keeps the order of its packets",
                "write queues = 1, or leave it out",
            );
        }
    }

    /// Its frames must leave most of packet memory to packets.
    fn xdp(&mut self, i: usize, port: &Port, p: &AfXdp) {
        let (wanted, frames) = (u64::from(p.slots.next_power_of_two()) * u64::from(port.queues), self.config.memory.frames);
        if wanted > u64::from(frames / 4) {
            self.error(
                At::entry("port", i, "slots"),
                format!(
                    "port \"{}\" would set {wanted} frames aside, more than a quarter of the {frames} of packet memory",
                    port.name
                ),
                format!("make `slots` smaller, or write frames = {} in [memory]", wanted * 4),
            );
        }
    }

    fn dpdk(&mut self, i: usize, name: &str, d: &Dpdk) {
        let at = |key| At::entry("port", i, key);
        match (&d.devargs, &d.pci) {
            (None, None) => self.error(
                at("kind"),
                format!("dpdk port \"{}\" names no device", name),
                "give it `devargs`, such as \"net_null0\", or `pci`, such as \"0000:3b:00.0\"",
            ),
            (Some(_), Some(_)) => {
                self.error(at("pci"), "a dpdk port has either `devargs` or `pci`, not both", "remove one");
            }
            (Some(devargs), None) if devargs.trim().is_empty() || devargs.contains('\0') => {
                self.error(at("devargs"), "devargs names no device", "write it like \"net_null0\"");
            }
            (None, Some(pci)) if !is_pci(pci) => {
                self.error(
                    at("pci"),
                    format!("{pci:?} is no PCI address"),
                    "write it like \"0000:3b:00.0\"; `lspci -D` lists them",
                );
            }
            _ => {}
        }
    }

    fn interface(&mut self, i: usize, interface: &str, netns: Option<&str>) {
        let at = |key| At::entry("port", i, key);
        if interface == link::LOOPBACK {
            self.error(
                at("interface"),
                "the loopback interface cannot be a port: its packets never leave the host",
                "name another interface (`ip link` lists them); to try a configuration without one, use a port of kind \"gen\"",
            );
        } else if !link::is_name(interface) {
            self.error(
                at("interface"),
                format!("no interface can be called {interface:?}"),
                format!("write a name of 1 to {} letters; `ip link` lists them", link::MAX_NAME),
            );
        }
        if let Some(netns) = netns {
            self.word(at("netns"), "the name of a network namespace", netns, true);
        }
    }

    fn generator(&mut self, i: usize, g: &Gen) {
        let at = |key| At::entry("port", i, key);
        let smallest = smallest_packet(g);
        let largest = self.config.memory.packet_bytes as usize;
        let what = format!(
            "{}{} over {}",
            if g.vlan.is_some() { "VLAN-tagged " } else { "" },
            if g.protocol == GenProtocol::Tcp { "TCP" } else { "UDP" },
            if g.ipv6 { "IPv6" } else { "IPv4" }
        );
        let sizes: Vec<(At, u16)> = match g.imix.as_slice() {
            [] => vec![(at("size"), g.size)],
            mix => mix.iter().enumerate().map(|(n, (size, _))| (at("imix").item(n), *size)).collect(),
        };
        for (at, size) in sizes {
            let key = if at.item.is_some() { "this size" } else { "size" };
            if usize::from(size) < smallest {
                self.error(
                    at,
                    format!("a packet of {size} bytes is too small for {what}, a sequence number and a time stamp"),
                    format!("make {key} {smallest} or more"),
                );
            } else if usize::from(size) > largest {
                self.error(
                    at,
                    format!("a packet of {size} bytes is larger than memory.packet_bytes, which is {largest}"),
                    format!("make {key} {largest} or less, or raise packet_bytes in [memory]"),
                );
            }
        }
        if !g.imix.is_empty() && g.size != Gen::default().size {
            self.error(at("size"), "`size` and `imix` exclude each other", "remove one");
        }
        for (n, (_, weight)) in g.imix.iter().enumerate() {
            if *weight == 0 {
                self.error(at("imix").item(n), "a weight of 0 never comes", "give it a weight of 1 or more, or remove the pair");
            }
        }
        for (key, address) in [("src", g.src), ("dst", g.dst)] {
            match address {
                Some(a) if a.is_ipv6() && !g.ipv6 => {
                    self.error(at(key), format!("{a} is an IPv6 address, and the packets are IPv4"), "write ipv6 = true");
                }
                Some(a) if a.is_ipv4() && g.ipv6 => {
                    self.error(at(key), format!("{a} is an IPv4 address, and the packets are IPv6"), "write ipv6 = false");
                }
                _ => {}
            }
        }
    }
}

/// The file that a port writes, unless what is written there is discarded.
fn capture_of(port: &Port) -> Option<PathBuf> {
    let PortKind::Pcap(Pcap { write: Some(path), .. }) = &port.kind else { return None };
    Some(cleaned(path)).filter(|file| file != Path::new("/dev/null"))
}

/// The first port of a configuration that writes a file which a running port of another name
/// writes, and that port: between two steps of a change both would.
pub fn taken_capture<'a>(running: &'a Config, wanted: &'a Config) -> Option<(&'a Port, &'a Port)> {
    let writer = |port: &Port, file: &PathBuf| {
        running.ports.iter().find(|other| other.name != port.name && capture_of(other).as_ref() == Some(file))
    };
    wanted.ports.iter().find_map(|port| Some((port, writer(port, &capture_of(port)?)?)))
}

/// A path without parts that name no other place: `.`, and what `..` leaves again. Links are not
/// followed.
pub fn cleaned(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(cleaned.components().next_back(), Some(Component::Normal(_))) => {
                cleaned.pop();
            }
            Component::ParentDir if cleaned.has_root() => {}
            part => cleaned.push(part),
        }
    }
    cleaned
}

/// Whether this is a PCI address: `DDDD:BB:DD.F` or `BB:DD.F`, in hexadecimal.
fn is_pci(text: &str) -> bool {
    let hex = |word: &str, most: usize| !word.is_empty() && word.len() <= most && word.bytes().all(|b| b.is_ascii_hexdigit());
    let Some((address, function)) = text.rsplit_once('.') else { return false };
    let parts: Vec<&str> = address.split(':').collect();
    let function = function.len() == 1 && matches!(function.as_bytes()[0], b'0'..=b'7');
    function
        && match parts[..] {
            [bus, device] => hex(bus, 2) && hex(device, 2),
            [domain, bus, device] => hex(domain, 8) && hex(bus, 2) && hex(device, 2),
            _ => false,
        }
}
