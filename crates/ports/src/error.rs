//! Why a port cannot be opened.

/// Why a port could not be opened, with advice.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The settings contradict each other, or the memory.
    #[error("port {port}: {what}")]
    Setting { port: String, what: String },
    /// A file could not be read or written.
    #[error("port {port}: cannot {doing} {path}: {source}")]
    File { port: String, doing: &'static str, path: std::path::PathBuf, source: std::io::Error },
    /// A capture file is invalid or truncated.
    #[error("port {port}: {path}: {what}")]
    Capture { port: String, path: std::path::PathBuf, what: String },
    /// A device could not be started.
    #[error("port {port}: {what}")]
    Device { port: String, what: String },
    /// An interface could not be opened.
    #[error("port {port}: cannot {doing} interface {interface}: {source}{}", advice(source))]
    Interface { port: String, doing: &'static str, interface: String, source: std::io::Error },
    /// This build has no DPDK.
    #[error(
        "port {port} is of kind dpdk, and this sluiced was built without DPDK; build with `--features dpdk` (Debian: libdpdk-dev)"
    )]
    NoDpdk { port: String },
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "; run sluiced as root, or give it the capability CAP_NET_RAW",
        Some(libc::ENODEV | libc::ENXIO) => {
            "; `ip link` lists the interfaces there are; write when_missing = \"wait\" to wait for one"
        }
        Some(libc::ENOENT) => "; `ip netns` lists the namespaces there are; write when_missing = \"wait\" to wait for one",
        Some(libc::ENOMEM) => "; make `slots` fewer",
        Some(libc::EBUSY) => "; another program, or another port, has its queues: end that, or remove the other port",
        _ => "",
    }
}
