//! Fair CPU and early shedding, and turns of NFs that do not cooperate, as pure functions and small state machines.
//!
//! | module | question | asked |
//! |---|---|---|
//! | [`cost`] | how long does a packet take in this NF, by its own word or seen from outside | each millisecond a sample, each 10 ms a median |
//! | [`weight`] | which share of its core does an NF get | each 10 ms |
//! | [`reserve`] | what part of its core does it keep, because it was promised | each 10 ms |
//! | [`backpressure`] | which chains are refused at their entry, and which NFs yield | each millisecond or faster |
//! | [`priority`] | what a weight and a position do to share and order | when a flow is assigned |
//! | [`wakeup`] | which NF of a core runs next | each time that a core is free |
//! | [`threshold`] | is an NF that sleeps started for the packets that wait | each burst that comes to it, and by its timer |
//! | [`workflow`] | which NF has the core, of those that do not cooperate | at each look at their rings |
//! | [`ecn`] | is a packet marked, so that its sender slows down | each burst |
//!
//! Sources: S. Kulkarni et al., "NFVnice: Dynamic Backpressure and Scheduling for NFV Service Chains", SIGCOMM 2017, section 3;
//! M. Anthony and Y. Bai, "UNiS" for [`workflow`]; W. Zhang et al., "Flurries" for [`threshold`].

pub mod backpressure;
pub mod cost;
pub mod ecn;
pub mod priority;
pub mod reserve;
pub mod threshold;
pub mod wakeup;
pub mod weight;
pub mod workflow;
