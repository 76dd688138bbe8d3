//! Programs that know nothing of Sluice, as hops of chains.
//!
//! # Problem
//! A firewall in the kernel, a software switch, a proxy, a sniffer: none of them reads rings or shares memory. What all of them can do
//! is to sit between two network interfaces.
//!
//! # Terms
//! The *sides* of a program are the interfaces that it finds in its network namespace: "in" and "out", or one for a *tap*. Each is one
//! end of a pair; the other end, the *wire*, lies in a namespace that has nothing else in it and that nobody else has, and is read and
//! written by a packet thread. A *room* is the program's namespace with the wires.
//!
//! # Approach
//! ```text
//!   chain … → ring ─► Hop ─► wire ═ in [ program ] out ═ wire ─► Hop ─► … chain
//! ```
//! - Towards the rest of the manager a foreign program is an NF like any other: a number, a ring, credits, a throttle, a share. The
//!   thread that would drain the NF reads the ring itself ([`Hop`]), copies each packet out to the side by which its chain comes, and
//!   gives frame and credits back: here a packet's life ends.
//! - What comes out at the other side is a new packet, in a fresh frame. It goes on behind the hop in the chain that comes in by the
//!   opposite side; where several do, in the one that its flow was seen in, else in the one that the rules name. It needs credits from
//!   there on, and while there are none it waits in the socket's ring.
//! - Instead of a pair of interfaces there may be memory that the program shares ([`wire`]).
//! - A program that reads its interfaces by itself has a queue of its own, the buffer of a socket. While that is half full nothing is
//!   sent in ([`backlog`]), the ring fills up, and the hop is a bottleneck like any other NF.
//! - A tap gets a copy, straight from the frame, and the packet goes on at once. What the wire does not take, the tap misses.
//! - What went in and has not come back is counted ([`Ledger`]), for the hop and for its chain.
//!
//! # Why credits are given back where the packet goes in
//! A program may eat packets, and nobody says when it did. Whoever kept the credits of what is inside until it is sure that it will not
//! come back (a second) would have a firewall that drops ten thousand packets a second close the gate for good.
//!
//! # Limits
//! A copy on the way in and one on the way out, and a system call for each burst. Where the kernel itself does the work (nftables, a
//! bridge), it does so in the packet thread that sends, on the manager's core. Latency of a chain and traces go on across a program that
//! leaves the end of packets as it is ([`watch`]), and end in others. Everything needs root.

// What panics when nobody reads it: the log does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
extern crate tracing;

#[cfg(test)]
mod announce_tests;
pub mod backlog;
pub mod hop;
pub mod ledger;
pub mod room;
pub mod watch;
pub mod wire;
pub mod xdp;

pub use hop::Hop;
pub use ledger::Ledger;
pub use room::{ForeignError, Plan, Room, Wires};
pub use sluice_dataplane::hooks::FeedCounters as Counters;
pub use wire::End;
