//! Foreign programs, which know nothing of Sluice, as hops of chains.
//!
//! # Problem
//! A firewall in the kernel, a software switch, a proxy, a sniffer: none of them reads rings or
//! shares memory. But all of them can sit between two network interfaces.
//!
//! # Terms
//! The *sides* of a program are the interfaces in its network namespace: "in" and "out", or only
//! one for a *tap*. Each is one end of a pair. The other end, the *wire*, lies in a private
//! namespace of the manager without anything else, and a packet thread reads and writes it. The
//! wires belong to the *namespace* of the program.
//!
//! # Approach
//! ```text
//!   chain … → ring ─► Hop ─► wire ═ in [ program ] out ═ wire ─► Hop ─► … chain
//! ```
//! - To the rest of the manager a foreign program is an NF like any other: a number, a ring,
//!   credits, a throttle, a share. The thread that would drain the NF reads the ring itself
//!   ([`ForeignHop`]), copies each packet to the side that its chain comes from, and returns frame
//!   and credits: there a packet's life ends.
//! - What leaves the other side is a new packet, in a new frame. It continues behind the hop in the
//!   chain that enters at the opposite side. If there are several, its flow's chain is used, else
//!   the one that the rules name. It needs credits from there on, and waits in the socket's ring
//!   for them.
//! - Instead of a pair of interfaces there may be memory shared with the program ([`wire`]).
//! - A program that reads its interfaces itself has its own queue, a socket's buffer. While that is
//!   half full nothing is sent in ([`backlog`]), the ring fills up, and the hop is a bottleneck
//!   like any other NF.
//! - A tap gets a copy, straight from the frame, and the packet goes on at once. The tap misses
//!   what the wire does not take.
//! - Packets that went in and have not come back are counted ([`Ledger`]), for the hop and for its
//!   chain.
//!
//! # Why credits are returned where the packet goes in
//! A program may drop packets without a report. If the credits of packets inside were kept until
//! these are certainly lost (a second), a firewall that drops ten thousand packets a second would
//! close the gate for good.
//!
//! # Limits
//! One copy on the way in, one on the way out, and a system call for each burst. Where the kernel
//! itself does the work (nftables, a bridge), it does so in the sending packet thread, on the
//! manager's core. Latency of a chain and traces continue across a program that keeps the end of
//! packets ([`watch`]), and stop at others. Everything needs root.

// Prints would panic on a closed stream; the log does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
extern crate tracing;

#[cfg(test)]
mod announce_tests;
pub mod backlog;
pub mod hop;
pub mod ledger;
pub mod namespace;
#[cfg(test)]
#[path = "../../host/src/skip.rs"]
mod skip;
pub mod watch;
pub mod wire;

pub use hop::ForeignHop;
pub use ledger::Ledger;
pub use namespace::{ForeignError, Namespace, NamespacePlan, Wires};
