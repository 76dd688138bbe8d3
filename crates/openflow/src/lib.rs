//! OpenFlow 1.3 as a switch speaks it, without I/O and without a clock.
//!
//! Problem: a controller, which may be far away, slow, restarted or wrong, decides about flows, in the words of the OpenFlow Switch
//! Specification 1.3.5 (ONF TS-023, wire version 4). Approach: bytes in, values and bytes out; time is an argument. [`message`] turns
//! bytes into values and back, [`session`] keeps one connection (hello, echo, whole messages), [`table`] is the flow table, and
//! [`switch`] answers what a controller asks and says what it wants done.
//!
//! Limits: one table; matches as [`oxm`] has them; instructions apply, write and clear actions with at most one output in all. What else
//! a controller asks for is refused with the error that the specification has for it. No groups, meters or queues.

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

/// The version that is spoken: OpenFlow 1.3.
pub const VERSION: u8 = 4;

/// No packet is held for this.
pub const NO_BUFFER: u32 = 0xffff_ffff;
/// As many bytes of a packet as there are.
pub const WHOLE_PACKET: u16 = 0xffff;
/// All tables: only in requests.
pub const ALL_TABLES: u8 = 0xff;
/// Any group: only in requests.
pub const ANY_GROUP: u32 = 0xffff_ffff;
