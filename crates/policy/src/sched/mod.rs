//! Fair CPU, early shedding, and time slices for NFs that do not cooperate.
//!
//! Pure functions and small state machines:
//!
//! | module | question | asked |
//! |---|---|---|
//! | [`cost`] | how long does a packet take in this NF | sample each 1 ms, median each 10 ms |
//! | [`weight`] | which share of its core does an NF get | each 10 ms |
//! | [`reserve`] | which part of its core does it keep, because of an SLO | each 10 ms |
//! | [`backpressure`] | which chains are refused at entry, which NFs yield | each 1 ms or faster |
//! | [`priority`] | what weight and position do to share and order | when a flow is assigned |
//! | [`wakeup`] | which NF of a core runs next | each time that a core is free |
//! | [`threshold`] | is a sleeping NF started for waiting packets | each burst, and by its timer |
//! | [`workflow`] | which NF that does not cooperate has the core | at each look at the rings |
//! | [`ecn`] | is a packet marked, so that its sender slows down | each burst |
//!
//! Sources: S. Kulkarni et al., "NFVnice: Dynamic Backpressure and Scheduling for NFV Service
//! Chains", SIGCOMM 2017, section 3; M. Anthony and Y. Bai, "UNiS"; W. Zhang et al., "Flurries".

pub mod backpressure;
pub mod cost;
pub mod ecn;
pub mod priority;
pub mod reserve;
pub mod threshold;
pub mod wakeup;
pub mod weight;
pub mod workflow;
