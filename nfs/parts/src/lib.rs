//! Parts that several of the example NFs share.
//!
//! - [`flow`]: a flow's key, and the key of a fragmented datagram;
//! - [`datagram`]: decisions about first fragments, for the others;
//! - [`table`]: a bounded hash table without allocation after its start, aged by small sweeps;
//! - [`icmp`]: ICMP errors and the packet that they quote;
//! - [`lines`]: rule, route, backend, pattern and key files: words on lines, with line numbers;
//! - [`mac`]: MAC addresses in files;
//! - [`report`]: counters and tables on SIGUSR1, at an interval and at the end, as text or JSON;
//! - [`reload`]: reading a file again on SIGHUP, in a separate thread.

pub mod datagram;
pub mod flow;
pub mod icmp;
pub mod lines;
pub mod mac;
pub mod reload;
pub mod report;
pub mod table;

/// The arguments of an NF, without the library's own. On an error or `--help` it prints and exits
/// the process, as clap does.
pub fn parse_args<A: clap::Parser>() -> A {
    A::parse_from(std::env::args_os().take(1).chain(sluice_nf::args()))
}
