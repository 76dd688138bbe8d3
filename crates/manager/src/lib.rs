//! The manager: takes packets from ports, through chains of NF processes, to ports.
//!
//! The modules stand in the order in which a packet meets them.

pub mod chain;
pub mod classify;
pub mod config;
pub mod control;
pub mod forward;
pub mod frame;
pub mod mechanism;
pub mod nf;
pub mod port;

pub mod dataplane;
pub mod telemetry;
pub mod worker;
