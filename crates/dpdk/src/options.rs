//! Start options of EAL and of a device, and DPDK's form of them.

/// Start options of EAL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EalOptions {
    /// Whether mbufs and device rings use hugepages. The arena has its own setting.
    pub hugepages: bool,
    /// PCI addresses of the NICs to use; no other is touched. Empty: no scan of the PCI bus.
    pub pci: Vec<String>,
    /// Frames of the pool; without hugepages they determine the size of DPDK's memory.
    pub frames: u32,
    /// Whether DPDK's own messages go to stderr.
    pub verbose: bool,
}

/// Start options of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Receive and transmit queues, each.
    pub queues: u16,
    /// Descriptors of each queue; rounded to what the device supports.
    pub descriptors: u16,
    /// Largest payload of an Ethernet packet in bytes, clamped to the device's range. None: the
    /// device's default (1500).
    pub mtu: Option<u16>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { queues: 1, descriptors: 512, mtu: None }
    }
}

/// Size of DPDK's memory without hugepages, in MiB: device rings, and 320 bytes a frame for its
/// mbuf and its entry in the pool.
///
/// It is only address space until it is used.
fn memory_mib(frames: u32) -> u32 {
    256 + (u64::from(frames) * 320).div_ceil(1 << 20) as u32
}

impl EalOptions {
    /// EAL's command line. `cpus` are those that this process may use.
    ///
    /// `--in-memory`, or `--no-shconf` without hugepages, prevents sharing memory with other DPDK
    /// processes. EAL pins its starting thread to its lcore's CPUs and its control threads to the
    /// rest; with all CPUs given to the one lcore, all of them may run anywhere.
    #[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
    pub(crate) fn arguments(&self, cpus: &[usize]) -> Vec<String> {
        let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
        let mut arguments: Vec<String> = vec![
            "sluice".into(),
            format!("--file-prefix=sluice-{}", std::process::id()),
            "--no-telemetry".into(),
            "--iova-mode=va".into(),
            format!("--lcores=0@({})", cpus.join(",")),
            format!("--log-level={}", if self.verbose { "info" } else { "error" }),
        ];
        if self.hugepages {
            arguments.push("--in-memory".into());
        } else {
            arguments.extend(["--no-huge".into(), "--no-shconf".into(), "-m".into(), memory_mib(self.frames).to_string()]);
        }
        if self.pci.is_empty() {
            arguments.push("--no-pci".into());
        }
        for address in &self.pci {
            arguments.extend(["-a".into(), address.clone()]);
        }
        arguments
    }
}

/// Whether a word is a PCI address, `0000:3b:00.0` or `3b:00.0`, possibly with device arguments.
pub(crate) fn is_pci_address(word: &str) -> bool {
    let address = device_name(word);
    let hex = |part: &str, len: usize| part.len() == len && part.chars().all(|c| c.is_ascii_hexdigit());
    let Some((rest, function)) = address.rsplit_once('.') else { return false };
    let parts: Vec<&str> = rest.split(':').collect();
    let bus_device = match parts.as_slice() {
        [domain, bus, device] if hex(domain, 4) => [bus, device],
        [bus, device] => [bus, device],
        _ => return false,
    };
    hex(function, 1) && bus_device.iter().all(|part| hex(part, 2))
}

/// Name of the device in its devargs: `net_null0` of `vdev:net_null0,size=64`.
pub(crate) fn device_name(devargs: &str) -> &str {
    let name = devargs.split(',').next().unwrap_or_default();
    name.strip_prefix("vdev:").or_else(|| name.strip_prefix("pci:")).unwrap_or(name)
}

/// Value of a key in devargs.
pub(crate) fn device_argument<'a>(devargs: &'a str, key: &str) -> Option<&'a str> {
    devargs.split(',').skip(1).filter_map(|part| part.split_once('=')).find(|(k, _)| *k == key).map(|(_, value)| value)
}

/// Whether two devargs name the same device or kernel interface, so that only one can be open.
pub fn is_same_device(a: &str, b: &str) -> bool {
    let full = |word: &str| match device_name(word) {
        short if is_pci_address(short) && short.matches(':').count() == 1 => format!("0000:{short}"),
        name => name.to_owned(),
    };
    let interface = device_argument(a, "iface");
    full(a) == full(b) || (interface.is_some() && interface == device_argument(b, "iface"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_say_what_was_asked_for() {
        let plain = EalOptions { frames: 16_384, ..Default::default() }.arguments(&[0, 3]);
        for wanted in ["--no-shconf", "--no-huge", "--no-pci", "--lcores=0@(0,3)", "261"] {
            assert!(plain.iter().any(|a| a == wanted), "{wanted} in {plain:?}");
        }
        let nic = EalOptions { hugepages: true, pci: vec!["0000:3b:00.0".into()], ..Default::default() }.arguments(&[0]);
        assert!(nic.windows(2).any(|w| w == ["-a", "0000:3b:00.0"]));
        assert!(nic.iter().any(|a| a == "--in-memory"));
        assert!(!nic.iter().any(|a| a == "--no-huge" || a == "--no-pci" || a == "-m"));
    }

    #[test]
    fn devargs_have_a_name_and_arguments() {
        assert_eq!(device_name("vdev:net_null0,size=64"), "net_null0");
        assert_eq!(device_name("net_tap0"), "net_tap0");
        assert_eq!(device_argument("net_af_packet0,iface=veth0,qpairs=2", "iface"), Some("veth0"));
        assert_eq!(device_argument("net_af_packet0,iface=veth0", "qpairs"), None);
    }

    #[test]
    fn devices_are_distinguished() {
        for (a, b, same) in [
            ("net_null0,size=60", "vdev:net_null0", true),
            ("net_null0", "net_null1", false),
            ("net_af_packet0,iface=a", "net_af_packet1,iface=a,qpairs=2", true),
            ("net_af_packet0,iface=a", "net_af_packet1,iface=b", false),
            ("3b:00.0", "0000:3b:00.0", true),
            ("3b:00.0", "3b:00.1", false),
        ] {
            assert_eq!(is_same_device(a, b), same, "{a} and {b}");
        }
    }

    #[test]
    fn pci_addresses_are_known() {
        for yes in ["0000:3b:00.0", "3b:00.0", "0000:3b:00.0,representor=0", "pci:0000:3b:00.1"] {
            assert!(is_pci_address(yes), "{yes}");
        }
        for no in ["net_null0", "net_af_packet0,iface=a.0", "0000:3b:00", "zz:00.0", ""] {
            assert!(!is_pci_address(no), "{no}");
        }
    }
}
