//! Numbers of protocols above IP, as assigned by IANA.

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

/// The word of a protocol in rules, if it has one.
pub fn name(protocol: u8) -> Option<&'static str> {
    match protocol {
        TCP => Some("tcp"),
        UDP => Some("udp"),
        ICMP => Some("icmp"),
        ICMPV6 => Some("icmpv6"),
        _ => None,
    }
}

/// Whether the first four bytes after the IP header are two ports.
#[inline(always)]
pub fn has_ports(protocol: u8) -> bool {
    // A table: mixed protocols must not cost mispredicted branches.
    const TABLE: [u64; 4] = {
        let (mut bits, with) = ([0; 4], [TCP, UDP, SCTP, DCCP, UDP_LITE]);
        let mut i = 0;
        while i < with.len() {
            bits[(with[i] >> 6) as usize] |= 1 << (with[i] & 63);
            i += 1;
        }
        bits
    };
    TABLE[usize::from(protocol >> 6)] >> (protocol & 63) & 1 != 0
}

/// Which protocols a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProtocolMatch {
    /// Every packet.
    #[default]
    Any,
    /// Every IPv4 and IPv6 packet.
    Ip,
    /// Every packet that is not IP, such as ARP.
    NonIp,
    /// IP packets with this number in their protocol (v4) or last next-header (v6) field.
    Number(u8),
}

impl ProtocolMatch {
    /// Whether a packet that matches can have ports.
    pub fn has_ports(self) -> bool {
        match self {
            Self::Any | Self::Ip => true,
            Self::NonIp => false,
            Self::Number(n) => has_ports(n),
        }
    }

    /// Whether a packet that matches can be an IPv4 (`v6 = false`) or IPv6 packet.
    pub fn has_family(self, v6: bool) -> bool {
        match self {
            Self::Any | Self::Ip => true,
            Self::NonIp => false,
            Self::Number(n) => n != if v6 { ICMP } else { ICMPV6 },
        }
    }
}
