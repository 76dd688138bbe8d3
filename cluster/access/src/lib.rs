//! Access to the API server: what it refuses a program, in words that say what to do.
//!
//! # Problem
//! A right that is missing, or a token that has expired, stops a part of what a program does. Its
//! requests fail one by one, each in a place of its own, and none of them says what to do.
//!
//! # Approach
//! The client that [`connect`] makes looks at each answer. What is refused for want of access is a
//! [`Fault`], and is noted in [`Faults`] with its request, so that the same request ends it when it
//! succeeds. Faults are logged once, and then now and then; programs take them for their events,
//! conditions and probes ([`beat`]).
//!
//! A right that no request asks for any more may still be missing, so the API server is asked for
//! it (`review`), for an hour.
//!
//! # Limits
//! Where the API server does not answer that, such a fault is forgotten after a while. In a pod,
//! kube reads the token and the authority again within a minute. Of a kubeconfig it does that for
//! `tokenFile` alone, so the messages say what needs a restart.

pub mod beat;
mod client;
mod fault;
mod faults;
mod review;

pub use client::connect;
pub use fault::{Asked, Certificate, Fault, causes, denied, is_fault};
pub use faults::Faults;
