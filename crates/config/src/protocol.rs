//! Numbers of protocols above IP, as IANA has assigned them.

/// ICMP for IPv4.
pub const ICMP: u8 = 1;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// DCCP.
pub const DCCP: u8 = 33;
/// ICMP for IPv6.
pub const ICMPV6: u8 = 58;
/// SCTP.
pub const SCTP: u8 = 132;
/// UDP-Lite.
pub const UDP_LITE: u8 = 136;

/// Whether the first four bytes after the IP header are two ports.
#[inline(always)]
pub fn has_ports(protocol: u8) -> bool {
    // Bitwise: traffic that mixes protocols must not cost mispredicted branches.
    (protocol == TCP) | (protocol == UDP) | (protocol == SCTP) | (protocol == DCCP) | (protocol == UDP_LITE)
}
