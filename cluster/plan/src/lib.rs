//! Plans a cluster: watched objects in; plans of nodes, decisions about pods, and conditions out.
//!
//! # Problem
//! SLOs, nodes and profiles come, change and go at any time, and so does the program that plans.
//! Each SLO is to have what it is promised as soon as there is room, to keep it whatever else
//! happens, and to say why where it cannot.
//!
//! # Terms
//! *World*: the objects as last read. *Plan*: what one node runs, a `NodePlan`. *Settled*: a node
//! has taken over the last revision of its plan. *Round*: one call of [`place`].
//!
//! # Approach
//! The plans in the world are the whole state: a round compares them with what is wished for, and
//! says which plans to write. So an operator that starts goes on where another has ended, and a
//! write that fails is decided anew. What is only in memory ([`Memo`]) saves work, and is lost
//! without harm.
//!
//! Per SLO, one rule serves admission, healing, emptying a node, and a change of what is promised
//! (`keep`): drop what is on lost nodes; admit what is missing; once that runs, lead packets to it;
//! once nothing comes to the rest, stop the rest. At each step the instances with packets carry
//! what is promised, as far as there are any. Largest promises come first, so the least promised
//! are refused where there is too little.
//!
//! A node that refuses a plan is asked which SLO it is for (`refusals`). Two tenants do not get the
//! same packets (`ingress`). An SLO on demand has as many instances as its load needs (`share`).
//!
//! A change of an NF or a chain goes to one node, and to the next when that one has taken it over
//! ([`rollout`](place)). A node that refuses stops it.
//!
//! Pods are bound by plans that are written, and to what they say ([`pods::bind`]). Those of NFs
//! with an image are made for that (`images`).
//!
//! When fewer nodes would do, a [`search`] beside the rounds finds SLOs that are to move, and the
//! same rule moves them (`moves`).
//!
//! # Limits
//! Between nodes, packets are led by whatever leads them there. What a node adds by itself for an
//! SLO on demand is in no plan, and counts for nothing here.
//!
//! Everything here is a function of its arguments; time is one of them. Only the optimiser's
//! solver, which a search may ask, has a limit by the clock.

mod applied;
mod board;
mod health;
mod images;
mod ingress;
mod keep;
mod moves;
pub mod pods;
mod refusals;
mod rollout;
mod round;
pub mod search;
mod share;
pub mod status;
mod supply;
mod wish;
mod world;

#[cfg(test)]
mod tests;

pub use moves::Better;
pub use round::{Memo, Round, place};
pub use world::{Key, Made, Node, Pod, World};
