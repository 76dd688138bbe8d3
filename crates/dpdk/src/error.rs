//! Why DPDK or a device did not start, and what to do.
//!
//! Drivers return -1 for most failures and log the reason. So an error here has three parts: what
//! was tried, the state of the host (the interface, the NIC's driver, permission for raw sockets),
//! and DPDK's log.

use std::path::Path;

use crate::options::{device_argument, device_name, is_pci_address};

/// Why DPDK or a device did not start. Each message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DpdkError {
    /// This build has no DPDK.
    #[error("this program was built without DPDK; build it with `--features dpdk` (Debian: apt install libdpdk-dev)")]
    NotBuilt,
    /// EAL can only be started once in a process.
    #[error("DPDK was started before in this process, and cannot be started again; restart the program")]
    StartedBefore,
    /// EAL did not start.
    #[error("cannot start DPDK: {hint}{}", said(.log))]
    Start {
        /// What to do.
        hint: String,
        /// DPDK's log; may be empty.
        log: String,
    },
    /// The pool over the arena could not be made.
    #[error("cannot make a DPDK memory pool of {frames} frames: {reason}; use fewer frames (`memory.frames`){}", said(.log))]
    Pool {
        /// Frames that it should have.
        frames: u32,
        /// Text of the error number.
        reason: String,
        /// DPDK's log; may be empty.
        log: String,
    },
    /// A thread could not be registered.
    #[error("cannot register a thread with DPDK: {reason}; a process can have 127 of them")]
    Thread {
        /// Text of the error number.
        reason: String,
    },
    /// A device is open already.
    #[error("DPDK device {device} is used by another port; give each port a device of its own (net_null0, net_null1, …)")]
    Busy {
        /// Name of the device.
        device: String,
    },
    /// A device has fewer queues than requested.
    #[error("DPDK device {device} ({driver}) has {have} queues, and {wanted} are wanted; {hint}")]
    Queues {
        /// Name of the device.
        device: String,
        /// Its driver.
        driver: String,
        /// Requested queues.
        wanted: u16,
        /// Queues of the device.
        have: u16,
        /// What to do.
        hint: String,
    },
    /// A device could not be opened or started.
    #[error("cannot {doing} DPDK device {device}: {hint}{}", said(.log))]
    Device {
        /// Its devargs.
        device: String,
        /// What was tried.
        doing: &'static str,
        /// What is wrong, and what to do.
        hint: String,
        /// DPDK's log; may be empty.
        log: String,
    },
}

/// DPDK's log as the end of a message.
fn said(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(" (DPDK: {log})") }
}

/// Text of a DPDK error number; -1 is a driver's unspecific answer.
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
pub(crate) fn words(code: i32) -> String {
    if code == -1 { "the driver refused".into() } else { std::io::Error::from_raw_os_error(-code).to_string() }
}

/// The likely fault of a device that did not open, by the state of the host below `root` (`/`).
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
pub(crate) fn device_hint(root: &Path, has_interface: impl Fn(&str) -> bool, devargs: &str, code: i32) -> String {
    if is_pci_address(devargs) {
        return pci_hint(root, device_name(devargs), code);
    }
    known_obstacle(root, has_interface, devargs)
        .unwrap_or_else(|| format!("{}; check the driver's name and its arguments", words(code)))
}

/// What prevents opening a device, as far as the host shows without DPDK.
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
pub(crate) fn known_obstacle(root: &Path, has_interface: impl Fn(&str) -> bool, devargs: &str) -> Option<String> {
    let name = device_name(devargs);
    if is_pci_address(devargs) {
        return pci_obstacle(root, name);
    }
    let over_kernel = name.starts_with("net_af_") || name.starts_with("eth_af_");
    if over_kernel && device_argument(devargs, "iface").is_none() {
        return Some("it needs an interface; write for example net_af_packet0,iface=veth0".into());
    }
    if let Some(interface) = device_argument(devargs, "iface").filter(|interface| over_kernel && !has_interface(interface)) {
        return Some(format!("there is no interface {interface} in this network namespace; see `ip link`"));
    }
    let is_missing = |file: &&str| file.strip_prefix('/').is_some_and(|below| !root.join(below).exists());
    if let Some(file) = device_argument(devargs, "rx_pcap").filter(is_missing) {
        return Some(format!("there is no file {file}"));
    }
    if (over_kernel || name.starts_with("net_tap")) && !has_network_capabilities(root) {
        return Some("this process may not open raw sockets; run it as root or with CAP_NET_RAW and CAP_NET_ADMIN".into());
    }
    if name.starts_with("net_tap") && !root.join("dev/net/tun").exists() {
        return Some("there is no /dev/net/tun; load the module (modprobe tun), or give it to the container".into());
    }
    if !name.starts_with("net_") && !name.starts_with("eth_") {
        return Some(format!("{name} names no driver; devargs look like net_af_packet0,iface=veth0 or net_null0"));
    }
    None
}

