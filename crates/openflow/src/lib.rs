//! OpenFlow 1.3, the switch side, without I/O and without a clock.
//!
//! It implements the OpenFlow Switch Specification 1.3.5 (ONF TS-023, wire version 4) for
//! controllers that may be far away, slow, restarted or wrong. Bytes in, values and bytes out; time
//! is an argument. [`message`] encodes and decodes, [`session`] keeps one connection, [`table`] is
//! the flow table, and [`switch`] answers requests and returns what has to be done.
//!
//! Limits: one table; the matches of [`oxm`]; apply, write and clear actions with at most one
//! output in all. Other requests are refused with the specified error. No groups, meters or queues.

#![forbid(unsafe_code)]

pub mod fault;
pub mod instruction;
pub mod message;
pub mod multipart;
pub mod oxm;
pub mod port;
pub mod session;
pub mod switch;
pub mod table;
mod wire;

/// The supported wire version: OpenFlow 1.3.
pub const VERSION: u8 = 4;

/// Buffer ID for "no packet is held".
pub const NO_BUFFER: u32 = 0xffff_ffff;
/// Length for "the whole packet".
pub const WHOLE_PACKET: u16 = 0xffff;
/// All tables: only in requests.
pub const ALL_TABLES: u8 = 0xff;
/// Any group: only in requests.
pub const ANY_GROUP: u32 = 0xffff_ffff;
