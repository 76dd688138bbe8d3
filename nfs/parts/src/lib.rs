//! What several of the example network functions share, so that each of them is only its own idea.
//!
//! - [`flow`]: a flow's key, and the key of a fragmented datagram;
//! - [`datagram`]: what was decided about a first fragment, for the others;
//! - [`table`]: a bounded hash table that allocates nothing after its start, with ageing by small sweeps;
//! - [`icmp`]: ICMP errors and the packet that they quote;
//! - [`lines`]: rule, route, backend, pattern and key files: words on lines, errors with file and line;
//! - [`mac`]: MAC addresses in files;
//! - [`report`]: counters and tables on SIGUSR1, at an interval and at the end, as text or JSON, written by a thread of its own;
//! - [`reload`]: reading a file again on SIGHUP, in a thread of its own.

pub mod datagram;
pub mod flow;
pub mod icmp;
pub mod lines;
pub mod mac;
pub mod reload;
pub mod report;
pub mod table;

/// The arguments of an NF, without those that tell the library where its manager is. On an error, or with `--help`, it says so and
/// ends the process, as clap does.
pub fn parse_args<A: clap::Parser>() -> A {
    A::parse_from(std::env::args_os().take(1).chain(sluice_nf::args()))
}
