//! Flags of a TCP header.

/// No more data from here.
pub const FIN: u8 = 1;
/// The first packet of a direction.
pub const SYN: u8 = 2;
/// The connection is broken off.
pub const RST: u8 = 4;
/// Something is acknowledged.
pub const ACK: u8 = 16;