/// The likely fault of a NIC that did not open.
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
fn pci_hint(root: &Path, address: &str, code: i32) -> String {
    if let Some(obstacle) = pci_obstacle(root, address) {
        return obstacle;
    }
    match kernel_driver(root, address).as_deref() {
        Some("vfio-pci") => format!(
            "{}; check that the IOMMU is on (intel_iommu=on or amd_iommu=on), that the NIC was configured at start, and that \
             this process may open /dev/vfio",
            words(code)
        ),
        _ => format!("{}; is its libibverbs driver installed?", words(code)),
    }
}

/// What prevents opening a NIC, as far as the host shows.
fn pci_obstacle(root: &Path, address: &str) -> Option<String> {
    let full = full_address(address);
    if !root.join("sys/bus/pci/devices").join(&full).exists() {
        return Some(format!("there is no PCI device {full}; see `lspci -D`"));
    }
    match kernel_driver(root, address).as_deref() {
        Some("vfio-pci" | "uio_pci_generic" | "igb_uio") => None,
        Some(kernel) if !kernel.starts_with("mlx") && kernel != "mana" => Some(format!(
            "the kernel's driver {kernel} has it; run `dpdk-devbind.py --bind=vfio-pci {full}` first, if the host does not need the interface that it is now"
        )),
        Some(_) => None,
        None => Some(format!("no driver has it; run `dpdk-devbind.py --bind=vfio-pci {full}` first")),
    }
}

fn full_address(address: &str) -> String {
    if address.matches(':').count() == 1 { format!("0000:{address}") } else { address.to_owned() }
}

/// The kernel's driver of a NIC.
fn kernel_driver(root: &Path, address: &str) -> Option<String> {
    let link = std::fs::read_link(root.join("sys/bus/pci/devices").join(full_address(address)).join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Whether this process has CAP_NET_RAW and CAP_NET_ADMIN.
fn has_network_capabilities(root: &Path) -> bool {
    const NET_ADMIN_AND_RAW: u64 = 1 << 12 | 1 << 13;
    let status = std::fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_none_or(|caps| caps & NET_ADMIN_AND_RAW == NET_ADMIN_AND_RAW)
}

/// The likely fault if EAL does not start.
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
pub(crate) fn start_hint(hugepages: bool, code: i32) -> String {
    if hugepages {
        format!(
            "{}; are enough hugepages of 2 MiB free besides the arena's (sysctl vm.nr_hugepages)? `hugepages = \"never\"` works without",
            words(code)
        )
    } else {
        format!("{}; is the address space limited (ulimit -v)?", words(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in ["sys/bus/pci/devices/0000:3b:00.0", "sys/bus/pci/devices/0000:3b:00.1", "proc/self"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("../../../bus/pci/drivers/ixgbe", root.path().join("sys/bus/pci/devices/0000:3b:00.0/driver"))
            .unwrap();
        std::fs::write(root.path().join("proc/self/status"), "Name:\tx\nCapEff:\t0000000000000000\n").unwrap();
        root
    }

    #[test]
    fn hints_say_what_to_do() {
        let root = host();
        let hint = |devargs| device_hint(root.path(), |name| name == "veth0", devargs, -1);
        assert!(hint("net_af_packet0,iface=veth9").contains("no interface veth9"));
        assert!(hint("net_af_packet0,iface=veth0").contains("CAP_NET_RAW"));
        assert!(hint("net_pcap0,rx_pcap=/no/such.pcap").contains("no file /no/such.pcap"));
        assert!(hint("3b:00.0").contains("ixgbe has it; run `dpdk-devbind.py --bind=vfio-pci 0000:3b:00.0`"));
        assert!(hint("0000:3b:00.1").contains("no driver has it"));
        assert!(hint("0000:ff:00.0").contains("no PCI device"));
        assert!(hint("veth0").contains("names no driver"));
        std::fs::write(root.path().join("proc/self/status"), "CapEff:\t000001ffffffffff\n").unwrap();
        assert!(hint("net_tap0").contains("/dev/net/tun"));
        assert!(device_hint(root.path(), |_| false, "net_null0", -22).contains("Invalid argument"));
    }

    #[test]
    fn messages_end_with_dpdk_s_own_words() {
        let error = DpdkError::Device { device: "net_x".into(), doing: "open", hint: "no".into(), log: "EAL: oh".into() };
        assert_eq!(error.to_string(), "cannot open DPDK device net_x: no (DPDK: EAL: oh)");
    }
}
