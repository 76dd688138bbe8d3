//! The packet path: from a port's receive queue through a chain's NFs to a transmit queue.
//!
//! # Nouns
//! A *packet* lies in a *frame* of shared memory ([`frame`]). A *chain* names services; a *path*
//! names one instance, an NF, of each of them ([`chain`]). A *flow* keeps its path ([`classify`]).
//! An NF has one ring for packets to it and one for packets that it returns ([`handle`], [`end`]).
//!
//! # The packet path
//! A packet thread runs one loop ([`worker`]). In each round, its Rx role
//! 1. reads a burst from each port queue ([`queue`], [`batch`]),
//! 2. finds each packet's path, in the flow table or through the hooks that choose chains and
//!    instances ([`rx`], [`steer`], [`decision`]),
//! 3. lets packets into their path while every NF of it has room ([`admit`]),
//!
//! and its Tx role
//! 4. takes back what NFs returned, checks it, and passes it to the next NF ([`hop`]) or a port
//!    ([`tx`]).
//!
//! Then its Wakeup role starts sleeping NFs ([`wake`], [`worker`]), and its Monitor role measures
//! them ([`load`]). A slow NF closes the entries of its chains ([`pressure`]).
//!
//! This crate knows no feature. Features that choose chains or instances, feed NFs that do not read
//! their rings, or schedule NFs from outside implement [`steer`] and [`hooks`].

#![warn(missing_docs)]

pub mod admit;
mod ahead;
pub mod alarm;
pub mod assigned;
pub mod batch;
pub mod bucket;
pub mod capture;
pub mod chain;
pub mod classify;
pub mod counter;
pub mod decision;
pub mod end;
#[cfg(any(test, feature = "played"))]
pub mod fake;
pub mod frame;
pub mod handle;
pub mod handlers;
pub mod hooks;
pub mod hop;
pub mod in_flight;
pub mod inline;
pub mod link;
pub mod load;
pub mod mark;
pub mod meter;
pub mod observers;
pub mod outlook;
pub mod plane;
pub mod port;
pub mod pressure;
pub mod queue;
pub mod roles;
pub mod rx;
pub mod steer;
pub mod succession;
pub mod trace;
pub mod tx;
pub mod wake;
pub mod waker;
pub mod worker;
