//! Flags of a TCP header.

/// No more data from this end.
pub const FIN: u8 = 1;
/// First packet of a direction.
pub const SYN: u8 = 2;
/// The connection is aborted.
pub const RST: u8 = 4;
/// The acknowledgement number is valid.
pub const ACK: u8 = 16;
